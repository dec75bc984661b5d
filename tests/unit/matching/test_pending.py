"""Asking as of a boundary, putting by, replaying: step by step, with a leader of which every step can be worked out."""

from typing import NamedTuple

import numpy as np
import pytest

from matching.errors import EngineError
from matching.model import ENTER, LEAVE, UpdateBatch, concatenate, empty
from matching.operator import WindowRequest
from matching.refill import BatchDelta, RefillCoordinator, RefillNeeded
from matching.window import NO_FLOOR, Boundary


class Offers(NamedTuple):
    """Messages for slots."""

    slot: np.ndarray
    seq: np.ndarray


class Rows(NamedTuple):
    """What slots ask."""

    slot: np.ndarray


class Body(NamedTuple):
    """An answer: what each slot held at the boundary asked about, and what came later; None: nothing is said of it."""

    held: dict[int, set[int]]
    later: Offers | None = None
    up_to: int = -1


def slots(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def offers(*pairs: tuple[int, int]) -> Offers:
    return Offers(slots(*(slot for slot, _ in pairs)), np.array([seq for _, seq in pairs], np.int64))


def bound(number: int) -> Boundary:
    """Batches of ten messages."""
    return Boundary(number, 10 * number, 10 * number + 9, NO_FLOOR)


class Keeper:
    """Every slot keeps all that it is offered, until it loses it; it runs short at boundaries that it is told."""

    def __init__(self, short: dict[int, int] | None = None):
        self.held: dict[int, set[int]] = {}
        self.short = dict(short or {})
        self.led: list[tuple[int, list[int]]] = []

    def query(self, slots):
        return Rows(slots)

    def refill(self, slots, body: Body, as_of):
        for slot in slots.tolist():
            self.held[slot] = set(body.held[slot])
        return body.later

    def advance(self, past, news, slots):
        assert news.boundary.number == past.number + 1, "boundary by boundary"
        self.led.append((news.boundary.number, slots.tolist()))
        before = {slot: frozenset(self.held[slot]) for slot in slots.tolist()}
        for slot, seq in zip(*(column.tolist() for column in news.offers), strict=True):
            assert slot in before, "an offer for somebody else"
            self.held[slot].add(seq)
        for slot, seq in zip(news.lost_slots.tolist(), news.lost_seqs.tolist(), strict=True):
            self.held[slot].discard(seq)
        told, lacking = [], []
        for slot in slots.tolist():
            if slot in news.leaving:
                self.held[slot] = set()
            if self.short.get(slot) == news.boundary.number:
                lacking.append(slot)
                del self.short[slot]
                continue
            told.append(self.result_updates(news.boundary, np.array([slot], np.int32), [before[slot]]))
            if slot in news.leaving:
                del self.held[slot]
        return _joined(told), RefillNeeded(np.array(lacking, np.int32), [before[slot] for slot in lacking])

    def result_updates(self, boundary, slots, before):
        rows = []
        for slot, had in zip(slots.tolist(), before, strict=True):
            rows += [(slot, seq, LEAVE) for seq in sorted(had - self.held[slot])]
            rows += [(slot, seq, ENTER) for seq in sorted(self.held[slot] - had)]
        number, seq, change = (np.array([row[i] for row in rows], np.int64) for i in range(3))
        as_of, score = np.full(len(rows), boundary.last_seq), np.zeros(len(rows))
        return UpdateBatch(as_of, number, seq, change.astype(np.int8), score)


def _joined(told: list[UpdateBatch]) -> UpdateBatch:
    return concatenate([empty(UpdateBatch), *told])


def rows_of(updates: list[UpdateBatch]) -> list[tuple]:
    """(boundary, slot, seq, +1 or -1)."""
    told = _joined(updates)
    signs = np.where(told.change == ENTER, 1, -1)
    return list(zip((told.as_of // 10).tolist(), told.number.tolist(), told.seq.tolist(), signs.tolist(), strict=True))


class Resumer(Keeper):
    """The same, of whom those that wait are not matched."""

    def __init__(self, short: dict[int, int] | None = None):
        super().__init__(short)
        self.resumed: list[list[int]] = []

    def resume(self, slots, body: Body):
        self.resumed.append(slots.tolist())
        return Rows(slots)

    def later_hits(self, slots, body: Body):
        return body.later


class Run:
    """An operator with nothing in it but those that pend."""

    def __init__(self, short: dict[int, int] | None = None, resuming: bool = False):
        resumer = Resumer(short)
        self.keeper = resumer if resuming else Keeper(short)
        self.pending = RefillCoordinator(self.keeper, resumer if resuming else None)
        self.resumed = resumer.resumed
        self.pending.ensure_slots(8)

    def close(self, *pairs: tuple[int, int], leaving=(), lost=()) -> None:
        """The next boundary, at which these came for those that pend."""
        boundary = bound(self.pending.closed.number + 1)
        self.pending.closed = boundary
        gone = np.array([seq for _, seq in lost], np.int64)
        self.pending.defer(
            BatchDelta(boundary, offers(*pairs), slots(*leaving), slots(*(one for one, _ in lost)), gone)
        )

    def begin(self, *who: int, before: list | None = None) -> WindowRequest:
        nothing = [frozenset()] * len(who) if before is None else before
        return self.pending.begin(self.pending.closed, slots(*who), nothing)

    def install(self, request: int, held: dict[int, set[int]], later: Offers | None = None, up_to: int = -1):
        """(updates, asks, slots that have caught up), in plain Python."""
        installed = self.pending.install(request, Body(held, later, up_to))
        assert installed is not None
        return rows_of(installed[0]), installed[1], sorted(installed[2].tolist())

    @property
    def kept(self) -> list[int]:
        """Numbers of the batches that are put by."""
        return [news.boundary.number for news in self.pending._deferred]


def test_pending_nobody_keeps_nothing():
    run = Run()
    for _ in range(5):
        run.close((1, 3))
    assert not run.pending and run.kept == [] and run.pending.watermark == 4
    assert run.pending.early() == [] and run.pending.requests == run.pending.queried == 0


def test_pending_answer_leads_through_what_was_put_by_one_difference_a_boundary():
    run = Run()
    run.close()
    ask = run.begin(1, 2, before=[frozenset({3}), frozenset()])
    assert (ask.request, ask.query.as_of, ask.query.up_to) == (0, bound(0), 0)
    assert ask.query.rows.slot.tolist() == [1, 2]
    assert run.pending.watermark == -1 and run.pending and run.pending.waits.nonzero()[0].tolist() == [1, 2]
    run.close((1, 11), (2, 12))
    run.close(lost=[(1, 11)])
    run.close((2, 31))
    told, asks, caught_up = run.install(0, {1: {3, 4}, 2: {5}})
    assert told == [
        (0, 1, 4, 1), (0, 2, 5, 1),
        (1, 1, 11, 1), (1, 2, 12, 1),
        (2, 1, 11, -1),
        (3, 2, 31, 1),
    ]  # fmt: skip
    assert asks == [] and caught_up == [1, 2]
    assert not run.pending and not run.pending.waits.any() and run.kept == []
    assert run.pending.watermark == 3
    assert (run.pending.requests, run.pending.queried) == (1, 2)


def test_pending_answer_at_once_tells_of_the_boundary_asked_about_alone():
    run = Run()
    run.close()
    run.begin(4)
    told, asks, caught_up = run.install(0, {4: {7}})
    assert (told, asks, caught_up) == ([(0, 4, 7, 1)], [], [4])
    assert run.keeper.led == [] and run.pending.watermark == 0


def test_pending_answer_to_what_was_not_asked_raises():
    run = Run()
    run.close()
    run.begin(1)
    run.install(0, {1: set()})
    for request in (0, 1):
        with pytest.raises(EngineError, match=f"request {request}, for which no refill waits"):
            run.install(request, {1: set()})


def test_pending_answer_up_to_a_later_batch_stands_for_what_was_put_by_until_then():
    """Routers kept messages back up to batch 2; from then on what was put by is complete."""
    run = Run()
    run.close()
    run.begin(1)
    ask = run.pending.extend(0, 2)
    assert (ask.query.as_of.number, ask.query.up_to) == (0, 2)
    assert run.pending.extend(0, 1).query.up_to == 2, "never less than has been asked before"
    run.close((1, 11), lost=[(1, 2)])
    run.close((1, 25))
    run.close((1, 31))
    told, _, caught_up = run.install(0, {1: {2}}, offers((1, 11), (1, 14), (1, 25), (1, 27)))
    assert told == [
        (0, 1, 2, 1),
        (1, 1, 2, -1), (1, 1, 11, 1), (1, 1, 14, 1),
        (2, 1, 25, 1), (2, 1, 27, 1),
        (3, 1, 31, 1),
    ]  # fmt: skip
    assert caught_up == [1]


def test_pending_answer_before_its_time_is_kept_until_the_last_batch_it_speaks_of():
    run = Run()
    run.close()
    run.begin(1)
    run.pending.extend(0, 3)
    body = Body({1: {2}}, offers((1, 15), (1, 35)))
    run.close((1, 15))
    run.close()
    assert run.pending.install(0, body) is None
    assert run.pending.early() == [] and run.pending.waits[1] and run.pending.watermark == -1
    run.close()
    (ready,) = run.pending.early()
    assert ready == (0, body) and run.pending.early() == [], "handed out once"
    told, _, caught_up = run.install(ready[0], *ready[1])
    assert told == [(0, 1, 2, 1), (1, 1, 15, 1), (3, 1, 35, 1)] and caught_up == [1]
    assert run.kept == [] and not run.pending


def test_pending_answers_before_their_time_are_handed_out_as_theirs_comes():
    run = Run()
    run.close()
    for slot, up_to in ((1, 2), (2, 1), (3, 2)):
        run.begin(slot)
        run.pending.extend(slot - 1, up_to)
        assert run.pending.install(slot - 1, Body({slot: set()}, offers())) is None
    run.close()
    assert [request for request, _ in run.pending.early()] == [1]
    run.install(1, {2: set()}, offers())
    run.close()
    assert [request for request, _ in run.pending.early()] == [0, 2] and run.pending.watermark == -1


def test_pending_again_on_the_way_asks_as_of_there_and_tells_nothing_of_it():
    run = Run(short={1: 2})
    run.close()
    run.begin(1, 2)
    run.close((1, 11), (2, 12))
    run.close((1, 21), (2, 22))
    run.close((1, 31), (2, 32))
    told, (ask,), caught_up = run.install(0, {1: {1}, 2: {2}})
    assert (ask.request, ask.query.as_of, ask.query.up_to) == (1, bound(2), 2)
    assert ask.query.rows.slot.tolist() == [1]
    assert [row for row in told if row[1] == 1] == [(0, 1, 1, 1), (1, 1, 11, 1)]
    assert [row[0] for row in told if row[1] == 2] == [0, 1, 2, 3] and caught_up == [2]
    assert run.pending.watermark == 1 and run.pending.waits.nonzero()[0].tolist() == [1]
    assert run.kept == [3], "what lies before the boundary asked about serves nobody"
    run.close((1, 41))
    told, asks, caught_up = run.install(1, {1: {21}})
    # it was told to hold 1 and 11 before boundary 2
    assert told == [(2, 1, 1, -1), (2, 1, 11, -1), (2, 1, 21, 1), (3, 1, 31, 1), (4, 1, 41, 1)]
    assert asks == [] and caught_up == [1] and run.kept == [] and run.pending.watermark == 4


def test_pending_again_within_what_an_answer_says_asks_up_to_there_again():
    """What routers kept back is not put by: the second answer must say it, too."""
    run = Run(short={1: 1})
    run.close()
    run.begin(1)
    run.pending.extend(0, 3)
    for _ in range(4):
        run.close()
    _, (ask,), caught_up = run.install(0, {1: set()}, offers((1, 15), (1, 35)))
    assert (ask.query.as_of.number, ask.query.up_to) == (1, 3) and caught_up == []
    told, _, _ = run.install(ask.request, {1: {15}}, offers((1, 35)))
    assert told == [(1, 1, 15, 1), (3, 1, 35, 1)]


def test_pending_unsubscribed_while_waiting_is_told_to_its_end():
    run = Run()
    run.close()
    run.begin(1, 2)
    run.close((1, 11), (2, 12))
    run.close((2, 22), leaving=[1])
    run.close((2, 32))
    told, asks, caught_up = run.install(0, {1: {1}, 2: set()})
    assert [row for row in told if row[1] == 1] == [(0, 1, 1, 1), (1, 1, 11, 1), (2, 1, 1, -1), (2, 1, 11, -1)]
    assert caught_up == [2] and asks == [] and 1 not in run.keeper.held
    assert run.keeper.led[-1] == (3, [2]), "who has gone is led no further"
    assert not run.pending.waits.any()


def test_pending_slot_given_to_another_sees_nothing_of_its_predecessor():
    run = Run()
    run.close()
    run.begin(1)
    run.begin(2)
    run.close((1, 11), leaving=[1])
    run.install(0, {1: set()})
    run.close((2, 21))
    run.begin(1)  # somebody new, in the same slot; 2 waits still, so nothing has been thrown away
    assert run.kept == [1, 2]
    run.close((1, 31))
    told, _, _ = run.install(2, {1: {22}})
    assert told == [(2, 1, 22, 1), (3, 1, 31, 1)]
    told, _, _ = run.install(1, {2: set()})
    assert told == [(2, 2, 21, 1)]


def test_pending_not_matched_takes_all_from_an_answer_that_speaks_of_every_batch_closed():
    run = Run(resuming=True)
    run.close()
    ask = run.begin(1)
    assert ask.query.onward and not ask.query.more
    run.close()
    run.close()
    # the window is ahead: batch 3 is still to be closed here, and will be matched
    told, asks, caught_up = run.install(0, {1: {2}}, offers((1, 11), (1, 21), (1, 31)), up_to=3)
    assert told == [(0, 1, 2, 1), (1, 1, 11, 1), (2, 1, 21, 1)]
    assert (asks, caught_up, run.resumed, run.kept) == ([], [1], [], []) and run.pending.watermark == 2


def test_pending_not_matched_asks_once_more_for_batches_closed_since():
    run = Run(resuming=True)
    run.close()
    run.begin(1, 2)
    for _ in range(3):
        run.close()
    told, (ask,), caught_up = run.install(0, {1: {2}, 2: set()}, offers((1, 11), (2, 12)), up_to=1)
    assert (told, caught_up, run.resumed) == ([], [], [[1, 2]])
    assert ask.request == 0 and ask.query.more and not ask.query.onward
    assert (ask.query.as_of, ask.query.up_to) == (bound(1), 3)
    assert run.pending.waits[[1, 2]].all() and run.pending.watermark == -1
    assert run.pending.queried == 2, "the same two"
    run.close((1, 41))
    run.close((2, 52))
    told, asks, caught_up = run.install(0, {}, offers((2, 22), (1, 31)), up_to=3)
    assert told == [
        (0, 1, 2, 1),
        (1, 1, 11, 1), (1, 2, 12, 1),
        (2, 2, 22, 1),
        (3, 1, 31, 1),
        (4, 1, 41, 1),
        (5, 2, 52, 1),
    ]  # fmt: skip
    assert (asks, caught_up, run.kept) == ([], [1, 2], []) and not run.pending


def test_pending_not_matched_answered_as_of_the_boundary_alone_asks_for_all_since():
    run = Run(resuming=True)
    run.close()
    run.begin(1)
    run.close()
    _, (ask,), _ = run.install(0, {1: {2}}, offers(), up_to=0)
    assert (ask.query.as_of, ask.query.up_to) == (bound(0), 1)
    told, _, caught_up = run.install(0, {}, offers((1, 11)), up_to=1)
    assert told == [(0, 1, 2, 1), (1, 1, 11, 1)] and caught_up == [1]


def test_pending_not_matched_answer_that_speaks_of_less_than_it_was_asked_raises():
    run = Run(resuming=True)
    run.close()
    run.close()
    run.begin(1)
    run.close()
    with pytest.raises(EngineError, match="request 0 as of batch 1 up to 0"):
        run.install(0, {1: {2}}, offers(), up_to=0)


def test_pending_not_matched_runs_short_again_on_the_way_and_is_asked_for_whole():
    run = Run(short={1: 2}, resuming=True)
    run.close()
    run.begin(1, 2)
    for _ in range(3):
        run.close()
    run.install(0, {1: {2}, 2: set()}, offers((1, 11)), up_to=1)
    run.close((1, 41), (2, 42))
    told, (ask,), caught_up = run.install(0, {}, offers((1, 31), (2, 32)), up_to=3)
    assert told == [(0, 1, 2, 1), (1, 1, 11, 1), (3, 2, 32, 1), (4, 2, 42, 1)] and caught_up == [2]
    assert ask.query.as_of == bound(2) and ask.query.onward and not ask.query.more
    told, _, caught_up = run.install(ask.request, {1: {11}}, offers((1, 31), (1, 41)), up_to=4)
    assert told == [(2, 1, 2, -1), (3, 1, 31, 1), (4, 1, 41, 1)] and caught_up == [1]
    assert not run.pending and run.kept == []


def test_pending_not_matched_unsubscribed_while_the_rest_is_asked_for_is_told_to_its_end():
    run = Run(resuming=True)
    run.close()
    run.begin(1, 2)
    run.close()
    run.install(0, {1: {2}, 2: set()}, offers(), up_to=0)
    run.close((2, 21), leaving=[1])
    told, _, caught_up = run.install(0, {}, offers((1, 11)), up_to=1)
    assert told == [(0, 1, 2, 1), (1, 1, 11, 1), (2, 1, 2, -1), (2, 1, 11, -1), (2, 2, 21, 1)] and caught_up == [2]


def test_pending_not_matched_and_answered_before_its_time_is_kept_until_then():
    run = Run(resuming=True)
    run.close()
    run.begin(1)
    assert run.pending.extend(0, 2).query.onward
    run.close()
    body = Body({1: {2}}, offers((1, 11), (1, 21), (1, 31)), 3)
    assert run.pending.install(0, body) is None
    run.close()
    ((request, early),) = run.pending.early()
    told, asks, caught_up = run.install(request, *early)
    assert told == [(0, 1, 2, 1), (1, 1, 11, 1), (2, 1, 21, 1)] and (asks, caught_up) == ([], [1])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_pending_several_blocks_are_led_each_from_its_own_boundary(order):
    run, told = Run(), {}
    for slot in (1, 2, 3):
        run.close(*((other, 10 * slot + other - 10) for other in range(1, slot)))
        run.begin(slot)
    run.close((1, 31), (2, 32), (3, 33))
    assert run.pending.watermark == -1 and run.kept == [1, 2, 3]
    answered: set[int] = set()
    for request in order:
        told[request + 1], _, caught_up = run.install(request, {request + 1: {request * 10}})
        assert caught_up == [request + 1]
        answered.add(request)
        waiting = min({0, 1, 2} - answered, default=3)
        assert run.kept == list(range(waiting + 1, 4)) and run.pending.watermark == (waiting - 1 if waiting < 3 else 3)
    assert told == {
        1: [(0, 1, 0, 1), (1, 1, 11, 1), (2, 1, 21, 1), (3, 1, 31, 1)],
        2: [(1, 2, 10, 1), (2, 2, 22, 1), (3, 2, 32, 1)],
        3: [(2, 3, 20, 1), (3, 3, 33, 1)],
    }


def test_pending_thousand_times_leaves_nothing_behind():
    run = Run()
    for number in range(1000):
        run.close(*((slot, 10 * number + slot) for slot in range(number % 5)))
        run.begin(number % 5)
        if number % 5 == 4:
            for request in range(number - 4, number + 1):
                told, _, _ = run.install(request, {request % 5: set()})
                assert len(told) == number - request
            assert run.kept == []
        assert len(run.kept) < 5
    assert not run.pending and not run.pending._refills and not run.pending._early and not run.pending.waits.any()
    assert run.pending.requests == 1000 and run.pending.watermark == 999


def test_pending_begun_behind_a_boundary_goes_on_from_there():
    run = Run()
    run.pending.start_at(bound(6))
    assert run.pending.watermark == 6
    ask = run.begin(1)
    assert ask.query.as_of == bound(6) and run.pending.watermark == 5
    run.close((1, 71))
    told, _, _ = run.install(ask.request, {1: {60}})
    assert told == [(6, 1, 60, 1), (7, 1, 71, 1)]


def test_pending_makes_room_for_slots_and_keeps_who_waits():
    run = Run()
    run.close()
    run.begin(7)
    run.pending.ensure_slots(4)
    run.pending.ensure_slots(100)
    assert run.pending.waits.nonzero()[0].tolist() == [7] and run.pending.waits.size == 100
