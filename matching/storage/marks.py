"""Marks: 64 bits beside a posting, by which most messages that its filter refuses are skipped.

The four attributes that conditions name most have a field of 16 bits each. The first bit of a field stands for a
missing value, every other bit for an interval of keys. A message has one bit in each field, that of its own key. The
mark of a subscription has the bits of all intervals that its conditions refuse entirely. So a scan skips a posting
whose mark shares a bit with the message, without a read of the subscription's row. An interval with a single accepted
key has no bit: there the filter itself decides (`matching.filters`). Marks save work and never change answers.

The ends of intervals are learned from the conditions, again whenever their number has doubled: bounds of ranges and
single values, all of them if they are few (a type, a number of rooms), else equally many in each interval. Marks are no
part of any state. Words, `not_keywords` and shapes leave no mark.
"""

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount, njit_no_refcount
from matching.attributes import MISSING_KEY
from matching.conditions import ABSENT, ANY_OF, NONE_OF, WITHIN
from matching.filter_programs import ARGUMENT_AT, LENGTH_AT
from matching.filters import FilterStore
from matching.model import Int32, Int64
from matching.storage.slots import as_input

FIELDS, BITS = 4, 16
#: Ends between the intervals of a field, whose first bit is that of a missing value.
_BOUNDS = BITS - 2
_WHOLE = (1 << BITS) - 1
_LAST_KEY = int(np.iinfo(np.int64).max)
_NO_ATTRIBUTE = -1
#: Size of the sample of subscriptions that intervals are learned from; values of one condition that count.
_ASKED, _VALUES = 4096, 16
NO_MARKS = np.zeros(0, np.uint64)


class Marker:
    """The marks of subscriptions and of messages.

    Parameters
    ----------
    filters : FilterStore    programs by slot; owned by the caller
    """

    def __init__(self, filters: FilterStore):
        self._filters = filters
        self._attribute = np.full(FIELDS, _NO_ATTRIBUTE, np.int64)
        self._bounds = np.full((FIELDS, _BOUNDS), _LAST_KEY, np.int64)
        self._learned_from = 0

    def learn(self) -> bool:
        """Learn where stretches end if there are twice as many filters as the last time; whether that was so.

        Marks from before are not to be used any more. O(slots) where it learns.
        """
        if len(self._filters) < max(1, 2 * self._learned_from):
            return False
        self._learned_from = len(self._filters)
        slots = self._filters.slots()
        slots = slots[:: -(-slots.shape[0] // _ASKED)]
        attribute, key = _named(self._filters.view, slots)
        most = np.bincount(attribute)
        chosen = np.argsort(-most, kind="stable")[:FIELDS]
        self._attribute[:] = _NO_ATTRIBUTE
        self._bounds[:] = _LAST_KEY
        for field, number in enumerate(chosen[most[chosen] > 0].tolist()):
            self._attribute[field] = number
            bounds = _between(np.sort(key[attribute == number]))
            self._bounds[field, : bounds.shape[0]] = bounds
        return True

    def of_slots(self, slots: Int32) -> np.ndarray:
        """Marks of subscriptions with these slots, uint64[n]. O(words of their programs)."""
        marks = np.empty(slots.shape[0], np.uint64)
        write_marks(self._filters.view, as_input(slots, np.int32), self._attribute, self._bounds, marks)
        return marks

    def of_messages(self, keys: Int64, count: int) -> np.ndarray:
        """Marks of `count` messages with these keys (int64[n, attributes], n may be 0), uint64[n]. O(n)."""
        marks = np.empty(count, np.uint64)
        _mark_messages(as_input(keys, np.int64), self._attribute, self._bounds, marks)
        return marks

    def allocated_bytes(self) -> int:
        """Memory."""
        return self._attribute.nbytes + self._bounds.nbytes


def _between(keys: Int64) -> Int64:
    """First keys of stretches, ascending and each once: of ascending keys all, or as many in each stretch."""
    bounds = np.unique(keys)
    if bounds.shape[0] > _BOUNDS:
        at = np.arange(1, _BOUNDS + 1) * keys.shape[0] // (_BOUNDS + 1)
        bounds = np.unique(keys[at])
    return bounds


@njit(cache=True, nogil=True)
def _named(filters, slots):
    """Attributes that conditions of these slots name, and keys at which a stretch should begin: int64[n] each."""
    size = 0
    for slot in slots:
        size += 2 * filters.span[slot, 1]
    attribute, key = np.empty(size, np.int64), np.empty(size, np.int64)
    count = 0
    for slot in slots:
        at = filters.span[slot, 0]
        end = at + filters.span[slot, 1]
        while at < end:
            head = filters.words[at]
            operation, after = head & 0xFF, at + 1 + (head >> LENGTH_AT)
            if operation in (WITHIN, ANY_OF, NONE_OF):
                for place in range(at + 1, min(after, at + 1 + _VALUES)):
                    own = filters.words[place]
                    # A range ends with its last key; what lies behind begins a stretch, and so does a single value.
                    behind = operation == WITHIN and place == at + 2
                    if not (behind and own == _LAST_KEY) and own > MISSING_KEY + 1:
                        attribute[count] = (head >> ARGUMENT_AT) & 0xFFFFFF
                        key[count] = own + 1 if behind else own
                        count += 1
                    if operation == NONE_OF and own < _LAST_KEY:
                        # A stretch of this key alone: only that can be refused.
                        attribute[count] = (head >> ARGUMENT_AT) & 0xFFFFFF
                        key[count] = own + 1
                        count += 1
            at = after
    return attribute[:count], key[:count]


@njit_inner_no_refcount
def _stretch(bounds, field, key):
    """The stretch of a key: how many of a field's bounds are not beyond it."""
    low, high = 0, _BOUNDS
    while low < high:
        middle = (low + high) // 2
        if bounds[field, middle] <= key:
            low = middle + 1
        else:
            high = middle
    return low


@njit_no_refcount
def _fitting(words, operation, begin, after, bounds, field):
    """Bits of a field whose keys may satisfy a condition, the first that of a missing value."""
    if operation == ABSENT:
        return np.int64(1)
    if operation == WITHIN:
        if words[begin] > words[begin + 1]:
            return np.int64(0)
        first, last = _stretch(bounds, field, words[begin]), _stretch(bounds, field, words[begin + 1])
        return (np.int64(1) << (last + 2)) - (np.int64(1) << (first + 1))
    bits = np.int64(0)
    if operation == ANY_OF:
        for place in range(begin, after):
            bits |= np.int64(2) << _stretch(bounds, field, words[place])
        return bits
    if operation == NONE_OF:
        for place in range(begin, after):
            key = words[place]
            stretch = _stretch(bounds, field, key)
            alone_below = stretch > 0 and bounds[field, stretch - 1] == key
            # The bound behind is key + 1 where no other key is in the stretch.
            if alone_below and stretch < _BOUNDS and bounds[field, stretch] - 1 == key:
                bits |= np.int64(2) << stretch
        return _WHOLE & ~bits
    return np.int64(_WHOLE - 1)


@njit_no_refcount
def mark_of(filters, slot, attribute, bounds):
    """The mark of a slot: bits of what its conditions refuse; 0 without a filter."""
    if slot >= filters.span.shape[0] or filters.span[slot, 0] < 0:
        return np.uint64(0)
    at, mark = filters.span[slot, 0], np.uint64(0)
    end = at + filters.span[slot, 1]
    while at < end:
        head = filters.words[at]
        operation, after = head & 0xFF, at + 1 + (head >> LENGTH_AT)
        if operation <= ABSENT:
            named = (head >> ARGUMENT_AT) & 0xFFFFFF
            for field in range(FIELDS):
                if attribute[field] == named:
                    refused = _WHOLE & ~_fitting(filters.words, operation, at + 1, after, bounds, field)
                    mark |= np.uint64(refused) << np.uint64(BITS * field)
        at = after
    return mark


@njit(cache=True, nogil=True)
def write_marks(filters, slots, attribute, bounds, marks):
    """Write the marks of these slots."""
    for i in range(slots.shape[0]):
        marks[i] = mark_of(filters, slots[i], attribute, bounds)


@njit(cache=True, nogil=True)
def _mark_messages(keys, attribute, bounds, marks):
    """Write the marks of messages: a bit in each field."""
    for row in range(marks.shape[0]):
        mark = np.uint64(0)
        for field in range(FIELDS):
            named, bit = attribute[field], 0
            if 0 <= named < keys.shape[1] and row < keys.shape[0] and keys[row, named] != MISSING_KEY:
                bit = 1 + _stretch(bounds, field, keys[row, named])
            mark |= np.uint64(1) << np.uint64(BITS * field + bit)
        marks[row] = mark
