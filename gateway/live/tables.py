"""Tables of a live stream that has ended: converted from its log by the first command that reads them, then kept.

A stream that ends leaves its log, which may have millions of messages, as it is (`gateway.live.recording`). Commands
that read the folder need messages in columns; the first of them converts the log to `tables/`, and says in
`tables/log.json` up to which byte. A log only ever grows, so tables of as many bytes are those of the log; if the
stream was resumed and has ended again, they are converted anew. They are derived: removing them loses nothing.
The lock of the stream is not taken, so a reader never stands in the way of a server that starts. Where the folder
cannot be written the tables go to another place.
"""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.live.admission import Admission
from gateway.live.recording import write_tables
from gateway.live.write_ahead_log import ANSWER_SETTINGS, WriteAheadLog, start_of
from gateway.shell.terminal import writing_to
from matching.errors import CheckpointError, DeliveryError
from matching.window import Window
from spouts.subscriptions import load_vocabulary
from topology.core.checkpoint.storage import LocalDisk, written
from topology.settings import LiveConfig, live_config
from topology.wiring import space_of

#: Where they are in the folder of the stream.
TABLES = "tables"
#: Says of which part of the log they are.
_STAMP = "log.json"
#: Grows when they are written otherwise.
_FORMAT = 1
#: While they are converted; and the lock of the process that does it.
_PARTIAL, _LOCK = ".tables", ".tables.lock"


def tables_of(folder: Path, report: Mapping[str, Any], elsewhere: Callable[[], Path]) -> Path:
    """The folder of the tables of a stream that has ended; converted if they are not there.

    Parameters
    ----------
    folder : Path
        Of the stream.
    report : mapping
        Its `run.json`.
    elsewhere : callable
        Returns an empty folder for the tables, if that of the stream cannot be written.

    Raises
    ------
    CheckpointError
        If the log is damaged.
    InputError, DeliveryError
        If the stream's vocabulary cannot be read; if the tables cannot be written anywhere.

    Notes
    -----
    O(1) if they are there, else O(bytes of the log): about half a minute for a million messages. Another process that
    reads the folder meanwhile waits for the tables instead of converting the log, too. Earlier releases left the tables
    in the folder itself, which is then returned.
    """
    if "log_bytes" not in report:
        return folder
    tables, stamp = folder / TABLES, {"format": _FORMAT, "log_bytes": report["log_bytes"], "run": report.get("run")}
    if _stamp_of(tables) == stamp:
        return tables
    try:
        with _converting(folder):
            if _stamp_of(tables) != stamp:
                _replace(tables, folder / _PARTIAL, lambda out: _convert(folder, report, stamp, out))
        return tables
    except (OSError, DeliveryError):
        out = elsewhere()
        with writing_to(out):
            _convert(folder, report, stamp, out)
        return out


def reopened(folder: Path, live: Mapping[str, Any], out: Path) -> tuple[LiveConfig, WriteAheadLog, Admission]:
    """A stream to read, whose log is to be replayed; its folder is neither locked nor written.

    `live` as `run.json` has it. Raises as `load_vocabulary`.
    """
    start = start_of(folder, live)
    options = {name: live[name] for name in ANSWER_SETTINGS}
    options |= {"most_terms": live.get("most_terms", 0), "executor": "local"}
    config = live_config(options, start, out)
    admission = Admission(load_vocabulary(start, config.most_terms), space_of(config), Window.parse(config.window))
    return config, WriteAheadLog(folder, dict(live), None, admission.window), admission


def _convert(folder: Path, report: Mapping[str, Any], stamp: Mapping[str, Any], out: Path) -> None:
    """Write the tables, and last what they are of."""
    _, wal, admission = reopened(folder, report["live"], out)
    wal.replay(admission, through=stamp["log_bytes"])
    if wal.size_bytes != stamp["log_bytes"]:
        raise CheckpointError(
            f"{wal.log}: has {wal.size_bytes:,} bytes of whole records, and run.json says {stamp['log_bytes']:,}; "
            "restore the folder"
        )
    write_tables(wal, admission, out)
    with written(LocalDisk(out), _STAMP, f".{_STAMP}.tmp") as file:
        file.write(json.dumps(stamp).encode())


def _stamp_of(tables: Path) -> Any:
    try:
        return json.loads((tables / _STAMP).read_bytes())
    except (OSError, ValueError):
        return None


@contextmanager
def _converting(folder: Path) -> Iterator[None]:
    """A block that one process at a time is in. Raises OSError if the folder cannot be written."""
    with open(folder / _LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(tables: Path, partial: Path, convert: Callable[[Path], None]) -> None:
    """Convert into a new folder, which then takes the place of the tables; of an earlier try nothing is left."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        convert(partial)
        shutil.rmtree(tables, ignore_errors=True)
        partial.rename(tables)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
