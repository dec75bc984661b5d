"""Placement of subscriptions on query tasks by expected cost: the interface of the algorithms.

A `Placement` places all subscriptions of the beginning of the stream together (`together`), and later ones in order
(`later`), for which it keeps state. The assignment and the loads are in a `Ledger`. Base of the algorithms of
`distribution.placement`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from distribution.placement.assign import assign
from distribution.placement.costs import PlacementCosts
from distribution.placement.demand import Demand
from matching.model import Float64, Int64
from matching.storage.slots import SlotMap, resized


class Placed(NamedTuple):
    """The task of each subscription (int64[n]), and its cost C(s) (float64[n], as of `PlacementCosts.rounded`)."""

    owner: Int64
    cost: Float64


class Placement(ABC):
    """One algorithm, for a number of tasks."""

    #: As written after `--router`.
    name: ClassVar[str]
    #: Whether it needs the rectangles of subscriptions, which are the most expensive part of a demand.
    by_place: ClassVar[bool] = True

    def __init__(self, costs: PlacementCosts, tasks: int):
        self.costs = costs
        self.tasks = tasks

    @abstractmethod
    def together(self, demand: Demand) -> Placed:
        """Place all subscriptions, in an order of its own."""

    @abstractmethod
    def price(self, demand: Demand) -> Float64:
        """C(s) of each later subscription: float64[n], rounded."""

    def later(self, demand: Demand, load: Float64) -> Placed:
        """Place subscriptions one by one, on tasks with `load` (float64[tasks])."""
        cost = self.price(demand)
        return Placed(assign(cost, load.copy()), cost)

    def arrays(self) -> dict[str, np.ndarray]:
        """State of `later` for a snapshot: attributes of these names."""
        return {}

    def recall(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore what `arrays` returned, in place of `together`."""
        for name in self.arrays():
            setattr(self, name, np.array(arrays[name]))

    def deal_anew(self) -> None:  # noqa: B027 - most have nothing to do
        """Adapt recalled state to this number of tasks, after all subscriptions were redistributed."""

    def describe(self) -> dict[str, Any]:
        """Figures for the report of a run, JSON-ready."""
        return {}


class Ledger:
    """Task and cost of each subscription, and the load of each task.

    Attributes
    ----------
    load : float64[tasks]    sums of C(s); exact, so 0 again when all are removed
    """

    def __init__(self, tasks: int):
        self.load = np.zeros(tasks)
        self._slots = SlotMap()
        self._owner = np.zeros(0, np.int32)
        self._cost = np.zeros(0)

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, number: Int64, placed: Placed) -> None:
        """Add subscriptions. O(n). Raises EngineError if one is there already."""
        slots = self._slots.insert(number)
        if self._owner.shape[0] < self._slots.capacity:
            self._owner = resized(self._owner, self._slots.capacity)
            self._cost = resized(self._cost, self._slots.capacity)
        self._owner[slots], self._cost[slots] = placed
        np.add.at(self.load, placed.owner, placed.cost)

    def remove(self, number: Int64) -> None:
        """Remove subscriptions. O(n). Raises EngineError if one is not there."""
        slots = self._slots.remove(number)
        np.subtract.at(self.load, self._owner[slots], self._cost[slots])

    def contains(self, number: Int64) -> np.ndarray:
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
