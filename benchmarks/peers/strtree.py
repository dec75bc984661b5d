"""Peer: shapely's STRtree, a packed R-tree over the regions, and numpy for the keywords.

The tree takes a whole batch of boxes in one call and gives every pair whose boxes meet; the keywords of all these pairs
are tested by vectors afterwards. It cannot change: whoever comes or leaves has it built again.
"""

import numpy as np

from benchmarks.peers.base import Peer, have_all_terms, pairs
from matching.boolean.engine import MatchSet
from matching.model import Int64, MessageBatch, SubscriptionTable, concatenate, empty
from matching.space import Space

#: Pairs of a batch live in memory at once: half a gigabyte.
_MESSAGES_A_QUERY = 64


class STRtree(Peer):
    """R-tree over regions, rebuilt at every change."""

    name = "strtree"
    install = "pip install 'skyray[bench]'"
    packages = ("shapely",)

    def __init__(self, space: Space):
        super().__init__(space)
        self._table: SubscriptionTable = empty(SubscriptionTable)
        self._build()

    def version(self) -> str:
        """Of the library and of GEOS below it."""
        import shapely

        return f"shapely {shapely.__version__}, GEOS {shapely.geos_version_string}"

    def _build(self) -> None:
        import shapely

        west, south, east, north = self._table.region.T
        self._boxes = shapely.box(west, south, east, north)
        self._tree = shapely.STRtree(self._boxes)
        self._tree.query(shapely.Point(0.0, 0.0))  # the tree is packed when first asked

    def _take_in(self, table: SubscriptionTable) -> None:
        """Build again with these."""
        self._table = concatenate([self._table, table]) if len(self._table) else table
        self._build()

    def _forget(self, numbers: Int64) -> None:
        """Build again without these."""
        self._table = self._table.take(np.flatnonzero(~np.isin(self._table.number, numbers)))
        self._build()

    def _find(self, batch: MessageBatch) -> MatchSet:
        """Boxes that meet, then keywords. Boxes are compared in doubles, closed, so nothing is left to test."""
        import shapely

        found_row, found_number = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for start in range(0, len(batch), _MESSAGES_A_QUERY):
            part = batch.take(np.arange(start, min(start + _MESSAGES_A_QUERY, len(batch))))
            row, slot = self._tree.query(shapely.box(part.west, part.south, part.east, part.north))
            good = have_all_terms(part, row, self._table.term_offsets, self._table.terms, slot)
            found_row.append(row[good] + start)
            found_number.append(self._table.number[slot[good]])
        return pairs(np.concatenate(found_row), np.concatenate(found_number))

    def size_bytes(self) -> int:
        """Our columns, and an estimate of the rest: shapely cannot tell.

        A polygon of five corners is about 500 bytes in GEOS 3.11 to 3.14, an entry of the tree 56.
        """
        columns = self._table.number.nbytes + self._table.term_offsets.nbytes + self._table.terms.nbytes
        return columns + len(self) * 556

    def close(self) -> None:
        """Nothing is held outside."""
