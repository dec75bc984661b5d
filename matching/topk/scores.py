"""The exact score of a pair, and the slack of its bounds.

All engines of `topk` score the candidates that their bounds pass by these functions, bit for bit as `matching.naive`.
Read on in `matching.topk.engines.skype_verify`.
"""

import math

import numpy as np
from numba import njit

#: Added to every bound: float32 rounding of its parts stays below 2e-6, and stored unit vectors may have norms up to
#: 1 + 5e-8. Pruning must never be tighter than the exact score.
SLACK = np.float32(1e-5)


@njit(cache=True, nogil=True)
def exact_score(c, slot, term, x, y, terms, weights, max_distance):
    """Score of a pair if `term` is its first common term, else NaN.

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
    return whole_score(c.x[slot], c.y[slot], c.alpha[slot], text, x, y, max_distance)


@njit(cache=True, nogil=True)
def whole_score(own_x, own_y, alpha, text, x, y, max_distance):
    """Score of a subscription and a message from its text part: the expression of `matching.naive`."""
    dx = own_x - x
    dy = own_y - y
    # divided, not multiplied by 1 / MaxDist, which has other last bits
    spatial = 1.0 - math.sqrt(dx * dx + dy * dy) / max_distance
    return alpha * spatial + (1.0 - alpha) * text
