"""Circles and polygons against PostGIS."""

import math

import numpy as np
import psycopg
import pytest
import shapely

from benchmarks.peers import PostGIS
from matching.geo import polygons, sphere
from matching.geo.shapes import Polygon, read_polygon

#: PostGIS takes (2 a + b) / 3 of WGS 84: a radius has to be as much shorter for the same angle.
THEIR_RADIUS_M = 6_371_008.771415059

pytestmark = pytest.mark.postgis


@pytest.fixture(scope="module")
def sql(postgis):
    """A connection to a server with PostGIS."""
    assert PostGIS.absence() is None
    with psycopg.connect(autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS postgis")
        yield connection


def places(random, count):
    """Places all over the earth, many near each other, some at the poles and at the antimeridian."""
    lon, lat = random.uniform(-180, 180, count), np.degrees(np.arcsin(random.uniform(-1, 1, count)))
    lon[: count // 4], lat[: count // 4] = random.normal(5, 0.01, count // 4), random.normal(52, 0.01, count // 4)
    lon[-200:-100], lon[-100:] = 180.0, -180.0
    lat[-300:-250], lat[-250:-200] = 90.0, -90.0
    return lon, lat


def test_circles_are_those_of_geography_on_the_sphere(sql):
    random = np.random.default_rng(13)
    (lon, lat), (lon_, lat_) = places(random, 40_000), places(random, 40_000)
    vectors, centres = sphere.unit_vectors(lon, lat), sphere.unit_vectors(lon_, lat_)
    apart = np.array([sphere.metres(sphere.chord_squared(*a, *b)) for a, b in zip(vectors, centres, strict=True)])
    radius = np.maximum(apart * random.choice([0.5, 0.999999, 1.0, 1.000001, 2.0], len(apart)), 1e-3)
    found = np.array(
        [sphere.within(vectors[i : i + 1], centres[i], sphere.chord_limit(radius[i]))[0] for i in range(len(radius))]
    )
    their_radius = radius * (THEIR_RADIUS_M / sphere.EARTH_RADIUS_M)
    theirs = sql.execute(
        "SELECT ST_DWithin(ST_MakePoint(a, b)::geography, ST_MakePoint(c, d)::geography, r, false) "
        "FROM unnest(%s::float8[], %s::float8[], %s::float8[], %s::float8[], %s::float8[]) "
        "WITH ORDINALITY AS pair(a, b, c, d, r, n) ORDER BY n",
        [column.tolist() for column in (lon, lat, lon_, lat_, their_radius)],
    ).fetchall()
    # near the antipode their formula and ours are both right to decimetres only
    decided = (np.abs(apart / radius - 1) > 1e-8) & (apart < 20_000_000)
    assert (found == np.array(theirs)[:, 0])[decided].all()
    # a fifth of the circles end at the place itself; hardly any other pair may be left out
    assert (~decided).sum() < 8_500 and found[decided].sum() > 10_000 and (~found)[decided].sum() > 10_000


@pytest.mark.parametrize("lattice", [True, False])
def test_polygons_are_those_that_st_covers(sql, lattice):
    random = np.random.default_rng(14)
    shapes, which, points, given = [], [], [], []
    while len(shapes) < 2_000:
        corners = int(random.integers(3, 40))
        turn, far = np.sort(random.uniform(0, 2 * math.pi, corners)), random.uniform(2, 9, corners)
        middle = np.array((random.uniform(-170, 170), random.uniform(-80, 80)))
        ring = middle + np.stack([far * np.cos(turn), far * np.sin(turn)], axis=1)
        near = middle + random.uniform(-10, 10, (8, 2))
        if lattice:
            ring, near = np.round(ring), np.round(near)
        geometry = shapely.geometry.mapping(shapely.Polygon(ring))
        shape = read_polygon(geometry)
        if isinstance(shape, Polygon):
            given.append(shapely.to_wkb(shapely.Polygon(ring)))
            shapes.append(shape.rings)
            points.append(np.concatenate([near, ring[:4]]))
            which += [len(shapes) - 1] * len(points[-1])
    lon, lat = np.ascontiguousarray(np.concatenate(points).T)
    found = polygons.covered(polygons.lay_out(shapes), np.array(which), lon, lat)
    theirs = sql.execute(
        "SELECT ST_Covers((%s::bytea[])[w + 1]::geometry, ST_MakePoint(x, y)) "
        "FROM unnest(%s::int[], %s::float8[], %s::float8[]) WITH ORDINALITY AS pair(w, x, y, n) ORDER BY n",
        [given, which, lon.tolist(), lat.tolist()],
    ).fetchall()
    assert found.tolist() == [row[0] for row in theirs]
    on_edge = ~shapely.disjoint(
        np.array([shapely.from_wkb(one).boundary for one in given])[which], shapely.points(lon, lat)
    )
    assert on_edge.sum() > 7_500 and found.sum() > 10_000 and (~found).sum() > 5_000
