"""The topology on Ray: every task an actor, payloads moved by calls from actor to actor.

This module, `topology.core.executors.actors` and `topology.core.executors.connection`, which starts or joins Ray, are
the only ones below `gateway` that know it. Every worker (a task, or several that share a process: see
`topology.core.tasks.worker`) is an actor named like `query:3`, in a namespace of its own for every run. The driver
starts the actors, then polls the status of each about four times a second, with one call outstanding for each.

A run with checkpoints (`topology.core.checkpoint.coordinator`) recovers from an actor's death or silence from the last
one: living actors go back in place, lost ones are replaced, and calls of earlier incarnations are ignored. When a Ray
that the run has started itself loses its raylet or its control service, the run resumes in a new Ray. Without
checkpoints each of these ends the run.

The statuses show whether the run has ended or is stuck: nothing is in flight if, over two rounds of polling of which
the second began after the first was answered, as many parcels were received as sent and no count has changed. An actor
that raises reports it in its status; one that dies fails the call; one that misses heartbeats is lost
(`topology.core.executors.heartbeat`). Each ends the run with a `TopologyError` that names it.

What each task does is in `topology.core.tasks.task`, shared with `topology.core.executors.local`, the same topology in
one process.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import ray

from matching.errors import CheckpointError, TopologyError
from topology.core.api.plan import Plan
from topology.core.api.resources import NO_NEEDS, Needs
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.store import Manifest
from topology.core.executors.actor_pool import ActorPool
from topology.core.executors.balancing import Balance, Balancer
from topology.core.executors.connection import connected
from topology.core.executors.driver import Driver
from topology.core.executors.heartbeat import WorkersLost
from topology.core.executors.reservation import Reservation
from topology.core.failures import ComponentFailed, TaskFailure
from topology.core.metrics import RunReport, RunSnapshot, TaskStatus, report_stage, report_warmed
from topology.core.tasks.links import OpenRequest
from topology.core.tasks.worker import Placement, WorkerStatus, place

#: First pause between two rounds of polling; it doubles up to `poll_s`, so that short runs end at once.
_FIRST_PAUSE_S = 0.02
#: How long a gap on a link waits for the sender's failure, before it is reported as the cause.
_GAP_S = 1.0
#: How long a part of the warm-up may take: a compiler that shares two cores with ten others took four minutes for one.
_WARM_UP_S = 1800.0


def run_ray(
    plan: Plan,
    address: str | None = None,
    on_progress: Callable[[RunSnapshot], None] | None = None,
    *,
    together: Sequence[Sequence[str]] = (),
    stop: Callable[[], bool] | None = None,
    seed: int = 0,
    poll_s: float = 0.25,
    stall_s: float = 60.0,
    start_s: float = 300.0,
    needs: Needs = NO_NEEDS,
    log_to_driver: bool = False,
    checkpoints: Checkpoints | None = None,
    resume: Manifest | None = None,
    silent_s: float = 5.0,
    balance: Balance | None = None,
    on_opened: Callable[[], None] = lambda: None,
) -> RunReport:
    """Run a topology on Ray to its end.

    Uses the Ray this process is connected to; else joins the cluster at `address`; else starts Ray on this machine,
    on loopback, and stops it afterwards, whatever other clusters run here (`topology.core.executors.connection`).

    Parameters
    ----------
    plan : Plan
        Its components' classes must be importable where the actors run.
    address : str, optional
        Of a running Ray cluster: HOST:PORT, or `auto`.
    on_progress : callable, optional
        Called with a `RunSnapshot` after each round of polling, and once at the end.
    together : sequence of groups of component names
        Tasks of one group with the same number share an actor (`topology.core.tasks.worker`): fewer calls, less memory,
        less parallelism. By default every task has an actor to itself. No result depends on it.
    stop : callable, optional
        Called in each round; once it returns True the stream ends before the next batch and the topology drains.
    seed : int
        Seeds `Context.rng`.
    poll_s : float
        Seconds between two rounds of polling.
    stall_s : float
        A process that misses heartbeats for this long ends a run without checkpoints, and parcels that are in flight
        for this long end any run. An `execute` may take as long as it likes.
    start_s : float
        How long the opening of all components may take.
    needs : Needs
        CPUs and memory that the tasks reserve, all of them before one starts. By default none: any number of tasks
        share the machine.
    log_to_driver : bool
        Whether Ray shows what worker processes print. `Context.log` always reaches this process's log.
    checkpoints : Checkpoints, optional
        Take checkpoints, and recover from the loss of actors and nodes.
    resume : Manifest, optional
        Resume from this checkpoint of `checkpoints.store`.
    silent_s : float
        With checkpoints: an actor that misses heartbeats for this long is lost.
    balance : Balance, optional
        Rebalance uneven loads after a checkpoint; needs `checkpoints`.
    on_opened : callable
        Called once, when all components have opened.

    Returns
    -------
    RunReport

    Raises
    ------
    ConfigError
        If `address` is none, or the tasks reserve more than this machine has.
    TopologyError
        If no cluster answers there, what the tasks reserve is not there in time, a component fails, an actor dies or
        stalls, nothing moves although tasks have not ended, or a batch is never acknowledged: names component and task,
        and quotes the cause. All actors are gone by then, as they are after KeyboardInterrupt.
    """
    for part in plan.components:
        if part.class_name.startswith("__main__."):
            raise TopologyError(
                f"{part.kind} {part.name!r}: its class {part.class_name} stands in the main script, which actors "
                "cannot import: move it to a module"
            )
    placement = place(plan, together)
    run = _RayRun(plan, placement, on_progress, stop, poll_s, stall_s, checkpoints, resume, balance, on_opened)
    while True:
        report_stage(on_progress, "Ray")
        with connected(address, log_to_driver) as dead:
            on_wait = partial(report_stage, on_progress)
            reservation = Reservation(plan, placement, needs, address is not None, on_wait)
            silence_s = stall_s if checkpoints is None else silent_s
            pool = ActorPool(plan, placement, seed, reservation, silence_s, start_s, stall_s, dead)
            try:
                return run.run(pool)
            except Exception as error:
                if (why := dead()) is None:
                    raise
                run.lose_ray(why, error)
            finally:
                run.end()


class _RayRun(Driver):
    """A run of the actors of a pool, perhaps of several Rays one after the other."""

    executor = "ray"

    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        on_progress: Callable[[RunSnapshot], None] | None,
        stop: Callable[[], bool] | None,
        poll_s: float,
        stall_s: float,
        checkpoints: Checkpoints | None,
        resume: Manifest | None,
        balance: Balance | None,
        on_opened: Callable[[], None],
    ):
        super().__init__(plan, on_progress, stop, checkpoints, on_opened)
        self._placement = placement
        self._pool: ActorPool  # the workers, of the Ray that it runs on now
        self._ray_lost: WorkersLost | None = None
        self._ray_lost_s = 0.0
        self._poll_s = poll_s
        self._stall_s = stall_s
        self._manifest = resume
        if self._coordinator is not None and resume is not None:
            self._coordinator.go_back(resume)
        self._incarnation = 0 if checkpoints is None else checkpoints.incarnation
        self._losses: Counter[tuple[str, int]] = Counter()
        self._lost: set[int] = set()
        self._began_behind = -1 if resume is None else resume.number
        self._recoveries: list[dict[str, Any]] = []
        self._balancer = None if balance is None or checkpoints is None else Balancer(plan, balance)
        self._opened = False
        self._closed = False
        self._began = False  # in any Ray
        self._gap_since: float | None = None
        self._totals: tuple[int, int] | None = None  # parcels sent and received, at the last round
        self._moved_s = 0.0  # when that changed
        self._pause_s = _FIRST_PAUSE_S  # until the next round
        self._calls: dict[Any, tuple[int, float]] = {}  # outstanding status call -> worker, since when
        self._requested_s: dict[int, float] = {}  # when the call began that `_statuses` answers

    def run(self, pool: ActorPool) -> RunReport:
        """Start, or resume after the loss of another Ray; drive to the end, collect and close."""
        began = time.perf_counter()
        self._workers = self._pool = pool
        pool.start()
        report_stage(self._on_progress, "the kernels")
        warm_up_s = pool.warm_up(_WARM_UP_S, partial(report_warmed, self._on_progress))  # while the processes start
        lost, self._ray_lost = self._ray_lost, None
        try:
            if lost is not None:
                self._resume_after(lost)
            else:
                pool.connect(self._incarnation)
                report_stage(self._on_progress, "the subscriptions")
                self._opened = True  # in part, if one of them fails
                self._open_at()
        except WorkersLost as another:
            if self._checkpoints is None or another.hopeless:
                raise
            self._recover(another)
        if not self._began:
            self._began = True
            self._startup_s, self._warm_up_s = time.perf_counter() - began, warm_up_s
            self._started_s = time.perf_counter()
            self._on_opened()
        while True:
            try:
                self._begin_rounds()
                elapsed_s = self._drive() - self._started_s
                figures, outputs = self._collect()
                break
            except WorkersLost as lost:
                if self._checkpoints is None:
                    raise
                self._recover(lost)
        self._closed = True
        self._close()
        balanced = [] if self._balancer is None else self._balancer.figures
        return self._report(figures, outputs, elapsed_s, self._recoveries, balanced)

    def end(self) -> None:
        """End every actor; components that were not closed get a moment to do so."""
        self._pool.end(closing=self._opened and not self._closed)

    def _open_at(self, work: Mapping[str, Sequence[int]] | None = None) -> None:
        """Have every worker open or rewind its tasks, in the state from which this incarnation starts, and begin."""
        store_bytes = self._pool.store_bytes()
        self._open(OpenRequest(self._incarnation, manifest=self._manifest, work=work, store_bytes=store_bytes))
        self._workers.tell(self._plan.clock_address, "stop" if self._stopping else "start")

    # -- recovery

    def lose_ray(self, why: str, error: Exception) -> None:
        """Prepare to resume in another Ray. Raises TopologyError if that is impossible."""
        if self._checkpoints is None:
            raise TopologyError(
                f"{why}, and this run has no checkpoints to resume from: run again with --checkpoint-every"
            ) from error
        lost = WorkersLost(set(), "Ray died", why)
        self._count(lost)
        self._ray_lost, self._ray_lost_s = lost, time.perf_counter()
        self._calls = {}
        self._closed = False

    def _resume_after(self, lost: WorkersLost) -> None:
        """Resume from the last checkpoint, in a new Ray."""
        self._opened = True
        self._go_back(lost.workers)
        self._note(lost, self._ray_lost_s)

    def _recover(self, lost: WorkersLost) -> None:
        """Go back to the last checkpoint, with new actors in place of lost ones."""
        began = time.perf_counter()
        while True:
            self._pool.look_for_ray()  # its actors die with it
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
        self._incarnation += 1
        self._lost = set(lost)
        self._pool.fence(self._incarnation, lost)
        statuses, self._statuses, self._calls, self._requested_s = self._in_order(), {}, {}, {}
        self._gap_since, self._unfed_finished = None, False
        if self._balancer is not None:
            self._balancer.begin()
        self._pool.replace(lost)  # they start while the checkpoint is checked
        self._manifest = store.newest()
        for why in store.refused:
            self._log.warning("checkpoint_refused", why=why)
        if self._manifest is None and coordinator.committed >= 0:
            why = "; ".join(store.refused) or "they are gone"
            raise CheckpointError(f"none of the checkpoints can be used ({why}); run again")
        coordinator.go_back(self._manifest, self._incarnation)
        self._meter.go_back(statuses, coordinator.number)
        self._pool.connect(self._incarnation)
        self._lost = set()
        self._began_behind = coordinator.number
        self._open_at(work)

    # -- driving

    def _begin_rounds(self) -> None:
        """Nothing is known of what is in flight."""
        self._totals, self._moved_s = None, time.perf_counter()
        self._pause_s = _FIRST_PAUSE_S

    def _advance(self) -> bool:
        """One round of polling. It may end at once, so that the next one tells whether all is quiet."""
        began_s = time.perf_counter()
        self._poll()
        self._collect_statuses(self._pause_s)
        now_s = time.perf_counter()
        if len(self._statuses) == len(self._plan.tasks):
            statuses = self._in_order()
            totals = sum(status.sent for status in statuses), sum(status.received for status in statuses)
            arrived = totals[0] == totals[1] and not self._calls
            if totals != self._totals or statuses[self._plan.clock_address].writing:
                self._totals, self._moved_s = totals, now_s
            elif arrived and min(self._requested_s.values()) >= self._moved_s:
                self._totals, self._quiet_since = None, self._moved_s
                self._report_progress(statuses, self._quiet_since - self._started_s)
                return True
            self._report_progress(statuses, now_s - self._started_s)
            ended = all(status.ended for status in statuses)
            work = self._unbalanced(statuses, now_s)
            if work is not None and not ended:
                self._rebalance(work)
                self._begin_rounds()
                return False
            if ended and arrived:
                self._pause_s = _FIRST_PAUSE_S
                return False
        self._look_for_stall(now_s)
        self._pool.look_for_silence()
        time.sleep(max(0.0, began_s + self._pause_s - time.perf_counter()))
        self._pause_s = min(self._poll_s, 2 * self._pause_s)
        return False

    def _unbalanced(self, statuses: list[TaskStatus], now_s: float) -> Mapping[str, Sequence[int]] | None:
        """Busy times, if a checkpoint was committed and loads are to be rebalanced; else None."""
        if self._balancer is None or not self._new_checkpoint:
            return None
        self._new_checkpoint = False
        return self._balancer.unbalanced(statuses, now_s)

    def _poll(self) -> None:
        """Request the status of every worker without an outstanding call, so that calls cannot pile up."""
        busy = {worker for worker, _ in self._calls.values()}
        for worker, actor in enumerate(self._pool.actors):
            if worker not in busy:
                self._calls[actor.status.remote()] = worker, time.perf_counter()

    def _collect_statuses(self, timeout_s: float) -> None:
        done, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=timeout_s)
        deaths: list[TopologyError] = []
        for call in done:
            worker, requested_s = self._calls.pop(call)
            try:
                answer: WorkerStatus = self._pool.answer(call, worker, "status")
            except TopologyError as death:
                deaths.append(death)
                continue
            self._requested_s |= dict.fromkeys(self._placement[worker], requested_s)
            self._take(self._placement[worker], answer)
        failures = [status.failure for status in self._in_order() if status.failure is not None]
        for failure in failures:
            if not failure.consequence:
                raise self._error_of(failure)  # before deaths: a failure says more
        if deaths:
            lost = [death for death in deaths if isinstance(death, WorkersLost)]
            if self._checkpoints is None or len(lost) < len(deaths):
                raise deaths[0]
            raise WorkersLost(set().union(*(death.workers for death in lost)), lost[0].cause, str(lost[0]))
        if failures:  # a gap on a link: its sender may be about to report why
            self._gap_since = self._gap_since or time.perf_counter()
            if time.perf_counter() - self._gap_since > _GAP_S:
                raise failures[0].error()

    def _error_of(self, failure: TaskFailure) -> ComponentFailed:
        """A failure as an exception, with the last batch that may have caused it."""
        error = failure.error()
        clock = self._statuses.get(self._plan.clock_address)
        done = -1 if self._manifest is None else self._manifest.number
        # the clock may have published since, as far as its credits allowed
        error.last_batch = done + (0 if clock is None else clock.published) + self._plan.credits
        return error

    def _look_for_stall(self, now_s: float) -> None:
        if not self._calls and now_s - self._moved_s > self._stall_s and self._statuses:
            statuses = self._in_order()
            sent = sum(status.sent for status in statuses)
            received = sum(status.received for status in statuses)
            if sent != received:
                raise TopologyError(
                    f"{sent - received} parcels have been in flight for {now_s - self._moved_s:.0f} s and nothing "
                    "moves: a connection between two nodes is lost"
                )
