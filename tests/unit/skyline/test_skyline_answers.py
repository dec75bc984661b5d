"""What an answer leaves out, where many candidates live equally long and are equally good."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.naive import dominates
from matching.skyline.answers import Candidates, useful

FEW = st.integers(0, 3)
ROWS = st.lists(st.lists(st.tuples(FEW, FEW, FEW), max_size=12), max_size=4)


@settings(deadline=None)  # the first example compiles
@given(ROWS)
def test_useful_candidates_are_those_that_no_other_dominates_and_outlives(rows):
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    life, spatial, text = np.array([each for row in rows for each in row], np.int64).reshape(-1, 3).T
    whole = Candidates(offsets, np.arange(offsets[-1]), life.copy(), spatial.astype(float), text.astype(float))
    got = useful(whole)
    for row, found in enumerate(rows):
        wanted = [
            offsets[row] + i
            for i, (lives, *scores) in enumerate(found)
            if not any(other >= lives and dominates(above, scores) for other, *above in found)
        ]
        assert got.seq[got.offsets[row] : got.offsets[row + 1]].tolist() == wanted
