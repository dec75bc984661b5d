"""Router `hashing`: a subscription is assigned to the task its number hashes to, a message goes to every task.

Every pair meets exactly once, so this is exact for all kinds. Replication ratio 1, communication cost the number of
query tasks (DSkype's first scheme; spec 3.1). Routing uses no thresholds, so a refill does not relax.

With signatures (`distribution.signatures.signature`) a message goes only to the tasks where a subscription to a region
may match it, as long as there are no subscriptions of other kinds. Made by `distribution.routers`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distribution.router import Router, RoutingTable, board_of, check_tasks, spread
from distribution.signatures.patches import SignaturePatch
from distribution.signatures.signature import SignatureSpec
from matching.kind_table import Traits
from matching.kinds import KINDS
from matching.model import Int64, MessageBatch, Removals, SubscriptionTable


class HashingRouter(Router):
    """Subscriptions by hash of their number, messages to all."""

    name = "hashing"

    def __init__(self, tasks: int, signatures: SignatureSpec | None = None, traits: Traits = KINDS.traits):
        check_tasks(tasks)
        super().__init__(tasks, traits)
        self.signatures = signatures

    def assigned_to(self, table: SubscriptionTable, task: int) -> NDArray[np.bool_]:
        return spread(table.number, self.tasks) == task

    def table(self) -> RoutingTable:
        return RoutingTable(self) if self.signatures is None else HashingTable(self)


class HashingTable(RoutingTable):
    """The signatures of the query tasks, and how many subscriptions need every message."""

    sends_all = False

    def __init__(self, router: HashingRouter):
        super().__init__(router)
        self._board: Any = board_of(router)
        self._others = 0

    def change(self, added: SubscriptionTable, removed: Removals) -> None:
        super().change(added, removed)
        region = self.router.traits.region
        signed = region[added.kind]
        self._others += int(np.count_nonzero(~signed)) - int(np.count_nonzero(~region[removed.kind]))
        self._board.change(added.take(np.flatnonzero(signed)), self.router.assigned_to)

    def apply(self, patch: SignaturePatch) -> None:
        self._board.apply(patch)

    def describe(self) -> dict[str, Any]:
        return self._board.describe()

    def route(self, messages: MessageBatch) -> list[Int64]:
        everything = np.arange(len(messages))
        tasks = range(self.router.tasks)
        if self._others:
            return [everything for _ in tasks]
        if messages.east is messages.west and messages.north is messages.south:
            return self._board.wanted_points(messages)
        return [self._board.wanted(messages, everything, task) for task in tasks]

    def route_ended(self, ended: MessageBatch) -> list[Int64]:
        # the subscriptions that the message was sent for are still there, or need its end no more
        everything = np.arange(len(ended))
        return [self._board.wanted(ended, everything, task, counted=False) for task in range(self.router.tasks)]
