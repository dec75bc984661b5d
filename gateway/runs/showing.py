"""Results and updates joined with their subscriptions and messages, for `skyray show`.

A row of a result or an update gets the keywords found, text, place, distance and score. Rows are streamed, so that
memory does not grow with the list.
"""

import csv
import json
import math
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice, pairwise
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from gateway.runs.distance import kilometres
from gateway.runs.reader import RunReader, Subscriber
from gateway.shell.listing import cells, fitted, listing
from gateway.shell.terminal import cell, flushed, plain, shown
from matching.model import Int64
from matching.validate import CONDITION_COLUMNS

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

#: Longest id that is not replaced by `seq:N`.
LONGEST_ID = 36
#: Decimals of degrees (about 1 km).
PLACE_DECIMALS = 2
#: Updates in a group of subscriptions, the first group and the others.
FIRST_GROUP, GROUP = 2_000, 200_000
#: Rows joined at a time, the first time and then.
JOINED_FIRST, JOINED = 128, 4_096
#: Subscriptions cached while updates are read.
KNOWN = 200_000
#: Least cells of a text where an update is on one line.
LEAST_FOLLOWED = 24
#: Columns of CSV, besides free columns of subscriptions.
_MESSAGE_COLUMNS = ("kind", "words", "distance_km", "text", "lon", "lat", "event_time")
RESULT_COLUMNS = ("rank", "message_id", "seq", "score", "text_score", *_MESSAGE_COLUMNS)
UPDATE_COLUMNS = ("as_of", "subscription_id", "message_id", "seq", "change", "score", *_MESSAGE_COLUMNS)
#: What a spreadsheet takes for a formula when a field begins with it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def result_lists(run: RunReader, wanted: Sequence[str], limit: int) -> dict[str, Any]:
    """`result_stream` in memory, for a few subscriptions."""
    payload = result_stream(run, wanted, limit)
    subscriptions = [one | {"results": list(one["results"])} for one in payload["subscriptions"]]
    return payload | {"subscriptions": subscriptions}


def result_stream(run: RunReader, wanted: Sequence[str], limit: int) -> dict[str, Any]:
    """Results of subscriptions, and counts of their updates.

    Parameters
    ----------
    wanted : sequence of str
        Subscription ids; none: up to `limit` of those with results, evenly spaced.
    limit : int
        Results of each subscription at most, and, where none is named, subscriptions; 0 for all.

    Returns
    -------
    dict
        `run`, `state`, `updates` (counts by change, of all), `holding` (number of subscriptions with results) and
        `subscriptions`, an iterator: each with its columns, its counts of `updates`, the number of `entries` and its
        `results`, an iterator that must be read before the next subscription.

    Raises
    ------
    ConfigError
        If a subscription is named that the run does not have, with the reason if it was rejected.

    Notes
    -----
    O(updates), a second for a million, before the first and again for each `GROUP` of them that is shown. Memory for
    the shown subscriptions and a group of updates.
    """
    ids = list(dict.fromkeys(map(str, wanted))) or None
    if ids:
        run.known(ids)
    counts = run.counts()
    holding = [] if ids else run.ids_with_results(counts)
    by_change = counts.group_by("change").aggregate([("count", "sum")]).to_pylist()
    return {
        "run": str(run.folder),
        "state": run.state,
        "updates": {row["change"]: row["count_sum"] for row in sorted(by_change, key=lambda row: row["change"])},
        "holding": None if ids else len(holding),
        "subscriptions": _holders(run, ids or _spread(holding, limit), counts, limit),
    }


def _holders(run: RunReader, chosen: Sequence[str], counts: pa.Table, limit: int) -> Iterator[dict[str, Any]]:
    """The chosen subscriptions with their results, in this order."""
    for group in _groups(chosen, counts):
        known = run.known(group)
        change_counts: dict[str, dict[str, int]] = {}
        for row in counts.filter(pc.is_in(counts["subscription_id"], pa.array(group))).to_pylist():
            change_counts.setdefault(row["subscription_id"], {})[row["change"]] = row["count"]
        results = run.result_rows(group)
        of_each = _rows_of_each(results, group)
        first = [each[: limit or None] for each in of_each]
        joined = (row for row, _ in _joined(run, results.take(pa.array(np.concatenate(first))), known))
        for name, standing, picked in zip(group, of_each, first, strict=True):
            rows = islice(joined, len(picked))
            yield _described(known[name][-1]) | {
                "updates": change_counts.get(name, {}),
                "entries": len(standing),
                "results": rows,
            }
            deque(rows, maxlen=0)  # skip rows that the caller has not read


def _groups(chosen: Sequence[str], counts: pa.Table) -> Iterator[list[str]]:
    """Groups of subscriptions whose updates fit into memory; the first is small, to be shown soon."""
    summed = counts.group_by("subscription_id").aggregate([("count", "sum")])
    rows = dict(zip(summed["subscription_id"].to_pylist(), summed["count_sum"].to_pylist(), strict=True))
    group: list[str] = []
    size, most = 0, FIRST_GROUP
    for name in chosen:
        more = rows.get(name, 0) + 10  # memory of a subscription, in updates
        if group and size + more > most:
            yield group
            group, size, most = [], 0, GROUP
        group.append(name)
        size += more
    if group:
        yield group


def _rows_of_each(results: pa.Table, group: Sequence[str]) -> list[Int64]:
    """Row numbers of each subscription, best first; without ranks the latest first."""
    id_row = pc.index_in(results["subscription_id"], value_set=pa.array(group)).to_numpy()
    ranked = pc.is_valid(results["rank"]).to_numpy()
    order = np.argsort(id_row, kind="stable")
    bounds = np.searchsorted(id_row[order], np.arange(len(group) + 1))
    each = [order[begin:end] for begin, end in pairwise(bounds)]
    return [rows if rows.size == 0 or ranked[rows[0]] else rows[::-1] for rows in each]


def update_stream(
    run: RunReader, wanted: Sequence[str], limit: int = 0, parts: Sequence[Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Joined updates in the order of the files: the last `limit` of them, 0 for all.

    parts : sequence of path, optional    files of updates instead of all published ones

    Notes
    -----
    Memory for a piece of a file, and for the subscriptions that have updates, up to `KNOWN`.
    """
    pieces = run.pieces([str(one) for one in wanted] or None, parts)
    known: dict[str, list[Subscriber]] = {}
    for piece in _first_rows_apart(_last(pieces, limit) if limit else pieces):
        ids = set(pc.unique(piece["subscription_id"]).to_pylist())
        if len(known) > KNOWN:
            known.clear()
        known |= run.known(sorted(ids - known.keys()))
        for row, of in _joined(run, piece, known):
            yield row | {name: value for name, value in of.more.items() if name not in row}


def _last(pieces: Iterable[pa.Table], limit: int) -> Iterator[pa.Table]:
    kept: deque[pa.Table] = deque()
    rows = 0
    for piece in pieces:
        kept.append(piece)
        rows += len(piece)
        while rows - len(kept[0]) >= limit:
            rows -= len(kept.popleft())
    if kept:
        yield pa.concat_tables(kept).slice(max(0, rows - limit))


def _first_rows_apart(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, with a small first piece that is shown soon."""
    for number, piece in enumerate(pieces):
        if number == 0:
            yield piece.slice(0, JOINED_FIRST)
            piece = piece.slice(JOINED_FIRST)
        yield piece


def _joined(
    run: RunReader, table: pa.Table, known: Mapping[str, Sequence[Subscriber]]
) -> Iterator[tuple[dict[str, Any], Subscriber]]:
    """`RunReader.join` in pieces; yields each row and its subscription."""
    begin, size = 0, JOINED_FIRST
    while begin < len(table):
        for row in run.join(table.slice(begin, size).to_pylist(), known):
            of = row.pop("subscription")
            yield row, of
        begin, size = begin + size, JOINED


# -------------------------------------------------------------------------------------------------- for people


def result_lines(payload: Mapping[str, Any], run: RunReader, width: int) -> Iterator[str]:
    """`result_stream` as lines: a heading and results for each subscription, then a legend of scores."""
    counts = cell({change: f"{count:,}" for change, count in payload["updates"].items()}) or "nothing yet"
    yield from wrap(f"{cell(payload['run'])}: {payload['state']}; updates: {counts}", width, subsequent_indent="    ")
    kinds: dict[str, None] = {}
    example, shown_count = None, 0
    for one in payload["subscriptions"]:
        shown_count += 1
        yield ""
        yield from (fitted(line, width) for line in _heading(one))
        rows = iter(one["results"])
        first = next(rows, None)
        if first is None:
            yield "    nothing yet"
            continue
        kinds[one["kind"]] = None
        example = example or (one["subscription_id"], first["seq"])
        kind = run.kinds.named(one["kind"])
        columns = _columns(run, ranked=kind.standing, far=kind.place == "point")
        yield from _listing(columns, chain([first], rows), width)
    yield from _footnotes(run, kinds, example, width)
    if payload["holding"] is not None and payload["holding"] > shown_count:
        yield f"{payload['holding']:,} subscriptions have results; name some, or give --limit 0 for all"


def update_lines(rows: Iterable[Mapping[str, Any]], run: RunReader, width: int) -> Iterator[str]:
    """`update_stream` as lines."""
    kinds: dict[str, None] = {}
    example = None

    def seen() -> Iterator[Mapping[str, Any]]:
        nonlocal example
        for row in rows:
            kinds[row["kind"]] = None
            example = example or (row["subscription_id"], row["seq"])
            yield row

    yield from _listing(_columns(run, updates=True), seen(), width)
    if example is None:
        yield "no updates yet"
    yield from _footnotes(run, kinds, example, width)


def update_line(row: Mapping[str, Any], run: RunReader, width: int) -> str:
    """An update for --follow: one line, or two where it does not fit."""
    values = {column.heading: cell(column.value(row)) for column in _columns(run, updates=True)}
    begin = f"{values['as of']:>10} {values['change']:<5} {values['subscription']}  {values['message']}"
    figures = f"{values['time (UTC)']}  {values['km']} km  {values['score']}"
    texts = f"{values['place']}  {values['words found']}: {values['text']}"
    if cells(f"{begin}  {figures}  {values['place']}  {values['words found']}") + LEAST_FOLLOWED <= width:
        return fitted(f"{begin}  {figures}  {texts}", width)
    return "\n".join((fitted(begin, width), fitted(f"    {figures}  {texts}", width)))


def legend(run: RunReader, kinds: Iterable[str]) -> Iterator[str]:
    """What the scores of these kinds are."""
    for name in kinds:
        kind = run.kinds.named(name)
        if not kind.standing:
            continue
        if kind.nearest:
            what = "the distance along the earth, in km"
            if not run.space.on_sphere:
                what = "the distance on the map of the run, in degrees; km is along the earth"
        elif kind.fades and run.fading is not None:
            hours = math.log(2.0) / run.fading.log_base_per_s / 3600
            what = f"0 to 1 when the message was published, and halved every {hours:,.4g} h since"
        elif kind.place == "region":
            what = "0 to 1, how near to the middle of the region; then 0 to 1, how alike the words"
        else:
            what = "0 to 1, how near and how alike the words, weighed by alpha"
        yield f"score of {name}: {what}"


def _footnotes(run: RunReader, kinds: Iterable[str], example: tuple[str, int] | None, width: int) -> Iterator[str]:
    if example is None:
        return
    yield ""
    for line in legend(run, kinds):
        yield from wrap(line, width, subsequent_indent="    ")
    name, seq = example
    dashes = "-- " if name.startswith("-") else ""
    command = f"skyray explain {dashes}{shlex.quote(str(run.folder))} {shlex.quote(name)} seq:{seq}"
    yield f"why: {shown(command)}"


def _heading(one: Mapping[str, Any]) -> Iterator[str]:
    """The query of a subscription, and the size of its result."""
    yield f"{cell(one['subscription_id'])}: {one['kind']} of {cell(' '.join(one['keywords']))}"
    conditions = one["conditions"]
    if one.get("lon") is not None:
        parts = [f"at {_place(one)}"]
    elif "circle" in conditions:
        circle = conditions["circle"]
        parts = [cell(f"within {circle['radius_m']} m of {circle['lon']} {circle['lat']}")]
    else:
        west, south, east, north = one["region"]
        parts = [f"in {west:.{PLACE_DECIMALS}f} to {east:.{PLACE_DECIMALS}f}, "
                 f"{south:.{PLACE_DECIMALS}f} to {north:.{PLACE_DECIMALS}f}"]  # fmt: skip
    parts += [f"{name} {one[name]:g}" for name in ("k", "alpha") if one.get(name) is not None]
    parts += [
        f"{name} {cell('' if name == 'polygon' else json.dumps(conditions[name], ensure_ascii=False))}".strip()
        for name in CONDITION_COLUMNS
        if name in conditions and name != "circle"
    ]
    parts.append(f"results {one['entries']:,}")
    parts += [f"{change} {count:,}" for change, count in sorted(one["updates"].items())]
    parts += [f"{cell(name)} {cell(value)}" for name, value in one["more"].items()]
    yield f"    {', '.join(parts)}"


class _Column(NamedTuple):
    """A column of joined rows; the least `below` is the first to move to a second line, 0 never moves."""

    heading: str
    value: Callable[[Mapping[str, Any]], Any]
    below: int = 0
    figure: bool = False


def _columns(run: RunReader, updates: bool = False, ranked: bool = False, far: bool = False) -> list[_Column]:
    """The columns of updates, or of results with rank and distance where the kind has them."""
    columns: list[_Column] = []
    if updates:
        columns.append(_Column("as of", lambda row: row["as_of"], 5, figure=True))
        columns.append(_Column("change", lambda row: row["change"]))
        columns.append(_Column("subscription", lambda row: fitted(shown(row["subscription_id"]), LONGEST_ID)))
    if ranked:
        columns.append(_Column("rank", lambda row: row["rank"], figure=True))
    columns.append(_Column("seq", lambda row: str(row["seq"]), 6 if updates else 0, figure=True))
    columns.append(_Column("message", _message_name, 9 if updates else 0))
    columns.append(_Column("time (UTC)", _time, 4))
    if updates or far:
        columns.append(_Column("km", lambda row: kilometres(row.get("distance_km")), 7, figure=True))
    if updates or ranked:
        columns.append(_Column("score", lambda row: score_shown(row, run), 8, figure=True))
    columns.append(_Column("place", _place, 3))
    columns.append(_Column("words found", lambda row: " ".join(row.get("words", ())), 2))
    columns.append(_Column("text", lambda row: " ".join(row.get("text", "").split()), 1))
    return columns


def _listing(columns: Sequence[_Column], rows: Iterable[Mapping[str, Any]], width: int) -> Iterator[str]:
    return listing(
        [column.heading for column in columns],
        ([column.value(row) for column in columns] for row in rows),
        width,
        right=[column.heading for column in columns if column.figure],
        below=[column.heading for column in sorted(columns, key=lambda column: column.below) if column.below],
    )


def _message_name(row: Mapping[str, Any]) -> str:
    """As `skyray explain` takes it."""
    name = row["message_id"]
    return name if cells(shown(name)) <= LONGEST_ID else f"seq:{row['seq']}"


def _time(row: Mapping[str, Any]) -> str | None:
    time = row.get("event_time")
    return None if time is None else datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M")


def _place(row: Mapping[str, Any]) -> str:
    if "lon" not in row:
        return ""
    return f"{row['lon']:.{PLACE_DECIMALS}f} {row['lat']:.{PLACE_DECIMALS}f}"


def score_shown(row: Mapping[str, Any], run: RunReader) -> str:
    """The score of a joined row in the unit that `legend` names."""
    score, kind, fading = row["score"], run.kinds.named(row["kind"]), run.fading
    if score is None or math.isnan(score) or not kind.standing:
        return "-"
    if kind.nearest:
        return f"{score / 1000:.3g} km" if run.space.on_sphere else f"{score * run.unit_degrees:.3g}°"
    if kind.fades and fading is not None and row.get("event_time") is not None:
        time = datetime.fromisoformat(row["event_time"])
        age_s = time.replace(tzinfo=time.tzinfo or UTC).timestamp() - fading.epoch_us / 1e6
        return f"{math.exp(min(0.0, score - age_s * fading.log_base_per_s)):.3g}"
    both = [score] if row.get("text_score") is None else [score, row["text_score"]]
    return ", ".join(f"{one:.3g}" for one in both)


# ------------------------------------------------------------------------------------------------ for machines


def write_csv(rows: Iterable[Mapping[str, Any]], names: Sequence[str], header: bool = True) -> bool:
    """Write rows as CSV after one header; returns whether there were any.

    A text that a spreadsheet would evaluate as a formula gets an apostrophe before it.
    """
    out = sys.stdout
    # a terminal would obey control characters
    made_safe = shown if out.isatty() else str
    writer = csv.writer(out, lineterminator="\n")
    begun = False
    for row in flushed(rows):
        if header and not begun:
            writer.writerow([made_safe(_unformed(name)) for name in names])
        begun = True
        writer.writerow([made_safe(_unformed(_field(row.get(name)))) for name in names])
    return begun


def flat_results(payload: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """`result_stream` as one row a result, with the free columns of the subscription."""
    for one in payload["subscriptions"]:
        for row in one["results"]:
            yield {"subscription_id": one["subscription_id"], **one["more"], **row}


def update_columns(run: RunReader, wanted: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*UPDATE_COLUMNS, *run.free_columns(set(wanted) or None)]))


def _field(value: Any) -> Any:
    value = plain(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else value


def _unformed(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _described(subscription: Subscriber) -> dict[str, Any]:
    described = subscription._asdict()
    described["keywords"] = list(described.pop("words"))
    return {name: value for name, value in described.items() if value is not None}


def _spread(ids: Sequence[str], limit: int) -> list[str]:
    """At most `limit` of the ids, evenly spaced; 0 for all."""
    if not limit or len(ids) <= limit:
        return list(ids)
    return [ids[int(row)] for row in np.linspace(0, len(ids) - 1, limit)]
