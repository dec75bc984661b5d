"""Messages in files as the ETL writes them, and a context for spouts that keeps what they emit."""

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from matching.space import Space
from matching.window import Window
from matching.words.tokeniser import tokeniser_number
from tests.support.etl_folder import SCHEMA

EARTH = Space(-180.0, -90.0, 180.0, 90.0)
COUNT = Window.parse("count:4")
START = datetime(2020, 1, 1, tzinfo=UTC)


def message(seq: int, **changes) -> dict:
    terms = list(range(seq % 4))
    row = {
        "seq": seq,
        "message_id": f"m{seq}" + "é" * (seq % 3),
        "lon": float(seq % 100),
        "lat": float(-seq % 50),
        "event_time": START + timedelta(seconds=seq),
        "terms": terms,
        "counts": [1] * len(terms),
        "weights": [1.0 / (term + 1) for term in terms],
        "text": "text",
        "object_id": f"m{seq}",
        "op": 0,
    }
    return row | changes


def write(
    directory: Path, rows: list[dict], name: str = "part-00000.parquet", schema=SCHEMA, row_group_size: int = 7
) -> Path:
    (directory / "messages").mkdir(parents=True, exist_ok=True)
    path = directory / "messages" / name
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=row_group_size)
    return path


def write_manifest(directory: Path, kept: int, **more) -> None:
    (directory / "manifest.json").write_text(
        json.dumps({"format_version": 1, "tokeniser": tokeniser_number(), "kept": kept} | more)
    )


class RecordingContext:
    """A context that keeps what was emitted, batches with the ids that went with them; its clock stands still unless
    moved."""

    component = "messages"
    resumes = False

    def __init__(self, tasks: int = 3):
        self.tasks_of_receiver = tasks
        self.emitted: list = []
        self.waits: list[float] = []
        self.clock_s = 1000.0

    def size_of(self, component):
        assert component == "distribution"
        return self.tasks_of_receiver

    def emit(self, stream, payload, *, to=None, key=None):
        if stream == "ids":
            self.names = payload.names
            return
        if stream == "batches":
            payload = payload._replace(names=self.names)
        self.emitted.append((stream, payload, to))

    def count(self, name, amount=1):
        pass

    def now(self):
        return self.clock_s

    def wait(self, seconds, came=None):
        self.waits.append(seconds)
        (came or threading.Event()).wait(seconds)
