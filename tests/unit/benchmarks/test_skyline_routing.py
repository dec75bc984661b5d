"""Signatures of skylines (figure `routing`) and of boolean: measured, checked, drawn; one that loses is told."""

import itertools
import json

import numpy as np
import pytest

from benchmarks import signatures
from benchmarks.figures import skyline_routing
from benchmarks.run import bench
from distribution.signatures import claims as claims_module
from distribution.signatures import signature as signature_module
from matching.boolean.engines.cell_term import CellTerm
from matching.skyline.subscriptions import SkylineSubscriptions


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(skyline_routing, "BOLTS", (2, 4))
    monkeypatch.setattr(skyline_routing, "_BOLTS", 4)
    monkeypatch.setattr(skyline_routing, "_SOURCE", 3_000)
    monkeypatch.setattr(skyline_routing, "_SHARES", (0.5, 1.0))
    monkeypatch.setattr(signatures, "_CHECKED", (60, 200))


def routing(tmp_path, subscriptions=3_000, messages=400, **given):
    return bench("skyline", subscriptions, figure="routing", messages=messages, seed=1, out=str(tmp_path), **given)


def test_skyline_routing_is_measured_checked_and_drawn(tmp_path):
    told = []
    report = routing(tmp_path, on_progress=told.append)
    assert report["exact"] is True and told
    assert json.loads((tmp_path / "skyline-routing.json").read_text())["rows"] == report["rows"]
    assert (tmp_path / "skyline-routing.png").read_bytes().startswith(b"\x89PNG")
    assert len(report["rows"]) == 1 + 2
    saved = []
    for row, regions in itertools.product(report["rows"], skyline_routing.REGIONS):
        modes = {name: mode for name, mode in row["engines"].items() if name.startswith(f"{regions}, +")}
        best = row["engines"][f"{regions}, at best"]["let_through_per_message"]
        sent = [mode["let_through_per_message"] for mode in modes.values()]
        assert 1.0 >= sent[0] >= sent[1] >= best > 0.0
        assert row["copies"][regions] >= 1.0
        for mode in modes.values():
            wasted = mode["let_through_per_message"] - best
            assert mode["false_positive_share"] == pytest.approx(wasted / (mode["let_through_per_message"] or 1.0))
            assert mode["lost_share"] == 0.0 and mode["compared"] > 0
        saved.append(sent[0] - sent[1])
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
    report = routing(tmp_path)
    assert report["exact"] is False
    assert sum(mode.get("lost_share", 0.0) for row in report["rows"] for mode in row["engines"].values()) > 0


class ForgetfulSkylines(SkylineSubscriptions):
    """Loses the first candidate of every batch."""

    def match(self, batch):
        return take_rows_but_first(super().match(batch), "slot", "row")


class ForgetfulCells(CellTerm):
    """Loses the first match of every batch."""

    def match(self, batch):
        return take_rows_but_first(super().match(batch), "number", "row")


def take_rows_but_first(found, *columns):
    return found._replace(**{name: getattr(found, name)[1:] for name in columns})


def test_skyline_routing_of_a_wrong_optimum_is_not_exact(tmp_path, monkeypatch, one_row):
    monkeypatch.setattr(signatures, "SkylineSubscriptions", ForgetfulSkylines)
    assert routing(tmp_path)["exact"] is False


def test_skyline_routing_that_has_nothing_to_compare_does_not_count(tmp_path, monkeypatch, one_row):
    monkeypatch.undo()
    monkeypatch.setattr(skyline_routing, "_SOURCE", 3_000)
    report = routing(tmp_path, 20, 5)
    assert report["exact"] is False and "only" in report["rows"][0]["engines"]["city, +spatial"]["warning"]


def test_signatures_of_boolean_lose_nothing_but_where_they_say_so():
    sizes: dict = {"subscriptions": (3_000,), "filters": (2_000,), "messages": 1_000, "tasks": 4}
    report = signatures.bench(**sizes)
    assert report["exact"] and len(report["workloads"]) == 2
    for workload in report["workloads"]:
        assert list(workload["results"]) == list(signatures.KINDS)
        lossless = [row for name, row in workload["results"].items() if not signatures.KINDS[name].loses]
        assert all(row["exact"] and row["compared"] > 0 and row["bytes"] > 0 for row in lossless)
    assert min(filled["load"] for filled in report["filters"]) > 0.9


def test_signatures_of_boolean_beside_a_wrong_optimum_are_not_exact(monkeypatch):
    monkeypatch.setattr(signatures, "KINDS", {"spatial: bitmap": signatures.SPATIAL})
    monkeypatch.setattr(signatures, "CellTerm", ForgetfulCells)
    assert not signatures.bench((3_000,), (2_000,), 1_000, 4)["exact"]
