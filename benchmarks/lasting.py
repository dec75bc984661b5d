"""Benches of kinds with lasting results: every engine is given those of a history, and goes on from there.

They are filled in bulk (`benchmarks.bulk`), as a checkpoint would give them (`benchmarks.cases` says why). Before
anything is timed, all results of an engine are compared with those of the bulk routine, and all that is told of some
subscriptions with what the oracle tells. Read on in `benchmarks.harness`.
"""

from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.bulk import best_messages
from benchmarks.cases import Case
from benchmarks.checker import Expected
from benchmarks.harness import MOST_S, NO_REMOVALS, Bench, Running, comparable
from benchmarks.workload import WORLD
from matching.lasting.results import ResultRows
from matching.model import Int64, MessageBatch, ResultBatch, SubscriptionTable, UpdateBatch, empty, take_ragged
from matching.naive import DecayModel, Extras, Oracle, tally
from matching.storage.state import Lists, State
from matching.window import Boundary

#: Subscriptions that the oracle is asked about: of those whose result changes, and of all, spread evenly.
_CHANGING, _EVENLY = 700, 100
#: Subscriptions whose results are compared with those of the bulk routine, at least, where there are more.
_COMPARED = 1_000_000


def bench_of(case: Case, rounds: int, **how: Any) -> Bench:
    """What measures a case, whatever its kind; `how` as of `Bench`, where results do not last."""
    return LastingBench(case, rounds) if case.kind.lasting else Bench(case, rounds, **how)


class LastingBench(Bench):
    """One case of a kind with lasting results, on which engines are built, checked and timed.

    Attributes
    ----------
    sample : SubscriptionTable    those that are checked
    """

    def __init__(self, case: Case, rounds: int = 7):
        super().__init__(case, rounds)
        begun = perf_counter()
        self._before = self._bulk(0, case.filled, case.table)
        self.workload["bulk_fill_s"] = perf_counter() - begun
        full = np.diff(self._before.offsets) == case.table.k
        self.workload["full_share"] = float(full.mean())
        if case.kind.nearest and full.any():
            radius = -self._before.key[self._before.offsets[1:][full] - 1] * (WORLD.east - WORLD.west)
            self.workload["radius_degrees"] = np.quantile(radius, (0.1, 0.5, 0.9)).round(4).tolist()
        # what an engine holds of all of them, told at once, would take more room than the engine
        rows = np.arange(0, len(case.table), max(1, len(case.table) // _COMPARED))
        self._compared, before = case.table.take(rows), _of_rows(self._before, rows)
        self._after = self._bulk(case.filled, case.filled + self.checked, self._compared, before)
        self._sample = self.sample = self._sampled_of(self._after)

    def filled(self, name: str | None = None) -> State:
        """All subscriptions, and their results at the end of the history."""
        return state_of(self.case.table, self._before)

    def time(self, running: Running, turn: int, most_s: float = MOST_S, changes: bool = True) -> dict[str, float]:
        """One round. Subscriptions come and go after the last: they begin without results, unlike those before."""
        figures = super().time(running, turn, most_s, changes=False)
        return figures | self._time_changes(running, 0) if changes and turn == self.rounds - 1 else figures

    def _held_against(self, running: Running, boundaries: list[Boundary], updates: UpdateBatch) -> dict[str, Any]:
        """Likewise, and all results are held against those of the bulk routine."""
        report = super()._held_against(running, boundaries, updates)
        held = self._held(running, self._compared.number)
        same = np.array_equal(held.seq, self._after.seq)
        same = same and np.array_equal(running.room.sign * held.score, self._after.key)
        return report | {"exact": report["exact"] and same, "compared_results": len(held)}

    def _bulk(self, first: int, end: int, table: SubscriptionTable, before: ResultRows | None = None) -> ResultRows:
        """Results of the messages from one to another, beside those of messages before."""
        messages = self.case.messages.take(np.arange(first, end))
        return best_messages(table, messages, WORLD.max_distance, self.case.fading, before)

    def _sampled_of(self, after: ResultRows) -> SubscriptionTable:
        """The subscriptions that are checked: of those whose results change, whatever an engine says, and of all."""
        enters = np.flatnonzero(after.seq >= self.case.filled)
        changing = np.unique(np.searchsorted(after.offsets, enters, side="right") - 1)
        some = changing[:: max(1, changing.shape[0] // _CHANGING)]
        evenly = np.arange(0, len(self._compared), max(1, len(self._compared) // _EVENLY))
        return self._compared.take(np.union1d(some, evenly))

    def expect(self, sample: SubscriptionTable, boundaries: Sequence[Boundary]) -> Expected:
        """Of the history the oracle is told what the bulk routine has found for the sample.

        If that is right, nothing else of it matters, and if it is not, results differ.
        """
        oracle, nobody = Oracle(None, WORLD.max_distance, self._decay_model()), empty(SubscriptionTable)
        mine = np.isin(self.case.table.number, sample.number)
        seqs = np.unique(self._before.seq[np.repeat(mine, np.diff(self._before.offsets))])
        history = self.case.messages.take(seqs)
        oracle.advance(self._full, history, sample, NO_REMOVALS, _extras(history))
        told = Counter()
        for boundary in boundaries:
            messages, _ = self.case.batch_of(boundary)
            told += tally(oracle.advance(boundary, messages, nobody, NO_REMOVALS, _extras(messages)))
        return Expected(told, Counter(comparable(result) for result in oracle.results()))

    def _held(self, running: Running, numbers: Int64) -> ResultBatch:
        """In order of the numbers, which ascend."""
        room = running.room
        slots = room.engine.subscriptions.live_slots()
        there = room.engine.numbers(slots)
        mine = np.flatnonzero(np.isin(there, numbers))
        mine = mine[np.argsort(there[mine])]
        held = room.engine.best.held(slots[mine])
        lengths = np.diff(held.offsets)
        rank = np.arange(held.seq.shape[0]) - np.repeat(held.offsets[:-1], lengths) + 1
        return ResultBatch(np.repeat(there[mine], lengths), rank, held.seq, room.sign * held.key)

    def _decay_model(self) -> DecayModel | None:
        """How scores fade, as the oracle wants it."""
        fading = self.case.fading
        if fading is None:
            return None
        # it divides counts by the number of all words: shares by one come to the same
        shares: Any = dict(enumerate(fading.collection_share.tolist()))
        return DecayModel(fading.log_base_per_s, fading.smoothing, shares, 1, fading.epoch_us)


def state_of(table: SubscriptionTable, results: ResultRows) -> State:
    """Subscriptions and their results, as a room takes them."""
    state = State.of(table)
    state.lists["best"] = Lists(results.offsets, {"seq": results.seq, "key": results.key})
    return state


def _extras(messages: MessageBatch) -> Extras:
    """What the oracle asks of messages beside their batch."""
    if not messages.event_time_us.shape[0]:
        return Extras()
    return Extras(messages.event_time_us.tolist(), messages.counts.tolist())


def _of_rows(results: ResultRows, rows: Int64) -> ResultRows:
    """The results of some subscriptions."""
    if rows.shape[0] == results.offsets.shape[0] - 1:
        return results
    offsets, at = take_ragged(results.offsets, rows)
    return ResultRows(offsets, results.seq[at], results.key[at])
