"""The benchmark of routers: all tell what was checked, one that loses something is noticed, time is booked."""

from typing import Any

import numpy as np
import pytest

from benchmarks import cases, topology_cost
from benchmarks.cases import make_case
from benchmarks.routers import rebalanced, routed, routers_of, sent_alone_by, simulated
from benchmarks.topology_cost import checked, filled, router_of, stream_of
from distribution.hashing import HashingRouter
from distribution.location import LocationTable
from distribution.placed import SopRouter
from distribution.routers import PLACING
from distribution.signatures import claims as claims_module
from distribution.signatures import signature as signature_module
from matching.kinds import KINDS
from topology.wiring import credits_for

LONG = pytest.mark.long


def small(kind: str, subscriptions: int = 60, engine: str | None = None):
    case = make_case(KINDS.named(kind), subscriptions, 400, 600, 4, 3, history=2_000)
    return stream_of(case, 100, engine)


def told(kind: str, routers, ways, subscriptions: int = 60, engine: str | None = None):
    return routed(small(kind, subscriptions, engine), routers or routers_of(kind), ways, (), 1, lambda _: None)


@LONG
@pytest.mark.parametrize("kind", ["skyline", "topk", "boolean"])
def test_every_router_tells_what_one_bolt_tells_and_that_is_right(kind):
    stream = small(kind, 2_000)
    judged, _ = checked(stream, filled(stream))
    assert judged["exact"] and judged["compared"] > 30
    report = told(kind, [], (1, 3))
    assert len(report["rows"]) == 2 * len(routers_of(kind)) and all(row["same_updates"] for row in report["rows"])
    assert report["exact"]
    for row in report["rows"]:
        inside = sum(row["busiest_query_us"].values())
        assert 0 < row["query_us"] <= row["us_per_message"] <= row["all_us"] and inside > 0
        assert min(row["busiest_query_us"][part] for part in ("index", "packing")) > 0
    one, three = (
        [row for row in report["rows"] if row["query_bolts"] == n and row["router"] == "hashing"] for n in (1, 3)
    )
    assert (one[0]["sent_per_message"], three[0]["sent_per_message"]) == (1, 3)


def test_router_that_keeps_a_message_back_is_noticed(monkeypatch):
    route = LocationTable.route
    monkeypatch.setattr(LocationTable, "route", lambda self, messages: [rows[::2] for rows in route(self, messages)])
    same = {row["router"]: row["same_updates"] for row in told("boolean", ["hashing", "location"], (2,), 9_000)["rows"]}
    assert same == {"hashing": True, "location": False}


def test_router_that_begins_with_measured_parts_tells_the_same_updates():
    stream = small("knn", 300)
    plain = filled(stream)
    resumed = rebalanced(stream, plain, "influence", 3)
    assert len(resumed.work["query"]) == 3 and min(resumed.work["query"]) > 0
    before: Any = router_of(stream, "influence", 3)
    after = before.restored(resumed.tasks("distribution"), resumed.work["query"])
    assert np.array_equal(before.runs.start, after.runs.start) and not np.array_equal(
        before.runs.loads.weight, after.runs.loads.weight
    )
    report = routed(stream, ["hashing", "influence"], (3,), (), 1, lambda _: None, balanced=True)
    assert report["exact"] and report["compared"] > 300 and all(row["same_updates"] for row in report["rows"])


@pytest.mark.parametrize("engine", [None, pytest.param("inverted_file", marks=LONG)])
def test_every_placement_tells_the_same_updates_and_they_are_right(engine):
    report = told("knn", [], (3,), 300, engine)
    assert report["exact"] and report["same_updates"] and report["workload"]["history"] == 2_000
    assert report["compared"] > 100 and report["compared_subscriptions"] > 30
    assert [row["router"] for row in report["rows"]] == ["hashing", "influence", *PLACING]
    for row in report["rows"]:
        assert 0 < row["query_us"] <= row["all_us"] and 1.0 <= row["query_max_to_mean"] <= 3.0
        assert row["held_per_subscription"] == 1.0
        assert row["sent_per_message"] < 3 if row["router"] == "influence" else row["sent_per_message"] == 3


@pytest.mark.parametrize("by", ["one", "all"])
def test_placement_that_gives_somebody_to_nobody_is_noticed(by, monkeypatch):
    for router in (SopRouter, HashingRouter) if by == "all" else (SopRouter,):
        monkeypatch.setattr(router, "assigned_on_resume", losing(router.assigned_on_resume))
    report = told("knn", ["hashing", "sop"], (3,), 300)
    assert not report["exact"] and report["same_updates"] == (by == "all")


def test_placement_that_is_simulated_is_that_of_all_placed_together(monkeypatch):
    held, holds = [], SopRouter.assigned_on_resume
    monkeypatch.setattr(
        SopRouter, "assigned_on_resume", lambda self, *args: held.append(holds(self, *args)) or held[-1]
    )
    stream = small("knn", 300)
    simulated(stream, filled(stream), "sop", 3)
    router: Any = router_of(stream, "sop", 3)
    assert np.array_equal(np.argmax(held, axis=0), router.placer().place_all(stream.case.table))


@LONG
@pytest.mark.parametrize("kind", ["boolean", "skyline"])
def test_signatures_lose_nothing_but_where_they_say_so(kind):
    modes = ("spatial", "cuckoo+text", "scf", "scf:minwise:2", "approximate", "scf:printed:2")
    routers = ["location", *(f"location+{mode}" for mode in modes)]
    count = 9_000 if kind == "boolean" else 300
    report = told(kind, routers, (4,), count)
    plain, *rows = report["rows"]
    alone = sent_alone_by(small(kind, count), routers, (4,), lambda _: None)
    for row, sent in zip(report["rows"], alone["rows"], strict=True):
        # a run has more messages, and lets those of a first batch pass by claims
        assert row["sent_per_message"] == pytest.approx(sent["sent_per_message"], abs=0.03) or sent["lost"]
    assert report["exact"] and plain["sent_per_message"] == 1.0 and "signatures" not in plain
    for mode, row in zip(modes, rows, strict=True):
        figures = row["signatures"]
        assert figures["mode"] == mode and figures["bytes"] > 0
        assert figures["let_through_per_message"] == pytest.approx(row["sent_per_message"]) and figures["kept_back"] > 0
        loses = mode in ("approximate", "scf:printed:2")
        assert (figures["lost"] > 0) == loses and (row["same_updates"] or figures["lost"])
        if not loses:
            assert 1.0 > row["sent_per_message"] >= figures["optimum_per_message"] > 0.0


def test_signatures_are_not_charged_with_messages_from_before_they_were_there():
    case = make_case(KINDS.named("skyline"), 300, 400, 1_600, 1, 3, checked=400)
    stream = stream_of(case, 400)
    assert stream.timed == 400 and stream.joined == 1, "the batch before is as long as what is counted"
    figures = simulated(stream, filled(stream), "location+spatial+text", 2)["signatures"]
    assert 0.0 <= figures["false_positive_share"] < 1.0
    assert 0.0 < figures["optimum_per_message"] <= figures["let_through_per_message"] < 1.0


def test_signatures_by_the_rarest_keyword_alone_are_noticed(monkeypatch):
    for module in (claims_module, signature_module):
        monkeypatch.setattr(module, "is_loose", lambda table, traits: np.zeros(len(table), np.bool_))
    report = told("skyline", ["location", "location+spatial+text"], (2,), 300)
    assert [row["same_updates"] for row in report["rows"]] == [True, False] and not report["exact"]


def test_messages_sent_without_matching_are_held_against_every_subscription(monkeypatch):
    stream = small("skyline", 300)
    report = sent_alone_by(stream, ["location", "location+scf", "location+scf:printed:2"], (2,), lambda _: None)
    plain, spatial, lossy = report["rows"]
    assert report["exact"] and report["compared"] > 100 and plain["sent_per_message"] == 1.0
    # of a sample of the messages
    assert abs(report["inside_share"] - spatial["sent_per_message"]) < 0.02 and spatial["sent_per_message"] < 1.0
    assert lossy["lost"] > spatial["lost"] == 0
    route = LocationTable.route
    monkeypatch.setattr(LocationTable, "route", lambda self, messages: [rows[::2] for rows in route(self, messages)])
    assert not sent_alone_by(stream, ["location"], (2,), lambda _: None)["exact"]


def losing(holds):
    return lambda self, table, *args: holds(self, table, *args) & (table.number % 3 > 0)


def test_filled_stream_goes_on_behind_the_batch_that_brought_everybody():
    stream = small("topk")
    saved = filled(stream)
    assert saved.number == stream.joined
    passed = int(np.sum([task["counts"][0] for task in saved.parts["distribution"]]))
    assert passed == 600 + 100 and passed + stream.timed == len(stream.case.messages)


@pytest.mark.ray
@LONG
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("lost", [0, 1])
def test_topology_that_tells_other_updates_than_the_room_alone_is_noticed(lost, monkeypatch):
    class Losing(topology_cost.LocalEngine):
        def process(self, *args):
            step = super().process(*args)
            return step._replace(updates=type(step.updates)(*(column[lost:] for column in step.updates)))

    monkeypatch.setattr(cases, "_HISTORY", 2_000)
    monkeypatch.setattr(topology_cost, "LocalEngine", Losing)
    report = topology_cost.bench(9_000, 1_200, 100, rounds=1, ways=("ray_two",), tell=lambda _: None)
    assert report["compared"] > 10 and report["same_updates"] is report["exact"] is (lost == 0)
    assert report["share"] > 0 and report["workload"]["timed"] == 1_200 - (credits_for(100) - 1) * 100
    assert set(report["ways"]["ray_two"]["cpu_us"]) == {"light", "query:0", "query:1"}
