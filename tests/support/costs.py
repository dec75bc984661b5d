"""What each test costs: processor seconds of its session and of all processes below it, Ray's included.

A plugin of pytest and the way to `tests/slow.txt`: the tests that `make test` leaves to CI, those among them that CI
leaves to `make test-long`:

    python -m pytest -p tests.support.costs --costs costs.jsonl -m "not wide and not long and not cluster"
    python -m tests.support.costs costs.jsonl > tests/slow.txt

Other work on the machine is not counted, nor a process from when its parent has ended on. Measure with the
kernels of a fresh checkout: those that `python -m topology.warmup` compiles into an empty SKYRAY_KERNEL_CACHE. Where
opponents are cached, too, a test that compiles one seems cheap. What the tests of a module share is counted for the
first of them: after some have become slow, measure the others again and give both files.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLOW = ROOT / "tests" / "slow.txt"
#: Processor seconds from which a test is left to CI.
SLOW_S = 0.1
#: Processor seconds from which a test is too long for CI, too: one in thirty is, and they took half of its time.
LONG_S = 2.0
#: What CI runs although it takes longer: of what `ALWAYS` lacks.
IN_CI = (
    "tests/browser/test_map.py::test_map_of_a_stream_of_one_region_begins_there",
    "tests/browser/test_page.py::test_page_a_place_is_drawn_and_a_message_of_another_client_lights_up[circle]",
    "tests/browser/test_page.py::test_page_by_keyboard_alone_a_subscription_is_made_and_its_update_opened",
    "tests/end_to_end/test_backfill.py",
    "tests/end_to_end/test_backup.py",
    "tests/end_to_end/test_client.py",
    "tests/end_to_end/test_deploy_node.py",
    "tests/end_to_end/test_doors.py::test_doors_",
    "tests/end_to_end/test_etl.py",
    "tests/end_to_end/test_objects.py::test_listing_that_is_edited_and_deleted",
    "tests/end_to_end/test_retention.py",
    "tests/fault/test_apache_kafka.py::test_process_and_broker_killed_within_transactions_neither_lose_nor_repeat[50000-1]",
    "tests/fault/test_faults_ray.py::test_killed_actors_are_started_anew_and_every_update_is_told_once",
    "tests/fault/test_going_on.py",
    "tests/fault/test_sink_kills.py::test_server_and_database_killed_in_turn_neither_lose_nor_repeat[local-1500-2-100]",
    "tests/fault/test_source_kills.py",
    "tests/property/test_skyline_windows.py",
    "tests/unit/benchmarks/test_peers.py",
    "tests/unit/gateway/test_run_metrics.py",
    "tests/unit/serve/test_asking.py::test_results_of_a_stream_that_runs_are_those_that_it_leaves",
    "tests/unit/topk/test_skyband.py",
    "tests/unit/topology/test_live.py",
)
#: What `make test` runs whatever it costs: of each guarantee and each large component one proof by the thing itself.
ALWAYS = (
    "tests/end_to_end/test_cli_way.py",
    "tests/end_to_end/test_etl.py::test_etl_all_formats_agree_with_plain_python[False]",
    "tests/end_to_end/test_etl.py::test_etl_malformed_lines_are_rejected_with_reasons_and_good_rows_kept",
    "tests/end_to_end/test_etl.py::test_etl_same_input_other_place_and_partitioning_gives_the_same_bytes",
    "tests/end_to_end/test_ray_corners.py",
    "tests/end_to_end/test_sinks.py::test_run_delivers_at_its_end_and_again_what_is_missing",
    "tests/end_to_end/test_topology_exact.py::test_topology_random_configurations_equal_oracle",
    "tests/fault/test_serve_kills.py",
    "tests/fault/test_simulation.py::test_death_before_any_operation_leaves_the_old_state_or_the_new_one",
    "tests/property/test_boolean_engines.py::TestLFilterMachine",
    "tests/property/test_decay_sphere.py::test_decay_on_the_sphere_over_random_worlds_equals_oracle[ties-keyword_blocks]",
    "tests/property/test_knn_engines.py::test_knn_engines_over_random_worlds_equal_oracle_and_are_sound[few-influence_grid]",
    "tests/property/test_naive_definitions.py",
    "tests/property/test_skyline_room.py::test_skyline_room_over_random_worlds_equals_oracle[count-eager_star]",
    "tests/property/test_skyline_room.py::test_skyline_room_over_random_worlds_equals_oracle[objects-eager_star]",
    "tests/property/test_topk_room.py::test_topk_room_over_random_worlds_equals_oracle[count-skype]",
    "tests/property/test_topk_room.py::test_topk_room_over_random_worlds_equals_oracle[ties-skype]",
    "tests/unit/bolts/test_delivery_digest.py::test_delivery_digest_is_the_same_in_every_release_and_however_cut",
    "tests/unit/gateway/test_verify.py::test_verify_whole_run_is_exact_and_not_vacuous",
    "tests/unit/topology/test_live.py::test_live_stream_is_exact_and_a_run_over_what_it_logged_tells_the_same",
    "tests/unit/topology/test_live.py::test_live_stream_killed_before_a_checkpoint_named_its_parts_loses_none_of_them[2-3]",
    "tests/unit/topology/test_live.py::test_live_stream_that_was_cut_off_tells_all_the_same[0.0]",
)
_HEAD = (
    "# Tests of over a tenth of a second of a core, with costs; `make test` leaves them to CI, and CI those of 2 s.\n"
    "# Made by `python -m tests.support.costs`; a line is a test, or one row of it.\n"
)


_METER = pytest.StashKey["Meter"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the costs go."""
    parser.addoption("--costs", metavar="FILE", type=Path, help="write what each test costs, as JSON lines")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure."""
    if config.getoption("--costs") is not None:
        config.stash[_METER] = Meter()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Note the processor seconds from before the fixtures of a test until after them."""
    file: Path | None = item.config.getoption("--costs")
    if file is None:
        return (yield)
    meter = item.config.stash[_METER]
    began, busy_s = time.monotonic(), meter.busy_s()
    done = yield
    cost = {"test": item.nodeid, "cpu_s": round(meter.busy_s() - busy_s, 2), "s": round(time.monotonic() - began, 2)}
    with file.open("a") as out:
        out.write(json.dumps(cost) + "\n")
    return done


class Meter:
    """Processor seconds of this process and of all below it, also of those that nobody waits for, as Ray's workers.

    A thread looks at them five times a second: of a process that has ended the last look counts.
    """

    def __init__(self) -> None:
        self._ticks: dict[tuple[str, str], int] = {}  # by process and when it started
        self._lock = threading.Lock()
        threading.Thread(target=self._look, daemon=True).start()

    def busy_s(self) -> float:
        """Processor seconds so far."""
        parents, ticks = {}, {}
        for file in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = file.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[file.parent.name], ticks[file.parent.name] = words[1], (words[19], int(words[11]) + int(words[12]))
        mine, known = {str(os.getpid())}, 0
        while known < len(mine):
            known = len(mine)
            mine |= {number for number, parent in parents.items() if parent in mine}
        with self._lock:
            self._ticks |= {(number, ticks[number][0]): ticks[number][1] for number in mine if number in ticks}
            return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def _look(self) -> None:
        while True:
            time.sleep(0.2)
            self.busy_s()


def tier_of(test: str, slow: Mapping[str, float]) -> str | None:
    """The marker of a test by what it, or one row of it, costs."""
    cpu_s = slow.get(test) or slow.get(test.partition("[")[0]) or 0.0
    if cpu_s < LONG_S or test.startswith(IN_CI):
        return "slow" if cpu_s else None
    return "long"


def slow_tests() -> dict[str, float]:
    """Node ids of tests that are left to CI or to `make test-long`, with their costs; without parameters: all rows."""
    lines = [line.split(maxsplit=1) for line in SLOW.read_text().splitlines() if not line.startswith("#")]
    return {test: float(cpu_s) for cpu_s, test in lines}


def main(files: Sequence[str]) -> None:
    """Print the list, made of what sessions have measured."""
    costs: dict[str, float] = {}
    for file in files:
        for line in Path(file).read_text().splitlines():
            cost = json.loads(line)
            costs[cost["test"]] = max(cost["cpu_s"], costs.get(cost["test"], 0.0))
    slow = sorted(test for test, cpu_s in costs.items() if cpu_s >= SLOW_S and not test.startswith(ALWAYS))
    sys.stdout.write(_HEAD + "".join(f"{costs[test]:5.1f} {test}\n" for test in slow))


if __name__ == "__main__":
    main(sys.argv[1:])
