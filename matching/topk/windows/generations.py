"""A window index made of generations: spans of the stream, each indexed once and immutable.

New messages are first scanned one by one, until the scans have cost about as much as indexing; then they become a
generation. Small generations are merged into larger ones of at most an eighth of the window (as in log-structured merge
trees); a generation is compacted when half of it has expired, and dropped when all of it has. Base of
`matching.topk.windows.segments`.
"""

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from compiling.cores import cores
from matching.model import Int64, MessageBatch
from matching.space import Space
from matching.topk.window import TopkWindowIndex
from matching.topk.windows.search import (
    QueryRows,
    Span,
    WindowHits,
    WindowRows,
    join_window_rows,
    place_on_curve,
    rows_of,
    scan,
    take_window_rows,
)
from matching.window import NO_FLOOR

#: Generations of about the same size that are merged into one.
_FAN_IN = 4
_LEAST_MERGED = 1 << 12
#: Indexing a message, merges included, costs about as much as scanning this many messages.
_SCANS_AN_INDEXING = 100
#: Queries for each thread at least: only the bulk of new subscriptions has so many, ordinary refills use one thread.
_ROWS_A_THREAD = 2_048


class Generation(NamedTuple):
    """An indexed span of the stream.

    rows : WindowRows       the messages along a Z-order curve: a query reads neighbours
    index : NamedTuple      built by the implementation
    last_seq : int
    half_life, last_life : int     half of them, and all of them, have expired once the floor reaches it
    by_seq : int64[n], optional    rows in ascending seq, once any has ended
    ended : int                    how many have
    """

    rows: WindowRows
    index: Any
    last_seq: int
    half_life: int
    last_life: int
    by_seq: Int64 | None = None
    ended: int = 0


class GenerationIndex(TopkWindowIndex):
    """Messages in generations, oldest first; implementations index and search one.

    A message that has ended stays where it is, without a life, until its generation is made anew.
    """

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        self._generations: list[Generation] = []
        self._fresh: list[WindowRows] = []  # newer than all generations
        self._fresh_life: list[int] = []  # the longest life in each
        self._fresh_ended = 0  # how many of them have ended
        self._scanned = 0  # messages scanned since the last generation was built

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._parts())

    def size_bytes(self) -> int:
        indexed = sum(array.nbytes for generation in self._generations for array in tuple(generation.index))
        return indexed + sum(rows.nbytes for rows in self._parts())

    def order_bytes(self) -> int:
        return sum(rows.order_bytes for rows in self._parts())

    @abstractmethod
    def _build(self, rows: WindowRows) -> Any:
        """Index messages that lie along the curve of `place_on_curve`: a NamedTuple of arrays."""

    @abstractmethod
    def _search_one(self, index: Any, rows: WindowRows, queries: QueryRows, span: Span) -> WindowHits:
        """`_search` within one generation."""

    def _add(self, messages: MessageBatch) -> None:
        self._fresh.append(rows_of(messages))
        self._fresh_life.append(int(messages.life.max()))

    def _load(self, messages: MessageBatch) -> None:
        self._generations = [self._generation(rows_of(messages))]

    def _drop(self, floor: int) -> None:
        if (
            self._generations
            and self._generations[0].last_life <= floor
            or self._fresh
            and self._fresh_life[0] <= floor
        ):
            self._generations = [one for one in self._generations if one.last_life > floor]
            kept = [i for i, life in enumerate(self._fresh_life) if life > floor]
            self._fresh = [self._fresh[i] for i in kept]
            self._fresh_life = [self._fresh_life[i] for i in kept]
            if self._fresh_ended:
                self._fresh_ended = sum(int(np.count_nonzero(rows.head[:, 1] == NO_FLOOR)) for rows in self._fresh)

    def _end(self, seqs: Int64) -> list[WindowRows]:
        self._join_fresh()
        ended = [_end_some(rows, np.arange(len(rows)), seqs) for rows in self._fresh]
        self._fresh_ended += sum(map(len, ended))
        for number, one in enumerate(self._generations):
            by_seq = np.argsort(one.rows.head[:, 0]) if one.by_seq is None else one.by_seq
            ended.append(_end_some(one.rows, by_seq, seqs))
            self._generations[number] = one._replace(by_seq=by_seq, ended=one.ended + len(ended[-1]))
        return [rows for rows in ended if len(rows)]

    def _join_fresh(self) -> None:
        """Join fresh messages so that there are few parts, without those that have ended once these are half of them.

        O(log messages) copies of each.
        """
        parts, lives = self._fresh, self._fresh_life
        if 2 * self._fresh_ended > sum(map(len, parts)):
            rows = _without_ended(join_window_rows(parts))
            parts[:], lives[:] = ([rows], [max(lives)]) if len(rows) else ([], [])
            self._fresh_ended = 0
        while len(parts) > 1 and 2 * len(parts[-1]) >= len(parts[-2]):
            parts[-2:], lives[-2:] = [join_window_rows(parts[-2:])], [max(lives[-2:])]

    def _search(self, queries: QueryRows, span: Span) -> list[WindowHits]:
        self._settle(queries.x.shape[0])
        threads = min(cores(), queries.order.shape[0] // _ROWS_A_THREAD)
        if threads < 2:
            return self._search_rows(queries, span)
        # kernels run without the interpreter's lock, and each row has its own heap
        pieces = [queries._replace(order=order) for order in np.array_split(queries.order, threads)]
        with ThreadPoolExecutor(threads) as pool:
            return list(chain.from_iterable(pool.map(lambda some: self._search_rows(some, span), pieces)))

    def _search_rows(self, queries: QueryRows, span: Span) -> list[WindowHits]:
        """`_search` of the rows in `queries.order`."""
        found = []
        # the largest first, which sets the highest bar
        for generation in sorted(self._generations, key=lambda one: -len(one.rows)):
            if generation.last_seq > span.after_seq and generation.last_life > span.floor:
                found.append(self._search_one(generation.index, generation.rows, queries, span))
        for rows in self._fresh:
            if rows.head[-1, 0] > span.after_seq:
                found.append(scan(rows, queries, span))
        return found

    def _parts(self) -> list[WindowRows]:
        return [*(generation.rows for generation in self._generations), *self._fresh]

    def _generation(self, rows: WindowRows) -> Generation:
        rows = _without_ended(rows)
        x, y = self.space.project(*rows.place.T) if self.space.on_sphere else rows.point.T
        rows = take_window_rows(rows, np.argsort(place_on_curve(x, y), kind="stable"))
        life = rows.head[:, 1]
        half = int(np.partition(life, (life.size - 1) // 2)[(life.size - 1) // 2])
        return Generation(rows, self._build(rows), int(rows.head[:, 0].max()), half, int(life.max()))

    def _settle(self, queries: int) -> None:
        """Index fresh messages if they have been, or would now be, scanned too often; drop, compact and merge."""
        fresh = sum(len(rows) for rows in self._fresh)
        if fresh == 0:
            return
        if self._scanned + queries * fresh < _SCANS_AN_INDEXING * fresh:
            self._scanned += queries * fresh
            self._fresh = [join_window_rows(self._fresh)]  # one call of a kernel costs as much as some hundred messages
            self._fresh_life = [max(self._fresh_life)]
            return
        if self._fresh_ended < fresh:
            self._generations.append(self._generation(join_window_rows(self._fresh)))
        self._fresh, self._fresh_life, self._fresh_ended, self._scanned = [], [], 0, 0
        floor = self.boundaries[0].floor
        self._generations = [
            self._generation(take_window_rows(one.rows, np.flatnonzero(one.rows.head[:, 1] > floor)))
            if one.half_life <= floor or 2 * one.ended > len(one.rows)
            else one
            for one in self._generations
            if bool(np.any(one.rows.head[:, 1] > floor) if one.ended else one.last_life > floor)
        ]
        self._merge()

    def _merge(self) -> None:
        """Merge the newest generations while there are several of about the same size."""
        largest = max(_LEAST_MERGED, len(self) // 8)
        while len(self._generations) >= _FAN_IN:
            tail = self._generations[-_FAN_IN:]
            sizes = [len(generation.rows) for generation in tail]
            if sizes[0] > _FAN_IN * sizes[-1] or sum(sizes) > largest:
                return
            self._generations[-_FAN_IN:] = [
                self._generation(join_window_rows([generation.rows for generation in tail]))
            ]


def _without_ended(rows: WindowRows) -> WindowRows:
    """The messages that have not ended. O(n)."""
    alive = rows.head[:, 1] > NO_FLOOR
    return rows if alive.all() else take_window_rows(rows, np.flatnonzero(alive))


def _end_some(rows: WindowRows, by_seq: Int64, seqs: Int64) -> WindowRows:
    """Take the life of those of the messages (seqs ascending) that are here; returns these, as they were."""
    known = rows.head[by_seq, 0]
    at = np.minimum(np.searchsorted(known, seqs), known.shape[0] - 1)
    found = by_seq[at[known[at] == seqs]]
    ended = take_window_rows(rows, found)
    rows.head[found, 1] = NO_FLOOR
    return ended
