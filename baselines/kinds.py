"""The table of kinds with baselines in its rows; a baseline is imported when its name is first looked up.

A run that names an engine or window index which `matching.kinds` lacks uses this table instead (`topology.engines`),
and so do benchmarks and tests. A new baseline is a file in the folder of its kind and a row here. The table is pickled
by names, so that tasks on Ray import the baselines that they use. Read on in `matching.kind_table`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from matching.kind_table import Kind, Kinds
from matching.kinds import KINDS

#: Kind -> name of an engine -> "module:class" in the folder of the kind.
ENGINES = {
    "boolean": {
        "hashed_cells": "hashed_cells:HashedCells",
        "inverted_list": "inverted_list:InvertedList",
        "ir_tree": "rt_tree:InvertedRTree",
        "rt_tree": "rt_tree:RtTree",
        "rtpp_tree": "rtpp_tree:RtppTree",
    },
    "topk": {
        "skype_paper": "skype_paper:SkypePaper",
        "skype_paper_trees": "skype_paper:SkypePaperTrees",
        "l2_scan": "l2_scan:L2Scan",
        "inverted_file": "inverted_file:InvertedFile",
        "ciq": "ciq:Ciq",
    },
    "decay": {
        "bif_paper": "bif_paper:BifPaper",
        "block_inverted_file": "block_inverted_file:BlockInvertedFile",
        "inverted_file": "inverted_file:InvertedFile",
    },
    "knn": {"inverted_file": "inverted_file:InvertedFile"},
    "skyline": {
        "lazy": "lazy:Lazy",
        "skyline_only": "skyline_only:SkylineOnly",
        "bnl": "bnl:Bnl",
        "sweep": "sweep:Sweep",
    },
}
#: Kind -> name of a window index -> "module:class" in the folder of the kind.
WINDOWS = {
    "topk": {
        "il_quadtree": "il_quadtree:ILQuadtree",
        "ir_tree": "ir_tree:IRTrees",
        "inverted_ring": "inverted_ring:InvertedRing",
    },
    "skyline": {
        "ir_tree": "ir_tree:IrTree",
        "il_quadtree": "il_quadtree:IlQuadtree",
        "i3": "i3:I3",
        "inverted_kd": "inverted_kd:InvertedKd",
    },
}


class Imported(Mapping[str, Any]):
    """Classes by name: known ones first, then others, which a lookup imports.

    Parameters
    ----------
    known : mapping of name to class
    folder : str                         package of the others
    places : mapping of name to str      "module:attribute" in the package
    """

    def __init__(self, known: Mapping[str, Any], folder: str, places: Mapping[str, str]):
        self._known, self._folder, self._places = dict(known), folder, dict(places)

    def __getitem__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        module, _, attribute = self._places[name].partition(":")
        return getattr(import_module(f"{self._folder}.{module}"), attribute)

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._places

    def __iter__(self) -> Iterator[str]:
        yield from self._known
        yield from self._places

    def __len__(self) -> int:
        return len(self._known) + len(self._places)


def with_baselines(kinds: Kinds) -> Kinds:
    """The same kinds, each with its baselines behind its own engines and window indexes."""
    return type(kinds)(map(_with_baselines, kinds))


def _with_baselines(kind: Kind) -> Kind:
    if kind.name not in ENGINES:  # a kind added by another program
        return kind
    folder = f"baselines.{kind.name}"
    windows = WINDOWS.get(kind.name)
    return replace(
        kind,
        engines=Imported(kind.engines, folder, ENGINES[kind.name]),
        windows=Imported(kind.windows, folder, windows) if windows else kind.windows,
    )


#: The kinds of this product with all their engines and window indexes.
WITH_BASELINES = with_baselines(KINDS)
