"""Sorting in kernels: one stable merge sort, in place of Numba's.

Numba builds `np.sort` and `np.argsort` from closures whose symbols differ only by a counter of the process. So two
kernels that different processes compiled can have the same symbol for different code. If one process loads both from
the cache, the second kernel runs the code of the first: it sorts numbers as indexes, or not at all. The symbol of a
module's function has the module's name instead. A test finds kernels that call Numba's sort.
"""

import numpy as np

from compiling.njit import njit

#: Rows that are sorted by insertion.
_RUN = 16


@njit(cache=True, nogil=True)
def ascending(values):
    """Places of the values (one column of numbers without NaN) in ascending order, equal ones as they stand.

    Returns int64[n]. O(n log n).
    """
    count = values.shape[0]
    order, other = np.empty(count, np.int64), np.empty(count, np.int64)
    for begin in range(0, count, _RUN):
        for i in range(begin, min(begin + _RUN, count)):
            value, k = values[i], i - 1
            while k >= begin and values[order[k]] > value:
                order[k + 1] = order[k]
                k -= 1
            order[k + 1] = i
    width = _RUN
    while width < count:
        for low in range(0, count, 2 * width):
            middle, high = min(low + width, count), min(low + 2 * width, count)
            a, b = low, middle
            for k in range(low, high):
                if a < middle and (b == high or values[order[a]] <= values[order[b]]):
                    other[k] = order[a]
                    a += 1
                else:
                    other[k] = order[b]
                    b += 1
        order, other = other, order
        width *= 2
    return order


#: Bits of a term that a pass of `index_pairs` sorts by.
_DIGIT = 11


@njit(cache=True, nogil=True)
def index_pairs(row, term, rows):
    """Index pairs of a row and a term, in any order and with repeats, by both.

    Parameters
    ----------
    row : int64[n]     below `rows`
    term : int32[n]    not below 0

    Returns
    -------
    terms, of_term : int32[m]    distinct pairs by term, then row: the term, and the row
    offsets : int64[rows + 1]
    of_row : int32[m]            terms of each row, ascending, between its offsets

    Notes
    -----
    Counting sorts by row, then by the digits of the term, and by row again. O(n + rows).
    """
    count = term.shape[0]
    order, other = np.empty(count, np.int64), np.empty(count, np.int64)
    free = np.zeros(rows + 1, np.int64)
    for i in range(count):
        free[row[i] + 1] += 1
    for i in range(rows):
        free[i + 1] += free[i]
    for i in range(count):
        order[free[row[i]]] = i
        free[row[i]] += 1
    ends = np.empty(1 << _DIGIT, np.int64)
    for shift in range(0, 31, _DIGIT):
        for digit in range(ends.shape[0]):
            ends[digit] = 0
        for i in range(count):
            ends[(term[i] >> shift) & (ends.shape[0] - 1)] += 1
        end = 0
        for digit in range(ends.shape[0]):
            ends[digit], end = end, end + ends[digit]
        for i in range(count):
            digit = (term[order[i]] >> shift) & (ends.shape[0] - 1)
            other[ends[digit]] = order[i]
            ends[digit] += 1
        order, other = other, order
    terms, of_term = np.empty(count, np.int32), np.empty(count, np.int32)
    offsets, distinct = np.zeros(rows + 1, np.int64), 0
    for place in order:
        if distinct == 0 or terms[distinct - 1] != term[place] or of_term[distinct - 1] != row[place]:
            terms[distinct], of_term[distinct] = term[place], row[place]
            offsets[row[place] + 1] += 1
            distinct += 1
    for i in range(rows):
        offsets[i + 1] += offsets[i]
    of_row = np.empty(distinct, np.int32)
    for i in range(rows):
        free[i] = offsets[i]
    for i in range(distinct):
        of_row[free[of_term[i]]] = terms[i]
        free[of_term[i]] += 1
    return terms[:distinct], of_term[:distinct], offsets, of_row
