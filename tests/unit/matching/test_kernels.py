"""Rules for every compiled kernel, checked in the sources: how it is compiled decides whether its answers are exact."""

import ast
from pathlib import Path

import numba

from baselines.topk import l2_scan
from compiling.kernel_cache import PACKAGES
from matching.kinds import KINDS
from topology import warmup as warmup_module

ROOT = Path(warmup_module.__file__).parents[1]
SOURCES = sorted(path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py"))


def kernels() -> list[tuple[str, str, dict[str, object]]]:
    """(file, function, options) of every function that is compiled, by `njit` or by `njit_no_refcount`."""
    found = []
    borrowed = options_of(borrowing_call())
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            for decorator in node.decorator_list:
                if ast.unparse(decorator) == "njit_no_refcount":
                    found.append((path.relative_to(ROOT).as_posix(), node.name, borrowed))
                elif "njit" in ast.unparse(decorator):
                    found.append((path.relative_to(ROOT).as_posix(), node.name, options_of(decorator)))
    return found


def options_of(decorator: ast.expr) -> dict[str, object]:
    """What a decorator is given by name."""
    if not isinstance(decorator, ast.Call):
        return {}
    return {word.arg: ast.literal_eval(word.value) for word in decorator.keywords if word.arg}


def borrowing_call() -> ast.expr:
    """What `njit_no_refcount` is, in the source of its module."""
    (value,) = (
        node.value
        for node in ast.parse((ROOT / "compiling" / "njit.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "njit_no_refcount"
    )
    return value


def test_kernels_are_cached_let_go_of_the_interpreter_and_keep_exact_arithmetic():
    found = kernels()
    assert len(found) > 600, "the search finds no kernels, so the rules check nothing"
    assert sum("_nrt" in options for _, _, options in found) > 100, "nor does it find those that borrow"
    for file, name, options in found:
        assert options.get("cache") is True and options.get("nogil") is True, f"{file}: {name} is @njit({options})"
        assert not set(options) & {"fastmath", "parallel", "error_model"}, f"{file}: {name} is @njit({options})"


def test_sources_use_no_vectorize_and_no_jitclass():
    for path in SOURCES:
        text = path.read_text()
        for word in ("vectorize(", "jitclass", "prange(", "typed.List", "typed.Dict"):
            assert word not in text, f"{path}: {word}"


def test_kernels_are_compiled_unless_asked_otherwise():
    if not numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        warmup_module.warm_engine(KINDS.named("topk"), "l2_scan")
        # one signature, or two where read-only arrays come in as well; a callee may come out of its caller's cache
        assert 1 <= len(l2_scan._scan.signatures) <= 2  # type: ignore[attr-defined]
