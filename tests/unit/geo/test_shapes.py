"""Shapes as subscriptions name them: what is read, what is refused and why, and what lies beyond 180 degrees."""

import math

import numpy as np
import pytest
import shapely

from matching import naive_shapes
from matching.fields import Refusal
from matching.geo import polygons, shapes
from matching.geo.shapes import Circle, Polygon, read_circle, read_polygon, read_radius
from matching.reasons import MAX_CORNERS, MAX_RADIUS_M, REASONS
from tests.support.shapes import corners_of

SQUARE = [[0, 0], [10, 0], [10, 10], [0, 10], [0, 0]]
HOLE = [[4, 4], [6, 4], [6, 6], [4, 6], [4, 4]]
TOO_WIDE = [[0, 0], [130, 0], [250, 0], [370, 0], [370, 9], [250, 9], [130, 9], [0, 9], [0, 0]]
BEYOND, THERE = [[170, 0], [190, 0], [190, 5], [170, 0]], [[-172, 0], [-175, 0], [-175, 9], [-172, 0]]


def geometry(*rings, **more):
    return {"type": "Polygon", "coordinates": list(rings), **more}


def several(*parts):
    return {"type": "MultiPolygon", "coordinates": [list(rings) for rings in parts]}


def read(value) -> Polygon:
    polygon = read_polygon(value)
    assert isinstance(polygon, Polygon), polygon
    return polygon


def covered(polygon, *points):
    """For each point, what the kernel says; the oracle has to say the same."""
    table = polygons.lay_out([polygon.rings])
    found = polygons.covered(table, np.zeros(len(points), np.int64), *np.array(points, np.float64).T).tolist()
    assert found == [naive_shapes.in_polygon(corners_of(polygon.rings), *point) for point in points]
    return found


# ------------------------------------------------------------------------------------------------------------- circles


def test_read_circle_takes_numbers_and_decimal_text():
    assert read_circle({"lon": 13.4, "lat": "52.5", "radius_m": 5000}) == Circle(13.4, 52.5, 5000.0)


@pytest.mark.parametrize(
    ("value", "reason", "detail"),
    [
        (None, "bad_circle", ""),
        ([1, 2, 3], "bad_circle", ""),
        ({}, "bad_circle", "missing: lat"),
        ({"lon": 1, "lat": 2}, "bad_circle", "missing: radius_m"),
        ({"lon": 1, "lat": 2, "radius_m": 3, "radius_km": 3}, "bad_circle", "unknown: radius_km"),
        ({"lon": 181, "lat": 2, "radius_m": 3}, "coordinate_out_of_range", ""),
        ({"lon": 1, "lat": math.nan, "radius_m": 3}, "coordinate_not_finite", ""),
        ({"lon": 1, "lat": None, "radius_m": 3}, "missing_coordinate", ""),
        ({"lon": 1, "lat": 2, "radius_m": -3}, "bad_radius", "radius_m is -3.0"),
    ],
)
def test_read_circle_refuses(value, reason, detail):
    refusal = read_circle(value)
    assert isinstance(refusal, Refusal) and refusal.reason == reason and reason in REASONS
    assert detail in refusal.detail or value["radius_m"] == -3


@pytest.mark.parametrize(
    "value", [0, -1, 0.0, MAX_RADIUS_M + 1, math.inf, math.nan, "5 km", True, None, [5], {}, 10**400]
)
def test_read_radius_refuses(value):
    refusal = read_radius(value)
    assert isinstance(refusal, Refusal) and refusal.reason == "bad_radius" and refusal.detail.startswith("radius_m is ")


@pytest.mark.parametrize("value", [1, "2500.5", 5e-324, MAX_RADIUS_M])
def test_read_radius_takes(value):
    assert read_radius(value) == float(value)


# ------------------------------------------------------------------------------------------------------------ polygons


def test_read_polygon_keeps_its_rings_as_they_are_written():
    polygon = read(geometry(SQUARE, HOLE))
    assert polygon.region == (0.0, 0.0, 10.0, 10.0)
    assert polygon.rings.offsets.tolist() == [0, 5, 10] and polygon.rings.offsets.dtype == np.int64
    assert corners_of(polygon.rings) == [[tuple(c) for c in SQUARE], [tuple(c) for c in HOLE]]
    assert covered(polygon, (5, 5), (4, 4), (1, 1), (11, 5)) == [False, True, True, False]


def test_read_polygon_of_several_parts_has_all_of_them():
    far = [[20.0, 0.0], [21.0, 0.0], [21.0, 1.0], [20.0, 0.0]]
    polygon = read(several([SQUARE, HOLE], [far]))
    assert polygon.region == (0.0, 0.0, 21.0, 10.0)
    assert covered(polygon, (20.9, 0.5), (5, 5), (15, 5), (1, 1)) == [True, False, False, True]


def test_read_polygon_takes_heights_and_either_direction():
    polygon = read(geometry([[*corner, 120.5] for corner in reversed(SQUARE)], bbox=[0, 0, 10, 10]))
    assert polygon.region == (0.0, 0.0, 10.0, 10.0) and covered(polygon, (5, 5)) == [True]


@pytest.mark.parametrize(
    ("value", "reason", "detail"),
    [
        (None, "bad_polygon", ""),
        ("POLYGON((0 0, 1 0, 1 1, 0 0))", "bad_polygon", ""),
        ({}, "bad_polygon", "type is null"),
        ({"type": "Point", "coordinates": [1, 2]}, "bad_polygon", "type is 'Point'"),
        ({"type": [[1]], "coordinates": [1, 2]}, "bad_polygon", "type is list"),
        ({"type": "Feature", "geometry": geometry(SQUARE)}, "bad_polygon", "write its geometry"),
        ({"type": "Polygon"}, "bad_polygon", "coordinates are missing"),
        (geometry(), "bad_polygon", "coordinates are missing"),
        (several([]), "bad_polygon", "polygon 0 has no ring"),
        (geometry(SQUARE, crs={"type": "name"}), "bad_polygon", "WGS 84"),
        (geometry(SQUARE[:4]), "bad_polygon", "polygon 0, ring 0 ends at another place"),
        (geometry(SQUARE, HOLE[:3]), "bad_polygon", "polygon 0, ring 1 has fewer than 4 positions"),
        (several([SQUARE], [[[0, 0], [1, 0], 7, [0, 0]]]), "bad_polygon", "polygon 1, ring 0, position 2"),
        (geometry([[0, 0], [1, "x"], [1, 1], [0, 0]]), "coordinate_not_number", "position 1"),
        (geometry([[0, 0], [1, 91], [1, 1], [0, 0]]), "coordinate_out_of_range", "position 1"),
        (geometry([[0, 0], [1, math.inf], [1, 1], [0, 0]]), "coordinate_not_finite", "position 1"),
        (geometry([[0, 0], [541, 0], [1, 1], [0, 0]]), "coordinate_out_of_range", "position 1"),
        (geometry([[0, 0], [None, 0], [1, 1], [0, 0]]), "missing_coordinate", "position 1"),
        (geometry([[0, 0], [True, 0], [1, 1], [0, 0]]), "wrong_type", "position 1"),
        (geometry([[170, 0], [-170, 0], [-170, 5], [170, 0]]), "long_edge", "ring 0, from 170 0 to -170 0"),
        (geometry([[0, 0], [10, 10], [10, 0], [0, 10], [0, 0]]), "invalid_polygon", "Self-intersection[5 5]"),
        (geometry(SQUARE, [[20, 20], [21, 20], [21, 21], [20, 20]]), "invalid_polygon", "Hole lies outside shell"),
        (geometry([[0, 0], [5, 0], [9, 0], [0, 0]]), "invalid_polygon", "["),
        (several([SQUARE], [HOLE]), "invalid_polygon", "Nested shells"),
        (geometry([[0, 0]] * (MAX_CORNERS + 2)), "too_many_corners", ""),
        (geometry(SQUARE, *[HOLE] * (MAX_CORNERS // 4)), "too_many_corners", ""),
        (geometry([[0, 0], [180, 0], [350, 0], [370, 0], [370, 9], [180, 9], [0, 9], [0, 0]]), "long_edge", ""),
        (geometry(TOO_WIDE), "invalid_polygon", "twice"),
        (several([BEYOND], [THERE]), "invalid_polygon", "twice"),
    ],
)
def test_read_polygon_refuses(value, reason, detail):
    refusal = read_polygon(value)
    assert isinstance(refusal, Refusal), refusal
    assert refusal.reason == reason and reason in REASONS
    assert detail in refusal.detail


def test_read_polygon_of_the_most_corners_is_read():
    turn = np.linspace(0, 2 * math.pi, MAX_CORNERS + 1)[:-1]
    ring = np.stack([np.cos(turn), np.sin(turn)], axis=1).tolist()
    assert len(read(geometry([*ring, ring[0]])).rings.lon) == MAX_CORNERS + 1


# --------------------------------------------------------------------------------------------------- the antimeridian


@pytest.mark.parametrize("turn", [0.0, -360.0])
def test_read_polygon_beyond_180_lies_on_both_sides(turn):
    ring = [[170 + turn, 0], [190 + turn, 0], [190 + turn, 10], [170 + turn, 10], [170 + turn, 0]]
    hole = [[178 + turn, 4], [186 + turn, 4], [186 + turn, 6], [178 + turn, 6], [178 + turn, 4]]
    beyond = [[183 + turn, 1], [185 + turn, 1], [185 + turn, 2], [183 + turn, 2], [183 + turn, 1]]
    polygon = read(geometry(ring, hole, beyond))
    assert polygon.region == (170.0, 0.0, -170.0, 10.0)
    points = [(175, 5), (180, 2), (-180, 2), (-171, 5), (-169.9, 5), (169.9, 5), (0, 5), (180, 10), (-170, 0)]
    assert covered(polygon, *points) == [True, True, True, True, False, False, False, True, True]
    assert covered(polygon, (-176, 1.5), (-177, 1.5), (-174, 1.5)) == [False, True, True]
    assert covered(polygon, (179, 5), (180, 5), (-180, 5), (-175, 5), (178, 5), (-174, 6)) == [False] * 4 + [True] * 2


def test_read_polygon_that_crosses_has_the_digits_of_its_corners():
    ring = [[179.12345678901234, 1.1], [180.98765432109876, 2.2], [181.00000000000003, 3.3], [179.12345678901234, 1.1]]
    rings = read(geometry(ring)).rings
    corners = {corner for one in corners_of(rings) for corner in one}
    assert {(179.12345678901234, 1.1), (180.98765432109876 - 360, 2.2), (181.00000000000003 - 360, 3.3)} <= corners
    # corners at the line are the same on both sides, and as near as numbers can be
    east, west = (sorted(lat for lon, lat in corners if lon == side) for side in (180.0, -180.0))
    assert east == west and len(east) == 2
    share = (180 - ring[0][0]) / (ring[1][0] - ring[0][0])
    assert east[0] == pytest.approx(1.1 + 1.1 * share, rel=1e-15)


@pytest.mark.parametrize("lon", [180.0, -180.0])
def test_read_polygon_that_touches_180_from_beyond_has_both_sides_of_it(lon):
    polygon = read(geometry([[180, 0], [190, 0], [190, 10], [180, 10], [180, 0]]))
    assert polygon.region == (180.0, 0.0, -170.0, 10.0)
    assert covered(polygon, (lon, 0), (lon, 5), (lon, 10), (lon, 10.5), (179.9, 5)) == [True] * 3 + [False] * 2
    corner = read(geometry([[180, 3], [190, 0], [190, 10], [180, 3]]))
    assert covered(corner, (lon, 3), (lon, 3.1), (-175, 3)) == [True, False, True]


def test_read_polygon_within_180_is_literal_there():
    polygon = read(geometry([[170, 0], [180, 0], [180, 10], [170, 0]]))
    assert polygon.region == (170.0, 0.0, 180.0, 10.0)
    assert covered(polygon, (180, 5), (-180, 5)) == [True, False]


def test_read_polygon_already_cut_has_a_narrow_region():
    east, west = [[170, 0], [180, 0], [180, 9], [170, 0]], [[-180, 0], [-170, 0], [-180, 9], [-180, 0]]
    assert read(several([east], [west])).region == (170.0, 0.0, -170.0, 9.0)
    middle = [[-10, 0], [10, 0], [0, 20], [-10, 0]]
    assert read(several([east], [west], [middle])).region == (-10.0, 0.0, -170.0, 20.0)
    assert read(several([middle], [[[100, 0], [110, 0], [100, 5], [100, 0]]])).region == (-10.0, 0.0, 110.0, 20.0)


def test_read_polygon_around_the_whole_earth_is_taken():
    ring = [[0, 0], [120, 0], [240, 0], [360, 0], [360, 9], [240, 9], [120, 9], [0, 9], [0, 0]]
    polygon = read(geometry(ring))
    assert polygon.region == (-180.0, 0.0, 180.0, 9.0)
    assert covered(polygon, (0, 5), (180, 5), (-180, 5), (-60, 9), (90, 9.5)) == [True] * 4 + [False]


def test_read_polygon_beyond_180_is_what_shapely_says_of_the_uncut_one():
    random = np.random.default_rng(12)
    compared = inside = 0
    for _ in range(400):
        turn, far = np.sort(random.uniform(0, 2 * math.pi, 12)), random.uniform(3, 40, 12)
        middle = random.choice([-185.0, 175.0, 182.0, 360.0]), random.uniform(-40, 40)
        ring = np.stack([middle[0] + far * np.cos(turn), middle[1] + far * np.sin(turn)], axis=1)
        ring = np.concatenate([ring, ring[:1]])
        shape = shapely.Polygon(ring)
        if not shape.is_valid:
            continue
        polygon = read(geometry(ring.tolist()))
        points = middle + random.uniform(-40, 40, (50, 2))
        near = shapely.dwithin(shape.boundary, shapely.points(points), 1e-9)
        wrapped = (points[:, 0] + 180) % 360 - 180
        found = polygons.covered(
            polygons.lay_out([polygon.rings]), np.zeros(50, np.int64), wrapped, np.ascontiguousarray(points[:, 1])
        )
        assert (found == shapely.covers(shape, shapely.points(points)))[~near].all()
        west, south, east, north = polygon.region
        across = (wrapped >= west) & (wrapped <= east) if west <= east else (wrapped >= west) | (wrapped <= east)
        assert (across & (points[:, 1] >= south) & (points[:, 1] <= north))[found].all()
        compared, inside = compared + 50, inside + int(found.sum())
    assert compared > 10_000 and inside > 1_000


def test_shapes_never_raise_for_what_json_can_have():
    deep: list = []
    for _ in range(900):
        deep = [deep]
    for value in (
        deep,
        {"type": deep},
        geometry(deep),
        geometry([deep]),
        several(deep),
        10**400,
        1e308,
        "",
        b"",
        {"a": deep},
    ):
        assert isinstance(shapes.read_polygon(value), Refusal)
        assert isinstance(shapes.read_circle(value), Refusal)
        assert isinstance(shapes.read_radius(value), Refusal) or value == 1
