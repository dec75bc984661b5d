"""Asking the window as of a boundary, putting by what comes meanwhile, and replaying it: the same for every kind.

A subscription that must know more than is kept of it *pends*: the window is asked as of the boundary b at which it ran
short, and what later batches have for it is put by. When the answer has come, it is led from b to the present, boundary
by boundary, one difference each, as if it had never waited; it may run short again at c on the way, and then asks as of
c. So its updates come late and never wrong, and nobody else waits.

Where routers keep messages back by thresholds, they are relaxed first, and what they have kept back until then comes
with the answer: up to batch `up_to` the answer says what came, after it what was put by.

Who has no threshold while it waits would have everything with a word of it put by, nearly all for nothing. Where a room
is `Resuming`, it does not match those that wait at all, and the answer says what came in all batches that are stored.
If batches have been closed meanwhile that it does not speak of, what the answer says is enough to match from there on,
and the window is asked once more for what came in between.

What is kept, and how it is led, is a `RefillTarget`'s business: a room of `matching.topk` or `matching.skyline`, say.
Read on in `matching.topk.operator`.
"""

from collections import deque
from typing import Any, NamedTuple, Protocol

import numpy as np

from matching.errors import EngineError
from matching.model import Int32, Int64, UpdateBatch, concatenate, empty, take_rows
from matching.operator import WindowQuery, WindowRequest
from matching.storage.slots import resized
from matching.window import NO_FLOOR, Boundary

_NOBODY = np.zeros(0, np.int32)
_NO_SEQS = np.zeros(0, np.int64)


class BatchDelta(NamedTuple):
    """What a batch has for subscriptions at home here.

    boundary : Boundary
    offers : NamedTuple          what came, pair by pair: `slot` int32[n], `seq` int64[n], and what the kind adds
    leaving : int32[m]           slots of those that end in it
    lost_slots, lost_seqs        int32[l], int64[l]: candidates of earlier batches that were ended
    """

    boundary: Boundary
    offers: Any
    leaving: Int32 = _NOBODY
    lost_slots: Int32 = _NOBODY
    lost_seqs: Int64 = _NO_SEQS

    def of(self, chosen: np.ndarray) -> "BatchDelta":
        """What it has for the slots that are marked in `chosen` (bool by slot). O(n)."""
        lost = chosen[self.lost_slots]
        return BatchDelta(
            self.boundary,
            take_rows(self.offers, chosen[self.offers.slot]),
            self.leaving[chosen[self.leaving]],
            self.lost_slots[lost],
            self.lost_seqs[lost],
        )


class RefillNeeded(NamedTuple):
    """Slots (int32[n]) that must ask the window, and what they were told to hold before (rows of the kind)."""

    slots: Int32
    before: Any


class RefillTarget(Protocol):
    """Who keeps something of each slot, and leads it from boundary to boundary."""

    def question(self, slots: Int32) -> Any:
        """What these slots ask of the window (a NamedTuple of rows)."""
        ...

    def refill(self, slots: Int32, body: Any, as_of: Boundary) -> Any | None:
        """Take the answer as of a boundary. Returns what it says of later batches, as `BatchDelta.offers`; None:
        nothing.
        """
        ...

    def lead(self, past: Boundary, news: BatchDelta, slots: Int32) -> tuple[UpdateBatch, RefillNeeded]:
        """Lead slots from one boundary to the next one; those that leave in it are told to the end and forgotten."""
        ...

    def tell(self, boundary: Boundary, slots: Int32, before: Any) -> UpdateBatch:
        """Updates of slots that held `before` and are at the boundary now."""
        ...


class Resuming(Protocol):
    """Who does not match slots while they wait; answers to it have `up_to`, the last batch they speak of.

    The protocol is our own: the papers refill at once, in one process.
    """

    def resume(self, slots: Int32, body: Any) -> Any:
        """Match slots (int32[n]) from the next batch on, with what an answer says of them; O(their terms).

        Returns what they ask of the batches since, as `WindowQuery.rows` with `WindowQuery.more`: n rows.
        """
        ...

    def came(self, slots: Int32, body: Any) -> Any:
        """What an answer for slots (int32[n]) says of batches after the boundary asked about, as
        `BatchDelta.offers`.
        """
        ...


class _Block(NamedTuple):
    """Who waits for one answer, as of when, and what they held before that boundary.

    `first` is the answer that did not speak of all batches; what it lacks has been asked for.
    """

    as_of: Boundary
    up_to: int
    slots: Int32
    before: Any
    first: Any = None


class RefillCoordinator:
    """Who pends in a room.

    Parameters
    ----------
    leader : Leader
    resuming : Resuming, optional    the same, if it does not match those that wait

    Attributes
    ----------
    closed : Boundary      the last one closed
    waits : bool[slots]    who pends
    requests, asked : int  questions so far, and rows in them
    """

    def __init__(self, leader: RefillTarget, resuming: Resuming | None = None):
        self.leader = leader
        self.resuming = resuming
        self.closed = Boundary(-1, 0, -1, NO_FLOOR)
        self.waits = np.zeros(0, np.bool_)
        self.requests = self.asked = 0
        self._blocks: dict[int, _Block] = {}
        self._deferred: deque[BatchDelta] = deque()
        self._early: list[tuple[int, Any]] = []

    def __bool__(self) -> bool:
        """Whether anybody pends."""
        return bool(self._blocks)

    @property
    def watermark(self) -> int:
        """Number of the last batch up to which everything has been told."""
        return min((block.as_of.number - 1 for block in self._blocks.values()), default=self.closed.number)

    def ensure_slots(self, capacity: int) -> None:
        """Have room for slots below `capacity`."""
        if self.waits.shape[0] < capacity:
            self.waits = resized(self.waits, capacity)

    def defer(self, news: BatchDelta) -> None:
        """Keep what a batch has for those that wait, until they are led through it."""
        if self._blocks:
            self._deferred.append(news)

    def pend(self, as_of: Boundary, slots: Int32, before: Any, up_to: int | None = None) -> WindowRequest:
        """Let slots wait for the window as of a boundary; `before` is what they were told to hold before it."""
        request = self.requests
        self.requests += 1
        self.asked += slots.shape[0]
        self._blocks[request] = _Block(as_of, as_of.number if up_to is None else up_to, slots, before)
        self.waits[slots] = True
        return self._ask(request)

    def extend(self, request: int, up_to: int) -> WindowRequest:
        """The question of a request, whose answer must now say what came up to a later batch."""
        block = self._blocks[request]
        self._blocks[request] = block._replace(up_to=max(block.up_to, up_to))
        return self._ask(request)

    def slots_of(self, request: int) -> Int32:
        """Who waits for an answer.

        Raises
        ------
        EngineError
            If nobody does.
        """
        if request not in self._blocks:
            raise EngineError(f"an answer to request {request}, which nobody waits for")
        return self._blocks[request].slots

    def install(self, request: int, body: Any) -> tuple[list[UpdateBatch], list[WindowRequest], Int32] | None:
        """Take an answer, and lead who waited for it to the last boundary closed.

        Returns
        -------
        updates, asks, slots
            Slots that have caught up with the present: nobody, if more must be asked. None if the answer speaks of
            batches that are not closed yet: then it is kept, and `early` hands it out when its time has come.

        Raises
        ------
        EngineError
            If nobody waits for it, or it speaks of less than it was asked.
        """
        self.slots_of(request)
        block = self._blocks[request]
        if block.up_to > self.closed.number:
            self._early.append((request, body))
            return None
        up_to = block.up_to
        if self.resuming is not None and block.first is None:
            if body.up_to < self.closed.number:
                return [empty(UpdateBatch)], [self._ask_more(request, body)], _NOBODY
            up_to = self.closed.number
        del self._blocks[request]
        later = self.leader.refill(block.slots, body if block.first is None else block.first, block.as_of)
        if self.resuming is not None and block.first is not None:
            later = concatenate([later, self.resuming.came(block.slots, body)])
        led = np.zeros(self.waits.shape[0], np.bool_)
        led[block.slots] = True
        self.waits[block.slots] = False
        updates, asks = [self.leader.tell(block.as_of, block.slots, block.before)], []
        past = block.as_of
        for news in self._deferred:
            boundary = news.boundary
            if boundary.number <= past.number:
                continue
            mine = news.of(led)
            if boundary.number <= up_to and later is not None:
                came = (later.seq >= boundary.first_seq) & (later.seq <= boundary.last_seq) & led[later.slot]
                mine = mine._replace(offers=take_rows(later, came))
            told, lacking = self.leader.lead(past, mine, block.slots[led[block.slots]])
            updates.append(told)
            led[mine.leaving] = led[lacking.slots] = False
            if lacking.slots.shape[0]:
                asks.append(self.pend(boundary, lacking.slots, lacking.before, max(block.up_to, boundary.number)))
            past = boundary
        oldest = min((each.as_of.number for each in self._blocks.values()), default=self.closed.number)
        while self._deferred and self._deferred[0].boundary.number <= oldest:
            self._deferred.popleft()
        return updates, asks, block.slots[led[block.slots]]

    def early(self) -> list[tuple[int, Any]]:
        """Answers that came before their time and can be installed now."""
        ready = [each for each in self._early if self._blocks[each[0]].up_to <= self.closed.number]
        self._early = [each for each in self._early if self._blocks[each[0]].up_to > self.closed.number]
        return ready

    def start_at(self, boundary: Boundary) -> None:
        """Go on behind a boundary; before any batch."""
        self.closed = boundary

    def _ask(self, request: int) -> WindowRequest:
        block, onward = self._blocks[request], self.resuming is not None
        return WindowRequest(request, WindowQuery(block.as_of, block.up_to, self.leader.question(block.slots), onward))

    def _ask_more(self, request: int, body: Any) -> WindowRequest:
        """Ask for what came since the last batch that an answer speaks of; from here on it is matched again."""
        assert self.resuming is not None
        block = self._blocks[request]
        self._blocks[request] = block._replace(up_to=self.closed.number, first=body)
        known = [block.as_of, *(news.boundary for news in self._deferred)]
        since = next((boundary for boundary in known if boundary.number == body.up_to), None)
        if since is None:
            raise EngineError(f"an answer to request {request} as of batch {block.as_of.number} up to {body.up_to}")
        rows = self.resuming.resume(block.slots, body)
        return WindowRequest(request, WindowQuery(since, self.closed.number, rows, more=True))
