"""The topology in one process: deterministic, seedable, fast enough for a laptop.

Every pair of tasks has its own first-in-first-out link, as between actors; a scheduler picks which link delivers next.
Without a seed it goes round robin; with one it picks at random and now and then starves some links for a long stretch,
so that a test sees interleavings that real runs show once a month. A run may also be paused behind a batch, and
continued by another. Everything the executors promise is in `topology.core.api.component`; the distributed twin of this
file is `topology.core.executors.ray`.
"""

import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from matching.errors import TopologyError
from topology.core.api.component import Saved
from topology.core.api.plan import Plan
from topology.core.checkpoint.coordinator import CheckpointCoordinator, Checkpoints, publish_all
from topology.core.checkpoint.store import Writer
from topology.core.checkpoint.task_states import TaskState, from_frames, pack_task
from topology.core.executors.clock import Clock, SystemClock
from topology.core.executors.logs import driver_log
from topology.core.failures import TaskFailed, deadlocked, never_acknowledged, not_quiet
from topology.core.metrics import Meter, RunReport, Snapshot, TaskStatus, report_stage, report_warmed
from topology.core.payload import fingerprint
from topology.core.tasks.links import Channel, Destination, Saving
from topology.core.tasks.task import TaskHost

_PROGRESS_EVERY_S = 0.25
#: Steps between two looks at the wall clock for progress; a step is rarely below 10 microseconds.
_STEPS_BETWEEN_LOOKS = 64


class Parcel(NamedTuple):
    """A parcel on a link; `sent_fingerprint` is that of its payload when it was sent (None: not checked)."""

    edge: int
    sender: int
    number: int
    payload: Any
    sent_fingerprint: int | None


class RoundRobin:
    """Every non-empty link, round robin. O(1) a pick."""

    def __init__(self):
        self._ready: deque[int] = deque()

    def add(self, link: int) -> None:
        """A link has something to deliver."""
        self._ready.append(link)

    def pick(self) -> int | None:
        """Take a link out, None if there is none; the caller adds it again if it is not empty."""
        return self._ready.popleft() if self._ready else None


class SeededShuffle:
    """A random link each time, some of them starved for stretches of up to 400 picks.

    A starved link is picked only when nothing else is ready. O(ready links) a pick.
    """

    def __init__(self, seed: int, links: int):
        self._random = random.Random(seed)
        self._links = links
        self._ready: list[int] = []
        self._starved: set[int] = set()
        self._left = 0

    def add(self, link: int) -> None:
        """A link has something to deliver."""
        self._ready.append(link)

    def pick(self) -> int | None:
        """Take a link out, None if there is none; the caller adds it again if it is not empty."""
        if not self._ready:
            return None
        if self._left == 0:
            fraction = self._random.choice((0.0, 0.1, 0.3, 0.7))
            self._starved = {link for link in range(self._links) if self._random.random() < fraction}
            self._left = self._random.choice((20, 100, 400))
        self._left -= 1
        fed = [place for place, link in enumerate(self._ready) if link not in self._starved]
        place = self._random.choice(fed) if fed else self._random.randrange(len(self._ready))
        self._ready[place], self._ready[-1] = self._ready[-1], self._ready[place]
        return self._ready.pop()


class _Links:
    """All links of the topology; link `sender * tasks + receiver`, and one more that stands for publishing."""

    def __init__(self, tasks: int, seed: int | None):
        self.tasks = tasks
        self.publishing = tasks * tasks
        self.queues: list[deque[Parcel]] = [deque() for _ in range(tasks * tasks)]
        self.scheduler = RoundRobin() if seed is None else SeededShuffle(seed, tasks * tasks + 1)
        self.checks = seed is not None

    def channel(self, sender: int) -> "_LocalChannel":
        return _LocalChannel(self, sender)


class _LocalChannel:
    """The links that leave one task."""

    def __init__(self, links: _Links, sender: int):
        self._links = links
        self._sender = sender

    def send(self, destinations: Sequence[Destination], payload: Any, size_bytes: int) -> None:
        links = self._links
        sent_fingerprint = fingerprint(payload) if links.checks and size_bytes else None
        for address, edge, number in destinations:
            link = self._sender * links.tasks + address
            waiting = links.queues[link]
            if not waiting:
                links.scheduler.add(link)
            waiting.append(Parcel(edge, self._sender, number, payload, sent_fingerprint))


def run_local(
    plan: Plan,
    seed: int | None = None,
    clock: Clock | None = None,
    on_progress: Callable[[Snapshot], None] | None = None,
    stop: Callable[[], bool] | None = None,
    resume: Saved | None = None,
    checkpoints: Checkpoints | None = None,
    on_step: Callable[[int], None] | None = None,
    through: Callable[[int, Channel], Channel] | None = None,
    on_opened: Callable[[], None] = lambda: None,
) -> RunReport:
    """Run a topology in this process to its end.

    Parameters
    ----------
    plan : Plan
    seed : int, optional
        Replays one random interleaving; it also makes every receiver check that a payload was not written to after
        it was emitted. None: round robin, unchecked.
    clock : Clock, optional
        What `Context.now` says; the system's time if None.
    on_progress : callable, optional
        Called with a `Snapshot` about four times a second, and once at the end.
    stop : callable, optional
        Called before each batch; once it returns True the stream ends there and the topology drains.
    resume : Saved, optional
        Resume from here, where another run was paused (`pause_local`), perhaps with other numbers of tasks.
    checkpoints : Checkpoints, optional
        Take checkpoints; a failure still ends the run: `resume` from the last one. With a seed files are written at
        once, else by a thread.
    on_step : callable, optional
        Called with the number of each step before it is taken; what it raises ends the run there, as a crash would.
    through : callable, optional
        Given the address of each task and its channel, returns the channel to use instead, which passes all
        parcels on to the first and may inspect them.
    on_opened : callable
        Called once, when all components have opened.

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
    return _LocalRun(plan, seed, clock, on_progress, stop, resume, checkpoints, on_step, through, on_opened).run()


def pause_local(
    plan: Plan, after: int, seed: int | None = None, clock: Clock | None = None, resume: Saved | None = None
) -> Saved:
    """Run a topology in this process up to a batch, and return the snapshots that another run resumes from.

    Nothing is published behind that batch; once nothing is in flight the state of every task is taken, and all are
    closed without having been finished, so that no output is complete.

    Parameters
    ----------
    plan, seed, clock, resume
        As in `run_local`.
    after : int
        Number of the last batch. That of `resume`, or -1 without it, publishes nothing at all.

    Returns
    -------
    Saved
        Read back from frames (`topology.core.checkpoint.task_states`): what they cannot encode is refused here too.

    Raises
    ------
    TopologyError
        As `run_local`; if the stream ends before that batch; if it lies before what `resume` has done; if nothing
        is in flight and a task still awaits something (`Bolt.quiet`), naming it.
    CheckpointError
        If a component cannot resume from `resume`, or its state does not fit into a frame.
    """
    first = resume.number + 1 if resume is not None else 0
    if after < first - 1:
        raise TopologyError(f"pause behind batch {after}: batch {first - 1} is done already; choose a later one")
    return _LocalRun(plan, seed, clock or SystemClock(), None, None, resume).pause(after)


class _LocalRun:
    def __init__(
        self,
        plan: Plan,
        seed: int | None,
        clock: Clock,
        on_progress: Callable[[Snapshot], None] | None,
        stop: Callable[[], bool] | None,
        resume: Saved | None,
        checkpoints: Checkpoints | None = None,
        on_step: Callable[[int], None] | None = None,
        through: Callable[[int, Channel], Channel] | None = None,
        on_opened: Callable[[], None] = lambda: None,
    ):
        self._plan = plan
        self._on_step = on_step
        self._on_opened = on_opened
        self._resume = resume
        self._last: int | None = None  # nothing behind this batch is published
        self._links = _Links(len(plan.tasks), seed)
        log = driver_log()
        self._writer: Writer | None = None
        self._coordinator: CheckpointCoordinator | None = None
        saving = None
        if checkpoints is not None:
            self._writer = Writer(checkpoints.store, checkpoints.incarnation, behind=seed is None)
            self._coordinator = CheckpointCoordinator(checkpoints, plan.saved_addresses)
            epoch = checkpoints.store.last_epoch() + 1
            saving = Saving(checkpoints.cadence, epoch, checkpoints.incarnation, self._writer.write)
        channels: list[Channel] = [self._links.channel(address) for address in range(len(plan.tasks))]
        if through is not None:
            channels = [through(address, channel) for address, channel in enumerate(channels)]
        timer = time.monotonic if isinstance(clock, SystemClock) else clock.now
        self._hosts = [
            TaskHost(
                plan,
                address,
                channels[address],
                log.bind(task=str(task)),
                clock.now,
                seed or 0,
                saving,
                timer,
            )
            for address, task in enumerate(plan.tasks)
        ]
        self._clock_host = self._hosts[plan.clock_address]
        self._on_progress = on_progress
        self._stop = stop
        self._meter = Meter(plan)
        self._started = self._reported = time.perf_counter()
        self._steps = 0
        self._publishing = False

    def run(self) -> RunReport:
        with self._closing_on_failure():
            warm_up_s = self._open()
            self._on_opened()
            startup_s = time.perf_counter() - self._started
            self._started += startup_s
            self._reported = self._started
            self._deliver_all()
            elapsed_s = time.perf_counter() - self._started
            figures = [host.report() for host in self._hosts]
            outputs = [output for host in self._hosts for output in host.outputs()]
            self._close()
            if self._coordinator is None:
                publish_all(outputs)
            else:
                self._settle()
                self._coordinator.finish(outputs)
        statuses = self._statuses()
        self._report_progress(elapsed_s)
        saved = [] if self._coordinator is None else self._coordinator.figures
        return self._meter.report("local", statuses, figures, elapsed_s, startup_s, warm_up_s, saved)

    def pause(self, after: int) -> Saved:
        self._last = after
        with self._closing_on_failure():
            self._open()
            self._drain()
            awaits = {host.address: why for host in self._hosts if (why := host.unquiet)}
            if awaits:
                raise not_quiet(self._plan, after, awaits)
            frames = [pack_task(self._state_of(host, after)) for host in self._hosts]
            self._close()
        return from_frames(frames)

    def _open(self) -> float:
        """Open and restore all components; returns the seconds of the warm-up."""
        report_stage(self._on_progress, "the kernels")
        if self._plan.warm_up is not None:
            for warmed in self._plan.warm_up() or ():
                report_warmed(self._on_progress, warmed)
        warm_up_s = time.perf_counter() - self._started if self._plan.warm_up is not None else 0.0
        report_stage(self._on_progress, "the subscriptions")
        for host in self._hosts:
            host.open()
        if self._resume is not None:
            for host in self._hosts:
                host.restore(self._resume)
        return warm_up_s

    def _state_of(self, host: TaskHost, number: int) -> TaskState:
        return TaskState(host.id.component, host.id.task, host.spec.tasks, number, host.state())

    def _deliver_all(self) -> None:
        """Publish and deliver until nothing is left; then check that all tasks have ended."""
        while True:
            self._drain()
            unfed = [host for host in self._hosts if not host.fed and not host.ended]
            statuses = self._statuses()
            if any(host.fed and not host.ended for host in self._hosts) or (not unfed and not self._all_ended()):
                raise deadlocked(self._plan, statuses)
            for host in unfed:
                host.finish_unfed()
            if unfed and not self._anything_waits() and not self._all_ended():
                raise deadlocked(self._plan, self._statuses())
            if not unfed:
                break
        clock = statuses[self._plan.clock_address]
        if clock.waits_for:
            raise never_acknowledged(self._plan, clock)

    def _drain(self) -> None:
        """Publish what credits allow and deliver, until nothing is in flight."""
        self._offer_publishing()
        while True:
            link = self._links.scheduler.pick()
            if link is None:
                if not self._await_writing():
                    break
                continue
            if self._on_step is not None:
                self._on_step(self._steps)
            self._step(link)
            if self._writer is not None:
                self._settle()
            self._steps += 1
            if self._steps % _STEPS_BETWEEN_LOOKS == 0:
                now = time.perf_counter()
                if now - self._reported >= _PROGRESS_EVERY_S:
                    self._reported = now
                    self._report_progress(now - self._started)

    def _settle(self) -> None:
        """Commit what has been written."""
        assert self._writer is not None and self._coordinator is not None
        for epoch in self._coordinator.take(self._writer.fetch()):
            self._clock_host.settled(epoch)
            self._offer_publishing()

    def _await_writing(self) -> bool:
        """Nothing is in flight; whether the clock waits for a checkpoint to be written, which is then done."""
        if self._writer is None or self._clock_host.ended or not self._clock_host.awaits_writing:
            return False
        self._writer.drain()
        self._settle()
        return True

    def _report_progress(self, elapsed_s: float) -> None:
        snapshot = self._meter.snapshot(self._statuses(), elapsed_s)  # also without listener: it records the peaks
        if self._on_progress is not None:
            self._on_progress(snapshot)

    def _step(self, link: int) -> None:
        links = self._links
        if link == links.publishing:
            self._publishing = False
            # all other tasks stand still while the clock waits
            if self._plan.clock.patient and self._anything_waits():
                return self._offer_publishing()
            if self._stop is not None and self._stop():
                self._clock_host.stop()
            if self._clock_host.can_publish:
                self._clock_host.publish()
            if self._clock_host.ended and self._last is not None:
                raise TopologyError(
                    f"the stream of {self._plan.name!r} ended behind batch {self._clock_host.next_number - 1}, so it "
                    f"cannot be paused behind batch {self._last}; choose an earlier one"
                )
        else:
            waiting = links.queues[link]
            parcel = waiting.popleft()
            if waiting:
                links.scheduler.add(link)
            if parcel.sent_fingerprint is not None and fingerprint(parcel.payload) != parcel.sent_fingerprint:
                stream, sender = self._plan.edges[parcel.edge].stream, self._plan.tasks[parcel.sender]
                raise TopologyError(
                    f"{sender} wrote to an array of a payload after emitting it on {stream!r}: "
                    "emit a copy, or do not write to the array"
                )
            self._hosts[link % links.tasks].receive(parcel.edge, parcel.sender, parcel.number, parcel.payload)
        self._offer_publishing()

    def _offer_publishing(self) -> None:
        over = self._last is not None and self._clock_host.next_number > self._last
        if not self._publishing and not over and self._clock_host.can_publish:
            self._publishing = True
            self._links.scheduler.add(self._links.publishing)

    def _statuses(self) -> list[TaskStatus]:
        return [host.status() for host in self._hosts]

    def _all_ended(self) -> bool:
        return all(host.ended for host in self._hosts)

    def _anything_waits(self) -> bool:
        return any(self._links.queues)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        for host in self._hosts:
            host.close()

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        """Close everything after a failure, and raise that one; a failure in close is only logged."""
        try:
            yield
        except BaseException as error:
            if self._writer is not None:
                self._writer.close()
            for host in self._hosts:
                try:
                    host.close()
                except TaskFailed as second:
                    driver_log().warning("close_failed", task=str(host.id), why=second.failure.summary)
            if isinstance(error, TaskFailed):
                failed = error.failure.error()
                failed.last_batch = self._clock_host.next_number - 1
                raise failed from error.__cause__
            raise
