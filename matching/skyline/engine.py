"""Interface of the `skyline` engines: an index of subscriptions, and a result buffer for each.

At each boundary `apply` takes new messages, ended messages and the new floor, and returns the subscriptions that need a
refill; these get all their candidates from the window (`refill`). Buffers lie in a `CandidatePool`. The engines:

- `eager`         keeps just the messages that can still enter the skyline, and when they will
- `eager_star`    the same, with few refills where an object moves, changes its words or is deleted; the default
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from matching.model import Float64, Int32, Int64, SubscriptionTable
from matching.skyline.results import CandidatePool
from matching.skyline.subscriptions import SkylineSubscriptions
from matching.skyline.window import Candidates
from matching.space import Space
from matching.storage.state import RaggedColumns, State

#: Result buffers of some slots: columns by slot, and entries.
Buffers = tuple[dict[str, np.ndarray], RaggedColumns]


class SkylineOffers(NamedTuple):
    """New candidates that are alive, each pair once: slot int32[n], seq, life int64[n], relevances float64[n]."""

    slot: Int32
    seq: Int64
    life: Int64
    spatial: Float64
    text: Float64


class SkylineEngine(ABC):
    """Subscriptions and their result buffers.

    Parameters
    ----------
    space : Space    world box; sets the cells of the index, never what matches
    """

    #: Name in `matching.kinds`.
    name: ClassVar[str]

    def __init__(self, space: Space):
        self.space = space
        self.subscriptions = SkylineSubscriptions(space)
        self.candidates = CandidatePool()

    def __len__(self) -> int:
        return len(self.subscriptions)

    def insert(self, table: SubscriptionTable) -> Int32:
        """Add subscriptions, whose buffers are empty until a refill; returns their slots."""
        slots = self.subscriptions.insert(table)
        self._ensure_slots()
        return slots

    def forget(self, slots: Int32) -> None:
        """Empty the buffers of these slots."""
        self.candidates.clear(slots)

    def entries(self) -> int:
        """Messages in all buffers together."""
        return self.candidates.entries()

    def bytes(self) -> int:
        """Memory of the engine in bytes; O(all), since deferred entries are settled first."""
        return sum(array.nbytes for array in self.arrays().values())

    def each_once(self, *slots: Int32) -> Int32:
        """The slots in some arrays, each once, ascending (int32). O(all slots), without a sort."""
        there = np.zeros(self.candidates.view.start.shape[0], np.bool_)
        for some in slots:
            there[some] = True
        return np.flatnonzero(there).astype(np.int32)

    def defer(self, offers: SkylineOffers, slots: Int32, seqs: Int64) -> tuple[SkylineOffers, Int32, Int64]:
        """Defer arrivals and ends that change no skyline; returns the others, which `apply` must take.

        Called before `apply`, for all or some of the slots that advance to the next boundary.
        """
        return offers, slots, seqs

    @abstractmethod
    def apply(self, offers: SkylineOffers, slots: Int32, seqs: Int64, floor: int) -> Int32:
        """Advance all subscriptions to the next boundary.

        Parameters
        ----------
        offers : SkylineOffers
        slots, seqs            int32[n], int64[n]: message `seqs[i]`, a candidate of `slots[i]` so far, was ended
        floor : int            floor of the boundary: messages with `life` at or below it have expired

        Returns
        -------
        int32[m]    slots, each once, that need a refill
        """

    @abstractmethod
    def refill(self, slots: Int32, candidates: Candidates, floor: int) -> None:
        """Replace the buffers of these slots, new or returned by `apply`, by all their live candidates."""

    def snapshot(self, slots: Int32) -> Callable[[], Buffers]:
        """The buffers of these slots as they are now, made when it is called. O(entries)."""
        candidates = self.candidates.snapshot()
        return lambda: ({"due": candidates.view.due[slots]}, candidates.lists(slots))

    def restore(self, slots: Int32, state: State, floor: int) -> None:
        """Restore what `snapshot` of the same class returned, into empty slots, at this floor. O(entries)."""
        self.candidates.fill(slots, state.lists["kept"])
        self.candidates.view.due[slots] = state.rows["due"]

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, by name, to measure memory."""
        arrays = {f"index_{name}": value for name, value in self.subscriptions.arrays().items()}
        return arrays | {f"kept_{name}": value for name, value in self.candidates.arrays().items()}

    def _ensure_slots(self) -> None:
        """Provide capacity for every slot of the index."""
        self.candidates.ensure_slots(self.subscriptions.capacity)
