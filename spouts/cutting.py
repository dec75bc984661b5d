"""Cuts rows of any size into numbered batches: the base of all message spouts.

A source (a file, a generator) yields `Rows` of any number in the order of seq. A `Cutter` turns them into batches with
boundaries, and `MessageSpout` emits these. Most batches lie inside one piece of the source and are cut out without a
copy.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bolts.payloads import StreamBatch, emit_batch
from matching.errors import ConfigError, InputError, TopologyError
from matching.model import NO_MESSAGES, Int32, Int64, MessageBatch, Names, join_messages
from matching.reserved import is_visible
from matching.window import NO_FLOOR, Boundary, Floors, Window, stream_time
from spouts.cuts import Cuts, Logged, Steps, read_ends
from spouts.quarantine import EMPTY_QUARANTINE, Quarantine, in_ranges, without_terms
from spouts.versions import LivingObjects, Objects, ObjectTable, Versions
from topology.core.api.component import Context, Fragment, Saved, Spout, Tick


class Rows(NamedTuple):
    """Consecutive messages and their ids, as a source reads them.

    event_time_us : int64[n]    microseconds; None if the window goes by count
    outside : bool[n]           outside the world box; None if no message is
    ahead : bool[n]             dated too far ahead and set aside; None if no message is
    objects : Objects           None if each message of the stream is its own object and none is a deletion
    object_names : Names        the object of each message; None before the spout's table of objects has the rows
    deletes : bool[n]           whether the message ends an object; None likewise
    """

    messages: MessageBatch
    names: Names
    event_time_us: Int64 | None = None
    outside: NDArray[np.bool_] | None = None
    objects: Objects | None = None
    ahead: NDArray[np.bool_] | None = None
    object_names: Names | None = None
    deletes: NDArray[np.bool_] | None = None


class MessageSource(Protocol):
    """A file, a log, a generator, that messages are read from."""

    def read(self) -> Rows | None:
        """The next rows in order of seq, dense from 0; None while there are none (see `ended`)."""
        ...

    def skip_to(self, seq: int) -> None:
        """Position the source at this message or before it; call before the first `read`.

        Raises
        ------
        InputError
            If there are fewer messages, or they cannot be read.
        """
        ...

    @property
    def ended(self) -> bool:
        """Whether there will be no more rows."""
        ...

    def close(self) -> None: ...


def cut_messages(messages: MessageBatch, first: int, last: int) -> MessageBatch:
    """Messages at rows `first` to `last` (exclusive); all but the offsets are views. O(last - first)."""
    rows = slice(first, last)
    offsets = messages.term_offsets[first : last + 1]
    west, south = messages.west[rows], messages.south[rows]
    return MessageBatch(
        messages.seq[rows],
        messages.x[rows],
        messages.y[rows],
        west,
        south,
        west if messages.east is messages.west else messages.east[rows],
        south if messages.north is messages.south else messages.north[rows],
        messages.life[rows],
        offsets - offsets[0],
        messages.terms[offsets[0] : offsets[-1]],
        messages.weights[offsets[0] : offsets[-1]],
        messages.counts[offsets[0] : offsets[-1]],  # empty stays empty
        messages.event_time_us[rows],
        messages.keys[rows] if messages.keys.shape[1] else messages.keys,
        messages.vector[rows],  # empty stays empty
        *_cut_order(messages, first, last),
        messages.previous_seq[rows],  # empty stays empty
    )


def _cut_order(messages: MessageBatch, first: int, last: int) -> tuple[Int64, Int32]:
    """The order of words of rows `first` to `last` (exclusive); empty stays empty."""
    offsets, order = messages.order_offsets, messages.order
    if not offsets.shape[0]:
        return offsets, order
    offsets = offsets[first : last + 1]
    return offsets - offsets[0], order[offsets[0] : offsets[-1]]


def cut_rows(rows: Rows, first: int, last: int) -> Rows:
    """Rows `first` to `last` (exclusive); all but offsets and objects are views. O(last - first)."""
    return Rows(
        cut_messages(rows.messages, first, last),
        rows.names.cut(first, last),
        None if rows.event_time_us is None else rows.event_time_us[first:last],
        None if rows.outside is None else rows.outside[first:last],
        objects=rows.objects and Objects(rows.objects.names[first:last], rows.objects.deleted[first:last]),
        ahead=None if rows.ahead is None else rows.ahead[first:last],
        object_names=None if rows.object_names is None else rows.object_names.cut(first, last),
        deletes=None if rows.deletes is None else rows.deletes[first:last],
    )


def _is_packed(rows: Rows) -> bool:
    """Whether the data of terms and names has no bytes but those of these rows."""
    messages, names = rows.messages, rows.names
    ends = [(messages.term_offsets, messages.terms), (names.offsets, names.data)]
    ends += [(messages.order_offsets, messages.order)] if messages.order_offsets.shape[0] else []
    ends += [] if rows.object_names is None else [(rows.object_names.offsets, rows.object_names.data)]
    return all(not offsets[0] and offsets[-1] == data.shape[0] for offsets, data in ends)


#: Most messages of a batch that only time or a log ends: its arrays must fit into memory.
_MOST_AT_ONCE = 1_000_000


class Cutter:
    """Cuts rows into batches of `batch` messages, or by stream time or a log; the last one may be shorter.

    Parameters
    ----------
    window : Window
        Gives the floor of each boundary.
    batch : int or Cuts
        Messages a batch, at least 1, or all rules that end a batch.
    limit : int, optional
        Stop after this many messages.
    objects : bool
        The stream is one of objects.
    """

    def __init__(self, window: Window, batch: int | Cuts, limit: int | None = None, objects: bool = False):
        cuts = batch if isinstance(batch, Cuts) else Cuts(batch)
        if cuts.messages < (0 if cuts.step_us or cuts.log else 1):
            raise ConfigError(f"batch {cuts.messages}: needs at least 1 message")
        if limit is not None and limit < 0:
            raise ConfigError(f"limit {limit}: cannot be negative")
        self.window = window
        self._floors = Floors(window, objects)
        self.batch = cuts.messages or _MOST_AT_ONCE
        self._steps = Logged(read_ends(cuts.log)) if cuts.log else Steps(cuts.step_us)
        self.limit = limit
        self.number = 0
        self.next_seq = 0
        self.outside_world = 0
        self.ahead = 0
        self._waiting: deque[Rows] = deque()
        self._position = 0  # in the first of the waiting rows
        self._waiting_rows = 0
        self._stream_time_us = NO_FLOOR

    @property
    def full(self) -> bool:
        """Whether a whole batch, or all that the limit allows, has been fed."""
        return self._waiting_rows >= self._wanted()

    def feed(self, rows: Rows) -> None:
        if len(rows.messages):
            if rows.event_time_us is not None:
                self._steps.feed(self.next_seq + self._waiting_rows, rows.event_time_us)
            self._waiting.append(rows)
            self._waiting_rows += len(rows.messages)

    def cut(self) -> StreamBatch | None:
        """Cut the next batch, shorter if not `full`; None if nothing was fed.

        It is copied only if it spans several pieces of the source.
        """
        wanted = min(self._wanted(), self._waiting_rows)
        if not wanted:
            return None
        messages, names, objects, deletions = [], [], [], [np.zeros(0, np.int64)]
        self._waiting_rows -= wanted
        while wanted:
            first = self._position
            last = min(first + wanted, len(self._waiting[0].messages))
            rows = self._waiting[0]
            if last - first < len(rows.messages) or not _is_packed(rows):
                rows = cut_rows(rows, first, last)
            messages.append(rows.messages)
            names.append(rows.names)
            if rows.object_names is not None:
                objects.append(rows.object_names)
            if rows.deletes is not None:
                deletions.append(rows.messages.seq[rows.deletes])
            if rows.event_time_us is not None:
                self._stream_time_us = stream_time(rows.event_time_us, self._stream_time_us)
            if rows.outside is not None:
                self.outside_world += int(np.count_nonzero(rows.outside))
            if rows.ahead is not None:
                self.ahead += int(np.count_nonzero(rows.ahead))
            wanted -= last - first
            self._position = last
            if last == len(self._waiting[0].messages):
                self._waiting.popleft()
                self._position = 0
        batch = self._number(join_messages(messages), Names.join(names), np.concatenate(deletions))
        return batch._replace(objects=Names.join(objects)) if objects else batch

    def state(self) -> dict[str, np.ndarray]:
        """Where the next batch starts; rows fed and not yet cut must be fed again after `restore`."""
        return {
            "next_seq": np.array(self.next_seq, np.int64),
            "stream_time_us": np.array(self._stream_time_us, np.int64),
            "outside_world": np.array(self.outside_world, np.int64),
            "ahead": np.array(self.ahead, np.int64),
            **self._floors.state(),
        }

    def restore(self, number: int, state: Mapping[str, np.ndarray]) -> None:
        """Resume at batch `number`; the next message to feed is `next_seq`."""
        self.number = number
        self.next_seq = int(state["next_seq"])
        self._stream_time_us = int(state["stream_time_us"])
        self._floors.restore(self.next_seq - 1, state)
        self._steps.resume_after(self._stream_time_us)
        self.outside_world = int(state["outside_world"])
        self.ahead = int(state["ahead"])

    def cut_empty(self) -> StreamBatch:
        """A batch without messages, for an idle live stream."""
        return self._number(NO_MESSAGES, Names.of(()), np.zeros(0, np.int64))

    def _wanted(self) -> int:
        wanted = min(self.batch, self._steps.before(self.next_seq))
        return wanted if self.limit is None else max(0, min(wanted, self.limit - self.next_seq))

    def _number(self, messages: MessageBatch, names: Names, deletions: Int64) -> StreamBatch:
        first_seq = self.next_seq
        self.next_seq += len(messages)
        floor = self._floors.at(self.next_seq - 1, self._stream_time_us, deletions)
        boundary = Boundary(self.number, first_seq, self.next_seq - 1, floor)
        self.number += 1
        return StreamBatch(boundary, messages, names)


class MessageSpout(Spout):
    """The clock of a topology: numbers messages and batches and emits them, batch b to distribution task b mod tasks,
    its message ids to every delivery task.

    Parameters
    ----------
    window, batch, limit
        As in `Cutter`.
    poll_s : float
        Longest wait for a live source before an empty batch is emitted; the task answers no heartbeat meanwhile.
    rate : float, optional
        Messages a second at most; unlimited if None.
    quarantine : Quarantine
        Messages that lose their terms.
    objects : bool
        The stream is one of objects: see `spouts.versions`.
    """

    def __init__(
        self,
        window: Window,
        batch: int | Cuts,
        limit: int | None = None,
        poll_s: float = 0.2,
        rate: float | None = None,
        quarantine: Quarantine = EMPTY_QUARANTINE,
        objects: bool = False,
    ):
        self.quarantine = quarantine
        self.objects = objects
        self.cutter = Cutter(window, batch, limit, objects)
        self.poll_s = poll_s
        self.rate = rate
        self._due_s = 0.0
        self._source: MessageSource | None = None
        self._versions: ObjectTable = LivingObjects() if objects else Versions()

    @abstractmethod
    def open_source(self) -> MessageSource:
        """Open the source; called once, in the task's process."""

    def open(self, context: Context) -> None:
        """Open the source. Raises InputError if it cannot be read."""
        self._context = context
        self._source = self.open_source()

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        """Emit the next batch as a `StreamBatch`; an empty one if a live source has no whole batch yet."""
        batch = self._next() if self._is_due() else self.cutter.cut_empty()
        if batch is None:
            return None
        boundary = batch.boundary
        if boundary.number != number:
            raise TopologyError(
                f"{self._context.component}: batch {boundary.number} is next, but batch {number} was requested"
            )
        ended = self._versions.pop_ended(boundary)
        messages = without_terms(batch.messages, self.quarantine.messages)
        payload = batch._replace(messages=messages, ended=ended, published_s=self._context.now())
        if self.objects:
            unseen = messages.seq[~is_visible(messages.term_offsets, messages.weights)]
            payload = payload._replace(dead=np.concatenate([ended.seq, unseen]))
        self._context.count("messages", len(batch.messages))
        return emit_batch(self._context, payload)

    def ready(self) -> bool:
        """See `Spout.ready`: a whole batch has been read and can be emitted at once."""
        return self.rate is None and self.cutter.full

    def snapshot(self, stored: Mapping[str, int]) -> Mapping[str, Fragment]:
        """Position in the stream, and the table of a stream of objects; other messages are read again."""
        return {**super().snapshot(stored), **self._versions.fragments(self.cutter.next_seq)}

    def state(self) -> dict[str, np.ndarray]:
        """Position in the stream."""
        kept = self._versions.first_kept
        return self.cutter.state() | {
            "first_kept": np.array(self.cutter.next_seq if kept is None else kept, np.int64),
            "ended": np.array(self._versions.ended, np.int64),
        }

    def restore(self, saved: Saved) -> None:
        """Resume after a batch.

        Raises
        ------
        InputError
            If the source has fewer messages now, or they cannot be read.
        """
        assert self._source is not None, "open() comes first"
        state = saved.single(self._context.component)
        self.cutter.restore(saved.number + 1, state)
        self._versions.restore(state)
        next_seq = self.cutter.next_seq
        kept = min(int(state["first_kept"]), next_seq)
        self._source.skip_to(kept)
        read = kept
        while read < next_seq:
            rows = self._source.read()
            if rows is None:
                raise InputError(
                    "missing_file",
                    f"{self._context.component}: there are {read:,} messages, and {next_seq:,} were published before "
                    "the run was interrupted; resume with the same input",
                )
            read = int(rows.messages.seq[-1]) + 1
            self._feed(rows, next_seq)
        self._versions.resume_after(next_seq - 1, int(state["ended"]))

    def report(self) -> dict[str, Any]:
        """Counts of messages and batches emitted; of messages `outside_world`, dated too far `ahead`, and `ended` by a
        later version of their object or a deletion."""
        cutter = self.cutter
        return {
            "messages": cutter.next_seq,
            "batches": cutter.number,
            "outside_world": cutter.outside_world,
            "ahead": cutter.ahead,
            "ended": self._versions.ended,
        }

    def close(self) -> None:
        if self._source is not None:
            self._source.close()

    def _is_due(self) -> bool:
        """Whether the next batch is due, perhaps after a short wait; always without a rate."""
        if self.rate is None:
            return True
        now_s = self._context.now()
        wait_s = self._due_s - now_s
        if wait_s > 2 * self.cutter.batch / self.rate:  # the clock was set back
            wait_s, self._due_s = 0.0, now_s
        if wait_s > 0.0:
            self._context.wait(min(wait_s, self.poll_s))
        if wait_s > self.poll_s:
            return False
        self._due_s = max(self._due_s, now_s) + self.cutter.batch / self.rate
        return True

    def _next(self) -> StreamBatch | None:
        assert self._source is not None, "open() comes first"
        waited = False
        while not self.cutter.full:
            rows = self._source.read()
            if rows is not None:
                self._feed(rows, self.cutter.next_seq)
            elif self._source.ended:
                break
            elif waited:
                return self.cutter.cut_empty()
            else:
                self._context.wait(self.poll_s)
                waited = True
        return self.cutter.cut()

    def _feed(self, rows: Rows, first_seq: int) -> None:
        """Feed rows of the source to the cutter, but those before `first_seq`, which have been published already."""
        count = len(rows.messages)
        old = min(count, max(0, first_seq - int(rows.messages.seq[0]))) if count else 0
        if rows.objects is not None and not self.objects:  # published messages, too, may be ended by later ones
            self._versions.feed(rows.messages, rows.objects)
            rows = rows._replace(objects=None)
        if old:
            rows = cut_rows(rows, old, count)
        self.cutter.feed(rows if rows.objects is None else self._with_versions(rows, rows.objects))

    def _with_versions(self, rows: Rows, objects: Objects) -> Rows:
        """Enter rows of a stream of objects, but those set aside, into the table; each gets its previous version."""
        excluded = in_ranges(rows.messages.seq, self.quarantine.messages)
        if rows.ahead is not None:
            excluded |= rows.ahead
        if rows.outside is not None:
            excluded |= rows.outside & ~objects.deleted  # a deletion may be anywhere
        messages, deletes = self._versions.feed(rows.messages, objects, excluded), objects.deleted & ~excluded
        names = Names.of(objects.names)
        return rows._replace(messages=messages, objects=None, object_names=names, deletes=deletes)


def read_all(source: MessageSource, cutter: Cutter) -> Generator[StreamBatch]:
    """Iterate over the batches of a finite source, as a spout would cut them; closes the source."""
    try:
        while True:
            while not cutter.full:
                rows = source.read()
                if rows is None:
                    break
                cutter.feed(rows)
            batch = cutter.cut()
            if batch is None:
                return
            yield batch
    finally:
        source.close()
