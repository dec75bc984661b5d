"""Messages about objects: a later version replaces the earlier one, a deletion ends it.

Only `skyline` subscriptions listen to that (`matching.naive` says how). The message spout sees every message and its
object, so it works out here what each batch has ended, and sends along what the ended messages said
(`bolts.payloads.StreamBatch`): a router that sent a message somewhere sends its end to the same place, without
remembering it. Read on in `bolts.distribution`.
"""

from collections import deque
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from matching.model import NO_MESSAGES, Int64, MessageBatch, join_messages
from matching.window import Boundary


class Objects(NamedTuple):
    """Which object each of n messages is about (a later version replaces the earlier), and whether it deletes it."""

    names: list[str]
    deleted: NDArray[np.bool_]


class _Piece(NamedTuple):
    """Rows that a source has read, with the names of their objects."""

    messages: MessageBatch
    names: list[str]
    longest_life: int


class Versions:
    """Which messages a later version of their object, or a deletion, ends in each batch, and what they said.

    Where no rows are fed, nothing is kept and nothing is paid. Else the rows of the window are kept as the source read
    them, and the current version of each object of the window by its name: what has expired is forgotten, so that
    memory stays flat however long the stream is.
    """

    def __init__(self):
        self.ended = 0
        self._current: dict[str, int] = {}  # object -> seq of its version
        self._pieces: deque[_Piece] = deque()
        self._ends: deque[tuple[int, int]] = deque()  # seq of the message that ends, seq of the one that is ended

    def feed(self, messages: MessageBatch, objects: Objects) -> None:
        """Take notice of the next messages of the stream, dense in seq, from its first on. O(messages)."""
        if not len(messages):
            return
        first = int(messages.seq[0])
        names, deleted = objects
        for seq, (name, delete) in enumerate(zip(names, deleted.tolist(), strict=True), start=first):
            earlier = self._current.pop(name, None)
            if earlier is not None:
                self._ends.append((seq, earlier))
            if delete:
                self._ends.append((seq, seq))
            else:
                self._current[name] = seq
        self._pieces.append(_Piece(messages, names, int(messages.life.max())))

    def pop_ended(self, boundary: Boundary) -> MessageBatch:
        """What ends in the batch of this boundary, the next one: those that have expired meanwhile are left out.

        O(ended log ended + their terms), and O(1) for every message that expires.
        """
        if not self._pieces:
            return NO_MESSAGES
        ended = []
        while self._ends and self._ends[0][0] <= boundary.last_seq:
            ended.append(self._ends.popleft()[1])
        contents = self._contents(np.sort(np.array(ended, np.int64)), boundary.floor)
        self._forget(boundary)
        self.ended += len(contents)
        return contents

    @property
    def first_kept(self) -> int | None:
        """Seq of the first message that is kept; None if none is. Whoever is fed from there on knows the same."""
        return int(self._pieces[0].messages.seq[0]) if self._pieces else None

    def go_on_behind(self, last_seq: int, ended: int) -> None:
        """What was fed so far and ends at or before this seq has been told by another, who told of so many."""
        while self._ends and self._ends[0][0] <= last_seq:
            self._ends.popleft()
        self.ended = ended

    @property
    def held(self) -> int:
        """Messages and objects that are kept."""
        return sum(len(piece.messages) for piece in self._pieces) + len(self._current)

    def _contents(self, seqs: Int64, floor: int) -> MessageBatch:
        """Those of the messages (ascending) that are alive, as they came."""
        parts = []
        for messages, _, _ in self._pieces if seqs.size else ():
            first = int(messages.seq[0])
            cut = slice(*np.searchsorted(seqs, [first, first + len(messages)]).tolist())
            rows = seqs[cut] - first
            rows = rows[messages.life[rows] > floor]
            if rows.size:
                parts.append(messages.take(rows))
        return join_messages(parts) if parts else NO_MESSAGES

    def _forget(self, boundary: Boundary) -> None:
        """Drop rows of which none is alive. A late message may outlast later ones, which then wait with it."""
        while self._pieces:
            messages, names, longest_life = self._pieces[0]
            if longest_life > boundary.floor:
                return
            for seq, name in enumerate(names, start=int(messages.seq[0])):
                if self._current.get(name) == seq:
                    del self._current[name]
            self._pieces.popleft()


def object_columns(columns: dict[str, pa.Array]) -> tuple[pa.Array, pa.Array]:
    """`object_id` and `op` of messages whose `message_id` is here: its own object, and 0, where there is none."""
    own = columns["message_id"]
    names, op = columns.get("object_id", own), columns.get("op")
    if names.null_count:
        names = pc.call_function("coalesce", [names, own.cast(names.type)])
    if op is None:
        op = pa.array(np.zeros(len(own), np.int32))
    return names, op.fill_null(0)
