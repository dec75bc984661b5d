"""Files by which Prometheus finds the figures of several processes (`file_sd_configs`): `--set metrics.targets=FOLDER`.

Each process has a file of its own in the folder, which goes when the process ends; that of one that was killed is
removed by the next that starts on that machine. Prometheus reads `FOLDER/*.json`, and again when they change.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.shell.terminal import whole_file
from matching.errors import DeliveryError

_PREFIX = "skyray-"


@contextmanager
def listed(folder: Path, address: str, labels: Mapping[str, str]) -> Iterator[Path]:
    """List an address in the folder during the block, with these labels; yields the file. The folder is made.

    Raises
    ------
    DeliveryError
        If the file cannot be written.
    """
    host = socket.gethostname()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeliveryError(f"metrics.targets {folder}: cannot be made ({error.strerror or error})") from None
    _sweep(folder, host)
    file = folder / f"{_PREFIX}{host}-{os.getpid()}-{address.rpartition(':')[2]}.json"
    with whole_file(file) as out:
        out.write(json.dumps([{"targets": [address], "labels": dict(labels)}]).encode() + b"\n")
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def _sweep(folder: Path, host: str) -> None:
    """Remove the files of processes of this machine that are gone."""
    for file in folder.glob(f"{_PREFIX}{host}-*-*.json"):
        process = file.stem.removeprefix(f"{_PREFIX}{host}-").partition("-")[0]
        if process.isdigit() and not _lives(int(process)):
            with suppress(OSError):
                file.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
