"""The log of a live stream: whole records are read, wherever it was cut off, and also while it grows."""

import json
from contextlib import suppress

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.errors import CheckpointError, InputError
from spouts.log import Admitted, LogReader, checksum_in, encode_record, read_records

THREE = [([b"one"], [], 1, 0), ([b"two\n", b"three\r\n"], [0], 3, 1), ([b"four"], [0], 4, -1)]


def log_of(path, *records):
    data, before = b"", ""
    for record in records:
        data += (encoded := encode_record(*record, before=before))
        before = checksum_in(encoded)
    path.write_bytes(data)
    return data


def of_earlier_release(data, **changes):
    """A record without fields that earlier releases did not write, its checksum as theirs."""
    head, lines = data.split(b"\n", 1)
    fields = {name: value for name, value in json.loads(head).items() if name != "before"} | changes
    fields = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(fields | {"xxh3": xxhash.xxh3_64_hexdigest(lines)}).encode() + b"\n" + lines


LINE = st.binary(min_size=1, max_size=20).map(lambda line: line.replace(b"\n", b" ").rstrip(b"\r") or b"x")


@given(st.lists(st.lists(st.tuples(LINE, st.booleans()), min_size=1, max_size=4), max_size=5))
@settings(max_examples=50, deadline=None)
def test_log_gives_back_what_was_written(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("log") / "log"
    told = []
    for number, lines in enumerate(records):
        changes = [place for place, (_, is_change) in enumerate(lines) if is_change]
        told.append(([line for line, _ in lines], changes, number, number * 2))
    log_of(path, *told)
    found = [record for record, _, _ in read_records(path)]
    assert [(one.lines, list(one.changes), one.line, one.last_seq) for one in found] == told
    for one, lines in zip(found, records, strict=True):
        assert one.message_lines() == [line for line, is_change in lines if not is_change]
        places = [sum(not earlier for _, earlier in lines[:place]) for place in one.changes]
        assert list(one.changes_from(7)) == [(7 + n, one.lines[p]) for n, p in zip(places, one.changes, strict=True)]


def test_log_cut_off_anywhere_has_the_whole_records_before_the_cut(tmp_path):
    path = tmp_path / "log"
    data = log_of(path, *THREE)
    whole = [end for _, _, end in read_records(path)]
    assert [record.lines for record, _, _ in read_records(path)] == [[b"one"], [b"two", b"three"], [b"four"]]
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        assert [end for _, _, end in read_records(path)] == [end for end in whole if end <= cut]


def test_log_damaged_before_its_end_is_refused(tmp_path):
    path = tmp_path / "log"
    data = bytearray(log_of(path, *THREE))
    data[data.index(b"one")] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="is damaged at byte 0, and .* bytes follow"):
        list(read_records(path))


def test_log_that_grows_is_read_on_byte_by_byte(tmp_path):
    path = tmp_path / "log"
    data = log_of(path, *THREE)
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


def test_log_says_which_messages_were_set_aside_and_of_an_earlier_release_none_were(tmp_path):
    path = tmp_path / "log"
    data = log_of(path, ([b"m0", b"change", b"m1", b"m2"], [1], 4, 2, None, False, [2]))
    ((record, _, _),) = read_records(path)
    assert record.messages_ahead() == [False, True, False]
    path.write_bytes(of_earlier_release(data, ahead=None))
    ((record, _, _),) = read_records(path)
    assert record.messages_ahead() == [False] * 3 and record.message_lines() == [b"m0", b"m1", b"m2"]
    assert not record.checksum


def test_a_bit_that_flips_in_any_byte_of_a_record_is_seen(tmp_path):
    path = tmp_path / "log"
    more = (7, False, [0], Admitted(("ramen",), 3), {"posts": {"0": (4, "t")}})
    data = log_of(path, ([b"m0", b"c", b"m1"], [1], 3, 1, *more), ([b"m2"], [], 4, 2, 8))
    whole = list(read_records(path))
    first, second = whole[0][2], len(data)
    for byte in range(second):
        changed = bytearray(data)
        changed[byte] ^= 1 << byte % 8
        path.write_bytes(changed)
        found = []
        with suppress(CheckpointError):
            found += read_records(path)
        assert found == whole[: 0 if byte < first else 1], f"byte {byte}"


def test_a_record_that_was_cut_out_is_missed_and_one_of_an_earlier_release_is_read(tmp_path):
    path = tmp_path / "log"
    data = log_of(path, *THREE)
    (_, _, first), (_, _, second), _ = read_records(path)
    for left in (data[first:], data[:first] + data[second:]):
        path.write_bytes(left)
        found = []
        with suppress(CheckpointError):
            found += read_records(path)
        assert [record.lines for record, _, _ in found] == ([[b"one"]] if left.startswith(data[:first]) else [])
    earlier = of_earlier_release(data[:first])
    before = json.loads(earlier.split(b"\n")[0])["xxh3"]
    path.write_bytes(earlier + encode_record(*THREE[1], before=before))
    assert [record.lines for record, _, _ in read_records(path)] == [[b"one"], [b"two", b"three"]]
