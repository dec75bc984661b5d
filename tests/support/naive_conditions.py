"""The oracle of conditions: plain Python over dicts, one message and one subscription at a time.

Shares no code with `matching.conditions`. Values of a message are a float, a text, microseconds since 1970, or absent;
conditions have been accepted by `parse_where`, and are read here as they came. A list of categories is a collection of
texts.
"""

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import combinations
from typing import Any


def where_holds(where: Mapping[str, Any] | None, types: Mapping[str, str], values: Mapping[str, Any]) -> bool:
    """Whether a message with these values fits all conditions.

    Parameters
    ----------
    where : mapping, optional
        Attribute -> scalar, list, or object of operators.
    types : mapping
        Attribute -> number, category or time.
    values : mapping
        Attribute -> value; one that is missing is None or absent.
    """
    for name, wanted in (where or {}).items():
        value = values.get(name)
        if not isinstance(wanted, dict):
            wanted = {"in": wanted}
        for operator, operand in wanted.items():
            if not _holds(operator, operand, types[name], value):
                return False
    return True


def values_as_of(values: Mapping[str, Any], declared_at: Mapping[str, int], seq: int) -> dict[str, Any]:
    """The values of message `seq` that conditions see: those of attributes that were declared before it, or at it.

    Parameters
    ----------
    values : mapping
        Attribute -> value, as `where_holds` takes them.
    declared_at : mapping
        Attribute -> the first message that may have a value of it; absent: never declared.
    seq : int
    """
    return {name: value for name, value in values.items() if name in declared_at and declared_at[name] <= seq}


def query_holds(
    query: str | Mapping[str, Any], types: Mapping[str, str], values: Mapping[str, Any], words: Sequence[str]
) -> bool:
    """Whether a message with these values, and words in this order, satisfies a query in the form of a tree.

    A text in it is one word, `*` behind how one begins, `~1` behind one that may have one edit, or words in quotes,
    with `~n` behind where n others may stand between. Lists under `all`, `any` and `none` have texts and trees, `where`
    has conditions; all that one object has must hold. Words of another column stand behind `\\n`, which no phrase has
    between its words. A hashtag is also the word behind its mark, for a phrase only where all of them are.
    """
    named = [word.removeprefix("#") for word in words]
    if isinstance(query, str) and query.startswith('"'):
        phrase, _, between = query[1:].partition('"')
        own, most = phrase.split(), int(between[1:] or 0)
        return any(
            [read[place] for place in places] == own
            and places[-1] - places[0] < len(own) + most
            and "\n" not in read[places[0] : places[-1]]
            for read in (words, named)
            for places in combinations(range(len(read)), len(own))
        )
    if isinstance(query, str):
        words = [*words, *named]
    if isinstance(query, str) and query.endswith("~1"):
        return any(_edits(word, query.removesuffix("~1")) <= 1 for word in words)
    if isinstance(query, str):
        return any(word.startswith(query[:-1]) for word in words) if query.endswith("*") else query in words
    for name, members in query.items():
        if name == "where":
            held = where_holds(members, types, values)
        else:
            each = [query_holds(member, types, values, words) for member in members]
            held = {"all": all(each), "any": any(each), "none": not any(each)}[name]
        if not held:
            return False
    return True


def _edits(one: str, other: str) -> int:
    """Edits from one word to another: a character more, less or other, or two beside each other swapped."""
    if not one or not other:
        return len(one) + len(other)
    if one[0] == other[0]:
        return _edits(one[1:], other[1:])
    found = [_edits(one[1:], other), _edits(one, other[1:]), _edits(one[1:], other[1:])]
    if one[:2] == other[1::-1] and len(one) > 1 < len(other):
        found.append(_edits(one[2:], other[2:]))
    return 1 + min(found)


def _holds(operator: str, operand: Any, type_name: str, value: Any) -> bool:
    if operator == "exists":
        return operand == (value is not None)
    members = operand if isinstance(operand, list) else [operand]
    if type_name == "categories":
        wanted, there = {_category(member) for member in members}, set(value or ())
        if operator == "all":
            return wanted <= there
        return bool(wanted & there) == (operator in ("in", "any"))
    read = [_READ[type_name](member) for member in members]
    if operator == "not":
        return value is None or value not in read
    if value is None:
        return False
    if operator == "in":
        return value in read
    bound = read[0]
    return {"lt": value < bound, "lte": value <= bound, "gt": value > bound, "gte": value >= bound}[operator]


def _category(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _microseconds(value: Any) -> int:
    # numbers: seconds below 1e10, milliseconds below 1e13, YYYYMMDDhhmmss with 14 digits, else microseconds
    if not isinstance(value, str) and not 1e13 <= value < 1e14:
        seconds = value if abs(value) < 1e10 else value / 1e3 if abs(value) < 1e13 else None
        return int(value) if seconds is None else round(seconds * 1e6)
    if not isinstance(value, str):
        moment = datetime.strptime(str(value), "%Y%m%d%H%M%S")
    else:
        moment = parsedate_to_datetime(value) if value[0].isalpha() else datetime.fromisoformat(value)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


_READ = {"number": float, "category": _category, "time": _microseconds}


def stands_in(word: str, text: str) -> bool:
    """Whether a text has a word as people write it: what lies between two spaces, or a part of that.

    Both have letters, digits, spaces and punctuation, no links, tags or marks. Letters and digits of scripts that
    separate words have to be whole; which punctuation stands between, if any does, does not matter.
    """
    wanted = _units(word)
    runs = map(_units, text.split())
    return any(
        run[first : first + len(wanted)] == wanted for run in runs for first in range(len(run) - len(wanted) + 1)
    )


def stand_in_a_row(words: Sequence[str], text: str) -> bool:
    """Whether a text has several words, as of `stands_in`, side by side.

    There is a space or punctuation between two, or nothing where both are of scripts without spaces.
    """
    units = [unit for run in text.split() for unit in (".", *_units(run)) if _units(run)]

    def ends_of(word: str, start: int) -> list[int]:
        wanted = _units(word)
        starts = (start, start + 1) if units[start : start + 1] == ["."] else (start,)
        return [first + len(wanted) for first in starts if units[first : first + len(wanted)] == wanted]

    ends = [*range(len(units))]
    for number, word in enumerate(words):
        ends = [end for start in ends for end in (ends_of(word, start) if number else ends_of(word, start)[-1:])]
    return bool(ends)


def _units(run: str) -> list[str]:
    """Characters of scripts without spaces, and whole words of others, with a point between unless two such characters
    touch."""
    units, before = list[str](), ""
    for character in run.casefold():
        touches, before = before, _script(character)
        if before == "other" == touches:
            units[-1] += character
        elif before:
            units += ["."] if units and not before == touches == "unspaced" else []
            units.append(character)
    return units


def _script(character: str) -> str:
    if not character.isalnum():
        return ""
    unspaced = unicodedata.name(character).startswith(("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI"))
    return "unspaced" if unspaced else "other"


def words_hold(match: Any, keywords: Collection[str], excluded: Collection[str], words: Collection[str]) -> bool:
    """Whether a message of these words fits: all, any or at least m distinct keywords, and none that is excluded."""
    distinct = set(keywords)
    need = len(distinct) if match in (None, "all") else 1 if match == "any" else match
    return len(distinct & set(words)) >= need and not set(excluded) & set(words)
