"""Reads the place of a message from one value: WKT, WKB (plain, hexadecimal, PostGIS's EWKB), or a pair of x and y.

Only points and rectangles with sides along the axes are messages' places; any other geometry gets a reason code.
"""

import math
import re
import struct
from collections.abc import Mapping
from typing import Any

from matching.validate import RawMessage

#: Reason code of a value that is no point and no rectangle, as in `matching.reasons`.
BAD = "bad_geometry"
#: EPSG number of longitude and latitude in degrees (WGS 84), which EWKT and EWKB may carry.
_SRID = 4326
_POINT, _POLYGON = 1, 3
_WKT = re.compile(rf"\s*(?:SRID={_SRID};)?\s*(POINT|POLYGON)\s*(?:Z|M|ZM)?\s*(EMPTY|\(.*\))\s*", re.IGNORECASE)
_HEX = re.compile(r"\s*(?:[0-9A-Fa-f]{2}){5,}\s*")

_Points = list[tuple[float, float]]


def placed(raw: RawMessage, value: Any) -> RawMessage | str:
    """Set the place of a message from a geometry.

    Parameters
    ----------
    raw : RawMessage
    value : bytes, str, mapping or None
        WKB (bytes), WKT or hexadecimal WKB (str), or a mapping with `x` and `y`; degrees, longitude first. None and ""
        leave the message unchanged.

    Returns
    -------
    RawMessage, or str
        The message, with a point or a rectangle; or a reason code: `bad_geometry`, or `missing_coordinate` for an empty
        geometry.
    """
    if value is None or value == "":
        return raw
    try:
        points = _points_of(value)
    except (ValueError, TypeError, OverflowError, struct.error):
        return BAD
    if len(points) == 1:
        lon, lat = points[0]
        return "missing_coordinate" if math.isnan(lon) else raw._replace(lon=lon, lat=lat)
    lons, lats = sorted({x for x, _ in points}), sorted({y for _, y in points})
    sides = [(a[0] == b[0]) != (a[1] == b[1]) for a, b in zip(points, points[1:], strict=False)]
    if not points:
        return "missing_coordinate"
    if len(points) != 5 or points[0] != points[-1] or len(lons) != 2 or len(lats) != 2 or not all(sides):
        return BAD
    return raw._replace(lon=None, lat=None, west=lons[0], south=lats[0], east=lons[1], north=lats[1])


def _points_of(value: Any) -> _Points:
    """The point (lon, lat) as a list of one, or the corners of a polygon's only ring; [] for an empty geometry.

    Raises ValueError, TypeError, OverflowError or struct.error for anything else.
    """
    if isinstance(value, bytes):
        return _read_wkb(value)
    if isinstance(value, Mapping):
        return [(float(value["x"]), float(value["y"]))] if value.keys() >= {"x", "y"} else _not_read()
    if not isinstance(value, str):
        return _not_read()
    if _HEX.fullmatch(value):
        return _read_wkb(bytes.fromhex(value))
    found = _WKT.fullmatch(value)
    if found is None:
        return _not_read()
    if found[2].upper() == "EMPTY":
        return []
    text, depth = found[2], 1 if found[1].upper() == "POINT" else 2
    inside = text.replace(" ", "").startswith("(" * depth) and text.count("(") == text.count(")") == depth
    numbers = [part.split() for part in text.strip("() \t").split(",")]
    if not inside or (depth == 1 and len(numbers) != 1):
        return _not_read()
    return [(float(x), float(y)) for x, y, *_ in numbers]


def _read_wkb(data: bytes) -> _Points:
    """As `_points_of`, from well-known binary (OGC 06-103r4) with ISO's or PostGIS's flags for z, m and SRID."""
    order = "<" if data[:1] == b"\1" else ">"
    (code,) = struct.unpack_from(f"{order}I", data, 1)
    start = 5
    if code & 0x20000000:  # EWKB: an SRID precedes the coordinates
        if struct.unpack_from(f"{order}I", data, start)[0] != _SRID:
            return _not_read()
        start += 4
    thousands, kind = divmod(code & 0x0FFFFFFF, 1000)
    numbers = 2 + max(bool(code & 0x80000000) + bool(code & 0x40000000), (0, 1, 1, 2)[min(thousands, 3)])
    count = 1
    if kind == _POLYGON:
        rings = struct.unpack_from(f"{order}I", data, start)[0]
        if rings != 1:
            return [] if rings == 0 else _not_read()
        (count,) = struct.unpack_from(f"{order}I", data, start + 4)
        start += 8
    elif kind != _POINT:
        return _not_read()
    if count > 5:
        return _not_read()
    size = 8 * numbers
    return [struct.unpack_from(f"{order}2d", data, start + size * number) for number in range(count)]


def _not_read() -> Any:
    """Raise ValueError; typed `Any` so that callers can write `return _not_read()` in an expression."""
    raise ValueError("neither a point nor a rectangle")
