"""The topology on Ray: every task an actor, payloads moved by calls from actor to actor.

The only module below `gateway` that knows Ray. Each task is a synchronous actor (one call at a time, calls of one
caller in order) named like `query:3`, in a namespace of its own for every run. Actors call each other directly;
what a call needs of Ray is behind `_RayChannel`, so that another transport can take its place. The driver starts the
actors, then does nothing but ask each for its status about four times a second, one question outstanding at a time.

From the answers alone it knows whether the run is over or stuck: nothing is on its way if, over two rounds of
questions of which the second began after the first was answered, as many parcels were received as sent and no count
has moved. An actor that raises says so in its status; one that dies fails the question; one that answers nothing
while nothing else moves is stalled. Each ends the run with a `TopologyError` that names it.

What each task does is in `topology.task`, shared with `topology.local`, the same topology in one process.
"""

import logging
import os
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from matching.errors import TopologyError
from topology.clock import SystemClock
from topology.logs import LogBuffer, LogEvent, driver_log, show
from topology.metrics import Meter, RunReport, Snapshot, TaskStatus
from topology.payload import pack, unpack
from topology.plan import Plan
from topology.task import Destination, TaskFailed, TaskFailure, TaskHost, never_acknowledged, who_waits

#: Ray carries arguments below 100 KB inside the call, however many there are up to 10 MB in all; what is larger goes
#: through its object store, which takes several round trips. So a payload travels in pieces below the first limit.
_PIECE_BYTES = 98_304
#: Above this, several receivers share one stored object. For one receiver the call itself is always cheaper, up to
#: the second limit (measured at 0.85 MB: 2.6 ms of CPU in all against 3.7).
_SHARED_BYTES = 100_000
_INLINE_BYTES = 4_000_000
#: References a task keeps before it looks, without waiting, which calls are done.
_REAP_AT = 64
#: First pause between two rounds of questions; it doubles up to `poll_s`, so that short runs end at once.
_FIRST_PAUSE_S = 0.02
#: How long a gap on a link waits for the sender's word on why, before it is taken for the cause itself.
_GAP_S = 1.0
#: How long components may take to close when the run has failed already.
_CLOSE_AFTER_FAILURE_S = 5.0


class _RayChannel:
    """Carries parcels to other actors by calling them; never waits for one."""

    def __init__(self, plan: Plan, sender: int):
        self._plan = plan
        self._sender = sender
        self._handles: list[Any] = []
        self._calls: deque[tuple[Any, int, int]] = deque()
        self._reap_at = _REAP_AT
        self.failure: TaskFailure | None = None

    def connect(self, handles: list[Any]) -> None:
        """Learn the actors, by address."""
        self._handles = handles

    def send(self, destinations: Sequence[Destination], payload: Any, size_bytes: int) -> None:
        """One call for each destination; what is large and goes to several is stored once for all."""
        if size_bytes > (_SHARED_BYTES if len(destinations) > 1 else _INLINE_BYTES):
            pieces = [ray.put(payload)]
        else:
            pieces = pack(payload, _PIECE_BYTES)
        for address, edge, number in destinations:
            call = self._handles[address].receive.remote(edge, self._sender, number, *pieces)
            self._calls.append((call, address, edge))
        if len(self._calls) >= self._reap_at:
            self.reap()

    def reap(self) -> None:
        """Let go of finished calls, so that memory stays flat, and notice those that failed on arrival."""
        calls = list(self._calls)
        if calls:
            done, _ = ray.wait([call for call, _, _ in calls], num_returns=len(calls), timeout=0, fetch_local=False)
            finished = set(done)
            for call, address, edge in calls:
                if call in finished:
                    self._check(call, address, edge)
            self._calls = deque(entry for entry in calls if entry[0] not in finished)
        # after a look that freed little (a slow receiver), look again only once that much more has been sent
        self._reap_at = max(_REAP_AT, 2 * len(self._calls))

    def _check(self, call: Any, address: int, edge: int) -> None:
        try:
            ray.get(call)
        except RayActorError:
            pass  # the driver sees that death itself and names it
        except Exception as cause:
            # the receiver's own failures come by its status: this is a parcel that could not even be rebuilt there
            stream = self._plan.edges[edge].stream if edge >= 0 else "control"
            reason = cause.cause if isinstance(cause, RayTaskError) and cause.cause is not None else cause
            summary = (
                f"{self._plan.tasks[address]} could not take a parcel on stream {stream!r} "
                f"from {self._plan.tasks[self._sender]}: {type(reason).__name__}: {str(reason).strip().splitlines()[0]}"
            )
            self.failure = self.failure or TaskFailure(address, summary, str(cause), TopologyError.exit_code)


class _TaskActor:
    """A task's host inside its actor. No method raises: a failure is kept, and told by `status`."""

    def __init__(self, plan: Plan, address: int, seed: int):
        self._label = str(plan.tasks[address])
        self._logs = LogBuffer()
        self._channel = _RayChannel(plan, address)
        self._host = TaskHost(plan, address, self._channel, self._logs.logger, SystemClock().now, seed)

    def __repr__(self) -> str:
        return self._label  # Ray puts it before every line the process prints

    def connect(self, handles: list[Any]) -> None:
        """Learn the other actors, by address."""
        self._channel.connect(handles)

    def open(self) -> TaskFailure | None:
        """Let the component acquire its resources."""
        self._guarded(self._host.open)
        return self._host.failure

    def start(self) -> None:
        """Let the clock spout publish what its credits allow (others do nothing)."""
        self._guarded(self._pump)

    def stop(self) -> None:
        """End the stream before the next batch."""
        self._host.stop()
        self._guarded(self._pump)

    def receive(self, edge: int, sender: int, number: int, *pieces: Any) -> None:
        """Take one parcel, a stored payload or one in pieces; after a failure everything is dropped."""
        if self._host.failure is None:
            payload = unpack(pieces) if isinstance(pieces[0], bytes) else pieces[0]
            self._guarded(self._host.receive, edge, sender, number, payload)
            self._guarded(self._pump)

    def finish_unfed(self) -> None:
        """See `TaskHost.finish_unfed`."""
        self._guarded(self._host.finish_unfed)

    def status(self) -> tuple[TaskStatus, list[LogEvent]]:
        """Where the task stands, and what it has logged since the last question."""
        self._channel.reap()
        status = self._host.status()
        if status.failure is None and self._channel.failure is not None:
            status = status._replace(failure=self._channel.failure)
        return status, self._logs.fetch()

    def report(self) -> tuple[dict[str, Any], TaskFailure | None]:
        """The component's figures."""
        figures = self._guarded(self._host.report)
        return figures or {}, self._host.failure

    def close(self) -> tuple[TaskFailure | None, list[LogEvent]]:
        """Release the component's resources."""
        self._guarded(self._host.close)
        return self._host.failure, self._logs.fetch()

    def _pump(self) -> None:
        while self._host.failure is None and self._host.can_publish:
            self._host.publish()

    def _guarded(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except TaskFailed:
            return None  # the host has kept it


def run_ray(
    plan: Plan,
    address: str | None = None,
    on_progress: Callable[[Snapshot], None] | None = None,
    *,
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
    on loopback, and stops it afterwards.

    Parameters
    ----------
    plan : Plan
        Its components' classes must be importable where the actors run.
    address : str, optional
        Of a running Ray cluster.
    on_progress : callable, optional
        Called with a `Snapshot` after each round of questions, and once at the end.
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
    TopologyError
        If a component fails, an actor dies or stalls, nothing moves although tasks have not ended, or a batch is
        never acknowledged: names component and task, and quotes the cause. All actors are gone by then, as they are
        after KeyboardInterrupt.
    """
    for part in plan.components:
        if part.class_name.startswith("__main__."):
            raise TopologyError(
                f"{part.kind} {part.name!r}: its class {part.class_name} stands in the main script, which actors "
                "cannot import: move it to a module"
            )
    started_here = _connect(address, log_to_driver)
    try:
        run = _RayRun(plan, on_progress, stop, seed, poll_s, stall_s, start_s, task_cpus)
        try:
            return run.run()
        finally:
            run.kill()
    finally:
        if started_here:
            ray.shutdown()


def _connect(address: str | None, log_to_driver: bool) -> bool:
    """See that Ray is there; True if this call started or joined it, and so must leave it."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    common = {"log_to_driver": log_to_driver, "logging_level": logging.ERROR}
    if address is not None:
        try:
            ray.init(address=address, **common)
        except ConnectionError as cause:
            raise TopologyError(
                f"no Ray cluster answers at {address!r}: start it (ray start --head), or leave the address out "
                f"to run on this machine ({cause})"
            ) from cause
    else:
        ray.init(_node_ip_address="127.0.0.1", include_dashboard=False, **common)
    return True


class _RayRun:
    """One run, as the driver sees it."""

    def __init__(
        self,
        plan: Plan,
        on_progress: Callable[[Snapshot], None] | None,
        stop: Callable[[], bool] | None,
        seed: int,
        poll_s: float,
        stall_s: float,
        start_s: float,
        task_cpus: float,
    ):
        self._plan = plan
        self._on_progress = on_progress
        self._stop = stop
        self._seed = seed
        self._poll_s = poll_s
        self._stall_s = stall_s
        self._start_s = start_s
        self._task_cpus = task_cpus
        self._actors: list[Any] = []
        self._closed = False
        self._unfed_finished = False
        self._gap_since: float | None = None
        self._stalled: int | None = None
        self._meter = Meter(plan)
        self._log = driver_log()
        self._statuses: dict[int, TaskStatus] = {}
        self._pending: dict[Any, tuple[int, float]] = {}  # outstanding question: whom, since when
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
        actor_class = ray.remote(_TaskActor)
        for address, task in enumerate(self._plan.tasks):
            self._actors.append(actor_class.options(name=str(task), **options).remote(plan, address, self._seed))
        warm_up_s = self._warm_up()  # while the processes start
        self._ask_all("connect", self._start_s, self._actors)
        for failure in self._ask_all("open", self._start_s):
            _raise_if(failure)
        startup_s = time.perf_counter() - began
        started = time.perf_counter()
        self._actors[self._plan.clock_address].start.remote()
        elapsed_s = self._drive(started)
        figures = []
        for figure, failure in self._ask_all("report", self._stall_s):
            _raise_if(failure)
            figures.append(figure)
        self._closed = True
        for address, (failure, events) in enumerate(self._ask_all("close", self._stall_s)):
            self._show(address, events)
            _raise_if(failure)
        return self._meter.report("ray", self._in_order(), figures, elapsed_s, startup_s, warm_up_s)

    def kill(self) -> None:
        """End every actor; components that were not closed get a moment to do so."""
        try:
            if not self._closed and self._actors:
                calls = {actor.close.remote(): address for address, actor in enumerate(self._actors)}
                awaited = [call for call, address in calls.items() if address != self._stalled]
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
        """Call one method of every actor at once; answers by address. Any failure to answer raises."""
        calls = [getattr(actor, method).remote(*arguments) for actor in self._actors]
        until = time.perf_counter() + timeout_s
        pending = list(calls)
        while pending:
            done, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, until - time.perf_counter()))
            if not done:
                late = ", ".join(str(self._plan.tasks[calls.index(call)]) for call in pending[:8])
                raise TopologyError(f"{late}: no answer to {method} within {timeout_s:g} s")
            self._answer(done[0], calls.index(done[0]), method)
        return [self._answer(call, address, method) for address, call in enumerate(calls)]

    def _answer(self, call: Any, address: int, method: str) -> Any:
        try:
            return ray.get(call)
        except RayActorError as death:
            raise TopologyError(f"{self._plan.tasks[address]} died: {_cause_of_death(death)}") from death
        except RayTaskError as cause:
            raise TopologyError(f"{self._plan.tasks[address]} failed in {method}: {cause}") from cause

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
                self._actors[self._plan.clock_address].stop.remote()
            if len(self._statuses) == len(self._actors):
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
        """Ask every task that has answered the last question: one at a time each, so questions cannot pile up."""
        asked = {address for address, _ in self._pending.values()}
        for address, actor in enumerate(self._actors):
            if address not in asked:
                self._pending[actor.status.remote()] = address, time.perf_counter()

    def _collect(self, timeout_s: float) -> None:
        done, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=timeout_s)
        deaths: list[TopologyError] = []
        for call in done:
            address, asked_s = self._pending.pop(call)
            try:
                status, events = self._answer(call, address, "status")
            except TopologyError as death:
                deaths.append(death)
                continue
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
            self._actors[status.address].finish_unfed.remote()
        return True

    def _look_for_stall(self, now: float, moved: float) -> None:
        late = [(since, address) for address, since in self._pending.values()]
        if late and now - max(min(late)[0], moved) > self._stall_s:
            since, address = min(late)
            self._stalled = address
            raise TopologyError(
                f"{self._plan.tasks[address]} has not answered for {now - since:.0f} s and nothing else moves: its "
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

    def _show_close(self, address: int, call: Any) -> None:
        try:
            failure, events = ray.get(call)
        except (RayActorError, RayTaskError):
            return  # it is the dead one that ended the run
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
