"""Figures for Prometheus: of the log, of clients, and of each component of the topology."""

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.runs.metrics import (
    counter,
    gauge,
    latency_family,
    refused_family,
    registry_of,
    sink_families,
    source_families,
    topology_families,
)
from gateway.serve.door import Door

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Figures(Collector):
    """The figures of a stream, read when they are wanted. No label has a subscription."""

    def __init__(self, door: Door):
        self._door = door

    def collect(self) -> Iterator[Metric]:
        door = self._door
        wal, writer, hub, registry = door.wal, door.writer, door.hub, door.registry
        yield gauge("ready", "1 while messages are matched", int(door.ready and not door.closing))
        yield counter("messages", "Messages that are logged", wal.next_seq - len(wal.marks))
        yield counter("batches", "Batches that are logged", len(wal.ends))
        yield counter("duplicate_messages", "Messages that were sent again", writer.duplicates)
        yield counter("expired_subscriptions", "Subscriptions whose time was over", writer.expired)
        yield refused_family(writer.refused)
        yield gauge("waiting_rows", "Rows that wait to be logged", writer.waiting)
        yield gauge("subscriptions", "Active subscriptions", len(registry))
        yield gauge("broad_subscriptions", "Active subscriptions that require nothing", registry.broad)
        yield counter("released_updates", "Updates that are complete", door.updates())
        yield counter("sent_updates", "Updates that were sent, each for each client", hub.sent)
        yield counter("slow_clients", "Clients that got a gap", hub.gaps)
        yield gauge("clients", "Clients that follow", hub.clients)
        yield gauge("messages_behind", "Logged messages whose updates are not released", door.behind())
        yield latency_family(door.latency)
        for figures in door.more_figures:
            yield from figures()
        if door.feed is not None:
            yield from source_families(door.feed.figures())
        yield from sink_families(door.sinks())
        if door.snapshot is not None:
            yield from topology_families(door.snapshot)


def exposition(door: Door) -> bytes:
    """All figures in Prometheus' text format."""
    return generate_latest(registry_of(Figures(door)))
