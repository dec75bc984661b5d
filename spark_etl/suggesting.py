"""Attributes that a dry run suggests: columns of numbers, of times, and of a few texts that repeat.

A suggestion changes nothing: the user adds the printed options to the command, or not.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from matching.attributes import CATEGORY, NUMBER, RESERVED, TIME, TYPES, DeclaredAttribute, attribute_value
from matching.errors import ConfigError
from spark_etl.paths import leaves

#: Most categories of a column; least mean number of rows of a category.
MAX_CATEGORIES, REPEATS = 30, 2
MAX_SUGGESTED = 40


class _Column:
    """Types that all values of a column seen so far fit."""

    def __init__(self) -> None:
        self.types = {NUMBER, CATEGORY, TIME}
        self.values = 0
        self.distinct: set[str] = set()

    def add(self, value: Any) -> None:
        self.values += 1
        if not isinstance(value, str):
            self.types.discard(TIME)  # a number may be one, but most are none
        if not isinstance(value, str | bool):
            self.types.discard(CATEGORY)  # a number may be one, but most are none
        for type_code in list(self.types):
            try:
                found = attribute_value(type_code, value)
            except ValueError:
                self.types.discard(type_code)
                continue
            if type_code == CATEGORY:
                self.distinct.add(str(found))
                if len(self.distinct) > MAX_CATEGORIES:
                    self.types.discard(CATEGORY)

    def type(self) -> int | None:
        if NUMBER in self.types:
            return NUMBER
        if TIME in self.types:
            return TIME
        repeated = len(self.distinct) > 1 and REPEATS * len(self.distinct) <= self.values
        return CATEGORY if CATEGORY in self.types and repeated else None


def suggested_attributes(rows: Iterable[Mapping[str, Any]], taken: Collection[str]) -> list[str]:
    """Options `--attribute` for the columns of some rows, each as `NAME:TYPE` or `NAME=COLUMN:TYPE`.

    Parameters
    ----------
    rows : iterable of mappings
    taken : collection of str
        Columns that are something else: the text, the place, attributes that are declared.

    Returns
    -------
    list of str
        At most `MAX_SUGGESTED`, in the order of the columns. O(values).
    """
    columns: dict[str, _Column] = {}
    for row in rows:
        for path, value in leaves(row):
            in_list = path.rpartition(".")[2].isdigit()
            if path not in taken and not in_list and value is not None and (value != "" and value != []):
                columns.setdefault(path, _Column()).add(value)
    found = [(path, column.type()) for path, column in columns.items()]
    options = [_option(path, type_code) for path, type_code in found if type_code is not None]
    return [option for option in options if option is not None][:MAX_SUGGESTED]


def _option(path: str, type_code: int) -> str | None:
    """The option for a column; a name that cannot be used is written otherwise, None if that does not help."""
    name = "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in path).lstrip("_.-0123456789")
    name = f"my_{name}" if name in RESERVED else name
    text = f"{name}:{TYPES[type_code]}" if name == path else f"{name}={path}:{TYPES[type_code]}"
    try:
        return str(DeclaredAttribute.parse(text))
    except ConfigError:
        return None
