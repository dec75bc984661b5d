"""Pages of figures in `docs`: every picture that is kept is on its page, is exact, and is small; so with results."""

import json
import re

import pytest

from benchmarks.run import RESULTS

DOCS = RESULTS.parents[1] / "docs"
PAGES = (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")))
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


def test_results_that_are_kept_are_named_and_those_that_are_named_are_kept():
    kept = {path.name for path in RESULTS.glob("*.json")}
    named = {name for page in PAGES for name in re.findall(r"[\w-]+\.json\b(?!l)", page.read_text())}
    named |= {name.replace(".png", ".json") for page in PAGES for name in re.findall(r"[\w-]+\.png", page.read_text())}
    sizes = {name: re.sub(r"\d{4,}", "N", name) for name in kept}  # a page may say of which there are several sizes
    assert [name for name in kept if name not in named and sizes[name] not in named] == []
    drawn = {path.with_suffix(".json").name for path in RESULTS.rglob("*.png")}
    ours = {name for name in named if re.match(r"(boolean|topk|skyline|lfilter|memory|signatures)", name)}
    assert ours - kept - drawn - set(sizes.values()) == set()
