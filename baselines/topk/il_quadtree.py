"""Window index `il_quadtree`: for each term a quadtree over the messages that have it, best node first.

The lists of `matching.topk.windows.postings` are sorted along a Z-order curve, so a tile of a quadtree is a run of its
list. Tiles are split while they have more than `_LEAF` messages; a tile with all its messages in one quarter gets no
node of its own. A node has the bounding box of its messages, the largest weight of its term and the largest norm of the
weights after the term.

After IL-Quadtree (Zhang, Zhang, Zhang, Lin: Inverted Linear Quadtree, TKDE 2016), which answers boolean queries and has
bit signatures for tiles; here upper bounds of the score replace them, and a message with several terms of a query is
found under the first common one.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit
from matching.model import Float32, Int32, Int64
from matching.storage.slots import longer
from matching.topk.windows.generations import GenerationIndex
from matching.topk.windows.postings import WHOLE, build_postings, push_reaching, summarise, visit_postings, widen
from matching.topk.windows.search import (
    QueryRows,
    Span,
    WindowHits,
    WindowRows,
    extend_queue,
    find_term,
    more_hits,
    most_terms,
    place_on_curve,
    pop,
    row_place,
    settle_row,
    term_bounds,
)

#: Most messages of a leaf above the finest level; messages scored between two checks of the output's capacity.
_LEAF = 48
_VISIT = 64
#: Levels of the quadtree, two bits of the curve each; see `matching.topk.windows.search.place_on_curve`.
_DEEPEST = 16


class ListQuadtrees(NamedTuple):
    """Quadtrees of t terms over p postings, n nodes in all (see `matching.topk.windows.postings.Postings`).

    term : int32[t]          ascending; node i is the root of the i-th
    near : float32[p, 4]
    link : int32[p, 2]
    nodes : float32[n, 6]    see `matching.topk.windows.postings.summarise`
    parts : int64[n, 4]      first posting and end, first child and end; a leaf has no children
    """

    term: Int32
    near: Float32
    link: Int32
    nodes: Float32
    parts: Int64


class ILQuadtree(GenerationIndex):
    """A quadtree a term, for each generation.

    Notes
    -----
    `store` is O(1); a message is indexed in O(terms * (depth + log(window / batch))) amortised. A query visits the
    nodes that its bar cannot rule out, from the roots of its terms on.
    """

    name = "il_quadtree"

    def _build(self, rows: WindowRows) -> ListQuadtrees:
        return build_quadtrees(rows)

    def _search_one(self, index: ListQuadtrees, rows: WindowRows, queries: QueryRows, span: Span) -> WindowHits:
        return WindowHits(*_search(index, rows, queries, span))


def build_quadtrees(rows: WindowRows) -> ListQuadtrees:
    """Index messages. O(n log n + p * depth) for n messages and p postings."""
    postings = build_postings(rows)
    curve = place_on_curve(rows.point[:, 0], rows.point[:, 1])
    parts = _split(postings.start, postings.link, curve)
    nodes = np.empty((parts.shape[0], 6), np.float32)
    _summarise(postings.near, nodes, parts)
    return ListQuadtrees(postings.term, postings.near, postings.link, nodes, parts)


@njit(cache=True, nogil=True)
def _split(start, link, curve):
    """Cut the lists into nodes, `ListQuadtrees.parts`: children of a node are adjacent and behind it. O(p * depth)."""
    lists = start.shape[0] - 1
    parts = np.zeros((2 * lists + 4, 4), np.int64)
    for t in range(lists):
        parts[t, 0], parts[t, 1] = start[t], start[t + 1]
    count, at = lists, 0
    while at < count:
        first, last = parts[at, 0], parts[at, 1]
        parts[at, 2] = parts[at, 3] = count
        if last - first > _LEAF:
            parts = longer(parts, count + 4)
            # the list is sorted along the curve: the common prefix of its first and last key is that of all keys
            low, high = curve[link[first, 0]], curve[link[last - 1, 0]]
            shift = 2 * (_DEEPEST - 1)
            while shift >= 0 and low >> shift == high >> shift:
                shift -= 2
            # below 0 all messages are in one cell of the finest grid, which is a leaf of any size
            if shift >= 0:
                begin = first
                # the next two bits of the key: at most four children
                for p in range(first + 1, last + 1):
                    if p == last or curve[link[p, 0]] >> shift != curve[link[begin, 0]] >> shift:
                        parts[count, 0], parts[count, 1] = begin, p
                        count += 1
                        begin = p
            parts[at, 3] = count
        at += 1
    return parts[:count].copy()


@njit(cache=True, nogil=True)
def _summarise(near, nodes, parts):
    """Fill the bounds of all nodes, children before their parents. O(p + n)."""
    # children come after their parent, so go backwards
    for n in range(parts.shape[0] - 1, -1, -1):
        if parts[n, 2] == parts[n, 3]:
            summarise(near, parts[n, 0], parts[n, 1], nodes, n)
            continue
        nodes[n] = nodes[parts[n, 2]]
        for child in range(parts[n, 2] + 1, parts[n, 3]):
            widen(nodes, n, nodes[child])


@njit(cache=True, nogil=True)
def _search(trees, rows, queries, span):
    """Find the messages of the span that reach the bars; returns the arrays of `WindowHits`."""
    term, near, link, tiles, parts = trees
    best, bars = queries.best, queries.bars
    messages, scores = np.empty((256, 3), np.int64), np.empty(256)
    found = 0
    most = most_terms(queries.term_offsets)
    own, rest = np.empty(most), np.empty(most)
    bounds, nodes = np.empty(max(256, 2 * most)), np.empty((max(256, 2 * most), 2), np.int64)
    for r in queries.order:
        before = found
        first, last = queries.term_offsets[r], queries.term_offsets[r + 1]
        here, alpha, max_distance = row_place(queries, r), queries.alpha[r], queries.max_distance[r]
        term_bounds(queries, r, own, rest)
        count = 0
        # a root per term always fits
        for j in range(last - first):
            t = find_term(term, queries.terms[first + j])
            if t >= 0:
                count = push_reaching(
                    (bounds, nodes), count, tiles, t, t + 1, 1, j, here, alpha, own[j], rest[j], max_distance,
                    best[bars[r]],
                )  # fmt: skip
        # best bound first: once the best is below the bar, so are all others; bounds equal to the bar still count
        while count > 0 and bounds[0] >= best[bars[r]]:
            node, j = nodes[0, 0], nodes[0, 1]
            pop(bounds, nodes, count)
            count -= 1
            begin, end = parts[node, 2], parts[node, 3]
            if begin < end:
                bounds, nodes = extend_queue(bounds, nodes, count + end - begin)
                queries.read[r] += end - begin
                count = push_reaching(
                    (bounds, nodes), count, tiles, begin, end, 1, j, here, alpha, own[j], rest[j], max_distance,
                    best[bars[r]],
                )  # fmt: skip
                continue
            # a leaf of the finest grid may be of any size: columns grow visit by visit
            for begin in range(parts[node, 0], parts[node, 1], _VISIT):
                if found + _VISIT > scores.shape[0]:
                    messages, scores = more_hits(messages, scores)
                end = min(begin + _VISIT, parts[node, 1])
                found = visit_postings(
                    near, link, begin, end, WHOLE, rows, queries, span, r, j, own[j], rest[j], messages, scores, found
                )
        found = settle_row(queries, r, span, messages, scores, before, found)
    return messages[:found].copy(), scores[:found].copy()
