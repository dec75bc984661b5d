"""The actors of a run: started, called together, watched, replaced one by one, and ended.

`topology.core.executors.driver` decides on the calls.
"""

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from matching.errors import TopologyError
from topology.core.api.plan import Plan
from topology.core.executors.actors import WorkerActor, names_of
from topology.core.executors.driver import WorkerAnswer, Workers
from topology.core.executors.heartbeat import Heartbeat
from topology.core.executors.reservation import Reservation
from topology.core.failures import WorkersLost
from topology.core.tasks.worker import Placement

#: How long components may take to close when the run has failed already.
_CLOSE_AFTER_FAILURE_S = 5.0
#: How long to wait for one answer before Ray and the heartbeats are checked.
_LOOK_S = 0.25
#: How long a part of the warm-up may take: a compiler that shares two cores with ten others took four minutes for one.
_WARM_UP_S = 1800.0


class ActorPool(Workers):
    """An actor for each worker of a placement.

    Parameters
    ----------
    plan, placement
        See `Workers`.
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
        super().__init__(plan, placement)
        self.actors: list[Any] = []
        self.incarnation = 0
        self.stalled: set[int] = set()
        self._seed = seed
        self._reservation = reservation
        self._worker_of = {address: worker for worker, mine in enumerate(placement) for address in mine}
        self._dead = dead
        self._heartbeat = Heartbeat(silent_s)
        self._start_s, self._answer_s = start_s, answer_s
        self._calls: dict[Any, tuple[int, float]] = {}  # outstanding status call -> worker, since when
        self._polled_s = 0.0
        self._stored: Any = None
        # heartbeats have a thread of their own; all other calls run in the order in which they were sent
        made: Any = ray.remote
        self._class = made(concurrency_groups={"control": 1})(WorkerActor)

    def start(self) -> None:
        """Start all actors, once what they reserve is there; returns before they have started."""
        self._reservation.take(self._look_for_ray)
        self._stored = ray.put(self._plan)
        self.actors = [self._start(worker, "SPREAD") for worker in range(len(self._placement))]
        self._heartbeat.start(self.actors, ())

    @property
    def busy(self) -> bool:
        """Whether a status call is outstanding."""
        return bool(self._calls)

    def replace(self, incarnation: int, lost: Collection[int]) -> None:
        """Kill the lost workers, and start new actors in place of them, on the healthy nodes with the fewest workers.

        The others ignore calls of earlier incarnations. A lost one that is only silent may live on: its incarnation
        keeps its calls out.
        """
        self._calls = {}
        for worker, actor in enumerate(self.actors):
            if worker in lost:
                ray.kill(actor, no_restart=True)
            else:
                actor.fence.remote(incarnation)
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

    def store_bytes(self) -> int | None:
        """Size of the smallest object store of a node; None if Ray does not say."""
        sizes = [node["Resources"].get("object_store_memory") for node in ray.nodes() if node["Alive"]]
        return min((int(size) for size in sizes if size), default=None)

    def warm_up(self, on_progress: Callable[[Any], None]) -> float:
        """Run the plan's warm-up once on every node, while the actors start; the seconds it took.

        The node of this process is left out where the warm-up has a method `is_done` that says so: a process that has
        nothing to compile takes seconds to load what each actor loads by itself.

        Parameters
        ----------
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
        is_done = getattr(warm_up, "is_done", None)
        done_at = ray.get_runtime_context().get_node_id() if is_done is not None and is_done() else None
        for node in ray.nodes():
            if node["Alive"] and node["NodeID"] != done_at:
                where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                options = {"num_cpus": 0, "max_retries": 0, "enable_task_events": False, "scheduling_strategy": where}
                calls[task.options(num_returns="streaming", **options).remote(warm_up)] = node["NodeManagerAddress"]
        reached: dict[Any, Any] = {}
        progress = None
        pending = list(calls)
        while pending:
            left_s = heard_s + _WARM_UP_S - time.perf_counter()
            done, _ = ray.wait(pending, num_returns=1, timeout=min(max(0.0, left_s), _LOOK_S))
            if not done and left_s > 0.0:
                self._look_for_ray()
                continue
            if not done:
                raise TopologyError(f"warm-up on {calls[pending[0]]} gets no further for {_WARM_UP_S:g} s")
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
        self.actors[self._worker_of[address]].tell.remote(self.incarnation, method, *arguments)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """See `Workers.call`. Any failure to answer raises TopologyError."""
        timeout_s = self._start_s if method in ("connect", "open") else self._answer_s
        calls = [getattr(actor, method).remote(*arguments) for actor in self.actors]
        until = time.perf_counter() + timeout_s
        pending = list(calls)
        while pending:
            left_s = max(0.0, until - time.perf_counter())
            done, pending = ray.wait(pending, num_returns=1, timeout=min(left_s, _LOOK_S))
            if not done and left_s > 0.0:
                self._look_for_silence()
                continue
            if not done:
                late = ", ".join(self._names(calls.index(call)) for call in pending[:8])
                raise TopologyError(f"{late}: no answer to {method} within {timeout_s:g} s")
            self._answer(done[0], calls.index(done[0]), method)
        return [self._answer(call, worker, method) for worker, call in enumerate(calls)]

    def statuses(self, pause_s: float) -> tuple[list[WorkerAnswer], TopologyError | None]:
        """Poll the workers once `pause_s` has passed since the last call.

        A worker with an outstanding call gets no other, so that calls cannot pile up.
        """
        time.sleep(max(0.0, self._polled_s + pause_s - time.perf_counter()))
        self._polled_s = time.perf_counter()
        waiting = {worker for worker, _ in self._calls.values()}
        for worker, actor in enumerate(self.actors):
            if worker not in waiting:
                self._calls[actor.status.remote()] = worker, time.perf_counter()
        done, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=pause_s)
        answers: list[WorkerAnswer] = []
        losses: list[TopologyError] = []
        for call in done:
            worker, requested_s = self._calls.pop(call)
            try:
                answers.append(WorkerAnswer(self._placement[worker], requested_s, self._answer(call, worker, "status")))
            except TopologyError as loss:
                losses.append(loss)
        try:
            self._look_for_silence()
        except TopologyError as loss:
            losses.append(loss)
        lost = [loss for loss in losses if isinstance(loss, WorkersLost)]
        if len(lost) < len(losses):  # Ray has died, or an actor failed by itself
            return answers, next(loss for loss in losses if not isinstance(loss, WorkersLost))
        if not lost:
            return answers, None
        return answers, WorkersLost(set().union(*(loss.workers for loss in lost)), lost[0].cause, str(lost[0]))

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
                    with suppress(RayActorError, RayTaskError):  # it has died, which ended the run
                        self._show_closed(calls[call], ray.get(call))
        finally:
            for actor in self.actors:
                ray.kill(actor, no_restart=True)
            self.actors = []
            self._reservation.release()

    def _names(self, worker: int) -> str:
        """The tasks of a worker, for people."""
        return names_of(self._plan, self._placement[worker])

    def _answer(self, call: Any, worker: int, method: str) -> Any:
        """The result of a call that is done."""
        try:
            return ray.get(call)
        except RayActorError as death:
            self._look_for_ray()  # its actors die with it
            names, why = self._names(worker), _cause_of_death(death)
            hopeless = "No module named" in why or "creation task" in why
            raise WorkersLost({worker}, f"{names} died", f"{names} died: {why}", hopeless) from death
        except RayTaskError as cause:
            raise TopologyError(f"{self._names(worker)} failed in {method}: {cause}") from cause

    def _look_for_ray(self) -> None:
        """Raise TopologyError if Ray has died: later calls may never return."""
        if why := self._dead():
            raise TopologyError(why)

    def _look_for_silence(self) -> None:
        """Raise WorkersLost for workers whose process is stopped or cannot be reached; else as `_look_for_ray`."""
        self._look_for_ray()
        silent = self._heartbeat.silent()
        if silent:
            self.stalled |= silent
            names = ", ".join(map(self._names, sorted(silent)))
            raise WorkersLost(
                silent,
                f"{names} silent",
                f"{names}: no sign of life for {self._heartbeat.silent_s:g} s, its process is stopped or cut off",
            )

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
