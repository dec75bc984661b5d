"""Conditions over attributes as people write them: `where`, checked.

The oracle is `matching.naive_conditions`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from matching.attributes import (
    CATEGORY,
    MISSING_KEY,
    TYPES,
    AttributeSchema,
    DeclaredAttribute,
    attribute_value,
    key_of,
)
from matching.fields import Refusal, shown

#: Operators of a `Condition`.
WITHIN, ANY_OF, NONE_OF, PRESENT, ABSENT = range(5)
#: Most conditions of a subscription, and values of one.
MAX_CONDITIONS = 64
MAX_VALUES = 1024
#: Attributes that a refusal names.
_NAMED = 20

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


def parse_where(where: Any, schema: AttributeSchema) -> tuple[Condition, ...] | Refusal:
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
    tuple of Condition, or Refusal
        For `bad_where`, `unknown_attribute`, `bad_attribute`, `too_many_conditions`, with the attribute and the
        operator. Never raises.
    """
    if where is None:
        return ()
    if not isinstance(where, Mapping):
        return Refusal("bad_where", f"where is {shown(where)}")
    conditions: list[Condition] = []
    for name, wanted in where.items():
        attribute = schema.number_of(name) if isinstance(name, str) else None
        if attribute is None:
            there = ", ".join(one.name for one in schema.attributes[:_NAMED]) or "none"
            return Refusal("unknown_attribute", f"{shown(name)}; there are {there}")
        found = _conditions_of(attribute, schema.attributes[attribute], wanted)
        if isinstance(found, Refusal):
            return found
        if any(len(one.values) > MAX_VALUES for one in found):
            return Refusal("too_many_conditions", f"{name} has a list of more than {MAX_VALUES:,}")
        conditions += found
    if len(conditions) > MAX_CONDITIONS:
        return Refusal("too_many_conditions", f"there are {len(conditions):,} conditions")
    return tuple(conditions)


def _conditions_of(attribute: int, declared: DeclaredAttribute, wanted: Any) -> list[Condition] | Refusal:
    """The conditions on one attribute, of this number."""
    if not isinstance(wanted, Mapping):
        values = _values(declared, "", wanted)
        return values if isinstance(values, Refusal) else [Condition(attribute, ANY_OF, values=values)]
    if not wanted:
        return Refusal("bad_where", f"{declared.name}: the object is empty")
    for name in wanted:
        if name not in _OPERATORS:
            return Refusal("bad_where", f"{declared.name}: {shown(name)} is no operator")
    conditions = []
    bounds = []
    for name in _BOUNDS:
        if name in wanted:
            values = _values(declared, name, wanted[name])
            if isinstance(values, Refusal):
                return values
            if declared.type == CATEGORY:
                return Refusal("bad_where", f"{declared.name} {name}: categories have no order")
            if isinstance(wanted[name], list | tuple):
                return Refusal("bad_where", f"{declared.name} {name}: list, where one value belongs")
            bounds.append((name, values[0]))
    if bounds:
        conditions.append(Condition(attribute, WITHIN, bounds=tuple(bounds)))
    if "not" in wanted:
        values = _values(declared, "not", wanted["not"])
        if isinstance(values, Refusal):
            return values
        conditions.append(Condition(attribute, NONE_OF, values=values))
    if "exists" in wanted:
        if not isinstance(wanted["exists"], bool):
            given = shown(wanted["exists"])
            return Refusal("bad_where", f"{declared.name} exists: {given} is neither true nor false")
        conditions.append(Condition(attribute, PRESENT if wanted["exists"] else ABSENT))
    return conditions


def _values(declared: DeclaredAttribute, name: str, given: Any) -> tuple[Value, ...] | Refusal:
    """A scalar or the members of a list, checked: `given` to an operator of this name, or to none ("").

    Refused are no value, a null and one that does not fit.
    """
    place = f"{declared.name} {name}".rstrip()
    values = []
    for one in given if isinstance(given, list | tuple) else (given,):
        try:
            value = attribute_value(declared.type, one)
        except ValueError:
            return Refusal("bad_attribute", f"{place}: {shown(one)} is no {TYPES[declared.type]}")
        if value is None:
            return Refusal("bad_where", f"{place}: {shown(one)} is no value")
        values.append(value)
    return tuple(values) or Refusal("bad_where", f"{place}: the list is empty")


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
