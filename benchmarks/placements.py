"""Placements of the DkM-SKS paper with the indexes of its workers, tick by tick: what `benchmarks.figures.knn` shows.

    kop                 inverted file in every worker
    sop                 an inverted file for each subset, which is asked where the message lies in its rectangle R
    ps2stream           grid and inverted file
    dkm-sks             grid and inverted file; gamma1 is 20 subsets a worker, gamma2 100,000 (the text's reading)
    dkm-sks as printed  gamma1 is 100,000 a worker, gamma2 20: subsets of five at ten million, and so here at all sizes

All workers are here, one after the other, and get every message; the processor time of each is its own, and the
slowest sets the time of a tick. Results of all subscriptions that stay are compared with those of the bulk routine.
"""

from collections.abc import Callable, Mapping, Sequence
from time import thread_time
from typing import Any

import numpy as np

from baselines.knn.inverted_file import KnnInvertedFile
from benchmarks.command import Tell, verdict
from benchmarks.driving import NO_REMOVALS
from benchmarks.lasting import LastingBench
from benchmarks.workload import changed
from distribution.placed import DkmSksRouter, KopRouter, Placer, Ps2StreamRouter, SopRouter
from distribution.placement.costs import SampleCosts
from distribution.placement.demand import Demand
from distribution.placement.dkm_sks import DkmSks
from distribution.placement.sop import SpaceOriented
from distribution.placement.subsets import Subset, enclosing
from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.results import CumulativeRows
from matching.knn.engines.influence_grid import InfluenceGrid
from matching.model import ChangeList, Float64, Int64, MessageBatch, Names, SubscriptionTable, take_ragged
from matching.space import Space
from papers.dkm_sks.single_grid import SingleGrid

#: Workers, messages of a tick, and subscriptions that come and go with each.
WORKERS, TICK, CHANGES = 20, 1_000, 100
#: Messages by which costs are counted; the paper takes 1,000,000.
_SAMPLE = 1_000_000
Report = dict[str, Any]


class PrintedDkmSks(DkmSks):
    """With the numbers as the paper prints them: two million subsets of ten million subscriptions, five in each."""

    gamma_2 = 20

    def subsets(self, demand: Demand) -> list[Subset]:
        self.gamma_1 = -(-len(demand) // (5 * self.tasks))
        return super().subsets(demand)


class PrintedRouter(DkmSksRouter):
    """DkM-SKS with small subsets."""

    algorithm = PrintedDkmSks


class InvertedFiles:
    """SOP's worker: an inverted file for each subset; those that come later are a subset of their own."""

    def __init__(self, space: Space):
        self.space = space
        self.files: list[tuple[Float64, KnnInvertedFile]] = []
        self.later: KnnInvertedFile | None = None

    def add(self, box: Float64, table: SubscriptionTable, results: CumulativeRows) -> None:
        """A subset, with its rectangle."""
        file = KnnInvertedFile(self.space)
        file.insert(table, results)
        self.files.append((box, file))

    def insert(self, table: SubscriptionTable) -> None:
        """Subscriptions without results, whose balls are the world."""
        if self.later is None:
            self.later = KnnInvertedFile(self.space)
            self.files.append((np.array([-np.inf, -np.inf, np.inf, np.inf]), self.later))
        self.later.insert(table)

    def engines(self) -> list[CumulativeEngine]:
        """All files."""
        return [file for _, file in self.files]

    def match(self, number: int, messages: MessageBatch) -> None:
        """Match a tick."""
        for (west, south, east, north), file in self.files:
            inside = (messages.x >= west) & (messages.x <= east) & (messages.y >= south) & (messages.y <= north)
            rows = np.flatnonzero(inside)
            if rows.size:
                _match(file, number, messages.take(rows))


class Worker:
    """A worker with one index."""

    def __init__(self, engine: CumulativeEngine):
        self.engine = engine

    def insert(self, table: SubscriptionTable) -> None:
        """Subscriptions without results."""
        self.engine.insert(table)

    def engines(self) -> list[CumulativeEngine]:
        """The index."""
        return [self.engine]

    def match(self, number: int, messages: MessageBatch) -> None:
        """Match a tick."""
        _match(self.engine, number, messages)


#: Name to router, and the index of its workers; None: SOP's.
SYSTEMS: Mapping[str, Any] = {
    "ps2stream": (Ps2StreamRouter, SingleGrid),
    "kop": (KopRouter, KnnInvertedFile),
    "sop": (SopRouter, None),
    "dkm-sks": (DkmSksRouter, SingleGrid),
    "dkm-sks as printed": (PrintedRouter, SingleGrid),
}


def with_workers(workers: int, best: bool = False) -> Callable[..., dict[str, Report]]:
    """A function that measures placements with so many workers; `best`: all with our default index."""

    def turns(bench: LastingBench, names: Sequence[str], tell: Tell, **how: Any) -> dict[str, Report]:
        return {name: _measured(bench, name, workers, best) for name in names}

    return turns


def slowest_by_tick(bench: LastingBench, names: Sequence[str], tell: Tell, **how: Any) -> dict[str, Report]:
    """As `with_workers(WORKERS)`; `update_ms_by_tick` has the ticks."""
    return with_workers(WORKERS)(bench, names, tell)


def _match(engine: CumulativeEngine, number: int, messages: MessageBatch) -> None:
    engine.best.begin_batch(number, int(messages.seq[0]))
    engine.match(messages)
    engine.best.end_batch(engine.subscriptions.columns, int(messages.seq[-1]))


def _measured(bench: LastingBench, name: str, workers: int, best: bool) -> Report:
    """A placement over all ticks of a case."""
    case, (router_class, index) = bench.case, SYSTEMS[name]
    sample = case.messages.take(np.arange(min(_SAMPLE, case.filled)))
    placer = router_class(workers, case.space, SampleCosts(case.space, sample)).placer()
    started = thread_time()
    owner = placer.place_all(case.table)
    placing_s = thread_time() - started
    made = _workers(bench, placer, owner, workers, InfluenceGrid if best else index)
    ticks = case.timed // TICK
    by_tick, insertion, deletion = np.zeros((ticks, workers)), np.zeros(ticks), np.zeros(ticks)
    leaving = np.random.default_rng(case.facts["seed"]).permutation(len(case.table))[: ticks * CHANGES]
    for tick in range(ticks):
        first = case.filled + tick * TICK
        gone = case.table.number[leaving[tick * CHANGES : (tick + 1) * CHANGES]]
        deletion[tick] = _timed(lambda gone=gone: _remove(made, owner, gone))
        at = (tick * CHANGES + np.arange(CHANGES)) % len(case.fresh)
        came = case.fresh.take(at)
        numbers = len(case.table) + tick * CHANGES + np.arange(CHANGES)
        came = changed(came, number=numbers, at=np.full(CHANGES, first))
        insertion[tick] = _timed(lambda came=came, tick=tick: _insert(made, placer, came, tick))
        messages = case.messages.take(np.arange(first, first + TICK))
        for worker, each in enumerate(made):
            by_tick[tick, worker] = _timed(lambda each=each, tick=tick, messages=messages: each.match(tick, messages))
    stay = np.setdiff1d(np.arange(len(case.table)), leaving)
    exact, compared, changing = _compared(bench, made, owner, stay, ticks * TICK)
    slowest = by_tick.max(axis=1) + (insertion + deletion) / workers
    return {
        **verdict(exact, compared, changing),
        "us_per_message": 1e6 * float(np.median(by_tick.max(axis=1))) / TICK,
        "update_ms": 1e3 * float(np.median(slowest)),
        "update_ms_by_tick": (1e3 * slowest).round(3).tolist(),
        "load_gap_ms": 1e3 * float(np.median(by_tick.max(axis=1) - by_tick.min(axis=1))),
        "all_ms": 1e3 * float(np.median(by_tick.sum(axis=1))),
        "insertion_ms": 1e3 * float(np.median(insertion)),
        "deletion_ms": 1e3 * float(np.median(deletion)),
        "placing_s": placing_s,
        "subscriptions_of_fullest": int(np.bincount(owner, minlength=workers).max()),
    }


def _timed(work: Callable[[], None]) -> float:
    started = thread_time()
    work()
    return thread_time() - started


def _workers(bench: LastingBench, placer: Placer, owner: Int64, workers: int, index: Any) -> list[Any]:
    case, before = bench.case, bench.filled().lists["best"]

    def part(rows: Int64) -> tuple[SubscriptionTable, CumulativeRows]:
        offsets, at = take_ragged(before.offsets, rows)
        return case.table.take(rows), CumulativeRows(offsets, before.columns["seq"][at], before.columns["key"][at])

    if index is not None:
        made = [Worker(index(case.space)) for _ in range(workers)]
        for task, worker in enumerate(made):
            worker.engine.insert(*part(np.flatnonzero(owner == task)))
        return made
    placement: Any = placer.placement
    assert isinstance(placement, SpaceOriented), "only subsets have files of their own"
    files = [InvertedFiles(case.space) for _ in range(workers)]
    reach = np.full(len(case.table), np.inf)
    full = np.diff(before.offsets) == case.table.k
    reach[full] = -before.columns["key"][before.offsets[1:][full] - 1]
    x, y = case.table.x, case.table.y
    balls = np.stack([x - reach, y - reach, x + reach, y + reach], axis=1)
    for subset in placement.subsets(placer.demand(case.table)):
        # R encloses balls as they are, not as they are estimated: else messages would be lost
        files[owner[subset.rows[0]]].add(enclosing(balls[subset.rows]), *part(subset.rows))
    return files


def _remove(made: Sequence[Any], owner: Int64, numbers: Int64) -> None:
    for task in np.unique(owner[numbers]):
        mine = numbers[owner[numbers] == task]
        for engine in made[task].engines():
            slots = engine.subscriptions.find(mine)
            engine.remove(slots[slots >= 0])


def _insert(made: Sequence[Any], placer: Placer, came: SubscriptionTable, tick: int) -> None:
    names = Names.of([f"s{number}" for number in came.number])
    owner = placer.follow(ChangeList(1 + tick, came, names, NO_REMOVALS)).owner
    assert owner is not None, "a placer decides"
    for task in np.unique(owner):
        made[task].insert(came.take(np.flatnonzero(owner == task)))


def _compared(bench: LastingBench, made: Sequence[Any], owner: Int64, stay: Int64, count: int) -> tuple[bool, int, int]:
    """Whether the results of these subscriptions are those of the bulk routine, how many have entered, and of how many
    subscriptions."""
    table, before = bench.case.table.take(stay), bench.filled().lists["best"]
    offsets, at = take_ragged(before.offsets, stay)
    rows = CumulativeRows(offsets, before.columns["seq"][at], before.columns["key"][at])
    wanted = bench.bulk(bench.case.filled, bench.case.filled + count, table, rows)
    seq, key = np.full(wanted.seq.shape, -1, np.int64), np.full(wanted.key.shape, np.nan)
    for task, worker in enumerate(made):
        mine = np.flatnonzero(owner[stay] == task)
        for engine in worker.engines():
            slots = engine.subscriptions.find(table.number[mine])
            here = mine[slots >= 0]
            held = engine.best.rows(slots[slots >= 0])
            starts, lengths = wanted.offsets[here], np.diff(held.offsets)
            if not np.array_equal(lengths, wanted.offsets[here + 1] - starts):
                return False, 0, 0
            places = np.arange(held.seq.shape[0]) + np.repeat(starts - held.offsets[:-1], lengths)
            seq[places], key[places] = held.seq, held.key
    same = np.array_equal(seq, wanted.seq) and np.array_equal(key, wanted.key)
    entered = np.flatnonzero(wanted.seq >= bench.case.filled)
    return same, entered.shape[0], np.unique(np.searchsorted(wanted.offsets, entered, side="right")).shape[0]
