"""Subscriptions as GeoJSON: what goes out comes in as the same subscriptions."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.serve.geojson import columns_of, feature_of
from gateway.serve.regions import meet
from matching.geo.shapes import Polygon, read_polygon

SQUARE = {"type": "Polygon", "coordinates": [[[4, 52], [5, 52], [5, 53], [4, 53], [4, 52]]]}
BOTH = {"type": "MultiPolygon", "coordinates": [SQUARE["coordinates"], [[[7, 52], [8, 52], [8, 53], [7, 52]]]]}
_NUMBERS = st.one_of(st.integers(-180, 180), st.floats(-180, 180), st.none(), st.text(max_size=2), st.booleans())
_COLUMNS = {
    "kind": st.sampled_from(["boolean", "knn", "skyline", "none"]),
    "lon": _NUMBERS,
    "lat": _NUMBERS,
    "radius_m": _NUMBERS,
    "region": st.one_of(st.none(), st.lists(_NUMBERS, max_size=5)),
    "circle": st.one_of(st.none(), st.dictionaries(st.sampled_from(["lon", "lat", "radius_m", "x"]), _NUMBERS)),
    "polygon": st.sampled_from([None, SQUARE, BOTH, "text", {"type": "Point"}]),
}


@given(st.fixed_dictionaries({"subscription_id": st.one_of(st.text(min_size=1), st.integers())}, optional=_COLUMNS))
@settings(max_examples=300, deadline=None)
def test_feature_of_any_columns_gives_them_back(columns):
    assert columns_of(json.dumps(feature_of(columns)).encode()) == (columns, None)


@pytest.mark.parametrize(
    ("region", "parts"),
    [
        ([139, 35, 140, 36], [(139, 140)]),
        ([170, -10, -170, 10], [(170, 180), (-180, -170)]),
        ([0.5, -10, 0, 10], [(0.5, 180), (-180, 0)]),
        ([180, -10, -170, 10], [(-180, -170)]),
        ([170, -10, -180, 10], [(170, 180)]),
        ([180, -10, -180, 10], [(180, 180)]),
        ([-180, -90, 180, 90], [(-180, 180)]),
        ([180, -10, 180, 10], [(180, 180)]),
    ],
)
def test_region_across_180_degrees_is_cut_there_and_covers_what_it_covers(region, parts):
    columns = {"subscription_id": "s", "kind": "boolean", "keywords": "a", "region": region}
    feature = feature_of(columns)
    geometry = feature["geometry"]
    rings = geometry["coordinates"] if geometry["type"] == "Polygon" else [ring for (ring,) in geometry["coordinates"]]
    assert geometry["type"] == ("Polygon" if len(parts) == 1 else "MultiPolygon") and len(rings) == len(parts)
    south, north = region[1::2]
    for ring, (west, east) in zip(rings, parts, strict=True):
        assert ring == [[west, south], [east, south], [east, north], [west, north], [west, south]]
    assert columns_of(json.dumps(feature).encode()) == (columns, None)
    if all(0 < east - west < 180 for west, east in parts):
        shape = read_polygon(geometry)  # as `polygon` of another subscription it is the same place
        assert isinstance(shape, Polygon), shape


def test_boxes_meet_across_180_degrees():
    whole = (-180, -90, 180, 90)
    assert meet((170, 0, 190, 1), (-175, 0, -174, 1)) and meet((-175, 0, -174, 1), (170, 0, -170, 1))
    assert not meet((170, 0, 175, 1), (-175, 0, -174, 1)) and meet((180, 0, 180, 0), (-180, 0, -180, 0))
    assert meet((10, 0, 10, 0), whole) and not meet((0, 0, 1, 1), (0, 1.5, 1, 2))
