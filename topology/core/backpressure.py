"""Credits: how many batches may be on their way at once.

The clock spout spends a credit for each batch it publishes and gets it back when every task of the acknowledging
components has said that the batch is done. With no credit left it publishes nothing, so what waits in front of a
slow bolt is bounded by the credits and memory stays flat; nobody else ever blocks. Read on in `topology.core.task`.
"""

from matching.errors import TopologyError


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

    Attributes
    ----------
    next_number : int
        The batch to be published next.
    published, acknowledged : int
        Batches of this run so far.
    peak : int
        The most that were in flight at once.
    """

    def __init__(self, limit: int, tasks: int, first: int = 0):
        self._limit = limit
        self._tasks = tasks
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
        """Whether another batch may be published."""
        return len(self._waiting) < self._limit

    def missing(self) -> dict[int, list[int]]:
        """For every batch in flight, the tasks that have not acknowledged it."""
        return {batch: sorted(set(range(self._tasks)) - said) for batch, said in self._waiting.items()}

    def publish(self) -> int:
        """Spend a credit; returns the number of the batch."""
        number = self.next_number
        self._waiting[number] = set()
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
            del self._waiting[batch]
            self.acknowledged += 1
