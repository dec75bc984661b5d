"""Compile times are of kernels whose updates are the oracle's, and of wrong ones they do not count."""

from dataclasses import replace

import numpy as np
import pytest

from baselines.topk.l2_scan import L2Scan
from benchmarks import kernels
from matching.kinds import KINDS

TOPK = KINDS.named("topk")


class Forgetful(L2Scan):
    """Loses one hit in seven."""

    def match(self, batch, first_row=0, most_hits=1 << 21):
        hits = super().match(batch, first_row, most_hits)
        kept = np.arange(hits.slot.shape[0]) % 7 > 0
        return hits._replace(slot=hits.slot[kept], row=hits.row[kept], scores=(hits.scores[0][kept],))


@pytest.mark.parametrize(("kind", "exact"), [(TOPK, True), (replace(TOPK, engines={"wrong": Forgetful}), False)])
def test_compile_times_are_of_kernels_that_are_compared_with_the_oracle(kind, exact, monkeypatch):
    monkeypatch.undo()  # the real number that a figure counts from
    for name, size in (("_SUBSCRIPTIONS", 2_000), ("_MESSAGES", 400), ("_WINDOW", 2_000)):
        monkeypatch.setattr(kernels, name, size)
    found = kernels.compared(kind)
    assert found["exact"] is exact and found["compared"] >= 1_000 and found["compared_subscriptions"] >= 500, found
    assert "warning" not in found


@pytest.mark.parametrize(("wrong", "few"), [(None, None), ("knn", None), (None, "knn")])
def test_compile_times_count_only_if_all_kinds_are_exact(wrong, few, monkeypatch):
    monkeypatch.undo()
    measured = {"cpu_s": 1.0, "wall_s": 1.0, "signatures": 2, "kernels": {"a": [1.0, 2]}, "compared_subscriptions": 600}

    def in_a_process(kind, _):
        return measured | {"exact": kind != wrong, "compared": 9 if kind == few else 2_000}

    monkeypatch.setattr(kernels, "_in_a_process", in_a_process)
    said = []
    report = kernels.bench(tell=said.append)
    assert report["exact"] is (not wrong and not few) and report["cpu_s"] == len(KINDS.names)
    assert sum("NOT EXACT" in line for line in said) == (wrong is not None)
    assert ("warning" in report) is (few is not None)
