"""The messages of a folder, indexed by word: what subscriptions would have matched, condition by condition."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from matching.attributes import ATTRIBUTE, DeclaredAttribute
from matching.filter_fields import ALL_KEYWORDS
from matching.filter_programs import (
    AT_LEAST,
    CIRCLE,
    EITHER,
    NEITHER,
    PHRASE,
    POLYGON,
    WITHOUT,
    Instruction,
    instructions_of,
    joined_programs,
    program_of,
)
from matching.filters import filters_of, passing
from matching.kind_table import Kind
from matching.model import NO_ORDER, NO_WORDS, UNKNOWN_TERM, WEIGHT, Float64, Int32, Int64, MessageBatch, empty
from matching.reserved import with_reserved
from matching.text import Vocabulary
from matching.validate import ParsedSubscription
from matching.window import NO_FLOOR
from spark_etl.span import span_us
from spouts.columns import AHEAD, ORDER, attribute_keys
from spouts.parquet import read_columns

US_PER_DAY = 86_400e6
_SIDES = (("west", "lon"), ("south", "lat"), ("east", "lon"), ("north", "lat"))


class Past(NamedTuple):
    """Messages of a folder, or of a log.

    terms, rows : int32[nnz], int64[nnz]    terms ascending, and which message has each
    messages : MessageBatch                 without weights
    times_us : int64[n]                     `NO_FLOOR` where a message has none
    days : float or None                    time span in days; None without times
    """

    terms: Int32
    rows: Int64
    messages: MessageBatch
    times_us: Int64
    days: float | None

    @classmethod
    def of(cls, messages: MessageBatch, times_us: Int64) -> "Past":
        """Index messages by term. O(terms of messages, sorted)."""
        order = np.argsort(messages.terms, kind="stable")
        rows = np.repeat(np.arange(len(messages)), np.diff(messages.term_offsets))[order]
        span = span_us(times_us[times_us != NO_FLOOR])
        return cls(messages.terms[order], rows, messages, times_us, span / US_PER_DAY if span else None)


class Tested(NamedTuple):
    """A subscription over the past.

    rows : int64[n]     messages that share a keyword, or all visible ones where there is none, ascending
    parts : dict        name of each condition -> bool[n]: which of these satisfy it
    """

    rows: Int64
    parts: dict[str, np.ndarray]

    @property
    def matched(self) -> np.ndarray:
        """bool[n]: which satisfy all."""
        return np.logical_and.reduce([np.ones(self.rows.shape[0], np.bool_), *self.parts.values()])


def read_past(etl: Path, vocabulary: Vocabulary) -> Past:
    """Read a folder's messages: 16 bytes a term and 60 a message. Raises InputError as the spout does."""
    flat, counts, boxes, times, keys = [], [], [], [], []
    names = [f"{ATTRIBUTE}{one.name}" for one in vocabulary.attributes.attributes]
    sides = [name for name, _ in _SIDES]
    visible, order, lengths = [], [NO_ORDER], [NO_WORDS]
    for batch in read_columns(etl, ["lon", "lat", "terms"], (*sides, "event_time", "op", AHEAD, ORDER, *names)):
        lists: Any = batch.column("terms")
        flat.append(lists.flatten().to_numpy())
        counts.append(lists.value_lengths().fill_null(0).to_numpy())
        boxes.append(np.stack([_side(batch, *each) for each in _SIDES]))
        time = np.full(len(batch), NO_FLOOR)
        if "event_time" in batch.schema.names:
            time = batch.column("event_time").cast(pa.int64()).fill_null(NO_FLOOR).to_numpy()
        times.append(time)
        visible.append(_visible(batch))
        if ORDER in batch.schema.names:
            words: Any = batch.column(ORDER)
            order.append(words.flatten().to_numpy())
            lengths.append(words.value_lengths().fill_null(0).to_numpy().astype(np.int64))
        if names:
            keys.append(np.concatenate([attribute_keys(batch.column(name)) for name in names], axis=1))
    terms = np.concatenate([np.zeros(0, np.int32), *flat])
    term_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate([np.zeros(0, np.int64), *counts]))])
    box = dict(zip(sides, np.concatenate([np.zeros((4, 0)), *boxes], axis=1), strict=True))
    seen, weights = np.concatenate([np.zeros(0, np.bool_), *visible]), np.zeros(terms.shape[0], WEIGHT)
    term_offsets, terms, *_ = with_reserved(vocabulary.reserved, seen, term_offsets, terms, weights, None)
    columns: Any = empty(MessageBatch)._asdict() | box | {"term_offsets": term_offsets, "terms": terms}
    columns["seq"] = np.arange(box["west"].shape[0])
    columns |= {"keys": np.concatenate(keys)} if keys else {}
    if len(lengths) > 1:
        ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]))
        columns |= {"order_offsets": ends, "order": np.concatenate(order)}
    return Past.of(MessageBatch(**columns), np.concatenate([np.zeros(0, np.int64), *times]))


def tested(parsed: ParsedSubscription, kind: Kind, vocabulary: Vocabulary, past: Past) -> Tested:
    """Test a subscription's conditions one by one. O(messages that share a keyword, for each condition)."""
    terms = [term for term in parsed.terms if term != UNKNOWN_TERM]
    lists = [past.rows[slice(*np.searchsorted(past.terms, [term, term + 1]))] for term in terms]
    rows, count = np.unique(np.concatenate([past.rows[:0], *lists]), return_counts=True)
    needed = len(parsed.words) if parsed.needs == ALL_KEYWORDS else parsed.needs
    parts = {"keywords" if parsed.needs == ALL_KEYWORDS else "match": count >= needed} if parsed.words else {}
    instructions = instructions_of(parsed.filter)
    if kind.place == "region" and not any(one.operation in (CIRCLE, POLYGON) for one in instructions):
        parts["region"] = _meets(parsed.region, kind, past.messages, rows)
    for one in instructions:
        # that of `match`, which is counted above
        if one.operation != AT_LEAST or one.argument != parsed.needs or list(one.words) != terms:
            name, passes = _name_of(one.operation, one.argument, kind, vocabulary), _passing(one, rows, past.messages)
            parts[name] = parts[name] & passes if name in parts else passes
    return Tested(rows, parts)


def _passing(one: Instruction, rows: Int64, messages: MessageBatch) -> np.ndarray:
    """bool[n]: which of these messages satisfy an instruction."""
    filters = filters_of(*joined_programs([program_of([one])]))
    return passing(filters, np.zeros(rows.shape[0], np.int32), rows.astype(np.int32), messages)


def _name_of(operation: int, argument: int, kind: Kind, vocabulary: Vocabulary) -> str:
    if operation == WITHOUT:
        return "not_keywords"
    if operation in (AT_LEAST, EITHER, NEITHER, PHRASE):
        return "query"
    if operation == CIRCLE:
        return "radius_m" if "radius_m" in kind.shapes else "circle"
    return "polygon" if operation == POLYGON else f"where {_attribute_at(argument, vocabulary).name}"


def _attribute_at(column: int, vocabulary: Vocabulary) -> DeclaredAttribute:
    return vocabulary.attributes.attributes[vocabulary.attributes.number_at(column)]


def _meets(region: tuple[float, float, float, float], kind: Kind, messages: MessageBatch, rows: Int64) -> np.ndarray:
    """bool[n]: which of these messages meet a region, with their rectangle or, of some kinds, its middle."""
    west, south, east, north = region
    sides = [side[rows] for side in (messages.west, messages.south, messages.east, messages.north)]
    if kind.message_place == "centre":
        middle = (sides[0] + sides[2]) / 2, (sides[1] + sides[3]) / 2
        sides = [*middle, *middle]
    inside = (sides[1] <= north) & (sides[3] >= south)
    reaches_west, reaches_east = sides[2] >= west, sides[0] <= east
    return inside & (reaches_west & reaches_east if west <= east else reaches_west | reaches_east)


def _visible(batch: pa.RecordBatch) -> np.ndarray:
    """bool[n]: False for deletions and for messages that are dated too far ahead, True for all others."""
    visible = np.ones(len(batch), np.bool_)
    for name in ("op", AHEAD):
        if name in batch.schema.names:
            visible &= batch.column(name).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) == 0
    return visible


def _side(batch: pa.RecordBatch, name: str, point: str) -> Float64:
    """One side of the rectangles of messages; of a point message the coordinate itself."""
    own = batch.column(point).to_numpy()
    if name not in batch.schema.names:
        return own
    side = batch.column(name).to_numpy(zero_copy_only=False)
    return np.where(np.isnan(side), own, side)
