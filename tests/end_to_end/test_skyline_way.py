"""`boolean`, `topk` and `skyline` side by side, from a folder of objects to the verdict: the way people go."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import gateway.cli as cli
from gateway.runs.verify import verify_run
from gateway.subscriptions.generate import generate_subscriptions
from tests.support.etl_folder import random_rows, with_objects, write_etl
from topology import running
from topology.settings import RunConfig

MESSAGES, BATCH = 300, 30
KINDS = {"boolean": {"match": "any", "region_share": 0.5}, "topk": {"k": 3}, "skyline": {"region_share": 0.6}}


@pytest.fixture(scope="module")
def etl(tmp_path_factory) -> Path:
    return write_etl(tmp_path_factory.mktemp("way") / "etl", with_objects(random_rows(MESSAGES, late_s=25)))


@pytest.fixture(scope="module")
def mixed(etl) -> Path:
    """One file of all three kinds; some end, some come late."""
    rows = []
    for kind, options in KINDS.items():
        path = etl.parent / f"{kind}.jsonl"
        generate_subscriptions(etl, kind, 30, 8, path, until_share=0.3, **options, max_frequency=1.0)
        made = [json.loads(line) for line in path.read_text().splitlines()]
        rows += made
        rows += [row | {"at": 40 + 13 * place} for place, row in enumerate(made[:12]) if "until" not in row]
    file = etl.parent / "mixed.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def execute(etl: Path, mixed: Path, out: Path, **options) -> dict:
    options = {"window": "count:70", "batch": BATCH, "executor": "local"} | options
    return running.run(RunConfig(messages=etl, subscriptions=(mixed,), out=out, **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": "time:60", "query_bolts": 3, "tuple_bolts": 2, "sink": "jsonl", "router": "location"},
        {"router": "location", "query_bolts": 4, "tuple_bolts": 2, "signatures": "spatial", "window": "time:60"},
        {"router": "hashing", "query_bolts": 3, "signatures": "spatial+text"},
        {"router": "location", "query_bolts": 4, "signatures": "spatial+text", "distribution_bolts": 2, "batch": 7},
    ],
    ids=str,
)
def test_skyline_beside_the_other_kinds_is_exact_from_folder_to_verdict(etl, mixed, tmp_path, options):
    report = execute(etl, mixed, tmp_path / "run", **options)
    verdict = verify_run(tmp_path / "run")
    assert verdict.exact, verdict.render()
    assert set(verdict.oracle_updates) == set(KINDS) and min(verdict.oracle_updates.values()) > 80
    assert report["spouts"]["messages"]["ended"] > 20
    assert report["spouts"]["subscriptions"]["rejected"] == 0
    rows = pq.read_table(tmp_path / "run" / "results.parquet").to_pylist()
    scored = {row["subscription_id"].split("-")[0] for row in rows if row["text_score"] is not None}
    assert scored == {"skyline"} and len(rows) == report["delivery"]["results"] > 30


def test_skyline_run_tells_the_same_whoever_holds_what(etl, mixed, tmp_path):
    settings = ({}, {"router": "location", "query_bolts": 4, "tuple_bolts": 3, "signatures": "spatial+text"})
    runs = [execute(etl, mixed, tmp_path / str(n), **options) for n, options in enumerate(settings)]
    assert len({run["digest"] for run in runs}) == 1
    assert (tmp_path / "0" / "results.parquet").read_bytes() == (tmp_path / "1" / "results.parquet").read_bytes()


def test_skyline_run_counts_candidates_into_the_optimum_of_signatures(etl, tmp_path):
    figures = {}
    for kinds in (("boolean",), ("skyline",), ("boolean", "skyline")):
        file = tmp_path / ("-".join(kinds) + ".jsonl")
        file.write_text("\n".join((etl.parent / f"{kind}.jsonl").read_text().strip() for kind in kinds))
        out = tmp_path / f"run-{file.stem}"
        report = execute(etl, file, out, router="location", query_bolts=3, signatures="spatial+text")
        figures[kinds] = report["routing"]["signatures"]
        assert verify_run(out).exact
    for each in figures.values():
        assert 0 < each["optimum_per_message"] <= each["let_through_per_message"] <= each["queried_per_message"]
        assert 0.0 <= each["false_positive_share"] < 1.0
    best = {kinds: each["optimum_per_message"] for kinds, each in figures.items()}
    assert max(best["boolean",], best["skyline",]) < best["boolean", "skyline"] <= best["boolean",] + best["skyline",]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_mixed_file_with_objects_is_exact_on_ray_as_people_type_it(etl, mixed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # where none of Ray's processes was started
    settings = ["--window", "count:70", "--batch", str(BATCH), "--router", "location", "--query-bolts", "2"]
    told, given = {}, [os.path.relpath(path) for path in (etl, mixed)]
    for executor in ("local", "ray"):
        files = ["--messages", given[0], "--subscriptions", given[1], "--out", executor]
        assert cli.main(["run", *files, *settings, "--executor", executor, "--json"]) == 0
        told[executor] = json.loads(capsys.readouterr().out)
    report = told["ray"]
    assert report["digest"] == told["local"]["digest"]
    assert report["spouts"]["messages"]["ended"] > 20
    each = report["routing"]["subscriptions_of_each_query_bolt"]
    assert all(held[kind] > 0 for held in each for kind in ("boolean", "topk", "skyline"))
    assert report["routing"]["hits_sent"]["skyline"] > 0
    assert cli.main(["verify", "ray", "--all", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["exact"] and set(verdict["oracle_updates"]) == set(KINDS) and not verdict["vacuous"]
