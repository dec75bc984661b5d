"""Window index `segments`: inverted lists cut into blocks of like weight and near place, best block first.

A list is ordered by level of weight, then along a Z-order curve, and cut into blocks of 64 postings; 16 blocks in a row
are a stretch. Blocks and stretches know their bounding box, their largest weight and their largest norm of the weights
that follow. A query takes stretches and blocks from a priority queue until the best bound left is below its bar.

See `matching.topk.windows.generations` for how messages come and go.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit
from matching.model import Float32, Int32, Int64
from matching.storage.slots import put_row
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
    pop,
    settle_row,
    term_bounds,
)

_BLOCK = 64
_STRETCH = 16
_WEIGHT_LEVELS = 16


class Segment(NamedTuple):
    """Inverted lists of t distinct terms and p postings in b blocks and s stretches.

    See `matching.topk.windows.postings.Postings` for the columns of a posting.

    term : int32[t]             ascending
    starts : int64[t + 1, 3]    first posting, first block, first stretch of each list; none has two lists in it
    near : float32[p, 4 or 5]
    link : int32[p, 2]
    blocks : float32[b, 6 or 8]      see `matching.topk.windows.postings.summarise`
    stretches : float32[s, 6 or 8]
    """

    term: Int32
    starts: Int64
    near: Float32
    link: Int32
    blocks: Float32
    stretches: Float32


class Segments(GenerationIndex):
    """Inverted lists in blocks, for each generation.

    Notes
    -----
    `store` is O(1); a message is indexed in O(terms * log(window / batch)) amortised. A query of q terms visits the
    stretches of its lists, of which there is one in 1024 postings, and the blocks that its bar cannot rule out.
    """

    name = "segments"
    serves_filters = True

    def _build(self, rows: WindowRows) -> Segment:
        return build_segment(rows)

    def _search_one(self, index: Segment, rows: WindowRows, queries: QueryRows, span: Span) -> WindowHits:
        return WindowHits(*_search(index, rows, queries, span))


def build_segment(rows: WindowRows) -> Segment:
    """Index messages. O(n log n + p) for n messages and p postings."""
    postings = build_postings(rows)
    _order_by_level(postings.start, postings.near, postings.link)
    starts = np.zeros((postings.term.size + 1, 3), np.int64)
    starts[:, 0] = postings.start
    blocks = -(-np.diff(postings.start) // _BLOCK)
    np.cumsum(blocks, out=starts[1:, 1])
    np.cumsum(-(-blocks // _STRETCH), out=starts[1:, 2])
    width = 6 if rows.point.shape[1] == 2 else 8
    segment = Segment(
        postings.term,
        starts,
        postings.near,
        postings.link,
        np.empty((starts[-1, 1], width), np.float32),
        np.empty((starts[-1, 2], width), np.float32),
    )
    _summarise(segment)
    return segment


@njit(cache=True, nogil=True)
def _order_by_level(start, near, link):
    """Sort lists of more than a block by falling level of weight, stably. O(p)."""
    at = np.empty(_WEIGHT_LEVELS + 1, np.int64)
    for t in range(start.shape[0] - 1):
        first, last = start[t], start[t + 1]
        # the bound of a single block does not depend on its order
        if last - first <= _BLOCK:
            continue
        at[:] = 0
        for p in range(first, last):
            # a weight of 1 belongs to the highest level
            at[_WEIGHT_LEVELS - min(_WEIGHT_LEVELS - 1, int(near[p, 2] * _WEIGHT_LEVELS))] += 1
        for level in range(_WEIGHT_LEVELS):
            at[level + 1] += at[level]
        old_near, old_link = near[first:last].copy(), link[first:last].copy()
        for p in range(last - first):
            # counting sort is stable: within a level the order along the curve stays, which keeps boxes small
            level = _WEIGHT_LEVELS - 1 - min(_WEIGHT_LEVELS - 1, int(old_near[p, 2] * _WEIGHT_LEVELS))
            place = first + at[level]
            put_row(near, place, old_near[p])
            put_row(link, place, old_link[p])
            at[level] += 1


@njit(cache=True, nogil=True)
def _summarise(s):
    """Fill the bounds of blocks and stretches. O(p)."""
    for t in range(s.term.shape[0]):
        first, last = s.starts[t, 0], s.starts[t + 1, 0]
        for block in range(s.starts[t, 1], s.starts[t + 1, 1]):
            begin = first + (block - s.starts[t, 1]) * _BLOCK
            summarise(s.near, begin, min(begin + _BLOCK, last), s.blocks, block)
        # from the bounds of its blocks, never beyond its list
        for stretch in range(s.starts[t, 2], s.starts[t + 1, 2]):
            begin = s.starts[t, 1] + (stretch - s.starts[t, 2]) * _STRETCH
            put_row(s.stretches, stretch, s.blocks[begin])
            for block in range(begin + 1, min(begin + _STRETCH, s.starts[t + 1, 1])):
                widen(s.stretches, stretch, s.blocks[block])


@njit(cache=True, nogil=True)
def _search(s, rows, queries, span):
    """Find the segment's messages of the span that reach the bars; returns the arrays of `WindowHits`."""
    term, starts, near, link, blocks, stretches = s
    best, bars = queries.best, queries.bars
    messages, scores = np.empty((256, 3), np.int64), np.empty(256)
    found = 0
    most = most_terms(queries.term_offsets)
    own, rest, lists = np.empty(most), np.empty(most), np.empty(most, np.int64)
    bounds, nodes = np.empty(256), np.empty((256, 2), np.int64)
    for r in queries.order:
        before = found
        first, last = queries.term_offsets[r], queries.term_offsets[r + 1]
        here = (queries.x[r], queries.y[r], queries.z[r], queries.on_sphere)
        alpha, max_distance = queries.alpha[r], queries.max_distance[r]
        term_bounds(queries, r, own, rest)
        count = 0
        for j in range(last - first):
            t = find_term(term, queries.terms[first + j])
            # an entry of the queue has only its term: blocks are numbered over all lists
            lists[j] = t
            if t >= 0:
                begin, end = starts[t, 2], starts[t + 1, 2]
                bounds, nodes = extend_queue(bounds, nodes, count + end - begin)
                queries.read[r] += end - begin
                count = push_reaching(
                    (bounds, nodes), count, stretches, begin, end, 1, j, here, alpha, own[j], rest[j], max_distance,
                    best[bars[r]],
                )  # fmt: skip
        # best bound first: once it is below the bar, so are all the others, and ties at it are still taken
        while count > 0 and bounds[0] >= best[bars[r]]:
            node, j = nodes[0, 0], nodes[0, 1]
            pop(bounds, nodes, count)
            count -= 1
            t = lists[j]
            if node >= 0:  # a stretch: its blocks enter the queue with negative numbers
                bounds, nodes = extend_queue(bounds, nodes, count + _STRETCH)
                begin = starts[t, 1] + (node - starts[t, 2]) * _STRETCH
                end = min(begin + _STRETCH, starts[t + 1, 1])
                queries.read[r] += end - begin
                count = push_reaching(
                    (bounds, nodes), count, blocks, begin, end, -1, j, here, alpha, own[j], rest[j], max_distance,
                    best[bars[r]],
                )  # fmt: skip
                continue
            # capacity for a whole block, which `visit_postings` does not check
            if found + _BLOCK > scores.shape[0]:
                messages, scores = more_hits(messages, scores)
            begin = starts[t, 0] + (-1 - node - starts[t, 1]) * _BLOCK
            end = min(begin + _BLOCK, starts[t + 1, 0])
            found = visit_postings(
                near, link, begin, end, WHOLE, rows, queries, span, r, j, own[j], rest[j], messages, scores, found
            )
        found = settle_row(queries, r, span, messages, scores, before, found)
    return messages[:found].copy(), scores[:found].copy()
