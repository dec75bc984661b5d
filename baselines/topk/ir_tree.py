"""Window index `ir_tree`: an R-tree over the points of a generation whose nodes have inverted lists of their children.

The tree is packed by Sort-Tile-Recursive. A node lists, for each term below it, the children that hold the term and the
largest weight there; a leaf lists messages and their weights, so that a score follows from the leaf alone. A child is
bounded by its box and by the sum of weights times largest weights, or the norms of both where those are less. Nodes are
visited best bound first.

After the IR-tree (Cong, Jensen, Wu, PVLDB 2009) and Sort-Tile-Recursive packing (Leutenegger, Lopez, Edgington, ICDE
1997). See `matching.topk.windows.generations` for how messages come and go.
"""

import math
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_no_refcount
from matching.model import Float32, Float64, Int32, Int64
from matching.topk.windows.generations import GenerationIndex
from matching.topk.windows.search import (
    SLACK,
    QueryRows,
    Span,
    WindowHits,
    WindowRows,
    extend_queue,
    more_hits,
    note,
    pop,
    push,
    replace_least,
    row_place,
    score_of,
    settle_row,
    within,
)

_SLACK = SLACK
#: Children of a node, messages of a leaf: fits an int8; also the increment by which hit columns grow.
_FAN_OUT = 64


class IRTree(NamedTuple):
    """A packed R-tree of n nodes, those of a level side by side, leaves first, the root last.

    order : int32[messages]    message of each place; places 64 i to 64 i + 63 are leaf i
    boxes : float32[n, 4]      x from, y from, x to, y to: rounded outwards
    parts : int64[n + 1, 2]    first child (a place, for leaves), first entry of `keys`
    keys : int32[q]            terms below the node, ascending
    entries : int64[q + 1]     first child that has the term
    child : int8[e]            counted from the first of the node
    weight : float32[e]        largest of the term there
    norm : float64[1]          the largest of a message
    leaves : int64[1]          how many nodes are leaves
    """

    order: Int32
    boxes: Float32
    parts: Int64
    keys: Int32
    entries: Int64
    child: np.ndarray
    weight: Float32
    norm: Float64
    leaves: Int64


class IRTrees(GenerationIndex):
    """A packed IR-tree for each generation.

    Notes
    -----
    `store` is O(1); a message is indexed in O(terms * log(window) * log(window / batch)) amortised. A query visits the
    nodes that its bar cannot rule out, and in each the lists of its terms.
    """

    name = "ir_tree"

    def _build(self, rows: WindowRows) -> IRTree:
        return build_ir_tree(rows)

    def _search_one(self, index: IRTree, rows: WindowRows, queries: QueryRows, span: Span) -> WindowHits:
        return WindowHits(*_search(index, rows, queries, span))


def build_ir_tree(rows: WindowRows) -> IRTree:
    """Index messages. O(p log p) for p postings."""
    n = len(rows)
    x, y = rows.point[:, 0], rows.point[:, 1]
    slices = max(1, math.ceil(math.sqrt(n / _FAN_OUT)))
    by_x = np.argsort(x, kind="stable")
    slice_of = np.empty(n, np.int64)
    slice_of[by_x] = np.arange(n) * slices // n
    order = np.lexsort((y, slice_of)).astype(np.int32)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    # margins: float32 rounds coordinates by less
    corners = np.stack((x - 1e-6, y - 1e-6, x + 1e-6, y + 1e-6), axis=1)[order].astype(np.float32)
    owner, term, weight = np.repeat(place, rows.head[:, 3] - rows.head[:, 2]), rows.terms, rows.weights
    square = np.bincount(owner, weights=weight.astype(np.float64) ** 2, minlength=n)
    width = int(term.max(initial=0)) + 1
    levels = []
    while True:
        firsts = np.arange(0, corners.shape[0], _FAN_OUT)
        corners = np.concatenate(
            [np.minimum.reduceat(corners[:, :2], firsts), np.maximum.reduceat(corners[:, 2:], firsts)], axis=1
        )
        key = (owner // _FAN_OUT) * width + term
        by_key = np.argsort(key, kind="stable")
        key, child, weight = key[by_key], (owner[by_key] % _FAN_OUT).astype(np.int8), weight[by_key]
        begins = np.flatnonzero(np.r_[True, key[1:] != key[:-1]]) if key.size else np.zeros(0, np.int64)
        owner, term = key[begins] // width, (key[begins] % width).astype(np.int32)
        levels.append((corners, owner, term, begins, child, weight))
        if corners.shape[0] == 1:
            break
        weight = np.maximum.reduceat(weight, begins) if begins.size else weight
    return _stack(order, levels, math.sqrt(float(square.max(initial=0.0))))


def _stack(order: Int32, levels: list, norm: float) -> IRTree:
    """Lay the levels of a tree one behind the other."""
    nodes = sum(level[0].shape[0] for level in levels)
    parts = np.zeros((nodes + 1, 2), np.int64)
    entries = []
    node = first_key = first_entry = first_child = 0
    for boxes, owner, term, begins, child, _ in levels:
        count = boxes.shape[0]
        parts[node : node + count, 0] = first_child + np.arange(count) * _FAN_OUT
        parts[node : node + count, 1] = first_key + np.searchsorted(owner, np.arange(count))
        entries.append(begins + first_entry)
        first_child = node  # the children of the next level are the nodes of this one
        node, first_key, first_entry = node + count, first_key + term.size, first_entry + child.size
    parts[nodes, 1] = first_key
    joined = [np.concatenate([level[i] for level in levels]) for i in (0, 2, 4, 5)]
    return IRTree(
        order,
        joined[0],
        parts,
        joined[1],
        np.concatenate([*entries, np.array([first_entry])]),
        joined[2],
        joined[3],
        np.array([norm]),
        np.array([levels[0][0].shape[0]]),
    )


@njit(cache=True, nogil=True)
def _search(tree, rows, queries, span):
    """Find the tree's messages of the span that reach the bars; returns the arrays of `WindowHits`."""
    messages, scores = np.empty((256, 3), np.int64), np.empty(256)
    found = 0
    text, square = np.empty(_FAN_OUT), np.empty(_FAN_OUT)
    bounds, nodes = np.empty(256), np.empty((256, 2), np.int64)
    leaves = tree.leaves[0]
    for r in queries.order:
        before = found
        push(bounds, nodes, 0, np.inf, tree.boxes.shape[0] - 1, 0)
        count = 1
        # best bound first: once it is below the bar, so are all the others, and ties at it are still taken
        while count > 0 and bounds[0] >= queries.best[queries.bars[r]]:
            node = nodes[0, 0]
            pop(bounds, nodes, count)
            count -= 1
            if not _gather(tree, node, queries, r, text, square):
                continue
            if node >= leaves:
                bounds, nodes = extend_queue(bounds, nodes, count + _FAN_OUT)
                count = _push_children(tree, node, queries, r, text, square, bounds, nodes, count)
                continue
            # capacity for a whole leaf, so that `_visit_leaf` need not check
            if found + _FAN_OUT > scores.shape[0]:
                messages, scores = more_hits(messages, scores)
            found = _visit_leaf(tree, node, rows, queries, span, r, text, square, messages, scores, found)
        found = settle_row(queries, r, span, messages, scores, before, found)
    return messages[:found].copy(), scores[:found].copy()


@njit_no_refcount
def _gather(tree, node, queries, r, text, square):
    """Sum up, for each child, weight times largest weight into `text` and squared weight into `square` (-1: no term).

    Returns whether any child has any term. For leaves the sums are exact, since each child is a message.
    """
    keys, entries, child, weight = tree.keys, tree.entries, tree.child, tree.weight
    text[:] = 0.0
    square[:] = -1.0
    low = tree.parts[node, 1]
    end = tree.parts[node + 1, 1]
    any_term = False
    for i in range(queries.term_offsets[r], queries.term_offsets[r + 1]):
        term, own = queries.terms[i], np.float64(queries.weights[i])
        high = end
        while low < high:  # terms ascend on both sides, so the next search starts where this one ends
            middle = (low + high) >> 1
            if keys[middle] < term:
                low = middle + 1
            else:
                high = middle
        # every term left is larger than the last key
        if low == end:
            break
        if keys[low] != term:
            continue
        any_term = True
        queries.read[r] += entries[low + 1] - entries[low]
        # ascending terms, each widened before the product: in a leaf these are the last bits of `matching.naive`
        for e in range(entries[low], entries[low + 1]):
            at = child[e]
            text[at] += own * np.float64(weight[e])
            # -1 differs from a sum of 0: a message must share a term, whatever its weight
            square[at] = max(square[at], 0.0) + own * own
    return any_term


@njit_no_refcount
def _push_children(tree, node, queries, r, text, square, bounds, nodes, count):
    """Push the children that may reach the bar on the queue, which has capacity; returns the new count."""
    boxes, norm = tree.boxes, tree.norm[0]
    first = tree.parts[node, 0]
    x, y, alpha, max_distance = queries.x[r], queries.y[r], queries.alpha[r], queries.max_distance[r]
    bar = queries.best[queries.bars[r]]
    for at in range(_FAN_OUT):
        # a child without any of the terms, or beyond the last child
        if square[at] < 0.0:
            continue
        n = first + at
        dx = max(0.0, boxes[n, 0] - x, x - boxes[n, 2])
        dy = max(0.0, boxes[n, 1] - y, y - boxes[n, 3])
        spatial = 1.0 - math.sqrt(dx * dx + dy * dy) / max_distance
        # each term at its largest adds up to more than one message has; Cauchy-Schwarz limits it
        bound = alpha * spatial + (1.0 - alpha) * min(text[at], math.sqrt(square[at]) * norm) + _SLACK
        if bound >= bar:
            push(bounds, nodes, count, bound, n, 0)
            count += 1
    return count


@njit_no_refcount
def _visit_leaf(tree, node, rows, queries, span, r, text, square, messages, scores, found):
    """Score the messages of a leaf; returns how many have now been found."""
    order, first = tree.order, tree.parts[node, 0]
    head, point, best = rows.head, rows.point, queries.best
    here, alpha, max_distance = row_place(queries, r), queries.alpha[r], queries.max_distance[r]
    heap, heap_end = queries.bars[r], queries.bars[r + 1]
    for at in range(_FAN_OUT):
        # as if at distance 0, before the message is touched
        if square[at] < 0.0 or alpha + (1.0 - alpha) * text[at] + _SLACK < best[heap]:
            continue
        row = order[first + at]
        if not within(head, row, span):
            continue
        score = score_of(point, row, here, alpha, text[at], max_distance)
        if score >= best[heap]:
            note(messages, scores, found, r, head, row, score)
            found += 1
            # what came after the boundary must not raise the bar: the threshold is that of the boundary
            if span.push:
                replace_least(best, heap, heap_end, score)
    return found
