"""Lines of JSON become objects, or the reason why they are none.

What stands before a row in files and on the wire is passed over here (`bare`), so that every door passes over the same.
How deep a row may be nested is a property of the row, checked here too: decoders and encoders fail where the stack
ends, which is elsewhere for each caller.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from matching.reasons import MAX_DEPTH, MAX_LINE_BYTES

#: Before a row: blanks, the separator before each text of a sequence (RFC 8142), a byte order mark of UTF-8.
_BEFORE = re.compile(rb"(?:[ \t\r\n\v\f\x1e]|\xef\xbb\xbf)*")
_BARE_NOT_FINITE = re.compile(rb"[:\[,]\s*-?(?:NaN|Infinity)\b")
_HALF_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: What each byte adds to the depth, as int8.
_STEPS = bytes({ord("["): 1, ord("{"): 1, ord("]"): 255, ord("}"): 255}.get(byte, 0) for byte in range(256))
#: Bytes whose depths are counted together.
_BLOCK_BYTES = 2**20
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
    deepest, last = 0, 0
    for _, _, _, depth in _depths(data):
        deepest, last = max(deepest, int(depth.max())), int(depth[-1])
    return deepest > most and last == 0  # else something is not closed, and it is no JSON


def cut_deep(data: bytes, most: int = MAX_DEPTH) -> bytes:
    """JSON with 0 in place of each list and object that is nested more than `most` deep; as long as it was. Linear."""
    whole = np.frombuffer(data, np.uint8).copy()
    for first, _, steps, depth in _depths(data):
        found = whole[first : first + len(depth)]
        found[(depth > most) | ((steps < 0) & (depth == most))] = ord(" ")
        found[(steps > 0) & (depth == most + 1)] = ord("0")
    return whole.tobytes()


def has_more_members(array: bytes, most: int) -> bool:
    """Whether a JSON array has more than so many members. Linear, and holds no member."""
    if array.count(b",") < most:
        return False
    commas = 0
    for first, outside, _, depth in _depths(array):
        block = np.frombuffer(array, np.uint8, len(depth), first)
        commas += np.count_nonzero((block == ord(",")) & outside & (depth == 1))
        if commas >= most:
            return True
    return False


def _depths(data: bytes) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """JSON in blocks, so that little is held: of each the place of its first byte, and of its bytes whether they are
    outside texts (bool), what they add to the depth (int8), and the depth behind them (int32)."""
    data = data.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")  # so that every quote begins or ends a text
    quotes, depth = 0, 0
    for first in range(0, len(data), _BLOCK_BYTES):
        block = data[first : first + _BLOCK_BYTES]
        seen = np.cumsum(np.frombuffer(block, np.uint8) == ord('"'), dtype=np.uint8) + np.uint8(quotes)
        outside = (seen & 1) == 0
        steps = np.frombuffer(block.translate(_STEPS), np.int8) * outside
        depths = depth + np.cumsum(steps, dtype=np.int32)
        yield first, outside, steps, depths
        quotes, depth = int(seen[-1]) & 1, int(depths[-1])


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
