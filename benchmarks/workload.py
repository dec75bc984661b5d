"""Synthetic workloads that any machine can make again: the same seed gives the same arrays.

The recipe, kept close to what geo-tagged short texts look like:

- Places: 85 % of the messages lie around one of 100 cities (weight of the r-th: 1 / (r + 5), from r = 1; normal,
  spread 0.05 to 0.5 degrees), the rest anywhere. World: the whole earth.
- Words: 6 to 14 draws (mean 10) from 50,000 words, the r-th of weight 1 / (r + 1); repeats collapse into counts.
  Term ids and idf come from the messages themselves: id 0 is the rarest, idf = ln(1 + N / df).
- Subscriptions: each takes after a message, so that hot places and hot words meet: 1 to 5 of its words (mean 3), and
  its place for `topk`, around which `boolean` has a square of log-uniform side (`REGIONS`: a city to a region, or wide
  ones, a country or a few), and `skyline` a region of the shape of the world, 0.01 % to 1 % of its area, uniform.

Recipes vary these. `resample_messages` draws real messages instead.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks import searches
from matching import model
from matching.errors import ConfigError, InputError
from matching.filter_programs import Instruction
from matching.model import Float32, Float64, Int32, Int64, MessageBatch, SubscriptionTable, take_ragged
from matching.reserved import with_reserved, without_reserved
from matching.space import EARTH, Space
from matching.vocabulary import unit_weights
from spouts.message_files import list_message_files
from spouts.subscriptions import load_vocabulary

WORLD = Space(*EARTH)
#: Its corners and its sides, float64[2, 1]: of longitude and of latitude.
_LOW, _HIGH = np.reshape(WORLD[:4], (2, 2, 1))
_SIZE = _HIGH - _LOW
#: How fast messages come, where their times matter: the rate of the CIQ paper.
MESSAGES_PER_S = 5.0
_CITIES, _CITY_SHARE, _WORDS = 100, 0.85, searches.WORDS
#: The commonest words, which a workload without stop words leaves out: about two fifths of all that is said.
_STOP_WORDS = 100
#: Chosen so that a message matches about 110 of 1,000,000 boolean subscriptions.
WIDE_SHARE = 0.45
#: Sides of regions by name: (smallest, largest) of most and of the wide ones, as decimal exponents of the share of the
#: world's width, and the share of the wide ones. A district is 0.02 to 0.1 degrees wide, a city 0.1 to 0.5, a country
#: 3.6 to 36.
REGIONS: Mapping[str, tuple[tuple[float, float], tuple[float, float], float]] = {
    "mixed": ((-4.0, -2.0), (-2.0, -1.0), WIDE_SHARE),
    "small": ((-4.0, -2.0), (-4.0, -2.0), 0.0),
    "district": ((-4.26, -3.56), (-4.26, -3.56), 0.0),
    "city": ((-3.56, -2.86), (-3.56, -2.86), 0.0),
    "country": ((-2.0, -1.0), (-2.0, -1.0), 0.0),
}
#: Smallest and largest side of a region of `skyline` as a share of the world's: 0.01 % and 1 % of the area.
_SIDES = (0.01, 0.1)
#: How far a real message moves that is drawn again.
_JITTER_DEG = 0.01
#: Subscriptions whose keywords are drawn at a time.
_ROWS = 20_000
TEXTS, SHAPES = {"short": (6, 14), "long": (100, 1000)}, ("point", "range")
#: What each property of a `BooleanRecipe` can be called; some can be numbers besides.
_CHOICES = {
    "places": ("clustered", "uniform"), "stop_words": ("yes", "no"), "keywords": (), "tokens": ("any", "frequent"),
    "regions": tuple(REGIONS), "shape": SHAPES, "words": tuple(TEXTS),
}  # fmt: skip
#: Workloads of searches by name, as parts of a `BooleanRecipe`.
_SEARCHES: Mapping[str, Any] = {
    "saved-searches": {"regions": "city"},
    "portal": {"regions": "district", "wordless": 0.6, "phrases": 0.2, "groups": 0.1, "beginnings": 0.1},
}
Table = TypeVar("Table", MessageBatch, SubscriptionTable)


class Messages(NamedTuple):
    """Messages of one draw; `idf` (float64[terms]) belongs to all of them together."""

    batch: MessageBatch
    idf: Float64


class TopkRecipe(NamedTuple):
    """What top-k subscriptions ask for: lowest and highest value of each, drawn uniformly; equal means fixed."""

    k: tuple[int, int] = (10, 10)
    alpha: tuple[float, float] = (0.0, 1.0)
    keywords: tuple[int, int] = (1, 5)


class BooleanRecipe(NamedTuple):
    """What a boolean workload is like; `shape` and `words` are those of the messages that are matched."""

    places: str = "clustered"  # of messages, and so of subscriptions; or "uniform"
    stop_words: bool = True  # False leaves them out of messages and subscriptions
    keywords: tuple[int, int] = (1, 5)  # fewest and most
    regions: str = "mixed"  # one of `REGIONS`
    shape: str = "point"  # or "range", for squares of "small" sides
    words: tuple[int, int] = TEXTS["short"]  # fewest and most draws of words
    # What becomes keywords: any terms of a message, or its most "frequent" ones, as in the LFilter paper.
    tokens: str = "any"
    searches: bool = False  # whether messages have attributes, and subscriptions filters (`benchmarks.searches`)
    # Of searches: shares of those that have no keywords, a phrase, alternatives, or the beginning of a word.
    wordless: float = 0.0
    phrases: float = 0.0
    groups: float = 0.0
    beginnings: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "BooleanRecipe":
        """Read `places=uniform,stop_words=no,keywords=2-3,tokens=frequent,regions=city,shape=range,words=long` or some.

        `saved-searches` and `portal` are workloads of their own.
        """
        values: dict[str, Any] = {}
        if text in _SEARCHES:
            return cls(keywords=(1, 2), searches=True, **_SEARCHES[text])
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            fewest, _, most = value.partition("-")
            most, counted = most or fewest, name in ("keywords", "words")
            if value in _CHOICES.get(name, ()):
                values[name] = {"yes": True, "no": False, **TEXTS}.get(value, value)
            elif counted and fewest.isdecimal() and most.isdecimal() and 1 <= int(fewest) <= int(most):
                values[name] = int(fewest), int(most)
            else:
                there = [*_SEARCHES, *_CHOICES.get(name, _CHOICES), *(["N", "FEWEST-MOST"] if counted else [])]
                raise ConfigError(f"workload {part!r}: choose one of {', '.join(there)}")
        return cls(**values)


PLAIN, PLAIN_BOOLEAN = TopkRecipe(), BooleanRecipe()
AnyRecipe = TopkRecipe | BooleanRecipe


def make_messages(
    count: int, seed: int, recipe: BooleanRecipe = PLAIN_BOOLEAN, history: int = 0, timed: bool = False,
    space: Space = WORLD,
) -> Messages:  # fmt: skip
    """Draw messages, `timed` ones with counts; the first `history`, which subscriptions take after, are short. O(n)."""
    rng = np.random.default_rng([seed, 1])
    places = draw_places(rng, count, recipe.places)
    lengths = rng.integers(*recipe.words, count, endpoint=True)
    if recipe.words != PLAIN_BOOLEAN.words:
        lengths[:history] = np.random.default_rng([seed, 6]).integers(*PLAIN_BOOLEAN.words, history, endpoint=True)
    offsets, terms, counts, idf, order = _texts(rng, lengths, 0 if recipe.stop_words else _STOP_WORDS)
    weights = unit_weights(counts * idf[terms], offsets)
    if recipe.beginnings:
        idf = np.concatenate([idf, np.zeros(searches.WORDS + searches.BEGINNINGS - idf.shape[0])])
        offsets, terms, counts, weights = searches.with_beginnings(offsets, terms, counts, weights)
    if recipe.wordless:
        everywhere = np.ones(count, np.bool_)
        narrow = counts.astype(np.int32)
        offsets, terms, weights, counts = with_reserved(idf.shape[0], everywhere, offsets, terms, weights, narrow)
    batch = point_messages(places, offsets, terms, weights, counts if timed else None, space)
    if recipe.phrases:
        batch = changed(batch, order_offsets=np.concatenate([[0], np.cumsum(lengths)]), order=order)
    return Messages(searches.with_attributes(batch, seed) if recipe.searches else batch, idf)


def point_messages(
    places: Float64, offsets: Int64, terms: Int32, weights: Float32, counts: np.ndarray | None, space: Space = WORLD
) -> MessageBatch:
    """Messages with seq from 0 and life = seq (count window); those that have counts are given times. O(n)."""
    (lon, lat), (x, y) = places, space.project(*places)
    seq = np.arange(lon.shape[0], dtype=np.int64)
    timed: tuple[Any, ...] = () if counts is None else (counts.astype(np.int32), seq * round(1e6 / MESSAGES_PER_S))
    vector = space.vectors(lon, lat)
    return MessageBatch(seq, x, y, lon, lat, lon, lat, seq, offsets, terms, weights, *timed, vector=vector)


def scattered(batch: MessageBatch, share: float, seed: int, space: Space = WORLD) -> MessageBatch:
    """A copy in which a share of the messages lie anywhere, evenly, and so unlike the subscriptions. O(n)."""
    rng = np.random.default_rng([seed, 12])
    rows = np.flatnonzero(rng.random(len(batch)) < share)
    lon, lat = draw_places(rng, rows.shape[0], "uniform")
    x, y = space.project(lon, lat)
    columns = {name: getattr(batch, name).copy() for name in ("x", "y", "west", "south", "east", "north")}
    places = {"x": x, "y": y, "west": lon, "south": lat, "east": lon, "north": lat}
    for name, column in columns.items():
        column[rows] = places[name]
    # a batch of points has two columns for the four sides
    alike = {"east": "west"} if batch.east is batch.west else {}
    alike |= {"north": "south"} if batch.north is batch.south else {}
    return changed(batch, **columns | {name: columns[other] for name, other in alike.items()})


def resample_messages(directory: str, count: int, seed: int, space: Space, timed: bool = False) -> Messages:
    """Draw messages of what `skyray etl` wrote, with replacement, `timed` ones with counts and times. O(all).

    Places move by about a kilometre, so that copies do not coincide; texts without terms are left out.
    """
    files = list_message_files(directory)
    if not files:
        raise InputError("missing_file", f"{directory}: no ETL output; give the --out of a finished `skyray etl`")
    idf = load_vocabulary(directory).idf
    stored = pq.read_table(files, columns=["lon", "lat", "terms", "weights", "counts"])
    terms, weights, counts = (stored[name].combine_chunks() for name in ("terms", "weights", "counts"))
    offsets = terms.offsets.to_numpy().astype(np.int64)
    some = np.flatnonzero(np.diff(offsets))
    if not some.size:
        raise InputError("no_terms", f"{directory}: no message in it has a term; run the ETL on other texts")
    rng = np.random.default_rng([seed, 5])
    like = some[rng.integers(0, some.size, count)]
    new_offsets, picked = take_ragged(offsets, like)
    places = np.stack([stored[name].to_numpy()[like] for name in ("lon", "lat")])
    places = np.clip(places + rng.normal(size=(2, count)) * _JITTER_DEG, *np.reshape(space[:4], (2, 2, 1)))
    terms, weights, counts = (column.values.to_numpy()[picked] for column in (terms, weights, counts))
    return Messages(point_messages(places, new_offsets, terms, weights, counts if timed else None, space), idf)


def resample_apart(
    messages_from: str, subscriptions_from: str, counts: tuple[int, int], seed: int, space: Space, timed: bool = False
) -> tuple[Messages, Messages]:
    """Draw messages of one ETL folder, and of another the texts that subscriptions take after. O(all).

    Both have the term ids and the idf of one vocabulary: that of the messages, before which come the words that only
    the other folder has, in its order, as words of one message. Raises as `resample_messages`.
    """
    made = resample_messages(messages_from, counts[0], seed, space, timed)
    texts = resample_messages(subscriptions_from, counts[1], seed, space).batch
    spoken, asked = load_vocabulary(messages_from), load_vocabulary(subscriptions_from)
    known = {term: at for at, term in enumerate(spoken.terms)}
    unspoken = {term: at for at, term in enumerate(term for term in asked.terms if term not in known)}
    more = len(unspoken)
    of_asked = [unspoken[term] if term in unspoken else more + known[term] for term in asked.terms]
    terms = np.array(of_asked, np.int32)[texts.terms]
    terms = terms[np.lexsort((terms, np.repeat(np.arange(len(texts)), np.diff(texts.term_offsets))))]
    idf = np.concatenate([np.full(more, np.log1p(spoken.messages)), made.idf])
    batch = changed(made.batch, terms=made.batch.terms + np.int32(more))
    return Messages(batch, idf), Messages(changed(texts, terms=terms), idf)


def widened(batch: MessageBatch, seed: int) -> MessageBatch:
    """The same messages as range messages: squares of "small" sides around their points. O(n)."""
    exponent = np.random.default_rng([seed, 7]).uniform(*REGIONS["small"][0], len(batch))
    west, south, east, north = _around(np.stack([batch.west, batch.south]), _SIZE[0] * 10.0**exponent)
    return changed(batch, west=west, south=south, east=east, north=north)


def boolean_subscriptions(
    messages: Messages, count: int, seed: int, recipe: BooleanRecipe = PLAIN_BOOLEAN
) -> SubscriptionTable:
    """`count` boolean subscriptions that take after random messages. O(count)."""
    rng = np.random.default_rng([seed, 2])
    like = rng.integers(0, len(messages.batch), count)
    most, wide_ones, share = REGIONS[recipe.regions]
    wide = rng.random(count) < share
    exponent = np.where(wide, rng.uniform(*wide_ones, count), rng.uniform(*most, count))
    places = np.stack([messages.batch.west[like], messages.batch.south[like]])
    region = np.ascontiguousarray(_around(places, _SIZE[0] * 10.0**exponent).T)
    worded = messages._replace(batch=without_reserved(messages.batch)) if recipe.wordless else messages
    is_frequent = recipe.tokens == "frequent"
    table = _table(rng, worded, like, model.BOOLEAN, recipe.keywords, is_frequent, region=region)
    if not recipe.searches:
        return table
    shares = recipe.wordless, recipe.phrases, recipe.groups, recipe.beginnings
    drawn = np.searchsorted(np.cumsum(shares), np.random.default_rng([seed, 10]).random(count), side="right")
    queries: Mapping[int, Instruction] = {}
    if recipe.phrases or recipe.groups or recipe.beginnings:
        terms, queries = searches.queries_of(messages.batch, like, drawn, seed)
        offsets, flat = table.term_offsets, np.concatenate([np.zeros(0, np.int32), *terms.values()])
        lengths = np.diff(offsets)
        kept = ~np.repeat(np.isin(np.arange(count), list(terms)), lengths)
        row = np.repeat(np.arange(count), lengths)[kept]
        row = np.concatenate([row, np.repeat(list(terms), list(map(len, terms.values())))]).astype(np.int64)
        flat = np.concatenate([table.terms[kept], flat])
        by_row = np.lexsort((flat, row))
        offsets = np.searchsorted(row[by_row], np.arange(count + 1))
        flat = flat[by_row].astype(np.int32)
        table = table.having(term_offsets=offsets, terms=flat, weights=unit_weights(messages.idf[flat], offsets))
    none = drawn == 0
    table = _without_words(table, none, messages.idf.shape[0])
    return searches.with_filters(table, messages.batch, like, seed, none, queries)


def _without_words(table: SubscriptionTable, none: NDArray[np.bool_], reserved: int) -> SubscriptionTable:
    """The table, of which the rows in `none` have the reserved term in place of their keywords. O(n + terms)."""
    if not none.any():
        return table
    lengths = np.diff(table.term_offsets)
    kept = ~np.repeat(none, lengths)
    offsets = np.concatenate([[0], np.cumsum(np.where(none, 0, lengths))])
    given = offsets, table.terms[kept], table.weights[kept], None
    offsets, terms, weights, _ = with_reserved(reserved, none, *given)
    return table.having(term_offsets=offsets, terms=terms, weights=weights)


def topk_subscriptions(messages: Messages, count: int, seed: int, recipe: TopkRecipe = PLAIN) -> SubscriptionTable:
    """`count` top-k subscriptions at the places of random messages. O(count)."""
    rng = np.random.default_rng([seed, 3])
    like = rng.integers(0, len(messages.batch), count)
    # k comes from a draw of its own, so that workloads that differ in k alone differ in nothing else
    k = np.random.default_rng([seed, 4]).integers(*recipe.k, count, endpoint=True).astype(np.int32)
    x, y, alpha = messages.batch.x[like], messages.batch.y[like], rng.uniform(*recipe.alpha, count)
    vector = messages.batch.vector[like] if messages.batch.vector.shape[0] else messages.batch.vector
    return _table(rng, messages, like, model.TOPK, recipe.keywords, x=x, y=y, k=k, alpha=alpha, vector=vector)


def skyline_subscriptions(messages: Messages, count: int, seed: int) -> SubscriptionTable:
    """`count` skyline subscriptions with regions of the shape of the world, around those of boolean ones. O(count)."""
    table = boolean_subscriptions(messages, count, seed)
    side = np.sqrt(np.random.default_rng([seed, 5]).uniform(_SIDES[0] ** 2, _SIDES[1] ** 2, count))
    middles = (table.region[:, :2] + table.region[:, 2:]).T / 2.0
    region = np.ascontiguousarray(_around(middles, side * _SIZE).T)
    return changed(table, region=region, kind=np.full(count, model.SKYLINE, np.int8))


def versions_of_objects(
    batch: MessageBatch, window: int, share: float, versions: float, stray_deg: float | None, seed: int
) -> tuple[MessageBatch, Int64, Int64]:
    """Let messages speak of objects that move and change words, so that versions of an object follow each other.

    A `share` of a dense stream from seq 0 speaks of objects that come again, each `versions` times in a `window` on
    average, `stray_deg` from where it was first (standard deviation of each axis; None: anywhere). Returns the
    messages; int64[n], the object of each; int64[n], the seq of the version that each one ends, -1: none.
    """
    rng, count = np.random.default_rng([seed, 6]), len(batch)
    pool = max(1, round(window * share / versions))
    # Numbers of objects that come again lie below those of messages that stand alone.
    objects = np.where(rng.random(count) < share, rng.integers(0, pool, count), pool + np.arange(count))
    ends = np.full(count, -1, np.int64)
    order = np.argsort(objects, kind="stable")
    same = objects[order[1:]] == objects[order[:-1]]
    ends[order[1:][same]] = order[:-1][same]
    if stray_deg is not None:
        _, first, which = np.unique(objects, return_index=True, return_inverse=True)
        home = np.stack([batch.west, batch.south])[:, first[which]]
        lon, lat = np.clip(home + rng.normal(size=(2, count)) * stray_deg, _LOW, _HIGH)
        x, y = WORLD.project(lon, lat)
        batch = changed(batch, x=x, y=y, west=lon, south=lat, east=lon, north=lat)
    return batch, objects, ends


def changed(table: Table, **columns: np.ndarray) -> Table:
    """A table with some columns replaced; `_replace` is not for tables, whose length is that of their columns."""
    return type(table)(**(table._asdict() | columns))


def _around(places: Float64, sides: Float64) -> Float64:
    """West, south, east, north, float64[4, n], of rectangles around float64[2, n], cut at the world's edge."""
    return np.concatenate([np.maximum(places - sides / 2.0, _LOW), np.minimum(places + sides / 2.0, _HIGH)])


def draw_places(rng: np.random.Generator, count: int, places: str) -> Float64:
    """Longitudes and latitudes, float64[2, n]."""
    if places == "uniform":
        return rng.uniform(_LOW, _HIGH, (2, count))
    most = np.array([[1.0], [0.7]])  # no city lies near the poles
    cities, spread = rng.uniform(_LOW * most, _HIGH * most, (2, _CITIES)), rng.uniform(0.05, 0.5, _CITIES)
    weight = 1.0 / (np.arange(_CITIES) + 6.0)
    city = rng.choice(_CITIES, count, p=weight / weight.sum())
    found = cities[:, city] + rng.normal(size=(2, count)) * spread[city]
    anywhere = rng.random(count) >= _CITY_SHARE
    found[:, anywhere] = rng.uniform(_LOW, _HIGH, (2, anywhere.sum()))
    return np.clip(found, _LOW, _HIGH)


def _texts(rng: np.random.Generator, lengths: Int64, left_out: int) -> tuple[Int64, Int32, Int64, Float64, Int32]:
    """Term offsets, terms ascending in each message, their counts, idf by term, terms in order of appearance.

    Without the commonest words.
    """
    rank = np.arange(_WORDS)
    weight = np.cumsum(np.where(rank < left_out, 0.0, 1.0 / (rank + 2.0)))
    row = np.repeat(np.arange(lengths.shape[0]), lengths)
    word = np.searchsorted(weight, rng.random(row.shape[0]) * weight[-1], side="right")
    pairs, counts = np.unique(row * _WORDS + word, return_counts=True)
    drawn = word
    row, word = np.divmod(pairs, _WORDS)
    frequency = np.bincount(word, minlength=_WORDS)
    # Words nobody uses are no terms; among equals the commoner word of the recipe comes last.
    by_frequency = np.lexsort((-rank, frequency))[np.count_nonzero(frequency == 0) :]
    term_of = np.full(_WORDS, -1, np.int32)
    term_of[by_frequency] = np.arange(by_frequency.shape[0])
    order = np.lexsort((term_of[word], row))
    idf = np.log1p(lengths.shape[0] / frequency[by_frequency])
    offsets = np.searchsorted(row, np.arange(lengths.shape[0] + 1))
    return offsets, term_of[word][order], counts[order], idf, term_of[drawn]


def _table(
    rng: np.random.Generator, messages: Messages, like: Int64, kind: int, keywords: tuple[int, int],
    frequent: bool = False, **columns: np.ndarray,
) -> SubscriptionTable:  # fmt: skip
    """Subscriptions with so many of the terms of the messages `like`, numbers from 0, and the given columns.

    Any of the terms, or the most `frequent` ones, which come last.
    """
    count, batch = like.shape[0], messages.batch
    lengths = np.diff(batch.term_offsets)[like]
    # Terms of each message in a row of fixed width; a random key a place, the smallest keys are kept. A few rows at a
    # time, since the longest message makes them wide; keys are drawn twice, so that this changes no workload.
    widest = int(lengths.max(initial=1))
    pieces = np.split(np.arange(count), range(_ROWS, count, _ROWS))
    keys = deepcopy(rng)
    for rows in pieces:
        rng.random((rows.shape[0], widest))
    wanted = np.minimum(rng.integers(*keywords, count, endpoint=True), lengths)
    chosen = []
    for rows in pieces:
        place = np.minimum(batch.term_offsets[like[rows], None] + np.arange(widest), batch.terms.shape[0] - 1)
        drawn = np.broadcast_to(-np.arange(widest), place.shape) if frequent else keys.random(place.shape)
        key = np.where(np.arange(widest) < lengths[rows, None], drawn, 2.0)
        keep = key <= np.take_along_axis(np.sort(key, axis=1), wanted[rows, None] - 1, axis=1)
        chosen.append(batch.terms[place[keep]])
    offsets, terms = np.concatenate([[0], np.cumsum(wanted)]), np.concatenate(chosen)
    nowhere, at = np.full(count, np.nan), np.zeros(count, np.int64)
    table = SubscriptionTable(
        np.arange(count), np.full(count, kind, np.int8), at, nowhere, nowhere, np.full((count, 4), np.nan),
        np.full(count, model.KEYWORDS_BY_KIND, np.int8), np.zeros(count, np.int32), nowhere, offsets, terms,
        unit_weights(messages.idf[terms], offsets),
    )  # fmt: skip
    return changed(table, **columns)
