"""Skylines that ask every window index, in one process and ahead of those who ask, against the oracle.

Streams are those of `tests.support.skyline_streams`: objects that move, are deleted, come late, and end by expiry.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import (
    KEYWORDS_BY_KIND,
    NO_MESSAGES,
    SKYLINE,
    MessageBatch,
    Removals,
    SubscriptionTable,
    concatenate,
)
from matching.naive import Oracle
from matching.naive_rows import Extras, Result, tally
from matching.operator import OperatorContext, OperatorInput, Windowed, capable
from matching.skyline.window import SkylineWindow
from matching.window import Boundary, Window
from tests.support.skyline_streams import (
    SPACE,
    WINDOWS,
    Recipe,
    Step,
    make_queries,
    make_steps,
    messages_at,
)

KIND = KINDS.named("skyline")
RECIPES = {
    "moving_objects": Recipe(terms=4),
    "lone_messages": Recipe(terms=4, objects=0, deletes=0.3),
    "late_objects": Recipe(terms=4, late=60, objects=60),
    "batch_longer_than_window": Recipe(terms=4, window=20, objects=0),
    "many": Recipe(8, 150, 700, 6, 5, grid=None, objects=300, late=100),
}


class Batch(NamedTuple):
    """What a topology is given: all messages, deletions too, who speaks, what ends by it, and changes."""

    boundary: Boundary
    messages: MessageBatch
    extras: Extras
    ended: MessageBatch
    added: SubscriptionTable
    removed: Removals


class Told(NamedTuple):
    """Updates of a boundary and the standing results behind it, comparable."""

    updates: Counter
    results: list[Result]


def make_world(recipe: Recipe, seed: int) -> tuple[Window, list[Batch]]:
    """A stream with subscriptions that come and go."""
    rng = np.random.default_rng([seed, 2])
    batches: list[Batch] = []
    everything, numbers, live = NO_MESSAGES, 0, []
    for step in make_steps(recipe, seed):
        messages, extras = with_deletions(rng, recipe, step)
        everything = concatenate([everything, messages])
        gone = np.concatenate([step.ended, np.array([seq for seq, _ in step.deletions], np.int64)])
        ended = everything.take(np.flatnonzero(np.isin(everything.seq, gone)))
        number = step.boundary.number
        count = 12 if number == 0 else int(rng.integers(0, 4))
        added = subscriptions(recipe, seed + number, np.arange(numbers, numbers + count), step.boundary.first_seq)
        numbers, live = numbers + count, live + added.number.tolist()
        leaving = [live.pop(int(rng.integers(len(live)))) for _ in range(int(rng.integers(0, 3)))]
        removed = Removals(
            np.array(leaving, np.int64), np.full(len(leaving), SKYLINE, np.int8),
            np.full(len(leaving), step.boundary.last_seq),
        )  # fmt: skip
        batches.append(Batch(step.boundary, messages, extras, ended, added, removed))
    return Window("time" if recipe.late else "count", recipe.window), batches


def with_deletions(rng: np.random.Generator, recipe: Recipe, step: Step) -> tuple[MessageBatch, Extras]:
    """The messages of a step with those that delete, which say anything and stand anywhere."""
    seqs = np.array([seq for seq, _ in step.deletions], np.int64)
    both = concatenate([step.messages, messages_at(rng, recipe, seqs, seqs)])
    who = np.concatenate([step.objects, np.array([who for _, who in step.deletions], np.int64)])
    order = np.argsort(both.seq)
    op = np.repeat([0, 1], [len(step.messages), seqs.size])
    return both.take(order), Extras(object_id=who[order].tolist(), op=op[order].tolist())


def subscriptions(recipe: Recipe, seed: int, numbers: np.ndarray, at: int) -> SubscriptionTable:
    """Subscriptions of these numbers."""
    count = numbers.size
    region, offsets, terms, *_ = make_queries(recipe, seed, max(1, count))
    region = region[:count] + [0.0, 0.0, 0.5, 0.5]  # more than points
    offsets, terms = offsets[: count + 1], terms[: offsets[count]]
    nowhere = np.full(count, np.nan)
    return SubscriptionTable(
        numbers, np.full(count, SKYLINE, np.int8), np.full(count, at), nowhere, nowhere, region,
        np.full(count, KEYWORDS_BY_KIND, np.int8), np.zeros(count, np.int32), nowhere, offsets, terms,
        np.ones(terms.size, np.float32),
    )  # fmt: skip


def expected(window: Window, batches: list[Batch]) -> list[Told]:
    """What the oracle says."""
    oracle = Oracle(window, SPACE.max_distance)
    told = []
    for boundary, messages, extras, _, added, removed in batches:
        updates = tally(oracle.advance(boundary, messages, added, removed, extras))
        told.append(Told(updates, oracle.results()))
    return told


def results_of(operator) -> list[Result]:
    """Standing results by number and rank."""
    return sorted(Result(*row) for row in zip(*(column.tolist() for column in operator.results()), strict=True))


def run_alone(name: str, window: Window, batches: list[Batch], window_tasks: int, restore: int) -> list[Told]:
    """What comes of one process; after every `restore` batches it goes on as another."""
    begin = partial(LocalEngine, [KIND], SPACE, window, windows={"skyline": name}, window_tasks=window_tasks)
    alone, told, alive = begin(), [], NO_MESSAGES
    for boundary, messages, _, ended, added, removed in batches:
        step = alone.process(boundary, messages, added, removed, ended)
        told.append(Told(tally(step.updates), results_of(alone)))
        alive = concatenate([alive, messages])
        alive = alive.take(np.flatnonzero((alive.life > boundary.floor) & ~np.isin(alive.seq, ended.seq)))
        if restore and boundary.number % restore == restore - 1:
            states, alone = alone.states(), begin()
            alone.restore(boundary, alive, states)
    return told


def run_behind(name: str, window: Window, batches: list[Batch], lag: int) -> list[Told]:
    """What comes of an operator whose window indexes have always stored `lag` batches more, as far as there are any."""
    operator = capable(KIND.make_operator(OperatorContext(SPACE, window)), Windowed)
    window_indexes, told, stored = [WINDOWS[name](SPACE, lag) for _ in range(2)], [], 0
    for boundary, messages, _, ended, added, removed in batches:
        for ahead in batches[stored : boundary.number + lag + 1]:
            for number, window_index in enumerate(window_indexes):
                mine = ahead.messages.take(np.flatnonzero(ahead.messages.seq % 2 == number))
                window_index.store(ahead.boundary, mine, ahead.ended.seq)
            stored += 1
        home, held = np.zeros(len(added), np.int64), np.ones(len(added), np.bool_)
        matched = operator.match(OperatorInput(boundary, messages, ended, added, home, held, removed))
        step = operator.close(matched.own_hits, [])
        updates, asks = [step.updates], list(step.window_requests)
        while asks:
            request, query = asks.pop()
            step = operator.answer(
                request, window_indexes[0].merge([window_index.answer(query) for window_index in window_indexes])
            )
            updates.append(step.updates)
            asks += step.window_requests
        told.append(Told(tally(concatenate(updates)), results_of(operator)))
    return told


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", WINDOWS)
def test_skylines_over_every_window_equal_the_oracle(name, recipe):
    for seed in range(2):
        window, batches = make_world(RECIPES[recipe], seed)
        wanted = expected(window, batches)
        assert sum(each.updates.total() for each in wanted) > 60, "a world in which nothing happens proves nothing"
        assert run_alone(name, window, batches, window_tasks=1 + 2 * seed, restore=4 * seed) == wanted
        assert run_behind(name, window, batches, lag=3 * seed) == wanted


@pytest.mark.parametrize("name", WINDOWS)
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    recipe=st.builds(
        Recipe,
        batches=st.just(10),
        batch=st.sampled_from([1, 5, 30]),
        window=st.sampled_from([1, 8, 60]),
        terms=st.integers(1, 5),
        grid=st.sampled_from([None, 1, 4]),
        objects=st.sampled_from([0, 3, 20]),
        deletes=st.sampled_from([0.0, 0.3]),
        late=st.sampled_from([0, 30]),
    ),
    lag=st.integers(0, 3),
    restore=st.sampled_from([0, 1, 4]),
)
def test_skylines_over_any_window_equal_the_oracle(name, seed, recipe, lag, restore):
    window, batches = make_world(recipe, seed)
    wanted = expected(window, batches)
    assert run_alone(name, window, batches, 1, restore) == wanted
    assert run_behind(name, window, batches, lag) == wanted


def hasty(kind: type[SkylineWindow]) -> type[SkylineWindow]:
    """Broken: answers as of the last boundary stored, whatever the question says."""

    class Hasty(kind):
        def answer(self, query):
            return super().answer(query._replace(as_of=self.boundary))

    return Hasty


@pytest.mark.parametrize("name", WINDOWS)
def test_skylines_over_a_window_that_ignores_the_boundary_are_found_out(name, monkeypatch):
    """The shares are ahead in earnest."""
    window, batches = make_world(replace(RECIPES["moving_objects"], deletes=0.2), 5)
    wanted = expected(window, batches)
    monkeypatch.setitem(WINDOWS, name, hasty(WINDOWS[name]))
    assert run_behind(name, window, batches, lag=0) == wanted
    assert run_behind(name, window, batches, lag=2) != wanted
