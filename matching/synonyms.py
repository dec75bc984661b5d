"""Synonyms: groups of words of which one stands for the others, applied to a subscription when it is made.

A file has a group a line in Solr's format. `bike, bicycle, velo` means that each stands for all; `tv => television,
telly` that what is left of the arrow is replaced by what is right. Several words in a row are a phrase; `\\,` is a
comma within one; lines that begin with `#` are comments.

What comes of it is a subscription like any other, with the words written out in `query` or `keywords`, so that logs and
checkpoints know nothing of synonyms, and another file later changes only subscriptions that come then.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from matching.errors import ConfigError
from matching.kind_table import Kinds
from matching.query import ALL, ANY, NONE, PHRASE, WHERE, WORD, Node, parse_query, simplified
from matching.text import has_unspaced, tokenise

#: Words and phrases that one stands for at most.
MAX_WAYS = 64

_COMMA = re.compile(r"(?<!\\),")
#: The words of an entry of a group.
_Entry = tuple[str, ...]


class Synonyms:
    """The groups of a file; none by default.

    Parameters
    ----------
    lines : iterable of str
    form : callable, optional
        What the stream turns words into (`matching.text.term_form`): words of one form are one word here.
    source : str
        Names the lines in errors.

    Raises
    ------
    ConfigError
        For a line with an entry without a word, or an arrow with nothing on a side, or a word that stands for more than
        `MAX_WAYS`.
    """

    def __init__(self, lines: Iterable[str] = (), form: Callable[[str], str] | None = None, source: str = "synonyms"):
        self._form = form or str
        self._ways: dict[_Entry, dict[_Entry, None]] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            left, arrow, right = line.partition("=>")
            given = (left, right) if arrow else (left,)
            sides = [[self._entry(one, source, number) for one in _COMMA.split(side)] for side in given]
            for one in sides[0]:
                ways = self._ways.setdefault(self._key(one), {})
                ways |= dict.fromkeys(sides[-1])
                if len(ways) > MAX_WAYS:
                    what = f"{' '.join(one)!r} stands for more than {MAX_WAYS} words"
                    raise ConfigError(f"{source}, line {number}: {what}; write several lines with fewer")
        self._longest = max(map(len, self._ways), default=0)

    def __len__(self) -> int:
        """How many words and phrases stand for others."""
        return len(self._ways)

    def written_out(self, columns: Mapping[str, Any], kinds: Kinds) -> Mapping[str, Any]:
        """The columns of a subscription with its synonyms written out; the same object where there are none.

        A `match` that is a number counts keywords, which then stay as they are. Columns that cannot be read stay, too.
        """
        if not self._ways:
            return columns
        kind, match = columns.get("kind"), columns.get("match")
        found, groups, query = dict(columns), list[Any](), columns.get("query")
        if query is not None and query != "":
            tree = parse_query(query)
            if not isinstance(tree, Node):
                return columns
            if (changed := self._tree(tree)) != tree:
                found["query"] = query = _written(changed)
        if isinstance(kind, str) and kind in kinds and match in (None, "all", "any"):
            holds_all = kinds.named(kind).all_keywords
            if (texts := self._texts(columns.get("keywords"))) is not None:
                own = [word for words, ways in texts if not ways for word in words]
                if match == "all" or (match is None and holds_all):
                    groups += [{ANY: list(map(_text, ways))} for _, ways in texts if ways]
                else:
                    if not holds_all:  # phrases do not rank
                        own += [word for words, ways in texts if ways and len(words) > 1 for word in words]
                    own += [_text(one) for _, ways in texts for one in ways if holds_all or len(one) == 1]
                    if match == "any" or not query:
                        groups.append({ANY: list(dict.fromkeys(own))})
                        own, found["match"] = [], None
                found["keywords"] = list(dict.fromkeys(own)) or None
        if (texts := self._texts(columns.get("not_keywords"))) is not None:
            found["not_keywords"] = [word for words, ways in texts if not ways for word in words] or None
            groups += [{NONE: list(map(_text, ways))} for _, ways in texts if ways]
        if groups:
            found["query"] = {ALL: [*([query] if query else []), *groups]}
        return found if found != columns else columns

    def _texts(self, given: Any) -> list[tuple[list[str], list[_Entry]]] | None:
        """Keywords one by one, or several in a row, and what these stand for; None if there is nothing to write out."""
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            return None
        found = [one for text in texts for one in self._cut(tokenise(text))]
        return found if any(ways for _, ways in found) else None

    def _cut(self, tokens: list[str]) -> Iterator[tuple[list[str], list[_Entry]]]:
        """Words of a text, several in a row where they are an entry: the longest first."""
        at = 0
        while at < len(tokens):
            for length in range(min(self._longest, len(tokens) - at), 0, -1):
                ways = [*self._ways.get(self._key(tokens[at : at + length]), ())]
                if ways or length == 1:
                    yield tokens[at : at + length], ways
                    at += length
                    break

    def _tree(self, node: Node) -> Node:
        """The tree with what its words and phrases stand for."""
        if node.operation in (WORD, PHRASE) and (node.operation == WORD or not node.value[1]):
            ways = self._ways.get(self._key(tokenise(" ".join(node.words()))))
            if ways is None:
                return node
            return Node(ANY, tuple(map(_leaf, ways)))
        if not node.parts:
            return node
        made = simplified(node._replace(parts=tuple(map(self._tree, node.parts))))
        return made._replace(parts=tuple({str(part): part for part in made.parts}.values()))

    def _entry(self, text: str, source: str, number: int) -> _Entry:
        found = () if has_unspaced(text) else tuple(tokenise(text.replace("\\,", ",")))
        if not found:
            what = f"there is no word of a script with spaces in {text.strip()!r}"
            raise ConfigError(f"{source}, line {number}: {what}; write a, b or a => b")
        return found

    def _key(self, tokens: Iterable[str]) -> _Entry:
        return tuple(map(self._form, tokens))


def _leaf(entry: _Entry) -> Node:
    return Node(WORD, value=entry[0]) if len(entry) == 1 else Node(PHRASE, value=(entry, 0))


def _text(entry: _Entry) -> str:
    """A word or phrase of a group, as queries have it."""
    return str(_leaf(entry))


def _written(node: Node) -> Any:
    """A tree as JSON has it."""
    if node.operation == WHERE:
        return {WHERE: node.value}
    return {node.operation: list(map(_written, node.parts))} if node.parts else str(node)
