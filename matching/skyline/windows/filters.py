"""Cuckoo filters for the keywords of tree nodes: small tables of fingerprints that never deny a term they hold.

A bucket is one int64. In a leaf's filter it holds 4 fingerprints of 10 bits with a reference count of 5 bits each: how
many pairs of entry and term came down to this fingerprint in this pair of buckets. So a term can be taken out again
without taking others with it, whatever collides; a count that has reached its highest value stays there until the
filter is built anew. Inner nodes never delete, so their buckets hold 6 fingerprints and no counts.

Filters lie in one pool, as blocks of a power of two; how large a filter of a node is says `bits` beside its start.
A term that is there already (or one that cannot be told from it) takes no further place. Read on in
`matching.skyline.windows.mf_rtree`.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from matching.model import Int64
from matching.njit import njit_no_refcount

#: Fingerprint bits, as in the paper; 0 is no fingerprint.
_MASK = 1023
_MOST = 31
#: Share of places that may be taken before the filter is made larger. Kicks get long beyond.
FULLEST = 0.93
_KICKS = 200
#: Positions in `meta`, and how many sizes of blocks there are.
POOL_END, _FREE, _CLASSES = 0, 1, 24
_NONE = -1
#: (places in a bucket, bits of a place) of leaves and of inner nodes.
LEAF, INNER = (4, 15), (6, 10)
#: The lowest and the highest bit of each of the six places of ten bits.
_ONES, _HIGHEST = 0x4010040100401, 0x802008020080200


class Filters(NamedTuple):
    """words : int64[p]          buckets of all filters; a free block starts with the start of the next free one
    meta : int64[1 + 24]      end of the used pool, first free block by size
    """

    words: Int64
    meta: Int64


def new_filters() -> Filters:
    """No filters."""
    meta = np.full(_FREE + _CLASSES, _NONE, np.int64)
    meta[POOL_END] = 0
    return Filters(np.zeros(256, np.int64), meta)


def grown(filters: Filters, words: int) -> Filters:
    """Filters with room for so many more words."""
    used = int(filters.meta[POOL_END])
    larger = np.zeros(used + used // 4 + words, np.int64)
    larger[:used] = filters.words[:used]
    return filters._replace(words=larger)


@njit(cache=True, nogil=True)
def allocate_block(filters, bits):
    """Start of a block of 2**bits empty buckets, -1 if the pool has no room."""
    start = filters.meta[_FREE + bits]
    if start >= 0:
        filters.meta[_FREE + bits] = filters.words[start]
    else:
        start = filters.meta[POOL_END]
        if start + (1 << bits) > filters.words.shape[0]:
            return np.int64(-1)
        filters.meta[POOL_END] += 1 << bits
    for bucket in range(start, start + (1 << bits)):
        # one that was free has what stood in it before, and a link
        filters.words[bucket] = 0
    return start


@njit(cache=True, nogil=True)
def free_block(filters, start, bits):
    """Give a block back."""
    filters.words[start] = filters.meta[_FREE + bits]
    filters.meta[_FREE + bits] = start


@njit(cache=True, nogil=True)
def hash_term(term):
    """31 bits of a term; the low ten are not zero: they are the fingerprint. The others choose the bucket.

    Within 63 bits throughout, so that it means the same with the compiler switched off.
    """
    x = np.int64(term)
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & 0x7FFFFFFF
    x = ((x ^ (x >> 12)) * 0x297A2D39) & 0x7FFFFFFF
    x ^= x >> 15
    return x | 1 if x & _MASK == 0 else x


@njit(cache=True, nogil=True)
def _other(bucket, fingerprint, last):
    """The second bucket of a fingerprint; of that, the first one again."""
    # by XOR with a number below the count of buckets, which has to be a power of two for that
    return bucket ^ ((fingerprint * 0x5BD1E995 >> 7) & last)


@njit(cache=True, nogil=True)
def _place_of(word, fingerprint, shape):
    """Bit position of a fingerprint in a bucket, -1 if it is not there."""
    # an empty place is found as fingerprint 0
    for i in range(shape[0]):
        if (word >> (i * shape[1])) & _MASK == fingerprint:
            return i * shape[1]
    return -1


@njit(cache=True, nogil=True)
def may_hold(words, start, bits, hashed, shape):
    """Whether a filter may hold a term, by `hash_term` of it. Never false for one that it holds."""
    last = (1 << bits) - 1
    fingerprint = hashed & _MASK
    bucket = (hashed >> 10) & last
    # both have to be asked: kicks move fingerprints to their second bucket
    if _place_of(words[start + bucket], fingerprint, shape) >= 0:
        return True
    return _place_of(words[start + _other(bucket, fingerprint, last)], fingerprint, shape) >= 0


@njit(cache=True, nogil=True)
def holds(words, start, bits, hashed):
    """The same for the filter of an inner node, all places of both buckets at once.

    A lane of ten bits is zero where the fingerprint stands; subtracting one from every lane borrows into its highest
    bit there. A borrow can reach the lanes above, never one below, so there is a true one if there is any.
    """
    last = (1 << bits) - 1
    fingerprint = hashed & _MASK
    bucket = (hashed >> 10) & last
    wanted = fingerprint * _ONES
    one = words[start + bucket] ^ wanted
    two = words[start + _other(bucket, fingerprint, last)] ^ wanted
    return ((((one - _ONES) & ~one) | ((two - _ONES) & ~two)) & _HIGHEST) != 0


@njit_no_refcount
def add(words, start, bits, hashed, shape):
    """Add a term: 0 if its fingerprint was there (then it counts once more, in a leaf), 1 if it takes a new place, -1
    if there was no place: some term has been lost and the filter has to be built anew.
    """
    last = (1 << bits) - 1
    fingerprint = hashed & _MASK
    bucket = (hashed >> 10) & last
    for where in (bucket, _other(bucket, fingerprint, last)):
        # Counted, not entered again: a leaf's two buckets have room for eight of a kind, and the ninth message with a
        # common word would find no place.
        at = _place_of(words[start + where], fingerprint, shape)
        if at >= 0:
            # leaves count; a count that has reached its highest value stays there
            if shape[1] > 10 and (words[start + where] >> (at + 10)) & _MOST < _MOST:
                words[start + where] += np.int64(1) << (at + 10)
            return 0
    entry = fingerprint | (np.int64(1) << 10) if shape[1] > 10 else fingerprint
    for where in (bucket, _other(bucket, fingerprint, last)):
        at = _place_of(words[start + where], 0, shape)
        if at >= 0:
            words[start + where] |= entry << at
            return 1
    entry_mask = (np.int64(1) << shape[1]) - 1
    for kick in range(_KICKS):
        # all places in turn, and without a random generator: the same stream builds the same filter
        at = (kick * 7 + hashed) % shape[0] * shape[1]
        pushed = (words[start + bucket] >> at) & entry_mask
        # exchanged in one step; a count goes with its fingerprint
        words[start + bucket] += (entry - pushed) << at
        entry = pushed
        bucket = _other(bucket, entry & _MASK, last)
        at = _place_of(words[start + bucket], 0, shape)
        if at >= 0:
            words[start + bucket] |= entry << at
            return 1
    return -1


@njit(cache=True, nogil=True)
def remove_entry(words, start, bits, hashed):
    """Take a term that was added out of a leaf's filter; returns whether its place became free."""
    last = (1 << bits) - 1
    fingerprint = hashed & _MASK
    bucket = (hashed >> 10) & last
    for where in (bucket, _other(bucket, fingerprint, last)):
        at = _place_of(words[start + where], fingerprint, LEAF)
        if at >= 0:
            references = (words[start + where] >> (at + 10)) & _MOST
            # nobody knows how many more there were: taking it out could deny a term that is there
            if references == _MOST:
                return False
            words[start + where] -= np.int64(1) << (at + 10)
            if references == 1:
                # with a count of 0 the whole place is empty now
                words[start + where] -= fingerprint << at
                return True
            return False
    return False
