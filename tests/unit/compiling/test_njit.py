"""Kernels that borrow their arrays: they hand none out, and whatever was allocated beside them is given back.

Those that kernels alone call are compiled once, and never for Python.
"""

import ast
import gc
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.errors import NumbaError

import matching
from compiling import njit
from compiling.kernel_cache import PACKAGES

ROOT = Path(matching.__file__).parents[1]
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
#: Runs every kind a little, twice, and tells how many blocks Numba has allocated the second time, and not freed.
COUNT = """
import gc
from numba.core.runtime import rtsys, _nrt_python
from topology.warmup import warmup

def counted():
    warmup()
    gc.collect()
    return rtsys.get_allocation_stats()

_nrt_python.memsys_enable_stats()
before, after = counted(), counted()
kept = (after.alloc - after.free) - (before.alloc - before.free)
kept_infos = (after.mi_alloc - after.mi_free) - (before.mi_alloc - before.mi_free)
print(after.alloc - before.alloc, kept, after.mi_alloc - before.mi_alloc, kept_infos)
"""


def borrowers(source: str) -> list[ast.FunctionDef]:
    """The functions of a module that are decorated so."""
    return [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Name) and each.id.endswith("no_refcount") for each in node.decorator_list)
    ]


def handed_out(function: ast.FunctionDef) -> set[str]:
    """Parameters that a function returns as they are, though it takes something out of them."""
    parameters = {argument.arg for argument in function.args.args}
    looked_into = {
        node.value.id
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.value, ast.Name)
    }
    returned: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            returned |= {part.id for part in parts if isinstance(part, ast.Name)}
    return returned & parameters & looked_into


def test_borrowing_kernels_hand_out_no_array_they_were_given():
    seen = 0
    for path in FILES:
        for function in borrowers(path.read_text()):
            seen += 1
            assert not handed_out(function), (
                f"{path.relative_to(ROOT)}: {function.name} returns an array it has borrowed"
            )
    assert seen > 100


def test_borrowing_kernel_that_hands_out_an_array_is_found_out():
    (function,) = borrowers(
        "@njit_no_refcount\ndef longer(column, count):\n    column[0] = 1\n    return count, column\n"
    )
    assert handed_out(function) == {"column"}


COMPILES = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the compiler is switched off")  # type: ignore[attr-defined]


@COMPILES
def test_kernel_is_compiled_once_for_constants_narrow_numbers_and_what_a_loop_begins_with():
    @njit.njit
    def more(count, number, sure):
        return count + number * 2**40 + sure

    @njit.njit
    def total(column):
        count = more(0, np.int8(-1), True)
        for number in column:
            count = more(count, number, False)
        return count

    assert total(np.array([3, -4], np.int32)) == (-1 + 3 - 4) * 2**40 + 1
    assert len(more.signatures) == 1


@COMPILES
def test_kernel_for_kernels_is_not_compiled_for_python_before_and_after_a_kernel_calls_it():
    @njit.njit_inner
    def doubled(number):
        return 2 * number

    assert doubled(10**30) == 2 * 10**30, "no number of Numba's"
    assert njit.njit(lambda number: doubled(number) + 1)(3) == 7
    assert doubled(10**30) == 2 * 10**30 and len(doubled.signatures) == 1


@COMPILES
def test_borrowing_kernel_cannot_allocate():
    @njit.njit_no_refcount
    def twice(column):
        return np.concatenate((column, column)).sum()

    with pytest.raises(NumbaError):
        twice(np.zeros(3))
    gc.collect()


@COMPILES
def test_whatever_kernels_allocate_is_freed():
    told = subprocess.run([sys.executable, "-c", COUNT], cwd=ROOT, capture_output=True, text=True, check=True)
    allocated, kept, infos, kept_infos = map(int, told.stdout.split())
    assert allocated > 1000 and infos > 1000
    assert kept == kept_infos == 0, "blocks leak, or are freed twice"
