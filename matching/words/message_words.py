"""Term ids and weights of the texts of messages, block by block, by a vocabulary that may grow.

`MessageWords` cuts texts (`matching.words.cutting`) and keeps what each token is to the vocabulary. Its vectors are to
the bit those that `matching.vocabulary.unit_weights` gives a text alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.languages import BETWEEN, MARK, language_and_text, spelling_in
from matching.model import TERM, WEIGHT, Float64, Int32, Int64, Names
from matching.pieces import JOINED, JOINED_ID, NAMED_ID
from matching.storage.slots import grown, put
from matching.storage.sorting import ascending
from matching.text import DOTLESS, in_case_of, is_pair, named_by
from matching.vocabulary import Vocabulary
from matching.words.beginnings import TermColumns
from matching.words.cutting import Cut, TextCutter, longest

_UNKNOWN, _STOPPED = -1, -2
#: Terms of a text up to which insertion is faster than sorting.
_FEW = 64
#: `JOINED` between two columns of a text that carries its language.
_COLUMN_ENDS = len(BETWEEN)


class MessageTerms(NamedTuple):
    """The words of n messages as terms.

    ids : int32[m]           in order of appearance; -1 for a word without an id, -2 for a stop term, `JOINED_ID`
                             between pieces of a word; behind a hashtag the word that it names, and of a message of a
                             language its words as the stream cuts them (`matching.pieces.NAMED_ID`)
    offsets : int64[n + 1]   cuts `ids` into messages
    unknown : int32[n]       distinct words of each message without an id
    stopped : int32[n]       distinct stop terms of each
    """

    ids: Int32
    offsets: Int64
    unknown: Int32
    stopped: Int32


class Distinct(NamedTuple):
    """The distinct terms of rows.

    numbers : int32[n]          in order of first appearance; valid until the next `MessageWords.cut`
    offsets : int64[rows + 1]   cuts `numbers` into rows
    terms : int32[m]            ids of those that have one, ascending within a row
    known : int64[rows + 1]     cuts `terms` into rows
    stopped : bool[rows]        whether one is a stop term
    cut : bool[rows]            whether a word as people write it is cut into several pieces
    """

    numbers: Int32
    offsets: Int64
    terms: Int32
    known: Int64
    stopped: np.ndarray
    cut: np.ndarray


class MessageWords:
    """Cuts texts and weighs their terms by a vocabulary, whose admitted terms it follows; for one thread.

    Parameters
    ----------
    vocabulary : Vocabulary

    Notes
    -----
    With new terms admitted 2.5 us for an English tweet, 4.5 us for a text of several scripts, and 1 us more for each
    new token (on a busy machine); for a text of another language than the stream's about twice that, and 10 us for each
    new token of a language. Memory as of `TextCutter`, and 150 bytes a token; each language takes about as much again.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self._cutter = TextCutter()
        self._forget()

    def cut(self, texts: Names) -> Cut:
        """Terms of texts in order of appearance, as numbers that are valid until the next call.

        A text may carry its language (`matching.languages.in_language`).
        """
        language, size = self.vocabulary.stem_language, texts.data.shape[0]
        several = size > 0 and not texts.data[np.minimum(texts.offsets[:-1], size - 1)].all()  # one begins with MARK
        spoken: Sequence[str] = ()
        if several or (size and language == DOTLESS):
            spoken, plain = zip(*map(language_and_text, texts.strings()), strict=True)
            texts = Names.of([in_case_of(text, own or language) for own, text in zip(spoken, plain, strict=True)])
        cut = self._cutter.cut(texts)
        if self._emptied != self._cutter.emptied:
            self._forget()
        self._number_tokens()
        return self._spelt_in(spoken, cut) if several else Cut(self._number_of[cut.tokens], cut.offsets)

    def _spelt_in(self, spoken: Sequence[str], cut: Cut) -> Cut:
        """Terms of texts from their tokens, each text in its language; "" stands for the language of the stream."""
        known, languages = len(self._names), {language: number for number, language in enumerate(dict.fromkeys(spoken))}
        of_tokens = np.repeat(list(map(languages.__getitem__, spoken)), np.diff(cut.offsets))
        at = np.zeros(cut.tokens.shape[0], np.int32)
        for language in languages.keys() - {""}:
            here = np.flatnonzero(of_tokens == languages[language])
            places = self._spelt_at.get(language, np.zeros(0, np.int32))
            places = self._spelt_at[language] = grown(places, self._tokens)
            tokens = cut.tokens[here]
            for token in np.unique(tokens[places[tokens] == 0]).tolist():
                places[token] = self._spell(token, language)
            at[here] = places[tokens]
        self._take_names(known)
        most = 2 * (int(self._spelt[at].sum()) + at.shape[0]) + 2 * _COLUMN_ENDS * len(spoken)
        found, ends = np.empty(most, np.int32), np.zeros_like(cut.offsets)
        count = _put_spelt(cut.tokens, cut.offsets, self._number_of, at, self._spelt, found, ends)
        return Cut(found[:count], ends)

    def _spell(self, token: int, language: str) -> int:
        """The place in `_spelt` of a token in a language, whose terms are numbered."""
        spelling = spelling_in(language, self.vocabulary.stem_language, self.vocabulary.folds_accents)
        (text,) = self._cutter.strings(token, token + 1)
        stems, written, named = ([self._numbered(piece.name) for piece in column] for column in spelling(text))
        at, entry = self._spelt_used, [len(stems), *stems, *written, *named]
        self._spelt_used += len(entry)
        self._spelt = grown(self._spelt, self._spelt_used)
        self._spelt[at : self._spelt_used] = entry
        return at

    def new_terms(self, cut: Cut) -> list[str]:
        """Distinct terms of texts that have no id and are no stop terms, in order of first appearance."""
        self._follow()
        ids = self._id_of[cut.tokens]
        unknown = cut.tokens[(ids == _UNKNOWN) | (ids == NAMED_ID - _UNKNOWN)]
        if not unknown.shape[0]:
            return []
        numbers, first = np.unique(unknown, return_index=True)
        names = (self._names[number] for number in numbers[np.argsort(first)].tolist())
        return list(dict.fromkeys(name.removeprefix(MARK) for name in names))

    def terms(self, cut: Cut, first_ids: Sequence[int] | None = None) -> MessageTerms:
        """Ids of the words of texts, of those from `first_ids` on, one for each text; by default all.

        Terms with lower ids count as unknown: they were admitted later than the message.
        """
        self._follow()
        texts, named = cut.offsets.shape[0] - 1, (self._named_at, self._named)
        most = cut.tokens.shape[0]
        if self._named_used > 1:
            most += _count_named(cut.tokens, *named)
        unknown, stopped = np.zeros(texts, np.int32), np.zeros(texts, np.int32)
        found = MessageTerms(np.empty(most, TERM), np.zeros(texts + 1, np.int64), unknown, stopped)
        first = np.zeros(texts, np.int64) if first_ids is None else np.array(first_ids, np.int64)
        count = _find(cut.tokens, cut.offsets, self._id_of, named, self._seen_in, self._texts, first, found)
        self._texts += texts
        return found if count == most else found._replace(ids=found.ids[:count])

    def distinct(self, cut: Cut, ends: Int64) -> Distinct:
        """The distinct terms of rows, of which each is of the texts from `ends[row]` to `ends[row + 1]`; their ids."""
        self._follow()
        rows, most = ends.shape[0] - 1, cut.tokens.shape[0]
        numbers, terms, offsets, known = np.empty(most, np.int32), np.empty(most, TERM), np.zeros_like(ends), ends * 0
        found = Distinct(numbers, offsets, terms, known, np.zeros(rows, np.bool_), np.zeros(rows, np.bool_))
        _distinct(cut.tokens, cut.offsets[ends], self._id_of, self._seen_in, self._texts, self._links, found)
        self._texts += rows
        return found._replace(numbers=numbers[: offsets[-1]], terms=terms[: known[-1]])

    def names(self, numbers: Int32) -> list[str]:
        """The terms of numbers."""
        return list(map(self._names.__getitem__, numbers.tolist()))

    def _forget(self) -> None:
        """Begin again without tokens."""
        self._emptied = self._cutter.emptied
        self._tokens = self._texts = 0
        self._terms: dict[str, int] = {}  # their numbers
        self._names: list[str] = []
        self._number_of = np.zeros(0, np.int32)  # of the term of each token
        self._id_of: Int32 = np.zeros(0, TERM)  # of each number
        self._seen_in = np.zeros(0, np.int64)  # the text that had a number last
        self._links = np.zeros(0, np.bool_)  # whether it stands between, or is a pair of, pieces of a word
        self._named_at = np.zeros(0, np.int32)  # of a hashtag the place in `_named` of the word that it names; else 0
        self._named, self._named_used = np.zeros(1, np.int32), 1  # of each how many pieces it has, and their numbers
        self._spelt_at: dict[str, Int32] = {}  # by language of each token its place in `_spelt`; 0: none yet
        # of each how many stems there are, and the numbers of its `Spelling`; at 0 for a text without a language
        self._spelt, self._spelt_used = np.ones(1, np.int32), 1
        self._look_up_all()

    def _number_tokens(self) -> None:
        """Number the terms of tokens that are new, and look up their ids."""
        count = self._cutter.count
        if count == self._tokens:
            return
        form, known, numbers = self.vocabulary.form or str, len(self._names), []
        for token in self._cutter.strings(self._tokens):
            numbers.append(self._numbered(form(token) if token else JOINED))
        self._number_of = grown(self._number_of, count)
        self._number_of[self._tokens : count] = numbers
        self._tokens = count
        self._take_names(known)

    def _take_names(self, known: int) -> None:
        """Look up the names from a number on, and number the words that hashtags among them name."""
        named = {
            number: list(map(self._numbered, pieces))
            for number in range(known, len(self._names))
            if (pieces := named_by(self._names[number], self.vocabulary.form))
        }
        count = len(self._names)
        self._id_of, self._seen_in = grown(self._id_of, count), grown(self._seen_in, count, -1)
        self._links, self._named_at = grown(self._links, count), grown(self._named_at, count)
        for number, pieces in named.items():
            at, end = self._named_used, self._named_used + 1 + len(pieces)
            self._named = grown(self._named, end)
            self._named[at:end] = [len(pieces), *pieces]
            self._named_at[number], self._named_used = at, end
        self._id_of[known : len(self._names)] = list(map(self._look_up, self._names[known:]))
        self._links[known : len(self._names)] = [not name or is_pair(name) for name in self._names[known:]]

    def _numbered(self, term: str) -> int:
        """The number of a term, which may be new."""
        number = self._terms.setdefault(term, len(self._names))
        if number == len(self._names):
            self._names.append(term)
        return number

    def _look_up(self, term: str) -> int:
        if term[:1] == MARK:
            return NAMED_ID - self._look_up(term[1:])
        if term == JOINED:
            return JOINED_ID
        term_id = self.vocabulary.id_of(term)
        if term_id is not None:
            return term_id
        return _STOPPED if term in self.vocabulary.stop_terms else _UNKNOWN

    def _look_up_all(self) -> None:
        self._forgotten, self._followed = self.vocabulary.forgotten, len(self.vocabulary.admitted)
        self._id_of[: len(self._names)] = list(map(self._look_up, self._names))

    def _follow(self) -> None:
        """Take the ids of terms that were admitted, or forgotten, since the last look."""
        if self._forgotten != self.vocabulary.forgotten:
            self._look_up_all()
        admitted = self.vocabulary.admitted
        for late in range(self._followed, len(admitted)):
            term, own = admitted[late], self.vocabulary.most_terms - 1 - late
            for name, coded in ((term, own), (MARK + term, NAMED_ID - own)):
                if (number := self._terms.get(name)) is not None:
                    self._id_of[number] = coded
        self._followed = len(admitted)


def weigh(words: MessageTerms, idf: Float64) -> TermColumns:
    """Vectors of messages; `idf` by id, as of their batch or later. O(n log n) for a text of n words."""
    texts, most = words.offsets.shape[0] - 1, words.ids.shape[0]
    terms, counts, weights = np.empty(most, TERM), np.empty(most, np.int32), np.empty(most, WEIGHT)
    columns = TermColumns(np.zeros(texts + 1, np.int64), terms, counts, weights, words.unknown, words.stopped)
    scratch = np.empty(longest(words.offsets), TERM)
    _weigh(words, idf, scratch, columns)
    known = columns.offsets[-1]
    return columns._replace(terms=terms[:known], counts=counts[:known], weights=weights[:known])


@njit(cache=True, nogil=True)
def _put_spelt(tokens, cuts, number_of, at, spelt, found, ends):
    """Fill `found` with the numbers of the terms of texts, and `ends` with where each text ends in it.

    Returns how many numbers there are.

    To the term what `matching.languages.message_pieces` gives a text of a language.

    Parameters
    ----------
    tokens : int32[m]
    cuts : int64[texts + 1]     cuts `tokens` into texts
    number_of : int32[tokens]   the number of the term of each
    at : int32[m]               of a token in a text of a language its place in `spelt`, else 0
    spelt : int32[n]            at that place the count of stems, then the numbers of stems, written and named terms
    found : int32[k]            with room for all
    ends : int64[texts + 1]
    """
    count = 0
    for text in range(ends.shape[0] - 1):
        column, columns = 0, 1
        while column < columns:
            count = _put_joined(found, count, _COLUMN_ENDS if column else 0)
            place = cuts[text]
            while place < cuts[text + 1]:
                entry, token = at[place], tokens[place]
                place += 1
                if entry == 0:
                    found[count] = number_of[token]
                    count += 1
                    continue
                if column and token == 0 and place < cuts[text + 1] and tokens[place] == 0:
                    count = _put_joined(found, count, _COLUMN_ENDS)  # another column of the text begins
                    place += 1
                    continue
                stems = spelt[entry]
                columns = max(columns, 3 if stems > 1 else 2)
                first = entry + 1 + (stems if column else 0) + (column == 2)
                length = stems if column == 0 else max(1, stems - 1) if column == 2 else 1
                for other in range(first, first + length):
                    found[count] = spelt[other]
                    count += 1
            column += 1
        ends[text + 1] = count
    return count


@njit_inner_no_refcount
def _put_joined(found, count, times):
    """Append `JOINED`, whose number is 0, so many times; returns the count then."""
    for _ in range(times):
        found[count] = 0
        count += 1
    return count


@njit(cache=True, nogil=True)
def _count_named(tokens, named_at, named):
    """How many pieces the words have that hashtags name; parameters as of `_find`."""
    count = 0
    for place in range(tokens.shape[0]):
        count += named[named_at[tokens[place]]]
    return count


@njit(cache=True, nogil=True)
def _find(tokens, cuts, id_of, named_words, seen_in, first_text, first_ids, found):
    """Fill `found` with the terms of texts; returns how many ids there are.

    Parameters
    ----------
    tokens : int32[m]           numbers of terms
    cuts : int64[texts + 1]     cuts `tokens` into texts
    id_of : int32[numbers]      id of each term, or `_UNKNOWN` or `_STOPPED`
    named_words : (int32[numbers], int32[n])
        Place of the word that a hashtag names, 0 of another term; there how many pieces it has, then their numbers.
    seen_in : int64[numbers]    the text that had a term last, counted from `first_text`; changed
    first_text : int
    first_ids : int64[texts]    terms with lower ids are unknown, 0 or more
    found : MessageTerms        with room for all
    """
    ids, ends, unknown, stopped = found
    named_at, named = named_words
    count = 0
    for text in range(ends.shape[0] - 1):
        for place in range(cuts[text], cuts[text + 1]):
            number = tokens[place]
            term = _as_known(id_of[number], first_ids[text])
            ids[count] = term
            count += 1
            if term in (_UNKNOWN, _STOPPED) and seen_in[number] != first_text + text:
                seen_in[number] = first_text + text
                if term == _STOPPED:
                    stopped[text] += 1
                else:
                    unknown[text] += 1
            at = named_at[number]
            if at > 0:
                known = False
                for piece in range(named[at]):
                    term = _as_known(id_of[named[at + 1 + piece]], first_ids[text])
                    ids[count + piece] = NAMED_ID - term
                    known |= term >= 0
                count += named[at] if known else 0
        ends[text + 1] = count
    return count


@njit_inner_no_refcount
def _as_known(term, first_id):
    """An id, or `_UNKNOWN` if it is lower than the first one that is known; the same of one for matching alone."""
    if term <= NAMED_ID:
        return NAMED_ID - _UNKNOWN if NAMED_ID - term < first_id else term
    return _UNKNOWN if 0 <= term < first_id else term


@njit(cache=True, nogil=True)
def _weigh(words, idf, scratch, columns):
    """Fill `columns`, which has room for all terms; `scratch`, int32, for those of the longest text."""
    ids, ends, _, _ = words
    offsets, terms, counts, weights, _, _ = columns
    count = 0
    for text in range(ends.shape[0] - 1):
        found = 0
        for place in range(ends[text], ends[text + 1]):
            if ids[place] >= 0:
                scratch[found] = ids[place]
                found += 1
        _sort(scratch, found)
        start = count
        for place in range(found):
            if place and scratch[place] == scratch[place - 1]:
                counts[count - 1] += 1
            else:
                terms[count], counts[count] = scratch[place], 1
                count += 1
        _unit(idf, terms, counts, weights, start, count)
        offsets[text + 1] = count


@njit(cache=True, nogil=True)
def _distinct(tokens, ends, id_of, seen_in, first_text, links, found):
    """Fill `found`, with room for all terms; `ends` cuts `tokens` into rows, the others as of `_find`. O(n log n).

    links : bool[numbers]    whether a number links pieces of a word
    """
    numbers, offsets, terms, known, stopped, cut = found
    count = ids = 0
    for row in range(ends.shape[0] - 1):
        start = ids
        for place in range(ends[row], ends[row + 1]):
            number = tokens[place]
            if seen_in[number] == first_text + row:
                continue
            seen_in[number] = first_text + row
            cut[row] |= links[number]
            term = id_of[number]
            if term == JOINED_ID:
                continue
            numbers[count] = number
            count += 1
            if term >= 0:
                terms[ids] = term
                ids += 1
            elif term == _STOPPED:
                stopped[row] = True
        _sort(terms[start:], ids - start)
        offsets[row + 1], known[row + 1] = count, ids


@njit_no_refcount
def _unit(idf, terms, counts, weights, start, stop):
    """Weights of the terms of a text, summed as `matching.vocabulary.unit_weights` does."""
    squares = 0.0
    for place in range(start, stop):
        weight = idf[terms[place]] * counts[place]
        squares += weight * weight
    norm = np.sqrt(squares) if squares > 0.0 else 1.0
    for place in range(start, stop):
        weights[place] = np.float32(idf[terms[place]] * counts[place] / norm)


@njit_inner
def _sort(values, count):
    """Sort the first values in place."""
    if count > _FEW:
        put(values, 0, values[ascending(values[:count])])
        return
    for place in range(1, count):
        value, before = values[place], place - 1
        while before >= 0 and values[before] > value:
            values[before + 1] = values[before]
            before -= 1
        values[before + 1] = value
