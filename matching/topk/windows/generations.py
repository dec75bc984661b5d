"""A window index made of generations: spans of the stream, each indexed once and immutable.

New messages are first scanned one by one, until the scans have cost about as much as indexing; then they become a
generation. Small generations are merged into larger ones of at most an eighth of the window (as in log-structured merge
trees); a generation is compacted when half of it has expired, and dropped when all of it has. Base of
`matching.topk.windows.segments` and of baselines.
"""

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from compiling.cores import cores
from matching.model import MessageBatch
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
    """

    rows: WindowRows
    index: Any
    last_seq: int
    half_life: int
    last_life: int


class GenerationIndex(TopkWindowIndex):
    """Messages in generations, oldest first; implementations index and search one."""

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        self._generations: list[Generation] = []
        self._fresh: list[WindowRows] = []  # newer than all generations
        self._fresh_life: list[int] = []  # the longest life in each
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
        self._generations.append(self._generation(join_window_rows(self._fresh)))
        self._fresh, self._fresh_life, self._scanned = [], [], 0
        floor = self.boundaries[0].floor
        self._generations = [
            self._generation(take_window_rows(one.rows, np.flatnonzero(one.rows.head[:, 1] > floor)))
            if one.half_life <= floor
            else one
            for one in self._generations
            if one.last_life > floor
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
