"""Peer: shapely's STRtree, a packed R-tree over the regions, and numpy for the keywords.

The tree takes a whole batch of boxes in one call and gives every pair whose boxes meet; the keywords of all these pairs
are tested by vectors afterwards. It cannot change: whoever comes or leaves has it built again.
"""

import numpy as np

from benchmarks.peers.base import Peer, have_all_terms
from matching.model import Int64, MessageBatch, SubscriptionTable, concatenate, empty
from matching.space import Space


class STRtree(Peer):
    """R-tree over regions, rebuilt at every change."""

    name = "strtree"
    install = "pip install 'skyray[bench]'"
    packages = ("shapely",)
    at_once = 64  # half a gigabyte of pairs

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

    def _find(self, batch: MessageBatch) -> tuple[np.ndarray, np.ndarray]:
        """Boxes that meet, then keywords. Boxes are compared in doubles, closed, so nothing is left to test."""
        import shapely

        row, slot = self._tree.query(shapely.box(batch.west, batch.south, batch.east, batch.north))
        good = have_all_terms(batch, row, self._table.term_offsets, self._table.terms, slot)
        return row[good], self._table.number[slot[good]]

    def size_bytes(self) -> int:
        """Our columns, and an estimate of the rest: shapely cannot tell.

        A polygon of five corners is about 500 bytes in GEOS 3.11 to 3.14, an entry of the tree 56.
        """
        columns = self._table.number.nbytes + self._table.term_offsets.nbytes + self._table.terms.nbytes
        return columns + len(self) * 556

    def close(self) -> None:
        """Nothing is held outside."""
