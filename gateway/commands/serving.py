"""Makes the parts of a server, watches them while it runs, and decides when it has ended.

`LiveRun.run` calls `Watch.over` a few times a second, and behind every batch. Which part does what is documented in
`gateway.serve`; nothing here handles a request.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from gateway.commands import stream_options as stream
from gateway.commands.answering import Answering
from gateway.commands.delivering import Deliveries
from gateway.live.in_flight import InFlight
from gateway.live.opening import open_stream
from gateway.live.recording import record
from gateway.live.retain_settings import RetainSettings
from gateway.live.retaining import Retention
from gateway.live.subscription_files import subscribe_all
from gateway.serve.access import Access
from gateway.serve.app import make_app
from gateway.serve.asking import Asking
from gateway.serve.demo import RATE_PER_S, Announcer, DemoTraffic
from gateway.serve.door import Door
from gateway.serve.garbage import Garbage
from gateway.serve.hub import Hub
from gateway.serve.included import IncludedValues
from gateway.serve.limits import Limits
from gateway.serve.registry import Registry
from gateway.serve.releasing import MOST_PENDING_BYTES, Releaser
from gateway.serve.server import LOOPBACK, Server
from gateway.serve.sourced_rows import into_writer
from gateway.serve.tiles import Tiles
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import Parts
from gateway.serve.writer import LogWriter
from gateway.shell.interrupts import draining, end_in_order
from gateway.shell.logs import Noted, log_kind
from gateway.shell.terminal import as_json
from gateway.sinks import told_routes
from gateway.sinks.webhooks import routes as webhook_routes
from gateway.sinks.webhooks.figures import figures_of, summary_of
from gateway.sinks.webhooks.service import WebhookService
from gateway.sinks.webhooks.settings import WebhookSettings
from gateway.sources.feed import Feed
from gateway.sources.uris import source_of
from matching.errors import ConfigError, DeliveryError, EngineError
from matching.kinds import KINDS
from spouts.message_index import IndexFollower
from topology.core.executors.logs import driver_log
from topology.folder import FINISHED, INTERRUPTED
from topology.given import Given
from topology.live import LiveRun
from topology.preparing import Preparing
from topology.settings import LIVE_CREDITS
from topology.warmup import WORDS

#: Seconds between two looks at the parts of a server: `over` is called behind every batch, and a look takes 50 us.
_LOOK_S = 0.05
#: The longest time between two checkpoints, in seconds.
MOST_BETWEEN_CHECKPOINTS_S = 300.0


class Watch:
    """Checks the parts of a server at each call of `over`.

    Parameters
    ----------
    door : Door
    releaser : Releaser
    run : LiveRun
    server : Server
    hooks : WebhookService
    deliveries : Deliveries
    garbage : Garbage
    retention : Retention
    noted : Noted
    on_ready : callable
        Called once, when the updates of all messages that were in the log before the watch was made are released.
    on_look : callable
        Called by each `over` with the number of updates released so far.
    on_stop : callable
        Called once, when the server is to stop: from then on it refuses messages and changes.
    stopping : callable
        Returns whether the server is to stop (an interrupt).
    """

    def __init__(
        self,
        door: Door,
        releaser: Releaser,
        run: LiveRun,
        server: Server,
        hooks: WebhookService,
        deliveries: Deliveries,
        garbage: Garbage,
        retention: Retention,
        noted: Noted,
        on_ready: Callable[[], None],
        on_look: Callable[[int], None],
        on_stop: Callable[[], None],
        stopping: Callable[[], bool],
    ):
        self._door, self._releaser, self._run, self._server = door, releaser, run, server
        self._hooks, self._deliveries, self._garbage, self._noted = hooks, deliveries, garbage, noted
        self._retention = retention
        self._logged_before = door.wal.next_seq - 1
        self._first: int | None = None  # seq behind which the topology matches again
        self._next_s = 0.0
        self._on_ready, self._on_look, self._on_stop, self._stopping = on_ready, on_look, on_stop, stopping

    def over(self) -> bool:
        """Whether the stream has ended, all its updates are released, and every sink has got them or is unreachable.

        Raises
        ------
        EngineError
            The error of a part that has failed.
        """
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _LOOK_S
        door = self._door
        if not door.ready:
            self._look_whether_ready(self._releaser.reached(self._run.incarnation))
        for part in (door.feed, door.writer, self._releaser, self._hooks, self._retention):
            if part is not None and part.failure is not None:
                raise part.failure if isinstance(part.failure, EngineError) else DeliveryError(str(part.failure))
        self._deliveries.check()
        self._garbage.look(door.hub.ended)
        self._noted.look(time.monotonic())
        self._on_look(self._releaser.updates)
        if self._stopping() and not door.closing:
            door.closing = True
            if door.feed is not None:
                door.feed.finish()
            self._on_stop()
            door.writer.finish()
        if not (door.writer.ended and self._releaser.reached(self._run.incarnation) >= door.wal.next_seq - 1):
            return False
        self._server.call(door.hub.close)
        return self._deliveries.has_ended(0.0)

    def _look_whether_ready(self, reached: int) -> None:
        """Note how far the topology has matched what was in the log before."""
        door, last = self._door, self._logged_before
        if reached >= last:
            door.ready = True
            self._garbage.settle()
            door.starting.step(None)
            self._on_ready()
        elif self._first is None:
            self._first = max(reached, door.hub.log.head.boundary)
            if last > self._first:
                door.starting.step("matching what was logged")
        elif last > self._first:
            door.starting.reached((reached - self._first) / (last - self._first))

    def note(self, snapshot: Any) -> None:
        """Store a snapshot of the topology's metrics for the routes; `LiveRun.run` calls it as `on_progress`."""
        self._door.snapshot = snapshot
        self._noted.note(snapshot)


def serve_stream(
    answering: Answering,
    settings: Given,
    columns: dict[str, str],
    bounds: Limits,
    calling: WebhookSettings,
    offered: stream.ServerOptions,
    own: stream.StreamOptions,
    retained: RetainSettings,
    to: Sequence[str],
    json: bool,
) -> int:
    """Serve a stream until it is interrupted or fails; returns the exit code.

    Parameters
    ----------
    answering : Answering
        The server, which has no stream yet.
    settings : Given
        Of the stream's topology.
    columns : dict of str to str
        Columns of messages, by role.
    bounds : Limits
    calling : WebhookSettings
    offered : ServerOptions
    own : StreamOptions
    retained : RetainSettings
    to : sequence of str
        URIs of sinks.
    json : bool
        Whether the figures at the end are JSON.

    Raises
    ------
    EngineError
        For settings that do not fit each other, and the error of a part that has failed.
    """
    announcer = Announcer(own.log_format)
    out, ring, starting, server, serving, url = answering
    host, rate = offered.host, offered.demo_rate or RATE_PER_S
    linger_s = (5.0 if own.linger_ms is None else own.linger_ms) / 1000.0
    map_tiles = Tiles.of(offered.tiles, offered.tiles_by)
    source = source_of(own.from_) if own.from_ else None
    deliveries = Deliveries(to)
    if settings.get("checkpoint_every") == 0:
        raise ConfigError("recovery.checkpoint_every 0: clients that connect again read from checkpoints; leave it out")
    if settings.get("checkpoint_every", 0) > MOST_BETWEEN_CHECKPOINTS_S:
        raise ConfigError(
            f"recovery.checkpoint_every {settings['checkpoint_every']:g}: updates stay in memory until a checkpoint; "
            f"once it is full, no more messages are taken; give at most {MOST_BETWEEN_CHECKPOINTS_S:g}"
        )
    log = driver_log()
    with ExitStack() as stack:
        starting.step("reading the log")
        garbage = stack.enter_context(Garbage())
        given = out, settings, columns, own.vocabulary, own.attribute, own.stem
        registry = Registry()
        reading = {"strict": own.strict_attributes, "numbers": own.numbers, "fold_accents": own.fold_accents}
        with garbage.loading():
            opened = open_stream(stack, *given, lambda line: None, registry, **reading, on_read=starting.reached)
        config, admission, mapping, wal, earlier = opened
        executor = config.executor
        in_flight = InFlight(config.credits or LIVE_CREDITS)
        vocabulary = admission.vocabulary
        wanted = registry.includes, registry.is_standing
        included = IncludedValues(*wanted, wal.values, lambda: vocabulary.attributes, wal.ends)
        parts = Parts(out / "updates", wal.ends, wal.look_up, included)
        hub = Hub(UpdateLog(parts), registry, lambda: wal.next_seq, wal.tag_of, wal.has_texts)
        in_process = executor == "local"
        releaser = Releaser(in_flight, wal.ends, lambda: wal.durable_through, hub.deliver, in_process)
        in_flight.has_room = lambda: hub.log.has_room and releaser.pending_bytes < MOST_PENDING_BYTES
        stack.enter_context(releaser)
        live = {"live": wal.settings}
        run = LiveRun(config, wal.run, str(wal.log), releaser.address, live, earlier, lambda: wal.size_bytes)
        if earlier:
            in_flight.add(wal.next_seq - 1, [])  # updates of the logged messages come first
        releaser.resume(hub.log.resume(run.saved_delivery()))
        preparing = stack.enter_context(Preparing.of(config, announcer.kind if offered.demo else log_kind))
        needed = [WORDS, *sorted(registry.kinds())]
        for name in needed:
            preparing.is_ready(name)  # from now on, beside what follows
        preparing.compile_ahead(kind.name for kind in sorted(KINDS.run, key=lambda kind: kind.windowed))
        writer = LogWriter(
            admission, registry, wal, in_flight, own.batch, linger_s, mapping,
            most_owned=bounds.most_subscriptions, preparing=preparing,
        )  # fmt: skip
        if not earlier and own.subscriptions:
            starting.step("reading files of subscriptions")
            subscribe_all(writer.batching, own.subscriptions)
        wal.settle = releaser.settle
        access = Access(ring, bounds, offered.require_key or host not in LOOPBACK)
        door = Door(admission, registry, wal, writer, hub, releaser, access)
        door.starting = starting
        if source is not None:
            door.feed = Feed(source, wal, into_writer(writer))
        asking = Asking(config, admission, registry, wal, mapping)
        stack.enter_context(IndexFollower(asking.index, lambda: wal.next_seq, door.questions.is_busy))
        hooks = WebhookService(out, hub.log, registry, calling, logged_before=wal.next_seq - 1)

        def wake() -> None:
            hooks.wake()
            deliveries.wake()

        hub.on_release, door.more_figures, door.sinks = wake, [lambda: figures_of(hooks)], deliveries.figures
        door.webhooks = lambda: summary_of(hooks)
        retention = Retention(wal, admission.window, retained, [hooks.reached, deliveries.reached])
        more = [webhook_routes.routes(door, hooks), told_routes.routes(door, hooks)]
        web = make_app(door, asking, _names(host, *offered.allowed_host), offered.allow_origin, more, map_tiles)
        starting.step("loading kernels")
        stopping = stack.enter_context(draining())
        stack.enter_context(serving.pop_all())  # it ends before what is opened above
        hub.start(server.running)
        starting.app = web
        stack.enter_context(hooks)
        stack.callback(server.call, hub.close)
        stack.callback(deliveries.close)
        deliveries.begin(out, run.identity, lambda: hub.log, lambda: wal.next_seq)
        writer.begin()
        stack.enter_context(retention)
        if door.feed is not None:
            door.feed.begin()
            stack.callback(door.feed.close)
            log.info("reads", source=door.feed.name)
        if earlier:
            counts = {"messages": wal.next_seq - wal.mark_count, "subscriptions": len(registry)}
            log.info("resumes", **counts, folder=str(out))

        made = DemoTraffic(writer, rate, wal.next_seq)
        stack.callback(made.stop)

        watch = Watch(
            door, releaser, run, server, hooks, deliveries, garbage, retention, Noted(lambda: _counted(door)),
            on_ready=lambda: log.info("ready", url=url, subscriptions=len(registry)),
            on_look=announcer.updates if offered.demo else lambda _: None,
            on_stop=made.stop,
            stopping=stopping,
        )  # fmt: skip
        for number, name in enumerate(needed):
            starting.reached(number / len(needed))
            preparing.wait([name])
        preparing.leave_a_core()
        starting.step("starting Ray" if executor == "ray" else "loading the checkpoint")
        if offered.demo:
            announcer.begins(url, out, rate)
            made.begin()
        stopping()  # from here on the first interrupt drains

        try:
            report = run.run(watch.over, lambda: wal.next_seq, watch.note)
        finally:
            door.closing = True
            writer.stopped = lambda: True
        try:
            record(wal, admission, INTERRUPTED if stopping() else FINISHED, report)
        except EngineError as error:
            run.fail(error)
            raise
        figures = door.figures() | {"updates": releaser.updates, "digest": report["digest"], "out": str(out)}
        if json:
            stream.say(as_json(figures))
        else:
            ended = ("messages", "updates", "subscriptions", "refused", "digest")
            log.info("ended", **{name: figures[name] for name in ended}, folder=str(out))
        for line in deliveries.missing():
            log.warning("sink_lacks_updates", what=line, do="the same command delivers what waits")
        if offered.demo:
            announcer.ended(out)
    end_in_order()
    return 0


def _counted(door: Door) -> dict[str, dict[str, tuple[int, str]]]:
    """As `Noted` takes it."""
    rows = {reason: (count, door.writer.last_refused.get(reason, "")) for reason, count in door.writer.refused.items()}
    return {"rows_refused": rows, "slow_clients": {"slow": (door.hub.gaps, "")}}


def _names(*hosts: str) -> frozenset[str]:
    """Names by which the server is called."""
    return frozenset((*LOOPBACK, "[::1]", *(host.lower() for host in hosts)))
