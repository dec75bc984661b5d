"""Standing skylines over a stream: what a query bolt does for its `skyline` subscriptions.

Batch by batch the index (`matching.skyline.index`) finds the subscriptions of which a message is a candidate, the
engine (`matching.skyline.engine`) brings what it keeps of them to the boundary, with the help of the window
(`matching.skyline.window`) where it must, and what changed is told. Nothing is told between boundaries.

Objects: a message may be a new version of an object, or delete one. Whoever feeds the stream knows which message speaks
of which object; here it comes as `ended`, the seqs of messages that are alive no more although their time is not over.
"""

from typing import NamedTuple

import numpy as np

from matching.errors import EngineError
from matching.model import (
    SKYLINE,
    Int32,
    Int64,
    MessageBatch,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
)
from matching.skyline.engine import Offers, SkylineEngine
from matching.skyline.standing import Standing, alive_rows, held_nothing
from matching.skyline.window import SkylineWindow
from matching.slots import part
from matching.space import Space
from matching.window import NO_FLOOR, Boundary

#: Subscriptions that are looked up in the window at once; their candidates are held in memory together.
_CHUNK = 1_024


class Work(NamedTuple):
    """Work since the start.

    scanned : int     postings looked at, for arrivals and for messages that were ended
    matched : int     pairs of subscription and arriving candidate
    ended : int       pairs of subscription and candidate that was ended
    refilled : int    times that a subscription was looked up in the window, new ones included
    fetched : int     candidates that this brought
    """

    scanned: int = 0
    matched: int = 0
    ended: int = 0
    refilled: int = 0
    fetched: int = 0


class SkylineStream:
    """Skylines of subscriptions over the stream.

    Parameters
    ----------
    engine : SkylineEngine      without subscriptions
    window : SkylineWindow      empty, or filled up to a boundary that `start_at` is told; belongs to this stream
    """

    def __init__(self, engine: SkylineEngine, window: SkylineWindow):
        self.engine = engine
        self.standing = Standing(engine)
        self.window = window
        self.boundary = Boundary(-1, 0, -1, NO_FLOOR)
        self.work = Work()

    def __len__(self) -> int:
        return len(self.engine)

    def start_at(self, boundary: Boundary, table: SubscriptionTable) -> None:
        """Begin behind this boundary, which the window has reached, with these subscriptions; before any batch.

        What they hold now is told by `results`, not as updates.
        """
        self.boundary = boundary
        self._refill(self.engine.insert(table))

    def process(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        ended: Int64,
        added: SubscriptionTable,
        removed: Removals,
    ) -> UpdateBatch:
        """Take the next batch and its changes; rows of other kinds are left out here.

        Parameters
        ----------
        boundary : Boundary
        messages : MessageBatch    what was published, without deletions; ascending seq
        ended : int64[m]           seqs of messages, earlier ones or of this batch, that a later version or a deletion
                                   has ended; those unknown or expired are passed over
        added, removed             subscription changes; all show at this boundary

        Returns
        -------
        UpdateBatch
            Enter and leave events as of the boundary, by subscription; leaves first. The score is spatial.

        Raises
        ------
        EngineError
            If the batch is not the next one, its messages lie outside it or carry lives above what comes after, a
            number is added twice, or an unknown one removed; nothing is changed then.
        """
        self._check(boundary, messages)
        ended = np.unique(np.asarray(ended, np.int64))
        added = added.of_kind(SKYLINE) if np.any(added.kind != SKYLINE) else added
        gone = np.asarray(removed.number[removed.kind == SKYLINE], np.int64)
        index, past = self.engine.index, self.boundary.floor
        leaving, staying = find_removed(self.engine, added, gone)

        ended_before = self.window.contents(ended[ended < boundary.first_seq])
        self.window.store(boundary, messages, ended)
        self.boundary = boundary
        index.withdraw(leaving)
        alive = messages.take(alive_rows(boundary, messages, ended))
        hits, lost = index.match(alive), index.match_at(ended_before)
        offers = Offers(hits.slot, alive.seq[hits.row], alive.life[hits.row], hits.spatial, hits.text)
        updates, lacking = self.standing.lead(past, boundary, offers, lost.slot, ended_before.seq[lost.row], leaving)
        fresh = self.engine.insert(staying)
        fetched = self._refill(np.concatenate([lacking.slots, fresh]))
        updates = [updates, self.standing.tell(boundary, lacking.slots, lacking.before)]
        updates.append(self.standing.tell(boundary, fresh, held_nothing(fresh.shape[0])))
        index.remove(leaving)
        self.work = Work(
            self.work.scanned + hits.scanned + lost.scanned,
            self.work.matched + hits.slot.shape[0],
            self.work.ended + lost.slot.shape[0],
            self.work.refilled + lacking.slots.shape[0] + fresh.shape[0],
            self.work.fetched + fetched,
        )
        return concatenate(updates)

    def results(self) -> ResultBatch:
        """Standing skylines at the last boundary. O(results log results)."""
        return self.standing.results(self.engine.index.live_slots(), self.boundary.floor)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything needed to continue at this boundary."""
        arrays = {f"engine_{name}": value for name, value in self.engine.arrays().items()}
        arrays |= {f"window_{name}": value for name, value in self.window.arrays().items()}
        return arrays | {"boundary": np.array(self.boundary, np.int64), "work": np.array(self.work, np.int64)}

    @classmethod
    def from_arrays(
        cls, engine: type[SkylineEngine], window: type[SkylineWindow], space: Space, arrays: dict[str, np.ndarray]
    ) -> "SkylineStream":
        """Continue from the `arrays` of a stream with the same kinds of engine and window; everything is copied."""
        restored = engine.from_arrays(space, part(arrays, "engine_"))
        stream = cls(restored, window.from_arrays(part(arrays, "window_")))
        stream.boundary = Boundary(*arrays["boundary"].tolist())
        stream.work = Work(*arrays["work"].tolist())
        return stream

    def _refill(self, slots: Int32) -> int:
        """Give slots all their candidates; returns how many that were."""
        fetched = 0
        if slots.shape[0] > 1:
            slots = self.engine.index.by_place(slots)
        for first in range(0, slots.shape[0], _CHUNK):
            part_of = slots[first : first + _CHUNK]
            candidates = self.window.candidates(self.engine.index.queries(part_of))
            self.engine.refill(part_of, candidates, self.boundary.floor)
            fetched += candidates.seq.shape[0]
        return fetched

    def _check(self, boundary: Boundary, messages: MessageBatch) -> None:
        last, seq = self.boundary, messages.seq
        if boundary.number != last.number + 1 or boundary.first_seq != last.last_seq + 1 or boundary.floor < last.floor:
            raise EngineError(f"skyline: {boundary} cannot follow {last}; feed every batch once, in order")
        if seq.shape[0] and not (boundary.first_seq <= seq[0] and seq[-1] <= boundary.last_seq):
            raise EngineError(f"skyline: messages {seq[0]}..{seq[-1]} do not lie inside {boundary}")


def find_removed(engine: SkylineEngine, added: SubscriptionTable, gone: Int64) -> tuple[Int32, SubscriptionTable]:
    """Slots of the removed that have been here before this batch, and who of the added is not removed in it.

    Raises
    ------
    EngineError
        If a number is added twice, or one is removed that is not here; before anything is touched.
    """
    known = engine.index.find(added.number) >= 0
    if np.any(known) or np.unique(added.number).shape[0] < len(added):
        which = added.number[known][0] if np.any(known) else "of this batch"
        raise EngineError(f"skyline: subscription {which} cannot be added: numbers are never used twice")
    slots = engine.index.find(gone)
    lost = gone[(slots < 0) & ~np.isin(gone, added.number)]
    if lost.shape[0] or np.unique(gone).shape[0] < gone.shape[0]:
        which = lost[0] if lost.shape[0] else "of this batch"
        raise EngineError(f"skyline: subscription {which} cannot be removed: it is not here, or named twice")
    staying = added.take(np.flatnonzero(~np.isin(added.number, gone))) if gone.size else added
    return slots[slots >= 0], staying
