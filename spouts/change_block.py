"""Changes of subscriptions of one record of a live stream's log, in columns.

Made once of what the gate has checked, or of the lines of the log by the same checks. A subscription whose words have
no ids yet waits for the batch that admits them, and gets its terms then.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np

from matching.errors import CheckpointError
from matching.fields import Refusal, identifier
from matching.model import Int64, SubscriptionTable, concatenate
from matching.runs import runs
from matching.subscription_rows import FEW, PlainRows, SubscriptionRows, terms_known_now
from matching.validate import ParsedSubscription, build_table, decode_object
from matching.vocabulary import Vocabulary

#: Bytes of an object of Python, about.
_OBJECT_BYTES = 70

#: Subscriptions that are checked together.
_TOGETHER = 1_000
#: A subscription, the id of one that ends, or plain subscriptions that follow each other.
Changed = ParsedSubscription | PlainRows | str


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
    def of(cls, changes: Sequence[Changed], lines: Sequence[bytes], admits: bool) -> "ChangeBlock":
        """Lay out checked subscriptions, and ids of those that end.

        Parameters
        ----------
        lines : sequence of bytes    of the log, one for each
        admits : bool                whether terms are admitted later
        """
        waits = admits and any(not isinstance(one, str) and _waits(one) for one in changes)
        parts, at = list[ChangeBlock](), 0
        for is_plain, some in groupby(changes, lambda one: isinstance(one, PlainRows)):
            for one in some if is_plain else [list(some)]:
                made = cls._of_plain(one, waits) if isinstance(one, PlainRows) else cls._of_rows(one, lines[at:], waits)
                parts.append(made)
                at += len(made.names)
        joined = parts[0] if len(parts) == 1 else cls._joined(parts)
        objects = len(joined.names) + len(joined.words)
        return joined._replace(
            size_bytes=sum(column.nbytes for column in joined.table) + sum(map(len, lines)) + _OBJECT_BYTES * objects
        )

    @classmethod
    def _of_plain(cls, plain: PlainRows, waits: bool) -> "ChangeBlock":
        rows = len(plain.names)
        words, offsets = (plain.words, plain.word_offsets) if waits else ([], np.zeros(rows + 1, np.int64))
        return cls(plain.names, np.arange(rows), plain.table, words, offsets, np.zeros(rows, np.int64), {}, 0, {})

    @classmethod
    def _of_rows(cls, changes: Sequence[Any], lines: Sequence[bytes], waits: bool) -> "ChangeBlock":
        begun = [(line, one) for line, one in zip(lines, changes, strict=False) if isinstance(one, ParsedSubscription)]
        parsed = [one for _, one in begun]
        rows = np.full(len(changes), -1, np.int64)
        rows[[place for place, one in enumerate(changes) if not isinstance(one, str)]] = np.arange(len(parsed))
        names = [one if isinstance(one, str) else one.subscription_id for one in changes]
        words = [one.words if waits else () for one in parsed]
        refiltered = {
            row: line
            for row, (line, one) in enumerate(begun if waits else ())
            if _waits(one) and (one.filter or one.others)
        }
        offsets = np.zeros(len(parsed) + 1, np.int64)
        np.cumsum(list(map(len, words)), out=offsets[1:])
        table = build_table(parsed, [0] * len(parsed), [0] * len(parsed))
        stopped = np.array([one.stopped for one in parsed], np.int64)
        backfilled = {row: line for row, (line, one) in enumerate(begun) if one.backfill is not None}
        return cls(names, rows, table, list(chain.from_iterable(words)), offsets, stopped, refiltered, 0, backfilled)

    @classmethod
    def _joined(cls, parts: Sequence["ChangeBlock"]) -> "ChangeBlock":
        first = np.cumsum([0, *(len(part.table) for part in parts)]).tolist()
        word = np.cumsum([0, *(len(part.words) for part in parts)]).tolist()
        numbered = list(zip(parts, first, word, strict=False))
        return cls(
            list(chain.from_iterable(part.names for part in parts)),
            np.concatenate([np.where(part.rows < 0, -1, part.rows + row) for part, row, _ in numbered]),
            concatenate([part.table for part in parts]),
            list(chain.from_iterable(part.words for part in parts)),
            np.concatenate([np.zeros(1, np.int64), *(part.word_offsets[1:] + at for part, _, at in numbered)]),
            np.concatenate([part.stopped for part in parts]),
            {row + at: line for part, row, _ in numbered for at, line in part.refiltered.items()},
            0,
            {row + at: line for part, row, _ in numbered for at, line in part.backfilled.items()},
        )

    def known_now(self, vocabulary: Vocabulary, checks: SubscriptionRows) -> SubscriptionTable:
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
            again = [checks.row(row_of(line)) for line in self.refiltered.values()]
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


def checked_changes(lines: Sequence[bytes], checks: SubscriptionRows, few: int = FEW) -> Iterator[Changed | Refusal]:
    """What lines of the log are, in their order; fewer than `few` subscriptions are checked one by one."""
    for first in range(0, len(lines), _TOGETHER):
        rows: list[Any] = [decode_object(line) for line in lines[first : first + _TOGETHER]]
        at = [place for place, row in enumerate(rows) if "subscribe" in row]
        plain, others = checks.check([rows[place]["subscribe"] for place in at], few).placed(at)
        for start, stop, place in runs(plain.rows, len(rows)):
            if place >= 0:
                yield plain.part(place, place + stop - start)
            elif start in others:
                yield others[start]
            else:
                yield identifier(rows[start]["unsubscribe"]) or ""


def _waits(one: ParsedSubscription | PlainRows) -> bool:
    """Whether a word has no id yet."""
    return bool(one.unknown.any() if isinstance(one, PlainRows) else one.unknown or one.unknown_others)
