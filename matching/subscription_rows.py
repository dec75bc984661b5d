"""Many subscriptions checked at once: what `matching.validate.subscription_row` says, in a fifth of the time.

A row is plain if it has a kind, an id, keywords, a place and what its kind asks, all as JSON has them, and no filter.
Plain rows are checked in columns, and their words cut by the kernel of messages (`matching.words.message_words`). A
row that is not plain, and each in which a check in columns finds anything amiss, goes to `subscription_row`, which
alone refuses.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import Any, TypeGuard

import numpy as np

from matching.fields import MAX_ID_CHARACTERS, Refusal, encodes
from matching.kind_table import Kind, Kinds
from matching.model import KEYWORDS_BY_KIND, Float64
from matching.reasons import MAX_K, MAX_SUBSCRIPTION_TERMS
from matching.space import Space
from matching.text import MAX_TEXT_CHARACTERS, Vocabulary
from matching.validate import (
    NO_REGION,
    SUBSCRIPTION_COLUMNS,
    ParsedSubscription,
    misspelt,
    subscription_row,
)
from matching.words.message_words import MessageWords

#: Rows below which one at a time is faster.
_FEW = 4
#: Sets of columns that are remembered at most; then all are forgotten.
_MOST_SHAPES = 10_000
_POINT, _REGION = frozenset(("lon", "lat")), frozenset(("region",))
_PLAIN = frozenset(("subscription_id", "kind", "keywords"))
#: What some kinds ask; of others it means nothing.
_OF_SOME = frozenset(("k", "alpha"))
_NUMBERS = (float, int)
_NAN = (math.nan,) * 4

_Row = Mapping[str, Any]


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
        found: list[ParsedSubscription | Refusal | None] = [None] * len(rows)
        if len(rows) >= _FEW and self._space.projection == "plate-carree":
            plain = [(at, row, kind) for at, row in enumerate(rows) if (kind := self._plain(row)) is not None]
            for place in ("point", "region"):
                some = [one for one in plain if (one[2].place == "region") == (place == "region")]
                if len(some) >= _FEW:
                    self._check(some, place == "region", found)
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
        self,
        some: Sequence[tuple[int, _Row, Kind]],
        has_region: bool,
        found: list[ParsedSubscription | Refusal | None],
    ) -> None:
        """Check plain rows with a point, or with a region, and write those that are surely fine into `found`."""
        rows, kinds = [row for _, row, _ in some], [kind for _, _, kind in some]
        ids, texts = [row["subscription_id"] for row in rows], list(map(_texts, rows))
        sure = np.array([_is_id(name) for name in ids]) & np.array([one is not None for one in texts])
        k, k_fine = _wholes(rows, kinds)
        alpha, alpha_fine = _shares(rows, kinds)
        place = self._regions(rows, kinds) if has_region else self._points(rows)
        if place is None:
            return
        degrees, fine = place
        sure &= k_fine & alpha_fine & fine
        at = np.flatnonzero(sure).tolist()
        words, terms, idf, unknown, fits = self._keywords([texts[place] or [] for place in at])
        at, degrees = [place for place, one in zip(at, fits, strict=True) if one], degrees[sure][np.array(fits, bool)]
        count = len(at)
        xs, ys, regions, vectors = [math.nan] * count, [math.nan] * count, [NO_REGION] * count, [()] * count
        if has_region:
            regions = list(map(tuple, degrees.tolist()))
        else:
            lon, lat = np.ascontiguousarray(degrees[:, 0]), np.ascontiguousarray(degrees[:, 1])
            xs, ys = (column.tolist() for column in self._space.project(lon, lat))
            if self._space.on_sphere:
                vectors = list(map(tuple, self._space.vectors(lon, lat).tolist()))
        zeros, none = [0] * count, [None] * count
        columns = (
            [ids[place] for place in at],
            [kinds[place].code for place in at],
            xs,
            ys,
            regions,
            [KEYWORDS_BY_KIND] * count,
            [k[place] for place in at],
            [alpha[place] for place in at],
            terms,
            idf,
            words,
            unknown,
            zeros,
            zeros,
            none,
            [b""] * count,
            [int(not kinds[place].all_keywords) for place in at],
            [()] * count,
            zeros,
            vectors,
            [math.nan] * count,
        )
        for place, one in zip(at, map(ParsedSubscription._make, zip(*columns, strict=True)), strict=True):
            found[some[place][0]] = one

    def _points(self, rows: Sequence[_Row]) -> tuple[Float64, np.ndarray] | None:
        """Longitudes and latitudes, and which are surely fine; None if a number is too large to tell."""
        lons, lats = [row["lon"] for row in rows], [row["lat"] for row in rows]
        fine = np.array([type(lon) in _NUMBERS and type(lat) in _NUMBERS for lon, lat in zip(lons, lats, strict=True)])
        pairs = zip(lons, lats, fine.tolist(), strict=True)
        degrees = _degrees([(lon, lat) if one else _NAN[:2] for lon, lat, one in pairs], 2)
        if degrees is None:
            return None
        lon, lat = degrees[:, 0], degrees[:, 1]
        return degrees, fine & (np.abs(lon) <= 180.0) & (np.abs(lat) <= 90.0) & self._space.contains(lon, lat)

    def _regions(self, rows: Sequence[_Row], kinds: Sequence[Kind]) -> tuple[Float64, np.ndarray] | None:
        """As `_points`: west, south, east, north."""
        regions = [row["region"] for row in rows]
        fine = np.array(
            [type(one) is list and len(one) == 4 and all(type(x) in _NUMBERS for x in one) for one in regions]
        )
        degrees = _degrees([one if sure else _NAN for one, sure in zip(regions, fine.tolist(), strict=True)], 4)
        if degrees is None:
            return None
        west, south, east, north = degrees.T
        fine &= (np.abs(degrees) <= (180.0, 90.0, 180.0, 90.0)).all(axis=1) & (south <= north)
        fine &= (west <= east) | np.array([kind.wraps for kind in kinds])
        needs_extent = np.array([kind.needs_extent for kind in kinds])
        return degrees, fine & ~(needs_extent & (west == east) & (south == north))

    def _keywords(
        self, texts: Sequence[Sequence[str]]
    ) -> tuple[list[tuple[str, ...]], list[tuple[int, ...]], list[tuple[float, ...]], list[int], list[bool]]:
        """Words, ids, idf and number of unknown words, of the rows whose words are surely fine; for each row if so."""
        ends = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(list(map(len, texts)), out=ends[1:])
        distinct = self._words.distinct(self._words.cut(list(chain.from_iterable(texts))), ends)
        counts, known = np.diff(distinct.offsets), np.diff(distinct.known)
        fits = (counts > 0) & (counts <= MAX_SUBSCRIPTION_TERMS) & ~distinct.stopped
        if not self._vocabulary.most_terms:
            fits &= counts == known
        chosen = np.flatnonzero(fits).tolist()
        spelled = self._words.names(distinct.numbers)
        terms, idf = distinct.terms.tolist(), self._vocabulary.idf[distinct.terms].tolist()
        cuts, known_cuts = list(pairwise(distinct.offsets.tolist())), list(pairwise(distinct.known.tolist()))
        return (
            [tuple(spelled[slice(*cuts[row])]) for row in chosen],
            [tuple(terms[slice(*known_cuts[row])]) for row in chosen],
            [tuple(idf[slice(*known_cuts[row])]) for row in chosen],
            (counts - known)[fits].tolist(),
            fits.tolist(),
        )


def by_words_known_now(some: Sequence[ParsedSubscription], vocabulary: Vocabulary) -> list[ParsedSubscription | None]:
    """What subscriptions that were checked are since terms were admitted; None for one that has to be checked again.

    Those are the ones with a filter, which has ids of terms in it. The vocabulary must be one that admits terms.
    """
    found = [
        None if one.filter or one.excluded else sorted(filter(_is_known, map(vocabulary.id_of, one.words)))
        for one in some
    ]
    idf = iter(vocabulary.idf[list(chain.from_iterable(filter(None, found)))].tolist())
    return [
        None
        if terms is None
        else one._replace(
            terms=tuple(terms), idf=tuple(islice(idf, len(terms))), unknown=len(one.words) - len(terms) - one.stopped
        )
        for one, terms in zip(some, found, strict=True)
    ]


def _is_known(term: int | None) -> TypeGuard[int]:
    return term is not None


def _is_id(name: Any) -> bool:
    if type(name) is not str or not 0 < len(name) <= MAX_ID_CHARACTERS or "\0" in name:
        return False
    return name.isascii() or encodes(name)


def _texts(row: _Row) -> Sequence[str] | None:
    """The texts of keywords, None if they are surely none that are taken, or may be."""
    found = row["keywords"]
    if type(found) is str:
        found = (found,)
    elif type(found) is not list or not all(type(text) is str for text in found):
        return None
    fine = sum(map(len, found)) <= MAX_TEXT_CHARACTERS and all(text.isascii() or encodes(text) for text in found)
    return found if fine else None


def _wholes(rows: Sequence[_Row], kinds: Sequence[Kind]) -> tuple[list[int], np.ndarray]:
    """`k` of each row, 0 where its kind has none, and whether it is surely fine."""
    found = [row["k"] if "k" in kind.fields else 0 for row, kind in zip(rows, kinds, strict=True)]
    fine = [
        "k" not in kind.fields or (type(k) is int and 1 <= k <= MAX_K) for k, kind in zip(found, kinds, strict=True)
    ]
    return found, np.array(fine)


def _shares(rows: Sequence[_Row], kinds: Sequence[Kind]) -> tuple[list[float], np.ndarray]:
    """`alpha` of each row, NaN where its kind has none, and whether it is surely fine."""
    found = [row["alpha"] if "alpha" in kind.fields else math.nan for row, kind in zip(rows, kinds, strict=True)]
    fine = [
        "alpha" not in kind.fields or (type(alpha) in _NUMBERS and 0 <= alpha <= 1)
        for alpha, kind in zip(found, kinds, strict=True)
    ]
    return [float(alpha) if one else math.nan for alpha, one in zip(found, fine, strict=True)], np.array(fine)


def _degrees(rows: Sequence[Sequence[float]], width: int) -> Float64 | None:
    """Degrees, float64[rows, width], never minus zero; None if one is beyond what a float holds."""
    try:
        return np.array(rows, np.float64).reshape(len(rows), width) + 0.0
    except OverflowError:
        return None
