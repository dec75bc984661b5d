"""Subscriptions as GeoJSON: a FeatureCollection in, one out, and the same subscriptions again.

The id of a feature is the subscription's, its geometry the shape, its properties all other columns. A Polygon or
MultiPolygon is `polygon`, a Point is `lon` and `lat`, or for kinds with a region, with the property `radius_m`, a
`circle`. Where properties have a shape of their own (`region`, `circle`, `lon`) the geometry is for maps only: that of
a region across 180 degrees is cut there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from gateway.live.admission import whole_row
from gateway.serve.bodies import decoded, rows_of
from gateway.serve.problems import ApiError
from gateway.serve.writer import Outcome, refused
from matching.fields import Fault
from matching.kinds import KINDS
from matching.reasons import explain
from matching.validate import decode_object

GEOJSON = "application/geo+json"
_POLYGONS = ("Polygon", "MultiPolygon")
#: Properties that say where a subscription is; with one of them the geometry says nothing.
_SHAPES = ("region", "circle", "lon", "lat")


class _Collection(msgspec.Struct):
    type: Literal["FeatureCollection"]
    features: msgspec.Raw


async def features_of(body: bytes) -> list[bytes]:
    """The features of a FeatureCollection, each as a line. Raises ApiError, as `gateway.serve.bodies.rows_of`."""
    try:
        features = decoded(body, lambda data: msgspec.json.decode(data, type=_Collection).features)
        found = await rows_of(bytes(features))
        if found is None:
            raise ValueError("features is no array")
        return found
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ApiError(
            422, "bad_geojson", f"the body is no FeatureCollection ({error})", "body", "send one, of GeoJSON"
        ) from None


def columns_of(data: bytes) -> tuple[dict[str, Any], Outcome | None]:
    """The columns of a feature, or the outcome of its refusal."""
    found = decode_object(data)
    if isinstance(found, str):
        return {}, refused(found, explain(found, KINDS), whole_row(data))
    return _columns_of(found)


def _columns_of(found: Mapping[str, Any]) -> tuple[dict[str, Any], Outcome | None]:
    properties, geometry = found.get("properties"), found.get("geometry")
    if found.get("type") != "Feature" or not isinstance(properties, dict) or not isinstance(geometry, dict | None):
        what = "a feature has type Feature, properties, and a geometry, which may be null"
        checked = ("type", found.get("type") != "Feature"), ("properties", not isinstance(properties, dict))
        column = next((name for name, is_bad in checked if is_bad), "geometry")
        return {}, refused("bad_geojson", what, Fault(column, found.get(column)))
    columns, name = dict(properties), found.get("id")
    if name is not None and columns.setdefault("subscription_id", name) != name:
        what = f"the id of the feature is {name!r}, and subscription_id something else"
        return {}, refused("bad_id", what, Fault("id", name))
    if geometry is None or any(columns.get(shape) is not None for shape in _SHAPES):
        return columns, None
    if geometry.get("type") in _POLYGONS:
        columns.setdefault("polygon", geometry)
        return columns, None
    place = geometry.get("coordinates")
    if geometry.get("type") != "Point" or not isinstance(place, list) or len(place) < 2:
        what = "the geometry must be a Polygon, a MultiPolygon or a Point"
        return {}, refused("bad_geojson", what, Fault("geometry", geometry))
    point: dict[str, Any] = {"lon": place[0], "lat": place[1]}
    if _has_region(columns) and columns.get("radius_m") is not None:
        point = {"circle": point | {"radius_m": columns.pop("radius_m")}}
    return columns | point, None


def feature_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    """A subscription as a feature, of which `columns_of` makes the same columns."""
    others = dict(columns)
    name, geometry = others.pop("subscription_id"), None
    left = dict(others)
    circle, region, polygon = (left.get(shape) for shape in ("circle", "region", "polygon"))
    point = left.get("lon"), left.get("lat")
    if not _has_region(left):
        if _are_numbers(point):
            geometry = {"type": "Point", "coordinates": [left.pop("lon"), left.pop("lat")]}
    elif isinstance(polygon, dict) and polygon.get("type") in _POLYGONS and region is None and circle is None:
        geometry = left.pop("polygon")
    elif isinstance(circle, dict) and circle.keys() == {"lon", "lat", "radius_m"} and region is None:
        if _are_numbers((circle["lon"], circle["lat"])) and "radius_m" not in left:
            del left["circle"]
            geometry = {"type": "Point", "coordinates": [circle["lon"], circle["lat"]]}
            left["radius_m"] = circle["radius_m"]
    elif isinstance(region, list) and len(region) == 4 and _are_numbers(region):
        geometry = _geometry_of(*region)
    feature = {"type": "Feature", "id": name, "geometry": geometry, "properties": left}
    if _columns_of(feature)[0] == columns:
        return feature
    # its shape has a form of its own, or free columns have names of shapes
    return feature | {"geometry": None, "properties": others}


def _geometry_of(west: float, south: float, east: float, north: float) -> dict[str, Any]:
    """A region as a geometry; one that crosses 180 degrees is cut there (RFC 7946, 3.1.9)."""
    parts = [(west, east)] if west <= east else [(west, 180), (-180, east)]
    if west > east:  # a part without a width is the meridian, which the other part has
        parts = [part for part in parts if part[0] != part[1]] or parts[:1]
    rings = [[[[w, south], [e, south], [e, north], [w, north], [w, south]]] for w, e in parts]
    if len(rings) == 1:
        return {"type": "Polygon", "coordinates": rings[0]}
    return {"type": "MultiPolygon", "coordinates": rings}


def collection_of(rows: Sequence[Mapping[str, Any]], after: int | None) -> dict[str, Any]:
    """A page of subscriptions as a FeatureCollection; `after` is the cursor of the next page."""
    return {"type": "FeatureCollection", "features": [feature_of(row) for row in rows], "after": after}


def _has_region(columns: Mapping[str, Any]) -> bool:
    """Whether the kind of a subscription has a region, not a point."""
    name = columns.get("kind")
    return isinstance(name, str) and name in KINDS and KINDS.named(name).place == "region"


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
