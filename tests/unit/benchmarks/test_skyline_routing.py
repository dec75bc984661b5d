"""Figure `routing` of skyline: measured, checked, drawn; and a signature that loses a candidate is told."""

import json

import numpy as np
import pytest

from benchmarks.figures import skyline_routing
from benchmarks.run import bench
from distribution.signatures import claims as claims_module
from distribution.signatures import signature as signature_module
from matching.errors import ConfigError
from matching.skyline.subscriptions import SkylineSubscriptions


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(skyline_routing, "BOLTS", (2, 4))
    monkeypatch.setattr(skyline_routing, "_BOLTS", 4)
    monkeypatch.setattr(skyline_routing, "_SOURCE", 3_000)
    monkeypatch.setattr(skyline_routing, "_SHARES", (0.5, 1.0))
    monkeypatch.setattr(skyline_routing, "_CHECKED", (60, 200))


def test_skyline_routing_is_measured_checked_and_drawn(tmp_path):
    told = []
    report = bench("skyline", 3_000, figure="routing", messages=400, seed=1, out=str(tmp_path), on_progress=told.append)
    assert report["exact"] is True and told
    assert json.loads((tmp_path / "skyline-routing.json").read_text())["rows"] == report["rows"]
    assert (tmp_path / "skyline-routing.png").read_bytes().startswith(b"\x89PNG")
    assert len(report["rows"]) == 2 * (1 + 2)
    for row in report["rows"]:
        sent = [mode["sent_per_message"] for mode in row["modes"].values()]
        assert 1.0 == sent[0] >= sent[1] >= sent[2] >= row["optimum_per_message"]
        assert row["lost"] == 0 and row["copies_per_subscription"] >= 1.0
        for mode in row["modes"].values():
            wasted = mode["sent_per_message"] - row["optimum_per_message"]
            assert mode["false_positive_share"] == pytest.approx(wasted / (mode["sent_per_message"] or 1.0))
    saved = [
        row["modes"]["+spatial"]["sent_per_message"] - row["modes"]["+spatial+text"]["sent_per_message"]
        for row in report["rows"]
    ]
    assert max(saved) > 0.2
    assert all(
        len(line) == len(panel.get("x", report["x"])) for panel in report["panels"] for line in panel["series"].values()
    )


@pytest.fixture
def one_row(monkeypatch):
    monkeypatch.setattr(skyline_routing, "_SHARES", (1.0,))
    monkeypatch.setattr(skyline_routing, "BOLTS", (4,))


def test_skyline_routing_by_the_rarest_keyword_alone_is_not_exact(tmp_path, monkeypatch, one_row):
    for module in (claims_module, signature_module):
        monkeypatch.setattr(module, "is_loose", lambda table, traits: np.zeros(len(table), np.bool_))
    report = skyline_routing.figure(tmp_path, 3_000, 400, seed=1)
    assert report["exact"] is False and sum(row["lost"] for row in report["rows"]) > 0


def test_skyline_routing_of_a_wrong_optimum_is_not_exact(tmp_path, monkeypatch, one_row):
    right = SkylineSubscriptions.match

    def forgetful(self, batch):
        found = right(self, batch)
        return found._replace(slot=found.slot[1:], row=found.row[1:])

    monkeypatch.setattr(SkylineSubscriptions, "match", forgetful)
    assert skyline_routing.figure(tmp_path, 3_000, 400, seed=1)["exact"] is False


def test_skyline_routing_without_a_candidate_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no message is a candidate"):
        skyline_routing.figure(tmp_path, 20, 5, seed=0)
