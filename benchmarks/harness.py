"""One harness for every kind: engines are built, held against the oracle, and timed as `skyray run` would run them.

What is driven is `matching.local_engine.LocalEngine`: the kind's operator over its real window index, batch by batch,
with the messages that end, refills and all. The window is full and every subscription is in before the first batch: one
bulk refill fills what is kept of them, and every engine continues from that state as from a checkpoint, so that nobody
has to stream a million messages to reach it. `benchmarks.stopwatch` tells the shares of the time. `benchmarks.run`
drives this, and so do the figures (`benchmarks.figures.sweeps`).
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import searches
from benchmarks.cases import Case
from benchmarks.command import Tell, verdict
from benchmarks.driving import NO_REMOVALS, NO_SUBSCRIPTIONS, Batch, take
from benchmarks.peers import Peer
from benchmarks.stopwatch import Stopwatch, in_turns, medians
from matching import model
from matching.bulk_oracle import Expected, counted, expected, of_numbers, sampled
from matching.local_engine import LocalEngine
from matching.model import NO_MESSAGES, SKYLINE, Int64, SubscriptionTable, UpdateBatch, concatenate, take_rows
from matching.naive import Oracle
from matching.naive_rows import tally
from matching.operator import OperatorOutput
from matching.storage.state import State, join_states
from matching.window import NO_FLOOR, Boundary

#: Subscriptions that ask for the window together when it is filled.
_CHUNK = 20_000
_FEWEST_A_BATCH = 100
#: Messages that are taken alone at most.
_ALONE = 5_000
#: A round of a slow engine, and its changes, stop after so long; a check of one that tells match by match likewise.
MOST_S, _MOST_CHANGES_S, _MOST_CHECK_S = 10.0, 3.0, 20.0
#: Subscriptions that are checked, spread evenly, and those told most, of a kind that has a window or has none.
_SAMPLE = {True: (500, 1_500), False: (5_000, 1_000)}
#: Messages that are checked of a kind without window.
_CHECKED = 1_000


@dataclass
class Running:
    """An engine with every subscription in it, which took `build_s`, and the last boundary that it has taken.

    `pace_s` is what a message took in its last batch; until there is one it is taken for slow.
    """

    alone: LocalEngine
    boundary: Boundary
    watch: Stopwatch
    build_s: float = 0.0
    pace_s: float = 1.0

    @property
    def operator(self) -> Any:
        """The operator of its kind, with what its class has beside `matching.operator.KindOperator`."""
        return self.alone.operator

    @property
    def peer(self) -> Peer | None:
        """The peer that it runs in place of an engine."""
        return self.operator.engine if isinstance(self.operator.engine, Peer) else None

    @property
    def refills(self) -> int:
        """Subscriptions that have asked the window so far."""
        return int(self.operator.report().get("refills", 0))


PublishedUpdates = Callable[[Running], dict[str, Any]]


class Bench:
    """One case, on which engines are built, checked and timed.

    rounds : int          the messages are processed in so many equal parts, one a round
    windows : mapping     kind to name of a window index, the default one without
    checked, sample       messages and subscriptions that are held against the oracle before timing
    options : mapping     ways to run the default engine: name, to take for that of an engine, to what it sets as
                          `matching.operator.OperatorContext.options`; each is filled to its own taste
    """

    def __init__(
        self, case: Case, rounds: int = 7, *, windows: Mapping[str, str] | None = None, checked: int | None = None,
        sample: int | None = None, options: Mapping[str, Mapping[str, str]] | None = None,
    ):  # fmt: skip
        self.case, self.kind, self.rounds = case, case.kind, rounds
        self._windows, self._options = dict(windows or {}), dict(options or {})
        # of a kind without results all messages are there to be checked, and there are no more
        spare = len(case.messages) - case.filled - case.timed
        self.checked = checked or spare if case.kind.standing else min(checked or _CHECKED, case.timed)
        evenly, most = _SAMPLE[case.kind.windowed]
        self._sampled = sample or evenly, most
        self._full = case.boundary(0, 0, case.filled)
        self._filled: dict[str | None, State] = {}
        self._sample: SubscriptionTable | None = None
        self._expected: Expected | None = None
        # Whoever leaves is picked at random: the latest to come would be the cheapest to forget.
        self._leaving = np.random.default_rng([int(case.facts.get("seed", 0)), 4]).permutation(len(case.table))
        self.workload: dict[str, Any] = dict(case.facts)
        if self.kind.windowed:
            self.workload["window_index"] = self.kind.window(self._windows.get(self.kind.name)).name

    def build(self, name: str | None = None) -> Running:
        """An engine of the case's kind, the default one without a name, with every subscription, over a full window."""
        state, alone, messages, ends = self.filled(name), self._alone(name), NO_MESSAGES, self.case.ends
        if self.kind.windowed:
            messages = self.case.messages.take(np.arange(self.case.filled)).alive(self._full.floor)
        ended = None if ends is None else ends[: self.case.filled][ends[: self.case.filled] >= 0]
        running = Running(
            alone, self._full, Stopwatch(alone.operator, alone.window_index if alone.window_indexes else None)
        )
        begun = perf_counter()
        alone.restore(self._full, messages, {self.kind.code: state}, ended)
        running.build_s = perf_counter() - begun - running.watch.seconds.get("window", 0.0)
        return running

    def filled(self, name: str | None = None) -> State:
        """All subscriptions in order of the table, and what is kept of each, at the boundary before the first batch."""
        # a skyline's state is that of its engine, which no other one restores
        key = name if self.kind.code == SKYLINE or name in self._options else None
        if key not in self._filled:
            self._filled[key] = self._fill(name) if self.kind.windowed else State.of(self.case.table)
        return self._filled[key]

    def check(self, engines: Sequence[Running]) -> list[dict[str, Any]]:
        """Process the first batches behind `build`, and hold what some subscriptions are told against the oracle.

        Says of each engine what `benchmarks.command` says, how many results, refills, expired and ended messages were
        compared, and medians over these batches, for engines so slow that nothing more can be asked of them.
        """
        before, most_s = [running.refills for running in engines], math.inf if self.kind.standing else _MOST_CHECK_S
        turns = zip(*(self._take(running, self.checked, most_s) for running in engines), strict=True)
        reports = []
        for running, refilled, taken in zip(engines, before, zip(*turns, strict=True), strict=True):
            boundaries, steps, seconds = zip(*taken, strict=True)
            sizes = [each.last_seq + 1 - each.first_seq for each in boundaries]
            updates, done = concatenate([step.updates for step in steps]), sum(sizes)
            pace_s = float(np.median(np.divide(seconds, sizes)))
            report = self._held_against(running, boundaries[-1], updates) | {"messages_timed": done}
            report |= {"us_per_message": 1e6 * pace_s, "updates_per_message": len(updates) / done}
            if self.kind.windowed:
                asked = running.refills - refilled
                report |= {"compared_refills": asked, "refills_per_message": asked / done}
            reports.append(report)
        return reports

    def _held_against(self, running: Running, last: Boundary, updates: UpdateBatch) -> dict[str, Any]:
        """What an engine has told in the batches up to this one, held against the oracle."""
        if self._sample is None:  # that the first engine told most
            self._sample = sampled(self.case.table, updates, *self._sampled)
        if self._expected is None:  # the oracle takes longer than most engines, and they are asked the same
            end, size = self.case.filled + self.checked, self.case.batch
            starts = enumerate(range(self.case.filled, end, size), start=1)
            boundaries = [self.case.boundary(number, at, min(at + size, end)) for number, at in starts]
            self._expected = self.expect(self._sample, boundaries)
        wanted, results = self._expected
        if not self.kind.standing:  # of a slow engine not all of the messages were asked for
            wanted = Counter({event: times for event, times in wanted.items() if event[2] <= last.last_seq})
        same = tally(of_numbers(updates, self._sample.number)) == wanted
        if self.kind.standing:
            same = same and counted(self._held(running, self._sample.number)) == results
        report = verdict(same, sum(wanted.values()), len({event[1] for event in wanted}))
        if self.kind.windowed:
            life, ended = self.case.messages.life[: last.last_seq + 1], 0
            expired = np.count_nonzero((life > self._full.floor) & (life <= last.floor))
            if self.case.ends is not None:
                ended = np.count_nonzero(self.case.ends[self.case.filled : last.last_seq + 1] >= 0)
            report |= {"compared_results": results.total(), "compared_expired": int(expired)}
            report["compared_ended"] = int(ended)
        return report

    def expect(self, sample: SubscriptionTable, boundaries: Sequence[Boundary]) -> Expected:
        """What some subscriptions are told at these boundaries, and hold at the last; computed apart from engines."""
        return told_to(self.case, sample, (self._full, *boundaries))

    def _held(self, running: Running, numbers: Int64) -> model.ResultBatch:
        """What an engine holds of some subscriptions."""
        return of_numbers(running.alone.results(), numbers)

    def memory(self, running: Running) -> dict[str, Any]:
        """Bytes a live subscription of the operator's arrays, or of the peer, and those of the window."""
        live, peer = max(1, len(running.operator)), running.peer
        if peer is not None:
            return {"bytes_per_subscription": peer.size_bytes() / live, "version": peer.version()}
        arrays = running.operator.arrays()
        figures = {"bytes_per_subscription": sum(each.nbytes for each in arrays.values()) / live}
        if not self.kind.standing:
            figures |= searches.apart(arrays, live)
        if self.kind.windowed:
            index = running.alone.window_index
            figures |= {"window_bytes": index.size_bytes(), "order_bytes": index.order_bytes()}
        return figures

    def time(self, running: Running, turn: int, most_s: float = MOST_S, changes: bool = True) -> dict[str, float]:
        """One round: a part of the messages, or fewer where they take longer than `most_s`.

        Without a window some subscriptions then leave and as many others come; with one, coming is a refill like any
        other. Where results last they do so in the last round alone: they begin without results, unlike those before.
        """
        part = -(-self.case.timed // self.rounds)
        if not self.kind.standing:  # of messages nothing is remembered: each round has its own
            at = self.case.filled + turn * part % self.case.timed
            running.boundary = running.boundary._replace(last_seq=at - 1)
            part = min(part, len(self.case.messages) - at)
        refilled, first = running.refills, running.boundary.last_seq + 1
        joined_s = 0.0 if running.peer is None else running.peer.joined_s
        running.watch.seconds = dict.fromkeys(running.watch.seconds, 0.0)
        before = _survivors(running)
        _, steps, seconds = zip(*self._take(running, part, most_s), strict=True)
        elapsed, done = sum(seconds), running.boundary.last_seq + 1 - first
        updates, work = concatenate([step.updates for step in steps]), np.sum([step.work for step in steps], axis=0)
        scanned, verified, matched = (work / done).tolist()
        figures = {"messages_per_s": done / elapsed, "us_per_message": elapsed / done * 1e6, "messages_timed": done}
        if running.peer is None:
            figures |= {"scanned_per_message": scanned, "verified_per_message": verified}
            if self.kind.fades:  # what these engines verify is a text relevance, and each pair has one
                figures["text_relevances_per_message"] = verified
            left = _survivors(running)
            figures |= {f"{name}_per_message": (left[name] - count) / done for name, count in before.items()}
        figures |= {"matched_per_message": matched, "updates_per_message": len(updates) / done}
        if running.peer is not None:
            figures["join_us_per_message"] = (running.peer.joined_s - joined_s) / done * 1e6
        figures["updates_digest"] = _digest(updates)
        if self.kind.windowed:
            parts = running.watch.seconds | {"other": elapsed - sum(running.watch.seconds.values())}
            figures |= {f"share_{name}": spent / elapsed for name, spent in parts.items()}
            figures["refills_per_message"] = (running.refills - refilled) / done
        elif changes and (turn == self.rounds - 1 or not self.kind.cumulative):
            figures |= self._time_changes(running, turn)
        return figures

    def time_alone(self, running: Running, most_s: float = MOST_S) -> dict[str, float]:
        """Milliseconds of a message that is a batch of its own, through the same operator: median and 99th percentile.

        Of a kind without standing results alone, whose messages may come again.
        """
        if self.kind.standing:
            return {}
        running.boundary = running.boundary._replace(last_seq=self.case.filled - 1)
        count = min(_ALONE, len(self.case.messages) - self.case.filled)
        took_ms = [1e3 * seconds for _, _, seconds in self._take(running, count, most_s, 1)]
        middle, last = np.percentile(took_ms, (50, 99))
        return {"alone_p50_ms": float(middle), "alone_p99_ms": float(last), "messages_alone": len(took_ms)}

    def _take(
        self, running: Running, count: int, most_s: float, size: int = 0
    ) -> Iterator[tuple[Boundary, OperatorOutput, float]]:
        """Process so many messages, or fewer if that takes longer: boundary, step and seconds of each batch.

        Batches are of `size`, or else of the case's. What is told of results depends on the boundaries. Without
        results a batch that would take longer than what is left, by how the engine fared last, is a smaller one.
        """
        done, left_s = 0, most_s
        while done < count and (not done or left_s > 0.0):
            some = size or min(count - done, self.case.batch)
            if not (size or self.kind.standing):
                some = int(min(some, max(_FEWEST_A_BATCH, left_s / running.pace_s)))
            first = running.boundary.last_seq + 1
            boundary = self.case.boundary(running.boundary.number + 1, first, first + some)
            messages, ended = self.case.batch_of(boundary)
            step, took = take(running.alone, Batch(boundary, messages, ended=ended))
            running.boundary, running.pace_s = boundary, took / some
            done, left_s = done + some, left_s - took
            yield boundary, step, took

    def _alone(self, name: str | None) -> LocalEngine:
        options = self._options.get(name or "")
        engines = {} if name is None or options else {self.kind.name: name}
        return LocalEngine(
            [self.kind],
            self.case.space,
            self.case.window,
            engines=engines,
            windows=self._windows,
            options=options,
            fading=self.case.fading,
        )

    def _fill(self, name: str | None) -> State:
        """What is kept of all subscriptions, by a refill of each: several cores take some of them each."""
        full, end = self._full, self.case.filled
        messages, ended = self.case.batch_of(full)

        def some(rows: Int64) -> State:
            alone = self._alone(name)
            # two steps, so that the operator sees a window of this length and not a sudden batch
            take(alone, Batch(Boundary(0, 0, -1, NO_FLOOR)))
            take(alone, Batch(full._replace(number=1), messages, ended=ended))
            for number, chunk in enumerate(np.split(rows, range(_CHUNK, rows.shape[0], _CHUNK)), start=2):
                added = self.case.table.take(chunk)
                take(alone, Batch(Boundary(number, end, end - 1, full.floor), added=added))
            return alone.states()[self.kind.code]

        return join_states(on_all_cores(some, len(self.case.table)))

    def _time_changes(self, running: Running, turn: int) -> dict[str, float]:
        """Let some subscriptions leave and as many others come, in batches without messages.

        All of them do, so that each engine goes on with the same ones; those after `_MOST_CHANGES_S` are not timed.
        """
        # few enough that somebody is left to leave in every round
        count, figures = min(len(self.case.fresh), len(self.case.table)) // self.rounds, {}
        for name in ("unsubscribe_per_s", "subscribe_per_s") if count else ():
            spent, timed, at = 0.0, 0, running.boundary.last_seq + 1
            for start in range(0, count, self.case.changes):
                rows = turn * count + np.arange(start, min(start + self.case.changes, count))
                added, removed = self.case.fresh.take(rows), NO_REMOVALS
                if name == "unsubscribe_per_s":
                    number = self.case.table.number[self._leaving[rows]]
                    kinds = np.full(number.shape[0], self.kind.code, np.int8)
                    added, removed = NO_SUBSCRIPTIONS, model.Removals(number, kinds, np.full_like(number, at))
                running.boundary = running.boundary._replace(number=running.boundary.number + 1, first_seq=at)
                seconds = take(running.alone, Batch(running.boundary, NO_MESSAGES, added, removed)).seconds
                if spent < _MOST_CHANGES_S:
                    spent, timed = spent + seconds, timed + rows.shape[0]
            figures[name] = timed / spent
        return figures


def time_beside(
    load: Bench, names: Sequence[str], tell: Tell, told: PublishedUpdates = lambda _: {}, settled: int = 0, **how: Any
) -> dict[str, dict[str, Any]]:
    """Build and check engines, and time them in turns; `how` as of `Bench.time`.

    Says of each engine what was checked, memory, `rounds` one by one and medians over those from round `settled` on,
    how long a message takes alone, memory `at_end`, what is `told` of it then, and `updates_digest`: two checkouts that
    have told the same in as many messages have the same one. An engine is not `exact` either if its timed updates are
    not those of the first one, up to the first round with fewer messages of one of the two.
    """
    built, results = {}, {}
    with ExitStack() as running:
        for name in names:
            tell(f"building {name}")
            built[name] = load.build(name)
            if built[name].peer:
                running.callback(built[name].peer.close)
            tell(f"checking {name} against the oracle")
            (checked,) = load.check([built[name]])
            if "warning" in checked:
                tell(f"{name}: {checked['warning']}")
            if pruning := getattr(built[name].operator.engine, "pruning", None):
                checked["rules"] = pruning._asdict()
            if settled:  # how it settles from the start on is part of what is measured
                built[name] = load.build(name)
            results[name] = checked | {"build_s": built[name].build_s} | load.memory(built[name])

        def one(name: str, turn: int) -> dict[str, float]:
            tell(f"turn {turn + 1} of {load.rounds}: {name}")
            return load.time(built[name], turn, **how)

        for name, rounds in in_turns(names, load.rounds, one).items():
            results[name] |= medians(rounds[settled:] or rounds) | told(built[name])
            results[name]["updates_digest"] = sum(each["updates_digest"] for each in rounds)
            results[name] |= load.time_alone(built[name], how.get("most_s", MOST_S))
            results[name] |= {"rounds": rounds, "at_end": load.memory(built[name])}
    first = next(iter(results.values()), {})
    for name, result in results.items():
        if not compare_rounds(first["rounds"], result["rounds"])[1]:
            tell(f"{name}: its updates are not those of {names[0]}")
            result["exact"] = False
    return results


def compare_rounds(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> tuple[int, bool]:
    """How many rounds, from the first on, were of equally many messages, and whether their updates were the same."""
    pairs = zip(one, other, strict=False)
    alike = list(takewhile(lambda two: two[0]["messages_timed"] == two[1]["messages_timed"], pairs))
    names = "updates_per_message", "updates_digest"
    return len(alike), all(here[name] == there[name] for here, there in alike for name in names)


def told_to(case: Case, sample: SubscriptionTable, boundaries: Sequence[Boundary]) -> Expected:
    """What some subscriptions are told behind the first boundary; of kinds without window the oracle says it."""
    if case.kind.windowed:
        return expected(case.messages, sample, boundaries, case.space.max_distance, case.ends)
    whole = Boundary(0, boundaries[0].last_seq + 1, boundaries[-1].last_seq, NO_FLOOR)
    rows, _ = case.batch_of(whole)
    return Expected(tally(Oracle(None, case.space.max_distance).advance(whole, rows, sample, NO_REMOVALS)), Counter())


def held_against(
    case: Case, told: UpdateBatch, boundaries: Sequence[Boundary], sample: tuple[int, int]
) -> tuple[bool, int, int]:
    """What was told behind the first boundary, the `same` or not; updates expected, and of how many subscriptions."""
    after, last = boundaries[0].last_seq, boundaries[-1].last_seq
    told = take_rows(told, (told.as_of > after) & (told.as_of <= last))
    some = sampled(case.table, told, *sample)
    wanted = told_to(case, some, boundaries).updates
    return tally(of_numbers(told, some.number)) == wanted, wanted.total(), len({event[1] for event in wanted})


def on_all_cores(some: Callable[[Int64], Any], count: int, pieces: int = 1) -> list[Any]:
    """Give every core so many pieces of the rows up to `count`: kernels let go of the interpreter."""
    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(some, np.array_split(np.arange(count), cores * pieces)))


def _survivors(running: Running) -> dict[str, int]:
    """Pairs that have survived each stage of the matches so far; none of an engine that does not count them."""
    return getattr(running.operator.engine, "survivors", dict)()


def _digest(told: UpdateBatch) -> int:
    """Of updates in any order: as of when, who, which message, and what has become of it."""
    mixed = np.zeros(len(told), np.uint64)
    for column in told[:4]:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return int(mixed.sum())
