"""Checks of single values from outside: coordinates, times, ids, whole numbers.

Coordinates may be numbers or plain decimal strings ("41.5", "41,5", " -3e1 "), as CSV has nothing else; degree signs
and thousands separators are refused. Times are read here for messages, attributes, conditions and headers alike: ISO
8601 of any precision, the forms of mail (RFC 2822, "Wed, 10 Oct 2018 20:19:24 +0000"), of the C library ("Wed Oct 10
20:19:24 2018") and of Twitter's first interface ("Wed Oct 10 20:19:24 +0000 2018"), and seconds, milliseconds or
microseconds since 1970, distinguished by their size. No zone means UTC; what has an unknown zone is no time.
"""

import math
import re
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from matching.pieces import text_of_columns

#: What a message can have, in the order of `RawMessage`.
MESSAGE_ROLES = ("text", "lat", "lon", "time", "id", "west", "south", "east", "north", "object_id", "op")
#: What it can have besides in a stream of objects.
OBJECT_ROLES = ("deleted", "ttl_s", "expires_at")
MAX_ID_CHARACTERS = 512
#: The years 1 to 9999, in microseconds since 1970.
FIRST_US = -62_135_596_800 * 10**6
LAST_US = 253_402_300_800 * 10**6 - 1

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]{1,3},[0-9]+")
_WHOLE = re.compile(r"\s*([+-]?[0-9]{1,18})(?:\.0*)?\s*")
_NOT_FINITE = frozenset(("nan", "inf", "infinity"))
_EPOCH_NUMBER = re.compile(r"[+-]?[0-9]{9,}(?:\.[0-9]*)?")
_REDUCED_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{2}))?")
# datetime.fromisoformat takes any character between date and clock, so that the zone of a date became its clock.
_ISO = re.compile(
    r"([0-9]{4}(?:-[0-9]{2}-[0-9]{2}|[0-9]{4}|-?W[0-9]{2}(?:-?[0-9])?))"
    r"(?:(?:[T ]|[^0-9A-Z+-](?=[0-9]{2}:))([0-9]{2}(?::?[0-9]{2}(?::?[0-9]{2}(?:[.,][0-9]+)?)?)?)"
    r"(?:\s*(Z|UTC|GMT|[+-][0-9]{2}(?::?[0-5][0-9]){0,2}))?"
    r"|\s*(Z|UTC|GMT|[+-][0-9]{2}:?[0-5][0-9]))?",
    re.IGNORECASE,
)
_MAIL = re.compile(
    r"(?:[A-Z]{3,9},\s*)?(?P<day>[0-9]{1,2})(?P<mark>[ -])(?P<month>[A-Z]{3})(?P=mark)(?P<year>[0-9]{2}|[0-9]{4})"
    r" (?P<clock>[0-9]{2}(?::[0-9]{2}){1,2})"
    r" (?P<zone>[+-][0-9]{2}[0-5][0-9]|[A-Z]{1,3})(?: ?\([^()]*\))?",  # a comment may repeat the zone
    re.IGNORECASE,
)
_CLOCK = re.compile(
    r"[A-Z]{3} (?P<month>[A-Z]{3}) +(?P<day>[0-9]{1,2}) (?P<clock>[0-9]{2}(?::[0-9]{2}){2})"
    r"(?: (?P<zone>[+-][0-9]{2}[0-5][0-9]|UTC|GMT))? (?P<year>[0-9]{4})",
    re.IGNORECASE,
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Zones that RFC 2822 names; other names mean several zones, or none that a machine elsewhere knows.
_ZONES = {"z": "Z", "ut": "Z", "utc": "Z", "gmt": "Z", "est": "-05", "edt": "-04", "cst": "-06", "cdt": "-05"}
_ZONES |= {"mst": "-07", "mdt": "-06", "pst": "-08", "pdt": "-07"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NAIVE = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


class Fault(NamedTuple):
    """A column, and its value as it came, None if the row has none; without a column the value is the whole row."""

    column: str | None
    value: Any = None

    def __str__(self) -> str:
        return f"{self.column} is {'missing' if self.value is None else shown(self.value)}"

    @property
    def named(self) -> dict[str, Any]:
        """`column`, and `value`; in place of one that may be long what it is (`shown`)."""
        if self.value is None:
            return {"column": self.column, "value": None}
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


def point_of(row: Mapping[str, Any]) -> tuple[float, float]:
    """Longitude and latitude in degrees of a row that was accepted with its point, in any form that is read."""
    lon, lat = coordinate(row["lon"], 180.0), coordinate(row["lat"], 90.0)
    assert isinstance(lon, float) and isinstance(lat, float), "it was accepted"
    return lon, lat


def event_time_us(value: Any) -> int | None:
    """Microseconds since 1970 of a time in any accepted form; None if there is none (None or blank).

    Numbers below 1e10 in size are seconds, those from 1e11 below 1e13 milliseconds, those from 1e14 below 1e16
    microseconds: times up to 2286. The others may be of two units, and are no times; nor are twelve digits that may be
    a date and a clock (YYYYMMDDHHMM). Fourteen (YYYYMMDDHHMMSS) are read as these, and eight as a date, since no unit
    makes a likely time of them. Strings of nine or more digits are such numbers, shorter ones dates. About 3 us for a
    text.

    Raises
    ------
    ValueError
        If the value cannot be read, may mean two times, or lies outside the years 1 to 9999.
    """
    if isinstance(value, str):
        value = value.strip()
        if not value:
            return None
        moment = _read_number(Decimal(value)) if _EPOCH_NUMBER.fullmatch(value) else _read_text(value)
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
    if (isinstance(value, Decimal) and not value.is_finite()) or not -(10**16) < value < 10**16:  # also refuses NaN
        raise ValueError("a time out of range")
    size = abs(value)
    if size >= 10**14:
        return round(value)
    compact = _compact(value)
    if size < 10**10:
        return _microseconds(compact) if compact else round(value * 1_000_000)
    if size >= 10**13 and compact:
        return _microseconds(compact)
    if 10**11 <= size < 10**13 and not compact:
        return round(value * 1_000)
    raise ValueError("a number that may be one of two times")


def _compact(value: float | int | Decimal) -> datetime | None:
    """The time whose digits are a number (YYYYMMDD, YYYYMMDDHHMM, YYYYMMDDHHMMSS), from 1900 to 2100."""
    text = str(int(value))
    if value != int(value) or len(text) not in (8, 12, 14) or not "1900" <= text[:4] <= "2100":
        return None
    try:
        return datetime.fromisoformat(f"{text[:8]}T{text[8:] or '00'}")
    except ValueError:
        return None


def _read_text(value: str) -> int:
    if reduced := _REDUCED_DATE.fullmatch(value):
        return _microseconds(datetime(int(reduced[1]), int(reduced[2] or 1), 1))
    if iso := _ISO.fullmatch(value):
        day, clock, zone, zone_of_day = iso.groups()
        zone = zone or zone_of_day or ""
    elif (named := _MAIL.fullmatch(value) or _CLOCK.fullmatch(value)) and named["month"].lower() in _MONTHS:
        month, year = _MONTHS.index(named["month"].lower()) + 1, named["year"]
        year = year if len(year) == 4 else f"20{year}" if year < "50" else f"19{year}"
        day, clock, zone = f"{year}-{month:02d}-{int(named['day']):02d}", named["clock"], named["zone"] or ""
    else:
        raise ValueError("a time of no form that is read")
    if zone and zone[0] not in "+-":
        zone = _ZONES.get(zone.lower())
        if zone is None:
            raise ValueError("a time of an unknown zone")
    return _microseconds(datetime.fromisoformat(f"{day}T{clock or '00'}{zone}"))


def _microseconds(moment: datetime) -> int:
    return (moment - (_EPOCH if moment.tzinfo else _EPOCH_NAIVE)) // _MICROSECOND


def identifier(value: Any) -> str | None:
    """An id as text, "" if there is none, None if it cannot be one (wrong type, too long, a float from 2^53 on).

    Decimals without a fraction are whole numbers: tables store columns with gaps that way.
    """
    if isinstance(value, float | Decimal):
        value = _without_fraction(value)
        if value is None:
            return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**MAX_ID_CHARACTERS:
        return str(value)
    if value is None:
        return ""
    return value if isinstance(value, str) and len(value) <= MAX_ID_CHARACTERS else None


def whole_number(value: Any) -> int | None:
    """A whole number or None; decimals without a fraction count: some tables store columns with gaps that way.

    So does text of plain digits (`"12"`, `"12.0"`), as CSV has nothing else.
    """
    if isinstance(value, str):
        digits = _WHOLE.fullmatch(value)
        return int(digits[1]) if digits else None
    if isinstance(value, float | Decimal):
        return _without_fraction(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _without_fraction(value: float | Decimal) -> int | None:
    """A decimal as a whole number; None if it has a fraction, or has lost digits, as a float from 2^53 on may have."""
    if isinstance(value, Decimal):
        small = value.is_finite() and value.adjusted() < MAX_ID_CHARACTERS
        return int(value) if small and value == value.to_integral_value() else None
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else None


def share(value: Any) -> float | None:
    """A number from 0 to 1, also as plain decimal text; None if it is none."""
    if isinstance(value, str):
        value = float(value) if _DECIMAL.fullmatch(value.strip()) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not 0 <= value <= 1:
        return None
    return float(value)


def shown(value: Any) -> str:
    """A value for people, as JSON has it; of one that may be long or deep, its type."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 10**18):
        return f"{value!r:.40}"
    types = (("list", list | tuple), ("object", Mapping), ("number", int | Decimal))
    return next((name for name, kind in types if isinstance(value, kind)), type(value).__name__)


def encodes(text: str) -> bool:
    """Whether a string can be written as UTF-8 (no half of a surrogate pair in it)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_columns(name: str, there: Collection[str] = ()) -> list[str]:
    """The columns of a text, `title,description`; the one column of this name where it is there."""
    if name in there or "," not in name:
        return [name]
    return [one for part in name.split(",") if (one := part.strip())]


def text_at(row: Mapping[str, Any], name: str) -> Any:
    """The text of a row, of one column or several (`text_columns`)."""
    if "," not in name:
        return value_at(row, name)
    return text_of_columns([value_at(row, one) for one in text_columns(name, row)])


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
