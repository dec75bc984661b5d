"""Skylines by hand: few messages, known answers; what engines must refuse; pools that grow, pack and come back."""

import numpy as np
import pytest

from matching import registry
from matching.errors import EngineError
from matching.model import ENTER, LEAVE, SKYLINE, TOPK, MessageBatch, Removals, SubscriptionTable, empty
from matching.skyline.eager import sort_by_slot
from matching.skyline.eager_star import EagerStar
from matching.skyline.il_quadtree import IlQuadtree
from matching.skyline.index import SubscriptionIndex
from matching.skyline.kept import KeptPool, block_size
from matching.skyline.stream import SkylineStream
from matching.skyline.sweep import mark_undominated
from matching.skyline.window_plain import InvertedWindow
from matching.window import Boundary
from tests.skyline_worlds import SPACE, Recipe, differences, expected, make_world, replayed, run
from tests.unit import skyline_streams

ENGINES = registry.names("skyline")
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
        np.zeros(count, np.int32), np.zeros(count), offsets, terms, np.ones(terms.size, np.float32),
    )  # fmt: skip


def removals(*numbers: int, kind: int = SKYLINE) -> Removals:
    return Removals(np.array(numbers, np.int64), np.full(len(numbers), kind, np.int8), np.zeros(len(numbers), np.int64))


class Feed:
    """A stream fed by hand, a batch a call; the window holds the last `length` messages."""

    def __init__(self, name: str, length: int = 100):
        self.stream = SkylineStream(registry.factory("skyline", name)(SPACE), InvertedWindow())
        self.length, self.next_seq, self.number = length, 0, 0

    def __call__(self, *rows, ended=(), added=None, removed=None, up_to: int | None = None) -> list[tuple]:
        """(subscription, message, change) of the batch's updates; its last seq is `up_to` or that of the last row."""
        last = up_to if up_to is not None else rows[-1][0] if rows else self.next_seq - 1
        boundary = Boundary(self.number, self.next_seq, last, last - self.length)
        told = self.stream.process(
            boundary,
            messages(*rows),
            np.array(ended, np.int64),
            empty(SubscriptionTable) if added is None else added,
            removals() if removed is None else removed,
        )
        self.number, self.next_seq = self.number + 1, last + 1
        assert np.all(told.as_of == last)
        return sorted(zip(told.number.tolist(), told.seq.tolist(), told.change.tolist(), strict=True))

    def held(self) -> list[tuple]:
        got = self.stream.results()
        return list(zip(got.seq.tolist(), got.score.round(4).tolist(), got.text_score.round(4).tolist(), strict=True))


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
    assert feed.stream.results().rank.tolist() == [1, 2, 3]
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


@pytest.mark.parametrize("engine", ["eager_star", "eager", "lazy"])
def test_skyline_repair_waits_until_it_can_matter_and_no_longer(engine):
    feed = Feed(engine, length=5)
    feed(added=subscriptions(SQUARE))
    feed((0, 0.0, 0.0, [1, 2]), (1, 2.0, 0.0, [1, 2]), (2, 1.0, 0.0, [1, 2]))  # 2 has kept 1 out, 0 dominates both
    looked_up = feed.stream.work.refilled
    assert feed(up_to=3, ended=[2]) == []
    assert feed.stream.work.refilled - looked_up == (engine != "eager_star")
    assert feed(up_to=5) == [(0, 0, LEAVE), (0, 1, ENTER)]
    assert feed.stream.work.refilled - looked_up == 1
    assert feed(up_to=6) == [(0, 1, LEAVE)]


def test_skyline_repair_of_a_subscription_that_waits_for_one_starts_from_scratch():
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
    assert len(feed.stream) == 1
    # the place of the first is given to another; the pool of keywords has been rewritten by then
    for number in range(3, 40):
        feed(added=subscriptions((number, SQUARE[1], [1, 2])), removed=removals(number - 1) if number > 3 else None)
    assert feed(removed=removals(1, 39)) == [(1, 1, LEAVE), (39, 0, LEAVE)]
    assert feed((3, 0.0, 0.0, [1, 2])) == [] and feed.held() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_skyline_stream_leaves_other_kinds_alone(engine):
    feed = Feed(engine)
    told = feed(
        (0, 0.0, 0.0, [1]),
        added=subscriptions((7, SQUARE[1], [1]), kind=TOPK),
        removed=removals(3, kind=TOPK),
    )  # fmt: skip
    assert told == [] and len(feed.stream) == 0


def test_skyline_stream_refuses_what_does_not_fit_and_changes_nothing():
    feed = Feed("eager_star")
    feed((0, 0.0, 0.0, [1]), added=subscriptions(SQUARE))
    before = feed.stream.arrays()
    before = {name: value.copy() for name, value in before.items()}
    for text, call in {
        "cannot follow": lambda: feed.stream.process(
            Boundary(3, 1, 1, -99), messages((1, 0.0, 0.0, [1])), NOBODY, empty(SubscriptionTable), removals()
        ),
        "do not lie inside": lambda: feed.stream.process(
            Boundary(1, 1, 1, -99), messages((2, 0.0, 0.0, [1])), NOBODY, empty(SubscriptionTable), removals()
        ),
        "subscription 0 cannot be added": lambda: feed(added=subscriptions(SQUARE)),
        "of this batch cannot be added": lambda: feed(added=subscriptions((4, SQUARE[1], [1]), (4, SQUARE[1], [1]))),
        "subscription 9 cannot be removed": lambda: feed(removed=removals(9)),
        "of this batch cannot be removed": lambda: feed(removed=removals(0, 0)),
    }.items():
        with pytest.raises(EngineError, match=text):
            call()
    after = feed.stream.arrays()
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    with pytest.raises(EngineError, match="keywords"):
        SubscriptionIndex(SPACE).insert(subscriptions((0, SQUARE[1], list(range(5000)))))


def test_skyline_updates_add_up_to_the_results():
    _, turns = make_world(Recipe(objects=25, deletes=0.1), 3)
    stream = SkylineStream(EagerStar(SPACE), InvertedWindow())
    updates = [stream.process(turn.boundary, turn.alive, turn.ended, turn.added, turn.removed) for turn in turns]
    got = stream.results()
    assert replayed(updates) == set(zip(got.number.tolist(), got.seq.tolist(), strict=True))


def test_skyline_newcomers_under_a_member_are_put_by_until_it_goes():
    feed = Feed("eager_star")
    feed(added=subscriptions(SQUARE))
    feed((0, 0.0, 0.0, [1, 2]))
    far = [(seq, 2.5 - seq / 20, 0.0, [1, 2]) for seq in range(1, 31)]  # each is nearer than all before it
    assert feed(*far) == []
    engine = feed.stream.engine
    assert isinstance(engine, EagerStar)
    tails, kept = engine._tails, engine.kept
    assert tails.words[0, 0] == 2 and kept.entries() == 2  # 14 in a tail: two have been full and left one each
    assert feed(up_to=31, ended=[29]) == [] and tails.words[0, 0] == 1  # ended while put by: it kept nothing out
    assert feed(up_to=32, ended=[0]) == [(0, 0, LEAVE), (0, 30, ENTER)]
    assert tails.words[0, 0] == 0 and engine.entries() == 1


def test_skyline_engines_keep_less_the_more_they_know():
    _, turns = make_world(Recipe(window="count:400", batches=20, batch=50, terms=4, churn=0.0), 1)
    entries, work = {}, {}
    for name in ENGINES:
        stream = SkylineStream(registry.factory("skyline", name)(SPACE), InvertedWindow())
        for turn in turns:
            stream.process(turn.boundary, turn.alive, turn.ended, turn.added, turn.removed)
        entries[name], work[name] = stream.engine.entries(), stream.work
    assert entries["bnl"] == entries["sweep"] < entries["eager"] == entries["eager_star"] < entries["lazy"]
    assert work["eager_star"].refilled == work["lazy"].refilled < work["bnl"].refilled / 3
    assert work["bnl"].fetched > 5 * work["eager_star"].fetched


def test_skyline_repairs_that_wait_are_often_saved():
    _, turns = make_world(Recipe(window="count:400", batches=30, batch=30, terms=4, objects=250, churn=0.0), 2)
    refilled = {}
    for patient in (True, False):
        stream = SkylineStream(EagerStar(SPACE, patient=patient), InvertedWindow())
        for turn in turns:
            stream.process(turn.boundary, turn.alive, turn.ended, turn.added, turn.removed)
        refilled[patient] = stream.work.refilled
    assert refilled[True] < 0.8 * refilled[False]


def test_skyline_pool_grown_and_packed_in_the_middle_of_everything_equals_oracle(monkeypatch):
    packed, grown = [], []
    real = KeptPool.make_room

    def counted(self):
        size = self.view.seq.shape[0]
        real(self)
        (grown if self.view.seq.shape[0] > size else packed).append(size)

    monkeypatch.setattr("matching.skyline.kept._FEWEST", 8)
    monkeypatch.setattr(KeptPool, "make_room", counted)
    span, turns = make_world(Recipe(subscriptions=30, objects=40, terms=4, grid=4, batches=50), 4)
    wanted, _ = expected(span, turns)
    for name in ENGINES:
        assert not differences(run(registry.factory("skyline", name)(SPACE), turns), wanted), name
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
def test_inverted_window_over_random_streams_equals_plain_python(recipe):
    window, model, compared = InvertedWindow(), skyline_streams.Model(), 0
    for step in skyline_streams.make_steps(recipe, 6):
        window.store(step.boundary, step.messages, step.ended)
        model.store(step)
        queries = skyline_streams.make_queries(recipe, step.boundary.number, 100)
        told, count = skyline_streams.differences(window, model, queries)
        assert not told
        compared += count
        assert len(window) == len(model.live)
        if step.boundary.number % 4 == 3:
            saved = {name: value.copy() for name, value in window.arrays().items()}
            for value in saved.values():
                value.flags.writeable = False
            window = InvertedWindow.from_arrays(saved)
            assert len(window) == len(model.live) == window.rows
    assert compared > 100
    assert window.used_bytes() < 400 * 6 * max(len(model.live), 60)


@pytest.mark.parametrize("kind", [InvertedWindow, IlQuadtree])
def test_window_contents_are_those_of_live_messages_in_the_order_asked(kind):
    window = kind()
    window.store(Boundary(0, 0, 4, 0), messages(*((i, float(i), 0.5, [i, i + 1]) for i in range(5))), np.array([3]))
    got = window.contents(np.array([4, 9, 3, 0, 2]))
    assert got.seq.tolist() == [4, 2] and got.lon.tolist() == [4.0, 2.0] and got.lat.tolist() == [0.5, 0.5]
    assert got.term_offsets.tolist() == [0, 2, 4] and got.terms.tolist() == [4, 5, 2, 3]


def test_inverted_window_out_of_order_raises():
    window = InvertedWindow()
    window.store(Boundary(0, 0, 1, -5), messages((0, 0.0, 0.0, [1]), (1, 0.0, 0.0, [1])), NOBODY)
    with pytest.raises(EngineError, match="cannot follow"):
        window.store(Boundary(2, 2, 2, -5), messages((2, 0.0, 0.0, [1])), NOBODY)
    with pytest.raises(EngineError, match="must ascend"):
        window.store(Boundary(1, 2, 2, -5), messages((1, 0.0, 0.0, [1])), NOBODY)


def test_offers_sorted_by_slot_stay_in_their_order_within_one():
    order = np.full(5, -1, np.int32)
    sort_by_slot(np.array([3, 1, 3, 0, 1], np.int32), 5, order)
    assert order.tolist() == [3, 1, 4, 0, 2]


def test_subscription_index_by_place_brings_neighbours_together_and_loses_nobody():
    index = SubscriptionIndex(SPACE)
    wide, high = (SPACE.east - SPACE.west) / 10, (SPACE.north - SPACE.south) / 10
    corners = [(0, 0), (9, 9), (0.1, 0), (9, 9.1), (0, 0.1)]
    boxes = [(SPACE.west + x * wide, SPACE.south + y * high) for x, y in corners]
    rows = [(i, (w, s, w + wide / 2, s + high / 2), [1]) for i, (w, s) in enumerate(boxes)]
    slots = index.insert(subscriptions(*rows))
    placed = index.slots.number[index.by_place(slots)].tolist()
    assert sorted(placed) == [0, 1, 2, 3, 4] and set(placed[:3]) == {0, 2, 4}
