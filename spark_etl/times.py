"""Formats of event times.

Without a given form the reader is that of all doors, `matching.fields.event_time_us`. A given form is the only one that
is read, since guessing would find times where there are none. No zone means UTC.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from matching.errors import ConfigError
from matching.fields import event_time_us

#: Names of forms that are numbers since 1970 -> microseconds in one.
UNITS_US = {"seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1}

_UTC_NAMES = ("utc", "gmt")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: From a value to microseconds since 1970, None for no time. Raises ValueError for a value that cannot be read.
TimeReader = Callable[[Any], int | None]


def time_reader(time_format: str = "") -> TimeReader:
    """The reader of event times.

    Parameters
    ----------
    time_format : str
        As for `datetime.strptime`, where `%Z` is UTC or GMT; or one of `UNITS_US`; "" reads every form of
        `event_time_us`.

    Raises
    ------
    ConfigError
        If there is no such form.
    """
    if not time_format:
        return event_time_us
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


def _read_number(value: Any, unit_us: int) -> int | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise ValueError("a time of the wrong type")
    try:
        moment_us = Decimal(value) * unit_us
    except ArithmeticError:
        raise ValueError("no number") from None
    if not moment_us.is_finite() or abs(moment_us) >= 10**18:
        raise ValueError("a time out of range")
    try:
        return event_time_us(moment_of(round(moment_us)))
    except OverflowError:
        raise ValueError("a time outside the years 1 to 9999") from None


def _read_formatted(value: Any, time_format: str) -> int | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # such as %Y%m%d in a column of numbers
    if not isinstance(value, str):
        return event_time_us(value)  # a column of times in a table
    if not value.strip():
        return None
    moment = datetime.strptime(value.strip(), time_format)
    # Beside UTC and GMT, strptime takes the names of the machine's own zone, and drops them.
    if "%Z" in time_format and (time.strptime(value.strip(), time_format).tm_zone or "utc").lower() not in _UTC_NAMES:
        raise ValueError("a time of an unknown zone")
    return event_time_us(moment)
