"""Figures of the windows of `skyline` subscriptions, in the shapes of the paper: `skyray bench skyline --figure NAME`.

    updates     operations and time of a message while a full window slides on, a twentieth of it at a time
    space       memory against the size of the window
    queries     time of a query against the size of the window, and what it looks at
    cleaning    memory, operations and query time of the memo tree while its window slides on, by way of cleaning
    engines, longest, ticks     the engines while objects move (`benchmarks.figures.skyline_engines`)
    routing     which messages reach a query bolt at all (`benchmarks.figures.skyline_routing`)

Half of the messages speak of objects that move and change words, so that versions follow each other; the others stand
alone. For `cleaning` nine tenths do, of objects that stay about where they are and speak often: what has ended then
piles up in the leaves. Queries are those of `benchmarks.workload`, 0.01 % to 1 % of the world's area as in the paper.

An operation is one node of a tree or cell of a quadtree that an update reads or writes, one inverted list or count of a
term that it changes, one term that it puts into a filter or takes out, or one entry of the memo. The paper counts
operations without saying of what. Time is thread time.

All indexes get the same batches in turns, and the candidates of all queries are held against `benchmarks.checker`
before anything is reported. A figure is written as JSON and as PNG. Read on in `matching.skyline.windows.tree`.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import thread_time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.checker import Words, in_region
from benchmarks.figures import skyline_engines, skyline_routing
from benchmarks.figures.sweeps import Asked, Page, Report
from benchmarks.resampled import resample_messages
from benchmarks.stopwatch import medians
from benchmarks.verdict import verdict
from benchmarks.workload import WORLD, Messages, make_messages, skyline_subscriptions, versions_of_objects
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.model import Int64
from matching.skyline.window import SkylineQueries
from matching.skyline.windows.mf_rtree import MfRtree
from matching.skyline.windows.tree import TreeWindow
from matching.window import Boundary

_SKYLINE = KINDS.named("skyline")
#: The window indexes that are trees, which count their operations.
TREES: dict[str, type[TreeWindow]] = {
    name: window for name, window in _SKYLINE.windows.items() if issubclass(window, TreeWindow)
}

_BATCH = 500
_QUERIES = 1_000
#: Of a window: how long an interval is, and how many there are. The paper's are 20 of 3,200 seconds.
_INTERVAL, _INTERVALS = 1 / 20, 10
#: Share of messages that are versions of objects, and how many of those messages an object has in a window on average.
_VERSIONED, _VERSIONS = 0.5, 5
#: The same for `cleaning`, and how far in degrees a version is from where its object was first.
_BUSY_VERSIONED, _BUSY_VERSIONS, _STAYS_DEG = 0.9, 60, 0.02
_ROUNDS = 3
#: The memo tree by way of cleaning: never; the paper's (C1); the older scheme (C2); the one that is the default; and as
#: the paper has it altogether, with filters in leaves as well.
CLEANINGS: dict[str, dict[str, Any]] = {
    "mf_rtree, not cleaned": {"cleaning": "off"},
    "mf_rtree, as in the paper": {"cleaning": "threshold", "bounded": False, "leaf_filters": True},
    "mf_rtree, paper's cleaning": {"cleaning": "threshold", "bounded": False},
    "mf_rtree, all on touch": {"cleaning": "all", "bounded": False},
    "mf_rtree": {},
}


#: Figures of each index.
Measured = dict[str, dict[str, float]]


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

    def advance(self, count: int) -> Measured:
        """Store so many more messages; operations and microseconds of a message, by index."""
        before = {name: index.work().operations for name, index in self.windows.items()}
        seconds = dict.fromkeys(self.windows, 0.0)
        end = self.stored + count
        while self.stored < end:
            first, last = self.stored, min(end, self.stored + _BATCH)
            rows = np.arange(first, last)
            messages, objects = self.stream.messages.batch.take(rows), self.stream.objects[rows]
            replaced = self.stream.replaced[rows]
            boundary = Boundary(self.batches, first, last - 1, last - 1 - self.window)
            for name, index in self.windows.items():
                begun = thread_time()
                index.store(boundary, messages, replaced[replaced >= 0], objects)
                seconds[name] += thread_time() - begun
            self.stored, self.batches = last, self.batches + 1
        return {
            name: {
                "operations": (index.work().operations - before[name]) / count,
                "us_per_message": 1e6 * seconds[name] / count,
            }
            for name, index in self.windows.items()
        }

    def check(self, queries: SkylineQueries) -> dict[str, Any]:
        """What `benchmarks.verdict` says of the candidates of every index, held against those of `benchmarks.checker`.

        Returns
        -------
        dict    also `expired` and `ended`: messages that have left the window by age, and by a version after them
        """
        rows, replaced = np.arange(max(0, self.stored - self.window), self.stored), self.stream.replaced[: self.stored]
        live = self.stream.messages.batch.take(rows[~np.isin(rows, replaced)])  # by the stream alone
        words, ends = Words.of(live), queries.term_offsets
        wanted = []
        for at, region in enumerate(queries.region):
            lists = words.lists(queries.terms[ends[at] : ends[at + 1]])
            wanted.append(in_region(live, region, [words.owner[each] for each in lists]))
        row = np.concatenate([each.row for each in wanted])
        columns = (live.seq[row], live.life[row], *(np.concatenate([each[at] for each in wanted]) for at in (1, 2)))
        offsets = np.cumsum([0, *(each.row.shape[0] for each in wanted)])
        same = all(
            all(np.array_equal(*pair) for pair in zip(index.candidates(queries), (offsets, *columns), strict=True))
            for index in self.windows.values()
        )
        asked = int(np.count_nonzero(np.diff(offsets)))
        old, ended = max(0, self.stored - self.window), int(np.count_nonzero(replaced >= 0))
        expired = old - int(np.count_nonzero((replaced >= 0) & (replaced < old)))
        return verdict(same, row.shape[0], asked) | {"expired": expired, "ended": ended}

    def time_queries(self, queries: SkylineQueries) -> Measured:
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

    def nothing(self) -> Measured:
        """No figure of any index yet."""
        return {name: {} for name in self.windows}

    def memory(self, _: SkylineQueries) -> Measured:
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


class Sliding(NamedTuple):
    """A figure of trees over windows that slide on: against the size of the window, or how far it has slid.

    shown : mapping      label of a panel to the figure of an index that it shows
    looks : callables    what is measured of a `Slide` beside the work of storing
    cleanings            of the memo tree, which is in the figure once for each
    sizes                shares of the window asked for, each a window of its own
    filled               windows of messages that pass first
    steps, step          how often it slides on, and by which share of a window; those before `counted` do not count
    log                  of x, of y
    alone, busy : bool   the memo tree alone; most messages speak of objects that stay in place
    """

    shown: dict[str, str]
    looks: tuple[Callable[[Slide, SkylineQueries], Measured], ...] = ()
    cleanings: tuple[str, ...] = tuple(CLEANINGS)
    sizes: tuple[float, ...] = (1.0,)
    filled: int = 1
    steps: int = 0
    step: float = 0.0
    counted: int = 0
    log: tuple[bool, bool] = (False, True)
    alone: bool = False
    busy: bool = False

    def measure(self, asked: Asked) -> Report:
        """Measure; `rows` by size or step, `median` over them, and the memo tree's part of others' operations."""
        for name in asked.engines:
            if name not in TREES:
                raise ConfigError(
                    f"window index {name!r}: these figures set trees beside each other, {', '.join(TREES)}"
                )
        window, chosen = asked.window or 0, (MfRtree.name,) if self.alone else asked.engines or tuple(TREES)
        asked.tell("making the workload")
        stream = make_stream(4 * window, window, asked.seed, asked.messages_from, self.busy)
        queries = make_queries(stream.messages, asked.seed)
        rows, checks, works = [], [], {}
        for size in (round(window * share) for share in self.sizes):
            asked.tell(f"window of {size:,} messages")
            slide = Slide(self._built(chosen), stream, size)
            slide.advance(self.filled * size)
            for step in range(self.steps or 1):
                asked.tell(f"step {step + 1}")
                measured = slide.advance(max(_BATCH, round(size * self.step))) if self.steps else slide.nothing()
                for look in self.looks if step >= self.counted else ():
                    measured = {name: row | look(slide, queries)[name] for name, row in measured.items()}
                rows += [measured] if step >= self.counted else []
            checks.append(slide.check(queries))
            works = {name: index.work()._asdict() for name, index in slide.windows.items()}
        # of the least compared, what was compared; and none of them may be wrong
        checked = min(checks, key=lambda each: each["compared"]) | {"exact": all(each["exact"] for each in checks)}
        x = [round(window * share) for share in self.sizes]
        if self.steps:
            x = [round((step + 1) * self.step, 6) for step in range(self.steps - self.counted)]
        panels = [
            {"y_label": label, "log": self.log, "series": {name: [row[name][key] for row in rows] for name in rows[0]}}
            for label, key in self.shown.items()
        ]
        middle = {name: medians([row[name] for row in rows]) for name in rows[0]}
        return {
            "window": window,
            "messages": "synthetic" if asked.messages_from is None else "resampled",
            "seed": asked.seed,
            "versions": _BUSY_VERSIONED if self.busy else _VERSIONED,
            "over": "",
            "x_label": "windows slid since it was full" if self.steps else "messages in the window",
            "x": x,
            "panels": panels,
            **checked,
            "rows": {"by_x": rows, "median": middle, "mf_rtree_share_of": _shares(middle), "work": works},
        }

    def _built(self, chosen: Sequence[str]) -> dict[str, TreeWindow]:
        """One index of each name, the memo tree in several ways."""
        ways = {label: MfRtree(WORLD, **CLEANINGS[label]) for label in self.cleanings if MfRtree.name in chosen}
        return {name: TREES[name](WORLD) for name in chosen if name != MfRtree.name} | ways


def _shares(middle: Measured) -> dict[str, dict[str, float]]:
    """The memo tree's part of the operations that each other index needs, for each way of cleaning."""
    needed = {name: row["operations"] for name, row in middle.items() if "operations" in row}
    others = [name for name in needed if name not in CLEANINGS]
    return {label: {name: needed[label] / needed[name] for name in others} for label in CLEANINGS if label in needed}


def _known(name: str) -> None:
    """Refuse what is neither a tree nor an engine; which of them is wanted, says the figure."""
    if name not in TREES and name not in _SKYLINE.engines:
        raise ConfigError(f"{name!r}: choose engines ({', '.join(_SKYLINE.engines)}) or trees ({', '.join(TREES)})")


_QUERIED = {"us a query": "us_per_query", "nodes and lists visited": "visited", "messages looked at": "checked"}
_SPACE = {"MB, the index alone": "index_mb", "MB, index and messages": "whole_mb"}
_WORK = {"operations a message": "operations", "us a message": "us_per_message"}
_CLEANED = {"MB, index and messages": "whole_mb", "operations a message": "operations", "us a query": "us_per_query"}
_SIZED = {"sizes": (0.25, 0.5, 1.0), "filled": 2, "log": (True, True)}


def figures() -> dict[str, Any]:
    """Name to figure."""
    return {
        # the first step compiles what only ends and splits need
        "updates": Sliding(_WORK, steps=_INTERVALS + 1, step=_INTERVAL, counted=1),
        "space": Sliding(_SPACE, (Slide.memory,), ("mf_rtree",), **_SIZED),
        "queries": Sliding(_QUERIED, (Slide.time_queries,), ("mf_rtree, not cleaned", "mf_rtree"), **_SIZED),
        "cleaning": Sliding(
            _CLEANED, (Slide.memory, Slide.time_queries), steps=8, step=0.25, log=(False, False), alone=True, busy=True
        ),
        **skyline_engines.FIGURES,
        "routing": skyline_routing.figure,
    }


PAGE = Page(_SKYLINE, figures(), window=100_000, check_engine=_known)
