"""Conditions that compare a version of an object with the one before it: `decreased`, `increased`, `changed`.

They are part of the filter's program. A message by itself satisfies them; `happened` tests them where both versions
are at hand. A value that either version lacks makes one false. The oracle is `matching.naive_filters.happened`.
"""

import numpy as np

from compiling.njit import njit_inner_no_refcount, njit_no_refcount
from matching.attributes import MISSING_KEY, numbers_of_keys
from matching.conditions import CHANGED, DECREASED, INCREASED
from matching.filter_programs import ARGUMENT_AT, LENGTH_AT
from matching.filters import Filters
from matching.model import Int32, Int64
from matching.storage.slots import as_input


def happened(filters: Filters, slots: Int32, before: Int64, now: Int64) -> np.ndarray:
    """Whether the conditions of slots on the version before hold.

    Parameters
    ----------
    filters : Filters
    slots : int32[n]             each has a program
    before, now : int64[n, a]    keys of both versions of each; attributes that one lacks are missing

    Returns
    -------
    bool[n]
    """
    out = np.empty(slots.shape[0], np.bool_)
    before, now = as_input(before, np.int64), as_input(now, np.int64)
    numbers = numbers_of_keys(before), numbers_of_keys(now)
    _test(filters.span, filters.words, filters.numbers, as_input(slots, np.int32), before, now, *numbers, out)
    return out


@njit_no_refcount
def _test(span, words, numbers, slots, before, now, numbers_before, numbers_now, out):
    """Write which pairs of versions satisfy the conditions of their slot."""
    for i in range(slots.shape[0]):
        at = span[slots[i], 0]
        end, holds = at + span[slots[i], 1], True
        while at < end and holds:
            operation, column = words[at] & 0xFF, (words[at] >> ARGUMENT_AT) & 0xFFFFFF
            begin, after = at + 1, at + 1 + (words[at] >> LENGTH_AT)
            at = after
            if operation < DECREASED or operation > CHANGED:
                continue
            if (
                column >= min(before.shape[1], now.shape[1])
                or before[i, column] == MISSING_KEY
                or now[i, column] == MISSING_KEY
            ):
                holds = False
            elif operation == INCREASED:
                holds = now[i, column] > before[i, column]
            elif operation == CHANGED:
                holds = _differ(before, now, i, column, column + words[begin])
            elif after == begin:
                holds = now[i, column] < before[i, column]
            else:
                holds = numbers_before[i, column] - numbers_now[i, column] >= numbers[begin]
        out[i] = holds


@njit_inner_no_refcount
def _differ(before, now, row, first, last):
    """Whether two versions differ in any of the columns."""
    different = False
    for column in range(first, last):
        different |= before[row, column] != now[row, column]
    return different
