"""Metrics of a run: counts and busy time of every task, latency histograms, live snapshots and the final report.

Both executors build the same `RunSnapshot` (for a live table) and `RunReport` (for the end) from the `TaskStatus` of
every task, so a figure means the same in one process and on a cluster.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from matching.model import Int64
from topology.core.api.plan import Plan

#: Buckets for each doubling of latency: neighbours differ by 4.4 %, so a quantile is off by at most that.
_PER_DOUBLING = 16
#: From below 1 microsecond to 2**36 microseconds (19 hours); what lies beyond falls into the last bucket.
_BUCKETS = 36 * _PER_DOUBLING + 1
#: Latencies up to which they are recorded one by one.
_FEW = 4

#: Span of `busy_share`, in seconds: a batch counts when it is done, and may take seconds.
BUSY_SPAN_S = 10.0


class LatencyHistogram:
    """Latencies in logarithmic buckets: fixed size, mergeable, the maximum kept exactly.

    Attributes
    ----------
    counts : int64[577]
        Bucket 0 is below 1 microsecond, then 16 buckets for each doubling.
    max_s : float
        The largest latency recorded, in seconds; 0 if none.
    """

    def __init__(self, counts: Int64 | None = None, max_s: float = 0.0):
        self.counts: Int64 = np.zeros(_BUCKETS, np.int64) if counts is None else counts
        self.max_s = max_s

    def record(self, seconds: np.ndarray | float, counts: np.ndarray | int = 1) -> None:
        """Add each of `seconds`, `counts` times; negative ones (clocks of two machines) count as 0. O(n)."""
        if not isinstance(seconds, np.ndarray) or seconds.size <= _FEW:  # NumPy takes as long over one as over many
            some = seconds.tolist() if isinstance(seconds, np.ndarray) else [seconds]
            weights = counts.tolist() if isinstance(counts, np.ndarray) else [counts] * len(some)
            for value, weight in zip(some, weights, strict=True):
                us = value * 1e6
                bucket = int(math.log2(us) * _PER_DOUBLING) + 1 if us >= 1.0 else 0
                self.counts[bucket if bucket < _BUCKETS else _BUCKETS - 1] += weight
                if weight > 0 and value > self.max_s:
                    self.max_s = value
            return
        values = np.maximum(np.asarray(seconds, np.float64), 0.0)
        weights = np.broadcast_to(np.asarray(counts, np.int64), values.shape)
        doublings = np.log2(np.maximum(values * 1e6, 0.5)) * _PER_DOUBLING
        np.add.at(self.counts, np.clip(np.floor(doublings).astype(np.int64) + 1, 0, _BUCKETS - 1), weights)
        counted = values[weights > 0]
        self.max_s = max(self.max_s, float(np.max(counted, initial=0.0)))

    def merge(self, other: "LatencyHistogram") -> None:
        """Add another histogram."""
        self.counts = self.counts + other.counts
        self.max_s = max(self.max_s, other.max_s)

    def quantile(self, fraction: float) -> float | None:
        """Upper edge, in seconds, of the bucket with the given quantile of latencies; None while empty."""
        total = int(self.counts.sum())
        if total == 0:
            return None
        rank = max(1, int(np.ceil(fraction * total)))
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        return min(self.max_s, 2.0 ** (bucket / _PER_DOUBLING) * 1e-6)

    def cumulative(self, doublings: range) -> list[tuple[float, int]]:
        """For 1 microsecond doubled so often: the seconds, and how many latencies are below."""
        reached = np.cumsum(self.counts)
        return [(2.0**each * 1e-6, int(reached[each * _PER_DOUBLING])) for each in doublings]

    def total_s(self) -> float:
        """The sum of all latencies, each counted as the upper edge of its bucket: at most 5% too large."""
        return float(self.counts @ np.exp2(np.arange(_BUCKETS) / _PER_DOUBLING) * 1e-6)

    def summary(self) -> dict[str, float | int | None]:
        """`count`, `p50_s`, `p99_s`, `p999_s`, `max_s`; None while empty."""
        count = int(self.counts.sum())
        return {
            "count": count,
            "p50_s": self.quantile(0.5),
            "p99_s": self.quantile(0.99),
            "p999_s": self.quantile(0.999),
            "max_s": self.max_s if count else None,
        }


def latency_summary(seconds: np.ndarray) -> dict[str, float | int | None]:
    """The summary of these latencies, as of a `LatencyHistogram`."""
    histogram = LatencyHistogram()
    histogram.record(seconds)
    return histogram.summary()


class LatencyTimeline:
    """A histogram of latencies for each interval of a test, by when the messages were due.

    Parameters
    ----------
    interval_s : float
        Seconds of an interval; it has 5 kB.
    """

    def __init__(self, interval_s: float):
        self.interval_s = interval_s
        self._first_s: float | None = None
        self._histograms: dict[int, LatencyHistogram] = {}

    def record(self, due_s: np.ndarray, seconds: np.ndarray, counts: np.ndarray | int = 1) -> None:
        """Add each of `seconds`, `counts` times, at `due_s`; the first due time is the beginning. O(n)."""
        counts = np.broadcast_to(counts, seconds.shape)
        if not due_s.size:
            return
        if self._first_s is None:
            self._first_s = float(due_s.min())
        numbers = ((due_s - self._first_s) // self.interval_s).astype(np.int64)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            self._histograms.setdefault(number, LatencyHistogram()).record(seconds[mine], counts[mine])

    def summary(self) -> list[dict[str, float | int | None]]:
        """A row for each interval that has latencies, in order: `at_s`, and the summary of its histogram."""
        return [
            {"at_s": number * self.interval_s, **histogram.summary()}
            for number, histogram in sorted(self._histograms.items())
        ]


class TaskStatus(NamedTuple):
    """Where one task stands; everything counts from the start of the run, or since it last went back to a checkpoint.

    `received` and `sent` count every parcel, ends, ticks and acknowledgements included (`sent_to`:
    int64[tasks of the plan], by address): the run is quiet when both sums agree over all tasks. `incoming`,
    `outgoing` and `busy_ns` are by stream and count payloads alone. `waits_for` says in words why the task has not
    ended; for the clock spout that has, which batches lack an acknowledgement. The last six are the clock
    spout's; `stopped`: it was ended by `stop`; `writing`: it waits for a checkpoint to be written.
    """

    address: int
    ended: bool
    waits_for: str
    received: int
    sent: int
    sent_to: Int64
    incoming: dict[str, int]
    outgoing: dict[str, int]
    bytes_out: dict[str, int]
    unrouted: dict[str, int]
    busy_ns: dict[str, int]
    counters: dict[str, int]
    latency: tuple[Int64, float] | None
    published: int = 0
    acknowledged: int = 0
    in_flight_peak: int = 0
    blocked_s: float = 0.0
    stopped: bool = False
    writing: bool = False


def report_stage(on_progress: Any, stage: str) -> None:
    """Report what the start of a run waits for, if `on_progress` has a method `starting`."""
    starting = getattr(on_progress, "starting", None)
    if starting is not None:
        starting(stage)


def report_warmed(on_progress: Any, warmed: Any) -> None:
    """Report the progress of the warm-up (`Plan.warm_up`), if `on_progress` has a method `warmed`."""
    listener = getattr(on_progress, "warmed", None)
    if listener is not None:
        listener(warmed)


@dataclass(frozen=True)
class ComponentSnapshot:
    """A component while it runs, summed over its tasks.

    `received` and `emitted` count payloads; `queue_depth` what was sent to it and not yet taken (between processes it
    may be off by what moved between the answers of sender and receiver); `busy_share` (0 to 1)
    is the mean over its tasks of the time spent working in the last seconds (`BUSY_SPAN_S`); `latency_p50_s` and
    `latency_p99_s` are None where nothing records latency.
    """

    name: str
    kind: str
    tasks: int
    ended_tasks: int
    received: int
    emitted: int
    queue_depth: int
    busy_share: float
    counters: dict[str, int]
    latency_p50_s: float | None
    latency_p99_s: float | None


@dataclass(frozen=True)
class CheckpointSnapshot:
    """The checkpoints of a run so far, of this process.

    `age_s` is since the last one was committed, or since the start; `write_s` (the longest of its tasks) and
    `size_bytes` are those of the last one.
    """

    committed: int
    failed: int
    age_s: float
    write_s: float
    size_bytes: int


@dataclass(frozen=True)
class RunSnapshot:
    """A run in progress, `elapsed_s` after the first batch could leave; batches counted at the clock spout.

    `checkpoints` is None where none are taken.
    """

    elapsed_s: float
    published: int
    acknowledged: int
    in_flight: int
    components: dict[str, ComponentSnapshot]
    checkpoints: CheckpointSnapshot | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class _WorkReport:
    """Work of a task, or of a component, after the run.

    `incoming`, `outgoing`, `bytes_out`, `unrouted` and `busy_s` are by stream. `bytes_out` counts a payload once,
    however many tasks get it; `unrouted` counts payloads emitted on a stream without edges; `queue_depth_peak` is the
    largest depth seen at a snapshot, about four a second.
    """

    incoming: dict[str, int]
    outgoing: dict[str, int]
    bytes_out: dict[str, int]
    unrouted: dict[str, int]
    busy_s: dict[str, float]
    busy_share: float
    queue_depth_peak: int
    counters: dict[str, int]
    latency: dict[str, float | int | None]


@dataclass(frozen=True)
class TaskReport(_WorkReport):
    """One task after the run; `figures` is what the component's own `report` says."""

    task: int
    figures: dict[str, Any]


@dataclass(frozen=True)
class ComponentReport(_WorkReport):
    """One component after the run, summed over its tasks (`busy_share` is the mean, `queue_depth_peak` the largest)."""

    name: str
    kind: str
    tasks: tuple[TaskReport, ...]


@dataclass(frozen=True)
class RunReport:
    """A whole run.

    `elapsed_s` is from the first batch to the last end, without the start of processes (`startup_s`, which includes
    `warm_up_s`). `blocked_s` is how long the clock spout stood without a credit; `in_flight_peak` never exceeds the
    plan's credits. A task's own figures (`Spout.report`, `Bolt.report`) are in `components[NAME].tasks[i].figures`.
    `checkpoints` has the figures of each, `recoveries` the failures and seconds of each recovery, `rebalances` the
    busy times and seconds of each rebalancing. `stopped`: it was ended by `stop`, before the stream ended.
    """

    executor: str
    elapsed_s: float
    startup_s: float
    warm_up_s: float
    published: int
    acknowledged: int
    in_flight_peak: int
    blocked_s: float
    components: dict[str, ComponentReport]
    plan: dict[str, Any] = field(repr=False)
    checkpoints: tuple[dict[str, Any], ...] = ()
    recoveries: tuple[dict[str, Any], ...] = ()
    rebalances: tuple[dict[str, Any], ...] = ()
    stopped: bool = False

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


#: Counts of a task, by name, that are summed over incarnations.
_SUMMED = ("incoming", "outgoing", "bytes_out", "unrouted", "busy_ns", "counters")


class Meter:
    """Turns task statuses into snapshots and the report, remembering what differences need."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._busy: deque[tuple[float, list[int]]] = deque(
            [(0.0, [0] * len(plan.tasks))]
        )  # when, and busy_ns by address
        self._peaks = [0] * len(plan.tasks)
        self._before: dict[int, TaskStatus] = {}
        self._batches_before = 0

    def go_back(self, statuses: Iterable[TaskStatus], number: int) -> None:
        """Keep the counts so far: tasks restart theirs behind batch `number`."""
        self._before |= {status.address: self._whole(status) for status in statuses}
        self._batches_before = number + 1

    def snapshot(self, statuses: list[TaskStatus], elapsed_s: float) -> RunSnapshot:
        """The present, from one status for each task by address. O(tasks**2) additions of small arrays."""
        depths = self._queue_depths(statuses)
        statuses = [self._whole(status) for status in statuses]
        since_s, busy_before = self._busy[0]
        span_ns = max(elapsed_s - since_s, 1e-9) * 1e9
        components = {}
        for part in self._plan.components:
            mine = [statuses[address] for address in self._plan.addresses_of(part.name)]
            busy = [sum(status.busy_ns.values()) for status in mine]
            before = [busy_before[status.address] for status in mine]
            latency = _merged_latency(mine)
            components[part.name] = ComponentSnapshot(
                name=part.name,
                kind=part.kind,
                tasks=part.tasks,
                ended_tasks=sum(status.ended for status in mine),
                received=sum(sum(status.incoming.values()) for status in mine),
                emitted=sum(sum(status.outgoing.values()) for status in mine),
                queue_depth=sum(depths[status.address] for status in mine),
                busy_share=min(1.0, (sum(busy) - sum(before)) / span_ns / part.tasks),
                counters=_summed([status.counters for status in mine]),
                latency_p50_s=latency.quantile(0.5),
                latency_p99_s=latency.quantile(0.99),
            )
        self._busy.append((elapsed_s, [sum(status.busy_ns.values()) for status in statuses]))
        while len(self._busy) > 1 and self._busy[1][0] <= elapsed_s - BUSY_SPAN_S:
            self._busy.popleft()
        clock = statuses[self._plan.clock_address]
        published, acknowledged = (self._batches_before + count for count in (clock.published, clock.acknowledged))
        return RunSnapshot(elapsed_s, published, acknowledged, published - acknowledged, components)

    def report(
        self,
        executor: str,
        statuses: list[TaskStatus],
        figures: list[dict[str, Any]],
        elapsed_s: float,
        startup_s: float,
        warm_up_s: float,
        checkpoints: Sequence[dict[str, Any]] = (),
        recoveries: Sequence[dict[str, Any]] = (),
        rebalances: Sequence[dict[str, Any]] = (),
    ) -> RunReport:
        """The end, from one status and one dict of figures for each task by address."""
        self._queue_depths(statuses)
        statuses = [self._whole(status) for status in statuses]
        components = {}
        for part in self._plan.components:
            addresses = self._plan.addresses_of(part.name)
            mine = [statuses[address] for address in addresses]
            tasks = tuple(
                TaskReport(
                    task=task,
                    busy_share=_share(status, elapsed_s),
                    queue_depth_peak=self._peaks[status.address],
                    latency=_merged_latency([status]).summary(),
                    figures=figures[status.address],
                    **_streams([status]),
                )
                for task, status in enumerate(mine)
            )
            components[part.name] = ComponentReport(
                name=part.name,
                kind=part.kind,
                busy_share=sum(task.busy_share for task in tasks) / part.tasks,
                queue_depth_peak=max(task.queue_depth_peak for task in tasks),
                latency=_merged_latency(mine).summary(),
                tasks=tasks,
                **_streams(mine),
            )
        clock = statuses[self._plan.clock_address]
        return RunReport(
            executor=executor,
            elapsed_s=elapsed_s,
            startup_s=startup_s,
            warm_up_s=warm_up_s,
            published=self._batches_before + clock.published,
            acknowledged=self._batches_before + clock.acknowledged,
            in_flight_peak=clock.in_flight_peak,
            blocked_s=clock.blocked_s,
            components=components,
            plan=self._plan.describe(),
            checkpoints=tuple(checkpoints),
            recoveries=tuple(recoveries),
            rebalances=tuple(rebalances),
            stopped=clock.stopped,
        )

    def _whole(self, status: TaskStatus) -> TaskStatus:
        """A status with the counts of the task's earlier incarnations."""
        before = self._before.get(status.address)
        if before is None:
            return status
        merged = _merged_latency([before, status])
        return status._replace(
            **{name: _summed([getattr(each, name) for each in (before, status)]) for name in _SUMMED},
            latency=(merged.counts, merged.max_s) if merged.counts.any() else None,
            in_flight_peak=max(before.in_flight_peak, status.in_flight_peak),
            blocked_s=before.blocked_s + status.blocked_s,
        )

    def _queue_depths(self, statuses: list[TaskStatus]) -> list[int]:
        """Parcels sent to each task and not yet taken; statuses of different moments may make it negative: then 0."""
        sent = np.sum([status.sent_to for status in statuses], axis=0)
        depths = [max(0, int(sent[status.address]) - status.received) for status in statuses]
        self._peaks = [max(peak, depth) for peak, depth in zip(self._peaks, depths, strict=True)]
        return depths


def _streams(statuses: list[TaskStatus]) -> dict[str, dict]:
    """The by-stream figures that task and component reports share."""
    return {
        "incoming": _summed([status.incoming for status in statuses]),
        "outgoing": _summed([status.outgoing for status in statuses]),
        "bytes_out": _summed([status.bytes_out for status in statuses]),
        "unrouted": _summed([status.unrouted for status in statuses]),
        "busy_s": {name: ns / 1e9 for name, ns in _summed([status.busy_ns for status in statuses]).items()},
        "counters": _summed([status.counters for status in statuses]),
    }


def _share(status: TaskStatus, elapsed_s: float) -> float:
    return min(1.0, sum(status.busy_ns.values()) / max(elapsed_s, 1e-9) / 1e9)


def _summed(parts: list[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def _merged_latency(statuses: list[TaskStatus]) -> LatencyHistogram:
    merged = LatencyHistogram()
    for status in statuses:
        if status.latency is not None:
            merged.merge(LatencyHistogram(*status.latency))
    return merged
