"""What a benchmark runs on: messages, subscriptions of one kind, a window, and how the stream is cut.

`make_case` makes the standard case of any kind there is in `matching.kinds`: what its row says (a point or a region, a
window or none, messages that end, results that last) decides what is drawn; `benchmarks.workload` has the recipes of
the data, `benchmarks.adversarial` makes cases of another sort. Read on in `benchmarks.harness`, which builds, checks
and times.

Where results last, a message becomes one the rarer the more have gone before it: of n messages the next one is among
the k nearest with a chance of k / n; where scores fade, those of a few half-lives count. So there is a history whose
results every engine is given (`benchmarks.lasting`). Subscriptions take after messages that came before it: k is that
of the kind's recipe and keywords are up to five, as in the papers.
"""

from typing import Any, NamedTuple

import numpy as np

from benchmarks.resampled import resample_messages
from benchmarks.workload import (
    MESSAGES_PER_S,
    PLAIN_BOOLEAN,
    REGIONS,
    WORLD,
    BooleanRecipe,
    Messages,
    TopkRecipe,
    boolean_subscriptions,
    changed,
    make_messages,
    skyline_subscriptions,
    topk_subscriptions,
    versions_of_objects,
    widened,
)
from matching.errors import ConfigError
from matching.fading import Fading
from matching.kind_table import Kind
from matching.model import NO_MESSAGES, Int64, MessageBatch, SubscriptionTable, empty, join_messages
from matching.window import NO_FLOOR, Boundary, Window

#: Messages that subscriptions of a kind without window take after; none of them is timed.
_HISTORY = 200_000
#: Messages that are checked of a kind with a window, at most but for the rest of a batch.
_CHECKED = 5_000
#: As `skyray run` cuts the stream unless it is told otherwise.
MOST_A_BATCH = 5_000
#: Half of the messages speak of objects, five times in a window each, that move about and change words.
_VERSIONED, _VERSIONS, _STRAY_DEG = 0.5, 5, 0.5
#: Subscriptions change in calls of this many, as a batch of a live stream brings them.
_CHANGES_A_CALL, _CALLS_A_ROUND = 1_000, 10
#: Where results last: messages that subscriptions take after, and those of the history, as many as the paper lets pass,
#: but no more than so many a subscription, or a check would have nothing to compare.
_BEFORE, _LASTING_HISTORY, _A_SUBSCRIPTION = 100_000, 1_000_000, 10
#: Of a kind whose scores fade: ten half-lives, and as many messages are checked whatever enters, but fewer for so many
#: subscriptions that all of them together meet more messages than this.
_FADED, _FADED_CHECKED, _MOST_MET = 200_000, 1_000, 1_000_000_000
#: Half-life and smoothing of the CIQ paper.
HALF_LIFE_S, SMOOTHING = 4_000.0, 0.2
#: So many messages are checked that about so many enter a result, and no more.
_ENTERING, _MOST_CHECKED = 4_000, 10_000


class Case(NamedTuple):
    """What a benchmark runs on.

    kind : Kind                  of all subscriptions; its engines and windows are what is measured
    messages : MessageBatch      the whole stream, seq dense from 0, life as the window wants it
    table : SubscriptionTable    live from the start, numbers from 0
    window : Window
    filled : int                 messages that have passed before the first batch
    timed : int                  messages that are timed in all
    batch : int                  messages a batch
    facts : dict                 of the workload, JSON-ready
    ends : int64[messages]       which message each one ends, -1 for none; None: nobody ends another
    fading : Fading              how scores fade, of a kind whose do
    fresh : SubscriptionTable    those that come when some of the table leave, numbers behind theirs
    changes : int                how many of them a call
    """

    kind: Kind
    messages: MessageBatch
    table: SubscriptionTable
    window: Window
    filled: int
    timed: int
    batch: int
    facts: dict[str, Any]
    ends: Int64 | None = None
    fading: Fading | None = None
    fresh: SubscriptionTable = empty(SubscriptionTable)
    changes: int = 1

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
    kind: Kind,
    subscriptions: int,
    messages: int | None = None,
    window: int | None = None,
    rounds: int = 7,
    seed: int = 0,
    *,
    recipe: TopkRecipe | BooleanRecipe | None = None,
    messages_from: str | None = None,
    checked: int | None = None,
    batch: int | None = None,
    versions: float = _VERSIONS,
    history: int | None = None,
    half_life_s: float = HALF_LIFE_S,
) -> Case:
    """The standard case of a kind.

    Parameters
    ----------
    kind : Kind
    subscriptions, messages : int
        How many there are, and how many are timed: 20,000, and so many that each round has as many.
    window : int
        Messages that the window holds, 100,000; without meaning for a kind that has none.
    recipe : TopkRecipe or BooleanRecipe
        What subscriptions to points, or messages and subscriptions to boxes, are like.
    messages_from : str
        ETL output directory whose messages are resampled; synthetic ones without.
    checked, batch : int
        Messages that are checked of a kind with a window, all that there are up to 5,000; messages a batch likewise.
    versions : float
        How often an object speaks in a window, of a kind whose messages are ended.
    history : int
        Messages that have passed before, of a kind whose results last.
    half_life_s : float
        Of a kind whose scores fade.

    Raises
    ------
    ConfigError
        If the recipe asks of real messages what only synthetic ones have.
    """
    timed = messages or 20_000
    part = -(-timed // rounds)
    batch = batch or min(part, MOST_A_BATCH)
    if recipe is None:
        recipe = PLAIN_BOOLEAN if kind.stands == "box" else TopkRecipe(kind.recipe.k, keywords=kind.recipe.keywords)
    drawn = recipe if isinstance(recipe, BooleanRecipe) else PLAIN_BOOLEAN
    before, more = 0, 0  # messages that come before the stream, and those that are checked and not timed
    if kind.windowed or kind.lasting:
        timed = part * rounds
    if kind.windowed:
        filled, more = window or 100_000, -(-(checked or min(timed, _CHECKED)) // batch) * batch
    elif isinstance(recipe, TopkRecipe):
        before, (filled, more) = _BEFORE, _lasting_sizes(kind, subscriptions, recipe, history)
    else:
        filled = _HISTORY
    # those that are checked come before those that are timed
    count = before + filled + more + timed
    if messages_from is None:
        made = make_messages(count, seed, WORLD, drawn, 0 if kind.windowed else filled, bool(kind.columns))
    else:
        plain = drawn._replace(keywords=PLAIN_BOOLEAN.keywords, regions=PLAIN_BOOLEAN.regions, shape="point")
        if plain != PLAIN_BOOLEAN:
            raise ConfigError("real messages have their own places and words: vary keywords, regions, shape alone")
        made = resample_messages(messages_from, count, seed, WORLD, bool(kind.columns))
    # where there is no window, subscriptions come before all messages that are matched, and take after others
    source = made if kind.windowed else Messages(made.batch.take(np.arange(before or filled)), made.idf)
    coming = 0 if kind.windowed else _CHANGES_A_CALL * _CALLS_A_ROUND * rounds
    everybody = subscriptions_of(kind, source, subscriptions + coming, seed, recipe)
    stream, ends = made.batch, None
    if before:
        seq = np.arange(count - before)
        stream = changed(stream.take(before + seq), seq=seq, life=seq)
    if drawn.shape == "range":
        later = stream.take(np.arange(filled, count))
        stream = join_messages([stream.take(np.arange(filled)), widened(later, seed)])
    if kind.needs_ended:
        stream, _, ends = versions_of_objects(stream, filled, _VERSIONED, versions, _STRAY_DEG, seed)
    table = everybody.take(np.arange(subscriptions))
    lengths = np.diff(stream.term_offsets)[filled if kind.stands == "box" else 0 :]
    facts: dict[str, Any] = {
        "subscriptions": subscriptions,
        "messages": timed,
        "batch": batch,
        "messages_from": "synthetic" if messages_from is None else "resampled",
        **_facts(kind, recipe),
        "seed": seed,
        "terms": int(made.idf.shape[0]),
        "terms_per_message": round(float(lengths.mean()), 2),
        "keywords_per_subscription": round(table.terms.shape[0] / max(1, subscriptions), 2),
    }
    if kind.windowed:
        facts["window"] = f"count:{filled}"
    elif kind.lasting:
        facts["history"] = filled
    elif messages_from is not None:
        facts |= {"places": "real", "words": "real"}
    if ends is not None:
        facts |= {"versioned": _VERSIONED, "versions_a_window": versions, "stray_deg": _STRAY_DEG}
    fading = None
    if kind.fades:
        fading = _fading(made, half_life_s)
        facts |= {"half_life_s": half_life_s, "smoothing": SMOOTHING, "arrivals_per_s": MESSAGES_PER_S}
    fresh = everybody.take(np.arange(subscriptions, subscriptions + coming))
    return Case(
        kind, stream, table, Window("count", filled), filled, timed, batch, facts, ends, fading, fresh, _CHANGES_A_CALL
    )


def subscriptions_of(
    kind: Kind, messages: Messages, count: int, seed: int, recipe: TopkRecipe | BooleanRecipe
) -> SubscriptionTable:
    """`count` subscriptions of a kind that take after random messages. O(count)."""
    if isinstance(recipe, BooleanRecipe):
        return boolean_subscriptions(messages, count, seed, recipe=recipe)
    if kind.place != "point":
        return skyline_subscriptions(messages, count, seed)
    likes = topk_subscriptions(messages, count, seed, recipe)
    alpha = likes.alpha if "alpha" in kind.fields else np.full(count, np.nan)
    return changed(likes, kind=np.full(count, kind.code, np.int8), alpha=alpha)


def _lasting_sizes(kind: Kind, subscriptions: int, recipe: TopkRecipe, history: int | None) -> tuple[int, int]:
    """Messages of the history, and those that are checked."""
    if kind.fades:
        return history or _FADED, min(_FADED_CHECKED, max(100, _MOST_MET // subscriptions))
    filled = history or min(_LASTING_HISTORY, _A_SUBSCRIPTION * subscriptions)
    entering = subscriptions * sum(recipe.k) / 2 / filled
    return filled, int(min(_MOST_CHECKED, max(100, _ENTERING / entering)))


def _fading(drawn: Messages, half_life_s: float) -> Fading:
    """How scores fade, with the words of all messages for a collection."""
    batch = drawn.batch
    counts = np.bincount(batch.terms, weights=batch.counts, minlength=drawn.idf.shape[0]).astype(np.int64)
    return Fading.of(half_life_s, SMOOTHING, counts, int(counts.sum()), 0)


def _facts(kind: Kind, recipe: TopkRecipe | BooleanRecipe) -> dict[str, Any]:
    """The recipe, JSON-ready."""
    if isinstance(recipe, BooleanRecipe):
        return recipe.facts() | {"wide_share": REGIONS[recipe.regions][2], "changes_per_call": _CHANGES_A_CALL}
    if kind.place != "point":
        return {}
    k = recipe.k[0] if kind.windowed and recipe.k[0] == recipe.k[1] else list(recipe.k)
    alpha = {"alpha": list(recipe.alpha)} if "alpha" in kind.fields else {}
    return {"k": k, **alpha, "keywords": list(recipe.keywords)}
