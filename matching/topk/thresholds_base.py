"""Contract of threshold rules: they change work, never results."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from matching.model import Float64, Int32, Int64


class ThresholdRule(ABC):
    """Sets the thresholds of the subscriptions of one operator (`matching.topk.operator`), which calls it."""

    #: As written after `--threshold-rule`.
    name: str

    @abstractmethod
    def ranks(self, k: Int32) -> Int32:
        """Number of messages that a refill requests, at least k, by the k of each subscription. O(n)."""

    @abstractmethod
    def cuts(self, k: Int32, count: Int32) -> Int32:
        """Rank, at least k, whose score a buffer of `count` entries gets as its threshold; 0: no change. O(n)."""

    def dominators(self, k: Int32) -> Int32:
        """Number of dominators at which an entry is dropped, at least k: newer messages that outrank it. O(n)."""
        return k

    def observe(  # noqa: B027 - most rules learn nothing
        self, messages: int, window: float, subscriptions: Int64, short: Int32
    ) -> None:
        """Learn from a batch.

        Parameters
        ----------
        messages : int                number of messages in the batch
        window : float                number of messages in the window
        subscriptions : int64[...]    number of subscriptions, by k
        short : int32[n]              k of each subscription that needs a refill
        """

    def refilled(self, k: Int32, read: Int64) -> None:  # noqa: B027 - see `observe`
        """Learn from answered refills: k and postings read of each."""

    def describe(self) -> dict[str, Any]:
        """Learned parameters, JSON-ready."""
        return {"rule": self.name}

    def state(self) -> Float64:
        """All that `restore` needs."""
        return np.zeros(0)

    def knows(self, state: Float64) -> bool:
        """Whether `restore` accepts `state`, which may be that of another rule."""
        return state.size > 0

    def restore(self, state: Float64) -> None:  # noqa: B027 - see `observe`
        """Set the state to `state`."""
