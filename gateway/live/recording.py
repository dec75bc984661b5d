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
from collections.abc import Mapping
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
from spark_etl.schemas import ATTRIBUTES_VERSION, FORMAT_VERSION, message_schema
from spouts.columns import AHEAD
from spouts.parsed import messages_of, vector_of
from topology.core.checkpoint.storage import LocalDisk, written

BOUNDARIES = "boundaries.parquet"
#: Fields of `run.json` that say where tables are: of a stream there are none before they are read.
_PATHS = ("messages", "subscriptions", "boundaries")
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
    etl, source = out / "etl", start_of(wal.folder, wal.settings)
    # Subscriptions after the last message: their new terms come with the next batch, and would not be in this folder.
    # Not logged: a later life admits them again, with the weight that they get here.
    admission.new_terms.admit((), wal.next_seq - len(wal.marks))
    vocabulary = admission.vocabulary
    columns = message_schema(vocabulary.attributes).append(pa.field(AHEAD, pa.bool_(), nullable=False))
    valued = Counter(dict.fromkeys((one.name for one in vocabulary.attributes.attributes), 0))
    first_id = vocabulary.most_terms  # lowest id of a term that was known as of a record
    shutil.rmtree(etl, ignore_errors=True)
    (etl / "messages").mkdir(parents=True)
    write_vocabulary(etl, vocabulary)
    seq, chunk, part = 0, [], 0
    with written(LocalDisk(out), "subscriptions.jsonl", ".subscriptions.tmp") as changes:
        for taken in wal.records():
            first_id -= len(taken.admitted.terms)
            for at, line in taken.changes_from(seq):
                row = msgspec.json.decode(line)
                changes.write(msgspec.json.encode(row.get("subscribe", row) | {"at": at}) + b"\n")
            for parsed in messages_of(taken, seq, admission.space, vocabulary.attributes, wal.log):
                chunk.append({"seq": seq, **_columns_of(parsed, vocabulary, first_id)})
                named = zip(vocabulary.attributes.attributes, parsed.attributes, strict=False)  # a mark has none
                valued.update(one.name for one, value in named if value is not None)
                seq += 1
            if len(chunk) >= _CHUNK:
                part, chunk = _write_messages(etl, chunk, columns, part), []
    if chunk or not part:
        _write_messages(etl, chunk, columns, part)
    space = admission.space
    manifest = json.loads((source / "manifest.json").read_text())
    copied = ("format", "total_tokens", "stop_terms", "options")
    summary = {name: manifest[name] for name in copied if name in manifest}
    summary["format_version"] = FORMAT_VERSION
    if len(vocabulary.attributes):
        named = [
            {"name": one.name, "type": TYPES[one.type], "messages": valued[one.name]}
            for one in vocabulary.attributes.attributes
        ]
        summary |= {"format_version": ATTRIBUTES_VERSION, "attributes": named}
    extent = [space.west, space.south, space.east, space.north]
    with written(LocalDisk(etl), "manifest.json", ".manifest.tmp") as file:
        file.write(json.dumps({**summary, "kept": seq, "extent": extent, "live": True}).encode())


def _columns_of(parsed: ParsedMessage, vocabulary: Vocabulary, first_id: int) -> dict[str, Any]:
    """A message as columns, but for its seq; its terms are those that were known with its batch."""
    vector = vector_of(parsed, vocabulary, first_id)
    vector = vector._replace(terms=vector.terms - vocabulary.first_id)  # in the file ids begin with 0
    own = ("message_id", "text", "object_id", "op", "lon", "lat", "west", "south", "east", "north", "ahead")
    weighed = {name: getattr(vector, name).tolist() for name in ("terms", "counts", "weights")}
    named = zip(vocabulary.attributes.attributes, parsed.attributes, strict=False)
    weighed |= {ATTRIBUTE + one.name: value for one, value in named}
    return {**{name: getattr(parsed, name) for name in own}, **weighed, "event_time": parsed.event_time_us}


def _write_messages(etl: Path, rows: list[dict[str, Any]], columns: pa.Schema, part: int) -> int:
    """Write a file of messages with these columns: the ETL's, and `ahead`, which admission has decided."""
    write_table(etl / "messages", f"part-{part:05d}.parquet", pa.Table.from_pylist(rows, columns))
    return part + 1
