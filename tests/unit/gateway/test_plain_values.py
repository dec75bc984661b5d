"""Values of NumPy and pandas become Python's own, and nothing else changes."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import skyray
from gateway.client.requests import encode
from gateway.plain_values import plain_value, table_name
from matching.errors import InputError
from matching.reasons import MAX_DEPTH

NOON = datetime(2018, 10, 10, 12)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(2**62), 2**62),
        (np.uint64(2**63), 2**63),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(5), 5),
        (np.longdouble(0.5), 0.5),
        (np.ma.array([1, 2], mask=[False, True]), [1, None]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([1.0, np.nan]), [1.0, None]),
        (np.array(["2018-10-10T12", "NaT"], "datetime64[ns]"), [NOON, None]),
        (pd.Series([1, 2]), [1, 2]),
        (np.datetime64(NOON, "ns"), NOON),
        (np.datetime64(NOON, "s"), NOON),
        (np.datetime64("2018-10-10"), date(2018, 10, 10)),
        (pd.Timestamp(NOON, tz="UTC"), NOON.replace(tzinfo=UTC)),
        ({"a": {"b": (np.int8(1), [np.nan])}}, {"a": {"b": [1, [None]]}}),
    ],
    ids=repr,
)
def test_plain_value_is_pythons_own(value, plain):
    found = plain_value(value)
    assert found == plain and type(found) is type(plain)
    assert encode({"a": value}) == encode({"a": plain})


@pytest.mark.parametrize(
    "value", [pd.NaT, pd.NA, float("nan"), np.float16("nan"), np.datetime64("NaT"), np.ma.masked], ids=repr
)
def test_plain_value_missing_values_are_none(value):
    assert plain_value(value) is None and encode({"a": value}) == b'{"a":null}'


@pytest.mark.parametrize(
    "value", [None, 1, "a", True, 1.5, NOON, Decimal("1.0"), b"a", float("inf"), np.int64, object], ids=repr
)
def test_plain_value_leaves_others_as_they_are(value):
    assert plain_value(value) is value


def test_plain_value_moments_that_python_does_not_have_are_text():
    assert isinstance(plain_value(np.datetime64(2**60, "s")), str)
    assert isinstance(plain_value(np.datetime64(10**12, "s")), str)


@pytest.mark.parametrize("form", ["list", "object", "array", "ring"])
def test_engine_refuses_a_deep_row_alone_whatever_the_stack(form):
    engine = skyray.Engine()
    engine.subscribe(subscription_id="all", kind="boolean", keywords="ramen", region=[-180, -90, 180, 90])
    good = {"text": "ramen", "lon": 1.0, "lat": 2.0}

    def row(depth):
        value: Any = 1
        for _ in range(depth - 1):
            value = {"a": value} if form == "object" else [value]
        if form == "ring":
            value.append(value)
        return good | {"note": np.array([value, None], object)[:1] if form == "array" else value}

    assert len(engine.publish([row(5_000), good, row(MAX_DEPTH + 1), row(MAX_DEPTH - (form == "array"))])) == 1 + (
        form != "ring"
    )
    assert engine.rejected == {"too_deep": 2 + (form == "ring")}
    with pytest.raises(InputError, match="nested more than 64 deep") as refused:
        engine.subscribe(row(5_000), subscription_id="deep", kind="boolean", keywords="ramen")
    assert refused.value.reason_code == "too_deep"


def test_encode_names_a_type_that_json_does_not_have():
    with pytest.raises(InputError, match="object has no form in JSON"):
        encode({"a": object()})
    for value in (b"ramen", np.bytes_(b"ramen")):
        with pytest.raises(InputError, match="bytes have no form in JSON"):
            encode({"text": value})


def test_table_name_knows_tables_and_no_lists_of_rows():
    tables = [pd.DataFrame(), pa.table({"a": [1]}), pa.record_batch({"a": [1]})]
    assert [table_name(one) for one in tables] == ["DataFrame", "Table", "RecordBatch"]
    assert {table_name(one) for one in ([], {}, (), np.array([{}]), iter([]))} == {None}
