"""Barriers: how all tasks take snapshots at one boundary while the topology runs.

The clock spout sends a barrier behind a batch, along its forward edges, and stops publishing. A task with the barriers
of all its forward edges has taken every batch up to there; once it is quiet it copies its state, passes the barrier on,
and reports to the clock, which resumes when all tasks have. So a snapshot contains plain state, no queue and no request
(as Flink's aligned checkpoints), and the stream pauses for the drain of batches in flight and the longest copy. A
thread writes snapshots while the stream continues (`topology.core.checkpoint.store`).

Tasks report to the clock and not to the driver, which polls four times a second only: the pause would be as long.
"""

from collections.abc import Collection
from typing import NamedTuple

from matching.errors import TopologyError


class Barrier(NamedTuple):
    """A checkpoint: its `epoch` counts them, `number` is the last batch it covers, `committed` the newest epoch of this
    incarnation that is committed, -1 if none."""

    epoch: int
    number: int
    committed: int = -1


class Cadence(NamedTuple):
    """How often a barrier is injected: once one of the two has passed. Both None: never."""

    seconds: float | None = None
    batches: int | None = None

    @property
    def never(self) -> bool:
        return self.seconds is None and self.batches is None


class BarrierAligner:
    """The part of every other task: which barriers of a checkpoint have arrived.

    Parameters
    ----------
    sources : collection of int
        Addresses of all tasks on forward edges into this one.
    """

    def __init__(self, sources: Collection[int]):
        self._sources = frozenset(sources)
        self.barrier: Barrier | None = None
        self.missing: set[int] = set()

    @property
    def complete(self) -> bool:
        """Whether all barriers have arrived."""
        return self.barrier is not None and not self.missing

    def take(self, sender: int, barrier: Barrier) -> None:
        """Take a barrier. Raises TopologyError for one of another checkpoint, or a second one of a sender."""
        if self.barrier is None:
            self.barrier = barrier
            self.missing = set(self._sources)
        if barrier != self.barrier or sender not in self.missing:
            raise TopologyError(f"{barrier} came, where {self.barrier} is awaited from {sorted(self.missing)}")
        self.missing.discard(sender)

    def pop(self) -> Barrier:
        """Remove and return the complete barrier."""
        barrier, self.barrier = self.barrier, None
        assert barrier is not None, "complete says whether there is one"
        return barrier


class BarrierInjector:
    """The clock spout's part: when a barrier is due, and which tasks have not copied yet.

    Parameters
    ----------
    others : collection of int
        Addresses of all tasks that take part, but the clock's own.
    epoch : int
        Of the next barrier.
    number : int
        The last batch that a checkpoint covers, -1 if none.
    now_s : float
        A clock that never jumps.
    """

    def __init__(self, cadence: Cadence, others: Collection[int], epoch: int, number: int, now_s: float):
        self._cadence = cadence
        self._others = frozenset(others)
        self._missing: set[int] = set()
        self._epoch = epoch
        self._number = number
        self._began_s = now_s
        self._writing = False
        self._committed = -1
        self._empty = 0  # batches at the end of what was published that had nothing in them

    @property
    def awaited(self) -> Collection[int]:
        """Tasks that have not copied yet; empty if no barrier is in flight."""
        return self._missing

    @property
    def waits(self) -> bool:
        """Whether nothing may be published."""
        return bool(self._missing)

    @property
    def writing(self) -> bool:
        """Whether the last epoch is neither committed nor abandoned: no other may begin."""
        return self._writing

    def published(self, empty: bool) -> None:
        """Count a published batch; while a live stream has empty ones only, no checkpoint is due."""
        self._empty = self._empty + 1 if empty else 0

    def due(self, last: int, now_s: float, stopping: bool = False) -> bool:
        """Whether to inject a barrier behind batch `last`, the last one published."""
        if self._cadence.never or self._writing or self._missing or last - self._empty <= self._number:
            return False
        seconds, batches = self._cadence
        passed = (seconds is not None and now_s - self._began_s >= seconds) or (
            batches is not None and last - self._number >= batches
        )
        return passed or stopping

    def begin(self, last: int, now_s: float) -> Barrier:
        """The barrier behind batch `last`."""
        barrier = Barrier(self._epoch, last, self._committed)
        self._epoch += 1
        self._number, self._began_s, self._empty = last, now_s, 0
        self._missing = set(self._others)
        self._writing = True
        return barrier

    def copied(self, address: int, epoch: int) -> bool:
        """Record that a task has copied; False if that was not awaited."""
        if epoch != self._epoch - 1 or address not in self._missing:
            return False
        self._missing.discard(address)
        return True

    def settled(self, epoch: int, committed: int) -> None:
        """An epoch was committed or abandoned; `committed` is the newest one that was committed."""
        if epoch == self._epoch - 1:
            self._writing = False
            self._committed = committed
