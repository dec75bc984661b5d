"""Fields of recent messages that no attribute is declared for: what a subscription may name, and people may declare."""

from collections import Counter, deque
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

from matching.attributes import (
    CATEGORIES,
    CATEGORY,
    NUMBER,
    TIME,
    TYPES,
    AttributeSchema,
    DeclaredAttribute,
    attribute_value,
)
from matching.errors import ConfigError
from matching.fields import shown
from spark_etl.paths import leaves

#: Rows after which all counts are halved, so that old rows fade.
_RECENT = 2_048
#: Fields that are kept, fields of a row that are looked at, and samples of a field.
_FIELDS, _OF_ROW, _SAMPLES = 256, 64, 3
#: Every row is noted up to so many, then one of so many, since a row takes some 10 us.
_ALL, _ONE_OF = 1_024, 16
#: Share of the values of a field that must fit the type that it is said to have.
_FITTING = 0.9


class _Field:
    __slots__ = ("samples", "types")

    def __init__(self) -> None:
        self.types: Counter[int] = Counter()
        self.samples: deque[str] = deque(maxlen=_SAMPLES)

    def type(self) -> int:
        """The type that nearly all values fit; of other fields the values are categories."""
        if self.types[CATEGORIES]:
            return CATEGORIES
        enough = _FITTING * self.types.total()
        return next((code for code in (NUMBER, TIME) if self.types[code] >= enough), CATEGORY)


class RecentFields:
    """Counts fields by the types of their values, over recent rows. One thread notes rows; any may read.

    Parameters
    ----------
    meant : collection of str, optional
        Fields that mean something to the stream. A `where` may name them, and `report` leaves them out.

    Notes
    -----
    Memory: at most 256 names of at most 64 characters, each with three samples of at most 40.
    """

    def __init__(self, meant: Collection[str] = ()) -> None:
        self._meant = meant
        self._fields: dict[str, _Field] = {}
        self._rows = self._seen = 0

    @property
    def is_new(self) -> bool:
        """Whether few rows were noted so far, so that every one is."""
        return self._seen < _ALL

    def note(
        self, row: Mapping[str, Any], taken: Collection[str], schema: AttributeSchema, sampled: bool = False
    ) -> None:
        """Count the fields of a message.

        Parameters
        ----------
        taken : collection of str
            Those of its columns that mean something else.
        sampled : bool
            The row stands for many: it is always counted.
        """
        self._seen += 1
        if self._seen > _ALL and self._seen % _ONE_OF and not sampled:
            return
        self._rows += 1
        declared = {one.path for one in schema.attributes}
        for path, value in islice(leaves(row), _OF_ROW):
            if value is None or value == "" or path in taken or path in declared or path.partition(".")[0] in taken:
                continue
            code = _type_of(value)
            field = self._fields.get(path)
            if code is None or (field is None and (len(self._fields) >= _FIELDS or _attribute(path, code) is None)):
                continue
            field = self._fields.setdefault(path, _Field()) if field is None else field
            field.types[code] += 1
            field.samples.append(shown(value))
        if self._rows >= _RECENT:
            self._fade()

    def attribute(self, name: str) -> DeclaredAttribute | None:
        """The attribute that recent messages have as a field of this name; None if they have none."""
        field = self._fields.get(name)
        return None if field is None else _attribute(name, field.type())

    @property
    def names(self) -> list[str]:
        """The fields, the most frequent first."""
        return [name for name, _ in sorted(dict(self._fields).items(), key=lambda one: -one[1].types.total())]

    def report(self, schema: AttributeSchema, with_samples: bool) -> list[dict[str, Any]]:
        """Of each field that is not declared `name`, `type`, `share` of recent messages and, if wanted, `samples`."""
        fields, rows = dict(self._fields), max(1, self._rows)
        found = []
        for name in self.names:
            if name in fields and name not in self._meant and schema.number_of(name) is None:
                one = fields[name]
                share = round(min(1.0, one.types.total() / rows), 3)
                row = {"name": name, "type": TYPES[one.type()], "share": share}
                found.append({**row, "samples": list(one.samples)} if with_samples else row)
        return found

    def _fade(self) -> None:
        self._rows //= 2
        for name, field in list(self._fields.items()):
            field.types = Counter({code: count // 2 for code, count in field.types.items() if count > 1})
            if not field.types:
                del self._fields[name]


def _attribute(name: str, code: int) -> DeclaredAttribute | None:
    try:
        return DeclaredAttribute.parse(f"{name}:{TYPES[code]}")
    except ConfigError:
        return None


def _type_of(value: Any) -> int | None:
    """The type of attribute that a value is most likely of; None of a value that fits none."""
    codes = (CATEGORIES,) if isinstance(value, list) else (NUMBER, TIME, CATEGORY) if isinstance(value, str) else None
    codes = codes or (NUMBER, CATEGORY)
    for code in codes:
        try:
            attribute_value(code, value)
        except ValueError:
            continue
        return code
    return None
