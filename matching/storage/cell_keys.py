"""Equalities as keys of the cell-term index: a subscription may be posted under a value instead of its rarest keyword.

A message that lacks the value cannot match, so `type: houseboat` finds as well as a keyword does, and better if fewer
messages have it. A list of at most `MOST_VALUES` values is posted under each of them: a message has one value of an
attribute and so meets one posting of it. Values are keys of blocks beside the terms and nothing else: no weight, norm,
length or number of keywords knows them, and `matching.filters` still decides whether the condition holds.

Which is rarer is counted in the first messages that are matched (`KeyCounts`); until then all are posted under
keywords. Read on in `matching.storage.cell_term`.
"""

import numpy as np
from numba import njit

from matching.attributes import MISSING_KEY
from matching.conditions import ANY_OF
from matching.filter_programs import ARGUMENT_AT, LENGTH_AT
from matching.filters import Filters
from matching.model import Int32, Int64
from matching.storage.cell_blocks import MORE, NO_SECOND, slot_of
from matching.storage.region_messages import Messages

#: Values of a list at most: each costs a posting.
MOST_VALUES = 4
#: Messages that are counted: enough to tell what every tenth message has from what every hundredth has.
COUNTED = 1_000
#: `ordinal` of a subscription that is posted under its rarest keyword.
BY_KEYWORD = 0
#: `ordinal` of a slot without postings; no position is as high.
NOT_POSTED = 255
#: Numbers of values have this bit, which no term has.
_VALUE = 1 << 62
#: Times the number of an attribute, which is below 256, it stays below that bit and is like no difference of two keys.
_SPREAD = 0x2545_F491_4F6C_DD


@njit(cache=True, nogil=True)
def number_of(attribute, key):
    """Key of the block of a value, for the SlotMap of terms. Two values may share one, which costs work alone."""
    return ((key ^ attribute * _SPREAD) & (_VALUE - 1)) | _VALUE


@njit(cache=True, nogil=True)
def _numbers_of(keys, rows):
    """Numbers of all values of the first rows."""
    out, count = np.empty(rows * keys.shape[1], np.int64), 0
    for row in range(min(rows, keys.shape[0])):
        for attribute in range(keys.shape[1]):
            if keys[row, attribute] != MISSING_KEY:
                out[count] = number_of(attribute, keys[row, attribute])
                count += 1
    return out[:count]


class KeyCounts:
    """How many of the first `COUNTED` messages have a term, or a value of an attribute.

    Attributes
    ----------
    number, count : int64[n]    ascending: terms, and numbers of values; empty until enough messages are counted
    """

    def __init__(self):
        self.number, self.count = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._seen = 0
        self._numbers: list[Int64] = []

    @property
    def complete(self) -> bool:
        """Whether enough messages are counted."""
        return self._seen >= COUNTED

    def add(self, messages: Messages) -> None:
        """Count a batch, or as much of it as is needed. O(terms)."""
        rows = min(messages.west.shape[0], COUNTED - self._seen)
        terms = messages.terms[: messages.term_offsets[rows]].astype(np.int64)
        self._numbers += [terms, _numbers_of(messages.keys, rows)]
        self._seen += rows
        if self.complete:
            self.number, self.count = np.unique(np.concatenate(self._numbers), return_counts=True)
            self._numbers = []


@njit(cache=True, nogil=True)
def _count_of(number, count, wanted):
    """How many counted messages have a term or value."""
    place = np.searchsorted(number, wanted)
    return count[place] if place < number.shape[0] and number[place] == wanted else np.int64(0)


@njit(cache=True, nogil=True)
def choose_keys(filters: Filters, columns, slots: Int32, number: Int64, count: Int64, out, is_key):
    """Write which equality each slot is posted under into out (uint8[n]).

    out[i] is `BY_KEYWORD`, or one more than the position of the instruction among those of the program: the one whose
    values are rarest, and rarer than the first keyword. is_key (bool[attributes]) is set for attributes of those.

    Returns
    -------
    (int, int)
        How many of the slots have a program, how many an equality that might be chosen.
    """
    programs, equalities = 0, 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        out[i] = BY_KEYWORD
        if slot >= filters.start.shape[0] or filters.start[slot] < 0:
            continue
        programs += 1
        if columns.start[slot] < 0:
            continue
        term = columns.terms[columns.start[slot]]
        chosen, has = np.int64(-1), 0
        least = _count_of(number, count, np.int64(~term if term < 0 else term))
        at = filters.start[slot] + 1
        end, ordinal = at + filters.words[at - 1], 0
        while at < end and ordinal < NOT_POSTED - 1:
            head = filters.words[at]
            attribute, values = (head >> ARGUMENT_AT) & 0xFFFFFF, head >> LENGTH_AT
            ordinal += 1
            if head & 0xFF == ANY_OF and values <= MOST_VALUES and attribute < is_key.shape[0]:
                has = 1
                total = np.int64(0)
                for word in range(at + 1, at + 1 + values):
                    total += _count_of(number, count, number_of(attribute, filters.words[word]))
                if total < least:
                    least, chosen = total, attribute
                    out[i] = ordinal
            at += 1 + values
        equalities += has
        if chosen >= 0:
            is_key[chosen] = True
    return programs, equalities


@njit(cache=True, nogil=True)
def under_values(filters, ordinal, term, box, link, out_number, out_box, out_link):
    """Turn postings under keywords (`cell_blocks.describe`) into those under the equalities that were chosen.

    Parameters
    ----------
    filters : Filters
    ordinal : uint8[slots]      as `choose_keys` writes it
    term, box, link : int32[m], uint64[m], int64[m]
    out_number, out_box, out_link : int64[MOST_VALUES * m], uint64[...], int64[...]

    Returns
    -------
    int
        How many were written.
    """
    count = 0
    for i in range(term.shape[0]):
        slot = slot_of(link[i])
        first, chosen = count, ordinal[slot]
        if chosen == BY_KEYWORD:
            out_number[count], out_box[count], out_link[count] = term[i], box[i], link[i]
            count += 1
            continue
        at = filters.start[slot] + 1
        for _ in range(chosen - 1):
            at += 1 + (filters.words[at] >> LENGTH_AT)
        head = filters.words[at]
        attribute = (head >> ARGUMENT_AT) & 0xFFFFFF
        # All keywords are still to be tested: the first takes the place of the second.
        low = np.int64(term[i]) | (np.int64(0) if link[i] & 0x7FFFFFFF == NO_SECOND else np.int64(MORE))
        for word in range(at + 1, at + 1 + (head >> LENGTH_AT)):
            number = number_of(attribute, filters.words[word])
            known = False
            for j in range(first, count):
                known = known or out_number[j] == number
            if not known:  # two values of one number share a block, in which a subscription has one posting
                out_number[count], out_box[count] = number, box[i]
                out_link[count] = (link[i] & ~np.int64(0xFFFF_FFFF)) | low
                count += 1
    return count
