"""What query tasks find for each other: a batch closes at a home when everybody who holds its subscriptions has spoken.

A subscription has one home, which keeps its result; several tasks may hold it and find messages for it. All tasks take
the same change lists, so each knows who holds subscriptions at home where: to every such home a task sends one payload
a batch, with what it found or with nothing, which serves as the marker of the batch. The home closes batches in the
order of their numbers, each once it has all markers. Used by `bolts.query`; read on there.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bolts.ordering import InOrder
from bolts.payloads import Addressed
from matching.model import Int64
from matching.operator import Matched
from topology.core.api.component import Context


class Exchange:
    """Finds of one kind, as one query task sends and hears them.

    Parameters
    ----------
    kind : int        code
    context : Context of the query task
    first : int       number of the first batch
    """

    def __init__(self, kind: int, context: Context, first: int = 0):
        self.kind, self.context = kind, context
        self.inputs = InOrder(
            {"own": 1, "found": context.tasks}, first=first, name=f"query:{context.task} as home of kind {kind}"
        )
        # sends[h, t]: task t holds, or has held, subscriptions at home at h
        self.sends = np.zeros((context.tasks, context.tasks), np.bool_)
        self.sent = 0

    def note(self, home: Int64, held: NDArray[np.bool_]) -> None:
        """Learn who holds new subscriptions: their homes (int64[n]), holders (bool[n, tasks])."""
        for task in range(self.context.tasks):
            self.sends[task] |= held[home == task].any(axis=0)

    def put(self, batch: int, matched: Matched) -> None:
        """This task has matched a batch: tell the homes. Nothing will come from who holds nothing for this one."""
        me = self.context.task
        for task in range(self.context.tasks):
            if task != me and self.sends[task, me]:
                body = matched.found[task]
                self.sent += body[0].shape[0]
                self.context.emit("found", Addressed(self.kind, task, batch, body), to=task)
        self.inputs.put(batch, "own", matched.mine)
        for task in range(self.context.tasks):
            if task == me or not self.sends[me, task]:
                self.inputs.put(batch, "found", None, task)

    def receive(self, found: Addressed, sender: int) -> None:
        """Another task has matched a batch."""
        self.inputs.put(found.request, "found", found.body, sender)

    def ready(self) -> Iterator[tuple[Any, list[Any]]]:
        """Batches that can be closed: what this task found, and what the others did."""
        while (ready := self.inputs.pop()) is not None:
            yield ready.payloads["own"][0], [each for each in ready.payloads["found"] if each is not None]
