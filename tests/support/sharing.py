"""Sessions of tests that run beside each other and share what there is, a file at a time.

A plugin of pytest. Each session that is given the same folder by `--shared` runs only the files that no other has taken
before, whatever it has collected: a file is taken when its mark is made in that folder, which only one session can do.
With `--from-the-end` a session takes the last file first, so that it meets one that takes the first file first.
`tests/halves.py` starts such sessions.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The folder of the marks, and from where a session begins."""
    parser.addoption("--shared", metavar="FOLDER", type=Path, help="run files that have no mark there yet")
    parser.addoption("--from-the-end", action="store_true", help="with --shared: the last file first")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether a file is taken already: a session that begins late need not read it. The first one reads all."""
    folder: Path | None = config.getoption("--shared")
    if folder is None or not config.getoption("--from-the-end") or not collection_path.is_relative_to(config.rootpath):
        return None
    return True if _mark(collection_path, config, folder).is_file() else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """As pytest runs its tests, but over those that are taken on the way."""
    folder: Path | None = session.config.getoption("--shared")
    if folder is None or session.testsfailed or session.config.option.collectonly:
        return None  # as usual: an error in a file that was collected ends the session
    taken = _taken(session.items, folder, session.config.getoption("--from-the-end"))
    item = next(taken, None)
    while item is not None:
        following = next(taken, None)  # before the test: fixtures that both use live on
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def _taken(items: list[pytest.Item], folder: Path, from_the_end: bool) -> Iterator[pytest.Item]:
    """Tests of files that no other session has taken; a file is taken when its first test is asked for."""
    files = [(path, list(tests)) for path, tests in groupby(items, lambda item: item.path)]
    files.sort(key=lambda file: "fault" not in file[0].parts)  # one of them takes minutes: not as the last one
    for path, tests in reversed(files) if from_the_end else files:
        try:
            _mark(path, tests[0].config, folder).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield from tests


def _mark(path: Path, config: pytest.Config, folder: Path) -> Path:
    return folder / "~".join(path.relative_to(config.rootpath).parts)
