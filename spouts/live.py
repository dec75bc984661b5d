"""A live stream: messages and subscription changes from the write-ahead log (`spouts.log`).

`LoggedMessages` publishes each log record as one batch, so a replay from a checkpoint cuts the same batches. While the
log is idle it waits until the writer in its process wakes it (`spouts.handover`), or polls the log of another process,
and publishes an empty batch now and then. `LoggedSubscriptions` follows.

Lines were admitted before they were logged (`gateway.live.admission`) and are checked here by the same functions; a
line that fails now is damage. Both spouts know the terms that are admitted up to the record that they read. Added to
the topology by `topology.wiring`.
"""

import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bolts.payloads import StreamBatch, unchanged
from matching.errors import CheckpointError
from matching.fields import Refusal, identifier
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import ChangeList, Names, Removals, SubscriptionTable, empty
from matching.space import Space
from matching.subscription_rows import SubscriptionRows, by_words_known_now
from matching.validate import ParsedSubscription, build_table, decode_object
from matching.window import Window
from matching.words.message_words import MessageWords, weigh
from spouts.cuts import Cuts
from spouts.cutting import MessageSpout, Rows, Source
from spouts.handover import handover_of
from spouts.log import LogReader, Record
from spouts.logged_words import LoggedWords
from spouts.parsed import block_of, rows_of
from spouts.quarantine import EMPTY_QUARANTINE, Quarantine, make_unmatchable
from topology.core.api.component import Context, Saved, Spout, Tick

#: Poll interval of an idle log that another process writes; a line waits half the interval on average.
LOOK_S = 0.002
#: Idle time before an empty batch is published.
IDLE_S = 0.25
#: Messages of a record at most.
_MOST = 1_000_000
#: Changes that are parsed ahead with an empty batch at most: some 50 ms.
_AHEAD = 10_000
#: Changes that are parsed together.
_TOGETHER = 1_000
_NEVER = -2


class LogSource(Source):
    """Messages of a log, one record at a time; parameters as in `LoggedMessages`.

    Attributes
    ----------
    place : (int, int)
        Seq of the next message, and byte offset of the next record.
    last : (int, int)
        The same of the rows read last.
    unknown_words : int
        Distinct words of each message that were not admitted, summed.
    """

    def __init__(self, log: str, words: LoggedWords, window: Window, space: Space):
        self.unknown_words = 0
        self.last = (0, 0)
        self._reader = LogReader(log)
        self._handover = handover_of(log)
        self._words = words
        self._window = window
        self._space = space
        self._next_seq = 0

    @property
    def came(self) -> threading.Event | None:
        """Set when there may be something to read; None if another process writes the log."""
        return None if self._handover is None else self._handover.came

    def read_now(self) -> Rows | None:
        """As `read`; what comes later sets `came`."""
        if self._handover is not None:
            self._handover.came.clear()
        return self.read()

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

    def skip_to(self, seq: int) -> None:
        """See `Source.skip_to`; O(bytes up to there)."""
        while True:
            place = self.place
            record = self._reader.read() if self._next_seq < seq else None
            if record is None or self._next_seq + record.messages > seq:
                break
            self._next_seq += record.messages
        self.go_to(place)

    def read(self) -> Rows | None:
        """The rows of the next record with messages; None while there is none."""
        while True:
            place = self.place
            handed = self._handover.take(place[1]) if self._handover is not None else None
            if handed is not None:
                self._reader.offset = handed.end
                rows, unknown = handed.rows, handed.unknown_words
            else:
                record = self._reader.skim()
                if record is not None and record.last_seq < 0:
                    continue  # changes alone, which are not read here
                self._reader.offset = place[1]
                record = self._reader.read() if record is not None else None
                if record is None:
                    return None
                self._words.go_to(place[1])
                self._words.take(record, self._reader.offset)
                rows, unknown = self._rows(record)
            self.last = place
            self._next_seq += len(rows.messages)
            self.unknown_words += unknown
            return rows

    @property
    def more(self) -> bool:
        """Whether `read` would find something."""
        return self._reader.more

    def close(self) -> None:
        self._reader.close()

    def _rows(self, record: Record) -> tuple[Rows, int]:
        block, terms = block_of(record, self._next_seq, self._space, self._reader.path)
        vocabulary = self._words.vocabulary
        vectors = weigh(terms, vocabulary.idf)
        rows = rows_of(block, vectors, vocabulary.reserved, self._next_seq, self._space, self._window)
        return rows, int(vectors.unknown.sum())


class LoggedMessages(MessageSpout):
    """Clock spout over a log that grows.

    Parameters
    ----------
    log : path
    vocabulary : path
    most_terms : int
        As in `spouts.logged_words.LoggedWords`.
    window, space
        As in `spouts.parquet.ParquetSource`.
    quarantine : Quarantine
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
    ):
        super().__init__(window, Cuts(_MOST), poll_s=IDLE_S, quarantine=quarantine)
        self.log = os.fspath(log)
        self.vocabulary = os.fspath(vocabulary)
        self.most_terms = most_terms
        self.space = space
        self._places: deque[tuple[int, int]] = deque()  # of records whose messages may have to be read again

    def open_source(self) -> LogSource:
        words = LoggedWords(self.log, self.vocabulary, self.most_terms)
        return LogSource(self.log, words, self.cutter.window, self.space)

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

    @property
    def _log_source(self) -> LogSource:
        assert isinstance(self._source, LogSource), "open() comes first"
        return self._source

    def _feed(self, rows: Rows, first_seq: int) -> None:
        self._places.append(self._log_source.last)
        super()._feed(rows, first_seq)

    def _next(self) -> StreamBatch | None:
        source, until_s = self._log_source, self._context.now() + self.poll_s
        while (rows := source.read_now()) is None:
            left_s = until_s - self._context.now()
            if not 0.0 < left_s <= self.poll_s:
                return self.cutter.cut_empty()
            self._context.wait(LOOK_S if source.came is None else left_s, source.came)
        self._feed(rows, self.cutter.next_seq)
        return self.cutter.cut()


class _Known:
    """The last subscription under an id that took effect, or will with the current change list.

    number : int    -1 until it is assigned, -2 if it ends at the seq where it begins
    ended : bool
    """

    __slots__ = ("ended", "kind", "number")

    def __init__(self, kind: int, number: int = -1, ended: bool = False):
        self.kind = kind
        self.number = number
        self.ended = ended


class _Fresh(NamedTuple):
    known: _Known
    before: _Known | None
    parsed: ParsedSubscription
    at: int


class LoggedSubscriptions(Spout):
    """Follows `LoggedMessages`: one `ChangeList` for every batch, from the same log.

    A change at seq q belongs to the batch that contains q, which also admits its new words. So changes behind the last
    message wait in the log, and are parsed ahead, which is most of the work with them: all that are there before the
    first batch, others with empty batches. Those that this process has logged were parsed by then (`spouts.handover`).
    New words of a subscription are looked up with its batch. Parameters as in `LoggedMessages`, and the kinds.

    Attributes
    ----------
    ahead : dict of bytes to ParsedSubscription
        By line; some of its words may have no id yet.

    Notes
    -----
    Memory grows with the number of distinct ids, as in `bolts.delivery`, and with the changes that wait.
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
        self._known: dict[str, _Known] = {}
        self._waiting: deque[tuple[int, bytes]] = deque()  # changes of a later batch
        self._next_seq = 0  # of the first message of the next record
        self._place = (0, 0)  # seq and offset of the record read last
        self._through = -1
        self._number = 0
        self.ahead: dict[bytes, ParsedSubscription] = {}
        self._counts = dict.fromkeys(("accepted", "unsubscribed", "replaced", "rejected"), 0)

    def open(self, context: Context) -> None:
        self._context = context
        self._words = LoggedWords(self.log, self.vocabulary, self.most_terms)
        handover = handover_of(self.log)
        self._handed = None if handover is None else handover.changes
        self._rows = SubscriptionRows(MessageWords(self._words.vocabulary), self.space, self.kinds)
        self._reader, self._ahead_reader = LogReader(self.log), LogReader(self.log)
        self._begun = False

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        """Emit the changes that take effect up to the last seq of the clock's batch.

        Raises
        ------
        CheckpointError
            If the log ends before it.
        """
        assert tick is not None, "a following spout gets the clock's tick"
        if tick.last_seq < tick.first_seq:
            self._parse_ahead(_AHEAD if self._begun else None)
        self._read_through(tick.last_seq)
        due = []
        while self._waiting and self._waiting[0][0] <= tick.last_seq:
            due.append(self._waiting.popleft())
        self._through = tick.last_seq
        changes = self._changes(number, due)
        self._context.emit("changes", changes)
        self._context.count("added", len(changes.added))
        self._context.count("removed", changes.removed.number.shape[0])
        return tick

    def state(self) -> dict[str, np.ndarray]:
        """Place in the log to resume at, and the number of each id."""
        names = Names.of(list(self._known))
        place = self._place if self._waiting else (self._next_seq, self._reader.offset)
        known = self._known.values()
        return {
            "place": np.array(place, np.int64),
            "through": np.array(self._through, np.int64),
            "emitted": np.array([self._number], np.int64),
            "names_offsets": names.offsets,
            "names_data": names.data,
            "number": np.array([one.number for one in known], np.int64),
            "kind": np.array([one.kind for one in known], np.int8),
            "ended": np.array([one.ended for one in known], np.bool_),
            "counts": np.array(list(self._counts.values()), np.int64),
        }

    def restore(self, saved: Saved) -> None:
        state = saved.single(self._context.component)
        columns = (state[name].tolist() for name in ("kind", "number", "ended"))
        names = Names(state["names_offsets"], state["names_data"]).strings()
        self._known = dict(zip(names, map(_Known, *columns), strict=True))
        self._counts = dict(zip(self._counts, state["counts"].tolist(), strict=True))
        self._waiting.clear()
        self._next_seq, self._reader.offset = state["place"].tolist()
        self._words.go_to(self._reader.offset)
        self._through, self._number = int(state["through"]), int(state["emitted"][0])
        self.ahead.clear()
        self._begun = False

    def rewind(self, saved: Saved) -> bool:
        """Restore in place: the vocabulary stays loaded."""
        self.restore(saved)
        return True

    def report(self) -> dict[str, Any]:
        """Counts of changes: `accepted`, `unsubscribed`, `replaced`; `rejected` is 0, since all were admitted."""
        kinds = [one.kind for one in self._known.values()]
        of_each = np.bincount(np.array(kinds, np.int64), minlength=len(self.kinds)).tolist()
        return {**self._counts, "by_kind": dict(zip(self.kinds.names, of_each, strict=True))}

    def close(self) -> None:
        self._reader.close()
        self._ahead_reader.close()

    def _go_to_tail(self) -> None:
        """Begin to parse ahead behind the last message of the log. A few microseconds for each record before."""
        self._begun = True
        reader = self._ahead_reader
        tail = reader.offset = self._reader.offset
        while (record := reader.skim()) is not None:
            if record.last_seq >= 0:
                tail = reader.offset
        reader.offset = tail

    def _parse_ahead(self, most: int | None) -> None:
        """Parse some of the changes that wait, or all."""
        if not self._begun:
            self._go_to_tail()
        reader, left = self._ahead_reader, most
        reader.offset = max(reader.offset, self._reader.offset)
        while (left is None or left > 0) and (record := reader.read()) is not None:
            if record.last_seq >= 0:
                continue  # it is due with its messages
            lines = [line for _, line in record.changes_from(0)]
            for line, parsed in zip(lines, self._parsed(lines), strict=True):
                if isinstance(parsed, ParsedSubscription):
                    self.ahead[line] = parsed
            left = None if left is None else left - len(lines)

    def _parsed(self, lines: Sequence[bytes]) -> list[ParsedSubscription | str]:
        """What changes are by the words that are known so far: subscriptions, and ids of those that end."""
        found: list[Any] = [self.ahead.pop(line, None) for line in lines]
        if self._handed is not None:
            handed = self._handed.take(lines)
            found = [other if one is None else one for one, other in zip(found, handed, strict=True)]
        if self.most_terms:
            late = [at for at, one in enumerate(found) if one is not None and (one.unknown or one.unknown_excluded)]
            now = by_words_known_now([found[at] for at in late], self._words.vocabulary)
            for at, one in zip(late, now, strict=True):
                found[at] = one
        at = [place for place, one in enumerate(found) if one is None]
        rows: list[Any] = [decode_object(lines[place]) for place in at]
        begun = []
        for place, row in zip(at, rows, strict=True):
            if "subscribe" in row:
                begun.append((place, row["subscribe"]))
            else:
                found[place] = identifier(row["unsubscribe"]) or ""
        for first in range(0, len(begun), _TOGETHER):
            some = begun[first : first + _TOGETHER]
            for (place, _), one in zip(some, self._rows.check([row for _, row in some]), strict=True):
                if isinstance(one, Refusal):
                    raise CheckpointError(
                        f"{self.log}: an admitted subscription is refused now ({one.reason}): {lines[place]!r}"
                    )
                found[place] = one
        return found

    def _read_through(self, last_seq: int) -> None:
        while self._next_seq <= last_seq:
            self._place = self._next_seq, self._reader.offset
            record = self._reader.read_changes()
            if record is None:
                raise CheckpointError(f"{self.log}: ends before message {last_seq:,}, which was published from it")
            self._words.take(record, self._reader.offset)
            # a record may be read again for its later changes: skip those emitted before the checkpoint
            self._waiting += (change for change in record.changes_from(self._next_seq) if change[0] > self._through)
            self._next_seq += record.messages

    def _changes(self, batch: int, due: list[tuple[int, bytes]]) -> ChangeList:
        """The change list of a batch, without subscriptions that end at the seq where they begin."""
        if not due:
            return unchanged(batch)
        fresh: dict[str, _Fresh] = {}
        added: list[_Fresh] = []
        removed: list[tuple[_Known, int]] = []

        def end(name: str, at: int) -> None:
            known = self._known[name]
            if name in fresh and fresh[name].at == at:  # begins and ends here: no bolt gets it
                gone = fresh.pop(name)
                gone.known.number = _NEVER
                if gone.before is None:
                    del self._known[name]
                else:
                    self._known[name] = gone.before
            else:
                known.ended = True
                removed.append((known, at))

        for (at, line), parsed in zip(due, self._parsed([line for _, line in due]), strict=True):
            if isinstance(parsed, str):
                end(parsed, at)
                self._counts["unsubscribed"] += 1
                continue
            if (parsed.unknown or parsed.unknown_excluded) and self.most_terms:
                raise CheckpointError(f"{self.log}: the new words of a subscription are not admitted: {line!r}")
            name = parsed.subscription_id
            if name in self._known and not self._known[name].ended:
                end(name, at)
                self._counts["replaced"] += 1
            one = _Fresh(_Known(parsed.kind), self._known.get(name), parsed, at)
            self._known[name] = one.known
            fresh[name] = one
            added.append(one)
            self._counts["accepted"] += 1
        return self._numbered(batch, added, removed)

    def _numbered(self, batch: int, added: list[_Fresh], removed: list[tuple[_Known, int]]) -> ChangeList:
        added = [one for one in added if one.known.number != _NEVER]
        for one in added:
            one.known.number = self._number
            self._number += 1
        table = empty(SubscriptionTable)
        if added:
            numbers = [one.known.number for one in added]
            table = build_table([one.parsed for one in added], numbers, [one.at for one in added])
            table = make_unmatchable(table, self.quarantine.subscriptions, self.kinds)
        gone = Removals(
            np.array([known.number for known, _ in removed], np.int64),
            np.array([known.kind for known, _ in removed], np.int8),
            np.array([at for _, at in removed], np.int64),
        )
        follows = np.array([-1 if one.before is None else one.before.number for one in added], np.int64)
        return ChangeList(batch, table, Names.of([one.parsed.subscription_id for one in added]), gone, follows)
