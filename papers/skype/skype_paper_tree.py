"""The index of engine `skype_paper`: one quadtree over all subscriptions, an inverted file in each of its leaves.

A posting list of a leaf is parted into groups of equal size by alpha / (1 - alpha) (alpha-partition, section 5.2.1 of
the Skype paper), and a group ascends by `kappa` = threshold / (1 - alpha) (section 5.2.2). Terms of a leaf are found by
a hash table of its own. Nodes lie in preorder with the size of their subtrees.

Built at once by sorting (`build`); later thresholds are written into it. A threshold that falls and rises in a refill
leaves a group out of order, hence `stop_kappa`, the least kappa from a posting on, which is in order always.

Postings whose 1 - alpha is below `LEAST_TEXT`, or which have a radius of their own, have kappa minus infinity: the
division would lose its digits, and they go to the exact score.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Float32, Float64, Int32, Int64
from matching.topk.engines.skype_tree import partition

#: Subscriptions of a leaf and postings of a group at most, levels below the root at most.
LEAF, GROUP, DEEPEST = 8_192, 16, 20
#: Least weight of the text for which bounds are divided by it.
LEAST_TEXT = 1e-3
#: Added to stored sums and maxima of weights, which are float32.
_WIDER = np.float32(1.000001)
_EMPTY = -1


class PaperTree(NamedTuple):
    """Kernel view; n nodes, s subscriptions in order of the leaves, l lists, g groups, p postings.

    box : float64[n, 4]                  west, south, east, north of the cell
    size, depth, first, last : int32[n]  nodes of the subtree, 1 for a leaf; level; subscriptions below
    least : float64[n]                   least similarity in place that any below needs (Lemma 6)
    needs : float64[s]                   that of each, infinite for one that was removed
    leaf_of : int32[s]                   node of its leaf
    parent : int32[n]                    -1 for the root
    keys, lists : int32[h]               hash tables of the leaves: term or -1, and its list
    table, mask : int64[n]               where the table of a leaf begins, its length less one
    groups : int64[l + 1]                groups of a list
    postings : int64[g + 1]              postings of a group
    group_of : int32[p]
    slot : int32[p]                      -1 for one that was removed
    kappa, steep : float64[p]            threshold / (1 - alpha), alpha / (1 - alpha)
    inner : float64[p]                   distance of the subscription to the nearest side of its cell
    total, peak : float32[p]             sum and maximum of its weights from this term on
    stop_kappa, stop_steep : float64[p]  least kappa and largest steep from here to the end of the group
    stop_peak : float32[p]               largest peak likewise
    """

    box: Float64
    size: Int32
    depth: Int32
    first: Int32
    last: Int32
    least: Float64
    needs: Float64
    leaf_of: Int32
    parent: Int32
    keys: Int32
    lists: Int32
    table: Int64
    mask: Int64
    groups: Int64
    postings: Int64
    group_of: Int32
    slot: Int32
    kappa: Float64
    steep: Float64
    inner: Float64
    total: Float32
    peak: Float32
    stop_kappa: Float64
    stop_steep: Float64
    stop_peak: Float32


def build(c, slots: Int32, world: float, leaf: int = LEAF, group: int = GROUP) -> tuple[PaperTree, Int32]:
    """The tree of these slots, and the slots in its order; writes where their postings are into `c.position`.

    Parameters
    ----------
    c : Subscriptions    columns; terms with position -1 are left out
    slots : int32[s]
    world : float        MaxDist of subscriptions without a radius of their own
    leaf, group : int    subscriptions of a leaf, postings of a group at most

    Notes
    -----
    O(p log p).
    """
    x, y = c.x[slots], c.y[slots]
    order = np.arange(slots.shape[0], dtype=np.int32)
    # the unit square, or slightly more if rounding moved a place out of it
    west, south = min(0.0, x.min(initial=0.0)), min(0.0, y.min(initial=0.0))
    root = np.array([west, south, max(1.0, x.max(initial=1.0) - west, y.max(initial=1.0) - south)])
    most, nodes = 64, -1
    while nodes < 0:
        most *= 2
        box, ints = np.empty((most, 4)), np.empty((most, 5), np.int32)
        nodes = _part(x, y, leaf, order, root, box, ints)
    box, ints = box[:nodes].copy(), ints[:nodes].copy()
    size, depth, first, last, parent = (np.ascontiguousarray(column) for column in ints.T)
    slots = slots[order]
    leaves = np.flatnonzero(size == 1).astype(np.int32)
    leaf_of = np.repeat(leaves, last[leaves] - first[leaves])
    # one row a posting
    counts = c.term_count[slots].astype(np.int64)
    row = np.repeat(np.arange(slots.shape[0]), counts)
    at = np.repeat(c.term_start[slots] - np.cumsum(counts) + counts, counts) + np.arange(row.shape[0])
    total, peak = np.empty(at.shape[0], np.float32), np.empty(at.shape[0], np.float32)
    _suffixes(c.term_start, c.term_count, c.weights, slots, total, peak)
    posted = c.position[at] >= 0
    row, at, total, peak = row[posted], at[posted], total[posted], peak[posted]
    term, cell = c.terms[at], leaf_of[row]
    kappa, steep = terms_of_bound(c.alpha[slots], c.threshold[slots], c.max_distance[slots], world)
    kappa, steep = kappa[row], steep[row]
    by_alpha = np.lexsort((steep, term, cell))
    begins = np.ones(by_alpha.shape[0], np.bool_)
    begins[1:] = (np.diff(cell[by_alpha]) != 0) | (np.diff(term[by_alpha]) != 0)
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, by_alpha.shape[0]))
    parts = -(-lengths // group)
    groups = np.concatenate([[0], np.cumsum(parts)]).astype(np.int64)
    rank = np.arange(by_alpha.shape[0]) - np.repeat(starts, lengths)
    # quantiles: parts of nearly the same size
    group_of = np.repeat(groups[:-1], lengths) + rank * np.repeat(parts, lengths) // np.repeat(lengths, lengths)
    by_kappa = np.lexsort((kappa[by_alpha], group_of))
    picked, group_of = by_alpha[by_kappa], group_of[by_kappa].astype(np.int32)
    row, at, kappa, steep = row[picked], at[picked], kappa[picked], steep[picked]
    postings = np.searchsorted(group_of, np.arange(groups[-1] + 1)).astype(np.int64)
    c.position[at] = np.arange(at.shape[0])
    sides = box[leaf_of]
    px, py = c.x[slots], c.y[slots]
    inside = np.minimum(np.minimum(px - sides[:, 0], sides[:, 2] - px), np.minimum(py - sides[:, 1], sides[:, 3] - py))
    keys, lists, table, mask = _tables(nodes, cell[by_alpha][starts], term[by_alpha][starts])
    tree = PaperTree(
        box, size, depth, first, last, np.full(nodes, -np.inf), needed_places(c.alpha[slots], c.threshold[slots]),
        leaf_of, parent, keys, lists, table, mask, groups, postings, group_of, slots[row].astype(np.int32),
        kappa, steep, np.maximum(0.0, inside)[row], total[picked] * _WIDER, peak[picked] * _WIDER,
        np.empty_like(kappa), np.empty_like(kappa), np.empty(kappa.shape[0], np.float32),
    )  # fmt: skip
    _summarise(tree)
    return tree, slots


def empty_tree() -> PaperTree:
    """A tree without subscriptions."""
    none, few, wide = np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int64)
    narrow, ends = np.zeros(0, np.float32), np.zeros(1, np.int64)
    return PaperTree(
        np.zeros((0, 4)), few, few, few, few, none, none, few, few, few, few, wide, wide, ends, ends, few, few, none,
        none, none, narrow, narrow, none, none, narrow,
    )  # fmt: skip


def terms_of_bound(alpha: Float64, threshold: Float64, max_distance: Float64, world: float) -> tuple[Float64, Float64]:
    """`kappa` and `steep` of subscriptions. O(n)."""
    text = 1.0 - alpha
    bounded = (text >= LEAST_TEXT) & (max_distance == world)
    divisor = np.where(bounded, text, 1.0)
    return np.where(bounded, threshold / divisor, -np.inf), np.where(bounded, alpha / divisor, 0.0)


def needed_places(alpha: Float64, threshold: Float64) -> Float64:
    """The similarity in place that a subscription needs if its text is as good as can be (before Lemma 6). O(n)."""
    spatial = np.where(alpha > LEAST_TEXT, alpha, 1.0)
    return np.where(alpha > LEAST_TEXT, (threshold - (1.0 - alpha)) / spatial, -np.inf)


@njit(cache=True, nogil=True)
def _part(x, y, leaf, order, root, box, ints):
    """Part a square (west, south, side) into quadrants of `leaf` points at most; returns the nodes, -1 if too many."""
    stack, bounds = np.empty((4 * DEEPEST + 4, 4), np.int64), np.empty((4 * DEEPEST + 4, 3))
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, order.shape[0], 0, -1
    bounds[0] = root
    height, nodes = 1, 0
    while height:
        if nodes == ints.shape[0]:
            return -1
        height -= 1
        first, last, depth, parent = stack[height]
        west, south, side = bounds[height]
        box[nodes, 0], box[nodes, 1], box[nodes, 2], box[nodes, 3] = west, south, west + side, south + side
        ints[nodes, 0], ints[nodes, 1], ints[nodes, 2], ints[nodes, 3] = 1, depth, first, last
        ints[nodes, 4] = parent
        node = nodes
        nodes += 1
        if last - first <= leaf or depth == DEEPEST:
            continue
        half = 0.5 * side
        across = partition(order, first, last, x, west + half)
        low, high = partition(order, first, across, y, south + half), partition(order, across, last, y, south + half)
        cuts = (first, low, across, high, last)
        for quadrant in range(3, -1, -1):
            if cuts[quadrant] < cuts[quadrant + 1]:
                stack[height, 0], stack[height, 1] = cuts[quadrant], cuts[quadrant + 1]
                stack[height, 2], stack[height, 3] = depth + 1, node
                bounds[height, 0], bounds[height, 1] = west + half * (quadrant >> 1), south + half * (quadrant & 1)
                bounds[height, 2] = half
                height += 1
    for node in range(nodes - 1, 0, -1):
        ints[ints[node, 4], 0] += ints[node, 0]
    return nodes


@njit(cache=True, nogil=True)
def _suffixes(starts, counts, weights, slots, total, peak):
    """Sum and maximum of the weights from each term on, term by term of the slots."""
    end = 0
    for slot in slots:
        end += counts[slot]
        sum_ = largest = 0.0
        for j in range(counts[slot]):
            weight = np.float64(weights[starts[slot] + counts[slot] - 1 - j])
            sum_ += weight
            largest = max(largest, weight)
            total[end - 1 - j], peak[end - 1 - j] = sum_, largest


def _tables(nodes: int, cell: Int32, term: Int32) -> tuple[Int32, Int32, Int64, Int64]:
    """Hash tables of the lists, which are in order of their cells: see `PaperTree`."""
    count = np.bincount(cell, minlength=nodes)
    length = np.where(count > 0, 1 << np.ceil(np.log2(np.maximum(1, 2 * count))).astype(np.int64), 1)
    table = np.concatenate([[0], np.cumsum(length)[:-1]]).astype(np.int64)
    keys = np.full(int(length.sum()), _EMPTY, np.int32)
    lists = np.zeros_like(keys)
    mask = length - 1
    _fill_tables(cell, term, table, mask, keys, lists)
    return keys, lists, table, mask


@njit(cache=True, nogil=True)
def _fill_tables(cell, term, table, mask, keys, lists):
    for one in range(cell.shape[0]):
        at = table[cell[one]] + first_place(term[one], mask[cell[one]])
        while keys[at] != _EMPTY:
            at = table[cell[one]] + ((at - table[cell[one]] + 1) & mask[cell[one]])
        keys[at], lists[at] = term[one], one


@njit_inner
def first_place(term, mask):
    """Where a term is looked for first in a table."""
    return (np.int64(term) * 0x9E3779B1 >> 15) & mask


@njit_no_refcount
def _stop(tree, group):
    """Recompute what is from each posting of a group on."""
    kappa, steep, peak = np.inf, 0.0, np.float32(0.0)
    for p in range(tree.postings[group + 1] - 1, tree.postings[group] - 1, -1):
        kappa, steep, peak = min(kappa, tree.kappa[p]), max(steep, tree.steep[p]), max(peak, tree.peak[p])
        tree.stop_kappa[p], tree.stop_steep[p], tree.stop_peak[p] = kappa, steep, peak


@njit_inner_no_refcount
def _least_of_leaf(tree, node):
    """Recompute what a leaf needs at least, and the nodes above it."""
    least = np.inf
    for s in range(tree.first[node], tree.last[node]):
        least = min(least, tree.needs[s])
    tree.least[node] = least
    above = tree.parent[node]
    while above >= 0:
        least, child = np.inf, above + 1
        while child < above + tree.size[above]:
            least = min(least, tree.least[child])
            child += tree.size[child]
        if tree.least[above] == least:
            return
        tree.least[above] = least
        above = tree.parent[above]


@njit(cache=True, nogil=True)
def _summarise(tree):
    for group in range(tree.postings.shape[0] - 1):
        _stop(tree, group)
    for node in range(tree.size.shape[0] - 1, -1, -1):
        least = np.inf
        if tree.size[node] == 1:
            for s in range(tree.first[node], tree.last[node]):
                least = min(least, tree.needs[s])
        else:
            child = node + 1
            while child < node + tree.size[node]:
                least = min(least, tree.least[child])
                child += tree.size[child]
        tree.least[node] = least


@njit(cache=True, nogil=True)
def set_bounds(tree, c, slots, place, kappa, needs):
    """Write the `kappa` and `needs` (float64[n]) of slots that are in the tree at `place` (int32[slots]) into it.

    At once, up and down: what falls would lose results, and what waits for a refill would spoil its cells for good.
    O(terms * group), and O(leaf) more where it is the least of its leaf.
    """
    for i in range(slots.shape[0]):
        slot = slots[i]
        s = place[slot]
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            p = c.position[at]
            if p >= 0 and tree.kappa[p] != kappa[i]:
                tree.kappa[p] = kappa[i]
                _stop(tree, tree.group_of[p])
        node, before = tree.leaf_of[s], tree.needs[s]
        tree.needs[s] = needs[i]
        if needs[i] < tree.least[node] or before <= tree.least[node]:
            _least_of_leaf(tree, node)


@njit(cache=True, nogil=True)
def take_out(tree, c, slots):
    """Leave tombstones in place of the postings of slots whose bounds have been made infinite."""
    for slot in slots:
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            if c.position[at] >= 0:
                tree.slot[c.position[at]] = -1
