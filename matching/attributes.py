"""Attributes of messages: their schema, the check of single values, and the keys that kernels compare.

A schema is declared, never inferred. Every value has an int64 key whose order is that of the values: microseconds of a
time, a hash of a category, and of a number the bits of its float64, those of negative numbers turned over. So one
kernel compares all three types. Categories have no order, and two of them one key only if 64 bits of BLAKE2b collide: a
table of categories would have to be the same on all tasks, at every batch and after every restart.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from matching.errors import ConfigError
from matching.fields import MAX_ID_CHARACTERS, MESSAGE_ROLES, Fault, encodes, event_time_us, value_at, whole_number
from matching.model import Float64, Int64

#: Types of attributes, in the order of their codes.
TYPES = ("number", "category", "time")
NUMBER, CATEGORY, TIME = range(3)
#: Start of the name of an attribute's column in files of messages.
ATTRIBUTE = "attribute_"
#: Key of a missing value; no value has it.
MISSING_KEY = int(np.iinfo(np.int64).min)
MAX_ATTRIBUTES = 256
#: Names of a message's own values; an attribute called so would be mistaken for it.
RESERVED = frozenset((*MESSAGE_ROLES, "seq", "message_id", "event_time", "terms", "counts", "weights"))

_NAME = re.compile(r"[^\W\d][\w.-]{0,63}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_TURNED = np.int64(2**63 - 1)


class DeclaredAttribute(NamedTuple):
    """A declared attribute: `path` is where a record has it, `type` a code of `TYPES`."""

    name: str
    path: str
    type: int

    @classmethod
    def parse(cls, text: str) -> "DeclaredAttribute":
        """Read `NAME:TYPE` or `NAME=PATH:TYPE`; the path of a name alone is the name.

        Raises
        ------
        ConfigError
            For another form, an unknown type, a name that cannot be used or is reserved.
        """
        left, colon, type_name = text.rpartition(":")
        if not colon or not left:
            raise ConfigError(f"attribute {text!r}: give a name and a type, such as price:number")
        if type_name not in TYPES:
            raise ConfigError(f"attribute {text!r}: no type {type_name!r}; choose one of {', '.join(TYPES)}")
        name, equals, path = left.partition("=")
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"attribute {text!r}: the name must start with a letter and have letters, digits, _ . - only, at most "
                "64; for a column of another name give NAME=COLUMN:TYPE"
            )
        if name in RESERVED:
            raise ConfigError(f"attribute {text!r}: {name} is a message's own; give another, such as my_{name}={name}")
        if equals and not path:
            raise ConfigError(f"attribute {text!r}: name the column after the equals sign")
        return cls(name, path or name, TYPES.index(type_name))

    def __str__(self) -> str:
        return f"{self.name}{'' if self.path == self.name else f'={self.path}'}:{TYPES[self.type]}"


class AttributeSchema:
    """The attributes of a stream in the order of their declaration, which is that of their columns.

    Raises
    ------
    ConfigError
        For a name that is there twice, or more than `MAX_ATTRIBUTES`.
    """

    def __init__(self, attributes: Iterable[DeclaredAttribute] = ()):
        self.attributes = tuple(attributes)
        self._numbers: dict[str, int] = {}
        for number, attribute in enumerate(self.attributes):
            if attribute.name in self._numbers:
                raise ConfigError(f"attribute {attribute.name}: is there twice; leave one out or rename it")
            self._numbers[attribute.name] = number
        if len(self.attributes) > MAX_ATTRIBUTES:
            raise ConfigError(f"{len(self.attributes)} attributes: there can be {MAX_ATTRIBUTES} at most")

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "AttributeSchema":
        """The schema of options, each as `DeclaredAttribute.parse` reads it."""
        return cls(DeclaredAttribute.parse(text) for text in texts)

    def __len__(self) -> int:
        return len(self.attributes)

    def number_of(self, name: str) -> int | None:
        """The number of an attribute, None if there is none of this name."""
        return self._numbers.get(name)


NO_ATTRIBUTES = AttributeSchema()


class Misfit(NamedTuple):
    """A value that does not fit its attribute, the attribute's number, and why it does not fit."""

    number: int
    fault: Fault
    why: str

    @property
    def named(self) -> dict[str, Any]:
        """`column`, `value` and `why`, as outcomes of rows have them."""
        return {**self.fault.named, "why": self.why}


class ReadValues(NamedTuple):
    """Checked values in the order of the schema, None where one is missing or does not fit, and those that do not."""

    values: tuple[float | int | str | None, ...]
    misfits: tuple[Misfit, ...] = ()

    @property
    def as_sent(self) -> tuple[Any, ...]:
        """The values, and those that do not fit as text in a list: what counts for the content of a row."""
        if not self.misfits:
            return self.values
        found: list[Any] = list(self.values)
        for one in self.misfits:
            found[one.number] = [str(one.fault.value)]
        return tuple(found)


def read_values(schema: AttributeSchema, given: Sequence[Any]) -> ReadValues:
    """Check the values of a row's attributes, given in the order of the schema. Never raises."""
    values, misfits = list[Any](), list[Misfit]()
    for number, (one, value) in enumerate(zip(schema.attributes, given, strict=True)):
        try:
            values.append(attribute_value(one.type, value))
        except ValueError as error:
            values.append(None)
            misfits.append(Misfit(number, Fault(one.path, value), f"no {TYPES[one.type]}: {error}"))
    return ReadValues(tuple(values), tuple(misfits))


def read_attributes(row: Mapping[str, Any], schema: AttributeSchema) -> ReadValues:
    """Check the values of the attributes of an object."""
    return read_values(schema, [value_at(row, one.path) for one in schema.attributes])


def attribute_value(type_code: int, value: Any) -> float | int | str | None:
    """A value as its type: float, str, or microseconds since 1970; None if it is missing (None or blank).

    Text of a plain decimal number is a number, since CSV has nothing else; whole numbers and truth values are
    categories too; times are those of `matching.fields.event_time_us`.

    Raises
    ------
    ValueError
        For a value of another type, a list, a number that is not finite, a category that is too long.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if type_code == TIME:
        return event_time_us(value)
    return _number(value) if type_code == NUMBER else _category(value)


def _number(value: Any) -> float:
    if isinstance(value, str):
        value = value.strip()
        if not _DECIMAL.fullmatch(value):
            raise ValueError("text that is no plain decimal number")
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("a number of the wrong type")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("a number that is too large") from None
    if not math.isfinite(number):
        raise ValueError("a number that is not finite")
    return number + 0.0  # turns minus zero into zero


def _category(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal):
        value = whole_number(value)
    if isinstance(value, int) and abs(value) < 10**MAX_ID_CHARACTERS:
        return str(value)
    if not isinstance(value, str) or len(value) > MAX_ID_CHARACTERS or "\0" in value or not encodes(value):
        raise ValueError("a category must be text or a whole number")
    return value


def category_key(text: str) -> int:
    """The key of a category, never `MISSING_KEY`."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return max(int.from_bytes(digest, "little", signed=True), MISSING_KEY + 1)


def number_keys(numbers: Float64) -> Int64:
    """Keys of numbers, in their order; NaN stands for a missing one. O(n).

    Parameters
    ----------
    numbers : float64[n]

    Returns
    -------
    int64[n]
    """
    bits = (np.asarray(numbers, np.float64) + 0.0).view(np.int64)
    keys = np.where(bits < 0, bits ^ _TURNED, bits)
    return np.where(np.isnan(numbers), np.int64(MISSING_KEY), keys)


def key_of(value: float | int | str | None) -> int:
    """The key (within int64) of one value of `attribute_value`, whose type says what it is; `MISSING_KEY` for None."""
    if value is None:
        return MISSING_KEY
    if isinstance(value, str):
        return category_key(value)
    return value if isinstance(value, int) else int(number_keys(np.array([value], np.float64))[0])
