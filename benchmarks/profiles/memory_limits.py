"""What the memory of this machine gives one core: bandwidth of reading on, and the wait for a place anywhere.

`python -m benchmarks.profiles.memory_limits` prints JSON; `docs/boolean-profile.md` sets
`benchmarks.profiles.boolean_phases` against it. Three ways to read a place anywhere, over arrays of several sizes: one
after another, each address coming from the last read (the wait itself); addresses known beforehand (as many waits at a
time as the core overlaps by itself); and the same with a branch on each value that cannot be foretold, as in an index
that goes from one posting to the next.
"""

import json
import sys
from statistics import median
from time import thread_time

import numpy as np
from numba import njit

_SIZES_MIB = (0.25, 4, 16, 64, 512)
_READS = 1 << 20
_STREAM_MIB = 512
_ROUNDS = 5
_LINE = 8  # int64 of a cache line


@njit(cache=True, nogil=True)
def _chase(following, reads):
    place = 0
    for _ in range(reads):
        place = following[place]
    return place


@njit(cache=True, nogil=True)
def _gather(array, places):
    total = 0
    for place in places:
        total += array[place]
    return total


@njit(cache=True, nogil=True)
def _gather_with_branch(array, places):
    total = 0
    for place in places:
        value = array[place]
        if value * 0x61C88647 & 0x8000:
            total += value // 3
        else:
            total ^= value
    return total


@njit(cache=True, nogil=True)
def _read_on(array):
    total = 0
    for value in array:
        total += value
    return total


def measure(stream_mib: float = _STREAM_MIB, sizes_mib=_SIZES_MIB, reads: int = _READS, rounds: int = _ROUNDS) -> dict:
    """Medians over the rounds: `read_gib_per_s`, and for each size the nanoseconds of a read in the three ways."""
    rng = np.random.default_rng(0)
    stream = np.ones(int(stream_mib * 2**17), np.int64)
    _read_on(stream[:8])
    seconds = median(_timed(_read_on, stream) for _ in range(rounds))
    figures = {"read_gib_per_s": stream.nbytes / 2**30 / seconds, "random": []}
    for size in sizes_mib:
        lines = int(size * 2**17) // _LINE
        # One cycle through the first word of every line, in random order.
        order = rng.permutation(lines) * _LINE
        following = np.zeros(lines * _LINE, np.int64)
        following[order] = np.roll(order, -1)
        places = rng.integers(0, lines, reads) * _LINE
        ways = {"chased": (_chase, reads), "gathered": (_gather, places), "branched": (_gather_with_branch, places)}
        row = {"mib": size}
        for way, (kernel, argument) in ways.items():
            kernel(following, argument)
            seconds = median(_timed(kernel, following, argument) for _ in range(rounds))
            row[f"{way}_ns"] = seconds / reads * 1e9
        figures["random"].append(row)
    return figures


def _timed(kernel, *arguments) -> float:
    begun = thread_time()
    kernel(*arguments)
    return thread_time() - begun


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")
