"""Contract of the engines of `boolean`: subscriptions in, messages in, matching pairs out.

A pair matches when the message has all keywords of the subscription (or at least one, where that suffices:
`matching.boolean.any_of`) and its point or rectangle meets the closed region, both compared in float64 degrees. The
engines differ in how they find candidates. `operator` emits their matches exactly at each seq; `matching.naive` is the
oracle. Base of all engines of `boolean`.
"""

from abc import abstractmethod
from copy import copy

import numpy as np

from matching.boolean.any_of import AnyOf
from matching.errors import EngineError
from matching.filters import FilterStore
from matching.index import HitBuffer, Hits, SubscriptionIndex
from matching.model import (
    ANY_KEYWORD,
    BOOLEAN,
    KEYWORDS_BY_KIND,
    UNKNOWN_TERM,
    Int32,
    MessageBatch,
    SubscriptionTable,
)
from matching.space import Space
from matching.storage.region_messages import Messages
from matching.storage.region_subscriptions import RegionSubscriptions


class BooleanEngine(SubscriptionIndex):
    """An index over boolean subscriptions.

    Parameters
    ----------
    space : Space    world box; decides how an engine cuts the world up, never what matches
    """

    def __init__(self, space: Space):
        self.space = space
        self.subscriptions = RegionSubscriptions()
        super().__init__(self.subscriptions.slots)
        self._engine_of_parts: BooleanEngine | None = None
        self._any_of: AnyOf | None = None
        self._hits = HitBuffer()
        self.filters = FilterStore()

    def insert(self, table: SubscriptionTable) -> Int32:
        """As `SubscriptionIndex.insert`; one with an unknown keyword is kept and cannot match."""
        if np.any(table.kind != BOOLEAN):
            other = table.kind[table.kind != BOOLEAN][0]
            raise EngineError(
                f"engine {self.name}: takes boolean subscriptions, not kind {other}; use table.of_kind(BOOLEAN)"
            )
        loose = table.match == ANY_KEYWORD
        if not np.any(loose):
            slots = self.subscriptions.insert(table)
            self.filters.insert(table, slots)
            if slots.shape[0]:
                self._post(slots)
            return slots
        terms = table.terms[np.repeat(~loose, np.diff(table.term_offsets))]
        offsets = np.zeros(len(table) + 1, np.int64)
        np.cumsum(np.where(loose, 0, np.diff(table.term_offsets)), out=offsets[1:])
        # Without keywords a row never matches by itself.
        slots = self.subscriptions.insert(
            SubscriptionTable(**(table._asdict() | {"term_offsets": offsets, "terms": terms}))
        )
        self.filters.insert(table, slots)
        self._post(slots)
        if self._any_of is None:
            self._engine_of_parts = type(self)(self.space)
            self._any_of = AnyOf(self._engine_of_parts, self._engine_of_parts.subscriptions)
        self._any_of.insert(table.take(np.flatnonzero(loose)), slots[loose])
        return slots

    def withdraw(self, slots: Int32) -> None:
        super().withdraw(slots)
        if self._any_of is not None:
            self._any_of.remove(slots)

    def release(self, slots: Int32) -> None:
        self.filters.remove(slots)
        self.subscriptions.remove(slots)

    def match(self, batch: MessageBatch) -> Hits:
        """Find all matching pairs of a batch."""
        messages = Messages.of(batch)
        hits = self._candidates(messages, batch)
        if self._engine_of_parts is None or self._any_of is None:
            return hits.passing(self.filters, batch)
        more = self._any_of.hits_of_wholes(self._engine_of_parts.match(batch))
        slots, rows = np.concatenate([hits.slot, more.slot]), np.concatenate([hits.row, more.row])
        order = np.argsort(rows, kind="stable")
        scanned, verified = hits.scanned + more.scanned, hits.verified + more.verified
        both = Hits(slots[order], rows[order], (), hits.next_row, scanned, verified)
        return both.passing(self.filters, batch)

    def table(self) -> SubscriptionTable:
        """The subscriptions, in ascending number; without `at` and weights, of which nothing depends. O(n log n).

        Of one that can never match, nothing but that is left.
        """
        slots = self.slots.live_slots()
        # stable: takes little time where they are in order
        slots = slots[np.argsort(self.slots.number[slots], kind="stable")]
        owner, terms = self.subscriptions.keywords(slots)
        n = slots.shape[0]
        match = np.full(n, KEYWORDS_BY_KIND, np.int8)
        if self._any_of is not None:
            loose_owner, loose_terms = self._any_of.keywords(slots)
            match[loose_owner] = ANY_KEYWORD
            owner, terms = np.concatenate([owner, loose_owner]), np.concatenate([terms, loose_terms])
        never = np.flatnonzero(np.bincount(owner, minlength=n) == 0)
        owner = np.concatenate([owner, never])
        terms = np.concatenate([terms, np.full(never.shape[0], UNKNOWN_TERM, np.int32)])
        offsets = np.zeros(n + 1, np.int64)
        np.cumsum(np.bincount(owner, minlength=n), out=offsets[1:])
        nowhere, zeros = np.full(n, np.nan), np.zeros(n, np.int64)
        return SubscriptionTable(
            self.slots.number[slots], np.full(n, BOOLEAN, np.int8), zeros, nowhere, nowhere,
            self.subscriptions.columns.region[slots], match, zeros.astype(np.int32), nowhere, offsets,
            terms[np.argsort(owner, kind="stable")], np.zeros(terms.shape[0], np.float32),
            *self.filters.columns(slots),
        )  # fmt: skip

    def rarest(self, slots: Int32) -> Int32:
        """The rarest keyword of each slot that needs all of its keywords, the reserved term of one without; else -1."""
        columns = self.subscriptions.columns
        start = columns.start[slots]
        found = np.full(slots.shape[0], -1, np.int32)
        terms = columns.terms[start[start >= 0]]
        found[start >= 0] = np.where(terms < 0, ~terms, terms)
        return found

    @property
    def changes(self) -> int:
        """Rises whenever `table` may have changed."""
        return self.slots.changes + (0 if self._any_of is None else self._any_of.rows.slots.changes)

    def snapshot(self) -> "BooleanEngine":
        """A frozen copy for `table`, which later calls do not change. O(slots + terms + words of filters)."""
        now = copy(self)
        now.subscriptions, now.filters = self.subscriptions.snapshot(), self.filters.snapshot()
        now.slots = now.subscriptions.slots
        now._any_of = None if self._any_of is None else self._any_of.snapshot()
        return now

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size: prefixed `rows_`, `index_` and perhaps `any_`. Views, no copies."""
        rows = {f"rows_{name}": value for name, value in self.subscriptions.arrays().items()}
        if self._any_of is not None:
            rows |= {f"any_{name}": value for name, value in self._any_of.arrays().items()}
        rows |= {f"filters_{name}": value for name, value in self.filters.arrays().items()}
        return rows | {f"index_{name}": value for name, value in self._index_arrays().items()}

    def allocated_bytes(self) -> int:
        """Allocated memory, spare capacity included."""
        size = self.subscriptions.allocated_bytes() + self._index_bytes() + self._hits.allocated_bytes()
        size += self.filters.allocated_bytes()
        if self._engine_of_parts is None or self._any_of is None:
            return size
        return size + self._any_of.count.nbytes + self._engine_of_parts.allocated_bytes()

    def _candidates(self, messages: Messages, batch: MessageBatch) -> Hits:
        """Pairs that have the keywords and meet the box; filters are tested behind."""
        return self._hits.fill(len(batch), lambda row, _, *columns: self._scan(messages, row, *columns))

    @abstractmethod
    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        """Match rows from `first_row` on into the hit buffers until they are full.

        Returns (hits, first row not matched, scanned, verified); a row whose hits do not all fit is not matched.
        """

    @abstractmethod
    def _index_arrays(self) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def _index_bytes(self) -> int: ...
