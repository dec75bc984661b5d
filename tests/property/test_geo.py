"""Circles and polygons: kernels and the oracle agree on whatever numbers there are, on edges above all."""

import math
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import naive_shapes
from matching.geo import polygons, sphere
from tests.support.examples import examples
from tests.support.shapes import covers, flat

#: Numbers that meet each other again and again, numbers with all their digits, and numbers next to nothing.
_FEW = (-2, -1, 0, 1, 2, 3, 0.1, 0.2, 0.30000000000000004, 1 / 3, 5e-324, -1e-300, 2.5e-308)
LON = st.one_of(st.sampled_from((*_FEW, -180, 180, 179.9, -179.9, 90)), st.floats(-180, 180)).map(float)
LAT = st.one_of(st.sampled_from((*_FEW, -90, 90, 89.9, 45)), st.floats(-90, 90)).map(float)
PLACE = st.tuples(LON, LAT)
RING = st.lists(PLACE, min_size=3, max_size=12).map(lambda corners: [*corners, corners[0]])
ZIGZAG = st.builds(
    lambda lon, lat, corners: [(lon[i % len(lon)], lat[i * 7 % len(lat)]) for i in range(corners)] + [(lon[0], lat[0])],
    st.lists(LON, min_size=3, max_size=7, unique=True),
    st.lists(LAT, min_size=5, max_size=60, unique=True),
    st.integers(33, 90),
)
RINGS = st.lists(st.one_of(RING, RING, ZIGZAG), min_size=1, max_size=3)
POINTS = st.lists(PLACE, min_size=5, max_size=5)
SHARES = st.lists(st.sampled_from((0.0, 1.0, 0.5, 0.25, 1 / 3, 0.1, 1.5, -0.5)), min_size=6, max_size=6)
RADIUS = st.one_of(
    st.sampled_from((5e-324, 1e-6, 1.0, 5000.0, 111_194.9, 10_007_557.0, 20_015_114.0, 20_015_115.0)),
    st.floats(1e-9, 20_015_115.0),
)


def points_about(rings, shares):
    """Corners of rings, points on lines through edges, and those a digit beside them."""
    edges = [edge for ring in rings for edge in zip(ring, ring[1:], strict=False)]
    for n, share in enumerate(shares):
        (x1, y1), (x2, y2) = edges[n * 5 % len(edges)]
        lon, lat = x1 + share * (x2 - x1), y1 + share * (y2 - y1)
        yield lon, lat
        yield math.nextafter(lon, 999), lat
        yield lon, math.nextafter(lat, -999)
        yield x1, y2
        yield lon, y1


def test_polygons_kernel_and_oracle_agree_on_every_point():
    seen = Counter()

    @settings(max_examples=examples(120, 300), deadline=None)
    @given(RINGS, POINTS, SHARES)
    def agree(rings, points, shares):
        table = polygons.lay_out([flat(rings)])
        for lon, lat in [*points, *points_about(rings, shares)]:
            expected = naive_shapes.in_polygon(rings, lon, lat)
            found = polygons.covered(table, np.array([0]), np.array([lon]), np.array([lat]))
            assert bool(found[0]) is expected, (rings, lon, lat)
            seen[expected] += 1
            seen["bands"] += len(table.band_start) > 0 and int(table.band_start[1]) > 1

    agree()
    assert seen[True] > 800 and seen[False] > 800 and seen["bands"] > 200, seen


@settings(max_examples=examples(100, 300), deadline=None)
@given(RINGS, PLACE, st.integers(0, 100), st.randoms(use_true_random=False))
def test_polygons_answer_is_that_of_any_order_of_rings_and_corners(rings, place, turn, random):
    expected = covers(rings, *place)
    turned = []
    for ring in rings:
        first = turn % (len(ring) - 1)
        corners = [*ring[first:-1], *ring[: first + 1]]
        turned.append(corners[::-1] if turn % 2 else corners)
    random.shuffle(turned)
    assert covers(turned, *place) is expected


def test_circles_kernel_and_oracle_agree_at_every_radius():
    seen = Counter()

    @settings(max_examples=500, deadline=None)
    @given(PLACE, st.lists(PLACE, min_size=4, max_size=4), RADIUS)
    def agree(centre, places, radius_m):
        middle = naive_shapes.unit_vector(*centre)
        assert sphere.unit_vector(*centre) == middle
        vectors = sphere.unit_vectors(*np.array(places).T)
        # the radius that is drawn, and those that end at a place and a digit before it
        borders = [naive_shapes.metres(naive_shapes.unit_vector(*place), middle) for place in places]
        for radius in [radius_m, *borders, *(math.nextafter(border, 0) for border in borders)]:
            found = sphere.within(vectors, np.array(middle), sphere.chord_limit(radius)).tolist()
            assert found == [naive_shapes.in_circle(tuple(vector), middle, radius) for vector in vectors.tolist()]
            seen.update(found)

    agree()
    assert seen[True] > 5_000 and seen[False] > 5_000, seen


@settings(max_examples=examples(150, 500), deadline=None)
@given(PLACE, st.lists(PLACE, min_size=8, max_size=8), RADIUS)
def test_box_of_a_circle_contains_what_lies_within(centre, places, radius_m):
    box = sphere.ball_box(centre[0], centre[1], radius_m)
    vectors = sphere.unit_vectors(*np.array(places).T)
    middle = np.array(sphere.unit_vector(*centre))
    reached = sphere.distances_m(vectors, middle).tolist()
    for (lon, lat), metres in zip(places, reached, strict=True):
        boxes = [sphere.ball_box(centre[0], centre[1], metres), *([box] if metres <= radius_m else [])]
        for west, south, east, north in boxes:
            across = west <= lon <= east if west <= east else lon >= west or lon <= east
            assert across and south <= lat <= north


@settings(max_examples=examples(150, 500), deadline=None)
@given(PLACE, st.tuples(PLACE, PLACE), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_bounds_of_a_box_hold_for_every_place_in_it(place, corners, across, up, wrap):
    (a, b), (c, d) = corners
    (west, east), (south, north) = sorted((a, c), reverse=wrap), sorted((b, d))
    width = east - west if west <= east else east - west + 360
    lon = west + across * width
    lon, lat = (lon - 360 if lon > 180 else min(lon, 180.0)), min(max(south + up * (north - south), south), north)
    squared = sphere.chord_squared(*sphere.unit_vector(*place), *sphere.unit_vector(lon, lat))
    lower, upper = sphere.chord_bounds(place[0], place[1], west, south, east, north)
    assert lower <= squared <= upper
    centre_lon, centre_lat, radius_m = sphere.covering_ball(west, south, east, north)
    vector, centre = sphere.unit_vector(lon, lat), sphere.unit_vector(centre_lon, centre_lat)
    assert sphere.metres(sphere.chord_squared(*vector, *centre)) <= radius_m
    apart = sphere.metres(sphere.chord_squared(*sphere.unit_vector(*place), *centre))
    slack = 1e-6 if max(apart, radius_m, sphere.metres(squared)) < 19_000_000 else 1.0
    assert apart - radius_m - slack <= sphere.metres(squared) <= apart + radius_m + slack
