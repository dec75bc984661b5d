"""Messages and subscriptions of several languages in one stream."""

import random

import numpy as np
import pytest
import Stemmer

import skyray
from matching.attributes import NO_ATTRIBUTES
from matching.errors import InputError
from matching.languages import in_language
from matching.pieces import JOINED_ID, NAMED_ID
from matching.validate import ParsedMessage
from matching.vocabulary import Vocabulary
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


def _cased(word: str, language: str | None) -> str:
    return word.replace("I", "ı").lower() if language == "turkish" else word.lower()


def _formed(text: str, language: str | None, stemmed: bool) -> str:
    """A word, a beginning or a phrase, in the case and with the stems of a language."""
    text = _cased(text, language)
    if not stemmed or language is None or text.endswith("*"):
        return text
    stem = Stemmer.Stemmer(language, 0).stemWord
    return " ".join(
        '"' * one.startswith('"') + _stemmed(one.strip('"'), stem) + '"' * one.endswith('"')
        if "~" not in one
        else _stemmed(one.partition('"')[0], stem) + '"' + one.partition('"')[2]
        for one in text.split()
    )


def _stemmed(word: str, stem) -> str:
    return "#" + stem(word[1:]) if word.startswith("#") else stem(word)


def _holds(query, asked, words: list[str], spoken) -> bool:
    """The oracle: of one language by stems, else by words as they are written, each in the case of its language."""
    stemmed = asked == spoken

    def formed(node):
        if isinstance(node, str):
            return _formed(node, asked, stemmed)
        return {name: list(map(formed, members)) for name, members in node.items()}

    def atoms(node) -> bool:
        if isinstance(node, dict):
            held = {name: [atoms(one) for one in members] for name, members in node.items()}
            return all({"all": all, "any": any}.get(name, lambda e: not any(e))(each) for name, each in held.items())
        if node.endswith("*"):  # words begin as they are written, whatever their stems are
            return query_holds(_formed(node, asked, False), {}, {}, [_cased(word, spoken) for word in words])
        # hashtags have no stem, the words that they name have
        tags, named = [_formed(word, spoken, stemmed and word[0] != "#") for word in words], words
        named = [_formed(word.removeprefix("#"), spoken, stemmed) for word in words]
        own = _of_tags(node, asked, stemmed)
        return query_holds(own, {}, {}, tags) or query_holds(own, {}, {}, named)

    return atoms(query)


def _of_tags(node: str, language, stemmed: bool) -> str:
    if not node.startswith('"'):
        return _formed(node, language, stemmed and node[0] != "#")
    inner, _, slop = node[1:].partition('"')
    return '"' + " ".join(_of_tags(word, language, stemmed) for word in inner.split()) + '"' + slop


def test_messages_meet_by_stems_in_their_language_and_as_they_are_written_in_others():
    engine, draw = skyray.Engine(window="count:5000", clock=lambda: 1e9), random.Random(7)
    asked = {}
    for number, (query, lang) in enumerate((query, lang) for query in QUERIES for lang in LANGUAGES):
        asked[f"q{number}"] = query, lang
        engine.subscribe(subscription_id=f"q{number}", query=query, lang=lang, **EVERYWHERE)
    for number, (words, lang) in enumerate((words, lang) for words in ("häuser run", "#KIZ") for lang in LANGUAGES):
        asked[f"k{number}"] = {"all": words.split()}, lang
        engine.subscribe(subscription_id=f"k{number}", keywords=words, lang=lang, **EVERYWHERE)
        asked[f"m{number}"] = {"any": words.split()}, lang
        engine.subscribe(subscription_id=f"m{number}", keywords=words, match="any", lang=lang, **EVERYWHERE)
        asked[f"n{number}"] = {"all": ["haus"], "none": words.split()}, lang
        engine.subscribe(subscription_id=f"n{number}", keywords="haus", not_keywords=words, lang=lang, **EVERYWHERE)
        asked[f"r{number}"] = {"any": words.split()}, lang
        engine.subscribe(
            subscription_id=f"r{number}", kind="topk", k=5000, alpha=0.5, keywords=words, lang=lang, **PLACE
        )
    sent = [(draw.choices(WORDS, k=draw.randint(1, 5)), draw.choice(LANGUAGES)) for _ in range(300)]
    found = set()
    for first in range(0, len(sent), 60):
        rows = [{"text": " ".join(words), "lang": lang, "time": 1, **PLACE} for words, lang in sent[first : first + 60]]
        found |= {(one["subscription_id"], one["seq"]) for one in engine.publish(rows)}
    wanted = {
        (name, seq)
        for name, (query, lang) in asked.items()
        for seq, (words, spoken) in enumerate(sent)
        if _holds(query, lang, words, spoken)
    }
    assert {name for name, _ in wanted} == set(asked), "each meets some"
    assert found == wanted, sorted(found ^ wanted)[:5]
    every = sorted((name, seq) for name in asked for seq in range(len(sent)))
    for name, seq in every[:: len(every) // 60]:
        assert engine.explain(name, f"seq:{seq}")["in_result"] == ((name, seq) in wanted), (name, seq)


def test_kernel_has_the_words_of_languages_as_the_vocabulary_has():
    texts = [in_language(f"{' '.join(WORDS)} BTC&ETH 東京都\u2029Häuser", lang or "") for lang in LANGUAGES]
    for folds in (False, True):
        vocabulary = Vocabulary.of_counts([{"haus": 1}], folds_accents=folds, most_terms=200)
        words = MessageWords(vocabulary)
        cut = words.cut(texts)
        first, new = vocabulary.first_id, words.new_terms(cut)
        assert set(new) == {term for text in texts for term in vocabulary.found_by(text)} - {"haus"} - {"kiz"} | {"kiz"}
        vocabulary.admit(new, 1)
        for _ in range(2):  # with tokens that are new, and known
            found = words.terms(words.cut(texts))
            for row, text in enumerate(texts):
                ids = found.ids[found.offsets[row] : found.offsets[row + 1]].tolist()
                assert ids == vocabulary.order_of(text) and -1 not in ids
        early = words.terms(words.cut(texts), [first] * len(texts)).ids
        assert {*early.tolist()} == {-1, JOINED_ID, NAMED_ID - JOINED_ID, NAMED_ID + 1, first, NAMED_ID - first}
        one = Vocabulary.of_counts([{"haus": 1}], "german", folds, most_terms=200)
        assert one.order_of(in_language("Häuser", "english")) == one.order_of("Häuser"), "it stems all words alike"


def test_language_of_a_message_is_logged_and_counts_for_its_content():
    rows = [{"text": "häuser", "lang": lang, **PLACE} for lang in LANGUAGES]
    parsed = [one for one in map(parse_message, rows) if isinstance(one, ParsedMessage)]
    assert len({one.message_id for one in parsed}) == len(rows)
    block = MessageBlock.of(parsed, NO_ATTRIBUTES)
    none = np.zeros(len(rows), np.int32)
    columns = columns_of(block, MessageTerms(none[:0], np.zeros(len(rows) + 1, np.int64), none, none))
    again = block_of(columns)[0]
    assert [one.lang for one in again.messages()] == [lang or "" for lang in LANGUAGES]
    assert again.words() == block.words() != block.texts.strings()
    kept = again.take(np.array([1])).spread(np.array([2]), 4, 7)
    assert kept.words() == ["", "", block.words()[1], ""] and kept.size_bytes > block.take(np.array([1])).size_bytes
    assert "lang" not in columns_of(MessageBlock.of(parsed[:1], NO_ATTRIBUTES)), "nothing changes without a language"


def test_language_that_is_none_means_nothing_in_a_message_and_refuses_a_subscription():
    engine = skyray.Engine(window="count:9", clock=lambda: 1e9)
    engine.subscribe(subscription_id="s", keywords="häuser", **EVERYWHERE)
    assert len(engine.publish([{"text": "häuser", "lang": lang, **PLACE} for lang in ("en", 7, None, "")])) == 4
    assert not engine.misfits
    with pytest.raises(InputError, match="lang is 'en': choose one of arabic, .*yiddish") as refused:
        engine.subscribe(subscription_id="t", keywords="häuser", lang="en", **EVERYWHERE)
    assert refused.value.reason_code == "bad_lang"
    engine.subscribe(subscription_id="free", keywords="x", lng=7, **EVERYWHERE)  # columns of its owner
    stems = skyray.Engine(window="count:9", stemming="german", clock=lambda: 1e9)
    with pytest.raises(InputError, match="stems all words in german: leave lang out"):
        stems.subscribe(subscription_id="t", keywords="häuser", lang="english", **EVERYWHERE)
    stems.subscribe(subscription_id="s", keywords="häuser", lang="german", **EVERYWHERE)
    rows = [{"text": "Haus", "lang": lang, **PLACE} for lang in ("german", "english", None)]
    assert [one["seq"] for one in stems.publish(rows)] == [0, 1, 2] and stems.misfits == {"lang": 1}
