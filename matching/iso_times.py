"""Reads many times at once, in the form that most producers write: `2018-10-10T20:19:24Z`, with or without a fraction.

Any other form is left to `matching.fields.event_time_us`, which gives the same microseconds.
"""

from collections.abc import Sequence

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int64
from matching.words.cutting import joined

#: Bytes up to the seconds; digits of a fraction that are microseconds.
_SECONDS_END, _FRACTION = 19, 6


def iso_times(texts: Sequence[str]) -> tuple[Int64, np.ndarray]:
    """Microseconds since 1970 of times in UTC, and which of them were read: int64[n], bool[n]. 0.1 us a time."""
    data, offsets = joined(texts)
    times, read = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
    _read(data, offsets, times, read)
    return times, read


@njit(cache=True, nogil=True)
def _read(data, offsets, times, read):
    for row in range(times.shape[0]):
        times[row], read[row] = _read_one(data, offsets[row], offsets[row + 1])


@njit_inner_no_refcount
def _read_one(data, start, end):
    """A time, and whether it has the form YYYY-MM-DD, T or a blank, HH:MM:SS, up to six digits behind a point, and
    maybe Z."""
    none = np.int64(0), False
    if end > start and data[end - 1] == 90:  # Z
        end -= 1
    length = end - start
    if length < _SECONDS_END or length > _SECONDS_END + 1 + _FRACTION or length == _SECONDS_END + 1:
        return none
    marks = data[start + 4] == 45 and data[start + 7] == 45 and data[start + 13] == 58 and data[start + 16] == 58
    if not marks or (data[start + 10] != 84 and data[start + 10] != 32):
        return none
    year, month, day = _number(data, start, 4), _number(data, start + 5, 2), _number(data, start + 8, 2)
    hour, minute, second = _number(data, start + 11, 2), _number(data, start + 14, 2), _number(data, start + 17, 2)
    if year < 1 or month < 1 or month > 12 or day < 1 or day > _days(year, month):
        return none
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return none
    fraction = np.int64(0)
    if length > _SECONDS_END:
        digits = length - _SECONDS_END - 1
        fraction = _number(data, start + _SECONDS_END + 1, digits)
        if data[start + _SECONDS_END] != 46 or fraction < 0:
            return none
        fraction *= 10 ** (_FRACTION - digits)
    before = year - 1  # days of whole years before, then of whole months
    days = 365 * before + before // 4 - before // 100 + before // 400 - 719_162
    for earlier in range(1, month):
        days += _days(year, earlier)
    seconds = ((days + day - 1) * 24 + hour) * 3600 + minute * 60 + second
    return seconds * 1_000_000 + fraction, True


@njit_no_refcount
def _number(data, at, digits):
    """A number of so many digits; -1 where one is none."""
    number = np.int64(0)
    for place in range(at, at + digits):
        if data[place] < 48 or data[place] > 57:
            return np.int64(-1)
        number = number * 10 + data[place] - 48
    return number


@njit_inner_no_refcount
def _days(year, month):
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31
