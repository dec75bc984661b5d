"""Building the posting lists of engine `skype`: gaps closed, a tree made, postings in its order, groups described."""

import math

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.storage.slots import put_row
from matching.topk.engines.skype_tree import (
    INTS,
    build_tree,
)

#: A list is rebuilt when its tail, or its dead postings, exceed this fraction of the built part.
_TAIL_FRACTION = 1 / 12
DEAD_FRACTION = 0.25
#: ... or when this fraction of its thresholds has been set since, other than from minus infinity.
_STALE_FRACTION = 0.25


@njit_inner_no_refcount
def copy_place(v, c, source, target):
    """Copy a posting and update the place that its subscription has of it."""
    slot = v.slot[source]
    v.slot[target] = slot
    v.ordinal[target] = v.ordinal[source]
    # a tombstone has no subscription; else a change of threshold would reach the wrong posting
    if slot >= 0:
        c.position[c.term_start[slot] + v.ordinal[source]] = target
    v.x[target] = v.x[source]
    v.y[target] = v.y[source]
    v.slope[target] = v.slope[source]
    v.base[target] = v.base[source]
    if v.z.shape[0]:
        v.z[target] = v.z[source]
        v.alpha[target] = v.alpha[source]
    if v.own.shape[0]:
        v.own[target] = v.own[source]
        v.rest[target] = v.rest[source]
    if v.signature.shape[0]:
        v.signature[target] = v.signature[source]
    if v.total.shape[0]:
        v.total[target] = v.total[source]
        v.peak[target] = v.peak[source]
    if v.inner.shape[0]:
        v.inner[target] = v.inner[source]
    if v.stop_base.shape[0]:
        v.stop_base[target] = v.stop_base[source]
        v.stop_text[target] = v.stop_text[source]


@njit(cache=True, nogil=True)
def find_due(v, group_size, due):
    """Terms whose list is to be built (again), into `due`; returns how many."""
    found = 0
    for term in range(v.start.shape[0]):
        built = v.built[term]
        tail = v.count[term] - built
        # a list this short is scanned one by one anyway; only tombstones justify a rebuild
        if tail + built <= group_size and v.dead[term] == 0:
            continue
        # each fraction has a minimum, or short lists would be rebuilt all the time
        if (
            tail > max(group_size, built * _TAIL_FRACTION)
            or v.dead[term] > group_size // 2 + built * DEAD_FRACTION
            or v.stale[term] > group_size // 2 + built * _STALE_FRACTION
        ):
            due[found] = term
            found += 1
    return found


@njit(cache=True, nogil=True)
def build_lists(c, v, due, done, shape):
    """Build the lists due[done:]; returns the end of those built before the nodes ran out."""
    most = 0
    for i in range(done, due.shape[0]):
        most = max(most, v.count[due[i]])
    order = np.empty(most, np.int32)
    floats = np.empty((2 * most + 1, v.node_floats.shape[1]), np.float32)
    ints = np.empty((2 * most + 1, INTS), np.int32)
    text = np.empty((most, 4), np.float32)
    kept = np.empty(most, np.float32)
    kept_ints = np.empty(most, np.int32)
    for i in range(done, due.shape[0]):
        term = due[i]
        start = v.start[term]
        # gaps are closed last, so that nothing is lost should the nodes run out
        n = 0
        for local in range(v.count[term]):
            if v.slot[start + local] >= 0:
                if n < local:
                    copy_place(v, c, start + local, start + n)
                n += 1
        v.count[term] = n
        # all of it tail for now: a state that stands, should the nodes run out below
        v.built[term] = v.dead[term] = v.stale[term] = v.node_count[term] = 0
        if n <= shape.group_size:
            # too short for a tree: its nodes are given back
            v.used[3] += v.node_capacity[term]
            v.node_capacity[term] = 0
            continue
        _text_statistics(c, v, start, n, text)
        end = start + n
        nodes = build_tree(
            v.x[start:end], v.y[start:end], v.z[start:end], v.slope[start:end], v.base[start:end], v.alpha[start:end],
            text[:n], order[:n], floats, ints, shape, v.stored_at,
        )  # fmt: skip
        # a tree that fits takes the place of the one before
        if nodes > v.node_capacity[term]:
            if v.used[2] + nodes > v.node_ints.shape[0]:
                return i
            v.used[3] += v.node_capacity[term]
            v.node_start[term] = v.used[2]
            v.node_capacity[term] = nodes
            v.used[2] += nodes
        v.node_count[term] = nodes
        first_node = v.node_start[term]
        for node in range(nodes):
            put_row(v.node_floats, first_node + node, floats[node])
            put_row(v.node_ints, first_node + node, ints[node])
        # only now, when nothing can fail any more, the postings take the order of the tree
        _permute(v, c, start, n, order, kept, kept_ints)
        v.built[term] = n
        if v.inner.shape[0] or v.stop_base.shape[0]:
            _finish_groups(v, term, text, order, shape.l2)
    return due.shape[0]


@njit_inner
def _text_statistics(c, v, start, n, text):
    """(1 - alpha) * weight, norm after, sum from, maximum from, of each posting of a list, into text[:n]."""
    for p in range(n):
        slot, j = v.slot[start + p], v.ordinal[start + p]
        at = c.term_start[slot]
        # worked out again, since a posting keeps only the columns of rules that are on
        square = total = peak = 0.0
        for i in range(c.term_count[slot] - 1, j - 1, -1):
            weight = np.float64(c.weights[at + i])
            total += weight
            peak = max(peak, weight)
            # Theorem 5.1 takes sum and maximum from this term on, Cauchy-Schwarz the norm after it
            if i > j:
                square += weight * weight
        factor = 1.0 - c.alpha[slot]
        text[p, 0] = factor * c.weights[at + j]
        text[p, 1] = factor * math.sqrt(square)
        text[p, 2] = factor * total
        text[p, 3] = factor * peak


@njit_inner_no_refcount
def _permute_column(column, start, n, order, kept):
    if column.shape[0]:
        for p in range(n):
            kept[p] = column[start + order[p]]
        for p in range(n):
            column[start + p] = kept[p]


@njit_inner_no_refcount
def _permute(v, c, start, n, order, kept, kept_ints):
    """Bring the postings of a list into `order`."""
    _permute_column(v.slot, start, n, order, kept_ints)
    _permute_column(v.ordinal, start, n, order, kept_ints)
    _permute_column(v.signature, start, n, order, kept_ints)
    for column in (v.x, v.y, v.z, v.slope, v.base, v.alpha, v.own, v.rest, v.total, v.peak):
        _permute_column(column, start, n, order, kept)
    # no tombstone is left: `build_lists` has closed the gaps
    for p in range(start, start + n):
        c.position[c.term_start[v.slot[p]] + v.ordinal[p]] = p


@njit_inner
def _finish_groups(v, term, text, order, l2):
    """The columns that belong to a posting's group: `inner`, `stop_base`, `stop_text`."""
    start = v.start[term]
    for node in range(v.node_start[term], v.node_start[term] + v.node_count[term]):
        if v.node_ints[node, 2] != 1:
            continue
        first, last = v.node_ints[node, 0], v.node_ints[node, 1]
        box = v.node_floats[node]
        if v.inner.shape[0]:
            # any convex box around the posting bounds the way out of it (spec 1.5): here the shrunk one
            for p in range(start + first, start + last):
                across = min(v.x[p] - box[0], box[2] - v.x[p])
                across = min(across, v.y[p] - box[1], box[3] - v.y[p])
                if v.z.shape[0]:
                    across = min(across, v.z[p] - box[12], box[13] - v.z[p])
                v.inner[p] = max(np.float32(0.0), across)
        if v.stop_base.shape[0]:
            # from the end back: Theorem 5.4 wants maxima over all postings behind
            largest_base, largest_text = np.float32(-1e6), np.float32(0.0)
            for p in range(last - 1, first - 1, -1):
                largest_base = max(largest_base, v.base[start + p])
                # `text` is in the order before `_permute`
                row = text[order[p]]
                norm = np.float32(math.sqrt(row[0] * row[0] + row[1] * row[1]))
                # `_find_runs` gets the norm of the message or the sum of its weights: norm by norm, maximum by sum
                largest_text = max(largest_text, norm if l2 else row[3])
                v.stop_base[start + p] = largest_base
                v.stop_text[start + p] = largest_text
