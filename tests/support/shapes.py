"""Rings as lists of corners, laid out for the kernels."""

import numpy as np

from matching.geo import polygons
from matching.geo.polygons import Rings


def flat(rings) -> Rings:
    """Rings of (lon, lat), each with its first corner again at the end, as columns."""
    offsets = np.cumsum([0, *map(len, rings)], dtype=np.int64)
    lon, lat = (np.array([corner[axis] for ring in rings for corner in ring], np.float64) for axis in (0, 1))
    return Rings(offsets, lon, lat)


def corners_of(rings: Rings) -> list[list[tuple[float, float]]]:
    """The rings as lists of corners again."""
    corners = list(zip(rings.lon.tolist(), rings.lat.tolist(), strict=True))
    return [corners[a:b] for a, b in zip(rings.offsets[:-1], rings.offsets[1:], strict=True)]


def covers(rings, lon: float, lat: float) -> bool:
    """Whether the kernel says that a point lies in a polygon."""
    return bool(polygons.covered(polygons.lay_out([flat(rings)]), np.array([0]), np.array([lon]), np.array([lat]))[0])
