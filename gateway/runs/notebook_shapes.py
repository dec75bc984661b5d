"""Corners of the shapes of subscriptions, as a map in the projection of Mercator draws them.

Shapes that cross the antimeridian are cut there, and latitudes end where the map does. This is for the eye: what a
subscription covers, `matching.geo` decides.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from matching.geo.sphere import EARTH_RADIUS_M

#: float64[n, 2], degrees of longitude and latitude; the last corner is the first.
Ring = np.ndarray
#: Rings of one polygon, the shell first.
Rings = list[Ring]
MultiPolygon = list[Rings]

#: Degrees of latitude at which a square map in the projection of Mercator ends.
MERCATOR_END = 85.05112877980659
#: Edges of a circle.
EDGES = 64
_BEARINGS = np.linspace(0.0, math.tau, EDGES, endpoint=False)


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
        return [[np.array([corner[:2] for corner in ring], np.float64) for ring in part] for part in parts]
    if circle is not None:
        return [circle_rings(*(float(circle[name]) for name in ("lon", "lat", "radius_m")))]
    if region is not None:
        return [[_box(*map(float, region))]]
    if row.get("radius_m") is not None and row.get("lon") is not None:
        return [circle_rings(*(float(row[name]) for name in ("lon", "lat", "radius_m")))]
    return []


def _box(west: float, south: float, east: float, north: float) -> Ring:
    east += 360.0 if west > east else 0.0
    return np.array([(west, south), (east, south), (east, north), (west, north), (west, south)])


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
    inner = ring[:-1][np.argsort(ring[:-1, 0])]
    edge = inner[0, 1]
    ends = [(lon + 180.0, edge), (lon + 180.0, pole), (lon - 180.0, pole), (lon - 180.0, edge)]
    return [np.concatenate([ends[-1:], inner, ends])]


def _around(lon: float, lat: float, angle: float) -> Ring:
    """Corners at an angle (radians) from a place, with longitudes within 180 degrees of it."""
    sine, cosine = math.sin(math.radians(lat)), math.cos(math.radians(lat))
    height = np.clip(sine * math.cos(angle) + cosine * math.sin(angle) * np.cos(_BEARINGS), -1.0, 1.0)
    east = np.arctan2(np.sin(_BEARINGS) * math.sin(angle) * cosine, math.cos(angle) - sine * height)
    corners = np.stack([lon + np.degrees(east), np.degrees(np.arcsin(height))], axis=1)
    return np.concatenate([corners, corners[:1]])


# ---------------------------------------------------------------------------------------------- the edges of the map


def _within_the_map(rings: Rings) -> MultiPolygon:
    """The parts of a polygon in each turn around the earth, moved into -180..180."""
    if all(np.abs(ring[:, 0]).max() <= 180.0 for ring in rings):
        return [[_ended(ring) for ring in rings]]
    parts = []
    for turn in (-360.0, 0.0, 360.0):
        shell, *holes = (_strip(ring, turn) for ring in rings)
        if shell is not None:
            parts.append([shell, *(hole for hole in holes if hole is not None)])
    return parts


def _strip(ring: Ring, turn: float) -> Ring | None:
    """What of a ring lies within 180 degrees of a meridian, with longitudes from there; None if that is no area."""
    moved = [(lon - turn, lat) for lon, lat in ring.tolist()]
    kept = _cut(_cut(moved, 1.0), -1.0)
    return _ended(np.array(kept)) if len({lon for lon, _ in kept}) > 1 else None


def _ended(ring: Ring) -> Ring:
    """A ring within the latitudes of the map."""
    return np.stack([ring[:, 0], np.clip(ring[:, 1], -MERCATOR_END, MERCATOR_END)], axis=1)


def _cut(ring: list[tuple[float, float]], side: float) -> list[tuple[float, float]]:
    """A closed ring without what lies east of 180 (`side` 1), or west of -180 (`side` -1)."""
    kept: list[tuple[float, float]] = []
    for (lon, lat), (next_lon, next_lat) in zip(ring, ring[1:], strict=False):
        inside, next_inside = lon * side <= 180.0, next_lon * side <= 180.0
        if inside:
            kept.append((lon, lat))
        if inside != next_inside:
            share = (180.0 * side - lon) / (next_lon - lon)
            kept.append((180.0 * side, lat + share * (next_lat - lat)))
    return [*kept, kept[0]] if kept else []
