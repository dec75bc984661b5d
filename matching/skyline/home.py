"""Skylines whose pairs are found by several tasks, and whose window is held by others: what one query task does.

A task matches, in `match`, the messages that are its own against all subscriptions that it holds. Each subscription has
a home among its holders; what a task finds for others goes there (`SkylineFound`). A home closes a batch, in `close`,
once it has heard of every holder: it leads its subscriptions to the boundary, as `matching.skyline.stream` does.

Whoever is new, or has lost what kept others out, *pends*: nothing is kept of it, the window is asked for its candidates
as of that boundary, and what is found for it from then on is put by. When the answer has come, `install` leads it
through those batches, boundary by boundary, one difference each; it may come to pend again on the way. Slots are at
different boundaries meanwhile, which disturbs nobody: an engine looks at those that something happened to, or that are
due at the floor it is given, and who has been led further is due at none of the floors before.

A subscription that ends while it pends is told to its end like any other. Read on in `bolts.skyline`.
"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from matching.errors import EngineError
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
from matching.skyline.answers import SkylineAnswers, SkylineAsk
from matching.skyline.engine import Offers, SkylineEngine
from matching.skyline.kept import Held
from matching.skyline.standing import Standing, alive_rows, contents_of, held_nothing, join_held
from matching.skyline.stream import find_removed
from matching.skyline.window import Candidates
from matching.slots import resized
from matching.window import NO_FLOOR, Boundary


class SkylineFound(NamedTuple):
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

    def take(self, rows: Int64, lost: Int64) -> "SkylineFound":
        """The pairs at `rows` and those at `lost`. O(n)."""
        return SkylineFound(
            self.number[rows],
            self.seq[rows],
            self.life[rows],
            self.spatial[rows],
            self.text[rows],
            self.lost_number[lost],
            self.lost_seq[lost],
        )


class Matched(NamedTuple):
    """A batch that this task has matched, as far as its own subscriptions go; it can be closed when all are heard.

    offers, lost_slots, lost_seqs    what it found itself
    leaving : int32[n]               slots that have ended in it, `fresh` those that have come
    """

    boundary: Boundary
    offers: Offers
    lost_slots: Int32
    lost_seqs: Int64
    leaving: Int32
    fresh: Int32


class HomeStep(NamedTuple):
    """What a step tells, and what it asks the window."""

    updates: UpdateBatch
    asks: list[SkylineAsk]


class _Pending(NamedTuple):
    """A request under way: whose, as of what, and what they were told to hold before."""

    as_of: Boundary
    slots: Int32
    before: Held


class SkylineHome:
    """The skyline subscriptions of one query task, at home here or not.

    Parameters
    ----------
    engine : SkylineEngine    without subscriptions; its index finds, its pool keeps skylines of those at home
    task : int
    """

    def __init__(self, engine: SkylineEngine, task: int):
        self.engine = engine
        self.standing = Standing(engine)
        self.task = task
        self.closed = Boundary(-1, 0, -1, NO_FLOOR)
        self.matched = self.closed
        self.requests = 0
        self.scanned = self.pairs = 0
        #: Seqs (int64[n]) of those messages of the last batch that are candidates of a subscription held here.
        self.met = np.zeros(0, np.int64)
        self._home = np.zeros(0, np.int32)  # by slot
        self._pends = np.zeros(0, np.bool_)
        self._waiting: dict[int, _Pending] = {}
        self._put_by: deque[Matched] = deque()  # closed batches, what they had for those that pend

    def __len__(self) -> int:
        """Subscriptions held, replicas included."""
        return len(self.engine)

    @property
    def complete_through(self) -> int:
        """Number of the last batch up to which everything has been told."""
        return min((each.as_of.number - 1 for each in self._waiting.values()), default=self.closed.number)

    def holds(self, numbers: Int64) -> np.ndarray:
        """bool[n]: which of these subscriptions are here."""
        return self.engine.index.find(numbers) >= 0

    def at_home(self) -> int:
        """How many subscriptions are at home here."""
        return int(np.count_nonzero(self._home[self.engine.index.live_slots()] == self.task))

    def pass_over(self, boundary: Boundary) -> None:
        """Take the next batch while there has never been a subscription anywhere."""
        self.matched = self.closed = boundary
        self.met = np.zeros(0, np.int64)

    def match(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        ended: MessageBatch,
        added: SubscriptionTable,
        home: Int64,
        gone: Int64,
        tasks: int,
    ) -> tuple[Matched, list[SkylineFound]]:
        """Match the next batch.

        Parameters
        ----------
        boundary : Boundary
        messages, ended : MessageBatch    those of them that this task answers for
        added : SubscriptionTable         those that this task holds, `home` int64[n] is their home
        gone : int64[m]                   those removed that are here, or among the added
        tasks : int                       how many there are

        Returns
        -------
        Matched, list of SkylineFound
            For `close`, and for the home at every task; this one's is empty.
        """
        index, past = self.engine.index, self.matched.floor
        self.matched = boundary
        leaving, staying = find_removed(self.engine, added, gone)
        index.withdraw(leaving)
        alive = messages.take(alive_rows(boundary, messages, ended.seq))
        before = ended.take(np.flatnonzero((ended.seq < boundary.first_seq) & (ended.life > past)))
        hits, lost = index.match(alive), index.match_at(contents_of(before))
        self.scanned += hits.scanned + lost.scanned
        self.pairs += hits.slot.shape[0]
        self.met = alive.seq[np.unique(hits.row)]
        offers = Offers(hits.slot, alive.seq[hits.row], alive.life[hits.row], hits.spatial, hits.text)
        lost_seqs = before.seq[lost.row]

        hit_home, lost_home = self._home[hits.slot], self._home[lost.slot]
        number = index.slots.number
        everything = SkylineFound(
            number[hits.slot], offers.seq, offers.life, hits.spatial, hits.text, number[lost.slot], lost_seqs
        )
        found = [
            everything.take(_NONE, _NONE)
            if task == self.task
            else everything.take(np.flatnonzero(hit_home == task), np.flatnonzero(lost_home == task))
            for task in range(tasks)
        ]
        mine, mine_lost = hit_home == self.task, lost_home == self.task
        own = leaving[self._home[leaving] == self.task]
        index.remove(leaving[self._home[leaving] != self.task])

        fresh = self.engine.insert(staying)
        self._ensure_slots()
        self._home[fresh] = home if fresh.shape[0] == len(added) else home[np.isin(added.number, staying.number)]
        fresh = fresh[self._home[fresh] == self.task]
        own_lost = lost.slot[mine_lost], lost_seqs[mine_lost]
        return Matched(boundary, _take_offers(offers, mine), *own_lost, own, fresh), found

    def close(self, matched: Matched, found: list[SkylineFound]) -> HomeStep:
        """Close the next batch, with what the other tasks found in it for those at home here.

        Raises
        ------
        EngineError
            If they found something for a subscription that is not here: then it was not this batch.
        """
        turn = self._with_found(matched, found)
        boundary, past = turn.boundary, self.closed.floor
        self.closed = boundary
        if self._waiting:
            self._put_by.append(_of(turn, self._pends))
            turn = _of(turn, ~self._pends)
        updates, lacking = self.standing.lead(
            past, boundary, turn.offers, turn.lost_slots, turn.lost_seqs, turn.leaving
        )  # fmt: skip
        self.engine.index.remove(turn.leaving)
        fresh = matched.fresh
        slots = np.concatenate([lacking.slots, fresh])
        return HomeStep(updates, self._ask(boundary, slots, join_held([lacking.before, held_nothing(fresh.shape[0])])))

    def install(self, answers: SkylineAnswers) -> HomeStep:
        """Take the candidates of those that pend since a boundary, and lead them up to the last one closed."""
        as_of, slots, before = self._waiting.pop(answers.request)
        # what comes from another process may be read-only, for which every kernel would be compiled once more
        columns: Any = (np.require(column, requirements=("C", "A", "W")) for column in answers.candidates())
        self.engine.refill(slots, Candidates(*columns), as_of.floor)
        self._pends[slots] = False
        updates, asks = [self.standing.tell(as_of, slots, before)], []
        led, past = np.zeros(self._pends.shape[0], np.bool_), as_of.floor
        led[slots] = True
        for turn in self._put_by:
            if turn.boundary.number <= as_of.number:
                continue
            turn = _of(turn, led)
            told, lacking = self.standing.lead(
                past, turn.boundary, turn.offers, turn.lost_slots, turn.lost_seqs, turn.leaving
            )
            self.engine.index.remove(turn.leaving)
            led[turn.leaving] = led[lacking.slots] = False
            updates.append(told)
            asks += self._ask(turn.boundary, lacking.slots, lacking.before)
            past = turn.boundary.floor
        oldest = min((each.as_of.number for each in self._waiting.values()), default=self.closed.number)
        while self._put_by and self._put_by[0].boundary.number <= oldest:
            self._put_by.popleft()
        return HomeStep(concatenate(updates), asks)

    def results(self) -> ResultBatch:
        """Standing skylines of those at home here, as of the last boundary closed; right once nobody pends."""
        slots = self.engine.index.live_slots()
        return self.standing.results(slots[self._home[slots] == self.task], self.closed.floor)

    def _ensure_slots(self) -> None:
        if self._home.shape[0] < self.engine.index.capacity:
            self._home = resized(self._home, self.engine.index.capacity)
            self._pends = resized(self._pends, self.engine.index.capacity)

    def _with_found(self, matched: Matched, found: list[SkylineFound]) -> Matched:
        """With what others found for those at home here."""
        if not found:
            return matched
        slots = self._slots_of([each.number for each in found], matched.boundary)
        lost = self._slots_of([each.lost_number for each in found], matched.boundary)
        own = matched.offers
        offers = Offers(
            np.concatenate([own.slot, slots]),
            np.concatenate([own.seq, *(each.seq for each in found)]),
            np.concatenate([own.life, *(each.life for each in found)]),
            np.concatenate([own.spatial, *(each.spatial for each in found)]),
            np.concatenate([own.text, *(each.text for each in found)]),
        )
        lost_seqs = np.concatenate([matched.lost_seqs, *(each.lost_seq for each in found)])
        return matched._replace(
            offers=offers, lost_slots=np.concatenate([matched.lost_slots, lost]), lost_seqs=lost_seqs
        )  # fmt: skip

    def _slots_of(self, numbers: list[Int64], boundary: Boundary) -> Int32:
        wanted = np.concatenate(numbers)
        slots = self.engine.index.find(wanted)
        if np.any(slots < 0):
            raise EngineError(
                f"skyline: task {self.task} was sent finds of batch {boundary.number} for subscription "
                f"{wanted[slots < 0][0]}, which is not here; whoever closes a batch must first hear all other tasks"
            )
        return slots

    def _ask(self, boundary: Boundary, slots: Int32, before: Held) -> list[SkylineAsk]:
        """Let these pend from this boundary on."""
        if not slots.shape[0]:
            return []
        self.engine.forget(slots)
        self._pends[slots] = True
        request = self.requests
        self.requests += 1
        self._waiting[request] = _Pending(boundary, slots, before)
        return [SkylineAsk(request, self.task, boundary, *self.engine.index.queries(slots))]


_NONE = np.zeros(0, np.int64)


def _of(turn: Matched, chosen: np.ndarray) -> Matched:
    """What a batch has for slots that are marked in `chosen`; `fresh` is left out."""
    hits, lost = chosen[turn.offers.slot], chosen[turn.lost_slots]
    return Matched(
        turn.boundary,
        _take_offers(turn.offers, hits),
        turn.lost_slots[lost],
        turn.lost_seqs[lost],
        turn.leaving[chosen[turn.leaving]],
        turn.fresh[:0],
    )


def _take_offers(offers: Offers, rows: np.ndarray) -> Offers:
    return Offers(offers.slot[rows], offers.seq[rows], offers.life[rows], offers.spatial[rows], offers.text[rows])
