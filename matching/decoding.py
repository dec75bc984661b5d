"""Lines of JSON become objects, or the reason why they are none.

What stands before a row in files and on the wire is passed over here (`bare`), so that every door passes over the same.
How deep a row may be nested is a property of the row, checked here too: decoders and encoders fail where the stack
ends, which is elsewhere for each caller.
"""

import re
from typing import Any

import msgspec
import numpy as np

from matching.reasons import MAX_DEPTH, MAX_LINE_BYTES

#: Before a row: blanks, the separator before each text of a sequence (RFC 8142), a byte order mark of UTF-8.
_BEFORE = re.compile(rb"(?:[ \t\r\n\v\f\x1e]|\xef\xbb\xbf)*")
_BARE_NOT_FINITE = re.compile(rb"[:\[,]\s*-?(?:NaN|Infinity)\b")
_HALF_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: A text of JSON, or what is there of one that does not end.
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
#: What each byte adds to the depth, as int8.
_STEPS = bytes({ord("["): 1, ord("{"): 1, ord("]"): 255, ord("}"): 255}.get(byte, 0) for byte in range(256))
_OBJECT_DECODER = msgspec.json.Decoder(dict[str, Any])


def bare(line: bytes) -> bytes:
    """A line from where its row begins, behind blanks, record separators, byte order marks; b"" if it has no row."""
    return line if line.startswith(b"{") else line[_BEFORE.match(line).end() :]  # type: ignore[union-attr]


def decode_object(line: bytes) -> dict[str, Any] | str:
    """One line of JSON as a dict, or the reason why it is none. Linear; never raises."""
    return decode(_OBJECT_DECODER, line)


def decode(decoder: msgspec.json.Decoder, line: bytes) -> Any:
    """What a decoder makes of one line, or the reason why it makes nothing of it. Linear; never raises.

    A line that is nested more than `MAX_DEPTH` deep is `too_deep`, also in what the decoder skips.
    """
    if len(line) > MAX_LINE_BYTES:
        return "line_too_long"
    line = bare(line)
    try:
        found = decoder.decode(line)
    except UnicodeDecodeError:
        return "nul_byte" if b"\0" in line else "bad_utf8"
    except (msgspec.DecodeError, RecursionError) as error:
        if not line:
            return "empty_line"
        if isinstance(error, RecursionError) and is_deep(line):
            return "too_deep"
        if b"\0" in line:
            return "nul_byte"
        if "out of range" in str(error) or _BARE_NOT_FINITE.search(line):
            return "number_not_finite"
        if not _is_utf8(line):
            return "bad_utf8"
        # The decoder calls half a surrogate pair truncated input; a line that does end in a brace is not truncated.
        return "bad_utf8" if _HALF_SURROGATE.search(line) and line.rstrip().endswith(b"}") else "not_json"
    return "too_deep" if is_deep(line) else found


def is_deep(data: bytes, most: int = MAX_DEPTH) -> bool:
    """Whether lists and objects are nested more than `most` deep in JSON. 0.1 to 0.3 us for an ordinary row."""
    if len(data) - len(data.replace(b"[", b"").replace(b"{", b"")) <= most:  # a third of the time of `count`
        return False
    depth = np.cumsum(_steps(_TEXT.sub(b"", data)), dtype=np.int32)
    return bool(depth.max(initial=0) > most and depth[-1] == 0)  # else something is not closed, and it is no JSON


def cut_deep(data: bytes, most: int = MAX_DEPTH) -> bytes:
    """JSON with 0 in place of each list and object that is nested more than `most` deep; as long as it was. Linear."""
    steps = _steps(_TEXT.sub(lambda text: bytes(text.end() - text.start()), data))
    depth = np.cumsum(steps, dtype=np.int32)
    found = np.frombuffer(data, np.uint8).copy()
    found[(depth > most) | ((steps < 0) & (depth == most))] = ord(" ")
    found[(steps > 0) & (depth == most + 1)] = ord("0")
    return found.tobytes()


def _steps(data: bytes) -> np.ndarray:
    """What each byte of JSON without texts adds to the depth, int8[bytes]."""
    return np.frombuffer(data.translate(_STEPS), np.int8)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
