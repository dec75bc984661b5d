"""Skylines by hand: few messages, known answers; what engines must refuse; pools that grow, pack and come back."""

import numpy as np
import pytest

from baselines.skyline.sweep import mark_undominated
from benchmarks.driving import NO_CHANGES, Tasks, kind_of
from matching.errors import EngineError
from matching.kinds import KINDS
from matching.model import (
    ENTER,
    KEYWORDS_BY_KIND,
    LEAVE,
    NO_MESSAGES,
    SKYLINE,
    MessageBatch,
    Removals,
    SubscriptionTable,
    empty,
    join_messages,
)
from matching.operator import OperatorInput as RoomTurn
from matching.skyline.engines.eager import sort_by_slot
from matching.skyline.engines.eager_star import EagerStar
from matching.skyline.results import CandidatePool, block_size
from matching.skyline.subscriptions import SkylineSubscriptions
from matching.skyline.windows.grid import GridWindow
from matching.window import Boundary, Window
from tests.support import skyline_streams
from tests.support.skyline_worlds import (
    SPACE,
    Recipe,
    Turn,
    differences,
    ended_of,
    expected,
    make_world,
    replayed,
    run,
)

ENGINES = tuple(KINDS.named("skyline").engines)
NOBODY = np.zeros(0, np.int64)


def messages(*rows: tuple[int, float, float, list[int]], life: list[int] | None = None) -> MessageBatch:
    """Messages of (seq, lon, lat, terms)."""
    seq = np.array([row[0] for row in rows], np.int64)
    lon, lat = np.array([row[1] for row in rows], float), np.array([row[2] for row in rows], float)
    offsets = np.concatenate([[0], np.cumsum([len(row[3]) for row in rows])]).astype(np.int64)
    terms = np.array([term for row in rows for term in row[3]], np.int32)
    lives = seq if life is None else np.array(life, np.int64)
    return MessageBatch(seq, lon, lat, lon, lat, lon, lat, lives, offsets, terms, np.ones(terms.size, np.float32))


def subscriptions(*rows: tuple[int, tuple[float, float, float, float], list[int]], kind: int = SKYLINE):
    """Subscriptions of (number, region, keywords)."""
    count = len(rows)
    offsets = np.concatenate([[0], np.cumsum([len(row[2]) for row in rows])]).astype(np.int64)
    terms = np.array([term for row in rows for term in row[2]], np.int32)
    return SubscriptionTable(
        np.array([row[0] for row in rows], np.int64), np.full(count, kind, np.int8), np.zeros(count, np.int64),
        np.zeros(count), np.zeros(count), np.array([row[1] for row in rows], float).reshape(count, 4),
        np.full(count, KEYWORDS_BY_KIND, np.int8), np.zeros(count, np.int32), np.zeros(count), offsets, terms,
        np.ones(terms.size, np.float32),
    )  # fmt: skip


def removals(*numbers: int, kind: int = SKYLINE) -> Removals:
    return Removals(np.array(numbers, np.int64), np.full(len(numbers), kind, np.int8), np.zeros(len(numbers), np.int64))


class Feed:
    """A stream fed by hand, a batch a call; the window holds the last `length` messages."""

    def __init__(self, name: str, length: int = 100):
        self.tasks = Tasks(kind_of("skyline", name), SPACE, Window("count", length))
        self.length, self.next_seq, self.number = length, 0, 0
        self.said = [NO_MESSAGES]

    def __call__(self, *rows, ended=(), added=None, removed=None, up_to: int | None = None) -> list[tuple]:
        """(subscription, message, change) of the batch's updates; its last seq is `up_to` or that of the last row."""
        last = up_to if up_to is not None else rows[-1][0] if rows else self.next_seq - 1
        boundary = Boundary(self.number, self.next_seq, last, last - self.length)
        said = join_messages([*self.said, messages(*rows)])
        told = self.tasks.process(
            boundary,
            messages(*rows),
            empty(SubscriptionTable) if added is None else added,
            removals() if removed is None else removed,
            said.take(np.searchsorted(said.seq, np.array(ended, np.int64))),
        ).updates
        self.said, self.number, self.next_seq = [said], self.number + 1, last + 1
        assert np.all(told.as_of == last)
        return sorted(zip(told.number.tolist(), told.seq.tolist(), told.change.tolist(), strict=True))

    @property
    def operator(self):
        return self.tasks.operator

    def held(self) -> list[tuple]:
        return [(row.seq, round(row.score, 4), round(row.text_score, 4)) for row in self.tasks.results()]


SQUARE = (0, (-3.0, -4.0, 3.0, 4.0), [1, 2])  # half diagonal 5


@pytest.mark.parametrize("engine", ENGINES)
def test_skyline_of_six_messages_is_worked_out_by_hand(engine):
    feed = Feed(engine)
    feed(added=subscriptions(SQUARE))
    told = feed(
        (0, 3.0, 4.0, [1, 2]),  # a corner: spatial 0, but all keywords
        (1, 0.0, 0.0, [1, 7, 8]),  # the centre: spatial 1, text 1 / 4
        (2, 0.0, 0.0, [2, 5, 6]),  # the same pair of relevances: both stay
        (3, 1.0, 0.0, [1, 7, 8]),  # dominated
        (4, 0.0, 0.0, [7]),  # no common keyword: no candidate, however near
        (5, 3.5, 0.0, [1, 2]),  # outside
    )
    assert told == [(0, 0, ENTER), (0, 1, ENTER), (0, 2, ENTER)]
    assert feed.held() == [(1, 1.0, 0.25), (2, 1.0, 0.25), (0, 0.0, 1.0)]
    assert [row.rank for row in feed.tasks.results()] == [1, 2, 3]
    assert feed((6, 2.0, 0.0, [1, 2])) == [(0, 0, LEAVE), (0, 6, ENTER)]


@pytest.mark.parametrize("engine", ENGINES)
def test_skyline_dominated_message_comes_back_when_its_dominator_expires(engine):
    feed = Feed(engine, length=3)
    feed(added=subscriptions(SQUARE))
    assert feed((0, 0.0, 0.0, [1, 2])) == [(0, 0, ENTER)]
    assert feed((1, 1.0, 0.0, [1, 2]), (2, 9.0, 9.0, [])) == []
    assert feed(up_to=3) == [(0, 0, LEAVE), (0, 1, ENTER)]
    assert feed(up_to=4) == [(0, 1, LEAVE)]
    assert feed.held() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_skyline_what_an_ended_message_kept_out_comes_back(engine):
    feed = Feed(engine)
    feed(added=subscriptions(SQUARE))
    feed((0, 1.0, 0.0, [1, 2]))
    assert feed((1, 0.0, 0.0, [1, 2])) == [(0, 0, LEAVE), (0, 1, ENTER)]
    # its object says something else now, within the same batch nobody has seen what it said in between
    assert feed((2, 0.5, 0.0, [1, 2]), (3, 0.0, 0.0, [9]), ended=[1, 2]) == [(0, 0, ENTER), (0, 1, LEAVE)]


def test_skyline_only_is_refilled_where_a_member_leaves_and_nothing_stands_in():
    feed = Feed("skyline_only", length=9)
    feed(added=subscriptions(SQUARE))
    begun = feed.tasks.refills
    feed((0, 1.0, 0.0, [1, 2]), (1, 1.0, 0.0, [1, 2]), (2, 2.0, 0.0, [1, 2]))  # 0 and 1 coincide, 2 is dominated
    assert feed(up_to=3, ended=[0]) == [(0, 0, LEAVE)]  # 1 keeps out what 0 did
    assert feed((4, 0.0, 0.0, [1, 2]), ended=[1]) == [(0, 1, LEAVE), (0, 4, ENTER)]  # so does a newcomer
    assert feed.tasks.refills == begun
    assert feed(up_to=5, ended=[4]) == [(0, 2, ENTER), (0, 4, LEAVE)]
    assert feed.tasks.refills == begun + 1


@pytest.mark.parametrize("engine", ["eager_star", "eager", "lazy"])
def test_skyline_refill_waits_until_it_can_matter_and_no_longer(engine):
    feed = Feed(engine, length=5)
    feed(added=subscriptions(SQUARE))
    feed((0, 0.0, 0.0, [1, 2]), (1, 2.0, 0.0, [1, 2]), (2, 1.0, 0.0, [1, 2]))  # 2 has kept 1 out, 0 dominates both
    looked_up = feed.tasks.refills
    assert feed(up_to=3, ended=[2]) == []
    assert feed.tasks.refills - looked_up == (engine != "eager_star")
    assert feed(up_to=5) == [(0, 0, LEAVE), (0, 1, ENTER)]
    assert feed.tasks.refills - looked_up == 1
    assert feed(up_to=6) == [(0, 1, LEAVE)]


def test_skyline_stale_subscription_that_loses_more_is_filled_again():
    feed = Feed("eager_star", length=50)
    feed(added=subscriptions(SQUARE))
    # 3 and 4 have kept 1 and 2 out; 0 dominates all of them
    feed(
        (0, 0.0, 0.0, [1, 2]), (1, 2.0, 0.0, [1, 2]), (2, 2.5, 0.0, [1]), (3, 1.0, 0.0, [1, 2]), (4, 2.2, 0.0, [1]),
    )  # fmt: skip
    assert feed(up_to=5, ended=[3]) == []
    assert feed(up_to=6, ended=[0]) == [(0, 0, LEAVE), (0, 1, ENTER)]
    assert feed(up_to=7, ended=[1]) == [(0, 1, LEAVE), (0, 4, ENTER)]
    assert feed(up_to=8, ended=[4]) == [(0, 2, ENTER), (0, 4, LEAVE)]


@pytest.mark.parametrize("engine", ENGINES)
def test_skyline_subscriptions_come_from_the_window_and_go_with_what_they_held(engine):
    feed = Feed(engine)
    assert feed((0, 0.0, 0.0, [1]), (1, 3.0, 4.0, [2]), (2, 0.0, 0.0, [2]), ended=[2]) == []
    table = subscriptions(SQUARE, (1, (3.0, 4.0, 5.0, 5.0), [2]), (2, (3.0, 4.0, 5.0, 5.0), [1]))
    assert feed(added=table, removed=removals(2)) == [(0, 0, ENTER), (1, 1, ENTER)]
    assert feed(removed=removals(0)) == [(0, 0, LEAVE)]
    assert len(feed.operator) == 1
    # the place of the first is given to another; the pool of keywords has been rewritten by then
    for number in range(3, 40):
        feed(added=subscriptions((number, SQUARE[1], [1, 2])), removed=removals(number - 1) if number > 3 else None)
    assert feed(removed=removals(1, 39)) == [(1, 1, LEAVE), (39, 0, LEAVE)]
    assert feed((3, 0.0, 0.0, [1, 2])) == [] and feed.held() == []


def test_skyline_room_refuses_what_does_not_fit_and_changes_nothing():
    feed = Feed("eager_star")
    feed((0, 0.0, 0.0, [1]), added=subscriptions(SQUARE))
    before = {name: value.copy() for name, value in feed.operator.arrays().items()}
    one, two = messages((1, 0.0, 0.0, [1])), messages((2, 0.0, 0.0, [1]))
    for text, turn in {
        "cannot follow": turn_of(Boundary(3, 1, 1, -99), one),
        "do not lie inside": turn_of(Boundary(1, 1, 1, -99), two),
        "subscription 0 cannot be added": turn_of(Boundary(1, 1, 1, -99), one, subscriptions(SQUARE)),
        "of this batch cannot be added": turn_of(
            Boundary(1, 1, 1, -99), one, subscriptions((4, SQUARE[1], [1]), (4, SQUARE[1], [1]))
        ),
    }.items():
        with pytest.raises(EngineError, match=text):
            feed.operator.match(turn)
    after = feed.operator.arrays()
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    assert feed((1, 0.0, 0.0, [1])) == [(0, 1, ENTER)]
    with pytest.raises(EngineError, match="twice"):
        feed.operator.match(turn_of(Boundary(2, 2, 2, -98), two, removed=removals(0, 0)))
    with pytest.raises(EngineError, match="keywords"):
        SkylineSubscriptions(SPACE).insert(subscriptions((0, SQUARE[1], list(range(5000)))))


def turn_of(boundary: Boundary, batch: MessageBatch, added=NO_CHANGES[0], removed=NO_CHANGES[1]) -> RoomTurn:
    home, held = np.zeros(len(added), np.int64), np.ones(len(added), np.bool_)
    return RoomTurn(boundary, batch, NO_MESSAGES, added, home, held, removed)


def feed_world(tasks: Tasks, turns: list[Turn]):
    """Updates of all batches of a world."""
    return [
        tasks.process(turn.boundary, turn.messages, turn.added, turn.removed, ended_of(turns, number)).updates
        for number, turn in enumerate(turns)
    ]


def test_skyline_updates_add_up_to_the_results():
    window, turns = make_world(Recipe(objects=25, deletes=0.1), 3)
    tasks = Tasks(kind_of("skyline", "eager_star"), SPACE, window)
    assert replayed(feed_world(tasks, turns)) == {(row.number, row.seq) for row in tasks.results()} != set()


def test_skyline_newcomers_under_a_member_are_put_by_until_it_goes():
    feed = Feed("eager_star")
    feed(added=subscriptions(SQUARE))
    feed((0, 0.0, 0.0, [1, 2]))
    far = [(seq, 2.5 - seq / 20, 0.0, [1, 2]) for seq in range(1, 31)]  # each is nearer than all before it
    assert feed(*far) == []
    engine = feed.operator.engine
    assert isinstance(engine, EagerStar)
    tails, kept = engine._tails, engine.candidates
    assert tails.words[0, 0] == 2 and kept.entries() == 2  # 14 in a tail: two have been full and left one each
    assert feed(up_to=31, ended=[29]) == [] and tails.words[0, 0] == 1  # ended while put by: it kept nothing out
    assert feed(up_to=32, ended=[0]) == [(0, 0, LEAVE), (0, 30, ENTER)]
    assert tails.words[0, 0] == 0 and engine.entries() == 1


class Counting(GridWindow):
    """Counts the candidates that it has fetched."""

    fetched = 0

    def useful(self, queries, as_of):
        found = super().useful(queries, as_of)
        self.fetched += found.seq.shape[0]
        return found


@pytest.mark.wide
def test_skyline_engines_keep_less_the_more_they_know():
    window, turns = make_world(Recipe(window="count:400", batches=20, batch=50, terms=4, churn=0.0), 1)
    entries, refills, fetched = {}, {}, {}
    for name in ENGINES:
        tasks = Tasks(kind_of("skyline", name, Counting), SPACE, window)
        feed_world(tasks, turns)
        entries[name], refills[name] = tasks.operator.engine.entries(), tasks.refills
        window_index = tasks.tasks[0].window_index
        assert isinstance(window_index, Counting)
        fetched[name] = window_index.fetched
    assert (
        entries["bnl"]
        == entries["sweep"]
        == entries["skyline_only"]
        < entries["eager"]
        == entries["eager_star"]
        < entries["lazy"]
    )
    assert refills["eager_star"] == refills["lazy"] < refills["skyline_only"] / 2
    assert refills["skyline_only"] < refills["bnl"] / 2
    assert fetched["bnl"] > 5 * fetched["eager_star"] > 0


def test_skyline_refills_that_wait_are_often_saved():
    window, turns = make_world(Recipe(window="count:400", batches=30, batch=30, terms=4, objects=250, churn=0.0), 2)
    refills = {}
    for patient in (True, False):
        tasks = Tasks(kind_of("skyline", lambda space, p=patient: EagerStar(space, patient=p)), SPACE, window)
        feed_world(tasks, turns)
        refills[patient] = tasks.refills
    assert refills[True] < 0.8 * refills[False]


def test_skyline_pool_grown_and_packed_in_the_middle_of_everything_equals_oracle(monkeypatch):
    packed, grown = [], []
    real = CandidatePool.grow

    def counted(self):
        size = self.view.seq.shape[0]
        real(self)
        (grown if self.view.seq.shape[0] > size else packed).append(size)

    monkeypatch.setattr("matching.skyline.results._FEWEST", 8)
    monkeypatch.setattr(CandidatePool, "grow", counted)
    span, turns = make_world(Recipe(subscriptions=30, objects=40, terms=4, grid=4, batches=50), 4)
    wanted, _ = expected(span, turns)
    for name in ENGINES:
        assert not differences(run(name, span, turns), wanted), name
    assert len(grown) > 5 and len(packed) > 1


def test_block_size_grows_by_a_half_or_a_third():
    sizes = [int(block_size(size_class)) for size_class in range(8)]
    assert sizes == [4, 6, 8, 12, 16, 24, 32, 48]


def test_mark_undominated_of_random_pairs_equals_comparison_of_all():
    rng = np.random.default_rng(1)
    for count in (0, 1, 2, 30, 200):
        spatial, text = rng.integers(0, 6, count) / 5.0, rng.integers(1, 5, count) / 4.0
        best = np.zeros(count, np.bool_)
        mark_undominated(spatial, text, best)
        beats = (spatial[:, None] >= spatial) & (text[:, None] >= text)
        beats &= (spatial[:, None] > spatial) | (text[:, None] > text)
        assert np.array_equal(best, ~beats.any(axis=0))


# ---------------------------------------------------------------------------------------------- the plain window


@pytest.mark.parametrize(
    "recipe",
    [
        skyline_streams.Recipe(),
        skyline_streams.Recipe(objects=0, grid=None),
        skyline_streams.Recipe(late=60, batches=40, window=60),
        skyline_streams.Recipe(batch=200, window=90, batches=5),
    ],
    ids=["objects", "plain", "late", "long_batches"],
)
def test_grid_window_over_random_streams_equals_plain_python(recipe):
    window, model, compared = GridWindow(SPACE), skyline_streams.Model(), 0
    for step in skyline_streams.make_steps(recipe, 6):
        window.store(step.boundary, step.messages, step.ended)
        model.store(step)
        queries = skyline_streams.make_queries(recipe, step.boundary.number, 100)
        told, count = skyline_streams.differences(window, model, queries)
        assert not told
        compared += count
        assert len(window) == len(model.live)
    assert compared > 100
    counts = window.postings.before.nbytes  # by cell, whatever the window has
    assert window.size_bytes() - counts < 400 * 12 * max(len(model.live), 60)


def test_grid_window_out_of_order_raises():
    window = GridWindow(SPACE)
    window.store(Boundary(0, 0, 1, -5), messages((0, 0.0, 0.0, [1]), (1, 0.0, 0.0, [1])), NOBODY)
    with pytest.raises(EngineError, match="cannot follow"):
        window.store(Boundary(2, 2, 2, -5), messages((2, 0.0, 0.0, [1])), NOBODY)
    with pytest.raises(EngineError, match="must ascend"):
        window.store(Boundary(1, 2, 2, -5), messages((1, 0.0, 0.0, [1])), NOBODY)


def test_offers_sorted_by_slot_stay_in_their_order_within_one():
    order = np.full(5, -1, np.int32)
    sort_by_slot(np.array([3, 1, 3, 0, 1], np.int32), 5, order)
    assert order.tolist() == [3, 1, 4, 0, 2]
