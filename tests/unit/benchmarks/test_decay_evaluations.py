"""Text relevances that are counted of the CIQ paper's index: fewer in smaller blocks, and all results compared."""

import pytest

from benchmarks import evaluations
from papers.ciq.ciq_paper import CiqPaper


def count(tell=lambda _: None):
    report = evaluations.bench(700, 40, figures=("block",), tell=tell)
    return report, {row["x"]: row["engines"] for row in report["rows"]}


def test_evaluations_fall_with_the_block_and_all_results_are_compared():
    report, rows = count()
    relevances = [rows[size]["ciq_paper"]["text_relevances_per_message"] for size in ("1", "16", "1024")]
    assert relevances[0] < 0.8 * relevances[1] and relevances[1] <= relevances[2]
    assert rows["1024"]["ciq_paper"]["associations"] > rows["1024"]["bif_paper"]["associations"] == 1.0
    each = [engine for row in rows.values() for engine in row.values()]
    assert report["exact"] and all(engine["exact"] and engine["compared_results"] > 5_000 for engine in each)


def test_evaluations_of_an_engine_that_loses_results_do_not_count(monkeypatch: pytest.MonkeyPatch):
    scan = CiqPaper._scan
    monkeypatch.setattr(CiqPaper, "_scan", lambda self, batch, row: scan(self, batch, max(row, min(3, len(batch)))))
    report, _ = count()
    assert not report["exact"]
