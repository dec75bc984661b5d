"""Conditions over attributes as people write them: `where`, checked.

The oracle is `tests.support.naive_conditions`.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from matching.attributes import (
    CATEGORIES,
    CATEGORY,
    MISSING_KEY,
    NUMBER,
    TYPES,
    AttributeSchema,
    DeclaredAttribute,
    attribute_value,
    key_of,
)
from matching.fields import Fault, Refusal, shown

#: Operators of a `Condition`.
WITHIN, ANY_OF, NONE_OF, PRESENT, ABSENT = range(5)
#: Operators of lists of categories: a message has any of some categories, all of them, or none.
HAS_ANY, HAS_ALL, HAS_NONE = range(32, 35)
#: Operators that compare a version of an object with the one before it.
DECREASED, INCREASED, CHANGED = range(12, 15)
#: Most conditions of a subscription, and values of one.
MAX_CONDITIONS = 64
MAX_VALUES = 1024
#: How alike two names are (`difflib`) if one may be a slip for the other.
_NEARLY = 0.6
#: Attributes that a refusal names.
_NAMED = 20

_FIRST_KEY, _LAST_KEY = MISSING_KEY + 1, int(np.iinfo(np.int64).max)
_BOUNDS = ("lt", "lte", "gt", "gte")
_OPERATORS = frozenset((*_BOUNDS, "not", "exists"))
_OF_LISTS = {"any": HAS_ANY, "all": HAS_ALL, "none": HAS_NONE, "not": HAS_NONE}
_OF_VERSIONS = {"decreased": DECREASED, "decreased_by": DECREASED, "increased": INCREASED, "changed": CHANGED}

Value = float | int | str


class Condition(NamedTuple):
    """One checked condition.

    `attribute` is its number in the schema. `WITHIN` has `bounds`, pairs of an operator's name and a value; `ANY_OF`
    and `NONE_OF` have `values`, and so have the operators of lists, `DECREASED` (by how much at least) and `CHANGED`
    (how many columns the attribute has). `column` is the first of the attribute's columns among the keys of messages,
    by default its number.
    """

    attribute: int
    operator: int
    bounds: tuple[tuple[str, Value], ...] = ()
    values: tuple[Value, ...] = ()
    column: int | None = None

    @property
    def of_versions(self) -> bool:
        """Whether it compares a version of an object with the one before it."""
        return DECREASED <= self.operator <= CHANGED


def parse_where(where: Any, schema: AttributeSchema, of_versions: bool = False) -> tuple[Condition, ...] | Refusal:
    """Check the conditions of one subscription.

    Parameters
    ----------
    where : object
        Attribute -> a scalar (equal), a list of scalars (any of them), or an object of `lt`, `lte`, `gt`, `gte`, `not`
        (a scalar or a list) and `exists`, of lists of categories of `any`, `all`, `none`, `not` (a scalar or a list)
        and `exists`; `decreased`, `increased`, `changed` (true), and of numbers `decreased_by` (a number above 0); None
        for no conditions. Values as `matching.attributes.attribute_value` reads them.
    schema : AttributeSchema
    of_versions : bool
        Whether conditions on the version before may stand here; within a query they may not.

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
            there = ", ".join(one.name for one in schema.compared[:_NAMED]) or "none"
            near = meant(name, [one.name for one in schema.compared])
            return Refusal("unknown_attribute", f"{shown(name)}; {near}there are {there}")
        found = _conditions_of(attribute, schema.attributes[attribute], wanted)
        if isinstance(found, Refusal):
            return found
        if not of_versions and any(one.of_versions for one in found):
            what = "compares with the version before, which where may and a query may not"
            return Refusal("bad_where", f"{name}: {', '.join(map(str, wanted))} {what}")
        if any(len(one.values) > MAX_VALUES for one in found):
            return Refusal("too_many_conditions", f"{name} has a list of more than {MAX_VALUES:,}")
        conditions += [one._replace(column=schema.column_of(attribute)) for one in found]
    if len(conditions) > MAX_CONDITIONS:
        return Refusal("too_many_conditions", f"there are {len(conditions):,} conditions")
    return tuple(conditions)


def contradiction(where: Any, schema: AttributeSchema) -> Refusal | None:
    """Why conditions that `parse_where` accepts can never hold: the bounds of one leave no value.

    Asked of subscriptions that come, and not of those in a log, which earlier releases took.
    """
    conditions = parse_where(where, schema, of_versions=True)
    for one in () if isinstance(conditions, Refusal) else conditions:
        if is_impossible(one):
            name = schema.attributes[one.attribute].name
            bounds = ", ".join(f"{bound} {shown(value)}" for bound, value in where[name].items() if bound in _BOUNDS)
            return Refusal("impossible_where", f"{name}: {bounds}", Fault(f"where.{name}", bounds))
    return None


def is_impossible(condition: Condition) -> bool:
    """Whether no value fits a condition, since its bounds leave none."""
    first, last = interval_of(condition) if condition.operator == WITHIN else (0, 0)
    return first > last


def meant(name: Any, names: Sequence[str]) -> str:
    """The question whether a nearly equal name was meant; "" if there is none."""
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=_NEARLY)
    return f"did you mean {near[0]}? " if near else ""


def _conditions_of(attribute: int, declared: DeclaredAttribute, wanted: Any) -> list[Condition] | Refusal:
    """The conditions on one attribute, of this number."""
    if not declared.width:
        return Refusal("bad_where", f"{declared.name}: is a text for updates; declare a category to compare")
    lists = declared.type == CATEGORIES
    if not isinstance(wanted, Mapping):
        values = _values(declared, "", wanted)
        operator = HAS_ANY if lists else ANY_OF
        return values if isinstance(values, Refusal) else [Condition(attribute, operator, values=values)]
    if not wanted:
        return Refusal("bad_where", f"{declared.name}: the object is empty")
    for name in wanted:
        if name not in _OF_VERSIONS and name not in ((*_OF_LISTS, "exists") if lists else _OPERATORS):
            return Refusal("bad_where", f"{declared.name}: {shown(name)} is no operator")
    conditions = list[Condition]()
    for name in wanted:
        if name in _OF_VERSIONS:
            found = _of_versions(attribute, declared, name, wanted[name])
            if isinstance(found, Refusal):
                return found
            conditions.append(found)
    for name in wanted if lists else ():
        if name in _OF_LISTS:
            values = _values(declared, name, wanted[name])
            if isinstance(values, Refusal):
                return values
            conditions.append(Condition(attribute, _OF_LISTS[name], values=values))
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
    if "not" in wanted and not lists:
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


def _of_versions(attribute: int, declared: DeclaredAttribute, name: str, given: Any) -> Condition | Refusal:
    """A condition on the version before, of this name."""
    place = f"{declared.name} {name}"
    if name != "changed" and declared.type in (CATEGORY, CATEGORIES):
        return Refusal("bad_where", f"{place}: categories have no order; changed compares them")
    if name != "decreased_by":
        if given is not True:
            return Refusal("bad_where", f"{place}: {shown(given)}, where true belongs")
        return Condition(attribute, _OF_VERSIONS[name], values=(declared.width,) if name == "changed" else ())
    if declared.type != NUMBER:
        return Refusal("bad_where", f"{place}: {declared.name} is no number; decreased compares times")
    values = _values(declared, name, given)
    if isinstance(values, Refusal):
        return values
    if len(values) > 1 or not values[0] > 0:  # type: ignore[operator] - numbers
        return Refusal("bad_where", f"{place}: {shown(given)}, where a number above 0 belongs")
    return Condition(attribute, DECREASED, values=values)


def _values(declared: DeclaredAttribute, name: str, given: Any) -> tuple[Value, ...] | Refusal:
    """A scalar or the members of a list, checked: `given` to an operator of this name, or to none ("").

    Refused are no value, a null and one that does not fit.
    """
    place = f"{declared.name} {name}".rstrip()
    values: list[Value] = []
    type_code = CATEGORY if declared.type == CATEGORIES else declared.type
    for one in given if isinstance(given, list | tuple) else (given,):
        try:
            value: Any = attribute_value(type_code, one)
        except ValueError:
            return Refusal("bad_attribute", f"{place}: {shown(one)} is no {TYPES[type_code]}")
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
