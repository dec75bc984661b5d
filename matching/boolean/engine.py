"""Contract of the engines of `boolean`: subscriptions in, messages in, matching pairs out.

A pair matches when the message has all keywords of the subscription (or at least one, where that suffices:
`matching.boolean.any_of`) and its point or rectangle meets the closed region, both compared in float64 degrees. The
engines differ in how they find candidates; read on in `cell_term`, the default.
`operator` emits their matches exactly at each seq; `matching.naive` is the oracle.
"""

from abc import ABC, abstractmethod
from functools import partial

import numpy as np

from matching.boolean.any_of import AnyOf
from matching.boolean.match_set import MatchSet
from matching.errors import EngineError
from matching.model import (
    ANY_KEYWORD,
    BOOLEAN,
    KEYWORDS_BY_KIND,
    UNKNOWN_TERM,
    Int32,
    Int64,
    MessageBatch,
    SubscriptionTable,
)
from matching.space import Space
from matching.storage.region_hits import HitBuffer, Messages
from matching.storage.region_subscriptions import RegionSubscriptions


class BooleanEngine(ABC):
    """An index over boolean subscriptions.

    Parameters
    ----------
    space : Space    world box; decides how an engine cuts the world up, never what matches
    """

    #: Name in `matching.kinds`.
    name: str

    def __init__(self, space: Space):
        self.space = space
        self.subscriptions = RegionSubscriptions()
        self._any_of: AnyOf | None = None
        self._hits = HitBuffer()

    def __len__(self) -> int:
        return len(self.subscriptions)

    def insert(self, table: SubscriptionTable) -> None:
        """Add subscriptions. Amortised O(n + terms).

        One with an unknown keyword is kept and cannot match.

        Raises
        ------
        EngineError
            If a number is here already, or a row is of another kind; nothing is changed then.
        """
        if np.any(table.kind != BOOLEAN):
            other = table.kind[table.kind != BOOLEAN][0]
            raise EngineError(
                f"engine {self.name}: takes boolean subscriptions, not kind {other}; use table.of_kind(BOOLEAN)"
            )
        loose = table.match == ANY_KEYWORD
        if not np.any(loose):
            slots = self.subscriptions.insert(table)
            if slots.shape[0]:
                self._index(slots)
            return
        terms = table.terms[np.repeat(~loose, np.diff(table.term_offsets))]
        offsets = np.zeros(len(table) + 1, np.int64)
        np.cumsum(np.where(loose, 0, np.diff(table.term_offsets)), out=offsets[1:])
        # Without keywords a row never matches by itself.
        slots = self.subscriptions.insert(
            SubscriptionTable(**(table._asdict() | {"term_offsets": offsets, "terms": terms}))
        )
        self._index(slots)
        if self._any_of is None:
            self._any_of = AnyOf(type(self)(self.space))
        self._any_of.insert(table.take(np.flatnonzero(loose)), slots[loose])

    def remove(self, numbers: Int64) -> None:
        """Remove subscriptions. Amortised O(n + terms).

        Raises
        ------
        EngineError
            If a number is not here, or there twice; nothing is changed then.
        """
        numbers = np.ascontiguousarray(numbers, np.int64)
        slots = self.subscriptions.slots.find(numbers)
        if slots.shape[0] == 0:
            return
        if slots.min() < 0:
            unknown = numbers[slots < 0][0]
            raise EngineError(
                f"engine {self.name}: subscription {unknown} cannot be removed, it is not here; add it first"
            )
        if np.unique(slots).shape[0] < slots.shape[0]:
            raise EngineError(
                f"engine {self.name}: a subscription is to be removed twice at once; name each number once"
            )
        self._withdraw(slots)
        if self._any_of is not None:
            self._any_of.remove(slots)
        self.subscriptions.remove(slots)

    def holds(self, numbers: Int64) -> np.ndarray:
        """bool[n]: which of these numbers are here. O(n)."""
        return self.subscriptions.slots.find(np.ascontiguousarray(numbers, np.int64)) >= 0

    def match(self, batch: MessageBatch) -> MatchSet:
        """Find all matching pairs of a batch."""
        found, scanned, verified = self._hits.fill(len(batch), partial(self._scan, Messages.of(batch)))
        number, rows = self._hits.numbers(found, self.subscriptions.slots.number), self._hits.row[:found].copy()
        if self._any_of is not None:
            slots, more_rows, looked, tested = self._any_of.match(batch)
            rows = np.concatenate([rows, more_rows])
            order = np.argsort(rows, kind="stable")
            number = np.concatenate([number, self.subscriptions.slots.number[slots]])[order]
            rows, scanned, verified = rows[order], scanned + looked, verified + tested
        return MatchSet(number, rows, scanned, verified, number.shape[0])

    def table(self) -> SubscriptionTable:
        """The subscriptions, in ascending number; without `at` and weights, of which nothing depends. O(n log n).

        Of one that can never match, nothing but that is left.
        """
        slots = np.flatnonzero(self.subscriptions.slots.number[: self.subscriptions.slots.high_water] >= 0).astype(
            np.int32
        )
        slots = slots[np.argsort(self.subscriptions.slots.number[slots])]
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
            self.subscriptions.slots.number[slots], np.full(n, BOOLEAN, np.int8), zeros, nowhere, nowhere,
            self.subscriptions.columns.region[slots], match, zeros.astype(np.int32), nowhere, offsets,
            terms[np.argsort(owner, kind="stable")], np.zeros(terms.shape[0], np.float32),
        )  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size: prefixed `rows_`, `index_` and perhaps `any_`. Views, no copies."""
        rows = {f"rows_{name}": value for name, value in self.subscriptions.arrays().items()}
        if self._any_of is not None:
            rows |= {f"any_{name}": value for name, value in self._any_of.arrays().items()}
        return rows | {f"index_{name}": value for name, value in self._index_arrays().items()}

    def allocated_bytes(self) -> int:
        """Allocated memory, spare capacity included."""
        size = self.subscriptions.allocated_bytes() + self._index_bytes() + self._hits.allocated_bytes()
        return size + (0 if self._any_of is None else self._any_of.allocated_bytes())

    @abstractmethod
    def _index(self, slots: Int32) -> None:
        """Add rows that have just been written to the index."""

    @abstractmethod
    def _withdraw(self, slots: Int32) -> None:
        """Remove rows from the index; `subscriptions.remove` follows."""

    @abstractmethod
    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        """Match rows from `first_row` on into the hit buffers until they are full.

        Returns (hits, first row not matched, scanned, verified); a row whose hits do not all fit is not matched.
        """

    @abstractmethod
    def _index_arrays(self) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def _index_bytes(self) -> int: ...
