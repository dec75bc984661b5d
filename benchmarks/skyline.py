"""The `skyline` benchmark: how fast engines keep skylines over a window that is full from the start.

Messages are those of `benchmarks.workload`. A tenth of them are new versions of objects: each ends a message of the
window that no other version has ended. Subscriptions take after messages: their words, and around their place a region
of the shape of the world and 0.01 % to 1 % of its area. What is timed is the whole of `matching.skyline.stream`, the
storing into the window included (`share_window`); `benchmarks.run` drives this class.
"""

from collections import Counter
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.workload import WORLD, Messages, boolean_subscriptions, make_messages
from matching.model import SKYLINE, Int64, Removals, SubscriptionTable, empty
from matching.naive import Extras, Oracle, tally
from matching.registry import factory
from matching.skyline.il_quadtree import IlQuadtree
from matching.skyline.stream import SkylineStream
from matching.skyline.window import SkylineWindow
from matching.window import Boundary, Window

_BATCH = 1_000
#: A turn ends after the batch in which this is reached: recomputing engines would take hours for what others do.
_MOST_S = 10.0
_CHECKED_SUBSCRIPTIONS = 40
_UPDATES = 0.1
#: Smallest and largest side of a region as a share of the world's: 0.01 % and 1 % of the area.
_SIDES = (0.01, 0.1)


def skyline_subscriptions(messages: Messages, count: int, seed: int) -> SubscriptionTable:
    """`count` skyline subscriptions that take after random messages; area uniform between the two limits."""
    table = boolean_subscriptions(messages, count, seed)
    side = np.sqrt(np.random.default_rng([seed, 5]).uniform(_SIDES[0] ** 2, _SIDES[1] ** 2, count))
    half_width, half_height = side * (WORLD.east - WORLD.west) / 2.0, side * (WORLD.north - WORLD.south) / 2.0
    lon, lat = (table.region[:, 0] + table.region[:, 2]) / 2.0, (table.region[:, 1] + table.region[:, 3]) / 2.0
    region = np.stack(
        [
            np.maximum(lon - half_width, WORLD.west),
            np.maximum(lat - half_height, WORLD.south),
            np.minimum(lon + half_width, WORLD.east),
            np.minimum(lat + half_height, WORLD.north),
        ],
        axis=1,
    )
    return SubscriptionTable(**table._asdict() | {"kind": np.full(count, SKYLINE, np.int8), "region": region})


def make_versions(count: int, window: int, share: float, seed: int) -> Int64:
    """Which message each one ends (int64[count], -1 for none): an earlier one that is still in the window."""
    rng = np.random.default_rng([seed, 6])
    newer = np.flatnonzero(rng.random(count) < share)
    older = newer - rng.integers(1, window, newer.shape[0])
    ends = np.full(count, -1, np.int64)
    # of all versions that would end the same message the first one does
    keep = older >= 0
    newer, older = newer[keep], older[keep]
    older, first = np.unique(older, return_index=True)
    ends[newer[first]] = older
    return ends


class SkylineBench:
    """One workload, on which engines are built, checked and timed.

    Parameters
    ----------
    subscriptions : int
    messages : int     timed at most, a seventh of them a turn; an engine that takes long gets fewer
    window : int       messages the window holds
    rounds : int
    seed : int
    updates : float    share of messages that are new versions of objects in the window
    index : SkylineWindow class    the window index of every engine
    """

    def __init__(
        self,
        subscriptions: int,
        messages: int | None,
        window: int | None,
        rounds: int,
        seed: int,
        *,
        updates: float = _UPDATES,
        index: type[SkylineWindow] = IlQuadtree,
    ):
        timed, self._length = messages or 14_000, window or 100_000
        self.rounds = rounds
        self._part = -(-timed // rounds)
        self._batch = min(_BATCH, self._part)
        self.window = Window("count", self._length)
        count = self._length + self._batch + self._part * rounds + rounds * self._batch
        made = make_messages(count, seed)
        self._messages = made.batch
        self._table = skyline_subscriptions(made, subscriptions, seed)
        self._ends = make_versions(count, self._length, updates, seed)
        self._index = index
        self._window_s: dict[int, float] = {}
        self._full = Boundary(0, 0, self._length - 1, -1)
        begun = perf_counter()
        filled = index()
        filled.store(self._full, self._messages.take(np.arange(self._length)), self._ended(0, self._length))
        self._window_arrays = filled.arrays()
        self.workload: dict[str, Any] = {
            "subscriptions": subscriptions,
            "messages": self._part * rounds,
            "batch": self._batch,
            "window": str(self.window),
            "window_index": index.__name__,
            "updates": updates,
            "seed": seed,
            "terms_per_message": round(self._messages.terms.shape[0] / count, 2),
            "keywords_per_subscription": round(self._table.terms.shape[0] / max(1, subscriptions), 2),
            "window_load_s": perf_counter() - begun,
            "window_bytes": sum(array.nbytes for array in self._window_arrays.values()),
        }

    def build(self, name: str) -> SkylineStream:
        """A stream with every subscription in it, filled from the full window."""
        stream = SkylineStream(factory("skyline", name)(WORLD), self._index.from_arrays(self._window_arrays))
        stream.start_at(self._full, self._table)
        self._clock_window(stream)
        return stream

    def check(self, engine: SkylineStream) -> dict[str, Any]:
        """Process the first batch untimed, and hold the updates of some subscriptions against the oracle's."""
        stride = max(1, len(self._table) // _CHECKED_SUBSCRIPTIONS)
        sample = self._table.take(np.arange(0, len(self._table), stride)[:_CHECKED_SUBSCRIPTIONS])
        boundary = self._next(engine)
        updates = self._process(engine, boundary)
        asked = set(sample.number.tolist())
        found = Counter({event: times for event, times in tally(updates).items() if event[1] in asked})
        results = engine.results()
        mine = np.isin(results.number, sample.number)
        told = {
            tuple(row) for row in zip(*(column[mine].tolist() for column in results if column is not None), strict=True)
        }
        expected, wanted = self._expected(sample, boundary)
        return {"exact": found == expected and told == wanted, "checked_updates": sum(expected.values())} | {
            "checked_results": len(wanted)
        }

    def memory(self, engine: SkylineStream) -> dict[str, Any]:
        """Bytes of the engine's arrays a subscription, entries kept of each."""
        count = max(1, len(engine))
        return {
            "bytes_per_subscription": engine.engine.bytes() / count,
            "kept_per_subscription": engine.engine.entries() / count,
        }

    def time(self, engine: SkylineStream, turn: int) -> dict[str, float]:
        """Process the engine's next batches, a turn's share of them or as many as fit the time."""
        before, begun, done, updates = engine.work, perf_counter(), 0, 0
        window_s = self._window_s[id(engine)]
        while done < self._part and perf_counter() - begun < _MOST_S:
            updates += len(self._process(engine, self._next(engine)))
            done += self._batch
        elapsed = perf_counter() - begun
        work = engine.work
        return {
            "messages_per_s": done / elapsed,
            "us_per_message": elapsed / done * 1e6,
            "messages_timed": done,
            "scanned_per_message": (work.scanned - before.scanned) / done,
            "verified_per_message": (work.fetched - before.fetched) / done,
            "matched_per_message": (work.matched - before.matched) / done,
            "ended_per_message": (work.ended - before.ended) / done,
            "refills_per_message": (work.refilled - before.refilled) / done,
            "updates_per_message": updates / done,
            "share_window": (self._window_s[id(engine)] - window_s) / elapsed,
        }

    def _ended(self, first: int, end: int) -> Int64:
        ends = self._ends[first:end]
        return ends[ends >= 0]

    def _next(self, engine: SkylineStream) -> Boundary:
        last = engine.boundary.last_seq + self._batch
        return Boundary(engine.boundary.number + 1, last + 1 - self._batch, last, last - self._length)

    def _process(self, engine: SkylineStream, boundary: Boundary):
        nobody = np.zeros(0, np.int64)
        rows = np.arange(boundary.first_seq, boundary.last_seq + 1)
        return engine.process(
            boundary,
            self._messages.take(rows),
            self._ended(boundary.first_seq, boundary.last_seq + 1),
            empty(SubscriptionTable),
            Removals(nobody, nobody.astype(np.int8), nobody),
        )

    def _expected(self, sample: SubscriptionTable, boundary: Boundary):
        """Updates of the sample at the first boundary and its results there, by `matching.naive`."""
        end = boundary.last_seq + 1
        messages = self._messages.take(np.arange(end))
        row = np.repeat(np.arange(end), np.diff(messages.term_offsets))
        wanted = np.zeros(end, np.bool_)
        for number in range(len(sample)):
            west, south, east, north = sample.region[number]
            terms = sample.terms[sample.term_offsets[number] : sample.term_offsets[number + 1]]
            shares = np.zeros(end, np.bool_)
            shares[row[np.isin(messages.terms, terms)]] = True
            inside = (west <= messages.west) & (messages.west <= east)
            inside &= (south <= messages.south) & (messages.south <= north)
            wanted |= shares & inside
        # versions of an object form a chain; a link is told by the seq at its beginning
        newer = np.flatnonzero(self._ends[:end] >= 0)
        objects = np.arange(end)
        for seq in newer.tolist():
            objects[seq] = objects[self._ends[seq]]
        wanted = np.isin(objects, objects[wanted])  # the others are nobody's: a gap in seq says the same
        oracle, nobody = Oracle(self.window, WORLD.max_distance), np.zeros(0, np.int64)
        nothing = Removals(nobody, nobody.astype(np.int8), nobody)
        told = Counter()
        for step, changes in ((self._full, sample), (boundary, empty(SubscriptionTable))):
            rows = step.first_seq + np.flatnonzero(wanted[step.first_seq : step.last_seq + 1])
            extras = Extras(object_id=objects[rows].tolist())
            told = tally(oracle.advance(step, self._messages.take(rows), changes, nothing, extras))
        return told, {tuple(result) for result in oracle.results()}

    def _clock_window(self, stream: SkylineStream) -> None:
        """Add up how long the stream's window takes to store batches."""
        store: Any = stream.window.store
        window: Any = stream.window

        def clocked(*args: Any) -> None:
            begun = perf_counter()
            store(*args)
            self._window_s[id(stream)] += perf_counter() - begun

        self._window_s[id(stream)] = 0.0
        window.store = clocked
