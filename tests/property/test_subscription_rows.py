"""Subscriptions that are checked together become what they become one by one, whatever is in them."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.attributes import AttributeSchema
from matching.fields import Refusal, point_of
from matching.kinds import KINDS
from matching.reasons import MAX_K, MAX_SUBSCRIPTION_TERMS
from matching.space import EARTH, Space
from matching.subscription_rows import SubscriptionRows, terms_known_now
from matching.subscription_words import refused_when_new
from matching.text import MAX_TEXT_CHARACTERS
from matching.validate import ParsedSubscription, build_table, subscription_row
from matching.vocabulary import Vocabulary
from matching.words.message_words import MessageWords

SPACES = [
    Space(*EARTH, distance="sphere"),
    Space(*EARTH),
    Space(-10, -5, 30, 40),
    Space(*EARTH, projection="equal-area"),
]
SIZES = (1, 2, 7, 1_000)
KEYWORDS = [
    "ramen",
    "Ramen soup",
    ["ramen", "ramen"],
    ["soup bar", "bar"],
    "naïve café",
    "東京 ラーメン",
    "#ramen @bar",
]
KEYWORDS += ["the", ["the", "ramen"], [], "", " ", ["!?"], None, 7, ["ramen", 7], [["ramen"]], "BTC&amp;ETH", "&bogus;"]
KEYWORDS += ["udon", ["udon", "soba", "ramen"], "x" * MAX_TEXT_CHARACTERS, "y " * MAX_TEXT_CHARACTERS, "\ud800", "a\0b"]
KEYWORDS += [" ".join(f"w{n}" for n in range(count)) for count in (MAX_SUBSCRIPTION_TERMS, MAX_SUBSCRIPTION_TERMS + 1)]
NUMBERS = [0, 1, -0.0, 0.5, 12.25, -180, 180.0, 90, -90.0, 90.00001, 181, True, None, "41,5", "x", math.nan, math.inf]
NUMBERS += [10**400, 2**53 + 1, [], 1e-300]
REGIONS = [
    [0, 0, 1, 1],
    [170, 0, -170, 5],
    [1, 1, 1, 1],
    [1, 1, 1, 2],
    (0, 0, 1, 1),
    [0, 0, 1],
    [0, 5, 1, 1],
    None,
    "here",
]
REGIONS += [
    [-0.0, 0, True, 1],
    [0, 0, "1", 1],
    [0, 0, math.nan, 1],
    [-180, -90, 180, 90],
    [-181, 0, 1, 1],
    [0, 0, 1, 90.5],
]
REGIONS += [[10**400, 0, 1, 1], [0, 0, 1, None], [0, 0, 1, 1, 1], [[], [], [], []]]
WHERES = [{"price": {"gte": 1, "lt": 9.5}}, {"price": 7, "rooms": [1, 2]}, {"kind_of": {"not": "flat"}}, {}, None, "x"]
WHERES += [{"price": {"gte": 9, "lte": 5}}, {"price": {"decreased": True}}, {"other": 1}, {"tags": {"any": ["a"]}}]
SQUARE = {"type": "Polygon", "coordinates": [[[0, 0], [2, 0], [2, 2], [0, 2], [0, 0]]]}
VALUES = {
    "subscription_id": ["s", "s1", "é", "", "a\0b", "\ud800", 7, 7.0, None, [], "i" * 512, "i" * 513],
    "kind": [*KINDS.names, "other", None, ["boolean"], 3],
    "keywords": KEYWORDS,
    "lon": NUMBERS,
    "lat": NUMBERS,
    "region": REGIONS,
    "k": [1, 10, MAX_K, MAX_K + 1, 0, -1, 10.0, "3", True, None],
    "alpha": [0, 1, 0.5, -0.1, 1.1, "0.5", True, None, math.nan],
    "match": ["any", "all", 2, None],
    "not_keywords": ["bar", ["soba"], None],
    "everything": [True, False, "true", "", None, 3],
    "where": WHERES,
    "circle": [
        {"lon": 1, "lat": 1, "radius_m": 1000},
        {"lon": 180, "lat": 1, "radius_m": 1000},
        {"lon": 1},
        "{}",
        None,
    ],
    "polygon": [SQUARE, {"type": "Polygon", "coordinates": []}, None],
    "radius_m": [1000, None],
    "at": [0, 5, None],
    "until": [3, 9, None],
    "owner": ["me", None],
    "note": [{"a": 1}, None],
    "keyword": ["ramen", None],
    "expires_at": ["2030-01-01T00:00:00Z"],
}
ATTRIBUTES = AttributeSchema.parse(["price:number", "rooms:number", "kind_of:category", "tags:categories"])
POINT = {"lon": 5, "lat": 2.5}
GOOD = {
    "boolean": {"region": [1, 2, 3, 4]},
    "topk": {**POINT, "k": 3, "alpha": 0.5},
    "decay": {**POINT, "k": 3, "alpha": 0.5},
    "knn": {**POINT, "k": 3},
    "skyline": {"region": [1, 2, 3, 4]},
}
GOOD_ROWS = [{"subscription_id": "s", "kind": kind, "keywords": "ramen bar", **more} for kind, more in GOOD.items()]
#: Those that are checked in columns, too: with shapes and conditions, and without words.
CIRCLE = {"circle": {"lon": 1, "lat": 2, "radius_m": 500}}
GOOD_ROWS += [
    {"subscription_id": "s", **row, "where": WHERES[0]}
    for row in (
        {"kind": "boolean", **CIRCLE},
        {"kind": "boolean", "keywords": "ramen", "polygon": SQUARE},
        {"kind": "boolean", "region": [1, 2, 3, 4]},
        {"kind": "knn", **POINT, "k": 3},
        {"kind": "topk", "keywords": "bar", **POINT, "k": 3, "alpha": 0.5},
        {"kind": "skyline", "keywords": "bar", "region": [1, 2, 3, 4]},
    )
]


@st.composite
def rows(draw):
    """A good row of a kind, with some columns changed, added or left out, in any order."""
    row = dict(draw(st.sampled_from(GOOD_ROWS)))
    for name in draw(st.lists(st.sampled_from(list(VALUES)), max_size=3)):
        row[name] = draw(st.sampled_from(VALUES[name]))
    if row and draw(st.integers(0, 9)) == 0:
        del row[draw(st.sampled_from(list(row)))]
    return dict(draw(st.permutations(list(row.items()))))


def vocabulary(most_terms, stem=""):
    counts = [{"ramen": 1, "soup": 2}, {"ramen": 1, "bar": 1}, {"ramen": 3, "東京": 1}]
    columns = Vocabulary.of_counts(counts)
    return Vocabulary(
        columns.terms, columns.document_frequency, columns.collection_count, columns.idf, 3,
        stop_terms=["the"], stem_language=stem, most_terms=most_terms, attributes=ATTRIBUTES,
    )  # fmt: skip


def compared(found):
    """With the types of all numbers, and so that NaN is like itself."""
    return found if isinstance(found, Refusal) else repr(tuple(found))


def compare(known, space, some, wanted, size):
    """That rows checked so many at a time are those wanted; returns how many of them were plain."""
    checks, plain = SubscriptionRows(MessageWords(known), space, KINDS), 0
    for first in range(0, len(some), size):
        found, others = checks.check(some[first : first + size])
        own, rows = wanted[first : first + size], some[first : first + size]
        assert sorted([*found.rows, *others]) == list(range(len(own)))
        assert {at: compared(one) for at, one in others.items()} == {at: compared(own[at]) for at in others}
        alike = [own[at] for at in found.rows]
        assert all(isinstance(one, ParsedSubscription) for one in alike), "none is refused in columns"
        same_columns(found.table, build_table(alike, [0] * len(alike), [0] * len(alike)))
        words = [found.words[a:b] for a, b in pairwise(found.word_offsets.tolist())]
        assert [(one.subscription_id, list(one.words), one.unknown) for one in alike] == list(
            zip(found.names, words, found.unknown.tolist(), strict=True)
        )
        # they have what nobody looks for in columns: no words but keywords, no end
        assert {(one.others, one.stopped, one.until, one.broad, one.backfill) for one in alike} <= {
            ((), 0, None, False, None)
        }
        assert not any(refused_when_new(rows[at], known) for at in found.rows)
        boxes = [
            one.region if one.x != one.x else point_of(rows[at]) * 2 for at, one in zip(found.rows, alike, strict=True)
        ]
        assert boxes == list(map(tuple, found.boxes.tolist()))
        plain += len(alike)
    return plain


def same_columns(found, wanted):
    for name, column, like in zip(wanted._fields, found, wanted, strict=True):
        assert column.dtype == like.dtype and column.shape == like.shape, name
        assert np.array_equal(column, like, equal_nan=column.dtype.kind == "f"), name


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), max_size=60), st.sampled_from(SPACES), st.sampled_from([(0, ""), (100, ""), (100, "english")]))
def test_rows_checked_together_are_those_checked_one_by_one(some, space, words):
    known = vocabulary(*words)
    if known.most_terms:
        known.admit(["udon"], 3)
    wanted = [subscription_row(row, known, space, KINDS) for row in some]
    for size in SIZES:
        compare(known, space, some, wanted, size)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("words", [(0, ""), (100, "english")])
def test_rows_with_one_odd_value_checked_together_are_those_checked_one_by_one(space, words):
    """Every value of every column in a good row of every kind, and every column left out."""
    known = vocabulary(*words)
    some = [row | {name: value} for row in GOOD_ROWS for name, values in VALUES.items() for value in values]
    some += [{name: value for name, value in row.items() if name != out} for row in GOOD_ROWS for out in row]
    wanted = [subscription_row(row, known, space, KINDS) for row in some]
    for size in (7, 50, len(some)):
        compare(known, space, some, wanted, size)


@pytest.mark.parametrize("stem", ["", "english", "turkish"])
def test_rows_none_of_which_has_a_word_are_checked_together(stem):
    some = [row for row in GOOD_ROWS if "keywords" not in row] * 3
    known = vocabulary(100, stem)
    wanted = [subscription_row(row, known, SPACES[0], KINDS) for row in some]
    assert compare(known, SPACES[0], some, wanted, len(some)) == len(some) == 9


@pytest.mark.parametrize("space", SPACES[:3])
def test_plain_rows_are_not_checked_one_by_one(space):
    rng = np.random.default_rng(4)
    some = [
        row | {"subscription_id": f"s{at}", "owner": "me"} | {name: words for name in row if name == "keywords"}
        for at in range(500)
        for row, words in [(GOOD_ROWS[at % len(GOOD_ROWS)], [f"word{rng.integers(50)}", "ramen"])]
    ]
    known = vocabulary(1_000)
    wanted = [subscription_row(row, known, space, KINDS) for row in some]
    assert compare(known, space, some, wanted, 500) == 500
    odd = SubscriptionRows(MessageWords(known), space, KINDS).check([*some[:9], {}, *some[9:19]]).plain
    assert odd.rows == [*range(9), *range(10, 20)]
    for first, last in ((0, 19), (3, 3), (2, 11), (11, 19)):
        part = odd.part(first, last)
        same_columns(part.table, odd.table.take(np.arange(first, last)))
        assert (part.rows, part.names) == (odd.rows[first:last], odd.names[first:last])
        assert part.word_offsets.tolist() == [0, *np.cumsum(np.diff(odd.word_offsets)[first:last])]
        assert part.words == odd.words[odd.word_offsets[first] : odd.word_offsets[last]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(rows(), min_size=1, max_size=60), st.sets(st.sampled_from(["udon", "soba", "soup", "bar", "café", "w7"]))
)
def test_rows_that_were_checked_before_words_came_have_the_terms_of_those_checked_after(some, admitted):
    known = vocabulary(100)
    checked = [subscription_row(row, known, SPACES[0], KINDS) for row in some]
    before = [(row, one) for row, one in zip(some, checked, strict=True) if isinstance(one, ParsedSubscription)]
    known.admit(sorted(word for word in admitted if known.id_of(word) is None), 3)
    after = [subscription_row(row, known, SPACES[0], KINDS) for row, _ in before]
    zeros = [0] * len(before)
    words = [one.words for _, one in before]
    offsets = np.cumsum([0, *map(len, words)])
    flat = [word for some in words for word in some]
    found, count = terms_known_now(build_table([one for _, one in before], zeros, zeros), flat, offsets, known)
    wanted = build_table(after, zeros, zeros)
    for name in ("term_offsets", "terms", "weights", "kind", "x", "region", "number"):
        column, like = getattr(found, name), getattr(wanted, name)
        assert column.dtype == like.dtype and np.array_equal(column, like, equal_nan=column.dtype.kind == "f"), name
    assert count.tolist() == [
        len(one.words) - one.unknown - one.stopped for one in after if isinstance(one, ParsedSubscription)
    ]


def test_words_that_are_admitted_between_two_blocks_have_their_ids():
    known = vocabulary(100)
    checks = SubscriptionRows(MessageWords(known), SPACES[0], KINDS)
    some = [row | {"keywords": ["udon", "soba", "ramen"]} for row in GOOD_ROWS]

    def unknown():
        plain = checks.check(some).plain
        assert len(plain.rows) == len(some)
        return set(zip(plain.unknown.tolist(), np.diff(plain.table.term_offsets).tolist(), strict=True))

    assert unknown() == {(2, 1)}
    known.admit(["udon"], 3)
    assert unknown() == {(1, 2)}
    known.forget_admitted()
    assert unknown() == {(2, 1)}
