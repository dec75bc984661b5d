"""Live change for indexes that are built at once: parts of growing size, and a short tail that is scanned.

`papers.lfilter.mbr_trie`, `pt_quadtree` and `lfilter` are flat arrays without gaps, fast to walk and impossible to
insert into. So an engine has several of them (the logarithmic method of Bentley and Saxe, 1980): what is inserted waits
in a tail, a full tail is built into a part, and a part swallows earlier ones that are not much larger. Each
subscription is built O(log n) times in its life; a message visits O(log n) parts, most of them tiny. Removal marks the
box, and a part with too many marks is built again without them.

Here are also the pieces that every part has: boxes in rank order as lattice words (`matching.storage.cells`), text
signatures, and the test that decides a candidate.
"""

from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.boolean.engine import BooleanEngine
from matching.model import Int32
from matching.space import Space
from matching.storage.cells import GUARDS, ONE_IN_EACH_LANE, lattice, message_word, subscription_word
from matching.storage.region_messages import Messages
from matching.storage.region_subscriptions import all_terms_in, box_meets, region_meets
from matching.storage.slots import as_input, grown

_LATTICE_STEPS = 2.0**15
#: A part is built once more than this many subscriptions wait. Looking through them costs some 50 ns a message.
TAIL_CAPACITY = 32
#: A new part swallows the one before it unless that is this much larger: 4 keeps parts few and each rebuilt little.
_GROWTH = 4
_DEAD_FRACTION = 0.5
#: With several parts, hits come part by part and are sorted for this many messages at a time.
_ROWS_SORTED = 1_024
#: Entry of `slot` for a box whose subscription has gone.
GONE = -(2**31)
_NOWHERE, _IN_TAIL = -1, -2
#: Bits of the table of a message's terms, 2 KB: 6 % of other terms slip through for a message of 1,000 terms.
_MARK_BITS = 14
MARK_WORDS = 1 << (_MARK_BITS - 6)
#: Flag of a candidate whose keywords are not tested yet; the bits below are the rank.
TEST_TEXT = 1 << 32
#: Capacity of `Scratch.cells`.
CELL_STACK = 64
#: Cell of a candidate that is in no other cell of the index.
ONLY_HERE = -1

Frame = tuple[float, float, float]
Arrays = dict[str, np.ndarray]


class PartBoxes(NamedTuple):
    """Boxes of a part, by rank; a region across the antimeridian has two, on neighbouring ranks.

    slot : int32[r]    the subscription's slot, its complement for a second box, `GONE` once removed
    word : uint64[r]   the box on the lattice (`matching.storage.cells`), level bits zero
    text : uint64[r]   places in the table of marks of the four rarest keywords; of fewer, the last is repeated
    """

    slot: np.ndarray
    word: np.ndarray
    text: np.ndarray


class Scratch(NamedTuple):
    """What the kernels of a call write to; each is as long as any of its messages can need.

    hits, nodes : int64[t]   nodes of the trie to visit, t terms of the longest message: what is on the stack ascends by
                             the place of its term (children are pushed in order, and lie behind their parent's)
    pieces : int64[2 t]      the same with the piece of a list that lies below each node
    cells : int64[64]        cells of the quadtree to visit: of 14 levels three siblings each, and four of the last
    lists : int64[l]         cells with a list that may have a match; no more than there are cells
    candidates : int64[c]    see `verify`; a rank stands in a trie once, an entry in one list, so c is their number
    places : int64[c]        the cell that each was found in; none if the part has no lists
    nowhere : int64[0]       in the place of `places` for candidates that the trie found
    marks : uint64[MARK_WORDS]    zero between two messages
    """

    hits: np.ndarray
    nodes: np.ndarray
    pieces: np.ndarray
    cells: np.ndarray
    lists: np.ndarray
    candidates: np.ndarray
    places: np.ndarray
    nowhere: np.ndarray
    marks: np.ndarray


class PartedEngine(BooleanEngine):
    """A boolean engine made of parts that never grow; see the module. Subclasses say what a part is."""

    def __init__(self, space: Space):
        super().__init__(space)
        self._steps_per_degree = _LATTICE_STEPS / max(space.east - space.west, space.north - space.south)
        self._parts: list[Arrays] = []
        self._views: list[tuple] = []
        self._gone: list[int] = []
        self._place = np.zeros(0, np.int64)  # part << 32 | rank, or _NOWHERE or _IN_TAIL
        self._tail = np.zeros(0, np.int32)

    @property
    def frame(self) -> Frame:
        """Corner of the world and lattice steps a degree."""
        return self.space.west, self.space.south, self._steps_per_degree

    @property
    def parts(self) -> int:
        """How many parts there are now."""
        return len(self._parts)

    def _post(self, slots: Int32) -> None:
        self._place = grown(self._place, self.subscriptions.slots.capacity, _NOWHERE)
        fresh = slots[self.subscriptions.columns.start[slots] >= 0]
        self._place[fresh] = _IN_TAIL
        self._tail = np.concatenate([self._tail, fresh])
        if self._tail.shape[0] > TAIL_CAPACITY:
            self._build_tail()

    def _unpost(self, slots: Int32) -> None:
        place = self._place[slots]
        self._place[slots] = _NOWHERE
        if np.any(place == _IN_TAIL):
            self._tail = self._tail[self._place[self._tail] == _IN_TAIL]
        built = place >= 0
        which, rank, slots = place[built] >> 32, place[built] & 0xFFFFFFFF, slots[built]
        # From the last part on, since a part that is left empty goes and those behind it move up.
        for number in range(len(self._parts) - 1, -1, -1):
            here = which == number
            if not here.any():
                continue
            column = self._parts[number]["slot"]
            column[rank[here]] = GONE
            after = np.minimum(rank[here] + 1, column.shape[0] - 1)
            column[after[column[after] == ~slots[here]]] = GONE
            self._gone[number] += int(np.count_nonzero(here))
            if self._gone[number] > _DEAD_FRACTION * column.shape[0]:
                self._replace(number, self._live(number))

    def _build_tail(self) -> None:
        """Make a part of the tail and of the parts before it that are not much larger."""
        slots, self._tail = self._tail, np.zeros(0, np.int32)
        swallowed = [slots]
        total = slots.shape[0]
        while self._parts and self._parts[-1]["slot"].shape[0] - self._gone[-1] < _GROWTH * total:
            swallowed.append(self._live(len(self._parts) - 1))
            total += swallowed[-1].shape[0]
            del self._parts[-1], self._views[-1], self._gone[-1]
        self._parts.append({})
        self._views.append(())
        self._gone.append(0)
        self._replace(len(self._parts) - 1, np.concatenate(swallowed[::-1]))

    def _live(self, number: int) -> Int32:
        slots = self._parts[number]["slot"]
        return slots[slots >= 0]

    def _replace(self, number: int, slots: Int32) -> None:
        """Build part `number` anew from these slots; without any, it goes."""
        if slots.shape[0] == 0:
            del self._parts[number], self._views[number], self._gone[number]
            for later in range(number, len(self._parts)):
                self._note_places(later)
            return
        self._parts[number] = self._build(as_input(slots, np.int32))
        self._views[number] = self._view(self._parts[number])
        self._gone[number] = 0
        self._note_places(number)

    def _note_places(self, number: int) -> None:
        column = self._parts[number]["slot"]
        rank = np.flatnonzero(column >= 0)
        self._place[column[rank]] = number << 32 | rank

    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        last = messages.west.shape[0]
        columns = self.subscriptions.columns
        if len(self._parts) == 1 and self._tail.shape[0] == 0:
            return self._match_part(messages, first_row, last, self._views[0], slots, rows)
        last = min(last, first_row + _ROWS_SORTED)
        found, scanned, verified = 0, 0, 0
        for view in self._views:
            more, next_row, looked, tested = self._match_part(
                messages, first_row, last, view, slots[found:], rows[found:]
            )
            if next_row < last:
                return 0, first_row, 0, 0
            found, scanned, verified = found + more, scanned + looked, verified + tested
        if self._tail.shape[0]:
            tail = as_input(self._tail, np.int32)
            more, next_row, looked, tested = _match_tail(
                messages, first_row, last, tail, columns, slots[found:], rows[found:]
            )
            if next_row < last:
                return 0, first_row, 0, 0
            found, scanned, verified = found + more, scanned + looked, verified + tested
        _put_in_order(slots[:found], rows[:found], first_row, last)
        return found, last, scanned, verified

    def _index_arrays(self) -> Arrays:
        arrays = {"tail": self._tail, "place": self._place[: self.subscriptions.slots.high_water]}
        for number, columns in enumerate(self._parts):
            arrays |= {f"part{number}_{name}": value for name, value in columns.items()}
        return arrays

    def _index_bytes(self) -> int:
        parts = sum(column.nbytes for columns in self._parts for column in columns.values())
        return parts + self._tail.nbytes + self._place.nbytes

    def _boxes_of(self, slots: Int32):
        """Boxes of these slots (each has a place where it matches): slot, word, text, Morton code of the first box."""
        regions = self.subscriptions.columns.region[slots]
        count = slots.shape[0] + np.count_nonzero(regions[:, 0] > regions[:, 2])
        slot, morton = np.empty(count, np.int32), np.empty(count, np.int64)
        word, text = np.empty(count, np.uint64), np.empty(count, np.uint64)
        _describe(slots, self.subscriptions.columns, *self.frame, slot, word, text, morton)
        return slot, word, text, morton

    @abstractmethod
    def _build(self, slots: Int32) -> Arrays:
        """Arrays of a part with these subscriptions (int32[n], n > 0); `slot` as in `PartBoxes` is one of them."""

    @abstractmethod
    def _view(self, arrays: Arrays) -> tuple:
        """What the kernels take: read-only views of the arrays of a part."""

    @abstractmethod
    def _match_part(
        self, messages: Messages, first_row: int, last_row: int, view: tuple, slots: Int32, rows: Int32
    ) -> tuple[int, int, int, int]:
        """As `_scan`, for one part and the rows up to `last_row`."""


@njit_inner
def scratch_for(messages, first_row, last_row, candidates, lists):
    """Scratch for these rows of a part; `candidates` is the larger of ranks and entries of lists."""
    longest = 1
    for row in range(first_row, last_row):
        longest = max(longest, messages.term_offsets[row + 1] - messages.term_offsets[row])
    # What is not written to costs addresses and no memory.
    return Scratch(
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
        np.empty(2 * longest, np.int64),
        np.empty(CELL_STACK, np.int64),
        np.empty(lists, np.int64),
        np.empty(candidates, np.int64),
        np.empty(candidates if lists else 0, np.int64),
        np.empty(0, np.int64),
        np.zeros(MARK_WORDS, np.uint64),
    )


@njit_inner
def text_bit(term):
    """Bit of a term in the signature of a text."""
    return np.uint64(1) << np.uint64(term & 63)


@njit(cache=True, nogil=True)
def _mark_of(term):
    """Place of a term in the table of marks."""
    # The high bits of the product, which all bits of a term reach; within 63 bits, compiled or not.
    return (np.int64(term) * 0x9E3779B1 & 0xFFFFFFFF) >> (32 - _MARK_BITS)


@njit_no_refcount
def is_set(marks, place):
    """Bit of the table of marks."""
    return marks[place >> 6] >> np.uint64(place & 63) & np.uint64(1)


@njit_inner_no_refcount
def is_marked(marks, term):
    """1 if a message may have the term, 0 if it has not."""
    return is_set(marks, _mark_of(term))


@njit_inner_no_refcount
def may_carry(marks, text):
    """Whether a message may have the keywords of a box, by `PartBoxes.text`: wrong for one in thousands if short."""
    # The rarest keyword first: it is the one that most messages lack.
    if not is_set(marks, np.int64(text & np.uint64(0xFFFF))):
        return False
    for lane in range(1, 4):  # noqa: SIM110 - numba knows no all() over a generator
        if not is_set(marks, np.int64(text >> np.uint64(16 * lane) & np.uint64(0xFFFF))):
            return False
    return True


@njit_inner_no_refcount
def mark_terms(marks, terms, first, last):
    """Mark terms[first:last] in a zeroed table (uint64[MARK_WORDS]); returns their signature."""
    signature = np.uint64(0)
    for j in range(first, last):
        place = _mark_of(terms[j])
        marks[place >> 6] |= np.uint64(1) << np.uint64(place & 63)
        signature |= text_bit(terms[j])
    return signature


@njit_inner_no_refcount
def clear_terms(marks, terms, first, last):
    """Undo `mark_terms`."""
    for j in range(first, last):
        # The whole word: whatever else is set in it is of this message too.
        marks[_mark_of(terms[j]) >> 6] = np.uint64(0)


@njit_inner_no_refcount
def first_not_below(values, low, high, wanted):
    """First place in values[low:high] (ascending) that is not below `wanted`; `high` if there is none."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit_inner
def log2_of(count):
    """Steps of a binary search among `count`."""
    steps = 1
    while count > 1:
        count >>= 1
        steps += 1
    return steps


@njit_no_refcount
def has_all(pool, position, terms, first, last, marks):
    """`rows.all_terms_in` for a message whose terms are marked and ascending."""
    while True:
        term = pool[position]
        ends = term < 0
        if ends:
            term = ~term
        # Cheap first: one bit turns most away, and only what passes is searched for.
        if not is_marked(marks, term):
            return False
        place = first_not_below(terms, first, last, term)
        if place == last or terms[place] != term:
            return False
        if ends:
            return True
        position += 1


@njit(cache=True, nogil=True)
def reach_of(west, south, east, north, world_west, world_south, steps_per_degree):
    """A message's rectangle on the lattice: left, bottom, right, top, and the word that boxes are compared with."""
    left, right = lattice(west, world_west, steps_per_degree), lattice(east, world_west, steps_per_degree)
    bottom, top = lattice(south, world_south, steps_per_degree), lattice(north, world_south, steps_per_degree)
    return left, bottom, right, top, message_word(left, bottom, right, top)


@njit(cache=True, nogil=True)
def meets(reach, word):
    """Whether a box may meet a message, for words without level bits."""
    return ((reach - word) & GUARDS) == GUARDS


@njit_no_refcount
def verify(
    messages, row, reach, left, bottom, boxes, columns, marks, candidates, cells, count, out_slot, out_row, found
):
    """Decide the candidates of a message and write those that match; returns how many hits there are now.

    candidates : int64[count]   rank, plus `TEST_TEXT` where the index has not made sure of the keywords
    cells : int64[count]        level << 28 | row << 14 | column of the quadtree cell, or `ONLY_HERE`; empty if all are

    Notes
    -----
    A box that lies in several cells counts in one: that of the lower left corner of what box and message share. A
    second box counts if the first does not. So a pair is a hit once, without a list of earlier hits.
    """
    west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
    first, last = messages.term_offsets[row], messages.term_offsets[row + 1]
    beyond = reach - ONE_IN_EACH_LANE
    rim, is_celled = np.uint64(0x7FFF), cells.shape[0] > 0
    for i in range(count):
        rank = candidates[i] & 0x7FFFFFFF
        slot = boxes.slot[rank]
        # Removal marks the box and nothing above it: lists and rectangles still lead here.
        if slot == GONE:
            continue
        second = slot < 0
        if second:
            slot = ~slot
        word = boxes.word[rank]
        cell = cells[i] if is_celled else ONLY_HERE
        if cell >= 0:
            # The cells that one box is listed in do not overlap: the corner lies in one of them, which is visited.
            shift = 15 - (cell >> 28)
            column = max(left, np.int64(word & rim)) >> shift
            line = max(bottom, np.int64(word >> np.uint64(32) & rim)) >> shift
            if column != cell & 0x3FFF or line != cell >> 14 & 0x3FFF:
                continue
        # Strictly inside on the lattice is inside; equal coordinates are compared in degrees.
        if ((beyond - word) & GUARDS) != GUARDS and not box_meets(
            columns.region, slot, second, west, south, east, north
        ):
            continue
        # Only a message over all that lies between the two boxes meets both; the first one answers for it.
        if second and box_meets(columns.region, slot, False, west, south, east, north):
            continue
        # Keywords last: they lie in a pool of their own, and most candidates end before.
        if candidates[i] >= TEST_TEXT and not has_all(
            columns.terms, columns.start[slot], messages.terms, first, last, marks
        ):
            continue
        out_slot[found] = slot
        out_row[found] = row
        found += 1
    return found


@njit(cache=True, nogil=True)
def _describe(slots, columns, world_west, world_south, steps_per_degree, slot, word, text, morton):
    """Write the boxes of the slots; see `PartedEngine._boxes_of`."""
    count = 0
    for i in range(slots.shape[0]):
        here = slots[i]
        places, position = np.uint64(0), columns.start[here]
        for lane in range(4):
            term = columns.terms[position]
            places |= np.uint64(_mark_of(~term if term < 0 else term)) << np.uint64(16 * lane)
            # Stays on the last keyword, so that four lanes are always full and need no count.
            position += term >= 0
        west, east = columns.region[here, 0], columns.region[here, 2]
        bottom = lattice(columns.region[here, 1], world_south, steps_per_degree)
        top = lattice(columns.region[here, 3], world_south, steps_per_degree)
        code = np.int64(0)
        for box in range(2 if west > east else 1):
            # The two boxes of a region across the antimeridian: from its west to 180, from -180 to its east.
            left = lattice(-180.0 if box else west, world_west, steps_per_degree)
            right = lattice(180.0 if west > east and not box else east, world_west, steps_per_degree)
            if box == 0:  # both boxes get the code of the first, so that they stay side by side
                code = interleave((left + right) >> 1) | interleave((bottom + top) >> 1) << 1
            slot[count] = ~here if box else here
            word[count] = subscription_word(left, bottom, right, top)
            text[count] = places
            morton[count] = code
            count += 1


@njit_inner
def interleave(value):
    """Spread 15 bits out, a zero bit after each: half of a Morton code."""
    value = np.int64(value)
    value = (value | value << 8) & 0x00FF00FF
    value = (value | value << 4) & 0x0F0F0F0F
    value = (value | value << 2) & 0x33333333
    return (value | value << 1) & 0x55555555


@njit_no_refcount
def _match_tail(messages, first_row, last_row, tail, columns, out_slot, out_row):
    """Look through the tail for each message; returns as `BooleanEngine._scan` does."""
    found, verified = 0, 0
    for row in range(first_row, last_row):
        west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        first, last = messages.term_offsets[row], messages.term_offsets[row + 1]
        # All of a row or none: the caller begins again with a row that does not fit.
        if found + tail.shape[0] > out_slot.shape[0]:
            return found, row, 0, 0
        for slot in tail:
            # A row of degrees before the keywords; a slot is in the tail once, so no pair is a hit twice.
            if region_meets(columns.region, slot, west, south, east, north):
                verified += 1
                if all_terms_in(columns.terms, columns.start[slot], messages.terms, first, last):
                    out_slot[found] = slot
                    out_row[found] = row
                    found += 1
    return found, last_row, (last_row - first_row) * tail.shape[0], verified


@njit(cache=True, nogil=True)
def _put_in_order(slots, rows, first_row, last_row):
    """Sort hits by row, in place: counting sort. O(hits + rows)."""
    # Hits come part by part, and `Hits` have ascending rows.
    place = np.zeros(last_row - first_row + 1, np.int64)
    for row in rows:
        place[row - first_row + 1] += 1
    for i in range(1, place.shape[0]):
        place[i] += place[i - 1]
    old_slots, old_rows = slots.copy(), rows.copy()
    for i in range(rows.shape[0]):
        to = place[old_rows[i] - first_row]
        place[old_rows[i] - first_row] += 1
        slots[to] = old_slots[i]
        rows[to] = old_rows[i]


def boxes_view(arrays: Arrays) -> PartBoxes:
    """The boxes of a part as kernels take them."""
    return PartBoxes(
        as_input(arrays["slot"], np.int32), as_input(arrays["word"], np.uint64), as_input(arrays["text"], np.uint64)
    )
