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
    ENTER,
    LEAVE,
    SKYLINE,
    Float64,
    Int32,
    Int64,
    MessageBatch,
    Removals,
    SubscriptionTable,
    UpdateBatch,
)
from matching.skyline.engine import Offers, SkylineEngine
from matching.skyline.kept import difference
from matching.skyline.window import SkylineWindow
from matching.slots import part
from matching.space import Space
from matching.window import NO_FLOOR, Boundary

#: Subscriptions that are looked up in the window at once; their candidates are held in memory together.
_CHUNK = 1_024


class SkylineResults(NamedTuple):
    """Standing skylines: a `ResultBatch` with a second relevance.

    number : int64[n], rank : int32[n] from 1 by descending spatial relevance then seq, seq : int64[n]
    score : float64[n]         spatial relevance
    text_score : float64[n]    text relevance
    """

    number: Int64
    rank: Int32
    seq: Int64
    score: Float64
    text_score: Float64

    def __len__(self) -> int:
        return self.number.shape[0]


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
        leaving = self._find_removed(added, gone)
        if gone.size:
            added = added.take(np.flatnonzero(~np.isin(added.number, gone)))
        index, kept = self.engine.index, self.engine.kept
        past, floor = self.boundary.floor, boundary.floor

        ended_before = self.window.contents(ended[ended < boundary.first_seq])
        self.window.store(boundary, messages, ended)
        self.boundary = boundary
        told_leaving = kept.held(leaving, past)
        index.withdraw(leaving)
        self.engine.forget(leaving)

        alive = messages.take(np.flatnonzero((messages.life > floor) & ~np.isin(messages.seq, ended)))
        hits = index.match(alive)
        offers = Offers(hits.slot, alive.seq[hits.row], alive.life[hits.row], hits.spatial, hits.text)
        lost = index.match_at(ended_before)
        touched = np.unique(np.concatenate([hits.slot, lost.slot, kept.due(floor)]))
        before = kept.held(touched, past)
        lacking = self.engine.take(offers, lost.slot, ended_before.seq[lost.row], floor)
        fresh = self.engine.insert(added)
        fetched = self._refill(np.concatenate([lacking, fresh]))

        kept = self.engine.kept
        parts = [
            self._tell(boundary, leaving, told_leaving, kept.held(leaving, floor)),
            self._tell(boundary, touched, before, kept.held(touched, floor)),
            self._tell(boundary, fresh, kept.held(fresh[:0], floor), kept.held(fresh, floor)),
        ]
        index.remove(leaving)
        self.work = Work(
            self.work.scanned + hits.scanned + lost.scanned,
            self.work.matched + hits.slot.shape[0],
            self.work.ended + lost.slot.shape[0],
            self.work.refilled + lacking.shape[0] + fresh.shape[0],
            self.work.fetched + fetched,
        )
        return UpdateBatch(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def results(self) -> SkylineResults:
        """Standing skylines at the last boundary. O(results log results)."""
        slots = self.engine.index.live_slots()
        held = self.engine.kept.held(slots, self.boundary.floor)
        lengths = np.diff(held.offsets)
        row = np.repeat(np.arange(slots.shape[0]), lengths)
        order = np.lexsort((held.seq, -held.spatial, row))
        rank = np.arange(row.shape[0]) - np.repeat(held.offsets[:-1], lengths) + 1
        numbers = self.engine.index.slots.number[slots][row]
        return SkylineResults(
            numbers, rank.astype(np.int32), held.seq[order], held.spatial[order], held.text[order]
        )  # fmt: skip

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

    def _find_removed(self, added: SubscriptionTable, gone: Int64) -> Int32:
        """Slots of the removed that have been here before this batch; raises before anything is touched."""
        known = self.engine.index.find(added.number) >= 0
        if np.any(known) or np.unique(added.number).shape[0] < len(added):
            which = added.number[known][0] if np.any(known) else "of this batch"
            raise EngineError(f"skyline: subscription {which} cannot be added: numbers are never used twice")
        slots = self.engine.index.find(gone)
        lost = gone[(slots < 0) & ~np.isin(gone, added.number)]
        if lost.shape[0] or np.unique(gone).shape[0] < gone.shape[0]:
            which = lost[0] if lost.shape[0] else "of this batch"
            raise EngineError(f"skyline: subscription {which} cannot be removed: it is not here, or named twice")
        return slots[slots >= 0]

    def _tell(self, boundary: Boundary, slots: Int32, before, after) -> UpdateBatch:
        """Updates of the rows whose skyline was `before` and is `after`."""
        count = slots.shape[0]
        if before.offsets.shape[0] < count + 1:  # new ones, which held nothing
            before = before._replace(offsets=np.zeros(count + 1, np.int64))
        room = before.seq.shape[0] + after.seq.shape[0]
        row, seq = np.empty(room, np.int32), np.empty(room, np.int64)
        score, enters = np.empty(room), np.empty(room, np.bool_)
        told = difference(before, after, row, seq, score, enters)
        change = np.where(enters[:told], ENTER, LEAVE).astype(np.int8)
        numbers = self.engine.index.slots.number[slots][row[:told]]
        return UpdateBatch(np.full(told, boundary.last_seq), numbers, seq[:told], change, score[:told])
