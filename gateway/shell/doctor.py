"""Checks of this machine for Skyray, each fault with its remedy.

`skyray doctor` prints it; the demo checks the same first. Thresholds are what the demo was seen to need.
"""

import importlib.metadata
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement

from compiling import kernel_cache
from compiling.cores import cores
from gateway.shell.packages import check_packages
from matching.errors import PackagingError
from matching.extras import EXTRAS, install_line, missing_modules

GIB = 2**30
NEWEST_PYTHON = (3, 14)
MIN_JAVA = 17
MIN_CORES = 2
#: Ray takes about 1 GiB, Spark's JVM as much, the tasks of the demo another.
MIN_MEMORY_BYTES, GOOD_MEMORY_BYTES = 3 * GIB, 6 * GIB
#: Below this, Ray's object store moves from shared memory to a file and every large batch is copied to disk.
MIN_SHARED_BYTES = GIB
MIN_DISK_BYTES, GOOD_DISK_BYTES = GIB, 5 * GIB
#: Ray opens sockets and pipes for every task.
MIN_OPEN_FILES = 4096


class Finding(NamedTuple):
    """One thing looked at: `state`, what was found, and what to do (empty when fine). An absent extra is no fault."""

    name: str
    state: Literal["ok", "warn", "fail", "absent"]
    found: str
    remedy: str = ""


def examine(folder: Path = Path(".")) -> list[Finding]:
    """Look at everything; `folder` is where runs will be written. Takes about a second; makes the folder of compiled
    kernels, and changes nothing else."""
    ray, spark = not missing_modules("ray"), not missing_modules("spark")
    checks: tuple[tuple[bool, Callable[[], Iterator[Finding]]], ...] = (
        (True, _python),
        (True, _distribution),
        (True, _extras),
        (spark, _java),
        (True, _cores),
        (ray or spark, _memory),
        (ray, _shared_memory),
        (True, lambda: _disk("disk for runs", folder)),
        (ray, lambda: _disk("disk for Ray's session", Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()))),
        (True, _kernel_cache),
        (ray, _open_files),
    )
    return [finding for needed, check in checks if needed for finding in check()]


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] <= NEWEST_PYTHON:  # an older one than 3.11 could not have read this file
        yield Finding("Python", "ok", f"{version} at {sys.executable}")
    else:
        yield Finding(
            "Python", "warn", version, f"newer than Numba knows: use 3.11 to {NEWEST_PYTHON[0]}.{NEWEST_PYTHON[1]}"
        )


def _distribution() -> Iterator[Finding]:
    """Our own packages, and the versions of what they and the installed extras need."""
    try:
        check_packages()
    except PackagingError as error:
        yield Finding("packages", "fail", "shadowed", str(error))
    try:
        requirements = [Requirement(line) for line in importlib.metadata.requires("skyray") or []]
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            "dependencies", "warn", "skyray is not installed", "run `make setup`, or `pip install .` in a checkout"
        )
        return
    there = [name for name in EXTRAS if not missing_modules(name)]
    wanted = {
        requirement.name: requirement.specifier
        for requirement in requirements
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": name}) for name in there)
    }
    missing, differing = [], []
    for name, range_ in wanted.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if not range_.contains(version, prereleases=True):
            differing.append(f"{name} {version} is not {range_}")
    if missing:
        yield Finding("dependencies", "fail", f"missing: {', '.join(missing)}", "run `pip install skyray` again")
    if differing:
        remedy = "run `pip install skyray` again, with its extras"
        yield Finding("dependencies", "warn", "; ".join(differing), remedy)
    if not missing and not differing:
        yield Finding("dependencies", "ok", f"{len(wanted)}, in their ranges")


def _extras() -> Iterator[Finding]:
    """Which extras are installed; none has to be."""
    for name, extra in EXTRAS.items():
        if missing := missing_modules(name):
            remedy = f"for {extra.purpose}: {install_line(name)}"
            yield Finding(f"extra {name}", "absent", f"not installed: {', '.join(missing)}", remedy)
        else:
            yield Finding(f"extra {name}", "ok", f"for {extra.purpose}")


def _java() -> Iterator[Finding]:
    remedy = (
        f"install a JDK or JRE {MIN_JAVA} or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
        "macOS: brew install openjdk@17), or point JAVA_HOME to one; only the ETL needs it"
    )
    java_home = os.environ.get("JAVA_HOME")
    java = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java")
    if java is None:
        yield Finding("Java", "fail", "none on PATH, and JAVA_HOME is not set", remedy)
        return
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("Java", "fail", f"{java} does not start: {error}", remedy)
        return
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', answer.stderr + answer.stdout)
    if version is None:
        yield Finding("Java", "fail", f"{java} has no readable version", remedy)
    elif int(version[1]) < MIN_JAVA:
        yield Finding("Java", "fail", f"{java} is version {version[1]}", remedy)
    else:
        yield Finding("Java", "ok", f"version {version[1]} at {java}")


def _cores() -> Iterator[Finding]:
    available = cores()
    if available >= MIN_CORES:
        yield Finding("cores", "ok", str(available))
    else:
        yield Finding("cores", "warn", str(available), "works, but slowly: give the machine or container two cores")


def _memory() -> Iterator[Finding]:
    import psutil

    available = psutil.virtual_memory().available
    limit = Path("/sys/fs/cgroup/memory.max")  # a container's limit, which psutil does not see
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        used = Path("/sys/fs/cgroup/memory.current")
        available = min(available, int(text) - (int(used.read_text()) if used.is_file() else 0))
    found = f"{available / GIB:.1f} GiB free"
    if available < MIN_MEMORY_BYTES:
        yield Finding("memory", "fail", found, f"free some: Ray and Spark need {MIN_MEMORY_BYTES // GIB} GiB")
    elif available < GOOD_MEMORY_BYTES:
        yield Finding("memory", "warn", found, "enough for the demo; use --query-bolts 1 for large runs")
    else:
        yield Finding("memory", "ok", found)


def _shared_memory() -> Iterator[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield Finding("shared memory", "ok", "Ray uses files on this system")
        return
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free in {folder}"
    if free < MIN_SHARED_BYTES:
        yield Finding("shared memory", "warn", found, "Ray falls back to disk: start the container with --shm-size=2g")
    else:
        yield Finding("shared memory", "ok", found)


def _disk(name: str, folder: Path) -> Iterator[Finding]:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    found = f"{usage.free / GIB:.1f} GiB free at {place}"
    if not os.access(place, os.W_OK):
        yield Finding(name, "fail", f"{place} cannot be written", "choose another folder with --out, or RAY_TMPDIR")
    elif usage.free < MIN_DISK_BYTES:
        yield Finding(name, "fail", found, "free some space, or choose another folder")
    elif usage.free < GOOD_DISK_BYTES or usage.free < 0.05 * usage.total:
        yield Finding(name, "warn", found, "Ray stops storing large objects when a disk is 95 % full")
    else:
        yield Finding(name, "ok", found)


def _kernel_cache() -> Iterator[Finding]:
    folder, why = kernel_cache.choose()
    if folder is not None:
        compiled = sum(1 for _ in folder.rglob("*.nbc"))
        yield Finding("kernel cache", "ok", f"{compiled} compiled kernels in {folder}")
    else:
        found = f"none that lasts: every command compiles them anew ({why})"
        yield Finding("kernel cache", "warn", found, "set SKYRAY_KERNEL_CACHE to a folder that only you can write to")


def _open_files() -> Iterator[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= MIN_OPEN_FILES:
        yield Finding("open files", "ok", "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard}")
    else:
        yield Finding("open files", "warn", f"up to {hard}", f"raise the limit: ulimit -n {MIN_OPEN_FILES}")
