"""Name to window index: which ways of holding the window there are for `skyline` subscriptions.

Tests hold each of these against plain Python and `benchmarks.skyline_figures` sets them beside each other. Read on in
`matching.skyline.window`, what all of them are.
"""

from matching.errors import ConfigError
from matching.skyline.i3 import I3
from matching.skyline.il_quadtree import IlQuadtree
from matching.skyline.inverted_kd import InvertedKd
from matching.skyline.ir_tree import IrTree
from matching.skyline.mf_rtree import MfRtree
from matching.skyline.window_tree import TreeWindow

TREES: dict[str, type[TreeWindow]] = {
    tree.name: tree for tree in (MfRtree, IrTree, IlQuadtree, I3, InvertedKd)
}  # fmt: skip


def tree_named(name: str) -> type[TreeWindow]:
    """The class of a tree.

    Raises
    ------
    ConfigError
        For a name nobody knows.
    """
    if name not in TREES:
        raise ConfigError(f"window index {name!r}: choose one of {', '.join(TREES)}")
    return TREES[name]
