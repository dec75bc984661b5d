"""Queue of a worker's parcels: delivers the oldest, or with a seed a random one of those that are first on their link.

The order from one task to another is always kept. With a seed the interleaving of links is random, some are starved now
and then for a long stretch, and the clock spout may publish before a mailbox is empty, so that a test sees
interleavings that real runs show once a month.
"""

import random
from collections import deque
from collections.abc import Callable

from matching.errors import TopologyError
from topology.core.api.plan import Plan
from topology.core.payload import fingerprint
from topology.core.tasks.links import Parcel


class Fifo(deque[Parcel]):
    """Parcels that a worker has not delivered yet: first in, first out. O(1) for each."""

    def take(self, may_publish: Callable[[], bool]) -> Parcel | None:
        """Remove and return the next parcel; None if there is none.

        A seeded mailbox also returns None where it is the turn of the clock spout, and `may_publish` says yes.
        """
        return self.popleft() if self else None


class SeededMailbox:
    """The same with one queue for each link, from which a seeded shuffle takes.

    It also checks that no payload was written to after it was emitted.

    Parameters
    ----------
    on_step : callable, optional
        Called with the number of each step before it is taken; the worker raises what it raises.
    """

    def __init__(self, plan: Plan, seed: int, on_step: Callable[[int], None] | None = None):
        self._plan = plan
        self._tasks = len(plan.tasks)
        self._publishing = self._tasks**2  # stands for the clock spout's turn
        self._offered = False
        self._queues: list[deque[tuple[Parcel, int]]] = [deque() for _ in range(self._publishing)]
        self._shuffle = SeededShuffle(seed, self._publishing + 1)
        self._on_step = on_step
        self._steps = 0

    def append(self, parcel: Parcel) -> None:
        """Add a parcel."""
        link = parcel.sender * self._tasks + parcel.address
        if not self._queues[link]:
            self._shuffle.add(link)
        self._queues[link].append((parcel, fingerprint(parcel.payload)))

    def take(self, may_publish: Callable[[], bool]) -> Parcel | None:
        """See `Fifo.take`. Raises TopologyError, naming sender and stream, for a payload that was written to."""
        if not self._offered and may_publish():
            self._offered = True
            self._shuffle.add(self._publishing)
        link = self._shuffle.pick()
        if link == self._publishing:
            self._offered = False
            link = None if may_publish() else self._shuffle.pick()
        if self._on_step is not None:
            self._on_step(self._steps)
        self._steps += 1
        if link is None:
            return None
        waiting = self._queues[link]
        parcel, sent_fingerprint = waiting.popleft()
        if waiting:
            self._shuffle.add(link)
        if fingerprint(parcel.payload) != sent_fingerprint:
            stream, sender = self._plan.edges[parcel.edge].stream, self._plan.tasks[parcel.sender]
            raise TopologyError(
                f"{sender} wrote to an array of a payload after emitting it on {stream!r}: "
                "emit a copy, or do not write to the array"
            )
        return parcel

    def __bool__(self) -> bool:
        return any(self._queues)


class SeededShuffle:
    """A random link each time, some of them starved for stretches of up to 400 picks.

    A starved link is picked only when nothing else is ready. O(ready links) a pick.
    """

    def __init__(self, seed: int, links: int):
        self._random = random.Random(seed)
        self._links = links
        self._ready: list[int] = []
        self._starved: set[int] = set()
        self._left = 0

    def add(self, link: int) -> None:
        """A link has something to deliver."""
        self._ready.append(link)

    def pick(self) -> int | None:
        """Take a link out, None if there is none; the caller adds it again if it is not empty."""
        if not self._ready:
            return None
        if self._left == 0:
            fraction = self._random.choice((0.0, 0.1, 0.3, 0.7))
            self._starved = {link for link in range(self._links) if self._random.random() < fraction}
            self._left = self._random.choice((20, 100, 400))
        self._left -= 1
        fed = [place for place, link in enumerate(self._ready) if link not in self._starved]
        place = self._random.choice(fed) if fed else self._random.randrange(len(self._ready))
        self._ready[place], self._ready[-1] = self._ready[-1], self._ready[place]
        return self._ready.pop()
