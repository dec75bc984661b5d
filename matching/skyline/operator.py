"""The room of `skyline`: standing skylines of the subscriptions that one query task holds, which it may share.

A task matches, in `match`, the messages that are its own, and their ends, against every subscription that it holds.
Each has a home among its holders; what a task finds for others goes there (`SkylineHits`). A home closes a batch, in
`close`, with what everybody found: its engine (`matching.skyline.engine`) brings what it keeps to the boundary.

Whoever is new, or has lost what kept others out, pends (`matching.refill`): nothing is kept of it, and the window is
asked for its candidates as of that boundary. Slots are at different boundaries meanwhile, which disturbs nobody: an
engine looks at those that something happened to, or that are due at the floor it is given, and who has been led further
is due at none of the floors before.

A subscription that ends while it pends is told to its end like any other. Read on in
`matching.skyline.engines.eager_star`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from matching.errors import EngineError
from matching.model import (
    ENTER,
    LEAVE,
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
from matching.operator import Bools, KindOperator, Matched, OperatorContext, OperatorInput, OperatorOutput, Work
from matching.refill import BatchDelta, RefillCoordinator, RefillNeeded
from matching.skyline.engine import Offers, SkylineEngine
from matching.skyline.results import SkylineRows, difference
from matching.skyline.retained import alive_rows, contents_of, join_skylines, no_skylines, take_skylines
from matching.skyline.window import Candidates, SkylineQueries
from matching.space import Space
from matching.storage.slots import resized
from matching.storage.state import State
from matching.window import NO_FLOOR, Boundary

_NONE = np.zeros(0, np.int64)


class SkylineHits(NamedTuple):
    """What one task found in a batch for the subscriptions of one home; maybe nothing.

    number, seq, life : int64[n], spatial, text : float64[n]    messages that came, pair by pair
    lost_number, lost_seq : int64[m]                            messages of earlier batches that were ended
    """

    number: Int64
    seq: Int64
    life: Int64
    spatial: Float64
    text: Float64
    lost_number: Int64
    lost_seq: Int64

    def take(self, rows: Int64, lost: Int64) -> "SkylineHits":
        """The pairs at `rows` and those at `lost`. O(n)."""
        return SkylineHits(
            self.number[rows], self.seq[rows], self.life[rows], self.spatial[rows], self.text[rows],
            self.lost_number[lost], self.lost_seq[lost],
        )  # fmt: skip


class _Matched(NamedTuple):
    """A batch that this task has matched: what it found for those at home here, and who of them is new."""

    news: BatchDelta
    fresh: Int32
    work: Work


class SkylineOperator(KindOperator):
    """Skylines over the stream; see `matching.operator.KindOperator`.

    Parameters
    ----------
    engine : callable    makes a `SkylineEngine`; its index finds, its pool keeps skylines of those at home here
    site : Site
    """

    def __init__(self, engine: Callable[[Space], SkylineEngine], site: OperatorContext):
        self.site = site
        self.engine = engine(site.space)
        self.pending = RefillCoordinator(self)
        self.scanned = self.pairs = 0
        self._matched = Boundary(-1, 0, -1, NO_FLOOR)
        self._met = self._missed = _NONE
        self._home = np.zeros(0, np.int32)  # by slot

    def __len__(self) -> int:
        return len(self.engine)

    @property
    def watermark(self) -> int:
        return self.pending.watermark

    @property
    def met(self) -> Int64:
        return self._met

    @property
    def missed(self) -> Int64:
        return self._missed

    def holds(self, numbers: Int64) -> Bools:
        return self.engine.subscriptions.find(numbers) >= 0

    # -- a batch

    def match(self, turn: OperatorInput) -> Matched:
        """Match the next batch.

        Raises
        ------
        EngineError
            If the batch is not the next one, a message lies outside it, or a number is added twice; nothing is changed
            then.
        """
        index, boundary = self.engine.subscriptions, turn.boundary
        self._check(boundary, turn.messages)
        leaving, staying = self._find_removed(turn)
        past, self._matched = self._matched.floor, boundary
        if not len(self.engine) and not len(staying):
            self._met = self._missed = _NONE
            nothing = self._found(_NOTHING_OFFERED, _NONE.astype(np.int32), _NONE)
            return Matched(_Matched(BatchDelta(boundary, _NOTHING_OFFERED), _NONE.astype(np.int32), Work()),
                           (nothing,) * self.site.tasks)  # fmt: skip
        index.withdraw(leaving)
        alive = turn.messages.take(alive_rows(boundary, turn.messages, turn.ended.seq))
        before = turn.ended.take(np.flatnonzero((turn.ended.seq < boundary.first_seq) & (turn.ended.life > past)))
        hits, lost = index.match(alive), index.match_at(contents_of(before))
        self.scanned += hits.scanned + lost.scanned
        self.pairs += hits.slot.shape[0]
        self._met = alive.seq[np.unique(hits.row)]
        withheld = turn.withheld.take(alive_rows(boundary, turn.withheld, turn.ended.seq))
        self._missed = withheld.seq[index.match(withheld).row] if len(withheld) else _NONE
        offers = Offers(hits.slot, alive.seq[hits.row], alive.life[hits.row], hits.spatial, hits.text)
        lost_seqs = before.seq[lost.row]

        hit_home, lost_home = self._home[hits.slot], self._home[lost.slot]
        found = self._found(offers, lost.slot, lost_seqs)
        per_home = tuple(
            found.take(_NONE, _NONE)
            if task == self.site.task
            else found.take(np.flatnonzero(hit_home == task), np.flatnonzero(lost_home == task))
            for task in range(self.site.tasks)
        )
        own = self._home[leaving] == self.site.task
        index.remove(leaving[~own])
        fresh = self.engine.insert(staying)
        self._ensure_slots()
        here = ~np.isin(turn.added.number, turn.removed.number) & turn.held
        self._home[fresh] = turn.home[here]
        fresh = fresh[self._home[fresh] == self.site.task]
        mine, mine_lost = hit_home == self.site.task, lost_home == self.site.task
        news = BatchDelta(boundary, take_rows(offers, mine), leaving[own], lost.slot[mine_lost], lost_seqs[mine_lost])
        work = Work(hits.scanned + lost.scanned, 0, hits.slot.shape[0])
        return Matched(_Matched(news, fresh, work), per_home)

    def close(self, mine: _Matched, found: list[SkylineHits]) -> OperatorOutput:
        """Close the next batch that was matched.

        Raises
        ------
        EngineError
            If others found something for a subscription that is not here: then it was not this batch.
        """
        news = self._with_found(mine.news, found)
        past = self.pending.closed
        self.pending.closed = news.boundary
        if self.pending:
            self.pending.defer(news.of(self.pending.waits))
            news = news.of(~self.pending.waits)
        updates, lacking = self.lead(past, news, _NONE.astype(np.int32))
        fresh = mine.fresh
        slots = np.concatenate([lacking.slots, fresh])
        asks = ()
        if slots.shape[0]:
            self.engine.forget(slots)
            before = join_skylines([lacking.before, no_skylines(fresh.shape[0])])
            asks = (self.pending.pend(news.boundary, slots, before),)
        return OperatorOutput(updates, asks, work=mine.work)

    def pass_over(self, boundary: Boundary) -> None:
        self._matched = self.pending.closed = boundary
        self._met = _NONE

    # -- answers

    def answer(self, request: int, body: Candidates) -> OperatorOutput:
        installed = self.pending.install(request, body)
        if installed is None:
            return OperatorOutput()
        updates, asks, _ = installed
        return OperatorOutput(concatenate(updates), tuple(asks))

    def refill(self, slots: Int32, body: Candidates, as_of: Boundary) -> None:
        # what comes from another process may be read-only, for which every kernel would be compiled once more
        own: Any = [np.require(column, requirements=("C", "A", "W")) for column in body]
        self.engine.refill(slots, Candidates(*own), as_of.floor)

    def lead(self, past: Boundary, news: BatchDelta, slots: Int32) -> tuple[UpdateBatch, RefillNeeded]:
        kept, boundary, leaving = self.engine.candidates, news.boundary, news.leaving
        held_leaving = kept.held(leaving, past.floor)
        self.engine.forget(leaving)
        offers, lost_slots, lost_seqs = self.engine.defer(news.offers, news.lost_slots, news.lost_seqs)
        touched = np.unique(np.concatenate([offers.slot, lost_slots, kept.due(boundary.floor)])).astype(np.int32)
        before = kept.held(touched, past.floor)
        lacking = self.engine.apply(offers, lost_slots, lost_seqs, boundary.floor)
        told = self.tell(boundary, leaving, held_leaving)
        settled = np.flatnonzero(~np.isin(touched, lacking))
        told = concatenate([told, self.tell(boundary, touched[settled], take_skylines(before, settled))])
        self.engine.subscriptions.remove(leaving)
        self.engine.forget(lacking)
        return told, RefillNeeded(lacking, take_skylines(before, np.searchsorted(touched, lacking)))

    def question(self, slots: Int32) -> SkylineQueries:
        return self.engine.subscriptions.queries(slots)

    def tell(self, boundary: Boundary, slots: Int32, before: SkylineRows) -> UpdateBatch:
        """Updates of slots that held `before` and now are at the boundary; leaves first. O(entries)."""
        after = self.engine.candidates.held(slots, boundary.floor)
        room = before.seq.shape[0] + after.seq.shape[0]
        row, seq = np.empty(room, np.int32), np.empty(room, np.int64)
        score, enters = np.empty(room), np.empty(room, np.bool_)
        told = difference(before, after, row, seq, score, enters)
        change = np.where(enters[:told], ENTER, LEAVE).astype(np.int8)
        numbers = self.engine.subscriptions.slots.number[slots][row[:told]]
        return UpdateBatch(np.full(told, boundary.last_seq), numbers, seq[:told], change, score[:told])

    # -- what is held

    def results(self) -> ResultBatch:
        slots = self._at_home()
        held = self.engine.candidates.held(slots, self.pending.closed.floor)
        lengths = np.diff(held.offsets)
        row = np.repeat(np.arange(slots.shape[0]), lengths)
        order = np.lexsort((held.seq, -held.spatial, row))
        rank = np.arange(row.shape[0]) - np.repeat(held.offsets[:-1], lengths) + 1
        numbers = self.engine.subscriptions.slots.number[slots][row]
        return ResultBatch(
            numbers, rank.astype(np.int32), held.seq[order], held.spatial[order], held.text[order]
        )  # fmt: skip

    def report(self) -> dict[str, Any]:
        return {
            "at_home": self._at_home().shape[0],
            "requests": self.pending.requests,
            "refills": self.pending.asked,
            "pairs": self.pairs,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        return self.engine.arrays() | {"home": self._home, "waits": self.pending.waits}

    def state(self) -> State:
        slots = self._at_home()
        state = State.of(self.engine.subscriptions.table(slots))
        rows, entries = self.engine.state(slots)
        state.rows.update(rows)
        state.lists["kept"] = entries
        return state

    def restore(self, boundary: Boundary, state: State, home: Int64, held: Bools) -> None:
        rows = np.flatnonzero(held)
        state, home = state.take(rows), home[rows]
        slots = self.engine.insert(state.table)
        self._ensure_slots()
        self._home[slots] = home
        mine = np.flatnonzero(home == self.site.task)
        self.engine.restore(slots[mine], state.take(mine), boundary.floor)
        self._matched = boundary
        self.pending.start_at(boundary)

    # -- inside

    def _at_home(self) -> Int32:
        slots = self.engine.subscriptions.live_slots()
        return slots[self._home[slots] == self.site.task]

    def _ensure_slots(self) -> None:
        capacity = self.engine.subscriptions.capacity
        self.pending.ensure_slots(capacity)
        if self._home.shape[0] < capacity:
            self._home = resized(self._home, capacity)

    def _found(self, offers: Offers, lost_slots: Int32, lost_seqs: Int64) -> SkylineHits:
        """Pairs by number instead of slot."""
        number = self.engine.subscriptions.slots.number
        return SkylineHits(number[offers.slot], *offers[1:], number[lost_slots], lost_seqs)

    def _with_found(self, news: BatchDelta, found: list[SkylineHits]) -> BatchDelta:
        """With what others found for those at home here."""
        if not found:
            return news
        slots = [self._slots_of(each.number, news.boundary) for each in found]
        lost = [self._slots_of(each.lost_number, news.boundary) for each in found]
        theirs = (
            Offers(of, each.seq, each.life, each.spatial, each.text) for of, each in zip(slots, found, strict=True)
        )
        return news._replace(
            offers=concatenate([news.offers, *theirs]),
            lost_slots=np.concatenate([news.lost_slots, *lost]),
            lost_seqs=np.concatenate([news.lost_seqs, *(each.lost_seq for each in found)]),
        )

    def _slots_of(self, wanted: Int64, boundary: Boundary) -> Int32:
        slots = self.engine.subscriptions.find(wanted)
        if np.any(slots < 0):
            raise EngineError(
                f"skyline: task {self.site.task} was sent finds of batch {boundary.number} for subscription "
                f"{wanted[slots < 0][0]}, which is not here; whoever closes a batch must first hear all other tasks"
            )
        return slots

    def _check(self, boundary: Boundary, messages: MessageBatch) -> None:
        last, seq = self._matched, messages.seq
        if boundary.number != last.number + 1 or boundary.first_seq != last.last_seq + 1 or boundary.floor < last.floor:
            raise EngineError(f"skyline: {boundary} cannot follow {last}; feed every batch once, in order")
        if seq.shape[0] and not (boundary.first_seq <= seq[0] and seq[-1] <= boundary.last_seq):
            raise EngineError(f"skyline: messages {seq[0]}..{seq[-1]} do not lie inside {boundary}")

    def _find_removed(self, turn: OperatorInput) -> tuple[Int32, SubscriptionTable]:
        """Slots of the removed that have been here before this batch, and who of the added is not removed in it."""
        added, gone = turn.added, turn.removed.number
        if not turn.held.all():
            added = added.take(np.flatnonzero(turn.held))
        known = self.engine.subscriptions.find(added.number) >= 0
        if np.any(known) or np.unique(added.number).shape[0] < len(added):
            which = added.number[known][0] if np.any(known) else "of this batch"
            raise EngineError(f"skyline: subscription {which} cannot be added: numbers are never used twice")
        slots = self.engine.subscriptions.find(gone)
        staying = added.take(np.flatnonzero(~np.isin(added.number, gone))) if gone.size else added
        return slots[slots >= 0], staying


_NOTHING_OFFERED = Offers(np.zeros(0, np.int32), _NONE, _NONE, np.zeros(0), np.zeros(0))
