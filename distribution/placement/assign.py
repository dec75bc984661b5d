"""Greedy assignment: each subscription, in the order given, to the task with the least load (DkM-SKS, algorithm 1).

In any order, the greatest load exceeds the least by one cost at most: the task that a cost made the greatest had the
least before, and no load falls. (The guarantee of 3/2 that the paper cites concerns only the greatest load, for costs
in descending order; spec 5.)
"""

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount, njit_no_refcount
from matching.model import Float64, Int64


def assign(cost: Float64, load: Float64) -> Int64:
    """Task of each cost (float64[n]), in this order; of equal loads the first task. Adds to `load` (float64[tasks]).

    O(n log tasks).
    """
    owner = np.empty(cost.shape[0], np.int64)
    _assign(np.ascontiguousarray(cost), load, owner)
    return owner


def descending(cost: Float64) -> Int64:
    """Rows by descending cost; of equal costs the first row first. O(n log n)."""
    return np.argsort(-cost, kind="stable")


def dealt_out(cost: Float64, tasks: int) -> Int64:
    """Task of each cost (float64[n]), assigned by descending cost: algorithm 1. O(n log n)."""
    order = descending(cost)
    owner = np.empty(cost.shape[0], np.int64)
    owner[order] = assign(cost[order], np.zeros(tasks))
    return owner


@njit(cache=True, nogil=True)
def _assign(cost, load, owner):
    # tasks as a heap with the least loaded on top
    heap = np.arange(load.shape[0])
    for start in range(load.shape[0] // 2 - 1, -1, -1):
        _sift(heap, load, start)
    for i in range(cost.shape[0]):
        task = heap[0]
        owner[i] = task
        load[task] += cost[i]
        _sift(heap, load, 0)


@njit_inner_no_refcount
def _sift(heap, load, place):
    """Sift the task at a place down the heap."""
    task = heap[place]
    while True:
        child = 2 * place + 1
        if child >= heap.shape[0]:
            break
        other = child + 1
        if other < heap.shape[0] and _before(load, heap[other], heap[child]):
            child = other
        if not _before(load, heap[child], task):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = task


@njit_no_refcount
def _before(load, one, other):
    # of equal loads the smaller number, so that owners do not depend on the layout of the heap
    return load[one] < load[other] or (load[one] == load[other] and one < other)
