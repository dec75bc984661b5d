"""CPUs reserved on Ray: all or nothing, with a line on what is waited for, and given back however a run ends."""

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from matching.errors import ConfigError, TopologyError
from tests.support.example_topologies import pipeline
from topology.core.api.resources import Needs, Resources
from topology.core.executors.ray import run_ray

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
#: Of the eight CPUs of the session.
SIX = {name: Resources(2.0) for name in ("numbers", "pass", "ack")}


def groups(state):
    """Bundles of placement groups in this state."""
    return [list(group["bundles"].values()) for group in placement_group_table().values() if group["state"] == state]


def where():
    return f"{ray.get_runtime_context().gcs_address}"


@pytest.fixture
def held():
    """Four of the eight CPUs, held by another."""
    group = placement_group([{"CPU": 4}])
    assert group.wait(30)
    yield group
    remove_placement_group(group)


def test_run_reserves_while_it_runs_and_gives_it_back():
    seen = []

    def look(_snapshot):
        seen.append((groups("CREATED"), ray.available_resources().get("CPU", 0.0)))

    report = run_ray(pipeline(batches=8), on_progress=look, needs=Needs(SIX))
    assert report.published == report.acknowledged == 8
    assert ([[{"CPU": 2.0}] * 3], 2.0) in seen, seen
    assert not groups("CREATED") and not groups("PENDING")


class Waiting:
    """Gives the CPUs free when the start says that it waits for them."""

    def __init__(self, group):
        self.group, self.said = group, []

    def starting(self, stage):
        if "CPU" in stage:
            self.said.append(stage)
            remove_placement_group(self.group)

    def __call__(self, snapshot): ...


def test_run_says_once_what_it_waits_for_and_starts_when_it_is_there(held, capsys):
    waiting = Waiting(held)
    report = run_ray(pipeline(batches=4), where(), waiting, needs=Needs(SIX, lower="--query-cpus"))
    line = "6 CPUs: 8 CPUs are there, 4 CPUs free; add nodes, or lower --query-cpus"
    assert waiting.said == [line] and report.acknowledged == 4
    assert capsys.readouterr().err.count(line) == 1


def test_run_that_waits_too_long_starts_nothing_and_leaves_nothing(held):
    with pytest.raises(
        TopologyError, match="waited 0 s for 6 CPUs: 8 CPUs are there, 4 CPUs free; .*reservations.reserve_wait"
    ):
        run_ray(pipeline(trouble="prepare"), where(), needs=Needs(SIX, wait_s=0.0))
    assert len(groups("CREATED")) == 1 and not groups("PENDING"), "only what the test holds"


def test_run_on_this_machine_alone_refuses_more_than_it_has():
    with pytest.raises(ConfigError, match="reserves 9 CPUs: 8 CPUs are there, .* free; lower --query-cpus"):
        run_ray(pipeline(trouble="prepare"), needs=Needs(dict.fromkeys(SIX, Resources(3.0)), lower="--query-cpus"))
    assert not groups("PENDING")
