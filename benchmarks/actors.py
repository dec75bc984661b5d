"""Watching the processes behind a running topology: their memory and the time they had on a processor.

`ActorWatch` is handed to `topology.core.runner.run_ray` as `on_progress`; it asks each actor once for its process id,
by Ray's names, and reads the rest from the operating system. Its user is `benchmarks.topology_cost`.
"""

import contextlib
import os
from typing import Any, NamedTuple

import psutil
import ray
from ray.util import list_named_actors

from topology.core.metrics import Snapshot


class Sample(NamedTuple):
    """One process at one snapshot; `acknowledged` counts batches, memory is in bytes (`uss`: nobody else has it)."""

    elapsed_s: float
    acknowledged: int
    rss: int
    uss: int
    cpu_s: float


class ActorWatch:
    """Samples of every actor's process, by its name such as `query:0`, and of this one as `driver`.

    Parameters
    ----------
    every : int
        A snapshot of so many is sampled: reading the memory map of a process takes milliseconds.
    memory : bool
        Whether memory is read at all.
    """

    def __init__(self, every: int = 1, memory: bool = True):
        self.samples: dict[str, list[Sample]] = {}
        self._every = every
        self._memory = memory
        self._seen = 0
        self._asked: dict[str, Any] | None = None
        self._processes = {"driver": psutil.Process()}

    def __call__(self, snapshot: Snapshot) -> None:
        self._find()
        if self._seen % self._every == 0:
            for name, process in self._processes.items():
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.samples.setdefault(name, []).append(self._sample(process, snapshot))
        self._seen += 1

    def cpu_us(self, first_batch: int, batch: int) -> dict[str, float]:
        """Microseconds a message that each process was on a processor since batch `first_batch` was acknowledged."""
        used = {}
        for name, samples in self.samples.items():
            since = [sample for sample in samples if sample.acknowledged >= first_batch]
            messages = (since[-1].acknowledged - since[0].acknowledged) * batch if since else 0
            if messages:
                used[name] = 1e6 * (since[-1].cpu_s - since[0].cpu_s) / messages
        return used

    def _find(self) -> None:
        if self._asked is None:
            self._asked = {}
            actors: list[Any] = list_named_actors(all_namespaces=True)
            for actor in actors:
                if actor["namespace"].startswith("skyray-"):
                    with contextlib.suppress(ValueError):  # it has gone since it was listed
                        handle = ray.get_actor(actor["name"], namespace=actor["namespace"])
                        self._asked[actor["name"]] = handle.__ray_call__.remote(lambda _actor: os.getpid())
        for name, question in list(self._asked.items()):
            if ray.wait([question], timeout=0)[0]:
                self._processes[name] = psutil.Process(ray.get(question))
                del self._asked[name]

    def _sample(self, process: psutil.Process, snapshot: Snapshot) -> Sample:
        with process.oneshot():
            times = process.cpu_times()
            memory = process.memory_full_info() if self._memory else None
        rss, uss = (memory.rss, memory.uss) if memory is not None else (0, 0)
        return Sample(snapshot.elapsed_s, snapshot.acknowledged, rss, uss, times.user + times.system)
