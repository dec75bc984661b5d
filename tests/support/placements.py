"""Messages and subscriptions for placements, drawn on a coarse grid so that points on borders abound."""

import numpy as np

from distribution.placement.costs import SampleCosts
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD, KEYWORDS_BY_KIND, ChangeList, MessageBatch, Names, Removals, SubscriptionTable
from matching.space import Space

SPACE = Space(-180.0, -90.0, 180.0, 90.0)
GRID = 8
NOBODY = Removals(np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0, np.int64))


def draw_messages(rng: np.random.Generator, count: int, terms: int = 12) -> MessageBatch:
    """Points with up to five terms each, the commonest having the greatest ids."""
    lon, lat = _places(rng, count)
    x, y = SPACE.project(lon, lat)
    seq = np.arange(count)
    return MessageBatch(seq, x, y, lon, lat, lon, lat, seq, *_texts(rng, count, terms, 0, 5))


def draw_subscriptions(
    rng: np.random.Generator, count: int, first: int = 0, at: int = 0, terms: int = 12, kinds: tuple[str, ...] = ()
) -> SubscriptionTable:
    """Of all kinds there are, unless named; some regions across the antimeridian, some that any keyword is enough for.

    Some have keywords that no message has.
    """
    codes = [KINDS.named(name).code for name in kinds or KINDS.names]
    kind = rng.choice(codes, count).astype(np.int8)
    rows = [KINDS[code] for code in kind]
    boxed = np.array([row.place == "region" for row in rows], bool)
    wraps = np.array([row.wraps for row in rows], bool) & (rng.random(count) < 0.2)
    (lon, lat), (other_lon, other_lat) = _places(rng, count), _places(rng, count)
    x, y = SPACE.project(lon, lat)
    west, east = np.minimum(lon, other_lon), np.maximum(lon, other_lon)
    west, east = np.where(wraps, east, west), np.where(wraps, west, east)
    region = np.stack([west, np.minimum(lat, other_lat), east, np.maximum(lat, other_lat)], axis=1)
    region[~boxed] = np.nan
    k = np.where(np.array(["k" in row.fields for row in rows], bool), rng.integers(1, 6, count), 0)
    loose = np.array(["match" in row.fields for row in rows], bool) & (rng.random(count) < 0.3)
    match = np.where(loose, ANY_KEYWORD, KEYWORDS_BY_KIND).astype(np.int8)
    return SubscriptionTable(
        first + np.arange(count), kind, np.full(count, at), np.where(boxed, np.nan, x), np.where(boxed, np.nan, y),
        region, match, k.astype(np.int32), np.where(boxed, np.nan, 0.5), *_texts(rng, count, terms + 2, 1, 4),
    )  # fmt: skip


def costs_of(messages: MessageBatch) -> SampleCosts:
    return SampleCosts(SPACE, messages)


def changes(batch: int, added: SubscriptionTable, removed: Removals = NOBODY) -> ChangeList:
    return ChangeList(batch, added, Names.of([f"s{number}" for number in added.number]), removed)


def removal(table: SubscriptionTable, rows: np.ndarray, at: int) -> Removals:
    return Removals(table.number[rows], table.kind[rows], np.full(rows.shape[0], at))


def _places(rng, count):
    step = 180.0 / GRID
    return rng.integers(-GRID, GRID + 1, count) * step, rng.integers(-GRID // 2, GRID // 2 + 1, count) * step


def _texts(rng, rows, terms, fewest, most):
    weight = np.arange(1, terms + 1) ** 1.5
    lists = [
        np.sort(rng.choice(terms, rng.integers(fewest, min(most, terms) + 1), replace=False, p=weight / weight.sum()))
        for _ in range(rows)
    ]
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    flat = np.concatenate([np.zeros(0, np.int32), *lists]).astype(np.int32)
    return offsets, flat, np.full(flat.size, 0.5, np.float32)
