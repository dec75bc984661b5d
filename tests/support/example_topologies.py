"""Small components that the engine's own tests wire together; both executors run them.

They stand in an importable module because worker processes must find their classes by name.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from topology.core.api.builder import TopologyBuilder
from topology.core.api.component import Bolt, Context, Delivery, Spout, Tick
from topology.core.api.plan import Plan


class Words(NamedTuple):
    batch: int
    words: np.ndarray


class Counts(NamedTuple):
    batch: int
    words: np.ndarray
    counts: np.ndarray


class Question(NamedTuple):
    asker: int
    batch: int


class Answer(NamedTuple):
    batch: int
    total: int


class NumberSpout(Spout):
    """Clock: `batches` batches of `size` random integers below 50 on stream `words`."""

    def __init__(self, batches: int, size: int = 20, raise_at: int = -1):
        self.batches, self.size, self.raise_at = batches, size, raise_at

    def open(self, context: Context) -> None:
        self.context = context
        self.random = np.random.default_rng(7)

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        assert tick is None
        if number == self.raise_at:
            raise OSError("the source is gone")
        if number >= self.batches:
            return None
        self.context.emit("words", Words(number, self.random.integers(0, 50, self.size)))
        return Tick(number, number * self.size, (number + 1) * self.size - 1)


class PatientSpout(NumberSpout):
    """Waits before each batch, as if its input came so slowly."""

    def __init__(self, batches: int, wait_s: float):
        super().__init__(batches)
        self.wait_s = wait_s

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        self.context.wait(self.wait_s)
        return super().next_batch(number, tick)


class MarkerSpout(Spout):
    """Follows the clock: one marker a tick, with the tick's own span in it."""

    def open(self, context: Context) -> None:
        self.context = context
        self.ticks: list[int] = []

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        assert tick is not None and tick.number == number
        self.ticks.append(number)
        self.context.emit("marks", Words(number, np.array([tick.first_seq, tick.last_seq])))
        return tick

    def report(self) -> dict[str, Any]:
        return {"ticks": self.ticks}


class SplitBolt(Bolt):
    """Sends each counting task its share of the words of a batch (direct), and asks one of them for its total."""

    def prepare(self, context: Context) -> None:
        self.context = context
        self.owed = 0
        self.answers: list[int] = []
        self.marks: list[int] = []

    def execute(self, delivery: Delivery) -> None:
        payload = delivery.payload
        if delivery.stream == "marks":
            self.marks.append(payload.batch)
        elif delivery.stream == "answers":
            self.owed -= 1
            self.answers.append(payload.total)
        else:
            tasks = self.context.size_of("count")
            for task in range(tasks):
                self.context.emit("shares", Words(payload.batch, payload.words[payload.words % tasks == task]), to=task)
            self.context.emit("questions", Question(self.context.task, payload.batch))
            self.owed += 1

    def idle(self) -> bool:
        return self.owed == 0

    def report(self) -> dict[str, Any]:
        return {"answers": self.answers, "marks": self.marks}


class CountBolt(Bolt):
    """Counts words batch by batch; answers questions over a feedback edge."""

    def prepare(self, context: Context) -> None:
        self.context = context
        self.order: list[tuple[int, int]] = []
        self.total = 0

    def execute(self, delivery: Delivery) -> None:
        payload = delivery.payload
        if delivery.stream == "questions":
            if self.context.task == payload.batch % self.context.tasks:
                self.context.emit("answers", Answer(payload.batch, self.total), to=payload.asker)
            return
        self.order.append((delivery.task, payload.batch))
        self.total += len(payload.words)
        self.context.count("words", len(payload.words))
        words, counts = np.unique(payload.words, return_counts=True)
        self.context.emit("counts", Counts(payload.batch, words, counts))

    def report(self) -> dict[str, Any]:
        return {"order": self.order, "total": self.total}


class SumBolt(Bolt):
    """Adds the counts up; acknowledges a batch when every counting task has told its part of it."""

    def prepare(self, context: Context) -> None:
        self.context = context
        self.parts: dict[int, int] = {}
        self.totals: dict[int, int] = {}
        self.heard: list[tuple[int, int]] = []
        self.finishes = 0

    def execute(self, delivery: Delivery) -> None:
        assert self.finishes == 0, "a payload came over a forward edge after finish"
        payload = delivery.payload
        self.heard.append((delivery.task, payload.batch))
        for word, count in zip(payload.words.tolist(), payload.counts.tolist(), strict=True):
            self.totals[word] = self.totals.get(word, 0) + count
        self.parts[payload.batch] = self.parts.get(payload.batch, 0) + 1
        if self.parts[payload.batch] == self.context.size_of("count"):
            self.context.record_latency(0.001)
            self.context.acknowledge(payload.batch)

    def finish(self) -> None:
        self.finishes += 1

    def report(self) -> dict[str, Any]:
        totals = {str(word): count for word, count in sorted(self.totals.items())}
        return {"totals": totals, "heard": self.heard, "finishes": self.finishes}


def word_count(batches: int = 12, size: int = 20, splits: int = 2, counts: int = 3, credits: int = 4) -> Plan:
    """Words to counts with a following spout, shuffle, all and direct edges, and questions answered by feedback."""
    return (
        TopologyBuilder("word-count")
        .spout("numbers", NumberSpout(batches, size), clock=True)
        .spout("marker", MarkerSpout())
        .bolt("split", SplitBolt(), tasks=splits)
        .bolt("count", CountBolt(), tasks=counts)
        .bolt("sum", SumBolt())
        .edge("numbers", "words", "split", "shuffle")
        .edge("marker", "marks", "split", "all")
        .edge("split", "shares", "count", "direct")
        .edge("split", "questions", "count", "all", feedback=True)
        .edge("count", "answers", "split", "direct", feedback=True)
        .edge("count", "counts", "sum", "all")
        .acknowledged_by("sum")
        .build(credits=credits)
    )


def expected_totals(batches: int, size: int) -> dict[str, int]:
    """What `word_count` must add up to, straight from the random numbers."""
    random = np.random.default_rng(7)
    words = np.concatenate([random.integers(0, 50, size) for _ in range(batches)])
    values, counts = np.unique(words, return_counts=True)
    return {str(value): int(count) for value, count in zip(values.tolist(), counts.tolist(), strict=True)}


def unknown_elsewhere(batch: int) -> tuple:
    """A payload of a class that the processes of its receivers do not have."""
    made = globals().setdefault("Unknown", NamedTuple("Unknown", [("batch", int)]))
    return made(batch)


class PassBolt(Bolt):
    """Passes batches on, except for what `trouble` asks for at batch `at` in task 0.

    `trouble`: none, prepare, early (emit in prepare), raise, kill (the process), exit, pause (the process), long (take
    seconds), lock (emit what cannot travel), unpack (emit what cannot be rebuilt), skip (pass nothing on), write (to an
    array already emitted), input (write to the array received), close. `work_loops` makes every batch slow.
    """

    def __init__(self, trouble: str = "none", at: int = 3, work_loops: int = 0):
        self.trouble, self.at, self.work_loops = trouble, at, work_loops

    def prepare(self, context: Context) -> None:
        self.context = context
        context.log.info("prepared", trouble=self.trouble)
        if self.trouble == "prepare":
            raise RuntimeError("no room on this machine")
        if self.trouble == "early":
            context.emit("words", Words(0, np.zeros(1)))

    def execute(self, delivery: Delivery) -> None:
        payload = delivery.payload
        values = np.arange(20_000, dtype=np.float64)
        for _ in range(self.work_loops):
            values = np.sqrt(values + 1.0)
        out = Words(payload.batch, payload.words + 0)
        if payload.batch == self.at and self.context.task == 0:
            if self.trouble == "raise":
                _deeper(payload)
            if self.trouble == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "exit":
                raise SystemExit(9)
            if self.trouble == "pause":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.trouble == "long":
                time.sleep(3.5)
            if self.trouble == "lock":
                self.context.emit("words", (payload.batch, threading.Lock()))
            if self.trouble == "unpack":
                self.context.emit("words", unknown_elsewhere(payload.batch))
            if self.trouble == "skip":
                return
            if self.trouble == "input":
                payload.words[0] = 1
        self.context.emit("words", out)
        if self.trouble == "write":
            out.words[0] += 1

    def close(self) -> None:
        if self.trouble == "close":
            raise OSError("the disk is full")


def _deeper(payload: Words) -> None:
    raise ZeroDivisionError(f"nothing to divide batch {payload.batch} by")


class AckBolt(Bolt):
    """Acknowledges every batch it gets; notes the order of arrival and the sums."""

    def prepare(self, context: Context) -> None:
        self.context = context
        self.order: list[int] = []
        self.sums: list[int] = []

    def execute(self, delivery: Delivery) -> None:
        self.order.append(delivery.payload.batch)
        self.sums.append(int(delivery.payload.words.sum()))
        self.context.acknowledge(delivery.payload.batch)

    def report(self) -> dict[str, Any]:
        return {"order": self.order, "sums": self.sums}


def pipeline(batches: int = 30, size: int = 20, trouble: str = "none", credits: int = 4, **options: Any) -> Plan:
    """Numbers through one passing bolt to one that acknowledges."""
    return (
        TopologyBuilder("pipeline")
        .spout("numbers", NumberSpout(batches, size), clock=True)
        .bolt("pass", PassBolt(trouble, **options))
        .bolt("ack", AckBolt())
        .edge("numbers", "words", "pass", "shuffle")
        .edge("pass", "words", "ack", "shuffle")
        .acknowledged_by("ack")
        .build(credits=credits)
    )


class KeyBolt(Bolt):
    """Sends every word on alone, keyed by itself; acknowledges the batch."""

    def prepare(self, context: Context) -> None:
        self.context = context

    def execute(self, delivery: Delivery) -> None:
        for word in delivery.payload.words.tolist():
            self.context.emit("keyed", Answer(delivery.payload.batch, word), key=word)
        self.context.acknowledge(delivery.payload.batch)


class SeenBolt(Bolt):
    """Remembers the words it got."""

    def prepare(self, context: Context) -> None:
        self.seen: list[int] = []

    def execute(self, delivery: Delivery) -> None:
        self.seen.append(delivery.payload.total)

    def report(self) -> dict[str, Any]:
        return {"seen": self.seen}


def keyed(batches: int, size: int) -> Plan:
    """Every word of every batch to the task that its key names."""
    return (
        TopologyBuilder("keyed")
        .spout("numbers", NumberSpout(batches, size), clock=True)
        .bolt("key", KeyBolt())
        .bolt("seen", SeenBolt(), tasks=3)
        .edge("numbers", "words", "key", "shuffle")
        .edge("key", "keyed", "seen", "fields")
        .acknowledged_by("key")
        .build()
    )


def broadcast(batches: int, size: int, tasks: int) -> Plan:
    """Large batches to every task of one bolt and to another bolt as well."""
    return (
        TopologyBuilder("broadcast")
        .spout("numbers", NumberSpout(batches, size), clock=True)
        .bolt("every", AckBolt(), tasks=tasks)
        .bolt("one", SeenWordsBolt())
        .edge("numbers", "words", "every", "all")
        .edge("numbers", "words", "one", "shuffle")
        .acknowledged_by("every")
        .build()
    )


class SeenWordsBolt(Bolt):
    """Sums batches and says whether their arrays can be written to."""

    def prepare(self, context: Context) -> None:
        self.sums: list[int] = []
        self.writeable = False

    def execute(self, delivery: Delivery) -> None:
        self.sums.append(int(delivery.payload.words.sum()))
        self.writeable |= delivery.payload.words.flags.writeable

    def report(self) -> dict[str, Any]:
        return {"sums": self.sums, "writeable": self.writeable}


class SilentBolt(Bolt):
    """Takes batches and acknowledges none."""

    def prepare(self, context: Context) -> None:
        pass

    def execute(self, delivery: Delivery) -> None:
        pass


def deadlocked() -> Plan:
    """Credits never come back."""
    return (
        TopologyBuilder("stuck")
        .spout("numbers", NumberSpout(9), clock=True)
        .bolt("silent", SilentBolt(), tasks=2)
        .edge("numbers", "words", "silent", "shuffle")
        .acknowledged_by("silent")
        .build(credits=2)
    )


def warm_up_in_steps() -> Iterator[tuple[int, int]]:
    """Stands for kernels that take their time."""
    for done in range(1, 4):
        yield done, 3


def failing_warm_up() -> None:
    """Stands for kernels that do not compile."""
    raise RuntimeError("no compiler")


class CachedWarmUp:
    """Stands for kernels that are all in the cache of this machine, and would not compile."""

    def __call__(self) -> None:
        failing_warm_up()

    def is_done(self) -> bool:
        return True
