"""Figures for Prometheus: of runs, live streams and servers, at a port, and in files that list the port.

A figure has the same name in a run over files, `skyray live` and `skyray serve`. No label has a subscription. `listed`
writes the files by which Prometheus finds several processes (`file_sd_configs`, `--set metrics.targets=FOLDER`). Each
process has a file there and removes it at its end; the next process on the machine removes the file of a killed one.
"""

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.shell.terminal import whole_file
from matching.errors import ConfigError, DeliveryError, EngineError
from topology.core.metrics import LatencyHistogram, RunSnapshot
from topology.store_folder import run_folder

if TYPE_CHECKING:
    from gateway.serve.disk_use import DiskFigures
    from gateway.serve.door import Door

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Upper edges of latencies, from half a millisecond to a minute: 1 microsecond doubled so often.
_DOUBLINGS = range(9, 27)
#: The port listens on this machine only; a user who scrapes it from another machine forwards it.
_HOST = "127.0.0.1"
_PREFIX = "skyray-"


class RunFigures(Collector):
    """The figures of a run or a live stream, read at each request of Prometheus.

    Parameters
    ----------
    show : callable
        Called with each snapshot, as `topology.running.run` calls `on_progress`.
    folder : Path
        Folder of the run, for the quarantine in its `run.json`.
    own : callable
        Metric families of the input and the updates; by default the families of a run over files.
    """

    def __init__(self, show: Any, folder: Path, own: Callable[[RunSnapshot], Iterator[Metric]] | None = None):
        self._show = show
        self._folder = run_folder(folder)
        self._own = own or run_families
        self._snapshot: RunSnapshot | None = None

    def __call__(self, snapshot: RunSnapshot) -> None:
        self._snapshot = snapshot
        if self._show is not None:
            self._show(snapshot)

    def __getattr__(self, name: str) -> Any:
        """Other methods of `show`, such as `starting` (`topology.core.metrics.report_stage`)."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._show, name)

    def collect(self) -> Iterator[Metric]:
        """The metric families; the topology has none before its first snapshot."""
        yield self._quarantined()
        snapshot = self._snapshot
        if snapshot is not None:
            yield from self._own(snapshot)
            yield from topology_families(snapshot)

    def _quarantined(self) -> Metric:
        try:
            found = self._folder.report().get("quarantined") or {}
        except EngineError:
            found = {}
        rows = {
            what: sum(last - first + 1 for first, last in found.get(what, ())) for what in ("messages", "subscriptions")
        }
        return labelled("quarantined_rows", "Rows on which a component fails", "what", rows.items(), GaugeMetricFamily)


class DoorFigures(Collector):
    """The figures of a server, read at each request of Prometheus."""

    def __init__(self, door: "Door"):
        self._door = door

    def collect(self) -> Iterator[Metric]:
        door = self._door
        wal, writer, hub, registry = door.wal, door.writer, door.hub, door.registry
        yield gauge("ready", "1 while messages are matched", int(door.ready and not door.closing))
        yield counter("duplicate_messages", "Messages that were sent again", writer.duplicates)
        yield counter("expired_subscriptions", "Subscriptions whose time was over", writer.expired)
        yield gauge("broad_subscriptions", "Active subscriptions that require nothing", registry.broad)
        yield gauge("waiting_rows", "Rows that wait to be logged", writer.waiting)
        yield counter("sent_updates", "Updates that were sent, each for each client", hub.sent)
        yield counter("slow_clients", "Clients that got a gap", hub.gaps)
        yield gauge("clients", "Clients that follow", hub.clients)
        yield gauge("messages_behind", "Logged messages whose updates are not released", door.behind())
        feed = None if door.feed is None else door.feed.figures()
        refused, misfits = writer.refused, dict(door.admission.misfits)
        yield from stream_families(
            wal, len(wal.ends), refused, misfits, len(registry), door.updates(), door.latency, feed
        )
        yield from disk_families(door.disk.figures())
        for figures in door.more_figures:
            yield from figures()
        yield from sink_families(door.sinks())
        if door.snapshot is not None:
            yield from topology_families(door.snapshot)


def exposition(door: "Door") -> bytes:
    """All figures of a server in Prometheus' text format."""
    return generate_latest(registry_of(DoorFigures(door)))


def stream_families(
    wal: Any,
    batches: int,
    refused: Mapping[str, int],
    misfits: Mapping[str, int],
    subscriptions: int,
    updates: int,
    latency: LatencyHistogram,
    feed: Mapping[str, Any] | None,
) -> Iterator[Metric]:
    """The input and the updates of a live stream or a server; `feed` is for `source_families`."""
    yield counter("messages", "Messages that are logged", wal.next_seq - wal.mark_count)
    yield gauge("first_kept_message", "Messages before it are gone, but for those that results have", wal.first_seq)
    yield counter("batches", "Batches that are logged", batches)
    yield labelled("refused_rows", "Rows that were refused", "reason", sorted(refused.items()))
    what = "Values of messages that do not fit their attribute, and count as missing"
    yield labelled("misfit_values", what, "column", sorted(misfits.items()))
    yield gauge("subscriptions", "Active subscriptions", subscriptions)
    yield counter("released_updates", "Updates that are complete", updates)
    yield latency_family(latency)
    if feed is not None:
        yield from source_families(feed)


def run_families(snapshot: RunSnapshot) -> Iterator[Metric]:
    """Input and updates of a run over files since its process began."""
    counters = {name: one.counters for name, one in snapshot.components.items()}
    subscriptions = counters.get("subscriptions", {})
    yield counter("messages", "Messages that were read", counters.get("messages", {}).get("messages", 0))
    yield counter("released_updates", "Updates that are complete", counters.get("delivery", {}).get("updates", 0))
    yield counter("rejected_subscriptions", "Subscriptions that were refused", subscriptions.get("rejected", 0))
    active = subscriptions.get("added", 0) - subscriptions.get("removed", 0)
    yield gauge("subscriptions", "Subscriptions added less those removed, since the process began", active)


def topology_families(snapshot: RunSnapshot) -> Iterator[Metric]:
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


def _components(snapshot: RunSnapshot) -> Iterator[Metric]:
    for kind, name, what, field in (
        (CounterMetricFamily, "received_payloads", "Payloads received", "received"),
        (CounterMetricFamily, "emitted_payloads", "Payloads emitted", "emitted"),
        (GaugeMetricFamily, "queue_payloads", "Payloads not taken yet", "queue_depth"),
        (GaugeMetricFamily, "busy_ratio", "Share of time spent working", "busy_share"),
        (GaugeMetricFamily, "latency_p50_seconds", "From a batch to its updates, since the start", "latency_p50_s"),
        (GaugeMetricFamily, "latency_p99_seconds", "From a batch to its updates, since the start", "latency_p99_s"),
    ):
        rows = ((name_of, getattr(one, field)) for name_of, one in snapshot.components.items())
        yield labelled(f"component_{name}", what, "component", (row for row in rows if row[1] is not None), kind)


def source_families(figures: Mapping[str, Any]) -> Iterator[Metric]:
    """Messages read from a broker (`gateway.sources.feed`)."""
    name = figures["name"]
    for each, what in (
        ("records", "Messages that were read from the source"),
        ("reconnects", "Times that the source was away"),
        ("removed", "Messages that the broker removed before they were read"),
    ):
        yield labelled(f"source_{each}", what, "source", [(name, figures[each])])
    up = [(name, int(figures["state"] == "reading"))]
    yield labelled("source_up", "1 while the source is read", "source", up, GaugeMetricFamily)
    if figures["lag"] is not None:
        lag = [(name, figures["lag"])]
        yield labelled("source_lag", "Messages of the source that are not read yet", "source", lag, GaugeMetricFamily)


def sink_families(figures: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Updates delivered to other systems (`gateway.sinks.pump`); nothing without sinks."""
    shown = [{**one, "up": int(one["state"] == "delivering")} for one in figures]
    for kind, name, what in (
        (CounterMetricFamily, "released", "Updates for the sink: delivered, waiting and lost"),
        (CounterMetricFamily, "delivered", "Updates that the sink has durably"),
        (CounterMetricFamily, "lost", "Updates whose files were gone before they were delivered"),
        (CounterMetricFamily, "reconnects", "Times that the sink was away"),
        (GaugeMetricFamily, "waiting", "Updates that are not delivered yet"),
        (GaugeMetricFamily, "up", "1 while the sink takes updates"),
    ):
        if shown:
            yield labelled(f"sink_{name}", what, "sink", [(one["name"], one[name]) for one in shown], kind)


def disk_families(disk: "DiskFigures") -> Iterator[Metric]:
    """Size of the folder, and the space left on its disk."""
    yield labelled("disk_bytes", "Size of the folder", "what", disk.size_bytes.items(), GaugeMetricFamily)
    yield gauge("disk_free_bytes", "Free on the disk of the folder", disk.free_bytes)
    if disk.full_s is not None:
        what = "When the disk is full at the pace of the last day; not there if it is not in sight"
        yield gauge("disk_full_timestamp_seconds", what, disk.full_s)


def latency_family(latency: LatencyHistogram) -> Metric:
    """From a row's arrival to its updates."""
    family = HistogramMetricFamily("skyray_latency_seconds", "From a row's arrival to its updates, since the start")
    buckets = [(f"{edge_s:.6f}", count) for edge_s, count in latency.cumulative(_DOUBLINGS)]
    family.add_metric([], [*buckets, ("+Inf", int(latency.counts.sum()))], latency.total_s())
    return family


def labelled(
    name: str, what: str, label: str, rows: Iterable[tuple[str, float]], kind: Any = CounterMetricFamily
) -> Metric:
    """A counter, or a family of another kind, with a value for each value of a label."""
    family = kind(f"skyray_{name}", what, labels=[label])
    for value, figure in rows:
        family.add_metric([value], figure)
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

    Raises
    ------
    ConfigError
        If another process has the port.
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


@contextmanager
def listed(folder: Path, address: str, labels: Mapping[str, str]) -> Iterator[Path]:
    """List an address in the folder during the block, with these labels; yields the file. The folder is made.

    Raises
    ------
    DeliveryError
        If the file cannot be written.
    """
    host = socket.gethostname()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeliveryError(f"metrics.targets {folder}: cannot be made ({error.strerror or error})") from None
    _sweep(folder, host)
    file = folder / f"{_PREFIX}{host}-{os.getpid()}-{address.rpartition(':')[2]}.json"
    with whole_file(file) as out:
        out.write(json.dumps([{"targets": [address], "labels": dict(labels)}]).encode() + b"\n")
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def _sweep(folder: Path, host: str) -> None:
    """Remove the files of processes of this machine that are gone."""
    for file in folder.glob(f"{_PREFIX}{host}-*-*.json"):
        process = file.stem.removeprefix(f"{_PREFIX}{host}-").partition("-")[0]
        if process.isdigit() and not Path("/proc", process).exists():
            with suppress(OSError):
                file.unlink()
