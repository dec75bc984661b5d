"""Operators saved after a batch resume exactly, with any number of tasks: every engine, both kinds of window."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.driving import ENGINES, Tasks, kind_of
from matching.kinds import KINDS
from matching.naive_rows import tally
from matching.skyline.engine import SkylineEngine
from matching.skyline.engines.eager_star import EagerStar
from matching.storage.state import State
from matching.topk.operator import TopkOperator
from tests.support import skyline_worlds
from tests.support.any_kind import Recipe, Turn, expected, make_turns, window_of, without_text
from tests.support.examples import examples
from tests.support.worlds import SPACE

RECIPES = {
    "count": Recipe(),
    "time_with_late_messages": Recipe(window="time:60", late=25, objects=0),
    "time_with_late_objects": Recipe(window="time:45", late=10, sizes=(5, 20)),
    "time_without_times": Recipe(window="time:45", late=10, untimed=0.4),
    "count_without_times": Recipe(untimed=0.4),
    "window_shorter_than_a_batch": Recipe(window="count:7", sizes=(3, 25)),
    "many_come_and_go": Recipe(sizes=(8,), batches=20, first=30, arrivals=12, departures=20, never=0.3),
}
DEFAULTS = [(kind.name, kind.chosen(None)) for kind in KINDS.run]
#: How many tasks there are, turn by turn about.
COUNTS = (1, 3, 2)


def differences(tasks: Tasks, turns: list[Turn], every: int, told=None) -> list[str]:
    """What is told otherwise than by the oracle where all are saved, joined and dealt out after so many batches."""
    wanted, results = told or expected(turns, tasks.window)
    found, moves = [], 0
    for turn, want in zip(turns, wanted, strict=True):
        got = tally(tasks.process(turn.boundary, turn.messages, turn.added, turn.removed, turn.ended).updates)
        if got != want:
            found.append(f"batch {turn.boundary.number}: missing {list(want - got)[:3]}, extra {list(got - want)[:3]}")
        if turn.boundary.number % every == every - 1:
            moves += 1
            tasks.go_on(COUNTS[moves % len(COUNTS)])
            if without_text(tasks.results()) and len(tasks.tasks) > 1:
                assert all(len(task.operator) for task in tasks.tasks) or len(turn.added) < 3
    if without_text(tasks.results()) != results:
        found.append("results at the end")
    assert moves > 2
    return found


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("engine", ENGINES, ids="-".join)
def test_rooms_saved_split_and_joined_every_few_batches_tell_what_the_oracle_tells(engine, recipe):
    kind, count = kind_of(*engine), 0
    for seed in range(2):
        turns = make_turns(kind, 100 + seed, recipe)
        told = expected(turns, window_of(recipe))
        tasks = Tasks(kind, SPACE, window_of(recipe), count=1 + seed, window_tasks=1 + seed)
        assert not differences(tasks, turns, every=1 + 2 * seed, told=told), f"seed {seed}"
        count += sum(sum(each.values()) for each in told[0])
    assert count > 60, "streams in which nothing happens prove nothing"


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_all_kinds_saved_together_go_on_together(recipe):
    """Whoever hears of ends and whoever does not are given the same log."""
    turns = make_turns(KINDS.run, 7, recipe)
    assert not differences(Tasks(KINDS.run, SPACE, window_of(recipe), window_tasks=2), turns, every=2)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    engine=st.sampled_from(examples(DEFAULTS, ENGINES)),
    seed=st.integers(0, 2**32 - 1),
    window=st.sampled_from(["count:1", "count:30", "time:5", "time:60"]),
    sizes=st.sampled_from([(1,), (0, 12), (40,)]),
    late=st.sampled_from([0, 30]),
    objects=st.sampled_from([0, 6]),
    never=st.sampled_from([0.0, 0.9]),
    every=st.integers(1, 4),
)
def test_rooms_saved_in_any_stream_tell_what_the_oracle_tells(engine, seed, window, sizes, late, objects, never, every):
    recipe = Recipe(window, 14, sizes, late if window.startswith("time") else 0, objects, never=never)
    turns = make_turns(kind_of(*engine), seed, recipe)
    assert not differences(Tasks(kind_of(*engine), SPACE, window_of(recipe)), turns, every)


@pytest.mark.parametrize("rule", ["cost", "k_max", "sma", "rank"])
def test_topk_rooms_saved_go_on_with_the_thresholds_they_had(rule):
    """Every threshold rule: what is restored asks the window no more often than what went on."""
    recipe = Recipe(sizes=(8,), batches=30, first=30, window="count:120")
    turns, refills = make_turns(KINDS.named("topk"), 3, recipe), {}
    for every in (3, len(turns) + 1):
        tasks = Tasks(KINDS.named("topk"), SPACE, window_of(recipe), options={"threshold_rule": rule})
        for turn in turns:
            tasks.process(turn.boundary, turn.messages, turn.added, turn.removed, turn.ended)
            if turn.boundary.number % every == every - 1:
                tasks.go_on()
        refills[every] = tasks.refills
    assert len(set(refills.values())) == 1 and refills[3] > 50


class ForgetsThresholds(TopkOperator):
    """Broken: takes every buffer for all there is in the window."""

    def restore(self, boundary, state, home, held):
        state.rows["threshold"] = np.full(home.shape[0], -np.inf)
        super().restore(boundary, state, home, held)


class ForgetsLives(TopkOperator):
    """Broken: saves seqs for lives."""

    def state(self):
        state = super().state()
        state.lists["buffer"].columns["life"] = state.lists["buffer"].columns["seq"]
        return state


class ForgetsStale(EagerStar):
    """Broken: what was put off is never made up for."""

    def snapshot(self, slots):
        rows, entries = super().snapshot(slots)()
        return lambda: (rows | {"stale": np.full_like(rows["stale"], 2**63 - 1)}, entries)


class ForgetsDue(EagerStar):
    """Broken: nobody is looked at again when something of it expires."""

    def restore(self, slots, state: State, floor):
        super().restore(slots, state, floor)
        self.candidates.view.due[slots] = 2**63 - 1


class LeavesTails(EagerStar):
    """Broken: newcomers that were put by are not saved."""

    def snapshot(self, slots):
        rows, entries = SkylineEngine.snapshot(self, slots)()
        return lambda: (rows | {"stale": self.stale[slots]}, entries)


BROKEN = {
    "thresholds": (kind_of("topk", operator=ForgetsThresholds), RECIPES["count"]),
    "lives": (kind_of("topk", operator=ForgetsLives), RECIPES["time_with_late_messages"]),
    "due": (kind_of("skyline", ForgetsDue), RECIPES["count"]),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_state_that_lacks_something_is_found_out(broken):
    kind, recipe = BROKEN[broken]
    for seed in range(6):
        if differences(Tasks(kind, SPACE, window_of(recipe)), make_turns(kind, seed, recipe), every=1):
            return
    pytest.fail(f"a state without {broken} went unnoticed")


@pytest.mark.parametrize("broken", [None, ForgetsStale, LeavesTails])
def test_state_that_lacks_what_an_engine_has_put_off_is_found_out(broken):
    """Objects that are said anew all the time, in front of those that they have kept out."""
    recipe = skyline_worlds.Recipe("count:150", 40, 8, terms=2, grid=None, objects=60, deletes=0.05, churn=0.1)
    found = []
    for seed in range(4):
        window, turns = skyline_worlds.make_world(recipe, seed)
        told = skyline_worlds.run(broken or EagerStar, window, turns, restore=1)
        found += skyline_worlds.differences(told, skyline_worlds.expected(window, turns)[0])
    assert bool(found) == (broken is not None), found
