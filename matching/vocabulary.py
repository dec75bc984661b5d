"""Terms of a collection with their statistics, the terms that a stream admits, and the vectors of both.

Pure functions and one class; nothing here reads a file.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.errors import CheckpointError, ConfigError
from matching.model import WEIGHT, Float32, Float64, Int64
from matching.pieces import JOINED_ID, Word
from matching.text import count_terms, term_form, terms_of, words_of
from matching.words.beginnings import Beginnings

#: Document frequency that a term is taken to have when it turns up after the vocabulary was made.
LATE_DOCUMENT_FREQUENCY = 0.5


def inverse_document_frequency(messages: int, document_frequency: float) -> float:
    """idf = ln(1 + N / df); `document_frequency` > 0."""
    return math.log(1.0 + messages / document_frequency)


def unit_weights(raw: Float64, offsets: Int64) -> Float32:
    """Scale the rows of a ragged column to unit L2 norm.

    Parameters
    ----------
    raw : float64[nnz]          count * idf, or idf, in ascending term id within a row
    offsets : int64[n + 1]      cuts `raw` into rows

    Returns
    -------
    float32[nnz]
        A row of zeros stays zero.

    Notes
    -----
    O(nnz). Squares are summed one after another in float64, never pairwise or in blocks, so that one row alone, a whole
    data set, and a loop in plain Python give the same bits.
    """
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(lengths.shape[0]), lengths)
    norms = np.sqrt(np.bincount(rows, weights=raw * raw, minlength=lengths.shape[0]))
    norms[norms == 0.0] = 1.0
    return (raw / norms[rows]).astype(WEIGHT)


class Vocabulary:
    """All terms of a collection with their statistics; `term_id` 0 is the rarest.

    Parameters
    ----------
    terms : sequence of str
        In the order of their ids: ascending document frequency, then term.
    document_frequency, collection_count : sequence of int
        Messages with the term, and its occurrences in all of them.
    idf : sequence of float
        ln(1 + N / df), as the ETL stored it.
    messages : int
        N, the number of kept messages.
    total_tokens : int, optional
        Default: the sum of `collection_count`.
    stop_terms : iterable of str
        Terms the ETL removed because they were in too many messages.
    stem_language : str
        The language the ETL stemmed with; "" for none.
    folds_accents : bool
        Whether the ETL folded accents.
    attributes : AttributeSchema
        What else subscriptions can name: the attributes of the messages. More may be declared later.
    most_terms : int
        How many terms may be admitted later.
    keeps_order : bool
        Whether the messages have the order of their words.

    Attributes
    ----------
    admitted : list of str
        Terms admitted so far, in that order.
    grows : bool
        Whether beginnings of words are terms, which are admitted (`matching.words.beginnings`); otherwise they mean the
        words there are.
    forgotten : int
        How often the admitted terms were forgotten.
    form : callable or None
        What the terms of a text are turned into (`term_form`).

    Notes
    -----
    About 200 bytes and 0.3 us to build a term. Columns are indexed by id. The collection's terms have ids from
    `most_terms` on, in their order; those of admitted terms descend from there, so that the newest is the first where
    ids ascend. No id ever changes.
    """

    def __init__(
        self,
        terms: Sequence[str],
        document_frequency: Sequence[int] | NDArray[np.integer],
        collection_count: Sequence[int] | NDArray[np.integer],
        idf: Sequence[float] | NDArray[np.floating],
        messages: int,
        total_tokens: int | None = None,
        stop_terms: Iterable[str] = (),
        stem_language: str = "",
        folds_accents: bool = False,
        attributes: AttributeSchema = NO_ATTRIBUTES,
        most_terms: int = 0,
        keeps_order: bool = True,
    ):
        self.keeps_order = keeps_order
        self.attributes = attributes
        self.terms = list(terms)
        self.most_terms = most_terms
        self.admitted: list[str] = []
        self.forgotten = 0
        self.grows = most_terms > 0
        self.beginnings = Beginnings()
        self.document_frequency = _from_id(most_terms, document_frequency, np.int64)
        self.collection_count = _from_id(most_terms, collection_count, np.int64)
        self.idf: Float64 = _from_id(most_terms, idf, np.float64)
        self.messages = messages
        self.total_tokens = int(np.sum(collection_count)) if total_tokens is None else total_tokens
        self.stop_terms = frozenset(stop_terms)
        self.stem_language = stem_language
        self.folds_accents = folds_accents
        self.form = term_form(stem_language, folds_accents)
        self._ids = {term: term_id for term_id, term in enumerate(self.terms, start=most_terms)}
        if not len(self._ids) == len(document_frequency) == len(collection_count) == len(idf):
            raise ConfigError("vocabulary: columns of different length or a term that occurs twice; run the ETL again")

    def __reduce__(self) -> tuple[Any, ...]:
        # a stemmer cannot be pickled: it is made again
        columns = (self.document_frequency, self.collection_count, self.idf)
        statistics = *(column[self.most_terms :] for column in columns), self.messages, self.total_tokens
        form = self.stop_terms, self.stem_language, self.folds_accents, self.attributes
        form = *form, self.most_terms, self.keeps_order
        return Vocabulary, (self.terms, *statistics, *form), (self.admitted, self.idf[self.first_id : self.most_terms])

    def __setstate__(self, state: tuple[list[str], Float64]) -> None:
        admitted, idf = state
        self._append(admitted)
        self.idf[self.first_id : self.most_terms] = idf

    @classmethod
    def of_counts(
        cls,
        messages: Iterable[Mapping[str, int]],
        stem_language: str = "",
        folds_accents: bool = False,
        most_terms: int = 0,
        attributes: AttributeSchema = NO_ATTRIBUTES,
    ) -> "Vocabulary":
        """Make the vocabulary of messages given as counts by term; for small collections and for tests."""
        document_frequency: Counter[str] = Counter()
        collection_count: Counter[str] = Counter()
        total = 0
        for counts in messages:
            total += 1
            document_frequency.update(counts.keys())
            collection_count.update(counts)
        # Sorted by UTF-8 bytes, as Spark sorts strings.
        terms = sorted(document_frequency, key=lambda term: (document_frequency[term], term.encode()))
        return cls(
            terms,
            [document_frequency[term] for term in terms],
            [collection_count[term] for term in terms],
            [inverse_document_frequency(total, document_frequency[term]) for term in terms],
            total,
            stem_language=stem_language,
            folds_accents=folds_accents,
            attributes=attributes,
            most_terms=most_terms,
        )

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def first_id(self) -> int:
        """The lowest id that a term has."""
        return self.most_terms - len(self.admitted)

    @property
    def reserved(self) -> int:
        """The id of the reserved term (`matching.reserved`): above those of all words, and the same for good."""
        return self.most_terms + len(self.terms)

    def term_of(self, term_id: int) -> str:
        """The term of an id."""
        late = self.most_terms - 1 - term_id
        return self.admitted[late] if late >= 0 else self.terms[term_id - self.most_terms]

    def id_of(self, term: str) -> int | None:
        """The id of a term (already tokenised and stemmed), None if it has none."""
        return self._ids.get(term)

    def count_terms(self, text: str) -> dict[str, int]:
        """How often each term occurs in a text, folded and stemmed the way this vocabulary was."""
        return count_terms(text, self.form)

    def terms_of(self, text: str) -> list[str]:
        """Terms of a text in order of appearance, with repeats, folded and stemmed the way this vocabulary was."""
        return terms_of(text, self.form)

    def words_of(self, text: str) -> list[Word]:
        """Words of a text as people write them, their pieces folded and stemmed the way this vocabulary was."""
        return [Word(pieces) for pieces in words_of(text, self.form) if any(pieces)]

    def order_of(self, text: str) -> list[int]:
        """Ids of the terms of a text in order of appearance, `JOINED_ID` between pieces; -1 for one that has none."""
        pieces = (piece for word in words_of(text, self.form) for piece in word)
        return [self._ids.get(piece, -1) if piece else JOINED_ID for piece in pieces]

    def words_from(self, beginning: str) -> list[str]:
        """Terms that begin so. O(log terms + found)."""
        return self.beginnings.words(self, beginning)

    def as_it_is(self) -> "Vocabulary":
        """This one, for questions about messages that are there: beginnings of words mean the words there are. O(1)."""
        found = object.__new__(Vocabulary)
        found.__dict__ |= self.__dict__ | {"grows": False}
        return found

    def keyword_terms(self, keywords: str | Iterable[str]) -> list[str]:
        """Distinct terms of a subscription's keywords, in order of first appearance."""
        texts = [keywords] if isinstance(keywords, str) else keywords
        return list(dict.fromkeys(term for text in texts for term in self.count_terms(text)))

    def admit(self, terms: Sequence[str], messages: int, attributes: Sequence[str] = ()) -> None:
        """Give terms the next ids below, with the idf of document frequency 0.5, for good. Amortised O(1) a term.

        Attributes are declared, each as `matching.attributes.Attribute.parse` reads it.

        Parameters
        ----------
        terms : sequence of str
        messages : int
            N, at least 1 is taken: those of the collection and of the stream, before the batch that brings the terms.
        attributes : sequence of str

        Raises
        ------
        ConfigError
            For an attribute that cannot be declared.
        CheckpointError
            If a term has an id already, or there are more than `most_terms`: the terms are another stream's.
        """
        self.attributes = self.attributes.plus(attributes)
        self._append(terms)
        idf = inverse_document_frequency(max(1, messages), LATE_DOCUMENT_FREQUENCY)
        self.idf[self.first_id : self.first_id + len(terms)] = idf

    def settled(self, messages: int, most_terms: int = 0) -> "Vocabulary":
        """This one with the admitted terms among those of the collection, of so many messages. O(n).

        Its ids begin with `most_terms`: how many terms it may admit later.
        """
        first, frequency, count = self.first_id, self.document_frequency, self.collection_count
        form = self.total_tokens, self.stop_terms, self.stem_language, self.folds_accents, self.attributes, most_terms
        form = *form, self.keeps_order
        terms = [*reversed(self.admitted), *self.terms]
        return Vocabulary(terms, frequency[first:], count[first:], self.idf[first:], messages, *form)

    def forget_admitted(self) -> None:
        """Go back to the terms of the collection, and the attributes that the stream began with."""
        self.attributes = self.attributes.at_start
        for term in self.admitted:
            del self._ids[term]
        self.idf[self.first_id : self.most_terms] = 0.0
        self.admitted.clear()
        self.forgotten += 1

    def _append(self, terms: Sequence[str]) -> None:
        """Give terms ids."""
        ids = self._ids
        for term_id, term in zip(range(self.first_id - 1, -2, -1), terms, strict=False):
            if term in ids or term_id < 0:
                what = "is admitted twice" if term in ids else f"is one more than {self.most_terms:,}"
                raise CheckpointError(f"term {term!r} {what}: the admitted terms are not those of this vocabulary")
            ids[term] = term_id
            self.admitted.append(term)


def _from_id(first: int, column: Sequence[float] | NDArray[Any], dtype: Any) -> NDArray[Any]:
    """A copy whose first row has this id; the rows before are zeros, which take no memory until they are written."""
    shifted = np.zeros(first + len(column), dtype)
    shifted[first:] = column
    return shifted
