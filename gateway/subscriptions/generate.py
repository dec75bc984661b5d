"""Subscriptions made from real messages, by the recipes of the papers: `skyray subscriptions generate`.

A subscription takes its place and its keywords from one message drawn at random, so that subscriptions follow the
distribution of the stream in space and in words. How many keywords, how large a region, which k: that says the recipe
of the kind (`matching.kind_table.Recipe`), in its row of `matching.kinds`. Same messages, kind, count, seed and
options: the same bytes. Some rows get filters, if options say so (`gateway.subscriptions.filters`).

What comes out is read by `spouts.subscriptions`; a run of it is checked by `gateway.runs.verify`.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import typer

from gateway.shell.per_kind import WORDS
from gateway.shell.terminal import whole_file
from gateway.subscriptions.filters import draw_conditions, draw_excluded, draw_shapes
from matching.errors import ConfigError, InputError
from matching.kind_table import Kind, Kinds, Recipe
from matching.kinds import KINDS
from matching.model import Float64, Int32, Int64, take_ragged
from matching.reasons import MAX_K, MAX_SUBSCRIPTION_TERMS
from matching.vocabulary import Vocabulary
from spouts.message_files import list_message_files
from spouts.parquet import read_columns
from spouts.subscriptions import load_vocabulary

#: Subscriptions made at a time. Part of the recipe: another number draws other subscriptions from the same seed.
CHUNK = 50_000
#: A word that a larger share of the messages has is a stop word: in English tweets these are "the", "at", "be".
MAX_FREQUENCY = 0.05
#: How many keywords must be there.
MATCHES = ("all", "any")
#: Decimals of degrees in the output (about 0.1 m).
DECIMALS = 6


class _Stream(NamedTuple):
    """What the recipes take from the messages: those with terms, and how often each term occurs."""

    lon: Float64
    lat: Float64
    offsets: Int64
    terms: Int32
    vocabulary: Vocabulary
    messages: int
    attributes: pa.Table  # of these messages; without columns where no condition is drawn


class _Shares(NamedTuple):
    """Which shares of the subscriptions get which filters."""

    circle: float
    polygon: float
    where: float
    excluded: float


def generate_subscriptions(
    etl_dir: str | os.PathLike[str],
    kind: str,
    count: int,
    seed: int,
    out: str | os.PathLike[str],
    *,
    k: Annotated[int | None, typer.Option(help="Size of a result, for kinds that have one.")] = None,
    min_keywords: Annotated[int | None, typer.Option(help="Fewest keywords.")] = None,
    max_keywords: Annotated[int | None, typer.Option(help="Most keywords.")] = None,
    region_share: Annotated[
        float | None, typer.Option(help="Largest side of a region, as a share of the world's; kinds with a region.")
    ] = None,
    until_share: Annotated[float, typer.Option(help="Share of subscriptions that end early.")] = 0.0,
    match: Annotated[
        str | None, typer.Option(help=f"all or any of the keywords, for {WORDS['match']}; the other kinds take any.")
    ] = None,
    max_frequency: Annotated[
        float, typer.Option(help="Leave out words that more than this share of the messages have; 1 leaves none out.")
    ] = MAX_FREQUENCY,
    circle_share: Annotated[
        float, typer.Option(help="Share of subscriptions with a circle in place of the region, or a radius_m.")
    ] = 0.0,
    polygon_share: Annotated[
        float, typer.Option(help="Share of subscriptions with a polygon, in place of the region if there is one.")
    ] = 0.0,
    where_share: Annotated[
        float, typer.Option(help="Share of subscriptions with conditions on attributes that messages have.")
    ] = 0.0,
    not_share: Annotated[float, typer.Option(help="Share of subscriptions with a word in not_keywords.")] = 0.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file of that name.")] = False,
    kinds: Kinds = KINDS,
) -> dict[str, Any]:
    """Write `count` subscriptions of one kind as JSON Lines; what is annotated is an option of the command.

    `etl_dir` is an output folder of `skyray etl`; the file `out` appears whole or not at all. The number of keywords is
    uniform between the fewest and the most, by default the recipe's, and less where the message has fewer terms. A
    message that has stop words alone gives its rarest. The shares of circles and polygons are together at most 1;
    filters and `match` leave all other columns as they are without.

    Returns
    -------
    dict
        `kind`, `count`, `seed`, `out`, `keywords` (in all), `ending` (how many have an `until`) and `filters` (how many
        have each: `circle`, which counts `radius_m` too, `polygon`, `where`, `not_keywords`).

    Raises
    ------
    ConfigError
        For an option outside its range, or a file that is there and may not be replaced.
    InputError
        If the folder is not what the ETL writes, or no message in it has a term.
    DeliveryError
        If the file cannot be written.

    Notes
    -----
    O(messages + count), a million in well under a minute; memory for the terms of all messages.
    """
    path = Path(out)
    if path.exists() and not (overwrite and path.is_file()):
        remedy = "name another, or add --overwrite to replace it" if path.is_file() else "it is no file; name another"
        raise ConfigError(f"output file {path} is in use: {remedy}")
    if kind not in kinds:
        raise ConfigError(f"kind {kind!r}: choose one of {', '.join(kinds.names)}")
    made = kinds.named(kind)
    fewest, most = made.recipe.keywords
    fewest, most = fewest if min_keywords is None else min_keywords, most if max_keywords is None else max_keywords
    if count < 1 or seed < 0:
        raise ConfigError(f"count {count}, seed {seed}: need at least one subscription and a seed of 0 or more")
    if not 1 <= fewest <= most <= MAX_SUBSCRIPTION_TERMS:
        raise ConfigError(f"keywords from {fewest} to {most}: need 1 <= fewest <= most <= {MAX_SUBSCRIPTION_TERMS}")
    if k is not None and ("k" not in made.fields or not 1 <= k <= MAX_K):
        having = ", ".join(one.name for one in kinds if "k" in one.fields)
        raise ConfigError(f"k {k}: must be from 1 to {MAX_K:,}, and only {having} have it")
    if region_share is not None and (made.place != "region" or not 0.0 < region_share <= 1.0):
        having = " and ".join(one.name for one in kinds if one.place == "region")
        raise ConfigError(f"region share {region_share}: must lie in (0, 1], and only {having} have regions")
    if not 0.0 <= until_share <= 1.0:
        raise ConfigError(f"until share {until_share}: must lie between 0 and 1")
    if match is not None and ("match" not in made.fields or match not in MATCHES):
        having = " and ".join(one.name for one in kinds if "match" in one.fields)
        raise ConfigError(f"match {match!r}: must be {' or '.join(MATCHES)}, and only {having} subscriptions have it")
    if not 0.0 < max_frequency <= 1.0:
        raise ConfigError(f"max frequency {max_frequency}: must be above 0 and at most 1, which leaves no word out")
    shares = _Shares(circle_share, polygon_share, where_share, not_share)
    _check_shares(shares, made, kinds)
    k_range = made.recipe.k if k is None else (k, k)
    recipe = replace(made.recipe, keywords=(fewest, most), k=k_range, side=region_share or made.recipe.side)
    made = replace(made, recipe=recipe)
    stream = _read(Path(etl_dir), with_attributes=where_share > 0.0)
    rng = np.random.default_rng([seed, made.code])  # files of several kinds with one seed are not copies of each other
    filter_rng = np.random.default_rng([seed, made.code, 1])  # of its own: the other columns stay those of the seed
    filters = dict.fromkeys(("circle", "polygon", "where", "not_keywords"), 0)
    encoder = msgspec.json.Encoder()
    keywords = ending = 0
    with whole_file(path) as file:
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            rows = rng.integers(0, stream.lon.shape[0], size)
            offsets, terms = _draw_keywords(rng, stream, rows, made.recipe, max_frequency)
            columns: dict[str, list] = {
                "subscription_id": [f"{kind}-{seed}-{number}" for number in range(start, start + size)],
                "kind": [kind] * size,
                "keywords": _words(stream.vocabulary.terms, offsets, terms),
            }
            columns |= _draw_place(rng, stream, rows, made)
            columns |= _draw_taste(rng, size, made)
            if match is not None:
                columns["match"] = [match] * size
            ends = rng.random(size) < until_share
            until = rng.integers(1, stream.messages + 1, size)
            columns["until"] = [end if has else None for end, has in zip(until.tolist(), ends, strict=True)]
            if any(shares):
                _add_filters(filter_rng, columns, stream, rows, made, shares)
                for name in filters:
                    drawn = columns.get(name, []) + (columns.get("radius_m", []) if name == "circle" else [])
                    filters[name] += sum(value is not None for value in drawn)
            file.write(encoder.encode_lines(_rows(columns)))
            keywords += terms.shape[0]
            ending += int(ends.sum())
    counted = {"keywords": keywords, "ending": ending, "filters": filters}
    return {"kind": kind, "count": count, "seed": seed, "out": str(path), **counted}


def _check_shares(shares: _Shares, kind: Kind, kinds: Kinds) -> None:
    """Raise ConfigError for shares that cannot be."""
    named: dict[str, float] = dict(
        zip(("circle share", "polygon share", "where share", "not share"), shares, strict=True)
    )
    for name, share in named.items():
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"{name} {share}: must lie between 0 and 1")
    if shares.circle + shares.polygon > 1.0:
        raise ConfigError(
            f"circle share {shares.circle} and polygon share {shares.polygon}: a subscription has one shape, so that "
            "together they must be at most 1"
        )
    for name, shapes in (("circle share", {"circle", "radius_m"}), ("polygon share", {"polygon"})):
        if named[name] and not shapes & set(kind.shapes):
            *most, last = [one.name for one in kinds if shapes & set(one.shapes)] or ["no kind"]
            having = f"{', '.join(most)} and {last}" if most else last
            raise ConfigError(f"{name} {named[name]}: only {having} have such shapes")


def _add_filters(
    rng: np.random.Generator,
    columns: dict[str, list[Any]],
    stream: _Stream,
    rows: Int64,
    kind: Kind,
    shares: _Shares,
) -> None:
    """Draw filters of rows that come from these messages, and add them as columns."""
    size = rows.shape[0]
    if shares.circle or shares.polygon:
        regions = columns.get("region") or _draw_region(rng, stream, rows, kind.recipe, wraps=True).tolist()
        places = list(zip(stream.lon[rows].tolist(), stream.lat[rows].tolist(), strict=True))
        draw_shapes(columns, regions, places, rng.random(size), shares.circle, shares.polygon)
    if shares.where:
        attributes = stream.vocabulary.attributes.compared
        own, others = (
            [column.to_pylist() for column in stream.attributes.take(which).columns]
            for which in (rows, rng.integers(0, stream.lon.shape[0], size))
        )
        columns["where"] = draw_conditions(rng, attributes, own, others, rng.random(size) < shares.where)
    if shares.excluded:
        has = rng.random(size) < shares.excluded
        words = stream.vocabulary.terms
        columns["not_keywords"] = draw_excluded(rng, stream.offsets, stream.terms, words, rows, has)


def _read(directory: Path, with_attributes: bool = False) -> _Stream:
    """Places and terms of all messages that have terms, and the vocabulary."""
    if not list_message_files(directory):
        raise InputError("missing_file", f"{directory}: has no messages/*.parquet; give what `skyray etl` wrote")
    vocabulary = load_vocabulary(directory)
    named = [one.column for one in vocabulary.attributes.compared] if with_attributes else []
    if with_attributes and not named:
        raise ConfigError(
            f"where share: the messages of {directory} have no attributes; leave it out, or give the ETL --attribute"
        )
    table = pa.Table.from_batches(read_columns(directory, ["lon", "lat", "terms", *named]))
    lists = table.column("terms").combine_chunks()
    counts = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    terms = lists.flatten().to_numpy()
    lon, lat = table.column("lon").to_numpy(), table.column("lat").to_numpy()
    if terms.size and not (terms.min() >= 0 and terms.max() < len(vocabulary)):
        raise InputError(
            "broken_file", f"{directory}: has messages with terms that vocabulary.parquet lacks; run the ETL again"
        )
    full = counts > 0
    if not full.any():
        raise InputError("no_terms", f"{directory}: no message has a term to make subscriptions from")
    # Messages without terms own none of the flat terms, so leaving them out moves nothing.
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[full])])
    attributes = table.select(named).filter(pa.array(full))
    return _Stream(lon[full], lat[full], offsets, terms, vocabulary, counts.shape[0], attributes)


def _draw_keywords(
    rng: np.random.Generator, stream: _Stream, rows: Int64, recipe: Recipe, max_frequency: float
) -> tuple[Int64, Int32]:
    """Draw terms of each message without replacement: ragged (offsets, ascending terms).

    The terms with the smallest of exponential variates divided by a weight are such a draw (Efraimidis and
    Spirakis); the weight is the document frequency where frequent terms are preferred, else one. Stop words come last,
    the rarest first, and are taken where a message has nothing else.
    """
    offsets, picked = take_ragged(stream.offsets, rows)
    terms = stream.terms[picked]
    key = rng.exponential(size=terms.shape[0])
    frequency = stream.vocabulary.document_frequency[terms]
    if recipe.frequent:
        key /= np.maximum(frequency, 1)
    stops = frequency > max_frequency * stream.messages
    key[stops] = np.inf
    lengths = np.diff(offsets)
    owner = np.repeat(np.arange(rows.shape[0]), lengths)
    usable = np.maximum(1, np.bincount(owner[~stops], minlength=rows.shape[0]))
    terms = terms[np.lexsort((key, owner))]
    fewest, most = recipe.keywords
    wanted = np.minimum(rng.integers(fewest, most + 1, rows.shape[0]), usable)
    place = np.arange(terms.shape[0]) - np.repeat(offsets[:-1], lengths)
    chosen = place < np.repeat(wanted, lengths)
    terms, owner = terms[chosen], owner[chosen]
    terms = terms[np.lexsort((terms, owner))]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(wanted)]), terms


def _words(words: list[str], offsets: Int64, terms: Int32) -> list[list[str]]:
    texts = [words[term] for term in terms.tolist()]
    cuts = offsets.tolist()
    return [texts[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]


def _draw_place(rng: np.random.Generator, stream: _Stream, rows: Int64, kind: Kind) -> dict[str, list[Any]]:
    """`lon` and `lat` of the message, or a `region` around it."""
    if kind.place != "region":
        return {"lon": stream.lon[rows].tolist(), "lat": stream.lat[rows].tolist()}
    return {"region": _draw_region(rng, stream, rows, kind.recipe, kind.wraps).tolist()}


def _draw_region(rng: np.random.Generator, stream: _Stream, rows: Int64, recipe: Recipe, wraps: bool) -> Float64:
    """A region around each of these messages: float64[n, 4], in degrees."""
    lon, lat = stream.lon[rows], stream.lat[rows]
    width, height = _extent(stream)
    sides = rng.uniform(0.01, 1.0, (2, rows.shape[0]))
    across, up = recipe.side * (np.sqrt(sides) if recipe.square else sides)
    smallest = 2 * 10.0**-DECIMALS
    half_width = np.maximum(across * width, smallest) / 2
    half_height = np.maximum(up * height, smallest) / 2
    south = np.maximum(lat - half_height, -90.0)
    north = np.minimum(lat + half_height, 90.0)
    west, east = lon - half_width, lon + half_width
    if wraps:  # may cross the antimeridian, unless it would meet itself there
        crosses = 2 * half_width < 360.0
        west = np.where(crosses & (west < -180.0), west + 360.0, west)
        east = np.where(crosses & (east > 180.0), east - 360.0, east)
    west, east = np.maximum(west, -180.0), np.minimum(east, 180.0)
    return np.round(np.stack([west, south, east, north], axis=1), DECIMALS).astype(np.float64, copy=False)


def _extent(stream: _Stream) -> tuple[float, float]:
    """Width and height in degrees of the box of the messages; the earth's where that has no size."""
    width, height = float(np.ptp(stream.lon)), float(np.ptp(stream.lat))
    return (width, height) if width > 0 and height > 0 else (360.0, 180.0)


def _draw_taste(rng: np.random.Generator, size: int, kind: Kind) -> dict[str, list[Any]]:
    """`k` and `alpha` for the kinds that have them."""
    columns: dict[str, list[Any]] = {}
    if "k" in kind.fields:
        low, high = kind.recipe.k
        columns["k"] = rng.integers(low, high + 1, size).tolist()
    if "alpha" in kind.fields:
        columns["alpha"] = np.round(rng.random(size), DECIMALS).tolist()
    return columns


def _rows(columns: dict[str, list]) -> list[dict[str, Any]]:
    """Columns as one dict a row, without the empty ones."""
    names = list(columns)
    return [
        {name: value for name, value in zip(names, values, strict=True) if value is not None}
        for values in zip(*columns.values(), strict=True)
    ]
