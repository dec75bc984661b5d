"""Checks single messages, and makes batches of those that were checked (`spouts.messages`)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from matching.attributes import NO_ATTRIBUTES, AttributeSchema, read_attributes
from matching.errors import CheckpointError
from matching.fields import MESSAGE_ROLES
from matching.languages import in_language
from matching.model import NO_KEYS, TERM, Float64, Int64, MessageBatch, join_messages
from matching.pieces import with_named
from matching.reserved import with_reserved
from matching.space import Space
from matching.validate import DELETE, ParsedMessage, RawMessage, message_row, with_attributes
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR, Window
from matching.words.beginnings import with_named_words
from matching.words.message_words import MessageTerms, weigh
from spouts.cutting import Rows
from spouts.log import Record
from spouts.messages import MessageBlock, keys_of
from spouts.versions import Objects


def parse_message(
    row: Any,
    space: Space | None = None,
    schema: AttributeSchema = NO_ATTRIBUTES,
    strict: bool = False,
    objects: bool = False,
    stem_language: str = "",
) -> ParsedMessage | str:
    """A message whose columns are named like the roles (`matching.fields.MESSAGE_ROLES`) and `lang`, or a reason code.

    An attribute's value that does not fit is missing and among the message's `misfits`; if `strict`, it is the reason
    `bad_attribute`. Of a stream of objects `"deleted": true` is an `op`, and a deletion that has no place may name its
    object by `id`. `stem_language`: that of the stream, "" for none.
    """
    if not isinstance(row, Mapping):
        return "wrong_type"
    if objects and row.get("deleted") is True:
        row = {**row, "op": DELETE}
    if objects and row.get("lon") is None and row.get("object_id") in (None, ""):
        row = {**row, "object_id": row.get("id")}
    raw = RawMessage(*map(row.get, MESSAGE_ROLES), lang=row.get("lang"))
    parsed = message_row(raw, space, stem_language=stem_language)
    if isinstance(parsed, str) or not len(schema):
        return parsed
    read = read_attributes(row, schema)
    return "bad_attribute" if strict and read.misfits else with_attributes(parsed, read)


def deletion_of(object_id: str, space: Space) -> ParsedMessage:
    """The message that ends an object whose version has ended by time."""
    found = parse_message({"object_id": object_id, "deleted": True}, space, objects=True)
    assert isinstance(found, ParsedMessage), "it names an object"
    return found


def clock_mark(seq: int, time_us: int, space: Space) -> ParsedMessage:
    """The message of a clock mark: it has a time, and deletes nothing but itself, so that it meets nobody."""
    name = f"skyray clock mark {seq}"
    lon, lat = (space.west + space.east) / 2, (space.south + space.north) / 2
    return ParsedMessage(name, b"", lon, lat, None, None, None, None, time_us, "", name, DELETE)


def block_of(record: Record, first_seq: int, space: Space, log: os.PathLike[str]) -> tuple[MessageBlock, MessageTerms]:
    """The messages of a log record, from `first_seq` on, and their terms; a clock mark is one.

    Those that were removed (`spouts.log.Record.rows`) are set aside without content; the last of them has the stream
    time, as a clock mark has.

    Raises
    ------
    CheckpointError
        If a mark has no time.
    """
    if record.rows is not None:
        return _spread(record)
    if not record.mark:
        assert record.block is not None and record.terms is not None, "it has messages"
        return record.block, record.terms
    if record.time_us is None or record.messages != 1:
        raise CheckpointError(f"{log}: the mark of a clock at message {first_seq:,} says no time")
    block = MessageBlock.of([clock_mark(first_seq, record.time_us, space)], NO_ATTRIBUTES)
    return block, MessageTerms(np.zeros(0, TERM), np.zeros(2, np.int64), *(np.zeros(1, np.int32) for _ in range(2)))


def _spread(record: Record) -> tuple[MessageBlock, MessageTerms]:
    """The messages of a record of a base. O(all of them)."""
    assert record.rows is not None
    rows, count, time_us = record.rows.astype(np.int64), record.messages, record.time_us
    block, terms = record.block, record.terms
    if block is None or terms is None:
        none = np.zeros(0, np.int32)
        block, terms = (
            MessageBlock.of([], NO_ATTRIBUTES),
            MessageTerms(np.zeros(0, TERM), np.zeros(1, np.int64), none, none),
        )
    block = block.spread(rows, count, 0 if time_us is None else time_us)
    lengths, left_out = np.zeros(count + 1, np.int64), np.zeros((2, count), np.int32)
    lengths[rows + 1] = np.diff(terms.offsets)
    left_out[:, rows] = terms.unknown, terms.stopped
    if time_us is not None and rows.shape[0] < count:
        last = int(np.setdiff1d(np.arange(count), rows)[-1])
        deleted = np.zeros(count, np.bool_) if block.deleted is None else block.deleted
        deleted[last], block.ahead[last] = True, False  # type: ignore[index]
        block = block.having(deleted=deleted)
    return block, MessageTerms(terms.ids, np.cumsum(lengths), *left_out)


def counts_of(parsed: ParsedMessage, vocabulary: Vocabulary) -> Mapping[str, int]:
    """How often a message has each term: a deletion, and a message dated too far ahead, has none."""
    return {} if parsed.op == DELETE or parsed.ahead else vocabulary.count_terms(in_language(parsed.text, parsed.lang))


def rows_of(
    block: MessageBlock, terms: MessageTerms, vocabulary: Vocabulary, first_seq: int, space: Space, window: Window
) -> Rows:
    """The messages of a batch of a live stream as its spout publishes them. O(messages + terms)."""
    messages = batch_of(block, terms, vocabulary, first_seq, space, window)
    times = messages.event_time_us if window.kind == "time" else None
    return Rows(messages, block.ids, times, objects=objects_of(block), ahead=block.ahead)


def objects_of(block: MessageBlock) -> Objects:
    """What messages are about."""
    names = block.ids.strings()
    if block.objects is not None:
        names = [other or name for other, name in zip(block.objects.strings(), names, strict=True)]
    return Objects(names, np.zeros(len(block), np.bool_) if block.deleted is None else block.deleted)


def deletions_in(block: MessageBlock) -> np.ndarray:
    """bool[n]: which messages of a stream of objects delete one; not those dated too far ahead."""
    deleted = objects_of(block).deleted
    return deleted if block.ahead is None else deleted & ~block.ahead


def batch_of(
    block: MessageBlock, words: MessageTerms, vocabulary: Vocabulary, first_seq: int, space: Space, window: Window
) -> MessageBatch:
    """Messages as a batch, with consecutive seqs. O(messages + words).

    Visible ones have the reserved term beside their own: all but deletions, and those dated too far ahead. Beside their
    words messages have those that their hashtags name, and the beginnings that the vocabulary has
    (`matching.words.beginnings`). A message without time, or dated
    too far ahead, gets `NO_FLOOR`: it is in no time window and does not advance stream time.
    """
    seq = np.arange(first_seq, first_seq + len(block), dtype=np.int64)
    lon, lat, times = block.lon, block.lat, block.time_us
    boxes = [lon, lat, lon, lat]
    if block.sides is not None:
        point = np.isnan(block.sides[:, :1])
        boxes = list(np.where(point, np.stack(boxes, axis=1), block.sides).T.copy())
    if block.ahead is not None:
        times = np.where(block.ahead, NO_FLOOR, times)
    batch = weighed(seq, lon, lat, boxes, times, keys_in(block), ~block.silent, words, vocabulary, space, window)
    return batch if block.sides is None else join_messages([batch])  # stores points without boxes


def keys_in(block: MessageBlock) -> Int64:
    """Keys of the attributes of messages, int64[n, width]."""
    columns = [keys for column in block.attributes if (keys := keys_of(column)).shape[1]]
    return np.concatenate(columns, axis=1) if columns else NO_KEYS


def weighed(
    seq: Int64,
    lon: Float64,
    lat: Float64,
    boxes: Sequence[Float64],
    times: Int64,
    keys: Int64,
    visible: np.ndarray,
    words: MessageTerms,
    vocabulary: Vocabulary,
    space: Space,
    window: Window,
) -> MessageBatch:
    """A batch of columns: `boxes` has west, south, east, north, and `times` `NO_FLOOR` where a message has none."""
    x, y = space.project(lon, lat)
    found = with_named_words(words.ids, words.offsets, weigh(words, vocabulary.idf))
    if vocabulary.grows:
        rows = np.arange(seq.shape[0]).repeat(words.offsets[1:] - words.offsets[:-1])
        found = vocabulary.beginnings.added_to(vocabulary, with_named(words.ids), rows, found)
    terms = with_reserved(vocabulary.reserved, visible, found.offsets, found.terms, found.weights, found.counts)
    life, vectors = window.lives(seq, times), space.vectors(lon, lat)
    west, south, east, north = boxes
    return MessageBatch(
        seq, x, y, west, south, east, north, life, *terms, times, keys, vectors, words.offsets, words.ids
    )
