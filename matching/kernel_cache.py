"""Where compiled kernels are kept, and when one is still right.

Numba notices an edit to the kernel it has kept, but not an edit to one that it calls in another file, and would go on
with the old one. Here a module's kernels lie in a folder that is named by the module and by what its file and all files
of the project that it imports, directly or not, hold: an edit anywhere among those begins a new folder, an edit
elsewhere compiles nothing, and whoever has the same sources (a copy, an installed wheel) finds what is compiled.

Numba asks `KernelLocator`, since `matching/__init__.py` names it to Numba; of functions elsewhere it asks its own.
"""

import hashlib
import os
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Self

import numba
from numba.core.caching import IndexDataCacheFile, _CacheLocator

ROOT = Path(__file__).resolve().parents[1]
#: Sources before the second form of the folder cannot pass over types that have moved, and keep to the first.
_FOLDER = "skyray-kernels-2"
#: Packages with kernels; what they import of each other decides.
PACKAGES = ("matching", "baselines", "distribution")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<package>(?:{0})\b[\w.]*)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n]*)"
    r"|import[ \t]+(?P<module>(?:{0})\b[\w.]*))".format("|".join(PACKAGES)),
    re.MULTILINE,
)

_load_index = IndexDataCacheFile._load_index


def _load_usable_index(self: IndexDataCacheFile) -> dict[Any, str]:
    """What a kernel has been compiled for; nothing if a type among it is no more where it was.

    Types of arguments are kept by module and name, and theirs need not be modules that the kernel imports.
    """
    try:
        return _load_index(self)
    except (ImportError, AttributeError):
        return {}


IndexDataCacheFile._load_index = _load_usable_index

# Numba has read it by now; it is not for processes with other packages that this one may start.
os.environ.pop("NUMBA_CACHE_LOCATOR_CLASSES", None)


class KernelLocator(_CacheLocator):
    """Place and freshness of one compiled function; made by Numba."""

    def __init__(self, module: Path, line: int):
        self._line = line
        self._digest = digest_of(module)
        self._path = folder() / f"{'.'.join(module.with_suffix('').parts)}-{self._digest[:16]}"

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return self._digest

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Self | None:
        """None for functions that are not the project's, or where nothing can be written."""
        path = Path(py_file).resolve()
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in PACKAGES or not path.is_file():
            return None
        locator = cls(path.relative_to(ROOT), py_func.__code__.co_firstlineno)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator


def folder() -> Path:
    """The folder of all compiled kernels: below `SKYRAY_KERNEL_CACHE`, or where caches of this user are."""
    base = os.environ.get("SKYRAY_KERNEL_CACHE")
    if base is None:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        if not os.access(Path(base).parent, os.W_OK):
            base = tempfile.gettempdir()
    return Path(base) / _FOLDER


@cache
def digest_of(module: Path) -> str:
    """Hash of a module, of all that it imports of the project, and of Numba's release; 64 hexadecimal digits.

    With bounds checked (`NUMBA_BOUNDSCHECK`), which Numba itself does not tell apart, it is another one.
    """
    digest = hashlib.sha256(f"{numba.__version__} {numba.config.BOUNDSCHECK}".encode())  # type: ignore[attr-defined]
    for path in sorted(closure_of(module)):
        digest.update(path.as_posix().encode() + b"\0" + hashlib.sha256(_read(path)).digest())
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
    paths = {Path(*name.split("."), *end) for name in names for end in ((), ("__init__",))}
    return frozenset(path for path in (path.with_suffix(".py") for path in paths) if (ROOT / path).is_file())


@cache
def _read(module: Path) -> bytes:
    return (ROOT / module).read_bytes()
