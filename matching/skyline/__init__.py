"""Kind `skyline`: all messages of the window that no other message dominates in place and words.

A subscription is a rectangle and keywords, of which a message must have at least one. One message dominates another
that is no nearer to the centre, has no more in common with the keywords, and less of one of the two. A message may be a
new version of an object, which ends the version before it.

Engines (`engines/`) keep the messages that may still enter a skyline; window indexes (`windows/`) answer the window
queries of refills:

- `eager_star`, the default (Deng et al., section 3.2.3, made exact), sends the fewest window queries. It extends
  `eager`, after Tao and Papadias (2006).
- `grid`, the default window index, our own: lists by cell in order of arrival, the cheapest to fill, and few window
  queries reach it. `mf_rtree_paper` is the paper's memo-and-filter R-tree, `mf_rtree` ours (`papers/skyline`).

Read `operator.py` first, then `engine.py`, `engines/eager.py`, `engines/eager_star.py`, and `window.py`.
`docs/performance.md` has the measurements.
"""
