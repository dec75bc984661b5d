"""A server and the receiver of its sink, killed in turn while messages come: what the tests of all sinks share."""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from tests.support.faulty_runs import actor_of
from tests.support.serving import Served, call, kill, lines_of

WORDS = ["ramen", "udon", "soba", "tempura", "sushi", "curry"]
OPTIONS = (
    "--world",
    "130,30,145,45",
    "--window",
    "count:300",
    "--set",
    "recovery.checkpoint_every=0.5",
    "--set",
    "stream.batch_rows=100",
)


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


def sink_of(served):
    return served.call("GET", "/health").json["sinks"][0]


def kill_in_turn(
    stack: ExitStack,
    served: Served,
    again: Callable[[], Served],
    receiver: Any,
    producer: Producer,
    count: int,
    kills: int,
    most: int,
    before_step: Callable[[Served], None] = lambda served: None,
    victims: Sequence[str] = (),
) -> Served:
    """Kill the server and its receiver (`kill`, `start`) in turn, each so often, and send all; the last server.

    Every second time that it is the server's turn, only an actor of it is killed: one of a component of `victims`, if
    there are any.
    """
    steps = 2 * kills + 1
    for step in range(1, steps):
        producer.may_send = step * count // steps + most
        before_step(served)
        # in the middle: messages that are sent meanwhile, and updates that the receiver has not yet
        served.await_(lambda step=step: producer.sent >= step * count // steps, 600)
        turn = step // 2
        if step % 2 and victims and turn % 2:
            kill_actor(served, victims[turn // 2 % len(victims)])
        elif step % 2:
            kill(served)
            served.__exit__()
            served = stack.enter_context(again())
        else:
            receiver.kill()
            producer.may_send += most  # the stream goes on; a sink with nothing to deliver notices later
            served.await_(lambda served=served: sink_of(served)["state"] == "away", 120)
            assert served.call("GET", "/ready").status == 200
            served.await_(lambda: producer.sent >= min(producer.may_send, count) - most, 60)
            receiver.start()
    producer.may_send = count
    served.await_(lambda: producer.sent == count, 1_200)
    return served


def kill_actor(served: Served, component: str) -> None:
    """SIGKILL of an actor, and wait until the stream goes on."""
    before = served.read()[1].count("recovered")
    actor_of(served, component).kill()
    served.await_(lambda: served.read()[1].count("recovered") > before)


def is_through(served: Served) -> bool:
    """Whether all that is logged is matched, and its updates are with the receiver."""
    health = served.call("GET", "/health").json
    return health["sinks"][0]["waiting"] == 0 and health["complete_through"] == health["next_seq"] - 1
