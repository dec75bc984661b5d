"""The time span of most messages, robust against a few absurd dates."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
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


def sorted_times(folder: Path, column: str) -> tuple[int, Callable[[int], int]]:
    """Number of times in sorted files, and a function that reads the nth of them.

    Parameters
    ----------
    folder : Path
        Parquet files `part-*`, sorted by the column over all of them, nulls first.
    column : str
        Times in microseconds.

    Notes
    -----
    Reads the footers, and one row group for each time.
    """
    groups: list[tuple[Path, int]] = []
    sizes: list[int] = []
    nulls = 0
    for path in sorted(folder.glob("part-*.parquet"), key=lambda path: int(path.name.split("-")[1])):
        metadata = pq.read_metadata(path)
        place = metadata.schema.names.index(column)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            groups.append((path, number))
            sizes.append(group.num_rows)
            nulls += group.column(place).statistics.null_count
    ends = np.cumsum(sizes)

    def at(nth: int) -> int:
        row = nulls + nth
        group = int(np.searchsorted(ends, row, side="right"))
        path, number = groups[group]
        with pq.ParquetFile(path) as file:
            times = file.read_row_group(number, [column])[column]
        return times[row - int(ends[group]) + sizes[group]].as_py()

    return int(ends[-1]) - nulls, at
