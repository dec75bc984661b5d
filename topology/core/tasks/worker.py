"""Tasks that share a process: what goes from one to another of them is handed over, the rest leaves in few calls.

A call between processes costs its two ends some 0.4 ms of processor time together, whatever it carries: at 5,000
messages a batch that is 80 ns a message for every edge, as much as all the work of the light components. So an
executor may put tasks together in one `Worker` (Storm's word). Parcels from task to task of one worker go through
a queue of its own, never packed or copied; parcels to another worker wait until the tasks here have no more to do
about the batch at hand, and go in one call. Behind a small batch they also wait for those of the next few, where the
clock has credits for these and can publish them at once: what answers comes back in one call, too, so that all links
carry small batches by the handful, in the same order, and nobody waits for a batch that is still to come.

Order from task to task is kept: a link lies inside one worker or between two, and both ways are queues. A worker
never waits for another. Read on in `topology.core.executors.ray`, which makes an actor of each worker.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from matching.errors import TopologyError
from topology.core.api.component import Saved
from topology.core.api.plan import Plan
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.storage import Output
from topology.core.checkpoint.store import CheckpointStore, Manifest, Writer, Written
from topology.core.executors.logs import LogBuffer, LogEvent
from topology.core.failures import TaskFailed, TaskFailure
from topology.core.metrics import TaskStatus
from topology.core.tasks.links import Destination, Saving
from topology.core.tasks.task import TaskHost

#: Bytes up to which what leaves a worker is held back for what the clock publishes next: a call costs as much as
#: packing some hundred KB, and what is larger goes at once.
_HELD_BYTES = 65_536
#: So many times at least what the credits allow is sent off, so that the tasks behind the clock work side by side.
_SHARES = 4
#: Addresses of the tasks of every worker.
Placement = tuple[tuple[int, ...], ...]


class Parcel(NamedTuple):
    """One payload on its way to the task at `address`; `edge` and `number` as in
    `topology.core.tasks.task.Destination`.
    """

    address: int
    edge: int
    sender: int
    number: int
    payload: Any
    size_bytes: int


class OpenRequest(NamedTuple):
    """What a worker goes on with: which incarnation of the run it is in, and from where.

    `store` None: without checkpoints. `manifest` None: from the start of the stream. `epoch` of the next checkpoint.
    `work` as in `Saved.work`; None: loads stay as they are. `store_bytes`: what all that is between workers must fit
    in.
    """

    incarnation: int = 0
    store: CheckpointStore | None = None
    cadence: Cadence = Cadence()
    epoch: int = 0
    manifest: Manifest | None = None
    work: Mapping[str, Sequence[int]] | None = None
    store_bytes: int | None = None


FROM_THE_START = OpenRequest()


class WorkerStatus(NamedTuple):
    """Where the tasks of a worker stand, what each has logged since the last question, and what has been written."""

    incarnation: int
    tasks: list[tuple[TaskStatus, list[LogEvent]]]
    written: list[Written]


class Transport(Protocol):
    """How parcels leave a worker."""

    def send(self, bundles: dict[int, list[Parcel]]) -> None:
        """Send each worker its parcels; must keep the order from worker to worker, and wait for nobody."""
        ...

    def again(self) -> None:
        """See that this worker's `start` is called once more, after what waits to be told to it."""
        ...


def place(plan: Plan, together: Sequence[Sequence[str]] = ()) -> Placement:
    """Which tasks share a worker: of components that stand together, those with the same task number.

    Parameters
    ----------
    plan : Plan
    together : sequence of groups of component names
        Who is in no group has a worker for each task.

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
    """The hosts of some tasks, and what is on its way between them.

    Parameters
    ----------
    plan : Plan
    placement : Placement
        Of the whole topology.
    index : int
        Which worker of it this is.
    transport : Transport
    clock : callable
        Returns seconds since the epoch.
    seed : int
        Seeds `Context.rng`.

    No method raises what a component raised: a failure is kept by its host, whose parcels are then dropped, and told
    by `status`.
    """

    def __init__(
        self, plan: Plan, placement: Placement, index: int, transport: Transport, clock: Callable[[], float], seed: int
    ):
        self._plan = plan
        self._transport = transport
        self._worker_of = {address: worker for worker, mine in enumerate(placement) for address in mine}
        self._index = index
        self._addresses = placement[index]
        self._now = clock
        self._seed = seed
        self._inbox: deque[Parcel] = deque()
        self._outbox: dict[int, list[Parcel]] = {}
        self._held_bytes = 0
        self._most_held = max(1, plan.credits // _SHARES)
        self._logs = {address: LogBuffer() for address in self._addresses}
        self._hosts: dict[int, TaskHost] = {}
        self._clock: TaskHost | None = None
        self._writer: Writer | None = None
        self.incarnation = -1

    def open(self, lease: OpenRequest = FROM_THE_START) -> list[TaskFailure | None]:
        """Let the components acquire their resources, one after the other, and stand where the lease says.

        Those of an earlier incarnation are closed before, or go back in place; what was on its way here is dropped.
        """
        former = self._hosts
        self._inbox.clear()
        self._outbox.clear()
        self._held_bytes = 0
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        saving = None
        if lease.store is not None:
            self._writer = Writer(lease.store, lease.incarnation)
            saving = Saving(lease.cadence, lease.epoch, lease.incarnation, self._writer.write)
        self._hosts = {
            address: TaskHost(
                self._plan,
                address,
                _Exit(self, address),
                log.logger,
                self._now,
                self._seed,
                saving,
                store_bytes=lease.store_bytes,
            )
            for address, log in self._logs.items()
        }
        self._clock = self._hosts.get(self._plan.clock_address)
        self.incarnation = lease.incarnation
        saved = None
        if lease.store is not None and lease.manifest is not None:
            saved = lease.store.load(lease.manifest)._replace(work=lease.work or {})
        for address, host in self._hosts.items():
            self._guarded(self._place, former.get(address), host, saved)
        return self._failures()

    def _place(self, former: TaskHost | None, host: TaskHost, saved: Saved | None) -> None:
        if former is not None:
            if saved is not None and host.take_over(former, saved):
                return
            with contextlib.suppress(TaskFailed):
                former.close()
        host.open()
        if saved is not None:
            host.restore(saved)

    def start(self) -> None:
        """Let the clock spout, if it is here, publish what its credits allow."""
        self._work()

    def stop(self) -> None:
        """End the stream before the next batch."""
        if self._clock is not None:
            self._clock.stop()
        self._work()

    def receive(self, parcels: Sequence[Parcel]) -> None:
        """Take what another worker sent, and do all that follows from it here."""
        self._inbox.extend(parcels)
        self._work()

    def finish_unfed(self, address: int) -> None:
        """See `TaskHost.finish_unfed`."""
        self._guarded(self._hosts[address].finish_unfed)
        self._work()

    def settled(self, epoch: int) -> None:
        """See `TaskHost.settled`."""
        if self._clock is not None:
            self._clock.settled(epoch)
        self._work()

    def status(self) -> WorkerStatus:
        """Where each task stands, and what has happened since the last question."""
        told = [(host.status(), self._logs[address].fetch()) for address, host in self._hosts.items()]
        return WorkerStatus(self.incarnation, told, [] if self._writer is None else self._writer.fetch())

    def written(self) -> list[Written]:
        """What has been written of checkpoints since the last question, once all that was begun is."""
        if self._writer is None:
            return []
        self._writer.drain()
        return self._writer.fetch()

    def report(self) -> list[tuple[dict[str, Any], Sequence[Output], TaskFailure | None]]:
        """Each component's figures, and the files it has finished."""
        return [
            (self._guarded(host.report) or {}, self._guarded(host.outputs) or (), host.failure)
            for host in self._hosts.values()
        ]

    def close(self) -> list[tuple[TaskFailure | None, list[LogEvent]]]:
        """Release the components' resources; one that fails keeps no other from it."""
        if self._writer is not None:
            self._writer.close()
        for host in self._hosts.values():
            self._guarded(host.close)
        return [(host.failure, self._logs[address].fetch()) for address, host in self._hosts.items()]

    def post(self, sender: int, destinations: Sequence[Destination], payload: Any, size_bytes: int) -> None:
        """Put one payload into the queues to its receivers."""
        for address, edge, number in destinations:
            parcel = Parcel(address, edge, sender, number, payload, size_bytes)
            worker = self._worker_of[address]
            if worker == self._index:
                self._inbox.append(parcel)
            else:
                self._outbox.setdefault(worker, []).append(parcel)
                self._held_bytes += size_bytes

    def _work(self) -> None:
        """Deliver inside until nothing is left, send the rest off, and publish while there is credit.

        What leaves here behind a small batch waits for that of the next few, if they can be published at once.
        """
        published = held = 0
        while True:
            while self._inbox:
                address, edge, sender, number, payload, _ = self._inbox.popleft()
                host = self._hosts[address]
                if host.failure is None:
                    self._guarded(host.receive, edge, sender, number, payload)
            clock = self._clock
            if clock is None or clock.failure is not None or not clock.can_publish:
                return self._send()
            waits = held < self._most_held and self._held_bytes < _HELD_BYTES
            if not (waits and self._guarded(clock.ready)):
                self._send()
                held = 0
                if clock.failure is not None:
                    return
            if published == self._plan.credits:
                self._send()
                # acknowledged by tasks of this very worker: without a break nobody could ever ask it anything
                self._transport.again()
                return
            self._guarded(clock.publish)
            published += 1
            held += 1

    def _send(self) -> None:
        """Send off what leaves this worker."""
        self._held_bytes = 0
        if self._outbox:
            bundles, self._outbox = self._outbox, {}
            self._transport.send(bundles)

    def _failures(self) -> list[TaskFailure | None]:
        return [host.failure for host in self._hosts.values()]

    def _guarded(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except TaskFailed:
            return None  # the host has kept it


class _Exit:
    """The channel of one task."""

    def __init__(self, worker: Worker, sender: int):
        self._worker = worker
        self._sender = sender

    def send(self, destinations: Sequence[Destination], payload: Any, size_bytes: int) -> None:
        self._worker.post(self._sender, destinations, payload, size_bytes)
