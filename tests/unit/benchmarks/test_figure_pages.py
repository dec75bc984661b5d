"""Pages of figures in `docs`: every picture that is kept is on its page, is exact, and is small; so with results."""

import json
import re

import pytest

from benchmarks import made_by, papers
from benchmarks.run import RESULTS
from matching.errors import ConfigError

DOCS = RESULTS.parents[1] / "docs"
PAGES = (DOCS.parent / "README.md", *sorted({*DOCS.glob("*.md")} - {made_by.PAGE}))
MOST_BYTES = 200_000


def test_figures_that_are_kept_are_exact_small_and_shown():
    kept = sorted(RESULTS.rglob("*.png"))
    shown = made_by.PAGE.read_text()
    assert len(kept) > 30
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


def test_page_of_figures_is_that_of_the_files(monkeypatch):
    monkeypatch.undo()
    assert made_by.PAGE.read_text() == made_by.page()


def test_page_of_figures_has_the_origin_and_every_number_and_says_what_is_too_little(tmp_path, monkeypatch):
    monkeypatch.undo()
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    made = {"commit": "abc", "command": "cli.py bench knn --json", "cores": 3, "load_average": [1.25, 0, 0]}
    engines = [
        {"engine": "fast", "compared": 5_000, "compared_subscriptions": 900, "us_per_message": 1.256},
        {"engine": "slow", "compared": 999, "us_per_message": 1256.4, "bytes_per_subscription": 7},
    ]
    (results / "knn-9.json").write_text(json.dumps({"made_by": made, "results": engines}))
    (results / "old.json").write_text(json.dumps({"made_by": made | {"command": "__main__.py OTHER"}}))
    panels = [
        {"title": "points", "y_label": "us", "series": {"a": [1, None], "b": [2, 3]}, "x": [10, 20], "x_label": "k"},
        {"y_label": "us", "series": {"a": [0.5, 2.345]}},
        {"y_label": "us", "bars": {"all": 100.4}},
    ]
    drawn = {"made_by": made, "panels": panels, "x": ["one", "two"], "x_label": "rules"}
    (results / "drawn.json").write_text(json.dumps(drawn))
    (results / "drawn.png").write_bytes(b"")
    routed = {"router": "hashing", "query_bolts": 4, "us_per_message": 2.0}
    (results / "routers-x.json").write_text(
        json.dumps({"made_by": made, "measured": [{"kind": "knn", "rows": [routed]}]})
    )
    page = made_by.page(results)
    _, one, two, _ = (line for line in page.splitlines() if line.startswith("| ["))
    for table in (
        "| engine | us a message | bytes a subscription |\n| --- | --- | --- |\n",
        "| `fast` | 1.26 | - |\n| `slow` | 1,256 | 7 |\n",
        "![drawn](../benchmarks/results/drawn.png)\n\n| points, us, by k | 10 | 20 |\n",
        "| --- | --- | --- |\n| `a` | 1 | - |\n| `b` | 2 | 3 |\n",
        "| us, by rules | one | two |\n| --- | --- | --- |\n| `a` | 0.5 | 2.35 |\n",
        "| us |  |\n| --- | --- |\n| `all` | 100 |\n",
        "### routers-x, knn\n\n| router, query bolts | us, busiest task |\n| --- | --- |\n| `hashing, 4` | 2 |\n",
    ):
        assert table in page, table
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
        ({"command": "`E --block 64`"}, "ciq-200000.json was made by"),
        ({"command": "`E --figures standard,alpha`"}, "ciq-200000.json was made by"),
        (
            {"results": "`stores.json`", "command": "`python -m benchmarks.stores`", "verdict": "refuted"},
            "differ",
        ),
        ({"results": "none", "verdict": "refuted"}, "refuted, without results"),
        ({"form": "copied"}, "form 'copied'"),
    ],
    ids=str,
)
def test_row_of_a_paper_that_claims_too_much_is_found(changed, said):
    one, *_ = papers.papers()
    figure = next(row for row in one.figures if row.form == "printed" and row.place.startswith("17, index"))
    (found,) = papers.faults([one._replace(figures=(figure._replace(**changed),))])
    assert said in found


def test_cells_take_their_numbers_from_the_results_they_point_to(tmp_path):
    engines = [{"a": {"us": n * 1_234.5, "share": 0.01234}, "b": {"us": 4_938.0}} for n in (1, 2)]
    rows = [{"figure": "k", "x": str(n), "engines": engines[n]} for n in (0, 1)]
    (tmp_path / "made.json").write_text(json.dumps({"rows": rows}))
    one = ["9", "printed", "`a`", "`E`", "none", "{made k us a/b} of b; {made k=1 us a}, {made k=0 share a}"]
    rest = ["none", "open", "because", "none"]
    written = tmp_path / "rows.toml"

    def measured(cell):
        cells = ", ".join(repr(each) for each in [*one[:-1], cell, *rest])
        written.write_text(
            f"[[paper]]\ntitle = 'P'\nfolder = 'f'\nkind = 'k'\ndefinitions = []\nfigures = [[{cells}]]\n"
        )
        (paper,) = papers.papers(written, tmp_path)
        return paper.figures[0].measured

    assert measured(one[-1]) == "0.25, 0.50 of b; 2,469, 0.0123"
    for wrong in ("{gone k us a}", "{made alpha us a}", "{made k us c}", "{made k ms a}", "{made k=7 us a}"):
        with pytest.raises(ConfigError, match="has no such"):
            measured(wrong)


def test_row_of_a_paper_that_names_no_file_or_a_lost_commit_is_found(tmp_path):
    one, *_ = papers.papers()
    place = one.definitions[0]._replace(here="`matching/gone.py`")
    assert papers.faults([one._replace(definitions=(place,), figures=())]) == [
        f"CIQ, {place.place}: matching/gone.py is not there"
    ]
    row = next(row for row in one.figures if row.place.startswith("17, index"))
    command = row.command.strip("`").replace("E ", "evaluations.py ", 1)
    made = {"commit": "0" * 12, "command": command, "cores": 2, "load_average": [1.0]}
    (tmp_path / "lost.json").write_text(json.dumps({"made_by": made}))
    row = row._replace(verdict="refuted", results="`lost.json`")
    found = papers.faults([one._replace(figures=(row,))], results=tmp_path)
    assert found in (
        [],
        [f"CIQ, {row.place}: refuted, by lost.json of commit {'0' * 12}, which is not in this history"],
    )
    if (papers.ROOT / ".git").exists():
        assert found or not papers._History(papers.ROOT)._whole
