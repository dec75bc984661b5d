"""What every room keeps to, whatever its kind and engine: one suite over the table of kinds.

Subscriptions are made by the traits of a kind alone, so that a new row of the table is under test without a word here.
"""

import json

import numpy as np
import pytest

from matching.alone import Alone
from matching.errors import EngineError
from matching.kind import Kind, Room, Site, Turn
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD, NO_MESSAGES, MessageBatch, Removals, SubscriptionTable
from matching.naive import Extras, Oracle, tally
from matching.state import State
from matching.window import Boundary, Window
from tests.rooms import ENGINES, NO_CHANGES, Tasks, kind_of
from tests.worlds import SPACE

TERMS, BATCH = 5, 20
WINDOW = Window("count", 50)
NOBODY, NOTHING = NO_CHANGES


@pytest.fixture(params=ENGINES, ids="-".join)
def kind(request) -> Kind:
    return kind_of(*request.param)


@pytest.fixture
def room(kind) -> Room:
    return kind.make_room(Site(SPACE, WINDOW))


def boundary_of(number: int, window: Window = WINDOW, size: int = BATCH) -> Boundary:
    last = (number + 1) * size - 1
    return Boundary(number, number * size, last, window.floor(last, last))


def words(rng, rows: int, fewest: int, most: int):
    """Ascending terms of unit length."""
    lengths = rng.integers(fewest, most + 1, rows)
    terms = [np.sort(rng.choice(TERMS, length, replace=False)) for length in lengths]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    weights = np.repeat(1.0 / np.sqrt(np.maximum(lengths, 1)), lengths).astype(np.float32)
    return offsets, np.concatenate([*terms, np.zeros(0)]).astype(np.int32), weights


def messages_of(rng, first: int, count: int = BATCH) -> MessageBatch:
    """Messages on a lattice, every fourth a rectangle, some without words."""
    seq = first + np.arange(count)
    lon, lat = rng.integers(-8, 9, count) * 20.0, rng.integers(-8, 9, count) * 10.0
    x, y = SPACE.project(lon, lat)
    side = np.where(rng.random(count) < 0.25, 10.0, 0.0)
    return MessageBatch(seq, x, y, lon, lat, lon + side, lat + side, seq, *words(rng, count, 0, 3))


def subscriptions_of(rng, kind: Kind, numbers, at: int = 0) -> SubscriptionTable:
    """Subscriptions that somebody will match, by the traits of the kind."""
    numbers = np.asarray(numbers, np.int64)
    rows, point = numbers.size, kind.place == "point"
    nowhere = np.full(rows, np.nan)
    corner = np.stack([rng.integers(-8, 4, rows) * 20.0, rng.integers(-8, 4, rows) * 10.0], axis=1)
    region = np.concatenate([corner, corner + rng.integers(1, 5, (rows, 2)) * [20.0, 10.0]], axis=1)
    if kind.wraps:
        across = rng.random(rows) < 0.2
        region[across] = region[across][:, [2, 1, 0, 3]]
    k = rng.integers(1, 5, rows) if "k" in kind.fields else np.zeros(rows)
    if "match" in kind.fields:
        k = np.where(rng.random(rows) < 0.3, ANY_KEYWORD, k)
    return SubscriptionTable(
        numbers,
        np.full(rows, kind.code, np.int8),
        np.full(rows, at),
        rng.random(rows) if point else nowhere,
        rng.random(rows) * 0.5 if point else nowhere,
        np.full((rows, 4), np.nan) if point else region,
        k.astype(np.int32),
        rng.random(rows) if "alpha" in kind.fields else nowhere,
        *words(rng, rows, 1, 2),
    )


def removals_of(kind: Kind, *numbers: int, at: int = 0) -> Removals:
    return Removals(np.array(numbers, np.int64), np.full(len(numbers), kind.code, np.int8), np.full(len(numbers), at))


def turn_of(boundary: Boundary, messages: MessageBatch, added=NOBODY, removed=NOTHING, home: int = 0) -> Turn:
    rows = len(added)
    return Turn(boundary, messages, NO_MESSAGES, added, np.full(rows, home), np.ones(rows, np.bool_), removed)


def step_of(room: Room, turn: Turn):
    return room.close(room.match(turn).mine, [])


def test_room_with_nobody_in_it_has_nothing_to_say(kind, room):
    numbers = np.array([0, 7])
    assert (len(room), room.complete_through) == (0, -1)
    assert room.holds(numbers).tolist() == [False, False] and room.met.size == 0
    assert [column.shape[0] for column in room.claims(numbers)] == [0, 0]
    assert len(room.results()) == 0 and len(room.state().table) == 0
    assert isinstance(json.dumps(room.report()), str)
    assert all(isinstance(array, np.ndarray) for array in room.arrays().values())
    rng = np.random.default_rng(0)
    for number, messages in enumerate((messages_of(rng, 0), NO_MESSAGES, messages_of(rng, 40).take(np.array([3])))):
        step = step_of(room, turn_of(boundary_of(number), messages))
        assert len(step.updates) == 0 and step.asks == () == step.relaxes and step.raised.number.size == 0
        assert room.complete_through == number and room.met.size == 0
    assert len(room.results()) == 0 and len(room.state().table) == 0


@pytest.mark.parametrize("number", [0, 1, 3])
def test_room_batch_out_of_order_is_refused(room, kind, number):
    rng = np.random.default_rng(1)
    for earlier in range(2):
        step_of(room, turn_of(boundary_of(earlier), messages_of(rng, earlier * BATCH)))
    with pytest.raises(EngineError):
        room.match(turn_of(boundary_of(number), messages_of(rng, number * BATCH)))
    assert room.complete_through == 1


def test_room_number_added_twice_is_refused(kind):
    rng = np.random.default_rng(2)
    for twice in ([3, 3], [4]):
        room = kind.make_room(Site(SPACE, WINDOW))
        step_of(room, turn_of(boundary_of(0), messages_of(rng, 0), subscriptions_of(rng, kind, [4])))
        with pytest.raises(EngineError, match=f"subscription ({twice[0]}|of this batch) cannot be added"):
            step_of(room, turn_of(boundary_of(1), messages_of(rng, BATCH), subscriptions_of(rng, kind, twice)))


def test_room_removal_of_who_is_not_here_is_passed_over(kind):
    """Every task hears of every removal, wherever the subscription is."""
    rng, alone = np.random.default_rng(3), Alone([kind], SPACE, WINDOW)
    alone.process(boundary_of(0), messages_of(rng, 0), subscriptions_of(rng, kind, [1, 2]), NOTHING)
    alone.process(boundary_of(1), messages_of(rng, 20), NOBODY, removals_of(kind, 9, 1, at=25))
    assert len(alone.room) == 1 and alone.room.holds(np.array([1, 2, 9])).tolist() == [False, True, False]
    step = alone.process(boundary_of(2), messages_of(rng, 40), NOBODY, removals_of(kind, 1, at=45))
    assert len(alone.room) == 1 and set(step.updates.number.tolist()) <= {2}


def test_room_subscription_added_and_removed_in_one_batch_is_gone_behind_it(kind):
    alone, oracle = Alone([kind], SPACE, WINDOW), Oracle(WINDOW, SPACE.max_distance)
    rng = np.random.default_rng(4)
    for number in range(4):
        boundary, messages = boundary_of(number), messages_of(rng, number * BATCH)
        added = subscriptions_of(rng, kind, np.arange(10 * number, 10 * number + 10), boundary.first_seq + 3)
        removed = removals_of(kind, *range(10 * number, 10 * number + 8), at=boundary.first_seq + 12)
        told = tally(alone.process(boundary, messages, added, removed).updates)
        assert told == tally(oracle.advance(boundary, messages, added, removed))
        assert len(alone.room) == 2 * (number + 1)
        assert alone.room.holds(np.arange(10 * number + 10)).tolist() == ([False] * 8 + [True] * 2) * (number + 1)
    assert len(alone.states()[kind.code].table) == 8


def test_room_over_any_small_stream_tells_what_the_oracle_tells(kind):
    """Batches of every size, none too; objects that speak again, which only some kinds hear of; read-only columns."""
    told = 0
    for seed in range(4):
        rng = np.random.default_rng([5, seed])
        tasks, oracle = Tasks(kind, SPACE, WINDOW, shares=1 + seed % 2), Oracle(WINDOW, SPACE.max_distance)
        seq, live, following, latest, said = 0, [], 0, {}, []
        for number in range(14):
            size = int(rng.choice([0, 1, 9, 30]))
            boundary = Boundary(number, seq, seq + size - 1, WINDOW.floor(seq + size - 1, 0))
            messages = read_only(messages_of(rng, seq, size))
            said.append(messages)
            who, ended = rng.integers(0, 25, size).tolist(), []
            for name, one in zip(who, messages.seq.tolist(), strict=True):
                ended += [latest[name]] if name in latest else []
                latest[name] = one
            added = read_only(subscriptions_of(rng, kind, following + np.arange(rng.integers(0, 5)), seq))
            following += len(added)
            gone = [live.pop(int(rng.integers(len(live)))) for _ in range(min(len(live), int(rng.integers(0, 3))))]
            live += added.number.tolist()
            removed = removals_of(kind, *gone, at=seq + size)
            extras = Extras(object_id=who, op=[0] * size)
            wanted = tally(oracle.advance(boundary, messages, added, removed, extras))
            ends = concatenated(said).take(np.sort(np.array(ended, np.int64)))
            assert tally(tasks.process(boundary, messages, added, removed, ends).updates) == wanted, f"{seed} {number}"
            told, seq = told + sum(wanted.values()), seq + size
            if number % 5 == 4:
                tasks.go_on()
        assert [row[:4] for row in tasks.results()] == sorted(row[:4] for row in oracle.results())
        assert len(tasks.room) == len(live) and tasks.room.complete_through == number
    assert told > 60, "a stream in which nothing happens proves nothing"


def read_only(table):
    """The same columns, as they come from another process."""
    columns = {name: column.copy() for name, column in table._asdict().items()}
    for column in columns.values():
        column.flags.writeable = False
    return type(table)(**columns)


def concatenated(parts: list[MessageBatch]) -> MessageBatch:
    columns = {}
    for name in MessageBatch._fields:
        column = [getattr(part, name) for part in parts]
        columns[name] = np.concatenate(column)
    lengths = np.concatenate([np.diff(part.term_offsets) for part in parts])
    return MessageBatch(**(columns | {"term_offsets": np.concatenate([[0], np.cumsum(lengths)])}))


def test_room_is_complete_through_what_it_has_told(kind):
    """Whoever asks the window is late, and says so; the others are not."""
    rng = np.random.default_rng(6)
    room = kind.make_room(Site(SPACE, WINDOW))
    oracle, share = Oracle(WINDOW, SPACE.max_distance), kind.window()(SPACE, 9) if kind.windowed else None
    wanted, told, asks = tally([]), tally([]), []
    for number in range(6):
        boundary, messages = boundary_of(number), messages_of(rng, number * BATCH)
        added = subscriptions_of(rng, kind, np.arange(8) if number == 2 else [], boundary.first_seq)
        wanted += tally(oracle.advance(boundary, messages, added, NOTHING))
        if share is not None:
            share.store(boundary, messages, NO_MESSAGES.seq)
        step = step_of(room, turn_of(boundary, messages, added))
        asks += step.asks
        told += tally(step.updates)
        assert room.complete_through == (number if share is None or number < 2 else 1)
    assert (len(asks) > 0) == kind.windowed
    for ask in asks:
        assert share is not None and told != wanted
        step = room.answer(ask.request, share.merge([share.answer(ask.question)]))
        told += tally(step.updates)
        asks += step.asks
    assert told == wanted and sum(told.values()) > 0
    assert room.complete_through == 5


def test_room_refuses_answers_to_what_nobody_has_asked(room):
    with pytest.raises(EngineError, match="request 3"):
        room.answer(3, None)


def test_room_restored_from_an_empty_state_goes_on_behind_the_boundary(kind):
    rng = np.random.default_rng(7)
    tasks, oracle, told = Tasks(kind, SPACE, WINDOW), Oracle(WINDOW, SPACE.max_distance), 0
    for number in range(7):
        boundary, messages = boundary_of(number), messages_of(rng, number * BATCH)
        added = subscriptions_of(rng, kind, np.arange(12) if number == 5 else [], boundary.first_seq)
        wanted = tally(oracle.advance(boundary, messages, added, NOTHING))
        assert tally(tasks.process(boundary, messages, added, NOTHING).updates) == wanted
        if number == 3:
            tasks.go_on(3)
            assert [len(each.room) for each in tasks.tasks] == [0, 0, 0]
            assert {each.room.complete_through for each in tasks.tasks} == {3}
            assert len(tasks.results()) == 0
            with pytest.raises(EngineError):
                tasks.room.match(turn_of(boundary_of(3), messages))
        told += sum(wanted.values())
    assert told > 0


def test_room_says_of_every_subscription_what_it_asks(kind):
    rng, alone = np.random.default_rng(8), Alone([kind], SPACE, WINDOW)
    added = subscriptions_of(rng, kind, [5, 2, 9, 4])
    alone.process(boundary_of(0), messages_of(rng, 0), added, NOTHING)
    alone.process(boundary_of(1), messages_of(rng, 20), NOBODY, removals_of(kind, 2, at=20))
    state = State.from_arrays(alone.room.state().arrays())
    assert said_by(state.table) == said_by(added.take(np.array([0, 2, 3])))
    assert said_by(state.take(np.array([1])).table).items() < said_by(state.table).items()


def said_by(table: SubscriptionTable) -> dict[int, tuple]:
    """By number: kind, region, k and words of each."""
    told = {}
    for row, number in enumerate(table.number.tolist()):
        terms = table.terms[table.term_offsets[row] : table.term_offsets[row + 1]].tolist()
        told[number] = (int(table.kind[row]), repr(table.region[row].tolist()), int(table.k[row]), terms)
    return told


def test_room_keeps_no_result_of_who_is_at_home_elsewhere(kind):
    if not kind.standing:
        return  # pairs are told by whoever finds them: there is no home
    rng = np.random.default_rng(9)
    room = kind.make_room(Site(SPACE, WINDOW, task=0, tasks=2))
    for number in range(3):
        added = subscriptions_of(rng, kind, np.arange(10) if number == 0 else [])
        step = step_of(room, turn_of(boundary_of(number), messages_of(rng, number * BATCH), added, home=1))
        assert len(step.updates) == 0 and step.asks == () and room.complete_through == number
    assert len(room.results()) == 0 and len(room.state().table) == 0


def test_contract_is_kept_by_every_engine_of_every_kind_that_runs():
    assert {name for name, _ in ENGINES} == {each.name for each in KINDS.run}
    assert len(ENGINES) == sum(len(each.engines) for each in KINDS.run) > 10
