"""The paced source: latencies count from the schedule, so that a stall of the engine cannot hide itself.

And the subscriptions beside it, of any kinds that run.
"""

import hashlib
import threading
from dataclasses import replace

import numpy as np
import pytest

from bolts.delivery import DeliveryBolt
from distribution.hashing import HashingRouter
from matching.errors import ConfigError
from matching.kind_table import Kind, Kinds
from matching.kind_table import Recipe as KindRecipe
from matching.kinds import KINDS
from matching.model import BOOLEAN, SKYLINE, TOPK
from matching.space import EARTH, Space
from matching.window import Window
from spouts.generated import MessageRecipe
from spouts.paced import GeneratedSubscriptions, PacedSpout
from tests.support.clocks import FakeClock
from topology.core.api.component import Delivery
from topology.core.executors.local import run_local
from topology.wiring import wire

SPACE, WINDOW, RECIPE = Space(*EARTH), Window.parse("count:2000"), MessageRecipe(seed=3, vocabulary=500)
STALL_S = 0.6
COUNTS = {"boolean": 30, "topk": 20, "skyline": 10}


class StallingDelivery(DeliveryBolt):
    """Delivery that stands still once, at batch 3, and everything with it."""

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "updates" and delivery.payload.boundary.number == 3:
            threading.Event().wait(STALL_S)
        super().execute(delivery)


#: The time of runs that no busy machine delays: only the source's waits and the stall move it.
CLOCK = FakeClock()


class ClockedDelivery(DeliveryBolt):
    """As `StallingDelivery`, by `CLOCK`."""

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "updates" and delivery.payload.boundary.number == 3:
            CLOCK.advance(STALL_S)
        super().execute(delivery)


class ClockedSpout(PacedSpout):
    """Waits by `CLOCK`."""

    def open(self, context):
        context.wait = lambda seconds, came=None: CLOCK.advance(seconds)
        super().open(context)


class NotingSpout(PacedSpout):
    """Notes which batches it said were ready."""

    def open(self, context):
        super().open(context)
        self.said = []

    def next_batch(self, number, tick):
        self.said.append(self.ready())
        return super().next_batch(number, tick)

    def report(self):
        return super().report() | {"said": self.said}


def run(delivery: DeliveryBolt, rate: float = 2000.0, limit: int = 1600):
    """Latency and the source's figures."""
    plan = wire(
        NotingSpout(RECIPE, WINDOW, SPACE, 100, limit, rate),
        GeneratedSubscriptions(RECIPE, WINDOW, SPACE, {"boolean": 50, "topk": 50, "skyline": 20}),
        HashingRouter(1),
        SPACE,
        WINDOW,
        delivery,
        credits=2,
    )
    report = run_local(plan)
    return report.components["delivery"].latency, report.components["messages"].tasks[0].figures


def test_paced_spout_stall_shows_in_the_latency_of_what_was_due_meanwhile():
    latency, source = run(StallingDelivery("unused", WINDOW, 2, sink="count"))
    assert latency["max_s"] >= STALL_S
    # 12 of 16 batches were due after the stall began; had the source just slowed down, only one batch would be late
    assert latency["p50_s"] >= 0.1
    assert source["furthest_behind_s"] >= 0.3
    assert not source["said"][0] and any(source["said"]), "what is late is ready, and nothing is before it is due"


def test_paced_spout_publishes_no_sooner_than_due():
    _, source = run(DeliveryBolt("unused", WINDOW, 2, sink="count"))
    assert 0 < source["reached_rate"] <= 2000.0 * 1.01
    assert source["messages"] == 1600


def test_paced_spout_closes_a_batch_when_its_first_message_has_lingered():
    """The stall makes batches larger and not later: what became due meanwhile goes at once, up to the largest size."""
    plan = wire(
        ClockedSpout(RECIPE, WINDOW, SPACE, 400, 1600, 2000.0, linger_s=0.005),
        GeneratedSubscriptions(RECIPE, WINDOW, SPACE, {"boolean": 50}),
        HashingRouter(1),
        SPACE,
        WINDOW,
        ClockedDelivery("unused", WINDOW, 2, sink="count"),
        credits=2,
    )
    source = run_local(plan, clock=CLOCK).components["messages"].tasks[0].figures
    assert source["messages"] == 1600
    # A batch of ten or eleven each 5 ms, but 1,200 messages are due after the stall of 0.6 s: three of the largest.
    assert 1_600 / 400 + 30 < source["batches"] < 50
    assert STALL_S - 0.01 < source["furthest_behind_s"] < STALL_S


def test_paced_spout_says_where_batches_ended_that_are_watched():
    ends = {}
    for seen in (range(0), range(199, 500)):
        plan = wire(
            PacedSpout(RECIPE, WINDOW, SPACE, 100, 750, 1e6, watched=seen),
            GeneratedSubscriptions(RECIPE, WINDOW, SPACE, {"boolean": 5}),
            HashingRouter(1),
            SPACE,
            WINDOW,
            DeliveryBolt("unused", WINDOW, 2, sink="count"),
        )
        ends[seen] = run_local(plan).components["messages"].tasks[0].figures["ends"]
    assert ends == {range(0): [], range(199, 500): [199, 299, 399, 499]}


def test_paced_spout_negative_linger_time_is_refused():
    with pytest.raises(ConfigError, match="linger time -0.1 s"):
        PacedSpout(RECIPE, WINDOW, SPACE, 100, 100, 10.0, linger_s=-0.1)


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_paced_spout_without_a_rate_is_refused(rate):
    with pytest.raises(ConfigError, match="positive rate"):
        PacedSpout(RECIPE, WINDOW, SPACE, 100, 100, rate)


def test_generated_subscriptions_are_whole_and_the_same_for_a_seed():
    made, again = (GeneratedSubscriptions(RECIPE, WINDOW, SPACE, COUNTS).make() for _ in range(2))
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(made, again, strict=True))
    assert np.bincount(made.kind).tolist() == np.bincount([BOOLEAN] * 30 + [TOPK] * 20 + [SKYLINE] * 10).tolist()
    assert np.array_equal(np.isnan(made.region[:, 0]), made.kind == TOPK)
    west, south, east, north = made.region[made.kind == SKYLINE].T
    shares = (east - west) * (north - south) / (360.0 * 180.0)
    assert np.all(shares <= 0.0101) and shares.max() > 0.001
    norms = np.add.reduceat(made.weights.astype(float) ** 2, made.term_offsets[:-1])
    assert np.allclose(norms, 1.0, atol=1e-5) and np.all(np.diff(made.term_offsets) >= 1)


def test_generated_subscriptions_stay_what_they_are():
    """Figures of load tests that were published name a seed: whoever repeats them must get the same load."""
    made = GeneratedSubscriptions(RECIPE, WINDOW, SPACE, dict(reversed(COUNTS.items()))).make()
    # degrees are compared to a tenth of a millimetre: how sides are worked out has changed
    columns = (np.round(column, 9) if column.dtype.kind == "f" else column for column in made)
    digests = [hashlib.sha256(column.tobytes()).hexdigest()[:12] for column in columns]
    assert dict(zip(made._fields, digests, strict=True)) == {
        "number": "0e303f841364",
        "kind": "ae2bdefcd4ea",
        "at": "4b48f21a4b7a",
        "x": "f7a93c876b14",
        "y": "2d77d3c642c4",
        "region": "c64b87121129",
        "match": "5dcc1b5872dd",
        "k": "473e1f32d8ea",
        "alpha": "54cf3d8a9879",
        "term_offsets": "4b5f6987fb22",
        "terms": "b97f20711e45",
        "weights": "7df49da5e107",
        "filter_offsets": "e3b0c44298fc",  # empty
        "filter_words": "e3b0c44298fc",
        "vector": "e3b0c44298fc",
        "radius_m": "e3b0c44298fc",
    }


#: All kinds run here, those without an operator of their own in that of another, and so do two more.
TOPK_OPERATOR = KINDS.named("topk").operator
EVERYTHING = Kinds(replace(kind, operator=kind.operator or TOPK_OPERATOR) for kind in KINDS).plus(
    Kind(5, "beacon", "point", TOPK_OPERATOR, recipe=KindRecipe("none", keywords=(3, 4))),
    Kind(6, "zone", "region", TOPK_OPERATOR, fields=("k",), recipe=KindRecipe("none", k=(4, 6), side=0.5)),
)


def test_generated_subscriptions_follow_the_recipe_of_any_kind_that_runs():
    made = GeneratedSubscriptions(RECIPE, WINDOW, SPACE, dict.fromkeys(EVERYTHING.names, 200), EVERYTHING).make()
    of = {kind.name: made.of_kind(kind.code) for kind in EVERYTHING}
    assert all(len(table) == 200 for table in of.values())
    for kind in EVERYTHING:
        table, is_region = of[kind.name], kind.place == "region"
        assert np.isnan(table.region).all() != is_region and np.isnan(table.x).all() == is_region
        assert np.isnan(table.alpha).all() == ("alpha" not in kind.fields)
        low, high = kind.recipe.k if "k" in kind.fields else (0, 0)
        assert set(table.k.tolist()) == set(range(low, high + 1)), kind.name
        fewest, most = kind.recipe.keywords
        assert np.diff(table.term_offsets).max() == most and np.mean(np.diff(table.term_offsets) >= fewest) > 0.95
    widths = of["zone"].region[:, 2] - of["zone"].region[:, 0]
    assert 120 < widths.max() <= 180 and widths.min() < 20, "up to half of the world, any side as likely"
    common = [np.median(table.terms) for table in (of["boolean"], of["topk"])]
    assert common[0] > common[1] + 10, "those that prefer frequent words have them"
    assert np.ptp(of["boolean"].region[:, [0, 2]], axis=1).max() <= 10.0 + 1e-9


def test_generated_subscriptions_none_at_all_are_an_empty_table():
    assert len(GeneratedSubscriptions(RECIPE, WINDOW, SPACE, {}).make()) == 0


@pytest.mark.parametrize(
    ("counts", "what"),
    [({"idle": 3}, "of a kind that runs"), ({"topk": -1}, "0 or more"), ({"ring": 1}, "unknown kind")],
)
def test_generated_subscriptions_that_cannot_be_are_refused(counts, what):
    kinds = KINDS.plus(Kind(len(KINDS), "idle", "point"))
    with pytest.raises(ConfigError, match=what):
        GeneratedSubscriptions(RECIPE, WINDOW, SPACE, counts, kinds)
