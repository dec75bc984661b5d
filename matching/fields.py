"""Checks of single values from outside: coordinates, times, ids, whole numbers.

Used by `matching.validate` only, which is the file to read next.

Coordinates may be numbers or plain decimal strings ("41.5", "41,5", " -3e1 "), as CSV has nothing else; degree signs
and thousands separators are refused. Times may be ISO 8601 of any precision (no zone means UTC) or seconds,
milliseconds or microseconds since 1970, distinguished by their size.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

#: What a message can have, in the order of `RawMessage`.
MESSAGE_ROLES = ("text", "lat", "lon", "time", "id", "west", "south", "east", "north", "object_id", "op")
MAX_ID_CHARACTERS = 512
#: The years 1 to 9999, in microseconds since 1970.
FIRST_US = -62_135_596_800 * 10**6
LAST_US = 253_402_300_800 * 10**6 - 1

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]{1,3},[0-9]+")
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_NOT_FINITE = frozenset(("nan", "inf", "infinity"))
_EPOCH_NUMBER = re.compile(r"[+-]?[0-9]{9,}(?:\.[0-9]*)?")
_REDUCED_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{2}))?")
_ZONE_NAME = re.compile(r"\s*(?:UTC|GMT|Z)$", re.IGNORECASE)
_SPACED_OFFSET = re.compile(r"\s+([+-][0-9:]+)$")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NAIVE = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


class Fault(NamedTuple):
    """A column, and its value as it came; None if the row has none."""

    column: str
    value: Any = None

    def __str__(self) -> str:
        return f"{self.column} is {'missing' if self.value is None else shown(self.value)}"

    @property
    def named(self) -> dict[str, Any]:
        """`column`, and `value` unless there is none; in place of one that may be long what it is (`shown`)."""
        if self.value is None:
            return {"column": self.column}
        short = isinstance(self.value, bool | float) or (isinstance(self.value, int) and abs(self.value) < 2**53)
        short = short or (isinstance(self.value, str) and len(self.value) <= 40)
        return {"column": self.column, "value": self.value if short else shown(self.value)}


class Refusal(NamedTuple):
    """Why a value or a row cannot be used: a code of `matching.reasons`, what is wrong where ("" where the code says
    it), and the column at fault, if it is one."""

    reason: str
    detail: str = ""
    fault: Fault | None = None


def coordinate(value: Any, limit: float) -> float | str:
    """A coordinate in degrees within -limit..limit (never minus zero), or a reason code."""
    if type(value) is not float:
        if value is None:
            return "missing_coordinate"
        if isinstance(value, str):
            value = value.strip()
            if not value:
                return "missing_coordinate"
            if _DECIMAL_COMMA.fullmatch(value):
                value = value.replace(",", ".")
            elif not _DECIMAL.fullmatch(value):
                return "coordinate_not_finite" if value.lower().lstrip("+-") in _NOT_FINITE else "coordinate_not_number"
        elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            return "wrong_type"
        try:
            value = float(value)
        except OverflowError:
            return "coordinate_out_of_range"
    if -limit <= value <= limit:
        return value + 0.0  # turns minus zero into zero
    return "coordinate_out_of_range" if math.isfinite(value) else "coordinate_not_finite"


def event_time_us(value: Any) -> int | None:
    """Microseconds since 1970 of a time in any accepted form; None if there is none (None or blank).

    Numbers below 1e11 in size are seconds, below 1e14 milliseconds, others microseconds; strings of nine or more digits
    are such numbers, shorter ones dates.

    Raises
    ------
    ValueError
        If the value cannot be read, or lies outside the years 1 to 9999.
    """
    if isinstance(value, str):
        value = value.strip()
        if not value:
            return None
        moment = _read_number(Decimal(value)) if _EPOCH_NUMBER.fullmatch(value) else _read_iso(value)
    elif value is None:
        return None
    elif isinstance(value, datetime):
        moment = _microseconds(value)
    elif isinstance(value, date):
        moment = _microseconds(datetime(value.year, value.month, value.day))
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        moment = _read_number(value)
    else:
        raise ValueError("a time of the wrong type")
    if not FIRST_US <= moment <= LAST_US:
        raise ValueError("a time outside the years 1 to 9999")
    return moment


def _read_number(value: float | int | Decimal) -> int:
    if not -(10**18) < value < 10**18:  # also refuses NaN
        raise ValueError("a time out of range")
    size = abs(value)
    scale = 1_000_000 if size < 10**11 else 1_000 if size < 10**14 else 1
    return round(value * scale)


def _read_iso(value: str) -> int:
    if reduced := _REDUCED_DATE.fullmatch(value):
        return _microseconds(datetime(int(reduced[1]), int(reduced[2] or 1), 1))
    try:
        return _microseconds(datetime.fromisoformat(value))
    except ValueError:
        value = _ZONE_NAME.sub("+00:00", value)
        return _microseconds(datetime.fromisoformat(_SPACED_OFFSET.sub(r"\1", value)))


def _microseconds(moment: datetime) -> int:
    return (moment - (_EPOCH if moment.tzinfo else _EPOCH_NAIVE)) // _MICROSECOND


def identifier(value: Any) -> str | None:
    """An id as text, "" if there is none, None if it cannot be one (wrong type, too long)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of whole numbers with gaps, as some writers store it
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**MAX_ID_CHARACTERS:
        return str(value)
    if value is None:
        return ""
    return value if isinstance(value, str) and len(value) <= MAX_ID_CHARACTERS else None


def whole_number(value: Any) -> int | None:
    """A whole number or None; floats without a fraction count: some tables store columns with gaps that way.

    So does text of plain digits, as CSV has nothing else.
    """
    if isinstance(value, str):
        return int(value) if _WHOLE.fullmatch(value) else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def share(value: Any) -> float | None:
    """A number from 0 to 1, also as plain decimal text; None if it is none."""
    if isinstance(value, str):
        value = float(value) if _DECIMAL.fullmatch(value.strip()) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return None
    return float(value)


def shown(value: Any) -> str:
    """A value for people, as JSON has it; of one that may be long or deep, its type."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 10**18):
        return f"{value!r:.40}"
    return "list" if isinstance(value, list | tuple) else "object" if isinstance(value, Mapping) else "number"


def encodes(text: str) -> bool:
    """Whether a string can be written as UTF-8 (no half of a surrogate pair in it)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column of this name, else at this path; None if there is none.

    A number in a path is an index into a list, from 0.
    """
    if name in row or "." not in name:
        return row.get(name)
    value: Any = row
    for part in name.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(value):
            value = value[int(part[:9])]
        else:
            return None
    return value
