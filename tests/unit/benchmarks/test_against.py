"""Timing two checkouts against each other: the same updates are seen as the same, others are not."""

import json
import shutil
import sys

import pytest

from benchmarks import against
from benchmarks.cases import make_case
from benchmarks.lasting import bench_of
from gateway.shell.packages import PACKAGES
from matching.errors import ConfigError
from matching.kinds import KINDS

#: One engine takes its time, and drops an update of every batch but those that are checked.
BROKEN = """

from time import sleep as _sleep


class LocalEngine(LocalEngine):
    def process(self, boundary, *args):
        step, lost = super().process(boundary, *args), 0
        if self.operator.engine.name == "inverted_list":
            _sleep(0.02)
            lost = int(boundary.number > 6 and len(step.updates) > 0)
        return step._replace(updates=type(step.updates)(*(column[lost:] for column in step.updates)))
"""
COMMAND = ["boolean", "--subscriptions", "20000", "--messages", "3000", "--rounds", "3"]


def broken_copy(folder):
    """Of this checkout."""
    for package in (*PACKAGES, "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(against.ROOT / package, folder / package, ignore=ignored)
    shutil.copy(against.ROOT / "pyproject.toml", folder)
    with (folder / "matching" / "local_engine.py").open("a") as file:
        file.write(BROKEN)
    return folder


@pytest.mark.long
def test_checkouts_that_tell_different_updates_are_told_apart(tmp_path, monkeypatch, capfd):
    other, engines = broken_copy(tmp_path / "other"), ["cell_term", "inverted_list"]
    given = [str(other), "--pairs", "2", *COMMAND, "--engines", ",".join(engines)]
    monkeypatch.setattr(sys, "argv", ["against.py", *given])
    assert against.main() == 1, "the exit code"
    out, told = capfd.readouterr()
    kept = json.loads(out)
    assert kept["exact"] is False and kept["made_by"]["cores"] > 0 and list(kept["engines"]) == engines
    whole, broken = kept["engines"].values()
    assert whole["exact"] is broken["exact"] is True, "each was right in what it checked by itself"
    assert whole["same_updates"] is True and broken["same_updates"] is False
    assert max(broken["ratio"]["pairs"]) < 1.0, "who sleeps takes longer"
    for report in (whole, broken):
        assert len(report["ratio"]["pairs"]) == 2 and len(report["scatter"]) == 1
        assert all(us > 0 for side in report["us_per_message"].values() for us in side)
    this = str(against.ROOT)
    turns = [line.partition(": ")[2] for line in told.splitlines() if line.startswith("pair")]
    assert turns == [this, str(other), str(other), this]


@pytest.mark.parametrize("exact", [True, False])
def test_exit_code_says_whether_all_runs_were_exact(exact, tmp_path, monkeypatch, capsys):
    asked = []
    row = {**ROW, "exact": exact}
    monkeypatch.setattr(against, "run", lambda *given: asked.append(given) or {"cell_term": row})
    monkeypatch.setattr(sys, "argv", ["against.py", "--pairs", "3", str(tmp_path), *COMMAND])
    assert against.main() == (0 if exact else 1)
    assert json.loads(capsys.readouterr().out)["exact"] is exact
    assert asked == [(each, COMMAND) for pair in (1, -1, 1) for each in (against.ROOT, tmp_path)[::pair]]


def test_one_checkout_may_run_something_else(monkeypatch, capsys):
    asked = []

    def run(checkout, words):
        asked.append(words)
        return {"cell_term": ROW | {"rounds": [ROUND | {"updates_digest": len(words)}]}}

    monkeypatch.setattr(against, "run", run)
    given = ["--pairs", "2", str(against.ROOT), *COMMAND]
    for here, code in ((["--here", "--distance sphere"], 0), ([], 0)):
        monkeypatch.setattr(sys, "argv", ["against.py", *here, *given])
        assert against.main() == code
    different = [*COMMAND, "--distance", "sphere"]
    assert asked == [different, COMMAND, COMMAND, different, *[COMMAND] * 4]
    report = json.loads(capsys.readouterr().out.partition("}\n{")[0] + "}")
    assert report["engines"]["cell_term"]["same_updates"] is False


ROUND = {"updates_per_message": 2.5, "messages_timed": 100, "updates_digest": 7}
ROW = {
    "us_per_message": 4.0,
    "exact": True,
    "compared": 3000,
    "compared_subscriptions": 600,
    "matched_per_message": 2.0,
    "rounds": [ROUND, ROUND],
}
#: A round that was cut off.
SHORT = {"updates_per_message": 2.6, "messages_timed": 90, "updates_digest": 6}


def compared(**changes):
    """Two runs of each checkout, the last one with changes."""
    last = {"cell_term": ROW | changes}
    return against.compare([{"cell_term": ROW}] * 2, [{"cell_term": ROW}, last])["cell_term"]


@pytest.mark.parametrize(
    ("changes", "exact", "same", "rounds"),
    [
        ({}, True, True, 2),
        ({"exact": False}, False, True, 2),
        ({"matched_per_message": 2.4}, True, True, 2),
        ({"rounds": [ROUND, ROUND | {"updates_per_message": 2.4}]}, True, False, 2),
        ({"rounds": [ROUND, ROUND | {"updates_digest": 8}]}, True, False, 2),
        ({"rounds": [ROUND, SHORT]}, True, True, 1),
        ({"rounds": [ROUND | {"updates_digest": 8}, SHORT]}, True, False, 1),
        ({"rounds": [SHORT, ROUND | {"updates_digest": 8}]}, True, False, 0),
    ],
)
def test_runs_told_the_same_if_all_rounds_up_to_one_that_was_cut_off_did(changes, exact, same, rounds):
    report = compared(**changes)
    assert (report["exact"], report["same_updates"], report["rounds_compared"]) == (exact, same, rounds)


def test_decay_whose_rounds_were_cut_off_at_other_messages_has_the_same_updates():
    """A message causes fewer updates the more came before it, so that averages over some of them differ."""
    bench = bench_of(make_case(KINDS.named("decay"), 1_000, 900, rounds=3, batch=100, history=2_000), 3)
    rows = []
    for most_s in ((60.0, 60.0, 60.0), (60.0, 60.0, 0.0)):
        running = bench.build()
        rows.append({"rounds": [bench.time(running, turn, most, changes=False) for turn, most in enumerate(most_s)]})
    whole, cut = ([each["messages_timed"] for each in row["rounds"]] for row in rows)
    assert cut[:2] == whole[:2] and cut[2] < whole[2]
    assert rows[0]["rounds"][2]["updates_per_message"] != rows[1]["rounds"][2]["updates_per_message"]
    report = against.compare(*([{"decay": ROW | row}] for row in rows))["decay"]
    assert report["same_updates"] is True and report["rounds_compared"] == 2


def test_ratio_and_scatter_are_of_what_a_message_takes():
    report = compared(us_per_message=8.0)
    assert report["ratio"] == {"median": 0.75, "pairs": [1.0, 0.5]} and report["scatter"] == [2.0]


def test_report_counts_what_the_weakest_run_compared():
    assert compared(compared=1200)["compared"] == 1200


def test_engines_that_one_checkout_lacks_are_not_compared():
    assert list(against.compare([{"new": ROW, "old": ROW}] * 2, [{"old": ROW}] * 2)) == ["old"]


def test_checkout_that_is_not_what_was_imported_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="was imported"):
        against.run(tmp_path, COMMAND)


def test_checkout_whose_bench_fails_is_an_error_that_names_it(tmp_path):
    (tmp_path / "matching").mkdir()
    (tmp_path / "matching" / "__init__.py").write_text("")
    with pytest.raises(ConfigError, match=str(tmp_path)):
        against.run(tmp_path, COMMAND)
