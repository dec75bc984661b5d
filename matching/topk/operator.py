"""The operator of `topk`: standing top-k results over a stream, for the subscriptions homed on one query task.

For every batch the engine (`matching.topk.engine`) finds the messages that reach a subscription's threshold, the
result buffers (`matching.topk.results`) insert the hits and drop the expired, and the differences of the results are
emitted. A buffer with fewer than k messages is refilled (`matching.refill`): the window is queried for the best
messages as of that boundary and for later ones, since a subscription is not matched while it waits. A new subscription
gets its first result by a refill too, from an empty one.

In a stream of objects members of a result end before they expire. What others dominate may then return, so buffers have
all that reaches their threshold, and the rule that needs no dominance sets it (`k_max`).

Where routers place subscriptions by keyword, replicas (`matching.topk.replicas`) match in place of the engine, on this
and other tasks, and send `ReplicaHits` to the home.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from matching.errors import EngineError
from matching.living import NO_SUCCESSION, Holders, Succession, Successions
from matching.model import (
    ENTER,
    LEAVE,
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
    NO_SEQS,
    NO_THRESHOLDS,
    Bools,
    Matched,
    OperatorContext,
    OperatorInput,
    OperatorOutput,
    OperatorSnapshot,
    Relax,
    Replicated,
    Thresholds,
    WindowRequest,
    Work,
)
from matching.refill import BatchDelta, RefillCoordinator, RefillNeeded
from matching.result_rows import ResultRows, join_results, ranks, result_updates, take_results
from matching.space import Space
from matching.storage.point_subscriptions import take_ragged_at
from matching.storage.slots import resized
from matching.storage.state import RaggedColumns, State
from matching.topk.engine import TopkEngine
from matching.topk.offers import NO_SLOTS, Offers, distinct, join_offers
from matching.topk.replicas import HomeEngine, ReplicaHits, Replicas
from matching.topk.results import ResultBuffers
from matching.topk.thresholds import NO_DOMINANCE, KMaxRule
from matching.topk.thresholds import rule as threshold_rule
from matching.topk.window import WindowAnswers, WindowQueries
from matching.window import Boundary

_EVERY_HIT = 1 << 21


class _Matched(NamedTuple):
    """A batch after matching by replicas, if there are any, with the changes of subscriptions homed on this task."""

    boundary: Boundary
    messages: MessageBatch
    added: SubscriptionTable
    gone: Int64
    found: ReplicaHits | None
    work: Work
    ended: Int64 = NO_SEQS
    succession: Succession = NO_SUCCESSION


class TopkOperator(Replicated):
    """Results of top-k subscriptions over the stream; see `matching.operator.KindOperator`.

    Parameters
    ----------
    engine : callable    makes a `TopkEngine`
    context : OperatorContext    its option `threshold_rule` names the rule (`matching.topk.thresholds`)
    """

    serves_objects = True

    def __init__(self, engine: Callable[[Space], TopkEngine], context: OperatorContext):
        self.context = context
        self.rule = threshold_rule(
            context.options.get("threshold_rule") or (KMaxRule.name if context.objects else None)
        )
        index = engine(context.space)
        self.replicas = Replicas(index, context) if context.replicates else None
        self.engine = HomeEngine(context.space) if context.replicates else index
        self.buffers = ResultBuffers(context.window.kind == "count" and not context.objects, context.objects)
        self.holders = Holders() if context.objects and not context.replicates else None
        self._successions = Successions()
        # replicas match by thresholds of their own: their hits for subscriptions that wait for a refill are buffered
        self.refills = RefillCoordinator(self, None if context.replicates else self)
        self._matched = self.refills.closed
        self._closing = np.zeros(0, np.bool_)  # slot is unsubscribed, but its refill is still outstanding
        self._version = np.zeros(0, np.int64)
        self._spans: list[tuple[int, int]] = []  # (floor, last seq) of the batches a time window reaches back to
        self._stamp = np.zeros(0, np.int64)  # number of the engine call that last hit a slot
        self._last_stamp = 0
        self._count_by_k = np.zeros(0, np.int64)  # subscriptions by k

    def __len__(self) -> int:
        return len(self.engine) - int(np.count_nonzero(self._closing))

    @property
    def watermark(self) -> int:
        return self.refills.watermark

    def contains(self, numbers: Int64) -> Bools:
        here = self.engine.subscriptions.find(numbers) >= 0
        return here if self.replicas is None else here | self.replicas.engine.contains(numbers)

    # -- a batch

    def match(self, batch_input: OperatorInput) -> Matched:
        boundary, home = batch_input.boundary, batch_input.home == self.context.task
        if boundary.number != self._matched.number + 1:
            raise EngineError(f"topk: batch {boundary.number} cannot follow batch {self._matched.number}")
        self._matched = boundary
        added = batch_input.added if home.all() else batch_input.added.take(np.flatnonzero(home))
        if self.context.objects and self.replicas is not None and len(batch_input.added):
            raise EngineError("topk: no router with replicas serves a stream of objects; choose another one")
        # results are compared at boundaries: what came and expired since the last one is in none
        messages = batch_input.messages.alive(boundary.floor)
        if self.holders is not None:
            ended = batch_input.ended.seq
            succession = Succession.of(batch_input.messages, ended)
            messages = messages.take(np.flatnonzero(~np.isin(messages.seq, ended)))
            gone = batch_input.removed.number
            return Matched(_Matched(boundary, messages, added, gone, None, Work(), ended, succession))
        if self.replicas is None:
            return Matched(_Matched(boundary, messages, added, batch_input.removed.number, None, Work()))
        per_home, work = self.replicas.process(batch_input._replace(messages=messages))
        own = _Matched(boundary, messages, added, batch_input.removed.number, per_home[self.context.task], work)
        return Matched(own, tuple(per_home))

    def close(self, mine: _Matched, found: list[ReplicaHits]) -> OperatorOutput:
        """Close the next batch; replicas may send hits below the present threshold or of removed subscriptions."""
        boundary = mine.boundary
        began_empty = boundary.first_seq == 0
        self.refills.closed = boundary
        self._successions.note(boundary, mine.succession, self.refills.watermark, mine.gone)
        # a subscription added and removed at one boundary has no updates
        added = mine.added
        if len(added) and mine.gone.size:
            added = added.take(np.flatnonzero(~np.isin(added.number, mine.gone)))
        gone = self.engine.subscriptions.find(mine.gone)
        gone = gone[gone >= 0]
        # a slot removed at this boundary is not matched and ends with an empty result
        waiting = self.refills.waits[gone]
        leaving = gone[~waiting]
        self._closing[gone[waiting]] = True
        before_leaving = self.buffers.results(leaving, self._k)
        self.engine.withdraw(gone)
        self.refills.waits[leaving] = True  # skipped until their slots are freed
        fresh = self._add(added) if began_empty else NO_SLOTS
        offered = None if mine.found is None else concatenate([mine.found, *found])
        taken = self._match_and_offer(boundary, mine.messages, offered, mine.ended)
        if self.refills:
            self.refills.defer(BatchDelta(boundary, taken.queued, gone[waiting], ended=mine.ended))
        updates = taken.updates
        if leaving.size:
            updates = concatenate([updates, self._forget(boundary, leaving, before_leaving)])
        requests, relaxes = [], []
        if not began_empty and len(added):  # their first answer has the hits of this batch
            fresh = self._add(added)
            requests.append(self._request(boundary, fresh, self.buffers.results(fresh, self._k)))
        short = taken.refill_needed.slots
        if short.size:
            request = self._request(boundary, *taken.refill_needed)
            if self.context.relaxes:
                self._version[short] += 1
                relaxes.append(self._relax(request.request))
            else:
                requests.append(request)
        self._observe(boundary, short)
        matched = ~self.refills.waits[taken.touched]
        raised = self._raise(taken.touched[matched], taken.count[matched])
        output = OperatorOutput(updates, tuple(requests), tuple(relaxes), raised, mine.work.plus(taken.work))
        for number, body in self.refills.early():
            output = output.plus(self.answer(number, body))
        self._renew_notes()
        return output

    def pass_over(self, boundary: Boundary) -> None:
        self._matched = self.refills.closed = boundary
        self._observe(boundary, NO_SLOTS)  # the rule learns the size of the window

    # -- answers

    def answer(self, request: int, body: WindowAnswers) -> OperatorOutput:
        installed = self.refills.install(request, body)
        if installed is None:
            return OperatorOutput()
        updates, requests, slots = installed
        # the engine gets the thresholds only after the replay
        self.engine.set_thresholds(slots, self.engine.subscriptions.columns.threshold[slots])
        self._raise(slots, self.buffers.view.count[slots])
        raised = self._thresholds(slots)
        work = Work(matched=int((body.after == 0).sum()))
        return OperatorOutput(
            concatenate(updates),
            tuple(requests),
            (),
            self._apply_to_replicas(take_rows(raised, raised.threshold > -np.inf)),
            work,
        )

    def relaxed(self, request: int, last_batch: int) -> WindowRequest:
        return self.refills.extend(request, last_batch)

    def refill(self, slots: Int32, body: WindowAnswers, as_of: Boundary) -> Offers:
        self.buffers.clear(slots)
        self.rule.refilled(self._k[slots], body.read)
        self.engine.subscriptions.columns.threshold[slots] = body.threshold
        self._offer(_answered(slots, body, after=0))
        return _answered(slots, body, after=1)

    def resume(self, slots: Int32, body: WindowAnswers) -> WindowQueries:
        open_ = ~self._closing[slots]
        self.engine.set_thresholds(slots[open_], body.threshold[open_])
        return self.query(slots)._replace(threshold=body.threshold)

    def later_hits(self, slots: Int32, body: WindowAnswers) -> Offers:
        return _answered(slots, body, after=1)

    def advance(self, past: Boundary, delta: BatchDelta, slots: Int32) -> tuple[UpdateBatch, RefillNeeded]:
        before = self.buffers.results(slots, self._k)
        last_updates, closing = [], self._slot_mask(delta.leaving)[slots]
        if delta.leaving.size:
            had = take_results(before, np.flatnonzero(closing))
            last_updates.append(self._forget(delta.boundary, slots[closing], had))
            slots, before = slots[~closing], take_results(before, np.flatnonzero(~closing))
            delta = delta.of(self._slot_mask(slots))
        hits = delta.offers.score >= self.engine.subscriptions.columns.threshold[delta.offers.slot]
        if delta.ended.shape[0]:
            self.buffers.drop(slots, delta.ended)
            hits &= ~np.isin(delta.offers.seq, delta.ended)
        self._offer(take_rows(delta.offers, hits))
        updates, refill_needed = self._end(delta.boundary, slots, before)
        if refill_needed.slots.size:
            self._unset(refill_needed.slots)
        return concatenate([*last_updates, updates]), refill_needed

    def query(self, slots: Int32) -> WindowQueries:
        c = self.engine.subscriptions.columns
        offsets, picked = take_ragged_at(c.term_start[slots], c.term_count[slots])
        filter_offsets, filter_words = self.engine.subscriptions.filters.columns(slots)
        # of several tasks each is likely to have its share of the best, and has to answer k of them
        ranks = self.rule.ranks(c.k[slots])
        share = ranks / self.context.window_tasks
        ranks = np.minimum(ranks, np.maximum(c.k[slots], np.ceil(share + np.sqrt(share)))).astype(np.int32)
        return WindowQueries(
            c.number[slots], *self.engine.subscriptions.places(slots), c.alpha[slots], c.max_distance[slots],
            ranks, offsets, c.terms[picked], c.weights[picked],
            filter_offsets=filter_offsets, filter_words=filter_words, vector=self.engine.subscriptions.vectors(slots),
        )  # fmt: skip

    def result_updates(self, boundary: Boundary, slots: Int32, before: ResultRows) -> UpdateBatch:
        """The updates from an earlier result to the present one."""
        number = self.engine.subscriptions.columns.number[slots]
        now = self.buffers.results(slots, self._k)
        if self.holders is None:
            return result_updates(boundary, number, before, now)
        return self._successions.difference(boundary, number, before, now)

    # -- replicas

    def register(self, home: int, number: Int64, version: Int64, rows: SubscriptionTable, changes_through: int) -> None:
        assert self.replicas is not None, "only routers that replicate register"
        self.replicas.register(home, number, version, rows, changes_through)

    def raise_thresholds(self, raised: Thresholds) -> None:
        assert self.replicas is not None, "only replicas receive thresholds"
        self.replicas.raise_thresholds(raised)

    def replica_tasks(self, numbers: Int64) -> Bools:
        assert self.replicas is not None, "only replicas receive thresholds"
        c = self.engine.subscriptions.columns
        slots = self.engine.subscriptions.find(numbers)
        offsets, places = take_ragged_at(c.term_start[slots], c.term_count[slots])
        return self.replicas.tasks_of(offsets, c.terms[places])

    # -- state

    def results(self) -> ResultBatch:
        slots = self.engine.subscriptions.live_slots()
        slots = slots[~self.refills.waits[slots]]
        rows = self.buffers.results(slots, self._k)
        numbers = np.repeat(self.engine.subscriptions.columns.number[slots], np.diff(rows.offsets))
        return ResultBatch(numbers, ranks(rows.offsets), rows.seq, rows.score)

    def report(self) -> dict[str, Any]:
        figures = {"thresholds": self.rule.describe(), "buffers": self.buffers.describe()}
        if self.replicas is not None:
            figures["replicas_held"] = len(self.replicas)
        return figures | {"homed": len(self), "requests": self.refills.requests, "refills": self.refills.queried}

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {f"index_{name}": value for name, value in self.engine.arrays().items()}
        if self.replicas is not None:
            arrays |= {f"replicas_{name}": value for name, value in self.replicas.engine.arrays().items()}
        arrays |= {f"buffers_{name}": value for name, value in self.buffers.arrays().items()}
        arrays |= (
            {} if self.holders is None else {f"holders_{key}": each for key, each in self.holders.arrays().items()}
        )
        return arrays | {"version": self._version, "waits": self.refills.waits, "stamp": self._stamp}

    def snapshot(self, stored: int | None = None) -> OperatorSnapshot:
        subscriptions, buffers = self.engine.subscriptions, self.buffers.snapshot()
        version, slots = subscriptions.slots.changes, subscriptions.live_slots()
        columns = {"threshold": subscriptions.columns.threshold[slots], "version": self._version[slots]}
        whole = {"rule": self.rule.state(), "spans": np.array(self._spans, np.int64).reshape(-1, 2)}
        if version != stored:
            subscriptions = subscriptions.snapshot()

        def results() -> State:
            offsets, seq, life, score = buffers.entries(slots)
            return State(columns, {"buffer": RaggedColumns(offsets, {"seq": seq, "life": life, "score": score})}, whole)

        return OperatorSnapshot(version, lambda: State.of(subscriptions.rows(slots)), results)

    def restore(self, boundary: Boundary, state: State, home: Int64, assigned: Bools) -> None:
        mine = np.flatnonzero(home == self.context.task)
        own = state.take(mine)
        self.start_at(boundary)
        slots = self._add(own.table)
        self._version[slots] = own.rows["version"]
        buffer = own.lists["buffer"]
        row = np.repeat(np.arange(slots.size), np.diff(buffer.offsets))
        self._offer(Offers(slots[row], **buffer.columns))
        self.engine.set_thresholds(slots, own.rows["threshold"])
        if self.rule.knows(state.whole["rule"]):
            self.rule.restore(state.whole["rule"])
        self._spans = [(int(floor), int(last)) for floor, last in state.whole["spans"]]
        if self.replicas is not None:
            copies = np.flatnonzero(assigned)
            self.replicas.add(state.take(copies).table, home[copies])
            number, version = state.rows["number"][copies], state.rows["version"][copies]
            self.replicas.raise_thresholds(Thresholds(number, version, state.rows["threshold"][copies]))

    def start_at(self, boundary: Boundary) -> None:
        """Start after this boundary instead of at the start of a stream; before any batch."""
        self._ensure_slots()
        self._matched = boundary
        self.refills.start_at(boundary)

    # -- internals

    @property
    def _k(self) -> Int32:
        return self.engine.subscriptions.columns.k

    @property
    def _dominators(self) -> Int32:
        """Number of dominators at which an entry is dropped, by slot."""
        return self.rule.dominators(self._k) if self.holders is None else np.full_like(self._k, NO_DOMINANCE)

    def _offer(self, offers: Offers) -> None:
        self.buffers.offer(*offers, self._dominators)
        if self.holders is not None:
            self.holders.add(offers.slot, offers.seq)

    def _drop_ended(self, ended: Int64) -> tuple[Int32, ResultRows]:
        """Drop what has ended from the buffers that wait for no refill: slots that had any, their results before."""
        assert self.holders is not None, "only in a stream of objects"
        slots = self.holders.pop(ended)
        slots = slots[~self.refills.waits[slots]]
        before = self.buffers.results(slots, self._k)
        lost = np.flatnonzero(self.buffers.drop(slots, ended))
        return slots[lost], take_results(before, lost)

    def _renew_notes(self) -> None:
        """Make the notes anew once most are about what has left the buffers. O(1), amortised."""
        if self.holders is None or not self.holders.is_stale(0):
            return
        if self.holders.is_stale(int(self.buffers.view.count.sum())):
            slots = self.engine.subscriptions.live_slots()
            offsets, seqs, _, _ = self.buffers.entries(slots)
            self.holders = Holders()
            self.holders.add(np.repeat(slots, np.diff(offsets)), seqs)

    def _observe(self, boundary: Boundary, short: Int32) -> None:
        """Report the size of a batch and the slots that need a refill to the threshold rule."""
        messages = boundary.last_seq - boundary.first_seq + 1
        k = self._k[short] if short.size else short
        self.rule.observe(messages, self._window_size(boundary), self._count_by_k, k)

    def _window_size(self, boundary: Boundary) -> int:
        """Approximate number of messages in the window."""
        window = self.context.window
        if window.kind == "living":
            return boundary.last_seq + 1
        if window.kind == "count":
            return min(window.length, boundary.last_seq + 1)
        self._spans.append((boundary.floor, boundary.last_seq))
        # messages of stream time t have expired once the floor reaches t, which is their own floor plus the length
        while len(self._spans) > 1 and self._spans[1][0] + window.length <= boundary.floor:
            del self._spans[0]
        return boundary.last_seq - self._spans[0][1] + 1

    def _ensure_slots(self) -> None:
        capacity = self.engine.subscriptions.capacity
        self.buffers.ensure_slots(capacity)
        self.refills.ensure_slots(capacity)
        if self._version.shape[0] < capacity:
            self._version, self._closing = resized(self._version, capacity), resized(self._closing, capacity)
            self._stamp = resized(self._stamp, capacity)

    def _add(self, added: SubscriptionTable) -> Int32:
        slots = self.engine.insert(added) if len(added) else NO_SLOTS
        if self.holders is not None:
            self._successions.add(added)
        self._ensure_slots()
        self._version[slots] = 0
        by_k = np.bincount(added.k, minlength=self._count_by_k.shape[0])
        by_k[: self._count_by_k.shape[0]] += self._count_by_k
        self._count_by_k = by_k
        return slots

    def _match_and_offer(
        self, boundary: Boundary, messages: MessageBatch, found: ReplicaHits | None, ended: Int64 = NO_SEQS
    ) -> "_Outcome":
        """Match a batch, drop what has ended, offer its hits, expire messages, and compare the results."""
        rows = len(messages) if found is None else 1
        queued: list[Offers] = []
        hits, row, work = self._next_hits(messages, found, 0, queued)
        columns = self.engine.subscriptions.columns
        if row >= rows and self.holders is None:
            closed = self.buffers.close(
                *hits, boundary.floor, self._k, self._dominators, columns.threshold, self.refills.waits
            )  # fmt: skip
            change = np.where(closed.enters, ENTER, LEAVE).astype(np.int8)
            as_of = np.full(closed.slot.shape[0], boundary.last_seq)
            updates = UpdateBatch(as_of, columns.number[closed.slot], closed.seq, change, closed.score)
            refill_needed = RefillNeeded(closed.short, closed.before)
            return _Outcome(closed.touched, closed.count, updates, refill_needed, join_offers(queued), work)
        # More than `_EVERY_HIT` hits: thresholds are low and the batch is large. Raise thresholds after every part.
        first_stamp = self._last_stamp + 1
        touched, before = [], []
        if ended.shape[0]:
            lost, their_before = self._drop_ended(ended)
            self._last_stamp = self._stamp[lost] = first_stamp
            touched.append(lost)
            before.append(their_before)
        while True:
            self._last_stamp += 1
            new, again = distinct(hits.slot, self._stamp, first_stamp, self._last_stamp)
            touched.append(new)
            before.append(self.buffers.results(new, self._k))
            self._offer(hits)
            if row >= rows:
                break
            hit = np.concatenate([new, again])
            self._raise(hit, self.buffers.view.count[hit])
            hits, row, more = self._next_hits(messages, found, row, queued)
            work = work.plus(more)
        due = self.buffers.due(boundary.floor)
        due = due[~self.refills.waits[due] & (self._stamp[due] < first_stamp)]
        slots = np.concatenate([*touched, due])
        before = join_results([*before, self.buffers.results(due, self._k)])
        updates, refill_needed = self._end(boundary, slots, before)
        return _Outcome(slots, self.buffers.view.count[slots], updates, refill_needed, join_offers(queued), work)

    def _next_hits(
        self, messages: MessageBatch, found: ReplicaHits | None, row: int, queued: list[Offers]
    ) -> tuple[Offers, int, Work]:
        """Hits from a row on, the row after them, and the work. Hits of slots that wait go to `queued` instead."""
        if found is None:
            hits = self.engine.match(messages, row, _EVERY_HIT)
            row, scanned, verified = hits.next_row, hits.scanned, hits.verified
            offers = Offers(hits.slot, messages.seq[hits.row], messages.life[hits.row], *hits.scores)
        else:
            row, scanned, verified = 1, 0, 0
            offers = self._valid(found)
        if self.refills or self.refills.waits.any():
            waits = self.refills.waits[offers.slot]
            queued.append(take_rows(offers, waits))
            offers = take_rows(offers, ~waits)
        return offers, row, Work(scanned, verified, offers.slot.shape[0])

    def _valid(self, found: ReplicaHits) -> Offers:
        """Hits of replicas for subscriptions homed on this task, at or above the threshold."""
        slot = self.engine.subscriptions.find(found.number)
        valid = slot >= 0
        valid[valid] = found.score[valid] >= self.engine.subscriptions.columns.threshold[slot[valid]]
        return Offers(slot[valid], found.seq[valid], found.life[valid], found.score[valid])

    def _end(self, boundary: Boundary, slots: Int32, before: ResultRows) -> tuple[UpdateBatch, RefillNeeded]:
        """Expire messages; returns updates, and the slots that need a refill in place of updates."""
        self.buffers.expire(slots, boundary.floor)
        columns = self.engine.subscriptions.columns
        count = self.buffers.view.count[slots]
        is_short = (count < columns.k[slots]) & (columns.threshold[slots] > -np.inf)
        if (
            self.holders is not None
        ):  # one that has counted as many dominators as there are bits for may have dropped some
            is_short |= count >= NO_DOMINANCE
        short = np.flatnonzero(is_short)
        if short.size:
            whole = np.flatnonzero(~is_short)
            updates = self.result_updates(boundary, slots[whole], take_results(before, whole))
        else:
            updates = self.result_updates(boundary, slots, before)
        return updates, RefillNeeded(slots[short], take_results(before, short))

    def _raise(self, slots: Int32, counts: Int32) -> Thresholds:
        """Raise the thresholds of buffers that have grown too long; `counts` has their entries."""
        if not slots.shape[0]:
            return NO_THRESHOLDS
        columns = self.engine.subscriptions.columns
        ranks = self.rule.cuts(columns.k[slots], counts)
        chosen = ranks > 0
        long, before = slots[chosen], columns.threshold[slots[chosen]]
        if not long.size:
            return NO_THRESHOLDS
        self.buffers.raise_threshold(long, ranks[chosen], columns.threshold)
        long = long[columns.threshold[long] > before]
        self.engine.set_thresholds(long, columns.threshold[long])
        return self._apply_to_replicas(self._thresholds(long))

    def _thresholds(self, slots: Int32) -> Thresholds:
        columns = self.engine.subscriptions.columns
        return Thresholds(columns.number[slots], self._version[slots], columns.threshold[slots])

    def _apply_to_replicas(self, raised: Thresholds) -> Thresholds:
        """Apply raised thresholds to the replicas of this task; returns them for the other tasks."""
        if self.replicas is not None:
            self.replicas.raise_thresholds(raised)
        return raised

    def _request(self, boundary: Boundary, slots: Int32, before: ResultRows) -> WindowRequest:
        """Request the window as of a boundary for these slots."""
        request = self.refills.begin(boundary, slots, before)
        self._unset(slots)
        return request

    def _unset(self, slots: Int32) -> None:
        """Set the threshold of slots that wait: infinity, or minus infinity where replicas match."""
        self.engine.set_thresholds(slots[~self._closing[slots]], -np.inf if self.context.replicates else np.inf)

    def _relax(self, request: int) -> Relax:
        slots = self.refills.slots_of(request)
        return Relax(request, self.engine.subscriptions.columns.number[slots], self._version[slots])

    def _slot_mask(self, slots: Int32) -> Bools:
        mask = np.zeros(self._closing.shape[0], np.bool_)
        mask[slots] = True
        return mask

    def _forget(self, boundary: Boundary, slots: Int32, before: ResultRows) -> UpdateBatch:
        """Free slots that have been withdrawn; returns their last updates."""
        self.buffers.clear(slots)
        updates = self.result_updates(boundary, slots, before)
        self._count_by_k -= np.bincount(self._k[slots], minlength=self._count_by_k.shape[0])
        self.refills.waits[slots] = self._closing[slots] = False
        self.engine.release(slots)
        return updates


def _answered(slots: Int32, body: WindowAnswers, after: int) -> Offers:
    """The messages of an answer, those as of the boundary (`after` 0) or of later batches (1)."""
    row = np.repeat(np.arange(slots.size), np.diff(body.offsets))
    return take_rows(Offers(slots[row], body.seq, body.life, body.score), body.after == after)


class _Outcome(NamedTuple):
    """Effect of a batch: slots touched, entries of each, updates, refills needed, hits of slots that wait, work."""

    touched: Int32
    count: Int32
    updates: UpdateBatch
    refill_needed: RefillNeeded
    queued: Offers
    work: Work
