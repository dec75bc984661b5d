"""Folders of files: the few operations that checkpoints and sinks need, on a local disk, an object store or in a test.

A folder is named by its path, or by a URI `file://` or `s3://bucket/runs`. A file is written under a hidden name,
forced to disk and renamed: a reader sees the whole file or none, whenever the machine stops. An object is there, whole,
under its own name once it is closed.
"""

import contextlib
import mmap
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from matching.errors import CheckpointError, ConfigError
from matching.part_names import PARTS_LIST, ListedPart, listed_line, listed_parts
from topology.core.checkpoint.fence import committed_files, fence_of
from topology.core.frames import Buffer
from topology.core.objects import SCHEME, Bucket


class Output(NamedTuple):
    """A complete file, forced to disk under a temporary name; both names are paths (or URIs) of one folder.

    `facts`: of a part of updates the fields of `matching.part_names.ListedPart`, for the list of its folder.
    """

    temporary: str
    name: str
    facts: Mapping[str, Any] = {}


class Disk(Protocol):
    """A folder. Every method raises OSError where the disk does, FileNotFoundError for what is not there."""

    #: Whether `rename` is one step; if not, what must come last is written last, under its own name.
    renames: bool

    def create(self, name: str) -> IO[bytes]:
        """A new empty file, in place of any of that name."""
        ...

    def sync(self, name: str) -> int:
        """Force a closed file and its name to disk; its size in bytes."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in place of any of that name, and force that to disk."""
        ...

    def read(self, name: str) -> Buffer:
        """All bytes of a file; they stay readable when it is removed."""
        ...

    def names(self) -> list[str]:
        """Names of all files, ascending; none if the folder is not there."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...


class LocalDisk:
    """A folder of this machine, made when something is first written to it, for its user alone (0700)."""

    renames = True

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self._durable = False  # whether the folder's own name is known to be on disk

    def create(self, name: str) -> IO[bytes]:
        self.folder.mkdir(0o700, parents=True, exist_ok=True)
        return open(self.folder / name, "wb")  # closed by the caller

    def sync(self, name: str) -> int:
        size_bytes = force(self.folder / name)
        force(self.folder)  # a manifest elsewhere may rely on the name before it is changed
        if not self._durable:
            force(self.folder.absolute().parent)
            self._durable = True
        return size_bytes

    def rename(self, old: str, new: str) -> None:
        os.replace(self.folder / old, self.folder / new)
        force(self.folder)  # the rename itself

    def read(self, name: str) -> Buffer:
        with open(self.folder / name, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b""
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file())
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)


def force(path: Path) -> int:
    """Force a file, or the names in a folder, to disk; the size in bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


class ScratchDisk(LocalDisk):
    """A folder that is read and gone before the machine could stop: nothing is forced to disk."""

    def sync(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def rename(self, old: str, new: str) -> None:
        os.replace(self.folder / old, self.folder / new)


class ObjectDisk:
    """A prefix of an object store, `s3://BUCKET/NAME`: an object is there, whole, once its file is closed."""

    renames = False

    def __init__(self, uri: str):
        self._bucket = Bucket(uri)

    def create(self, name: str) -> IO[bytes]:
        return self._bucket.writing(name)

    def sync(self, name: str) -> int:
        return self._bucket.size_of(name)[0]

    def rename(self, old: str, new: str) -> None:
        raise OSError(f"{self._bucket.uri}/{old}: cannot be renamed; an object is written under its own name")

    def read(self, name: str) -> Buffer:
        return memoryview(self._bucket.read(name).data)

    def names(self) -> list[str]:
        return [name for name in self._bucket.names() if "/" not in name]

    def remove(self, name: str) -> None:
        self._bucket.delete(name)


#: How to open folders, by scheme. A test adds its own.
SCHEMES: dict[str, Callable[[str], Disk]] = {
    "file": lambda uri: LocalDisk(uri.removeprefix("file://")),
    SCHEME: ObjectDisk,
}


def open_disk(folder: str | os.PathLike[str]) -> Disk:
    """The folder of that path or URI.

    Raises
    ------
    ConfigError
        For a URI with another scheme than those of `SCHEMES`.
    """
    scheme, separator, _ = os.fspath(folder).partition("://")
    if not separator:
        return LocalDisk(folder)
    if scheme not in SCHEMES:
        known = " or ".join(f"{each}://" for each in ("file", SCHEME))
        raise ConfigError(f"{folder}: no folders are known by {scheme}://; give a path, or a URI {known}")
    return SCHEMES[scheme](os.fspath(folder))


def published(folder: str) -> list[str]:
    """Names of the files that readers of a folder of a run see, ascending; of an object store those that are committed,
    since a store may have files of a process that was taken for dead. Raises OSError."""
    return committed_files(folder) if is_stored(folder) else open_disk(folder).names()


def commit_objects(outputs: Iterable[Output]) -> None:
    """Commit files of a run in an object store, all of them together.

    Raises
    ------
    OSError
        If the store does not answer.
    InUseError
        If another process has claimed the run.
    """
    names = [output.name for output in outputs]
    fence = fence_of(names[0]) if names else None
    if fence is not None:
        fence.commit(map(fence.inside, names))
    elif names:
        raise OSError(f"{names[0]}: this process has not claimed the run that it is of; run again")


def is_stored(path: str) -> bool:
    """Whether a path is in an object store, where files have one name and count once they are committed."""
    return path.startswith(f"{SCHEME}://")


def publish(output: Output) -> None:
    """Give a file its name, and force that to disk, which is all that is left for one that has it. Raises OSError.

    A part of updates is then added to the list of its folder, again where that was done before.
    """
    folder, name = split(output.name)
    disk, temporary = open_disk(folder), split(output.temporary)[1]
    names = disk.names()
    if temporary in names or name not in names:
        disk.rename(temporary, name)
    else:
        disk.sync(name)
    if output.facts and isinstance(disk, LocalDisk):
        path = list_path(disk.folder)
        begins = not path.exists()
        with open(path, "ab") as file:
            file.write(listed_line(name, output.facts))
            file.flush()
            os.fsync(file.fileno())
        if begins:
            force(path.parent)


def list_path(folder: Path) -> Path:
    """The list of the parts of a folder: beside it, so that the folder has nothing but parts."""
    return folder.with_name(folder.name + PARTS_LIST)


def parts_list(folder: Path) -> dict[str, ListedPart]:
    """The listed parts of a folder by name; none if it has no list. Raises OSError.

    Parsed once for each state of the list.
    """
    path = list_path(folder)
    try:
        stat = path.stat()
        return _parsed(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    except FileNotFoundError:
        return {}


@lru_cache(4)
def _parsed(path: Path, *state: int) -> dict[str, ListedPart]:
    return listed_parts(path.read_bytes())


def remove_parts(folder: Path, names: Collection[str]) -> None:
    """Remove parts of updates, and their lines in the list first. Raises OSError."""
    listed = parts_list(folder)
    if listed.keys() & set(names):
        left = (listed_line(name, part._asdict()) for name, part in listed.items() if name not in names)
        path = list_path(folder)
        with written(LocalDisk(path.parent), path.name, f".{path.name}.tmp") as file:
            file.writelines(left)
    for name in names:
        (folder / name).unlink(missing_ok=True)


def check_part(path: Path, listed: ListedPart | None) -> None:
    """Check a part of updates against its line of the list; one that has none is not checked. O(its bytes).

    Raises
    ------
    CheckpointError
        If it was changed.
    OSError
        If it cannot be read.
    """
    if listed is not None and not listed.is_whole(LocalDisk(path.parent).read(path.name)):
        raise CheckpointError(f"{path}: is not as it was written (another checksum or size); restore it from a backup")


def split(path: str) -> tuple[str, str]:
    """Folder and name of a path or URI."""
    folder, _, name = path.rpartition("/")
    return folder or ".", name


@contextlib.contextmanager
def written(disk: Disk, name: str, temporary: str) -> Iterator[Any]:
    """A new file to write to; renamed at the end of the block, removed if the block raises.

    Raises
    ------
    OSError
        If it cannot be written; a file of that name that was there before is then untouched.
    """
    making = temporary if disk.renames else name
    try:
        with disk.create(making) as file:
            yield file
        disk.sync(making)
        if disk.renames:
            disk.rename(making, name)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove(making)
        raise
