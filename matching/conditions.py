"""Conditions over attributes as people write them: `where`, checked.

The oracle is `matching.naive_conditions`. Read on in `matching.filters`, which compiles conditions and tests them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from matching.attributes import CATEGORY, MISSING_KEY, AttributeSchema, attribute_value, key_of

#: Operators of a `Condition`.
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


def interval_of(condition: Condition) -> tuple[int, int]:
    """First and last key of a `WITHIN` condition; a first beyond the last if no value fits."""
    low, high = _FIRST_KEY, _LAST_KEY
    for name, value in condition.bounds:
        key = key_of(value)
        if name in ("lt", "lte"):
            high = min(high, key - (name == "lt"))
        else:
            low = max(low, key + (name == "gt"))
    return low, high
