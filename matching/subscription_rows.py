"""Many subscriptions checked at once: what `matching.validate.subscription_row` says, in a fifth of the time.

A row is plain if it has a kind, an id, keywords, a place and what its kind asks, all as JSON has them, and no filter;
where words decide and not only score, none of them may be cut into pieces.
Plain rows are checked in columns, and their words cut by the kernel of messages (`matching.words.message_words`). A
row that is not plain, and each in which a check in columns finds anything amiss, goes to `subscription_row`, which
alone refuses.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np

from matching.fields import MAX_ID_CHARACTERS, Refusal, encodes
from matching.kind_table import Kind, Kinds
from matching.model import KEYWORDS_BY_KIND, TERM, Float64, Int64, SubscriptionTable
from matching.reasons import MAX_K, MAX_SUBSCRIPTION_TERMS
from matching.reserved import with_reserved
from matching.space import Space
from matching.text import MAX_TEXT_CHARACTERS
from matching.validate import (
    NO_REGION,
    SUBSCRIPTION_COLUMNS,
    ParsedSubscription,
    misspelt,
    subscription_row,
)
from matching.vocabulary import Vocabulary, unit_weights
from matching.words.message_words import MessageWords

#: Rows below which one at a time is faster.
_FEW = 4
#: Sets of columns that are remembered at most; then all are forgotten.
_MOST_SHAPES = 10_000
_POINT, _REGION = frozenset(("lon", "lat")), frozenset(("region",))
_PLAIN = frozenset(("subscription_id", "kind", "keywords"))
#: What some kinds ask; of others it means nothing.
_OF_SOME = frozenset(("k", "alpha"))
_NUMBERS, _ROWS = frozenset((float, int)), frozenset((list, tuple))
_NAN = (math.nan,) * 4
_NO_TERM = -1
_LIMITS = np.array([180.0, 90.0, 180.0, 90.0])

_Row = Mapping[str, Any]
#: Words, ids of those that have one and their idf, and how many have none.
_Words = tuple[tuple[str, ...], tuple[int, ...], tuple[float, ...], int]


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
        self._shapes: dict[tuple[str, ...], Kind | None] = {}

    def check(self, rows: Sequence[_Row]) -> list[ParsedSubscription | Refusal]:
        """For each row what `subscription_row` returns; about 5 us for a plain one, on one core."""
        found: list[ParsedSubscription | None] = [None] * len(rows)
        if len(rows) >= _FEW and self._space.projection == "plate-carree":
            kinds: dict[int, list[tuple[int, _Row, _Words]]] = {}
            plain = [(at, row, kind) for at, row in enumerate(rows) if (kind := self._plain(row)) is not None]
            whole = np.array([kind.all_keywords or kind.nearest for _, _, kind in plain], np.bool_)
            for (at, row, kind), words in zip(plain, self._keywords([row for _, row, _ in plain], whole), strict=True):
                if words is not None:
                    kinds.setdefault(kind.code, []).append((at, row, words))
            for code, some in kinds.items():
                self._check(self._kinds[code], some, found)
        return [
            subscription_row(row, self._vocabulary, self._space, self._kinds) if one is None else one
            for row, one in zip(rows, found, strict=True)
        ]

    def _plain(self, row: _Row) -> Kind | None:
        """The kind of a row that has just the columns of a plain one, and others that mean nothing; else None."""
        name = row.get("kind")
        if type(name) is not str:
            return None
        shape = (name, *row)
        try:
            return self._shapes[shape]
        except KeyError:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            kind = self._shapes[shape] = self._kind_of(name, frozenset(row))
            return kind

    def _kind_of(self, name: str, columns: frozenset[str]) -> Kind | None:
        if name not in self._kinds:
            return None
        kind = self._kinds.named(name)
        needed = _PLAIN | (_REGION if kind.place == "region" else _POINT) | _OF_SOME.intersection(kind.fields)
        others = columns - needed - _OF_SOME
        fine = columns >= needed and others.isdisjoint(SUBSCRIPTION_COLUMNS) and not any(map(misspelt, others))
        return kind if fine else None

    def _check(
        self, kind: Kind, some: Sequence[tuple[int, _Row, _Words]], found: list[ParsedSubscription | None]
    ) -> None:
        """Check plain rows of a kind, and write those that are surely fine to their places in `found`."""
        region, space, rows = kind.place == "region", self._space, [row for _, row, _ in some]
        degrees = _degrees([row["region"] if region else (row["lon"], row["lat"]) for row in rows], 4 if region else 2)
        if degrees is None:
            return
        sure = (np.abs(degrees) <= _LIMITS[: degrees.shape[1]]).all(axis=1)
        lon, lat = np.ascontiguousarray(degrees[:, 0]), np.ascontiguousarray(degrees[:, 1])
        if region:
            east, north = degrees[:, 2], degrees[:, 3]
            sure &= lat <= north
            if not kind.wraps:
                sure &= lon <= east
            if kind.needs_extent:
                sure &= (lon != east) | (lat != north)
        else:
            sure &= space.contains(lon, lat)
        k, alpha = repeat(0), repeat(math.nan)
        if "k" in kind.fields:
            k = [row["k"] for row in rows]
            sure &= [type(one) is int and 1 <= one <= MAX_K for one in k]
        if "alpha" in kind.fields:
            given = [row["alpha"] for row in rows]
            sure &= [type(one) in _NUMBERS and 0 <= one <= 1 for one in given]
            alpha = [float(one) if fine else one for one, fine in zip(given, sure.tolist(), strict=True)]
        xs, ys, vectors, regions = repeat(math.nan), repeat(math.nan), repeat(()), repeat(NO_REGION)
        if region:
            regions = map(tuple, degrees.tolist())
        else:
            xs, ys = (column.tolist() for column in space.project(lon, lat))
            if space.on_sphere:
                vectors = map(tuple, space.vectors(np.where(sure, lon, 0.0), np.where(sure, lat, 0.0)).tolist())
        needs = int(not kind.all_keywords)
        every = zip(some, sure.tolist(), xs, ys, regions, k, alpha, vectors, strict=False)
        for (place, row, (spelled, terms, idf, unknown)), fine, x, y, box, most, share, vector in every:
            if fine and _is_id(name := row["subscription_id"]):
                found[place] = ParsedSubscription(
                    name, kind.code, x, y, box, KEYWORDS_BY_KIND, most, share, terms, idf, spelled, unknown, 0, 0, None,
                    b"", needs, (), 0, vector, math.nan,
                )  # fmt: skip

    def _keywords(self, rows: Sequence[_Row], whole: np.ndarray) -> list[_Words | None]:
        """The words of rows, None where they are not surely fine; `whole`, bool[rows]: if one is cut into pieces."""
        texts = list(map(_texts, rows))
        ends = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(list(map(len, texts)), out=ends[1:])
        distinct = self._words.distinct(self._words.cut(list(chain.from_iterable(texts))), ends)
        counts, known = np.diff(distinct.offsets), np.diff(distinct.known)
        fits = (counts > 0) & (counts <= MAX_SUBSCRIPTION_TERMS) & ~distinct.stopped & ~(distinct.cut & whole)
        if not self._vocabulary.most_terms:
            fits &= counts == known
        spelled = self._words.names(distinct.numbers)
        terms, idf = distinct.terms.tolist(), self._vocabulary.idf[distinct.terms].tolist()
        cuts, known_cuts = pairwise(distinct.offsets.tolist()), pairwise(distinct.known.tolist())
        return [
            (tuple(spelled[a:b]), tuple(terms[c:d]), tuple(idf[c:d]), unknown) if fine else None
            for (a, b), (c, d), unknown, fine in zip(
                cuts, known_cuts, (counts - known).tolist(), fits.tolist(), strict=True
            )
        ]


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
    found = row["keywords"]
    if type(found) is str:
        found = (found,)
    elif type(found) is not list:
        return ()
    try:
        joined = "".join(found)
    except TypeError:
        return ()
    return found if len(joined) <= MAX_TEXT_CHARACTERS and (joined.isascii() or all(map(encodes, found))) else ()


def _degrees(rows: Sequence[Any], width: int) -> Float64 | None:
    """Degrees, float64[rows, width], never minus zero, NaN for what is no number; None if one is too large to tell."""
    if not (set(map(type, rows)) <= _ROWS and set(map(len, rows)) == {width}):
        rows = [one if type(one) in _ROWS and len(one) == width else _NAN[:width] for one in rows]
    if not set(map(type, chain.from_iterable(rows))) <= _NUMBERS:
        rows = [one if _NUMBERS.issuperset(map(type, one)) else _NAN[:width] for one in rows]
    try:
        return np.array(rows, np.float64).reshape(len(rows), width) + 0.0
    except OverflowError:
        return None
