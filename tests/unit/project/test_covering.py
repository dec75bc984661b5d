"""A quarter of a matrix stands for it: every value of every axis, and neighbours meet different values."""

import itertools
from types import SimpleNamespace

import pytest

from tests.conftest import _matrices
from tests.support.covering import sampled


@pytest.mark.parametrize("sizes", [(9, 7), (9, 2), (3, 3), (5, 9, 2), (4, 5, 6), (4,), (1, 6), (2, 2, 2)], ids=str)
def test_sampled_rows_have_every_value_of_every_axis(sizes):
    rows = list(itertools.product(*map(range, sizes)))
    taken = [rows[number] for number in sampled(rows)]
    for axis, size in enumerate(sizes):
        assert {row[axis] for row in taken} == set(range(size))
    if len(sizes) == 1:
        assert len(taken) == len(rows), "of engines alone none can stand for another"
    elif min(sizes) > 3:
        assert len(taken) <= len(rows) / 4 + max(sizes)
        assert {row[1] for row in taken if row[0] < 4} == set(range(sizes[1])), "four engines meet all recipes"


def test_sampled_rows_of_none_are_none_and_a_matrix_with_gaps_is_covered():
    assert sampled([]) == set()
    rows = [(1, 0), (1, 3), (4, 3), (4, 9)]
    taken = [rows[number] for number in sampled(rows)]
    assert {row[0] for row in taken} == {1, 4} and {row[1] for row in taken} == {0, 3, 9}


def item_of(name: str, marks: set[str], **indices: int) -> SimpleNamespace:
    spec = {"callspec": SimpleNamespace(indices=indices)} if indices else {}
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda mark: mark in marks, **spec)


def test_matrices_are_the_wide_rows_of_each_test_with_arguments_given_together_as_one_axis():
    wide = [item_of(f"a::b[{n}-{m}]", {"wide"}, kind=n, engine=n, seed=m) for n in (1, 2) for m in (0, 1, 2)]
    others = [
        item_of("a::b[0-0]", set(), kind=0, engine=0, seed=0),
        item_of("a::b[3-0]", {"wide", "long"}, kind=3, engine=3, seed=0),
        item_of("a::c", {"wide"}),
    ]
    alone = item_of("a::d[x]", {"wide"}, x=4)
    found = list(_matrices([others[0], *wide, *others[1:], alone]))  # type: ignore[list-item]
    assert [[item for item, _ in rows] for rows in found] == [wide, [alone]]
    assert [[place for _, place in rows] for rows in found] == [[(n, m) for n in (1, 2) for m in (0, 1, 2)], [(4,)]]
