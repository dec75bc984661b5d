"""Subscriptions and messages of `topk` as tables, and the hits that an engine must find among them, in plain Python."""

from typing import TypeVar

import numpy as np

from matching.model import KEYWORDS_BY_KIND, TOPK, MessageBatch, SubscriptionTable
from matching.naive_shapes import EARTH_RADIUS_M, metres
from matching.space import Space
from tests.support.worlds import SPHERE

Table = TypeVar("Table", MessageBatch, SubscriptionTable)


def texts(rng, rows: int, terms: int, most: int):
    lengths = rng.integers(0, most + 1, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    chosen = [np.sort(rng.choice(terms, n, replace=False)) for n in lengths]
    weights = [w / np.linalg.norm(w) for w in (rng.integers(1, 5, n).astype(float) for n in lengths) if w.size]
    return (
        offsets,
        np.concatenate([*chosen, []]).astype(np.int32),
        np.concatenate([*weights, []]).astype(np.float32),
    )


def points(rng, rows: int, grid: int | None):
    x, y = rng.random(rows), rng.random(rows) * 0.5
    crowded = rng.random(rows) < 0.6
    x[crowded], y[crowded] = 0.25 + x[crowded] * 1e-3, 0.25 + y[crowded] * 1e-3
    return (np.round(x * grid) / grid, np.round(y * grid) / grid) if grid else (x, y)


def in_space(space: Space, rng, table: Table) -> Table:
    """The table as it is in the plane, or `on_sphere`."""
    return on_sphere(rng, table) if space.on_sphere else table


def on_sphere(rng, table: Table) -> Table:
    """Messages or subscriptions at other points, as distances on the sphere are measured.

    A third lies anywhere, a third at poles, the equator and the antimeridian, where many are at one point or opposite
    each other, and a third crowds around Null Island and the South Pole, from thousands of kilometres to centimetres
    apart. Half of the subscriptions have a radius of their own, a metre to half around the earth.
    """
    rows = len(table)
    lon, lat = rng.uniform(-180, 180, rows), rng.uniform(-90, 90, rows)
    grid = rng.random(rows) < 1 / 3
    lon[grid], lat[grid] = rng.choice([-180, -90, 0, 90, 180], grid.sum()), rng.choice([-90, 0, 45, 90], grid.sum())
    crowd = ~grid & (rng.random(rows) < 0.5)
    spread = 10 ** rng.uniform(-7, 1.5, crowd.sum())
    lon[crowd], lat[crowd] = lon[crowd] / 180 * spread, lat[crowd] / 90 * spread - rng.choice([0, 90], crowd.sum())
    lat = np.clip(lat, -90, 90)
    x, y = SPHERE.project(lon, lat)
    moved = table._asdict() | {"x": x, "y": y, "vector": SPHERE.vectors(lon, lat)}
    if isinstance(table, MessageBatch):
        return type(table)(**(moved | {"west": lon, "south": lat, "east": lon, "north": lat}))
    own = np.where(rng.random(rows) < 0.5, 10 ** rng.uniform(0, 7.3, rows), np.nan)
    return type(table)(**(moved | {"radius_m": own}))


def table_of(rng, first: int, rows: int, grid: int | None = None, terms: int = 9) -> SubscriptionTable:
    x, y = points(rng, rows, grid)
    alpha = np.where(rng.random(rows) < 0.3, rng.integers(0, 2, rows), rng.random(rows))
    number, nowhere = np.arange(first, first + rows), np.full((rows, 4), np.nan)
    return SubscriptionTable(
        number, np.full(rows, TOPK, np.int8), np.zeros(rows, np.int64), x, y, nowhere,
        np.full(rows, KEYWORDS_BY_KIND, np.int8), np.full(rows, 3, np.int32), alpha,
        *texts(rng, rows, terms, min(terms, 7)),
    )  # fmt: skip


def messages_of(rng, rows: int, grid: int | None = None, terms: int = 11) -> MessageBatch:
    x, y = points(rng, rows, grid)
    seq = np.arange(rows)
    return MessageBatch(seq, x, y, x, y, x, y, seq, *texts(rng, rows, terms, 6))


def brute_force(store, batch: MessageBatch, live, unposted=frozenset()) -> dict:
    """(slot, row) to score, of every pair that reaches the threshold. Plain Python."""
    c, hits = store.columns, {}
    for slot in map(int, live):
        a = int(c.term_start[slot])
        own = {int(c.terms[j]): float(c.weights[j]) for j in range(a, a + int(c.term_count[slot]))}
        for row in range(len(batch)):
            text, first = 0.0, None
            for j in range(batch.term_offsets[row], batch.term_offsets[row + 1]):
                term = int(batch.terms[j])
                if term in own:
                    first = term if first is None else first
                    text += own[term] * float(batch.weights[j])
            if first is None or (int(c.number[slot]), first) in unposted:
                continue
            if batch.vector.shape[0]:
                apart = metres((c.x[slot], c.y[slot], c.z[slot]), tuple(batch.vector[row].tolist()))
            else:
                dx, dy = c.x[slot] - batch.x[row], c.y[slot] - batch.y[row]
                apart = float(np.sqrt(dx * dx + dy * dy))  # a power of 2 would round otherwise
            alpha = float(c.alpha[slot])
            score = alpha * (1.0 - apart / float(c.max_distance[slot])) + (1.0 - alpha) * text
            if score >= c.threshold[slot]:
                hits[slot, row] = score
    return hits


def found_by(index, batch: MessageBatch) -> dict:
    hits, row, found = {}, 0, 0
    while row < len(batch):
        part = index.match(batch, row)
        assert np.all((part.row >= row) & (part.row < part.next_row)), "hits of rows matched, and of no others"
        hits |= {(int(s), int(r)): float(v) for s, r, v in zip(part.slot, part.row, part.scores[0], strict=True)}
        found, row = found + part.slot.size, part.next_row
    assert found == len(hits), "a pair was found twice"
    return hits


def near_to(rng, table: SubscriptionTable, batch: MessageBatch) -> MessageBatch:
    """The messages of a batch, each at a subscription on the sphere or up to twice its radius away, so that the bounds
    of small circles are met."""
    like = rng.integers(0, len(table), len(batch))
    radius = np.where(np.isnan(table.radius_m[like]), 1e5, table.radius_m[like]) / EARTH_RADIUS_M
    away = rng.normal(size=(len(batch), 3)) * np.minimum(1.0, radius * rng.uniform(0, 1.2, len(batch)))[:, None]
    vector = table.vector[like] + away
    vector /= np.sqrt((vector * vector).sum(axis=1))[:, None]
    return MessageBatch(**(batch._asdict() | {"vector": vector}))


def with_exact_thresholds(rng, index, batch: MessageBatch, slots) -> dict:
    """Set the threshold of each slot to one of its scores, which no bound may miss; returns the pairs that reach it."""
    index.set_thresholds(slots, -np.inf)
    pairs = brute_force(index.subscriptions, batch, slots)
    scores: dict[int, list[float]] = {}
    for (slot, _), score in pairs.items():
        scores.setdefault(slot, []).append(score)
    for slot, its in scores.items():
        index.set_thresholds(np.array([slot], np.int32), its[int(rng.integers(len(its)))])
    threshold = index.subscriptions.columns.threshold
    return {pair: score for pair, score in pairs.items() if score >= threshold[pair[0]]}
