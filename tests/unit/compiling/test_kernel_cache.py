"""Compiled kernels are taken from the cache where they are right, and nowhere else."""

import ast
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest

from compiling import kernel_cache
from compiling.kernel_cache import PACKAGES, ROOT, imports_of

MODULES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
#: A caller, what it calls in another file by way of a third, and somebody else.
SOURCES = {
    "matching/__init__.py": "import compiling\n",
    "matching/caller.py": "from numba import njit\n\nfrom matching.sub import (\n    callee,  # over lines\n)\n\n\n"
    "@njit(cache=True)\ndef ask(x):\n    return callee.double(x) + 1\n",
    "matching/sub/__init__.py": "",
    "matching/sub/callee.py": "from numba import njit\n\nimport distribution.factor\n\n\n"
    "@njit(cache=True)\ndef double(x):\n    return distribution.factor.FACTOR * x\n",
    "matching/other.py": "from numba import njit\n\n\n@njit(cache=True)\ndef other(x):\n    return x - 1\n",
    "distribution/__init__.py": "",
    "distribution/factor.py": "FACTOR = 2\n",
}
SCRIPT = """
import json, os, sys
if sys.argv[1] == "numba first":
    import numba
import matching
from matching.caller import ask
from matching.other import other
answers = [ask(20), other(20)]
hits = [sum(kernel.stats.cache_hits.values()) for kernel in (ask, other)]
print(json.dumps([answers, hits, matching.__file__, "NUMBA_CACHE_LOCATOR_CLASSES" in os.environ]))
"""


def test_imports_of_are_those_the_compiler_of_python_sees():
    """Names are looked for in the text, since to parse every file at every start takes too long."""
    assert len(MODULES) > 100
    assert not {str(module): imports for module in MODULES if (imports := seen_in(module)) != imports_of(module)}


def seen_in(module):
    """The files of the project that Python's own compiler sees a module import."""
    named = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import is not seen"
            named |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    named = {name for name in named if name.split(".")[0] in PACKAGES}
    paths = {Path(*name.split(".")).with_suffix(".py") for name in named}
    paths |= {Path(*name.split("."), "__init__.py") for name in named}
    return {path for path in paths if (ROOT / path).is_file()}


def make_tree(folder):
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "compiling").mkdir()
    for name in ("__init__.py", "kernel_cache.py"):
        shutil.copy(ROOT / "compiling" / name, folder / "compiling" / name)
    return folder


def ask(tree, cache, order="matching first"):
    return ask_with(tree, {"SKYRAY_KERNEL_CACHE": str(cache)}, order)[:2]


def ask_with(tree, variables, order="matching first"):
    """Answers, how many came from the cache, and what was said on standard error."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = kept | {"PYTHONPATH": str(tree), "SKYRAY_KERNEL_CACHE": None} | variables
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, order],
        cwd=tree, env={name: value for name, value in environment.items() if value is not None},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    answers, hits, file, leaks = json.loads(done.stdout)
    assert Path(file).is_relative_to(tree) and not leaks, "a process of others must not be told where to look"
    return answers, hits, done.stderr


def test_kernel_cache_serves_equal_sources_anywhere_and_no_others(tmp_path):
    first, second, cache = make_tree(tmp_path / "first"), make_tree(tmp_path / "second"), tmp_path / "cache"
    assert ask(first, cache) == ([41, 19], [0, 0])
    assert ask(first, cache, "numba first") == ([41, 19], [1, 1])
    assert ask(second, cache) == ([41, 19], [1, 1]), "a copy finds what is compiled"
    (second / "distribution" / "factor.py").write_text("FACTOR = 3\n")
    assert ask(second, cache) == ([61, 19], [0, 1]), "two files away, of another package"
    assert ask(first, cache) == ([41, 19], [1, 1]), "both sources have their kernels"
    (first / "matching" / "other.py").write_text(SOURCES["matching/other.py"].replace("- 1", "- 2"))
    assert ask(first, cache) == ([41, 18], [1, 0])
    assert sorted(path.name.rpartition("-")[0] for path in (cache / kernel_cache._FOLDER).iterdir()) == sorted(
        ["matching.caller"] * 2 + ["matching.other"] * 2 + ["matching.sub.callee"] * 2
    )


def test_kernels_that_a_wheel_brings_are_run_without_a_compiler_if_their_sources_are_the_same(tmp_path, monkeypatch):
    tree = make_tree(tmp_path / "tree")
    collect = f"from compiling import kernel_cache\nwith kernel_cache.collected():\n    exec({SCRIPT!r})"
    subprocess.run(
        [sys.executable, "-P", "-c", collect, "matching first"], cwd=tree, capture_output=True, timeout=300, check=True,
        env={**os.environ, **kernel_cache.PORTABLE, "PYTHONPATH": str(tree), "SKYRAY_KERNEL_CACHE": str(tmp_path)},
    )  # fmt: skip
    brought = [path for path in (tree / "compiling" / "prebuilt").rglob("*") if path.is_file()]
    assert len(brought) > 5 and not [path for path in brought if str(tmp_path).encode() in path.read_bytes()]
    (tree / "distribution" / "factor.py").write_text("FACTOR = 3\n")
    assert ask(tree, tmp_path / "empty") == ([61, 19], [0, 1])
    assert not list((tmp_path / "empty").rglob("other*"))

    monkeypatch.setattr(kernel_cache, "ROOT", tree)
    find = kernel_cache.prebuilt.__wrapped__
    assert find() is not None
    monkeypatch.setattr("numba.config.CPU_NAME", "generic")
    assert find() is None
    monkeypatch.setattr("numba.config.CPU_NAME", None)
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: {"avx": True, "avx2": False})
    assert find() is None, "an older processor"


def test_kernel_cache_that_cannot_be_written_leaves_the_answers_alone(tmp_path):
    tree = make_tree(tmp_path / "tree")
    for _ in range(2):
        answers, hits, said = ask_with(tree, {"SKYRAY_KERNEL_CACHE": "/proc/nowhere"})
        assert (answers, hits) == ([41, 19], [0, 0])
        assert said.count("RuntimeWarning: compiled kernels are lost") == 1 and "/proc/nowhere" in said, said
    assert not list(tree.rglob("*.nbi")), "nothing is kept beside the sources, where an edit would not be noticed"


#: Runs `SCRIPT`, then a process that runs it again; prints the folders in the temporary one with their modes.
PARENT = """
import os, subprocess, sys, tempfile
from pathlib import Path
exec(sys.argv[2])
children = [subprocess.run([sys.executable, "-P", "-c", sys.argv[2], "matching first"], check=True) for _ in range(2)]
for place in Path(tempfile.gettempdir()).glob("skyray-*"):
    print(json.dumps([place.name, oct(place.stat().st_mode & 0o777), len(list(place.rglob("*.nbc")))]), flush=True)
"""


def test_kernel_cache_without_a_home_is_a_new_private_folder_for_this_process_and_its_children(tmp_path):
    tree, temporary, names = make_tree(tmp_path / "tree"), tmp_path / "temporary", set()
    temporary.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "SKYRAY_", "XDG_"))}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", "-u", "-c", PARENT, "matching first", SCRIPT], cwd=tree,
            env=kept | {"HOME": "/proc/nowhere", "TMPDIR": str(temporary), "PYTHONPATH": str(tree)},
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        *answers, (name, mode, kernels) = sorted(map(json.loads, done.stdout.splitlines()), key=len, reverse=True)
        assert [one[:2] for one in answers] == [[[41, 19], [0, 0]], [[41, 19], [1, 1]], [[41, 19], [1, 1]]]
        assert mode == "0o700" and kernels > 0
        assert done.stderr.count("RuntimeWarning") == 1 and "set SKYRAY_KERNEL_CACHE to" in done.stderr, done.stderr
        assert not list(temporary.iterdir()), "it is removed at the end of the process that made it"
        names.add(name)
    assert len(names) == 2 and f"skyray-kernels-{os.geteuid()}" not in names


class Evil:
    """Writes a file when it is read back."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return open, (self.mark, "w")


@pytest.fixture
def shared():
    """A folder that all users can write to, like /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="skyray-test-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A tree, and what the cache has of its kernels."""
    folder = tmp_path_factory.mktemp("compiled")
    tree = make_tree(folder / "tree")
    assert ask(tree, folder / "cache")[0] == [41, 19]
    return tree, folder / "cache"


def plant(cache, shared, target, mark):
    """Have another user put there what a tree would take for its compiled kernels, and run on reading it.

    Who is not root cannot be another user, and leaves a folder behind that all others can write to.
    """
    made = shutil.copytree(cache, shared / "made") / kernel_cache._FOLDER
    for path in made.rglob("*.nbi"):
        path.write_bytes(pickle.dumps(numba.__version__) + pickle.dumps(Evil(mark)))
    for path in (made.parent, made, *made.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    other = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    subprocess.run(["cp", "-r", made, target], check=True, **other)
    if other:
        assert target.stat().st_uid == 65534
    else:
        target.chmod(0o777)


def ask_beside(mark, tree, variables):
    """As `ask_with`, where reading what was planted would leave a mark."""
    try:
        return ask_with(tree, variables)
    finally:
        assert not mark.exists(), "code of another user ran"


@pytest.mark.parametrize("name", [kernel_cache._FOLDER, f"{kernel_cache._FOLDER}-{os.geteuid()}"])
def test_kernels_that_another_user_left_in_the_temporary_folder_are_not_run(compiled, tmp_path, shared, name):
    (tree, cache), mark = compiled, tmp_path / "ran"
    plant(cache, shared, shared / name, mark)
    homeless = {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": None, "TMPDIR": str(shared)}
    answers, hits, said = ask_beside(mark, tree, homeless)
    assert (answers, hits) == ([41, 19], [0, 0])
    assert "compiled kernels are lost" in said, said


NAMED = "there", "by a link", "by a link above", "ours, open to others", "below one that others can write to"


@pytest.mark.parametrize(
    ("variable", "how"), [*(("SKYRAY_KERNEL_CACHE", how) for how in NAMED), ("XDG_CACHE_HOME", NAMED[0])]
)
def test_kernels_of_another_user_in_a_folder_that_is_named_are_not_run(compiled, tmp_path, shared, variable, how):
    (tree, cache), mark, named = compiled, tmp_path / "ran", tmp_path / "named"
    plant(cache, shared, shared / kernel_cache._FOLDER, mark)
    if how == "there":
        named = shared
    elif how == "by a link":
        named.mkdir()
        (named / kernel_cache._FOLDER).symlink_to(shared / kernel_cache._FOLDER)
    elif how == "by a link above":
        named.symlink_to(shared)
    else:  # it is this user's, but others can put theirs in its place
        named.mkdir()
        shutil.copytree(shared / kernel_cache._FOLDER, named / kernel_cache._FOLDER)
        ours = how.startswith("ours")
        (named / kernel_cache._FOLDER).chmod(0o777 if ours else 0o700)
        named.chmod(0o700 if ours else 0o777)
    answers, hits, said = ask_beside(mark, tree, {variable: str(named), "TMPDIR": str(tmp_path)})
    assert (answers, hits) == ([41, 19], [0, 0])
    assert "set SKYRAY_KERNEL_CACHE to one that is" in said


def test_kernel_locator_leaves_functions_of_others_to_numba():
    assert kernel_cache.KernelLocator.from_function(ask, __file__) is None


#: A kernel that any tuple can be given, and a tuple in a module that `{where}` names.
ANY_TUPLE = {
    "matching/pool.py": "from numba import njit\n\n\n@njit(cache=True)\ndef first(rows):\n    return rows.x[0]\n",
    "matching/{where}.py": "from typing import NamedTuple\n\nimport numpy as np\n\nfrom matching.pool import first\n\n"
    "class Rows(NamedTuple):\n    x: np.ndarray\n\n\ndef ask():\n    return int(first(Rows(np.array([7]))))\n",
}


def test_kernel_compiled_for_a_type_whose_module_has_moved_is_compiled_anew(tmp_path):
    """Numba keeps what a kernel was compiled for by the name of its type: a name that is gone must not stop a start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    for where in ("before", "after", "before"):
        tree = make_tree(tmp_path / where) if not (tmp_path / where).exists() else tmp_path / where
        for name, text in ANY_TUPLE.items():
            (tree / name.format(where=where)).write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", f"from matching.{where} import ask; print(ask())"],
            cwd=tree, env=environment | {"PYTHONPATH": str(tree), "SKYRAY_KERNEL_CACHE": str(tmp_path / "cache")},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout == "7\n", done.stderr
    assert len(list((tmp_path / "cache" / kernel_cache._FOLDER).glob("matching.pool-*"))) == 1, (
        "all found the same kernel"
    )


def test_kernels_imported_after_others_were_compiled_are_in_the_same_place():
    """Numba looks at the environment again when it compiles, where its locators are named no more."""
    code = (
        "import numpy as np\n"
        "from matching.storage import slots, marks\n"
        "from compiling.njit import njit\n"
        "njit(lambda x: x + 1)(1)\n"
        "from matching.topk.engines import skype_scan\n"
        "print(type(skype_scan.scan._cache._impl.locator).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["KernelLocator"]
