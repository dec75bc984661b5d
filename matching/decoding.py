"""Lines of JSON become objects, or the reason why they are none.

What stands before a row in files and on the wire is passed over here (`bare`), so that every door passes over the same.
Used by `matching.validate`, through which others decode; read on there.
"""

import re
from typing import Any

import msgspec

from matching.reasons import MAX_LINE_BYTES

#: Before a row: blanks, the separator before each text of a sequence (RFC 8142), a byte order mark of UTF-8.
_BEFORE = re.compile(rb"(?:[ \t\r\n\v\f\x1e]|\xef\xbb\xbf)*")
_BARE_NOT_FINITE = re.compile(rb"[:\[,]\s*-?(?:NaN|Infinity)\b")
_HALF_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_OBJECT_DECODER = msgspec.json.Decoder(dict[str, Any])


def bare(line: bytes) -> bytes:
    """A line from where its row begins: without blanks, record separators and byte order marks. b"" if it has no row."""
    return line if line.startswith(b"{") else line[_BEFORE.match(line).end() :]  # type: ignore[union-attr]


def decode_object(line: bytes) -> dict[str, Any] | str:
    """One line of JSON as a dict, or the reason why it is none. Linear; never raises."""
    return decode(_OBJECT_DECODER, line)


def decode(decoder: msgspec.json.Decoder, line: bytes) -> Any:
    """What a decoder makes of one line, or the reason why it makes nothing of it. Linear; never raises."""
    if len(line) > MAX_LINE_BYTES:
        return "line_too_long"
    line = bare(line)
    try:
        return decoder.decode(line)
    except UnicodeDecodeError:
        return "nul_byte" if b"\0" in line else "bad_utf8"
    except (msgspec.DecodeError, RecursionError) as error:
        if not line:
            return "empty_line"
        if b"\0" in line:
            return "nul_byte"
        if "out of range" in str(error) or _BARE_NOT_FINITE.search(line):
            return "number_not_finite"
        if not _is_utf8(line):
            return "bad_utf8"
        # The decoder calls half a surrogate pair truncated input; a line that does end in a brace is not truncated.
        return "bad_utf8" if _HALF_SURROGATE.search(line) and line.rstrip().endswith(b"}") else "not_json"


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
