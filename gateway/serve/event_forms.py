"""Forms of events for clients: Server-Sent Events, and lines of JSON."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from gateway.serve.released import JSON_BEGINS, EventBytes, UpdateRows

#: Milliseconds after which a client should connect again.
RETRY_MS = 1_000


class Form(ABC):
    """Encoder of events: Server-Sent Events, or lines of JSON."""

    media_type: ClassVar[str]

    #: As of `UpdateRows.events`.
    before: ClassVar[tuple[bytes, ...]]
    end: ClassVar[bytes]

    def updates(self, rows: UpdateRows) -> EventBytes:
        """The events of updates."""
        return rows.events(self.before, self.end)

    @abstractmethod
    def named(self, name: str, data: Mapping[str, object], event_id: str | None) -> bytes:
        """A `progress`, `gap` or `snapshot` event; with an id a client resumes from there."""

    def hint(self) -> bytes:
        """The event that says when a client should reconnect."""
        return b""


class Events(Form):
    """Server-Sent Events."""

    media_type = "text/event-stream"
    before = b"id: ", b"\ndata: " + JSON_BEGINS
    end = b"\n\n"

    def named(self, name: str, data: Mapping[str, object], event_id: str | None) -> bytes:
        head = b"" if event_id is None else b"id: %s\n" % event_id.encode()
        return head + b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))

    def hint(self) -> bytes:
        return b"retry: %d\n\n" % RETRY_MS


class JsonLines(Form):
    """Lines of JSON."""

    media_type = "application/x-ndjson"
    before = (JSON_BEGINS,)
    end = b"\n"

    def named(self, name: str, data: Mapping[str, object], event_id: str | None) -> bytes:
        head = {} if event_id is None else {"id": event_id}
        return msgspec.json.encode({name: {**head, **data}}) + b"\n"


EVENTS, LINES = Events(), JsonLines()
