"""Heartbeats: every actor has to answer a call in time; one that does not is lost.

Ray reports when a process has died, but not when it is stopped, and an unreachable node only after 15 seconds. So each
actor has a thread that answers whatever the task is doing: only a process that is not running is silent.
"""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

#: Between two calls of one actor.
_BEAT_S = 0.5


class Heartbeat:
    """Calls all actors, one call outstanding for each.

    Parameters
    ----------
    silent_s : float
        How long an actor may be silent.
    """

    def __init__(self, silent_s: float):
        self.silent_s = silent_s
        self._actors: list[Any] = []
        self._calls: dict[Any, tuple[int, float]] = {}  # outstanding call -> worker, since when
        self._nodes: dict[int, str] = {}  # where each worker that has ever answered runs
        self._looked_s = 0.0
        self._next_s = 0.0

    def start(self, actors: Sequence[Any], fresh: Collection[int]) -> None:
        """Watch these actors from now on; `fresh` ones may be silent while they start."""
        self._actors = list(actors)
        self._calls = {}
        self._looked_s = self._next_s = 0.0
        for worker in fresh:
            self._nodes.pop(worker, None)

    def silent(self) -> set[int]:
        """Workers that have not answered for too long, without those that have died: Ray reports these."""
        now_s = time.monotonic()
        if now_s - self._looked_s > 1.0:  # this process itself was paused
            self._calls = {call: (worker, now_s) for call, (worker, _) in self._calls.items()}
        self._looked_s = now_s
        if self._calls:
            done, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
            for call in done:
                worker, _ = self._calls.pop(call)
                with suppress(RayError):
                    self._nodes[worker] = ray.get(call)
        if now_s >= self._next_s:
            self._next_s = now_s + _BEAT_S
            busy = {worker for worker, _ in self._calls.values()}
            for worker, actor in enumerate(self._actors):
                if worker not in busy:
                    self._calls[actor.beat.remote()] = worker, now_s
        late = {worker for worker, since_s in self._calls.values() if now_s - since_s > self.silent_s}
        return {worker for worker in late if worker in self._nodes}

    def node_for(self, lost: Collection[int]) -> str | None:
        """The healthy node with the fewest workers; None if Ray knows of none."""
        here = ray.get_runtime_context().get_node_id()
        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        doubtful = {self._nodes[worker] for worker in lost if worker in self._nodes} - {here}
        living = Counter(node for worker, node in self._nodes.items() if worker not in lost)
        return min(alive, key=lambda node: (node in doubtful, living[node], node), default=None)
