"""Figures of webhooks, of all together: no label of Prometheus has a webhook."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from gateway.sinks.webhooks.model import STATES
from gateway.sinks.webhooks.service import Webhooks


def figures_of(hooks: Webhooks) -> Iterator[Metric]:
    """Accepted = delivered + waiting + dead + dropped, of deliveries and of updates."""
    dispatcher = hooks.dispatcher
    figures = dispatcher.figures
    deliveries, updates, dropped = figures.deliveries, figures.updates, figures.dropped.accepted
    yield _counter("accepted_deliveries", "Batches that are to be delivered", deliveries.accepted + dropped)
    yield _counter("delivered_deliveries", "Batches that were delivered", deliveries.delivered)
    yield _counter("dropped_deliveries", "Batches not delivered as their webhooks were deleted", dropped)
    yield _gauge("waiting_deliveries", "Batches that wait for an attempt", deliveries.waiting)
    yield _gauge("dead_deliveries", "Batches without attempts left", deliveries.dead)
    yield _counter("forgotten_deliveries", "Dead batches that were removed to make room for others", figures.forgotten)
    yield _counter("delivered_updates", "Updates that were delivered", updates.delivered)
    yield _gauge("waiting_updates", "Updates of batches that wait", updates.waiting)
    attempts = CounterMetricFamily("skyray_webhook_attempts", "Attempts by what became of them", labels=["outcome"])
    for outcome, count in sorted(figures.attempts.items()):
        attempts.add_metric([outcome], count)
    yield attempts
    took = SummaryMetricFamily("skyray_webhook_attempt_seconds", "How long attempts took")
    took.add_metric([], count_value=sum(figures.attempts.values()), sum_value=figures.attempt_s)
    yield took
    hooks_of = GaugeMetricFamily("skyray_webhooks", "Webhooks by state", labels=["state"])
    for state, count in _states(hooks).items():
        hooks_of.add_metric([state], count)
    yield hooks_of


def summary_of(hooks: Webhooks) -> dict[str, Any]:
    """As of `gateway.serve.models.Webhooks`, from any thread."""
    figures = hooks.dispatcher.figures
    deliveries, dropped = figures.deliveries, figures.dropped.accepted
    shown = deliveries.shown()
    return {**_states(hooks), **shown, "accepted": shown["accepted"] + dropped, "dropped": dropped, "lag": hooks.lag()}


def _states(hooks: Webhooks) -> dict[str, int]:
    """How many webhooks are in each state."""
    states = [line.hook.state for line in list(hooks.dispatcher.lines.values())]
    return {state: states.count(state) for state in STATES}


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"skyray_webhook_{name}", what, value)


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(f"skyray_webhook_{name}", what, value)
