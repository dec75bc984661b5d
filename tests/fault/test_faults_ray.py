"""Faults of processes on Ray: whatever dies or stops, the run goes on, and tells each update once.

The product as a command, five kinds of subscription, paced so that faults strike in mid-stream.
"""

import signal
from collections import Counter

import pytest

from matching.errors import TopologyError
from tests.support.faulty_runs import FaultyRun, make_work, newest_actors, ray_process, readable
from tests.support.processes import ORPHAN
from tests.support.writing_ledger import writing_ledger
from topology.core.checkpoint.barriers import Cadence
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.checkpoint.store import CheckpointStore
from topology.core.executors.local import run_local
from topology.core.executors.ray import run_ray

pytestmark = [pytest.mark.ray, pytest.mark.fault]

MESSAGES = 6_000


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return make_work(tmp_path_factory.mktemp("faults"), MESSAGES, 60)


def test_killed_actors_are_started_anew_and_every_update_is_told_once(work, tmp_path):
    """Each actor in turn, the one with the spouts and delivery too, three in all."""
    run = FaultyRun(work, tmp_path / "out")
    with run.start(
        "--set", "input.rate=400", "--set", "topology.placement=shared", "--set", "topology.delivery_bolts=2"
    ) as command:
        for victim in range(3):
            run.await_progress(command, 2)
            run.strike(command, lambda victim=victim: newest_actors(command, 3)[victim].kill())
            command.await_(lambda seen=victim: command.read()[1].count("recovered") > seen)
        run.finish(command)
    report = run.assert_exact(3)
    recoveries = report["topology"]["recoveries"]
    assert len(recoveries) == 3 and all(each["number"] > 0 for each in recoveries), recoveries
    # what was done before counts too
    assert report["topology"]["published"] == MESSAGES // 20
    assert report["routing"]["replication_ratio"] == 1.0 and report["routing"]["messages_sent_per_message"] == 2.0
    taken = report["topology"]["components"]["query"]["incoming"]
    assert taken["changes"] >= 2 * MESSAGES // 20, taken


@pytest.mark.wide
def test_stopped_actor_is_given_up_and_what_it_says_later_is_let_pass(work, tmp_path):
    run = FaultyRun(work, tmp_path / "out")
    with run.start("--set", "input.rate=400") as command:
        run.await_progress(command, 2)
        victim = newest_actors(command, 7)[3]
        run.strike(command, victim.suspend)
        command.await_(lambda: "recovered" in command.read()[1])
        if victim.is_running():
            victim.resume()
        run.finish(command)
    assert "no sign of life" in run.assert_exact(1)["topology"]["recoveries"][0]["why"]


@pytest.mark.wide
def test_killed_driver_leaves_nothing_behind_and_the_run_is_gone_on_with_by_others(work, tmp_path):
    """Other numbers of bolts and another router, and in the other executor at last."""
    run = FaultyRun(work, tmp_path / "out")
    with run.start("--set", "input.rate=800") as command:
        run.await_progress(command, 3)
        run.strike(command, command.process.kill)
        command.assert_nothing_left(5)
    assert run.report()["state"] == "running"
    readable(run.out)
    others = ("--query-bolts", 3, "--tuple-bolts", 2, "--set", "topology.delivery_bolts=3", "--router", "location")
    with run.resume(*others, "--set", "topology.placement=shared", "--set", "input.rate=800") as command:
        run.await_progress(command, 3)
        run.strike(command, command.process.kill)
        command.assert_nothing_left(5)
    with run.resume(
        "--executor", "local", "--query-bolts", 1, "--set", "topology.delivery_bolts=2", "--set", "input.rate=1e9"
    ) as command:
        run.finish(command)
    run.assert_exact(2)


#: What runs of a Ray that is the run's own, by a word of its command line, and what is said of it.
VITAL = {"raylet": ("/raylet/raylet", "the raylet of Ray"), "gcs": ("/gcs_server", "the control service of Ray")}


@pytest.mark.parametrize(
    ("what", "script"),
    [pytest.param("raylet", ORPHAN, id="raylet"), pytest.param("gcs", None, id="gcs", marks=pytest.mark.long)],
)
def test_killed_ray_is_started_anew_and_every_update_is_told_once(work, tmp_path, what, script):
    """Also where the run is a child of process 1, which Ray takes for a worker that has lost its raylet."""
    word, name = VITAL[what]
    run = FaultyRun(work, tmp_path / "out")
    with run.start("--set", "input.rate=300", script=script) as command:
        run.await_progress(command, 2)
        run.strike(command, lambda: ray_process(command, word).kill())
        run.finish(command)
        command.assert_nothing_left(5)
    recoveries = run.assert_exact(1)["topology"]["recoveries"]
    assert [each["lost"] for each in recoveries] == ["Ray died"] and name in recoveries[0]["why"], recoveries
    assert recoveries[0]["number"] > 0


# Runs wait a minute for a control service that does not answer. Deaths that are survived are in the test before this.
@pytest.mark.long
@pytest.mark.parametrize(("what", "how"), [("gcs", "no checkpoints"), ("raylet", "no restarts left")])
def test_killed_ray_of_a_run_that_cannot_go_on_is_the_cause_that_run_json_tells(work, tmp_path, what, how):
    word, name = VITAL[what]
    run = FaultyRun(work, tmp_path / "out")
    more = ("--set", "recovery.restarts=0") if how == "no restarts left" else ("--checkpoint-every", 0)
    with run.start("--set", "input.rate=100", *more) as command:
        if how == "no checkpoints":
            command.await_(lambda: any((run.out / "updates").glob("*")) or any((run.out / "updates").glob(".*")))
        else:
            run.await_progress(command, 2)
        run.strike(command, lambda: ray_process(command, word).kill())
        code, _, said = command.finish(150)
        command.assert_nothing_left(5)
    assert code == TopologyError.exit_code, said
    report = run.report()
    assert report["state"] == "failed" and name in report["error"] and name in said, (report, said)


@pytest.mark.long
def test_interrupted_run_drains_writes_its_results_and_is_gone_on_with(work, tmp_path):
    run = FaultyRun(work, tmp_path / "out")
    with run.start("--set", "input.rate=800") as command:
        run.await_progress(command, 2)
        run.strike(command, lambda: command.process.send_signal(signal.SIGINT))
        code, _, said = command.finish(60)
    assert code == 130 and "--resume" in said, said
    report = run.report()
    assert report["state"] == "interrupted" and 0 < report["limit"] < MESSAGES
    assert (run.out / "results.parquet").exists()
    with run.resume("--set", "input.rate=1e9") as command:
        run.finish(command)
    run.assert_exact(1)


@pytest.mark.long
def test_crash_loop_at_one_place_ends_the_run_naming_it(work, tmp_path):
    run = FaultyRun(work, tmp_path / "out")
    with run.start(
        "--set", "input.rate=200", "--set", "recovery.restarts=1", "--checkpoint-every", 3600, "--query-bolts", 1
    ) as command:
        for _ in range(2):
            victim = newest_actors(command, 7)[-1]
            run.strike(command, victim.kill)
            victim.wait(10)
        code, _, said = command.finish(100)
    assert code == TopologyError.exit_code, said
    assert "--restarts allows 1" in said and run.report()["state"] == "failed"


def test_run_saved_behind_every_batch_names_every_part(tmp_path):
    """Those of the last checkpoint too, which may still be written when the stream ends."""
    told = {}
    for name, execute in (("local", run_local), ("ray", run_ray)):
        out = tmp_path / name
        store = CheckpointStore(str(out / "checkpoints"))
        plan = writing_ledger(str(out), "jsonl", 40, 6, (2, 3, 1, 2), small_rows=1)
        execute(plan, checkpoints=Checkpoints(store, Cadence(batches=1), str(out)))
        parts = sorted((out / "updates").glob("part-*.jsonl"))
        told[name] = Counter(line for part in parts for line in part.read_text().splitlines())
    assert told["ray"] == told["local"] and told["local"].total() > 200
