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
    """(file, function, options) of every function that is compiled, by `njit` or a decorator made of it."""
    found = []
    made = made_decorators()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            for decorator in node.decorator_list:
                if "njit" in ast.unparse(decorator):
                    options = made.get(ast.unparse(decorator)) or options_of(decorator)
                    found.append((path.relative_to(ROOT).as_posix(), node.name, options))
    return found


def options_of(decorator: ast.expr) -> dict[str, object]:
    """What a decorator is given by name."""
    if not isinstance(decorator, ast.Call):
        return {}
    return {word.arg: ast.literal_eval(word.value) for word in decorator.keywords if word.arg}


def made_decorators() -> dict[str, dict[str, object]]:
    """The decorators that `compiling.njit` makes, with what each of them gives `njit`, by its source."""
    return {
        ast.unparse(node.targets[0]): options_of(node.value)
        for node in ast.parse((ROOT / "compiling" / "njit.py").read_text()).body
        if isinstance(node, ast.Assign)
    }


def test_kernels_are_cached_let_go_of_the_interpreter_and_keep_exact_arithmetic():
    found = kernels()
    assert len(found) > 600, "the search finds no kernels, so the rules check nothing"
    for option in ("_nrt", "no_cpython_wrapper"):
        assert sum(option in options for _, _, options in found) > 100, f"nor does it find those with {option}"
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


def test_no_kernel_assigns_an_array_to_a_slice():
    """Numba compiles the text of an error for it, in two seconds of its compiler."""

    def slow(source):
        for kernel in ast.walk(ast.parse(source)):
            if isinstance(kernel, ast.FunctionDef) and any("njit" in ast.unparse(one) for one in kernel.decorator_list):
                for each in ast.walk(kernel):
                    if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Subscript):
                        sliced = any(isinstance(part, ast.Slice) for part in ast.walk(each.targets[0].slice))
                        number = ast.unparse(each.value).lstrip("-")
                        if sliced and not (number.isdigit() or number in ("True", "j")):
                            yield f"{kernel.name}: {ast.unparse(each)}"

    assert list(slow("@njit\ndef f(x, y):\n    x[:] = 0\n    x[1:] = y")) == ["f: x[1:] = y"]
    assert not [found for path in SOURCES for found in slow(path.read_text())]


def named_outside(source: str, inner: dict[str, set[str]], file: str = "") -> set[str]:
    """Kernels for kernels, by file of `inner`, that a module (`file`) has or imports, and names outside kernels."""
    tree = ast.parse(source)
    known, inside = set(inner.get(file, ())), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported = f"{(node.module or '').replace('.', '/')}.py"
            known |= {alias.name for alias in node.names} & inner.get(imported, set())
        if isinstance(node, ast.FunctionDef) and any("njit" in ast.unparse(one) for one in node.decorator_list):
            inside |= {id(part) for part in ast.walk(node)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in inside} & known


def test_what_kernels_alone_call_is_named_in_kernels_alone():
    """Python would run it uncompiled."""
    inner: dict[str, set[str]] = {}
    for file, name, options in kernels():
        if "no_cpython_wrapper" in options:
            inner.setdefault(file, set()).add(name)
    broken = "from a.b import f, h\n\n@njit\ndef k(x):\n    return f(x)\n\ndef python(x):\n    return h(f(x))\n"
    assert named_outside(broken, {"a/b.py": {"f"}}) == {"f"}
    for path in SOURCES:
        found = named_outside(path.read_text(), inner, path.relative_to(ROOT).as_posix())
        assert not found, f"{path}: {found} are decorated with njit_inner"
