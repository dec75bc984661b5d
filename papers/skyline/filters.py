"""Cuckoo filters for the keywords of tree nodes: small tables of fingerprints, without false negatives.

A bucket is one int64. In the paper's form it has 4 fingerprints of 10 bits, each with a reference count of 5 bits: in
a leaf the number of pairs of entry and term with this fingerprint in this pair of buckets. So deleting a term never
deletes one that collides with it; a saturated count stays until the filter is rebuilt. Inner nodes never delete. In our
form they alone have filters, and a bucket has 6 fingerprints and no counts.

Filters are blocks of one pool, of 2**`bits` words. A fingerprint that is present takes no further place.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.model import Int64
from matching.storage.slots import resized

#: Fingerprint bits, as in the paper; 0 is no fingerprint.
_MASK = 1023
_MOST = 31
#: Load factor at which a filter is enlarged. Chains of kicks get long beyond.
FULLEST = 0.93
_KICKS = 200
#: Positions in `meta`, and how many sizes of blocks there are.
POOL_END, _FREE, _CLASSES = 0, 1, 24
_NONE = -1
#: (places in a bucket, bits of a place) in the paper's form and in ours.
FOUR, SIX = (4, 15), (6, 10)
#: The lowest and the highest bit of each of the six places of ten bits.
_ONES, _HIGHEST = 0x4010040100401, 0x802008020080200


class KeywordFilters(NamedTuple):
    """words : int64[p]          buckets of all filters; a free block starts with the start of the next free one
    meta : int64[1 + 24]      end of the used pool, first free block by size
    """

    words: Int64
    meta: Int64


def new_filters() -> KeywordFilters:
    """No filters."""
    meta = np.full(_FREE + _CLASSES, _NONE, np.int64)
    meta[POOL_END] = 0
    return KeywordFilters(np.zeros(256, np.int64), meta)


def grown(filters: KeywordFilters, words: int) -> KeywordFilters:
    """A copy with capacity for `words` more."""
    used = int(filters.meta[POOL_END])
    return filters._replace(words=resized(filters.words, used + used // 4 + words))


@njit_inner
def allocate_block(filters, bits):
    """Start of a block of 2**bits empty buckets, -1 if the pool is exhausted."""
    start = filters.meta[_FREE + bits]
    if start >= 0:
        filters.meta[_FREE + bits] = filters.words[start]
    else:
        start = filters.meta[POOL_END]
        if start + (1 << bits) > filters.words.shape[0]:
            return np.int64(-1)
        filters.meta[POOL_END] += 1 << bits
    for bucket in range(start, start + (1 << bits)):
        # a reused block has old words, and a link
        filters.words[bucket] = 0
    return start


@njit_inner
def free_block(filters, start, bits):
    """Return a block to the free list."""
    filters.words[start] = filters.meta[_FREE + bits]
    filters.meta[_FREE + bits] = start


@njit(cache=True, nogil=True)
def hash_term(term):
    """31 bits of a term: the low ten, never zero, are the fingerprint; the others choose the bucket.

    Within 63 bits throughout, so that it is the same with the compiler switched off.
    """
    x = np.int64(term)
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & 0x7FFFFFFF
    x = ((x ^ (x >> 12)) * 0x297A2D39) & 0x7FFFFFFF
    x ^= x >> 15
    return x | 1 if x & _MASK == 0 else x


@njit_inner
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
def may_contain(words, start, bits, hashed, shape):
    """Whether a filter may contain a term, by its `hash_term`; no false negatives."""
    last = (1 << bits) - 1
    fingerprint = hashed & _MASK
    bucket = (hashed >> 10) & last
    # both buckets: kicks move fingerprints to their second one
    if _place_of(words[start + bucket], fingerprint, shape) >= 0:
        return True
    return _place_of(words[start + _other(bucket, fingerprint, last)], fingerprint, shape) >= 0


@njit(cache=True, nogil=True)
def contains(words, start, bits, hashed):
    """`may_contain` for buckets of six places, all places of both buckets at once.

    A lane of ten bits is zero where the fingerprint matches; subtracting one from every lane borrows into its highest
    bit there. A borrow reaches only lanes above, so a set bit means that some lane matches.
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
    """Add a term: 0 if its fingerprint was present (buckets of four count it), 1 if it takes a new place, -1 if there
    was no place: some term has been lost and the filter must be rebuilt.
    """
    last = (1 << bits) - 1
    fingerprint = hashed & _MASK
    bucket = (hashed >> 10) & last
    for where in (bucket, _other(bucket, fingerprint, last)):
        # Counted, not stored again: two buckets have eight places, and the ninth message with a common word would find
        # none.
        at = _place_of(words[start + where], fingerprint, shape)
        if at >= 0:
            # a saturated count stays
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
        # exchanged at once; a count moves with its fingerprint
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
    """Delete a term that was added to a leaf's filter; returns whether its place became free."""
    last = (1 << bits) - 1
    fingerprint = hashed & _MASK
    bucket = (hashed >> 10) & last
    for where in (bucket, _other(bucket, fingerprint, last)):
        at = _place_of(words[start + where], fingerprint, FOUR)
        if at >= 0:
            references = (words[start + where] >> (at + 10)) & _MOST
            # saturated: the true count is unknown, and deleting could cause a false negative
            if references == _MOST:
                return False
            words[start + where] -= np.int64(1) << (at + 10)
            if references == 1:
                # with a count of 0 the whole place is empty now
                words[start + where] -= fingerprint << at
                return True
            return False
    return False
