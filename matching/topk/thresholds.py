"""Rules for thresholds: how many messages a result buffer aims at, and when it drops some.

A buffer has the messages that reach its threshold. A low threshold means many hits; a high one means many refills.
Results never depend on the rule, only the work does:

- `cost` (the default) weighs the two by a model for each k and minimises their sum (`matching.topk.thresholds_cost`);
- `k_max` keeps between k and k_max messages, dominated or not (Yi et al., ICDE 2003);
- `sma` sets the threshold to the k-th score of a refill until the next one (Mouratidis et al., SIGMOD 2006);
- `rank` requests a fixed multiple of k and cuts buffers back to it.

All but `k_max` drop messages that k others dominate, so a buffer of a entries stands for n = k * exp(a / k - 1)
messages of the window above its threshold (spec 2.2).
"""

from collections.abc import Callable

import numpy as np

from matching.errors import ConfigError
from matching.model import Int32
from matching.topk.thresholds_base import ThresholdRule
from matching.topk.thresholds_cost import LEAST_SPARE, CostRule

#: Drops none by dominance: the largest count of dominators in 16 bits. Exact for every k up to it.
NO_DOMINANCE = 32_767


class RankRule(ThresholdRule):
    """Requests `refill` times k, and cuts a buffer of more than `cap` times k back to that."""

    name = "rank"

    def __init__(self, refill: float = 2.0, cap: float = 3.0, least_spare: int = LEAST_SPARE):
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
    """Between k and `factor` times k of the best, dominated or not; the score of the last is the threshold."""

    name = "k_max"

    def __init__(self, factor: float = 2.0):
        self.factor = factor

    def ranks(self, k: Int32) -> Int32:
        return np.maximum(self.factor * k, k + LEAST_SPARE).astype(np.int32)

    def cuts(self, k: Int32, count: Int32) -> Int32:
        return np.where(count >= k, np.minimum(count, self.ranks(k)), 0).astype(np.int32)

    def dominators(self, k: Int32) -> Int32:
        return np.full(k.shape[0], NO_DOMINANCE, np.int32)


#: Name to rule. Rules learn, so each operator has its own.
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
        For an unknown name.
    """
    name = name or DEFAULT
    if name not in RULES:
        raise ConfigError(f"threshold rule {name!r}: choose one of {', '.join(RULES)}")
    return RULES[name]()
