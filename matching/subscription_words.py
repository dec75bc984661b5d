"""The words of a subscription: what it is found by and scores with, by its keywords and its query."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matching.conditions import contradiction
from matching.fields import Fault, Refusal, encodes, shown
from matching.filter_fields import ALL_KEYWORDS, asks_no_word, include_refused, need_of
from matching.filter_programs import AT_LEAST, Instruction
from matching.kind_table import Kind
from matching.languages import language_of, why_not
from matching.model import UNKNOWN_TERM
from matching.pieces import Word
from matching.query import ALL, ANY, NONE, PREFIX, Node, parse_query
from matching.query_programs import (
    Query,
    instructions_of_query,
    node_of,
    query_of,
    with_columns,
)
from matching.reasons import MAX_BEGUN, MAX_SUBSCRIPTION_TERMS
from matching.reserved import RESERVED_IDF
from matching.text import MAX_TEXT_CHARACTERS
from matching.vocabulary import Vocabulary
from matching.words.beginnings import MARK, NEAR

#: What means something in `query` alone, and would be passed over among keywords.
_OF_QUERIES = re.compile(r'["“”„«»*()]')
#: Ids, their idf, all words, how many the vocabulary lacks, and how many are stop terms.
Found = tuple[tuple[int, ...], tuple[float, ...], tuple[str, ...], int, int]


def words_in(obj: Mapping[str, Any], vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary that reads the words of a subscription in its language.

    A `lang` that is none means nothing: a log may have some, of a release that did not know the column.
    """
    return vocabulary.spoken_in(language_of(obj.get("lang"), vocabulary.stem_language))


def refused_when_new(obj: Mapping[str, Any], vocabulary: Vocabulary) -> Refusal | None:
    """Why a subscription that passes all other checks is refused when it comes: it would not mean what it says.

    Earlier releases took such subscriptions, so a log may have some, and its readers do not ask here.
    """
    if (lang := obj.get("lang")) is not None:
        if why := why_not(lang, vocabulary.stem_language):
            return Refusal("bad_lang", f"lang is {shown(lang)}: {why}", Fault("lang", lang))
        if not vocabulary.keeps_order and language_of(lang, vocabulary.stem_language):
            return Refusal("no_word_order", "lang asks for words in a row", Fault("lang", lang))
    vocabulary = words_in(obj, vocabulary)
    query = query_of(obj.get("query"), vocabulary) if {MARK, NEAR} & {*str(obj.get("query"))} else None
    for leaf in query.tree.leaves() if isinstance(query, Query) else ():
        if leaf.operation == PREFIX and (count := len(vocabulary.words_from(leaf.value[0]))) > MAX_BEGUN:
            return Refusal("too_many_words", f"{leaf} stands for {count:,} words", Fault("query", obj["query"]))
    for name in ("keywords", "not_keywords"):
        value = obj.get(name)
        for text in [value] if isinstance(value, str) else value or ():
            if (found := _OF_QUERIES.search(text)) is not None:
                what = f"{name} has {found[0]}, which means something in query alone: write it in query"
                return Refusal("query_in_keywords", what, Fault(name, value))
    return include_refused(obj.get("include"), vocabulary) or contradiction(obj.get("where"), vocabulary.attributes)


def has_query_marks(keywords: Any) -> bool:
    """Whether keywords that passed all other checks have what means something in a query alone."""
    text = keywords if isinstance(keywords, str) else "\n".join(keywords or ())
    return _OF_QUERIES.search(text) is not None


def keywords_of(keywords: Any, needs_all: bool, vocabulary: Vocabulary) -> Found | str:
    """Ids, their idf, all words, how many were unknown and how many stop terms; or a reason code.

    Where not all are needed, those that no message can have are left out.
    """
    words = words_of(keywords, vocabulary)
    return words if isinstance(words, str) else found_of(words, needs_all, vocabulary)


def query_of_row(obj: Mapping[str, Any], kind: Kind, vocabulary: Vocabulary) -> Query | Refusal | str | None:
    """The query of a subscription, which also stands for columns in which a word is cut into pieces.

    Keywords that only score stay as they are, since scores count pieces.
    """
    query = query_of(obj.get("query"), vocabulary)
    if isinstance(query, Refusal) or not vocabulary.keeps_order:
        return query
    needs, scored = need_of(obj.get("match"), kind), query is not None and query.scoring
    decides = kind.all_keywords or obj.get("match") is not None or (kind.nearest and not scored)
    nodes = dict[str, Node]()
    if decides and not isinstance(needs, str) and (words := _cut_words(obj.get("keywords"), vocabulary)):
        wanted = len(words) if needs == ALL_KEYWORDS else int(needs)
        if wanted > len(words):
            return "match_too_large"
        leaves = tuple(node_of(word, vocabulary) for word in words)
        cut = [leaf for word, leaf in zip(words, leaves, strict=True) if len(word) > 1 or wanted == len(words)]
        terms = (term for leaf in cut for one in leaf.leaves() for term in one.words())
        stopped = next((term for term in terms if term in vocabulary.stop_terms), None)
        if stopped is not None:
            return Refusal("stop_term", f"{stopped!r} was removed from the messages")
        nodes["keywords"] = (
            Node(ALL, leaves) if wanted == len(words) else Node(ANY, leaves, wanted if wanted > 1 else None)
        )
    if words := _cut_words(obj.get("not_keywords"), vocabulary):
        nodes["not_keywords"] = Node(NONE, tuple(node_of(word, vocabulary) for word in words))
    return with_columns(query, nodes, vocabulary) if nodes else query


def _cut_words(texts: Any, vocabulary: Vocabulary) -> list[Word]:
    """The distinct words of a column; none unless one at least is cut into pieces or has several readings, or if the
    column is refused."""
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list | tuple) or not texts or isinstance(words_of(texts, vocabulary), str):
        return []
    words = list(dict.fromkeys(word for text in texts for word in vocabulary.words_of(text)))
    return words if vocabulary.readings or any(len(word) > 1 for word in words) else []


def words_of_row(obj: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[str, ...]:
    """All distinct words of a subscription that was accepted: of keywords, `not_keywords` and query."""
    vocabulary = words_in(obj, vocabulary)
    texts = [obj[name] for name in ("keywords", "not_keywords") if obj.get(name) is not None]
    words = [word for text in texts for word in vocabulary.keyword_terms(text)]
    query = query_of(obj.get("query"), vocabulary)
    return tuple(dict.fromkeys([*words, *(query.words if isinstance(query, Query) else ())]))


def read_as(obj: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, str]:
    """`read_as`: the query of a subscription that was accepted, as it was understood; nothing if it has none."""
    query = query_of(obj.get("query"), words_in(obj, vocabulary))
    return {"read_as": str(query.tree)} if isinstance(query, Query) else {}


def texts_found_by(obj: Mapping[str, Any], vocabulary: Vocabulary) -> list[str]:
    """Texts of which a message that an accepted subscription matches has a word; none if it may have none."""
    keywords = [] if asks_no_word(obj.get("keywords")) else obj["keywords"]
    texts = [keywords] if isinstance(keywords, str) else list(keywords)
    query, tree = query_of(obj.get("query"), vocabulary), parse_query(obj.get("query"))
    if not isinstance(query, Query) or not isinstance(tree, Node) or not (texts or query.required or query.choices):
        return texts
    positive = list(_positive(tree))
    if any(one.operation == PREFIX for one in positive):
        return []  # words that begin so are many, and more come
    return texts + [word for one in positive for word in one.words()]


def _positive(node: Node) -> Iterator[Node]:
    """Leaves that are not excluded."""
    if not node.parts:
        yield node
    for part in node.parts if node.operation != NONE else ():
        yield from _positive(part)


def indexed_by_query(
    obj: Mapping[str, Any], kind: Kind, needs: int, query: Query, vocabulary: Vocabulary
) -> tuple[Found, int, list[Instruction]] | Refusal | str:
    """What a subscription with a query is found by: words, how many of them a message needs, and the instructions that
    decide the rest of keywords and query; or a reason code.

    Kinds that need all keywords are found by all words that a match must have, else by words of which it must have one.
    The others by all words that score, of which a message needs one. Keywords beside a query only score there, unless
    `match` says how many are needed.
    """
    keywords: tuple[str, ...] | str = ()
    decided = "keywords" in query.columns
    if not asks_no_word(obj.get("keywords")) and not (decided and kind.all_keywords):
        keywords = words_of(obj["keywords"], vocabulary) or "no_keyword"
        if isinstance(keywords, str):
            return keywords
    wanted = len(keywords) if needs == ALL_KEYWORDS else needs
    stopped = [word for word in keywords if word in vocabulary.stop_terms]
    if stopped and kind.all_keywords and wanted == len(keywords):
        return Refusal("stop_term", f"{stopped[0]!r} was removed from the messages")
    if keywords and wanted > len(keywords) and not decided:
        return "match_too_large"
    if not kind.all_keywords:
        words = tuple(dict.fromkeys((*keywords, *query.scoring)))
        if query.scoring and not query.scores:
            what = f"a {kind.name} ranks by words, and messages without any word of the query satisfy it"
            return Refusal("no_needed_word", what, Fault("query", obj["query"]))
        if decided and kind.nearest:  # words do not score
            words = query.required or query.choices
        made = instructions_of_query(query, vocabulary, words)
        needed = bool(keywords) and obj.get("match") is not None and not decided
    else:
        required = tuple(dict.fromkeys((*(keywords if wanted == len(keywords) else ()), *query.required)))
        words = required or (keywords if keywords else query.choices)
        needed = bool(keywords) and wanted < len(keywords) and not (wanted == 1 and words == keywords)
        made = instructions_of_query(query, vocabulary, words, needs_all=bool(required))
        needs = ALL_KEYWORDS if required or not words else 1
    if needed:
        ids = sorted(term for word in keywords if (term := vocabulary.id_of(word)) is not None)
        made = [Instruction(AT_LEAST, wanted, ids), *made]
    if not words:
        return ((vocabulary.reserved,), (RESERVED_IDF,), (), 0, 0), needs, made
    if len(words) > MAX_SUBSCRIPTION_TERMS:
        return "too_many_keywords"
    found = found_of(words, needs == ALL_KEYWORDS and kind.all_keywords, vocabulary)
    return found if isinstance(found, str) else (found, needs if kind.all_keywords else 1, made)


def other_words(
    obj: Mapping[str, Any], query: Query, excluded: Sequence[str], words: Sequence[str], vocabulary: Vocabulary
) -> tuple[str, ...]:
    """All words of a subscription with a query that it is not found by."""
    keywords = () if asks_no_word(obj.get("keywords")) else words_of(obj["keywords"], vocabulary)
    return tuple(word for word in dict.fromkeys((*keywords, *query.words, *excluded)) if word not in words)


def found_of(words: tuple[str, ...], needs_all: bool, vocabulary: Vocabulary) -> Found | str:
    """As `keywords_of`, of distinct words."""
    if not words:
        return "no_keyword"
    stopped = sum(word in vocabulary.stop_terms for word in words)
    if stopped and needs_all:
        return "stop_term"
    terms = sorted(term_id for term_id in map(vocabulary.id_of, words) if term_id is not None)
    idf = tuple(vocabulary.idf[terms].tolist())
    unknown = len(words) - len(terms) - stopped
    if unknown and vocabulary.most_terms:  # they are admitted with the batch, which gives them ids
        return tuple(terms), idf, words, unknown, stopped
    if needs_all and unknown:
        return (*terms, UNKNOWN_TERM), (*idf, 0.0), words, unknown, stopped
    return (tuple(terms), idf, words, unknown, stopped) if terms else "no_known_keyword"


def words_of(keywords: Any, vocabulary: Vocabulary) -> tuple[str, ...] | str:
    """The distinct words of a text or a list of texts, or a reason code."""
    texts = [keywords] if isinstance(keywords, str) else keywords
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return "wrong_type"
    if sum(map(len, texts)) > MAX_TEXT_CHARACTERS:
        return "text_too_long"
    words = tuple(vocabulary.keyword_terms(texts))
    if len(words) > MAX_SUBSCRIPTION_TERMS:
        return "too_many_keywords"
    return words if all(map(encodes, words)) else "bad_utf8"
