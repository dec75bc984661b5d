"""A disk in memory that does what disks do when a machine stops: `memory://ID/folder` (see
`topology.core.checkpoint.storage`).

A machine keeps two states: what its processes see, and what is forced to disk. Each thing done to it that may last is
an operation, with a number: creating a file, a write, forcing a file or a folder to disk, a rename, a removal. A
process can be killed, or the machine stop, before any of them:

- killed: what it has written stays, it does nothing more (not even clean up);
- stopped: of bytes that were not forced to disk a random prefix survives, or as many zeros; of names that were created,
  changed or removed and not forced to disk each change may have happened or not.

Disks go by name, since plans pickle their components.
"""

import errno
import io
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from topology.core.checkpoint.storage import SCHEMES

CREATE, WRITE, SYNC, SYNC_FOLDER, RENAME, REMOVE = "create", "write", "sync", "sync folder", "rename", "remove"
TRUNCATE, LINK = "truncate", "link"


class Halted(BaseException):
    """The process is dead from here on. No Exception: nobody may take it for a failure and go on."""


class _File:
    """Bytes that some name stands for; the first `forced` of them are on disk."""

    def __init__(self, data: bytes = b""):
        self.data = bytearray(data)
        self.forced = len(data)


class Machine:
    """All folders of one simulated disk.

    Parameters
    ----------
    name : str
        What URIs call it; a new machine takes the place of any of that name.

    Attributes
    ----------
    room_bytes : int or None
        How many more bytes can be written; None: any number.
    refusals_left : int
        After so many refused writes there is room again.
    halts, refusals : int
        How often these faults have fired.
    done : Counter
        Operations by kind.
    """

    def __init__(self, name: str):
        self.name = name
        self.boot = 0
        self.bytes_written = 0
        self._fatal: tuple[str | None, int] | None = None
        self.halted = False
        self.room_bytes: int | None = None
        self.refusals_left = 0
        self.halts = self.refusals = 0
        self.done: Counter[str] = Counter()
        self._seen: dict[str, _File] = {}
        self._forced: dict[str, _File] = {}
        self._changes: list[tuple[str, str, _File | None]] = []  # old name, new name, file: not forced to disk yet
        _MACHINES[name] = self

    @property
    def root(self) -> str:
        """URI of its outermost folder."""
        return f"memory://{self.name}"

    def forget(self) -> None:
        """Give the memory back; nobody finds this machine any more."""
        _MACHINES.pop(self.name, None)

    # -- faults

    def halt_before(self, kind: str | None, number: int) -> None:
        """The process dies before its operation of that number from here on, counted from 0: of one kind, or of all."""
        self._fatal = (kind, number + (self.done.total() if kind is None else self.done[kind]))

    def halt(self) -> None:
        """The process dies here: it may run on, but nothing that it does is seen."""
        self.halted = True
        self.halts += 1

    def restart(self) -> None:
        """A new process begins; whoever wrote before is dead."""
        self.boot += 1
        self.halted = False
        self._fatal = None

    def lose(self, rng: random.Random) -> None:
        """The machine has stopped: what was not forced to disk is lost, or torn, as `rng` says."""
        names = dict(self._forced)
        for old, new, file in self._changes:
            if rng.random() < 0.5:
                continue
            if old:
                names.pop(old, None)
            if new and file is not None:
                names[new] = file
        for file in {id(file): file for file in names.values()}.values():
            rest = len(file.data) - file.forced
            if rest:
                kept = file.forced + rng.randint(0, rest)
                zeros = rng.random() < 0.25
                file.data[kept:] = bytes(len(file.data) - kept) if zeros else b""
                file.forced = len(file.data)
        self._seen = names
        self._forced = dict(names)
        self._changes = []

    def fill(self, room_bytes: int, refusals: int) -> None:
        """There is room for so many bytes more, until that many writes have been refused."""
        self.room_bytes, self.refusals_left = room_bytes, refusals

    # -- what a test does to files, past all operations

    def paths(self, folder: str = "") -> list[str]:
        """All files in a folder and below, ascending."""
        return sorted(path for path in self._seen if path.startswith(folder))

    def forced(self, folder: str) -> list[str]:
        """Those whose names are forced to disk."""
        return [path for path in self.paths(folder) if path in self._forced]

    def get(self, path: str) -> bytes:
        return bytes(self._seen[path].data)

    def put(self, path: str, data: bytes) -> None:
        """Write a file that is on disk at once."""
        self._seen[path] = self._forced[path] = _File(data)
        self._changes = [change for change in self._changes if path not in change[:2]]

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._seen.pop(path, None)
            self._forced.pop(path, None)
            self._changes = [change for change in self._changes if path not in change[:2]]

    def flip(self, path: str, bit: int) -> None:
        """Turn one bit of a file over."""
        data = bytearray(self.get(path))
        data[bit // 8] ^= 1 << bit % 8
        self.put(path, bytes(data))

    # -- operations

    def create(self, path: str) -> _File:
        self._operate(CREATE)
        if self.room_bytes == 0:
            raise self._refused()
        file = self._seen[path] = _File()
        self._changes.append(("", path, file))
        return file

    def write(self, file: _File, data: bytes) -> None:
        self._operate(WRITE)
        if self.room_bytes is not None:
            fits = data[: self.room_bytes]
            self.room_bytes -= len(fits)
            if len(fits) < len(data):
                file.data += fits
                raise self._refused()
        file.data += data
        self.bytes_written += len(data)

    def truncate(self, file: _File, size_bytes: int) -> None:
        """Cut a file off; that is on disk at once."""
        self._operate(TRUNCATE)
        del file.data[size_bytes:]
        file.forced = min(file.forced, size_bytes)

    def named(self, path: str) -> _File:
        """The file of that name, to be written to. Raises FileNotFoundError."""
        self.alive()
        return self._found(path)

    def sync(self, path: str) -> int:
        self._operate(SYNC)
        file = self._found(path)
        file.forced = len(file.data)
        return file.forced

    def sync_folder(self, folder: str) -> None:
        self._operate(SYNC_FOLDER)
        left = []
        for old, new, file in self._changes:
            if _folder_of(new or old) != folder:
                left.append((old, new, file))
                continue
            if old:
                self._forced.pop(old, None)
            if new and file is not None:
                self._forced[new] = file
        self._changes = left

    def rename(self, old: str, new: str) -> None:
        self._operate(RENAME)
        file = self._found(old)
        self._seen[new] = file
        del self._seen[old]
        self._changes.append((old, new, file))

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        self._operate(LINK)
        self._seen[new] = file = self._found(old)
        self._changes.append(("", new, file))

    def drop(self, path: str) -> None:
        self._operate(REMOVE)
        if self._seen.pop(path, None) is not None:
            self._changes.append((path, "", None))

    def _operate(self, kind: str) -> None:
        self.alive()
        if self._fatal is not None and self._fatal[0] in (None, kind):
            done = self.done.total() if self._fatal[0] is None else self.done[kind]
            if done >= self._fatal[1]:
                self.halt()
                raise Halted(f"before operation {done}, {kind}")
        self.done[kind] += 1

    def _refused(self) -> OSError:
        self.refusals += 1
        self.refusals_left -= 1
        if self.refusals_left <= 0:
            self.room_bytes = None
        return OSError(errno.ENOSPC, "No space left on device")

    def alive(self) -> None:
        """Raises OSError if the process is dead."""
        if self.halted:
            raise OSError(errno.EIO, "this process is dead")

    def _found(self, path: str) -> _File:
        if path not in self._seen:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return self._seen[path]


class SimulatedDisk:
    """A folder of a machine: a `topology.core.checkpoint.storage.Disk`, dead once its process is.

    Parameters
    ----------
    uri : str
        `memory://ID` or `memory://ID/folder`.
    """

    renames = True

    def __init__(self, uri: str):
        name, _, self._folder = uri.removeprefix("memory://").partition("/")
        if name not in _MACHINES:
            raise FileNotFoundError(errno.ENOENT, "No such machine", uri)
        self._of = _MACHINES[name]
        self._boot = self._of.boot

    def create(self, name: str) -> "_Handle":
        return _Handle(self, self._machine().create(self._path(name)))

    def write(self, file: _File, data: bytes) -> None:
        """Write behind what is in a file."""
        self._machine().write(file, data)

    def sync(self, name: str) -> int:
        size_bytes = self._machine().sync(self._path(name))
        self._machine().sync_folder(self._folder)
        return size_bytes

    def rename(self, old: str, new: str) -> None:
        self._machine().rename(self._path(old), self._path(new))
        self._machine().sync_folder(self._folder)

    def read(self, name: str) -> bytes:
        machine = self._machine()
        if self._path(name) not in machine.paths():
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        return machine.get(self._path(name))

    def names(self) -> list[str]:
        paths = self._machine().paths()
        return [path.rpartition("/")[2] for path in paths if _folder_of(path) == self._folder]

    def remove(self, name: str) -> None:
        self._machine().drop(self._path(name))

    def _machine(self) -> Machine:
        self._of.alive()
        if self._boot != self._of.boot:
            raise OSError(errno.EIO, "this process is dead")
        return self._of

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name


class _Handle(io.RawIOBase):
    """An open file."""

    def __init__(self, disk: SimulatedDisk, file: _File):
        self._disk, self._file = disk, file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._disk.write(self._file, bytes(data))
        return len(data)

    def tell(self) -> int:
        return len(self._file.data)


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


_MACHINES: dict[str, Machine] = {}
SCHEMES["memory"] = SimulatedDisk
