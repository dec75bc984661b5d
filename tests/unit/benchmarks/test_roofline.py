"""Rooflines: what a kernel's work takes at least, by what the machine gives."""

import numpy as np
import pytest

from benchmarks import roofline
from benchmarks.cases import make_case
from benchmarks.lasting import bench_of
from matching.kinds import KINDS


def test_machine_gives_lines_together_sooner_than_one_after_the_other(monkeypatch):
    monkeypatch.setattr(roofline, "_BYTES", 1 << 27)
    monkeypatch.setattr(roofline, "_LINES_READ", 1 << 17)
    roofs = roofline.machine()
    assert all(value > 0.0 for value in roofs.values())
    # as much as a tenth of it would be no reason to prefetch; a noisy machine is far from that
    assert roofs["ns_a_line_together"] < roofs["ns_a_line_by_itself"]


def test_kernel_under_the_roofs_counts_postings_and_lines():
    roofs = {"ns_a_byte_in_a_row": 0.1, "ns_a_line_together": 10.0, "ns_a_line_by_itself": 100.0}
    counts = {"scanned_per_message": 1_000.0, "verified_per_message": 50.0, "matched_per_message": 20.0}
    layout = roofline.LAYOUTS["decay"]
    lines = 50 * layout.candidate_lines + 20 * layout.result_lines
    found = roofline.placed("decay", 10.0, counts, 24, 1.0, roofs)
    # 24 bytes take 2.4 ns from memory, longer than their bound
    assert found["us_postings"] == pytest.approx(2.4) and found["lines"] == lines
    assert found["attained"] == pytest.approx((2.4 + lines * 0.01) / 10.0)
    near = roofline.placed("decay", 10.0, counts, 24, 3.0, roofs)
    assert near["us_postings"] == pytest.approx(3.0), "a bound that takes longer than its bytes is the roof"


def test_layouts_name_columns_of_the_lists_that_run():
    for name, layout in roofline.LAYOUTS.items():
        kind = KINDS.named(name)
        assert kind.chosen(None) == roofline._ENGINES[name], "the roofline is of what runs"
        case = make_case(kind, 300, 50, 200 if kind.windowed else None, 1, history=200)
        view = bench_of(case, 1).build().operator.engine.lists.view
        assert all(isinstance(getattr(view, column), np.ndarray) for column in layout.columns)
        assert roofline._ns_near(name, view, layout.columns) > 0.0
