"""The index of `skyline` subscriptions: of which ones a message is a candidate, and its relevance to each.

A candidate lies in the closed rectangle and shares at least one keyword. Each keyword of a subscription is a row of its
own in a cell-term index (`matching.storage.cell_term`), so a pair is found once for each common keyword: the number of
times gives the text relevance without reading the texts.
"""

import math
from copy import copy

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.errors import EngineError
from matching.filters import FilterStore
from matching.index import HitBuffer, Hits, SubscriptionIndex, gather
from matching.model import KEYWORDS_BY_KIND, SKYLINE, Int32, Int64, MessageBatch, SubscriptionTable
from matching.skyline.answers import SkylineQueries
from matching.space import Space
from matching.storage.cell_term import CellTermIndex
from matching.storage.region_messages import Messages
from matching.storage.region_subscriptions import Regions, RegionSubscriptions
from matching.storage.slots import SlotMap, as_input, grown

#: Low bits of a row number in the index: the position of the keyword, hence the most keywords of a subscription.
_KEYWORD_BITS = 12
#: The pool of keywords is rewritten when it is full and this fraction of it is dead.
_DEAD_FRACTION = 0.25


class SkylineSubscriptions(SubscriptionIndex):
    """Columns of the skyline subscriptions by slot, and the index over their keywords and rectangles."""

    name = "skyline"

    def __init__(self, space: Space):
        super().__init__(SlotMap())
        self.region = np.zeros((0, 4))
        self.term_start = np.zeros(0, np.int64)
        self.term_count = np.zeros(0, np.int32)
        self.terms = np.zeros(0, np.int32)
        self._pool = np.zeros(2, np.int64)  # end of the used part of `terms`, dead entries in it
        self.space = space
        self._rows = RegionSubscriptions()  # a row a keyword
        self._cells = CellTermIndex(space, self._rows, "skyline")
        self._hits = HitBuffer()
        self._common = np.zeros(0, np.int32)
        self.filters = FilterStore()

    @property
    def capacity(self) -> int:
        """Upper bound of the slots, exclusive."""
        return self.slots.capacity

    def insert(self, table: SubscriptionTable) -> Int32:
        """As `SubscriptionIndex.insert`; raises `EngineError` for too many keywords too."""
        lengths = np.diff(table.term_offsets)
        if np.any(table.kind != SKYLINE) or np.any(lengths >= 1 << _KEYWORD_BITS):
            raise EngineError(f"skyline: takes skyline subscriptions of less than {1 << _KEYWORD_BITS} keywords only")
        slots = self.slots.insert(table.number)
        self.region, self.term_start, self.term_count = (
            grown(column, self.slots.capacity) for column in (self.region, self.term_start, self.term_count)
        )
        first, last = int(table.term_offsets[0]), int(table.term_offsets[-1])
        used = self._reserve(last - first)
        self.region[slots] = table.region
        self.term_start[slots] = used + table.term_offsets[:-1] - first
        self.term_count[slots] = lengths
        self.terms[used : used + last - first] = table.terms[first:last]
        self._pool[0] = used + last - first
        self.filters.insert(table, slots)
        self._post(slots)
        return slots

    def _post(self, slots: Int32) -> None:
        self._cells.insert(self._rows.insert(self._row_of_each_keyword(slots)))

    def _unpost(self, slots: Int32) -> None:
        rows = self._rows.slots.find(self._row_numbers(slots))
        if rows.min(initial=0) < 0:
            raise EngineError("skyline: a subscription to withdraw is withdrawn already")
        self._cells.withdraw(rows)
        self._rows.remove(rows)

    def release(self, slots: Int32) -> None:
        self._pool[1] += int(self.term_count[slots].sum())
        self.term_count[slots] = 0
        self.filters.remove(slots)
        self.slots.remove(self.slots.number[slots])

    def match(self, batch: MessageBatch, chosen: Int64 | None = None) -> Hits:
        """All candidate pairs of a batch, with relevances as `matching.naive.skyline_scores` has them, bit for bit.

        `chosen` (ascending) are the rows to match, all of them if None.
        """
        if chosen is None:
            chosen = np.arange(len(batch))
        lon, lat = (np.empty(chosen.shape[0]) for _ in range(2))
        offsets = np.zeros(chosen.shape[0] + 1, np.int64)
        words = np.empty(batch.terms.shape[0], np.int32)
        whole = Messages.of(batch)
        _read(whole, as_input(batch.weights, np.float32), as_input(chosen, np.int64), lon, lat, offsets, words)
        offsets = as_input(offsets, np.int64)
        messages = Messages(lon, lat, lon, lat, offsets, as_input(words, np.int32))
        hits = self._hits.fill(lon.shape[0], lambda row, _, *columns: self._cells.scan(messages, row, *columns))
        if self._common.shape[0] < self.capacity:
            self._common = np.zeros(self.capacity, np.int32)
        slot, row = np.empty(hits.matched, np.int32), np.empty(hits.matched, np.int32)
        spatial, text = np.empty(hits.matched), np.empty(hits.matched)
        count = _pairs(
            gather(self._rows.slots.number, hits.slot), hits.row, lon, lat, offsets, self.region, self.term_count,
            self._common, slot, row, spatial, text,
        )  # fmt: skip
        rows = chosen[row[:count]].astype(np.int32)
        pairs = Hits(slot[:count], rows, (spatial[:count], text[:count]), hits.next_row, hits.scanned, 0)
        return pairs.passing(self.filters, batch)

    def queries(self, slots: Int32) -> SkylineQueries:
        """Window queries of these slots. O(n + terms)."""
        lengths = self.term_count[slots]
        offsets = np.zeros(slots.shape[0] + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        picked = np.arange(offsets[-1]) + np.repeat(self.term_start[slots] - offsets[:-1], lengths)
        return SkylineQueries(self.region[slots], offsets, self.terms[picked], *self.filters.columns(slots))

    def table(self, slots: Int32) -> SubscriptionTable:
        """The subscriptions of these slots, without `at` and weights, which `skyline` ignores. O(n + terms)."""
        n, queries = slots.shape[0], self.queries(slots)
        nowhere, zeros = np.full(n, np.nan), np.zeros(n, np.int64)
        return SubscriptionTable(
            self.slots.number[slots], np.full(n, SKYLINE, np.int8), zeros, nowhere, nowhere, queries.region,
            np.full(n, KEYWORDS_BY_KIND, np.int8), zeros.astype(np.int32), nowhere, queries.term_offsets,
            queries.terms, np.zeros(queries.terms.shape[0], np.float32), *self.filters.columns(slots),
        )  # fmt: skip

    def snapshot(self) -> "SkylineSubscriptions":
        """A frozen copy for `table`, which later calls do not change. O(slots + terms + words of filters)."""
        now = copy(self)
        now.slots, now.filters = self.slots.snapshot(), self.filters.snapshot()
        now.region, now.term_start, now.term_count = self.region.copy(), self.term_start.copy(), self.term_count.copy()
        now.terms = self.terms[: self._pool[0]].copy()
        return now

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, by name, to measure memory."""
        columns = {"region": self.region, "term_start": self.term_start, "term_count": self.term_count}
        columns |= {"terms": self.terms[: self._pool[0]], "pool": self._pool}
        columns |= {f"slots_{name}": value for name, value in self.slots.arrays().items()}
        columns |= {f"filters_{name}": value for name, value in self.filters.arrays().items()}
        columns |= {f"cells_rows_{name}": value for name, value in self._rows.arrays().items()}
        return columns | {f"cells_index_{name}": value for name, value in self._cells.arrays().items()}

    def _reserve(self, needed: int) -> int:
        """Provide capacity for `needed` terms at the end of the pool; returns the position of that end."""
        if self._pool[0] + needed > self.terms.shape[0]:
            if self._pool[1] > _DEAD_FRACTION * self._pool[0]:
                # new slots have no terms yet, freed ones none any more
                used = self.slots.high_water
                slots = np.flatnonzero((self.slots.number[:used] >= 0) & (self.term_count[:used] > 0)).astype(np.int32)
                kept = self.queries(slots)
                self.term_start[slots] = kept.term_offsets[:-1]
                self._pool[:] = kept.terms.shape[0], 0
                self.terms[: kept.terms.shape[0]] = kept.terms
            self.terms = grown(self.terms, int(self._pool[0]) + needed)
        return int(self._pool[0])

    def _row_numbers(self, slots: Int32) -> Int64:
        """Row numbers of all keywords of these slots: slot and position of the keyword."""
        lengths = self.term_count[slots].astype(np.int64)
        ordinal = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.repeat(slots.astype(np.int64) << _KEYWORD_BITS, lengths) + ordinal

    def _row_of_each_keyword(self, slots: Int32) -> Regions:
        """A row for each keyword of these slots, in their region."""
        queries = self.queries(slots)
        region = np.repeat(queries.region, np.diff(queries.term_offsets), axis=0)
        return Regions(self._row_numbers(slots), region, np.arange(region.shape[0] + 1), queries.terms)


@njit_no_refcount
def _read(messages, weights, chosen, lon, lat, offsets, words):
    """Write the centres of chosen messages, and their words behind each other, without the reserved term.

    chosen : int64[n]    rows, ascending
    lon, lat : float64[n], offsets : int64[n + 1], words : int32[terms of all messages]    written to
    """
    end = 0
    for i in range(chosen.shape[0]):
        row = chosen[i]
        lon[i] = (messages.west[row] + messages.east[row]) / 2.0
        lat[i] = (messages.south[row] + messages.north[row]) / 2.0
        for at in range(messages.term_offsets[row], messages.term_offsets[row + 1]):
            words[end] = messages.terms[at]
            end += not np.signbit(weights[at])
        offsets[i + 1] = end


@njit_inner
def spatial_relevance(region, lon, lat):
    """1 at the centre of the rectangle, 0 at its corners; the expression of `matching.naive.skyline_scores`."""
    west, south, east, north = region[0], region[1], region[2], region[3]
    dx, dy = lon - (west + east) / 2.0, lat - (south + north) / 2.0
    width, height = east - west, north - south
    # not `hypot`, which may round otherwise than the oracle does
    half_diagonal = math.sqrt(width * width + height * height) / 2.0
    # the rectangle is a point: a message in it lies at its centre
    if half_diagonal == 0.0:
        return 1.0
    # rounding may take a corner slightly beyond the half diagonal
    return max(0.0, 1.0 - math.sqrt(dx * dx + dy * dy) / half_diagonal)


@njit(cache=True, nogil=True)
def _pairs(
    numbers, rows, lon, lat, term_offsets, region, keywords, common, out_slot, out_row, out_spatial, out_text
):  # fmt: skip
    """Merge the hits of each (row, slot) into one pair; returns the number of pairs.

    common : int32[slots]    zero before and after
    """
    pairs, i = 0, 0
    while i < rows.shape[0]:
        row, first = rows[i], pairs
        while i < rows.shape[0] and rows[i] == row:
            # each common keyword is one hit
            slot = numbers[i] >> _KEYWORD_BITS
            if common[slot] == 0:
                out_slot[pairs] = slot
                out_row[pairs] = row
                pairs += 1
            common[slot] += 1
            i += 1
        terms = term_offsets[row + 1] - term_offsets[row]
        for pair in range(first, pairs):
            slot = out_slot[pair]
            out_spatial[pair] = spatial_relevance(region[slot], lon[row], lat[row])
            out_text[pair] = common[slot] / (keywords[slot] + terms - common[slot])
            # only touched slots: clearing all would cost every subscription at every message
            common[slot] = 0
    return pairs
