"""Signs of life: every actor is asked whether it is there, and one that says nothing for long is given up.

Ray tells when a process has died. Of one that is stopped it says nothing, and of a node that cannot be reached after 15
seconds only. So each actor has a thread of its own that answers whatever the task is doing: only a process that is not
running says nothing. Used by `topology.core.executors.actor_pool`.
"""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from matching.errors import TopologyError

#: Between two questions to one actor.
_BEAT_S = 0.5


class WorkersLost(TopologyError):
    """Workers have died, or show no sign of life. `cause` is the same text each time the same thing happens.

    `hopeless`: they could not even be made, so that others could not either.
    """

    def __init__(self, workers: set[int], cause: str, message: str, hopeless: bool = False):
        super().__init__(message)
        self.workers = workers
        self.cause = cause
        self.hopeless = hopeless


class Heartbeat:
    """Asks all actors for a sign of life; one question at a time each.

    Parameters
    ----------
    silent_s : float
        How long an actor may say nothing.
    """

    def __init__(self, silent_s: float):
        self.silent_s = silent_s
        self._actors: list[Any] = []
        self._asked: dict[Any, tuple[int, float]] = {}  # question -> worker, since when
        self._nodes: dict[int, str] = {}  # where each worker that has ever answered runs
        self._looked_s = 0.0
        self._next_s = 0.0

    def start(self, actors: Sequence[Any], fresh: Collection[int]) -> None:
        """These are the actors from now on; `fresh` ones may be silent while they start."""
        self._actors = list(actors)
        self._asked = {}
        self._looked_s = self._next_s = 0.0
        for worker in fresh:
            self._nodes.pop(worker, None)

    def silent(self) -> set[int]:
        """Workers that have not answered for too long. One that has died is none of them: Ray tells of it."""
        now_s = time.monotonic()
        if now_s - self._looked_s > 1.0:  # it is us who were away
            self._asked = {question: (worker, now_s) for question, (worker, _) in self._asked.items()}
        self._looked_s = now_s
        if self._asked:
            done, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
            for question in done:
                worker, _ = self._asked.pop(question)
                with suppress(RayError):
                    self._nodes[worker] = ray.get(question)
        if now_s >= self._next_s:
            self._next_s = now_s + _BEAT_S
            asked = {worker for worker, _ in self._asked.values()}
            for worker, actor in enumerate(self._actors):
                if worker not in asked:
                    self._asked[actor.beat.remote()] = worker, now_s
        late = {worker for worker, since_s in self._asked.values() if now_s - since_s > self.silent_s}
        return {worker for worker in late if worker in self._nodes}

    def node_for(self, lost: Collection[int]) -> str | None:
        """The node that has the fewest workers, of those that seem to be well; None if Ray knows of none."""
        here = ray.get_runtime_context().get_node_id()
        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        doubtful = {self._nodes[worker] for worker in lost if worker in self._nodes} - {here}
        living = Counter(node for worker, node in self._nodes.items() if worker not in lost)
        return min(alive, key=lambda node: (node in doubtful, living[node], node), default=None)
