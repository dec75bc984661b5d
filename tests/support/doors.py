"""The API of `skyray serve` over a writer, without a topology: nothing is matched."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.serve.access import Access
from gateway.serve.app import make_app
from gateway.serve.asking import Asking
from gateway.serve.door import Door
from gateway.serve.hub import Hub
from gateway.serve.keys import KeyRing
from gateway.serve.limits import Limits
from gateway.serve.releasing import Releaser
from gateway.serve.server import Server, bind
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import Parts
from gateway.sinks.webhooks import routes as webhook_routes
from gateway.sinks.webhooks.service import WebhookService
from gateway.sinks.webhooks.settings import WebhookSettings
from tests.support.writing import WriterStream
from topology.settings import KEYS


@contextmanager
def door_of(
    out: Path, limits: Limits | None = None, calling: WebhookSettings | None = None, **options: Any
) -> Iterator[tuple[WriterStream, Door, int]]:
    """The stream, its door and its port; the keys are those of the folder."""
    with WriterStream(out, **options) as stream, bind("127.0.0.1", 0) as listening:
        wal = stream.wal
        hub = Hub(
            UpdateLog(Parts(out / "updates", wal.ends, wal.look_up)),
            stream.registry,
            lambda: wal.next_seq,
            wal.tag_of,
            wal.has_texts,
        )
        releaser = Releaser(stream.in_flight, wal.ends, lambda: wal.durable_through, hub.deliver)
        with releaser:
            access = Access(KeyRing(out / KEYS), limits or Limits())
            door = Door(stream.admission, stream.registry, wal, stream.writer, hub, releaser, access)
            asking = Asking(stream.config, stream.admission, stream.registry, wal, stream.mapping)
            hooks = WebhookService(out, hub.log, stream.registry, calling or WebhookSettings())
            more = [webhook_routes.routes(door, hooks)]
            server = Server(make_app(door, asking, frozenset(["127.0.0.1"]), (), more), listening, 100)
            with server, hooks:
                hub.start(server.running)
                stream.writer.begin()
                yield stream, door, listening.getsockname()[1]
