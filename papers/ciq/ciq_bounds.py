"""Bounds of engine `ciq` of `decay`: the text relevance that a message of a cell needs, and the most it can have.

A message in cell c with a text relevance of at most minT(q, c) = S / (1 - alpha) - alpha / (1 - alpha) * minD(q, c)
cannot enter the result of q (Chen et al., CIQ, lemma 1), where S is what is left now of the score of its k-th message
and minD the spatial proximity of the nearest point of c. Keys never change, so S is what was left of it at a reference
time, kept as `scaled`, times one factor for a whole message; the part that belongs to the cell is the `reach`
(`papers.ciq.cell_bounds`). The reference moves on with the stream, so that neither leaves the range of numbers.

The probability of a keyword that is shared bounds the product over all of them (`matching.decay.scores`). Another one
that is shared leaves at most the largest probability of those behind it in the message, and if none is, what is left is
known beforehand, and next to nothing.
"""

import math

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.decay.scores import background_of, probability
from matching.storage.term_lists import bit_of
from papers.ciq.cell_bounds import is_spatial

#: Rounding of exponents, of which the largest are as large as the age of the stream in half-lives.
_DIGITS = 1e-15
#: Beyond it a bound is out of reach, and exp would overflow soon.
_LARGEST_EXPONENT = 340.0
#: The most that is left of a score, by a reference; times a factor it is a number still.
_MOST = 1e147
#: A bound is above by this share: what is read of it is in float32.
_WIDER = 1.0 + 1e-6


@njit_inner
def _left_of(key, time):
    """What is left at a time of a score, or less."""
    # of two numbers as large as years in half-lives; the difference is as good as the keys that it must bound
    exponent = key - time - _DIGITS * (abs(key) + abs(time))
    if exponent < -_LARGEST_EXPONENT:
        return 0.0
    # the power of D itself would overflow for late subscriptions, and is never computed
    return math.exp(min(exponent, _LARGEST_EXPONENT))


@njit(cache=True, nogil=True)
def scaled_of(key, alpha, reference):
    """The part of the bound that comes with the k-th key; minus infinity while there are fewer than k."""
    if key == -math.inf:
        return -math.inf
    left = _left_of(key, reference)
    return left if is_spatial(alpha) else left / (1.0 - alpha)


@njit(cache=True, nogil=True)
def factor_of(reference, lifted):
    """What is left of `scaled` at the time of a message, or less (`matching.decay.scores.lift`)."""
    return _left_of(reference, lifted)


@njit(cache=True, nogil=True)
def scale_all(c, slots, reference):
    """`scaled_of` slots (float64[n])."""
    scaled = np.empty(slots.shape[0])
    for i in range(slots.shape[0]):
        scaled[i] = scaled_of(c.threshold[slots[i]], c.alpha[slots[i]], reference)
    return scaled


@njit(cache=True, nogil=True)
def move_reference(c, v, before, reference):
    """Reckon what associations and blocks know from another time on. O(associations + blocks)."""
    for association in range(v.used[3]):
        slot = v.slot[association]
        if slot >= 0:
            v.scaled[association] = scaled_of(c.threshold[slot], c.alpha[slot], reference)
    # two powers in a row are rounded twice
    factor = _left_of(before, reference) * (1.0 - 1e-12)
    for block in range(v.used[2]):
        if abs(v.low[block]) != math.inf:
            v.low[block] = min(v.low[block] * factor, _MOST)


@njit(cache=True, nogil=True)
def rests_of(c, slots, fading):
    """`Celled.alone` of slots (float32[n]): the largest product of all probabilities but one, of those not shared."""
    alone = np.empty(slots.shape[0], np.float32)
    for i in range(slots.shape[0]):
        first, last = c.term_start[slots[i]], c.term_start[slots[i]] + c.term_count[slots[i]]
        most = 0.0
        for shared in range(first, last):
            rest = 1.0
            for at in range(first, last):
                if at != shared:
                    rest *= fading.smoothing * background_of(fading, c.terms[at])
            most = max(most, rest)
        alone[i] = most * _WIDER
    return alone


@njit_inner_no_refcount
def bound_terms(terms, counts, length, fading, most_common, worth):
    """What the terms of a message are worth, if they are the first that are shared.

    `most_common` is the largest probability of a keyword that a message lacks.
    """
    behind = np.uint32(0)
    largest = most_common
    for i in range(terms.shape[0] - 1, -1, -1):
        own = probability(counts[i], length, background_of(fading, terms[i]), fading.smoothing)
        worth.own[i] = worth.whole[i] = own * _WIDER
        worth.text[i] = own * largest * _WIDER
        worth.others[i] = behind
        largest = max(largest, own)
        behind = np.uint32(behind | bit_of(terms[i]))
