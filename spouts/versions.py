"""Messages about objects: a later version replaces the earlier one, a deletion ends it.

Only `skyline` uses this (`matching.naive` has the rule). The message spout finds the messages that each batch ends and
sends their content along (`bolts.payloads.StreamBatch`), so a router sends the end of a message to the same tasks as
the message, without state.
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
    """The object that each of n messages is about, and whether the message deletes it."""

    names: list[str]
    deleted: NDArray[np.bool_]


class _Piece(NamedTuple):
    """Rows of a source, with the names of their objects."""

    messages: MessageBatch
    names: list[str]
    longest_life: int


class Versions:
    """Finds the messages that end in each batch, by a later version of their object or a deletion, with their content.

    Retains the rows of the window as the source read them, and the current version of each of its objects; expired
    ones are dropped, so memory is bounded by the window. Without fed rows there is no cost.
    """

    def __init__(self):
        self.ended = 0
        self._current: dict[str, int] = {}  # object -> seq of its version
        self._pieces: deque[_Piece] = deque()
        self._ends: deque[tuple[int, int]] = deque()  # seq of the message that ends, seq of the one that is ended

    def feed(self, messages: MessageBatch, objects: Objects) -> None:
        """Take the next messages of the stream, dense in seq. O(messages)."""
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
        life = messages.life
        self._pieces.append(_Piece(messages, names, int(life[0] if len(names) == 1 else life.max())))

    def pop_ended(self, boundary: Boundary) -> MessageBatch:
        """The messages that end in the batch of this boundary, the next one, without expired ones.

        O(ended log ended + their terms), and O(1) for each message that expires.
        """
        ended, contents = [], NO_MESSAGES
        while self._ends and self._ends[0][0] <= boundary.last_seq:
            ended.append(self._ends.popleft()[1])
        if ended:
            contents = self._contents(np.sort(np.array(ended, np.int64)), boundary.floor)
        self._forget(boundary)
        self.ended += len(contents)
        return contents

    @property
    def first_kept(self) -> int | None:
        """Seq of the first retained message, or None. Feeding the messages from there on rebuilds the state."""
        return int(self._pieces[0].messages.seq[0]) if self._pieces else None

    def resume_after(self, last_seq: int, ended: int) -> None:
        """Drop the ends up to this seq, which were emitted before, `ended` in number."""
        while self._ends and self._ends[0][0] <= last_seq:
            self._ends.popleft()
        self.ended = ended

    @property
    def retained(self) -> int:
        return sum(len(piece.messages) for piece in self._pieces) + len(self._current)

    def _contents(self, seqs: Int64, floor: int) -> MessageBatch:
        """Content of those of the messages (seqs ascending) that have not expired."""
        parts = []
        for messages, _, _ in self._pieces:
            first = int(messages.seq[0])
            cut = slice(*np.searchsorted(seqs, [first, first + len(messages)]).tolist())
            rows = seqs[cut] - first
            rows = rows[messages.life[rows] > floor]
            if rows.size:
                parts.append(messages.take(rows))
        return join_messages(parts) if parts else NO_MESSAGES

    def _forget(self, boundary: Boundary) -> None:
        """Drop pieces whose messages have all expired; an unexpired piece keeps later ones, too."""
        while self._pieces:
            messages, names, longest_life = self._pieces[0]
            if longest_life > boundary.floor:
                return
            for seq, name in enumerate(names, start=int(messages.seq[0])):
                if self._current.get(name) == seq:
                    del self._current[name]
            self._pieces.popleft()


def object_columns(columns: dict[str, pa.Array]) -> tuple[pa.Array, pa.Array]:
    """`object_id` and `op` of messages; by default the `message_id`, and 0."""
    own = columns["message_id"]
    names, op = columns.get("object_id", own), columns.get("op")
    if names.null_count:
        names = pc.call_function("coalesce", [names, own.cast(names.type)])
    if op is None:
        op = pa.array(np.zeros(len(own), np.int32))
    return names, op.fill_null(0)
