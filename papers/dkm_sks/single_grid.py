"""Engine `single_grid`: the index of a DkM-SKS worker, one grid with an inverted file in each cell.

It is `matching.knn.engines.influence_grid`, with the same kernels, one grid in place of two, and cells for rare terms
as well.
"""

from matching.knn.engines.influence_grid import InfluenceGrid


class SingleGrid(InfluenceGrid):
    """One grid, as in the paper: large balls lie in many cells, small ones share a cell with too many."""

    name = "single_grid"
    sides = (1024,)
    widest = 4.0
    rare = 0
