"""Posting lists of influence balls by term, long ones, in which a subscription knows its places.

`Subscriptions.position` has the place of each term's posting, -1 where there is none, so a subscription is found in a
list of hundreds of thousands without a search.
"""

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.knn.engines.balls import NOWHERE, BallLists, drop, is_on_sphere, limit_of, push
from matching.model import Int32
from matching.storage.point_subscriptions import Subscriptions

#: `most` of `post_terms` with which a subscription is posted by all of its terms.
ANY_NUMBER = 1 << 31


class TermLists(BallLists):
    """Lists by term. Their `key` is how many subscriptions have the term, where an engine counts them (`count`)."""

    def __init__(self, together: bool = False, on_sphere: bool = False):
        super().__init__(together, on_sphere)
        self.view.key[:] = 0

    def make_lists(self, count: int) -> None:
        have = self.view.key.shape[0]
        super().make_lists(count)
        self.view.key[have:] = 0

    def count(self, c: Subscriptions, slots: Int32, rare: int) -> Int32:
        """Count the terms of new slots; returns terms that no more than `rare` subscriptions had. O(their terms)."""
        crossed = np.empty(int(c.term_count[slots].sum()), np.int32)
        return crossed[: _count(c, self.view, slots, rare, crossed)]

    def discount(self, c: Subscriptions, slots: Int32) -> None:
        """Take the terms of slots that go out of the counts. O(their terms)."""
        _discount(c, self.view, slots)

    def ensure_terms(self, c: Subscriptions, slots: Int32) -> None:
        """Have a list for every term of new slots, and no posting of theirs yet. O(their terms), amortised."""
        terms = int(_unposted(c, slots)) + 1
        have = self.view.start.shape[0]
        if terms > have:
            self.make_lists(max(terms, have + have // 4))

    def grow(self, c: Subscriptions, needed: int) -> None:
        """Reserve `needed` more postings, and half as many again. O(pool), amortised."""
        self.reserve(needed)
        _tell_all(c, self.view)


@njit(cache=True, nogil=True)
def _unposted(c, slots):
    """Set the positions of the slots to -1; returns their largest term."""
    largest = -1
    for slot in slots:
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            c.position[at] = NOWHERE
            largest = max(largest, c.terms[at])
    return largest


@njit(cache=True, nogil=True)
def _count(c, v, slots, rare, crossed):
    """Write the terms whose count leaves `rare` behind to `crossed`; returns how many."""
    crossing = 0
    for slot in slots:
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            term = c.terms[at]
            if v.key[term] == rare:
                crossed[crossing] = term
                crossing += 1
            v.key[term] += 1
    return crossing


@njit(cache=True, nogil=True)
def _discount(c, v, slots):
    for slot in slots:
        for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
            v.key[c.terms[at]] -= 1


@njit_no_refcount
def post_terms(c, v, slot, most):
    """Post a subscription in the lists of those of its terms that no more than `most` subscriptions have.

    False if the pool is full: some postings are in.
    """
    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
        term = c.terms[at]
        if c.position[at] >= 0 or v.key[term] > most:
            continue
        before = v.start[term]
        x, y, z = np.float32(c.x[slot]), np.float32(c.y[slot]), np.float32(c.z[slot])
        if not push(v, term, slot, x, y, z, limit_of(c.threshold[slot], is_on_sphere(v))):
            return False
        if v.start[term] != before:
            _tell(c, v, term)
        c.position[at] = v.start[term] + v.count[term] - 1
    return True


@njit_no_refcount
def unpost_terms(c, v, slot):
    """Take a subscription out of the lists of its terms, where it is in any."""
    for at in range(c.term_start[slot], c.term_start[slot] + c.term_count[slot]):
        place = c.position[at]
        if place >= 0:
            term = c.terms[at]
            last = v.start[term] + v.count[term] - 1
            # update the place of the posting that fills the gap before it moves
            c.position[_position_of(c, v.slot[last], term)] = place
            drop(v, term, place)
            c.position[at] = NOWHERE


@njit_inner
def _position_of(c, slot, term):
    """Where in the pool of terms the term of a subscription stands."""
    at = c.term_start[slot]
    while c.terms[at] != term:
        at += 1
    return at


@njit(cache=True, nogil=True)
def _tell(c, v, term):
    """Update the places that the subscriptions of a list have of their postings."""
    for place in range(v.start[term], v.start[term] + v.count[term]):
        c.position[_position_of(c, v.slot[place], term)] = place


@njit(cache=True, nogil=True)
def _tell_all(c, v):
    for term in range(v.start.shape[0]):
        if v.count[term] > 0:
            _tell(c, v, term)


@njit(cache=True, nogil=True)
def is_first_common(terms, at, others, first, i):
    """Whether no term of a message before its i-th is one of the subscription, which has that. O(terms of both).

    The terms of the subscription begin at `at`, those of the message at `first` of `others`. A pair meets in the list
    of each term they share and is decided in the first.
    """
    j = first
    # the subscription has the i-th, at which this ends
    while j < first + i:
        if terms[at] < others[j]:
            at += 1
        elif terms[at] > others[j]:
            j += 1
        else:
            return False
    return True
