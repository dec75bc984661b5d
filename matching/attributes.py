"""Attributes of messages: their schema, the check of single values, and the keys that kernels compare.

A schema is declared, never inferred. Every value has an int64 key whose order is that of the values: microseconds of a
time, a hash of a category, and of a number the bits of its float64, those of negative numbers turned over. So one
kernel compares all three types. Categories have no order, and two of them one key only if 64 bits of BLAKE2b collide: a
table of categories would have to be the same on all tasks, at every batch and after every restart.
"""

import hashlib
import math
import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from matching.errors import ConfigError
from matching.fields import MAX_ID_CHARACTERS, MESSAGE_ROLES, Fault, encodes, event_time_us, value_at, whole_number
from matching.model import Float64, Int64

#: Types of attributes, in the order of their codes.
TYPES = ("number", "category", "time", "categories", "text")
NUMBER, CATEGORY, TIME, CATEGORIES, TEXT = range(5)
#: Most categories in a list; a message has so many keys of such an attribute, those of its categories first.
MEMBERS = 16
#: Most characters of a text that is kept for receivers, and has no key.
MAX_KEPT_CHARACTERS = 4_096
#: A checked value: of a list of categories the distinct ones, in their order; None if it is missing.
AttributeValue = float | int | str | tuple[str, ...] | None
#: Start of the name of an attribute's column in files of messages: of one with keys, and of a text.
ATTRIBUTE, KEPT = "attribute_", "kept_"
#: Key of a missing value; no value has it.
MISSING_KEY = int(np.iinfo(np.int64).min)
MAX_ATTRIBUTES = 256
#: Names of a message's own values; an attribute called so would be mistaken for it.
RESERVED = frozenset((*MESSAGE_ROLES, "seq", "message_id", "event_time", "terms", "counts", "weights"))

_NAME = re.compile(r"[^\W\d][\w.-]{0,63}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_TURNED = np.int64(2**63 - 1)
_DOUBLE, _SIGNED = struct.Struct("<d"), struct.Struct("<q")
#: Forms in which the text of a number may be written: `plain` decimals; with marks between thousands, a `point` or a
#: `comma` before the decimals, and a unit or currency before or behind it: "1.200,00 EUR" is of the form `comma`.
NUMBER_FORMS = ("plain", "point", "comma")
_UNIT = r"(?:[^\d\s.,+-]{1,8}\.?)?"
_BLANKS = " \u00a0\u2009\u202f"
_MARKS = {"point": (",", "."), "comma": (".", ",")}
_WRITTEN = {
    form: re.compile(
        rf"{_UNIT}[{_BLANKS}]*([+-]?(?:[0-9]{{1,3}}(?:[{_BLANKS}'’{thousands}][0-9]{{3}})+|[0-9]+))"
        rf"(?:[{decimals}]([0-9]+|-{{1,2}}|–))?[{_BLANKS}]*{_UNIT}"
    )
    for form, (thousands, decimals) in _MARKS.items()
}


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

    @property
    def width(self) -> int:
        """How many keys a message has of it."""
        return {CATEGORIES: MEMBERS, TEXT: 0}.get(self.type, 1)

    @property
    def column(self) -> str:
        """The name of its column in files of messages."""
        return f"{ATTRIBUTE if self.width else KEPT}{self.name}"

    def __str__(self) -> str:
        return f"{self.name}{'' if self.path == self.name else f'={self.path}'}:{TYPES[self.type]}"


class AttributeSchema:
    """The attributes of a stream in the order of their declaration, which is that of their columns.

    Parameters
    ----------
    attributes : iterable of Attribute
    numbers : str
        Form of the text of numbers, one of `NUMBER_FORMS`.
    begun : int, optional
        How many of them the stream began with; by default all. Those that are declared later are no part of the content
        of a message: the same row has the same content before and after.

    Raises
    ------
    ConfigError
        For a name that is there twice, more than `MAX_ATTRIBUTES`, or an unknown form.
    """

    def __init__(self, attributes: Iterable[DeclaredAttribute] = (), numbers: str = "plain", begun: int | None = None):
        self.attributes = tuple(attributes)
        self.numbers = numbers
        if numbers not in NUMBER_FORMS:
            raise ConfigError(f"numbers {numbers!r}: choose one of {', '.join(NUMBER_FORMS)}")
        self.begun = len(self.attributes) if begun is None else begun
        self._columns = [0, *accumulate(one.width for one in self.attributes)]
        self._numbers: dict[str, int] = {}
        for number, attribute in enumerate(self.attributes):
            if attribute.name in self._numbers:
                raise ConfigError(f"attribute {attribute.name}: is there twice; leave one out or rename it")
            self._numbers[attribute.name] = number
        if len(self.attributes) > MAX_ATTRIBUTES:
            raise ConfigError(f"{len(self.attributes)} attributes: there can be {MAX_ATTRIBUTES} at most")

    @classmethod
    def parse(cls, texts: Iterable[str], numbers: str = "plain") -> "AttributeSchema":
        """The schema of options, each as `Attribute.parse` reads it."""
        return cls((DeclaredAttribute.parse(text) for text in texts), numbers)

    def plus(self, texts: Sequence[str]) -> "AttributeSchema":
        """This schema with attributes that are declared now, each as `Attribute.parse` reads it."""
        if not texts:
            return self
        return AttributeSchema((*self.attributes, *map(DeclaredAttribute.parse, texts)), self.numbers, self.begun)

    def reading(self, numbers: str) -> "AttributeSchema":
        """This schema with another form of numbers."""
        return self if numbers == self.numbers else AttributeSchema(self.attributes, numbers, self.begun)

    @property
    def at_start(self) -> "AttributeSchema":
        """The attributes that the stream began with."""
        return AttributeSchema(self.attributes[: self.begun], self.numbers)

    @property
    def compared(self) -> list[DeclaredAttribute]:
        """The attributes that conditions can compare."""
        return [one for one in self.attributes if one.width]

    def __len__(self) -> int:
        return len(self.attributes)

    def number_of(self, name: str) -> int | None:
        """The number of an attribute, None if there is none of this name."""
        return self._numbers.get(name)

    def column_of(self, number: int) -> int:
        """The first column of an attribute among the keys of messages."""
        return self._columns[number]

    def number_at(self, column: int) -> int:
        """The number of the attribute that has this column."""
        return bisect_right(self._columns, column) - 1


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
    """Checked values of a row.

    values : tuple       in the order of the schema, None where one is missing or does not fit
    misfits : tuple      values that do not fit
    content : tuple      what counts for the content of the row: values of attributes that the stream began with; one
                         that does not fit is there as text in an object
    """

    values: tuple[AttributeValue, ...]
    misfits: tuple[Misfit, ...]
    content: tuple[Any, ...]


def read_values(schema: AttributeSchema, given: Sequence[Any]) -> ReadValues:
    """Check the values of a row's attributes, given in the order of the schema. Never raises."""
    values, misfits = list[Any](), list[Misfit]()
    for number, (one, value) in enumerate(zip(schema.attributes, given, strict=True)):
        try:
            values.append(attribute_value(one.type, value, schema.numbers))
        except ValueError as error:
            values.append(None)
            misfits.append(Misfit(number, Fault(one.path, value), f"no {TYPES[one.type]}: {error}"))
    content = values[: schema.begun]
    for one in misfits:
        content[one.number : one.number + 1] = [{"": str(one.fault.value)}] if one.number < schema.begun else []
    return ReadValues(tuple(values), tuple(misfits), tuple(content))


def read_attributes(row: Mapping[str, Any], schema: AttributeSchema) -> ReadValues:
    """Check the values of the attributes of an object."""
    return read_values(schema, [value_at(row, one.path) for one in schema.attributes])


def attribute_value(type_code: int, value: Any, numbers: str = "plain") -> AttributeValue:
    """A value as its type: float, str, microseconds since 1970, or distinct texts; None if it is missing (None, blank).

    `numbers` is the form of the text of a number (`NUMBER_FORMS`); text is read at all since CSV has nothing else.
    Whole numbers and truth values are categories and texts too; times are those of `matching.fields.event_time_us`.

    Raises
    ------
    ValueError
        For a value of another type, a list, a number that is not finite, a category or text that is too long.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if type_code == TIME:
        return event_time_us(value)
    if type_code == CATEGORIES:
        return _categories(value)
    if type_code == NUMBER:
        return _number(value, numbers)
    return _category(value, MAX_KEPT_CHARACTERS if type_code == TEXT else MAX_ID_CHARACTERS)


def _number(value: Any, form: str) -> float:
    if isinstance(value, str):
        value = value.strip()
        if form != "plain":
            found = _WRITTEN[form].fullmatch(value)
            if found is None:
                raise ValueError(f"text that is no number of the form {form}")
            whole, decimals = re.sub(r"[^0-9+-]", "", found[1]), found[2] or ""
            value = f"{whole}.{decimals}" if decimals.isdigit() else whole
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


def _category(value: Any, most: int = MAX_ID_CHARACTERS) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal):
        value = whole_number(value)
    if isinstance(value, int) and abs(value) < 10**MAX_ID_CHARACTERS:
        return str(value)
    if not isinstance(value, str) or len(value) > most or "\0" in value or not encodes(value):
        raise ValueError(f"it must be text of at most {most:,} characters, or a whole number")
    return value


def _categories(value: Any) -> tuple[str, ...] | None:
    given = value if isinstance(value, list | tuple) else [value]
    there = (one for one in given if one is not None and not (isinstance(one, str) and not one.strip()))
    found = dict.fromkeys(map(_category, there))
    if len(found) > MEMBERS:
        raise ValueError(f"a list of more than {MEMBERS} categories")
    return tuple(found) or None


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


def numbers_of_keys(keys: Int64) -> Float64:
    """The numbers that `number_keys` has made these keys of, of any shape; NaN for a missing one. O(n)."""
    numbers = np.where(keys < 0, keys ^ _TURNED, keys).view(np.float64)
    return np.where(keys == MISSING_KEY, np.nan, numbers)


def list_keys(lists: Sequence[Sequence[str] | None]) -> Int64:
    """Keys of lists of categories, int64[n, MEMBERS]: of each list its distinct keys, ascending, then missing ones."""
    found = np.full((len(lists), MEMBERS), MISSING_KEY)
    known: dict[str, int] = {}
    for row, members in enumerate(lists):
        keys = {known.get(one) or known.setdefault(one, category_key(one)) for one in members or ()}
        found[row, : len(keys)] = sorted(keys)
    return found


def key_of(value: float | int | str | None) -> int:
    """The key (within int64) of one value of `attribute_value`, whose type says what it is; `MISSING_KEY` for None."""
    if value is None:
        return MISSING_KEY
    if isinstance(value, str):
        return category_key(value)
    if isinstance(value, int):
        return value
    (bits,) = _SIGNED.unpack(_DOUBLE.pack(value + 0.0))  # as `number_keys`, of one value: 0.3 us instead of 7
    return MISSING_KEY if math.isnan(value) else bits ^ int(_TURNED) if bits < 0 else bits
