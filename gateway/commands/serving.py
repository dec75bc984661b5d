"""Watches the parts of a running server, and decides when the server has ended.

`gateway.commands.serve` makes the parts and passes `Watch.over` to `LiveRun.run`, which calls it a few times a second.
Which part does what is documented in `gateway.serve`; nothing here handles a request.
"""

from collections.abc import Callable
from typing import Any

from gateway.commands.delivering import Deliveries
from gateway.serve.door import Door
from gateway.serve.garbage import Garbage
from gateway.serve.releasing import Releaser
from gateway.serve.server import Server
from gateway.sinks.webhooks.service import Webhooks
from matching.errors import DeliveryError, EngineError
from topology.live import LiveRun


class Watch:
    """Checks the parts of a server at each call of `over`.

    Parameters
    ----------
    door : Door
    releaser : Releaser
    run : LiveRun
    server : Server
    hooks : Webhooks
    deliveries : Deliveries
    garbage : Garbage
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
        hooks: Webhooks,
        deliveries: Deliveries,
        garbage: Garbage,
        on_ready: Callable[[], None],
        on_look: Callable[[int], None],
        on_stop: Callable[[], None],
        stopping: Callable[[], bool],
    ):
        self._door, self._releaser, self._run, self._server = door, releaser, run, server
        self._hooks, self._deliveries, self._garbage = hooks, deliveries, garbage
        self._logged_before = door.wal.next_seq - 1
        self._on_ready, self._on_look, self._on_stop, self._stopping = on_ready, on_look, on_stop, stopping

    def over(self) -> bool:
        """Whether the stream has ended, all its updates are released, and every sink has got them or is unreachable.

        Raises
        ------
        EngineError
            The error of a part that has failed.
        """
        door = self._door
        if not door.ready and self._releaser.reached(self._run.incarnation) >= self._logged_before:
            door.ready = True
            self._garbage.collect()
            self._on_ready()
        for part in (door.feed, door.writer, self._releaser, self._hooks):
            if part is not None and part.failure is not None:
                raise part.failure if isinstance(part.failure, EngineError) else DeliveryError(str(part.failure))
        self._deliveries.check()
        self._garbage.look(door.hub.ended)
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

    def note(self, snapshot: Any) -> None:
        """Store a snapshot of the topology's metrics for the routes; `LiveRun.run` calls it as `on_progress`."""
        self._door.snapshot = snapshot
