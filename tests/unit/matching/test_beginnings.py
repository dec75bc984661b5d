"""Beginnings of words as terms: which messages have them, whatever comes first, and that no score knows them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyray
from matching.fields import Refusal
from matching.filter_programs import compile_filter
from matching.model import MessageBatch
from matching.query_programs import Query, query_of
from matching.reasons import MAX_BEGUN
from matching.reserved import is_reserved
from matching.skyline.window import SkylineQueries
from matching.skyline.windows.grid import GridWindow
from matching.space import Space
from matching.subscription_words import refused_when_new
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR, Boundary
from matching.words.message_words import MessageTerms, weigh
from tests.support.conditions import batch_of
from tests.support.examples import examples
from tests.support.naive_conditions import query_holds

START = ["rad", "radio", "fahrt"]
WORDS = [*START, "fahrrad", "fahrer", "radler", "ra", "fah", "see"]
BEGINNINGS = ["ra*", "rad*", "fahr*", "fahrrad*", "see*", "rad~", "fahrt~", "fahrer~"]


def growing(most_terms=50) -> Vocabulary:
    return Vocabulary(START, [1, 2, 3], [1, 2, 3], [3.0, 2.0, 1.0], 10, most_terms=most_terms)


def columns_of(vocabulary: Vocabulary, texts: list[list[str]]):
    """The words of messages with the beginnings that they have, and without."""
    ids = np.array([-1 if (one := vocabulary.id_of(word)) is None else one for own in texts for word in own], np.int32)
    offsets, none = np.cumsum([0, *map(len, texts)]), np.zeros(len(texts), np.int32)
    bare = weigh(MessageTerms(ids, offsets, none, none), vocabulary.idf)
    rows = np.repeat(np.arange(len(texts)), np.diff(offsets))
    return vocabulary.beginnings.added_to(vocabulary, ids, rows, bare), bare


@pytest.mark.parametrize("seed", range(20))
def test_messages_have_the_beginnings_of_their_known_words_whichever_was_admitted_first(seed):
    rng, vocabulary, met = np.random.default_rng(seed), growing(), 0
    new = rng.permutation([*set(WORDS) - set(START), *BEGINNINGS]).tolist()
    for _ in range(6):
        some, new = new[:3], new[3:]
        if rng.random() < 0.2:
            vocabulary.forget_admitted()
            vocabulary.admit(sorted(some), 10)
        elif some:
            vocabulary.admit(sorted(some), 10)
        texts = [rng.choice(WORDS, rng.integers(0, 5)).tolist() for _ in range(5)]
        found, bare = columns_of(vocabulary, texts)
        for row, own in enumerate(texts):
            part = slice(*found.offsets[row : row + 2].tolist())
            terms = found.terms[part]
            known = {word for word in own if vocabulary.id_of(word) is not None}
            begun = {
                one
                for one in BEGINNINGS
                if vocabulary.id_of(one) is not None and query_holds(one.replace("~", "~1"), {}, {}, [*known])
            }
            assert sorted(terms.tolist()) == terms.tolist()
            assert {vocabulary.term_of(term) for term in terms.tolist()} == known | begun
            matching_only = is_reserved(found.weights[part])
            assert {vocabulary.term_of(term) for term in terms[matching_only].tolist()} == begun
            assert not found.counts[part][matching_only].any()
            met += len(begun)
        kept = ~is_reserved(found.weights)
        for name in ("terms", "weights", "counts"):
            assert getattr(found, name)[kept].tolist() == getattr(bare, name).tolist()
    assert met or seed, "no message had a beginning"


def test_beginning_is_one_term_where_words_are_admitted_and_all_its_words_where_not():
    query = query_of("RAD*", growing())
    assert isinstance(query, Query) and query.required == ("rad*",) and str(query.tree) == "rad*"
    query = query_of("rad*", growing(0))
    assert isinstance(query, Query) and set(query.choices) == {"rad", "radio"} and not query.scoring
    query = query_of("radi*", growing(0))
    assert isinstance(query, Query) and query.required == ("radio",)


@given(
    st.lists(st.text("abc", min_size=1, max_size=6), max_size=200, unique=True),
    st.text("abc", min_size=3, max_size=6),
    st.integers(0, 200),
)
@settings(max_examples=examples(100, 500), deadline=None)
def test_words_within_one_edit_are_those_of_the_oracle_whichever_were_admitted(words, near, admitted):
    late, start = words[:admitted], words[admitted:]
    vocabulary = Vocabulary(start, [1] * len(start), [1] * len(start), [1.0] * len(start), 1, most_terms=300)
    vocabulary.admit(sorted({*late, "zzzz~", "zzz*"}), 1)
    wanted = [word for word in words if query_holds(f"{near}~1", {}, {}, [word])]
    assert sorted(vocabulary.words_from(f"{near}~")) == sorted(wanted)


def test_word_with_one_edit_finds_words_that_come_later_and_changes_no_score():
    also = {"near": {"kind": "boolean", "region": [0, 0, 2, 2], "query": "fahrad~1"}}
    texts = ["see rad", "see fahrrad", "fahrad", "farhad rad", "faxxad", "fahrade see", "frad"]
    alone, together = updates({}, texts), updates(also, texts)
    assert [one for one in together if one[0] in ASKED] == alone
    assert [one[2] for one in together if one[0] == "near"] == [1, 2, 3, 5]


@pytest.mark.parametrize(
    "text", ["ab~1", "自転車~1", "rad-weg~1", "r*", "#r*", "rad-weg*", "自転*", "**", "r*d", "*rad", '"rad weg*"']
)
def test_beginning_that_cannot_be_asked_for_is_refused(text):
    found = query_of(text, growing())
    assert isinstance(found, Refusal) and found.reason == "bad_query" and found.fault.value == text


def test_beginning_of_too_many_known_words_is_refused_when_it_comes():
    vocabulary = growing(2 * MAX_BEGUN)
    vocabulary.admit([f"wort{number}" for number in range(MAX_BEGUN)], 10)
    row = {"query": {"none": ["wort*"]}}
    assert refused_when_new(row, vocabulary) is None
    vocabulary.admit(["wortlos", "wort*"], 10)
    refused = refused_when_new(row, vocabulary)
    assert refused is not None and refused.reason == "too_many_words" and "1,001" in refused.detail
    assert isinstance(query_of(row["query"], vocabulary), Query), "a log may have it"


def test_window_of_skylines_filters_by_beginnings_and_counts_words_alone():
    messages = batch_of([[1, 2, 9], [1, 3, 9], [1, 9]])  # 2 is a beginning, 9 the reserved term
    weights = np.where(np.isin(messages.terms, [2, 9]), np.float32(-0.0), np.float32(1.0))
    messages = MessageBatch(**(messages._asdict() | {"weights": weights}))
    window = GridWindow(Space(-180.0, -90.0, 180.0, 90.0))
    window.store(Boundary(0, 0, 2, NO_FLOOR), messages, np.zeros(0, np.int64))
    program = np.frombuffer(compile_filter(at_least=(1, [2])), np.int64)
    region, offsets, terms = np.array([[-1.0, -1, 1, 1]] * 2), np.array([0, 1, 2]), np.array([1, 1], np.int32)
    found = window.candidates(SkylineQueries(region, offsets, terms, np.array([0, 0, program.size]), program))
    assert found.offsets.tolist() == [0, 3, 4] and found.seq.tolist() == [0, 1, 2, 0]
    assert found.text.tolist() == [1.0, 0.5, 1.0, 1.0]


PLACE = {"lon": 1.0, "lat": 1.0}
ASKED = {
    "all": {"kind": "boolean", "region": [0, 0, 2, 2], "keywords": "rad"},
    "best": {"kind": "topk", "keywords": "rad see", "k": 3, "alpha": 0.4, **PLACE},
    "newest": {"kind": "decay", "keywords": "rad see", "k": 3, "alpha": 0.4, **PLACE},
    "next": {"kind": "knn", "keywords": "rad", "k": 2, **PLACE},
    "line": {"kind": "skyline", "region": [0, 0, 2, 2], "keywords": "rad see"},
}


def updates(also: dict, texts: list[str]) -> list[tuple]:
    engine = skyray.Engine(window="count:6", clock=lambda: 1e9)
    for name, row in (ASKED | also).items():
        engine.subscribe(row, subscription_id=name)
    told = []
    for number, text in enumerate(texts):
        row = {"text": text, "lon": 1 + number % 5 / 9, "lat": 1.0, "time": 1_000_000 + number}
        told += [(one["subscription_id"], one["change"], one["seq"], one["score"]) for one in engine.publish(row)]
    return told


def test_beginnings_of_others_change_no_score_and_find_words_that_come_later():
    rng = np.random.default_rng(4)
    texts = [" ".join(rng.choice([*WORDS, *(f"rad{late}" for late in range(number // 4))], 3)) for number in range(40)]
    also = {
        f"{kind} {query}": {name: value for name, value in row.items() if name != "keywords"} | {"query": query}
        for kind, row in ASKED.items()
        for query in ("see rad*", "see -(fahr* OR rad1*)")
    }
    alone, together = updates({}, texts), updates(also, texts)
    assert [one for one in together if one[0] in ASKED] == alone and len(alone) > 60
    for query in ("see rad*", "see -(fahr* OR rad1*)"):
        tree = {"all": ["see", "rad*"]} if query == "see rad*" else {"all": ["see"], "none": ["fahr*", "rad1*"]}
        wanted = [seq for seq, text in enumerate(texts) if query_holds(tree, {}, {}, text.split())]
        assert [one[2] for one in together if one[0] == f"all {query}"] == wanted and wanted


def test_beginning_is_found_in_the_window_and_in_what_comes_after_it():
    engine = skyray.Engine(window="count:20", clock=lambda: 1e9)
    for text in ("see fahrrad", "see fahrt", "see rad"):
        engine.publish({"text": text, "time": 1, **PLACE})
    for kind in ("topk", "skyline"):
        row = {name: value for name, value in ASKED["best" if kind == "topk" else "line"].items() if name != "keywords"}
        engine.subscribe(row | ({"k": 10} if kind == "topk" else {}), subscription_id=kind, query="see fahr*")
    first = {
        (one["subscription_id"], one["seq"]) for one in engine.publish({"text": "see fahrerin", "time": 1, **PLACE})
    }
    assert first == {(kind, seq) for kind in ("topk", "skyline") for seq in (0, 1, 3)}
    for text in ("see rad", "see fahrplan"):
        engine.publish({"text": text, "time": 1, **PLACE})
    engine.subscribe(subscription_id="late", kind="topk", query="see fahr*", k=10, alpha=0.5, **PLACE)
    again = {
        one["seq"] for one in engine.publish({"text": "see", "time": 1, **PLACE}) if one["subscription_id"] == "late"
    }
    assert again == {0, 1, 3, 5}
