"""One process: what is told at the end, and how every way to go wrong is named."""

import json
import time

import numpy as np
import pytest

from matching.errors import ConfigError, DeliveryError, TopologyError
from tests.support.clocks import FakeClock
from tests.support.example_topologies import (
    AckBolt,
    NumberSpout,
    PatientSpout,
    SplitBolt,
    Words,
    expected_totals,
    pipeline,
    word_count,
)
from tests.support.resumable_topologies import ledger
from topology.core.api.builder import TopologyBuilder
from topology.core.api.component import Bolt, Tick
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.store import CheckpointStore
from topology.core.executors.local import run_local


def figures(report, name, task=0):
    return report.components[name].tasks[task].figures


def test_run_local_word_count_adds_up_and_reports_everything():
    report = run_local(word_count(batches=12, size=20))
    assert figures(report, "sum")["totals"] == expected_totals(12, 20)
    assert figures(report, "sum")["finishes"] == 1
    assert (report.published, report.acknowledged) == (12, 12)
    assert 1 <= report.in_flight_peak <= 4
    assert figures(report, "marker")["ticks"] == list(range(12))
    count = report.components["count"]
    assert count.counters == {"words": 240} and count.incoming == {"shares": 36, "questions": 36}
    assert report.components["split"].outgoing == {"shares": 36, "questions": 36}
    assert report.components["sum"].latency["count"] == 12
    assert report.components["numbers"].bytes_out == {"words": 12 * 20 * 8}
    assert json.loads(json.dumps(report.as_dict()))["components"]["count"]["tasks"][2]["task"] == 2


def acknowledging(spout, bolt):
    """A spout whose batches go to a bolt that acknowledges them."""
    builder = TopologyBuilder().spout("numbers", spout, clock=True).bolt("ack", bolt)
    return builder.edge("numbers", "words", "ack", "shuffle").acknowledged_by("ack").build()


def test_run_local_of_a_spout_that_waits_for_input_counts_no_waiting_as_work():
    report = run_local(acknowledging(PatientSpout(10, 0.02), AckBolt()))
    numbers = report.components["numbers"]
    assert 0 < numbers.busy_s["next_batch"] <= report.elapsed_s - 10 * 0.02
    assert numbers.busy_share < 1


class SleepyBolt(AckBolt):
    """Sleeps over each payload: busy by the wall clock, idle by the processor's."""

    def execute(self, delivery):
        time.sleep(0.02)
        super().execute(delivery)


def test_run_local_counts_work_by_the_clock_that_it_is_given():
    def busy_s(**clock):
        return run_local(acknowledging(PatientSpout(10, 0.0), SleepyBolt()), **clock).components["ack"].busy_s["words"]

    assert busy_s() >= 10 * 0.02
    assert 0 < busy_s(work_ns=time.thread_time_ns) < 5 * 0.02


def test_run_local_without_seed_is_the_same_twice():
    first, second = run_local(word_count()), run_local(word_count())
    assert figures(first, "sum")["heard"] == figures(second, "sum")["heard"]


def test_run_local_with_a_watch_shows_it_what_leaves_each_task():
    carried = []
    plan = word_count(batches=12, size=20)
    report = run_local(plan, watch=lambda parcels: carried.append((parcels[0].sender, parcels[0].size_bytes)))
    assert figures(report, "sum")["totals"] == expected_totals(12, 20)
    (numbers,) = plan.addresses_of("numbers")
    assert sum(size for sender, size in carried if sender == numbers) == 12 * 20 * 8


def test_run_local_with_seed_replays_its_interleaving_and_others_differ():
    heard = [figures(run_local(word_count(), seed=seed), "sum")["heard"] for seed in (1, 1, 2, 3)]
    assert heard[0] == heard[1]
    assert len({tuple(one) for one in heard}) > 1


@pytest.mark.parametrize(
    ("trouble", "words", "cause"),
    [
        ("prepare", "pass:0 failed in prepare: RuntimeError: no room", RuntimeError),
        ("early", "pass:0 emitted on 'words' before the run began", TopologyError),
        ("raise", "pass:0 failed in execute on stream 'words' from numbers:0: ZeroDivisionError", ZeroDivisionError),
        ("exit", "pass:0 failed in execute on stream 'words' from numbers:0: SystemExit: 9", SystemExit),
        ("lock", "pass:0 emitted on 'words' what cannot travel: payload.1 is a lock", TopologyError),
        ("input", "pass:0 failed in execute .*read-only", ValueError),
        ("close", "pass:0 failed in close: OSError: the disk is full", OSError),
        ("skip", "no task acknowledged batch 3 by ack:0", type(None)),
    ],
)
def test_run_local_component_in_trouble_raises_naming_it(trouble, words, cause):
    with pytest.raises(TopologyError, match=words) as raised:
        run_local(pipeline(trouble=trouble))
    assert isinstance(raised.value.__cause__, cause)


def test_run_local_failure_quotes_the_traceback():
    with pytest.raises(TopologyError) as raised:
        run_local(pipeline(trouble="raise"))
    assert "_deeper" in str(raised.value)


def test_run_local_array_changed_after_emit_raises_under_a_seed():
    with pytest.raises(TopologyError, match="pass:0 wrote to an array of a payload after emitting it on 'words'"):
        run_local(pipeline(trouble="write"), seed=1)


def test_run_local_spout_that_raises_is_named_with_its_batch():
    with pytest.raises(TopologyError, match=r"numbers:0 failed in next_batch\(4\): OSError: the source is gone"):
        run_local(acknowledging(NumberSpout(9, raise_at=4), AckBolt()))


class Deaf(Bolt):
    """Takes batches and acknowledges none."""

    def prepare(self, context):
        pass

    def execute(self, delivery):
        pass


def test_run_local_without_acknowledgements_names_clock_batches_and_who_should():
    plan = (
        TopologyBuilder("stuck")
        .spout("numbers", NumberSpout(9), clock=True)
        .bolt("deaf", Deaf(), tasks=2)
        .edge("numbers", "words", "deaf", "shuffle")
        .acknowledged_by("deaf")
        .build(credits=2)
    )
    with pytest.raises(TopologyError) as raised:
        run_local(plan)
    text = str(raised.value)
    assert "'stuck' is deadlocked" in text
    assert "numbers:0 has no credit left, for want of an acknowledgement of batch 0 by deaf:0, deaf:1; batch 1" in text
    assert "deaf:1 waits for the end of numbers:0" in text


class Mute(SplitBolt):
    """A splitter whose questions nobody answers: it never becomes idle."""

    def execute(self, delivery):
        self.owed += 1
        self.context.emit("words", delivery.payload)


def test_run_local_bolt_never_idle_is_named():
    plan = (
        TopologyBuilder()
        .spout("numbers", NumberSpout(3), clock=True)
        .bolt("mute", Mute())
        .bolt("ack", AckBolt())
        .edge("numbers", "words", "mute", "shuffle")
        .edge("mute", "words", "ack", "shuffle")
        .edge("ack", "answers", "mute", "all", feedback=True)
        .acknowledged_by("ack")
        .build()
    )
    with pytest.raises(TopologyError, match="mute:0 is finished but not idle; only feedback from ack could wake it"):
        run_local(plan)


class Emitter(Bolt):
    """Calls `emit` the way `how` says, once; then acknowledges."""

    def __init__(self, how):
        self.how = how

    def prepare(self, context):
        self.context = context

    def execute(self, delivery):
        stream, options = self.how
        self.context.emit(stream, Words(0, np.zeros(1)), **options)
        self.context.acknowledge(delivery.payload.batch)


def emitting(stream, **options):
    return (
        TopologyBuilder()
        .spout("numbers", NumberSpout(1), clock=True)
        .bolt("emitter", Emitter((stream, options)))
        .bolt("sink", Deaf(), tasks=3)
        .edge("numbers", "words", "emitter", "shuffle")
        .edge("emitter", "d", "sink", "direct")
        .edge("emitter", "f", "sink", "fields")
        .edge("emitter", "a", "sink", "all")
        .acknowledged_by("emitter")
        .build()
    )


@pytest.mark.parametrize(
    ("stream", "options", "words"),
    [
        ("d", {}, "emitter:0 emitted on 'd' to 'sink': a direct edge needs"),
        ("d", {"to": 3}, "to=3 is no task"),
        ("f", {}, "a fields edge needs"),
        ("a", {"to": 1}, "with to=, but no edge of that stream uses it: it is grouped all"),
        ("d", {"to": 1, "key": 1}, "with key=, but no edge"),
    ],
)
def test_run_local_wrong_emit_raises_naming_the_edge(stream, options, words):
    with pytest.raises(TopologyError, match=words):
        run_local(emitting(stream, **options))


@pytest.mark.parametrize(("stream", "options", "tasks"), [("d", {"to": 2}, {2}), ("a", {}, {0, 1, 2})])
def test_run_local_emit_reaches_the_chosen_tasks_only(stream, options, tasks):
    report = run_local(emitting(stream, **options))
    assert {task.task for task in report.components["sink"].tasks if task.incoming == {stream: 1}} == tasks


def test_run_local_stream_without_edges_is_counted_as_unrouted():
    report = run_local(emitting("nobody"))
    assert report.components["emitter"].unrouted == {"nobody": 1} and report.components["emitter"].outgoing == {}


class Stranger(Deaf):
    def prepare(self, context):
        self.context = context

    def execute(self, delivery):
        self.context.acknowledge(delivery.payload.batch)


def test_run_local_acknowledgement_by_another_component_raises():
    plan = (
        TopologyBuilder()
        .spout("numbers", NumberSpout(3), clock=True)
        .bolt("stranger", Stranger())
        .bolt("ack", AckBolt())
        .edge("numbers", "words", "stranger", "all")
        .edge("numbers", "words", "ack", "all")
        .acknowledged_by("ack")
        .build()
    )
    with pytest.raises(TopologyError, match="stranger:0 acknowledged batch 0, but 'ack' is the component that does"):
        run_local(plan)


class Merger(Deaf):
    """Fed by feedback alone; remembers when it was finished."""

    def prepare(self, context):
        self.context = context
        self.events = []

    def execute(self, delivery):
        self.events.append(delivery.payload.batch)
        self.context.emit("merged", delivery.payload)

    def finish(self):
        self.events.append("finish")

    def report(self):
        return {"events": self.events}


class Asker(AckBolt):
    """Acknowledges, and asks the merger about every batch; awaits all answers before it is idle."""

    def prepare(self, context):
        super().prepare(context)
        self.owed = 0

    def execute(self, delivery):
        if delivery.stream == "merged":
            self.owed -= 1
        else:
            super().execute(delivery)
            self.owed += 1
            self.context.emit("ask", delivery.payload)

    def idle(self):
        return self.owed == 0


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_run_local_bolt_fed_by_feedback_alone_is_finished_last(seed):
    plan = (
        TopologyBuilder()
        .spout("numbers", NumberSpout(5), clock=True)
        .bolt("asker", Asker())
        .bolt("merger", Merger())
        .edge("numbers", "words", "asker", "shuffle")
        .edge("asker", "ask", "merger", "all", feedback=True)
        .edge("merger", "merged", "asker", "all", feedback=True)
        .acknowledged_by("asker")
        .build(credits=2)
    )
    assert figures(run_local(plan, seed=seed), "merger")["events"] == [0, 1, 2, 3, 4, "finish"]


class Relay(Bolt):
    """Passes a batch on only when the merger has answered for it; `honest` bolts say so by `idle`."""

    def __init__(self, honest):
        self.honest = honest

    def prepare(self, context):
        self.context = context
        self.owed = 0

    def execute(self, delivery):
        stream = "words" if delivery.stream == "merged" else "ask"
        self.owed += 1 if stream == "ask" else -1
        self.context.emit(stream, delivery.payload)

    def idle(self):
        return self.owed == 0 or not self.honest


def relaying(honest):
    return (
        TopologyBuilder()
        .spout("numbers", NumberSpout(8), clock=True)
        .bolt("relay", Relay(honest))
        .bolt("merger", Merger())
        .bolt("ack", AckBolt())
        .edge("numbers", "words", "relay", "shuffle")
        .edge("relay", "ask", "merger", "all", feedback=True)
        .edge("merger", "merged", "relay", "all", feedback=True)
        .edge("relay", "words", "ack", "shuffle")
        .acknowledged_by("ack")
        .build(credits=8)
    )


@pytest.mark.parametrize("seed", range(8))
def test_run_local_end_waits_until_every_answer_has_come(seed):
    assert figures(run_local(relaying(honest=True), seed=seed), "ack")["order"] == list(range(8))


def test_run_local_emit_after_the_end_raises_naming_bolt_and_remedy():
    failures = 0
    for seed in range(8):
        try:
            run_local(relaying(honest=False), seed=seed)
        except TopologyError as error:
            assert "relay:0 emitted on 'words' to 'ack' after its end was passed on: idle()" in str(error)
            failures += 1
    assert failures >= 4


class Closing(AckBolt):
    closed: list[str] = []

    def __init__(self, error=None):
        self.error = error

    def execute(self, delivery):
        if self.error is not None:
            raise self.error
        super().execute(delivery)

    def close(self):
        Closing.closed.append(f"{self.context.component}:{self.context.task}")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(DeliveryError("no space"), 6), (ConfigError("no"), 2), (KeyError("x"), 3), (KeyboardInterrupt(), None)],
)
def test_run_local_failure_closes_every_component_once_and_keeps_the_exit_code(error, exit_code):
    Closing.closed.clear()
    plan = (
        TopologyBuilder()
        .spout("numbers", NumberSpout(3), clock=True)
        .bolt("ack", Closing(error), tasks=2)
        .bolt("other", Closing())
        .edge("numbers", "words", "ack", "shuffle")
        .edge("ack", "words", "other", "shuffle")
        .acknowledged_by("ack")
        .build()
    )
    with pytest.raises(KeyboardInterrupt if exit_code is None else TopologyError) as raised:
        run_local(plan)
    assert getattr(raised.value, "exit_code", None) == exit_code
    assert sorted(Closing.closed) == ["ack:0", "ack:1", "other:0"]


def test_run_local_stop_ends_the_stream_and_drains():
    asked = []
    report = run_local(pipeline(batches=10**9), stop=lambda: asked.append(1) or len(asked) > 20)
    assert report.published == report.acknowledged == 20
    assert figures(report, "ack")["order"] == list(range(20))


def test_run_local_calls_stop_before_each_batch_also_behind_checkpoints(tmp_path):
    calls = []
    checkpoints = Checkpoints(CheckpointStore(str(tmp_path / "checkpoints")), Cadence(batches=1), str(tmp_path))
    plan = ledger(batches=30)
    report = run_local(plan, seed=3, stop=lambda: calls.append(1) and False, checkpoints=checkpoints)
    assert report.published == 30 and len(report.checkpoints) > 20
    assert len(calls) >= 30 + len(report.checkpoints), "a batch or a barrier left without a call"


def test_run_local_tells_progress_and_a_last_time_at_the_end():
    told = []
    run_local(pipeline(batches=50), on_progress=told.append)
    last = told[-1]
    assert (last.published, last.acknowledged, last.in_flight) == (50, 50, 0)
    assert last.components["pass"].received == last.components["pass"].emitted == 50
    assert last.components["pass"].ended_tasks == 1 and last.components["pass"].queue_depth == 0
    json.dumps(last.as_dict())


def test_run_local_warms_up_once_before_anything_opens():
    calls = []
    base = pipeline(trouble="prepare")
    plan = type(base)(
        base.name, base.components, base.edges, base.acknowledged_by, base.credits, lambda: calls.append(1)
    )
    with pytest.raises(TopologyError, match="no room"):
        run_local(plan)
    assert calls == [1]


class Stamping(NumberSpout):
    def next_batch(self, number, tick: Tick | None):
        self.stamps = [*getattr(self, "stamps", []), (self.context.now(), int(self.context.rng.integers(1000)))]
        return super().next_batch(number, tick)

    def report(self):
        return {"stamps": self.stamps}


def test_run_local_context_takes_time_and_chance_from_outside():
    def stamps(seed):
        plan = (
            TopologyBuilder()
            .spout("numbers", Stamping(3), clock=True)
            .bolt("ack", AckBolt())
            .edge("numbers", "words", "ack", "all")
            .acknowledged_by("ack")
            .build()
        )
        return figures(run_local(plan, seed=seed, clock=FakeClock(100.0, step_s=1.0)), "numbers")["stamps"]

    assert [now for now, _ in stamps(1)] == [100.0, 101.0, 102.0, 103.0]
    assert stamps(1) == stamps(1) != stamps(2)
