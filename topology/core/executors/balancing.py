"""Whether loads are to be dealt out anew: what the tasks of a component have worked since the last checkpoint.

Looked at by the driver whenever a checkpoint is whole. The run then goes back to that one, with what was measured, by
which components deal out anew what they hold (`topology.core.api.component.Saved.work`). Used by
`topology.core.executors.ray`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from topology.core.api.plan import Plan
from topology.core.metrics import TaskStatus


class Balance(NamedTuple):
    """When to deal out anew.

    component : str     whose tasks are compared
    most : float        how many times the mean the busiest task may work
    least_share : float
        Of the time; where even the busiest is at work for less, there is nothing to win.
    """

    component: str
    most: float = 1.2
    least_share: float = 0.1


class Balancer:
    """Compares tasks from checkpoint to checkpoint.

    Where dealing out anew did not help, it is tried again after twice as many checkpoints each time: some loads cannot
    be parted.

    Attributes
    ----------
    figures : list of dict    of each time that loads were dealt out anew
    """

    def __init__(self, plan: Plan, balance: Balance):
        self._addresses = plan.addresses_of(balance.component)
        self._balance = balance
        self._before: list[int] | None = None
        self._since_s = 0.0
        self._patience = 1
        self._left = 0
        self.figures: list[dict[str, Any]] = []

    def begin(self) -> None:
        """The run goes on from another place: what was measured before is of no use."""
        self._before = None

    def unbalanced(self, statuses: Sequence[TaskStatus], now_s: float) -> dict[str, tuple[int, ...]] | None:
        """What each task has worked since the last call, in ns, if loads are to be dealt out anew by it.

        `now_s` is of a clock that never jumps. Called at each checkpoint.
        """
        worked = [sum(statuses[address].busy_ns.values()) for address in self._addresses]
        before, since_s = self._before, self._since_s
        self._before, self._since_s = worked, now_s
        if before is None:  # the first one has all that was there from the start among it
            return None
        work = tuple(max(0, now - then) for now, then in zip(worked, before, strict=True))
        busiest, mean = max(work), sum(work) / len(work)
        if busiest < self._balance.least_share * (now_s - since_s) * 1e9 or busiest <= self._balance.most * mean:
            self._patience, self._left = 1, 0
            return None
        if self._left > 0:
            self._left -= 1
            return None
        self._patience *= 2
        self._left = self._patience
        return {self._balance.component: work}
