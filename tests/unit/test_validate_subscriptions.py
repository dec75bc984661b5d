"""The gate for subscriptions of all five kinds, and their table."""

import math

import numpy as np
import pytest

from matching.model import ANY_KEYWORD, BOOLEAN, DECAY, KINDS, KNN, SKYLINE, TOPK, UNKNOWN_TERM
from matching.space import Space
from matching.text import Vocabulary
from matching.validate import (
    MAX_K,
    MAX_SUBSCRIPTION_TERMS,
    REASONS,
    ParsedSubscription,
    build_table,
    subscription_row,
)

VOCABULARY = Vocabulary(["bar", "ramen", "tea"], [1, 2, 3], [1, 2, 3], [3.0, 2.0, 1.0], messages=4, stop_terms=["the"])
SPACE = Space.parse("0,0,10,5", None)
POINT = {"subscription_id": "s", "keywords": "ramen bar", "lon": 5, "lat": 2.5, "k": 3, "alpha": 0.5}
REGION = {"subscription_id": "s", "keywords": "ramen bar", "region": [1, 2, 3, 4]}
GOOD = {
    "boolean": REGION | {"kind": "boolean"},
    "topk": POINT | {"kind": "topk"},
    "decay": POINT | {"kind": "decay"},
    "knn": POINT | {"kind": "knn", "alpha": None},
    "skyline": REGION | {"kind": "skyline"},
}


def parse(kind, /, **changes):
    return subscription_row(GOOD[kind] | changes, VOCABULARY, SPACE)


def parsed(kind, /, **changes) -> ParsedSubscription:
    row = parse(kind, **changes)
    assert isinstance(row, ParsedSubscription), row
    return row


@pytest.mark.parametrize("kind", KINDS)
def test_subscription_row_each_kind_is_parsed(kind):
    row = parsed(kind)
    assert (row.subscription_id, KINDS[row.kind]) == ("s", kind)
    assert (row.terms, row.idf, row.words) == ((0, 1), (3.0, 2.0), ("ramen", "bar"))
    assert (row.unknown, row.stopped, row.at, row.until) == (0, 0, 0, None)
    if row.kind in (BOOLEAN, SKYLINE):
        assert row.region == (1, 2, 3, 4) and math.isnan(row.x) and row.k == 0 and math.isnan(row.alpha)
    else:
        assert (row.x, row.y, row.k) == (0.5, 0.25, 3) and all(map(math.isnan, row.region))
        assert row.alpha == 0.5 if row.kind in (TOPK, DECAY) else math.isnan(row.alpha)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("topk", {"colour": 1}, "unknown_column"),
        ("topk", {"subscription_id": None}, "missing_id"),
        ("topk", {"subscription_id": ""}, "missing_id"),
        ("topk", {"subscription_id": [1]}, "bad_id"),
        ("topk", {"subscription_id": "a\0"}, "nul_byte"),
        ("topk", {"subscription_id": "\ud800"}, "bad_utf8"),
        ("topk", {"kind": None}, "unknown_kind"),
        ("topk", {"kind": "top-k"}, "unknown_kind"),
        ("topk", {"kind": ["topk"]}, "unknown_kind"),
        ("topk", {"keywords": None}, "no_keyword"),
        ("topk", {"keywords": []}, "no_keyword"),
        ("boolean", {"keywords": " ... "}, "no_keyword"),
        ("topk", {"keywords": 5}, "wrong_type"),
        ("topk", {"keywords": ["ramen", 5]}, "wrong_type"),
        ("topk", {"keywords": "x" * 10_000_000}, "text_too_long"),
        ("topk", {"keywords": [str(n) for n in range(MAX_SUBSCRIPTION_TERMS + 1)]}, "too_many_keywords"),
        ("topk", {"keywords": "a\u4e00\ud800"}, "no_known_keyword"),
        ("topk", {"keywords": "zebra the"}, "no_known_keyword"),
        ("skyline", {"keywords": "zebra"}, "no_known_keyword"),
        ("boolean", {"keywords": "the ramen"}, "stop_term"),
        ("topk", {"k": None}, "bad_k"),
        ("topk", {"k": 0}, "bad_k"),
        ("knn", {"k": 10**9}, "bad_k"),
        ("decay", {"k": MAX_K + 1}, "bad_k"),
        ("topk", {"k": "3"}, "bad_k"),
        ("topk", {"k": 2.5}, "bad_k"),
        ("topk", {"k": True}, "bad_k"),
        ("boolean", {"match": "some"}, "bad_match"),
        ("boolean", {"match": ["any"]}, "bad_match"),
        ("topk", {"match": "any"}, "bad_match"),
        ("boolean", {"match": "any", "keywords": "nobody the"}, "no_known_keyword"),
        ("topk", {"alpha": None}, "bad_alpha"),
        ("topk", {"alpha": math.nan}, "bad_alpha"),
        ("decay", {"alpha": 1.01}, "bad_alpha"),
        ("decay", {"alpha": -0.1}, "bad_alpha"),
        ("topk", {"alpha": True}, "bad_alpha"),
        ("topk", {"alpha": "0.5"}, "bad_alpha"),
        ("topk", {"lon": None}, "missing_coordinate"),
        ("topk", {"lat": math.nan}, "coordinate_not_finite"),
        ("topk", {"lat": 91}, "coordinate_out_of_range"),
        ("topk", {"lon": 10.001}, "outside_world"),
        ("knn", {"lat": -1}, "outside_world"),
        ("topk", {"region": [1, 2, 3, 4]}, "wrong_place"),
        ("boolean", {"lon": 1}, "wrong_place"),
        ("boolean", {"region": None}, "bad_region"),
        ("boolean", {"region": [1, 2, 3]}, "bad_region"),
        ("boolean", {"region": "1,2,3,4"}, "bad_region"),
        ("boolean", {"region": [1, 4, 3, 2]}, "bad_region"),
        ("boolean", {"region": [1, None, 3, 2]}, "bad_region"),
        ("boolean", {"region": [1, 2, 3, math.inf]}, "coordinate_not_finite"),
        ("boolean", {"region": [1, 2, 181, 4]}, "coordinate_out_of_range"),
        ("skyline", {"region": [3, 2, 1, 4]}, "crosses_antimeridian"),
        ("skyline", {"region": [3, 2, 3, 2]}, "bad_region"),
        ("topk", {"at": -1}, "bad_span"),
        ("topk", {"at": "5"}, "bad_span"),
        ("topk", {"at": 5, "until": 5}, "bad_span"),
        ("topk", {"until": 0}, "bad_span"),
        ("topk", {"until": 1.5}, "bad_span"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_subscription_row_bad_value_gives_reason(kind, changes, reason):
    assert parse(kind, **changes) == reason
    assert reason in REASONS


def test_subscription_row_null_columns_count_as_absent():
    assert repr(parsed("topk", region=None, colour=None, at=None, until=None)) == repr(parsed("topk"))


def test_subscription_row_boolean_across_antimeridian_is_kept():
    assert parsed("boolean", region=[170, 0, -170, 1]).region == (170, 0, -170, 1)


def test_subscription_row_boolean_unknown_term_is_flagged_last_and_once():
    row = parsed("boolean", keywords="zebra ramen okapi")
    assert (row.terms, row.idf, row.unknown) == ((1, UNKNOWN_TERM), (2.0, 0.0), 2)


@pytest.mark.parametrize("kind", ["topk", "decay", "knn", "skyline"])
def test_subscription_row_unknown_and_stop_terms_elsewhere_are_ignored_and_counted(kind):
    row = parsed(kind, keywords=["zebra the", "tea"])
    assert (row.terms, row.unknown, row.stopped) == ((2,), 1, 1)


def test_subscription_row_any_keyword_leaves_out_those_that_cannot_come():
    row = parsed("boolean", match="any", keywords=["ramen", "nobody", "the"])
    assert (row.k, row.terms, row.unknown, row.stopped) == (ANY_KEYWORD, (1,), 1, 1)
    assert parsed("boolean", match="all").k == parsed("boolean").k == 0


def test_subscription_row_whole_floats_count_as_whole_numbers():
    row = parsed("knn", k=4.0, at=7.0, until=9)
    assert (row.k, row.at, row.until) == (4, 7, 9)


def test_subscription_row_world_edge_is_inside():
    row = parsed("topk", lon=10, lat=5)
    assert (row.x, row.y) == (1.0, 0.5)


def test_build_table_mixed_kinds_fills_columns():
    rows = [
        parsed("topk", keywords="ramen bar"),
        parsed("boolean", keywords="tea zebra", region=[170, 0, -170, 1]),
        parsed("knn", keywords="tea"),
    ]
    table = build_table(rows, [4, 5, 6], [0, 10, 20])
    assert table.number.tolist() == [4, 5, 6] and table.at.tolist() == [0, 10, 20]
    assert table.kind.tolist() == [TOPK, BOOLEAN, KNN] and table.k.tolist() == [3, 0, 3]
    np.testing.assert_array_equal(table.x, [0.5, np.nan, 0.5])
    np.testing.assert_array_equal(table.alpha, [0.5, np.nan, np.nan])
    np.testing.assert_array_equal(table.region, [[np.nan] * 4, [170, 0, -170, 1], [np.nan] * 4])
    assert table.term_offsets.tolist() == [0, 2, 4, 5]
    assert table.terms.tolist() == [0, 1, 2, UNKNOWN_TERM, 2]
    norm = math.sqrt(3.0**2 + 2.0**2)
    assert table.weights.tolist() == [np.float32(3 / norm), np.float32(2 / norm), 1.0, 0.0, 1.0]
    dtypes = [column.dtype.name for column in table]
    assert dtypes == [
        "int64", "int8", "int64", "float64", "float64", "float64", "int32", "float64", "int64", "int32", "float32",
    ]  # fmt: skip


def test_build_table_without_rows_has_the_right_shapes():
    table = build_table([], [], [])
    assert len(table) == 0 and table.region.shape == (0, 4) and table.term_offsets.tolist() == [0]
    assert DECAY not in table.kind
