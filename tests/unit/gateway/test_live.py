"""What is drawn while a run starts and goes on: it fits a terminal of 80 columns, and its figures are real."""

import dataclasses
import io
import re

import numpy as np
import pytest
from rich.console import Console
from rich.live import Live
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from gateway.shell.progress import ProgressDisplay, component_table, live_run, short
from gateway.shell.terminal import Terminal
from tests.support.example_topologies import word_count
from topology.core.executors.local import run_local
from topology.core.metrics import BUSY_SPAN_S, Meter, TaskStatus
from topology.warmup import Warmed

LARGEST = {
    name: {
        "tasks": 1024,
        "received": 10**12 - 1,
        "emitted": 999_949,
        "counters": {"scanned": 10**14, "verified": 123_456, "matched": 99_950},
        "queue_depth": 10**6,
        "busy_share": 1.0,
    }
    for name in ("messages", "subscriptions", "distribution", "query", "tuples", "aggregation", "delivery")
}


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (12_345, "12.3k"), (99_949, "99.9k"), (99_950, "100k"), (999_499, "999k"),
     (999_500, "1.0M"), (1_234_567, "1.2M"), (10**9, "1.0G"), (123 * 10**15, "123P"), (None, None)],
)  # fmt: skip
def test_short_counts_have_at_most_five_characters(count, shown):
    assert short(count) == shown


def test_short_any_count_is_within_five_percent():
    for count in np.random.default_rng(1).integers(1, 2**50, 2000).tolist():
        text = short(count >> count % 50)
        scale = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.get(text[-1], 1)
        assert len(text) <= 5
        assert float(text.rstrip("kMGTP")) * scale == pytest.approx(count >> count % 50, rel=0.05)


def test_component_table_of_the_largest_figures_fits_80_columns():
    out = io.StringIO()
    Console(file=out, width=80).print(component_table(LARGEST))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out.getvalue()
    (end,) = (place for place, line in enumerate(lines) if line.startswith("tasks: count"))
    assert len([line for line in lines[:end] if line.strip()]) == 2 + len(LARGEST), "no row takes two lines"
    assert all("100%" in line for line in lines if "1.0k" in line)


def drawn(run):
    """What the screen showed while `run` had a `ProgressDisplay` to call."""
    out = io.StringIO()
    progress = Progress(TextColumn("{task.description}"), MofNCompleteColumn())
    with Live(progress, console=Console(file=out, width=80, force_terminal=True), auto_refresh=False) as live:
        drawing = ProgressDisplay(live, progress, 12)
        seen = []
        starting = drawing.starting

        def tell(stage):
            starting(stage)
            live.refresh()
            seen.append(stage)

        drawing.starting = tell
        run(drawing)
        live.refresh()
    return seen, out.getvalue()


def test_drawing_says_what_the_start_waits_for_and_then_how_far_the_run_is():
    seen, screen = drawn(lambda drawing: run_local(word_count(batches=12), on_progress=drawing))
    assert seen == ["the kernels", "the subscriptions"]
    assert "waiting for the kernels" in screen and "0 in flight" in screen and "12/12" in screen
    assert "component" in screen and "split" in screen


def test_piped_run_says_in_lines_how_far_the_compiler_is_and_how_far_it_is_itself(capsys):
    plan = dataclasses.replace(word_count(batches=12), warm_up=compiling)
    with live_run(Terminal(in_lines=True), 12) as on_progress:
        run_local(plan, on_progress=on_progress)
    printed = capsys.readouterr()
    told = [line.partition(" s  ")[2] for line in printed.err.splitlines()]
    assert told[:4] == [
        "run: waiting for the kernels",
        "run: compiling kernels: 1 of 2 (router)",
        "run: compiling kernels: 2 of 2 (topk)",
        "run: waiting for the subscriptions",
    ]
    assert re.fullmatch(r"run: \d+ of 12 batches done", told[-1]) and printed.out == ""


@pytest.mark.parametrize(("compiled", "lines"), [(3, 1), (0, 0)])
def test_piped_run_that_is_not_a_demo_says_that_it_compiles_and_nothing_else(capsys, compiled, lines):
    plan = dataclasses.replace(word_count(), warm_up=lambda: iter([Warmed(1, 1, compiled, "topk")]))
    with live_run(Terminal(as_json=True), None) as on_progress:
        run_local(plan, on_progress=on_progress)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == lines and all("compiling kernels: 1 of 1 (topk)" in line for line in told)


def test_drawing_says_how_many_kernels_are_ready():
    plan = dataclasses.replace(word_count(), warm_up=compiling)
    shown = []

    def run(drawing):
        warmed = drawing.warmed

        def tell(so_far):
            warmed(so_far)
            shown.append(drawing._progress.tasks[0].description)

        drawing.warmed = tell
        run_local(plan, on_progress=drawing)

    drawn(run)
    assert shown == ["compiling kernels: 1 of 2 (router)", "compiling kernels: 2 of 2 (topk)"]


def compiling():
    """Stands for a warm-up that has something to compile."""
    yield Warmed(1, 2, 6, "router")
    yield Warmed(2, 2, 240, "topk")


def status(address, busy_s, tasks):
    busy = {"words": int(busy_s * 1e9)}
    nothing: dict = {}
    return TaskStatus(
        address,
        False,
        "",
        0,
        0,
        np.zeros(tasks, np.int64),
        nothing,
        nothing,
        nothing,
        nothing,
        busy,
        nothing,
        None,
    )


def test_busy_share_of_work_that_takes_longer_than_a_snapshot_is_not_zero():
    """Work counts when it is done: a task that ends a second's work every two seconds is at work half of the time."""
    plan = word_count()
    meter, tasks, shares = Meter(plan), len(plan.tasks), []
    for step in range(1, 121):
        now_s = step / 4
        done = float(now_s // 2)
        snapshot = meter.snapshot([status(address, done, tasks) for address in range(tasks)], now_s)
        if now_s > BUSY_SPAN_S:
            shares += [part.busy_share for part in snapshot.components.values()]
    assert min(shares) >= 0.35 and max(shares) <= 0.65
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)
