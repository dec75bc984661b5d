"""Pages of figures in `docs`: every picture that is kept is on its page, is exact, and is small; so with results."""

import json
import re

from benchmarks import made_by
from benchmarks.run import RESULTS

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


def test_page_of_papers_has_a_verdict_on_every_row_and_no_empty_cell():
    rows = [line.strip("|\n").split("|") for line in (DOCS / "papers.md").read_text().splitlines() if line[:1] == "|"]
    rows = [row for row in rows if row[0].strip() not in ("figure", "---")]
    assert len(rows) >= 60 and {len(row) for row in rows} == {8}
    assert all(cell.strip() for row in rows for cell in row)
    named = {name for row in rows for name in re.findall(r"`([\w-]+\.json)`", row[7])}
    assert named <= {path.with_suffix(".json").name for path in RESULTS.rglob("*.*")} and len(named) > 10
