"""Signatures of boolean: measured and checked; an optimum that loses is told."""

import pytest

from benchmarks import signatures
from matching.boolean.engines.cell_term import CellTerm


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(signatures, "_CHECKED", (60, 200))


class ForgetfulCells(CellTerm):
    """Loses the first match of every batch."""

    def match(self, batch):
        found = super().match(batch)
        return found._replace(number=found.number[1:], row=found.row[1:])


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
