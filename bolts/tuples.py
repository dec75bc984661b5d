"""The tuple bolt: stores its part of the window's messages and answers window queries.

A query "as of batch b, up to batch B" waits until both are stored. The messages are in one log, with a window index
(`matching.operator.WindowIndex`) for every kind that sends queries. The answers of all tuple tasks to one query go to
one aggregation task. Read on in `bolts.aggregation`.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bolts.ordering import InOrder
from bolts.payloads import Addressed, Part
from matching.errors import EngineError
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import MessageBatch, join_messages
from matching.operator import WindowIndex
from matching.space import Space
from matching.storage.message_log import WindowLog
from matching.window import Boundary
from topology.core.api.component import Bolt, Context, Delivery, Saved


class TupleBolt(Bolt):
    """Stores messages and answers window queries.

    Parameters
    ----------
    space : Space
    kept_boundaries : int
        How many batches back queries may reach. With C credits, and acknowledgements delayed while a refill is C
        batches behind, no batch is published more than 2 C after one that may still be queried.
    window_indexes : mapping of kind to name, optional
        See `matching.kind_table.Kind.windows`; kinds left out get their default.
    used_kinds : collection of str, optional
        Names of the kinds that may send window queries; all by default.
    kinds : Kinds
    """

    def __init__(
        self,
        space: Space,
        kept_boundaries: int,
        window_indexes: Mapping[str, str] | None = None,
        used_kinds: Collection[str] | None = None,
        kinds: Kinds = KINDS,
    ):
        self.space = space
        self.kept_boundaries = kept_boundaries
        self.window_indexes = dict(window_indexes or {})
        self.used_kinds = kinds.names if used_kinds is None else tuple(used_kinds)
        self.kinds = kinds

    def prepare(self, context: Context) -> None:
        self.context = context
        self.log = WindowLog()
        self.indexes: dict[int, WindowIndex] = {
            kind.code: kind.window(self.window_indexes.get(kind.name))(self.space, self.kept_boundaries)
            for kind in self.kinds.run
            if kind.windowed and kind.name in self.used_kinds
        }
        self.inputs = InOrder({"window": 1}, name=f"tuples:{context.task}")
        self.aggregation_tasks = context.size_of("aggregation")
        self.waiting: list[Addressed] = []
        self.answered = dict.fromkeys(self.indexes, 0)

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "window_query":
            self.waiting.append(delivery.payload)
        else:
            self.inputs.put(delivery.payload.boundary.number, "window", delivery.payload)
            while (ready := self.inputs.pop()) is not None:
                part: Part = ready.payloads["window"][0]
                self.log.store(part.boundary, part.messages, part.ended.seq)
                for index in self.indexes.values():
                    index.store(part.boundary, part.messages, part.ended.seq)
                self.context.acknowledge(ready.number)
        self._answer()

    def report(self) -> dict[str, Any]:
        return {
            "messages_held": len(self.log),
            "log_bytes": self.log.size_bytes(),
            "window_bytes": {self.kinds[code].name: index.size_bytes() for code, index in self.indexes.items()},
            "answered": {self.kinds[code].name: rows for code, rows in self.answered.items()},
        }

    def quiet(self) -> bool:
        return not self.waiting

    def state(self) -> dict[str, np.ndarray]:
        messages, ended = self.log.alive()
        return {"boundary": np.array(self.log.boundary, np.int64), "ended": ended} | messages._asdict()

    def restore(self, saved: Saved) -> None:
        """Take this task's part of all messages; window indexes are rebuilt."""
        parts = saved.parts["tuples"]
        boundary = Boundary(*map(int, parts[0]["boundary"]))
        self.inputs = InOrder({"window": 1}, first=saved.number + 1, name=f"tuples:{self.context.task}")
        together = join_messages([MessageBatch(*(part[name] for name in MessageBatch._fields)) for part in parts])
        rows = np.flatnonzero(together.seq % self.context.tasks == self.context.task)
        mine = together.take(rows[np.argsort(together.seq[rows])])
        ended = np.intersect1d(np.concatenate([part["ended"] for part in parts]), mine.seq)
        self.log.store(boundary, mine, ended)
        for index in self.indexes.values():
            index.load(boundary, mine, ended)

    def _answer(self) -> None:
        """Answer the queries whose batches are stored, in any order, since each names its boundary."""
        still_waiting = []
        for request in self.waiting:
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
            answer = request._replace(body=index.answer(query))
            self.context.emit("partial", answer, to=(request.request + request.home) % self.aggregation_tasks)
        self.waiting = still_waiting
