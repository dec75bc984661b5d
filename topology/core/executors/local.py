"""The topology in one process: deterministic, seedable, fast enough for a laptop.

One `Worker` (`topology.core.tasks.worker`) has all tasks; it publishes a batch and delivers all that comes of it,
without a seed in the order sent, with one in any order that the links allow (`topology.core.tasks.mailbox`). A run may
also be paused behind a batch, and continued by another. Everything the executors promise is in
`topology.core.api.component`, and the run itself in `topology.core.executors.driver`.
"""

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from matching.errors import TopologyError
from topology.core.api.component import Saved
from topology.core.api.plan import Plan
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.storage import ScratchDisk
from topology.core.checkpoint.store import CheckpointStore
from topology.core.executors.clock import Clock, SystemClock
from topology.core.executors.driver import Driver, WorkerAnswer, Workers
from topology.core.executors.logs import DirectLog
from topology.core.failures import ComponentFailed
from topology.core.metrics import RunReport, RunSnapshot
from topology.core.tasks.links import OpenRequest, Parcel
from topology.core.tasks.mailbox import Fifo, SeededMailbox
from topology.core.tasks.worker import Worker

_PROGRESS_EVERY_S = 0.25
#: In the report.
LOCAL = "local"


def run_local(
    plan: Plan,
    seed: int | None = None,
    clock: Clock | None = None,
    on_progress: Callable[[RunSnapshot], None] | None = None,
    stop: Callable[[], bool] | None = None,
    resume: Saved | None = None,
    checkpoints: Checkpoints | None = None,
    on_step: Callable[[int], None] | None = None,
    watch: Callable[[Sequence[Parcel]], None] | None = None,
    on_opened: Callable[[], None] = lambda: None,
    work_ns: Callable[[], int] = time.perf_counter_ns,
) -> RunReport:
    """Run a topology in this process to its end.

    Parameters
    ----------
    seed : int, optional
        Replays one random interleaving; it also makes every receiver check that a payload was not written to after
        it was emitted. None: in the order sent, unchecked.
    clock : Clock, optional
        What `Context.now` says; the system's time if None.
    on_progress : callable, optional
        Called with a `RunSnapshot` about four times a second, and once at the end.
    stop : callable, optional
        Called before each batch; once it returns True the stream ends there and the topology drains.
    resume : Saved, optional
        Resume from here, where another run was paused (`pause_local`), perhaps with other numbers of tasks.
    checkpoints : Checkpoints, optional
        Take checkpoints; a failure still ends the run: `resume` from the last one. With a seed files are written at
        once, else by a thread.
    on_step : callable, optional
        Called with the number of each step before it is taken; what it raises ends the run there, as a crash would.
        It needs a seed.
    watch : callable, optional
        Takes the parcels of every payload that a task sends.
    on_opened : callable
        Called once, when all components have opened.
    work_ns : callable
        Nanoseconds of the clock that measures how long tasks are busy; `time.thread_time_ns` counts this thread's
        processor time, so that what others do on the machine does not count.

    Returns
    -------
    RunReport
        Of this run alone; the components' own figures may include those of the run that was paused.

    Raises
    ------
    TopologyError
        If a component fails (its exception is the `__cause__`), if nothing can be delivered although tasks have not
        ended (naming who waits for what), or if a batch is never acknowledged. All components are closed first.
    """
    workers = LocalWorkers(plan, seed, clock or SystemClock(), on_step, watch, work_ns)
    request = OpenRequest(saved=resume, write_behind=seed is None)
    with workers.naming_causes():
        return Driver(LOCAL, plan, on_progress, stop, checkpoints, on_opened, request).run(workers)


def pause_local(plan: Plan, after: int, seed: int | None = None, resume: Saved | None = None) -> Saved:
    """Run a topology in this process up to a batch, and return the snapshots that another run resumes from.

    Parameters as in `save_local`, which it uses; the files are read and gone.
    """
    with tempfile.TemporaryDirectory(prefix="skyray-paused-") as folder:
        store = CheckpointStore(folder, ScratchDisk(folder))
        save_local(plan, after, store, seed, resume=resume)
        manifest = store.newest()
        assert manifest is not None
        saved = store.load(manifest)
        return saved._replace(parts={name: tuple(tasks) for name, tasks in saved.parts.items()})


def save_local(
    plan: Plan,
    after: int,
    store: CheckpointStore,
    seed: int | None = None,
    clock: Clock | None = None,
    resume: Saved | None = None,
) -> None:
    """Run a topology in this process up to a batch, and take a checkpoint there.

    Nothing is published behind that batch; all components are closed without having been finished, so that no output
    is complete.

    Parameters
    ----------
    plan, seed, clock, resume
        As in `run_local`.
    after : int
        Number of the last batch. That of `resume`, or -1 without it, publishes nothing at all.
    store : CheckpointStore
        Gets the checkpoint.

    Raises
    ------
    TopologyError
        As `run_local`; if the stream ends before that batch; if it lies before what `resume` has done; if nothing
        is in flight and a task still awaits something (`Bolt.quiet`), naming it.
    CheckpointError
        If a component cannot resume from `resume`, its state does not fit into a frame, or it cannot be written.
    """
    first = resume.number + 1 if resume is not None else 0
    if after < first - 1:
        raise TopologyError(f"pause behind batch {after}: batch {first - 1} is done already; choose a later one")
    checkpoints = Checkpoints(store, Cadence(), store.folder)
    workers = LocalWorkers(plan, seed, clock or SystemClock())
    request = OpenRequest(saved=resume, write_behind=False, pause_behind=after)
    with workers.naming_causes():
        Driver(LOCAL, plan, checkpoints=checkpoints, request=request).pause(workers)


class LocalWorkers(Workers):
    """One worker that has all tasks, in this thread, with the calls that wait for it, and its transport."""

    queues = False

    def __init__(
        self,
        plan: Plan,
        seed: int | None,
        clock: Clock,
        on_step: Callable[[int], None] | None = None,
        watch: Callable[[Sequence[Parcel]], None] | None = None,
        work_ns: Callable[[], int] = time.perf_counter_ns,
    ):
        super().__init__(plan, (tuple(range(len(plan.tasks))),))
        self._worker = Worker(
            plan,
            self._placement,
            0,
            self,
            clock.now,
            seed or 0,
            timer=time.monotonic if isinstance(clock, SystemClock) else clock.now,
            mailbox=Fifo if seed is None else partial(SeededMailbox, plan, seed, on_step),
            log_of=DirectLog,
            watch=watch,
            most_batches=1,  # `stop` is called before each batch
            work_ns=work_ns,
        )
        self._waiting: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._again = False  # the worker has more to do than it did in its last call
        self._next_s = 0.0  # when the next statuses are due

    @contextmanager
    def naming_causes(self) -> Iterator[None]:
        """A block whose failures of components have the component's exception as their `__cause__`."""
        try:
            yield
        except ComponentFailed as error:
            failed = self._worker.failed
            raise error from (None if failed is None else failed.__cause__)

    # -- the transport

    def send(self, bundles: dict[int, list[Parcel]]) -> None:
        raise AssertionError("there is no other worker")

    def again(self) -> None:
        self._again = True

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or self._again

    def warm_up(self, on_progress: Callable[[Any], None]) -> float:
        if self._plan.warm_up is None:
            return 0.0
        began = time.perf_counter()
        for warmed in self._plan.warm_up() or ():
            on_progress(warmed)
        return time.perf_counter() - began

    def call(self, method: str, *arguments: Any) -> list[Any]:
        return [getattr(self._worker, method)(*arguments)]

    def tell(self, address: int, method: str, *arguments: Any) -> None:
        put = self._waiting.appendleft if method == "stop" else self._waiting.append  # before the next batch
        put((method, arguments))

    def statuses(self, pause_s: float) -> tuple[list[WorkerAnswer], TopologyError | None]:
        """Make one of the calls that wait; if none does, let the clock spout publish. The status is due about four
        times a second, once nothing is left to do, and when there is something to tell."""
        if self._waiting:
            method, arguments = self._waiting.popleft()
            getattr(self._worker, method)(*arguments)
        elif self._again:
            self._again = False
            self._worker.start()
        else:
            self._worker.drain()
        now_s = time.perf_counter()
        if self.busy and now_s < self._next_s and not self._worker.has_news:
            return [], None
        self._next_s = now_s + _PROGRESS_EVERY_S
        return [WorkerAnswer(self._placement[0], now_s, self._worker.status())], None

    def end(self, closing: bool) -> None:
        if closing:
            self._show_closed(0, self._worker.close())
