"""What every `skyline` engine offers to the stream: it keeps something of each subscription, and says what it lacks.

At each boundary an engine is told what came, what was ended and what may expire (`take`), and answers with the
subscriptions for which it must look into the window; these get all their candidates (`refill`). Whatever it keeps lies
in a `CandidatePool`, in which the skyline is marked. The engines:

- `eager`         keeps just what can still enter the skyline, and knows when it will
- `eager_star`    the same, and seldom looks into the window where an object moves, changes its words or is deleted;
                  the default

Read on in `matching.skyline.engines.eager`, or in `matching.skyline.operator` for what drives them.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from matching.model import Float64, Int32, Int64, SubscriptionTable
from matching.skyline.results import CandidatePool
from matching.skyline.subscriptions import SkylineSubscriptions
from matching.skyline.window import Candidates
from matching.space import Space
from matching.storage.state import Lists, State


class Offers(NamedTuple):
    """Messages that are alive and became candidates, each pair once: slot int32[n], seq, life int64[n], relevances."""

    slot: Int32
    seq: Int64
    life: Int64
    spatial: Float64
    text: Float64


class SkylineEngine(ABC):
    """Subscriptions with what is kept of each.

    Parameters
    ----------
    space : Space    world box; decides how the index cuts the world up, never what matches
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
        """Add subscriptions, which keep nothing until they are refilled; returns their slots."""
        slots = self.subscriptions.insert(table)
        self._ensure_slots()
        return slots

    def forget(self, slots: Int32) -> None:
        """Withdrawn subscriptions keep nothing any more."""
        self.candidates.clear(slots)

    def entries(self) -> int:
        """How many messages are kept for all subscriptions together."""
        return self.candidates.entries()

    def bytes(self) -> int:
        """Memory of everything the engine holds; O(all), since what a snapshot has no need of is settled."""
        return sum(array.nbytes for array in self.arrays().values())

    def defer(self, offers: Offers, slots: Int32, seqs: Int64) -> tuple[Offers, Int32, Int64]:
        """What of all this can change a skyline, and so has to be given to `take`; the engine has seen to the rest.

        For all or some of the subscriptions that are to be led to the next boundary, before any of them is.
        """
        return offers, slots, seqs

    @abstractmethod
    def apply(self, offers: Offers, slots: Int32, seqs: Int64, floor: int) -> Int32:
        """Lead all subscriptions to the next boundary, whose floor is given.

        Parameters
        ----------
        offers : Offers        what came
        slots, seqs            message `seqs[i]`, a candidate of `slots[i]` so far, has been ended
        floor : int

        Returns
        -------
        int32[m]    slots, each once, whose skyline is right only after a refill
        """

    @abstractmethod
    def refill(self, slots: Int32, candidates: Candidates, floor: int) -> None:
        """Take all live candidates of these slots: new ones, and those that `take` returned."""

    def state(self, slots: Int32) -> tuple[dict[str, np.ndarray], Lists]:
        """What is kept of these slots: columns with an entry a slot, and what is kept in each. O(entries)."""
        return {"due": self.candidates.view.due[slots]}, self.candidates.lists(slots)

    def restore(self, slots: Int32, state: State, floor: int) -> None:
        """Take over what `state` of an engine of the same class gave, for slots that keep nothing yet; at this floor.

        O(entries).
        """
        self.candidates.fill(slots, state.lists["kept"])
        self.candidates.view.due[slots] = state.rows["due"]

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array held, for figures of size."""
        arrays = {f"index_{name}": value for name, value in self.subscriptions.arrays().items()}
        return arrays | {f"kept_{name}": value for name, value in self.candidates.arrays().items()}

    def _ensure_slots(self) -> None:
        """Have room for every slot that the index hands out."""
        self.candidates.ensure_slots(self.subscriptions.capacity)
