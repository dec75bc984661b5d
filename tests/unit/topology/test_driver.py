"""The driver over several workers, of this process, that are lost now and then: the run ends as an undisturbed one."""

import time
from collections import deque

import pytest

from matching.errors import TopologyError
from tests.support.example_topologies import pipeline
from tests.support.resumable_topologies import ledger
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.store import CheckpointStore
from topology.core.executors.balancing import Balance
from topology.core.executors.driver import Driver, WorkerAnswer, Workers
from topology.core.executors.local import run_local
from topology.core.failures import ComponentFailed, WorkersLost
from topology.core.payload import pack, unpack
from topology.core.tasks.links import OpenRequest
from topology.core.tasks.worker import Worker, place

BATCHES = 40
#: Calls that are made in a round; the others stay in flight.
_CALLS = 7


class MortalWorkers(Workers):
    """A worker for each task. `losses` has pairs of a round and the worker that is lost then; as on Ray, nobody knows
    what is in flight, and calls of earlier incarnations are ignored."""

    def __init__(self, plan, losses=()):
        super().__init__(plan, place(plan))
        self.losses = dict(losses)
        self.incarnation = self.rounds = 0
        self.told = deque()  # by the driver, or by a worker to itself: these come before the next status
        self.calls = deque()
        self.replaced = []
        self.ended = None
        self.workers = [self._made(index) for index in range(len(self._placement))]

    def _made(self, index):
        return Worker(self._plan, self._placement, index, _Transport(self, index), time.monotonic, 0)

    @property
    def busy(self):
        return False

    def warm_up(self, on_progress):
        return 0.0

    def connect(self, incarnation):
        self.incarnation = incarnation

    def call(self, method, *arguments):
        return [getattr(worker, method)(*arguments) for worker in self.workers]

    def tell(self, address, method, *arguments):
        (worker,) = (index for index, mine in enumerate(self._placement) if address in mine)
        self.told.append((self.incarnation, worker, method, arguments))

    def statuses(self, pause_s):
        self.rounds += 1
        for queue, most in ((self.calls, _CALLS), (self.told, len(self.told))):
            for _ in range(min(most, len(queue))):
                incarnation, worker, method, arguments = queue.popleft()
                if incarnation == self.incarnation:
                    getattr(self.workers[worker], method)(*arguments)
        answers = [
            WorkerAnswer(self._placement[index], time.perf_counter(), worker.status())
            for index, worker in enumerate(self.workers)
        ]
        victim = self.losses.get(self.rounds)
        return answers, None if victim is None else WorkersLost({victim}, f"{victim} died", f"worker {victim} died")

    def replace(self, incarnation, lost):
        self.replaced += lost
        for worker in lost:
            self.workers[worker].close()
            self.workers[worker] = self._made(worker)

    def end(self, closing):
        self.ended = closing
        if closing:
            self.call("close")


class _Transport:
    queues = True

    def __init__(self, workers, index):
        self.workers, self.index = workers, index

    def send(self, bundles):
        for worker, parcels in bundles.items():
            carried = unpack(pack(tuple(parcels), 1 << 20))
            self.workers.calls.append((self.workers.incarnation, worker, "receive", (carried,)))

    def again(self):
        self.workers.told.append((self.workers.incarnation, self.index, "start", ()))


def checkpoints_in(folder, **more):
    return Checkpoints(CheckpointStore(str(folder / "checkpoints")), Cadence(batches=2), str(folder), **more)


def figures(report):
    """What must not depend on losses."""
    told = report.components["ledger"].tasks[0].figures
    return told, report.components["marks"].tasks[0].figures, report.published, report.acknowledged


@pytest.fixture(scope="module")
def undisturbed():
    return figures(run_local(ledger(BATCHES)))


def run(workers, folder, **more):
    """With checkpoints that no thread writes, so that what is committed depends on rounds alone."""
    request = OpenRequest(write_behind=False)
    return Driver("mortal", workers._plan, checkpoints=checkpoints_in(folder), request=request, **more).run(workers)


def test_driver_without_losses_ends_as_the_local_executor(undisturbed):
    workers = MortalWorkers(ledger(BATCHES))
    assert figures(Driver("mortal", workers._plan).run(workers)) == undisturbed
    assert workers.rounds > 20 and workers.ended is False, "parcels were in flight when rounds were taken"


@pytest.mark.parametrize("first", [2, 9, 30, 60])
def test_driver_that_loses_workers_goes_back_and_ends_as_if_it_had_not(undisturbed, tmp_path, first):
    workers = MortalWorkers(ledger(BATCHES), [(first, 0), (first + 25, 4), (first + 26, 7)])
    report = run(workers, tmp_path)
    assert figures(report) == undisturbed
    assert workers.replaced == [0, 4, 7] and workers.incarnation == 3
    assert [each["why"] for each in report.recoveries] == [f"worker {lost} died" for lost in (0, 4, 7)]
    assert first == 2 or max(each["number"] for each in report.recoveries) > 0, "it always went back to the start"


def test_driver_that_rebalances_goes_back_and_ends_as_if_it_had_not(undisturbed, tmp_path):
    workers = MortalWorkers(ledger(BATCHES))
    report = run(workers, tmp_path, balance=Balance("count", most=0.0, least_share=0.0))
    assert figures(report) == undisturbed
    assert report.rebalances and not report.recoveries and not workers.replaced
    assert all(len(each["work_ns"]["count"]) == 3 for each in report.rebalances)


def test_driver_that_loses_the_same_worker_too_often_names_it_and_the_remedy(tmp_path):
    plan = ledger(BATCHES)
    workers = MortalWorkers(plan, [(round_, 3) for round_ in range(2, 9)])
    with pytest.raises(TopologyError, match="worker 3 died; this has happened 3 times .* recovery.restarts allows 2"):
        Driver("mortal", plan, checkpoints=checkpoints_in(tmp_path, restarts=2)).run(workers)
    assert workers.replaced == [3, 3] and workers.ended is True


def test_driver_without_checkpoints_ends_with_the_loss():
    workers = MortalWorkers(ledger(BATCHES), [(9, 4)])
    with pytest.raises(WorkersLost, match="worker 4 died"):
        Driver("mortal", workers._plan).run(workers)
    assert not workers.replaced and workers.ended is True


def test_driver_raises_the_failure_of_a_component_before_the_loss_that_came_with_it():
    workers = MortalWorkers(pipeline(trouble="raise"))
    told = workers.statuses

    def statuses(pause_s):
        answers, _ = told(pause_s)
        failed = any(answer.status.failure for answer in answers)
        return answers, WorkersLost({0}, "0 died", "worker 0 died") if failed else None

    workers.statuses = statuses
    with pytest.raises(ComponentFailed, match="pass:0 failed in execute") as raised:
        Driver("mortal", workers._plan).run(workers)
    assert raised.value.last_batch >= 0


def test_driver_resumes_with_other_workers_after_it_has_lost_all(undisturbed, tmp_path):
    plan = ledger(BATCHES)
    driver = Driver("mortal", plan, checkpoints=checkpoints_in(tmp_path))
    first = MortalWorkers(plan, [(40, 0)])
    first.replace = lambda incarnation, lost: (_ for _ in ()).throw(OSError("all are gone"))
    with pytest.raises(OSError, match="all are gone"):
        driver.run(first)
    driver.lose_all(WorkersLost(set(), "all died", "all have died"), OSError())
    report = driver.run(second := MortalWorkers(plan))
    assert figures(report) == undisturbed and second.incarnation > 0
    assert [each["lost"] for each in report.recoveries] == ["all died"]
