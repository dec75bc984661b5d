"""The number of the tokeniser: which rules and tables cut a text into words.

Ids of terms are only good for those who cut texts alike, so a folder of words or messages keeps the number in its
`manifest.json`, and is read by a release of the same one. Tables come with Python (normal forms, HTML entities) and
`regex` (classes of characters).
"""

import unicodedata
import zlib
from functools import cache

import regex

from matching.text import IGNORABLE, SPACE, UNSPACED

#: Counted up whenever `matching.text` cuts any text otherwise than before.
RULES = 4
#: The characters whose classes are compared: the two planes that scripts are in, and every sixteenth ideograph.
_COMPARED = (*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x34000, 16))
_LETTERS = r"\p{L}\p{N}\p{M}\p{Extended_Pictographic}\p{RI}"
_CLASSES = (*(regex.compile(f"[{one}]+") for one in (_LETTERS, UNSPACED, SPACE)), IGNORABLE)


@cache
def tokeniser_number() -> str:
    """The number of this process, `RULES-UNICODE-CLASSES`: the rules, Python's Unicode version, a checksum of `regex`'s
    classes. 20 ms the first time."""
    characters = "".join(map(chr, _COMPARED))
    classes = [place for each in _CLASSES for found in each.finditer(characters) for place in found.span()]
    return f"{RULES}-{unicodedata.unidata_version}-{zlib.crc32(repr(classes).encode()):08x}"


def is_of_this_tokeniser(number: str | None) -> bool:
    """Whether a folder with this number was cut as this process does; one without a number was not."""
    return number == tokeniser_number()
