"""Streams that random ones never are: everything at one point, ties by the hundred, all at the end of the world, long
texts, windows smaller than a batch, and subscriptions that are all replaced in every batch.

Made by the traits of a kind alone, as of `tests.support.any_kind`. Lives are seqs, or seconds in windows of time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.driving import Batch
from matching.kind_table import Kind
from matching.model import ANY_KEYWORD, KEYWORDS_BY_KIND, NO_MESSAGES, MessageBatch, SubscriptionTable
from matching.naive_rows import tally
from matching.window import NO_FLOOR, Boundary, Window
from tests.support.any_kind import oracle_of, removals_of
from tests.support.remembered import remembered
from tests.support.worlds import SPACE, extras_of

#: West, south, east, north.
WORLD = (-180.0, -90.0, 180.0, 90.0)
#: Corners, poles, and both sides of the antimeridian.
ENDS = np.array([(-180, -90), (180, 90), (-180, 90), (180, -90), (0, 90), (0, -90), (180, 0), (-180, 0)], np.float64)
Texts = Sequence[Sequence[int] | np.ndarray]


class Crowd(NamedTuple):
    """A stream: its window, and what makes the batches of a kind from random numbers."""

    window: str
    make: Callable[[Kind, np.random.Generator], Iterator["Turn"]]


class Turn(NamedTuple):
    """Messages, new subscriptions, and the numbers of those that end before the last message."""

    messages: MessageBatch
    added: SubscriptionTable
    removed: Any = ()


class Stream:
    """Makes messages and subscriptions of a kind, numbered one after the other."""

    def __init__(self, kind: Kind, rng: np.random.Generator):
        self.kind, self.rng = kind, rng
        self.seq = self.number = 0

    def messages(self, texts: Texts, lon: Any = 0.0, lat: Any = 0.0, time_s: int | None = None) -> MessageBatch:
        """The next messages, all at one time if one is given."""
        rows = len(texts)
        seq = self.seq + np.arange(rows)
        self.seq += rows
        lon, lat = (np.broadcast_to(np.asarray(each, np.float64), rows).copy() for each in (lon, lat))
        x, y = SPACE.project(lon, lat)
        life = seq if time_s is None else np.full(rows, time_s)
        offsets, terms, weights = _ragged(texts)
        counts = np.ones(terms.size, np.int32)
        return MessageBatch(
            seq, x, y, lon, lat, lon, lat, life, offsets, terms, weights, counts, life * 1_000_000
        )  # fmt: skip

    def subscriptions(
        self, texts: Texts, lon: Any = 0.0, lat: Any = 0.0, region: Any = WORLD, largest_k: int = 4
    ) -> SubscriptionTable:
        """The next subscriptions, with any alpha, of 0 and of 1 too; in effect from the last messages on."""
        rows, kind, rng = len(texts), self.kind, self.rng
        number = self.number + np.arange(rows)
        self.number += rows
        nowhere, point = np.full(rows, np.nan), kind.place == "point"
        x, y = (np.broadcast_to(each, rows).copy() for each in SPACE.project(np.asarray(lon), np.asarray(lat)))
        regions = np.full((rows, 4), np.nan) if point else np.broadcast_to(np.asarray(region, np.float64), (rows, 4))
        k = rng.integers(1, largest_k + 1, rows) if "k" in kind.fields else np.zeros(rows)
        match = np.where(rng.random(rows) < (0.5 if "match" in kind.fields else 0.0), ANY_KEYWORD, KEYWORDS_BY_KIND)
        return SubscriptionTable(
            number, np.full(rows, kind.code, np.int8), np.zeros(rows, np.int64),
            x if point else nowhere, y if point else nowhere, regions.copy(), match.astype(np.int8),
            k.astype(np.int32), rng.choice([0.0, 0.5, 1.0], rows) if "alpha" in kind.fields else nowhere,
            *_ragged(texts),
        )  # fmt: skip

    def some(self, rows: int, terms: int, each: int) -> list[np.ndarray]:
        """So many texts, each with so many of the terms."""
        return [np.sort(self.rng.choice(terms, each, replace=False)) for _ in range(rows)]


def _ragged(texts: Texts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets, terms, weights of texts of unit length."""
    lengths = np.array([len(text) for text in texts], np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    terms = np.concatenate([np.zeros(0), *map(np.asarray, texts)]).astype(np.int32)
    return offsets, terms, np.repeat(1.0 / np.sqrt(np.maximum(lengths, 1)), lengths).astype(np.float32)


def _ties(kind: Kind, rng: np.random.Generator) -> Iterator[Turn]:
    """All at one point with the same words, results larger than the window."""
    made = Stream(kind, rng)
    for number in range(5):
        coming = 30 if number < 3 else 0
        around = (-1.0, -1.0, 1.0, 1.0)
        yield Turn(
            made.messages([[0, 1, 2]] * 30), made.subscriptions([[0, 1, 2]] * coming, region=around, largest_k=70)
        )


def _ends(kind: Kind, rng: np.random.Generator) -> Iterator[Turn]:
    """At the corners of the world and the poles, in regions that are the world, half of it, an edge, or a point."""
    made = Stream(kind, rng)
    regions = [WORLD, (-180, 90, 180, 90), (180, -90, 180, 90), (-180, -90, -180, 90), (0, 0, 180, 90)]
    if kind.wraps:
        regions += [(170, -90, -170, 90), (180, -90, -180, 90), (0.1, -1, 0, 1)]
    if not kind.needs_extent:
        regions += [(180, 90, 180, 90), (-180, -90, -180, -90)]
    for _ in range(4):
        lon, lat = ENDS[rng.integers(0, ENDS.shape[0], 20)].T
        own_lon, own_lat = ENDS[rng.integers(0, ENDS.shape[0], 50)].T
        some = np.array(regions)[rng.integers(0, len(regions), 50)]
        messages = made.messages(made.some(20, 4, 2), lon, lat)
        yield Turn(messages, made.subscriptions(made.some(50, 4, 1), own_lon, own_lat, some))


def _last_bits(kind: Kind, rng: np.random.Generator) -> Iterator[Turn]:
    """Places and borders that differ in the last bit."""
    made = Stream(kind, rng)

    def near(rows: int, low: int = -3, high: int = 4) -> np.ndarray:
        return 10.0 * (1.0 + rng.integers(low, high, rows) * np.spacing(1.0))

    for _ in range(4):
        messages = made.messages([[0, 1]] * 20, near(20), near(20))
        own = near(40)
        region = np.stack([own, own, near(40, 4, 6), near(40, 4, 6)], axis=1)
        yield Turn(messages, made.subscriptions(made.some(40, 2, 1), own, 10.0, region, 30))


def _one(kind: Kind, rng: np.random.Generator) -> Iterator[Turn]:
    """Batches of none, of one, and of more than the window."""
    made = Stream(kind, rng)
    for number in range(30):
        size = (1, 1, 3, 0, 7)[number % 5]
        messages = made.messages(made.some(size, 3, 2), rng.integers(-1, 2, size) * 50.0)
        removed = [number] if number % 4 == 3 else ()
        yield Turn(messages, made.subscriptions(made.some(10 if number < 4 else 0, 3, 1)), removed)


def _long_texts(kind: Kind, rng: np.random.Generator) -> Iterator[Turn]:
    """Hundreds of words, in messages and in subscriptions."""
    made = Stream(kind, rng)
    for number in range(3):
        messages = made.messages(made.some(12, 400, 250), rng.integers(-1, 2, 12) * 50.0)
        texts = [range(256)] * 10 + made.some(10, 400, 1 if kind.all_keywords else 100)
        yield Turn(messages, made.subscriptions(texts, rng.integers(-1, 2, 20) * 50.0), [20 * number + 1])


def _replaced(kind: Kind, rng: np.random.Generator) -> Iterator[Turn]:
    """All subscriptions leave in every batch, in every third also those that have just come."""
    made, live = Stream(kind, rng), np.zeros(0, np.int64)
    for number in range(9):
        messages = made.messages(made.some(12, 6, 2), rng.integers(-3, 4, 12) * 50.0, rng.integers(-3, 4, 12) * 20.0)
        coming = (100, 200, 5, 0)[number % 4]
        added = made.subscriptions(made.some(coming, 6, 2), rng.integers(-3, 4, coming) * 50.0)
        gone = np.concatenate([live, added.number]) if number % 3 == 2 else live
        live = added.number[:0] if number % 3 == 2 else added.number
        yield Turn(messages, added, gone)


def _at_once(kind: Kind, rng: np.random.Generator) -> Iterator[Turn]:
    """The messages of a batch have one time: all expire at once, or come too late, or at the very edge."""
    made = Stream(kind, rng)
    for number, time_s in enumerate((0, 0, 10, 29, 30, 31, 100, 99, 70, 500)):
        messages = made.messages(made.some(15, 4, 2), rng.integers(-1, 2, 15) * 50.0, 0.0, time_s)
        yield Turn(messages, made.subscriptions(made.some(15 if number < 5 else 0, 4, 1), largest_k=60))


CROWDS = {
    "ties": Crowd("count:50", _ties),
    "ends of the world": Crowd("count:50", _ends),
    "last bits": Crowd("count:50", _last_bits),
    "window of one": Crowd("count:1", _one),
    "window below a batch": Crowd("count:12", _ties),
    "long texts": Crowd("count:20", _long_texts),
    "all replaced": Crowd("count:30", _replaced),
    "all at once": Crowd("time:30", _at_once),
}


class Told(NamedTuple):
    """The batches of a stream, and the updates of each that the oracle expects."""

    window: Window
    batches: list[Batch]
    updates: list


@remembered
def crowd_of(kind: Kind, name: str) -> Told:
    """A stream of a kind, and what the oracle says of it."""
    crowd = CROWDS[name]
    shape, _, length = crowd.window.partition(":")
    window, newest = Window(shape, int(length)), NO_FLOOR
    oracle, batches, updates = oracle_of(window), [], []
    for number, turn in enumerate(crowd.make(kind, np.random.default_rng(7))):
        first = batches[-1].boundary.last_seq + 1 if batches else 0
        last = first + len(turn.messages) - 1
        newest = max(newest, int(turn.messages.life.max(initial=NO_FLOOR)))
        boundary = Boundary(number, first, last, window.floor(last, newest))
        added = SubscriptionTable(**(turn.added._asdict() | {"at": np.full(len(turn.added), first)}))
        removed = removals_of(kind, *map(int, turn.removed), at=max(first, last))
        batches.append(Batch(boundary, turn.messages, added, removed, NO_MESSAGES))
        updates.append(tally(oracle.advance(boundary, turn.messages, added, removed, extras_of(turn.messages))))
    return Told(window, batches, updates)
