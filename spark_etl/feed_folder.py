"""The folder by which a job that makes batches of messages feeds a running topology.

    FOLDER/SINK/sink.json                  {"format_version": 1, "query": "..."}: the job whose batches these are
    FOLDER/SINK/rows/NAME.jsonl            messages, one a line, with the columns of any message line
    FOLDER/SINK/rejected/NAME.jsonl        rejected rows, one a line: {"reason": , "file": , "line": , "row": }
    FOLDER/SINK/batch-000000000007.json    {"files": [{"name": , "rows": }], "first": , "rows": , "rejected": {},
                                            "rejects": ["NAME.jsonl"]}

A batch is there once its `batch-` file is, which is made whole and never replaced: the first commit of a batch wins.
Batches are numbered from 0 without a gap, rows too; `first` is the number of the first row. Files that no batch names
are of attempts that failed. Written by `spark_etl.feed_sink`, read by `gateway.sources.folder`.
"""

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from matching.errors import ConfigError, EngineError

FORMAT_VERSION = 1
SINK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}")
_SINK = "sink.json"


class RowFile(NamedTuple):
    """A file of messages below `rows/`, and how many it has."""

    name: str
    rows: int


class FeedBatch(NamedTuple):
    """A committed batch: its files, the number of its first row, its rows, and rejected rows by reason code.

    `rejects` are names of files below `rejected/`.
    """

    files: tuple[RowFile, ...]
    first: int
    rows: int
    rejected: Mapping[str, int]
    rejects: tuple[str, ...] = ()


class LineFile:
    """A file of lines that is made with its first line; its name is new.

    Attributes
    ----------
    name : str    "" without a line
    lines : int
    """

    def __init__(self, folder: Path):
        self.name, self.lines = "", 0
        self._folder = folder
        self._file: BinaryIO | None = None

    def add(self, line: bytes) -> None:
        """Append a line."""
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.name = f"{uuid.uuid4().hex}.jsonl"
            self._file = (self._folder / self.name).open("wb")
        self._file.write(line + b"\n")
        self.lines += 1

    def close(self) -> None:
        """Force the lines to disk."""
        if self._file is None:
            return
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        self._file = None
        _force(self._folder)


class FeedSink:
    """The batches of one job.

    Parameters
    ----------
    folder : Path
    name : str
        Of the sink: letters, digits, `_`, `-` and `.`.

    Raises
    ------
    ConfigError
        If it cannot be a name.
    """

    def __init__(self, folder: Path, name: str):
        if not SINK_NAME.fullmatch(name):
            raise ConfigError(f"sink name {name!r}: give one of letters, digits, _, - and .")
        self.name = name
        self.path = folder / name

    def query(self) -> str | None:
        """The job that writes here; None if none has yet."""
        found = _read(self.path / _SINK)
        if found is not None and found.get("format_version") != FORMAT_VERSION:
            raise ConfigError(f"{self.path / _SINK}: is of another format; read it with the release that wrote it")
        return None if found is None else str(found["query"])

    def claim(self, query: str) -> None:
        """Let a job write here, and no other.

        Raises
        ------
        ConfigError
            If another one has written here: its batches have the same numbers and other messages.
        """
        (self.path / "rows").mkdir(parents=True, exist_ok=True)
        for place in (self.path.parent, self.path.absolute().parent.parent):
            _force(place)
        _create(self.path / _SINK, {"format_version": FORMAT_VERSION, "query": query})
        if (owner := self.query()) != query:
            raise ConfigError(
                f"{self.path}: batches of another checkpoint are here (query {owner}, and not {query}), and a fresh "
                "checkpoint numbers its batches from 0 again: go on with the checkpoint that wrote here, or name "
                "another sink"
            )

    def rows_file(self) -> LineFile:
        """A new file for messages; a commit has to name it."""
        return LineFile(self.path / "rows")

    def rejects_file(self) -> LineFile:
        """A new file for rejected rows; a commit has to name it."""
        return LineFile(self.path / "rejected")

    def write_rows(self, lines: Iterable[bytes]) -> RowFile:
        """Write messages to a new file, and force it to disk; a commit has to name it."""
        file = self.rows_file()
        for line in lines:
            file.add(line)
        file.close()
        return RowFile(file.name, file.lines)

    def remove(self, files: Iterable[RowFile], rejects: Iterable[str] = ()) -> None:
        """Remove files that no batch names."""
        paths = [self.path / "rows" / file.name for file in files if file.name]
        for path in [*paths, *(self.path / "rejected" / name for name in rejects if name)]:
            path.unlink(missing_ok=True)

    def commit(
        self, number: int, files: Sequence[RowFile], rejected: Mapping[str, int], rejects: Sequence[str] = ()
    ) -> bool:
        """Commit a batch; False if it was committed before, and these files are not part of it.

        Raises
        ------
        EngineError
            If the batch before it is missing here.
        """
        if self.batch(number) is not None:
            return False
        first = 0
        if number:
            before = self.batch(number - 1)
            if before is None:
                raise EngineError(
                    f"{self.path}: has no batch {number - 1:,}, and batch {number:,} follows it: the checkpoint has "
                    "fed another folder; begin with a fresh checkpoint, or bring that folder back"
                )
            first = before.first + before.rows
        content = {
            "files": [file._asdict() for file in files if file.rows],
            "first": first,
            "rows": sum(file.rows for file in files),
            "rejected": dict(rejected),
            "rejects": [name for name in rejects if name],
        }
        return _create(self._manifest(number), content)

    def batch(self, number: int) -> FeedBatch | None:
        """A committed batch; None if it is not there yet."""
        found = _read(self._manifest(number))
        if found is None:
            return None
        files = tuple(RowFile(file["name"], file["rows"]) for file in found["files"])
        return FeedBatch(files, found["first"], found["rows"], found["rejected"], tuple(found.get("rejects", ())))

    def batches(self, known: int = 0) -> int:
        """How many batches are committed, `known` at least. Reads no file; takes log(N) looks."""
        return _first_not(lambda number: self._manifest(number).exists(), known)

    def batch_with(self, row: int) -> int:
        """Number of the batch with a row; that of the next batch if the row is the next one.

        Raises
        ------
        ConfigError
            If the folder has fewer rows.
        """
        count = self.batches()

        def ends_before(number: int) -> bool:
            batch = self.batch(number) if number < count else None
            return batch is not None and batch.first + batch.rows <= row

        number = _first_not(ends_before, 0)
        last = self.batch(count - 1) if count else None
        if row > (last.first + last.rows if last else 0):
            raise ConfigError(f"{self.path}: ends before row {row:,}, which was read: the folder was created anew")
        return number

    def lines(self, batch: FeedBatch, skip: int = 0) -> Iterator[bytes]:
        """The messages of a batch but the first so many.

        Raises
        ------
        ConfigError
            If a file has another number of lines than its batch says.
        """
        for file in batch.files:
            if skip >= file.rows:
                skip -= file.rows
                continue
            path, count = self.path / "rows" / file.name, 0
            with path.open("rb") as stream:
                for count, line in enumerate(stream, 1):
                    if count > skip:
                        yield line.removesuffix(b"\n")
            if count != file.rows:
                raise ConfigError(f"{path}: has {count:,} lines of {file.rows:,}; bring the file back")
            skip = 0

    def _manifest(self, number: int) -> Path:
        return self.path / f"batch-{number:012d}.json"


def sinks_of(folder: Path) -> list[str]:
    """Names of the sinks of a folder that a job has claimed, in order. Raises OSError."""
    return sorted(entry.name for entry in os.scandir(folder) if (Path(entry.path) / _SINK).exists())


def _first_not(there: Callable[[int], bool], low: int) -> int:
    """The first number from `low` that is not there, where none behind it is."""
    step = 1
    while there(low + step - 1):
        low, step = low + step, 2 * step
    high = low + step - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if there(middle) else (low, middle)
    return low


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def _create(path: Path, content: Mapping[str, Any]) -> bool:
    """Make a file as a whole, durably; False if it is there."""
    whole = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with whole.open("wb") as file:
            file.write(json.dumps(content).encode())
            file.flush()
            os.fsync(file.fileno())
        os.link(whole, path)
        made = True
    except FileExistsError:
        made = False
    finally:
        whole.unlink(missing_ok=True)
    _force(path.parent)  # also where another process has made it, which may have died before it did
    return made


def _force(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
