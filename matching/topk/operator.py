"""The room of `topk`: standing top-k results over a stream, for the subscriptions that one query task is home to.

Batch by batch the index (`matching.topk.engine`) finds the messages that reach a subscription's threshold, the buffers
(`matching.topk.results`) take them in and let the expired go, and what changed in the results is told. A buffer that
runs short pends (`matching.refill`): the window is asked for its best as of that boundary, and for what came since,
for it is not matched while it waits. A new subscription is the same thing with an empty result.

Where routers place subscriptions by keyword, replicas (`matching.topk.replicas`) match in place of the index, here and
elsewhere, and what they find comes to the home as `ReplicaHits`. Read on in `matching.topk.engines.skype`, the index
that finds the messages.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from matching.errors import EngineError
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
    NO_THRESHOLDS,
    Bools,
    KindOperator,
    Matched,
    OperatorContext,
    OperatorInput,
    OperatorOutput,
    Relax,
    Thresholds,
    WindowRequest,
    Work,
)
from matching.refill import BatchDelta, RefillCoordinator, RefillNeeded
from matching.space import Space
from matching.storage.point_subscriptions import take_ragged_at
from matching.storage.slots import resized
from matching.storage.state import Lists, State
from matching.topk.engine import TopkEngine
from matching.topk.offers import NOBODY, Offers, distinct, join_offers
from matching.topk.replicas import HomeEngine, ReplicaHits, Replicas
from matching.topk.results import ResultBuffers, ResultRows, join_results, no_results
from matching.topk.results_kernels import difference
from matching.topk.thresholds import rule as threshold_rule
from matching.topk.window import WindowAnswers, WindowQueries
from matching.window import Boundary

_EVERY_HIT = 1 << 21


class _Matched(NamedTuple):
    """A batch that replicas have matched, if there are any, and what its changes mean for those at home here."""

    boundary: Boundary
    messages: MessageBatch
    added: SubscriptionTable
    gone: Int64
    found: ReplicaHits | None
    work: Work


class TopkOperator(KindOperator):
    """Results of top-k subscriptions over the stream; see `matching.operator.KindOperator`.

    Parameters
    ----------
    engine : callable    makes a `TopkEngine`
    site : Site          its option `threshold_rule` says how thresholds are set (`matching.topk.thresholds`)
    """

    def __init__(self, engine: Callable[[Space], TopkEngine], site: OperatorContext):
        self.site = site
        self.rule = threshold_rule(site.options.get("threshold_rule"))
        index = engine(site.space)
        self.replicas = Replicas(index, site) if site.replicates else None
        self.engine = HomeEngine(site.space) if site.replicates else index
        self.buffers = ResultBuffers(seq_is_life=site.window.kind == "count")
        # replicas match in place of the index, with thresholds of their own: what they find of who pends is put by
        self.pending = RefillCoordinator(self, None if site.replicates else self)
        self._matched = self.pending.closed
        self._closing = np.zeros(0, np.bool_)  # slot is unsubscribed, and waits to be led to its end
        self._version = np.zeros(0, np.int64)
        self._spans: list[tuple[int, int]] = []  # (floor, last seq) of the batches a time window reaches back to
        self._stamp = np.zeros(0, np.int64)  # when a slot was last hit: counts calls of the index
        self._last_stamp = 0
        self._held_by_k = np.zeros(0, np.int64)  # how many subscriptions there are of each k

    def __len__(self) -> int:
        return len(self.engine) - int(np.count_nonzero(self._closing))

    @property
    def watermark(self) -> int:
        return self.pending.watermark

    def holds(self, numbers: Int64) -> Bools:
        here = self.engine.subscriptions.find(numbers) >= 0
        return here if self.replicas is None else here | self.replicas.holds(numbers)

    # -- a batch

    def match(self, turn: OperatorInput) -> Matched:
        boundary, home = turn.boundary, turn.home == self.site.task
        if boundary.number != self._matched.number + 1:
            raise EngineError(f"topk: batch {boundary.number} cannot follow batch {self._matched.number}")
        self._matched = boundary
        added = turn.added if home.all() else turn.added.take(np.flatnonzero(home))
        # results are told at boundaries: what came and went since the last one is in none
        messages = turn.messages.alive(boundary.floor)
        if self.replicas is None:
            return Matched(_Matched(boundary, messages, added, turn.removed.number, None, Work()))
        per_home, work = self.replicas.process(turn._replace(messages=messages))
        own = _Matched(boundary, messages, added, turn.removed.number, per_home[self.site.task], work)
        return Matched(own, tuple(per_home))

    def close(self, mine: _Matched, found: list[ReplicaHits]) -> OperatorOutput:
        """Close the next batch; what replicas found may be below the present threshold, or of who has gone."""
        boundary = mine.boundary
        began_empty = boundary.first_seq == 0
        self.pending.closed = boundary
        # who comes and goes at one boundary is told nothing
        added = mine.added
        if len(added) and mine.gone.size:
            added = added.take(np.flatnonzero(~np.isin(added.number, mine.gone)))
        gone = self.engine.subscriptions.find(mine.gone)
        gone = gone[gone >= 0]
        # a slot that goes at this boundary is not matched and ends with an empty result
        waiting = self.pending.waits[gone]
        leaving = gone[~waiting]
        self._closing[gone[waiting]] = True
        before_leaving = self.buffers.held(leaving, self._k)
        self.engine.withdraw(gone)
        self.pending.waits[leaving] = True  # let alone until they are forgotten
        fresh = self._add(added) if began_empty else NOBODY
        offered = None if mine.found is None else concatenate([mine.found, *found])
        taken = self._match_and_offer(boundary, mine.messages, offered)
        if self.pending:
            self.pending.defer(BatchDelta(boundary, taken.queued, gone[waiting]))
        told = taken.updates
        if leaving.size:
            told = concatenate([told, self._tell(boundary, leaving, before_leaving, no_results(leaving.size))])
            self._forget(leaving)
        asks, relaxes = [], []
        if not began_empty and len(added):  # what they hit in this batch comes with their first answer
            fresh = self._add(added)
            asks.append(self._pend(boundary, fresh, no_results(fresh.size)))
        if taken.lacking.slots.size:
            ask = self._pend(boundary, taken.lacking.slots, taken.lacking.before)
            if self.site.relaxes:
                self._version[taken.lacking.slots] += 1
                relaxes.append(self._relax(ask.request))
            else:
                asks.append(ask)
        self._observe(boundary, taken.lacking.slots)
        going_on = ~self.pending.waits[taken.touched]
        raised = self._raise(taken.touched[going_on], taken.count[going_on])
        step = OperatorOutput(told, tuple(asks), tuple(relaxes), raised, mine.work.plus(taken.work))
        for request, body in self.pending.early():
            step = step.plus(self.answer(request, body))
        return step

    def pass_over(self, boundary: Boundary) -> None:
        self._matched = self.pending.closed = boundary
        self._observe(boundary, NOBODY)  # the rule learns how many messages the window holds, whoever comes later

    # -- answers

    def answer(self, request: int, body: WindowAnswers) -> OperatorOutput:
        installed = self.pending.install(request, body)
        if installed is None:
            return OperatorOutput()
        updates, asks, slots = installed
        # only now, when they have caught up, does the index learn the thresholds
        self.engine.set_thresholds(slots, self.engine.subscriptions.columns.threshold[slots])
        self._raise(slots, self.buffers.view.count[slots])
        raised = self._thresholds(slots)
        work = Work(matched=int((body.after == 0).sum()))
        return OperatorOutput(
            concatenate(updates),
            tuple(asks),
            (),
            self._tell_replicas(take_rows(raised, raised.threshold > -np.inf)),
            work,
        )

    def relaxed(self, request: int, last_batch: int) -> WindowRequest:
        return self.pending.extend(request, last_batch)

    def refill(self, slots: Int32, body: WindowAnswers, as_of: Boundary) -> Offers:
        self.buffers.clear(slots)
        self.rule.refilled(self._k[slots], body.read)
        self.engine.subscriptions.columns.threshold[slots] = body.threshold
        self._offer(_answered(slots, body, after=0))
        return _answered(slots, body, after=1)

    def resume(self, slots: Int32, body: WindowAnswers) -> WindowQueries:
        here = ~self._closing[slots]
        self.engine.set_thresholds(slots[here], body.threshold[here])
        return self.question(slots)._replace(threshold=body.threshold)

    def came(self, slots: Int32, body: WindowAnswers) -> Offers:
        return _answered(slots, body, after=1)

    def lead(self, past: Boundary, news: BatchDelta, slots: Int32) -> tuple[UpdateBatch, RefillNeeded]:
        before = self.buffers.held(slots, self._k)
        told, closing = [], self._marked(news.leaving)[slots]
        if news.leaving.size:
            ending, had = slots[closing], before.take(np.flatnonzero(closing))
            told.append(self._tell(news.boundary, ending, had, no_results(ending.size)))
            self._forget(slots[closing])
            slots, before = slots[~closing], before.take(np.flatnonzero(~closing))
            news = news.of(self._marked(slots))
        hits = news.offers.score >= self.engine.subscriptions.columns.threshold[news.offers.slot]
        self._offer(take_rows(news.offers, hits))
        updates, lacking = self._end(news.boundary, slots, before)
        if lacking.slots.size:
            self._unset(lacking.slots)
        return concatenate([*told, updates]), lacking

    def question(self, slots: Int32) -> WindowQueries:
        c = self.engine.subscriptions.columns
        offsets, picked = take_ragged_at(c.term_start[slots], c.term_count[slots])
        return WindowQueries(
            c.number[slots], c.x[slots], c.y[slots], c.alpha[slots], self.rule.ranks(c.k[slots]), offsets,
            c.terms[picked], c.weights[picked],
        )  # fmt: skip

    def tell(self, boundary: Boundary, slots: Int32, before: ResultRows) -> UpdateBatch:
        """The updates that lead from one result to that of now."""
        return self._tell(boundary, slots, before, self.buffers.held(slots, self._k))

    # -- replicas

    def register(self, home: int, number: Int64, version: Int64, rows: SubscriptionTable, changes_through: int) -> None:
        assert self.replicas is not None, "only routers that replicate register"
        self.replicas.register(home, number, version, rows, changes_through)

    def raise_thresholds(self, raised: Thresholds) -> None:
        assert self.replicas is not None, "only replicas are told thresholds"
        self.replicas.raise_thresholds(raised)

    def sharers(self, numbers: Int64) -> Bools:
        assert self.replicas is not None, "only replicas are told thresholds"
        c = self.engine.subscriptions.columns
        slots = self.engine.subscriptions.find(numbers)
        offsets, places = take_ragged_at(c.term_start[slots], c.term_count[slots])
        return self.replicas.tasks_of(offsets, c.terms[places])

    # -- what is held

    def results(self) -> ResultBatch:
        slots = self.engine.subscriptions.live_slots()
        slots = slots[~self.pending.waits[slots]]
        held = self.buffers.held(slots, self._k)
        lengths = np.diff(held.offsets)
        rank = np.arange(held.seq.shape[0]) - np.repeat(held.offsets[:-1], lengths) + 1
        numbers = np.repeat(self.engine.subscriptions.columns.number[slots], lengths)
        return ResultBatch(numbers, rank.astype(np.int32), held.seq, held.score)

    def report(self) -> dict[str, Any]:
        figures = {"thresholds": self.rule.describe(), "buffers": self.buffers.describe()}
        if self.replicas is not None:
            figures["replicas_held"] = len(self.replicas)
        return figures | {"at_home": len(self), "requests": self.pending.requests, "refills": self.pending.asked}

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {f"index_{name}": value for name, value in self.engine.arrays().items()}
        if self.replicas is not None:
            arrays |= {f"replicas_{name}": value for name, value in self.replicas.engine.arrays().items()}
        arrays |= {f"buffers_{name}": value for name, value in self.buffers.arrays().items()}
        return arrays | {"version": self._version, "waits": self.pending.waits, "stamp": self._stamp}

    def state(self) -> State:
        slots = self.engine.subscriptions.live_slots()
        state = State.of(self.engine.subscriptions.rows(slots))
        state.rows["threshold"] = self.engine.subscriptions.columns.threshold[slots]
        state.rows["version"] = self._version[slots]
        offsets, seq, life, score = self.buffers.entries(slots)
        state.lists["buffer"] = Lists(offsets, {"seq": seq, "life": life, "score": score})
        state.whole["rule"] = self.rule.state()
        state.whole["spans"] = np.array(self._spans, np.int64).reshape(-1, 2)
        return state

    def restore(self, boundary: Boundary, state: State, home: Int64, held: Bools) -> None:
        mine = np.flatnonzero(home == self.site.task)
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
            copies = np.flatnonzero(held)
            self.replicas.add(state.take(copies).table, home[copies])
            number, version = state.rows["number"][copies], state.rows["version"][copies]
            self.replicas.raise_thresholds(Thresholds(number, version, state.rows["threshold"][copies]))

    def start_at(self, boundary: Boundary) -> None:
        """Begin behind this boundary instead of at the start of a stream; before any batch."""
        self._ensure_slots()
        self._matched = boundary
        self.pending.start_at(boundary)

    # -- inside

    @property
    def _k(self) -> Int32:
        return self.engine.subscriptions.columns.k

    @property
    def _dominators(self) -> Int32:
        """How many dominators drop an entry, by slot."""
        return self.rule.dominators(self._k)

    def _offer(self, offers: Offers) -> None:
        self.buffers.offer(*offers, self._dominators)

    def _observe(self, boundary: Boundary, short: Int32) -> None:
        """Tell the rule what the batch brought, and who ran short."""
        messages = boundary.last_seq - boundary.first_seq + 1
        self.rule.observe(messages, self._window_size(boundary), self._held_by_k, self._k[short])

    def _window_size(self, boundary: Boundary) -> int:
        """About how many messages the window holds."""
        window = self.site.window
        if window.kind == "count":
            return min(window.length, boundary.last_seq + 1)
        self._spans.append((boundary.floor, boundary.last_seq))
        # what came at stream time t has gone once the floor has reached t, and t is its own floor plus the length
        while len(self._spans) > 1 and self._spans[1][0] + window.length <= boundary.floor:
            del self._spans[0]
        return boundary.last_seq - self._spans[0][1] + 1

    def _ensure_slots(self) -> None:
        capacity = self.engine.subscriptions.capacity
        self.buffers.ensure_slots(capacity)
        self.pending.ensure_slots(capacity)
        if self._version.shape[0] < capacity:
            self._version, self._closing = resized(self._version, capacity), resized(self._closing, capacity)
            self._stamp = resized(self._stamp, capacity)

    def _add(self, added: SubscriptionTable) -> Int32:
        slots = self.engine.insert(added) if len(added) else NOBODY
        self._ensure_slots()
        self._version[slots] = 0
        by_k = np.bincount(added.k, minlength=self._held_by_k.shape[0])
        by_k[: self._held_by_k.shape[0]] += self._held_by_k
        self._held_by_k = by_k
        return slots

    def _match_and_offer(self, boundary: Boundary, messages: MessageBatch, found: ReplicaHits | None) -> "_Outcome":
        """Match a batch, offer its hits, expire, and tell what changed."""
        rows = len(messages) if found is None else 1
        queued: list[Offers] = []
        hits, row, work = self._next_hits(messages, found, 0, queued)
        columns = self.engine.subscriptions.columns
        if row >= rows:
            closed = self.buffers.close(
                *hits, boundary.floor, self._k, self._dominators, columns.threshold, self.pending.waits
            )  # fmt: skip
            change = np.where(closed.enters, ENTER, LEAVE).astype(np.int8)
            as_of = np.full(closed.slot.shape[0], boundary.last_seq)
            updates = UpdateBatch(as_of, columns.number[closed.slot], closed.seq, change, closed.score)
            lacking = RefillNeeded(closed.short, closed.before)
            return _Outcome(closed.touched, closed.count, updates, lacking, join_offers(queued), work)
        # So many hits: thresholds are low, and the batch is large. Raise what can be raised after every part.
        first_stamp = self._last_stamp + 1
        touched, before = [], []
        while True:
            self._last_stamp += 1
            new, again = distinct(hits.slot, self._stamp, first_stamp, self._last_stamp)
            touched.append(new)
            before.append(self.buffers.held(new, self._k))
            self._offer(hits)
            if row >= rows:
                break
            hit = np.concatenate([new, again])
            self._raise(hit, self.buffers.view.count[hit])
            hits, row, more = self._next_hits(messages, found, row, queued)
            work = work.plus(more)
        due = self.buffers.due(boundary.floor)
        due = due[~self.pending.waits[due] & (self._stamp[due] < first_stamp)]
        slots = np.concatenate([*touched, due])
        before = join_results([*before, self.buffers.held(due, self._k)])
        updates, lacking = self._end(boundary, slots, before)
        return _Outcome(slots, self.buffers.view.count[slots], updates, lacking, join_offers(queued), work)

    def _next_hits(
        self, messages: MessageBatch, found: ReplicaHits | None, row: int, queued: list[Offers]
    ) -> tuple[Offers, int, Work]:
        """Hits from a row on, the row after them, and the work. Hits of pending slots go to `queued` instead."""
        if found is None:
            hits = self.engine.match(messages, row, _EVERY_HIT)
            row, scanned, verified = hits.next_row, hits.scanned, hits.verified
            offers = Offers(hits.slot, messages.seq[hits.row], messages.life[hits.row], hits.score)
        else:
            row, scanned, verified = 1, 0, 0
            offers = self._valid(found)
        if self.pending or self.pending.waits.any():
            waits = self.pending.waits[offers.slot]
            queued.append(take_rows(offers, waits))
            offers = take_rows(offers, ~waits)
        return offers, row, Work(scanned, verified, offers.slot.shape[0])

    def _valid(self, found: ReplicaHits) -> Offers:
        """What replicas found for subscriptions that are here, at or above the threshold."""
        slot = self.engine.subscriptions.find(found.number)
        valid = slot >= 0
        valid[valid] = found.score[valid] >= self.engine.subscriptions.columns.threshold[slot[valid]]
        return Offers(slot[valid], found.seq[valid], found.life[valid], found.score[valid])

    def _end(self, boundary: Boundary, slots: Int32, before: ResultRows) -> tuple[UpdateBatch, RefillNeeded]:
        """Expire, find who runs short, and tell how the others' results changed."""
        self.buffers.expire(slots, boundary.floor)
        columns = self.engine.subscriptions.columns
        is_short = (self.buffers.view.count[slots] < columns.k[slots]) & (columns.threshold[slots] > -np.inf)
        short = np.flatnonzero(is_short)
        if short.size:
            whole = np.flatnonzero(~is_short)
            updates = self.tell(boundary, slots[whole], before.take(whole))
        else:
            updates = self.tell(boundary, slots, before)
        return updates, RefillNeeded(slots[short], before.take(short))

    def _tell(self, boundary: Boundary, slots: Int32, before: ResultRows, after: ResultRows) -> UpdateBatch:
        most = before.seq.shape[0] + after.seq.shape[0]
        row, seq = np.empty(most, np.int32), np.empty(most, np.int64)
        score, enters = np.empty(most, np.float64), np.empty(most, np.bool_)
        n = difference(before, after, row, seq, score, enters)
        number = self.engine.subscriptions.columns.number[slots[row[:n]]]
        change = np.where(enters[:n], ENTER, LEAVE).astype(np.int8)
        return UpdateBatch(np.full(n, boundary.last_seq), number, seq[:n].copy(), change, score[:n].copy())

    def _raise(self, slots: Int32, counts: Int32) -> Thresholds:
        """Raise the thresholds of buffers that have grown long; `counts` has their entries."""
        columns = self.engine.subscriptions.columns
        ranks = self.rule.cuts(columns.k[slots], counts)
        chosen = ranks > 0
        long, before = slots[chosen], columns.threshold[slots[chosen]]
        if not long.size:
            return NO_THRESHOLDS
        self.buffers.raise_threshold(long, ranks[chosen], columns.threshold)
        long = long[columns.threshold[long] > before]
        self.engine.set_thresholds(long, columns.threshold[long])
        return self._tell_replicas(self._thresholds(long))

    def _thresholds(self, slots: Int32) -> Thresholds:
        columns = self.engine.subscriptions.columns
        return Thresholds(columns.number[slots], self._version[slots], columns.threshold[slots])

    def _tell_replicas(self, raised: Thresholds) -> Thresholds:
        """Thresholds that have risen, after this task's own replicas have taken them."""
        if self.replicas is not None:
            self.replicas.raise_thresholds(raised)
        return raised

    def _pend(self, boundary: Boundary, slots: Int32, before: ResultRows) -> WindowRequest:
        """Let slots wait for the window as of a boundary."""
        ask = self.pending.pend(boundary, slots, before)
        self._unset(slots)
        return ask

    def _unset(self, slots: Int32) -> None:
        """No message reaches who pends, or every one where replicas find them; who has left has no postings to tell."""
        self.engine.set_thresholds(slots[~self._closing[slots]], -np.inf if self.site.replicates else np.inf)

    def _relax(self, request: int) -> Relax:
        slots = self.pending.slots_of(request)
        return Relax(request, self.engine.subscriptions.columns.number[slots], self._version[slots])

    def _marked(self, slots: Int32) -> Bools:
        marked = np.zeros(self._closing.shape[0], np.bool_)
        marked[slots] = True
        return marked

    def _forget(self, slots: Int32) -> None:
        """Free withdrawn slots."""
        self.buffers.clear(slots)
        self._held_by_k -= np.bincount(self._k[slots], minlength=self._held_by_k.shape[0])
        self.pending.waits[slots] = self._closing[slots] = False
        self.engine.subscriptions.remove(slots)


def _answered(slots: Int32, body: WindowAnswers, after: int) -> Offers:
    """What the window says of these slots, as of the boundary (`after` 0) or of later batches (1)."""
    row = np.repeat(np.arange(slots.size), np.diff(body.offsets))
    return take_rows(Offers(slots[row], body.seq, body.life, body.score), body.after == after)


class _Outcome(NamedTuple):
    """What a batch did: slots touched and entries of each, updates, who ran short, what pends was hit by, work."""

    touched: Int32
    count: Int32
    updates: UpdateBatch
    lacking: RefillNeeded
    queued: Offers
    work: Work
