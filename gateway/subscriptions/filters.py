"""Filters of generated subscriptions: shapes around their place, conditions that their own message satisfies."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from matching.attributes import CATEGORIES, CATEGORY, NUMBER, DeclaredAttribute
from matching.geo.sphere import EARTH_RADIUS_M
from matching.model import Float64, Int32, Int64

#: How far from its message's number a condition goes, as a factor.
NUMBERS = (1.05, 1.5)
#: Most conditions of a `where`.
_MOST_CONDITIONS = 3
#: Numbers from here on have no range around them that is sure to be finite.
_LARGE = 1e300
#: Messages that are searched for a word that another message lacks.
_LOOKED_AT = 8
_EPOCH = datetime(1970, 1, 1)

Bools = np.ndarray[Any, np.dtype[np.bool_]]
Region = tuple[float, float, float, float]


def octagon(region: Sequence[float]) -> list[tuple[float, float]]:
    """Corners of an octagon that touches the sides of a region in degrees, the first again at the end.

    `region` is west, south, east, north; of one that crosses the antimeridian longitudes go beyond 180.
    """
    west, south, east, north = region
    east = east if west <= east else east + 360.0
    first, second = (2 * west + east) / 3, (west + 2 * east) / 3
    third, last = (2 * south + north) / 3, (south + 2 * north) / 3
    return [(west, third), (first, south), (second, south), (east, third), (east, last), (second, north),
            (first, north), (west, last), (west, third)]  # fmt: skip


def radius_within(region: Sequence[float]) -> float:
    """The radius in metres of a circle as high as a region in degrees."""
    return float(np.radians((region[3] - region[1]) / 2.0) * EARTH_RADIUS_M)


def draw_shapes(
    columns: dict[str, list[Any]],
    regions: Sequence[Region],
    places: Sequence[tuple[float, float]],
    drawn: Float64,
    circle_share: float,
    polygon_share: float,
) -> None:
    """Add shapes to rows (`columns`): a circle or a radius, or an octagon; in place of a region, where rows have one.

    Parameters
    ----------
    columns : dict
        A list for each column; changed.
    regions : sequence of (west, south, east, north)
        What shapes are as large as, in degrees.
    places : sequence of (lon, lat)
        Middles of circles.
    drawn : float64[n]
        Within [0, 1): the row has a circle below `circle_share`, an octagon in the `polygon_share` above it.
    """
    by_region = "region" in columns
    name = "circle" if by_region else "radius_m"
    added: dict[str, list[Any]] = {name: [None] * len(regions), "polygon": [None] * len(regions)}
    for row in np.flatnonzero(drawn < circle_share + polygon_share).tolist():
        if drawn[row] < circle_share:
            (lon, lat), radius_m = places[row], max(1.0, round(radius_within(regions[row]), 1))
            added[name][row] = {"lon": lon, "lat": lat, "radius_m": radius_m} if by_region else radius_m
        else:
            added["polygon"][row] = {"type": "Polygon", "coordinates": [octagon(regions[row])]}
        if by_region:
            columns["region"][row] = None
    columns |= added


def draw_conditions(
    rng: np.random.Generator,
    attributes: Sequence[DeclaredAttribute],
    own: Sequence[Sequence[Any]],
    others: Sequence[Sequence[Any]],
    has: Bools,
) -> list[dict[str, Any] | None]:
    """`where` of rows, None where `has` says so: one to three conditions that a message satisfies.

    Parameters
    ----------
    own, others : sequences of n values, for each attribute
        Those of the message of each row, and of another one, whose category may be wanted too; None: it has none.
    has : bool[n]
    """
    order = rng.permuted(np.tile(np.arange(len(attributes)), (has.shape[0], 1)), axis=1).tolist()
    counts = rng.integers(1, _MOST_CONDITIONS + 1, has.shape[0]).tolist()
    factors, several = rng.uniform(*NUMBERS, has.shape[0]).tolist(), rng.random(has.shape[0]) < 0.5
    drawn: list[dict[str, Any] | None] = [None] * has.shape[0]
    for row in np.flatnonzero(has).tolist():
        drawn[row] = {
            attributes[at].name: _condition(
                attributes[at].type, own[at][row], others[at][row] if several[row] else None, factors[row]
            )
            for at in sorted(order[row][: counts[row]])
        }
    return drawn


def _condition(type_code: int, value: Any, other: Any, factor: float) -> Any:
    """A condition that a value of an attribute satisfies, and of a category `other` too; as rows have it."""
    if value is None or value != value:
        return {"exists": False}
    if type_code == CATEGORIES:
        return {"any": [*value[:1], *(other or ())[:1]]}
    if type_code == CATEGORY:
        return value if other in (None, value) else [value, other]
    if type_code != NUMBER:
        return {"gte": (_EPOCH + timedelta(microseconds=value)).date().isoformat()}
    if not abs(value) < _LARGE:
        return {"exists": True}
    low, high = sorted((float(f"{value / factor:.4g}"), float(f"{value * factor:.4g}")))
    return {"gte": low, "lte": high}


def draw_excluded(
    rng: np.random.Generator, offsets: Int64, terms: Int32, words: Sequence[str], rows: Int64, has: Bools
) -> list[list[str] | None]:
    """`not_keywords` of rows: a word of another message that the row's own lacks; None where `has` says so.

    Parameters
    ----------
    offsets, terms : int64[messages + 1], int32[nnz]
        Terms of each message.
    words : sequence of str
        Of each term.
    rows : int64[n]
        The message of each row.
    has : bool[n]
    """
    messages = offsets.shape[0] - 1
    others, picks = rng.integers(0, messages, has.shape[0]), rng.random(has.shape[0])
    drawn: list[list[str] | None] = [None] * has.shape[0]
    for row in np.flatnonzero(has).tolist():
        own = terms[offsets[rows[row]] : offsets[rows[row] + 1]]
        for step in range(_LOOKED_AT):
            other = (int(others[row]) + step) % messages
            left = np.setdiff1d(terms[offsets[other] : offsets[other + 1]], own)
            if left.shape[0]:
                drawn[row] = [words[int(left[int(picks[row] * left.shape[0])])]]
                break
    return drawn
