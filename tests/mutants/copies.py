"""A copy of the source tree that is broken in one place at a time, and tests that run in it.

Compiled kernels are those of the checkout, but for what a fault changes: the cache tells them apart by their sources
(`compiling.kernel_cache`), and is itself a copy, so that nothing broken is left behind.
"""

import contextlib
import os
import re
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

from compiling import kernel_cache

#: What tests need of the tree.
PARTS = (
    "compiling",
    "matching",
    "papers",
    "baselines",
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
        # Links, not copies: Numba never writes into a file that is there, it puts another in its place.
        compiled = kernel_cache.folder()
        if compiled is not None:
            shutil.copytree(compiled, self.cache / kernel_cache._FOLDER, copy_function=_link)
        return self

    def __exit__(self, *_) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def occurrences(self, mutant: Mutant) -> int:
        """How often the old text is in the file; 0 if there is no such file."""
        path = self.tree / mutant.file
        return path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0

    @contextlib.contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """Put the fault in, and take it out again."""
        path = self.tree / mutant.file
        right, times = path.read_text(encoding="utf-8"), path.stat()
        self._changes += 1
        path.write_text(right.replace(mutant.old, mutant.new), encoding="utf-8")
        # A time that no other content of this file has had: Python tells its own compiled files by it, in seconds.
        os.utime(path, (times.st_atime, int(times.st_mtime) + self._changes))
        try:
            yield
        finally:
            path.write_text(right, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def run(self, tests: Sequence[str], jit: bool, times: int = 1, stop: bool = True) -> Outcome:
        """Run tests by their node ids; `times` as long as one run may take."""
        report = self._folder / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.quick"]
        command += ["-m", "", f"--junitxml={report}", f"--timeout={self.timeout_s:.0f}", *(["-x"] if stop else [])]
        process = subprocess.Popen(
            [*command, *tests],
            cwd=self.tree,
            env=self._environment(jit),
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

    def _environment(self, jit: bool) -> dict[str, str]:
        # all but what Numba does; the processor that it compiles for is that of the kernels which are there
        left_out = re.compile(r"PYTEST_|NUMBA_(?!CPU_)")
        kept = {name: value for name, value in os.environ.items() if not left_out.match(name)}
        return kept | {
            "PYTHONPATH": str(self.tree),
            "SKYRAY_KERNEL_CACHE": str(self.cache),
            **({} if jit else {"NUMBA_DISABLE_JIT": "1"}),
        }


def _link(source: str, target: str) -> None:
    """A hard link, or a copy where the cache is on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


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
