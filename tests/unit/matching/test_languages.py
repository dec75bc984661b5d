"""Messages and subscriptions of several languages in one stream."""

import random
import re
from functools import cache

import numpy as np
import pytest
import Stemmer

import skyray
from matching.attributes import NO_ATTRIBUTES
from matching.errors import InputError
from matching.languages import CODES, in_language, language_of
from matching.languages import LANGUAGES as LANGUAGES_OF_STEMS
from matching.model import Names
from matching.pieces import JOINED_ID, NAMED_ID
from matching.validate import ParsedMessage
from matching.vocabulary import Vocabulary
from matching.words import cutting
from matching.words.message_words import MessageTerms, MessageWords
from spouts.messages import MessageBlock, block_of, columns_of
from spouts.parsed import parse_message
from tests.support.naive_conditions import query_holds

PLACE = {"lon": 1.0, "lat": 1.0}
EVERYWHERE = {"kind": "boolean", "region": [0, 0, 2, 2]}
LANGUAGES = (None, "german", "english", "turkish")
WORDS = ["haus", "häuser", "hause", "houses", "house", "#houses", "running", "run", "kız", "KIZ", "kizlar", "#KIZ"]
QUERIES = [
    {"all": ["häuser", "run"]},
    {"all": ["houses"]},
    {"any": ["KIZ", "house"]},
    {"any": ['"haus run"', '"house running"~1']},
    {"all": ['"#houses run"']},
    {"all": ['"houses run"']},
    {"all": ["ha*"]},
    {"all": ["hous*"], "none": ["running"]},
    {"all": ["run"], "none": ['"run houses"', "hause"]},
    {"all": ["#KIZ"]},
]


@cache
def _formed(text: str, case: str | None, by: str | None) -> str:
    """A word, a beginning or a phrase, in the case of a language and with the stems of one; hashtags have none."""
    text = text.replace("I", "ı").lower() if case == "turkish" else text.lower()
    if by is None or text.endswith("*"):
        return text
    stem = Stemmer.Stemmer(by, 0).stemWord
    return re.sub("#?[^\\W0-9]+", lambda found: found[0] if found[0][0] == "#" else stem(found[0]), text)


def _holds(query, asked: str | None, words: list[str], spoken: str | None, stems: str | None) -> bool:
    """The oracle: by stems of a language that both have, or by words as the stream cuts them, each in its own case."""
    asked, spoken = asked or stems, spoken or stems
    named = [word.removeprefix("#") for word in words]

    def holds(node: str) -> bool:
        forms = {stems, asked} if asked == spoken else {stems}
        return any(
            query_holds(_formed(node, asked, by), {}, {}, [_formed(word, spoken, by) for word in some])
            for by in ({stems} if node.endswith("*") else forms)
            for some in (words, named)
        )

    return all(
        {"all": all, "any": any, "none": lambda each: not any(each)}[name](map(holds, members))
        for name, members in query.items()
    )


@pytest.mark.parametrize("stems", [None, "english"])
def test_messages_meet_by_stems_in_their_language_and_as_the_stream_cuts_them_in_others(stems):
    engine = skyray.Engine(window="count:5000", stemming=stems or "", clock=lambda: 1e9)
    draw = random.Random(7)
    codes: dict[str | None, str] = {"english": "en", "turkish": "tr"} if stems else {}
    asked = {}
    for number, (query, lang) in enumerate((query, lang) for query in QUERIES for lang in LANGUAGES):
        asked[f"q{number}"] = query, lang
        engine.subscribe(subscription_id=f"q{number}", query=query, lang=codes.get(lang, lang), **EVERYWHERE)
    for number, (words, lang) in enumerate((words, lang) for words in ("häuser run", "#KIZ") for lang in LANGUAGES):
        common = {"keywords": words, "lang": lang}
        asked[f"k{number}"] = {"all": words.split()}, lang
        engine.subscribe(subscription_id=f"k{number}", **common, **EVERYWHERE)
        asked[f"m{number}"] = {"any": words.split()}, lang
        engine.subscribe(subscription_id=f"m{number}", match="any", **common, **EVERYWHERE)
        asked[f"n{number}"] = {"all": ["haus"], "none": words.split()}, lang
        engine.subscribe(
            subscription_id=f"n{number}", **common | {"keywords": "haus", "not_keywords": words}, **EVERYWHERE
        )
        asked[f"r{number}"] = {"any": words.split()}, lang
        engine.subscribe(subscription_id=f"r{number}", kind="topk", k=5000, alpha=0.5, **common, **PLACE)
    sent = [(draw.choices(WORDS, k=draw.randint(1, 5)), draw.choice(LANGUAGES)) for _ in range(300)]
    found = set()
    for first in range(0, len(sent), 60):
        rows = [
            {"text": " ".join(words), "lang": codes.get(lang, lang), "time": 1, **PLACE}
            for words, lang in sent[first : first + 60]
        ]
        found |= {(one["subscription_id"], one["seq"]) for one in engine.publish(rows)}
    assert not engine.misfits
    wanted = {
        (name, seq)
        for name, (query, lang) in asked.items()
        for seq, (words, spoken) in enumerate(sent)
        if _holds(query, lang, words, spoken, stems)
    }
    assert {name for name, _ in wanted} == set(asked), "each meets some"
    assert found == wanted, sorted(found ^ wanted)[:5]
    every = sorted((name, seq) for name in asked for seq in range(len(sent)))
    for name, seq in every[:: len(every) // 60]:
        assert engine.explain(name, f"seq:{seq}")["in_result"] == ((name, seq) in wanted), (name, seq)


def test_kernel_has_the_words_of_languages_as_the_vocabulary_has():
    texts = [in_language(f"{' '.join(WORDS)} BTC&ETH 東京都\u2029Häuser", lang or "") for lang in LANGUAGES]
    for folds, stems in ((False, ""), (True, "english")):
        vocabulary = Vocabulary.of_counts([{"haus": 1}], stems, folds, most_terms=200)
        words = MessageWords(vocabulary)
        cut = words.cut(Names.of(texts))
        first, new = vocabulary.first_id, words.new_terms(cut)
        assert set(new) == {term for text in texts for term in vocabulary.found_by(text)} - {"haus"} - {"kiz"} | {"kiz"}
        vocabulary.admit(new, 1)
        for _ in range(2):  # with tokens that are new, and known
            found = words.terms(words.cut(Names.of(texts)))
            for row, text in enumerate(texts):
                ids = found.ids[found.offsets[row] : found.offsets[row + 1]].tolist()
                assert ids == vocabulary.order_of(text) and -1 not in ids
        early = words.terms(words.cut(Names.of(texts)), [first] * len(texts)).ids
        assert {*early.tolist()} == {-1, JOINED_ID, NAMED_ID - JOINED_ID, NAMED_ID + 1, first, NAMED_ID - first}


@pytest.mark.parametrize(("folds", "stems"), [(False, ""), (True, "english"), (False, "turkish")])
def test_blocks_of_any_size_have_the_words_of_languages_that_each_text_has_alone(monkeypatch, folds, stems):
    draw = random.Random(len(stems))
    parts = [*WORDS, "BTC&ETH", "#東京都", "東京", "\u2029", "#houses-run", "&eacute;T", "@run"]
    spoken = [draw.choice(LANGUAGES) for _ in range(1_000)]
    texts = [in_language(" ".join(draw.choices(parts, k=draw.randint(0, 6))), lang or "") for lang in spoken]
    alone, emptied = Vocabulary.of_counts([], stems, folds), 0
    terms = [
        alone.found_by(text) if lang else alone.count_terms(text) for text, lang in zip(texts, spoken, strict=True)
    ]
    for size in (1, 2, 7, 1_000):
        monkeypatch.setattr(cutting, "MOST_TOKENS", 15 if size == 7 else 1 << 18)
        vocabulary = Vocabulary.of_counts([], stems, folds, most_terms=200)
        words, new = MessageWords(vocabulary), []
        for first in range(0, len(texts), size):
            cut = words.cut(Names.of(texts[first : first + size]))
            new += (admitted := words.new_terms(cut))
            vocabulary.admit(admitted, 1)
            found = words.terms(cut)
            for row, text in enumerate(texts[first : first + size]):
                ids = found.ids[found.offsets[row] : found.offsets[row + 1]].tolist()
                assert ids == vocabulary.order_of(text), (size, text)
        assert new == list(dict.fromkeys(term for each in terms for term in each))
        emptied += words._cutter.emptied
    assert emptied > 3


def test_language_of_a_message_is_logged_and_counts_for_its_content():
    rows = [{"text": "häuser", "lang": lang, **PLACE} for lang in LANGUAGES]
    parsed = [one for one in map(parse_message, rows) if isinstance(one, ParsedMessage)]
    assert len({one.message_id for one in parsed}) == len(rows)
    block = MessageBlock.of(parsed, NO_ATTRIBUTES)
    none = np.zeros(len(rows), np.int32)
    columns = columns_of(block, MessageTerms(none[:0], np.zeros(len(rows) + 1, np.int64), none, none))
    again = block_of(columns)[0]
    assert [one.lang for one in again.messages()] == [lang or "" for lang in LANGUAGES]
    assert again.words().strings() == block.words().strings() != block.texts.strings()
    kept = again.take(np.array([1])).spread(np.array([2]), 4, 7)
    assert (
        kept.words().strings() == ["", "", block.words().string(1), ""]
        and kept.size_bytes > block.take(np.array([1])).size_bytes
    )
    assert "lang" not in columns_of(MessageBlock.of(parsed[:1], NO_ATTRIBUTES)), "nothing changes without a language"


def test_language_that_is_none_means_nothing_in_a_message_and_refuses_a_subscription():
    engine = skyray.Engine(window="count:9", clock=lambda: 1e9)
    engine.subscribe(subscription_id="s", keywords="häuser", **EVERYWHERE)
    assert len(engine.publish([{"text": "häuser", "lang": lang, **PLACE} for lang in ("en", 7, None, "")])) == 4
    with pytest.raises(InputError, match="lang is 'en': choose one of arabic, .*yiddish [(]") as refused:
        engine.subscribe(subscription_id="t", keywords="häuser", lang="en", **EVERYWHERE)
    assert refused.value.reason_code == "bad_lang"
    engine.subscribe(subscription_id="free", keywords="x", lng=7, **EVERYWHERE)  # columns of its owner
    stems = skyray.Engine(window="count:9", stemming="german", clock=lambda: 1e9)
    with pytest.raises(InputError, match="lang is 'xx': choose one of arabic, .*yiddish, or its code, such as de"):
        stems.subscribe(subscription_id="t", keywords="häuser", lang="xx", **EVERYWHERE)
    for one, listed in ((engine, ["lang"]), (stems, [])):
        one.publish([{"text": "Haus", "lang": "en", **PLACE}])
        assert [field["name"] for field in one._admission.recent.report(NO_ATTRIBUTES, False)] == listed


def test_language_of_the_stream_is_as_none():
    assert {CODES[code] for code in CODES} == LANGUAGES_OF_STEMS - {"porter", "dutch_porter"}
    for code, name in CODES.items():  # the stemmer has codes, which it does not tell
        assert Stemmer.Stemmer(code).stemWords(WORDS) == Stemmer.Stemmer(name).stemWords(WORDS)
        assert (
            language_of(code, "") == "" and language_of(name, "") == name == language_of(code, "porter") or code == "en"
        )
    assert [language_of(lang, "porter") for lang in ("en", "english", "porter", "nl")] == ["", "", "", "dutch"]
    stemmed = [
        parse_message({"text": "Haus", "lang": lang, **PLACE}, stem_language="german")
        for lang in (None, "de", "german")
    ]
    assert stemmed[0] == stemmed[1] == stemmed[2]
