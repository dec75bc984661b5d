"""Checkpoints as files: a frame for each task, then a manifest that names them, which makes the checkpoint.

    epoch-000012.query-0.3.frame         snapshot of task 0 of `query` in epoch 12, written by incarnation 3 of the run
    epoch-000010.query-0.knn.3.frame     a fragment of it that has not changed since epoch 10
    epoch-000012.json                    the manifest: boundary, files with their checksums, outputs to publish

Fragments that have not changed are not written again: `topology.core.checkpoint.writer` decides which file of which
checkpoint a later one names too. File names have the incarnation, so a process that was taken for dead and wakes again
overwrites nothing. Tasks write their frames where they run; only the driver writes the manifest, last. Files that no
manifest names are removed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import xxhash

from matching.errors import CheckpointError
from topology.core import frames
from topology.core.api.component import Saved
from topology.core.checkpoint.fence import KEPT, fence_of
from topology.core.checkpoint.storage import Disk, open_disk, written
from topology.core.checkpoint.task_states import TaskState, pack_parts, unpack_task

#: `format` of the manifests that this release writes; it grows with every change of what tasks save. `OLDEST` is the
#: format of the release before, the oldest that is read: what it did not save is empty after a restore.
FORMAT, OLDEST = 9, 8

_MANIFEST = re.compile(r"epoch-(\d{6,})(?:\.\d+)?\.json")
_OURS = re.compile(r"\.?epoch-(\d{6,})\.")


class SavedFragment(NamedTuple):
    """A frame with a fragment of a task's snapshot, which was written behind batch `number`."""

    name: str
    number: int
    size_bytes: int
    checksum: str


class SavedFile(NamedTuple):
    """One task's frame with its checksum, and the files of the fragments of its snapshot."""

    component: str
    task: int
    tasks: int
    name: str
    size_bytes: int
    checksum: str
    fragments: tuple[SavedFragment, ...] = ()

    @property
    def names(self) -> set[str]:
        """Names of the task's file and of its fragments."""
        return {self.name, *(fragment.name for fragment in self.fragments)}

    @property
    def total_bytes(self) -> int:
        """Bytes of the task's file and of its fragments."""
        return self.size_bytes + sum(fragment.size_bytes for fragment in self.fragments)


class Manifest(NamedTuple):
    """A committed checkpoint.

    epoch, number : int    which checkpoint, and the last batch it covers
    incarnation : int    the run's incarnation that wrote it
    files : tuple of SavedFile
    outputs : tuple of (str, str)
        Temporary name and name of each file that is published with it, relative to the folder of the run.
    facts : mapping
        JSON values that a resumed run needs besides.
    parts : mapping of str to mapping
        The entry of an output in the list of parts (`matching.part_names`), by name.
    """

    epoch: int
    number: int
    incarnation: int
    files: tuple[SavedFile, ...]
    outputs: tuple[tuple[str, str], ...]
    facts: Mapping[str, Any]
    parts: Mapping[str, Mapping[str, Any]] = {}


def manifest_name(epoch: int) -> str:
    """The file of an epoch's manifest, in the folder of checkpoints."""
    return f"epoch-{epoch:06d}.json"


class CheckpointStore:
    """The checkpoints of one run.

    Parameters
    ----------
    folder : str
        Path, or a URI `file://` or `s3://`.
    disk : Disk, optional
        The opened folder.

    Attributes
    ----------
    refused : list of str
        Why `newest` has skipped checkpoints.
    """

    def __init__(self, folder: str, disk: Disk | None = None):
        self.folder = folder
        self.refused: list[str] = []
        self._disk = disk

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "refused": [], "_disk": None}

    @property
    def disk(self) -> Disk:
        """The folder of checkpoints. Raises ConfigError for an unknown URI."""
        if self._disk is None:
            self._disk = open_disk(self.folder)
        return self._disk

    def write_task(
        self, state: TaskState, epoch: int, incarnation: int, fragments: tuple[SavedFragment, ...] = ()
    ) -> SavedFile:
        """Write the arrays of one task that have no file of their own. Raises as `write_fragment`."""
        own = self.write_fragment("", state, epoch, incarnation)
        return SavedFile(*state[:3], own.name, own.size_bytes, own.checksum, fragments)

    def write_fragment(self, fragment: str, state: TaskState, epoch: int, incarnation: int) -> SavedFragment:
        """Write a fragment of one task's state as a frame, wholly or not at all.

        Raises
        ------
        CheckpointError
            If it cannot be written, or a frame cannot hold it.
        """
        middle = f"{state.component}-{state.task}" + (f".{fragment}" if fragment else "")
        name, parts = f"epoch-{epoch:06d}.{middle}.{incarnation}.frame", pack_parts(state)
        self._write(name, parts)
        return SavedFragment(name, state.number, sum(map(len, parts)), _checksum_in(parts))

    def read_fragment(self, saved: SavedFragment, state: TaskState) -> TaskState:
        """The fragment of a file of the same task as `state`. Raises CheckpointError if it is damaged. O(bytes)."""
        return self._read_frame(state, saved.name, saved.checksum, saved.number)

    def is_saved(self, saved: SavedFragment, state: TaskState) -> bool:
        """Whether a fragment's file is there, undamaged, and has the arrays of this state of the same task. O(bytes).

        A resumed process calls it to keep the files of unchanged fragments.
        """
        parts = pack_parts(state._replace(number=saved.number))
        if saved.size_bytes != sum(map(len, parts)) or saved.checksum != _checksum_in(parts):
            return False
        try:
            self.read_fragment(saved, state)
        except CheckpointError:
            return False
        return True

    def has(self, name: str) -> bool:
        """Whether a file is there. Raises CheckpointError if the folder cannot be read."""
        return name in self._names()

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest, which makes a checkpoint of what the tasks have written; in an object store it and its
        outputs count once they are committed (`topology.core.checkpoint.fence`).

        Raises
        ------
        CheckpointError
            If it cannot be written.
        InUseError
            If another process has claimed the run.
        """
        fence = fence_of(self.folder)
        if fence is None:
            self._write(manifest_name(manifest.epoch), [_encode(manifest)])
            return
        name = f"epoch-{manifest.epoch:06d}.{manifest.incarnation}.json"
        self._write(name, [_encode(manifest)])
        try:
            fence.commit((path for _, path in manifest.outputs), name)
        except OSError as error:
            raise _unwritable(f"{self.folder}/{name}", error) from error

    def force(self, manifest: Manifest) -> None:
        """Force a manifest to disk, since the process that wrote it may have died first. Raises CheckpointError."""
        name = manifest_name(manifest.epoch)
        try:
            if self.disk.renames:
                self.disk.sync(name)
        except OSError as error:
            raise _unwritable(f"{self.folder}/{name}", error) from error

    def newest(self) -> Manifest | None:
        """The newest checkpoint all of whose files are there and undamaged; None if there is none. O(its bytes).

        Raises
        ------
        CheckpointError
            If the newest one is of another format, and so not damaged.
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
        """The largest epoch of any file here, -1 if there is none: the next one must be above it."""
        found = (_OURS.match(name) for name in self._names())
        return max((int(match[1]) for match in found if match), default=-1)

    def load(self, manifest: Manifest) -> Saved:
        """The snapshots of a checkpoint. Files are read, and checked again, on access."""
        sizes = {file.component: file.tasks for file in manifest.files}
        files: dict[str, list[SavedFile]] = {name: [] for name in sizes}
        for file in sorted(manifest.files, key=lambda file: file.task):
            files[file.component].append(file)
        parts = {name: _Tasks(self, mine, manifest.number) for name, mine in files.items()}
        return Saved(manifest.number, parts)

    def kept(self, most: int = KEPT) -> list[Manifest]:
        """The newest `most` checkpoints whose manifests can be read, ascending: those that `prune` keeps.

        Raises
        ------
        CheckpointError
            If the folder cannot be read.
        """
        found: list[Manifest] = []
        for epoch in sorted(self._epochs(), reverse=True):
            if len(found) < most:
                with suppress(CheckpointError):  # a damaged one does not count
                    found.append(self._read_manifest(epoch))
        return found[::-1]

    def prune(self, kept: int = KEPT) -> None:
        """Remove all but the newest `kept` checkpoints that can be read, and what belongs to none of them.

        Raises
        ------
        CheckpointError
            If the folder cannot be changed.
        """
        keep = {one.epoch: set[str]().union(*(file.names for file in one.files)) for one in self.kept(kept)}
        if not keep:
            return
        named, manifests = set().union(*keep.values()), {self._manifest_of(epoch) for epoch in keep}
        try:
            for name in self._names():
                match = _OURS.match(name)
                if match is None or int(match[1]) > max(keep):
                    continue  # not ours, or being written
                if name not in named and name not in manifests and self._may_remove(name):
                    self.disk.remove(name)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def clear_above(self, epoch: int) -> None:
        """Remove files of epochs after this one. Raises CheckpointError."""
        try:
            for name in self._names():
                match = _OURS.match(name)
                if match is not None and int(match[1]) > epoch and self._may_remove(name):
                    self.disk.remove(name)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _epochs(self) -> Iterator[int]:
        fence = fence_of(self.folder)
        names = self._names() if fence is None else fence.state.checkpoints
        matches = (_MANIFEST.fullmatch(name) for name in names)
        return (int(match[1]) for match in matches if match)

    def _manifest_of(self, epoch: int) -> str:
        """The name of an epoch's manifest; an object store may have several, of which one is committed."""
        fence = fence_of(self.folder)
        committed = () if fence is None else fence.state.checkpoints
        matches = ((name, _MANIFEST.fullmatch(name)) for name in reversed(committed))
        return next((name for name, match in matches if match and int(match[1]) == epoch), manifest_name(epoch))

    def _may_remove(self, name: str) -> bool:
        """Whether this process may remove a file: not if another process that has taken over wrote it."""
        fence = fence_of(self.folder)
        return fence is None or fence.may_remove(name)

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
        name = self._manifest_of(epoch)
        return _decode(self._read(name), f"{self.folder}/{name}", epoch)

    def _read_task(self, file: SavedFile, number: int) -> TaskState:
        state = self._read_frame(file, file.name, file.checksum, number)
        arrays = dict(state.arrays)
        for fragment in file.fragments:
            if fragment.number > number:
                raise CheckpointError(
                    f"{self.folder}/{fragment.name}: is of batch {fragment.number}, later than {number}"
                )
            more = self._read_frame(file, fragment.name, fragment.checksum, fragment.number).arrays
            if arrays.keys() & more.keys():
                raise CheckpointError(f"{self.folder}/{fragment.name}: has arrays that another fragment has too")
            arrays |= more
        return state._replace(arrays=arrays)

    def _read_frame(self, file: SavedFile | TaskState, name: str, checksum: str, number: int) -> TaskState:
        origin = f"{self.folder}/{name}"
        data = self._read(name)
        if f"{frames.checksum_of(data):016x}" != checksum:
            raise CheckpointError(f"{origin}: is not the file that the manifest names (another checksum)")
        state = unpack_task(data, origin)
        if state[:4] != (file.component, file.task, file.tasks, number):
            raise CheckpointError(f"{origin}: is of {state.component}:{state.task} behind batch {state.number}")
        return state

    def _read(self, name: str) -> frames.Buffer:
        try:
            return self.disk.read(name)
        except OSError as error:
            raise CheckpointError(f"{self.folder}/{name}: cannot be read ({error.strerror or error})") from error


class _Tasks(Sequence[Mapping[str, np.ndarray]]):
    """Snapshots of the tasks of a component, each read on first access."""

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


def _checksum_in(parts: Sequence[frames.Buffer]) -> str:
    """Checksum of a frame, by its first two parts."""
    return f"{frames.checksum_of(b''.join(parts[:2])):016x}"


class _OtherFormat(CheckpointError):
    """A checkpoint of an older or later release."""


#: Fields of a task's file in a manifest, beside its fragments, which are under `pieces` there.
_OF_FILE = SavedFile._fields[:-1]


def _encode(manifest: Manifest) -> bytes:
    body = {
        "epoch": manifest.epoch,
        "number": manifest.number,
        "incarnation": manifest.incarnation,
        "files": [
            dict(zip(_OF_FILE, file, strict=False)) | {"pieces": [fragment._asdict() for fragment in file.fragments]}
            for file in manifest.files
        ],
        "outputs": [list(pair) for pair in manifest.outputs],
        "facts": dict(manifest.facts),
        "parts": {name: dict(facts) for name, facts in manifest.parts.items()},
    }
    return json.dumps({"format": FORMAT, "checksum": _checksum(FORMAT, body), "checkpoint": body}, indent=1).encode()


def _decode(data: frames.Buffer, origin: str, epoch: int) -> Manifest:
    try:
        document = json.loads(bytes(data))
        written, body = document["format"], document["checkpoint"]
        if not isinstance(written, int) or document["checksum"] != _checksum(written, body):
            raise CheckpointError(f"{origin}: has a wrong checksum; it is damaged")
        if not OLDEST <= written <= FORMAT:
            raise _OtherFormat(
                f"{origin}: was written by another version of Skyray (format {written}, this release reads formats "
                f"{OLDEST} to {FORMAT}); resume with that version, or begin again: skyray run with --overwrite; skyray "
                "live after removing this folder of checkpoints, which matches its log anew"
            )
        files = tuple(
            SavedFile(
                **{name: file[name] for name in _OF_FILE},
                fragments=tuple(SavedFragment(**piece) for piece in file["pieces"]),
            )
            for file in body["files"]
        )
        outputs = tuple((str(temporary), str(name)) for temporary, name in body["outputs"])
        more = body["facts"], body.get("parts", {})  # older releases wrote no list
        manifest = Manifest(body["epoch"], body["number"], body["incarnation"], files, outputs, *more)
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
    """Checksum of format number and body: without the number, one flipped bit of it would look like a later format."""
    return xxhash.xxh3_64_hexdigest(json.dumps([version, body], sort_keys=True).encode())


def _unwritable(path: str, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path}: cannot be written ({error.strerror or error}); free space or name another folder for checkpoints"
    )
