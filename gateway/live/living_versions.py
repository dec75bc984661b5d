"""The living version of each object of a live stream, as the log has them: what the writer knows of objects."""

import heapq
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from matching.fields import identifier
from matching.model import Int64
from matching.validate import DELETE
from matching.words.message_words import MessageTerms
from spouts.messages import MessageBlock
from spouts.parsed import objects_of

#: Bytes at which no new object is taken.
MOST_BYTES = 4 * 2**30
#: Bytes that an object has besides the characters of its id: the text, its number, and their place in a dict, here and
#: in the spout's table; and those of its version there, besides its words: columns of numbers, and where words end.
_OWN_BYTES, _COLUMN_BYTES = 2 * 130, 150
#: Bytes of an attribute of a version, and of a word: as one in a row, and its id, weight and count.
_ATTRIBUTE_BYTES, _WORD_BYTES = 8, 16
#: In the value of an object the seq of its version stands above so many bits, which have its bytes.
_SIZE_BITS = 24
_MOST_SIZE = 2**_SIZE_BITS - 1
#: Times of versions that were replaced that are kept beside one for each object.
_SPARE = 1_000


class LivingVersions:
    """Seq of the living version of each object; changed by one thread, read by any.

    It also counts what the spout's table has of these versions (`spouts.versions.LivingObjects`), so that a version is
    refused before it is logged where that would grow beyond a bound.

    Attributes
    ----------
    most_bytes : int    size from which no new object is to be taken
    size_bytes : int    of this table and of the living columns in the spout's, about
    latest : int, dict of str to int    seq of the first message taken last, and of each object that they are about
                                        the version before them (-1: none): the table has them before the log does
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.size_bytes = 0
        self.latest: tuple[int, dict[str, int]] = (0, {})
        self._living: dict[str, int] = {}  # object -> seq << _SIZE_BITS | bytes
        self._expiries: list[tuple[int, int, str]] = []  # heap of (time, seq, object), some replaced since

    def __len__(self) -> int:
        return len(self._living)

    def get(self, object_id: str) -> int | None:
        """Seq of the version that lives now; None if none does."""
        found = self._living.get(object_id)
        return None if found is None else found >> _SIZE_BITS

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= self.most_bytes

    def refusal(self, row: Mapping[str, Any]) -> str:
        """Why a message may not begin an object, "" if it may, or is of a living one, or ends one, or is a change."""
        if not self.is_full or "subscribe" in row or "unsubscribe" in row:
            return ""
        ends = row.get("deleted") is True or row.get("op") in (DELETE, str(DELETE), "delete")
        if ends or (identifier(row.get("object_id")) or identifier(row.get("id"))) in self._living:
            return ""
        return (
            f"{len(self):,} objects live, which have {self.size_bytes:,} bytes, and no more may be than "
            f"{self.most_bytes:,}: end some (deleted, or DELETE /v1/objects/ID), or give versions a ttl_s"
        )

    def expired(self, now_us: int, most: int) -> list[str]:
        """Objects whose living version has ended by time, so many at most; each is returned once."""
        found = []
        while self._expiries and self._expiries[0][0] <= now_us and len(found) < most:
            _, seq, name = heapq.heappop(self._expiries)
            if self.get(name) == seq:
                found.append(name)
        return found

    def listed(self, after: int, most: int, names: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """Objects and seqs of their versions behind a seq, the oldest first, so many at most. O(objects, or names)."""
        among = self._living.copy() if names is None else set(names)
        later = sorted((seq, name) for name in among if (seq := self._seq(name)) > after)
        return [(name, seq) for seq, name in later[:most]]

    def take(self, first: int, block: MessageBlock, terms: MessageTerms, rows: Int64 | None = None) -> Int64:
        """Take the next messages, of which the first has this seq; returns the version that each replaces or ends.

        `rows`, int64[n]: which they are of the next messages; None: all. Of the result, int64[n], -1 says that there is
        none. What is dated too far ahead neither replaces nor ends one. O(messages).
        """
        names, deleted = objects_of(block)
        previous = np.full(len(block), -1, np.int64)
        aside = [False] * len(block) if block.ahead is None else block.ahead.tolist()
        sizes = _WORD_BYTES * np.diff(terms.offsets) + _COLUMN_BYTES + _ATTRIBUTE_BYTES * len(block.attributes)
        self.latest = (first, {name: self._seq(name) for name, out in zip(names, aside, strict=True) if not out})
        seqs = first + (np.arange(len(block)) if rows is None else rows.astype(np.int64))
        columns = zip(names, deleted.tolist(), sizes.tolist(), seqs.tolist(), strict=True)
        for row, (name, ends, size, seq) in enumerate(columns):
            if aside[row]:
                continue
            earlier = self._living.pop(name, -1)
            if earlier >= 0:
                previous[row] = earlier >> _SIZE_BITS
                self.size_bytes -= earlier & _MOST_SIZE
            if not ends:
                size = min(size + _OWN_BYTES + 2 * sys.getsizeof(name), _MOST_SIZE)
                self.size_bytes += size
                self._living[name] = seq << _SIZE_BITS | size
                if block.expires_us is not None and block.expires_us[row] >= 0:
                    heapq.heappush(self._expiries, (int(block.expires_us[row]), seq, name))
        if len(self._expiries) > 2 * len(self) + _SPARE:  # most are of versions that were replaced
            self._expiries = [one for one in self._expiries if self.get(one[2]) == one[1]]
            heapq.heapify(self._expiries)
        return previous

    def _seq(self, name: str) -> int:
        """Seq of the version that lives now; -1 if none does."""
        return self._living.get(name, -1) >> _SIZE_BITS
