"""Targets of a batch: a bit for each message and query task that gets it, and the rows of each task.

A routing table sets the bits of a message; one pass over the bits gives the rows of all tasks in one array. Where most
messages go to most tasks the bits travel with the whole batch, and a task takes its rows (`rows_for`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit
from matching.model import Int64

#: Tasks of a value: all its bits are of one sign.
TASKS_A_VALUE = 62


def place_of(task: Any) -> tuple[Any, Any]:
    """Value and bit of a task, or of each of several."""
    return task // TASKS_A_VALUE, np.int64(1) << (task % TASKS_A_VALUE)


def values_for(tasks: int) -> int:
    """Number of int64 values that the bits of `tasks` tasks need."""
    return -(-tasks // TASKS_A_VALUE)


def no_targets(messages: int, tasks: int) -> Int64:
    """int64[messages, values]: no message is sent to any task yet."""
    return np.zeros((messages, values_for(tasks)), np.int64)


def set_bits(task: Int64, bits: Int64, passed: NDArray[np.bool_] | None = None) -> None:
    """Set the bit of one task (int64[n]) for each message, or for those that have `passed`. O(n)."""
    _set(task, np.ones(task.shape[0], np.bool_) if passed is None else passed, bits)


def rows_of(bits: Int64, tasks: int) -> list[Int64]:
    """Rows of the messages of each task, ascending; views of one array. O(messages * values + rows)."""
    ends = np.zeros(tasks, np.int64)
    _count(bits, ends)
    np.cumsum(ends, out=ends)
    rows = np.empty(int(ends[-1]), np.int64)
    _list(bits, ends.copy(), rows)
    cuts = [0, *ends.tolist()]
    return [rows[first:last] for first, last in zip(cuts, cuts[1:], strict=False)]


def bits_of(rows: Sequence[Int64], messages: int) -> Int64:
    """The inverse of `rows_of`. O(messages * values + rows)."""
    cuts, bits = np.zeros(len(rows) + 1, np.int64), no_targets(messages, len(rows))
    np.cumsum([each.shape[0] for each in rows], out=cuts[1:])
    _mark(np.concatenate(rows), cuts, bits)
    return bits


def rows_for(bits: Int64, task: int) -> Int64:
    """Rows of the messages of one task, ascending. O(messages)."""
    value, bit = place_of(task)
    return np.flatnonzero(bits[:, value] & bit)


def warmup() -> None:
    """Compile, or load from the cache, the kernels of this module."""
    bits = no_targets(1, 1)
    set_bits(np.zeros(1, np.int64), bits)
    bits_of(rows_of(bits, 1), 1)


@njit(cache=True, nogil=True)
def _set(task, passed, bits):
    for row in range(task.shape[0]):
        if passed[row]:
            bits[row, task[row] // TASKS_A_VALUE] |= np.int64(1) << (task[row] % TASKS_A_VALUE)


@njit(cache=True, nogil=True)
def _mark(rows, cuts, bits):
    for task in range(cuts.shape[0] - 1):
        bit = np.int64(1) << (task % TASKS_A_VALUE)
        for at in range(cuts[task], cuts[task + 1]):
            bits[rows[at], task // TASKS_A_VALUE] |= bit


@njit(cache=True, nogil=True)
def _count(bits, counts):
    for row in range(bits.shape[0]):
        for value in range(bits.shape[1]):
            task, left = value * TASKS_A_VALUE, bits[row, value]
            while left:
                if left & 1:
                    counts[task] += 1
                task += 1
                left >>= 1


@njit(cache=True, nogil=True)
def _list(bits, ends, rows):
    # backwards, so that the end of each task becomes its begin
    for row in range(bits.shape[0] - 1, -1, -1):
        for value in range(bits.shape[1]):
            task, left = value * TASKS_A_VALUE, bits[row, value]
            while left:
                if left & 1:
                    ends[task] -= 1
                    rows[ends[task]] = row
                task += 1
                left >>= 1
