"""A reader types what the documents show, page after page, in one folder with the sample of the repository.

Blocks that say why they are not run are left out; `tests/unit/project/test_documents.py` looks at their lines.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.documents import FIRST, PAGES, ROOT, blocks

pytestmark = [pytest.mark.wide, pytest.mark.spark, pytest.mark.ray, pytest.mark.timeout(900)]

#: The odd rows of the sample.
REJECTED = {"coordinate_out_of_range": 1, "duplicate_id": 1, "missing_coordinate": 1, "not_json": 2}


def samples(page):
    """The lines of JSON that a page shows."""
    return [json.loads(line) for block in blocks(page) if block.language == "json" for line in block.lines]


def write_data(folder: Path) -> None:
    """The sample of the repository, in which the guide begins, and what other pages take for granted beside it."""
    for name in ("tweets.jsonl", "tweets.csv", "mine.jsonl"):
        shutil.copy(ROOT / "examples" / name, folder)
    (folder / "examples").symlink_to(".")
    (tweet,) = [row for row in samples("docs/start.md") if "created_at" in row]
    ends = samples("docs/subscribe.md")
    (folder / "ends.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*subscribed(ends), *ends]))
    shop = {"note": "open late", "where": {"x": 139.7, "y": 35.7}, "date": "10/10/2018 20:19"}
    (folder / "shops.jsonl").write_text(json.dumps(shop) + "\n")
    house = {"text": "by the sea", "lat": 54.1, "lon": 8.9, "price": 420000}
    house["house"] = {"type": "villa", "listed": "2020-05-01"}
    (folder / "houses.jsonl").write_text(json.dumps(house) + "\n")
    feature = {"type": "Feature", "geometry": tweet["coordinates"], "properties": {"description": "café"}}
    (folder / "places.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [feature] * 2}))


def subscribed(ends):
    """Subscriptions for those who go."""
    near = {"kind": "knn", "keywords": "ramen", "lon": 139.7, "lat": 35.7, "k": 3}
    return [near | {"subscription_id": row["unsubscribe"]} for row in ends if "unsubscribe" in row]


def programs(folder: Path) -> Path:
    """`skyray` and `python` of this checkout, for a shell."""
    folder.mkdir()
    for name, module in (("skyray", " -m gateway.entry"), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        (folder / name).chmod(stat.S_IRWXU)
    return folder


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """Every block that is run, with its output, after all of them were; and the folder."""
    folder = tmp_path_factory.mktemp("reader")
    write_data(folder)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").write_text("")
    path = f"{programs(tmp_path_factory.mktemp('programs') / 'bin')}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SKYRAY_CONFIG")}
    environment |= {"PATH": path, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "NO_COLOR": "1"}
    outputs = []
    for page in PAGES:
        for block in blocks(page):
            if block.language == "sh" and block.not_run is None:
                script = "set -e -o pipefail\n" + "\n".join(block.lines)
                done = subprocess.run(
                    ["bash", "-c", script],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=400,
                    check=False,
                )
                assert done.returncode == 0, f"{page}: {script}\n{done.stdout}\n{done.stderr}"
                outputs.append((block, done.stdout))
    return outputs, folder


def test_documents_every_block_that_is_run_works(typed):
    outputs, _ = typed
    assert [page for page in FIRST if page not in {block.page for block, _ in outputs}] == []
    assert sum(output.count("exact: ") for _, output in outputs) >= 3


def test_guide_data_is_clean_and_its_subscriptions_are_taken(typed):
    _, folder = typed
    manifest = json.loads((folder / "etl" / "manifest.json").read_text())
    assert manifest["rejected_by_reason"] == REJECTED and manifest["bad_times"] == 0
    assert (manifest["read"], manifest["kept"], manifest["duplicates"]) == (407, 401, 1) and manifest["null_times"] == 0
    first = [output for block, output in typed[0] if block.page == "docs/start.md"][-1]
    assert "time = created_at" in first and "lat = coordinates.coordinates.1" in first
    csv = next(
        output for block, output in typed[0] if block.page == "docs/formats.md" and "tweets.csv" in block.lines[1]
    )
    assert "lat = latitude (found)" in csv
    assert not (folder / "runs" / "first" / "rejected.jsonl").exists()
    updates = pq.read_table(folder / "runs" / "first" / "updates")
    mine = {row["subscription_id"] for row in samples("docs/start.md") if "subscription_id" in row}
    told = updates["subscription_id"].to_pylist()
    assert len(mine) == 4 and all(told.count(name) >= 4 for name in mine)
    held = pq.read_table(folder / "runs" / "first" / "results.parquet")["subscription_id"].to_pylist()
    assert held.count("s1") == 10 and held.count("s4") >= 1


def test_formats_rows_that_end_subscriptions_end_them(typed):
    _, folder = typed
    report = json.loads((folder / "runs" / "ends" / "run.json").read_text())
    assert json.dumps(report).count('"unsubscribed": 1') >= 1
