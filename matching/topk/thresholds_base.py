"""What a room of `topk` asks about thresholds, whatever the rule. Read on in `matching.topk.thresholds`."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from matching.model import Float64, Int32, Int64


class ThresholdRule(ABC):
    """What a stream asks about the thresholds of its subscriptions."""

    #: As written after `--threshold-rule`.
    name: str

    @abstractmethod
    def ranks(self, k: Int32) -> Int32:
        """How many of the best a refill asks for, by the k of each subscription. O(n)."""

    @abstractmethod
    def cuts(self, k: Int32, count: Int32) -> Int32:
        """The rank whose score becomes the threshold of a buffer of `count` entries, 0 to leave it. O(n)."""

    def dominators(self, k: Int32) -> Int32:
        """How many dominators drop an entry. O(1)."""
        return k

    def observe(  # noqa: B027 - most rules learn nothing
        self, messages: int, window: float, held: Int64, short: Int32
    ) -> None:
        """Learn what a batch of so many messages brought.

        Parameters
        ----------
        window : float       how many messages the window holds
        held : int64[...]    how many subscriptions there are of each k, by k
        short : int32[n]     k of each that ran short
        """

    def refilled(self, k: Int32, read: Int64) -> None:  # noqa: B027 - see `observe`
        """Learn what refills took: k of each, and postings read for it."""

    def describe(self) -> dict[str, Any]:
        """What it has learned, JSON-ready."""
        return {"rule": self.name}

    def state(self) -> Float64:
        """What it needs to continue."""
        return np.zeros(0)

    def knows(self, state: Float64) -> bool:
        """Whether it can continue from `state`, which another rule may have left."""
        return state.size > 0

    def restore(self, state: Float64) -> None:  # noqa: B027 - see `observe`
        """Continue from `state`."""
