"""Finds the messages or subscriptions that make a component raise, by replay outside the stream.

From the checkpoint to which the run has gone back, the topology is replayed in this process, batch by batch and without
output, until it raises again. That batch is then replayed with some of its messages, or of its subscriptions, in
quarantine, until it passes without the fewest. Only a message that fails in its own batch, or a subscription that fails
when it is added, is found; any other failure ends the run.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from matching.errors import EngineError
from spouts.quarantine import Quarantine
from topology.core.api.component import Saved
from topology.core.api.plan import Plan
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.store import CheckpointStore
from topology.core.executors.local import pause_local, run_local
from topology.core.failures import ComponentFailed

#: With more of one batch the search gives up.
MOST = 100
_ALL = 1 << 40


class Poison(NamedTuple):
    """Messages and subscriptions to quarantine: `batch` fails with them, by the error `cause`."""

    batch: int
    messages: list[int]
    subscriptions: list[int]
    cause: str


def find(
    build: Callable[[Quarantine], Plan], quarantine: Quarantine, saved: Saved | None, last_batch: int
) -> Poison | None:
    """Search for the messages or subscriptions at fault.

    Parameters
    ----------
    build : callable
        The topology, without output and without quarantined rows.
    quarantine : Quarantine
        Rows that are in it already.
    saved : Saved or None
        The checkpoint that the run has gone back to; None for its start.
    last_batch : int
        The last batch that had been published when it failed.

    Returns
    -------
    Poison or None
        None if nothing raises this time, or no row is at fault.

    Notes
    -----
    Replays the batches since the checkpoint once, then the failing batch about 2 log2(messages) times for each row.
    """
    with tempfile.TemporaryDirectory(prefix="skyray-poison-") as folder:
        store = CheckpointStore(str(Path(folder) / "checkpoints"))
        done = -1 if saved is None else saved.number
        checkpoints = Checkpoints(store, Cadence(batches=1), folder)

        def over() -> bool:
            return done + store.last_epoch() + 1 > last_batch

        try:
            run_local(build(quarantine), seed=0, stop=over, resume=saved, checkpoints=checkpoints)
            return None
        except ComponentFailed as failed:
            cause = str(failed).splitlines()[0]
        manifest = store.newest()
        before = saved if manifest is None else store.load(manifest)
        return _Search(build, quarantine, before, cause).run()


class _Search:
    """Replays one batch with different rows in quarantine."""

    def __init__(self, build: Callable[[Quarantine], Plan], quarantine: Quarantine, before: Saved | None, cause: str):
        self._build = build
        self._quarantine = quarantine
        self._before = before
        self._batch = 0 if before is None else before.number + 1
        self._cause = cause

    def run(self) -> Poison | None:
        first_seq, first_number = (0, 0) if self._before is None else _reached(self._before)
        passed = self._try(self._quarantine.with_more(messages=[(first_seq, _ALL)]))
        if passed is not None:
            faulty = self._faulty("messages", first_seq, _reached(passed)[0] - 1)
            return None if faulty is None else Poison(self._batch, faulty, [], self._cause)
        passed = self._try(self._quarantine.with_more(subscriptions=[(first_number, _ALL)]))
        if passed is None:
            return None
        faulty = self._faulty("subscriptions", first_number, _reached(passed)[1] - 1)
        return None if faulty is None else Poison(self._batch, [], faulty, self._cause)

    def _faulty(self, what: str, first: int, last: int) -> list[int] | None:
        """The fewest rows, if each fails by itself; the last one ends the shortest prefix whose quarantine passes."""
        found: list[int] = []
        while len(found) <= MOST:
            known = [(number, number) for number in found]
            if found and self._try(self._quarantine.with_more(**{what: known})) is not None:
                return sorted(found)
            low, high = first, last
            while low < high:
                middle = (low + high) // 2
                passes = self._try(self._quarantine.with_more(**{what: [(first, middle), *known]})) is not None
                low, high = (low, middle) if passes else (middle + 1, high)
            if low in found:
                return None
            found.append(low)
        return None

    def _try(self, quarantine: Quarantine) -> Saved | None:
        """The snapshots passed the batch without these rows; None if it still raises."""
        try:
            return pause_local(self._build(quarantine), self._batch, resume=self._before)
        except EngineError:
            return None


def _reached(saved: Saved) -> tuple[int, int]:
    """Next seq, and next number of a subscription."""
    return int(saved.single("messages")["next_seq"]), int(saved.single("subscriptions")["emitted"][0])
