"""Where updates end: the files.

`bolts.delivery` decides what is written and when; this module knows how. Updates come as numbers (subscription, seq),
which `bolts.names` turns back into names: the file to read next.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from bolts.names import IdColumn
from matching.errors import DeliveryError
from matching.model import CHANGES, UpdateBatch, concatenate

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
#: Rows of one Parquet row group: large enough to compress, small enough to sit in memory while it fills.
GROUP_ROWS = 262_144


class Sink(Protocol):
    """Takes updates with the columns that name them."""

    bytes_written: int

    def write(self, updates: UpdateBatch, subscriptions: IdColumn, messages: IdColumn) -> None:
        """Take updates; they may stay in memory until `flush`."""
        ...

    def flush(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        """Look up the names of what is still in memory, because names are about to be given up."""
        ...

    def commit(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        """Write what is left and give the last file its name."""
        ...

    def abandon(self) -> None:
        """Close and remove what has no name yet; never raises."""
        ...


class CountSink:
    """Writes nothing: counts and digests are made by the delivery bolt itself."""

    bytes_written = 0

    def write(self, updates: UpdateBatch, subscriptions: IdColumn, messages: IdColumn) -> None: ...

    def flush(self, subscriptions: IdColumn, messages: IdColumn) -> None: ...

    def commit(self, subscriptions: IdColumn, messages: IdColumn) -> None: ...

    def abandon(self) -> None: ...


class ParquetSink:
    """Files `part-00000.parquet`, ... of about `file_rows` updates each; a file gets its name when it is whole."""

    def __init__(self, directory: Path, file_rows: int):
        self.bytes_written = 0
        self._files = _Parts(directory, "parquet")
        self._file_rows = file_rows
        self._rows_in_file = 0
        self._waiting: list[UpdateBatch] = []
        self._waiting_rows = 0
        self._writer: pq.ParquetWriter | None = None
        with writing(directory):
            self._open()

    def write(self, updates: UpdateBatch, subscriptions: IdColumn, messages: IdColumn) -> None:
        self._waiting.append(updates)
        self._waiting_rows += len(updates)
        if self._waiting_rows >= GROUP_ROWS:
            self.flush(subscriptions, messages)

    def flush(self, subscriptions: IdColumn, messages: IdColumn) -> None:
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
        with writing(self._files.temporary):
            if self._writer is None:
                self._open()
            assert self._writer is not None
            self._writer.write_table(pa.Table.from_arrays(columns, UPDATE_SCHEMA.names))
            self._rows_in_file += len(updates)
            if self._rows_in_file >= self._file_rows:
                self._close()

    def commit(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        self.flush(subscriptions, messages)
        with writing(self._files.temporary):
            if self._writer is not None:
                self._close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        self._files.abandon()

    def _open(self) -> None:
        # Dictionaries go in as they are, but the file says string: how a column was encoded is nobody's business.
        dictionary = pa.dictionary(pa.int32(), pa.string())
        schema = pa.schema(
            [
                ("as_of", pa.int64()),
                ("subscription_id", dictionary),
                ("message_id", dictionary),
                ("seq", pa.int64()),
                ("change", pa.dictionary(pa.int8(), pa.string())),
                ("score", pa.float64()),
            ]
        )
        self._writer = open_writer(self._files.next(), schema)
        self._rows_in_file = 0

    def _close(self) -> None:
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        self.bytes_written += self._files.publish()


class JsonLinesSink:
    """Files `part-00000.jsonl`, ...: one update a line, for people and scripts; several times slower than Parquet."""

    def __init__(self, directory: Path, file_rows: int):
        self.bytes_written = 0
        self._files = _Parts(directory, "jsonl")
        self._file_rows = file_rows
        self._rows_in_file = 0
        self._encoder = msgspec.json.Encoder()
        with writing(directory):
            self._file = self._files.next().open("wb")

    def write(self, updates: UpdateBatch, subscriptions: IdColumn, messages: IdColumn) -> None:
        with writing(self._files.temporary):
            if self._rows_in_file >= self._file_rows:
                self._close()
                self._file = self._files.next().open("wb")
                self._rows_in_file = 0
            self._file.write(self._encoder.encode_lines(_json_rows(updates, subscriptions, messages)))
        self._rows_in_file += len(updates)

    def flush(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        with writing(self._files.temporary):
            self._file.flush()

    def commit(self, subscriptions: IdColumn, messages: IdColumn) -> None:
        with writing(self._files.temporary):
            self._close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._files.abandon()

    def _close(self) -> None:
        self._file.close()
        self.bytes_written += self._files.publish()


def _json_rows(updates: UpdateBatch, subscriptions: IdColumn, messages: IdColumn) -> list[dict]:
    rows = zip(
        updates.as_of.tolist(),
        subscriptions.encode(updates.number).to_pylist(),
        messages.encode(updates.seq).to_pylist(),
        updates.seq.tolist(),
        updates.change.tolist(),
        updates.score.tolist(),
        strict=True,
    )
    names = UPDATE_SCHEMA.names
    return [
        # JSON has no NaN: msgspec writes null, which is what the score of a match is.
        dict(zip(names, (as_of, subscription, message, seq, CHANGES[change], score), strict=True))
        for as_of, subscription, message, seq, change, score in rows
    ]


class _Parts:
    """Numbered files that are written under a hidden name and take their own when they are whole."""

    def __init__(self, directory: Path, suffix: str):
        self.directory = directory
        self.suffix = suffix
        self.number = -1
        self.temporary = directory

    def next(self) -> Path:
        self.number += 1
        self.temporary = self.directory / f".part-{self.number:05d}.{self.suffix}.tmp"
        return self.temporary

    def publish(self) -> int:
        return publish(self.temporary, self.directory / f"part-{self.number:05d}.{self.suffix}")

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            if self.temporary != self.directory:
                self.temporary.unlink(missing_ok=True)


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer for one file; what it stores does not depend on when or where it is written."""
    return pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, store_schema=False)


def publish(temporary: Path, path: Path) -> int:
    """Force a closed file to disk, give it its name, and return its size in bytes."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        size_bytes = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    return size_bytes


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn whatever fails inside into a DeliveryError that names the file."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DeliveryError(
            f"{path}: cannot be written ({reason}); free space or choose another output directory, and run again"
        ) from error
