"""The key of a message for a fading subscription, as `matching.naive` defines it, and what bounds it.

key = ln(alpha * proximity + (1 - alpha) * text) + time * ln D, with text the product, over all keywords of the
subscription in ascending term id, of their smoothed probabilities in the message (Chen et al., CIQ, definition 2; the
log form is spec 6). Keys never change, so a fading threshold is a constant less the age of the stream.

Every factor of the product is a probability, so any of them bounds the whole: a pair that shares the keyword w has a
text relevance of at most the probability of w. The product over the keywords of a message is no bound at all.
"""

import math

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.geo.sphere import distance_to


@njit(cache=True, nogil=True)
def length_of(counts, first, last):
    """How many words of the vocabulary a message has: the sum of its counts."""
    length = 0
    for i in range(first, last):
        length += counts[i]
    return length


@njit(cache=True, nogil=True)
def probability(count, length, background, smoothing):
    """Smoothed probability of a keyword in a message, which has it `count` times among `length` words."""
    if length == 0:  # without text; only of subscriptions without keywords, where text counts nothing
        return smoothing * background
    # the oracle's expression, operation by operation: keys are compared for equality
    return (1.0 - smoothing) * (count / length) + smoothing * background


@njit_inner
def background_of(fading, term):
    """Share of a term in the collection; none of one that came after it."""
    if term < fading.collection_share.shape[0]:
        return fading.collection_share[term]
    return 0.0


@njit_no_refcount
def text_relevance(c, slot, terms, counts, length, fading):
    """Product of the probabilities of all keywords of a subscription, ascending. O(terms of both)."""
    text = 1.0
    i = 0
    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
        term = c.terms[at]
        while i < terms.shape[0] and terms[i] < term:
            i += 1
        count = counts[i] if i < terms.shape[0] and terms[i] == term else 0
        text *= probability(count, length, background_of(fading, term), fading.smoothing)
    return text


@njit(cache=True, nogil=True)
def relevance(c, slot, place, text):
    """Place and text of a pair together, by its alpha; `place` is the message's (`matching.geo.sphere.point_of`).

    Negative where the message is beyond the subscription's own radius.
    """
    spatial = 1.0 - distance_to(place, c.x[slot], c.y[slot], c.z[slot]) / c.max_distance[slot]
    return c.alpha[slot] * spatial + (1.0 - c.alpha[slot]) * text


@njit(cache=True, nogil=True)
def lift(event_time_us, fading):
    """What the time of a message adds to its keys: its seconds since the epoch, times ln D."""
    return (event_time_us - fading.epoch_us) / 1e6 * fading.log_base_per_s


@njit(cache=True, nogil=True)
def key_of(relevant, lifted):
    """The log key of a relevance; minus infinity for none or less."""
    if relevant <= 0.0:
        return -math.inf
    return math.log(relevant) + lifted


@njit(cache=True, nogil=True)
def is_first_common(c, slot, term, terms):
    """Whether no keyword of the subscription before `term` is in the message: so each pair is taken once."""
    i = 0
    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
        if c.terms[at] >= term:
            return True
        while terms[i] < c.terms[at]:
            i += 1
        if terms[i] == c.terms[at]:
            return False
    return True
