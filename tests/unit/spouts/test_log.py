"""The log of a live stream: whole records are read, wherever it was cut off, and also while it grows."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.errors import CheckpointError, InputError
from matching.words.message_words import MessageTerms
from spouts.log import Admitted, LogReader, Record, read_records
from spouts.messages import MessageBlock, OpenBlock, columns_of
from spouts.parsed import keys_in, parse_message
from tests.support.logged import log_bytes, messages_in, parsed_of, record_of

ONE, TWO = ({"id": name, "text": f"{name} text", "lon": 1, "lat": 2} for name in ("one", "two"))
THREE = [record_of(0, 1, [ONE]), record_of(1, 3, [TWO], [(1, b"change")]), record_of(-1, 4, (), [(0, b"four")])]
SCHEMA = AttributeSchema.parse(["price:number", "note:text", "sort:category", "open:time"])
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=9)
LINE = st.binary(min_size=1, max_size=20).map(lambda line: line.replace(b"\n", b" ").rstrip(b"\r") or b"x")
ROW = st.fixed_dictionaries(
    {"text": TEXT.filter(str.strip), "lon": st.floats(-180, 180), "lat": st.floats(-90, 90)},
    optional={
        "id": TEXT,
        "time": st.integers(0, 2_000_000_000),
        "object_id": TEXT,
        "op": st.sampled_from(["publish", "delete"]),
        "price": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63),
        "sort": TEXT,
        "note": TEXT,
        "open": st.integers(0, 2_000_000_000),
        "sides": st.tuples(st.floats(-180, 0), st.floats(-90, 0), st.floats(0, 180), st.floats(0, 90)),
    },
)


def parsed(row, ahead=False):
    sides = dict(zip(("west", "south", "east", "north"), row.get("sides", ()), strict=False))
    found = parse_message(row | sides, schema=SCHEMA)
    assert not isinstance(found, str), found
    return found._replace(ahead=ahead)


def same(first, second):
    """Whether two records have the same fields and arrays."""
    plain = [record._replace(block=None, terms=None) for record in (first, second)]
    columns = [{} if one.block is None else columns_of(one.block, one.terms) for one in (first, second)]
    arrays = [{name: (array.dtype, array.tobytes()) for name, array in each.items()} for each in columns]
    return plain[0]._replace(checksum="") == plain[1]._replace(checksum="") and arrays[0] == arrays[1]


@given(st.lists(st.lists(st.tuples(ROW, st.booleans()) | LINE, min_size=1, max_size=5), max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_log_gives_back_what_was_written(tmp_path_factory, batches, data):
    path = tmp_path_factory.mktemp("log") / "log"
    told = []
    for number, entries in enumerate(batches):
        messages, changes = [], []
        for entry in entries:
            if isinstance(entry, bytes):
                changes.append((len(messages), entry))
            else:
                messages.append(parsed(*entry))
        places, lines = tuple(place for place, _ in changes), [line for _, line in changes]
        record = Record(number if messages else -1, number * 2, len(messages), places, lines)
        if messages:
            counts = data.draw(st.lists(st.integers(0, 3), min_size=len(messages), max_size=len(messages)))
            ids = np.arange(sum(counts), dtype=np.int32) * 70_000 - 2
            left_out = (np.array(counts, np.int32) * by for by in (0, 300))
            terms = MessageTerms(ids, np.concatenate([[0], np.cumsum(counts)]), *left_out)
            record = record._replace(block=MessageBlock.of(messages, SCHEMA), terms=terms)
        told.append((record, messages))
    path.write_bytes(log_bytes(*(record for record, _ in told)))
    found = [record for record, _, _ in read_records(path)]
    assert len(found) == len(told) and all(map(same, found, [record for record, _ in told]))
    for one, (record, messages) in zip(found, told, strict=True):
        assert messages_in([one]) == [message._replace(content=b"") for message in messages]
        if one.block is not None and one.terms is not None and record.terms is not None:
            made = [message.message_id == message.content.hex() for message in messages]
            assert (one.block.made is None and not any(made)) or one.block.made.tolist() == made
            assert one.terms.ids.tolist() == record.terms.ids.tolist() and one.terms.unknown.dtype == np.int32
        assert list(one.changes_from(7)) == [
            (7 + place, line) for place, line in zip(one.changes, one.lines, strict=True)
        ]


@given(st.lists(st.tuples(ROW, st.booleans()), max_size=5))
@settings(max_examples=60, deadline=None)
def test_block_has_each_message_while_it_is_open_and_when_it_is_closed(rows):
    messages = [parsed(*each) for each in rows]
    block = OpenBlock(SCHEMA)
    for message in messages:
        block.append(message)
    without = [message._replace(content=b"") for message in messages]
    assert [block.message(row) for row in range(len(block))] == without == block.closed().messages()
    plain = AttributeSchema.parse(["price:number", "sort:category", "open:time"])
    compared = MessageBlock.of(
        [one._replace(attributes=one.attributes[:1] + one.attributes[2:]) for one in messages], plain
    )
    assert np.array_equal(keys_in(block.closed()), keys_in(compared)), "a text has no key"
    silent = [message.ahead or message.op for message in messages]
    assert block.closed().words().strings() == [
        "" if no else one.text for no, one in zip(silent, messages, strict=True)
    ]
    assert not len(MessageBlock.of([], NO_ATTRIBUTES)) and MessageBlock.of([], SCHEMA).size_bytes < 100


def test_columns_that_no_message_needs_are_not_there():
    names = set(columns_of(MessageBlock.of(parsed_of([ONE]), NO_ATTRIBUTES)))
    assert names == {"id", "id_length", "text", "text_length", "lon", "lat", "time_us"}
    deleted = columns_of(MessageBlock.of([parsed(ONE), parsed(TWO | {"op": "delete"}, True)], SCHEMA))
    assert {"deleted", "ahead"} == {name for name in deleted if not name.startswith("attribute")} - names and deleted[
        "ahead"
    ].tolist() == [False, True]


def test_log_cut_off_anywhere_has_the_whole_records_before_the_cut(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(data := log_bytes(*THREE))
    found = list(read_records(path))
    assert all(map(same, [record for record, _, _ in found], THREE))
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        assert [end for _, _, end in read_records(path)] == [end for _, _, end in found if end <= cut]


def test_log_damaged_before_its_end_is_refused(tmp_path):
    path = tmp_path / "log"
    data = bytearray(log_bytes(*THREE))
    data[data.index(b"one")] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="is damaged at byte 0, and .* bytes follow"):
        list(read_records(path))


def test_log_that_grows_is_read_on_byte_by_byte(tmp_path):
    path = tmp_path / "log"
    data = log_bytes(*THREE)
    path.write_bytes(b"")
    reader, found = LogReader(path), []
    assert not reader.more
    with open(path, "ab") as file:
        for place in range(len(data)):
            file.write(data[place : place + 1])
            file.flush()
            assert reader.more
            record = reader.read()
            found += [] if record is None else [record.line]
    assert found == [1, 3, 4] and reader.offset == len(data) and not reader.more
    reader.close()


def test_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="the log cannot be read"):
        LogReader(tmp_path / "none")


def test_log_of_another_format_is_refused_and_named(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"last_seq":0,"line":1,"changes":[],"bytes":4,"xxh3":"0","before":""}\n{}\n')
    for read in (LogReader.read, LogReader.skim):
        with pytest.raises(CheckpointError, match="format 1 at byte 0, and this release reads format 2"):
            read(LogReader(path))


def test_a_bit_that_flips_in_any_byte_of_a_record_is_seen(tmp_path):
    path = tmp_path / "log"
    more = {"time_us": 7, "admitted": Admitted(("ramen",), 3), "positions": {"posts": {"0": (4, "t")}}}
    first = record_of(1, 3, [parsed_of([ONE])[0]._replace(ahead=True), TWO], [(1, b"c")], **more)
    path.write_bytes(data := log_bytes(first, record_of(2, 4, [ONE], time_us=8)))
    whole = list(read_records(path))
    for byte in range(len(data)):
        changed = bytearray(data)
        changed[byte] ^= 1 << byte % 8
        path.write_bytes(changed)
        found = []
        with suppress(CheckpointError):
            found += read_records(path)
        expected = whole[: 0 if byte < whole[0][2] else 1]
        assert [end for _, _, end in found] == [end for _, _, end in expected], f"byte {byte}"


def test_a_record_that_was_cut_out_is_missed(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(data := log_bytes(*THREE))
    (_, _, first), (_, _, second), _ = read_records(path)
    for left in (data[first:], data[:first] + data[second:]):
        path.write_bytes(left)
        found = []
        with suppress(CheckpointError):
            found += read_records(path)
        assert [record.line for record, _, _ in found] == ([1] if left.startswith(data[:first]) else [])
