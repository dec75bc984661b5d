"""LFilter: boolean subscriptions, by a trie or a quadtree, whichever costs less for the message.

Minghe Yu, Guoliang Li, Jianhua Feng, "A Cost-based Method for Location-Aware Publish/Subscribe Services", CIKM 2015,
doi 10.1145/2806416.2806427.

| in the paper | here |
| --- | --- |
| definition 1, the problem | kind `boolean`: `matching/boolean/`, its oracle in `matching/naive.py` |
| section 3.1, figure 2, MBRTrie | `lfilter_paper.py` as printed, `mbr_trie_build.py` ours |
| section 3.2, filter and verification | `matching/boolean/engine.py` |
| algorithm 1, figure 3; ProbeTrie, ProbeTokenSet, CostBasedProbe | `lfilter_paper.py`, `mbr_trie.py` |
| section 4.1, figure 4, PT-Quadtree | `lfilter_paper.py` as printed, `pt_quadtree_build.py` ours, and pivotal tokens |
| algorithm 2, figure 5 | `lfilter_paper.py`, `pt_quadtree.py` |
| section 5.2, list pruning | `_prune` of `lfilter_paper.py` and `lfilter.py` |
| section 5.3, equations 1 to 6 | `lfilter_paper.py` as printed, `lfilter_cost.py` in nanoseconds |
| algorithm 3, figure 6, LFilter | `lfilter_paper.py` as printed, `lfilter.py` ours |
| the opponents, R^t-tree, R^t++-tree and IR-tree | `baselines/boolean/rt_tree.py`, `baselines/boolean/rtpp_tree.py` |
| figure 7 | `benchmarks/figures/boolean.py`: `choice` |
| figures 8, 9, 11, table 1 | `benchmarks/figures/boolean.py`: `printed`; ours: `lengths`, `subscriptions` |
| figure 10 | `benchmarks/figures/boolean.py`: `opponents-usa` |

The default engine of the kind is ours: `matching/boolean/engines/cell_term.py`. The paper leaves out the values of
tau_num and tau_area, the layout of a trie that changes (`lfilter_parts.py` builds parts of growing size at once), other
relations of words than containment (its footnote 3), and costs that are no step, such as a cache miss. Read
`mbr_trie.py`, `pt_quadtree.py`, then `lfilter.py`.
"""
