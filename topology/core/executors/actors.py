"""A worker as a Ray actor, and how parcels travel from actor to actor.

An actor is synchronous: one call at a time, calls of one caller in order. Actors call each other directly; what a call
needs of Ray is behind `RayTransport`, so that another one can take its place.
"""

from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayTaskError

from matching.errors import TopologyError
from topology.core.api.plan import Plan
from topology.core.checkpoint.storage import Output
from topology.core.checkpoint.writer import Written
from topology.core.executors.clock import SystemClock
from topology.core.executors.logs import LogBuffer, LogEvent, NodeLog
from topology.core.executors.ray_private import log_folder
from topology.core.failures import TaskFailure
from topology.core.payload import pack, unpack
from topology.core.tasks.links import OpenRequest, Parcel
from topology.core.tasks.worker import Placement, Worker, WorkerStatus

#: Ray carries arguments below 100 KB inside the call, however many there are up to 10 MB in all; what is larger goes
#: through its object store, which takes several round trips. So a payload travels in pieces below the first limit.
_PIECE_BYTES = 98_304
#: Above this, several receivers share one stored object. For one receiver the call itself is always cheaper, up to
#: the second limit (measured at 0.85 MB: 2.6 ms of CPU in all against 3.7).
_SHARED_BYTES = 100_000
_INLINE_BYTES = 4_000_000
#: References a task keeps before it looks, without waiting, which calls are done.
_REAP_AT = 64


class _Stored(NamedTuple):
    """Stands in a parcel for a payload that is an argument of the call itself."""

    place: int


class RayTransport:
    """Carries parcels to other actors by calling them; never waits for one."""

    queues = True

    def __init__(self, plan: Plan, index: int):
        self._plan = plan
        self._index = index
        self._handles: list[Any] = []
        self._incarnation = 0
        self._calls: deque[tuple[Any, Parcel]] = deque()
        self._reap_at = _REAP_AT
        self.failure: TaskFailure | None = None

    def connect(self, handles: list[Any], incarnation: int) -> None:
        """Set the actors, by worker; forget calls to earlier ones."""
        self._handles = handles
        self._incarnation = incarnation
        self._calls.clear()
        self._reap_at = _REAP_AT
        self.failure = None

    def again(self) -> None:
        self._handles[self._index].tell.remote(self._incarnation, "start")

    def send(self, bundles: dict[int, list[Parcel]]) -> None:
        """One call for each worker; a payload that is large and goes to several is stored once for all."""
        receivers = Counter(id(parcel.payload) for parcels in bundles.values() for parcel in parcels)
        stored: dict[int, Any] = {}
        for worker, parcels in bundles.items():
            arguments: list[Any] = []
            light = []
            for parcel in parcels:
                key = id(parcel.payload)
                if parcel.size_bytes > (_SHARED_BYTES if receivers[key] > 1 else _INLINE_BYTES):
                    if key not in stored:
                        stored[key] = ray.put(parcel.payload)
                    light.append(parcel._replace(payload=_Stored(len(arguments))))
                    arguments.append(stored[key])
                else:
                    light.append(parcel)
            pieces = pack(tuple(light), _PIECE_BYTES)
            call = self._handles[worker].receive.remote(self._incarnation, *pieces, *arguments)
            self._calls.append((call, parcels[0]._replace(payload=None)))
        if len(self._calls) >= self._reap_at:
            self.reap()

    @staticmethod
    def rebuild(arguments: Sequence[Any]) -> Sequence[Parcel]:
        """The parcels of a call, from the arguments that `send` made."""
        pieces = [argument for argument in arguments if isinstance(argument, bytes)]
        parcels, stored = unpack(pieces), arguments[len(pieces) :]
        return [
            parcel._replace(payload=stored[parcel.payload.place]) if isinstance(parcel.payload, _Stored) else parcel
            for parcel in parcels
        ]

    def reap(self) -> None:
        """Drop finished calls, so that memory stays bounded, and record those that failed on arrival."""
        calls = list(self._calls)
        if calls:
            done, _ = ray.wait([call for call, _ in calls], num_returns=len(calls), timeout=0, fetch_local=False)
            finished = set(done)
            for call, parcel in calls:
                if call in finished:
                    self._check(call, parcel)
            self._calls = deque(entry for entry in calls if entry[0] not in finished)
        # after a look that freed little (a slow receiver), look again only once that much more has been sent
        self._reap_at = max(_REAP_AT, 2 * len(self._calls))

    def _check(self, call: Any, first: Parcel) -> None:
        try:
            ray.get(call)
        except RayActorError:
            pass  # the driver sees that death itself and names it
        except Exception as cause:
            # the receiver's own failures come by its status: these are parcels that could not even be rebuilt there
            stream = self._plan.edges[first.edge].stream if first.edge >= 0 else "control"
            reason = cause.cause if isinstance(cause, RayTaskError) and cause.cause is not None else cause
            summary = (
                f"{self._plan.tasks[first.address]} could not take a parcel on stream {stream!r} "
                f"from {self._plan.tasks[first.sender]}: {type(reason).__name__}: "
                f"{str(reason).strip().splitlines()[0]}"
            )
            self.failure = self.failure or TaskFailure(first.address, summary, str(cause), TopologyError.exit_code)


class WorkerActor:
    """A worker inside its actor. No method raises what a component raised: see `topology.core.tasks.worker`.

    Calls of an earlier incarnation than this actor's, or than its fence, are ignored: they come from a process that was
    taken for dead, or were in flight when the run went back.
    """

    def __init__(self, plan: Plan, placement: Placement, index: int, seed: int):
        self._label = names_of(plan, placement[index])
        self._transport = RayTransport(plan, index)
        folder, clock = log_folder(), SystemClock().now
        self._log = None if folder is None else NodeLog(Path(folder), self._label, clock)
        self._worker = Worker(plan, placement, index, self._transport, clock, seed, log_of=self._log_of)
        self._fence = 0
        self._failed = False

    def __repr__(self) -> str:
        return self._label  # Ray puts it before every line the process prints

    @ray.method(concurrency_group="control")
    def beat(self) -> str:
        """Answer a heartbeat with the id of the node, by a thread of its own (kernels release the GIL)."""
        return ray.get_runtime_context().get_node_id()

    @ray.method(concurrency_group="control")
    def fence(self, incarnation: int) -> None:
        """Ignore calls of earlier incarnations from now on."""
        self._fence = max(self._fence, incarnation)

    def connect(self, handles: list[Any], incarnation: int) -> None:
        """Set the other actors, by worker."""
        self._fence = max(self._fence, incarnation)
        self._transport.connect(handles, incarnation)

    def open(self, request: OpenRequest) -> list[TaskFailure | None]:
        """See `Worker.open`, as for all that follows."""
        self._fence = max(self._fence, request.incarnation)
        self._failed = False
        failures = self._worker.open(request)
        self._say("info", "opened", incarnation=request.incarnation, failed=sum(map(bool, failures)))
        return failures

    def tell(self, incarnation: int, method: str, *arguments: Any) -> None:
        """Call a method of the worker that returns nothing."""
        if self._current(incarnation):
            getattr(self._worker, method)(*arguments)

    def written(self) -> list[Written]:
        return self._worker.written()

    def report(self) -> list[tuple[dict[str, Any], Sequence[Output], TaskFailure | None]]:
        return self._worker.report()

    def close(self) -> list[tuple[TaskFailure | None, list[LogEvent]]]:
        closed = self._worker.close()
        self._say("info", "closed", last_batch=self._worker.last_batch)
        return closed

    def receive(self, incarnation: int, *arguments: Any) -> None:
        """Take what another worker sent."""
        if self._current(incarnation):
            self._worker.receive(self._transport.rebuild(arguments))

    def status(self) -> WorkerStatus:
        """See `Worker.status`."""
        self._transport.reap()
        status = self._worker.status()
        if status.failure is not None and not self._failed:
            self._failed = True
            self._say("error", "failed", summary=status.failure.summary, trace=status.failure.trace)
        return status._replace(failure=status.failure or self._transport.failure)

    def _log_of(self, task: str) -> LogBuffer:
        log = self._log
        return LogBuffer() if log is None else LogBuffer(lambda event: log.write(task, event))

    def _say(self, level: str, event: str, **values: Any) -> None:
        """A line about the whole worker in the node's log folder, and not to the driver, which knows."""
        if self._log is not None:
            self._log.write(self._label, LogEvent(level, event, values))

    def _current(self, incarnation: int) -> bool:
        return incarnation == self._worker.incarnation >= self._fence


def names_of(plan: Plan, addresses: Sequence[int]) -> str:
    """The tasks of a worker, for people."""
    return ", ".join(str(plan.tasks[address]) for address in addresses)
