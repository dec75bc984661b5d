"""Messages from the output directory of the ETL, or the folder of a live stream: the clock of an ordinary run.

`ParquetSource` reads them group by group (`spouts.message_files`) and prefetches one. A file that breaks the contract
(`spouts.columns`) ends the run with an error that names it.
"""

import itertools
import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bolts.payloads import StreamBatch
from matching.errors import InputError
from matching.space import Space
from matching.window import Window
from spouts.columns import OBJECT_COLUMNS, REMEDY, TYPES, Columns, damaged, first_line, has_column, null_times
from spouts.cuts import Cuts
from spouts.cutting import Cutter, MessageSource, MessageSpout, Rows, read_all
from spouts.history import history_of
from spouts.manifest import is_live, read_manifest
from spouts.message_files import (
    MessageFile,
    ParquetMessages,
    count_words,
    list_message_files,
    open_message_file,
    opened,
)
from spouts.quarantine import EMPTY_QUARANTINE, Quarantine
from spouts.versions import object_columns
from topology.core.api.component import Context, Saved
from topology.core.places import arrow_file, place


class ParquetSource(MessageSource):
    """Rows of an ETL output directory, in order.

    Parameters
    ----------
    directory : path
        The ETL's output directory (the one with `messages/`), or the folder of a live stream.
    window : Window
        Decides `life`.
    space : Space
        Projects the points. A message outside its box becomes a point on its edge and keeps its seq but loses its
        terms, so that it matches nothing; counted as `outside_world`.
    follow : bool
        The ETL still writes the directory: files appear by rename in the order of their names, `manifest.json` last.
    objects : bool
        Read the objects of messages (`object_id`, `op`).
    kind_columns : collection of str
        Columns that the kinds require (`Kind.columns`).
    latest_us : int, optional
        Microseconds since 1970. If the window or a kind needs times, messages with a later event time keep their seq
        and lose their terms, so that they match nothing; they do not advance stream time, and are counted as `ahead`.
        Ignored for the directory of a live stream, whose column `ahead` has the decision.
    timed : bool
        Read event times even if neither window nor kinds need them: they cut the stream.

    Raises
    ------
    InputError
        If a file is missing, damaged, not written by the ETL, or out of order; the message names the file. At once if
        the footers show it, else by `read`. Also if event times are null though the window or a kind needs them and the
        directory is not of a live stream; the message has their number.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        window: Window,
        space: Space,
        follow: bool = False,
        objects: bool = False,
        kind_columns: Collection[str] = (),
        latest_us: int | None = None,
        timed: bool = False,
    ):
        self.directory = place(directory)
        self.next_seq = 0
        self._follow = follow
        self._files: list[Path] = []
        self._opened = 0
        self._file: MessageFile | None = None
        self._groups: Iterator[int] = iter(())
        self._seen_end = False
        self._prefetch = ThreadPoolExecutor(1, "prefetch")
        self._coming: Future[Rows | None] | None = None
        if not follow:
            self._require_complete()
        elif not self.directory.is_dir():
            raise InputError("missing_file", f"{self.directory}: no such directory; give the ETL's output directory")
        live = is_live(directory)
        needed = timed or window.kind == "time" or "event_time_us" in kind_columns
        if needed and not follow and not live and (nulls := count_null_times(directory)):
            raise null_times(self.directory, nulls, window)
        latest_us = None if live else latest_us
        words = count_words(directory)
        self._columns = Columns(window, space, objects, kind_columns, latest_us, timed, untimed=live, reserved=words)

    def read(self) -> Rows | None:
        """The next row group; a thread prefetches the one after it (Arrow releases the GIL)."""
        coming = self._coming or self._prefetch.submit(self._read_group)
        self._coming = None
        rows = coming.result()
        if rows is not None:
            self._coming = self._prefetch.submit(self._read_group)
        return rows

    def skip_to(self, seq: int) -> None:
        """See `MessageSource.skip_to`; reads the footers of the files up to there."""
        while self._open_next():
            assert self._file is not None
            for group in self._groups:
                rows = self._file.sizes[group]
                if self.next_seq + rows > seq:
                    self._groups = itertools.chain([group], self._groups)
                    return
                self.next_seq += rows
        if self.next_seq < seq:
            raise InputError(
                "missing_file",
                f"{self.directory / 'messages'}: {self.next_seq:,} messages, where at least {seq:,} had been read when "
                f"the run was interrupted; {REMEDY}",
            )

    def set_latest(self, latest_us: int | None) -> None:
        """Replace `latest_us`, before the first `read`."""
        self._columns.latest_us = latest_us

    @property
    def ended(self) -> bool:
        return self._seen_end

    def close(self) -> None:
        self._prefetch.shutdown(wait=True, cancel_futures=True)
        if self._file is not None:
            self._file.close()

    def _require_complete(self) -> None:
        if history_of(self.directory):
            return
        if not (self.directory / "messages").is_dir():
            raise InputError(
                "missing_file", f"{self.directory}: has no folder messages/; give a directory that `skyray etl` wrote"
            )
        manifest = read_manifest(self.directory)
        if manifest is None and not list_message_files(self.directory):
            raise InputError(
                "missing_file", f"{self.directory / 'messages'}: has no *.parquet files; run the ETL to its end first"
            )
        files = manifest.get("files") if manifest else None
        for name, facts in files.items() if isinstance(files, dict) else ():
            if not name.startswith("messages/"):
                continue
            path = self.directory / name
            try:
                size_bytes = path.stat().st_size
            except OSError as error:
                raise InputError("missing_file", f"{path}: named in manifest.json and not there; {REMEDY}") from error
            if size_bytes != facts.get("size_bytes", size_bytes):
                raise damaged(path, f"has {size_bytes:,} bytes, manifest.json says {facts['size_bytes']:,}")

    def _read_group(self) -> Rows | None:
        while True:
            group = next(self._groups, None)
            if group is not None:
                return self._decode(group)
            if not self._open_next():
                return None

    def _open_next(self) -> bool:
        """Open the next file; False if there is none, or not yet."""
        if self._opened == len(self._files):
            # Read the manifest before listing the files, so that the list has all files that the manifest names.
            manifest = read_manifest(self.directory)
            names = {path.name for path in self._files}
            fresh = [path for path in list_message_files(self.directory) if path.name not in names]
            if fresh and self._files and fresh[0].name < self._files[-1].name:
                raise InputError(
                    "bad_order", f"{fresh[0]}: appeared after {self._files[-1].name}; files must come in order of name"
                )
            self._files += fresh
            if not fresh:
                if manifest is not None or not self._follow:
                    self._require_all(manifest)
                    self._seen_end = True
                return False
        if self._file is not None:
            self._file.close()
        self._file = open_message_file(self._files[self._opened])
        self._opened += 1
        self._wanted = self._columns.of_file(self._file.path, self._file.schema)
        self._groups = iter([group for group, rows in enumerate(self._file.sizes) if rows])
        return True

    def _require_all(self, manifest: dict[str, Any] | None) -> None:
        expected = manifest.get("kept") if manifest else None
        if isinstance(expected, int) and expected != self.next_seq:
            raise InputError(
                "missing_file",
                f"{self.directory / 'messages'}: {self.next_seq:,} messages, manifest.json says {expected:,}; {REMEDY}",
            )

    def _decode(self, group: int) -> Rows:
        assert self._file is not None
        table = self._file.read(group, self._wanted)
        try:
            columns = {name: table.column(name).combine_chunks() for name in self._wanted}
            rows = self._columns.rows(columns, self.next_seq)
        except pa.ArrowException as error:
            raise damaged(self._file.path, f"row group {group} cannot be read ({first_line(error)})") from error
        self.next_seq += len(rows.messages)
        return rows


class ParquetSpout(MessageSpout):
    """Clock spout over the output directory of the ETL; parameters as in `ParquetSource` and `MessageSpout`.

    max_ahead_s : float, optional    largest event time, counted from the start of the run (see `latest_us`)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        window: Window,
        space: Space,
        batch: int | Cuts,
        limit: int | None = None,
        follow: bool = False,
        poll_s: float = 0.2,
        kind_columns: Collection[str] = (),
        max_ahead_s: float | None = None,
        rate: float | None = None,
        quarantine: Quarantine = EMPTY_QUARANTINE,
        objects: bool = False,
    ):
        super().__init__(window, batch, limit, poll_s, rate, quarantine, objects)
        self.directory = str(directory)
        self.space = space
        self.follow = follow
        self.kind_columns = tuple(kind_columns)
        self.max_ahead_s = max_ahead_s
        self.timed = isinstance(batch, Cuts) and batch.step_us > 0
        self.latest_us: int | None = None

    def open(self, context: Context) -> None:
        """Open the source: the run starts now, unless `restore` follows."""
        if self.max_ahead_s is not None and not is_live(self.directory):
            self.latest_us = int((context.now() + self.max_ahead_s) * 1e6)
        super().open(context)

    def open_source(self) -> ParquetSource:
        return ParquetSource(
            self.directory,
            self.cutter.window,
            self.space,
            self.follow,
            objects=self.objects or has_objects(self.directory),
            kind_columns=self.kind_columns,
            latest_us=self.latest_us,
            timed=self.timed,
        )

    def state(self) -> dict[str, np.ndarray]:
        """The position, and `latest_us` of the run's start."""
        return super().state() | {"latest_us": np.array([] if self.latest_us is None else [self.latest_us], np.int64)}

    def restore(self, saved: Saved) -> None:
        latest_us = saved.single(self._context.component)["latest_us"]
        self.latest_us = int(latest_us[0]) if latest_us.shape[0] else None
        assert isinstance(self._source, ParquetSource), "open() comes first"
        self._source.set_latest(self.latest_us)
        super().restore(saved)

    def report(self) -> dict[str, Any]:
        """The counts, the columns that kinds require, and `latest_us`."""
        return super().report() | {"kind_columns": list(self.kind_columns), "latest_us": self.latest_us}


def read_messages(
    directory: str | os.PathLike[str],
    window: Window,
    space: Space,
    batch: int,
    limit: int | None = None,
    kind_columns: Collection[str] = (),
    latest_us: int | None = None,
) -> Iterator[StreamBatch]:
    """Iterate over batches exactly as a run with these settings sees them.

    Raises
    ------
    InputError, ConfigError
        As `ParquetSource` and `Cutter`.

    Notes
    -----
    Memory for about two row groups.
    """
    source = ParquetSource(directory, window, space, kind_columns=kind_columns, latest_us=latest_us)
    return read_all(source, Cutter(window, batch, limit))


def read_columns(
    directory: str | os.PathLike[str], columns: Sequence[str], where_present: Collection[str] = (), rows: int = 1 << 16
) -> Iterator[pa.RecordBatch]:
    """Columns of a folder's messages, in batches; those of `where_present` if a file has them.

    Raises InputError if a file cannot be read, or lacks one of `columns`.
    """
    for path in list_message_files(directory):
        with opened(path) as file:
            present = file.schema.names
            if missing := [name for name in columns if name not in present]:
                raise damaged(path, f"column {missing[0]!r} is missing")
            wanted = [*columns, *(name for name in where_present if name in present)]
            # attributes have a type of their own in each folder
            schema = pa.schema([(name, TYPES.get(name) or file.schema.field(name).type) for name in wanted])
            for group in range(len(file.sizes)):
                table = file.read(group, wanted)
                try:
                    yield from table.cast(schema).to_batches(rows)
                except (ValueError, pa.ArrowException) as error:
                    raise damaged(path, f"cannot be read ({first_line(error)})") from error


def read_span(directory: str | os.PathLike[str]) -> tuple[int, float] | None:
    """Number of messages of an ETL directory, and seconds from the first event to the last; None if unknown.

    Reads the footers of the files alone, O(row groups); a damaged file gives None, and so does a log.
    """
    rows, low, high = 0, None, None
    try:
        for path in list_message_files(directory):
            footer = pq.read_metadata(arrow_file(path))
            column = footer.schema.names.index("event_time")
            for group in map(footer.row_group, range(footer.num_row_groups)):
                found = group.column(column).statistics
                if found is None or not found.has_min_max:
                    return None
                rows += group.num_rows
                low = found.min if low is None else min(low, found.min)
                high = found.max if high is None else max(high, found.max)
    except (OSError, ValueError, pa.ArrowException):
        return None
    return None if low is None or high is None else (rows, (high - low).total_seconds())


def read_points(
    directory: str | os.PathLike[str], space: Space, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """About `count` points of messages, evenly spread over the stream: x and y in the unit square, two float64[n].

    Routers by place balance the expected load by them. Leaves out points outside the box; reads the coordinates only.
    """
    points = [np.stack([batch["lon"], batch["lat"]]) for batch in read_columns(directory, ["lon", "lat"])]
    lon, lat = np.concatenate([np.zeros((2, 0)), *points], axis=1)
    step = max(1, lon.shape[0] // max(1, count))
    lon, lat = lon[::step], lat[::step]
    inside = space.contains(lon, lat)
    return space.project(lon[inside], lat[inside])


def count_null_times(directory: str | os.PathLike[str]) -> int:
    """Number of messages of an ETL directory without event time: `time:` windows and `decay` refuse them.

    Reads the footers of the files, or the column where a footer does not say.
    """
    nulls = 0
    for path in list_message_files(directory):
        with opened(path) as file:
            assert isinstance(file, ParquetMessages), "a log may lack times"
            nulls += _null_times_of(file)
    return nulls


def has_objects(directory: str | os.PathLike[str]) -> bool:
    """Whether a message of an ETL directory may replace or delete another.

    False if each message is its own object and none is a deletion. True for an unfinished directory, and for that of a
    live stream, where a repeated id is a new version. Reads three columns, up to the first such message; 0.1 us a
    message.
    """
    manifest = read_manifest(directory)
    if manifest is None or manifest.get("deletes") or manifest.get("live"):
        return True
    for path in list_message_files(directory):
        with opened(path) as file:
            wanted = ["message_id", *(name for name in OBJECT_COLUMNS if has_column(path, file.schema, name))]
            for group in range(len(file.sizes) if len(wanted) > 1 else 0):
                table = file.read(group, wanted)
                columns = {name: table.column(name).combine_chunks() for name in wanted}
                names, op = object_columns(columns)
                own = columns["message_id"].cast(pa.large_string())
                if not names.cast(pa.large_string()).equals(own) or np.any(op.to_numpy()):
                    return True
    return False


def _null_times_of(file: ParquetMessages) -> int:
    if "event_time" not in file.schema.names:
        return sum(file.sizes)
    metadata = file.parquet.metadata
    column = [metadata.schema.column(i).path for i in range(metadata.num_columns)].index("event_time")
    nulls = 0
    for group in range(len(file.sizes)):
        statistics = metadata.row_group(group).column(column).statistics
        if statistics is not None and statistics.has_null_count:
            nulls += statistics.null_count
        else:
            nulls += file.read(group, ["event_time"]).column(0).null_count
    return nulls
