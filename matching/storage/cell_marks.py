"""Marks of the cell-term index: what a posting knows of its subscription's conditions, in one word.

A word has up to `MOST_LANES` lanes, one an attribute. A lane has a bit for a missing value and one for each of a few
ranges of keys. The mark of a subscription has the bits of all values that its conditions allow, all bits of a lane
without conditions; the word of a message has one bit a lane, that of its value. So a message may satisfy the conditions
only if its bits are among those of the mark, and a candidate whose bits are not is dropped before its slot, keywords or
program are read. A mark never decides that a message satisfies anything: `matching.filters` does.

Which attributes have lanes, and where ranges begin, is chosen from the conditions themselves and changes no result.
Read on in `matching.storage.cell_match`, which compares marks.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from matching.attributes import MISSING_KEY
from matching.conditions import ABSENT, ANY_OF, PRESENT, WITHIN
from matching.filter_programs import ARGUMENT_AT, LENGTH_AT
from matching.filters import Filters
from matching.model import Int64
from matching.storage.cell_blocks import slot_of
from matching.storage.slots import as_input

#: With more lanes ranges are coarser, and few subscriptions have conditions on more attributes.
MOST_LANES = 4
#: The sign is left out.
_BITS = 31
#: Mark that every message reaches.
ALL = np.int32(-1)
#: Subscriptions whose conditions decide where ranges begin.
_SAMPLE = 20_000
_FIRST, _LAST = MISSING_KEY + 1, int(np.iinfo(np.int64).max)


class Lanes(NamedTuple):
    """What the bits of a mark stand for, lane after lane from the lowest bit on.

    attribute : int64[l]           number of the lane's attribute; l may be 0
    first_key : int64[l, bits - 2]
        Ascending: bit 0 of a lane is a missing value, bit 1 + i a key from first_key[i - 1] to before first_key[i].
    """

    attribute: Int64
    first_key: Int64


NO_LANES = Lanes(np.zeros(0, np.int64), np.zeros((0, 1), np.int64))


def choose_lanes(filters: Filters) -> Lanes:
    """Lanes for the conditions of all subscriptions, or of a sample of them. O(slots + words of their programs)."""
    slots = np.flatnonzero(filters.start >= 0)
    slots = slots[:: max(1, slots.shape[0] // _SAMPLE)]
    attribute, key = _keys_of_conditions(filters, as_input(slots, np.int64))
    named, times = np.unique(attribute, return_counts=True)
    chosen = np.sort(named[np.argsort(-times, kind="stable")[:MOST_LANES]])
    if not chosen.shape[0]:
        return NO_LANES
    ranges = _BITS // chosen.shape[0] - 1
    first_key = np.full((chosen.shape[0], ranges - 1), _LAST)
    for lane, one in enumerate(chosen.tolist()):
        keys = np.sort(key[(attribute == one) & (key != _FIRST) & (key != _LAST)])
        if keys.shape[0]:
            # Ranges that as many conditions begin or end in; of few different keys each begins its own.
            distinct = np.unique(keys)
            if distinct.shape[0] > ranges - 1:
                distinct = np.unique(keys[np.arange(1, ranges) * keys.shape[0] // ranges])
            first_key[lane, : distinct.shape[0]] = distinct
    return Lanes(chosen, first_key)


@njit(cache=True, nogil=True)
def _keys_of_conditions(filters, slots):
    """Attribute and key of each bound and value in the conditions of slots."""
    count = 0
    for write in range(2):
        if write:
            attributes, keys = np.empty(count, np.int64), np.empty(count, np.int64)
            count = 0
        else:
            attributes, keys = np.empty(0, np.int64), np.empty(0, np.int64)
        for slot in slots:
            start = filters.start[slot]
            at, end = start + 1, start + 1 + filters.words[start]
            while at < end:
                head = filters.words[at]
                after = at + 1 + (head >> LENGTH_AT)
                operation = head & 0xFF
                if operation in (WITHIN, ANY_OF):
                    for word in range(at + 1, after):
                        if write:
                            attributes[count] = (head >> ARGUMENT_AT) & 0xFFFFFF
                            keys[count] = filters.words[word]
                        count += 1
                at = after
    return attributes, keys


@njit(cache=True, nogil=True)
def _bit_of(first_key, key):
    """The bit of a key in its lane."""
    if key == MISSING_KEY:
        return np.int64(0)
    low, high = 0, first_key.shape[0]
    while low < high:
        middle = (low + high) // 2
        if first_key[middle] <= key:
            low = middle + 1
        else:
            high = middle
    return np.int64(low + 1)


@njit(cache=True, nogil=True)
def word_of_message(lanes, keys, row):
    """The word of a message: the bit of its value in each lane."""
    width = lanes.first_key.shape[1] + 2
    word = np.int64(0)
    for lane in range(lanes.attribute.shape[0]):
        attribute = lanes.attribute[lane]
        # A batch without the column lacks the value, as in `matching.filters.passes`.
        key = keys[row, attribute] if attribute < keys.shape[1] else np.int64(MISSING_KEY)
        word |= np.int64(1) << (lane * width + _bit_of(lanes.first_key[lane], key))
    return word


@njit(cache=True, nogil=True)
def write_marks(lanes, filters, link, out):
    """Write the marks of postings (`link`, int64[n]) into out (int32[n]). O(words of their programs).

    The slot in a link may be free, and then its mark means nothing.
    """
    width = lanes.first_key.shape[1] + 2
    for i in range(link.shape[0]):
        slot = slot_of(link[i])
        mark = np.int64(ALL)
        start = filters.start[slot] if slot < filters.start.shape[0] else np.int64(-1)
        at, end = start + 1, start + 1
        if start >= 0:
            end += filters.words[start]
        while at < end:
            head = filters.words[at]
            after = at + 1 + (head >> LENGTH_AT)
            operation, attribute = head & 0xFF, (head >> ARGUMENT_AT) & 0xFFFFFF
            for lane in range(lanes.attribute.shape[0]):
                if lanes.attribute[lane] == attribute and operation <= ABSENT:
                    whole = ~(np.int64(-1) << width)
                    allowed = whole
                    if operation == WITHIN:
                        low, high = filters.words[at + 1], filters.words[at + 2]
                        allowed = np.int64(0)
                        if low <= high:
                            first, last = _bit_of(lanes.first_key[lane], low), _bit_of(lanes.first_key[lane], high)
                            allowed = ~(np.int64(-1) << (last - first + 1)) << first
                    elif operation == ANY_OF:
                        allowed = np.int64(0)
                        for word in range(at + 1, after):
                            allowed |= np.int64(1) << _bit_of(lanes.first_key[lane], filters.words[word])
                    elif operation == PRESENT:
                        allowed = whole & ~np.int64(1)
                    elif operation == ABSENT:
                        allowed = np.int64(1)
                    # Bits of other lanes stay as they are.
                    mark &= ~((whole & ~allowed) << (lane * width))
            at = after
        out[i] = mark
