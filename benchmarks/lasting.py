"""Benches of kinds with lasting results: every engine is given those of a history, and goes on from there.

They are filled in bulk, as a checkpoint would give them (`benchmarks.cases` says why), by `best_messages`, which shares
nothing with the engines. Before anything is timed, all results of an engine are compared with those in bulk, and all
that is told of some subscriptions with what the oracle tells.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from benchmarks.cases import Case
from benchmarks.driving import NO_REMOVALS
from benchmarks.harness import Bench, Running, on_all_cores
from matching.bulk_oracle import Expected
from matching.cumulative.results import CumulativeRows
from matching.errors import ConfigError
from matching.half_life import DecayParameters
from matching.local_engine import LocalEngine
from matching.model import Int64, MessageBatch, ResultBatch, SubscriptionTable, UpdateBatch, empty, take_ragged
from matching.naive import Oracle
from matching.naive_rows import DecayModel, Extras, tally
from matching.naive_shapes import EARTH_RADIUS_M
from matching.storage.state import RaggedColumns, State
from matching.window import Boundary

#: Subscriptions that the oracle is asked about: of those whose result changes, and of all, spread evenly.
_CHANGING, _EVENLY = 700, 100
#: Subscriptions whose results are compared with those of the bulk routine, at least, where there are more.
_COMPARED = 1_000_000
_PIECES_A_CORE = 8
#: Messages of the history from which engines estimate: as many as the paper's run has.
_LEARNT = 20_000
#: By how much a logarithm may be off.
_SLACK = 1e-9


def bench_of(case: Case, rounds: int, **how: Any) -> Bench:
    """What measures a case, whatever its kind; `how` as of `Bench`, where results do not last."""
    return LastingBench(case, rounds) if case.kind.cumulative else Bench(case, rounds, **how)


class LastingBench(Bench):
    """One case of a kind with lasting results, on which engines are built, checked and timed.

    `kept` is a folder that has the results of the history, or gets them, for further runs of the same workload.
    """

    def __init__(self, case: Case, rounds: int = 7, kept: str | None = None):
        super().__init__(case, rounds)
        self._before = self.bulk(0, case.filled, case.table) if kept is None else self._kept(Path(kept))
        self.workload["full_share"] = float(np.mean(np.diff(self._before.offsets) == case.table.k))
        # what an engine holds of all of them, told at once, would take more room than the engine
        rows = np.arange(0, len(case.table), max(1, len(case.table) // _COMPARED))
        offsets, at = take_ragged(self._before.offsets, rows)
        before = CumulativeRows(offsets, self._before.seq[at], self._before.key[at])
        self._compared = case.table.take(rows)
        self._after = self.bulk(case.filled, case.filled + self.checked, self._compared, before)
        # those whose results change, whatever an engine says
        entered = np.flatnonzero(self._after.seq >= case.filled)
        changing = np.unique(np.searchsorted(self._after.offsets, entered, side="right") - 1)
        evenly = np.arange(0, rows.shape[0], max(1, rows.shape[0] // _EVENLY))
        changing = changing[:: max(1, changing.shape[0] // _CHANGING)]
        self._sample = self.sample = self._compared.take(np.union1d(changing, evenly))

    def filled(self, name: str | None = None) -> State:
        """All subscriptions, and their results at the end of the history."""
        return state_with(self.case.table, self._before)

    def _kept(self, folder: Path) -> CumulativeRows:
        """The results of the history from a folder, mapped into memory; computed first if it is empty.

        Raises
        ------
        ConfigError
            If the folder is of another workload.
        """
        # rounds, too: more of them have more newcomers, which are drawn together with everybody else
        said, own = folder / "workload.json", {**self.case.facts, "rounds": self.rounds}
        if not said.exists():
            folder.mkdir(parents=True, exist_ok=True)
            for name, column in self.bulk(0, self.case.filled, self.case.table)._asdict().items():
                np.save(folder / f"{name}.npy", column)
            said.write_text(json.dumps(own))
        there = json.loads(said.read_text())
        if other := ", ".join(name for name in sorted(own | there) if own.get(name) != there.get(name)):
            raise ConfigError(f"{folder}: results of another workload ({other} differ); give an empty folder")
        return CumulativeRows(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in CumulativeRows._fields))

    def _alone(self, name: str | None) -> LocalEngine:
        """Likewise, and an engine that estimates from past messages has seen the latest ones of the history."""
        alone = super()._alone(name)
        if (history := getattr(getattr(alone.operator, "engine", None), "history", None)) is not None:
            history.learn(self.case.messages.take(np.arange(max(0, self.case.filled - _LEARNT), self.case.filled)))
        return alone

    def bulk(
        self, first: int, end: int, table: SubscriptionTable, before: CumulativeRows | None = None
    ) -> CumulativeRows:
        """Results of the messages from one to another, beside those of messages before."""
        messages = self.case.messages.take(np.arange(first, end))
        return best_messages(table, messages, self.case.space.max_distance, self.case.fading, before)

    def _held_against(self, running: Running, last: Boundary, updates: UpdateBatch) -> dict[str, Any]:
        """Likewise, and all results are held against those of the bulk routine."""
        report = super()._held_against(running, last, updates)
        same, compared, _ = self.compare_results(running)
        return report | {"exact": report["exact"] and same, "compared_results": compared}

    def compare_results(self, running: Running) -> tuple[bool, int, int]:
        """Whether an engine has the results of the bulk routine behind the messages that are checked.

        Says how many were compared, and how many of them are of those messages.
        """
        held, after = self._held(running, self._compared.number), self._after
        same = np.array_equal(held.seq, after.seq) and np.array_equal(running.operator.sign * held.score, after.key)
        return same, len(held), int(np.count_nonzero(after.seq >= self.case.filled))

    def expect(self, sample: SubscriptionTable, boundaries: Sequence[Boundary]) -> Expected:
        """Of the history the oracle is told what the bulk routine has found for the sample.

        If that is right, nothing else of it matters, and if it is not, results differ.
        """
        model, fading = None, self.case.fading
        if fading is not None:
            # the oracle divides counts by the number of all words: shares by one come to the same
            shares: Any = dict(enumerate(fading.collection_share.tolist()))
            model = DecayModel(fading.log_base_per_s, fading.smoothing, shares, 1, fading.epoch_us)
        oracle, nobody = Oracle(None, self.case.space.max_distance, model), empty(SubscriptionTable)

        def advance(boundary: Boundary, messages: MessageBatch, added: SubscriptionTable) -> Counter:
            extras = Extras(messages.event_time_us.tolist() or None, messages.counts.tolist() or None)
            return tally(oracle.advance(boundary, messages, added, NO_REMOVALS, extras))

        mine = np.isin(self.case.table.number, sample.number)
        history = np.unique(self._before.seq[np.repeat(mine, np.diff(self._before.offsets))])
        advance(self._full, self.case.messages.take(history), sample)
        told = sum((advance(each, self.case.batch_of(each)[0], nobody) for each in boundaries), Counter())
        return Expected(told, Counter(result[:4] for result in oracle.results()))

    def _held(self, running: Running, numbers: Int64) -> ResultBatch:
        """In order of the numbers."""
        operator = running.operator
        slots = operator.engine.subscriptions.find(numbers)
        held = operator.engine.best.rows(slots)
        lengths = np.diff(held.offsets)
        rank = np.arange(held.seq.shape[0]) - np.repeat(held.offsets[:-1], lengths) + 1
        return ResultBatch(np.repeat(numbers, lengths), rank, held.seq, operator.sign * held.key)


def state_with(table: SubscriptionTable, best: CumulativeRows) -> State:
    """The state of an operator whose subscriptions have these results."""
    state = State.of(table)
    state.lists["best"] = RaggedColumns(best.offsets, {"seq": best.seq, "key": best.key})
    return state


def best_messages(
    table: SubscriptionTable, messages: MessageBatch, max_distance: float, fading: DecayParameters | None = None,
    before: CumulativeRows | None = None,
) -> CumulativeRows:  # fmt: skip
    """The k best of these messages, which are in order of time, and of results `before` them; by fading or distance.

    Best first, of equal keys the older first; without fading keys are distances with their sign turned.
    """
    row = np.repeat(np.arange(len(messages)), np.diff(messages.term_offsets))
    # one coordinate, and how far one unit of it is at least
    axis, own, unit = messages.x, table.x, 1.0
    if messages.vector.shape[0]:
        axis, own, unit = messages.vector[:, 2], table.vector[:, 2], EARTH_RADIUS_M * (1.0 - _SLACK)
    order = np.lexsort((row if fading else axis[row], messages.terms))
    posted, terms = row[order], messages.terms[order]
    largest = max(int(terms.max(initial=-1)), int(table.terms.max(initial=-1)))
    starts = np.searchsorted(terms, np.arange(largest + 2))
    offsets = np.concatenate([[0], np.cumsum(table.k, dtype=np.int64)])
    key, seq = np.full(offsets[-1], -np.inf), np.full(offsets[-1], -1, np.int64)
    if before is not None:
        lengths = np.diff(before.offsets)
        at = np.arange(before.seq.shape[0]) + np.repeat(offsets[:-1] - before.offsets[:-1], lengths)
        key[at], seq[at] = before.key, before.seq
    if fading is None:
        kernel, given = _nearest, (axis[posted], own, unit)
    else:
        words = np.bincount(row, weights=messages.counts, minlength=len(messages))
        most_often = np.zeros(largest + 1)  # of each term, the largest share of a message's words
        np.maximum.at(most_often, messages.terms, messages.counts / words[row])
        kernel, given = _faded, (fading, words, most_often, max_distance)

    def some(rows: Int64) -> None:
        kernel(table, messages, rows, starts, posted, offsets, key, seq, *given)

    on_all_cores(some, len(table), _PIECES_A_CORE)
    there = seq >= 0
    return CumulativeRows(np.concatenate([[0], np.cumsum(there)])[offsets], seq[there], key[there])


@njit(cache=True, nogil=True)
def _faded(table, messages, rows, starts, posted, offsets, key, seq, fading, words, most_often, max_distance):
    """Better key and seq from offsets[s] on for the subscriptions of `rows`, best first; seq is -1 where none is.

    The messages of each term lie in order of time. Those of a subscription are taken from the newest back, until all
    that is left is so old that even a message at its place, with its words as often as any message has them, would be
    worth less than its k-th.
    """
    smoothing, share = fading.smoothing, fading.collection_share
    for s in rows:
        mine, whose = key[offsets[s] : offsets[s + 1]], seq[offsets[s] : offsets[s + 1]]
        own, alpha = table.terms[table.term_offsets[s] : table.term_offsets[s + 1]], table.alpha[s]
        text = 1.0
        for term in own:
            text *= (1.0 - smoothing) * most_often[term] + smoothing * share[term]
        # a relevance of 1 would be a bound as well, but texts of several words are worth next to nothing
        relevance = alpha + (1.0 - alpha) * text
        most = math.log(relevance) + _SLACK if relevance > 0.0 else 0.0
        for word in own:
            for at in range(starts[word + 1] - 1, starts[word] - 1, -1):
                row = posted[at]
                lifted = (messages.event_time_us[row] - fading.epoch_us) / 1e6 * fading.log_base_per_s
                if lifted + most < mine[-1]:
                    break
                text = 1.0
                for term in own:
                    count = 0
                    for place in range(messages.term_offsets[row], messages.term_offsets[row + 1]):
                        if messages.terms[place] == term:
                            count = messages.counts[place]
                    text *= (1.0 - smoothing) * (count / words[row]) + smoothing * share[term]
                spatial = 1.0 - _distance(table, s, messages, row) / max_distance
                relevance = alpha * spatial + (1.0 - alpha) * text
                value = math.log(relevance) + lifted if relevance > 0.0 else -math.inf
                _enter(mine, whose, value, messages.seq[row])


@njit(cache=True, nogil=True)
def _nearest(table, messages, rows, starts, posted, offsets, key, seq, xs, own, unit):
    """Likewise by distance. The messages of each term lie in order of one coordinate (`xs`), and are taken from that of
    the subscription (`own`) to its left and right, until what is left is further away in it alone than its k-th; `unit`
    is how far one unit of it is at least.
    """
    for s in rows:
        mine, whose, x = key[offsets[s] : offsets[s + 1]], seq[offsets[s] : offsets[s + 1]], own[s]
        for word in table.terms[table.term_offsets[s] : table.term_offsets[s + 1]]:
            first, end = starts[word], starts[word + 1]
            right = first + np.searchsorted(xs[first:end], x)
            left = right - 1
            while left >= first or right < end:
                # the nearer of the two sides, in x
                go_left = right == end or (left >= first and x - xs[left] <= xs[right] - x)
                place = left if go_left else right
                if abs(xs[place] - x) * unit > -mine[-1]:
                    break
                if go_left:
                    left -= 1
                else:
                    right += 1
                _enter(mine, whose, -_distance(table, s, messages, posted[place]), messages.seq[posted[place]])


@njit(cache=True, nogil=True)
def _distance(table, s, messages, row):
    """As `matching.naive.distance`."""
    if messages.vector.shape[0] > 0:
        a, b = table.vector[s], messages.vector[row]
        dx, dy, dz = a[0] - b[0], a[1] - b[1], a[2] - b[2]
        return 2.0 * EARTH_RADIUS_M * math.asin(min(1.0, 0.5 * math.sqrt((dx * dx + dy * dy) + dz * dz)))
    dx, dy = table.x[s] - messages.x[row], table.y[s] - messages.y[row]
    return math.sqrt(dx * dx + dy * dy)


@njit(cache=True, nogil=True)
def _enter(mine, whose, value, seq):
    """Insert by descending value, of equal ones ascending seq; what is there already, or not among the best, is not."""
    place = mine.shape[0]
    while place > 0 and (
        whose[place - 1] < 0 or value > mine[place - 1] or (value == mine[place - 1] and seq < whose[place - 1])
    ):
        place -= 1
    if place == mine.shape[0] or (place > 0 and whose[place - 1] == seq):
        return
    for i in range(mine.shape[0] - 1, place, -1):
        mine[i], whose[i] = mine[i - 1], whose[i - 1]
    mine[place], whose[place] = value, seq
