"""Pages of figures in `docs`: every picture that is kept is on its page, is exact, and is small."""

import json

import pytest

from benchmarks.run import RESULTS

DOCS = RESULTS.parents[1] / "docs"
MOST_BYTES = 200_000


@pytest.mark.parametrize("kind", ["boolean", "topk", "skyline"])
def test_figures_that_are_kept_are_exact_small_and_shown(kind):
    kept = sorted(path for path in RESULTS.rglob(f"{kind}-*.png"))
    shown = (DOCS / f"{kind}-figures.md").read_text()
    assert kept
    for path in kept:
        report = json.loads(path.with_suffix(".json").read_text())
        assert report["exact"] is True
        picture = path.relative_to(DOCS.parent).as_posix()
        assert f"(../{picture})" in shown and f"--figure {report['figure']}" in shown
        assert path.stat().st_size < MOST_BYTES
    assert shown.count("![") == len(kept)
