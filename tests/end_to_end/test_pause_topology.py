"""The topology of the product, paused again and again: whatever bolts and routers go on, the same is told.

Subscriptions of all kinds come, go and change hands, messages are replaced by later ones; the window is short, so that
results run short and are refilled.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.covering import tiered
from tests.support.etl_folder import random_rows, with_objects, write_etl
from topology.core.executors.local import pause_local, run_local
from topology.settings import RunConfig
from topology.wiring import build_plan

MESSAGES, BATCH, IDS, WORDS = 240, 8, 60, 12
BATCHES = MESSAGES // BATCH
#: Query, tuple, distribution and aggregation bolts, one after the other.
SIZES = ((3, 2, 2, 1), (2, 3, 1, 2), (4, 1, 2, 2), (1, 2, 3, 1))
#: Kinds that the routers can place.
ALL_KINDS = ("boolean", "topk", "skyline", "decay", "knn")
KINDS = {
    "hashing": ALL_KINDS,
    "location": ALL_KINDS,
    "keyword": ("boolean", "topk"),
    "prefix": ("boolean", "topk"),
    "dkm-sks": ALL_KINDS,
    "ps2stream": ALL_KINDS,
}
WINDOWS = ("count:40", "time:45")


@pytest.fixture(scope="module")
def etl(tmp_path_factory) -> Path:
    rows = with_objects(random_rows(MESSAGES, WORDS, late_s=20))
    return write_etl(tmp_path_factory.mktemp("paused") / "etl", rows, WORDS)


@pytest.fixture(scope="module")
def files(etl) -> dict[tuple[str, ...], Path]:
    """Subscriptions by the kinds they are of."""
    made = {}
    for kinds in set(KINDS.values()):
        rng = np.random.default_rng(5)
        rows = []
        for number in range(IDS):
            words = [f"w{word}" for word in rng.choice(WORDS, rng.integers(1, 4), replace=False)]
            lon, lat = rng.uniform(-100.0, 100.0), rng.uniform(-60.0, 60.0)
            at = 0
            while at < MESSAGES:
                kind = str(rng.choice(kinds))
                row = {"subscription_id": f"id {number}", "kind": kind, "keywords": words, "at": at}
                if kind in ("topk", "decay", "knn"):
                    alpha = {} if kind == "knn" else {"alpha": float(rng.choice([0.1, 0.5, 0.9]))}
                    row |= {"lon": lon, "lat": lat, "k": 4, **alpha}
                else:
                    row["region"] = [lon - 80.0, lat - 30.0, lon + 80.0, lat + 30.0]
                if kind == "boolean":
                    row["keywords"] = words[:1]
                rows.append(row)
                at += int(rng.integers(30, 150))
                if rng.random() < 0.3 and at < MESSAGES:
                    rows.append({"unsubscribe": f"id {number}", "at": at})
                    at += int(rng.integers(0, 20))
        made[kinds] = etl.parent / f"{'-'.join(kinds)}.jsonl"
        made[kinds].write_text("\n".join(map(json.dumps, rows)))
    return made


def plan_of(etl, files, out, kinds, router, sizes, window, signatures="off"):
    query, tuples, distribution, aggregation = sizes
    out.mkdir(exist_ok=True)
    return build_plan(
        RunConfig(
            messages=etl,
            subscriptions=(files[kinds],),
            out=out,
            window=window,
            threshold_rule="sma",  # runs short often
            batch=BATCH,
            router=router,
            signatures=signatures,
            query_bolts=query,
            tuple_bolts=tuples,
            distribution_bolts=distribution,
            aggregation_bolts=aggregation,
            sink="count",
        )
    )


def told(report):
    figures = report.components["delivery"].tasks[0].figures
    return {name: figures[name] for name in ("digest", "updates", "batches", "complete_through", "results")}


@pytest.fixture(scope="module")
def whole(etl, files):
    """What an uninterrupted run tells, by window and kinds."""
    expected = {}
    for window in WINDOWS:
        for kinds in set(KINDS.values()):
            plan = plan_of(etl, files, etl.parent / "whole", kinds, "hashing", SIZES[0], window)
            expected[window, kinds] = told(run_local(plan))
            assert min(expected[window, kinds]["updates"].values()) > 50 and expected[window, kinds]["results"] > 10
    return expected


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("router", KINDS)
@pytest.mark.parametrize("seed", tiered(range(2), 2))
def test_topology_paused_with_other_numbers_of_bolts_tells_the_same(etl, files, whole, tmp_path, router, window, seed):
    rng = np.random.default_rng(seed)
    kinds, saved = KINDS[router], None
    for place, after in enumerate(sorted(rng.choice(BATCHES, 4, replace=False).tolist())):
        plan = plan_of(etl, files, tmp_path, kinds, router, SIZES[place], window)
        saved = pause_local(plan, after, seed=seed, resume=saved)
    plan = plan_of(etl, files, tmp_path, kinds, router, SIZES[seed], window)
    assert told(run_local(plan, seed=seed, resume=saved)) == whole[window, kinds]


@pytest.mark.parametrize("window", WINDOWS)
def test_topology_paused_goes_on_with_another_router(etl, files, whole, tmp_path, window):
    for kinds in set(KINDS.values()):
        saved = None
        able = [name for name, placed in KINDS.items() if placed == kinds or len(kinds) < len(placed)]
        for place, router in enumerate(able * 2):
            signatures = "minwise" if router == "location" else "off"
            plan = plan_of(etl, files, tmp_path, kinds, router, SIZES[place % 4], window, signatures=signatures)
            saved = pause_local(plan, 2 * place + 2, seed=place, resume=saved)
        plan = plan_of(etl, files, tmp_path, kinds, "hashing", SIZES[1], window)
        assert told(run_local(plan, resume=saved)) == whole[window, kinds]


def test_topology_paused_behind_every_batch_tells_the_same(etl, files, whole, tmp_path):
    window, kinds, saved = WINDOWS[1], KINDS["location"], None
    for after in range(-1, BATCHES):
        plan = plan_of(etl, files, tmp_path, kinds, "location", SIZES[after % 4], window)
        saved = pause_local(plan, after, seed=after + 1, resume=saved)
    plan = plan_of(etl, files, tmp_path, kinds, "location", SIZES[0], window)
    assert told(run_local(plan, resume=saved)) == whole[window, kinds]
