"""The table of kinds: everything that the rest of the project knows of a kind stands in its row here.

Whoever wires a topology may hand in a longer table (`Kinds.plus`); nothing else has to be told of a new kind. Read on
in `matching.kind` for what a row says, or in the room of a kind.
"""

from matching.boolean.engines.cell_term import CellTerm
from matching.boolean.engines.hashed_cells import HashedCells
from matching.boolean.engines.inverted_list import InvertedList
from matching.boolean.engines.lfilter import LFilter
from matching.boolean.engines.mbr_trie import MbrTrie
from matching.boolean.engines.pt_quadtree import PtQuadtree
from matching.boolean.engines.rt_tree import InvertedRTree, RtTree
from matching.boolean.room import BooleanRoom
from matching.decay.engines.block_inverted_file import BlockInvertedFile as FadingBlockInvertedFile
from matching.decay.engines.ciq import Ciq as FadingCiq
from matching.decay.engines.ciq import CiqH as FadingCiqH
from matching.decay.engines.inverted_file import InvertedFile as FadingInvertedFile
from matching.decay.engines.keyword_blocks import KeywordBlocks as FadingBlocks
from matching.decay.room import DecayRoom
from matching.kind_table import Kind, Kinds, Recipe
from matching.knn.engines.influence_grid import InfluenceGrid, SingleGrid
from matching.knn.engines.inverted_file import InvertedFile as NearestInvertedFile
from matching.knn.room import KnnRoom
from matching.model import BOOLEAN, DECAY, KNN, SKYLINE, TOPK
from matching.skyline.engines.bnl import Bnl
from matching.skyline.engines.eager import Eager
from matching.skyline.engines.eager_star import EagerStar
from matching.skyline.engines.lazy import Lazy
from matching.skyline.engines.sweep import Sweep
from matching.skyline.room import SkylineRoom
from matching.skyline.windows.i3 import I3
from matching.skyline.windows.il_quadtree import IlQuadtree
from matching.skyline.windows.inverted import InvertedWindow
from matching.skyline.windows.inverted_kd import InvertedKd
from matching.skyline.windows.ir_tree import IrTree
from matching.skyline.windows.mf_rtree import MfRtree
from matching.topk.engines.block_inverted_file import BlockInvertedFile
from matching.topk.engines.ciq import Ciq
from matching.topk.engines.inverted_file import InvertedFile
from matching.topk.engines.l2_scan import L2Scan
from matching.topk.engines.skype import Skype
from matching.topk.room import TopkRoom
from matching.topk.windows.il_quadtree import ILQuadtree
from matching.topk.windows.inverted_ring import InvertedRing
from matching.topk.windows.ir_tree import IRTrees
from matching.topk.windows.segments import Segments


def _by_name(*classes: type) -> dict[str, type]:
    return {each.name: each for each in classes}


KINDS = Kinds(
    [
        Kind(
            BOOLEAN,
            "boolean",
            "region",
            BooleanRoom,
            stands="box",
            wraps=True,
            all_keywords=True,
            fields=("match",),
            standing=False,
            windowed=False,
            engines=_by_name(CellTerm, HashedCells, InvertedList, InvertedRTree, LFilter, MbrTrie, PtQuadtree, RtTree),
            recipe=Recipe("LFilter", frequent=True, shown="match", load=10_000, degrees=10.0),
        ),
        Kind(
            TOPK,
            "topk",
            "point",
            TopkRoom,
            fields=("k", "alpha"),
            thresholds=True,
            replicas=True,
            engines=_by_name(Skype, L2Scan, InvertedFile, BlockInvertedFile, Ciq),
            windows=_by_name(Segments, ILQuadtree, IRTrees, InvertedRing),
            recipe=Recipe("Skype", load=10_000),
        ),
        Kind(
            DECAY,
            "decay",
            "point",
            DecayRoom,
            fields=("k", "alpha"),
            windowed=False,
            lasting=True,
            fades=True,
            columns=("counts", "event_time_us"),
            engines=_by_name(FadingBlocks, FadingCiq, FadingCiqH, FadingBlockInvertedFile, FadingInvertedFile),
            recipe=Recipe("CIQ", k=(10, 30), share=20),
        ),
        Kind(
            KNN,
            "knn",
            "point",
            KnnRoom,
            fields=("k",),
            windowed=False,
            lasting=True,
            nearest=True,
            engines=_by_name(InfluenceGrid, SingleGrid, NearestInvertedFile),
            recipe=Recipe("DkM-SKS", k=(1, 10), share=4),
        ),
        Kind(
            SKYLINE,
            "skyline",
            "region",
            SkylineRoom,
            needs_extent=True,  # closeness is measured in half diagonals of the region
            needs_ended=True,
            kept_by_engine=True,
            engines=_by_name(EagerStar, Eager, Lazy, Bnl, Sweep),
            windows=_by_name(InvertedWindow, MfRtree, IrTree, IlQuadtree, I3, InvertedKd),
            # theirs are the widest rectangles, and any keyword will do
            recipe=Recipe("distributed skyline", side=0.1, square=True, share=10),
        ),
    ]
)
