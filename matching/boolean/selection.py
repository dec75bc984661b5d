"""Selection by an attribute: under what a subscription without keywords stands that requires a value or an interval.

It stands under the reserved term (`matching.reserved`), which every visible message has, and so its place alone would
select it. Of one that requires one of a few values of an attribute, or an interval that a few stretches of keys cover,
those values or stretches take the term's place, as terms of the engine's own; a visible message has the term of each
attribute's value and of the stretches that it lies in. Place selects beside them, and the filter still decides.

Stretches are keys without their lowest bits: of a number that is a binary order of magnitude and what divides it, so
they are as fine as intervals are narrow, and need not be learned. A term's low bits are a hash: what collides is a
candidate more. Nothing outside the engine knows these terms, and where the choice is not made (of one that is restored
from a state without signs of weights, say), answers are the same.
"""

from typing import Any

import numpy as np

from compiling.njit import njit
from matching.attributes import MISSING_KEY
from matching.conditions import ANY_OF, WITHIN
from matching.filter_programs import ARGUMENT_AT, LENGTH_AT
from matching.model import (
    ANY_KEYWORD,
    KEYWORDS_BY_KIND,
    NO_COUNTS,
    TERM,
    UNKNOWN_TERM,
    Int32,
    Int64,
    MessageBatch,
    SubscriptionTable,
    take_ragged,
)
from matching.reserved import RESERVED_IDF, is_visible
from matching.space import Space
from matching.storage.slots import as_input

#: Ids of the terms of attributes begin here, above those of all words.
FIRST = 1 << 30
#: Most values or stretches that one subscription stands under.
MOST = 4
#: Bits that stretches lack, finest first; 0: a value.
SHIFTS = np.array([0, 32, 36, 40, 44, 48, 52], np.int64)
#: Share of the world above which a region's cells are so large that another attribute selects better. Under it a
#: subscription has one posting in place of up to `MOST`, and its mark skips what an attribute would have left out.
_LARGE = 1e-3
#: Bits of the hash in a term, and how many pairs of attribute and shift there may be above them.
_HASH_BITS, _MOST_GROUPS = 20, 512
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Selection:
    """What the subscriptions of an engine are selected by, and the terms that messages get for it.

    Attributes
    ----------
    reserved : int    the reserved term; -1 before the first subscription without keywords
    """

    def __init__(self, space: Space):
        self._world = (space.east - space.west) * (space.north - space.south)
        self._groups: dict[tuple[int, int], int] = {}  # attribute and shift -> number, in the order of their first use
        self.reserved = -1

    def of_subscriptions(self, table: SubscriptionTable) -> SubscriptionTable:
        """The table, whose rows without keywords have terms of an attribute where one selects. O(rows + words)."""
        rows = np.flatnonzero(is_visible(table.term_offsets, table.weights))
        if not rows.shape[0]:
            return table
        self.reserved = int(table.terms[table.term_offsets[rows[0] + 1] - 1])
        west, south, east, north = table.region[rows].T
        width = np.where(east < west, east - west + 360.0, east - west)
        rows = rows[width * (north - south) > _LARGE * self._world]
        if not table.filter_words.shape[0] or not rows.shape[0]:
            return table
        columns = np.zeros((4, rows.shape[0]), np.int64)
        _choose(rows, as_input(table.filter_offsets, np.int64), as_input(table.filter_words, np.int64), SHIFTS, columns)
        kept = columns[3] > 0
        rows, (attribute, shift, first, count) = rows[kept], columns[:, kept]
        group = self._group_of(attribute, shift)
        if not rows.shape[0] or group is None:
            return table
        lengths = np.diff(table.term_offsets)
        lengths[rows] = count
        offsets = np.zeros(len(table) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        own = np.zeros(len(table), np.bool_)
        own[rows] = True
        row = np.repeat(np.arange(rows.shape[0]), count)
        step = np.arange(row.shape[0]) - np.repeat(np.cumsum(count) - count, count)
        words = table.filter_words
        value = np.where(shift[row] == 0, words[first[row] + np.where(shift[row] == 0, step, 0)], 0)
        stretch = (words[first[row]] >> shift[row]) + step
        found = _terms(group[row], np.where(shift[row] == 0, value, stretch))
        terms, weights = np.zeros(offsets[-1], TERM), np.zeros(offsets[-1], np.float32)
        _, picked = take_ragged(table.term_offsets, np.flatnonzero(~own))
        fill = np.repeat(own, lengths)
        terms[~fill], weights[~fill] = table.terms[picked], table.weights[picked]
        terms[fill] = found[np.lexsort((found, row))]
        match = table.match.copy()
        match[rows[count > 1]] = ANY_KEYWORD
        changed: Any = {"match": match, "term_offsets": offsets, "terms": terms, "weights": weights}
        return SubscriptionTable(**(table._asdict() | changed))

    def of_messages(self, batch: MessageBatch) -> MessageBatch:
        """The batch, whose visible messages have the terms of their attributes. O(messages * pairs + terms)."""
        if not self._groups or not batch.keys.shape[1]:
            return batch
        visible = is_visible(batch.term_offsets, batch.weights)
        there = np.zeros((len(batch), len(self._groups)), np.bool_)
        terms = np.zeros(there.shape, TERM)
        for (attribute, shift), number in self._groups.items():
            if attribute < batch.keys.shape[1]:
                keys = batch.keys[:, attribute]
                there[:, number] = visible & (keys != MISSING_KEY)
                terms[:, number] = _terms(np.int64(number), keys >> shift)
        more = there.sum(axis=1)
        places = np.repeat(batch.term_offsets[1:], more)
        changed: Any = batch._asdict() | {
            "term_offsets": batch.term_offsets + np.concatenate([np.zeros(1, np.int64), np.cumsum(more)]),
            "terms": np.insert(batch.terms, places, terms[there]),
            "weights": np.insert(batch.weights, places, np.float32(0.0)),
            "counts": NO_COUNTS,  # of no use to boolean engines
        }
        return MessageBatch(**changed)

    def undone(self, table: SubscriptionTable) -> SubscriptionTable:
        """A table of the engine's with the reserved term where it was, and its weight. O(rows + terms)."""
        if self.reserved < 0:
            return table
        own = self.is_own(table)
        kept = np.ones(table.terms.shape[0], np.bool_)
        lengths = np.diff(table.term_offsets)
        kept[np.repeat(own, lengths)] = False
        kept[table.term_offsets[:-1][own]] = True
        terms = table.terms.copy()
        terms[table.term_offsets[:-1][own]] = self.reserved
        terms = terms[kept]
        offsets = np.zeros(len(table) + 1, np.int64)
        np.cumsum(np.where(own, 1, lengths), out=offsets[1:])
        weights = np.where(terms == self.reserved, RESERVED_IDF, table.weights[kept]).astype(np.float32)
        match = np.where(own, KEYWORDS_BY_KIND, table.match).astype(np.int8)
        changed: Any = {"match": match, "term_offsets": offsets, "terms": terms, "weights": weights}
        return SubscriptionTable(**(table._asdict() | changed))

    @staticmethod
    def is_own(table: SubscriptionTable) -> np.ndarray:
        """bool[n]: which rows have terms of an attribute. O(n)."""
        first = np.append(table.terms, np.int32(-1))[table.term_offsets[:-1]]
        return (np.diff(table.term_offsets) > 0) & (first >= FIRST) & (first != UNKNOWN_TERM)

    def _group_of(self, attribute: Int64, shift: Int64) -> Int64 | None:
        """The number of each pair; None if there would be too many."""
        pairs, which = np.unique(np.stack([attribute, shift], axis=1), axis=0, return_inverse=True)
        known = self._groups
        if len(known) + pairs.shape[0] > _MOST_GROUPS:
            return None
        numbers = [known.setdefault((first, second), len(known)) for first, second in pairs.tolist()]
        return np.array(numbers, np.int64)[which.reshape(-1)]


def _terms(group: Any, value: Int64) -> Int32:
    """Terms of values, or stretches, of a pair of attribute and shift. O(n)."""
    mixed = (value.astype(np.uint64) * _MIX) >> np.uint64(64 - _HASH_BITS)
    return (FIRST + (group << _HASH_BITS) + mixed.astype(np.int64)).astype(TERM)


@njit(cache=True, nogil=True)
def _choose(rows, filter_offsets, words, shifts, out):
    """Write for each row attribute, shift, place of the first word and number of what selects it; 0 of what does not.

    Of values the fewest, else the finest stretches.
    """
    for i in range(rows.shape[0]):
        at, end = filter_offsets[rows[i]] + 1, filter_offsets[rows[i] + 1]
        best = np.int64(1) << 40
        while at < end:
            head = words[at]
            operation, begin, after = head & 0xFF, at + 1, at + 1 + (head >> LENGTH_AT)
            count, shift = np.int64(0), np.int64(0)
            if operation == ANY_OF:
                count = after - begin
            elif operation == WITHIN:
                for j in range(shifts.shape[0]):
                    shift = shifts[j]
                    count = (words[begin + 1] >> shift) - (words[begin] >> shift) + 1
                    if (shift == 0 and count == 1) or (shift > 0 and count <= MOST):
                        break
            cost = shift * 16 + count
            if 0 < count <= MOST and cost < best:
                best = cost
                out[0, i], out[1, i] = (head >> ARGUMENT_AT) & 0xFFFFFF, shift
                out[2, i], out[3, i] = begin, count
            at = after
