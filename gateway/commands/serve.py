"""`skyray serve`: messages and subscriptions by HTTP, updates by Server-Sent Events.

`gateway/commands/serve.py` -> `gateway/serve/app.py` (the API) -> `gateway/serve/writer.py` (batches) ->
`gateway/live/write_ahead_log.py` (the log) -> `topology/live.py` -> the bolts of any run -> `bolts/publishing.py` ->
`gateway/serve/releasing.py` -> `gateway/serve/hub.py` (clients). While it runs: `gateway/commands/serving.py`.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from inspect import Parameter
from ipaddress import ip_network
from typing import Annotated

import typer

from gateway.commands import stream_options as stream
from gateway.commands.run import READ, UpdateSinks
from gateway.shell.options import Command, Late, example, of_signature, shares
from gateway.shell.terminal import Terminal, as_json, cell
from matching.errors import ConfigError, EngineError
from matching.extras import require
from topology.given import Given

app = typer.Typer()
#: Settings that the help page shows.
SHOWN = (
    *(*stream.SHOWN, "host", "port", "keys", "require_key", "allowed_host", "allow_origin", "trusted_proxy", "demo"),
)
#: The longest time between two checkpoints, in seconds.
MOST_BETWEEN_CHECKPOINTS_S = 300.0


def limit_options() -> Iterator[Parameter]:
    """The options that bound what callers do."""
    from gateway.serve.limits import Limits

    return of_signature(Limits)


def webhook_options() -> Iterator[Parameter]:
    """The options of webhooks."""
    from gateway.sinks.webhooks.settings import WebhookSettings

    return of_signature(WebhookSettings, lambda name: name.removeprefix("webhook_"))


@app.command(cls=Command, epilog=example("skyray serve --demo"))
@shares("server", "columns", *READ[:-1], shown=SHOWN)
def serve(
    settings: Annotated[Given, Late(stream.live_settings)],
    columns: Annotated[Given, Late(stream.column_options)],
    limits: Annotated[Given, Late(limit_options, "limits")],
    webhooks: Annotated[Given, Late(webhook_options, "webhooks")],
    server_options: Annotated[Given, Late(lambda: of_signature(stream.ServerOptions))],
    stream_options: Annotated[Given, Late(stream.stream_options)],
    to: UpdateSinks = None,
    json: Annotated[bool, typer.Option("--json", help="Figures at the end as JSON on standard error.")] = False,
) -> int:
    """Serve a live stream over HTTP: publish messages, subscribe, and follow updates.

    What is answered with 200 is on disk, and survives a crash; the same command resumes the stream, and clients that
    connect again get every update once. GET /openapi.json describes the API. With --from it also reads the messages of
    a broker, each once; with --to it delivers all updates to a database or a broker. With --demo there is something to
    see in the first minute: a page, updates, and two commands to copy.
    """
    require("serve", "skyray serve", "pipe lines through `skyray live`")
    from topology.core.places import require_local

    offered, own = stream.ServerOptions(**server_options), stream.StreamOptions(**stream_options)
    require_local(out=own.out, vocabulary=own.vocabulary)
    from gateway.commands.delivering import Deliveries
    from gateway.commands.serving import Watch
    from gateway.live.in_flight import InFlight
    from gateway.live.opening import open_stream
    from gateway.live.recording import record
    from gateway.serve.access import Access
    from gateway.serve.app import make_app
    from gateway.serve.asking import Asking
    from gateway.serve.demo import RATE_PER_S, Announcer, Demo, folder_of
    from gateway.serve.door import Door
    from gateway.serve.garbage import Garbage
    from gateway.serve.hub import Hub
    from gateway.serve.keys import KeyRing
    from gateway.serve.limits import Limits
    from gateway.serve.registry import Registry
    from gateway.serve.releasing import MOST_PENDING_BYTES, Releaser
    from gateway.serve.server import LOOPBACK, Server, bind
    from gateway.serve.sourced_rows import into_writer
    from gateway.serve.tiles import Tiles
    from gateway.serve.update_log import UpdateLog
    from gateway.serve.update_parts import Parts
    from gateway.serve.writer import Writer
    from gateway.shell.interrupts import draining
    from gateway.sinks.webhooks import routes as webhook_routes
    from gateway.sinks.webhooks.figures import figures_of, summary_of
    from gateway.sinks.webhooks.service import Webhooks
    from gateway.sinks.webhooks.settings import WebhookSettings
    from gateway.sources.feed import Feed
    from gateway.sources.uris import source_of
    from topology.folder import FINISHED, INTERRUPTED, KEYS
    from topology.live import LiveRun
    from topology.preparing import Preparing
    from topology.settings import LIVE_CREDITS
    from topology.warmup import WORDS

    announcer = Announcer(stream.say)
    out = folder_of(own.out, offered.demo_rate, offered.demo)
    if out is None:
        raise ConfigError("--out: name the folder of the stream; or add --demo")
    host, rate = offered.host, offered.demo_rate or RATE_PER_S
    linger_s = (5.0 if own.linger_ms is None else own.linger_ms) / 1000.0
    map_tiles = Tiles.of(offered.tiles, offered.tiles_by)
    source = source_of(own.from_) if own.from_ else None
    deliveries = Deliveries(to or (), lambda line: stream.say(f"serve: {line}"))
    proxies = [_network(text) for text in offered.trusted_proxy]
    bounds, ring = Limits(**limits), KeyRing(offered.keys or out / KEYS)
    calling = WebhookSettings(**webhooks)
    if host not in LOOPBACK and not ring.current():
        raise ConfigError(
            f"--host {host}: other machines could publish and read without a key; make one first: "
            f"skyray keys create {f'--keys {offered.keys}' if offered.keys else f'--out {out}'} --scope admin"
        )
    if settings.get("checkpoint_every") == 0:
        raise ConfigError("recovery.checkpoint_every 0: clients that connect again read from checkpoints; leave it out")
    if settings.get("checkpoint_every", 0) > MOST_BETWEEN_CHECKPOINTS_S:
        raise ConfigError(
            f"recovery.checkpoint_every {settings['checkpoint_every']:g}: updates stay in memory until a checkpoint; "
            f"once it is full, no more messages are taken; give at most {MOST_BETWEEN_CHECKPOINTS_S:g}"
        )
    terminal = Terminal()
    with ExitStack() as stack:
        listening = stack.enter_context(bind(host, offered.port))
        starting = stack.enter_context(ExitStack())
        step = starting.enter_context(terminal.steps("skyray serve"))
        step("loading words and subscriptions")
        garbage = stack.enter_context(Garbage())
        given = out, settings, stream.named_columns(columns), own.vocabulary, own.attribute, own.stem
        registry = Registry()
        reading = {"strict": own.strict_attributes, "numbers": own.numbers}
        opened = open_stream(stack, *given, lambda line: None, registry, **reading)
        config, admission, mapping, wal, earlier = opened
        executor = config.executor
        in_flight = InFlight(config.credits or LIVE_CREDITS)
        parts = Parts(out / "updates", wal.ends, wal.look_up)
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
        preparing = stack.enter_context(Preparing.of(config, *([announcer.kind] if offered.demo else [])))
        writer = Writer(
            admission, registry, wal, in_flight, own.batch, linger_s, mapping,
            most_owned=bounds.most_subscriptions, preparing=preparing,
        )  # fmt: skip
        if not earlier:
            stream.subscribe_all(writer, own.subscriptions)
        wal.settle = releaser.settle
        access = Access(ring, bounds, offered.require_key or host not in LOOPBACK)
        door = Door(admission, registry, wal, writer, hub, releaser, access)
        if source is not None:
            door.feed = Feed(source, wal, into_writer(writer, stream.say))
        asking = Asking(config, admission, registry, wal, mapping)
        hooks = Webhooks(out, hub.log, registry.last, calling)

        def wake() -> None:
            hooks.wake()
            deliveries.wake()

        hub.on_release, door.more_figures, door.sinks = wake, [lambda: figures_of(hooks)], deliveries.figures
        door.webhooks = lambda: summary_of(hooks)
        more = [webhook_routes.routes(door, hooks)]
        web = make_app(door, asking, _names(host, *offered.allowed_host), offered.allow_origin, more, map_tiles)
        server = Server(web, listening, hub.start, bounds.most_connections, proxies)
        step("starting Ray" if executor == "ray" else "loading kernels")
        stopping = stack.enter_context(draining())
        stack.enter_context(server)
        stack.enter_context(hooks)
        stack.callback(server.call, hub.close)
        stack.callback(deliveries.close)
        deliveries.begin(out, run.identity, lambda: hub.log, lambda: wal.next_seq)
        writer.begin()
        if door.feed is not None:
            door.feed.begin()
            stack.callback(door.feed.close)
            stream.say(f"serve: reads {door.feed.name}")
        starting.close()
        name, number = listening.getsockname()[:2]
        if earlier:
            stream.say(f"serve: resumes after {wal.next_seq - len(wal.marks):,} messages in {cell(out)}")
        stream.say(f"serve: {len(registry):,} subscriptions; listens on http://{_in_url(name)}:{number}")

        made = Demo(writer, rate, wal.next_seq)
        stack.callback(made.stop)

        watch = Watch(
            door, releaser, run, server, hooks, deliveries, garbage,
            on_ready=lambda: stream.say("serve: ready"),
            on_look=announcer.updates if offered.demo else lambda _: None,
            on_stop=made.stop,
            stopping=stopping,
        )  # fmt: skip
        preparing.wait({WORDS, *registry.kinds()})
        preparing.leave_a_core()
        if offered.demo:
            announcer.begins(f"http://{_in_url(name)}:{number}", out, rate)
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
        ended = ", ".join(f"{figures[name]:,} {name}" for name in ("messages", "updates", "subscriptions", "refused"))
        stream.say(
            as_json(figures)
            if json
            else f"serve: ended after {ended}; digest {report['digest']}; everything is in {cell(out)}"
        )
        for line in deliveries.missing():
            stream.say(f"serve: {line}; the same command delivers what waits")
        if offered.demo:
            announcer.ended(out)
    return 0


def _names(*hosts: str) -> frozenset[str]:
    """Names by which the server is called."""
    from gateway.serve.server import LOOPBACK

    return frozenset((*LOOPBACK, "[::1]", *(host.lower() for host in hosts)))


def _network(text: str) -> str:
    """An address or a network of --trusted-proxy. Raises ConfigError."""
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ConfigError(f"--trusted-proxy {text}: {error}; give an address, or a network as 10.0.0.0/8") from None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
