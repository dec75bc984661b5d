"""Short ways to write boolean messages and subscriptions down, and to ask the oracle for all pairs."""

from collections.abc import Sequence

import numpy as np

from matching.model import ANY_KEYWORD, BOOLEAN, KEYWORDS_BY_KIND, MessageBatch, Removals, SubscriptionTable
from matching.naive import Oracle
from matching.reserved import RESERVED_IDF
from matching.space import EARTH, Space
from matching.window import NO_FLOOR, Boundary

SPACE = Space(*EARTH)
Box = tuple[float, float, float, float]
#: The reserved term: of messages that are visible, and alone of subscriptions without keywords.
RESERVED = 1_000


def table(
    rows: Sequence[tuple[Box, Sequence[int]]],
    first: int = 0,
    at: int = 0,
    numbers: Sequence[int] | None = None,
    loose: Sequence[bool] | None = None,
) -> SubscriptionTable:
    """Subscriptions from (region, terms) pairs, numbered from `first` unless `numbers` are given.

    One keyword is enough for those that are loose.
    """
    count = len(rows)
    offsets, terms = _ragged([each for _, each in rows])
    nowhere = np.full(count, np.nan)
    return SubscriptionTable(
        np.array(numbers if numbers is not None else range(first, first + count), np.int64),
        np.full(count, BOOLEAN, np.int8),
        np.full(count, at, np.int64),
        nowhere,
        nowhere,
        np.array([box for box, _ in rows], np.float64).reshape(count, 4),
        np.where(loose if loose is not None else np.zeros(count, bool), ANY_KEYWORD, KEYWORDS_BY_KIND).astype(np.int8),
        np.zeros(count, np.int32),
        nowhere,
        offsets,
        terms,
        _weights(terms),
    )


def batch(rows: Sequence[tuple[Box | tuple[float, float], Sequence[int]]], first_seq: int = 0) -> MessageBatch:
    """Messages from (point or box, terms) pairs."""
    boxes = np.array([(*place, *place) if len(place) == 2 else place for place, _ in rows], np.float64).reshape(-1, 4)
    offsets, terms = _ragged([each for _, each in rows])
    west, south, east, north = (np.ascontiguousarray(column) for column in boxes.T)
    seq = np.arange(first_seq, first_seq + len(rows))
    x, y = SPACE.project(west, south)
    return MessageBatch(seq, x, y, west, south, east, north, seq, offsets, terms, _weights(terms))


def _weights(terms: np.ndarray) -> np.ndarray:
    return np.where(terms == RESERVED, RESERVED_IDF, 1.0).astype(np.float32)


def no_removals() -> Removals:
    """Nobody leaves."""
    return removals([], [])


def removals(numbers: Sequence[int], at: Sequence[int]) -> Removals:
    """Boolean removals."""
    return Removals(np.array(numbers, np.int64), np.full(len(numbers), BOOLEAN, np.int8), np.array(at, np.int64))


def oracle_pairs(subscriptions: SubscriptionTable, messages: MessageBatch) -> list[tuple[int, int]]:
    """Every (number, row) that the oracle calls a match, sorted."""
    last = int(messages.seq[-1]) if len(messages) else -1
    first = int(messages.seq[0]) if len(messages) else 0
    updates = Oracle(None, SPACE.max_distance).advance(
        Boundary(0, first, last, NO_FLOOR), messages, subscriptions, no_removals()
    )
    row_of = {seq: row for row, seq in enumerate(messages.seq.tolist())}
    return sorted((update.number, row_of[update.seq]) for update in updates)


def engine_pairs(engine, messages: MessageBatch) -> list[tuple[int, int]]:
    """Every (number, row) that an engine finds, sorted; a repeated pair stays repeated."""
    hits = engine.match(messages)
    number = engine.numbers(hits.slot)
    assert number.dtype == np.int64
    assert hits.row.dtype == np.int32
    assert np.all(np.diff(hits.row) >= 0)
    assert hits.matched == hits.slot.shape[0] == hits.row.shape[0]
    assert hits.matched <= hits.verified <= hits.scanned
    return sorted(zip(number.tolist(), hits.row.tolist(), strict=True))


def _ragged(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(set(row)) for row in rows], out=offsets[1:])
    return offsets, np.array([term for row in rows for term in sorted(set(row))], np.int32)
