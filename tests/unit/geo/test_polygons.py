"""Points in polygons: inside, outside and on edges, whatever the numbers; bands; against the oracle and shapely."""

import math
from fractions import Fraction

import numpy as np
import pytest
import shapely

from matching import naive_shapes
from matching.geo import polygons
from tests.support.shapes import covers, flat

SQUARE = [(0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (0.0, 10.0), (0.0, 0.0)]
HOLE = [(4.0, 4.0), (6.0, 4.0), (6.0, 6.0), (4.0, 6.0), (4.0, 4.0)]
SLANTED = [(0.0, 0.0), (3.0, 1.0), (1.0, 3.0), (0.0, 0.0)]


@pytest.mark.parametrize(
    ("rings", "lon", "lat", "expected"),
    [
        ([SQUARE], 5.0, 5.0, True),
        ([SQUARE], 0.0, 5.0, True),
        ([SQUARE], 10.0, 10.0, True),
        ([SQUARE], 5.0, 10.0, True),
        ([SQUARE], 5.0, 0.0, True),
        ([SQUARE], -1.0, 0.0, False),
        ([SQUARE], -1.0, 10.0, False),
        ([SQUARE], 11.0, 0.0, False),
        ([SQUARE], 5.0, math.nextafter(10.0, 11.0), False),
        ([SQUARE], math.nextafter(0.0, -1.0), 5.0, False),
        ([SQUARE, HOLE], 5.0, 5.0, False),
        ([SQUARE, HOLE], 4.0, 5.0, True),
        ([SQUARE, HOLE], 6.0, 6.0, True),
        ([SQUARE, HOLE], 3.0, 5.0, True),
        ([SQUARE, HOLE], 3.0, 4.0, True),  # beside two corners of the hole
        ([HOLE, SLANTED], 1.0, 1.0, True),
        ([HOLE, SLANTED], 3.0, 3.0, False),
        ([SLANTED], 1.5, 0.5, True),
        ([SLANTED], 1.5, math.nextafter(0.5, 0.0), False),
        ([SLANTED], 0.5, 1.5, True),
        ([SLANTED], 2.0, 2.0, True),
        ([SLANTED], 0.0, 0.0, True),
        ([SLANTED], -1.0, 1.0, False),  # level with a corner, and with none of its edges beyond
        ([[(180.0, 0.0), (180.0, 5.0), (180.0, 0.0)]], 180.0, 3.0, True),
        ([[(180.0, 0.0), (180.0, 5.0), (180.0, 0.0)]], 179.0, 3.0, False),
    ],
)
def test_covers_known_points(rings, lon, lat, expected):
    assert covers(rings, lon, lat) is expected
    assert naive_shapes.in_polygon(rings, lon, lat) is expected


def test_side_of_edge_is_exact_whatever_the_numbers():
    limbs, sides = np.empty(polygons.LIMBS, np.int64), (polygons.side_of_edge, polygons._exact_side)
    random = np.random.default_rng(9)
    sizes = [1.0, 0.1, 0.3, 1e-300, 5e-324, 2.5e-308, 1e-160, 180.0, 540.0, 1 / 3, 1 + 2**-52]
    decided = {-1: 0, 0: 0, 1: 0}
    for _ in range(20_000):
        numbers = (random.choice(sizes, 6) * random.choice([-1, 0, 1, 2, 0.5, 3], 6)).tolist()
        if random.random() < 0.3:
            numbers[:2] = numbers[2:4]  # a corner
        elif random.random() < 0.3:
            numbers[:2] = (numbers[2] + numbers[4]) / 2, (numbers[3] + numbers[5]) / 2
        x, y, x1, y1, x2, y2 = map(Fraction, numbers)
        exact = (x2 - x1) * (y - y1) - (x - x1) * (y2 - y1)
        expected = (exact > 0) - (exact < 0)
        found = [side(*numbers, limbs) for side in sides]  # pyright: ignore[reportCallIssue]
        assert found == [expected, expected], numbers
        decided[expected] += 1
    assert min(decided.values()) > 1_000


def test_covers_point_a_digit_from_a_slanted_edge_is_decided():
    """All of these lie within the error of floating point, which alone calls some of them on the edge."""
    corners = [(0.1, 0.1), (30.3, 10.1), (7.7, 44.4), (0.1, 0.1)]
    undecided = 0
    for n in range(1, 400):
        lon = 0.1 + 30.2 * n / 400
        lat = 0.1 + 10.0 * n / 400
        for _ in range(3):
            left, right = (30.3 - 0.1) * (lat - 0.1), (lon - 0.1) * (10.1 - 0.1)
            undecided += abs(left - right) <= 4.5e-16 * (abs(left) + abs(right))
            assert covers([corners], lon, lat) is naive_shapes.in_polygon([corners], lon, lat)
            lat = math.nextafter(lat, 90.0 if n % 2 else -90.0)
    assert undecided > 500


def star(corners, spikes, depth):
    turn = np.linspace(0, 2 * math.pi, corners + 1)
    far = 10 + depth * np.sin(turn * spikes)
    ring = list(zip((far * np.cos(turn)).tolist(), (far * np.sin(turn)).tolist(), strict=True))
    return [*ring[:-1], ring[0]]


@pytest.mark.parametrize(
    ("corners", "spikes", "depth"), [(33, 4, 3.0), (500, 60, 2.0), (500, 250, 9.0), (10_000, 900, 1.0)]
)
def test_bands_leave_out_no_edge(corners, spikes, depth):
    ring = star(corners, spikes, depth)
    table = polygons.lay_out([flat([ring])])
    assert table.band_start[1] > 1 and len(table.members) <= 4 * corners
    random = np.random.default_rng(10)
    points = [*random.uniform(-12, 12, (8_000 // corners + 6, 2)).tolist(), *ring[:: corners // 5], (0.0, ring[3][1])]
    found = [covers([ring], *point) for point in points]
    assert found == [naive_shapes.in_polygon([ring], *point) for point in points]
    assert 0 < sum(found) < len(found)


def test_lay_out_of_many_polygons_keeps_them_apart():
    shapes = [[SQUARE, HOLE], [SLANTED], [star(400, 30, 2.0)], [HOLE], [[(3.0, 3.0), (3.0, 3.0)]]]
    table = polygons.lay_out([flat(rings) for rings in shapes])
    places = [(5.0, 5.0), (4.0, 4.0), (1.0, 1.0), (9.5, 0.5), (3.0, 3.0), (-8.0, 0.0)]
    which = np.repeat(np.arange(len(shapes)), len(places))
    lon, lat = np.tile(np.array(places), (len(shapes), 1)).T
    found = polygons.covered(table, which, np.ascontiguousarray(lon), np.ascontiguousarray(lat))
    assert found.tolist() == [naive_shapes.in_polygon(rings, *place) for rings in shapes for place in places]
    assert len(polygons.lay_out([]).members) == 0


def random_shape(random, lattice):
    """A random polygon, seldom with a hole, and points around it; None if it is not valid."""
    corners = int(random.integers(3, 40))
    turn = np.sort(random.uniform(0, 2 * math.pi, corners))
    far = random.uniform(2, 9, corners)
    middle = random.uniform(-170, 170), random.uniform(-80, 80)
    ring = np.stack([middle[0] + far * np.cos(turn), middle[1] + far * np.sin(turn)], axis=1)
    ring = np.round(ring) if lattice else ring
    inner = np.round(middle) + np.array([(-0.5, 0), (0, -0.5), (0.5, 0), (0, 0.5)])
    rings = [ring, inner] if random.random() < 0.3 else [ring]
    shape = shapely.Polygon(rings[0], rings[1:])
    if not shape.is_valid:
        return None
    points = middle + random.uniform(-10, 10, (8, 2))
    points = np.concatenate([np.round(points) if lattice else points, ring[:4]])
    return shape, [[*map(tuple, one.tolist()), tuple(one[0].tolist())] for one in rings], points


def test_covers_is_what_shapely_says_of_ten_thousand_shapes():
    random = np.random.default_rng(11)
    shapes = []
    while len(shapes) < 10_000:
        if (made := random_shape(random, lattice=len(shapes) % 2 == 0)) is not None:
            shapes.append(made)
    table = polygons.lay_out([flat(rings) for _, rings, _ in shapes])
    points = np.concatenate([points for _, _, points in shapes])
    which = np.repeat(np.arange(len(shapes)), [len(points) for _, _, points in shapes])
    lon, lat = np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(points[:, 1])
    found = polygons.covered(table, which, lon, lat)
    theirs = shapely.covers(np.array([shape for shape, _, _ in shapes])[which], shapely.points(points))
    assert (found == theirs).all()
    on_edge = ~shapely.disjoint(np.array([shape.boundary for shape, _, _ in shapes])[which], shapely.points(points))
    assert found[on_edge].all() and on_edge.sum() > 40_000 and (~found).sum() > 30_000
