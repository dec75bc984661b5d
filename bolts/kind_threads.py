"""Threads in which a query bolt matches the kinds of subscriptions beside each other.

Kinds share nothing, and kernels run without the interpreter's lock; so two cores take a batch of several kinds in the
time of the larger half. The calling thread takes jobs like the others, the longest first. Batches that take hardly
longer than waking a thread stay in the calling one. Kinds are restored in the same way.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Lock
from typing import Any, Generic, TypeVar

from compiling.cores import cores

Key = TypeVar("Key", bound=Hashable)
#: Threads are used where all jobs but the longest take this many seconds together. A small batch is mostly Python, and
#: Python's lock lets one thread run at a time.
_WORTH_S = 0.002


def threads_of(threads: int, local: bool) -> int:
    """Threads of a query bolt: the setting; if it is 0, all cores in one process, and 1 where bolts are processes."""
    return threads or (cores() if local else 1)


class KindThreads(Generic[Key]):
    """Runs the jobs of a batch, one for each kind.

    Parameters
    ----------
    threads : int
        Including the calling thread; with 1 the jobs run in order.

    Notes
    -----
    A batch of jobs that took a seconds in all and b the longest takes max(a / threads, b) on as many cores, and some
    0.1 ms for waking threads.
    """

    def __init__(self, threads: int):
        self.threads = threads
        self._took_s: dict[Key, float] = {}

    def expect(self, seconds: Mapping[Key, float]) -> None:
        """Set the expected seconds of jobs, by key; else `run` expects what the last job of the same key took."""
        self._took_s.update(seconds)

    def run(self, jobs: Mapping[Key, Callable[[], Any]]) -> dict[Key, Any]:
        """Run the jobs; returns their results in the order of the jobs.

        Raises
        ------
        BaseException
            The exception of the first job, in that order, that failed; raised once all jobs have ended.
        """
        if len(jobs) == 1:  # nothing to run in parallel
            return {key: job() for key, job in jobs.items()}
        beside = min(self.threads, len(jobs)) - 1
        took = [self._took_s.get(key, 0.0) for key in jobs] if beside > 0 else []
        if beside < 1 or sum(took) - max(took) < _WORTH_S:
            return {key: self._timed(key, job) for key, job in jobs.items()}
        shared = _Shared(self, jobs, sorted(jobs, key=lambda key: -self._took_s.get(key, 0.0)))
        others = [_pool(self.threads).submit(shared.work) for _ in range(beside)]
        shared.work()
        for other in others:
            other.result()
        for key in jobs:
            if key in shared.failed:
                raise shared.failed[key]
        return {key: shared.done[key] for key in jobs}

    def _timed(self, key: Key, job: Callable[[], Any]) -> Any:
        began_s = time.perf_counter()
        done = job()
        self._took_s[key] = time.perf_counter() - began_s
        return done


class _Shared(Generic[Key]):
    """Jobs that several threads take from one list."""

    def __init__(self, threads: KindThreads[Key], jobs: Mapping[Key, Callable[[], Any]], order: list[Key]):
        self.done: dict[Key, Any] = {}
        self.failed: dict[Key, BaseException] = {}
        self._threads, self._jobs, self._left = threads, jobs, iter(order)
        self._taking = Lock()

    def work(self) -> None:
        while True:
            with self._taking:
                key = next(self._left, None)
            if key is None:
                return
            try:
                self.done[key] = self._threads._timed(key, self._jobs[key])
            except BaseException as error:
                self.failed[key] = error


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    """All query bolts of a process share one, since they run one after the other."""
    return ThreadPoolExecutor(threads, "kinds")
