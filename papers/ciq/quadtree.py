"""Cells of a quadtree over the unit square, by number only: no nodes, no memory.

The root is cell 0, the quarters of cell c are 4 c + 1 to 4 c + 4. Cells are half-open, closed to the west and south, so
that the quarters of a cell partition it: a point on a border has one cell on each level (spec 6). What lies on the
outer border of the square, or beyond it, belongs to the cell next to it.
"""

import math

from compiling.njit import njit, njit_inner

#: Edges are powers of two, so that cells are exact.
_WHOLE = 1.0


def cells_down_to(depth: int) -> int:
    """How many cells there are on the levels from the root, which is level 0, to this one."""
    return (4 ** (depth + 1) - 1) // 3


@njit_inner
def quarter_of(x, y, middle_x, middle_y):
    """Which quarter of a cell a point lies in, 0 to 3, by the middle of the cell."""
    # a point on the middle belongs to one side only: else a message would meet a subscription in two cells
    return (1 if x >= middle_x else 0) + (2 if y >= middle_y else 0)


@njit(cache=True, nogil=True)
def path_to(x, y, depth, out):
    """Write the cells of all levels that contain a point, the root first, into out (int64[depth + 1])."""
    west, south, side, cell = 0.0, 0.0, _WHOLE, 0
    out[0] = 0
    for level in range(1, depth + 1):
        side /= 2.0
        quarter = quarter_of(x, y, west + side, south + side)
        west += side * (quarter & 1)
        south += side * (quarter >> 1)
        cell = 4 * cell + 1 + quarter
        out[level] = cell


@njit(cache=True, nogil=True)
def distance_to_box(x, y, west, south, side):
    """Distance of a point from a closed square; 0 inside.

    It bounds the distance from all points of the cell, borders included, and from those beyond the outer border of the
    unit square that belong to the cell, since that square is convex and contains the point.
    """
    dx = max(west - x, 0.0, x - (west + side))
    dy = max(south - y, 0.0, y - (south + side))
    return math.sqrt(dx * dx + dy * dy)
