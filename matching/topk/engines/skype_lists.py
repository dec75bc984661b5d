"""Posting lists of engine `skype`: for each term a tree of cells and groups over its postings, and a short tail.

The list of a term is contiguous in one pool. Its first part is *built*: ordered so that every node of the term's tree
is a run of postings (`matching.topk.engines.skype_tree`). The newest postings follow, the *tail*, which the scan reads
one by one until the tail is large enough for a rebuild. A removal from the built part leaves a tombstone; one from the
tail moves the tail's last posting into the gap. The switches (`matching.topk.engines.skype.Pruning`) decide which
columns a posting has.

The columns are bounds in float32, rounded so that they never lose a match (spec 1.8); a change here must keep every
bound above the exact score.
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.geo.sphere import EARTH_RADIUS_M
from matching.model import Float32, Int32, Int64
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
    Tree,
    TreeShape,
    change_base,
    envelope_places,
)
from matching.topk.scores import SLACK


class SkypeListView(NamedTuple):
    """Kernel view; t terms, p places of the pool, n nodes of the pool of trees.

    start : int64[t], count, capacity : int32[t]    the list, tail included
    built : int32[t]                            postings of the built part
    dead, stale : int32[t]                      tombstones in it; first thresholds set in it since it was built
    node_start : int64[t], node_count, node_capacity : int32[t]    the list's tree in the pool of nodes
    slot : int32[p]           the subscription; -1 for a tombstone
    ordinal : int16[p]        index of this term among the subscription's terms
    x, y : float32[p]         point of the subscription, in the unit square or of its unit vector
    slope : float32[p]        alpha / MaxDist of the subscription; per side of the unit square, or per radian
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
#: A list that moves gets spare capacity of a fourth of its postings.
_SPARE = 4
#: Upper limit of a slope per radian; a small MaxDist makes slopes large. A larger slope would bring the bound of a
#: subscription without a threshold (its base is 1e6) below zero at a distance that occurs (at most pi radians).
_STEEPEST = 1e5
#: Largest error in radians of the distance of two rounded points; relative error of a large base in float32, which a
#: threshold far below zero has. Spec 1.8.
_PLACE_SLACK, _ROUNDING = 4e-7, 2e-6
#: The byte of a signature for all later terms that have no byte of their own.
ANY_TERM = 255
_DTYPES = {"slot": np.int32, "ordinal": np.int16, "signature": np.int32}


class SkypeLists:
    """Posting lists of a `PointSubscriptions` with a tree over each.

    Parameters
    ----------
    space : Space
    switches : tuple of str    keys of `_OPTIONAL`, the groups of columns beside `_ALWAYS`
    shape : TreeShape
    """

    def __init__(self, space: Space, switches: tuple[str, ...], shape: TreeShape):
        #: Unit of distance of the slopes: a radian, in metres, or the side of the unit square.
        self._unit = EARTH_RADIUS_M if space.on_sphere else 1.0
        stored_at = envelope_places(space.max_distance / self._unit if space.on_sphere else None)
        width = SPHERE_FLOATS if space.on_sphere else FLOATS
        switches += ("sphere",) if space.on_sphere else ()
        self._kept = _ALWAYS + tuple(name for switch in switches for name in _OPTIONAL.get(switch, ()))
        self._shape = shape
        columns: dict[str, np.ndarray] = {
            name: np.zeros(0, np.int64 if name in _WIDE else np.int32) for name in _PER_TERM
        }
        for name in SkypeListView._fields[len(_PER_TERM) : -4]:
            columns[name] = np.zeros(0, _DTYPES.get(name, np.float32))
        columns["node_floats"], columns["node_ints"] = np.zeros((0, width), np.float32), np.zeros((0, INTS), np.int32)
        self.view = SkypeListView(**columns, used=np.zeros(4, np.int64), stored_at=stored_at)
        self._added = np.zeros(0, np.int32)
        self._changed = 0  # postings added, removed or with a new threshold since `settle` last looked for due trees

    def insert(self, subscriptions: PointSubscriptions, slots: Int32) -> None:
        """Append postings of new slots to the tails of their terms. O(their terms), amortised."""
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
        """Remove the postings of these slots; call before `subscriptions` frees them. O(their terms * depth)."""
        _remove(subscriptions.columns, slots, self.view)
        self._changed += int(subscriptions.columns.term_count[slots].sum())

    def set_thresholds(self, subscriptions: PointSubscriptions, slots: Int32) -> None:
        """Update the bounds of these slots after a change of their thresholds. O(their terms * (depth + group))."""
        _set_base(subscriptions.columns, slots, self.view, self._unit)
        self._changed += int(subscriptions.columns.term_count[slots].sum())

    def settle(self, subscriptions: PointSubscriptions) -> None:
        """Rebuild the trees that are due. O(terms) if none is; amortised O(log postings) for each new posting.

        Does nothing until half a group of postings has changed over all terms: a delay of a rebuild costs little time,
        and a search for due trees in each of many small batches would cost more.
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
        """All arrays, the pools cut to their used parts; for the report of memory."""
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


@njit_inner
def signature_byte(term):
    """Hash of a term to one byte, 1 to 254, as an int32."""
    return np.int32(1 + (np.int64(term) * np.int64(0x61C88647) >> 16) % 254)


@njit(cache=True, nogil=True)
def signature_with(signature, term):
    """Add a term to a signature (int32): four bytes, one for each of up to four terms; 0 for none. O(1).

    With more than four terms the highest byte is `ANY_TERM`. Not in the paper, whose bounds use the weights of later
    terms only.
    """
    if signature >> 24 != 0:
        return np.int32(signature | np.int32(-1 << 24))
    return np.int32(np.int32(signature) << np.int32(8)) | signature_byte(term)


@njit_inner
def _slope_of(c, slot, unit):
    """`slope` of a posting, at most `_STEEPEST`: a smaller slope makes the bound looser."""
    return min(_STEEPEST, c.alpha[slot] * unit / c.max_distance[slot])


@njit_inner
def _base_of(c, slot, unit):
    """`base` of a posting in -1e6..1e6: infinity would make an interpolation NaN. Spec 1.8 derives the slack."""
    base = c.alpha[slot] - c.threshold[slot]
    base += SLACK + _PLACE_SLACK * _slope_of(c, slot, unit) + _ROUNDING * max(0.0, base)
    return np.float32(min(1e6, max(-1e6, base)))


@njit_no_refcount
def _append(c, slots, v, added, unit):
    """Append postings to the tails, and move each list that is too small once; resets `added` to zeros."""
    for slot in slots:
        start, count = c.term_start[slot], c.term_count[slot]
        factor = 1.0 - c.alpha[slot]
        square = total = peak = 0.0
        signature = np.int32(0)
        for j in range(count - 1, -1, -1):
            term = c.terms[start + j]
            weight = np.float64(c.weights[start + j])
            rest = math.sqrt(square)
            # before the test: a term without a posting still counts in rest, total and peak of the terms before it
            square += weight * weight
            total += weight
            peak = max(peak, weight)
            later = signature
            signature = signature_with(signature, term)
            if c.position[start + j] < 0:
                continue
            # the first posting of a term in this call moves the list, to capacity for all of this call's postings
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
            # columns of switches that are off are empty; `build_lists` fills those that describe a group
            if v.own.shape[0]:
                v.own[place] = factor * weight
                v.rest[place] = factor * rest
            if v.signature.shape[0]:
                v.signature[place] = later
            if v.total.shape[0]:
                v.total[place] = factor * total
                v.peak[place] = factor * peak


@njit_inner_no_refcount
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
    """Remove the postings of these slots, from the built parts by tombstones."""
    path = np.empty(DEEPEST, np.int32)
    for slot in slots:
        start = c.term_start[slot]
        for j in range(c.term_count[slot]):
            term, place = c.terms[start + j], c.position[start + j]
            if place < 0:
                continue
            local = place - v.start[term]
            # a node covers a run of the built part: the place stays, with a base of -1e6, too low for any score
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
    """Recompute `base` of all postings of these slots, and the maxima of the trees above them."""
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
                    # from +-1e6 (no threshold, or one above all scores) to an ordinary base: the tree was split without
                    # knowledge of this threshold, and is rebuilt once enough postings are stale
                    if abs(base) < np.float32(1e5) < abs(was):
                        v.stale[term] += 1
                    # update the maxima at once: a bound that is too low would lose results (spec 1.6)
                    change_base(_tree(v, term), local, base, path)
            else:
                # no node covers the tail
                v.base[place] = base


@njit_no_refcount
def _compact(order, v, c):
    """Close the gaps of the pool; `order`: terms by ascending start of their list. Capacities stay. O(postings)."""
    end = 0
    for term in order:
        if v.capacity[term] == 0:
            continue
        old = v.start[term]
        # in ascending order each list moves down or stays, and never overwrites a list that has not moved yet
        for i in range(v.count[term]):
            copy_place(v, c, old + i, end + i)
        v.start[term] = end
        end += v.capacity[term]
    v.used[0] = end
    v.used[1] = 0


@njit(cache=True, nogil=True)
def _compact_nodes(order, v):
    """Close the gaps in the pool of nodes; capacities shrink to the used sizes. O(nodes)."""
    end = 0
    for term in order:
        count = v.node_count[term]
        old = v.node_start[term]
        # ascending, as in `_compact`; capacities may shrink, since a tree never grows: it is built anew
        for i in range(count):
            v.node_floats[end + i] = v.node_floats[old + i]
            v.node_ints[end + i] = v.node_ints[old + i]
        v.node_start[term] = end
        v.node_capacity[term] = count
        end += count
    v.used[2] = end
    v.used[3] = 0
