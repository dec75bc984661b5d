"""The operator of `skyline`: the skylines of the subscriptions of one query task, which may be replicas.

`match` matches this task's messages, and their ends, against all its subscriptions; hits of replicas go to the home of
the subscription (`SkylineHits`). `close` merges the hits of all tasks at the home, and its engine
(`matching.skyline.engine`) advances the result buffers to the boundary.

A subscription that is new, or has lost a message that kept others out, waits for a refill (`matching.refill`): its
buffer is empty until the window query as of that boundary is answered. Slots may be at different boundaries meanwhile:
an engine only visits slots with offers or ends, or due at its floor, and a slot that has advanced further is due at no
earlier floor.

A subscription removed while it waits gets its last updates as usual.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from matching.errors import EngineError
from matching.index import Hits
from matching.living import NO_SUCCESSION, Succession, Successions
from matching.model import (
    NO_UPDATES,
    Float64,
    Int32,
    Int64,
    MessageBatch,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    take_rows,
)
from matching.operator import (
    Bools,
    Matched,
    OperatorContext,
    OperatorInput,
    OperatorOutput,
    OperatorSnapshot,
    Regional,
    Windowed,
    Work,
)
from matching.refill import BatchDelta, RefillCoordinator, RefillNeeded
from matching.result_rows import join_results, ranks, result_updates, take_results
from matching.skyline.engine import SkylineEngine, SkylineOffers
from matching.skyline.results import SkylineRows
from matching.skyline.window import Candidates, SkylineQueries
from matching.space import Space
from matching.storage.slots import resized
from matching.storage.state import State
from matching.window import NO_FLOOR, Boundary

_NONE = np.zeros(0, np.int64)


class SkylineHits(NamedTuple):
    """Hits of one task in a batch, for the subscriptions of one home; may be empty.

    number, seq, life : int64[n], spatial, text : float64[n]    messages that came, pair by pair
    lost_number, lost_seq : int64[m]                            messages of earlier batches that were ended
    came, replaced : int64[c]                                   of a stream of objects, of messages that came:
                                                                `matching.living.Succession`
    """

    number: Int64
    seq: Int64
    life: Int64
    spatial: Float64
    text: Float64
    lost_number: Int64
    lost_seq: Int64
    came: Int64 = _NONE
    replaced: Int64 = _NONE

    def take(self, rows: Int64, lost: Int64) -> "SkylineHits":
        """The pairs at `rows` and those at `lost`. O(n)."""
        of_rows = np.isin(self.came, self.seq[rows]) if self.came.shape[0] else slice(0)
        return SkylineHits(
            self.number[rows], self.seq[rows], self.life[rows], self.spatial[rows], self.text[rows],
            self.lost_number[lost], self.lost_seq[lost], self.came[of_rows], self.replaced[of_rows],
        )  # fmt: skip


class _Matched(NamedTuple):
    """A matched batch: hits for the results homed on this task, and slots of the new ones."""

    delta: BatchDelta
    fresh: Int32
    work: Work
    succession: Succession = NO_SUCCESSION


class SkylineOperator(Windowed, Regional):
    """Skylines over the stream; see `matching.operator.KindOperator`.

    Parameters
    ----------
    engine : callable    makes a `SkylineEngine`; its index matches, its pool has the result buffers homed here
    context : OperatorContext
    """

    serves_objects = True

    def __init__(self, engine: Callable[[Space], SkylineEngine], context: OperatorContext):
        self.context = context
        self.engine = engine(context.space)
        self.refills = RefillCoordinator(self)
        self.scanned = self.pairs = 0
        self._matched = Boundary(-1, 0, -1, NO_FLOOR)
        self._met = self._missed = _NONE
        self._home = np.zeros(0, np.int32)  # by slot
        self._successions = Successions()

    def __len__(self) -> int:
        return len(self.engine)

    @property
    def watermark(self) -> int:
        return self.refills.watermark

    @property
    def met(self) -> Int64:
        return self._met

    @property
    def missed(self) -> Int64:
        return self._missed

    def contains(self, numbers: Int64) -> Bools:
        return self.engine.subscriptions.find(numbers) >= 0

    # -- a batch

    def match(self, batch_input: OperatorInput) -> Matched:
        """Match the next batch.

        Raises
        ------
        EngineError
            If the batch is not the next one, a message lies outside it, or a number is added twice; nothing is changed
            then.
        """
        index, boundary = self.engine.subscriptions, batch_input.boundary
        self._check(boundary, batch_input.messages)
        leaving, staying = self._find_removed(batch_input)
        past, self._matched = self._matched.floor, boundary
        if not len(self.engine) and not len(staying):
            self._met = self._missed = _NONE
            nothing = self._by_number(_NO_OFFERS, _NO_SLOTS, _NONE)
            return Matched(_Matched(BatchDelta(boundary, _NO_OFFERS), _NO_SLOTS, Work()),
                           (nothing,) * self.context.tasks)  # fmt: skip
        if leaving.shape[0]:
            index.withdraw(leaving)
        messages, before = batch_input.messages, batch_input.ended
        hits, lost = index.match(messages, _alive(messages, boundary, before.seq)), _NO_HITS
        if len(before):
            lost = index.match(before, np.flatnonzero((before.seq < boundary.first_seq) & (before.life > past)))
        self.scanned += hits.scanned + lost.scanned
        self.pairs += hits.slot.shape[0]
        self._met = messages.seq[hits.row[np.diff(hits.row, prepend=-1) > 0]]  # rows ascend
        self._missed = _NONE
        if len(batch_input.withheld):
            withheld = batch_input.withheld
            self._missed = withheld.seq[index.match(withheld, _alive(withheld, boundary, before.seq)).row]
        offers = SkylineOffers(hits.slot, messages.seq[hits.row], messages.life[hits.row], *hits.scores)
        lost_seqs = before.seq[lost.row]

        hit_home, lost_home = self._home[hits.slot], self._home[lost.slot]
        succession = NO_SUCCESSION
        if self.context.objects:
            succession = Succession.of(batch_input.messages, batch_input.ended.seq)
        per_home = [self._by_number(_NO_OFFERS, _NO_SLOTS, _NONE)] * self.context.tasks
        others = np.bincount(np.concatenate([hit_home, lost_home]), minlength=self.context.tasks)
        others[self.context.task] = 0
        if others.any():
            found = self._by_number(offers, lost.slot, lost_seqs)
            found = found._replace(came=succession.seq, replaced=succession.before)
            for task in np.flatnonzero(others):
                per_home[task] = found.take(np.flatnonzero(hit_home == task), np.flatnonzero(lost_home == task))
        own = self._home[leaving] == self.context.task
        if leaving.shape[0]:
            index.release(leaving[~own])
        fresh = self._insert(staying, batch_input) if len(staying) else _NO_SLOTS
        delta = BatchDelta(boundary, offers, leaving[own], lost.slot, lost_seqs)
        if others.any():
            mine, mine_lost = hit_home == self.context.task, lost_home == self.context.task
            delta = delta._replace(
                offers=take_rows(offers, mine), lost_slots=lost.slot[mine_lost], lost_seqs=lost_seqs[mine_lost]
            )
        work = Work(hits.scanned + lost.scanned, 0, hits.slot.shape[0])
        return Matched(_Matched(delta, fresh, work, succession), tuple(per_home))

    def _insert(self, staying: SubscriptionTable, batch_input: OperatorInput) -> Int32:
        """Insert what a batch adds; returns the slots of those with their home here."""
        fresh = self.engine.insert(staying)
        if self.context.objects:
            self._successions.add(staying)
        self._ensure_slots()
        here = ~np.isin(batch_input.added.number, batch_input.removed.number) & batch_input.assigned
        self._home[fresh] = batch_input.home[here]
        return fresh[self._home[fresh] == self.context.task]

    def close(self, mine: _Matched, found: list[SkylineHits]) -> OperatorOutput:
        """Close the next batch that was matched.

        Raises
        ------
        EngineError
            If another task has a hit for a subscription that is not here: the hits are of another batch.
        """
        delta = self._merge_hits(mine.delta, found)
        past = self.refills.closed
        self.refills.closed = delta.boundary
        if self.context.objects:
            succession = mine.succession
            for each in found:
                succession = succession.plus(each.came, each.replaced)
            gone = self.engine.subscriptions.slots.number[delta.leaving]
            self._successions.note(delta.boundary, succession, self.refills.watermark, gone)
        if self.refills:
            self.refills.defer(delta.of(self.refills.waits))
            delta = delta.of(~self.refills.waits)
        updates, needed = self.advance(past, delta, _NONE.astype(np.int32))
        fresh = mine.fresh
        slots = np.concatenate([needed.slots, fresh])
        requests = ()
        if slots.shape[0]:
            self.engine.forget(slots)
            before = join_results([needed.before, self.engine.candidates.skylines(fresh, past.floor)])
            requests = (self.refills.begin(delta.boundary, slots, before),)
        return OperatorOutput(updates, requests, work=mine.work)

    def pass_over(self, boundary: Boundary) -> None:
        self._matched = self.refills.closed = boundary
        self._met = _NONE

    # -- answers

    def answer(self, request: int, body: Candidates) -> OperatorOutput:
        installed = self.refills.install(request, body)
        if installed is None:
            return OperatorOutput()
        updates, requests, _ = installed
        return OperatorOutput(concatenate(updates), tuple(requests))

    def refill(self, slots: Int32, body: Candidates, as_of: Boundary) -> None:
        # arrays from another process may be read-only, for which every kernel would be compiled once more
        own: Any = [np.require(column, requirements=("C", "A", "W")) for column in body]
        self.engine.refill(slots, Candidates(*own), as_of.floor)

    def advance(self, past: Boundary, news: BatchDelta, slots: Int32) -> tuple[UpdateBatch, RefillNeeded]:
        kept, boundary, leaving = self.engine.candidates, news.boundary, news.leaving
        leaving_before = _NO_ROWS
        if leaving.shape[0]:
            leaving_before = kept.skylines(leaving, past.floor)
            self.engine.forget(leaving)
        offers, lost_slots, lost_seqs = self.engine.defer(news.offers, news.lost_slots, news.lost_seqs)
        touched = self.engine.each_once(offers.slot, lost_slots, kept.due(boundary.floor))
        if not touched.shape[0] and not leaving.shape[0]:  # no skyline can change
            return NO_UPDATES, _NONE_NEEDED
        before = kept.skylines(touched, past.floor)
        refill_needed = self.engine.apply(offers, lost_slots, lost_seqs, boundary.floor)
        if not leaving.shape[0] and not refill_needed.shape[0]:  # as in most small batches
            return self.result_updates(boundary, touched, before), _NONE_NEEDED
        updates = self.result_updates(boundary, leaving, leaving_before)
        short = np.searchsorted(touched, refill_needed)
        settled = np.delete(np.arange(touched.shape[0]), short)
        updates = concatenate([updates, self.result_updates(boundary, touched[settled], take_results(before, settled))])
        self.engine.subscriptions.release(leaving)
        self.engine.forget(refill_needed)
        return updates, RefillNeeded(refill_needed, take_results(before, short))

    def query(self, slots: Int32) -> SkylineQueries:
        return self.engine.subscriptions.queries(slots)

    def result_updates(self, boundary: Boundary, slots: Int32, before: SkylineRows) -> UpdateBatch:
        """Updates from the skylines `before` to those at the boundary, row by row; leaves first. O(entries)."""
        after = self.engine.candidates.skylines(slots, boundary.floor)
        number = self.engine.subscriptions.slots.number[slots]
        if self.context.objects:
            return self._successions.difference(boundary, number, before, after)
        return result_updates(boundary, number, before, after, by_seq=True)

    # -- results and state

    def results(self) -> ResultBatch:
        slots = self._homed_slots()
        rows = self.engine.candidates.skylines(slots, self.refills.closed.floor)
        row = np.repeat(np.arange(slots.shape[0]), np.diff(rows.offsets))
        order = np.lexsort((rows.seq, -rows.spatial, row))
        numbers = self.engine.subscriptions.slots.number[slots][row]
        return ResultBatch(numbers, ranks(rows.offsets), rows.seq[order], rows.spatial[order], rows.text[order])

    def report(self) -> dict[str, Any]:
        return {
            "homed": self._homed_slots().shape[0],
            "requests": self.refills.requests,
            "refills": self.refills.queried,
            "pairs": self.pairs,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        return self.engine.arrays() | {"home": self._home, "waits": self.refills.waits}

    def snapshot(self, stored: int | None = None) -> OperatorSnapshot:
        subscriptions, slots = self.engine.subscriptions, self._homed_slots()
        version, buffers = subscriptions.slots.changes, self.engine.snapshot(slots)
        if version != stored:
            subscriptions = subscriptions.snapshot()

        def results() -> State:
            rows, entries = buffers()
            return State(rows, {"kept": entries}, {})

        return OperatorSnapshot(version, lambda: State.of(subscriptions.table(slots)), results)

    def restore(self, boundary: Boundary, state: State, home: Int64, assigned: Bools) -> None:
        rows = np.flatnonzero(assigned)
        state, home = state.take(rows), home[rows]
        slots = self.engine.insert(state.table)
        if self.context.objects:
            self._successions.add(state.table)
        self._ensure_slots()
        self._home[slots] = home
        mine = np.flatnonzero(home == self.context.task)
        self.engine.restore(slots[mine], state.take(mine), boundary.floor)
        self._matched = boundary
        self.refills.start_at(boundary)

    # -- inside

    def _homed_slots(self) -> Int32:
        slots = self.engine.subscriptions.slots.live_slots()
        return slots[self._home[slots] == self.context.task]

    def _ensure_slots(self) -> None:
        capacity = self.engine.subscriptions.capacity
        self.refills.ensure_slots(capacity)
        if self._home.shape[0] < capacity:
            self._home = resized(self._home, capacity)

    def _by_number(self, offers: SkylineOffers, lost_slots: Int32, lost_seqs: Int64) -> SkylineHits:
        """The hits by subscription number instead of slot."""
        number = self.engine.subscriptions.slots.number
        return SkylineHits(number[offers.slot], *offers[1:], number[lost_slots], lost_seqs)

    def _merge_hits(self, delta: BatchDelta, found: list[SkylineHits]) -> BatchDelta:
        """Add the hits that other tasks sent."""
        if not found:
            return delta
        slots = [self._slots_of(each.number, delta.boundary) for each in found]
        lost = [self._slots_of(each.lost_number, delta.boundary) for each in found]
        theirs = (
            SkylineOffers(of, each.seq, each.life, each.spatial, each.text)
            for of, each in zip(slots, found, strict=True)
        )
        return delta._replace(
            offers=concatenate([delta.offers, *theirs]),
            lost_slots=np.concatenate([delta.lost_slots, *lost]),
            lost_seqs=np.concatenate([delta.lost_seqs, *(each.lost_seq for each in found)]),
        )

    def _slots_of(self, wanted: Int64, boundary: Boundary) -> Int32:
        slots = self.engine.subscriptions.find(wanted)
        if np.any(slots < 0):
            raise EngineError(
                f"skyline: task {self.context.task} was sent hits of batch {boundary.number} for subscription "
                f"{wanted[slots < 0][0]}, which is not here; close a batch after the hits of all tasks have arrived"
            )
        return slots

    def _check(self, boundary: Boundary, messages: MessageBatch) -> None:
        last, seq = self._matched, messages.seq
        if boundary.number != last.number + 1 or boundary.first_seq != last.last_seq + 1 or boundary.floor < last.floor:
            raise EngineError(f"skyline: {boundary} cannot follow {last}; feed every batch once, in order")
        if seq.shape[0] and not (boundary.first_seq <= seq[0] and seq[-1] <= boundary.last_seq):
            raise EngineError(f"skyline: messages {seq[0]}..{seq[-1]} do not lie inside {boundary}")

    def _find_removed(self, batch_input: OperatorInput) -> tuple[Int32, SubscriptionTable]:
        """Slots of removed subscriptions that were here before this batch; added ones that it does not remove."""
        added, gone = batch_input.added, batch_input.removed.number
        if not len(added) and not gone.shape[0]:  # as in most small batches
            return _NO_SLOTS, added
        if not batch_input.assigned.all():
            added = added.take(np.flatnonzero(batch_input.assigned))
        known = self.engine.subscriptions.find(added.number) >= 0
        if np.any(known) or np.unique(added.number).shape[0] < len(added):
            which = added.number[known][0] if np.any(known) else "of this batch"
            raise EngineError(f"skyline: subscription {which} cannot be added: numbers are never used twice")
        slots = self.engine.subscriptions.find(gone)
        staying = added.take(np.flatnonzero(~np.isin(added.number, gone))) if gone.size else added
        return slots[slots >= 0], staying


def _alive(messages: MessageBatch, boundary: Boundary, ended: Int64) -> Int64:
    """Rows of the messages of a batch that are alive at its boundary: not too late, and not ended in it. O(batch)."""
    keep, ended = messages.life > boundary.floor, ended[ended >= boundary.first_seq]
    if ended.shape[0]:
        ends = np.zeros(boundary.last_seq - boundary.first_seq + 1, np.bool_)
        ends[ended - boundary.first_seq] = True
        keep &= ~ends[messages.seq - boundary.first_seq]
    return np.flatnonzero(keep)


_NO_SLOTS = np.zeros(0, np.int32)
_NO_OFFERS = SkylineOffers(_NO_SLOTS, _NONE, _NONE, np.zeros(0), np.zeros(0))
_NO_HITS = Hits(_NO_SLOTS, _NO_SLOTS, (np.zeros(0), np.zeros(0)), 0, 0, 0)
_NO_ROWS = SkylineRows(np.zeros(1, np.int64), _NONE, np.zeros(0), np.zeros(0))
_NONE_NEEDED = RefillNeeded(_NO_SLOTS, _NO_ROWS)
