"""Posting lists of influence balls: subscriptions with their point and radius, in blocks of one pool.

The influence ball of a subscription is centred at its point, its radius is the distance of its k-th: a message outside
cannot become a result (DkM-SKS, 3.2). A posting repeats point and radius in float32, so that a scan reads them in a row
and touches the subscription only where the message may lie in its ball. On the sphere the point is a unit vector and a
radius is compared as a chord. Radii only shrink, so a posting that has not heard of it lets too much through, never too
little.

What a list belongs to is up to the engine: a term (`matching.knn.engines.terms`), or a term within a cell
(`matching.knn.engines.cells`).
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.geo.sphere import EARTH_RADIUS_M
from matching.model import Float32, Int8, Int32, Int64
from matching.storage.slots import cache_aligned

#: What float32 may be wrong by in the distance of two points of the unit square, or the chord of two unit vectors, with
#: a margin: coordinates are rounded, and so are differences, squares and sum. As a place on the earth it is 40 m, of a
#: chord 6 m.
SLACK = 1e-6
#: The same for the square of a radius, and for one that float32 rounds.
ROUNDED_UP = 1.0 + 1e-6
_DIAMETER_M = 2.0 * EARTH_RADIUS_M
#: Blocks have 1, 2, 4, ... places.
_CLASSES = 31
#: Places in `Balls.used`.
_END, _POSTINGS = 0, 1
#: Places of the column that the plane does not need: with fewer, NumPy and so Numba would take a view for contiguous.
_FLAT = 2
#: Words of 4 bytes of a posting whose columns lie side by side.
_PLANE_WORDS, SPHERE_WORDS = 4, 5
#: Words of 8 bytes of the header of a list: key; start and count.
HEADER_WORDS = 2
#: No list, no block, no place.
NOWHERE = -1


class Balls(NamedTuple):
    """Kernel view of n lists in a pool of p places.

    key : int64[n]          what the list belongs to, -1 for nothing
    start : int32[n]        place of its block, -1 without one
    count : int32[n]        postings in use; with key and start one row of 16 bytes, so that one cache line has them
    size_class : int8[n]    its block has 2**size_class places
    slot : int32[p]
    x, y, z : float32[p]    centre; z has no meaning, and `_FLAT` places, in the plane
    limit : float32[p]      square of the radius and slack; infinite without radius, below zero if nothing is nearer
    free : int64[classes]   first free block of each class, chained through `slot`
    used : int64[2]         end of the used part of the pool; postings
    """

    key: Int64
    start: Int32
    count: Int32
    size_class: Int8
    slot: Int32
    x: Float32
    y: Float32
    z: Float32
    limit: Float32
    free: Int64
    used: Int64


class BallLists:
    """Lists and their pool.

    together : bool    the columns of a posting lie side by side, for lists so short that one cache line has
                       them; else each column lies in a row, for long ones that are read many at a time
    on_sphere : bool
    """

    #: Places of the smallest pool.
    fewest = 1 << 10

    def __init__(self, together: bool, on_sphere: bool = False):
        self._together, self._on_sphere = together, on_sphere
        self._postings = NOWHERE  # how many there were when more were reserved last
        headers, pool = make_headers(0), self._pool(self.fewest)
        self.view = Balls(*headers, *pool, np.full(_CLASSES, NOWHERE, np.int64), np.zeros(2, np.int64))

    @property
    def postings(self) -> tuple[Int32, Float32]:
        """Where columns lie together, the pool as rows (int32[p, words], the same as float32): slot, x, y, limit, z.

        A loop over such rows has constant strides, and takes half the time of one over the columns.
        """
        return self._rows, self._rows.view(np.float32)

    def make_lists(self, count: int) -> None:
        """As many lists as `count`; those there are keep their places. O(count)."""
        headers, have = make_headers(count), self.view.start.shape[0]
        for new, old in zip(headers, self.view[:4], strict=True):
            new[:have] = old
        self.view = Balls(*headers, *self.view[4:])

    def reserve(self, more: int) -> None:
        """Reserve `more` postings, and half as many again, each list in a block that fits. O(pool).

        The second time in a row, `more` lists have a place for one posting more each, even if all are full.
        """
        v = self.view
        needed = int(_fitting(v)) + more
        # a full list moves to a block of twice the size: where all are, they need two more pools
        size = 3 * needed if v.used[_POSTINGS] == self._postings else needed + needed // 2
        self._postings = int(v.used[_POSTINGS])
        packed = v._replace(free=np.full(_CLASSES, NOWHERE, np.int64), used=np.array([0, v.used[_POSTINGS]], np.int64))
        slot, x, y, z, limit = self._pool(max(self.fewest, size))
        packed = packed._replace(slot=slot, x=x, y=y, z=z, limit=limit)
        _pack(v, packed)
        self.view = packed

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size, the pool trimmed to its used part."""
        end = int(self.view.used[_END])
        pool = ("slot", "x", "y", "z", "limit")
        return {name: value[:end] if name in pool else value for name, value in self.view._asdict().items()}

    def _pool(self, size: int) -> tuple[Int32, Float32, Float32, Float32, Float32]:
        size = max(size, _FLAT + 1)
        deep = size if self._on_sphere else _FLAT
        if not self._together:
            x, y, limit = (np.zeros(size, np.float32) for _ in range(3))
            return np.zeros(size, np.int32), x, y, np.zeros(deep, np.float32), limit
        words = SPHERE_WORDS if self._on_sphere else _PLANE_WORDS
        rows = cache_aligned(size * words // 2 + 1, 1).view(np.int32).reshape(-1)[: size * words].reshape(size, words)
        self._rows, columns = rows, rows.view(np.float32)
        return rows[:, 0], columns[:, 1], columns[:, 2], columns[:deep, -1], columns[:, 3]


@njit_inner
def posting_words(on_sphere):
    """Words of 4 bytes of a posting whose columns lie side by side."""
    return SPHERE_WORDS if on_sphere else _PLANE_WORDS


def make_headers(count: int) -> tuple[Int64, Int32, Int32, Int8]:
    """Headers of empty lists: what a look-up reads of one lies together."""
    # with a row or none numpy, and so Numba, would take a view for contiguous
    rows = cache_aligned(max(2, count), HEADER_WORDS)
    halves = rows.view(np.int32)
    rows[:, 0], halves[:, 2] = NOWHERE, NOWHERE
    return rows[:, 0], halves[:, 2], halves[:, 3], np.zeros(rows.shape[0], np.int8)


@njit(cache=True, nogil=True)
def is_on_sphere(v):
    """Whether postings have unit vectors."""
    return v.z.shape[0] > _FLAT


@njit(cache=True, nogil=True)
def limit_of(threshold, on_sphere):
    """`Balls.limit` of a subscription with this threshold (minus its radius). Never tighter than the exact test."""
    if threshold == -np.inf:
        return np.float32(np.inf)
    # nothing can be strictly nearer than no distance at all
    if threshold >= 0.0:
        return np.float32(-1.0)
    radius = SLACK - threshold
    if on_sphere:
        half_angle = min(-threshold / _DIAMETER_M, 0.5 * math.pi)
        radius = SLACK + 2.0 * math.sin(half_angle)
    return np.float32(radius * radius * ROUNDED_UP)


@njit_no_refcount
def push(v, at, slot, x, y, z, limit):
    """Append a posting to list `at`; False if the pool is full (nothing has changed)."""
    count = v.count[at]
    size_class = np.int64(v.size_class[at])  # 1 << int8 would overflow where kernels run uncompiled
    if v.start[at] < 0 or count == 1 << size_class:
        size_class = 0 if v.start[at] < 0 else size_class + 1
        block = v.free[size_class]
        if block >= 0:
            v.free[size_class] = v.slot[block]
        else:
            block = v.used[_END]
            if block + (1 << size_class) > v.slot.shape[0]:
                return False
            v.used[_END] = block + (1 << size_class)
        for i in range(count):
            _copy(v, v.start[at] + i, v, block + i)
        _free(v, at)
        v.start[at], v.size_class[at] = block, size_class
    place = v.start[at] + count
    v.slot[place], v.x[place], v.y[place], v.limit[place] = slot, x, y, limit
    if is_on_sphere(v):
        v.z[place] = z
    v.count[at] = count + 1
    v.used[_POSTINGS] += 1
    return True


@njit_no_refcount
def drop(v, at, place):
    """Take the posting at `place` out of list `at`; the last one fills the gap."""
    last = v.start[at] + v.count[at] - 1
    # no tombstone: every scan would have to test for it
    if place != last:
        _copy(v, last, v, place)
    v.count[at] -= 1
    v.used[_POSTINGS] -= 1
    if v.count[at] == 0:
        _free(v, at)
        v.start[at] = NOWHERE


@njit_no_refcount
def _free(v, at):
    if v.start[at] >= 0:
        # a free block keeps the next one in its own first place, so the chain costs no memory
        v.slot[v.start[at]] = v.free[v.size_class[at]]
        v.free[v.size_class[at]] = v.start[at]


@njit(cache=True, nogil=True)
def _copy(v, source, to, target):
    to.slot[target] = v.slot[source]
    to.x[target], to.y[target], to.limit[target] = v.x[source], v.y[source], v.limit[source]
    if is_on_sphere(v):
        to.z[target] = v.z[source]


@njit_inner
def _class_for(count):
    size_class = 0
    while 1 << size_class < count:
        size_class += 1
    return size_class


@njit(cache=True, nogil=True)
def _fitting(v):
    """Places that all lists need, and the largest of them once more, which it will when it grows."""
    total = largest = 0
    for at in range(v.start.shape[0]):
        if v.count[at] > 0:
            size = 1 << _class_for(v.count[at])
            total += size
            largest = max(largest, size)
    return total + 4 * largest


@njit(cache=True, nogil=True)
def _pack(v, to):
    """Copy all lists into the pool of `to`, which has the same headers."""
    end = 0
    for at in range(v.start.shape[0]):
        if v.count[at] == 0:
            continue
        size_class = _class_for(v.count[at])
        for i in range(v.count[at]):
            _copy(v, v.start[at] + i, to, end + i)
        to.start[at], to.size_class[at] = end, size_class
        end += 1 << size_class
    to.used[_END] = end
