"""Messages from the output directory of the ETL: the clock of an ordinary run.

`ParquetSource` reads `messages/*.parquet` row group by row group, one ahead of its use, checks that seq is dense and
that the columns are what `spark_etl` writes, and hands them on as numpy views of the Arrow buffers. A file that does
not keep to the contract stops the run with its name; nothing is repaired here.

Read on in `spouts.cutting` (how rows become batches) and then in `bolts.distribution` (who gets them).
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from matching.errors import InputError
from matching.model import Int64, MessageBatch, Names
from matching.space import Space
from matching.window import Window
from spouts.cutting import Batch, Cutter, MessageSpout, Rows, Source, read_all
from spouts.versions import Objects, object_columns

#: `format_version` in the manifest of the ETL outputs that this release reads.
ETL_FORMAT = 1
SIDES = ("west", "south", "east", "north")
_REQUIRED = {
    "seq": pa.int64(),
    "message_id": pa.string(),
    "lon": pa.float64(),
    "lat": pa.float64(),
    "terms": pa.list_(pa.int32()),
    "weights": pa.list_(pa.float32()),
}
_OBJECT_COLUMNS = ("object_id", "op")
_TIME = pa.timestamp("us", "UTC")
_REMEDY = "run the ETL again, or restore the file"


class ParquetSource(Source):
    """Rows of an ETL output directory, in order.

    Parameters
    ----------
    directory : path
        The ETL's output directory (the one that holds `messages/`).
    window : Window
        Decides what `life` is.
    space : Space
        Projects the points. Messages outside its box keep their seq but lose their terms, so that they match
        nothing; they are counted as `outside_world`, and stand as points on the edge of the box.
    follow : bool
        The directory is still being written: files appear by rename in the order of their names, and
        `manifest.json` appears last.
    objects : bool
        Hand on the objects of messages (`object_id`, `op`), if the directory has any that some later message replaces
        or deletes; what is still being written is taken to have some.

    Raises
    ------
    InputError
        If a file is missing, damaged, not what the ETL writes, or out of order: names the file. If event times are
        null and the window goes by time: names the count.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        window: Window,
        space: Space,
        follow: bool = False,
        objects: bool = False,
    ):
        self.directory = Path(directory)
        self.window = window
        self.space = space
        self.next_seq = 0
        self._follow = follow
        self._files: list[Path] = []
        self._opened = 0
        self._file: pq.ParquetFile | None = None
        self._path = self.directory
        self._groups = iter(())
        self._seen_end = False
        self._prefetch = ThreadPoolExecutor(1, "prefetch")
        self._coming: Future[Rows | None] | None = None
        if not follow:
            self._require_complete()
            if window.kind == "time" and (nulls := count_null_times(directory)):
                raise _null_times(self.directory, nulls)
        elif not self.directory.is_dir():
            raise InputError("missing_file", f"{self.directory}: no such directory; give the ETL's output directory")
        self._objects = objects and has_objects(directory)

    def read(self) -> Rows | None:
        """The next row group; the one after it is read meanwhile by a thread (Arrow lets go of the interpreter)."""
        coming = self._coming or self._prefetch.submit(self._read_group)
        self._coming = None
        rows = coming.result()
        if rows is not None:
            self._coming = self._prefetch.submit(self._read_group)
        return rows

    @property
    def ended(self) -> bool:
        return self._seen_end

    def close(self) -> None:
        self._prefetch.shutdown(wait=True, cancel_futures=True)
        if self._file is not None:
            self._file.close()

    def _require_complete(self) -> None:
        if not (self.directory / "messages").is_dir():
            raise InputError(
                "missing_file", f"{self.directory}: has no folder messages/; give a directory that `skyray etl` wrote"
            )
        manifest = read_manifest(self.directory)
        if manifest is None and not list_message_files(self.directory):
            raise InputError(
                "missing_file", f"{self.directory / 'messages'}: holds no *.parquet files; run the ETL to its end first"
            )
        files = manifest.get("files") if manifest else None
        for name, facts in files.items() if isinstance(files, dict) else ():
            if not name.startswith("messages/"):
                continue
            path = self.directory / name
            try:
                size_bytes = path.stat().st_size
            except OSError as error:
                raise InputError("missing_file", f"{path}: named in manifest.json and not there; {_REMEDY}") from error
            if size_bytes != facts.get("size_bytes", size_bytes):
                raise _damaged(path, f"has {size_bytes:,} bytes, manifest.json says {facts['size_bytes']:,}")

    def _read_group(self) -> Rows | None:
        while True:
            group = next(self._groups, None)
            if group is not None:
                return self._decode(group)
            if not self._open_next():
                return None

    def _open_next(self) -> bool:
        """Go on to the next file; False if there is none, or not yet."""
        if self._opened == len(self._files):
            # The manifest is looked for first: what it says is complete was there before it.
            manifest = read_manifest(self.directory)
            names = {path.name for path in self._files}
            fresh = [path for path in list_message_files(self.directory) if path.name not in names]
            if fresh and self._files and fresh[0].name < self._files[-1].name:
                raise InputError(
                    "bad_order", f"{fresh[0]}: appeared after {self._files[-1].name}; files must come in order of name"
                )
            self._files += fresh
            if not fresh:
                if manifest is not None or not self._follow:
                    self._require_all(manifest)
                    self._seen_end = True
                return False
        if self._file is not None:
            self._file.close()
        self._path = self._files[self._opened]
        self._opened += 1
        try:
            self._file = pq.ParquetFile(self._path)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(self._path, f"cannot be opened as Parquet ({_first_line(error)})") from error
        self._columns = self._check_schema(self._file.schema_arrow)
        metadata = self._file.metadata
        self._groups = iter([i for i in range(metadata.num_row_groups) if metadata.row_group(i).num_rows])
        return True

    def _require_all(self, manifest: dict[str, Any] | None) -> None:
        expected = manifest.get("kept") if manifest else None
        if isinstance(expected, int) and expected != self.next_seq:
            raise InputError(
                "missing_file",
                f"{self.directory / 'messages'}: {self.next_seq:,} messages, manifest.json says {expected:,}; "
                f"{_REMEDY}",
            )

    def _check_schema(self, schema: pa.Schema) -> list[str]:
        present = set(schema.names)
        for name, expected in _REQUIRED.items():
            found = schema.field(name).type if name in present else None
            if found is None or not _same_type(found, expected):
                raise _damaged(self._path, f"column {name!r} should be {expected} and is {found or 'missing'}")
        columns = list(_REQUIRED)
        if "event_time" in present:
            if not pa.types.is_timestamp(schema.field("event_time").type):
                raise _damaged(self._path, f"column 'event_time' is {schema.field('event_time').type}, no timestamp")
            columns.append("event_time")
        elif self.window.kind == "time":
            raise _damaged(self._path, "column 'event_time' is missing, and the window goes by time")
        sides = [side for side in SIDES if side in present]
        if sides and len(sides) < 4:
            raise _damaged(self._path, f"has {', '.join(sides)} and not all four sides of range messages")
        if self._objects:
            columns += [name for name in _OBJECT_COLUMNS if _has_column(self._path, schema, name)]
        return columns + sides

    def _decode(self, group: int) -> Rows:
        assert self._file is not None
        try:
            table = self._file.read_row_group(group, self._columns, use_threads=False)
            return self._convert({name: table.column(name).combine_chunks() for name in self._columns})
        except (OSError, pa.ArrowException) as error:
            raise _damaged(self._path, f"row group {group} cannot be read ({_first_line(error)})") from error

    def _convert(self, columns: dict[str, pa.Array]) -> Rows:
        for name in _REQUIRED:
            if columns[name].null_count and name not in ("terms", "weights"):
                raise _damaged(self._path, f"column {name!r} has {columns[name].null_count} nulls")
        seq = columns["seq"].to_numpy()
        self._check_seq(seq)
        lon, lat = columns["lon"].to_numpy(), columns["lat"].to_numpy()
        if not (np.isfinite(lon).all() and np.isfinite(lat).all()):
            raise _damaged(self._path, "has a coordinate that is not finite")
        offsets, terms, weights = self._convert_terms(columns["terms"], columns["weights"])
        outside = ~self.space.contains(lon, lat)
        if outside.any():
            offsets, terms, weights = _drop_terms(offsets, terms, weights, ~outside)
            lon = np.clip(lon, self.space.west, self.space.east)
            lat = np.clip(lat, self.space.south, self.space.north)
        box = self._convert_sides(columns, lon, lat, outside)
        x, y = self.space.project(lon, lat)
        times = self._convert_times(columns["event_time"]) if self.window.kind == "time" else None
        life = seq if times is None else self.window.lives(seq, times)
        messages = MessageBatch(seq, x, y, *box, life, offsets, terms, weights)
        objects = self._convert_objects(columns) if self._objects else None
        return Rows(messages, names_of(columns["message_id"]), times, outside if outside.any() else None, objects)

    def _check_seq(self, seq: Int64) -> None:
        expected = np.arange(self.next_seq, self.next_seq + seq.shape[0], dtype=np.int64)
        if not np.array_equal(seq, expected):
            row = int(np.argmax(seq != expected))
            raise InputError(
                "bad_order",
                f"{self._path}: seq {seq[row]} where {expected[row]} comes next, so a file or row before it is missing "
                f"or out of order; {_REMEDY}",
            )
        self.next_seq += seq.shape[0]

    def _convert_objects(self, columns: dict[str, pa.Array]) -> Objects:
        names, op = object_columns(columns)
        if strange := set(op.unique().to_pylist()) - {0, 1}:
            raise _damaged(self._path, f"column 'op' holds {sorted(strange)[0]}, which is neither publish nor delete")
        return Objects(names.to_pylist(), op.to_numpy() == 1)

    def _convert_times(self, column: pa.Array) -> Int64:
        if column.null_count:
            raise _null_times(self._path, column.null_count)
        return column.cast(_TIME).view(pa.int64()).to_numpy()

    def _convert_sides(
        self, columns: dict[str, pa.Array], lon: Any, lat: Any, outside: Any
    ) -> tuple[Any, Any, Any, Any]:
        """West, south, east, north: null sides mean the point, and so does `outside`."""
        nulls = {columns[side].null_count for side in SIDES if side in columns}
        if not nulls or nulls == {len(lon)}:
            return lon, lat, lon, lat
        missing = columns["west"].is_null().to_numpy(zero_copy_only=False)
        sides = []
        for side, point in zip(SIDES, (lon, lat, lon, lat), strict=True):
            column = columns[side]
            if not np.array_equal(column.is_null().to_numpy(zero_copy_only=False), missing):
                raise _damaged(self._path, "has messages with some sides of a rectangle and not all")
            sides.append(np.where(missing | outside, point, column.to_numpy(zero_copy_only=False)))
        west, south, east, north = sides
        if not ((west <= east) & (south <= north)).all() or not np.isfinite(sides).all():
            raise _damaged(self._path, "has a rectangle whose sides are swapped or not finite")
        return west, south, east, north

    def _convert_terms(self, terms: pa.ListArray, weights: pa.ListArray) -> tuple[Int64, Any, Any]:
        cuts = terms.offsets.to_numpy()
        flat, flat_weights = terms.values, weights.values
        weight_cuts = weights.offsets.to_numpy()
        if (
            flat.null_count
            or flat_weights.null_count
            or not np.array_equal(cuts - cuts[:1], weight_cuts - weight_cuts[:1])
        ):
            raise _damaged(self._path, "has messages whose terms and weights differ in number")
        offsets = (cuts - cuts[:1]).astype(np.int64)
        term_ids = flat.slice(cuts[0], offsets[-1]).to_numpy()
        values = flat_weights.slice(weight_cuts[0], offsets[-1]).to_numpy()
        if term_ids.shape[0]:
            ascends = np.ones(term_ids.shape[0], bool)
            ascends[1:] = term_ids[1:] > term_ids[:-1]
            ascends[offsets[:-1][offsets[:-1] < term_ids.shape[0]]] = True  # the first term of each message
            if not ascends.all() or term_ids.min() < 0 or not np.isfinite(values).all():
                raise _damaged(
                    self._path, "has terms that do not ascend within a message, or weights that are not finite"
                )
        return offsets, term_ids, values


class ParquetSpout(MessageSpout):
    """Clock spout over the output directory of the ETL; parameters as in `ParquetSource` and `MessageSpout`."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        window: Window,
        space: Space,
        batch: int,
        limit: int | None = None,
        follow: bool = False,
        receiver: str = "distribution",
        poll_s: float = 0.2,
    ):
        super().__init__(window, batch, limit, receiver, poll_s)
        self.directory = str(directory)
        self.space = space
        self.follow = follow

    def open_source(self) -> ParquetSource:
        return ParquetSource(self.directory, self.cutter.window, self.space, self.follow, objects=True)


def read_messages(
    directory: str | os.PathLike[str], window: Window, space: Space, batch: int, limit: int | None = None
) -> Iterator[Batch]:
    """Iterate over `(Boundary, MessageBatch, Names)` exactly as a run with these settings sees them.

    Raises
    ------
    InputError, ConfigError
        As `ParquetSource` and `Cutter`.

    Notes
    -----
    Memory for about two row groups.
    """
    return read_all(ParquetSource(directory, window, space), Cutter(window, batch, limit))


def list_message_files(directory: str | os.PathLike[str]) -> list[Path]:
    """The message files of an ETL directory in the order of seq, which is the order of their names."""
    # A name that starts with a dot or underscore belongs to whoever is still writing it.
    return sorted(path for path in Path(directory, "messages").glob("*.parquet") if path.name[0] not in "._")


def read_manifest(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """`manifest.json` of an ETL directory; None if there is none (yet). Raises InputError if it is damaged."""
    path = Path(directory, "manifest.json")
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(path, f"cannot be read as JSON ({_first_line(error)})") from error
    if not isinstance(manifest, dict):
        raise _damaged(path, "holds no JSON object")
    if manifest.get("format_version", ETL_FORMAT) != ETL_FORMAT:
        raise InputError(
            "wrong_version",
            f"{path}: ETL output of format {manifest['format_version']}, this release reads {ETL_FORMAT}; "
            "run the ETL again",
        )
    return manifest


def read_points(
    directory: str | os.PathLike[str], space: Space, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """About `count` points of messages, evenly spread over the stream: x and y in the unit square, two float64[n].

    For balancing a router by the load to come; points outside the box are left out. Reads the coordinates alone.
    """
    files = list_message_files(directory)
    lons, lats = [np.zeros(0)], [np.zeros(0)]
    try:
        rows = 0
        for path in files:
            rows += pq.read_metadata(path).num_rows
        step = max(1, rows // max(1, count))
        for path in files:
            table = pq.read_table(path, columns=["lon", "lat"], use_threads=False)
            lons.append(table.column("lon").to_numpy()[::step])
            lats.append(table.column("lat").to_numpy()[::step])
    except (OSError, KeyError, pa.ArrowException) as error:
        raise _damaged(path, f"cannot be read as Parquet ({_first_line(error)})") from error
    lon, lat = np.concatenate(lons), np.concatenate(lats)
    inside = space.contains(lon, lat)
    return space.project(lon[inside], lat[inside])


def count_null_times(directory: str | os.PathLike[str]) -> int:
    """How many messages of an ETL directory have no event time: `time:` windows and `decay` refuse them.

    Reads the footers of the files, or the column where a footer does not say.
    """
    nulls = 0
    for path in list_message_files(directory):
        try:
            with pq.ParquetFile(path) as file:
                nulls += _null_times_of(file)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, f"cannot be read as Parquet ({_first_line(error)})") from error
    return nulls


def has_objects(directory: str | os.PathLike[str]) -> bool:
    """Whether a message of an ETL directory replaces or deletes another, as far as that can be told.

    False if every message is an object of its own and none is a deletion: then nobody need look at objects. True for a
    directory that is still being written. Reads three columns, up to the first message that says yes; 0.1 us a message.
    """
    manifest = read_manifest(directory)
    if manifest is None or manifest.get("deletes"):
        return True
    for path in list_message_files(directory):
        try:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
                wanted = ["message_id", *(name for name in _OBJECT_COLUMNS if _has_column(path, schema, name))]
                for group in range(file.metadata.num_row_groups if len(wanted) > 1 else 0):
                    table = file.read_row_group(group, wanted, use_threads=False)
                    columns = {name: table.column(name).combine_chunks() for name in wanted}
                    names, op = object_columns(columns)
                    own = columns["message_id"].cast(pa.large_string())
                    if not names.cast(pa.large_string()).equals(own) or np.any(op.to_numpy()):
                        return True
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, f"cannot be read as Parquet ({_first_line(error)})") from error
    return False


def names_of(column: pa.Array) -> Names:
    """Ids of a string column without nulls; the bytes are a view of Arrow's."""
    if len(column) == 0:
        return Names.of(())
    column = column.cast(pa.large_string())
    _, offset_buffer, data_buffer = column.buffers()
    cuts = np.frombuffer(offset_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return Names(cuts - cuts[0], data[cuts[0] : cuts[-1]])


def _null_times_of(file: pq.ParquetFile) -> int:
    names = file.schema_arrow.names
    if "event_time" not in names:
        return file.metadata.num_rows
    leaves = [file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)]
    column = leaves.index("event_time")
    nulls = 0
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(column).statistics
        if statistics is not None and statistics.has_null_count:
            nulls += statistics.null_count
        else:
            nulls += file.read_row_group(group, ["event_time"]).column(0).null_count
    return nulls


def _drop_terms(offsets: Int64, terms: Any, weights: Any, keep: Any) -> tuple[Int64, Any, Any]:
    """The ragged column with rows that are not kept made empty."""
    lengths = np.diff(offsets)
    kept = np.repeat(keep, lengths)
    new_offsets = np.zeros_like(offsets)
    np.cumsum(np.where(keep, lengths, 0), out=new_offsets[1:])
    return new_offsets, terms[kept], weights[kept]


def _has_column(path: Path, schema: pa.Schema, name: str) -> bool:
    """Whether a file has this one of `_OBJECT_COLUMNS`; raises InputError if it is of no fitting type."""
    if name not in schema.names:
        return False
    found = schema.field(name).type
    if not (pa.types.is_integer(found) if name == "op" else _same_type(found, pa.string())):
        raise _damaged(
            path, f"column {name!r} is {found}, where {'a whole number' if name == 'op' else 'text'} belongs"
        )
    return True


def _same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(expected):  # the name of the element differs from writer to writer
        return pa.types.is_list(found) and found.value_type == expected.value_type
    return found == expected or (expected == pa.string() and found == pa.large_string())


def _null_times(where: Path, nulls: int) -> InputError:
    return InputError(
        "bad_time",
        f"{where}: {nulls:,} messages have no event time, and the window goes by time; "
        "use a window of count:N, or run the ETL with a --time column that every row has",
    )


def _damaged(path: Path, what: str) -> InputError:
    return InputError("broken_file", f"{path}: {what}; {_REMEDY}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
