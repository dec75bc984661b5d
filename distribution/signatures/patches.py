"""Signature patches, which query tasks send to distribution tasks."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from matching.model import (
    Int64,
)


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
        return sum(array.nbytes for _, array in self._arrays())

    def frame(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Header and named arrays, as `topology.core.frames` writes them."""
        header = {name: int(getattr(self, name)) for name in ("task", "serial", "through", "levels")}
        whole = {"cells_whole": bool(self.cells.whole), "pairs_whole": bool(self.pairs.whole)}
        return header | whole, dict(self._arrays())

    @classmethod
    def from_frame(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> "SignaturePatch":
        """The inverse of `frame`."""
        halves = [
            FilterPatch(header[f"{half}_whole"], *(arrays[f"{half}_{name}"] for name in FilterPatch._fields[1:]))
            for half in ("cells", "pairs")
        ]
        return cls(header["task"], header["serial"], header["through"], header["levels"], *halves)

    def _arrays(self) -> list[tuple[str, np.ndarray]]:
        halves = (("cells", self.cells), ("pairs", self.pairs))
        return [(f"{half}_{name}", getattr(patch, name)) for half, patch in halves for name in FilterPatch._fields[1:]]
