"""One task of a component, the same for every executor: counts, orders, times and guards what the component does.

A worker takes the parcels that the host posts, and calls `receive` for those that come. The host finds the receivers
of what the component emits, numbers every parcel of a link (one task to one task), checks the numbers of incoming ones,
keeps the clock spout's credits, and passes the end on:

- A task has ended once every task on a forward edge into it has sent its end, `finish` has been called, and `idle` is
  true; then it sends its own end along its forward edges. Feedback may still arrive afterwards.
- The executor finishes a bolt with feedback inputs only (`finish_unfed`) when all others have ended and nothing is in
  flight.
- Barriers take snapshots (`topology.core.checkpoint.barriers`): a task with all barriers that is quiet copies its
  state, from which the hosts of another run can be restored. A run that is paused ends with such a barrier.

Every exception of a component becomes a `TaskFailure` (`topology.core.failures`).
"""

import pickle
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from matching.errors import EngineError, TopologyError
from topology.core.api.component import Context, Delivery, Fragment, Saved, Tick
from topology.core.api.plan import Plan
from topology.core.checkpoint.barriers import Barrier, BarrierAligner, BarrierInjector
from topology.core.checkpoint.storage import Output
from topology.core.checkpoint.task_states import Copied, TaskState
from topology.core.checkpoint.writer import Writer
from topology.core.failures import TaskFailed, TaskFailure
from topology.core.metrics import LatencyHistogram, TaskStatus
from topology.core.payload import seal
from topology.core.tasks.backpressure import Credits
from topology.core.tasks.links import (
    ACKNOWLEDGE,
    BARRIER,
    COPIED,
    END,
    FROM_THE_START,
    TICK,
    OpenRequest,
    Parcel,
)
from topology.core.tasks.output_router import OutputRouter
from topology.core.wakeup import Wakeup

#: A component that calls sys.exit() has failed; an interrupt from the keyboard is left to the executor.
_CAUGHT = (Exception, SystemExit)
#: The two classes from tuples: by name each takes a call of Python more, and a small batch makes a dozen.
_parcel: Callable[[tuple[Any, ...]], Parcel] = partial(tuple.__new__, Parcel)
_delivery: Callable[[tuple[Any, ...]], Delivery] = partial(tuple.__new__, Delivery)


class TaskHost:
    """Runs one task of a component and reports its status to the executor.

    Parameters
    ----------
    address : int
        Which task of the plan.
    post : callable
        Takes the parcels of one payload; must keep the order from one task to another, and not wait for a receiver.
    log : structlog logger
        Already bound to the task's name.
    clock : callable
        Returns seconds since the epoch.
    seed : int
        Seeds `Context.rng`, differently for every task.
    request : OpenRequest
        How its worker opens.
    writer : Writer, optional
        Without it there are no checkpoints.
    timer : callable
        Seconds of a clock that never jumps.
    work_ns : callable
        Nanoseconds of the clock that measures how long a task is busy or blocked.

    Every method that runs the component raises `TaskFailed`; after that only `status` and `close` may be called.
    """

    def __init__(
        self,
        plan: Plan,
        address: int,
        post: Callable[[Sequence[Parcel]], None],
        log: Any,
        clock: Callable[[], float],
        seed: int = 0,
        request: OpenRequest = FROM_THE_START,
        writer: Writer | None = None,
        timer: Callable[[], float] = time.monotonic,
        work_ns: Callable[[], int] = time.perf_counter_ns,
    ):
        self.plan = plan
        self._work_ns = work_ns
        self.address = address
        self.id = plan.tasks[address]
        self.spec = plan.component(self.id.component)
        self.ended = False
        self.failure: TaskFailure | None = None
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.latency = LatencyHistogram()
        self._post = post
        self.incarnation = request.incarnation
        self._request = request
        self._writer = writer
        self._timer = timer
        self._aligner = BarrierAligner(plan.end_sources(self.id.component))
        self._component: Any = None  # a Spout or a Bolt
        self._context = Context(self, plan, self.id, log, clock, seed)
        self._router = OutputRouter(plan, self.id)
        self._pending_ends = set(plan.end_sources(self.id.component))
        self.fed = bool(self._pending_ends) or self.spec.clock
        self._opened = False
        self._finished = False
        self._sent_to = [0] * len(plan.tasks)
        self._next_number = [0] * len(plan.tasks)
        self._received = 0
        self._incoming: defaultdict[str, int] = defaultdict(int)
        self._outgoing: defaultdict[str, int] = defaultdict(int)
        self._bytes_out: defaultdict[str, int] = defaultdict(int)
        self._unrouted: defaultdict[str, int] = defaultdict(int)
        self._busy_ns: defaultdict[str, int] = defaultdict(int)
        self._waited_ns = 0  # of the call that is under way
        self._stopping = self._stopped = False
        self._start_after(-1)
        self._blocked_since: int | None = None
        self._blocked_ns = 0

    # -- life

    def open(self, resumes: bool = False) -> None:
        """Unpickle the component and let it acquire its resources; `resumes` if `restore` follows."""
        self._context.resumes = resumes
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
        """Resume from a quiet boundary of another run; after `open` of all hosts, before anything is published."""
        self._opened = False  # nothing may be emitted yet
        try:
            self._start_after(saved.number)
            self._component.restore(saved)
            self._opened = True
        except _CAUGHT as cause:
            raise self._failed("restore", cause) from cause

    def take_over(self, former: "TaskHost", saved: Saved) -> bool:
        """Take the component of a host of an earlier incarnation and rewind it; False if a new one is needed.

        Replaces `open` and `restore`.
        """
        if former._component is None or former.failure is not None:
            return False
        try:
            if not former._component.rewind(saved):
                return False
        except _CAUGHT as cause:
            raise self._failed("rewind", cause) from cause
        self._component, former._component = former._component, None
        former._context.rebind(self, self._context)
        self._context = former._context
        self._opened = True
        self._start_after(saved.number)
        return True

    def fragments(self) -> Mapping[str, Fragment]:
        """The component's snapshot; only at a quiet boundary."""
        return self._call("state", lambda: self._component.snapshot({}))

    @property
    def next_number(self) -> int:
        """The batch that the clock spout publishes next."""
        return self._credits.next_number

    @property
    def _pauses_now(self) -> bool:
        """Whether the clock spout has published the last batch before the run is paused."""
        behind = self._request.pause_behind
        return behind is not None and self._credits.next_number > behind

    @property
    def can_publish(self) -> bool:
        """Whether this is the clock spout with a credit, or with a barrier or the end to send."""
        if not self.spec.clock or self.ended or (self._injector is not None and self._injector.waits):
            return False
        if self._pauses_now:
            return not self._paused
        if self._stopping:  # the last checkpoint comes first, and waits for the one before to be written
            return self._injector is None or not self._injector.writing
        return self._credits.available

    def ready(self) -> bool:
        """Whether this clock spout would publish a batch at once."""
        return not self._stopping and self._call("ready", lambda: self._component.ready())

    def publish(self) -> None:
        """Let the clock spout emit one batch and send its tick to the following spouts; at the end of the stream, end.

        Where a checkpoint is due, send its barrier instead.
        """
        number = self._credits.next_number
        self._paused = self._pauses_now
        due = self._injector is not None and self._injector.due(number - 1, self._timer(), self._stopping)
        if self._injector is not None and (due or self._paused):
            self._snapshot(self._injector.begin(number - 1, self._timer()))
            return
        self._unblock()
        started, sent_bytes = self._work_ns(), sum(self._bytes_out.values())
        try:
            tick = None if self._stopping else self._component.next_batch(number, None)
            if tick is not None and tick.number != number:
                raise TopologyError(f"next_batch({number}) returned the tick of batch {tick.number}")
            if tick is None:
                self._stopped = self._stopping
                return self._pass_end()
            self._credits.publish(sum(self._bytes_out.values()) - sent_bytes)
            if self._injector is not None:
                self._injector.published(tick.last_seq < tick.first_seq)
            self._send([(address, TICK) for address in self.plan.followers], Tick(*tick), 0)
            if not self._credits.available:
                self._blocked_since = self._work_ns()
        except _CAUGHT as cause:
            raise self._failed(f"next_batch({number})", cause) from cause
        finally:
            self._add_busy("next_batch", started)

    def stop(self) -> None:
        """End the stream before the clock spout's next batch."""
        self._stopping = True

    def receive(self, edge: int, sender: int, number: int, payload: Any) -> None:
        """Take one parcel: of an edge, or a control parcel.

        `sender` is the address it comes from and `number` its position on that link, from 0 without gaps.
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
        elif edge == BARRIER:
            self._take_barrier(sender, payload)
        elif edge == COPIED:
            if self._injector is None or not self._injector.copied(sender, payload):
                raise self._failed(
                    f"a checkpoint of {self.plan.tasks[sender]}", TopologyError(f"epoch {payload} is not awaited")
                )
        else:
            try:
                self._credits.acknowledge(payload, self.plan.acknowledging.index(sender))
                self._unblock()
            except TopologyError as cause:
                raise self._failed(f"an acknowledgement by {self.plan.tasks[sender]}", cause, trace=False) from cause

    def settled(self, epoch: int, committed: int) -> None:
        """A checkpoint was committed or abandoned: the clock may begin the next one."""
        if self._injector is not None:
            self._injector.settled(epoch, committed)

    def outputs(self) -> Sequence[Output]:
        """Files that the component has completed since the last call."""
        return self._call("outputs", lambda: self._component.outputs())

    def finish_unfed(self) -> None:
        """Finish a bolt that has feedback inputs only; the executor calls it when all others have ended."""
        if not self.fed and not self._finished:
            self._finish()

    def report(self) -> dict[str, Any]:
        """The component's own figures."""
        return self._call("report", lambda: self._component.report())

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
            received=self._received,
            sent=sum(self._sent_to),
            sent_to=np.array(self._sent_to, np.int64),
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
            stopped=self._stopped,
            # only a checkpoint that is being written keeps the clock spout from ending
            writing=self._stopping and not self.ended and self._injector is not None and self._injector.writing,
        )

    # -- what the context calls

    def emit(self, stream: str, payload: Any, to: int | None, key: int | None) -> None:
        """Send a payload along every edge of a stream; without edges the payload is counted as unrouted."""
        if not self._opened:
            raise TopologyError(
                f"{self.id} emitted on {stream!r} before the run began: emit from next_batch or execute"
            )
        receivers = self._router.receivers(stream, to, key, self.ended)
        if receivers is None:
            self._unrouted[stream] += 1
            return
        try:
            sealed, size_bytes = seal(payload)
        except TypeError as fault:
            raise TopologyError(f"{self.id} emitted on {stream!r} what cannot travel: {fault}") from None
        self._outgoing[stream] += len(receivers)
        self._bytes_out[stream] += size_bytes
        self._send(receivers, sealed, size_bytes)

    def acknowledge(self, batch: int) -> None:
        """Send an acknowledgement of a batch to the clock spout."""
        if self.id.component not in self.plan.acknowledged_by:
            names = " and ".join(map(repr, self.plan.acknowledged_by))
            raise TopologyError(
                f"{self.id} acknowledged batch {batch}, but {names} is the component that does: "
                f"change acknowledged_by, or remove the call"
            )
        self._send([(self.plan.clock_address, ACKNOWLEDGE)], int(batch), 0)

    def wait(self, seconds: float, came: Wakeup | None) -> None:
        """Wait, which is no work."""
        started = self._work_ns()
        (came or Wakeup()).wait(seconds)
        self._waited_ns += self._work_ns() - started

    # -- inside

    def _call(self, what: str, method: Callable[[], Any]) -> Any:
        try:
            return method()
        except _CAUGHT as cause:
            raise self._failed(what, cause) from cause

    def _send(self, receivers: list[tuple[int, int]], payload: Any, size_bytes: int) -> None:
        parcels, sent_to = [], self._sent_to
        for address, edge in receivers:
            parcels.append(_parcel((address, edge, self.address, sent_to[address], payload, size_bytes)))
            sent_to[address] += 1
        self._post(parcels)

    def _execute(self, stream: str, sender: int, payload: Any) -> None:
        source = self.plan.tasks[sender]
        self._incoming[stream] += 1
        started = self._work_ns()
        try:
            self._component.execute(_delivery((stream, source.component, source.task, payload)))
            if self._aligner.complete:
                self._snapshot_if_quiet()
            if self._finished and not self.ended and self._component.idle():
                self._pass_end()
        except _CAUGHT as cause:
            raise self._failed(f"execute on stream {stream!r} from {source}", cause) from cause
        finally:
            self._add_busy(stream, started)

    def _follow(self, tick: Tick) -> None:
        started = self._work_ns()
        try:
            self._component.next_batch(tick.number, tick)
        except _CAUGHT as cause:
            raise self._failed(f"next_batch({tick.number})", cause) from cause
        finally:
            self._add_busy("next_batch", started)

    def _finish(self) -> None:
        self._finished = True
        started = self._work_ns()
        try:
            if not self.spec.is_spout:
                self._component.finish()
            if self.spec.is_spout or self._component.idle():
                self._pass_end()
        except _CAUGHT as cause:
            raise self._failed("finish", cause) from cause
        finally:
            self._add_busy("finish", started)

    def _start_after(self, number: int) -> None:
        """Start after batch `number`: the clock counts credits and checkpoints from there."""
        request = self._request
        self._credits = Credits(self.plan.credits, len(self.plan.acknowledging), number + 1, request.store_bytes)
        self._injector: BarrierInjector | None = None
        self._paused = False
        if self.spec.clock and self._writer is not None:
            others = set(self.plan.saved_addresses) - {self.address}
            self._injector = BarrierInjector(request.cadence, others, request.epoch, number, self._timer())

    def _take_barrier(self, sender: int, barrier: Barrier) -> None:
        try:
            self._aligner.take(sender, barrier)
            self._snapshot_if_quiet()
        except _CAUGHT as cause:
            raise self._failed(f"the barrier of {self.plan.tasks[sender]}", cause) from cause

    def _snapshot_if_quiet(self) -> None:
        """Take a snapshot once all barriers have arrived and the component is quiet."""
        if self._aligner.complete and (self.spec.is_spout or self._component.quiet()):
            barrier = self._aligner.pop()
            self._snapshot(barrier)
            self._send([(self.plan.clock_address, COPIED)], barrier.epoch, 0)

    def _snapshot(self, barrier: Barrier) -> None:
        """Take a snapshot, queue it for writing, and send the barrier behind everything emitted before."""
        assert self._writer is not None
        began = time.perf_counter()
        try:
            closings: list[Callable[[], Output]] = []
            if self._request.pause_behind is None:  # the output of a run that is paused is never complete
                # completed files need no further work
                whole = [lambda output=output: output for output in self._component.outputs()]
                closings = [*self._component.cut(), *whole]
            fragments = self._component.snapshot(self._writer.stored(self.address, barrier.committed))
        except _CAUGHT as cause:
            raise self._failed("state", cause) from cause
        state = TaskState(self.id.component, self.id.task, self.spec.tasks, barrier.number, {})
        pause_s = time.perf_counter() - began
        self._writer.write(Copied(self.address, barrier.epoch, state, closings, pause_s, fragments))
        targets = self.plan.end_targets(self.id.component)
        if targets:
            self._send([(address, BARRIER) for address in targets], barrier, 0)

    def _pass_end(self) -> None:
        self.ended = True
        targets = self.plan.end_targets(self.id.component)
        if targets:
            self._send([(address, END) for address in targets], None, 0)

    def _add_busy(self, stream: str, started_ns: int) -> None:
        self._busy_ns[stream] += self._work_ns() - started_ns - self._waited_ns
        self._waited_ns = 0

    def _unblock(self) -> None:
        if self._blocked_since is not None:
            self._blocked_ns += self._work_ns() - self._blocked_since
            self._blocked_since = None

    def _waits_for(self) -> str:
        """The parcels that this task waits for, as text for errors."""
        if self._aligner.barrier is not None:
            missing = ", ".join(str(self.plan.tasks[address]) for address in sorted(self._aligner.missing))
            what = f"waits for that from {missing}" if missing else "is not quiet: it awaits something"
            return f"has the barrier of checkpoint {self._aligner.barrier.epoch} and {what}"
        if self._injector is not None and self._injector.waits:
            missing = ", ".join(str(self.plan.tasks[address]) for address in sorted(self._injector.awaited))
            return f"waits for {missing} to copy for a checkpoint"
        if self._paused:
            missing = self._unacknowledged()
            return f"lacks an acknowledgement of {missing}" if missing else ""
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
        return f"is finished but not idle; only feedback from {', '.join(sources) or 'no component'} could wake it"

    def _unacknowledged(self) -> str:
        """Batches that lack acknowledgements, as text; empty if there is none."""
        return self._credits.unacknowledged([str(self.plan.tasks[address]) for address in self.plan.acknowledging])

    def _failed(self, where: str, cause: BaseException, trace: bool = True, consequence: bool = False) -> TaskFailed:
        self._unblock()
        if isinstance(cause, TaskFailed):
            return cause
        text = "".join(traceback.format_exception(cause)) if trace else ""
        summary = f"{self.id} failed in {where}: {type(cause).__name__}: {cause}"
        exit_code = cause.exit_code if isinstance(cause, EngineError) else TopologyError.exit_code
        failure = TaskFailure(self.address, summary, text, exit_code, consequence)
        if self.failure is None:
            self.failure = failure
        return TaskFailed(failure)
