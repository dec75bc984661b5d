"""Signatures in the whole topology: exact whatever the settings, fewer messages, and wrong when broken on purpose."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from bolts.distribution import DistributionBolt
from distribution import router as router_module
from distribution.hashing import HashingRouter
from distribution.location import LocationRouter
from distribution.signatures.signature import SignatureBoard, SignatureReplica, SignatureSpec
from distribution.signatures.spatial import whole_domain
from matching.errors import ConfigError
from matching.model import BOOLEAN, TOPK, Removals
from tests.support.covering import pairwise, tiered
from tests.support.etl_folder import random_rows, write_etl
from tests.support.topologies import differences, with_lines
from tests.support.worlds import (
    SPACE,
    Collector,
    Recipe,
    World,
    WorldChanges,
    WorldMessages,
    make_world,
    without_the_last,
)
from topology.core.executors.local import run_local
from topology.running import run
from topology.settings import RunConfig
from topology.wiring import wire

SETTINGS = {
    "router": ("hashing", "location"),
    "mode": ("off", "spatial", "spatial+text"),
    "filters": (("bitmap", "cuckoo"), ("cuckoo", "cuckoo"), ("cuckoo", "minwise")),
    "query": (1, 2, 5),
    "distribution": (1, 2, 3),
    "batch": (1, 7, 40),
    "kinds": ((BOOLEAN,), (BOOLEAN, TOPK)),
    "ranges": (0.0, 0.3),
    "grid": (None, 3),
}
#: Something to keep back: small messages, few subscriptions, and changes in almost every batch.
CHANGING = Recipe(batch=5, messages=200, subscriptions=15, terms=12, kinds=(BOOLEAN,), churn=0.9)


def plan_of(
    world: World,
    router="location",
    mode="spatial+text",
    query=3,
    distribution=2,
    filters=("bitmap", "cuckoo"),
    credits=8,
    side=64,
):
    """The topology with signatures, coarse ones, so that cells and nodes come and go."""
    spec = None
    if mode != "off":
        spec = SignatureSpec(SPACE, mode == "spatial+text", side, 4, 0.01, *filters, bins=8, most=10)
    if router == "hashing":
        placed = HashingRouter(query, spec)
    else:
        rng = np.random.default_rng(7)
        placed = LocationRouter(query, SPACE, rng.random(200), rng.random(200) / 2, spec)
    return wire(
        WorldMessages(world), WorldChanges(world), placed, SPACE, world.window, Collector(credits),
        distribution_bolts=distribution, credits=credits,
    )  # fmt: skip


def figures_of(report, component: str, name: str) -> int:
    return sum(task.figures[name] for task in report.components[component].tasks)


@pytest.mark.parametrize("row", tiered(pairwise(SETTINGS), 3), ids=lambda row: "-".join(map(str, row.values())))
def test_topology_every_pair_of_settings_with_signatures_equals_oracle(row):
    recipe = Recipe(
        batch=row["batch"], messages=100, ranges=row["ranges"], grid=row["grid"], kinds=row["kinds"], churn=0.8, terms=9
    )
    world = make_world(recipe, 23)
    tasks = {name: row[name] for name in ("router", "mode", "query", "distribution", "filters")}
    report = run_local(plan_of(world, **tasks), seed=23)
    assert not differences(world, report.components["delivery"].tasks[0].figures)


def changing_runs(seeds=range(6), **settings) -> Iterator[str]:
    """What runs over changing worlds missed or made up, one after the other."""
    for seed in seeds:
        world = make_world(CHANGING, seed)
        figures = run_local(plan_of(world, **settings), seed=seed).components["delivery"].tasks[0].figures
        yield differences(world, figures)


@pytest.mark.parametrize("router", ["hashing", "location"])
def test_topology_with_changes_in_every_batch_under_many_interleavings_equals_oracle(router):
    assert not any(changing_runs(range(5), router=router))


def test_topology_text_keeps_back_more_than_space_and_space_more_than_nothing():
    world = make_world(Recipe(batch=20, messages=600, subscriptions=20, terms=40, kinds=(BOOLEAN,), churn=0.3), 3)
    sent, useful = {}, {}
    for mode in ("off", "spatial", "spatial+text"):
        report = run_local(plan_of(world, mode=mode, side=1024), seed=3)
        assert not differences(world, report.components["delivery"].tasks[0].figures)
        tasks = report.components["distribution"].tasks
        sent[mode] = sum(sum(task.figures["sent_to_each_query_task"]) for task in tasks)
        useful[mode] = figures_of(report, "query", "messages_met")
    assert useful["off"] == useful["spatial"] == useful["spatial+text"]
    assert useful["off"] < sent["spatial+text"] < sent["spatial"] < sent["off"] == 600
    assert sent["spatial+text"] < 0.6 * sent["off"]


def test_topology_copies_follow_the_query_tasks_to_the_end():
    """Every distribution task ends with the same signatures, and with no subscription left they keep all back."""
    world = make_world(CHANGING, 2)
    report = run_local(plan_of(world), seed=2)
    size = {task.figures["signature_bytes"] for task in report.components["distribution"].tasks}
    assert len(size) == 1 and size.pop() > 0
    queried, kept_back = (figures_of(report, "distribution", f"signature_{name}") for name in ("queried", "kept_back"))
    assert 0 < kept_back < queried == 200


@pytest.mark.parametrize("router", ["hashing", "location"])
def test_topology_removed_subscriptions_leave_nothing_in_the_signatures(router):
    world = without_the_last(make_world(CHANGING, 4))
    report = run_local(plan_of(world, router=router), seed=4)
    assert not differences(world, report.components["delivery"].tasks[0].figures)
    assert figures_of(report, "query", "signature_cells") == figures_of(report, "query", "signature_pairs") == 0


def test_hashing_table_sends_everything_only_while_somebody_without_a_region_is_there():
    world = make_world(Recipe(messages=40, kinds=(TOPK,), churn=0), 1)
    _, messages, changes = world.batches[0]
    added, nobody = changes.added, Removals(*(column[:0] for column in changes.removed))
    table = HashingRouter(3, SignatureSpec(SPACE)).table()
    table.change(added, nobody)
    for task in range(3):
        assert table.route(messages)[task].size == len(messages)
    numbers = added.number
    table.change(added.take(numbers[:0]), Removals(numbers[1:], added.kind[1:], np.zeros(numbers.size - 1, np.int64)))
    assert [rows.size for rows in table.route(messages)] == [len(messages)] * 3, "one is left"
    table.change(added.take(numbers[:0]), Removals(numbers[:1], added.kind[:1], np.zeros(1, np.int64)))
    assert [rows.size for rows in table.route(messages)] == [0] * 3


@pytest.mark.parametrize("router", ["hashing", "location"])
@pytest.mark.parametrize("side", [64, 1024])
def test_topology_lines_and_world_wide_messages_with_signatures_equal_oracle(router, side):
    recipe = Recipe(ranges=0.5, grid=3, kinds=(BOOLEAN,), subscriptions=60, messages=160, terms=9)
    world = with_lines(make_world(recipe, 25))
    figures = (
        run_local(plan_of(world, router=router, side=side, query=5), seed=25).components["delivery"].tasks[0].figures
    )
    assert not differences(world, figures)


# -- broken on purpose


class NotesNothing(SignatureReplica):
    """Broken: knows a new subscription only when its signature has arrived."""

    def note(self, batch, added):
        pass


class ForgetsAllNotes(SignatureReplica):
    """Broken: takes every patch for the latest news."""

    def apply(self, patch):
        super().apply(patch)
        self._noted.clear()
        self._notes = None


class CountsOwnLists(DistributionBolt):
    """Broken: a task hears only of the changes that belong to its own batches."""

    def _advance(self):
        while (ready := self.inputs.pop()) is not None:
            changes, batch = ready.payloads["changes"][0], ready.payloads["batches"][0]
            if batch is not None:
                self.table.change(changes.added, changes.removed)
                self._send(batch)
                self.last_batch = ready.number


class FirstHitTakesIt(SignatureBoard):
    """Broken, as printed in the paper: the first signature that says yes gets the message, and nobody else does."""

    def __init__(self, spec, domains):
        super().__init__(spec, domains)
        self.taken: dict[int, int] = {}

    def wanted(self, messages, rows, task):
        for other, replica in enumerate(self.replicas):
            for seq in messages.seq[replica.may_match(messages)].tolist():
                self.taken.setdefault(seq, other)
        return np.array([row for row in rows.tolist() if self.taken.get(int(messages.seq[row])) == task], np.int64)

    def passed_by_owner(self, messages, x, y, owner):
        passed = np.zeros(len(messages), np.bool_)
        for task in range(len(self.replicas)):
            passed[self.wanted(messages, np.flatnonzero(owner == task), task)] = True
        return passed


@pytest.mark.parametrize(
    ("where", "broken"),
    [
        ("distribution.signatures.signature.SignatureReplica", NotesNothing),
        ("distribution.signatures.signature.SignatureReplica", ForgetsAllNotes),
        ("topology.wiring.DistributionBolt", CountsOwnLists),
    ],
)
def test_topology_broken_signatures_are_noticed(monkeypatch, where, broken):
    monkeypatch.setattr(where, broken)
    assert any("missing" in told for told in changing_runs())


def test_topology_signature_of_a_task_that_does_not_own_the_place_shadows_the_owner(monkeypatch):
    monkeypatch.setattr(LocationRouter, "domain_of", lambda _self, _task: whole_domain())
    assert not any(changing_runs(range(2), query=5)), "asking the owner alone is right even of signatures not clipped"
    monkeypatch.setattr(router_module, "SignatureBoard", FirstHitTakesIt)
    assert any("missing" in told for told in changing_runs(range(2), query=5))


# -- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An ETL folder and subscriptions, a third of which end in the middle of the stream."""
    root = tmp_path_factory.mktemp("signatures")
    write_etl(root / "etl", random_rows(600, seed=3))
    rng = np.random.default_rng(4)
    with (root / "subscriptions.jsonl").open("w", encoding="utf-8") as out:
        for number in range(60):
            lon, lat = float(rng.uniform(-170, 150)), float(rng.uniform(-80, 70))
            row = {
                "subscription_id": f"s{number}",
                "kind": "boolean",
                "keywords": [f"w{word}" for word in rng.choice(12, rng.integers(1, 3), replace=False)],
                "region": [lon, lat, lon + 25.0, lat + 15.0],
            }
            out.write(json.dumps(row | ({"at": 150, "until": 400} if number % 3 == 0 else {})) + "\n")
    return root


def settings_of(folder, out: str, **more) -> RunConfig:
    return RunConfig(
        messages=folder / "etl", subscriptions=(folder / "subscriptions.jsonl",), out=folder / out,
        window="count:100", batch=40, query_bolts=3, executor="local", world="earth", **more,
    )  # fmt: skip


def test_run_reports_what_signatures_save_and_cost(folder):
    told = {}
    for router in ("hashing", "location"):
        for mode in ("off", "spatial", "cuckoo", "cuckoo+text", "minwise", "spatial+text"):
            summary = run(settings_of(folder, f"{router}-{mode}", router=router, signatures=mode))
            told[router, mode] = summary["digest"], summary["routing"]
    assert len({json.dumps(digest) for digest, _ in told.values()}) == 1
    assert told["location", "off"][1]["signatures"] == {"mode": "off"}
    figures = told["location", "spatial+text"][1]
    signatures = figures["signatures"]
    let_through = signatures["let_through_per_message"]
    assert let_through == pytest.approx(figures["messages_sent_per_message"])
    assert signatures["optimum_per_message"] <= let_through < signatures["queried_per_message"]
    assert 0.0 <= signatures["false_positive_share"] < 1.0
    assert signatures["bytes"] > 0 and signatures["patch_bytes"] > 0
    assert told["location", "cuckoo"][1]["signatures"]["bytes"] != told["location", "spatial"][1]["signatures"]["bytes"]
    modes = ("off", "spatial", "minwise", "spatial+text")
    through = [told["hashing", mode][1]["messages_sent_per_message"] for mode in modes]
    assert through == sorted(through, reverse=True) and through[3] < through[1] < through[0] == 3 and through[2] < 3
    assert all(figures["signatures"].get("lost", 0) == 0 for _, figures in told.values())


def test_run_signatures_with_a_router_by_keyword_are_refused(folder):
    with pytest.raises(ConfigError, match="use hashing or location"):
        run(settings_of(folder, "refused", router="prefix", signatures="spatial"))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("router", "kinds"), tiered([pytest.param("location", (BOOLEAN, TOPK)), pytest.param("hashing", (BOOLEAN,))], 2)
)
@pytest.mark.long
def test_topology_on_ray_with_signatures_equals_oracle(router, kinds):
    from topology.core.executors.ray import run_ray

    recipe = Recipe(batch=10, messages=200, subscriptions=40, ranges=0.2, grid=3, kinds=kinds, churn=0.9)
    world = make_world(recipe, 5)
    report = run_ray(plan_of(world, router=router, query=2, distribution=2), together=(("messages", "subscriptions"),))
    assert not differences(world, report.components["delivery"].tasks[0].figures)
    assert figures_of(report, "distribution", "signature_kept_back") > 0
