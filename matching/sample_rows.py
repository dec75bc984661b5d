"""Made-up subscriptions and messages, by which kernels are compiled before a stream starts."""

import numpy as np

from matching.kind_table import Kind
from matching.model import ANY_KEYWORD, KEYWORDS_BY_KIND, Int64, MessageBatch, SubscriptionTable
from matching.space import EARTH, Space


def subscriptions(kind: Kind, numbers: Int64, at: int) -> SubscriptionTable:
    """Subscriptions of a kind: a point each along a diagonal, or most of the world, some across the antimeridian."""
    count = numbers.shape[0]
    nowhere, place = np.full(count, np.nan), np.linspace(0.1, 0.4, count)
    region = np.tile([[-150.0, -80.0, 150.0, 80.0], [100.0, -80.0, -100.0, 80.0]], (-(-count // 2), 1))[:count]
    if not kind.wraps:
        region[:, 0], region[:, 2] = -150.0, 170.0
    point = kind.place == "point"
    match = np.full(count, KEYWORDS_BY_KIND, np.int8)
    if "match" in kind.fields:
        match[np.arange(count) % 5 == 4] = ANY_KEYWORD
    return SubscriptionTable(
        np.asarray(numbers, np.int64),
        np.full(count, kind.code, np.int8),
        np.full(count, at),
        place if point else nowhere,
        place if point else nowhere,
        np.full((count, 4), np.nan) if point else region,
        match,
        np.full(count, 2 if "k" in kind.fields else 0, np.int32),
        np.linspace(0, 1, count) if "alpha" in kind.fields else nowhere,
        *_texts(count, 1 if kind.all_keywords and at % 4 else 2 + kind.all_keywords),
    )


def sample_messages(first_seq: int, count: int, ranges: bool) -> MessageBatch:
    """Messages of three terms along a diagonal, as points or as rectangles of ten degrees."""
    seq = np.arange(first_seq, first_seq + count)
    lon, lat = np.linspace(-160.0, 160.0, count), np.linspace(-70.0, 70.0, count)
    x, y = Space(*EARTH).project(lon, lat)
    offsets, terms, weights = _texts(count, 3)
    side = 10.0 if ranges else 0.0
    east, north = (lon + side, lat + side) if ranges else (lon, lat)
    counts = np.ones(terms.shape[0], np.int32)
    return MessageBatch(seq, x, y, lon, lat, east, north, seq, offsets, terms, weights, counts, seq)


def _texts(rows: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Term offsets, terms 0 to length - 1 for every row, equal weights."""
    terms = np.tile(np.arange(length, dtype=np.int32), rows)
    return np.arange(rows + 1) * length, terms, np.full(terms.shape[0], length**-0.5, np.float32)
