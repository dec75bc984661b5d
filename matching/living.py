"""What ranked kinds need where the stream is one of objects: who holds a version that ends, and which objects stay.

A version ends when its object gets a new one or is deleted; several in a batch count as the one that stands at its
boundary. `Holders` finds the subscriptions whose results have a version that ends. `Succession` says which version an
object had at the last boundary, so that one which is in a result before and after neither leaves nor enters, but
changes for those that ask.
"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from compiling.njit import njit_no_refcount
from matching.filters import asked_of
from matching.influence import KeyRows, enter_row, find_row
from matching.model import (
    CHANGE,
    ENTER,
    LEAVE,
    Int32,
    Int64,
    MessageBatch,
    SubscriptionTable,
    UpdateBatch,
    take_rows,
)
from matching.storage.slots import as_input, grown
from matching.storage.squares import home_of_key
from matching.window import Boundary

#: Notes are made anew from the results when there are this many times as many as entries, and some more.
_STALE, _FEW_NOTES = 2, 4096
_NO_NUMBERS = np.zeros(0, np.int64)


class Holders:
    """Which slots hold a version: notes of what was offered to results, some of which may not hold it any more.

    Attributes
    ----------
    count : int    notes
    """

    def __init__(self):
        self._heads = KeyRows(1)  # by seq: the newest note about it, from 1
        self._notes = np.zeros((16, 2), np.int32)  # the slot, and the next note about the same version, from 1
        self.count = 1  # note 0 ends lists

    def add(self, slots: Int32, seqs: Int64) -> None:
        """Note that slot i was offered version i. O(n), amortised."""
        if slots.shape[0]:
            self._heads.reserve(slots.shape[0])
            self._notes = grown(self._notes, self.count + slots.shape[0])
            _note(self._heads.rows, self._heads.entered, self._notes, self.count, slots, seqs)
            self.count += slots.shape[0]

    def pop(self, seqs: Int64) -> Int32:
        """Slots that may hold any of these versions, ascending, each once; their notes are dropped. O(notes)."""
        slots = np.empty(1024, np.int32)
        while (found := _find(self._heads.rows, self._notes, seqs, slots, False)) > slots.shape[0]:
            slots = np.empty(found, np.int32)
        _find(self._heads.rows, self._notes, seqs, slots, True)
        return np.unique(slots[:found])

    def is_stale(self, entries: int) -> bool:
        """Whether there are far more notes than entries of results: time to make them anew."""
        return self.count > _STALE * entries + _FEW_NOTES

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory."""
        return {"heads": self._heads.rows, "notes": self._notes}


class Succession(NamedTuple):
    """Of a batch: versions that stand at its boundary (`seq` int64[n], ascending), and the version that the object of
    each had at the boundary before (`before` int64[n]).
    """

    seq: Int64
    before: Int64

    @classmethod
    def of(cls, messages: MessageBatch, ended: Int64) -> "Succession":
        """From the rows of a batch and the seqs that end in it. O(n log n)."""
        if not messages.previous_seq.shape[0]:
            return NO_SUCCESSION
        before = messages.previous_seq[first_rows(messages)]
        rows = np.flatnonzero((before >= 0) & ~np.isin(messages.seq, ended))
        return cls(messages.seq[rows], before[rows])

    def plus(self, seq: Int64, before: Int64) -> "Succession":
        """With versions that another task has seen. O(n log n)."""
        if not seq.shape[0]:
            return self
        every, first = np.unique(np.concatenate([self.seq, seq]), return_index=True)
        return Succession(every, np.concatenate([self.before, before])[first])

    def difference(
        self, boundary: Boundary, number: Int64, before: Any, now: Any, asking: Int64 = _NO_NUMBERS
    ) -> UpdateBatch:
        """Updates of subscriptions (int64[rows]) between results at the last boundary and at this one; leaves first.

        `before` and `now` are as in `matching.result_rows`. Objects that stay have no update, but a `change` for those
        of the subscriptions in `asking` (int64[m]) if they have another version. O(n log n).
        """
        (offsets, left, left_score, *_), (now_offsets, came, came_score, *_) = before, now
        owner = np.concatenate([np.repeat(number, np.diff(offsets)), np.repeat(number, np.diff(now_offsets))])
        origin = came
        if self.seq.shape[0]:
            at = np.minimum(np.searchsorted(self.seq, came), self.seq.shape[0] - 1)
            origin = np.where(self.seq[at] == came, self.before[at], came)
        change = np.repeat(np.array([LEAVE, ENTER], np.int8), [left.shape[0], came.shape[0]])
        # a version leaves once and an object enters once: those that stay are pairs
        seq = np.concatenate([left, origin])
        order = np.lexsort((seq, owner))
        same = (seq[order][1:] == seq[order][:-1]) & (owner[order][1:] == owner[order][:-1])
        changes = np.ones(owner.shape[0], np.bool_)
        changes[order[1:][same]] = changes[order[:-1][same]] = False
        if asking.shape[0] and self.seq.shape[0]:
            stay = order[1:][same]  # the sort is stable: of each pair the row that came
            stay = stay[(origin != came)[stay - left.shape[0]] & np.isin(owner[stay], asking)]
            changes[stay], change[stay] = True, CHANGE
        as_of, score = np.full(owner.shape[0], boundary.last_seq), np.concatenate([left_score, came_score])
        return take_rows(UpdateBatch(as_of, owner, np.concatenate([left, came]), change, score), changes)


NO_SUCCESSION = Succession(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Successions:
    """Those of the batches whose updates are not all out yet, and the subscriptions that ask for changes."""

    def __init__(self) -> None:
        self._by_batch: dict[int, Succession] = {}
        self._asking: set[int] = set()  # numbers
        self._ending: deque[tuple[int, Int64]] = deque()  # batch, and numbers that end with it

    def add(self, table: SubscriptionTable) -> None:
        """Note those of new subscriptions that ask for changes. O(n)."""
        if table.filter_words.shape[0]:
            self._asking.update(table.number[asked_of(table) >> CHANGE & 1 == 1].tolist())

    def note(self, boundary: Boundary, succession: Succession, watermark: int, gone: Int64 = _NO_NUMBERS) -> None:
        """Keep that of a batch, with which subscriptions `gone` end, and forget what is up to `watermark`."""
        for batch in [batch for batch in self._by_batch if batch <= watermark]:
            del self._by_batch[batch]
        while self._ending and self._ending[0][0] <= watermark:
            self._asking.difference_update(self._ending.popleft()[1].tolist())
        if succession.seq.shape[0]:
            self._by_batch[boundary.number] = succession
        if self._asking and gone.shape[0]:
            self._ending.append((boundary.number, gone))

    def difference(self, boundary: Boundary, number: Int64, before: Any, now: Any) -> UpdateBatch:
        """As `Succession.difference`, of the batch of this boundary."""
        succession = self._by_batch.get(boundary.number, NO_SUCCESSION)
        asking = np.fromiter(self._asking, np.int64, len(self._asking)) if succession.seq.shape[0] else _NO_NUMBERS
        return succession.difference(boundary, number, before, now, asking)


def first_rows(messages: MessageBatch) -> Int64:
    """Row of the first version in a batch of each row's object (int64[n]); a deletion ends one. O(n log n)."""
    first = np.empty(len(messages), np.int64)
    _trace(as_input(messages.seq, np.int64), as_input(messages.previous_seq, np.int64), first)
    return first


def traced(messages: MessageBatch) -> MessageBatch:
    """The messages with the version that each object had before the batch in place of the one that each row replaces.

    O(n log n).
    """
    return messages.having(previous_seq=messages.previous_seq[first_rows(messages)])


@njit_no_refcount
def _note(heads, entered, notes, count, slots, seqs):
    """Put a note in front of the list of each version."""
    for i in range(slots.shape[0]):
        at = enter_row(heads, entered, seqs[i])
        notes[count + i, 0], notes[count + i, 1] = slots[i], heads[at, 1]
        heads[at, 1] = count + i


@njit_no_refcount
def _find(heads, notes, seqs, slots, drops):
    """Write the slots in the lists of versions, as many as fit; returns how many there are."""
    found = 0
    for seq in seqs:
        at = find_row(heads, seq, home_of_key(seq, heads.shape[0]))
        if at < 0:
            continue
        note = heads[at, 1]
        while note > 0:
            if found < slots.shape[0]:
                slots[found] = notes[note, 0]
            found += 1
            note = notes[note, 1]
        if drops:
            heads[at, 1] = 0
    return found


@njit_no_refcount
def _trace(seqs, previous, first):
    """Write the row of the first version of each row's object in the batch (`first_rows`)."""
    for row in range(seqs.shape[0]):
        low, high = 0, row
        while low < high:
            middle = (low + high) >> 1
            if seqs[middle] < previous[row]:
                low = middle + 1
            else:
                high = middle
        first[row] = first[low] if low < row and seqs[low] == previous[row] else row
