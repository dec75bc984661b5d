"""The rule `cost`: minimises the cost of hits and refills, by a model for each k that learns from the stream.

With n messages of a window of N above a threshold, a new message is a hit with probability n / N, which costs a
walk over the buffer, k * (1 + ln(n / k)) entries on average, and `hit_steps`. The number above the threshold is
a birth-death process with a Poisson law of mean n; the messages until it falls below k follow from that
law, times 0.7 since messages expire in the order in which they came (spec 2.3, checked there against a simulation).

All refills of a batch travel in one request, which has a cost of its own. Where few refills share a request, as in
small batches, each costs more: with c subscriptions for each batch of a window, a batch has c / life refills on
average, and no request with a probability of exp(-c / life). (This term is ours; the paper, and spec 2.3, count
refills alone.)

Two things are measured for each k: the cost of a refill, from the work reported in every answer; and the rate of
refills, by which the model's rate is corrected where it is higher or lower, because the stream drifts or results are
compared batch by batch. The optimum is flat and depends on the logarithm of the cost of refills, so a few dozen of them
are enough.

A measured rate says little of buffers of another size, as the model's own falls by a factor of ten for every two or
three messages more; and results that were just filled last, so that a first window has hardly a refill. So a window in
which fewer came than expected lowers the correction to half at most, while one with more raises it at once. (This is
ours.)

Refills happen when the window is poor, so their thresholds are too low on average and stay so (the ratchet of spec
2.3): a buffer that has grown to the size for `_CAP` times the aim is cut back to the size for the aim.
"""

from dataclasses import astuple, dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from matching.model import Float64, Int32, Int64
from matching.topk.thresholds_base import ThresholdRule

#: Subscriptions that share a request before any batch has been observed.
_MANY = 1e9
#: Least excess of the requested rank over k.
LEAST_SPARE = 3


@dataclass
class _OfOneK:
    """Statistics of the subscriptions with one k; counts are halved after each window.

    expected, seen : float    refills that the uncorrected model predicts, and actual ones
    answered, read : float    refills answered, and postings read for them
    correction : float        factor of the model's rate
    subscriptions : float
    """

    expected: float = 0.0
    seen: float = 0.0
    answered: float = 0.0
    read: float = 0.0
    correction: float = 1.0
    subscriptions: float = 0.0


#: Numbers in the state of the rule; and of each k: itself, its statistics, and its optimum.
_OF_THE_RULE, _OF_A_K = 5, 1 + len(fields(_OfOneK)) + 5


class CostRule(ThresholdRule):
    """Aims at the number of messages above the threshold that minimises the cost of hits and refills.

    Parameters
    ----------
    refill_steps : float
        Initial estimate of the cost of a refill over a window of 1,000,000 messages, in entries of a buffer walked
        over; it grows with the root of the window.
    hit_steps : float
        Cost of a hit besides the walk, likewise: 700 ns were measured, at 2 entries a buffer as at 100.
    """

    name = "cost"
    _CAP = 1.8
    _FIFO = 0.7
    #: Far beyond what streams need: 0.1 to 3 were seen.
    _MOST_CORRECTION = 64.0
    #: Weight of the initial estimate, in measured refills.
    _ASSUMED = 4.0
    #: Steps (2.5 ns) of a refill, of each posting read and of each message requested: refills of k = 1, 10, 100 took
    #: 96, 55 and 140 us more each where there were more of them.
    _REFILL, _READ, _REQUESTED = 12_000.0, 5.0, 300.0
    #: Steps of a request (1 ms), for any number of subscriptions: 0.8 to 0.9 ms were seen in one process, over windows
    #: of 2,000 and 20,000 messages; calls between processes are not counted.
    _REQUEST = 400_000.0
    #: Largest aim as a fraction of the window: a buffer of all of it is a copy of it.
    _OF_WINDOW = 0.25
    #: Factor by which a window lowers a correction at most.
    _LEAST_STEP = 0.5
    #: The optimum is solved again when the cost of refills, or the number sharing a request, changes by this factor.
    _CHANGED = 1.25

    def __init__(self, refill_steps: float = 200_000.0, hit_steps: float = 200.0):
        self.refill_steps = refill_steps
        self.hit_steps = hit_steps
        self.window = 1e5
        self._passed = 0.0  # messages since counts were halved
        self._batches = self._taken = 0.0  # batches and their messages, halved likewise
        self._by_k: dict[int, _OfOneK] = {}
        # by k: refill cost, subscriptions that share a request, columns
        self._solved: dict[int, tuple[float, float, tuple[int, int, int]]] = {}

    def ranks(self, k: Int32) -> Int32:
        return self._columns(k)[0]

    def cuts(self, k: Int32, count: Int32) -> Int32:
        _, aim, cap = self._columns(k)
        return np.where(count > cap, aim, 0).astype(np.int32)

    def observe(self, messages: int, window: float, subscriptions: Int64, short: Int32) -> None:
        self._batches += messages > 0
        self._taken += messages
        if not 0.5 < window / self.window < 2.0:
            self.window = max(1.0, window)
            self._solve_anew()
        for k in np.flatnonzero(subscriptions).tolist() if subscriptions.shape[0] else ():
            self._of(k).subscriptions = float(subscriptions[k])
            rank = self._columns_of(k)[0]
            refills = subscriptions[k] * messages / (self._expected_life(k, float(rank)) * self.window)
            self._of(k).expected += float(refills)
        if short.size:
            for k, refills in zip(*np.unique(short, return_counts=True), strict=True):
                self._of(int(k)).seen += int(refills)
        self._passed += messages
        if self._passed >= self.window:  # a window has passed
            self._passed = 0.0
            self._learn()

    def refilled(self, k: Int32, read: Int64) -> None:
        distinct, of_row = np.unique(k, return_inverse=True)
        answered, taken = np.bincount(of_row), np.bincount(of_row, read)
        for value, refills, of_all in zip(distinct.tolist(), answered.tolist(), taken.tolist(), strict=True):
            known = self._of(value)
            is_first = not known.answered
            known.answered += refills
            known.read += of_all
            if is_first:
                self._solve_anew([value])

    def describe(self) -> dict[str, Any]:
        by_k = {}
        for k, (_, together, (rank, aim, cap)) in sorted(self._solved.items()):
            known = self._of(k)
            by_k[str(k)] = {
                "refill_rank": rank, "aim": aim, "cap": cap, "correction": known.correction,
                "refill_steps": self._refill_cost(k) / known.correction,
                "read_a_refill": known.read / known.answered if known.answered else None,
                "sharing_requests": together,
            }  # fmt: skip
        return {"rule": self.name, "window": self.window, "most_correction": self._MOST_CORRECTION, "by_k": by_k}

    def state(self) -> Float64:
        """Five numbers of the rule, then each k with its statistics and its optimum, 0 without."""
        known = []
        for k, each in self._by_k.items():
            cost, together, columns = self._solved.get(k, (0.0, 0.0, (0, 0, 0)))
            known.append([k, *astuple(each), cost, together, *columns])
        own = [_OF_A_K, self.window, self._passed, self._batches, self._taken]
        return np.concatenate([own, np.array(known, np.float64).ravel()])

    def knows(self, state: Float64) -> bool:
        return state.size % _OF_A_K == _OF_THE_RULE and state[0] == _OF_A_K

    def restore(self, state: Float64) -> None:
        self.window, self._passed, self._batches, self._taken = state[1:_OF_THE_RULE].tolist()
        self._by_k, self._solved = {}, {}
        for k, *known, cost, together, rank, aim, cap in state[_OF_THE_RULE:].reshape(-1, _OF_A_K).tolist():
            self._by_k[int(k)] = _OfOneK(*known)
            if cost:
                self._solved[int(k)] = cost, together, (int(rank), int(aim), int(cap))

    def _of(self, k: int) -> _OfOneK:
        return self._by_k.setdefault(k, _OfOneK())

    def _learn(self) -> None:
        """Correct the rates by the counts, and halve the counts."""
        for known in self._by_k.values():
            # one more on both sides, so that a few refills by chance are no drift
            ratio = max((known.seen + 1.0) / (known.expected + 1.0), self._LEAST_STEP * known.correction)
            known.correction = float(np.clip(ratio, 1.0 / self._MOST_CORRECTION, self._MOST_CORRECTION))
            known.expected, known.seen, known.answered, known.read = (
                0.5 * count for count in (known.expected, known.seen, known.answered, known.read)
            )
        self._batches, self._taken = 0.5 * self._batches, 0.5 * self._taken
        self._solve_anew()

    def _solve_anew(self, some: list[int] | None = None) -> None:
        """Drop the optima whose costs have changed, of `some` k or of all."""
        for k in list(self._solved) if some is None else some:
            if k in self._solved:
                cost, together, _ = self._solved[k]
                ratios = self._refill_cost(k) / cost, self._together(k) / together
                if not all(1.0 / self._CHANGED < ratio < self._CHANGED for ratio in ratios):
                    del self._solved[k]

    def _refill_cost(self, k: int) -> float:
        """Steps of a refill without the messages requested, times the correction of its rate."""
        known, assumed = self._of(k), self.refill_steps * (self.window / 1e6) ** 0.5
        measured = self._REFILL * known.answered + self._READ * known.read
        return known.correction * (assumed * self._ASSUMED + measured) / (self._ASSUMED + known.answered)

    def _together(self, k: int) -> float:
        """Subscriptions for each batch of a window; those of other k count by their fraction of refills."""
        own = self._of(k)
        if not self._taken or not own.subscriptions:
            return _MANY
        of_all = (sum(known.seen for known in self._by_k.values()) + 1.0) / (own.seen + 1.0)
        return own.subscriptions * of_all * self._taken / (self._batches * self.window)

    def _columns_of(self, k: int) -> tuple[int, int, int]:
        if k not in self._solved:
            cost, together = self._refill_cost(k), self._together(k)  # these also add k to `_by_k`
            self._solved[k] = cost, together, self._solve(k, cost, self._of(k).correction, together)
        return self._solved[k][2]

    def _columns(self, k: Int32) -> tuple[Int32, Int32, Int32]:
        if k.size and np.all(k == k[0]):  # the usual case; sorting 100,000 takes longer than the rest
            distinct, of_row = k[:1], np.zeros(k.size, np.int64)
        else:
            distinct, of_row = np.unique(k, return_inverse=True) if k.size else (k, k.astype(np.int64))
        table = np.array([self._columns_of(value) for value in distinct.tolist()], np.int32).reshape(-1, 3)[of_row]
        return table[:, 0], table[:, 1], table[:, 2]

    def _solve(self, k: int, refill: float, correction: float, together: float) -> tuple[int, int, int]:
        """Rank that a refill requests, entries a buffer is cut back to, entries above which it is cut. O(k) candidates.

        Parameters
        ----------
        refill : float        `_refill_cost`
        correction : float    factor of the model's rate of refills
        together : float      subscriptions for each batch of a window
        """
        most = min(6 * k + 60, max(k + LEAST_SPARE + 1, round(self.window * self._OF_WINDOW)))
        candidates = np.arange(k + 1, most, max(1, k // 16))
        costs = []
        for n in candidates.tolist():
            refills = 1.0 / self._expected_life(k, n)  # of a subscription in a window, by the model
            requests = -np.expm1(-correction * together * refills) / together
            hits = n * (_entries(k, n) + self.hit_steps)
            costs.append(hits + (refill + correction * self._REQUESTED * n) * refills + self._REQUEST * requests)
        n = float(candidates[int(np.argmin(costs))])
        aim = max(k + 1, round(_entries(k, n)))
        cap = max(aim + LEAST_SPARE, round(_entries(k, self._CAP * n)))
        return max(k + LEAST_SPARE, round(n)), aim, cap

    @staticmethod
    @lru_cache(maxsize=1 << 16)  # shared by all rules, which see the same few k
    def _expected_life(k: int, n: float) -> float:
        """Windows until fewer than k messages are above a threshold that n were above. O(n)."""
        last = int(n + 12.0 * n**0.5 + 30.0)
        j = np.arange(last + 1)
        log_factorial = np.concatenate([[0.0], np.cumsum(np.log(j[1:]))])
        probability = np.exp(j * np.log(n) - n - log_factorial)
        above = np.cumsum(probability[::-1])[::-1]
        span = np.arange(k, int(n) + 1)
        return CostRule._FIFO * float(np.sum(above[span] / (span * np.maximum(probability[span], 1e-300)))) + 1e-9


def _entries(k: int, n: float) -> float:
    """Mean size of the k-skyband of n messages (spec 2.2)."""
    return k * (1.0 + np.log(max(n / k, 1.0)))
