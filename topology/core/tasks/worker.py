"""Tasks that share a process: parcels between them stay in a queue, parcels to other workers leave in few calls.

A call between processes costs both ends together some 0.4 ms of processor time, whatever it carries: at 5,000 messages
a batch that is 80 ns a message for every edge, as much as all the work of the light components. So an executor may put
tasks together in one `Worker` (as Storm does). Parcels between tasks of one worker go through its inbox
(`topology.core.tasks.mailbox`), never packed or copied. Parcels to other workers wait in its outbox until the inbox is
empty, then leave in one call. After a small batch they also wait for those of the next few, where the clock has credits
for these and can publish them at once: responses come back in one call, too, so every link carries several small
batches in a call, in the same order, and no parcel waits for a batch that is not available yet.

The order of each link is kept: both ways are queues. A worker never waits for another.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from matching.errors import TopologyError
from topology.core.api.component import Saved
from topology.core.api.plan import Plan
from topology.core.checkpoint.storage import Output
from topology.core.checkpoint.task_states import Copied, TaskState
from topology.core.checkpoint.writer import Writer, Written
from topology.core.executors.logs import LogBuffer, LogEvent
from topology.core.failures import TaskFailed, TaskFailure
from topology.core.metrics import TaskStatus
from topology.core.tasks.links import FROM_THE_START, OpenRequest, Parcel
from topology.core.tasks.mailbox import Fifo, SeededMailbox
from topology.core.tasks.task import TaskHost

#: Bytes up to which the outbox waits for the next batches: a call costs as much as packing some hundred KB, and what is
#: larger is sent at once.
_BUFFER_BYTES = 65_536
#: Flushes, at least, for all credits of the clock, so that the tasks behind the clock work in parallel.
_FLUSHES = 4
#: Addresses of the tasks of every worker.
Placement = tuple[tuple[int, ...], ...]


class WorkerStatus(NamedTuple):
    """Status of each task, what each has logged since the last call, snapshots written since then, and a failure."""

    tasks: list[tuple[TaskStatus, list[LogEvent]]]
    written: list[Written]
    failure: TaskFailure | None


class Transport(Protocol):
    """How parcels leave a worker.

    `queues`: whether calls of other workers may wait while one is processed. A parcel of a task to itself is then
    delivered behind those calls, else behind the parcels that are in the inbox.
    """

    queues: bool

    def send(self, bundles: dict[int, list[Parcel]]) -> None:
        """Send each worker its parcels; must keep the order from worker to worker, and not block."""
        ...

    def again(self) -> None:
        """Queue another call of this worker's `start`, behind the calls that wait for it."""
        ...


def place(plan: Plan, together: Sequence[Sequence[str]] = ()) -> Placement:
    """Which tasks share a worker: those of one group of components with the same task number.

    Parameters
    ----------
    together : sequence of groups of component names
        A component in no group has a worker for each task.

    Raises
    ------
    TopologyError
        For a name the plan does not know, or one named twice.
    """
    group_of: dict[str, int] = {}
    for group, names in enumerate(together):
        for name in names:
            if not any(part.name == name for part in plan.components):
                raise TopologyError(f"components together: the topology has no {name!r}; leave it out")
            if name in group_of:
                raise TopologyError(f"components together: {name!r} is named twice; name it in one group")
            group_of[name] = group
    workers: dict[tuple[Any, int], list[int]] = {}
    for address, task in enumerate(plan.tasks):
        workers.setdefault((group_of.get(task.component, task.component), task.task), []).append(address)
    return tuple(map(tuple, workers.values()))


class Worker:
    """The hosts of some tasks, and the queues between them.

    Parameters
    ----------
    placement : Placement
        Of the whole topology.
    index : int
        Which worker of it this is.
    clock : callable
        Returns seconds since the epoch.
    seed : int
        Seeds `Context.rng`.
    timer : callable
        Seconds of a clock that never jumps.
    mailbox : callable
        Makes the inbox.
    log_of : callable
        Makes the log of a task, of its name.
    watch : callable, optional
        Takes the parcels of every payload that a task sends, before they are queued.
    most_batches : int, optional
        How many batches the clock spout publishes in one call; as many as it has credits if None.

    Attributes
    ----------
    failed : TaskFailed or None
        The first failure of a component since `open`; one that is not another's consequence replaces one that is.

    No method raises what a component raised: its host keeps the failure, later parcels to it are dropped, the clock
    spout publishes nothing more here, and `status` reports it.
    """

    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        index: int,
        transport: Transport,
        clock: Callable[[], float],
        seed: int,
        *,
        timer: Callable[[], float] = time.monotonic,
        mailbox: Callable[[], Fifo | SeededMailbox] = Fifo,
        log_of: Callable[[str], LogBuffer] = lambda _: LogBuffer(),
        watch: Callable[[Sequence[Parcel]], None] | None = None,
        most_batches: int | None = None,
        work_ns: Callable[[], int] = time.perf_counter_ns,
    ):
        self._plan = plan
        self._work_ns = work_ns
        self._transport = transport
        self._worker_of = {address: worker for worker, mine in enumerate(placement) for address in mine}
        self._index = index
        self._addresses = placement[index]
        self._now = clock
        self._seed = seed
        self._timer = timer
        self._mailbox = mailbox
        self._watch = watch
        self._most_batches = most_batches or plan.credits
        self._inbox = mailbox()
        self._outbox: dict[int, list[Parcel]] = {}
        self._to_itself: list[Parcel] = []
        self._buffered_bytes = 0
        self._most_buffered = max(1, plan.credits // _FLUSHES)
        self._logs = {address: log_of(str(plan.tasks[address])) for address in self._addresses}
        self._hosts: dict[int, TaskHost] = {}
        self._clock: TaskHost | None = None
        self._writer: Writer | None = None
        self.failed: TaskFailed | None = None
        self.incarnation = -1

    def open(self, request: OpenRequest = FROM_THE_START) -> list[TaskFailure | None]:
        """Open the components, one after the other, in the state that the request names.

        Those of an earlier incarnation are closed before, or rewound in place; queued parcels are dropped.
        """
        former = self._hosts
        self._inbox = self._mailbox()
        self._outbox.clear()
        self._to_itself = []
        self._buffered_bytes = 0
        self.failed = None
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        if request.store is not None:
            self._writer = Writer(request.store, request.incarnation, request.write_behind, request.kept)
        self._hosts = {
            address: TaskHost(
                self._plan,
                address,
                self.post,
                log.logger,
                self._now,
                self._seed,
                request,
                self._writer,
                self._timer,
                self._work_ns,
            )
            for address, log in self._logs.items()
        }
        self._clock = self._hosts.get(self._plan.clock_address)
        self.incarnation = request.incarnation
        saved = request.saved
        for address, host in self._hosts.items():
            self._guarded(self._open_host, former.get(address), host, saved)
        if self._writer is not None and request.kept and saved is not None:
            for address, host in self._hosts.items():
                state = TaskState(host.id.component, host.id.task, host.spec.tasks, saved.number, {})
                if (fragments := self._guarded(host.fragments)) is not None:
                    self._writer.recognise(Copied(address, -1, state, [], 0.0, fragments))
        return [host.failure for host in self._hosts.values()]

    def _open_host(self, former: TaskHost | None, host: TaskHost, saved: Saved | None) -> None:
        if former is not None:
            if saved is not None and host.take_over(former, saved):
                return
            with contextlib.suppress(TaskFailed):
                former.close()
        host.open(saved is not None)
        if saved is not None:
            host.restore(saved)

    def start(self) -> None:
        """Deliver what tasks have sent to themselves, and let the clock spout publish what its credits allow."""
        for parcel in self._to_itself:
            self._inbox.append(parcel)
        self._to_itself = []
        self._work()

    def stop(self) -> None:
        """End the stream before the next batch."""
        if self._clock is not None:
            self._clock.stop()
        self._work()

    def receive(self, parcels: Sequence[Parcel]) -> None:
        """Take parcels of another worker, and deliver until the inbox is empty."""
        for parcel in parcels:
            self._inbox.append(parcel)
        self._work()

    def finish_unfed(self, address: int) -> None:
        """See `TaskHost.finish_unfed`."""
        self._guarded(self._hosts[address].finish_unfed)
        self._work()

    def settled(self, epoch: int, committed: int) -> None:
        """See `TaskHost.settled`."""
        if self._clock is not None:
            self._clock.settled(epoch, committed)
        self._work()

    def status(self) -> WorkerStatus:
        """Status of each task, and what has happened since the last call."""
        statuses = [(host.status(), self._logs[address].fetch()) for address, host in self._hosts.items()]
        failure = None if self.failed is None else self.failed.failure
        return WorkerStatus(statuses, [] if self._writer is None else self._writer.fetch(), failure)

    @property
    def has_news(self) -> bool:
        """Whether `status` has a failure, or snapshots that were written since the last call."""
        return self.failed is not None or (self._writer is not None and self._writer.has_written)

    @property
    def last_batch(self) -> int:
        """The last batch that the clock spout has published, -1 if none."""
        return -1 if self._clock is None else self._clock.next_number - 1

    def drain(self) -> None:
        """Wait for snapshots that are being written."""
        if self._writer is not None:
            self._writer.drain()

    def written(self) -> list[Written]:
        """Snapshots written since the last call, with those that are being written."""
        self.drain()
        return [] if self._writer is None else self._writer.fetch()

    def report(self) -> list[tuple[dict[str, Any], Sequence[Output], TaskFailure | None]]:
        """Each component's figures, and the files it has finished."""
        return [
            (self._guarded(host.report) or {}, self._guarded(host.outputs) or (), host.failure)
            for host in self._hosts.values()
        ]

    def close(self) -> list[tuple[TaskFailure | None, list[LogEvent]]]:
        """Close all components, also after one of them has failed to."""
        if self._writer is not None:
            self._writer.close()
        for host in self._hosts.values():
            self._guarded(host.close)
        return [(host.failure, self._logs[address].fetch()) for address, host in self._hosts.items()]

    def post(self, parcels: Sequence[Parcel]) -> None:
        """Queue the parcels of one payload."""
        if self._watch is not None:
            self._watch(parcels)
        for parcel in parcels:
            worker = self._worker_of[parcel.address]
            if parcel.address == parcel.sender and self._transport.queues:
                self._to_itself.append(parcel)
                if len(self._to_itself) == 1:
                    self._transport.again()
            elif worker == self._index:
                self._inbox.append(parcel)
            else:
                self._outbox.setdefault(worker, []).append(parcel)
                self._buffered_bytes += parcel.size_bytes

    def _work(self) -> None:
        """Deliver until the inbox is empty, send the outbox, and publish while there are credits.

        After a small batch the outbox waits for the next few, if they can be published at once.
        """
        inbox, clock, hosts = self._inbox, self._clock, self._hosts
        published = buffered = 0
        while True:
            while (parcel := inbox.take(self._may_publish)) is not None:
                address, edge, sender, number, payload, _ = parcel
                host = hosts[address]
                if host.failure is None:
                    try:  # as `_guarded`, in the loop that takes most calls
                        host.receive(edge, sender, number, payload)
                    except TaskFailed as failed:
                        self._note(failed)
            if clock is None or not self._may_publish():
                return self._send()
            waits = buffered < self._most_buffered and self._buffered_bytes < _BUFFER_BYTES
            if not (waits and self._guarded(clock.ready)):
                self._send()
                buffered = 0
                if clock.failure is not None:
                    return
            self._guarded(clock.publish)
            published += 1
            buffered += 1
            if published == self._most_batches:
                self._send()
                # this worker's own tasks acknowledge: without a break it would never answer a call
                self._transport.again()
                return

    def _may_publish(self) -> bool:
        """Whether the clock spout is here and may publish: a patient one, which may wait, with all delivered only."""
        clock = self._clock
        if clock is None or self.failed is not None or not clock.can_publish:
            return False
        return not (clock.spec.patient and self._inbox)

    def _send(self) -> None:
        """Send the outbox."""
        self._buffered_bytes = 0
        if self._outbox:
            bundles, self._outbox = self._outbox, {}
            self._transport.send(bundles)

    def _guarded(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except TaskFailed as failed:  # the host keeps it
            self._note(failed)
            return None

    def _note(self, failed: TaskFailed) -> None:
        if self.failed is None or (self.failed.failure.consequence and not failed.failure.consequence):
            self.failed = failed
