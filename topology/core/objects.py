"""Client of an S3-compatible object store: reads, writes and conditional writes of whole objects by name.

`topology.core.places` wraps it as paths, `topology.core.checkpoint.storage` as folders of files, and
`topology.core.checkpoint.fence` stores the object that decides which driver a run has. Endpoint, region and keys come
from the usual variables (`AWS_ENDPOINT_URL`, `AWS_REGION` or `AWS_DEFAULT_REGION`, `AWS_ACCESS_KEY_ID`, ...).
"""

import functools
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from matching.errors import ConfigError
from matching.extras import require

SCHEME = "s3"
#: Timeout in seconds of a request with all its retries after a 503 or a lost connection.
PATIENCE_S = 60.0
#: Timeout in seconds of one attempt.
REQUEST_S = 20.0
#: Bytes of one request where an object is read from its beginning to its end.
READ_BYTES = 8 << 20
#: Attempts of a conditional write whose outcome is unknown.
_TRIES = 4
_URI = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/+(.*))?", re.DOTALL)


class Taken(Exception):
    """A conditional write failed, since another process has created or replaced the object before."""


class Object(NamedTuple):
    """Bytes of an object, and its entity tag (ETag), which changes with the contents."""

    data: bytes
    tag: str


def split_uri(uri: str) -> tuple[str, str]:
    """Bucket and key of a URI `s3://BUCKET/KEY`.

    Raises
    ------
    ConfigError
        If `uri` has another form, or a part `.` or `..`.
    """
    found = _URI.fullmatch(uri)
    if found is None or any(part in (".", "..") for part in (found[2] or "").split("/")):
        raise ConfigError(f"{uri}: is no address in an object store; give s3://BUCKET/NAME, without dots as folders")
    return found[1], "/".join(part for part in (found[2] or "").split("/") if part)


class Bucket:
    """A bucket, or the objects of a bucket under a prefix.

    Every method raises OSError with the object, the cause and a remedy; FileNotFoundError for an object that does not
    exist.

    Parameters
    ----------
    uri : str
        `s3://BUCKET` or `s3://BUCKET/PREFIX`.
    """

    def __init__(self, uri: str):
        self.name, prefix = split_uri(uri)
        self.uri = f"{SCHEME}://{self.name}" + (f"/{prefix}" if prefix else "")
        self._prefix = f"{prefix}/" if prefix else ""
        self._store = _store(self.name, os.getpid())

    def read(self, name: str) -> Object:
        """A whole object."""
        with self._asking(name):
            found = _obstore().get(self._store, self._key(name))
            return Object(bytes(found.bytes()), str(found.meta["e_tag"]))

    def size_of(self, name: str) -> tuple[int, str]:
        """Bytes of an object, and its tag."""
        with self._asking(name):
            found = _obstore().head(self._store, self._key(name))
            return int(found["size"]), str(found["e_tag"])

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Some bytes of an object."""
        with self._asking(name):
            return bytes(_obstore().get_range(self._store, self._key(name), start=start, length=length))

    def write(self, name: str, data: bytes) -> str:
        """Write an object, whether it exists or not; returns its tag."""
        with self._asking(name):
            return str(_obstore().put(self._store, self._key(name), data)["e_tag"])

    def writing(self, name: str) -> Any:
        """A binary file for writing; `close` creates or replaces the object at once."""
        with self._asking(name):
            return _Upload(self, name, _obstore().open_writer(self._store, self._key(name)))

    def create(self, name: str, data: bytes) -> str:
        """Write an object if none has this name; returns its tag. Raises Taken if one exists."""
        return self._put_if(name, data, "create")

    def replace(self, name: str, data: bytes, tag: str) -> str:
        """Replace an object if it still has this tag; returns the new tag. Raises Taken if it has another one.

        `data` must differ from the present contents, else the tag would stay the same.
        """
        return self._put_if(name, data, {"e_tag": tag})

    def names(self, prefix: str = "") -> list[str]:
        """Names of all objects that begin with `prefix`, ascending, with `/` in those of subfolders."""
        whole = self._key(prefix)
        folder = whole.rpartition("/")[0]
        with self._asking(prefix):
            listed = [
                str(each["path"]) for page in _obstore().list(self._store, prefix=folder or None) for each in page
            ]
        skipped = len(self._prefix)
        return sorted(path[skipped:] for path in listed if path.startswith(whole))

    def delete(self, *names: str) -> None:
        """Delete the objects that exist among these."""
        for name in names:
            with self._asking(name):
                try:
                    _obstore().delete(self._store, self._key(name))
                except FileNotFoundError as error:
                    if not _is_missing(error):
                        raise

    def _put_if(self, name: str, data: bytes, mode: Any) -> str:
        """A conditional write, with retries.

        The store may write the object and the answer may be lost; the retry then fails because of our own object. So a
        failed attempt compares the present contents with `data`.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        for attempt in range(_TRIES):
            try:
                with self._asking(name):
                    return str(_obstore().put(self._store, self._key(name), data, mode=mode)["e_tag"])
            except (AlreadyExistsError, PreconditionError):
                found = self._there(name)
                if found is not None and found.data == data:
                    return found.tag
                raise Taken(f"{self.uri}/{name}") from None
            except FileNotFoundError:
                raise Taken(f"{self.uri}/{name}") from None
            except OSError:
                found = self._there(name)
                if found is not None and found.data == data:
                    return found.tag
                if attempt + 1 == _TRIES:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _there(self, name: str) -> Object | None:
        """The object; None if it does not exist."""
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def _key(self, name: str) -> str:
        return self._prefix + name

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Translate errors of requests about an object: OSError or FileNotFoundError with a remedy."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            raise
        except (BaseError, OSError) as error:
            where = f"{self.uri}/{name}".rstrip("/")
            raise (FileNotFoundError if _is_missing(error) else OSError)(
                f"{where}: {_why(error, self.name)}"
            ) from error


class _Upload(io.RawIOBase):
    """A multipart upload as a file; the object exists once the file is closed."""

    def __init__(self, bucket: Bucket, name: str, writer: Any):
        self._bucket = bucket
        self._name = name
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with self._bucket._asking(self._name):
            return int(self._writer.write(bytes(data)))

    def close(self) -> None:
        if not self.closed:
            try:
                with self._bucket._asking(self._name):
                    self._writer.close()
            finally:
                super().close()


class ObjectReader(io.RawIOBase):
    """An object as a seekable file for reading; each read is one range request."""

    def __init__(self, bucket: Bucket, name: str):
        self._bucket = bucket
        self._name = name
        self.size, _ = bucket.size_of(name)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(0, self.size - self._at))
        if length:
            buffer[:length] = self._bucket.read_range(self._name, self._at, length)
            self._at += length
        return length


@functools.cache
def _obstore() -> Any:
    require("s3", "s3:// folders", "name a folder of this machine")
    import obstore

    return obstore


@functools.cache
def _store(bucket: str, process: int) -> Any:
    """The obstore client of a bucket, cached by process id: a forked process must not share connections."""
    _obstore()
    from obstore.store import S3Store

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    places: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        places["region"] = "us-east-1"
    return S3Store(
        bucket,
        client_options={
            "allow_http": (endpoint or "").startswith("http://"),
            "timeout": timedelta(seconds=REQUEST_S),
            "connect_timeout": timedelta(seconds=5),
        },
        retry_config={
            "max_retries": 12,
            "retry_timeout": timedelta(seconds=PATIENCE_S),
            "backoff": {
                "init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=5), "base": 2,
            },
        },
        **places,
    )  # fmt: skip


def _is_missing(error: BaseException) -> bool:
    return isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error)


def _why(error: BaseException, bucket: str) -> str:
    """Cause and remedy of an error of obstore, in one line."""
    text = str(error)
    if "NoSuchBucket" in text:
        return f"there is no bucket {bucket}; make it first, or check AWS_ENDPOINT_URL and AWS_REGION"
    if isinstance(error, FileNotFoundError):
        return "is not there; check its name"
    if "credential" in text.lower() or "/latest/api/token" in text or "metadata" in text.lower():
        return "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if isinstance(error, PermissionError) or "AccessDenied" in text or "status code: 403" in text or "401" in text:
        return "access is refused; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they are allowed to do"
    if "SlowDown" in text or "status code: 503" in text:
        return f"the store refuses requests (503) for {PATIENCE_S:.0f} s; try again later"
    if "error sending request" in text or "HTTP error" in text or "timed out" in text:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "Amazon's"
        return f"the store does not answer (endpoint {endpoint}); check AWS_ENDPOINT_URL and the network"
    return (text.splitlines() or ["unknown error"])[0][:300] + "; check AWS_ENDPOINT_URL and AWS_REGION"
