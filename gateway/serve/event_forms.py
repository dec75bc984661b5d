"""Forms of events for clients: Server-Sent Events, and lines of JSON.

Used by `gateway.serve.hub`, and by the routes of updates, results and questions.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from gateway.serve.releasing import Update

#: Milliseconds after which a client should connect again.
RETRY_MS = 1_000


class Form(ABC):
    """Encoder of events: Server-Sent Events, or lines of JSON."""

    media_type: ClassVar[str]

    @abstractmethod
    def update(self, update: Update, tag: str = "") -> bytes:
        """An update; the tag of its boundary goes into its id."""

    @abstractmethod
    def named(self, name: str, data: Mapping[str, object], event_id: str | None) -> bytes:
        """A `progress`, `gap` or `snapshot` event; with an id a client resumes from there."""

    def hint(self) -> bytes:
        """The event that says when a client should reconnect."""
        return b""


class Events(Form):
    """Server-Sent Events."""

    media_type = "text/event-stream"

    def update(self, update: Update, tag: str = "") -> bytes:
        return b"id: %s\ndata: %s\n\n" % (tagged(update.position, tag).encode(), _data(update, tag))

    def named(self, name: str, data: Mapping[str, object], event_id: str | None) -> bytes:
        head = b"" if event_id is None else b"id: %s\n" % event_id.encode()
        return head + b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))

    def hint(self) -> bytes:
        return b"retry: %d\n\n" % RETRY_MS


class Lines(Form):
    """Lines of JSON."""

    media_type = "application/x-ndjson"

    def update(self, update: Update, tag: str = "") -> bytes:
        return _data(update, tag) + b"\n"

    def named(self, name: str, data: Mapping[str, object], event_id: str | None) -> bytes:
        head = {} if event_id is None else {"id": event_id}
        return msgspec.json.encode({name: {**head, **data}}) + b"\n"


EVENTS, LINES = Events(), Lines()


def tagged(position: str, tag: str) -> str:
    """The id of an event at a position, with the tag of the log (`WriteAheadLog.tag_of`), if it has one."""
    return f"{position}-{tag}" if tag else position


def _data(update: Update, tag: str) -> bytes:
    """The JSON of an update, which begins with its id, with the tag in the id."""
    begins = b'{"id":"' + update.position.encode()
    assert update.data.startswith(begins), "an update begins with its id"
    return begins + b"-" + tag.encode() + update.data[len(begins) :] if tag else update.data
