"""Figures of `skyline`, in the shapes of the papers: `skyray bench skyline --figure NAME`.

    engines     time of a message and refills against the window: a quarter, a half and the whole of --window
    longest     the whole window alone
    trees       the windows that are trees, likewise: work of a message, memory, work of a query
    cleaning    the memo tree by way of cleaning, while its window slides on

Engines: a message comes every millisecond, so that a window of 3,200,000 is the paper's longest. Half of them speak of
objects that come again about as often whatever the window is, and end the message before (`_BETWEEN`).

Trees: --window is the paper's longest, so that 32,000 is its low rate of messages and 3,200,000 its high one; its
threshold for cleaning goes by that rate. Half of the messages speak of objects as well; for `cleaning` nine tenths, of
objects that stay about where they are and speak often, so that what has ended piles up in the leaves. An operation is a
node of a tree or cell of a quadtree that an update reads or writes, an inverted list or count of a term that it
changes, a term that it puts into a filter or takes out, or an entry of the memo; the paper does not say. Time is thread
time; the candidates of all queries are held against `matching.bulk_oracle`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from pandas import DataFrame

from benchmarks import workload
from benchmarks.command import Tell, verdict
from benchmarks.figures.sweeps import TIME, Asked, Page, Report, Sweep, sweep
from benchmarks.harness import Bench, Running
from benchmarks.stopwatch import in_turns, medians
from benchmarks.workload import WORLD, versions_of_objects
from matching.bulk_oracle import Words, in_region
from matching.kinds import KINDS
from matching.skyline.window import SkylineQueries
from matching.window import Boundary
from papers.skyline.mf_rtree import MfRtree, MfRtreePaper
from papers.skyline.tree import TreeWindow, TreeWork

_SKYLINE = KINDS.named("skyline")
#: The memo tree by way of cleaning: ours; in the paper's form with its cleaning (C1), with the older one (C2), without.
_CLEANINGS = {
    "mf_rtree": MfRtree,
    "mf_rtree_paper": MfRtreePaper,
    "mf_rtree_paper_c2": partial(MfRtreePaper, cleaning="all"),
    "mf_rtree_paper_uncleaned": partial(MfRtreePaper, cleaning="off"),
}
#: The window indexes that count their operations.
TREES = {name: window for name, window in _SKYLINE.windows.items() if issubclass(window, TreeWindow)} | _CLEANINGS
#: Seconds of the paper's longest window.
_LONGEST_S = 3_200
_BATCH, _SHARES = 1_000, (0.25, 0.5, 1.0)
#: Of engines: messages between two of an object, on average, 160 s.
_BETWEEN = 160_000
#: Of trees: queries, and how often they are asked.
_QUERIES, _ROUNDS = 1_000, 3
#: Share of messages that are versions of objects, how many of those an object has in a window on average, and how far
#: in degrees a version is from where its object was first, if it is near at all; the second for `cleaning`.
_USUAL, _BUSY = (0.5, 5, None), (0.9, 60, 0.02)
_REFILLS = TIME | {
    "refills a message": "refills_per_message",
    "us to fetch the candidates of a refill": "fetch_us_per_refill",
}
_REFILLS |= {"us to make a buffer of them": "fill_us_per_refill"}
_CLEANED = {"MB, index and messages": "whole_mb", "operations a message": "operations", "us a query": "us_per_query"}
_WORK = _CLEANED | TIME | {"MB, the index alone": "index_mb"}
_WORK |= {"nodes and lists visited": "visited", "messages looked at": "checked"}


def _checked(load: Bench, names: Sequence[str], tell: Tell, **_: Any) -> dict[str, Report]:
    """Time engines while they are checked: some are so slow that nothing more can be asked of them."""
    tell(f"building {', '.join(names)}")
    built = [load.build(name) for name in names]
    memory = [load.memory(each) for each in built]
    clocks = [_refill_clocks(each) for each in built]
    measured = {name: row | told for name, row, told in zip(names, memory, load.check(built), strict=True)}
    for row, (fetched, filled) in zip(measured.values(), clocks, strict=True):
        if refills := row["compared_refills"]:
            row |= {
                "fetch_us_per_refill": 1e6 * sum(fetched) / refills,
                "fill_us_per_refill": 1e6 * sum(filled) / refills,
            }
    return measured


def _refill_clocks(running: Running) -> tuple[list[float], list[float]]:
    """Seconds of each call that fetches the candidates of refills, and of each that makes buffers of them."""

    def clocked(owner: Any, method: str) -> list[float]:
        call, seconds = getattr(owner, method), []

        def timed(*given: Any) -> Any:
            begun = perf_counter()
            answer = call(*given)
            seconds.append(perf_counter() - begun)
            return answer

        setattr(owner, method, timed)
        return seconds

    return clocked(running.alone.window_index, "answer"), clocked(running.operator.engine, "refill")


def _engines(*shares: float) -> list[Sweep]:
    """Against the window, in shares of the one that is asked for."""

    def load(asked: Asked, size: int) -> Bench:
        return asked.bench(window=size, batch=_BATCH, messages=_BATCH, rounds=1, checked=asked.messages,
                           versions=max(2.0, size / _BETWEEN))  # fmt: skip

    return [sweep("messages in the window", lambda asked: [round(asked.window * share) for share in shares], load,
                  _REFILLS, turns=_checked)]  # fmt: skip


class Slide:
    """The trees that are asked for over the same stream, with so many messages in the window, full from the start."""

    def __init__(self, asked: Asked, window: int, share: float, versions: float, stray_deg: float | None):
        asked.tell(f"filling a window of {window:,} messages")
        self.window, count = window, 4 * asked.window + 10 * _BATCH
        self.trees: dict[str, TreeWindow] = {name: asked.kind.engines[name](WORLD) for name in asked.engines}
        for tree in self.trees.values():
            if isinstance(tree, MfRtree):
                tree.arrival_rate_per_s = asked.window / _LONGEST_S
        if asked.messages_from is None:
            made = workload.make_messages(count, asked.seed)
        else:
            made = workload.resample_messages(asked.messages_from, count, asked.seed, WORLD)
        #: Of what object each message speaks, and the seq of the version that it replaces, -1 for none.
        self.messages, self.objects, self.replaced = versions_of_objects(
            made.batch, asked.window, share, versions, stray_deg, asked.seed
        )
        table = workload.skyline_subscriptions(made._replace(batch=self.messages), _QUERIES, asked.seed)
        self.queries = SkylineQueries(table.region, table.term_offsets, table.terms)
        self.batches = 0
        self.advance(window)

    def advance(self, count: int) -> dict[str, Report]:
        """Store so many more messages, or a few more, in whole batches; means over these, by name."""
        first, batches = self.batches, -(-count // _BATCH)

        def store(name: str, turn: int) -> dict[str, float]:
            rows = np.arange((first + turn) * _BATCH, (first + turn + 1) * _BATCH)
            boundary = Boundary(first + turn, rows[0], rows[-1], rows[-1] - self.window)
            replaced = self.replaced[rows]
            given = boundary, self.messages.take(rows), replaced[replaced >= 0], self.objects[rows]
            us, work = _clocked(self.trees[name], lambda tree: tree.store(*given))
            return {"us_per_message": us / _BATCH, "operations": work.operations / _BATCH}

        stored = in_turns(self.trees, batches, store)
        self.batches += batches
        return {name: DataFrame(turns).mean().to_dict() for name, turns in stored.items()}

    def row(self, x: float, count: int, steps: int = 1) -> Report:
        """Work of a message in some steps, of so many each; memory, work of a query, whether candidates are right."""

        def ask(name: str, _: int) -> dict[str, float]:
            us, work = _clocked(self.trees[name], lambda tree: tree.candidates(self.queries))
            return {
                "us_per_query": us / _QUERIES,
                "visited": work.visited / _QUERIES,
                "checked": work.checked / _QUERIES,
            }

        done = [self.advance(count) for _ in range(steps)]
        engines = {name: medians([step[name] for step in done]) for name in self.trees}
        wanted = self._wanted()
        told = len(wanted[1]), int(np.count_nonzero(np.diff(wanted[0])))
        for name, turns in in_turns(self.trees, _ROUNDS, ask).items():
            tree = self.trees[name]
            size, found = tree.bytes(), tree.candidates(self.queries)
            same = all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))
            held = {"index_mb": size["index"] / 1e6, "whole_mb": (size["index"] + size["log"]) / 1e6}
            held["held_per_live"] = len(tree.log) / max(1, len(tree))
            engines[name] |= medians(turns) | held | verdict(same, *told)
        return {"x": x, "workload": {"window": self.window}, "engines": engines}

    def _wanted(self) -> tuple[np.ndarray, ...]:
        """Columns of the candidates of all queries, by the stream alone."""
        stored, ends = self.batches * _BATCH, self.queries.term_offsets
        rows = np.arange(max(0, stored - self.window), stored)
        live = self.messages.take(rows[~np.isin(rows, self.replaced[:stored])])
        words, found = Words.of(live), []
        for at, region in enumerate(self.queries.region):
            lists = words.lists(self.queries.terms[ends[at] : ends[at + 1]])
            found.append(in_region(live, region, [words.owner[each] for each in lists]))
        row, spatial, text = (np.concatenate(column) for column in zip(*found, strict=True))
        return np.cumsum([0, *(len(each.row) for each in found)]), live.seq[row], live.life[row], spatial, text


def _clocked(tree: TreeWindow, call: Callable[[TreeWindow], Any]) -> tuple[float, TreeWork]:
    """Microseconds of thread time, and what is done in it."""
    before, begun = tree.work(), thread_time()
    call(tree)
    us = 1e6 * (thread_time() - begun)
    return us, TreeWork(*(now - then for now, then in zip(tree.work(), before, strict=True)))


def _trees(asked: Asked) -> Iterator[Report]:
    """By size of the window."""
    for share in _SHARES:
        slide = Slide(asked.beside(TREES), round(asked.window * share), *_USUAL)
        slide.advance(_BATCH)  # compiles what only ends and splits need
        yield slide.row(slide.window, slide.window // 20, 10)


def _cleaned(asked: Asked) -> Iterator[Report]:
    """By how far the window has slid, in windows."""
    slide = Slide(asked.beside(_CLEANINGS), asked.window, *_BUSY)
    for quarters in range(1, 9):
        yield slide.row(quarters / 4, asked.window // 4)


PAGE = Page(
    _SKYLINE,
    {
        "engines": _engines(*_SHARES),
        "longest": _engines(1.0),
        "trees": [Sweep("messages in the window", _trees, _WORK)],
        "cleaning": [Sweep("windows slid since it was full", _cleaned, _CLEANED)],
    },
    messages=5_000,
)
