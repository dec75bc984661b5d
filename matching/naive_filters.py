"""The oracle of filters: reads the program of a subscription, in plain Python, and tests messages one by one.

It must share no code with `matching.filters`; `matching.filter_programs` documents the format of programs. Shapes and
metres are those of `matching.naive_shapes`. Whether a program means what a user wrote is another oracle's matter
(`tests.support.naive_conditions`).
"""

import math
import struct
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from matching.naive_shapes import in_circle, in_polygon, unit_vector

_MISSING = -(2**63)
#: Among the words of a message and of a phrase: no space is between the two beside it. Two of them stand between the
#: columns of a message.
_JOINED = -3
#: Behind a hashtag, -7 less a word stands for one of the words that it names.
_NAMED = -7
_NAMES = ("within", "any of", "none of", "present", "absent", "at least", "without", "circle", "polygon")
_NAMES += ("either", "neither", "phrase", "decreased", "increased", "changed", "asked")
#: Those that say nothing of a message by itself.
_OF_VERSIONS = ("decreased", "increased", "changed")
#: Operations of lists of categories, and how many keys a message has of such a list.
_OF_LISTS, _MEMBERS = {32: "has any", 33: "has all", 34: "has none"}, 16


class NaiveInstruction(NamedTuple):
    """One instruction: its name, its argument and its words."""

    name: str
    argument: int
    words: tuple[int, ...]


def instructions_of(program: Sequence[int]) -> tuple[NaiveInstruction, ...]:
    """The instructions of a program, an empty one included. O(words)."""
    return tuple(_cut(program[1:]))


def _cut(words: Sequence[int]) -> Iterator[NaiveInstruction]:
    at = 0
    while at < len(words):
        length, argument, operation = words[at] >> 32, words[at] // 256 % 2**24, words[at] % 256
        yield NaiveInstruction(
            _OF_LISTS.get(operation) or _NAMES[operation], argument, tuple(words[at + 1 : at + 1 + length])
        )
        at += 1 + length


def holds(
    one: NaiveInstruction,
    lon: float,
    lat: float,
    terms: Collection[int],
    keys: Sequence[int],
    order: Sequence[int] = (),
) -> bool:
    """Whether a message satisfies an instruction.

    Parameters
    ----------
    one : NaiveInstruction
    lon, lat : float            degrees; the centre of a range message
    terms : collection of int   of the message
    keys : sequence of int      of its attributes
    order : sequence of int     its terms in order of appearance, below 0 for a word without one, -3 for what joins two,
                                behind a hashtag the words that it names
    """
    name, argument, words = one
    if name == "asked" or name in _OF_VERSIONS:
        return True
    if name in ("either", "neither"):
        held = sum(all(holds(each, lon, lat, terms, keys, order) for each in branch) for branch in branches_of(one))
        return held >= max(1, argument) if name == "either" else not held
    if name == "phrase":
        columns = [column for read in _readings(order) for column in _columns(read)]
        return any(_others(one[start:], words) <= argument for one in columns for start in range(len(one)))
    if name in ("at least", "without"):
        common = sum(term in terms for term in words)
        return common >= argument if name == "at least" else common == 0
    if name == "circle":
        centre_lon, centre_lat, radius_m = map(_number, words[:3])
        return in_circle(unit_vector(lon, lat), unit_vector(centre_lon, centre_lat), radius_m)
    if name == "polygon":
        return in_polygon(rings_of(one), lon, lat)
    if name.startswith("has"):
        shared = set(words) & set(keys[argument : argument + _MEMBERS])
        return len(shared) == len(words) if name == "has all" else bool(shared) == (name == "has any")
    key = keys[argument] if argument < len(keys) else _MISSING
    if name == "none of":
        return key == _MISSING or key not in words
    if name == "absent" or key == _MISSING:
        return name == "absent" and key == _MISSING
    return name == "present" or (words[0] <= key <= words[1] if name == "within" else key in words)


def happened(one: NaiveInstruction, before: Sequence[int], now: Sequence[int]) -> bool:
    """Whether a version of an object satisfies an instruction against the one before, by the keys of both.

    One that says nothing of versions is satisfied. A value that one of the two lacks satisfies nothing.
    """
    name, column, words = one
    if name not in _OF_VERSIONS:
        return True
    columns = range(column, column + (words[0] if name == "changed" else 1))
    old, new = ([keys[at] if at < len(keys) else _MISSING for at in columns] for keys in (before, now))
    if _MISSING in (old[0], new[0]):
        return False
    if name == "changed":
        return old != new
    if name == "increased":
        return new[0] > old[0]
    return _of_key(old[0]) - _of_key(new[0]) >= _number(words[0]) if words else new[0] < old[0]


def _of_key(key: int) -> float:
    """The number of a key: its bits, of a negative one all but the sign turned over."""
    return _number(key if key >= 0 else -1 - key - 2**63)


def branches_of(group: NaiveInstruction) -> list[list[NaiveInstruction]]:
    """The branches of an instruction that has some."""
    found, at = [], 0
    while at < len(group.words):
        end = at + 1 + group.words[at]
        found.append(list(_cut(group.words[at + 1 : end])))
        at = end
    return found


def _readings(order: Sequence[int]) -> list[list[int]]:
    """The words of a message with its hashtags as they stand, and with the words that these name in their place."""
    names_some = [after < _JOINED <= word for word, after in zip(order, [*order[1:], 0], strict=False)]
    as_they_stand = [word for word in order if word >= _JOINED]
    as_named = [
        _NAMED - word if word < _JOINED else word for word, passed in zip(order, names_some, strict=True) if not passed
    ]
    return [as_they_stand, as_named]


def _columns(order: Sequence[int]) -> list[list[int]]:
    """The words of each column of a message."""
    found: list[list[int]] = [[]]
    for word in order:
        if word == _JOINED and found[-1][-1:] == [_JOINED]:
            found[-1].pop()
            found.append([])
        else:
            found[-1].append(word)
    return found


def _others(order: Sequence[int], words: Sequence[int]) -> float:
    """How many others stand between words that begin with the first of them; infinity if they do not follow each other.

    What joins two is no word of its own.
    """
    if not order or order[0] != words[0]:
        return math.inf
    left, others = list(words[1:]), 0
    for word in order[1:]:
        if not left:
            break
        if word == left[0]:
            del left[0]
        elif word != _JOINED:
            others += 1
    return math.inf if left else others


def rings_of(polygon: NaiveInstruction) -> list[list[tuple[float, float]]]:
    """The rings of a polygon, lon and lat of each corner."""
    rings, words = polygon.argument, polygon.words
    corners = words[0]
    starts = words[5 : 6 + rings]
    numbers = [_number(word) for word in words[len(words) - 2 * corners :]]
    places = list(zip(numbers[:corners], numbers[corners:], strict=True))
    return [places[first:last] for first, last in zip(starts, starts[1:], strict=False)]


def _number(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<q", bits))[0]
