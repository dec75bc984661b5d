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

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import thresholds as threshold_bench
from benchmarks.adversarial import STREAMS, make_stream
from benchmarks.cases import make_case
from benchmarks.figures.sweeps import Tell, beside, draw, sweep
from benchmarks.harness import NO_REMOVALS, Bench
from benchmarks.workload import PLAIN, WORLD, TopkRecipe
from distribution.router import Router
from distribution.routers import PLACING, ROUTERS, router_named
from matching.errors import ConfigError
from matching.kind import Site, Thresholds
from matching.kinds import KINDS
from matching.model import MessageBatch
from matching.topk.engine import TopkEngine
from matching.topk.engines.skype import PAPER, Pruning, Skype
from matching.topk.replicas import Replicas
from matching.window import Window

_TOPK = KINDS.named("topk")
_SIZES = (100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000)
_ENGINES = ("skype", "l2_scan", "ciq", "block_inverted_file", "inverted_file")
_ROUNDS = 3
_MESSAGES = 6_000
#: Of streams: long enough for whole batches, so that no engine tells changes oftener than another.
_MOST_OF_STREAM_S = 15.0
_BOLTS = (4, 8, 16, 32, 64)
#: Routers that differ in what they send: those that place by cost send everything to all, as the first one does.
_SENDING = [name for name in ROUTERS if name not in PLACING]


def figure(
    name: str,
    out: Path,
    subscriptions: int = 100_000,
    window: int | None = None,
    messages: int | None = None,
    engines: Sequence[str] | None = None,
    seed: int = 0,
    messages_from: str | None = None,
    on_progress: Tell | None = None,
) -> dict[str, Any]:
    """Measure and draw a figure; writes `topk-NAME.json` and `topk-NAME.png` into `out`.

    Raises
    ------
    ConfigError
        For a name nobody knows, messages to resample, which no figure of this kind does, or if matplotlib is not
        installed.
    """
    if messages_from is not None:
        raise ConfigError("figures of topk are of synthetic messages: leave --messages-from out")
    chosen = tuple(engines or _ENGINES)
    return draw(
        _TOPK, FIGURES, name, out, chosen, on_progress,
        lambda measure, tell: measure(subscriptions, window or 100_000, messages or _MESSAGES, chosen, seed, tell),
    )  # fmt: skip


def _bench(subscriptions, messages, window, seed, recipe=PLAIN, kind=_TOPK) -> Bench:
    case = make_case(kind, subscriptions, messages * _ROUNDS, window, _ROUNDS, seed, recipe=recipe)
    return Bench(case, _ROUNDS)


def _subscriptions(subscriptions, window, messages, engines, seed, tell):
    sizes = [size for size in _SIZES if size <= max(subscriptions, _SIZES[1])]
    return sweep(
        "subscriptions", sizes, lambda n: _bench(n, messages, window, seed), engines, tell, log=True
    )  # fmt: skip


def _by_recipe(label: str, values: Sequence[Any], recipe: Callable[[Any], TopkRecipe]):
    def measure(subscriptions, window, messages, engines, seed, tell):
        return sweep(
            label, values, lambda v: _bench(subscriptions, messages, window, seed, recipe(v)), engines, tell, log=False
        )  # fmt: skip

    return measure


def _window(subscriptions, window, messages, engines, seed, tell):
    sizes = [size for size in (10_000, 30_000, 100_000, 300_000, 1_000_000) if size <= max(window, 100_000)]
    return sweep(
        "messages in the window", sizes, lambda n: _bench(subscriptions, messages, n, seed), engines, tell, log=True
    )  # fmt: skip


def _thresholds(subscriptions, window, messages, engines, seed, tell):
    report = threshold_bench.bench(subscriptions, window, 3, seed=seed, engine=engines[0], on_progress=tell)
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


def _pruning(subscriptions, window, messages, engines, seed, tell):
    rules = [name for name, value in Pruning()._asdict().items() if value is True]
    variants = {"all": Pruning(), **{f"no {rule}": Pruning()._replace(**{rule: False}) for rule in rules}}
    variants["paper's rules"] = PAPER
    engines = {name: partial(Skype, pruning=pruning) for name, pruning in variants.items()}
    load = _bench(subscriptions, messages, window, seed, kind=replace(_TOPK, engines=engines))
    built = {name: load.build(name) for name in variants}
    measured = beside(load, built, tell)
    for name, running in built.items():
        index = running.room.engine
        assert isinstance(index, Skype)
        measured[name]["counters"] = index.counters()
    panels = [
        {"y_label": "us a message", "log": (False, True), "bars": _column(measured, "us_per_message")},
        {
            "y_label": "postings scanned a message",
            "log": (False, True),
            "bars": _column(measured, "scanned_per_message"),
        },
        {
            "y_label": "pairs verified a message",
            "log": (False, True),
            "bars": _column(measured, "verified_per_message"),
        },
    ]
    exact = all(row["exact"] for row in measured.values())
    return {"x_label": "rules", "x": list(variants), "panels": panels, "exact": exact,
            "rows": {"workload": load.workload, "variants": measured}}  # fmt: skip


def _column(measured: dict[str, dict[str, Any]], key: str) -> dict[str, float]:
    return {name: row[key] for name, row in measured.items()}


def _routers(subscriptions, window, messages, engines, seed, tell):
    """Every query bolt's share of the work, one after the other in this process; the busiest one sets the pace."""
    load = _bench(subscriptions, messages, window, seed)
    table, least = load.case.table, load.filled(engines[0]).rows["threshold"]
    stream = load.messages_after(messages)
    sample = np.random.default_rng(seed).integers(0, len(table), 20_000)
    exact = load.check(load.build(engines[0]))["exact"]
    rows, wanted = [], _pairs_without_router(table, least, stream, engines[0])
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
    return {"x_label": "query bolts", "x": list(_BOLTS), "panels": panels, "exact": exact,
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
    for _ in range(_ROUNDS):
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


def _streams(subscriptions, window, messages, engines, seed, tell):
    size = min(subscriptions, 20_000)
    measured: dict[str, dict[str, Any]] = {}
    exact = True
    for name in STREAMS:
        tell(f"stream {name}")
        case = make_stream(name, size, size, messages * _ROUNDS, seed)
        load = Bench(case, _ROUNDS)
        built = {engine: load.build(engine) for engine in engines}
        measured[name] = beside(load, built, tell, _MOST_OF_STREAM_S)
        exact = exact and all(row["exact"] for row in measured[name].values())
    series = {engine: [measured[name][engine]["us_per_message"] for name in STREAMS] for engine in engines}
    panel = {"y_label": "us a message", "log": (False, True), "groups": series}
    return {"x_label": "stream", "x": list(STREAMS), "panels": [panel], "exact": exact, "rows": measured}


FIGURES: dict[str, Callable[..., dict[str, Any]]] = {
    "subscriptions": _subscriptions,
    "k": _by_recipe("k", (5, 10, 20, 50, 100), lambda k: TopkRecipe(k=(k, k))),
    "alpha": _by_recipe(
        "alpha", (0.1, 0.3, 0.5, 0.7, 0.9, "uniform"), lambda a: PLAIN if a == "uniform" else TopkRecipe(alpha=(a, a))
    ),
    "keywords": _by_recipe("keywords", (1, 2, 3, 4, 5), lambda n: TopkRecipe(keywords=(n, n))),
    "window": _window,
    "thresholds": _thresholds,
    "routers": _routers,
    "pruning": _pruning,
    "streams": _streams,
}
