"""Standing top-k results over a stream: what a query bolt does for the subscriptions it is home to.

Batch by batch the index (`matching.topk.index`) finds the messages that reach a subscription's threshold, the buffers
(`matching.topk.skyband`) take them in and let the expired go, and what changed in the results is told. A buffer
that runs short asks for a refill from the window (`matching.topk.window_index`) and *pends*: its threshold is
minus infinity, its hits are queued, and when the answer has come they are replayed boundary by boundary, so that its
updates come late but never wrong. A new subscription is the same thing with an empty result.

The caller moves requests and answers: `topology.wiring` through tuple and aggregation bolts, `matching.topk.local`
directly. What comes and goes stands in `matching.topk.steps`. Read on in `matching.topk.skype`, the index that finds
the messages.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from matching.errors import EngineError
from matching.model import (
    ENTER,
    LEAVE,
    Float64,
    Int32,
    Int64,
    MessageBatch,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
)
from matching.slots import part
from matching.space import Space
from matching.topk.index import TopkIndex
from matching.topk.skyband import Held, SkybandBuffers, concatenate_held
from matching.topk.skyband_kernels import difference
from matching.topk.steps import Found, Refill, Step
from matching.topk.store import take_ragged_at
from matching.topk.thresholds import ThresholdRule
from matching.topk.thresholds import rule as threshold_rule
from matching.topk.window_index import WindowAnswers, WindowQueries
from matching.window import Boundary, Window

_EVERY_HIT = 1 << 21


class _Pending(NamedTuple):
    """A block of subscriptions that wait for the same answer; `before` is their result before boundary `as_of`."""

    as_of: Boundary
    up_to: int
    slots: Int32
    before: Held
    relax: bool


class TopkStream:
    """Results of top-k subscriptions over the stream.

    Parameters
    ----------
    index : TopkIndex
        Empty, or with the subscriptions of the buffers (`from_arrays`).
    window : Window
    home : int
        Stamped on requests, so that the answer finds the way back.
    rule : ThresholdRule, optional
        How thresholds are set; the default one if left out.
    """

    def __init__(self, index: TopkIndex, window: Window, home: int = 0, rule: ThresholdRule | None = None):
        self.rule = rule or threshold_rule()
        self.index = index
        self.window = window
        self.home = home
        self.buffers = SkybandBuffers(seq_is_life=window.kind == "count")
        self.boundary = Boundary(-1, 0, -1, -(2**62))
        self._next_request = 0
        self._early: list[WindowAnswers] = []  # answers that reach beyond the present; asked again after a restore
        self._pending: dict[int, _Pending] = {}
        self._boundaries: dict[int, Boundary] = {}  # those that pending blocks must still be led through
        self._queued: dict[int, tuple[Int32, Int64, Int64, Float64]] = {}  # hits of pending slots by batch
        self._closing: dict[int, int] = {}  # pending slot -> batch at whose boundary it is unsubscribed
        self._version = np.zeros(0, np.int64)
        self._spans: list[tuple[int, int]] = []  # (floor, last seq) of the batches a time window reaches back to
        self._waits = np.zeros(0, np.bool_)  # slot is in a pending block
        self._stamp = np.zeros(0, np.int64)  # when a slot was last hit: counts calls of the index, never saved
        self._last_stamp = 0

    def __len__(self) -> int:
        return len(self.index) - len(self._closing)

    @property
    def complete_through(self) -> int:
        """Number of the last batch up to which every update has been told, -1 if none."""
        return min((block.as_of.number - 1 for block in self._pending.values()), default=self.boundary.number)

    def process(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        added: SubscriptionTable,
        removed: Removals,
        found: Found | None = None,
    ) -> Step:
        """Take the next batch and its subscription changes (rows of other kinds must have been left out).

        Where replicas have matched the batch (`matching.topk.replicas`), `found` is what they found; it may hold pairs
        below the present threshold, and of subscriptions that have gone.

        Raises
        ------
        EngineError
            If the batch is not the next one, a number is added twice or an unknown one removed.
        """
        if boundary.number != self.boundary.number + 1:
            raise EngineError(f"topk: batch {boundary.number} cannot follow batch {self.boundary.number}")
        began_empty = boundary.first_seq == 0
        self.boundary = boundary
        new_slots = self._add(added)
        gone_slots = self._find_removed(removed)
        if self._pending:
            self._boundaries[boundary.number] = boundary
        # a slot that goes at this boundary, whether old or new, is not matched and ends with an empty result
        waiting = self._waits[gone_slots]
        leaving = gone_slots[~waiting]
        for slot in gone_slots[waiting]:
            self._closing[int(slot)] = boundary.number
        before_leaving = self.buffers.held(leaving, self._k)
        self.index.withdraw(gone_slots)
        fresh = new_slots[~np.isin(new_slots, gone_slots)]
        if not began_empty:
            self._waits[fresh] = True  # what it hits in this batch comes with its first answer

        self._waits[leaving] = True  # let alone until they are forgotten
        touched, counts, updates, short, before_short, work = self._take_in(boundary, messages, found)

        parts = [updates, self._tell_leaves(boundary, leaving, before_leaving)]
        self._forget(leaving)
        refills = []
        if not began_empty and fresh.size:
            nothing = Held(np.zeros(fresh.size + 1, np.int64), np.zeros(0, np.int64), np.zeros(0))
            refills.append(self._pend(boundary, boundary.number, fresh, nothing, relax=False))
        if short.size:
            refills.append(self._pend(boundary, boundary.number, short, before_short, relax=True))
        self._observe(boundary, short.size)
        going_on = ~self._waits[touched]
        raised = self._raise(touched[going_on], counts[going_on])
        return Step(concatenate(parts), refills, raised, *work)

    def install(self, answers: WindowAnswers) -> Step:
        """Take the merged answer to a request and lead its subscriptions up to the present boundary.

        An answer that reaches beyond the present boundary is kept until `take_early` hands it out.

        Raises
        ------
        EngineError
            If the request is unknown or was answered before.
        """
        if answers.request not in self._pending:
            raise EngineError(f"topk: an answer to request {answers.request}, which nobody waits for")
        if self._pending[answers.request].up_to > self.boundary.number:
            # it reaches beyond the present: its last batches must pass here before what they hit can be replayed
            self._early.append(answers)
            nobody = np.zeros(0, np.int64)
            return Step(empty(UpdateBatch), [], (nobody, nobody, np.zeros(0)), 0, 0, 0)
        block = self._pending.pop(answers.request)
        slots, before, rows = block.slots, block.before, np.arange(block.slots.size)
        self.buffers.clear(slots)
        self.index.store.columns.threshold[slots] = answers.threshold  # the index learns it when they have caught up
        row_of = np.repeat(rows, np.diff(answers.offsets))
        parts, refills = [], []
        for number in range(block.as_of.number, self.boundary.number + 1):
            boundary = block.as_of if number == block.as_of.number else self._boundaries[number]
            closing = np.array([self._closing.get(int(slot)) == number for slot in slots], np.bool_)
            if closing.any():
                parts.append(self._tell_leaves(boundary, slots[closing], before.take(np.flatnonzero(closing))))
                self._forget(slots[closing])
                slots, before = slots[~closing], before.take(np.flatnonzero(~closing))
            if not slots.size:
                break
            if number == block.as_of.number:
                chosen = np.flatnonzero((answers.after == 0) & np.isin(block.slots[row_of], slots))
                hits = (block.slots[row_of[chosen]], answers.seq[chosen], answers.life[chosen], answers.score[chosen])
            elif number <= block.up_to:
                chosen = np.flatnonzero(
                    (answers.after == 1)
                    & (answers.seq >= boundary.first_seq)
                    & (answers.seq <= boundary.last_seq)
                    & np.isin(block.slots[row_of], slots)
                )
                hits = (block.slots[row_of[chosen]], answers.seq[chosen], answers.life[chosen], answers.score[chosen])
            else:
                hits = self._queued_hits(number, slots)
            self.buffers.offer(*hits, self._dominators)
            updates, short, before_short = self._close(boundary, slots, before)
            parts.append(updates)
            if short.size:
                up_to = max(block.up_to, number)
                refills.append(self._pend(boundary, up_to, short, before_short, relax=False))
                slots = slots[~np.isin(slots, short)]
            before = self.buffers.held(slots, self._k)
        self._waits[slots] = False
        thresholds = self.index.store.columns.threshold[slots]
        self.index.set_thresholds(slots, thresholds)
        self._raise(slots, self.buffers.view.count[slots])
        thresholds = self.index.store.columns.threshold[slots]
        told = thresholds > -np.inf
        numbers = self.index.store.columns.number[slots]
        self._forget_queue()
        matched = int((answers.after == 0).sum())
        raised = (numbers[told], self._version[slots[told]], thresholds[told])
        return Step(concatenate(parts) if parts else empty(UpdateBatch), refills, raised, 0, 0, matched)

    def take_early(self) -> list[WindowAnswers]:
        """Answers that came before their time and can be installed now; after every `process`."""
        ready = [answers for answers in self._early if self._pending[answers.request].up_to <= self.boundary.number]
        if ready:
            self._early = [answers for answers in self._early if all(answers is not one for one in ready)]
        return ready

    def relaxed_up_to(self, request: int, up_to: int) -> WindowQueries:
        """The query of a request after routers have been relaxed; the last batch routed before that is `up_to`."""
        block = self._pending[request]
        up_to = max(block.up_to, up_to)
        self._pending[request] = block._replace(up_to=up_to)
        return self._query(request)

    def waiting_requests(self) -> list[Refill]:
        """Requests not yet answered; after a restore they are asked again."""
        return [self._refill(request) for request in self._pending]

    def results(self) -> ResultBatch:
        """Standing results at the last boundary, of subscriptions that do not wait. O(results)."""
        slots = self.index.store.live_slots()
        slots = slots[~self._waits[slots]]
        held = self.buffers.held(slots, self._k)
        lengths = np.diff(held.offsets)
        rank = np.arange(held.seq.shape[0]) - np.repeat(held.offsets[:-1], lengths) + 1
        numbers = np.repeat(self.index.store.columns.number[slots], lengths)
        return ResultBatch(numbers, rank.astype(np.int32), held.seq, held.score)

    def start_at(self, boundary: Boundary) -> None:
        """Begin behind this boundary instead of at the start of a stream; before any batch."""
        self._ensure_slots()
        self.boundary = boundary

    def refill_ranks(self, slots: Int32) -> Int32:
        """How many of the best a refill of these slots asks for. O(n)."""
        return self.rule.ranks(self._k[slots])

    def load(self, answers: WindowAnswers, slots: Int32) -> None:
        """Fill the empty buffers of slots in bulk, as of the boundary of `start_at`, from one refill. O(messages)."""
        rows = np.repeat(np.arange(slots.size), np.diff(answers.offsets))
        self.buffers.offer(slots[rows], answers.seq, answers.life, answers.score, self._dominators)
        self.index.set_thresholds(slots, answers.threshold)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything needed to continue at this boundary, waiting refills included."""
        arrays = {f"index_{name}": value for name, value in self.index.arrays().items()}
        arrays |= {f"buffers_{name}": value for name, value in self.buffers.arrays().items()}
        arrays["boundary"] = np.array(self.boundary, np.int64)
        arrays["boundaries"] = np.array(list(self._boundaries.values()), np.int64).reshape(-1, 4)
        arrays["version"], arrays["waits"] = self._version, self._waits
        arrays["closing"] = np.array(list(self._closing.items()), np.int64).reshape(-1, 2)
        arrays["rule"] = self.rule.state()
        arrays["spans"] = np.array(self._spans, np.int64).reshape(-1, 2)
        arrays["home"] = np.array([self.home, self._next_request], np.int64)
        arrays["pending"] = np.array(list(self._pending), np.int64)
        for request, block in self._pending.items():
            prefix = f"pending_{request}_"
            arrays[prefix + "slots"] = block.slots
            arrays[prefix + "head"] = np.array([*block.as_of, block.up_to, block.relax], np.int64)
            arrays |= {prefix + name: value for name, value in block.before._asdict().items()}
        arrays["queued"] = np.array(list(self._queued), np.int64)
        for number, hits in self._queued.items():
            for name, value in zip(("slots", "seq", "life", "score"), hits, strict=True):
                arrays[f"queued_{number}_{name}"] = value
        return arrays

    @classmethod
    def from_arrays(
        cls,
        engine: type[TopkIndex],
        space: Space,
        window: Window,
        arrays: dict[str, np.ndarray],
        rule: ThresholdRule | None = None,
    ) -> "TopkStream":
        """Continue from `arrays`, with a new rule of the same kind; then ask `waiting_requests` again."""
        stream = cls(engine.from_arrays(space, part(arrays, "index_")), window, int(arrays["home"][0]), rule)
        if arrays["rule"].size:
            stream.rule.restore(arrays["rule"])
        stream._spans = [(int(floor), int(last)) for floor, last in arrays["spans"]]
        stream.buffers = SkybandBuffers.from_arrays(part(arrays, "buffers_"))
        stream.boundary = Boundary(*map(int, arrays["boundary"]))
        stream._boundaries = {int(row[0]): Boundary(*map(int, row)) for row in arrays["boundaries"]}
        stream._version, stream._waits = arrays["version"].copy(), arrays["waits"].copy()
        stream._closing = {int(slot): int(number) for slot, number in arrays["closing"]}
        stream._next_request = int(arrays["home"][1])
        for request in map(int, arrays["pending"]):
            prefix = f"pending_{request}_"
            *as_of, up_to, relax = map(int, arrays[prefix + "head"])
            before = Held(*(arrays[prefix + name].copy() for name in Held._fields))
            stream._pending[request] = _Pending(
                Boundary(*as_of), up_to, arrays[prefix + "slots"].copy(), before, bool(relax)
            )  # fmt: skip
        for number in map(int, arrays["queued"]):
            hits = tuple(arrays[f"queued_{number}_{name}"].copy() for name in ("slots", "seq", "life", "score"))
            stream._queued[number] = hits  # type: ignore[assignment]
        return stream

    @property
    def _k(self) -> Int32:
        return self.index.store.columns.k

    @property
    def _dominators(self) -> Int32:
        """How many dominators drop an entry, by slot."""
        return self.rule.dominators(self._k)

    def _observe(self, boundary: Boundary, refills: int) -> None:
        """Tell the rule what the batch brought."""
        self.rule.observe(boundary.last_seq - boundary.first_seq + 1, self._window_size(boundary), len(self), refills)

    def _window_size(self, boundary: Boundary) -> int:
        """About how many messages the window holds."""
        if self.window.kind == "count":
            return min(self.window.length, boundary.last_seq + 1)
        self._spans.append((boundary.floor, boundary.last_seq))
        # what came at stream time t has gone once the floor has reached t, and t is its own floor plus the length
        while len(self._spans) > 1 and self._spans[1][0] + self.window.length <= boundary.floor:
            del self._spans[0]
        return boundary.last_seq - self._spans[0][1] + 1

    def _ensure_slots(self) -> None:
        capacity = self.index.store.capacity
        self.buffers.ensure_slots(capacity)
        if self._waits.shape[0] < capacity:
            grown = capacity - self._waits.shape[0]
            self._waits = np.concatenate([self._waits, np.zeros(grown, np.bool_)])
            self._version = np.concatenate([self._version, np.zeros(grown, np.int64)])
        if self._stamp.shape[0] < capacity:
            self._stamp = np.concatenate([self._stamp, np.zeros(capacity - self._stamp.shape[0], np.int64)])

    def _add(self, added: SubscriptionTable) -> Int32:
        slots = self.index.insert(added) if len(added) else np.zeros(0, np.int32)
        self._ensure_slots()
        self._version[slots] = 0
        return slots

    def _find_removed(self, removed: Removals) -> Int32:
        slots = self.index.store.find(removed.number) if removed.number.size else np.zeros(0, np.int32)
        if np.any(slots < 0):
            unknown = removed.number[slots < 0][0]
            raise EngineError(f"topk: subscription number {unknown} is to be removed but is not here")
        return slots

    def _take_in(self, boundary: Boundary, messages: MessageBatch, found: Found | None):
        """Match a batch, offer its hits, expire, and tell what changed.

        Returns (slots touched, entries of each, updates, slots run short, their results before, (scanned, verified,
        offers)).
        """
        rows = len(messages) if found is None else 1
        queued: list[tuple[Int32, Int64, Int64, Float64]] = []
        hits, row, work = self._next_hits(messages, found, 0, queued)
        columns = self.index.store.columns
        if row >= rows:
            closed = self.buffers.close(
                *hits, boundary.floor, self._k, self._dominators, columns.threshold, self._waits
            )  # fmt: skip
            change = np.where(closed.enters, ENTER, LEAVE).astype(np.int8)
            as_of = np.full(closed.slot.shape[0], boundary.last_seq)
            updates = UpdateBatch(as_of, columns.number[closed.slot], closed.seq, change, closed.score)
            self._queue(boundary, queued)
            return closed.touched, closed.count, updates, closed.short, closed.before, work
        # So many hits: thresholds are low, and the batch is large. Raise what can be raised after every part.
        first_stamp = self._last_stamp + 1
        touched, before = [], []
        while True:
            self._last_stamp += 1
            new, again = _distinct(hits[0], self._stamp, first_stamp, self._last_stamp)
            touched.append(new)
            before.append(self.buffers.held(new, self._k))
            self.buffers.offer(*hits, self._dominators)
            if row >= rows:
                break
            hit = np.concatenate([new, again])
            self._raise(hit, self.buffers.view.count[hit])
            hits, row, more = self._next_hits(messages, found, row, queued)
            work = (work[0] + more[0], work[1] + more[1], work[2] + more[2])
        self._queue(boundary, queued)
        due = self.buffers.due(boundary.floor)
        due = due[~self._waits[due] & (self._stamp[due] < first_stamp)]
        slots = np.concatenate([*touched, due])
        updates, short, before_short = self._close(
            boundary, slots, concatenate_held([*before, self.buffers.held(due, self._k)])
        )  # fmt: skip
        return slots, self.buffers.view.count[slots], updates, short, before_short, work

    def _next_hits(self, messages: MessageBatch, found: Found | None, row: int, queued: list):
        """Hits from a row on, the row after them, and the work. Hits of pending slots go to `queued` instead."""
        if found is None:
            hits = self.index.match(messages, row, _EVERY_HIT)
            row, work = hits.next_row, (hits.scanned, hits.verified)
            slot, seq, life, score = hits.slot, messages.seq[hits.row], messages.life[hits.row], hits.score
        else:
            row, work = 1, (0, 0)
            slot, seq, life, score = self._valid(found)
        if self._pending or self._waits.any():
            waits = self._waits[slot]
            queued.append((slot[waits], seq[waits], life[waits], score[waits]))
            slot, seq, life, score = slot[~waits], seq[~waits], life[~waits], score[~waits]
        return (slot, seq, life, score), row, (*work, slot.shape[0])

    def _queue(self, boundary: Boundary, queued: list) -> None:
        """Keep the hits of pending slots until they are replayed."""
        if queued and self._pending:
            slot, seq, life, score = (np.concatenate(column) for column in zip(*queued, strict=True))
            self._queued[boundary.number] = (slot, seq, life, score)

    def _valid(self, found: Found):
        """What replicas found for subscriptions that are here, at or above the threshold."""
        slot = self.index.store.find(found.number)
        valid = slot >= 0
        valid[valid] = found.score[valid] >= self.index.store.columns.threshold[slot[valid]]
        return slot[valid], found.seq[valid], found.life[valid], found.score[valid]

    def _close(self, boundary: Boundary, slots: Int32, before: Held):
        """Expire, find who runs short, and tell how the others' results changed: (updates, short, their before)."""
        self.buffers.expire(slots, boundary.floor)
        columns = self.index.store.columns
        is_short = (self.buffers.view.count[slots] < columns.k[slots]) & (columns.threshold[slots] > -np.inf)
        short = np.flatnonzero(is_short)
        if short.size:
            whole = np.flatnonzero(~is_short)
            updates = self._tell(boundary, slots[whole], before.take(whole), self.buffers.held(slots[whole], self._k))
        else:
            updates = self._tell(boundary, slots, before, self.buffers.held(slots, self._k))
        return updates, slots[short], before.take(short)

    def _tell(self, boundary: Boundary, slots: Int32, before: Held, after: Held) -> UpdateBatch:
        """The updates that lead from one result to the other."""
        most = before.seq.shape[0] + after.seq.shape[0]
        row, seq = np.empty(most, np.int32), np.empty(most, np.int64)
        score, enters = np.empty(most, np.float64), np.empty(most, np.bool_)
        n = difference(before, after, row, seq, score, enters)
        number = self.index.store.columns.number[slots[row[:n]]]
        change = np.where(enters[:n], ENTER, LEAVE).astype(np.int8)
        return UpdateBatch(np.full(n, boundary.last_seq), number, seq[:n].copy(), change, score[:n].copy())

    def _tell_leaves(self, boundary: Boundary, slots: Int32, before: Held) -> UpdateBatch:
        after = Held(np.zeros(slots.shape[0] + 1, np.int64), np.zeros(0, np.int64), np.zeros(0))
        return self._tell(boundary, slots, before, after)

    def _raise(self, slots: Int32, counts: Int32) -> tuple[Int64, Int64, Float64]:
        """Raise the thresholds of buffers that have grown long; `counts` has their entries."""
        columns = self.index.store.columns
        ranks = self.rule.cuts(columns.k[slots], counts)
        chosen = ranks > 0
        long, before = slots[chosen], columns.threshold[slots[chosen]]
        if long.size:
            self.buffers.raise_threshold(long, ranks[chosen], columns.threshold)
            risen = columns.threshold[long] > before
            long = long[risen]
            self.index.set_thresholds(long, columns.threshold[long])
        return columns.number[long], self._version[long], columns.threshold[long]

    def _pend(self, boundary: Boundary, up_to: int, slots: Int32, before: Held, relax: bool) -> Refill:
        """Let slots wait for the window as of a boundary."""
        request = self._next_request
        self._next_request += 1
        self._pending[request] = _Pending(boundary, up_to, slots, before, relax)
        self._waits[slots] = True
        if relax:
            self._version[slots] += 1
        live = slots[np.array([int(slot) not in self._closing for slot in slots], np.bool_)] if self._closing else slots
        self.index.set_thresholds(live, -np.inf)
        return self._refill(request)

    def _refill(self, request: int) -> Refill:
        block = self._pending[request]
        return Refill(self._query(request), self._version[block.slots], block.relax)

    def _query(self, request: int) -> WindowQueries:
        block = self._pending[request]
        c = self.index.store.columns
        slots = block.slots
        offsets, picked = take_ragged_at(c.term_start[slots], c.term_count[slots])
        return WindowQueries(
            request, self.home, block.as_of, block.up_to, c.number[slots], c.x[slots], c.y[slots], c.alpha[slots],
            self.rule.ranks(c.k[slots]), offsets, c.terms[picked], c.weights[picked],
        )  # fmt: skip

    def _queued_hits(self, number: int, slots: Int32):
        """Hits of these slots in a batch that reach their new thresholds."""
        if number not in self._queued:
            return np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        slot, seq, life, score = self._queued[number]
        wanted = np.isin(slot, slots) & (score >= self.index.store.columns.threshold[slot])
        return slot[wanted], seq[wanted], life[wanted], score[wanted]

    def _forget(self, slots: Int32) -> None:
        """Free withdrawn slots."""
        self.buffers.clear(slots)
        self._waits[slots] = False
        for slot in slots:
            self._closing.pop(int(slot), None)
        self.index.store.remove(slots)

    def _forget_queue(self) -> None:
        """Drop what no pending block will be led through any more."""
        first = min((block.as_of.number for block in self._pending.values()), default=self.boundary.number + 1)
        self._queued = {number: hits for number, hits in self._queued.items() if number > first}
        self._boundaries = {number: b for number, b in self._boundaries.items() if number > first}


@njit(cache=True, nogil=True)
def _distinct(slots, stamp, first_stamp, this_stamp):
    """Slots once each, in order of first occurrence: those with no stamp from `first_stamp` on, and the others.

    Every slot gets `this_stamp`, so that the next call of the same batch knows it. O(n).
    """
    new, again = np.empty(slots.shape[0], np.int32), np.empty(slots.shape[0], np.int32)
    news = agains = 0
    for slot in slots:
        if stamp[slot] == this_stamp:
            continue
        if stamp[slot] < first_stamp:
            new[news] = slot
            news += 1
        else:
            again[agains] = slot
            agains += 1
        stamp[slot] = this_stamp
    return new[:news].copy(), again[:agains].copy()
