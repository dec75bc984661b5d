"""The ids that producers gave to their last messages, so that a message that is sent again is taken once.

After a restart the ids are read from the write-ahead log.
"""

import sys
from collections.abc import Iterable, Sequence

import numpy as np

from matching.validate import ParsedMessage
from spouts.messages import MessageBlock

#: Messages with an id of the producer's that are remembered at least, unless their ids have more than these bytes.
REMEMBERED, REMEMBERED_BYTES = 1_000_000, 256 * 2**20
#: Bytes of an entry besides its string.
_OWN_BYTES = 130


class RecentIds:
    """Ids of the last messages that had one, and their seqs.

    Parameters
    ----------
    remembered : int
        How many at least, or as many as have `REMEMBERED_BYTES`; twice as many at most, and a batch of the log.
    """

    def __init__(self, remembered: int = REMEMBERED):
        self._remembered = remembered
        self._newer: dict[str, int] = {}
        self._older: dict[str, int] = {}
        self._newer_bytes = 0

    def get(self, message_id: str) -> int | None:
        """The seq of the message with this id."""
        seq = self._newer.get(message_id)
        return self._older.get(message_id) if seq is None else seq

    def put(self, message_id: str, seq: int) -> None:
        self._newer[message_id] = seq
        self._note(sys.getsizeof(message_id) + _OWN_BYTES)

    def put_new(self, message_ids: Sequence[str], seq: int) -> bool:
        """Put the ids of consecutive messages, the first with this seq; False, and none is put, if one was sent before.

        0.3 us an id.
        """
        new = dict(zip(message_ids, range(seq, seq + len(message_ids)), strict=True))
        if len(new) < len(message_ids) or not all(ids.keys().isdisjoint(new) for ids in (self._newer, self._older)):
            return False
        self._newer |= new
        self._note(sum(map(sys.getsizeof, message_ids)) + len(message_ids) * _OWN_BYTES)
        return True

    def recover(self, blocks: Iterable[tuple[int, MessageBlock]]) -> None:
        """Take the ids of logged messages, each block with its first seq. 0.4 us an id."""
        for first, block in blocks:
            ids, given = block.ids, np.arange(len(block))
            if block.made is not None:
                given = np.flatnonzero(~block.made.astype(np.bool_))
                ids = ids.take(given)
            self._newer.update(zip(ids.strings(), (first + given).tolist(), strict=True))
            self._note(ids.data.nbytes + len(given) * (sys.getsizeof("") + _OWN_BYTES))

    def _note(self, size_bytes: int) -> None:
        """Count what was put, and forget the older ids if the newer ones are enough."""
        self._newer_bytes += size_bytes
        if len(self._newer) >= self._remembered or self._newer_bytes >= REMEMBERED_BYTES:
            self._older, self._newer, self._newer_bytes = self._newer, {}, 0


def is_same(now: ParsedMessage, earlier: ParsedMessage, begun: int) -> bool:
    """Whether a message is the same as a logged one; the stream began with the first `begun` attributes.

    The logged one has no value of an attribute that was declared after it, whatever was sent: that is no difference.
    """
    pairs = enumerate(zip(earlier.attributes, now.attributes, strict=False))
    attributes = tuple([new if number < begun or old is not None else None for number, (old, new) in pairs])
    return now._replace(content=b"", ahead=earlier.ahead, misfits=(), attributes=attributes) == earlier
