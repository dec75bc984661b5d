"""Words that the tokeniser cuts into pieces: they mean what people wrote, by an oracle that knows characters alone."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from matching.boolean.engines.cell_term import CellTerm
from matching.fields import Refusal
from matching.filters import filters_of, passing
from matching.kinds import KINDS
from matching.model import Names
from matching.naive import boolean_match, meets, passes
from matching.naive_rows import messages_of, subscriptions_of
from matching.pieces import JOINED, Word
from matching.space import Space
from matching.text import count_terms, cut_words, tokenise
from matching.validate import build_table, subscription_row
from matching.vocabulary import Vocabulary
from matching.words.cutting import TextCutter
from tests.support.conditions import batch_of
from tests.support.examples import examples
from tests.support.naive_conditions import _units, stand_in_a_row, stands_in, words_hold

SPACE = Space(-180.0, -90.0, 180.0, 90.0)
#: Between the words of two columns.
END = [JOINED, JOINED]
LETTERS = "東京都機ー한국ไทยabC1"
texts = st.text(st.sampled_from(LETTERS + " &-・、"), max_size=14)
written = st.text(st.sampled_from(LETTERS + "&-・"), min_size=1, max_size=5).filter(lambda word: bool(_units(word)))
PLACES = {
    "boolean": {"region": [-180, -90, 180, 90]},
    "knn": {"lon": 0, "lat": 0, "k": 1},
    "decay": {"lon": 0, "lat": 0, "k": 1, "alpha": 0.5},
    "topk": {"lon": 0, "lat": 0, "k": 1, "alpha": 0.5},
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("東京都 BTC&ETH", [["東", "東京", "京", "京都", "都"], ["btc", JOINED, "eth"]]),
        ("iPhone15ケース、机", [["iphone15", JOINED, "ケ", "ケー", "ー", "ース", "ス", JOINED, "机"]]),
        ("rote Fahrrad-Tasche!", [["rote"], ["fahrrad", JOINED, "tasche"]]),
        ("a\u3000b\u200bc\nd", [["a"], ["b"], ["c"], ["d"]]),
        ("\u2029a-b \u2029 \u2029#_ 东\u2029c\u2029", [["a", JOINED, "b"], END, ["东"], END, ["c"]]),
        ("A &amp; b\u2029http://x.y\u2029c", [["a"], ["b"], END, ["c"]]),
        ("前http://x.y/z後", [["前"], ["後"]]),
        ("🍜🍜#ramen#udon ___ #_-x", [["🍜", JOINED, "🍜", JOINED, "#ramen", JOINED, "udon"], ["x"]]),
        ("C++/c# F#, .NET g++11", [["c++", JOINED, "c#"], ["f#"], [".net"], ["g++", JOINED, "11"]]),
        ("abc++ c#x asp.net .nets ::.net", [["abc"], ["c", JOINED, "x"], ["asp", JOINED, "net"], ["nets"], [".net"]]),
        ("é abc++ c#x Ｃ＋＋ c#é .néts", [["é"], ["abc"], ["c", JOINED, "x"], ["c++"], ["c", JOINED, "é"], ["néts"]]),
    ],
)
def test_text_is_cut_into_words_as_people_write_them(text, words):
    assert cut_words(text) == words
    cutter = TextCutter()
    for _ in range(2):  # the kernel is sure of no text before its pages are filled
        cut, names = cutter.cut(Names.of([text])), cutter.strings()
        found = [names[number] for number in cut.tokens.tolist()]
        assert found == list(chain.from_iterable(words))
    assert [str(Word(word)) for word in cut_words("東京都 BTC&ETH x")] == ["東京都", "btc-eth", "x"]


@given(written, texts)
@settings(max_examples=examples(200, 600), deadline=None)
def test_word_stands_in_a_text_where_its_pieces_stand_in_a_row(word, text):
    (wanted,) = cut_words(word)
    rows = cut_words(text)
    found = any(row[first : first + len(wanted)] == wanted for row in rows for first in range(len(row)))
    assert found == stands_in(word, text)
    assert stands_in(word, f"x {word}.") and (not found or set(Word(wanted).needed) <= {*tokenise(text)})


def batch(rows, vocabulary):
    """The messages, all of which are visible."""
    orders = [vocabulary.order_of(text) for text in rows]
    made = batch_of([{term for term in order if term >= 0} | {vocabulary.reserved} for order in orders])
    weights = np.where(made.terms == vocabulary.reserved, np.float32(-0.0), made.weights)
    ends, order = np.cumsum([0, *map(len, orders)]), np.array(list(chain.from_iterable(orders)), np.int32)
    return type(made)(**made._asdict() | {"weights": weights, "order_offsets": ends, "order": order})


def wanted_of(kind, row, text):
    """Whether a message fits what a subscription says of words, by characters."""
    units = {word: tuple(_units(word)) for word in (*row["keywords"], *row.get("not_keywords", ()))}
    there = {units[word] for word in units if stands_in(word, text)}
    match = row.get("match")
    if match is None and kind != "boolean":
        match = "any"
    scores = kind == "decay"
    if scores and not {*chain.from_iterable(map(tokenise, row["keywords"]))} & {*tokenise(text)}:
        return False
    keywords = () if scores and row.get("match") is None else [units[word] for word in row["keywords"]]
    return words_hold(match if keywords else "all", keywords, map(units.get, row.get("not_keywords", ())), there)


@given(
    st.lists(texts, min_size=3, max_size=6),
    st.lists(written, min_size=1, max_size=3),
    st.lists(written, max_size=2),
    st.sampled_from([None, "all", "any", 2]),
    st.sampled_from(["boolean", "knn", "decay"]),
)
@example(["", "", ""], ["東京都"], [], None, "boolean")
@settings(max_examples=examples(300, 1500), deadline=None)
def test_keywords_of_a_subscription_mean_words_as_people_write_them(rows, keywords, excluded, match, kind):
    rows += [" ".join(keywords), "".join(keywords), "-".join([*keywords, *excluded])]
    rows += ["・".join(Word(*cut_words(word)).needed) for word in keywords]
    row = {"subscription_id": "s", "kind": kind, "keywords": keywords, "not_keywords": excluded, **PLACES[kind]}
    row |= {} if match is None else {"match": match}
    vocabulary = Vocabulary.of_counts(map(count_terms, rows))
    parsed = subscription_row(row, vocabulary, SPACE, KINDS)
    if isinstance(parsed, Refusal):
        assert parsed.reason == "match_too_large" and len({tuple(_units(word)) for word in keywords}) < 2, parsed
        return
    expected = [wanted_of(kind, row, text) for text in rows]
    assert any(expected) or excluded or (kind == "boolean" and match in (None, "all")), "the case says nothing"
    table, messages = build_table([parsed], [0], [0]), batch(rows, vocabulary)
    (subscription,) = subscriptions_of(table)
    candidate = boolean_match if kind == "boolean" else meets
    found = [candidate(subscription, one) and passes(subscription, one) for one in messages_of(messages)]
    assert found == expected
    pairs = np.arange(len(rows), dtype=np.int32)
    kernel = passing(filters_of(table.filter_offsets, table.filter_words), pairs * 0, pairs, messages)
    assert kernel.tolist() == [passes(subscription, one) for one in messages_of(messages)]
    if kind == "boolean":
        engine = CellTerm(SPACE)
        engine.insert(table)
        assert sorted(engine.match(messages).row.tolist()) == np.flatnonzero(expected).tolist()


@given(st.lists(texts, min_size=3, max_size=6), written, written, st.sampled_from(["boolean", "knn", "decay"]))
@settings(max_examples=examples(150, 600), deadline=None)
def test_words_of_a_query_mean_words_as_people_write_them(rows, one, other, kind):
    assume(_units(one) != _units(other))
    rows += [
        one + other,
        f"{one} {other}",
        f"{other}-{one}",
        one,
        f"{other} {one}{other} {one}",
        f"{other} {one}. {other}",
    ]
    vocabulary = Vocabulary.of_counts(map(count_terms, rows))
    for query, holds in (
        (f"{one} -{other}", lambda text: stands_in(one, text) and not stands_in(other, text)),
        (f'{other} "{one}"', lambda text: stands_in(one, text) and stands_in(other, text)),
        (f"{one} OR {other}", lambda text: stands_in(one, text) or stands_in(other, text)),
        (f'"{one} {other}"', lambda text: stand_in_a_row([one, other], text)),
        (f'"{other} {one} {other}"', lambda text: stand_in_a_row([other, one, other], text)),
        (f"{one} -({other} {one})", lambda text: stands_in(one, text) and not stands_in(other, text)),
    ):
        row = {"subscription_id": "s", "kind": kind, "query": query.replace("--", "-"), **PLACES[kind]}
        if one[0] in "-&・" or other[0] in "-&・":
            return
        parsed = subscription_row(row, vocabulary, SPACE, KINDS)
        assert not isinstance(parsed, Refusal), (query, parsed)
        table, messages = build_table([parsed], [0], [0]), batch(rows, vocabulary)
        (subscription,) = subscriptions_of(table)
        candidate = boolean_match if kind == "boolean" else meets
        found = [candidate(subscription, each) and passes(subscription, each) for each in messages_of(messages)]
        assert found == [holds(text) for text in rows], query


@pytest.mark.parametrize(("between", "found"), [("", [0, 1]), ("~1", [0, 1, 2])])
def test_phrase_counts_words_and_not_what_joins_them(between, found):
    rows = ["rotes fahrrad", "rotes-fahrrad", "rotes, altes-fahrrad", "fahrrad-rotes"]
    vocabulary = Vocabulary.of_counts(map(count_terms, rows))
    row = {"subscription_id": "s", "kind": "boolean", "query": f'"rotes fahrrad"{between}', **PLACES["boolean"]}
    parsed = subscription_row(row, vocabulary, SPACE, KINDS)
    assert not isinstance(parsed, Refusal)
    table, messages = build_table([parsed], [0], [0]), batch(rows, vocabulary)
    engine = CellTerm(SPACE)
    engine.insert(table)
    assert sorted(engine.match(messages).row.tolist()) == found
    (subscription,) = subscriptions_of(table)
    assert [at for at, one in enumerate(messages_of(messages)) if passes(subscription, one)] == found
