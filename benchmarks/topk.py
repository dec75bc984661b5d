"""The `topk` benchmark: how fast engines keep top-k results over a sliding window that is full from the start.

The window, the buffers and the thresholds are made once, in bulk, and given to every engine, so that nobody has to
stream a million messages to reach the steady state. What is timed is the whole of `matching.topk.stream`: matching,
buffers, expiry, updates and refills. `benchmarks.run` drives this class; `benchmarks.workload` has the recipe of the
data.
"""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.workload import WORLD, make_messages, topk_subscriptions
from matching.model import TOPK, Removals, SubscriptionTable, UpdateBatch, empty
from matching.naive import Oracle, tally
from matching.registry import factory
from matching.topk import stream, thresholds
from matching.topk.l2_scan import L2Scan
from matching.topk.skyband import SkybandBuffers
from matching.topk.stream import Step, TopkStream
from matching.topk.window_index import WindowAnswers, WindowIndex, WindowQueries
from matching.window import Boundary, Window

_CHUNK = 20_000


class LocalTopk(stream.LocalTopk):
    """The bare engine, with a watch on its refills."""

    refill_s = 0.0

    def refill(self, query: WindowQueries) -> Step:
        begun = perf_counter()
        step = super().refill(query)
        self.refill_s += perf_counter() - begun
        return step


_MOST_A_BATCH = 5_000
_CHECKED_SUBSCRIPTIONS = 100
_K = 10


class TopkBench:
    """One workload, on which engines are built, checked and timed.

    Parameters
    ----------
    subscriptions : int
    messages : int     timed; the window is full before the first of them
    window : int       messages the window holds
    rounds : int       the messages are processed in so many equal parts, one a round
    seed : int
    """

    def __init__(self, subscriptions: int, messages: int | None, window: int | None, rounds: int, seed: int):
        timed, self._length = messages or 20_000, window or 100_000
        part = -(-timed // rounds)
        self._batch = min(part, _MOST_A_BATCH)
        made = make_messages(self._length + self._batch + part * rounds, seed)
        self._messages = made.batch
        self._table = topk_subscriptions(made, subscriptions, seed, _K)
        self.window = Window("count", self._length)
        self._full = Boundary(0, 0, self._length - 1, -1)
        begun = perf_counter()
        self._window_index = self._fill_window()
        window_s, begun = perf_counter() - begun, perf_counter()
        self._buffers, self._thresholds = self._fill_buffers(None)
        self._filled: dict[str, tuple[dict[str, np.ndarray], np.ndarray]] = {}
        load_s = perf_counter() - begun
        self.rounds = rounds
        self._part = part
        self.workload: dict[str, Any] = {
            "subscriptions": subscriptions,
            "messages": part * rounds,
            "batch": self._batch,
            "window": str(self.window),
            "k": _K,
            "seed": seed,
            "terms_per_message": round(made.batch.terms.shape[0] / len(made.batch), 2),
            "keywords_per_subscription": round(self._table.terms.shape[0] / max(1, subscriptions), 2),
            "terms": int(made.idf.shape[0]),
            "window_load_s": window_s,
            "bulk_refill_s": load_s,
            "window_bytes": sum(array.nbytes for array in self._window_index.arrays().values()),
        }

    def build(self, name: str, rule: str | None = None) -> LocalTopk:
        """An engine with every subscription, its buffer and its threshold; a rule named gets buffers of its own."""
        local = LocalTopk(factory("topk", name)(WORLD), self.window, thresholds.rule(rule))
        if rule is not None and rule not in self._filled:
            self._filled[rule] = self._fill_buffers(rule)
        buffers, least = self._filled[rule] if rule is not None else (self._buffers, self._thresholds)
        slots = local.stream.index.insert(self._table)
        local.stream.index.set_thresholds(slots, least)
        local.stream.buffers = SkybandBuffers.from_arrays(buffers)
        local.stream.start_at(self._full)
        local.window_index = self._window_index.fork()
        return local

    def check(self, engine: LocalTopk) -> dict[str, Any]:
        """Process a batch that is not timed, and hold the updates of some subscriptions against the oracle's."""
        stride = max(1, len(self._table) // _CHECKED_SUBSCRIPTIONS)
        sample = self._table.take(np.arange(0, len(self._table), stride)[:_CHECKED_SUBSCRIPTIONS])
        boundary, batch = self._cut(engine.stream.boundary, 0)
        step = self._process(engine, boundary, batch)
        mine = np.isin(step.updates.number, sample.number)
        found = tally(UpdateBatch(**{name: column[mine] for name, column in step.updates._asdict().items()}))
        wanted = self._expected(sample, boundary, batch)
        return {"exact": found == wanted, "checked_updates": sum(wanted.values())}

    def memory(self, engine: LocalTopk) -> dict[str, Any]:
        """Bytes a live subscription, of the index and of the buffers; peak of the whole process so far."""
        arrays = engine.stream.arrays()
        buffers = sum(value.nbytes for name, value in arrays.items() if name.startswith("buffers_"))
        state = sum(value.nbytes for value in arrays.values())
        live = max(1, len(engine.stream))
        return {
            "bytes_per_subscription": state / live,
            "buffer_bytes_per_subscription": buffers / live,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    def time(self, engine: LocalTopk, turn: int) -> dict[str, float]:
        """One round: a part of the messages, batch by batch."""
        scanned = verified = matched = updates = refilled = done = 0
        elapsed, refilling = 0.0, engine.refill_s
        while done < self._part:
            boundary, batch = self._cut(engine.stream.boundary, self._part - done)
            begun = perf_counter()
            step = self._process(engine, boundary, batch)
            elapsed += perf_counter() - begun
            done += len(batch)
            scanned, verified, matched = scanned + step.scanned, verified + step.verified, matched + step.matched
            updates += len(step.updates)
            refilled += sum(refill.query.number.shape[0] for refill in step.refills)
        return {
            "messages_per_s": done / elapsed,
            "scanned_per_message": scanned / done,
            "verified_per_message": verified / done,
            "matched_per_message": matched / done,
            "updates_per_message": updates / done,
            "refills_per_message": refilled / done,
            "refill_share": (engine.refill_s - refilling) / elapsed,
        }

    def _cut(self, before: Boundary, most: int):
        """The batch behind a boundary; batch 1 is the one that is checked."""
        number, first = before.number + 1, before.last_seq + 1
        count = min(self._batch, most) if most else self._batch
        rows = np.arange(first, first + count)
        last = int(rows[-1])
        return Boundary(number, first, last, self.window.floor(last, 0)), self._messages.take(rows)

    def _process(self, engine: LocalTopk, boundary: Boundary, batch):
        nobody = np.zeros(0, np.int64)
        nothing = Removals(nobody, nobody.astype(np.int8), nobody)
        return engine.process(boundary, batch, empty(SubscriptionTable), nothing)

    def _fill_window(self) -> WindowIndex:
        window_index = WindowIndex(WORLD.max_distance, kept_boundaries=1)
        window_index.load(self._full, self._messages.take(np.arange(self._length)))
        return window_index

    def _fill_buffers(self, rule: str | None) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Buffers and thresholds of all subscriptions by one refill each, as arrays for any engine."""
        filled = TopkStream(L2Scan(WORLD), self.window, rule=thresholds.rule(rule))
        slots = filled.index.insert(self._table)
        filled.start_at(self._full)
        ranks = filled.refill_ranks(slots)
        chunks = [
            np.arange(first, min(first + _CHUNK, len(self._table))) for first in range(0, len(self._table), _CHUNK)
        ]

        def refill(rows: np.ndarray) -> WindowAnswers:
            part = self._table.take(rows)
            columns = (
                part.number,
                part.x,
                part.y,
                part.alpha,
                ranks[rows],
                part.term_offsets,
                part.terms,
                part.weights,
            )
            return self._window_index.query(WindowQueries(0, 0, self._full, -1, *columns))

        # the kernels let go of the interpreter, and nothing is timed here
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for rows, answers in zip(chunks, pool.map(refill, chunks), strict=True):
                filled.load(answers, slots[rows])
        return filled.buffers.arrays(), filled.index.store.columns.threshold[slots]

    def _expected(self, sample: SubscriptionTable, boundary: Boundary, batch):
        """Updates of the sample at the boundary, by `matching.naive`."""
        assert np.all(sample.kind == TOPK)
        oracle = Oracle(self.window, WORLD.max_distance)
        nobody = np.zeros(0, np.int64)
        nothing = Removals(nobody, nobody.astype(np.int8), nobody)
        asked_for = np.zeros(int(self._messages.terms.max()) + 1, np.bool_)
        asked_for[sample.terms] = True
        window = self._messages.take(np.arange(self._length))
        row = np.repeat(np.arange(self._length), np.diff(window.term_offsets))
        wanted = np.unique(row[asked_for[window.terms]])  # the others are nobody's: a gap in seq says the same
        oracle.advance(self._full, window.take(wanted), sample, nothing)
        return tally(oracle.advance(boundary, batch, empty(SubscriptionTable), nothing))
