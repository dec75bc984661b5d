"""`skyray serve --to` and PostgreSQL, killed in turn: each update is there once, and results are as of a boundary."""

import json
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from http.client import HTTPException
from urllib.parse import quote

import numpy as np
import pytest

from gateway.runs.verify import verify_run
from tests.support.postgres import PostgresServer
from tests.support.serving import Served, call, free_port, kill, lines_of, written

pytestmark = [pytest.mark.fault, pytest.mark.postgis, pytest.mark.timeout(3_000)]

WORDS = ["ramen", "udon", "soba", "tempura", "sushi", "curry"]
OPTIONS = ("--world", "130,30,145,45", "--window", "count:300", "--checkpoint-every", 0.5, "--batch", 100)


def subscriptions_of(rng, count):
    """A third of each kind."""
    found = []
    for number in range(count):
        lon, lat = (float(one) for one in rng.uniform((132, 32), (143, 43)))
        words = [str(one) for one in rng.choice(WORDS, 2, replace=False)]
        kind = ("topk", "knn", "boolean")[number % 3]
        row = {
            "subscription_id": f"{kind} {number}",
            "kind": kind,
            "keywords": words[:1] if kind == "boolean" else words,
        }
        if kind == "boolean":
            row["region"] = [lon - 2, lat - 2, lon + 2, lat + 2]
        else:
            row |= {"lon": lon, "lat": lat, "k": 4} | ({"alpha": 0.5} if kind == "topk" else {})
        found.append(row)
    return found


def messages_of(rng, count):
    lons, lats = rng.uniform(131, 144, count), rng.uniform(31, 44, count)
    words = rng.choice(WORDS, (count, 2))
    return [
        {"id": f"m{n}", "text": " ".join(words[n]), "lon": round(float(lons[n]), 4), "lat": round(float(lats[n]), 4)}
        for n in range(count)
    ]


def path_of(name):
    return f"/v1/subscriptions/{quote(name)}"


class Producer(threading.Thread):
    """Sends messages in order, again and again until each is answered; changes subscriptions on the way."""

    def __init__(self, port, rows, most, replaced):
        super().__init__(daemon=True)
        self.sent = 0
        self.may_send = 0
        self._port, self._rows, self._most, self._replaced = port, rows, most, replaced
        self.over = threading.Event()

    def run(self):
        changes = iter(self._replaced)
        while self.sent < len(self._rows) and not self.over.is_set():
            last = min(self.sent + self._most, self.may_send, len(self._rows))
            if last == self.sent:
                self.over.wait(0.005)
                continue
            try:
                some = self._rows[self.sent : last]
                answer = call(self._port, "POST", "/v1/messages", lines_of(some), Content_Type="application/x-ndjson")
                if answer.status == 200 and all(one["status"] in ("accepted", "duplicate") for one in answer.lines):
                    self.sent = last
                if (change := next(changes, None)) is not None:
                    path = path_of(change["subscription_id"])
                    call(self._port, "PUT", path, change) if "kind" in change else call(self._port, "DELETE", path)
            except (OSError, HTTPException, ValueError):  # of a server that is killed, perhaps half an answer
                self.over.wait(0.05)


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


def sink_of(served):
    return served.call("GET", "/health").json["sinks"][0]


@pytest.mark.parametrize(
    ("count", "kills", "most"),
    [(1_500, 2, 100), pytest.param(200_000, 5, 1_000, marks=pytest.mark.long)],
)
def test_server_and_database_killed_in_turn_neither_lose_nor_repeat(tmp_path, count, kills, most):
    rng = np.random.default_rng(5)
    out, port = tmp_path / "out", free_port()
    rows, first = messages_of(rng, count), subscriptions_of(rng, 30)
    anew = zip(first, subscriptions_of(rng, 12), strict=False)
    replaced = [one | {"subscription_id": old["subscription_id"]} for old, one in anew]
    replaced += [{"subscription_id": one["subscription_id"]} for one in first[12:15]]
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        options = (*OPTIONS, "--to", server.uri())
        served = stack.enter_context(Served(out, *options, port=port))
        for one in first:
            assert served.call("POST", "/v1/subscriptions", one).status in (200, 201)
        looks, producer = Looks(server), Producer(port, rows, most, replaced)
        for thread in (looks, producer):
            thread.start()
            stack.callback(thread.join, 30)
            stack.callback(thread.over.set)
        steps = 2 * kills + 1
        for step in range(1, steps):
            producer.may_send = step * count // steps + most
            seen = max((as_of for as_of, _, _ in looks.found), default=-1)
            served.await_(lambda seen=seen: any(as_of > seen for as_of, _, _ in looks.found), 120)
            # in the middle: messages that are sent meanwhile, and updates that the database has not yet
            served.await_(lambda step=step: producer.sent >= step * count // steps, 600)
            if step % 2:
                kill(served)
                served.__exit__()
                served = stack.enter_context(Served(out, *options, port=port))
            else:
                server.kill()
                producer.may_send += most  # the stream goes on; a sink with nothing to deliver would not notice
                served.await_(lambda served=served: sink_of(served)["state"] == "away", 120)
                assert served.call("GET", "/ready").status == 200
                served.await_(lambda: producer.sent >= min(producer.may_send, count) - most, 60)
                server.start()
        producer.may_send = count
        served.await_(lambda: producer.sent == count, 1_200)

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
