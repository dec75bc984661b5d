"""Progress of a running topology on the terminal: a table of components, redrawn several times a second; a summary.

The executors call back with a snapshot a few times a second. Without a terminal nothing is drawn; then plain lines say
how far the compiler is, which takes minutes the first time.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gateway.shell.terminal import Terminal, cell, console, table

HEADINGS = ("component", "tasks", "in", "out", "scanned", "verified", "matched", "queue", "busy")
#: What the figures below the headings count.
UNITS = (
    "tasks: count; in, out, queue: payloads between tasks; scanned: postings; verified, matched: pairs of message and "
    "subscription; busy: share of the time. k = 1,000, M = 1,000,000, and so on."
)
#: Seconds between two lines of a run without a terminal.
EVERY_S = 5.0
#: A thousand, a million and so on, as figures are shortened.
_SCALES = ("", "k", "M", "G", "T", "P")


class ProgressDisplay:
    """Draws what a run is at: what its start waits for, then a table of its components.

    Parameters
    ----------
    live : rich.live.Live
    progress : rich.progress.Progress
    """

    def __init__(self, live: Any, progress: Any, batches: int | None):
        self._live = live
        self._progress = progress
        self._batches = batches
        self._task = progress.add_task("reading the vocabulary", total=None)

    def starting(self, stage: str) -> None:
        """The start waits for this."""
        self._progress.update(self._task, description=f"waiting for {stage}")

    def warmed(self, warmed: Any) -> None:
        """So many kernels are ready (`topology.warmup.Warmed`)."""
        self._progress.update(self._task, description=_kernels(warmed))

    def __call__(self, snapshot: Any) -> None:
        from rich.console import Group

        in_flight = f"{snapshot.in_flight} in flight"
        self._progress.update(self._task, total=self._batches, completed=snapshot.acknowledged, description=in_flight)
        self._live.update(Group(component_table(snapshot.as_dict()["components"]), self._progress))


class ProgressLines:
    """Reports a run without a terminal: plain lines, seldom enough for a log.

    Parameters
    ----------
    terminal : Terminal
        Without `in_lines` only compiling is worth a line: it takes minutes, and only the first time.
    """

    def __init__(self, terminal: Terminal, batches: int | None):
        self._terminal = terminal
        self._of = "" if batches is None else f" of {batches:,}"
        self._next_s = 0.0

    def starting(self, stage: str) -> None:
        """The start waits for this."""
        if self._terminal.in_lines:
            self._terminal.line(f"run: waiting for {stage}")

    def warmed(self, warmed: Any) -> None:
        """Kernels that are ready, without those of the cache."""
        if warmed.compiled:
            self._terminal.line(f"run: {_kernels(warmed)}")

    def __call__(self, snapshot: Any) -> None:
        if self._terminal.in_lines and snapshot.elapsed_s >= self._next_s:
            self._next_s = snapshot.elapsed_s + EVERY_S
            self._terminal.line(f"run: {snapshot.acknowledged:,}{self._of} batches done")


def _kernels(warmed: Any) -> str:
    doing = "compiling" if warmed.compiled else "loading"
    return f"{doing} kernels: {warmed.done} of {warmed.of} ({warmed.part})"


@contextmanager
def live_run(terminal: Terminal, batches: int | None) -> Iterator[Callable[[Any], None]]:
    """Show snapshots while the block runs; yields the callback, which draws on a terminal (`ProgressDisplay`,
    `ProgressLines`).

    Parameters
    ----------
    terminal : Terminal
        Decides whether to draw.
    batches : int, optional
        How many batches the stream has, if that is known: the bar's length.
    """
    if not terminal.watched:
        yield ProgressLines(terminal, batches)
        return
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn("batches")
    progress = Progress(*columns, TimeElapsedColumn())
    with Live(progress, console=console(errors=True), transient=True, refresh_per_second=4) as live:
        yield ProgressDisplay(live, progress, batches)


def component_table(components: Mapping[str, Mapping[str, Any]]):
    """One row a component: payloads in and out, work done, payloads waiting, share of the time at work; units below it.

    Parameters
    ----------
    components : mapping
        `components` of a snapshot or of a run report as plain values (`topology.core.metrics`); in a report the queue
        is the longest there was.
    """
    rows = []
    for name, part in components.items():
        counters = part.get("counters", {})
        work = [counters.get(counter) for counter in ("scanned", "verified", "matched")]
        tasks = part.get("tasks")
        busy = part.get("busy_share")
        counts = (
            len(tasks) if isinstance(tasks, list | tuple) else tasks,
            part["received"] if "received" in part else sum(part.get("incoming", {}).values()),
            part["emitted"] if "emitted" in part else sum(part.get("outgoing", {}).values()),
            *work,
            part.get("queue_depth", part.get("queue_depth_peak")),
        )
        rows.append((name, *map(short, counts), None if busy is None else f"{busy:.0%}"))
    drawn = table(HEADINGS, rows, right=range(1, len(HEADINGS)), gap=2)
    drawn.caption, drawn.caption_justify = UNITS, "left"
    return drawn


def short(count: int | None) -> str | None:
    """A count in at most five characters: 999, 12.3k, 123k, 1.2M."""
    if count is None:
        return None
    value, scale = float(count), 0
    while value >= 999.5 and scale < len(_SCALES) - 1:
        value, scale = value / 1000, scale + 1
    return f"{value:.0f}{_SCALES[scale]}" if not scale or value >= 99.95 else f"{value:.1f}{_SCALES[scale]}"


def print_summary(out: Any, report: Mapping[str, Any]) -> None:
    """The end of a run for people: headline figures, then the components.

    Latency is that of a pace: of messages that are there from the start it is but how long they waited for each other.
    """
    figures = headline(report)
    pairs = [
        ("messages", figures["messages"]),
        ("subscriptions", figures["subscriptions"]),
        ("rejected subscriptions", figures["rejected_subscriptions"] or None),
        ("updates", {change: count for change, count in (figures["updates"] or {}).items() if count}),
        ("throughput", _throughput(figures)),
        (f"latency at {_messages_per_s(figures['rate'])}", _latency(figures)),
        ("copies of a subscription", figures["replication_ratio"]),
        ("query bolts for a message", figures["messages_sent_per_message"]),
        ("lost by signatures", lost_by(report.get("routing", {}).get("signatures", {}))),
        ("digest", report.get("digest")),
        ("what would help", report.get("advice")),
    ]
    pairs = [(label, value) for label, value in pairs if value is not None]
    wide = max(len(label) for label, _ in pairs)
    for label, value in pairs:
        out.print(f"{label:<{wide}}  {cell(value)}", markup=False)
    out.print(component_table(_topology(report).get("components", {})))


def lost_by(signatures: Mapping[str, Any]) -> str | None:
    """What signatures that lose messages have kept back, and what of it mattered; None where none do."""
    if signatures.get("mode") != "approximate":
        return None
    pairs = ", ".join(f"{count:,} pairs of {kind}" for kind, count in signatures["lost_pairs"].items())
    return (
        f"{signatures['lost_share']:.1%} of the messages that mattered ({signatures['lost']:,} of "
        f"{signatures['kept_back']:,} kept back{': ' + pairs if pairs else ''})"
    )


def headline(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a person wants to know first, from the report of `topology.running.run`; None where it is not known.

    Rates are over the time from the first batch to the last end, without the start of processes.
    """
    spouts, delivery = report.get("spouts", {}), report.get("delivery", {})
    run = _topology(report)
    messages = spouts.get("messages", {}).get("messages")
    updates = delivery.get("updates")
    elapsed_s = run.get("elapsed_s")
    routing = report.get("routing", {})
    return {
        "messages": messages,
        "subscriptions": spouts.get("subscriptions", {}).get("accepted"),
        "rejected_subscriptions": spouts.get("subscriptions", {}).get("rejected"),
        "updates": updates,
        "elapsed_s": elapsed_s,
        "rate": report.get("settings", {}).get("rate"),
        "messages_per_s": _rate(messages, elapsed_s),
        "updates_per_s": _rate(sum(updates.values()) if updates else None, elapsed_s),
        "latency": run.get("components", {}).get("delivery", {}).get("latency", {}),
        "replication_ratio": routing.get("replication_ratio"),
        "messages_sent_per_message": routing.get("messages_sent_per_message"),
    }


def _topology(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The executor's part of the report (`topology.core.metrics.RunReport`)."""
    return report.get("topology", {})


def _rate(count: int | None, seconds: float | None) -> float | None:
    return count / seconds if count is not None and seconds else None


def _throughput(figures: Mapping[str, Any]) -> str | None:
    if figures["messages_per_s"] is None:
        return None
    updates = figures["updates_per_s"]
    return _messages_per_s(figures["messages_per_s"]) + (f", {updates:,.0f} updates/s" if updates is not None else "")


def _messages_per_s(rate: float | None) -> str:
    return "" if rate is None else f"{cell(rate)} messages/s"


def _latency(figures: Mapping[str, Any]) -> str | None:
    """Latency from publishing a batch to its updates, where messages come at a rate."""
    if figures["rate"] is None:
        return None
    latency, named = figures["latency"], (("p50", "p50_s"), ("p99", "p99_s"), ("longest", "max_s"))
    known = [f"{label} {1000 * latency[key]:,.0f} ms" for label, key in named if latency.get(key) is not None]
    return ", ".join(known) or None
