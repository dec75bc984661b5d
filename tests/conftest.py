"""What tests of several folders share: servers for the whole session, what is `wide`, and what was left out."""

import gc
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support import left_out
from tests.support.apache_kafka import ApacheKafka
from tests.support.costs import slow_tests, tier_of
from tests.support.covering import sampled

# What a commit is judged by is the same each time; `--hypothesis-profile searching` looks further at every start.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("searching", derandomize=False, print_blob=True)
settings.load_profile("repeatable")


#: Tests left out, by the marker for which they were.
_LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option for sessions whose counts are added up (`tests.support.left_out`)."""
    parser.addoption("--left-out", metavar="FILE", help="write what was left out there instead of to the terminal")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEFT_OUT] = Counter()


@pytest.hookimpl(tryfirst=True)  # marks are looked at after this
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Rows about an engine or window index that runs take only if told to are `wide`: each compiles for up to 50 s.

    Of a matrix of `wide` rows CI has those that `sampled` takes: the others are `long`, too.
    """
    from matching.kinds import KINDS

    by_name = [names for kind in KINDS.run for names in (tuple(kind.engines), tuple(kind.windows)) if names]
    opponents = {name for names in by_name for name in names[1:]} - {names[0] for names in by_name}
    slow = {} if not items or _are_picked(items[0].config) else slow_tests()
    for item in items:
        row = getattr(item, "callspec", None)
        if row is not None and not opponents.isdisjoint(_words(row.params)):
            item.add_marker("wide")
    for rows in _matrices(items):
        taken = sampled([row for _, row in rows])
        for number, (item, _) in enumerate(rows):
            if number not in taken:
                item.add_marker("long")
    for item in items:  # a costly row of a matrix stays the one that stands for others
        if tier := tier_of(item.nodeid, slow):
            item.add_marker(tier)
    for item in items:
        for name in _lacking(item):
            reason = f"needs {left_out.NEEDS[name].what}: {left_out.remedy(name)}"
            item.add_marker(pytest.mark.skip(reason=reason))


def _lacking(item: pytest.Item) -> list[str]:
    """Markers of a test whose programs this machine lacks."""
    marks = {mark.name for mark in item.iter_markers()}  # once: asking for each takes a second in all
    return [name for name in left_out.NEEDS if name in marks and not _is_there(name)]


@cache
def _is_there(name: str) -> bool:
    return left_out.NEEDS[name].there()


def _matrices(items: list[pytest.Item]) -> Iterator[list[tuple[pytest.Item, tuple[int, ...]]]]:
    """The `wide` rows of each test that a commit does not run anyway, with their places on its axes."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("wide") and not item.get_closest_marker("long") and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for rows in tests.values():
        given: list[dict[str, Any]] = [item.callspec.params for item in rows]  # type: ignore[attr-defined]
        # by object, since not all can be compared; arguments that are given together are one axis
        axes = list(dict.fromkeys(_places([id(row[name]) for row in given]) for name in given[0]))
        yield list(zip(rows, zip(*axes, strict=True), strict=True))


def _places(values: list[int]) -> tuple[int, ...]:
    """Values numbered by when they come first."""
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(value, len(numbers)) for value in values)


def _are_picked(config: pytest.Config) -> bool:
    """Whether files or tests are named, or words of their names: then slow ones are wanted, too."""
    return bool(config.option.keyword) or not any(Path(word).is_dir() for word in config.args)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is left out for its tier, unless tests are picked by name."""
    for item in items:
        tiers = [] if item.config.option.keyword else [one for one in left_out.TIERS if item.get_closest_marker(one)]
        item.config.stash[_LEFT_OUT].update(tiers[:1])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count what is left out for what is missing; the collector of garbage never visits again what is there now."""
    gc.freeze()
    for item in session.items:
        session.config.stash[_LEFT_OUT].update(_lacking(item)[:1])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out, and how to get it."""
    counts = config.stash[_LEFT_OUT]
    if file := config.getoption("--left-out"):
        Path(file).write_text(json.dumps(counts))
        return
    for line in left_out.lines(counts):
        terminalreporter.write_line(line)


def _words(row: dict[str, Any]) -> Iterator[str]:
    """The texts in a row of a matrix, and the names of its classes; of what is a row itself, of its values."""
    for value in row.values():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else (value,)
        for part in parts:
            name = getattr(part, "name", None) if isinstance(part, type) else part
            if isinstance(name, str):
                yield name


@pytest.fixture(scope="session")
def ray_session():
    """Ray on this machine, loopback only, started once for all tests that ask for it.

    CPUs are what Ray believes it has: tasks reserve none, so that many actors fit on two cores.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import logging

    import ray

    ray.init(
        address="local",  # whatever cluster runs beside, or has left its address
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        num_cpus=8,
        object_store_memory=256 * 1024 * 1024,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A node of Apache Kafka for tests marked `kafka` that leave it running."""
    with ApacheKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgis() -> Iterator[None]:
    """A PostgreSQL with PostGIS for tests marked `postgis`: the one that PGHOST names, or one of this session alone."""
    if os.environ.get("PGHOST"):
        yield
        return
    names = ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE")
    show = " ".join(f'"${name}"' for name in names)
    # it runs as long as its standard input is open, and then removes itself
    with subprocess.Popen(
        ["pg_virtualenv", "-t", "sh", "-c", f"printf '%s\\n' {show}; cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None and server.stdin is not None
        said = server.stdout.readline()
        while said.startswith("Creating"):
            said = server.stdout.readline()
        values = [said.strip(), *(server.stdout.readline().strip() for _ in names[1:])]
        assert all(values), "pg_virtualenv started no server"
        with pytest.MonkeyPatch.context() as patch:
            for name, value in zip(names, values, strict=True):
                patch.setenv(name, value)
            yield
        server.communicate()
