"""Who is at fault when a component raises: found by trying again, outside the stream.

From the checkpoint to which the run has gone back, the topology goes on in this process, batch by batch and writing
nothing, until it raises again: the batch at fault. That batch is then tried with some of its messages, or of the
subscriptions that come with it, set aside, until those are known without which it passes. Only a message at fault in
its own batch, or a subscription at fault when it is added, is found; anything else ends the run. Used by
`topology.running`.
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

#: More of one batch than this are no accident.
MOST = 100
_EVERYBODY = 1 << 40


class Poison(NamedTuple):
    """Who is set aside: `batch` cannot be worked on with them, because of `cause`."""

    batch: int
    messages: list[int]
    subscriptions: list[int]
    cause: str


def find(build: Callable[[Quarantine], Plan], aside: Quarantine, saved: Saved | None, last_batch: int) -> Poison | None:
    """Look for who is at fault.

    Parameters
    ----------
    build : callable
        The topology, writing nothing, without those set aside.
    aside : Aside
        Those that are already.
    saved : Saved or None
        Where the run has gone back to; None for its start.
    last_batch : int
        The last batch that had been published when it failed.

    Returns
    -------
    Poison or None
        None if nothing raises this time, or nobody can be named.

    Notes
    -----
    Replays the batches since the checkpoint once, then the batch at fault about 2 log2(messages) times for each one.
    """
    with tempfile.TemporaryDirectory(prefix="skyray-poison-") as folder:
        store = CheckpointStore(str(Path(folder) / "checkpoints"))
        done = -1 if saved is None else saved.number
        checkpoints = Checkpoints(store, Cadence(batches=1), folder)

        def over() -> bool:
            return done + store.last_epoch() + 1 > last_batch

        try:
            run_local(build(aside), seed=0, stop=over, resume=saved, checkpoints=checkpoints)
            return None
        except ComponentFailed as failed:
            cause = str(failed).splitlines()[0]
        manifest = store.newest()
        before = saved if manifest is None else store.load(manifest)
        return _Search(build, aside, before, cause).run()


class _Search:
    """One batch, tried again and again."""

    def __init__(self, build: Callable[[Quarantine], Plan], aside: Quarantine, before: Saved | None, cause: str):
        self._build = build
        self._aside = aside
        self._before = before
        self._batch = 0 if before is None else before.number + 1
        self._cause = cause

    def run(self) -> Poison | None:
        first_seq, first_number = (0, 0) if self._before is None else _reached(self._before)
        behind = self._try(self._aside.with_more(messages=[(first_seq, _EVERYBODY)]))
        if behind is not None:
            guilty = self._guilty("messages", first_seq, _reached(behind)[0] - 1)
            return None if guilty is None else Poison(self._batch, guilty, [], self._cause)
        behind = self._try(self._aside.with_more(subscriptions=[(first_number, _EVERYBODY)]))
        if behind is None:
            return None
        guilty = self._guilty("subscriptions", first_number, _reached(behind)[1] - 1)
        return None if guilty is None else Poison(self._batch, [], guilty, self._cause)

    def _guilty(self, what: str, first: int, last: int) -> list[int] | None:
        """The fewest, if each is at fault by itself: the last of them is where the shortest prefix that passes ends."""
        found: list[int] = []
        while len(found) <= MOST:
            known = [(number, number) for number in found]
            if found and self._try(self._aside.with_more(**{what: known})) is not None:
                return sorted(found)
            low, high = first, last
            while low < high:
                middle = (low + high) // 2
                passes = self._try(self._aside.with_more(**{what: [(first, middle), *known]})) is not None
                low, high = (low, middle) if passes else (middle + 1, high)
            if low in found:
                return None
            found.append(low)
        return None

    def _try(self, aside: Quarantine) -> Saved | None:
        """The boundary behind the batch without these, None if it raises all the same."""
        try:
            return pause_local(self._build(aside), self._batch, resume=self._before)
        except EngineError:
            return None


def _reached(saved: Saved) -> tuple[int, int]:
    """Next seq, and next number of a subscription."""
    return int(saved.single("messages")["next_seq"]), int(saved.single("subscriptions")["told"][0])
