"""What a live stream leaves at its end: the folder of a run over files, made of the log.

Messages as the ETL writes them, changes as a file of subscriptions has them, and the boundaries that were decided. So
`skyray verify`, `show` and `explain` read it like any other, and `skyray run --batch log:PATH` can run it again.
Used by `gateway.commands.live`.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gateway.live.admission import Admission
from gateway.live.write_ahead_log import WriteAheadLog
from gateway.shell.terminal import writing_to
from matching.validate import ParsedMessage
from spark_etl.schemas import MESSAGE_SCHEMA
from spouts.columns import AHEAD
from spouts.log import read_records
from spouts.parsed import messages_of, vector_of
from topology.core.checkpoint.storage import LocalDisk, written

BOUNDARIES = "boundaries.parquet"
#: Messages that are turned into columns at a time.
_CHUNK = 50_000
#: What the ETL writes, and what a live stream has decided besides.
_SCHEMA = MESSAGE_SCHEMA.append(pa.field(AHEAD, pa.bool_(), nullable=False))


def record(journal: WriteAheadLog, gate: Admission, state: str, told: Mapping[str, Any]) -> None:
    """Write the inputs of the run, and `run.json` with `told`. O(bytes of the log). Raises DeliveryError."""
    with writing_to(journal.folder):
        messages = _write_inputs(journal, gate)
        ends = {"batch": np.arange(len(journal.ends)), "last_seq": np.array(journal.ends, np.int64)}
        by_clock = pa.array([journal.marks.get(last_seq) for last_seq in journal.ends], pa.int64())
        _write(journal.folder, BOUNDARIES, pa.table({**ends, "clock_us": by_clock}))
        journal.run.write_report(state, {**told, **_facts(journal, gate, messages)})


def _write_inputs(journal: WriteAheadLog, gate: Admission) -> int:
    """`etl/` and `subscriptions.jsonl`; how many messages."""
    etl, source = journal.folder / "etl", Path(journal.settings["vocabulary"])
    shutil.rmtree(etl, ignore_errors=True)
    (etl / "messages").mkdir(parents=True)
    shutil.copy(source / "vocabulary.parquet", etl)
    seq, chunk, part = 0, [], 0
    with open(journal.folder / "subscriptions.jsonl", "wb") as changes:
        for taken, _, _ in read_records(journal.log):
            for at, line in taken.changes_from(seq):
                row = msgspec.json.decode(line)
                changes.write(msgspec.json.encode(row.get("subscribe", row) | {"at": at}) + b"\n")
            for parsed in messages_of(taken, seq, gate.space, journal.log):
                chunk.append({"seq": seq, **_columns_of(parsed, gate)})
                seq += 1
            if len(chunk) >= _CHUNK:
                part, chunk = _write_messages(etl, chunk, part), []
    if chunk or not part:
        _write_messages(etl, chunk, part)
    space = gate.space
    manifest = json.loads((source / "manifest.json").read_text())
    copied = ("format", "format_version", "total_tokens", "stop_terms", "options")
    told = {name: manifest[name] for name in copied if name in manifest}
    extent = [space.west, space.south, space.east, space.north]
    (etl / "manifest.json").write_text(json.dumps({**told, "kept": seq, "extent": extent, "live": True}))
    return seq


def _columns_of(parsed: ParsedMessage, gate: Admission) -> dict[str, Any]:
    """A message as the columns of `_SCHEMA`, but for its seq."""
    vector = vector_of(parsed, gate.vocabulary)
    own = ("message_id", "text", "object_id", "op", "lon", "lat", "west", "south", "east", "north", "ahead")
    weighed = {name: getattr(vector, name).tolist() for name in ("terms", "counts", "weights")}
    return {**{name: getattr(parsed, name) for name in own}, **weighed, "event_time": parsed.event_time_us}


def _write_messages(etl: Path, rows: list[dict[str, Any]], part: int) -> int:
    _write(etl / "messages", f"part-{part:05d}.parquet", pa.Table.from_pylist(rows, _SCHEMA))
    return part + 1


def _write(folder: Path, name: str, table: pa.Table) -> None:
    with written(LocalDisk(folder), name, f".{name}.tmp") as file:
        pq.write_table(table, file, compression="zstd")


def _facts(journal: WriteAheadLog, gate: Admission, messages: int) -> dict[str, Any]:
    """What those who read runs go by (`gateway.runs.facts`), where a live stream is other than a run over files."""
    folder, space = journal.folder, gate.space
    return {
        "live": journal.settings,
        "messages": str((folder / "etl").resolve()),
        "subscriptions": [str((folder / "subscriptions.jsonl").resolve())],
        "window": journal.settings["window"],
        "world": f"{space.west!r},{space.south!r},{space.east!r},{space.north!r}",
        "projection": space.projection,
        "boundaries": {"logged": BOUNDARIES},
        "asked": sorted({column for kind in gate.kinds_met for column in kind.columns}),
        "messages_taken": messages - len(journal.marks),
        "clock_marks": len(journal.marks),
        "limit": None,
        "settings": {"out": str(folder), "sink": "parquet"},
    }
