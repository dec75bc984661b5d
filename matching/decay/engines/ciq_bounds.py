"""What a subscription's threshold says of the messages of a cell: the minimum conditional text score of CIQ.

A message in cell c with a text relevance of at most minT(q, c) = S / (1 - alpha) - alpha / (1 - alpha) * minD(q, c)
cannot enter the result of q (Chen et al., CIQ, lemma 1), where S is what is left now of the score of its k-th message
and minD the spatial proximity of the nearest point of c. The part that fades is kept as `scaled` = key - ln(1 - alpha),
of the log key that never changes, the part that belongs to the cell as `reach` (`matching.storage.cell_bounds`).
"""

import math

import numpy as np
from numba import njit

from matching.storage.cell_bounds import is_spatial

#: Rounding of exponents, of which the largest are as large as the age of the stream in half-lives, and of sums.
_DIGITS, _ROUNDING, _SLACK = 1e-15, 1e-12, 1e-9
#: Beyond it exp overflows; a bound as large as that is out of reach for every text.
_LARGEST_EXPONENT = 700.0


@njit(cache=True, nogil=True)
def scaled_of(key, alpha):
    """The part of the bound that comes with the k-th key; minus infinity while there are fewer than k."""
    return key if is_spatial(alpha) else key - math.log(1.0 - alpha)


@njit(cache=True, nogil=True)
def least_text(scaled, reach, lifted):
    """A text relevance, or less, that messages of a time must exceed: minT of one subscription or of a block.

    Parameters
    ----------
    scaled, reach : float     of a block its least `scaled` and its largest `reach`
    lifted : float            what the time of the message adds to its keys (`matching.decay.scores.lift`)
    """
    if scaled == math.inf:
        return math.inf  # dropped
    reach = np.float64(reach)
    # of two numbers as large as years in half-lives; the difference is as good as the keys that it must bound
    exponent = scaled - lifted - _DIGITS * (abs(scaled) + abs(lifted))
    # the power of D itself would overflow for whoever comes late, and it is never formed
    worth = math.exp(min(exponent, _LARGEST_EXPONENT))
    return worth - reach - _SLACK - _ROUNDING * (worth + abs(reach))
