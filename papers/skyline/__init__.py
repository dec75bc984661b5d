"""Distributed skylines: the memo-and-filter R-tree and the region step of a publish/subscribe system for skylines.

Ze Deng, Yue Wang, Tao Liu, Schahram Dustdar, Rajiv Ranjan, Albert Zomaya, Yizhi Liu, Lizhe Wang, "Spatial-Keyword
Skyline Publish/Subscribe Query Processing Over Distributed Sliding Window Streaming Data", 2022.

| in the paper | here |
| --- | --- |
| definitions 1 to 8, the problem | kind `skyline`: `matching/skyline/`, its oracle in `matching/naive.py` |
| figure 1, the architecture | `topology/wiring.py`, `bolts/`, `spouts/` |
| section 3.2.2, figure 2, MF-R^t-tree | `rtree.py`, `mf_nodes.py`, `mf_rtree.py`; queries: `mf_search.py` |
| its update memo | `memo.py` |
| its cuckoo filters, table 4 | `filters.py` |
| what all trees share: messages, batches, ends | `messages.py`, `tree.py` |
| figure 3, steps 1 to 3, inner and outer region | `regions.py`, with a disc in place of the inner rectangle |
| definition 9, algorithm 1, eager* | `matching/skyline/engines/eager.py`, with refills (R11); ours: `eager_star.py` |
| eager, of Tao and Papadias (2006) | the same, where no message ends early |
| BNL | `baselines/skyline/bnl.py` |
| IR-tree, inverted linear quadtree, I3, inverted KD-tree | `baselines/skyline/` |
| table 1, four ways of distribution | `distribution/hashing.py`, `location.py`, `keyword.py` |
| definition 10, a top-k subscription | kind `topk` |
| algorithm 2, figure 4, signatures at the distribution bolts | `distribution/signatures/signature.py` |
| section 4.2, figure 5, spatial signatures | `distribution/signatures/spatial.py`, `cuckoo.py` |
| section 4.3, textual signatures | `distribution/signatures/minwise.py`; exact ones in `text.py` |
| figures 6 to 11 | `benchmarks/figures/skyline.py` |
| figures 12 to 14 | `benchmarks/routers.py`; the paper's parameters: `printed_spec` in `benchmarks/topology_cost.py` |

Index `mf_rtree_paper` is the printed tree, `mf_rtree` ours; the default window index is ours as well:
`matching/skyline/windows/grid.py`. The paper leaves out what an operation of its figures 6 and 7 is, when a lone
message that has ended is cleaned away (as printed never), and what happens where a message ends early that others had
been dropped for (spec R11). Two of its rules lose results and are mended: the inner rectangle (spec R10) and the rule
for matches of textual signatures (spec R12). Read `tree.py`, `rtree.py`, then `mf_rtree.py`.
"""
