"""Subscriptions by their keywords: which task owns a term, and how many of its terms a subscription is found by.

Routers by keyword and the replicas of `matching.topk.replicas` must agree on both.
"""

import numpy as np

from compiling.njit import njit
from matching.model import Int32, Int64

#: Slack of the prefix rule: rounded unit vectors have norms up to 1 + 5e-8.
_SLACK = 1e-6


def task_of_term(terms: Int32, tasks: int) -> Int64:
    """Which of the tasks a term belongs to, by a multiplicative hash that is the same everywhere. O(n)."""
    mixed = terms.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(tasks)).astype(np.int64)


def prefix_lengths(columns, slots: Int32) -> Int32:
    """Number of first terms by which a subscription must be indexed, int32[n]. O(terms).

    A message whose first common term comes after the first p terms scores at most
    alpha + (1 - alpha) * |weights from p on|, anywhere: the smallest p at which that is below the threshold
    (spec 3.3, with L2 norms, multiplied so that alpha = 1 needs no case of its own).
    """
    lengths = np.empty(slots.shape[0], np.int32)
    _prefix_lengths(columns, slots, lengths)
    return lengths


@njit(cache=True, nogil=True)
def _prefix_lengths(c, slots, lengths):
    for i in range(slots.shape[0]):
        slot = slots[i]
        start, length = c.term_start[slot], c.term_count[slot]
        square = 0.0
        # Cut from the end: the last terms are the most frequent, and would bring the most messages.
        while length > 0:
            # Weights are float32: summed in float64, what is left to round is theirs alone.
            weight = np.float64(c.weights[start + length - 1])
            square += weight * weight
            # A message has norm 1 at most, so what it meets there weighs no more than that norm (Cauchy-Schwarz);
            # similarity in space is 1 at most.
            bound = c.alpha[slot] + (1.0 - c.alpha[slot]) * np.sqrt(square) + _SLACK
            # Strictly below: a score equal to the threshold enters. Never so for a threshold of minus infinity.
            if not bound < c.threshold[slot]:
                break
            length -= 1
        lengths[i] = length
