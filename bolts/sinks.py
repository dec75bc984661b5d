"""Where updates end: the files.

`bolts.delivery` decides what is written and when; this module knows how. Updates come as numbers (subscription, seq),
which `bolts.names` turns back into names: the file to read next.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
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
from topology.core.disk import Output, open_disk

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


#: Updates below which a part is not worth a file, unless the first of them has waited for long.
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

    def cut(self, subscriptions: IdColumn, messages: IdColumn, now_s: float) -> None:
        """A checkpoint is coming: seal what is worth a file, the rest stays and is part of `state`."""
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

    def cut(self, subscriptions: IdColumn, messages: IdColumn, now_s: float) -> None: ...

    def seal(self, subscriptions: IdColumn, messages: IdColumn) -> None: ...

    def sealed(self) -> list[Output]:
        return []

    def state(self, subscriptions: IdColumn, messages: IdColumn) -> dict[str, np.ndarray]:
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> int:
        return -1

    def abandon(self) -> None: ...


class PartSink(ABC):
    """Files `part-00000.SUFFIX`, ... Each is written under a hidden name and sealed; who gives it its name is another.

    Parameters
    ----------
    directory : str
        Path or URI of the folder.
    file_rows : int or None
        About how many updates a file holds; None: as many as come between two checkpoints.
    incarnation : int
        A part of hidden names: no two processes write to the same file.
    """

    suffix = ""

    def __init__(self, directory: str, file_rows: int | None, incarnation: int = 0):
        self.directory = directory
        self.bytes_written = 0
        self._disk = open_disk(directory)
        self._file_rows = file_rows
        self._incarnation = incarnation
        self._number = 0
        self._rows_in_file = 0
        self._open = False
        self._waiting: list[UpdateBatch] = []
        self._waiting_rows = 0
        self._tables: list[pa.Table] = []
        self._tables_rows = 0
        self._since_s = 0.0
        self._sealed: list[Output] = []
        self._named_through = -1  # updates as of seqs up to here were in named files when the run went back behind them

    @property
    def temporary(self) -> str:
        """Hidden name of the file at hand."""
        return f".part-{self._number:05d}.{self._incarnation}.{self.suffix}.tmp"

    def write(self, updates: UpdateBatch, subscriptions: IdColumn, messages: IdColumn, now_s: float) -> None:
        if not self._waiting_rows + self._tables_rows + self._rows_in_file:
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

    def cut(self, subscriptions: IdColumn, messages: IdColumn, now_s: float) -> None:
        rows = self._waiting_rows + self._tables_rows
        if self._open or rows >= SMALL_ROWS or (rows and now_s - self._since_s >= LONG_S):
            self.seal(subscriptions, messages)

    def seal(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        self._spill(subscriptions, messages)
        if self._open:
            self._close()

    def sealed(self) -> list[Output]:
        sealed, self._sealed = self._sealed, []
        return sealed

    def state(self, subscriptions: IdColumn, messages: IdColumn) -> dict[str, np.ndarray]:
        if self._open:
            raise DeliveryError(f"{self.directory}: a part is open while its run is saved; cut() comes first")
        self.resolve(subscriptions, messages)
        table = (
            pa.concat_tables(self._tables, promote_options="none") if self._tables else _ENCODED_SCHEMA.empty_table()
        )
        state = {
            "part": np.array(self._number, np.int64),
            "named_through": np.array(self._named_through, np.int64),
        }
        for name in ("as_of", "seq"):
            state[name] = table.column(name).to_numpy()
        state["change"] = (
            pc.call_function(
                "index_in", [table.column("change").cast(pa.string())], pc.SetLookupOptions(pa.array(CHANGES))
            )
            .to_numpy()
            .astype(np.int8)
        )
        state["score"] = table.column("score").to_numpy(zero_copy_only=False).astype(np.float64)
        for name in ("subscription_id", "message_id"):
            names = Names.of(table.column(name).cast(pa.string()).to_pylist())
            state |= {f"{name}_offsets": names.offsets, f"{name}_data": names.data}
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> int:
        self._number = int(state["part"])
        # another checkpoint may be made, and gone on from, before the run is again where those files end
        self._named_through = int(state["named_through"])
        named = [name for name in self._disk.names() if name.startswith("part-") and name.endswith(f".{self.suffix}")]
        newer = [name for name in named if int(name.split("-")[1].split(".")[0]) >= self._number]
        if newer:  # told by a checkpoint after this one, and perhaps read by now
            self._number = int(newer[-1].split("-")[1].split(".")[0]) + 1
            self._named_through = max(self._named_through, *(self._last_as_of(name) for name in newer))
            return self._named_through
        if state["as_of"].shape[0]:
            ids = [
                pa.array(
                    Names(state[f"{name}_offsets"], state[f"{name}_data"]).strings(), pa.string()
                ).dictionary_encode()
                for name in ("subscription_id", "message_id")
            ]
            change = pa.DictionaryArray.from_arrays(pa.array(state["change"]), pa.array(CHANGES))
            seq, score = pa.array(state["seq"]), pa.array(state["score"], from_pandas=True)
            columns = [pa.array(state["as_of"]), *ids, seq, change, score]
            self._tables = [pa.Table.from_arrays(columns, _ENCODED_SCHEMA.names)]
            self._tables_rows = state["as_of"].shape[0]
        return self._named_through

    def abandon(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._open:
                self._finish_file()
            self._disk.remove(self.temporary)

    def _spill(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        """Write what is in memory."""
        self.resolve(subscriptions, messages)
        tables, self._tables, self._tables_rows = self._tables, [], 0
        with writing(f"{self.directory}/{self.temporary}"):
            for table in tables:
                if not self._open:
                    self._begin_file(self._disk.create(self.temporary))
                    self._open = True
                self._write_table(table)
                self._rows_in_file += table.num_rows
                if self._file_rows is not None and self._rows_in_file >= self._file_rows:
                    self._close()

    def _close(self) -> None:
        with writing(f"{self.directory}/{self.temporary}"):
            self._finish_file()
            self._open = False
            self.bytes_written += self._disk.sync(self.temporary)
        name = f"part-{self._number:05d}.{self.suffix}"
        self._sealed.append(Output(f"{self.directory}/{self.temporary}", f"{self.directory}/{name}"))
        self._number += 1
        self._rows_in_file = 0

    @abstractmethod
    def _begin_file(self, file: IO[bytes]) -> None: ...

    @abstractmethod
    def _write_table(self, table: pa.Table) -> None: ...

    @abstractmethod
    def _finish_file(self) -> None:
        """Close the file at hand."""

    @abstractmethod
    def _last_as_of(self, name: str) -> int:
        """The largest `as_of` in a file."""


class ParquetSink(PartSink):
    """Parquet: what machines read."""

    suffix = "parquet"

    def _begin_file(self, file: IO[bytes]) -> None:
        # Dictionaries go in as they are, but the file says string: how a column was encoded is nobody's business.
        self._file = file
        self._writer = open_writer(file, _ENCODED_SCHEMA)

    def _write_table(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def _finish_file(self) -> None:
        try:
            self._writer.close()
        finally:
            self._file.close()

    def _last_as_of(self, name: str) -> int:
        source = pa.BufferReader(pa.py_buffer(self._disk.read(name)))
        column = pq.read_table(source, columns=["as_of"]).column("as_of")
        return int(np.max(column.to_numpy(), initial=-1))


class JsonLinesSink(PartSink):
    """One update a line, for people and scripts; several times slower than Parquet."""

    suffix = "jsonl"

    def _begin_file(self, file: IO[bytes]) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()

    def _write_table(self, table: pa.Table) -> None:
        self._file.write(self._encoder.encode_lines(table.to_pylist()))  # None, the score of a match, becomes null

    def _finish_file(self) -> None:
        self._file.close()

    def _last_as_of(self, name: str) -> int:
        lines = bytes(self._disk.read(name)).splitlines()
        return max((int(msgspec.json.decode(line)["as_of"]) for line in lines), default=-1)


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
