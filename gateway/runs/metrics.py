"""Figures of a running topology for Prometheus, and the port at which `skyray run` and `skyray live` have them.

`gateway.serve.metrics` has the same ones, under the same names.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from matching.errors import ConfigError, EngineError
from topology.core.metrics import LatencyHistogram, Snapshot
from topology.run_folders import run_folder

#: Upper edges of latencies, from half a millisecond to a minute: 1 microsecond doubled so often.
_DOUBLINGS = range(9, 27)
#: The port listens on this machine only; a user who scrapes it from another machine forwards it.
_HOST = "127.0.0.1"


class RunFigures(Collector):
    """The figures of a run or a live stream, read when they are wanted. No label has a subscription.

    Parameters
    ----------
    show : callable
        Called with each snapshot, as `topology.running.run` calls `on_progress`.
    folder : Path
        That of the run: `run.json` says what is quarantined.
    own : callable
        The families of the input and the updates: of files from the snapshot, of a live stream from elsewhere.
    """

    def __init__(self, show: Any, folder: Path, own: Callable[[Snapshot], Iterator[Metric]] | None = None):
        self._show = show
        self._folder = run_folder(folder)
        self._own = own or run_families
        self._snapshot: Snapshot | None = None

    def __call__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if self._show is not None:
            self._show(snapshot)

    def __getattr__(self, name: str) -> Any:
        """What else `show` takes, such as `starting` (`topology.core.metrics.report_stage`)."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._show, name)

    def collect(self) -> Iterator[Metric]:
        """The families; those of the topology once its first batches are out."""
        yield self._quarantined()
        snapshot = self._snapshot
        if snapshot is not None:
            yield from self._own(snapshot)
            yield from topology_families(snapshot)

    def _quarantined(self) -> Metric:
        rows = GaugeMetricFamily("skyray_quarantined_rows", "Rows on which a component fails", labels=["what"])
        try:
            found = self._folder.report().get("quarantined") or {}
        except EngineError:
            found = {}
        for what in ("messages", "subscriptions"):
            rows.add_metric([what], sum(last - first + 1 for first, last in found.get(what, ())))
        return rows


def run_families(snapshot: Snapshot) -> Iterator[Metric]:
    """What a run over files has matched since its process began."""
    counters = {name: one.counters for name, one in snapshot.components.items()}
    subscriptions = counters.get("subscriptions", {})
    yield counter("messages", "Messages that were read", counters.get("messages", {}).get("messages", 0))
    yield counter("released_updates", "Updates that are complete", counters.get("delivery", {}).get("updates", 0))
    yield counter("rejected_subscriptions", "Subscriptions that were refused", subscriptions.get("rejected", 0))
    active = subscriptions.get("added", 0) - subscriptions.get("removed", 0)
    yield gauge("subscriptions", "Subscriptions added less those removed, since the process began", active)


def topology_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Batches, checkpoints, and what each component does."""
    yield counter("published_batches", "Batches that entered the topology", snapshot.published)
    yield counter("complete_batches", "Batches whose updates are all out: the watermark", snapshot.acknowledged)
    yield gauge("batches_in_flight", "Batches whose updates are not all out", snapshot.in_flight)
    saved = snapshot.checkpoints
    if saved is not None:
        yield counter("checkpoints", "Checkpoints that were committed", saved.committed)
        yield counter("failed_checkpoints", "Checkpoints that could not be written", saved.failed)
        yield gauge("checkpoint_age_seconds", "Since the last checkpoint, or the start", saved.age_s)
        yield gauge("checkpoint_write_seconds", "How long the last checkpoint was written", saved.write_s)
        yield gauge("checkpoint_size_bytes", "Size of the last checkpoint", saved.size_bytes)
    yield from _components(snapshot)


def _components(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ["component"]
    received = CounterMetricFamily("skyray_component_received_payloads", "Payloads received", labels=labels)
    emitted = CounterMetricFamily("skyray_component_emitted_payloads", "Payloads emitted", labels=labels)
    queue = GaugeMetricFamily("skyray_component_queue_payloads", "Payloads not taken yet", labels=labels)
    busy = GaugeMetricFamily("skyray_component_busy_ratio", "Share of time spent working", labels=labels)
    edges = {
        quantile: GaugeMetricFamily(
            f"skyray_component_latency_{quantile}_seconds",
            "From a batch to its updates, since the start",
            labels=labels,
        )
        for quantile in ("p50", "p99")
    }
    for name, one in snapshot.components.items():
        received.add_metric([name], one.received)
        emitted.add_metric([name], one.emitted)
        queue.add_metric([name], one.queue_depth)
        busy.add_metric([name], one.busy_share)
        for quantile, seconds in (("p50", one.latency_p50_s), ("p99", one.latency_p99_s)):
            if seconds is not None:
                edges[quantile].add_metric([name], seconds)
    yield from (received, emitted, queue, busy, *edges.values())


def source_families(figures: Mapping[str, Any]) -> Iterator[Metric]:
    """What is read from a broker (`gateway.sources.feed`)."""
    labels = ["source"]
    counters = {
        "records": "Messages that were read from the source",
        "reconnects": "Times that the source was away",
        "removed": "Messages that the broker removed before they were read",
    }
    for name, what in counters.items():
        family = CounterMetricFamily(f"skyray_source_{name}", what, labels=labels)
        family.add_metric([figures["name"]], figures[name])
        yield family
    up = GaugeMetricFamily("skyray_source_up", "1 while the source is read", labels=labels)
    up.add_metric([figures["name"]], int(figures["state"] == "reading"))
    yield up
    if figures["lag"] is not None:
        lag = GaugeMetricFamily("skyray_source_lag", "Messages of the source that are not read yet", labels=labels)
        lag.add_metric([figures["name"]], figures["lag"])
        yield lag


def sink_families(figures: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """What is delivered to other systems (`gateway.sinks.pump`); nothing without sinks."""
    labels = ["sink"]
    counters = {
        "released": "Updates for the sink: delivered, waiting and lost",
        "delivered": "Updates that the sink has durably",
        "lost": "Updates whose files were gone before they were delivered",
        "reconnects": "Times that the sink was away",
    }
    gauges = {"waiting": "Updates that are not delivered yet", "up": "1 while the sink takes updates"}
    for name, what in counters.items() if figures else ():
        family = CounterMetricFamily(f"skyray_sink_{name}", what, labels=labels)
        for one in figures:
            family.add_metric([one["name"]], one[name])
        yield family
    for name, what in gauges.items() if figures else ():
        family = GaugeMetricFamily(f"skyray_sink_{name}", what, labels=labels)
        for one in figures:
            family.add_metric([one["name"]], int(one["state"] == "delivering") if name == "up" else one[name])
        yield family


def refused_family(refused: Mapping[str, int]) -> Metric:
    """Rows that were refused, by reason."""
    family = CounterMetricFamily("skyray_refused_rows", "Rows that were refused", labels=["reason"])
    for reason, count in sorted(refused.items()):
        family.add_metric([reason], count)
    return family


def latency_family(latency: LatencyHistogram) -> Metric:
    """From a row's arrival to its updates."""
    family = HistogramMetricFamily("skyray_latency_seconds", "From a row's arrival to its updates, since the start")
    buckets = [(f"{edge_s:.6f}", count) for edge_s, count in latency.cumulative(_DOUBLINGS)]
    family.add_metric([], [*buckets, ("+Inf", int(latency.counts.sum()))], latency.total_s())
    return family


def gauge(name: str, what: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(f"skyray_{name}", what, value)


def counter(name: str, what: str, value: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(f"skyray_{name}", what, value)


def registry_of(figures: Collector) -> CollectorRegistry:
    """These figures, and those of the process: memory, processor time, open files."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)
    ProcessCollector(registry=registry)
    return registry


@contextmanager
def at_port(port: int, figures: Collector) -> Iterator[str]:
    """Answer Prometheus on the loopback interface during the block; yields the URL.

    Parameters
    ----------
    port : int
        0: any that is free.
    figures : Collector

    Raises
    ------
    ConfigError
        If the port cannot be had.
    """
    try:
        server, thread = start_http_server(port, _HOST, registry_of(figures))
    except OSError as error:
        raise ConfigError(
            f"metrics.port {port}: cannot listen there ({error.strerror or error}); name another, or 0 for any"
        ) from None
    try:
        yield f"http://{_HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
