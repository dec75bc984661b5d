"""Router `hashing`: a subscription is held by the task its number hashes to, a message goes to every task.

Every pair meets exactly once whatever the kind, so this is exact for all five. Replication ratio 1, communication
cost the number of query tasks (DSkype's first scheme; spec 3.1). Thresholds play no part in routing, so
a refill needs no word with the distribution tasks.
"""

import numpy as np
from numpy.typing import NDArray

from distribution.router import Router, RoutingTable, check_tasks, spread
from matching.model import SubscriptionTable


class HashingRouter(Router):
    """Subscriptions by hash of their number, messages to all."""

    name = "hashing"

    def __init__(self, tasks: int):
        check_tasks(tasks)
        super().__init__(tasks)

    def held_by(self, table: SubscriptionTable, task: int) -> NDArray[np.bool_]:
        return spread(table.number, self.tasks) == task

    def table(self) -> RoutingTable:
        return RoutingTable()
