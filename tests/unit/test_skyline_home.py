"""What skylines of several tasks are made of: windows asked as of the past, merged answers, homes, saved windows."""

import itertools

import numpy as np
import pytest

from bolts.payloads import Part
from bolts.tuples import TupleBolt
from distribution.hashing import HashingRouter
from distribution.location import LocationRouter
from matching.errors import EngineError
from matching.model import SKYLINE
from matching.naive import dominates
from matching.skyline.answers import SkylineAsk, answer, merge_answers
from matching.skyline.window_plain import InvertedWindow
from matching.window import Boundary
from tests.skyline_topologies import SkylineWorld, router_of
from tests.skyline_worlds import SPACE, make_world
from tests.skyline_worlds import Recipe as WorldRecipe
from tests.unit.skyline_streams import Model, Recipe, Step, differences, make_queries, make_steps
from topology.core.component import Delivery


class AsOf:
    """A window seen as of a boundary, for `differences`."""

    def __init__(self, window: InvertedWindow, boundary: Boundary):
        self.window, self.boundary = window, boundary

    def candidates(self, queries):
        return self.window.candidates(queries, self.boundary)


@pytest.mark.parametrize("restore", [False, True])
def test_window_asked_as_of_each_boundary_kept_says_what_it_would_have_said_then(restore):
    recipe, kept = Recipe(terms=3, late=20), 5
    steps, window, compared = make_steps(recipe, 4), InvertedWindow(kept), 0
    models: list[tuple[Boundary, Model]] = []
    model = Model()
    for step in steps:
        window.store(step.boundary, step.messages, step.ended)
        model.store(step)
        models.append((step.boundary, Model(dict(model.live))))
        if restore:
            window = InvertedWindow.from_arrays(window.arrays())
        queries = make_queries(recipe, step.boundary.number, 20)
        for boundary, then in models[-1 - kept :]:
            told, rows = differences(AsOf(window, boundary), then, queries)
            assert not told, (step.boundary.number, boundary.number, told)
            compared += rows
        if len(models) > kept + 1:
            with pytest.raises(EngineError, match="are known"):
                window.candidates(queries, models[-2 - kept][0])
    assert compared > 500


def split(step: Step, shares: int, share: int) -> tuple:
    rows = np.flatnonzero(step.messages.seq % shares == share)
    return step.boundary, step.messages.take(rows), step.ended[step.ended % shares == share]


def test_answers_of_shares_merge_to_what_is_of_use_of_the_whole():
    """Left out is exactly what another candidate dominates that lives at least as long."""
    recipe, left_out, kept = Recipe(terms=3, late=30, batches=8), 0, 0
    windows, model = [InvertedWindow() for _ in range(3)], Model()
    for step in make_steps(recipe, 9):
        model.store(step)
        for share, window in enumerate(windows):
            window.store(*split(step, 3, share))
    queries = make_queries(recipe, 1, 200)
    as_of = windows[0].boundary
    ask = SkylineAsk(7, 2, as_of, *queries)
    merged = merge_answers([answer(window, ask) for window in windows])
    assert (merged.request, merged.home) == (7, 2)
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
        assert np.array_equal(held.sum(axis=0), [router.held_by(table, task).sum() for task in range(tasks)])
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

    task, tasks = 0, 1

    def __init__(self):
        self.emitted = []

    def size_of(self, component):
        return 1

    def emit(self, stream, payload, *, to=None, key=None):
        self.emitted.append(payload)


def test_tuple_bolt_restored_from_its_snapshot_answers_skylines_as_before():
    world = SkylineWorld(WorldRecipe(objects=10, deletes=0.1, terms=2), 6)
    ask = SkylineAsk(
        0, 0, world.turns[-3].boundary, np.array([[-4.0, -4.0, 4.0, 4.0]]), np.array([0, 2]), np.array([0, 1], np.int32)
    )
    answers = []
    for restore in (False, True):
        bolt, context = TupleBolt(1.0, 4), Recorder()
        bolt.prepare(context)  # type: ignore[arg-type]
        for turn in world.turns:
            if restore and turn.boundary.number == 9:
                saved = bolt.snapshot()
                bolt = TupleBolt(1.0, 4)
                bolt.prepare(context)  # type: ignore[arg-type]
                bolt.restore(saved)
                bolt.inputs.next_number = 9
            bolt.execute(Delivery("window", "distribution", 0, Part(turn.boundary, 0.0, turn.messages, turn.ended)))
        bolt.execute(Delivery("ask_skyline", "query", 0, ask))
        answers.append(context.emitted[-1])
    assert all(np.array_equal(*columns) for columns in zip(*answers, strict=True)) and answers[0].seq.size > 2


def test_tuple_bolt_without_a_window_for_skylines_says_so():
    bolt = TupleBolt(1.0, 4, skylines=False)
    bolt.prepare(Recorder())  # type: ignore[arg-type]
    region, terms = np.zeros((1, 4)), np.zeros(1, np.int32)
    ask = SkylineAsk(0, 0, Boundary(0, 0, 0, 0), region, np.array([0, 1]), terms)
    with pytest.raises(EngineError, match="skylines=True"):
        bolt.execute(Delivery("ask_skyline", "query", 0, ask))


assert SPACE and SKYLINE == 4
