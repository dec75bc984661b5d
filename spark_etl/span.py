"""When most of the messages are from, whatever a few absurd dates say.

Used by `spark_etl.job` for the manifest and by `gateway.subscriptions.checking` for matches a day.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from matching.fields import FIRST_US, LAST_US

#: Shares of the messages before the first and up to the last moment that count; in between is `SHARE` of them.
FROM, TO = 0.05, 0.95
SHARE = TO - FROM
#: Times farther off than so many times the span in between are no part of the stream.
_FAR = 10


def span_us(times_us: NDArray[np.int64]) -> float:
    """How long a stream lasts, in microseconds, by the nine tenths of its messages in the middle.

    The whole span where these are all of one moment; 0 without two times. O(n).
    """
    if times_us.size == 0:
        return 0.0
    first, last = np.quantile(times_us, (FROM, TO))
    return float(last - first) / SHARE or float(np.ptp(times_us))


def likely_times(timed: int, at: Callable[[int], int]) -> tuple[int, int] | None:
    """First and last time that is likely in a stream, in microseconds since 1970; None where no span can be told.

    Parameters
    ----------
    timed : int
        How many messages have a time.
    at : callable
        The time of the nth of them in ascending order, from 0.
    """
    if timed < 2:
        return None
    first, last = at(math.floor(FROM * (timed - 1))), at(math.ceil(TO * (timed - 1)))
    far = _FAR * (last - first)
    return (max(FIRST_US, first - far), min(LAST_US, last + far)) if far else None


def sorted_times(folder: Path, column: str) -> tuple[int, Callable[[int], int]]:
    """How many times sorted files have, and what reads the nth of them.

    Parameters
    ----------
    folder : Path
        Parquet files `part-*`, sorted by the column over all of them, nulls first.
    column : str
        Times in microseconds.

    Notes
    -----
    Reads the footers, and for each time one row group.
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
