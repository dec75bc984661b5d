"""The window of messages, indexed so that a refill finds the best of it without reading all of it.

Messages arrive in batches and are kept in segments: inverted lists in which the messages of a term lie along a
Z-order curve, cut into blocks that know their bounding box and their largest weights. A query visits blocks by
falling bound until the bound is below its present K-th best score. Small segments are merged into larger ones of
at most an eighth of the window (as log-structured merge trees do), and a segment is dropped when all of it is too old.

The window answers "as of" any boundary of the last few, not only of the newest: it keeps what expired since.
Used by the tuple bolts (`bolts.tuples`), each of which holds a part of the messages.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from matching.errors import EngineError
from matching.model import Float32, Float64, Int8, Int32, Int64, MessageBatch, concatenate
from matching.window import NO_FLOOR, Boundary

_BLOCK = 64
#: Blocks of a query are visited best bound first, to within one of so many steps.
_BUCKETS = 64
#: Segments of about the same size that are merged into one.
_FAN_IN = 4
_SLACK = 1e-5
_WEIGHT_LEVELS = 16


class WindowQueries(NamedTuple):
    """Ask for the window as of boundary `as_of`, and for what came after it up to batch `up_to`.

    One row a subscription: number, x, y, alpha, `rank` (how many of the best, ties at the cut included), terms,
    weights. `request` and `home` (the task that asked) are echoed in the answer.
    """

    request: int
    home: int
    as_of: Boundary
    up_to: int
    number: Int64
    x: Float64
    y: Float64
    alpha: Float64
    rank: Int32
    term_offsets: Int64
    terms: Int32
    weights: Float32


class WindowAnswers(NamedTuple):
    """Messages for the rows of a `WindowQueries`, row after row (`offsets` int64[rows + 1]).

    `after` is 1 for messages of the batches after `as_of`, 0 for those alive at it. `threshold` (float64[rows]) is
    the score of the rank-th best alive, minus infinity if there are fewer; messages below it are left out.
    `rank` (int32[rows]) is that of the queries.
    """

    request: int
    home: int
    rank: Int32
    offsets: Int64
    seq: Int64
    life: Int64
    score: Float64
    after: Int8
    threshold: Float64


class Segment(NamedTuple):
    """Messages of a span of the stream as inverted lists; n messages, t distinct terms, p postings, b blocks.

    term : int32[t]              ascending
    list_start : int64[t + 1]    postings of the term
    block_start : int64[t + 1]   its blocks; each has up to 64 postings, and lists start a new block
    row : int32[p]               the message, as row of the columns below
    weight : float32[p]          the term's weight in the message
    rest : float32[p]            norm of the message's weights after this term
    x, y : float32[p]            its point, rounded: enough for a bound, and read in a row
    box : float32[b, 4]          x from, y from, x to, y to: rounded outwards
    largest_weight, largest_rest : float32[b]
    messages : MessageBatch      the messages themselves
    """

    term: Int32
    list_start: Int64
    block_start: Int64
    row: Int32
    weight: Float32
    rest: Float32
    x: Float32
    y: Float32
    box: Float32
    largest_weight: Float32
    largest_rest: Float32
    messages: MessageBatch


class WindowIndex:
    """The messages one task holds of the window.

    Parameters
    ----------
    max_distance : float
        Diagonal of the scaled world box.
    kept_boundaries : int
        How many boundaries back `query` may ask about: what expired since is kept that long.
    """

    def __init__(self, max_distance: float, kept_boundaries: int = 16):
        self.max_distance = max_distance
        self.kept_boundaries = kept_boundaries
        self.boundaries: list[Boundary] = []
        self._segments: list[Segment] = []
        self._unindexed: list[MessageBatch] = []  # newer than all segments; indexed when somebody asks

    @property
    def stored_through(self) -> int:
        """Number of the last batch stored, -1 if none."""
        return self.boundaries[-1].number if self.boundaries else -1

    def __len__(self) -> int:
        """Messages held, expired ones that are still kept included."""
        return sum(len(messages) for messages in self._all_messages())

    def store(self, boundary: Boundary, messages: MessageBatch) -> None:
        """Take this task's part of the next batch. O(1): it is indexed when a query comes.

        Raises
        ------
        EngineError
            If the batch is not the next one.
        """
        if self.boundaries and boundary.number != self.boundaries[-1].number + 1:
            raise EngineError(f"window: batch {boundary.number} cannot follow batch {self.boundaries[-1].number}")
        self.boundaries = [*self.boundaries[-self.kept_boundaries :], boundary]
        self._drop_expired()
        if len(messages):
            self._unindexed.append(messages)

    def load(self, boundary: Boundary, messages: MessageBatch) -> None:
        """Take a whole window at once, as of a boundary; before any batch. O(postings * log postings)."""
        self.boundaries = [boundary]
        pieces = np.array_split(np.arange(len(messages)), _FAN_IN * 2)
        self._segments = [build_segment(messages.take(piece)) for piece in pieces if piece.size]

    def fork(self) -> "WindowIndex":
        """Another window of the same messages, to go on by itself; segments are never written, so both share them."""
        other = WindowIndex(self.max_distance, self.kept_boundaries)
        other.boundaries, other._segments = list(self.boundaries), list(self._segments)
        other._unindexed = list(self._unindexed)
        return other

    def query(self, asked: WindowQueries) -> WindowAnswers:
        """Answer from this task's part of the window; the caller merges the parts (`merge_answers`).

        Raises
        ------
        EngineError
            If `asked.as_of` is no longer (or not yet) known, or `asked.up_to` is not stored yet.
        """
        known = {boundary.number: boundary for boundary in self.boundaries}
        if asked.as_of.number not in known or asked.up_to > self.stored_through:
            raise EngineError(
                f"window: asked as of batch {asked.as_of.number} up to batch {asked.up_to}, "
                f"but batches {min(known, default=-1)} to {self.stored_through} are known"
            )
        self._index()
        last_seq = known[max(asked.up_to, asked.as_of.number)].last_seq
        return _assemble(asked, *self._find(asked, last_seq))

    def arrays(self) -> dict[str, np.ndarray]:
        """Messages and boundaries; the lists are rebuilt from them."""
        arrays = {"boundaries": np.array([list(b) for b in self.boundaries], np.int64).reshape(-1, 4)}
        if len(self):
            held = concatenate(self._all_messages())
            held = held.take(np.argsort(held.seq, kind="stable"))
            arrays |= {f"message_{name}": value for name, value in held._asdict().items()}
        arrays["kept_boundaries"] = np.array([self.kept_boundaries], np.int64)
        return arrays

    @classmethod
    def from_arrays(cls, max_distance: float, arrays: dict[str, np.ndarray]) -> "WindowIndex":
        """Continue from `arrays`. O(postings * log postings)."""
        index = cls(max_distance, int(arrays["kept_boundaries"][0]))
        index.boundaries = [Boundary(*map(int, row)) for row in arrays["boundaries"]]
        if "message_seq" in arrays:
            boundaries = index.boundaries
            index.load(boundaries[-1], MessageBatch(**{n: arrays[f"message_{n}"].copy() for n in MessageBatch._fields}))
            index.boundaries = boundaries
        return index

    def _find(self, asked: WindowQueries, last_seq: int):
        """All that reaches the rows' final thresholds, as lists of columns (row, seq, life, score, after)."""
        # a min-heap of the best scores so far for each row, one behind the other
        heaps = np.zeros(asked.number.shape[0] + 1, np.int64)
        np.cumsum(asked.rank, out=heaps[1:])
        best = np.full(heaps[-1], -np.inf)
        found = []
        for segment in reversed(self._segments):  # newest first: they are small and give a first bar
            found.append((segment, asked.as_of.floor, -1, asked.as_of.last_seq, True))
        for segment in reversed(self._segments):
            if last_seq > asked.as_of.last_seq and segment.messages.seq[-1] > asked.as_of.last_seq:
                found.append((segment, NO_FLOOR, asked.as_of.last_seq, last_seq, False))
        columns = []
        for segment, floor, after_seq, through_seq, push in found:
            row, seq, life, score = _search(
                segment, asked.x, asked.y, asked.alpha, asked.term_offsets, asked.terms, asked.weights,
                self.max_distance, after_seq, through_seq, floor, heaps, best, push,
            )  # fmt: skip
            columns.append((row, seq, life, score, np.full(row.shape[0], not push, np.int8)))
        return best[heaps[:-1]], columns

    def _drop_expired(self) -> None:
        """Drop segments that no boundary we may still be asked about sees alive."""
        floor = self.boundaries[0].floor
        self._segments = [segment for segment in self._segments if segment.messages.life.max() > floor]
        self._unindexed = [messages for messages in self._unindexed if messages.life.max() > floor]

    def _all_messages(self) -> list[MessageBatch]:
        return [*(segment.messages for segment in self._segments), *self._unindexed]

    def _index(self) -> None:
        """Make one segment of what came since the last query. Amortised O(postings * log(window / batch))."""
        if self._unindexed:
            self._segments.append(build_segment(concatenate(self._unindexed)))
            self._unindexed = []
            self._merge()

    def _merge(self) -> None:
        """Merge the newest segments while there are several of about the same size."""
        largest = max(1 << 12, len(self) // 8)
        while len(self._segments) >= _FAN_IN:
            tail = self._segments[-_FAN_IN:]
            sizes = [len(segment.messages) for segment in tail]
            if sizes[0] > _FAN_IN * sizes[-1] or sum(sizes) > largest:
                return
            self._segments[-_FAN_IN:] = [build_segment(concatenate([segment.messages for segment in tail]))]


def merge_answers(parts: list[WindowAnswers]) -> WindowAnswers:
    """Merge the answers of all tasks to one request; what an aggregation bolt does.

    Parameters
    ----------
    parts : list of WindowAnswers
        One from each task, of one request.

    Notes
    -----
    O(m log m) for m messages. The rank-th best of the union is among the rank best of the parts, and every part
    sent its ties, so the union holds every message at or above the merged threshold.
    """
    asked_rank = parts[0].rank
    rows = asked_rank.shape[0]
    row = np.concatenate([np.repeat(np.arange(rows), np.diff(part.offsets)) for part in parts])
    seq, life, score, after = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("seq", "life", "score", "after")
    )
    order = np.lexsort((-score, after, row))
    row, seq, life, score, after = row[order], seq[order], life[order], score[order], after[order]
    threshold = np.full(rows, -np.inf)
    alive = np.bincount(row[after == 0], minlength=rows)
    starts = np.searchsorted(row, np.arange(rows))
    full = np.flatnonzero(alive >= asked_rank)
    threshold[full] = score[starts[full] + asked_rank[full] - 1]
    keep = score >= threshold[row]
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row[keep], minlength=rows), out=offsets[1:])
    first = parts[0]
    return WindowAnswers(
        first.request, first.home, asked_rank, offsets, seq[keep], life[keep], score[keep], after[keep], threshold
    )  # fmt: skip


def build_segment(messages: MessageBatch) -> Segment:
    """Index messages (ascending seq). O(p log p) for p postings."""
    lengths = np.diff(messages.term_offsets)
    owner = np.repeat(np.arange(len(messages), dtype=np.int32), lengths)
    rest = _rest_norms(messages.term_offsets, messages.weights)
    curve = _z_order(messages.x, messages.y)
    # blocks of like weight and near place have tight bounds
    level = -np.floor(messages.weights * _WEIGHT_LEVELS).astype(np.int8)
    order = np.lexsort((curve[owner], level, messages.terms))
    terms = messages.terms[order]
    firsts = np.flatnonzero(np.r_[True, terms[1:] != terms[:-1]]) if terms.size else np.zeros(0, np.int64)
    list_start = np.r_[firsts, terms.size].astype(np.int64)
    block_start = np.zeros(list_start.shape[0], np.int64)
    np.cumsum((np.diff(list_start) + _BLOCK - 1) // _BLOCK, out=block_start[1:])
    blocks = int(block_start[-1])
    row = owner[order]
    segment = Segment(
        term=terms[firsts],
        list_start=list_start,
        block_start=block_start,
        row=row,
        weight=messages.weights[order],
        rest=rest[order],
        x=messages.x[row].astype(np.float32),
        y=messages.y[row].astype(np.float32),
        box=np.empty((blocks, 4), np.float32),
        largest_weight=np.empty(blocks, np.float32),
        largest_rest=np.empty(blocks, np.float32),
        messages=messages,
    )
    _bound_blocks(segment)
    return segment


def _assemble(asked: WindowQueries, threshold: Float64, columns: list) -> WindowAnswers:
    """Lay out what was found row after row, dropping what fell below the row's final threshold."""
    empty = (np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int8))
    row, seq, life, score, after = (np.concatenate(column) for column in zip(empty, *columns, strict=True))
    keep = np.flatnonzero(score >= threshold[row])
    keep = keep[np.argsort(row[keep], kind="stable")]
    offsets = np.zeros(threshold.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(row[keep], minlength=threshold.shape[0]), out=offsets[1:])
    return WindowAnswers(
        asked.request, asked.home, asked.rank, offsets, seq[keep], life[keep], score[keep], after[keep], threshold
    )  # fmt: skip


def _z_order(x: Float64, y: Float64) -> Int64:
    """Place of each point along a Z-order curve of 2^16 by 2^16 cells of the unit square. O(n)."""
    return _spread(x) | (_spread(y) << 1)


def _spread(values: Float64) -> Int64:
    """Interleave the 16 bits of each coordinate with zeros."""
    bits = np.clip(values * 65536.0, 0, 65535).astype(np.int64)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        bits = (bits | (bits << shift)) & mask
    return bits


@njit(cache=True, nogil=True)
def _rest_norms(offsets, weights):
    """Norm of each message's weights after each of its terms (float32[nnz])."""
    norms = np.empty(weights.shape[0], np.float32)
    for row in range(offsets.shape[0] - 1):
        square = 0.0
        for at in range(offsets[row + 1] - 1, offsets[row] - 1, -1):
            norms[at] = math.sqrt(square)
            square += np.float64(weights[at]) * np.float64(weights[at])
    return norms


@njit(cache=True, nogil=True)
def _bound_blocks(s):
    """Fill each block's bounding box, widened by more than float32 rounds, and its largest weights."""
    for t in range(s.list_start.shape[0] - 1):
        for block in range(s.block_start[t], s.block_start[t + 1]):
            first = s.list_start[t] + (block - s.block_start[t]) * _BLOCK
            west, south, east, north = np.inf, np.inf, -np.inf, -np.inf
            weight, rest = np.float32(0), np.float32(0)
            for p in range(first, min(first + _BLOCK, s.list_start[t + 1])):
                x, y = s.messages.x[s.row[p]], s.messages.y[s.row[p]]
                west, east, south, north = min(west, x), max(east, x), min(south, y), max(north, y)
                weight, rest = max(weight, s.weight[p]), max(rest, s.rest[p])
            s.box[block, 0], s.box[block, 1] = west - 1e-6, south - 1e-6
            s.box[block, 2], s.box[block, 3] = east + 1e-6, north + 1e-6
            s.largest_weight[block], s.largest_rest[block] = weight, rest


@njit(cache=True, nogil=True)
def _first_common(terms, other):
    """The first term two ascending lists share; -1 if none."""
    i, j = 0, 0
    while i < terms.shape[0] and j < other.shape[0]:
        if terms[i] == other[j]:
            return terms[i]
        if terms[i] < other[j]:
            i += 1
        else:
            j += 1
    return -1


@njit(cache=True, nogil=True)
def _search(
    segment, xs, ys, alphas, term_offsets, all_terms, all_weights, max_distance, after_seq, last_seq, floor, heaps,
    best, push
):  # fmt: skip
    """Find for each row the segment's messages with after_seq < seq <= last_seq, life > floor and score >= the bar.

    The bar of row r is best[heaps[r]], the least of its min-heap best[heaps[r] : heaps[r + 1]]; with `push` every score
    found enters the heap, so that the bar rises. Returns row, seq, life and score of all that reached the
    bar at their time: a superset of those that reach the last one.
    """
    m = segment.messages
    room = 1024
    out_row = np.empty(room, np.int32)
    out_seq = np.empty(room, np.int64)
    out_life = np.empty(room, np.int64)
    out_score = np.empty(room, np.float64)
    found = 0
    bounds = np.empty(256)
    blocks = np.empty(256, np.int64)  # a block, and the position of its term among the row's terms
    positions = np.empty(256, np.int32)
    ordered = np.empty(256, np.int64)
    starts = np.empty(_BUCKETS + 1, np.int64)
    for r in range(xs.shape[0]):
        terms = all_terms[term_offsets[r] : term_offsets[r + 1]]
        weights = all_weights[term_offsets[r] : term_offsets[r + 1]]
        x, y, alpha = xs[r], ys[r], alphas[r]
        heap = best[heaps[r] : heaps[r + 1]]
        own = np.empty(terms.shape[0])  # (1 - alpha) * weight of each term, and * norm of those after it
        rest = np.empty(terms.shape[0])
        lists = np.empty(terms.shape[0], np.int64)
        count = 0
        square = 0.0
        for j in range(terms.shape[0] - 1, -1, -1):
            own[j] = (1.0 - alpha) * weights[j]
            rest[j] = (1.0 - alpha) * math.sqrt(square)
            square += np.float64(weights[j]) * np.float64(weights[j])
            t = np.searchsorted(segment.term, terms[j])
            lists[j] = t if t < segment.term.shape[0] and segment.term[t] == terms[j] else -1
            if lists[j] < 0:
                continue
            more = segment.block_start[t + 1] - segment.block_start[t]
            if count + more > bounds.shape[0]:
                bounds = np.concatenate((bounds[:count], np.empty(count + 2 * more)))
                blocks = np.concatenate((blocks[:count], np.empty(count + 2 * more, np.int64)))
                positions = np.concatenate((positions[:count], np.empty(count + 2 * more, np.int32)))
                ordered = np.empty(bounds.shape[0], np.int64)
            for block in range(segment.block_start[t], segment.block_start[t + 1]):
                dx = max(0.0, segment.box[block, 0] - x, x - segment.box[block, 2])
                dy = max(0.0, segment.box[block, 1] - y, y - segment.box[block, 3])
                nearest = math.sqrt(dx * dx + dy * dy)
                text = own[j] * segment.largest_weight[block] + rest[j] * segment.largest_rest[block]
                bound = alpha * (1.0 - nearest / max_distance) + text + _SLACK
                if bound >= heap[0]:
                    bounds[count] = bound
                    blocks[count] = block
                    positions[count] = j
                    count += 1
        _order_by_bound(bounds[:count], ordered, starts)
        for c in range(count):
            if bounds[ordered[c]] < heap[0]:
                continue
            block, j = blocks[ordered[c]], positions[ordered[c]]
            t = lists[j]
            first = segment.list_start[t] + (block - segment.block_start[t]) * _BLOCK
            for p in range(first, min(first + _BLOCK, segment.list_start[t + 1])):
                dx = x - segment.x[p]
                dy = y - segment.y[p]
                spatial = 1.0 - math.sqrt(dx * dx + dy * dy) / max_distance
                if alpha * spatial + own[j] * segment.weight[p] + rest[j] * segment.rest[p] + _SLACK < heap[0]:
                    continue
                row = segment.row[p]
                if m.seq[row] <= after_seq or m.seq[row] > last_seq or m.life[row] <= floor:
                    continue
                a, b = m.term_offsets[row], m.term_offsets[row + 1]
                if _first_common(terms, m.terms[a:b]) != terms[j]:
                    continue  # found under an earlier term, or bounded out there
                text = 0.0
                i = j
                while i < terms.shape[0] and a < b:
                    if terms[i] < m.terms[a]:
                        i += 1
                    elif terms[i] > m.terms[a]:
                        a += 1
                    else:
                        text += np.float64(weights[i]) * np.float64(m.weights[a])
                        i += 1
                        a += 1
                dx = x - m.x[row]
                dy = y - m.y[row]
                spatial = 1.0 - math.sqrt(dx * dx + dy * dy) / max_distance
                score = alpha * spatial + (1.0 - alpha) * text
                if score < heap[0]:
                    continue
                if found == room:
                    out_row = np.concatenate((out_row, np.empty(room, np.int32)))
                    out_seq = np.concatenate((out_seq, np.empty(room, np.int64)))
                    out_life = np.concatenate((out_life, np.empty(room, np.int64)))
                    out_score = np.concatenate((out_score, np.empty(room, np.float64)))
                    room *= 2
                out_row[found] = r
                out_seq[found] = m.seq[row]
                out_life[found] = m.life[row]
                out_score[found] = score
                found += 1
                if push:
                    _replace_least(heap, score)
    return out_row[:found], out_seq[:found], out_life[:found], out_score[:found]


@njit(cache=True, nogil=True)
def _order_by_bound(bounds, ordered, starts):
    """Write positions of `bounds` into `ordered`, largest first but for the width of a bucket. O(n)."""
    if bounds.shape[0] == 0:
        return
    low, high = bounds.min(), bounds.max()
    scale = (_BUCKETS - 1) / (high - low) if high > low else 0.0
    starts[:] = 0
    for bound in bounds:
        starts[int((high - bound) * scale) + 1] += 1
    for bucket in range(_BUCKETS):
        starts[bucket + 1] += starts[bucket]
    for i in range(bounds.shape[0]):
        bucket = int((high - bounds[i]) * scale)
        ordered[starts[bucket]] = i
        starts[bucket] += 1


@njit(cache=True, nogil=True)
def _replace_least(heap, value):
    """Put `value` in place of the least entry of a min-heap."""
    at = 0
    size = heap.shape[0]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value
