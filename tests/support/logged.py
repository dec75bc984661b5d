"""Records of the log of a live stream, made by hand and read again."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.validate import ParsedMessage
from matching.words.message_words import MessageTerms
from spouts.log import Record, checksum_in, encode_record
from spouts.messages import MessageBlock
from spouts.parsed import parse_message


def parsed_of(rows: Iterable[dict], schema: AttributeSchema = NO_ATTRIBUTES) -> list[ParsedMessage]:
    """Messages of rows without a fault."""
    found = []
    for row in rows:
        message = parse_message(row, schema=schema)
        assert not isinstance(message, str), (row, message)
        found.append(message)
    return found


def record_of(
    last_seq: int,
    line: int,
    rows: Sequence[dict | ParsedMessage] = (),
    changes: Sequence[tuple[int, bytes]] = (),
    **more: Any,
) -> Record:
    """A record of these messages, whose words are unknown; `changes` with the number of messages before each."""
    if rows:
        parsed = [row if isinstance(row, ParsedMessage) else parsed_of([row])[0] for row in rows]
        none = np.zeros(len(rows), np.int32)
        terms = MessageTerms(np.zeros(0, np.int32), np.zeros(len(rows) + 1, np.int64), none, none)
        more |= {"block": MessageBlock.of(parsed, NO_ATTRIBUTES), "terms": terms}
    places, lines = [place for place, _ in changes], [data for _, data in changes]
    return Record(last_seq, line, more.pop("messages", len(rows)), tuple(places), lines, **more)


def log_bytes(*records: Record, before: str = "") -> bytes:
    """A log of these records, or what is appended to one behind a record of the checksum `before`."""
    data = b""
    for record in records:
        data += (encoded := encode_record(record, before))
        before = checksum_in(encoded)
    return data


def messages_in(records: Iterable[Record]) -> list[ParsedMessage]:
    """The logged messages without clock marks."""
    return [message for record in records if record.block is not None for message in record.block.messages()]
