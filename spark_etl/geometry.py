"""Places in one value: WKT, WKB (plain, hexadecimal, PostGIS's), or a pair of x and y.

Used by `spark_etl.ingest` and `spark_etl.paths`.
"""

import math
import re
import struct
from collections.abc import Mapping
from typing import Any

from matching.validate import RawMessage

BAD = "bad_geometry"
#: PostGIS's number of degrees, longitude first.
_SRID = 4326
_POINT, _POLYGON = 1, 3
_WKT = re.compile(rf"\s*(?:SRID={_SRID};)?\s*(POINT|POLYGON)\s*(?:Z|M|ZM)?\s*(EMPTY|\(.*\))\s*", re.IGNORECASE)
_HEX = re.compile(r"\s*(?:[0-9A-Fa-f]{2}){5,}\s*")

_Points = list[tuple[float, float]]


def placed(raw: RawMessage, value: Any) -> RawMessage | str:
    """A message with the place of its geometry.

    Parameters
    ----------
    raw : RawMessage
    value : bytes, str, mapping or None
        WKB, WKT or hexadecimal WKB, or x and y, in degrees, longitude first. None leaves the message as it is.

    Returns
    -------
    RawMessage, or str
        A reason code: geometries are points, or rectangles with sides along the axes.
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
    """One point, or those of the only ring of a polygon; ValueError for anything else."""
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
    order = "<" if data[:1] == b"\1" else ">"
    (code,) = struct.unpack_from(f"{order}I", data, 1)
    start = 5
    if code & 0x20000000:  # PostGIS: the number of the reference system precedes
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
    raise ValueError("neither a point nor a rectangle")
