"""Kind `decay`: the k best messages since registration, of scores that fade exponentially with time.

A subscription has a point, keywords, k and alpha; a score is alpha times spatial proximity plus 1 - alpha times
smoothed probabilities of the keywords, times a factor that halves with a half-life (`matching.half_life`). Fading does
not change the order of two messages, so a result only changes when a better message comes; there is no window.

Engines (`engines/`):

- `keyword_blocks`, the default, our own: for each keyword blocks of subscriptions alike in place and reach. It takes
  less time than the paper's index, and half its memory (`docs/performance.md`).
- `ciq`, of Chen, Cong, Cao and Tan (`papers/ciq`): cells with minimum text scores, chosen by expected cost; `ciq_h`
  chooses them by the paper's heuristic. `ciq_paper`, `ciq_h_paper`, `bif_paper` and `ifl_paper` are the paper's four
  systems as printed. All measure distances in the plane alone.

Read `operator.py` first and `matching.cumulative`, which it shares with `knn`, then `scores.py`, then
`engines/keyword_blocks.py`.
"""
