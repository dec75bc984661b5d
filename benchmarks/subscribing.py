"""Subscriptions by lines over HTTP: what each costs `skyray serve` until it is logged and matched, and at a restart.

    python -m benchmarks.subscribing [--kinds boolean] [--subscriptions 50000] [--rounds 3]

Timed is processor time of the server: `logged` until the last outcome has come, `indexed` until the updates of one
message behind them are out, `restarted` from the start of a process to its readiness, with all of them in the log. Each
round has a folder of its own. Before a round counts, every outcome has the id of its line and the entity tag that its
columns have by themselves, the server lists exactly these subscriptions, before and after the restart, and a message
reaches just the boolean ones that a plain test says.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import psutil
import xxhash

from benchmarks import command
from tests.support.serving import NDJSON, Served, lines_of

#: Words that keywords are of, the first the commonest.
_WORDS = 20_000
#: Subscriptions of a request.
_AT_ONCE = 20_000
_ALL = ("boolean", "topk", "decay", "knn", "skyline")
#: What is measured, of each round.
_FIGURES = ("logged", "indexed", "restarted", "logged_s", "ready_s", "rss_mib")
_MESSAGE_WORDS, _MESSAGES = 40, 200

Row = dict[str, Any]


def bench(
    kinds: Annotated[tuple[str, ...], "of the subscriptions, in turn"] = _ALL,
    subscriptions: Annotated[int, "in all"] = 50_000,
    rounds: Annotated[int, "servers, one after the other"] = 3,
    seed: Annotated[int, "of the subscriptions"] = 1,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Medians over rounds, microseconds of processor time a subscription; times on the clock and memory beside."""
    rows = _rows(np.random.default_rng(seed), kinds, subscriptions)
    messages = _messages(np.random.default_rng(seed + 1))
    wanted = _reached(rows, messages)
    turns, compared, same = [], 0, True
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="skyray-subscribing-") as scratch:
            turn, fine = _round(Path(scratch) / "out", rows, messages, wanted)
        tell(f"round {number + 1} of {rounds}: {turn}")
        turns.append(turn)
        same &= fine
        compared += len(wanted) + len(rows)
    return {
        "workload": {"kinds": list(kinds), "subscriptions": subscriptions, "seed": seed},
        **{name: median(turn[name] for turn in turns) for name in _FIGURES},
        "turns": turns,
        **command.verdict(same, compared, len(rows)),
    }


def _round(out: Path, rows: Sequence[Row], messages: Sequence[Row], wanted: set[tuple[str, str]]) -> tuple[Row, bool]:
    options = out, "--window", "count:1000"
    with Served(*options) as served:
        process = psutil.Process(served.process.pid)
        _prepare(served, rows)
        served.call("POST", "/v1/messages?wait=delivered", [messages[0] | {"id": "first"}])
        began, began_s, outcomes = _spent(process), time.monotonic(), []
        for first in range(0, len(rows), _AT_ONCE):
            outcomes += served.call(
                "POST", "/v1/subscriptions", lines_of(list(rows[first : first + _AT_ONCE])), **NDJSON
            ).lines
        logged, logged_s = _spent(process), time.monotonic() - began_s
        served.call("POST", "/v1/messages?wait=delivered", [messages[0] | {"id": "next"}])
        indexed, rss = _spent(process), process.memory_info().rss
        served.call("POST", "/v1/messages?wait=delivered", list(messages))
        fine = _named(outcomes) == [(row["subscription_id"], _tag_of(row)) for row in rows]
        fine &= _listed(served) == list(rows) and _told(served, 1) == wanted
        served.end(60)
    began_s = time.monotonic()
    with Served(*options) as served:
        ready_s, restarted = time.monotonic() - began_s, _spent(psutil.Process(served.process.pid))
        fine &= _listed(served) == list(rows)
        served.end(60)
    micros = (1e6 / len(rows) * spent for spent in (logged - began, indexed - logged, restarted))
    return dict(zip(_FIGURES, (*micros, logged_s, ready_s, rss / 2**20), strict=True)), fine


def _prepare(served: Served, rows: Sequence[Row]) -> None:
    """Have the kernels of the kinds loaded: a subscription of each comes, and ends."""
    kinds = {row["kind"]: row | {"subscription_id": f"first of {row['kind']}"} for row in rows}
    ends = [{"unsubscribe": row["subscription_id"]} for row in kinds.values()]
    served.call("POST", "/v1/subscriptions", lines_of([*kinds.values(), *ends]), **NDJSON)


def _spent(process: psutil.Process) -> float:
    """Processor seconds so far."""
    times = process.cpu_times()
    return times.user + times.system


def _named(outcomes: Sequence[Row]) -> list[tuple[str, str]]:
    return [(one["subscription_id"], one["etag"]) for one in outcomes if one["status"] == "created"]


def _tag_of(row: Row) -> str:
    return f'"{xxhash.xxh3_64_hexdigest(json.dumps(row, sort_keys=True).encode())}"'


def _listed(served: Served) -> list[Row]:
    """The active subscriptions, page by page."""
    found, after = [], -1
    while after is not None:
        page = served.call("GET", f"/v1/subscriptions?limit=1000&after={after}").json
        found, after = found + page["subscriptions"], page["after"]
    return found


def _told(served: Served, after: int) -> set[tuple[str, str]]:
    """Message and subscription of the updates of boolean subscriptions behind a message."""
    found: set[tuple[str, str]] = set()
    since, through = str(after), after
    last = served.call("GET", "/v1/stream").json["next_seq"] - 1
    while through < last:
        *rows, progress = served.call("GET", f"/v1/updates?poll=true&kind=boolean&limit=100000&since={since}").lines
        found.update((row["message_id"], row["subscription_id"]) for row in rows)
        since, through = progress["progress"]["id"], progress["progress"]["through"]
    return found


def _rows(rng: np.random.Generator, kinds: Sequence[str], count: int) -> list[Row]:
    """Subscriptions of kinds in turn, with ids of their own, one to three keywords, the commoner the likelier."""
    words, lengths = _words(rng, 3 * count), rng.integers(1, 4, count)
    lon, lat, side = rng.uniform(-170, 150, count), rng.uniform(-80, 60, count), rng.uniform(0.1, 20, count)
    alpha = rng.uniform(0.1, 0.9, count)
    rows = []
    for at in range(count):
        kind, x, y = kinds[at % len(kinds)], round(float(lon[at]), 5), round(float(lat[at]), 5)
        row = {"subscription_id": f"subscription-{at}", "kind": kind, "keywords": words[3 * at : 3 * at + lengths[at]]}
        if kind in ("boolean", "skyline"):
            row["region"] = [x, y, round(x + float(side[at]), 5), round(y + float(side[at]), 5)]
        else:
            row |= {"lon": x, "lat": y, "k": 10}
        if kind in ("topk", "decay"):
            row["alpha"] = round(float(alpha[at]), 3)
        rows.append(row)
    return rows


def _messages(rng: np.random.Generator) -> list[Row]:
    words = _words(rng, _MESSAGES * _MESSAGE_WORDS)
    lon, lat = rng.uniform(-170, 170, _MESSAGES), rng.uniform(-80, 80, _MESSAGES)
    texts = (" ".join(words[_MESSAGE_WORDS * at :][:_MESSAGE_WORDS]) for at in range(_MESSAGES))
    places = zip(lon.tolist(), lat.tolist(), texts, strict=True)
    time_s = 1.7e9
    return [
        {"id": f"m{at}", "text": text, "lon": x, "lat": y, "time": time_s + at}
        for at, (x, y, text) in enumerate(places)
    ]


def _words(rng: np.random.Generator, count: int) -> list[str]:
    likely = 1.0 / np.arange(10, 10 + _WORDS)
    return [f"word{number}" for number in rng.choice(_WORDS, count, p=likely / likely.sum()).tolist()]


def _reached(rows: Sequence[Row], messages: Sequence[Row]) -> set[tuple[str, str]]:
    """Message and subscription, by a plain test of the boolean ones."""
    having: dict[str, list[Row]] = {}
    for row in rows:
        if row["kind"] == "boolean":
            having.setdefault(row["keywords"][0], []).append(row)
    found = set()
    for message in messages:
        words = set(message["text"].split())
        for row in (row for word in words for row in having.get(word, ())):
            west, south, east, north = row["region"]
            if (
                west <= message["lon"] <= east
                and south <= message["lat"] <= north
                and words.issuperset(row["keywords"])
            ):
                found.add((message["id"], row["subscription_id"]))
    return found


if __name__ == "__main__":
    sys.exit(command.main(bench))
