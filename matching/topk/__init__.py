"""Kind `topk`: the k best messages of the window, by place and keywords.

A subscription has a point, keywords, k and alpha; a score is alpha times spatial proximity plus 1 - alpha times the
cosine of tf-idf weights (`scores.py`). Messages enter and leave the result as they come and expire.

Engines (`engines/`), which find the pairs that reach a threshold, and window indexes (`windows/`), which are searched
by refills:

- `skype`, the default, of Wang et al. (`papers/skype`), section 5: quadtree cells and groups over inverted lists. With
  rules of our own it takes about a fifth of the time of the paper's (`engines.skype.PAPER`; `docs/performance.md`).
  Section 6, the result buffer, is `results.py`, with the cost model of the paper in `thresholds_cost.py`.
- `segments`, the default window index, our own: generations of inverted lists, best block first. The paper leaves this
  search open.

Read `operator.py` first (results, thresholds, refills), then `engine.py`, `engines/skype.py` and `windows/segments.py`.
"""
