"""Top-k over a stream, every engine, against the oracle; and engines broken on purpose, which must be found out."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.topk.l2_scan import L2Scan
from benchmarks.driving import Tasks, kind_of
from matching.errors import EngineError
from matching.kinds import KINDS
from matching.model import NO_MESSAGES, TOPK
from matching.naive_rows import tally
from matching.operator import OperatorContext, OperatorInput, Windowed, capable
from matching.refill import RefillNeeded
from matching.result_rows import take_results
from matching.topk import operator as room_module
from matching.topk import thresholds
from matching.topk.engines.skype import Skype
from matching.topk.operator import TopkOperator
from matching.topk.results import ResultBuffers
from matching.window import Window
from tests.support.filters import with_filters
from tests.support.worlds import SPACE, Recipe, World, make_world

ENGINES = tuple(KINDS.named("topk").engines)
WINDOW_INDEXES = tuple(KINDS.named("topk").windows)
RECIPES = {
    "count": Recipe(kinds=(TOPK,)),
    "time_with_late_messages": Recipe(window="time:40", kinds=(TOPK,)),
    "ties": Recipe(grid=3, kinds=(TOPK,)),
    "ties_and_late_messages": Recipe(grid=3, window="time:40", kinds=(TOPK,)),
    "batch_longer_than_window": Recipe(batch=70, kinds=(TOPK,)),
    "batch_longer_than_window_of_time": Recipe(window="time:20", batch=90, kinds=(TOPK,)),
    "one_message_a_batch": Recipe(batch=1, messages=100, window="count:9", kinds=(TOPK,)),
    "few_words_short_window": Recipe(window="time:15", batch=5, terms=4, kinds=(TOPK,)),
    "wordless": Recipe(kinds=(TOPK,), wordless=0.4, terms=8),
    "wordless_with_ties": Recipe(grid=3, kinds=(TOPK,), wordless=0.6, window="count:15", batch=5),
    "k_beyond_the_window": Recipe(window="count:12", batch=5, largest_k=30, terms=4, kinds=(TOPK,)),
}


#: Distances on the sphere, half of the subscriptions with a radius of their own.
ON_SPHERE = {
    "sphere": Recipe(kinds=(TOPK,), sphere=True, radii=0.5),
    "sphere_by_time": Recipe(window="time:40", kinds=(TOPK,), sphere=True, radii=0.9, terms=4),
    "sphere_of_ties": Recipe(grid=2, kinds=(TOPK,), sphere=True, radii=0.3),
    "sphere_short_window": Recipe(window="time:15", batch=5, terms=4, kinds=(TOPK,), sphere=True, radii=0.5),
    "sphere_wordless": Recipe(kinds=(TOPK,), sphere=True, radii=0.5, wordless=0.5, window="time:30"),
    "sphere_without_radii": Recipe(grid=3, window="time:40", kinds=(TOPK,), sphere=True),
}


def run(
    world: World,
    engine: Any,
    restore: bool = False,
    rule: str | None = None,
    window_index: str | None = None,
    operator: type[TopkOperator] | None = None,
) -> tuple[list[Counter], Counter, int]:
    """Updates of each batch, standing results, and how many subscriptions were refilled."""
    options = {} if rule is None else {"threshold_rule": rule}
    tasks = Tasks(kind_of("topk", engine, window_index, operator), world.space, world.window, options=options)
    updates = []
    for number, (boundary, messages, changes) in enumerate(world.batches):
        updates.append(tally(tasks.process(boundary, messages, changes.added, changes.removed).updates))
        if restore and number % 3 == 1:
            tasks.go_on()
    return updates, Counter(row[:4] for row in tasks.results()), tasks.refills


def differences(world: World, engine: Any, *chosen: Any, **options: Any) -> list[str]:
    """What is missing or extra, in words; empty when the engine agrees with the oracle. The rest is for `run`."""
    expected, expected_results = world.expected()
    updates, results, _ = run(world, engine, *chosen, **options)
    told = []
    for number, (want, got) in enumerate(zip(expected, updates, strict=True)):
        if want != got:
            told.append(f"batch {number}: missing {list(want - got)[:3]}, extra {list(got - want)[:3]}")
    if results != expected_results:
        told.append(f"results: missing {expected_results - results}, extra {results - expected_results}")
    return told


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_topk_room_over_random_worlds_equals_oracle(engine, recipe):
    for seed in range(3):
        assert not differences(make_world(recipe, seed), engine), f"seed {seed}"


@pytest.mark.parametrize("recipe", ON_SPHERE.values(), ids=ON_SPHERE)
def test_topk_room_on_the_sphere_equals_oracle(recipe):
    compared = refills = 0
    for seed in range(8):
        world = make_world(recipe, seed)
        assert not differences(world, None, restore=seed % 2 == 1), f"seed {seed}"
        compared += sum(each.total() for each in world.expected()[0])
        refills += run(world, None)[2]
    assert compared > 1_000 and refills > 100


@pytest.mark.parametrize("recipe", ON_SPHERE.values(), ids=ON_SPHERE)
def test_topk_room_on_the_sphere_with_filters_equals_oracle(recipe):
    compared = 0
    for seed in range(4):
        world = with_filters(make_world(recipe, seed), seed)
        assert not differences(world, None, restore=seed % 2 == 1), f"seed {seed}"
        compared += sum(each.total() for each in world.expected()[0])
    assert compared > 500


def test_topk_room_what_a_batch_outlives_is_not_matched():
    world = make_world(Recipe(batch=90, window="time:20", kinds=(TOPK,)), 1)
    met: list[int] = []

    class Watched(L2Scan):
        def match(self, messages, *place):
            met.extend(messages.seq.tolist())
            return super().match(messages, *place)

    assert not differences(world, Watched)
    living = [batch.seq[batch.life > boundary.floor] for boundary, batch, _ in world.batches]
    assert set(met) <= set(np.concatenate(living).tolist())
    assert len(met) < sum(len(batch) for _, batch, _ in world.batches) / 2, "most of them have gone"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["count", "ties_and_late_messages"])
def test_topk_room_restored_midway_equals_oracle(engine, name):
    for seed in range(3):
        assert not differences(make_world(RECIPES[name], seed), engine, restore=True)


@pytest.mark.wide
@pytest.mark.parametrize("rule", thresholds.RULES)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("engine", ENGINES)
def test_topk_room_by_every_threshold_rule_equals_oracle(engine, recipe, rule):
    for seed in range(2):
        assert not differences(make_world(recipe, 10 + seed), engine, restore=seed == 1, rule=rule), f"seed {seed}"


@pytest.mark.parametrize("window_index", WINDOW_INDEXES)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_topk_room_with_every_window_index_equals_oracle(recipe, window_index):
    for seed in range(20, 22):
        world = make_world(recipe, seed)
        assert not differences(world, L2Scan, restore=seed % 2 == 1, window_index=window_index), f"seed {seed}"


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    window=st.sampled_from(["count:1", "count:7", "count:60", "time:3", "time:30"]),
    batch=st.sampled_from([1, 3, 17, 60]),
    terms=st.integers(1, 20),
    grid=st.sampled_from([None, 1, 2, 5]),
    late_s=st.sampled_from([0.0, 5.0, 60.0]),
    largest_k=st.sampled_from([1, 3, 12]),
    radii=st.sampled_from([None, 0.0, 0.5]),
)
def test_topk_room_any_world_equals_oracle(seed, window, batch, terms, grid, late_s, largest_k, radii):
    recipe = Recipe(window, 60, batch, 15, terms, grid, 0.0, late_s, 0.6, largest_k, (TOPK,))
    recipe = recipe if radii is None else replace(recipe, sphere=True, radii=radii)
    world = make_world(recipe, seed)
    if sum(len(changes.added) for *_, changes in world.batches) and any(
        len(batch.terms) for _, batch, _ in world.batches
    ):
        try:
            expected, results = world.expected()
        except AssertionError:
            return  # nothing happens in this one
        got, standing, _ = run(world, L2Scan if radii is None else Skype)
        assert (got, standing) == (expected, results)


def test_topk_room_needs_refills_in_these_worlds():
    refills = sum(run(make_world(recipe, 0), L2Scan)[2] for recipe in RECIPES.values())
    assert refills > 100, "worlds that never refill do not test refills"


class KthScorePruning(TopkOperator):
    """Broken: raises every threshold to the k-th score after each batch, without keeping those between."""

    def _raise(self, slots, counts):
        c = self.engine.subscriptions.columns
        full = slots[self.buffers.view.count[slots] > c.k[slots]]
        c.threshold[full] = self.buffers.view.score[self.buffers.view.start[full] + c.k[full] - 1]
        self.engine.set_thresholds(full, c.threshold[full])
        return super()._raise(slots[:0], counts[:0])

    def _match_and_offer(self, boundary, messages, found, *ended):
        taken = super()._match_and_offer(boundary, messages, found, *ended)
        slots, before = taken.refill_needed
        nothing = RefillNeeded(slots[:0], take_results(before, np.zeros(0, np.int64)))
        return taken._replace(refill_needed=nothing)


class NeverShort(ResultBuffers):
    """Broken: never notices that a buffer runs short."""

    def close(self, slots, seqs, lives, scores, floor, k, dominators, threshold, passed_over):
        nothing = np.full(threshold.shape[0], -np.inf)
        return super().close(slots, seqs, lives, scores, floor, k, dominators, nothing, passed_over)


class LateExpiry(ResultBuffers):
    """Broken: lets everything live one message longer."""

    def close(self, slots, seqs, lives, scores, floor, *rest):
        return super().close(slots, seqs, lives, scores, floor - 1, *rest)


class OlderWinsTies(ResultBuffers):
    """Broken: of equal scores the older ranks first."""

    def close(self, slots, seqs, lives, scores, *rest):
        return super().close(slots, seqs, lives, scores - seqs * 1e-12, *rest)


class LooseNorms(L2Scan):
    """Broken: bounds too tight by a hair more than the slack."""

    def insert(self, table, posted=None):
        slots = super().insert(table, posted)
        self.postings.view.base[:] -= np.float32(0.05)
        return slots


class WorldsRadius(TopkOperator):
    """Broken: asks the window as if nobody named a radius."""

    def query(self, slots):
        rows = super().query(slots)
        return rows._replace(max_distance=np.full(rows.number.shape[0], self.context.space.max_distance))


class PlanarQueries(TopkOperator):
    """Broken: asks the window by places in the unit square."""

    def query(self, slots):
        rows = super().query(slots)
        return rows._replace(vector=np.stack([rows.x, rows.y, 0 * rows.x], axis=1))


class NeighboursVectors(TopkOperator):
    """Broken: saves the unit vectors of the next subscription."""

    def state(self):
        state = super().state()
        state.rows["vector"] = np.roll(state.rows["vector"], 1, axis=0)
        return state


@pytest.mark.parametrize("broken", [WorldsRadius, PlanarQueries, NeighboursVectors])
def test_topk_room_broken_on_the_sphere_is_found_out(broken):
    worlds = [make_world(ON_SPHERE["sphere_short_window"], seed) for seed in range(4)]
    assert any(differences(world, None, restore=True, operator=broken) for world in worlds)


@pytest.mark.parametrize("broken", [KthScorePruning, NeverShort, LateExpiry, OlderWinsTies])
def test_topk_room_broken_on_purpose_is_found_out(broken, monkeypatch):
    operator = broken if issubclass(broken, TopkOperator) else None
    if operator is None:
        monkeypatch.setattr(room_module, "ResultBuffers", broken)
    worlds = [make_world(RECIPES[name], seed) for name in ("count", "ties") for seed in range(3)]
    assert any(differences(world, L2Scan, operator=operator) for world in worlds), f"{broken.__name__} went unnoticed"


@pytest.mark.wide
@pytest.mark.parametrize("most_hits", [1, 40])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_topk_room_batches_with_too_many_hits_equal_oracle(recipe, most_hits, monkeypatch):
    monkeypatch.setattr(room_module, "_EVERY_HIT", most_hits)  # in parts, with thresholds raised between them
    assert not differences(make_world(recipe, 5), None, restore=True)


def told_late(world: World, seed: int, made: type[TopkOperator] = TopkOperator) -> Counter:
    """All that is told where the window answers up to four batches late, and in any order."""
    kind, rng, waiting, told = kind_of("topk", operator=made), np.random.default_rng(seed), [], []
    operator = capable(kind.make_operator(OperatorContext(world.space, world.window)), Windowed)
    window_index = kind.window()(world.space, kept_boundaries=6)
    for number, (boundary, messages, changes) in enumerate(world.batches):
        window_index.store(boundary, messages, NO_MESSAGES.seq)
        rows = len(changes.added)
        everywhere = np.zeros(rows, np.int64), np.ones(rows, np.bool_)
        turn = OperatorInput(boundary, messages, NO_MESSAGES, changes.added, *everywhere, changes.removed.of_kind(TOPK))
        steps = [operator.close(operator.match(turn).own_hits, [])]
        while steps:
            step = steps.pop()
            told.append(step.updates)
            waiting += step.window_requests
            since = [ask.query.as_of.number if number < len(world.batches) - 1 else -4 for ask in waiting]
            due = [at for at, asked in enumerate(since) if number - asked >= 4 or rng.random() < 0.2]
            if due:
                ask = waiting.pop(due[0])
                steps.append(operator.answer(ask.request, window_index.answer(ask.query)))
    return sum((tally(updates) for updates in told), Counter())


#: Many messages with the same few words, so that those who wait are hit more often than they can hold.
FEW_WORDS = {
    "large_batches": Recipe(messages=1_500, batch=150, terms=4, window="count:300", largest_k=3, kinds=(TOPK,)),
    "more_than_lives": Recipe("time:60", 1_200, 150, terms=4, late_s=30.0, largest_k=12, kinds=(TOPK,)),
    "hardly_more_than_lives": Recipe("time:60", 1_200, 40, terms=4, late_s=30.0, largest_k=3, kinds=(TOPK,)),
    "large_batches_of_ties": Recipe(
        messages=1_500, batch=150, terms=3, grid=2, window="count:200", largest_k=3, kinds=(TOPK,)
    ),
}


@pytest.mark.wide
@pytest.mark.parametrize("most_hits", [1, 40])
@pytest.mark.parametrize("recipe", (RECIPES | FEW_WORDS).values(), ids=RECIPES | FEW_WORDS)
def test_topk_room_large_batches_while_many_wait_equal_oracle(recipe, most_hits, monkeypatch):
    monkeypatch.setattr(room_module, "_EVERY_HIT", most_hits)
    for seed in range(3):
        world = make_world(recipe, seed)
        assert told_late(world, seed) == sum(world.expected()[0], Counter())


def test_topk_index_with_bounds_too_tight_is_found_out():
    assert any(differences(make_world(RECIPES["count"], seed), LooseNorms) for seed in range(3))


@pytest.mark.wide
def test_topk_index_skips_what_cannot_matter():
    world = make_world(
        Recipe(messages=4000, batch=500, subscriptions=400, window="count:2000", churn=0, kinds=(TOPK,)), 1
    )
    verified = {}
    for name in ("l2_scan", "inverted_file"):
        tasks = Tasks(kind_of("topk", name), SPACE, world.window)
        steps = [tasks.process(b, messages, c.added, c.removed) for b, messages, c in world.batches]
        verified[name] = sum(step.work.verified for step in steps[4:])
    assert verified["l2_scan"] * 4 < verified["inverted_file"]


def test_window_asked_too_far_back_raises():
    kind, world = KINDS.named("topk"), make_world(RECIPES["count"], 0)
    operator = capable(kind.make_operator(OperatorContext(SPACE, Window("count", 50))), Windowed)
    window_index = kind.window()(SPACE, kept_boundaries=1)
    first = None
    for boundary, messages, changes in world.batches:
        window_index.store(boundary, messages, NO_MESSAGES.seq)
        rows = len(changes.added)
        everywhere = np.zeros(rows, np.int64), np.ones(rows, np.bool_)
        turn = OperatorInput(boundary, messages, NO_MESSAGES, changes.added, *everywhere, changes.removed)
        asks = operator.close(operator.match(turn).own_hits, []).window_requests
        first = first or (asks[0].query if asks else None)
        while asks:
            asks = operator.answer(asks[0].request, window_index.answer(asks[0].query)).window_requests + asks[1:]
    assert first is not None
    with pytest.raises(EngineError, match="are stored"):
        window_index.answer(first)
