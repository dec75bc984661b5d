"""From text to terms: the only tokeniser of the project.

The ETL calls it on messages, the loader of subscriptions on keywords, so both sides always agree on what a word
is. Pure functions; nothing here reads a file.

What a term is: text is unescaped (HTML entities that end with a semicolon), normalised (NFKC, case folded, invisible
characters removed) and cut. URLs are dropped, with the letters beyond ASCII in them. `#tag` and `@user` stay whole,
mark included, so `#ramen` and `ramen` differ; for matching alone a text with `#ramen` also has `ramen` (`named_by`). In
the scripts that do not separate words (Chinese, Japanese, Thai, ...) and in Korean, where particles stick to words, a
run gives every character and, between two of them, their pair. All other runs of letters, marks and digits are one
term; so are some names with signs in them, such as `C++`. `café` and `cafe` differ, unless accents are folded
(`fold_accents`), for messages and keywords alike.

What people write between two spaces is a word, however many terms it gives: its pieces. They are in a text if they
stand in a row there, without a space. For that a text has its terms in order of appearance, with `JOINED` between two
that no space separates; where characters and their pairs alternate, a pair says so itself. Between the columns of a
text `JOINED` stands twice (`matching.pieces.BETWEEN_COLUMNS`).
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from html.entities import html5
from itertools import chain, zip_longest

import regex
import Stemmer

from matching.errors import ConfigError
from matching.pieces import BETWEEN_COLUMNS, JOINED

#: Longest text that is let in (`matching.validate`), in characters: 200 times a long tweet, yet a batch of such texts
#: still fits in memory.
MAX_TEXT_CHARACTERS = 65_536

#: Terms are cut after this many characters, so that a megabyte without a space cannot become a key in every index.
MAX_TERM_CHARACTERS = 128

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
# Case folding gives i for both capitals; entities are undone later.
DOTLESS, _SMALL_I = "turkish", {"I": "ı", "İ": "i", "I\u0307": "i"}
_CAPITAL_I = re.compile("&[#0-9A-Za-z]+;|I\u0307?|İ")
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


def in_case_of(text: str, language: str) -> str:
    """A text to be cut, its letters I small as a language has them: Turkish `KADIKÖY` is `kadıköy`. Linear."""
    if language != DOTLESS or not ("I" in text or "İ" in text):
        return text
    return _CAPITAL_I.sub(lambda found: _SMALL_I.get(found[0], found[0]), text)


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


def named_by(term: str, form: Callable[[str], str] | None = None) -> list[str]:
    """Pieces of the word that a hashtag names, with `JOINED` between them; none of another term. Linear."""
    return list(chain.from_iterable(words_of(term[1:], form))) if term[:1] == "#" else []


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
