"""Whether memory stays flat behind a slow bolt: 1,000,000 generated messages through the topology on Ray.

    python -m benchmarks.profiles.memory [--messages N] [--plot FILE]

The query bolt is slowed down on purpose; credits must then slow the source, and no actor may grow. The resident memory
of every actor is sampled while the run lasts. Growth is the median of the last quarter of the samples over that of the
second quarter, after subscriptions are in and the window is full. Exit code 1 if an actor grew by more than a tenth.
"""

import argparse
import json
import os
import sys
import threading
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.topology_cost import TableSpout
from benchmarks.workload import WORLD, boolean_subscriptions, make_messages, topk_subscriptions
from bolts.delivery import DeliveryBolt
from bolts.query import QueryBolt
from distribution.hashing import HashingRouter
from matching.model import SubscriptionTable, concatenate
from matching.window import Window
from spouts.generated import GeneratedSpout, Recipe
from topology import wiring
from topology.core.component import Delivery
from topology.core.runner import run_ray

_ALLOWED_GROWTH = 1.10
#: How long the query bolt pauses at each batch.
_PAUSE_S = 0.05
_BOOLEAN, _TOPK = 10_000, 2_000


class SlowQueryBolt(QueryBolt):
    """A query bolt that takes its time over every batch."""

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "whole":
            threading.Event().wait(_PAUSE_S)
        super().execute(delivery)


def sample_actors(root: psutil.Process, samples: dict[int, list[int]]) -> None:
    """Add the resident bytes of every actor process below `root`."""
    for process in root.children(recursive=True):
        try:
            if "_WorkerActor" in " ".join(process.cmdline()):
                samples.setdefault(process.pid, []).append(process.memory_info().rss)
        except psutil.NoSuchProcess:
            continue


def _subscriptions() -> SubscriptionTable:
    """Some of two kinds, one with a window to ask."""
    made = make_messages(20_000, 1)
    both = concatenate([boolean_subscriptions(made, _BOOLEAN, 1), topk_subscriptions(made, _TOPK, 1)])
    columns: Any = both._asdict() | {"number": np.arange(len(both))}
    return SubscriptionTable(**columns)


def bench(messages: int, batch: int = 5000, credits: int = 4) -> dict[str, Any]:
    """Run, sampling memory; returns samples and growth of each actor, and the most batches that were in flight."""
    window = Window("count", 20_000)
    wiring.QueryBolt = SlowQueryBolt
    plan = wiring.wire(
        GeneratedSpout(Recipe(seed=1), window, WORLD, batch, messages),
        TableSpout(_subscriptions()),
        HashingRouter(1),
        WORLD,
        window,
        DeliveryBolt(os.devnull, window, credits, sink="count"),
        credits=credits,
    )
    root, samples = psutil.Process(), {}
    driver: list[int] = []

    def watch(_snapshot: Any) -> None:
        sample_actors(root, samples)
        driver.append(root.memory_info().rss)

    report = run_ray(plan, on_progress=watch)
    growth = {}
    for name, series in [("driver", driver), *((str(pid), series) for pid, series in samples.items())]:
        quarter = len(series) // 4
        if quarter:
            growth[name] = median(series[-quarter:]) / median(series[quarter : 2 * quarter])
    return {
        "messages": messages,
        "elapsed_s": report.elapsed_s,
        "in_flight_peak": report.in_flight_peak,
        "credits": credits,
        "growth": growth,
        "largest_growth": max(growth.values()),
        "samples_mb": {str(pid): [round(rss / 1e6, 1) for rss in series] for pid, series in samples.items()},
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Memory of every actor behind a slow query bolt.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--plot", type=Path, help="write a picture of the samples (needs matplotlib)")
    options = parser.parse_args()
    report = bench(options.messages)
    if options.plot:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4))
        axes = figure.subplots()
        for series in report["samples_mb"].values():
            axes.plot(series)
        axes.set_xlabel("sample")
        axes.set_ylabel("resident memory, MB")
        figure.savefig(options.plot)
    sys.stdout.write(json.dumps(report) + "\n")
    return 0 if report["largest_growth"] <= _ALLOWED_GROWTH and report["in_flight_peak"] <= report["credits"] else 1


if __name__ == "__main__":
    from benchmarks.profiles import memory  # actors cannot import classes of the main script

    sys.exit(memory.main())
