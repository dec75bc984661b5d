"""Signatures of both kinds with regions beside the optimum: nothing is lost but where it is said; a loss is told."""

import json
import sys

import numpy as np
import pytest

from benchmarks import command, signatures
from distribution.signatures import claims as claims_module
from distribution.signatures import signature as signature_module
from matching.boolean.engines.cell_term import CellTerm


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(signatures, "_SOURCE", 3_000)
    monkeypatch.setattr(signatures, "_CHECKED", (60, 200))


def measured(kind, subscriptions=3_000, messages=400, tasks=(2, 4), filters=()):
    told = []
    report = signatures.bench(kind, (subscriptions,), filters, messages, tasks, seed=1, tell=told.append)
    assert told
    return report


@pytest.mark.parametrize("kind", ["boolean", "skyline"])
def test_signatures_lose_nothing_but_where_they_say_so(kind):
    report = measured(kind, messages=1_000)
    rows = report["workloads"]
    assert report["exact"] is True and json.loads(json.dumps(report)) == report
    assert [(row["regions"], row["query_bolts"]) for row in rows] == [
        (regions, tasks) for regions in signatures.WORKLOADS[kind] for tasks in (2, 4)
    ]
    saved = []
    for row in rows:
        assert list(row["results"]) == list(signatures.KINDS)
        lossless = {name: each for name, each in row["results"].items() if not signatures.KINDS[name].loses}
        best, sent = row["optimum_per_message"], row["results"]["spatial: bitmap"]["let_through_per_message"]
        assert row["held"] >= row["subscriptions"] and 1.0 >= sent >= best > 0.0
        for each in lossless.values():
            assert each["exact"] and each["lost_share"] == 0.0 and each["compared"] > 0 and each["bytes"] > 0
            wasted = each["let_through_per_message"] - best
            assert each["false_positive_share"] == pytest.approx(wasted / each["let_through_per_message"])
        with_text = row["results"]["text: cuckoo, 6 levels"]["let_through_per_message"]
        assert sent >= with_text >= best
        saved.append(sent - with_text)
        assert row["results"]["text: min-wise as printed, 32 merged"]["lost_share"] > 0.0
    assert max(saved) > 0.2


def test_signatures_are_measured_by_the_command(monkeypatch, capsys):
    given = ["--kind", "skyline", "--subscriptions", "500", "--filters", "", "--messages", "200", "--tasks", "2"]
    monkeypatch.setattr(sys, "argv", ["signatures.py", *given])
    assert command.main(signatures.bench) == 0
    assert len(json.loads(capsys.readouterr().out)["workloads"]) == 2


def test_filter_is_full_and_errs_as_the_formula_says():
    (fine, coarse) = (signatures.filter_speed(20_000, rate) for rate in (0.001, 0.01))
    for figures in (fine, coarse):
        assert figures["load"] > 0.9 and figures["false_positives"] == pytest.approx(figures["formula"], rel=0.2)
        assert min(figures[f"{step}_per_s"] for step in ("insert", "contains", "delete")) > 0
    assert fine["bits_per_item"] > coarse["bits_per_item"] > 0


@pytest.fixture
def one_sort(monkeypatch):
    monkeypatch.setattr(signatures, "KINDS", {name: signatures.KINDS[name] for name in ("text: cuckoo, 6 levels",)})


def test_signatures_by_the_rarest_keyword_alone_are_not_exact(monkeypatch, one_sort):
    for module in (claims_module, signature_module):
        monkeypatch.setattr(module, "is_loose", lambda table, traits: np.zeros(len(table), np.bool_))
    report = measured("skyline")
    assert report["exact"] is False
    assert sum(each["lost_share"] for row in report["workloads"] for each in row["results"].values()) > 0


class ForgetfulCells(CellTerm):
    """Loses the first match of every batch."""

    def match(self, batch):
        found = super().match(batch)
        return found._replace(number=found.number[1:], row=found.row[1:])


@pytest.mark.parametrize("kind", ["boolean", "skyline"])
def test_signatures_beside_a_wrong_optimum_are_not_exact(kind, monkeypatch, one_sort):
    monkeypatch.setattr(signatures, "_CHECKED", (60, 3_000))
    assert measured(kind)["exact"] is True
    monkeypatch.setattr(signatures, "CellTerm", ForgetfulCells)
    assert measured(kind)["exact"] is False


def test_signatures_that_have_nothing_to_compare_do_not_count(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(signatures, "_SOURCE", 3_000)
    report = measured("skyline", 20, 5)
    assert report["exact"] is False
    assert "only" in report["workloads"][0]["results"]["spatial: bitmap"]["warning"]
