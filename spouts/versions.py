"""Messages about objects: a later version replaces the earlier one, a deletion ends it.

The message spout finds the messages that each batch ends and sends their content along (`bolts.payloads.StreamBatch`),
so a router sends the end of a message to the same tasks as the message, without state. In a stream of messages
(`Versions`) only `skyline` uses this, and a version lives as long as the window; in one of objects (`LivingObjects`)
every kind does, and a version lives until it is replaced or deleted. `matching.naive` has the rule.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bolts.living_runs import LivingRuns, VersionRun
from matching.model import NO_MESSAGES, Int64, MessageBatch, Names, join_messages
from matching.window import Boundary
from topology.core.api.component import Fragment

Bools = NDArray[np.bool_]


class Objects(NamedTuple):
    """The object that each of n messages is about, and whether the message deletes it."""

    names: list[str]
    deleted: NDArray[np.bool_]


class ObjectTable(ABC):
    """What a message spout knows of objects.

    Attributes
    ----------
    ended : int
        Messages that were ended so far.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._current: dict[str, int] = {}  # object -> seq of its version
        self._ends: deque[tuple[int, int]] = deque()  # seq of the message that ends, seq of the one that is ended

    @abstractmethod
    def feed(self, messages: MessageBatch, objects: Objects, excluded: Bools | None = None) -> MessageBatch:
        """Take the next messages of the stream, dense in seq, and return them as they are to be published.

        excluded : bool[n]    rows that are set aside: they neither replace nor end a version
        """

    @abstractmethod
    def pop_ended(self, boundary: Boundary) -> MessageBatch:
        """The messages that end in the batch of this boundary, the next one, in ascending seq."""

    @property
    def first_kept(self) -> int | None:
        """Seq from which the source must be read again after a restore; None: from the next message."""
        return None

    def fragments(self, next_seq: int) -> Mapping[str, Fragment]:
        """What a checkpoint saves, as of the boundary before `next_seq`, beside `first_kept`."""
        return {}

    @property
    def living(self) -> set[int]:
        """Seqs of the versions that live whatever the window is, as of the last row fed. O(living)."""
        return set()

    @abstractmethod
    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Load what `fragments` saved, if anything."""

    def resume_after(self, last_seq: int, ended: int) -> None:
        """Drop the ends up to this seq, which were emitted before, `ended` in number."""
        while self._ends and self._ends[0][0] <= last_seq:
            self._ends.popleft()
        self.ended = ended

    def _pop_seqs(self, boundary: Boundary) -> Int64:
        """Seqs of the messages that end in a batch, ascending."""
        ended = []
        while self._ends and self._ends[0][0] <= boundary.last_seq:
            ended.append(self._ends.popleft()[1])
        return np.sort(np.array(ended, np.int64))


class _Piece(NamedTuple):
    """Rows of a source, with the names of their objects."""

    messages: MessageBatch
    names: list[str]
    longest_life: int


class Versions(ObjectTable):
    """Finds the messages that end in each batch, by a later version of their object or a deletion, with their content.

    Retains the rows of the window as the source read them, and the current version of each of its objects; expired
    ones are dropped, so memory is bounded by the window. Without fed rows there is no cost.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: deque[_Piece] = deque()

    def feed(self, messages: MessageBatch, objects: Objects, excluded: Bools | None = None) -> MessageBatch:
        """See `ObjectTable`: returns the messages unchanged. O(messages)."""
        if not len(messages):
            return messages
        first, (names, deleted) = int(messages.seq[0]), objects
        seqs = range(first, first + len(names))
        new = dict(zip(names, seqs, strict=True))
        if len(new) == len(names) and self._current.keys().isdisjoint(new) and not np.count_nonzero(deleted):
            self._current |= new  # as nearly always: a third of the time
        else:
            self._replace(names, deleted.tolist(), seqs)
        life = messages.life
        self._pieces.append(_Piece(messages, names, int(life[0] if len(names) == 1 else life.max())))
        return messages

    def _replace(self, names: Sequence[str], deleted: Sequence[bool], seqs: range) -> None:
        """Enter messages one by one: some end a version, or several are about one object."""
        for seq, name, delete in zip(seqs, names, deleted, strict=True):
            earlier = self._current.pop(name, None)
            if earlier is not None:
                self._ends.append((seq, earlier))
            if delete:
                self._ends.append((seq, seq))
            else:
                self._current[name] = seq

    def pop_ended(self, boundary: Boundary) -> MessageBatch:
        """The messages that end in the batch of this boundary, the next one, without expired ones.

        O(ended log ended + their terms), and O(1) for each message that expires.
        """
        ended, contents = self._pop_seqs(boundary), NO_MESSAGES
        if ended.shape[0]:
            contents = self._contents(ended, boundary.floor)
        self._forget(boundary)
        self.ended += len(contents)
        return contents

    @property
    def first_kept(self) -> int | None:
        """Seq of the first retained message, or None. Feeding the messages from there on rebuilds the state."""
        return int(self._pieces[0].messages.seq[0]) if self._pieces else None

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Nothing was saved: messages are read again."""

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
            last = int(messages.seq[-1])
            current = list(map(self._current.pop, names, repeat(-1)))
            if max(current) > last:  # a later version of one is not in this piece
                later = {name: seq for name, seq in zip(names, current, strict=True) if seq > last}
                self._current |= later
            self._pieces.popleft()


class _Columns(NamedTuple):
    """Versions, and the names of their objects."""

    messages: MessageBatch
    names: Names

    def take(self, rows: Int64) -> "_Columns":
        return _Columns(self.messages.take(rows), self.names.take(rows))

    @classmethod
    def join(cls, parts: Sequence["_Columns"]) -> "_Columns":
        return cls(join_messages([part.messages for part in parts]), Names.join([part.names for part in parts]))


class LivingObjects(ObjectTable):
    """The living version of each object of a stream of objects, with its columns (`bolts.living_runs`).

    Notes
    -----
    Memory is that of the living versions' columns, at most twice, and some 200 bytes an object for its name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._table = LivingRuns(_Columns.take, _Columns.join)

    def __len__(self) -> int:
        """Living objects, as of the last row fed."""
        return len(self._current)

    @property
    def living(self) -> set[int]:
        return set(self._current.values())

    @property
    def size_bytes(self) -> int:
        """Memory of the columns and names of all runs."""
        return sum(_size_of(run) for run in self._table.runs)

    def feed(self, messages: MessageBatch, objects: Objects, excluded: Bools | None = None) -> MessageBatch:
        """See `ObjectTable`: returns the messages with `previous_seq`. O(messages), amortised O(log versions) each."""
        rows = len(messages)
        if not rows:
            return messages
        names, deleted = objects
        living, previous = np.zeros(rows, np.bool_), np.full(rows, -1, np.int64)
        current, first = self._current, int(messages.seq[0])
        set_aside = [False] * rows if excluded is None else excluded.tolist()
        for row, (name, delete, aside) in enumerate(zip(names, deleted.tolist(), set_aside, strict=True)):
            if aside:
                continue
            earlier = current.pop(name, -1) if delete else current.get(name, -1)
            if earlier >= 0:
                previous[row] = earlier
                self._ends.append((first + row, earlier))
            if not delete:
                current[name] = first + row
                living[row] = True
        fresh = _Columns(messages, Names.of(names))
        if not living.all():
            fresh = fresh.take(np.flatnonzero(living))
        self._table.append(fresh.messages.seq, fresh)
        return messages.having(previous_seq=previous)

    def pop_ended(self, boundary: Boundary) -> MessageBatch:
        """See `ObjectTable`. O(ended log ended + their terms)."""
        seqs = self._pop_seqs(boundary)
        if not seqs.shape[0]:
            return NO_MESSAGES
        self.ended += seqs.shape[0]
        return join_messages([part.messages for part in self._table.end(seqs)])

    def fragments(self, next_seq: int) -> Mapping[str, Fragment]:
        """Each run, which never changes, and which of its versions live."""
        living = self._table.state(next_seq)
        runs = {f"run{run.number}": Fragment(partial(_arrays_of, run), run.number) for run in self._table.runs}
        return {"living": Fragment(lambda: living), **runs}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """See `ObjectTable`. O(living versions)."""
        found = []
        for key in state:
            number, _, name = key.partition(":")
            if name == "seq":
                messages = MessageBatch(**{each: state[f"{number}:{each}"] for each in MessageBatch._fields})
                names = Names(state[f"{number}:name_offsets"], state[f"{number}:name_data"])
                found.append((int(number), messages.seq, _Columns(messages, names)))
        self._table.restore(state, found)
        for run in self._table.runs:
            rows = np.flatnonzero(run.lives)
            names = run.columns.names.take(rows).strings()
            self._current.update(zip(names, run.seq[rows].tolist(), strict=True))


def _arrays_of(run: VersionRun[_Columns]) -> dict[str, np.ndarray]:
    """A run for a checkpoint."""
    messages, names = run.columns
    columns = messages._asdict() | {"name_offsets": names.offsets, "name_data": names.data}
    return {f"{run.number}:{name}": column for name, column in columns.items()}


def _size_of(run: VersionRun[_Columns]) -> int:
    columns = {id(column): column.nbytes for column in (*run.columns.messages, *run.columns.names, run.lives)}
    return sum(columns.values())


def object_columns(columns: dict[str, pa.Array]) -> tuple[pa.Array, pa.Array]:
    """`object_id` and `op` of messages; by default the `message_id`, and 0."""
    own = columns["message_id"]
    names, op = columns.get("object_id", own), columns.get("op")
    if names.null_count:
        names = pc.call_function("coalesce", [names, own.cast(names.type)])
    if op is None:
        op = pa.array(np.zeros(len(own), np.int32))
    return names, op.fill_null(0)
