"""Corners of the shapes of subscriptions, as a map in the projection of Mercator draws them.

Shapes that cross the antimeridian are cut there, and latitudes end where the map does. This is for the eye: what a
subscription covers, `matching.geo` decides. Used by `gateway.notebook`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matching.geo.sphere import EARTH_RADIUS_M

Corner = tuple[float, float]
#: Rings of one polygon, the shell first; each ends where it begins.
Rings = list[list[Corner]]
MultiPolygon = list[Rings]

#: Degrees of latitude at which a square map in the projection of Mercator ends.
MERCATOR_END = 85.05112877980659
#: Edges of a circle.
EDGES = 64


def shape_of(row: Mapping[str, Any]) -> MultiPolygon:
    """The shape of a subscription, within -180..180; empty where it has a point alone.

    Parameters
    ----------
    row : mapping
        Checked columns: `polygon` (GeoJSON), `circle` (`lon`, `lat`, `radius_m`), `region` (west, south, east, north),
        or `lon`, `lat` and `radius_m`.
    """
    return [piece for polygon in _polygons(row) for piece in _within_the_map(polygon)]


def _polygons(row: Mapping[str, Any]) -> list[Rings]:
    """The polygons of a subscription, with longitudes that may be beyond -180..180."""
    polygon, circle, region = (row.get(name) for name in ("polygon", "circle", "region"))
    if polygon is not None:
        parts = [polygon["coordinates"]] if polygon["type"] == "Polygon" else polygon["coordinates"]
        return [[[(float(lon), float(lat)) for lon, lat, *_ in ring] for ring in part] for part in parts]
    if circle is not None:
        return [circle_rings(*(float(circle[name]) for name in ("lon", "lat", "radius_m")))]
    if region is not None:
        return [[_box(*map(float, region))]]
    if row.get("radius_m") is not None and row.get("lon") is not None:
        return [circle_rings(*(float(row[name]) for name in ("lon", "lat", "radius_m")))]
    return []


def _box(west: float, south: float, east: float, north: float) -> list[Corner]:
    east += 360.0 if west > east else 0.0
    return [(west, south), (east, south), (east, north), (west, north), (west, south)]


def circle_rings(lon: float, lat: float, radius_m: float) -> Rings:
    """A circle on the sphere as rings, with longitudes that may be beyond -180..180.

    One around a pole goes around the earth and along the edge of the map; one around both is the earth with a hole.
    """
    angle = radius_m / EARTH_RADIUS_M
    reach = math.degrees(angle)
    north, south = lat + reach >= 90.0, lat - reach <= -90.0
    if reach >= 180.0:
        return [_box(-180.0, -90.0, 180.0, 90.0)]
    if north and south:
        across = lon + 180.0 if lon < 0.0 else lon - 180.0
        return [_box(across - 180.0, -90.0, across + 180.0, 90.0), _around(across, -lat, math.pi - angle)]
    ring = _around(lon, lat, angle)
    if not north and not south:
        return [ring]
    pole = 90.0 if north else -90.0
    inner = sorted(ring[:-1])
    edge = inner[0][1]
    around = [(lon - 180.0, edge), *inner, (lon + 180.0, edge)]
    return [[*around, (lon + 180.0, pole), (lon - 180.0, pole), around[0]]]


def _around(lon: float, lat: float, angle: float) -> list[Corner]:
    """Corners at an angle (radians) from a place, with longitudes within 180 degrees of it."""
    sine, cosine = math.sin(math.radians(lat)), math.cos(math.radians(lat))
    corners = []
    for edge in range(EDGES):
        bearing = math.tau * edge / EDGES
        height = sine * math.cos(angle) + cosine * math.sin(angle) * math.cos(bearing)
        height = min(1.0, max(-1.0, height))
        east = math.atan2(math.sin(bearing) * math.sin(angle) * cosine, math.cos(angle) - sine * height)
        corners.append((lon + math.degrees(east), math.degrees(math.asin(height))))
    return [*corners, corners[0]]


# ---------------------------------------------------------------------------------------------- the edges of the map


def _within_the_map(rings: Rings) -> MultiPolygon:
    """The parts of a polygon in each turn around the earth, moved into -180..180."""
    parts = []
    for turn in (-360.0, 0.0, 360.0):
        shell, *holes = (_strip(ring, turn) for ring in rings)
        if shell:
            parts.append([shell, *filter(None, holes)])
    return parts


def _strip(ring: Sequence[Corner], turn: float) -> list[Corner]:
    """What of a ring lies within 180 degrees of a meridian, with longitudes from there; empty if that is no area."""
    moved = [(lon - turn, lat) for lon, lat in ring]
    if any(abs(lon) > 180.0 for lon, _ in moved):
        moved = _cut(_cut(moved, 1.0), -1.0)
    if len({lon for lon, _ in moved}) < 2:
        return []
    return [(lon, max(-MERCATOR_END, min(MERCATOR_END, lat))) for lon, lat in moved]


def _cut(ring: Sequence[Corner], side: float) -> list[Corner]:
    """A closed ring without what lies east of 180 (`side` 1), or west of -180 (`side` -1)."""
    kept: list[Corner] = []
    for (lon, lat), (next_lon, next_lat) in zip(ring, ring[1:], strict=False):
        inside, next_inside = lon * side <= 180.0, next_lon * side <= 180.0
        if inside:
            kept.append((lon, lat))
        if inside != next_inside:
            share = (180.0 * side - lon) / (next_lon - lon)
            kept.append((180.0 * side, lat + share * (next_lat - lat)))
    return [*kept, kept[0]] if kept else []
