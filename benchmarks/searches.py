"""The workload of a portal with saved searches: words, a place, and what a home must be like.

`skyray bench boolean --workload saved-searches`. Messages are homes with a price, bedrooms and a type; of each a tenth
is missing. A search takes after one of them: it has one or two of its words, is within a city's distance of it (a
circle, an octagon or a rectangle, `SHAPES`), and has one to three conditions that it satisfies. `--workload portal` has
searches as people save them: of ten six have no words, and ask for a price and bedrooms in a district; two have a
phrase of two words, one a word and one of two others, and one the beginning of a word.

Words have names, whose first three letters are those of a hundred others: a beginning (`word_of`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.subscriptions.filters import NUMBERS, octagon, radius_within
from matching.attributes import MISSING_KEY, category_key, number_keys
from matching.conditions import ANY_OF, WITHIN
from matching.filter_programs import (
    AT_LEAST,
    CIRCLE,
    LENGTH_AT,
    PHRASE,
    POLYGON,
    Instruction,
    instructions_of,
    joined_programs,
    program_of,
)
from matching.filters import circle_instruction, polygon_instruction
from matching.geo.polygons import Rings
from matching.geo.sphere import ball_box
from matching.model import Float32, Int32, Int64, MessageBatch, SubscriptionTable
from matching.reserved import RESERVED_IDF

#: Ids of words are below this; then come those of beginnings, one for each.
WORDS, BEGINNINGS = 50_000, 500
_LETTERS = str.maketrans("0123456789", "abcdefghij")
#: Draws of searches: those behind have keywords.
WORDLESS, OF_PHRASE, OF_GROUP, OF_BEGINNING = range(4)
#: Attributes in the order of their keys.
PRICE, BEDS, TYPE = range(3)
#: Of searches, how many have a circle, an octagon; the others have a rectangle.
SHAPES = {"circle": 0.5, "octagon": 0.2}
#: Types of homes, the n-th of weight 1 / n; a search wants its home's, or that and another.
_TYPES, _MISSING = 12, 0.1
_FIRST, _LAST = MISSING_KEY + 1, int(np.iinfo(np.int64).max)


def with_attributes(batch: MessageBatch, seed: int) -> MessageBatch:
    """The messages with attributes. O(n)."""
    rng, n = np.random.default_rng([seed, 8]), len(batch)
    weight = 1.0 / np.arange(1, _TYPES + 1)
    types = np.array([category_key(f"type {number}") for number in range(_TYPES)], np.int64)
    prices, beds = (
        number_keys(np.round(rng.lognormal(12.5, 0.6, n), -3)),
        number_keys(rng.integers(1, 7, n).astype(np.float64)),
    )
    keys = np.stack([prices, beds, types[rng.choice(_TYPES, n, p=weight / weight.sum())]], axis=1)
    keys[rng.random((n, 3)) < _MISSING] = MISSING_KEY
    columns: Any = batch._asdict() | {"keys": keys}
    return MessageBatch(**columns)


def word_of(term: int) -> str:
    """The name of a word, or how those of a beginning begin."""
    first = f"{(term if term < WORDS else term - WORDS) % BEGINNINGS:03d}"
    return (first + str(term // BEGINNINGS) if term < WORDS else first).translate(_LETTERS)


def with_beginnings(
    offsets: Int64, terms: Int32, counts: np.ndarray, weights: Float32
) -> tuple[Int64, Int32, np.ndarray, Float32]:
    """The terms of messages with the beginnings of their words."""
    row = np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets))
    pairs = np.unique(row << 32 | (WORDS + terms % BEGINNINGS))
    row, more = np.concatenate([row, pairs >> 32]), np.ones(pairs.shape[0])
    by_row = np.argsort(row, kind="stable")  # beginnings come last
    found = (
        terms,
        (pairs & 0xFFFFFFFF).astype(np.int32),
        counts,
        0 * more.astype(counts.dtype),
        weights,
        RESERVED_IDF * more,
    )
    terms, counts, weights = (np.concatenate(found[at : at + 2])[by_row] for at in (0, 2, 4))
    return np.searchsorted(row[by_row], np.arange(offsets.shape[0])), terms, counts, weights.astype(np.float32)


def queries_of(
    messages: MessageBatch, like: Int64, drawn: Int64, seed: int
) -> tuple[dict[int, Int32], dict[int, Instruction]]:
    """Words that searches with a query need, and the instruction that decides the rest, by row.

    Parameters
    ----------
    messages : MessageBatch
    like : int64[n]      the message that each takes after
    drawn : int64[n]     what each is: `OF_PHRASE` and the like
    """
    rng = np.random.default_rng([seed, 11])
    first, last = messages.order_offsets[like], messages.order_offsets[like + 1]
    place = first + rng.integers(0, last - first - 1)
    others = messages.order[rng.integers(0, messages.order.shape[0], like.shape[0])]
    terms, queries = dict[int, Int32](), dict[int, Instruction]()
    for row in np.flatnonzero((drawn >= OF_PHRASE) & (drawn <= OF_BEGINNING)).tolist():
        one, two = messages.order[place[row] : place[row] + 2].tolist()
        if drawn[row] == OF_PHRASE:
            terms[row] = np.unique(np.array([one, two], np.int32))
            queries[row] = Instruction(PHRASE, 0, [one, two])
        elif drawn[row] == OF_GROUP:
            terms[row] = np.array([one], np.int32)
            queries[row] = Instruction(AT_LEAST, 1, sorted({two, int(others[row])}))
        else:
            terms[row] = np.array([WORDS + one % BEGINNINGS], np.int32)
    return terms, queries


def with_filters(
    table: SubscriptionTable, homes: MessageBatch, like: Int64, seed: int, wordless: NDArray[np.bool_],
    queries: Mapping[int, Instruction],
) -> SubscriptionTable:  # fmt: skip
    """Searches of the messages `like`, in place of boolean ones; a `wordless` one asks for a price and bedrooms.

    `queries`: what some of them ask of words besides. 10 us a row, 60 us an octagon.
    """
    rng, n = np.random.default_rng([seed, 9]), len(table)
    drawn, region = rng.random(n), table.region.copy()
    wanted, factor = rng.permuted(np.tile(np.arange(3), (n, 1)), axis=1), rng.uniform(*NUMBERS, n)
    counts, second = rng.integers(1, 4, n), rng.integers(0, _TYPES, n)
    wanted[wordless], counts[wordless] = [PRICE, BEDS, TYPE], 2
    keys, types = homes.keys[like], [category_key(f"type {number}") for number in range(_TYPES)]
    prices = np.where(keys[:, PRICE] >= 0, keys[:, PRICE], 0).view(np.float64)
    low, high = number_keys(prices / factor).tolist(), number_keys(prices * factor).tolist()
    middles = (region[:, :2] + region[:, 2:]) / 2.0
    programs = []
    for row, own in enumerate(keys.tolist()):
        made = []
        for attribute in sorted(wanted[row, : counts[row]].tolist()):
            if own[attribute] == MISSING_KEY:
                continue
            if attribute == TYPE:
                made.append(Instruction(ANY_OF, TYPE, sorted({own[TYPE], types[second[row]]})))
            elif attribute == BEDS:
                made.append(Instruction(WITHIN, BEDS, [own[BEDS], _LAST]))
            else:
                made.append(Instruction(WITHIN, PRICE, [low[row], high[row]]))
        if row in queries:
            made.append(queries[row])
        if drawn[row] < SHAPES["circle"]:
            lon, lat = middles[row].tolist()
            radius_m = radius_within(region[row].tolist())
            west, _, east, _ = box = ball_box(lon, lat, radius_m)
            if west <= east or not wordless[row]:  # a band around the earth without words would be all that is measured
                made.append(circle_instruction(lon, lat, radius_m))
                region[row] = box if west <= east else (-180.0, box[1], 180.0, box[3])
        elif drawn[row] < sum(SHAPES.values()):
            points = np.array(octagon(region[row].tolist()))
            corners = np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(points[:, 1])
            made.append(polygon_instruction(Rings(np.array([0, len(points)]), *corners)))
        programs.append(program_of(made))
    offsets, words = joined_programs(programs)
    columns: Any = table._asdict() | {"region": region, "filter_offsets": offsets, "filter_words": words}
    return SubscriptionTable(**columns)


def columns_of(table: SubscriptionTable) -> dict[str, Any]:
    """Filters as columns of a database, one row a subscription.

    `price_low`, `price_high`, `beds_low` (keys, the least and the largest where there is no condition), `types` (list
    of keys, or None), `x`, `y`, `z`, `chord` (centre and largest squared chord, infinity without a circle), `shape`
    (the octagon as WKT, or None), `asked` (what is asked of words, as `to_tsquery` reads it), and `query` (the same, or
    None of keywords alone).
    """
    n = len(table)
    price_low, price_high, beds_low = np.full(n, MISSING_KEY), np.full(n, _LAST), np.full(n, MISSING_KEY)
    types: list[list[int] | None] = [None] * n
    shapes: list[str | None] = [None] * n
    queries: list[str | None] = [None] * n
    all_asked: list[str] = []
    circles = np.zeros((n, 4))
    circles[:, 3] = np.inf
    for row in range(n):
        own = slice(table.term_offsets[row], table.term_offsets[row + 1])
        asked = [_asked(one) for one in table.terms[own][~np.signbit(table.weights[own])].tolist()]
        is_query = bool(asked) and asked[-1].endswith("*")
        words = table.filter_words[table.filter_offsets[row] : table.filter_offsets[row + 1]]
        for operation, attribute, own in instructions_of(words.tobytes()):
            if operation == WITHIN and attribute == PRICE:
                price_low[row], price_high[row] = own
            elif operation == WITHIN:
                beds_low[row] = own[0]
            elif operation == ANY_OF:
                types[row] = list(own)
            elif operation == CIRCLE:
                circles[row] = np.array(own[3:], np.int64).view(np.float64)
            elif operation in (PHRASE, AT_LEAST):
                marks = " <-> " if operation == PHRASE else " | "
                asked, is_query = [*asked, f"({marks.join(map(_asked, own))})"], True
            elif operation == POLYGON:
                corners = np.array(own[-2 * own[0] :], np.int64).view(np.float64).reshape(2, -1).T
                shapes[row] = "POLYGON((" + ", ".join(f"{lon!r} {lat!r}" for lon, lat in corners.tolist()) + "))"
        all_asked.append(" & ".join(asked))
        queries[row] = all_asked[row] if is_query else None
    circle = dict(zip(("x", "y", "z", "chord"), circles.T, strict=True))
    prices = {"price_low": price_low, "price_high": price_high}
    beside = {"types": types, **circle, "shape": shapes, "query": queries, "asked": all_asked}
    return {**prices, "beds_low": beds_low, **beside}


def _asked(term: int) -> str:
    """A word, or the beginning of one, as `to_tsquery` reads it."""
    return word_of(term) + (":*" if term >= WORDS else "")


def texts_of(batch: MessageBatch) -> list[str]:
    """The texts of messages; none where they have no order."""
    return joined(batch.order_offsets, batch.order)


def joined(offsets: Int64, terms: Int32) -> list[str]:
    """The names of the words of each row."""
    names, cuts = list(map(word_of, terms.tolist())), offsets.tolist()
    return [" ".join(names[first:last]) for first, last in zip(cuts, cuts[1:], strict=False)]


def apart(arrays: Mapping[str, np.ndarray], live: int) -> dict[str, float]:
    """Of a boolean engine's arrays, bytes a subscription of ids, of rings, and of all but these; none without filters.

    Ids are numbers and the map from number to slot; rings are the polygon instructions whole, bands included.
    """
    if "filters_span" not in arrays:
        return {}
    span, words = arrays["filters_span"], arrays["filters_words"]
    at, lengths = span[span[:, 0] >= 0].astype(np.int64).T
    end, rings = at + lengths, 0
    while (more := at < end).any():
        at, end = at[more], end[more]
        length = 1 + (words[at] >> LENGTH_AT)
        rings += int(length[words[at] & 0xFF == POLYGON].sum())
        at = at + length
    ids = sum(arrays[name].nbytes for name in ("rows_slots_number", "rows_slots_index"))
    whole = sum(each.nbytes for each in arrays.values())
    parts = {"ids": ids, "rings": 8 * rings, "all_else": whole - ids - 8 * rings}
    return {f"bytes_of_{name}": size / live for name, size in parts.items()}


def beyond_joins(table: SubscriptionTable) -> SubscriptionTable:
    """The subscriptions with the octagons, phrases and alternatives of their filters alone."""
    programs, offsets, words = [], table.filter_offsets, table.filter_words
    for row in range(len(table) if words.shape[0] else 0):
        made = instructions_of(words[offsets[row] : offsets[row + 1]].tobytes())
        programs.append(program_of([one for one in made if one.operation in (POLYGON, PHRASE, AT_LEAST)]))
    filters = dict(zip(("filter_offsets", "filter_words"), joined_programs(programs), strict=True))
    columns: Any = table._asdict() | filters
    return SubscriptionTable(**columns)
