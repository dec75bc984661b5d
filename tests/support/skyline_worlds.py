"""Random streams of objects for `skyline` subscriptions: they move, change their words, are deleted, come late, tie.

A world is what the oracle and an engine are fed: the oracle sees every message with its object and operation, the
engine the messages that are no deletions and the seqs that were ended.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from benchmarks.driving import Tasks, kind_of
from matching.model import (
    KEYWORDS_BY_KIND,
    SKYLINE,
    MessageBatch,
    Removals,
    SubscriptionTable,
    UpdateBatch,
    join_messages,
)
from matching.naive import SKYLINE as SKYLINE_KIND
from matching.naive import NaiveResult, Oracle
from matching.naive_rows import Extras, NaiveUpdate, tally
from matching.skyline.engine import SkylineEngine
from matching.skyline.window import SkylineWindow
from matching.space import Space
from matching.window import Boundary, Window

SPACE = Space(-10.0, -10.0, 10.0, 10.0)


@dataclass(frozen=True)
class Recipe:
    """How to make a world; the defaults are gentle.

    grid: coordinates are multiples of 1 / grid, so that points coincide and lie on borders; none: anywhere.
    objects: how many speak; 0: every message is an object of its own. deletes: chance that a message is a deletion.
    tick: lives of a time window are multiples of this. late: by how much they wander from the order of seq.
    """

    window: str = "count:60"
    batches: int = 16
    batch: int = 15
    subscriptions: int = 12
    terms: int = 8
    grid: int | None = 2
    objects: int = 0
    deletes: float = 0.0
    tick: int = 1
    late: int = 0
    churn: float = 0.5
    ranges: float = 0.1


class Turn(NamedTuple):
    """One batch, as the oracle sees it (`messages`, `extras`) and as an engine does (`alive`, `ended`)."""

    boundary: Boundary
    messages: MessageBatch
    extras: Extras
    alive: MessageBatch
    ended: np.ndarray
    added: SubscriptionTable
    removed: Removals


class Told(NamedTuple):
    """Updates of a batch and the standing results behind it, comparable."""

    updates: Counter
    results: list[Any]


def make_world(recipe: Recipe, seed: int) -> tuple[Window, list[Turn]]:
    """The batches of a recipe; the same seed gives the same ones."""
    rng = np.random.default_rng(seed)
    kind, _, length = recipe.window.partition(":")
    window = Window(kind, int(length))
    latest: dict[int, int] = {}
    live: list[int] = []
    turns: list[Turn] = []
    newest, number = -(2**62), 0
    for batch in range(recipe.batches):
        first = batch * recipe.batch
        seq = np.arange(first, first + recipe.batch)
        life = seq
        if kind == "time":
            life = (seq - rng.integers(0, recipe.late + 1, seq.size)) // recipe.tick * recipe.tick
        newest = max(newest, int(life.max()))
        boundary = Boundary(batch, first, int(seq[-1]), window.floor(int(seq[-1]), newest))
        who = rng.integers(0, recipe.objects, seq.size) if recipe.objects else seq
        op = (rng.random(seq.size) < recipe.deletes).astype(np.int64)
        ended = []
        for one, name, deletes in zip(seq.tolist(), who.tolist(), op.tolist(), strict=True):
            if name in latest:
                ended.append(latest[name])
            latest[name] = one
            if deletes:
                ended.append(one)
        messages = _messages(rng, recipe, seq, life)
        arrivals = recipe.subscriptions if batch == 0 else int(rng.random() < recipe.churn) * int(rng.integers(1, 4))
        added = _subscriptions(rng, recipe, number + np.arange(arrivals), first)
        number += arrivals
        live += added.number.tolist()
        gone = []
        if batch and rng.random() < recipe.churn and len(live) > 2:
            gone = [live.pop(int(rng.integers(len(live)))) for _ in range(2)]
        if batch and arrivals and rng.random() < 0.2 and added.number[-1] in live:  # gone in the batch in which it came
            live.remove(int(added.number[-1]))
            gone.append(int(added.number[-1]))
        removed = Removals(
            np.array(gone, np.int64), np.full(len(gone), SKYLINE, np.int8), np.full(len(gone), boundary.last_seq)
        )
        extras = Extras(object_id=who.tolist(), op=op.tolist())
        alive = messages.take(np.flatnonzero(op == 0))
        turns.append(Turn(boundary, messages, extras, alive, np.array(ended, np.int64), added, removed))
    return window, turns


def expected(window: Window, turns: list[Turn], standing: type[NaiveResult] | None = None) -> tuple[list[Told], int]:
    """What the oracle says, batch by batch, and how many updates in all; `standing` for a broken one."""
    oracle = Oracle(window, SPACE.max_distance, standings={SKYLINE_KIND: standing} if standing else None)
    told, count = [], 0
    for turn in turns:
        updates = oracle.advance(turn.boundary, turn.messages, turn.added, turn.removed, turn.extras)
        count += len(updates)
        told.append(Told(tally(updates), oracle.results()))
    return told, count


def ended_of(turns: list[Turn], number: int) -> MessageBatch:
    """The messages that batch `number` ends, as they came: those that no earlier batch has ended, ascending."""
    before = np.concatenate([np.zeros(0, np.int64), *(turn.ended for turn in turns[:number])])
    seqs = np.setdiff1d(turns[number].ended, before)
    everything = join_messages([turn.messages for turn in turns[: number + 1]])
    return everything.take(np.searchsorted(everything.seq, seqs))


def run(
    engine: str | Callable[[Space], SkylineEngine],
    window: Window,
    turns: list[Turn],
    restore: int = 0,
    index: str | type[SkylineWindow] | None = None,
    window_tasks: int = 1,
) -> list[Told]:
    """What an engine says, batch by batch; after every `restore` batches it is saved and goes on as another.

    `engine` is a name, or whatever makes one of a space (a broken one, say); `index` likewise.
    """
    tasks, told = Tasks(kind_of("skyline", engine, index), SPACE, window, window_tasks=window_tasks), []
    for number, turn in enumerate(turns):
        step = tasks.process(turn.boundary, turn.messages, turn.added, turn.removed, ended_of(turns, number))
        told.append(Told(tally(step.updates), tasks.results()))
        if restore and number % restore == restore - 1:
            tasks.go_on()
    return told


def differences(told: list[Told], wanted: list[Told]) -> list[str]:
    """What was told otherwise than it should have been, in words."""
    found = []
    for batch, (got, want) in enumerate(zip(told, wanted, strict=True)):
        if got.updates != want.updates:
            missing, extra = list(want.updates - got.updates)[:2], list(got.updates - want.updates)[:2]
            found.append(f"batch {batch}: missing {missing}, extra {extra}")
        if got.results != want.results:
            missing, extra = set(want.results) - set(got.results), set(got.results) - set(want.results)
            found.append(f"results {batch}: missing {sorted(missing)[:2]}, extra {sorted(extra)[:2]}")
    return found


def replayed(updates: list[UpdateBatch | list[NaiveUpdate]]) -> set[tuple[int, int]]:
    """(subscription, message) pairs that remain when all updates are applied in order."""
    held: set[tuple[int, int]] = set()
    for batch in updates:
        for (_, number, seq, change, _), times in tally(batch).items():
            assert times == 1
            (held.add if change == 1 else held.remove)((number, seq))
    return held


def _messages(rng: np.random.Generator, recipe: Recipe, seq: np.ndarray, life: np.ndarray) -> MessageBatch:
    place = rng.uniform(-4.0, 4.0, (seq.size, 2))
    if recipe.grid:
        place = np.round(place * recipe.grid) / recipe.grid
    lon, lat = place[:, 0].copy(), place[:, 1].copy()
    side = np.where(rng.random(seq.size) < recipe.ranges, 0.5, 0.0)  # a range message stands at its centre
    lengths = np.minimum(rng.integers(0, 5, seq.size), recipe.terms)
    rows = [np.sort(rng.choice(recipe.terms, length, replace=False)) for length in lengths]
    terms = np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return MessageBatch(
        seq, lon, lat, lon - side, lat - side, lon + side, lat + side, life.astype(np.int64), offsets, terms,
        np.ones(terms.size, np.float32),
    )  # fmt: skip


def _subscriptions(rng: np.random.Generator, recipe: Recipe, number: np.ndarray, at: int) -> SubscriptionTable:
    corner = rng.uniform(-4.0, 2.0, (number.size, 2))
    side = rng.choice([0.5, 2.0, 3.0, 7.0], (number.size, 2))
    if recipe.grid:
        corner = np.round(corner * recipe.grid) / recipe.grid
    lengths = np.minimum(rng.integers(1, 5, number.size), recipe.terms)
    rows = [np.sort(rng.choice(recipe.terms, length, replace=False)) for length in lengths]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    terms = np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int32)
    nowhere = np.full(number.size, np.nan)
    return SubscriptionTable(
        number.astype(np.int64), np.full(number.size, SKYLINE, np.int8), np.full(number.size, at), nowhere, nowhere,
        np.concatenate([corner, corner + side], axis=1), np.full(number.size, KEYWORDS_BY_KIND, np.int8),
        np.zeros(number.size, np.int32), nowhere, offsets, terms, np.ones(terms.size, np.float32),
    )  # fmt: skip
