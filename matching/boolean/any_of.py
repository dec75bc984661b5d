"""Subscriptions that require at least one of their keywords, on top of any engine that requires all of them.

Such a subscription of m keywords is split into m parts of one keyword each. Its own row in the engine never matches;
the parts are in a second engine of the same class, and their hits are mapped back to the owner, each pair once. That
costs m postings a subscription, and nothing without such subscriptions.
"""

from copy import copy

import numpy as np

from matching.index import Hits, SubscriptionIndex
from matching.model import KEYWORDS_BY_KIND, UNKNOWN_TERM, Int32, Int64, SubscriptionTable
from matching.storage.region_subscriptions import RegionSubscriptions
from matching.storage.slots import grown

#: Parts are numbered slot * WIDTH + position; no subscription has more keywords (`matching.validate`).
WIDTH = 1 << 16


class AnyOf:
    """The parts of the subscriptions of one engine.

    Parameters
    ----------
    parts : SubscriptionIndex     empty; changed through this object alone from then on
    rows : RegionSubscriptions    its columns

    Attributes
    ----------
    count : int32[slots]          parts of each slot of the engine they belong to
    """

    def __init__(self, parts: SubscriptionIndex, rows: RegionSubscriptions):
        self.parts, self.rows = parts, rows
        self.count = np.zeros(0, np.int32)

    def insert(self, table: SubscriptionTable, slots: Int32) -> None:
        """Insert the parts of subscriptions with these slots. O(terms)."""
        row = np.repeat(np.arange(len(table)), np.diff(table.term_offsets))
        first = np.repeat(table.term_offsets[:-1], np.diff(table.term_offsets))
        position = np.arange(row.shape[0]) - first
        known = table.terms != UNKNOWN_TERM
        row, position = row[known], position[known]
        self.count = grown(self.count, int(slots.max(initial=-1)) + 1)
        self.count[slots] = np.bincount(row, minlength=len(table))
        columns = {name: getattr(table, name)[row] for name in ("kind", "at", "x", "y", "region", "k", "alpha")}
        self.parts.insert(
            SubscriptionTable(
                number=slots[row].astype(np.int64) * WIDTH + position,
                match=np.full(row.shape[0], KEYWORDS_BY_KIND, np.int8),
                term_offsets=np.arange(row.shape[0] + 1),
                terms=table.terms[known],
                weights=table.weights[known],
                **columns,
            )
        )

    def remove(self, slots: Int32) -> None:
        """Remove the parts of these slots, of which some may have none. O(terms)."""
        slots = slots[slots < self.count.shape[0]]
        count = self.count[slots]
        first = np.cumsum(count) - count
        position = np.arange(int(count.sum())) - np.repeat(first, count)
        self.count[slots] = 0
        self.parts.remove(self.parts.find(np.repeat(slots, count).astype(np.int64) * WIDTH + position))

    def hits_of_wholes(self, hits: Hits) -> Hits:
        """Hits of the parts as those of the subscriptions they are of, each pair once. O(n log n)."""
        pairs = np.unique(hits.row.astype(np.int64) << 32 | self.parts.numbers(hits.slot) // WIDTH)
        return hits._replace(slot=(pairs & 0x7FFFFFFF).astype(np.int32), row=(pairs >> 32).astype(np.int32))

    def keywords(self, slots: Int32) -> tuple[Int64, Int32]:
        """Keywords of these slots: position of the owner in `slots`, and term; ascending by both. O(terms)."""
        count = np.zeros(slots.shape[0], np.int64)
        known = slots < self.count.shape[0]
        count[known] = self.count[slots[known]]
        owner = np.repeat(np.arange(slots.shape[0]), count)
        rows = self.rows
        live = np.flatnonzero(rows.slots.number[: rows.slots.high_water] >= 0)
        number = rows.slots.number[live]
        place = np.full(int(slots.max(initial=-1)) + 1, -1)
        place[slots] = np.arange(slots.shape[0])
        order = np.argsort(place[number // WIDTH] * WIDTH + number % WIDTH)
        return owner, ~rows.columns.terms[rows.columns.start[live[order]]]

    def snapshot(self) -> "AnyOf":
        """A frozen copy for `keywords`, which later calls do not change. O(slots + terms)."""
        now = copy(self)
        now.count, now.rows = self.count.copy(), self.rows.snapshot()
        return now

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size."""
        return {"count": self.count} | {f"parts_{name}": value for name, value in self.parts.arrays().items()}
