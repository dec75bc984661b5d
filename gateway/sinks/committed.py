"""The committed parts of a folder as a log of updates: of a stream without a server, or of a run that has ended.

Parts get their names at checkpoints and at the end, so a sink is as far behind as the last checkpoint. Nothing is in
memory.
"""

from pathlib import Path

from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import END, PIECE, Parts, PartsMissing, Place, Position, TakenUpdates
from matching.errors import DeliveryError


class CommittedUpdates(UpdateLog):
    """An `UpdateLog` without a memory; for one thread, but `end`.

    Parameters
    ----------
    folder : Path
        `updates/`.
    parts : Parts
        Of that folder.
    """

    def __init__(self, folder: Path, parts: Parts):
        super().__init__(parts)
        self._folder = folder
        self._rows: dict[str, int] = {}

    def end(self) -> Place:
        """See `UpdateLog`; O(parts)."""
        names = self.parts.names()
        for name in names:
            if name not in self._rows:
                self._rows[name] = self.parts.rows_of(name)
        self.floor = self.parts.last_boundary()
        self.head = Position(self.floor, END if self.floor >= 0 else 0)
        self.updates = sum(self._rows[name] for name in names)
        return Place(self.head, self.updates)

    def place(self, position: Position, known: Place) -> Place | None:
        """See `UpdateLog`."""
        self.end()
        return super().place(position, known)

    def take(self, at: Place, most: int = PIECE) -> TakenUpdates | None:
        """See `UpdateLog`. Raises DeliveryError if the next part is gone: how many updates it had is not known here."""
        end = self.end()
        if at.position >= end.position:
            return None
        try:
            self.parts.count_between(at.position, end.position.boundary)
        except PartsMissing as missing:
            raise DeliveryError(
                f"{self._folder}: the files with the updates after {at.position.text} are gone, and the next are of "
                f"message {missing.boundary:,}; restore them"
            ) from missing
        return super().take(at, most)
