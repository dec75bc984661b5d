"""Forms of time, against the standard library's own writing of them."""

import time
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.errors import ConfigError
from spark_etl.times import moment_of, time_reader

READ = time_reader()
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(9990, 1, 1)).map(lambda moment: moment.replace(microsecond=0))
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def us(moment):
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@given(MOMENTS, ZONES)
def test_times_every_written_form_is_read_back(moment, zone):
    moment = moment.replace(tzinfo=zone)
    # Four digits of a year whatever the C library pads.
    twitter = moment.strftime("%a %b %d %H:%M:%S %z ") + f"{moment.year:04}"
    for text in (twitter, format_datetime(moment), moment.isoformat(), f"  {twitter} "):
        assert READ(text) == us(moment), text
    midnight = moment.replace(hour=0, minute=0, second=0)
    assert READ(midnight.isoformat().replace("T00:00:00", "")) == us(midnight)
    assert moment_of(us(moment)) == moment


@given(MOMENTS)
def test_times_without_zone_are_utc(moment):
    clock = moment.ctime()  # pads the day with a space
    assert READ(clock) == READ(moment.isoformat()) == us(moment.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("Wed Oct 10 20:19:24 +0000 2018", "2018-10-10T20:19:24+00:00"),
        ("wed oct 10 20:19:24 -0130 2018", "2018-10-10T21:49:24+00:00"),
        ("Wed, 10 Oct 2018 20:19:24 GMT", "2018-10-10T20:19:24+00:00"),
        ("10 Oct 2018 20:19 EST", "2018-10-11T01:19:00+00:00"),
        (1539202764, "2018-10-10T20:19:24+00:00"),
        ("1539202764000", "2018-10-10T20:19:24+00:00"),
    ],
)
def test_times_forms_people_have(text, iso):
    assert READ(text) == us(datetime.fromisoformat(iso))


@pytest.mark.parametrize(
    "value",
    ["soon", "10/10/2018 20:19", "Wed Oct 99 20:19:24 +0000 2018", "Wed Foo 10 20:19:24 +0000 2018"]
    + ["Wed Oct 10 20:19:24 +0000 0000", "Wed, 40 Oct 2018 20:19:24 GMT", "10 Oct 2018 25:00 GMT", [1], True, 1e30],
)  # fmt: skip
def test_times_what_cannot_be_read_is_never_guessed(value):
    with pytest.raises(ValueError):
        READ(value)


def test_times_zone_by_name_is_utc_whatever_the_machine_calls_its_own(monkeypatch):
    read = time_reader("%d.%m.%Y %H:%M %Z")
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    try:
        assert time.tzname[0] == "JST"
        assert (
            read("03.04.2018 20:19 UTC") == read("03.04.2018 20:19 gmt") == us(datetime(2018, 4, 3, 20, 19, tzinfo=UTC))
        )
        for zone in ("JST", "jst", "CET"):
            with pytest.raises(ValueError):
                read(f"03.04.2018 20:19 {zone}")
        assert time_reader("%d.%m.%Y %%Z")("03.04.2018 %Z") == us(datetime(2018, 4, 3, tzinfo=UTC))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_a_form_that_is_given_is_the_only_one():
    read = time_reader("%d/%m/%Y %H:%M")
    assert read("03/04/2018 20:19") == us(datetime(2018, 4, 3, 20, 19, tzinfo=UTC))
    assert read(" ") is None and read(None) is None
    assert read(datetime(2018, 4, 3)) == us(datetime(2018, 4, 3, tzinfo=UTC))
    assert time_reader("%Y%m%d")(20180403) == us(datetime(2018, 4, 3, tzinfo=UTC))
    assert time_reader("%Y-%m-%d %H:%M %z")("2018-04-03 01:00 +0200") == us(datetime(2018, 4, 2, 23, tzinfo=UTC))
    for value in ("2018-04-03T20:19", "Wed Oct 10 20:19:24 +0000 2018", [1], True):
        with pytest.raises(ValueError):
            read(value)


@pytest.mark.parametrize(("unit", "scale"), [("seconds", 10**6), ("milliseconds", 1000), ("microseconds", 1)])
def test_times_numbers_of_a_unit_are_not_told_apart_by_size(unit, scale):
    read = time_reader(unit)
    assert read(7) == read("7") == read(" 7.0 ") == 7 * scale and read(-1) == -scale and read("") is None
    assert read("1539202764") == 1539202764 * scale
    for value in ("x", "nan", float("inf"), 10**40, True, [7], "1e999999", "snan"):
        with pytest.raises(ValueError):
            read(value)


@pytest.mark.parametrize("form", ["%Q", "days", "%", "%d/%Q"])
def test_times_unknown_form_is_refused_with_examples(form):
    with pytest.raises(ConfigError, match=r"time format .*%d/%m/%Y"):
        time_reader(form)
