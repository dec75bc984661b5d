"""Retained messages in segments, indexed by word: what a subscription would have matched, condition by condition.

A segment has the columns of consecutive messages and the rows of each term. It is made once and never changes, so
questions read it while others are made. `SegmentConditions` tests one subscription with the messages of any segment.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from matching.conditions import DECREASED
from matching.filter_fields import ALL_KEYWORDS
from matching.filter_programs import (
    ASKED,
    AT_LEAST,
    CIRCLE,
    EITHER,
    NEITHER,
    PHRASE,
    POLYGON,
    WITHOUT,
    instructions_of,
    joined_programs,
    program_of,
)
from matching.filters import filters_of, passing
from matching.kind_table import Kind
from matching.model import (
    NO_ORDER,
    NO_WORDS,
    TERM,
    UNKNOWN_TERM,
    Float64,
    Int32,
    Int64,
    MessageBatch,
    Names,
    UInt8,
    empty,
)
from matching.storage.sorting import index_pairs
from matching.validate import ParsedSubscription
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR
from matching.words.message_words import MessageTerms

#: Fields of a segment that are no columns.
_NUMBERS = ("first", "latest_us")
#: Numbers of rows, for segments of usual length.
_ROWS = np.arange(1 << 18)
_ROWS.flags.writeable = False


class MessageSegment(NamedTuple):
    """Consecutive messages, n of them, and the rows of each term.

    first : int                        seq of the first message
    latest_us : int                    the latest of `time_us`
    id_offsets, ids : int64[n + 1], uint8[bytes]         the ids of the messages, as of `matching.model.Names`
    lon, lat : float64[n]
    sides : float64[n, 4]              west, south, east, north; NaN of a point; float64[0, 4] if all are points
    time_us : int64[n]                 `NO_FLOOR` where a message has none, or is dated too far ahead
    keys : int64[n, a]                 keys of the attributes that were declared then
    order_offsets, order : int64[n + 1], int32[words]    words in order of appearance; below 0 without an id
    term_offsets, terms : int64[n + 1], int32[nnz]       distinct terms of each message, ascending; of a visible one the
                                       reserved term is the last (`matching.reserved`)
    listed, list_offsets, rows : int32[t], int64[t + 1], int32[nnz]    ascending terms, and the rows that have each
    """

    first: int
    latest_us: int
    id_offsets: Int64
    ids: UInt8
    lon: Float64
    lat: Float64
    sides: Float64
    time_us: Int64
    keys: Int64
    order_offsets: Int64
    order: Int32
    term_offsets: Int64
    terms: Int32
    listed: Int32
    list_offsets: Int64
    rows: Int32

    def __len__(self) -> int:  # a NamedTuple would count its fields
        return self.lon.shape[0]

    @classmethod
    def of(
        cls,
        first: int,
        ids: Names,
        lon: Float64,
        lat: Float64,
        sides: Float64,
        time_us: Int64,
        keys: Int64,
        order: tuple[Int64, Int32],
        words: tuple[Int64, Int64],
        visible: np.ndarray,
        reserved: int,
    ) -> "MessageSegment":
        """Index messages; columns as of the class.

        Parameters
        ----------
        order : int64[n + 1], int32[words]    `order_offsets` and `order`
        words : int64[m], int64[m]            row and term of each word of the messages, in any order, repeats included
        visible : bool[n]
        reserved : int                        the reserved term

        Notes
        -----
        O(words + messages), in a kernel that lets other threads run.
        """
        row, term = np.flatnonzero(visible), words[1].astype(TERM)
        row, term = np.concatenate([words[0], row]), np.concatenate([term, np.full(row.shape[0], reserved, TERM)])
        terms, rows, offsets, terms_of = index_pairs(row, term, lon.shape[0])
        begins = np.flatnonzero(np.diff(terms, prepend=-1))
        lists = terms[begins], np.append(begins, terms.shape[0]).astype(np.int64), rows
        latest_us = int(time_us.max(initial=NO_FLOOR))
        return cls(first, latest_us, *ids, lon, lat, sides, time_us, keys, *order, offsets, terms_of, *lists)

    def arrays(self) -> dict[str, np.ndarray]:
        """All columns, by name."""
        return {name: column for name, column in self._asdict().items() if name not in _NUMBERS}

    def rows_of(self, term: int) -> Int32:
        """The rows that have a term, ascending."""
        place = int(np.searchsorted(self.listed, term))
        if place == self.listed.shape[0] or self.listed[place] != term:
            return self.rows[:0]
        return self.rows[self.list_offsets[place] : self.list_offsets[place + 1]]

    @property
    def messages(self) -> MessageBatch:
        """The messages as filters read them: without weights, places in the plane and vectors; seqs are rows."""
        count = len(self)
        seq = _ROWS[:count] if count <= _ROWS.shape[0] else np.arange(count)
        columns: Any = empty(MessageBatch)._asdict() | {"seq": seq, "keys": self.keys}
        columns |= dict(zip(("west", "south", "east", "north"), self.boxes(slice(None)), strict=True))
        columns |= {name: getattr(self, name) for name in ("term_offsets", "terms", "order_offsets", "order")}
        return MessageBatch(**columns)

    def boxes(self, rows: Any) -> list[Float64]:
        """West, south, east, north of some rows; of a point message its longitude and latitude."""
        points = [self.lon[rows], self.lat[rows]] * 2
        if not self.sides.shape[0]:
            return points
        sides = self.sides[rows].T
        return [np.where(np.isnan(side), point, side) for side, point in zip(sides, points, strict=True)]

    def is_visible(self, rows: Int64, reserved: int) -> np.ndarray:
        """bool[n]: whether rows have the reserved term."""
        ends = self.term_offsets[rows + 1]
        some = ends > self.term_offsets[rows]
        some[some] = self.terms[ends[some] - 1] == reserved
        return some

    def order_of(self, rows: Int64) -> MessageTerms:
        """The words of some rows in order of appearance."""
        starts = self.order_offsets[rows]
        lengths = self.order_offsets[rows + 1] - starts
        offsets = np.zeros(rows.shape[0] + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        nothing = np.zeros(rows.shape[0], np.int32)
        return MessageTerms(self.order[places], offsets, nothing, nothing)


_NO_ROWS = np.zeros(0, np.int64)
#: A segment without messages.
EMPTY = MessageSegment.of(
    0, Names.of(()), np.zeros(0), np.zeros(0), np.zeros((0, 4)), _NO_ROWS, np.zeros((0, 0), np.int64),
    (NO_WORDS, NO_ORDER), (_NO_ROWS, _NO_ROWS), np.zeros(0, np.bool_), 0,
)  # fmt: skip


class Tested(NamedTuple):
    """A subscription over a segment.

    rows : int64[n]     messages that share a keyword, or all visible ones where there is none, ascending
    parts : dict        name of each condition -> bool[n]: which of these satisfy it
    """

    rows: Int64
    parts: Mapping[str, np.ndarray]

    @property
    def matched(self) -> np.ndarray:
        """bool[n]: which satisfy all."""
        return np.logical_and.reduce([np.ones(self.rows.shape[0], np.bool_), *self.parts.values()])


class SegmentConditions:
    """The conditions of a subscription, tested with the messages of segments.

    Parameters
    ----------
    parsed : ParsedSubscription
    kind : Kind
    vocabulary : Vocabulary
    clauses : mapping of bytes to str, optional
        Clause of the query of each instruction, by the program of that alone; such a condition is `query: CLAUSE`, and
        others that test words are of `keywords` or `not_keywords`.
    """

    def __init__(
        self, parsed: ParsedSubscription, kind: Kind, vocabulary: Vocabulary, clauses: Mapping[bytes, str] | None = None
    ):
        self._kind, self._region = kind, parsed.region
        self._terms = [term for term in parsed.terms if term != UNKNOWN_TERM]
        self._needed = len(parsed.words) if parsed.needs == ALL_KEYWORDS else parsed.needs
        self._words = ("keywords" if parsed.needs == ALL_KEYWORDS else "match") if parsed.words else ""
        instructions = instructions_of(parsed.filter)
        self._has_region = kind.place == "region" and not any(
            one.operation in (CIRCLE, POLYGON) for one in instructions
        )
        named = {program: f"query: {clause}" for program, clause in (clauses or {}).items()}
        self._filters = [
            (
                named.get(program_of([one])) or _name_of(one.operation, one.argument, kind, vocabulary),
                filters_of(*joined_programs([program_of([one])])),
            )
            for one in instructions
            if not DECREASED <= one.operation <= ASKED  # no message alone fails these
            # that of `match` is counted as the keywords are
            if one.operation != AT_LEAST or one.argument != parsed.needs or list(one.words) != self._terms
        ]

    def candidates(self, segment: MessageSegment) -> tuple[Int64, np.ndarray]:
        """Rows with a keyword, or all visible ones where there is none, and how many keywords each has."""
        lists = [segment.rows_of(term) for term in self._terms]
        if len(lists) == 1:
            return lists[0].astype(np.int64), np.ones(lists[0].shape[0], np.int64)
        count = np.zeros(len(segment), np.int16)  # a sort of long lists takes three times as long
        for rows in lists:
            count[rows] += 1
        found = np.flatnonzero(count)
        return found, count[found]

    def tested(self, segment: MessageSegment) -> Tested:
        """Test all candidates with each condition. O(candidates, for each condition)."""
        rows, count = self.candidates(segment)
        parts = {self._words: count >= self._needed} if self._words else {}
        for name, passes in self._tests(segment, rows):
            parts[name] = parts[name] & passes if name in parts else passes
        return Tested(rows, parts)

    def matching(self, segment: MessageSegment, first: int, last: int) -> Int64:
        """Rows that satisfy everything, of messages from one seq to another, ascending; the rarest word is read first.

        O(messages with the rarest word, where all words are needed; else candidates)."""
        if self._words and self._needed > len(self._terms):
            return _NO_ROWS
        if self._needed == len(self._terms):
            rows, *others = sorted((segment.rows_of(term) for term in self._terms), key=len)
            rows = _between(rows, segment, first, last)
            for other in others:
                places = np.searchsorted(other, rows)
                places[places == other.shape[0]] = 0
                rows = rows[other[places] == rows] if other.shape[0] else rows[:0]
        else:
            rows, count = self.candidates(segment)
            rows = _between(rows[count >= self._needed] if self._words else rows, segment, first, last)
        rows = rows.astype(np.int64)
        if self._has_region:
            rows = rows[self._meets(segment, rows)]
        for _, filters in self._filters:
            rows = rows[_passing(filters, segment, rows)] if rows.shape[0] else rows
        return rows

    def _tests(self, segment: MessageSegment, rows: Int64) -> Iterator[tuple[str, np.ndarray]]:
        if self._has_region:
            yield "region", self._meets(segment, rows)
        for name, filters in self._filters:
            yield name, _passing(filters, segment, rows)

    def _meets(self, segment: MessageSegment, rows: Int64) -> np.ndarray:
        """bool[n]: which messages meet the region, with their rectangle or, of some kinds, its middle."""
        west, south, east, north = self._region
        sides = segment.boxes(rows)
        if self._kind.message_place == "centre":
            middle = (sides[0] + sides[2]) / 2, (sides[1] + sides[3]) / 2
            sides = [*middle, *middle]
        inside = (sides[1] <= north) & (sides[3] >= south)
        reaches_west, reaches_east = sides[2] >= west, sides[0] <= east
        return inside & (reaches_west & reaches_east if west <= east else reaches_west | reaches_east)


def _between(rows: Any, segment: MessageSegment, first: int, last: int) -> Any:
    """Those of ascending rows whose seqs are from one to another."""
    begin, end = np.searchsorted(rows, [first - segment.first, last - segment.first + 1])
    return rows[begin:end]


def _passing(filters: Any, segment: MessageSegment, rows: Int64) -> np.ndarray:
    """bool[n]: which messages satisfy one instruction."""
    return passing(filters, np.zeros(rows.shape[0], np.int32), rows.astype(np.int32), segment.messages)


def _name_of(operation: int, argument: int, kind: Kind, vocabulary: Vocabulary) -> str:
    if operation in (WITHOUT, NEITHER):
        return "not_keywords"
    if operation in (AT_LEAST, EITHER, PHRASE):
        return "keywords"
    if operation == CIRCLE:
        return "radius_m" if "radius_m" in kind.shapes else "circle"
    if operation == POLYGON:
        return "polygon"
    schema = vocabulary.attributes
    return f"where {schema.attributes[schema.number_at(argument)].name}"
