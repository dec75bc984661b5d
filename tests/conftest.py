"""What tests of several folders share: one Ray for the whole session, and what of a matrix is `wide`."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# What a commit is judged by is the same each time; `--hypothesis-profile searching` looks further at every start.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("searching", derandomize=False, print_blob=True)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)  # marks are looked at after this
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Rows about an engine or window index that runs take only if told to are `wide`: each compiles for up to 50 s."""
    from baselines.kinds import WITH_BASELINES

    by_name = [names for kind in WITH_BASELINES.run for names in (tuple(kind.engines), tuple(kind.windows)) if names]
    opponents = {name for names in by_name for name in names[1:]} - {names[0] for names in by_name}
    for item in items:
        row = getattr(item, "callspec", None)
        if row is not None and not opponents.isdisjoint(_words(row.params)):
            item.add_marker("wide")


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
