"""Figures of the windows of `skyline` subscriptions, in the shapes of the paper: `skyray bench skyline --figure NAME`.

    updates     operations and time of a message while a full window slides on, interval by interval
    space       memory against the size of the window
    queries     time of a query against the size of the window, and what it looks at
    cleaning    memory, operations and query time of the memo tree while its window slides on, by way of cleaning
    routing     which messages reach a query bolt at all (`benchmarks.figures.skyline_routing`)

Half of the messages speak of objects that move and change words, so that versions follow each other; the others stand
alone. For `cleaning` nine tenths do, of objects that stay about where they are and speak often: what has ended then
piles up in the leaves. Queries are those of `benchmarks.workload`, 0.01 % to 1 % of the world's area as in the paper.

An operation is one node of a tree or cell of a quadtree that an update reads or writes, one inverted list or count of a
term that it changes, or one entry of the memo. The paper counts operations without saying of what. Time is thread time.

All indexes get the same batches in turns, and their candidates are held against plain Python before anything is
reported. A figure is written as JSON and as PNG. Read on in `matching.skyline.windows.tree`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.figures import skyline_routing
from benchmarks.figures.drawing import pyplot, write
from benchmarks.resampled import resample_messages
from benchmarks.workload import WORLD, Messages, make_messages, skyline_subscriptions, versions_of_objects
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.model import Int64, MessageBatch
from matching.naive import Subscription, messages_of, skyline_scores
from matching.skyline.window import SkylineQueries
from matching.skyline.windows.mf_rtree import MfRtree
from matching.skyline.windows.tree import TreeWindow
from matching.window import Boundary

Tell = Callable[[str], None]

_SKYLINE = KINDS.named("skyline")
#: The window indexes that are trees, which count their operations.
TREES: dict[str, type[TreeWindow]] = {
    name: window for name, window in _SKYLINE.windows.items() if issubclass(window, TreeWindow)
}

_WINDOW = 100_000
_BATCH = 500
_QUERIES = 1_000
_CHECKED = 30
#: Of a window: how long an interval is, and how many there are. The paper's are 20 of 3,200 seconds.
_INTERVAL, _INTERVALS = 1 / 20, 10
#: Share of messages that are versions of objects, and how many of those messages an object has in a window on average.
_VERSIONED, _VERSIONS = 0.5, 5
#: The same for `cleaning`, and how far in degrees a version is from where its object was first.
_BUSY_VERSIONED, _BUSY_VERSIONS, _STAYS_DEG = 0.9, 60, 0.02
_ROUNDS = 3
#: The memo tree by way of cleaning: never; the paper's (C1); the older scheme (C2); the one that is the default.
CLEANINGS: dict[str, dict[str, Any]] = {
    "mf_rtree, not cleaned": {"cleaning": "off"},
    "mf_rtree, paper's cleaning": {"cleaning": "threshold", "bounded": False},
    "mf_rtree, all on touch": {"cleaning": "all", "bounded": False},
    "mf_rtree": {},
}


class Stream(NamedTuple):
    """Messages with their objects, and of each the seq of the version that it replaces (-1: none)."""

    messages: Messages
    objects: Int64
    replaced: Int64


class Slide:
    """Indexes over the same stream, batch by batch.

    Parameters
    ----------
    windows : mapping of name to index
    stream : Stream
    window : int    messages in the window
    """

    def __init__(self, windows: dict[str, TreeWindow], stream: Stream, window: int):
        self.windows, self.stream, self.window = windows, stream, window
        self.stored = self.batches = 0

    def advance(self, count: int) -> dict[str, dict[str, float]]:
        """Store so many more messages; operations and microseconds of a message, by index."""
        before = {name: index.work().operations for name, index in self.windows.items()}
        seconds = dict.fromkeys(self.windows, 0.0)
        end = self.stored + count
        while self.stored < end:
            first, last = self.stored, min(end, self.stored + _BATCH)
            rows = np.arange(first, last)
            messages, objects = self.stream.messages.batch.take(rows), self.stream.objects[rows]
            replaced = self.stream.replaced[rows]
            ended = replaced[replaced >= 0]
            boundary = Boundary(self.batches, first, last - 1, last - 1 - self.window)
            for name, index in self.windows.items():
                begun = thread_time()
                index.store(boundary, messages, ended, objects)
                seconds[name] += thread_time() - begun
            self.stored, self.batches = last, self.batches + 1
        return {
            name: {
                "operations": (index.work().operations - before[name]) / count,
                "us_per_message": 1e6 * seconds[name] / count,
            }
            for name, index in self.windows.items()
        }

    def live(self) -> MessageBatch:
        """What is alive, by the stream alone."""
        rows = np.arange(max(0, self.stored - self.window), self.stored)
        gone = self.stream.replaced[: self.stored]
        return self.stream.messages.batch.take(rows[~np.isin(rows, gone)])

    def exact(self, queries: SkylineQueries) -> bool:
        """Whether every index has the candidates that plain Python finds, for the first few queries."""
        few = SkylineQueries(
            queries.region[:_CHECKED],
            queries.term_offsets[: _CHECKED + 1],
            queries.terms[: queries.term_offsets[min(_CHECKED, queries.region.shape[0])]],
        )
        wanted = _plain_candidates(list(messages_of(self.live())), few)
        if not any(wanted):
            raise ConfigError("no query has a candidate, so nothing is checked: take a longer window or another seed")
        for index in self.windows.values():
            got = index.candidates(few)
            rows = list(zip(*(column.tolist() for column in got[1:]), strict=True))
            ends = got.offsets.tolist()
            if [rows[a:b] for a, b in zip(ends, ends[1:], strict=False)] != wanted:
                return False
        return True

    def time_queries(self, queries: SkylineQueries) -> dict[str, dict[str, float]]:
        """Microseconds of a query, nodes and lists visited, messages checked, candidates; median of a few rounds."""
        count = queries.region.shape[0]
        turns: dict[str, list[float]] = {name: [] for name in self.windows}
        looked = {}
        for _ in range(_ROUNDS):
            for name, index in self.windows.items():
                before = index.work()
                begun = thread_time()
                found = index.candidates(queries)
                turns[name].append(thread_time() - begun)
                after = index.work()
                looked[name] = {
                    "visited": (after.visited - before.visited) / count,
                    "checked": (after.checked - before.checked) / count,
                    "candidates": found.seq.shape[0] / count,
                }
        return {name: {"us_per_query": 1e6 * median(turns[name]) / count, **looked[name]} for name in self.windows}

    def memory(self) -> dict[str, dict[str, float]]:
        """Megabytes of the index and of index and messages together, and how many messages are held for each alive."""
        measured = {}
        for name, index in self.windows.items():
            size = index.bytes()
            measured[name] = {
                "index_mb": size["index"] / 1e6,
                "whole_mb": (size["index"] + size["log"]) / 1e6,
                "held_per_live": len(index.log) / max(1, len(index)),
            }
        return measured


def figure(
    name: str,
    out: Path,
    subscriptions: int = 1_000_000,
    window: int | None = None,
    messages: int | None = None,
    engines: Sequence[str] | None = None,
    seed: int = 0,
    messages_from: str | None = None,
    on_progress: Tell | None = None,
) -> dict[str, Any]:
    """Measure and draw a figure; writes `skyline-NAME.json` and `skyline-NAME.png` into `out`.

    Parameters
    ----------
    name : str                     one of `FIGURES`, or "routing"
    subscriptions, messages : int  of `routing` alone
    window : int                   messages in the largest window (100,000)
    engines : sequence of str      names of trees; all by default
    messages_from : str            ETL output directory whose messages are resampled; synthetic ones without

    Raises
    ------
    ConfigError
        For a name nobody knows, a window index that is no tree, or if matplotlib is not installed.
    """
    if name == "routing":
        return skyline_routing.figure(out, subscriptions, messages, seed, messages_from, on_progress)
    if name not in FIGURES:
        raise ConfigError(f"figure {name!r}: choose one of {', '.join(FIGURES)}, routing")
    chosen = tuple(engines or TREES)
    for engine in chosen:
        if engine not in TREES:
            raise ConfigError(f"window index {engine!r}: the figures set trees beside each other, {', '.join(TREES)}")
    draw_with = pyplot()
    tell = on_progress or (lambda _: None)
    size = window or _WINDOW
    tell("making the workload")
    busy = name == "cleaning"
    stream = make_stream(4 * size, size, seed, messages_from, busy)
    queries = make_queries(stream.messages, seed)
    report = FIGURES[name](stream, queries, size, chosen, tell)
    source = "synthetic" if messages_from is None else "resampled"
    report = {"figure": name, "window": size, "messages": source, "seed": seed, **report}
    report["versions"] = _BUSY_VERSIONED if busy else _VERSIONED
    write(draw_with, report, out / f"skyline-{name}")
    tell(f"written: {out}/skyline-{name}.json and .png")
    return report


def make_stream(count: int, window: int, seed: int, messages_from: str | None = None, busy: bool = False) -> Stream:
    """Draw messages, half of them versions of objects, or most, of objects that stay in place. O(count log count)."""
    if messages_from is None:
        messages = make_messages(count, seed)
    else:
        messages = resample_messages(messages_from, count, seed, WORLD)
    share, versions, stray = (_BUSY_VERSIONED, _BUSY_VERSIONS, _STAYS_DEG) if busy else (_VERSIONED, _VERSIONS, None)
    batch, objects, ends = versions_of_objects(messages.batch, window, share, versions, stray, seed)
    return Stream(messages._replace(batch=batch), objects, ends)


def make_queries(messages: Messages, seed: int) -> SkylineQueries:
    """Rectangles and keywords that take after messages."""
    table = skyline_subscriptions(messages, _QUERIES, seed)
    return SkylineQueries(table.region, table.term_offsets, table.terms)


def _plain_candidates(live, queries: SkylineQueries) -> list[list[tuple]]:
    """(seq, life, spatial, text) of every candidate of each query."""
    answers = []
    ends = queries.term_offsets.tolist()
    for region, first, last in zip(queries.region.tolist(), ends, ends[1:], strict=False):
        keywords = dict.fromkeys(queries.terms[first:last].tolist(), 1.0)
        query = Subscription(0, 0, 0, 0.0, 0.0, tuple(region), 0, 0.0, keywords)
        found = []
        for message in live:
            if not keywords.keys().isdisjoint(message.weights):
                scores = skyline_scores(query, message)
                if scores is not None:
                    found.append((message.seq, message.life, *scores))
        answers.append(found)
    return answers


def _windows(chosen: Sequence[str], cleanings: Sequence[str]) -> dict[str, TreeWindow]:
    """One index of each name, the memo tree in several ways."""
    built: dict[str, TreeWindow] = {}
    for name in chosen:
        if name == MfRtree.name:
            built |= {label: MfRtree(WORLD, **CLEANINGS[label]) for label in cleanings}
        else:
            built[name] = TREES[name](WORLD)
    return built


def _updates(stream, queries, window, chosen, tell):
    slide = Slide(_windows(chosen, tuple(CLEANINGS)), stream, window)
    tell("filling the window")
    slide.advance(window)
    step = max(_BATCH, round(window * _INTERVAL))
    slide.advance(step)  # compiles what only ends and splits need
    series = [slide.advance(step) for _ in range(_INTERVALS)]
    exact = slide.exact(queries)
    panels, middle = [], {}
    for label, key in {"operations a message": "operations", "us a message": "us_per_message"}.items():
        lines = {name: [interval[name][key] for interval in series] for name in slide.windows}
        panels.append({"y_label": label, "log": (False, True), "series": lines})
        middle[key] = {name: median(values) for name, values in lines.items()}
    for name in slide.windows:
        tell(f"{name}: {middle['operations'][name]:.1f} operations, {middle['us_per_message'][name]:.1f} us a message")
    works = {name: index.work()._asdict() for name, index in slide.windows.items()}
    rows = {"median": middle, "mf_rtree_share_of": _shares(middle["operations"]), "work": works}
    return {"x_label": "interval", "x": list(range(1, _INTERVALS + 1)), "panels": panels, "exact": exact, "rows": rows}


def _shares(operations: dict[str, float]) -> dict[str, dict[str, float]]:
    """The memo tree's part of what each other index needs, for each way of cleaning."""
    others = [name for name in operations if name not in CLEANINGS]
    return {
        label: {name: operations[label] / operations[name] for name in others}
        for label in CLEANINGS
        if label in operations
    }


def _by_size(stream, queries, window, chosen, cleanings, measure, tell):
    """Measure at a quarter, a half and the whole of the window, each time after it has slid on by as much again."""
    sizes, rows, exact = [window // 4, window // 2, window], [], True
    for size in sizes:
        tell(f"window of {size:,} messages")
        slide = Slide(_windows(chosen, cleanings), stream, size)
        slide.advance(2 * size)
        exact = slide.exact(queries) and exact
        rows.append(measure(slide))
    return sizes, rows, exact


def _space(stream, queries, window, chosen, tell):
    sizes, rows, exact = _by_size(stream, queries, window, chosen, ("mf_rtree",), Slide.memory, tell)
    labels = {"MB, the index alone": "index_mb", "MB, index and messages": "whole_mb"}
    panels = [
        {"y_label": label, "log": (True, True), "series": {name: [row[name][key] for row in rows] for name in rows[0]}}
        for label, key in labels.items()
    ]
    return {"x_label": "messages in the window", "x": sizes, "panels": panels, "exact": exact, "rows": rows}


def _queries(stream, queries, window, chosen, tell):
    def measure(slide: Slide) -> dict[str, dict[str, float]]:
        return slide.time_queries(queries)

    cleanings = ("mf_rtree, not cleaned", "mf_rtree")
    sizes, rows, exact = _by_size(stream, queries, window, chosen, cleanings, measure, tell)
    labels = {"us a query": "us_per_query", "nodes and lists visited": "visited", "messages looked at": "checked"}
    panels = [
        {"y_label": label, "log": (True, True), "series": {name: [row[name][key] for row in rows] for name in rows[0]}}
        for label, key in labels.items()
    ]
    return {"x_label": "messages in the window", "x": sizes, "panels": panels, "exact": exact, "rows": rows}


def _cleaning(stream, queries, window, chosen, tell):
    slide = Slide(_windows((MfRtree.name,), tuple(CLEANINGS)), stream, window)
    tell("filling the window")
    slide.advance(window)
    step = window // 4
    rows: list[dict[str, dict[str, float]]] = []
    for interval in range(8):
        tell(f"quarter {interval + 1} of 8")
        work, size, asked = slide.advance(step), slide.memory(), slide.time_queries(queries)
        rows.append({name: work[name] | size[name] | asked[name] for name in slide.windows})
    labels = {"MB, index and messages": "whole_mb", "operations a message": "operations", "us a query": "us_per_query"}
    panels = [
        {"y_label": label, "log": (False, False), "series": {n: [row[n][key] for row in rows] for n in slide.windows}}
        for label, key in labels.items()
    ]
    exact = slide.exact(queries)
    quarters = [(interval + 1) / 4 for interval in range(8)]
    return {"x_label": "windows slid since it was full", "x": quarters, "panels": panels, "exact": exact, "rows": rows}


FIGURES: dict[str, Callable[..., dict[str, Any]]] = {
    "updates": _updates,
    "space": _space,
    "queries": _queries,
    "cleaning": _cleaning,
}
