"""What a router cannot place is refused at the command line before anything starts, and nothing is left behind."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gateway.cli as cli
from gateway.runs.verify import verify_run
from tests.support.etl_folder import random_rows, write_etl
from topology import running

REGION = [-100, -50, 100, 50]
TOPK = {"subscription_id": "near", "kind": "topk", "keywords": ["w1", "w2"], "lon": 0, "lat": 0, "k": 3, "alpha": 0.5}
ALL = {"subscription_id": "both", "kind": "boolean", "keywords": ["w11", "w10"], "region": REGION}
FADING = {**TOPK, "subscription_id": "fading", "kind": "decay"}
NEAREST = {name: value for name, value in TOPK.items() if name != "alpha"} | {"subscription_id": "near", "kind": "knn"}
ANY = {"subscription_id": "either", "kind": "boolean", "match": "any", "keywords": ["w11", "w10"], "region": REGION}
SKYLINE = {"subscription_id": "best", "kind": "skyline", "keywords": ["w11", "w10"], "region": REGION}


@pytest.fixture(scope="module")
def etl(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("refused") / "etl", random_rows(120))


def write(path, rows):
    if path.suffix == ".parquet":
        names = dict.fromkeys(name for row in rows for name in row)
        pq.write_table(pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(etl, files, out, router, executor="ray", more=()):
    return cli.main(
        ["run", "--messages", str(etl), "--subscriptions", *map(str, files), "--out", str(out), "--router", router]
        + ["--executor", executor, "--window", "count:40", "--batch", "20", "--json", *more]
    )  # fmt: skip


#: What routers by keyword cannot place.
REFUSED = [
    (SKYLINE, "of kind skyline"),
    (FADING, "of kind decay"),
    (NEAREST, "of kind knn"),
    (ANY, '"match": "any"'),
    (ANY | {"match": 1}, '"match": "any"'),
    (ALL | {"keywords": None}, "has no keywords"),
    (TOPK | {"keywords": []}, "has no keywords"),
]


@pytest.mark.parametrize("router", ["keyword", "prefix"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(("asked", "what"), REFUSED)
def test_router_by_keyword_with_what_it_cannot_place_is_refused_before_anything_starts(
    etl, tmp_path, monkeypatch, capsys, router, suffix, asked, what
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running.RunFolder, "beginning", lambda *_: pytest.fail("the run began"))
    files = (
        write(tmp_path / "plain.jsonl", [TOPK, ALL]),
        write(tmp_path / f"asked.{suffix}", [{"match": None, **ALL}, asked, asked]),
    )
    assert run(etl, files, tmp_path / "out", router) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    where = f"subscription '{asked['subscription_id']}' ({files[1]}, line 2)"
    for part in (f"--router {router}", where, what, "use --router hashing or location"):
        assert part in printed.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("router", ["keyword", "prefix"])
def test_word_skyline_and_rows_set_aside_are_no_reason_to_refuse(etl, tmp_path, monkeypatch, capsys, router):
    monkeypatch.chdir(tmp_path)
    rows = [
        TOPK,
        ALL,
        {**TOPK, "subscription_id": "skyline", "keywords": ["w1", "skyline", "any"]},
        {**SKYLINE, "region": [100, 0, -100, 10]},
        {**ANY, "keywords": []},
        {**TOPK, "subscription_id": "odd", "match": "some"},
    ]
    assert run(etl, [write(tmp_path / "rows.jsonl", rows)], tmp_path / "out", router, "local") == 0
    spout = json.loads(capsys.readouterr().out)["spouts"]["subscriptions"]
    assert (spout["accepted"], spout["rejected"]) == (3, 3)
    assert verify_run(tmp_path / "out").exact


@pytest.mark.parametrize("router", ["hashing", "location"])
def test_other_routers_place_what_these_refuse(etl, tmp_path, monkeypatch, router):
    monkeypatch.chdir(tmp_path)
    files = [write(tmp_path / "rows.jsonl", [TOPK, ALL, ANY, SKYLINE])]
    assert run(etl, files, tmp_path / "out", router, "local") == 0
    assert verify_run(tmp_path / "out").exact


@pytest.mark.parametrize(
    ("option", "value", "choices"),
    [
        ("--engine", "tpk=skype", "unknown kind 'tpk'; choose from boolean, topk, decay, knn, skyline"),
        ("--engine", "topk=segments", "engine 'segments' for topk: choose one of skype, skype_paper"),
        ("--window-index", "skyline=i4", "window index 'i4' for skyline: choose one of grid, mf_rtree"),
        ("--window-index", "decay=i3", "window index for decay: there is none"),
    ],
)
def test_engine_or_window_index_nobody_knows_is_refused_before_anything_starts(
    etl, tmp_path, monkeypatch, capsys, option, value, choices
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running.RunFolder, "beginning", lambda *_: pytest.fail("the run began"))
    files = [write(tmp_path / "rows.jsonl", [TOPK])]
    assert run(etl, files, tmp_path / "out", "hashing", more=[option, value]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and choices in printed.err
    assert not (tmp_path / "out").exists()


def test_window_indexes_of_several_kinds_are_taken_and_the_run_is_exact(etl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [write(tmp_path / "rows.jsonl", [TOPK, SKYLINE])]
    more = ["--window-index", "topk=segments", "--window-index", "skyline=grid", "--engine", "topk=l2_scan"]
    more += ["--distance", "plane"]
    assert run(etl, files, tmp_path / "out", "hashing", "local", more) == 0
    settings = json.loads((tmp_path / "out" / "run.json").read_text())["settings"]
    assert settings["window_index"] == {"topk": "segments", "skyline": "grid"}
    assert verify_run(tmp_path / "out").exact


FILTERS = [{"not_keywords": "w3"}, {"match": 2}, {"where": {"price": {"lte": 3}}}]


@pytest.fixture(scope="module")
def priced(tmp_path_factory):
    rows = [row | {"attribute_price": 2.0} for row in random_rows(120)]
    return write_etl(tmp_path_factory.mktemp("priced") / "etl", rows, attributes=["price:number"])


@pytest.mark.parametrize("narrow", FILTERS)
def test_window_index_without_filters_is_refused_before_anything_starts(priced, tmp_path, monkeypatch, capsys, narrow):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running.RunFolder, "beginning", lambda *_: pytest.fail("the run began"))
    file = write(tmp_path / "rows.jsonl", [TOPK | narrow, ALL | narrow, SKYLINE | narrow])
    assert run(priced, [file], tmp_path / "out", "hashing", more=["--window-index", "skyline=mf_rtree"]) == 4
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    where = f"subscription 'best' ({file}, line 3)"
    for part in (where, "--window-index skyline=mf_rtree", "use --window-index skyline=grid"):
        assert part in printed.err
    assert not (tmp_path / "out").exists()


def test_window_index_without_filters_serves_subscriptions_that_have_none(priced, tmp_path, monkeypatch, capsys):
    """Nor is a filter that tests nothing a reason to refuse, nor a row that is rejected anyway."""
    monkeypatch.chdir(tmp_path)
    rows = [SKYLINE | {"where": {}, "match": "any"}, SKYLINE | {"subscription_id": "t", "not_keywords": "unheard"}]
    rows += [TOPK | {"match": 2}, SKYLINE | {"subscription_id": "u", "match": 2, "region": [1, 1, 1, 1]}]
    rows.append(SKYLINE | {"kind": ["skyline"], "match": 2})
    files = [write(tmp_path / "rows.jsonl", rows)]
    assert run(priced, files, tmp_path / "out", "hashing", "local", ["--window-index", "skyline=mf_rtree"]) == 0
    spout = json.loads(capsys.readouterr().out)["spouts"]["subscriptions"]
    assert (spout["accepted"], spout["rejected"]) == (3, 2)
    assert verify_run(tmp_path / "out").exact


def shown(capsys, *arguments):
    code = cli.main(["topology", "show", *map(str, arguments), "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else printed.err


def test_topology_show_refuses_what_the_run_would(etl, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "rows.jsonl", [ALL, SKYLINE])
    code, told = shown(capsys, "--messages", etl, "--subscriptions", file, "--router", "prefix")
    assert code == 2 and f"({file}, line 2)" in told


@pytest.mark.parametrize(
    ("router", "own"),
    [("hashing", set()), ("location", {"hits"}), ("keyword", {"hits", "register", "thresholds"})],
)
def test_topology_show_without_data_has_the_streams_of_the_router(tmp_path, monkeypatch, capsys, router, own):
    monkeypatch.chdir(tmp_path)
    code, plan = shown(capsys, "--router", router, "--query-bolts", 3)
    streams = {edge["stream"] for edge in plan["edges"]}
    assert code == 0
    assert streams & {"hits", "register", "thresholds"} == own
