"""Refill protocol: query the window as of a boundary, buffer later hits, replay them. The same for every kind.

A subscription that runs short at boundary b waits for a *refill*: the window is queried as of b, and the hits of later
batches are buffered. The answer advances the subscription from b to the last closed boundary, boundary by boundary, one
difference each; if it runs short again at c on the way, the window is queried as of c. Its updates come late and never
wrong, and no other subscription waits.

Where routers drop messages by thresholds, they are relaxed first. The answer then has the hits up to batch `up_to`,
the buffer those after it.

A waiting subscription has no threshold, so that nearly all hits buffered for it would be useless. An operator that
is `Resuming` does not match waiting subscriptions; the answer has the hits of all stored batches. If batches were
closed that it does not cover, the subscription is matched again from the answer on, and a second query fetches the hits
in between.

The result itself is the business of a `RefillTarget`, such as the operators of `matching.topk` and `matching.skyline`.
"""

from collections import deque
from typing import Any, NamedTuple, Protocol

import numpy as np

from matching.errors import EngineError
from matching.model import Int32, Int64, UpdateBatch, concatenate, empty, take_rows
from matching.operator import WindowQuery, WindowRequest
from matching.storage.slots import resized
from matching.window import NO_FLOOR, Boundary

_NO_SLOTS = np.zeros(0, np.int32)
_NO_SEQS = np.zeros(0, np.int64)


class BatchDelta(NamedTuple):
    """The changes of a batch to results homed on this task.

    boundary : Boundary
    offers : NamedTuple          hits, pair by pair: `slot` int32[n], `seq` int64[n], and columns of the kind
    leaving : int32[m]           slots of subscriptions that end in it
    lost_slots, lost_seqs        int32[l], int64[l]: candidates of earlier batches that were ended
    ended : int64[e]             what ends in it, ascending, whoever has it; of a kind that does not look for candidates
    """

    boundary: Boundary
    offers: Any
    leaving: Int32 = _NO_SLOTS
    lost_slots: Int32 = _NO_SLOTS
    lost_seqs: Int64 = _NO_SEQS
    ended: Int64 = _NO_SEQS

    def of(self, chosen: np.ndarray) -> "BatchDelta":
        """The changes to the slots that `chosen` (bool by slot) selects. O(n)."""
        lost = chosen[self.lost_slots]
        return BatchDelta(
            self.boundary,
            take_rows(self.offers, chosen[self.offers.slot]),
            self.leaving[chosen[self.leaving]],
            self.lost_slots[lost],
            self.lost_seqs[lost],
            self.ended,
        )


class RefillNeeded(NamedTuple):
    """Slots (int32[n]) that ran short, and their last reported results (rows of the kind)."""

    slots: Int32
    before: Any


class RefillTarget(Protocol):
    """Owner of the results, by slot; advances them from boundary to boundary."""

    def query(self, slots: Int32) -> Any:
        """Rows of a window query for these slots (a NamedTuple)."""
        ...

    def refill(self, slots: Int32, body: Any, as_of: Boundary) -> Any | None:
        """Install the answer as of a boundary. Returns its hits of later batches, as `BatchDelta.offers`, or None."""
        ...

    def advance(self, past: Boundary, delta: Any, slots: Int32, /) -> tuple[UpdateBatch, RefillNeeded]:
        """Advance slots from one boundary to the next; those that leave in it get their last updates and are freed.

        delta : BatchDelta    or what the target itself deferred in its place, with `boundary`, `leaving` and `of`
        """
        ...

    def result_updates(self, boundary: Boundary, slots: Int32, before: Any) -> UpdateBatch:
        """Updates of slots from their results `before` to those at the boundary."""
        ...


class Resuming(Protocol):
    """A target that does not match waiting slots; its answers have `up_to`, the last batch they cover.

    The protocol is our own: the papers refill at once, in one process.
    """

    def resume(self, slots: Int32, body: Any) -> Any:
        """Match slots (int32[n]) from the next batch on, by their answer; O(their terms).

        Returns the second query for the batches since, as `WindowQuery.rows` with `WindowQuery.more`: n rows.
        """
        ...

    def later_hits(self, slots: Int32, body: Any) -> Any:
        """Hits of an answer for slots (int32[n]) after the boundary of its query, as `BatchDelta.offers`."""
        ...


class _Refill(NamedTuple):
    """The slots that wait for one answer, as of a boundary, and their last reported results.

    `first` is an answer that did not cover all batches, if a second query is in flight.
    """

    as_of: Boundary
    up_to: int
    slots: Int32
    before: Any
    first: Any = None


class RefillCoordinator:
    """The refills of an operator.

    Parameters
    ----------
    target : RefillTarget
    resuming : Resuming, optional    the same object, if it does not match waiting slots

    Attributes
    ----------
    closed : Boundary      the last one closed
    waits : bool[slots]    which slots wait for a refill
    requests, queried : int    window queries so far, and rows (subscriptions) in them
    """

    def __init__(self, target: RefillTarget, resuming: Resuming | None = None):
        self.target = target
        self.resuming = resuming
        self.closed = Boundary(-1, 0, -1, NO_FLOOR)
        self.waits = np.zeros(0, np.bool_)
        self.requests = self.queried = 0
        self._refills: dict[int, _Refill] = {}
        self._deferred: deque[Any] = deque()
        self._early: list[tuple[int, Any]] = []

    def __bool__(self) -> bool:
        """Whether a slot waits for a refill."""
        return bool(self._refills)

    @property
    def watermark(self) -> int:
        """Last batch up to which all updates are emitted."""
        return min((refill.as_of.number - 1 for refill in self._refills.values()), default=self.closed.number)

    def ensure_slots(self, capacity: int) -> None:
        """Grow for slots below `capacity`."""
        if self.waits.shape[0] < capacity:
            self.waits = resized(self.waits, capacity)

    def defer(self, delta: Any) -> None:
        """Buffer what a batch has for waiting slots, for replay; `delta` as of `RefillTarget.advance`."""
        if self._refills:
            self._deferred.append(delta)

    def begin(self, as_of: Boundary, slots: Int32, before: Any, up_to: int | None = None) -> WindowRequest:
        """Start a refill of slots as of a boundary; `before` is their last reported results."""
        request = self.requests
        self.requests += 1
        self.queried += slots.shape[0]
        self._refills[request] = _Refill(as_of, as_of.number if up_to is None else up_to, slots, before)
        self.waits[slots] = True
        return self._query(request)

    def extend(self, request: int, up_to: int) -> WindowRequest:
        """The query of a request, extended to have the hits up to a later batch."""
        refill = self._refills[request]
        self._refills[request] = refill._replace(up_to=max(refill.up_to, up_to))
        return self._query(request)

    def slots_of(self, request: int) -> Int32:
        """Slots that wait for an answer.

        Raises
        ------
        EngineError
            If there is no such request in flight.
        """
        if request not in self._refills:
            raise EngineError(f"an answer to request {request}, for which no refill waits")
        return self._refills[request].slots

    def install(self, request: int, body: Any) -> tuple[list[UpdateBatch], list[WindowRequest], Int32] | None:
        """Install an answer, and advance its slots to the last boundary closed.

        Returns
        -------
        updates, requests, slots
            Slots that have caught up: none, if a second query is needed. None instead of all three if the answer covers
            batches that are not closed yet: `early` returns it once they are.

        Raises
        ------
        EngineError
            If no refill waits for it, or it ends at an unknown boundary.
        """
        self.slots_of(request)
        refill = self._refills[request]
        if refill.up_to > self.closed.number:
            self._early.append((request, body))
            return None
        up_to = refill.up_to
        if self.resuming is not None and refill.first is None:
            if body.up_to < self.closed.number:
                return [empty(UpdateBatch)], [self._query_rest(request, body)], _NO_SLOTS
            up_to = self.closed.number
        del self._refills[request]
        later = self.target.refill(refill.slots, body if refill.first is None else refill.first, refill.as_of)
        if self.resuming is not None and refill.first is not None:
            later = concatenate([later, self.resuming.later_hits(refill.slots, body)])
        advances = np.zeros(self.waits.shape[0], np.bool_)
        advances[refill.slots] = True
        self.waits[refill.slots] = False
        updates, requests = [self.target.result_updates(refill.as_of, refill.slots, refill.before)], []
        past = refill.as_of
        for delta in self._deferred:
            boundary = delta.boundary
            if boundary.number <= past.number:
                continue
            mine = delta.of(advances)
            if boundary.number <= up_to and later is not None:
                came = (later.seq >= boundary.first_seq) & (later.seq <= boundary.last_seq) & advances[later.slot]
                mine = mine._replace(offers=take_rows(later, came))
            late_updates, short = self.target.advance(past, mine, refill.slots[advances[refill.slots]])
            updates.append(late_updates)
            advances[mine.leaving] = advances[short.slots] = False
            if short.slots.shape[0]:
                requests.append(self.begin(boundary, short.slots, short.before, max(refill.up_to, boundary.number)))
            past = boundary
        oldest = min((each.as_of.number for each in self._refills.values()), default=self.closed.number)
        while self._deferred and self._deferred[0].boundary.number <= oldest:
            self._deferred.popleft()
        return updates, requests, refill.slots[advances[refill.slots]]

    def early(self) -> list[tuple[int, Any]]:
        """Answers that came too early and can be installed now."""
        ready = [each for each in self._early if self._refills[each[0]].up_to <= self.closed.number]
        self._early = [each for each in self._early if self._refills[each[0]].up_to > self.closed.number]
        return ready

    def start_at(self, boundary: Boundary) -> None:
        """Resume after a boundary; before any batch."""
        self.closed = boundary

    def _query(self, request: int) -> WindowRequest:
        refill, rows = self._refills[request], self.target.query(self._refills[request].slots)
        return WindowRequest(request, WindowQuery(refill.as_of, refill.up_to, rows, self.resuming is not None))

    def _query_rest(self, request: int, body: Any) -> WindowRequest:
        """Second query: the batches that an answer does not cover. From here on its slots are matched again."""
        assert self.resuming is not None
        refill = self._refills[request]
        self._refills[request] = refill._replace(up_to=self.closed.number, first=body)
        known = [refill.as_of, *(delta.boundary for delta in self._deferred)]
        since = next((boundary for boundary in known if boundary.number == body.up_to), None)
        if since is None:
            raise EngineError(f"an answer to request {request} as of batch {refill.as_of.number} up to {body.up_to}")
        rows = self.resuming.resume(refill.slots, body)
        return WindowRequest(request, WindowQuery(since, self.closed.number, rows, more=True))
