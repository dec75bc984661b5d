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
