"""Figures of the kind the papers show, drawn from this machine: `skyray bench topk --figure NAME`.

    subscriptions   time of a message against the number of subscriptions (up to --subscriptions)
    k, alpha, keywords, window     time of a message against one property of the workload
    thresholds      refills a message, buffer size and time of the threshold rules
    routers         throughput, replication and communication at 4 to 64 simulated query bolts
    pruning         what each rule of engine `skype` earns, by leaving it out
    streams         adversarial streams: does every engine stay exact, and how fast is it

Each checks answers against the oracle before it measures, takes the engines in turns and reports medians. A figure is
written as JSON and as PNG. Read on in `benchmarks.harness`.
"""

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import thresholds as threshold_bench
from benchmarks.adversarial import STREAMS, make_stream
from benchmarks.figures.sweeps import Asked, Page, Report, Sweep, Variants, all_exact, beside, column, up_to
from benchmarks.harness import NO_REMOVALS, Bench
from benchmarks.workload import PLAIN, WORLD, TopkRecipe
from distribution.router import Router
from distribution.routers import PLACING, ROUTERS, router_named
from matching.kind import Site, Thresholds
from matching.kinds import KINDS
from matching.model import MessageBatch
from matching.topk.engine import TopkEngine
from matching.topk.engines.skype import PAPER, Pruning, Skype
from matching.topk.replicas import Replicas
from matching.window import Window

_TOPK = KINDS.named("topk")
_SIZES = (100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000)
_REPEATS = 3
#: Of streams: long enough for whole batches, so that no engine tells changes oftener than another.
_MOST_OF_STREAM_S = 15.0
_BOLTS = (4, 8, 16, 32, 64)
#: Routers that differ in what they send: those that place by cost send everything to all, as the first one does.
_SENDING = [name for name in ROUTERS if name not in PLACING]


def _thresholds(asked: Asked) -> Report:
    window = asked.window or 0
    report = threshold_bench.bench(
        asked.subscriptions, window, 3, seed=asked.seed, engine=asked.engines[0], on_progress=asked.tell
    )  # fmt: skip
    names = [result["rule"] for result in report["results"]]
    wanted = {
        "us a message": "us_per_message",
        "refills a message": "refills_per_message",
        "entries a buffer": "entries_per_buffer",
    }
    panels = [
        {"y_label": label, "log": (False, False), "bars": {r["rule"]: r[key] for r in report["results"]}}
        for label, key in wanted.items()
    ]
    exact = report["same_updates"] and all(result["exact"] for result in report["results"])
    return {"x_label": "threshold rule", "x": names, "panels": panels, "exact": exact, "rows": report}


def _pruning() -> dict[str, Any]:
    """Engine `skype` with all rules, without each of them, and with the paper's alone."""
    rules = [name for name, value in Pruning()._asdict().items() if value is True]
    ways = {"all": Pruning(), **{f"no {rule}": Pruning()._replace(**{rule: False}) for rule in rules}}
    return {name: partial(Skype, pruning=pruning) for name, pruning in (ways | {"paper's rules": PAPER}).items()}


def _routers(asked: Asked) -> Report:
    """Every query bolt's share of the work, one after the other in this process; the busiest one sets the pace."""
    load, engines, tell = asked.bench(), asked.engines, asked.tell
    table, least = load.case.table, load.filled(engines[0]).rows["threshold"]
    stream = load.messages_after(asked.messages or 0)
    sample = np.random.default_rng(asked.seed).integers(0, len(table), 20_000)
    checked = load.check(load.build(engines[0]))
    exact, rows, wanted = checked["exact"], [], _pairs_without_router(table, least, stream, engines[0])
    for tasks in _BOLTS:
        for name in _SENDING:
            router = router_named(name, tasks, WORLD, lambda: (table.x[sample], table.y[sample]))
            row = _simulate(router, table, least, stream, engines[0])
            exact = np.array_equal(row.pop("pairs"), wanted) and exact
            rows.append({"router": name, "query_bolts": tasks, **row})
            tell(
                f"{name}, {tasks} query bolts: {row['messages_per_s']:,.0f} messages/s, "
                f"{row['replication']:.2f} copies, {row['sent_per_message']:.2f} sent a message"
            )
    labels = {
        "messages/s (busiest bolt or router)": ("messages_per_s", True),
        "copies of a subscription": ("replication", False),
        "query bolts a message goes to": ("sent_per_message", True),
    }
    panels = [
        {
            "y_label": label,
            "log": (True, logarithmic),
            "series": {name: [row[key] for row in rows if row["router"] == name] for name in _SENDING},
        }
        for label, (key, logarithmic) in labels.items()
    ]
    return {"x_label": "query bolts", "x": list(_BOLTS), "panels": panels, **checked, "exact": exact,
            "rows": {"workload": load.workload, "simulated": rows}}  # fmt: skip


def _pairs_without_router(table, least, stream, engine: str) -> np.ndarray:
    """Every pair that one index over all subscriptions finds."""
    index = _TOPK.engine(engine)(WORLD)
    index.set_thresholds(index.insert(table), least)
    return _ordered(_all_pairs(index, stream))


def _all_pairs(index: TopkEngine, stream: MessageBatch) -> np.ndarray:
    """Subscription number and seq of every hit: int64[hits, 2]."""
    parts, row = [np.zeros((0, 2), np.int64)], 0
    while row < len(stream):
        hits = index.match(stream, row)
        parts.append(np.stack([index.subscriptions.columns.number[hits.slot], stream.seq[hits.row]], axis=1))
        row = hits.next_row
    return np.concatenate(parts)


def _ordered(pairs: np.ndarray) -> np.ndarray:
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _median_s(work: Callable[[], Any]) -> tuple[float, Any]:
    """Median seconds of a few calls, after one that is not counted: it compiles, or builds what is built on use."""
    work()
    times, result = [], None
    for _ in range(_REPEATS):
        begun = perf_counter()
        result = work()
        times.append(perf_counter() - begun)
    return median(times), result


def _simulate(router: Router, table, least, stream, engine: str) -> dict[str, Any]:
    """Route and match a stream for every task of a router; `pairs` is what they find together, repeats included."""
    version = np.zeros(len(table), np.int64)
    known = router.table()
    known.change(table, NO_REMOVALS)
    known.raise_thresholds(table.number, version, least)
    routing_s, rows = 0.0, [np.arange(len(stream))] * router.tasks
    if not known.sends_all:
        routing_s, rows = _median_s(lambda: known.route(stream))
    held = sent = 0
    busiest_s, found = 0.0, []
    for task in range(router.tasks):
        mine = np.flatnonzero(router.held_by(table, task))
        index = _TOPK.engine(engine)(WORLD)
        part = stream.take(rows[task])
        if router.replicates:
            prefix_only = getattr(router, "prefix_only", False)
            site = Site(WORLD, Window("count", 1), task, router.tasks, replicates=True, prefix_only=prefix_only)
            replicas = Replicas(index, site)
            replicas.add(table.take(mine), np.zeros(mine.size, np.int64))
            replicas.raise_thresholds(Thresholds(table.number, version, least))
        else:
            index.set_thresholds(index.insert(table.take(mine)), least[mine])
        task_s, pairs = _median_s(lambda index=index, part=part: _all_pairs(index, part))
        busiest_s = max(busiest_s, task_s)
        found.append(pairs)
        held, sent = held + len(index), sent + rows[task].size
    return {
        "messages_per_s": len(stream) / max(busiest_s, routing_s),
        "busiest_us": 1e6 * busiest_s / len(stream),
        "routing_us": 1e6 * routing_s / len(stream),
        "replication": held / len(table),
        "sent_per_message": sent / len(stream),
        "pairs": _ordered(np.concatenate(found)),
    }


def _streams(asked: Asked) -> Report:
    size, rows = min(asked.subscriptions, 20_000), []
    for name in STREAMS:
        asked.tell(f"stream {name}")
        case = make_stream(name, size, size, (asked.messages or 0) * asked.rounds, asked.seed)
        rows.append(beside(Bench(case, asked.rounds), asked.engines, asked.tell, _MOST_OF_STREAM_S))
    panel = {"y_label": "us a message", "log": (False, True), "groups": column(rows, asked.engines, "us_per_message")}
    measured = {name: row["engines"] for name, row in zip(STREAMS, rows, strict=True)}
    return {
        "x_label": "stream", "x": list(STREAMS), "panels": [panel], "exact": all_exact(rows), "rows": measured,
        "over": f"{size:,} subscriptions, as many messages in the window",
    }  # fmt: skip


_ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9, "uniform")
_WINDOWS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
_COUNTED = {
    "us a message": "us_per_message",
    "postings scanned a message": "scanned_per_message",
    "pairs verified a message": "verified_per_message",
}

PAGE = Page(
    _TOPK,
    {
        "subscriptions": Sweep("subscriptions", up_to(_SIZES, _SIZES[1]), lambda n: {"subscriptions": n}, log=True),
        "k": Sweep("k", (5, 10, 20, 50, 100), lambda k: {"recipe": TopkRecipe(k=(k, k))}),
        "alpha": Sweep("alpha", _ALPHAS, lambda a: {"recipe": PLAIN if a == "uniform" else TopkRecipe(alpha=(a, a))}),
        "keywords": Sweep("keywords", (1, 2, 3, 4, 5), lambda n: {"recipe": TopkRecipe(keywords=(n, n))}),
        "window": Sweep(
            "messages in the window",
            lambda asked: [size for size in _WINDOWS if size <= max(asked.window or 0, 100_000)],
            lambda n: {"window": n},
            log=True,
        ),
        "thresholds": _thresholds,
        "routers": _routers,
        "pruning": Variants(
            "rules", _pruning(), _COUNTED, told=lambda running: {"counters": running.room.engine.counters()}
        ),
        "streams": _streams,
    },
    engines=("skype", "l2_scan", "ciq", "block_inverted_file", "inverted_file"),
    messages=6_000,
    window=100_000,
    resampled=False,
)
