"""Grids of squares over the unit square, and the table key of a term in one of their cells.

Points outside the unit square belong to the nearest cell at the border. The same monotone function decides which cells
a box overlaps and which cell a point is in, so rounding separates no pair. On the sphere a box in degrees may lie on
both sides of the antimeridian.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner
from matching.space import Space
from matching.storage.slots import home_of

#: Odd multipliers that spread cells and terms over 62 bits.
_BY_CELL, _BY_TERM = 0x5851F42D, 0x2545F491


class Earth(NamedTuple):
    """Where the unit square lies on the sphere.

    on_sphere : bool     else the other fields mean nothing
    scale : float        of a degree
    south : float        degrees
    west, east : float   where the antimeridian is, as x
    """

    on_sphere: bool
    scale: float
    south: float
    west: float
    east: float

    @classmethod
    def of(cls, space: Space) -> "Earth":
        """That of a world."""
        west, east = space.project(np.array([-180.0, 180.0]), np.array([space.south, space.south]))[0].tolist()
        return cls(space.on_sphere, (east - west) / 360.0, space.south, west, east)


@njit(cache=True, nogil=True)
def cell_of(x, y, side):
    """Cell of a point in the grid of `side` cells a side."""
    return column_of(y, side) * side + column_of(x, side)


@njit(cache=True, nogil=True)
def column_of(value, side):
    return min(max(np.int64(np.floor(value * side)), 0), side - 1)


@njit(cache=True, nogil=True)
def columns_of(earth, x, half_width, side):
    """Columns that a box on the sphere overlaps: (first, last), and those across the antimeridian: (first, last).

    The second is empty (first > last) if the box has none, and never has a column of the first.
    """
    if half_width >= 0.5 * (earth.east - earth.west) or half_width >= 1.0:
        return 0, side - 1, 0, -1
    first, last = column_of(x - half_width, side), column_of(x + half_width, side)
    other = x
    if x + half_width > earth.east:
        other = x - (earth.east - earth.west)
    elif x - half_width < earth.west:
        other = x + (earth.east - earth.west)
    # of a small world the other side of the antimeridian is no part
    if other == x or other + half_width < 0.0 or other - half_width > 1.0:
        return first, last, 0, -1
    other_first, other_last = column_of(other - half_width, side), column_of(other + half_width, side)
    if other < x:
        return first, last, other_first, min(other_last, first - 1)
    return first, last, max(other_first, last + 1), other_last


@njit_inner
def grid_for(sides, radius, widest):
    """The finest grid in which the ball is at most `widest` cells wide, -1 if there is none."""
    grid = -1
    while grid + 1 < sides.shape[0] and 2.0 * radius * sides[grid + 1] <= widest:
        grid += 1
    return grid


@njit(cache=True, nogil=True)
def key_of(side, cell, term):
    """Key of a list in the grid of `side` cells a side."""
    # a grid of s * s cells takes the numbers from s * s to twice that; the next finer one begins above
    return ((side * side + cell) << 31) | term


@njit(cache=True, nogil=True)
def home_of_key(key, places):
    """Home of a key in a table of this size."""
    # term and cell are mixed before they are folded, else neighbours would share their homes
    mixed = ((key >> 31) * _BY_CELL + (key & 0x7FFFFFFF) * _BY_TERM) & 0x3FFFFFFFFFFFFFFF
    return home_of(mixed, places)
