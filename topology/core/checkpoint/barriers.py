"""Markers: how all tasks save themselves at one boundary while the topology runs.

The clock spout sends a marker behind a batch, where its end would go, and publishes nothing more. A task that has the
marker from everybody on its forward edges has taken every batch up to there; once it is quiet as well it copies its
state, hands the marker on, and says so to the clock, which goes on when all have. So plain state is copied, no queue
and no request, and the stream stands still for the drain of what is in flight and the longest copy. What is copied is
written behind the stream (`topology.core.checkpoint.store`).

Tasks tell the clock and not the driver, who asks four times a second only: the stream would stand still for that long.
"""

from collections.abc import Collection
from typing import NamedTuple

from matching.errors import TopologyError


class Barrier(NamedTuple):
    """A checkpoint: its `epoch` counts them, `number` is the last batch it covers."""

    epoch: int
    number: int


class Cadence(NamedTuple):
    """How often the stream is marked: once one of the two has passed. Both None: never."""

    seconds: float | None = None
    batches: int | None = None

    @property
    def never(self) -> bool:
        return self.seconds is None and self.batches is None


class BarrierAligner:
    """The part of every other task: which markers of a checkpoint it has.

    Parameters
    ----------
    sources : collection of int
        Addresses of all tasks on forward edges into this one.
    """

    def __init__(self, sources: Collection[int]):
        self._sources = frozenset(sources)
        self.mark: Barrier | None = None
        self.missing: set[int] = set()

    @property
    def complete(self) -> bool:
        """Whether all markers are here."""
        return self.mark is not None and not self.missing

    def take(self, sender: int, mark: Barrier) -> None:
        """A marker has come. Raises TopologyError for one that does not belong to those before."""
        if self.mark is None:
            self.mark = mark
            self.missing = set(self._sources)
        if mark != self.mark or sender not in self.missing:
            raise TopologyError(f"{mark} came, where {self.mark} is awaited from {sorted(self.missing)}")
        self.missing.discard(sender)

    def pop(self) -> Barrier:
        """The checkpoint all of whose markers are here; the next one may come."""
        mark, self.mark = self.mark, None
        assert mark is not None, "complete says whether there is one"
        return mark


class BarrierInjector:
    """The clock spout's part: when a marker is due, and who has not copied yet.

    Parameters
    ----------
    cadence : Cadence
    others : collection of int
        Addresses of all tasks that take part, but the clock's own.
    epoch : int
        Of the next marker.
    number : int
        The last batch that is saved already, -1 if none is.
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
        self._empty = 0  # batches at the end of what was published that had nothing in them

    @property
    def awaited(self) -> Collection[int]:
        """Who has not copied yet; nobody if no marker is on its way."""
        return self._missing

    @property
    def waits(self) -> bool:
        """Whether nothing may be published."""
        return bool(self._missing)

    @property
    def writing(self) -> bool:
        """Whether the last epoch has not been committed, nor given up: no other may begin."""
        return self._writing

    def published(self, empty: bool) -> None:
        """Another batch has been; while a live stream has but empty ones, nothing is saved again."""
        self._empty = self._empty + 1 if empty else 0

    def due(self, last: int, now_s: float, stopping: bool = False) -> bool:
        """Whether to mark the stream behind batch `last`, the last one published."""
        if self._cadence.never or self._writing or self._missing or last - self._empty <= self._number:
            return False
        seconds, batches = self._cadence
        passed = (seconds is not None and now_s - self._began_s >= seconds) or (
            batches is not None and last - self._number >= batches
        )
        return passed or stopping

    def begin(self, last: int, now_s: float) -> Barrier:
        """Mark the stream behind batch `last`."""
        mark = Barrier(self._epoch, last)
        self._epoch += 1
        self._number, self._began_s, self._empty = last, now_s, 0
        self._missing = set(self._others)
        self._writing = True
        return mark

    def copied(self, address: int, epoch: int) -> bool:
        """A task has copied; False if that was not awaited."""
        if epoch != self._epoch - 1 or address not in self._missing:
            return False
        self._missing.discard(address)
        return True

    def settled(self, epoch: int) -> None:
        """An epoch has been committed, or given up."""
        if epoch == self._epoch - 1:
            self._writing = False
