"""Queries bound to a vocabulary: the words that select and score, and the instructions that decide.

A word that is cut into pieces means these in a row. A message satisfies a query if it passes the instructions of
`instructions_of_query`; the other fields of `Query` save work, or say what scores.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from matching.conditions import parse_where
from matching.fields import Fault, Refusal, shown
from matching.filter_programs import (
    AT_LEAST,
    EITHER,
    NEITHER,
    WITHOUT,
    Instruction,
    branches_of,
    condition_instruction,
    program_of,
)
from matching.filter_programs import PHRASE as PHRASE_OF
from matching.pieces import JOINED, JOINED_ID, Word
from matching.query import ALL, ANY, NONE, PHRASE, PIECES, PREFIX, WHERE, WORD, Node, parse_query, simplified
from matching.reasons import MAX_LEAVES, MAX_SUBSCRIPTION_TERMS
from matching.text import fold_accents, has_unspaced, in_case_of, tokenise
from matching.vocabulary import Vocabulary
from matching.words.beginnings import MARK, NEAR, SHORTEST, SHORTEST_NEAR

#: Ways in which a phrase may be written.
_MOST_WAYS = 16
_ONE_WORD = (
    f"* stands behind the first {SHORTEST} characters or more of one word, in a script with spaces, "
    f"and ~1 behind one of {SHORTEST_NEAR} or more"
)


class Query(NamedTuple):
    """A query whose words are terms.

    tree : Node               a `WORD` has one term, a `PREFIX` its own where the vocabulary grows
                              (`matching.words.beginnings`), else all that begin so
    scoring : tuple of str    distinct words, outside phrases, that are not excluded, in order of appearance
    required : tuple of str   terms that every match has, those of phrases too
    choices : tuple of str    where there are none: terms of which every match has one; empty if there are none either,
                              or too many
    requires : bool           whether a match must have anything, a word or a value
    scores : bool             whether every match has a word of `scoring`
    columns : set of str      other columns of the subscription that it stands for: `keywords`, `not_keywords`
    """

    tree: Node
    scoring: tuple[str, ...]
    required: tuple[str, ...]
    choices: tuple[str, ...]
    requires: bool
    scores: bool
    columns: frozenset[str] = frozenset()

    @property
    def words(self) -> tuple[str, ...]:
        """All distinct terms."""
        return tuple(dict.fromkeys(word for one in self.tree.leaves() for word in one.words()))


def query_of(given: Any, vocabulary: Vocabulary) -> Query | Refusal | None:
    """The query of a subscription's column, None if there is none.

    Where messages do not have the order of their words, a word that is cut into pieces means these anywhere.
    Refused are what `matching.query.parse_query` refuses, texts without a word, stop terms and conditions that
    `matching.conditions.parse_where` refuses. Never raises.
    """
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    tree = parse_query(given)
    if isinstance(tree, Refusal):
        return tree
    for leaf in tree.leaves():
        refused = _leaf_refusal(leaf, vocabulary)
        if refused is not None:
            return refused._replace(fault=Fault("query", given))
    bound = simplified(_bound(tree, vocabulary))
    leaves = sum(1 for _ in bound.leaves())
    if leaves > MAX_LEAVES:
        return Refusal("too_large_query", f"query has {leaves:,} words and conditions", Fault("query", given))
    return _query(bound, vocabulary)


def with_columns(query: Query | None, nodes: Mapping[str, Node], vocabulary: Vocabulary) -> Query:
    """A query that stands for other columns of its subscription, too: nodes by column, with a term in each word."""
    parts = (*nodes.values(), *(() if query is None else (query.tree,)))
    return _query(simplified(Node(ALL, parts)), vocabulary)._replace(columns=frozenset(nodes))


def node_of(word: Word, vocabulary: Vocabulary | None = None) -> Node:
    """The node of one word; of one in a language (`Vocabulary.spoken_in`) any of its readings."""
    if vocabulary is not None and vocabulary.readings:
        forms = [one.form or str for one in vocabulary.readings]
        return Node(ANY, tuple(node_of(Word(piece and form(piece) for piece in word)) for form in forms))
    return Node(WORD, value=word[0]) if len(word) == 1 else Node(PIECES, value=word)


def _query(bound: Node, vocabulary: Vocabulary) -> Query:
    required = tuple(dict.fromkeys(_required(bound)))
    choices = () if required else tuple(dict.fromkeys(_choices(bound, vocabulary) or ()))
    choices = choices if len(choices) <= MAX_SUBSCRIPTION_TERMS else ()
    scores = _choices(bound, vocabulary, phrases=False) is not None
    return Query(bound, tuple(dict.fromkeys(positive_words(bound))), required, choices, _requires(bound), scores)


def clauses_of(query: Query, vocabulary: Vocabulary) -> Iterator[tuple[str, bytes]]:
    """The parts of a query that must all hold: the text of each, and its program."""
    for part in query.tree.parts if query.tree.operation == ALL else (query.tree,):
        yield str(part), program_of(instructions_of_clause(part, vocabulary))
    words = [part for part in query.tree.parts if _decided_by(part) is not None]
    if query.tree.operation == ALL and words:  # a filter has these together
        yield " ".join(map(str, words)), program_of(_conjunction(words, vocabulary))


def instructions_of_clause(clause: Node, vocabulary: Vocabulary) -> list[Instruction]:
    """As `instructions_of_query`, of a part of the tree of a query."""
    return _conjunction((clause,), vocabulary)


def instructions_of_query(
    query: Query, vocabulary: Vocabulary, indexed: Collection[str] = (), needs_all: bool = False
) -> list[Instruction]:
    """The instructions that a message passes if, and only if, it satisfies a query; words without an id are in none.

    Parameters
    ----------
    query : Query
    vocabulary : Vocabulary
    indexed : collection of str, optional
        Words that the index tests: it lets through messages with all of them (`needs_all`), or with one at least.
        What that decides is left out.
    """
    parts = query.tree.parts if query.tree.operation == ALL else (query.tree,)
    own = set(indexed)
    if needs_all:
        parts = tuple(part for part in parts if _alternatives(part) not in [{word} for word in own])
    else:
        parts = tuple(part for part in parts if _alternatives(part) != own or not own)
    return _conjunction(parts, vocabulary)


def _decided_by(part: Node) -> str | None:
    """The one term that a message satisfies a word by, if there is one."""
    if part.operation == PIECES and part.value.decided:
        return part.value.needed[0]
    return part.value if part.operation == WORD else None


def _ways_alone(part: Node) -> Sequence[str] | None:
    """The terms any one of which decides that a message satisfies a leaf, if there are such."""
    if part.operation == PREFIX:
        return part.words()
    return None if (word := _decided_by(part)) is None else (word,)


def _alternatives(part: Node) -> set[str] | None:
    """The terms of which one is needed, if a part asks for just that."""
    if part.operation == ANY and part.value is not None:
        return None
    found = [_ways_alone(one) for one in (part.parts if part.operation == ANY else (part,))]
    return None if None in found else {word for words in found for word in words or ()}


def _leaf_refusal(leaf: Node, vocabulary: Vocabulary) -> Refusal | None:
    if leaf.operation == WHERE:
        conditions = parse_where(leaf.value, vocabulary.attributes)
        return conditions if isinstance(conditions, Refusal) else None
    if leaf.operation == PHRASE and not vocabulary.keeps_order:
        return Refusal("no_word_order", f"{leaf} is a phrase")
    if leaf.operation == PREFIX:
        return None if _beginning(leaf, vocabulary) else Refusal("bad_query", f"{leaf}: {_ONE_WORD}")
    text = " ".join(leaf.words())
    terms = vocabulary.terms_of(text)
    if not terms:
        return Refusal("bad_query", f"there is no word in {shown(text)}: leave it out")
    if leaf.operation == PHRASE and has_unspaced(text):
        if leaf.value[1]:
            what = "has words of a script without spaces, which cannot be counted: leave the ~ out"
            return Refusal("bad_query", f"{leaf} {what}")
        if len(_phrases(vocabulary.words_of(text))) > _MOST_WAYS:
            what = f"may be written in over {_MOST_WAYS} ways, with and without spaces: write fewer words in the quotes"
            return Refusal("bad_query", f"{leaf} {what}")
    stopped = next((term for term in terms if term in vocabulary.stop_terms), None)
    return None if stopped is None else Refusal("stop_term", f"{stopped!r} was removed from the messages")


def _beginning(leaf: Node, vocabulary: Vocabulary) -> str:
    """How the words of a beginning begin, folded as the vocabulary's, and not stemmed; "" if it cannot be asked for."""
    text, near = leaf.value[0].removesuffix(NEAR), leaf.value[0][-1:] == NEAR
    tokens = [] if has_unspaced(text) else tokenise(in_case_of(text, vocabulary.stem_language))
    if len(tokens) != 1 or len(tokens[0].strip("#@_")) < (SHORTEST_NEAR if near else SHORTEST):
        return ""
    return (fold_accents(tokens[0]) if vocabulary.folds_accents else tokens[0]) + NEAR * near


def _bound(node: Node, vocabulary: Vocabulary) -> Node:
    """The tree with a term in each word."""
    if node.operation == PREFIX:
        beginning = _beginning(node, vocabulary)
        own = beginning if beginning.endswith(NEAR) else beginning + MARK
        words = [own] if vocabulary.grows else vocabulary.words_from(beginning)
        return Node(PREFIX, value=(beginning, tuple(words)))
    if node.operation in (WORD, PHRASE) and vocabulary.readings:
        return Node(ANY, tuple(_bound(node, one) for one in vocabulary.readings))
    if node.operation == WORD and vocabulary.keeps_order:
        return Node(ALL, tuple(map(node_of, vocabulary.words_of(node.value))))
    if node.operation == WORD:
        return Node(ALL, tuple(Node(WORD, value=term) for term in vocabulary.keyword_terms(node.value)))
    if node.operation == PHRASE:
        words = vocabulary.words_of(" ".join(node.words()))
        terms = [term for word in words for term in word.terms]
        alone = len(words) == 1 and (vocabulary.keeps_order or len(terms) == 1) and not node.value[1]
        if alone:
            return node_of(words[0])
        return Node(ANY, tuple(node._replace(value=(one, node.value[1])) for one in _phrases(words)))
    return node._replace(parts=tuple(_bound(part, vocabulary) for part in node.parts))


def _phrases(words: Sequence[Word]) -> list[tuple[str, ...]]:
    """The terms in a row that a phrase may be.

    Where two words of a script without spaces meet, people write a space or none. Of more ways than `_MOST_WAYS` some
    are left out.
    """
    ways: list[tuple[str, ...]] = [()]
    for word in words:
        more = [(*way, way[-1] + word[0]) for way in ways if way and _meet(way[-1], word[0])]
        ways = [(*way, *word.terms) for way in (*ways, *more)][: _MOST_WAYS + 1]
    return ways


def _meet(one: str, other: str) -> bool:
    """Whether two pieces are characters that have a pair between them where they touch."""
    return all(has_unspaced(piece) and piece[0] not in "#@" for piece in (one, other))


def positive_words(node: Node) -> Iterator[str]:
    """Words outside `NONE`; beginnings and phrases are none."""
    if node.operation in (WORD, PIECES):
        yield from node.words()
    elif node.operation != NONE:
        for part in node.parts:
            yield from positive_words(part)


def _required(node: Node) -> Iterator[str]:
    """Terms that every message has that satisfies a node."""
    if node.operation in (WORD, PIECES, PHRASE) or (node.operation == PREFIX and len(node.words()) == 1):
        yield from _telling(node)
    elif node.operation == ALL:
        for part in node.parts:
            yield from _required(part)


def _telling(leaf: Node) -> Sequence[str]:
    """Words of a leaf, without those that all messages with the others have."""
    return leaf.value.needed if leaf.operation == PIECES else leaf.words()


def _choices(node: Node, vocabulary: Vocabulary, phrases: bool = True) -> list[str] | None:
    """Terms of which every message has one that satisfies a node, the rarest such list; None if there is none.

    `phrases`: those of phrases and beginnings count.
    """
    if node.operation == PREFIX and phrases:
        return [*node.words()]
    if node.operation not in (ALL, ANY, WORD, PIECES, PHRASE) or (node.operation == PHRASE and not phrases):
        return None
    found = [_choices(part, vocabulary, phrases) for part in node.parts]
    found += [[word] for word in _telling(node)]
    lists = [one for one in found if one is not None]
    if node.operation == ANY:
        return [word for one in lists for word in one] if len(lists) == len(found) else None

    def cost(words: list[str]) -> tuple[int, int]:
        known = vocabulary.document_frequency
        ids = (vocabulary.id_of(word) for word in words)
        return sum(int(known[term]) for term in ids if term is not None and term < known.shape[0]), len(words)

    return min(lists, key=cost, default=None)


def _requires(node: Node) -> bool:
    """Whether no message satisfies a node that has neither a word nor a value."""
    if node.operation in (WORD, PIECES, PHRASE, PREFIX, WHERE):
        return True
    if node.operation == NONE:
        return False
    return (any if node.operation == ALL else all)(map(_requires, node.parts))


def _conjunction(parts: Collection[Node], vocabulary: Vocabulary) -> list[Instruction]:
    """Instructions of parts that must all hold; the cheapest first."""
    conditions: list[Instruction] = []
    words, excluded, groups, last = dict[str, None](), dict[str, None](), list[Instruction](), list[Instruction]()
    for part in parts:
        if (word := _decided_by(part)) is not None:
            words[word] = None
        elif part.operation == WHERE:
            conditions += _conditions(part.value, vocabulary)
        elif part.operation == PREFIX:
            groups.append(_needs(1, _ways(part, vocabulary), vocabulary))
        elif part.operation in (PIECES, PHRASE):
            last.append(_phrase(part, vocabulary))
        elif part.operation == ALL:
            groups += _conjunction(part.parts, vocabulary)
        elif part.value is not None:
            branches = [_conjunction((one,), vocabulary) for one in part.parts]
            last.append(Instruction(EITHER, part.value, branches_of(branches)))
        else:
            single = [one for one in part.parts if _ways_alone(one) is not None]
            plain = dict.fromkeys(word for one in single for word in _ways(one, vocabulary))
            branches = [_branch(one, vocabulary) for one in part.parts if _ways_alone(one) is None]
            if part.operation == NONE:
                excluded |= plain
                last += [Instruction(NEITHER, 0, branches_of(branches))] if branches else []
            elif branches:
                own = [[_needs(1, plain, vocabulary)]] if plain else []
                last.append(Instruction(EITHER, 0, branches_of([*own, *branches])))
            else:
                groups.append(_needs(1, plain, vocabulary))
    without = _ids(excluded, vocabulary)
    conditions += [Instruction(WITHOUT, 0, without)] if without else []
    conditions += [_needs(len(words), words, vocabulary)] if words else []
    return [*conditions, *groups, *last]


def _ways(part: Node, vocabulary: Vocabulary) -> Collection[str]:
    """Terms of which a message has one if it satisfies a leaf of `_ways_alone`.

    Where a beginning is a term, messages from before it have only the words that were known then.
    """
    more = vocabulary.words_from(part.value[0]) if part.operation == PREFIX and vocabulary.grows else ()
    return [*(_ways_alone(part) or ()), *more]


def _phrase(node: Node, vocabulary: Vocabulary) -> Instruction:
    words, between = (node.value, 0) if node.operation == PIECES else node.value
    ids = [JOINED_ID if word == JOINED else vocabulary.id_of(word) for word in words]
    known = [term for term in ids if term is not None]
    return Instruction(PHRASE_OF, between, known) if len(known) == len(ids) else _needs(1, (), vocabulary)


def _branch(node: Node, vocabulary: Vocabulary) -> list[Instruction]:
    return _conjunction(node.parts if node.operation == ALL else (node,), vocabulary)


def _conditions(where: Mapping[str, Any], vocabulary: Vocabulary) -> list[Instruction]:
    conditions = parse_where(where, vocabulary.attributes)
    assert not isinstance(conditions, Refusal), "it was accepted"
    return list(map(condition_instruction, conditions))


def _needs(number: int, words: Collection[str], vocabulary: Vocabulary) -> Instruction:
    """An instruction that so many of these words must be there; those without an id never are."""
    return Instruction(AT_LEAST, number, _ids(words, vocabulary))


def _ids(words: Collection[str], vocabulary: Vocabulary) -> list[int]:
    return sorted(term for word in words if (term := vocabulary.id_of(word)) is not None)
