"""Words of several languages in one stream: `lang` of a message and of a subscription.

A row whose `lang` names another language than the stream's is cut with the case and the stemmer of that language. Its
stems are terms of their own, with a mark of the language (`:german:haus`), so that stems of two languages never meet;
characters of scripts without spaces have no stem, and no mark. Behind its stems a message has its words as the stream
cuts them, for matching alone: as they are written, or by the stems of a stream that stems (`--stem`). A subscription
asks of each word for its stem or for the word as the stream cuts it: messages of its language have both, all others
have only the second.

A text that is to be cut carries its language (`in_language`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import Stemmer

from matching.pieces import JOINED
from matching.text import cut_words, fold_accents, has_unspaced, in_case_of, named_by, stemmer, term_form

LANGUAGES = frozenset(Stemmer.algorithms())
#: Two stemmers are the second ones of a language.
_SECOND = {"porter": "english", "dutch_porter": "dutch"}
#: What `lang` may say in place of a name: codes of ISO 639-1.
CODES = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english",
    "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish",
    "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian",
    "it": "italian", "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish",
    "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "st": "sesotho", "sv": "swedish",
    "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip
#: Begins and ends the language before a text, and the name of a term for matching alone; no text of a row has it.
MARK = "\0"
#: Between two columns, where words for matching alone follow: the last one joins these to nothing.
BETWEEN = (JOINED, JOINED, JOINED)


class Piece(NamedTuple):
    """A term of a message, or `JOINED`; `alone`: it is for matching alone."""

    term: str
    alone: bool

    @property
    def name(self) -> str:
        """The term, with a mark if it is for matching alone."""
        return MARK * self.alone + self.term


@lru_cache(maxsize=8)
def languages_in(stem_language: str) -> Mapping[str, str]:
    """What `lang` may say in a stream that stems in this language ("": in none), and the language; "" is the stream's.

    Codes mean something in a stream that stems alone: most feeds have them, and who does not stem has all words as they
    are written.
    """
    names = {name: name for name in LANGUAGES} | (CODES if stem_language else {})
    own = "", stem_language, _SECOND.get(stem_language)
    return {lang: "" if name in own else name for lang, name in names.items()}


def language_of(lang: Any, stem_language: str) -> str:
    """The language of a row's words, "" for that of the stream, which stems in this one ("": in none).

    A `lang` that names none means nothing.
    """
    return languages_in(stem_language).get(lang, "") if isinstance(lang, str) else ""


def why_not(lang: Any, stem_language: str) -> str:
    """Why a `lang` means nothing in a stream that stems in this language ("": in none); "" if it does."""
    if isinstance(lang, str) and lang in languages_in(stem_language):
        return ""
    return f"choose one of {', '.join(sorted(LANGUAGES))}" + ", or its code, such as de" * bool(stem_language)


def in_language(text: str, language: str) -> str:
    """A text that carries its language; the text itself without one."""
    return f"{MARK}{language}{MARK}{text}" if language else text


def language_and_text(text: str) -> tuple[str, str]:
    """What `in_language` was given: a language, "" for none, and a text."""
    if text[:1] != MARK:
        return "", text
    _, language, own = text.split(MARK, 2)
    return language, own


@lru_cache(maxsize=128)
def stem_form(language: str, folded: bool) -> Callable[[str], str]:
    """As `matching.text.term_form`, of a language among others: terms have its mark."""
    stem, fold = stemmer(language), fold_accents if folded else str

    @lru_cache(maxsize=1_000_000)
    def form(piece: str) -> str:
        piece = fold(piece)
        return piece if has_unspaced(piece) and piece[0] not in "#@" else f":{language}:{stem(piece)}"

    return form


class Spelling(NamedTuple):
    """A token of a message of a language, in each of the message's columns.

    stems : list of Piece     its term, and behind a hashtag the word that it names
    written : list of Piece   the one term that the stream has for it
    named : list of Piece     the same, or in place of a hashtag the word that it names
    """

    stems: list[Piece]
    written: list[Piece]
    named: list[Piece]


@lru_cache(maxsize=128)
def spelling_in(language: str, stem_language: str, folded: bool) -> Callable[[str], Spelling]:
    """A function from a token (`matching.text.cut_words`), or `JOINED`, to its terms, which remembers recent ones."""
    fold, stem, form = fold_accents if folded else str, stem_form(language, folded), term_form(stem_language, folded)

    def piece(token: str, by: Callable[[str], str] | None, alone: bool) -> Piece:
        return Piece(by(token) if token and by else token, alone)

    @lru_cache(maxsize=1 << 16)
    def spelling(token: str) -> Spelling:
        token = fold(token)
        words = named_by(token, fold)
        stems = [piece(token, stem, False), *(piece(one, stem, True) for one in words)]
        return Spelling(stems, [piece(token, form, True)], [piece(one, form, True) for one in words or [token]])

    return spelling


def message_pieces(text: str, language: str, stem_language: str, folded: bool) -> list[Piece]:
    """The terms of a message of a language in order of appearance, with `JOINED` between pieces of a word.

    Its stems come first, as one column. Its words as the stream cuts them (`matching.text.term_form`) follow as a
    second one, and if it has hashtags as a third, with the words that these name in their place. Linear.
    """
    spelling = spelling_in(language, stem_language, folded)
    words = [list(map(spelling, word)) for word in cut_words(in_case_of(text, language))]
    between = [Piece(one, False) for one in BETWEEN]
    found = [piece for word in words for token in word for piece in token.stems]
    has_hashtags = any(len(token.stems) > 1 for word in words for token in word)
    for column in ("written", "named")[: 1 + has_hashtags] if words else ():
        found += between
        for word in words:
            # where another column of the text begins a word has no term
            found += chain.from_iterable(getattr(token, column) for token in word) if _has_terms(word) else between
    return found


def _has_terms(word: Sequence[Spelling]) -> bool:
    return any(token.stems[0].term for token in word)
