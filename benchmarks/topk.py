"""The `topk` benchmark: how fast engines keep top-k results over a sliding window that is full from the start.

The window, the buffers and the thresholds are made once, in bulk, and given to every engine, so that nobody has to
stream a million messages to reach the steady state. What is timed is the whole of `matching.topk.stream`: matching,
buffers, expiry, updates and refills; `benchmarks.stopwatch` tells the shares of these. `benchmarks.run` drives this
class, and so does `benchmarks.figures`; `benchmarks.workload` has the recipe of the data.
"""

import os
import resource
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.resampled import resample_messages
from benchmarks.stopwatch import Stopwatch
from benchmarks.workload import PLAIN, WORLD, TopkRecipe, make_messages, topk_subscriptions
from matching.model import TOPK, MessageBatch, Removals, SubscriptionTable, UpdateBatch, empty
from matching.naive import Oracle, tally
from matching.registry import factory
from matching.topk import thresholds
from matching.topk.index import TopkIndex
from matching.topk.l2_scan import L2Scan
from matching.topk.local import LocalTopk
from matching.topk.skyband import SkybandBuffers
from matching.topk.stream import TopkStream
from matching.topk.window_index import WindowAnswers, WindowIndex, WindowQueries
from matching.topk.window_indexes import window_index
from matching.window import Boundary, Window

_CHUNK = 20_000
_MOST_A_BATCH, _FEWEST_A_BATCH = 5_000, 200
_CHECKED_SUBSCRIPTIONS = 100
_FAST_S = 1e-6
#: A round of a slow engine stops after so long.
_MOST_S = 30.0


class TopkCase(NamedTuple):
    """What a top-k benchmark runs on.

    messages : MessageBatch      the whole stream, seq dense from 0, life as the window wants it
    table : SubscriptionTable    live from the start, numbers from 0
    window : Window
    filled : int                 messages that are in the window (or have left it) before the first batch
    batch : int                  messages a batch
    facts : dict                 of the workload, JSON-ready
    """

    messages: MessageBatch
    table: SubscriptionTable
    window: Window
    filled: int
    batch: int
    facts: dict[str, Any]


def make_case(
    subscriptions: int, timed: int, window: int, batch: int, seed: int, recipe: TopkRecipe, source: str | None
) -> TopkCase:
    """The standard case: synthetic messages, or those of an ETL output directory (`source`) resampled."""
    count = window + batch + timed
    made = resample_messages(source, count, seed, WORLD) if source else make_messages(count, seed)
    table = topk_subscriptions(made, subscriptions, seed, recipe)
    facts = {
        "messages_from": "resampled" if source else "synthetic",
        **{name: list(value) for name, value in recipe._asdict().items()},
        "k": recipe.k[0] if recipe.k[0] == recipe.k[1] else list(recipe.k),
        "seed": seed,
        "terms": int(made.idf.shape[0]),
    }
    return TopkCase(made.batch, table, Window("count", window), window, batch, facts)


class TopkBench:
    """One workload, on which engines are built, checked and timed.

    Parameters
    ----------
    subscriptions : int
    messages : int     timed; the window is full before the first of them
    window : int       messages the window holds
    rounds : int       the messages are processed in so many equal parts, one a round
    seed : int
    recipe : TopkRecipe         what the subscriptions ask for
    messages_from : path        ETL output directory to resample; synthetic messages without
    case : TopkCase             takes the place of all that, but for `messages` and `rounds`
    checked_batches : int       held against the oracle before timing
    checked : int               messages of a checked batch; a full batch without
    """

    def __init__(
        self,
        subscriptions: int,
        messages: int | None,
        window: int | None,
        rounds: int,
        seed: int,
        *,
        recipe: TopkRecipe = PLAIN,
        messages_from: str | None = None,
        case: TopkCase | None = None,
        checked_batches: int = 1,
        checked: int | None = None,
    ):
        timed = messages or 20_000
        self.rounds = rounds
        self._part = -(-timed // rounds)
        self._checked = checked_batches
        if case is None:
            batch = min(self._part, _MOST_A_BATCH)
            before = self._part * rounds + (checked_batches - 1) * batch
            case = make_case(subscriptions, before, window or 100_000, batch, seed, recipe, messages_from)
        self._batch, self._length = case.batch, case.filled
        self._messages, self._table, self.window = case.messages, case.table, case.window
        self._newest_life = np.maximum.accumulate(self._messages.life)  # stream time, where the window goes by time
        self._checked_most = checked or case.batch
        self._watches: dict[int, Stopwatch] = {}
        #: Seconds a message took in an engine's last batch; until there is one it is taken for fast.
        self._pace: defaultdict[int, float] = defaultdict(lambda: _FAST_S)
        #: What the oracle told, by the boundaries of the batches.
        self._told: dict[tuple[Boundary, ...], Counter] = {}
        self._full = self._boundary(0, 0, self._length - 1)
        begun = perf_counter()
        self._window_index = self._fill_window()
        window_s, begun = perf_counter() - begun, perf_counter()
        self._filled: dict[str | None, tuple[dict[str, np.ndarray], np.ndarray]] = {}
        self._filled[None] = self._fill_buffers(None)
        load_s = perf_counter() - begun
        self.workload: dict[str, Any] = {
            "subscriptions": len(self._table),
            "messages": self._part * rounds,
            "batch": self._batch,
            "window": str(self.window),
            **case.facts,
            "terms_per_message": round(self._messages.terms.shape[0] / len(self._messages), 2),
            "keywords_per_subscription": round(self._table.terms.shape[0] / max(1, len(self._table)), 2),
            "window_load_s": window_s,
            "bulk_refill_s": load_s,
            "window_bytes": self._window_index.size_bytes(),
        }

    def build(self, name: str, rule: str | None = None) -> LocalTopk:
        """An engine with every subscription, its buffer and its threshold, and a stopwatch in it.

        A threshold rule that is named gets buffers filled to its own taste.
        """
        return self.build_with(factory("topk", name)(WORLD), rule)

    def build_with(self, index: TopkIndex, rule: str | None = None) -> LocalTopk:
        """As `build`, around an empty index of the caller's."""
        local = LocalTopk(index, self.window, thresholds.rule(rule))
        buffers, least = self.filled(rule)
        slots = local.stream.index.insert(self._table)
        local.stream.index.set_thresholds(slots, least)
        local.stream.buffers = SkybandBuffers.from_arrays(buffers)
        local.stream.start_at(self._full)
        local.window_index = self._window_index.fork()
        self._watches[id(local)] = Stopwatch(local)
        return local

    def filled(self, rule: str | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Buffers, as arrays, and thresholds (float64, in the order of the table) as a rule fills them."""
        if rule not in self._filled:
            self._filled[rule] = self._fill_buffers(rule)
        return self._filled[rule]

    @property
    def table(self) -> SubscriptionTable:
        """The subscriptions."""
        return self._table

    def messages_after(self, count: int) -> MessageBatch:
        """The first `count` messages after the window is full."""
        return self._messages.take(np.arange(self._length, self._length + count))

    def check(self, engine: LocalTopk) -> dict[str, Any]:
        """Process the first batches untimed, and hold the updates of some subscriptions against the oracle's."""
        stride = max(1, len(self._table) // _CHECKED_SUBSCRIPTIONS)
        sample = self._table.take(np.arange(0, len(self._table), stride)[:_CHECKED_SUBSCRIPTIONS])
        batches, found = [], Counter()
        for _ in range(self._checked):
            boundary, batch = self._cut(engine.stream.boundary, self._checked_most)
            batches.append((boundary, batch))
            begun = perf_counter()
            step = self._process(engine, boundary, batch)
            self._pace[id(engine)] = (perf_counter() - begun) / len(batch)
            mine = np.isin(step.updates.number, sample.number)
            found += tally(UpdateBatch(**{name: column[mine] for name, column in step.updates._asdict().items()}))
        asked = tuple(boundary for boundary, _ in batches)
        if asked not in self._told:  # the oracle takes longer than most engines, and they ask the same
            self._told[asked] = self._expected(sample, batches)
        wanted = self._told[asked]
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

    def time(self, engine: LocalTopk, turn: int, most_s: float = _MOST_S) -> dict[str, float]:
        """One round: a part of the messages, batch by batch, or fewer where they take longer than `most_s`.

        A batch that would take an engine longer than that, by how it fared last, is a smaller one.
        """
        scanned = verified = matched = updates = refilled = done = 0
        elapsed = 0.0
        watch = self._watches[id(engine)]
        watch.reset()
        while done < self._part:
            fits = max(_FEWEST_A_BATCH, int(min(most_s / self._pace[id(engine)], self._part - done)))
            boundary, batch = self._cut(engine.stream.boundary, fits)
            begun = perf_counter()
            step = self._process(engine, boundary, batch)
            took = perf_counter() - begun
            self._pace[id(engine)] = took / len(batch)
            elapsed, done = elapsed + took, done + len(batch)
            scanned, verified, matched = scanned + step.scanned, verified + step.verified, matched + step.matched
            updates += len(step.updates)
            refilled += sum(refill.query.number.shape[0] for refill in step.refills)
            if elapsed > most_s:
                break
        return {
            "messages_per_s": done / elapsed,
            "us_per_message": elapsed / done * 1e6,
            "messages_timed": done,
            "scanned_per_message": scanned / done,
            "verified_per_message": verified / done,
            "matched_per_message": matched / done,
            "updates_per_message": updates / done,
            "refills_per_message": refilled / done,
            **{f"share_{name}": seconds / elapsed for name, seconds in watch.split(elapsed).items()},
        }

    def _cut(self, before: Boundary, most: int):
        """The batch behind a boundary."""
        number, first = before.number + 1, before.last_seq + 1
        rows = np.arange(first, first + min(self._batch, most))
        return self._boundary(number, first, int(rows[-1])), self._messages.take(rows)

    def _boundary(self, number: int, first: int, last: int) -> Boundary:
        return Boundary(number, first, last, self.window.floor(last, int(self._newest_life[last])))

    def _process(self, engine: LocalTopk, boundary: Boundary, batch):
        nobody = np.zeros(0, np.int64)
        nothing = Removals(nobody, nobody.astype(np.int8), nobody)
        return engine.process(boundary, batch, empty(SubscriptionTable), nothing)

    def _fill_window(self) -> WindowIndex:
        index = window_index()(WORLD.max_distance, kept_boundaries=1)
        index.load(self._full, self._messages.take(np.arange(self._length)))
        return index

    def _fill_buffers(self, rule: str | None) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Buffers and thresholds of all subscriptions by one refill each, as arrays for any engine."""
        stream = TopkStream(L2Scan(WORLD), self.window, rule=thresholds.rule(rule))
        slots = stream.index.insert(self._table)
        stream.start_at(self._full)
        ranks = stream.refill_ranks(slots)
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
                stream.load(answers, slots[rows])
        return stream.buffers.arrays(), stream.index.store.columns.threshold[slots]

    def _expected(self, sample: SubscriptionTable, batches):
        """Updates of the sample at these boundaries, by `matching.naive`."""
        assert np.all(sample.kind == TOPK)
        oracle = Oracle(self.window, WORLD.max_distance)
        nobody = np.zeros(0, np.int64)
        nothing = Removals(nobody, nobody.astype(np.int8), nobody)
        asked_for = np.zeros(int(max(self._messages.terms.max(), sample.terms.max(initial=0))) + 1, np.bool_)
        asked_for[sample.terms] = True
        window = self._messages.take(np.arange(self._length))
        row = np.repeat(np.arange(self._length), np.diff(window.term_offsets))
        wanted = np.unique(row[asked_for[window.terms]])  # the others are nobody's: a gap in seq says the same
        oracle.advance(self._full, window.take(wanted), sample, nothing)
        told = Counter()
        for boundary, batch in batches:
            told += tally(oracle.advance(boundary, batch, empty(SubscriptionTable), nothing))
        return told
