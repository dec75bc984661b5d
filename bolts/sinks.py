"""Where updates end: the files.

`bolts.delivery` decides what is written and when; this module knows how. Updates come as numbers (subscription, seq),
which `bolts.names` turns back into names: the file to read next.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from bolts.names import IdColumn
from matching.errors import DeliveryError
from matching.model import CHANGES, Names, UpdateBatch, concatenate
from topology.core.checkpoint.storage import Disk, Output, open_disk
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
#: As updates are held and written: dictionaries instead of strings.
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
#: Rows of one Parquet row group: large enough to compress, small enough to sit in memory while it fills.
GROUP_ROWS = 262_144


#: See `PartSink`; and how long is long.
SMALL_ROWS, LONG_S = 65_536, 10.0


class Sink(Protocol):
    """Takes updates with the columns that name them; its files are whole after `seal`, and named by others."""

    bytes_written: int

    def write(self, updates: UpdateBatch, subscriptions: IdColumn, messages: IdColumn, now_s: float) -> None:
        """Take updates; they may stay in memory."""
        ...

    def resolve(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        """Look up the names of what is still in memory, because names are about to be given up."""
        ...

    def cut(self, subscriptions: IdColumn, messages: IdColumn, now_s: float) -> list[Callable[[], Output]]:
        """A checkpoint is coming: what is left to do for a part that is worth a file; else all is part of `state`."""
        ...

    def seal(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        """Write what is left and close the file."""
        ...

    def sealed(self) -> list[Output]:
        """Files that have become whole since the last call."""
        ...

    def state(self, subscriptions: IdColumn, messages: IdColumn) -> dict[str, np.ndarray]:
        """The next part's number, what is in no file that was sealed, and up to where named files are ahead of it."""
        ...

    def restore(self, state: Mapping[str, np.ndarray]) -> int:
        """Go on from there, in place of a new sink; the largest `as_of` that is in files with names all the same."""
        ...

    def abandon(self) -> None:
        """Close and remove what is not whole; never raises."""
        ...


class CountSink:
    """Writes nothing: counts and digests are made by the delivery bolt itself."""

    bytes_written = 0

    def write(self, updates: UpdateBatch, subscriptions: IdColumn, messages: IdColumn, now_s: float) -> None: ...

    def resolve(self, subscriptions: IdColumn, messages: IdColumn) -> None: ...

    def cut(self, subscriptions: IdColumn, messages: IdColumn, now_s: float) -> list[Callable[[], Output]]:
        return []

    def seal(self, subscriptions: IdColumn, messages: IdColumn) -> None: ...

    def sealed(self) -> list[Output]:
        return []

    def state(self, subscriptions: IdColumn, messages: IdColumn) -> dict[str, np.ndarray]:
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> int:
        return -1

    def abandon(self) -> None: ...


class PartSink:
    """Files `part-00000.SUFFIX`, ... Each is written under a hidden name and sealed; who gives it its name is another.

    Parameters
    ----------
    directory : str
        Path or URI of the folder.
    file_rows : int or None
        About how many updates a file holds; None: as many as come between two checkpoints.
    form : type of PartFile
    incarnation : int
        A part of hidden names: no two processes write to the same file.
    small_rows : int, optional
        Updates below which a part is not worth a file, unless the first of them has waited for long.
    """

    def __init__(
        self,
        directory: str,
        file_rows: int | None,
        form: "type[PartFile]",
        incarnation: int = 0,
        small_rows: int | None = None,
    ):
        self._small_rows = SMALL_ROWS if small_rows is None else small_rows
        self.directory = directory
        self.bytes_written = 0
        self._disk = open_disk(directory)
        self._file_rows = file_rows
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
        self._named_through = -1  # updates as of seqs up to here were in named files when the run went back behind them

    def write(self, updates: UpdateBatch, subscriptions: IdColumn, messages: IdColumn, now_s: float) -> None:
        if not self._waiting_rows + self._tables_rows and self._part is None:
            self._since_s = now_s
        self._waiting.append(updates)
        self._waiting_rows += len(updates)
        if self._waiting_rows + self._tables_rows >= GROUP_ROWS:
            self._spill(subscriptions, messages)

    def resolve(self, subscriptions: IdColumn, messages: IdColumn) -> None:
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
        self._tables.append(pa.Table.from_arrays(columns, _ENCODED_SCHEMA.names))
        self._tables_rows += len(updates)

    def cut(self, subscriptions: IdColumn, messages: IdColumn, now_s: float) -> list[Callable[[], Output]]:
        rows = self._waiting_rows + self._tables_rows
        if self._part is None and rows < self._small_rows and (not rows or now_s - self._since_s < LONG_S):
            return []
        self.resolve(subscriptions, messages)
        part, tables = self._part or self._begin(), self._tables
        self._part, self._tables, self._tables_rows = None, [], 0
        return [lambda: self._close(part, tables)]

    def seal(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        self._spill(subscriptions, messages)
        if self._part is not None:
            part, self._part = self._part, None
            self._sealed.append(self._close(part, []))

    def sealed(self) -> list[Output]:
        sealed, self._sealed = self._sealed, []
        return sealed

    def state(self, subscriptions: IdColumn, messages: IdColumn) -> dict[str, np.ndarray]:
        if self._part is not None:
            raise DeliveryError(f"{self.directory}: a part is open while its run is saved; cut() comes first")
        self.resolve(subscriptions, messages)
        table = pa.concat_tables([_ENCODED_SCHEMA.empty_table(), *self._tables]).unify_dictionaries()
        change = pc.call_function("cast", [table.column("change")], pc.CastOptions.safe(pa.string()))
        codes = pc.call_function("index_in", [change], pc.SetLookupOptions(pa.array(CHANGES)))
        state = {
            "part": np.array(self._number, np.int64),
            "named_through": np.array(self._named_through, np.int64),
            "as_of": table.column("as_of").to_numpy(),
            "seq": table.column("seq").to_numpy(),
            "change": codes.to_numpy().astype(np.int8),
            "score": table.column("score").to_numpy(zero_copy_only=False).astype(np.float64),
        }
        for name in ("subscription_id", "message_id"):
            names = Names.of(table.column(name).cast(pa.string()).to_pylist())
            state |= {f"{name}_offsets": names.offsets, f"{name}_data": names.data}
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> int:
        self._number = int(state["part"])
        # another checkpoint may be made, and gone on from, before the run is again where those files end
        self._named_through = int(state["named_through"])
        suffix = f".{self._form.suffix}"
        named = [name for name in self._disk.names() if name.startswith("part-") and name.endswith(suffix)]
        newer = [name for name in named if _number_of(name) >= self._number]
        if newer:  # told by a checkpoint after this one, and perhaps read by now
            self._number = _number_of(newer[-1]) + 1
            ahead = [self._form.last_as_of(self._disk.read(name)) for name in newer]
            self._named_through = max(self._named_through, *ahead)
            return self._named_through
        if state["as_of"].shape[0]:
            names = [
                Names(state[f"{name}_offsets"], state[f"{name}_data"]) for name in ("subscription_id", "message_id")
            ]
            ids = [pa.array(each.strings(), pa.string()).dictionary_encode() for each in names]
            change = pa.DictionaryArray.from_arrays(pa.array(state["change"]), pa.array(CHANGES))
            seq, score = pa.array(state["seq"]), pa.array(state["score"], from_pandas=True)
            columns = [pa.array(state["as_of"]), *ids, seq, change, score]
            self._tables = [pa.Table.from_arrays(columns, _ENCODED_SCHEMA.names)]
            self._tables_rows = state["as_of"].shape[0]
        return self._named_through

    def abandon(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                part.finish()
            with contextlib.suppress(OSError, pa.ArrowException):
                part.close()
            with contextlib.suppress(OSError):
                self._disk.remove(part.temporary)

    def _spill(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        """Have what is in memory written by a thread, and wait for what it had to write before.

        Packing a group takes as long as many small batches; it needs nothing that they change.
        """
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
        number, suffix = self._number, self._form.suffix
        temporary = f".part-{number:05d}.{self._incarnation}.{suffix}.tmp"
        with writing(f"{self.directory}/{temporary}"):
            part = self._form(self._disk, temporary, f"part-{number:05d}.{suffix}")
        self._number += 1
        return part

    def _close(self, part: "PartFile", tables: Sequence[pa.Table]) -> Output:
        """Write what is left of a part, close it, and force it to disk."""
        with writing(f"{self.directory}/{part.temporary}"):
            for table in tables:
                part.write(table)
            part.finish()
            part.close()
            self.bytes_written += self._disk.sync(part.temporary)
        return Output(f"{self.directory}/{part.temporary}", f"{self.directory}/{part.name}")


class PartFile(ABC):
    """A file of updates that is being written.

    Parameters
    ----------
    disk : Disk
    temporary, name : str
        The name it is written under, and the one it will get.
    """

    suffix = ""

    def __init__(self, disk: Disk, temporary: str, name: str):
        self.temporary = temporary
        self.name = name
        self.rows = 0
        self._file = disk.create(temporary)
        self._thread: Executor | None = None
        self._under_way: Future[None] | None = None

    def write(self, table: pa.Table) -> None:
        """Add updates. Raises OSError or ArrowException if these, or those before, cannot be written."""
        self._wait()
        self._write(table)
        self.rows += table.num_rows

    def write_behind(self, table: pa.Table) -> None:
        """Have updates added by a thread. Raises what failed of those before."""
        self._wait()
        self._thread = self._thread or ThreadPoolExecutor(1, "updates")
        self._under_way = self._thread.submit(self._write, table)
        self.rows += table.num_rows

    def finish(self) -> None:
        """All that came is written; `close` is next. Raises what failed of it."""
        if self._thread is not None:
            self._thread.shutdown()
        self._wait()

    def _wait(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    @abstractmethod
    def close(self) -> None:
        """Nothing more comes."""

    @staticmethod
    @abstractmethod
    def last_as_of(data: Buffer) -> int:
        """The largest `as_of` in a file that is whole."""

    @abstractmethod
    def _write(self, table: pa.Table) -> None: ...


class ParquetPart(PartFile):
    """Parquet: what machines read."""

    suffix = "parquet"

    def __init__(self, disk: Disk, temporary: str, name: str):
        super().__init__(disk, temporary, name)
        # Dictionaries go in as they are, but the file says string: how a column was encoded is nobody's business.
        self._writer = open_writer(self._file, _ENCODED_SCHEMA)

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
    """One update a line, for people and scripts; several times slower than Parquet."""

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


def _number_of(name: str) -> int:
    """Of a part, by its name."""
    return int(name.split("-")[1].split(".")[0])


def open_writer(file: Path | IO[bytes], schema: pa.Schema) -> pq.ParquetWriter:
    """A writer for one file; what it stores does not depend on when or where it is written."""
    return pq.ParquetWriter(file, schema, compression="zstd", compression_level=1, store_schema=False)


@contextlib.contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Turn whatever fails inside into a DeliveryError that names the file."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DeliveryError(
            f"{path}: cannot be written ({reason}); free space or choose another output directory, and run again"
        ) from error
