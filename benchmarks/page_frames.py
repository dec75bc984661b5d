"""Frames that the page of `skyray serve` draws beside 10,000 subscriptions, while updates come and while none do.

Chromium of the machine, without a screen; where it has no graphics card, WebGL is drawn by software. The page counts
its own frames: `frames` is how many it drew a second, `p99_ms` and `longest_ms` are from one to the next, `late` is the
share that came after more than 50 ms, `long_tasks` are those of the page's thread that took so long, `scripts` is the
share of its time in scripts. In turns: `quiet`, with the same page and no updates, says what the machine can draw. What
the page has received is compared with what each message had to reach.
"""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from benchmarks import command
from benchmarks.command import verdict
from benchmarks.stopwatch import in_turns, medians
from tests.support.browsing import Visit, chromium, visit
from tests.support.serving import NDJSON, Served, lines_of

#: Subscriptions that a message reaches, and words by which they are reached: each has as many.
_REACHED, _WORDS = 10, 50
#: Messages of a request at most, and seconds that the page gets for the last updates.
_REQUESTS_A_SECOND, _PATIENCE_S = 20, 60
#: A frame that comes later is seen to stutter.
_LATE_MS = 50.0
_FIGURES = ("frames", "p50_ms", "p99_ms", "longest_ms", "late", "long_tasks", "scripts", "updates_a_second")
_WATCH = """() => {
  globalThis.watched = {frames: [], tasks: 0, updates: []};
  const tick = (now) => { watched.frames.push(now); requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
  const tasks = new PerformanceObserver((found) => { watched.tasks += found.getEntries().length; });
  tasks.observe({entryTypes: ['longtask']});
  const { handlers } = skyray.stream, { onUpdate } = handlers;
  handlers.onUpdate = (update) => {
    watched.updates.push([update.message_id, update.subscription_id]);
    onUpdate(update);
  };
}"""
_TAKE = """() => {
  const found = {...watched};
  Object.assign(watched, {frames: [], tasks: 0, updates: []});
  return found;
}"""
#: What draws the map.
_RENDERER = """() => {
  const gl = document.createElement('canvas').getContext('webgl2');
  const named = gl?.getExtension('WEBGL_debug_renderer_info');
  return gl ? String(gl.getParameter(named ? named.UNMASKED_RENDERER_WEBGL : gl.RENDERER)) : 'none';
}"""


def bench(
    subscriptions: Annotated[int, "beside those that are reached, with outlines on the map"] = 10_000,
    rate: Annotated[float, "updates a second"] = 500.0,
    seconds: Annotated[float, "of each turn"] = 20.0,
    rounds: Annotated[int, "turns of each"] = 3,
    width: Annotated[int, "of the window, in pixels"] = 1280,
    height: Annotated[int, "of the window, in pixels"] = 800,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Medians over turns, with updates and without, the turns, and whether every update came once."""
    with (
        tempfile.TemporaryDirectory(prefix="skyray-page-") as scratch,
        Served(Path(scratch) / "out", "--window", "count:1000") as served,
        chromium() as browser,
        visit(browser, served.port, width, height) as seen,
    ):
        _subscribe(served, subscriptions)
        seen.open()
        seen.page.click("#tab-active")
        seen.page.wait_for_selector("#active li")
        seen.page.evaluate(_WATCH)
        _turn(served, seen, "warm-up", rate, 2.0)

        def one(load: str, number: int) -> dict[str, Any]:
            row = _turn(served, seen, f"{load} {number}", rate if load == "updates" else 0.0, seconds)
            tell(f"turn {number + 1} of {rounds}, {load}: {row}")
            return row

        every = in_turns(["quiet", "updates"], rounds, one)
        renderer, complaints = seen.page.evaluate(_RENDERER), list(seen.complaints)
        version = browser.version
    loads = {name: medians([{each: row[each] for each in _FIGURES} for row in rows]) for name, rows in every.items()}
    rows = [row for turns in every.values() for row in turns]
    same = not complaints and all(row["missing"] == row["extra"] == row["repeated"] == 0 for row in rows)
    workload = {"subscriptions": subscriptions, "rate": rate, "seconds": seconds, "window": [width, height]}
    return {
        "workload": workload | {"browser": version, "renderer": renderer},
        "measured": {name: loads[name] | {"turns": every[name]} for name in loads},
        "complaints": complaints,
        **verdict(same, sum(row["updates"] for row in rows), _REACHED * _WORDS),
    }


def _subscribe(served: Served, count: int) -> None:
    """Subscriptions that nothing reaches, all over the earth, and those that messages reach."""
    areas = (
        {"subscription_id": f"area-{number}", "kind": "boolean", "keywords": f"w{number % 50}"}
        | {"region": [number % 340 - 170, number % 110 - 60, number % 340 - 168, number % 110 - 58]}
        for number in range(count)
    )
    reached = (
        {"subscription_id": f"flood-{number}", "kind": "boolean", "keywords": f"flood{number % _WORDS}"}
        | {"region": [-180, -80, 180, 80]}
        for number in range(_REACHED * _WORDS)
    )
    answer = served.call("POST", "/v1/subscriptions", lines_of([*areas, *reached]), **NDJSON)
    if {one["status"] for one in answer.lines} != {"created"}:
        raise RuntimeError(f"subscriptions were refused: {answer.lines[:3]}")


def _turn(served: Served, seen: Visit, name: str, rate: float, seconds: float) -> dict[str, Any]:
    """Publish at a rate while the page counts, wait until it has all, and compare."""
    before = seen.metrics()
    seen.page.evaluate(_TAKE)
    began_s = time.monotonic()
    messages = round(rate / _REACHED * seconds)
    for request in range(round(seconds * _REQUESTS_A_SECOND)):
        first, end = (round(messages * (request + more) / seconds / _REQUESTS_A_SECOND) for more in (0, 1))
        if end > first:
            served.call("POST", "/v1/messages", [_message(name, number) for number in range(first, end)])
        due_s = began_s + (request + 1) / _REQUESTS_A_SECOND
        seen.page.wait_for_timeout(1e3 * max(0.0, due_s - time.monotonic()))
    wanted = Counter(
        (f"{name} {number}", f"flood-{number % _WORDS + _WORDS * place}")
        for number in range(messages)
        for place in range(_REACHED)
    )
    seen.until(lambda: seen.page.evaluate("watched.updates.length") >= wanted.total(), _PATIENCE_S)
    spent_s, after, found = time.monotonic() - began_s, seen.metrics(), seen.page.evaluate(_TAKE)
    came = Counter(map(tuple, found["updates"]))
    between_ms = np.diff(found["frames"])
    return {
        "frames": len(found["frames"]) / spent_s,
        "p50_ms": float(np.quantile(between_ms, 0.5)),
        "p99_ms": float(np.quantile(between_ms, 0.99)),
        "longest_ms": float(between_ms.max()),
        "late": float((between_ms > _LATE_MS).mean()),
        "long_tasks": found["tasks"],
        "scripts": (after["ScriptDuration"] - before["ScriptDuration"]) / spent_s,
        "updates_a_second": wanted.total() / spent_s,
        "updates": wanted.total(),
        "missing": (wanted - came).total(),
        "extra": len(set(came) - set(wanted)),
        "repeated": came.total() - len(came),
    }


def _message(name: str, number: int) -> dict[str, Any]:
    place = {"lon": number * 7 % 300 - 150, "lat": number * 11 % 120 - 60}
    return {"id": f"{name} {number}", "text": f"flood{number % _WORDS} of {name}", **place}


if __name__ == "__main__":
    sys.exit(command.main(bench))
