"""Lines of JSON: what stands before a row says nothing, and is the same at every door."""

import json

import pytest

from matching.decoding import bare, decode_object, is_deep
from matching.validate import MessageDecoder
from spouts.lines import read_rows

MARK, RECORD = b"\xef\xbb\xbf", b"\x1e"
ROW = {"id": "a", "text": "ramen", "lon": 139.6, "lat": 35.6}
LINE = json.dumps(ROW).encode()
BEFORE = [b"", MARK, RECORD, RECORD + MARK, MARK + RECORD, MARK + MARK, b" \t\r\v\f", RECORD + b" " + RECORD]


@pytest.mark.parametrize("before", BEFORE)
def test_bare_line_begins_with_its_row(before):
    assert bare(before + LINE + b"\r\n") == LINE + b"\r\n"
    assert bare(before) == bare(before + b"\r\n") == b"", "there is no row"
    assert decode_object(before + LINE) == ROW and decode_object(before) == "empty_line"
    assert getattr(MessageDecoder({"text": "text"}).decode(before + LINE), "text", None) == "ramen"


def test_bare_line_that_is_no_row_says_so_as_ever():
    for line in (b"\x00" + LINE, b"\xff\xfe" + LINE, b"x" + MARK + LINE, LINE + MARK, LINE + RECORD):
        assert bare(line) == line and isinstance(decode_object(line), str)


def test_file_of_lines_is_read_whatever_stands_before_them(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"\n".join([before + LINE for before in BEFORE] + BEFORE))
    assert list(read_rows(path)) == [(number, ROW) for number in range(1, len(BEFORE) + 1)]


def test_brackets_in_texts_are_no_depth():
    assert not is_deep(b'"' + b"[" * 1_000 + b'"') and not is_deep(b"")
