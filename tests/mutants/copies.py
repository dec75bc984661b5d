"""A copy of the source tree that is broken in one place at a time, and tests that run in it.

Compiled kernels are kept between runs, but never where they could hide a fault. Numba sees by a file's time and size
that the kernels in it are to be compiled again, not that a kernel they call in another file has changed. So each mutant
has a cache of its own, which begins with that of the unchanged copy

- whole, if the fault is in the body of functions that are not compiled and nothing else;
- without what `distribution` compiled, if it is there: `matching` stands below and calls none of its kernels;
- empty otherwise.

Read on in `tests/mutants/mutants.toml`, the list.
"""

import ast
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from xml.etree import ElementTree

#: What tests need of the tree.
PARTS = (
    "matching",
    "distribution",
    "topology",
    "bolts",
    "spouts",
    "spark_etl",
    "gateway",
    "benchmarks",
    "tests",
    "docs",
    "deploy",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
    "constraints.txt",
)
#: Decorators of functions that Numba does not see; who has any other is taken for a kernel.
_NEVER_COMPILED = {"property", "classmethod", "staticmethod", "abstractmethod", "contextlib.contextmanager"}
_KERNEL_PARTS = ("distribution", "signatures")


@dataclass(frozen=True)
class Mutant:
    """A fault: `old` (once in `file`) becomes `new`; one of `tests` has to fail, without the compiler if not `jit`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    jit: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a run of tests came to; `timed_out` is empty or says what took too long."""

    passed: bool
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    timed_out: str = ""


def read_mutants(path: Path) -> list[Mutant]:
    """The list. Raises ValueError where a name comes twice or an entry says nothing."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**(entry | {"tests": tuple(entry["tests"])})) for entry in entries]
    names = [mutant.name for mutant in mutants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{path}: more than one mutant is named {sorted(twice)[0]!r}")
    for mutant in mutants:
        if not mutant.tests or mutant.old == mutant.new:
            raise ValueError(f"{path}: {mutant.name!r} names no test, or changes nothing")
    return mutants


class Copy:
    """The tree in a temporary folder, removed at the end.

    Parameters
    ----------
    root : Path
    timeout_s : float    for one run of tests
    """

    def __init__(self, root: Path, timeout_s: float):
        self.timeout_s = timeout_s
        self._root = root
        self._folder = Path(tempfile.mkdtemp(prefix="skyray-mutants-"))
        self.tree = self._folder / "tree"
        self.cache = self._folder / "kernels"
        self._changes = 0
        for part in PARTS:
            source = root / part
            if source.is_dir():
                shutil.copytree(source, self.tree / part, ignore=shutil.ignore_patterns("__pycache__", "results", ".*"))
            elif source.exists():
                self.tree.mkdir(exist_ok=True)
                shutil.copy2(source, self.tree / part)

    def __enter__(self) -> Self:
        self._take_over()
        return self

    def __exit__(self, *_) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def occurrences(self, mutant: Mutant) -> int:
        """How often the old text is in the file; 0 if there is no such file."""
        path = self.tree / mutant.file
        return path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0

    @contextlib.contextmanager
    def broken(self, mutant: Mutant) -> Iterator[Path]:
        """Put the fault in, and take it out again; yields the folder of compiled kernels that goes with it."""
        path = self.tree / mutant.file
        right, times = path.read_text(encoding="utf-8"), path.stat()
        wrong = right.replace(mutant.old, mutant.new)
        self._changes += 1
        cache = self._folder / f"kernels-{self._changes}"
        path.write_text(wrong, encoding="utf-8")
        # A time that no other content of this file has had: Python tells its own compiled files by it, in seconds.
        os.utime(path, (times.st_atime, int(times.st_mtime) + self._changes))
        try:
            self._seed(cache, mutant.file, right, wrong)
            yield cache
        finally:
            path.write_text(right, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            shutil.rmtree(cache, ignore_errors=True)

    def run(self, tests: Sequence[str], jit: bool, cache: Path, times: int = 1, stop: bool = True) -> Outcome:
        """Run tests by their node ids; `times` as long as one run may take."""
        report = self._folder / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.quick"]
        command += ["-m", "", f"--junitxml={report}", f"--timeout={self.timeout_s:.0f}", *(["-x"] if stop else [])]
        process = subprocess.Popen(
            [*command, *tests],
            cwd=self.tree,
            env=self._environment(cache, jit),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=times * (self.timeout_s + 30.0))[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Outcome(False, timed_out="the run was killed")
        return _outcome(process.returncode, report, said)

    def _environment(self, cache: Path, jit: bool) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PYTEST_"))}
        return kept | {
            "PYTHONPATH": str(self.tree),
            "SKYRAY_KERNEL_CACHE": str(cache),
            **({} if jit else {"NUMBA_DISABLE_JIT": "1"}),
        }

    def _cache_of(self, base: Path) -> Path:
        """Where the tree, as it is now, keeps what it compiles."""
        command = [sys.executable, "-c", "import matching, os; print(matching.__file__, os.environ['NUMBA_CACHE_DIR'])"]
        said = subprocess.run(
            command, cwd=self.tree, env=self._environment(base, True), check=True, capture_output=True, text=True
        )
        imported, folder = said.stdout.split()
        if not Path(imported).is_relative_to(self.tree):
            raise RuntimeError(f"tests would import {imported} instead of the copy in {self.tree}")
        return Path(folder)

    def _take_over(self) -> None:
        """Begin with what the checkout itself has compiled of `matching`: the same sources, in another folder.

        Numba names a folder of compiled kernels by that of their sources, and takes none of another time or size.
        """
        said = subprocess.run(
            [sys.executable, "-c", "import matching, os; print(os.environ['NUMBA_CACHE_DIR'])"],
            cwd=self._root, env=os.environ | {"PYTHONPATH": str(self._root)}, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        compiled, here = Path(said.stdout.strip()), self._cache_of(self.cache)
        if compiled.name != here.name:
            raise RuntimeError(f"{self._root} and its copy differ: was it edited meanwhile?")
        for folder in [self.tree / "matching", *(self.tree / "matching").rglob("*/")]:
            source = compiled / _numba_name(self._root / folder.relative_to(self.tree))
            if source.is_dir():
                shutil.copytree(source, here / _numba_name(folder))

    def _seed(self, cache: Path, file: str, right: str, wrong: str) -> None:
        """Fill `cache` with what was compiled of the unchanged copy and is right for the changed one, too."""
        if not self.cache.exists():
            return
        same = kernels_of(right) == kernels_of(wrong)
        if not same and not file.startswith("distribution/"):
            return
        unchanged = next((self.cache / "skyray-kernels").iterdir())
        # Links, not copies: Numba never writes into a file that is there, it puts another in its place.
        shutil.copytree(unchanged, self._cache_of(cache), copy_function=os.link)
        if not same:
            for folder in self._cache_of(cache).iterdir():
                if folder.name.startswith(_KERNEL_PARTS):
                    shutil.rmtree(folder)


def _numba_name(folder: Path) -> str:
    """The folder in which Numba keeps what it compiled of the sources in another."""
    return f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"


def kernels_of(source: str) -> str:
    """All of a module that a compiled kernel can depend on: everything but the bodies of functions that are not."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and {ast.unparse(each) for each in node.decorator_list} <= _NEVER_COMPILED:
            node.body = [ast.Pass()]
    return ast.dump(tree)


def _outcome(code: int, report: Path, said: str) -> Outcome:
    """Read the report of pytest, which an interrupted run may not have left."""
    if not report.exists():
        return Outcome(False, errors=[f"pytest ended with {code}: {said.strip()[-300:]}"])
    failed, errors, late = [], [], ""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        for problem in case:
            message = " ".join((problem.get("message") or "").split())[:200]
            if problem.tag == "failure" and "Timeout (>" in message:
                late = f"{name}: {message}"
            elif problem.tag == "failure":
                failed.append(f"{name}: {message}")
            elif problem.tag in ("error", "skipped"):
                errors.append(f"{name}: {problem.tag}: {message}")
    if code != 0 and not failed and not errors and not late:
        errors.append(f"pytest ended with {code}: {said.strip()[-300:]}")
    return Outcome(code == 0 and not errors, failed, errors, late)
