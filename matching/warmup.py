"""Compile every kernel before the stream starts, so that the first batch is no slower than the next.

`topology.runner` calls `warmup` once a node, `make setup` runs `python -m matching.warmup`; after that, kernels come
from the cache on disk in a fraction of the time. It works by using every engine of `matching.registry` a little, on
real if tiny inputs, with all that makes a kernel run: growth, removal, sorting, range messages, a restore.
"""

import sys
import time

import numpy as np

from matching.boolean.stream import BooleanStream
from matching.model import ANY_KEYWORD, BOOLEAN, TOPK, MessageBatch, Removals, SubscriptionTable
from matching.registry import factory, names
from matching.space import EARTH, Space
from matching.topk.stream import LocalTopk, TopkStream
from matching.window import NO_FLOOR, Boundary, Window


def warmup() -> None:
    """Compile, or load from the cache, every kernel of every engine. Seconds, the first time."""
    for warm in _WARMERS:
        warm()


def _boolean() -> None:
    """Every boolean engine through growth, changes inside a batch, range messages, removal, and a restore."""
    space = Space(*EARTH)
    nobody = np.zeros(0, np.int64)
    no_removals = Removals(nobody, nobody.astype(np.int8), nobody)
    for name in names("boolean"):
        stream = BooleanStream(factory("boolean", name)(space))
        for batch in range(6):
            numbers = np.arange(batch * 40, batch * 40 + 40)
            first = batch * 8
            messages = _messages(first, 8, ranges=batch % 2 == 1)
            gone = numbers[:30] if batch % 2 == 0 else np.concatenate([numbers[:30], numbers[30:] - 40])
            removed = Removals(gone, np.full(gone.shape[0], BOOLEAN, np.int8), np.full(gone.shape[0], first + 4))
            boundary = Boundary(batch, first, first + 7, NO_FLOOR)
            stream.process(boundary, messages, _boolean_table(numbers, first + 2), removed)
        stream.restore(stream.snapshot())
        boundary = Boundary(6, 48, 55, NO_FLOOR)
        stream.process(boundary, _messages(48, 8, ranges=False), _boolean_table(nobody, 0), no_removals)


def _topk() -> None:
    """Every top-k engine through growth, refills, expiry and a restore, with both kinds of window."""
    space = Space(*EARTH)
    nobody = np.zeros(0, np.int64)
    for name in names("topk"):
        for window in (Window("count", 12), Window("time", 12)):
            local = LocalTopk(factory("topk", name)(space), window)
            for batch in range(8):
                numbers = np.arange(batch * 10, batch * 10 + 10)
                first = batch * 8
                gone = numbers[:9] - 10 if batch else nobody
                removed = Removals(gone, np.full(gone.shape[0], TOPK, np.int8), np.full(gone.shape[0], first + 4))
                boundary = Boundary(batch, first, first + 7, window.floor(first + 7, first + 7))
                local.process(boundary, _messages(first, 8, ranges=False), _topk_table(numbers, first), removed)
            engine = type(local.stream.index)
            TopkStream.from_arrays(engine, space, window, local.stream.arrays()).results()


def _topk_table(numbers: np.ndarray, at: int) -> SubscriptionTable:
    """Subscriptions of two keywords along a diagonal, k = 2."""
    count = numbers.shape[0]
    kind, nowhere = np.full(count, TOPK, np.int8), np.full((count, 4), np.nan)
    place, k = np.linspace(0.1, 0.4, count), np.full(count, 2, np.int32)
    return SubscriptionTable(
        numbers, kind, np.full(count, at), place, place, nowhere, k, np.linspace(0, 1, count), *_texts(count, 2)
    )  # fmt: skip


def _messages(first_seq: int, count: int, ranges: bool) -> MessageBatch:
    """Messages of three terms along a diagonal, as points or as rectangles of ten degrees."""
    seq = np.arange(first_seq, first_seq + count)
    lon, lat = np.linspace(-160.0, 160.0, count), np.linspace(-70.0, 70.0, count)
    x, y = Space(*EARTH).project(lon, lat)
    offsets, terms, weights = _texts(count, 3)
    side = 10.0 if ranges else 0.0
    return MessageBatch(seq, x, y, lon, lat, lon + side, lat + side, seq, offsets, terms, weights)


def _boolean_table(numbers: np.ndarray, at: int) -> SubscriptionTable:
    """Subscriptions of one and of three keywords, some content with any, every other region across the antimeridian."""
    count = numbers.shape[0]
    region = np.tile([[-150.0, -80.0, 150.0, 80.0], [100.0, -80.0, -100.0, 80.0]], (count // 2, 1))
    nowhere = np.full(count, np.nan)
    kind = np.full(count, BOOLEAN, np.int8)
    text = _texts(count, 1 if at % 4 else 3)
    some = np.where(np.arange(count) % 5 == 4, ANY_KEYWORD, 0).astype(np.int32)
    return SubscriptionTable(numbers, kind, np.full(count, at), nowhere, nowhere, region, some, nowhere, *text)


def _texts(rows: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Term offsets, terms 0 to length - 1 for every row, equal weights."""
    terms = np.tile(np.arange(length, dtype=np.int32), rows)
    return np.arange(rows + 1) * length, terms, np.full(terms.shape[0], length**-0.5, np.float32)


_WARMERS = (_boolean, _topk)


if __name__ == "__main__":
    begun = time.perf_counter()
    warmup()
    sys.stdout.write(f"kernels ready in {time.perf_counter() - begun:.1f} s\n")
