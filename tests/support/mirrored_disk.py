"""A real folder whose every operation is one of a simulated machine, so that components write real files and die there.

While the block of `watched` lasts, what this process does below the folder by `open`, `os` and `shutil` is done to the
machine first (`tests.support.simulated_disk`), which numbers it and may end the process before it; then to the real
folder. So both have the same files. A process that was killed leaves them; where the machine stops, the folder becomes
what the machine has kept. Native code that writes by itself is not seen, which `assert_alike` finds out.
"""

import builtins
import contextlib
import io
import os
import random
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.simulated_disk import Halted, Machine

#: How names of files end whose contents nothing depends on after a death.
UNSEEN = ".lock"


class MirroredDisk:
    """A folder on this disk and the machine that it is alike.

    Parameters
    ----------
    machine : Machine
        New, without files.
    root : Path
        Is made.

    Attributes
    ----------
    tears : bool
        Whether a process that dies before a write has done half of it.
    done : list of str
        Operations; the last one is that before which the process has died, if it has.
    """

    def __init__(self, machine: Machine, root: Path):
        root.mkdir()
        self.machine = machine
        self.root = root.resolve()
        self.tears = False
        self.done: list[str] = []
        self._folders: set[str] = set()
        self._lock = threading.RLock()
        self._handles: weakref.WeakSet[_Handle] = weakref.WeakSet()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """The block is the life of a process."""
        with contextlib.ExitStack() as stack:
            for module, name, changed in (
                (builtins, "open", self._open),
                (io, "open", self._open),
                (os, "open", self._descriptor),
                (os, "fsync", self._fsync),
                (os, "mkdir", self._mkdir),
                (os, "rename", self._rename),
                (os, "replace", self._rename),
                (os, "link", self._link),
                (os, "unlink", self._unlink),
                (os, "remove", self._unlink),
                (os, "rmdir", self._rmdir),
                (shutil, "rmtree", self._rmtree),
            ):
                stack.enter_context(mock.patch.object(module, name, _instead_of(getattr(module, name), changed)))
            yield

    def restart(self) -> None:
        """A new process begins; what the one before has not handed to the system is lost."""
        self.machine.restart()
        for handle in list(self._handles):
            handle.close()

    def lose(self, rng: random.Random) -> None:
        """The machine has stopped: what was not forced to disk is lost, or torn, as `rng` says."""
        self.machine.lose(rng)
        there = self.machine.paths()
        gone = [path for path in there if any(above not in there for above in _above(path))]
        self.machine.remove(gone)
        for entry in self.root.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        for path in self.machine.paths():  # a folder comes before what is in it
            if path in self._folders:
                (self.root / path).mkdir()
            else:
                (self.root / path).write_bytes(self.machine.get(path))

    def assert_alike(self) -> None:
        """Fails if something was written below the folder that the machine does not know of."""
        found = {
            str(path.relative_to(self.root)): path for path in self.root.rglob("*") if not path.name.endswith(UNSEEN)
        }
        assert sorted(found) == self.machine.paths(), "written past the machine"
        for name, path in found.items():
            assert path.is_dir() or path.read_bytes() == self.machine.get(name), f"{name}: written past the machine"

    # -- operations

    def opened(self, path: str, mode: str) -> Any:
        """The machine's file of an opening to write."""
        self._alive()
        if mode == "a" and path in self.machine.paths():
            return self.machine.named(path)
        self._operate(f"create {path}")
        assert mode != "x" or path not in self.machine.paths(), f"{path} is there"
        return self.machine.create(path)

    def write(self, path: str, file: Any, data: bytes, really: Callable[[bytes], int]) -> int:
        with self._lock:
            self._operate(f"write {path}")
            try:
                self.machine.write(file, data)
            except Halted:
                if self.tears:
                    file.data += data[: len(data) // 2]
                    really(data[: len(data) // 2])
                raise
            return really(data)

    def truncate(self, path: str, file: Any, size_bytes: int, really: Callable[[int], int]) -> int:
        with self._lock:
            if size_bytes < len(file.data):
                self._operate(f"truncate {path}")
                self.machine.truncate(file, size_bytes)
            return really(size_bytes)

    def _open(self, real: Any, file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        path = self._inside(file)
        if path is None:
            return real(file, mode, *more, **named)
        self._alive()
        if not set(mode) & set("wax+"):
            return real(file, mode, *more, **named)
        assert "+" not in mode, f"{path}: opened with {mode}, which no machine has"
        with self._lock:
            handle = _Handle(self, path, mode.strip("bt"))
            self._handles.add(handle)
        buffered = _Buffered(handle)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, named.get("encoding") or "utf-8", named.get("errors"), named.get("newline"))

    def _descriptor(self, real: Any, path: Any, flags: int, *more: Any, **named: Any) -> int:
        inside = None if named.get("dir_fd") is not None else self._inside(path)
        if inside is not None:
            self._alive()
            assert not flags & (os.O_WRONLY | os.O_RDWR), f"{inside}: opened to write by os.open"
        return real(path, flags, *more, **named)

    def _fsync(self, real: Any, descriptor: int) -> None:
        path = self._inside(os.readlink(f"/proc/self/fd/{descriptor}"), also_root=True)
        if path is None:
            return real(descriptor)
        with self._lock:
            self._operate(f"sync {path}")
            if path in self._folders or not path:
                self.machine.sync_folder(path)
            else:
                self.machine.sync(path)
        return None

    def _mkdir(self, real: Any, path: Any, *more: Any, **named: Any) -> None:
        inside = self._inside(path)
        if inside is None or os.path.exists(path) or not os.path.exists(os.path.dirname(self.root / inside)):
            return real(path, *more, **named)
        with self._lock:
            self._operate(f"mkdir {inside}")
            self.machine.create(inside)
            self._folders.add(inside)
            return real(path, *more, **named)

    def _rename(self, real: Any, old: Any, new: Any, **named: Any) -> None:
        before, after = self._inside(old), self._inside(new)
        if before is None or after is None:
            assert before == after, f"{old} is renamed to {new}"
            return real(old, new, **named)
        assert before not in self._folders, f"{before}: a folder is renamed, which no machine does"
        with self._lock:
            self._operate(f"rename {after}")
            self.machine.rename(before, after)
            return real(old, new, **named)

    def _link(self, real: Any, old: Any, new: Any, **named: Any) -> None:
        before, after = self._inside(old), self._inside(new)
        if before is None or after is None or os.path.lexists(new):
            assert (before is None) == (after is None), f"{old} is linked to {new}"
            return real(old, new, **named)
        with self._lock:
            self._operate(f"link {after}")
            self.machine.link(before, after)
            return real(old, new, **named)

    def _unlink(self, real: Any, path: Any, **named: Any) -> None:
        self._drop(real, path, **named)

    def _rmdir(self, real: Any, path: Any, **named: Any) -> None:
        inside = None if named.get("dir_fd") is not None else self._inside(path)
        if inside is not None and not all(name.endswith(UNSEEN) for name in os.listdir(path)):
            return real(path)  # it is not empty
        self._drop(real, path, **named)
        return None

    def _drop(self, real: Any, path: Any, **named: Any) -> None:
        inside = None if named.get("dir_fd") is not None else self._inside(path)
        if inside is None or not os.path.lexists(path):
            return real(path, **named)
        with self._lock:
            self._operate(f"remove {inside}")
            self.machine.drop(inside)
            return real(path, **named)

    def _rmtree(self, real: Any, path: Any, *more: Any, **named: Any) -> None:
        if self._inside(path) is None or not os.path.isdir(path):
            return real(path, *more, **named)
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(path)
        return None

    def _operate(self, what: str) -> None:
        """Note the machine's next operation."""
        self._alive()
        self.done.append(what)

    def _alive(self) -> None:
        """Raises Halted once the process is dead: what is suppressed as an error does not keep it alive."""
        if self.machine.halted:
            raise Halted("this process is dead")

    def _inside(self, path: Any, also_root: bool = False) -> str | None:
        """The name of a path below the folder; None for what lies elsewhere."""
        if isinstance(path, int):
            return None
        absolute = os.path.abspath(os.fsdecode(os.fspath(path)))
        name = os.path.relpath(absolute, self.root) if absolute.startswith(str(self.root)) else ".."
        if name == ".":
            return "" if also_root else None
        return None if name.startswith("..") or name.endswith(UNSEEN) else name


class _Handle(io.FileIO):
    """A file that is open to write, as long as its process lives."""

    def __init__(self, disk: MirroredDisk, path: str, mode: str):
        self._disk, self._boot = disk, disk.machine.boot
        self._of, self._path = disk.opened(path, mode), path
        super().__init__(disk.root / path, mode)

    @property
    def dead(self) -> bool:
        return self._disk.machine.halted or self._boot != self._disk.machine.boot

    def write(self, data: Any) -> int:
        if self._boot != self._disk.machine.boot:
            return len(data)  # a dead process does nothing
        return self._disk.write(self._path, self._of, bytes(data), super().write)

    def truncate(self, size: int | None = None) -> int:
        return self._disk.truncate(self._path, self._of, self.tell() if size is None else size, super().truncate)


class _Buffered(io.BufferedWriter):
    """What is left in the buffer when the process dies is lost, and its end is no second death."""

    raw: Any

    def close(self) -> None:
        if self.raw.dead:
            self.raw.close()
        super().close()


class Unlucky(random.Random):
    """By which nothing survives that was not forced to disk."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return a


def _above(path: str) -> list[str]:
    """The folders that a path is in, but the outermost."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _instead_of(real: Any, changed: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values, **named: changed(real, *values, **named)
