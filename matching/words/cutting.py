"""Cuts many texts into tokens at once: `matching.text.cut_words` as a kernel over UTF-8, with its table of tokens.

A text is read once into normalised code points with their classes (`matching.words.characters`), which are cut into
tokens; each token is looked up in an open-addressing table, or entered, and becomes a number, 0 for what stands between
two pieces of a word (`matching.pieces.JOINED`), and twice between two columns. The kernel is not sure of
a text with a rare entity, a long run of marks, or a character that changes with its neighbours; `cut_words` cuts that.
"""

import secrets
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int32, Int64, Names
from matching.pieces import BETWEEN_COLUMNS
from matching.text import MAX_TERM_CHARACTERS, cut_words
from matching.words.characters import (
    GAP,
    IGNORED,
    LONGEST,
    LOW_LINE,
    MARK,
    OTHER,
    PAGE,
    PICTURE,
    REGIONAL,
    UNFILLED,
    UNSPACED,
    UNSPACED_MARK,
    UNSURE,
    WORD,
    Characters,
)

#: Tokens, and bytes of tokens, from which the table is emptied before the next texts.
MOST_TOKENS, MOST_TOKEN_BYTES = 1 << 18, 1 << 24

#: Marks in a row from which the kernel is not sure: `matching.text.normalise` cuts longer runs.
_MANY_MARKS = 30
#: Bytes of the tokens of a normalised code point at most: a character of a run is in three, of four bytes each.
_BYTES_OF_ONE = 12
_AMPERSAND, _SEMICOLON, _NUMBER_SIGN, _AT, _FULL_STOP, _COLON, _SLASH, _PLUS = b"&;#@.:/+"
_C, _F, _G, _N, _E, _T = b"cfgnet"
_JOINED = 0
_BETWEEN_COLUMNS = ord(BETWEEN_COLUMNS)
_NOT_SURE = -1
_HASHED = 8  # a token of more bytes has its hash in the table instead of its bytes


class TokenTable(NamedTuple):
    """Distinct tokens, numbered from 1 in the order in which they were entered; number 0 is empty, and in no slot.

    data : uint8[n]             their UTF-8, one after the other
    starts : int64[tokens + 1]  where each begins
    slots : uint64[m, 2]        open addressing; the bytes or the hash of a token, then its length << 32 | number
    count : int64[1]            tokens
    seed : uint64               secret, so that no sender can choose tokens that collide
    """

    data: np.ndarray
    starts: np.ndarray
    slots: np.ndarray
    count: np.ndarray
    seed: Any

    @classmethod
    def empty(cls, tokens: int = 1 << 12, size_bytes: int = 1 << 16) -> "TokenTable":
        """A table with room for this many tokens, a power of two."""
        starts, slots = np.zeros(tokens + 1, np.int64), np.zeros((2 * tokens, 2), np.uint64)
        seed = np.uint64(secrets.randbits(64))
        return cls(np.zeros(size_bytes, np.uint8), starts, slots, np.ones(1, np.int64), seed)

    @property
    def size_bytes(self) -> int:
        """Of the tokens."""
        return int(self.starts[self.count[0]])

    def with_room(self, tokens: int, size_bytes: int) -> "TokenTable":
        """A table with room for so many tokens and bytes more; the same one if it has it. Amortised O(1) a token."""
        table, count = self, int(self.count[0])
        while table.starts.shape[0] <= count + tokens:
            starts = np.concatenate([table.starts, np.zeros(table.starts.shape[0] - 1, np.int64)])
            table = table._replace(starts=starts, slots=np.zeros((2 * table.slots.shape[0], 2), np.uint64))
        if table is not self:
            _rehash(table, self.slots)
        used, room = self.size_bytes, table.data.shape[0]
        if room < used + size_bytes:
            table = table._replace(data=np.concatenate([table.data, np.zeros(max(room, size_bytes), np.uint8)]))
        return table

    def entered(self, tokens: Sequence[str]) -> tuple["TokenTable", Int32]:
        """A table that has these tokens, too, and their numbers: int32[tokens]. Amortised O(bytes of the tokens)."""
        data, offsets = joined(tokens)
        table, numbers = self.with_room(len(tokens), data.shape[0]), np.empty(len(tokens), np.int32)
        _enter(data, offsets, table, numbers)
        return table, numbers

    def strings(self, first: int = 0, end: int | None = None) -> list[str]:
        """The tokens from a number on, up to another."""
        starts = self.starts[first : (int(self.count[0]) if end is None else end) + 1].tolist()
        data = self.data[starts[0] : starts[-1]].tobytes()
        return [data[start - starts[0] : end - starts[0]].decode() for start, end in pairwise(starts)]


class Cut(NamedTuple):
    """Tokens of texts, in order of appearance.

    tokens : int32[n]           numbers of a `TextCutter`
    offsets : int64[texts + 1]  cuts `tokens` into texts
    """

    tokens: Int32
    offsets: Int64


class TextCutter:
    """Cuts texts, and numbers their tokens; for one thread.

    Attributes
    ----------
    emptied : int
        How often the table was emptied. Numbers that were given before mean nothing after.
    unsure : int
        Texts that `matching.text.cut_words` cut.

    Notes
    -----
    1.2 us for an English tweet, 2.1 us for a text of several scripts, more while its tokens are new; for a text that
    `cut_words` cuts, its time. Memory: up to 16 bytes for each byte of the texts of a call, and some 40
    bytes for each token.
    """

    def __init__(self) -> None:
        self.emptied = self.unsure = 0
        self._characters = Characters.unfilled()
        self._table = TokenTable.empty()

    @property
    def count(self) -> int:
        """How many tokens have a number, the empty one among them."""
        return int(self._table.count[0])

    def strings(self, first: int = 0, end: int | None = None) -> list[str]:
        """The tokens from a number on, up to another."""
        return self._table.strings(first, end)

    def cut(self, texts: Names) -> Cut:
        """Tokens of texts, to the byte those of `matching.text.cut_words`. Linear in the bytes of the texts."""
        if self.count > MOST_TOKENS or self._table.size_bytes > MOST_TOKEN_BYTES:
            self._table = TokenTable.empty()
            self.emptied += 1
        offsets, data = texts
        if not data.flags.writeable:  # the kernel is compiled for one sort of array
            data = data.copy()
        most, rows = longest(offsets), offsets.shape[0] - 1
        code_points, kinds = np.empty(LONGEST * most, np.int32), np.empty(LONGEST * most, np.uint8)
        plain, pieces = np.empty(most, np.uint8), np.empty(LONGEST * most + 1, np.int32)
        ends, unsure = np.zeros(rows + 1, np.int64), np.zeros(rows, np.bool_)
        tokens, wanted = np.empty(data.shape[0] + 64, np.int32), np.zeros(self._characters.filled.shape[0], np.bool_)
        row = 0
        while True:
            scratch = code_points, kinds, plain, pieces
            row, length = _cut(data, offsets, row, self._characters, self._table, scratch, tokens, ends, unsure, wanted)
            if row == rows:
                break
            self._table = self._table.with_room(2 * length, _BYTES_OF_ONE * length)
            if tokens.shape[0] < ends[row] + 2 * length:
                tokens = np.concatenate([tokens, np.empty(tokens.shape[0] + 2 * length, np.int32)])
        self._characters = self._characters.fill(np.flatnonzero(wanted))
        cut = Cut(tokens[: ends[-1]], ends)
        return self._with_unsure(cut, texts, np.flatnonzero(unsure)) if np.count_nonzero(unsure) else cut

    def _with_unsure(self, cut: Cut, texts: Names, rows: Int64) -> Cut:
        """A cut with the tokens of these texts, which have none in it."""
        self.unsure += rows.shape[0]
        found = [list(chain.from_iterable(cut_words(texts.string(int(row))))) for row in rows]
        lengths = np.zeros(cut.offsets.shape[0] - 1, np.int64)
        lengths[rows] = list(map(len, found))
        self._table, numbers = self._table.entered([token for tokens in found for token in tokens])
        tokens = np.insert(cut.tokens, np.repeat(cut.offsets[rows], lengths[rows]), numbers)
        return Cut(tokens, cut.offsets + np.concatenate([[0], np.cumsum(lengths)]))


def joined(texts: Sequence[str]) -> tuple[np.ndarray, Int64]:
    """UTF-8 of texts, one after the other, and where each begins: uint8[n], int64[texts + 1]."""
    names = Names.of(texts)
    return names.data.copy(), names.offsets


def longest(offsets: Int64) -> int:
    """The largest length between offsets, 0 of none; `np.diff` takes ten times as long over one."""
    if offsets.shape[0] == 2:  # as of a message that comes alone: a reduction by NumPy takes 2 us
        return int(offsets[1] - offsets[0])
    return int((offsets[1:] - offsets[:-1]).max(initial=0))


@njit(cache=True, nogil=True)
def _cut(data, offsets, row, characters, table, scratch, tokens, ends, unsure, wanted):
    """Cut texts from a row on, until the room for tokens of one may not suffice.

    Parameters
    ----------
    data : uint8[n]
    offsets : int64[texts + 1]
    row : int
    characters : Characters
    table : TokenTable
    scratch : (int32[4 * bytes], uint8[4 * bytes], uint8[bytes], int32[4 * bytes + 1])
        For the longest text.
    tokens : int32[m]           filled from `ends[row]` on
    ends : int64[texts + 1]     where the tokens of each text end
    unsure : bool[texts]        set where the kernel is not sure; such a text has no tokens
    wanted : bool[pages]        set for pages that are not filled

    Returns
    -------
    int, int
        The row that is not cut, or the number of texts, and the code points of that row.
    """
    code_points, kinds, plain, pieces = scratch
    while row < offsets.shape[0] - 1:
        source, start, end = data, offsets[row], offsets[row + 1]
        for at in range(start, end):
            if data[at] == _AMPERSAND:
                end = _without_entities(data, start, end, plain)
                source, start = plain, 0
                break
        length = _NOT_SURE
        if end != _NOT_SURE:
            length = _normalise(source, start, end, characters, code_points, kinds, wanted)
        if length == _NOT_SURE:
            unsure[row] = True
            ends[row + 1] = ends[row]
        else:
            count, used = table.count[0], table.starts[table.count[0]]
            few_tokens = count + 2 * length >= table.starts.shape[0]
            few_bytes = used + _BYTES_OF_ONE * length > table.data.shape[0]
            if few_tokens or few_bytes or ends[row] + 2 * length > tokens.shape[0]:
                return row, length
            ends[row + 1] = _cut_one(code_points, kinds, length, table, pieces, tokens, ends[row])
        row += 1
    return row, 0


@njit_inner_no_refcount
def _without_entities(data, at, end, out):
    """Copy a text without its entities; returns the length, or `_NOT_SURE` where one is none of the commonest."""
    length = 0
    while at < end:
        byte = data[at]
        if byte == _AMPERSAND:
            close = _entity_end(data, at, end)
            if close > at:
                byte = _common_entity(data, at, close)
                if byte == 0:
                    return _NOT_SURE
                at = close
        out[length] = byte
        length += 1
        at += 1
    return length


@njit_inner_no_refcount
def _entity_end(data, at, end):
    """Place of the semicolon of the entity that begins at an ampersand; that of the ampersand if none does."""
    close = at + 1
    if close < end and data[close] == _NUMBER_SIGN:
        close += 1
        hexadecimal = close < end and (data[close] | 32) == 120
        close += hexadecimal
        first = close
        while close < end and (48 <= data[close] <= 57 or (hexadecimal and 97 <= (data[close] | 32) <= 102)):
            close += 1
        found = close > first
    else:
        first = close
        while close < end and (97 <= (data[close] | 32) <= 122 or (close > first and 48 <= data[close] <= 57)):
            close += 1
        found = 2 <= close - first <= 32
    return close if found and close < end and data[close] == _SEMICOLON else at


@njit_inner_no_refcount
def _common_entity(data, at, close):
    """The ASCII character of an entity, 0 for one that is not among the commonest."""
    length, second, third = close - at - 1, data[at + 1], data[at + 2]
    if length == 3 and second == 97 and third == 109 and data[at + 3] == 112:
        return 38  # amp
    if length == 2 and third == 116 and (second == 108 or second == 103):
        return 60 if second == 108 else 62  # lt, gt
    if length == 4 and second == 113 and third == 117 and data[at + 3] == 111 and data[at + 4] == 116:
        return 34  # quot
    if length == 3 and second == _NUMBER_SIGN and 48 <= third <= 57:
        code = 10 * (third - 48) + data[at + 3] - 48
        return code if code >= 32 else 0
    return 0


@njit_inner_no_refcount
def _normalise(data, at, end, characters, code_points, kinds, wanted):
    """Write the code points of a normalised text, and their classes; returns their number, or `_NOT_SURE`."""
    length = marks = last = 0
    filled = True
    while at < end:
        byte = data[at]
        if 0 < byte < 0x80 and characters.filled[0]:  # the same as below, in a quarter of the time
            at += 1
            code_points[length] = byte | 32 if 65 <= byte <= 90 else byte
            kinds[length] = characters.kind[code_points[length]]
            length += 1
            marks = last = 0
            continue
        code_point, size = _decode(data, at, end)
        at += size
        if size == 0:
            return _NOT_SURE
        becomes = characters.length[code_point]
        if becomes == IGNORED:
            continue
        if becomes == UNFILLED:
            wanted[code_point // PAGE] = True
            filled = False
            continue
        kind = characters.kind[code_point]
        marks = marks + 1 if _is_mark(kind) else 0
        if becomes == UNSURE or marks >= _MANY_MARKS:
            return _NOT_SURE
        start = characters.start[code_point]
        for place in range(start, start + becomes):
            normal = characters.pool[place]
            order = characters.order[normal]
            if order and last > order:
                return _NOT_SURE
            last = order
            code_points[length] = normal
            kinds[length] = characters.kind[normal]
            length += 1
    return length if filled else _NOT_SURE


@njit_no_refcount
def _decode(data, at, end):
    """The code point that begins at a place of UTF-8, and its bytes; 0 of them where it is cut off or malformed."""
    lead = np.int64(data[at])
    if lead < 0x80:
        return lead, 1
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if lead < 0xC2 or lead > 0xF4 or at + size > end:
        return np.int64(0), 0
    code_point = lead & (0x7F >> size)
    for place in range(at + 1, at + size):
        if data[place] & 0xC0 != 0x80:
            return np.int64(0), 0
        code_point = code_point << 6 | (np.int64(data[place]) & 0x3F)
    overlong = (size == 3 and code_point < 0x800) or (size == 4 and code_point < 0x10000)
    surrogate = 0xD800 <= code_point < 0xE000
    return (np.int64(0), 0) if overlong or surrogate or code_point > 0x10FFFF else (code_point, size)


@njit_inner_no_refcount
def _cut_one(code_points, kinds, length, table, pieces, tokens, count):
    """Append the tokens of one normalised text, two at most for a code point; returns the number of tokens then."""
    at, first = 0, count
    goes_on = False  # whether what comes stands behind a token without a space
    column_ends = False  # whether what comes is of another column than the tokens so far
    while at < length:
        kind, begin, named = kinds[at], at, True
        if kind == WORD:
            at = _link_end(code_points, kinds, begin, length)
            if at > begin:
                goes_on = False
                continue
            at = _name_end(code_points, kinds, begin, length)
            if at == begin:
                at += 1
                while at < length and (kinds[at] == WORD or _is_mark(kinds[at])):
                    at += 1
        elif kind == UNSPACED:
            count = _join(tokens, count, goes_on, column_ends and count > first)
            at, count = _cut_run(code_points, kinds, at, length, table, pieces, tokens, count)
            goes_on, column_ends = True, False
            continue
        elif kind == PICTURE:
            at += 1
        elif kind == REGIONAL and at + 1 < length and kinds[at + 1] == REGIONAL:
            at += 2
        elif kind == OTHER and not (at and _in_tag(kinds[at - 1])):
            at += 1
            named = False
            if code_points[begin] == _NUMBER_SIGN or code_points[begin] == _AT:
                while at < length and _in_tag(kinds[at]):
                    named |= kinds[at] != LOW_LINE
                    at += 1
            elif code_points[begin] == _FULL_STOP and _is_net(code_points, kinds, at, length):
                at, named = at + 3, True
        else:
            at += 1
            if kind == GAP:
                goes_on = False
                column_ends |= code_points[begin] == _BETWEEN_COLUMNS
            continue
        if named:
            count = _join(tokens, count, goes_on, column_ends and count > first)
            tokens[count] = _number_of(code_points, begin, at, table)
            count += 1
            goes_on, column_ends = True, False
    return count


@njit_no_refcount
def _join(tokens, count, once, twice):
    """Append what stands between the token before and the next one; returns the number of tokens then."""
    for _ in range(2 if twice else 1 if once else 0):
        tokens[count] = _JOINED
        count += 1
    return count


@njit_inner_no_refcount
def _name_end(code_points, kinds, at, length):
    """Where a name with signs behind its letter ends, such as `c++`; the place itself if none begins here."""
    letter, rest = code_points[at], length - at
    if letter in (_C, _G) and rest > 2 and code_points[at + 1] == _PLUS and code_points[at + 2] == _PLUS:
        return at + 3
    if letter in (_C, _F) and rest > 1 and code_points[at + 1] == _NUMBER_SIGN:
        return at if rest > 2 and _in_tag(kinds[at + 2]) else at + 2
    return at


@njit_inner_no_refcount
def _is_net(code_points, kinds, at, length):
    """Whether `net` is there, and nothing that goes on."""
    if length - at < 3 or code_points[at] != _N or code_points[at + 1] != _E or code_points[at + 2] != _T:
        return False
    return length - at == 3 or not _in_tag(kinds[at + 3])


@njit_inner_no_refcount
def _is_mark(kind):
    return kind in (MARK, UNSPACED_MARK)


@njit_inner_no_refcount
def _in_tag(kind):
    """Whether a tag has characters of this class."""
    return kind in (WORD, UNSPACED, LOW_LINE) or _is_mark(kind)


@njit_inner_no_refcount
def _cut_run(code_points, kinds, at, length, table, pieces, tokens, count):
    """Append the characters and the pairs of a run of a script without spaces; returns its end, and the number."""
    characters = 0
    while at < length and kinds[at] == UNSPACED:
        pieces[characters] = at
        characters += 1
        at += 1
        while at < length and _is_mark(kinds[at]):
            at += 1
    pieces[characters] = at
    for first in range(characters):
        for size in range(1, min(3, characters + 1 - first)):
            tokens[count] = _number_of(code_points, pieces[first], pieces[first + size], table)
            count += 1
    return at, count


@njit_inner_no_refcount
def _link_end(code_points, kinds, at, length):
    """Where the link that begins at a place ends; the place itself if none does."""
    rest = length - at
    first, end = code_points[at], at
    if first == 119 and rest > 4 and code_points[at + 1] == 119 and code_points[at + 2] == 119:  # www.
        if code_points[at + 3] == _FULL_STOP and _in_link(code_points, kinds, at + 4):
            end = at + 5
    elif first == 104 and rest > 6:  # http://, https://
        if code_points[at + 1] == 116 and code_points[at + 2] == 116 and code_points[at + 3] == 112:
            colon = at + 4 + (code_points[at + 4] == 115)
            if _is_authority(code_points, colon, length):
                end = colon + 3
    elif first == 102 and rest > 5 and code_points[at + 1] == 116 and code_points[at + 2] == 112:  # ftp://
        if _is_authority(code_points, at + 3, length):
            end = at + 6
    while at < end < length and _in_link(code_points, kinds, end):
        end += 1
    return end


@njit_inner_no_refcount
def _is_authority(code_points, at, length):
    """Whether `://` is there."""
    if at + 2 >= length:
        return False
    return code_points[at] == _COLON and code_points[at + 1] == _SLASH and code_points[at + 2] == _SLASH


@njit_inner_no_refcount
def _in_link(code_points, kinds, at):
    """Whether a link goes on through a character: a printable one of ASCII, a letter, digit or mark with spaces."""
    return 33 <= code_points[at] <= 126 or kinds[at] == WORD or kinds[at] == MARK


@njit_no_refcount
def _number_of(code_points, at, end, table):
    """Number of the token of these code points, which is entered if it is new; the table has room."""
    new = table.starts[table.count[0]]
    stop = new
    for place in range(at, min(end, at + MAX_TERM_CHARACTERS)):
        stop = _encode(code_points[place], table.data, stop)
    return _find_or_enter(table, new, stop)


@njit_no_refcount
def _encode(code_point, out, at):
    """Write a code point as UTF-8; returns the place behind it."""
    if code_point < 0x80:
        out[at] = code_point
        return at + 1
    size = 2 if code_point < 0x800 else 3 if code_point < 0x10000 else 4
    for place in range(at + size - 1, at, -1):
        out[place] = 0x80 | (code_point & 0x3F)
        code_point >>= 6
    out[at] = (0xF00 >> size) & 0xFF | code_point
    return at + size


@njit_inner_no_refcount
def _find_or_enter(table, new, stop):
    """Number of the token whose bytes stand behind the others, from `new` to `stop`; they stay there if it is new."""
    size, key = stop - new, _key_of(table, new, stop)
    mask = np.int64(table.slots.shape[0] - 1)
    slot = np.int64(_mixed(key ^ table.seed ^ np.uint64(size)) & np.uint64(mask))
    while table.slots[slot, 1] != 0:
        entry = table.slots[slot, 1]
        if table.slots[slot, 0] == key and np.int64(entry >> np.uint64(32)) == size:
            number = np.int64(entry & np.uint64(0xFFFFFFFF))
            if size <= _HASHED or _same(table.data, table.starts[number], new, size):
                return number
        slot = (slot + 1) & mask
    number = table.count[0]
    table.slots[slot, 0] = key
    table.slots[slot, 1] = np.uint64(size) << np.uint64(32) | np.uint64(number)
    table.starts[number + 1] = stop
    table.count[0] = number + 1
    return number


@njit_no_refcount
def _key_of(table, start, stop):
    """The bytes of a short token as a number, the seeded hash of a longer one."""
    key = digest = np.uint64(0)
    for place in range(start, stop):
        key = key << np.uint64(8) | np.uint64(table.data[place])
        if stop - start > _HASHED and (place - start) % 8 == 7:
            digest = _mixed(digest ^ key ^ table.seed)
            key = np.uint64(0)
    return key if stop - start <= _HASHED else _mixed(digest ^ key ^ table.seed)


@njit_no_refcount
def _mixed(value):
    """A bijection of 64 bits that spreads each of them."""
    value = (value ^ value >> np.uint64(32)) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ value >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    return value ^ value >> np.uint64(32)


@njit_no_refcount
def _same(data, one, other, size):
    place = 0
    while place < size and data[one + place] == data[other + place]:
        place += 1
    return place == size


@njit_no_refcount
def _enter(data, offsets, table, numbers):
    """Numbers of tokens that are given as UTF-8; the table has room."""
    for row in range(numbers.shape[0]):
        new = table.starts[table.count[0]]
        size = offsets[row + 1] - offsets[row]
        for place in range(size):
            table.data[new + place] = data[offsets[row] + place]
        numbers[row] = _find_or_enter(table, new, new + size) if size else _JOINED


@njit_no_refcount
def _rehash(table, slots):
    """Enter the slots of a smaller table, whose tokens are distinct."""
    mask = np.int64(table.slots.shape[0] - 1)
    for old in range(slots.shape[0]):
        if slots[old, 1] != 0:
            hashed = _mixed(slots[old, 0] ^ table.seed ^ slots[old, 1] >> np.uint64(32))
            slot = np.int64(hashed & np.uint64(mask))
            while table.slots[slot, 1] != 0:
                slot = (slot + 1) & mask
            table.slots[slot, 0], table.slots[slot, 1] = slots[old, 0], slots[old, 1]
