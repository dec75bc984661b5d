"""Messages from the output directory of the ETL: the clock of an ordinary run.

`ParquetSource` reads `messages/*.parquet` row group by row group, one ahead of its use. A file that does not keep to
the contract (`spouts.columns`) stops the run with its name; nothing is repaired here.

Read on in `spouts.cutting` (how rows become batches) and then in `bolts.distribution` (who gets them).
"""

import itertools
import json
import os
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from matching.errors import InputError
from matching.space import Space
from matching.window import Window
from spouts.columns import OBJECT_COLUMNS, REMEDY, Columns, damaged, first_line, has_column, null_times
from spouts.cuts import Cuts
from spouts.cutting import Batch, Cutter, MessageSpout, Rows, Source, read_all
from spouts.quarantine import NOBODY, Quarantine
from spouts.versions import object_columns
from topology.core.api.component import Context, Saved

#: `format_version` in the manifest of the ETL outputs that this release reads.
ETL_FORMAT = 1


class ParquetSource(Source):
    """Rows of an ETL output directory, in order.

    Parameters
    ----------
    directory : path
        The ETL's output directory (the one that holds `messages/`).
    window : Window
        Decides what `life` is.
    space : Space
        Projects the points. Messages outside its box keep their seq but lose their terms, so that they match
        nothing; they are counted as `outside_world`, and stand as points on the edge of the box.
    follow : bool
        The directory is still being written: files appear by rename in the order of their names, and
        `manifest.json` appears last.
    objects : bool
        Hand on the objects of messages (`object_id`, `op`), if the directory has any that some later message replaces
        or deletes; what is still being written, or was left by a live stream, is taken to have some.
    asked : collection of str
        What kinds ask of messages (`Kind.columns`).
    latest_us : int, optional
        Where times matter, messages with a later event time are set aside: they keep their seq and lose their terms,
        so that they match nothing, do not move the time of the stream, and are counted as `ahead`. In what a live
        stream left the decision stands in the files, and this is ignored.
    timed : bool
        Hand on event times although neither window nor kinds ask for them: they cut the stream.

    Raises
    ------
    InputError
        If a file is missing, damaged, not what the ETL writes, or out of order: names the file; as far as their footers
        tell, before anything is read. If event times are
        null, and the window or a kind asks for them: names the count; what a live stream left may have such.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        window: Window,
        space: Space,
        follow: bool = False,
        objects: bool = False,
        asked: Collection[str] = (),
        latest_us: int | None = None,
        timed: bool = False,
    ):
        self.directory = Path(directory)
        self.next_seq = 0
        self._follow = follow
        self._files: list[Path] = []
        self._opened = 0
        self._file: pq.ParquetFile | None = None
        self._path = self.directory
        self._groups: Iterator[int] = iter(())
        self._seen_end = False
        self._prefetch = ThreadPoolExecutor(1, "prefetch")
        self._coming: Future[Rows | None] | None = None
        if not follow:
            self._require_complete()
        elif not self.directory.is_dir():
            raise InputError("missing_file", f"{self.directory}: no such directory; give the ETL's output directory")
        live = is_live(directory)
        needed = timed or window.kind == "time" or "event_time_us" in asked
        if needed and not follow and not live and (nulls := count_null_times(directory)):
            raise null_times(self.directory, nulls, window)
        objects = objects and has_objects(directory)
        latest_us = None if live else latest_us
        self._columns = Columns(window, space, objects, asked, latest_us, timed, untimed=live)

    def read(self) -> Rows | None:
        """The next row group; the one after it is read meanwhile by a thread (Arrow lets go of the interpreter)."""
        coming = self._coming or self._prefetch.submit(self._read_group)
        self._coming = None
        rows = coming.result()
        if rows is not None:
            self._coming = self._prefetch.submit(self._read_group)
        return rows

    def skip_to(self, seq: int) -> None:
        """See `Source.skip_to`; looks at the footers of the files up to there."""
        while self._open_next():
            assert self._file is not None
            metadata = self._file.metadata
            for group in self._groups:
                rows = metadata.row_group(group).num_rows
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
        """Before anything is read: another `latest_us`."""
        self._columns.latest_us = latest_us

    @property
    def ended(self) -> bool:
        return self._seen_end

    def close(self) -> None:
        self._prefetch.shutdown(wait=True, cancel_futures=True)
        if self._file is not None:
            self._file.close()

    def _require_complete(self) -> None:
        if not (self.directory / "messages").is_dir():
            raise InputError(
                "missing_file", f"{self.directory}: has no folder messages/; give a directory that `skyray etl` wrote"
            )
        manifest = read_manifest(self.directory)
        if manifest is None and not list_message_files(self.directory):
            raise InputError(
                "missing_file", f"{self.directory / 'messages'}: holds no *.parquet files; run the ETL to its end first"
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
        """Go on to the next file; False if there is none, or not yet."""
        if self._opened == len(self._files):
            # The manifest is looked for first: what it says is complete was there before it.
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
        self._path = self._files[self._opened]
        self._opened += 1
        self._file = self._open_file(self._path)
        self._wanted = self._columns.of_file(self._path, self._file.schema_arrow)
        metadata = self._file.metadata
        self._groups = iter([i for i in range(metadata.num_row_groups) if metadata.row_group(i).num_rows])
        return True

    def _open_file(self, path: Path) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise damaged(path, f"cannot be opened as Parquet ({first_line(error)})") from error

    def _require_all(self, manifest: dict[str, Any] | None) -> None:
        expected = manifest.get("kept") if manifest else None
        if isinstance(expected, int) and expected != self.next_seq:
            raise InputError(
                "missing_file",
                f"{self.directory / 'messages'}: {self.next_seq:,} messages, manifest.json says {expected:,}; {REMEDY}",
            )

    def _decode(self, group: int) -> Rows:
        assert self._file is not None
        try:
            table = self._file.read_row_group(group, self._wanted, use_threads=False)
            table.validate(full=True)  # ids that are not UTF-8 would go on to whoever reads the output
            columns = {name: table.column(name).combine_chunks() for name in self._wanted}
            rows = self._columns.rows(columns, self.next_seq)
        except (OSError, pa.ArrowException) as error:
            raise damaged(self._path, f"row group {group} cannot be read ({first_line(error)})") from error
        self.next_seq += len(rows.messages)
        return rows


class ParquetSpout(MessageSpout):
    """Clock spout over the output directory of the ETL; parameters as in `ParquetSource` and `MessageSpout`.

    max_ahead_s : float, optional    messages dated so long after the start of the run are set aside
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        window: Window,
        space: Space,
        batch: int | Cuts,
        limit: int | None = None,
        follow: bool = False,
        receiver: str = "distribution",
        poll_s: float = 0.2,
        asked: Collection[str] = (),
        max_ahead_s: float | None = None,
        rate: float | None = None,
        aside: Quarantine = NOBODY,
    ):
        super().__init__(window, batch, limit, receiver, poll_s, rate, aside)
        self.directory = str(directory)
        self.space = space
        self.follow = follow
        self.asked = tuple(asked)
        self.max_ahead_s = max_ahead_s
        self.timed = isinstance(batch, Cuts) and batch.step_us > 0
        self.latest_us: int | None = None

    def open(self, context: Context) -> None:
        """Open the source: now is the start of the run, unless `restore` says otherwise."""
        if self.max_ahead_s is not None and not is_live(self.directory):
            self.latest_us = int((context.now() + self.max_ahead_s) * 1e6)
        super().open(context)

    def open_source(self) -> ParquetSource:
        return ParquetSource(
            self.directory,
            self.cutter.window,
            self.space,
            self.follow,
            objects=True,
            asked=self.asked,
            latest_us=self.latest_us,
            timed=self.timed,
        )

    def state(self) -> dict[str, np.ndarray]:
        """Beside the position: what was too late when the run began."""
        return super().state() | {"latest_us": np.array([] if self.latest_us is None else [self.latest_us], np.int64)}

    def restore(self, saved: Saved) -> None:
        latest_us = saved.single(self._context.component)["latest_us"]
        self.latest_us = int(latest_us[0]) if latest_us.shape[0] else None
        assert isinstance(self._source, ParquetSource), "open() comes first"
        self._source.set_latest(self.latest_us)
        super().restore(saved)

    def report(self) -> dict[str, Any]:
        """Beside the counts: what kinds asked of messages, and the event time above which they are set aside."""
        return super().report() | {"asked": list(self.asked), "latest_us": self.latest_us}


def read_messages(
    directory: str | os.PathLike[str],
    window: Window,
    space: Space,
    batch: int,
    limit: int | None = None,
    asked: Collection[str] = (),
    latest_us: int | None = None,
) -> Iterator[Batch]:
    """Iterate over `(Boundary, MessageBatch, Names)` exactly as a run with these settings sees them.

    Raises
    ------
    InputError, ConfigError
        As `ParquetSource` and `Cutter`.

    Notes
    -----
    Memory for about two row groups.
    """
    source = ParquetSource(directory, window, space, asked=asked, latest_us=latest_us)
    return read_all(source, Cutter(window, batch, limit))


def list_message_files(directory: str | os.PathLike[str]) -> list[Path]:
    """The message files of an ETL directory in the order of seq, which is the order of their names."""
    # A name that starts with a dot or underscore belongs to whoever is still writing it.
    return sorted(path for path in Path(directory, "messages").glob("*.parquet") if path.name[0] not in "._")


def read_manifest(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """`manifest.json` of an ETL directory; None if there is none (yet). Raises InputError if it is damaged."""
    path = Path(directory, "manifest.json")
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise InputError(
            "not_an_etl_folder",
            f"{directory}: is a file; make a folder of it with `skyray etl {directory} --out FOLDER`",
        ) from error
    except (OSError, ValueError) as error:
        raise damaged(path, f"cannot be read as JSON ({first_line(error)})") from error
    if not isinstance(manifest, dict):
        raise damaged(path, "holds no JSON object")
    if manifest.get("format_version", ETL_FORMAT) != ETL_FORMAT:
        raise InputError(
            "wrong_version",
            f"{path}: ETL output of format {manifest['format_version']}, this release reads {ETL_FORMAT}; "
            "run the ETL again",
        )
    return manifest


def is_live(directory: str | os.PathLike[str]) -> bool:
    """Whether an ETL directory was left by a live stream: ids may come twice, times may be null, and which messages are
    dated too far ahead has been decided (the column `ahead`)."""
    return bool((read_manifest(directory) or {}).get("live"))


def read_span(directory: str | os.PathLike[str]) -> tuple[int, float] | None:
    """How many messages an ETL directory has, and seconds from the first event to the last; None if unknown.

    As the footers of the files say, O(row groups): nothing else is read, and what is damaged is told by who reads it.
    """
    rows, low, high = 0, None, None
    try:
        for path in list_message_files(directory):
            footer = pq.read_metadata(path)
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

    For balancing a router by the load to come; points outside the box are left out. Reads the coordinates alone.
    """
    files = list_message_files(directory)
    lons, lats = [np.zeros(0)], [np.zeros(0)]
    try:
        rows = 0
        for path in files:
            rows += pq.read_metadata(path).num_rows
        step = max(1, rows // max(1, count))
        for path in files:
            table = pq.read_table(path, columns=["lon", "lat"], use_threads=False)
            lons.append(table.column("lon").to_numpy()[::step])
            lats.append(table.column("lat").to_numpy()[::step])
    except (OSError, KeyError, pa.ArrowException) as error:
        raise damaged(path, f"cannot be read as Parquet ({first_line(error)})") from error
    lon, lat = np.concatenate(lons), np.concatenate(lats)
    inside = space.contains(lon, lat)
    return space.project(lon[inside], lat[inside])


def count_null_times(directory: str | os.PathLike[str]) -> int:
    """How many messages of an ETL directory have no event time: `time:` windows and `decay` refuse them.

    Reads the footers of the files, or the column where a footer does not say.
    """
    nulls = 0
    for path in list_message_files(directory):
        try:
            with pq.ParquetFile(path) as file:
                nulls += _null_times_of(file)
        except (OSError, pa.ArrowException) as error:
            raise damaged(path, f"cannot be read as Parquet ({first_line(error)})") from error
    return nulls


def has_objects(directory: str | os.PathLike[str]) -> bool:
    """Whether a message of an ETL directory replaces or deletes another, as far as that can be told.

    False if every message is an object of its own and none is a deletion: then nobody need look at objects. True for a
    directory that is still being written, and for one that a live stream left, in which an id may come again: its
    message is then a new version. Reads three columns, up to the first message that says yes; 0.1 us a message.
    """
    manifest = read_manifest(directory)
    if manifest is None or manifest.get("deletes") or manifest.get("live"):
        return True
    for path in list_message_files(directory):
        try:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
                wanted = ["message_id", *(name for name in OBJECT_COLUMNS if has_column(path, schema, name))]
                for group in range(file.metadata.num_row_groups if len(wanted) > 1 else 0):
                    table = file.read_row_group(group, wanted, use_threads=False)
                    columns = {name: table.column(name).combine_chunks() for name in wanted}
                    names, op = object_columns(columns)
                    own = columns["message_id"].cast(pa.large_string())
                    if not names.cast(pa.large_string()).equals(own) or np.any(op.to_numpy()):
                        return True
        except (OSError, pa.ArrowException) as error:
            raise damaged(path, f"cannot be read as Parquet ({first_line(error)})") from error
    return False


def _null_times_of(file: pq.ParquetFile) -> int:
    names = file.schema_arrow.names
    if "event_time" not in names:
        return file.metadata.num_rows
    leaves = [file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)]
    column = leaves.index("event_time")
    nulls = 0
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(column).statistics
        if statistics is not None and statistics.has_null_count:
            nulls += statistics.null_count
        else:
            nulls += file.read_row_group(group, ["event_time"]).column(0).null_count
    return nulls
