"""Chooses the folder of a run by where it is: on a disk of this machine, or in an object store."""

from pathlib import Path

from topology.core.places import StorePath, place
from topology.folder import RunFolder
from topology.store_folder import StoreFolder


def run_folder(path: Path | StorePath | str) -> RunFolder:
    """The folder of a run; nothing is read yet."""
    found = place(path)
    return StoreFolder(found) if isinstance(found, StorePath) else RunFolder(found)
