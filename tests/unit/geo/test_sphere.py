"""Distances on the sphere: known ones, circles that are closed, boxes and bounds that leave nothing out."""

import math

import numpy as np
import pytest

from matching import naive_shapes
from matching.geo import sphere
from matching.space import EARTH

DEGREE_M = math.pi / 180 * sphere.EARTH_RADIUS_M


def distance(a, b):
    return sphere.metres(sphere.chord_squared(*sphere.unit_vector(*a), *sphere.unit_vector(*b)))


@pytest.mark.parametrize(
    ("a", "b", "degrees"),
    [
        ((0.0, 0.0), (0.0, 1.0), 1.0),
        ((0.0, 0.0), (1.0, 0.0), 1.0),
        ((0.0, 60.0), (180.0, 60.0), 60.0),  # over the pole, not along the parallel
        ((179.5, 0.0), (-179.5, 0.0), 1.0),
        ((180.0, 33.3), (-180.0, 33.3), 0.0),
        ((17.0, 90.0), (-121.0, 90.0), 0.0),
        ((17.0, -90.0), (-121.0, -90.0), 0.0),
        ((12.0, 90.0), (50.0, 0.0), 90.0),
        ((0.0, 0.0), (180.0, 0.0), 180.0),
        ((30.0, 90.0), (77.0, -90.0), 180.0),
        ((5.0, 5.0), (5.0, 5.0), 0.0),
    ],
)
def test_metres_of_known_angles(a, b, degrees):
    assert distance(a, b) == distance(b, a) == pytest.approx(degrees * DEGREE_M, rel=1e-15, abs=1e-9)
    if degrees == 0:
        assert distance(a, b) == 0.0
    if degrees == 180:
        assert distance(a, b) == sphere.FARTHEST_M


def test_metres_east_of_sixty_north_are_half_of_those_at_the_equator():
    assert distance((10.0, 60.0), (10.001, 60.0)) == pytest.approx(distance((10.0, 0.0), (10.001, 0.0)) / 2, rel=1e-7)


def test_unit_vectors_have_the_bits_of_the_oracle():
    random = np.random.default_rng(3)
    lon, lat = random.uniform(-180, 180, 50_000), random.uniform(-90, 90, 50_000)
    lon[:9], lat[:9] = [-180, -135, -90, -45, 0, 45, 90, 135, 180], [-90, -67.5, -45, -1e-300, 0, 5e-324, 45, 67.5, 90]
    vectors = sphere.unit_vectors(lon, lat)
    assert vectors.tolist() == [
        list(naive_shapes.unit_vector(*place)) for place in zip(lon.tolist(), lat.tolist(), strict=True)
    ]
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 4e-16


def test_distances_have_the_bits_of_the_oracle_and_the_value_of_longer_numbers():
    random = np.random.default_rng(4)
    lon, lat = random.uniform(-180, 180, 20_000), np.degrees(np.arcsin(random.uniform(-1, 1, 20_000)))
    lon[:8_000], lat[:8_000] = 7 + random.normal(0, 1e-4, 8_000), 51 + random.normal(0, 1e-4, 8_000)
    vectors, centre = sphere.unit_vectors(lon, lat), np.array(sphere.unit_vector(7.0, 51.0))
    found = sphere.distances_m(vectors, centre)
    assert found.tolist() == [naive_shapes.metres(tuple(vector), tuple(centre.tolist())) for vector in vectors.tolist()]

    degree = np.longdouble(np.pi) / 180 + np.longdouble("1.2246467991473532e-16") / 180
    east, north = (lon.astype(np.longdouble) - 7) * degree, lat.astype(np.longdouble) * degree
    half = np.sin((north - 51 * degree) / 2) ** 2 + np.cos(north) * np.cos(51 * degree) * np.sin(east / 2) ** 2
    angle = 2 * np.arcsin(np.sqrt(half))
    error = np.abs(found - np.longdouble("6371008.8") * angle).astype(float)
    # chords are right to 1e-15 of the radius, and near the antipode metres are steeper than chords
    assert (error <= sphere.EARTH_RADIUS_M * 1e-15 / np.cos(np.minimum(angle, 3.14) / 2) + 1e-15 * found).all()
    # nearest first, by either
    assert (np.argsort(found[:8_000], kind="stable") == np.argsort(angle[:8_000], kind="stable")).mean() > 0.999


@pytest.mark.parametrize("radius_m", [0.0, 5e-324, 1e-160, 1e-9, 0.5, 1.0, 1000.0, 5e6, 1e7, 1.9e7, 20_015_114.0])
def test_chord_limit_is_the_last_chord_within(radius_m):
    limit = sphere.chord_limit(radius_m)
    assert sphere.metres(limit) <= radius_m < sphere.metres(math.nextafter(limit, 5))


def test_chord_limit_of_many_radii_is_the_last_chord_within():
    random = np.random.default_rng(5)
    for radius_m in [*10 ** random.uniform(-12, 7.3, 5_000), *random.uniform(1.99e7, sphere.FARTHEST_M, 2_000)]:
        limit = sphere.chord_limit(radius_m)
        assert sphere.metres(limit) <= radius_m < sphere.metres(math.nextafter(limit, 5))


@pytest.mark.parametrize("radius_m", [sphere.FARTHEST_M, 20_015_116.0, 1e300])
def test_chord_limit_of_the_whole_earth_leaves_nothing_out(radius_m):
    assert sphere.chord_limit(radius_m) == math.inf


def test_within_is_closed_to_the_last_bit():
    random = np.random.default_rng(6)
    lon, lat = random.uniform(-180, 180, 3_000), random.uniform(-90, 90, 3_000)
    vectors = sphere.unit_vectors(lon, lat)
    for i in range(0, 3_000, 2):
        place, centre = vectors[i : i + 1], vectors[i + 1]
        border = sphere.distances_m(place, centre)[0]
        for radius_m, inside in (
            (math.nextafter(border, 0), False),
            (border, True),
            (math.nextafter(border, 1e9), True),
        ):
            assert sphere.within(place, centre, sphere.chord_limit(radius_m))[0] == inside
            assert naive_shapes.in_circle(tuple(place[0].tolist()), tuple(centre.tolist()), radius_m) == inside


# --------------------------------------------------------------------------------------------------------------- boxes


def inside(box, lon, lat):
    west, south, east, north = box
    across = (lon >= west) & (lon <= east) if west <= east else (lon >= west) | (lon <= east)
    return across & (lat >= south) & (lat <= north)


def around(lon, lat, radius_m, bearings):
    """Places at a distance from a place, in all directions."""
    angle, turn = radius_m / sphere.EARTH_RADIUS_M, np.linspace(0, 2 * math.pi, bearings)
    north, up = math.radians(lat), np.cos(turn)
    there = np.arcsin(np.clip(math.sin(north) * math.cos(angle) + math.cos(north) * math.sin(angle) * up, -1, 1))
    east = np.arctan2(
        np.sin(turn) * math.sin(angle) * math.cos(north), math.cos(angle) - math.sin(north) * np.sin(there)
    )
    return (lon + np.degrees(east) + 180) % 360 - 180, np.degrees(there)


@pytest.mark.parametrize("lon", [0.0, 179.9, -180.0, 180.0, -45.3])
@pytest.mark.parametrize("lat", [0.0, 52.1, -89.9, 89.999999, 90.0, -90.0, 45.0])
@pytest.mark.parametrize("radius_m", [1e-3, 10.0, 5_000.0, 1e5, 11_119.5, 5_003_778.0, 1.2e7, 2e7])
def test_ball_box_contains_the_ball_and_fits(lon, lat, radius_m):
    box = sphere.ball_box(lon, lat, radius_m)
    centre, limit = np.array(sphere.unit_vector(lon, lat)), sphere.chord_limit(radius_m)
    for share in (1.0, 1 - 1e-12, 0.999, 0.5):
        east, north = around(lon, lat, radius_m * share, 721)
        within = sphere.within(sphere.unit_vectors(east, north), centre, limit)
        assert inside(box, east, north)[within].all()
        assert share > 0.999 or radius_m < 1 or within.all()
    # no wider than a thousandth, unless a pole makes it so
    east, north = around(lon, lat, radius_m * 1.001 + 1e-5, 721)
    if box[2] - box[0] < 360 and radius_m > 1:
        assert not inside(box, east, north).all()
        assert lat - box[1] < radius_m * 1.001 / DEGREE_M and box[3] - lat < radius_m * 1.001 / DEGREE_M


def test_ball_box_has_both_sides_of_the_antimeridian():
    west, south, east, north = sphere.ball_box(179.9, 10.0, 50_000.0)
    assert 179 < west < 180 and -180 < east < -179 and south < 10 < north
    assert inside((west, south, east, north), np.array([180.0, -180.0, -179.7, 179.0]), 10.0).tolist() == [1, 1, 1, 0]


def test_ball_box_of_a_ball_with_a_pole_has_all_longitudes():
    west, south, east, north = sphere.ball_box(20.0, 89.0, 2 * DEGREE_M)
    assert (west, east, north) == (-180.0, 180.0, 90.0) and south == pytest.approx(87.0)


# -------------------------------------------------------------------------------------------------------------- bounds

BOXES = [
    (0.0, 0.0, 1.0, 1.0),
    (-180.0, -90.0, 180.0, 90.0),
    (170.0, -10.0, -170.0, 10.0),
    (10.0, 80.0, 20.0, 90.0),
    (-180.0, -90.0, -90.0, -80.0),
    (30.0, 40.0, 30.0, 40.0),
    (-20.0, -60.0, 250.0 - 360, 60.0),
    (5.0, 51.0, 5.01, 51.01),
]


def lons_within(box, fractions):
    """Longitudes at fractions of the width of a box, which may cross the antimeridian; and its width in degrees."""
    west, _, east, _ = box
    width = (east - west) % 360 if west > east else east - west
    return (west + width * fractions + 180) % 360 - 180, width


@pytest.mark.parametrize("box", BOXES)
def test_chord_bounds_hold_and_are_reached(box):
    random = np.random.default_rng(7)
    west, south, east, north = box
    lon, width = lons_within(box, np.linspace(0, 1, 181))
    lon[-1], lat = east, np.linspace(south, north, 181)
    grid = sphere.unit_vectors(np.repeat(lon, 181), np.tile(lat, 181))
    for place in [
        *zip(random.uniform(-180, 180, 60), random.uniform(-90, 90, 60), strict=True),
        (west, north),
        (0, 90),
        (180, 0),
    ]:
        lower, upper = sphere.chord_bounds(*map(float, place), *box)
        squared = ((grid - np.array(sphere.unit_vector(*map(float, place)))) ** 2).sum(axis=1)
        assert lower <= squared.min() and squared.max() <= upper
        step = math.radians(max(width, north - south)) / 180
        assert squared.min() ** 0.5 - lower**0.5 <= step + 1e-13
        assert upper**0.5 - squared.max() ** 0.5 <= step + 1e-13


@pytest.mark.parametrize("box", BOXES)
def test_covering_ball_covers_its_box(box):
    random = np.random.default_rng(8)
    _, south, _, north = box
    lon, _ = lons_within(box, random.uniform(0, 1, 5_000))
    places = sphere.unit_vectors(lon, random.uniform(south, north, 5_000))
    lon_, lat_, radius_m = sphere.covering_ball(*box)
    assert -180 <= lon_ <= 180
    far = sphere.distances_m(places, np.array(sphere.unit_vector(lon_, lat_)))
    assert far.max() <= radius_m
    assert far.max() >= 0.9 * radius_m - 1e-6


@pytest.mark.parametrize(
    "box",
    [
        EARTH,
        (-10.0, -10.0, 10.0, 10.0),
        (-90.0, -20.0, 90.0, 50.0),
        (-60.0, -20.0, 60.0, 50.0),
        (-70.0, -40.0, 70.0, 10.0),
        (-100.0, 10.0, 80.0, 60.0),
        (-100.0, 10.0, 100.0, 60.0),
        (-80.0, 40.0, 80.0, 85.0),
        (-80.0, -85.0, 80.0, -40.0),
        (3.0, 50.0, 7.5, 53.6),
        (-125.0, 24.0, -66.0, 50.0),
        (20.0, -90.0, 20.0, 90.0),
        (20.0, 60.0, 160.0, 60.0),
    ],
)
def test_max_distance_is_that_of_the_farthest_two(box):
    west, south, east, north = box
    found = sphere.max_distance_m(*box)
    lat = np.linspace(south, north, 241)
    here = sphere.unit_vectors(np.full(241, west), lat)
    largest = 0.0
    for lon in [*np.linspace(west, east, 37), min(west + 180, east)]:
        there = sphere.unit_vectors(np.full(241, lon), lat)
        largest = max(largest, max(sphere.distances_m(there, place).max() for place in here))
    assert largest <= found
    assert found - largest <= 60 * (np.radians(max(north - south, 1e-9)) / 240) ** 2 * sphere.EARTH_RADIUS_M + 1e-5


def test_max_distance_of_the_earth_is_half_around_it():
    assert sphere.max_distance_m(*EARTH) == sphere.FARTHEST_M
