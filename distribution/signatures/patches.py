"""Signature patches, which query tasks send to distribution tasks."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

from matching.model import Int64


class FilterPatch(NamedTuple):
    """Changes of one filter: first, if `whole`, all of it, then items to delete and items to insert."""

    whole: bool
    words: NDArray[Any]
    state: Int64
    gone: Int64
    came: Int64


class SignaturePatch(NamedTuple):
    """Changes of a query task's signature.

    task, serial : int    the query task, and the patch's number, from 0
    through : int         the last change list in it
    levels : int          bit l is set if level l of the quadtree is used
    cells, pairs          the two halves; the second is empty without text
    """

    task: int
    serial: int
    through: int
    levels: int
    cells: FilterPatch
    pairs: FilterPatch

    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for patch in (self.cells, self.pairs) for array in patch[1:])
