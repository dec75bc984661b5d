"""Webhooks that are dead, hang, answer 500 or 301 beside sixteen that work: nobody waits for them, and nothing is lost.

Each subscription has an owner, each owner a webhook. What a message has to reach follows from its word alone. A bad
endpoint gets every batch five times, then the batch is dead; once the endpoint works, redelivery brings all of it.
"""

from collections import Counter
from contextlib import ExitStack

import pytest

from gateway.runs.verify import verify_run
from tests.support.endpoints import Endpoint, answers, hangs
from tests.support.serving import NDJSON, Served, free_port, lines_of

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1_800)]

OWNERS, ATTEMPTS = 20, 5
BAD = {"dead": None, "hanging": hangs, "failing": answers(500), "moved": answers(301)}
OPTIONS = ("--window", "count:1000", "--set", "webhooks.allow_host=127.0.0.1", "--set", f"webhooks.attempts={ATTEMPTS}",
           "--set", "webhooks.retry_s=0.02")  # fmt: skip
REGION = [-180, -80, 180, 80]


def owner_of(subscription):
    return f"owner {subscription % OWNERS}"


def expected(subscriptions, messages):
    """By owner the pairs of subscription and message: two subscriptions have the word of a message."""
    words = subscriptions // 2
    found = {f"owner {number}": set() for number in range(OWNERS)}
    for message in range(messages):
        for subscription in (message % words, message % words + words):
            found[owner_of(subscription)].add((f"s{subscription}", f"m{message}"))
    return found


def pairs_of(endpoint):
    """What an endpoint has got, each batch once."""
    batches = {one.id: one.updates for one in list(endpoint.book)}
    return Counter((row["subscription_id"], row["message_id"]) for rows in batches.values() for row in rows)


class Hooks:
    """Endpoints by owner, and their webhooks; the first owners have the bad ones."""

    def __init__(self, stack, served):
        self.served = served
        self.endpoints, self.hooks = {}, {}
        for number, owner in enumerate(f"owner {number}" for number in range(OWNERS)):
            way = list(BAD.values())[number] if number < len(BAD) else answers(204)
            endpoint = Endpoint(way, 0 if way else free_port())
            self.endpoints[owner] = endpoint if way is None else stack.enter_context(endpoint)
            made = served.call("POST", "/v1/webhooks", {"url": endpoint.url, "owner": owner, "batch_updates": 10_000})
            assert made.status == 201, made
            self.hooks[owner] = made.json["id"]
        self.bad = dict(zip(BAD, self.hooks, strict=False))
        self.good = [owner for owner in self.hooks if owner not in self.bad.values()]

    def shown(self, owner):
        return self.served.call("GET", f"/v1/webhooks/{self.hooks[owner]}").json

    def delivered(self, owner):
        """Updates."""
        return self.shown(owner)["updates"]["delivered"]

    def counts(self, owner):
        found = self.shown(owner)["deliveries"]
        assert found["accepted"] == found["delivered"] + found["waiting"] + found["dead"]
        return found

    def all_counts(self):
        """Of the bad ones."""
        return {name: self.counts(owner) for name, owner in self.bad.items()}

    def dead_deliveries(self, owner):
        path = f"/v1/webhooks/{self.hooks[owner]}/deliveries?status=dead&limit=1000"
        return self.served.call("GET", path).json["deliveries"]


@pytest.mark.parametrize(
    ("subscriptions", "messages", "groups", "timeout_s"),
    [
        pytest.param(400, 1_200, 2, 0.5, marks=pytest.mark.wide),
        pytest.param(10_000, 200_000, 100, 0.5, marks=pytest.mark.long),
    ],
)
def test_bad_webhooks_are_tried_five_times_are_dead_and_are_redelivered_beside_others(
    tmp_path, subscriptions, messages, groups, timeout_s, record_property
):
    wanted = expected(subscriptions, messages)
    assert sum(map(len, wanted.values())) >= 1_000
    with ExitStack() as stack:
        served = stack.enter_context(Served(tmp_path / "out", *OPTIONS, "--set", f"webhooks.timeout_s={timeout_s}"))
        rows = (
            {"subscription_id": f"s{number}", "kind": "boolean", "keywords": f"w{number % (subscriptions // 2)}"}
            | {"region": REGION, "owner": owner_of(number)}
            for number in range(subscriptions)
        )
        made = served.call("POST", "/v1/subscriptions", lines_of(list(rows)), **NDJSON).lines
        assert {one["status"] for one in made} == {"created"}
        hooks = Hooks(stack, served)
        for first in range(0, messages, messages // groups):
            some = range(first, min(messages, first + messages // groups))
            batch = [
                {"id": f"m{one}", "text": f"w{one % (subscriptions // 2)}", "lon": one % 180, "lat": one % 60}
                for one in some
            ]
            if some.stop == messages:  # each fault strikes before the last message
                served.await_(lambda: all(faults_of(hooks).values()))
            taken = served.call("POST", "/v1/messages?wait=delivered", batch).json
            assert taken["accepted"] == len(batch) and taken["delivered"]
        served.await_(lambda: all(hooks.delivered(owner) == len(wanted[owner]) for owner in hooks.good), 600)
        for owner in hooks.good:
            got = pairs_of(hooks.endpoints[owner])
            assert set(got) == wanted[owner] and max(got.values()) == 1
        still = hooks.all_counts()
        assert all(one["delivered"] == 0 and one["waiting"] + one["dead"] > 0 for one in still.values()), still
        served.await_(lambda: all(has_died(one) for one in hooks.all_counts().values()), 1_200)
        dead = hooks.all_counts()
        for name, owner in hooks.bad.items():
            ended = hooks.dead_deliveries(owner)
            assert len(ended) == dead[name]["dead"] and {one["attempts"] for one in ended} == {ATTEMPTS}, name
            if BAD[name] is not None:
                assert set(Counter(one.id for one in hooks.endpoints[owner].book).values()) == {ATTEMPTS}, name
        for owner in hooks.bad.values():
            endpoint = hooks.endpoints[owner]
            endpoint.behaviour = answers(204)
            endpoint.book.clear()
        stack.enter_context(hooks.endpoints[hooks.bad["dead"]])
        for owner in hooks.bad.values():
            assert served.call("POST", f"/v1/webhooks/{hooks.hooks[owner]}/redeliver", {}).status in (200, 202)
        served.await_(lambda: all(hooks.delivered(owner) == len(wanted[owner]) for owner in hooks.bad.values()), 600)
        served.await_(lambda: all(one["waiting"] == one["dead"] == 0 for one in hooks.all_counts().values()), 60)
        for owner in hooks.bad.values():
            got = pairs_of(hooks.endpoints[owner])
            assert set(got) == wanted[owner] and max(got.values()) == 1
        served.end(60)
    verdict = verify_run(tmp_path / "out", sample=200)
    assert verdict.exact and not verdict.vacuous, verdict
    record_property("updates", sum(map(len, wanted.values())))
    record_property("dead deliveries", sum(one["dead"] for one in dead.values()))
    requests = [one.id for owner in hooks.good for one in hooks.endpoints[owner].book]
    record_property("requests of good ones", len(requests))
    record_property("of these repeated", len(requests) - len(set(requests)))


def faults_of(hooks):
    """How often each of the bad ones has failed so far."""
    return {name: hooks.shown(owner)["failures"] for name, owner in hooks.bad.items()}


def has_died(counts):
    """Whether nothing waits any more."""
    return counts["waiting"] == 0 and counts["dead"] > 0
