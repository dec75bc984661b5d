"""Engines of `knn` with grids that provoke, what is put through them, and what their index has to be like."""

import numpy as np
import pytest

from baselines.knn.inverted_file import KnnInvertedFile
from matching.knn.engines.influence_grid import InfluenceGrid
from matching.model import KEYWORDS_BY_KIND, KNN, MessageBatch, SubscriptionTable
from matching.naive_shapes import EARTH_RADIUS_M


class OneGrid(InfluenceGrid):
    """As the paper has it."""

    name, sides, widest, rare = "one_grid", (64,), 8.0, 0


class ManyGrids(InfluenceGrid):
    """Balls move often, and overlap few cells."""

    name, sides, widest, rare = "many_grids", (1, 2, 4, 8, 16, 1024), 1.0, 3


class WideBalls(InfluenceGrid):
    """Balls shrink in their cells for long, and leave most of them."""

    name, sides, widest, rare = "wide_balls", (32,), 64.0, 1


ENGINES = (InfluenceGrid, OneGrid, ManyGrids, WideBalls, KnnInvertedFile)
named = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)


def subscriptions(points, k: int, terms=(0,)) -> SubscriptionTable:
    """Subscriptions with numbers from 0, all with the same keywords."""
    x, y = np.array(points, float).T
    n = x.shape[0]
    nowhere = np.full(n, np.nan)
    return SubscriptionTable(
        np.arange(n), np.full(n, KNN, np.int8), np.zeros(n, np.int64), x, y, np.full((n, 4), np.nan),
        np.full(n, KEYWORDS_BY_KIND, np.int8), np.full(n, k, np.int32), nowhere, np.arange(n + 1) * len(terms),
        np.tile(np.array(terms, np.int32), n), np.ones(n * len(terms), np.float32),
    )  # fmt: skip


def messages(points, first_seq: int = 0, terms=(0,)) -> MessageBatch:
    """Messages at points of the unit square, all of the same words."""
    x, y = np.array(points, float).T
    n = x.shape[0]
    seq = np.arange(first_seq, first_seq + n)
    words = np.tile(np.array(terms, np.int32), n)
    weights = np.ones(words.shape[0], np.float32)
    return MessageBatch(seq, x, y, x, y, x, y, seq, np.arange(n + 1) * len(terms), words, weights)


def replaced(rows, **columns):
    """A table or a batch with other columns: `_replace` looks at the length, which is that of the rows."""
    return type(rows)(**(rows._asdict() | columns))


def take(engine, batch: MessageBatch) -> set[tuple[int, int, int]]:
    """What a batch changes: (number, seq, change)."""
    engine.best.begin_batch(int(batch.seq[0]), int(batch.seq[0]))
    engine.match(batch)
    told = engine.best.end_batch(engine.subscriptions.columns, int(batch.seq[-1]))
    return set(zip(told.number.tolist(), told.seq.tolist(), told.change.tolist(), strict=True))


def assert_sound(engine) -> None:
    """What is indexed is what the columns say, and every ball is in every cell into which it reaches."""
    if not isinstance(engine, InfluenceGrid):
        return
    c, sides = engine.subscriptions.columns, engine.sides
    there: dict[tuple[int, int, int], list[int]] = {}
    counts = np.zeros_like(engine.cells.counts)
    v = engine.cells.view
    for at in np.flatnonzero(v.count > 0):
        number, term = int(v.key[at]) >> 31, int(v.key[at]) & 0x7FFFFFFF
        grid = max(g for g, side in enumerate(sides) if side * side <= number)
        places = np.arange(v.start[at], v.start[at] + v.count[at])
        there[grid, number - sides[grid] ** 2, term] = v.slot[places].tolist()
        counts[term, grid] += v.count[at]
        radius = -c.threshold[v.slot[places]]
        assert np.all(v.limit[places] >= np.where(radius > 0, radius * radius, -1.0)), "too little would get through"
    assert np.array_equal(counts, engine.cells.counts)
    assert v.used[1] == counts.sum() and len(there) <= engine.cells.entered[0] == np.count_nonzero(v.key >= 0)
    live = engine.subscriptions.live_slots()
    everywhere = [slot for slots in there.values() for slot in slots]
    assert set(everywhere) <= set(live.tolist()), "whoever has gone is in no list"
    assert all(len(set(slots)) == len(slots) for slots in there.values())
    by_term = engine.terms.view
    listed = 0
    for slot in live.tolist():
        grid, radius, x, y = int(engine._grid[slot]), -c.threshold[slot], c.x[slot], c.y[slot]
        mine = range(c.term_start[slot], c.term_start[slot] + c.term_count[slot])
        by_list = [at for at in mine if c.position[at] >= 0]
        places, listed = c.position[by_list], listed + len(by_list)
        assert np.all(by_term.slot[places] == slot)
        assert np.all(by_term.limit[places] >= (radius * radius if radius > 0 else -1.0)), (
            "too little would get through"
        )
        if radius == np.inf or grid == -1:
            assert grid == -1 and len(by_list) == len(mine)
        elif grid == len(sides):
            assert radius <= 0 and not by_list
        elif radius > 0:
            side = sides[grid]
            low, high = ([int(np.clip((v + s * radius) * side, 0, side - 1)) for v in (x, y)] for s in (-1, 1))
            for column in range(low[0], high[0] + 1):
                for row in range(low[1], high[1] + 1):
                    dx = max(0, column / side - x, x - (column + 1) / side)
                    dy = max(0, row / side - y, y - (row + 1) / side)
                    if dx * dx + dy * dy < radius * radius:
                        assert all(
                            at in by_list or slot in there.get((grid, row * side + column, c.terms[at]), ())
                            for at in mine
                        )
    assert by_term.used[1] == by_term.count.sum() == listed


def around(vector: np.ndarray, radius_m: np.ndarray, bearing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Longitude and latitude of places at these distances and bearings from a place."""
    axis = np.eye(3)[np.argmin(np.abs(vector))]
    east = np.cross(axis, vector)
    east /= np.linalg.norm(east)
    north, angle = np.cross(vector, east), radius_m / EARTH_RADIUS_M
    ahead = np.cos(bearing)[:, None] * north + np.sin(bearing)[:, None] * east
    x, y, z = (np.cos(angle)[:, None] * vector + np.sin(angle)[:, None] * ahead).T
    return np.degrees(np.arctan2(y, x)), np.degrees(np.arctan2(z, np.hypot(x, y)))
