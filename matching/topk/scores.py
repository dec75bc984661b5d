"""The exact score of a pair, and the slack of its bounds.

All engines of `topk` score the candidates that their bounds pass by these functions, bit for bit as `matching.naive`.
"""

import math

import numpy as np

from compiling.njit import njit, njit_inner
from matching.geo.sphere import EARTH_RADIUS_M, distance_to, least_angle_squared

#: Added to every bound: float32 rounding of its parts stays below 2e-6, and stored unit vectors may have norms up to
#: 1 + 5e-8. Pruning must never be tighter than the exact score.
SLACK = np.float32(1e-5)


@njit_inner
def exact_score(c, slot, term, place, terms, weights):
    """Score of a pair if `term` is its first common term, else NaN. `place` is the message's (`point_of`).

    Notes
    -----
    O(terms of both). The expression and its order of summation are those of `matching.naive`.
    """
    at, end = c.term_start[slot], c.term_start[slot] + c.term_count[slot]
    text = 0.0
    common = 0
    i = 0
    while at < end and i < terms.shape[0]:
        if c.terms[at] < terms[i]:
            at += 1
        elif c.terms[at] > terms[i]:
            i += 1
        else:
            # decided at an earlier term, so that a pair is one hit; NaN fails every comparison
            if common == 0 and terms[i] != term:
                return np.nan
            common += 1
            # each weight widened before the product, which would else be rounded to float32
            text += np.float64(c.weights[at]) * np.float64(weights[i])
            at += 1
            i += 1
    return slot_score(c, slot, place, text)


@njit_inner
def slot_score(c, slot, place, text):
    """Score of a subscription by its slot and a message from the text part."""
    distance = distance_to(place, c.x[slot], c.y[slot], c.z[slot])
    return whole_score(distance, c.max_distance[slot], c.alpha[slot], text)


@njit_inner
def whole_score(distance, max_distance, alpha, text):
    """Score of a subscription and a message from its distance and its text part: the expression of `matching.naive`."""
    # divided, not multiplied by 1 / MaxDist, which has other last bits
    spatial = 1.0 - distance / max_distance
    return alpha * spatial + (1.0 - alpha) * text


@njit(cache=True, nogil=True)
def least_distance(squared, on_sphere):
    """At most the distance (`distance_to`) of a square of its coordinates' differences, float64; up to 0.1 m more."""
    if on_sphere:
        return EARTH_RADIUS_M * math.sqrt(least_angle_squared(squared))
    return math.sqrt(squared)
