"""Filters of subscriptions: what a message must satisfy beside the place and words that indexes know.

`matching.filter_programs` compiles conditions to programs, which are the same on every task, in every checkpoint and in
every window query. Engines find candidates as ever and drop the pairs that fail. A subscription without a filter has no
program, and an engine without filters tests nothing.

The oracle is `matching.naive_filters`.
"""

from copy import copy
from typing import NamedTuple

import numpy as np

from compiling.njit import njit_inner_no_refcount, njit_no_refcount
from matching.attributes import MEMBERS, MISSING_KEY
from matching.conditions import ABSENT, DECREASED, HAS_ALL, HAS_ANY, NONE_OF, PRESENT, WITHIN
from matching.errors import EngineError
from matching.filter_programs import (
    ARGUMENT_AT,
    ASKED,
    AT_LEAST,
    CIRCLE,
    EITHER,
    LENGTH_AT,
    MAX_NESTED,
    NEITHER,
    PHRASE,
    POLYGON,
    USUAL,
    WITHOUT,
    Instruction,
)
from matching.geo.polygons import LIMBS, Rings, banded, lay_out, within_band
from matching.geo.sphere import chord_limit, chord_squared, unit_vector, unit_vectors
from matching.model import NO_WORDS, Float64, Int32, Int64, MessageBatch, SubscriptionTable, centres
from matching.pieces import JOINED_ID, NAMED_ID
from matching.storage.prefetch import prefetch
from matching.storage.slots import as_input, grown

#: Words before the first ring of a polygon.
_POLYGON_HEAD = 5
#: The pool is compacted when it is full and this fraction of it is dead.
_MOST_DEAD = 0.25
_NONE = -1
_NO_SPANS = np.zeros((0, 2), np.int32)
#: Pairs ahead of which filters are fetched.
_AHEAD = 8
#: Words of a cache line, and words of a filter that are fetched at most.
_LINE, _FETCHED = 8, 64


class Filters(NamedTuple):
    """Kernel view of the programs of n slots.

    span : int32[n, 2]     where the program's instructions begin in `words`, -1 if the slot has none, and how many
                           words they are; n may be 0
    words : int64[m]
    numbers : float64[m]   the same memory
    limbs : int64[LIMBS]   space for `matching.geo.polygons.side_of_edge`; so no two threads may share a view
    vectors : float64[n, 3]    unit vectors of the messages, by row; empty: circles compute them
    groups : int64[MAX_NESTED, 4]    space for the groups around an instruction: where each ends, where what is around
                                     it ends, its operation, and how many branches are to hold yet; so no two threads
                                     may share a view
    """

    span: Int32
    words: Int64
    numbers: Float64
    limbs: Int64
    vectors: Float64
    groups: Int64


def as_filters(span: Int32, words: Int64) -> Filters:
    """The kernel view of programs with these spans."""
    groups = np.empty((MAX_NESTED, 4), np.int64)
    return Filters(span, words, words.view(np.float64), np.empty(LIMBS, np.int64), np.zeros((0, 3)), groups)


NO_FILTERS = as_filters(_NO_SPANS, NO_WORDS)


def filters_of(offsets: Int64, words: Int64) -> Filters:
    """The kernel view of programs row after row, as `SubscriptionTable` has them. O(rows)."""
    if not words.shape[0]:
        return NO_FILTERS
    has = np.diff(offsets) > 0
    span = np.full((has.shape[0], 2), (_NONE, 0), np.int32)
    span[has, 0] = offsets[:-1][has] + 1
    span[has, 1] = words[offsets[:-1][has]]
    return as_filters(span, words if words.flags.writeable else words.copy())


def asked_by(heads: Int64) -> Int64:
    """Updates that programs with these first instructions (heads, int64[n]) ask for, int64[n]."""
    return np.where(heads & 0xFF == ASKED, (heads >> ARGUMENT_AT) & 0xFFFFFF, USUAL)


def asked_of(table: SubscriptionTable) -> Int64:
    """Updates that the rows of a table ask for, int64[n] (`matching.filter_programs.ASKED`). O(n)."""
    found = np.full(len(table), USUAL)
    if table.filter_words.shape[0]:
        has = np.diff(table.filter_offsets) > 0
        found[has] = asked_by(table.filter_words[table.filter_offsets[:-1][has] + 1])
    return found


# ------------------------------------------------------------------------------------------------------------- shapes


def circle_instruction(lon: float, lat: float, radius_m: float) -> Instruction:
    """The instruction of a closed circle on the sphere; degrees, metres."""
    numbers = (lon, lat, radius_m, *unit_vector(lon, lat), chord_limit(radius_m))
    return Instruction(CIRCLE, 0, _bits(np.array(numbers)))


def polygon_instruction(rings: Rings) -> Instruction:
    """The instruction of a polygon. O(corners)."""
    p = lay_out([rings])
    sizes = [rings.lon.shape[0], p.member_start.shape[0] - 1, p.members.shape[0]]
    scale = _bits(np.concatenate([p.south, p.bands_per_degree]))
    places = [*rings.offsets.tolist(), *p.member_start.tolist(), *p.members.tolist()]
    corners = _bits(np.concatenate([rings.lon, rings.lat]))
    return Instruction(POLYGON, rings.offsets.shape[0] - 1, [*sizes, *scale, *places, *corners])


def _bits(numbers: Float64) -> list[int]:
    return np.asarray(numbers, np.float64).view(np.int64).tolist()


# -------------------------------------------------------------------------------------------------------------- store


class FilterStore:
    """The programs of the subscriptions of an index, by slot; nothing where none has one."""

    def __init__(self):
        self._span, self._words = _NO_SPANS, NO_WORDS
        self._used = self._dead = self._count = 0
        self._all_usual = True
        self._view = NO_FILTERS

    def __len__(self) -> int:
        """How many slots have a program."""
        return self._count

    @property
    def view(self) -> Filters:
        """The arrays as they are now; fetch it again after `insert`."""
        return self._view

    def insert(self, table: SubscriptionTable, slots: Int32) -> None:
        """Add the programs of subscriptions with these slots. O(rows + words), amortised; O(1) where there are none.

        Raises
        ------
        EngineError
            If the programs of one engine would exceed 2**31 words.
        """
        if not table.filter_words.shape[0]:
            return
        has = np.diff(table.filter_offsets) > 0
        heads = table.filter_offsets[:-1][has]
        # The length of a program is in its span, not among its words.
        lengths = table.filter_words[heads]
        needed = int(lengths.sum())
        if self._used + needed > self._words.shape[0] and self._dead > _MOST_DEAD * self._used:
            self._compact()
        wanted = self._used + needed
        if wanted > 2**31 - 1:
            raise EngineError(
                f"{wanted} words of filters do not fit one engine: use more query bolts (at most 2**31 - 1 each)"
            )
        self._span = grown(self._span, int(slots.max(initial=-1)) + 1, _NONE)
        self._words = grown(self._words, wanted)
        self._count += lengths.shape[0]
        ends = self._used + np.cumsum(lengths)
        self._span[slots[has], 0] = ends - lengths
        self._span[slots[has], 1] = lengths
        first, last = int(table.filter_offsets[0]), int(table.filter_offsets[-1])
        self._words[self._used : wanted] = np.delete(table.filter_words[first:last], heads - first)
        self._all_usual &= bool((asked_by(self._words[ends - lengths]) == USUAL).all())
        self._used = wanted
        self._view = as_filters(self._span, self._words)

    def remove(self, slots: Int32) -> None:
        """Forget the programs of slots, of which some may have none. O(n)."""
        slots = slots[slots < self._span.shape[0]]
        slots = slots[self._span[slots, 0] >= 0]
        self._dead += int(self._span[slots, 1].sum())
        self._span[slots, 0] = _NONE
        self._count -= slots.shape[0]

    def asked(self, slots: Int32) -> Int64 | None:
        """Updates that slots ask for, int64[n] (`matching.filter_programs.ASKED`); None if all ask for `USUAL`."""
        if self._all_usual:  # else two cache misses a slot
            return None
        has = slots < self._span.shape[0]
        has[has] = self._span[slots[has], 0] >= 0
        found = np.full(slots.shape[0], USUAL)
        found[has] = asked_by(self._words[self._span[slots[has], 0]])
        return None if (found == USUAL).all() else found

    def slots(self) -> Int32:
        """Slots that have a program, ascending, int32[n]. O(slots)."""
        return np.flatnonzero(self._span[:, 0] >= 0).astype(np.int32)

    def columns(self, slots: Int32) -> tuple[Int64, Int64]:
        """`filter_offsets` and `filter_words` of these slots, row after row. O(n + words)."""
        if not self._span.shape[0]:
            return NO_WORDS, NO_WORDS
        offsets, words = self._programs(slots)
        return (offsets, words) if words.shape[0] else (NO_WORDS, NO_WORDS)

    def passing(self, slots: Int32, rows: Int32, batch: MessageBatch) -> np.ndarray | None:
        """bool[n]: which pairs of slot and row of a batch pass; None if all do. O(words of their programs)."""
        if not self._span.shape[0] or not slots.shape[0]:
            return None
        passed = passing(self._view, slots, rows, batch)
        return None if passed.all() else passed

    def snapshot(self) -> "FilterStore":
        """A frozen copy for `columns`, which later calls do not change. O(slots + words)."""
        now = copy(self)
        now._span, now._words = self._span.copy(), self._words[: self._used].copy()
        return now

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory, trimmed to the used part."""
        return {"span": self._span, "words": self._words[: self._used]} if self._span.shape[0] else {}

    def allocated_bytes(self) -> int:
        """Memory, spare capacity included."""
        return self._span.nbytes + self._words.nbytes

    def _compact(self) -> None:
        """Drop the words of programs that are gone. O(slots + words)."""
        live = self.slots()
        places, ends = self._places(live)
        self._words[: places.shape[0]] = self._words[places]
        self._span[live, 0] = ends - self._span[live, 1]
        self._used, self._dead = places.shape[0], 0

    def _places(self, slots: Int64 | Int32) -> tuple[Int64, Int64]:
        """Where the words of these slots, which all have a program, stand, one slot after the other; ends of each."""
        lengths = self._span[slots, 1].astype(np.int64)
        ends = np.cumsum(lengths)
        places = np.arange(int(lengths.sum())) + np.repeat(self._span[slots, 0] - ends + lengths, lengths)
        return places, ends

    def _programs(self, slots: Int64 | Int32) -> tuple[Int64, Int64]:
        """The programs of these slots, row after row: offsets int64[n + 1], words int64[m]. O(n + words)."""
        has = slots < self._span.shape[0]
        has[has] = self._span[slots[has], 0] >= 0
        lengths = np.zeros(slots.shape[0], np.int64)
        lengths[has] = self._span[slots[has], 1] + 1
        offsets = np.zeros(slots.shape[0] + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        words, heads = np.empty(offsets[-1], np.int64), offsets[:-1][has]
        words[heads] = lengths[has] - 1
        own = np.ones(words.shape[0], np.bool_)
        own[heads] = False
        words[own] = self._words[self._places(slots[has])[0]]
        return offsets, words


# --------------------------------------------------------------------------------------------------------------- test


def passing(filters: Filters, slots: Int32, rows: Int32, batch: MessageBatch) -> np.ndarray:
    """bool[n]: which pairs of slot (int32[n]) and row of a batch (int32[n]) pass. O(words of their programs)."""
    out = np.ones(slots.shape[0], np.bool_)
    if filters.span.shape[0]:
        batch = MessageBatch(*(as_input(column, column.dtype.type) for column in batch))
        if len(batch) < slots.shape[0]:  # messages meet several circles: their vectors are computed once
            filters = filters._replace(vectors=unit_vectors(*centres(batch)))
        _pass_pairs(filters, slots, rows, batch, out)
    return out


@njit_no_refcount
def _pass_pairs(filters, slots, rows, batch, out):
    """Write which pairs pass."""
    span, words, numbers, vectors, limbs = filters.span, filters.words, filters.numbers, filters.vectors, filters.limbs
    last, has_vectors = span.shape[0] - 1, vectors.shape[0] > 0
    for i in range(slots.shape[0]):
        # each reads an address that the one before has fetched
        if i + 2 * _AHEAD < slots.shape[0]:
            prefetch(span, 2 * min(slots[i + 2 * _AHEAD], last))
            soon = min(slots[i + _AHEAD], last)
            # all cache lines of a shape: a polygon has about eight, and a test reads four of them
            for place in range(0, min(span[soon, 1], _FETCHED), _LINE):
                prefetch(words, span[soon, 0] + place)
        slot, row = slots[i], rows[i]
        if slot > last or span[slot, 0] < 0:
            continue
        at, fits, known = np.int64(span[slot, 0]), True, has_vectors
        end = at + span[slot, 1]
        # Attributes and shapes, as of most filters, are tested here: `passes` has four dozen arguments, and a call of
        # it takes three times as long as a circle.
        while fits and known and at < end:
            head = words[at]
            operation, argument = head & 0xFF, (head >> ARGUMENT_AT) & 0xFFFFFF
            begin, after = at + 1, at + 1 + (head >> LENGTH_AT)
            if operation <= ABSENT:
                key = batch.keys[row, argument] if argument < batch.keys.shape[1] else MISSING_KEY
                fits = _key_fits(words, operation, begin, after, key)
            elif operation == CIRCLE:
                fits = _in_circle(numbers, begin, vectors[row, 0], vectors[row, 1], vectors[row, 2])
            elif operation == POLYGON:
                lon = (batch.west[row] + batch.east[row]) / 2.0
                lat = (batch.south[row] + batch.north[row]) / 2.0
                fits = _in_polygon(words, numbers, begin, argument, lon, lat, limbs)
            else:
                known = False
            at = after
        out[i] = fits if known or not fits else message_passes(filters, slot, batch, row)


@njit_no_refcount
def message_passes(filters, slot, batch, row):
    """`passes` for a row of a `MessageBatch`."""
    lon = (batch.west[row] + batch.east[row]) / 2.0
    lat = (batch.south[row] + batch.north[row]) / 2.0
    first, last = batch.term_offsets[row], batch.term_offsets[row + 1]
    begin, end = words_of(batch.order_offsets, row)
    return passes(filters, slot, lon, lat, batch.keys, row, batch.terms, first, last, batch.order, begin, end)


@njit_no_refcount
def words_of(order_offsets, row):
    """Where the words of a message begin and end in order of appearance; 0, 0 where no message has any."""
    if order_offsets.shape[0]:
        return order_offsets[row], order_offsets[row + 1]
    return np.int64(0), np.int64(0)


@njit_no_refcount
def passes(filters, slot, lon, lat, keys, row, terms, first, last, order, order_first, order_last):
    """Whether a message satisfies the filter of a slot; true if it has none.

    Parameters
    ----------
    filters : Filters
    slot : int                   any; one beyond `filters.span` has no filter
    lon, lat : float             of the message; the centre of a range message
    keys, row : int64[n, columns], int          keys[row] are those of the message; what it lacks is missing
    terms, first, last : int32[nnz], int, int   terms[first:last] are those of the message, ascending
    order, order_first, order_last : int32[words], int, int    order[order_first:order_last]: in order of appearance

    Notes
    -----
    O(words of the program); for lists of values O(log values), for a polygon O(edges of a band). No allocation.
    """
    if slot >= filters.span.shape[0]:
        return True
    at = filters.span[slot, 0]
    if at < 0:
        return True
    words, numbers, groups = filters.words, filters.numbers, filters.groups
    end, depth = at + filters.span[slot, 1], 0
    while at < end or depth > 0:
        if at == end:  # a branch holds, and so its group does, unless none may or more are needed
            depth -= 1
            groups[depth, 3] -= 1
            if groups[depth, 2] == EITHER and groups[depth, 3] > 0:
                depth += 1
            else:
                at, end = groups[depth, 0], groups[depth, 1]
                if groups[depth, 2] == EITHER:
                    continue
            fits = False
        else:
            head = words[at]
            operation, argument = head & 0xFF, (head >> ARGUMENT_AT) & 0xFFFFFF
            begin, after = at + 1, at + 1 + (head >> LENGTH_AT)
            if operation <= ABSENT:
                key = keys[row, argument] if argument < keys.shape[1] else MISSING_KEY
                fits = _key_fits(words, operation, begin, after, key)
            elif operation == AT_LEAST:
                fits = _shared(words, begin, after, terms, first, last, argument) >= argument
            elif operation == WITHOUT:
                fits = _shared(words, begin, after, terms, first, last, 1) == 0
            elif operation == CIRCLE:
                if filters.vectors.shape[0]:
                    x, y, z = filters.vectors[row, 0], filters.vectors[row, 1], filters.vectors[row, 2]
                else:
                    x, y, z = unit_vector(lon, lat)
                fits = _in_circle(numbers, begin, x, y, z)
            elif operation == PHRASE:
                fits = _in_a_row(words, begin, after, argument, order, order_first, order_last)
            elif operation == POLYGON:
                fits = _in_polygon(words, numbers, begin, argument, lon, lat, filters.limbs)
            elif operation >= HAS_ANY:
                fits = _list_fits(words, operation, begin, after, keys, row, argument)
            elif operation >= DECREASED:
                fits = True  # about two versions, or about no message: see `matching.version_conditions`
            else:
                groups[depth, 0], groups[depth, 1], groups[depth, 2] = after, end, operation
                groups[depth, 3] = argument
                depth += 1
                at, end = begin + 1, begin + 1 + words[begin]
                continue
            at = after
        while not fits:
            if depth == 0:
                return False
            if end < groups[depth - 1, 0]:  # another branch
                at, end = end + 1, end + 1 + words[end]
                fits = True
            else:
                depth -= 1
                at, end = groups[depth, 0], groups[depth, 1]
                fits = groups[depth, 2] == NEITHER
    return True


@njit_inner_no_refcount
def _key_fits(words, operation, begin, after, key):
    """Whether an instruction about an attribute holds for a message's key of it."""
    if operation == ABSENT:
        return key == MISSING_KEY
    if operation == NONE_OF:
        return not _has_key(words, begin, after, key)
    if key == MISSING_KEY:
        return False
    if operation == WITHIN:
        return words[begin] <= key and key <= words[begin + 1]
    return operation == PRESENT or _has_key(words, begin, after, key)


@njit_inner_no_refcount
def _list_fits(words, operation, begin, after, keys, row, first):
    """Whether an instruction about a list of categories holds for a message; its keys begin at column `first`."""
    found = 0
    for column in range(first, min(first + MEMBERS, keys.shape[1])):
        if keys[row, column] == MISSING_KEY:
            break
        if _has_key(words, begin, after, keys[row, column]):
            found += 1
    if operation == HAS_ALL:
        return found == after - begin
    return (found > 0) == (operation == HAS_ANY)


@njit_inner_no_refcount
def _has_key(words, low, high, key):
    """Whether words[low:high], ascending, has a key."""
    while low < high:
        middle = (low + high) // 2
        if words[middle] < key:
            low = middle + 1
        elif words[middle] > key:
            high = middle
        else:
            return True
    return False


@njit_no_refcount
def _shared(words, begin, after, terms, first, last, most):
    """How many terms words[begin:after] and terms[first:last], both ascending, share; counted up to `most`."""
    shared = 0
    while begin < after and first < last and shared < most:
        if words[begin] < terms[first]:
            begin += 1
        elif words[begin] > terms[first]:
            first += 1
        else:
            shared += 1
            begin += 1
            first += 1
    return shared


@njit_inner_no_refcount
def _in_a_row(words, begin, after, most_between, order, first, last):
    """Whether order[first:last] has words[begin:after] in this order, with at most so many others between.

    It is read with its hashtags as they stand, and then with the words that they name in their place.
    """
    if _reads(words, begin, after, most_between, order, first, last, False):
        return True
    for place in range(first, last):
        if order[place] < JOINED_ID:
            return _reads(words, begin, after, most_between, order, first, last, True)
    return False


@njit_inner_no_refcount
def _reads(words, begin, after, most_between, order, first, last, named):
    """`_in_a_row` of one reading. `JOINED_ID` counts only where the words have it; two of them end a column, behind
    which nothing follows."""
    length = after - begin
    for start in range(first, last - length + 1):
        if _word_at(order, start, last, named) != words[begin]:
            continue
        # of all ways to go on from here, the nearest place of each word ends first
        at, place, end = begin + 1, start + 1, min(last, start + length + most_between)
        while at < after and place < end:
            if order[place] == JOINED_ID == order[place - 1]:
                break
            word = _word_at(order, place, last, named)
            if word == words[at]:
                at += 1
            elif word <= JOINED_ID:
                end = min(last, end + 1)
            place += 1
        if at == after:
            return True
    return False


@njit_inner_no_refcount
def _word_at(order, place, last, named):
    """The word at a place of one reading; less than `JOINED_ID` for what this reading passes over."""
    word = order[place]
    if not named or word == JOINED_ID:
        return word
    if word < JOINED_ID:
        return NAMED_ID - word
    return JOINED_ID - 1 if place + 1 < last and order[place + 1] < JOINED_ID else word


@njit_inner_no_refcount
def _in_circle(numbers, begin, x, y, z):
    """Whether a place, a unit vector, lies in the circle at `begin`."""
    return chord_squared(x, y, z, numbers[begin + 3], numbers[begin + 4], numbers[begin + 5]) <= numbers[begin + 6]


@njit_inner_no_refcount
def _in_polygon(words, numbers, begin, rings, lon, lat, limbs):
    """Whether a point lies in the polygon at `begin`, or on an edge of it."""
    corners, bands, members = words[begin], words[begin + 1], words[begin + 2]
    starts = begin + _POLYGON_HEAD + rings + 1
    first_member = starts + bands + 1
    first_lon = first_member + members
    band = banded(lat, numbers[begin + 3], numbers[begin + 4], bands)
    return within_band(
        words, first_member + words[starts + band], first_member + words[starts + band + 1],
        numbers, first_lon, numbers, first_lon + corners, lon, lat, limbs,
    )  # fmt: skip
