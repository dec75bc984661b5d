"""Tasks that share a worker: the same answers whatever the placement, in order, and nobody shut out."""

import pickle
from collections import deque
from dataclasses import replace

import pytest

from matching.errors import TopologyError
from tests.support.example_topologies import (
    AckBolt,
    NumberSpout,
    PassBolt,
    deadlocked,
    expected_totals,
    pipeline,
    word_count,
)
from topology.core.api.builder import TopologyBuilder
from topology.core.executors.clock import SystemClock
from topology.core.executors.local import run_local
from topology.core.payload import pack, unpack
from topology.core.tasks.links import Parcel
from topology.core.tasks.worker import Worker, place


class Wires:
    """All links between the workers of one plan, each packed and unpacked as between processes."""

    def __init__(self, plan, together):
        self.placement = place(plan, together)
        self.calls = deque()
        self.sent_calls = 0
        self.workers = [
            Worker(plan, self.placement, index, _Transport(self, index), SystemClock().now, 0)
            for index in range(len(self.placement))
        ]

    def run(self, clock_address, most_calls=10_000):
        assert [failure for worker in self.workers for failure in worker.open() if failure] == []
        self.worker_of(clock_address).start()
        while self.calls:
            assert self.sent_calls < most_calls
            worker, pieces = self.calls.popleft()
            if pieces is None:
                self.workers[worker].start()
            else:
                self.workers[worker].receive(unpack(pieces))

    def worker_of(self, address):
        return next(worker for worker, mine in zip(self.workers, self.placement, strict=True) if address in mine)

    def statuses(self):
        told = [status for worker in self.workers for status, _ in worker.status().tasks]
        return sorted(told, key=lambda status: status.address)

    def failures(self):
        return [failure for worker in self.workers if (failure := worker.status().failure) is not None]

    def figures(self):
        told = [figures for worker in self.workers for figures, _, _ in worker.report()]
        addresses = [address for mine in self.placement for address in mine]
        return dict(sorted(zip(addresses, told, strict=True)))


class _Transport:
    queues = True

    def __init__(self, wires, index):
        self.wires = wires
        self.index = index

    def send(self, bundles):
        for worker, parcels in bundles.items():
            assert worker != self.index and parcels
            self.wires.calls.append((worker, pack(tuple(parcels), 64)))
            self.wires.sent_calls += 1

    def again(self):
        self.wires.calls.append((self.index, None))
        self.wires.sent_calls += 1


_ALL = [part.name for part in word_count(batches=1, size=1).components]


@pytest.mark.parametrize("together", [(), (_ALL[:2], _ALL[2:4]), (_ALL,)], ids=["spread", "pairs", "one"])
def test_workers_of_any_placement_answer_as_one_process_does(together):
    plan = word_count(batches=12, size=20)
    wires = Wires(plan, together)
    wires.run(plan.clock_address)
    alone = run_local(plan)
    figures = wires.figures()
    assert all(status.ended for status in wires.statuses()) and not wires.failures()
    assert sum(status.sent for status in wires.statuses()) == sum(status.received for status in wires.statuses()) > 100
    for address, task in enumerate(plan.tasks):
        if task.component == "sum":
            assert figures[address]["totals"] == expected_totals(12, 20)
    for status in wires.statuses():
        task = plan.tasks[status.address]
        assert status.incoming == alone.components[task.component].tasks[task.task].incoming


def test_worker_with_every_task_breaks_off_after_each_round_of_credits():
    plan = pipeline(batches=10, credits=3)
    wires = Wires(plan, [[part.name for part in plan.components]])
    wires.run(plan.clock_address)
    assert wires.statuses()[plan.clock_address].acknowledged == 10
    assert wires.sent_calls == 3, "10 batches, 3 at a time: between them others can ask how it goes"


def test_workers_send_one_call_for_all_that_goes_from_one_to_another():
    plan = pipeline(batches=8)
    names = [part.name for part in plan.components]
    spread, shared = Wires(plan, ()), Wires(plan, (names[:1] + names[2:],))
    for wires in (spread, shared):
        wires.run(plan.clock_address)
        assert wires.statuses()[plan.clock_address].acknowledged == 8
    assert len(shared.workers) == 2 and shared.sent_calls < spread.sent_calls


class GatheringBolt(AckBolt):
    """Takes the batches that are there together, when what it sends to itself comes back."""

    def prepare(self, context):
        super().prepare(context)
        self.waiting, self.sizes = [], []

    def execute(self, delivery):
        if delivery.stream == "words":
            self.waiting.append(delivery)
            if len(self.waiting) == 1:
                self.context.emit("again", delivery.payload, to=self.context.task)
            return
        waiting, self.waiting = self.waiting, []
        self.sizes.append(len(waiting))
        for each in waiting:
            super().execute(each)

    def report(self):
        return super().report() | {"sizes": self.sizes}


@pytest.mark.parametrize("together", [(), (("numbers", "pass", "ack"),)], ids=["spread", "one"])
def test_what_a_task_sends_itself_comes_behind_what_waits_for_it(together):
    """Across workers behind the calls, of which the second one carries a batch; in one process behind the parcels."""
    builder = TopologyBuilder("gathering")
    builder.spout("numbers", WaitingNumbers(6), clock=True).bolt("pass", PassBolt()).bolt("ack", GatheringBolt())
    builder.edge("numbers", "words", "pass", "shuffle").edge("pass", "words", "ack", "shuffle")
    builder.edge("ack", "again", "ack", "direct", feedback=True)
    plan = builder.acknowledged_by("ack").build(credits=3)
    wires = Wires(plan, together)
    wires.run(plan.clock_address)
    figures = list(wires.figures().values())[-1]
    assert not wires.failures() and all(status.ended for status in wires.statuses())
    assert figures["order"] == list(range(6)) and sum(figures["sizes"]) == 6 and max(figures["sizes"]) > 1
    assert run_local(plan).components["ack"].tasks[0].figures["order"] == list(range(6))


class WaitingNumbers(NumberSpout):
    """May have to wait for every batch."""

    def ready(self) -> bool:
        return False


class UnsureNumbers(NumberSpout):
    """Fails when it is asked."""

    def ready(self) -> bool:
        raise OSError("the source is gone")


def wires_over(spout, batches, size, credits):
    """A pipeline behind this clock, on three workers, run to where it goes."""
    plan = pipeline(batches=batches, size=size, credits=credits)
    clock = replace(plan.clock, template=pickle.dumps(spout(batches, size)))
    plan = replace(plan, components=tuple(clock if part.clock else part for part in plan.components))
    wires = Wires(plan, ())
    wires.run(plan.clock_address)
    return wires, wires.statuses(), plan.clock_address


def calls_of(size, spout=NumberSpout, batches=64, credits=32):
    """Calls between the three workers of a pipeline, all of whose batches arrive."""
    wires, statuses, clock = wires_over(spout, batches, size, credits)
    assert statuses[clock].acknowledged == batches
    assert sum(status.sent for status in statuses) == sum(status.received for status in statuses) >= 3 * batches
    return wires.sent_calls


def test_small_batches_that_can_be_published_at_once_share_calls():
    apart = 3 * 64  # from clock to bolt to bolt and back
    assert calls_of(size=4) <= apart // 4
    assert calls_of(size=4, spout=WaitingNumbers) >= apart, "a batch waits for one that may be long in coming"
    assert calls_of(size=20_000) >= apart, "large batches wait for each other"
    assert calls_of(size=4, credits=2) >= apart, "all credits leave in one call: no two tasks work at the same time"


def test_clock_that_fails_when_asked_whether_it_is_ready_says_so_and_publishes_nothing():
    wires, statuses, clock = wires_over(UnsureNumbers, 10, 4, 8)
    assert statuses[clock].published == 0
    assert [failure.summary for failure in wires.failures()] == [
        "numbers:0 failed in ready: OSError: the source is gone"
    ]


@pytest.mark.parametrize("shared", [True, False], ids=["with the clock", "alone"])
def test_worker_whose_task_fails_tells_which_and_drops_its_parcels(shared):
    plan = pipeline(batches=50, trouble="raise")
    wires = Wires(plan, [[part.name for part in plan.components]] if shared else ())
    wires.run(plan.clock_address)
    failures = wires.failures()
    assert len(failures) == 1 and failures[0].summary.startswith("pass:0 failed in execute")
    clock = wires.statuses()[plan.clock_address]
    behind = 1 if shared else plan.credits  # nothing is published where it is known
    assert clock.published == clock.acknowledged + behind < 50, "the failed task works, or batches follow it"
    assert [failure for worker in wires.workers for failure, _ in worker.close() if failure] == failures


def test_worker_receives_in_the_order_sent_whatever_lies_between():
    plan = deadlocked()
    wires = Wires(plan, ())
    assert wires.workers[-1].open() == [None]
    last = wires.placement[-1][0]
    wires.workers[-1].receive([Parcel(last, 0, 0, 1, None, 0)])
    failure = wires.workers[-1].status().failure
    assert failure is not None and failure.consequence and "parcel 0 was lost" in failure.summary


def test_place_puts_tasks_of_one_number_together_and_leaves_the_others_alone():
    plan = word_count(batches=1, size=1)
    placement = place(plan, ())
    assert placement == tuple((address,) for address in range(len(plan.tasks)))
    pair = [part.name for part in plan.components if part.tasks > 1][:2]
    placement = place(plan, (pair,))
    assert sorted(address for mine in placement for address in mine) == list(range(len(plan.tasks)))
    for mine in placement:
        assert len({plan.tasks[address].task for address in mine}) == 1
        assert len(mine) == 1 or {plan.tasks[address].component for address in mine} == set(pair)
    assert len(placement) < len(plan.tasks)


@pytest.mark.parametrize(("together", "words"), [((["nobody"],), "no 'nobody'"), ((_ALL, _ALL[:1]), "named twice")])
def test_place_of_unknown_or_repeated_names_raises(together, words):
    with pytest.raises(TopologyError, match=words):
        place(word_count(batches=1, size=1), together)
