"""Checked messages of a live stream in columns: as they are logged, matched, and read again.

`OpenBlock` collects messages one by one or many at a time; `MessageBlock` has them as arrays. What few messages have (a
rectangle, an object, a deletion) is a column only where one has it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from matching.attributes import (
    CATEGORIES,
    CATEGORY,
    MISSING_KEY,
    NUMBER,
    TEXT,
    AttributeSchema,
    AttributeValue,
    category_key,
    list_keys,
    number_keys,
)
from matching.languages import in_language
from matching.model import Float64, Int64, Names
from matching.validate import DELETE, PUBLISH, ParsedMessage
from matching.window import NO_FLOOR
from matching.words.message_words import MessageTerms


class CategoryLists(NamedTuple):
    """A column of lists of categories: of each message the categories, with a NUL between two; "" for none."""

    joined: Names

    def lists(self) -> list[list[str]]:
        """The categories of each message."""
        return [text.split("\0") if text else [] for text in self.joined.strings()]


class KeptTexts(Names):
    """A column of texts that no condition compares."""

    __slots__ = ()


#: A column of an attribute: numbers (NaN where one is missing), times in us (`MISSING_KEY`), categories (""), lists, or
#: texts ("").
AttributeColumn = np.ndarray | Names | CategoryLists


#: Ends of the names of columns of lists, and of texts, in the log.
_LISTS, _KEPT = "_lists", "_kept"
#: What the columns of a message say that was removed, but for attributes and sides.
_REMOVED = {"lon": 0.0, "lat": 0.0, "time_us": 0, "deleted": 0, "ahead": 1, "made": 1, "previous": -1, "expires_us": -1}
_Sides = tuple[float | None, float | None, float | None, float | None]
_NO_SIDES: _Sides = (None, None, None, None)


class MessageBlock(NamedTuple):
    """Messages in the order of the stream, n of them.

    ids, texts : Names
    lon, lat : float64[n]       degrees
    time_us : int64[n]          microseconds since 1970; `NO_FLOOR` where a message has no time
    attributes : tuple          a column for each attribute of the stream; () where no message has any
    sides : float64[n, 4]       west, south, east, north; NaN where a message is a point; None if all are
    objects : Names             the object that a message is about, "" for itself; None if all are about themselves
    deleted : bool[n]           the message ends its object; None if none does
    ahead : bool[n]             dated too long after its arrival; None if none is
    made : bool[n]              the id is the hash of the content, since the producer gave none; None if none is
    previous : int64[n]         of a stream of objects: seq of the version that the message replaces or ends, -1 for
                                none; None of messages, and of a log that lacks it
    expires_us : int64[n]       when the version ends its object, -1 where it does not say; None if none does
    langs : Names               the language of a message, "" for the stream's; None if all are of that
    """

    ids: Names
    texts: Names
    lon: Float64
    lat: Float64
    time_us: Int64
    attributes: tuple[AttributeColumn, ...] = ()
    sides: Float64 | None = None
    objects: Names | None = None
    deleted: np.ndarray | None = None
    ahead: np.ndarray | None = None
    made: np.ndarray | None = None
    previous: Int64 | None = None
    expires_us: Int64 | None = None
    langs: Names | None = None

    def __len__(self) -> int:  # a NamedTuple would count its fields
        return self.lon.shape[0]

    def having(self, **columns: Any) -> "MessageBlock":
        """The same with other columns."""
        return MessageBlock(**(self._asdict() | columns))  # `_replace` would take the messages for fields

    @classmethod
    def of(cls, messages: Iterable[ParsedMessage], schema: AttributeSchema) -> "MessageBlock":
        """Columns of messages. O(their bytes)."""
        block = OpenBlock(schema)
        for message in messages:
            block.append(message)
        return block.closed()

    def values(self, row: int) -> tuple[AttributeValue, ...]:
        """The attributes of one message, None where one is missing."""

        def value_of(column: AttributeColumn) -> AttributeValue:
            if isinstance(column, CategoryLists):
                text = column.joined.string(row)
                return tuple(text.split("\0")) if text else None
            if isinstance(column, Names):
                return column.string(row) or None
            value = column[row].item()
            missing = value == MISSING_KEY if column.dtype == np.int64 else np.isnan(value)
            return None if missing else value

        return tuple(map(value_of, self.attributes))

    def message(self, row: int) -> ParsedMessage:
        """One message, without the hash of its content."""
        sides = _NO_SIDES if self.sides is None or np.isnan(self.sides[row, 0]) else tuple(self.sides[row].tolist())
        place = float(self.lon[row]), float(self.lat[row])
        return _message(
            (self.ids.string(row), self.texts.string(row), *place, int(self.time_us[row])),
            sides,
            "" if self.objects is None else self.objects.string(row),
            self.deleted is not None and bool(self.deleted[row]),
            self.ahead is not None and bool(self.ahead[row]),
            self.values(row),
            "" if self.langs is None else self.langs.string(row),
        )

    def messages(self) -> list[ParsedMessage]:
        """All messages, as `message` gives one."""
        return list(map(self.message, range(len(self))))

    def words(self) -> Names:
        """The texts whose words messages have, with their languages: a deletion, and a message dated too far ahead, has
        none."""
        if self.langs is None and self.deleted is None and self.ahead is None:
            return self.texts
        texts = self.texts.strings()
        if self.langs is not None:
            texts = list(map(in_language, texts, self.langs.strings()))
        if self.deleted is not None or self.ahead is not None:
            for row in np.flatnonzero(self.silent).tolist():
                texts[row] = ""
        return Names.of(texts)

    def take(self, rows: Int64) -> "MessageBlock":
        """Some of the messages. O(their bytes)."""
        return self._each(lambda names: names.take(rows), lambda name, column: column[rows])

    def spread(self, rows: Int64, count: int, time_us: int) -> "MessageBlock":
        """`count` messages, these of which are at `rows`; the others were removed: they have a time and are set aside.

        O(count)."""
        others = np.ones(count, np.bool_)
        others[rows] = False

        def names_of(names: Names) -> Names:
            offsets = np.zeros(count + 1, np.int64)
            offsets[rows + 1] = np.diff(names.offsets)
            return Names(np.cumsum(offsets), names.data)

        def array_of(name: str, column: np.ndarray) -> np.ndarray:
            missing = _REMOVED.get(name, np.nan if column.dtype == np.float64 else MISSING_KEY)
            found = np.full((count, *column.shape[1:]), missing, column.dtype)
            found[rows] = column
            return found

        none = np.zeros(len(self), np.bool_)
        ahead, made = (none if column is None else column.astype(np.bool_) for column in (self.ahead, self.made))
        found = self.having(ahead=ahead, made=made)._each(names_of, array_of)
        found.time_us[others] = time_us
        return found

    def _each(
        self, names_of: Callable[[Names], Names], array_of: Callable[[str, np.ndarray], np.ndarray]
    ) -> "MessageBlock":
        def column_of(name: str, column: Any) -> Any:
            if isinstance(column, CategoryLists):
                return CategoryLists(names_of(column.joined))
            if isinstance(column, Names):
                return type(column)(*names_of(column))
            if isinstance(column, tuple):
                return tuple(column_of("attributes", one) for one in column)
            return None if column is None else array_of(name, column)

        return MessageBlock(**{name: column_of(name, column) for name, column in self._asdict().items()})

    @property
    def silent(self) -> np.ndarray:
        """bool[n]: which meet no subscription: deletions, and those dated too far ahead."""
        silent = np.zeros(len(self), np.bool_)
        for column in (self.deleted, self.ahead):
            if column is not None:
                silent |= column
        return silent

    @property
    def size_bytes(self) -> int:
        """Of the arrays."""
        strings = [self.ids, self.texts, *(column for column in self.attributes if isinstance(column, Names))]
        strings += [column.joined for column in self.attributes if isinstance(column, CategoryLists)]
        strings += [one for one in (self.objects, self.langs) if one is not None]
        plain = [self.lon, self.lat, self.time_us, *self.attributes]
        plain += [self.sides, self.deleted, self.ahead, self.made, self.previous, self.expires_us]
        arrays = [one for one in plain if type(one) is np.ndarray]
        return sum([one.nbytes for one in arrays]) + sum([each.offsets.nbytes + each.data.nbytes for each in strings])


class OpenBlock:
    """Messages that are being collected.

    Attributes
    ----------
    ids, texts : list of str
    lon, lat : list of float
    time_us : list of int         `NO_FLOOR` where a message has no time
    attributes : list of list     values of each attribute; None where one is missing
    """

    def __init__(self, schema: AttributeSchema):
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.lon: list[float] = []
        self.lat: list[float] = []
        self.time_us: list[int] = []
        self.attributes: list[list[Any]] = []
        self._types: list[int] = []
        self._sides: dict[int, _Sides] = {}
        self._objects: dict[int, str] = {}
        self._deleted: list[int] = []
        self._ahead: list[int] = []
        self._made: list[int] = []
        self._expires: dict[int, int] = {}
        self._langs: dict[int, str] = {}
        self.declare(schema)

    def declare(self, schema: AttributeSchema) -> None:
        """Have columns for all attributes of a schema, whose first are there already: earlier rows have no value."""
        new = schema.attributes[len(self._types) :]
        self.attributes += [[None] * len(self.ids) for _ in new]
        self._types += [one.type for one in new]

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, message: ParsedMessage) -> None:
        """Take one message."""
        row = len(self.ids)
        self.ids.append(message.message_id)
        self.texts.append(message.text)
        self.lon.append(message.lon)
        self.lat.append(message.lat)
        self.time_us.append(NO_FLOOR if message.event_time_us is None else message.event_time_us)
        for column, value in zip_longest(self.attributes, message.attributes):
            column.append(value)
        if message.west is not None:
            self._sides[row] = message.west, message.south, message.east, message.north
        if message.object_id != message.message_id:
            self._objects[row] = message.object_id
        if message.op == DELETE:
            self._deleted.append(row)
        if message.ahead:
            self._ahead.append(row)
        if message.content.hex() == message.message_id:
            self._made.append(row)
        if message.expires_us is not None:
            self._expires[row] = message.expires_us
        if message.lang:
            self._langs[row] = message.lang

    def extend(
        self,
        ids: Sequence[str],
        texts: Sequence[str],
        lon: Sequence[float],
        lat: Sequence[float],
        time_us: Sequence[int],
        attributes: Sequence[Sequence[Any]],
        langs: Sequence[str],
        ahead: Iterable[int],
        made: Iterable[int],
    ) -> None:
        """Take point messages about themselves; columns as the attributes of this class, rows from 0 of the last.

        `langs`: their languages, "" for the stream's; none if all are of that.
        """
        first = len(self.ids)
        self.ids += ids
        self.texts += texts
        self.lon += lon
        self.lat += lat
        self.time_us += time_us
        for column, values in zip(self.attributes, attributes, strict=True):
            column += values
        self._langs |= {first + row: lang for row, lang in enumerate(langs) if lang}
        self._ahead += [first + row for row in ahead]
        self._made += [first + row for row in made]

    def message(self, row: int) -> ParsedMessage:
        """One message, without the hash of its content."""
        return _message(
            (self.ids[row], self.texts[row], self.lon[row], self.lat[row], self.time_us[row]),
            self._sides.get(row, _NO_SIDES),
            self._objects.get(row, ""),
            row in self._deleted,
            row in self._ahead,
            tuple([column[row] for column in self.attributes]),
            self._langs.get(row, ""),
        )

    def closed(self) -> MessageBlock:
        """The messages as columns. O(their bytes)."""
        rows = len(self.ids)
        sides = None
        if self._sides:
            sides = np.full((rows, 4), np.nan)
            sides[list(self._sides)] = list(self._sides.values())
        expires_us = None
        if self._expires:
            expires_us = np.full(rows, -1, np.int64)
            expires_us[list(self._expires)] = list(self._expires.values())
        return MessageBlock(
            Names.of(self.ids),
            Names.of(self.texts),
            np.array(self.lon, np.float64),
            np.array(self.lat, np.float64),
            np.array(self.time_us, np.int64),
            tuple(map(_attribute, self._types, self.attributes)),
            sides,
            _names(self._objects, rows) if self._objects else None,
            _mask(self._deleted, rows) if self._deleted else None,
            _mask(self._ahead, rows) if self._ahead else None,
            _mask(self._made, rows) if self._made else None,
            expires_us=expires_us,
            langs=_names(self._langs, rows) if self._langs else None,
        )


def columns_of(block: MessageBlock, terms: MessageTerms | None = None) -> dict[str, np.ndarray]:
    """Messages and their terms as named arrays, for the log; what no message has is left out."""
    named: dict[str, Any] = {
        "id": block.ids,
        "text": block.texts,
        "lon": block.lon,
        "lat": block.lat,
        "time_us": block.time_us,
        "sides": None if block.sides is None else block.sides.reshape(-1),
        "object": block.objects,
        "deleted": block.deleted,
        "ahead": block.ahead,
        "made": block.made,
        "previous": block.previous,
        "expires_us": block.expires_us,
        "lang": block.langs,
    }
    for number, column in enumerate(block.attributes):
        lists = isinstance(column, CategoryLists)
        end = _LISTS if lists else _KEPT if isinstance(column, KeptTexts) else ""
        named[f"attribute_{number}{end}"] = column.joined if lists else column
    if terms is not None:
        named |= {"term_length": _lengths(terms.offsets), "term": terms.ids}
        named |= {name: _some(getattr(terms, name)) for name in ("unknown", "stopped")}
    found: dict[str, np.ndarray] = {}
    for name, column in named.items():
        if column is None:
            continue
        if type(column) is not np.ndarray and isinstance(column, Names):
            found[f"{name}_length"] = _lengths(column.offsets)
            found[name] = column.data
        else:
            found[name] = column
    return found


def block_of(columns: Mapping[str, np.ndarray]) -> tuple[MessageBlock, MessageTerms]:
    """What `columns_of` has made columns of. Raises KeyError if one is missing that all blocks have."""
    rows = columns["lon"].shape[0]

    def offsets_of(name: str) -> Int64:
        offsets = np.zeros(rows + 1, np.int64)
        np.cumsum(columns[f"{name}_length"], out=offsets[1:])
        return offsets

    def names_of(name: str) -> Names:
        return Names(offsets_of(name), columns[name])

    def attribute_of(name: str) -> AttributeColumn:
        if f"{name}{_LISTS}" in columns:
            return CategoryLists(names_of(f"{name}{_LISTS}"))
        if f"{name}{_KEPT}" in columns:
            return KeptTexts(*names_of(f"{name}{_KEPT}"))
        return names_of(name) if f"{name}_length" in columns else columns[name]

    count = sum(name.startswith("attribute_") and not name.endswith("_length") for name in columns)
    none = np.zeros(rows, np.int32)
    sides = columns.get("sides")
    block = MessageBlock(
        names_of("id"),
        names_of("text"),
        columns["lon"],
        columns["lat"],
        columns["time_us"],
        tuple(attribute_of(f"attribute_{number}") for number in range(count)),
        None if sides is None else sides.reshape(rows, 4),
        names_of("object") if "object" in columns else None,
        *(columns.get(name) for name in ("deleted", "ahead", "made", "previous", "expires_us")),
        langs=names_of("lang") if "lang" in columns else None,
    )
    left_out = (columns.get(name, none).astype(np.int32) for name in ("unknown", "stopped"))
    return block, MessageTerms(columns["term"], offsets_of("term"), *left_out)


def keys_of(column: AttributeColumn) -> Int64:
    """Keys of the values of an attribute (`matching.attributes`), int64[n, width]. O(n), and a hash for each new
    category."""
    if isinstance(column, CategoryLists):
        return list_keys(column.lists())
    if isinstance(column, KeptTexts):
        return np.zeros((len(column.offsets) - 1, 0), np.int64)
    if not isinstance(column, Names):
        return (number_keys(column) if column.dtype == np.float64 else column)[:, None]
    known: dict[str, int] = {"": MISSING_KEY}
    found = []
    for text in column.strings():
        key = known.get(text)
        if key is None:
            key = known[text] = category_key(text)
        found.append(key)
    return np.array(found, np.int64)[:, None]


def _message(
    own: tuple[str, str, float, float, int],
    sides: _Sides,
    object_id: str,
    deleted: bool,
    ahead: bool,
    attributes: tuple[Any, ...],
    lang: str,
) -> ParsedMessage:
    """A message of its values; `own`: id, text, longitude, latitude and time."""
    name, text, lon, lat, time_us = own
    west, south, east, north = sides
    time = None if time_us == NO_FLOOR else time_us
    op, other = DELETE if deleted else PUBLISH, object_id or name
    found = ParsedMessage(name, b"", lon, lat, west, south, east, north, time, text, other, op, ahead, attributes)
    return found._replace(lang=lang) if lang else found


def _attribute(type_code: int, values: Sequence[Any]) -> AttributeColumn:
    if type_code == CATEGORIES:
        return CategoryLists(Names.of(["\0".join(value or ()) for value in values]))
    if type_code in (CATEGORY, TEXT):
        texts = Names.of(["" if value is None else value for value in values])
        return texts if type_code == CATEGORY else KeptTexts(*texts)
    if type_code == NUMBER:
        return np.array([np.nan if value is None else value for value in values], np.float64)
    return np.array([MISSING_KEY if value is None else value for value in values], np.int64)


def _names(found: Mapping[int, str], rows: int) -> Names:
    return Names.of([found.get(row, "") for row in range(rows)])


def _mask(rows: Sequence[int], count: int) -> np.ndarray:
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def _some(counts: np.ndarray) -> np.ndarray | None:
    """Counts in their smallest type; None if all are 0."""
    some = counts[0] if counts.shape[0] == 1 else np.count_nonzero(counts)
    return _small(counts) if some else None


def _lengths(offsets: Int64) -> np.ndarray:
    """The lengths between offsets in their smallest type; `np.diff` takes ten times as long over one."""
    return _small(offsets[1:] - offsets[:-1])


def _small(counts: np.ndarray) -> np.ndarray:
    """Counts in the smallest unsigned type that holds them."""
    most = counts[0] if counts.shape[0] == 1 else counts.max(initial=0)
    return counts.astype(np.min_scalar_type(int(most)))
