"""The driver's end of the socket at which a topology tells updates at once: they get text and place, and are written.

One thread for each connection, of which there is one for every incarnation of the delivery bolt; what an older one
still has to say is let pass. What an incarnation repeats of what was told to its end before it is not written again.
Used by `gateway.commands.live`; the other end is `bolts.publishing`, and `gateway.live.write_ahead_log` knows what
messages said.
"""

import contextlib
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from bolts.publishing import PublishedUpdates, decode
from gateway.live.in_flight import InFlight
from matching.model import CHANGES
from topology.core.frames import MAGIC

#: Up to where a frame says how long it is (`topology.core.frames`).
_PREFIX = struct.Struct("<8sIIQQ")


class MessageText(NamedTuple):
    """What a message was."""

    message_id: str
    text: str
    lon: float
    lat: float


class Listener:
    """Listens while the block lasts.

    Parameters
    ----------
    write : callable
        Takes lines as bytes, each with its end.
    look_up : callable
        Seqs -> what these messages were.
    in_flight : InFlight
        Is told how far the topology has come.

    Attributes
    ----------
    address : str
        Path of the socket, in a folder that nobody else may enter.
    updates : int
        How many were written.
    failure : Exception or None
        What kept it from writing; from then on it listens and writes nothing.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        look_up: Callable[[Sequence[int]], Mapping[int, MessageText]],
        in_flight: InFlight,
    ):
        self.updates = 0
        self.failure: BaseException | None = None
        self._write = write
        self._look_up = look_up
        self.in_flight = in_flight
        self._incarnation, self._through = -1, -2
        self._turn = threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="skyray-live-"))
        self.address = str(self._folder / "told")
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

    def take(self, told: PublishedUpdates) -> None:
        """Write what a frame tells, unless it is of an older incarnation."""
        with self._turn:
            if told.incarnation < self._incarnation:
                return
            self._incarnation = told.incarnation
            new = np.flatnonzero(told.as_of > self.in_flight.through)
            if new.shape[0] and self.failure is None:
                try:
                    self._write(b"".join(map(_encoded, self._rows(told, new))))
                    self.updates += new.shape[0]
                except BaseException as error:
                    self.failure = error  # whoever drives the topology asks for it
            self._through = told.through
            self.in_flight.advance(told.through)

    def reached(self, incarnation: int) -> int:
        """Up to which message everything has been told since the run has been in this incarnation; -2: nothing was."""
        with self._turn:
            return self._through if self._incarnation >= incarnation else -2

    def _rows(self, told: PublishedUpdates, rows: np.ndarray) -> list[dict[str, Any]]:
        names = told.names.strings()
        columns = (column[rows].tolist() for column in (told.change, told.who, told.as_of, told.seq, told.score))
        said = self._look_up(sorted(set(told.seq[rows].tolist())))
        found = []
        for change, who, as_of, seq, score in zip(*columns, strict=True):
            message = said[seq]
            row = {"change": CHANGES[change], "subscription_id": names[who], "as_of": as_of}
            row |= {"message_id": message.message_id, "seq": seq, "text": message.text}
            found.append(row | {"lon": message.lon, "lat": message.lat, "score": None if score != score else score})
        return found

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # the block has ended
            threading.Thread(target=self._read, args=(connection,), name="told", daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        """Frame after frame; one that is cut off by the death of who sent it ends the connection."""
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
