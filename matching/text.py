"""From text to terms, and from terms to weighted vectors. The only tokeniser of the project.

The ETL calls it on messages, the loader of subscriptions on keywords, so both sides always agree on what a word
is. Pure functions and one class; nothing here reads a file.

What a term is: text is unescaped (HTML entities that end with a semicolon), normalised (NFKC, case folded, invisible
characters removed) and cut. URLs are dropped, with the letters beyond ASCII in them. `#tag` and `@user` stay whole,
mark included, so `#ramen` and `ramen` differ. In the scripts that do not separate words (Chinese, Japanese, Thai, ...)
and in Korean, where particles stick to words, a run gives every character and, between two of them, their pair. All
other runs of letters, marks and digits are one term; so are some names with signs in them, such as `C++`. `café` and
`cafe` differ, unless accents are folded (`fold_accents`), for messages and keywords alike.

What people write between two spaces is a word, however many terms it gives: its pieces. They are in a text if they
stand in a row there, without a space. For that a text has its terms in order of appearance, with `JOINED` between two
that no space separates; where characters and their pairs alternate, a pair says so itself. Between the columns of a
text `JOINED` stands twice (`matching.pieces.BETWEEN_COLUMNS`).
"""

import html
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from html.entities import html5
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
import regex
import Stemmer
from numpy.typing import NDArray

from matching.attributes import NO_ATTRIBUTES, AttributeSchema
from matching.errors import CheckpointError, ConfigError
from matching.model import TERM, WEIGHT, Float32, Float64, Int32, Int64
from matching.pieces import BETWEEN_COLUMNS, JOINED, JOINED_ID, Word
from matching.words.beginnings import Beginnings

#: Longest text that is let in (`matching.validate`), in characters: 200 times a long tweet, yet a batch of such texts
#: still fits in memory.
MAX_TEXT_CHARACTERS = 65_536

#: Terms are cut after this many characters, so that a megabyte without a space cannot become a key in every index.
MAX_TERM_CHARACTERS = 128

#: Document frequency that a term is taken to have when it turns up after the vocabulary was made.
LATE_DOCUMENT_FREQUENCY = 0.5

# Unicode's stream-safe limit. Normalisation sorts each run of combining marks by insertion, which takes quadratic
# time on a long hostile run; the two halfwidth voice marks are letters by class but turn into marks.
_LONG_MARK_RUN = regex.compile(r"([\p{M}\uFF9E\uFF9F]{30})[\p{M}\uFF9E\uFF9F]+")
# Invisible characters inside words (soft hyphen, joiners, direction marks, variation selectors). The zero-width
# space stays: it separates words.
IGNORABLE = regex.compile(r"[\p{Default_Ignorable_Code_Point}--\u200B]+", regex.V1)
# With the semicolon alone: HTML also knows a hundred names without, but texts have BTC&ETH and links ?a=1&region=2.
_ENTITY = re.compile(r"&(#[0-9]+|#[xX][0-9A-Fa-f]+|[A-Za-z][A-Za-z0-9]{1,31});")

UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
    r"\u30FC\u3005-\u3007"
)
#: What separates words as people write them, and what may not stand behind a name.
SPACE = r"\p{White_Space}\x1C-\x1F\u200B"
_URL = r"(?:https?|ftp)://{0}*|www\.{0}+"
_IN_TAG = r"[\p{L}\p{M}\p{N}_]"
#: Names that would lose a sign otherwise, and be another word; letters are folded by then.
_NAME = r"[cg]\+\+|[cf]#(?!{0})|\.(?<!{0}\.)net(?!{0})"
_ASCII_TOKEN = re.compile(
    _URL.format("[!-~]") + rf"|[\t-\r\x1C-\x20]+|({_NAME.format('[a-z0-9_]')}|(?<![a-z0-9_])[#@][a-z0-9_]+|[a-z0-9]+)"
)
_TOKEN = regex.compile(
    # Unspaced scripts end a link, since there text follows one without a space.
    _URL.format(rf"[!-~[[\p{{L}}\p{{M}}\p{{N}}]--[{UNSPACED}]]]")
    + rf"|(?P<name>{_NAME.format(_IN_TAG)})"
    + rf"|(?P<tag>(?<!{_IN_TAG})[#@]{_IN_TAG}+)"
    + rf"|(?P<unspaced>(?:[{UNSPACED}&&[\p{{L}}\p{{N}}]]\p{{M}}*+)+)"
    + rf"|(?P<word>[[\p{{L}}\p{{N}}]--[{UNSPACED}]][[\p{{L}}\p{{M}}\p{{N}}]--[{UNSPACED}&&[\p{{L}}\p{{N}}]]]*)"
    + r"|(?P<picture>\p{RI}\p{RI}|\p{Extended_Pictographic})",
    regex.V1,
)
_UNSPACED, _SPACE = (regex.compile(f"[{one}]", regex.V1) for one in (UNSPACED, SPACE))
_CHARACTER = regex.compile(r".\p{M}*", regex.V1 | regex.DOTALL)
# In other scripts marks are no decoration: they are vowels (Devanagari, Thai), voicing (Japanese), letters (Cyrillic).
_ACCENTS = regex.compile(r"(?<=[\p{Latin}\p{Greek}])\p{M}+", regex.V1)
# Latin letters that Unicode does not take apart, as people write them who have no such key.
_PLAIN_LETTERS = str.maketrans(
    {"ø": "o", "æ": "ae", "œ": "oe", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ħ": "h", "ŧ": "t", "ŋ": "n", "ı": "i"}
)


def tokenise(text: str) -> list[str]:
    """Terms of a text in order of appearance, with repeats.

    Parameters
    ----------
    text : str
        Of any length; `matching.validate` has already turned away texts over `MAX_TEXT_CHARACTERS`.

    Returns
    -------
    list of str
        Each at most `MAX_TERM_CHARACTERS` long. For unspaced scripts the characters of a run, pairs between them.

    Notes
    -----
    Linear in the length of the text, whatever is in it: 8 us for an English tweet, 20 us for a text of several scripts,
    0.4 s for the worst megabyte.
    """
    return list(filter(None, chain.from_iterable(cut_words(text))))


def cut_words(text: str) -> list[list[str]]:
    """The words of a text as people write them, each as its pieces, with `JOINED` between them; as of `tokenise`.

    Where words of two columns meet, two `JOINED` stand between like a word of their own.
    """
    if "&" in text:
        text = _ENTITY.sub(_character_of, text)
    if not text.isascii():
        return _cut_unicode(text)
    # Same answer as above for such texts (a property test says so), five times as fast.
    words: list[list[str]] = []
    goes_on = False
    for token in _ASCII_TOKEN.findall(text.lower()):
        if not token:  # a space or a link
            goes_on = False
        elif token.strip("#@_"):
            if goes_on:
                words[-1] += (JOINED, token[:MAX_TERM_CHARACTERS])
            else:
                words.append([token[:MAX_TERM_CHARACTERS]])
                goes_on = True
    return words


def _character_of(entity: re.Match[str]) -> str:
    """What an entity of HTML stands for; itself if there is none of that name."""
    name = entity[1]
    if name[0] != "#":
        return html5.get(name + ";", entity[0])
    number = name[1:].lstrip("0")
    # Python refuses to read decimal numbers of more than 4300 digits; no character has one of nine.
    return " " if len(number) > 8 and number.isdigit() else html.unescape(f"&#{number};")


def _cut_unicode(text: str) -> list[list[str]]:
    """`cut_words` for any script, after entities are undone."""
    words: list[list[str]] = []
    goes_on, column_ends, end, text = False, False, 0, normalise(text)
    for match in _TOKEN.finditer(text):
        kind, token, between = match.lastgroup, match.group(), text[end : match.start()]
        goes_on = goes_on and not (" " in between or (between and _SPACE.search(between)))
        column_ends = column_ends or BETWEEN_COLUMNS in between
        end = match.end()
        if kind is None:  # a link
            goes_on = False
            continue
        if kind == "tag" and not token.strip("#@_"):
            continue
        pieces = [token[:MAX_TERM_CHARACTERS]]
        if kind == "unspaced":
            characters = [piece[:MAX_TERM_CHARACTERS] for piece in _CHARACTER.findall(token)]
            pairs = [(a + b)[:MAX_TERM_CHARACTERS] for a, b in zip(characters, characters[1:], strict=False)]
            pieces = [piece for two in zip_longest(characters, pairs) for piece in two if piece]
        if column_ends and words:
            words.append([JOINED, JOINED])
        if goes_on:
            words[-1] += (JOINED, *pieces)
        else:
            words.append(pieces)
        goes_on, column_ends = True, False
    return words


def normalise(text: str) -> str:
    """NFKC and case folding without invisible characters; long runs of combining marks are cut. Linear."""
    text = _LONG_MARK_RUN.sub(r"\1", IGNORABLE.sub("", text))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    # Folding turns the Turkish capital I into i and a lone dot, which a search for "istanbul" would not find.
    return folded.replace("i\u0307", "i")


@lru_cache(maxsize=8)
def stemmer(language: str) -> Callable[[str], str]:
    """A function from term to stem, which remembers the terms it has seen; "" gives terms back unchanged.

    Tags and users are never stemmed. About 0.4 us for each new term.

    Raises
    ------
    ConfigError
        If there is no stemmer for the language.
    """
    if not language:
        return str
    if language not in Stemmer.algorithms():
        choices = ", ".join(sorted(Stemmer.algorithms()))
        raise ConfigError(f"stem language {language!r} is not known: choose one of {choices}")
    stem_word = Stemmer.Stemmer(language, 0).stemWord  # without its own cache of 10,000 words

    @lru_cache(maxsize=1_000_000)
    def stem(term: str) -> str:
        return term if term[0] in "#@" else stem_word(term)

    return stem


def fold_accents(term: str) -> str:
    """A term without the accents of its Latin and Greek letters; other scripts stay as they are. Linear.

    Folding a folded term changes nothing.
    """
    if term.isascii():
        return term
    bare = _ACCENTS.sub("", unicodedata.normalize("NFD", term)).translate(_PLAIN_LETTERS)
    return unicodedata.normalize("NFKC", bare)[:MAX_TERM_CHARACTERS]


@lru_cache(maxsize=8)
def term_form(stem_language: str = "", folded: bool = False) -> Callable[[str], str] | None:
    """What terms are turned into once a text is cut, None if they stay: accents are folded, then words are stemmed.

    In this order, since a stemmer takes `café` and `cafe` for words of different endings.

    Raises
    ------
    ConfigError
        If there is no stemmer for the language.
    """
    stem = stemmer(stem_language) if stem_language else None
    if not folded:
        return stem
    fold = lru_cache(maxsize=1_000_000)(fold_accents)
    return fold if stem is None else lambda term: stem(fold(term))


def words_of(text: str, form: Callable[[str], str] | None = None) -> list[list[str]]:
    """`cut_words` with the form of each piece; `form` is one of `term_form`. Linear."""
    words = cut_words(text)
    return words if form is None else [[piece and form(piece) for piece in word] for word in words]


def terms_of(text: str, form: Callable[[str], str] | None = None) -> list[str]:
    """Terms of a text in order of appearance, with repeats; `form` is one of `term_form`. Linear."""
    tokens = tokenise(text)
    return tokens if form is None else list(map(form, tokens))


def count_terms(text: str, form: Callable[[str], str] | None = None) -> dict[str, int]:
    """How often each term occurs in a text, in order of first appearance; `form` is one of `term_form`. Linear."""
    return dict(Counter(terms_of(text, form)))


def has_unspaced(text: str) -> bool:
    """Whether a text has letters of a script that does not separate words."""
    return not text.isascii() and _UNSPACED.search(normalise(text)) is not None


def is_pair(term: str) -> bool:
    """Whether a term is a pair of characters of a script that does not separate words."""
    return not term.isascii() and _UNSPACED.match(term) is not None and len(_CHARACTER.findall(term)) > 1


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


class TermVector(NamedTuple):
    """Terms of one message or subscription.

    terms : int32[n]        ascending, without repeats
    counts : int32[n]       1 for subscriptions
    weights : float32[n]    unit L2 norm
    unknown : int           distinct terms left out because the vocabulary lacks them
    stopped : int           distinct terms left out because they are removed stop terms
    """

    terms: Int32
    counts: Int32
    weights: Float32
    unknown: int
    stopped: int


class TermColumns(NamedTuple):
    """Terms of many messages: row r has `terms[offsets[r]:offsets[r + 1]]`.

    offsets : int64[rows + 1]
    terms : int32[nnz]       ascending within a row, without repeats
    counts : int32[nnz]
    weights : float32[nnz]   unit L2 norm for each row
    unknown, stopped : int32[rows]
        Distinct terms that are left out, as of `TermVector`.
    """

    offsets: Int64
    terms: Int32
    counts: Int32
    weights: Float32
    unknown: Int32
    stopped: Int32


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

    def unit_vector(self, counts: Mapping[str, int], first_id: int = 0) -> TermVector:
        """A message's vector: each term weighs count * idf, scaled to unit norm over the terms known here.

        Terms whose ids are below `first_id` count as unknown: they were admitted later than the message.
        """
        return self._vector(counts, True, first_id)

    def unit_vectors(self, rows: Sequence[Mapping[str, int]], first_id: int = 0) -> TermColumns:
        """`unit_vector` of many messages, to the bit, in a third of the time."""
        found: list[int] = []  # ids and counts apart: a pair an occurrence is work for Python's collector of cycles
        repeated: list[int] = []
        for counts in rows:
            found += [self._ids.get(term, -1) for term in counts]
            repeated += counts.values()
        lengths = np.array([len(counts) for counts in rows], np.int64)
        ids, row = np.array(found, np.int64), np.repeat(np.arange(len(rows)), lengths)
        known = np.flatnonzero(ids >= first_id)
        known = known[np.lexsort((ids[known], row[known]))]
        terms, repeats = ids[known].astype(TERM), np.array(repeated, np.int32)[known]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(row[known], minlength=len(rows)))])
        weights = unit_weights(self.idf[terms] * repeats, offsets)
        stopped = np.array(list(map(self._stopped, rows)), np.int32)
        unknown = (lengths - np.diff(offsets)).astype(np.int32) - stopped
        return TermColumns(offsets, terms, repeats, weights, unknown, stopped)

    def keyword_vector(self, terms: Iterable[str]) -> TermVector:
        """A subscription's vector: each distinct term weighs its idf, scaled to unit norm over the terms known here."""
        return self._vector(dict.fromkeys(terms, 1), False)

    def _vector(self, counts: Mapping[str, int], weigh_counts: bool, first_id: int = 0) -> TermVector:
        ids = ((self._ids.get(term, -1), count) for term, count in counts.items())
        known = sorted(pair for pair in ids if pair[0] >= first_id)
        terms = np.array([term_id for term_id, _ in known], TERM)
        repeats = np.array([count for _, count in known], np.int32)
        raw = self.idf[terms] * repeats if weigh_counts else self.idf[terms]
        weights = unit_weights(raw, np.array([0, terms.shape[0]], np.int64))
        stopped = self._stopped(counts)
        return TermVector(terms, repeats, weights, len(counts) - terms.shape[0] - stopped, stopped)

    def _stopped(self, counts: Mapping[str, int]) -> int:
        """How many of these terms are removed stop terms."""
        return sum(term in self.stop_terms for term in counts) if self.stop_terms else 0

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
