"""Pausing in one process: what is refused, what a component may not do, and that all is closed."""

import numpy as np
import pytest

from matching.errors import CheckpointError, TopologyError
from tests.support.example_topologies import (
    AckBolt,
    NumberSpout,
    PassBolt,
    SilentBolt,
    deadlocked,
    pipeline,
    word_count,
)
from tests.support.resumable_topologies import ledger
from topology.core.api.builder import TopologyBuilder
from topology.core.api.component import Saved
from topology.core.executors.local import pause_local, run_local


def plan_of(bolt):
    return (
        TopologyBuilder("one")
        .spout("numbers", NumberSpout(6), clock=True)
        .bolt("bolt", bolt)
        .edge("numbers", "words", "bolt", "shuffle")
        .edge("bolt", "words", "bolt", "all", feedback=True)
        .acknowledged_by("bolt")
        .build(credits=2)
    )


def test_pause_local_publishes_nothing_behind_the_batch_and_numbers_go_on():
    saved = pause_local(word_count(batches=9), 3)
    assert {name: len(tasks) for name, tasks in saved.parts.items()} == {
        "numbers": 1,
        "marker": 1,
        "split": 2,
        "count": 3,
        "sum": 1,
    }
    report = run_local(word_count(batches=9), resume=saved)
    assert report.components["marker"].tasks[0].figures["ticks"] == [4, 5, 6, 7, 8]
    assert (report.published, report.acknowledged) == (5, 5)


def test_pause_local_behind_the_end_of_the_stream_raises():
    with pytest.raises(TopologyError, match="stream of 'word-count' ended behind batch 8, .* paused behind batch 9"):
        pause_local(word_count(batches=9), 9)


def test_pause_local_behind_what_is_done_already_raises():
    saved = pause_local(word_count(batches=9), 3)
    with pytest.raises(TopologyError, match="pause behind batch 2: batch 3 is done already"):
        pause_local(word_count(batches=9), 2, resume=saved)
    with pytest.raises(TopologyError, match="pause behind batch -2"):
        pause_local(word_count(batches=9), -2)


def test_run_local_resumed_behind_the_last_batch_ends_at_once():
    saved = pause_local(ledger(4), 3)
    report = run_local(ledger(4), resume=saved)
    assert report.published == 0
    assert report.components["ledger"].tasks[0].figures == run_local(ledger(4)).components["ledger"].tasks[0].figures


class Restless(AckBolt):
    """Says that it awaits something, or fails when it is asked."""

    def __init__(self, fails=False):
        self.fails = fails

    def quiet(self):
        if self.fails:
            raise ValueError("nobody knows")
        return False


def test_pause_local_bolt_that_is_not_quiet_is_named():
    with pytest.raises(TopologyError) as raised:
        pause_local(plan_of(Restless()), 2)
    text = str(raised.value)
    assert (
        "'one' cannot be paused behind batch 2" in text
        and "- bolt:0 has the barrier of checkpoint 0 and is not" in text
    )
    with pytest.raises(TopologyError, match="bolt:0 failed in the barrier of numbers:0: ValueError: nobody knows"):
        pause_local(plan_of(Restless(fails=True)), 2)


def test_pause_local_without_acknowledgements_names_the_batches():
    with pytest.raises(TopologyError, match="numbers:0 lacks an acknowledgement of batch 0 by silent:0, silent:1"):
        pause_local(deadlocked(), 1)
    with pytest.raises(TopologyError, match="numbers:0 has no credit left, for want of .* batch 0"):
        pause_local(deadlocked(), 7)  # which is not reached: the credits are spent before


class Keeper(SilentBolt):
    """Acknowledges; fails, or misbehaves, where `trouble` says; notes that it was closed."""

    closed = 0

    def __init__(self, trouble=""):
        self.trouble = trouble

    def prepare(self, context):
        self.context = context

    def execute(self, delivery):
        self.context.acknowledge(delivery.payload.batch)

    def state(self):
        if self.trouble == "state":
            raise ValueError("cannot say")
        return {"names": np.array(["a"])} if self.trouble == "text" else {}

    def restore(self, saved: Saved):
        if self.trouble == "emit":
            self.context.emit("words", Saved(0, {}))
        if self.trouble == "refuse":
            raise CheckpointError("another vocabulary")

    def close(self):
        Keeper.closed += 1


@pytest.mark.parametrize(
    ("trouble", "error", "words"),
    [
        ("state", TopologyError, "bolt:0 failed in state: ValueError: cannot say"),
        ("text", CheckpointError, "bolt:0 cannot be saved: array 'names'"),
        ("emit", TopologyError, "bolt:0 failed in restore: .*emitted on 'words' before the run began"),
        ("refuse", TopologyError, "bolt:0 failed in restore: CheckpointError: another vocabulary"),
    ],
)
def test_pause_local_component_in_trouble_is_named_and_closed(trouble, error, words):
    Keeper.closed = 0
    with pytest.raises(error, match=words) as raised:
        resume = pause_local(plan_of(Keeper()), 1)
        Keeper.closed = 0
        pause_local(plan_of(Keeper(trouble)), 2, resume=resume)
    assert Keeper.closed == 1
    if trouble == "refuse":
        assert raised.value.exit_code == CheckpointError.exit_code


def test_pause_local_failure_to_close_is_told():
    with pytest.raises(TopologyError, match="pass:0 failed in close: OSError: the disk is full"):
        pause_local(pipeline(trouble="close"), 2)
    assert PassBolt().quiet()


def test_run_local_resume_without_a_component_that_wants_its_own_raises():
    saved = pause_local(ledger(4), 1)
    less = Saved(saved.number, {name: tasks for name, tasks in saved.parts.items() if name != "count"})
    with pytest.raises(TopologyError, match="count:0 failed in restore: CheckpointError: nothing was saved of 'count'"):
        run_local(ledger(4), resume=less)
    twice = Saved(saved.number, {**saved.parts, "numbers": saved.parts["numbers"] * 2})
    with pytest.raises(TopologyError, match="numbers:0 failed in restore: .*'numbers' was saved by 2 tasks"):
        run_local(ledger(4), resume=twice)
