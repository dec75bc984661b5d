"""Quarantine: messages and subscriptions on which a component failed; the run continues without them.

A message keeps its seq and loses its terms; a subscription keeps its number and matches nothing. So numbers, boundaries
and all other results stay the same. `topology.poison` finds what to quarantine.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from matching.kind_table import Kinds
from matching.model import KEYWORDS_BY_KIND, UNKNOWN_TERM, Int64, MessageBatch, SubscriptionTable, take_ragged


class Quarantine(NamedTuple):
    """Ranges of seqs and of subscription numbers, first and last of each."""

    messages: tuple[tuple[int, int], ...] = ()
    subscriptions: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ranges: Mapping[str, Sequence[Sequence[int]]]) -> "Quarantine":
        """From what `as_json` returned."""
        return cls(*(tuple((int(first), int(last)) for first, last in ranges.get(name, ())) for name in cls._fields))

    def as_json(self) -> dict[str, list[list[int]]]:
        return {name: [list(each) for each in ranges] for name, ranges in self._asdict().items()}

    def with_more(self, messages: Sequence[tuple[int, int]] = (), subscriptions: Sequence[tuple[int, int]] = ()) -> Any:
        return Quarantine((*self.messages, *messages), (*self.subscriptions, *subscriptions))


EMPTY_QUARANTINE = Quarantine()


def drop_terms(offsets: Int64, keep: Any, *columns: Any) -> tuple[Int64, tuple[Any, ...]]:
    """Ragged columns with the rows that are not kept made empty; a column without entries stays as it is."""
    lengths = np.diff(offsets)
    kept = np.repeat(keep, lengths)
    new_offsets = np.zeros_like(offsets)
    np.cumsum(np.where(keep, lengths, 0), out=new_offsets[1:])
    return new_offsets, tuple(column[kept] if column.shape[0] else column for column in columns)


def without_terms(messages: MessageBatch, ranges: Sequence[tuple[int, int]]) -> MessageBatch:
    """Drop the terms of messages within the ranges of seqs. O(n + terms) if there are any ranges."""
    if not ranges or not (inside := in_ranges(messages.seq, ranges)).any():
        return messages
    columns = messages.terms, messages.weights, messages.counts
    offsets, (terms, weights, counts) = drop_terms(messages.term_offsets, ~inside, *columns)
    changed = {"term_offsets": offsets, "terms": terms, "weights": weights, "counts": counts}
    if messages.order_offsets.shape[0]:
        changed["order_offsets"], (changed["order"],) = drop_terms(messages.order_offsets, ~inside, messages.order)
    return messages.having(**changed)


def make_unmatchable(table: SubscriptionTable, ranges: Sequence[tuple[int, int]], kinds: Kinds) -> SubscriptionTable:
    """Make subscriptions within the ranges of numbers match nothing. O(n + terms) if there are any ranges.

    They get a region, a kind that keeps no result, and a keyword that no message has.
    """
    inside = in_ranges(table.number, ranges)
    if not inside.any():
        return table
    harmless = next(kind.code for kind in kinds.run if kind.place == "region" and not kind.standing)
    rows = np.flatnonzero(~inside)
    _, picked = take_ragged(table.term_offsets, rows)
    lengths = np.where(inside, 1, np.diff(table.term_offsets))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    terms = np.full(offsets[-1], UNKNOWN_TERM, np.int32)
    weights = np.zeros(offsets[-1], np.float32)
    fill = np.repeat(~inside, lengths)
    terms[fill], weights[fill] = table.terms[picked], table.weights[picked]
    nan = np.where(inside, np.nan, 1.0)
    changed = {
        "kind": np.where(inside, np.int8(harmless), table.kind),
        "x": table.x * nan,
        "y": table.y * nan,
        "region": np.where(inside[:, None], 0.0, table.region),
        "match": np.where(inside, np.int8(KEYWORDS_BY_KIND), table.match),
        "k": np.where(inside, np.int32(0), table.k),
        "alpha": table.alpha * nan,
        "vector": table.vector * nan[:, None] if table.vector.shape[0] else table.vector,
        "radius_m": table.radius_m * nan if table.radius_m.shape[0] else table.radius_m,
        "term_offsets": offsets,
        "terms": terms,
        "weights": weights,
    }
    return table.having(**changed)


def in_ranges(numbers: np.ndarray, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
    """bool[n]: which numbers lie in a range."""
    inside = np.zeros(numbers.shape[0], np.bool_)
    for first, last in ranges:
        inside |= (numbers >= first) & (numbers <= last)
    return inside
