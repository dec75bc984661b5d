"""The ids that producers gave to their last messages, so that a message that is sent again is taken once.

Used by `gateway.serve.writer`. After a restart the ids are read from the write-ahead log.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from matching.fields import identifier

#: Messages with an id of the producer's that are remembered at least.
REMEMBERED = 1_000_000


class RecentIds:
    """Ids of the last messages that had one, and their seqs.

    Parameters
    ----------
    remembered : int
        How many at least; twice as many at most.
    """

    def __init__(self, remembered: int = REMEMBERED):
        self._remembered = remembered
        self._newer: dict[str, int] = {}
        self._older: dict[str, int] = {}

    def get(self, message_id: str) -> int | None:
        """The seq of the message with this id."""
        seq = self._newer.get(message_id)
        return self._older.get(message_id) if seq is None else seq

    def put(self, message_id: str, seq: int) -> None:
        self._newer[message_id] = seq
        if len(self._newer) >= self._remembered:
            self._older, self._newer = self._newer, {}

    def recover(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Take the ids of logged messages, each with its seq."""
        for seq, line in lines:
            if (name := id_of(line)) is not None:
                self.put(name, seq)


class _WithId(msgspec.Struct):
    id: Any = None


_DECODER = msgspec.json.Decoder(_WithId)


def id_of(line: bytes) -> str | None:
    """The id in a line of a message, as `matching.validate` reads it; None if it has none. Never raises."""
    try:
        value = _DECODER.decode(line).id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # an empty line is a clock mark
    return identifier(value) or None
