"""Living versions of a stream of objects in runs, so that a checkpoint writes only what is new.

Versions lie in the order of the stream, in runs each at most half as long as the one before (a log-structured merge
tree). A run has the same versions as long as it exists, so its columns are a fragment of a checkpoint that is written
once; only which of them live is saved each time, a bit a version. Where fewer than half live, the others are dropped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from matching.model import Int64

Bools = NDArray[np.bool_]
Columns = TypeVar("Columns")


class VersionRun(Generic[Columns]):
    """Versions in ascending seq, and which of them live; `number` is never used twice."""

    __slots__ = ("columns", "lives", "living", "number", "seq")

    def __init__(self, number: int, seq: Int64, columns: Columns, lives: Bools):
        self.number = number
        self.seq = seq
        self.columns = columns
        self.lives = lives  # bool[n]
        self.living = int(np.count_nonzero(lives))

    def __len__(self) -> int:
        return self.seq.shape[0]


class LivingRuns(Generic[Columns]):
    """The runs of one table.

    Parameters
    ----------
    take : callable    returns the columns of some rows (int64[n], ascending)
    join : callable    returns the columns of several runs behind each other

    Attributes
    ----------
    runs : list of VersionRun    in the order of the stream

    Notes
    -----
    O(log versions) copies of a version over its life. Runs have at most twice as many versions as live.
    """

    def __init__(self, take: Callable[[Columns, Int64], Columns], join: Callable[[Sequence[Columns]], Columns]):
        self._take, self._join = take, join
        self.runs: list[VersionRun[Columns]] = []
        self._made = 0

    def append(self, seq: Int64, columns: Columns) -> None:
        """Add versions behind all others (int64[n], ascending). Amortised O(n log versions)."""
        if not seq.shape[0]:
            return
        run = self._made_of(seq, columns)
        while self.runs and len(self.runs[-1]) < 2 * len(run):
            earlier = self.runs.pop()
            parts = [each if each.living == len(each) else self._compacted(each) for each in (earlier, run)]
            parts = [part for part in parts if len(part)]
            run = self._made_of(np.concatenate([part.seq for part in parts]), self._join([p.columns for p in parts]))
        self.runs.append(run)

    def end(self, seqs: Int64) -> list[Columns]:
        """Note that versions (ascending) live no more; returns the columns of those that lived here, run by run.

        O(n log versions), amortised.
        """
        parts = []
        for run in self.runs:
            cut = seqs[slice(*np.searchsorted(seqs, [run.seq[0], run.seq[-1] + 1]).tolist())]
            if cut.shape[0]:
                rows = np.searchsorted(run.seq, cut)
                rows = rows[(run.seq[rows] == cut) & run.lives[rows]]
                parts.append(self._take(run.columns, rows))
                run.lives[rows] = False
                run.living -= rows.shape[0]
        self.runs = [self._compacted(run) if 2 * run.living < len(run) else run for run in self.runs if run.living]
        return parts

    def state(self, next_seq: int) -> dict[str, np.ndarray]:
        """Which versions of each run live, a bit each, as of the boundary before `next_seq`. O(versions)."""
        state: dict[str, np.ndarray] = {"runs": np.array([self._made, next_seq], np.int64)}
        for run in self.runs:
            lives = run.lives if run.seq[-1] < next_seq else run.lives & (run.seq < next_seq)
            state[f"{run.number}:lives"] = np.packbits(lives)
        return state

    def restore(self, state: Mapping[str, np.ndarray], runs: Iterable[tuple[int, Int64, Columns]]) -> None:
        """Load what `state` returned; `runs` are number, seqs and columns of each. O(versions)."""
        self.runs = []
        self._made, next_seq = state["runs"].tolist()
        for number, seq, columns in sorted(runs, key=lambda one: int(one[1][0])):
            lives = np.unpackbits(state[f"{number}:lives"], count=seq.shape[0]).astype(np.bool_)
            run = VersionRun(number, seq, columns, lives)
            if run.living:  # versions behind the boundary come again
                self.runs.append(self._compacted(run) if seq[-1] >= next_seq else run)

    def _made_of(self, seq: Int64, columns: Columns) -> VersionRun[Columns]:
        self._made += 1
        return VersionRun(self._made - 1, seq, columns, np.ones(seq.shape[0], np.bool_))

    def _compacted(self, run: VersionRun[Columns]) -> VersionRun[Columns]:
        """The run without versions that live no more."""
        rows = np.flatnonzero(run.lives)
        return self._made_of(run.seq[rows], self._take(run.columns, rows))
