"""Exchange of hits among query tasks: a home closes a batch when the hits of all replicas have arrived.

A subscription has one home, which keeps its result, and may have replicas on several tasks, which find hits for it. All
tasks take the same change lists, so each knows the homes of its replicas: it sends each of them one payload a batch,
empty if there are no hits. The home closes batches in order.
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
    """Hits of one kind, sent and received by one query task.

    Parameters
    ----------
    kind : int        code
    first : int       number of the first batch
    """

    def __init__(self, kind: int, context: Context, first: int = 0):
        self.kind, self.context = kind, context
        self.inputs = InOrder(
            {"own": 1, "hits": context.tasks}, first=first, name=f"query:{context.task} as home of kind {kind}"
        )
        # sends[h, t]: task t has, or had, replicas of subscriptions whose home is h
        self.sends = np.zeros((context.tasks, context.tasks), np.bool_)
        self.sent = 0

    @property
    def idle(self) -> bool:
        """Whether no task has ever had a subscription of the kind: then no hits are sent, here or there."""
        return not self.sends.any()

    def pass_over(self) -> None:
        """Close the next batch without hits, while `idle`."""
        self.inputs.skip()

    def note(self, home: Int64, holders: NDArray[np.bool_]) -> None:
        """Register new subscriptions: their homes (int64[n]) and the tasks that have them (bool[n, tasks])."""
        for task in range(self.context.tasks):
            self.sends[task] |= holders[home == task].any(axis=0)

    def put(self, batch: int, matched: Matched) -> None:
        """Send this task's hits of a batch to the homes; tasks without replicas for this home count as received."""
        me = self.context.task
        for task in range(self.context.tasks):
            if task != me and self.sends[task, me]:
                body = matched.hits_by_home[task]
                self.sent += body[0].shape[0]
                self.context.emit("hits", Addressed(self.kind, task, batch, body), to=task)
        self.inputs.put(batch, "own", matched.own_hits)
        for task in range(self.context.tasks):
            if task == me or not self.sends[me, task]:
                self.inputs.put(batch, "hits", None, task)

    def receive(self, hits: Addressed, sender: int) -> None:
        """Take another task's hits of a batch."""
        self.inputs.put(hits.request, "hits", hits.body, sender)

    def ready(self) -> Iterator[tuple[Any, list[Any]]]:
        """Batches that can be closed: this task's hits, and those of the others."""
        while (ready := self.inputs.pop()) is not None:
            yield ready.payloads["own"][0], [each for each in ready.payloads["hits"] if each is not None]
