"""The same topologies on Ray: same answers, and no way to go wrong that hangs or stays unnamed."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from matching.errors import TopologyError
from tests.support.example_topologies import (
    CachedWarmUp,
    broadcast,
    deadlocked,
    expected_totals,
    failing_warm_up,
    keyed,
    pipeline,
    warm_up_in_steps,
    word_count,
)
from topology.core.api.grouping import task_of_key
from topology.core.executors.local import run_local
from topology.core.executors.ray import run_ray
from topology.core.executors.ray_private import log_folder

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def figures(report, name, task=0):
    return report.components[name].tasks[task].figures


def assert_no_actor_is_left():
    """Every run's actors are named; poll until Ray has forgotten them all."""
    from ray.util import list_named_actors

    deadline = time.monotonic() + 300
    while True:
        left = [actor for actor in list_named_actors(all_namespaces=True) if "'skyray-" in repr(actor)]
        if not left:
            return
        assert time.monotonic() < deadline, f"still there: {left}"
        threading.Event().wait(0.05)


def test_run_ray_word_count_with_feedback_equals_local():
    told = []
    report = run_ray(word_count(batches=12, size=20), on_progress=told.append)
    alone = run_local(word_count(batches=12, size=20))
    assert figures(report, "sum")["totals"] == expected_totals(12, 20) == figures(alone, "sum")["totals"]
    assert figures(report, "sum")["finishes"] == 1
    assert figures(report, "marker")["ticks"] == list(range(12))
    assert report.published == report.acknowledged == 12 and 1 <= report.in_flight_peak <= 4
    for name, part in report.components.items():
        assert part.incoming == alone.components[name].incoming
        assert part.outgoing == alone.components[name].outgoing
        assert part.counters == alone.components[name].counters
    for task in report.components["count"].tasks:
        by_sender = defaultdict(list)
        for sender, batch in task.figures["order"]:
            by_sender[sender].append(batch)
        assert all(order == list(range(sender, 12, 2)) for sender, order in by_sender.items()) and by_sender
    assert sum(len(task.figures["answers"]) for task in report.components["split"].tasks) == 12
    assert told[-1].published == 12 and told[-1].components["sum"].queue_depth == 0
    assert told[-1].components["sum"].latency_p50_s == pytest.approx(0.001, rel=0.05)
    json.dumps(report.as_dict())


@pytest.mark.wide  # who gets a key is decided by the same code in the local run
def test_run_ray_fields_grouping_keeps_a_key_on_its_task():
    report = run_ray(keyed(batches=5, size=20))
    seen = [figures(report, "seen", task)["seen"] for task in range(3)]
    assert sum(map(len, seen)) == 100
    assert all(task_of_key(word, 3) == task for task, words in enumerate(seen) for word in words)
    assert sum(map(bool, seen)) > 1


def test_run_ray_large_batches_to_many_receivers_arrive_whole_and_read_only():
    report = run_ray(broadcast(batches=6, size=30_000, tasks=3))  # 240 kB each: shared, not copied into the calls
    sums = [figures(report, "every", task)["sums"] for task in range(3)]
    assert sums[0] == sums[1] == sums[2] == figures(report, "one")["sums"] and len(set(sums[0])) == 6
    assert figures(report, "one")["writeable"] is False


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        pytest.param("prepare", "pass:0 failed in prepare: RuntimeError: no room", marks=pytest.mark.wide),
        ("raise", "pass:0 failed in execute on stream 'words' from numbers:0: ZeroDivisionError(.|\n)*_deeper"),
        pytest.param(
            "lock", "pass:0 emitted on 'words' what cannot travel: payload.1 is a lock", marks=pytest.mark.wide
        ),
        ("unpack", "ack:0 could not take a parcel on stream 'words' from pass:0: .*no attribute 'Unknown'"),
        ("skip", "no task acknowledged batch 3 by ack:0"),
        ("close", "pass:0 failed in close: OSError: the disk is full"),
    ],
)
@pytest.mark.fault
def test_run_ray_component_in_trouble_raises_naming_it(trouble, words):
    with pytest.raises(TopologyError, match=words):
        run_ray(pipeline(trouble=trouble))
    assert_no_actor_is_left()


@pytest.mark.fault
def test_run_ray_killed_actor_ends_the_run_in_seconds_naming_it():
    began = time.monotonic()
    with pytest.raises(TopologyError, match="pass:0 died: .*worker process has died"):
        run_ray(pipeline(batches=10**6, trouble="kill", at=20))
    assert time.monotonic() - began < 20
    assert_no_actor_is_left()


@pytest.mark.fault
@pytest.mark.wide
def test_run_ray_paused_process_is_named_after_the_stall_time():
    with pytest.raises(TopologyError, match="pass:0: no sign of life for 2 s"):
        run_ray(pipeline(batches=10**6, trouble="pause", at=20), stall_s=2.0)
    assert_no_actor_is_left()


def test_run_ray_task_within_a_long_execute_is_not_dead():
    report = run_ray(pipeline(batches=10, trouble="long", at=5), stall_s=1.0)
    assert report.components["pass"].busy_share * report.elapsed_s > 3.0, "nothing took long: nothing was tested"


def test_run_ray_without_acknowledgements_names_who_waits():
    with pytest.raises(TopologyError, match="'stuck' is deadlocked(.|\n)*numbers:0 has no credit left.* by silent:0"):
        run_ray(deadlocked())
    assert_no_actor_is_left()


@pytest.mark.wide
def test_run_ray_slow_bolt_keeps_the_queue_within_the_credits():
    told = []
    report = run_ray(pipeline(batches=120, credits=3, work_loops=300), on_progress=told.append, poll_s=0.05)
    assert report.in_flight_peak == 3
    depths = [snapshot.components["pass"].queue_depth for snapshot in told]
    assert max(depths) <= 30, "3 and what moved between two answers; without credits it is over 100"
    assert report.components["pass"].queue_depth_peak == max(depths)
    assert max(snapshot.in_flight for snapshot in told) == 3
    assert report.blocked_s > 0.3 * report.elapsed_s, "the bolt was not the slow one: nothing was tested"


def test_run_ray_stop_ends_an_endless_stream_and_drains():
    told = []
    report = run_ray(pipeline(batches=10**9), on_progress=told.append, stop=lambda: len(told) > 3, poll_s=0.05)
    assert 0 < report.published == report.acknowledged < 10**9
    assert figures(report, "ack")["order"] == list(range(report.published))


def test_run_ray_log_of_tasks_reaches_stderr_with_their_names(capsys):
    run_ray(pipeline(batches=1))
    lines = [line for line in capsys.readouterr().err.splitlines() if "prepared" in line]
    assert len(lines) == 1 and "pass:0" in lines[0]


def test_run_ray_log_of_tasks_is_in_the_log_folder_of_their_node():
    folder = Path(str(log_folder()))
    before = set(folder.glob("skyray-*.log"))
    run_ray(pipeline(batches=1))
    with pytest.raises(TopologyError):
        run_ray(pipeline(trouble="raise"))
    files = set(folder.glob("skyray-*.log")) - before
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {"numbers:0", "pass:0", "ack:0"} <= {row["task"] for row in rows if row["event"] == "opened"}
    assert [row["task"] for row in rows if row["event"] == "prepared"] == ["pass:0"] * 2
    (failed,) = [row for row in rows if row["event"] == "failed"]
    assert failed["task"] == "pass:0" and "ZeroDivisionError" in failed["summary"] and "_deeper" in failed["trace"]
    assert all("pass_0" in file.name for file in files if "ZeroDivisionError" in file.read_text())


def test_run_ray_interrupt_leaves_nothing_behind():
    def interrupt(snapshot):
        if snapshot.published > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_ray(pipeline(batches=10**9), on_progress=interrupt)
    assert_no_actor_is_left()


@pytest.mark.long
def test_run_ray_two_runs_at_once_do_not_clash():
    reports = {}

    def run(size):
        reports[size] = run_ray(pipeline(batches=6, size=size))

    threads = [threading.Thread(target=run, args=(size,)) for size in (10, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    for size in (10, 30):
        alone = run_local(pipeline(batches=6, size=size))
        assert figures(reports[size], "ack")["sums"] == figures(alone, "ack")["sums"]


def test_run_ray_failing_warm_up_is_told():
    plan = dataclasses.replace(pipeline(), warm_up=failing_warm_up)
    with pytest.raises(TopologyError, match="warm-up on .* failed(.|\n)*no compiler"):
        run_ray(plan)
    assert_no_actor_is_left()


def test_run_ray_warms_up_no_machine_that_has_all_in_its_cache():
    report = run_ray(dataclasses.replace(pipeline(), warm_up=CachedWarmUp()))
    assert figures(report, "ack")["order"]


def test_run_ray_tells_how_far_the_warm_up_is():
    told = []

    def on_progress(_snapshot): ...

    on_progress.warmed = told.append
    run_ray(dataclasses.replace(pipeline(), warm_up=warm_up_in_steps), on_progress=on_progress)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_run_ray_class_in_the_main_script_is_refused():
    plan = pipeline()
    parts = [dataclasses.replace(part, class_name="__main__." + part.name) for part in plan.components]
    with pytest.raises(TopologyError, match="spout 'numbers': its class .* main script"):
        run_ray(dataclasses.replace(plan, components=tuple(parts)))


_ALONE = """
import ray
from tests.support.example_topologies import pipeline
from topology.core.executors.ray import run_ray
report = run_ray(pipeline(4))
assert report.components["ack"].tasks[0].figures["order"] == [0, 1, 2, 3]
assert not ray.is_initialized(), "what it started it must stop"
"""


@pytest.mark.long
def test_run_ray_starts_and_stops_ray_by_itself():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", _ALONE], cwd=root, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
