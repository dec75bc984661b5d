"""What a person sees of a running topology: a table of components that is drawn again and again, and its summary.

The executors call back with a snapshot a few times a second. Without a person who watches nothing is drawn. Read on
in `topology.metrics`, where the figures come from.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gateway.terminal import Terminal, cell, console, table

HEADINGS = ("component", "tasks", "in", "out", "scanned", "verified", "matched", "queue", "busy")


@contextmanager
def live_run(terminal: Terminal, batches: int | None) -> Iterator[Callable[[Any], None] | None]:
    """Draw snapshots while the block runs; yields the callback, or None if nobody watches.

    Parameters
    ----------
    terminal : Terminal
        Decides whether there is somebody.
    batches : int, optional
        How many batches the stream has, if that is known: the bar's length.
    """
    if not terminal.watched:
        yield None
        return
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("batches"), TimeElapsedColumn()
    )
    task = progress.add_task("starting", total=batches)
    with Live(progress, console=console(errors=True), transient=True, refresh_per_second=4) as live:

        def show(snapshot: Any) -> None:
            in_flight = f"{snapshot.in_flight} in flight"
            progress.update(task, completed=snapshot.acknowledged, description=in_flight)
            live.update(Group(component_table(snapshot.as_dict()["components"]), progress))

        yield show


def component_table(components: Mapping[str, Mapping[str, Any]]):
    """One row a component: payloads in and out, work done, payloads waiting, share of the time at work.

    Parameters
    ----------
    components : mapping
        `components` of a snapshot or of a run report as plain values (`topology.metrics`); in a report the queue is
        the longest there was.
    """
    rows = []
    for name, part in components.items():
        counters = part.get("counters", {})
        work = [counters.get(counter) for counter in ("scanned", "verified", "matched")]
        tasks = part.get("tasks")
        busy = part.get("busy_share")
        rows.append(
            (
                name,
                len(tasks) if isinstance(tasks, list | tuple) else tasks,
                part["received"] if "received" in part else sum(part.get("incoming", {}).values()),
                part["emitted"] if "emitted" in part else sum(part.get("outgoing", {}).values()),
                *work,
                part.get("queue_depth", part.get("queue_depth_peak")),
                None if busy is None else f"{busy:.0%}",
            )
        )
    return table(HEADINGS, rows, right=range(1, len(HEADINGS)))


def print_summary(out: Any, report: Mapping[str, Any]) -> None:
    """The end of a run for people: headline figures, then the components."""
    pairs = [(label, value) for label, value in headline(report) if value is not None]
    wide = max((len(label) for label, _ in pairs), default=0)
    for label, value in pairs:
        out.print(f"{label:<{wide}}  {cell(value)}")
    components = report.get("components")
    if components:
        out.print(component_table(components))


def headline(report: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What a person wants to know first."""
    latency = report.get("latency_s") or {}
    quantiles = [f"{name} {1000 * latency[name]:,.0f} ms" for name in ("p50", "p99") if latency.get(name) is not None]
    return [
        ("messages", report.get("messages")),
        ("subscriptions", report.get("subscriptions")),
        ("rejected subscriptions", report.get("rejected_subscriptions")),
        ("updates", report.get("updates")),
        ("messages/s", report.get("messages_per_s")),
        ("updates/s", report.get("updates_per_s")),
        ("latency", ", ".join(quantiles) or None),
        ("stream time", f"{report['stream_s']:.1f} s" if report.get("stream_s") is not None else None),
        ("digest", report.get("digest")),
        ("output", report.get("out")),
    ]
