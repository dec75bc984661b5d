"""What a subscription's threshold says of the messages of a cell: the minimum conditional text score of CIQ.

A message in cell c with a text relevance of at most minT(q, c) = S / (1 - alpha) - alpha / (1 - alpha) * minD(q, c)
cannot enter the result of q (Chen et al., CIQ, lemma 1), where S is what is left now of the score of its k-th message
and minD the spatial proximity of the nearest point of c. The part that fades is kept as `scaled` = key - ln(1 - alpha),
of the log key that never changes, the part that belongs to the cell as `reach` = alpha / (1 - alpha) * minD. Where
alpha is 1, or so close to it that a division by 1 - alpha would cost digits, place alone is tested: `scaled` is the key
and `reach` the best relevance that any text could have there.
"""

import math

import numpy as np
from numba import njit

from matching.storage.celled_lists import MOST_BUCKETS
from matching.storage.quadtree import distance_to_box

#: Below this share of the text, place alone is tested.
LEAST_TEXT = 1e-6
#: Rounding of exponents, of which the largest are as large as the age of the stream in half-lives, and of sums.
_DIGITS, _ROUNDING, _SLACK = 1e-15, 1e-12, 1e-9
#: Beyond it exp overflows; a bound as large as that is out of reach for every text.
_LARGEST_EXPONENT = 700.0
#: A reach is rounded to float32 upwards.
_UPWARDS = 1.0 + 1.2e-7


@njit(cache=True, nogil=True)
def is_spatial(alpha):
    """Whether only place is tested."""
    return 1.0 - alpha < LEAST_TEXT


@njit(cache=True, nogil=True)
def scaled_of(key, alpha):
    """The part of the bound that comes with the k-th key; minus infinity while there are fewer than k."""
    return key if is_spatial(alpha) else key - math.log(1.0 - alpha)


@njit(cache=True, nogil=True)
def reach_of(alpha, distance, max_distance):
    """The part of the bound that comes with a cell whose nearest point is at this distance, as float32."""
    proximity = 1.0 - distance / max_distance
    if is_spatial(alpha):
        return np.float32((alpha * proximity + (1.0 - alpha)) * _UPWARDS)
    # its sign follows that of the proximity, which is negative beyond the largest distance
    reach = alpha * proximity / (1.0 - alpha)
    return np.float32(reach * _UPWARDS if reach > 0.0 else reach / _UPWARDS)


@njit(cache=True, nogil=True)
def reach_in_box(c, slot, west, south, side, max_distance):
    """`reach_of` a subscription and a square."""
    return reach_of(c.alpha[slot], distance_to_box(c.x[slot], c.y[slot], west, south, side), max_distance)


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


@njit(cache=True, nogil=True)
def bucket_of(reach, alpha, buckets):
    """The bucket of an association, equal intervals of reach / (1 + reach); the last is of those whose text counts not.

    The paper has equal intervals of the reach itself, which goes to infinity with alpha / (1 - alpha).
    """
    if is_spatial(alpha):
        return buckets
    bounded = max(0.0, np.float64(reach)) / (1.0 + max(0.0, np.float64(reach)))
    return min(buckets - 1, int(bounded * buckets))


@njit(cache=True, nogil=True)
def place_of(cell, bucket):
    """Cell and bucket in one number, as in `Celled.where`."""
    return np.int32(cell * MOST_BUCKETS + bucket)
