"""Small random worlds that provoke what goes wrong: ties, borders, late messages, empty texts, changes mid-batch.

A world is a whole stream, cut into batches, with the subscription changes of each; engines and topologies are run
over it and held against `matching.naive`. The classes at the end put a world through a topology, and stand in an
importable module because worker processes must find them by name.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bolts.ordering import InOrder
from bolts.payloads import StreamBatch, emit_batch
from matching.half_life import DecayParameters
from matching.model import (
    BOOLEAN,
    KEYWORDS_BY_KIND,
    KNN,
    NO_KEYS,
    NO_RADII,
    TOPK,
    ChangeList,
    MessageBatch,
    Names,
    Removals,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
)
from matching.naive import Oracle
from matching.naive_rows import DecayModel, Extras, tally
from matching.space import Space
from matching.window import NO_FLOOR, Boundary, Window, stream_time
from tests.support.remembered import remembered
from tests.support.wordless import leave_out
from topology.core.api.component import Bolt, Context, Delivery, Spout, Tick

SPACE = Space(-180.0, -90.0, 180.0, 90.0)
SPHERE = SPACE._replace(distance="sphere")


@dataclass(frozen=True)
class Recipe:
    """How to make a world; the defaults are gentle.

    grid: points, weights and alphas are multiples of 1 / grid, so that equal scores and points on borders abound.
    ranges: share of messages that are rectangles. late_s: how far event times wander from the order of seq.
    churn: chance that a batch has changes. alphas: to choose from; anything at all where there are none.
    half_life_s, smoothing: of scores that fade. sphere: distances are great-circle metres. radii: share of
    subscriptions with alpha that name their own radius. wordless: share of subscriptions without keywords; with any, a
    tenth of the messages are not visible.
    """

    window: str = "count:50"
    messages: int = 240
    batch: int = 20
    subscriptions: int = 40
    terms: int = 12
    grid: int | None = None
    ranges: float = 0.0
    late_s: float = 8.0
    churn: float = 0.5
    largest_k: int = 4
    kinds: tuple[int, ...] = (BOOLEAN, TOPK)
    alphas: tuple[float, ...] = ()
    half_life_s: float = 30.0
    smoothing: float = 0.2
    sphere: bool = False
    radii: float = 0.0
    wordless: float = 0.0

    @property
    def space(self) -> Space:
        return SPHERE if self.sphere else SPACE


@dataclass
class World:
    """A stream with its changes, batch by batch."""

    recipe: Recipe
    window: Window
    batches: list[tuple[Boundary, MessageBatch, ChangeList]] = field(default_factory=list)

    @property
    def space(self) -> Space:
        return self.recipe.space

    @property
    def fading(self) -> DecayParameters:
        """How scores fade; the first word is in half of the collection, the last one not at all."""
        recipe, counts = self.recipe, _collection(self.recipe.terms)
        return DecayParameters.of(recipe.half_life_s, recipe.smoothing, counts, int(counts.sum()), 1_000_000)

    @remembered
    def expected(self) -> tuple[list[Counter], Counter]:
        """What the oracle says: updates of each batch, and the standing top-k results at the end."""
        fading, counts = self.fading, _collection(self.recipe.terms)
        model = DecayModel(
            fading.log_base_per_s, fading.smoothing, dict(enumerate(counts.tolist())), int(counts.sum()), 1_000_000
        )
        oracle = Oracle(self.window, self.space.max_distance, model)
        updates = [
            tally(oracle.advance(boundary, messages, changes.added, changes.removed, extras_of(messages)))
            for boundary, messages, changes in self.batches
        ]
        results = Counter((row.number, row.rank, row.seq, row.score) for row in oracle.results())
        assert sum(map(sum, (each.values() for each in updates))) > 0, "a world in which nothing happens proves nothing"
        return updates, results


def make_world(recipe: Recipe, seed: int) -> World:
    """Make the world of a recipe; the same seed gives the same world."""
    rng = np.random.default_rng(seed)
    window = Window.parse(recipe.window)
    world = World(recipe, window)
    live: list[tuple[int, int]] = []
    stream_time_us, next_number = NO_FLOOR, 0
    for number in range(-(-recipe.messages // recipe.batch)):
        first = number * recipe.batch
        seq = np.arange(first, min(recipe.messages, first + recipe.batch))
        wander = rng.uniform(-recipe.late_s, recipe.late_s, seq.size)
        event_time_us = ((seq + wander) * 1e6).astype(np.int64)
        stream_time_us = stream_time(event_time_us, stream_time_us)
        boundary = Boundary(number, first, int(seq[-1]), window.floor(int(seq[-1]), stream_time_us))
        messages = _messages(rng, recipe, seq, window.lives(seq, event_time_us), event_time_us)
        arrivals = (
            recipe.subscriptions if number == 0 else int(rng.integers(1, 6)) if rng.random() < recipe.churn else 0
        )
        at = np.sort(rng.integers(first, seq[-1] + 1, arrivals)) if number else np.zeros(arrivals, np.int64)
        added = _subscriptions(rng, recipe, next_number + np.arange(arrivals), at)
        next_number += arrivals
        removed = []
        if number and rng.random() < recipe.churn:
            for _ in range(min(len(live), int(rng.integers(1, 6)))):
                removed.append((*live.pop(int(rng.integers(len(live)))), int(rng.integers(first, seq[-1] + 1))))
        live += [(int(n), int(kind)) for n, kind in zip(added.number, added.kind, strict=True)]
        if number and len(added) and rng.random() < 0.3:  # gone in the batch in which it came
            removed.append((*live.pop(), int(seq[-1])))
        removed.sort(key=lambda row: row[2])
        gone = Removals(
            np.array([row[0] for row in removed], np.int64),
            np.array([row[1] for row in removed], np.int8),
            np.array([row[2] for row in removed], np.int64),
        )
        names = Names.of([f"s{n}" for n in added.number])
        world.batches.append((boundary, messages, ChangeList(number, added, names, gone)))
    return leave_out(world, recipe.wordless, seed) if recipe.wordless else world


def _ragged(rng, recipe: Recipe, rows: int, most: int):
    """Random ascending terms with unit weights, some rows empty."""
    terms, weights, offsets = [], [], [0]
    for _ in range(rows):
        count = int(rng.integers(0, min(most, recipe.terms) + 1))
        terms += sorted(rng.choice(recipe.terms, count, replace=False).tolist())
        raw = rng.integers(1, 4, count).astype(float) if recipe.grid else rng.random(count) + 0.1
        weights += (raw / np.sqrt((raw * raw).sum())).tolist() if count else []
        offsets.append(len(terms))
    return np.array(offsets, np.int64), np.array(terms, np.int32), np.array(weights, np.float32)


def _places(rng, recipe: Recipe, rows: int):
    lon, lat = rng.uniform(-180, 180, rows), rng.uniform(-90, 90, rows)
    if recipe.grid:
        step = 180.0 / recipe.grid
        lon, lat = np.round(lon / step) * step, np.clip(np.round(lat / step) * step, -90, 90)
    if recipe.sphere:
        # where the plane is torn: a third lies within a few degrees of the antimeridian, of a pole, or of both
        edge, near = rng.integers(0, 9, rows), 10.0 ** rng.uniform(-6, 1, (2, rows))
        lon = np.where((edge == 0) | (edge == 2), np.copysign(180.0 - near[0], lon), lon)
        lat = np.where((edge == 1) | (edge == 2), np.copysign(90.0 - near[1], lat), lat)
    return lon, lat


def _collection(terms: int) -> np.ndarray:
    """How often each word is in the collection."""
    return (1 << np.arange(terms)[::-1]) // 2


def extras_of(messages: MessageBatch) -> Extras:
    """What the oracle wants of messages beside their `MessageBatch`."""
    return Extras(messages.event_time_us.tolist(), messages.counts.tolist())


def _messages(rng, recipe: Recipe, seq, life, event_time_us) -> MessageBatch:
    lon, lat = _places(rng, recipe, seq.size)
    x, y = SPACE.project(lon, lat)
    ragged = _ragged(rng, recipe, seq.size, 5)
    counts = 1 + (ragged[1] * 7 + np.repeat(seq, np.diff(ragged[0])).astype(np.int32)) % 3
    vector = recipe.space.vectors(lon, lat)
    asked = counts.astype(np.int32), event_time_us, NO_KEYS, vector
    if not recipe.ranges:
        return MessageBatch(seq, x, y, lon, lat, lon, lat, life, *ragged, *asked)
    wide = rng.random(seq.size) < recipe.ranges
    width, height = np.where(wide, rng.uniform(0, 90, (2, seq.size)), 0.0)
    box = np.maximum(lon - width, -180), np.maximum(lat - height, -90), np.minimum(lon + width, 180), lat
    return MessageBatch(seq, x, y, *box, life, *ragged, *asked)


def _subscriptions(rng, recipe: Recipe, number, at) -> SubscriptionTable:
    rows = number.size
    kind = rng.choice(recipe.kinds, rows).astype(np.int8)
    lon, lat = _places(rng, recipe, rows)
    x, y = SPACE.project(lon, lat)
    east_lon, east_lat = _places(rng, recipe, rows)
    crosses = rng.random(rows) < 0.2
    west, east = np.minimum(lon, east_lon), np.maximum(lon, east_lon)
    west, east = np.where(crosses, east, west), np.where(crosses, west, east)
    region = np.stack([west, np.minimum(lat, east_lat), east, np.maximum(lat, east_lat)], axis=1)
    boolean = kind == BOOLEAN
    region[~boolean] = np.nan
    alpha = rng.choice(recipe.alphas or (0.0, 1.0, *rng.random(6)), rows)
    if recipe.grid:
        alpha = np.round(alpha * 4) / 4
    k = rng.integers(1, recipe.largest_k + 1, rows).astype(np.int32)
    ragged = _ragged(rng, recipe, rows, 3)
    blank = np.where(boolean, np.nan, 1.0)
    alpha = np.where(kind == KNN, np.nan, alpha)
    vector, radius_m = recipe.space.vectors(lon, lat), NO_RADII
    if recipe.sphere:
        vector = vector * blank[:, None]
    if recipe.radii:
        own = (rng.random(rows) < recipe.radii) & ~np.isnan(alpha * blank)
        radius_m = np.where(own, 10 ** rng.uniform(4, 7.2, rows), np.nan)
    return SubscriptionTable(
        number, kind, at, x * blank, y * blank, region, np.full(rows, KEYWORDS_BY_KIND, np.int8),
        np.where(boolean, 0, k).astype(np.int32), alpha * blank, *ragged, vector=vector, radius_m=radius_m,
    )  # fmt: skip


def has_changes(changes: ChangeList) -> bool:
    """Whether a change list has any."""
    return bool(len(changes.added) or changes.removed.number.shape[0])


class WorldMessages(Spout):
    """The clock spout of a world."""

    def __init__(self, world: World):
        self.batches = [(boundary, messages, has_changes(changes)) for boundary, messages, changes in world.batches]

    def open(self, context: Context) -> None:
        self.context = context

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        if number == len(self.batches):
            return None
        boundary, messages, changed = self.batches[number]
        names = Names.of([f"m{seq}" for seq in range(boundary.first_seq, boundary.last_seq + 1)])
        batch = StreamBatch(boundary, messages, names, published_s=self.context.now(), has_changes=changed)
        return emit_batch(self.context, batch)


class WorldChanges(Spout):
    """The subscription spout of a world."""

    def __init__(self, world: World):
        self.changes = [changes for _, _, changes in world.batches]

    def open(self, context: Context) -> None:
        self.context = context

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        if tick is None or tick.has_changes:
            self.context.emit("changes", self.changes[number])
        else:
            assert not has_changes(self.changes[number])
        return tick

    def report(self) -> dict[str, Any]:
        return {"accepted": sum(len(changes.added) for changes in self.changes)}


class Collector(Bolt):
    """Delivery that keeps every update in its report; acknowledges as `bolts.delivery` does."""

    def __init__(self, slack: int):
        self.slack = slack

    def prepare(self, context: Context) -> None:
        self.context = context
        self.tasks = context.size_of("query")
        self.inputs = InOrder({"updates": self.tasks, "ids": 1})
        self.complete = [-1] * self.tasks
        self.closed = self.acknowledged = -1
        self.updates = [empty(UpdateBatch)]
        self.results: list = []
        self.late = 0

    def execute(self, delivery: Delivery) -> None:
        payload = delivery.payload
        if delivery.stream == "updates":
            self.inputs.put(payload.boundary.number, "updates", payload, sender=delivery.task)
        elif delivery.stream == "ids":
            self.inputs.put(payload.boundary.number, "ids", payload)
        elif delivery.stream == "late":
            self.updates.append(payload.updates)
            self.late += len(payload.updates)
            self.complete[delivery.task] = max(self.complete[delivery.task], payload.watermark)
        elif delivery.stream == "results":
            self.results.append(payload)
        while (ready := self.inputs.pop()) is not None:
            self.closed = ready.number
            for task, closed in enumerate(ready.payloads["updates"]):
                self.updates.append(closed.updates)
                self.complete[task] = max(self.complete[task], closed.watermark)
        while self.acknowledged < min(self.closed, min(self.complete) + self.slack):
            self.acknowledged += 1
            self.context.acknowledge(self.acknowledged)

    def report(self) -> dict[str, Any]:
        updates, results = concatenate(self.updates), concatenate(self.results)
        return {
            "updates": [column.tolist() for column in updates],
            "results": [column.tolist() for column in results if column is not None],
            "complete_through": min(self.complete),
            "late": self.late,
        }


def without_the_last(world: World) -> World:
    """The world, ending with the removal of every subscription that is left."""
    live: dict[int, int] = {}
    for _, _, changes in world.batches:
        live |= dict(zip(changes.added.number.tolist(), changes.added.kind.tolist(), strict=True))
        for number in changes.removed.number.tolist():
            del live[number]
    boundary, messages, changes = world.batches[-1]
    gone = changes.removed
    rest = np.array(list(live), np.int64)
    world.batches[-1] = (
        boundary,
        messages,
        changes._replace(
            removed=Removals(
                np.concatenate([gone.number, rest]),
                np.concatenate([gone.kind, np.array(list(live.values()), np.int8)]),
                np.concatenate([gone.at, np.full(rest.size, boundary.last_seq)]),
            )
        ),
    )
    return world
