"""Beginnings of words that subscriptions ask for (`fahr*`), and words with one edit (`fahrad~1`), as terms for matching
alone.

A stream that admits terms admits `fahr*` with the batch that brings the first subscription with it. It takes no place
of a word: its id is above those of all words. From then on each message with a word that begins so has this term, too,
whichever batch admits the word. Like the reserved term (`matching.reserved`) it weighs minus zero and has no count, so
that no score, norm or number of words knows it. No text gives a term with `*`.

`fahrad~` stands in the same way for the words within one edit of it (`matching.words.nearby`), and what is said of
beginnings here holds for it. A vocabulary that does not grow needs none of this: there a beginning means its words.
"""

import threading
from array import array
from bisect import bisect_left
from typing import NamedTuple, Protocol

import numpy as np

from matching.model import TERM, Float32, Int32, Int64
from matching.pieces import NAMED_ID
from matching.reserved import RESERVED_IDF
from matching.words.nearby import shortened, within_one_edit

#: Ends the term of a beginning, and that of a word with one edit.
MARK, NEAR = "*", "~"
#: Characters of a beginning at least, and of a word with one edit.
SHORTEST, SHORTEST_NEAR = 2, 3
#: Sorts behind all characters of words.
_LAST = "\U0010ffff"
#: Admitted terms that are looked through one by one; with more all are sorted again.
_MOST_UNSORTED = 500
_NONE = np.zeros(0, np.int64)


class TermColumns(NamedTuple):
    """Terms of many messages: row r has `terms[offsets[r]:offsets[r + 1]]`.

    offsets : int64[rows + 1]
    terms : int32[nnz]       ascending within a row, without repeats
    counts : int32[nnz]
    weights : float32[nnz]   unit L2 norm for each row
    unknown, stopped : int32[rows]
        Distinct terms that are left out: the vocabulary lacks them, or they are removed stop terms.
    """

    offsets: Int64
    terms: Int32
    counts: Int32
    weights: Float32
    unknown: Int32
    stopped: Int32


class KnownTerms(Protocol):
    """What beginnings need of `matching.vocabulary.Vocabulary`, which has its own."""

    terms: list[str]
    admitted: list[str]
    begun: list[str]
    forgotten: int

    @property
    def reserved(self) -> int: ...

    def id_of(self, term: str) -> int | None: ...


class Beginnings:
    """The words of a vocabulary that begin so, and the beginnings that its words have; for any thread.

    The vocabulary is given with each call: always the same.

    Notes
    -----
    Nothing is made before the first call that needs it: 8 bytes a term for `words`; for `added_to` 4 bytes a term, and
    8 for each word of each beginning. A new word costs a look-up for each of its characters. The first word with one
    edit sorts the vocabulary by endings as well: some 70 bytes a term.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sorted: tuple[list[str], int, int] | None = None
        self._backwards: tuple[list[str], list[str]] | None = None  # the sorted terms, and these sorted backwards
        self._forget(0)

    def words(self, vocabulary: KnownTerms, beginning: str) -> list[str]:
        """The terms of the vocabulary that begin so, `beginning` itself included; of one that ends with `NEAR` those
        within one edit.

        O(log terms + found); with one edit O(log terms + terms with the first half of the word, or its second).
        """
        terms, count, forgotten = self._sorted or ([], 0, -1)
        admitted = vocabulary.admitted
        if forgotten != vocabulary.forgotten or len(admitted) - count > _MOST_UNSORTED:
            count, forgotten = len(admitted), vocabulary.forgotten
            terms = sorted([*vocabulary.terms, *admitted[:count]])
            self._sorted = terms, count, forgotten  # at once: other threads read it
        late = admitted[count:]
        if beginning.endswith(NEAR):
            word = beginning.removesuffix(NEAR)
            near = {*self._halves(terms, word), *late}
            return [term for term in sorted(near) if within_one_edit(term, word)]
        found = _beginning_so(terms, beginning)
        return found + [term for term in late if term.startswith(beginning)]

    def _halves(self, terms: list[str], word: str) -> list[str]:
        """Sorted terms that have the first half of a word, or the second: of an edit one stays, unless the two in the
        middle are swapped, which are found by themselves."""
        known = self._backwards
        if known is None or known[0] is not terms:
            known = self._backwards = terms, sorted(term[::-1] for term in terms)  # at once: other threads read it
        half = len(word) // 2
        swapped = word[: half - 1] + word[half] + word[half - 1] + word[half + 1 :]
        ending = [term[::-1] for term in _beginning_so(known[1], word[half:][::-1])]
        return [*_beginning_so(terms, word[:half]), *ending, *_beginning_so(terms, swapped)]

    def added_to(self, vocabulary: KnownTerms, ids: Int32, rows: Int64, found: TermColumns) -> TermColumns:
        """Columns of messages with the beginnings that their words have.

        Parameters
        ----------
        vocabulary : KnownTerms
        ids : int32[m]     words of messages, below 0 for one without an id
        rows : int64[m]    the message that has each
        found : TermColumns

        Notes
        -----
        O(m) if a beginning is known, else O(words admitted since the last call).
        """
        with self._lock:
            self._follow(vocabulary)
            new = self._keys(ids, rows) if self._ids or self._near else _NONE
        return _with_terms(found, new)

    def _keys(self, ids: Int32, rows: Int64) -> Int64:
        """Message and beginning of each pair, as one number; ascending."""
        at = np.flatnonzero(ids >= 0)
        if not self._first.shape[0]:
            return _NONE
        row, link, keys = rows[at], self._first[ids[at]], [_NONE]
        own, after = np.frombuffer(self._own, np.int32), np.frombuffer(self._after, np.int32)
        while (some := np.flatnonzero(link)).shape[0]:
            row, link = row[some], link[some]
            keys.append(row << 32 | own[link])
            link = after[link]
        return np.unique(np.concatenate(keys))

    def _forget(self, forgotten: int) -> None:
        self._forgotten = forgotten
        self._ids: dict[str, int] | None = None  # of the beginnings that are terms
        self._near: dict[str, list[tuple[str, int]]] = {}  # what is left of words with one edit -> these, and their ids
        self._followed = self._begun = 0  # words and beginnings that were taken in
        self._first: Int32 = np.zeros(0, np.int32)  # of each word the place of its newest beginning; 0: none
        self._own, self._after = array("i", [0]), array("i", [0])  # ids of beginnings; the word's next place

    def _follow(self, vocabulary: KnownTerms) -> None:
        """Take in the terms that were admitted, or forgotten, since the last call."""
        if self._forgotten != vocabulary.forgotten:
            self._forget(vocabulary.forgotten)
        new, begun = vocabulary.admitted[self._followed :], vocabulary.begun[self._begun :]
        self._followed += len(new)
        self._begun += len(begun)
        if self._ids is None:
            self._ids, new = {}, [*vocabulary.terms, *new]
        if self._ids:
            for word in new:
                for length in range(SHORTEST, len(word) + 1):
                    if (beginning := self._ids.get(word[:length])) is not None:
                        self._link(vocabulary, word, beginning)
        if self._near:
            for word in new:
                for left in shortened(word):
                    for other, own in self._near.get(left, ()):
                        if within_one_edit(word, other):
                            self._link(vocabulary, word, own)
        for term in begun:
            own = _id_of(vocabulary, term)
            if term.endswith(MARK):
                self._ids[term[:-1]] = own
            else:
                for left in shortened(term[:-1]):
                    self._near.setdefault(left, []).append((term[:-1], own))
            for word in self.words(vocabulary, term.removesuffix(MARK)):
                self._link(vocabulary, word, own)

    def _link(self, vocabulary: KnownTerms, word: str, beginning: int) -> None:
        """Note that a word has a beginning; that it is noted twice does not matter."""
        if not self._first.shape[0]:
            self._first = np.zeros(vocabulary.reserved, np.int32)
        term = _id_of(vocabulary, word)
        self._after.append(int(self._first[term]))
        self._first[term] = len(self._own)
        self._own.append(beginning)


def with_named_words(ids: Int32, offsets: Int64, found: TermColumns) -> TermColumns:
    """Columns of messages with the terms of the words that their hashtags name, for matching alone.

    Parameters
    ----------
    ids : int32[m]              words of messages in order of appearance (`matching.pieces.NAMED_ID`)
    offsets : int64[rows + 1]   cuts `ids` into messages
    found : TermColumns
    """
    at = np.flatnonzero(ids <= NAMED_ID)
    if not at.shape[0]:
        return found
    row = np.searchsorted(offsets, at, "right") - 1
    return _with_terms(found, np.unique(row << 32 | (NAMED_ID - ids[at])))


def _with_terms(found: TermColumns, keys: Int64) -> TermColumns:
    """Columns with terms for matching alone, but for those that a message has; `keys` has message << 32 | term of each,
    ascending. O(n log n)."""
    if not keys.shape[0]:
        return found
    lengths = np.diff(found.offsets)
    there = np.append(np.repeat(np.arange(lengths.shape[0]), lengths) << 32 | found.terms, np.iinfo(np.int64).max)
    at = np.searchsorted(there, keys)
    is_new = there[at] != keys
    keys, at = keys[is_new], at[is_new]
    more = np.bincount(keys >> 32, minlength=lengths.shape[0])
    return found._replace(
        offsets=found.offsets + np.concatenate([[0], np.cumsum(more)]),
        terms=np.insert(found.terms, at, (keys & 0xFFFFFFFF).astype(TERM)),
        counts=np.insert(found.counts, at, 0),
        weights=np.insert(found.weights, at, RESERVED_IDF),
    )


def _id_of(vocabulary: KnownTerms, term: str) -> int:
    found = vocabulary.id_of(term)
    assert found is not None, "it is one of the vocabulary's"
    return found


def is_for_matching_alone(term: str) -> bool:
    """Whether a term is no word, but stands for some: a beginning, or a word with one edit."""
    return term.endswith((MARK, NEAR))


def _beginning_so(terms: list[str], beginning: str) -> list[str]:
    """Of sorted terms those that begin so."""
    return terms[bisect_left(terms, beginning) : bisect_left(terms, beginning + _LAST)]
