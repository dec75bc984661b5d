"""Where a topology publishes its updates to: in this process a function, between processes a local socket.

A connection of each delivery task of each incarnation has a thread. `bolts.publishing` is the other end, and
`gateway.serve.releasing` takes what arrives.
"""

import contextlib
import shutil
import socket
import struct
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from bolts.publishing import PublishedUpdates, close_direct, decode, open_direct
from topology.core.frames import MAGIC

#: Bytes of updates that wait for the thread that takes them.
MOST_WAITING_BYTES = 16 * 2**20
#: Bytes of a `MessageText` besides its strings, in a dict.
_OWN_BYTES = 250
#: Head of a frame, which has its length (`topology.core.frames`).
_PREFIX = struct.Struct("<8sIIQQ")


class MessageText(NamedTuple):
    """Id, text and place of a message, in a stream of objects the id of its object, and the language of its words."""

    message_id: str
    text: str
    lon: float
    lat: float
    object_id: str = ""
    lang: str = ""


def size_of(text: MessageText) -> int:
    """Bytes that a text has in memory, about."""
    return sys.getsizeof(text.text) + sys.getsizeof(text.message_id) + _OWN_BYTES


def size_of_updates(published: PublishedUpdates) -> int:
    """Bytes of the columns."""
    columns = (published.as_of, published.seq, published.change, published.score, published.who, *published.names)
    return sum(column.nbytes for column in columns)


class UpdateInlet:
    """Takes what is published while the block lasts.

    Parameters
    ----------
    take : callable
        Called with `PublishedUpdates` by the thread that publishes, or by that of a connection.
    in_process : bool
        The topology runs in this process: nothing listens at the address.
    threaded : bool
        What is published in this process is taken by a thread, so that the topology goes on meanwhile.

    Attributes
    ----------
    address : str
        What the topology publishes to: a path in a folder that only this user may enter.
    """

    def __init__(self, take: Callable[[PublishedUpdates], None], in_process: bool, threaded: bool):
        self._take = take
        self._threaded = threaded
        self._waiting: deque[PublishedUpdates] = deque()
        self._size_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._in_process = in_process
        self._folder = Path(tempfile.mkdtemp(prefix="skyray-live-"))
        self.address = str(self._folder / "updates")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        if self._in_process:
            open_direct(self.address, self._put if self._threaded else self._take)
            if self._threaded:
                threading.Thread(target=self._take_all, name="updates", daemon=True).start()
            return self
        self._socket.bind(self.address)
        self._socket.listen()
        threading.Thread(target=self._accept, name="listening", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        close_direct(self.address)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _put(self, published: PublishedUpdates) -> None:
        """Leave updates to the thread; waits while it has too many."""
        with self._changed:
            self._changed.wait_for(lambda: self._size_bytes < MOST_WAITING_BYTES or self._closed)
            self._waiting.append(published)
            self._size_bytes += size_of_updates(published)
            self._changed.notify_all()

    def _take_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                published = self._waiting[0]
            self._take(published)
            with self._changed:
                self._size_bytes -= size_of_updates(self._waiting.popleft())
                self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # the block has ended
            threading.Thread(target=self._read, args=(connection,), name="updates", daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        """Read frames; a frame that its sender did not finish ends the connection."""
        with connection, connection.makefile("rb") as file:
            while len(prefix := file.read(_PREFIX.size)) == _PREFIX.size:
                magic, *_, size_bytes, _ = _PREFIX.unpack(prefix)
                if magic != MAGIC:
                    return
                frame = prefix + file.read(size_bytes - _PREFIX.size)
                if len(frame) < size_bytes:
                    return
                self._take(decode(frame))
