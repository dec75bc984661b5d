"""Worlds with skylines put through the topology: spouts that tell what has ended, and what the oracle says."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from bolts.payloads import StreamBatch, emit_batch
from distribution.hashing import HashingRouter
from distribution.location import LocationRouter
from distribution.router import Router
from distribution.routers import PLACING, router_named
from distribution.signatures.signature import SignatureSpec
from matching.model import (
    SKYLINE,
    TOPK,
    ChangeList,
    MessageBatch,
    Names,
    Removals,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
)
from matching.naive import Oracle
from matching.naive_rows import Extras, tally
from matching.window import Boundary
from tests.support.skyline_worlds import SPACE, Recipe, make_world
from tests.support.worlds import SPACE as EARTH
from tests.support.worlds import Collector, WorldChanges, has_changes
from topology.core.api.component import Context, Spout, Tick
from topology.core.api.plan import Plan
from topology.wiring import wire


class Turn(NamedTuple):
    """One batch: every message, with what the oracle needs to know of objects, and the contents of those ended."""

    boundary: Boundary
    messages: MessageBatch
    extras: Extras
    ended: MessageBatch
    changes: ChangeList


class SkylineWorld:
    """A stream of objects with its changes; `batches` as in `tests.support.worlds.World`."""

    space = EARTH

    def __init__(self, recipe: Recipe, seed: int, kinds: tuple[int, ...] = (SKYLINE,)):
        self.window, turns = make_world(recipe, seed)
        rng = np.random.default_rng([seed, 2])
        self.turns: list[Turn] = []
        said: list[MessageBatch] = []
        told: dict[int, int] = {}
        for turn in turns:
            messages = of_unit_length(turn.messages)
            said.append(messages)
            everything, rows = concatenate(said), np.unique(turn.ended)
            ended = everything.take(rows[everything.life[rows] > turn.boundary.floor])
            added = other_kinds(rng, turn.added, kinds)
            told |= dict(zip(added.number.tolist(), added.kind.tolist(), strict=True))
            kind = np.array([told[number] for number in turn.removed.number.tolist()], np.int8)
            names = Names.of([f"s{number}" for number in added.number])
            changes = ChangeList(
                turn.boundary.number, added, names, Removals(turn.removed.number, kind, turn.removed.at)
            )
            self.turns.append(Turn(turn.boundary, messages, turn.extras, ended, changes))
        self.batches = [(turn.boundary, turn.messages, turn.changes) for turn in self.turns]

    def expected(self) -> tuple[Counter, Counter, int]:
        """All updates, standing results at the end, and how many updates are of skylines."""
        oracle = Oracle(self.window, SPACE.max_distance)
        updates: Counter = Counter()
        kind_of: dict[int, int] = {}
        for turn in self.turns:
            added = turn.changes.added
            kind_of |= dict(zip(added.number.tolist(), added.kind.tolist(), strict=True))
            updates += tally(oracle.advance(turn.boundary, turn.messages, added, turn.changes.removed, turn.extras))
        results = Counter((row.number, row.rank, row.seq, row.score, repr(row.text_score)) for row in oracle.results())
        return updates, results, sum(kind_of[row[1]] == SKYLINE for row in updates)


def of_unit_length(messages: MessageBatch) -> MessageBatch:
    """Messages with all terms weighing the same, as top-k needs them."""
    lengths = np.diff(messages.term_offsets)
    weights = np.repeat(1.0 / np.sqrt(np.maximum(lengths, 1)), lengths).astype(np.float32)
    return MessageBatch(**(messages._asdict() | {"weights": weights}))


def other_kinds(rng: np.random.Generator, table: SubscriptionTable, kinds: tuple[int, ...]) -> SubscriptionTable:
    """Skylines, some of them made subscriptions of other kinds, which want the same words."""
    kind = rng.choice(kinds, len(table)).astype(np.int8)
    topk = kind == TOPK
    centre_lon, centre_lat = (table.region[:, [0, 1]] + table.region[:, [2, 3]]).T / 2.0
    x, y = SPACE.project(centre_lon, centre_lat)
    lengths = np.diff(table.term_offsets)
    columns = table._asdict() | {
        "kind": kind,
        "x": np.where(topk, x, np.nan),
        "y": np.where(topk, y, np.nan),
        "region": np.where(topk[:, None], np.nan, table.region),
        "k": np.where(topk, rng.integers(1, 4, len(table)), 0).astype(np.int32),
        "alpha": np.where(topk, rng.random(len(table)), np.nan),
        "weights": np.repeat(1.0 / np.sqrt(np.maximum(lengths, 1)), lengths).astype(np.float32),
    }
    return SubscriptionTable(**columns)


class SkylineMessages(Spout):
    """The clock spout of such a world."""

    def __init__(self, world: SkylineWorld):
        self.turns = [(turn.boundary, turn.messages, turn.ended, has_changes(turn.changes)) for turn in world.turns]

    def open(self, context: Context) -> None:
        self.context = context

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        if number == len(self.turns):
            return None
        boundary, messages, ended, changed = self.turns[number]
        names = Names.of([f"m{seq}" for seq in range(boundary.first_seq, boundary.last_seq + 1)])
        batch = StreamBatch(boundary, messages, names, ended, self.context.now(), changed)
        return emit_batch(self.context, batch)


def router_of(
    name: str, tasks: int, seed: int = 0, signatures: str = "off", location: type[LocationRouter] = LocationRouter
) -> Router:
    """A router over the middle of the world, where the messages are; coarse signatures, so that cells come and go."""
    spec = SignatureSpec(SPACE, signatures == "spatial+text", 64, 4, 0.01) if signatures != "off" else None
    if name in PLACING:
        nowhere = np.zeros(0), np.zeros(0)
        return router_named(name, tasks, SPACE, lambda: nowhere)
    if name == "hashing":
        return HashingRouter(tasks, spec)
    rng = np.random.default_rng(seed)
    x, y = 0.3 + 0.4 * rng.random((2, 200))
    return location(tasks, SPACE, x, y, spec)


def plan_of(
    world: SkylineWorld,
    router: Router,
    *,
    engine: str | None = None,
    index: str | None = None,
    tuples: int = 1,
    distribution: int = 1,
    aggregation: int = 1,
    credits: int = 4,
) -> Plan:
    """The topology over a world."""
    return wire(
        SkylineMessages(world),
        WorldChanges(world),  # type: ignore[arg-type]
        router,
        SPACE,
        world.window,
        Collector(credits),
        engines={"skyline": engine} if engine else None,
        window_indexes={"skyline": index} if index else None,
        distribution_bolts=distribution,
        tuple_bolts=tuples,
        aggregation_bolts=aggregation,
        credits=credits,
    )


def differences(world: SkylineWorld, figures: dict[str, Any], least: int = 20) -> str:
    """What a run missed or made up, in words; empty when it agrees with the oracle."""
    dtypes = (np.int64, np.int64, np.int64, np.int8, np.float64)
    columns = [np.array(column, dtype) for column, dtype in zip(figures["updates"], dtypes, strict=True)]
    got = tally(UpdateBatch(*columns))
    number, rank, seq, score, *text = figures["results"]
    texts = text[0] if text else [np.nan] * len(number)
    results = Counter(zip(number, rank, seq, score, map(repr, texts), strict=True))
    expected, expected_results, of_skylines = world.expected()
    assert of_skylines >= least, f"a world with {of_skylines} updates of skylines proves nothing"
    told = ""
    if got != expected:
        told += f"missing {list(expected - got)[:3]}, extra {list(got - expected)[:3]}; "
    if results != expected_results:
        told += (
            f"results missing {list(expected_results - results)[:3]}, extra {list(results - expected_results)[:3]}; "
        )
    if figures["complete_through"] != len(world.turns) - 1:
        told += f"complete only through {figures['complete_through']}"
    return told
