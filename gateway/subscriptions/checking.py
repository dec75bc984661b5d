"""Checks subscription files against messages before a run: `skyray subscriptions check`.

Every row gets the verdict of a run (`matching.validate`), its words that no message has, and the number of messages of
the folder that it would match. Read on in `gateway.commands.subscriptions` for how it is shown.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gateway.runs.reader import subscriber
from matching.fields import identifier
from matching.kind_table import Kind, Kinds
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD, UNKNOWN_TERM, Float64, Int64
from matching.space import Space
from matching.text import Vocabulary
from matching.validate import ParsedSubscription, misspelt, subscription_row
from spark_etl.span import span_us
from spouts.lines import read_rows
from spouts.parquet import read_columns, world_of
from spouts.subscriptions import load_vocabulary, meaning_of

#: How the expected matches are found, for people.
ESTIMATE = (
    "matches a day: messages of the folder that have the words (all or any of them, by the kind) and lie in the "
    "region, where there is one, over the days that its messages span, by the nine tenths in the middle, so that a few "
    "absurd dates do not count; of kinds that keep the best ones it is how many compete; fewer are updates; where, "
    "not_keywords, circles, polygons and match as a number are not counted in, so with these fewer still"
)
_US_PER_DAY = 86_400e6


class _Stream(NamedTuple):
    """Index of messages: those of each term (`rows` cut at `offsets`), their boxes, the days they span."""

    offsets: Int64
    rows: Int64
    west: Float64
    south: Float64
    east: Float64
    north: Float64
    days: float | None


def check_subscriptions(
    paths: Sequence[str | os.PathLike[str]], etl: Path, world: str = "extent", kinds: Kinds = KINDS
) -> dict[str, Any]:
    """Check every row of some files.

    Parameters
    ----------
    paths : sequence of path
        As `skyray run` takes them.
    etl : Path
        Messages that stand for those to come.
    world : str
        As a run has it.

    Returns
    -------
    dict
        `rows` (each `file`, `line`, `verdict` accepted or rejected, `reason`, `what`, `subscription_id`, and of
        accepted ones `kind`, `unknown_words`, `stop_words`, `messages` and `matches_per_day`, None without times;
        free columns under `more`), `accepted`, `rejected`, `rejected_by_reason`, `replaced` (ids that several rows
        have), `days` and `estimate` (how it is made).

    Raises
    ------
    InputError
        If a file is missing or damaged.

    Notes
    -----
    Holds 8 bytes a term of all messages; 20 us a row, and 1 ns for each message of each of its words.
    """
    vocabulary = load_vocabulary(etl)
    space = world_of(etl, world)
    stream = _read(etl, len(vocabulary))
    rows: list[dict[str, Any]] = []
    reasons: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    for path in paths:
        for line, row in read_rows(path):
            verdict = _verdict_of(row, vocabulary, space, stream, kinds)
            reasons.update([verdict["reason"]] if verdict["verdict"] == "rejected" else [])
            ids.update([verdict["subscription_id"]] if verdict["reason"] is None and "kind" in verdict else [])
            rows.append({"file": os.fspath(path), "line": line, **verdict})
    rejected = sum(reasons.values())
    return {
        "rows": rows,
        "accepted": len(rows) - rejected,
        "rejected": rejected,
        "rejected_by_reason": dict(reasons.most_common()),
        "replaced": sorted(name for name, count in ids.items() if count > 1),
        "days": stream.days,
        "estimate": ESTIMATE,
    }


def _verdict_of(
    row: dict[str, Any] | str, vocabulary: Vocabulary, space: Space, stream: _Stream, kinds: Kinds
) -> dict[str, Any]:
    if isinstance(row, str):
        return _refused(row, kinds)
    if row.get("unsubscribe") is not None:
        return {"verdict": "accepted", "reason": None, "what": f"ends {row['unsubscribe']}, if it is there by then"}
    row = {name: value for name, value in row.items() if name != "unsubscribe"}
    parsed = subscription_row(row, vocabulary, space, kinds)
    if isinstance(parsed, str):
        verdict = _refused(parsed, kinds) | {"subscription_id": identifier(row.get("subscription_id")) or None}
        near = [f"{name} for {misspelt(name)}" for name in row if misspelt(name)]
        return verdict | ({"what": f"{verdict['what']}: {', '.join(near)}"} if parsed == "unknown_column" else {})
    kind = kinds[parsed.kind]
    if not kind.runs:
        return _refused("kind_without_engine", kinds)
    met = _met(parsed, kind, stream)
    unknown = [word for word in parsed.words if vocabulary.id_of(word) is None and word not in vocabulary.stop_terms]
    return {
        "verdict": "accepted",
        "reason": None,
        "what": "" if parsed.can_match else "cannot match: no message has as many of its words as it needs",
        "subscription_id": parsed.subscription_id,
        "kind": kind.name,
        "unknown_words": unknown,
        "stop_words": [word for word in parsed.words if word in vocabulary.stop_terms],
        "messages": met,
        "matches_per_day": None if stream.days is None else met / stream.days,
        "more": subscriber(row, parsed, kinds).more,
    }


def _refused(reason: str, kinds: Kinds) -> dict[str, Any]:
    return {"verdict": "rejected", "reason": reason, "what": meaning_of(reason, kinds)}


def _met(parsed: ParsedSubscription, kind: Kind, stream: _Stream) -> int:
    """Number of messages with its words in its region."""
    if parsed.terms[-1] == UNKNOWN_TERM:
        return 0
    lists = [stream.rows[stream.offsets[term] : stream.offsets[term + 1]] for term in parsed.terms]
    rows, count = np.unique(np.concatenate(lists), return_counts=True)
    if kind.all_keywords and parsed.match != ANY_KEYWORD:
        rows = rows[count == len(lists)]
    if kind.place != "region":
        return int(rows.size)
    west, south, east, north = parsed.region
    sides = [stream.west[rows], stream.south[rows], stream.east[rows], stream.north[rows]]
    if kind.message_place == "centre":
        middle = (sides[0] + sides[2]) / 2, (sides[1] + sides[3]) / 2
        sides = [*middle, *middle]
    inside = (sides[1] <= north) & (sides[3] >= south)
    reaches_west, reaches_east = sides[2] >= west, sides[0] <= east
    across = reaches_west & reaches_east if west <= east else reaches_west | reaches_east
    return int((inside & across).sum())


def _read(etl: Path, terms: int) -> _Stream:
    flat, owner, boxes, times, first = [], [], [], [], 0
    for batch in read_columns(etl, ["lon", "lat", "terms"], ("west", "south", "east", "north", "event_time")):
        lists: Any = batch.column("terms")
        lengths = lists.value_lengths().fill_null(0).to_numpy()
        flat.append(lists.flatten().to_numpy())
        owner.append(first + np.repeat(np.arange(len(batch)), lengths))
        boxes.append(np.stack([_side(batch, *each) for each in _SIDES]))
        if "event_time" in batch.schema.names:
            moments = batch.column("event_time").drop_null().cast(pa.int64())
            times += [moments.to_numpy()] if len(moments) else []
        first += len(batch)
    all_terms = np.concatenate([np.zeros(0, np.int32), *flat])
    order = np.argsort(all_terms, kind="stable")
    rows = np.concatenate([np.zeros(0, np.int64), *owner])[order]
    offsets = np.searchsorted(all_terms[order], np.arange(terms + 1))
    span = span_us(np.concatenate([np.zeros(0, np.int64), *times]))
    sides = np.concatenate([np.zeros((4, 0)), *boxes], axis=1)
    west, south, east, north = sides
    return _Stream(offsets, rows, west, south, east, north, span / _US_PER_DAY if span else None)


_SIDES = (("west", "lon"), ("south", "lat"), ("east", "lon"), ("north", "lat"))


def _side(batch: pa.RecordBatch, name: str, point: str) -> Float64:
    """A side of the boxes of messages; of points the point."""
    own = batch.column(point).to_numpy()
    if name not in batch.schema.names:
        return own
    side = batch.column(name).to_numpy(zero_copy_only=False)
    return np.where(np.isnan(side), own, side)
