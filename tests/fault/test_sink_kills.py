"""`skyray serve --to` and PostgreSQL, killed in turn: each update is there once, and results are as of a boundary."""

import json
import threading
from collections import Counter
from contextlib import ExitStack, suppress

import numpy as np
import pytest

from gateway.runs.verify import verify_run
from tests.support.postgres import PostgresServer
from tests.support.serving import Served, free_port, written
from tests.support.sink_trial import OPTIONS, Producer, kill_in_turn, messages_of, path_of, sink_of, subscriptions_of

pytestmark = [pytest.mark.fault, pytest.mark.postgis, pytest.mark.timeout(3_000)]


class Looks(threading.Thread):
    """Somebody else who reads the tables, each time in one snapshot.

    Attributes
    ----------
    found : list of (int, int, list)    as of which message, the last boundary of the updates, rows of results
    """

    def __init__(self, server):
        super().__init__(daemon=True)
        self.found = []
        self.over = threading.Event()
        self._server = server

    def run(self):
        import psycopg

        while not self.over.wait(0.05):
            with suppress(psycopg.Error), self._server.connect() as sql:
                sql.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                (as_of,) = sql.execute("SELECT as_of FROM skyray.stream").fetchone() or (-1,)
                (last,) = sql.execute("SELECT coalesce(max(boundary), -1) FROM skyray.updates").fetchone() or (-1,)
                rows = sql.execute("SELECT subscription_id, seq FROM skyray.results").fetchall()
                self.found.append((as_of, last, sorted(rows)))


def replayed(rows, as_of):
    """What is in each result as of a message, by the rows of `updates`."""
    inside = set()
    for boundary, _, change, name, seq in rows:
        if boundary > as_of:
            break
        if change == "enter":
            inside.add((name, seq))
        elif change == "leave":
            inside.discard((name, seq))
    return sorted(inside)


@pytest.mark.parametrize(
    ("executor", "count", "kills", "most"),
    [
        ("local", 1_500, 2, 100),
        pytest.param("local", 200_000, 10, 1_000, marks=pytest.mark.long),
        pytest.param("ray", 200_000, 10, 1_000, marks=[pytest.mark.long, pytest.mark.ray]),
    ],
)
def test_server_and_database_killed_in_turn_neither_lose_nor_repeat(
    tmp_path, executor, count, kills, most, record_property
):
    rng = np.random.default_rng(5)
    out, port = tmp_path / "out", free_port()
    rows, first = messages_of(rng, count), subscriptions_of(rng, 30)
    anew = zip(first, subscriptions_of(rng, 12), strict=False)
    replaced = [one | {"subscription_id": old["subscription_id"]} for old, one in anew]
    replaced += [{"subscription_id": one["subscription_id"]} for one in first[12:15]]
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        options = (*OPTIONS, "--executor", executor, "--to", server.uri())
        served = stack.enter_context(Served(out, *options, port=port))
        for one in first:
            assert served.call("POST", "/v1/subscriptions", one).status in (200, 201)
        looks, producer = Looks(server), Producer(port, rows, most, replaced)
        for thread in (looks, producer):
            thread.start()
            stack.callback(thread.join, 30)
            stack.callback(thread.over.set)

        def before_step(served):
            """The tables have moved since the last one."""
            seen = max((as_of for as_of, _, _ in looks.found), default=-1)
            served.await_(lambda: any(as_of > seen for as_of, _, _ in looks.found), 120)

        served = kill_in_turn(
            stack, served, lambda: Served(out, *options, port=port), server, producer, count, kills, most, before_step,
            ("query", "delivery", "messages") if executor == "ray" else (),
        )  # fmt: skip

        def is_through():
            health = served.call("GET", "/health").json
            sink = health["sinks"][0]
            return (
                sink["waiting"] == 0
                and health["complete_through"] == health["next_seq"] - 1
                and sink["position"] is not None
                and int(sink["position"].split("-")[0]) == health["complete_through"]
            )

        served.await_(is_through, 1_200)
        sink, metrics = sink_of(served), served.call("GET", "/metrics").body.decode()
        looks.over.set()
        stored = server.ask(
            "SELECT boundary, place, change, subscription_id, seq FROM skyray.updates ORDER BY boundary, place"
        )
        assert sink["released"] == sink["delivered"] == len(stored) and sink["lost"] == 0
        for name in ("released", "delivered"):
            assert f'skyray_sink_{name}_total{{sink="postgres/alerts.skyray"}} {float(len(stored))}' in metrics
        standing = Counter()
        for name in {one["subscription_id"] for one in first}:
            answer = served.call("GET", f"{path_of(name)}/results")
            if answer.status == 200 and not name.startswith("boolean"):
                standing.update((name, one["seq"], one["message_id"], one["score"]) for one in answer.json["results"])
        results = Counter(server.ask("SELECT subscription_id, seq, message_id, score FROM skyray.results"))
        assert results == standing and results.total() >= 40
        served.end(60)
        told = written(out)
        table = Counter(server.ask("SELECT as_of, subscription_id, message_id, seq, change, score FROM skyray.updates"))
        assert (table - told).total() == 0, "extra or repeated"
        assert (told - table).total() == 0, "missing"
        assert told.total() > count / 10
    verdict = verify_run(out, sample=None)
    assert verdict.exact and not verdict.vacuous, verdict
    seen = {as_of: (last, found) for as_of, last, found in looks.found}
    assert len(seen) >= 2 * kills, "somebody has looked before each kill"
    for as_of, (last, found) in seen.items():
        assert last <= as_of and found == replayed(stored, as_of), as_of
    assert json.loads((out / "sinks.json").read_text())["sinks"]["postgres/alerts.skyray"]["lost"] == 0
    for name, value in {"updates": told.total(), "messages": count, "kills of each side": kills}.items():
        record_property(name, value)
