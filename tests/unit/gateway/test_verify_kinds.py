"""Runs of all five kinds: both oracles find them exact, and each thing that is done to any kind is found out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gateway.cli as cli
from bolts.sinks import RESULT_SCHEMA, UPDATE_SCHEMA
from gateway.runs import oracles
from gateway.runs.oracle_replay import MessageExtras
from gateway.runs.verify import verify_run
from gateway.shell import terminal
from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, with_objects, write_etl
from topology import running
from topology.settings import RunConfig

MESSAGES, BATCH = 300, 23
NAMES = KINDS.names


@pytest.fixture(scope="module")
def etl(tmp_path_factory) -> Path:
    return write_etl(tmp_path_factory.mktemp("kinds") / "etl", with_objects(random_rows(MESSAGES, late_s=20)))


@pytest.fixture(scope="module")
def files(etl) -> list[Path]:
    """Every kind; some end, and some ids are taken over, later, by a subscription of another kind."""
    made = []
    for kind in KINDS:
        options = {"region_share": 0.6} if kind.place == "region" else {"k": 4} if "k" in kind.fields else {}
        made.append(etl.parent / f"{kind.name}.jsonl")
        generate_subscriptions(etl, kind.name, 20, 5, made[-1], until_share=0.3, max_keywords=2, **options)
    rows = [json.loads(line) for path in made for line in path.read_text().splitlines()[:4]]
    more = etl.parent / "more.jsonl"
    for place, row in enumerate(rows):
        row.pop("until", None)
        row |= {"at": 40 + 9 * place, "subscription_id": rows[(place + 7) % len(rows)]["subscription_id"]}
    more.write_text("".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["at"])))
    return [*made, more]


def execute(etl: Path, files: list[Path], out: Path, **options) -> Path:
    options = {"window": "count:80", "batch": BATCH, "executor": "local", "decay_half_life": 60.0} | options
    running.run(RunConfig(messages=etl, subscriptions=tuple(files), out=out, **options))
    return out


@pytest.fixture(scope="module")
def finished(etl, files) -> Path:
    return execute(etl, files, etl.parent / "finished")


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("updates.list"))
    return tmp_path / "run"


def figures(report) -> dict:
    """All that a report says, but which oracle said so."""
    return report.as_json() | {"judge": None}


@pytest.mark.parametrize(
    "options", [{}, {"window": "time:60"}, {"batch": 1, "limit": 150}, {"batch": "time:30"}], ids=str
)
def test_verify_both_oracles_say_the_same_of_all_kinds(etl, files, tmp_path, options):
    run = execute(etl, files, tmp_path / "run", **options)
    bulk, plain = verify_run(run), verify_run(run, plain=True)
    assert bulk.exact, bulk.render()
    assert (bulk.judge, plain.judge) == ("bulk oracle", "plain oracle")
    assert "results of the bulk oracle" in str(bulk.render())
    assert figures(bulk) == figures(plain)
    assert set(bulk.oracle_updates) == set(NAMES) and min(bulk.oracle_updates.values()) > 60
    assert bulk.delivered_updates == bulk.oracle_updates and bulk.oracle_results > 100


def test_verify_takes_the_stream_in_parts_that_fit_in_memory(finished, monkeypatch):
    taken, advance = [], oracles.BulkOracle.advance

    def counting(self, boundaries, messages, *more):
        taken.append((len(boundaries), len(messages)))
        return advance(self, boundaries, messages, *more)

    monkeypatch.setattr(oracles.BulkOracle, "advance", counting)
    whole = verify_run(finished)
    assert len(taken) == 1
    monkeypatch.setattr(oracles, "GATHERED", 50)
    parts = verify_run(finished)
    assert figures(parts) == figures(whole) and whole.exact
    assert len(taken) > 4 and max(messages for _, messages in taken[1:]) < MESSAGES / 2
    monkeypatch.setattr(oracles, "MOST_BOUNDARIES", 1)
    assert figures(verify_run(finished)) == figures(whole) and {count for count, _ in taken[-5:]} == {1}


# -------------------------------------------------------------------------------------------------- broken on purpose


def lose(rows, at):
    del rows[at]


def double(rows, at):
    rows.append(rows[at])


def move_last_bit(rows, at):
    rows[at]["score"] = float(np.nextafter(rows[at]["score"], np.inf)) if rows[at]["score"] is not None else 0.5


def take_other_message(rows, at):
    rows[at]["seq"] += 1 if rows[at]["seq"] < MESSAGES - 1 else -1
    rows[at]["message_id"] = f"message {rows[at]['seq']}"


def take_other_subscriber(rows, at):
    kind, seed, number = rows[at]["subscription_id"].split("-")
    rows[at]["subscription_id"] = f"{kind}-{seed}-{19 if number != '19' else 18}"


def tell_later(rows, at):
    rows[at]["as_of"] = min(MESSAGES - 1, rows[at]["as_of"] + BATCH)


TAMPERS = [lose, double, move_last_bit, take_other_message, take_other_subscriber, tell_later]


@pytest.mark.parametrize("tamper", TAMPERS, ids=lambda tamper: tamper.__name__)
@pytest.mark.parametrize("kind", NAMES)
def test_verify_one_wrong_update_of_any_kind_is_found(copy, kind, tamper):
    rows = [row for path in sorted((copy / "updates").iterdir()) for row in pq.read_table(path).to_pylist()]
    # of an id that is of one kind all the time
    mine = [at for at, row in enumerate(rows) if row["subscription_id"] in {f"{kind}-5-{n}" for n in range(4, 20)}]
    mine = [at for at in mine if rows[at]["as_of"] < MESSAGES / 2]
    tamper(rows, mine[len(mine) // 2])
    shutil.rmtree(copy / "updates")
    (copy / "updates").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, UPDATE_SCHEMA), copy / "updates" / "part-00000.parquet")
    report = verify_run(copy)
    wrong = {"lose": (1, 0), "double": (0, 1)}.get(tamper.__name__, (1, 1))
    assert not report.exact and (report.missing[kind], report.extra[kind]) == wrong
    assert (sum(report.missing.values()), sum(report.extra.values())) == wrong


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS if kind.standing])
def test_verify_the_last_bit_of_a_result_of_any_kind_is_found(copy, kind):
    path = copy / "results.parquet"
    rows = pq.read_table(path).to_pylist()
    at = next(at for at, row in enumerate(rows) if row["subscription_id"].startswith(kind))
    rows[at]["score"] = float(np.nextafter(rows[at]["score"], np.inf))
    pq.write_table(pa.Table.from_pylist(rows, RESULT_SCHEMA), path)
    report = verify_run(copy)
    assert not report.exact and (report.missing_results, report.extra_results) == (1, 1)


# ----------------------------------------------------------------------------------------------------- for people


def test_extras_a_deletion_is_over_at_once_whatever_comes_later(tmp_path):
    rows = random_rows(6)
    for row in rows:
        row["object_id"] = "thing" if row["seq"] in (0, 2, 4) else row["message_id"]
    rows[2]["op"] = 1
    extras = MessageExtras(write_etl(tmp_path / "etl", rows), [KINDS.named("skyline")])
    assert extras.ends(5) == {0: 2, 2: 2}
    assert extras.ends(1) == {}


@pytest.mark.parametrize("options", [[], ["--plain"], ["--json"]], ids=str)
def test_cli_verify_writes_lines_of_progress_where_nobody_watches(finished, monkeypatch, capsys, options):
    monkeypatch.setattr(terminal, "LINE_S", 0.0)
    assert cli.main(["verify", str(finished), "--all", *options]) == 0
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert len(lines) > 3 and all("verify: " in line and "updates" in line for line in lines)
    assert f"{MESSAGES} of {MESSAGES} messages (100%), about 0 s left" in lines[-1]
    assert ("plain oracle" if "--plain" in options else "bulk oracle") in out
    if "--json" in options:
        assert json.loads(out)["exact"] is True


def test_cli_verify_that_is_over_soon_writes_no_progress(finished, capsys):
    assert cli.main(["verify", str(finished), "--sample", "1"]) == 0
    assert capsys.readouterr().err == ""
