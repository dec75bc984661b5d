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
from matching.languages import Piece, language_and_text, message_pieces, stem_form
from matching.model import WEIGHT, Float32, Float64, Int64
from matching.pieces import JOINED_ID, NAMED_ID, Word, named_ids
from matching.text import in_case_of, named_by, term_form, terms_of, words_of
from matching.words.beginnings import Beginnings, is_for_matching_alone

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
        How many words may be admitted later, and how many terms for matching alone.
    keeps_order : bool
        Whether the messages have the order of their words.

    Attributes
    ----------
    admitted : list of str
        Words admitted so far, in that order.
    begun : list of str
        Terms for matching alone that were admitted so far (`matching.words.beginnings`), in that order. They take no
        place of a word.
    grows : bool
        Whether beginnings of words are terms, which are admitted (`matching.words.beginnings`); otherwise they mean the
        words there are.
    forgotten : int
        How often the admitted terms were forgotten.
    form : callable or None
        What the terms of a text are turned into (`term_form`).
    readings : tuple of Vocabulary
        Of `spoken_in`: how it reads a word, by its stem and as the stream cuts it.

    Notes
    -----
    About 200 bytes and 0.3 us to build a term. Columns are indexed by id; that of terms for matching alone has `idf`
    only. The collection's terms have ids from `most_terms` on, in their order; those of admitted words descend from
    there, so that the newest is the first where ids ascend. Ids of terms for matching alone ascend behind those of all
    words. No id ever changes. The text of a message may carry its language (`matching.languages.in_language`).
    """

    readings: tuple["Vocabulary", ...] = ()

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
        self.begun: list[str] = []
        self.forgotten = 0
        self.grows = most_terms > 0
        self.beginnings = Beginnings()
        self.document_frequency = _with_room(document_frequency, np.int64, most_terms)
        self.collection_count = _with_room(collection_count, np.int64, most_terms)
        self.idf: Float64 = _with_room(idf, np.float64, most_terms, most_terms)
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
        of_words = slice(self.most_terms, self.most_terms + len(self.terms))
        statistics = *(column[of_words] for column in columns), self.messages, self.total_tokens
        form = self.stop_terms, self.stem_language, self.folds_accents, self.attributes
        form = *form, self.most_terms, self.keeps_order
        late = [*self.admitted, *self.begun], self.idf[self.first_id : self.most_terms]
        return Vocabulary, (self.terms, *statistics, *form), late

    def __setstate__(self, state: tuple[list[str], Float64]) -> None:
        late, idf = state
        self._append(late)
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
        """How many words there are."""
        return len(self._ids) - len(self.begun)

    @property
    def first_id(self) -> int:
        """The lowest id that a word has."""
        return self.most_terms - len(self.admitted)

    @property
    def reserved(self) -> int:
        """The id of the reserved term (`matching.reserved`): above those of all others, and the same for good."""
        return self.idf.shape[0]

    def term_of(self, term_id: int) -> str:
        """The term of an id."""
        late, begun = self.most_terms - 1 - term_id, term_id - self.most_terms - len(self.terms)
        if begun >= 0:
            return self.begun[begun]
        return self.admitted[late] if late >= 0 else self.terms[term_id - self.most_terms]

    def id_of(self, term: str) -> int | None:
        """The id of a term (already tokenised and stemmed), None if it has none."""
        return self._ids.get(term)

    def count_terms(self, text: str) -> dict[str, int]:
        """How often each term occurs in a text, folded and stemmed the way this vocabulary was."""
        return dict(Counter(self.terms_of(text)))

    def terms_of(self, text: str) -> list[str]:
        """Terms of a text in order of appearance, with repeats, folded and stemmed the way this vocabulary was."""
        if self.readings:
            return [term for one in self.readings for term in one.terms_of(text)]
        if pieces := self._pieces_of_language(text):
            return [piece.term for piece in pieces if piece.term and not piece.alone]
        return terms_of(self._in_case(text), self.form)

    def words_of(self, text: str) -> list[Word]:
        """Words of a text as people write them, their pieces folded and stemmed the way this vocabulary was."""
        return [Word(pieces) for pieces in words_of(self._in_case(text), self.form) if any(pieces)]

    def found_by(self, text: str) -> dict[str, None]:
        """The distinct terms that a message with this text may be found by: those of `count_terms`, and those for
        matching alone: words that its hashtags name, and of a text in a language its words as the stream cuts them."""
        if pieces := self._pieces_of_language(text):
            return dict.fromkeys(piece.term for piece in pieces if piece.term)
        terms = self.terms_of(text)
        named = (piece for term in terms for piece in named_by(term, self.form) if piece)
        return dict.fromkeys([*terms, *named])

    def order_of(self, text: str) -> list[int]:
        """Ids of the terms of a text in order of appearance, `JOINED_ID` between pieces; -1 for one that has none.

        Behind a hashtag stands the word that it names (`matching.pieces.named_ids`).
        """

        def id_in(piece: str) -> int:
            return self._ids.get(piece, -1) if piece else JOINED_ID

        if spoken := self._pieces_of_language(text):
            return [NAMED_ID - id_in(piece.term) if piece.alone else id_in(piece.term) for piece in spoken]
        pieces = (piece for word in words_of(self._in_case(text), self.form) for piece in word)
        named = ((piece, list(map(id_in, named_by(piece, self.form)))) for piece in pieces)
        return [each for piece, ids in named for each in (id_in(piece), *named_ids(ids))]

    def _in_case(self, text: str) -> str:
        return in_case_of(language_and_text(text)[1], self.stem_language)

    def _pieces_of_language(self, text: str) -> list[Piece]:
        """The terms of a text that carries its language; none if it has none."""
        language, own = language_and_text(text)
        return message_pieces(own, language, self.stem_language, self.folds_accents) if language else []

    def spoken_in(self, language: str) -> "Vocabulary":
        """This one, for the words of a subscription of a language, "" for the stream's. O(1)."""
        if not language:
            return self
        bare = self._having(stem_language=language, form=term_form("", self.folds_accents))
        forms = stem_form(language, self.folds_accents), self.form
        return bare._having(readings=tuple(bare._having(form=form) for form in forms))

    def words_from(self, beginning: str) -> list[str]:
        """Terms that begin so. O(log terms + found)."""
        return self.beginnings.words(self, beginning)

    def as_it_is(self) -> "Vocabulary":
        """This one, for questions about messages that are there: beginnings of words mean the words there are. O(1)."""
        return self._having(grows=False)

    def _having(self, **attributes: Any) -> "Vocabulary":
        found = object.__new__(Vocabulary)
        found.__dict__ |= self.__dict__ | attributes
        return found

    def keyword_terms(self, keywords: str | Iterable[str]) -> list[str]:
        """Distinct terms of a subscription's keywords, in order of first appearance."""
        texts = [keywords] if isinstance(keywords, str) else keywords
        return list(dict.fromkeys(term for text in texts for term in self.count_terms(text)))

    def admit(self, terms: Sequence[str], messages: int, attributes: Sequence[str] = ()) -> None:
        """Give words the next ids below, with the idf of document frequency 0.5, for good. Amortised O(1) a term.

        Terms for matching alone get the next ids above, and no idf. Attributes are declared, each as
        `matching.attributes.Attribute.parse` reads it.

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
        before = self.first_id
        self._append(terms)
        idf = inverse_document_frequency(max(1, messages), LATE_DOCUMENT_FREQUENCY)
        self.idf[self.first_id : before] = idf

    def settled(self, messages: int, most_terms: int = 0) -> "Vocabulary":
        """This one with the admitted words among those of the collection, of so many messages. O(n).

        Its ids begin with `most_terms`: how many words it may admit later. Terms for matching alone stay behind.
        """
        words = slice(self.first_id, self.most_terms + len(self.terms))
        frequency, count = self.document_frequency[words], self.collection_count[words]
        form = self.total_tokens, self.stop_terms, self.stem_language, self.folds_accents, self.attributes, most_terms
        form = *form, self.keeps_order
        terms = [*reversed(self.admitted), *self.terms]
        return Vocabulary(terms, frequency, count, self.idf[words], messages, *form)

    def forget_admitted(self) -> None:
        """Go back to the terms of the collection, and the attributes that the stream began with."""
        self.attributes = self.attributes.at_start
        for term in (*self.admitted, *self.begun):
            del self._ids[term]
        self.idf[self.first_id : self.most_terms] = 0.0
        self.admitted.clear()
        self.begun.clear()
        self.forgotten += 1

    def _append(self, terms: Sequence[str]) -> None:
        """Give terms ids."""
        ids, behind = self._ids, self.most_terms + len(self.terms)
        for term in terms:
            alone = is_for_matching_alone(term)
            some = self.begun if alone else self.admitted
            if term in ids or len(some) == self.most_terms:
                what = "is admitted twice" if term in ids else f"is one more than {self.most_terms:,}"
                raise CheckpointError(f"term {term!r} {what}: the admitted terms are not those of this vocabulary")
            ids[term] = behind + len(some) if alone else self.first_id - 1
            some.append(term)


def _with_room(column: Sequence[float] | NDArray[Any], dtype: Any, before: int, behind: int = 0) -> NDArray[Any]:
    """A copy with so many rows more, which are zeros and take no memory until they are written."""
    copied = np.zeros(before + len(column) + behind, dtype)
    copied[before : before + len(column)] = column
    return copied
