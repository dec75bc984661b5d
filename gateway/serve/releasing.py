"""The topology's updates as boundaries, each released once it is complete.

Updates of a boundary come in any order, some late, and again after a failure. A boundary is released once the watermark
(`through`) of all delivery tasks has reached it: its updates are sorted by subscription id, then leaves, matches,
enters, then seq. So the place of an update in its boundary, which is its id, depends on neither incarnations, executor
nor numbers of tasks. Of one id that order is the order of succession too: what leaves was in the result at the boundary
before, and what enters is of the subscription that is active at the end.

An incarnation begins from a checkpoint, and publishes what is later. What is earlier was published before the
checkpoint was made, but a socket may not have been read so far: so what an incarnation publishes first waits for it.
From then on updates of older incarnations are dropped.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from bolts.publishing import PublishedUpdates
from gateway.live.in_flight import InFlight
from gateway.live.update_listener import UpdateInlet
from gateway.serve.released import RANKS, Released, UpdateColumns, in_order
from matching.model import CHANGES

#: Bytes of updates that are not released, beyond which no more batches are taken.
MOST_PENDING_BYTES = 64 * 2**20
_RANK_OF_CODE = np.array([RANKS[change] for change in CHANGES], np.int8)


class Releaser:
    """Collects what a topology publishes while the block lasts, and releases boundaries in order.

    Parameters
    ----------
    in_flight : InFlight
        Advanced to each watermark.
    ends : sequence of int
        The last seq of each boundary; grows.
    durable : callable
        Seq of the last message that is on disk, boundaries behind which are held; `settle` is called when it has grown.
    deliver : callable
        Takes released boundaries with updates, and the seq up to which all boundaries are released; called by the
        thread that publishes, or by that of `settle`, one at a time.
    in_process, threaded : bool
        As of `gateway.live.update_listener.UpdateInlet`.

    Attributes
    ----------
    released : int
        The seq up to which all boundaries are released. What an incarnation publishes again up to here is dropped.
    updates : int
        Number released by this process.
    failure : Exception or None
        The first error of `deliver`; nothing is released after it.

    Notes
    -----
    Memory: some 40 bytes for each update of the batches in flight, and the ids of their subscriptions. Beyond
    `MOST_PENDING_BYTES` no more batches should be taken: what is added then is of those in flight.
    """

    def __init__(
        self,
        in_flight: InFlight,
        ends: Sequence[int],
        durable: Callable[[], int],
        deliver: Callable[[list[Released], int], None],
        in_process: bool = False,
        threaded: bool = False,
    ):
        self.released = -1
        self.updates = 0
        self.failure: BaseException | None = None
        self.in_flight = in_flight
        self._ends = ends
        self._durable = durable
        self._deliver = deliver
        self._inlet = UpdateInlet(self.take, in_process, threaded)
        self._pending: list[UpdateColumns] = []
        self._incarnation, self._through = -1, -2
        self._through_of: dict[int, int] = {}  # of the tasks of this incarnation that have published
        self._collected = -1  # what is published up to this watermark is here
        self._changed = threading.Condition()

    @property
    def pending_bytes(self) -> int:
        """Of the updates that are not released; for any thread."""
        return sum(one.size_bytes for one in tuple(self._pending))

    @property
    def address(self) -> str:
        """What the topology publishes to."""
        return self._inlet.address

    def __enter__(self) -> Self:
        self._inlet.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._inlet.__exit__()

    def resume(self, through: int) -> None:
        """Start behind a checkpoint: the updates up to this seq were released by an earlier process."""
        self.released = self._collected = through

    def take(self, published: PublishedUpdates) -> None:
        """Take what is published, unless by an older incarnation, and release what is complete."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_older(published) or published.since <= self._collected)
            if self._is_older(published):
                return
            if published.incarnation > self._incarnation:
                self._incarnation, self._collected = published.incarnation, published.since
                self._through, self._through_of = -2, {}
                self._pending, _ = _split(self._pending, published.since)  # all behind it is published again
            self._through_of[published.task] = published.through
            if len(self._through_of) == published.tasks:
                self._through = min(self._through_of.values())
            self._collect(published)
            self._release()
            self._collected = max(self._collected, self._through)
            self.in_flight.advance(self._through)
            self._changed.notify_all()

    def settle(self) -> None:
        """Release what is complete and has become durable; for any thread."""
        with self._changed:
            self._release()

    def reached(self, incarnation: int) -> int:
        """The seq up to which all is released that this incarnation, or a later one, publishes; -2 before its first."""
        with self._changed:
            return min(self._through, self.released) if self._incarnation >= incarnation else -2

    def _is_older(self, published: PublishedUpdates) -> bool:
        return published.incarnation < self._incarnation

    def _collect(self, published: PublishedUpdates) -> None:
        as_of = published.as_of
        is_new = as_of > self.released
        new = np.count_nonzero(is_new)  # a fifth of the time of `any`
        if not new:
            return
        ranks, boundary = _RANK_OF_CODE[published.change], boundaries_of(self._ends, as_of)
        offsets, data = (
            pa.py_buffer(each) for each in (published.names.offsets.astype(np.int32), published.names.data)
        )
        names = pa.StringArray.from_buffers(len(published.names.offsets) - 1, offsets, data)  # two may be the same
        found = UpdateColumns(names, published.who, ranks, published.seq, as_of, published.score, boundary)
        self._pending.append(found if new == len(as_of) else found.where(is_new))

    def _release(self) -> None:
        through = min(self._through, self._durable())
        if through <= self.released or self.failure is not None:
            return
        try:
            complete, self._pending = _split(self._pending, through)
            found = [in_order(complete)] if complete else []
            self._deliver(found, through)
            self.updates += sum(len(one.boundary) for one in found)
            self.released = through
        except BaseException as error:
            self.failure = error  # the driver raises it


def _split(pending: Sequence[UpdateColumns], through: int) -> tuple[list[UpdateColumns], list[UpdateColumns]]:
    """The updates of boundaries up to one, and those of later ones."""
    early, late = [], []
    for one in pending:
        is_early = one.boundary <= through
        count = np.count_nonzero(is_early)
        if count in (0, len(is_early)):
            (early if count else late).append(one)
        else:
            early.append(one.where(is_early))
            late.append(one.where(~is_early))
    return early, late


def boundaries_of(ends: Sequence[int], as_of: np.ndarray) -> np.ndarray:
    """The last seq of the boundary that each of some seqs belongs to, int64[n]; another thread may append to `ends`."""
    if as_of.shape[0] == 1:  # as in most small batches
        return np.array([ends[bisect_left(ends, int(as_of[0]))]], np.int64)
    first, last = (bisect_left(ends, int(each)) for each in (as_of.min(), as_of.max()))
    near = np.array(ends[first : last + 1], np.int64)
    return near[np.searchsorted(near, as_of)]
