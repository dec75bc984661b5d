"""Copies the folder of a stream or run, also while a process writes to it, so that the copy can be resumed.

What points is copied before what it points to: webhooks and positions of sinks, how far the log was acknowledged, the
newest checkpoint, the parts of updates, and the log last. So the copy's log has every message that its checkpoint and
its parts know, its parts have every update that its checkpoint counts on, and no sink is ahead of it. The log's last
record may be cut off by the copy: nothing knows it. The copy is checked as a resumed stream reads it, and gets its name
last.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from bolts.delivery import undelivered
from bolts.shares import joined
from bolts.sinks import read_part
from gateway.live.acknowledged import refuse_lost
from gateway.live.opening import reopened
from gateway.shell.terminal import writing_to
from matching.errors import CheckpointError, ConfigError
from matching.part_names import ListedPart, listed_line
from spouts.history import LOG
from spouts.log import BASE, base_of
from topology.core.checkpoint.storage import check_part, force, list_path, parts_list
from topology.core.checkpoint.store import CheckpointStore, manifest_name
from topology.folder import CHECKPOINTS, REPORT, RunFolder

#: Attempts: what is copied may be removed, or the stream resumed, during one.
_TRIES = 5
#: Files with a copy of their own, or none: what is derived, or of a process.
_OTHERWISE = (CHECKPOINTS, "updates", "updates.list", REPORT)


class CheckedCopy(NamedTuple):
    """Contents of a copy that was checked.

    messages : int    in the log, clock marks among them; 0 of a run over files
    parts, updates : int    parts of updates, and the updates in them and in the checkpoint
    lost_parts : int    parts that were gone from the folder
    size_bytes : int
    """

    messages: int
    parts: int
    updates: int
    lost_parts: int
    size_bytes: int


def back_up(folder: Path, to: Path) -> CheckedCopy:
    """Copy a folder, check the copy, and give it its name.

    Parameters
    ----------
    folder : Path
        Of a stream or run, which may be running; it is only read.
    to : Path
        Must not exist.

    Raises
    ------
    ConfigError
        If `to` exists.
    InputError
        If the folder is no run's.
    CheckpointError
        If the copy cannot be resumed: something in the folder is damaged or gone.
    DeliveryError
        If the copy cannot be written.

    Notes
    -----
    O(bytes of the folder). Each try copies all.
    """
    if to.exists():
        raise ConfigError(f"{to}: is there already; name a folder that is not")
    RunFolder(folder).report()
    with writing_to(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
        try:
            found = _tried(folder, partial / "copy")
            for path in [*_below(partial / "copy"), partial / "copy"]:
                force(path)
            os.rename(partial / "copy", to)
            force(to.parent)
            return found
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _tried(folder: Path, copy: Path) -> CheckedCopy:
    error: Exception | None = None
    for _ in range(_TRIES):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir(mode=0o700)
        before = _life(folder)
        try:
            _copy(folder, copy)
        except FileNotFoundError as gone:
            error = gone
            continue
        if _life(folder) == before:
            return check_copy(copy)
    raise CheckpointError(f"{folder}: changes faster than it is copied ({error or 'it was resumed'}); try again")


def _life(folder: Path) -> tuple[Any, ...]:
    """What changes when a stream is resumed, or ends, or its beginning is removed."""
    report, base = RunFolder(folder).report(), (folder / LOG).with_name(BASE)
    return report.get("incarnation"), report.get("state"), base.stat().st_ino if base.exists() else None


def _copy(folder: Path, copy: Path) -> None:
    """Copy in the order of the module. Raises FileNotFoundError if something was removed meanwhile."""
    for path in _below(folder):
        inside = path.relative_to(folder)
        if inside.parts[0] in _OTHERWISE or inside == LOG or path.name.startswith("."):
            continue
        if path.is_dir():
            (copy / inside).mkdir(mode=path.stat().st_mode & 0o777, parents=True, exist_ok=True)
        elif path.suffix == ".sqlite":
            _copy_database(path, copy / inside)
        elif not path.name.endswith((".sqlite-wal", ".sqlite-shm")):
            shutil.copy2(path, copy / inside)
    _copy_updates(folder, copy)
    shutil.copy2(folder / REPORT, copy / REPORT)
    if (folder / LOG).exists():
        _copy_log(folder / LOG, copy / LOG)


def _copy_log(log: Path, to: Path) -> None:
    """Copy a log, whose beginning may be a hole, which the copy has then, too."""
    base = base_of(log)
    with open(log, "rb") as source, open(to, "wb") as target:
        if base is not None:
            base.file.close()
            for file in (source, target):
                file.seek(base.offset)
        shutil.copyfileobj(source, target, 1 << 20)
    shutil.copystat(log, to)


def _copy_database(path: Path, to: Path) -> None:
    try:
        with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(to)) as other:
            one.backup(other)
    except sqlite3.Error as error:
        raise CheckpointError(f"{path}: cannot be copied ({error}); it is damaged, restore it") from error
    to.chmod(path.stat().st_mode & 0o777)


def _copy_updates(folder: Path, copy: Path) -> None:
    """Copy the newest checkpoint, then the parts, also those that it covers and that have no name yet."""
    names: dict[str, str] = {}
    parts: dict[str, ListedPart] = {}
    store = CheckpointStore(str(folder / CHECKPOINTS))
    manifest = store.newest()
    if manifest is None and store.refused:
        raise FileNotFoundError(store.refused[0])  # it may have been replaced meanwhile
    if manifest is not None:
        (copy / CHECKPOINTS).mkdir(mode=0o700)
        for name in (*(name for file in manifest.files for name in file.names), manifest_name(manifest.epoch)):
            shutil.copy2(folder / CHECKPOINTS / name, copy / CHECKPOINTS / name)
        names = {Path(name).name: Path(temporary).name for temporary, name in manifest.outputs}
        parts = {Path(name).name: ListedPart(**facts) for name, facts in manifest.parts.items()}
    updates = folder / "updates"
    if not updates.is_dir():
        return
    (copy / "updates").mkdir(mode=updates.stat().st_mode & 0o777)
    before = parts_list(updates)  # those of it that are not copied are gone; later ones may be named meanwhile
    names = {path.name: names.get(path.name, path.name) for path in updates.glob("part-*")} | names
    for name, temporary in names.items():
        for there in (name, temporary, name):  # it may get its name in between; or was read and removed by its reader
            with suppress(FileNotFoundError):
                shutil.copy2(updates / there, copy / "updates" / name)
                break
    listed = before | {name: part for name, part in {**parts, **parts_list(updates)}.items() if name in names}
    lines = [listed_line(name, part._asdict()) for name, part in listed.items()]
    if lines:
        list_path(copy / "updates").write_bytes(b"".join(lines))


def check_copy(copy: Path) -> CheckedCopy:
    """Check that a folder which no process writes to can be resumed, as one that resumes it reads it.

    Raises
    ------
    CheckpointError
        If it cannot.
    """
    report, messages, updates = RunFolder(copy).report(), 0, 0
    store = CheckpointStore(str(copy / CHECKPOINTS))
    manifest = store.newest()
    if store.refused:
        raise CheckpointError(f"the copy's {store.refused[0]}")
    if manifest is not None:
        updates = len(undelivered(joined(store.load(manifest).tasks("delivery"))))
    listed = parts_list(copy / "updates")
    paths = {path.name: path for path in sorted((copy / "updates").glob("part-*"))}
    for name, path in paths.items():
        if path.suffix == ".parquet":
            updates += len(read_part(path, listed.get(name)))
        else:
            check_part(path, listed.get(name))
            updates += listed[name].rows if name in listed else 0
    if report.get("live") and (copy / LOG).exists():
        messages = _check_log(copy, report)
    size_bytes = sum(path.stat().st_size for path in _below(copy) if path.is_file())
    return CheckedCopy(messages, len(paths), updates, len(listed.keys() - paths.keys()), size_bytes)


def _check_log(copy: Path, report: dict[str, Any]) -> int:
    """Check the log, cut what the copy has cut off, and return the messages of the rest."""
    with tempfile.TemporaryDirectory(prefix="skyray-check-") as scratch:
        wal, admission = reopened(copy, report["live"], Path(scratch))
        wal.replay(admission)
        refuse_lost(copy, wal.log, wal.size_bytes, wal.next_seq - 1)
    os.truncate(wal.log, wal.size_bytes)
    return wal.next_seq


def _below(folder: Path) -> Iterator[Path]:
    """All files and folders below a folder, a folder before what is in it."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
