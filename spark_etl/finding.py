"""Finds the columns of the text, the place, the time and the id by their names, unless the user named them.

A column named like its role (`text`, `lat`, `lon`, `time`, `id`) is taken, else the one with another usual name of it;
if there are several, the user has to choose. Names are compared without case and marks. Within objects only the place
is searched for, as a GeoJSON point or a pair of coordinates, and the members of `properties`: an `id` or a `created_at`
deeper down mostly belongs to something else.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow.parquet as pq

from matching.errors import InputError
from matching.fields import encodes, text_columns, value_at
from matching.table_values import rows_of_table
from matching.validate import decode_object
from spark_etl.documents import rows_of_document
from spark_etl.ingest import BROKEN, header_of
from spark_etl.options import EtlOptions
from spark_etl.paths import leaves
from spark_etl.separated import csv_form, csv_rows, line_blocks, lines_of
from spark_etl.sources import InputFile
from spark_etl.unpacking import open_unpacked

T = TypeVar("T")
#: Files, and rows of each, that are read.
MAX_FILES, MAX_ROWS = 32, 200
#: Bounds of `ByShape`: sets of column names, and columns of one set.
_SHAPES, _SHAPE_COLUMNS = 1_000, 200

#: Role -> usual names besides its own, without case and marks.
NAMES = {
    "text": "tweet tweettext body message msg content description fulltext comment caption review post",
    "lat": "latitude y geolat gpslat",
    "lon": "lng long longitude x geolon geolng gpslon gpslng",
    "time": "ts timestamp createdat date datetime eventtime created publishedat postedat",
    "id": "idstr tweetid messageid msgid uuid eventid rowid",
}
#: Names of objects that are the place of a row, the likeliest first.
_PLACES = ("geometry", "coordinates")
#: Name of a point whose order nobody can tell: in GeoJSON the longitude comes first, in Twitter's `geo` the latitude.
_TWITTERS = "geo"


class Seen(NamedTuple):
    """A column: in how many of the rows it has a value, and one of them."""

    rows: int
    example: Any


class FirstColumns(NamedTuple):
    """The columns of the first rows of a file.

    `names`: header of a table, else None. `seen`: path -> column, of columns with a value.
    """

    names: list[str] | None
    seen: dict[str, Seen]
    points: list[str]
    rows: int


def find_columns(sources: Sequence[InputFile], options: EtlOptions) -> tuple[EtlOptions, list[str]]:
    """The options with the columns that were found, and their roles.

    Checks JSON for required columns; for tables `spark_etl.ingest.check_columns` does.

    Raises
    ------
    InputError
        `ambiguous_column` if several columns fit a role, or files differ; `missing_column`. Both name the columns and
        the options that choose one.

    Notes
    -----
    Reads `MAX_ROWS` rows of each of the first `MAX_FILES` files.
    """
    _check_text(sources, options)
    if not (sought := options.sought()):
        return options, []
    columns: dict[str, str] = {}
    owners: dict[str, str] = {}
    for source in sources[:MAX_FILES]:
        there = look(source, options)
        found = columns_of_roles(there, sought, source.path)
        if there.names is None and there.rows:
            _require(source, there, options, found)
        for role, name in found.items():
            if columns.setdefault(role, name) != name:
                raise InputError(
                    "ambiguous_column",
                    f"the {_WORDS[role]} is column {columns[role]} in {owners[role]}, and column {name} in "
                    f"{source.name}: say --column {role}=NAME, and clean files of other columns by themselves",
                )
            owners.setdefault(role, source.name)
    return options.with_columns(columns), sorted(columns)


def _check_text(sources: Sequence[InputFile], options: EtlOptions) -> None:
    """Refuse a text column that the user named and none of the first objects has."""
    whole = options.text_column or ""
    missing = dict.fromkeys(text_columns(whole)) if whole else {}
    there: dict[str, None] = {}
    for source in sources[:MAX_FILES]:
        if not missing or source.file_format not in ("jsonl", "json"):
            return
        with suppress(*BROKEN):
            for row in islice(objects_in(source, options, None), MAX_ROWS):
                if whole in row:
                    return
                missing = {name: None for name in missing if name not in row and name.partition(".")[0] not in row}
                if not missing:
                    return
                there |= dict.fromkeys(row)
    if there:
        raise InputError(
            "missing_column",
            f"{sources[0].path}: none of the first {MAX_ROWS} rows has a column {', '.join(missing)} "
            f"(--column text=NAME); they have "
            f"{', '.join(islice(there, 20))}",
        )


_WORDS = {"text": "text", "lat": "latitude", "lon": "longitude", "time": "time", "id": "id"}


def columns_of_roles(there: FirstColumns, sought: Collection[str], where: str) -> dict[str, str]:
    """The columns of these roles by their names; needs neither a file nor Spark.

    Parameters
    ----------
    there : FirstColumns
    sought : collection of str
        Roles.
    where : str
        File or line of the columns, for the error.

    Returns
    -------
    dict
        Role -> column or path.

    Raises
    ------
    InputError
        `ambiguous_column` where several columns may be one of them.
    """
    names = list(dict.fromkeys([*(there.names or ()), *there.seen]))
    found = {}
    for role in sought:
        for level in _levels(names, role):
            candidates = _named(level, role)
            if len(candidates) > 1:
                raise _ambiguous(where, role, candidates)
            if candidates:
                found[role] = candidates[0]
                break
    if "lat" in sought and "lon" in sought and not found.keys() & {"lat", "lon"}:
        found |= _place(there, where)
    return found


def columns_of_line(there: FirstColumns, sought: Collection[str], where: str) -> dict[str, str]:
    """As `columns_of_roles`, but raises for text and place alone: where another role is ambiguous, its column is ""."""
    needed = [role for role in sought if role in ("text", "lat", "lon")]
    found = columns_of_roles(there, needed, where)
    for role in set(sought) - set(needed):
        try:
            found |= columns_of_roles(there, [role], where)
        except InputError:
            found[role] = ""
    return found


class ByShape(Generic[T]):
    """A cache of what is made of the columns of a line, by their names."""

    def __init__(self, make: Callable[[FirstColumns], T]):
        self._make = make
        self._known: dict[Any, T] = {}

    def of(self, there: FirstColumns) -> T:
        shape = tuple(there.seen), tuple(there.points)
        found = self._known.get(shape)
        if found is None:
            found = self._make(there)
            if len(self._known) >= _SHAPES:
                self._known.clear()
            if len(there.seen) <= _SHAPE_COLUMNS:
                self._known[shape] = found
        return found


def _levels(names: Sequence[str], role: str) -> Iterator[list[str]]:
    """Columns among which one is looked for, one list after the other."""
    yield [name for name in names if "." not in name]
    yield [name for name in names if name.startswith("properties.") and name.count(".") == 1]


def _named(names: Iterable[str], role: str) -> list[str]:
    """The column called as the role is, else those that might be meant."""
    candidates = []
    for name in names:
        last = name.rpartition(".")[2]
        if last == role:
            return [name]
        if _plain(last) in (role, *NAMES[role].split()):
            candidates.append(name)
    return candidates


def may_be(name: str, role: str) -> bool:
    """Whether a column is called as a role is, or as others call it."""
    return bool(_named([name], role))


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _place(there: FirstColumns, where: str) -> dict[str, str]:
    """Latitude and longitude within objects: a GeoJSON point, else two columns of one object.

    Raises InputError if there are several, or a point called `geo` alone, which may have either order.
    """
    known = [path for path in _PLACES if path in there.points]
    candidates: dict[str, tuple[str, str]] = {}
    hint = ""
    for path in known[:1] or there.points:
        candidates[path] = (f"{path}.coordinates.1", f"{path}.coordinates.0")
        if path.rpartition(".")[2] == _TWITTERS:
            candidates[f"{path}, latitude first"] = (f"{path}.coordinates.0", f"{path}.coordinates.1")
            hint = f" (a point called {_TWITTERS} has the latitude first, as 0, if it is Twitter's)"
    if not candidates:
        parents = dict.fromkeys(name.rpartition(".")[0] for name in there.seen if "." in name)
        for parent in parents:
            children = [name for name in there.seen if name.rpartition(".")[0] == parent]
            lat, lon = _named(children, "lat"), _named(children, "lon")
            if lat and lon:
                candidates[parent] = (lat[0], lon[0])
    if len(candidates) > 1:
        choices = "; ".join(f"--column lat={lat} --column lon={lon}" for lat, lon in candidates.values())
        raise InputError("ambiguous_column", f"{where}: several places in a row, choose one: {choices}{hint}")
    return dict(zip(("lat", "lon"), *candidates.values(), strict=True)) if candidates else {}


def _ambiguous(where: str, role: str, candidates: Sequence[str]) -> InputError:
    choices = " or ".join(f"--column {role}={name}" for name in candidates)
    return InputError("ambiguous_column", f"{where}: several columns may be the {_WORDS[role]}: say {choices}")


def _require(source: InputFile, there: FirstColumns, options: EtlOptions, found: Mapping[str, str]) -> None:
    """Refuse objects in which no column can be the text or the place."""
    columns = options.columns()
    ranges = all(columns[side] in there.seen for side in ("west", "south", "east", "north"))
    needed = ["text"] if ranges or options.geometry else ["text", "lat", "lon"]
    absent = [role for role in needed if role in options.sought() and role not in found]
    if absent:
        raise InputError(
            "missing_column",
            f"{source.path}: no column is called like {' or '.join(_WORDS[role] for role in absent)}; the first "
            f"{there.rows:,} rows have {', '.join(islice(there.seen, 20)) or 'none'}. Say which it is: "
            f"{' '.join(f'--column {role}=NAME' for role in absent)}",
        )


def look(source: InputFile, options: EtlOptions, rows: int = MAX_ROWS) -> FirstColumns:
    """The columns of the first rows of a file, up to any damage."""
    names = None
    seen: dict[str, Seen] = {}
    points: dict[str, None] = {}
    number = 0
    with suppress(*BROKEN):
        names = header_of(source, options)
        for row in islice(objects_in(source, options, names), rows):
            number += 1
            for path, value in leaves(row):
                if value is not None and value != "":
                    known = seen.get(path)
                    seen[path] = Seen(1, value) if known is None else Seen(known.rows + 1, known.example)
            points.update(dict.fromkeys(_points_of(row)))
    return FirstColumns(names, seen, list(points), number)


def columns_of_row(row: Mapping[str, Any]) -> FirstColumns:
    """The columns of one object."""
    seen = {path: Seen(1, value) for path, value in leaves(row) if value is not None and value != ""}
    return FirstColumns(None, seen, list(dict.fromkeys(_points_of(row))), 1)


def _points_of(row: Mapping[str, Any]) -> Iterator[str]:
    """Paths of the GeoJSON points in an object."""
    for path, value in leaves(row):
        if value == "Point" and path.endswith(".type"):
            parent = path.removesuffix(".type")
            if value_at(row, f"{parent}.coordinates.1") is not None:
                yield parent


def objects_in(source: InputFile, options: EtlOptions, header: list[str] | None) -> Iterator[dict[str, Any]]:
    """The rows of a file that are objects."""
    if source.file_format == "parquet":
        with pq.ParquetFile(source.path) as file:
            for batch in file.iter_batches(MAX_ROWS, use_threads=False):
                yield from (row for row in rows_of_table(batch) if isinstance(row, dict))
        return
    if header is not None:
        for _, fields, reason in csv_rows(source, options, csv_form(source, options)):
            if not reason:
                texts = [text if encodes(text) else text.encode("utf-8", "replace").decode() for text in fields]
                yield dict(zip(header, texts, strict=True))
        return
    with closing(open_unpacked(source.path, source.compression, options.encoding)) as stream:
        if source.file_format == "json":
            lines = rows_of_document(stream)
        else:
            lines = (line for _, block in line_blocks(stream) for line in lines_of(block))
        rows = (decode_object(line) for line in lines if line is not None)
        yield from (row for row in rows if isinstance(row, dict))
