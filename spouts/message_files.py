"""The files of a folder of messages, in the columns of the ETL: its Parquet files, or the log of a live stream.

A file comes in groups of rows: the row groups of Parquet, or records of the log.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from matching.attributes import CATEGORIES, CATEGORY, MISSING_KEY, NUMBER, TEXT, TIME
from matching.model import TERM, Names
from matching.pieces import NAMED_ID
from matching.validate import DELETE
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR
from matching.words.message_words import weigh
from spouts.columns import AHEAD, ORDER, SIDES, TYPES, damaged, first_line
from spouts.history import LOG, History, history_of
from spouts.log import Record
from spouts.manifest import world_of
from spouts.messages import AttributeColumn, CategoryLists, MessageBlock
from spouts.parsed import block_of, objects_of
from spouts.subscriptions import logged_vocabulary
from topology.core.places import arrow_file, place

_LISTS = {"terms": pa.int32(), "counts": pa.int32(), "weights": pa.float32()}
_ATTRIBUTE_TYPES = {
    NUMBER: pa.float64(),
    CATEGORY: pa.large_string(),
    TIME: pa.int64(),
    CATEGORIES: pa.list_(pa.string()),
    TEXT: pa.large_string(),
}


class MessageFile(Protocol):
    """Messages in groups of rows.

    path : path
    schema : pa.Schema
    sizes : sequence of int    rows of each group
    """

    path: Path
    schema: pa.Schema
    sizes: Sequence[int]

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Columns of a group, in this order; texts are UTF-8.

        Raises
        ------
        InputError, CheckpointError
            If they cannot be read.
        """
        ...

    def close(self) -> None: ...


def list_message_files(directory: str | os.PathLike[str]) -> list[Path]:
    """The message files of a folder in the order of seq, which is that of their names; the log of a live stream."""
    if history := history_of(directory):
        return [history.log]
    # A name with a leading dot or underscore is that of an unfinished file.
    return sorted(path for path in place(directory, "messages").glob("*.parquet") if path.name[0] not in "._")


def count_words(directory: str | os.PathLike[str]) -> int | None:
    """How many words the terms of a folder's messages are of; None of one without a vocabulary. Raises InputError."""
    if history := history_of(directory):
        return len(_vocabulary_of(history))
    path = place(directory, "vocabulary.parquet")
    if not path.exists():
        return None
    try:
        return pq.read_metadata(arrow_file(path)).num_rows
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, f"cannot be read as Parquet ({first_line(error)})") from error


def open_message_file(path: Path) -> MessageFile:
    """Open one of `list_message_files`. Raises InputError if it cannot be read."""
    history = history_of(path.parents[len(LOG.parts) - 1]) if path.name == LOG.name else None
    return ParquetMessages(path) if history is None else LoggedColumns(history)


@contextmanager
def opened(path: Path) -> Iterator[MessageFile]:
    """`open_message_file` as a block, at whose end it is closed."""
    file = open_message_file(path)
    try:
        yield file
    finally:
        file.close()


class ParquetMessages:
    """A Parquet file of the ETL; see `MessageFile`.

    Attributes
    ----------
    parquet : pq.ParquetFile
    """

    def __init__(self, path: Path):
        self.path = path
        with self._reading("cannot be opened as Parquet"):
            self.parquet = pq.ParquetFile(arrow_file(path))
        self.schema = self.parquet.schema_arrow
        metadata = self.parquet.metadata
        self.sizes: Sequence[int] = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """See `MessageFile`."""
        with self._reading(f"row group {group} cannot be read"):
            table = self.parquet.read_row_group(group, list(columns), use_threads=False).select(list(columns))
            table.validate(full=True)  # raises for texts that are not UTF-8
            return table

    def close(self) -> None:
        """See `MessageFile`."""
        self.parquet.close()

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise damaged(self.path, f"{what} ({first_line(error)})") from error


class LoggedColumns:
    """The log of a live stream; see `MessageFile`. It has `ahead`, which admission has decided, and texts."""

    def __init__(self, history: History):
        self.path = history.log
        self._history = history
        self.sizes: Sequence[int] = history.sizes
        settings = history.settings
        self._space = world_of(history.start, settings["world"], settings["projection"], distance=settings["distance"])

    @property
    def _vocabulary(self) -> Vocabulary:
        return _vocabulary_of(self._history)

    @cached_property
    def schema(self) -> pa.Schema:
        """See `MessageFile`."""
        attributes = self._vocabulary.attributes.attributes
        more = {"counts": pa.list_(pa.int32()), "text": pa.large_string()}
        named = {one.column: _ATTRIBUTE_TYPES[one.type] for one in attributes}
        return pa.schema([*(TYPES | more | named).items()])

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """See `MessageFile`."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        batches = [self._batch(record, first, schema) for first, record in self._history.batches(group)]
        return pa.Table.from_batches(batches).combine_chunks()

    def close(self) -> None:
        """See `MessageFile`: nothing stays open."""

    def _batch(self, record: Record, first: int, schema: pa.Schema) -> pa.RecordBatch:
        block, terms = block_of(record, first, self._space, self.path)
        found = {name: _COLUMNS[name](block) for name in schema.names if name in _COLUMNS}
        found["seq"] = pa.array(np.arange(first, first + len(block)))
        if wanted := _LISTS.keys() & set(schema.names):
            vectors = weigh(terms, self._vocabulary.idf)
            vectors = vectors._replace(terms=vectors.terms - self._vocabulary.first_id)  # as of `load_vocabulary`
            offsets = pa.array(vectors.offsets, pa.int32())
            for name in wanted:
                found[name] = pa.ListArray.from_arrays(offsets, pa.array(getattr(vectors, name), _LISTS[name]))
        if ORDER in schema.names:
            first, ids = self._vocabulary.first_id, terms.ids
            ids = np.where(ids >= 0, ids - first, np.where(ids <= NAMED_ID, ids + first, ids)).astype(TERM)
            found[ORDER] = pa.ListArray.from_arrays(pa.array(terms.offsets, pa.int32()), pa.array(ids))
        named = [one.column for one in self._vocabulary.attributes.attributes]
        found |= dict(zip(named, map(_values, block.attributes), strict=False))
        arrays = [
            found[name] if name in found else pa.nulls(len(block), schema.field(name).type) for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema.names)


@lru_cache(maxsize=2)
def _vocabulary_of(history: History) -> Vocabulary:
    """The vocabulary of a log, which is only read."""
    return logged_vocabulary(history)


def _sides(block: MessageBlock, side: int) -> pa.Array:
    """One side of rectangles, null of points."""
    if block.sides is None:
        return pa.nulls(len(block), pa.float64())
    column = block.sides[:, side]
    return pa.array(column, mask=np.isnan(column))


def _mask(found: np.ndarray | None, block: MessageBlock) -> np.ndarray:
    return np.zeros(len(block), np.bool_) if found is None else found


def _values(column: AttributeColumn) -> pa.Array:
    """Values of an attribute, null where one is missing."""
    if isinstance(column, CategoryLists):
        return pa.array([members or None for members in column.lists()], _ATTRIBUTE_TYPES[CATEGORIES])
    if isinstance(column, Names):
        return _texts(column, np.diff(column.offsets) == 0)
    return pa.array(column, mask=column == MISSING_KEY if column.dtype == np.int64 else np.isnan(column))


def _texts(names: Names, missing: np.ndarray | None = None) -> pa.Array:
    """Texts as Arrow has them; `missing`, bool[n], are null."""
    rows = len(names.offsets) - 1
    there = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    buffers = pa.py_buffer(names.offsets.astype(np.int64)), pa.py_buffer(names.data)
    return pa.LargeStringArray.from_buffers(rows, *buffers, there)


#: Columns of a block, as the ETL has them.
_COLUMNS: dict[str, Callable[[MessageBlock], pa.Array]] = {
    "message_id": lambda block: _texts(block.ids),
    "text": lambda block: _texts(block.texts),
    "object_id": lambda block: pa.array(objects_of(block).names, pa.string()),
    "op": lambda block: pa.array(_mask(block.deleted, block).astype(np.int64) * DELETE),
    "lon": lambda block: pa.array(block.lon),
    "lat": lambda block: pa.array(block.lat),
    "event_time": lambda block: pa.array(block.time_us, TYPES["event_time"], mask=block.time_us == NO_FLOOR),
    AHEAD: lambda block: pa.array(_mask(block.ahead, block)),
    **{side: partial(_sides, side=number) for number, side in enumerate(SIDES)},
}
