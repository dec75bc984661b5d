"""Who got what, for people: results and updates joined with words, texts and places.

A result or an update names a subscription and a message; here stands what they said: which of the words were found,
the text, where it lies, how far away, and the score. Read on in `gateway.reading`, which reads it all back.
"""

import csv
import difflib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gateway.distance import distance_km
from gateway.reading import Reading, Subscriber
from gateway.terminal import as_json, cell, plain, shown, table
from matching.errors import ConfigError
from matching.fields import identifier

#: Longest text that is drawn in a table.
LONGEST_TEXT = 48
#: Decimals of degrees in a table (about 1 km).
PLACE_DECIMALS = 2
#: What a spreadsheet takes for a formula when a field begins with it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def who_got_what(reading: Reading, wanted: Sequence[str], limit: int) -> dict[str, Any]:
    """What subscriptions hold, and how much they were told.

    Parameters
    ----------
    reading : Reading
    wanted : sequence of str
        Subscription ids; none: as many as `limit` of those that hold anything, spread over all of them.
    limit : int
        Results of each subscription at most, and, where none is named, subscriptions; 0 for all.

    Returns
    -------
    dict
        `run`, `state`, `updates` (counts by change, of all), `holding` (how many subscriptions hold anything) and
        `subscriptions`: each with what its owner wrote, its counts of `updates`, how many `held` and its `results`.

    Raises
    ------
    ConfigError
        If a subscription is named that the run does not have, with the reason if it was rejected.

    Notes
    -----
    O(updates), a second for ten million; texts are read only of what is returned.
    """
    updates = reading.updates()
    ids = [str(one) for one in wanted] or None
    results = reading.results(updates, ids)
    counts = reading.counts(updates)
    holding = sorted(set(results["subscription_id"].to_pylist()))
    chosen = ids or _spread(holding, limit)
    known = known_subscribers(reading, chosen)
    of_each: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for row in results.to_pylist():
        if row["subscription_id"] in of_each:
            of_each[row["subscription_id"]].append(row)
    # of what has no rank the latest comes first
    first = {name: each if each and each[0]["rank"] else each[::-1] for name, each in of_each.items()}
    told = {name: each[: limit or None] for name, each in first.items()}
    joined = join(reading, [row for each in told.values() for row in each], known)
    for row in joined:
        del row["subscription"]
    places = iter(joined)
    total: dict[str, int] = {}
    for each in counts.values():
        for change, count in each.items():
            total[change] = total.get(change, 0) + count
    return {
        "run": str(reading.folder),
        "state": reading.state,
        "updates": total,
        "holding": len(holding) if ids is None else None,
        "subscriptions": [
            _described(known[name][-1])
            | {"updates": counts.get(name, {}), "held": len(of_each[name])}
            | {"results": [next(places) for _ in told[name]]}
            for name in chosen
        ],
    }


def update_rows(
    reading: Reading, wanted: Sequence[str], limit: int = 0, parts: Sequence[Any] | None = None
) -> list[dict[str, Any]]:
    """Updates with what they are about, in the order of the files: the last `limit` of them, 0 for all.

    parts : sequence of path, optional    files of updates instead of all that have names
    """
    updates = reading.updates([str(one) for one in wanted] or None, parts)
    updates = updates.slice(max(0, len(updates) - limit)) if limit else updates
    known = known_subscribers(reading, sorted(set(updates["subscription_id"].to_pylist())))
    rows = join(reading, updates.to_pylist(), known)
    for row in rows:
        row |= row.pop("subscription").more
    return rows


def known_subscribers(reading: Reading, ids: Collection[str]) -> dict[str, list[Subscriber]]:
    """The subscriptions of these ids. Raises ConfigError for one that the run does not have."""
    found, refused = reading.subscribers(ids)
    for name in ids:
        if name in found:
            continue
        if name in refused:
            raise ConfigError(f"subscription {name}: the run has rejected it ({refused[name]}); see rejected.jsonl")
        near = difflib.get_close_matches(name, _all_ids(reading), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"subscription {name}: is in none of the files of {reading.folder}{hint}")
    return found


def join(
    reading: Reading, rows: Sequence[Mapping[str, Any]], known: Mapping[str, Sequence[Subscriber]]
) -> list[dict[str, Any]]:
    """Rows of results or updates with `words` found, `text`, `lon`, `lat`, `event_time`, `distance_km` (None for a
    region) and `subscription`."""
    messages = reading.messages({row["seq"] for row in rows})
    vocabulary = reading.vocabulary if rows else None
    joined = []
    for row in rows:
        subscription = _at(known[row["subscription_id"]], row.get("as_of"))
        message = messages.get(row["seq"])
        more: dict[str, Any] = {"kind": subscription.kind, "subscription": subscription}
        if message is not None and vocabulary is not None:
            there = [word for word in subscription.words if vocabulary.id_of(word) in message.terms]
            far = None
            if subscription.lon is not None and subscription.lat is not None:
                far = distance_km(subscription.lon, subscription.lat, message.lon, message.lat)
            time = None if message.event_time is None else message.event_time.isoformat()
            more |= {"words": there, "distance_km": far, "text": message.text}
            more |= {"lon": message.lon, "lat": message.lat, "event_time": time}
        joined.append({**row, **more})
    return joined


# -------------------------------------------------------------------------------------------------- for people


def result_table(payload: Mapping[str, Any]) -> Any:
    """`who_got_what` as a table."""
    headings = ["subscription", "kind", "held", "rank", "words found", "text", "place", "km", "score"]
    free = _free_columns(one["more"] for one in payload["subscriptions"])
    rows = []
    for one in payload["subscriptions"]:
        for row in one["results"] or [None]:
            own = [one["subscription_id"], *(one["more"].get(name) for name in free), one["kind"], one["held"]]
            if row is not None and row is not one["results"][0]:
                own = [""] * len(own)
            rows.append([*own, *_told(row)])
    right = [headings.index(name) + len(free) for name in ("held", "rank", "km", "score")]
    return table([headings[0], *free, *headings[1:]], rows, right=right)


def update_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Updates as a table."""
    headings = ("as of", "change", "subscription", "words found", "text", "place", "km", "score")
    return table(headings, [_update_cells(row) for row in rows], right=(0, 6, 7))


def update_line(row: Mapping[str, Any]) -> str:
    """An update on one line, for those who follow."""
    as_of, change, name, words, text, place, far, score = map(cell, _update_cells(row))
    return f"{as_of:>10} {change:<5} {name}  {words}  {text}  {place}  {far} km  {score}"


def _update_cells(row: Mapping[str, Any]) -> list[Any]:
    return [row["as_of"], row["change"], row["subscription_id"], *_told(row)[1:]]


def _told(row: Mapping[str, Any] | None) -> list[Any]:
    """Rank, words, text, place, km and score of a joined row."""
    if row is None:
        return [None, "nothing yet", "", "", None, None]
    if "text" not in row:
        return [row.get("rank"), "", f"message {row['message_id']}", "", None, row["score"]]
    far = None if row["distance_km"] is None else round(row["distance_km"])
    place = f"{row['lon']:.{PLACE_DECIMALS}f} {row['lat']:.{PLACE_DECIMALS}f}"
    score = row["score"] if row.get("text_score") is None else (row["score"], row["text_score"])
    worded = ", ".join(f"{one:.3g}" for one in score) if isinstance(score, tuple) else score
    return [row.get("rank"), " ".join(row["words"]), shortened(row["text"]), place, far, worded]


def shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    """The beginning of a text, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


# ------------------------------------------------------------------------------------------------ for machines


def write_csv(rows: Sequence[Mapping[str, Any]], header: bool = True) -> None:
    """Rows as CSV with one header; a text that a spreadsheet would take for a formula gets an apostrophe before it."""
    out = sys.stdout
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    # a terminal would obey what a file may hold
    made_safe = shown if out.isatty() else str
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow([made_safe(_unformed(name)) for name in names])
    for row in rows:
        writer.writerow([made_safe(_unformed(_field(row.get(name)))) for name in names])
    out.flush()


def flat_results(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`who_got_what` as one row a result, with the free columns of the subscription."""
    return [
        {"subscription_id": one["subscription_id"], **one["more"], **row}
        for one in payload["subscriptions"]
        for row in one["results"]
    ]


def json_line(row: Mapping[str, Any]) -> str:
    """One row as JSON on one line."""
    return as_json(dict(row))


def _field(value: Any) -> Any:
    value = plain(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else value


def _unformed(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _free_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _described(subscription: Subscriber) -> dict[str, Any]:
    told = subscription._asdict()
    told["keywords"] = list(told.pop("words"))
    return {name: value for name, value in told.items() if value is not None}


def _at(several: Sequence[Subscriber], as_of: int | None) -> Subscriber:
    """Who had the id as of a message: the last to begin before it."""
    begun = [one for one in several if as_of is None or one.at <= as_of]
    return begun[-1] if begun else several[0]


def _spread(ids: Sequence[str], limit: int) -> list[str]:
    """So many of them, evenly."""
    if not limit or len(ids) <= limit:
        return list(ids)
    return [ids[int(row)] for row in np.linspace(0, len(ids) - 1, limit)]


def _all_ids(reading: Reading) -> list[str]:
    from spouts.lines import read_rows

    rows = (row for path in reading.files for _, row in read_rows(path))
    return [name for row in rows if isinstance(row, dict) and (name := identifier(row.get("subscription_id")))]
