"""Ranks and updates of results against sets and loops in plain Python, in both orders of rows."""

import numpy as np
import pytest

from matching.model import ENTER, LEAVE
from matching.result_rows import ResultRows, join_results, ranks, result_updates, take_results
from matching.window import Boundary

ROWS = 60


def rows_of(lists: list[list[tuple[int, float]]]) -> ResultRows:
    """Rows of (seq, score), as they come."""
    pairs = [pair for row in lists for pair in row]
    seq, score = zip(*pairs, strict=True) if pairs else ((), ())
    return ResultRows(np.cumsum([0, *map(len, lists)]), np.array(seq, np.int64), np.array(score, np.float64))


def random_lists(rng: np.random.Generator, by_seq: bool) -> list[list[tuple[int, float]]]:
    """Of a dozen messages with few scores, so that ties are frequent; some rows are empty. A message has one score."""
    scores = np.random.default_rng(7).integers(0, 4, 12) / 4
    chosen = [rng.choice(12, rng.integers(0, 9), replace=False).tolist() for _ in range(ROWS)]
    return [
        sorted(
            ((seq, float(scores[seq])) for seq in row), key=(lambda e: e[0]) if by_seq else (lambda e: (-e[1], -e[0]))
        )
        for row in chosen
    ]


@pytest.mark.parametrize("by_seq", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_updates_are_the_set_difference_of_each_row(seed, by_seq):
    rng, boundary, number = np.random.default_rng(seed), Boundary(3, 10, 20, 0), np.arange(ROWS) * 10 + seed
    before, after = random_lists(rng, by_seq), random_lists(rng, by_seq)
    updates = result_updates(boundary, number, rows_of(before), rows_of(after), by_seq)
    got = list(zip(*(column.tolist() for column in updates[:5]), strict=True))
    expected = []
    for n, old, new in zip(number.tolist(), before, after, strict=True):
        expected += [(20, n, seq, LEAVE, score) for seq, score in old if (seq, score) not in new]
        expected += [(20, n, seq, ENTER, score) for seq, score in new if (seq, score) not in old]
    assert got == expected and len(got) > 200


def test_rows_are_ranked_taken_and_joined():
    lists = random_lists(np.random.default_rng(1), by_seq=False)
    rows = rows_of(lists)
    assert ranks(rows.offsets).tolist() == [rank for row in lists for rank in range(1, len(row) + 1)]
    assert ranks(rows.offsets).dtype == np.int32
    chosen = np.array([5, 5, 0, 59])
    wanted = rows_of([lists[row] for row in chosen.tolist()])
    for got, expected in zip(take_results(rows, chosen), wanted, strict=True):
        assert got.tolist() == expected.tolist()
    empty = rows_of([[], []])
    for got, expected in zip(
        join_results([rows, empty, wanted]), rows_of([*lists, [], [], *(lists[row] for row in chosen)]), strict=True
    ):
        assert got.tolist() == expected.tolist()
    assert ranks(empty.offsets).shape == (0,)
