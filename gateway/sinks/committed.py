"""The committed parts of a folder as a supply of updates: of a stream without a server, or of a run that has ended.

Parts get their names at checkpoints and at the end, so a sink is as far behind as the last checkpoint. Made by
`gateway.commands.delivering`, read by `gateway.sinks.pump`.
"""

from pathlib import Path

from gateway.serve.update_parts import END, PIECE, Parts, PartsMissing, Place, Position, Taken, place_in, take_of
from matching.errors import DeliveryError


class Committed:
    """See `gateway.sinks.cursor.Supply`; for one thread, but `end`.

    Parameters
    ----------
    folder : Path
        `updates/`.
    parts : Parts
        Of that folder.
    """

    def __init__(self, folder: Path, parts: Parts):
        self._folder = folder
        self._parts = parts
        self._rows: dict[str, int] = {}

    def end(self) -> Place:
        """See `Supply`; O(parts)."""
        names = self._parts.names()
        for name in names:
            if name not in self._rows:
                self._rows[name] = self._parts.rows_of(name)
        last = self._parts.last_boundary()
        return Place(Position(last, END if last >= 0 else 0), sum(self._rows[name] for name in names))

    def place(self, position: Position, known: Place) -> Place | None:
        """See `Supply`."""
        end = self.end()
        return None if position.boundary > end.position.boundary else place_in(self._parts, position, known, end)

    def take(self, at: Place, most: int = PIECE) -> Taken | None:
        """See `Supply`. Raises DeliveryError if the next part is gone: how many updates it had is not known here."""
        end = self.end()
        if at.position >= end.position:
            return None
        try:
            self._parts.count_between(at.position, end.position.boundary)
        except PartsMissing as missing:
            raise DeliveryError(
                f"{self._folder}: the files with the updates after {at.position.text} are gone, and the next are of "
                f"message {missing.boundary:,}; restore them"
            ) from missing
        return take_of(self._parts, at, end, most)
