"""One side of a comparison: a process inside one checkout, which takes its turns when it is told to.

    python -P driver.py CASE_FOLDER ADAPTER     with the checkout as current folder and on `PYTHONPATH`

It must run in any checkout, so it knows nothing of the project but the tables of `matching.model`, `Boundary` and
`Window`: everything else is the adapter's, `rooms.py` or `streams.py` beside this file. All subscriptions and the
window are in before the first turn, by empty batches that bring some thousand subscriptions each, so that what is kept
of them comes by refills as in a run. Each line on standard input (the number of a round) is one turn; each answer is a
line of JSON on standard output. What is timed is the processing of batches that lie in memory, no more.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

#: Subscriptions that come together while the window is filled.
_CHUNK = 20_000
_NO_FLOOR = -(2**62)
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class Batch(NamedTuple):
    """What an adapter processes: `boundary`, `messages`, `ended` and `added` are the checkout's own tables."""

    boundary: Any
    messages: Any
    ended: Any
    added: Any


class Side:
    """A case and the room, or topology, that processes it.

    Parameters
    ----------
    folder : Path         what `benchmarks.against.cases` wrote
    adapter : mapping     the names that the adapter defines: `open_room(case)`, which returns a function from a `Batch`
                          to updates, and `run_topology(case, batches, table)`
    """

    def __init__(self, folder: Path, adapter: dict[str, Any]):
        from matching.model import MessageBatch, SubscriptionTable, empty
        from matching.window import Boundary, Window

        self.case: dict[str, Any] = json.loads((folder / "case.json").read_text())
        self.boundary_of: Any = Boundary
        self.window = Window("count", self.case["span"])
        self.messages: Any = _read(folder, "messages", MessageBatch)
        self.table: Any = _read(folder, "table", SubscriptionTable)
        self.ends = np.load(folder / "ends.npy")
        self.nobody: Any = empty(SubscriptionTable)
        self.adapter = adapter
        self.number = 0
        if not self.case["topology"]:
            self.process = adapter["open_room"](self.case)
            self._fill()

    def turn(self, number: int) -> dict[str, Any]:
        """One round: seconds of the timed part, how many updates, and their digest."""
        if self.case["topology"]:
            return self.adapter["run_topology"](self.case, self._cut_whole(), self.table)
        size = self.case["part"]
        first = self.case["filled"] + (number * size if self.case["window"] else 0)
        digest, updates, seconds = 0, 0, 0.0
        for _ in range(self.case["passes"]):
            for start in range(first, first + size, self.case["batch"]):
                batch = self._batch(start, min(start + self.case["batch"], first + size), self.nobody)
                begun = perf_counter()
                told = self.process(batch)
                seconds += perf_counter() - begun
                digest, updates = (digest + digest_of(told)) % 2**64, updates + told[0].shape[0]
        return {"seconds": seconds, "digest": f"{digest:016x}", "updates": updates}

    def _fill(self) -> None:
        """The window, then the subscriptions."""
        filled = self.case["filled"]
        if self.case["window"]:
            # two steps, so that the room sees a window of this length and not a sudden batch
            self.process(self._batch(0, 0, self.nobody))
            self.process(self._batch(0, filled, self.nobody))
        for first in range(0, len(self.table), _CHUNK):
            rows = np.arange(first, min(first + _CHUNK, len(self.table)))
            self.process(self._batch(filled, filled, self.table.take(rows)))

    def _batch(self, first: int, end: int, added: Any) -> Batch:
        """The next batch: messages from `first` to before `end`, and those that they end."""
        floor = self.window.floor(end - 1, 0) if end else _NO_FLOOR
        boundary = self.boundary_of(self.number, first, end - 1, floor)
        self.number += 1
        ends = self.ends[first:end]
        ended = self.messages.take(np.sort(ends[ends >= 0]))
        return Batch(boundary, self.messages.take(np.arange(first, end)), ended, added)

    def _cut_whole(self) -> list[tuple[Any, Any]]:
        """All messages in batches, from boundary 0 on."""
        cut = []
        for number, first in enumerate(range(0, len(self.messages), self.case["batch"])):
            part = self.messages.take(np.arange(first, min(first + self.case["batch"], len(self.messages))))
            last = int(part.seq[-1])
            cut.append((self.boundary_of(number, first, last, self.window.floor(last, 0)), part))
        return cut


def digest_of(updates: Any) -> int:
    """A number of updates, the same in whatever order they come. O(n).

    Parameters
    ----------
    updates : columns    as_of, number, seq int64[n], change int8[n], score float64[n] (of a match not a number)
    """
    as_of, number, seq, change, score = updates
    mixed = np.zeros(as_of.shape[0], np.uint64)
    score = np.where(np.isnan(score), 0.0, score) + 0.0
    for column in (as_of, number, seq, change.astype(np.int64), score.view(np.int64)):
        mixed ^= np.ascontiguousarray(column, np.int64).view(np.uint64)
        for shift, factor in zip((30, 27, 31), _MIX, strict=True):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return int(mixed.sum(dtype=np.uint64))


def _read(folder: Path, name: str, table: Any) -> Any:
    return table(**{column: np.load(folder / f"{name}.{column}.npy") for column in table._fields})


def main() -> int:
    """Take turns until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is written goes to standard error
    folder, adapter = Path(sys.argv[1]), Path(__file__).with_name(sys.argv[2])

    def answer(report: dict[str, Any]) -> None:
        answers.write(json.dumps(report) + "\n")
        answers.flush()

    begun = perf_counter()
    side = Side(folder, runpy.run_path(str(adapter)))
    import matching

    answer({"loaded_s": perf_counter() - begun, "checkout": str(Path(str(matching.__file__)).parents[1])})
    for line in sys.stdin:
        answer(side.turn(int(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
