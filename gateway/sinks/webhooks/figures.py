"""Figures of webhooks, of all together: no label of Prometheus has a webhook."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily

from gateway.metrics import counter, gauge, labelled
from gateway.sinks.webhooks.model import STATES
from gateway.sinks.webhooks.service import WebhookService


def figures_of(hooks: WebhookService) -> Iterator[Metric]:
    """Accepted = delivered + waiting + dead + dropped, of deliveries and of updates."""
    dispatcher = hooks.dispatcher
    figures = dispatcher.figures
    deliveries, updates, dropped = figures.deliveries, figures.updates, figures.dropped
    yield counter("webhook_accepted_deliveries", "Batches that are to be delivered", deliveries.accepted + dropped)
    yield counter("webhook_delivered_deliveries", "Batches that were delivered", deliveries.delivered)
    yield counter("webhook_dropped_deliveries", "Batches not delivered as their webhooks were deleted", dropped)
    yield gauge("webhook_waiting_deliveries", "Batches that wait for an attempt", deliveries.waiting)
    yield gauge("webhook_dead_deliveries", "Batches without attempts left", deliveries.dead)
    yield counter(
        "webhook_forgotten_deliveries", "Dead batches that were removed to make room for others", figures.forgotten
    )
    yield counter("webhook_delivered_updates", "Updates that were delivered", updates.delivered)
    yield gauge("webhook_waiting_updates", "Updates of batches that wait", updates.waiting)
    attempts = sorted(figures.attempts.items())
    yield labelled("webhook_attempts", "Attempts by what became of them", "outcome", attempts)
    took = SummaryMetricFamily("skyray_webhook_attempt_seconds", "How long attempts took")
    took.add_metric([], count_value=sum(figures.attempts.values()), sum_value=figures.attempt_s)
    yield took
    yield counter("tellings", "Tellings of subscriptions with `tell`", dispatcher.told)
    yield gauge("held_updates", "Updates that wait until they are told", dispatcher.teller.held)
    yield labelled("webhooks", "Webhooks by state", "state", _states(hooks).items(), GaugeMetricFamily)


def summary_of(hooks: WebhookService) -> dict[str, Any]:
    """As of `gateway.serve.models.WebhookService`, from any thread."""
    figures = hooks.dispatcher.figures
    deliveries, dropped = figures.deliveries, figures.dropped
    shown = deliveries.shown()
    return {**_states(hooks), **shown, "accepted": shown["accepted"] + dropped, "dropped": dropped, "lag": hooks.lag()}


def _states(hooks: WebhookService) -> dict[str, int]:
    """How many webhooks are in each state."""
    states = [line.hook.state for line in list(hooks.dispatcher.lines.values())]
    return {state: states.count(state) for state in STATES}
