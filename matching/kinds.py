"""The table of kinds: all that the rest of the project knows of a kind is its row here.

Operators, engines and window indexes stand by the place where they are, the default first: each is imported when it is
used, so that a command that only names kinds loads no kernels. A program that wires a topology may hand in a table with
more kinds (`Kinds.plus`).
"""

from matching.kind_table import ByName, Kind, Kinds, Recipe
from matching.model import BOOLEAN, DECAY, KNN, SKYLINE, TOPK

KINDS = Kinds(
    [
        Kind(
            BOOLEAN,
            "boolean",
            "region",
            "matching.boolean.operator:BooleanOperator",
            message_place="box",
            wraps=True,
            all_keywords=True,
            fields=("match",),
            shapes=("circle", "polygon"),
            engines=ByName(
                {"cell_term": "matching.boolean.engines.cell_term:CellTerm"},
                lfilter="papers.lfilter.lfilter:LFilter",
                lfilter_paper="papers.lfilter.lfilter_paper:LFilterPaper",
                mbr_trie="papers.lfilter.mbr_trie:MbrTrie",
                pt_quadtree="papers.lfilter.pt_quadtree:PtQuadtree",
                inverted_list="baselines.boolean.inverted_list:InvertedList",
                ir_tree="baselines.boolean.rt_tree:InvertedRTree",
                rt_tree="baselines.boolean.rt_tree:RtTree",
                rtpp_tree="baselines.boolean.rtpp_tree:RtppTree",
            ),
            beside={"delivery": 0.15},
            recipe=Recipe("LFilter", frequent=True, shown="match", load=10_000, degrees=10.0),
        ),
        Kind(
            TOPK,
            "topk",
            "point",
            "matching.topk.operator:TopkOperator",
            fields=("k", "alpha"),
            newer_first=True,
            shapes=("polygon", "radius_m"),
            engines=ByName(
                {"skype": "matching.topk.engines.skype:Skype"},
                skype_paper="papers.skype.skype_paper:SkypePaper",
                skype_paper_trees="papers.skype.skype_paper:SkypePaperTrees",
                l2_scan="baselines.topk.l2_scan:L2Scan",
                inverted_file="baselines.topk.inverted_file:TopkInvertedFile",
                ciq="papers.ciq.topk:CiqTopk",
            ),
            windows=ByName({"segments": "matching.topk.windows.segments:Segments"}),
            beside={"tuples": 0.1, "delivery": 0.2},
            recipe=Recipe("Skype", load=10_000),
        ),
        Kind(
            DECAY,
            "decay",
            "point",
            "matching.decay.operator:DecayOperator",
            fields=("k", "alpha"),
            shapes=("polygon", "radius_m"),
            fades=True,
            columns=("counts", "event_time_us"),
            engines=ByName(
                {"keyword_blocks": "matching.decay.engines.keyword_blocks:KeywordBlocks"},
                ciq="papers.ciq.ciq:Ciq",
                ciq_h="papers.ciq.ciq:CiqH",
                ciq_paper="papers.ciq.ciq_paper:CiqPaper",
                ciq_h_paper="papers.ciq.ciq_paper:CiqHPaper",
                bif_paper="papers.ciq.ciq_paper:BifPaper",
                ifl_paper="papers.ciq.ciq_paper:IflPaper",
                block_inverted_file="papers.ciq.block_inverted_file:BlockInvertedFile",
                inverted_file="baselines.decay.inverted_file:DecayInvertedFile",
            ),
            objects={
                "operator": "matching.decay.operator:DecayOfObjects",
                "windows": ByName({"runs": "matching.decay.operator:DecayWindow"}),
            },
            recipe=Recipe("CIQ", k=(10, 30), share=20),
        ),
        Kind(
            KNN,
            "knn",
            "point",
            "matching.knn.operator:KnnOperator",
            fields=("k",),
            shapes=("polygon", "radius_m"),
            nearest=True,
            engines=ByName(
                {"influence_grid": "matching.knn.engines.influence_grid:InfluenceGrid"},
                single_grid="papers.dkm_sks.single_grid:SingleGrid",
                inverted_file="baselines.knn.inverted_file:KnnInvertedFile",
            ),
            objects={
                "operator": "matching.knn.operator:KnnOfObjects",
                "windows": ByName({"runs": "matching.knn.operator:KnnWindow"}),
            },
            recipe=Recipe("DkM-SKS", k=(1, 10), share=4),
        ),
        Kind(
            SKYLINE,
            "skyline",
            "region",
            "matching.skyline.operator:SkylineOperator",
            wordless=False,  # its text score is a share of the keywords
            needs_extent=True,  # closeness is measured in half diagonals of the region
            needs_ended=True,
            engines=ByName(
                {
                    "eager_star": "matching.skyline.engines.eager_star:EagerStar",
                    "eager": "matching.skyline.engines.eager:Eager",
                },
                lazy="baselines.skyline.lazy:Lazy",
                skyline_only="baselines.skyline.skyline_only:SkylineOnly",
                bnl="baselines.skyline.bnl:Bnl",
                sweep="baselines.skyline.sweep:Sweep",
            ),
            windows=ByName(
                {"grid": "matching.skyline.windows.grid:GridWindow"},
                mf_rtree="papers.skyline.mf_rtree:MfRtree",
                mf_rtree_paper="papers.skyline.mf_rtree:MfRtreePaper",
                ir_tree="baselines.skyline.ir_tree:IrTree",
                il_quadtree="baselines.skyline.il_quadtree:IlQuadtree",
                i3="baselines.skyline.i3:I3",
                inverted_kd="baselines.skyline.inverted_kd:InvertedKd",
            ),
            beside={"tuples": 1.0, "aggregation": 0.2, "delivery": 0.02},
            # theirs are the widest rectangles, and any keyword will do
            recipe=Recipe("distributed skyline", side=0.1, square=True, share=10),
        ),
    ]
)
