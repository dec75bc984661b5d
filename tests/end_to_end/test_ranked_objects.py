"""Ranked kinds over streams of objects through the whole topology: routers, late refills, kills and resumes."""

import json
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from gateway.engine import Engine
from gateway.runs.verify import verify_run
from matching.errors import ConfigError
from tests.support.etl_folder import random_rows, write_etl
from tests.support.serving import Served
from topology.core.executors.local import pause_local, run_local
from topology.running import run
from topology.settings import RunConfig
from topology.summary import delivered
from topology.wiring import build_plan

KINDS = ("topk", "decay", "knn", "skyline")


def versions(count: int, seed: int, objects: int) -> list[dict]:
    """Versions of objects that move about, change their words and are deleted, several in a batch."""
    rng, rows = np.random.default_rng(seed), random_rows(count, seed=seed)
    for row in rows:
        row["object_id"] = f"thing {rng.integers(objects)}"
        if rng.random() < 0.15:
            row |= {"op": 1, "terms": [], "counts": [], "weights": [], "text": ""}
    return rows


def asked(path, kinds=KINDS, count: int = 24) -> None:
    """Subscriptions of each kind; some begin late, end, or are replaced."""
    rng, rows = np.random.default_rng(9), []
    for number in range(count * len(kinds)):
        kind = kinds[number % len(kinds)]
        row = {"subscription_id": f"s{number % (len(kinds) * (count - 3))}", "kind": kind}
        row["keywords"] = [f"w{11 - int(word)}" for word in rng.choice(4, int(rng.integers(1, 3)), replace=False)]
        lon, lat = float(rng.uniform(-170, 60)), float(rng.uniform(-80, 30))
        if kind == "skyline":
            row["region"] = [lon, lat, lon + float(rng.uniform(20, 110)), lat + float(rng.uniform(20, 50))]
        else:
            row |= {"lon": lon, "lat": lat, "k": int(rng.integers(1, 5))}
            row |= {} if kind == "knn" else {"alpha": float(rng.choice([0.2, 0.6, 1.0]))}
        row |= {"on": ["enter", "leave", "change"]} if number // len(kinds) % 3 == 1 else {}
        row |= {"at": 0} if number < count else {"at": int(3 * number)}
        row |= {"until": int(row["at"] + 150)} if number % 7 == 3 else {}
        rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def settings(tmp_path, name: str, **more) -> RunConfig:
    given = {"window": "living", "executor": "local", "batch": "17", "objects": True} | more
    return RunConfig(messages=tmp_path / "etl", subscriptions=(tmp_path / "asked.jsonl",), out=tmp_path / name, **given)


@pytest.mark.parametrize(
    ("router", "window"),
    [
        ("hashing", "time:40"),
        ("location", "count:25"),
        pytest.param("location", "living", marks=pytest.mark.long),
        pytest.param("hashing", "count:60", marks=pytest.mark.long),
    ],
)
def test_run_of_ranked_kinds_over_objects_is_exact(tmp_path, router, window):
    write_etl(tmp_path / "etl", versions(500, 3, 40))
    asked(tmp_path / "asked.jsonl")
    tasks = {"query_bolts": 3, "distribution_bolts": 2, "tuple_bolts": 2, "delivery_bolts": 2}
    run(settings(tmp_path, "out", router=router, window=window, seed=5, **tasks))
    changes = Counter(pq.read_table(tmp_path / "out" / "updates").column("change").to_pylist())
    assert changes["enter"] > 200 and changes["leave"] > 200 and changes["change"] > 20 and not changes["match"]
    verdict = verify_run(tmp_path / "out", None)
    assert verdict.exact, verdict.render()


@pytest.mark.parametrize(
    ("router", "window"), [pytest.param("hashing", "living", marks=pytest.mark.long), ("location", "time:40")]
)
def test_run_of_ranked_kinds_over_objects_saved_and_resumed_with_other_tasks_ends_the_same(tmp_path, router, window):
    write_etl(tmp_path / "etl", versions(400, 4, 30))
    asked(tmp_path / "asked.jsonl")
    ended = []
    for name, lives in (("once", [(3, None)]), ("thrice", [(2, 5), (4, 13), (3, None)])):
        saved = None
        for number, (bolts, until) in enumerate(lives):
            tasks = {"query_bolts": bolts, "tuple_bolts": bolts, "distribution_bolts": 2, "router": router}
            plan = build_plan(settings(tmp_path, f"{name}{number}", window=window, **tasks))
            if until is None:
                report = run_local(plan, seed=number, resume=saved)
                figures = delivered([task.figures for task in report.components["delivery"].tasks])
                results = (tmp_path / f"{name}{number}" / "results.parquet").read_bytes()
                ended.append((figures["digest"], figures["updates"], results))
            else:
                saved = pause_local(plan, until, seed=number, resume=saved)
    assert ended[0] == ended[1]


@pytest.mark.parametrize("router", ["keyword", "prefix"])
def test_run_of_topk_over_objects_refuses_a_router_with_replicas_before_it_starts(tmp_path, router):
    write_etl(tmp_path / "etl", versions(30, 5, 10))
    asked(tmp_path / "asked.jsonl", kinds=("topk",))
    with pytest.raises(ConfigError, match=f"topk.*--router {router}"):
        run(settings(tmp_path, "out", router=router))


def test_run_of_messages_refuses_a_window_of_living_objects(tmp_path):
    write_etl(tmp_path / "etl", random_rows(30, seed=1))
    asked(tmp_path / "asked.jsonl", kinds=("topk",))
    with pytest.raises(ConfigError, match="living.*--objects"):
        run(settings(tmp_path, "out", objects=False))


def test_results_of_a_server_have_the_living_versions_with_their_scores(tmp_path):
    """An object that stays has no update: what is read is held against an engine's results, batch by batch."""
    asked = [
        {"subscription_id": kind, "kind": kind, "keywords": "flat garden", "lon": 1.0, "lat": 1.0, "k": 3}
        for kind in ("topk", "knn", "decay")
    ]
    asked[0]["alpha"] = asked[2]["alpha"] = 0.5
    region = {"keywords": "flat garden", "region": [0, 0, 2, 2]}
    asked += [region | {"subscription_id": kind, "kind": kind, "match": 1} for kind in ("boolean", "skyline")]
    del asked[4]["match"]
    rng, engine, seen = np.random.default_rng(7), Engine(objects=True, window="living"), Counter()
    with Served(tmp_path / "out", "--objects", "--window", "living") as served:
        for row in asked:
            engine.subscribe(**row)
            assert served.call("POST", "/v1/subscriptions", row).json["status"] == "created"
        living: dict[str, dict] = {}
        for batch in range(40):
            rows = []
            for one in range(3):
                name = f"o{rng.integers(6)}"
                row = {"id": f"{batch}-{one}", "object_id": name, "time": 1_700_000_000 + 10 * batch}
                if rng.random() < 0.2 and name in living:
                    rows.append(row | {"deleted": True})
                    del living[name]
                    continue
                words = " ".join(rng.choice(["flat", "garden", "balcony", "sunny"], 3))
                place = {"lon": 1.0 + float(rng.integers(8)) / 5, "lat": 1.0}
                living[name] = row | {"text": words} | place
                rows.append(living[name])
            engine.publish(rows)
            served.call("POST", "/v1/messages?wait=delivered", rows)
            for row in asked:
                kind = row["kind"]
                found = served.call("GET", f"/v1/subscriptions/{kind}/results").json["results"]
                if kind == "boolean":
                    near = [one for one in living.values() if one["lon"] <= 2]
                    meets = [one for one in near if {*one["text"].split()} & {"flat", "garden"}]
                    newest_first = sorted(meets, key=_place, reverse=True)
                    assert [one["message_id"] for one in found] == [one["id"] for one in newest_first]
                else:
                    expected = engine.results(kind)
                    assert [one["message_id"] for one in found] == [one["message_id"] for one in expected], kind
                    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected])
                assert [one["object_id"] for one in found] == [_object(one, living) for one in found]
                seen[kind] += len(found)
        served.end()
    assert min(seen.values()) > 40


def _place(row: dict) -> tuple[int, ...]:
    return tuple(map(int, row["id"].split("-")))


def _object(row: dict, living: dict[str, dict]) -> str:
    return next(name for name, one in living.items() if one["id"] == row["message_id"])
