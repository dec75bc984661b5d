"""Checkpoints as files: a frame for each task, then a manifest that names them, which makes the checkpoint.

    epoch-000012.query-0.3.frame    what task 0 of `query` said in epoch 12; written by incarnation 3 of the run
    epoch-000012.json               the manifest: boundary, files with their checksums, parts that get their names

Tasks write their frames where they run; the manifest is written by the driver alone, last of all. Names carry the
incarnation, so that a process that was given up for dead and wakes again can spoil nothing. A file that no manifest
names is rubbish, and goes. Read on in `topology.core.checkpoint.task_states` (a frame),
`topology.core.checkpoint.coordinator` (the driver's part).
"""

import json
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import xxhash

from matching.errors import CheckpointError
from topology.core import frames
from topology.core.api.component import Saved
from topology.core.checkpoint.storage import Disk, Output, open_disk, written
from topology.core.checkpoint.task_states import Copied, TaskState, pack_parts, unpack_task

#: `format` in manifests that this release reads and writes.
FORMAT = 2
#: Checkpoints that are kept: if the newest proves damaged there is another.
KEPT = 2

_MANIFEST = re.compile(r"epoch-(\d{6,})\.json")
_OURS = re.compile(r"\.?epoch-(\d{6,})\.")


class SavedFile(NamedTuple):
    """One task's file. `checksum` is that of the frame."""

    component: str
    task: int
    tasks: int
    name: str
    size_bytes: int
    checksum: str


class Manifest(NamedTuple):
    """A whole checkpoint.

    epoch, number : int    which checkpoint, and the last batch it covers
    incarnation : int    how often the run had been gone on with when it was written
    files : tuple of SavedFile
    outputs : tuple of (str, str)
        Temporary name and name of each file that is published with it, relative to the folder of the run.
    facts : mapping
        What else must be known to go on: JSON values.
    """

    epoch: int
    number: int
    incarnation: int
    files: tuple[SavedFile, ...]
    outputs: tuple[tuple[str, str], ...]
    facts: Mapping[str, Any]


class CheckpointStore:
    """The checkpoints of one run.

    Parameters
    ----------
    folder : str
        Path, or a URI that `pyarrow.fs` knows.

    Attributes
    ----------
    refused : list of str
        Why checkpoints that `newest` looked at cannot be used.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.refused: list[str] = []
        self._disk: Disk | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "refused": [], "_disk": None}

    @property
    def disk(self) -> Disk:
        """Where they lie. Raises CheckpointError for a URI nobody knows."""
        if self._disk is None:
            try:
                self._disk = open_disk(self.folder)
            except (OSError, ValueError, ImportError) as error:
                raise CheckpointError(f"{self.folder}: cannot hold checkpoints ({error}); name a folder") from error
        return self._disk

    def write_task(self, state: TaskState, epoch: int, incarnation: int) -> SavedFile:
        """Write one task's state, wholly or not at all.

        Raises
        ------
        CheckpointError
            If it cannot be written, or a frame cannot hold it.
        """
        parts = pack_parts(state)
        name = f"epoch-{epoch:06d}.{state.component}-{state.task}.{incarnation}.frame"
        self._write(name, parts)
        checksum = f"{frames.checksum_of(b''.join(parts[:2])):016x}"
        return SavedFile(state.component, state.task, state.tasks, name, sum(map(len, parts)), checksum)

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest, which makes a checkpoint of what the tasks have written. Raises CheckpointError."""
        self._write(f"epoch-{manifest.epoch:06d}.json", [_encode(manifest)])

    def newest(self) -> Manifest | None:
        """The newest checkpoint all of whose files are there and undamaged; None if there is none. O(its bytes).

        Raises
        ------
        CheckpointError
            If the newest one is of another format: it must not be taken for damaged.
        """
        self.refused = []
        for epoch in sorted(self._epochs(), reverse=True):
            try:
                manifest = self._read_manifest(epoch)
                for file in manifest.files:
                    self._read_task(file, manifest.number)
            except _OtherFormat:
                raise
            except CheckpointError as error:
                self.refused.append(f"checkpoint {epoch}: {error}")
                continue
            return manifest
        return None

    def last_epoch(self) -> int:
        """The largest epoch that anything here is of, -1 if there is nothing: the next one must be above it."""
        found = (_OURS.match(name) for name in self._names())
        return max((int(match[1]) for match in found if match), default=-1)

    def load(self, manifest: Manifest) -> Saved:
        """A checkpoint to go on from. Files are read when they are asked for, and looked at again."""
        sizes = {file.component: file.tasks for file in manifest.files}
        files: dict[str, list[SavedFile]] = {name: [] for name in sizes}
        for file in sorted(manifest.files, key=lambda file: file.task):
            files[file.component].append(file)
        parts = {name: _Tasks(self, mine, manifest.number) for name, mine in files.items()}
        return Saved(manifest.number, parts)

    def prune(self, kept: int = KEPT) -> None:
        """Remove all but the newest `kept` checkpoints that can be read, and what belongs to none of them.

        Raises
        ------
        CheckpointError
            If the folder cannot be changed.
        """
        keep: dict[int, set[str]] = {}
        for epoch in sorted(self._epochs(), reverse=True):
            if len(keep) < kept:
                with suppress(CheckpointError):  # a damaged one is of no use, and must not stand for one that is
                    keep[epoch] = {file.name for file in self._read_manifest(epoch).files}
        if not keep:
            return
        named = set().union(*keep.values())
        try:
            for name in self._names():
                match = _OURS.match(name)
                if match is None or int(match[1]) > max(keep):
                    continue  # not ours, or being written
                if name not in named and not (_MANIFEST.fullmatch(name) and int(match[1]) in keep):
                    self.disk.remove(name)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def clear_above(self, epoch: int) -> None:
        """Remove what is of later epochs than this: of a run that went back behind them. Raises CheckpointError."""
        try:
            for name in self._names():
                match = _OURS.match(name)
                if match is not None and int(match[1]) > epoch:
                    self.disk.remove(name)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _epochs(self) -> Iterator[int]:
        matches = (_MANIFEST.fullmatch(name) for name in self._names())
        return (int(match[1]) for match in matches if match)

    def _names(self) -> list[str]:
        try:
            return self.disk.names()
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be read ({error.strerror or error})") from error

    def _write(self, name: str, parts: Iterable[frames.Buffer]) -> None:
        try:
            with written(self.disk, name, f".{name}.tmp") as file:
                for part in parts:
                    file.write(part)
        except OSError as error:
            raise _unwritable(f"{self.folder}/{name}", error) from error

    def _read_manifest(self, epoch: int) -> Manifest:
        name = f"epoch-{epoch:06d}.json"
        return _decode(self._read(name), f"{self.folder}/{name}", epoch)

    def _read_task(self, file: SavedFile, number: int) -> TaskState:
        origin = f"{self.folder}/{file.name}"
        data = self._read(file.name)
        if f"{frames.checksum_of(data):016x}" != file.checksum:
            raise CheckpointError(f"{origin}: is not the file that the manifest names (another checksum)")
        state = unpack_task(data, origin)
        if (state.component, state.task, state.tasks, state.number) != (
            file.component,
            file.task,
            file.tasks,
            number,
        ):
            raise CheckpointError(f"{origin}: is of {state.component}:{state.task} behind batch {state.number}")
        return state

    def _read(self, name: str) -> frames.Buffer:
        try:
            return self.disk.read(name)
        except OSError as error:
            raise CheckpointError(f"{self.folder}/{name}: cannot be read ({error.strerror or error})") from error


class _Tasks(Sequence[Mapping[str, np.ndarray]]):
    """What the tasks of a component said, each read when it is first asked for."""

    def __init__(self, store: CheckpointStore, files: Sequence[SavedFile], number: int):
        self._store = store
        self._files = files
        self._number = number
        self._read: dict[int, Mapping[str, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, task: Any) -> Any:
        if isinstance(task, slice):
            return tuple(self[each] for each in range(*task.indices(len(self))))
        place = range(len(self._files))[task]
        if place not in self._read:
            self._read[place] = self._store._read_task(self._files[place], self._number).arrays
        return self._read[place]


class Writer:
    """What writes the states of the tasks of one process, one after the other; `fetch` tells how it went.

    Parameters
    ----------
    store : CheckpointStore
    incarnation : int
    behind : bool
        Whether by a thread, behind the stream.
    """

    def __init__(self, store: CheckpointStore, incarnation: int, behind: bool = True):
        from concurrent.futures import ThreadPoolExecutor

        self._store = store
        self._incarnation = incarnation
        self._threads = ThreadPoolExecutor(1, "checkpoint") if behind else None
        self._done: deque[Written] = deque()

    def write(self, copied: Copied) -> None:
        """Finish one task's outputs and write its state; returns at once if that is done behind the stream."""
        if self._threads is None:
            self._write(copied)
        else:
            self._threads.submit(self._write, copied)

    def fetch(self) -> list["Written"]:
        """What has been written, or failed, since the last call."""
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def drain(self) -> None:
        """Wait for what is being written."""
        if self._threads is not None:
            self._threads.submit(int).result()

    def close(self) -> None:
        """Wait for what is being written, and take no more."""
        if self._threads is not None:
            self._threads.shutdown(wait=True)

    def _write(self, copied: Copied) -> None:
        address, epoch, state, closings, pause_s = copied
        began = time.perf_counter()
        outputs: list[Output] = []
        file, error, fatal = None, "", ""
        try:
            outputs += [close() for close in closings]
        except Exception as cause:  # what was told is lost, and only a run that goes back tells it again
            fatal = str(cause) or repr(cause)
        if not fatal:
            try:
                file = self._store.write_task(state, epoch, self._incarnation)
            except Exception as cause:  # a checkpoint that fails must not end the run
                error = str(cause) or repr(cause)
        took_s = time.perf_counter() - began
        name = f"{state.component}:{state.task}"
        told = (tuple(outputs), pause_s, took_s, error, fatal)
        self._done.append(Written(address, name, epoch, state.number, file, *told))


class Written(NamedTuple):
    """How saving one task went; seconds of copying and writing.

    `file` is None, and `error` says why, if it failed; `fatal` says why the run cannot go on.
    """

    address: int
    task: str
    epoch: int
    number: int
    file: SavedFile | None
    outputs: tuple[Output, ...]
    pause_s: float
    write_s: float
    error: str
    fatal: str = ""


class _OtherFormat(CheckpointError):
    """A checkpoint of an older or later release."""


def _encode(manifest: Manifest) -> bytes:
    body = {
        "epoch": manifest.epoch,
        "number": manifest.number,
        "incarnation": manifest.incarnation,
        "files": [file._asdict() for file in manifest.files],
        "outputs": [list(pair) for pair in manifest.outputs],
        "facts": dict(manifest.facts),
    }
    return json.dumps({"format": FORMAT, "checksum": _checksum(FORMAT, body), "checkpoint": body}, indent=1).encode()


def _decode(data: frames.Buffer, origin: str, epoch: int) -> Manifest:
    try:
        told = json.loads(bytes(data))
        other = isinstance(told, dict) and isinstance(told.get("format"), int) and told["format"] != FORMAT
        if other and _checksum(told["format"], told["checkpoint"]) == told["checksum"]:
            raise _OtherFormat(
                f"{origin}: format {told['format']}, this release reads format {FORMAT}; go on with the release that "
                "wrote it"
            )
        body = told["checkpoint"]
        if told["format"] != FORMAT or told["checksum"] != _checksum(FORMAT, body):
            raise CheckpointError(f"{origin}: has a wrong checksum; it is damaged")
        files = tuple(SavedFile(**file) for file in body["files"])
        outputs = tuple((str(temporary), str(name)) for temporary, name in body["outputs"])
        manifest = Manifest(body["epoch"], body["number"], body["incarnation"], files, outputs, body["facts"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{origin}: is no manifest of a checkpoint ({error}); it is damaged") from error
    if manifest.epoch != epoch:
        raise CheckpointError(f"{origin}: is the manifest of checkpoint {manifest.epoch}")
    named = sorted((file.component, file.tasks, file.task) for file in files)
    sizes = {file.component: file.tasks for file in files}
    if named != [(name, sizes[name], task) for name in sorted(sizes) for task in range(sizes[name])]:
        raise CheckpointError(f"{origin}: does not name every task once; it was written by mistake")
    return manifest


def _checksum(version: int, body: Any) -> str:
    """Of the format too: one flipped bit of it would pass for a later release's."""
    return xxhash.xxh3_64_hexdigest(json.dumps([version, body], sort_keys=True).encode())


def _unwritable(path: str, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path}: cannot be written ({error.strerror or error}); free space or name another folder for checkpoints"
    )
