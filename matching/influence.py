"""Influence of subscriptions: keys (grid cell, term) of the messages that may still enter their results.

A subscription with k results has an influence ball, outside of which no message enters its result; one with fewer has
the whole world. It stands under the keys of its terms in the cells of one grid that the ball's box overlaps: the finest
in which the box is at most `_WIDEST` cells wide, the coarsest of which is the whole world. A query task counts its
subscriptions by key (`InfluenceKeys`) and reports the keys that have come and gone; routers send a message to a task
that has the key of one of its terms in its cell (`distribution.influence`).

Balls of cumulative kinds only shrink, so keys that are known late send too much and never too little. After a restore
distribution tasks compute the keys of all query tasks themselves, and must get the same ones on any machine: boxes are
made by arithmetic that is rounded alike everywhere, without sines.
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.geo.sphere import EARTH_RADIUS_M
from matching.model import Float64, Int32, Int64
from matching.space import Space
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import grown
from matching.storage.squares import Earth, column_of, columns_of, grid_for, home_of_key, key_of

#: Cells a side of the grids. The first is the whole world. A finer one than the last takes twice the keys, and spares
#: a tenth of what is sent.
SIDES = np.array([1, 16, 64, 256], np.int64)
_WIDEST = 2.0
#: Of a ball that is not the whole world: as many columns and rows, and as many columns across the antimeridian.
MOST_SQUARES = 2 * (int(_WIDEST) + 2) ** 2
#: A ball is followed once its radius has shrunk to this part: less, and keys change with nearly every result.
_SHRUNK = 0.8
#: More than the error of a computed distance: in the unit square, and in radians.
_SLACK, _ANGLE_SLACK = 1e-9, 1e-9
#: The arc sine of u is less than u times the second, for u up to the first; beyond the last a box has all longitudes.
_ARCS = ((0.5, 1.0473), (0.9, 1.2443))
_DEGREES = 180.0 / math.pi
#: Longer runs of linear probing cost more than the 16 bytes an empty place takes.
FULLEST = 0.6
_FEWEST = 64
_NO_KEY, _NOWHERE = -1, -1
#: Bits of a value of `InfluenceKeys`, below its count: whether the key was reported, whether it is in `changed`.
_REPORTED, _NOTED, _ONE = 1, 2, 4


class InfluencePatch(NamedTuple):
    """Keys of a query task that have come and gone since its last patch (int64[n] each)."""

    came: Int64
    gone: Int64

    @property
    def size(self) -> int:
        """How many keys."""
        return self.came.shape[0] + self.gone.shape[0]


class Radii(NamedTuple):
    """Beyond what distance no message matters to a subscription: number int64[n], radius float64[n], infinite if all
    messages do."""

    number: Int64
    radius: Float64


NO_INFLUENCE = Radii(np.zeros(0, np.int64), np.zeros(0))


class KeyRows:
    """An open-addressing table of rows by key; one whose values are all zero goes when the table grows.

    Attributes
    ----------
    rows : int64[places, 1 + values]    the key, or -1, then its values
    entered : int64[1]                  rows with a key
    """

    def __init__(self, values: int):
        self.rows = _no_rows(_FEWEST, 1 + values)
        self.entered = np.zeros(1, np.int64)

    def reserve(self, more: int) -> None:
        """Make room for this many new keys. O(table), amortised."""
        if int(self.entered[0]) + more <= FULLEST * self.rows.shape[0]:
            return
        live = int(np.count_nonzero(self.rows[:, 1:].any(axis=1)))
        rows = _no_rows(_FEWEST + int(1.5 / FULLEST * (live + more)), self.rows.shape[1])
        self.entered[0] = _enter_all(self.rows, rows)
        self.rows = rows


class InfluenceKeys:
    """The keys of the subscriptions of a query task, by how many stand under each.

    Parameters
    ----------
    space : Space
    """

    def __init__(self, space: Space):
        self._earth = Earth.of(space)
        self._table = KeyRows(1)
        self._changed, self._changes = np.zeros(_FEWEST, np.int64), np.zeros(1, np.int64)
        self._radius = np.zeros(0)  # by slot: of the ball whose keys it stands under; NaN: under none

    @property
    def changes(self) -> int:
        """Keys that may have come or gone since the last patch."""
        return int(self._changes[0])

    def follow(self, subscriptions: PointSubscriptions, slots: Int32) -> None:
        """Move subscriptions, new ones too, to the keys of their present balls. O(n), amortised."""
        have = self._radius.shape[0]
        if have < subscriptions.capacity:
            self._radius = grown(self._radius, subscriptions.capacity)
            self._radius[have:] = np.nan
        self._move(subscriptions, slots, -subscriptions.columns.threshold[slots])

    def withdraw(self, subscriptions: PointSubscriptions, slots: Int32) -> None:
        """Take subscriptions out, before their slots are free. O(n)."""
        self._move(subscriptions, slots, np.full(slots.shape[0], np.nan))

    def _move(self, subscriptions: PointSubscriptions, slots: Int32, radii: Float64) -> None:
        c, table, done = subscriptions.columns, self._table, 0
        while done < slots.shape[0]:
            # of every key two changes may be noted: under the old ball and under the new one
            most = 2 * int(c.term_count[slots[done]]) * MOST_SQUARES
            table.reserve(most)
            self._changed = grown(self._changed, int(self._changes[0]) + most)
            done = _follow(
                c, self._earth, subscriptions.unit_square, SIDES, table.rows, table.entered, self._changed,
                self._changes, self._radius, slots, radii, done,
            )  # fmt: skip

    def patch(self) -> InfluencePatch:
        """What has come and gone since the last patch. O(changes)."""
        keys, count = self._changed, int(self._changes[0])
        came, gone = np.empty(count, np.int64), np.empty(count, np.int64)
        coming, going = _report(self._table.rows, keys[:count], came, gone)
        self._changes[0] = 0
        return InfluencePatch(came[:coming].copy(), gone[:going].copy())

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory."""
        return {"keys": self._table.rows, "changed": self._changed, "radius": self._radius}


def _no_rows(places: int, columns: int) -> Int64:
    rows = np.zeros((places, columns), np.int64)
    rows[:, 0] = _NO_KEY
    return rows


@njit_inner_no_refcount
def find_row(rows, key, at):
    """Place of a key, probed from its home `at` on; -1 if it is not there."""
    # the table is never full, so an empty place ends every search
    while rows[at, 0] != key:
        if rows[at, 0] < 0:
            return _NOWHERE
        at = at + 1 if at + 1 < rows.shape[0] else 0
    return at


@njit_inner_no_refcount
def enter_row(rows, entered, key):
    """Place of a key, which is entered if it is not there."""
    at = home_of_key(key, rows.shape[0])
    while rows[at, 0] != key:
        if rows[at, 0] < 0:
            rows[at, 0] = key
            entered[0] += 1
            break
        at = at + 1 if at + 1 < rows.shape[0] else 0
    return at


@njit(cache=True, nogil=True)
def _enter_all(old, rows):
    """Copy all rows that have a value into an empty table; returns how many."""
    entered = np.zeros(1, np.int64)
    for at in range(old.shape[0]):
        valued = False
        for column in range(1, old.shape[1]):
            valued |= old[at, column] != 0
        if valued:
            new = enter_row(rows, entered, old[at, 0])
            for column in range(1, old.shape[1]):
                rows[new, column] = old[at, column]
    return entered[0]


@njit(cache=True, nogil=True)
def box_of(earth, radius, cosine):
    """Half the width and height of the box of a ball, in the unit square; `cosine` is that of its latitude."""
    if not earth.on_sphere:
        return radius + _SLACK, radius + _SLACK
    angle = radius / EARTH_RADIUS_M + _ANGLE_SLACK
    # the sine of half the width is that of the angle over the cosine, and the angle is more than its sine
    u, width = angle / max(cosine, 1e-300), np.inf
    for largest, factor in _ARCS:
        if u <= largest:
            width = factor * u + _ANGLE_SLACK
            break
    return width * _DEGREES * earth.scale, angle * _DEGREES * earth.scale


@njit_inner
def squares_of(earth, sides, x, y, radius, cosine):
    """The grid of a ball, and its squares there: (grid, first row, last row, columns as of `columns_of`)."""
    if not radius < np.inf:
        return 0, 0, 0, 0, 0, 0, -1
    width, height = box_of(earth, radius, cosine)
    grid = grid_for(sides, max(width, height), _WIDEST)
    if grid <= 0:
        return 0, 0, 0, 0, 0, 0, -1
    side = sides[grid]
    south, north = column_of(y - height, side), column_of(y + height, side)
    if not earth.on_sphere:
        return grid, south, north, column_of(x - width, side), column_of(x + width, side), 0, -1
    first, last, other_first, other_last = columns_of(earth, x, width, side)
    return grid, south, north, first, last, other_first, other_last


@njit_inner
def cosine_of(earth, x, y):
    """Cosine of the latitude of a unit vector, from its first two parts; in the plane 1."""
    return math.sqrt(x * x + y * y) if earth.on_sphere else 1.0


@njit_no_refcount
def _count(rows, entered, changed, changes, side, squares, terms, step):
    """Count a subscription in, or out, under the keys of its squares and terms."""
    _, south, north, first, last, other_first, other_last = squares
    for row in range(south, north + 1):
        for begin, end in ((first, last), (other_first, other_last)):
            for column in range(begin, end + 1):
                for term in terms:
                    key = key_of(side, row * side + column, np.int64(term))
                    at = enter_row(rows, entered, key)
                    if not rows[at, 1] & _NOTED:
                        rows[at, 1] |= _NOTED
                        changed[changes[0]] = key
                        changes[0] += 1
                    rows[at, 1] += step


@njit(cache=True, nogil=True)
def _follow(c, earth, places, sides, rows, entered, changed, changes, reach, slots, radii, first):
    """Move slots from `first` on to the keys of balls of `radii` (NaN: to none); returns how many are done.

    Stops where table or list of changes might be full: the caller makes room for the next.
    """
    for i in range(first, slots.shape[0]):
        slot, radius = slots[i], radii[i]
        before = reach[slot]
        if before == radius or radius > _SHRUNK * before:
            continue
        x, y, cosine = places[0][slot], places[1][slot], cosine_of(earth, c.x[slot], c.y[slot])
        start = c.term_start[slot]
        terms = c.terms[start : start + c.term_count[slot]]
        old = squares_of(earth, sides, x, y, before, cosine)
        new = squares_of(earth, sides, x, y, radius, cosine)
        # a ball of no radius has the nearest messages possible, and stands nowhere
        stood, stands = before > 0.0, radius > 0.0
        if stood and stands and old == new:
            reach[slot] = radius
            continue
        most = terms.shape[0] * (count_squares(old) + count_squares(new))
        if i > first and (entered[0] + most > FULLEST * rows.shape[0] or changes[0] + most > changed.shape[0]):
            return i
        if stood:
            _count(rows, entered, changed, changes, sides[old[0]], old, terms, -_ONE)
        if stands:
            _count(rows, entered, changed, changes, sides[new[0]], new, terms, _ONE)
        reach[slot] = radius
    return slots.shape[0]


@njit_inner
def count_squares(squares):
    """How many squares there are, as `squares_of` returns them."""
    _, south, north, first, last, other_first, other_last = squares
    return (north - south + 1) * (last - first + 1 + max(0, other_last - other_first + 1))


@njit(cache=True, nogil=True)
def _report(rows, keys, came, gone):
    """Note which of the keys have come and gone, and that this is reported; returns how many of both."""
    coming = going = 0
    for key in keys:
        at = find_row(rows, key, home_of_key(key, rows.shape[0]))
        value = rows[at, 1]
        present, reported = value >= _ONE, value & _REPORTED != 0
        if present and not reported:
            came[coming] = key
            coming += 1
        elif reported and not present:
            gone[going] = key
            going += 1
        rows[at, 1] = value - (value & (_ONE - 1)) + (_REPORTED if present else 0)
    return coming, going
