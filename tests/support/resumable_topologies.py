"""A topology that keeps something in every component, can be paused behind any batch, and goes on with other tasks.

Numbers are counted word by word. Whenever the total of a word passes a multiple of five its counting task asks a judge,
who lets it ask again every other time, and tells the total only when it has been judged: late, as a refill is. What was
told must be the same however often a run was paused, whoever counted, and in whatever order parcels came.
"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import xxhash

from bolts.ordering import InOrder
from topology.core.api.builder import TopologyBuilder
from topology.core.api.component import Bolt, Context, Delivery, Saved, Spout, Tick
from topology.core.api.plan import Plan

WORDS = 40
ASKED_EVERY = 5


class Numbers(NamedTuple):
    batch: int
    words: np.ndarray


class Told(NamedTuple):
    """Totals of words behind a batch, and how often each had been judged; `batch` is that of the parcel, -1 if late."""

    batch: int
    as_of: np.ndarray
    words: np.ndarray
    totals: np.ndarray
    rulings: np.ndarray


class Ruling(NamedTuple):
    word: int
    asker: int
    rulings: int
    again: bool


class Chain(Spout):
    """Clock: each number follows from the one before, so that only the last one need be known."""

    def __init__(self, batches: int, size: int):
        self.batches, self.size = batches, size

    def open(self, context: Context) -> None:
        self.context = context
        self.value = 12345

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        if number == self.batches:
            return None
        drawn = []
        for _ in range(self.size):
            self.value = (self.value * 1_103_515_245 + 12_345) % 2**31
            drawn.append((self.value >> 12) % WORDS)
        self.context.emit("words", Numbers(number, np.array(drawn, np.int64)))
        return Tick(number, number * self.size, (number + 1) * self.size - 1)

    def state(self) -> dict[str, np.ndarray]:
        return {"value": np.array(self.value)}

    def restore(self, saved: Saved) -> None:
        self.value = int(saved.single(self.context.component)["value"])


class Marks(Spout):
    """Follows the clock; adds up the seqs it was told."""

    def open(self, context: Context) -> None:
        self.context = context
        self.seqs = self.ticks = 0

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        assert tick is not None and tick.number == number
        self.ticks += 1
        self.seqs += tick.first_seq + tick.last_seq
        self.context.emit("marks", Numbers(number, np.array([tick.last_seq])))
        return tick

    def state(self) -> dict[str, np.ndarray]:
        return {"figures": np.array([self.ticks, self.seqs])}

    def restore(self, saved: Saved) -> None:
        self.ticks, self.seqs = saved.single(self.context.component)["figures"].tolist()

    def report(self) -> dict[str, Any]:
        return {"ticks": self.ticks, "seqs": self.seqs}


class Deal(Bolt):
    """Gives each counting task its words; knows how many it has dealt, which only matters in sum."""

    def prepare(self, context: Context) -> None:
        self.context = context
        self.dealt = 0

    def execute(self, delivery: Delivery) -> None:
        batch, words = delivery.payload
        tasks = self.context.size_of("count")
        for task in range(tasks):
            self.context.emit("shares", Numbers(batch, words[words % tasks == task]), to=task)
        self.dealt += words.shape[0]

    def state(self) -> dict[str, np.ndarray]:
        return {"dealt": np.array(self.dealt)}

    def restore(self, saved: Saved) -> None:
        if self.context.task == 0:
            self.dealt = sum(int(task["dealt"]) for task in saved.tasks(self.context.component))

    def report(self) -> dict[str, Any]:
        return {"dealt": self.dealt}


class Count(Bolt):
    """Counts its words, batch after batch, and has totals judged."""

    def prepare(self, context: Context) -> None:
        self.context = context
        self.inputs = InOrder({"shares": 1, "marks": 1}, name=context.component)
        self.totals: dict[int, int] = {}
        self.awaited: dict[int, deque[tuple[int, int]]] = {}  # word -> batches and totals to be judged, one at a time
        self.ruled: dict[int, int] = {}  # word -> how often it was judged
        self.late = 0

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "rulings":
            return self._hear(delivery.payload)
        self.inputs.put(delivery.payload.batch, delivery.stream, delivery.payload)
        while (ready := self.inputs.pop()) is not None:
            self._count(ready.number, ready.payloads["shares"][0].words)

    def _count(self, batch: int, words: np.ndarray) -> None:
        told = []
        for word, times in zip(*(column.tolist() for column in np.unique(words, return_counts=True)), strict=True):
            before = self.totals.get(word, 0)
            total = self.totals[word] = before + times
            if word in self.awaited:
                self.awaited[word].append((batch, total))
            elif before // ASKED_EVERY != total // ASKED_EVERY:
                self.awaited[word] = deque([(batch, total)])
                self._ask(word)
            else:
                told.append((batch, word, total, 0))
        self._tell(batch, told)

    def _ask(self, word: int) -> None:
        self.context.emit("asked", Ruling(word, self.context.task, self.ruled.get(word, 0), False), key=word)

    def _hear(self, ruling: Ruling) -> None:
        self.ruled[ruling.word] = ruling.rulings
        if ruling.again:
            self._ask(ruling.word)
            return
        self.late += 1
        waiting = self.awaited.pop(ruling.word)
        self._tell(-1, [(batch, ruling.word, total, ruling.rulings) for batch, total in list(waiting)[:1]])
        rest = list(waiting)[1:]
        before = waiting[0][1]
        for place, (batch, total) in enumerate(rest):
            if before // ASKED_EVERY != total // ASKED_EVERY:
                self.awaited[ruling.word] = deque(rest[place:])
                self._ask(ruling.word)
                return
            self._tell(-1, [(batch, ruling.word, total, 0)])
            before = total

    def _tell(self, batch: int, rows: list[tuple[int, int, int, int]]) -> None:
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        self.context.emit("told", Told(batch, *columns))

    def idle(self) -> bool:
        return not self.awaited

    def quiet(self) -> bool:
        return not self.awaited

    def state(self) -> dict[str, np.ndarray]:
        assert not self.awaited and not len(self.inputs)
        ruled = {f"ruled_{name}": values for name, values in _columns(self.ruled).items()}
        return _columns(self.totals) | ruled | {"late": np.array(self.late)}

    def restore(self, saved: Saved) -> None:
        self.inputs = InOrder({"shares": 1, "marks": 1}, saved.number + 1, name=self.context.component)
        said = saved.tasks(self.context.component)
        mine, tasks = self.context.task, self.context.tasks
        self.totals = {word: count for word, count in _rows(said) if word % tasks == mine}
        self.ruled = {word: count for word, count in _rows(said, "ruled_") if word % tasks == mine}
        if self.context.task == 0:
            self.late = sum(int(task["late"]) for task in said)

    def report(self) -> dict[str, Any]:
        return {"late": self.late, "ruled": sum(self.ruled.values())}


class Judge(Bolt):
    """Lets who asks ask again every other time; has feedback inputs only, and so nothing that is saved."""

    def prepare(self, context: Context) -> None:
        self.context = context

    def execute(self, delivery: Delivery) -> None:
        word, asker, rulings, _ = delivery.payload
        self.context.emit("rulings", Ruling(word, asker, rulings + 1, rulings % 2 == 0), to=asker)


class Ledger(Bolt):
    """Hears all that is told, each word's totals in order; acknowledges a batch when every counting task closed it."""

    def prepare(self, context: Context) -> None:
        self.context = context
        self.parts: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.digest = 0
        self.rows = 0

    def execute(self, delivery: Delivery) -> None:
        told = delivery.payload
        for row in zip(*(column.tolist() for column in told[1:]), strict=True):
            as_of, word = row[:2]
            assert self.last.get(word, -1) < as_of, f"word {word} is told as of {as_of} after {self.last[word]}"
            self.last[word] = as_of
            self.digest = (self.digest + xxhash.xxh64_intdigest(np.array(row, np.int64).tobytes())) % 2**64
            self.rows += 1
        if told.batch >= 0:
            self.parts[told.batch] = self.parts.get(told.batch, 0) + 1
            if self.parts[told.batch] == self.context.size_of("count"):
                del self.parts[told.batch]
                self.context.acknowledge(told.batch)

    def state(self) -> dict[str, np.ndarray]:
        return _columns(self.last) | {"digest": np.array(self.digest, np.uint64), "rows": np.array(self.rows)}

    def restore(self, saved: Saved) -> None:
        said = saved.single(self.context.component)
        self.last = dict(_rows([said]))
        self.digest, self.rows = int(said["digest"]), int(said["rows"])

    def report(self) -> dict[str, Any]:
        return {"digest": f"{self.digest:016x}", "rows": self.rows}


def ledger(
    batches: int = 12, size: int = 30, deals: int = 2, counts: int = 3, judges: int = 2, credits: int = 3
) -> Plan:
    """The topology of this module."""
    return (
        TopologyBuilder("ledger")
        .spout("numbers", Chain(batches, size), clock=True)
        .spout("marks", Marks())
        .bolt("deal", Deal(), tasks=deals)
        .bolt("count", Count(), tasks=counts)
        .bolt("judge", Judge(), tasks=judges)
        .bolt("ledger", Ledger())
        .edge("numbers", "words", "deal", "shuffle")
        .edge("marks", "marks", "count", "all")
        .edge("deal", "shares", "count", "direct")
        .edge("count", "asked", "judge", "fields", feedback=True)
        .edge("judge", "rulings", "count", "direct", feedback=True)
        .edge("count", "told", "ledger", "all")
        .acknowledged_by("ledger")
        .build(credits=credits)
    )


def _columns(counts: dict[int, int]) -> dict[str, np.ndarray]:
    words = sorted(counts)
    return {"words": np.array(words, np.int64), "counts": np.array([counts[word] for word in words], np.int64)}


def _rows(tasks, prefix: str = "") -> list[tuple[int, int]]:
    columns = [(task[f"{prefix}words"].tolist(), task[f"{prefix}counts"].tolist()) for task in tasks]
    return [row for each in columns for row in zip(*each, strict=True)]
