"""Sinks: files of updates, in Parquet or JSON lines.

`bolts.delivery` decides what is written and when. Updates come as numbers (subscription, seq), which `bolts.names` maps
to names.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.json as pj
import pyarrow.parquet as pq

from bolts.names import IdColumn, UInt64, flat_names, hash_names
from bolts.shares import Ids, PublishedParts, owner_of, published_in, state_of_published
from matching.errors import CheckpointError, DeliveryError
from matching.model import CHANGES, Names, UpdateBatch, concatenate
from matching.part_names import ListedPart, PartName
from topology.core.checkpoint.storage import (
    Disk,
    LocalDisk,
    Output,
    check_part,
    is_stored,
    open_disk,
    parts_list,
    published,
)
from topology.core.frames import Buffer

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

UPDATE_SCHEMA = pa.schema(
    [
        ("as_of", pa.int64()),
        ("subscription_id", pa.string()),
        ("message_id", pa.string()),
        ("seq", pa.int64()),
        ("change", pa.string()),
        ("score", pa.float64()),
    ]
)
RESULT_SCHEMA = pa.schema(
    [
        ("subscription_id", pa.string()),
        ("rank", pa.int32()),
        ("message_id", pa.string()),
        ("seq", pa.int64()),
        ("score", pa.float64()),
        ("text_score", pa.float64()),
    ]
)
#: Updates in memory and as written: dictionaries instead of strings.
_ENCODED_SCHEMA = pa.schema(
    [
        ("as_of", pa.int64()),
        ("subscription_id", pa.dictionary(pa.int32(), pa.string())),
        ("message_id", pa.dictionary(pa.int32(), pa.string())),
        ("seq", pa.int64()),
        ("change", pa.dictionary(pa.int8(), pa.string())),
        ("score", pa.float64()),
    ]
)
#: Column that updates of a stream of objects have beside those of `UPDATE_SCHEMA`, and how it is in memory.
OBJECT_ID = pa.field("object_id", pa.string())
_OBJECT_ENCODED = pa.field("object_id", pa.dictionary(pa.int32(), pa.string()))
#: Rows of one Parquet row group: large enough to compress, small enough to sit in memory while it fills.
GROUP_ROWS = 262_144
_IDS = ("subscription_id", "message_id", "object_id")
#: Rows of a file that are read at a time.
PIECE_ROWS = 65_536


#: Updates, or seconds since the first of them, from which a checkpoint ends a part.
SMALL_ROWS, LONG_S = 65_536, 10.0


class UpdateSink(Protocol):
    """Writes updates; its files are complete after `seal`, and renamed by the checkpoint coordinator."""

    bytes_written: int

    def write(self, updates: UpdateBatch, subscriptions: Ids, messages: IdColumn, now_s: float) -> None:
        """Add updates; they may stay in memory."""
        ...

    def resolve(self, subscriptions: Ids, messages: IdColumn) -> None:
        """Look up the names of updates in memory, before names are dropped."""
        ...

    def cut(self, subscriptions: Ids, messages: IdColumn, now_s: float) -> list[Callable[[], Output]]:
        """Prepare a checkpoint: the work to end a part that is large enough; smaller ones go into `snapshot`."""
        ...

    def seal(self, subscriptions: Ids, messages: IdColumn) -> None:
        """Write remaining updates and close the file."""
        ...

    def sealed(self) -> list[Output]:
        """Files completed since the last call."""
        ...

    def snapshot(self, subscriptions: Ids, messages: IdColumn) -> Callable[[], dict[str, np.ndarray]]:
        """Number of the next part, updates in no sealed file, and what committed files have: as they are now, though
        another thread calls what is returned."""
        ...

    def restore(self, state: Mapping[str, np.ndarray]) -> PublishedParts:
        """Resume from `state`; returns which of the updates that follow are published already."""
        ...

    def abandon(self) -> None:
        """Close and remove incomplete files; never raises."""
        ...


class CountSink:
    """Writes nothing; the delivery bolt counts."""

    bytes_written = 0

    def write(self, updates: UpdateBatch, subscriptions: Ids, messages: IdColumn, now_s: float) -> None: ...

    def resolve(self, subscriptions: Ids, messages: IdColumn) -> None: ...

    def cut(self, subscriptions: Ids, messages: IdColumn, now_s: float) -> list[Callable[[], Output]]:
        return []

    def seal(self, subscriptions: Ids, messages: IdColumn) -> None: ...

    def sealed(self) -> list[Output]:
        return []

    def snapshot(self, subscriptions: Ids, messages: IdColumn) -> Callable[[], dict[str, np.ndarray]]:
        return dict

    def restore(self, state: Mapping[str, np.ndarray]) -> PublishedParts:
        return PublishedParts()

    def abandon(self) -> None: ...


class PartSink:
    """Files `part-00000.SUFFIX`, ... Each is written under a hidden name, sealed, and renamed by the coordinator.

    Of several tasks the number is that of the checkpoint, each of which ends the parts of all, however small: so the
    parts of one number have together what lies between two checkpoints. The first task writes one of each number, empty
    or not, which gets its name last: a reader who sees it sees all of that number.

    Parameters
    ----------
    directory : str
        Path or URI of the folder.
    file_rows : int or None
        Approximate updates per file; None, and of several tasks: those between two checkpoints.
    incarnation : int
        Goes into hidden names, so that no two processes write to the same file.
    small_rows : int, optional
        Updates below which a checkpoint does not end the part of a single task, unless the first is older than
        `LONG_S`.
    task, tasks : int
        Of delivery.
    objects : IdColumn, optional
        The object of each message, in a stream of objects.
    """

    def __init__(
        self,
        directory: str,
        file_rows: int | None,
        form: "type[PartFile]",
        incarnation: int = 0,
        small_rows: int | None = None,
        task: int = 0,
        tasks: int = 1,
        objects: IdColumn | None = None,
    ):
        self._objects = objects
        self._schema = _ENCODED_SCHEMA if objects is None else _ENCODED_SCHEMA.append(_OBJECT_ENCODED)
        self._task, self._tasks = task, tasks
        self._small_rows = SMALL_ROWS if small_rows is None else small_rows
        self.directory = directory
        self.bytes_written = 0
        self._disk = open_disk(directory)
        self._file_rows = file_rows if tasks == 1 else None
        self._form = form
        self._incarnation = incarnation
        self._number = 0
        self._part: PartFile | None = None
        self._waiting: list[UpdateBatch] = []
        self._waiting_rows = 0
        self._tables: list[pa.Table] = []
        self._tables_rows = 0
        self._since_s = 0.0
        self._sealed: list[Output] = []
        self._already_published = PublishedParts()  # as of the restore

    def write(self, updates: UpdateBatch, subscriptions: Ids, messages: IdColumn, now_s: float) -> None:
        if not self._waiting_rows + self._tables_rows and self._part is None:
            self._since_s = now_s
        self._waiting.append(updates)
        self._waiting_rows += len(updates)
        if self._waiting_rows + self._tables_rows >= GROUP_ROWS:
            self._spill(subscriptions, messages)

    def resolve(self, subscriptions: Ids, messages: IdColumn) -> None:
        if not self._waiting_rows:
            return
        updates = concatenate(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        columns = [
            pa.array(updates.as_of),
            subscriptions.encode(updates.number),
            messages.encode(updates.seq),
            pa.array(updates.seq),
            pa.DictionaryArray.from_arrays(pa.array(updates.change), pa.array(CHANGES)),
            pa.array(updates.score, from_pandas=True),  # NaN becomes null
        ]
        if self._objects is not None:
            columns.append(self._objects.encode(updates.seq))
        self._tables.append(pa.Table.from_arrays(columns, self._schema.names))
        self._tables_rows += len(updates)

    def cut(self, subscriptions: Ids, messages: IdColumn, now_s: float) -> list[Callable[[], Output]]:
        if self._part is None and not self._ends_part(now_s):
            self._number += self._tasks > 1
            return []
        self.resolve(subscriptions, messages)
        part, tables = self._part or self._begin(), self._tables
        self._part, self._tables, self._tables_rows = None, [], 0
        return [lambda: self._close(part, tables)]

    def _ends_part(self, now_s: float) -> bool:
        """Whether a checkpoint ends a part of what is in memory.

        The first of several tasks ends one at each checkpoint, empty or not: a missing number is a part that is gone.
        """
        rows = self._waiting_rows + self._tables_rows
        if self._tasks > 1:
            return rows > 0 or self._task == 0
        return rows >= self._small_rows or (rows > 0 and now_s - self._since_s >= LONG_S)

    def seal(self, subscriptions: Ids, messages: IdColumn) -> None:
        self._spill(subscriptions, messages)
        part, self._part = self._part, None
        if part is None and self._tasks > 1 and self._task == 0:
            part = self._begin()
        if part is not None:
            self._sealed.append(self._close(part, []))

    def sealed(self) -> list[Output]:
        sealed, self._sealed = self._sealed, []
        return sealed

    def snapshot(self, subscriptions: Ids, messages: IdColumn) -> Callable[[], dict[str, np.ndarray]]:
        if self._part is not None:
            raise DeliveryError(f"{self.directory}: a part is open at a snapshot; call cut() first")
        self.resolve(subscriptions, messages)
        tables = [self._schema.empty_table(), *self._tables]
        about = {"part": np.array(self._number, np.int64), **state_of_published(self._already_published)}
        return lambda: about | _unwritten(tables)

    def restore(self, state: Mapping[str, np.ndarray]) -> PublishedParts:
        self._number = int(state["part"])
        # the run may be restored from a newer checkpoint before it reaches the end of those files
        rows = published_in(state).rows
        suffix = f".{self._form.suffix}"
        files = published(self.directory)
        named = [PartName.of(name) for name in files if name.startswith("part-") and name.endswith(suffix)]
        newer = [name for name in named if name.number >= self._number]
        if newer:  # committed by a later checkpoint, and perhaps read by now
            self._number = max(name.number for name in newer) + 1
            ahead = [(name.task, name.tasks, self._last_as_of(name.text)) for name in newer]
            rows = np.concatenate([rows, np.array(ahead, np.int64)])
        self._already_published = PublishedParts(rows)
        if state["as_of"].shape[0]:
            table = updates_of_state(state)
            hashes = _hashes_of(table)
            mine = (owner_of(hashes, self._tasks) == self._task) & ~self._already_published.has(state["as_of"], hashes)
            self._tables = [table.filter(pa.array(mine))] if mine.any() else []
            self._tables_rows = int(np.count_nonzero(mine))
        return self._already_published

    def _last_as_of(self, name: str) -> int:
        """The largest `as_of` of a part that has its name. Raises CheckpointError if it is damaged."""
        path = Path(self.directory, name)
        listed = parts_list(path.parent) if isinstance(self._disk, LocalDisk) else {}
        with reading_part(path):
            return listed[name].last_as_of if name in listed else self._form.last_as_of(self._disk.read(name))

    def abandon(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                part.finish()
            with contextlib.suppress(OSError, pa.ArrowException):
                part.close()
            with contextlib.suppress(OSError):
                self._disk.remove(part.temporary)

    def _spill(self, subscriptions: Ids, messages: IdColumn) -> None:
        """Write the updates in memory in a thread, after its previous write: encoding a group blocks many batches."""
        self.resolve(subscriptions, messages)
        tables, self._tables, self._tables_rows = self._tables, [], 0
        for table in tables:
            part = self._part = self._part or self._begin()
            with writing(f"{self.directory}/{part.temporary}"):
                part.write_behind(table)
            if self._file_rows is not None and part.rows >= self._file_rows:
                self._part = None
                self._sealed.append(self._close(part, []))

    def _begin(self) -> "PartFile":
        name = PartName(self._number, self._task, self._tasks, self._form.suffix)
        text, temporary = name.text, f".{name.stem}.{self._incarnation}.{name.suffix}.tmp"
        if is_stored(self.directory):
            text = temporary = f"{name.stem}.{self._incarnation}.{name.suffix}"
        with writing(f"{self.directory}/{temporary}"):
            part = self._form(self._disk, temporary, text, self._schema)
        self._number += 1
        return part

    def _close(self, part: "PartFile", tables: Sequence[pa.Table]) -> Output:
        """Write the remaining tables of a part, close it, and force it to disk."""
        with writing(f"{self.directory}/{part.temporary}"):
            for table in tables:
                part.write(table)
            part.finish()
            part.close()
            self.bytes_written += self._disk.sync(part.temporary)
            facts = {} if is_stored(self.directory) else part.facts(self._disk.read(part.temporary))
        return Output(f"{self.directory}/{part.temporary}", f"{self.directory}/{part.name}", facts)


def _unwritten(tables: list[pa.Table]) -> dict[str, np.ndarray]:
    """Updates in no file, as a snapshot has them."""
    table = pa.concat_tables(tables).unify_dictionaries()
    change = pc.call_function("cast", [table.column("change")], pc.CastOptions.safe(pa.string()))
    codes = pc.call_function("index_in", [change], pc.SetLookupOptions(pa.array(CHANGES)))
    state = {
        "as_of": table.column("as_of").to_numpy(),
        "seq": table.column("seq").to_numpy(),
        "change": codes.to_numpy().astype(np.int8),
        "score": table.column("score").to_numpy(zero_copy_only=False).astype(np.float64),
    }
    for name in [name for name in _IDS if name in table.column_names]:
        names = _names_of(table.column(name))
        state |= {f"{name}_offsets": names.offsets, f"{name}_data": names.data}
    return state


def _names_of(column: pa.ChunkedArray) -> Names:
    """Without a string of Python for each, for whose time the tasks would wait."""
    if not len(column):
        return Names.of([])
    return flat_names(column.cast(pa.string()).cast(pa.large_string()).combine_chunks())


def updates_of_state(state: Mapping[str, np.ndarray]) -> pa.Table:
    """The updates that a snapshot of a sink has, which are in no sealed file; ids and changes as dictionaries.

    Empty for the state of a sink that keeps none.
    """
    if "as_of" not in state:
        return _ENCODED_SCHEMA.empty_table()
    names = [Names(state[f"{name}_offsets"], state[f"{name}_data"]) for name in _IDS if f"{name}_data" in state]
    ids = [pa.array(each.strings(), pa.string()).dictionary_encode() for each in names]
    change = pa.DictionaryArray.from_arrays(pa.array(state["change"]), pa.array(CHANGES))
    seq, score = pa.array(state["seq"]), pa.array(state["score"], from_pandas=True)
    columns = [pa.array(state["as_of"]), *ids[:2], seq, change, score, *ids[2:]]
    return pa.Table.from_arrays(columns, [*_ENCODED_SCHEMA.names, *_IDS[2:]][: len(columns)])


def last_as_of(path: Path, listed: ListedPart | None = None) -> int:
    """The largest `as_of` of a Parquet part, -1 if it is empty: by its line of the list, else by its footer.

    Raises
    ------
    CheckpointError
        If the footer is damaged.
    """
    if listed is not None:
        return listed.last_as_of
    with reading_part(path):
        metadata = pq.read_metadata(path)
        column = metadata.schema.names.index("as_of")
        groups = (metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups))
        return max((statistics.max for statistics in groups if statistics is not None), default=-1)


def last_of_parts(folder: Path) -> int:
    """The largest `as_of` of the Parquet parts of a folder of updates that have their names; -1 without any.

    Reads the list, or the footers of the last number. Raises CheckpointError for a damaged one.
    """
    listed, names = parts_list(folder), [PartName.of(path.name) for path in folder.glob("part-*.parquet")]
    newest = [name.text for name in names if name.number == max(names).number]
    listed_last = max((part.last_as_of for part in listed.values()), default=-1)
    return max([listed_last, *(last_as_of(folder / name, listed.get(name)) for name in newest)])


@contextlib.contextmanager
def reading_part(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged Parquet file into a CheckpointError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        why = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{path}: is damaged ({why}); restore it from a backup") from error


def read_part(path: Path, listed: ListedPart | None) -> pa.Table:
    """A part of updates, checked against its line of the list. O(its bytes). Raises as `read_pieces`."""
    return pa.concat_tables([UPDATE_SCHEMA.empty_table(), *read_pieces(path, listed)])


def read_pieces(
    path: Path, listed: ListedPart | None, schema: pa.Schema = UPDATE_SCHEMA, nullable: Collection[str] = ("score",)
) -> Iterator[pa.Table]:
    """The rows of a file of updates, or of results, `PIECE_ROWS` at a time; checked against its line of the list.

    Raises
    ------
    CheckpointError
        If it was changed, or cannot be decoded, after what could be read.
    FileNotFoundError
        If it is gone.
    """
    with reading_part(path):
        check_part(path, listed)
        if path.suffix == f".{JsonLinesPart.suffix}":
            known = schema if OBJECT_ID.name in schema.names else schema.append(OBJECT_ID)
            options = pj.ParseOptions(explicit_schema=known, unexpected_field_behavior="error")
            file = pj.open_json(path, parse_options=options) if path.stat().st_size else contextlib.nullcontext(())
        else:
            file = pq.ParquetFile(path)
        with file as opened:
            columns = schema.names
            is_table = isinstance(opened, pq.ParquetFile)
            batches = opened.iter_batches(PIECE_ROWS, columns=columns, use_threads=False) if is_table else opened
            for batch in batches:
                piece = pa.Table.from_batches([batch])
                piece.validate(full=True)  # else text that is not UTF-8 raises later
                piece = piece.select(columns).cast(schema)
                if nulls := [name for name in columns if name not in nullable and piece[name].null_count]:
                    raise ValueError(f"column {nulls[0]!r} has {piece[nulls[0]].null_count:,} nulls")
                yield piece


class PartFile(ABC):
    """A file of updates that is being written.

    Parameters
    ----------
    temporary, name : str
        Hidden name while it is written, and final name.
    schema : pa.Schema
        Of the tables that are written.
    """

    suffix = ""

    def __init__(self, disk: Disk, temporary: str, name: str, schema: pa.Schema = _ENCODED_SCHEMA):
        self.temporary = temporary
        self.name = name
        self.rows = 0
        self._last_as_of = -1
        self._file = disk.create(temporary)
        self._thread: Executor | None = None
        self._under_way: Future[None] | None = None

    def write(self, table: pa.Table) -> None:
        """Write updates. Raises OSError or ArrowException if these, or earlier ones, cannot be written."""
        self._wait()
        self._write(table)
        self._count(table)

    def write_behind(self, table: pa.Table) -> None:
        """Write updates in a thread. Raises the error of earlier ones."""
        self._wait()
        self._thread = self._thread or ThreadPoolExecutor(1, "updates")
        self._under_way = self._thread.submit(self._write, table)
        self._count(table)

    def facts(self, data: Buffer) -> dict[str, Any]:
        """What the list of parts says of the complete file with these bytes."""
        return ListedPart.of(data, self.rows, self._last_as_of)._asdict()

    def _count(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        self._last_as_of = int(np.max(table.column("as_of").to_numpy(), initial=self._last_as_of))

    def finish(self) -> None:
        """Wait until all updates are written; call before `close`. Raises the error of earlier writes."""
        if self._thread is not None:
            self._thread.shutdown()
        self._wait()

    def _wait(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    @staticmethod
    @abstractmethod
    def last_as_of(data: Buffer) -> int:
        """The largest `as_of` in a complete file, -1 if it is empty."""

    @abstractmethod
    def _write(self, table: pa.Table) -> None: ...


class ParquetPart(PartFile):
    """Parquet."""

    suffix = "parquet"

    def __init__(self, disk: Disk, temporary: str, name: str, schema: pa.Schema = _ENCODED_SCHEMA):
        super().__init__(disk, temporary, name)
        # Dictionaries are written as they are, but the schema in the file says string.
        self._writer = open_writer(self._file, schema)

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            self._file.close()

    @staticmethod
    def last_as_of(data: Buffer) -> int:
        column = pq.read_table(pa.BufferReader(pa.py_buffer(data)), columns=["as_of"]).column("as_of")
        return int(np.max(column.to_numpy(), initial=-1))

    def _write(self, table: pa.Table) -> None:
        self._writer.write_table(table)


class JsonLinesPart(PartFile):
    """JSON lines: one update a line; several times slower than Parquet."""

    suffix = "jsonl"

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def last_as_of(data: Buffer) -> int:
        return max((int(msgspec.json.decode(line)["as_of"]) for line in bytes(data).splitlines()), default=-1)

    def _write(self, table: pa.Table) -> None:
        # None, the score of a match, becomes null
        self._file.write(msgspec.json.Encoder().encode_lines(table.to_pylist()))


#: Forms of the files of updates, by name.
FORMS: dict[str, type[PartFile]] = {"parquet": ParquetPart, "jsonl": JsonLinesPart}


def _hashes_of(updates: pa.Table) -> UInt64:
    """The hash of each update's subscription id; ids are dictionaries."""
    ids = updates.column("subscription_id").combine_chunks()
    ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
    return hash_names(Names.of(ids.dictionary.to_pylist()))[ids.indices.to_numpy()]


def open_writer(file: Path | IO[bytes], schema: pa.Schema) -> pq.ParquetWriter:
    """A writer whose files are reproducible byte for byte."""
    return pq.ParquetWriter(file, schema, compression="zstd", compression_level=1, store_schema=False)


@contextlib.contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Turn OSError and ArrowException into a DeliveryError that names the file."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DeliveryError(
            f"{path}: cannot be written ({reason}); free space or choose another output directory, and run again"
        ) from error
