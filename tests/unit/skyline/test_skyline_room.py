"""What skylines of several tasks are made of: windows asked as of the past, merged answers, homes, tuple bolts."""

import itertools

import numpy as np
import pytest

from bolts.payloads import Addressed, Part
from bolts.tuples import TupleBolt
from distribution.hashing import HashingRouter
from distribution.location import LocationRouter
from distribution.window_parts import WindowParts, window_load
from matching.errors import EngineError
from matching.kinds import KINDS
from matching.model import SKYLINE, TOPK
from matching.naive import dominates
from matching.operator import WindowQuery
from matching.skyline.answers import SkylineQueries
from matching.skyline.windows.grid import GridWindow
from matching.topk.window import WindowQueries
from matching.window import Boundary
from tests.support.saving import through_frames
from tests.support.skyline_streams import Model, Recipe, Step, differences, make_queries, make_steps
from tests.support.skyline_topologies import SkylineWorld, router_of
from tests.support.skyline_worlds import SPACE, make_world
from tests.support.skyline_worlds import Recipe as WorldRecipe
from topology.core.api.component import Delivery


class AsOf:
    """A window seen as of a boundary, for `differences`."""

    def __init__(self, window: GridWindow, boundary: Boundary):
        self.window, self.boundary = window, boundary

    def candidates(self, queries):
        return self.window.candidates(queries, self.boundary)


def test_window_asked_as_of_each_boundary_kept_says_what_it_would_have_said_then():
    recipe, kept = Recipe(terms=3, late=20), 5
    steps, window, compared = make_steps(recipe, 4), GridWindow(SPACE, kept), 0
    models: list[tuple[Boundary, Model]] = []
    model = Model()
    for step in steps:
        window.store(step.boundary, step.messages, step.ended)
        model.store(step)
        models.append((step.boundary, Model(dict(model.live))))
        queries = make_queries(recipe, step.boundary.number, 20)
        for boundary, then in models[-1 - kept :]:
            told, rows = differences(AsOf(window, boundary), then, queries)
            assert not told, (step.boundary.number, boundary.number, told)
            compared += rows
        if len(models) > kept + 1:
            with pytest.raises(EngineError, match="are retained"):
                window.candidates(queries, models[-2 - kept][0])
    assert compared > 500


def split(step: Step, shares: int, share: int) -> tuple:
    rows = np.flatnonzero(step.messages.seq % shares == share)
    return step.boundary, step.messages.take(rows), step.ended[step.ended % shares == share]


def test_answers_of_shares_merge_to_what_is_of_use_of_the_whole():
    """Left out is exactly what another candidate dominates that lives at least as long."""
    recipe, left_out, kept = Recipe(terms=3, late=30, batches=8), 0, 0
    windows, model = [GridWindow(SPACE) for _ in range(3)], Model()
    for step in make_steps(recipe, 9):
        model.store(step)
        for share, window in enumerate(windows):
            window.store(*split(step, 3, share))
    queries = make_queries(recipe, 1, 200)
    as_of = windows[0].boundary
    merged = GridWindow.merge([window.answer(WindowQuery(as_of, as_of.number, queries)) for window in windows])
    for row, (a, b) in enumerate(itertools.pairwise(merged.offsets.tolist())):
        first, last = queries.term_offsets[row : row + 2]
        rows = model.candidates(queries.region[row].tolist(), queries.terms[first:last].tolist())
        useful = [
            each for each in rows if not any(dominates(o[2:], each[2:]) and o[1] >= each[1] for o in rows)
        ]  # fmt: skip
        got = list(zip(*(c[a:b].tolist() for c in (merged.seq, merged.life, merged.spatial, merged.text)), strict=True))
        assert got == useful
        kept, left_out = kept + len(useful), left_out + len(rows) - len(useful)
    assert kept > 60 and left_out > 30


@pytest.mark.parametrize("tasks", [1, 3, 8])
def test_home_of_a_skyline_is_one_of_its_holders_and_owners_of_what_it_wants_hold_it(tasks):
    _, turns = make_world(WorldRecipe(subscriptions=300, grid=4), 3)
    table = turns[0].added
    for router in (HashingRouter(tasks), router_of("location", tasks, 3)):
        home, held = router.homes_of(table)
        assert np.all(held[np.arange(len(table)), home])
        assert np.array_equal(held.sum(axis=0), [router.assigned_to(table, task).sum() for task in range(tasks)])
        assert np.unique(home).size == tasks
        if isinstance(router, LocationRouter):
            messages, pairs = turns[0].messages, 0
            owner = router.owner_of_centre(messages)
            lon, lat = (messages.west + messages.east) / 2.0, (messages.south + messages.north) / 2.0
            for row, (west, south, east, north) in enumerate(table.region):
                inside = np.flatnonzero((west <= lon) & (lon <= east) & (south <= lat) & (lat <= north))
                assert np.all(held[row, owner[inside]])
                pairs += inside.size
            assert pairs > 100 and (tasks == 1 or held.sum() > len(table))


class Recorder:
    """A context that keeps what is emitted."""

    component = "tuples"

    def __init__(self, task: int, tasks: int):
        self.task, self.tasks = task, tasks
        self.emitted = []

    def size_of(self, component):
        return 1

    def emit(self, stream, payload, *, to=None, key=None):
        self.emitted.append(payload)

    def acknowledge(self, batch):
        """Nobody counts credits here."""


def answers_of(restored_as: int | None, used_kinds=None) -> list:
    """What tuple bolts answer to a skyline and to a top-k question at the end of a world of objects.

    Behind the batch of the window's middle they are saved, and so many others go on; None: the same one does. Without
    `used_kinds` they index nothing before the questions.
    """
    world = SkylineWorld(WorldRecipe(window="count:120", objects=10, deletes=0.1, terms=2), 6)
    as_of = world.turns[-3].boundary
    everything = SkylineQueries(np.array([[-4.0, -4.0, 4.0, 4.0]]), np.array([0, 2]), np.array([0, 1], np.int32))
    half, words = np.array([0.5]), np.full(2, 0.5, np.float32)
    best = WindowQueries(
        np.array([3]), half, half, half, np.array([SPACE.max_distance]), np.array([200], np.int32),
        np.array([0, 2]), np.array([0, 1], np.int32), words,
    )  # fmt: skip
    contexts = [Recorder(0, 1)]
    bolts = [tuple_bolt(contexts[0], used_kinds)]
    for turn in world.turns:
        if turn.boundary.number == 9 and restored_as is not None:
            saved = through_frames(8, tuples=bolts)
            if restored_as == 5:  # as an earlier release saved it
                parts = [
                    {name: part[name] for name in part if name != "previous_seq"} for part in saved.parts["tuples"]
                ]
                saved = saved._replace(parts={"tuples": parts})
            contexts = [Recorder(task, restored_as) for task in range(restored_as)]
            bolts = [tuple_bolt(context, used_kinds) for context in contexts]
            for bolt in bolts:
                bolt.restore(saved)
        for task, bolt in enumerate(bolts):
            mine, ended = (
                each.take(np.flatnonzero(WindowParts(len(bolts), window_load()).owner_of(each) == task))
                for each in (turn.messages, turn.ended)
            )
            bolt.execute(Delivery("window", "distribution", 0, Part(turn.boundary, mine, ended)))
    assert all(bool(bolt.indexes) == (used_kinds is not None) for bolt in bolts)
    merged = []
    for kind, rows in ((SKYLINE, everything), (TOPK, best)):
        query = WindowQuery(as_of, as_of.number, rows)
        for bolt in bolts:
            bolt.execute(Delivery("joined_query", "aggregation", 0, Addressed(kind, 0, kind, query)))
        merged.append(KINDS[kind].window().merge([context.emitted[-1].body for context in contexts]))
    saved = through_frames(world.turns[-1].boundary.number, tuples=bolts).parts["tuples"]
    seq = np.concatenate([part["seq"] for part in saved])
    assert np.unique(seq).shape == seq.shape and seq.shape[0] >= 120, "each message is saved, once"
    return merged


@pytest.mark.parametrize(
    ("tasks", "used_kinds"), [(1, KINDS.names), (3, KINDS.names), (None, None), (1, None), (3, None), (5, None)]
)
def test_tuple_bolts_restored_or_indexing_on_demand_answer_every_kind_as_before(tasks, used_kinds):
    """Whoever hears no ends has to find what later versions of an object have ended."""
    skylines, best = answers_of(None, KINDS.names)
    again, best_again = answers_of(tasks, used_kinds)
    assert all(np.array_equal(*columns) for columns in zip(skylines, again, strict=True)) and skylines.seq.size > 2
    assert sorted(best.seq) == sorted(best_again.seq) and sorted(best.score) == sorted(best_again.score)
    assert np.isin(skylines.seq, best.seq).all() and best.seq.size > 3 * skylines.seq.size


def tuple_bolt(context: Recorder, used_kinds=None) -> TupleBolt:
    bolt = TupleBolt(SPACE, 4, used_kinds=used_kinds)
    bolt.prepare(context)  # type: ignore[arg-type]
    return bolt


def test_tuple_bolt_without_a_window_for_skylines_says_so():
    bolt = tuple_bolt(Recorder(0, 1), used_kinds=("topk",))
    rows = SkylineQueries(np.zeros((1, 4)), np.array([0, 1]), np.zeros(1, np.int32))
    ask = Addressed(SKYLINE, 0, 0, WindowQuery(Boundary(0, 0, 0, 0), 0, rows))
    with pytest.raises(EngineError, match="kind skyline queries .* `used_kinds`"):
        bolt.execute(Delivery("joined_query", "aggregation", 0, ask))
