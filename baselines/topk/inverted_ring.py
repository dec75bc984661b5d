"""Window index `inverted_ring`: inverted lists of recent messages over a ring of message rows.

Messages are written behind each other into a ring that is as large as the window has ever been; the newest take the
rows of those that have expired. The list of a term is a chain of chunks in order of arrival: messages are appended, and
chunks whose messages have all expired are freed at the front. Nothing is ever rebuilt, so `store` is cheap and a query
expensive: messages of a chunk are from anywhere, and its bounds rule out few of them.

The postings, with their signs and norms, are those of `matching.topk.windows.postings`.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_no_refcount
from matching.model import NO_KEYS, NO_ORDER, NO_WORDS, Float32, Int32, Int64, MessageBatch
from matching.space import Space
from matching.storage.slots import grown
from matching.topk.window import TopkWindowIndex
from matching.topk.windows.postings import link_term, upper_bound, visit_postings
from matching.topk.windows.search import (
    QueryRows,
    Span,
    WindowHits,
    WindowRows,
    more_hits,
    most_terms,
    row_place,
    rows_of,
    settle_row,
    take_window_rows,
    term_bounds,
)

_CHUNK = 32
#: Mask of message numbers, as in `matching.topk.windows.postings`.
_NUMBERS = 0x7FFFFFFF
_LEAST_ROWS, _LEAST_CHUNKS, _LEAST_TERMS = 64, 64, 256
#: Nothing: no chunk, no next chunk.
_NONE = -1


class ChunkLists(NamedTuple):
    """Lists of t terms in c chunks of 32 postings.

    ends : int32[t, 2]       first (oldest) and last chunk of each term's list
    next : int32[c]          chunk behind it, in a list or among the free ones
    count : int32[c]         postings in it
    bounds : float32[c, 6]   see `matching.topk.windows.postings.summarise`
    near : float32[32 c, 4]
    link : int32[32 c, 2]    number of the message (31 bits), sign
    free : int64[2]          first free chunk, how many are free
    """

    ends: Int32
    next: Int32
    count: Int32
    bounds: Float32
    near: Float32
    link: Int32
    free: Int64


class InvertedRing(TopkWindowIndex):
    """Inverted lists over a ring of messages, written in place.

    Notes
    -----
    `store` is O(terms) a message, amortised. A query reads the chunks of its lists one by one.
    """

    name = "inverted_ring"

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        self._rows = _empty_rows(_LEAST_ROWS, _LEAST_ROWS * 8)
        self._chains = _empty_chains(_LEAST_TERMS, _LEAST_CHUNKS)
        self._oldest = self._newest = 0  # numbers of messages: of the oldest, and behind the newest
        self._term_at = self._terms_used = 0  # place of the next message's terms, and terms in use
        self._longest = 0  # terms of the message that ever had most

    def __len__(self) -> int:
        return self._newest - self._oldest

    def size_bytes(self) -> int:
        return self._rows.nbytes + sum(array.nbytes for array in tuple(self._chains))

    def _add(self, messages: MessageBatch) -> None:
        rows = rows_of(messages)
        self._reserve(rows)
        self._term_at = int(_append(self._rows, self._chains, rows, self._oldest, self._newest, self._term_at))
        self._newest += len(rows)
        self._terms_used += rows.terms.shape[0]

    def _load(self, messages: MessageBatch) -> None:
        self._add(messages)

    def _drop(self, floor: int) -> None:
        gone, terms = _count_expired(self._rows.head, self._oldest, self._newest, floor)
        self._oldest += int(gone)
        self._terms_used -= int(terms)

    def _live_rows(self) -> WindowRows:
        return take_window_rows(self._rows, np.arange(self._oldest, self._newest) & (len(self._rows) - 1))

    def _search(self, queries: QueryRows, span: Span) -> list[WindowHits]:
        if len(self) == 0:
            return []
        ring = (len(self._rows) - 1, self._oldest & _NUMBERS, len(self))
        return [WindowHits(*_search(self._chains, ring, self._rows, queries, span))]

    def _reserve(self, rows: WindowRows) -> None:
        """Grow columns for these messages; dead chunks are reused before the chains grow. Amortised O(n)."""
        self._longest = max(self._longest, int((rows.head[:, 3] - rows.head[:, 2]).max()))
        # no message's terms go around the end of the ring, which wastes less than the longest takes
        wanted, wanted_terms = len(self) + len(rows), self._terms_used + rows.terms.shape[0] + 2 * self._longest
        if wanted > len(self._rows) or wanted_terms > self._rows.terms.shape[0]:
            live = self._live_rows()
            capacity = max(len(self._rows), _LEAST_ROWS, 1 << (wanted - 1).bit_length())
            self._rows = _empty_rows(capacity, max(self._rows.terms.shape[0], wanted_terms + wanted_terms // 2))
            at = np.arange(self._oldest, self._newest) & (capacity - 1)
            self._rows.head[at], self._rows.point[at] = live.head, live.point
            self._term_at = live.terms.shape[0]
            self._rows.terms[: self._term_at], self._rows.weights[: self._term_at] = live.terms, live.weights
        terms = int(rows.terms.max(initial=-1)) + 1
        self._chains = self._chains._replace(ends=grown(self._chains.ends, terms, _NONE))
        if self._chains.free[1] < rows.terms.shape[0]:  # no list needs more than a chunk a posting
            wanted_chunks = _chunks_wanted(self._chains, rows.terms)
            if self._chains.free[1] < wanted_chunks:
                _sweep(self._chains, self._oldest, len(self))
                wanted_chunks = _chunks_wanted(self._chains, rows.terms)
            if self._chains.free[1] < max(wanted_chunks, self._chains.next.shape[0] // 8):
                self._chains = _grow(self._chains, int(wanted_chunks))


def _empty_rows(messages: int, terms: int) -> WindowRows:
    return WindowRows(
        np.zeros((messages, 4), np.int64),
        np.zeros((messages, 2), np.float64),
        np.zeros(terms, np.int32),
        np.zeros(terms, np.float32),
        np.zeros((messages, 2)),  # nothing reads this and the rest: this index serves no filters
        NO_KEYS,
        NO_WORDS,
        NO_ORDER,
    )


def _empty_chains(terms: int, chunks: int) -> ChunkLists:
    after = np.arange(1, chunks + 1, dtype=np.int32)
    after[-1] = _NONE
    return ChunkLists(
        np.full((terms, 2), _NONE, np.int32),
        after,
        np.zeros(chunks, np.int32),
        np.zeros((chunks, 6), np.float32),
        np.zeros((chunks * _CHUNK, 4), np.float32),
        np.zeros((chunks * _CHUNK, 2), np.int32),
        np.array([0, chunks]),
    )


def _grow(chains: ChunkLists, wanted: int) -> ChunkLists:
    """Half as many chunks again, or as many more as are wanted."""
    had = chains.next.shape[0]
    more = _empty_chains(1, max(had // 2, wanted))
    after = np.concatenate([chains.next, more.next + had])
    after[-1] = chains.free[0]
    return ChunkLists(
        chains.ends,
        after,
        np.concatenate([chains.count, more.count]),
        np.concatenate([chains.bounds, more.bounds]),
        np.concatenate([chains.near, more.near]),
        np.concatenate([chains.link, more.link]),
        np.array([had, chains.free[1] + more.next.shape[0]]),
    )


@njit_no_refcount
def _count_expired(head, oldest, newest, floor):
    """How many messages from the oldest on have expired without a gap, and how many terms they had."""
    gone = terms = 0
    while oldest + gone < newest:
        row = (oldest + gone) & (head.shape[0] - 1)
        # rows are freed in order only, so a longer life delays all behind it; `within` leaves out the dead
        if head[row, 1] > floor:
            break
        terms += head[row, 3] - head[row, 2]
        gone += 1
    return gone, terms


@njit(cache=True, nogil=True)
def _chunks_wanted(chains, terms):
    """An upper limit to the chunks that these postings will take from the free ones. O(postings)."""
    counts = np.zeros(chains.ends.shape[0], np.int64)
    for term in terms:
        counts[term] += 1
    wanted = 0
    for term in terms:
        if counts[term]:
            last = chains.ends[term, 1]
            # only the last chunk of a list takes more, so chunks are needed for what does not fit there
            spare = _CHUNK - chains.count[last] if last != _NONE else 0
            wanted += max(0, (counts[term] - spare + _CHUNK - 1) // _CHUNK)
            counts[term] = 0
    return wanted


@njit_no_refcount
def _append(ring, chains, rows, oldest, newest, term_at):
    """Write messages into the ring and into their lists; returns where the next message's terms go."""
    head, point, ring_terms, ring_weights, _, _, _, _ = ring
    capacity = head.shape[0]
    for n in range(rows.point.shape[0]):
        length = rows.head[n, 3] - rows.head[n, 2]
        if term_at + length > ring_terms.shape[0]:
            term_at = 0  # a message's terms lie in one piece
        # a power of two, so that a mask does
        row = (newest + n) & (capacity - 1)
        head[row, 0], head[row, 1] = rows.head[n, 0], rows.head[n, 1]
        head[row, 2], head[row, 3] = term_at, term_at + length
        point[row, 0], point[row, 1] = rows.point[n, 0], rows.point[n, 1]
        # from the last term back: `link_term` wants norm and sign of what follows
        square, sign = 0.0, np.int32(0)
        number = (newest + n) & _NUMBERS
        for i in range(length - 1, -1, -1):
            term, weight = rows.terms[rows.head[n, 2] + i], rows.weights[rows.head[n, 2] + i]
            ring_terms[term_at + i], ring_weights[term_at + i] = term, weight
            at = _place(chains, term, oldest, newest + n - oldest)
            square, sign = link_term(chains.near, chains.link, at, point, row, number, term, weight, square, sign)
            _include(chains, at)
        term_at += length
    return term_at


@njit_no_refcount
def _place(chains, term, oldest, alive):
    """Where the next posting of a term goes; takes a free chunk where needed, gives one back where possible."""
    ends, after, count, free = chains.ends, chains.next, chains.count, chains.free
    last = ends[term, 1]
    if last == _NONE or count[last] == _CHUNK:
        first = ends[term, 0]
        # one back for each taken, while at hand: no sweep is needed for terms that keep coming. Never the last chunk,
        # which the new one is chained to
        if first != last and _is_dead(chains, first, oldest, alive):
            ends[term, 0] = after[first]
            _release(chains, first)
        # there is one: `_reserve` has counted what these messages may take
        chunk = free[0]
        free[0] = after[chunk]
        free[1] -= 1
        after[chunk], count[chunk] = _NONE, 0
        if last == _NONE:
            ends[term, 0] = chunk
        else:
            after[last] = chunk
        ends[term, 1] = chunk
        last = chunk
    count[last] += 1
    return last * _CHUNK + count[last] - 1


@njit(cache=True, nogil=True)
def _include(chains, at):
    """Widen the bounds of a chunk by the posting just written."""
    near, bounds = chains.near, chains.bounds
    chunk = at // _CHUNK
    x, y = near[at, 0], near[at, 1]
    # a chunk that is used again has the bounds of its former life
    if at % _CHUNK == 0:
        bounds[chunk, 0] = bounds[chunk, 1] = np.inf
        bounds[chunk, 2] = bounds[chunk, 3] = -np.inf
        bounds[chunk, 4] = bounds[chunk, 5] = 0.0
    # float32 rounds coordinates by less than the margin
    bounds[chunk, 0], bounds[chunk, 1] = min(bounds[chunk, 0], x - 1e-6), min(bounds[chunk, 1], y - 1e-6)
    bounds[chunk, 2], bounds[chunk, 3] = max(bounds[chunk, 2], x + 1e-6), max(bounds[chunk, 3], y + 1e-6)
    bounds[chunk, 4], bounds[chunk, 5] = max(bounds[chunk, 4], near[at, 2]), max(bounds[chunk, 5], near[at, 3])


@njit(cache=True, nogil=True)
def _is_dead(chains, chunk, oldest, alive):
    """Whether all messages of a chunk are gone: they are if its newest is."""
    number = chains.link[chunk * _CHUNK + chains.count[chunk] - 1, 0]
    # in a circle of 2**31: alive is what lies less than `alive` ahead of the oldest
    return (number - oldest) & _NUMBERS >= alive


@njit(cache=True, nogil=True)
def _release(chains, chunk):
    chains.next[chunk] = chains.free[0]
    chains.free[0] = chunk
    chains.free[1] += 1


@njit(cache=True, nogil=True)
def _sweep(chains, oldest, alive):
    """Free the dead chunks of all lists. O(terms + chunks freed)."""
    ends = chains.ends
    for term in range(ends.shape[0]):
        while ends[term, 0] != _NONE and _is_dead(chains, ends[term, 0], oldest, alive):
            first = ends[term, 0]
            ends[term, 0] = chains.next[first]
            if ends[term, 0] == _NONE:
                ends[term, 1] = _NONE
            _release(chains, first)


@njit(cache=True, nogil=True)
def _search(chains, ring, rows, queries, span):
    """Find the messages of the span that reach the bars; returns the arrays of `WindowHits`."""
    ends, after, counts, chunk_bounds, near, link, _ = chains
    best, bars = queries.best, queries.bars
    messages, scores = np.empty((256, 3), np.int64), np.empty(256)
    found = 0
    most = most_terms(queries.term_offsets)
    own, rest = np.empty(most), np.empty(most)
    for r in queries.order:
        before = found
        first, last = queries.term_offsets[r], queries.term_offsets[r + 1]
        here, alpha, max_distance = row_place(queries, r), queries.alpha[r], queries.max_distance[r]
        term_bounds(queries, r, own, rest)
        for j in range(last - first):  # the rarest first: few chunks, and a bar for the others
            term = queries.terms[first + j]
            chunk = ends[term, 0] if term < ends.shape[0] else _NONE
            # the bar is read anew for each, as it rises with every find
            while chunk != _NONE:
                queries.read[r] += 1
                bound = upper_bound(chunk_bounds, chunk, here, alpha, own[j], rest[j], max_distance)
                if bound >= best[bars[r]]:
                    if found + _CHUNK > scores.shape[0]:
                        messages, scores = more_hits(messages, scores)
                    begin = chunk * _CHUNK
                    found = visit_postings(
                        near, link, begin, begin + counts[chunk], ring, rows, queries, span, r, j, own[j], rest[j],
                        messages, scores, found,
                    )  # fmt: skip
                chunk = after[chunk]
        found = settle_row(queries, r, span, messages, scores, before, found)
    return messages[:found].copy(), scores[:found].copy()
