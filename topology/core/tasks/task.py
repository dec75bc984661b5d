"""One task of a component, the same for every executor: it counts, orders, times and guards what the component does.

An executor gives the host a `Channel` to send parcels through and hands over what arrives by `receive`. The host finds
the receivers of what the component emits, numbers every parcel of a link (one task to one task), checks the numbers
of what comes in, keeps the clock spout's credits, and passes the end on:

- A task has ended once every task on a forward edge into it has told its end, `finish` has been called, and `idle`
  said yes; then its own end goes along its forward edges. Feedback may still arrive afterwards.
- A bolt with feedback inputs only is finished by the executor (`finish_unfed`) when all others have ended and
  nothing is on its way.
- At a quiet boundary the executor may ask every host for its `state`, and give all of them to the hosts of another run.
- While the topology runs, markers do so (`topology.core.checkpoint.barriers`): a task that has them all and is quiet
  copies.

Whatever a component raises becomes a `TaskFailure` (`topology.core.failures`). Read on in
`topology.core.executors.local` (the channel in one process) or `topology.core.executors.ray` (between Ray actors).
"""

import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matching.errors import EngineError, TopologyError
from topology.core.api.component import Bolt, Delivery, Saved, Spout, Tick
from topology.core.api.plan import Plan
from topology.core.checkpoint.barriers import Barrier, BarrierAligner, BarrierInjector
from topology.core.checkpoint.storage import Output
from topology.core.checkpoint.task_states import Copied, TaskState
from topology.core.failures import TaskFailed, TaskFailure
from topology.core.metrics import LatencyHistogram, TaskStatus
from topology.core.payload import seal
from topology.core.tasks.backpressure import Credits
from topology.core.tasks.context import TaskContext
from topology.core.tasks.links import ACKNOWLEDGE, COPIED, END, MARK, TICK, Channel, Destination, Saving
from topology.core.tasks.output_router import OutputRouter

#: A component that calls sys.exit() has failed; an interrupt from the keyboard is the executor's business.
_CAUGHT = (Exception, SystemExit)


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
    saving : Saving, optional
        Without it the stream is not marked.
    timer : callable
        Seconds of a clock that never jumps.
    store_bytes : int, optional
        See `topology.core.tasks.backpressure.Credits`.

    Every method that runs the component raises `TaskFailed`; after that only `status` and `close` are of use.
    """

    def __init__(
        self,
        plan: Plan,
        address: int,
        channel: Channel,
        log: Any,
        clock: Callable[[], float],
        seed: int = 0,
        saving: Saving | None = None,
        timer: Callable[[], float] = time.monotonic,
        store_bytes: int | None = None,
    ):
        self.plan = plan
        self.address = address
        self.id = plan.tasks[address]
        self.spec = plan.component(self.id.component)
        self.ended = False
        self.failure: TaskFailure | None = None
        self.counters: dict[str, int] = {}
        self.latency = LatencyHistogram()
        self._channel = channel
        self.incarnation = 0 if saving is None else saving.incarnation
        self._saving = saving
        self._timer = timer
        self._store_bytes = store_bytes
        self._marks = BarrierAligner(plan.end_sources(self.id.component))
        self._component: Any = None
        self._context = TaskContext(self, plan, self.id, log, clock, seed)
        self._exits = OutputRouter(plan, self.id)
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
        self._stopping = self._stopped = False
        self._begin_behind(-1)
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
            self._begin_behind(saved.number)
            self._component.restore(saved)
            self._opened = True
        except _CAUGHT as cause:
            raise self._failed("restore", cause) from cause

    def take_over(self, former: "TaskHost", saved: Saved) -> bool:
        """Go on with the component of a host of an earlier incarnation, taken back to there; False if it must be new.

        Instead of `open` and `restore`.
        """
        if former._component is None or former.failure is not None:
            return False
        try:
            if not former._component.rewind(saved):
                return False
        except _CAUGHT as cause:
            raise self._failed("rewind", cause) from cause
        self._component, former._component = former._component, None
        former._context.hand_over(self, self._context)
        self._context = former._context
        self._opened = True
        self._begin_behind(saved.number)
        return True

    def state(self) -> dict[str, np.ndarray]:
        """What the component must be given to go on from this boundary, which must be a quiet one."""
        return self._asked("state", lambda: self._component.state())

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
    def awaits_writing(self) -> bool:
        """Whether this is the clock spout, at its end but for a checkpoint that is being written."""
        return self._stopping and not self.ended and self._marker is not None and self._marker.writing

    @property
    def can_publish(self) -> bool:
        """Whether this is the clock spout with a credit to spend, or something else to send."""
        if not self.spec.clock or self.ended or (self._marker is not None and self._marker.waits):
            return False
        if self._stopping:  # the last checkpoint comes first, and waits for the one before to be written
            return self._marker is None or not self._marker.writing
        return self._credits.available

    def ready(self) -> bool:
        """Whether the clock spout, which this is, would publish a batch at once."""
        return not self._stopping and self._asked("ready", lambda: self._spout.ready())

    def publish(self) -> None:
        """Let the clock spout emit one batch, and tell the spouts that follow it; at the end of the stream, end.

        Where a checkpoint is due, send its marker instead.
        """
        number = self._credits.next_number
        if self._marker is not None and self._marker.due(number - 1, self._timer(), self._stopping):
            self._copy(self._marker.begin(number - 1, self._timer()))
            return
        self._unblock()
        started, sent_bytes = time.perf_counter_ns(), sum(self._bytes_out.values())
        try:
            tick = None if self._stopping else self._spout.next_batch(number, None)
            if tick is not None and tick.number != number:
                raise TopologyError(f"next_batch({number}) returned the tick of batch {tick.number}")
            if tick is None:
                self._stopped = self._stopping
                return self._pass_end()
            self._credits.publish(sum(self._bytes_out.values()) - sent_bytes)
            if self._marker is not None:
                self._marker.published(tick.last_seq < tick.first_seq)
            self._send([(address, TICK) for address in self.plan.followers], Tick(*tick), 0)
            if not self._credits.available:
                self._blocked_since = time.perf_counter_ns()
        except _CAUGHT as cause:
            raise self._failed(f"next_batch({number})", cause) from cause
        finally:
            self._add_busy("next_batch", started)

    def stop(self) -> None:
        """End the stream before the clock spout's next batch."""
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
        elif edge == MARK:
            self._take_mark(sender, payload)
        elif edge == COPIED:
            if self._marker is None or not self._marker.copied(sender, payload):
                raise self._failed(
                    f"a checkpoint of {self.plan.tasks[sender]}", TopologyError(f"epoch {payload} is not awaited")
                )
        else:
            try:
                self._credits.acknowledge(payload, self.plan.acknowledging.index(sender))
                self._unblock()
            except TopologyError as cause:
                raise self._failed(f"an acknowledgement by {self.plan.tasks[sender]}", cause, trace=False) from cause

    def settled(self, epoch: int) -> None:
        """A checkpoint has been committed, or given up: for the clock, which then may begin the next one."""
        if self._marker is not None:
            self._marker.settled(epoch)

    def outputs(self) -> Sequence[Output]:
        """Files that the component has finished and nobody was told of."""
        return self._asked("outputs", lambda: self._component.outputs())

    def finish_unfed(self) -> None:
        """Finish a bolt that has feedback inputs only; the executor calls it when all others have ended."""
        if not self.fed and not self._finished:
            self._finish()

    def report(self) -> dict[str, Any]:
        """The component's own figures."""
        return self._asked("report", lambda: self._component.report())

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
            stopped=self._stopped,
            writing=self.awaits_writing,
        )

    # -- what the context calls

    def emit(self, stream: str, payload: Any, to: int | None, key: int | None) -> None:
        """Send a payload along every edge of a stream; a stream without edges is counted as unrouted."""
        if not self._opened:
            raise TopologyError(
                f"{self.id} emitted on {stream!r} before the run began: emit from next_batch or execute"
            )
        receivers = self._exits.receivers(stream, to, key, self.ended)
        if receivers is None:
            self._unrouted[stream] = self._unrouted.get(stream, 0) + 1
            return
        try:
            sealed, size_bytes = seal(payload)
        except TypeError as fault:
            raise TopologyError(f"{self.id} emitted on {stream!r} what cannot travel: {fault}") from None
        self._outgoing[stream] = self._outgoing.get(stream, 0) + len(receivers)
        self._bytes_out[stream] = self._bytes_out.get(stream, 0) + size_bytes
        self._send(receivers, sealed, size_bytes)

    def acknowledge(self, batch: int) -> None:
        """Give a batch's credit back to the clock spout."""
        if self.id.component not in self.plan.acknowledged_by:
            names = " and ".join(map(repr, self.plan.acknowledged_by))
            raise TopologyError(
                f"{self.id} acknowledged batch {batch}, but {names} is the component that does: "
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

    def _asked(self, what: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except _CAUGHT as cause:
            raise self._failed(what, cause) from cause

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
            if self._marks.complete:
                self._copy_if_quiet()
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

    def _begin_behind(self, number: int) -> None:
        """Batch `number` is the last that is done: the clock counts credits and checkpoints from there."""
        self._credits = Credits(self.plan.credits, len(self.plan.acknowledging), number + 1, self._store_bytes)
        self._marker: BarrierInjector | None = None
        if self.spec.clock and self._saving is not None and not self._saving.cadence.never:
            others = set(self.plan.saved_addresses) - {self.address}
            self._marker = BarrierInjector(self._saving.cadence, others, self._saving.epoch, number, self._timer())

    def _take_mark(self, sender: int, mark: Barrier) -> None:
        try:
            self._marks.take(sender, mark)
            self._copy_if_quiet()
        except _CAUGHT as cause:
            raise self._failed(f"the marker of {self.plan.tasks[sender]}", cause) from cause

    def _copy_if_quiet(self) -> None:
        """With all markers here every batch up to the boundary is taken; once nothing is awaited either, copy."""
        if self._marks.complete and (self.spec.is_spout or self._bolt.quiet()):
            mark = self._marks.pop()
            self._copy(mark)
            self._send([(self.plan.clock_address, COPIED)], mark.epoch, 0)

    def _copy(self, mark: Barrier) -> None:
        """Copy the state, have it written, and hand the marker on behind all that was told before."""
        assert self._saving is not None
        began = time.perf_counter()
        try:
            # files that are whole already have nothing left to be done
            whole = [lambda output=output: output for output in self._component.outputs()]
            closings = [*self._component.cut(), *whole]
            arrays = self._component.state()
        except _CAUGHT as cause:
            raise self._failed("state", cause) from cause
        state = TaskState(self.id.component, self.id.task, self.spec.tasks, mark.number, arrays)
        self._saving.write(Copied(self.address, mark.epoch, state, closings, time.perf_counter() - began))
        targets = self.plan.end_targets(self.id.component)
        if targets:
            self._send([(address, MARK) for address in targets], mark, 0)

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
        if self._marks.mark is not None:
            missing = ", ".join(str(self.plan.tasks[address]) for address in sorted(self._marks.missing))
            what = f"waits for that from {missing}" if missing else "is not quiet: it awaits something"
            return f"has the marker of checkpoint {self._marks.mark.epoch} and {what}"
        if self._marker is not None and self._marker.waits:
            missing = ", ".join(str(self.plan.tasks[address]) for address in sorted(self._marker.awaited))
            return f"waits for {missing} to copy for a checkpoint"
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
