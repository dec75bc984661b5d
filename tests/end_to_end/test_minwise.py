"""Min-wise signatures in the whole topology: without loss nothing is lost, what an estimate loses is counted.

What a boolean subscription is told depends on no other message, so what an estimate loses is exactly what is missing.
"""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.hashing import HashingRouter
from distribution.location import LocationRouter
from distribution.signatures.signature import SignatureSpec
from gateway import cli
from gateway.runs.verify import verify_run
from gateway.subscriptions.generate import generate_subscriptions
from matching.model import BOOLEAN, UpdateBatch
from matching.naive_rows import tally
from tests.support.etl_folder import random_rows, with_objects, write_etl
from tests.support.topologies import differences
from tests.support.worlds import SPACE, Collector, Recipe, World, WorldChanges, WorldMessages, make_world
from topology.core.executors.local import pause_local, run_local
from topology.running import run
from topology.settings import RunConfig
from topology.wiring import build_plan, wire

#: So many that some node has more than fifty times as many as a message has in common with it: estimates lose it.
WORDS = 300
#: Many words and few bins, likewise.
WORDY = Recipe(batch=10, messages=120, subscriptions=30, terms=30, kinds=(BOOLEAN,), churn=0.5, ranges=0.2)


def plan_of(world: World, router: str, reading: str, query: int, most: int = 6):
    """The topology with coarse min-wise signatures."""
    spec = SignatureSpec(SPACE, side=64, levels=3, text_filter=reading, bins=32, most=most)
    if router == "hashing":
        placed = HashingRouter(query, spec)
    else:
        rng = np.random.default_rng(7)
        placed = LocationRouter(query, SPACE, rng.random(200), rng.random(200) / 2, spec)
    source = WorldMessages(world), WorldChanges(world)
    return wire(*source, placed, SPACE, world.window, Collector(8), distribution_bolts=2, credits=8)


def missing_and_lost(world: World, report) -> tuple[int, int, int]:
    """Updates that the oracle tells and the run does not, those it made up, and the pairs it counts as lost."""
    columns = report.components["delivery"].tasks[0].figures["updates"]
    dtypes = (np.int64, np.int64, np.int64, np.int8, np.float64)
    got = tally(UpdateBatch(*(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True))))
    expected = sum(world.expected()[0], Counter())
    lost = sum(sum(task.figures["pairs_lost"].values()) for task in report.components["query"].tasks)
    return (expected - got).total(), (got - expected).total(), lost


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["hashing", "location"]), st.integers(1, 4), st.integers(1, 8))
def test_topology_with_minwise_signatures_equals_oracle_and_counts_what_estimates_lose(seed, router, query, most):
    world = make_world(WORDY, seed)
    report = run_local(plan_of(world, router, "minwise", query, most), seed=seed)
    assert not differences(world, report.components["delivery"].tasks[0].figures)
    assert missing_and_lost(world, report) == (0, 0, 0)
    missing, extra, lost = missing_and_lost(world, run_local(plan_of(world, router, "approximate", query), seed=seed))
    assert (extra, missing) == (0, lost)


def test_topology_estimate_loses_some_and_the_printed_one_almost_all():
    share = {}
    for reading in ("approximate", "printed"):
        world = make_world(replace(WORDY, messages=300), 5)
        missing, extra, lost = missing_and_lost(world, run_local(plan_of(world, "location", reading, 2), seed=5))
        assert extra == 0 and missing == lost > 0
        share[reading] = missing / sum(world.expected()[0], Counter()).total()
    assert share["approximate"] < share["printed"]


# -- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An ETL folder of versioned messages of many words, subscriptions to the world of a word each, and others."""
    root = tmp_path_factory.mktemp("minwise")
    etl = write_etl(root / "etl", with_objects(random_rows(240, WORDS, seed=3)), WORDS)
    for kind in ("boolean", "skyline"):
        generate_subscriptions(
            etl, kind, 60, 4, root / f"{kind}.jsonl", until_share=0.3, region_share=0.3, max_frequency=1.0
        )
    world = {"kind": "boolean", "region": [-180.0, -90.0, 180.0, 90.0]}
    rows = [world | {"subscription_id": f"wide {n}", "keywords": f"w{WORDS - 1 - n}"} for n in range(WORDS // 2)]
    (root / "wide.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def settings_of(folder, out, signatures: str, **more) -> RunConfig:
    files = tuple(folder / f"{kind}.jsonl" for kind in ("boolean", "skyline", "wide"))
    given = {"executor": "local", "query_bolts": 3, "router": "location", "window": "count:100", "batch": 40}
    # a signature keeps back what comes after it: of six batches most would be under way before there is one
    given |= {"credits": 4, "allow_loss": signatures == "approximate"}
    return RunConfig(messages=folder / "etl", subscriptions=files, out=out, signatures=signatures, **(given | more))


def test_run_with_minwise_signatures_is_exact_by_verify(folder, tmp_path):
    run(settings_of(folder, tmp_path / "off", "off"))
    report = run(settings_of(folder, tmp_path / "minwise", "minwise", distribution_bolts=2))
    verdict = verify_run(tmp_path / "minwise")
    assert verdict.exact and min(verdict.oracle_updates.values()) > 100, verdict.render()
    assert report["routing"]["signatures"]["lost"] == 0 < report["routing"]["signatures"]["kept_back"]


def test_run_with_approximate_signatures_says_what_verify_misses(folder, tmp_path, capsys):
    config = settings_of(folder, tmp_path / "lossy", "approximate")
    report = run(config)
    told, verdict = report["routing"]["signatures"], verify_run(tmp_path / "lossy")
    assert not verdict.exact and verdict.extra["boolean"] == 0
    assert verdict.missing["boolean"] == told["lost_pairs"]["boolean"] > 0
    assert 0.0 < told["lost_share"] <= 1.0 and told["lost"] <= told["kept_back"]
    # whoever was let through while the signature was emptier is told to leave all the same
    assert report["spouts"]["messages"]["ended"] > 20
    files = ["--messages", str(config.messages), "--subscriptions", *map(str, config.subscriptions)]
    options = ["--signatures", "approximate", "--allow-loss", "--executor", "local", "--batch", "40"]
    assert cli.main(["run", *files, "--out", str(tmp_path / "typed"), *options]) == 0
    assert "lost by signatures" in (out := capsys.readouterr().out) and "pairs of boolean" in out


def test_run_with_approximate_signatures_saved_and_gone_on_with_counts_on(folder, tmp_path):
    lost = {}
    for name, after in {"whole": (), "saved": (5, 8)}.items():
        out, resume = tmp_path / name, None
        out.mkdir()
        # a signature is sent again behind a pause: there are batches after it, and between the two
        config = settings_of(folder, out, "approximate", batch=20)
        for batch in after:
            resume = pause_local(build_plan(config), batch, seed=batch, resume=resume)
        report = run_local(build_plan(config), seed=9, resume=resume)
        figures = [task.figures for task in report.components["query"].tasks]
        told = report.components["delivery"].tasks[0].figures["updates"]["match"]
        lost[name] = sum(each["pairs_lost"]["boolean"] for each in figures), told
    assert sum(lost["whole"]) == sum(lost["saved"]) and min(map(min, lost.values())) > 0, "told and lost are all"


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("mode", ["minwise", pytest.param("approximate", marks=pytest.mark.wide)])
def test_run_on_ray_with_minwise_signatures_is_exact_and_an_estimate_counts_its_loss(folder, tmp_path, mode):
    report = run(settings_of(folder, tmp_path / mode, mode, executor="ray", query_bolts=2))
    verdict, lost = verify_run(tmp_path / mode), report["routing"]["signatures"]["lost_pairs"]
    assert verdict.exact == (mode == "minwise") == (not lost)
    assert verdict.extra["boolean"] == 0 and verdict.missing["boolean"] == lost.get("boolean", 0)
