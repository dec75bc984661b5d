"""Who gets which subscription by what it is expected to cost: what the algorithms have in common.

A `Placement` is one algorithm at work for so many query tasks. It is asked twice: once for all subscriptions that are
there when the stream begins (`together`), and then for those that come later, in their order (`later`). It remembers
what it needs for the latter, and can say it in arrays. Who holds what, and the loads, are kept apart from it, in a
`Ledger`. Read on in `distribution.placement.kop`, the simplest one, and `distribution.placed`, which asks.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from distribution.placement.assign import assign
from distribution.placement.costs import Costs
from distribution.placement.demand import Demand
from matching.model import Float64, Int64
from matching.storage.slots import SlotMap, resized


class Placed(NamedTuple):
    """The task of each subscription (int64[n]), and its cost C(s) (float64[n], as `Costs.rounded` leaves it)."""

    owner: Int64
    cost: Float64


class Placement(ABC):
    """One algorithm, for so many tasks and with these costs."""

    #: As written after `--router`.
    name: ClassVar[str]
    #: Whether it asks where subscriptions listen; finding that out takes longer than all else.
    by_place: ClassVar[bool] = True

    def __init__(self, costs: Costs, tasks: int):
        self.costs = costs
        self.tasks = tasks

    @abstractmethod
    def together(self, demand: Demand) -> Placed:
        """Place all subscriptions that there are, in an order of its own."""

    @abstractmethod
    def price(self, demand: Demand) -> Float64:
        """C(s) of each subscription that comes when others have been placed: float64[n], rounded."""

    def later(self, demand: Demand, load: Float64) -> Placed:
        """Place subscriptions one after the other, behind what makes up `load` (float64[tasks])."""
        cost = self.price(demand)
        return Placed(assign(cost, load.copy()), cost)

    def arrays(self) -> dict[str, np.ndarray]:
        """What `later` goes by, beside costs and loads: attributes of these names."""
        return {}

    def recall(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take up what `arrays` said, in place of `together`."""
        for name in self.arrays():
            setattr(self, name, np.array(arrays[name]))

    def deal_anew(self) -> None:  # noqa: B027 - most have nothing to do
        """What `recall` took up was for another number of tasks, and all subscriptions have been dealt out anew."""

    def describe(self) -> dict[str, Any]:
        """Figures of its own, JSON-ready."""
        return {}


class Ledger:
    """Who holds which subscription at what cost, and what that comes to for each task.

    Attributes
    ----------
    load : float64[tasks]    sums of C(s); exact, so that it is 0 again when all have gone
    """

    def __init__(self, tasks: int):
        self.load = np.zeros(tasks)
        self._slots = SlotMap()
        self._owner = np.zeros(0, np.int32)
        self._cost = np.zeros(0)

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, number: Int64, placed: Placed) -> None:
        """Note new subscriptions. O(n). Raises EngineError if one is there already."""
        slots = self._slots.insert(number)
        if self._owner.shape[0] < self._slots.capacity:
            self._owner = resized(self._owner, self._slots.capacity)
            self._cost = resized(self._cost, self._slots.capacity)
        self._owner[slots], self._cost[slots] = placed
        np.add.at(self.load, placed.owner, placed.cost)

    def remove(self, number: Int64) -> None:
        """Forget subscriptions. O(n). Raises EngineError if one is not there."""
        slots = self._slots.remove(number)
        np.subtract.at(self.load, self._owner[slots], self._cost[slots])

    def holds(self, number: Int64) -> np.ndarray:
        """bool[n]: which of these are there."""
        return self._slots.find(number) >= 0

    def owners(self, number: Int64) -> Int64:
        """The task of each of these, -1 for those that are not there: int64[n]."""
        slots = self._slots.find(number)
        return np.where(slots >= 0, np.append(self._owner, np.int32(-1))[slots], -1).astype(np.int64)

    def arrays(self) -> dict[str, np.ndarray]:
        """Number (int64[n], ascending), owner and cost of each."""
        number = self._slots.number[: self._slots.high_water]
        slots = np.flatnonzero(number >= 0)
        slots = slots[np.argsort(number[slots])]
        return {"number": number[slots], "owner": self._owner[slots], "cost": self._cost[slots]}
