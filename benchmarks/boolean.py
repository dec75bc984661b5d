"""The `boolean` benchmark: how fast engines match, take in and forget subscriptions, and what that costs in memory.

`benchmarks.run` drives this class and its like for other kinds; `benchmarks.workload` has the recipe of the data.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.workload import WIDE_SHARE, WORLD, Messages, boolean_subscriptions, make_messages
from matching.boolean.engine import BooleanEngine
from matching.model import MessageBatch, Removals, SubscriptionTable
from matching.naive import Oracle
from matching.registry import factory
from matching.window import NO_FLOOR, Boundary

#: Messages that subscriptions take after; none of them is timed.
_HISTORY = 200_000
#: Subscriptions change in calls of this many, as a batch of a live stream brings them.
_CHANGES_A_CALL = 1_000
_CALLS_A_ROUND = 10
_CHECKED_SUBSCRIPTIONS, _CHECKED_MESSAGES = 5_000, 1_000


class BooleanBench:
    """One workload, on which engines are built, checked and timed.

    Parameters
    ----------
    subscriptions, messages : int    how many there are, and how many are timed
    rounds : int                     the messages are matched in so many equal parts, one a round
    seed : int
    """

    def __init__(self, subscriptions: int, messages: int | None, window: int | None, rounds: int, seed: int):
        count = messages or 20_000
        made = make_messages(_HISTORY + count, seed)
        history = Messages(made.batch.take(np.arange(_HISTORY)), made.idf)
        fresh = _CHANGES_A_CALL * _CALLS_A_ROUND * rounds
        everybody = boolean_subscriptions(history, subscriptions + fresh, seed)
        self._table = everybody.take(np.arange(subscriptions))
        self._fresh = everybody.take(np.arange(subscriptions, subscriptions + fresh))
        self._messages = made.batch.take(np.arange(_HISTORY, _HISTORY + count))
        self._parts = [self._messages.take(rows) for rows in np.array_split(np.arange(count), rounds) if rows.shape[0]]
        # Whoever leaves is picked at random: the latest to come would be the cheapest to forget.
        self._leaving = np.random.default_rng([seed, 4]).permutation(subscriptions)
        self.rounds = rounds
        self.workload: dict[str, Any] = {
            "subscriptions": subscriptions,
            "messages": count,
            "seed": seed,
            "terms_per_message": round(self._messages.terms.shape[0] / count, 2),
            "keywords_per_subscription": round(self._table.terms.shape[0] / max(1, subscriptions), 2),
            "terms": int(made.idf.shape[0]),
            "wide_share": WIDE_SHARE,
            "changes_per_call": _CHANGES_A_CALL,
        }

    def build(self, name: str) -> BooleanEngine:
        """An engine with every subscription."""
        engine = factory("boolean", name)(WORLD)
        engine.insert(self._table)
        return engine

    def check(self, engine: BooleanEngine) -> dict[str, Any]:
        """Hold the engine's matches against the oracle's on a sample: all pairs of some subscriptions and messages."""
        messages = self._messages.take(np.arange(min(_CHECKED_MESSAGES, len(self._messages))))
        stride = max(1, len(self._table) // _CHECKED_SUBSCRIPTIONS)
        sample = self._table.take(np.arange(0, len(self._table), stride))
        hits = engine.match(messages)
        among = np.isin(hits.number, sample.number)
        found = sorted(zip(hits.number[among].tolist(), messages.seq[hits.row[among]].tolist(), strict=True))
        wanted = sorted(_oracle_pairs(sample, messages))
        return {"exact": found == wanted, "checked_matches": len(wanted)}

    def memory(self, engine: BooleanEngine) -> dict[str, Any]:
        """Bytes a live subscription: of the arrays that are the state, and of what is allocated, room included."""
        state = sum(array.nbytes for array in engine.arrays().values())
        return {
            "bytes_per_subscription": state / max(1, len(engine)),
            "allocated_bytes_per_subscription": engine.allocated_bytes() / max(1, len(engine)),
        }

    def time(self, engine: BooleanEngine, turn: int) -> dict[str, float]:
        """One round: match a part of the messages, then let some subscriptions leave and as many others come."""
        part = self._parts[turn % len(self._parts)]
        begun = perf_counter()
        hits = engine.match(part)
        match_s = perf_counter() - begun
        count = len(part)
        figures = {
            "messages_per_s": count / match_s,
            "scanned_per_message": hits.scanned / count,
            "verified_per_message": hits.verified / count,
            "matched_per_message": hits.matched / count,
        }
        changes = _CHANGES_A_CALL * _CALLS_A_ROUND
        leaving = self._leaving[turn * changes : (turn + 1) * changes]
        if leaving.shape[0]:
            figures["unsubscribe_per_s"] = leaving.shape[0] / _timed(engine.remove, _cut(leaving))
            coming = self._fresh.take(np.arange(turn * changes, turn * changes + leaving.shape[0]))
            calls = [coming.take(rows) for rows in _cut(np.arange(len(coming)))]
            figures["subscribe_per_s"] = len(coming) / _timed(engine.insert, calls)
        return figures


def _cut(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[start : start + _CHANGES_A_CALL] for start in range(0, rows.shape[0], _CHANGES_A_CALL)]


def _timed(change: Any, calls: Sequence[Any]) -> float:
    """Seconds that all calls take."""
    begun = perf_counter()
    for argument in calls:
        change(argument)
    return perf_counter() - begun


def _oracle_pairs(sample: SubscriptionTable, messages: MessageBatch) -> list[tuple[int, int]]:
    """(number, seq) of every match, by `matching.naive`."""
    first, last = int(messages.seq[0]), int(messages.seq[-1])
    nobody = np.zeros(0, np.int64)
    updates = Oracle(None, WORLD.max_distance).advance(
        Boundary(0, first, last, NO_FLOOR), messages, sample, Removals(nobody, nobody.astype(np.int8), nobody)
    )
    return [(update.number, update.seq) for update in updates]
