"""The profile of the default boolean engine: what it counts must be what the engine does."""

import json

import pytest

from benchmarks.cases import make_case
from benchmarks.harness import Bench
from benchmarks.profiles import boolean_profile
from benchmarks.profiles.boolean_phases import PHASES, profile
from benchmarks.profiles.memory_limits import measure
from matching.kinds import KINDS
from matching.storage.prefetch import prefetch


def test_profile_phases_count_what_the_engine_counts():
    report = profile(3_000, 500, rounds=1)
    made = Bench(make_case(KINDS.named("boolean"), 3_000, 500, rounds=1), 1)
    hits = made.build("cell_term").room.engine.match(made.messages_after(500))
    per_message = report["per_message"]
    assert per_message["postings"] * 500 == hits.scanned
    assert per_message["candidates"] * 500 == hits.verified
    assert per_message["matches"] * 500 == hits.matched > 0
    assert set(report["phase_ns"]) == {*PHASES, "hits"}
    assert sum(report["phase_share"].values()) == pytest.approx(1.0)


def test_memory_limits_reading_on_beats_reading_anywhere():
    report = measure(8.0, (0.25, 32.0), 1 << 14, 3)
    small, large = report["random"]
    assert report["read_gib_per_s"] > 0
    assert large["chased_ns"] > small["chased_ns"]
    assert large["chased_ns"] > 64 / 2**30 / report["read_gib_per_s"] * 1e9


def test_prefetch_without_the_compiler_does_nothing():
    assert prefetch([1, 2], 5) is None


def test_page_has_the_figures_of_the_results():
    assert boolean_profile.PAGE.read_text() == boolean_profile.page()


def test_page_changes_with_the_results(tmp_path):
    for path in boolean_profile.RESULTS.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    changed = json.loads((tmp_path / "memory-limits.json").read_text())
    changed["read_gib_per_s"] = 1.0
    (tmp_path / "memory-limits.json").write_text(json.dumps(changed))
    assert "reads 1.0 GiB/s in a row" in boolean_profile.page(tmp_path)
