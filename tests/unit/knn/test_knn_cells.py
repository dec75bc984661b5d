"""Cells of `knn`: boxes of balls on the sphere."""

import numpy as np
import pytest

from matching.geo.sphere import EARTH_RADIUS_M, unit_vectors
from matching.knn.engines import cells
from matching.storage import squares
from tests.support.knn_engines import around
from tests.support.worlds import SPHERE


def _without_pole(earth, y, radius_m):
    height = np.degrees(radius_m / EARTH_RADIUS_M) * earth.scale
    return height, height


def _without_other_side(earth, x, half_width, side):
    first, last, _, _ = squares.columns_of.py_func(earth, x, half_width, side)
    return first, last, 0, -1


@pytest.mark.parametrize(
    ("name", "broken"), [("half_sides", _without_pole), ("columns_of", _without_other_side)], ids=["pole", "side"]
)
def test_knn_on_the_sphere_with_a_broken_box_is_found(name, broken):
    """In plain Python, without kernels: boxes as in the plane, or nothing across the antimeridian."""
    lon, lat = np.random.default_rng(8).uniform(-180, 180, 400), np.random.default_rng(9).uniform(-90, 90, 400)
    radius_m = 10 ** np.random.default_rng(10).uniform(3, 7, 400)
    earth, side, missed = squares.Earth.of(SPHERE), 64, {"right": 0, "broken": 0}
    functions = {"half_sides": cells.half_sides.py_func, "columns_of": squares.columns_of.py_func}
    for which, used in (("right", functions), ("broken", functions | {name: broken})):
        for one in range(400):
            x, y = SPHERE.project(lon[one], lat[one])
            width, _ = used["half_sides"](earth, y, radius_m[one])
            first, last, other_first, other_last = used["columns_of"](earth, x, width, side)
            vector = unit_vectors(lon[one : one + 1], lat[one : one + 1])[0]
            there_lon, there_lat = around(vector, np.full(8, radius_m[one] * 0.999), np.arange(8) * np.pi / 4)
            columns = np.floor(SPHERE.project(there_lon, there_lat)[0] * side)
            inside = ((first <= columns) & (columns <= last)) | ((other_first <= columns) & (columns <= other_last))
            missed[which] += int((~inside & (columns < side)).sum())
    assert missed["right"] == 0 and missed["broken"] > 20
