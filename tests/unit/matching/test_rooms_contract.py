"""What every operator keeps to, whatever its kind and engine: one suite over the table of kinds.

Subscriptions are made by the traits of a kind alone, so that a new row of the table is under test without a word here.
"""

import json
from collections import Counter

import numpy as np
import pytest

from benchmarks.driving import ENGINES, NO_CHANGES, Tasks, kind_of
from matching.errors import EngineError
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import ANY_KEYWORD, KEYWORDS_BY_KIND, NO_MESSAGES, MessageBatch, SubscriptionTable
from matching.naive_rows import tally
from matching.operator import KindOperator, OperatorContext, OperatorInput, Regional, ResultOperator, Windowed, capable
from matching.storage.state import State
from matching.window import Boundary, Window
from tests.support.any_kind import (
    FADING,
    TERMS,
    Recipe,
    expected,
    make_turns,
    messages_of,
    oracle_of,
    removals_of,
    subscriptions_of,
    without_text,
)
from tests.support.worlds import SPACE, extras_of

BATCH = 20
WINDOW = Window("count", 50)
NOBODY, NOTHING = NO_CHANGES


@pytest.fixture(params=ENGINES, ids="-".join)
def kind(request) -> Kind:
    return kind_of(*request.param)


@pytest.fixture
def operator(kind) -> KindOperator:
    return kind.make_operator(OperatorContext(SPACE, WINDOW, fading=FADING))


def boundary_of(number: int) -> Boundary:
    last = (number + 1) * BATCH - 1
    return Boundary(number, number * BATCH, last, WINDOW.floor(last, last))


def batch_of(rng, number: int) -> MessageBatch:
    return messages_of(rng, number * BATCH, BATCH)


def turn_of(boundary: Boundary, messages: MessageBatch, added=NOBODY, removed=NOTHING, home: int = 0) -> OperatorInput:
    rows = len(added)
    return OperatorInput(boundary, messages, NO_MESSAGES, added, np.full(rows, home), np.ones(rows, np.bool_), removed)


def step_of(operator: KindOperator, turn: OperatorInput):
    return operator.close(operator.match(turn).own_hits, [])


def has_nothing(operator: KindOperator) -> None:
    """No state, and neither results nor matched messages where an operator has them."""
    assert len(operator.state().table) == 0
    assert not isinstance(operator, ResultOperator) or len(operator.results()) == 0
    assert not isinstance(operator, Regional) or operator.met.size == 0


def test_room_with_nobody_in_it_has_nothing_to_say(kind, operator):
    numbers = np.array([0, 7])
    assert (len(operator), operator.watermark) == (0, -1)
    assert operator.contains(numbers).tolist() == [False, False]
    if isinstance(operator, Regional):
        assert [column.shape[0] for column in operator.claims(numbers)] == [0, 0]
    has_nothing(operator)
    assert isinstance(json.dumps(operator.report()), str)
    assert all(isinstance(array, np.ndarray) for array in operator.arrays().values())
    rng = np.random.default_rng(0)
    for number, messages in enumerate((batch_of(rng, 0), NO_MESSAGES, batch_of(rng, 2).take(np.array([3])))):
        step = step_of(operator, turn_of(boundary_of(number), messages))
        assert len(step.updates) == 0 and step.window_requests == () == step.relaxes and step.raised.number.size == 0
        assert operator.watermark == number
        has_nothing(operator)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_room_batch_out_of_order_is_refused(operator, kind, number):
    rng = np.random.default_rng(1)
    for earlier in range(2):
        step_of(operator, turn_of(boundary_of(earlier), batch_of(rng, earlier)))
    with pytest.raises(EngineError):
        operator.match(turn_of(boundary_of(number), batch_of(rng, number)))
    assert operator.watermark == 1


def test_room_number_added_twice_is_refused(kind):
    rng = np.random.default_rng(2)
    for twice in ([3, 3], [4]):
        operator = kind.make_operator(OperatorContext(SPACE, WINDOW, fading=FADING))
        step_of(operator, turn_of(boundary_of(0), batch_of(rng, 0), subscriptions_of(rng, kind, [4])))
        with pytest.raises(EngineError, match=f"subscription ({twice[0]}|of this batch) cannot be added"):
            step_of(operator, turn_of(boundary_of(1), batch_of(rng, 1), subscriptions_of(rng, kind, twice)))


def test_room_removal_of_who_is_not_here_is_passed_over(kind):
    """Every task hears of every removal, wherever the subscription is."""
    rng, alone = np.random.default_rng(3), LocalEngine([kind], SPACE, WINDOW, fading=FADING)
    alone.process(boundary_of(0), batch_of(rng, 0), subscriptions_of(rng, kind, [1, 2]), NOTHING)
    alone.process(boundary_of(1), batch_of(rng, 1), NOBODY, removals_of(kind, 9, 1, at=25))
    assert len(alone.operator) == 1 and alone.operator.contains(np.array([1, 2, 9])).tolist() == [False, True, False]
    step = alone.process(boundary_of(2), batch_of(rng, 2), NOBODY, removals_of(kind, 1, at=45))
    assert len(alone.operator) == 1 and set(step.updates.number.tolist()) <= {2}


def test_room_subscription_added_and_removed_in_one_batch_is_gone_behind_it(kind):
    alone, oracle = LocalEngine([kind], SPACE, WINDOW, fading=FADING), oracle_of(WINDOW)
    rng = np.random.default_rng(4)
    for number in range(4):
        boundary, messages = boundary_of(number), batch_of(rng, number)
        added = subscriptions_of(rng, kind, np.arange(10 * number, 10 * number + 10), boundary.first_seq + 3)
        removed = removals_of(kind, *range(10 * number, 10 * number + 8), at=boundary.first_seq + 12)
        told = tally(alone.process(boundary, messages, added, removed).updates)
        assert told == tally(oracle.advance(boundary, messages, added, removed, extras_of(messages)))
        assert len(alone.operator) == 2 * (number + 1)
        assert alone.operator.contains(np.arange(10 * number + 10)).tolist() == ([False] * 8 + [True] * 2) * (
            number + 1
        )
    assert len(alone.states()[kind.code].table) == 8


def test_operator_of_subscriptions_that_are_all_alike_equals_the_oracle(kind):
    """All posting lists grow at the same time, and none is short."""
    alone, oracle = LocalEngine([kind], SPACE, WINDOW, fading=FADING), oracle_of(WINDOW)
    rng, first, count = np.random.default_rng(5), 0, 0
    one = subscriptions_of(rng, kind, [0])
    for number, rows in enumerate((75, 150, 225, 300)):
        boundary, messages = boundary_of(number), batch_of(rng, number)
        alike = {
            "number": np.arange(first, first + rows),
            "at": np.full(rows, boundary.first_seq),
            "match": np.full(rows, ANY_KEYWORD if "match" in kind.fields else KEYWORDS_BY_KIND, np.int8),
            "term_offsets": np.arange(rows + 1) * TERMS,
            "terms": np.tile(np.arange(TERMS, dtype=np.int32), rows),
            "weights": np.full(rows * TERMS, 1 / np.sqrt(TERMS), np.float32),
        }
        added = SubscriptionTable(**one.take(np.zeros(rows, np.int64))._asdict() | alike)
        first += rows
        told = tally(alone.process(boundary, messages, added, NOTHING).updates)
        assert told == tally(oracle.advance(boundary, messages, added, NOTHING, extras_of(messages)))
        count += told.total()
    assert count > 1_000


def test_room_over_any_small_stream_tells_what_the_oracle_tells(kind):
    """Batches of every size, none too; objects that speak again; read-only columns; saved now and then."""
    count = 0
    for seed in range(4):
        tasks, turns = Tasks(kind, SPACE, WINDOW, window_tasks=1 + seed % 2), make_turns(kind, seed)
        told, results = expected(turns, WINDOW)
        for turn, wanted in zip(turns, told, strict=True):
            step = tasks.process(turn.boundary, turn.messages, turn.added, turn.removed, turn.ended)
            assert tally(step.updates) == wanted, f"seed {seed}, batch {turn.boundary.number}"
            count += len(step.updates)
            if turn.boundary.number % 5 == 4:
                tasks.go_on()
        assert without_text(tasks.results()) == results
        live = sum(len(turn.added) - turn.removed.number.size for turn in turns)
        assert len(tasks.operator) == live and tasks.operator.watermark == len(turns) - 1
    assert count > 60, "a stream in which nothing happens proves nothing"


def test_room_that_grows_and_shrinks_by_hundreds_tells_what_the_oracle_tells(kind):
    """Columns grow, pools of terms are compacted, slots are used again; saved when most have gone."""
    turns = make_turns(kind, 11, Recipe(batches=8, sizes=(8,), first=300, arrivals=120, departures=320))
    told, results = expected(turns, WINDOW)
    tasks, held = Tasks(kind, SPACE, WINDOW), []
    for turn, wanted in zip(turns, told, strict=True):
        assert (
            tally(tasks.process(turn.boundary, turn.messages, turn.added, turn.removed, turn.ended).updates) == wanted
        )
        held.append(len(tasks.operator))
        if turn.boundary.number == 5:
            tasks.go_on()
    assert without_text(tasks.results()) == results
    assert min(held) < 100 < 300 <= max(held) and sum(sum(each.values()) for each in told) > 300


def test_room_that_everybody_has_left_is_as_new(kind):
    alone, oracle, told = LocalEngine([kind], SPACE, WINDOW, fading=FADING), oracle_of(WINDOW), []
    rng = np.random.default_rng(12)
    for number in range(6):
        boundary, messages = boundary_of(number), batch_of(rng, number)
        coming = {0: range(20), 4: range(20, 40)}.get(number, ())
        added = subscriptions_of(rng, kind, np.array(coming, np.int64), boundary.first_seq)
        removed = removals_of(kind, *(range(20) if number == 2 else ()), at=boundary.last_seq + 1)
        wanted = tally(oracle.advance(boundary, messages, added, removed, extras_of(messages)))
        assert tally(alone.process(boundary, messages, added, removed).updates) == wanted
        told.append(sum(wanted.values()))
        if number in (2, 3):
            assert len(alone.operator) == 0 == len(alone.results()) == len(alone.operator.state().table)
            assert not alone.operator.contains(np.arange(20)).any()
    assert told[3] == 0 < min(told[0], told[4])


def test_room_beside_other_kinds_tells_of_its_own_alone(kind):
    turns = make_turns(KINDS.run, 13)
    told, _ = expected(turns, WINDOW)
    tasks, own, count = Tasks(kind, SPACE, WINDOW), set(), 0
    for turn, wanted in zip(turns, told, strict=True):
        own |= set(turn.added.number[turn.added.kind == kind.code].tolist())
        got = tally(tasks.process(turn.boundary, turn.messages, turn.added, turn.removed, turn.ended).updates)
        assert got == Counter({row: times for row, times in wanted.items() if row[1] in own})
        count += len(got)
    assert count > 20


def test_room_is_complete_through_what_it_has_told(kind):
    """Whoever asks the window is late, and says so; the others are not."""
    rng = np.random.default_rng(6)
    operator = kind.make_operator(OperatorContext(SPACE, WINDOW, fading=FADING))
    oracle, window_index = oracle_of(WINDOW), kind.window()(SPACE, 9) if kind.windowed else None
    wanted, told, asks = tally([]), tally([]), []
    for number in range(6):
        boundary, messages = boundary_of(number), batch_of(rng, number)
        added = subscriptions_of(rng, kind, np.arange(8) if number == 2 else [], boundary.first_seq)
        wanted += tally(oracle.advance(boundary, messages, added, NOTHING, extras_of(messages)))
        if window_index is not None:
            window_index.store(boundary, messages, NO_MESSAGES.seq)
        step = step_of(operator, turn_of(boundary, messages, added))
        asks += step.window_requests
        told += tally(step.updates)
        assert operator.watermark == (number if window_index is None or number < 2 else 1)
    assert (len(asks) > 0) == kind.windowed
    for ask in asks:
        assert window_index is not None and told != wanted
        step = capable(operator, Windowed).answer(ask.request, window_index.merge([window_index.answer(ask.query)]))
        told += tally(step.updates)
        asks += step.window_requests
    assert told == wanted and sum(told.values()) > 0
    assert operator.watermark == 5


@pytest.mark.parametrize("shorter", [True, False], ids=["own way", "empty batch"])
def test_room_that_was_passed_over_goes_on_with_whoever_comes(kind, shorter):
    """Also once all have left again."""
    rng = np.random.default_rng(11)
    operator = kind.make_operator(OperatorContext(SPACE, WINDOW, fading=FADING))
    oracle, window_index = oracle_of(WINDOW), kind.window()(SPACE, 9) if kind.windowed else None
    told_in_all = 0
    for number in range(12):
        boundary, messages = boundary_of(number), batch_of(rng, number)
        added = subscriptions_of(
            rng, kind, 100 * number + np.arange(30) if number in (3, 8) else [], boundary.first_seq
        )
        removed = removals_of(kind, *range(300, 330), at=boundary.first_seq) if number == 6 else NOTHING
        wanted = tally(oracle.advance(boundary, messages, added, removed, extras_of(messages)))
        if window_index is not None:
            window_index.store(boundary, messages, NO_MESSAGES.seq)
        if not len(operator) and not len(added):
            operator.pass_over(boundary) if shorter else KindOperator.pass_over(operator, boundary)
            assert not wanted
            has_nothing(operator)
        else:
            step = step_of(operator, turn_of(boundary, messages, added, removed))
            told = tally(step.updates)
            for ask in step.window_requests:
                assert window_index is not None
                answer = window_index.merge([window_index.answer(ask.query)])
                told += tally(capable(operator, Windowed).answer(ask.request, answer).updates)
            assert told == wanted
            told_in_all += sum(told.values())
        assert operator.watermark == number
    assert told_in_all > 20


def test_room_refuses_answers_to_queries_it_has_not_sent(kind, operator):
    with pytest.raises(EngineError, match="request 3" if kind.windowed else "is not Windowed"):
        capable(operator, Windowed).answer(3, None)


def test_room_restored_from_an_empty_state_goes_on_behind_the_boundary(kind):
    rng = np.random.default_rng(7)
    tasks, oracle, told = Tasks(kind, SPACE, WINDOW), oracle_of(WINDOW), 0
    for number in range(7):
        boundary, messages = boundary_of(number), batch_of(rng, number)
        added = subscriptions_of(rng, kind, np.arange(12) if number == 5 else [], boundary.first_seq)
        wanted = tally(oracle.advance(boundary, messages, added, NOTHING, extras_of(messages)))
        assert tally(tasks.process(boundary, messages, added, NOTHING).updates) == wanted
        if number == 3:
            tasks.go_on(3)
            assert [len(each.operator) for each in tasks.tasks] == [0, 0, 0]
            assert {each.operator.watermark for each in tasks.tasks} == {3}
            assert len(tasks.results()) == 0
            with pytest.raises(EngineError):
                tasks.operator.match(turn_of(boundary_of(3), messages))
        told += sum(wanted.values())
    assert told > 0


def test_room_says_of_every_subscription_what_it_asks(kind):
    rng, alone = np.random.default_rng(8), LocalEngine([kind], SPACE, WINDOW, fading=FADING)
    added = subscriptions_of(rng, kind, [5, 2, 9, 4])
    alone.process(boundary_of(0), batch_of(rng, 0), added, NOTHING)
    alone.process(boundary_of(1), batch_of(rng, 1), NOBODY, removals_of(kind, 2, at=20))
    state = State.from_arrays(alone.operator.state().arrays())
    assert said_by(state.table) == said_by(added.take(np.array([0, 2, 3])))
    assert said_by(state.take(np.array([1])).table).items() < said_by(state.table).items()


def said_by(table: SubscriptionTable) -> dict[int, tuple]:
    """By number: kind, region, match, k and words of each."""
    told = {}
    for row, number in enumerate(table.number.tolist()):
        terms = table.terms[table.term_offsets[row] : table.term_offsets[row + 1]].tolist()
        plain = (int(column[row]) for column in (table.kind, table.match, table.k))
        told[number] = (*plain, repr(table.region[row].tolist()), terms)
    return told


def test_room_keeps_no_result_of_who_is_at_home_elsewhere(kind):
    if not kind.standing:
        return  # pairs are told by whoever finds them: there is no home
    rng = np.random.default_rng(9)
    operator = kind.make_operator(OperatorContext(SPACE, WINDOW, task=0, tasks=2, fading=FADING))
    if kind.place == "point" and not kind.replicated:  # each is matched at its home, and nowhere else
        with pytest.raises(EngineError, match="must be assigned to its home task"):
            operator.match(
                turn_of(boundary_of(0), batch_of(rng, 0), subscriptions_of(rng, kind, np.arange(10)), home=1)
            )
        return
    for number in range(3):
        added = subscriptions_of(rng, kind, np.arange(10) if number == 0 else [])
        step = step_of(operator, turn_of(boundary_of(number), batch_of(rng, number), added, home=1))
        assert len(step.updates) == 0 and step.window_requests == () and operator.watermark == number
    assert len(capable(operator, ResultOperator).results()) == 0 and len(operator.state().table) == 0


def test_contract_is_kept_by_every_engine_of_every_kind_that_runs():
    assert {name for name, _ in ENGINES} == {each.name for each in KINDS.run}
    assert len(ENGINES) == sum(len(each.engines) for each in KINDS.run) > 10
