"""Credit-based flow control: how many batches may be in flight at once.

The clock spout spends a credit for each batch it publishes and gets it back when every task of the acknowledging
components has acknowledged the batch. Without a credit it publishes nothing, so queues in front of a slow bolt and
memory stay bounded; no other task ever blocks. Where payloads pass through a store of limited size, the bytes of the
batches in flight are bounded, too: a full store would spill to disk.
"""

from collections.abc import Sequence

from matching.errors import OverloadError, TopologyError

#: Size of a batch in the store, in multiples of what the clock spout emits: one copy for routing, one for matching,
#: one for the window, and one for updates.
_COPIES = 4
#: Fraction of the store that batches may fill: an object stays until its last reference is gone.
_FILLED = 0.8


class Credits:
    """The clock spout's account of batches in flight.

    Parameters
    ----------
    limit : int
        Batches that may be published and not yet acknowledged.
    tasks : int
        Number of acknowledging tasks, numbered from 0: all must acknowledge each batch.
    first : int
        Number of the first batch, above 0 where a run is resumed.
    store_bytes : int, optional
        Size of the object store; None: there is none, or it is unlimited.

    Attributes
    ----------
    next_number : int
        The batch to be published next.
    published, acknowledged : int
        Batches of this run so far.
    peak : int
        The most that were in flight at once.
    """

    def __init__(self, limit: int, tasks: int, first: int = 0, store_bytes: int | None = None):
        self._limit = limit
        self._tasks = tasks
        self._store_bytes = store_bytes
        self._capacity_bytes = float("inf") if store_bytes is None else store_bytes * _FILLED / _COPIES
        self._size_bytes: dict[int, int] = {}
        self._largest_bytes = 0
        self._unfinished: dict[int, set[int]] = {}
        self.next_number = first
        self.published = 0
        self.acknowledged = 0
        self.peak = 0

    @property
    def in_flight(self) -> int:
        """Batches published and not yet acknowledged."""
        return len(self._unfinished)

    @property
    def available(self) -> bool:
        """Whether another batch may be published: the store must have capacity for one like the largest so far."""
        if not self._unfinished:
            return True
        in_flight_bytes = sum(self._size_bytes.values())
        return len(self._unfinished) < self._limit and in_flight_bytes + self._largest_bytes <= self._capacity_bytes

    def missing(self) -> dict[int, list[int]]:
        """For every batch in flight, the tasks that have not acknowledged it."""
        return {
            batch: sorted(set(range(self._tasks)) - acknowledged_by)
            for batch, acknowledged_by in self._unfinished.items()
        }

    def unacknowledged(self, names: Sequence[str]) -> str:
        """Batches that lack acknowledgements, as text; empty if there is none. `names` are those of the tasks."""
        missing = self.missing()
        if not missing:
            return ""
        listed = [f"{batch} by {', '.join(names[place] for place in places)}" for batch, places in missing.items()]
        more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
        return f"batch {'; batch '.join(listed[:4])}{more}"

    def publish(self, size_bytes: int = 0) -> int:
        """Spend a credit on a batch of `size_bytes`; returns the number of the batch.

        Raises
        ------
        OverloadError
            For a batch that exceeds the capacity of the store.
        """
        number = self.next_number
        if size_bytes > self._capacity_bytes:
            raise OverloadError(
                f"batch {number} has {size_bytes / 1e6:,.1f} MB, and the object store, through which it goes in up to "
                f"{_COPIES} copies, has {(self._store_bytes or 0) / 1e6:,.1f} MB: make batches smaller (--batch), or "
                "start Ray with more (--object-store-memory)"
            )
        self._unfinished[number] = set()
        self._size_bytes[number] = size_bytes
        self._largest_bytes = max(self._largest_bytes, size_bytes)
        self.next_number += 1
        self.published += 1
        self.peak = max(self.peak, len(self._unfinished))
        return number

    def acknowledge(self, batch: int, task: int) -> None:
        """Record the acknowledgement of a batch by a task; the last one returns the credit.

        Raises
        ------
        TopologyError
            For a batch that is not in flight, or a second acknowledgement by a task.
        """
        acknowledged_by = self._unfinished.get(batch)
        if acknowledged_by is None:
            state = "has all its acknowledgements already" if batch < self.next_number else "was never published"
            raise TopologyError(f"task {task} acknowledged batch {batch}, which {state}: acknowledge each batch once")
        if task in acknowledged_by:
            raise TopologyError(f"task {task} acknowledged batch {batch} twice: acknowledge each batch once")
        acknowledged_by.add(task)
        if len(acknowledged_by) == self._tasks:
            del self._unfinished[batch], self._size_bytes[batch]
            self.acknowledged += 1
