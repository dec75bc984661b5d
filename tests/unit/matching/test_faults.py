"""A refused row says which column is at fault, and what it has there."""

import pytest

from matching.attributes import AttributeSchema
from matching.faults import message_fault
from matching.fields import Fault, Refusal
from matching.kinds import KINDS
from matching.reasons import explain
from matching.space import Space
from matching.validate import subscription_row
from matching.vocabulary import Vocabulary
from spouts.parsed import parse_message

SPACE = Space(-10.0, -10.0, 10.0, 10.0)
SCHEMA = AttributeSchema.parse(["price:number", "type=house.type:category"])
GOOD = {"id": "a", "text": "ramen", "lon": 1, "lat": 2}
WORDS = Vocabulary(["ramen"], [1], [1], [1.0], 1)


@pytest.mark.parametrize(
    ("change", "reason", "column"),
    [
        ({"text": ["ramen"]}, "wrong_type", "text"),
        ({"text": "a\0"}, "nul_byte", "text"),
        ({"id": "a\0"}, "nul_byte", "id"),
        ({"object_id": "\ud800"}, "bad_utf8", "object_id"),
        ({"id": {}}, "bad_id", "id"),
        ({"object_id": [1]}, "bad_id", "object_id"),
        ({"lat": 95}, "coordinate_out_of_range", "lat"),
        ({"lon": "181"}, "coordinate_out_of_range", "lon"),
        ({"lon": "nan"}, "coordinate_not_finite", "lon"),
        ({"lat": "north"}, "coordinate_not_number", "lat"),
        ({"lat": True}, "wrong_type", "lat"),
        ({"lon": None}, "missing_coordinate", "lon"),
        ({"lon": 1, "lat": 20}, "outside_world", "lat"),
        ({"lon": -11}, "outside_world", "lon"),
        ({"west": 1, "south": 1, "east": 2}, "bad_rectangle", "north"),
        ({"west": 3, "south": 1, "east": 2, "north": 2}, "bad_rectangle", "west"),
        ({"west": 1, "south": [], "east": 2, "north": 2}, "wrong_type", "south"),
        ({"time": "soon"}, "bad_time", "time"),
        ({"op": "update"}, "bad_op", "op"),
        ({"price": "cheap"}, "bad_attribute", "price"),
        ({"house": {"type": 1.5}}, "bad_attribute", "house.type"),
    ],
    ids=str,
)
def test_message_fault_is_the_column_of_the_value_that_was_refused(change, reason, column):
    row = GOOD | change
    assert parse_message(row, SPACE, SCHEMA, strict=True) == reason
    fault = message_fault(reason, row, SPACE, SCHEMA)
    assert (None if fault is None else fault.column) == column
    if fault is not None and column in row:
        assert fault.value is row[column] or fault.value == row[column]


KNN = {"subscription_id": "s", "kind": "knn", "keywords": "ramen", "lon": 1, "lat": 1, "k": 3}
BOOLEAN = {"subscription_id": "s", "kind": "boolean", "keywords": "ramen", "region": [0, 0, 1, 1]}
BROAD = BOOLEAN | {"keywords": None, "region": [-180, -90, 180, 90], "everything": False}
HALF = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0]]]}


@pytest.mark.parametrize(
    ("row", "reason", "column"),
    [
        (KNN | {"k": 0}, "bad_k", "k"),
        (KNN | {"lat": "x"}, "coordinate_not_number", "lat"),
        (KNN | {"lon": None}, "missing_coordinate", "lon"),
        (KNN | {"keywords": ["ramen", 3]}, "wrong_type", "keywords"),
        (KNN | {"keywords": "..."}, "no_keyword", "keywords"),
        (BROAD, "requires_nothing", "everything"),
        (BOOLEAN | {"everything": 3}, "bad_everything", "everything"),
        (KNN | {"kind": "nearest"}, "unknown_kind", "kind"),
        (KNN | {"subscription_id": None}, "missing_id", "subscription_id"),
        (KNN | {"subscription_id": {}}, "bad_id", "subscription_id"),
        (KNN | {"subscription_id": "a\0"}, "nul_byte", "subscription_id"),
        (KNN | {"at": 5, "until": 2}, "bad_span", "until"),
        (KNN | {"at": -1}, "bad_span", "at"),
        (BOOLEAN | {"region": None}, "bad_region", "region"),
        (BOOLEAN | {"region": [0, 0, 1]}, "bad_region", "region"),
        (BOOLEAN | {"region": [0, 0, 1, 99]}, "coordinate_out_of_range", "region"),
        (BOOLEAN | {"match": "some"}, "bad_match", "match"),
        (BOOLEAN | {"not_keywords": 3}, "wrong_type", "not_keywords"),
        (BOOLEAN | {"region": None, "polygon": HALF}, "bad_polygon", "polygon"),
        (BOOLEAN | {"keyword": "udon"}, "unknown_column", "keyword"),
    ],
    ids=str,
)
def test_refused_subscription_names_the_column_at_fault_and_its_value(row, reason, column):
    found = subscription_row(row, WORDS, SPACE, KINDS)
    assert isinstance(found, Refusal) and found.reason == reason
    assert found.fault is not None and (found.fault.column, found.fault.value) == (column, row[column])
    assert found.detail and explain(reason, KINDS, found.detail).startswith(found.detail)


def test_subscription_without_region_is_told_how_to_say_everywhere():
    found = subscription_row(BOOLEAN | {"region": None}, WORDS, SPACE, KINDS)
    assert isinstance(found, Refusal) and "everywhere is [-180, -90, 180, 90]" in found.detail
    everywhere = subscription_row(BOOLEAN | {"region": [-180, -90, 180, 90]}, WORDS, SPACE, KINDS)
    assert not isinstance(everywhere, Refusal)


def test_fault_values_are_short():
    for value, short in (
        (1.5, 1.5),
        (True, True),
        ("x", "x"),
        (7, 7),
        (10**30, "number"),
        ({}, "object"),
        ([1], "list"),
    ):
        assert Fault("a", value).named == {"column": "a", "value": short}
    assert Fault("a").named == {"column": "a", "value": None} and len(Fault("a", "x" * 10_000).named["value"]) <= 40
    assert str(Fault("lat", 95)) == "lat is 95" and str(Fault("lat")) == "lat is missing"
