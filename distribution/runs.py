"""Parts of the world finer than its cells: runs of a space-filling curve, as fine as the places of a sample are dense.

A tenth of a stream of tweets may lie in one cell of `distribution.parts`, which no cut of cells divides. Here the unit
square is cut along a Z-order curve of 2**20 steps a side, first into at most `RUNS` runs, each with a few places of the
sample, then these into parts of about equal load, one for each task. Runs are weighed, and weighed again by measured
work, as cells are. All arithmetic after the codes of places is on integers, so that every task has the same parts. Used
by `distribution.influence`.
"""

from collections.abc import Sequence

import numpy as np

from compiling.njit import njit
from distribution.parts import Loads, cut_in_order, loads_of, reweighed
from matching.model import Float64, Int64

#: Runs, at most: enough that each of a hundred tasks gets forty.
RUNS = 4096
#: Runs that there are in any case, so that a part that the sample has no place in can be divided later: 16 x 16 cells.
_COARSE_BITS = 4
_BITS = 20
_SIDE = 1 << _BITS


class Runs:
    """Runs of the curve with the task that owns each.

    Parameters
    ----------
    tasks : int
    start : int64[runs]     code at which each run begins, ascending, the first 0
    loads : Loads           weight and price of each run

    Attributes
    ----------
    owner : int64[runs]
    """

    def __init__(self, tasks: int, start: Int64, loads: Loads):
        self.tasks, self.start, self.loads = tasks, start, loads
        self.owner = cut_in_order(loads.weight, tasks)

    @classmethod
    def of(cls, tasks: int, x: Float64, y: Float64) -> "Runs":
        """Those of a sample of places (float64[n] each), which weigh the same. O(n log n)."""
        codes = np.sort(codes_of(x, y))
        coarse = np.arange(1 << 2 * _COARSE_BITS) << 2 * (_BITS - _COARSE_BITS)
        fine = RUNS - coarse.shape[0]
        quantiles = codes[np.arange(fine if x.size else 0) * x.size // fine]
        start = np.unique(np.concatenate([coarse, quantiles]))
        return cls(tasks, start, loads_of(np.searchsorted(start, codes, side="right") - 1, start.shape[0]))

    def reweighed(self, seen: Int64, work: Sequence[int]) -> "Runs":
        """The same runs cut by measured work; see `distribution.parts.reweighed`."""
        return Runs(self.tasks, self.start, reweighed(self.loads, self.owner, seen, work))

    def run_of(self, x: Float64, y: Float64) -> Int64:
        """Run that each point of the unit square lies in. O(n log runs)."""
        return np.searchsorted(self.start, codes_of(x, y), side="right") - 1

    def owner_of(self, x: Float64, y: Float64) -> Int64:
        """Task whose part each point lies in. O(n log runs)."""
        return self.owner[self.run_of(x, y)]


def codes_of(x: Float64, y: Float64) -> Int64:
    """Place on the curve of each point; points outside count to the nearest at the border. O(n)."""
    codes = np.empty(x.shape[0], np.int64)
    _codes(np.ascontiguousarray(x, np.float64), np.ascontiguousarray(y, np.float64), codes)
    return codes


@njit(cache=True, nogil=True)
def _codes(x, y, codes):
    for i in range(x.shape[0]):
        codes[i] = _spread(_step(x[i])) | _spread(_step(y[i])) << 1


@njit(cache=True, nogil=True)
def _step(value):
    return min(max(np.int64(np.floor(value * _SIDE)), 0), _SIDE - 1)


@njit(cache=True, nogil=True)
def _spread(step):
    """The bits of a number below 2**20 at even places."""
    step = (step | step << 16) & 0x0000FFFF0000FFFF
    step = (step | step << 8) & 0x00FF00FF00FF00FF
    step = (step | step << 4) & 0x0F0F0F0F0F0F0F0F
    step = (step | step << 2) & 0x3333333333333333
    return (step | step << 1) & 0x5555555555555555
