"""Conditions on hand-made messages, what is refused and why, and the keys that kernels compare."""

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from matching.attributes import (
    CATEGORY,
    MISSING_KEY,
    NUMBER,
    TIME,
    AttributeSchema,
    DeclaredAttribute,
    attribute_value,
    key_of,
    number_keys,
)
from matching.conditions import (
    MAX_CONDITIONS,
    MAX_VALUES,
    parse_where,
)
from matching.errors import ConfigError
from matching.fields import Refusal
from matching.reasons import REASONS
from tests.support.conditions import SCHEMA, TYPES_BY_NAME, judged
from tests.support.naive_conditions import where_holds, words_hold


@pytest.mark.parametrize(
    ("where", "values", "fits"),
    [
        ({"price": {"lte": 500}}, {"price": 500}, True),
        ({"price": {"lt": 500}}, {"price": 500}, False),
        ({"price": {"gte": 3, "lt": 6}}, {"price": 3}, True),
        ({"price": {"gt": 3, "lt": 6}}, {"price": 3}, False),
        ({"price": {"lt": 0}}, {"price": -0.0}, False),
        ({"price": {"lt": 0}}, {}, False),
        ({"price": 0}, {}, False),
        ({"price": 2**53 + 1}, {"price": 2**53}, True),
        ({"type": "house"}, {"type": "house"}, True),
        ({"type": ["house", "flat"]}, {"type": "boat"}, False),
        ({"type": ["never seen", "flat"]}, {"type": "flat"}, True),
        ({"type": {"not": ["house"]}}, {"type": "flat"}, True),
        ({"type": {"not": ["house"]}}, {"type": "house"}, False),
        ({"type": {"not": ["house"]}}, {}, True),
        ({"type": {"exists": False}}, {}, True),
        ({"type": {"exists": False}}, {"type": "house"}, False),
        ({"type": {"exists": True}}, {}, False),
        ({"type": {"exists": True, "not": "house"}}, {}, False),
        ({"listed": {"gt": "2020-05-01"}}, {"listed": "2020-05-01T00:00:00.000001Z"}, True),
        ({"listed": {"lte": "2020-05-01"}}, {"listed": "2020-05-01T00:00:00.000001Z"}, False),
        ({"listed": {"gte": "Fri, 01 May 2020 02:00:00 +0200"}}, {"listed": "2020-05-01"}, True),
        ({"listed": {"gt": "Fri May  1 00:00:00 2020"}}, {"listed": "2020-05-01T00:00:00.000001Z"}, True),
        ({"listed": 20200501123000}, {"listed": "2020-05-01T12:30Z"}, True),
        ({"price": 1, "type": "house"}, {"price": 1, "type": "flat"}, False),
        ({}, {}, True),
    ],
)
def test_where_holds_or_not_for_kernel_and_oracle(where, values, fits):
    kernel, oracle = judged([where], [values])
    assert (kernel.tolist(), oracle.tolist()) == ([[fits]], [[fits]])


def test_oracle_reads_a_time_as_microseconds():
    moment = int(datetime(2020, 5, 1, tzinfo=UTC).timestamp()) * 10**6
    assert where_holds({"listed": "2020-05-01"}, TYPES_BY_NAME, {"listed": moment})


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ([], "bad_where"),
        ("price", "bad_where"),
        ({"price": {}}, "bad_where"),
        ({"price": []}, "bad_where"),
        ({"price": None}, "bad_where"),
        ({"price": {"below": 3}}, "bad_where"),
        ({"price": {"lt": [3]}}, "bad_where"),
        ({"price": {"lt": None}}, "bad_where"),
        ({"price": {"exists": 1}}, "bad_where"),
        ({"price": {"not": []}}, "bad_where"),
        ({"type": {"lt": "house"}}, "bad_where"),
        ({"cost": 3}, "unknown_attribute"),
        ({"price": "cheap"}, "bad_attribute"),
        ({"price": True}, "bad_attribute"),
        ({"price": [[3]]}, "bad_attribute"),
        ({"price": {"lt": {"x": 1}}}, "bad_attribute"),
        ({"price": float("nan")}, "bad_attribute"),
        ({"price": 10**400}, "bad_attribute"),
        ({"type": 1.5}, "bad_attribute"),
        ({"type": "x" * 600}, "bad_attribute"),
        ({"listed": "yesterday"}, "bad_attribute"),
        ({"price": list(range(MAX_VALUES + 1))}, "too_many_conditions"),
    ],
)
def test_parse_where_refuses_with_a_reason(where, reason):
    refusal = parse_where(where, SCHEMA)
    assert isinstance(refusal, Refusal) and refusal.reason == reason and len(refusal.detail) < 200
    assert reason in REASONS


def test_text_takes_no_place_among_the_keys_and_no_condition():
    schema = AttributeSchema.parse(["a:text", "beds:number", "b:text", "tags:categories", "c:text", "price:number"])
    found = parse_where({"beds": 1, "price": 2}, schema)
    assert not isinstance(found, Refusal) and [one.column for one in found] == [0, 17] and schema.number_at(17) == 5
    refusal = parse_where({"b": {"exists": True}}, schema)
    assert isinstance(refusal, Refusal) and refusal.reason == "bad_where" and "declare a category" in refusal.detail


def test_parse_where_of_too_many_conditions_is_refused():
    schema = AttributeSchema.parse(f"a{number}:number" for number in range(MAX_CONDITIONS + 1))
    refusal = parse_where({one.name: 1 for one in schema.attributes}, schema)
    assert isinstance(refusal, Refusal) and refusal[:2] == ("too_many_conditions", "there are 65 conditions")


def test_oracle_of_words_counts_distinct_words():
    assert words_hold(2, ["a", "b", "b", "z"], [], ["a", "b"])
    assert not words_hold("all", ["a", "z"], [], ["a", "b"])
    assert not words_hold("any", ["a"], ["b"], ["a", "b"])


@pytest.mark.parametrize(
    ("type_code", "given", "value"),
    [
        (NUMBER, "5.5", 5.5),
        (NUMBER, " ", None),
        (NUMBER, -0.0, 0.0),
        (CATEGORY, 3, "3"),
        (CATEGORY, True, "true"),
        (CATEGORY, "", None),
        (TIME, 0, 0),
        (TIME, "1970-01-01T00:00:01Z", 10**6),
        (TIME, None, None),
    ],
)
def test_attribute_value_is_read_as_its_type(type_code, given, value):
    read = attribute_value(type_code, given)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("type_code", "given"),
    [(NUMBER, "1,000"), (NUMBER, [1]), (NUMBER, False), (NUMBER, float("inf")), (CATEGORY, ["a"]), (CATEGORY, 0.5)]
    + [(CATEGORY, "\ud800"), (TIME, True), (TIME, [0]), (TIME, float("nan"))],
)
def test_attribute_value_of_another_type_raises(type_code, given):
    with pytest.raises(ValueError):
        attribute_value(type_code, given)


def test_number_keys_are_in_the_order_of_numbers():
    numbers = np.array([-1.7976931348623157e308, -2.5, -1.0, -5e-324, 0.0, 5e-324, 1.0, 2.5, 1.7976931348623157e308])
    keys = number_keys(numbers)
    assert (np.diff(keys) > 0).all() and keys[4] == 0 and keys.min() > MISSING_KEY
    assert number_keys(np.array([np.nan, -0.0])).tolist() == [MISSING_KEY, 0]
    assert [*map(key_of, numbers.tolist()), key_of(math.nan), key_of(-0.0)] == [*keys.tolist(), MISSING_KEY, 0]


@pytest.mark.parametrize(
    ("text", "attribute"),
    [
        ("price:number", ("price", "price", NUMBER)),
        ("house.type:category", ("house.type", "house.type", CATEGORY)),
        ("listed=meta:since:time", ("listed", "meta:since", TIME)),
    ],
)
def test_attribute_parse_reads_name_path_and_type(text, attribute):
    assert DeclaredAttribute.parse(text) == attribute and str(DeclaredAttribute.parse(text)) == text


@pytest.mark.parametrize(
    ("texts", "hint"),
    [
        (["price"], "such as price:number"),
        ([":number"], "such as price:number"),
        (["price:money"], "number, category, time"),
        (["text:category"], "my_text=text"),
        (["x=:number"], "after the equals sign"),
        (["a b:number"], "NAME=COLUMN:TYPE"),
        (["price:number", "price:time"], "twice"),
    ],
)
def test_attribute_schema_refuses_what_cannot_be_used(texts, hint):
    with pytest.raises(ConfigError, match=hint):
        AttributeSchema.parse(texts)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"price": {"decreased": False}}, "price decreased: false, where true belongs"),
        ({"price": {"decreased_by": 0}}, "price decreased_by: 0, where a number above 0 belongs"),
        ({"price": {"decreased_by": [5, 6]}}, "price decreased_by: list, where a number above 0 belongs"),
        ({"type": {"increased": True}}, "type increased: categories have no order; changed compares them"),
        ({"listed": {"decreased_by": 5}}, "listed decreased_by: listed is no number; decreased compares times"),
    ],
)
def test_condition_on_the_version_before_that_means_nothing_is_refused(where, said):
    found = parse_where(where, SCHEMA, of_versions=True)
    assert isinstance(found, Refusal) and (found.reason, found.detail) == ("bad_where", said)


def test_condition_on_the_version_before_stands_in_no_query():
    found = parse_where({"price": {"lt": 5, "changed": True}}, SCHEMA)
    assert isinstance(found, Refusal) and found.reason == "bad_where" and "a query may not" in found.detail
