"""Where updates end: id columns that turn numbers back into names, the digest of a run, and the files.

`bolts.delivery` decides what is written and when; this module knows how. Updates come as numbers (subscription,
seq); `IdColumn` holds the names of one of the two, as the flat arrays Arrow takes without a copy, and a 64-bit hash of
each name for the digest.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from matching.errors import DeliveryError, TopologyError
from matching.model import CHANGES, Int64, Names, UpdateBatch, concatenate, empty

UInt64 = NDArray[np.uint64]

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

_MASK = (1 << 64) - 1
_LANE_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_FINAL = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
#: Rows mixed at a time: the temporaries stay in the second-level cache.
_DIGEST_ROWS = 16_384


def hash_names(names: Names) -> UInt64:
    """xxh64 of each name's UTF-8 bytes. O(total bytes), about 0.2 us a name."""
    data, cuts = names.data.tobytes(), names.offsets.tolist()
    digest = xxhash.xxh64_intdigest
    hashes = [digest(data[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    return np.array(hashes, np.uint64)


class Digest:
    """Order-independent digest of updates: two runs that told the same have the same one, in whatever order.

    Every update is mixed into two 64-bit lanes, which are summed; so the digest of a whole is the sum of those of
    its parts, and an update told twice shows.
    """

    def __init__(self) -> None:
        self.lanes = [0, 0]

    def add(self, updates: UpdateBatch, subscription_hash: UInt64, message_hash: UInt64) -> None:
        """Add updates whose names have these hashes (`hash_names`, one for each update). O(n), about 50 ns a row."""
        score = updates.score + 0.0  # minus zero is zero
        score[np.isnan(score)] = np.nan
        columns = (
            updates.as_of.view(np.uint64),
            subscription_hash,
            updates.seq.view(np.uint64),
            message_hash,
            updates.change.astype(np.uint64),
            score.view(np.uint64),
        )
        for first in range(0, len(updates), _DIGEST_ROWS):
            rows = slice(first, first + _DIGEST_ROWS)
            for lane in (0, 1):
                mixed = np.full(columns[0][rows].shape, _LANE_SEEDS[lane], np.uint64)
                for column in columns:
                    mixed ^= column[rows]
                    mixed *= _ODD[lane]
                    mixed ^= mixed >> np.uint64(29)
                mixed *= _FINAL[lane]
                mixed ^= mixed >> np.uint64(32)
                self.lanes[lane] = (self.lanes[lane] + int(mixed.sum(dtype=np.uint64))) & _MASK

    def hex(self) -> str:
        """32 hexadecimal digits."""
        return "".join(f"{lane:016x}" for lane in self.lanes)


class IdColumn:
    """Names under consecutive numbers, growing at the end and losing what is no longer needed at the front.

    Parameters
    ----------
    what : str
        What the names belong to, for error messages.
    keep_names : bool
        False keeps the hashes alone, for a sink that writes nothing.

    Notes
    -----
    Numbers that outlive the front are carried in a side table (`drop_before`). 8 bytes a name for the hash, 8 and its
    UTF-8 bytes for the name. Amortised O(1) a name.
    """

    def __init__(self, what: str, keep_names: bool = True):
        self.what = what
        self.keep_names = keep_names
        self.first = 0  # number of the first name in the arrays
        self.end = 0  # number of the next name
        self._hashes = np.zeros(1024, np.uint64)
        self._offsets = np.zeros(1025, np.int64)
        self._data = np.zeros(1024, np.uint8)
        self._kept_numbers = np.zeros(0, np.int64)
        self._kept_hashes = np.zeros(0, np.uint64)
        self._kept_names: pa.Array = pa.array([], pa.large_string())

    def append(self, names: Names) -> None:
        """Add names under the next numbers."""
        count, used = len(names.offsets) - 1, self.end - self.first
        self._hashes = _grown(self._hashes, used, used + count)
        self._hashes[used : used + count] = hash_names(names)
        if self.keep_names:
            filled, fresh = int(self._offsets[used]), int(names.offsets[-1] - names.offsets[0])
            self._offsets = _grown(self._offsets, used + 1, used + count + 1)
            self._data = _grown(self._data, filled, filled + fresh)
            self._offsets[used + 1 : used + count + 1] = names.offsets[1:] + (filled - names.offsets[0])
            self._data[filled : filled + fresh] = names.data[names.offsets[0] : names.offsets[-1]]
        self.end += count

    def hashes(self, numbers: Int64) -> UInt64:
        """Hash of each number's name. Raises TopologyError for a number that has none."""
        if numbers.shape[0] == 0:
            return np.zeros(0, np.uint64)
        if numbers.max() >= self.end or numbers.min() < 0:
            raise self._unknown(numbers[(numbers >= self.end) | (numbers < 0)])
        if numbers.min() >= self.first:
            return self._hashes[numbers - self.first]
        recent = numbers >= self.first
        hashes = np.empty(numbers.shape[0], np.uint64)
        hashes[recent] = self._hashes[numbers[recent] - self.first]
        hashes[~recent] = self._kept_hashes[self._kept_rows(numbers[~recent])]
        return hashes

    def encode(self, numbers: Int64) -> pa.DictionaryArray:
        """Names of numbers, as codes into a dictionary of those that occur. O(n + span of the numbers)."""
        lowest = int(numbers.min()) if numbers.shape[0] else 0
        span = (int(numbers.max()) - lowest + 1) if numbers.shape[0] else 0
        if span <= 8 * numbers.shape[0] + 65_536:
            # Counting instead of sorting: numbers are dense or nearly so.
            occurs = np.zeros(span, bool)
            occurs[numbers - lowest] = True
            distinct = np.flatnonzero(occurs) + lowest
            codes = np.cumsum(occurs, dtype=np.int32)[numbers - lowest] - np.int32(1)
        else:
            distinct, inverse = np.unique(numbers, return_inverse=True)
            codes = inverse.astype(np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(codes), self.names(distinct).cast(pa.string()))

    def names(self, numbers: Int64) -> pa.Array:
        """Names of ascending numbers, as a large string array. Raises TopologyError for a number that has none."""
        split = int(np.searchsorted(numbers, self.first))
        if numbers.shape[0] and (numbers[-1] >= self.end or numbers[0] < 0):
            raise self._unknown(numbers[(numbers >= self.end) | (numbers < 0)])
        used = self.end - self.first
        view = pa.LargeStringArray.from_buffers(used, pa.py_buffer(self._offsets), pa.py_buffer(self._data))
        recent = view.take(pa.array(numbers[split:] - self.first))
        if not split:
            return recent
        return pa.concat_arrays([self._kept_names.take(pa.array(self._kept_rows(numbers[:split]))), recent])

    def drop_before(self, number: int, still_needed: Int64) -> None:
        """Forget names under numbers below `number`, except `still_needed` (ascending). O(names that stay)."""
        kept = still_needed[still_needed < number]
        kept_hashes = self.hashes(kept)
        if self.keep_names:
            self._kept_names = self.names(kept)
        self._kept_numbers, self._kept_hashes = kept, kept_hashes
        dropped, used = number - self.first, self.end - self.first
        if dropped <= 0:
            return
        self._hashes = self._hashes[dropped:used].copy()
        if self.keep_names:
            start = self._offsets[dropped]
            self._data = self._data[start : self._offsets[used]].copy()
            self._offsets = self._offsets[dropped : used + 1] - start
        self.first = number

    @property
    def nbytes(self) -> int:
        """Memory of the names and hashes."""
        kept = self._kept_numbers.nbytes + self._kept_hashes.nbytes + self._kept_names.nbytes
        return self._hashes.nbytes + self._offsets.nbytes + self._data.nbytes + kept

    def _kept_rows(self, numbers: Int64) -> Int64:
        rows = np.searchsorted(self._kept_numbers, numbers)
        inside = rows < self._kept_numbers.shape[0]
        found = inside.copy()
        found[inside] = self._kept_numbers[rows[inside]] == numbers[inside]
        if not found.all():
            raise self._unknown(numbers[~found])
        return rows

    def _unknown(self, numbers: Int64) -> TopologyError:
        return TopologyError(
            f"delivery: {self.what} {int(numbers[0])} is named, but its id is not known here (known: {self.first} to "
            f"{self.end - 1}); it was never announced, or was given up because no update should name it any more"
        )


def _grown(array: np.ndarray, used: int, wanted: int) -> np.ndarray:
    """The array, or a copy of its first `used` entries with room for `wanted`, at least doubled."""
    if wanted <= array.shape[0]:
        return array
    grown = np.zeros(max(wanted, 2 * array.shape[0]), array.dtype)
    grown[:used] = array[:used]
    return grown


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


def no_updates() -> UpdateBatch:
    """An `UpdateBatch` without rows."""
    return empty(UpdateBatch)
