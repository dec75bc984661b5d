"""Window indexes by name: the one table that drives tests, benchmarks and `--window-index`.

Results never depend on the choice, only the work does. Read on in `matching.topk.window_index` for what they have in
common, then in the default.
"""

from collections.abc import Mapping

from matching.errors import ConfigError
from matching.topk.window_index import WindowIndex
from matching.topk.window_ir_tree import IRTrees
from matching.topk.window_quadtree import ILQuadtree
from matching.topk.window_ring import InvertedRing
from matching.topk.window_segments import Segments

#: Name to class, the default first.
WINDOW_INDEXES: Mapping[str, type[WindowIndex]] = {
    index.name: index for index in (Segments, ILQuadtree, IRTrees, InvertedRing)
}


def window_index(name: str | None = None) -> type[WindowIndex]:
    """The class of a window index, the default one if no name is given.

    Raises
    ------
    ConfigError
        For a name nobody knows.
    """
    chosen = name or next(iter(WINDOW_INDEXES))
    if chosen not in WINDOW_INDEXES:
        raise ConfigError(f"window index {chosen!r}: choose one of {', '.join(WINDOW_INDEXES)}")
    return WINDOW_INDEXES[chosen]
