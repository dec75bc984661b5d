"""Kernels for many rows at once: XXH64 of names, a tenth of the time of a call a name, and sums of a digest.

The former is Yann Collet's xxHash (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), with seed 0.
"""

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.model import Int64
from matching.storage.slots import as_input

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)
#: Bits of float64: all but the sign, infinity, and the NaN of NumPy.
_NOT_SIGN, _INFINITY, _NAN = np.uint64(2**63 - 1), np.uint64(0x7FF << 52), np.uint64(0xFFF << 51)
#: Not empty once the kernels are there.
_WARM: list[bool] = []


@njit(cache=True, nogil=True)
def _word(data, at, size):
    """Little-endian number of `size` bytes."""
    word = np.uint64(0)
    for place in range(size):
        word |= np.uint64(data[at + place]) << np.uint64(8 * place)
    return word


@njit_inner
def _turned(word, by):
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


@njit(cache=True, nogil=True)
def _mixed(lane, word):
    return _turned(lane + word * _PRIME_2, 31) * _PRIME_1


@njit(cache=True, nogil=True)
def hash_each(offsets, data, out):
    """XXH64 of every name.

    Parameters
    ----------
    offsets : int64[n + 1]    where each name begins in `data`
    data : uint8[offsets[n]]
    out : uint64[n]           overwritten

    Notes
    -----
    O(bytes), no allocation. Reference: `xxhash.xxh64_intdigest`.
    """
    for name in range(out.shape[0]):
        at, end = offsets[name], offsets[name + 1]
        size = end - at
        if size >= 32:
            one, two = _PRIME_1 + _PRIME_2, _PRIME_2
            three, four = np.uint64(0), np.uint64(0) - _PRIME_1
            while at <= end - 32:
                one, two = _mixed(one, _word(data, at, 8)), _mixed(two, _word(data, at + 8, 8))
                three, four = _mixed(three, _word(data, at + 16, 8)), _mixed(four, _word(data, at + 24, 8))
                at += 32
            whole = _turned(one, 1) + _turned(two, 7) + _turned(three, 12) + _turned(four, 18)
            for lane in (one, two, three, four):
                whole = (whole ^ _mixed(np.uint64(0), lane)) * _PRIME_1 + _PRIME_4
        else:
            whole = _PRIME_5
        whole += np.uint64(size)
        while at <= end - 8:
            whole = _turned(whole ^ _mixed(np.uint64(0), _word(data, at, 8)), 27) * _PRIME_1 + _PRIME_4
            at += 8
        if at <= end - 4:
            whole = _turned(whole ^ (_word(data, at, 4) * _PRIME_1), 23) * _PRIME_2 + _PRIME_3
            at += 4
        while at < end:
            whole = _turned(whole ^ (np.uint64(data[at]) * _PRIME_5), 11) * _PRIME_1
            at += 1
        whole = (whole ^ (whole >> np.uint64(33))) * _PRIME_2
        whole = (whole ^ (whole >> np.uint64(29))) * _PRIME_3
        out[name] = whole ^ (whole >> np.uint64(32))


def is_ready() -> bool:
    """Whether `warmup` was called: then even a small batch is worth a call of a kernel."""
    return bool(_WARM)


def hashes_of(offsets: Int64, data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """XXH64 of every name (uint64[n]); arrays as of `hash_each`, read-only or not: compiled once for both."""
    out = np.empty(offsets.shape[0] - 1, np.uint64)
    hash_each(as_input(offsets, np.int64), as_input(data, np.uint8), out)
    return out


@njit_no_refcount
def add_rows(columns, change, score, seeds, rounds, last, sums):
    """Mix the rows of some columns into each of two lanes, and add the rows up.

    Parameters
    ----------
    columns : tuple of uint64[n]
    change : uint8[n]                  the column behind those
    score : uint64[n]                  the last column: bits of float64; all NaN count as one, and both zeros
    seeds, rounds, last : uint64[2]    of each lane: start, multiplier of a round, last multiplier
    sums : uint64[2]                   added to

    Notes
    -----
    O(n), 3 ns a row. Reference: `bolts.names.Digest`.
    """
    for row in range(score.shape[0]):
        bits = score[row]
        if bits & _NOT_SIGN > _INFINITY:
            bits = _NAN
        elif bits == ~_NOT_SIGN:
            bits = np.uint64(0)
        for lane in range(2):
            mixed = seeds[lane]
            for column in columns:
                mixed = (mixed ^ column[row]) * rounds[lane]
                mixed ^= mixed >> np.uint64(29)
            mixed = (mixed ^ np.uint64(change[row])) * rounds[lane]
            mixed ^= mixed >> np.uint64(29)
            mixed = (mixed ^ bits) * rounds[lane]
            mixed ^= mixed >> np.uint64(29)
            mixed *= last[lane]
            sums[lane] += mixed ^ (mixed >> np.uint64(32))


def warmup() -> None:
    """Compile, or load from the cache."""
    hashes = hashes_of(np.zeros(2, np.int64), np.zeros(1, np.uint8))
    row, two = as_input(hashes, np.uint64), np.zeros(2, np.uint64)
    add_rows((row,) * 4, as_input(np.zeros(1, np.uint8), np.uint8), row, two, two, two, two)
    _WARM.append(True)
