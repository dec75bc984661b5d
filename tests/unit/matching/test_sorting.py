"""Sorting in kernels: as NumPy sorts, stable; and no kernel calls Numba's own."""

import ast
from pathlib import Path

import numpy as np
import pytest

from compiling.kernel_cache import PACKAGES
from matching.storage.sorting import ascending, index_pairs

ROOT = Path(__file__).parents[3]
_THEIRS = {"np.sort", "np.argsort", "np.unique", "np.median", "np.percentile", "np.quantile", "sorted"}


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64, np.float32])
@pytest.mark.parametrize("size", [0, 1, 2, 15, 16, 17, 33, 100, 1_000, 4_097])
def test_places_are_those_of_a_stable_sort(dtype, size):
    rng = np.random.default_rng(size)
    for most in (2, 50, 10**9):
        values = rng.integers(-most, most, size).astype(dtype)
        np.testing.assert_array_equal(ascending(values), np.argsort(values, kind="stable"))


def sorts_of(source: str) -> list[str]:
    """Calls of Numba's sorting in the kernels of a module."""
    kernels = [
        each
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.FunctionDef) and any("njit" in ast.unparse(one) for one in each.decorator_list)
    ]
    calls = [ast.unparse(call.func) for each in kernels for call in ast.walk(each) if isinstance(call, ast.Call)]
    return [name for name in calls if name in _THEIRS or name.endswith((".sort", ".argsort"))]


def test_no_kernel_sorts_by_numba():
    assert sorts_of("@njit\ndef f(x):\n    return np.sort(x), x.argsort()") == ["np.sort", "x.argsort"]
    files = [path for folder in (*PACKAGES, "bolts", "spouts") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    found = {str(path.relative_to(ROOT)): names for path in files if (names := sorts_of(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(("count", "rows", "terms"), [(0, 0, 1), (1, 1, 1), (300, 7, 5), (2_000, 300, 2**31 - 1)])
def test_pairs_are_indexed_by_term_and_by_row_as_distinct_ones_sorted(count, rows, terms):
    rng = np.random.default_rng(count)
    row, term = rng.integers(0, max(rows, 1), count), rng.integers(0, terms, count).astype(np.int32)
    row, term = np.append(row, row[: count // 3]), np.append(term, term[: count // 3])
    by_term = sorted(set(zip(term.tolist(), row.tolist(), strict=True)))
    by_row = sorted({(one, other) for other, one in by_term})
    found_terms, of_term, offsets, of_row = index_pairs(row, term, rows)
    assert list(zip(found_terms.tolist(), of_term.tolist(), strict=True)) == by_term
    assert list(zip(np.repeat(np.arange(rows), np.diff(offsets)).tolist(), of_row.tolist(), strict=True)) == by_row
