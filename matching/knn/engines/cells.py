"""Posting lists of influence balls by cell and term: an inverted file in each cell of grids of several resolutions.

A subscription is in the lists of its terms in the cells that its ball overlaps, all of one grid: the finest whose cells
are not narrower than the ball, so that it overlaps four of them at most. With one grid, as in the paper, either balls
overlap thousands of cells or cells have thousands of balls: radii reach from a street to a continent, by the frequency
of the keywords. Lists are found by an open-addressing table over (grid, cell, term).

A cell is a square of the unit square; points outside belong to the nearest cell at the border. The same monotone
function decides which cells a ball overlaps and which cell a message is in, so rounding separates no pair. A ball on
the sphere is taken for its box in degrees, which may lie on both sides of the antimeridian.
"""

import math

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.geo.sphere import EARTH_RADIUS_M, degrees_east
from matching.knn.engines.balls import NOWHERE, ROUNDED_UP, SLACK, BallLists, Balls, drop, limit_of, make_headers, push
from matching.model import Int64
from matching.storage.slots import resized
from matching.storage.squares import column_of, columns_of, home_of_key, key_of

#: Longer runs of linear probing cost more than the 24 bytes an empty place takes.
_FULLEST = 0.7
#: Size of the first table.
_FEWEST = 4
#: Radians, 6 mm: more than all rounding of a ball's box, and of a point in the unit square.
_ANGLE_SLACK = 1e-9


class CellLists(BallLists):
    """Lists by (cell, term), and how many postings each term has in each grid.

    sides : int64[grids]         cells a side of each grid, ascending
    counts : int32[terms, grids]   postings of a term in a grid: a term without any is not looked up
    """

    def __init__(self, sides: Int64, on_sphere: bool = False):
        super().__init__(True, on_sphere)
        self.sides = sides
        self.counts = np.zeros((0, sides.shape[0]), np.int32)
        #: Entries of the table, those of empty lists included.
        self.entered = np.zeros(1, np.int64)
        # without a kernel, which a run of other kinds would prepare as well
        self.view = Balls(*make_headers(_FEWEST), *self.view[4:])

    def ensure_terms(self, terms: int) -> None:
        """Extend the counts to this number of terms: exactly, since kernels take their length for that of the lists."""
        if terms > self.counts.shape[0]:
            if not self.counts.shape[0]:  # so that a warm-up prepares what a table grows by
                self._rebuild(0)
            self.counts = resized(self.counts, terms)

    def grow(self, needed: int) -> None:
        """Reserve `needed` more postings and lists, and half as many again; drops empty lists.

        O(table) or O(pool), amortised.
        """
        v = self.view
        # as of `is_crowded`
        if self.entered[0] >= _FULLEST * v.key.shape[0]:
            self._rebuild(int(np.count_nonzero(v.count)) + needed)
        else:
            self.reserve(needed)

    def _rebuild(self, lists: int) -> None:
        """Move the lists that are not empty to a table for this many and half as many again."""
        v = self.view
        self.view = Balls(*make_headers(_FEWEST + int(1.5 / _FULLEST * lists)), *v[4:])
        self.entered[0] = _enter_all(v, self.view)

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | {"counts": self.counts, "sides": self.sides}


@njit_inner
def overlaps(x, y, reach, column, row, side):
    """Whether a ball meets the closed cell. `reach` includes the slack; cells at the border extend outwards."""
    dx = max(0.0, column / side - x) if column > 0 else 0.0
    dy = max(0.0, row / side - y) if row > 0 else 0.0
    if column < side - 1:
        dx = max(dx, x - (column + 1) / side)
    if row < side - 1:
        dy = max(dy, y - (row + 1) / side)
    return dx * dx + dy * dy <= reach * reach


@njit(cache=True, nogil=True)
def half_sides(earth, y, radius_m):
    """Half the width and height, in the unit square, of the box of a ball on the sphere; slack included.

    The width is infinite if the ball has a pole.
    """
    angle = radius_m / EARTH_RADIUS_M + _ANGLE_SLACK
    width = degrees_east(earth.south + y / earth.scale, angle)
    return width * earth.scale, half_height(earth, radius_m)


@njit(cache=True, nogil=True)
def half_height(earth, radius_m):
    """As of `half_sides`, without a sine."""
    return (radius_m / EARTH_RADIUS_M + _ANGLE_SLACK) * (180.0 / math.pi) * earth.scale


@njit(cache=True, nogil=True)
def _post(c, v, counts, entered, slot, grid, side, cell, limit):
    """Post a subscription in one cell by the terms in whose lists it is not; False if table or pool is full."""
    x, y, z = np.float32(c.x[slot]), np.float32(c.y[slot]), np.float32(c.z[slot])
    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
        # in the list of its term
        if c.position[at] >= 0:
            continue
        key = key_of(side, cell, c.terms[at])
        place = find_list(v.key, key, home_of_key(key, v.key.shape[0]))
        if place < 0:
            if is_crowded(v, entered):
                return False
            place = _enter(v, key)
            entered[0] += 1
        if not push(v, place, slot, x, y, z, limit):
            return False
        counts[c.terms[at], grid] += 1
    return True


@njit(cache=True, nogil=True)
def _unpost(c, v, counts, slot, grid, side, cell):
    """Remove a subscription from one cell, unless it has left it before."""
    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
        if c.position[at] >= 0:
            continue
        key = key_of(side, cell, c.terms[at])
        place = find_list(v.key, key, home_of_key(key, v.key.shape[0]))
        if place < 0:
            continue
        # from the end: subscriptions that are all alike leave in the reverse order of their coming, each at once
        for p in range(v.start[place] + v.count[place] - 1, v.start[place] - 1, -1):
            if v.slot[p] == slot:
                drop(v, place, p)
                counts[c.terms[at], grid] -= 1
                break


@njit(cache=True, nogil=True)
def find_list(keys, key, at):
    """Place of a list in the table, probed from its home `at` on; -1 if it is not there."""
    # the table is never full, so an empty place ends every search
    while keys[at] != key:
        if keys[at] < 0:
            return NOWHERE
        at = at + 1 if at + 1 < keys.shape[0] else 0
    return at


@njit(cache=True, nogil=True)
def is_crowded(v, entered):
    """Whether the table must grow before it takes another entry."""
    return entered[0] >= _FULLEST * v.key.shape[0]


@njit(cache=True, nogil=True)
def _enter(v, key):
    at = home_of_key(key, v.key.shape[0])
    while v.key[at] >= 0:
        at = at + 1 if at + 1 < v.key.shape[0] else 0
    v.key[at] = key
    return at


@njit(cache=True, nogil=True)
def _enter_all(old, v):
    """Insert every list that is not empty into an empty table over the same pool; returns how many."""
    entered = 0
    for at in range(old.key.shape[0]):
        if old.count[at] > 0:
            new = _enter(v, old.key[at])
            v.start[new], v.count[new], v.size_class[new] = old.start[at], old.count[at], old.size_class[at]
            entered += 1
    return entered


@njit(cache=True, nogil=True)
def _covered(earth, x, y, reach, side):
    """The box of cells around a ball: (first row, last row, first column, last column, and two as of `columns_of`)."""
    half_width, half_height = (reach, reach) if not earth.on_sphere else half_sides(earth, y, reach)
    rows = column_of(y - half_height, side), column_of(y + half_height, side)
    if not earth.on_sphere:
        return *rows, column_of(x - half_width, side), column_of(x + half_width, side), 0, -1
    return *rows, *columns_of(earth, x, half_width, side)


@njit(cache=True, nogil=True)
def reach_of(earth, radius):
    """Reach in which a ball of a radius is posted and found again: with its slack, rounded up to float32."""
    return np.float32((radius if earth.on_sphere else radius + SLACK) * ROUNDED_UP)


@njit_no_refcount
def post_cells(c, earth, places, v, sides, counts, entered, slot, grid, reach):
    """Post a subscription in all cells of a grid that its ball overlaps; False if table or pool is full.

    places : (x, y), each float64[slots], in the unit square;  reach : as of `reach_of`
    """
    x, y, side = places[0][slot], places[1][slot], sides[grid]
    limit = limit_of(c.threshold[slot], earth.on_sphere)
    south, north, first, last, other_first, other_last = _covered(earth, x, y, reach, side)
    for row in range(south, north + 1):
        for begin, end in ((first, last), (other_first, other_last)):
            for column in range(begin, end + 1):
                # of a box on the sphere all cells count
                if earth.on_sphere or overlaps(x, y, reach, column, row, side):
                    if not _post(c, v, counts, entered, slot, grid, side, row * side + column, limit):
                        return False
    return True


@njit_no_refcount
def unpost_cells(c, earth, places, v, sides, counts, slot, grid, reach):
    """Remove a subscription from all cells it was posted in with this reach; some it may have left before."""
    x, y, side = places[0][slot], places[1][slot], sides[grid]
    south, north, first, last, other_first, other_last = _covered(earth, x, y, reach, side)
    for row in range(south, north + 1):
        for begin, end in ((first, last), (other_first, other_last)):
            for column in range(begin, end + 1):
                if earth.on_sphere or overlaps(x, y, reach, column, row, side):
                    _unpost(c, v, counts, slot, grid, side, row * side + column)


@njit(cache=True, nogil=True)
def has_left(earth, x, y, threshold, inside_x, inside_y, side):
    """Whether the ball around (x, y) no longer overlaps the cell of the second point."""
    column, row = column_of(inside_x, side), column_of(inside_y, side)
    if not earth.on_sphere:
        return not overlaps(x, y, SLACK - threshold, column, row, side)
    south, north, first, last, other_first, other_last = _covered(earth, x, y, -threshold, side)
    return not (south <= row <= north and (first <= column <= last or other_first <= column <= other_last))
