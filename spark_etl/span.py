"""The time span of most messages, robust against a few absurd dates."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from matching.fields import FIRST_US, LAST_US

#: Quantiles of the first and the last time that count; in between is the fraction `SHARE` of the messages.
FROM, TO = 0.05, 0.95
SHARE = TO - FROM
#: Times farther off than this many spans are no part of the stream.
_FAR = 10


def span_us(times_us: NDArray[np.int64]) -> float:
    """Length of a stream in microseconds, estimated from the middle nine tenths of its messages.

    The whole span if these have one time; 0 for fewer than two times. O(n).
    """
    if times_us.size == 0:
        return 0.0
    first, last = np.quantile(times_us, (FROM, TO))
    return float(last - first) / SHARE or float(np.ptp(times_us))


def likely_times(timed: int, at: Callable[[int], int]) -> tuple[int, int] | None:
    """First and last likely time of a stream, in microseconds since 1970; None without a span.

    Parameters
    ----------
    timed : int
        Number of messages with a time.
    at : callable
        The time of the nth of them in ascending order, from 0.
    """
    if timed < 2:
        return None
    first, last = at(math.floor(FROM * (timed - 1))), at(math.ceil(TO * (timed - 1)))
    far = _FAR * (last - first)
    return (max(FIRST_US, first - far), min(LAST_US, last + far)) if far else None
