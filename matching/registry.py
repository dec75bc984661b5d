"""Kind and name to engine: the one table that drives tests, benchmarks and the command line.

To add an engine, write it in the folder of its kind and enter it here: the tests hold it against `matching.naive`, the
benchmarks time it beside the others, and `--engine KIND=NAME` offers it, without a further line. Read on in the engine
you are after, for example `matching.boolean.cell_term`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from matching.boolean.cell_term import CellTerm
from matching.boolean.hashed_cells import HashedCells
from matching.boolean.inverted_list import InvertedList
from matching.boolean.lfilter import LFilter
from matching.boolean.mbr_trie import MbrTrie
from matching.boolean.pt_quadtree import PtQuadtree
from matching.boolean.rt_tree import RtTree
from matching.errors import ConfigError
from matching.skyline.bnl import Bnl
from matching.skyline.eager import Eager
from matching.skyline.eager_star import EagerStar
from matching.skyline.lazy import Lazy
from matching.skyline.sweep import Sweep
from matching.topk.block_inverted_file import BlockInvertedFile
from matching.topk.inverted_file import InvertedFile
from matching.topk.l2_scan import L2Scan
from matching.topk.skype import Skype

#: Kind of subscription to name to class (or another factory taking the space and options); see `default`.
ENGINES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "boolean": {
        CellTerm.name: CellTerm,
        HashedCells.name: HashedCells,
        InvertedList.name: InvertedList,
        LFilter.name: LFilter,
        MbrTrie.name: MbrTrie,
        PtQuadtree.name: PtQuadtree,
        RtTree.name: RtTree,
    },
    "topk": {
        L2Scan.name: L2Scan,
        InvertedFile.name: InvertedFile,
        Skype.name: Skype,
        BlockInvertedFile.name: BlockInvertedFile,
    },
    "skyline": {
        EagerStar.name: EagerStar,
        Eager.name: Eager,
        Lazy.name: Lazy,
        Bnl.name: Bnl,
        Sweep.name: Sweep,
    },
}

_DEFAULTS: Mapping[str, str] = {"boolean": CellTerm.name, "topk": Skype.name, "skyline": EagerStar.name}


def names(kind: str) -> tuple[str, ...]:
    """Engines of a kind, the default first.

    Raises
    ------
    ConfigError
        For a kind without engines.
    """
    first = default(kind)
    return (first, *(name for name in ENGINES[kind] if name != first))


def default(kind: str) -> str:
    """Name of the engine of a kind that runs when none is asked for.

    Raises
    ------
    ConfigError
        For a kind without engines.
    """
    if kind not in ENGINES:
        raise ConfigError(f"kind {kind!r} has no engine: choose one of {', '.join(ENGINES)}")
    return _DEFAULTS[kind]


def factory(kind: str, name: str | None = None) -> Callable[..., Any]:
    """The class of an engine, the default one if no name is given.

    Raises
    ------
    ConfigError
        For a kind without engines or a name that the kind does not have.
    """
    name = name or default(kind)
    default(kind)
    if name not in ENGINES[kind]:
        raise ConfigError(f"engine {name!r} for {kind}: choose one of {', '.join(names(kind))}")
    return ENGINES[kind][name]
