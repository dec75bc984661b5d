"""The versions of the objects of a run over objects, as of any of its messages."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.runs.oracle_replay import read_objects, set_aside
from gateway.runs.reader import RunReader


class RunVersions:
    """Which version of each object lives as of a message.

    Parameters
    ----------
    run : RunReader    of a stream of objects

    Attributes
    ----------
    names : list of str    the object of each message

    Notes
    -----
    Reads the objects of all messages: some 100 bytes for each.
    """

    def __init__(self, run: RunReader):
        self.names, self._deletes = read_objects(run.etl)
        self._rows: dict[str, list[int]] = {}  # object -> its versions and deletions
        for seq, (name, aside) in enumerate(zip(self.names, set_aside(run).tolist(), strict=True)):
            if not aside:
                self._rows.setdefault(name, []).append(seq)

    def last(self, name: str, as_of: int) -> int:
        """The newest version of an object, or its deletion, as of a message; -1 if there is none."""
        rows = self._rows.get(name, [])
        place = bisect_right(rows, as_of)
        return rows[place - 1] if place else -1

    def is_last(self, seq: int, as_of: int) -> bool:
        """Whether a message is what is newest of its object as of another."""
        return self.last(self.names[seq], as_of) == seq

    def shown(self, seq: int) -> dict[str, Any]:
        """What a message says of its object: `object_id`, and `deleted` if it ends it."""
        return {"object_id": self.names[seq]} | ({"deleted": True} if self._deletes[seq] else {})

    def at(self, as_of: int, names: Iterable[Any]) -> Mapping[str, int]:
        """Seq of the version of each object that lives as of a message."""
        found = {name: self.last(name, as_of) for name in names}
        return {name: seq for name, seq in found.items() if seq >= 0 and not self._deletes[seq]}
