"""Values of Arrow tables that Python's own types do not have: each spoils itself, never its row or its file."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from matching.fields import event_time_us
from matching.table_values import rows_of_table

GOOD, FAR, LAST = 1_539_202_764_000_000, 2**58, 253_402_300_799_000_000
SENTINEL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def values(column):
    return [row["a"] for row in rows_of_table(pa.record_batch({"a": column}))]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([GOOD, FAR], pa.timestamp("us")),
        pa.array([GOOD // 10**6, FAR], pa.timestamp("s")),
        pa.array([GOOD, -FAR], pa.timestamp("us", "UTC")),
        pa.array([GOOD, FAR], pa.timestamp("us", "W. Europe Standard Time")),
        pa.array([17_000, 4_000_000], pa.int32()).view(pa.date32()),
        pa.array([GOOD // 1000, FAR], pa.int64()).view(pa.date64()),
        pa.array([GOOD, FAR], pa.timestamp("us")).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_rows_of_table_a_time_beyond_the_years_1_to_9999_is_no_time(column):
    good, far = values(column)
    assert isinstance(good, date) and event_time_us(good) > 1_400_000_000 * 10**6
    with pytest.raises(ValueError, match=r"time|iso|digit"):
        event_time_us(far)


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "W. Europe Standard Time", "+25:99"])
@pytest.mark.parametrize("unit", ["ms", "us"])
def test_rows_of_table_a_moment_does_not_depend_on_the_name_of_its_zone(zone, unit):
    scale = {"ms": 1000, "us": 1}[unit]
    found = values(pa.array([GOOD // scale, LAST // scale, None], pa.timestamp(unit, zone)))
    assert [event_time_us(each) for each in found] == [GOOD, event_time_us(SENTINEL), None]


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([{"at": FAR, "n": 1}], pa.struct([("at", pa.timestamp("us")), ("n", pa.int8())])), {"n": 1}),
        (pa.array([[GOOD, FAR]], pa.list_(pa.timestamp("us"))), [datetime(2018, 10, 10, 20, 19, 24)]),
        (pa.array([[("x", FAR)]], pa.map_(pa.string(), pa.timestamp("us"))), None),
        (pa.array([2**60], pa.int64()).view(pa.duration("s")), None),
        (pa.array([2**60], pa.int64()).view(pa.time64("us")), None),
    ],
    ids=["struct", "list", "map", "duration", "time of day"],
)
def test_rows_of_table_values_beside_one_beyond_the_range_are_kept(column, wanted):
    (found,) = values(column)
    if isinstance(wanted, dict):
        assert found["n"] == 1 and isinstance(found["at"], str)
    elif wanted:
        assert event_time_us(found[0]) == event_time_us(wanted[0]) and isinstance(found[1], str)
    else:
        assert "1152921504606846976" in str(found) or "288230376151711744" in str(found)


def test_rows_of_table_text_that_is_not_utf8_spoils_its_row():
    text = pa.array([b"ok", b"\xff", b"fine"], pa.binary()).view(pa.string())
    assert list(rows_of_table(pa.record_batch({"a": text, "b": [1, 2, 3]}))) == [
        {"a": "ok", "b": 1},
        "bad_utf8",
        {"a": "fine", "b": 3},
    ]


def test_rows_of_table_text_that_is_not_utf8_is_found_beside_a_far_time_and_within_it():
    text, far = pa.array([b"\xff"], pa.binary()).view(pa.string()), pa.array([FAR], pa.timestamp("us"))
    inside = pa.StructArray.from_arrays([far, text], ["at", "text"])
    assert list(rows_of_table(pa.record_batch({"a": inside}))) == ["bad_utf8"]


def test_rows_of_table_a_struct_with_two_fields_of_one_name_has_the_last():
    column = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["n", "n"])
    assert values(column) == [{"n": 2}]


def test_rows_of_table_rows_without_columns_are_counted():
    assert list(rows_of_table(pa.record_batch({"a": [1, 2]}).select([]))) == [{}, {}]
