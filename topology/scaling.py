"""Requests to a running run to continue with other numbers of tasks: a file in its folder.

`skyray scale` writes it, the run sees it, drains to a checkpoint and resumes from that in the same process
(`topology.running`). Then `run.json` has the number of the request in `scaled`, with the reason if it was refused. In
an object store there are no requests: each look for one would be a request to the store.
"""

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from topology.core.checkpoint.storage import LocalDisk, written
from topology.core.places import is_remote

REQUEST = "scale.json"


class ScaleRequest(NamedTuple):
    """Settings that a run is to continue with, and what identifies the request."""

    request: str
    settings: Mapping[str, Any]


def write_request(folder: Path, settings: Mapping[str, Any]) -> str:
    """Request other settings of the run in a folder, in place of an earlier request; returns what identifies it."""
    request = uuid.uuid4().hex
    with written(LocalDisk(folder), REQUEST, f".{REQUEST}.new") as file:
        file.write(json.dumps({"request": request, "settings": dict(settings)}).encode())
    return request


def is_requested(folder: Path) -> bool:
    """Whether there is a request."""
    return not is_remote(folder) and (folder / REQUEST).exists()


def take_request(folder: Path) -> ScaleRequest | None:
    """Read the request and remove it; None if there is none that can be read."""
    if not is_requested(folder):
        return None
    found = None
    with suppress(OSError, ValueError, TypeError, KeyError):
        values = json.loads((folder / REQUEST).read_text())
        found = ScaleRequest(str(values["request"]), dict(values["settings"]))
    drop_request(folder)
    return found


def drop_request(folder: Path) -> None:
    """Remove a request that no run will serve."""
    if not is_remote(folder):
        (folder / REQUEST).unlink(missing_ok=True)
