"""The topology of `tests.support.resumable_topologies`, saved by markers, whose last bolt writes to files, by a sink.

Markers go along forward edges, so a judge is never asked for what it keeps: here it keeps nothing, and who asks says
how often it has.
"""

import dataclasses
import pickle
from collections.abc import Mapping

import numpy as np

from bolts.names import IdColumn
from bolts.sinks import FORMS, PartSink, UpdateSink
from matching.model import CHANGES, Names, UpdateBatch
from tests.support.resumable_topologies import WORDS, Count, Ledger, Ruling, Told, ledger
from topology.core.api.component import Bolt, Context, Delivery, Fragment, Saved
from topology.core.api.plan import Plan

#: More than any word is counted.
TOTALS = 1_000


class AskingCount(Count):
    """Knows itself how often each of its words was judged."""

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        self.asked: dict[int, int] = {}

    def _ask(self, word: int) -> None:
        self.asked[word] = self.asked.get(word, 0) + 1
        self.context.emit("asked", Ruling(word, self.context.task, self.asked[word], False), key=word)

    def state(self) -> dict[str, np.ndarray]:
        rows = np.array(sorted(self.asked.items()), np.int64).reshape(-1, 2)
        return super().state() | {"asked": rows}

    def restore(self, saved: Saved) -> None:
        super().restore(saved)
        said = [tuple(row) for task in saved.tasks(self.context.component) for row in task["asked"].tolist()]
        self.asked = {word: times for word, times in said if word % self.context.tasks == self.context.task}


class ForgetfulJudge(Bolt):
    """Keeps nothing."""

    def prepare(self, context: Context) -> None:
        self.context = context

    def execute(self, delivery: Delivery) -> None:
        word, asker, rulings, _ = delivery.payload
        self.context.emit("rulings", Ruling(word, asker, rulings, rulings % 2 == 1), to=asker)


class WritingLedger(Ledger):
    """Writes a row for each total that it is told; goes on in files as the delivery bolt does.

    Parameters
    ----------
    out_dir : str
    sink : str
    small_rows : int or None
        See `PartSink`.
    """

    def __init__(self, out_dir: str, sink: str, small_rows: int | None):
        self.out_dir = out_dir
        self.small_rows = small_rows
        self.sink_name = sink

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        form, small_rows = FORMS[self.sink_name], self.small_rows
        self.sink: UpdateSink = PartSink(f"{self.out_dir}/updates", None, form, context.incarnation, small_rows)
        self.swallow_through = -1
        self.named = _named("word", WORDS), _named("total", TOTALS)

    def execute(self, delivery: Delivery) -> None:
        told: Told = delivery.payload
        super().execute(delivery)
        fresh = told.as_of > self.swallow_through
        if fresh.any():
            words, totals, rulings = (column[fresh] for column in (told.words, told.totals, told.rulings))
            change = (rulings % len(CHANGES)).astype(np.int8)
            rows = UpdateBatch(told.as_of[fresh], words, totals, change, rulings.astype(np.float64))
            self.sink.write(rows, *self.named, self.context.now())

    def finish(self) -> None:
        self.sink.seal(*self.named)

    def cut(self):
        return self.sink.cut(*self.named, self.context.now())

    def outputs(self):
        return self.sink.sealed()

    def state(self) -> dict[str, np.ndarray]:
        written = self.sink.snapshot(*self.named)()
        return super().state() | {f"sink:{name}": values for name, values in written.items()}

    def snapshot(self, stored: Mapping[str, int]) -> Mapping[str, Fragment]:
        """With a fragment that never changes, so that checkpoints share its files."""
        state = self.state()
        return {"": Fragment(lambda: state), "words": Fragment(lambda: {"every_word": np.arange(WORDS)}, 0)}

    def restore(self, saved: Saved) -> None:
        super().restore(saved)
        said = saved.single(self.context.component)
        assert np.array_equal(said.get("every_word", np.arange(WORDS)), np.arange(WORDS))
        parts = {name.removeprefix("sink:"): said[name] for name in said if name.startswith("sink:")}
        self.swallow_through = self.sink.restore(parts).through

    def close(self) -> None:
        self.sink.abandon()


def writing_ledger(
    out_dir: str,
    sink: str,
    batches: int,
    size: int,
    tasks: tuple[int, int, int, int],
    small_rows: int | None = None,
) -> Plan:
    """The topology of this module; `tasks` are dealers, counters, judges, and the number of credits."""
    plan = ledger(batches, size, *tasks)
    for name, bolt in {
        "count": AskingCount(),
        "judge": ForgetfulJudge(),
        "ledger": WritingLedger(out_dir, sink, small_rows),
    }.items():
        plan = with_bolt(plan, name, bolt)
    return plan


def with_bolt(plan: Plan, name: str, bolt: object) -> Plan:
    """The same plan with another bolt in the place of one."""
    components = tuple(
        dataclasses.replace(part, template=pickle.dumps(bolt)) if part.name == name else part
        for part in plan.components
    )
    return dataclasses.replace(plan, components=components)


def _named(what: str, count: int) -> IdColumn:
    column = IdColumn(what)
    column.append(Names.of([f"{what} {number}" for number in range(count)]))
    return column
