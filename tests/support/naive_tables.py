"""Short ways to write messages and subscriptions down in tests of the oracle, and to run them through it."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from matching.model import (
    CHANGES,
    DECAY,
    KEYWORDS_BY_KIND,
    KNN,
    NO_VECTORS,
    TOPK,
    MessageBatch,
    Removals,
    SubscriptionTable,
)
from matching.naive import Oracle
from matching.naive_rows import Extras, NaiveMessage, NaiveSubscription, NaiveUpdate
from matching.window import Boundary, Window, stream_time

WORLD = (-180.0, -90.0, 180.0, 90.0)
#: The reserved term of visible messages, and of subscriptions without keywords.
RESERVED = 2**31 - 2


def weighted(terms: Iterable[int] | dict[int, float]) -> dict[int, float]:
    """Terms with given weights, or with equal weights of norm one."""
    if isinstance(terms, dict):
        return dict(sorted(terms.items()))
    ascending = sorted(set(terms))
    return {term: float(np.float32(1.0 / math.sqrt(len(ascending)))) for term in ascending}


def message(
    seq, terms=(1,), x=0.0, y=0.0, box=None, life=None, counts=None, time_us=0, of=None, op=0, visible=False
) -> NaiveMessage:
    """A message; its box defaults to the point (x, y) in degrees, its life to its seq."""
    west, south, east, north = box or (x, y, x, y)
    weights = weighted(terms)
    counts = dict.fromkeys(weights, 1) if counts is None else counts
    life = seq if life is None else life
    name = f"object {seq}" if of is None else of
    return NaiveMessage(seq, x, y, west, south, east, north, life, weights, counts, time_us, name, op, visible=visible)


def subscription(
    number, kind, terms=(1,), at=0, x=0.0, y=0.0, region=WORLD, k=1, alpha=0.5, match=KEYWORDS_BY_KIND
) -> NaiveSubscription:
    """A subscription; columns that its kind lacks are blanked as in a real table. Without terms it has no keywords."""
    if kind in (TOPK, DECAY, KNN):
        region = (math.nan, math.nan, math.nan, math.nan)
    else:
        x, y, k = math.nan, math.nan, 0
    if kind not in (TOPK, DECAY):
        alpha = math.nan
    wordless = not terms
    return NaiveSubscription(number, kind, at, x, y, region, match, k, alpha, weighted(terms), wordless=wordless)


def batch(messages: Sequence[NaiveMessage]) -> tuple[MessageBatch, Extras]:
    """Messages as columns."""

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(row, name) for row in messages], dtype)

    places = {name: column(name, np.float64) for name in ("x", "y", "west", "south", "east", "north")}
    offsets, terms, weights = ragged([_weights(row) for row in messages])
    columns = MessageBatch(
        seq=column("seq", np.int64),
        life=column("life", np.int64),
        term_offsets=offsets,
        terms=terms,
        weights=weights,
        vector=np.array([row.vector for row in messages]) if messages and messages[0].vector else NO_VECTORS,
        **places,
    )
    counted = [{term: row.counts.get(term, 0) for term in _weights(row)} for row in messages]
    counts = [int(count) for row in counted for count in row.values()]
    times = [row.event_time_us for row in messages]
    return columns, Extras(times, counts, [row.object_id for row in messages], [row.op for row in messages])


def table(subscriptions: Sequence[NaiveSubscription]) -> SubscriptionTable:
    """Subscriptions as columns."""

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(row, name) for row in subscriptions], dtype)

    offsets, terms, weights = ragged([row.weights | _reserved(row.wordless) for row in subscriptions])
    return SubscriptionTable(
        number=column("number", np.int64),
        kind=column("kind", np.int8),
        at=column("at", np.int64),
        x=column("x", np.float64),
        y=column("y", np.float64),
        region=column("region", np.float64).reshape(-1, 4),
        match=column("match", np.int8),
        k=column("k", np.int32),
        alpha=column("alpha", np.float64),
        term_offsets=offsets,
        terms=terms,
        weights=weights,
    )


def _weights(row: NaiveMessage) -> dict[int, float]:
    """The weights of a message, ascending by term, with those of what it has for matching alone."""
    return dict(sorted({**dict.fromkeys(row.beginnings, -0.0), **row.weights, **_reserved(row.visible)}.items()))


def _reserved(there: bool, value: float = -0.0) -> dict[int, float]:
    """The reserved term, with its weight or another value."""
    return {RESERVED: value} if there else {}


def removals(pairs: Sequence[tuple[int, int]], kind: int = TOPK) -> Removals:
    """(number, at) pairs as columns; the oracle knows the kinds itself."""
    numbers, ats = [number for number, _ in pairs], [at for _, at in pairs]
    return Removals(np.array(numbers, np.int64), np.full(len(pairs), kind, np.int8), np.array(ats, np.int64))


def ragged(rows: Sequence[Mapping[int, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets, terms and weights of term maps."""
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    terms = np.array([term for row in rows for term in row], np.int32)
    return offsets, terms, np.array([weight for row in rows for weight in row.values()], np.float32)


def boundaries(
    messages: Sequence[NaiveMessage], size: int, window: Window
) -> list[tuple[Boundary, list[NaiveMessage]]]:
    """Dense messages from seq 0 on, cut into batches of `size`."""
    cut, clock = [], -(2**62)
    for number, start in enumerate(range(0, len(messages), size)):
        rows = list(messages[start : start + size])
        clock = stream_time(np.array([row.life for row in rows], np.int64), clock)
        last = rows[-1].seq
        cut.append((Boundary(number, rows[0].seq, last, window.floor(last, clock)), rows))
    return cut


def run(
    messages: Sequence[NaiveMessage],
    subscriptions: Sequence[NaiveSubscription],
    ended: Sequence[tuple[int, int]] = (),
    window: str = "count:100",
    size: int = 1,
    max_distance: float = 1.0,
    **options,
) -> tuple[Oracle, list[NaiveUpdate]]:
    """A whole stream through the oracle; a change goes into the batch with its seq, later ones into the last."""
    span = Window.parse(window)
    oracle = Oracle(span, max_distance, **options)
    updates: list[NaiveUpdate] = []
    before = -(2**62)
    parts = boundaries(messages, size, span)
    for boundary, rows in parts:
        upto = boundary.last_seq if boundary.number < len(parts) - 1 else 2**62
        new = [row for row in subscriptions if before < row.at <= upto]
        old = [pair for pair in ended if before < pair[1] <= upto]
        columns, extras = batch(rows)
        updates += oracle.advance(boundary, columns, table(new), removals(old), extras)
        before = upto
    return oracle, updates


def events(updates: Iterable[NaiveUpdate]) -> list[str]:
    """Updates as short words: `3: enter 2 to 0` is message 2 entering the result of subscription 0 as of 3."""
    return [f"{row.as_of}: {CHANGES[row.change]} {row.seq} to {row.number}" for row in updates]


def held(oracle: Oracle, number: int = 0) -> list[int]:
    """Messages in the result of one subscription, best first."""
    return [row.seq for row in oracle.results() if row.number == number]


def replayed(updates: Iterable[NaiveUpdate]) -> dict[int, set[int]]:
    """What a subscriber holds after these updates; fails on an event that cannot be."""
    holds: dict[int, set[int]] = {}
    for row in updates:
        result = holds.setdefault(row.number, set())
        if CHANGES[row.change] == "enter":
            assert row.seq not in result, f"{row} enters twice"
            result.add(row.seq)
        elif CHANGES[row.change] == "leave":
            assert row.seq in result, f"{row} leaves without having entered"
            result.remove(row.seq)
    return {number: result for number, result in holds.items() if result}
