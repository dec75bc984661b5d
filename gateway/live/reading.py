"""Reads lines of messages many at a time: bytes -> columns.

The names of a line's columns are its shape. The reader learns a shape from the first line that has it, and decodes
further lines of that shape in C into structs. Then it checks the values column by column. A line of an unknown shape,
or with an unusual value, is left to `gateway.live.mapping` and `gateway.live.admission`: these judge one line at a
time. Both ways give the same messages.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from gateway.live.admission import RefusedLine
from gateway.live.mapping import ColumnMapping
from matching.attributes import CATEGORIES, CATEGORY, NUMBER, TEXT, AttributeSchema, attribute_value
from matching.decoding import bare, decode_object, is_deep
from matching.fields import MAX_ID_CHARACTERS, OBJECT_ROLES, coordinate, event_time_us, text_columns
from matching.iso_times import iso_times
from matching.languages import languages_in
from matching.model import Float64, Int64
from matching.pieces import text_of_columns
from matching.reasons import MAX_LINE_BYTES
from matching.space import Space
from matching.text import MAX_TEXT_CHARACTERS
from matching.validate import MESSAGE_ROLES, content_of
from matching.window import NO_FLOOR
from spark_etl.options import ROLES

#: Lines from which they are read together.
MANY = 8
#: Shapes that are known at most, and columns of one.
_SHAPES, _COLUMNS = 1_000, 200
#: Roles that a message of a struct has not: those lines are judged singly.
_RARE = frozenset(MESSAGE_ROLES) - frozenset(ROLES)
#: Types of values; where another column would be taken if there were none, there must be one.
_KINDS: dict[str, Any] = {
    "text": str | None,
    "lat": float | str,
    "lon": float | str,
    "time": str | int | float | None,
    "id": str | int | None,
}
_SCALAR = str | int | float | bool | None
_SEEN_TEXT = Annotated[str, msgspec.Meta(min_length=1)]
_SEEN = {"text": _SEEN_TEXT, "time": _SEEN_TEXT | int, "id": _SEEN_TEXT | int}
_CHANGES = frozenset(("subscribe", "unsubscribe"))
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
#: Ranges of whole numbers that are one time, and microseconds of their unit (`event_time_us`).
_UNITS = ((10**9, 10**10, 10**6), (10**12, 10**13, 10**3), (10**15, 10**16, 1))


class ReadLines(NamedTuple):
    """The messages of the lines that the reader is sure of, in their order.

    rows : list of int          which of the lines they are
    ids, texts : list of str
    lon, lat : list of float
    time_us : list of int       `NO_FLOOR` where there is none
    attributes : list of list   the values of each attribute
    langs : list of str         the languages of their words, "" for the stream's; [] if all are of that
    made : list of int          places in `rows` of messages whose id is made of their content
    """

    rows: list[int]
    ids: list[str]
    texts: list[str]
    lon: list[float]
    lat: list[float]
    time_us: list[int]
    attributes: list[list[Any]]
    langs: list[str]
    made: list[int]

    def part(self, first: int, last: int) -> "ReadLines":
        """Messages from one place to another, exclusive."""
        if (first, last) == (0, len(self.rows)):
            return self
        made = [place - first for place in self.made if first <= place < last]
        return self._cut(lambda column: column[first:last], made)

    def _cut(self, cut: Callable[[list[Any]], list[Any]], made: list[int]) -> "ReadLines":
        rows, ids, texts, lon, lat, time_us = map(cut, self[:6])
        return ReadLines(rows, ids, texts, lon, lat, time_us, list(map(cut, self.attributes)), cut(self.langs), made)


#: Nothing that was read: each line is judged by itself.
NOT_READ = ReadLines([], [], [], [], [], [], [], [], [])


class _Shape(NamedTuple):
    """Lines with the same columns, `nested` ones or not, which the decoder then refuses.

    `get` takes a struct to text, lat, lon, time, id, `lang` and the attributes, `gets` to one of them each; empty where
    the text is joined of several columns.
    """

    decoder: Any
    get: Callable[[Any], tuple[Any, ...]]
    gets: Sequence[Callable[[Any], Any]]
    nested: bool

    def columns(self, structs: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """The values of many structs, column by column: half the time of rows that are turned into columns."""
        return [list(map(get, structs)) for get in self.gets] or list(zip(*map(self.get, structs), strict=True))


class LineReader:
    """Reads the lines of one stream.

    Parameters
    ----------
    objects : bool
        The stream is one of objects, whose lines may say `deleted`, or when they expire.
    stem_language : str
        The language that the stream stems in; "" for none.

    Attributes
    ----------
    sure, unsure : int
        Lines that were read here, and lines that were left to others.
    """

    def __init__(
        self,
        mapping: ColumnMapping,
        schema: AttributeSchema,
        space: Space,
        objects: bool = False,
        stem_language: str = "",
    ):
        self._rare = _RARE | _CHANGES | frozenset(OBJECT_ROLES if objects else ())
        self.sure = self.unsure = 0
        self._mapping = mapping
        self._attributes = schema.attributes
        self._begun = schema.begun
        self._numbers = schema.numbers
        self._space = space
        self._languages = languages_in(stem_language)
        self._shapes: dict[tuple[frozenset[str], bool], _Shape | None] = {}
        self._last: _Shape | None = None

    def read(self, lines: Sequence[bytes]) -> ReadLines:
        """The messages of lines without line ends in them. Never raises. 2 to 3 us a line."""
        rows, columns = self._decoded([line if line.startswith(b"{") else bare(line) for line in lines])
        found = self._checked(rows, columns) if rows else NOT_READ
        self.sure += len(found.rows)
        self.unsure += len(lines) - len(found.rows)
        return found

    def _decoded(self, lines: Sequence[bytes]) -> tuple[list[int], Sequence[Sequence[Any]]]:
        """Which lines have a shape, and their values, column by column."""
        if self._last is not None and max(map(len, lines), default=0) <= MAX_LINE_BYTES:
            try:
                structs = self._last.decoder.decode_lines(b"\n".join(lines))
            except _DECODE_ERRORS:
                structs = []
            if len(structs) == len(lines) and not (self._last.nested and any(map(is_deep, lines))):
                return list(range(len(lines))), self._last.columns(structs)
        rows, values = [], []
        for row, line in enumerate(lines):
            if len(line) <= MAX_LINE_BYTES and (found := self._decoded_one(line)) is not None:
                rows.append(row)
                values.append(found)
        return rows, list(zip(*values, strict=True))

    def _decoded_one(self, line: bytes) -> tuple[Any, ...] | None:
        """The values of a line, if its shape is known or can be learnt."""
        if self._last is not None:
            try:
                found = self._last.get(self._last.decoder.decode(line))
            except _DECODE_ERRORS:
                pass
            else:
                return None if self._last.nested and is_deep(line) else found
        row = decode_object(line)
        shape = None if isinstance(row, str) else self._shape_of(row)
        if shape is None:
            return None
        try:
            found = shape.get(shape.decoder.decode(line))
        except _DECODE_ERRORS:
            return None
        self._last = shape
        return found

    def _shape_of(self, row: Mapping[str, Any]) -> _Shape | None:
        """The shape of a line that is not too deep; None if lines of these columns are judged singly."""
        key = frozenset(row), any(isinstance(value, dict | list) for value in row.values())
        if key not in self._shapes:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            self._shapes[key] = self._learnt(*key)
        return self._shapes[key]

    def _learnt(self, names: frozenset[str], nested: bool) -> _Shape | None:
        columns = self._mapping.columns_of_names(names)
        plain = all(name.isprintable() and not set(name) & {'"', "\\", "."} for name in names)
        if isinstance(columns, RefusedLine) or not plain or len(names) > _COLUMNS or names & self._rare:
            return None
        if nested and not columns.keys() >= set(ROLES):
            return None  # a column that the row itself has not is sought within its objects
        if any(not name and role not in self._mapping.named for role, name in columns.items()):
            return None  # which of several columns is the time, or the id, goes by which have a value
        if any("." in name for name in columns.values()) or any("." in one.path for one in self._attributes):
            return None
        texts = text_columns(columns.get("text", ""), names)
        wanted: dict[str, Any] = {}
        for role, kind in _KINDS.items():
            for name in texts if role == "text" else [columns.get(role, "")]:
                if name in wanted:
                    return None  # two roles of one column
                if name in names:
                    lone = self._mapping.is_lone(role, names)
                    wanted[name] = kind if lone else _SEEN.get(role, kind)
                elif role in ("lat", "lon"):
                    return None
        for one in self._attributes:
            if one.path in names and one.path not in wanted:
                number = float | None if self._numbers == "plain" else float | str | None
                kinds: dict[int, Any] = {NUMBER: number, CATEGORIES: list[str] | str | None}
                kinds |= dict.fromkeys((CATEGORY, TEXT), str | None)
                wanted[one.path] = kinds.get(one.type, str | int | None)
            elif one.path in wanted:
                return None
        wanted.setdefault("lang", _SCALAR)
        others: Any = Any if nested else _SCALAR
        fields = {name: f"field_{number}" for number, name in enumerate(sorted(names))}
        struct = msgspec.defstruct(
            "Line",
            [(fields[name], wanted.get(name, others)) for name in sorted(names)] + [("absent", None, None)],
            rename={field: name for name, field in fields.items()} | {"absent": "\uffff"},
            forbid_unknown_fields=True,
            gc=False,
        )
        sought = [*(columns.get(role, "") for role in ROLES[1:]), "lang", *(one.path for one in self._attributes)]
        names_of_fields = [fields.get(name, "absent") for name in (*texts, *sought)]
        get = operator.attrgetter(*names_of_fields)
        if len(texts) == 1:
            return _Shape(msgspec.json.Decoder(struct), get, list(map(operator.attrgetter, names_of_fields)), nested)

        def get_joined(line: Any) -> tuple[Any, ...]:
            found = get(line)
            return text_of_columns(found[: len(texts)]), *found[len(texts) :]

        return _Shape(msgspec.json.Decoder(struct), get_joined, (), nested)

    def _checked(self, rows: Sequence[int], columns: Sequence[Sequence[Any]]) -> ReadLines:
        """The messages whose values are sure to be taken."""
        found_texts, lats, lons, times, names, langs, *attributes = columns
        texts = [text or "" for text in found_texts]
        lat, lon = _degrees(lats, 90.0), _degrees(lons, 180.0)
        space = self._space
        with np.errstate(invalid="ignore"):
            sure = (lon >= space.west) & (lon <= space.east) & (lat >= space.south) & (lat <= space.north)
        _check_texts(texts, sure)
        ids = _ids(names, sure)
        time_us = _times(times, sure)
        pairs = zip(self._attributes, attributes, strict=True)
        taken = [_attribute(one.type, column, sure, self._numbers) for one, column in pairs]
        spoken = self._spoken(langs)
        found = ReadLines(list(rows), ids, texts, lon.tolist(), lat.tolist(), time_us.tolist(), taken, spoken, [])
        if not sure.all():
            places = np.flatnonzero(sure).tolist()
            found = found._cut(lambda column: [column[place] for place in places] if column else [], [])
        return _with_made_ids(found, self._begun) if "" in found.ids else found

    def _spoken(self, langs: Sequence[Any]) -> list[str]:
        """The language of each message; [] if each has the language of the stream."""
        try:
            known = {lang: self._languages.get(lang, "") for lang in set(langs)}
        except TypeError:  # an attribute that is a list
            return self._spoken([lang if isinstance(lang, str) else None for lang in langs])
        return list(map(known.__getitem__, langs)) if any(known.values()) else []


def _degrees(values: Sequence[Any], limit: float) -> Float64:
    """Coordinates, NaN where one is not sure: float64[n]."""
    try:
        found = np.array(values, np.float64) if str not in set(map(type, values)) else None
    except (ValueError, TypeError, OverflowError):
        found = None
    if found is None:
        read = [coordinate(value, limit) for value in values]
        found = np.array([np.nan if isinstance(value, str) else value for value in read], np.float64)
    found = found + 0.0  # turns minus zero into zero
    return np.where(np.abs(found) <= limit, found, np.nan)


def _check_texts(texts: Sequence[str], sure: np.ndarray) -> None:
    whole = "".join(texts)
    if "\0" in whole or max(map(len, texts)) > MAX_TEXT_CHARACTERS:
        sure &= [len(text) <= MAX_TEXT_CHARACTERS and "\0" not in text for text in texts]


def _ids(names: Sequence[Any], sure: np.ndarray) -> list[str]:
    """Ids as text, "" where there is none."""
    if set(map(type, names)) != {str}:
        for row, name in enumerate(names):
            if isinstance(name, int) and not -(2**63) <= name < 2**63:
                sure[row] = False
        names = ["" if name is None else str(name) for name in names]
    if max(map(len, names)) > MAX_ID_CHARACTERS or "\0" in "".join(names):
        sure &= [len(name) <= MAX_ID_CHARACTERS and "\0" not in name for name in names]
    return list(names)


def _times(times: Sequence[Any], sure: np.ndarray) -> Int64:
    """Microseconds since 1970, `NO_FLOOR` where there is no time: int64[n]."""
    kinds = set(map(type, times))
    found = np.full(len(times), NO_FLOOR)
    if kinds == {type(None)}:
        return found
    left = range(len(times))
    if kinds == {str}:
        found, read = iso_times(times)
        left = np.flatnonzero(~read).tolist()
    elif kinds == {int} and max(times) < 2**63 > -min(times):
        numbers = np.array(times, np.int64)
        read = np.zeros(len(times), np.bool_)
        for low, high, factor in _UNITS:
            of_unit = (numbers >= low) & (numbers < high)
            found[of_unit] = numbers[of_unit] * factor
            read |= of_unit
        left = np.flatnonzero(~read).tolist()
    for row in left:
        try:
            time_us = event_time_us(times[row])
        except ValueError:
            sure[row] = False
            continue
        found[row] = NO_FLOOR if time_us is None else time_us
    return found


def _attribute(type_code: int, values: Sequence[Any], sure: np.ndarray, numbers: str) -> list[Any]:
    """Values of an attribute as `attribute_value` has them."""
    found = list(values)
    if type_code == NUMBER and set(map(type, values)) == {float} and np.isfinite(values).all():
        return [value + 0.0 for value in found]
    known: dict[Any, Any] = {}
    for row, value in enumerate(values):
        try:
            if type_code == CATEGORIES:  # a list is no key
                found[row] = attribute_value(type_code, value)
                continue
            if value not in known:
                known[value] = attribute_value(type_code, value, numbers)
            found[row] = known[value]
        except ValueError:
            sure[row] = False
    return found


def _with_made_ids(found: ReadLines, begun: int) -> ReadLines:
    """With ids of their content, which has the first `begun` attributes, for messages that have none."""
    ids, made = list(found.ids), [place for place, name in enumerate(found.ids) if not name]
    for place in made:
        time_us = found.time_us[place]
        values = tuple([column[place] for column in found.attributes[:begun]])
        time_us, lang = None if time_us == NO_FLOOR else time_us, found.langs[place] if found.langs else ""
        ids[place] = content_of(found.lon[place], found.lat[place], time_us, found.texts[place], lang, values).hex()
    return found._replace(ids=ids, made=made)
