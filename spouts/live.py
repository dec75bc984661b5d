"""A live stream: messages and subscription changes from the write-ahead log (`spouts.log`).

`LoggedMessages` publishes each log record as one batch, so a replay from a checkpoint cuts the same batches. While the
log is idle it waits until the writer in its process wakes it (`spouts.handover`), or polls the log of another process,
and publishes an empty batch now and then. `LoggedSubscriptions` follows.

Lines were admitted before they were logged (`gateway.live.admission`) and are checked here by the same functions; a
line that fails now is damage. Both spouts know the terms that are admitted up to the record that they read. Added to
the topology by `topology.wiring`.
"""

import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bolts.payloads import StreamBatch, unchanged
from matching.backfill import MOST, MOST_TOGETHER, backfilled
from matching.errors import CheckpointError, TopologyError
from matching.fields import Refusal
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.message_segments import SegmentConditions
from matching.model import Backfill, ChangeList, Int64, Names, SubscriptionTable, concatenate
from matching.space import Space
from matching.subscription_rows import PlainRows, SubscriptionRows
from matching.validate import ParsedSubscription
from matching.window import Window
from matching.words.message_words import MessageWords
from spouts.change_block import ChangeBlock, Changed, checked_changes, row_of
from spouts.cuts import Cuts
from spouts.cutting import MessageSource, MessageSpout, Rows
from spouts.handover import handover_of
from spouts.log import LogReader, Record
from spouts.logged_words import LoggedWords
from spouts.message_index import MessageIndex, ids_at, index_of
from spouts.numbering import Numbering
from spouts.parsed import block_of, rows_of
from spouts.quarantine import EMPTY_QUARANTINE, Quarantine, make_unmatchable
from topology.core.api.component import Context, Fragment, Saved, Spout, Tick
from topology.core.wakeup import Wakeup

#: Poll interval of an idle log that another process writes; a line waits half the interval on average.
LOOK_S = 0.002
#: Idle time before an empty batch is published.
IDLE_S = 0.25
#: Messages of a record at most.
_MOST = 1_000_000
#: Changes that are read ahead with an empty batch at most: some 50 ms.
_AHEAD = 10_000


class LogSource(MessageSource):
    """Messages of a log, one record at a time; parameters as in `LoggedMessages`.

    Attributes
    ----------
    place : (int, int)
        Seq of the next message, and byte offset of the next record.
    last : (int, int)
        The same of the rows read last.
    unknown_words : int
        Distinct words of each message that were not admitted, summed.
    has_changes : bool
        Whether changes of subscriptions take effect before a message of the rows read last. Of the first rows behind a
        place it was sent to it does not know, and says True.
    """

    def __init__(self, log: str, words: LoggedWords, window: Window, space: Space):
        self.unknown_words = 0
        self.has_changes = True
        self._changes_wait = False  # for the next message
        self.last = (0, 0)
        self._reader = LogReader(log)
        self._handover = handover_of(log)
        self._words = words
        self._window = window
        self._space = space
        self._next_seq = 0

    @property
    def came(self) -> Wakeup | None:
        """Set when there may be something to read; None if another process writes the log."""
        return None if self._handover is None else self._handover.came

    @property
    def place(self) -> tuple[int, int]:
        return self._next_seq, self._reader.offset

    @property
    def ended(self) -> bool:
        """Never: the driver stops the topology."""
        return False

    def go_to(self, place: tuple[int, int]) -> None:
        """Continue reading at this place."""
        self._next_seq, self._reader.offset = place
        self._changes_wait = True

    def skip_to(self, seq: int) -> None:
        """See `MessageSource.skip_to`; some microseconds for each record up to there."""
        while True:
            place = self.place
            record = self._reader.skim() if self._next_seq < seq else None
            if record is None or self._next_seq + record.messages > seq:
                break
            self._next_seq += record.messages
        self.go_to(place)

    def read(self) -> Rows | None:
        """The rows of the next record with messages; None while there is none."""
        while True:
            place = self._next_seq, self._reader.offset
            handed = self._handover.batches.take(place[1]) if self._handover is not None else None
            if handed is None and not self.more:
                return None
            if handed is not None:
                self._reader.offset = handed.end
                rows, unknown, changes = handed.rows, handed.unknown_words, handed.changes
            else:
                record = self._reader.read_messages()
                if record is None:
                    return None
                changes = record.changes
                if not record.messages:
                    self._changes_wait |= len(changes) > 0
                    continue
                self._words.go_to(place[1])
                self._words.take(record, self._reader.offset)
                rows, unknown = self._rows(record)
            self.last = place
            count = len(rows.messages)
            self.has_changes = self._changes_wait or (len(changes) > 0 and changes[0] < count)
            self._changes_wait = len(changes) > 0 and changes[-1] == count
            self._next_seq += count
            self.unknown_words += unknown
            return rows

    @property
    def more(self) -> bool:
        """Whether `read` would find something; without a system call where this process logs."""
        return self._reader.more if self._handover is None else self._handover.end > self._reader.offset

    def close(self) -> None:
        self._reader.close()

    def _rows(self, record: Record) -> tuple[Rows, int]:
        block, terms = block_of(record, self._next_seq, self._space, self._reader.path)
        vocabulary = self._words.vocabulary
        rows = rows_of(block, terms, vocabulary, self._next_seq, self._space, self._window)
        return rows, int(terms.unknown.sum())


class LoggedMessages(MessageSpout):
    """Clock spout over a log that grows.

    Parameters
    ----------
    most_terms : int
        As in `spouts.logged_words.LoggedWords`.
    window, space
        As in `spouts.parquet.ParquetSource`.
    objects : bool
        As in `spouts.cutting.MessageSpout`.
    """

    patient = True

    def __init__(
        self,
        log: str | os.PathLike[str],
        vocabulary: str | os.PathLike[str],
        most_terms: int,
        window: Window,
        space: Space,
        quarantine: Quarantine = EMPTY_QUARANTINE,
        objects: bool = False,
    ):
        super().__init__(window, Cuts(_MOST), poll_s=IDLE_S, quarantine=quarantine, objects=objects)
        self.log = os.fspath(log)
        self.vocabulary = os.fspath(vocabulary)
        self.most_terms = most_terms
        self.space = space
        self._places: deque[tuple[int, int]] = deque()  # of records whose messages may have to be read again
        self._log_source: LogSource  # made by `open_source`

    def open_source(self) -> LogSource:
        words = LoggedWords(self.log, self.vocabulary, self.most_terms)
        self._log_source = LogSource(self.log, words, self.cutter.window, self.space)
        return self._log_source

    def ready(self) -> bool:
        """See `Spout.ready`: the log has a record that is not published yet."""
        return self._log_source.more

    def state(self) -> dict[str, np.ndarray]:
        """The position, and the log place of the first message that must be read again."""
        state = super().state()
        kept = int(state["first_kept"])
        while len(self._places) > 1 and self._places[1][0] <= kept:
            self._places.popleft()
        source = self._log_source
        place = self._places[0] if self._places and self._places[0][0] <= kept else source.place
        return state | {"place": np.array(place, np.int64), "unknown_words": np.array(source.unknown_words, np.int64)}

    def restore(self, saved: Saved) -> None:
        state = saved.single(self._context.component)
        self._log_source.go_to(tuple(state["place"].tolist()))
        super().restore(saved)
        self._log_source.unknown_words = int(state["unknown_words"])

    def report(self) -> dict[str, Any]:
        """Beside the counts: `unknown_words`."""
        return super().report() | {"unknown_words": self._log_source.unknown_words}

    def _feed(self, rows: Rows, first_seq: int) -> None:
        self._places.append(self._log_source.last)
        super()._feed(rows, first_seq)

    def _next(self) -> StreamBatch | None:
        source, until_s = self._log_source, self._context.now() + self.poll_s
        while (rows := source.read()) is None:
            left_s = until_s - self._context.now()
            if not 0.0 < left_s <= self.poll_s:
                return self.cutter.cut_empty()._replace(has_changes=False)
            self._context.wait(LOOK_S if source.came is None else left_s, source.came)
        self._feed(rows, self.cutter.next_seq)
        batch = self.cutter.cut()
        return None if batch is None else batch._replace(has_changes=source.has_changes)


class _Waiting:
    """Changes of a record, some of which are not due yet."""

    __slots__ = ("at", "block", "floor", "place", "taken")

    def __init__(self, place: tuple[int, int], at: Int64, block: ChangeBlock, taken: int, floor: int):
        self.place = place  # seq and offset of the record
        self.at = at  # the seq before which each takes effect, ascending
        self.block = block
        self.taken = taken
        self.floor = floor  # messages before it may be removed


class LoggedSubscriptions(Spout):
    """Follows `LoggedMessages`: one `ChangeList` for every batch that may have changes, from the same log.

    A change at seq q belongs to the batch that contains q, which also admits its new words. So changes behind the last
    message wait in the log, and are read ahead, which is most of the work with them: all that are there when the end
    of the log is reached first, others with empty batches. What this process has logged is taken from where it was
    logged (`spouts.handover`). Parameters as in `LoggedMessages`, and the kinds.

    Notes
    -----
    Memory grows with the number of distinct ids (`spouts.numbering`), and by some 300 bytes with each change that
    waits.
    """

    def __init__(
        self,
        log: str | os.PathLike[str],
        vocabulary: str | os.PathLike[str],
        most_terms: int,
        space: Space,
        kinds: Kinds = KINDS,
        quarantine: Quarantine = EMPTY_QUARANTINE,
    ):
        self.quarantine = quarantine
        self.log = os.fspath(log)
        self.vocabulary = os.fspath(vocabulary)
        self.most_terms = most_terms
        self.space = space
        self.kinds = kinds
        self._waiting: deque[_Waiting] = deque()
        self._next_seq = 0  # of the first message of the next record
        self._through = -1
        self._numbering = Numbering()

    def open(self, context: Context) -> None:
        self._context = context
        self._words = LoggedWords(self.log, self.vocabulary, self.most_terms)
        handover = handover_of(self.log)
        self._handed = None if handover is None else handover.records
        self._rows = SubscriptionRows(MessageWords(self._words.vocabulary), self.space, self.kinds)
        self._index: MessageIndex | None = None
        self._reader = LogReader(self.log)
        self._at_end = False

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        """Emit the changes that take effect up to the last seq of the clock's batch.

        Raises
        ------
        CheckpointError
            If the log ends before it.
        TopologyError
            If there are changes for a batch that was published as one without.
        """
        assert tick is not None, "a following spout gets the clock's tick"
        while self._next_seq <= tick.last_seq:
            if self._read() is None:
                raise CheckpointError(f"{self.log}: ends before message {tick.last_seq:,}, which was published from it")
        if not self._at_end or tick.last_seq < tick.first_seq:
            self._read_ahead(_AHEAD if self._at_end else None)
        self._through = tick.last_seq
        changes = self._changes(number)
        if not tick.has_changes:
            if changes is not None:
                raise TopologyError(
                    f"{self.log}: batch {number} up to message {tick.last_seq:,} has changes of subscriptions, and was "
                    "published as one without; resume from a checkpoint"
                )
            return tick
        changes = changes or unchanged(number)
        self._context.emit("changes", changes)
        self._context.count("added", len(changes.added))
        self._context.count("removed", changes.removed.number.shape[0])
        return tick

    def snapshot(self, stored: Mapping[str, int]) -> Mapping[str, Fragment]:
        """Place in the log to resume at, and the number of each id, which is a fragment of its own."""
        place = self._waiting[0].place if self._waiting else (self._next_seq, self._reader.offset)
        position = {
            "place": np.array(place, np.int64),
            "through": np.array(self._through, np.int64),
            "emitted": np.array([self._numbering.next], np.int64),
            "counts": np.array(list(self._numbering.counts.values()), np.int64),
        }
        return {"": Fragment(lambda: position), "ids": self._numbering.fragment(stored.get("ids"))}

    def restore(self, saved: Saved) -> None:
        state = saved.single(self._context.component)
        self._numbering.restore(state, int(state["emitted"][0]), state["counts"].tolist())
        self._waiting.clear()
        self._next_seq, self._reader.offset = state["place"].tolist()
        self._words.go_to(self._reader.offset)
        self._through = int(state["through"])
        self._at_end = False

    def rewind(self, saved: Saved) -> bool:
        """Restore in place: the vocabulary stays loaded."""
        self.restore(saved)
        return True

    def report(self) -> dict[str, Any]:
        """Counts of changes: `accepted`, `unsubscribed`, `replaced`; `rejected` is 0, since all were admitted."""
        of_each = self._numbering.by_kind(len(self.kinds))
        return {**self._numbering.counts, "by_kind": dict(zip(self.kinds.names, of_each, strict=True))}

    def close(self) -> None:
        self._reader.close()

    def _read_ahead(self, most: int | None) -> None:
        """Read some of the changes that wait, or all, up to the next message."""
        reader, left = self._reader, most
        while left is None or left > 0:
            offset = reader.offset
            record = reader.skim()
            reader.offset = offset
            if record is None or record.last_seq >= 0:
                self._at_end |= record is None
                return
            record = self._read() or record
            left = None if left is None else left - len(record.lines)

    def _read(self) -> Record | None:
        """Read a record; its changes wait, without those that were emitted before a checkpoint."""
        place, block = (self._next_seq, self._reader.offset), None
        handed = None if self._handed is None else self._handed.take(place[1])
        if handed is None:
            record = self._reader.read_changes()
            if record is None:
                return None
        else:
            record, self._reader.offset, block = handed
        self._words.take(record, self._reader.offset)
        if record.lines:
            at = self._next_seq + np.array(record.changes, np.int64)
            taken = int(np.searchsorted(at, self._through, "right"))
            if taken < len(at):
                block = block or self._checked(record.lines)
                self._waiting.append(_Waiting(place, at, block, taken, self._words.floor))
        self._next_seq += record.messages
        return record

    def _checked(self, lines: Sequence[bytes]) -> ChangeBlock:
        """The changes of lines, by the words that are known so far."""
        found, at = list[Changed](), 0
        for one in checked_changes(lines, self._rows):
            if isinstance(one, Refusal):
                raise CheckpointError(
                    f"{self.log}: an admitted subscription is refused now ({one.reason}): {lines[at]!r}"
                )
            found.append(one)
            at += len(one.names) if isinstance(one, PlainRows) else 1
        return ChangeBlock.of(found, lines, self.most_terms > 0)

    def _changes(self, batch: int) -> ChangeList | None:
        """The change list of a batch, without subscriptions that end where they begin; None if nothing changes."""
        names: list[str] = []
        kinds: list[Int64] = []
        ats: list[Int64] = []
        tables: list[SubscriptionTable] = []
        asking: list[tuple[int, bytes, int]] = []  # place among those that begin, the line, and the floor
        while self._waiting and self._waiting[0].at[self._waiting[0].taken] <= self._through:
            one = self._waiting[0]
            some = slice(one.taken, int(np.searchsorted(one.at, self._through, "right")))
            rows, at = one.block.rows[some], one.at[some]
            begins = rows >= 0
            table, so_far = one.block.known_now(self._words.vocabulary, self._rows), sum(map(len, tables))
            if lines := one.block.backfilled:
                places = enumerate(rows[begins].tolist(), so_far)
                asking += [(place, lines[row], one.floor) for place, row in places if row in lines]
            if not np.array_equal(rows[begins], np.arange(len(table))):
                table = table.take(rows[begins])
            tables.append(table.having(at=at[begins]))
            kind = np.full(len(rows), -1, np.int64)
            kind[begins] = table.kind
            names += one.block.names[some]
            kinds.append(kind)
            ats.append(at)
            one.taken = some.stop
            if one.taken == len(one.at):
                self._waiting.popleft()
        if not names:
            return None
        kind = np.concatenate(kinds)
        numbered = self._numbering.change(names, kind.tolist(), np.concatenate(ats).tolist())
        lives = numbered.number >= 0
        table = concatenate(tables)
        if not lives.all():
            table = table.take(np.flatnonzero(lives))
        emitted = np.flatnonzero(kind >= 0)[lives]
        if emitted.shape[0] < len(names):
            names = list(map(names.__getitem__, emitted.tolist()))
        table = table.having(number=numbered.number[lives])
        if len(table):
            table = make_unmatchable(table, self.quarantine.subscriptions, self.kinds)
        found = self._backfill(asking, numbered.number, np.concatenate(ats)[kind >= 0]) if asking else None
        return ChangeList(batch, table, Names.of(names), numbered.removed, numbered.follows[lives], backfill=found)

    def _backfill(self, asking: Sequence[tuple[int, bytes, int]], numbers: Int64, ats: Int64) -> Backfill | None:
        """The earlier matches of some that begin; of many at once each has fewer. None if there are none.

        `asking` has a place in `numbers` and `ats` of each, its line, and the first message that it may ask for.
        """
        aside = self.quarantine
        asking = [one for one in asking if numbers[one[0]] >= 0 and not _within(numbers[one[0]], aside.subscriptions)]
        most = min(MOST, MOST_TOGETHER // max(1, len(asking)))
        parts = [
            self._backfill_of(line, int(numbers[place]), int(ats[place]), most, floor) for place, line, floor in asking
        ]
        parts = [one for one in parts if len(one)]
        if not parts:
            return None
        number, at, seq = (np.concatenate([getattr(one, name) for one in parts]) for name in ("number", "at", "seq"))
        return Backfill(number, at, seq, Names.join([one.names for one in parts]))

    def _backfill_of(self, line: bytes, number: int, at: int, most: int, floor: int) -> Backfill:
        parsed = self._rows.row(row_of(line))
        assert isinstance(parsed, ParsedSubscription) and parsed.backfill is not None, "it was accepted"
        vocabulary = self._words.vocabulary
        if self._index is None:
            self._index = index_of(self.log, self.space, vocabulary.reserved)
        segments = self._index.segments(at - 1)
        conditions = SegmentConditions(parsed, self.kinds[parsed.kind], vocabulary)
        aside = self.quarantine.messages
        seqs, _ = backfilled(conditions, parsed.backfill, at, segments, most, aside, floor)
        count = seqs.shape[0]
        return Backfill(np.full(count, number), np.full(count, at), seqs, ids_at(segments, seqs))


def _within(number: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= number <= last for first, last in ranges)
