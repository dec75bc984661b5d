"""The actors of a run: started, called together, replaced one by one, and ended.

`topology.core.executors.ray` decides on the calls.
"""

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from matching.errors import TopologyError
from topology.core.api.plan import Plan
from topology.core.executors.actors import WorkerActor, names_of
from topology.core.executors.heartbeat import Heartbeat, WorkersLost
from topology.core.executors.logs import driver_log, show_closed
from topology.core.executors.reservation import Reservation
from topology.core.tasks.worker import Placement

#: How long components may take to close when the run has failed already.
_CLOSE_AFTER_FAILURE_S = 5.0
#: How long to wait for one answer before Ray and the heartbeats are checked.
_LOOK_S = 0.25


class ActorPool:
    """An actor for each worker of a placement.

    Parameters
    ----------
    plan : Plan
    placement : Placement
    seed : int
        Seeds `Context.rng`.
    reservation : Reservation
        What the actors reserve.
    silent_s : float
        Workers that miss heartbeats for this long are lost.
    start_s, answer_s : float
        How long workers may take to start and open, and to answer any other call.
    dead : callable
        Returns which process of Ray has died (`topology.core.executors.connection.connected`).

    Attributes
    ----------
    actors : list
        Handles, by worker.
    incarnation : int
        Of the run; calls of earlier ones are ignored.
    stalled : set of int
        Workers that no longer answer.

    Every method that calls actors raises `WorkersLost` (`topology.core.executors.heartbeat`) if an actor has died, and
    TopologyError if Ray has.
    """

    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        seed: int,
        reservation: Reservation,
        silent_s: float,
        start_s: float,
        answer_s: float,
        dead: Callable[[], str | None],
    ):
        self.actors: list[Any] = []
        self.incarnation = 0
        self.stalled: set[int] = set()
        self._plan = plan
        self._placement = placement
        self._seed = seed
        self._reservation = reservation
        self._worker_of = {address: worker for worker, mine in enumerate(placement) for address in mine}
        self._dead = dead
        self._heartbeat = Heartbeat(silent_s)
        self._start_s, self._answer_s = start_s, answer_s
        self._stored: Any = None
        self._log = driver_log()
        # heartbeats have a thread of their own; all other calls run in the order in which they were sent
        made: Any = ray.remote
        self._class = made(concurrency_groups={"control": 1})(WorkerActor)

    def start(self) -> None:
        """Start all actors, once what they reserve is there; returns before they have started."""
        self._reservation.take(self.look_for_ray)
        self._stored = ray.put(self._plan)
        self.actors = [self._start(worker, "SPREAD") for worker in range(len(self._placement))]
        self._heartbeat.start(self.actors, ())

    def replace(self, lost: Collection[int]) -> None:
        """Start new actors in place of these, on the healthy nodes with the fewest workers."""
        for worker in sorted(lost):
            node = self._heartbeat.node_for(lost)
            where = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=True)
            self.actors[worker] = self._start(worker, where)
        self.stalled -= set(lost)
        self._heartbeat.start(self.actors, lost)

    def connect(self, incarnation: int) -> None:
        """Tell every actor the others, and the incarnation of the run."""
        self.incarnation = incarnation
        self.call("connect", self.actors, incarnation)

    def fence(self, incarnation: int, lost: Collection[int]) -> None:
        """Kill the lost workers, and have all others ignore calls of earlier incarnations. A lost one that is only
        silent may live on: its incarnation keeps its calls out."""
        for worker, actor in enumerate(self.actors):
            if worker in lost:
                ray.kill(actor, no_restart=True)
            else:
                actor.fence.remote(incarnation)

    def names(self, worker: int) -> str:
        """The tasks of a worker, for people."""
        return names_of(self._plan, self._placement[worker])

    def store_bytes(self) -> int | None:
        """Size of the smallest object store of a node; None if Ray does not say."""
        sizes = [node["Resources"].get("object_store_memory") for node in ray.nodes() if node["Alive"]]
        return min((int(size) for size in sizes if size), default=None)

    def warm_up(self, timeout_s: float, on_progress: Callable[[Any], None] = lambda _: None) -> float:
        """Run the plan's warm-up once on every node; the seconds it took.

        Parameters
        ----------
        timeout_s : float
            How long a node may report no progress.
        on_progress : callable
            Called with the progress of the slowest node, whenever it changes.

        Raises
        ------
        TopologyError
            If it fails on a node, or a node reports no progress for too long.
        """
        warm_up = self._plan.warm_up
        if warm_up is None:
            return 0.0
        began = heard_s = time.perf_counter()
        task = ray.remote(_progress_of)
        calls = {}
        for node in ray.nodes():
            if node["Alive"]:
                where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                options = {"num_cpus": 0, "max_retries": 0, "enable_task_events": False, "scheduling_strategy": where}
                calls[task.options(num_returns="streaming", **options).remote(warm_up)] = node["NodeManagerAddress"]
        reached: dict[Any, Any] = {}
        progress = None
        pending = list(calls)
        while pending:
            left_s = heard_s + timeout_s - time.perf_counter()
            done, _ = ray.wait(pending, num_returns=1, timeout=min(max(0.0, left_s), _LOOK_S))
            if not done and left_s > 0.0:
                self.look_for_ray()
                continue
            if not done:
                raise TopologyError(f"warm-up on {calls[pending[0]]} gets no further for {timeout_s:g} s")
            steps: Any = done[0]
            heard_s = time.perf_counter()
            try:
                reached[steps] = ray.get(next(steps))
            except StopIteration:
                pending.remove(steps)
            except Exception as cause:
                raise TopologyError(f"warm-up on {calls[steps]} failed: {cause}") from cause
            if len(reached) == len(calls) and progress != (progress := min(reached.values())):
                on_progress(progress)
        return time.perf_counter() - began

    def tell(self, address: int, method: str, *arguments: Any) -> None:
        """See `topology.core.executors.driver.Workers`."""
        self.actors[self._worker_of[address]].tell.remote(self.incarnation, method, *arguments)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """See `topology.core.executors.driver.Workers`. Any failure to answer raises TopologyError."""
        timeout_s = self._start_s if method in ("connect", "open") else self._answer_s
        calls = [getattr(actor, method).remote(*arguments) for actor in self.actors]
        until = time.perf_counter() + timeout_s
        pending = list(calls)
        while pending:
            left_s = max(0.0, until - time.perf_counter())
            done, pending = ray.wait(pending, num_returns=1, timeout=min(left_s, _LOOK_S))
            if not done and left_s > 0.0:
                self.look_for_silence()
                continue
            if not done:
                late = ", ".join(self.names(calls.index(call)) for call in pending[:8])
                raise TopologyError(f"{late}: no answer to {method} within {timeout_s:g} s")
            self.answer(done[0], calls.index(done[0]), method)
        return [self.answer(call, worker, method) for worker, call in enumerate(calls)]

    def call_tasks(self, method: str, *arguments: Any) -> list[tuple[int, Any]]:
        """See `topology.core.executors.driver.Workers`."""
        pairs = zip(self._placement, self.call(method, *arguments), strict=True)
        answers = [pair for addresses, mine in pairs for pair in zip(addresses, mine, strict=True)]
        return sorted(answers, key=lambda pair: pair[0])

    def answer(self, call: Any, worker: int, method: str) -> Any:
        """The result of a call that is done."""
        try:
            return ray.get(call)
        except RayActorError as death:
            names, why = self.names(worker), _cause_of_death(death)
            hopeless = "No module named" in why or "creation task" in why
            raise WorkersLost({worker}, f"{names} died", f"{names} died: {why}", hopeless) from death
        except RayTaskError as cause:
            raise TopologyError(f"{self.names(worker)} failed in {method}: {cause}") from cause

    def look_for_ray(self) -> None:
        """Raise TopologyError if Ray has died: later calls may never return."""
        if why := self._dead():
            raise TopologyError(why)

    def look_for_silence(self) -> None:
        """Raise WorkersLost for workers whose process is stopped, or cannot be reached any more; see `look_for_ray`."""
        self.look_for_ray()
        silent = self._heartbeat.silent()
        if silent:
            self.stalled |= silent
            names = ", ".join(map(self.names, sorted(silent)))
            raise WorkersLost(
                silent,
                f"{names} silent",
                f"{names}: no sign of life for {self._heartbeat.silent_s:g} s, its process is stopped or cut off",
            )

    def end(self, closing: bool) -> None:
        """End every actor; with `closing` their components get a moment to close."""
        if self._dead():
            return  # they end with Ray
        try:
            if closing:
                calls = {actor.close.remote(): worker for worker, actor in enumerate(self.actors)}
                awaited = [call for call, worker in calls.items() if worker not in self.stalled]
                done, _ = ray.wait(awaited, num_returns=len(awaited), timeout=_CLOSE_AFTER_FAILURE_S)
                for call in done:
                    self._show_close(calls[call], call)
        finally:
            for actor in self.actors:
                ray.kill(actor, no_restart=True)
            self.actors = []
            self._reservation.release()

    def _start(self, worker: int, where: Any) -> Any:
        options: dict[str, Any] = (
            {
                "max_restarts": 0,
                "max_task_retries": 0,
                "enable_task_events": False,  # else driver and control service grow with every call
                "scheduling_strategy": where,
                "namespace": f"skyray-{uuid.uuid4().hex[:12]}",
            }
            | self._reservation.options(worker)
        )
        name = "+".join(str(self._plan.tasks[address]) for address in self._placement[worker])
        return self._class.options(name=name, **options).remote(self._stored, self._placement, worker, self._seed)

    def _show_close(self, worker: int, call: Any) -> None:
        try:
            closed = ray.get(call)
        except (RayActorError, RayTaskError):
            return  # it has died, which ended the run
        for address, (failure, events) in zip(self._placement[worker], closed, strict=True):
            show_closed(self._log, str(self._plan.tasks[address]), failure, events)


def _progress_of(function: Callable[[], Any]) -> Iterator[Any]:
    yield from function() or ()


def _cause_of_death(death: RayActorError) -> str:
    """The cause in Ray's message, on one line."""
    text = " ".join(str(death).split())
    for start in ("The actor is dead because", "The actor died because"):
        if start in text:
            text = text[text.index(start) :]
    missing = re.search(r"No module named '[\w.]+'", text)
    if missing:
        return f"{missing[0]} where the actor runs: install the project, and your components, on every node"
    for end in (" Traceback (most recent call last)", " Some common causes include"):
        text = text.partition(end)[0]
    return text
