"""Both ends of `skyline` in one process: objects come from a folder, results go to files, and verification judges."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bolts.delivery import DeliveryBolt
from bolts.payloads import Closed, MessageIds
from bolts.sinks import RESULT_SCHEMA, UPDATE_SCHEMA
from gateway.runs.verify import verify_run
from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import SKYLINE
from matching.space import Space
from matching.window import Window
from spouts.parquet import ParquetSpout
from spouts.subscriptions import load_changes, load_vocabulary
from tests.support.deliveries import RecordingContext as DeliveryContext
from tests.support.etl_folder import random_rows, with_objects, write_etl
from tests.support.message_files import RecordingContext as SpoutContext
from topology.core.api.component import Delivery
from topology.core.checkpoint.coordinator import publish_all

MESSAGES, BATCH = 400, 30


@pytest.fixture(scope="module")
def etl(tmp_path_factory) -> Path:
    return write_etl(tmp_path_factory.mktemp("skyline") / "etl", with_objects(random_rows(MESSAGES, late_s=25)))


@pytest.fixture(scope="module")
def files(etl) -> list[Path]:
    made = []
    for kind in ("boolean", "skyline"):
        made.append(etl.parent / f"{kind}.jsonl")
        options = {"match": "any"} if kind == "boolean" else {}
        generate_subscriptions(
            etl, kind, 40, 4, made[-1], until_share=0.3, region_share=0.6, **options, max_frequency=1.0
        )
    late = etl.parent / "late.jsonl"
    rows = [json.loads(line) for line in made[1].read_text().splitlines()[:15]]
    late.write_text(
        "\n".join(json.dumps(row | {"at": 50 + 11 * place}) for place, row in enumerate(rows) if "until" not in row)
    )
    return [*made, late]


def execute(etl: Path, files: list[Path], out: Path, window="count:70", sink="parquet", forget=()) -> Path:
    """The spouts, the engines and the delivery bolt, one batch after the other; `forget` ends of some batches."""
    extent = json.loads((etl / "manifest.json").read_text())["extent"]
    space, span = Space.parse(",".join(map(str, extent)), None, "plate-carree"), Window.parse(window)
    changes = load_changes(files, load_vocabulary(etl), space)
    spout, emitted = ParquetSpout(etl, span, space, BATCH), SpoutContext(1)
    spout.open(emitted)
    delivery = DeliveryBolt(str(out), span, 2, sink=sink)
    delivery.prepare(DeliveryContext())
    alone = LocalEngine([KINDS.named("boolean"), KINDS.named("skyline")], space, span)
    tick = spout.next_batch(0, None)
    while tick is not None:
        boundary, messages, names, ended, published_s, *_ = emitted.emitted.pop()[1]
        listed = changes.changes_through(boundary.last_seq, boundary.number)
        ended = ended.take(np.zeros(0, np.int64)) if boundary.number in forget else ended
        updates = alone.process(boundary, messages, listed.added, listed.removed, ended).updates
        for stream, payload in (
            ("changes", listed),
            ("ids", MessageIds(boundary, published_s, names)),
            ("updates", Closed(boundary, boundary.number, updates)),
        ):
            delivery.execute(Delivery(stream, "any", 0, payload))
        tick = spout.next_batch(boundary.number + 1, None)
    spout.close()
    delivery.execute(Delivery("results", "query", 0, alone.results()))
    delivery.finish()
    publish_all(delivery.outputs())
    delivery.close()
    facts = {"messages": str(etl), "subscriptions": [str(path) for path in files], "window": window, "batch": BATCH}
    facts |= {"world": ",".join(map(str, extent)), "projection": "plate-carree", "boundaries": {"batch": BATCH}}
    (out / "run.json").write_text(json.dumps(facts))
    return out


@pytest.fixture(scope="module")
def finished(etl, files) -> Path:
    return execute(etl, files, etl.parent / "finished")


@pytest.mark.parametrize("options", [{}, {"window": "time:60"}, {"sink": "jsonl"}], ids=str)
def test_skyline_of_objects_that_move_and_go_is_exact_from_folder_to_files(etl, files, tmp_path, options):
    report = verify_run(execute(etl, files, tmp_path / "run", **options))
    assert report.exact, report.render()
    assert min(report.oracle_updates["boolean"], report.oracle_updates["skyline"]) > 200
    assert report.oracle_results > 30


def test_skyline_results_go_by_spatial_relevance_then_seq_with_both_relevances(finished):
    rows = pq.read_table(finished / "results.parquet").to_pylist()
    assert {row["subscription_id"].split("-")[0] for row in rows} == {"skyline"}
    by_id: dict[str, list[dict]] = {}
    for row in rows:
        by_id.setdefault(row["subscription_id"], []).append(row)
    assert sum(len(held) > 1 for held in by_id.values()) > 5
    for held in by_id.values():
        order = [(-row["score"], row["seq"]) for row in held]
        assert order == sorted(order) and [row["rank"] for row in held] == list(range(1, len(held) + 1))
        assert all(0.0 < row["text_score"] <= 1.0 for row in held)
        for one in held:
            assert not any(a["score"] >= one["score"] and a["text_score"] > one["text_score"] for a in held)


def test_skyline_of_a_run_that_overlooks_what_a_batch_ended_is_not_exact(etl, files, tmp_path):
    assert not verify_run(execute(etl, files, tmp_path / "run", forget=range(5, 8))).exact


def lose_text(rows):
    rows[3]["text_score"] = None


def raise_text(rows):
    rows[3]["text_score"] = float(np.nextafter(rows[3]["text_score"], 2.0))


def raise_score(rows):
    rows[3]["score"] = float(np.nextafter(rows[3]["score"], 2.0))


def swap_ranks(rows):
    held = next(row for row in rows if row["rank"] == 2)
    other = next(row for row in rows if row["rank"] == 1 and row["subscription_id"] == held["subscription_id"])
    held["rank"], other["rank"] = 1, 2


@pytest.mark.parametrize("tamper", [lose_text, raise_text, raise_score, swap_ranks])
def test_verify_one_skyline_result_tampered_with_is_found(finished, tmp_path, tamper):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "results.parquet"
    rows = pq.read_table(path).to_pylist()
    tamper(rows)
    pq.write_table(pa.Table.from_pylist(rows, RESULT_SCHEMA), path)
    report = verify_run(tmp_path / "run")
    assert not report.exact and report.missing_results >= 1 and report.extra_results >= 1


def test_verify_one_skyline_update_lost_is_found(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("updates.list"))
    path = tmp_path / "run" / "updates" / "part-00000.parquet"
    rows = pq.read_table(path).to_pylist()
    del rows[next(n for n, row in enumerate(rows) if row["change"] == "leave")]
    pq.write_table(pa.Table.from_pylist(rows, UPDATE_SCHEMA), path)
    report = verify_run(tmp_path / "run")
    assert (report.exact, report.missing["skyline"], report.missing["boolean"]) == (False, 1, 0)


def test_verify_folder_with_versions_and_no_deletion_asks_the_oracle_with_its_objects(tmp_path):
    rows = random_rows(150)
    for row in rows[30::3]:
        row["object_id"] = f"message {row['seq'] - 20}"
    etl = write_etl(tmp_path / "etl", rows)
    generate_subscriptions(etl, "skyline", 20, 1, tmp_path / "skyline.jsonl", region_share=0.5, max_frequency=1.0)
    files = [tmp_path / "skyline.jsonl"]
    assert verify_run(execute(etl, files, tmp_path / "right")).exact
    assert not verify_run(execute(etl, files, tmp_path / "wrong", forget=range(9))).exact


def test_verify_folder_without_object_columns_takes_every_message_for_itself(tmp_path):
    etl = write_etl(tmp_path / "etl", random_rows(120))
    for path in (etl / "messages").iterdir():
        table = pq.read_table(path)
        pq.write_table(table.drop_columns(["object_id", "op"]), path)
    generate_subscriptions(etl, "skyline", 20, 1, tmp_path / "skyline.jsonl", region_share=0.5, max_frequency=1.0)
    report = verify_run(execute(etl, [tmp_path / "skyline.jsonl"], tmp_path / "run"))
    assert report.exact and report.oracle_updates["skyline"] > 50
    assert report.subscriptions == {"skyline": 20} and SKYLINE == 4
