"""Converts single messages that `matching.validate` accepted to columns.

Used by `spouts.live` and `gateway.live.engine`, so that both make the same batch of the same messages.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from matching.attributes import NO_ATTRIBUTES, AttributeSchema, attribute_values, key_of
from matching.errors import CheckpointError
from matching.fields import MESSAGE_ROLES
from matching.model import NO_KEYS, MessageBatch, Names, join_messages
from matching.space import Space
from matching.text import TermColumns, TermVector, Vocabulary
from matching.validate import DELETE, PUBLISH, ParsedMessage, RawMessage, decode_object, message_row, with_attributes
from matching.window import NO_FLOOR, Window
from spouts.cutting import Rows
from spouts.log import Record
from spouts.versions import Objects


def parse_message(row: Any, space: Space | None = None, schema: AttributeSchema = NO_ATTRIBUTES) -> ParsedMessage | str:
    """A message whose columns are named like the roles (`matching.fields.MESSAGE_ROLES`), or a reason code."""
    if not isinstance(row, Mapping):
        return "wrong_type"
    parsed = message_row(RawMessage(**{role: row.get(role) for role in MESSAGE_ROLES}), space)
    if isinstance(parsed, str) or not len(schema):
        return parsed
    try:
        return with_attributes(parsed, attribute_values(row, schema))
    except ValueError:
        return "bad_attribute"


def clock_mark(seq: int, time_us: int, space: Space) -> ParsedMessage:
    """The message of a clock mark: it has a time and no words, so it matches nothing."""
    name = f"skyray clock mark {seq}"
    lon, lat = (space.west + space.east) / 2, (space.south + space.north) / 2
    return ParsedMessage(name, b"", lon, lat, None, None, None, None, time_us, "", name, PUBLISH)


def messages_of(
    record: Record, first_seq: int, space: Space, schema: AttributeSchema, log: os.PathLike[str]
) -> Iterator[ParsedMessage]:
    """The messages of a log record, from `first_seq` on; a clock mark is one.

    Raises
    ------
    CheckpointError
        If an admitted message is refused now, or a mark has no time.
    """
    if record.mark:
        if record.time_us is None or record.messages != 1:
            raise CheckpointError(f"{log}: the mark of a clock at message {first_seq:,} says no time")
        yield clock_mark(first_seq, record.time_us, space)
        return
    for line, ahead in zip(record.message_lines(), record.messages_ahead(), strict=True):
        parsed = parse_message(decode_object(line), space, schema)
        if isinstance(parsed, str):
            raise CheckpointError(f"{log}: an admitted message is refused now ({parsed}): {line!r}")
        yield parsed._replace(ahead=ahead)


def words_of(parsed: ParsedMessage) -> str:
    """The text whose words a message has; a deletion, and a message dated too far ahead, has none."""
    return "" if parsed.op == DELETE or parsed.ahead else parsed.text


def counts_of(parsed: ParsedMessage, vocabulary: Vocabulary) -> Mapping[str, int]:
    """How often a message has each term."""
    return vocabulary.count_terms(words_of(parsed))


def vector_of(parsed: ParsedMessage, vocabulary: Vocabulary, first_id: int = 0) -> TermVector:
    """Terms and weights of a message, of terms from `first_id` on (`Vocabulary.unit_vector`)."""
    return vocabulary.unit_vector(counts_of(parsed, vocabulary), first_id)


def rows_of(
    parsed: Sequence[ParsedMessage], vectors: TermColumns, first_seq: int, space: Space, window: Window
) -> Rows:
    """The messages of a batch of a live stream as its spout publishes them. O(messages + terms)."""
    messages = message_batch(parsed, vectors, first_seq, space, window)
    times = messages.event_time_us if window.kind == "time" else None
    ahead = np.array([one.ahead for one in parsed], np.bool_)
    names = Names.of([one.message_id for one in parsed])
    return Rows(messages, names, times, objects=objects_of(parsed), ahead=ahead if ahead.any() else None)


def objects_of(parsed: Sequence[ParsedMessage]) -> Objects:
    return Objects([one.object_id for one in parsed], np.array([one.op == DELETE for one in parsed], np.bool_))


def message_batch(
    parsed: Sequence[ParsedMessage], vectors: TermColumns, first_seq: int, space: Space, window: Window
) -> MessageBatch:
    """Messages as columns, with consecutive seqs. O(messages + terms).

    A message without time, or dated too far ahead, gets `NO_FLOOR`: it is in no time window and does not advance stream
    time.
    """
    seq = np.arange(first_seq, first_seq + len(parsed), dtype=np.int64)
    lon = np.array([one.lon for one in parsed], np.float64)
    lat = np.array([one.lat for one in parsed], np.float64)
    x, y = space.project(lon, lat)
    points = [(one.lon, one.lat, one.lon, one.lat) for one in parsed]
    sides = [(one.west, one.south, one.east, one.north) for one in parsed]
    boxes = [point if None in side else side for point, side in zip(points, sides, strict=True)]
    west, south, east, north = np.array(boxes, np.float64).reshape(len(parsed), 4).T.copy()
    untimed = (one.ahead or one.event_time_us is None for one in parsed)
    times = [NO_FLOOR if none else one.event_time_us for none, one in zip(untimed, parsed, strict=True)]
    times = np.array(times, np.int64)
    life = window.lives(seq, times)
    width = max((len(one.attributes) for one in parsed), default=0)
    missing = (None,) * width  # of clock marks
    keys = [[key_of(value) for value in one.attributes or missing] for one in parsed]
    keys = np.array(keys, np.int64).reshape(len(parsed), width) if width else NO_KEYS
    batch = MessageBatch(
        seq, x, y, west, south, east, north, life, vectors.offsets, vectors.terms, vectors.weights, vectors.counts,
        times, keys, space.vectors(lon, lat),
    )  # fmt: skip
    return join_messages([batch, batch.take(np.zeros(0, np.int64))])  # stores points without boxes
