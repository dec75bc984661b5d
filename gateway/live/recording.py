"""The end of a live stream, whose cost does not grow with its log, and the log as the tables of a run over files.

At its end a stream notes in `run.json` how far its log goes. What reads the folder converts the log (`write_tables`):
messages as the ETL writes them, changes as a file of subscriptions, and the boundaries. `skyray verify`, `show` and
`explain` read them as of any run, and `skyray run --batch log:PATH` runs them again.
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute

from gateway.live.admission import Admission
from gateway.live.vocabulary_files import write_table, write_vocabulary
from gateway.live.write_ahead_log import WriteAheadLog, start_of
from gateway.shell.terminal import writing_to
from matching.attributes import ATTRIBUTE, MISSING_KEY, TYPES
from matching.model import Names
from matching.text import Vocabulary
from matching.validate import DELETE
from matching.window import NO_FLOOR
from matching.words.message_words import MessageTerms, weigh
from spark_etl.schemas import ATTRIBUTES_VERSION, FORMAT_VERSION, message_schema
from spouts.columns import AHEAD, SIDES
from spouts.messages import MessageBlock
from spouts.parsed import block_of, objects_of
from topology.core.checkpoint.storage import LocalDisk, written

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

BOUNDARIES = "boundaries.parquet"
#: Fields of `run.json` that say where tables are: of a stream there are none before they are read.
_PATHS = ("messages", "subscriptions", "boundaries")
#: Messages of a file, about.
_CHUNK = 50_000


def record(wal: WriteAheadLog, admission: Admission, state: str, summary: Mapping[str, Any]) -> None:
    """Write `run.json` with `summary` and how far the log goes. The log is not read. Raises DeliveryError."""
    with writing_to(wal.folder):
        facts = {**facts_of(wal, admission), "log_bytes": wal.size_bytes}
        no_paths = {name: value for name, value in summary.items() if name not in _PATHS}
        wal.run.write_report(state, {**no_paths, **facts})


def write_tables(wal: WriteAheadLog, admission: Admission, out: Path) -> None:
    """Write messages, subscriptions and boundaries of the replayed log to a folder. O(bytes of the log)."""
    _write_rows(wal, admission, out)
    ends = {"batch": np.arange(len(wal.ends)), "last_seq": np.array(wal.ends, np.int64)}
    by_clock = pa.array([wal.marks.get(last_seq) for last_seq in wal.ends], pa.int64())
    write_table(out, BOUNDARIES, pa.table({**ends, "clock_us": by_clock}))


def facts_of(wal: WriteAheadLog, admission: Admission) -> dict[str, Any]:
    """The fields of `run.json` (`gateway.runs.reader`) in which a live stream differs from a run over files."""
    space = admission.space
    return {
        "live": wal.settings,
        "window": wal.settings["window"],
        "world": f"{space.west!r},{space.south!r},{space.east!r},{space.north!r}",
        "projection": space.projection,
        "distance": space.distance,
        "kind_columns": sorted({column for kind in admission.kinds_met for column in kind.columns}),
        "messages_taken": wal.next_seq - len(wal.marks),
        "clock_marks": len(wal.marks),
        "limit": None,
        "settings": {"out": str(wal.folder), "sink": "parquet"},
    }


def paths_of(tables: Path) -> dict[str, Any]:
    """The fields of `run.json` that say where the tables are which `write_tables` wrote."""
    return {
        "messages": str((tables / "etl").resolve()),
        "subscriptions": [str((tables / "subscriptions.jsonl").resolve())],
        "boundaries": {"logged": str((tables / BOUNDARIES).resolve())},
    }


def _write_rows(wal: WriteAheadLog, admission: Admission, out: Path) -> None:
    """Write `etl/` and `subscriptions.jsonl`."""
    # Subscriptions after the last message: their new terms come with the next batch, and would not be in this folder.
    # Not logged: a later life admits them again, with the weight that they get here.
    admission.new_terms.admit((), wal.next_seq - len(wal.marks))
    etl, vocabulary = out / "etl", admission.vocabulary
    shutil.rmtree(etl, ignore_errors=True)
    (etl / "messages").mkdir(parents=True)
    write_vocabulary(etl, vocabulary)
    messages = _Messages(etl / "messages", vocabulary)
    with written(LocalDisk(out), "subscriptions.jsonl", ".subscriptions.tmp") as changes:
        for taken in wal.records():
            for at, line in taken.changes_from(messages.seq):
                row = msgspec.json.decode(line)
                changes.write(msgspec.json.encode(row.get("subscribe", row) | {"at": at}) + b"\n")
            if taken.messages:
                messages.take(*block_of(taken, messages.seq, admission.space, wal.log))
    messages.close()
    facts = _manifest_of(start_of(wal.folder, wal.settings), admission, messages.valued)
    with written(LocalDisk(etl), "manifest.json", ".manifest.tmp") as file:
        file.write(json.dumps(facts | {"kept": messages.seq, "live": True}).encode())


def _manifest_of(start: Path, admission: Admission, valued: Mapping[str, int]) -> dict[str, Any]:
    """The ETL's facts of the words and of the world, with those of the stream's attributes."""
    space, attributes = admission.space, admission.vocabulary.attributes.attributes
    manifest = json.loads((start / "manifest.json").read_text())
    copied = ("format", "total_tokens", "stop_terms", "options")
    facts = {name: manifest[name] for name in copied if name in manifest}
    facts |= {"format_version": FORMAT_VERSION, "extent": [space.west, space.south, space.east, space.north]}
    if attributes:
        named = [{"name": one.name, "type": TYPES[one.type], "messages": valued[one.name]} for one in attributes]
        facts |= {"format_version": ATTRIBUTES_VERSION, "attributes": named}
    return facts


class _Messages:
    """Writes messages in the columns of the ETL, and `ahead`, which admission has decided; files of like size.

    Attributes
    ----------
    seq : int
        Of the next message.
    valued : Counter
        Messages that have a value of an attribute, by its name.
    """

    def __init__(self, folder: Path, vocabulary: Vocabulary):
        self.seq = 0
        self.valued = Counter(dict.fromkeys((one.name for one in vocabulary.attributes.attributes), 0))
        self._folder, self._vocabulary = folder, vocabulary
        self._schema = message_schema(vocabulary.attributes).append(pa.field(AHEAD, pa.bool_(), nullable=False))
        self._waiting: list[pa.Table] = []
        self._rows = self._parts = 0

    def take(self, block: MessageBlock, terms: MessageTerms) -> None:
        """Take the messages of a batch."""
        columns = self._own(block) | self._weighed(terms) | self._attributes(block)
        arrays = [columns[field.name].cast(field.type) for field in self._schema]
        self._waiting.append(pa.Table.from_arrays(arrays, schema=self._schema))
        self.seq += len(block)
        self._rows += len(block)
        if self._rows >= _CHUNK:
            self._write()

    def close(self) -> None:
        """Write the rest; there is one file at least."""
        if self._waiting or not self._parts:
            self._write()

    def _write(self) -> None:
        table = pa.concat_tables([self._schema.empty_table(), *self._waiting]).combine_chunks()
        write_table(self._folder, f"part-{self._parts:05d}.parquet", table)
        self._parts += 1
        self._waiting, self._rows = [], 0

    def _own(self, block: MessageBlock) -> dict[str, pa.Array]:
        rows = len(block)
        none = np.zeros(rows, np.bool_)
        deleted, ahead = (none if column is None else column for column in (block.deleted, block.ahead))
        sides = np.full((rows, 4), np.nan) if block.sides is None else block.sides
        return {
            "seq": pa.array(np.arange(self.seq, self.seq + rows)),
            "message_id": _texts(block.ids),
            "text": _texts(block.texts),
            "object_id": pa.array(objects_of(block).names, pa.string()),
            "op": pa.array(deleted.astype(np.int64) * DELETE),
            "lon": pa.array(block.lon),
            "lat": pa.array(block.lat),
            "event_time": pa.array(block.time_us, mask=block.time_us == NO_FLOOR),
            AHEAD: pa.array(ahead),
            **{side: pa.array(column, mask=np.isnan(column)) for side, column in zip(SIDES, sides.T, strict=True)},
        }

    def _weighed(self, terms: MessageTerms) -> dict[str, pa.Array]:
        vectors = weigh(terms, self._vocabulary.idf)
        offsets = pa.array(vectors.offsets, pa.int32())
        ids = vectors.terms - self._vocabulary.first_id  # in the file ids begin with 0
        columns = {"terms": ids, "counts": vectors.counts, "weights": vectors.weights}
        return {name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in columns.items()}

    def _attributes(self, block: MessageBlock) -> dict[str, pa.Array]:
        attributes = self._vocabulary.attributes.attributes
        found = {}
        for one, column in zip(attributes, block.attributes or [None] * len(attributes), strict=True):
            name = ATTRIBUTE + one.name
            if column is None:  # a mark
                found[name] = pa.nulls(len(block), self._schema.field(name).type)
            elif isinstance(column, Names):
                found[name] = _texts(column, np.diff(column.offsets) == 0)
            else:
                missing = column == MISSING_KEY if column.dtype == np.int64 else np.isnan(column)
                found[name] = pa.array(column, mask=missing)
            self.valued[one.name] += len(block) - found[name].null_count
        return found


def _texts(names: Names, missing: np.ndarray | None = None) -> pa.Array:
    """Texts as Arrow has them; `missing`, bool[n], are null."""
    buffers = pa.py_buffer(names.offsets.astype(np.int64)), pa.py_buffer(names.data)
    texts = pa.LargeStringArray.from_buffers(len(names.offsets) - 1, *buffers)
    return texts if missing is None else pc.if_else(pa.array(missing), None, texts)
