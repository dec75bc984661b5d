"""Overload on Ray: an object store of 80 MB and batches that would fill it. Nothing is spilled, or that is said."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import OverloadError
from tests.support.clusters import GUARDED, cluster_of
from tests.support.etl_folder import SCHEMA, random_rows, write_etl
from tests.support.processes import Command
from topology.running import run
from topology.settings import RunConfig

pytestmark = [pytest.mark.ray, pytest.mark.fault, pytest.mark.cluster]

MESSAGES, BATCH = 960_000, 120_000


@pytest.fixture(scope="module")
def etl(tmp_path_factory):
    """As many messages as it takes to fill the store: those of a small folder over and over."""
    folder = tmp_path_factory.mktemp("overload") / "etl"
    write_etl(folder, random_rows(4_000), files=1)
    (part,) = (folder / "messages").iterdir()
    once = pq.read_table(part, schema=SCHEMA)
    table = pa.concat_tables([once] * (MESSAGES // len(once)))
    seq = np.arange(MESSAGES)
    for name, column in (("seq", pa.array(seq)), ("message_id", pa.array(np.char.add("message ", seq.astype(str))))):
        table = table.set_column(table.schema.get_field_index(name), name, column)
    pq.write_table(table, part)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"kept": MESSAGES}))
    return folder


@pytest.fixture(scope="module")
def small_store():
    with cluster_of(1, GUARDED, store_bytes=80_000_000) as cluster:
        yield cluster


def run_on(cluster, etl, out, *more):
    words = ["run", "--messages", etl, "--subscriptions", etl.parent / "boolean.jsonl", "--out", out, "--json"]
    with Command([*words, "--address", cluster.address, *more], GUARDED) as command:
        return command.finish(200)


def spilled(cluster) -> list[str]:
    """What Ray says of objects that it has moved to disk."""
    logs = cluster.folder.glob("session_*/logs/raylet*")
    return [line for log in logs for line in log.read_text(errors="replace").splitlines() if "Spilled" in line]


def test_store_too_small_for_the_credits_holds_fewer_batches_and_spills_nothing(etl, small_store, tmp_path):
    generate_subscriptions(etl, "boolean", 300, 4, etl.parent / "boolean.jsonl", max_frequency=1.0)
    config = RunConfig(
        messages=etl, subscriptions=(etl.parent / "boolean.jsonl",), out=tmp_path / "quiet", batch=BATCH,
        executor="local", sink="count",
    )  # fmt: skip
    wanted = run(config)
    code, _, said = run_on(
        small_store,
        etl,
        tmp_path / "out",
        "--batch",
        BATCH,
        "--set",
        "topology.credits=8",
        "--set",
        "output.sink=count",
    )
    assert code == 0, said
    report = json.loads((tmp_path / "out" / "run.json").read_text())
    assert report["digest"] == wanted["digest"] and sum(wanted["delivery"]["updates"].values()) > 100_000
    assert report["topology"]["in_flight_peak"] < 4, "there was room for all of them: nothing was tested"
    assert not spilled(small_store)


def test_batch_that_the_store_has_no_room_for_is_named_at_once(etl, small_store, tmp_path):
    code, _, said = run_on(small_store, etl, tmp_path / "out", "--batch", 4 * BATCH, "--set", "output.sink=count")
    assert code == OverloadError.exit_code, said
    assert "batch 0 has" in said and "make batches smaller (--batch)" in said and "Traceback" not in said
    assert json.loads((tmp_path / "out" / "run.json").read_text())["state"] == "failed"
