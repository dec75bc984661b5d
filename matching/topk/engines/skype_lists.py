"""Posting lists of engine `skype`: for each term a tree of cells and groups over its postings, and a short tail.

The list of a term lies contiguous in one pool. Its front is *built*: ordered so that every node of the term's tree is a
run of it (`matching.topk.engines.skype_tree`). Behind follow the newest postings, the *tail*, which is scanned flat
until it is worth building again. Removal leaves a tombstone in the built part and a gap filled by the last posting in
the tail. Which columns a posting has depends on the switches (`matching.topk.engines.skype.Pruning`).
"""

import math
from typing import NamedTuple

import numpy as np

from matching.geo.sphere import EARTH_RADIUS_M
from matching.model import Float32, Int32, Int64
from matching.njit import njit, njit_no_refcount
from matching.space import Space
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.slots import resized
from matching.storage.term_lists import capacity_for, count_added, largest_term
from matching.topk.engines.skype_build import DEAD_FRACTION, build_lists, copy_place, find_due
from matching.topk.engines.skype_tree import (
    DEEPEST,
    FLOATS,
    INTS,
    SPHERE_FLOATS,
    Shape,
    Tree,
    change_base,
    envelope_places,
)
from matching.topk.scores import SLACK


class Lists(NamedTuple):
    """Kernel view; t terms, p places of the pool, n nodes of the pool of trees.

    start : int64[t], count, capacity : int32[t]    the list, tail included
    built : int32[t]                            postings in the tree
    dead, stale : int32[t]                      of the built: tombstones, thresholds set (from none) since
    node_start : int64[t], node_count, node_capacity : int32[t]
    slot : int32[p]           the subscription; -1 for a tombstone
    ordinal : int16[p]        which of its terms this is
    x, y : float32[p]         its point
    slope : float32[p]        alpha / MaxDist, that of the subscription; by radian on the sphere
    base : float32[p]         alpha - threshold + slack
    z, alpha : float32[p]                                                                           (on the sphere)
    own, rest : float32[p]    (1 - alpha) * weight of this term, norm of the weights after it       (l2)
    signature : int32[p]      a byte for each of its terms after this one (`signature_with`)        (signature)
    total, peak : float32[p]  (1 - alpha) * sum, maximum of the weights from this term on           (prefix)
    inner : float32[p]        distance to the nearest side of its cell                              (inner_outer)
    stop_base, stop_text : float32[p]   maxima from here to the end of its group                    (early_stop)
    node_floats : float32[n, FLOATS], node_ints : int32[n, INTS]    see `matching.topk.engines.skype_tree`
    used : int64[4]           end of the pool, dead places in it; end of the nodes, dead nodes
    stored_at : float32[5]    see `matching.topk.engines.skype_tree.envelope_places`
    """

    start: Int64
    count: Int32
    capacity: Int32
    built: Int32
    dead: Int32
    stale: Int32
    node_start: Int64
    node_count: Int32
    node_capacity: Int32
    slot: Int32
    ordinal: np.ndarray
    x: Float32
    y: Float32
    slope: Float32
    base: Float32
    z: Float32
    alpha: Float32
    own: Float32
    rest: Float32
    signature: Int32
    total: Float32
    peak: Float32
    inner: Float32
    stop_base: Float32
    stop_text: Float32
    node_floats: Float32
    node_ints: Int32
    used: Int64
    stored_at: Float32


_PER_TERM = ("start", "count", "capacity", "built", "dead", "stale", "node_start", "node_count", "node_capacity")
_WIDE = ("start", "node_start")
_ALWAYS = ("slot", "ordinal", "x", "y", "slope", "base")
_OPTIONAL = {
    "sphere": ("z", "alpha"),
    "l2": ("own", "rest"),
    "signature": ("signature",),
    "prefix": ("total", "peak"),
    "inner_outer": ("inner",),
    "early_stop": ("stop_base", "stop_text"),
}
#: A list that moves gets one place in so many more.
_SPARE = 4
#: A small radius makes slopes large. More than this, by radian, would take a subscription without threshold (its base
#: is 1e6) below zero within half a turn.
_STEEPEST = 1e5
#: By how much two rounded places may seem farther apart than they are, in radians; and the part of a large base (that
#: of a threshold far below zero) that float32 may lose. Spec 1.8.
_PLACE_SLACK, _ROUNDING = 4e-7, 2e-6
#: The byte of a signature that stands for terms which have none of their own.
ANY_TERM = 255
_DTYPES = {"slot": np.int32, "ordinal": np.int16, "signature": np.int32}


class SkypeLists:
    """Posting lists of a `PointSubscriptions` with a tree over each; `switches` select the columns it keeps."""

    def __init__(self, space: Space, switches: tuple[str, ...], shape: Shape):
        #: What slopes are by: a radian in metres, or the side of the unit square.
        self._unit = EARTH_RADIUS_M if space.on_sphere else 1.0
        stored_at = envelope_places(space.max_distance / self._unit if space.on_sphere else None)
        width = SPHERE_FLOATS if space.on_sphere else FLOATS
        switches += ("sphere",) if space.on_sphere else ()
        self._kept = _ALWAYS + tuple(name for switch in switches for name in _OPTIONAL.get(switch, ()))
        self._shape = shape
        columns: dict[str, np.ndarray] = {
            name: np.zeros(0, np.int64 if name in _WIDE else np.int32) for name in _PER_TERM
        }
        for name in Lists._fields[len(_PER_TERM) : -4]:
            columns[name] = np.zeros(0, _DTYPES.get(name, np.float32))
        columns["node_floats"], columns["node_ints"] = np.zeros((0, width), np.float32), np.zeros((0, INTS), np.int32)
        self.view = Lists(**columns, used=np.zeros(4, np.int64), stored_at=stored_at)
        self._added = np.zeros(0, np.int32)
        self._changed = 0  # postings added, removed or set since trees were last checked

    def insert(self, subscriptions: PointSubscriptions, slots: Int32) -> None:
        """Append the posted terms of new slots to the tails. O(their terms), amortised."""
        c = subscriptions.columns
        self._ensure_terms(int(largest_term(c, slots)) + 1)
        if self._added.shape[0] < self.view.start.shape[0]:
            self._added = np.zeros(self.view.start.shape[0], np.int32)
        v = self.view
        needed, posted = count_added(c, slots, v.count, v.capacity, self._added, _SPARE)
        if v.used[0] + needed > v.slot.shape[0]:
            self._reserve(subscriptions, needed)
        _append(c, slots, self.view, self._added, self._unit)
        self._changed += posted

    def remove(self, subscriptions: PointSubscriptions, slots: Int32) -> None:
        """Take the postings of these slots out, before `subscriptions` forgets the slots. O(their terms * depth)."""
        _remove(subscriptions.columns, slots, self.view)
        self._changed += int(subscriptions.columns.term_count[slots].sum())

    def set_thresholds(self, subscriptions: PointSubscriptions, slots: Int32) -> None:
        """Bring the bounds of these slots in line with their thresholds. O(their terms * (depth + group))."""
        _set_base(subscriptions.columns, slots, self.view, self._unit)
        self._changed += int(subscriptions.columns.term_count[slots].sum())

    def settle(self, subscriptions: PointSubscriptions) -> None:
        """Build the trees that are due. O(terms) if none is; amortised O(log) a new posting.

        Looked for once half a group has changed in all: a tree may be late by so much, and small batches are many.
        """
        if self._changed < max(1, self._shape.group_size // 2):
            return
        self._changed = 0
        due = np.empty(self.view.start.shape[0], np.int32)
        due = due[: find_due(self.view, self._shape.group_size, due)]
        done = 0
        while done < due.shape[0]:
            done = build_lists(subscriptions.columns, self.view, due, done, self._shape)
            if done < due.shape[0]:
                self._reserve_nodes(2 * int(self.view.count[due[done]]))

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size, the pools trimmed to their used parts."""
        used = self.view.used
        return {
            name: value
            if name in _PER_TERM or name in ("used", "stored_at")
            else value[: used[2] if name.startswith("node_") else used[0]]
            for name, value in self.view._asdict().items()
        }

    def _ensure_terms(self, needed: int) -> None:
        have = self.view.start.shape[0]
        if have < needed:
            terms = max(needed, have + have // 4)
            self.view = self.view._replace(**{name: resized(getattr(self.view, name), terms) for name in _PER_TERM})

    def _reserve(self, subscriptions: PointSubscriptions, needed: int) -> None:
        v = self.view
        if v.used[1] > DEAD_FRACTION * v.used[0]:
            _compact(np.argsort(v.start, kind="stable"), v, subscriptions.columns)
        size = v.slot.shape[0]
        if v.used[0] + needed > size:
            size = max(int(v.used[0]) + needed, size + size // 4)
            self.view = v._replace(**{name: resized(getattr(v, name), size) for name in self._kept})

    def _reserve_nodes(self, needed: int) -> None:
        v = self.view
        if v.used[3] > DEAD_FRACTION * v.used[2]:
            _compact_nodes(np.argsort(v.node_start, kind="stable"), v)
        size = v.node_ints.shape[0]
        if v.used[2] + needed > size:
            size = max(int(v.used[2]) + needed, size + size // 4)
            self.view = v._replace(node_floats=resized(v.node_floats, size), node_ints=resized(v.node_ints, size))


@njit(cache=True, nogil=True)
def signature_byte(term):
    """What a term is called in a signature, 1 to 254."""
    return np.int32(1 + (np.int64(term) * np.int64(0x61C88647) >> 16) % 254)


@njit(cache=True, nogil=True)
def signature_with(signature, term):
    """The signature (int32) of one more term: four bytes, one for each; 0 for none. O(1).

    Of more than four terms the highest byte is `ANY_TERM`. Our own: the paper's bounds know nothing of later terms but
    their weights.
    """
    if signature >> 24 != 0:
        return np.int32(signature | np.int32(-1 << 24))
    return np.int32(np.int32(signature) << np.int32(8)) | signature_byte(term)


@njit(cache=True, nogil=True)
def _slope_of(c, slot, unit):
    """`slope` of a posting, below the true one where that is larger than `_STEEPEST`."""
    return min(_STEEPEST, c.alpha[slot] * unit / c.max_distance[slot])


@njit(cache=True, nogil=True)
def _base_of(c, slot, unit):
    """`base` of a posting, finite: infinity would make NaN of an interpolation. The slack is derived in spec 1.8."""
    base = c.alpha[slot] - c.threshold[slot]
    base += SLACK + _PLACE_SLACK * _slope_of(c, slot, unit) + _ROUNDING * max(0.0, base)
    return np.float32(min(1e6, max(-1e6, base)))


@njit_no_refcount
def _append(c, slots, v, added, unit):
    """Append postings to the tails, moving each list that is too small once; zeroes `added` again."""
    for slot in slots:
        start, count = c.term_start[slot], c.term_count[slot]
        factor = 1.0 - c.alpha[slot]
        square = total = peak = 0.0
        signature = np.int32(0)
        for j in range(count - 1, -1, -1):
            term = c.terms[start + j]
            weight = np.float64(c.weights[start + j])
            rest = math.sqrt(square)
            # before the test: a term that is not posted still counts in the statistics of those in front of it
            square += weight * weight
            total += weight
            peak = max(peak, weight)
            later = signature
            signature = signature_with(signature, term)
            if c.position[start + j] < 0:
                continue
            # the first posting of this call moves the list, with capacity for all; the caller has reserved the pool
            if added[term] > 0:
                if v.count[term] + added[term] > v.capacity[term]:
                    _move_list(v, c, term, added[term])
                added[term] = 0
            place = v.start[term] + v.count[term]
            v.count[term] += 1
            v.slot[place] = slot
            v.ordinal[place] = j
            c.position[start + j] = place
            v.x[place] = c.x[slot]
            v.y[place] = c.y[slot]
            v.slope[place] = _slope_of(c, slot, unit)
            v.base[place] = _base_of(c, slot, unit)
            if v.z.shape[0]:
                v.z[place] = c.z[slot]
                v.alpha[place] = c.alpha[slot]
            # columns of rules that are off are empty; those of a group are filled when the tail is built
            if v.own.shape[0]:
                v.own[place] = factor * weight
                v.rest[place] = factor * rest
            if v.signature.shape[0]:
                v.signature[place] = later
            if v.total.shape[0]:
                v.total[place] = factor * total
                v.peak[place] = factor * peak


@njit_no_refcount
def _move_list(v, c, term, added):
    """Move a list to the end of the pool, with capacity for `added` more."""
    old, count = v.start[term], v.count[term]
    capacity = capacity_for(count, added, _SPARE)
    new = v.used[0]
    v.used[0] = new + capacity
    # the old places are dead until the pool is compacted
    v.used[1] += v.capacity[term]
    for i in range(count):
        copy_place(v, c, old + i, new + i)
    v.start[term] = new
    v.capacity[term] = capacity


@njit(cache=True, nogil=True)
def _tree(v, term):
    """The tree of a term and the postings under it."""
    a, b = v.node_start[term], v.node_start[term] + v.node_count[term]
    first = v.start[term]
    last = first + v.built[term]
    stop = v.stop_base[first:last] if v.stop_base.shape[0] else v.stop_base
    return Tree(v.node_floats[a:b], v.node_ints[a:b], v.slope[first:last], v.base[first:last], stop, v.stored_at)


@njit(cache=True, nogil=True)
def _remove(c, slots, v):
    path = np.empty(DEEPEST, np.int32)
    for slot in slots:
        start = c.term_start[slot]
        for j in range(c.term_count[slot]):
            term, place = c.terms[start + j], c.position[start + j]
            if place < 0:
                continue
            local = place - v.start[term]
            # every node is a run of this part, so a tombstone stays, with a base that no bound lifts to zero
            if local < v.built[term]:
                change_base(_tree(v, term), local, np.float32(-1e6), path)
                v.slot[place] = -1
                v.dead[term] += 1
            else:
                # the tail has no order, so its last posting fills the gap
                last = v.start[term] + v.count[term] - 1
                if place != last:
                    copy_place(v, c, last, place)
                v.count[term] -= 1
            c.position[start + j] = -1


@njit(cache=True, nogil=True)
def _set_base(c, slots, v, unit):
    path = np.empty(DEEPEST, np.int32)
    for slot in slots:
        base = _base_of(c, slot, unit)
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            term, place = c.terms[at], c.position[at]
            if place < 0:
                continue
            local = place - v.start[term]
            if local < v.built[term]:
                was = v.base[place]
                if was != base:
                    # a first threshold: the tree was split as if there were none, or one beyond all scores (1e6, -1e6)
                    if abs(base) < np.float32(1e5) < abs(was):
                        v.stale[term] += 1
                    # maxima follow at once: a bound left too low would lose results (spec 1.6)
                    change_base(_tree(v, term), local, base, path)
            else:
                # nothing bounds the tail but its postings
                v.base[place] = base


@njit_no_refcount
def _compact(order, v, c):
    """Close the gaps of the pool, list by list in `order` of their places; capacities are kept."""
    end = 0
    for term in order:
        if v.capacity[term] == 0:
            continue
        old = v.start[term]
        # ascending places: a list moves down or stays, never onto one that is still to move
        for i in range(v.count[term]):
            copy_place(v, c, old + i, end + i)
        v.start[term] = end
        end += v.capacity[term]
    v.used[0] = end
    v.used[1] = 0


@njit(cache=True, nogil=True)
def _compact_nodes(order, v):
    """Close the gaps in the pool of nodes; capacities shrink to what is used."""
    end = 0
    for term in order:
        count = v.node_count[term]
        old = v.node_start[term]
        # ascending places, as in `_compact`; capacities may shrink, since a tree is only ever built anew
        for i in range(count):
            v.node_floats[end + i] = v.node_floats[old + i]
            v.node_ints[end + i] = v.node_ints[old + i]
        v.node_start[term] = end
        v.node_capacity[term] = count
        end += count
    v.used[2] = end
    v.used[3] = 0
