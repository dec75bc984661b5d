"""Rules for thresholds: how many messages a buffer aims at, and when it gives some up again.

A buffer holds what reaches its threshold. A low threshold means many messages to take in; a high one means that the
buffer soon runs short and the window must be searched (a refill). Results never depend on the rule, only the work does:

- `cost` (the default) weighs the two by a model of both and minimises their sum (`CostRule`);
- `k_max` keeps between k and k_max messages whatever their order of arrival (Yi et al., ICDE 2003);
- `sma` sets the threshold to the k-th score of a refill and leaves it (Mouratidis et al., SIGMOD 2006);
- `rank` asks for a fixed multiple of k and cuts back to it.

All but `k_max` drop what k others dominate, so a buffer of a entries stands for n = k * exp(a / k - 1) messages of the
window above its threshold (spec 2.2). Read on in `matching.topk.room`, which asks these questions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from math import lgamma
from typing import Any

import numpy as np

from matching.errors import ConfigError
from matching.model import Float64, Int32

#: Dominators are counted in 16 bits; a rule without dominance lets them run this far. Exact for every k up to it.
_NO_DOMINANCE = 32_767
_LEAST_SPARE = 3


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
        self, messages: int, window: float, subscriptions: int, refills: int
    ) -> None:
        """Learn what a batch of so many messages brought; `window` is how many messages the window holds."""

    def describe(self) -> dict[str, Any]:
        """What it has learned, JSON-ready."""
        return {"rule": self.name}

    def state(self) -> Float64:
        """What it needs to continue."""
        return np.zeros(0)

    def restore(self, state: Float64) -> None:  # noqa: B027 - see `observe`
        """Continue from `state`."""


class RankRule(ThresholdRule):
    """Ask for `refill` times k, and cut a buffer of more than `cap` times k back to that."""

    name = "rank"

    def __init__(self, refill: float = 2.0, cap: float = 3.0, least_spare: int = _LEAST_SPARE):
        self.refill = refill
        self.cap = cap
        self.least_spare = least_spare

    def ranks(self, k: Int32) -> Int32:
        return np.maximum(self.refill * k, k + self.least_spare).astype(np.int32)

    def cuts(self, k: Int32, count: Int32) -> Int32:
        return np.where(count > np.maximum(self.cap * k, k + 2 * self.least_spare), self.ranks(k), 0).astype(np.int32)


class SmaRule(ThresholdRule):
    """The threshold is the k-th score at the last refill."""

    name = "sma"

    def ranks(self, k: Int32) -> Int32:
        return k.astype(np.int32)

    def cuts(self, k: Int32, count: Int32) -> Int32:
        return np.zeros(k.shape[0], np.int32)


class KMaxRule(ThresholdRule):
    """Between k and `factor` times k of the best, dominated or not; the last one's score is the threshold."""

    name = "k_max"

    def __init__(self, factor: float = 2.0):
        self.factor = factor

    def ranks(self, k: Int32) -> Int32:
        return np.maximum(self.factor * k, k + _LEAST_SPARE).astype(np.int32)

    def cuts(self, k: Int32, count: Int32) -> Int32:
        return np.where(count >= k, np.minimum(count, self.ranks(k)), 0).astype(np.int32)

    def dominators(self, k: Int32) -> Int32:
        return np.full(k.shape[0], _NO_DOMINANCE, np.int32)


class CostRule(ThresholdRule):
    """Aim at the number of messages above the threshold at which taking in and refilling cost least together.

    With n messages of a window of N above a threshold, a new message brings a hit with probability n / N, which costs a
    walk over the buffer, k * (1 + ln(n / k)) entries on average, and `hit_steps` besides. The number of those above
    goes up and down like a birth-death process with a Poisson law of mean n; the messages until it falls below k follow
    from that law, times 0.7 for arrivals leaving in the order in which they came (spec 2.3, checked there against a
    simulation). The optimum is flat and depends on the logarithm of a refill's cost, so that cost is a setting, growing
    with the root of the window; the rate of refills is measured. Where the stream refills more (or less) often than the
    model says, because it drifts, the model's rate is corrected and the aim follows.

    Refills happen when the window is poor, so thresholds set there are too low on average and stay so (the ratchet of
    spec 2.3): a buffer that has grown to what `_CAP` times the aim would give is cut back to what the aim gives.

    Parameters
    ----------
    refill_steps : float
        Cost of a refill over a window of 1,000,000 messages, in entries of a buffer walked over.
    hit_steps : float
        Cost of a hit besides the walk, likewise.
    """

    name = "cost"
    _CAP = 1.8
    _FIFO = 0.7
    _MOST_CORRECTION = 8.0

    def __init__(self, refill_steps: float = 40_000.0, hit_steps: float = 40.0):
        self.refill_steps = refill_steps
        self.hit_steps = hit_steps
        self.correction = 1.0
        self.window = 1e5
        self._seen = np.zeros(4)  # messages; subscription-messages; refills; refills that the model expected
        self._known: dict[int, tuple[int, int, int]] = {}

    def ranks(self, k: Int32) -> Int32:
        return self._columns(k)[0]

    def cuts(self, k: Int32, count: Int32) -> Int32:
        _, aim, cap = self._columns(k)
        return np.where(count > cap, aim, 0).astype(np.int32)

    def observe(self, messages: int, window: float, subscriptions: int, refills: int) -> None:
        self._seen[:3] += (messages, messages * subscriptions, refills)
        if not 0.5 < window / self.window < 2.0:
            self.window = max(1.0, window)
            self._known.clear()
        if self._seen[0] < self.window or not self._known:
            return
        # a window has passed: compare the refills it took with those the model wants for the commonest k
        k = next(iter(self._known))
        expected = self._seen[1] / (self._expected_life(k, float(self._known[k][0])) * self.window)
        self._seen[3] = expected
        ratio = (self._seen[2] + 1.0) / (expected + 1.0)
        low, high = 1.0 / self._MOST_CORRECTION, self._MOST_CORRECTION
        self.correction = float(np.clip(self.correction * np.clip(ratio, 0.5, 2.0), low, high))
        self._seen[:3] = 0.0
        self._known.clear()

    def describe(self) -> dict[str, Any]:
        aims = {str(k): {"refill_rank": rank, "aim": aim, "cap": cap} for k, (rank, aim, cap) in self._known.items()}
        return {"rule": self.name, "correction": self.correction, "window": self.window, "by_k": aims}

    def state(self) -> Float64:
        return np.concatenate([[self.correction, self.window], self._seen])

    def restore(self, state: Float64) -> None:
        self.correction, self.window = float(state[0]), float(state[1])
        self._seen = state[2:].copy()
        self._known.clear()

    def _columns(self, k: Int32) -> tuple[Int32, Int32, Int32]:
        if k.size and np.all(k == k[0]):  # as a rule; sorting 100,000 of them takes longer than the rest
            distinct, of_row = k[:1], np.zeros(k.size, np.int64)
        else:
            distinct, of_row = np.unique(k, return_inverse=True) if k.size else (k, k.astype(np.int64))
        for value in distinct.tolist():
            if value not in self._known:
                self._known[value] = self._solve(value)
        table = np.array([self._known[value] for value in distinct.tolist()], np.int32).reshape(-1, 3)[of_row]
        return table[:, 0], table[:, 1], table[:, 2]

    def _solve(self, k: int) -> tuple[int, int, int]:
        """Rank a refill asks for, entries a buffer is cut back to, entries above which it is cut."""
        refill = self.refill_steps * (self.window / 1e6) ** 0.5 * self.correction
        candidates = np.arange(k + 1, 6 * k + 60, max(1, k // 16))
        costs = [
            n * (_entries(k, n) + self.hit_steps) + refill / self._expected_life(k, n) for n in candidates.tolist()
        ]
        n = float(candidates[int(np.argmin(costs))])
        aim = max(k + 1, round(_entries(k, n)))
        cap = max(aim + _LEAST_SPARE, round(_entries(k, self._CAP * n)))
        return max(k + _LEAST_SPARE, round(n)), aim, cap

    @staticmethod
    @lru_cache(maxsize=1 << 14)  # every stream has a rule of its own, and all ask about the same few k
    def _expected_life(k: int, n: float) -> float:
        """Windows that pass until fewer than k messages are above a threshold that n were above. O(n)."""
        last = int(n + 12.0 * n**0.5 + 30.0)
        j = np.arange(last + 1)
        log_share = j * np.log(n) - n - np.array([lgamma(i + 1.0) for i in range(last + 1)])
        share = np.exp(log_share)
        above = np.cumsum(share[::-1])[::-1]
        span = np.arange(k, int(n) + 1)
        return CostRule._FIFO * float(np.sum(above[span] / (span * np.maximum(share[span], 1e-300)))) + 1e-9


def _entries(k: int, n: float) -> float:
    """Mean size of the k-skyband of n messages (spec 2.2)."""
    return k * (1.0 + np.log(max(n / k, 1.0)))


#: Name to rule. Rules learn, so every stream has one of its own.
RULES: dict[str, Callable[[], ThresholdRule]] = {
    CostRule.name: CostRule,
    KMaxRule.name: KMaxRule,
    SmaRule.name: SmaRule,
    RankRule.name: RankRule,
}
DEFAULT = CostRule.name


def rule(name: str | None = None) -> ThresholdRule:
    """A new rule of this name, the default one if none is given.

    Raises
    ------
    ConfigError
        For a name nobody knows.
    """
    name = name or DEFAULT
    if name not in RULES:
        raise ConfigError(f"threshold rule {name!r}: choose one of {', '.join(RULES)}")
    return RULES[name]()
