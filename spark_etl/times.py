"""Formats of event times. Used by `spark_etl.rows`, the file to read next.

`matching.fields.event_time_us` comes first: ISO 8601, and seconds, milliseconds or microseconds since 1970,
distinguished by their size. Then the forms of mail (RFC 2822, "Wed, 10 Oct 2018 20:19:24 +0000"), of the C library
("Wed Oct 10 20:19:24 2018") and of Twitter's first interface ("Wed Oct 10 20:19:24 +0000 2018"). No zone means UTC.
A given form is the only one that is read, since guessing would find times where there are none.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from email.utils import parsedate_to_datetime
from typing import Any

from matching.errors import ConfigError
from matching.fields import event_time_us

#: Names of forms that are numbers since 1970 -> microseconds in one.
UNITS_US = {"seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1}

_MAIL = re.compile(
    r"(?:[A-Za-z]{3},\s*)?[0-9]{1,2} [A-Za-z]{3} [0-9]{4} [0-9]{2}:[0-9]{2}(?::[0-9]{2})? (?:[+-][0-9]{4}|[A-Z]{1,3})"
)
_CLOCK = re.compile(r"[A-Za-z]{3} ([A-Za-z]{3}) +([0-9]{1,2}) ([0-9:]{8})(?: ([+-][0-9]{4}|UTC|GMT))? ([0-9]{4})")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: From a value to microseconds since 1970, None for no time. Raises ValueError for a value that cannot be read.
TimeReader = Callable[[Any], int | None]


def time_reader(time_format: str = "") -> TimeReader:
    """The reader of event times.

    Parameters
    ----------
    time_format : str
        As for `datetime.strptime`, or one of `UNITS_US`; "" reads every form this file names.

    Raises
    ------
    ConfigError
        If there is no such form.
    """
    if not time_format:
        return _read_any
    if time_format in UNITS_US:
        return lambda value: _read_number(value, UNITS_US[time_format])
    sample = datetime(2018, 10, 10, 20, 19, 24, tzinfo=UTC)
    try:
        datetime.strptime(sample.strftime(time_format), time_format)
    except ValueError as error:
        raise ConfigError(
            f"time format {time_format!r} ({error}): give one such as '%d/%m/%Y %H:%M', or {', '.join(UNITS_US)}"
        ) from None
    if "%" not in time_format:
        raise ConfigError(f"time format {time_format!r}: names no part of a time; give one such as '%d/%m/%Y %H:%M'")
    return lambda value: _read_formatted(value, time_format)


def moment_of(time_us: int) -> datetime:
    """Microseconds since 1970 as a datetime in UTC; for the years 1 to 9999."""
    return _EPOCH + timedelta(microseconds=time_us)


def _read_any(value: Any) -> int | None:
    try:
        return event_time_us(value)
    except ValueError:
        if not isinstance(value, str):
            raise
        value = value.strip()
        if named := _CLOCK.fullmatch(value):
            return event_time_us(_clock_time(*named.groups()))
        if _MAIL.fullmatch(value):
            return event_time_us(parsedate_to_datetime(value))
        raise


def _clock_time(month: str, day: str, clock: str, zone: str | None, year: str) -> str:
    """The time in ISO 8601, which the caller still has to check."""
    if month.lower() not in _MONTHS:
        raise ValueError("a month of no name")
    number = _MONTHS.index(month.lower()) + 1
    offset = zone if zone and zone[0] in "+-" else "+0000"
    return f"{year}-{number:02d}-{int(day):02d}T{clock}{offset}"


def _read_number(value: Any, unit_us: int) -> int | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise ValueError("a time of the wrong type")
    try:
        moment_us = Decimal(value) * unit_us
    except InvalidOperation:
        raise ValueError("no number") from None
    if not moment_us.is_finite() or abs(moment_us) >= 10**18:
        raise ValueError("a time out of range")
    try:
        return event_time_us(moment_of(round(moment_us)))
    except OverflowError:
        raise ValueError("a time outside the years 1 to 9999") from None


def _read_formatted(value: Any, time_format: str) -> int | None:
    if isinstance(value, str):
        if not value.strip():
            return None
        return event_time_us(datetime.strptime(value.strip(), time_format))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return event_time_us(datetime.strptime(str(value), time_format))  # such as %Y%m%d in a column of numbers
    return event_time_us(value)  # a column of times in a table
