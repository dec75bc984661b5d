"""What a benchmark runs on: messages, subscriptions of one kind, a window, and how the stream is cut.

What the row of a kind in `matching.kinds` says decides what is drawn, by the recipes of `benchmarks.workload`. Cases on
which an index may break down are `STREAMS`.

Where results last, a message becomes one the rarer the more have gone before it: of n messages the next one is among
the k nearest with a chance of k / n; where scores fade, those of a few half-lives count. So there is a history whose
results every engine is given (`benchmarks.lasting`), and subscriptions take after messages that came before it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks import workload
from benchmarks.workload import PLAIN_BOOLEAN, WORLD, AnyRecipe, BooleanRecipe, Messages, Table, TopkRecipe, changed
from matching.errors import ConfigError
from matching.half_life import DecayParameters
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.model import NO_MESSAGES, Int64, MessageBatch, SubscriptionTable, concatenate, empty, join_messages
from matching.space import Space
from matching.window import NO_FLOOR, Boundary, Window

#: Messages that subscriptions of a kind without window take after; none of them is timed.
_HISTORY = 200_000
#: As `skyray run` cuts the stream unless told otherwise; so many are checked of a kind with a window, in whole batches.
MOST_A_BATCH = _CHECKED = 5_000
#: Half of the messages speak of objects, five times in a window each, that move about and change words.
_VERSIONED, _VERSIONS, _STRAY_DEG = 0.5, 5, 0.5
#: Subscriptions change in calls of this many, as a batch of a live stream brings them.
_CHANGES_A_CALL, _CALLS_A_ROUND = 1_000, 10
#: Where results last: messages that subscriptions take after, and those of the history, as many as the paper lets pass,
#: but no more than so many a subscription, or a check would have nothing to compare. So many are checked that about so
#: many enter a result, and no more.
_BEFORE, _LASTING_HISTORY, _A_SUBSCRIPTION, _ENTERING, _MOST_CHECKED = 100_000, 1_000_000, 10, 4_000, 10_000
#: Of a kind whose scores fade: ten half-lives, and as many messages are checked whatever enters, but fewer for so many
#: subscriptions that all of them together meet more messages than this.
FADED, _FADED_CHECKED, _MOST_MET = 200_000, 1_000, 1_000_000_000
#: Half-life and smoothing of the CIQ paper.
HALF_LIFE_S, SMOOTHING = 4_000.0, 0.2


class Case(NamedTuple):
    """What a benchmark runs on."""

    kind: Kind  # of all subscriptions; its engines and windows are what is measured
    messages: MessageBatch  # the whole stream, seq dense from 0, life as the window wants it
    table: SubscriptionTable  # live from the start, numbers from 0
    window: Window
    filled: int  # messages that have passed before the first batch
    timed: int  # messages that are timed in all
    batch: int  # messages a batch
    facts: dict[str, Any]  # of the workload, JSON-ready
    ends: Int64 | None = None  # which message each one ends, -1 for none; None: nobody ends another
    fading: DecayParameters | None = None  # of a kind whose scores fade
    fresh: SubscriptionTable = empty(SubscriptionTable)  # come when some of the table leave, numbers behind theirs
    changes: int = 1  # how many of them a call
    space: Space = WORLD
    draw: Callable[[int, int], SubscriptionTable] | None = None  # so many more subscriptions like these, by a seed

    def boundary(self, number: int, first: int, end: int) -> Boundary:
        """Of messages `first` to before `end`, with the floor of the window behind them."""
        if not end:
            return Boundary(number, first, -1, NO_FLOOR)
        # stream time, where the window goes by time, never goes back
        newest = int(self.messages.life[:end].max()) if self.window.kind == "time" else end - 1
        return Boundary(number, first, end - 1, self.window.floor(end - 1, newest))

    def batch_of(self, boundary: Boundary) -> tuple[MessageBatch, MessageBatch]:
        """The messages of a boundary, and those that they end, ascending."""
        first, end = boundary.first_seq, boundary.last_seq + 1
        ended = NO_MESSAGES
        if self.ends is not None:
            ends = self.ends[first:end]
            ended = self.messages.take(np.sort(ends[ends >= 0]))
        return self.messages.take(np.arange(first, end)), ended


def make_case(
    kind: Kind, subscriptions: int, messages: int | None = None, window: int | None = None, rounds: int = 7,
    seed: int = 0, *, recipe: AnyRecipe | None = None, messages_from: str | None = None,
    checked: int | None = None, batch: int | None = None, versions: float = _VERSIONS, history: int | None = None,
    half_life_s: float = HALF_LIFE_S, distance: str = "plane", subscriptions_from: str | None = None,
) -> Case:  # fmt: skip
    """The standard case of a kind, to which some of this means nothing.

    20,000 `messages` or so are timed, over a `window` of 100,000, unless told otherwise; up to 5,000 are `checked`
    where there is a window, and a `history` has passed where results last. An object speaks in `versions` messages of
    a window. `distance` is that of a `Space`. `messages_from` is an ETL folder to resample: a ConfigError if `recipe`
    asks for other words or places. Subscriptions take after its messages, or after those of `subscriptions_from`.
    """
    space = WORLD._replace(distance=distance)
    part = -(-(messages or 20_000) // rounds)
    timed = part * rounds if kind.standing else messages or 20_000
    batch = batch or min(part, MOST_A_BATCH)
    if recipe is None:
        recipe = (
            PLAIN_BOOLEAN if kind.message_place == "box" else TopkRecipe(kind.recipe.k, keywords=kind.recipe.keywords)
        )
    drawn = recipe if isinstance(recipe, BooleanRecipe) else PLAIN_BOOLEAN
    # messages that come before the stream, in it before the first batch, and those that are checked and not timed
    before, filled, more = 0, _HISTORY, 0
    if kind.windowed:
        filled, more = window or 100_000, -(-(checked or min(timed, _CHECKED)) // batch) * batch
    elif kind.fades:
        before, filled, more = _BEFORE, history or FADED, min(_FADED_CHECKED, max(100, _MOST_MET // subscriptions))
    elif isinstance(recipe, TopkRecipe):
        before, filled = _BEFORE, history or min(_LASTING_HISTORY, _A_SUBSCRIPTION * subscriptions)
        entering = subscriptions * sum(recipe.k) / 2 / filled
        more = int(min(_MOST_CHECKED, max(100, _ENTERING / entering)))
    count = before + filled + more + timed
    source: Messages | None = None
    if subscriptions_from is not None:
        if messages_from is None or drawn != PLAIN_BOOLEAN:
            raise ConfigError("subscriptions take after another folder's texts where messages are a folder's, as they "
                              "are: say where messages are from, and leave the workload out")  # fmt: skip
        counts = count, max(_BEFORE, subscriptions)
        made, source = workload.resample_apart(
            messages_from, subscriptions_from, counts, seed, space, bool(kind.columns)
        )
    elif messages_from is None:
        made = workload.make_messages(count, seed, drawn, filled, bool(kind.columns), space)
    elif drawn == PLAIN_BOOLEAN._replace(
        keywords=drawn.keywords, tokens=drawn.tokens, regions=drawn.regions, shape=drawn.shape
    ):
        made = workload.resample_messages(messages_from, count, seed, space, bool(kind.columns))
    else:
        raise ConfigError("real messages have their own places and words: vary keywords, tokens, regions, shape alone")
    # where there is no window, subscriptions come before all messages that are matched, and take after others
    if source is None:
        source = made if kind.windowed else Messages(made.batch.take(np.arange(before or filled)), made.idf)
    coming = 0 if kind.windowed else _CHANGES_A_CALL * _CALLS_A_ROUND * rounds
    draw = partial(subscriptions_of, kind, source, recipe=recipe)
    everybody = draw(subscriptions + coming, seed)
    table, fresh = everybody.take(np.arange(subscriptions)), everybody.take(np.arange(subscriptions, len(everybody)))
    stream, kept, ends, fading = made.batch, Window("count", filled), None, None
    if before:
        seq = np.arange(count - before)
        stream = changed(stream.take(before + seq), seq=seq, life=seq)
    if drawn.shape == "range":
        later = workload.widened(stream.take(np.arange(filled, count)), seed)
        stream = join_messages([stream.take(np.arange(filled)), later])
    lengths = np.diff(stream.term_offsets)[filled if kind.message_place == "box" else 0 :]
    facts = {
        "subscriptions": subscriptions, "messages": timed, "batch": batch,
        "messages_from": "synthetic" if messages_from is None else "resampled", **_facts(kind, recipe), "seed": seed,
        "terms": made.idf.shape[0], "terms_per_message": round(float(lengths.mean()), 2),
        "keywords_per_subscription": round(table.terms.shape[0] / max(1, subscriptions), 2),
    }  # fmt: skip
    if kind.windowed:
        facts["window"] = f"count:{filled}"
    elif kind.cumulative:
        facts["history"] = filled
    elif messages_from is not None:
        facts |= {"places": "real", "words": "real"}
    if kind.needs_ended:
        stream, _, ends = workload.versions_of_objects(stream, filled, _VERSIONED, versions, _STRAY_DEG, seed)
        facts |= {"versioned": _VERSIONED, "versions_a_window": versions, "stray_deg": _STRAY_DEG}
    if kind.fades:
        spoken = np.bincount(made.batch.terms, weights=made.batch.counts, minlength=made.idf.shape[0]).astype(np.int64)
        fading = DecayParameters.of(half_life_s, SMOOTHING, spoken, int(spoken.sum()), 0)
        facts |= {"half_life_s": half_life_s, "smoothing": SMOOTHING, "arrivals_per_s": workload.MESSAGES_PER_S}
    if subscriptions_from is not None:
        facts["subscriptions_from"] = "resampled"
    if space.on_sphere:
        facts["distance"] = distance
    counts = filled, timed, batch
    return Case(kind, stream, table, kept, *counts, facts, ends, fading, fresh, _CHANGES_A_CALL, space, draw)


def subscriptions_of(kind: Kind, messages: Messages, count: int, seed: int, recipe: AnyRecipe) -> SubscriptionTable:
    """`count` subscriptions of a kind that take after random messages. O(count)."""
    if isinstance(recipe, BooleanRecipe):
        return workload.boolean_subscriptions(messages, count, seed, recipe=recipe)
    if kind.place != "point":
        return workload.skyline_subscriptions(messages, count, seed)
    likes = workload.topk_subscriptions(messages, count, seed, recipe)
    alpha = likes.alpha if "alpha" in kind.fields else np.full(count, np.nan)
    return changed(likes, kind=np.full(count, kind.code, np.int8), alpha=alpha)


def _facts(kind: Kind, recipe: AnyRecipe) -> dict[str, Any]:
    """The recipe, JSON-ready."""
    facts = {name: list(value) if isinstance(value, tuple) else value for name, value in recipe._asdict().items()}
    if isinstance(recipe, BooleanRecipe):
        return facts | {"wide_share": workload.REGIONS[recipe.regions][2], "changes_per_call": _CHANGES_A_CALL}
    if kind.windowed and recipe.k[0] == recipe.k[1]:
        facts["k"] = recipe.k[0]
    asked = (*kind.fields, "keywords") if kind.place == "point" else ()
    return {name: facts[name] for name in asked}


#: Streams that an index may break down on (`make_stream`).
STREAMS = (
    "plain", "one_point", "one_word", "equal_scores", "k_beyond_window", "alpha_0", "alpha_1", "half_expires",
    "unused_words", "drift",
)  # fmt: skip
_RECIPES = {
    "k_beyond_window": TopkRecipe(k=(300, 300)), "alpha_0": TopkRecipe(alpha=(0.0, 0.0)),
    "alpha_1": TopkRecipe(alpha=(1.0, 1.0)),
}  # fmt: skip
_STREAM_BATCH, _GAP_US = 1_000, 1_000_000


def make_stream(name: str, subscriptions: int, window: int, timed: int, seed: int) -> Case:
    """The case of a stream of `STREAMS`: `window` messages before, then two batches to check, then `timed`."""
    made = workload.make_messages(window + 2 * _STREAM_BATCH + timed, seed)
    recipe, batch, words = _RECIPES.get(name, TopkRecipe()), made.batch, made.idf.shape[0]
    if name == "k_beyond_window":
        window = min(window, 200)
    kept = Window("count", window)
    if name == "drift":
        # within the batches that are checked; from there on the window loses the old words message by message
        later = np.repeat(batch.seq >= window + _STREAM_BATCH, np.diff(batch.term_offsets))
        batch = changed(batch, terms=batch.terms + np.where(later, words, 0).astype(np.int32))
        made = made._replace(batch=batch, idf=np.tile(made.idf, 2))
    table = workload.topk_subscriptions(made, subscriptions, seed, recipe)
    if name in ("one_point", "equal_scores"):
        batch, table = _at_one_point(batch), _at_one_point(table)
    if name in ("one_word", "equal_scores"):
        batch, table = _of_one_word(batch), _of_one_word(table)
    elif name == "unused_words":
        told = -(-subscriptions // 25)  # of words that are there: enough to be compared
        unused = changed(table, terms=table.terms + np.int32(words)).take(np.arange(told, subscriptions))
        table = concatenate([unused, workload.topk_subscriptions(made, told, seed + 1, recipe)])
        table = changed(table, number=np.arange(subscriptions))
    elif name == "half_expires":
        # half a window of messages in one second, then silence for half a window's time: they expire together
        half = max(1, window // 2)
        batch = changed(batch, life=batch.seq // half * half * _GAP_US)
        kept = Window("time", 2 * half * _GAP_US)
    facts = {"stream": name, "k": recipe.k[0], "seed": seed}
    return Case(KINDS.named("topk"), batch, table, kept, window, timed, _STREAM_BATCH, facts)


def _at_one_point(table: Table) -> Table:
    return changed(table, x=np.full_like(table.x, 0.3), y=np.full_like(table.y, 0.3))


def _of_one_word(table: Table) -> Table:
    """Every row has term 0 with weight 1."""
    terms, weights = np.zeros(len(table), np.int32), np.ones(len(table), np.float32)
    return changed(table, term_offsets=np.arange(len(table) + 1), terms=terms, weights=weights)
