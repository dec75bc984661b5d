"""Subscriptions as a signature sees them: a region, and the keywords one of which a message must have.

Exact for every kind with a region, whose matches lie in a rectangle and share a keyword: every keyword of a
subscription that one is enough for is claimed, the rarest alone of one that wants all. Read on in
`distribution.signatures.signature`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from matching.kind_table import Traits
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD, UNKNOWN_TERM, Float64, Int32, Int64, SubscriptionTable, take_ragged
from matching.storage.region_subscriptions import RegionSubscriptions


class Claims(NamedTuple):
    """Subscriptions as a signature sees them: a message matters if it touches `region` and has one of `terms`.

    region : float64[n, 4]    as in `SubscriptionTable`
    term_offsets, terms       int64[n + 1], int32[nnz]; one keyword, the rarest, of those that want all
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
    """Claims of the rows of a table that have a region and can match anything at all. O(n)."""
    rows, kept = keywords_claimed(table, traits)
    offsets = np.zeros(rows.size + 1, np.int64)
    np.cumsum(kept, out=offsets[1:])
    picked = np.arange(offsets[-1]) + np.repeat(table.term_offsets[rows] - offsets[:-1], kept)
    return Claims(table.region[rows], offsets, table.terms[picked])


def keywords_claimed(table: SubscriptionTable, traits: Traits) -> tuple[Int64, Int64]:
    """Rows that can match anything, and how many of their keywords, from the first on, are claimed."""
    kept = np.diff(table.term_offsets)
    some, strict = kept > 0, ~is_loose(table, traits)
    unknown = np.zeros(len(table), np.bool_)
    unknown[some] = table.terms[table.term_offsets[1:][some] - 1] == UNKNOWN_TERM
    kept = np.where(strict, 1, kept - unknown)  # terms ascend: 0 is the rarest, and the unknown one comes last
    able = some & (kept > 0) & ~(strict & unknown) & traits.region[table.kind]
    rows = np.flatnonzero(able)
    return rows, kept[rows]


def is_loose(table: SubscriptionTable, traits: Traits) -> NDArray[np.bool_]:
    """bool[n]: wants any of its keywords, not all of them, by its kind or by itself."""
    return ~traits.all_keywords[table.kind] | (table.match == ANY_KEYWORD)


def claims_of_rows(rows: RegionSubscriptions, number: Int64) -> Claims:
    """Claims of subscriptions that want any of their keywords; of those that are here and can match. O(keywords)."""
    slots, columns = rows.slots.find(number), rows.columns
    slots = slots[slots >= 0]
    slots = slots[columns.start[slots] >= 0]
    owner, terms = rows.keywords(slots)
    offsets = np.zeros(slots.size + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=slots.size), out=offsets[1:])
    return Claims(columns.region[slots], offsets, terms)
