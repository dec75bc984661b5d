"""The bulk oracle against the oracle: the same updates and results, to the last bit, on streams hypothesis makes up.

Places, words and times are few, so that scores tie, points lie on borders, relevances fall to zero and messages of one
place and text abound. Subscriptions of all kinds begin and end inside batches; boundaries lie where they will, some of
them behind no message; and the bulk oracle takes as many boundaries at a time as it is given.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.bulk_oracle import NEVER, RULES, BulkOracle, counted
from matching.errors import TopologyError
from matching.model import (
    ANY_KEYWORD,
    BOOLEAN,
    DECAY,
    ENTER,
    KEYWORDS_BY_KIND,
    KNN,
    LEAVE,
    MATCH,
    SKYLINE,
    TOPK,
    UNKNOWN_TERM,
    MessageBatch,
    concatenate,
)
from matching.naive import Oracle
from matching.naive_rows import DecayModel, NaiveMessage, NaiveSubscription, tally
from matching.window import NO_FLOOR, Boundary, Window, stream_time
from tests.support.naive_tables import batch, message, removals, subscription, table

FAR = math.sqrt(2.0)
KINDS = (BOOLEAN, TOPK, DECAY, KNN, SKYLINE)
MODEL = DecayModel(0.3, 0.2, {1: 50, 2: 20, 3: 7, 4: 1}, 100, 2_000_000)
CHECK = settings(max_examples=150, deadline=None, derandomize=True)

PLACES = st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])
WEIGHTS = st.sampled_from([0.1, 0.3, 0.7, 1.0])
WORDS = st.dictionaries(st.integers(1, 5), st.tuples(WEIGHTS, st.integers(1, 3)), max_size=4)
DEGREES = st.sampled_from([-180.0, -170.0, -10.0, 0.0, 10.0, 170.0, 180.0])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "words": WORDS,
            "x": PLACES,
            "y": PLACES,
            "lon": DEGREES,
            "lat": st.sampled_from([-10.0, 0.0, 10.0]),
            "wide": st.sampled_from([0.0, 0.0, 0.0, 10.0]),
            "late": st.integers(0, 6),
            "of": st.integers(0, 6),
            "op": st.sampled_from([0, 0, 0, 1]),
            "visible": st.booleans(),
        }
    ),
    min_size=1,
    max_size=40,
)
WANTED = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(KINDS),
            "terms": st.dictionaries(st.integers(1, 6), WEIGHTS, min_size=1, max_size=4),
            "x": PLACES,
            "y": PLACES,
            "west": DEGREES,
            "east": DEGREES,
            "south": st.sampled_from([-10.0, 0.0]),
            "k": st.integers(1, 4),
            "alpha": st.sampled_from([0.0, 0.3, 0.9, 1.0]),
            "any": st.booleans(),
            "wordless": st.booleans(),
            "at": st.one_of(st.just(0), st.integers(0, 45)),
            "stays": st.integers(0, 60),
        }
    ),
    min_size=1,
    max_size=8,
)
WINDOWS = st.sampled_from(["count:1", "count:7", "count:100", "time:2", "time:5", "time:300"])
#: Messages of each batch, and boundaries that the bulk oracle takes at a time, over and over.
SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)
GROUPS = st.lists(st.integers(1, 5), min_size=1, max_size=3)


class World(NamedTuple):
    """A stream with its subscriptions, and where they end."""

    messages: list[NaiveMessage]
    subscriptions: list[NaiveSubscription]
    ended: dict[int, int]
    window: Window
    boundaries: list[Boundary]


def make(rows, wanted, window: str, sizes, objects: bool) -> World:
    """Of what hypothesis has drawn; without `objects` every message is its own and nothing is deleted."""
    span = Window.parse(window)
    messages = []
    for seq, row in enumerate(rows):
        time_us = (seq - row["late"]) * 1_000_000
        box = (row["lon"], row["lat"], min(180.0, row["lon"] + row["wide"]), row["lat"] + row["wide"])
        weights = {term: float(np.float32(weight)) for term, (weight, _) in row["words"].items()}
        counts = {term: count for term, (_, count) in sorted(row["words"].items())}
        made = message(
            seq, weights, row["x"], row["y"], box, seq if span.kind == "count" else time_us, counts, time_us,
            f"object {row['of']}" if objects else None, row["op"] if objects else 0, row.get("visible", False),
        )  # fmt: skip
        messages.append(made)
    subscriptions, ended = [], {}
    for number, row in enumerate(sorted(wanted, key=lambda row: row["at"])):
        west, east = row["west"], row["east"]
        if row["kind"] == SKYLINE:
            west, east = min(west, east), max(west, east)
        terms = {term: float(np.float32(weight)) for term, weight in row["terms"].items()}
        if row["kind"] != SKYLINE and row.get("wordless"):
            terms = {}
        if row["kind"] == BOOLEAN and 6 in terms:
            terms[UNKNOWN_TERM] = terms.pop(6)
        how = ANY_KEYWORD if row["kind"] == BOOLEAN and row["any"] else KEYWORDS_BY_KIND
        region = (west, row["south"], east, row["south"] + 10.0)
        made = subscription(
            number, row["kind"], terms, row["at"], row["x"], row["y"], region, row["k"],
            row["alpha"] if terms else 1.0, how if terms else KEYWORDS_BY_KIND,
        )  # fmt: skip
        subscriptions.append(made)
        if row["stays"] < 30:
            ended[number] = row["at"] + row["stays"]
    boundaries, first, clock, place = [], 0, NO_FLOOR, 0
    while first < len(messages) or not boundaries:
        last = min(len(messages), first + sizes[place % len(sizes)]) - 1
        clock = stream_time(np.array([row.life for row in messages[first : last + 1]], np.int64), clock)
        boundaries.append(Boundary(place, first, last, span.floor(last, clock)))
        first, place = last + 1, place + 1
    return World(messages, subscriptions, ended, span, boundaries)


def columns(messages) -> MessageBatch:
    """With the counts and times that some kinds ask for."""
    made, extras = batch(messages)
    more: Any = {"counts": np.array(extras.counts, np.int32), "event_time_us": np.array(extras.event_time_us, np.int64)}
    return MessageBatch(**(made._asdict() | more))


def plainly(world: World):
    """The oracle's tally of updates, and its results."""
    oracle, updates, before = Oracle(world.window, FAR, MODEL), [], -1
    for boundary in world.boundaries:
        made, extras = batch(world.messages[boundary.first_seq : boundary.last_seq + 1])
        added = [one for one in world.subscriptions if before < one.at <= boundary.last_seq]
        ended = sorted((at, number) for number, at in world.ended.items() if before < at <= boundary.last_seq)
        removed = removals([(number, at) for at, number in ended])
        updates += oracle.advance(boundary, made, table(added), removed, extras)
        before = boundary.last_seq
    return tally(updates), [tuple(value for value in row if value == value) for row in oracle.results()]


def in_bulk(world: World, groups, rules=None):
    """Likewise of the bulk oracle, which is given so many boundaries at a time."""
    end = np.array([world.ended.get(one.number, NEVER) for one in world.subscriptions], np.int64)
    oracle, parts = BulkOracle(table(world.subscriptions), end, FAR, MODEL, rules), []
    alive_to, latest = np.full(len(world.messages), NEVER), {}
    for row in world.messages:
        if row.object_id in latest:
            older = latest[row.object_id]
            alive_to[older] = min(alive_to[older], row.seq)
        if row.op == 1:
            alive_to[row.seq] = row.seq
        latest[row.object_id] = row.seq
    done = place = 0
    while done < len(world.boundaries):
        some = world.boundaries[done : done + groups[place % len(groups)]]
        messages = columns(world.messages[some[0].first_seq : some[-1].last_seq + 1])
        # those without a keyword of anybody are left out, as `verify` does
        wanted = {term for one in world.subscriptions for term in one.weights}
        wordless = any(one.wordless for one in world.subscriptions)
        rows = [world.messages[seq] for seq in messages.seq.tolist()]
        there = [bool(wanted & row.weights.keys()) or (wordless and row.visible) for row in rows]
        parts.append(oracle.advance(some, messages.take(np.flatnonzero(there)), alive_to))
        done, place = done + len(some), place + 1
    results = oracle.results()
    rows = counted(results)
    assert rows.total() == len(rows) == len(results)
    return tally(concatenate(parts)), list(rows)


@CHECK
@given(MESSAGES, WANTED, WINDOWS, SIZES, GROUPS, st.booleans())
def test_bulk_oracle_gives_updates_and_results_of_the_oracle(rows, wanted, window, sizes, groups, objects):
    world = make(rows, wanted, window, sizes, objects)
    assert in_bulk(world, groups) == plainly(world)


def random_world(seed: int, window: str = "count:60", objects: bool = True) -> World:
    """A larger one of random figures, with many updates of every kind."""
    rng = np.random.default_rng(seed)

    def words(most: int) -> dict:
        terms = np.unique(rng.integers(1, 7, rng.integers(1, most + 1))).tolist()
        return {term: (float(rng.random()), int(rng.integers(1, 4))) for term in terms}

    rows = [
        {
            "words": words(5), "x": float(rng.random()), "y": float(rng.random()), "lon": float(rng.uniform(-180, 170)),
            "lat": float(rng.uniform(-10, 10)), "wide": float(rng.choice([0.0, 5.0])), "late": int(rng.integers(6)),
            "of": int(rng.integers(80)), "op": int(rng.random() < 0.1),
        }
        for _ in range(400)
    ]  # fmt: skip
    wanted = [
        {
            "kind": kind, "terms": {term: weight for term, (weight, _) in words(3).items()}, "x": float(rng.random()),
            "y": float(rng.random()), "west": float(rng.uniform(-180, 180)), "east": float(rng.uniform(-180, 180)),
            "south": -5.0, "k": 3, "alpha": float(rng.random()), "any": bool(rng.integers(2)),
            "at": int(rng.integers(0, 300)), "stays": int(rng.integers(0, 60)),
        }
        for kind in KINDS
        for _ in range(8)
    ]  # fmt: skip
    world = make(rows, wanted, window, [7, 13, 0, 1], objects)
    return world._replace(ended={number: at + 120 for number, at in world.ended.items()})


@pytest.mark.parametrize("window", ["count:60", "time:40"])
@pytest.mark.parametrize("seed", range(3))
def test_bulk_oracle_has_the_last_bits_of_scores_of_any_figures(seed, window):
    world = random_world(seed, window)
    updates, results = plainly(world)
    for groups in ([1], [4, 9], [1000]):
        assert in_bulk(world, groups) == (updates, results)
    of_kind = {one.number: one.kind for one in world.subscriptions}
    seen = {(of_kind[number], change) for _, number, _, change, _ in updates}
    assert seen == {(BOOLEAN, MATCH), *((kind, change) for kind in KINDS[1:] for change in (ENTER, LEAVE))}
    assert {of_kind[row[0]] for row in results} == set(KINDS[1:])
    assert len(world.ended) > 5 and updates.total() > 1_000


BROKEN = [
    (TOPK, {"choose": RULES[DECAY].choose}, "window", "of equal scores the older first"),
    (DECAY, {"choose": RULES[TOPK].choose}, "window", "of equal scores the newer first"),
    (KNN, {"choose": RULES[DECAY].choose}, "any", "the farthest"),
    (TOPK, {"windowed": False}, "any", "holds what has expired"),
    (DECAY, {"windowed": True}, "any", "forgets what has expired"),
    (SKYLINE, {"ended": False}, "any", "holds older versions"),
    (TOPK, {"ended": True}, "any", "forgets older versions"),
]


@pytest.mark.parametrize(("kind", "change", "where", "what"), BROKEN)
def test_bulk_oracle_with_a_broken_rule_differs(kind, change, where, what):
    """What the tests above compare is there: each of these rules matters in their worlds."""
    world = random_world(1)
    if where == "window":  # equal scores: all at one place, with one text and one time
        same = [row._replace(x=0.5, y=0.5, weights={1: 1.0}, counts={1: 1}, event_time_us=0) for row in world.messages]
        world = world._replace(messages=same)
    broken = in_bulk(world, [5], {kind: RULES[kind]._replace(**change)})
    assert in_bulk(world, [5]) == plainly(world) != broken


def test_bulk_oracle_refuses_boundaries_that_go_back_and_decay_without_its_model():
    world = random_world(2)
    decay = table([one for one in world.subscriptions if one.kind == DECAY])
    everything = columns(world.messages)
    end = np.full(len(decay), NEVER)
    with pytest.raises(TopologyError, match="no decay model"):
        BulkOracle(decay, end, FAR).advance(world.boundaries, everything)
    with pytest.raises(TopologyError, match="no counts"):
        BulkOracle(decay, end, FAR, MODEL).advance(world.boundaries, batch(world.messages)[0])
    oracle = BulkOracle(decay, end, FAR, MODEL)
    oracle.advance(world.boundaries, everything)
    with pytest.raises(TopologyError, match="must follow"):
        oracle.advance(world.boundaries[:1], everything.take(np.arange(0)))
