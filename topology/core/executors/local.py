"""The topology in one process: deterministic, seedable, fast enough for a laptop.

One `Worker` (`topology.core.tasks.worker`) has all tasks; it publishes a batch and delivers all that comes of it,
without a seed in the order sent, with one in any order that the links allow (`topology.core.tasks.mailbox`). A run may
also be paused behind a batch, and continued by another. Everything the executors promise is in
`topology.core.api.component`; what they share of the driver is in `topology.core.executors.driver`.
"""

import contextlib
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from matching.errors import CheckpointError, TopologyError
from topology.core.api.component import Saved
from topology.core.api.plan import Plan
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.storage import ScratchDisk
from topology.core.checkpoint.store import CheckpointStore
from topology.core.executors.clock import Clock, SystemClock
from topology.core.executors.driver import Driver
from topology.core.executors.logs import DirectLog, show_closed
from topology.core.failures import ComponentFailed, not_quiet
from topology.core.metrics import RunReport, RunSnapshot, report_stage, report_warmed
from topology.core.tasks.links import OpenRequest, Parcel
from topology.core.tasks.mailbox import Fifo, SeededMailbox
from topology.core.tasks.worker import Worker

_PROGRESS_EVERY_S = 0.25


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
    plan : Plan
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
    clock = clock or SystemClock()
    return _LocalRun(
        plan, seed, clock, on_progress, stop, resume, checkpoints, on_step, watch, on_opened, work_ns
    ).run()


def pause_local(
    plan: Plan, after: int, seed: int | None = None, clock: Clock | None = None, resume: Saved | None = None
) -> Saved:
    """Run a topology in this process up to a batch, and return the snapshots that another run resumes from.

    Parameters as in `save_local`, which it uses; the files are read and gone.
    """
    with tempfile.TemporaryDirectory(prefix="skyray-paused-") as folder:
        store = CheckpointStore(folder, ScratchDisk(folder))
        save_local(plan, after, store, seed, clock, resume)
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
    run = _LocalRun(plan, seed, clock or SystemClock(), resume=resume, checkpoints=checkpoints, pause_behind=after)
    run.pause(after)


class _OneWorker:
    """The worker that has all tasks, its transport, and the calls that wait for it."""

    worker: Worker

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._again = False  # the worker has more to do than it did in its last call

    @property
    def idle(self) -> bool:
        """Whether no call waits, and the worker can do nothing by itself."""
        return not self._waiting and not self._again

    def advance(self) -> None:
        """Make one of the calls that wait; if none does, let the clock spout publish."""
        if self._waiting:
            method, arguments = self._waiting.popleft()
            getattr(self.worker, method)(*arguments)
        elif self._again:
            self._again = False
            self.worker.start()

    # -- the transport

    def send(self, bundles: dict[int, list[Parcel]]) -> None:
        raise AssertionError("there is no other worker")

    def again(self) -> None:
        self._again = True

    # -- the driver's calls

    def call(self, method: str, *arguments: Any) -> list[Any]:
        return [getattr(self.worker, method)(*arguments)]

    def call_tasks(self, method: str, *arguments: Any) -> list[tuple[int, Any]]:
        return list(enumerate(self.call(method, *arguments)[0]))

    def tell(self, address: int, method: str, *arguments: Any) -> None:
        put = self._waiting.appendleft if method == "stop" else self._waiting.append  # before the next batch
        put((method, arguments))


class _LocalRun(Driver):
    """A run of one worker in this thread."""

    executor = "local"

    def __init__(
        self,
        plan: Plan,
        seed: int | None,
        clock: Clock,
        on_progress: Callable[[RunSnapshot], None] | None = None,
        stop: Callable[[], bool] | None = None,
        resume: Saved | None = None,
        checkpoints: Checkpoints | None = None,
        on_step: Callable[[int], None] | None = None,
        watch: Callable[[Sequence[Parcel]], None] | None = None,
        on_opened: Callable[[], None] = lambda: None,
        work_ns: Callable[[], int] = time.perf_counter_ns,
        pause_behind: int | None = None,
    ):
        super().__init__(plan, on_progress, stop, checkpoints, on_opened)
        incarnation = 0 if checkpoints is None else checkpoints.incarnation
        self._request = OpenRequest(
            incarnation, saved=resume, write_behind=seed is None and pause_behind is None, pause_behind=pause_behind
        )
        self._addresses = tuple(range(len(plan.tasks)))
        self._workers = self._here = _OneWorker()
        self._worker = self._here.worker = Worker(
            plan,
            (self._addresses,),
            0,
            self._here,
            clock.now,
            seed or 0,
            timer=time.monotonic if isinstance(clock, SystemClock) else clock.now,
            mailbox=Fifo if seed is None else partial(SeededMailbox, plan, seed, on_step),
            log_of=DirectLog,
            watch=watch,
            most_batches=1,  # `stop` is called before each batch
            work_ns=work_ns,
        )
        self._reported_s = 0.0

    def run(self) -> RunReport:
        with self._closing_on_failure():
            self._start()
            self._on_opened()
            self._startup_s = time.perf_counter() - self._started_s
            self._started_s = self._reported_s = time.perf_counter()
            elapsed_s = self._drive() - self._started_s
            figures, outputs = self._collect()
            self._close()
            self._report_progress(self._in_order(), elapsed_s)
            return self._report(figures, outputs, elapsed_s)

    def pause(self, after: int) -> None:
        assert self._coordinator is not None
        with self._closing_on_failure():
            self._start()
            while not self._advance():
                pass
            clock = self._statuses[self._plan.clock_address]
            if clock.ended:
                raise TopologyError(
                    f"the stream of {self._plan.name!r} ended behind batch {self._worker.last_batch}, so it "
                    f"cannot be paused behind batch {after}; choose an earlier one"
                )
            if not self._coordinator.figures or clock.acknowledged < clock.published:
                raise not_quiet(self._plan, after, self._in_order())
            if "failed" in self._coordinator.figures[-1]:
                raise CheckpointError(self._coordinator.figures[-1]["failed"])
            self._close()

    def _start(self) -> None:
        """Warm up, open and restore all components, and let the clock begin."""
        report_stage(self._on_progress, "the kernels")
        if self._plan.warm_up is not None:
            for warmed in self._plan.warm_up() or ():
                report_warmed(self._on_progress, warmed)
            self._warm_up_s = time.perf_counter() - self._started_s
        report_stage(self._on_progress, "the subscriptions")
        self._open(self._request)
        self._here.again()

    def _advance(self) -> bool:
        here = self._here
        here.advance()
        self._raise_failure()
        self._commit(self._worker.written(wait=False))
        now = time.perf_counter()
        if not here.idle and now - self._reported_s < _PROGRESS_EVERY_S:
            return False
        self._take(self._addresses, self._worker.status())
        if here.idle and self._statuses[self._plan.clock_address].writing:
            self._commit(self._worker.written())
        if not here.idle:
            self._reported_s = now
            self._report_progress(self._in_order(), now - self._started_s)
        self._quiet_since = now
        return here.idle

    def _raise_failure(self) -> None:
        if self._worker.failed is not None:
            raise self._worker.failed.failure.error()

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        """Close everything after a failure, and raise that one; a failure in close is only logged."""
        try:
            yield
        except BaseException as error:
            failed = self._worker.failed
            for address, (failure, events) in self._workers.call_tasks("close"):
                show_closed(self._log, str(self._plan.tasks[address]), failure, events)
            if isinstance(error, ComponentFailed) and failed is not None:
                error.last_batch = self._worker.last_batch
                raise error from failed.__cause__
            raise
