"""Several delivery tasks write what one writes: the same updates in order, results, digest; also resumed with others.

What one task writes is compared with the oracle elsewhere (`skyray verify`, also here); what several write is compared
with that. Kills at any moment, with other numbers of tasks afterwards, are in `tests/fault/test_simulation.py`.
"""

import json

import numpy as np
import pyarrow as pa
import pytest

from bolts.shares import Owners
from gateway.runs.reader import RunReader
from gateway.runs.verify import verify_run
from gateway.serve.releasing import Releaser
from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import EngineError
from matching.kinds import KINDS
from matching.part_names import PartName
from tests.support.beside import random_message, random_subscription
from tests.support.covering import tiered
from tests.support.etl_folder import random_rows, with_objects, write_etl
from tests.support.live_streams import Stream
from tests.support.releasing import updates_of
from topology.core.executors.local import pause_local, run_local
from topology.running import run
from topology.settings import RunConfig
from topology.summary import delivered
from topology.wiring import build_plan

MESSAGES, BATCH = 500, 25


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Messages and subscriptions of every kind, of which a third end and some are replaced by those of other kinds."""
    folder = tmp_path_factory.mktemp("deliveries")
    etl = write_etl(folder / "etl", with_objects(random_rows(MESSAGES, late_s=25)))
    files, rows = [], []
    for kind in KINDS.run:
        files.append(folder / f"{kind.name}.jsonl")
        share = 0.6 if kind.place == "region" else None
        generate_subscriptions(etl, kind.name, 40, 4, files[-1], until_share=0.3, region_share=share, max_frequency=1.0)
        rows.append([json.loads(line) for line in files[-1].read_text().splitlines()[:12]])
    again = folder / "again.jsonl"
    replaced = [
        {**row, "subscription_id": other["subscription_id"], "at": 60 + 7 * place}
        for of_kind, others in zip(rows, [*rows[1:], rows[0]], strict=True)
        for place, (row, other) in enumerate(zip(of_kind, others, strict=True))
    ]
    again.write_text("".join(json.dumps({**row, "until": None}) + "\n" for row in replaced))
    return etl, (*files, again)


def config_of(inputs, out, deliveries, **more):
    etl, files = inputs
    settings = {
        "window": "count:120", "batch": BATCH, "executor": "local", "query_bolts": 3, "distribution_bolts": 2,
        "delivery_bolts": deliveries, "checkpoint_every": 0.0, "seed": deliveries,
    }  # fmt: skip
    return RunConfig(messages=etl, subscriptions=files, out=out, **settings | more)


def by_id(out):
    """The updates of each subscription id, in the order of the files."""
    rows: dict[str, list] = {}
    for piece in RunReader(out).pieces():
        for row in piece.to_pylist():
            rows.setdefault(row.pop("subscription_id"), []).append(tuple(row.values()))
    return rows


@pytest.fixture(scope="module")
def single(inputs, tmp_path_factory):
    """The run of one delivery task: its report and folder."""
    out = tmp_path_factory.mktemp("single") / "run"
    report = run(config_of(inputs, out, 1))
    assert sum(report["delivery"]["updates"].values()) > 5_000 and report["delivery"]["held_back"] > 0
    assert [path.name for path in (out / "updates").iterdir()] == ["part-00000.parquet"]
    return report, out


@pytest.mark.parametrize("sink", ["parquet", "jsonl"])
def test_several_delivery_tasks_write_what_one_writes(inputs, single, sink, tmp_path):
    report = run(config_of(inputs, tmp_path / "run", 3, sink=sink))
    wanted, one = single
    assert report["digest"] == wanted["digest"]
    assert {name: report["delivery"][name] for name in ("updates", "results", "batches", "complete_through")} == {
        name: wanted["delivery"][name] for name in ("updates", "results", "batches", "complete_through")
    }
    names = sorted(path.name for path in (tmp_path / "run" / "updates").iterdir())
    assert [PartName.of(name) for name in names] == [PartName(0, task, 3, sink) for task in range(3)]
    told, expected = by_id(tmp_path / "run"), by_id(one)
    assert {name: sorted(rows, key=str) for name, rows in told.items()} == {
        name: sorted(rows, key=str) for name, rows in expected.items()
    }
    of_task = [set(ids_of(tmp_path / "run", name)) for name in names]
    assert not of_task[0] & of_task[1] and min(map(len, of_task)) > 20, "each id has one task, each task ids"
    assert (tmp_path / "run" / "results.parquet").read_bytes() == (one / "results.parquet").read_bytes()


def ids_of(out, name):
    run_of = RunReader(out)
    pieces = run_of.pieces(parts=[path for path in run_of.parts() if path.name == name])
    return pa.concat_tables(pieces)["subscription_id"].to_pylist()


@pytest.mark.parametrize("tasks", [(3, 2, 1), (1, 4, 3)], ids=str)
def test_run_saved_and_resumed_with_other_numbers_of_delivery_tasks_ends_the_same(inputs, single, tasks, tmp_path):
    plans = [build_plan(config_of(inputs, tmp_path / str(place), count)) for place, count in enumerate(tasks)]
    saved = pause_local(plans[0], 6, seed=2)
    saved = pause_local(plans[1], 13, seed=3, resume=saved)
    report = run_local(plans[2], seed=4, resume=saved)
    found = delivered([task.figures for task in report.components["delivery"].tasks])
    assert found["digest"] == single[0]["digest"]
    assert found["updates"] == single[0]["delivery"]["updates"]
    written, wanted = (path / "results.parquet" for path in (tmp_path / "2", single[1]))
    assert written.read_bytes() == wanted.read_bytes()


def test_folder_that_other_numbers_of_tasks_wrote_in_turn_is_exact_and_in_order(inputs, single, tmp_path):
    out = tmp_path / "run"

    def newest():
        return max((int(path.stem[6:]) for path in (out / "checkpoints").glob("epoch-*.json")), default=-1)

    for life, count in enumerate((2, 1, 3)):
        wanted = newest() + 3 if life < 2 else 10**6
        report = run(
            config_of(inputs, out, count, checkpoint_every=0.001),
            stop=lambda wanted=wanted: newest() >= wanted,
            resume=life > 0,
        )
        assert report["state"] == ("finished" if life == 2 else "interrupted")
    assert report["digest"] == single[0]["digest"]
    assert {PartName.of(path.name).tasks for path in (out / "updates").iterdir()} >= {2, 3}
    judged = verify_run(out)
    assert judged.exact and not judged.faults


def test_update_sent_to_a_task_that_does_not_own_it_is_refused(inputs, tmp_path, monkeypatch):
    """Broken on purpose: one query task takes another task for the owner."""

    def split(owners, table, rightly=Owners.split):
        return rightly(owners, table)[::-1]

    monkeypatch.setattr(Owners, "split", split)
    with pytest.raises(EngineError, match=r"another task owns"):
        run(config_of(inputs, tmp_path / "run", 2))


def live_batches():
    """Lines of a live stream: messages, and subscriptions of every kind, some of which replace others."""
    rng, batches = np.random.default_rng(11), []
    for number in range(30):
        changes = [random_subscription(rng, 0) | {"subscription_id": f"s{rng.integers(60)}"} for _ in range(6)]
        messages = [random_message(rng, 20 * number + place) for place in range(20)]
        batches.append([*({"subscribe": row} for row in changes), *messages])
    return batches


def released_by(etl, out, deliveries):
    """What a server releases of a live stream, in lives one after the other: (position, subscription, JSON) of each.

    A life has as many delivery tasks as `deliveries` says, and its share of the batches.
    """
    found, lives, batches = [], len(deliveries), live_batches()
    for life, count in enumerate(deliveries):
        stream = Stream(etl, out, window="count:60", query_bolts=3, delivery_bolts=count, checkpoint_every=0.001)
        for batch in batches[life * len(batches) // lives : (life + 1) * len(batches) // lives]:
            for row in batch:
                stream.take(row)
            stream.pipe.close_batch()
        assert not stream.refused

        def take(released, through, found=found, stream=stream):
            updates = (one for each in released for one in updates_of(each, None, stream.journal.look_up, None))
            found += [(one.position, one.subscription_id, one.data) for one in updates]

        def listening(stream, durable, take=take):
            return Releaser(stream.in_flight, stream.journal.ends, durable, take, stream.config.executor == "local")

        report = stream.match(listening=listening)
        (stream.finish if life == lives - 1 else stream.interrupt)(report)
    return found, report


@pytest.fixture(scope="module")
def live_single(inputs, tmp_path_factory):
    """The updates that a live stream of one delivery task releases, and its report."""
    found, report = released_by(inputs[0], tmp_path_factory.mktemp("live") / "out", [1])
    assert len(found) > 1_000
    return found, report


@pytest.mark.parametrize("deliveries", tiered([(1, 4, 2), (2,), (4,)], 3), ids=str)
def test_live_stream_of_several_delivery_tasks_releases_what_one_does(inputs, live_single, deliveries, tmp_path):
    """With the same positions, which are the ids of server-sent events; also over restarts with other numbers."""
    found, report = released_by(inputs[0], tmp_path / "out", deliveries)
    assert found == live_single[0]
    assert report["digest"] == live_single[1]["digest"]
    assert verify_run(tmp_path / "out").exact
