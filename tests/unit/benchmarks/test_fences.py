"""Fences over objects that move: the engine and Tile38 are held against a plain test of each fence and position."""

import json

import numpy as np
import pytest

from benchmarks import fences
from benchmarks.fences import Ours, World


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(fences, "_BATCH", 70)
    monkeypatch.setattr(fences, "_SAMPLE", 3_000)


@pytest.fixture
def heard():
    return []


def measured(heard):
    report = fences.measure(3_000, 800, 4, 3, tell=heard.append)
    assert json.loads(json.dumps(report)) == report
    return report


def test_every_enter_and_leave_of_circles_and_octagons_is_found(heard, monkeypatch):
    monkeypatch.setattr(fences, "tile38_server", lambda: None)
    report = measured(heard)
    (ours,) = report["results"]
    assert report["exact"] is ours["exact"] is True and ours["compared"] > 150
    assert ours["missing"] == ours["extra"] == {"enter": 0, "leave": 0}
    assert ours["in_order"] and report["bytes_per_object"] > 50
    assert ours["messages_per_s"] > 0 and len(ours["rounds"]) == 4 and ours["bytes_per_subscription"] > 50
    assert "go build" in report["absent"]["tile38"] and report["absent"]["tile38"] in heard


def test_an_engine_that_forgets_leaves_is_not_exact_and_says_how_many(heard, monkeypatch):
    class Forgetful(Ours):
        def turn(self, number):
            rate = super().turn(number)
            self._told = [some[some % 2 == 0] for some in self._told]
            return rate

    monkeypatch.setattr(fences, "tile38_server", lambda: None)
    monkeypatch.setattr(fences, "Ours", Forgetful)
    report = measured(heard)
    (ours,) = report["results"]
    assert report["exact"] is ours["exact"] is False
    assert ours["missing"]["leave"] > 20 and ours["missing"]["enter"] == 0


def test_world_has_both_shapes_and_objects_that_move():
    world = World.draw(500, 40, 3, 1)
    assert 100 < world.circle.sum() < 400 and world.places.shape == (2, 3, 40)
    assert set(np.bincount(world.asks, minlength=3) > 80) == {True}
    moved = np.abs(np.diff(world.places, axis=1))
    assert moved.min() > 0 and moved.max() < 0.021
    again = World.draw(500, 40, 3, 1)
    assert all(np.array_equal(one, other) for one, other in zip(world, again, strict=True))


@pytest.mark.tile38
def test_tile38_tells_the_same_enters(heard):
    ours, theirs = measured(heard)["results"]
    assert [ours["engine"], theirs["engine"]] == ["boolean", "tile38"] and ours["exact"]
    assert theirs["extra"] == {"enter": 0, "leave": 0} and theirs["missing"]["enter"] == 0
    assert theirs["events"] > 150 and theirs["messages_per_s"] > 0 and theirs["build_s"] > 0
