"""The driver's part of a run, the same for every executor: the loop, checkpoints, progress, the end and the report.

An executor places the workers (`topology.core.tasks.worker`), says how calls reach them (`Workers`), and finds out
when nothing is in flight (`Driver._advance`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from topology.core.api.plan import Plan
from topology.core.checkpoint.coordinator import CheckpointCoordinator, Checkpoints, publish_all
from topology.core.checkpoint.storage import Output
from topology.core.checkpoint.writer import Written
from topology.core.executors.logs import driver_log, show
from topology.core.failures import TaskFailure, deadlocked, never_acknowledged
from topology.core.metrics import CheckpointSnapshot, Meter, RunReport, RunSnapshot, TaskStatus
from topology.core.tasks.links import OpenRequest
from topology.core.tasks.worker import WorkerStatus


class Workers(Protocol):
    """The workers of a run, wherever they are."""

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker, and wait; answers by worker."""
        ...

    def call_tasks(self, method: str, *arguments: Any) -> list[tuple[int, Any]]:
        """As `call`, where each answer is a list by task: pairs of address and answer in order of address."""
        ...

    def tell(self, address: int, method: str, *arguments: Any) -> None:
        """Queue a call of a method of the worker that has a task; it returns nothing."""
        ...


class Driver(ABC):
    """One run, as the driver sees it.

    Parameters
    ----------
    plan : Plan
    on_progress, stop, checkpoints, on_opened
        As in `topology.core.executors.local.run_local`.
    """

    #: In the report.
    executor: str
    #: Those of the run, now.
    _workers: Workers

    def __init__(
        self,
        plan: Plan,
        on_progress: Callable[[RunSnapshot], None] | None,
        stop: Callable[[], bool] | None,
        checkpoints: Checkpoints | None,
        on_opened: Callable[[], None],
    ):
        self._plan = plan
        self._on_progress = on_progress
        self._on_opened = on_opened
        self._stop = stop
        self._stopping = False
        self._checkpoints = checkpoints
        self._coordinator = None if checkpoints is None else CheckpointCoordinator(checkpoints, plan.saved_addresses)
        self._committed_s = time.monotonic()  # when the last one was, or the run began; only figures depend on it
        self._new_checkpoint = False  # a checkpoint was committed since this was last reset
        self._unfed_finished = False
        self._startup_s = self._warm_up_s = 0.0
        self._started_s = self._quiet_since = time.perf_counter()
        self._statuses: dict[int, TaskStatus] = {}
        self._meter = Meter(plan)
        self._log = driver_log()

    # -- what an executor does

    @abstractmethod
    def _advance(self) -> bool:
        """Let the workers work for a moment, and take their statuses; True if nothing is in flight."""

    # -- what is the same

    def _open(self, request: OpenRequest) -> None:
        """Have every worker open its tasks. Raises ComponentFailed."""
        if self._checkpoints is not None:
            store = self._checkpoints.store
            cadence, epoch = self._checkpoints.cadence, store.last_epoch() + 1
            kept = tuple(store.kept())
            request = request._replace(store=store, cadence=cadence, epoch=epoch, kept=kept)
        for _, failure in self._workers.call_tasks("open", request):
            _raise_if(failure)

    def _drive(self) -> float:
        """Work until nothing is in flight and all tasks have ended; returns when that was, by `time.perf_counter`."""
        while True:
            self._stop_if_wanted()
            if self._advance() and not self._finish_unfed(self._in_order()):
                return self._quiet_since

    def _stop_if_wanted(self) -> None:
        if not self._stopping and self._stop is not None and self._stop():
            self._stopping = True
            self._workers.tell(self._plan.clock_address, "stop")

    def _take(self, addresses: Sequence[int], answer: WorkerStatus) -> None:
        """Take the status of a worker with the tasks at these addresses."""
        for address, (status, events) in zip(addresses, answer.tasks, strict=True):
            show(self._log, str(self._plan.tasks[address]), events)
            self._statuses[address] = status
        self._commit(answer.written)

    def _commit(self, written: Sequence[Written]) -> None:
        """Take written snapshots, and notify the clock of epochs that are settled."""
        if self._coordinator is None:
            return
        for epoch in self._coordinator.take(written):
            if epoch == self._coordinator.committed:
                self._new_checkpoint = True
                self._committed_s = time.monotonic()
            self._workers.tell(self._plan.clock_address, "settled", epoch, self._coordinator.committed)

    def _finish_unfed(self, statuses: list[TaskStatus]) -> bool:
        """Nothing is in flight. Finish bolts with feedback inputs only; False if all tasks have ended.

        Raises
        ------
        TopologyError
            If other tasks have not ended, or a batch was never acknowledged.
        """
        plan = self._plan
        waiting = [status for status in statuses if not status.ended]
        if not waiting:
            clock = statuses[plan.clock_address]
            if clock.waits_for:
                raise never_acknowledged(plan, clock)
            return False
        fed = {address for address, task in enumerate(plan.tasks) if plan.end_sources(task.component)}
        if self._unfed_finished or any(status.address in {*fed, plan.clock_address} for status in waiting):
            raise deadlocked(plan, statuses)
        self._unfed_finished = True
        for status in waiting:
            self._workers.tell(status.address, "finish_unfed", status.address)
        return True

    def _collect(self) -> tuple[list[dict[str, Any]], list[Output]]:
        """Figures of all tasks, and the files to publish, once the last checkpoint is written."""
        if self._coordinator is not None:
            self._commit(sum(self._workers.call("written"), []))
        figures, outputs = [], []
        for _, (figure, finished, failure) in self._workers.call_tasks("report"):
            _raise_if(failure)
            figures.append(figure)
            outputs = [*finished, *outputs]  # those of a component's first task are published last
        return figures, outputs

    def _close(self) -> None:
        """Close all components. Raises ComponentFailed."""
        for address, (failure, events) in self._workers.call_tasks("close"):
            show(self._log, str(self._plan.tasks[address]), events)
            _raise_if(failure)

    def _report(
        self,
        figures: list[dict[str, Any]],
        outputs: Sequence[Output],
        elapsed_s: float,
        recoveries: Sequence[dict[str, Any]] = (),
        rebalances: Sequence[dict[str, Any]] = (),
    ) -> RunReport:
        """Publish the files of a run that has ended, and report it."""
        saved: list[dict[str, Any]] = []
        if self._coordinator is None:
            publish_all(outputs)
        else:
            self._coordinator.finish(outputs)
            saved = self._coordinator.figures
        seconds = elapsed_s, self._startup_s, self._warm_up_s
        return self._meter.report(self.executor, self._in_order(), figures, *seconds, saved, recoveries, rebalances)

    def _report_progress(self, statuses: list[TaskStatus], elapsed_s: float) -> None:
        snapshot = self._meter.snapshot(statuses, elapsed_s)  # also without listener: it records the peaks
        if self._on_progress is not None:
            self._on_progress(replace(snapshot, checkpoints=self._checkpoint_snapshot()))

    def _checkpoint_snapshot(self) -> CheckpointSnapshot | None:
        if self._coordinator is None:
            return None
        figures = self._coordinator.figures
        done = [figure for figure in figures if "failed" not in figure]
        last = done[-1] if done else {}
        age_s = time.monotonic() - self._committed_s
        write_s, size_bytes = last.get("longest_write_s", 0.0), last.get("size_bytes", 0)
        return CheckpointSnapshot(len(done), len(figures) - len(done), age_s, write_s, size_bytes)

    def _in_order(self) -> list[TaskStatus]:
        return [self._statuses[address] for address in sorted(self._statuses)]


def _raise_if(failure: TaskFailure | None) -> None:
    if failure is not None:
        raise failure.error()
