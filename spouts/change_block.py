"""Changes of subscriptions of one record of a live stream's log, in columns.

Made once of what the gate has checked, or of the lines of the log by the same checks. A subscription whose words have
no ids yet waits for the batch that admits them, and gets its terms then.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from matching.errors import CheckpointError
from matching.fields import Refusal
from matching.model import Int64, SubscriptionTable, concatenate
from matching.subscription_rows import terms_known_now
from matching.validate import ParsedSubscription, build_table, decode_object
from matching.vocabulary import Vocabulary

#: Bytes of an object of Python, about.
_OBJECT_BYTES = 70

Check = Callable[[Sequence[Any]], Sequence[ParsedSubscription | Refusal]]


class ChangeBlock(NamedTuple):
    """The changes of a record.

    names : list of str         ids of all of them, in order
    rows : int64[n]             the row of each in `table`; -1 where a subscription ends
    table : SubscriptionTable   of m subscriptions; numbers and seqs are 0
    words : list of str         of their keywords, where one waits for ids, else empty
    word_offsets : int64[m + 1]
    stopped : int64[m]          stop terms among the words of each
    refiltered : dict of int to bytes    rows that wait and have ids of words in their filter, and their lines
    size_bytes : int            about
    backfilled : dict of int to bytes    rows that ask for a backfill, and their lines
    """

    names: list[str]
    rows: Int64
    table: SubscriptionTable
    words: list[str]
    word_offsets: Int64
    stopped: Int64
    refiltered: dict[int, bytes]
    size_bytes: int
    backfilled: dict[int, bytes]

    @classmethod
    def of(cls, changes: Sequence[ParsedSubscription | str], lines: Sequence[bytes], admits: bool) -> "ChangeBlock":
        """Lay out checked subscriptions, and ids of those that end.

        Parameters
        ----------
        lines : sequence of bytes    of the log, one for each
        admits : bool                whether terms are admitted later
        """
        begun = [(line, one) for line, one in zip(lines, changes, strict=True) if isinstance(one, ParsedSubscription)]
        parsed = [one for _, one in begun]
        rows = np.full(len(changes), -1, np.int64)
        rows[[place for place, one in enumerate(changes) if not isinstance(one, str)]] = np.arange(len(parsed))
        names = [one if isinstance(one, str) else one.subscription_id for one in changes]
        waits = admits and any(one.unknown or one.unknown_others for one in parsed)
        words = [one.words if waits else () for one in parsed]
        refiltered = {
            row: line
            for row, (line, one) in enumerate(begun if waits else ())
            if (one.unknown or one.unknown_others) and (one.filter or one.others)
        }
        offsets = np.zeros(len(parsed) + 1, np.int64)
        np.cumsum(list(map(len, words)), out=offsets[1:])
        table = build_table(parsed, [0] * len(parsed), [0] * len(parsed))
        stopped = np.array([one.stopped for one in parsed], np.int64)
        objects = len(names) + int(offsets[-1])
        size_bytes = sum(column.nbytes for column in table) + sum(map(len, lines)) + _OBJECT_BYTES * objects
        backfilled = {row: line for row, (line, one) in enumerate(begun) if one.backfill is not None}
        flat = list(chain.from_iterable(words))
        return cls(names, rows, table, flat, offsets, stopped, refiltered, size_bytes, backfilled)

    def known_now(self, vocabulary: Vocabulary, check: Check) -> SubscriptionTable:
        """The table by the terms that are admitted now.

        Raises
        ------
        CheckpointError
            If a word is not admitted.
        """
        if not self.words and not self.refiltered:
            return self.table
        table, known = terms_known_now(self.table, self.words, self.word_offsets, vocabulary)
        lacks = known + self.stopped != np.diff(self.word_offsets)
        if self.refiltered:
            again = check([row_of(line) for line in self.refiltered.values()])
            at = list(self.refiltered)
            lacks[at] = [not isinstance(one, ParsedSubscription) or one.unknown + one.unknown_others for one in again]
            fresh = [one for one in again if isinstance(one, ParsedSubscription)]
            if not lacks.any():
                order = np.arange(len(table))
                order[at] = len(table) + np.arange(len(at))
                table = concatenate([table, build_table(fresh, [0] * len(fresh), [0] * len(fresh))]).take(order)
        if lacks.any():
            name = self.names[int(np.flatnonzero(self.rows == np.flatnonzero(lacks)[0])[0])]
            raise CheckpointError(f"the log: the new words of subscription {name!r} are not admitted; restore it")
        return table


def row_of(line: bytes) -> Any:
    """The columns of a logged subscription."""
    found: Any = decode_object(line)
    return found["subscribe"]
