"""What kinds with lasting results are timed on: a stream that has run for long, and subscriptions that have seen it.

A message becomes a result the rarer the more have gone before it: of n messages the next one is among the k nearest
with a chance of k / n; where scores fade, those of a few half-lives count. So every engine is given the results of a
history (`benchmarks.bulk`), as a checkpoint would give them, and goes on from there.
Subscriptions take after messages that came before the history: k is that of the kind's recipe and keywords are up to
five, as in the papers. Before anything is timed, all results of an engine are compared with those of the bulk routine,
and all that is told of some subscriptions with what the oracle tells. Read on in `benchmarks.harness`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.bulk import best_messages
from benchmarks.cases import MOST_A_BATCH, Case
from benchmarks.harness import MOST_S, NO_REMOVALS, Bench, Running, comparable, of_numbers, results_of
from benchmarks.resampled import resample_messages
from benchmarks.verdict import verdict
from benchmarks.workload import MESSAGES_PER_S, WORLD, Messages, TopkRecipe, changed, make_messages, topk_subscriptions
from matching.fading import Fading
from matching.kind_table import Kind
from matching.lasting.results import ResultRows
from matching.model import Int64, MessageBatch, ResultBatch, SubscriptionTable, concatenate, empty, take_ragged
from matching.naive import DecayModel, Extras, Oracle, tally
from matching.storage.state import Lists, State
from matching.window import Boundary, Window

#: Messages that subscriptions take after, and those of the history: as many as the paper lets pass, but no more than so
#: many a subscription, or a check would have nothing to compare.
_BEFORE, _HISTORY, _A_SUBSCRIPTION = 100_000, 1_000_000, 10
#: Of a kind whose scores fade: ten half-lives, and as many messages are checked whatever enters, but fewer for so many
#: subscriptions that all of them together meet more messages than this.
_FADED, _FADED_CHECKED, _MOST_MET = 200_000, 1_000, 1_000_000_000
#: Half-life and smoothing of the CIQ paper.
HALF_LIFE_S, SMOOTHING = 4_000.0, 0.2
#: So many messages are checked that about so many enter a result, and no more.
_ENTERING, _MOST_CHECKED = 4_000, 10_000
#: Subscriptions that the oracle is asked about: of those whose result changes, and of all, spread evenly.
_CHANGING, _EVENLY = 700, 100
#: Subscriptions whose results are compared with those of the bulk routine, at least, where there are more.
_COMPARED = 1_000_000
_CHANGES_A_CALL, _CALLS_A_ROUND = 1_000, 10
_TIMED = 20_000


def lasting_case(
    kind: Kind,
    subscriptions: int,
    messages: int | None = None,
    history: int | None = None,
    rounds: int = 7,
    seed: int = 0,
    recipe: TopkRecipe | None = None,
    messages_from: str | None = None,
    half_life_s: float = HALF_LIFE_S,
) -> Case:
    """The standard case: history, messages that are checked, messages that are timed, numbered from 0.

    recipe : TopkRecipe     what subscriptions are like
    messages_from : str     ETL output directory whose messages are resampled; synthetic ones without
    half_life_s : float     of a kind whose scores fade
    """
    asked = recipe or TopkRecipe(kind.recipe.k, keywords=kind.recipe.keywords)
    part = -(-(messages or _TIMED) // rounds)
    if kind.fades:
        filled, checked = history or _FADED, min(_FADED_CHECKED, max(100, _MOST_MET // subscriptions))
    else:
        filled = history or min(_HISTORY, _A_SUBSCRIPTION * subscriptions)
        entering = subscriptions * sum(asked.k) / 2 / filled
        checked = int(min(_MOST_CHECKED, max(100, _ENTERING / entering)))
    count = _BEFORE + filled + checked + part * rounds
    timed = bool(kind.columns)
    if messages_from is None:
        drawn = make_messages(count, seed, timed=timed)
    else:
        drawn = resample_messages(messages_from, count, seed, WORLD, timed)
    before = Messages(drawn.batch.take(np.arange(_BEFORE)), drawn.idf)
    coming = _CHANGES_A_CALL * _CALLS_A_ROUND * rounds
    likes = topk_subscriptions(before, subscriptions + coming, seed, asked)
    alpha = likes.alpha if "alpha" in kind.fields else np.full(len(likes), np.nan)
    everybody = changed(likes, kind=np.full(len(likes), kind.code, np.int8), alpha=alpha)
    seq = np.arange(count - _BEFORE)
    stream = changed(drawn.batch.take(np.arange(_BEFORE, count)), seq=seq, life=seq)
    fading = _fading(drawn, half_life_s) if kind.fades else None
    table = everybody.take(np.arange(subscriptions))
    facts = {
        "subscriptions": subscriptions,
        "history": filled,
        "messages": part * rounds,
        "batch": min(part, MOST_A_BATCH),
        "messages_from": "synthetic" if messages_from is None else "resampled",
        "k": list(asked.k),
        "keywords": list(asked.keywords),
        "seed": seed,
        "terms": int(drawn.idf.shape[0]),
        "terms_per_message": round(float(np.diff(stream.term_offsets).mean()), 2),
        "keywords_per_subscription": round(table.terms.shape[0] / max(1, subscriptions), 2),
    }
    if fading is not None:
        facts |= {"alpha": list(asked.alpha), "half_life_s": half_life_s, "smoothing": SMOOTHING}
        facts |= {"arrivals_per_s": MESSAGES_PER_S}
    fresh = everybody.take(np.arange(subscriptions, len(everybody)))
    return Case(
        kind, stream, table, Window("count", filled), filled, part * rounds, facts["batch"], facts,
        fading=fading, fresh=fresh, changes=_CHANGES_A_CALL,
    )  # fmt: skip


def _fading(drawn: Messages, half_life_s: float) -> Fading:
    """How scores fade, with the words of all messages for a collection."""
    batch = drawn.batch
    counts = np.bincount(batch.terms, weights=batch.counts, minlength=drawn.idf.shape[0]).astype(np.int64)
    return Fading.of(half_life_s, SMOOTHING, counts, int(counts.sum()), 0)


class LastingBench(Bench):
    """One case of a kind with lasting results, on which engines are built, checked and timed."""

    def __init__(self, case: Case, rounds: int = 7):
        super().__init__(case, rounds)
        self._checked = len(case.messages) - case.filled - case.timed
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
        self._after = self._bulk(case.filled, case.filled + self._checked, self._compared, before)
        self._asked_about = self._sampled_of(self._after)
        self._wanted_of: tuple[Counter, Counter] | None = None

    def filled(self, name: str | None = None, options: Mapping[str, str] | None = None) -> State:
        """All subscriptions, and their results at the end of the history."""
        state = State.of(self.case.table)
        state.lists["best"] = Lists(self._before.offsets, {"seq": self._before.seq, "key": self._before.key})
        return state

    def check(self, running: Running) -> dict[str, Any]:
        """Process the first batches untimed, and compare.

        Returns
        -------
        dict
            What `benchmarks.verdict` says of all results, or those of a million subscriptions and more, which are
            compared with those of the bulk routine, and of all that was told of the sample, which is compared with what
            the oracle tells; and `compared_results`.
        """
        boundaries, told, last = [], [], self.case.filled + self._checked - 1
        while running.boundary.last_seq < last:
            boundary, _, step = self._take(running, last - running.boundary.last_seq)
            boundaries.append(boundary)
            told.append(of_numbers(step.updates, self._asked_about.number))
        if self._wanted_of is None:
            self._wanted_of = self._ask_oracle(boundaries)
        wanted, standing = self._wanted_of
        found = tally(concatenate(told))
        held = _results(running, self._compared.number)
        same = np.array_equal(held.seq, self._after.seq)
        same = same and np.array_equal(running.room.sign * held.score, self._after.key)
        same = same and found == wanted and results_of(of_numbers(held, self._asked_about.number)) == standing
        report = verdict(same, sum(wanted.values()), len({event[1] for event in wanted}))
        return report | {"compared_results": len(held)}

    def time(self, running: Running, turn: int, most_s: float = MOST_S, changes: bool = True) -> dict[str, float]:
        """One round. Subscriptions come and go after the last: they begin without results, unlike those before."""
        figures = super().time(running, turn, most_s, changes=False)
        return figures | self._time_changes(running, 0) if changes and turn == self.rounds - 1 else figures

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

    def _ask_oracle(self, boundaries: Sequence[Boundary]) -> tuple[Counter, Counter]:
        """Updates of the sample at these boundaries, and its results at the last one.

        Of the history the oracle is told what the bulk routine has found for the sample: if that is right, nothing
        else of it matters, and if it is not, results differ.
        """
        oracle, nobody = Oracle(None, WORLD.max_distance, self._decay_model()), empty(SubscriptionTable)
        mine = np.isin(self.case.table.number, self._asked_about.number)
        seqs = np.unique(self._before.seq[np.repeat(mine, np.diff(self._before.offsets))])
        history = self.case.messages.take(seqs)
        oracle.advance(self._full, history, self._asked_about, NO_REMOVALS, _extras(history))
        told = Counter()
        for boundary in boundaries:
            messages = self.case.messages.take(np.arange(boundary.first_seq, boundary.last_seq + 1))
            told += tally(oracle.advance(boundary, messages, nobody, NO_REMOVALS, _extras(messages)))
        return told, Counter(comparable(result) for result in oracle.results())

    def _decay_model(self) -> DecayModel | None:
        """How scores fade, as the oracle wants it."""
        fading = self.case.fading
        if fading is None:
            return None
        # it divides counts by the number of all words: shares by one come to the same
        shares: Any = dict(enumerate(fading.collection_share.tolist()))
        return DecayModel(fading.log_base_per_s, fading.smoothing, shares, 1, fading.epoch_us)


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


def _results(running: Running, numbers: Int64) -> ResultBatch:
    """What a room holds of some subscriptions, in order of their numbers, which ascend."""
    room = running.room
    slots = room.engine.subscriptions.live_slots()
    there = room.engine.numbers(slots)
    mine = np.flatnonzero(np.isin(there, numbers))
    mine = mine[np.argsort(there[mine])]
    held = room.engine.best.held(slots[mine])
    lengths = np.diff(held.offsets)
    rank = np.arange(held.seq.shape[0]) - np.repeat(held.offsets[:-1], lengths) + 1
    return ResultBatch(np.repeat(there[mine], lengths), rank, held.seq, room.sign * held.key)
