"""The folder of a run on a disk: its lock, the state of the run, and checks of its inputs on resume.

`run.json` exists from the start and has `state`: running, finished, interrupted or failed. One process at a time writes
to a folder: it has a lock, which ends with the process. `topology.store_folder` is the same in an object store.
"""

import contextlib
import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from matching.errors import CheckpointError, ConfigError, InputError, InUseError
from matching.part_names import whole_parts
from matching.words.tokeniser import RULES
from spouts.history import LOG, history_of
from spouts.log import BASE
from spouts.log import FORMAT as LOG_FORMAT
from topology.core.checkpoint.storage import LocalDisk, remove_parts, written
from topology.core.checkpoint.store import FORMAT as CHECKPOINT_FORMAT
from topology.core.places import checksum

RUNNING, FINISHED, INTERRUPTED, FAILED = "running", "finished", "interrupted", "failed"
#: State of a run that `run.json` calls running, although no process has the lock.
DIED = "interrupted (its process died)"
REPORT = "run.json"
#: The formats of a folder that have numbers, as this release writes them; `run.json` has them.
FORMATS = {"log": LOG_FORMAT, "checkpoint": CHECKPOINT_FORMAT, "words": RULES}
#: Of a folder whose log has a base (`spouts.log.BASE`).
_BASE_FORMAT = {"base": 1}
CHECKPOINTS = "checkpoints"
_LOCK = ".lock"
#: Folder for the files of the earlier run until the run that replaces it has opened.
_BEFORE = ".before"


class RunFolder:
    """The output folder of one run."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: Any = None
        self._writing = threading.Lock()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for the block. Raises InUseError if another process has the lock.

        A folder of a new run is for its user alone (0700), unless it is another user's: it gets what people wrote. A
        folder that the block has made and left empty is removed.
        """
        made = not self.path.exists()
        with self._take_lock() as lock:
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            if not (self.path / REPORT).exists():
                with contextlib.suppress(PermissionError):
                    self.path.chmod(0o700)
            try:
                yield
            finally:
                if made and [entry.name for entry in self.path.iterdir()] == [_LOCK]:
                    with contextlib.suppress(OSError):
                        (self.path / _LOCK).unlink()
                        self.path.rmdir()

    def _take_lock(self) -> Any:
        """The open lock file, locked by this process."""
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / _LOCK, "a+")  # noqa: SIM115 - closed by `locked`
            try:
                if not _try_lock(lock):
                    lock.seek(0)
                    who = lock.read().strip()
                    raise InUseError(
                        f"{self.path}: another run writes there{f' (process {who})' if who else ''}; let it end, or "
                        "name another folder"
                    )
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(self.path / _LOCK)):
                    return lock
            except FileNotFoundError:
                pass  # its owner has just removed it
            except BaseException:
                lock.close()
                raise
            lock.close()

    @contextlib.contextmanager
    def beginning(self, overwrite: bool) -> Iterator[Callable[[], None]]:
        """A block in which a run replaces what is there. Raises as `check_out`.

        Yields a function that the run calls once it has opened. If the block raises before, the folder is restored.
        """
        check_out(self.path, overwrite)
        before = self.path / _BEFORE
        if before.exists():
            shutil.rmtree(before)  # of a process that died while it began
        left = [entry for entry in self.path.iterdir() if entry.name != _LOCK]
        if left:
            before.mkdir()
            for entry in left:
                entry.rename(before / entry.name)
        opened = False

        def note_opened() -> None:
            nonlocal opened
            opened = True
            if before.exists():
                shutil.rmtree(before)

        try:
            yield note_opened
        except BaseException:
            if not opened:
                self.empty()
                if before.exists():
                    for entry in before.iterdir():
                        entry.rename(self.path / entry.name)
                    before.rmdir()
            raise

    def writer(self) -> int | None:
        """The process that has the lock; None if none has."""
        try:
            with open(self.path / _LOCK) as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    return int(lock.read().strip() or 0)
        except (OSError, ValueError):
            pass
        return None

    def check(self, overwrite: bool) -> None:
        """As `check_out`."""
        check_out(self.path, overwrite)

    def state(self) -> str:
        """The state of the run, `DIED` if its process has died. Raises as `report`."""
        written = self.writer() is not None
        values = str(self.report().get("state"))
        # checked twice: it may have begun to run, or ended, in between
        return DIED if values == RUNNING and not written and self.writer() is None else values

    def empty(self) -> None:
        """Remove all files of the run, except those of the run that it replaces.

        `run.json` goes last: without it the rest would be no run, if this process died meanwhile.
        """
        for entry in self.path.iterdir():
            if entry.name in (_LOCK, _BEFORE, REPORT):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if (self.path / REPORT).exists():
            LocalDisk(self.path).sync(REPORT)  # with the folder
            (self.path / REPORT).unlink()

    def claim(self, incarnation: int) -> int:
        """Become the one that writes to the run, to resume it, which the lock has done; the incarnation, or a later
        one."""
        return incarnation

    def claim_new(self) -> int:
        """Become the one that writes to a run that begins; its first incarnation."""
        return 0

    def has_parts(self) -> bool:
        """Whether a part of the updates has its name."""
        return any((self.path / "updates").glob("part-*"))

    def drop_incomplete_parts(self) -> None:
        """Remove the parts of a last number that lacks the first task's: the process died while it named them.

        No reader has seen them, and the updates are written again, those of each boundary under one number.
        """
        names = {path.name for path in (self.path / "updates").glob("part-*")}
        remove_parts(self.path / "updates", names - {part.text for part in whole_parts(names)})

    def drop_results(self) -> None:
        """Remove the results of a run that is resumed."""
        (self.path / "results.parquet").unlink(missing_ok=True)

    def append_rejects(self, lines: str) -> None:
        """Append to `rejected.jsonl`."""
        with open(self.path / "rejected.jsonl", "a") as file:
            file.write(lines)

    def clear_hidden(self) -> None:
        """Remove temporary files of an earlier process."""
        for folder in (self.path, self.path / "updates", self.path / CHECKPOINTS):
            for file in folder.glob(".*.tmp"):
                with contextlib.suppress(OSError):
                    file.unlink()

    def report(self) -> dict[str, Any]:
        """The contents of `run.json`. Raises InputError if it is missing, else as `decoded_report`."""
        path = self.path / REPORT
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise InputError("no_run", f"{self.path}: has no run.json; name the --out of a `skyray run`") from None
        except OSError as error:
            raise InputError("broken_file", f"{path}: cannot be read ({error}); run again") from error
        return decoded_report(data, path)

    def write_report(self, state: str, values: Mapping[str, Any]) -> None:
        """Write `run.json`, wholly or not at all."""
        with self._writing, written(LocalDisk(self.path), REPORT, f".{REPORT}.tmp") as file:
            file.write(encoded_report(state, values, has_base=self._has_base()))

    def stamp(self) -> None:
        """Say in `run.json` that the beginning of the log is gone: earlier releases refuse the folder by it."""
        with self._writing:
            values = self.report()
            with written(LocalDisk(self.path), REPORT, f".{REPORT}.tmp") as file:
                file.write(encoded_report(str(values["state"]), values, has_base=self._has_base()))

    def _has_base(self) -> bool:
        return (self.path / LOG).with_name(BASE).exists()


def encoded_report(state: str, values: Mapping[str, Any], has_base: bool = False) -> bytes:
    """`run.json` with a state and values, and the release and formats by which a folder is known for a later one's."""
    stamp = {"release": version("skyray"), "formats": FORMATS | (_BASE_FORMAT if has_base else {})}
    return json.dumps({"state": state, **values, **stamp}, indent=1, sort_keys=True).encode()


def decoded_report(data: bytes, path: "Path | str") -> dict[str, Any]:
    """The contents of `run.json`.

    Raises
    ------
    InputError
        If it is no JSON object.
    CheckpointError
        If a later release has written it, in formats that this one does not read.
    """
    try:
        values = json.loads(data)
    except ValueError as error:
        raise InputError("broken_file", f"{path}: cannot be read ({error}); run again") from error
    if not isinstance(values, dict):
        raise InputError("broken_file", f"{path}: is no report of a run; run again")
    formats, release = values.get("formats") or FORMATS, values.get("release")  # earlier releases did not note them
    later = [name for name, number in formats.items() if number > (FORMATS | _BASE_FORMAT).get(name, 0)]
    if later:
        raise CheckpointError(
            f"{path}: the folder was written by Skyray {release}, whose {later[0]} has format {formats[later[0]]}, and "
            f"this is Skyray {version('skyray')}, which has format {FORMATS.get(later[0], 'none')}: install Skyray "
            f"{release} or a later one, or restore a backup of before it"
        )
    return values


def _try_lock(lock: Any) -> bool:
    """Take the lock, if no process writes to the folder."""
    for wait_s in (0.01, 0.05, 0.0):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(wait_s)  # `RunFolder.writer` has it for an instant
        else:
            return True
    return False


def check_out(out: Path, overwrite: bool) -> None:
    """Check that the output folder may be written to.

    Raises
    ------
    ConfigError
        If the folder is not empty and `overwrite` is not set, or has files that are no run's.
    """
    if not out.exists():
        return
    left = [entry.name for entry in out.iterdir() if entry.name != _LOCK] if out.is_dir() else [out.name]
    if not left:
        return
    if not overwrite:
        raise ConfigError(f"output folder {out} is in use: name another, or add --overwrite to replace it")
    if not out.is_dir() or not ((out / REPORT).exists() or (out / _BEFORE).exists()):
        raise ConfigError(f"output folder {out} holds something that is no run of skyray: remove it yourself")


def checksums(files: Sequence[Path]) -> "Future[dict[str, str]]":
    """Checksums of all input files of a run by path, computed by a thread: 5 GB/s where they are in memory.

    Its result raises InputError if a file cannot be read.
    """
    thread = ThreadPoolExecutor(1, "checksums")
    sums = thread.submit(lambda: {str(path): checksum(path) for path in files})
    thread.shutdown(wait=False)
    return sums


def input_files(messages: Path, subscriptions: Sequence[Path]) -> list[Path]:
    """The files of an ETL folder, but for its log, and those of subscriptions; of a live stream what it says of itself.

    Its log may grow, and its records have checksums of their own.
    """
    etl = [path for path in messages.glob("*.parquet") if path.name[0] not in "._"]
    etl += [path for path in (messages / "messages").glob("*.parquet") if path.name[0] not in "._"]
    streams = [path / REPORT for path in (messages, *subscriptions) if history_of(path)]
    files = [path for path in subscriptions if not history_of(path)]
    return sorted({path.absolute() for path in [*etl, *streams, *files]}, key=str)


def refuse_changed(before: Mapping[str, str], now: Mapping[str, str], followed: bool) -> None:
    """Check that a run resumes with the inputs it began with; a followed folder may have more files.

    Raises
    ------
    InputError
        With the first file that has changed, is missing, or is new.
    """
    for path, digest in before.items():
        if path not in now:
            raise InputError("missing_file", f"{path}: was read when the run began and is gone; put it back")
        if now[path] != digest:
            raise InputError(
                "changed_input", f"{path}: has changed since the run began; put it back as it was, or run again"
            )
    new = [path for path in now if path not in before]
    if new and not followed:
        raise InputError("changed_input", f"{new[0]}: was not there when the run began; remove it, or run again")


def now_text() -> str:
    """This moment, for people."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
