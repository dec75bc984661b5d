"""What came through a pipe, remembered before it is matched: nothing lost, nothing twice, whatever dies.

A folder has

    journal/log            the lines that were taken, batch by batch, each forced to disk before it is matched
    updates/part-*.parquet what they changed; a part has its name once it is whole
    etl/, subscriptions.jsonl, boundaries.parquet, results.parquet, run.json
                           at the end: the same as a run over files leaves, so that `skyray verify` and `show` accept it

Answers follow from lines and batches alone. Whoever goes on reads the log from its beginning and matches it again, and
what named parts have already is not written again: a part says up to which batch it goes. That takes as long as the
lines took to match, less the waiting. Used by `gateway.commands.live`; read on in `gateway.pipe`.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from bolts.names import Digest, hash_names
from bolts.sinks import RESULT_SCHEMA, UPDATE_SCHEMA
from gateway.engine import Engine
from gateway.pipe import Line, Pipe
from gateway.terminal import writing_to
from matching.errors import CheckpointError, ConfigError, EngineError
from matching.fading import EPOCH_US
from matching.model import CHANGES, Names, UpdateBatch
from spark_etl.schemas import MESSAGE_SCHEMA
from topology.core.disk import LocalDisk, written
from topology.folder import FAILED, RUNNING, RunFolder, checksum

#: A part gets its name when it has so many rows, or when its first row is so old, and at the end.
PART_ROWS, PART_S = 65_536, 10.0
#: Messages that are turned into columns at a time, at the end.
_CHUNK = 50_000
#: Under which a part says up to which batch it goes.
_THROUGH = b"through_batch"


class Record(NamedTuple):
    """Lines that were taken together, up to line `line` of all input there ever was.

    `last_seq` is that of the batch they closed, -1 if they closed none.
    """

    last_seq: int
    line: int
    lines: list[bytes]


class Journal:
    """One folder, held by this process; see the module.

    Parameters
    ----------
    folder : Path
    settings : dict
        What answers depend on besides the lines; whoever goes on must have the same.
    durable : callable
        Told the number of the last line that no failure can undo any more.

    Raises
    ------
    ConfigError
        If the folder holds something else, or was begun with other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], durable: Callable[[int], None]):
        self.folder = folder
        self.run = RunFolder(folder)
        self.digest = Digest()
        self.changes: Counter[str] = Counter()
        self.batches = 0
        self._settings = settings
        self._durable = durable
        self._log = folder / "journal" / "log"
        self._file: Any = None
        self._rows: list[dict[str, Any]] = []
        self._first_row_s = 0.0
        self._parts = self._named_through = 0
        self._ends: list[int] = []
        self._line = 0

    def begin(self) -> bool:
        """Open the folder, which `run.held()` must hold; whether there is something to go on with."""
        left = [entry.name for entry in self.folder.iterdir() if not entry.name.startswith(".")]
        if left and not self._log.exists():
            raise ConfigError(f"{self.folder}: holds something that is no folder of skyray live; name another one")
        if left:
            before = self.run.report().get("live")
            if before != self._settings:
                changed = [name for name in self._settings if (before or {}).get(name) != self._settings[name]]
                raise ConfigError(
                    f"{self.folder}: was begun with another {' and '.join(changed)}; give the same, or another folder"
                )
        with writing_to(self.folder):
            self.run.write_report(RUNNING, {"live": self._settings})
            (self.folder / "updates").mkdir(exist_ok=True)
            self._log.parent.mkdir(exist_ok=True)
            self.run.clear_hidden()
        parts = sorted((self.folder / "updates").glob("part-*.parquet"))
        self._parts = len(parts)
        self._named_through = max((_through(part) for part in parts), default=0)
        return bool(left)

    def replay(self, pipe: Pipe) -> int:
        """Match what the log has once more, and be ready for more; how many messages that were. O(log).

        What the last batch changed is written once more: whoever died may have died before.
        """
        whole, last = 0, []
        if self._log.exists():
            for record, end in read_records(self._log):
                rows = pipe.replay(record.lines, record.last_seq >= 0)
                last = rows if record.last_seq >= 0 else last
                self._line = record.line
                whole = end
        with writing_to(self._log):
            new = not self._log.exists()
            self._file = open(self._log, "ab")  # noqa: SIM115 - closed by `close`
            self._file.truncate(whole)  # what was being written when the last one died
            os.fsync(self._file.fileno())
            if new:
                for place in (self._log.parent, self.folder, self.folder.absolute().parent):
                    _force(place)
        pipe.lines_before = self._line
        if self._line:
            self._durable(self._line)
        pipe.write(last)
        return pipe.engine.next_seq

    def keep(self, lines: Sequence[Line], last_seq: int) -> None:
        """See `gateway.pipe.Keeper`. Raises DeliveryError if the log cannot be written. One write to disk."""
        data = b"".join(line.data.rstrip(b"\r\n") + b"\n" for line in lines)
        self._line = max(self._line, lines[-1].number)
        head = {"last_seq": last_seq, "line": self._line, "bytes": len(data), "xxh3": xxhash.xxh3_64_hexdigest(data)}
        with writing_to(self._log):
            self._file.write(msgspec.json.encode(head) + b"\n" + data)
            self._file.flush()
            os.fsync(self._file.fileno())
        if self._line:
            self._durable(self._line)

    def told(self, rows: list[dict[str, Any]], last_seq: int) -> None:
        """See `gateway.pipe.Keeper`. Raises DeliveryError if a part cannot be written."""
        self.batches += 1
        self._ends.append(last_seq)
        self.digest.add(*_hashed(rows))
        self.changes.update(row["change"] for row in rows)
        if self.batches <= self._named_through:
            return
        if rows and not self._rows:
            self._first_row_s = monotonic()
        self._rows += rows
        if len(self._rows) >= PART_ROWS or (self._rows and monotonic() - self._first_row_s >= PART_S):
            self._name_part()

    def finish(self, engine: Engine, state: str) -> None:
        """Leave what a run over files leaves. Raises DeliveryError if it cannot be written."""
        if self._rows:
            self._name_part()
        with writing_to(self.folder):
            self._write_results(engine)
            messages = self._write_inputs(engine)
            ends = {"batch": np.arange(len(self._ends)), "last_seq": np.array(self._ends, np.int64)}
            self._write("boundaries.parquet", pa.table(ends))
            self.run.write_report(state, self._report(engine, messages))

    def fail(self, error: EngineError) -> None:
        """Say in `run.json` why it ended; it can be gone on with all the same."""
        with suppress(OSError):
            self.run.write_report(FAILED, {"live": self._settings, "error": str(error).splitlines()[0]})

    def close(self) -> None:
        """Close the log."""
        if self._file is not None:
            self._file.close()

    # -- inside

    def _name_part(self) -> None:
        rows, self._rows = self._rows, []
        table = pa.Table.from_pylist([{name: row[name] for name in UPDATE_SCHEMA.names} for row in rows], UPDATE_SCHEMA)
        table = table.replace_schema_metadata({_THROUGH: str(self.batches).encode()})
        self._write(f"part-{self._parts:05d}.parquet", table, self.folder / "updates")
        self._parts += 1

    def _write(self, name: str, table: pa.Table, folder: Path | None = None) -> None:
        folder = folder or self.folder
        with writing_to(folder / name), written(LocalDisk(folder), name, f".{name}.tmp") as file:
            pq.write_table(table, file, compression="zstd")

    def _write_results(self, engine: Engine) -> None:
        rows = sorted(engine.results(), key=lambda row: (row["subscription_id"].encode(), row["rank"]))
        kept = [{name: row[name] for name in RESULT_SCHEMA.names} for row in rows]
        self._write("results.parquet", pa.Table.from_pylist(kept, RESULT_SCHEMA))

    def _write_inputs(self, engine: Engine) -> int:
        """Messages as the ETL writes them, and changes as a file of subscriptions has them; how many messages."""
        etl, source = self.folder / "etl", Path(self._settings["vocabulary"])
        shutil.rmtree(etl, ignore_errors=True)
        (etl / "messages").mkdir(parents=True)
        shutil.copy(source / "vocabulary.parquet", etl)
        seq, chunk, part = 0, [], 0
        with open(self.folder / "subscriptions.jsonl", "wb") as changes:
            for record, _ in read_records(self._log):
                for line in record.lines:
                    row = msgspec.json.decode(line)
                    if "subscribe" in row:
                        changes.write(msgspec.json.encode(row["subscribe"] | {"at": seq}) + b"\n")
                    elif "unsubscribe" in row:
                        changes.write(msgspec.json.encode(row | {"at": seq}) + b"\n")
                    else:
                        chunk.append({"seq": seq, **engine.columns_of(row)})
                        seq += 1
                if len(chunk) >= _CHUNK:
                    part, chunk = self._write_messages(etl, chunk, part), []
        if chunk or not part:
            self._write_messages(etl, chunk, part)
        space = engine.space
        manifest = json.loads((source / "manifest.json").read_text())
        told = {name: manifest[name] for name in ("format", "format_version", "total_tokens", "stop_terms", "options")
                if name in manifest}  # fmt: skip
        extent = [space.west, space.south, space.east, space.north]
        (etl / "manifest.json").write_text(json.dumps({**told, "kept": seq, "extent": extent}))
        return seq

    def _write_messages(self, etl: Path, rows: list[dict[str, Any]], part: int) -> int:
        self._write(f"part-{part:05d}.parquet", pa.Table.from_pylist(rows, MESSAGE_SCHEMA), etl / "messages")
        return part + 1

    def _report(self, engine: Engine, messages: int) -> dict[str, Any]:
        fading, space = engine.fading, engine.space
        return {
            "live": self._settings,
            "messages": str((self.folder / "etl").resolve()),
            "subscriptions": [str((self.folder / "subscriptions.jsonl").resolve())],
            "window": self._settings["window"],
            "world": f"{space.west!r},{space.south!r},{space.east!r},{space.north!r}",
            "projection": space.projection,
            "boundaries": {"logged": "boundaries.parquet"},
            "fading": {
                "log_base_per_s": fading.log_base_per_s,
                "smoothing": fading.smoothing,
                "epoch_us": EPOCH_US,
            },
            "asked": sorted({column for kind in engine.kinds_met for column in kind.columns}),
            "digest": self.digest.hex(),
            "messages_taken": messages,
            "batches": self.batches,
            "updates": dict(self.changes),
            "settings": {"out": str(self.folder), "sink": "parquet"},
        }


def settings_of(vocabulary: Path, window: str, world: str) -> dict[str, Any]:
    """What answers depend on besides the lines. Raises InputError if the folder is none of the ETL's."""
    sums = {name: checksum(vocabulary / name) for name in ("vocabulary.parquet", "manifest.json")}
    return {"vocabulary": str(vocabulary.resolve()), "checksums": sums, "window": window, "world": world}


def read_records(log: Path) -> Iterator[tuple[Record, int]]:
    """The records of a log and where each ends; one that was cut off at the end is left out.

    Raises
    ------
    CheckpointError
        If what is damaged is not the last one.
    """
    size, end = log.stat().st_size, 0
    with open(log, "rb") as file:
        while head := file.readline():
            try:
                told = msgspec.json.decode(head)
                data = file.read(told["bytes"])
                sound = len(data) == told["bytes"] and xxhash.xxh3_64_hexdigest(data) == told["xxh3"]
            except (msgspec.DecodeError, TypeError, KeyError, ValueError):
                sound = False
            if not sound:
                if file.tell() < size:
                    raise CheckpointError(
                        f"{log}: is damaged at byte {end:,}, and {size - end:,} bytes follow; bring the file back, or "
                        "cut it there and lose what follows"
                    )
                return
            end = file.tell()
            yield Record(told["last_seq"], told["line"], data.splitlines(keepends=True)), end


def _hashed(rows: list[dict[str, Any]]) -> tuple[UpdateBatch, np.ndarray, np.ndarray]:
    """Updates and the hashes of their names, as a digest takes them; their numbers play no part in it."""
    score = np.array([np.nan if row["score"] is None else row["score"] for row in rows], np.float64)
    as_of, seq = (np.array([row[name] for row in rows], np.int64) for name in ("as_of", "seq"))
    change = np.array([CHANGES.index(row["change"]) for row in rows], np.int8)
    updates = UpdateBatch(as_of=as_of, number=np.zeros(len(rows), np.int64), seq=seq, change=change, score=score)
    who, what = (hash_names(Names.of([row[name] for row in rows])) for name in ("subscription_id", "message_id"))
    return updates, who, what


def _through(part: Path) -> int:
    return int((pq.read_schema(part).metadata or {})[_THROUGH])


def _force(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
