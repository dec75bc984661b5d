"""DkM-SKS: the k nearest messages of many subscriptions, placed on workers by expected cost.

Shohei Tsuruoka, Daichi Amagata, Shunya Nishio, Takahiro Hara, "Distributed Spatial-Keyword kNN Monitoring for
Location-aware Pub/Sub", SIGSPATIAL 2020, arXiv 2101.12417.

| in the paper | here |
| --- | --- |
| definitions 1 and 2, the problem | kind `knn`: `matching/knn/`, `matching/cumulative/`, `matching/naive.py` |
| definition 3, assignment to workers | `distribution/placed.py`, `distribution/placement/placement.py` |
| section 3.1, figure 3, algorithm 1, KOP | `distribution/placement/kop.py`, `assign.py` |
| section 3.2, figure 4, SOP | `distribution/placement/sop.py` |
| section 4.1, figure 5, cost estimation | `distribution/placement/costs.py`, `demand.py` |
| section 4.2, algorithms 2 and 3, figure 6 | `distribution/placement/dkm_sks.py`, `subsets.py` |
| section 4.3, figure 6, the index of a worker | `single_grid.py`; in several grids: the default engine of the kind |
| section 4.4, new subscriptions | `distribution/placement/dkm_sks.py` |
| PS2Stream, its opponent | `distribution/placement/ps2stream.py` |
| the inverted file of KOP's workers | `baselines/knn/inverted_file.py` |
| figures 7 to 10, tables 2 and 3 | `benchmarks/figures/knn.py`, `benchmarks/placements.py` |

The default engine is ours: `matching/knn/engines/influence_grid.py`. The paper leaves out the number of cells of a
worker's grid, what a ball is before a subscription has k results (spec 5), and what moves when the load does
(`distribution/placement/evening.py`); its text and its numbers of gamma_1 and gamma_2 disagree
(`benchmarks/placements.py` measures both readings).
"""
