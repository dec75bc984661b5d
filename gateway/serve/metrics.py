"""Figures for Prometheus: of the log, of clients, and of each component of the topology.

Used by `gateway.serve.operation_routes`; `topology.core.metrics` has the figures of components.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.serve.door import Door

#: Upper edges of latencies, from half a millisecond to a minute: 1 microsecond doubled so often.
_DOUBLINGS = range(9, 27)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Figures(Collector):
    """The figures of a stream, read when they are wanted. No label has a subscription."""

    def __init__(self, door: Door):
        self._door = door

    def collect(self) -> Iterator[Metric]:
        door = self._door
        wal, writer, hub, registry = door.wal, door.writer, door.hub, door.registry
        yield _gauge("ready", "1 while messages are matched", int(door.ready and not door.closing))
        yield _counter("messages", "Messages that are logged", wal.next_seq - len(wal.marks))
        yield _counter("batches", "Batches that are logged", len(wal.ends))
        yield _counter("duplicate_messages", "Messages that were sent again", writer.duplicates)
        yield _counter("expired_subscriptions", "Subscriptions whose time was over", writer.expired)
        refused = CounterMetricFamily("skyray_refused_rows", "Rows that were refused", labels=["reason"])
        for reason, count in sorted(writer.refused.items()):
            refused.add_metric([reason], count)
        yield refused
        yield _gauge("waiting_rows", "Rows that wait to be logged", writer.waiting)
        yield _gauge("subscriptions", "Active subscriptions", len(registry.active))
        yield _counter("released_updates", "Updates that are complete", door.updates())
        yield _counter("sent_updates", "Updates that were sent, each for each client", hub.sent)
        yield _counter("slow_clients", "Clients that got a gap", hub.gaps)
        yield _gauge("clients", "Clients that follow", hub.clients)
        yield _gauge("messages_behind", "Logged messages whose updates are not released", door.behind())
        latency = HistogramMetricFamily(
            "skyray_latency_seconds", "From a row's arrival to its updates, since the start"
        )
        buckets = [(f"{edge_s:.6f}", count) for edge_s, count in door.latency.cumulative(_DOUBLINGS)]
        latency.add_metric([], [*buckets, ("+Inf", int(door.latency.counts.sum()))], door.latency.total_s())
        yield latency
        for figures in door.more_figures:
            yield from figures()
        yield from self._source()
        yield from self._sinks()
        yield from self._components()

    def _source(self) -> Iterator[Metric]:
        if self._door.feed is None:
            return
        figures, labels = self._door.feed.figures(), ["source"]
        counters = {
            "records": "Messages that were read from the source",
            "reconnects": "Times that the source was away",
            "removed": "Messages that the broker removed before they were read",
        }
        for name, what in counters.items():
            counter = CounterMetricFamily(f"skyray_source_{name}", what, labels=labels)
            counter.add_metric([figures["name"]], figures[name])
            yield counter
        up = GaugeMetricFamily("skyray_source_up", "1 while the source is read", labels=labels)
        up.add_metric([figures["name"]], int(figures["state"] == "reading"))
        yield up
        if figures["lag"] is not None:
            lag = GaugeMetricFamily("skyray_source_lag", "Messages of the source that are not read yet", labels=labels)
            lag.add_metric([figures["name"]], figures["lag"])
            yield lag

    def _sinks(self) -> Iterator[Metric]:
        figures, labels = self._door.sinks(), ["sink"]
        if not figures:
            return
        counters = {
            "released": "Updates for the sink: delivered, waiting and lost",
            "delivered": "Updates that the sink has durably",
            "lost": "Updates whose files were gone before they were delivered",
            "reconnects": "Times that the sink was away",
        }
        gauges = {"waiting": "Updates that are not delivered yet", "up": "1 while the sink takes updates"}
        for name, what in counters.items():
            counter = CounterMetricFamily(f"skyray_sink_{name}", what, labels=labels)
            for one in figures:
                counter.add_metric([one["name"]], one[name])
            yield counter
        for name, what in gauges.items():
            gauge = GaugeMetricFamily(f"skyray_sink_{name}", what, labels=labels)
            for one in figures:
                gauge.add_metric([one["name"]], int(one["state"] == "delivering") if name == "up" else one[name])
            yield gauge

    def _components(self) -> Iterator[Metric]:
        snapshot = self._door.snapshot
        if snapshot is None:
            return
        labels = ["component"]
        received = CounterMetricFamily("skyray_component_received_payloads", "Payloads received", labels=labels)
        emitted = CounterMetricFamily("skyray_component_emitted_payloads", "Payloads emitted", labels=labels)
        queue = GaugeMetricFamily("skyray_component_queue_payloads", "Payloads not taken yet", labels=labels)
        busy = GaugeMetricFamily("skyray_component_busy_ratio", "Share of time spent working", labels=labels)
        for name, one in snapshot.components.items():
            received.add_metric([name], one.received)
            emitted.add_metric([name], one.emitted)
            queue.add_metric([name], one.queue_depth)
            busy.add_metric([name], one.busy_share)
        yield from (received, emitted, queue, busy)


def exposition(door: Door) -> bytes:
    """All figures in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(door))
    return generate_latest(registry)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"skyray_{name}", what, value)


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(f"skyray_{name}", what, value)
