"""Paths of this machine and of object stores behind the same few operations.

`place` makes a `Path` or a `StorePath` of what people write. A `StorePath` has those operations of a `Path` that
readers of input need; it is no `os.PathLike`, so that code for files of this machine refuses it at once.
"""

import fnmatch
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import xxhash

from matching.errors import ConfigError, InputError
from topology.core.objects import READ_BYTES, SCHEME, Bucket, ObjectReader, split_uri

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of a file that its checksum takes at a time.
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, order=True)
class StorePath:
    """An object, or a prefix, of an object store: `place` makes it of a URI `s3://BUCKET/NAME`."""

    _bucket: str
    _key: str

    def __str__(self) -> str:
        return f"{SCHEME}://{self._bucket}" + (f"/{self._key}" if self._key else "")

    def __truediv__(self, name: str) -> "StorePath":
        return StorePath(*split_uri(f"{self}/{name}"))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self._key).name

    @property
    def suffix(self) -> str:
        """The end of the name from the last dot on."""
        return PurePosixPath(self._key).suffix

    @property
    def parent(self) -> "StorePath":
        """The path without its last part."""
        return StorePath(self._bucket, self._key.rpartition("/")[0])

    @property
    def bucket(self) -> Bucket:
        """The store of the objects below it."""
        return Bucket(str(self))

    def absolute(self) -> "StorePath":
        """The same: an address is the same everywhere."""
        return self

    def resolve(self) -> "StorePath":
        """The same."""
        return self

    def exists(self) -> bool:
        """Whether there is an object of this name, or one below it. Raises OSError if the store does not say."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        try:
            return bool(self._key) and self._parent_bucket().size_of(self.name)[0] >= 0
        except FileNotFoundError:
            return False

    def is_dir(self) -> bool:
        """Whether there are objects below it."""
        return bool(self.bucket.names())

    def glob(self, pattern: str) -> Iterator["StorePath"]:
        """Objects directly below it whose names fit."""
        for name in self.bucket.names():
            if "/" not in name and fnmatch.fnmatchcase(name, pattern):
                yield self / name

    def open(self, mode: str = "rb") -> IO[bytes]:
        """The object as a file to read, or to write: it is there once the file is closed."""
        if mode == "wb":
            return self._parent_bucket().writing(self.name)
        if mode != "rb":
            raise ValueError(f"{self}: opened with {mode!r}; objects are read or written whole")
        return io.BufferedReader(ObjectReader(self._parent_bucket(), self.name), READ_BYTES)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object; nothing happens if there is none."""
        self._parent_bucket().delete(self.name)

    def stat(self) -> os.stat_result:
        """Its size, `st_size`; all else is 0. Raises OSError if there is no object."""
        return os.stat_result((0, 0, 0, 0, 0, 0, self._parent_bucket().size_of(self.name)[0], 0, 0, 0))

    def read_bytes(self) -> bytes:
        """The whole object."""
        return self._parent_bucket().read(self.name).data

    def tag(self) -> str:
        """A string that changes with the contents of the object."""
        size, tag = self._parent_bucket().size_of(self.name)
        return f"{tag.strip(chr(34))}-{size}"

    def arrow(self) -> "pa.NativeFile":
        """The object as a file for Arrow; each request reads ahead, `READ_BYTES` from the wanted offset on."""
        import pyarrow as pa  # the command line is quick without

        return pa.PythonFile(self.open(), mode="r")

    def _parent_bucket(self) -> Bucket:
        return self.parent.bucket


def place(path: "str | os.PathLike[str] | StorePath", *parts: str) -> Any:
    """A `StorePath` of a URI, a `Path` of all else; both with the operations of a `Path` that readers need.

    `file://` is a folder of this machine. A command line may have made a `Path` of a URI, of which one slash is left.
    Raises ConfigError for a URI of an object store that is none.
    """
    if isinstance(path, StorePath):
        found: Any = path
    else:
        text = os.fspath(path)
        scheme, colon, rest = text.partition(":/")
        if colon and scheme == SCHEME:
            found = StorePath(*split_uri(f"{SCHEME}://{rest.lstrip('/')}"))
        elif colon and scheme == "file":
            found = Path("/" + rest.lstrip("/"))
        else:
            found = Path(path)
    for part in parts:
        found = found / part
    return found


def is_remote(path: object) -> bool:
    """Whether this is a path or URI of an object store."""
    return isinstance(path, StorePath) or str(path).startswith((f"{SCHEME}:/", f"{SCHEME}://"))


def require_local(**options: object) -> None:
    """Refuse addresses in an object store where only folders of this machine will do.

    Parameters
    ----------
    **options
        Paths, None where none is given, by the names of their options.

    Raises
    ------
    ConfigError
        With the first option that has one.
    """
    for name, path in options.items():
        if path is not None and is_remote(path):
            raise ConfigError(
                f"--{name} {place(path)}: a live stream forces each line to disk, which an object store cannot; name a "  # type: ignore[arg-type]
                "folder of this machine"
            )


def arrow_file(path: Any) -> Any:
    """What Arrow opens: a path of this machine as it is, an object as a file of ranges. Raises OSError."""
    return path.arrow() if isinstance(path, StorePath) else path


def checksum(path: Any) -> str:
    """xxh3-128 of a file's bytes; of an object the tag that its store gives its contents."""
    if isinstance(path, StorePath):
        try:
            return path.tag()
        except OSError as error:
            raise InputError("missing_file", str(error)) from error
    digest = xxhash.xxh3_128()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise InputError("missing_file", f"{path}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()
