"""The tuple bolt: stores its part of the window's messages and answers window queries.

Each message has one owner among the tasks (`distribution.window_parts`), which alone stores and saves it. A query goes
to all of them, and their answers to the aggregation task that sent it. A query "as of batch b, up to batch B" waits
until both are stored. The messages are in one log, with a window index (`matching.operator.WindowIndex`) for every kind
that sends queries. Where it is not known which kinds will (`used_kinds`), an index is built when its kind sends the
first: a stream without subscriptions of a kind does not need its kernels.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np

from bolts.ordering import InOrder
from bolts.payloads import Addressed, Part
from distribution.window_parts import WindowParts, window_load
from matching.errors import EngineError
from matching.half_life import DecayParameters
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import Int64, MessageBatch, join_messages
from matching.operator import NO_SEQS, WindowIndex
from matching.space import Space
from matching.storage.message_log import WindowLog
from matching.window import Boundary
from topology.core.api.component import Bolt, Context, Delivery, Fragment, Saved


class TupleBolt(Bolt):
    """Stores messages and answers window queries.

    Parameters
    ----------
    kept_boundaries : int
        How many batches back queries may reach. With C credits, and acknowledgements delayed while a refill is C
        batches behind, no batch is published more than 2 C after one that may still be queried.
    window_indexes : mapping of kind to name, optional
        See `matching.kind_table.Kind.windows`; kinds left out get their default.
    used_kinds : collection of str, optional
        Names of the kinds that send window queries; by default any may.
    objects : bool
        The stream is one of objects: messages end for every kind, not only for those with `Kind.needs_ended`.
    fading : DecayParameters, optional
        For kinds whose scores decay.
    load : int64[cells], optional
        By which tasks divide the world (`distribution.window_parts.window_load`).
    """

    def __init__(
        self,
        space: Space,
        kept_boundaries: int,
        window_indexes: Mapping[str, str] | None = None,
        used_kinds: Collection[str] | None = None,
        kinds: Kinds = KINDS,
        objects: bool = False,
        fading: DecayParameters | None = None,
        load: Int64 | None = None,
    ):
        self.objects = objects
        self.fading = fading
        self.space = space
        self.kept_boundaries = kept_boundaries
        self.window_indexes = dict(window_indexes or {})
        self.on_demand = used_kinds is None
        self.used_kinds = kinds.names if used_kinds is None else tuple(used_kinds)
        self.kinds = kinds
        self.load = window_load() if load is None else load

    def prepare(self, context: Context) -> None:
        self.context = context
        self.log = WindowLog(self.objects)
        windowed = [kind.code for kind in self.kinds.run if kind.windowed and kind.name in self.used_kinds]
        self.indexes = {} if self.on_demand else {code: self._new_index(code) for code in windowed}
        self.recent = _Recent(self.kept_boundaries, self.objects) if self.on_demand and windowed else None
        self.windowed = windowed
        self.inputs = InOrder({"window": 1}, name=f"tuples:{context.task}")
        self.waiting: list[Addressed] = []
        self.answered = dict.fromkeys(windowed, 0)

    def _new_index(self, code: int) -> WindowIndex:
        kind = self.kinds[code]
        return kind.make_window(self.space, self.window_indexes.get(kind.name), self.kept_boundaries, self.fading)

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "joined_query":
            self.waiting.append(delivery.payload)
        else:
            part: Part = delivery.payload
            if self.inputs.take_whole(part.boundary.number):
                self._store(part)
            else:
                self.inputs.put(part.boundary.number, "window", part)
            while (ready := self.inputs.pop()) is not None:
                self._store(ready.payloads["window"][0])
        if self.waiting:
            self._answer()

    def _store(self, part: Part) -> None:
        """Store the next batch."""
        self.log.store(part.boundary, part.messages, part.ended.seq)
        if self.recent is not None:
            self.recent.store(part.boundary, part.messages, part.ended.seq)
        for code, index in self.indexes.items():
            index.store(part.boundary, part.messages, self._ended(code, part.ended.seq))
        self.context.acknowledge(part.boundary.number)

    def report(self) -> dict[str, Any]:
        indexes = {self.kinds[code].name: index for code, index in self.indexes.items()}
        return {
            "messages_held": len(self.log),
            "log_bytes": self.log.size_bytes(),
            "window_bytes": {name: index.size_bytes() for name, index in indexes.items()},
            "order_bytes": {"log": self.log.order_bytes()} | {name: one.order_bytes() for name, one in indexes.items()},
            "answered": {self.kinds[code].name: rows for code, rows in self.answered.items()},
        }

    def quiet(self) -> bool:
        return not self.waiting

    def snapshot(self, stored: Mapping[str, int]) -> Mapping[str, Fragment]:
        """The messages of the window, by reference."""
        boundary, alive = np.array(self.log.boundary, np.int64), self.log.snapshot()

        def arrays() -> dict[str, np.ndarray]:
            messages, ended = alive()
            return {"boundary": boundary, "ended": ended} | messages._asdict()

        return {"": Fragment(arrays)}

    def restore(self, saved: Saved) -> None:
        """Take this task's part of all messages; window indexes are rebuilt."""
        parts = saved.tasks(self.context.component)
        boundary = Boundary(*map(int, parts[0]["boundary"]))
        self.inputs = InOrder({"window": 1}, first=saved.number + 1, name=f"tuples:{self.context.task}")
        # an earlier release saved no `previous_seq`
        columns = [{"previous_seq": NO_SEQS, **part} for part in parts]
        together = join_messages([MessageBatch(*(part[name] for name in MessageBatch._fields)) for part in columns])
        rows = np.flatnonzero(WindowParts(self.context.tasks, self.load).owner_of(together) == self.context.task)
        mine = together.take(rows[np.argsort(together.seq[rows])])
        ended = np.intersect1d(np.concatenate([part["ended"] for part in parts]), mine.seq)
        self.log.store(boundary, mine, ended)
        if self.recent is not None:
            self.recent.restore(boundary, mine, ended)
        for code, index in self.indexes.items():
            index.load(boundary, mine, self._ended(code, ended))

    def _build(self, code: int) -> None:
        """Build the window index of a kind that sends its first query, as if it had stored every batch."""
        index = self.indexes[code] = self._new_index(code)
        assert self.recent is not None, "it is kept until all are built"
        self.recent.fill(index, partial(self._ended, code))
        if len(self.indexes) == len(self.windowed):
            self.recent = None

    def _ended(self, code: int, seqs: Int64) -> Int64:
        """Those of these seqs that end for a kind: all or none."""
        return seqs if self.objects or self.kinds[code].needs_ended else NO_SEQS

    def _answer(self) -> None:
        """Answer the queries whose batches are stored, in any order, since each names its boundary."""
        still_waiting = []
        for request in self.waiting:
            if request.kind not in self.indexes and request.kind in self.windowed:
                self._build(request.kind)
            index, query = self.indexes.get(request.kind), request.body
            if index is None:
                raise EngineError(
                    f"tuples:{self.context.task}: a subscription of kind {self.kinds[request.kind].name} queries a "
                    "window that is not stored; name its kind in `used_kinds`"
                )
            if max(query.up_to, query.as_of.number) > index.stored_through:
                still_waiting.append(request)
                continue
            self.answered[request.kind] += query.rows[0].shape[0]
            self.context.emit("partial", request._replace(body=index.answer(query)), to=request.home)
        self.waiting = still_waiting


class _Recent:
    """Input of an index that is built later: the window as of the oldest boundary that queries may name, and later
    batches. It refers to batches without a copy, and joins small ones."""

    def __init__(self, kept_boundaries: int, objects: bool):
        self._kept_boundaries = kept_boundaries
        self._window = WindowLog(objects)
        self._batches: deque[tuple[Boundary, MessageBatch, Int64]] = deque()

    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> None:
        """Take the next batch; O(1) amortised, and O(messages) where batches are small."""
        self._batches.append((boundary, messages, ended))
        if len(self._batches) > self._kept_boundaries:
            self._window.store(*self._batches.popleft())

    def restore(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> None:
        """Take a whole window, as of a boundary; before any batch."""
        self._window.store(boundary, messages, ended)

    def fill(self, index: WindowIndex, ended_of: Callable[[Int64], Int64]) -> None:
        """Bring an empty index to the last boundary; `ended_of` says which of what has ended do for its kind."""
        if self._window.boundary.number >= 0:
            messages, ended = self._window.alive()
            index.load(self._window.boundary, messages, ended_of(ended))
        for boundary, messages, ended in self._batches:
            index.store(boundary, messages, ended_of(ended))
