"""Engine `bnl`: the skyline from all candidates by block nested loops, whenever anything may have changed.

After Boerzsoenyi, Kossmann and Stocker, "The skyline operator"; what Deng et al. (2022) compare `eager_star` with. With
the region step (`papers.skyline.regions`) few of the candidates are compared.
"""

import numpy as np

from baselines.skyline.recomputing import Recomputing
from compiling.njit import njit
from matching.skyline.window import Candidates
from matching.space import Space
from papers.skyline.regions import INNER_FRACTION, split


class Bnl(Recomputing):
    """Block nested loops; O(n * skyline) for n candidates.

    Parameters
    ----------
    space : Space
    regions : bool    inner disc first; False compares all with all
    """

    name = "bnl"

    def __init__(self, space: Space, regions: bool = True):
        super().__init__(space)
        self.regions = regions

    def _best(self, candidates: Candidates) -> np.ndarray:
        count = candidates.seq.shape[0]
        best, mark = np.zeros(count, np.bool_), np.zeros(count, np.int8)
        _compare_rows(candidates, 1.0 - INNER_FRACTION if self.regions else -1.0, mark, best)
        return best


@njit(cache=True, nogil=True)
def _compare_rows(candidates, least_inner, mark, best):
    """Row by row; with `least_inner` below 0 everything belongs to the disc."""
    for row in range(candidates.offsets.shape[0] - 1):
        begin, end = candidates.offsets[row], candidates.offsets[row + 1]
        split(
            candidates.spatial[begin:end], candidates.text[begin:end], least_inner, mark[begin:end], best[begin:end]
        )  # fmt: skip
