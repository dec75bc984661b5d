"""Few rows of a matrix stand for it: every value of every axis, and neighbours meet different values."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.property.test_ciq import ENGINES, RECIPES
from tests.support.covering import sampled

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("sizes", [(9, 7), (9, 2), (3, 3), (5, 9, 2), (4, 5, 6), (4,), (1, 6), (2, 2, 2)], ids=str)
def test_sampled_rows_have_every_value_of_every_axis(sizes):
    rows = list(itertools.product(*map(range, sizes)))
    taken = [rows[number] for number in sampled(rows)]
    for axis, size in enumerate(sizes):
        assert {row[axis] for row in taken} == set(range(size))
    if len(sizes) == 1:
        assert len(taken) == len(rows), "of engines alone none can stand for another"
    elif len(sizes) == 2:
        assert len(taken) == max(sizes)
    else:
        assert len(taken) <= len(rows) / max(sizes) + max(sizes)


def test_sampled_rows_of_none_are_none_and_a_matrix_with_gaps_is_covered():
    assert sampled([]) == set()
    rows = [(1, 0), (1, 3), (4, 3), (4, 9)]
    taken = [rows[number] for number in sampled(rows)]
    assert {row[0] for row in taken} == {1, 4} and {row[1] for row in taken} == {0, 3, 9}


def test_session_of_ci_has_every_value_of_a_matrix_of_opponents_once():
    file, ids = (
        "tests/property/test_ciq.py",
        re.compile(r"::test_engine_where_its_rules_bite_equals_oracle\[(.+)-few\]"),
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "-m", "not long", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    rows = [row.rsplit("-", 1) for row in ids.findall(done.stdout)]
    assert {engine for engine, _ in rows} == {engine.name for engine in ENGINES}
    assert {recipe for _, recipe in rows} == set(RECIPES)
    assert len(rows) == max(len(ENGINES), len(RECIPES))
