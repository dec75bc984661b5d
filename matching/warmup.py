"""Compile every kernel before the stream starts, so that the first batch is no slower than the next.

`topology.core.runner` calls `warmup` once a node with the engines of the run, `make setup` runs `python -m
matching.warmup` for those that run by default; after that, kernels come from the cache on disk in a fraction of the
time. It works by using engines of `matching.registry` a little, on real if tiny inputs, with all that makes a kernel
run: growth, removal, sorting, range messages, a restore.
"""

import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

from matching.boolean.stream import BooleanStream
from matching.model import ANY_KEYWORD, BOOLEAN, SKYLINE, TOPK, MessageBatch, Removals, SubscriptionTable
from matching.registry import ENGINES, default, factory, names
from matching.skyline.answers import answer, merge_answers
from matching.skyline.engine import SkylineEngine
from matching.skyline.home import SkylineHome
from matching.skyline.stream import SkylineStream
from matching.skyline.window import SkylineQueries
from matching.skyline.window_plain import InvertedWindow
from matching.skyline.windows import TREES
from matching.space import EARTH, Space
from matching.topk.local import LocalTopk
from matching.topk.stream import TopkStream
from matching.topk.window_index import WindowQueries
from matching.topk.window_indexes import WINDOW_INDEXES, window_index
from matching.window import NO_FLOOR, Boundary, Window


def warmup(engines: Mapping[str, Sequence[str]] | None = None) -> None:
    """Compile, or load from the cache, the kernels of engines. Up to some 20 seconds an engine, the first time.

    Parameters
    ----------
    engines : mapping of kind to names, optional
        `window` stands for the window indexes of `topk`. Every engine there is by default.
    """
    if engines is None:
        engines = {kind: names(kind) for kind in ENGINES} | {"window": tuple(WINDOW_INDEXES)}
        _skyline_windows()
    for kind, chosen in engines.items():
        _WARMERS[kind](chosen)


def defaults() -> dict[str, tuple[str, ...]]:
    """The engines that run when none is asked for, of each kind that has any."""
    return {kind: (default(kind),) for kind in ENGINES} | {"window": (window_index().name,)}


def _boolean(engines: Sequence[str]) -> None:
    """Boolean engines through growth, changes inside a batch, range messages, removal, and a restore."""
    space = Space(*EARTH)
    nobody = np.zeros(0, np.int64)
    no_removals = Removals(nobody, nobody.astype(np.int8), nobody)
    for name in engines:
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


def _topk(engines: Sequence[str]) -> None:
    """Top-k engines through growth, refills, expiry and a restore, with both kinds of window."""
    space = Space(*EARTH)
    nobody = np.zeros(0, np.int64)
    for name in engines:
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
        index = factory("topk", name)(space)
        index.insert(_topk_table(np.arange(200), 0))  # lists long enough to be worth a tree
        index.match(_messages(0, 8, ranges=False))


def _skyline_windows() -> None:
    """Every tree that holds the window of `skyline` through growth, ends, expiry, a query and a restore."""
    for tree in TREES.values():
        for objects in (None, np.arange(400) % 100):
            window = tree()
            for batch in range(3):
                first = batch * 400
                ended = np.zeros(0, np.int64) if batch == 0 else np.arange(first - 400, first)
                boundary = Boundary(batch, first, first + 399, first - 100)
                messages = _messages(first, 400 if batch < 2 else 0, ranges=False)
                # an object's versions but the last end within their batch
                late = ended if objects is None or batch == 2 else np.concatenate([ended, messages.seq[:300]])
                window.store(boundary, messages, late, objects if objects is None else objects[: len(messages)])
                region, keywords = np.array([[-180.0, -90.0, 180.0, 90.0]]), np.arange(3, dtype=np.int32)
                window.candidates(SkylineQueries(region, np.array([0, 3]), keywords))
            tree.from_arrays(window.arrays())


def _skyline(engines: Sequence[str]) -> None:
    """Skyline engines through growth, expiry, messages that are ended, removal, and a restore."""
    space, length = Space(*EARTH), 20
    for name in engines:
        engine = factory("skyline", name)
        stream = SkylineStream(engine(space), InvertedWindow())
        for batch in range(5):
            first = batch * 8
            numbers = np.arange(batch * 4, batch * 4 + 4)
            gone = numbers[:3] - 4 if batch else numbers[:0]
            removed = Removals(gone, np.full(gone.shape[0], SKYLINE, np.int8), np.full(gone.shape[0], first))
            boundary = Boundary(batch, first, first + 7, first + 7 - length)
            messages = _messages(first, 8, ranges=batch % 2 == 1)
            stream.process(boundary, messages, np.arange(first - 4, first + 1), _skyline_table(numbers, first), removed)
            stream.engine.kept.pack()
        SkylineStream.from_arrays(type(stream.engine), InvertedWindow, space, stream.arrays()).results()
        _skyline_home(engine(space))


def _skyline_home(engine: SkylineEngine) -> None:
    """What a query bolt and the tuple bolts do together: match, pend, ask, be answered by two, go on."""
    home, windows, nobody = SkylineHome(engine, 0), (InvertedWindow(2), InvertedWindow(2)), np.zeros(0, np.int64)
    for batch in range(3):
        boundary = Boundary(batch, batch * 8, batch * 8 + 7, batch * 8 - 13)
        messages = _messages(batch * 8, 8, ranges=False)
        ended = _messages(batch * 8 - 4, 4 if batch else 0, ranges=False)
        added = _skyline_table(np.arange(batch * 4, batch * 4 + 4), batch * 8)
        matched, _ = home.match(boundary, messages, ended, added, np.zeros(4, np.int64), nobody, 1)
        step = home.close(matched, [])
        for window in windows:
            window.store(boundary, messages, ended.seq)
        for ask in step.asks:
            home.install(merge_answers([answer(window, ask) for window in windows]))
    home.results()


def _skyline_table(numbers: np.ndarray, at: int) -> SubscriptionTable:
    """Subscriptions of two keywords to most of the world."""
    count = numbers.shape[0]
    kind, nowhere = np.full(count, SKYLINE, np.int8), np.full(count, np.nan)
    region, no_k = np.tile([[-150.0, -80.0, 170.0, 80.0]], (count, 1)), np.zeros(count, np.int32)
    text = _texts(count, 2)
    return SubscriptionTable(numbers, kind, np.full(count, at), nowhere, nowhere, region, no_k, nowhere, *text)


def _windows(chosen: Sequence[str]) -> None:
    """Window indexes of top-k, with messages indexed and not, some expired, asked about a boundary before the last."""
    table = _topk_table(np.arange(10), 0)
    ranks = np.full(10, 3, np.int32)
    for kind in (WINDOW_INDEXES[name] for name in chosen):
        index = kind(1.0, kept_boundaries=4)
        before = None
        for batch in range(4):
            first = batch * 200
            boundary = Boundary(batch, first, first + 199, first - 300)
            index.store(boundary, _messages(first, 200, ranges=False))
            for _ in range(2 if batch == 3 else 12):
                index.query(
                    WindowQueries(
                        0, 0, before or boundary, batch, table.number, table.x, table.y, table.alpha, ranks,
                        table.term_offsets, table.terms, table.weights,
                    )
                )  # fmt: skip
            before = boundary
        kind.from_arrays(1.0, index.arrays()).fork()


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


_WARMERS = {"boolean": _boolean, "topk": _topk, "skyline": _skyline, "window": _windows}


if __name__ == "__main__":
    begun = time.perf_counter()
    warmup(None if "--all" in sys.argv else defaults())
    sys.stdout.write(f"kernels ready in {time.perf_counter() - begun:.1f} s\n")
