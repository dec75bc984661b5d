"""Conditions of subscriptions: `where` over attributes, `match` and `not_keywords` over words, tested on candidates.

`parse_where` checks JSON against a schema, `attribute_conditions` makes the flat table of many subscriptions,
`fit_attributes` and `fit_words` are the kernels. The oracle is `matching.naive_conditions`. All operators become
closed intervals of keys (`matching.attributes`) or sets of them: numbers below x are those up to the key before x's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from matching.attributes import CATEGORY, MISSING_KEY, AttributeSchema, Categories, attribute_value, key_of
from matching.model import TERM, Int8, Int32, Int64
from matching.njit import njit_no_refcount

#: Operators in `AttributeConditions.operator`.
WITHIN, ANY_OF, NONE_OF, PRESENT, ABSENT = range(5)
#: Most conditions of a subscription, and values of one.
MAX_CONDITIONS = 64
MAX_VALUES = 1024

_FIRST_KEY, _LAST_KEY = MISSING_KEY + 1, int(np.iinfo(np.int64).max)
_BOUNDS = ("lt", "lte", "gt", "gte")
_OPERATORS = frozenset((*_BOUNDS, "not", "exists"))

Value = float | int | str


class Condition(NamedTuple):
    """One checked condition.

    `attribute` is its number in the schema. `WITHIN` has `bounds`, pairs of an operator's name and a value; `ANY_OF`
    and `NONE_OF` have `values`.
    """

    attribute: int
    operator: int
    bounds: tuple[tuple[str, Value], ...] = ()
    values: tuple[Value, ...] = ()


class AttributeConditions(NamedTuple):
    """Conditions of n subscriptions, all of which must hold; a checkpoint is these arrays.

    offsets : int64[n + 1]      cuts the next four by subscription
    attribute : int32[m]        number in the schema
    operator : int8[m]
    low, high : int64[m]        WITHIN: first and last key; ANY_OF, NONE_OF: cut `values`; otherwise 0
    values : int64[v]           keys, ascending within a condition
    """

    offsets: Int64
    attribute: Int32
    operator: Int8
    low: Int64
    high: Int64
    values: Int64


class WordConditions(NamedTuple):
    """What n subscriptions need of the words of a message; a checkpoint is these arrays.

    need : int32[n]                 distinct terms a message must have
    offsets, terms : int64[n + 1], int32[t]                 known terms of the keywords, ascending
    excluded_offsets, excluded : int64[n + 1], int32[e]     known terms, of which a message may have none; ascending
    """

    need: Int32
    offsets: Int64
    terms: Int32
    excluded_offsets: Int64
    excluded: Int32


def parse_where(where: Any, schema: AttributeSchema) -> tuple[Condition, ...] | str:
    """Check the conditions of one subscription.

    Parameters
    ----------
    where : object
        Attribute -> a scalar (equal), a list of scalars (any of them), or an object of `lt`, `lte`, `gt`, `gte`, `not`
        (a scalar or a list) and `exists`; None for no conditions. Values as `matching.attributes.attribute_value`
        reads them.
    schema : AttributeSchema

    Returns
    -------
    tuple of Condition, or str
        A reason code: `bad_where`, `unknown_attribute`, `bad_attribute`, `too_many_conditions`. Never raises.
    """
    if where is None:
        return ()
    if not isinstance(where, Mapping):
        return "bad_where"
    conditions: list[Condition] = []
    for name, wanted in where.items():
        attribute = schema.number_of(name) if isinstance(name, str) else None
        if attribute is None:
            return "unknown_attribute"
        found = _conditions_of(attribute, schema.attributes[attribute].type, wanted)
        if isinstance(found, str):
            return found
        conditions += found
    if len(conditions) > MAX_CONDITIONS or any(len(one.values) > MAX_VALUES for one in conditions):
        return "too_many_conditions"
    return tuple(conditions)


def _conditions_of(attribute: int, type_code: int, wanted: Any) -> list[Condition] | str:
    """The conditions on one attribute, or a reason code."""
    if not isinstance(wanted, Mapping):
        values = _values(type_code, wanted)
        return values if isinstance(values, str) else [Condition(attribute, ANY_OF, values=values)]
    if not wanted or not all(isinstance(name, str) for name in wanted) or not wanted.keys() <= _OPERATORS:
        return "bad_where"
    conditions = []
    bounds = []
    for name in _BOUNDS:
        if name in wanted:
            values = _values(type_code, wanted[name])
            if isinstance(values, str):
                return values
            if type_code == CATEGORY or isinstance(wanted[name], list | tuple):
                return "bad_where"
            bounds.append((name, values[0]))
    if bounds:
        conditions.append(Condition(attribute, WITHIN, bounds=tuple(bounds)))
    if "not" in wanted:
        values = _values(type_code, wanted["not"])
        if isinstance(values, str):
            return values
        conditions.append(Condition(attribute, NONE_OF, values=values))
    if "exists" in wanted:
        if not isinstance(wanted["exists"], bool):
            return "bad_where"
        conditions.append(Condition(attribute, PRESENT if wanted["exists"] else ABSENT))
    return conditions


def _values(type_code: int, given: Any) -> tuple[Value, ...] | str:
    """A scalar or the members of a list, checked; a reason code for none, for a null and for a wrong one."""
    values = []
    for one in given if isinstance(given, list | tuple) else (given,):
        try:
            value = attribute_value(type_code, one)
        except ValueError:
            return "bad_attribute"
        if value is None:
            return "bad_where"
        values.append(value)
    return tuple(values) or "bad_where"


def parse_match(match: Any, distinct: int) -> int | str:
    """How many distinct terms a message must have.

    Parameters
    ----------
    match : object
        "all" (or None), "any", or a whole number from 1.
    distinct : int
        Distinct terms of the keywords, unknown ones included.

    Returns
    -------
    int or str
        A reason code: `bad_match`, `match_too_large`.
    """
    if match is None or match == "all":
        return distinct
    if match == "any":
        return 1
    if isinstance(match, bool) or not isinstance(match, int) or match < 1:
        return "bad_match"
    return match if match <= distinct else "match_too_large"


def attribute_conditions(
    rows: Sequence[Sequence[Condition]],
    schema: AttributeSchema,
    categories: Categories,
    id_of: Callable[[int, str], int] | None = None,
) -> AttributeConditions:
    """The table of subscriptions, one row of conditions each. O(conditions + values * log values).

    Parameters
    ----------
    rows : sequence of sequences of Condition
    schema : AttributeSchema
    categories : Categories
    id_of : callable, optional
        `categories.admit` where a category that is new must get an id; by default such a one fits no message.
    """
    offsets = np.zeros(len(rows) + 1, np.int64)
    offsets[1:] = np.cumsum([len(row) for row in rows])
    flat = [condition for row in rows for condition in row]
    low, high = np.zeros(len(flat), np.int64), np.zeros(len(flat), np.int64)
    values: list[int] = []
    for place, one in enumerate(flat):
        type_code = schema.attributes[one.attribute].type
        if one.operator == WITHIN:
            low[place], high[place] = _interval(type_code, one, categories)
        elif one.operator in (ANY_OF, NONE_OF):
            if id_of is not None and type_code == CATEGORY:
                for text in one.values:
                    id_of(one.attribute, str(text))
            low[place] = len(values)
            values += sorted({key_of(type_code, value, one.attribute, categories) for value in one.values})
            high[place] = len(values)
    return AttributeConditions(
        offsets,
        np.array([one.attribute for one in flat], np.int32),
        np.array([one.operator for one in flat], np.int8),
        low,
        high,
        np.array(values, np.int64),
    )


def _interval(type_code: int, condition: Condition, categories: Categories) -> tuple[int, int]:
    low, high = _FIRST_KEY, _LAST_KEY
    for name, value in condition.bounds:
        key = key_of(type_code, value, condition.attribute, categories)
        if name in ("lt", "lte"):
            high = min(high, key - (name == "lt"))
        else:
            low = max(low, key + (name == "gt"))
    return low, high


def word_conditions(
    need: Sequence[int], terms: Sequence[Sequence[int]], excluded: Sequence[Sequence[int]]
) -> WordConditions:
    """The table of subscriptions: terms needed (`parse_match`), known terms, excluded known terms. O(n log n)."""
    return WordConditions(np.array(need, np.int32), *_ragged(terms), *_ragged(excluded))


def _ragged(rows: Sequence[Sequence[int]]) -> tuple[Int64, Int32]:
    offsets = np.zeros(len(rows) + 1, np.int64)
    distinct = [sorted(set(row)) for row in rows]
    offsets[1:] = np.cumsum([len(row) for row in distinct])
    return offsets, np.array([term for row in distinct for term in row], TERM)


@njit_no_refcount
def fit_attributes(conditions, keys, slots, rows, out):
    """Test candidates: clear `out` of each pair of which a condition does not hold.

    Parameters
    ----------
    conditions : AttributeConditions
    keys : int64[attributes, messages]      `MISSING_KEY` where a message has no value
    slots, rows : int32[p]                  subscription and message of each pair
    out : bool[p]                           pairs that are False are passed over

    Notes
    -----
    O(conditions of the pairs * log values), no allocation.
    """
    for pair in range(slots.shape[0]):
        if out[pair]:
            slot = slots[pair]
            for place in range(conditions.offsets[slot], conditions.offsets[slot + 1]):
                if not holds(conditions, place, keys[conditions.attribute[place], rows[pair]]):
                    out[pair] = False
                    break


@njit_no_refcount
def holds(conditions, place, key):
    """Whether the condition at `place` (int) holds for a value of this key (int64). O(log values), no allocation."""
    operator, low, high = conditions.operator[place], conditions.low[place], conditions.high[place]
    if operator == ABSENT:
        return key == MISSING_KEY
    if operator == NONE_OF:
        return not has_key(conditions.values, low, high, key)
    if key == MISSING_KEY:
        return False
    if operator == WITHIN:
        return low <= key and key <= high
    return operator == PRESENT or has_key(conditions.values, low, high, key)


@njit_no_refcount
def has_key(values, low, high, key):
    """Whether `values[low:high]` (int64[v], ascending there) have a key. O(log values), no allocation."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < key:
            low = middle + 1
        elif values[middle] > key:
            high = middle
        else:
            return True
    return False


@njit_no_refcount
def fit_words(conditions, offsets, terms, slots, rows, out):
    """Test candidates: clear `out` of each pair with too few terms of the keywords, or with an excluded one.

    Parameters
    ----------
    conditions : WordConditions
    offsets, terms : int64[messages + 1], int32[t]      terms of the messages, ascending
    slots, rows : int32[p]                              subscription and message of each pair
    out : bool[p]                                       pairs that are False are passed over

    Notes
    -----
    O(terms of the pairs), no allocation.
    """
    for pair in range(slots.shape[0]):
        if out[pair]:
            slot, row = slots[pair], rows[pair]
            start, end = offsets[row], offsets[row + 1]
            need = conditions.need[slot]
            first, last = conditions.offsets[slot], conditions.offsets[slot + 1]
            out[pair] = shared_terms(conditions.terms, first, last, terms, start, end, need) >= need
            if out[pair]:
                first, last = conditions.excluded_offsets[slot], conditions.excluded_offsets[slot + 1]
                out[pair] = shared_terms(conditions.excluded, first, last, terms, start, end, 1) == 0


@njit_no_refcount
def shared_terms(terms, first, last, others, start, end, most):
    """How many terms two ascending runs share, counted up to `most` (int).

    terms[first:last], others[start:end] : int32[t], int32[u]    without repeats

    O(terms of both), no allocation.
    """
    shared = 0
    while first < last and start < end and shared < most:
        if terms[first] < others[start]:
            first += 1
        elif terms[first] > others[start]:
            start += 1
        else:
            shared += 1
            first += 1
            start += 1
    return shared
