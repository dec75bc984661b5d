"""The gate for subscriptions of all kinds, those of the table and others that are handed in, and their table."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from matching.attributes import AttributeSchema
from matching.errors import ConfigError
from matching.fields import Refusal
from matching.kind_table import Kind, Kinds
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD, BOOLEAN, DECAY, KEYWORDS_BY_KIND, KNN, SKYLINE, TOPK, UNKNOWN_TERM
from matching.reasons import MAX_K, MAX_SUBSCRIPTION_TERMS, REASONS, explain
from matching.space import Space
from matching.validate import ParsedSubscription, build_table, misspelt, subscription_row
from matching.vocabulary import Vocabulary

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


def parsed_or_reason(row, kinds) -> ParsedSubscription | str:
    found = subscription_row(row, VOCABULARY, SPACE, kinds)
    return found.reason if isinstance(found, Refusal) else found


def parse(kind, /, **changes):
    return parsed_or_reason(GOOD[kind] | changes, KINDS)


def parsed(kind, /, **changes) -> ParsedSubscription:
    row = parse(kind, **changes)
    assert isinstance(row, ParsedSubscription), row
    return row


@pytest.mark.parametrize("kind", KINDS.names)
def test_subscription_row_each_kind_is_parsed(kind):
    row = parsed(kind)
    assert (row.subscription_id, KINDS[row.kind].name) == ("s", kind)
    assert (row.terms, row.idf, row.words) == ((0, 1), (3.0, 2.0), ("ramen", "bar"))
    assert (row.unknown, row.stopped, row.at, row.until) == (0, 0, 0, None)
    if row.kind in (BOOLEAN, SKYLINE):
        assert row.region == (1, 2, 3, 4) and math.isnan(row.x) and row.k == 0 and math.isnan(row.alpha)
    else:
        assert (row.x, row.y, row.k) == (0.5, 0.25, 3) and all(map(math.isnan, row.region))
        assert row.alpha == 0.5 if row.kind in (TOPK, DECAY) else math.isnan(row.alpha)


@pytest.mark.parametrize("kind", ["boolean", "topk", "decay", "knn"])
@pytest.mark.parametrize("keywords", [None, "", [], [""], ()])
def test_subscription_row_without_keywords_stands_under_the_reserved_term(kind, keywords):
    row = parsed(kind, keywords=keywords)
    assert (row.terms, row.words, row.unknown, row.can_match) == ((VOCABULARY.reserved,), (), 0, True)
    assert VOCABULARY.reserved == len(VOCABULARY)
    table = build_table([row], [0], [0])
    assert table.weights.tolist() == [0.0] and np.signbit(table.weights).all()
    assert row.alpha == 1.0 if row.kind in (TOPK, DECAY) else math.isnan(row.alpha)


def test_subscription_row_ranked_by_place_alone_needs_no_alpha():
    assert parsed("topk", keywords=None, alpha=None).alpha == parsed("decay", keywords="", alpha=0.2).alpha == 1.0
    assert parse("topk", keywords=None, alpha=7) == "bad_alpha"


def test_subscription_row_without_keywords_keeps_what_it_excludes():
    row = parsed("boolean", keywords=None, not_keywords="bar zebra")
    assert row.others == ("bar", "zebra") and row.filter and row.unknown_others == 1


@pytest.mark.parametrize("everything", [True, "true"])
def test_subscription_row_for_everything_may_leave_out_its_region(everything):
    assert parsed("boolean", keywords=None, region=None, everything=everything).region == (-180, -90, 180, 90)
    assert parsed("boolean", keywords=None, region=[-180, -90, 180, 90], everything=everything).terms
    assert parse("boolean", region=None, everything=everything) == "bad_region"  # it has keywords


@pytest.mark.parametrize("limits", [{"where": {"price": {"lt": 900}}}, {"circle": {"lon": 5, "lat": 5, "radius_m": 9}}])
def test_subscription_row_that_requires_something_need_not_ask_for_everything(limits):
    everywhere = {} if "circle" in limits else {"region": [-180, -90, 180, 90]}
    row = {**GOOD["boolean"], "keywords": None, "region": None, **everywhere, **limits}
    vocabulary = Vocabulary([], [], [], [], 0, attributes=AttributeSchema.parse(["price:number"]))
    assert isinstance(subscription_row(row, vocabulary, SPACE, KINDS), ParsedSubscription)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("topk", {"keyword": 1}, "unknown_column"),
        ("topk", {"subscription_id": None}, "missing_id"),
        ("topk", {"subscription_id": ""}, "missing_id"),
        ("topk", {"subscription_id": [1]}, "bad_id"),
        ("topk", {"subscription_id": "a\0"}, "nul_byte"),
        ("topk", {"subscription_id": "\ud800"}, "bad_utf8"),
        ("topk", {"kind": None}, "unknown_kind"),
        ("topk", {"kind": "top-k"}, "unknown_kind"),
        ("topk", {"kind": ["topk"]}, "unknown_kind"),
        ("skyline", {"keywords": None}, "no_keyword"),
        ("skyline", {"keywords": []}, "no_keyword"),
        ("topk", {"keywords": "...", "alpha": 1}, "no_keyword"),
        ("boolean", {"keywords": None, "match": "any"}, "no_keyword"),
        ("boolean", {"keywords": None, "match": 2}, "no_keyword"),
        ("boolean", {"keywords": None, "region": [-180, -90, 180, 90]}, "requires_nothing"),
        ("boolean", {"keywords": None, "region": [-180, -90, 180, 90], "not_keywords": "bar"}, "requires_nothing"),
        ("boolean", {"keywords": None, "region": [-180, -90, 180, 90], "where": {}}, "requires_nothing"),
        ("boolean", {"keywords": None, "region": None}, "bad_region"),
        ("boolean", {"everything": 1}, "bad_everything"),
        ("boolean", {"everything": "yes"}, "bad_everything"),
        ("boolean", {"everything": []}, "bad_everything"),
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
        ("topk", {"k": "3.5"}, "bad_k"),
        ("topk", {"k": 2.5}, "bad_k"),
        ("topk", {"k": True}, "bad_k"),
        ("boolean", {"match": "some"}, "bad_match"),
        ("boolean", {"match": ["any"]}, "bad_match"),
        ("topk", {"match": 0}, "bad_match"),
        ("topk", {"match": True}, "bad_match"),
        ("knn", {"match": 9}, "match_too_large"),
        ("boolean", {"where": {"price": 3}}, "unknown_attribute"),
        ("boolean", {"where": []}, "bad_where"),
        ("boolean", {"not_keywords": [3]}, "wrong_type"),
        ("boolean", {"circle": {"lon": 1, "lat": 2, "radius_m": 5}}, "wrong_place"),
        ("boolean", {"region": None, "circle": {"lon": 1, "lat": 2}}, "bad_circle"),
        ("boolean", {"region": None, "circle": {"lon": 1, "lat": 2, "radius_m": 0}}, "bad_radius"),
        ("boolean", {"region": None, "polygon": {"type": "Point", "coordinates": [1, 2]}}, "bad_polygon"),
        ("boolean", {"radius_m": 5}, "wrong_shape"),
        ("topk", {"radius_m": 5}, "radius_in_plane"),
        ("topk", {"circle": {"lon": 1, "lat": 2, "radius_m": 5}}, "wrong_shape"),
        ("skyline", {"polygon": {}}, "wrong_shape"),
        ("knn", {"radius_m": -1}, "bad_radius"),
        ("knn", {"radius_m": 5, "polygon": {}}, "wrong_shape"),
        ("boolean", {"match": "any", "keywords": "nobody the"}, "no_known_keyword"),
        ("topk", {"alpha": None}, "bad_alpha"),
        ("topk", {"alpha": math.nan}, "bad_alpha"),
        ("decay", {"alpha": 1.01}, "bad_alpha"),
        ("decay", {"alpha": -0.1}, "bad_alpha"),
        ("topk", {"alpha": True}, "bad_alpha"),
        ("topk", {"alpha": "0,5"}, "bad_alpha"),
        ("topk", {"alpha": "1e999"}, "bad_alpha"),
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
        ("topk", {"at": "5x"}, "bad_span"),
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
    assert (row.match, row.k, row.terms, row.unknown, row.stopped) == (ANY_KEYWORD, 0, (1,), 1, 1)
    assert parsed("boolean", match="all").match == parsed("boolean").match == KEYWORDS_BY_KIND


def test_subscription_row_whole_floats_count_as_whole_numbers():
    row = parsed("knn", k=4.0, at=7.0, until=9)
    assert (row.k, row.at, row.until) == (4, 7, 9)


def test_subscription_row_numbers_may_be_text_as_in_csv():
    row = parsed("decay", k=" 4 ", alpha="0.25", at="7", until="9", lon="0.5", lat="5e-1")
    assert (row.k, row.alpha, row.at, row.until) == (4, 0.25, 7, 9)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("keyword", "keywords"), ("Alpha", "alpha"), ("untill", "until"), ("regions", "region"), ("lon ", "lon")],
)
def test_subscription_row_a_slip_in_a_name_is_no_free_column(name, meant):
    assert misspelt(name) == meant
    assert parse("topk", **{name: "x"}) == "unknown_column"
    assert not isinstance(parse("topk", **{name: None}), str), "what is null is not there"


@pytest.mark.parametrize("name", ["name", "note", "colour", "floor", "e-mail", "latitude", "", "\x1b[2J", "名前"])
def test_subscription_row_other_columns_are_their_owners(name):
    assert misspelt(name) is None
    assert parsed("topk", **{name: ["anything", {}]}) == parsed("topk")


def test_subscription_row_smallest_and_largest_k_are_taken():
    assert [parsed("topk", k=k).k for k in (1, MAX_K)] == [1, MAX_K]


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
        "int64", "int8", "int64", "float64", "float64", "float64", "int8", "int32", "float64", "int64",
        "int32", "float32", "int64", "int64", "float64", "float64",
    ]  # fmt: skip


def test_build_table_without_rows_has_the_right_shapes():
    table = build_table([], [], [])
    assert len(table) == 0 and table.region.shape == (0, 4) and table.term_offsets.tolist() == [0]
    assert DECAY not in table.kind


# ------------------------------------------------------------------------------------ kinds that are handed in

#: What no kind of the table is: a point with all keywords, a region with k, one that needs some size and may wrap.
HANDED_IN = KINDS.plus(
    Kind(5, "beacon", "point", all_keywords=True, fields=("match", "alpha")),
    Kind(6, "zone", "region", fields=("k",)),
    Kind(7, "belt", "region", wraps=True, needs_extent=True),
)


def parse_as(kind, **changes):
    place = {"lon": 5, "lat": 2.5} if kind == "beacon" else {"region": [1, 2, 3, 4]}
    row = {"subscription_id": "s", "kind": kind, "keywords": "ramen bar", **place, **changes}
    return parsed_or_reason(row, HANDED_IN)


@pytest.mark.parametrize(
    ("kind", "changes", "outcome"),
    [
        ("beacon", {"alpha": 0.5}, (5, 0.5, 0, 0.5, (0, 1))),
        ("beacon", {"alpha": 0.5, "match": "any"}, (5, 0.5, 0, 0.5, (0, 1), ANY_KEYWORD)),
        ("beacon", {"alpha": 1, "keywords": "tea zebra"}, (5, 0.5, 0, 1.0, (2, UNKNOWN_TERM))),
        ("beacon", {"alpha": 1, "keywords": "tea zebra", "match": "any"}, (5, 0.5, 0, 1.0, (2,), ANY_KEYWORD)),
        ("beacon", {"alpha": 1, "keywords": "the tea"}, "stop_term"),
        ("beacon", {}, "bad_alpha"),
        ("beacon", {"alpha": 1, "region": [1, 2, 3, 4]}, "wrong_place"),
        ("zone", {"k": 4}, (6, None, 4, None, (0, 1))),
        ("zone", {"k": 4, "keywords": "tea zebra"}, (6, None, 4, None, (2,))),
        ("zone", {"k": 4, "region": [3, 2, 3, 2]}, (6, None, 4, None, (0, 1))),
        ("zone", {}, "bad_k"),
        ("zone", {"k": 4, "match": "some"}, "bad_match"),
        ("zone", {"k": 4, "region": [3, 2, 1, 4]}, "crosses_antimeridian"),
        ("zone", {"k": 4, "lon": 1}, "wrong_place"),
        ("belt", {"k": 0, "alpha": "x"}, (7, None, 0, None, (0, 1))),
        ("belt", {"region": [3, 2, 1, 4]}, (7, None, 0, None, (0, 1))),
        ("belt", {"region": [3, 2, 3, 2]}, "bad_region"),
        ("belt", {"region": [3, 2, 3, 4]}, (7, None, 0, None, (0, 1))),
        ("topk", {"region": None, "lon": 5, "lat": 2.5, "k": 3, "alpha": 0}, (TOPK, 0.5, 3, 0.0, (0, 1))),
        ("ring", {}, "unknown_kind"),
    ],
    ids=str,
)
def test_subscription_row_of_a_kind_handed_in_goes_by_what_its_row_says(kind, changes, outcome):
    row = parse_as(kind, **changes)
    if isinstance(row, ParsedSubscription):
        x, alpha = (None if math.isnan(value) else value for value in (row.x, row.alpha))
        row = (row.kind, x, row.k, alpha, row.terms, *([row.match] if row.match != KEYWORDS_BY_KIND else []))
    assert row == outcome


def test_subscription_row_kind_that_the_table_lacks_is_unknown():
    fewer = Kinds([replace(KINDS.named("topk"), code=0)])
    assert parsed_or_reason(GOOD["boolean"], fewer) == "unknown_kind"
    row = subscription_row(GOOD["topk"], VOCABULARY, SPACE, fewer)
    assert isinstance(row, ParsedSubscription) and row.kind == 0


@pytest.mark.parametrize(
    ("code", "of_table", "handed_in"),
    [
        ("unknown_kind", "one of boolean, topk, decay, knn, skyline", "knn, skyline, beacon, zone, belt"),
        ("bad_k", "(topk, decay and knn need one)", "(topk, decay, knn and zone need one)"),
        ("bad_alpha", "(topk and decay need one)", "(topk, decay and beacon need one)"),
        ("bad_region", "a skyline's needs some size", "a skyline's and a belt's need some size"),
        ("crosses_antimeridian", "which only boolean regions may have", "which only boolean and belt regions may have"),
        ("wrong_place", "boolean and skyline take a region", "boolean, skyline, zone and belt take a region"),
    ],
)
def test_explain_names_the_kinds_of_the_table_that_was_given(code, of_table, handed_in):
    assert of_table in explain(code, KINDS)
    assert handed_in in explain(code, HANDED_IN)


def test_explain_every_code_is_a_sentence_whatever_kinds_there_are():
    for kinds in (KINDS, HANDED_IN, Kinds([]), Kinds([replace(KINDS.named("knn"), code=0)])):
        told = [explain(code, kinds) for code in REASONS]
        assert all(sentence and sentence[-1] != "." and "{" not in sentence for sentence in told)
    assert all(code.islower() for code in REASONS)
    assert explain("crosses_antimeridian", Kinds([])).endswith("which no regions may have")
    assert explain("bad_region", Kinds([])).endswith("south <= north")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (Kind(7, "zone", "region"), "codes must be"),
        (Kind(5, "topk", "region"), "a name stands for one kind"),
        (Kind(5, "zone", "region", fields=("k", "match")), "share a column"),
    ],
)
def test_kinds_row_that_cannot_be_is_refused(more, what):
    with pytest.raises(ConfigError, match=what):
        KINDS.plus(more)


def test_validate_is_imported_without_the_kernels():
    """Spark's workers check messages here; compiling kernels in each of them would take seconds."""
    code = "import sys, matching.validate; sys.exit('numba' in sys.modules or 'matching.kinds' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], timeout=300)
    assert done.returncode == 0
