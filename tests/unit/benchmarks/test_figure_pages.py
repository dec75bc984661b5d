"""Pages of figures in `docs`: every picture that is kept is on its page, is exact, and is small; so with results."""

import json
import re

import pytest

from benchmarks import made_by, papers
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


def test_page_of_papers_is_that_of_the_rows_and_no_row_has_a_fault():
    rows = papers.papers()
    assert papers.PAGE.read_text(encoding="utf-8") == papers.page(rows)
    assert sum(len(one.definitions) + len(one.figures) for one in rows) >= 160
    assert papers.faults(rows) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"verdict": "reproduced", "form": "variant"}, "reproduced, of the form 'variant'"),
        ({"verdict": "proved"}, "verdict 'proved'"),
        ({"why": " "}, "an empty cell"),
        ({"results": "`gone.json`"}, "gone.json is not there"),
        ({"results": "`knn-ticks.json`"}, "knn-ticks.json was made by"),
        (
            {"results": "`new-words.json`", "command": "`python -m benchmarks.new_words`", "verdict": "refuted"},
            "differ",
        ),
        ({"results": "none", "verdict": "refuted"}, "refuted, without results"),
        ({"form": "copied"}, "form 'copied'"),
    ],
    ids=str,
)
def test_row_of_a_paper_that_claims_too_much_is_found(changed, said):
    one, *_ = papers.papers()
    figure = next(row for row in one.figures if row.form == "printed" and row.place.startswith("9, FSQ"))
    (found,) = papers.faults([one._replace(figures=(figure._replace(**changed),))])
    assert said in found


def test_row_of_a_paper_that_names_no_file_or_a_lost_commit_is_found(tmp_path):
    one, *_ = papers.papers()
    place = one.definitions[0]._replace(here="`matching/gone.py`")
    assert papers.faults([one._replace(definitions=(place,), figures=())]) == [
        f"CIQ, {place.place}: matching/gone.py is not there"
    ]
    made = {"commit": "0" * 12, "command": "evaluations.py", "cores": 2, "load_average": [1.0]}
    (tmp_path / "lost.json").write_text(json.dumps({"made_by": made}))
    row = next(row for row in one.figures if row.place.startswith("9, FSQ"))
    row = row._replace(verdict="refuted", results="`lost.json`")
    found = papers.faults([one._replace(figures=(row,))], results=tmp_path)
    assert found in (
        [],
        [f"CIQ, {row.place}: refuted, by lost.json of commit {'0' * 12}, which is not in this history"],
    )
    if (papers.ROOT / ".git").exists():
        assert found or not papers._History(papers.ROOT)._whole
