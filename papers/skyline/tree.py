"""Base of the tree window indexes: batches, ends and expiry, window queries.

A tree is a subclass with `_insert`, `_end` and `_search` over the messages of a `MessageLog`. Expiry is an end like any
other: each boundary ends messages whose life is over, with those that a later version or a deletion ends. Messages that
do not outlive their own batch are never stored.

If past boundaries are retained, ends reach the tree late: an end is written to the log at once (`Log.ended`), and
applied to the tree when it precedes all retained boundaries. A message in the tree has then lived at the oldest of them
or come after it, and a search checks in the log whether it lived at the boundary of the query. Otherwise ends are
applied at once, and the log has none.
"""

from abc import abstractmethod
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from matching.errors import EngineError
from matching.model import Float64, Int32, Int64, MessageBatch
from matching.reserved import without_reserved
from matching.skyline.answers import sort_rows
from matching.skyline.window import Candidates, SkylineQueries, SkylineWindow
from matching.space import Space
from matching.storage.slots import as_input, grown, resized
from matching.window import Boundary
from papers.skyline.messages import NEVER, MessageLog, heap_expired, heap_push, heap_remove

_FEWEST_CANDIDATES = 256


class CandidateColumns(NamedTuple):
    """Output columns of a kernel for candidates; their length is the capacity."""

    seq: Int64
    life: Int64
    spatial: Float64
    text: Float64


class TreeWork(NamedTuple):
    """Work since the start.

    nodes_read, nodes_written : tree nodes or quadtree cells that updates have read and written
    lists : int                inverted lists and counts of terms that updates have changed, terms put into filters or
                               taken out of them
    memo : int                 entries of the update memo that were changed
    visited : int              nodes, cells and inverted lists that queries have read
    checked : int              messages that queries have tested
    """

    nodes_read: int
    nodes_written: int
    lists: int
    memo: int
    visited: int
    checked: int

    @property
    def operations(self) -> int:
        """Update operations: each node or cell read or written, list or count changed, term put into a filter or taken
        out, memo entry changed."""
        return self.nodes_read + self.nodes_written + self.lists + self.memo


class TreeWindow(SkylineWindow):
    """A window index over a tree; see `matching.skyline.window`.

    Parameters
    ----------
    space : Space
    kept_boundaries : int    how many boundaries back `candidates` can answer
    """

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        self.log = MessageLog(remembers=kept_boundaries > 0)
        # Slots of messages that are alive for the tree, as a heap by life, and the place of each slot in it: -1 for one
        # whose end was applied to the tree.
        self._heap, self._place = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self._in_heap = 0
        # Ends not yet applied to the tree: number of the batch and slots, oldest first.
        self._late_ends: deque[tuple[int, Int32]] = deque()
        self._visits = np.zeros(2, np.int64)

    def __len__(self) -> int:
        """Live messages. O(messages) where boundaries are kept."""
        if not self.kept_boundaries:
            return self._in_heap
        slots = self._heap[: self._in_heap]
        alive = (self.log.life[slots] > self.boundary.floor) & (self.log.ended[slots] == NEVER)
        return int(np.count_nonzero(alive))

    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64, objects: Int64 | None = None) -> None:
        """Take the next batch.

        Parameters
        ----------
        boundary : Boundary      the next one
        messages : MessageBatch  n messages with ascending seq, later than all before
        ended : int64[m]         seqs of messages, of this batch or earlier ones, that are alive no more because a later
                                 version or a deletion has ended them; unknown or expired ones are ignored
        objects : int64[n]       object of each message, so that versions can be kept together; `ended` must then name
                                 the version that a new one replaces. By default every message is an object of its
                                 own. Given for every batch or for none.

        Raises
        ------
        EngineError
            If the batch is not the next one, or its messages do not follow.
        """
        messages = without_reserved(messages)
        self._check(boundary, messages, objects)
        self.known = [*self.known, boundary][-1 - self.kept_boundaries :]
        ended = as_input(ended, np.int64)
        self._note_ends(boundary.number, ended)
        slots = self._due()
        size = heap_remove(self._heap, self._place, self._in_heap, self.log.life, slots)
        expired = np.empty(size, np.int32)
        count = heap_expired(self._heap, self._place, size, self.log.life, self.known[0].floor, expired)
        self._in_heap = size - count
        if slots.shape[0] + count:
            self._end(as_input(np.concatenate([slots, expired[:count]]), np.int32))
        kept = np.flatnonzero((messages.life > boundary.floor) & ~np.isin(messages.seq, ended))
        if kept.shape[0]:
            self._add(messages.take(kept), None if objects is None else as_input(objects, np.int64)[kept])

    def _add(self, messages: MessageBatch, objects: Int64 | None) -> None:
        slots = self.log.insert(messages, objects)
        capacity = self.log.slots.capacity
        self._heap, self._place = grown(self._heap, capacity), grown(self._place, capacity, -1)
        self._in_heap = heap_push(self._heap, self._place, self._in_heap, self.log.life, slots)
        self._insert(as_input(slots, np.int32))

    def _note_ends(self, number: int, ended: Int64) -> None:
        """Batch `number` ends these messages; unknown ones, and those that have ended before, are ignored."""
        slots = self.log.slots.find(np.unique(ended))
        slots = slots[slots >= 0]
        slots = slots[self._place[slots] >= 0]
        if self.kept_boundaries:
            slots = slots[self.log.ended[slots] == NEVER]
            self.log.ended[slots] = number
        if slots.shape[0]:
            self._late_ends.append((number, slots))

    def _due(self) -> Int32:
        """Slots of messages to end in the tree: their ends precede all retained boundaries."""
        due = [np.zeros(0, np.int32)]
        while self._late_ends and self._late_ends[0][0] <= self.known[0].number:
            number, slots = self._late_ends.popleft()
            if self.kept_boundaries:  # some have expired meanwhile, and their slots may be reused
                slots = slots[(self._place[slots] >= 0) & (self.log.ended[slots] == number)]
            due.append(slots)
        return np.concatenate(due)

    def candidates(self, queries: SkylineQueries, as_of: Boundary | None = None) -> Candidates:
        """See `SkylineWindow.candidates`; for the cost, see the index."""
        as_of = self._known_boundary(as_of)
        count = queries.region.shape[0]
        region = as_input(queries.region, np.float64)
        offsets, terms = as_input(queries.term_offsets, np.int64), as_input(queries.terms, np.int32)
        ends = np.zeros(count + 1, np.int64)
        found = _new_columns(_FEWEST_CANDIDATES)
        done = 0
        while done < count:
            done = self._search(as_of, region, offsets, terms, done, ends, found)
            if done < count:
                needed = max(2 * found.seq.shape[0], int(ends[done + 1]))
                found = CandidateColumns(*(resized(column, needed) for column in found))
        total = int(ends[-1])
        order = np.empty(total, np.int64)
        sort_rows(found.seq, ends, order)
        seq, life, spatial, text = found
        return Candidates(ends, seq[order], life[order], spatial[order], text[order])

    def work(self) -> TreeWork:
        """Cost of updates and queries so far."""
        return TreeWork(*self._update_work(), *map(int, self._visits))

    def bytes(self) -> dict[str, int]:
        """Memory in use, in bytes: `index` (the tree with its texts), `log` (the messages, alike for all trees)."""
        return {"index": self._index_bytes(), "log": self.log.used_bytes() + 8 * self.log.slots.high_water}

    def size_bytes(self) -> int:
        """Memory of all arrays in bytes, spare capacity included."""
        index = sum(column.nbytes for group in self._state().values() for column in group.values())
        late = sum(slots.nbytes for _, slots in self._late_ends)
        return index + late + self.log.size_bytes() + self._heap.nbytes + self._place.nbytes

    def _check(self, boundary: Boundary, messages: MessageBatch, objects: Int64 | None) -> None:
        last = self.boundary
        if boundary.number != last.number + 1 and last.number >= 0:
            raise EngineError(f"window: batch {boundary.number} cannot follow batch {last.number}; store each one once")
        if boundary.floor < last.floor:
            raise EngineError(f"window: floor {boundary.floor} of batch {boundary.number} is below {last.floor}")
        seq = messages.seq
        if seq.shape[0] and (seq[0] <= last.last_seq or np.any(np.diff(seq) <= 0)):
            raise EngineError(f"window: messages of batch {boundary.number} must ascend from seq {last.last_seq + 1}")
        if seq.shape[0] and seq[-1] > boundary.last_seq:
            raise EngineError(f"window: message {seq[-1]} of batch {boundary.number} comes after {boundary.last_seq}")
        if len(self.log) and seq.shape[0] and (objects is None) != (self.log.object.shape[0] == 0):
            raise EngineError(f"window: objects of batch {boundary.number}: give them for every batch or for none")

    @abstractmethod
    def _insert(self, slots: Int32) -> None:
        """Insert messages of the log into the tree."""

    @abstractmethod
    def _end(self, slots: Int32) -> None:
        """End messages that no query can reach any more; those removed from the tree are removed from the log too."""

    @abstractmethod
    def _search(self, as_of: Boundary, region, offsets, terms, first: int, ends: Int64, found: CandidateColumns) -> int:
        """Answer queries from `first` on; returns the first that did not fit in `found`, with its end in `ends`.

        ends[q + 1] is the end of the candidates of q; `messages.lived_at` says which lived at the boundary.
        """

    @abstractmethod
    def _update_work(self) -> tuple[int, int, int, int]:
        """The first four of `TreeWork`."""

    @abstractmethod
    def _index_bytes(self) -> int: ...

    @abstractmethod
    def _state(self) -> dict[str, dict[str, np.ndarray]]:
        """Arrays beside the log's, in groups."""


def tables_of(**tables: Any) -> dict[str, dict[str, np.ndarray]]:
    """Groups of arrays from NamedTuples of arrays, by name."""
    return {name: table._asdict() for name, table in tables.items()}


def _new_columns(length: int) -> CandidateColumns:
    return CandidateColumns(np.empty(length, np.int64), np.empty(length, np.int64), np.empty(length), np.empty(length))
