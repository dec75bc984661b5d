"""The versions of objects as of a boundary: what results of a stream of objects show.

Updates name the version that entered a result, and none comes where an object stays with another one. So a result has
objects, and of each the version that lived at its boundary. The table of living versions may be ahead of that boundary;
rows of the log behind it say which version each of them replaced.
"""

from collections.abc import Iterable, Sequence

from gateway.live.write_ahead_log import WriteAheadLog
from spouts.parsed import objects_of


class VersionsAt:
    """Reads versions as of boundaries that are released; for any thread.

    Parameters
    ----------
    wal : WriteAheadLog    of a stream of objects
    """

    def __init__(self, wal: WriteAheadLog):
        assert wal.living is not None, "it is a stream of objects"
        self._wal, self._living = wal, wal.living

    def objects(self, seqs: Sequence[int]) -> dict[int, str]:
        """The object of each message (ascending seqs). One read of the log for each batch."""
        return {seq: text.object_id for seq, text in self._wal.look_up(seqs).items()}

    def at(self, boundary: int, names: Iterable[str]) -> dict[str, int]:
        """Seq of the version of each object that lived at a boundary. O(names + messages behind the boundary)."""
        found = {name: self._living.get(name) for name in names}
        first, taken = self._living.latest  # perhaps not logged yet, and so read before the log
        later: dict[str, int] = {}
        for seq, block in self._wal.blocks_from(boundary + 1):
            if block.previous is None:
                continue
            for row, name in enumerate(objects_of(block).names):
                if seq + row > boundary and (block.ahead is None or not block.ahead[row]):
                    later.setdefault(name, int(block.previous[row]))
        for name, seq in taken.items() if first > boundary else ():
            later.setdefault(name, seq)
        return {name: seq for name, now in found.items() if (seq := later.get(name, now)) is not None and seq >= 0}

    def living(self, boundary: int, seqs: Sequence[int]) -> list[int]:
        """Those of some versions that lived at a boundary, in their order."""
        objects = self.objects(sorted(seqs))
        at = self.at(boundary, set(objects.values()))
        return [seq for seq in seqs if at.get(objects[seq]) == seq]
