"""Rebalancing: compares the busy times of the tasks of a component since the last checkpoint.

The driver checks after each committed checkpoint. If loads are uneven the run goes back to that checkpoint, and
components place their subscriptions by the busy times (`topology.core.api.component.Saved.work`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from topology.core.api.plan import Plan
from topology.core.metrics import TaskStatus


class Balance(NamedTuple):
    """When to rebalance.

    component : str     whose tasks are compared
    most : float        largest busy time of a task, in multiples of the mean
    least_share : float
        Fraction of the time that the busiest task must be busy; below it there is nothing to gain.
    """

    component: str
    most: float = 1.2
    least_share: float = 0.1


class Balancer:
    """Compares tasks from checkpoint to checkpoint.

    Where rebalancing did not help, it is tried again after twice as many checkpoints each time: some loads cannot be
    split.

    Attributes
    ----------
    figures : list of dict    of each rebalancing
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
        """The run has gone back: discard earlier measurements."""
        self._before = None

    def unbalanced(self, statuses: Sequence[TaskStatus], now_s: float) -> dict[str, tuple[int, ...]] | None:
        """Busy time of each task since the last call, in ns, if loads are to be rebalanced; else None.

        `now_s` is of a clock that never jumps. Called at each checkpoint.
        """
        worked = [sum(statuses[address].busy_ns.values()) for address in self._addresses]
        before, since_s = self._before, self._since_s
        self._before, self._since_s = worked, now_s
        if before is None:  # the first interval includes the initial load
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
