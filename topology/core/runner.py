"""The topology on Ray: every task an actor, payloads moved by calls from actor to actor.

This module, `topology.core.actors` and `topology.core.connection`, which starts or joins Ray, are the only ones below
`gateway` that know it. Every worker (a task, or several that share a process: see `topology.core.worker`) is an actor
named like `query:3`, in a namespace of its own for every run. The driver starts the actors, then does nothing but ask
each for its status about four times a second, one question outstanding at a time.

From the answers alone it knows whether the run is over or stuck: nothing is on its way if, over two rounds of
questions of which the second began after the first was answered, as many parcels were received as sent and no count
has moved. An actor that raises says so in its status; one that dies fails the question; one that answers nothing
while nothing else moves is stalled. Each ends the run with a `TopologyError` that names it.

What each task does is in `topology.core.task`, shared with `topology.core.local`, the same topology in one process.
"""

import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from matching.errors import TopologyError
from topology.core.actors import WorkerActor, names_of
from topology.core.connection import connected
from topology.core.failures import TaskFailure, never_acknowledged, who_waits
from topology.core.logs import LogEvent, driver_log, show
from topology.core.metrics import Meter, RunReport, Snapshot, TaskStatus
from topology.core.plan import Plan
from topology.core.worker import Placement, place

#: First pause between two rounds of questions; it doubles up to `poll_s`, so that short runs end at once.
_FIRST_PAUSE_S = 0.02
#: How long a gap on a link waits for the sender's word on why, before it is taken for the cause itself.
_GAP_S = 1.0
#: How long components may take to close when the run has failed already.
_CLOSE_AFTER_FAILURE_S = 5.0


def run_ray(
    plan: Plan,
    address: str | None = None,
    on_progress: Callable[[Snapshot], None] | None = None,
    *,
    together: Sequence[Sequence[str]] = (),
    stop: Callable[[], bool] | None = None,
    seed: int = 0,
    poll_s: float = 0.25,
    stall_s: float = 60.0,
    start_s: float = 300.0,
    task_cpus: float = 0.0,
    log_to_driver: bool = False,
) -> RunReport:
    """Run a topology on Ray to its end.

    Uses the Ray this process is connected to; else joins the cluster at `address`; else starts Ray on this machine,
    on loopback, and stops it afterwards, whatever other clusters run here (`topology.core.connection`).

    Parameters
    ----------
    plan : Plan
        Its components' classes must be importable where the actors run.
    address : str, optional
        Of a running Ray cluster: HOST:PORT, or `auto`.
    on_progress : callable, optional
        Called with a `Snapshot` after each round of questions, and once at the end.
    together : sequence of groups of component names
        Tasks of one group with the same number share an actor (`topology.core.worker`): fewer calls, less memory, less
        parallelism. By default every task has an actor to itself. No result depends on it.
    stop : callable, optional
        Asked in each round; once it says True the stream ends before the next batch and the topology drains.
    seed : int
        Seeds `Context.rng`.
    poll_s : float
        Seconds between two rounds of questions.
    stall_s : float
        A task that answers nothing for so long while nothing else moves is taken for stalled; no `execute` or
        `next_batch` may take longer.
    start_s : float
        How long warm-up, and then the opening of all components, may take.
    task_cpus : float
        CPUs that Ray reserves for each task. 0: as many tasks as wanted share the machine.
    log_to_driver : bool
        Whether Ray shows what worker processes print. `Context.log` always reaches this process's log.

    Returns
    -------
    RunReport

    Raises
    ------
    ConfigError
        If `address` is none.
    TopologyError
        If no cluster answers there, a component fails, an actor dies or stalls, nothing moves although tasks have not
        ended, or a batch is never acknowledged: names component and task, and quotes the cause. All actors are gone by
        then, as they are after KeyboardInterrupt.
    """
    for part in plan.components:
        if part.class_name.startswith("__main__."):
            raise TopologyError(
                f"{part.kind} {part.name!r}: its class {part.class_name} stands in the main script, which actors "
                "cannot import: move it to a module"
            )
    placement = place(plan, together)
    with connected(address, log_to_driver):
        run = _RayRun(plan, placement, on_progress, stop, seed, poll_s, stall_s, start_s, task_cpus)
        try:
            return run.run()
        finally:
            run.kill()


class _RayRun:
    """One run, as the driver sees it."""

    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        on_progress: Callable[[Snapshot], None] | None,
        stop: Callable[[], bool] | None,
        seed: int,
        poll_s: float,
        stall_s: float,
        start_s: float,
        task_cpus: float,
    ):
        self._plan = plan
        self._placement = placement
        self._worker_of = {address: worker for worker, mine in enumerate(placement) for address in mine}
        self._on_progress = on_progress
        self._stop = stop
        self._seed = seed
        self._poll_s = poll_s
        self._stall_s = stall_s
        self._start_s = start_s
        self._task_cpus = task_cpus
        self._actors: list[Any] = []
        self._opened = False
        self._closed = False
        self._unfed_finished = False
        self._gap_since: float | None = None
        self._stalled: int | None = None
        self._meter = Meter(plan)
        self._log = driver_log()
        self._statuses: dict[int, TaskStatus] = {}
        self._pending: dict[Any, tuple[int, float]] = {}  # outstanding question: which worker, since when
        self._asked_s: dict[int, float] = {}  # when the question was asked that `_statuses` answers

    def run(self) -> RunReport:
        """Start, drive to the end, collect and close."""
        began = time.perf_counter()
        plan = ray.put(self._plan)
        options: dict[str, Any] = {
            "num_cpus": self._task_cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "enable_task_events": False,  # else driver and control service grow with every call
            "scheduling_strategy": "SPREAD",
            "namespace": f"skyray-{uuid.uuid4().hex[:12]}",
        }
        actor_class = ray.remote(WorkerActor)
        for index, addresses in enumerate(self._placement):
            name = "+".join(str(self._plan.tasks[address]) for address in addresses)
            actor = actor_class.options(name=name, **options).remote(plan, self._placement, index, self._seed)
            self._actors.append(actor)
        warm_up_s = self._warm_up()  # while the processes start
        self._ask_all("connect", self._start_s, self._actors)
        self._opened = True  # in part, if one of them fails
        for _, failure in self._each_task(self._ask_all("open", self._start_s)):
            _raise_if(failure)
        startup_s = time.perf_counter() - began
        started = time.perf_counter()
        self._clock_actor.start.remote()
        elapsed_s = self._drive(started)
        figures = []
        for _, (figure, failure) in self._each_task(self._ask_all("report", self._stall_s)):
            _raise_if(failure)
            figures.append(figure)
        self._closed = True
        for address, (failure, events) in self._each_task(self._ask_all("close", self._stall_s)):
            self._show(address, events)
            _raise_if(failure)
        return self._meter.report("ray", self._in_order(), figures, elapsed_s, startup_s, warm_up_s)

    def kill(self) -> None:
        """End every actor; components that were not closed get a moment to do so."""
        try:
            if self._opened and not self._closed:
                calls = {actor.close.remote(): worker for worker, actor in enumerate(self._actors)}
                awaited = [call for call, worker in calls.items() if worker != self._stalled]
                done, _ = ray.wait(awaited, num_returns=len(awaited), timeout=_CLOSE_AFTER_FAILURE_S)
                for call in done:
                    self._show_close(calls[call], call)
        finally:
            for actor in self._actors:
                ray.kill(actor, no_restart=True)
            self._actors = []

    # -- starting and ending

    def _warm_up(self) -> float:
        warm_up = self._plan.warm_up
        if warm_up is None:
            return 0.0
        began = time.perf_counter()
        task = ray.remote(_call)
        calls = {}
        for node in ray.nodes():
            if node["Alive"]:
                where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                options = {"num_cpus": 0, "max_retries": 0, "enable_task_events": False, "scheduling_strategy": where}
                calls[task.options(**options).remote(warm_up)] = node["NodeManagerAddress"]
        pending = list(calls)
        while pending:
            left_s = began + self._start_s - time.perf_counter()
            done, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, left_s))
            if not done:
                raise TopologyError(f"warm-up on {calls[pending[0]]} takes longer than {self._start_s:g} s")
            try:
                ray.get(done[0])
            except Exception as cause:
                raise TopologyError(f"warm-up on {calls[done[0]]} failed: {cause}") from cause
        return time.perf_counter() - began

    def _ask_all(self, method: str, timeout_s: float, *arguments: Any) -> list[Any]:
        """Call one method of every actor at once; answers by worker. Any failure to answer raises."""
        calls = [getattr(actor, method).remote(*arguments) for actor in self._actors]
        until = time.perf_counter() + timeout_s
        pending = list(calls)
        while pending:
            done, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, until - time.perf_counter()))
            if not done:
                late = ", ".join(self._names(calls.index(call)) for call in pending[:8])
                raise TopologyError(f"{late}: no answer to {method} within {timeout_s:g} s")
            self._answer(done[0], calls.index(done[0]), method)
        return [self._answer(call, worker, method) for worker, call in enumerate(calls)]

    def _each_task(self, answers: Sequence[Sequence[Any]]) -> list[tuple[int, Any]]:
        """Answers of all workers, each a list by task, as pairs of address and answer in order of address."""
        pairs = zip(self._placement, answers, strict=True)
        told = [pair for addresses, mine in pairs for pair in zip(addresses, mine, strict=True)]
        return sorted(told, key=lambda pair: pair[0])

    def _names(self, worker: int) -> str:
        return names_of(self._plan, self._placement[worker])

    @property
    def _clock_actor(self) -> Any:
        return self._actors[self._worker_of[self._plan.clock_address]]

    def _answer(self, call: Any, worker: int, method: str) -> Any:
        try:
            return ray.get(call)
        except RayActorError as death:
            raise TopologyError(f"{self._names(worker)} died: {_cause_of_death(death)}") from death
        except RayTaskError as cause:
            raise TopologyError(f"{self._names(worker)} failed in {method}: {cause}") from cause

    # -- driving

    def _drive(self, started: float) -> float:
        """Ask until the run has ended; returns the seconds it took."""
        moved = quiet_since = started
        totals = None
        pause_s = _FIRST_PAUSE_S
        stopping = False
        while True:
            round_began = time.perf_counter()
            self._ask_idle()
            self._collect(pause_s)
            now = time.perf_counter()
            if not stopping and self._stop is not None and self._stop():
                stopping = True
                self._clock_actor.stop.remote()
            if len(self._statuses) == len(self._plan.tasks):
                statuses = self._in_order()
                sums = sum(status.sent for status in statuses), sum(status.received for status in statuses)
                ended = all(status.ended for status in statuses)
                if sums != totals:
                    totals, moved, quiet_since = sums, now, now
                elif sums[0] == sums[1] and not self._pending and min(self._asked_s.values()) >= quiet_since:
                    if not self._finish_unfed(statuses):
                        self._tell_progress(statuses, quiet_since - started)
                        return quiet_since - started
                    totals = None
                    continue
                self._tell_progress(statuses, now - started)
                if ended and sums[0] == sums[1] and not self._pending:
                    pause_s = _FIRST_PAUSE_S
                    continue
            self._look_for_stall(now, moved)
            time.sleep(max(0.0, round_began + pause_s - time.perf_counter()))
            pause_s = min(self._poll_s, 2 * pause_s)

    def _ask_idle(self) -> None:
        """Ask every worker that has answered the last question: one at a time each, so questions cannot pile up."""
        asked = {worker for worker, _ in self._pending.values()}
        for worker, actor in enumerate(self._actors):
            if worker not in asked:
                self._pending[actor.status.remote()] = worker, time.perf_counter()

    def _collect(self, timeout_s: float) -> None:
        done, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=timeout_s)
        deaths: list[TopologyError] = []
        for call in done:
            worker, asked_s = self._pending.pop(call)
            try:
                told = self._answer(call, worker, "status")
            except TopologyError as death:
                deaths.append(death)
                continue
            for address, (status, events) in zip(self._placement[worker], told, strict=True):
                self._show(address, events)
                self._statuses[address] = status
                self._asked_s[address] = asked_s
        failures = [status.failure for status in self._in_order() if status.failure is not None]
        for failure in failures:
            if not failure.consequence:
                raise failure.error()  # before deaths: a failure says more
        if deaths:
            raise deaths[0]
        if failures:  # a gap on a link: whoever made it may be about to say why
            self._gap_since = self._gap_since or time.perf_counter()
            if time.perf_counter() - self._gap_since > _GAP_S:
                raise failures[0].error()

    def _finish_unfed(self, statuses: list[TaskStatus]) -> bool:
        """Nothing moves any more. Finish bolts with feedback inputs only; False if all is over."""
        plan = self._plan
        fed = {address for address in range(len(plan.tasks)) if address == plan.clock_address}
        fed |= {address for address, task in enumerate(plan.tasks) if plan.end_sources(task.component)}
        unfed = [status for status in statuses if status.address not in fed and not status.ended]
        waiting = [status for status in statuses if not status.ended]
        if not waiting:
            clock = statuses[plan.clock_address]
            if clock.waits_for:
                raise never_acknowledged(plan, clock)
            return False
        if len(unfed) < len(waiting) or self._unfed_finished:
            raise who_waits(plan, statuses)
        self._unfed_finished = True
        for status in unfed:
            self._actors[self._worker_of[status.address]].finish_unfed.remote(status.address)
        return True

    def _look_for_stall(self, now: float, moved: float) -> None:
        late = [(since, worker) for worker, since in self._pending.values()]
        if late and now - max(min(late)[0], moved) > self._stall_s:
            since, worker = min(late)
            self._stalled = worker
            raise TopologyError(
                f"{self._names(worker)} has not answered for {now - since:.0f} s and nothing else moves: its "
                f"process is paused, or one execute or next_batch takes longer than stall_s = {self._stall_s:g} s"
            )
        if not late and now - moved > self._stall_s and self._statuses:
            statuses = self._in_order()
            sent = sum(status.sent for status in statuses)
            received = sum(status.received for status in statuses)
            if sent != received:
                raise TopologyError(
                    f"{sent - received} parcels have been on their way for {now - moved:.0f} s and nothing moves: "
                    "a connection between two nodes is lost"
                )

    def _tell_progress(self, statuses: list[TaskStatus], elapsed_s: float) -> None:
        snapshot = self._meter.snapshot(statuses, elapsed_s)  # also without listener: it notes the peaks
        if self._on_progress is not None:
            self._on_progress(snapshot)

    def _in_order(self) -> list[TaskStatus]:
        return [self._statuses[address] for address in sorted(self._statuses)]

    def _show(self, address: int, events: list[LogEvent]) -> None:
        show(self._log, str(self._plan.tasks[address]), events)

    def _show_close(self, worker: int, call: Any) -> None:
        try:
            told = ray.get(call)
        except (RayActorError, RayTaskError):
            return  # it is the dead one that ended the run
        for address, (failure, events) in zip(self._placement[worker], told, strict=True):
            self._show(address, events)
            if failure is not None and " failed in close: " in failure.summary:
                self._log.warning("close_failed", task=str(self._plan.tasks[address]), why=failure.summary)


def _call(function: Callable[[], Any]) -> None:
    function()


def _raise_if(failure: TaskFailure | None) -> None:
    if failure is not None:
        raise failure.error()


def _cause_of_death(death: RayActorError) -> str:
    """The telling part of Ray's message, on one line."""
    text = " ".join(str(death).split())
    for start in ("The actor is dead because", "The actor died because"):
        if start in text:
            text = text[text.index(start) :]
    missing = re.search(r"No module named '[\w.]+'", text)
    if missing:
        return f"{missing[0]} where the actor runs: install the project, and your components, on every node"
    return text.partition(" Traceback (most recent call last)")[0]
