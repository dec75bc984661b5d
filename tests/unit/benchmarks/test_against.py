"""Timing two checkouts against each other: the same updates are seen as the same, others are not."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import matching
from benchmarks import cases, command
from benchmarks.against import __main__ as against
from benchmarks.against.cases import PLANS, write_case
from matching.errors import ConfigError
from matching.model import ENTER, LEAVE, MATCH, UpdateBatch

MATCHING = Path(str(matching.__file__)).parent
DRIVER = runpy.run_path(str(against._DRIVER))
ADAPTER = runpy.run_path(str(against._DRIVER.with_name("rooms.py")))

#: A checkout whose `matching` is this one's but for `alone`, which loses an update of every batch.
INIT = "__path__.append({path!r})\nexec(open({path!r} + '/__init__.py').read())\n"
ALONE = """
import importlib.util

spec = importlib.util.spec_from_file_location("matching.whole_alone", {path!r} + "/alone.py")
whole = importlib.util.module_from_spec(spec)
spec.loader.exec_module(whole)


class Alone(whole.Alone):
    def process(self, *args):
        step = super().process(*args)
        return step._replace(updates=type(step.updates)(*(column[{lost}:] for column in step.updates)))
"""


@pytest.fixture(autouse=True)
def short_history(monkeypatch):
    monkeypatch.setattr(cases, "_HISTORY", 2_000)


def checkout(folder, lost=0):
    """A checkout that loses so many updates a batch."""
    (folder / "matching").mkdir(parents=True)
    (folder / "matching" / "__init__.py").write_text(INIT.format(path=str(MATCHING)))
    (folder / "matching" / "alone.py").write_text(ALONE.format(path=str(MATCHING), lost=lost))
    return folder


@pytest.mark.parametrize("lost", [0, 1])
def test_checkouts_that_tell_different_updates_are_told_apart(lost, tmp_path, monkeypatch, capfd):
    this, other = checkout(tmp_path / "this"), checkout(tmp_path / "other", lost)
    monkeypatch.setattr(against, "ROOT", this)
    given = ["--case", "boolean-1M", "--pairs", "2", "--scale", "0.002"]
    monkeypatch.setattr(sys, "argv", ["against.py", str(other), *given])
    assert command.main(against.bench) == lost, "the exit code"
    out, told = capfd.readouterr()
    kept = json.loads(out)
    report = kept["cases"]["boolean-1M"]
    assert kept["exact"] is (lost == 0) and kept["made_by"]["cores"] > 0 and report["case"]["subscriptions"] == 2_000
    assert report["same_updates"] is (lost == 0)
    assert report["different"] == ([] if lost == 0 else [0, 1, 2])
    assert min(report["updates"]) > 100 and len(report["ratio"]["pairs"]) == len(report["scatter"]["pairs"]) == 2
    assert all(second > 0 for seconds in report["seconds"].values() for second in seconds)
    assert "pair 2 of 2" in told


def test_checkout_that_is_not_what_was_imported_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "case").mkdir()
    write_case(tmp_path / "case", "boolean-1M", 1, 0.001)
    process = against.Process(checkout(tmp_path / "one"), tmp_path / "case")
    process.checkout = tmp_path / "empty"
    try:
        with pytest.raises(ConfigError, match="was imported"):
            process.ready()
    finally:
        process.close()


def test_driver_that_dies_is_an_error_that_names_the_checkout(tmp_path):
    (tmp_path / "matching").mkdir()
    (tmp_path / "matching" / "alone.py").write_text("")
    process = against.Process(tmp_path, tmp_path)
    try:
        with pytest.raises(ConfigError, match=str(tmp_path)):
            process.ready()
    finally:
        process.close()


@pytest.mark.parametrize("name", [name for name, plan in PLANS.items() if not plan.topology])
def test_side_tells_the_same_whenever_it_is_asked(name, tmp_path):
    settings = write_case(tmp_path, name, 3, 0.002)
    first, again = (DRIVER["Side"](tmp_path, ADAPTER) for _ in range(2))
    turns = [first.turn(number) for number in range(3)]
    assert [turn["digest"] for turn in turns] == [again.turn(number)["digest"] for number in range(3)]
    assert min(turn["updates"] for turn in turns) > 0 and min(turn["seconds"] for turn in turns) > 0
    if settings["window"]:
        assert len({turn["digest"] for turn in turns}) == 3, "the stream goes on"


def test_skyline_case_has_messages_that_end_and_refills(tmp_path):
    write_case(tmp_path, "skyline-real-window", 2, 0.01)
    assert np.count_nonzero(np.load(tmp_path / "ends.npy") >= 0) > 20
    rooms = []

    class Watched(ADAPTER["Alone"]):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            rooms.append(self.room)

    opener = ADAPTER["open_room"]
    opener.__globals__["Alone"], whole = Watched, opener.__globals__["Alone"]
    try:
        side = DRIVER["Side"](tmp_path, ADAPTER)
    finally:
        opener.__globals__["Alone"] = whole
    asked = rooms[0].report()["refills"]
    assert asked == len(side.table), "all came by refills"
    side.turn(0)
    assert rooms[0].report()["refills"] > asked


def test_digest_depends_on_every_column_and_on_no_order():
    rng = np.random.default_rng(3)
    count = 50
    as_of, number, seq = rng.integers(0, 9, (3, count))
    updates = UpdateBatch(as_of, number, seq, rng.choice([ENTER, LEAVE], count).astype(np.int8), rng.random(count))
    digest = DRIVER["digest_of"]
    order = rng.permutation(count)
    assert digest(updates) == digest(UpdateBatch(*(column[order] for column in updates)))
    seen = {digest(updates)}
    for place, column in enumerate(updates):
        other = [each.copy() for each in updates]
        other[place][7] = -1.5 if column.dtype == np.float64 else MATCH if column.dtype == np.int8 else 99
        seen.add(digest(UpdateBatch(*other)))
    swapped = [each.copy() for each in updates]
    swapped[1], swapped[2] = updates.seq, updates.number
    seen.add(digest(UpdateBatch(*swapped)))
    assert len(seen) == 7
    unscored = updates._asdict() | {"score": np.full(count, np.nan)}
    assert digest(UpdateBatch(**unscored)) == digest(UpdateBatch(**unscored))
