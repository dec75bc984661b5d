"""Simulated histories: a topology that is saved as it goes on a simulated disk, disturbed, gone on with, and compared.

One seed gives one history: interleaving, numbers of tasks, cadence of checkpoints, when it is disturbed and how often.
After each death another process goes on as `topology.running` does, perhaps to die while it does; at the end the files
must hold what an undisturbed run told, each row once. At every death whatever has its final name must be readable, hold
nothing that is wrong, and no checkpoint may be lost.
"""

import functools
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol
from unittest import mock

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bolts.names import Digest, IdColumn
from bolts.sinks import JsonLinesPart, PartSink
from matching.errors import EngineError
from matching.model import Names, UpdateBatch
from tests.support.clocks import FakeClock
from tests.support.simulated_disk import Halted, Machine
from topology.core.api.plan import Plan
from topology.core.checkpoint import writer as saving
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints, complete
from topology.core.checkpoint.storage import open_disk
from topology.core.checkpoint.store import CheckpointStore, Manifest
from topology.core.checkpoint.task_states import TaskState
from topology.core.executors.local import run_local
from topology.core.metrics import RunReport

#: What happens to a history; `mixed` draws one of the others for each life.
FAULTS = {
    "step": "the process dies before a step of the executor: killed, or by a failure, in which it cleans up",
    "operation": "the process is killed before an operation of the disk; what was written stays",
    "torn": "the machine stops before an operation: what was not forced to disk is lost or torn",
    "full": "the disk is full for a while; half of the histories are killed besides",
    "clock": "the clock jumps by an hour, forwards and backwards, and the process is killed",
    "zombie": "a process of an older incarnation goes on writing, and the process is killed",
    "damaged": "the process is killed and a file of the newest checkpoint is damaged, cut off or removed",
}
HOUR_S = 3_600.0
FIELDS = ("as_of", "subscription_id", "message_id", "seq", "change", "score")


class Story(Protocol):
    """A topology for histories.

    Attributes
    ----------
    name : str
    teller : str    component that reports `digest`
    batch : int or None    messages between two boundaries, where rows of an id must not go back behind one
    """

    name: str
    teller: str
    batch: int | None

    def plan(self, root: str, rng: random.Random | None) -> Plan:
        """The topology, writing below `root`, of few tasks without `rng`, else of as many as it says."""
        ...


class Whole(NamedTuple):
    """What an undisturbed run told, and how long it took; `operations` and `bytes` are those of a saved one."""

    rows: Counter
    results: list[dict]
    digest: str
    steps: int
    operations: Counter
    size_bytes: int


class Lived(NamedTuple):
    """What became of a history.

    rows : int    told by an undisturbed run
    fired : Counter    how often each fault did
    lives : int    processes
    died_going_on : int    processes that died before their first step, going on from what was saved
    """

    rows: int
    fired: Counter
    lives: int
    died_going_on: int


@functools.cache
def undisturbed(story: Story) -> Whole:
    """An undisturbed run of a story; made once."""
    machine = Machine(f"{story.name}-undisturbed")
    report = run_local(story.plan(machine.root, None), seed=1, clock=FakeClock(step_s=1.0))
    rows, results = published(machine)
    assert rows and max(rows.values()) == 1, "a row that is told twice could be lost once"
    saved = Machine(f"{story.name}-saved")
    settings = Checkpoints(CheckpointStore(f"{saved.root}/checkpoints"), Cadence(batches=3), saved.root)
    steps = 0

    def on_step(step: int) -> None:
        nonlocal steps
        steps = step

    clock = FakeClock(step_s=1.0)
    run_local(story.plan(saved.root, None), seed=1, clock=clock, checkpoints=settings, on_step=on_step)
    assert published(saved) == (rows, results), "a run that is saved tells something else"
    machine.forget()
    saved.forget()
    return Whole(rows, results, digest_of(story, report), steps, saved.done, saved.bytes_written)


def digest_of(story: Story, report: RunReport) -> str:
    """What the last component says of all that was told."""
    digests = [task.figures["digest"] for task in report.components[story.teller].tasks]
    return digests[0] if len(digests) == 1 else Digest.sum_of(digests)


def published(machine: Machine) -> tuple[Counter, list[dict]]:
    """Rows of the updates that have their names, and the results if they have; fails for what cannot be read."""
    told = rows_in_order(machine)
    results = machine.paths("results.parquet")
    return Counter(told), pq.read_table(pa.BufferReader(machine.get(results[0]))).to_pylist() if results else []


def rows_in_order(machine: Machine) -> list[tuple]:
    """Rows of the updates that have their names, in the order of the names."""
    rows = []
    for path in sorted(machine.paths("updates/part-")):
        data = machine.get(path)
        if path.endswith(".parquet"):
            told = pq.read_table(pa.BufferReader(data)).to_pylist()
        else:
            told = [msgspec.json.decode(line) for line in data.splitlines()]
        rows += [tuple(row[name] for name in FIELDS) for row in told]
    return rows


def assert_no_id_goes_back(rows: list[tuple], batch: int) -> None:
    """Fails if an update of an id stands behind one of a later boundary."""
    reached: dict[str, int] = {}
    for as_of, name, *_ in rows:
        assert as_of // batch >= reached.get(name, 0), f"{name} goes back to {as_of}"
        reached[name] = as_of // batch


def simulate(story: Story, fault: str, seed: int) -> Lived:
    """Live through one history. Raises AssertionError, or what a component raises, where it ends otherwise."""
    history = _History(story, fault, seed)
    try:
        with mock.patch.object(saving, "SMALL_FRAGMENT_BYTES", 0):  # each has a file of its own
            return history.live()
    finally:
        history.machine.forget()


class _History:
    def __init__(self, story: Story, fault: str, seed: int):
        assert fault == "mixed" or fault in FAULTS, f"fault {fault!r}: choose one of {', '.join(FAULTS)}"
        self.story, self.fault = story, fault
        self.whole = undisturbed(story)
        self.rng = random.Random(f"{story.name} {fault} {seed}")
        self.machine = Machine(f"{story.name}-{fault}-{seed}")
        self.incarnation = -1
        self.number = -1  # the last batch that the newest checkpoint covered when it was last looked for
        self.epoch = self.part = -1  # the newest checkpoint and part when this process began
        self.fired: Counter = Counter()
        self.going_on, self.died_going_on = False, 0

    def live(self) -> Lived:
        disturbed = self.rng.randint(1, 4) + (self.fault == "zombie")
        for life in range(disturbed + 1):
            last = life == disturbed
            report = self._live_once(self._kind(life, last), life, last)
            if report is not None:
                rows, results = published(self.machine)
                self._compare(rows)
                missing = self.whole.rows - rows
                assert not missing, f"{missing.total()} rows are missing, such as {next(iter(missing))}"
                assert results == self.whole.results, "the results differ"
                if self.story.batch is not None:
                    assert_no_id_goes_back(rows_in_order(self.machine), self.story.batch)
                assert digest_of(self.story, report) == self.whole.digest, "the digest differs"
                wanted = [self.fault] if self.fault != "mixed" else list(self.fired)
                assert all(self.fired[kind] for kind in wanted) and self.fired, "the fault never fired"
                return Lived(self.whole.rows.total(), self.fired, life + 1, self.died_going_on)
        raise AssertionError("the last process was not disturbed and did not end")

    def _kind(self, life: int, last: bool) -> str:
        if last:
            return "zombie" if self.fault == "zombie" else ""
        if self.fault != "mixed":
            return self.fault
        return self.rng.choice([kind for kind in FAULTS if life or kind != "zombie"])

    def _live_once(self, kind: str, life: int, last: bool) -> RunReport | None:
        """One process: None if it died; the last one does not."""
        machine, rng = self.machine, self.rng
        machine.restart()
        machine.room_bytes = None
        refused = machine.refusals
        on_step = self._disturb(kind, life, last)
        store = CheckpointStore(f"{machine.root}/checkpoints")
        self.going_on = True
        try:
            manifest = self._go_on(store)
            self.going_on = False
            self.incarnation += 1
            plan = self.story.plan(machine.root, rng)
            cadence = Cadence(batches=rng.choice((1, 2, 3)), seconds=rng.choice((None, None, 30.0)))
            settings = Checkpoints(store, cadence, machine.root, dict, self.incarnation)
            resume = None if manifest is None else store.load(manifest)
            report = run_local(
                plan, seed=rng.getrandbits(32), clock=self.clock, resume=resume, checkpoints=settings, on_step=on_step
            )
            self._count_full(kind, refused)
            failed = [told for told in report.checkpoints if "failed" in told]
            assert not failed or machine.refusals > refused, f"a checkpoint failed on a disk with room: {failed[0]}"
            return report
        except Halted:
            self.died_going_on += self.going_on and self.incarnation >= 0
            self._count_full(kind, refused)
        except EngineError:
            if machine.refusals == refused:
                raise
            self._count_full(kind, refused)
        if kind == "operation" and machine.halted:
            self.fired["operation"] += 1
        machine.restart()
        machine.room_bytes = None
        if kind == "torn":
            machine.lose(rng)
            self.fired["torn"] += 1
        if kind == "damaged":
            self._damage()
        self._compare(published(machine)[0])
        return None

    def _count_full(self, kind: str, refused: int) -> None:
        if kind == "full" and self.machine.refusals > refused:
            self.fired["full"] += 1

    def _go_on(self, store: CheckpointStore) -> Manifest | None:
        """As `topology.running` does."""
        machine = self.machine
        manifest = store.newest()
        assert "damaged" in self.fired or not store.refused, f"a checkpoint is damaged: {store.refused}"
        number = -1 if manifest is None else manifest.number
        assert number >= self.number, f"the checkpoint behind batch {self.number} is lost, {number} is the newest"
        self.epoch, self.part = -1 if manifest is None else manifest.epoch, -1
        if manifest is None:
            assert not machine.paths("updates/part-") or self.fault in ("full", "mixed"), "parts, and no checkpoint"
            machine.remove(machine.paths())
            return None
        store.force(manifest)
        store.clear_above(manifest.epoch)
        complete(machine.root, manifest)
        for folder in (machine.root, f"{machine.root}/updates", f"{machine.root}/checkpoints"):
            disk = open_disk(folder)
            for name in disk.names():
                if name.startswith(".") and name.endswith(".tmp"):
                    disk.remove(name)
        open_disk(machine.root).remove("results.parquet")
        self._compare(published(machine)[0])
        self.number, self.part = manifest.number, _last_part(machine)
        return manifest

    def _compare(self, rows: Counter) -> None:
        extra = rows.keys() - self.whole.rows.keys()
        repeated = [row for row, times in rows.items() if times > 1]
        assert not extra, f"{len(extra)} rows that nobody told, such as {next(iter(extra))}"
        assert not repeated, f"{len(repeated)} rows are there twice, such as {repeated[0]}"

    # -- disturbances

    def _disturb(self, kind: str, life: int, lives_on: bool) -> Callable[[int], None] | None:
        """Arrange for what disturbs a process; what it is to do before each step."""
        machine, rng, refused = self.machine, self.rng, self.machine.refusals
        self.clock = FakeClock(step_s=rng.choice((0.1, 0.5, 2.0)))
        if not kind:
            return None
        if kind == "operation" or (kind == "torn" and rng.random() < 0.8):
            if life and rng.random() < 0.4:  # going on takes few operations
                machine.halt_before(None, rng.randrange(5))
                return None
            what = rng.choice([None, *self.whole.operations])
            count = self.whole.operations.total() if what is None else self.whole.operations[what]
            machine.halt_before(what, self._moment(count, life))
            return None
        if kind == "full":
            machine.fill(rng.randrange(self.whole.size_bytes // (2 + life)), rng.randint(1, 6))
        last = self._moment(self.whole.steps, life)
        if kind == "damaged":
            last = int(self.whole.steps * rng.uniform(0.3, 0.9 if not life else 0.5))
        if lives_on or (kind == "full" and rng.random() < 0.5):
            last = -1
        jumps = {rng.randrange(last + 1): rng.choice((-HOUR_S, HOUR_S)) for _ in range(4)} if kind == "clock" else {}

        def on_step(step: int) -> None:
            if step in jumps:
                self.clock.advance(jumps[step])
                self.fired["clock"] += 1
            if kind == "zombie" and self.incarnation > 0 and rng.random() < 0.03:
                self._haunt()
            waits = (kind == "damaged" and len(self._manifests()) < 2) or (
                kind == "full" and machine.refusals == refused
            )
            if 0 <= last <= step and not waits:
                if kind in ("step", "torn"):
                    self.fired["step"] += 1
                if kind != "step" or rng.random() < 0.5:
                    machine.halt()
                raise Halted(f"before step {step}")

        return on_step

    def _moment(self, whole: int, life: int) -> int:
        """When a process dies, of `whole` moments: those who go on have less to do."""
        return self.rng.randrange(1, max(2, int(whole * (0.9 if life == 0 else 0.6))))

    def _manifests(self) -> list[str]:
        return [path for path in self.machine.paths("checkpoints/epoch-") if path.endswith(".json")]

    def _damage(self) -> None:
        """Damage a file of the newest checkpoint, where there is one before."""
        machine, rng = self.machine, self.rng
        manifests = self._manifests()
        if len(manifests) < 2:
            return
        said = json.loads(machine.get(manifests[-1]))["checkpoint"]["files"]
        files = [f"checkpoints/{one['name']}" for file in said for one in (file, *file["pieces"])]
        path = rng.choice([manifests[-1], rng.choice(files)])
        how = rng.choice(("flip", "cut", "remove"))
        if how == "flip":
            machine.flip(path, rng.randrange(8 * len(machine.get(path))))
        elif how == "cut":
            machine.put(path, machine.get(path)[: rng.randrange(len(machine.get(path)))])
        else:
            machine.remove([path])
        self.fired["damaged"] += 1
        self.number = -1  # it goes back behind what it had

    def _haunt(self) -> None:
        """What a process of the incarnation before may still do: write frames and hidden parts, and clean up."""
        machine, rng, former = self.machine, self.rng, self.incarnation - 1
        number = max(self.part + 1, _last_part(machine) + rng.randint(0, 1))
        self._write_rubbish(PartSink(f"{machine.root}/updates", None, JsonLinesPart, former), number, rng)
        store = CheckpointStore(f"{machine.root}/checkpoints")
        paths = [path.removeprefix("checkpoints/epoch-").split(".") for path in machine.paths("checkpoints/epoch-")]
        frames = [path for path in paths if path[-1] == "frame" and int(path[0]) > self.epoch]
        if frames:  # what it had written before it was given up it does not write again
            epoch, task, *_ = rng.choice(frames)
            component, _, place = task.rpartition("-")
            state = TaskState(component, int(place), 99, 12_345, {"rubbish": np.arange(5)})
            store.write_task(state, int(epoch), former)
        self.fired["zombie"] += 1

    def _write_rubbish(self, sink: PartSink, number: int, rng: random.Random) -> None:
        names = IdColumn("rubbish")
        names.append(Names.of(["rubbish"]))
        one = np.zeros(1, np.int64)
        rubbish = UpdateBatch(one + number, one, one, one.astype(np.int8), one.astype(np.float64))
        sink._number = number
        sink.write(rubbish, names, names, 0.0)
        sink.seal(names, names)
        if rng.random() < 0.5:  # and it closes itself, as after a failure
            sink._number = number
            sink.write(rubbish, names, names, 0.0)
            sink._spill(names, names)
            sink.abandon()


def _last_part(machine: Machine) -> int:
    """Number of the last part that is there, under whatever name; -1 if there is none."""
    parts = [path.rpartition("part-")[2] for path in machine.paths("updates/")]
    return max((int(part.replace("-", ".").split(".")[0]) for part in parts), default=-1)
