"""The tree over one posting list of engine `skype`: quadtree cells down to groups of postings alike in alpha and bound.

The paper has one quadtree over all subscriptions and an inverted file in each leaf. Here every keyword has a quadtree
of its own over its postings, so that a rare keyword has no tree at all and a frequent one has small cells where its
subscriptions crowd; a cell is shrunk to its content. Nodes lie in preorder, each with the number of nodes under it, so
that a cell that cannot matter is skipped in one step. A leaf is a *group* of at most `group_size` postings.

A node keeps maxima that bound every posting in it (multiplied form: no division by 1 - alpha). With d the distance from
the message to its box, score - threshold <= envelope(d) + text, where envelope(d) = max (base - slope * d) over its
postings. That maximum is convex in d, so chords between a few stored values lie above it.

Built in two ways: `adaptive` splits a node by what its postings differ in most (place, alpha, base, text); otherwise as
the paper does, cells first, down to `cell_size`, then by alpha.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.model import Float32, Int32
from matching.storage.slots import put
from matching.storage.sorting import ascending

#: Number of columns of node_floats. 0-3: box west, south, east, north; 4: least slope; 5-7: envelope at 0, near and
#: far; 8-11: maxima of own, rest, total and peak (see `matching.topk.engines.skype_lists`). On the sphere, where boxes
#: are of unit vectors, also 12-13: least and largest z; 14: least alpha.
FLOATS, SPHERE_FLOATS = 12, 15
#: Number of columns of node_ints. 0-1: first and last (exclusive) posting; 2: nodes of the subtree (1: a group).
INTS = 3
#: Distances at which a node stores its envelope, in the unit square; the same on the sphere, as parts of MaxDist.
_NEAR, _FAR = 0.06, 0.3
_NEAR_PART, _FAR_PART = 0.054, 0.27
#: Nodes from the root to a group at most.
DEEPEST = 96
_QUADRANTS_DOWN_TO = 60
#: Weights of spreads in `_choose`, by what a spread adds to the bound of a group: of the slope (a typical distance in
#: the unit square; on the sphere, as a part of MaxDist: `_DISTANCE_PART`), of own and of rest.
_DISTANCE, _WEIGHT, _REST = 0.2, 0.3, 0.4
_DISTANCE_PART = 0.4


class TreeShape(NamedTuple):
    """Parameters of the construction of trees.

    adaptive : bool    split by what the postings of a node differ in most; else cells first, then alpha
    group_size : int   postings of a group at most
    cell_size : int    cells are split into quadrants down to this many postings, if not `adaptive`
    l2 : bool          early termination bounds texts by norms, else by sums and maxima
    """

    adaptive: bool
    group_size: int
    cell_size: int
    l2: bool


class Tree(NamedTuple):
    """The tree of a term, and the columns of the built postings of its list.

    floats : float32[n, FLOATS or SPHERE_FLOATS], ints : int32[n, INTS]
    slope, base, stop_base : float32[p]   see `matching.topk.engines.skype_lists.SkypeListView`; stop_base is empty
                                          without early termination
    stored_at : float32[5]                `envelope_places`
    """

    floats: Float32
    ints: Int32
    slope: Float32
    base: Float32
    stop_base: Float32
    stored_at: Float32


def envelope_places(farthest: float | None = None) -> Float32:
    """float32[5]: near and far (where nodes store envelopes), 1 / near, 1 / (far - near), a typical distance.

    farthest : float, optional    MaxDist in radians, on the sphere; None in the plane
    """
    chosen = np.array([_NEAR, _FAR, _DISTANCE], np.float32)
    if farthest is not None:
        chosen = np.array([_NEAR_PART, _FAR_PART, _DISTANCE_PART], np.float32) * np.float32(farthest)
    near, far, typical = chosen
    return np.array([near, far, 1.0 / np.float64(near), 1.0 / np.float64(far - near), typical], np.float32)


@njit(cache=True, nogil=True)
def build_tree(x, y, z, slope, base, alpha, text, order, floats, ints, shape, stored_at):
    """Split postings into cells and groups; returns the number of nodes.

    Parameters
    ----------
    x, y, slope, base : float32[p]
    z, alpha : float32[p]    empty in the plane
    text : float32[p, 4]     own, rest, total, peak
    order : int32[p]         output: the order of the postings in which every node is a run
    floats, ints             output: capacity for at least 2 p nodes
    shape : TreeShape
    stored_at : float32[5]   `envelope_places`

    Notes
    -----
    O(p log p) expected.
    """
    n = order.shape[0]
    key = np.empty(n, np.float32)
    # a level leaves three nodes on the stack at most; below `_QUADRANTS_DOWN_TO` come halves only, at most 31 levels
    stack = np.empty((4 * DEEPEST, 3), np.int64)
    for p in range(n):
        order[p] = p
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, n, 0
    height = 1
    nodes = 0
    while height:
        height -= 1
        first, last, depth = stack[height, 0], stack[height, 1], stack[height, 2]
        row = floats[nodes]
        _summarise(x, y, slope, base, text, order, first, last, row, stored_at)
        if z.shape[0]:
            _summarise_sphere(z, alpha, order, first, last, row)
        ints[nodes, 0], ints[nodes, 1] = first, last
        nodes += 1
        if last - first <= shape.group_size:
            continue
        across, along, west, south, east, north = _sides(x, y, z, row)
        wide = max(east - west, north - south)
        if shape.adaptive:
            by = _choose(x, y, z, slope, base, text, order, first, last, stored_at[4])
        else:
            by = 0 if last - first > shape.cell_size else 1
        cuts = (first, first, first, first, last)
        # a box without width is not split by place: equal points would stay together for ever
        if by == 0 and wide > 0.0 and depth < _QUADRANTS_DOWN_TO:
            middle_x, middle_y = (west + east) * np.float32(0.5), (south + north) * np.float32(0.5)
            half = partition(order, first, last, across, middle_x)
            cuts = (
                first,
                partition(order, first, half, along, middle_y),
                half,
                partition(order, half, last, along, middle_y),
                last,
            )
        # if the box is one float32 step wide, its middle may round to the lower side, and one quadrant gets all points:
        # a chain of nodes with one child each would exceed the capacity for nodes
        most = max(cuts[1] - cuts[0], cuts[2] - cuts[1], cuts[3] - cuts[2], cuts[4] - cuts[3])
        if most < last - first:
            # push the last quadrant first: the stack reverses them, and preorder must follow `order`
            for quadrant in range(3, -1, -1):
                if cuts[quadrant] < cuts[quadrant + 1]:
                    stack[height, 0], stack[height, 1] = cuts[quadrant], cuts[quadrant + 1]
                    stack[height, 2] = depth + 1
                    height += 1
        else:
            for p in range(first, last):
                i = order[p]
                key[i] = base[i] if by == 2 else text[i, 0] if by == 3 else text[i, 1] if by == 4 else slope[i]
            # halves by rank, not by value, so that equal keys are split, too
            middle = (first + last) // 2
            _select(order, first, last, middle, key)
            stack[height, 0], stack[height, 1], stack[height, 2] = middle, last, depth + 1
            stack[height + 1, 0], stack[height + 1, 1], stack[height + 1, 2] = first, middle, depth + 1
            height += 2
    # backwards in preorder, so that children are counted before their parent; a child begins in its parent's run
    for node in range(nodes - 1, -1, -1):
        size = 1
        while node + size < nodes and ints[node + size, 0] < ints[node, 1]:
            size += ints[node + size, 2]
        ints[node, 2] = size
        if size == 1:
            # early termination needs postings by descending base
            group = order[ints[node, 0] : ints[node, 1]].copy()
            put(order, ints[node, 0], group[ascending(-base[group])])
    return nodes


@njit(cache=True, nogil=True)
def _sides(x, y, z, row):
    """The two coordinates by which a node is split into quadrants, and its box in them: west, south, east, north.

    On the sphere the two of x, y, z in which the box is widest: a small part of the sphere is nearly flat.
    """
    if z.shape[0]:
        wide_x, wide_y, wide_z = row[2] - row[0], row[3] - row[1], row[13] - row[12]
        if wide_x < min(wide_y, wide_z):
            return y, z, row[1], row[12], row[3], row[13]
        if wide_y < wide_z:
            return x, z, row[0], row[12], row[2], row[13]
    return x, y, row[0], row[1], row[2], row[3]


@njit_inner
def _summarise_sphere(z, alpha, order, first, last, row):
    """Write the columns of a node's floats that exist on the sphere only: 12 to 14 of `row`."""
    row[12] = row[14] = np.inf
    row[13] = -np.inf
    for p in range(first, last):
        i = order[p]
        row[12], row[13] = min(row[12], z[i]), max(row[13], z[i])
        row[14] = min(row[14], alpha[i])


@njit(cache=True, nogil=True)
def _summarise(x, y, slope, base, text, order, first, last, row, stored_at):
    """Write the columns 0 to 11 of a node's floats, `row`, for the postings order[first:last]. O(postings)."""
    near, far = stored_at[0], stored_at[1]
    row[0] = row[1] = row[4] = np.inf
    row[2] = row[3] = row[5] = row[6] = row[7] = -np.inf
    row[8] = row[9] = row[10] = row[11] = 0.0
    for p in range(first, last):
        i = order[p]
        row[0], row[2] = min(row[0], x[i]), max(row[2], x[i])
        row[1], row[3] = min(row[1], y[i]), max(row[3], y[i])
        row[4] = min(row[4], slope[i])
        row[5] = max(row[5], base[i])
        # maximum of all lines at that distance; the two maxima may come from different postings
        row[6] = max(row[6], base[i] - slope[i] * near)
        row[7] = max(row[7], base[i] - slope[i] * far)
        for column in range(4):
            # the four maxima may come from different postings: their sum is a looser bound, but still one
            row[8 + column] = max(row[8 + column], text[i, column])


@njit(cache=True, nogil=True)
def _choose(x, y, z, slope, base, text, order, first, last, distance):
    """The statistic to split a node by: 0 place, 1 alpha (slope), 2 base, 3 own, 4 rest."""
    count = last - first
    columns = 7 if z.shape[0] else 6
    mean = np.zeros(columns)
    square = np.zeros(columns)
    value = np.zeros(columns)
    for p in range(first, last):
        i = order[p]
        value[0], value[1], value[2] = x[i], y[i], slope[i]
        # the base of a subscription without a threshold is 1e6, a spread above all others
        value[3] = min(np.float32(1.0), base[i])
        value[4], value[5] = text[i, 0], text[i, 1]
        if z.shape[0]:
            value[6] = z[i]
        for column in range(columns):
            mean[column] += value[column]
            square[column] += value[column] * value[column]
    # rounding may make the variance slightly negative
    mean /= count
    spread = np.sqrt(np.maximum(0.0, square / count - mean * mean))
    apart = spread[0] * spread[0] + spread[1] * spread[1]
    if z.shape[0]:
        apart += spread[6] * spread[6]
    # estimate of how much each spread loosens the bound of a group for a typical message
    loss = np.array(
        [
            mean[2] * np.sqrt(apart),
            spread[2] * distance,
            spread[3],
            spread[4] * _WEIGHT,
            spread[5] * _REST,
        ]
    )
    return np.argmax(loss)


@njit(cache=True, nogil=True)
def partition(order, first, last, key, limit):
    """Move entries with key < limit to the front of order[first:last]; returns the index behind them."""
    front = first
    for p in range(first, last):
        if key[order[p]] < limit:
            order[p], order[front] = order[front], order[p]
            front += 1
    return front


@njit_inner
def _select(order, first, last, nth, key):
    """Partial sort of order[first:last] by key (quickselect): no larger key before `nth`, no smaller one behind it."""
    low, high = first, last - 1
    while low < high:
        pivot = key[order[(low + high) // 2]]
        i, j = low, high
        while i <= j:
            # stop at keys equal to the pivot: many equal keys still give even parts, and i and j stay in the range
            while key[order[i]] < pivot:
                i += 1
            while key[order[j]] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        # continue with the part that contains `nth` only: O(n) expected
        if nth <= j:
            high = j
        elif nth >= i:
            low = i
        else:
            return


@njit_inner_no_refcount
def change_base(tree, local, base, path):
    """Set the base of a built posting, and keep the maxima of its group and of all ancestors exact.

    Parameters
    ----------
    tree : Tree
    local : int              index of the posting from the start of its list
    base : float32
    path : int32[DEEPEST]    scratch

    Notes
    -----
    O(depth), plus O(group + children) for each node whose maximum the posting was. A maximum that stays too high would
    cost time only; but the base of a subscription in a refill is 1e6, and would disable its cells for good.
    """
    floats, ints = tree.floats, tree.ints
    near, far = tree.stored_at[0], tree.stored_at[1]
    old, slope = tree.base[local], tree.slope[local]
    tree.base[local] = base
    new_near, new_far = base - slope * near, base - slope * far
    node = depth = 0
    while True:
        row = floats[node]
        # on the way down, only raise maxima; if the base falls, the loop below lowers them
        row[5] = max(row[5], base)
        row[6] = max(row[6], new_near)
        row[7] = max(row[7], new_far)
        path[depth] = node
        depth += 1
        if ints[node, 2] == 1:
            break
        node += 1
        while ints[node, 1] <= local:
            node += ints[node, 2]
    first, last = ints[node, 0], ints[node, 1]
    if tree.stop_base.shape[0]:
        # suffix maxima stay valid though the bases need not be in descending order any more
        for p in range(local, first - 1, -1):
            behind = tree.stop_base[p + 1] if p + 1 < last else np.float32(-1e6)
            tree.stop_base[p] = max(tree.base[p], behind)
    if base >= old:
        return
    # slack for a float32 sum that the compiler may have rounded differently
    old_near, old_far = old - slope * near + np.float32(1e-6), old - slope * far + np.float32(1e-6)
    # from the group up: the maximum of a cell is that of its children
    for level in range(depth - 1, -1, -1):
        node = path[level]
        row = floats[node]
        if old < row[5] and old_near < row[6] and old_far < row[7]:
            return  # the maxima come from other postings, here and so in all ancestors
        at_zero = at_near = at_far = np.float32(-np.inf)
        if ints[node, 2] == 1:
            for p in range(first, last):
                at_zero = max(at_zero, tree.base[p])
                at_near = max(at_near, tree.base[p] - tree.slope[p] * near)
                at_far = max(at_far, tree.base[p] - tree.slope[p] * far)
        else:
            child = node + 1
            while child < node + ints[node, 2]:
                at_zero = max(at_zero, floats[child, 5])
                at_near = max(at_near, floats[child, 6])
                at_far = max(at_far, floats[child, 7])
                child += ints[child, 2]
        # columns 8 to 11 stay: maxima of dead postings are too high, which is safe
        row[5], row[6], row[7] = at_zero, at_near, at_far
