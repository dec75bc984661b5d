"""The `boolean` benchmark: how fast engines match, take in and forget subscriptions, and what that costs in memory.

`benchmarks.run` drives this class and its like for other kinds, and `benchmarks.boolean_figures` does; the data comes
by the recipe in `benchmarks.workload`. Beside the engines stand the peers (`benchmarks.peers`), what a user would take
instead. A slow one is given fewer messages: each turn ends at its time limit.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers import PEERS, Peer
from benchmarks.resampled import resample_messages
from benchmarks.workload import (
    PLAIN_BOOLEAN,
    REGIONS,
    WORLD,
    BooleanRecipe,
    Messages,
    boolean_subscriptions,
    make_messages,
    widened,
)
from matching.boolean.engine import BooleanEngine
from matching.errors import ConfigError
from matching.model import Int32, Int64, MessageBatch, Removals, SubscriptionTable
from matching.naive import Oracle
from matching.registry import factory
from matching.window import NO_FLOOR, Boundary

#: Messages that subscriptions take after; none of them is timed.
_HISTORY = 200_000
#: Subscriptions change in calls of this many, as a batch of a live stream brings them.
_CHANGES_A_CALL = 1_000
_CALLS_A_ROUND = 10
_CHECKED_SUBSCRIPTIONS, _CHECKED_MESSAGES, _CHECKED_FOUND = 5_000, 1_000, 500


#: A turn of a slow engine, and its changes, stop after about so long.
_MOST_S, _MOST_CHANGES_S = 6.0, 3.0
#: The check of a slow engine stops after about so long, but never before so many messages.
_MOST_CHECK_S, _FEWEST_CHECKED = 20.0, 16


class Matched(NamedTuple):
    """What `match_within` came to: the pairs of the first `messages` of a batch, its work, and how long it took."""

    number: Int64
    row: Int32
    scanned: int
    verified: int
    messages: int
    elapsed_s: float


class BooleanBench:
    """One workload, on which engines are built, checked and timed.

    Parameters
    ----------
    subscriptions, messages : int    how many there are, and how many are timed
    window : None                    boolean subscriptions have none
    rounds : int                     the messages are matched in so many equal parts, one a round
    seed : int
    messages_from : str              ETL output directory whose messages are resampled; synthetic ones without
    recipe : BooleanRecipe           what the workload is like
    checked : (int, int)             subscriptions and messages of the sample that the oracle is asked about

    Raises
    ------
    ConfigError
        If the recipe asks of real messages what only synthetic ones have.
    """

    def __init__(
        self,
        subscriptions: int,
        messages: int | None,
        window: int | None,
        rounds: int,
        seed: int,
        *,
        messages_from: str | None = None,
        recipe: BooleanRecipe = PLAIN_BOOLEAN,
        checked: tuple[int, int] = (_CHECKED_SUBSCRIPTIONS, _CHECKED_MESSAGES),
    ):
        count = messages or 20_000
        if messages_from is None:
            made = make_messages(_HISTORY + count, seed, WORLD, recipe, _HISTORY)
        else:
            plain = recipe._replace(keywords=PLAIN_BOOLEAN.keywords, regions=PLAIN_BOOLEAN.regions, shape="point")
            if plain != PLAIN_BOOLEAN:
                raise ConfigError("real messages have their own places and words: vary keywords, regions, shape alone")
            made = resample_messages(messages_from, _HISTORY + count, seed, WORLD)
        history = Messages(made.batch.take(np.arange(_HISTORY)), made.idf)
        fresh = _CHANGES_A_CALL * _CALLS_A_ROUND * rounds
        everybody = boolean_subscriptions(history, subscriptions + fresh, seed, recipe=recipe)
        self._table = everybody.take(np.arange(subscriptions))
        self._fresh = everybody.take(np.arange(subscriptions, subscriptions + fresh))
        self._messages = made.batch.take(np.arange(_HISTORY, _HISTORY + count))
        if recipe.shape == "range":
            self._messages = widened(self._messages, seed)
        self._parts = [self._messages.take(rows) for rows in np.array_split(np.arange(count), rounds) if rows.shape[0]]
        # Whoever leaves is picked at random: the latest to come would be the cheapest to forget.
        self._leaving = np.random.default_rng([seed, 4]).permutation(subscriptions)
        #: Numbers that the oracle was asked about, and all their pairs.
        self._sample: tuple[Int64, list[tuple[int, int]]] | None = None
        self._checked = checked
        self._paces: dict[int, float] = {}
        self.rounds = rounds
        self.workload: dict[str, Any] = {
            "subscriptions": subscriptions,
            "messages": count,
            "seed": seed,
            "terms_per_message": round(self._messages.terms.shape[0] / count, 2),
            "keywords_per_subscription": round(self._table.terms.shape[0] / max(1, subscriptions), 2),
            "terms": int(made.idf.shape[0]),
            "wide_share": REGIONS[recipe.regions][2],
            "changes_per_call": _CHANGES_A_CALL,
            **recipe.facts(),
        }
        if messages_from is not None:
            self.workload |= {"messages_from": messages_from, "places": "real", "words": "real"}

    def build(self, name: str) -> BooleanEngine | Peer:
        """An engine or a peer with every subscription."""
        return self.build_with(PEERS[name](WORLD) if name in PEERS else factory("boolean", name)(WORLD))

    def build_with(self, engine: Any) -> Any:
        """Give an empty engine every subscription."""
        engine.insert(self._table)
        return engine

    def check(self, engine: BooleanEngine | Peer) -> dict[str, Any]:
        """Hold the engine's matches against the oracle's on a sample: all pairs of some subscriptions and messages.

        The subscriptions are spread evenly; those that the first engine to be checked finds are added, since a few
        thousand out of a million may match nothing. A slow engine is asked for fewer of the messages;
        `checked_messages` says for how many.
        """
        messages = self._messages.take(np.arange(min(self._checked[1], len(self._messages))))
        hits = match_within(engine, messages, _MOST_CHECK_S)
        self._paces[id(engine)] = hits.messages / hits.elapsed_s
        if self._sample is None:
            stride = max(1, len(self._table) // self._checked[0])
            some = hits.number[:: max(1, hits.number.shape[0] // _CHECKED_FOUND)]
            picked = np.union1d(np.arange(0, len(self._table), stride), some)
            self._sample = picked, sorted(_oracle_pairs(self._table.take(picked), messages))
        picked, pairs = self._sample
        among = np.isin(hits.number, picked)
        found = sorted(zip(hits.number[among].tolist(), messages.seq[hits.row[among]].tolist(), strict=True))
        until = int(messages.seq[hits.messages - 1])
        wanted = [pair for pair in pairs if pair[1] <= until]
        return {"exact": found == wanted, "checked_matches": len(wanted), "checked_messages": hits.messages}

    def memory(self, engine: BooleanEngine | Peer) -> dict[str, Any]:
        """Bytes a live subscription: of the arrays that are the state, and of what is allocated, room included."""
        if isinstance(engine, Peer):
            return {"bytes_per_subscription": engine.size_bytes() / max(1, len(engine)), "version": engine.version()}
        state = sum(array.nbytes for array in engine.arrays().values())
        return {
            "bytes_per_subscription": state / max(1, len(engine)),
            "allocated_bytes_per_subscription": engine.allocated_bytes() / max(1, len(engine)),
        }

    def time(
        self, engine: BooleanEngine | Peer, turn: int, most_s: float = _MOST_S, changes: bool = True
    ) -> dict[str, float]:
        """One round: match a part of the messages, then let some subscriptions leave and as many others come."""
        hits = match_within(engine, self._parts[turn % len(self._parts)], most_s, self._paces.get(id(engine), 0.0))
        count = hits.messages
        figures = {"messages_per_s": count / hits.elapsed_s, "us_per_message": 1e6 * hits.elapsed_s / count}
        if not isinstance(engine, Peer):
            figures |= {"scanned_per_message": hits.scanned / count, "verified_per_message": hits.verified / count}
        figures |= {"matched_per_message": hits.number.shape[0] / count, "matched_messages": count}
        # few enough that somebody is left to leave in every round
        size = min(_CHANGES_A_CALL * _CALLS_A_ROUND, len(self._table) // self.rounds)
        leaving = self._leaving[turn * size : (turn + 1) * size]
        if leaving.shape[0] and changes:
            figures["unsubscribe_per_s"] = _rate(engine.remove, _cut(leaving))
            coming = self._fresh.take(np.arange(turn * size, turn * size + leaving.shape[0]))
            figures["subscribe_per_s"] = _rate(
                engine.insert, [coming.take(rows) for rows in _cut(np.arange(len(coming)))]
            )
        return figures


def match_within(engine: Any, batch: MessageBatch, most_s: float, pace: float = 0.0) -> Matched:
    """Match a batch in calls that grow, until all is matched or the time is up.

    Parameters
    ----------
    engine : BooleanEngine or Peer
    most_s : float    no call is begun afterwards, and none is expected to end much later
    pace : float      messages a second that the engine is known to do: the first call is as large as that allows
    """
    numbers, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    done, scanned, verified, elapsed_s = 0, 0, 0, 0.0
    size = max(_FEWEST_CHECKED, int(pace * most_s))
    while done < len(batch) and (elapsed_s < most_s or not done):
        part = batch.take(np.arange(done, min(done + size, len(batch)))) if size < len(batch) - done or done else batch
        begun = perf_counter()
        hits = engine.match(part)
        elapsed_s += perf_counter() - begun
        numbers.append(hits.number)
        rows.append(hits.row + np.int32(done))
        scanned, verified, done = scanned + hits.scanned, verified + hits.verified, done + len(part)
        # the first calls say little: they fill caches and compile statements
        size = max(1, min(8 * done, int((most_s - elapsed_s) * done / elapsed_s)))
    return Matched(np.concatenate(numbers), np.concatenate(rows), scanned, verified, done, elapsed_s)


def _cut(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[start : start + _CHANGES_A_CALL] for start in range(0, rows.shape[0], _CHANGES_A_CALL)]


def _rate(change: Any, calls: Sequence[Any]) -> float:
    """Subscriptions a second over all calls, or those that were begun in time."""
    begun, done = perf_counter(), 0
    for argument in calls:
        change(argument)
        done += len(argument)
        if perf_counter() - begun > _MOST_CHANGES_S:
            break
    return done / (perf_counter() - begun)


def _oracle_pairs(sample: SubscriptionTable, messages: MessageBatch) -> list[tuple[int, int]]:
    """(number, seq) of every match, by `matching.naive`."""
    first, last = int(messages.seq[0]), int(messages.seq[-1])
    nobody = np.zeros(0, np.int64)
    updates = Oracle(None, WORLD.max_distance).advance(
        Boundary(0, first, last, NO_FLOOR), messages, sample, Removals(nobody, nobody.astype(np.int8), nobody)
    )
    return [(update.number, update.seq) for update in updates]
