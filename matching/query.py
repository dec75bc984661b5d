"""Queries as people write them: a line of text, or a tree in JSON, read into one tree.

The text is Lucene's simple syntax: words side by side are all needed, `OR` stands between alternatives, brackets group,
`-` before a word, a group or a phrase excludes it. A phrase in quotes means its words in this order, side by side, or
with at most n other words between them: `"rotes fahrrad"~2`. `fahr*` means any word that begins so, and `fahrad~1` any
word within one edit of it (`matching.words.nearby`). `AND`, `NOT` and `|` are read too. `a OR b c` is refused, since
readers disagree on what it means.

The tree has lists under `all`, `any` and `none`, whose members are texts of that syntax, conditions (`{"where":
{"price": {"lte": 900}}}`), and trees. Several of these in one object must all hold.

The oracle is `tests.support.naive_conditions.query_holds`; `matching.query_programs` compiles queries.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from matching.decoding import decode_object
from matching.fields import Fault, Refusal, encodes, shown
from matching.reasons import MAX_LEAVES, MAX_QUERY_CHARACTERS
from matching.text import is_pair
from matching.words.beginnings import NEAR

#: Most groups within each other.
MAX_QUERY_DEPTH = 8
#: Operations of a `Node`. The first three have parts.
ALL, ANY, NONE, WORD, PIECES, PHRASE, PREFIX, WHERE = (
    "all", "any", "none", "word", "pieces", "phrase", "prefix", "where",
)  # fmt: skip
#: Most other words between those of a phrase.
MAX_BETWEEN = 100

_TOKEN = re.compile(r'\s*(?:([()|])|(-)(?=[^\s)|])|("[^"]*"?(?:~[^\s()|"]*)?)|([^\s()|"]+))')
#: The group of a minus right before what it excludes; one that stands alone is a word to this, and refused.
_MINUS = 2
_JOINS = {"AND": ALL, "OR": ANY, "|": ANY}


class Node(NamedTuple):
    """A part of a query.

    parts : tuple of Node    of `ALL`, `ANY` and `NONE`
    value                    `WORD`: the text of a word; `PIECES`: a `Word` of several pieces; `PHRASE`: the texts of
                             its words, and how many others may stand between them; `PREFIX`: how a word begins, or a
                             word and `matching.words.beginnings.NEAR` for those within one edit, and
                             once a vocabulary is known the terms of which a message needs one; `WHERE`: conditions as
                             `matching.conditions.parse_where` takes them; `ANY`: how many parts have to hold, None
                             for one
    """

    operation: str
    parts: tuple["Node", ...] = ()
    value: Any = None

    def leaves(self) -> Iterator["Node"]:
        """All words, beginnings, phrases and conditions, in order."""
        if self.operation in (WORD, PIECES, PHRASE, PREFIX, WHERE):
            yield self
        for part in self.parts:
            yield from part.leaves()

    def words(self) -> tuple[str, ...]:
        """Those of a leaf, each of which its matches have; of a beginning its terms."""
        if self.operation == PIECES:
            return tuple(self.value.terms)
        if self.operation == WORD:
            return (self.value,)
        return self.value[0] if self.operation == PHRASE else self.value[1] if self.operation == PREFIX else ()

    def __str__(self) -> str:
        """The query as a text; conditions in curly brackets."""
        if self.operation in (WORD, PIECES):
            return str(self.value)
        if self.operation == PREFIX:
            return f"{self.value[0]}1" if self.value[0].endswith(NEAR) else f"{self.value[0]}*"
        if self.operation == PHRASE:
            words, between = self.value
            return f'"{_as_written(words)}"' + (f"~{between}" if between else "")
        if self.operation == WHERE:
            return json.dumps(self.value, ensure_ascii=False)
        if self.operation == NONE:
            return " ".join(f"-{part._bracketed()}" for part in self.parts)
        if self.operation == ANY:
            group = f"({' OR '.join(part._bracketed() for part in self.parts)})"
            return group if self.value is None else f"{self.value} of {group}"
        return " ".join(map(str, self.parts))

    def _bracketed(self) -> str:
        alone = len(self.parts) == 1 if self.operation == NONE else self.operation != ALL
        return str(self) if alone else f"({self})"


def _as_written(words: Sequence[str]) -> str:
    """The words of a phrase; those of a script without spaces put together from their pieces."""
    found, touches = "", True
    for at, word in enumerate(words):
        if 0 < at < len(words) - 1 and word == words[at - 1] + words[at + 1] and is_pair(word):
            touches = True
        else:
            found, touches = found + ("" if touches else " ") + word, False
    return found


class _Bad(ValueError):
    """Why a query cannot be read, with what to write."""


def parse_query(query: Any) -> Node | Refusal:
    """Read a query.

    Parameters
    ----------
    query : object
        A text, or an object with `all`, `any`, `none` and `where`; a text that begins with `{` is such an object in
        JSON.

    Returns
    -------
    Node, or Refusal
        For `bad_query`, with the position in its text, what was expected and what to write; `too_large_query`.
        Never raises.
    """
    if isinstance(query, str) and query.lstrip().startswith("{"):
        decoded = decode_object(query.encode(errors="surrogatepass"))
        if isinstance(decoded, str):
            return Refusal("bad_query", "query begins with { and is no JSON object", Fault("query", query))
        query = decoded
    try:
        found = simplified(_part_of(query, 0, "query"))
    except _Bad as error:
        return Refusal("bad_query", str(error), Fault("query", query))
    leaves = list(found.leaves())
    size = sum(len(str(one)) for one in leaves if one.operation != WHERE)
    if len(leaves) > MAX_LEAVES or size > MAX_QUERY_CHARACTERS:
        return Refusal("too_large_query", f"query has {len(leaves):,} words and conditions", Fault("query", query))
    return found


def _part_of(given: Any, depth: int, place: str) -> Node:
    """The tree of a text or an object; `place` says where it stands."""
    if depth > MAX_QUERY_DEPTH:
        raise _Bad(f"{place}: groups are nested more than {MAX_QUERY_DEPTH} deep")
    if isinstance(given, str):
        return _Text(given, place).read(depth)
    if not isinstance(given, Mapping):
        raise _Bad(f"{place} is {shown(given)}, where a text or an object with all, any, none or where belongs")
    parts = []
    for name, value in given.items():
        if value is None:  # as tables have it
            continue
        if name == WHERE:
            if not isinstance(value, Mapping) or not value:
                raise _Bad(f"{place} where is {shown(value)}, where an object of attributes belongs")
            parts.append(Node(WHERE, value=value))
            continue
        if name not in (ALL, ANY, NONE):
            raise _Bad(f"{place} has {shown(name)}, where all, any, none or where belongs")
        if not isinstance(value, list | tuple) or not value:
            raise _Bad(f"{place} {name} is {shown(value)}, where a list with members belongs")
        members = (_part_of(one, depth + 1, f"{place} {name} {at}") for at, one in enumerate(value))
        parts.append(Node(name, tuple(members)))
    if not parts:
        raise _Bad(f"{place}: the object is empty; write all, any, none or where")
    return Node(ALL, tuple(parts))


class _Text:
    """Reads one text of a query, from left to right."""

    def __init__(self, text: str, place: str):
        if len(text) > MAX_QUERY_CHARACTERS:
            raise _Bad(f"{place} is longer than {MAX_QUERY_CHARACTERS:,} characters")
        if not encodes(text) or "\0" in text:
            raise _Bad(f"{place} has half a surrogate pair, or a NUL")
        self._place = place
        self._tokens = [
            (match.start(match.lastindex), "NOT" if match.lastindex == _MINUS else match.group(match.lastindex))
            for match in self._matches(text)
        ]
        self._next = 0
        self._end = len(text)

    @staticmethod
    def _matches(text: str) -> Iterator[Any]:
        at, text = 0, text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match is not None, "every character begins a token"
            at = match.end()
            yield match

    def read(self, depth: int) -> Node:
        found = self._group(depth)
        if self._next < len(self._tokens):
            raise self._bad("there is no bracket to close: leave it out, or open one before")
        return found

    def _group(self, depth: int) -> Node:
        """Clauses up to a closing bracket, or the end."""
        if depth > MAX_QUERY_DEPTH:
            raise self._bad(f"groups are nested more than {MAX_QUERY_DEPTH} deep")
        parts: list[Node] = []
        join, beside = "", False
        while self._token not in ("", ")"):
            if parts and self._token in _JOINS:
                named = _JOINS[self._token]
                if (join and join != named) or (beside and named == ANY):
                    raise self._bad("OR beside words that are all needed: put brackets around the alternatives")
                join = named
                self._next += 1
            elif parts:
                if join == ANY:
                    raise self._bad("a word beside alternatives: put brackets around these, (a OR b) c")
                beside = True
            parts.append(self._clause(depth))
        if not parts:
            raise self._bad("expected a word")
        return Node(join or ALL, tuple(parts))

    def _clause(self, depth: int) -> Node:
        token = self._token
        if depth > MAX_QUERY_DEPTH:
            raise self._bad(f"groups are nested more than {MAX_QUERY_DEPTH} deep")
        if token == "NOT":
            self._next += 1
            return Node(NONE, (self._clause(depth + 1),))
        if token == "(":
            opened = self._next
            self._next += 1
            found = self._group(depth + 1)
            if self._token != ")":
                self._next = opened
                raise self._bad("this bracket is not closed: write ) behind the group")
            self._next += 1
            return found
        if token in ("", ")") or token in _JOINS:
            raise self._bad("expected a word")
        self._next += 1
        return self._leaf(token)

    def _leaf(self, token: str) -> Node:
        self._next -= 1
        if token.startswith('"'):
            text, quote, between = token[1:].partition('"')
            if not quote:
                raise self._bad('this quote is not closed: write " behind the phrase')
            if not text.strip():
                raise self._bad("expected words between the quotes")
            if "*" in text:
                raise self._bad("a phrase has whole words: leave the * out, or put fahr* outside of the quotes")
            if between not in ("", "~") and not (between[1:].isdecimal() and len(between) < 5):
                raise self._bad('~ behind a phrase needs a number, "rotes fahrrad"~2')
            most = int(between[1:] or 1) if between else 0
            if most > MAX_BETWEEN:
                raise self._bad(f"at most {MAX_BETWEEN} other words may stand between those of a phrase")
            self._next += 1
            return Node(PHRASE, value=(tuple(text.split()), most))
        word, near, edits = token.partition(NEAR)
        if near and (not word or "*" in word or edits not in ("", "1")):
            raise self._bad("~1 stands behind one word, fahrad~1, and ~ with a number behind a phrase in quotes")
        if "*" in token[:-1] or token == "*":
            raise self._bad("* stands at the end of a word, once: fahr*")
        if token == "-":
            raise self._bad("- stands right before what it excludes, without a space")
        self._next += 1
        if near:
            return Node(PREFIX, value=(word + near, ()))
        return Node(PREFIX, value=(token[:-1], ())) if token.endswith("*") else Node(WORD, value=token)

    @property
    def _token(self) -> str:
        """The next token; "" at the end."""
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def _bad(self, what: str) -> _Bad:
        at = self._tokens[self._next][0] if self._next < len(self._tokens) else self._end
        there = f", at {self._token!r}" if self._token else ", at the end"
        return _Bad(f"{self._place}, character {at + 1}{there}: {what}")


def simplified(node: Node) -> Node:
    """The same without groups of one, and without a group directly in one of its own operation.

    Of `NONE` within `ALL` there is one at most, since both exclude all.
    """
    if not node.parts:
        return node
    parts: list[Node] = []
    for part in map(simplified, node.parts):
        # none of (a OR b) is none of a, b
        same = part.operation == (ANY if node.operation == NONE else node.operation)
        parts += part.parts if same and part.value is node.value is None else [part]
    if node.operation == ALL and sum(part.operation == NONE for part in parts) > 1:
        excluded = tuple(each for part in parts if part.operation == NONE for each in part.parts)
        parts = [*(part for part in parts if part.operation != NONE), Node(NONE, excluded)]
    return parts[0] if len(parts) == 1 and node.operation != NONE else node._replace(parts=tuple(parts))
