"""`skyray scale`: other numbers of tasks in mid-stream, with the updates of an undisturbed run."""

import json
import os
import signal
from collections import Counter

import pytest

from gateway import cli
from gateway.shell.settings import SECTIONS
from tests.support.processes import Command, small_run
from topology.core.checkpoint.store import CheckpointStore
from topology.running import run
from topology.scaling import REQUEST, write_request
from topology.settings import load_config

pytestmark = pytest.mark.fault

#: All components, in both directions.
MORE = {"query_bolts": 3, "tuple_bolts": 2, "distribution_bolts": 2, "aggregation_bolts": 2, "delivery_bolts": 2}
FEWER = dict.fromkeys(MORE, 1)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    given = small_run(tmp_path_factory.mktemp("scaling"), messages=300, batch=10)
    return list(map(str, [*given, "--executor", "local", "--set", "topology.seed=1"]))


@pytest.fixture(scope="module")
def whole(arguments, tmp_path_factory):
    """The report of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert cli.main([*arguments, "--out", str(out)]) == 0
    assert sum(report_of(out)["delivery"]["updates"].values()) > 200
    return report_of(out)


def report_of(out):
    return json.loads((out / "run.json").read_text())


def config_of(arguments, out, **settings):
    """The settings of these arguments."""
    words = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    given = {name.removeprefix("--").replace("-", "_"): value for name, value in words.items()}
    place, _, value = given.pop("set").partition("=")
    given[place.partition(".")[2]] = value
    return load_config(given | {"out": out, "subscriptions": (given["subscriptions"],)} | settings)


#: Settings of components whose tasks have state, and these components.
SAVED = {"query_bolts": "query", "tuple_bolts": "tuples", "distribution_bolts": "distribution"}
SAVED |= {"delivery_bolts": "delivery"}


@pytest.fixture
def scaled_at(monkeypatch, tmp_path):
    """A function that has other numbers requested, as `skyray scale` does, at the commits of these checkpoints.

    It returns the requests; `scale.tasks` has, of each commit, how many tasks of each component have saved.
    """
    real, commits = CheckpointStore.commit, []

    def scale(wanted):
        requests = []

        def commit(store, manifest):
            commits.append(Counter(file.component for file in manifest.files))
            if len(commits) in wanted:
                requests.append(write_request(tmp_path / "out", wanted[len(commits)]))
            return real(store, manifest)

        monkeypatch.setattr(CheckpointStore, "commit", commit)
        return requests

    scale.tasks = commits
    return scale


@pytest.mark.parametrize("router", [pytest.param("hashing", marks=pytest.mark.long), "location"])
def test_run_scaled_twice_in_mid_stream_has_the_updates_of_an_undisturbed_one(
    arguments, whole, tmp_path, scaled_at, router
):
    out = tmp_path / "out"
    requests = scaled_at({6: MORE, 12: FEWER})
    report = run(config_of(arguments, out, router=router, checkpoint_every=0.0001))
    assert len(requests) == 2 and report["scaled"] == {"request": requests[-1], "refused": None}
    assert (report["state"], report["digest"]) == ("finished", whole["digest"])
    counts = [{name: tasks[component] for name, component in SAVED.items()} for tasks in scaled_at.tasks]
    changes = [count for count, before in zip(counts, [None, *counts], strict=False) if count != before]
    assert changes == [{name: numbers[name] for name in SAVED} for numbers in (FEWER, MORE, FEWER)]
    assert counts[11] == changes[1], "the second request comes while there are more"
    assert {name: report["settings"][name] for name in MORE} == FEWER
    assert report["incarnation"] >= 2 and not (out / REQUEST).exists()
    assert cli.main(["verify", str(out), "--all"]) == 0


def test_run_asked_for_what_cannot_be_continues_as_it_was(arguments, whole, tmp_path, scaled_at):
    out = tmp_path / "out"
    scaled_at({3: {"query_bolts": 0}})
    report = run(config_of(arguments, out, checkpoint_every=0.0001))
    assert report["digest"] == whole["digest"] and report["settings"]["query_bolts"] == 1
    assert "--query-bolts 0" in report["scaled"]["refused"]


def test_command_scales_a_running_run_and_one_that_was_killed(arguments, whole, tmp_path, capsys):
    out = tmp_path / "out"
    with Command([*arguments, "--out", out, "--set", "input.rate=100", "--checkpoint-every", 0.2]) as running:
        running.await_(lambda: any((out / "checkpoints").glob("epoch-*.json")))
        assert cli.main(["scale", str(out), "--query-bolts", "3", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["settings"] == {"query_bolts": 3} and report_of(out)["settings"]["query_bolts"] == 3
        assert running.process.poll() is None, "it runs in the same process"
        os.kill(running.process.pid, signal.SIGKILL)
        running.finish()
    assert cli.main(["scale", str(out), "--query-bolts", "2", "--tuple-bolts", "3"]) == 0
    report = report_of(out)
    assert (report["state"], report["digest"]) == ("finished", whole["digest"])
    assert (report["settings"]["query_bolts"], report["settings"]["tuple_bolts"]) == (2, 3)
    capsys.readouterr()
    assert cli.main(["scale", str(out), "--query-bolts", "3"]) == 2
    assert "has finished; there is nothing to scale" in capsys.readouterr().err


def test_command_refuses_what_cannot_be_scaled(arguments, tmp_path, capsys):
    for state, more, said in [
        ({"settings": {"batch": "10"}, "live": {}}, [], "give a number of tasks, such as --query-bolts 8"),
        ({"settings": {"batch": "10"}, "live": {"x": 1}}, ["--query-bolts", "2"], "is a live stream"),
    ]:
        (tmp_path / "run.json").write_text(json.dumps(state))
        assert cli.main(["scale", str(tmp_path), *more]) == 2
        assert said in capsys.readouterr().err
    assert cli.main(["scale", str(tmp_path / "none"), "--query-bolts", "2"]) == 4
    assert set(MORE) <= set(SECTIONS["topology"])


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_run_on_ray_is_scaled_with_what_it_reserves(arguments, tmp_path, scaled_at):
    single = run(config_of(arguments, tmp_path / "single", batch="1", checkpoint_every=0))
    requests = scaled_at({1: {"query_bolts": 3}})
    given = {"executor": "ray", "seed": None, "router": "location", "batch": "1", "credits": 1}
    report = run(config_of(arguments, tmp_path / "out", query_cpus=0.5, checkpoint_every=0.02, **given))
    assert report["scaled"] == {"request": requests[0], "refused": None}
    assert (report["digest"], report["settings"]["query_bolts"]) == (single["digest"], 3)
