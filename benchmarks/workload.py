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
- `skyline`: a region of the shape of the world around the place, 0.01 % to 1 % of its area, uniform. A tenth of the
  messages are new versions of objects: each ends a message of the window that no other version has ended.

`BooleanRecipe` varies places, words, texts, regions and messages of `boolean`. Real messages instead:
`benchmarks.resampled`. Read on in `benchmarks.cases`.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple, TypeVar

import numpy as np

from matching.errors import ConfigError
from matching.model import (
    BOOLEAN,
    KEYWORDS_BY_KIND,
    SKYLINE,
    TOPK,
    Float64,
    Int64,
    MessageBatch,
    Removals,
    SubscriptionTable,
)
from matching.space import EARTH, Space

WORLD = Space(*EARTH)
#: How fast messages come, where their times matter: the rate of the CIQ paper.
MESSAGES_PER_S = 5.0
_CITIES = 100
_CITY_SHARE = 0.85
_WORDS = 50_000
_FEWEST_WORDS, _MOST_WORDS = 6, 14
_KEYWORDS = (1, 5)
#: Chosen so that a message matches about 110 of 1,000,000 boolean subscriptions.
WIDE_SHARE = 0.45


_NOBODY = np.zeros(0, np.int64)
NO_REMOVALS = Removals(_NOBODY, _NOBODY.astype(np.int8), _NOBODY)
Table = TypeVar("Table", MessageBatch, SubscriptionTable)


class Messages(NamedTuple):
    """Messages of one draw; `idf` (float64[terms]) belongs to all of them together."""

    batch: MessageBatch
    idf: Float64


class TopkRecipe(NamedTuple):
    """What top-k subscriptions ask for: lowest and highest value of each, drawn uniformly; equal means fixed."""

    k: tuple[int, int] = (10, 10)
    alpha: tuple[float, float] = (0.0, 1.0)
    keywords: tuple[int, int] = _KEYWORDS


#: Smallest and largest side of an area as a share of the world's: 0.01 % and 1 % of the area.
_SIDES = (0.01, 0.1)
#: Subscriptions whose keywords are drawn at a time.
_ROWS = 20_000

#: k = 10, alpha uniform, 1 to 5 keywords.
PLAIN = TopkRecipe()

#: Sides of regions by name: (smallest, largest) of most and of the wide ones, as decimal exponents of the share of the
#: world's width, and the share of the wide ones. A city is 0.1 to 0.5 degrees wide, a country 3.6 to 36.
REGIONS: Mapping[str, tuple[tuple[float, float], tuple[float, float], float]] = {
    "mixed": ((-4.0, -2.0), (-2.0, -1.0), WIDE_SHARE),
    "small": ((-4.0, -2.0), (-4.0, -2.0), 0.0),
    "city": ((-3.56, -2.86), (-3.56, -2.86), 0.0),
    "country": ((-2.0, -1.0), (-2.0, -1.0), 0.0),
}
#: The commonest words that a workload without stop words leaves out: about two fifths of all that is said.
STOP_WORDS = 100
PLACES, TEXTS, SHAPES = ("clustered", "uniform"), {"short": (6, 14), "long": (100, 1000)}, ("point", "range")


class BooleanRecipe(NamedTuple):
    """What a boolean workload is like; the defaults are the recipe of this module's docstring.

    places : str          of messages, and so of subscriptions: "clustered" or "uniform"
    stop_words : bool     False leaves the `STOP_WORDS` commonest words out of messages and subscriptions
    keywords : (int, int) fewest and most keywords of a subscription
    regions : str         one of `REGIONS`
    shape : str           of the messages that are matched: "point", or "range" for squares of "small" sides
    words : (int, int)    fewest and most draws of words of the messages that are matched
    """

    places: str = "clustered"
    stop_words: bool = True
    keywords: tuple[int, int] = _KEYWORDS
    regions: str = "mixed"
    shape: str = "point"
    words: tuple[int, int] = (_FEWEST_WORDS, _MOST_WORDS)

    @classmethod
    def parse(cls, text: str) -> "BooleanRecipe":
        """Read `places=uniform,stop_words=no,keywords=2,regions=city,shape=range,words=100-1000` or a part of it.

        Raises
        ------
        ConfigError
            For a name or a value nobody knows.
        """
        values: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name in ("keywords", "words"):
                low, _, high = TEXTS_AS_RANGES.get(value, value).partition("-")
                if not (low.isdecimal() and (high or low).isdecimal() and 1 <= int(low) <= int(high or low)):
                    raise ConfigError(f"workload {part!r}: write {name}=N or {name}=FEWEST-MOST")
                values[name] = (int(low), int(high or low))
                continue
            choices = {"places": PLACES, "regions": tuple(REGIONS), "shape": SHAPES, "stop_words": ("yes", "no")}
            if name not in choices:
                raise ConfigError(f"workload {part!r}: choose one of {', '.join(cls._fields)}")
            if value not in choices[name]:
                raise ConfigError(f"workload {part!r}: choose one of {', '.join(choices[name])}")
            values[name] = value == "yes" if name == "stop_words" else value
        return cls(**values)

    def facts(self) -> dict[str, Any]:
        """The recipe, JSON-ready."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}


TEXTS_AS_RANGES = {name: f"{fewest}-{most}" for name, (fewest, most) in TEXTS.items()}
#: 45 % wide regions, points, 6 to 14 words, 1 to 5 keywords.
PLAIN_BOOLEAN = BooleanRecipe()


def make_messages(
    count: int,
    seed: int,
    space: Space = WORLD,
    recipe: BooleanRecipe = PLAIN_BOOLEAN,
    history: int = 0,
    timed: bool = False,
) -> Messages:
    """Draw `count` messages with seq from 0, life = seq (count window), unit tf-idf weights. O(count).

    The first `history` are short points whatever the recipe says: what subscriptions take after. `timed` messages have
    counts and times.
    """
    rng = np.random.default_rng([seed, 1])
    lon, lat = _places(rng, count, space, recipe.places)
    lengths = rng.integers(recipe.words[0], recipe.words[1] + 1, count)
    if recipe.words != PLAIN_BOOLEAN.words:
        lengths[:history] = np.random.default_rng([seed, 6]).integers(_FEWEST_WORDS, _MOST_WORDS + 1, history)
    offsets, terms, counts, idf = _texts(rng, lengths, 0 if recipe.stop_words else STOP_WORDS)
    row = np.repeat(np.arange(count), np.diff(offsets))
    weights = unit_weights(row, counts * idf[terms], count)
    x, y = space.project(lon, lat)
    seq = np.arange(count, dtype=np.int64)
    times = seq * round(1e6 / MESSAGES_PER_S)
    asked: tuple[Any, ...] = (counts.astype(np.int32), times) if timed else ()
    batch = MessageBatch(seq, x, y, lon, lat, lon, lat, seq, offsets, terms, weights, *asked)
    return Messages(batch, idf)


def widened(batch: MessageBatch, seed: int, space: Space = WORLD) -> MessageBatch:
    """The same messages as range messages: squares of "small" sides around their points. O(n)."""
    low, high = REGIONS["small"][0]
    exponent = np.random.default_rng([seed, 7]).uniform(low, high, len(batch))
    west, south, east, north = _squares(batch.west, batch.south, exponent, space)
    # not `_replace`, which takes the rows of a batch for its fields
    life, offsets = batch.life, batch.term_offsets
    return MessageBatch(
        batch.seq, batch.x, batch.y, west, south, east, north, life, offsets, batch.terms, batch.weights
    )


def boolean_subscriptions(
    messages: Messages,
    count: int,
    seed: int,
    wide_share: float | None = None,
    space: Space = WORLD,
    recipe: BooleanRecipe = PLAIN_BOOLEAN,
) -> SubscriptionTable:
    """`count` boolean subscriptions that take after random messages; `wide_share` None is the recipe's. O(count)."""
    rng = np.random.default_rng([seed, 2])
    like = rng.integers(0, len(messages.batch), count)
    most, wide_ones, share = REGIONS[recipe.regions]
    wide = rng.random(count) < (share if wide_share is None else wide_share)
    exponent = np.where(wide, rng.uniform(*wide_ones, count), rng.uniform(*most, count))
    region = np.empty((count, 4))
    region.T[:] = _squares(messages.batch.west[like], messages.batch.south[like], exponent, space)
    return _table(rng, messages, like, BOOLEAN, recipe.keywords, region=region)


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


def skyline_subscriptions(messages: Messages, count: int, seed: int) -> SubscriptionTable:
    """`count` skyline subscriptions that take after random messages; area uniform between the two limits. O(count)."""
    table = sized_regions(boolean_subscriptions(messages, count, seed), seed)
    return changed(table, kind=np.full(count, SKYLINE, np.int8))


def sized_regions(table: SubscriptionTable, seed: int) -> SubscriptionTable:
    """The same with regions of the shape of the world around the middles of theirs, as those of `skyline` are."""
    side = np.sqrt(np.random.default_rng([seed, 5]).uniform(_SIDES[0] ** 2, _SIDES[1] ** 2, len(table)))
    half_width, half_height = side * (WORLD.east - WORLD.west) / 2.0, side * (WORLD.north - WORLD.south) / 2.0
    lon, lat = (table.region[:, 0] + table.region[:, 2]) / 2.0, (table.region[:, 1] + table.region[:, 3]) / 2.0
    west, east = np.maximum(lon - half_width, WORLD.west), np.minimum(lon + half_width, WORLD.east)
    south, north = np.maximum(lat - half_height, WORLD.south), np.minimum(lat + half_height, WORLD.north)
    return changed(table, region=np.stack([west, south, east, north], axis=1))


def versions_of_objects(
    batch: MessageBatch, window: int, share: float, versions: float, stray_deg: float | None, seed: int
) -> tuple[MessageBatch, Int64, Int64]:
    """Let messages speak of objects that move and change words, so that versions of an object follow each other.

    Parameters
    ----------
    batch : MessageBatch   the stream from seq 0 on, dense
    window : int           messages
    share : float          of the messages speak of objects that come again; the others stand alone
    versions : float       messages of such an object in a window, on average
    stray_deg : float      how far from where it was first an object is, in degrees (standard deviation of each axis);
                           None: anywhere

    Returns
    -------
    tuple    the messages; int64[n], the object of each; int64[n], the seq of the version that each one ends, -1: none
    """
    rng, count = np.random.default_rng([seed, 6]), len(batch)
    pool = max(1, round(window * share / versions))
    # Numbers of objects that come again lie below those of messages that stand alone.
    objects = np.where(rng.random(count) < share, rng.integers(0, pool, count), pool + np.arange(count))
    ends = np.full(count, -1, np.int64)
    order = np.lexsort((np.arange(count), objects))
    same = objects[order[1:]] == objects[order[:-1]]
    ends[order[1:][same]] = order[:-1][same]
    if stray_deg is not None:
        _, first, which = np.unique(objects, return_index=True, return_inverse=True)
        home, away = first[which], rng.normal(size=(2, count)) * stray_deg
        lon = np.clip(batch.west[home] + away[0], WORLD.west, WORLD.east)
        lat = np.clip(batch.south[home] + away[1], WORLD.south, WORLD.north)
        x, y = WORLD.project(lon, lat)
        batch = changed(batch, x=x, y=y, west=lon, south=lat, east=lon, north=lat)
    return batch, objects, ends


def changed(table: Table, **columns: np.ndarray) -> Table:
    """A table with some columns replaced; `_replace` is not for tables, whose length is that of their columns."""
    return type(table)(**(table._asdict() | columns))


def unit_weights(row: np.ndarray, raw: np.ndarray, rows: int) -> np.ndarray:
    """Scale the raw weights of each row to unit L2 norm, as float32. O(n)."""
    norms = np.sqrt(np.bincount(row, weights=raw * raw, minlength=rows))
    return (raw / norms[row]).astype(np.float32)


def _squares(lon: Float64, lat: Float64, exponent: np.ndarray, space: Space) -> tuple[Float64, ...]:
    """West, south, east, north of squares in degrees, cut at the world's edge."""
    half = (space.east - space.west) * 10.0**exponent / 2.0
    west, east = np.maximum(lon - half, space.west), np.minimum(lon + half, space.east)
    return west, np.maximum(lat - half, space.south), east, np.minimum(lat + half, space.north)


def _places(rng: np.random.Generator, count: int, space: Space, places: str) -> tuple[Float64, Float64]:
    """Longitudes and latitudes."""
    west, south, east, north = space[:4]
    if places == "uniform":
        return rng.uniform(west, east, count), rng.uniform(south, north, count)
    city_lon, city_lat = rng.uniform(west, east, _CITIES), rng.uniform(south * 0.7, north * 0.7, _CITIES)
    spread = rng.uniform(0.05, 0.5, _CITIES)
    weight = 1.0 / (np.arange(_CITIES) + 6.0)
    city = rng.choice(_CITIES, count, p=weight / weight.sum())
    lon = city_lon[city] + rng.normal(size=count) * spread[city]
    lat = city_lat[city] + rng.normal(size=count) * spread[city]
    anywhere = rng.random(count) >= _CITY_SHARE
    lon[anywhere], lat[anywhere] = rng.uniform(west, east, anywhere.sum()), rng.uniform(south, north, anywhere.sum())
    return np.clip(lon, west, east), np.clip(lat, south, north)


def _texts(rng: np.random.Generator, lengths: np.ndarray, left_out: int):
    """Term offsets, terms ascending in each message, their counts, idf by term; without the commonest words."""
    count = lengths.shape[0]
    weight = 1.0 / (np.arange(_WORDS) + 2.0)
    weight[:left_out] = 0.0
    weight = np.cumsum(weight)
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
    # Terms of each message in a row of fixed width; a random key a place, the smallest keys are kept. A few rows at a
    # time, since the longest message makes them wide; keys are drawn twice, so that this changes no workload.
    widest = int(lengths.max(initial=1))
    keys = deepcopy(rng)
    pieces = [range(first, min(first + _ROWS, count)) for first in range(0, count, _ROWS)]
    for piece in pieces:
        rng.random((len(piece), widest))
    wanted = np.minimum(rng.integers(keywords[0], keywords[1] + 1, count), lengths)
    chosen = [np.zeros(0, np.int32)]
    for piece in pieces:
        rows = slice(piece.start, piece.stop)
        place = np.minimum(offsets[like[rows]][:, None] + np.arange(widest), messages.batch.terms.shape[0] - 1)
        key = np.where(np.arange(widest) < lengths[rows, None], keys.random((len(piece), widest)), 2.0)
        keep = key <= np.take_along_axis(np.sort(key, axis=1), wanted[rows, None] - 1, axis=1)
        chosen.append(messages.batch.terms[place[keep]])
    terms = np.concatenate(chosen)
    new_offsets = np.zeros(count + 1, np.int64)
    np.cumsum(wanted, out=new_offsets[1:])
    row = np.repeat(np.arange(count), wanted)
    nowhere = np.full(count, np.nan)
    unused = {
        "x": nowhere,
        "y": nowhere,
        "region": np.full((count, 4), np.nan),
        "match": np.full(count, KEYWORDS_BY_KIND, np.int8),
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
