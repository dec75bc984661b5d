"""CIQ: top-k subscriptions whose scores fade, in the cells of a quadtree with a minimum text score in each.

Lisi Chen, Gao Cong, Xin Cao, Kian-Lee Tan, "Temporal Spatial-Keyword Top-k Publish/Subscribe", ICDE 2015.

| in the paper | here |
| --- | --- |
| definitions 1 and 2, equations of the score | kind `decay`: `matching/decay/scores.py`, `matching/half_life.py` |
| figure 1, architecture | `matching/decay/operator.py`, `matching/cumulative/` |
| definition 3, conditional influence region; definition 4, lemma 1 | `cell_bounds.py`, `ciq_bounds.py` |
| section IV-B, figures 2 to 5, quadtree and associations | `quadtree.py`, `celled_lists.py` |
| definition 5, figure 6, one base time for all | `matching/decay/reference.py` |
| lemma 2, definition 6, figure 7, blocks and buckets | `celled_lists.py` |
| lemma 3, algorithm 1, FindNext | `ciq_paper_walk.py` as printed, `cell_walk.py` with bounds on texts |
| definition 7, lemma 4, algorithm 2, cost of a cell | `cell_costs.py`, estimates from `ciq_history.py` |
| CIQ-H, cells by place | `cell_costs.py`; `ciq_h_paper` of `ciq_paper.py` as printed, `ciq_h` ours |
| the system CIQ | `ciq_paper.py` as printed, `ciq.py` with `ciq_scan.py` ours |
| BIF, section VII-A | `bif_paper` of `ciq_paper.py` as printed, `block_inverted_file.py` with the bounds of `ciq` |
| IFL, section VII-A | `ifl_paper` of `ciq_paper.py` as printed, `baselines/decay/inverted_file.py` ours |
| CIQ as the Skype paper's opponent, without fading | `topk.py`, `topk_scan.py`, `topk_history.py` |
| figures 9 to 18, printed forms | `benchmarks/evaluations.py` |
| figures 11 to 18, our engines | `benchmarks/figures/decay.py` |

The default engine of the kind is ours: `matching/decay/engines/keyword_blocks.py`. The paper leaves out what happens
before a subscription has k results, when it is associated anew as its threshold rises, how wide a bucket is, how a
block is found again after FindNext (which as printed never leaves a block that is not skipped), and why the maximum of
lemma 3 bounds a product, which it does not (spec 6). The index of objects that may fill the first results, optional in
the paper, is not built. Read `celled_lists.py`, `cell_bounds.py`, `cell_walk.py`, then `ciq.py`.
"""
