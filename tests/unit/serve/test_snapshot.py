"""A client that begins with a snapshot: what it has, and the changes after, are the results at every later boundary."""

import time
from collections.abc import Iterable
from contextlib import ExitStack

import numpy as np

from gateway.runs.verify import verify_run
from tests.support.beside import BOX, random_message, random_subscription
from tests.support.serving import NDJSON, Follower, Served, call, free_port, kill, lines_of

QUERIES = ["", "", "&kind=topk&kind=knn", "&subscription=s1&subscription=s2&subscription=s3", "&region=-5,-10,20,5"]


def standing_at(start: Iterable[tuple], book, boundary) -> set[tuple]:
    """What a client has that begins with these and applies updates up to a boundary: (id, seq); matches stay."""
    inside = set(start)
    for _, row in book:
        if int(row["id"].partition("-")[0]) > boundary:
            break
        place = row["subscription_id"], row["seq"]
        if row["change"] == "leave":
            inside.remove(place)
        else:
            assert place not in inside, row
            inside.add(place)
    return inside


def test_snapshot_and_changes_are_the_results_at_every_later_boundary_also_after_a_kill(tmp_path):
    rng, out, port = np.random.default_rng(9), tmp_path / "out", free_port()
    options = ["--world", BOX, "--window", "count:60", "--set", "recovery.checkpoint_every=0.5"]
    subscriptions = [random_subscription(rng, place) | {"subscription_id": f"s{place}"} for place in range(40)]
    kind_of = {row["subscription_id"]: row["kind"] for row in subscriptions}
    messages: list[dict] = []
    results: set[tuple] = set()

    def publish(served):
        rows = [random_message(rng, len(messages) + place) for place in range(15)]
        assert served.call("POST", "/v1/messages", rows).json["accepted"] == len(rows)
        messages.extend(rows)
        row = random_subscription(rng, 0)
        same = [name for name, kind in kind_of.items() if kind == row["kind"] != "boolean"]
        if same:  # it takes another place and other words
            row["subscription_id"] = same[int(rng.integers(len(same)))]
            served.call("PUT", f"/v1/subscriptions/{row['subscription_id']}", row)

    with ExitStack() as stack:
        whole = stack.enter_context(Follower(port))
        followers: list[Follower] = []
        with Served(out, *options, port=port) as served:
            call(port, "POST", "/v1/subscriptions", lines_of(subscriptions), **NDJSON)
            for query in QUERIES:
                for _ in range(4):
                    publish(served)
                followers.append(stack.enter_context(Follower(port, f"snapshot=1{query}")))
            served.await_(lambda: all(one.through >= 0 for one in followers))
            publish(served)
            kill(served)
        with Served(out, *options, port=port) as served:
            for _ in range(10):
                publish(served)
            last = served.call("GET", "/v1/stream").json["next_seq"] - 1
            for follower in (whole, *followers):
                follower.await_through(last)
            results = {
                (name, row["seq"])
                for name in kind_of
                for row in served.call("GET", f"/v1/subscriptions/{name}/results").json["results"]
            }
            served.end()
    assert verify_run(out).exact
    boundaries = sorted({int(name.partition("-")[0]) for name, _ in whole.book})
    place_of = {row["seq"]: (row["lon"], row["lat"]) for _, row in whole.book}
    follows = [
        lambda name, seq: True,
        lambda name, seq: True,
        lambda name, seq: kind_of[name] in ("topk", "knn"),
        lambda name, seq: name in ("s1", "s2", "s3"),
        lambda name, seq: -5 <= place_of[seq][0] <= 20 and -10 <= place_of[seq][1] <= 5,
    ]
    compared = 0
    for follower, wanted in zip(followers, follows, strict=True):
        assert follower.connections >= 2 and not follower.gaps
        (began,) = {one["as_of"] for one in follower.snapshots.values()}
        start = {(name, row["seq"]) for name, one in follower.snapshots.items() for row in one["results"]}
        later = [at for at in boundaries if at >= began]
        for at in later:
            truth = {one for one in standing_at((), whole.book, at) if wanted(*one)}
            assert standing_at(start, follower.book, at) == truth
            compared += len(truth)
        assert began >= 0 and len(later) > 10
        assert standing_at(start, follower.book, last) == {one for one in results if wanted(*one)}
    assert compared > 2_000


def test_idle_server_with_a_time_window_has_results_of_new_subscriptions_without_a_message(tmp_path):
    """The log closes a batch with a clock mark; what was there before is untouched, and all of it is exact."""
    rng, out, now_s = np.random.default_rng(4), tmp_path / "out", int(time.time())
    subscriptions = [random_subscription(rng, place) | {"subscription_id": f"s{place}"} for place in range(100)]
    late = [one | {"subscription_id": f"late-{one['subscription_id']}"} for one in subscriptions]
    with Served(out, "--world", BOX, "--window", "time:1h") as served:
        served.call("POST", "/v1/subscriptions", subscriptions)
        for first in range(0, 600, 25):
            rows = [random_message(rng, place) | {"time": now_s} for place in range(first, first + 25)]
            assert served.call("POST", "/v1/messages?wait=delivered", rows).json["delivered"]

        def results(name):
            return served.call("GET", f"/v1/subscriptions/{name}/results").json["results"]

        served.call("POST", "/v1/subscriptions", late)
        windowed = [one["subscription_id"] for one in subscriptions if one["kind"] in ("topk", "skyline")]
        wanted = {name: [row["seq"] for row in results(name)] for name in windowed}
        assert sum(map(bool, wanted.values())) > 10
        served.await_(lambda: all(bool(results(f"late-{name}")) == bool(wanted[name]) for name in windowed), 20)
        assert {name: [row["seq"] for row in results(f"late-{name}")] for name in windowed} == wanted
        figures = served.call("GET", "/health").json
        assert figures["messages"] == 600 and figures["next_seq"] > 600
        served.end()
    verdict = verify_run(out)
    assert verdict.exact and sum(verdict.oracle_updates.values()) >= 1_000, verdict
