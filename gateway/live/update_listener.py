"""The driver's end of the socket on which a topology publishes updates: adds text and place, and writes them.

One thread for each connection; every incarnation of each delivery task opens one, and the watermark is the least of
those of an incarnation's tasks. An incarnation begins from a checkpoint, and publishes what is later. What is earlier
was sent before the checkpoint was made, but may not be read yet: so the first frame of an incarnation waits until the
frames up to that checkpoint are read. After it updates of older incarnations are dropped, and so are updates up to the
watermark that an incarnation repeats. Updates are written once the messages that they account for are on disk. Used by
`gateway.commands.live`; the other end is `bolts.publishing`, and `gateway.live.write_ahead_log` looks the texts up.
"""

import contextlib
import shutil
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from bolts.publishing import PublishedUpdates, decode
from gateway.live.in_flight import InFlight
from matching.model import CHANGES
from topology.core.frames import MAGIC

#: Bytes of updates that are written at a time, and updates whose texts are looked up at a time.
_PIECE_BYTES, _PIECE = 2**20, 100
#: Bytes of a `MessageText` besides its strings, in a dict.
_OWN_BYTES = 250
#: Head of a frame, which has its length (`topology.core.frames`).
_PREFIX = struct.Struct("<8sIIQQ")


class MessageText(NamedTuple):
    """Id, text and place of a message."""

    message_id: str
    text: str
    lon: float
    lat: float


def size_of(text: MessageText) -> int:
    """Bytes that a text has in memory, about."""
    return sys.getsizeof(text.text) + sys.getsizeof(text.message_id) + _OWN_BYTES


class Listener:
    """Listens while the block lasts.

    Parameters
    ----------
    write : callable
        Takes lines as bytes, each with its end.
    look_up : callable
        Seqs -> texts of these messages.
    in_flight : InFlight
        Advanced to each watermark.
    durable : callable
        Seq of the last message that is on disk; `settle` is called when it has grown.

    Attributes
    ----------
    address : str
        Path of the socket, in a folder that only this user may enter.
    updates : int
        Number written.
    failure : Exception or None
        The first error of writing; nothing is written after it.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        look_up: Callable[[Sequence[int]], Mapping[int, MessageText]],
        in_flight: InFlight,
        durable: Callable[[], int],
    ):
        self.updates = 0
        self.failure: BaseException | None = None
        self._write = write
        self._look_up = look_up
        self.in_flight = in_flight
        self._durable = durable
        self._incarnation, self._through = -1, -2
        self._through_of: dict[int, int] = {}  # of the tasks of this incarnation that have sent a frame
        self._collected = -1  # frames up to this watermark are read
        self._changed = threading.Condition()
        self._folder = Path(tempfile.mkdtemp(prefix="skyray-live-"))
        self.address = str(self._folder / "updates")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        self._socket.bind(self.address)
        self._socket.listen()
        threading.Thread(target=self._accept, name="listening", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def resume(self, through: int) -> None:
        """Start behind a checkpoint: the updates up to this seq were published by an earlier process."""
        self._collected = through

    def take(self, published: PublishedUpdates) -> None:
        """Write the updates of a frame once its messages are on disk, unless it is of an older incarnation."""
        with self._changed:
            if not self._await_turn(published, max(published.through, int(published.as_of.max(initial=-1)))):
                return
            new = np.flatnonzero(published.as_of > self.in_flight.through)
            if new.shape[0] and self.failure is None:
                try:
                    for piece in self._pieces(published, new):
                        self._write(piece)
                    self.updates += new.shape[0]
                except BaseException as error:
                    self.failure = error  # the driver raises it
            self._note(published)

    def settle(self) -> None:
        """Write what waits for messages that have become durable; for any thread."""
        with self._changed:
            self._changed.notify_all()

    def reached(self, incarnation: int) -> int:
        """The watermark that this incarnation, or a later one, has reached; -2 before its first frame."""
        with self._changed:
            return self._through if self._incarnation >= incarnation else -2

    def _await_turn(self, published: PublishedUpdates, last_seq: int) -> bool:
        """Wait until the frames before this one are read and a message is on disk; False for an older incarnation."""

        def is_older() -> bool:
            return published.incarnation < self._incarnation

        self._changed.wait_for(
            lambda: is_older() or (published.since <= self._collected and last_seq <= self._durable())
        )
        if is_older():
            return False
        if published.incarnation > self._incarnation:
            self._incarnation, self._collected = published.incarnation, published.since
            self._through, self._through_of = -2, {}
        return True

    def _advance(self, published: PublishedUpdates) -> None:
        """Advance the watermark, which all tasks of the incarnation have to reach."""
        self._through_of[published.task] = published.through
        if len(self._through_of) == published.tasks:
            self._through = min(self._through_of.values())

    def _note(self, published: PublishedUpdates) -> None:
        """Note that a frame is taken."""
        self._advance(published)
        self._collected = max(self._collected, self._through)
        self.in_flight.advance(self._through)
        self._changed.notify_all()

    def _pieces(self, published: PublishedUpdates, rows: np.ndarray) -> Iterator[bytes]:
        """Updates as lines, some at a time: each has the text of its message."""
        names, lines, size_bytes = published.names.strings(), list[bytes](), 0
        for first in range(0, rows.shape[0], _PIECE):
            some = [_encoded(row) for row in self._rows(published, rows[first : first + _PIECE], names)]
            lines += some
            size_bytes += sum(map(len, some))
            if size_bytes >= _PIECE_BYTES:
                yield b"".join(lines)
                lines, size_bytes = [], 0
        yield b"".join(lines)

    def _rows(self, published: PublishedUpdates, rows: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
        fields = (published.change, published.who, published.as_of, published.seq, published.score)
        columns = (column[rows].tolist() for column in fields)
        messages = self._look_up(sorted(set(published.seq[rows].tolist())))
        found = []
        for change, number, as_of, seq, score in zip(*columns, strict=True):
            message = messages[seq]
            row = {"change": CHANGES[change], "subscription_id": names[number], "as_of": as_of}
            row |= {"message_id": message.message_id, "seq": seq, "text": message.text}
            found.append(row | {"lon": message.lon, "lat": message.lat, "score": None if score != score else score})
        return found

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
                self.take(decode(frame))


def _encoded(row: dict[str, Any]) -> bytes:
    return msgspec.json.encode(row) + b"\n"
