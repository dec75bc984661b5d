"""The R-tree under window indexes: nodes as flat arrays, and the parts of an insertion and a removal.

Entries of a leaf are slots of messages, those of an inner node are nodes. An index keeps the texts of its nodes
(`papers.skyline.mf_rtree`), hence insertion in parts: `choose_leaf`, `put`, then `split` for each node that overflows.
An empty node is removed; an underfull one stays, as is usual for trees under a stream.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Float64, Int8, Int32, Int64
from matching.storage.slots import resized

#: Entries of a node at most: the capacity C of the paper's formula.
FANOUT = 40
#: Fewest entries of either half of a split node.
_FEWEST = 16
#: A tree of 2**31 messages with nodes filled to _FEWEST is lower than this.
HIGHEST = 10
#: Capacity of the stack of a depth-first search.
STACK = HIGHEST * (FANOUT + 1)
#: Positions in `meta`; the last two count what updates have read and written since the start.
ROOT, _FREE, HIGH, USED, READS, WRITES, LISTS, MEMO = range(8)
#: Level of a node that is not in use.
_UNUSED = -1
_NONE = -1


class RTree(NamedTuple):
    """box : float64[n, 4]           west, south, east, north in degrees: the smallest around its entries
    child : int32[n, FANOUT + 1]  slots (leaf) or nodes; one place too many, for the time until the split
    count : int32[n]              entries in use
    parent : int32[n]             -1 for the root; the next free node for a node that is not in use
    level : int8[n]               0 for a leaf, -1 if not in use
    meta : int64[8]               root, first free node, nodes ever used, nodes in use, then counts of update
                                  operations: nodes read, nodes written, inverted lists, memo entries
    """

    box: Float64
    child: Int32
    count: Int32
    parent: Int32
    level: Int8
    meta: Int64


def new_rtree() -> RTree:
    """A tree that is one empty leaf."""
    nodes = 32
    tree = RTree(
        np.zeros((nodes, 4)), np.zeros((nodes, FANOUT + 1), np.int32), np.zeros(nodes, np.int32),
        np.full(nodes, _NONE, np.int32), np.full(nodes, _UNUSED, np.int8), np.zeros(8, np.int64),
    )  # fmt: skip
    tree.meta[_FREE] = _NONE
    tree.meta[HIGH] = tree.meta[USED] = 1
    tree.level[0] = 0
    return tree


def grown(tree: RTree) -> RTree:
    """The tree with half as many nodes again."""
    length = tree.count.shape[0] * 3 // 2 + HIGHEST
    columns = {name: resized(getattr(tree, name), length) for name in ("box", "child", "count")}
    parent, level = resized(tree.parent, length, _NONE), resized(tree.level, length, _UNUSED)
    return tree._replace(parent=parent, level=level, **columns)


def used_bytes(tree: RTree) -> int:
    """Memory of nodes that are or were in use."""
    high = int(tree.meta[HIGH])
    return sum(column[:high].nbytes for column in tree[:-1]) + tree.meta.nbytes


@njit(cache=True, nogil=True)
def nodes_left(tree):
    """How many nodes can be made without growing."""
    return tree.count.shape[0] - tree.meta[USED]


@njit_inner_no_refcount
def new_node(tree, level):
    """An empty node; there must be one left."""
    node = tree.meta[_FREE]
    if node >= 0:
        tree.meta[_FREE] = tree.parent[node]
    else:
        node = tree.meta[HIGH]
        tree.meta[HIGH] += 1
    tree.meta[USED] += 1
    tree.level[node], tree.count[node], tree.parent[node] = level, 0, _NONE
    return node


@njit_inner
def _free_node(tree, node):
    # loops over all nodes skip it by its level
    tree.level[node], tree.count[node], tree.parent[node] = _UNUSED, 0, tree.meta[_FREE]
    tree.meta[_FREE] = node
    tree.meta[USED] -= 1


@njit_inner
def choose_leaf(tree, lon, lat):
    """The leaf for a point: at each level the child whose circumference grows least, of equals the smallest one.

    Circumference, not area: boxes of points are often flat, and a flat box has no area to grow.
    """
    node = np.int64(tree.meta[ROOT])
    tree.meta[READS] += 1
    while tree.level[node] > 0:
        # coordinates are finite, so some child is always better than infinity
        best, least, size = -1, np.inf, np.inf
        for i in range(tree.count[node]):
            child = tree.child[node, i]
            box = tree.box[child]
            around = (box[2] - box[0]) + (box[3] - box[1])
            grown_around = (max(box[2], lon) - min(box[0], lon)) + (max(box[3], lat) - min(box[1], lat))
            more = grown_around - around
            # a point may lie inside several boxes, none of which grows: then the smallest
            if more < least or (more == least and around < size):
                best, least, size = child, more, around
        node = np.int64(best)
        tree.meta[READS] += 1
    return node


@njit(cache=True, nogil=True)
def entry_box(tree, log, node, i, out):
    """Box of the i-th entry of a node, into out (float64[4])."""
    child = tree.child[node, i]
    if tree.level[node] == 0:
        out[0], out[1], out[2], out[3] = log.lon[child], log.lat[child], log.lon[child], log.lat[child]
    else:
        for side in range(4):
            out[side] = tree.box[child, side]


@njit_inner
def fit_box(tree, log, node):
    """Make a node's box the smallest around its entries; returns whether it changed. O(entries)."""
    west, south, east, north = np.inf, np.inf, -np.inf, -np.inf
    box = np.empty(4)
    for i in range(tree.count[node]):
        entry_box(tree, log, node, i, box)
        west, south, east, north = min(west, box[0]), min(south, box[1]), max(east, box[2]), max(north, box[3])
    own = tree.box[node]
    # if not, nothing above can change either
    changed = own[0] != west or own[1] != south or own[2] != east or own[3] != north
    own[0], own[1], own[2], own[3] = west, south, east, north
    return changed


@njit_inner
def widen_box(tree, node, lon, lat):
    """Make a node's box contain a point; returns whether it changed."""
    box = tree.box[node]
    if box[0] <= lon <= box[2] and box[1] <= lat <= box[3]:
        return False
    box[0], box[1], box[2], box[3] = min(box[0], lon), min(box[1], lat), max(box[2], lon), max(box[3], lat)
    return True


@njit(cache=True, nogil=True)
def put(tree, node, i, child):
    """Insert an entry into a node as its i-th; the i-th moves to the end."""
    tree.child[node, tree.count[node]] = tree.child[node, i]
    tree.child[node, i] = child
    tree.count[node] += 1


@njit_inner_no_refcount
def new_root(tree):
    """Put a node above the root, with the old root as its only entry and with its box; returns it."""
    old = tree.meta[ROOT]
    root = new_node(tree, tree.level[old] + 1)
    tree.child[root, 0], tree.count[root], tree.parent[old] = old, 1, root
    for side in range(4):
        # it covers both halves, so a split need not change it
        tree.box[root, side] = tree.box[old, side]
    tree.meta[ROOT] = root
    tree.meta[WRITES] += 1
    return root


@njit(cache=True, nogil=True)
def split(tree, log, node):
    """Move the better part of a node that is too full to a new one beside it, which is returned. O(FANOUT^2).

    The cut goes across the axis, and at the place, at which the circumferences of both sides are least. The node must
    have a parent.
    """
    count = tree.count[node]
    boxes, order, best_order = np.empty((count, 4)), np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(count):
        entry_box(tree, log, node, i, boxes[i])
    least, cut = np.inf, count // 2  # some cut is always better than infinity
    below = np.empty(count)
    for axis in range(2):
        for i in range(count):  # by the middle along the axis
            middle, at = boxes[i, axis] + boxes[i, axis + 2], i
            while at > 0 and boxes[order[at - 1], axis] + boxes[order[at - 1], axis + 2] > middle:
                order[at] = order[at - 1]
                at -= 1
            order[at] = i
        # forward the circumference of what lies below each cut, backward that of what lies above
        for forward in (True, False):
            west, south, east, north = np.inf, np.inf, -np.inf, -np.inf
            for k in range(count):
                i = k if forward else count - 1 - k
                box = boxes[order[i]]
                west, south, east, north = min(west, box[0]), min(south, box[1]), max(east, box[2]), max(north, box[3])
                around = (east - west) + (north - south)
                if forward:
                    below[i] = around
                # or nodes with next to nothing in them would be split off
                elif _FEWEST <= i <= count - _FEWEST and around + below[i - 1] < least:
                    least, cut = around + below[i - 1], i
                    for k in range(count):
                        best_order[k] = order[k]
    other = new_node(tree, tree.level[node])
    children = np.empty(count, np.int32)
    for i in range(count):
        children[i] = tree.child[node, i]
    for i in range(count):
        target, place = (node, i) if i < cut else (other, i - cut)
        child = children[best_order[i]]
        tree.child[target, place] = child
        if tree.level[node] > 0:
            tree.parent[child] = target
    tree.count[node], tree.count[other] = cut, count - cut
    fit_box(tree, log, node)
    fit_box(tree, log, other)
    # the box above stays: the same entries are below
    above = tree.parent[node]
    tree.parent[other] = above
    # it may overflow now: the caller continues there
    put(tree, above, tree.count[above], other)
    tree.meta[WRITES] += 3
    return other


@njit_inner
def remove_empty(tree, node, gone):
    """Take an empty node out, and those above that become empty by it; the root may stay empty, as a leaf.

    Writes the nodes taken out to gone (int32[HIGHEST]); returns how many, and the lowest node that stays.
    """
    count = 0
    while tree.count[node] == 0 and node != tree.meta[ROOT]:
        above = tree.parent[node]
        i = 0
        while tree.child[above, i] != node:
            i += 1
        tree.count[above] -= 1
        tree.child[above, i] = tree.child[above, tree.count[above]]
        _free_node(tree, node)
        gone[count] = node
        count += 1
        tree.meta[WRITES] += 1
        node = above
    return count, node


@njit_inner
def fit_upwards(tree, log, node):
    """Shrink the boxes of a node and of those above it, as far up as they change."""
    while node >= 0 and tree.count[node]:
        tree.meta[READS] += 1
        # boxes above were fitted to this very box
        if not fit_box(tree, log, node):
            return
        tree.meta[WRITES] += 1
        node = tree.parent[node]


@njit(cache=True, nogil=True)
def shorten(tree, gone):
    """Take the root out while it has one child only; returns how many, written to gone (int32[HIGHEST])."""
    count = 0
    root = tree.meta[ROOT]
    # or every search would visit nodes of one child
    while tree.level[root] > 0 and tree.count[root] == 1:
        below = tree.child[root, 0]
        _free_node(tree, root)
        gone[count] = root
        count += 1
        tree.parent[below] = _NONE
        tree.meta[ROOT] = below
        tree.meta[WRITES] += 1
        root = np.int64(below)
    return count


@njit_no_refcount
def meets(box, region):
    """Whether two closed rectangles have a point in common."""
    return box[0] <= region[2] and region[0] <= box[2] and box[1] <= region[3] and region[1] <= box[3]
