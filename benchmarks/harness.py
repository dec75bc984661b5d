"""One harness for every kind: engines are built, held against the oracle, and timed as `skyray run` would run them.

What is driven is `matching.alone.Alone`: the room of the kind over its real window index, batch by batch, with the
messages that end, refills and all. The window is full and every subscription is in before the first batch: one bulk
refill fills what is kept of them, and every engine continues from that state as from a checkpoint, so that nobody has
to stream a million messages to reach it. `benchmarks.stopwatch` tells the shares of the time. `benchmarks.run` drives
this, and so do the figures (`benchmarks.figures.topk`, `benchmarks.figures.boolean`).
"""

import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import zip_longest
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.checker import Expected, sampled, told_to
from benchmarks.command import Tell
from benchmarks.peers import Peer
from benchmarks.stopwatch import Stopwatch, in_turns, medians
from benchmarks.verdict import verdict
from benchmarks.workload import NO_REMOVALS, WORLD
from matching.alone import Alone
from matching.boolean.engine import BooleanEngine
from matching.kind import Question, Step, Work
from matching.model import (
    NO_MESSAGES,
    Int64,
    MessageBatch,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
)
from matching.naive import Result, tally
from matching.storage.state import State, join_states
from matching.topk.engines.skype import Skype
from matching.window import NO_FLOOR, Boundary

#: Subscriptions that ask for the window together when it is filled.
_CHUNK = 20_000
_FEWEST_A_BATCH = 100
_FAST_S = 1e-6
#: A round of a slow engine, and its changes, stop after so long; a check of one that tells match by match likewise.
MOST_S, _MOST_CHANGES_S, _MOST_CHECK_S = 10.0, 3.0, 20.0
#: Subscriptions that are checked, spread evenly, and those told most, of a kind that has a window or has none.
_SAMPLE = {True: (500, 1_500), False: (5_000, 1_000)}
#: Messages that are checked of a kind without window.
_CHECKED = 1_000


class Running:
    """An engine with every subscription in it, and where in the stream it is.

    Attributes
    ----------
    alone : Alone
    boundary : Boundary    the last one it has taken
    watch : Stopwatch
    build_s : float        how long it took to take in all subscriptions and what is kept of them
    pace_s : float         seconds a message took in its last batch; until there is one it is taken for fast
    """

    def __init__(self, alone: Alone, boundary: Boundary, watch: Stopwatch, build_s: float):
        self.alone, self.boundary, self.watch = alone, boundary, watch
        self.build_s = build_s
        self.pace_s = _FAST_S

    @property
    def room(self) -> Any:
        """The room of its kind; of which sort it is knows whoever asks for more than `matching.kind.Room` has."""
        return self.alone.room

    def close(self) -> None:
        """Give back what a peer holds."""
        if isinstance(engine := getattr(self.room, "engine", None), Peer):
            engine.close()


Told = Callable[[Running], dict[str, Any]]


class Bench:
    """One case, on which engines are built, checked and timed.

    Attributes
    ----------
    checked : int             messages behind the first boundary that are held against the oracle

    Parameters
    ----------
    case : Case
    rounds : int              the messages are processed in so many equal parts, one a round
    windows : mapping         kind to name of a window index, the default one without
    checked : int             messages held against the oracle before timing, by default all that a case has for it, or
                              1,000 of those that are timed where it has none
    sample : int              subscriptions that are checked
    options : mapping         ways to run the default engine: name, to take for that of an engine, to what it sets as
                              `matching.kind.Site.options`; each is filled to its own taste
    """

    def __init__(
        self,
        case: Case,
        rounds: int = 7,
        *,
        windows: Mapping[str, str] | None = None,
        checked: int | None = None,
        sample: int | None = None,
        options: Mapping[str, Mapping[str, str]] | None = None,
    ):
        self.case, self.kind, self.rounds = case, case.kind, rounds
        self.windows, self._options = dict(windows or {}), dict(options or {})
        self._part = -(-case.timed // rounds)
        # of a kind without results all messages are there to be checked, and there are no more
        spare = len(case.messages) - case.filled - case.timed
        self.checked = checked or spare if case.kind.standing else min(checked or _CHECKED, case.timed)
        self._sample_size = sample or _SAMPLE[case.kind.windowed][0]
        self._full = case.boundary(0, 0, case.filled)
        self._filled: dict[str | None, State] = {}
        self._sample: SubscriptionTable | None = None
        #: What a window has answered, by the question: engines that are filled one by one ask the same.
        self._answers: dict[tuple[bytes, ...], Any] = {}
        #: What the oracle told of the sample, by the boundaries of the batches: updates, and results at the end.
        self._told: dict[tuple[Boundary, ...], Expected] = {}
        # Whoever leaves is picked at random: the latest to come would be the cheapest to forget.
        self._leaving = np.random.default_rng([int(case.facts.get("seed", 0)), 4]).permutation(len(case.table))
        self.workload: dict[str, Any] = dict(case.facts)
        if self.kind.windowed:
            self.workload["window_index"] = self.kind.window(self.windows.get(self.kind.name)).name

    def build(self, name: str | None = None) -> Running:
        """An engine of the case's kind, the default one without a name, with every subscription, over a full window."""
        alone = self._alone(name)
        state, messages = self.filled(name), self._alive(self._full)
        watch, begun = Stopwatch(alone.room, alone.share if alone.shares else None), perf_counter()
        alone.restore(self._full, messages, {self.kind.code: state})
        build_s = perf_counter() - begun
        if self.kind.windowed:
            self.workload.setdefault("window_load_s", watch.seconds["window"])
            build_s -= watch.seconds["window"]
        return Running(alone, self._full, watch, build_s)

    def filled(self, name: str | None = None) -> State:
        """All subscriptions in order of the table, and what is kept of each, at the boundary before the first batch."""
        key = name if self.kind.kept_by_engine or name in self._options else None
        if key not in self._filled:
            begun = perf_counter()
            self._filled[key] = self._fill(name) if self.kind.windowed else State.of(self.case.table)
            if self.kind.windowed:
                self.workload.setdefault("bulk_refill_s", perf_counter() - begun)
        return self._filled[key]

    def check(self, running: Running) -> dict[str, Any]:
        """What `check_in_turns` says of one engine."""
        return self.check_in_turns([running])[0]

    def check_in_turns(self, engines: Sequence[Running]) -> list[dict[str, Any]]:
        """Process the first batches, and hold what is told of some subscriptions against the oracle.

        Returns
        -------
        list of dict
            Of each engine what `benchmarks.verdict` says; of kinds with results also `compared_results`, of those with
            a window the refills, and the messages that expired or were ended, in the batches that were compared; and
            medians over these batches, for engines so slow that nothing more can be asked of them.
        """
        before = [_refills(running) for running in engines]
        turns = zip_longest(*(self._take_checked(running) for running in engines))
        reports = []
        for running, refilled, taken in zip(engines, before, zip(*turns, strict=True), strict=True):
            batches = [each for each in taken if each is not None]
            updates = concatenate([step.updates for _, step, _ in batches])
            report = self._held_against(running, [boundary for boundary, _, _ in batches], updates)
            done = batches[-1][0].last_seq - batches[0][0].first_seq + 1
            report |= {"us_per_message": 1e6 * median(pace_s for _, _, pace_s in batches), "messages_timed": done}
            report["updates_per_message"] = len(updates) / done
            if self.kind.windowed:
                asked = _refills(running) - refilled
                report |= {"compared_refills": asked, "refills_per_message": asked / done}
            if not self.kind.standing:
                report["checked_messages"] = done
                self._start_over(running)
            reports.append(report)
        return reports

    def _held_against(self, running: Running, boundaries: list[Boundary], updates: UpdateBatch) -> dict[str, Any]:
        """What an engine has told in these batches, held against the oracle."""
        if self._sample is None:  # that the first engine told most
            self._sample = sampled(self.case.table, updates, self._sample_size, _SAMPLE[self.kind.windowed][1])
        sample, asked = self._sample, tuple(boundaries)
        if not self.kind.standing:
            asked = (self.case.boundary(1, self.case.filled, self.case.filled + self.checked),)
        if asked not in self._told:  # the oracle takes longer than most engines, and they ask the same
            self._told[asked] = self.expect(sample, asked)
        wanted, standing = self._told[asked]
        if not self.kind.standing:  # of a slow engine not all of the messages were asked for
            last = boundaries[-1].last_seq
            wanted = Counter({event: times for event, times in wanted.items() if event[2] <= last})
        same = tally(of_numbers(updates, sample.number)) == wanted
        if self.kind.standing:
            same = same and results_of(self._held(running, sample.number)) == standing
        report = verdict(same, sum(wanted.values()), len({event[1] for event in wanted}))
        if self.kind.windowed:
            report |= {"compared_results": sum(standing.values())} | self._gone(boundaries[-1])
        return report

    def expect(self, sample: SubscriptionTable, boundaries: Sequence[Boundary]) -> Expected:
        """What some subscriptions are told at these boundaries, and hold at the last; computed apart from engines."""
        return told_to(self.case, sample, (self._full, *boundaries))

    def _held(self, running: Running, numbers: Int64) -> ResultBatch:
        """What an engine holds of some subscriptions."""
        return of_numbers(running.alone.results(), numbers)

    def _gone(self, last: Boundary) -> dict[str, int]:
        """How many messages of the window have expired or been ended at a boundary since it was full."""
        life = self.case.messages.life[: last.last_seq + 1]
        gone = {"compared_expired": int(np.count_nonzero((life > self._full.floor) & (life <= last.floor)))}
        if self.case.ends is not None:
            ends = self.case.ends[self.case.filled : last.last_seq + 1]
            gone["compared_ended"] = int(np.count_nonzero(ends >= 0))
        return gone

    def memory(self, running: Running) -> dict[str, Any]:
        """Bytes a live subscription of the room's arrays, those of the window, peak of the whole process so far."""
        room = running.room
        live, engine = max(1, len(room)), getattr(room, "engine", None)
        if isinstance(engine, Peer):
            return {"bytes_per_subscription": engine.size_bytes() / live, "version": engine.version()}
        figures: dict[str, Any] = {"bytes_per_subscription": sum(each.nbytes for each in room.arrays().values()) / live}
        if isinstance(engine, BooleanEngine):
            figures["allocated_bytes_per_subscription"] = engine.allocated_bytes() / live
        if self.kind.windowed:
            figures["window_bytes"] = running.alone.share.size_bytes()
        return figures | {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    def time(self, running: Running, turn: int, most_s: float = MOST_S, changes: bool = True) -> dict[str, float]:
        """One round: a part of the messages, batch by batch, or fewer where they take longer than `most_s`.

        Without a window a batch that would take an engine longer than that, by how it fared last, is a smaller one, and
        some subscriptions then leave and as many others come; with one, coming is a refill like any other.
        """
        work, updates, done, elapsed = Work(), 0, 0, 0.0
        refilled = _refills(running)
        running.watch.reset()
        while done < self._part and (not done or elapsed < most_s):
            # with a window what is told depends on the boundaries: whoever is slow gets fewer batches, not smaller ones
            fits = self._part - done
            if not self.kind.windowed:
                fits = max(_FEWEST_A_BATCH, int(min((most_s - elapsed) / running.pace_s, fits)))
            _, batch, step = self._take(running, min(fits, self._part - done))
            took = running.pace_s * len(batch)
            elapsed, done, updates = elapsed + took, done + len(batch), updates + len(step.updates)
            work = work.plus(step.work)
        figures = {"messages_per_s": done / elapsed, "us_per_message": elapsed / done * 1e6, "messages_timed": done}
        if not isinstance(getattr(running.room, "engine", None), Peer):
            figures |= {"scanned_per_message": work.scanned / done, "verified_per_message": work.verified / done}
        figures |= {"matched_per_message": work.matched / done, "updates_per_message": updates / done}
        if self.kind.windowed:
            figures["refills_per_message"] = (_refills(running) - refilled) / done
            shares = running.watch.split(elapsed)
            figures |= {f"share_{name}": seconds / elapsed for name, seconds in shares.items()}
        elif changes:
            figures |= self._time_changes(running, turn)
        return figures

    # -- the stream

    def _take(self, running: Running, most: int) -> tuple[Boundary, MessageBatch, Step]:
        """Process the next batch, of at most so many messages; notes the pace."""
        if running.boundary.last_seq + 1 >= len(self.case.messages):
            self._start_over(running)
        first = running.boundary.last_seq + 1
        end = min(first + min(most, self.case.batch), len(self.case.messages))
        boundary = self.case.boundary(running.boundary.number + 1, first, end)
        batch, ended = self.case.batch_of(boundary)
        begun = perf_counter()
        step = running.alone.process(boundary, batch, empty(SubscriptionTable), NO_REMOVALS, ended)
        running.pace_s = (perf_counter() - begun) / len(batch)
        running.boundary = boundary
        return boundary, batch, step

    def _take_checked(self, running: Running) -> Iterator[tuple[Boundary, Step, float]]:
        """Process the batches that are checked; yields what was told and how many seconds a message took.

        Where updates depend on the boundaries, all engines get the same ones, however long that takes. Where they do
        not, a slow engine gets fewer messages.
        """
        done, elapsed = 0, 0.0
        size = self.checked if self.kind.standing else _FEWEST_A_BATCH
        while done < self.checked and (not done or self.kind.standing or elapsed < _MOST_CHECK_S):
            boundary, batch, step = self._take(running, min(size, self.checked - done))
            done, elapsed = done + len(batch), elapsed + running.pace_s * len(batch)
            if not self.kind.standing:
                # the first call says little: it fills caches and compiles statements
                size = max(1, min(8 * done, int((_MOST_CHECK_S - elapsed) / running.pace_s)))
            yield boundary, step, running.pace_s

    def _start_over(self, running: Running) -> None:
        """Of a kind without results, back to the first batch: of messages nothing is remembered."""
        assert not self.kind.standing, "the stream of a case with results is as long as what is asked of it"
        running.boundary = running.boundary._replace(last_seq=self.case.filled - 1)

    def _alive(self, boundary: Boundary) -> MessageBatch:
        """The messages of the window."""
        if not self.kind.windowed:
            return NO_MESSAGES
        end = boundary.last_seq + 1
        alive = self.case.messages.life[:end] > boundary.floor
        if self.case.ends is not None:
            ends = self.case.ends[:end]
            alive[ends[ends >= 0]] = False
        return self.case.messages.take(np.flatnonzero(alive))

    # -- filling

    def _alone(self, name: str | None) -> Alone:
        options = self._options.get(name or "")
        engines = {} if name is None or options else {self.kind.name: name}
        return Alone([self.kind], WORLD, self.case.window, engines=engines, windows=self.windows, options=options,
                     fading=self.case.fading)  # fmt: skip

    def _fill(self, name: str | None) -> State:
        """What is kept of all subscriptions, by a refill of each: several cores take some of them each."""

        def some(rows: Int64) -> State:
            alone, end = self._alone(name), self.case.filled
            if self.kind.kept_by_engine:
                self._answer_once(alone)
            # two steps, so that the room sees a window of this length and not a sudden batch
            alone.process(Boundary(0, 0, -1, NO_FLOOR), NO_MESSAGES, empty(SubscriptionTable), NO_REMOVALS)
            (whole, ended), full = self.case.batch_of(self._full), self._full
            alone.process(full._replace(number=1), whole, empty(SubscriptionTable), NO_REMOVALS, ended)
            for number, first in enumerate(range(0, rows.shape[0], _CHUNK), start=2):
                added = self.case.table.take(rows[first : first + _CHUNK])
                alone.process(Boundary(number, end, end - 1, full.floor), NO_MESSAGES, added, NO_REMOVALS)
            return alone.states()[self.kind.code]

        cores = os.cpu_count() or 1
        # the kernels let go of the interpreter, and nothing is timed here
        with ThreadPoolExecutor(cores) as pool:
            return join_states(list(pool.map(some, np.array_split(np.arange(len(self.case.table)), cores))))

    def _answer_once(self, alone: Alone) -> None:
        """Let a window be asked by the first engine alone; what others ask as well is not asked anew."""
        answer = alone.share.answer

        def once(question: Question) -> Any:
            key = tuple(column.tobytes() for column in question.rows)
            if key not in self._answers:
                self._answers[key] = answer(question)
            return self._answers[key]

        alone.share.answer = once

    # -- changes

    def _time_changes(self, running: Running, turn: int) -> dict[str, float]:
        """Let some subscriptions leave and as many others come, in batches without messages."""
        # few enough that somebody is left to leave in every round
        size = min(len(self.case.fresh), len(self.case.table)) // self.rounds
        leaving = self.case.table.number[self._leaving[turn * size : (turn + 1) * size]]
        coming = self.case.fresh.take(np.arange(turn * size, turn * size + leaving.shape[0]))
        if not leaving.shape[0]:
            return {}
        at, code = running.boundary.last_seq + 1, self.kind.code

        def gone(rows: Int64) -> tuple[SubscriptionTable, Removals]:
            number = leaving[rows]
            removed = Removals(number, np.full_like(number, code, np.int8), np.full_like(number, at))
            return empty(SubscriptionTable), removed

        ways = {"unsubscribe_per_s": gone, "subscribe_per_s": lambda rows: (coming.take(rows), NO_REMOVALS)}
        figures = {}
        for name, change in ways.items():
            calls = [change(rows) for rows in _cut(leaving.shape[0], self.case.changes)]
            begun, done = perf_counter(), 0
            for added, removed in calls:
                boundary = running.boundary._replace(number=running.boundary.number + 1, first_seq=at)
                running.alone.process(boundary, NO_MESSAGES, added, removed)
                running.boundary = boundary
                done += len(added) + removed.number.shape[0]
                if perf_counter() - begun > _MOST_CHANGES_S:
                    break
            figures[name] = done / (perf_counter() - begun)
        return figures


def time_beside(
    load: Bench, names: Sequence[str], tell: Tell, told: Told = lambda _: {}, settled: int = 0, **how: Any
) -> dict[str, dict[str, Any]]:
    """Build and check engines, and time them in turns.

    Parameters
    ----------
    told : callable    what more to report of an engine at the end
    settled : int      from which round on it counts
    **how              as of `Bench.time`

    Returns
    -------
    dict    of each engine what was checked, memory, `rounds` one by one and medians over them, memory `at_end`
    """
    built, results = {}, {}
    with ExitStack() as running:
        for name in names:
            tell(f"building {name}")
            built[name] = load.build(name)
            running.callback(built[name].close)
            tell(f"checking {name} against the oracle")
            checked = load.check(built[name])
            if "warning" in checked:
                tell(f"{name}: {checked['warning']}")
            if isinstance(engine := getattr(built[name].room, "engine", None), Skype):
                checked["rules"] = engine.pruning._asdict()
            if settled:  # how it settles from the start on is part of what is measured
                built[name] = load.build(name)
            results[name] = checked | {"build_s": built[name].build_s} | load.memory(built[name])

        def one(name: str, turn: int) -> dict[str, float]:
            tell(f"turn {turn + 1} of {load.rounds}: {name}")
            return load.time(built[name], turn, **how)

        for name, rounds in in_turns(names, load.rounds, one).items():
            results[name] |= medians(rounds[settled:] or rounds) | told(built[name])
            results[name] |= {"rounds": rounds, "at_end": load.memory(built[name])}
    return results


def _cut(count: int, size: int) -> list[Int64]:
    """Rows of each call."""
    return [np.arange(first, min(first + size, count)) for first in range(0, count, size)]


def _refills(running: Running) -> int:
    """Subscriptions that have asked the window so far."""
    return int(running.room.report().get("refills", 0))


def of_numbers(rows: Any, numbers: Int64) -> Any:
    """Those rows of updates or results that are of these subscriptions."""
    mine = np.isin(rows.number, numbers)
    columns = rows._asdict()
    return type(rows)(**{name: column if column is None else column[mine] for name, column in columns.items()})


def results_of(rows: ResultBatch) -> Counter:
    """Results as comparable tuples, counted."""
    text = np.full(len(rows), np.nan) if rows.text_score is None else rows.text_score
    columns = (column.tolist() for column in (*rows[:4], text))
    return Counter(comparable(Result(*row)) for row in zip(*columns, strict=True))


def comparable(result: Result) -> tuple:
    """As something that equals itself: without a text score that is not a number."""
    return tuple(value for value in result if value == value)
