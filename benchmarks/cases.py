"""What a benchmark runs on: messages, subscriptions of one kind, a window, and how the stream is cut.

`make_case` makes the standard case of any kind there is in `matching.kinds`: what its row says (a point or a region, a
window or none, messages that end) decides what is drawn; `benchmarks.workload` has the recipes of the data,
`benchmarks.adversarial` makes cases of another sort. Read on in `benchmarks.harness`, which builds, checks and times.
"""

from typing import Any, NamedTuple

import numpy as np

from benchmarks.resampled import resample_messages
from benchmarks.workload import (
    PLAIN,
    PLAIN_BOOLEAN,
    REGIONS,
    WORLD,
    BooleanRecipe,
    Messages,
    TopkRecipe,
    boolean_subscriptions,
    make_messages,
    skyline_subscriptions,
    topk_subscriptions,
    versions_of_objects,
    widened,
)
from matching.errors import ConfigError
from matching.fading import Fading
from matching.kind_table import Kind
from matching.model import Int64, MessageBatch, SubscriptionTable, empty, join_messages
from matching.window import Window

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

    Raises
    ------
    ConfigError
        If the recipe asks of real messages what only synthetic ones have.
    """
    timed = messages or 20_000
    part = -(-timed // rounds)
    batch = batch or min(part, MOST_A_BATCH)
    drawn = recipe if isinstance(recipe, BooleanRecipe) else PLAIN_BOOLEAN
    if kind.windowed:
        timed, filled = part * rounds, window or 100_000
        # those that are checked come before those that are timed
        count = filled + -(-(checked or min(timed, _CHECKED)) // batch) * batch + timed
    else:
        filled, count = _HISTORY, _HISTORY + timed
    if messages_from is None:
        made = make_messages(count, seed, WORLD, drawn, 0 if kind.windowed else filled)
    else:
        plain = drawn._replace(keywords=PLAIN_BOOLEAN.keywords, regions=PLAIN_BOOLEAN.regions, shape="point")
        if plain != PLAIN_BOOLEAN:
            raise ConfigError("real messages have their own places and words: vary keywords, regions, shape alone")
        made = resample_messages(messages_from, count, seed, WORLD)
    # where there is no window, subscriptions come before all messages that are matched, and take after others
    source = made if kind.windowed else Messages(made.batch.take(np.arange(filled)), made.idf)
    coming = 0 if kind.windowed else _CHANGES_A_CALL * _CALLS_A_ROUND * rounds
    everybody = subscriptions_of(kind, source, subscriptions + coming, seed, recipe)
    stream = made.batch
    if drawn.shape == "range":
        later = stream.take(np.arange(filled, count))
        stream = join_messages([stream.take(np.arange(filled)), widened(later, seed)])
    ends = None
    if kind.needs_ended:
        stream, _, ends = versions_of_objects(stream, filled, _VERSIONED, versions, _STRAY_DEG, seed)
    table = everybody.take(np.arange(subscriptions))
    lengths = np.diff(stream.term_offsets)[0 if kind.windowed else filled :]
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
    elif messages_from is not None:
        facts |= {"places": "real", "words": "real"}
    if ends is not None:
        facts |= {"versioned": _VERSIONED, "versions_a_window": versions, "stray_deg": _STRAY_DEG}
    fresh = everybody.take(np.arange(subscriptions, subscriptions + coming))
    span = Window("count", filled)
    return Case(
        kind, stream, table, span, filled, timed, batch, facts, ends, fresh=fresh, changes=_CHANGES_A_CALL
    )  # fmt: skip


def subscriptions_of(
    kind: Kind, messages: Messages, count: int, seed: int, recipe: TopkRecipe | BooleanRecipe | None = None
) -> SubscriptionTable:
    """`count` subscriptions of a kind that take after random messages. O(count)."""
    if kind.place == "point":
        return topk_subscriptions(messages, count, seed, recipe if isinstance(recipe, TopkRecipe) else PLAIN)
    if kind.stands == "box":
        drawn = recipe if isinstance(recipe, BooleanRecipe) else PLAIN_BOOLEAN
        return boolean_subscriptions(messages, count, seed, recipe=drawn)
    return skyline_subscriptions(messages, count, seed)


def _facts(kind: Kind, recipe: TopkRecipe | BooleanRecipe | None) -> dict[str, Any]:
    """The recipe, JSON-ready."""
    if kind.place == "point":
        asked = recipe if isinstance(recipe, TopkRecipe) else PLAIN
        k = asked.k[0] if asked.k[0] == asked.k[1] else list(asked.k)
        return {"k": k, "alpha": list(asked.alpha), "keywords": list(asked.keywords)}
    if kind.stands == "box":
        drawn = recipe if isinstance(recipe, BooleanRecipe) else PLAIN_BOOLEAN
        return drawn.facts() | {"wide_share": REGIONS[drawn.regions][2], "changes_per_call": _CHANGES_A_CALL}
    return {}
