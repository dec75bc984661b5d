"""Posting lists cut into blocks of neighbours in place and reach: what engine `keyword_blocks` is made of.

For each keyword the subscriptions that have it. Of every one its list knows how far a message may be away and still
matter: its *reach*. For a message whose text is worth at most t, and whose thresholds have faded by a factor f,

    reach = far + text_slope * t - level * f

in the unit square, with `far` MaxDist: solve score >= threshold for the distance. On the sphere it is an angle, the
distance in radians, and `far` is of the posting: the subscription's own radius, if it names one. Long lists are kept in
blocks of `BLOCK` postings, and these in groups of `GROUP` blocks, each with its box and the largest reach of its
postings; so a message passes over most of a list, and what it must read lies in a row, many postings an instruction.

Thresholds rise all the time. A posting takes its new level at once, its block when it is next read; when a list has
changed about twice it is put in order anew: by reach, so that those which reach far do not keep the others from being
skipped, then along a curve. New postings wait at the end of their list, in blocks of their own; those that go leave a
hole.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.decay.engines.block_order import order_postings
from matching.model import Float32, Int32, Int64
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import put_row, resized
from matching.storage.term_lists import capacity_for, largest_term

#: Postings of a block, blocks of a group.
BLOCK, GROUP = 64, 16
#: Columns of a summary: box (least x and y, largest x and y), least level, largest text slope, largest rest; on the
#: sphere also least and largest z, largest far.
WEST, SOUTH, EAST, NORTH, LEVEL, TEXT_SLOPE, REST, LOW, HIGH, FAR = range(10)
_PLANE_COLUMNS, _SPHERE_COLUMNS = 7, 10
#: Level of a subscription that takes everything; large enough for any reach, small enough to be multiplied.
NO_LEVEL = np.float32(-1e30)
#: Slack of a reach: float32 rounding of its parts, and of coordinates (spec G11).
RELATIVE_SLACK, ABSOLUTE_SLACK = np.float32(2e-6), np.float32(4e-7)
_HOLE = -1
#: One place in this many is sampled for how much of a list has changed.
_SAMPLED = 16
_DEAD_FRACTION = 0.25
#: A list that moves gets spare capacity of 1 / `_SPARE` of its postings.
_SPARE = 2
#: The least and the largest share of places that a new list of several blocks gets beside those it needs. Without them
#: the first thousand newcomers moved the lists of ten million subscriptions; with one share they would all move later.
_LEAST_SPARE, _MOST_SPARE = 1.0 / 64.0, 1.0 / 8.0
_PER_TERM = ("start", "count", "capacity", "built", "holes", "changes", "first_summary", "dirty")
_PER_PLACE = ("slot", "ordinal", "x", "y", "level", "text_slope", "rest", "signature")
_ON_SPHERE = ("z", "far")


class BlockListView(NamedTuple):
    """Kernel view; t terms, p places, b summaries.

    start : int64[t], count : int32[t], capacity : int32[t]    the list of a term; holes are counted
    built : int32[t]           number of postings at the front that are in order
    holes, changes : int32[t]  of those that have gone; of levels, since the list was put in order
    first_summary : int64[t]   of its blocks, then of its groups; -1 for a list of one block
    dirty : bool[t]            to be put in order before the next batch
    slot : int32[p]            the subscription, -1 for a hole
    ordinal : int16[p]         which of its terms this is
    x, y, z, level : float32[p] as `Subscriptions` has the place; z is empty in the plane
    far : float32[p]           radians; empty in the plane
    text_slope : float32[p]
    rest : float32[p]          what remains of a text of which this is the only common term
    signature : uint32[p]      bits of its other terms
    summaries : float32[b, 7], on the sphere float32[b, 10]
    used : int64[4]            end of the used places, dead ones among them; the same of summaries
    """

    start: Int64
    count: Int32
    capacity: Int32
    built: Int32
    holes: Int32
    changes: Int32
    first_summary: Int64
    dirty: np.ndarray
    slot: Int32
    ordinal: np.ndarray
    x: Float32
    y: Float32
    z: Float32
    far: Float32
    level: Float32
    text_slope: Float32
    rest: Float32
    signature: np.ndarray
    summaries: Float32
    used: Int64


class Described(NamedTuple):
    """What new postings say, subscription by subscription in the order of their terms; the first is by subscription.

    far : float32[n], empty in the plane; level, text_slope : float32[n]; rest : float32[nnz], signature : uint32[nnz]
    """

    far: Float32
    level: Float32
    text_slope: Float32
    rest: Float32
    signature: np.ndarray


class BlockLists:
    """The posting lists of an engine, whose subscriptions are on the sphere or in the plane."""

    def __init__(self, on_sphere: bool = False):
        self._per_place = _PER_PLACE + (_ON_SPHERE if on_sphere else ())
        columns = _SPHERE_COLUMNS if on_sphere else _PLANE_COLUMNS
        ints, floats = np.zeros(0, np.int32), np.zeros(0, np.float32)
        self.view = BlockListView(
            start=np.zeros(0, np.int64), count=ints, capacity=ints, built=ints, holes=ints, changes=ints,
            first_summary=np.zeros(0, np.int64), dirty=np.zeros(0, np.bool_), slot=ints, ordinal=np.zeros(0, np.int16),
            x=floats, y=floats, z=floats, far=floats, level=floats, text_slope=floats, rest=floats,
            signature=np.zeros(0, np.uint32), summaries=np.zeros((0, columns), np.float32), used=np.zeros(4, np.int64),
        )  # fmt: skip

    @property
    def longest(self) -> int:
        """Postings of the longest list."""
        return int(self.view.count.max(initial=0))

    def insert(self, subscriptions: PointSubscriptions, slots: Int32, described: Described) -> None:
        """Post new slots. Amortised O(their terms); `settle` puts in order what that leaves out of order."""
        c = subscriptions.columns
        terms = int(largest_term(c, slots)) + 1
        if self.view.start.shape[0] < terms:
            terms = max(terms, self.view.start.shape[0] * 5 // 4)
            fills = {"first_summary": -1}
            grown = {name: resized(getattr(self.view, name), terms, fills.get(name, 0)) for name in _PER_TERM}
            self.view = self.view._replace(**grown)
        added = np.zeros(self.view.start.shape[0], np.int32)
        places, summaries = _count_added(c, slots, self.view, added)
        self._reserve(subscriptions, places, summaries)
        _append(subscriptions.columns, slots, self.view, added, described)

    def remove(self, subscriptions: PointSubscriptions, slots: Int32) -> None:
        """Leave holes where these slots were posted. O(their terms)."""
        _remove(subscriptions.columns, slots, self.view)

    def settle(self, subscriptions: PointSubscriptions, far: float, factor: float) -> None:
        """Put in order the lists that need it. O(n log n) in their postings, each after as many changes.

        far : float    in the plane MaxDist; without meaning on the sphere
        """
        dirty = np.flatnonzero(self.view.dirty)
        if dirty.shape[0]:
            longest = int(self.view.count[dirty].max())
            scratch = np.empty((8, longest), np.float32), np.empty((4, longest), np.int64)
            _rebuild(subscriptions.columns, self.view, dirty, np.float32(far), np.float32(factor), *scratch)

    def summarise_all(self) -> None:
        """Make all summaries anew: every level has changed."""
        _summarise_all(self.view)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size, trimmed to their used parts."""
        v = self.view
        places, summaries = int(v.used[0]), int(v.used[2])
        trimmed = {name: getattr(v, name)[:places] for name in self._per_place}
        return v._asdict() | trimmed | {"summaries": v.summaries[:summaries]}

    def _reserve(self, subscriptions: PointSubscriptions, places: int, summaries: int) -> None:
        """Compact the pools if that pays, and grow them."""
        v = self.view
        if v.used[1] > _DEAD_FRACTION * v.used[0] or v.used[3] > _DEAD_FRACTION * v.used[2]:
            _compact(np.argsort(v.start, kind="stable"), subscriptions.columns, v)
            order = np.argsort(v.first_summary, kind="stable")
            _compact_summaries(order[v.first_summary[order] >= 0], v)
        have, needed = v.slot.shape[0], int(v.used[0]) + places
        if needed > have:
            size = needed + needed // 4
            self.view = v = v._replace(**{name: resized(getattr(v, name), size) for name in self._per_place})
        have, needed = v.summaries.shape[0], int(v.used[2]) + summaries
        if needed > have:
            self.view = v._replace(summaries=resized(v.summaries, needed + needed // 4))


@njit(cache=True, nogil=True)
def is_on_sphere(v):
    """Whether the subscriptions of these lists are on the sphere."""
    return v.summaries.shape[1] > FAR


@njit(cache=True, nogil=True)
def _blocks(places):
    return (places + BLOCK - 1) // BLOCK


@njit_inner
def _summaries_of(capacity):
    """Summaries of a list of this capacity: one a block and one a group; none for a single block."""
    blocks = _blocks(capacity)
    return 0 if blocks <= 1 else blocks + (blocks + GROUP - 1) // GROUP


@njit_inner
def _capacity_of(term, count, added):
    """Places that the list of a term, of `count` postings, is given when it takes `added` more and is too small."""
    if count > 0 or added <= BLOCK:
        return capacity_for(count, added, _SPARE)
    # by a hash: terms that are neighbours have lists of about one length
    scattered = (np.int64(term) * 0x9E3779B1 & 0xFFFFFFFF) / 2.0**32
    return added + int(added * (_LEAST_SPARE + scattered * (_MOST_SPARE - _LEAST_SPARE)))


@njit(cache=True, nogil=True)
def _count_added(c, slots, v, added):
    """Count the new postings of each term into `added`; returns places and summaries that moved lists will need."""
    places = summaries = 0
    for slot in slots:
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            term = c.terms[at]
            before = v.count[term] + added[term]
            added[term] += 1
            if before + 1 > v.capacity[term]:
                # the last estimate of a list replaces earlier ones
                capacity = _capacity_of(term, v.count[term], added[term])
                places += capacity
                summaries += _summaries_of(capacity)
                if added[term] > 1 and before > v.capacity[term]:
                    capacity = _capacity_of(term, v.count[term], added[term] - 1)
                    places -= capacity
                    summaries -= _summaries_of(capacity)
    return places, summaries


@njit_no_refcount
def _append(c, slots, v, added, described):
    """Append the postings of the slots, moving each list that is too small once; zeroes `added` again."""
    nth = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        for j in range(c.term_count[slot]):
            at = c.term_start[slot] + j
            term = c.terms[at]
            if added[term] > 0:
                if v.count[term] + added[term] > v.capacity[term]:
                    _move_list(c, v, term, added[term])
                added[term] = 0
            index = v.count[term]
            place = v.start[term] + index
            v.count[term] += 1
            # a threshold that rises finds its postings by this, without a search
            c.position[at] = place
            v.slot[place], v.ordinal[place] = slot, j
            v.x[place], v.y[place], v.level[place] = c.x[slot], c.y[slot], described.level[i]
            if is_on_sphere(v):
                v.z[place], v.far[place] = c.z[slot], described.far[i]
            v.text_slope[place] = described.text_slope[i]
            v.rest[place], v.signature[place] = described.rest[nth], described.signature[nth]
            nth += 1
            if v.first_summary[term] >= 0:
                _widen(v, term, index, place)
            # the end of a list is in no order: a quarter of it may be, beside the last block
            if v.count[term] - v.built[term] > BLOCK + v.built[term] // 4:
                v.dirty[term] = True


@njit_inner_no_refcount
def _move_list(c, v, term, added):
    """Move a list to the end of the pool, with capacity for `added` more, and its summaries to the end of theirs."""
    old, count = v.start[term], v.count[term]
    capacity = _capacity_of(term, count, added)
    new = v.used[0]
    v.used[0] = new + capacity
    # the old places stay behind until a quarter of the pool is dead
    v.used[1] += v.capacity[term]
    for i in range(count):
        _copy_place(c, v, old + i, new + i)
    v.used[3] += _summaries_of(v.capacity[term])
    v.start[term], v.capacity[term] = new, capacity
    if _summaries_of(capacity):
        v.first_summary[term] = v.used[2]
        v.used[2] += _summaries_of(capacity)
        # the place of the groups depends on the capacity, so they are rebuilt
        _summarise(v, term)


@njit_inner_no_refcount
def _copy_place(c, v, source, target):
    """Copy a posting and update the place that its subscription has of it."""
    slot = v.slot[source]
    v.slot[target], v.ordinal[target] = slot, v.ordinal[source]
    # a hole has no subscription, and its former one may be gone
    if slot >= 0:
        c.position[c.term_start[slot] + v.ordinal[source]] = target
    v.x[target], v.y[target], v.level[target] = v.x[source], v.y[source], v.level[source]
    if is_on_sphere(v):
        v.z[target], v.far[target] = v.z[source], v.far[source]
    v.text_slope[target], v.rest[target] = v.text_slope[source], v.rest[source]
    v.signature[target] = v.signature[source]


@njit(cache=True, nogil=True)
def _remove(c, slots, v):
    for slot in slots:
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            term, place = c.terms[at], c.position[at]
            v.slot[place] = _HOLE
            # no reach is ever positive; summaries keep what it was, which is only looser
            v.level[place] = np.inf
            v.holes[term] += 1
            if v.holes[term] > _DEAD_FRACTION * v.count[term]:
                v.dirty[term] = True


@njit_no_refcount
def raise_level(c, v, slot, level):
    """Give the postings of a slot a higher level. O(terms).

    Their blocks find out when they are next read, which they are then anyhow: until then they claim to reach farther
    than they do (`matching.decay.engines.block_search`).
    """
    start = c.term_start[slot]
    for at in range(start, start + c.term_count[slot]):
        place = c.position[at]
        v.level[place] = level
        # a sample of places estimates how much of a list has changed
        if place % _SAMPLED == 0:
            term = c.terms[at]
            v.changes[term] += _SAMPLED
            if v.changes[term] > 2 * v.count[term] + 4 * BLOCK:
                v.dirty[term] = True


@njit(cache=True, nogil=True)
def _clear(row):
    row[WEST] = row[SOUTH] = row[LEVEL] = np.inf
    row[EAST] = row[NORTH] = row[TEXT_SLOPE] = row[REST] = -np.inf
    if row.shape[0] > FAR:
        row[LOW], row[HIGH], row[FAR] = np.inf, -np.inf, -np.inf


@njit(cache=True, nogil=True)
def _include(v, row, place):
    """Widen a summary by a posting; of different postings each extreme, so looser, never wrong (spec 6)."""
    row[WEST], row[EAST] = min(row[WEST], v.x[place]), max(row[EAST], v.x[place])
    row[SOUTH], row[NORTH] = min(row[SOUTH], v.y[place]), max(row[NORTH], v.y[place])
    row[LEVEL] = min(row[LEVEL], v.level[place])
    row[TEXT_SLOPE] = max(row[TEXT_SLOPE], v.text_slope[place])
    row[REST] = max(row[REST], v.rest[place])
    if row.shape[0] > FAR:
        row[LOW], row[HIGH] = min(row[LOW], v.z[place]), max(row[HIGH], v.z[place])
        row[FAR] = max(row[FAR], v.far[place])


@njit_inner
def _widen(v, term, index, place):
    """A posting has come to the end of a list."""
    first, block = v.first_summary[term], index // BLOCK
    group = first + _blocks(v.capacity[term]) + block // GROUP
    # the first of its block: the row may have values of another list
    if index % BLOCK == 0:
        _clear(v.summaries[first + block])
        if block % GROUP == 0:
            _clear(v.summaries[group])
    _include(v, v.summaries[first + block], place)
    _include(v, v.summaries[group], place)


@njit(cache=True, nogil=True)
def _summarise(v, term):
    """All summaries of a list; holes count for nothing."""
    start, first = v.start[term], v.first_summary[term]
    groups = first + _blocks(v.capacity[term])
    for block in range(_blocks(v.count[term])):
        row, group = v.summaries[first + block], v.summaries[groups + block // GROUP]
        _clear(row)
        if block % GROUP == 0:
            _clear(group)
        for place in range(start + block * BLOCK, min(start + block * BLOCK + BLOCK, start + v.count[term])):
            if v.slot[place] >= 0:
                _include(v, row, place)
        # of the block, not of its postings once more
        for column in (WEST, SOUTH, LEVEL):
            group[column] = min(group[column], row[column])
        for column in (EAST, NORTH, TEXT_SLOPE, REST):
            group[column] = max(group[column], row[column])
        if is_on_sphere(v):
            group[LOW] = min(group[LOW], row[LOW])
            group[HIGH], group[FAR] = max(group[HIGH], row[HIGH]), max(group[FAR], row[FAR])


@njit(cache=True, nogil=True)
def _summarise_all(v):
    for term in range(v.start.shape[0]):
        if v.first_summary[term] >= 0:
            _summarise(v, term)


@njit(cache=True, nogil=True)
def _rebuild(c, v, dirty, far, factor, floats, ints):
    """Put these lists in order, without holes. `floats` and `ints` are scratch for the longest."""
    for term in dirty:
        start, count = v.start[term], 0
        # in place: the front never overtakes a posting that is still to be moved
        for place in range(start, start + v.count[term]):
            if v.slot[place] >= 0:
                if start + count != place:
                    _copy_place(c, v, place, start + count)
                count += 1
        v.count[term], v.holes[term], v.changes[term] = count, 0, 0
        v.built[term], v.dirty[term] = count, False
        # a list of one block is read from end to end, in whatever order
        if v.first_summary[term] < 0:
            continue
        if count > BLOCK:
            _sort(c, v, start, count, far, factor, floats, ints)
        _summarise(v, term)


@njit_inner
def _sort(c, v, start, count, far, factor, floats, ints):
    """Put `count` postings from `start` on in order of reach and place."""
    last, on_sphere = start + count, is_on_sphere(v)
    reach = floats[0, :count]
    for i in range(count):
        place = start + i
        reach[i] = (v.far[place] if on_sphere else far) - v.level[place] * factor
        # a typical text: alone it is worth a tenth, any second keyword makes nearly nothing of it
        reach[i] += v.text_slope[place] * v.rest[place] * np.float32(0.1)
    order = order_postings(v.x[start:last], v.y[start:last], v.z[start:last], reach, BLOCK)
    # by way of scratch: in a new order a place takes one posting and gives up another
    for i in range(count):
        place = start + i
        ints[0, i], ints[1, i] = v.slot[place], v.ordinal[place]
        floats[1, i], floats[2, i], floats[3, i] = v.x[place], v.y[place], v.level[place]
        floats[4, i], floats[5, i], ints[2, i] = v.text_slope[place], v.rest[place], v.signature[place]
        if on_sphere:
            floats[6, i], floats[7, i] = v.z[place], v.far[place]
    for i in range(count):
        place, old = start + i, order[i]
        slot = ints[0, old]
        v.slot[place], v.ordinal[place] = slot, ints[1, old]
        v.x[place], v.y[place], v.level[place] = floats[1, old], floats[2, old], floats[3, old]
        v.text_slope[place], v.rest[place] = floats[4, old], floats[5, old]
        v.signature[place] = ints[2, old]
        if on_sphere:
            v.z[place], v.far[place] = floats[6, old], floats[7, old]
        c.position[c.term_start[slot] + ints[1, old]] = place


@njit_no_refcount
def _compact(order, c, v):
    """Close the gaps between lists, in `order` of their places; capacities are kept."""
    end = 0
    for term in order:
        # a keyword without subscriptions so far: `start` is not set
        if v.capacity[term] == 0:
            continue
        old = v.start[term]
        # ascending places: a list moves down or stays, never onto one that is still to move
        for i in range(v.count[term]):
            _copy_place(c, v, old + i, end + i)
        v.start[term] = end
        end += v.capacity[term]
    v.used[0], v.used[1] = end, 0


@njit(cache=True, nogil=True)
def _compact_summaries(order, v):
    end = 0
    for term in order:
        old, rows = v.first_summary[term], _summaries_of(v.capacity[term])
        # in ascending order of where they stand, as lists are moved
        for i in range(rows):
            put_row(v.summaries, end + i, v.summaries[old + i])
        v.first_summary[term] = end
        end += rows
    v.used[2], v.used[3] = end, 0
