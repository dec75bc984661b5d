"""The operator of cumulative kinds in a stream of objects: the best of the living objects, as they are now.

There is no time since registration here: a subscription starts from the living objects, and a member of its result may
end, or come worse. So an engine has the best `spare(k)` of each (`Living`), and drops what is worse than the last of
them: whatever it has dropped ranks below all that it has. While k are left the first k are the result. If fewer are,
the window is queried as of that boundary (`matching.refill`), and the subscription is taken out of the engine until the
answer has been brought up to the last boundary, batch by batch, in an engine of its own. So thresholds never fall in an
engine, and neither lists nor blocks nor balls have to know that they may. Base of `matching.decay.operator` and
`matching.knn.operator`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from matching.cumulative.answers import LivingAnswers, LivingEntries
from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.results import CumulativeRows
from matching.errors import EngineError
from matching.living import Holders, Succession, Successions
from matching.model import (
    Float64,
    Int32,
    Int64,
    MessageBatch,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
)
from matching.operator import (
    Bools,
    Matched,
    OperatorContext,
    OperatorInput,
    OperatorOutput,
    OperatorSnapshot,
    Windowed,
    Work,
)
from matching.refill import RefillCoordinator, RefillNeeded
from matching.result_rows import ResultRows, join_results, ranks, take_results
from matching.storage.slots import grown, resized
from matching.storage.state import RaggedColumns, State
from matching.window import NO_FLOOR, Boundary

_NO_SLOTS = np.zeros(0, np.int32)


def spare(k: Int32) -> Int32:
    """How many of the best an engine has, of those that k are wanted of; `wanted` is its inverse. O(n)."""
    return (2 * k + 8).astype(np.int32)


def wanted(spare_k: Int32) -> Int32:
    """The k of subscriptions of which an engine has `spare_k`. O(n)."""
    return ((spare_k - 8) // 2).astype(np.int32)


class LivingRows(NamedTuple):
    """What an engine has of subscriptions: entries, the threshold (float64[n]) and whether it has ever had all that it
    may have (`filled`, bool[n]), so that others have been dropped.
    """

    entries: LivingEntries
    threshold: Float64
    filled: Bools


class Advanced(NamedTuple):
    """Effect of a batch: slots whose entries have changed (ascending), their results before, and which have too few."""

    slots: Int32
    before: ResultRows
    short: Bools


class _Lives:
    """How long versions live that were offered to results, some of which are in none any more."""

    def __init__(self):
        self.rows = np.zeros((0, 2), np.int64)  # seq and life
        self._count, self._least = 0, -NO_FLOOR  # rows in use, and below the life of each of them

    def add(self, seq: Int64, life: Int64) -> None:
        """Note versions. O(n), amortised."""
        begin, self._count = self._count, self._count + seq.shape[0]
        self.rows = grown(self.rows, self._count)
        self.rows[begin : self._count] = np.stack([seq, life], axis=1)
        self._least = min(self._least, int(life.min(initial=self._least)))

    def pop(self, floor: int) -> Int64:
        """Seqs whose life is not above the floor; they are dropped. O(n) where there are any."""
        rows = self.rows[: self._count]
        if self._least > floor:
            return rows[:0, 0]
        goes = rows[:, 1] <= floor
        gone, stay = rows[goes, 0], rows[~goes]
        self._count, self._least = 0, -NO_FLOOR
        self.add(*stay.T)
        return gone

    def of(self, seq: Int64) -> Int64:
        """Lives of versions that have been noted. O(n log n)."""
        seqs, lives = self.rows[: self._count].T
        order = np.argsort(seqs, kind="stable")
        return lives[order[np.searchsorted(seqs, seq, sorter=order)]]


class Living:
    """An engine, and what it has of the living versions.

    Parameters
    ----------
    engine : CumulativeEngine    empty
    """

    def __init__(self, engine: CumulativeEngine):
        self.engine = engine
        self.filled = np.zeros(0, np.bool_)
        self._holders, self._lives = Holders(), _Lives()

    def insert(self, table: SubscriptionTable, rows: LivingRows | None = None) -> Int32:
        """Add subscriptions, whose k is that of the engine (`spare`); returns their slots."""
        if rows is None:
            slots = self.engine.insert(table)
        else:
            offsets, seq, key, life = rows.entries
            slots = self.engine.insert(table, CumulativeRows(offsets, seq, key), rows.threshold)
            self._holders.add(np.repeat(slots, np.diff(offsets)), seq)
            self._lives.add(seq, life)
        if self.filled.shape[0] < self.engine.subscriptions.capacity:
            self.filled = resized(self.filled, self.engine.subscriptions.capacity)
        self.filled[slots] = False if rows is None else rows.filled
        return slots

    def rows(self, slots: Int32) -> LivingRows:
        """What it has of slots. O(n log n) of the versions in results."""
        columns, entries = self.engine.subscriptions.columns, self.engine.best.rows(slots)
        entries = LivingEntries(*entries, self._lives.of(entries.seq))
        return LivingRows(entries, columns.threshold[slots], self.filled[slots])

    def results(self, slots: Int32) -> ResultRows:
        """The results of slots, best first. O(entries)."""
        offsets, seq, key = self.engine.best.rows(slots)
        k = wanted(self.engine.subscriptions.columns.k[slots])
        return _first(slots, k, np.repeat(slots, np.diff(offsets)), seq, key)

    def advance(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> tuple[Advanced, Work]:
        """Drop what has ended (seqs) or expired, and match a batch: versions that stand at its boundary."""
        engine, best = self.engine, self.engine.best
        best.begin_batch(boundary.number, boundary.first_seq)
        ended = np.union1d(ended, self._lives.pop(boundary.floor))
        lost = best.drop(self._holders.pop(ended), ended)
        work = engine.match(messages) if len(engine) and len(messages) else Work()
        (in_slot, in_seq, _), out = best.logged()
        self._holders.add(in_slot, in_seq)
        came = np.flatnonzero(np.isin(messages.seq, in_seq))
        self._lives.add(messages.seq[came], messages.life[came])
        gone = [np.concatenate(column) for column in zip(lost, out, strict=True)]
        slots = np.unique(np.concatenate([in_slot, gone[0]])).astype(np.int32)
        columns, count = engine.subscriptions.columns, best.view.count[slots]
        self.filled[slots] |= count == columns.k[slots]
        short = self.filled[slots] & (count < wanted(columns.k[slots]))
        # of those without a relevance the older would come first, and they may have been dropped
        short |= self.filled[slots] & (columns.threshold[slots] == -np.inf) & np.isin(slots, lost[0])
        self._renew_notes()
        offsets, seq, key = best.rows(slots)
        now = np.repeat(slots, np.diff(offsets)), seq, key
        was = _without([np.concatenate(column) for column in zip(now, gone, strict=True)], in_slot, in_seq)
        return Advanced(slots, _first(slots, wanted(columns.k[slots]), *was), short), work

    def _renew_notes(self) -> None:
        """Make the notes anew once most are about what is in no result any more. O(1), amortised."""
        if not self._holders.is_stale(0):
            return
        slots = self.engine.subscriptions.live_slots()
        if self._holders.is_stale(int(self.engine.best.view.count[slots].sum())):
            offsets, seq, _ = self.engine.best.rows(slots)
            seqs = np.unique(seq)
            lives = self._lives.of(seqs)
            self._holders, self._lives = Holders(), _Lives()
            self._holders.add(np.repeat(slots, np.diff(offsets)), seq)
            self._lives.add(seqs, lives)

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory."""
        notes = {f"holders_{name}": each for name, each in self._holders.arrays().items()}
        return self.engine.arrays() | notes | {"filled": self.filled, "lives": self._lives.rows}


def _without(rows: list[np.ndarray], slot: Int32, seq: Int64) -> tuple[Int32, Int64, Float64]:
    """Rows of slot, seq and key but those with these pairs, each of which is among them. O(n log n)."""
    every_slot, every_seq = np.concatenate([rows[0], slot]), np.concatenate([rows[1], seq])
    order = np.lexsort((every_seq, every_slot))
    same = (every_slot[order][1:] == every_slot[order][:-1]) & (every_seq[order][1:] == every_seq[order][:-1])
    keep = np.ones(order.shape[0], np.bool_)
    keep[order[1:][same]] = keep[order[:-1][same]] = False
    keep = keep[: rows[0].shape[0]]
    return rows[0][keep], rows[1][keep], rows[2][keep]


def _first(slots: Int32, k: Int32, slot: Int32, seq: Int64, key: Float64) -> ResultRows:
    """The first k entries of each of the slots (each once), best first, of equal keys the older first. O(n log n)."""
    at = np.argsort(slots, kind="stable")
    row = at[np.searchsorted(slots[at], slot)]
    order = np.lexsort((seq, -key, row))
    row = row[order]
    rank = np.arange(row.shape[0]) - np.searchsorted(row, row)
    order = order[rank < k[row]]
    offsets = np.zeros(slots.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(row[rank < k[row]], minlength=slots.shape[0]), out=offsets[1:])
    return ResultRows(offsets, seq[order], key[order])


class _Batch(NamedTuple):
    """A batch as `matching.refill` puts it by: versions that stand, what has ended, slots that leave."""

    boundary: Boundary
    messages: MessageBatch
    ended: Int64
    leaving: Int32 = _NO_SLOTS

    def of(self, chosen: Bools) -> "_Batch":
        """As `matching.refill.BatchDelta.of`."""
        return self._replace(leaving=self.leaving[chosen[self.leaving]])


class _Matched(NamedTuple):
    """A batch, and the changes of subscriptions."""

    batch: _Batch
    added: SubscriptionTable
    gone: Int64
    succession: Succession


class LivingOperator(Windowed):
    """Subscriptions of one cumulative kind at one query task, in a stream of objects.

    Parameters
    ----------
    engine : callable    makes a `CumulativeEngine`
    context : OperatorContext
    """

    serves_objects = True
    #: Factor from key to reported score: -1 for kinds of which less is better.
    sign: ClassVar[float] = 1.0

    def __init__(self, engine: Callable[..., CumulativeEngine], context: OperatorContext):
        self.context = context
        self._make = lambda: Living(self.make_engine(engine, context))
        self.living = self._make()
        self._late = self.living  # of the refill that is being installed
        self.refills = RefillCoordinator(self)
        self._matched = self.refills.closed
        self._closing = np.zeros(0, np.bool_)  # slot is unsubscribed, but its refill is still outstanding
        self._successions = Successions()

    def make_engine(self, engine: Callable[..., CumulativeEngine], context: OperatorContext, /) -> CumulativeEngine:
        """An empty engine for a context."""
        return engine(context.space)

    def __len__(self) -> int:
        return len(self.living.engine) - int(np.count_nonzero(self._closing))

    @property
    def watermark(self) -> int:
        return self.refills.watermark

    @property
    def _subscriptions(self):
        return self.living.engine.subscriptions

    def contains(self, numbers: Int64) -> Bools:
        return self._subscriptions.find(numbers) >= 0

    # -- a batch

    def match(self, batch_input: OperatorInput, /) -> Matched:
        boundary, messages = batch_input.boundary, batch_input.messages
        if boundary.number != self._matched.number + 1:
            raise EngineError(f"{self.kind}: batch {boundary.number} cannot follow batch {self._matched.number}")
        if np.any(batch_input.home != self.context.task):
            raise EngineError(f"{self.kind}: a subscription must be assigned to its home task")
        ended = batch_input.ended.seq
        succession = Succession.of(messages, ended)
        self._matched = boundary
        messages = messages.take(np.flatnonzero((messages.life > boundary.floor) & ~np.isin(messages.seq, ended)))
        batch = _Batch(boundary, self.seen(messages), ended)
        return Matched(_Matched(batch, batch_input.added, batch_input.removed.number, succession))

    def seen(self, messages: MessageBatch) -> MessageBatch:
        """The messages that the kind sees at all."""
        return messages

    def close(self, mine: _Matched, found: list[Any]) -> OperatorOutput:
        batch, boundary = mine.batch, mine.batch.boundary
        self.refills.closed = boundary
        self._successions.note(boundary, mine.succession, self.refills.watermark, mine.gone)
        staying = np.flatnonzero(~np.isin(mine.added.number, mine.gone))
        added = self._spared(mine.added.take(staying))
        gone = self._subscriptions.find(mine.gone)
        gone = gone[gone >= 0]
        waiting = self.refills.waits[gone]
        leaving = gone[~waiting]
        self._closing[gone[waiting]] = True
        updates = [self._changes(boundary, self._numbers(leaving), self.living.results(leaving), None)]
        self.living.engine.remove(leaving)
        fresh = _NO_SLOTS
        if boundary.first_seq == 0:  # nothing lives yet but what this batch brings
            self._insert(added)
        advanced, work = self.living.advance(boundary, batch.messages, batch.ended)
        if self.refills:
            self.refills.defer(batch._replace(leaving=gone[waiting]))
        whole, short = np.flatnonzero(~advanced.short), np.flatnonzero(advanced.short)
        now = self.living.results(advanced.slots[whole])
        numbers = self._numbers(advanced.slots[whole])
        updates.append(self._changes(boundary, numbers, take_results(advanced.before, whole), now))
        if boundary.first_seq != 0:
            fresh = self._insert(added)
        slots, requests = np.concatenate([advanced.slots[short], fresh]), ()
        if slots.shape[0]:
            before = join_results([take_results(advanced.before, short), self.living.results(fresh)])
            self.living.engine.withdraw(slots)
            self.living.engine.best.clear(slots)
            requests = (self.refills.begin(boundary, slots, before),)
        return OperatorOutput(concatenate(updates), requests, work=work)

    def pass_over(self, boundary: Boundary) -> None:
        self._matched = self.refills.closed = boundary

    # -- answers

    def answer(self, request: int, body: LivingAnswers) -> OperatorOutput:
        installed = self.refills.install(request, body)
        assert installed is not None, "an answer is as of a boundary that has been closed"
        updates, requests, slots = installed
        # back into the engine, as of the last boundary closed
        numbers, table = self._numbers(slots), self._subscriptions.rows(slots)
        rows = self._late.rows(self._late.engine.find(numbers))
        self.living.engine.release(slots)
        self._insert(table, rows)
        self._late = self.living
        return OperatorOutput(concatenate(updates), tuple(requests))

    def query(self, slots: Int32) -> SubscriptionTable:
        return self._subscriptions.rows(slots)

    def refill(self, slots: Int32, body: LivingAnswers, as_of: Boundary) -> None:
        table = self._subscriptions.rows(slots)
        self._late = self._make()
        filled = np.diff(body.offsets) == table.k
        entries = LivingEntries(*body[1:])
        threshold = np.full(slots.shape[0], -np.inf)
        threshold[filled] = body.key[body.offsets[1:][filled] - 1]
        self._late.insert(table, LivingRows(entries, threshold, filled))

    def advance(self, past: Boundary, delta: _Batch, slots: Int32) -> tuple[UpdateBatch, RefillNeeded]:
        late, updates = self._late, []
        if delta.leaving.shape[0]:
            numbers = self._numbers(delta.leaving)
            of_late = late.engine.find(numbers)
            updates.append(self._changes(delta.boundary, numbers, late.results(of_late), None))
            late.engine.remove(of_late)
            self._closing[delta.leaving] = False
            self.living.engine.release(delta.leaving)
        advanced, _ = late.advance(delta.boundary, delta.messages, delta.ended)
        whole, short = np.flatnonzero(~advanced.short), np.flatnonzero(advanced.short)
        numbers, now = late.engine.numbers(advanced.slots), late.results(advanced.slots[whole])
        updates.append(self._changes(delta.boundary, numbers[whole], take_results(advanced.before, whole), now))
        late.engine.remove(advanced.slots[short])
        again = self._subscriptions.find(numbers[short])
        return concatenate(updates), RefillNeeded(again, take_results(advanced.before, short))

    def result_updates(self, boundary: Boundary, slots: Int32, before: ResultRows) -> UpdateBatch:
        """The updates from an earlier result to that of the answer which is being installed."""
        numbers = self._numbers(slots)
        return self._changes(boundary, numbers, before, self._late.results(self._late.engine.find(numbers)))

    # -- results and state

    def results(self) -> ResultBatch:
        slots = self._settled()
        rows = self.living.results(slots)
        numbers = np.repeat(self._numbers(slots), np.diff(rows.offsets))
        return ResultBatch(numbers, ranks(rows.offsets), rows.seq, self.sign * rows.score)

    def report(self) -> dict[str, Any]:
        return {"homed": len(self), "requests": self.refills.requests, "refills": self.refills.queried}

    def arrays(self) -> dict[str, np.ndarray]:
        return self.living.arrays() | {"waits": self.refills.waits, "closing": self._closing}

    def snapshot(self, stored: int | None = None) -> OperatorSnapshot:
        slots = self._settled()
        entries, threshold, filled = self.living.rows(slots)
        state = State.of(self._subscriptions.rows(slots))
        columns = {"seq": entries.seq, "key": entries.key}
        columns |= {"life": entries.life} if self.context.window.kind == "time" else {}
        lists = {"best": RaggedColumns(entries.offsets, columns)}
        state = state.beside(State({"bound": threshold, "filled": filled}, lists, {}))
        return OperatorSnapshot(None, None, lambda: state)

    def restore(self, boundary: Boundary, state: State, home: Int64, assigned: Bools) -> None:
        mine = state.take(np.flatnonzero(assigned))
        best = mine.lists["best"]
        entries = LivingEntries(best.offsets, **{"life": best.columns["seq"]} | best.columns)  # of a count they are one
        rows = LivingRows(entries, mine.rows["bound"], mine.rows["filled"])
        self._insert(mine.table, rows)
        self._matched = boundary
        self.refills.start_at(boundary)

    # -- inside

    @property
    def kind(self) -> str:
        """Name for messages of errors."""
        return type(self).__name__

    def _numbers(self, slots: Int32) -> Int64:
        return self.living.engine.numbers(slots)

    def _settled(self) -> Int32:
        """Slots that wait for no refill."""
        slots = self._subscriptions.live_slots()
        return slots[~self.refills.waits[slots]]

    def _spared(self, table: SubscriptionTable) -> SubscriptionTable:
        """Subscriptions as an engine takes them: more entries than are wanted, and all that lives, whenever it came."""
        return table.having(k=spare(table.k), at=np.zeros(len(table), np.int64))

    def _insert(self, table: SubscriptionTable, rows: LivingRows | None = None) -> Int32:
        slots = self.living.insert(table, rows)
        self._successions.add(table)
        capacity = self._subscriptions.capacity
        self.refills.ensure_slots(capacity)
        if self._closing.shape[0] < capacity:
            self._closing = resized(self._closing, capacity)
        return slots

    def _changes(self, boundary: Boundary, number: Int64, before: ResultRows, now: ResultRows | None) -> UpdateBatch:
        """Updates of subscriptions (int64[rows]) from one result to the next; None: to none."""
        if now is None:
            now = ResultRows(np.zeros(number.shape[0] + 1, np.int64), before.seq[:0], before.score[:0])
        updates = self._successions.difference(boundary, number, before, now)
        return UpdateBatch(updates.as_of, updates.number, updates.seq, updates.change, self.sign * updates.score)
