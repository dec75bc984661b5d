"""Tables by code point for `matching.words.cutting`: the normalised form of a character, and its class.

They are made from the functions of `matching.text`, and so follow the Unicode versions of Python and `regex`. A table
is filled page by page, when a text first needs the page: a stream needs a few dozen of the 4,352.
"""

import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
import regex

from matching.text import IGNORABLE, SPACE, normalise
from matching.text import UNSPACED as UNSPACED_SCRIPTS

#: Classes of a normalised code point.
OTHER, WORD, MARK, UNSPACED, UNSPACED_MARK, PICTURE, REGIONAL, LOW_LINE, GAP = range(9)
#: In `Characters.length`: the page is not filled, the kernel is not sure of the character, or it is ignored.
UNFILLED, UNSURE, IGNORED = 0, 254, 255
#: Most code points that one becomes.
LONGEST = 4
#: Code points of a page.
PAGE = 256

_CODE_POINTS = 0x110000
_CLASSES = (
    (UNSPACED, regex.compile(rf"[{UNSPACED_SCRIPTS}&&[\p{{L}}\p{{N}}]]", regex.V1)),
    (WORD, regex.compile(r"[\p{L}\p{N}]")),
    (UNSPACED_MARK, regex.compile(rf"[{UNSPACED_SCRIPTS}&&\p{{M}}]", regex.V1)),
    (MARK, regex.compile(r"\p{M}")),
    (PICTURE, regex.compile(r"\p{Extended_Pictographic}")),
    (REGIONAL, regex.compile(r"\p{RI}")),
    (LOW_LINE, regex.compile("_")),
    (GAP, regex.compile(f"[{SPACE}]")),
)
_DOT_ABOVE = "\u0307"
#: Halfwidth voice marks: letters by class that become marks.
_VOICE_MARKS = "\uff9e\uff9f"


class Characters(NamedTuple):
    """Tables by code point of raw text (`length`, `start`) and of normalised text (`kind`, `order`).

    length : uint8[code points]      number of code points that the character becomes, 1 to `LONGEST`, or a constant
    start : int32[code points]       where they begin in `pool`
    pool : int32[n]                  normalised code points
    kind : uint8[code points]        class
    order : uint8[code points]       canonical combining class
    classed, filled : bool[pages]    whether `kind` and `order`, or all tables, have the page
    """

    length: np.ndarray
    start: np.ndarray
    pool: np.ndarray
    kind: np.ndarray
    order: np.ndarray
    classed: np.ndarray
    filled: np.ndarray

    @classmethod
    def unfilled(cls) -> "Characters":
        """Tables without a page; memory is taken by the pages that are filled."""
        length, kind, order = (np.zeros(_CODE_POINTS, np.uint8) for _ in range(3))
        classed, filled = (np.zeros(_CODE_POINTS // PAGE, np.bool_) for _ in range(2))
        return cls(length, np.zeros(_CODE_POINTS, np.int32), np.zeros(0, np.int32), kind, order, classed, filled)

    def fill(self, pages: np.ndarray) -> "Characters":
        """The tables with these pages, none of which is filled; they change in place. Up to 5 ms a page."""
        if not pages.shape[0]:
            return self
        pool = self.pool.tolist()
        for page in pages.tolist():
            self._classify(page)
            first, plain = page * PAGE, np.array(_plain(page), np.int64)
            self.length[first + plain], self.start[first + plain] = 1, len(pool) + np.arange(plain.shape[0])
            pool += (first + plain).tolist()
            for code_point in (first + np.setdiff1d(np.arange(PAGE), plain)).tolist():
                becomes = _becomes(code_point)
                if isinstance(becomes, int):
                    self.length[code_point] = becomes
                    continue
                self.length[code_point], self.start[code_point] = len(becomes), len(pool)
                pool += map(ord, becomes)
                for each in map(ord, becomes):
                    self._classify(each // PAGE)
            self.filled[page] = True
        return self._replace(pool=np.array(pool, np.int32))

    def _classify(self, page: int) -> None:
        """Fill `kind` and `order` of a page, once."""
        if self.classed[page]:
            return
        self.classed[page] = True
        first, characters = page * PAGE, _characters_of(page)
        self.order[first : first + PAGE] = list(map(unicodedata.combining, characters))
        self.kind[first : first + PAGE] = OTHER
        for kind, pattern in reversed(_CLASSES):  # the first one that matches counts
            for found in pattern.finditer(characters):
                self.kind[first + found.start()] = kind


def _characters_of(page: int) -> str:
    return "".join(map(chr, range(page * PAGE, (page + 1) * PAGE)))


def _plain(page: int) -> list[int]:
    """Places in a page of characters that stay as they are: `_becomes` says so too, in twenty times the time."""
    characters, seconds = _characters_of(page), _seconds()
    ignorable = {place for found in IGNORABLE.finditer(characters) for place in range(*found.span())}
    return [
        place
        for place, character in enumerate(characters)
        if unicodedata.is_normalized("NFKC", character)
        and character.casefold() == character
        and not unicodedata.combining(character)
        and character not in seconds
        and character not in _VOICE_MARKS
        and not "\ud800" <= character <= "\udfff"
        and character != "\0"
        and place not in ignorable
    ]


def _becomes(code_point: int) -> str | int:
    """The normalised form of a character, or a constant where the kernel ignores it or is not sure.

    It is sure of a character whose forms at each step of `matching.text.normalise` stay as they are whatever stands
    beside them.
    """
    character = chr(code_point)
    if code_point == 0 or 0xD800 <= code_point < 0xE000 or character in _VOICE_MARKS:
        return UNSURE
    if IGNORABLE.fullmatch(character):
        return IGNORED
    composed, form = unicodedata.normalize("NFKC", character), normalise(character)
    folded = composed.casefold()
    steps_stay = all(map(_stays, (composed, folded, form))) and unicodedata.normalize("NFKC", folded) == form
    lone_dot = "i" in form and _DOT_ABOVE in form
    mark_changes = unicodedata.combining(character) and form != character  # marks are sorted before it does
    sure = steps_stay and not lone_dot and not mark_changes and 0 < len(form) <= LONGEST
    return form if sure else UNSURE


def _stays(text: str) -> bool:
    """Whether no character of a normalised text composes with one before it, and marks are in canonical order."""
    last = 0
    for character in text:
        order = unicodedata.combining(character)
        if character in _seconds() or unicodedata.normalize("NFKC", character) != character or (order and last > order):
            return False
        last = order
    return True


@cache
def _seconds() -> frozenset[str]:
    """Characters that may compose with the one before them; Hangul vowels and final consonants are some."""
    pairs = (unicodedata.decomposition(chr(code_point)) for code_point in range(_CODE_POINTS))
    canonical = (pair.split() for pair in pairs if pair and not pair.startswith("<"))
    found = {chr(int(pair[1], 16)) for pair in canonical if len(pair) == 2}
    return frozenset(found.union(map(chr, range(0x1161, 0x1176)), map(chr, range(0x11A8, 0x11C3))))
