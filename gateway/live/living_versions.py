"""The living version of each object of a live stream, as the log has them: what the writer knows of objects."""

import heapq
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from matching.fields import identifier
from matching.model import Int64
from matching.validate import DELETE
from spouts.messages import MessageBlock
from spouts.parsed import objects_of

#: Bytes of the table at which no new object is taken.
MOST_BYTES = 2 * 2**30
#: Bytes that an object has besides the characters of its id: the text, its number, and their place in a dict.
_OWN_BYTES = 130


class LivingVersions:
    """Seq of the living version of each object; changed by one thread, read by any.

    Attributes
    ----------
    most_bytes : int    size from which no new object is to be taken
    size_bytes : int    about
    latest : int, dict of str to int    seq of the first message taken last, and of each object that they are about
                                        the version before them (-1: none): the table has them before the log does
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.size_bytes = 0
        self.latest: tuple[int, dict[str, int]] = (0, {})
        self._seq_of: dict[str, int] = {}
        self._expiries: list[tuple[int, int, str]] = []  # heap of (time, seq, object)

    def __len__(self) -> int:
        return len(self._seq_of)

    def get(self, object_id: str) -> int | None:
        """Seq of the version that lives now; None if none does."""
        return self._seq_of.get(object_id)

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= self.most_bytes

    def refusal(self, row: Mapping[str, Any]) -> str:
        """Why a message may not begin an object, "" if it may, or is of a living one, or ends one."""
        ends = row.get("deleted") is True or row.get("op") in (DELETE, str(DELETE), "delete")
        if not self.is_full or ends or (identifier(row.get("object_id")) or identifier(row.get("id"))) in self._seq_of:
            return ""
        return (
            f"{len(self):,} objects live, whose table has {self.size_bytes:,} bytes, and no more may be: end some "
            "(DELETE /v1/objects/ID), or give versions a ttl_s"
        )

    def expired(self, now_us: int, most: int) -> list[str]:
        """Objects whose living version has ended by time, so many at most; each is returned once."""
        found = []
        while self._expiries and self._expiries[0][0] <= now_us and len(found) < most:
            _, seq, name = heapq.heappop(self._expiries)
            if self._seq_of.get(name) == seq:
                found.append(name)
        return found

    def listed(self, after: int, most: int) -> list[tuple[str, int]]:
        """Objects and seqs of their versions behind a seq, the oldest first, so many at most. O(objects)."""
        later = sorted((seq, name) for name, seq in self._seq_of.copy().items() if seq > after)
        return [(name, seq) for seq, name in later[:most]]

    def take(self, first: int, block: MessageBlock, rows: Int64 | None = None) -> Int64:
        """Take the next messages, of which the first has this seq; returns the version that each replaces or ends.

        `rows`, int64[n]: which they are of the next messages; None: all. Of the result, int64[n], -1 says that there is
        none. What is dated too far ahead neither replaces nor ends one. O(messages).
        """
        names, deleted = objects_of(block)
        previous = np.full(len(block), -1, np.int64)
        aside = [False] * len(block) if block.ahead is None else block.ahead.tolist()
        self.latest = (
            first,
            {name: self._seq_of.get(name, -1) for name, out in zip(names, aside, strict=True) if not out},
        )
        seqs = (first + (np.arange(len(block)) if rows is None else rows.astype(np.int64))).tolist()
        for row, (name, ends, seq) in enumerate(zip(names, deleted.tolist(), seqs, strict=True)):
            if aside[row]:
                continue
            earlier = self._seq_of.pop(name, -1)
            previous[row] = earlier
            self.size_bytes += (not ends) * _size_of(name) - (earlier >= 0) * _size_of(name)
            if not ends:
                self._seq_of[name] = seq
                if block.expires_us is not None and block.expires_us[row] >= 0:
                    heapq.heappush(self._expiries, (int(block.expires_us[row]), seq, name))
        return previous


def _size_of(name: str) -> int:
    return sys.getsizeof(name) + _OWN_BYTES
