"""Checks of the shapes that subscriptions name: circles, radii, polygons as GeoJSON.

A shape that cannot be used becomes a `Refusal`: a code of `matching.reasons` and, for people, what is wrong where. A
polygon within -180..180 is taken as it is written. One with longitudes beyond is cut at the antimeridian and its parts
are moved by 360 degrees, which is exact; only the corners where an edge crosses are computed (spec G9). No other file
imports shapely, which judges whether polygons are valid, and cuts them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import shapely

from matching.fields import Refusal, coordinate, shown
from matching.geo.polygons import Rings
from matching.reasons import MAX_CORNERS, MAX_RADIUS_M

#: Longitudes of polygons are within -540..540: once around the earth from any place.
_WIDEST = 540.0
_CIRCLE = frozenset(("lon", "lat", "radius_m"))

Corner = tuple[float, float]
Region = tuple[float, float, float, float]


class Circle(NamedTuple):
    """A closed circle on the sphere; degrees and metres."""

    lon: float
    lat: float
    radius_m: float


class Polygon(NamedTuple):
    """A checked polygon: its rings, and the narrowest region around them.

    `region` is west, south, east, north in degrees, with west > east where it crosses the antimeridian.
    """

    region: Region
    rings: Rings


def read_radius(value: Any) -> float | Refusal:
    """A radius in metres, from a number or plain decimal text. Never raises."""
    radius_m = coordinate(value, MAX_RADIUS_M)
    if isinstance(radius_m, str) or radius_m <= 0:
        return Refusal("bad_radius", f"radius_m is {shown(value)}")
    return radius_m


def read_circle(value: Any) -> Circle | Refusal:
    """A circle, from a mapping of `lon`, `lat` (degrees) and `radius_m`. Never raises."""
    if not isinstance(value, Mapping):
        return Refusal("bad_circle", f"circle is {shown(value)}")
    if odd := sorted(map(str, _CIRCLE.symmetric_difference(value))):
        return Refusal("bad_circle", f"{'missing' if odd[0] in _CIRCLE else 'unknown'}: {odd[0]:.40}")
    lon = coordinate(value["lon"], 180.0)
    if isinstance(lon, str):
        return Refusal(lon, f"lon is {shown(value['lon'])}")
    lat = coordinate(value["lat"], 90.0)
    if isinstance(lat, str):
        return Refusal(lat, f"lat is {shown(value['lat'])}")
    radius_m = read_radius(value["radius_m"])
    return radius_m if isinstance(radius_m, Refusal) else Circle(lon, lat, radius_m)


def read_polygon(value: Any) -> Polygon | Refusal:
    """A polygon, from a GeoJSON geometry.

    Parameters
    ----------
    value : any
        A mapping with `type` Polygon or MultiPolygon and `coordinates`; heights are ignored, the order in which rings
        turn means nothing.

    Returns
    -------
    Polygon, or Refusal

    Notes
    -----
    O(n log n) for n corners; about 30 us for few, 100 us if they are cut, 6 ms for `MAX_CORNERS`. Never raises for a
    value that JSON can have.
    """
    parts = _parts_of(value)
    if isinstance(parts, Refusal):
        return parts
    shells = [[np.array(ring) for ring in part] for part in parts]
    for i, part in enumerate(shells):
        for j, ring in enumerate(part):
            turns = np.abs(np.diff(ring[:, 0]))
            if (turns > 180.0).any():
                (x1, y1), (x2, y2) = ring[(at := int(turns.argmax())) : at + 2].tolist()
                return Refusal("long_edge", f"{_place(i, j)}, from {x1:g} {y1:g} to {x2:g} {y2:g}")
    shape = shapely.MultiPolygon([shapely.Polygon(part[0], part[1:]) for part in shells])
    if not shapely.is_valid(shape):
        return Refusal("invalid_polygon", shapely.is_valid_reason(shape))
    west, _, east, _ = shape.bounds
    if west < -180.0 or east > 180.0:
        rings = _around_the_earth(shape)
        if isinstance(rings, Refusal):
            return rings
    else:
        rings = [ring for part in shells for ring in part]
    corners = np.concatenate(rings)
    offsets = np.cumsum([0, *map(len, rings)], dtype=np.int64)
    flat = Rings(offsets, np.ascontiguousarray(corners[:, 0]), np.ascontiguousarray(corners[:, 1]))
    return Polygon(_region_around(flat), flat)


# ------------------------------------------------------------------------------------------------------------- GeoJSON


def _parts_of(value: Any) -> list[list[list[Corner]]] | Refusal:
    """The polygons of a geometry, each a list of closed rings, the shell first."""
    if not isinstance(value, Mapping):
        return Refusal("bad_polygon", f"polygon is {shown(value)}")
    name, coordinates = value.get("type"), value.get("coordinates")
    if name == "Feature":
        return Refusal("bad_polygon", "this is a Feature: write its geometry")
    if name not in ("Polygon", "MultiPolygon"):
        return Refusal("bad_polygon", f"type is {shown(name)}")
    if value.get("crs") is not None:
        return Refusal("bad_polygon", "crs is not read: coordinates have to be longitudes and latitudes of WGS 84")
    if not _is_list(coordinates) or not coordinates:
        return Refusal("bad_polygon", "coordinates are missing")
    listed = [coordinates] if name == "Polygon" else coordinates
    parts, corners = [], 0
    for i, part in enumerate(listed):
        if not _is_list(part) or not part:
            return Refusal("bad_polygon", f"polygon {i} has no ring")
        rings = []
        for j, ring in enumerate(part):
            if not _is_list(ring) or len(ring) < 4:
                return Refusal("bad_polygon", f"{_place(i, j)} has fewer than 4 positions")
            corners += len(ring) - 1
            if corners > MAX_CORNERS:
                return Refusal("too_many_corners", f"{_place(i, j)} is beyond them")
            checked = _ring_of(ring, _place(i, j))
            if isinstance(checked, Refusal):
                return checked
            rings.append(checked)
        parts.append(rings)
    return parts


def _ring_of(ring: Sequence[Any], place: str) -> list[Corner] | Refusal:
    corners = []
    for n, position in enumerate(ring):
        if not _is_list(position) or len(position) < 2:
            return Refusal("bad_polygon", f"{place}, position {n} is no [longitude, latitude]")
        lon = coordinate(position[0], _WIDEST)
        if isinstance(lon, str):
            return Refusal(lon, f"{place}, position {n}")
        lat = coordinate(position[1], 90.0)
        if isinstance(lat, str):
            return Refusal(lat, f"{place}, position {n}")
        corners.append((lon, lat))
    if corners[0] != corners[-1]:
        return Refusal("bad_polygon", f"{place} ends at another place than it begins")
    return corners


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _place(part: int, ring: int) -> str:
    return f"polygon {part}, ring {ring}"


# -------------------------------------------------------------------------------------------------- around the earth


def _around_the_earth(shape: shapely.MultiPolygon) -> list[np.ndarray] | Refusal:
    """Rings within -180..180 of a polygon that is written with longitudes beyond: float64[n, 2] each."""
    # Not by the package `antimeridian` (0.4.9): it rounds crossings to 7 digits, moves corners near the line onto it,
    # and fails for a hole beyond 180.
    turned = []
    for turn in (-360.0, 0.0, 360.0):
        strip = shapely.intersection(shape, shapely.box(turn - 180.0, -90.0, turn + 180.0, 90.0))
        if not strip.is_empty:
            turned.append(shapely.transform(strip, lambda corners, turn=turn: corners - (turn, 0.0)))
    for n, one in enumerate(turned):
        if any(shapely.relate_pattern(one, other, "T********") for other in turned[n + 1 :]):
            return Refusal("invalid_polygon", "it covers a place twice: it is wider than 360 degrees, or parts overlap")
    rings = []
    for piece in shapely.get_parts(turned):
        for simple in shapely.get_parts(piece):
            if isinstance(simple, shapely.Polygon):
                rings += [shapely.get_coordinates(ring) for ring in (simple.exterior, *simple.interiors)]
            else:
                # The polygon touches the line from its other side: a ring there and back encloses nothing, and is an
                # edge all the same.
                line = shapely.get_coordinates(simple)
                rings.append(np.concatenate([line, line[::-1]]))
    return rings


def _region_around(rings: Rings) -> Region:
    """The narrowest region around rings, which may cross the antimeridian."""
    starts = rings.offsets[:-1]
    spans = sorted(zip(np.minimum.reduceat(rings.lon, starts), np.maximum.reduceat(rings.lon, starts), strict=True))
    south, north = float(rings.lat.min()), float(rings.lat.max())
    west, east = spans[0]
    widest, across = 0.0, None
    for span_west, span_east in spans[1:]:
        if span_west - east > widest:
            widest, across = span_west - east, (span_west, east)
        east = max(east, span_east)
    # What is left out is the widest gap; that between the last and the first ring is the one around the back.
    if across is not None and widest > west + 360.0 - east:
        west, east = across
    return float(west), south, float(east), north
