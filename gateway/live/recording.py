"""The end of a live stream, whose cost does not grow with its log, and the log as the tables of a run over files.

At its end a stream notes in `run.json` how far its log goes. What reads the folder converts the log (`write_tables`):
messages as the ETL writes them, changes as a file of subscriptions, and the boundaries. `skyray verify`, `show` and
`explain` read them as of any run, and `skyray run --batch log:PATH` runs them again.
Used by `gateway.commands.live` and `gateway.commands.serve`; read on in `gateway.live.tables` and
`gateway.live.checkpointed`, which convert.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from gateway.live.admission import Admission
from gateway.live.vocabulary_files import write_table, write_vocabulary
from gateway.live.write_ahead_log import WriteAheadLog, start_of
from gateway.shell.terminal import writing_to
from matching.attributes import ATTRIBUTE, TYPES
from matching.text import Vocabulary
from matching.validate import ParsedMessage
from matching.words.message_words import MessageWords
from spark_etl.schemas import ATTRIBUTES_VERSION, FORMAT_VERSION, message_schema
from spouts.columns import AHEAD
from spouts.parsed import messages_of, words_of
from topology.core.checkpoint.storage import LocalDisk, written

BOUNDARIES = "boundaries.parquet"
#: Fields of `run.json` that say where tables are: of a stream there are none before they are read.
_PATHS = ("messages", "subscriptions", "boundaries")
#: Columns that a message has under the same name.
_OWN = ("message_id", "text", "object_id", "op", "lon", "lat", "west", "south", "east", "north")
#: Messages converted to columns at a time.
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
    first_id = vocabulary.most_terms  # lowest id of a term that was known as of a record
    shutil.rmtree(etl, ignore_errors=True)
    (etl / "messages").mkdir(parents=True)
    write_vocabulary(etl, vocabulary)
    messages = _Messages(etl / "messages", vocabulary)
    with written(LocalDisk(out), "subscriptions.jsonl", ".subscriptions.tmp") as changes:
        for taken in wal.records():
            first_id -= len(taken.admitted.terms)
            for at, line in taken.changes_from(messages.seq):
                row = msgspec.json.decode(line)
                changes.write(msgspec.json.encode(row.get("subscribe", row) | {"at": at}) + b"\n")
            of_batch = messages_of(taken, messages.seq, admission.space, vocabulary.attributes, wal.log)
            messages.take(of_batch, first_id)
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
    """Writes messages in the columns of the ETL, and `ahead`, which admission has decided; files of equal size.

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
        self._folder, self._vocabulary, self._words = folder, vocabulary, MessageWords(vocabulary)
        self._schema = message_schema(vocabulary.attributes).append(pa.field(AHEAD, pa.bool_(), nullable=False))
        self._parsed: list[ParsedMessage] = []
        self._first_ids: list[int] = []
        self._parts = 0

    def take(self, parsed: Iterable[ParsedMessage], first_id: int) -> None:
        """Take the messages of a batch, with which no term below `first_id` was known."""
        before = len(self._parsed)
        self._parsed += parsed
        taken = len(self._parsed) - before
        self._first_ids += [first_id] * taken
        self.seq += taken
        if len(self._parsed) >= _CHUNK:
            self._write()

    def close(self) -> None:
        """Write the rest; there is one file at least."""
        if self._parsed or not self._parts:
            self._write()

    def _write(self) -> None:
        columns = self._own() | self._weighed() | self._attributes()
        table = pa.Table.from_arrays([columns[field.name] for field in self._schema], schema=self._schema)
        write_table(self._folder, f"part-{self._parts:05d}.parquet", table)
        self._parts += 1
        self._parsed, self._first_ids = [], []

    def _own(self) -> dict[str, Any]:
        rows = len(self._parsed)
        named = {name: [getattr(one, name) for one in self._parsed] for name in (*_OWN, AHEAD)}
        named["seq"] = list(range(self.seq - rows, self.seq))
        named["event_time"] = [one.event_time_us for one in self._parsed]
        return {name: pa.array(values, self._schema.field(name).type) for name, values in named.items()}

    def _weighed(self) -> dict[str, Any]:
        """Terms, counts and weights: of the terms that were known with the batch of each message."""
        vectors = self._words.vectors(self._words.cut(list(map(words_of, self._parsed))), self._first_ids)
        found = {}
        for name in ("terms", "counts", "weights"):
            field = self._schema.field(name)
            values = getattr(vectors, name)
            if name == "terms":
                values = values - self._vocabulary.first_id  # in the file ids begin with 0
            lists = pa.ListArray.from_arrays(
                pa.array(vectors.offsets, pa.int32()), pa.array(values, field.type.value_type)
            )
            found[name] = lists.cast(field.type)
        return found

    def _attributes(self) -> dict[str, Any]:
        found = {}
        for place, one in enumerate(self._vocabulary.attributes.attributes):
            values = [
                parsed.attributes[place] if parsed.attributes else None for parsed in self._parsed
            ]  # a mark: none
            self.valued[one.name] += sum(value is not None for value in values)
            name = ATTRIBUTE + one.name
            found[name] = pa.array(values, self._schema.field(name).type)
        return found
