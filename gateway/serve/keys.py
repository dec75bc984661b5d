"""API keys of a stream: `keys.json` in its folder, made by `skyray keys` and read by the server.

The file has the SHA-256 of each key's secret, never the key. A key is `sk_ID_SECRET`; its id names it in lists and in
errors. A secret has 256 random bits and cannot be guessed, so a fast hash is safe, and wrong keys cost little time.
"""

import fcntl
import hashlib
import hmac
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from gateway.shell.terminal import whole_file, writing_to
from matching.errors import ConfigError, InputError
from topology.core.checkpoint.storage import LocalDisk

KeyScope = Literal["subscribe", "publish", "admin"]
#: What a scope allows is in `gateway.serve.access`; `admin` has the others too.
SCOPES: tuple[KeyScope, ...] = ("subscribe", "publish", "admin")
_FORMAT = "skyray-keys-2"
#: Characters of an owner's name.
MOST_OWNER = 200


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key as the file has it; times are seconds since 1970.

    The key sees and changes the subscriptions of its `owner`; None: of all owners.
    """

    key_id: str
    hash: str
    scopes: frozenset[KeyScope]
    owner: str | None = None
    created_s: float
    expires_s: float | None = None

    def shown(self) -> dict[str, Any]:
        """The key as lists show it, without the hash."""
        return {
            "id": self.key_id,
            "scopes": [scope for scope in SCOPES if scope in self.scopes],
            "owner": self.owner,
            "created": _written(self.created_s),
            "expires": None if self.expires_s is None else _written(self.expires_s),
        }


class _File(msgspec.Struct):
    format: str
    keys: list[Key]


def read_keys(path: Path) -> dict[str, Key]:
    """The keys of a file by id; none if there is no file. Raises InputError if it cannot be read."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(
            "bad_keys", f"{path}: the keys cannot be read ({error}); restore the file, or remove it and make new keys"
        ) from error
    if found.format != _FORMAT:
        do = "remove it, and make new keys by `skyray keys create`"
        raise InputError("bad_keys", f"{path}: has the format {found.format!r}, and {_FORMAT!r} is read; {do}")
    return {key.key_id: key for key in found.keys}


def create_key(
    path: Path, scopes: frozenset[KeyScope], owner: str | None = None, lasts_s: float | None = None
) -> tuple[Key, str]:
    """Add a key to a file, which is made if it is not there.

    Returns
    -------
    Key, str
        The entry in the file, and the key itself, which is stored nowhere.

    Raises
    ------
    ConfigError
        If there is no scope, or the owner's name is empty or longer than 200 characters, or a key with the scope admin
        has an owner.
    InputError, DeliveryError
        If the file cannot be read or written.
    """
    if not scopes:
        raise ConfigError(f"--scope: give what the key may do: {', '.join(SCOPES)}")
    if owner is not None and not 0 < len(owner) <= MOST_OWNER:
        raise ConfigError(f"--owner: give a name of 1 to {MOST_OWNER} characters, or leave it out for all owners")
    if owner is not None and "admin" in scopes:
        raise ConfigError("--owner: a key with the scope admin is of all owners; leave one of them out")
    now_s = time.time()
    secret = secrets.token_urlsafe(32)
    with _changing(path) as keys:
        key_id = secrets.token_hex(6)
        key = Key(
            key_id=key_id,
            hash=_hash_of(secret),
            scopes=scopes,
            owner=owner,
            created_s=now_s,
            expires_s=None if lasts_s is None else now_s + lasts_s,
        )
        keys[key_id] = key
    return key, f"sk_{key_id}_{secret}"


def revoke_key(path: Path, key_id: str) -> Key:
    """Remove a key from a file. Raises ConfigError if it is not there."""
    with _changing(path) as keys:
        if key_id not in keys:
            raise ConfigError(f"{key_id}: is no key of {path}; `skyray keys list` lists them")
        return keys.pop(key_id)


@contextmanager
def _changing(path: Path) -> Iterator[dict[str, Key]]:
    """Lock a file of keys and read it; the keys are written back unless the block raises."""
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: is no folder; name the --out of a stream, or make the folder first")
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = read_keys(path)
        yield keys
        with whole_file(path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(msgspec.json.format(msgspec.json.encode(_File(_FORMAT, list(keys.values())))))
            file.flush()
            os.fsync(file.fileno())
        with writing_to(path):
            LocalDisk(path.parent).sync(path.name)  # with its name: a revoked key must not come back
    finally:
        os.close(lock)


class RefusedKey(NamedTuple):
    """Why a key is refused: a reason code, and a text for people."""

    reason: str
    detail: str


class KeyRing:
    """The present keys of a file; for any thread.

    Parameters
    ----------
    path : Path
        Need not be there. It is read again when it has changed, so that a new or a revoked key counts at once.

    Attributes
    ----------
    has_existed : bool
        Whether there is a file, or was one: once its last key is gone, every request is refused.
    """

    def __init__(self, path: Path):
        self.has_existed = False
        self._path, self._file = path, os.fspath(path)
        self._reading = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._keys: dict[str, Key] = {}
        self.current()

    def current(self) -> dict[str, Key]:
        """The keys by id. Raises InputError if the file cannot be read."""
        with self._reading:
            try:
                status = os.stat(self._file)
            except FileNotFoundError:
                stamp = None
            else:
                stamp = status.st_mtime_ns, status.st_ino, status.st_size
                self.has_existed = True
            if stamp != self._stamp:
                self._keys, self._stamp = read_keys(self._path), stamp
            return self._keys

    def check(self, text: str) -> Key | RefusedKey:
        """The entry of a key `sk_ID_SECRET`, or why it is refused. Raises InputError as `current`."""
        name = _id_of(text)
        key = self.current().get(name)
        if key is None or not hmac.compare_digest(key.hash.encode(), _hash_of(text[len(f"sk_{name}_") :]).encode()):
            return RefusedKey("wrong_key", "there is no such key")
        if not self.is_valid(key):
            return RefusedKey("expired_key", f"key {key.key_id} is past its time")
        return key

    def is_valid(self, key: Key) -> bool:
        """Whether a key that was accepted is neither revoked nor expired."""
        return self.current().get(key.key_id) == key and (key.expires_s is None or time.time() < key.expires_s)


def _hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _id_of(text: str) -> str:
    """The id in a key, "" if it has none."""
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "sk" else ""


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
