"""Programs of filters: the conditions of a subscription beside keywords and place, compiled to int64 words.

The first word of a program is the number of words that follow. Then come instructions, each a head (operation,
argument, number of its words) and its words. The argument is in parentheses; floats are stored as their bits:

- `WITHIN` (attribute): first and last key. `ANY_OF`, `NONE_OF` (attribute): keys, ascending. `PRESENT`, `ABSENT`
  (attribute): no words.
- `HAS_ANY`, `HAS_ALL`, `HAS_NONE` (first column of a list of categories, which has `MEMBERS`): keys, ascending. The
  argument of all of these is a column of the messages' keys.
- `DECREASED` (column): no words, or by how much at least. `INCREASED` (column): no words. `CHANGED` (first column): how
  many columns. They compare a version of an object with the one before it, and stand in no branch.
- `ASKED` (a bit for each of `matching.model.CHANGES`): the updates that the subscription asks for; no words. It stands
  first, and only where these are not `USUAL`. A message always satisfies it, and what compares versions:
  `matching.version_conditions` tests that.
- `AT_LEAST` (number of terms that a message needs), `WITHOUT` (0): terms, ascending.
- `EITHER` (how many, 0 for one), `NEITHER`: branches, of which so many have to hold, or none may; a branch is a program
  like the whole.
- `PHRASE` (most other words between): terms in the order in which they must appear, and `matching.pieces.JOINED_ID`
  between two that no space may separate.
- `CIRCLE`: lon, lat, radius in metres, x, y, z of the centre, largest squared chord.
- `POLYGON` (number of rings): numbers of corners, of bands and of members; southern edge, bands per degree; offsets of
  the rings, offsets of the bands; members; lon of all corners, then lat (`matching.geo.polygons`).

`matching.filter_fields` compiles the filter of a subscription; checkpoints and the write-ahead log have programs, so a
change of the format breaks them. Imports no kernels, since every process that checks subscriptions imports this file.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from matching.attributes import key_of
from matching.conditions import ANY_OF, HAS_ANY, NONE_OF, WITHIN, Condition, interval_of
from matching.model import ENTER, LEAVE, NO_WORDS, Int64

#: Operations beyond those of `matching.conditions`.
AT_LEAST, WITHOUT, CIRCLE, POLYGON, EITHER, NEITHER, PHRASE = range(5, 12)
ASKED = 15
#: Argument of `ASKED` that a program without one stands for: `enter` and `leave`.
USUAL = 1 << ENTER | 1 << LEAVE
#: Most groups within each other; `matching.query` allows fewer.
MAX_NESTED = 16
#: Layout of a head: operation in the bits from 0, argument from `ARGUMENT_AT`, number of words from `LENGTH_AT`.
ARGUMENT_AT, LENGTH_AT = 8, 32


class Instruction(NamedTuple):
    """An operation, its argument and its words."""

    operation: int
    argument: int
    words: Sequence[int]


def compile_filter(
    conditions: Sequence[Condition] = (),
    without: Sequence[int] = (),
    at_least: tuple[int, Sequence[int]] | None = None,
    shape: Instruction | None = None,
    query: Sequence[Instruction] = (),
    asked: int = USUAL,
) -> bytes:
    """The program of one subscription, as bytes of int64; empty if there is nothing to test.

    Parameters
    ----------
    conditions : sequence of Condition
    without : sequence of int      term ids that no message may have
    at_least : (int, sequence of int), optional
        Number n and term ids: a message must have at least n of these terms.
    shape : Instruction, optional
        `matching.filters.circle_instruction` or `polygon_instruction`.
    query : sequence of Instruction, optional
        `matching.query_programs.instructions_of_query`.
    asked : int
        Argument of `ASKED`.

    Notes
    -----
    O(words log words). Cheaper instructions come first.
    """
    made = [] if asked == USUAL else [Instruction(ASKED, asked, ())]
    made += map(condition_instruction, conditions)
    if without:
        made.append(Instruction(WITHOUT, 0, sorted(set(without))))
    if at_least is not None:
        made.append(Instruction(AT_LEAST, at_least[0], sorted(set(at_least[1]))))
    made += query
    if shape is not None:
        made.append(shape)
    return program_of(made)


def condition_instruction(condition: Condition) -> Instruction:
    """The instruction of a condition. O(values log values)."""
    values: Sequence[int] = ()
    if condition.operator == WITHIN:
        values = interval_of(condition)
    elif condition.operator in (ANY_OF, NONE_OF) or condition.of_versions or condition.operator >= HAS_ANY:
        values = sorted({key_of(value) for value in condition.values})
    column = condition.attribute if condition.column is None else condition.column
    return Instruction(condition.operator, column, values)


def branches_of(branches: Sequence[Sequence[Instruction]]) -> list[int]:
    """The words of an `EITHER` or `NEITHER` with these branches; one without instructions always holds."""
    programs = (program_of(one) for one in branches)
    return [word for program in programs for word in (np.frombuffer(program, np.int64).tolist() or [0])]


def program_of(instructions: Sequence[Instruction]) -> bytes:
    """The program of these instructions, as bytes of int64; empty if there are none."""
    words: list[int] = []
    for operation, argument, own in instructions:
        words += [operation | argument << ARGUMENT_AT | len(own) << LENGTH_AT, *own]
    return np.array([len(words), *words], np.int64).tobytes() if words else b""


def instructions_of(program: bytes) -> list[Instruction]:
    """The instructions of a program; [] for an empty one."""
    words, at, made = np.frombuffer(program, np.int64).tolist(), 1, []
    while at < len(words):
        head, end = words[at], at + 1 + (words[at] >> LENGTH_AT)
        made.append(Instruction(head & 0xFF, (head >> ARGUMENT_AT) & 0xFFFFFF, words[at + 1 : end]))
        at = end
    return made


def asked_in(program: bytes) -> int:
    """The updates that a subscription with this filter asks for: the argument of `ASKED`."""
    first = instructions_of(program)[:1]
    return first[0].argument if first and first[0].operation == ASKED else USUAL


def joined_programs(programs: Sequence[bytes]) -> tuple[Int64, Int64]:
    """`filter_offsets` (int64[n + 1]) and `filter_words` (int64[nnz]) of a table; both empty if all programs are."""
    joined = b"".join(programs)
    if not joined:
        return NO_WORDS, NO_WORDS
    offsets = np.zeros(len(programs) + 1, np.int64)
    np.cumsum([len(program) // 8 for program in programs], out=offsets[1:])
    return offsets, np.frombuffer(joined, np.int64)
