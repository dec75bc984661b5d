"""What an answer leaves out, where many candidates live equally long and are equally good."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.naive import dominates
from matching.skyline.answers import Candidates, merge_answers, useful

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


def test_parts_of_rows_long_and_short_merge_to_what_is_useful_of_the_whole():
    rng = np.random.default_rng(6)
    lengths = np.array([0, 1, 7, 30, 300, 0, 60, 2])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    count, row = offsets[-1], np.repeat(np.arange(lengths.shape[0]), lengths)
    seq = np.arange(count)
    # all of a long row are useful, and most of the others
    scores = np.where(row == 4, 0.5, rng.random((2, count)).round(1))
    whole = Candidates(offsets, seq, rng.permutation(count), *scores)
    owner = np.where(row == 3, 1, rng.integers(0, 3, count))
    parts = []
    for task in range(3):
        mine = np.flatnonzero(owner == task)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(row[mine], minlength=lengths.shape[0]))])
        parts.append(useful(Candidates(ends, *(column[mine] for column in whole[1:]))))
    wanted = useful(whole)
    assert 300 < wanted.seq.shape[0] < count
    for got, column in zip(merge_answers(parts), wanted, strict=True):
        assert got.tolist() == column.tolist()
