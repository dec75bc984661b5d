"""Synthetic workloads that any machine can make again: the same seed gives the same arrays.

The recipe, kept close to what geo-tagged short texts look like:

- Places: 85 % of the messages lie around one of 100 cities (weight of the r-th: 1 / (r + 5), from r = 1; normal,
  spread 0.05 to 0.5 degrees), the rest anywhere. World: the whole earth.
- Words: 6 to 14 draws (mean 10) from 50,000 words, the r-th of weight 1 / (r + 1); repeats collapse into counts.
  Term ids and idf come from the messages themselves: id 0 is the rarest, idf = ln(1 + N / df).
- Subscriptions: each takes after a message, so that hot places and hot words meet: 1 to 5 of its words (mean 3).
- `boolean`: a square around that message's place. Side, as a share of the world's width: log-uniform from 0.01 % to
  1 % (a city to a region), but for `wide_share` of them from 1 % to 10 % (a country or a few). With the default share a
  message has about 110 matches among 1,000,000 subscriptions.
- `topk`: the place itself, k = 10, alpha uniform in [0, 1); `TopkRecipe` varies these.

Real messages instead: `benchmarks.resampled`. Read on in `benchmarks.boolean`.
"""

from typing import NamedTuple

import numpy as np

from matching.model import BOOLEAN, TOPK, Float64, MessageBatch, SubscriptionTable
from matching.space import EARTH, Space

WORLD = Space(*EARTH)
_CITIES = 100
_CITY_SHARE = 0.85
_WORDS = 50_000
_FEWEST_WORDS, _MOST_WORDS = 6, 14
_KEYWORDS = (1, 5)
#: Chosen so that a message matches about 110 of 1,000,000 boolean subscriptions.
WIDE_SHARE = 0.45


class Messages(NamedTuple):
    """Messages of one draw; `idf` (float64[terms]) belongs to all of them together."""

    batch: MessageBatch
    idf: Float64


class TopkRecipe(NamedTuple):
    """What top-k subscriptions ask for: lowest and highest value of each, drawn uniformly; equal means fixed."""

    k: tuple[int, int] = (10, 10)
    alpha: tuple[float, float] = (0.0, 1.0)
    keywords: tuple[int, int] = _KEYWORDS


#: k = 10, alpha uniform, 1 to 5 keywords.
PLAIN = TopkRecipe()


def make_messages(count: int, seed: int, space: Space = WORLD) -> Messages:
    """Draw `count` messages with seq from 0, life = seq (count window), unit tf-idf weights. O(count)."""
    rng = np.random.default_rng([seed, 1])
    lon, lat = _places(rng, count, space)
    offsets, terms, counts, idf = _texts(rng, count)
    row = np.repeat(np.arange(count), np.diff(offsets))
    weights = unit_weights(row, counts * idf[terms], count)
    x, y = space.project(lon, lat)
    seq = np.arange(count, dtype=np.int64)
    return Messages(MessageBatch(seq, x, y, lon, lat, lon, lat, seq, offsets, terms, weights), idf)


def boolean_subscriptions(
    messages: Messages, count: int, seed: int, wide_share: float = WIDE_SHARE, space: Space = WORLD
) -> SubscriptionTable:
    """`count` boolean subscriptions that take after random messages. O(count)."""
    rng = np.random.default_rng([seed, 2])
    like = rng.integers(0, len(messages.batch), count)
    wide = rng.random(count) < wide_share
    exponent = np.where(wide, rng.uniform(-2.0, -1.0, count), rng.uniform(-4.0, -2.0, count))
    half = (space.east - space.west) * 10.0**exponent / 2.0
    lon, lat = messages.batch.west[like], messages.batch.south[like]
    region = np.empty((count, 4))
    region[:, 0], region[:, 2] = np.maximum(lon - half, space.west), np.minimum(lon + half, space.east)
    region[:, 1], region[:, 3] = np.maximum(lat - half, space.south), np.minimum(lat + half, space.north)
    return _table(rng, messages, like, BOOLEAN, _KEYWORDS, region=region)


def topk_subscriptions(messages: Messages, count: int, seed: int, recipe: TopkRecipe = PLAIN) -> SubscriptionTable:
    """`count` top-k subscriptions at the places of random messages. O(count)."""
    rng = np.random.default_rng([seed, 3])
    like = rng.integers(0, len(messages.batch), count)
    # k comes from a draw of its own, so that workloads that differ in k alone differ in nothing else
    k = np.random.default_rng([seed, 4]).integers(recipe.k[0], recipe.k[1] + 1, count).astype(np.int32)
    lowest, highest = recipe.alpha
    alpha = lowest + (highest - lowest) * rng.random(count)
    columns = {"x": messages.batch.x[like], "y": messages.batch.y[like], "k": k, "alpha": alpha}
    return _table(rng, messages, like, TOPK, recipe.keywords, **columns)


def unit_weights(row: np.ndarray, raw: np.ndarray, rows: int) -> np.ndarray:
    """Scale the raw weights of each row to unit L2 norm, as float32. O(n)."""
    norms = np.sqrt(np.bincount(row, weights=raw * raw, minlength=rows))
    return (raw / norms[row]).astype(np.float32)


def _places(rng: np.random.Generator, count: int, space: Space) -> tuple[Float64, Float64]:
    """Longitudes and latitudes."""
    west, south, east, north = space[:4]
    city_lon, city_lat = rng.uniform(west, east, _CITIES), rng.uniform(south * 0.7, north * 0.7, _CITIES)
    spread = rng.uniform(0.05, 0.5, _CITIES)
    weight = 1.0 / (np.arange(_CITIES) + 6.0)
    city = rng.choice(_CITIES, count, p=weight / weight.sum())
    lon = city_lon[city] + rng.normal(size=count) * spread[city]
    lat = city_lat[city] + rng.normal(size=count) * spread[city]
    anywhere = rng.random(count) >= _CITY_SHARE
    lon[anywhere], lat[anywhere] = rng.uniform(west, east, anywhere.sum()), rng.uniform(south, north, anywhere.sum())
    return np.clip(lon, west, east), np.clip(lat, south, north)


def _texts(rng: np.random.Generator, count: int):
    """Term offsets, terms ascending in each message, their counts, idf by term."""
    weight = np.cumsum(1.0 / (np.arange(_WORDS) + 2.0))
    lengths = rng.integers(_FEWEST_WORDS, _MOST_WORDS + 1, count)
    row = np.repeat(np.arange(count), lengths)
    word = np.searchsorted(weight, rng.random(row.shape[0]) * weight[-1], side="right")
    pairs, counts = np.unique(row * _WORDS + word, return_counts=True)
    row, word = np.divmod(pairs, _WORDS)
    frequency = np.bincount(word, minlength=_WORDS)
    # Words nobody uses are no terms; among equals the commoner word of the recipe comes last.
    used = np.flatnonzero(frequency)
    by_frequency = used[np.lexsort((-used, frequency[used]))]
    term_of = np.full(_WORDS, -1)
    term_of[by_frequency] = np.arange(by_frequency.shape[0])
    order = np.lexsort((term_of[word], row))
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=count), out=offsets[1:])
    idf = np.log1p(count / frequency[by_frequency])
    return offsets, term_of[word][order].astype(np.int32), counts[order], idf


def _table(
    rng: np.random.Generator,
    messages: Messages,
    like: np.ndarray,
    kind: int,
    keywords: tuple[int, int],
    **columns: np.ndarray,
) -> SubscriptionTable:
    """Subscriptions with so many of the terms of the messages `like`, numbers from 0, and the given columns."""
    count, offsets = like.shape[0], messages.batch.term_offsets
    lengths = np.diff(offsets)[like]
    # Terms of each message in a row of fixed width; a random key a place, the smallest keys are kept.
    widest = int(lengths.max(initial=1))
    place = np.minimum(offsets[like][:, None] + np.arange(widest), messages.batch.terms.shape[0] - 1)
    key = np.where(np.arange(widest) < lengths[:, None], rng.random((count, widest)), 2.0)
    wanted = np.minimum(rng.integers(keywords[0], keywords[1] + 1, count), lengths)
    keep = key <= np.take_along_axis(np.sort(key, axis=1), wanted[:, None] - 1, axis=1)
    terms = messages.batch.terms[place[keep]]
    new_offsets = np.zeros(count + 1, np.int64)
    np.cumsum(wanted, out=new_offsets[1:])
    row = np.repeat(np.arange(count), wanted)
    nowhere = np.full(count, np.nan)
    unused = {
        "x": nowhere,
        "y": nowhere,
        "region": np.full((count, 4), np.nan),
        "k": np.zeros(count, np.int32),
        "alpha": nowhere,
    }
    return SubscriptionTable(
        number=np.arange(count, dtype=np.int64),
        kind=np.full(count, kind, np.int8),
        at=np.zeros(count, np.int64),
        term_offsets=new_offsets,
        terms=terms,
        weights=unit_weights(row, messages.idf[terms], count),
        **(unused | columns),
    )
