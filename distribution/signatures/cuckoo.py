"""Cuckoo filter: a set of numbers in a few bits each, with deletion; never wrong about a member.

An item leaves a fingerprint of `bits` bits in one of two buckets of four places; which two follows from either bucket
and the fingerprint alone, so a fingerprint can be moved without its item (Fan, Andersen, Kaminsky, Mitzenmacher 2014,
partial-key cuckoo hashing; spec 4.6). The other bucket of b is (H(fingerprint) - b) mod m, which is its own inverse for
any number m of buckets, where the usual exclusive or wants a power of two and so up to twice the memory. Fingerprints
are packed without gaps.

Callers must keep two rules, as `distribution.signatures.counted` does: an item is inserted once, since two buckets have
eight places for copies of a fingerprint; and only inserted items may be deleted, or another's fingerprint is. An insert
into a full filter fails without a change; the filter cannot grow, since it has no items: build a larger one from all of
them (`CuckooFilter.of`).
"""

import math

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.errors import ConfigError, EngineError
from matching.model import Int64
from matching.storage.slots import as_input

PLACES = 4
#: Fraction of the places that can be filled before insertions begin to fail.
FULLEST = 0.95
#: A bucket is read as one 64-bit number.
MOST_BITS = 64 // PLACES
_FEWEST_BUCKETS = 4
#: Moves before an insertion gives up; at 95 % load a few hundred are needed now and then.
_MOVES = 500

#: Items that are hashed, and whose buckets are read, ahead of their insertion or lookup.
_BLOCK = 64
_MASK = (1 << 31) - 1
_MIX_A, _MIX_B = 0x3C6EF373, 0x6A09E667
_SEED_BUCKET, _SEED_FINGERPRINT, _SEED_OTHER = 0x1E3779B1, 0x3B67AE85, 0x54FF53A5

_BUCKETS, _BITS, _ITEMS, _SEED, _KICK = range(5)


class CuckooFilter:
    """A filter for about `capacity` items at a false-positive rate of at most `rate` when full.

    Parameters
    ----------
    capacity : int     number of items
    rate : float       false-positive rate, 2**-12 to 0.5
    seed : int         of the hash functions; another seed separates items that happen to collide

    Raises
    ------
    ConfigError
        For a rate it cannot have or a negative capacity.
    """

    def __init__(self, capacity: int, rate: float = 0.01, seed: int = 0):
        if capacity < 0:
            raise ConfigError(f"a cuckoo filter of {capacity} items: give a capacity of 0 or more")
        buckets = max(_FEWEST_BUCKETS, math.ceil(capacity / (PLACES * FULLEST)))
        if buckets > _MASK:
            raise ConfigError(f"{capacity} items are too many for one cuckoo filter: use more query bolts")
        bits = fingerprint_bits(rate)
        self.state = np.array([buckets, bits, 0, seed & _MASK, 1], np.int64)
        # one word more than needed, so that a bucket can be read as two words wherever it starts
        self.words = np.zeros((buckets * PLACES * bits + 63) // 64 + 1, np.uint64)

    def __len__(self) -> int:
        return int(self.state[_ITEMS])

    @classmethod
    def of(cls, items: Int64, rate: float = 0.01, headroom: float = 0.0, seed: int = 0) -> "CuckooFilter":
        """A filter of distinct items with capacity for `headroom` times as many more; retries with new seeds. O(n)."""
        capacity = math.ceil(items.shape[0] * (1.0 + headroom))
        for attempt in range(64):
            made = cls(capacity + attempt * (1 + capacity // 50), rate, seed + attempt)
            if made.insert(items) == items.shape[0]:
                return made
        raise EngineError(
            f"{items.shape[0]} items do not fit a cuckoo filter: each may be inserted only once; count repeats outside"
        )

    def insert(self, items: Int64) -> int:
        """Insert distinct items (int64[n], >= 0) in order, until one does not fit; returns how many fitted. O(n)."""
        return int(
            _insert(self.words, self.state, as_input(items, np.int64), np.empty((_MOVES, 2), np.int64), _new_ahead())
        )

    def delete(self, items: Int64) -> None:
        """Delete inserted items. O(n).

        Raises
        ------
        EngineError
            If an item has no fingerprint, so was not inserted; those before it are deleted then. An item that was never
            inserted may go unnoticed and delete another's fingerprint.
        """
        items = as_input(items, np.int64)
        done = _delete(self.words, self.state, items)
        if done < items.shape[0]:
            raise EngineError(f"item {items[done]} cannot be deleted: it was never inserted; keep counts outside")

    def contains(self, items: Int64) -> NDArray[np.bool_]:
        """bool[n]: true for every member, and for about `expected_rate` of the others. O(n)."""
        found = np.empty(items.shape[0], np.bool_)
        _contains(self.words, self.state, as_input(items, np.int64), _new_ahead(), found)
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """`words` uint64[], `state` int64[5] (views)."""
        return {"words": self.words, "state": self.state}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "CuckooFilter":
        """Continue from `arrays`; they are copied."""
        made = cls.__new__(cls)
        made.words, made.state = arrays["words"].copy(), arrays["state"].copy()
        return made

    @property
    def nbytes(self) -> int:
        """Memory of the fingerprints and the few numbers beside them."""
        return self.words.nbytes + self.state.nbytes

    @property
    def capacity(self) -> int:
        """Items it was made for."""
        return int(self.state[_BUCKETS] * PLACES * FULLEST)

    @property
    def load(self) -> float:
        """Fraction of the places that are taken."""
        return len(self) / float(self.state[_BUCKETS] * PLACES)

    @property
    def expected_rate(self) -> float:
        """Expected false-positive rate: a lookup compares 2 * 4 * load fingerprints of 2**bits - 1 values."""
        return 1.0 - (1.0 - 1.0 / ((1 << int(self.state[_BITS])) - 1)) ** (2 * PLACES * self.load)


def fingerprint_bits(rate: float) -> int:
    """Bits that keep the false-positive rate of a full filter at or below `rate`: ceil(log2(8 / rate)).

    Raises
    ------
    ConfigError
        If that is more than 16, or the rate above 0.5.
    """
    bits = math.ceil(math.log2(2 * PLACES / rate)) if 0.0 < rate <= 0.5 else 0
    if not 0 < bits <= MOST_BITS:
        least = 2 * PLACES / 2**MOST_BITS
        raise ConfigError(f"false-positive rate {rate}: a cuckoo filter can have {least:.5f} to 0.5")
    return bits


def hashes(items: Int64, seed: int) -> Int64:
    """31-bit hashes of numbers below 2**62, int64[n]. O(n).

    For other modules: cached kernels of theirs would not notice a change of the kernel.
    """
    out = np.empty(items.shape[0], np.int64)
    _hash_all(as_input(items, np.int64), seed, out)
    return out


@njit_inner
def hash_of(item, seed):
    """`hashes` of one number, for kernels."""
    return _hash_of(item, seed)


@njit(cache=True, nogil=True)
def _hash_all(items, seed, out):
    for i in range(items.shape[0]):
        out[i] = _hash_of(items[i], seed)


@njit_inner
def _mix(value):
    """A permutation of 31-bit numbers in which every bit depends on every bit.

    31 bits, so that products stay within int64 and mean the same with the compiler switched off.
    """
    # Shifts and odd factors can each be undone, so no two numbers fall together.
    value ^= value >> 15
    value = (value * _MIX_A) & _MASK
    value ^= value >> 13
    value = (value * _MIX_B) & _MASK
    return value ^ (value >> 16)


@njit(cache=True, nogil=True)
def _hash_of(item, seed):
    """31-bit hash of a number below 2**62; numbers that differ in the low 31 bits alone never collide."""
    return _mix(_mix((item ^ seed) & _MASK) ^ ((item >> 31) & _MASK))


@njit_inner_no_refcount
def _bucket_of(item, state):
    # Scaled, not masked: the number of buckets need not be a power of two.
    return (_hash_of(item, state[_SEED] ^ _SEED_BUCKET) * state[_BUCKETS]) >> 31


@njit_inner_no_refcount
def _fingerprint_of(item, state):
    """1 to 2**bits - 1; 0 is an empty place. Hashed apart from the bucket: 31 bits are too few for both."""
    return 1 + ((_hash_of(item, state[_SEED] ^ _SEED_FINGERPRINT) * ((1 << state[_BITS]) - 1)) >> 31)


@njit_inner_no_refcount
def _other_bucket(bucket, fingerprint, state):
    # What is subtracted from depends on the fingerprint alone, so doing it twice leads back.
    other = ((_mix(fingerprint ^ state[_SEED] ^ _SEED_OTHER) * state[_BUCKETS]) >> 31) - bucket
    return other + state[_BUCKETS] if other < 0 else other


def _new_ahead() -> Int64:
    """Scratch, int64[5, block]: fingerprints, buckets, other buckets, items with both full, and prefetched words."""
    return np.empty((5, _BLOCK), np.int64)


@njit_inner_no_refcount
def _look_ahead(items, begin, state, ahead):
    """Fingerprints and buckets of a block of items from `begin` on; returns its size. Arithmetic only, to vectorize."""
    seed, buckets, kinds = state[_SEED], state[_BUCKETS] & _MASK, ((1 << state[_BITS]) - 1) & _MASK
    block, fingerprints, firsts, seconds = items[begin : begin + _BLOCK], ahead[0], ahead[1], ahead[2]
    for k in range(block.shape[0]):
        fingerprint = 1 + ((_hash_of(block[k], seed ^ _SEED_FINGERPRINT) * kinds) >> 31)
        first = (_hash_of(block[k], seed ^ _SEED_BUCKET) * buckets) >> 31
        second = ((_mix((fingerprint ^ seed ^ _SEED_OTHER) & _MASK) * buckets) >> 31) - first
        fingerprints[k], firsts[k] = fingerprint, first
        # Of a negative number the shift leaves all ones: the modulo without a branch.
        seconds[k] = second + ((second >> 63) & buckets)
    return block.shape[0]


@njit_no_refcount
def _window(words, bit):
    """64 bits from `bit` on."""
    # There is one word more than places need, so the second one exists for the last bucket too.
    at, shift = bit >> 6, np.uint64(bit & 63)
    # shifted in two steps, because a shift by 64 is not defined
    return (words[at] >> shift) | ((words[at + 1] << np.uint64(1)) << (np.uint64(63) - shift))


@njit(cache=True, nogil=True)
def _place_of(words, bucket, fingerprint, bits):
    """First place of the bucket with this fingerprint (0: an empty one), -1 if there is none."""
    window = _window(words, bucket * PLACES * bits)
    mask, wanted, step = np.uint64((1 << bits) - 1), np.uint64(fingerprint), np.uint64(bits)
    for place in range(PLACES):
        if window & mask == wanted:
            return place
        window >>= step
    return -1


@njit_no_refcount
def _write(words, bucket, place, bits, fingerprint):
    """Overwrite a place with a fingerprint."""
    bit = (bucket * PLACES + place) * bits
    at, shift = bit >> 6, np.uint64(bit & 63)
    # What goes beyond the first word is shifted in two steps, as in `_window`.
    mask, value, rest = np.uint64((1 << bits) - 1), np.uint64(fingerprint), np.uint64(63) - np.uint64(bit & 63)
    words[at] = (words[at] & ~(mask << shift)) | (value << shift)
    words[at + 1] = (words[at + 1] & ~((mask >> np.uint64(1)) >> rest)) | ((value >> np.uint64(1)) >> rest)


@njit_inner
def _lanes(bits):
    """(the lowest bit of each of the four places of a bucket, the highest of each), as uint64."""
    lowest = np.uint64(0)
    for place in range(PLACES):
        lowest |= np.uint64(1) << np.uint64(place * bits)
    return lowest, lowest << np.uint64(bits - 1)


@njit_inner
def _empty_places(window, lowest, highest):
    """The highest bit of each empty place at the beginning of a window, all four places at once.

    What is below the highest bit of a place, plus as many ones, reaches that bit unless all of it is zero, and goes no
    further.
    """
    below = highest - lowest
    return ~(((window & below) + below) | window) & highest


@njit(cache=True, nogil=True)
def _number_of(empty, bits):
    """Number of marked places."""
    step = np.uint64(bits)
    marks = empty >> np.uint64(bits - 1)
    # at least four bits a place, so that a sum of four stays in its own
    return (marks + (marks >> step) + (marks >> (step + step)) + (marks >> (step + step + step))) & np.uint64(7)


@njit(cache=True, nogil=True)
def _contains(words, state, items, ahead, out):
    """out[i]: whether a bucket of items[i] has its fingerprint.

    Both buckets are read in any case and compared without branches, so that the processor can fetch those of the next
    items meanwhile; with the hashes done beforehand it sees more of them.
    """
    bits = state[_BITS]
    lowest, highest = _lanes(bits)
    for begin in range(0, items.shape[0], _BLOCK):
        for k in range(_look_ahead(items, begin, state, ahead)):
            wanted = np.uint64(ahead[0, k]) * lowest  # in every place; where it stands, exclusive or leaves nothing
            first = _empty_places(_window(words, ahead[1, k] * PLACES * bits) ^ wanted, lowest, highest)
            second = _empty_places(_window(words, ahead[2, k] * PLACES * bits) ^ wanted, lowest, highest)
            out[begin + k] = (first | second) != np.uint64(0)


@njit_inner_no_refcount
def has_item(words, state, item):
    """Whether a bucket of one item has its fingerprint; for kernels that look up a few of many and stop."""
    bits, fingerprint = state[_BITS], _fingerprint_of(item, state)
    lowest, highest = _lanes(bits)
    wanted, bucket = np.uint64(fingerprint) * lowest, _bucket_of(item, state)
    if _empty_places(_window(words, bucket * PLACES * bits) ^ wanted, lowest, highest) != np.uint64(0):
        return True
    other = _other_bucket(bucket, fingerprint, state)
    return _empty_places(_window(words, other * PLACES * bits) ^ wanted, lowest, highest) != np.uint64(0)


@njit(cache=True, nogil=True)
def _delete(words, state, items):
    """Clear one fingerprint of each item; how many were found, short of all at the first that was not."""
    bits = state[_BITS]
    for i in range(items.shape[0]):
        fingerprint = _fingerprint_of(items[i], state)
        bucket = _bucket_of(items[i], state)
        place = _place_of(words, bucket, fingerprint, bits)
        # Any copy will do: equal fingerprints in one bucket share the other too.
        if place < 0:
            bucket = _other_bucket(bucket, fingerprint, state)
            place = _place_of(words, bucket, fingerprint, bits)
            if place < 0:
                # It was never inserted; to continue would delete fingerprints of others.
                return i
        _write(words, bucket, place, bits, 0)
        state[_ITEMS] -= 1
    return items.shape[0]


@njit_no_refcount
def _fetch(words, state, size, ahead):
    """Read the buckets of a block of items, and for items that find both full those that others could move on to.

    Nothing is decided in these loops but which items those are, so that all reads overlap.
    """
    bits = state[_BITS]
    mask = np.uint64((1 << bits) - 1)
    lowest, highest = _lanes(bits)
    crowded, seen = 0, np.uint64(0)
    for k in range(size):
        # Written in any case and kept if it counts: no branch to be guessed wrong.
        ahead[3, crowded] = k
        first = _empty_places(_window(words, ahead[1, k] * PLACES * bits), lowest, highest)
        second = _empty_places(_window(words, ahead[2, k] * PLACES * bits), lowest, highest)
        crowded += (first | second) == np.uint64(0)
    for j in range(crowded):
        # The bucket in which `_relocate` begins.
        bucket = ahead[2, ahead[3, j]]
        window = _window(words, bucket * PLACES * bits)
        for candidate in range(PLACES):
            moved = np.int64((window >> np.uint64(candidate * bits)) & mask)
            seen ^= words[(_other_bucket(bucket, moved, state) * PLACES * bits) >> 6]
    # An unused result, so that the compiler keeps the reads.
    ahead[4, 0] = np.int64(seen >> np.uint64(1))


@njit(cache=True, nogil=True)
def _insert(words, state, items, path, ahead):
    """Insert items until one does not fit; returns how many fitted. path: int64[moves, 2], scratch.

    Of two buckets the emptier one is taken: then few are full before the whole filter nearly is.
    """
    bits = state[_BITS]
    lowest, highest = _lanes(bits)
    nothing, to_lowest = np.uint64(0), np.uint64(bits - 1)
    for begin in range(0, items.shape[0], _BLOCK):
        size = _look_ahead(items, begin, state, ahead)
        _fetch(words, state, size, ahead)
        for k in range(size):
            first, second = ahead[1, k] * PLACES * bits, ahead[2, k] * PLACES * bits
            # Read anew: items before this one may have filled what was fetched.
            empty = _empty_places(_window(words, first), lowest, highest)
            other = _empty_places(_window(words, second), lowest, highest)
            if (empty | other) == nothing:
                if not _relocate(words, state, ahead[2, k], ahead[0, k], path):
                    state[_ITEMS] += begin + k
                    return begin + k
                continue
            bit = first
            if _number_of(other, bits) > _number_of(empty, bits):
                empty, bit = other, second
            # times the lowest bit of the first empty place: moved there
            value = np.uint64(ahead[0, k]) * ((empty & (~empty + np.uint64(1))) >> to_lowest)
            at, shift = bit >> 6, np.uint64(bit & 63)
            # The place is empty, so there is nothing to clear.
            words[at] |= value << shift
            words[at + 1] |= (value >> np.uint64(1)) >> (np.uint64(63) - shift)
    state[_ITEMS] += items.shape[0]
    return items.shape[0]


@njit_inner_no_refcount
def _relocate(words, state, bucket, fingerprint, path):
    """Insert a fingerprint into a full bucket by moving others; undone if no place is found. Returns success."""
    bits = state[_BITS]
    mask = np.uint64((1 << bits) - 1)
    for move in range(path.shape[0]):
        # all four candidates are tried at once: their reads overlap, and chains become several times shorter
        window = _window(words, bucket * PLACES * bits)
        free_place, place, target = -1, 0, bucket
        for candidate in range(PLACES):
            moved = np.int64((window >> np.uint64(candidate * bits)) & mask)
            other = _other_bucket(bucket, moved, state)
            free = _place_of(words, other, 0, bits)
            if free >= 0:
                free_place, place, target = free, candidate, other
        if free_place < 0:
            # Chance out of the state: every copy of a filter must make the same moves. High bits, since the low ones
            # of such a sequence soon repeat.
            state[_KICK] = (state[_KICK] * _MIX_A + 12345) & _MASK
            place = (state[_KICK] >> 20) & (PLACES - 1)
        moved = np.int64((window >> np.uint64(place * bits)) & mask)
        _write(words, bucket, place, bits, fingerprint)
        if free_place >= 0:
            _write(words, target, free_place, bits, moved)
            return True
        path[move, 0], path[move, 1] = bucket, place
        bucket, fingerprint = _other_bucket(bucket, moved, state), moved
    # In reverse, so that a place visited twice gets back what it had first.
    for move in range(path.shape[0] - 1, -1, -1):
        bucket, place = path[move, 0], path[move, 1]
        moved = np.int64(_window(words, (bucket * PLACES + place) * bits) & mask)
        _write(words, bucket, place, bits, fingerprint)
        fingerprint = moved
    return False
