"""What tests of several folders share: one Ray for the whole session."""

import os

import pytest
from hypothesis import settings

# What a commit is judged by is the same each time; `--hypothesis-profile searching` looks further at every start.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("searching", derandomize=False, print_blob=True)
settings.load_profile("repeatable")


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
