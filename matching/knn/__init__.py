"""Kind `knn`: the k nearest messages since registration.

A subscription has a point, keywords, of which a message must have at least one, and k. A message that is nearer than
the k-th enters, and the k-th leaves; there is no window.

Engines (`engines/`):

- `influence_grid`, the default: two grids, each for the influence balls (a subscription's point, and the distance of
  its k-th) that fit its cells, and lists without cells for rare terms.
- `single_grid`, the index of a worker of DkM-SKS (`papers/dkm_sks`): one grid with inverted files. About as
  fast in the same kernel, and with more memory (`docs/performance.md`).

Read `matching.cumulative` first (operator and results), then `engines/influence_grid.py`.
"""
