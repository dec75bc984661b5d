"""One task of a component, the same for every executor: it counts, orders, times and guards what the component does.

An executor gives the host a `Channel` to send parcels through and hands over what arrives by `receive`. The host finds
the receivers of what the component emits, numbers every parcel of a link (one task to one task), checks the numbers
of what comes in, keeps the clock spout's credits, and passes the end on:

- A task has ended once every task on a forward edge into it has told its end, `finish` has been called, and `idle`
  said yes; then its own end goes along its forward edges. Feedback may still arrive afterwards.
- A bolt with feedback inputs only is finished by the executor (`finish_unfed`) when all others have ended and
  nothing is on its way.
- At a quiet boundary the executor may ask every host for its `state`, and give all of them to the hosts of another run.

Whatever a component raises becomes a `TaskFailure` (`topology.core.failures`). Read on in `topology.core.local`
(the channel in one process) or `topology.core.runner` (between Ray actors).
"""

import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash

from matching.errors import EngineError, TopologyError
from topology.core.backpressure import Credits
from topology.core.component import Bolt, Delivery, Saved, Spout, Tick
from topology.core.failures import TaskFailed, TaskFailure
from topology.core.grouping import DIRECT, FIELDS, Chooser
from topology.core.metrics import LatencyHistogram, TaskStatus
from topology.core.payload import seal
from topology.core.plan import Plan, TaskId

#: Parcels that are no payload: they take the place of the edge's number.
END, TICK, ACKNOWLEDGE = -1, -2, -3

#: A component that calls sys.exit() has failed; an interrupt from the keyboard is the executor's business.
_CAUGHT = (Exception, SystemExit)


class Destination(NamedTuple):
    """A receiver of one parcel: its address, the edge (or END, TICK, ACKNOWLEDGE), the parcel's number on the link."""

    address: int
    edge: int
    number: int


class Channel(Protocol):
    """How parcels leave a task. Order from one task to another must be kept; `send` must not wait for a receiver."""

    def send(self, destinations: Sequence[Destination], payload: Any, size_bytes: int) -> None:
        """Send one payload, whose arrays total `size_bytes`, to all destinations."""
        ...


class _Route(NamedTuple):
    """One edge as its sending task sees it."""

    edge: int
    feedback: bool
    target: str
    addresses: tuple[int, ...]
    chooser: Chooser


class TaskContext:
    """The `topology.core.component.Context` of one task."""

    def __init__(self, host: "TaskHost", plan: Plan, task: TaskId, log: Any, clock: Callable[[], float], seed: int):
        self.component = task.component
        self.task = task.task
        self.tasks = plan.component(task.component).tasks
        self.log = log
        self.rng = np.random.default_rng((seed, xxhash.xxh32_intdigest(task.component.encode()), task.task))
        self._clock = clock
        self._host = host
        self._sizes = {part.name: part.tasks for part in plan.components}

    def size_of(self, component: str) -> int:
        """How many tasks a component of the topology has; TopologyError if it has no such component."""
        if component not in self._sizes:
            raise TopologyError(f"no component is called {component!r}; there is {', '.join(self._sizes)}")
        return self._sizes[component]

    def emit(self, stream: str, payload: Any, *, to: int | None = None, key: int | None = None) -> None:
        """See `topology.core.component.Context.emit`."""
        self._host.emit(stream, payload, to, key)

    def acknowledge(self, batch: int) -> None:
        """See `topology.core.component.Context.acknowledge`."""
        self._host.acknowledge(batch)

    def count(self, name: str, amount: int = 1) -> None:
        """See `topology.core.component.Context.count`."""
        counters = self._host.counters
        counters[name] = counters.get(name, 0) + int(amount)

    def record_latency(self, seconds: np.ndarray | float, counts: np.ndarray | int = 1) -> None:
        """See `topology.core.component.Context.record_latency`."""
        self._host.latency.record(seconds, counts)

    def now(self) -> float:
        """See `topology.core.component.Context.now`."""
        return self._clock()


class TaskHost:
    """Holds one component's task and everything the executor must know of it.

    Parameters
    ----------
    plan : Plan
    address : int
        Which task of the plan.
    channel : Channel
    log : structlog logger
        Already bound to the task's name.
    clock : callable
        Returns seconds since the epoch.
    seed : int
        Seeds `Context.rng`, differently for every task.

    Every method that runs the component raises `TaskFailed`; after that only `status` and `close` are of use.
    """

    def __init__(self, plan: Plan, address: int, channel: Channel, log: Any, clock: Callable[[], float], seed: int = 0):
        self.plan = plan
        self.address = address
        self.id = plan.tasks[address]
        self.spec = plan.component(self.id.component)
        self.ended = False
        self.failure: TaskFailure | None = None
        self.counters: dict[str, int] = {}
        self.latency = LatencyHistogram()
        self._channel = channel
        self._component: Any = None
        self._context = TaskContext(self, plan, self.id, log, clock, seed)
        self._routes = self._make_routes()
        self._pending_ends = set(plan.end_sources(self.id.component))
        self.fed = bool(self._pending_ends) or self.spec.clock
        self._opened = False
        self._finished = False
        self._sent_to = np.zeros(len(plan.tasks), np.int64)
        self._next_number = [0] * len(plan.tasks)
        self._received = 0
        self._incoming: dict[str, int] = {}
        self._outgoing: dict[str, int] = {}
        self._bytes_out: dict[str, int] = {}
        self._unrouted: dict[str, int] = {}
        self._busy_ns: dict[str, int] = {}
        self._credits = Credits(plan.credits, plan.component(plan.acknowledged_by).tasks)
        self._stopping = False
        self._blocked_since: int | None = None
        self._blocked_ns = 0

    # -- life

    def open(self) -> None:
        """Unpickle the component and let it acquire its resources."""
        try:
            self._component = pickle.loads(self.spec.template)  # noqa: S301 - made by the builder, never read from a file
            if self.spec.is_spout:
                self._component.open(self._context)
            else:
                self._component.prepare(self._context)
            self._opened = True
        except _CAUGHT as cause:
            raise self._failed("open" if self.spec.is_spout else "prepare", cause) from cause

    def restore(self, saved: Saved) -> None:
        """Go on behind a quiet boundary of another run; after `open` of all hosts, before anything is published."""
        self._opened = False  # nobody may be sent anything yet
        try:
            if self.spec.clock:
                acknowledging = self.plan.component(self.plan.acknowledged_by)
                self._credits = Credits(self.plan.credits, acknowledging.tasks, saved.number + 1)
            self._component.restore(saved)
            self._opened = True
        except _CAUGHT as cause:
            raise self._failed("restore", cause) from cause

    def state(self) -> dict[str, np.ndarray]:
        """What the component must be given to go on from this boundary, which must be a quiet one."""
        try:
            return self._component.state()
        except _CAUGHT as cause:
            raise self._failed("state", cause) from cause

    @property
    def unquiet(self) -> str:
        """What this task still awaits, in words, if nothing is on its way to it; empty if it is at a quiet boundary."""
        if self.spec.clock:
            missing = self._unacknowledged()
            return f"lacks an acknowledgement of {missing}" if missing else ""
        try:
            quiet = self.spec.is_spout or self._bolt.quiet()
        except _CAUGHT as cause:
            raise self._failed("quiet", cause) from cause
        return "" if quiet else "awaits something"

    @property
    def next_number(self) -> int:
        """The batch that the clock spout publishes next."""
        return self._credits.next_number

    @property
    def can_publish(self) -> bool:
        """Whether this is the clock spout with a credit to spend."""
        return self.spec.clock and not self.ended and (self._credits.available or self._stopping)

    def publish(self) -> None:
        """Let the clock spout emit one batch, and tell the spouts that follow it; at the end of the stream, end."""
        number = self._credits.next_number
        self._unblock()
        started = time.perf_counter_ns()
        try:
            tick = None if self._stopping else self._spout.next_batch(number, None)
            if tick is not None and tick.number != number:
                raise TopologyError(f"next_batch({number}) returned the tick of batch {tick.number}")
            if tick is None:
                self._pass_end()
                return
            self._credits.publish()
            followers = self._followers
            if followers:
                self._send([(address, TICK) for address in followers], Tick(*tick), 0)
            if not self._credits.available:
                self._blocked_since = time.perf_counter_ns()
        except _CAUGHT as cause:
            raise self._failed(f"next_batch({number})", cause) from cause
        finally:
            self._add_busy("next_batch", started)

    def stop(self) -> None:
        """End the stream before the clock spout's next batch, as if the source had ended there."""
        self._stopping = True

    def receive(self, edge: int, sender: int, number: int, payload: Any) -> None:
        """Take one parcel: of an edge, or an END, TICK or ACKNOWLEDGE.

        `sender` is the address it comes from and `number` its place on that link, from 0 without gaps.
        """
        if number != self._next_number[sender]:
            expected = self._next_number[sender]
            what = "was lost" if number > expected else "came twice"
            raise self._failed(
                f"the link from {self.plan.tasks[sender]}",
                TopologyError(f"parcel {min(number, expected)} {what} (expected {expected}, got {number})"),
                trace=False,
                consequence=True,
            )
        self._next_number[sender] = number + 1
        self._received += 1
        if edge >= 0:
            self._execute(self.plan.edges[edge].stream, sender, payload)
        elif edge == END:
            self._pending_ends.discard(sender)
            if not self._pending_ends and not self._finished:
                self._finish()
        elif edge == TICK:
            self._follow(payload)
        else:
            try:
                self._credits.acknowledge(payload, self.plan.tasks[sender].task)
                self._unblock()
            except TopologyError as cause:
                raise self._failed(f"an acknowledgement by {self.plan.tasks[sender]}", cause, trace=False) from cause

    def finish_unfed(self) -> None:
        """Finish a bolt that has feedback inputs only; the executor calls it when all others have ended."""
        if not self.fed and not self._finished:
            self._finish()

    def report(self) -> dict[str, Any]:
        """The component's own figures."""
        try:
            return self._component.report()
        except _CAUGHT as cause:
            raise self._failed("report", cause) from cause

    def close(self) -> None:
        """Release the component's resources, once, if it was ever made."""
        component, self._component = self._component, None
        if component is not None:
            try:
                component.close()
            except _CAUGHT as cause:
                raise self._failed("close", cause) from cause

    def status(self) -> TaskStatus:
        """Where this task stands."""
        recorded = self.latency.max_s > 0 or self.latency.counts.any()
        return TaskStatus(
            address=self.address,
            ended=self.ended,
            waits_for=self._waits_for(),
            failure=self.failure,
            received=self._received,
            sent=int(self._sent_to.sum()),
            sent_to=self._sent_to.copy(),
            incoming=dict(self._incoming),
            outgoing=dict(self._outgoing),
            bytes_out=dict(self._bytes_out),
            unrouted=dict(self._unrouted),
            busy_ns=dict(self._busy_ns),
            counters=dict(self.counters),
            latency=(self.latency.counts.copy(), self.latency.max_s) if recorded else None,
            published=self._credits.published,
            acknowledged=self._credits.acknowledged,
            in_flight_peak=self._credits.peak,
            blocked_s=self._blocked_ns / 1e9,
        )

    # -- what the context calls

    def emit(self, stream: str, payload: Any, to: int | None, key: int | None) -> None:
        """Send a payload along every edge of a stream; a stream without edges is counted as unrouted."""
        if not self._opened:
            raise TopologyError(
                f"{self.id} emitted on {stream!r} before the run began: emit from next_batch or execute"
            )
        routes = self._routes.get(stream)
        if routes is None:
            self._unrouted[stream] = self._unrouted.get(stream, 0) + 1
            return
        receivers: list[tuple[int, int]] = []
        groupings = set()
        for route in routes:
            if self.ended and not route.feedback:
                raise TopologyError(
                    f"{self.id} emitted on {stream!r} to {route.target!r} after its end was passed on: "
                    "idle() must say False while more may come"
                )
            try:
                chosen = route.chooser.choose(to, key)
            except ValueError as fault:
                raise TopologyError(f"{self.id} emitted on {stream!r} to {route.target!r}: {fault}") from None
            groupings.add(route.chooser.grouping)
            receivers += [(route.addresses[task], route.edge) for task in chosen]
        if (to is not None and DIRECT not in groupings) or (key is not None and FIELDS not in groupings):
            given = "to=" if to is not None and DIRECT not in groupings else "key="
            raise TopologyError(
                f"{self.id} emitted on {stream!r} with {given}, but no edge of that stream heeds it: "
                f"it is grouped {', '.join(sorted(groupings))}"
            )
        try:
            sealed, size_bytes = seal(payload)
        except TypeError as fault:
            raise TopologyError(f"{self.id} emitted on {stream!r} what cannot travel: {fault}") from None
        self._outgoing[stream] = self._outgoing.get(stream, 0) + len(receivers)
        self._bytes_out[stream] = self._bytes_out.get(stream, 0) + size_bytes
        self._send(receivers, sealed, size_bytes)

    def acknowledge(self, batch: int) -> None:
        """Give a batch's credit back to the clock spout."""
        if self.id.component != self.plan.acknowledged_by:
            raise TopologyError(
                f"{self.id} acknowledged batch {batch}, but {self.plan.acknowledged_by!r} is the component that does: "
                f"change acknowledged_by, or leave it to that"
            )
        self._send([(self.plan.clock_address, ACKNOWLEDGE)], int(batch), 0)

    # -- inside

    @property
    def _spout(self) -> Spout:
        return self._component

    @property
    def _bolt(self) -> Bolt:
        return self._component

    @property
    def _followers(self) -> list[int]:
        plan = self.plan
        return [plan.addresses[TaskId(part.name, 0)] for part in plan.components if part.is_spout and not part.clock]

    def _make_routes(self) -> dict[str, list[_Route]]:
        routes: dict[str, list[_Route]] = {}
        for number, edge in enumerate(self.plan.edges):
            if edge.source == self.id.component:
                addresses = self.plan.addresses_of(edge.target)
                chooser = Chooser(edge.grouping, len(addresses), self.id.task)
                routes.setdefault(edge.stream, []).append(
                    _Route(number, edge.feedback, edge.target, addresses, chooser)
                )
        return routes

    def _send(self, receivers: list[tuple[int, int]], payload: Any, size_bytes: int) -> None:
        destinations = []
        for address, edge in receivers:
            destinations.append(Destination(address, edge, int(self._sent_to[address])))
            self._sent_to[address] += 1
        self._channel.send(destinations, payload, size_bytes)

    def _execute(self, stream: str, sender: int, payload: Any) -> None:
        source = self.plan.tasks[sender]
        self._incoming[stream] = self._incoming.get(stream, 0) + 1
        started = time.perf_counter_ns()
        try:
            self._bolt.execute(Delivery(stream, source.component, source.task, payload))
            if self._finished and not self.ended and self._bolt.idle():
                self._pass_end()
        except _CAUGHT as cause:
            raise self._failed(f"execute on stream {stream!r} from {source}", cause) from cause
        finally:
            self._add_busy(stream, started)

    def _follow(self, tick: Tick) -> None:
        started = time.perf_counter_ns()
        try:
            self._spout.next_batch(tick.number, tick)
        except _CAUGHT as cause:
            raise self._failed(f"next_batch({tick.number})", cause) from cause
        finally:
            self._add_busy("next_batch", started)

    def _finish(self) -> None:
        self._finished = True
        started = time.perf_counter_ns()
        try:
            if not self.spec.is_spout:
                self._bolt.finish()
            if self.spec.is_spout or self._bolt.idle():
                self._pass_end()
        except _CAUGHT as cause:
            raise self._failed("finish", cause) from cause
        finally:
            self._add_busy("finish", started)

    def _pass_end(self) -> None:
        self.ended = True
        targets = self.plan.end_targets(self.id.component)
        if targets:
            self._send([(address, END) for address in targets], None, 0)

    def _add_busy(self, stream: str, started_ns: int) -> None:
        self._busy_ns[stream] = self._busy_ns.get(stream, 0) + time.perf_counter_ns() - started_ns

    def _unblock(self) -> None:
        if self._blocked_since is not None:
            self._blocked_ns += time.perf_counter_ns() - self._blocked_since
            self._blocked_since = None

    def _waits_for(self) -> str:
        """What this task still needs, in words."""
        if self.spec.clock and (self.ended or self._credits.available):
            return self._unacknowledged() if self.ended else "has more to publish"
        if self.spec.clock:
            return f"has no credit left, for want of an acknowledgement of {self._unacknowledged()}"
        if self.ended:
            return ""
        if self._pending_ends:
            return f"waits for the end of {', '.join(str(self.plan.tasks[a]) for a in sorted(self._pending_ends))}"
        if not self._finished:
            return "has feedback inputs only and waits for all others to end"
        sources = sorted({e.source for e in self.plan.edges if e.target == self.id.component and e.feedback})
        return f"is finished but not idle; only feedback from {', '.join(sources) or 'nobody'} could wake it"

    def _unacknowledged(self) -> str:
        """Batches nobody has acknowledged, in words; empty if all have their acknowledgements."""
        missing = self._credits.missing()
        if not missing:
            return ""
        name = self.plan.acknowledged_by
        listed = [f"{batch} by {', '.join(f'{name}:{task}' for task in tasks)}" for batch, tasks in missing.items()]
        more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
        return f"batch {'; batch '.join(listed[:4])}{more}"

    def _failed(self, where: str, cause: BaseException, trace: bool = True, consequence: bool = False) -> TaskFailed:
        self._unblock()
        text = "".join(traceback.format_exception(cause)) if trace else ""
        summary = f"{self.id} failed in {where}: {type(cause).__name__}: {cause}"
        exit_code = cause.exit_code if isinstance(cause, EngineError) else TopologyError.exit_code
        failure = TaskFailure(self.address, summary, text, exit_code, consequence)
        if self.failure is None:
            self.failure = failure
        return TaskFailed(failure)
