"""Many subscriptions checked at once: what `matching.validate.subscription_row` says, in a tenth of the time.

A row is plain if it has a kind, an id, a place or shape and what its kind asks, all as JSON has them, with keywords,
conditions on attributes or both; where words decide and not only score, none of them may be cut into pieces. Shapes and
conditions are read row by row, by the functions that `subscription_row` calls: some 25 us.
Plain rows are checked in columns, and stay in columns (`PlainRows`); their words are cut by the kernel of messages
(`matching.words.message_words`). A row that is not plain, and each in which a check in columns finds anything amiss,
goes to `subscription_row`, which alone refuses.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np

from matching.conditions import is_impossible, parse_where
from matching.fields import MAX_ID_CHARACTERS, Refusal, encodes
from matching.filter_fields import Shape, shape_of
from matching.filter_programs import compile_filter, joined_programs
from matching.kind_table import Kinds
from matching.model import (
    KEYWORDS_BY_KIND,
    NO_VECTORS,
    TERM,
    Float64,
    Int8,
    Int32,
    Int64,
    Names,
    SubscriptionTable,
    empty,
    take_ragged,
)
from matching.reasons import MAX_K, MAX_SUBSCRIPTION_TERMS
from matching.reserved import with_reserved
from matching.space import Space
from matching.subscription_words import has_query_marks
from matching.text import MAX_TEXT_CHARACTERS
from matching.validate import SUBSCRIPTION_COLUMNS, ParsedSubscription, misspelt, subscription_row
from matching.vocabulary import Vocabulary, unit_weights
from matching.words.message_words import MessageWords

#: Rows below which one at a time is faster.
FEW = 4
#: Sets of columns that are remembered at most; then all are forgotten.
_MOST_SHAPES = 10_000
_POINT, _PLACES = frozenset(("lon", "lat")), frozenset(("region", "circle", "polygon"))
_PLAIN = frozenset(("subscription_id", "kind"))
#: A plain row has keywords or conditions, or both; one with a shape may have neither.
_KEYWORDS, _WHERE = "keywords", "where"
#: What some kinds ask; of others it means nothing.
_OF_SOME = frozenset(("k", "alpha"))
_SHAPES = frozenset(("circle", "polygon"))
_SELECTING = _SHAPES | {_WHERE}
_FILTERS = "filter_offsets", "filter_words"
_NUMBERS, _ROWS = frozenset((float, int)), frozenset((list, tuple))
_NAN = (math.nan,) * 4
_NO_TERM = -1
_LIMITS = np.array([180.0, 90.0, 180.0, 90.0])

_Row = Mapping[str, Any]
_Bools = np.ndarray


class PlainRows(NamedTuple):
    """The plain ones of some rows, m in all, in columns; none of them is refused.

    rows : list of int          which of the rows they are, ascending
    names : list of str         ids
    boxes : float64[m, 4]       around the shape of each: west, south, east, north in degrees; east may be above 180
    table : SubscriptionTable   numbers and seqs are 0
    words : list of str         of the keywords of each, in order of first appearance
    word_offsets : int64[m + 1]
    unknown : int64[m]          how many of the words of each have no id
    """

    rows: list[int]
    names: list[str]
    boxes: Float64
    table: SubscriptionTable
    words: list[str]
    word_offsets: Int64
    unknown: Int64

    def part(self, first: int, last: int) -> "PlainRows":
        """Those from one place to another, exclusive."""
        if (first, last) == (0, len(self.rows)):
            return self
        some, cuts = slice(first, last), self.word_offsets[first : last + 1]
        return PlainRows(
            self.rows[some], self.names[some], self.boxes[some], self.table.take(np.arange(first, last)),
            self.words[cuts[0] : cuts[-1]], cuts - cuts[0], self.unknown[some],
        )  # fmt: skip


class CheckedRows(NamedTuple):
    """Subscriptions that were checked: the plain ones, and the others by their place."""

    plain: PlainRows
    others: dict[int, ParsedSubscription | Refusal]

    def placed(self, at: Sequence[int]) -> Self:
        """The same, of rows that have these places, ascending, among more."""
        plain = self.plain._replace(rows=list(map(at.__getitem__, self.plain.rows)))
        return self._replace(plain=plain, others={at[place]: one for place, one in self.others.items()})


#: Of no row.
NO_PLAIN_ROWS = PlainRows(
    [], [], np.zeros((0, 4)), empty(SubscriptionTable), [], np.zeros(1, np.int64), np.zeros(0, np.int64)
)


class SubscriptionRows:
    """Checks subscriptions by a vocabulary that may grow; for one thread.

    Parameters
    ----------
    words : MessageWords
        Of the vocabulary; the thread's own.
    space : Space
    kinds : Kinds
    """

    def __init__(self, words: MessageWords, space: Space, kinds: Kinds):
        self._words = words
        self._vocabulary: Vocabulary = words.vocabulary
        self._space = space
        self._kinds = kinds
        self._shapes: dict[tuple[str, ...], int | None] = {}  # code of the kind; None of rows that are not plain
        # by code of the kind
        self._of_region = np.array([kind.place == "region" for kind in kinds], np.bool_)
        self._by_words = np.array([kind.all_keywords or kind.nearest for kind in kinds], np.bool_)
        self._wraps = np.array([kind.wraps for kind in kinds], np.bool_)
        self._needs_extent = np.array([kind.needs_extent for kind in kinds], np.bool_)
        self._asks = {name: np.array([name in kind.fields for kind in kinds], np.bool_) for name in _OF_SOME}

    def row(self, row: _Row) -> ParsedSubscription | Refusal:
        """As `subscription_row`."""
        return subscription_row(row, self._vocabulary, self._space, self._kinds)

    def check(self, rows: Sequence[_Row], few: int = FEW) -> CheckedRows:
        """What `subscription_row` says of each row; on one core about 4 us for a plain one of keywords and a region.

        Fewer than `few` rows are checked one by one, without kernels.
        """
        plain = self._plain_rows(rows) if len(rows) >= few else NO_PLAIN_ROWS
        others = set(range(len(rows))).difference(plain.rows)
        return CheckedRows(plain, {place: self.row(rows[place]) for place in sorted(others)})

    def _plain_rows(self, rows: Sequence[_Row]) -> PlainRows:
        if self._space.projection != "plate-carree":
            return NO_PLAIN_ROWS
        found = [(place, row, code) for place, row in enumerate(rows) if (code := self._code_of(row)) is not None]
        if not found:
            return NO_PLAIN_ROWS
        places, rows, codes = zip(*found, strict=True)
        kind, names = np.array(codes, np.int8), [row["subscription_id"] for row in rows]
        texts = list(map(_texts, rows))
        flat, ends = list(chain.from_iterable(texts)), np.zeros(len(texts) + 1, np.int64)
        np.cumsum(list(map(len, texts)), out=ends[1:])
        distinct = self._words.distinct(self._words.cut(Names.of(flat)), ends)
        counts = np.diff(distinct.offsets)
        unknown = counts - np.diff(distinct.known)
        wordless = np.array([_KEYWORDS not in row for row in rows], np.bool_)
        sure = np.array(list(map(_is_id, names)), np.bool_) & ((counts > 0) | wordless)
        sure &= counts <= MAX_SUBSCRIPTION_TERMS
        sure &= ~(distinct.stopped | (distinct.cut & self._by_words[kind]))
        if not self._vocabulary.most_terms:
            sure &= unknown == 0
        if has_query_marks(flat):
            sure &= [not has_query_marks(each) for each in texts]
        shapes, programs = zip(*map(self._shape_and_filter, rows, codes), strict=True)
        sure &= [program is not None for program in programs]
        boxes = self._boxes(rows, kind, shapes, sure)
        k = self._numbers("k", rows, kind, sure, lambda one: type(one) is int and 1 <= one <= MAX_K, 0)
        alpha = self._numbers("alpha", rows, kind, sure, lambda one: type(one) in _NUMBERS and 0 <= one <= 1, math.nan)
        kept = np.flatnonzero(sure)
        if not kept.shape[0]:
            return NO_PLAIN_ROWS
        word_offsets, words = take_ragged(distinct.offsets, kept)
        term_offsets, picked = take_ragged(distinct.known, kept)
        columns = kind[kept], boxes[kept], k[kept].astype(np.int32), alpha[kept]
        filters = dict(zip(_FILTERS, joined_programs([programs[place] or b"" for place in kept.tolist()]), strict=True))
        return PlainRows(
            list(map(places.__getitem__, kept.tolist())),
            list(map(names.__getitem__, kept.tolist())),
            columns[1],
            self._table(*columns, term_offsets, distinct.terms[picked], wordless[kept]).having(**filters),
            self._words.names(distinct.numbers[words]),
            word_offsets,
            unknown[kept],
        )

    def _code_of(self, row: _Row) -> int | None:
        """Of a row that has just the columns of a plain one, and others that mean nothing; else None."""
        name = row.get("kind")
        if type(name) is not str:
            return None
        shape = (name, *row)
        try:
            return self._shapes[shape]
        except KeyError:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            code = self._shapes[shape] = self._code_with(name, frozenset(row))
            return code

    def _code_with(self, name: str, columns: frozenset[str]) -> int | None:
        if name not in self._kinds:
            return None
        kind = self._kinds.named(name)
        places = columns & _PLACES if kind.place == "region" else frozenset[str]()
        needed = _PLAIN | (places or _POINT) | _OF_SOME.intersection(kind.fields)
        others = columns - needed - _OF_SOME - {_KEYWORDS, _WHERE}
        if _KEYWORDS not in columns and ("alpha" in kind.fields or not kind.wordless or columns.isdisjoint(_SELECTING)):
            return None
        if len(places) != (kind.place == "region") or not places - {"region"} <= set(kind.shapes):
            return None
        fine = columns >= needed and others.isdisjoint(SUBSCRIPTION_COLUMNS) and not any(map(misspelt, others))
        return kind.code if fine else None

    def _shape_and_filter(self, row: _Row, code: int) -> tuple[Shape | None, bytes | None]:
        """The circle or polygon of a row, and the program of its filter; no program if one is not surely fine."""
        if row.keys().isdisjoint(_SELECTING):
            return None, b""
        shape = shape_of(row, self._kinds[code])
        conditions = parse_where(row.get(_WHERE), self._vocabulary.attributes)
        if isinstance(shape, Refusal) or isinstance(conditions, Refusal) or any(map(is_impossible, conditions)):
            return None, None
        if shape is None and (not row.keys().isdisjoint(_SHAPES) or (_KEYWORDS not in row and not conditions)):
            return None, None
        return shape, compile_filter(conditions, shape=None if shape is None else shape.instruction)

    def _boxes(self, rows: Sequence[_Row], kind: Int8, shapes: Sequence[Shape | None], sure: _Bools) -> Float64:
        """Boxes around the shapes of rows; unsets `sure` where one is not surely fine."""
        boxes, is_region = np.full((len(rows), 4), math.nan), self._of_region[kind]
        regions, points = np.flatnonzero(is_region), np.flatnonzero(~is_region)
        if regions.shape[0]:
            sides = [shape.region if shape else rows[place].get("region") for place, shape in enumerate(shapes)]
            boxes[regions] = _degrees(list(map(sides.__getitem__, regions.tolist())), 4)
        if points.shape[0]:
            found = _degrees([(rows[place]["lon"], rows[place]["lat"]) for place in points.tolist()], 2)
            boxes[points] = np.hstack([found, found])
            sure[points] &= self._space.contains(found[:, 0], found[:, 1])
        west, south, east, north = boxes.T
        sure &= (np.abs(boxes) <= _LIMITS).all(axis=1) & (south <= north) & ((west <= east) | self._wraps[kind])
        sure &= (west != east) | (south != north) | ~self._needs_extent[kind]
        return boxes

    def _numbers(
        self, name: str, rows: Sequence[_Row], kind: Int8, sure: _Bools, is_fine: Callable[[Any], bool], none: float
    ) -> np.ndarray:
        """A column of rows, `none` where the kind has none; unsets `sure` where one is not surely fine."""
        column = np.full(len(rows), none)
        for place in np.flatnonzero(self._asks[name][kind]).tolist():
            if is_fine(one := rows[place][name]):
                column[place] = one
            else:
                sure[place] = False
        return column

    def _table(
        self, kind: Int8, boxes: Float64, k: Int32, alpha: Float64, offsets: Int64, terms: Int32, wordless: _Bools
    ) -> SubscriptionTable:
        rows, space, is_point = kind.shape[0], self._space, ~self._of_region[kind]
        x, y, regions, vector = np.full(rows, math.nan), np.full(rows, math.nan), boxes, NO_VECTORS
        if is_point.any():
            lon, lat = np.ascontiguousarray(boxes[is_point, 0]), np.ascontiguousarray(boxes[is_point, 1])
            x[is_point], y[is_point] = space.project(lon, lat)
            regions = np.where(is_point[:, None], math.nan, boxes)
            if space.on_sphere:
                vector = np.full((rows, 3), math.nan)
                vector[is_point] = space.vectors(lon, lat)
        nothing, match = np.zeros(rows, np.int64), np.full(rows, KEYWORDS_BY_KIND, np.int8)
        weights = unit_weights(self._vocabulary.idf[terms], offsets)
        offsets, terms, weights, _ = with_reserved(self._vocabulary.reserved, wordless, offsets, terms, weights, None)
        columns = nothing, kind, nothing, x, y, regions, match, k, alpha, offsets, terms, weights
        return SubscriptionTable(*columns, vector=vector)


def terms_known_now(
    table: SubscriptionTable, words: Sequence[str], offsets: Int64, vocabulary: Vocabulary
) -> tuple[SubscriptionTable, Int64]:
    """Subscriptions with the terms that their words have since terms were admitted; filters stay as they are.

    Parameters
    ----------
    table : SubscriptionTable    of n rows
    words : sequence of str      of the keywords of all rows, none of one that has none
    offsets : int64[n + 1]       cuts `words` into rows
    vocabulary : Vocabulary      one that admits terms

    Returns
    -------
    SubscriptionTable
    int64[n]
        How many words of each row have an id.
    """
    ids = np.array([_NO_TERM if (term := vocabulary.id_of(word)) is None else term for word in words], np.int64)
    row = np.repeat(np.arange(len(table)), np.diff(offsets))
    known = np.flatnonzero(ids != _NO_TERM)
    known = known[np.lexsort((ids[known], row[known]))]
    count = np.bincount(row[known], minlength=len(table))
    starts, terms = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)]), ids[known].astype(TERM)
    weights = unit_weights(vocabulary.idf[terms], starts)
    starts, terms, weights, _ = with_reserved(vocabulary.reserved, np.diff(offsets) == 0, starts, terms, weights, None)
    return table.having(term_offsets=starts, terms=terms, weights=weights), count


def _is_id(name: Any) -> bool:
    if type(name) is not str or not 0 < len(name) <= MAX_ID_CHARACTERS or "\0" in name:
        return False
    return name.isascii() or encodes(name)


def _texts(row: _Row) -> Sequence[str]:
    """The texts of keywords, none if they are not surely fine."""
    found = row.get(_KEYWORDS, ())
    if type(found) is str:
        found = (found,)
    elif type(found) is not list:
        return ()
    try:
        joined = "".join(found)
    except TypeError:
        return ()
    return found if len(joined) <= MAX_TEXT_CHARACTERS and (joined.isascii() or all(map(encodes, found))) else ()


def _degrees(rows: Sequence[Any], width: int) -> Float64:
    """Degrees, float64[rows, width], never minus zero, NaN for what is no number; all NaN if one is too large."""
    if not (set(map(type, rows)) <= _ROWS and set(map(len, rows)) == {width}):
        rows = [one if type(one) in _ROWS and len(one) == width else _NAN[:width] for one in rows]
    if not set(map(type, chain.from_iterable(rows))) <= _NUMBERS:
        rows = [one if _NUMBERS.issuperset(map(type, one)) else _NAN[:width] for one in rows]
    try:
        return np.array(rows, np.float64).reshape(len(rows), width) + 0.0
    except OverflowError:
        return np.full((len(rows), width), math.nan)
