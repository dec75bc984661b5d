"""What each test costs: processor time, which other work on the machine does not change, and time on the clock.

A plugin of pytest, for those who make the tests faster: `pytest -p tests.support.costs --costs FILE`. Each line of FILE
is tab separated: seconds of processors, seconds on the clock, the phase, the test. Processor time is that of the
session and of all its descendants, also of those that run on, as Ray does; that of a process that Ray kills is lost.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file."""
    parser.addoption("--costs", metavar="FILE", type=Path, help="append the processor time of each test there")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """The setup of a test, measured."""
    return (yield from _measured(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """The test itself, measured."""
    return (yield from _measured(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """What follows a test, measured."""
    return (yield from _measured(item, "teardown"))


def _measured(item: pytest.Item, phase: str) -> Iterator[None]:
    file: Path | None = item.config.getoption("--costs")
    if file is None:
        return (yield)
    began_s, began_cpu_s = time.monotonic(), _processor_s(os.getpid())
    try:
        return (yield)
    finally:
        cpu_s = _processor_s(os.getpid()) - began_cpu_s
        with file.open("a") as out:
            out.write(f"{cpu_s:.2f}\t{time.monotonic() - began_s:.2f}\t{phase}\t{item.nodeid}\n")


def _processor_s(process: int) -> float:
    """Processor time of a process, of its descendants, and of those that each of them has waited for."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        files = Path(f"/proc/{process}/task").glob("*/children")
        children = [int(child) for file in files for child in file.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_PER_S + sum(map(_processor_s, children))
