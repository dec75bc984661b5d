"""The driver of a run: start, rounds of statuses, checkpoints, recovery, the end and the report, for every executor.

An executor is a kind of `Workers`: how a call reaches them and its result returns, and how the loss of one is seen.
Everything else is here.

The statuses show whether the run has ended or is stuck: nothing is in flight if, over two rounds of which the second
began after the first was answered, as many parcels were received as sent and no count has changed. A component that
raises is in the status of its worker. A run with checkpoints (`topology.core.checkpoint.coordinator`) recovers from the
loss of workers from the last one: living workers go back in place, lost ones are replaced, and calls of earlier
incarnations are ignored. Without checkpoints the loss ends the run.
"""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from matching.errors import CheckpointError, TopologyError
from topology.core.api.plan import Plan
from topology.core.checkpoint.coordinator import CheckpointCoordinator, Checkpoints, publish_all
from topology.core.checkpoint.storage import Output
from topology.core.checkpoint.writer import Written
from topology.core.executors.balancing import Balance, Balancer
from topology.core.executors.logs import LogEvent, driver_log, show, show_closed
from topology.core.failures import (
    TaskFailure,
    WorkersLost,
    deadlocked,
    never_acknowledged,
    not_quiet,
)
from topology.core.metrics import (
    CheckpointSnapshot,
    Meter,
    RunReport,
    RunSnapshot,
    TaskStatus,
    report_stage,
    report_warmed,
)
from topology.core.tasks.links import FROM_THE_START, OpenRequest
from topology.core.tasks.worker import Placement, WorkerStatus

#: First pause between two rounds; it doubles up to `poll_s`, so that short runs end at once.
_FIRST_PAUSE_S = 0.02
#: How long a gap on a link waits for the sender's failure, before it is reported as the cause.
_GAP_S = 1.0


class WorkerAnswer(NamedTuple):
    """Status of a worker: the addresses of its tasks, and when it was requested, by `time.perf_counter`."""

    addresses: Sequence[int]
    requested_s: float
    status: WorkerStatus


class Workers(ABC):
    """The workers of a run, wherever they are.

    Parameters
    ----------
    placement : Placement
        Addresses of the tasks of each worker.

    Methods that call workers raise WorkersLost if one has died, and TopologyError if their executor has.
    """

    def __init__(self, plan: Plan, placement: Placement):
        self._plan = plan
        self._placement = placement

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a worker is known to have more to do, or has yet to answer."""

    def start(self) -> None:  # noqa: B027 - as the next ones: nothing to do for a worker of this process
        """Start the workers."""

    @abstractmethod
    def warm_up(self, on_progress: Callable[[Any], None]) -> float:
        """Run the plan's warm-up once wherever there are workers; the seconds it took."""

    def connect(self, incarnation: int) -> None:  # noqa: B027
        """Tell every worker the others, and the incarnation of the run."""

    def store_bytes(self) -> int | None:
        """Size of the smallest object store between workers; None: there is none, or it is unlimited."""
        return None

    @abstractmethod
    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker, and wait; answers by worker."""

    def call_tasks(self, method: str, *arguments: Any) -> list[tuple[int, Any]]:
        """As `call`, where each answer is a list by task: pairs of address and answer in order of address."""
        answers = zip(self._placement, self.call(method, *arguments), strict=True)
        pairs = [pair for addresses, mine in answers for pair in zip(addresses, mine, strict=True)]
        return sorted(pairs, key=lambda pair: pair[0])

    @abstractmethod
    def tell(self, address: int, method: str, *arguments: Any) -> None:
        """Queue a call of a method of the worker that has a task; it returns nothing."""

    @abstractmethod
    def statuses(self, pause_s: float) -> tuple[list[WorkerAnswer], TopologyError | None]:
        """Let the workers work for about `pause_s`; the statuses that have come, and the loss of workers, if any."""

    def replace(self, incarnation: int, lost: Collection[int]) -> None:  # noqa: B027
        """Start new workers in place of the lost ones; the others ignore calls of earlier incarnations."""

    @abstractmethod
    def end(self, closing: bool) -> None:
        """End every worker; with `closing` the components of a run that has failed are closed first."""

    def _show_closed(self, worker: int, closed: Sequence[tuple[TaskFailure | None, list[LogEvent]]]) -> None:
        """Log what the tasks of a worker of a failed run said when they were closed."""
        for address, (failure, events) in zip(self._placement[worker], closed, strict=True):
            show_closed(driver_log(), str(self._plan.tasks[address]), failure, events)


class Driver:
    """One run, perhaps of several groups of workers, one after the other.

    Parameters
    ----------
    executor : str
        In the report.
    plan, on_progress, stop, checkpoints, on_opened
        As in `topology.core.executors.local.run_local`.
    request : OpenRequest
        How the tasks open first; the driver adds the checkpoints and the incarnation.
    balance : Balance, optional
        Rebalance uneven loads after a checkpoint; needs `checkpoints`.
    poll_s : float
        Seconds between two rounds.
    stall_s : float
        Parcels that are in flight for this long, while nothing moves and all workers answer, end the run.
    """

    def __init__(
        self,
        executor: str,
        plan: Plan,
        on_progress: Callable[[RunSnapshot], None] | None = None,
        stop: Callable[[], bool] | None = None,
        checkpoints: Checkpoints | None = None,
        on_opened: Callable[[], None] = lambda: None,
        request: OpenRequest = FROM_THE_START,
        balance: Balance | None = None,
        poll_s: float = 0.25,
        stall_s: float = 60.0,
    ):
        self._executor = executor
        self._plan = plan
        self._on_progress = on_progress
        self._on_opened = on_opened
        self._stop = stop
        self._checkpoints = checkpoints
        self._coordinator: CheckpointCoordinator | None = None
        self._balancer: Balancer | None = None
        if checkpoints is not None:
            self._coordinator = CheckpointCoordinator(checkpoints, plan.saved_addresses)
            self._balancer = None if balance is None else Balancer(plan, balance)
            store, resume = checkpoints.store, checkpoints.resume
            request = request._replace(incarnation=checkpoints.incarnation, store=store, cadence=checkpoints.cadence)
            if resume is not None:
                request = request._replace(saved=store.load(resume))
        self._request = request  # of the present incarnation
        self._poll_s = poll_s
        self._stall_s = stall_s
        self._workers: Workers
        self._stopping = False
        self._committed_s = time.monotonic()  # when the last one was, or the run began; only figures depend on it
        self._new_checkpoint = False  # a checkpoint was committed since this was last reset
        self._began = self._opened = self._closed = False
        self._startup_s = self._warm_up_s = self._started_s = 0.0
        self._ended: WorkersLost | None = None  # all workers, with their executor: the run resumes with others
        self._ended_s = 0.0
        self._losses: Counter[tuple[str, int]] = Counter()
        self._lost: set[int] = set()
        self._recoveries: list[dict[str, Any]] = []
        self._meter = Meter(plan)
        self._log = driver_log()
        self._begin_rounds()

    def run(self, workers: Workers) -> RunReport:
        """Start, or resume after `lose_all`, with these workers; drive to the end, collect, close and report."""
        with self._driving(workers):
            while True:
                try:
                    elapsed_s = self._drive() - self._started_s
                    figures, outputs = self._collect()
                    break
                except WorkersLost as lost:
                    self._recover(lost)
            self._closed = True
            self._close()
            return self._report(figures, outputs, elapsed_s)

    def pause(self, workers: Workers) -> None:
        """Start, drive to the batch that the request names, where the clock takes a checkpoint, and close.

        Raises
        ------
        TopologyError
            If the stream ends before that batch, or a task awaits something there.
        CheckpointError
            If the checkpoint fails.
        """
        assert self._coordinator is not None and self._request.pause_behind is not None
        behind = self._request.pause_behind
        with self._driving(workers):
            while not self._advance():
                pass
            clock = self._statuses[self._plan.clock_address]
            if clock.ended:
                raise TopologyError(
                    f"the stream of {self._plan.name!r} ended behind batch {self._began_behind + clock.published}, so "
                    f"it cannot be paused behind batch {behind}; choose an earlier one"
                )
            if not self._coordinator.figures or clock.acknowledged < clock.published:
                raise not_quiet(self._plan, behind, self._in_order())
            if "failed" in self._coordinator.figures[-1]:
                raise CheckpointError(self._coordinator.figures[-1]["failed"])
            self._closed = True
            self._close()

    def lose_all(self, lost: WorkersLost, error: Exception) -> None:
        """Prepare to resume with other workers: all have ended, with their executor.

        Raises TopologyError, from the error by which that was noticed, if it is impossible.
        """
        if self._checkpoints is None:
            raise TopologyError(
                f"{lost}, and this run has no checkpoints to resume from: run again with --checkpoint-every"
            ) from error
        self._count(lost)
        self._ended, self._ended_s, self._closed = lost, time.perf_counter(), False

    # -- the start

    @contextmanager
    def _driving(self, workers: Workers) -> Iterator[None]:
        """A block with the workers started and all tasks open; ends the workers, however the block is left."""
        self._workers = workers
        try:
            self._start()
            yield
        finally:
            workers.end(closing=self._opened and not self._closed)

    def _start(self) -> None:
        began = time.perf_counter()
        self._workers.start()
        report_stage(self._on_progress, "the kernels")
        warm_up_s = self._workers.warm_up(partial(report_warmed, self._on_progress))
        ended, self._ended = self._ended, None
        try:
            if ended is None:
                self._workers.connect(self._request.incarnation)
                report_stage(self._on_progress, "the subscriptions")
                self._open()
            else:
                self._go_back(ended.workers)
                self._note(ended, self._ended_s)
        except WorkersLost as lost:
            if lost.hopeless:
                raise
            self._recover(lost)
        if not self._began:
            self._began = True
            self._startup_s, self._warm_up_s = time.perf_counter() - began, warm_up_s
            self._started_s = time.perf_counter()
            self._on_opened()

    def _open(self) -> None:
        """Have every worker open or rewind its tasks, and the clock begin. Raises ComponentFailed."""
        request = self._request._replace(store_bytes=self._workers.store_bytes())
        if request.store is not None:
            request = request._replace(epoch=request.store.last_epoch() + 1, kept=tuple(request.store.kept()))
        self._opened = True  # in part, if one of them fails
        for _, failure in self._workers.call_tasks("open", request):
            _raise_if(failure)
        self._workers.tell(self._plan.clock_address, "stop" if self._stopping else "start")

    @property
    def _began_behind(self) -> int:
        """The last batch before this incarnation, -1 if none."""
        return -1 if self._request.saved is None else self._request.saved.number

    # -- driving

    def _drive(self) -> float:
        """Work until nothing is in flight and all tasks have ended; returns when that was, by `time.perf_counter`."""
        while True:
            self._stop_if_wanted()
            if self._advance() and not self._finish_unfed(self._in_order()):
                return self._moved_s

    def _stop_if_wanted(self) -> None:
        if not self._stopping and self._stop is not None and self._stop():
            self._stopping = True
            self._workers.tell(self._plan.clock_address, "stop")

    def _begin_rounds(self) -> None:
        """Nothing is known of the tasks of this incarnation."""
        self._statuses: dict[int, TaskStatus] = {}
        self._requested_s: dict[int, float] = {}  # when the call began that `_statuses` answers
        self._totals: tuple[int, int] | None = None  # parcels sent and received, at the last round
        self._moved_s = time.perf_counter()  # when that changed
        self._look_s = 0.0  # when to look at the totals next, though no status has come
        self._pause_s = _FIRST_PAUSE_S  # of the next round
        self._gap_since: float | None = None
        self._unfed_finished = False
        if self._balancer is not None:
            self._balancer.begin()

    def _advance(self) -> bool:
        """One round: let the workers work for a moment, and take their statuses; True if nothing is in flight."""
        answers, lost = self._workers.statuses(self._pause_s)
        for answer in answers:
            self._take(answer)
        self._raise_failure(answers, lost)
        now_s = time.perf_counter()
        if not answers and now_s < self._look_s:
            return False
        self._look_s, self._pause_s = now_s + self._poll_s, min(self._poll_s, 2 * self._pause_s)
        if len(self._statuses) < len(self._plan.tasks):
            return False
        statuses = self._in_order()
        sent, received = sum(status.sent for status in statuses), sum(status.received for status in statuses)
        arrived = sent == received and not self._workers.busy
        quiet = False
        if (sent, received) != self._totals or statuses[self._plan.clock_address].writing:
            self._totals, self._moved_s = (sent, received), now_s
        elif arrived and min(self._requested_s.values()) >= self._moved_s:
            self._totals, quiet = None, True
        self._report_progress(statuses, (self._moved_s if quiet else now_s) - self._started_s)
        ended = all(status.ended for status in statuses)
        work = None if quiet or ended else self._unbalanced(statuses, now_s)
        if work is not None:
            self._rebalance(work)
        elif ended and arrived:
            self._pause_s = _FIRST_PAUSE_S
        elif sent != received and not self._workers.busy and now_s - self._moved_s > self._stall_s:
            raise TopologyError(
                f"{sent - received} parcels have been in flight for {now_s - self._moved_s:.0f} s and nothing moves: "
                "a connection between two nodes is lost"
            )
        return quiet

    def _take(self, answer: WorkerAnswer) -> None:
        """Take the status of a worker."""
        for address, (status, events) in zip(answer.addresses, answer.status.tasks, strict=True):
            show(self._log, str(self._plan.tasks[address]), events)
            self._statuses[address] = status
            self._requested_s[address] = answer.requested_s
        self._commit(answer.status.written)

    def _raise_failure(self, answers: Sequence[WorkerAnswer], lost: TopologyError | None) -> None:
        """Raise the failure of a component, which says more than the loss of workers, else that loss."""
        gap = None
        for addresses, _, status in answers:
            failure = status.failure
            if failure is not None and not failure.consequence:
                error, clock = failure.error(), self._statuses.get(self._plan.clock_address)
                # elsewhere the clock may have published since, as far as its credits allowed
                since = 0 if self._plan.clock_address in addresses else self._plan.credits
                error.last_batch = self._began_behind + (0 if clock is None else clock.published) + since
                raise error
            gap = gap or failure
        if lost is not None:
            raise lost
        if gap is not None:  # a gap on a link: its sender may be about to report why
            self._gap_since = self._gap_since or time.perf_counter()
            if time.perf_counter() - self._gap_since > _GAP_S:
                raise gap.error()

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

    # -- recovery

    def _recover(self, lost: WorkersLost) -> None:
        """Go back to the last checkpoint, with new workers in place of lost ones. Raises WorkersLost without any."""
        if self._checkpoints is None:
            raise lost
        began = time.perf_counter()
        while True:
            self._count(lost)
            try:
                self._go_back(lost.workers)
                break
            except WorkersLost as another:
                if another.hopeless:
                    raise
                lost = WorkersLost(another.workers | self._lost, another.cause, str(another))
        self._note(lost, began)

    def _count(self, lost: WorkersLost) -> None:
        """Raise TopologyError if the same has been lost too often without a checkpoint in between."""
        assert self._checkpoints is not None and self._coordinator is not None
        key = (lost.cause, self._coordinator.committed)
        self._losses[key] += 1
        if self._losses[key] > self._checkpoints.restarts:
            raise TopologyError(
                f"{lost}; this has happened {self._losses[key]} times behind checkpoint "
                f"{self._coordinator.committed} (batch {self._coordinator.number}), and recovery.restarts allows "
                f"{self._checkpoints.restarts}: mend the cause, then go on with skyray run --resume"
            ) from lost
        self._log.warning("worker_lost", why=str(lost), checkpoint=self._coordinator.committed)

    def _note(self, lost: WorkersLost, began: float) -> None:
        """Record a recovery."""
        assert self._coordinator is not None
        seconds = time.perf_counter() - began
        figure = {"lost": lost.cause, "why": str(lost), "epoch": self._coordinator.committed, "seconds": seconds}
        self._recoveries.append(figure | {"number": self._coordinator.number})
        self._log.warning("recovered", checkpoint=self._coordinator.committed, seconds=round(seconds, 2))

    def _unbalanced(self, statuses: list[TaskStatus], now_s: float) -> Mapping[str, Sequence[int]] | None:
        """Busy times, if a checkpoint was committed and loads are to be rebalanced; else None."""
        if self._balancer is None or not self._new_checkpoint:
            return None
        self._new_checkpoint = False
        return self._balancer.unbalanced(statuses, now_s)

    def _rebalance(self, work: Mapping[str, Sequence[int]]) -> None:
        """Go back to the checkpoint that was just committed, and place subscriptions by the busy times."""
        assert self._balancer is not None and self._coordinator is not None
        began = time.perf_counter()
        clock = self._statuses[self._plan.clock_address]
        ahead = clock.published - (self._coordinator.number - self._began_behind)
        self._go_back((), work)
        seconds = time.perf_counter() - began
        figure = {"number": self._coordinator.number, "batches_again": ahead, "seconds": seconds}
        self._balancer.figures.append(figure | {"work_ns": {name: list(each) for name, each in work.items()}})
        self._log.info("rebalanced", behind_batch=self._coordinator.number, seconds=round(seconds, 2))

    def _go_back(self, lost: Collection[int], work: Mapping[str, Sequence[int]] | None = None) -> None:
        """Resume from the last checkpoint, with new workers in place of the lost ones, rebalanced by `work`."""
        assert self._checkpoints is not None and self._coordinator is not None
        store, coordinator = self._checkpoints.store, self._coordinator
        incarnation, statuses = self._request.incarnation + 1, self._in_order()
        self._lost = set(lost)
        self._begin_rounds()
        self._workers.replace(incarnation, lost)  # they start while the checkpoint is checked
        manifest = store.newest()
        for why in store.refused:
            self._log.warning("checkpoint_refused", why=why)
        if manifest is None and coordinator.committed >= 0:
            why = "; ".join(store.refused) or "they are gone"
            raise CheckpointError(f"none of the checkpoints can be used ({why}); run again")
        coordinator.go_back(manifest, incarnation)
        self._meter.go_back(statuses, coordinator.number)
        saved = None if manifest is None else store.load(manifest)._replace(work=work or {})
        self._request = self._request._replace(incarnation=incarnation, saved=saved)
        self._workers.connect(incarnation)
        self._lost = set()
        self._open()

    # -- the end

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

    def _report(self, figures: list[dict[str, Any]], outputs: Sequence[Output], elapsed_s: float) -> RunReport:
        """Publish the files of a run that has ended, and report it."""
        saved: list[dict[str, Any]] = []
        if self._coordinator is None:
            publish_all(outputs)
        else:
            self._coordinator.finish(outputs)
            saved = self._coordinator.figures
        seconds = elapsed_s, self._startup_s, self._warm_up_s
        balanced = [] if self._balancer is None else self._balancer.figures
        statuses = self._in_order()
        return self._meter.report(self._executor, statuses, figures, *seconds, saved, self._recoveries, balanced)

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
