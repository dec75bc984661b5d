"""The paced source: latencies count from the schedule, so that a stall of the engine cannot hide itself."""

import threading

import numpy as np
import pytest

from bolts.delivery import DeliveryBolt
from distribution.hashing import HashingRouter
from matching.errors import ConfigError
from matching.model import BOOLEAN, SKYLINE, TOPK
from matching.space import EARTH, Space
from matching.window import Window
from spouts.generated import Recipe
from spouts.paced import GeneratedSubscriptions, PacedSpout
from topology.core.component import Delivery
from topology.core.local import run_local
from topology.wiring import wire

SPACE, WINDOW, RECIPE = Space(*EARTH), Window.parse("count:2000"), Recipe(seed=3, vocabulary=500)
STALL_S = 0.6


class StallingDelivery(DeliveryBolt):
    """Delivery that stands still once, at batch 3, and everything with it."""

    def execute(self, delivery: Delivery) -> None:
        if delivery.stream == "updates" and delivery.payload.boundary.number == 3:
            threading.Event().wait(STALL_S)
        super().execute(delivery)


def run(delivery: DeliveryBolt, rate: float = 2000.0, limit: int = 1600):
    """Latency and the source's figures."""
    plan = wire(
        PacedSpout(RECIPE, WINDOW, SPACE, 100, limit, rate),
        GeneratedSubscriptions(RECIPE, WINDOW, SPACE, 50, 50, 20),
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


def test_paced_spout_publishes_no_sooner_than_due():
    _, source = run(DeliveryBolt("unused", WINDOW, 2, sink="count"))
    assert 0 < source["reached_rate"] <= 2000.0 * 1.01
    assert source["messages"] == 1600


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_paced_spout_without_a_rate_is_refused(rate):
    with pytest.raises(ConfigError, match="positive rate"):
        PacedSpout(RECIPE, WINDOW, SPACE, 100, 100, rate)


def test_generated_subscriptions_are_whole_and_the_same_for_a_seed():
    made, again = (GeneratedSubscriptions(RECIPE, WINDOW, SPACE, 30, 20, 10)._make() for _ in range(2))
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(made, again, strict=True))
    assert np.bincount(made.kind).tolist() == np.bincount([BOOLEAN] * 30 + [TOPK] * 20 + [SKYLINE] * 10).tolist()
    assert np.array_equal(np.isnan(made.region[:, 0]), made.kind == TOPK)
    west, south, east, north = made.region[made.kind == SKYLINE].T
    shares = (east - west) * (north - south) / (360.0 * 180.0)
    assert np.all(shares <= 0.0101) and shares.max() > 0.001
    norms = np.add.reduceat(made.weights.astype(float) ** 2, made.term_offsets[:-1])
    assert np.allclose(norms, 1.0, atol=1e-5) and np.all(np.diff(made.term_offsets) >= 1)
