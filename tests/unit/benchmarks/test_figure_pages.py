"""Pages of figures in `docs`: every picture that is kept is on its page, is exact, and is small; so with results."""

import json
import re

import pytest

from benchmarks import made_by
from benchmarks.run import RESULTS

DOCS = RESULTS.parents[1] / "docs"
PAGES = (DOCS.parent / "README.md", *sorted({*DOCS.glob("*.md")} - {made_by.PAGE}))
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


def test_page_of_origins_is_that_of_the_files(monkeypatch):
    monkeypatch.undo()
    assert made_by.PAGE.read_text() == made_by.page()


def test_page_of_origins_changes_with_the_files_and_says_what_is_too_little(tmp_path, monkeypatch):
    monkeypatch.undo()
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    made = {"commit": "abc", "command": "cli.py bench knn --json", "cores": 3, "load_average": [1.25, 0, 0]}
    told = {"made_by": made, "results": [{"compared": 5_000, "compared_subscriptions": 900}, {"compared": 999}]}
    (results / "knn-9.json").write_text(json.dumps(told))
    (results / "old.json").write_text(json.dumps({"made_by": made | {"command": "__main__.py OTHER"}}))
    one, two = made_by.page(results).splitlines()[-2:]
    assert "`abc` | `skyray bench knn --json` | 3 | 1.2 | 999 of 0: too little" in one
    assert "`abc` | `python -m benchmarks.against OTHER` | 3 | 1.2 | all, with each other" in two


def test_page_of_papers_has_a_verdict_on_every_row_and_no_empty_cell():
    rows = [line.strip("|\n").split("|") for line in (DOCS / "papers.md").read_text().splitlines() if line[:1] == "|"]
    rows = [row for row in rows if row[0].strip() not in ("figure", "---")]
    assert len(rows) >= 60 and {len(row) for row in rows} == {8}
    assert all(cell.strip() for row in rows for cell in row)
    named = {name for row in rows for name in re.findall(r"`([\w-]+\.json)`", row[7])}
    assert named <= {path.with_suffix(".json").name for path in RESULTS.rglob("*.*")} and len(named) > 10
