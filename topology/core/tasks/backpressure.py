"""Credits: how many batches may be on their way at once.

The clock spout spends a credit for each batch it publishes and gets it back when every task of the acknowledging
components has said that the batch is done. With no credit left it publishes nothing, so what waits in front of a
slow bolt is bounded by the credits and memory stays flat; nobody else ever blocks. Where payloads wait in a store of
limited size, batches in flight are bounded by what they weigh, too: a store that is full would move to disk what was to
be fast. Read on in `topology.core.tasks.task`.
"""

from collections.abc import Sequence

from matching.errors import OverloadError, TopologyError

#: What a batch may take up in the store, in multiples of what the clock spout emits: whole for those who route it, for
#: those who match it and for those who keep it, and once more for what is told.
_COPIES = 4
#: Share of the store that batches may fill: objects lie in it until all have let go of them.
_FILLED = 0.8


class Credits:
    """The clock spout's account of batches in flight.

    Parameters
    ----------
    limit : int
        Batches that may be published and not yet acknowledged.
    tasks : int
        How many acknowledge: all must, for each batch. They are known by number, from 0.
    first : int
        Number of the first batch, above 0 where an earlier run is continued.
    store_bytes : int, optional
        Size of the store through which payloads go; None: there is none, or it has no end.

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
        self._room_bytes = float("inf") if store_bytes is None else store_bytes * _FILLED / _COPIES
        self._size_bytes: dict[int, int] = {}
        self._largest_bytes = 0
        self._waiting: dict[int, set[int]] = {}
        self.next_number = first
        self.published = 0
        self.acknowledged = 0
        self.peak = 0

    @property
    def in_flight(self) -> int:
        """Batches published and not yet acknowledged."""
        return len(self._waiting)

    @property
    def available(self) -> bool:
        """Whether another batch may be published: one like the largest so far must find room beside those in flight."""
        if not self._waiting:
            return True
        in_flight_bytes = sum(self._size_bytes.values())
        return len(self._waiting) < self._limit and in_flight_bytes + self._largest_bytes <= self._room_bytes

    def missing(self) -> dict[int, list[int]]:
        """For every batch in flight, the tasks that have not acknowledged it."""
        return {batch: sorted(set(range(self._tasks)) - said) for batch, said in self._waiting.items()}

    def unacknowledged(self, names: Sequence[str]) -> str:
        """Batches that not all have acknowledged, in words; empty if there is none. `names` of those who do."""
        missing = self.missing()
        if not missing:
            return ""
        listed = [f"{batch} by {', '.join(names[place] for place in places)}" for batch, places in missing.items()]
        more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
        return f"batch {'; batch '.join(listed[:4])}{more}"

    def publish(self, size_bytes: int = 0) -> int:
        """Spend a credit on a batch of so many bytes; returns the number of the batch.

        Raises
        ------
        OverloadError
            For a batch that the store has no room for.
        """
        number = self.next_number
        if size_bytes > self._room_bytes:
            raise OverloadError(
                f"batch {number} has {size_bytes / 1e6:,.1f} MB, and the object store, through which it goes in up to "
                f"{_COPIES} copies, has {(self._store_bytes or 0) / 1e6:,.1f} MB: make batches smaller (--batch), or "
                "start Ray with more (--object-store-memory)"
            )
        self._waiting[number] = set()
        self._size_bytes[number] = size_bytes
        self._largest_bytes = max(self._largest_bytes, size_bytes)
        self.next_number += 1
        self.published += 1
        self.peak = max(self.peak, len(self._waiting))
        return number

    def acknowledge(self, batch: int, task: int) -> None:
        """Note that a task is done with a batch; the last one gives the credit back.

        Raises
        ------
        TopologyError
            For a batch that is not in flight, or a task that has said so before.
        """
        said = self._waiting.get(batch)
        if said is None:
            state = "has all its acknowledgements already" if batch < self.next_number else "was never published"
            raise TopologyError(f"task {task} acknowledged batch {batch}, which {state}: acknowledge each batch once")
        if task in said:
            raise TopologyError(f"task {task} acknowledged batch {batch} twice: acknowledge each batch once")
        said.add(task)
        if len(said) == self._tasks:
            del self._waiting[batch], self._size_bytes[batch]
            self.acknowledged += 1
