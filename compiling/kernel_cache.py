"""The cache of compiled kernels: where it is, and when an entry is valid.

Numba notices an edit to a cached kernel, but not an edit to one that it calls in another file. Here the folder of a
module's kernels is named by the module and a digest of its file and all files of the project that it imports, directly
or not: an edit to any of them begins a new folder, an edit elsewhere compiles nothing, and copies of the same sources
(an installed wheel) share the compiled kernels.

What Numba reads back is code. So it is read only from a folder that no other user can write to or replace
(`own_folder`), checked at every read and write. Where there is none, a process makes one under a new name for itself
and those that it starts; where even that cannot be, kernels are compiled in memory.

A wheel may bring kernels compiled for `PORTABLE` beside the sources, as trusted as these (`prebuilt`, written by
`collected`). They have the same digests. A kernel that this user's folder lacks is read from there.

Numba calls `KernelLocator`, which `compiling/__init__.py` registers, and its own locators for other functions.
"""

import atexit
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

import llvmlite.binding
import numba
from numba.core import config
from numba.core.caching import Cache, IndexDataCacheFile, _CacheLocator
from numba.core.event import install_recorder

from compiling import LOCATORS

ROOT = Path(__file__).resolve().parents[1]
#: Sources before the second form of the folder cannot pass over types that have moved, and keep to the first.
_FOLDER = "skyray-kernels-2"
_REMEDY = "set SKYRAY_KERNEL_CACHE to one that is"
#: Variables with which Numba compiles for all of today's processors with x86, not for this one. Beside kernels for this
#: one (Zen 4), an engine's time was 0.99 (boolean), 1.01 (topk), 1.04 (knn), 0.97 (skyline) and 0.85 (decay), in pairs.
PORTABLE = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
#: What LLVM calls the features of such a processor.
_FEATURES = (
    "avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2",
    "ssse3", "xsave",
)  # fmt: skip
#: Packages with kernels; their imports of each other make the digest.
PACKAGES = ("compiling", "matching", "papers", "baselines", "distribution")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<package>(?:{0})\b[\w.]*)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n]*)"
    r"|import[ \t]+(?P<module>(?:{0})\b[\w.]*))".format("|".join(PACKAGES)),
    re.MULTILINE,
)

_load_index = IndexDataCacheFile._load_index


def _load_usable_index(self: IndexDataCacheFile) -> dict[Any, str]:
    """The signatures a kernel is compiled for; none if one of their types has moved.

    Types of arguments are stored by module and name, and the kernel need not import those modules.
    """
    try:
        return _load_index(self)
    except (ImportError, AttributeError):
        return {}


IndexDataCacheFile._load_index = _load_usable_index

# Numba has read it by now; it is not for processes with other packages that this one may start. Numba would forget what
# it has read when it next compiles and finds the environment changed, so it looks now.
os.environ.pop("NUMBA_CACHE_LOCATOR_CLASSES", None)
config.reload_config()
config.CACHE_LOCATOR_CLASSES = LOCATORS  # type: ignore[attr-defined]


class KernelLocator(_CacheLocator):
    """Place and freshness of one compiled function; made by Numba."""

    def __init__(self, module: Path, line: int):
        self._line = line
        self._digest = digest_of(module)
        self.name = f"{'.'.join(module.with_suffix('').parts)}-{self._digest[:16]}"
        self._path = (folder() or Path()) / self.name

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return self._digest

    def get_disambiguator(self) -> str:
        return str(self._line)

    def is_trusted(self) -> bool:
        """Whether the folder, made if missing, is one that no other user can write to now."""
        if folder() is None:
            return False
        try:
            own_folder(self._path)
            return True
        except OSError as error:
            _warn(_reason(self._path, error))
            return False

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Self | None:
        """None for functions that are not the project's."""
        module = _module_of(py_file)
        return None if module is None else cls(module, py_func.__code__.co_firstlineno)


@cache  # a module has up to forty kernels, and the import of each calls this
def _module_of(py_file: str) -> Path | None:
    """The path of a module of the project below `ROOT`; None for any other."""
    path = Path(py_file).resolve()
    if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in PACKAGES or not path.is_file():
        return None
    return path.relative_to(ROOT)


_load_overload, _save_overload = Cache.load_overload, Cache.save_overload


def _load(self: Any, sig: Any, target_context: Any) -> Any:
    """A kernel from this user's folder, if that can be trusted, else from the wheel's; None if neither has it."""
    locator = self._impl.locator
    ours = isinstance(locator, KernelLocator)
    found = _load_overload(self, sig, target_context) if not ours or locator.is_trusted() else None
    if found is None and ours and (brought := prebuilt()) is not None:
        target_context.refresh()
        wanted, (triple, *_), hashes = self._index_key(sig, target_context.codegen())
        file = IndexDataCacheFile(str(brought / locator.name), self._impl.filename_base, locator.get_source_stamp())
        if (stored := file.load((wanted, (triple, *PORTABLE.values()), hashes))) is not None:
            found = self._impl.rebuild(target_context, stored)
    return found


def _save(self: Any, sig: Any, data: Any) -> None:
    """Store a kernel, but in no folder that cannot be trusted."""
    locator = self._impl.locator
    if not isinstance(locator, KernelLocator) or locator.is_trusted():
        _save_overload(self, sig, data)


# Numba has no locator without a folder: without any it refuses to compile, with its own it would look elsewhere.
Cache.load_overload, Cache.save_overload = _load, _save


@cache
def prebuilt() -> Path | None:
    """The kernels that this installation brings for this Python and processor; None if it brings none."""
    place = _portable_folder()
    return place if place.is_dir() and runs_portable() else None


def runs_portable() -> bool:
    """Whether this processor runs kernels compiled for `PORTABLE`, and no other one is named to Numba."""
    features = llvmlite.binding.get_host_cpu_features()
    named = config.CPU_NAME in (None, PORTABLE["NUMBA_CPU_NAME"])  # type: ignore[attr-defined]
    return named and all(features.get(name) for name in _FEATURES)


def _portable_folder() -> Path:
    return ROOT / "compiling" / "prebuilt" / f"{sys.implementation.cache_tag}-{llvmlite.binding.get_process_triple()}"


@contextmanager
def collected() -> Iterator[Path]:
    """Copy the kernels that this process, with `PORTABLE` set, loads or compiles meanwhile to where `prebuilt` is."""
    load, save, place = IndexDataCacheFile.load, IndexDataCacheFile.save, _portable_folder()
    shutil.rmtree(place, ignore_errors=True)

    def copying(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(file: IndexDataCacheFile, key: Any, *given: Any) -> Any:
            found = method(file, key, *given)
            if (kernel := given[0] if given else found) is not None:
                # all but the listing of the source with its types, which has paths, and which only people read
                kernel = *kernel[:6], "", *kernel[7:]
                folder = place / Path(file._cache_path).name
                folder.mkdir(parents=True, exist_ok=True)
                name = file._index_name.removesuffix(".nbi")
                save(IndexDataCacheFile(str(folder), name, file._source_stamp), key, kernel)
            return found

        return called

    IndexDataCacheFile.load, IndexDataCacheFile.save = copying(load), copying(save)
    try:
        yield place
    finally:
        IndexDataCacheFile.load, IndexDataCacheFile.save = load, save


def folder() -> Path | None:
    """The folder of all compiled kernels: as `choose` finds it, else a new one for this process and those it starts.

    None, with a warning, if neither can be.
    """
    found, why = choose()
    return found or _passing_folder(why)


@cache
def choose() -> tuple[Path | None, str]:
    """A folder for compiled kernels that only this user can write to, made if it is not there; None, and why, if none.

    Below `SKYRAY_KERNEL_CACHE` if that is set, else where caches of this user are.
    """
    given = os.environ.get("SKYRAY_KERNEL_CACHE")
    if given is not None:
        place = Path(given).absolute() / _FOLDER
    else:
        place = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / _FOLDER
    try:
        return own_folder(place), ""
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead round in a circle
        return None, _reason(place, error)


@cache
def _passing_folder(why: str) -> Path | None:
    """A new folder with an unpredictable name, for this process and its children; removed when the process ends."""
    owner = os.getpid()

    def remove(made: Path) -> None:
        if os.getpid() == owner:  # a forked process has this function too
            shutil.rmtree(made, ignore_errors=True)

    try:
        made = Path(tempfile.mkdtemp(prefix="skyray-kernels-"))
        atexit.register(remove, made)
        found = own_folder(made / _FOLDER)
    except OSError as error:  # no temporary folder, or one in which others could replace ours
        _warn(f"{why}; {error}")
        return None
    os.environ["SKYRAY_KERNEL_CACHE"] = str(made)
    warnings.warn(
        f"compiled kernels are lost when this process ends, for no folder to keep them in is this user's alone "
        f"({why}); {_REMEDY}",
        RuntimeWarning,
        stacklevel=2,
    )
    return found


def stamp_of(what: Sequence[str | None], sources: Iterable[Path]) -> Path | None:
    """The file that says that these kernels are in the cache.

    Parameters
    ----------
    what : sequence of str or None
        Which kernels, in names that the caller chooses.
    sources : iterable of Path
        Modules below `ROOT` whose kernels they are; the file is another one when a source, or what it imports, changes.

    Returns
    -------
    Path or None
        None if there is no cache, or nothing is compiled here.
    """
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return None
    digests = sorted(map(digest_of, sources))

    def below(place: Path, processor: str) -> Path:
        described = [*what, sys.implementation.cache_tag, processor, *digests]
        return place / f"prepared-{hashlib.sha256(json.dumps(described).encode()).hexdigest()[:32]}"

    brought, place = prebuilt(), folder()
    if brought is not None and (stamp := below(brought, PORTABLE["NUMBA_CPU_NAME"])).exists():
        return stamp
    if place is None:
        return None
    named = config.CPU_NAME  # type: ignore[attr-defined]
    return below(place, named or llvmlite.binding.get_host_cpu_name())


@contextmanager
def compilations() -> Iterator[Callable[[], int]]:
    """Count the kernels that this process compiles from now on; those that the cache has are not compiled."""
    with install_recorder("numba:compile") as recorder:
        yield lambda: sum(event.is_start for _, event in recorder.buffer)


def own_folder(place: Path) -> Path:
    """A folder that only this user can write to, made with all above it if it is not there; its path without links.

    Raises
    ------
    OSError
        If it cannot be made or written to, is a link, belongs to another user or lets others write, or if others could
        replace a folder above it.
    """
    if not place.is_absolute():
        raise NotADirectoryError(f"{place} is not absolute")
    place = place.parent.resolve() / place.name
    us = os.geteuid()
    for path in (*reversed(place.parents), place):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            path.mkdir(mode=0o700, exist_ok=True)
            found = os.lstat(path)
        last = path == place
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(f"{path} is {'a link' if stat.S_ISLNK(found.st_mode) else 'no folder'}")
        if found.st_uid != us and (last or found.st_uid):
            raise PermissionError(f"{path} belongs to user {found.st_uid}")
        if found.st_mode & 0o022 and (last or not found.st_mode & stat.S_ISVTX):
            raise PermissionError(f"other users can write to {path}")
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(f"{place} cannot be written to")
    return place


def _reason(place: Path, error: Exception) -> str:
    """Why a folder is not taken, on one line."""
    return f"{place}: {getattr(error, 'strerror', None) or error}"


@cache
def _warn(why: str) -> None:
    """Warn once that no kernel is cached."""
    warnings.warn(
        f"kernels are compiled anew by every process, for no folder to keep them in is this user's alone ({why}); "
        f"{_REMEDY}",
        RuntimeWarning,
        stacklevel=2,
    )


@cache
def digest_of(module: Path) -> str:
    """Hash of a module, of all that it imports of the project, and of Numba's release; 64 hexadecimal digits.

    It differs with bounds checked (`NUMBA_BOUNDSCHECK`), which Numba itself does not distinguish.
    """
    digest = hashlib.sha256(f"{numba.__version__} {numba.config.BOUNDSCHECK}".encode())  # type: ignore[attr-defined]
    for path in sorted(closure_of(module)):
        digest.update(path.as_posix().encode() + b"\0" + _hash_of(path))
    return digest.hexdigest()


def closure_of(module: Path) -> set[Path]:
    """A module and all that it imports of the project, directly or not, as paths below `ROOT`."""
    found, left = {module}, [module]
    while left:
        new = imports_of(left.pop()) - found
        found |= new
        left += new
    return found


@cache
def imports_of(module: Path) -> frozenset[Path]:
    """The files of the project that a module names in its imports, wherever in it they stand."""
    names: set[str] = set()
    for found in _IMPORT.finditer(_read(module).decode()):
        if found["module"]:
            names.add(found["module"])
        else:
            names.add(found["package"])  # what is imported is a name in it, or a module below it
            names |= {f"{found['package']}.{name}" for name in re.findall(r"\w+", found["names"])}
    paths = (name.replace(".", "/") + end for name in names for end in (".py", "/__init__.py"))
    return frozenset(path for path in map(_file_of, paths) if path is not None)


@cache
def _file_of(path: str) -> Path | None:
    """A path below `ROOT` if a file is there: modules name the same ones again and again."""
    return Path(path) if os.path.isfile(f"{ROOT}/{path}") else None


@cache
def _read(module: Path) -> bytes:
    return (ROOT / module).read_bytes()


@cache
def _hash_of(module: Path) -> bytes:
    return hashlib.sha256(_read(module)).digest()
