"""Skype: top-k subscriptions over a sliding window, in groups of posting lists; DSkype: its distribution.

Xiang Wang, Wenjie Zhang, Ying Zhang, Xuemin Lin, Zengfeng Huang, "Top-k Spatial-keyword Publish/Subscribe Over Sliding
Window", VLDB Journal 2017, arXiv 1611.03204; first "Skype: Top-k Spatial-keyword Publish/Subscribe Over Sliding
Window", PVLDB 2016.

| in the paper | here |
| --- | --- |
| definitions 1 to 3, equations of the score | kind `topk`: `matching/topk/scores.py`, `matching/window.py` |
| figure 3, the framework | `matching/topk/operator.py` |
| definitions 4 and 5, lemmas 1 to 3, theorem 5.1, prefixes | `skype_paper_scan.py`; rule `prefix` |
| definitions 6 to 8, spatial bounds of a cell | `skype_paper_scan.py`; rule `inner_outer` |
| theorem 5.2, unseen keywords | `skype_paper_scan.py`; rule `unseen` |
| definition 9, lemmas 4 and 5, theorem 5.3, alpha-partition | `skype_paper_tree.py`; rule `groups` |
| theorem 5.4, early termination | `skype_paper_tree.py`, `skype_paper_scan.py`; rule `early_stop` |
| figure 5, lemma 6, cells | `skype_paper_tree.py`; rule `cells` |
| inverted lists of new subscriptions | `postings.py`, shared with `baselines/topk/` |
| algorithm 1, dissemination | `skype_paper_scan.py` |
| the same rules with ours, the default engine | `matching/topk/engines/skype*.py`, switches in `skype.py` |
| definitions 10 and 11, theorem 6.1, k-skyband buffers | `matching/topk/results.py`, `results_kernels.py` |
| algorithm 2, re-evaluation | `matching/refill.py`, `matching/topk/operator.py` |
| section 6.2, the cost model of thresholds | `matching/topk/thresholds_cost.py` |
| k_max and SMA, its opponents | `matching/topk/thresholds.py` |
| CIQ, its opponent | `papers/ciq/topk.py` |
| the message index, left open | window indexes: `matching/topk/windows/`, `baselines/topk/` |
| section 7, DSkype: hashing, location, keyword, prefix | `distribution/hashing.py`, `location.py`, `keyword.py` |
| the experiments, named by what they vary | `benchmarks/figures/topk.py`, `benchmarks/routers.py` |

Engine `skype_paper` is the printed index, `skype_paper_trees` its rules over a tree for each keyword. The paper leaves
out sizes of leaves and groups, which index of messages a re-evaluation searches, and a threshold that falls, which its
order of groups takes for excluded. Its algorithm 1 adds up products as it goes and loses results (spec R3). Read
`skype_paper.py`, `skype_paper_tree.py`, then `skype_paper_scan.py`.
"""
