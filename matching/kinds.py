"""The table of kinds: all that the rest of the project knows of a kind is its row here.

Of engines and window indexes a row has the default, first, and those of the papers. A program that wires a topology may
hand in a longer table: with more kinds (`Kinds.plus`), or with opponents in the rows (`baselines.kinds`). Used by every
package. Read on in `matching.operator` for what a row says, or in the package of a kind.
"""

from matching.boolean.engines.cell_term import CellTerm
from matching.boolean.engines.lfilter import LFilter
from matching.boolean.engines.lfilter_paper import LFilterPaper
from matching.boolean.engines.mbr_trie import MbrTrie
from matching.boolean.engines.pt_quadtree import PtQuadtree
from matching.boolean.operator import BooleanOperator
from matching.decay.engines.ciq import Ciq, CiqH
from matching.decay.engines.ciq_paper import CiqPaper
from matching.decay.engines.keyword_blocks import KeywordBlocks
from matching.decay.operator import DecayOperator
from matching.kind_table import Kind, Kinds, Recipe
from matching.knn.engines.influence_grid import InfluenceGrid, SingleGrid
from matching.knn.operator import KnnOperator
from matching.model import BOOLEAN, DECAY, KNN, SKYLINE, TOPK
from matching.skyline.engines.eager import Eager
from matching.skyline.engines.eager_star import EagerStar
from matching.skyline.operator import SkylineOperator
from matching.skyline.windows.inverted import InvertedWindow
from matching.skyline.windows.mf_rtree import MfRtree, MfRtreePaper
from matching.topk.engines.skype import Skype
from matching.topk.operator import TopkOperator
from matching.topk.windows.segments import Segments


def _by_name(*classes: type) -> dict[str, type]:
    return {each.name: each for each in classes}


KINDS = Kinds(
    [
        Kind(
            BOOLEAN,
            "boolean",
            "region",
            BooleanOperator,
            message_place="box",
            wraps=True,
            all_keywords=True,
            fields=("match",),
            shapes=("circle", "polygon"),
            engines=_by_name(CellTerm, LFilter, LFilterPaper, MbrTrie, PtQuadtree),
            recipe=Recipe("LFilter", frequent=True, shown="match", load=10_000, degrees=10.0),
        ),
        Kind(
            TOPK,
            "topk",
            "point",
            TopkOperator,
            fields=("k", "alpha"),
            shapes=("polygon", "radius_m"),
            engines=_by_name(Skype),
            windows=_by_name(Segments),
            recipe=Recipe("Skype", load=10_000),
        ),
        Kind(
            DECAY,
            "decay",
            "point",
            DecayOperator,
            fields=("k", "alpha"),
            shapes=("polygon", "radius_m"),
            fades=True,
            columns=("counts", "event_time_us"),
            engines=_by_name(KeywordBlocks, Ciq, CiqH, CiqPaper),
            recipe=Recipe("CIQ", k=(10, 30), share=20),
        ),
        Kind(
            KNN,
            "knn",
            "point",
            KnnOperator,
            fields=("k",),
            shapes=("polygon", "radius_m"),
            nearest=True,
            engines=_by_name(InfluenceGrid, SingleGrid),
            recipe=Recipe("DkM-SKS", k=(1, 10), share=4),
        ),
        Kind(
            SKYLINE,
            "skyline",
            "region",
            SkylineOperator,
            needs_extent=True,  # closeness is measured in half diagonals of the region
            needs_ended=True,
            engines=_by_name(EagerStar, Eager),
            windows=_by_name(InvertedWindow, MfRtree, MfRtreePaper),
            # theirs are the widest rectangles, and any keyword will do
            recipe=Recipe("distributed skyline", side=0.1, square=True, share=10),
        ),
    ]
)
