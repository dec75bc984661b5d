"""Numbers to slots: which dense row of an engine's columns belongs to the subscription of a given number.

A slot is an int32 row that is handed out again once its subscription has gone; numbers are the engine-wide int64 ids,
never used twice. Every engine keeps its columns by slot and one `SlotMap` beside them. The table is open addressing
over slots only: the number is compared in the `number` column, which an engine needs anyway.
"""

from copy import copy

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.errors import EngineError
from matching.model import Int32, Int64

EMPTY = -1
#: Words of 8 bytes in a cache line.
LINE_WORDS = 8
#: Longer runs of linear probing cost more than the 4 bytes an empty place takes.
_FULLEST = 0.7
_FEWEST_BITS = 4
_END_OF_FREE = -1


class SlotMap:
    """Open-addressing map from number (int64, >= 0) to slot, in bulk.

    Deletion shifts later entries back, so lookups stay short however long the stream of changes runs. Free slots
    form a list inside the `number` column (entry -2 - next for a free slot), so they cost no memory of their own.
    """

    def __init__(self):
        self.index = np.full(1 << _FEWEST_BITS, EMPTY, np.int32)
        self.number = np.full(0, -1, np.int64)
        self._state = np.array([0, 0, _END_OF_FREE], np.int64)  # live, high-water mark, first free slot
        #: Calls of `insert` and `remove` that have changed something.
        self.changes = 0

    def __len__(self) -> int:
        return int(self._state[0])

    @property
    def capacity(self) -> int:
        """Rows that columns by slot need: every slot handed out is below this."""
        return self.number.shape[0]

    @property
    def high_water(self) -> int:
        """Slots from here on have never been used."""
        return int(self._state[1])

    def live_slots(self) -> Int32:
        """Slots in use, int32[n], ascending. O(capacity)."""
        return np.flatnonzero(self.number >= 0).astype(np.int32)

    def find(self, numbers: Int64) -> Int32:
        """Slots of these numbers, int32[n], -1 where there is none. O(n)."""
        slots = np.empty(numbers.shape[0], np.int32)
        if not slots.size:
            return slots
        find_slots(self.index, self.number, as_input(numbers, np.int64), slots)
        return slots

    def insert(self, numbers: Int64) -> Int32:
        """Give each number a slot, int32[n]; grown `number` and `index` are new arrays. O(n), amortised.

        Raises
        ------
        EngineError
            If a number is negative, here already, or there twice; nothing is changed then.
        """
        numbers = as_input(numbers, np.int64)
        self.changes += numbers.shape[0] > 0
        self._grow(len(self) + numbers.shape[0])
        slots = np.empty(numbers.shape[0], np.int32)
        done = _insert(self.index, self.number, self._state, numbers, slots)
        if done < numbers.shape[0]:
            # In reverse, so that the slots return to the free list in the order in which they came off it.
            _remove(self.index, self.number, self._state, as_input(slots[:done][::-1], np.int32))
            raise EngineError(
                f"subscription {numbers[done]} cannot be added: numbers are not negative and never used twice; "
                "remove the old one first or take the next number"
            )
        return slots

    def remove(self, numbers: Int64) -> Int32:
        """Remove these numbers; returns the slots they had. O(n).

        Raises
        ------
        EngineError
            If a number is not here or there twice; nothing is changed then.
        """
        slots = self.find(numbers)
        if slots.shape[0] and (slots.min() < 0 or np.unique(slots).shape[0] < slots.shape[0]):
            unknown = numbers[slots < 0]
            which = f"{unknown[0]} is not here" if unknown.shape[0] else "is named twice"
            raise EngineError(f"subscriptions cannot be removed: {which}; remove each one once, after it was added")
        _remove(self.index, self.number, self._state, as_input(slots, np.int32))
        self.changes += slots.shape[0] > 0
        return slots

    def snapshot(self) -> "SlotMap":
        """A frozen copy for `number`, which later calls do not change. O(slots)."""
        now = copy(self)
        now.number, now._state = self.number[: self.high_water].copy(), self._state.copy()
        return now

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory: `number` (up to the high-water mark), `index`, `state`."""
        return {"number": self.number[: self.high_water], "index": self.index, "state": self._state}

    def allocated_bytes(self) -> int:
        """Memory, unused rows included."""
        return self.number.nbytes + self.index.nbytes + self._state.nbytes

    def _grow(self, needed: int) -> None:
        if needed > self.capacity:
            if needed > 2**31 - 1:
                raise EngineError(
                    f"{needed} subscriptions do not fit one engine: use more query bolts (at most 2**31 - 1 each)"
                )
            self.number = grown(self.number, needed, -1)
        if needed > _FULLEST * self.index.shape[0]:
            bits = max(_FEWEST_BITS, int(np.ceil(np.log2(needed / _FULLEST))))
            self.index = np.full(1 << bits, EMPTY, np.int32)
            _index_all(self.index, self.number, self.high_water)


def grown_length(have: int, needed: int) -> int:
    """Rows to allocate when `have` are not enough: half as many again, so that growth is amortised."""
    return needed if have == 0 else max(needed, have + have // 2)


def resized(column: np.ndarray, length: int, fill: int | float = 0) -> np.ndarray:
    """A longer copy of a column, the new part filled; the filling keeps its type, so that no integer is rounded.

    O(length).
    """
    shape = length, *column.shape[1:]
    # zeros take no memory until they are written to
    grown = np.zeros(shape, column.dtype) if fill == 0 else np.full(shape, fill, column.dtype)
    grown[: column.shape[0]] = column
    return grown


def grown(column: np.ndarray, needed: int, fill: int | float = 0) -> np.ndarray:
    """The column, or a copy with at least `needed` rows and half as many again as before, the new part filled."""
    have = column.shape[0]
    return column if needed <= have else resized(column, grown_length(have, needed), fill)


@njit(cache=True, nogil=True)
def longer(array: np.ndarray, needed) -> np.ndarray:
    """In a kernel: the array, or a copy of twice `needed` rows with the same beginning; the rest is undefined."""
    if needed <= array.shape[0]:
        return array
    copy = np.empty((2 * needed,) + array.shape[1:], array.dtype)  # noqa: RUF005 - numba unpacks no tuple here
    for i in range(array.size):
        copy.flat[i] = array.flat[i]
    return copy


@njit_inner_no_refcount
def put(target, first, values):
    """In a kernel: `target[first : first + n] = values`, for which Numba would compile the text of an error (2 s)."""
    for i in range(values.shape[0]):
        target[first + i] = values[i]


@njit_inner_no_refcount
def put_row(target, row, values):
    """In a kernel: `target[row] = values`, for the same reason."""
    for i in range(values.shape[0]):
        target[row, i] = values[i]


def cache_aligned(count: int, words: int) -> Int64:
    """Rows of zeros, int64[count, words], of which the first begins a cache line: those of 2, 4, 8 words lie in one."""
    values = np.zeros(count * words + LINE_WORDS, np.int64)
    first = -values.ctypes.data // values.itemsize % LINE_WORDS
    return values[first : first + count * words].reshape(count, words)


def as_input(array: np.ndarray, dtype: type) -> np.ndarray:
    """The array as every kernel takes its inputs: C-contiguous, aligned, read-only.

    Arrays from the object store are read-only and others are not; seen through this, a kernel needs one compiled
    signature for both. No copy unless dtype or layout differ.
    """
    flags = array.flags
    # most are as they should be, and a small batch has dozens: `require` would take longer than some kernels do
    if not (type(array) is np.ndarray and array.dtype == dtype and flags.c_contiguous and flags.aligned):
        array = np.require(array, dtype, ("C", "A"))
    elif not flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


@njit(cache=True, nogil=True)
def home_of(number, places):
    """Where a number belongs in a table of `places` (a power of two) entries: multiplicative hashing.

    Kept within 63 bits, so that it means the same with the compiler switched off.
    """
    # Numbers may carry much in their upper half (keys of cells, pairs of node and term), so it is folded in.
    folded = (number ^ (number >> 31)) & 0x7FFFFFFF
    # Scaled by the high bits of the product, not masked: they depend on all bits of the number.
    return ((folded * 0x9E3779B1 & 0xFFFFFFFF) * places) >> 32


@njit_inner
def find_slot(index, numbers, number):
    """Slot of one number, -1 if it is not there. For use inside other kernels."""
    # The table is never fuller than `_FULLEST`, so an empty place ends every search.
    place = home_of(number, index.shape[0])
    while True:
        slot = index[place]
        if slot < 0 or numbers[slot] == number:
            return slot
        place = (place + 1) & (index.shape[0] - 1)


@njit(cache=True, nogil=True)
def find_slots(index, column, numbers, out):
    """Write the slot of each of `numbers` into out (int32[n]), -1 where there is none."""
    for i in range(numbers.shape[0]):
        out[i] = find_slot(index, column, numbers[i])


@njit_no_refcount
def _insert(index, column, state, numbers, out):
    """Give slots to numbers, the most recently freed first; returns how many, short of all at the first bad one."""
    for i in range(numbers.shape[0]):
        number = numbers[i]
        # Also finds a number that comes twice in one call: the first is entered by now.
        if number < 0 or find_slot(index, column, number) >= 0:
            return i
        # The list of free slots runs through their own numbers, -2 - next: all negative, its end (-1) as well.
        slot = state[2]
        if slot >= 0:
            state[2] = -2 - column[slot]
        else:
            slot = state[1]
            state[1] += 1
        column[slot] = number
        state[0] += 1
        out[i] = slot
        _enter(index, column, slot)
    return numbers.shape[0]


@njit(cache=True, nogil=True)
def _enter(index, column, slot):
    # `SlotMap._grow` has made sure that there is an empty place.
    place = home_of(column[slot], index.shape[0])
    while index[place] >= 0:
        place = (place + 1) & (index.shape[0] - 1)
    index[place] = slot


@njit(cache=True, nogil=True)
def _index_all(index, column, high_water):
    """Fill an empty index with every live slot."""
    for slot in range(high_water):
        # Free slots have negative numbers.
        if column[slot] >= 0:
            _enter(index, column, slot)


@njit(cache=True, nogil=True)
def _remove(index, column, state, slots):
    """Free live slots, and move later entries of the run back: tombstones would lengthen lookups until a rehash."""
    last = index.shape[0] - 1
    for slot in slots:
        hole = home_of(column[slot], index.shape[0])
        # Slots are compared, not numbers: they stand in the table itself.
        while index[hole] != slot:
            hole = (hole + 1) & last
        place = (hole + 1) & last
        while index[place] >= 0:
            home = home_of(column[index[place]], index.shape[0])
            # An entry may fill the hole unless its home lies after the hole, counted in the direction of probing.
            if ((place - home) & last) >= ((place - hole) & last):
                index[hole] = index[place]
                hole = place
            place = (place + 1) & last
        index[hole] = EMPTY
        column[slot] = -2 - state[2]
        state[2] = slot
        state[0] -= 1
