"""Claims: regions and keywords of subscriptions, the input of a signature.

Exact for every kind with a region, whose matches lie in a rectangle and share a keyword: all keywords are claimed of a
subscription that any of them matches, only the rarest of one that requires all.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from matching.kind_table import Traits
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD, UNKNOWN_TERM, Float64, Int32, Int64, SubscriptionTable, take_ragged
from matching.storage.region_subscriptions import RegionSubscriptions


class Claims(NamedTuple):
    """A message may match row i if it touches `region[i]` and has one of its terms.

    region : float64[n, 4]    as in `SubscriptionTable`
    term_offsets, terms       int64[n + 1], int32[nnz]; only the rarest where all are required
    """

    region: Float64
    term_offsets: Int64
    terms: Int32

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.region.shape[0]

    def take(self, rows: Int64) -> "Claims":
        """The claims at `rows`. O(rows and their terms)."""
        offsets, picked = take_ragged(self.term_offsets, rows)
        return Claims(self.region[rows], offsets, self.terms[picked])


def claims_of(table: SubscriptionTable, traits: Traits = KINDS.traits) -> Claims:
    """Claims of the rows of a table that have a region and can match. O(n)."""
    rows, kept = keywords_claimed(table, traits)
    offsets = np.zeros(rows.size + 1, np.int64)
    np.cumsum(kept, out=offsets[1:])
    picked = np.arange(offsets[-1]) + np.repeat(table.term_offsets[rows] - offsets[:-1], kept)
    return Claims(table.region[rows], offsets, table.terms[picked])


def keywords_claimed(table: SubscriptionTable, traits: Traits) -> tuple[Int64, Int64]:
    """Rows that can match (int64[m]), and the number of their first keywords that are claimed (int64[m])."""
    kept = np.diff(table.term_offsets)
    some, strict = kept > 0, ~is_loose(table, traits)
    unknown = np.zeros(len(table), np.bool_)
    unknown[some] = table.terms[table.term_offsets[1:][some] - 1] == UNKNOWN_TERM
    kept = np.where(strict, 1, kept - unknown)  # terms ascend: 0 is the rarest, and the unknown one comes last
    able = some & (kept > 0) & ~(strict & unknown) & traits.region[table.kind]
    rows = np.flatnonzero(able)
    return rows, kept[rows]


def is_loose(table: SubscriptionTable, traits: Traits) -> NDArray[np.bool_]:
    """bool[n]: whether any keyword matches, by its kind or its own setting."""
    return ~traits.all_keywords[table.kind] | (table.match == ANY_KEYWORD)


def claims_of_rows(rows: RegionSubscriptions, number: Int64) -> Claims:
    """Claims of those of `number` that are in `rows` and can match by any keyword. O(keywords)."""
    slots, columns = rows.slots.find(number), rows.columns
    slots = slots[slots >= 0]
    slots = slots[columns.start[slots] >= 0]
    owner, terms = rows.keywords(slots)
    offsets = np.zeros(slots.size + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=slots.size), out=offsets[1:])
    return Claims(columns.region[slots], offsets, terms)
