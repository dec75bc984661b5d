"""A server that removes its oldest messages while it runs and is killed: clients' own books have every update once."""

import json
import threading

import numpy as np
import pytest

from bolts.names import Digest, hash_names
from gateway.live.pruning import base_part
from gateway.runs.verify import verify_run
from matching.model import CHANGES, Names, UpdateBatch
from spouts.history import LOG
from spouts.log import BASE
from tests.support.beside import BUSY, random_message, random_subscription
from tests.support.books import standing_of
from tests.support.serving import Follower, Served, free_port, kill, position

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]
KEPT = ("--set", "retain.messages=300", "--set", "retain.repeats=100")


def digest_of(book):
    """Of the updates of a client, as a run tells that of its own."""
    digest = Digest()
    rows = [row for _, row in book]
    columns = [np.array([row[name] for row in rows], np.int64) for name in ("as_of", "seq")]
    score = np.array([np.nan if row["score"] is None else row["score"] for row in rows])
    change = np.array([CHANGES.index(row["change"]) for row in rows], np.int8)
    updates = UpdateBatch(columns[0], np.zeros(len(rows), np.int64), columns[1], change, score)
    names = [hash_names(Names.of([row[name] for row in rows])) for name in ("subscription_id", "message_id")]
    digest.add(updates, *names)
    return digest.hex()


class Feeding:
    """Publishes messages, and some changes of subscriptions, until it is told to stop; retries what is not taken."""

    def __init__(self, served, rng, number=0):
        self.served, self.rng, self.number = served, rng, number
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(60)

    def _run(self):
        while not self.over.wait(0.05):
            rows = [random_message(self.rng, self.number + place) for place in range(20)]
            assert self.served.call("POST", "/v1/messages", rows).status == 200
            self.number += 20
            if self.number % 100 == 0:
                one = random_subscription(self.rng, self.number)
                if one["kind"] == "boolean" and self.number % 200 == 0:
                    one["backfill"] = 150
                self.served.call("PUT", f"/v1/subscriptions/{one.pop('subscription_id')}", one)


def test_client_has_every_update_once_across_prunes_and_kills_and_an_old_cursor_gets_a_gap(tmp_path):
    out, rng, port = tmp_path / "out", np.random.default_rng(17), free_port()
    number, bases = 0, []
    with Follower(port) as follower:
        for _ in range(2):
            before = base_part(out)
            with Served(out, *BUSY, *KEPT, port=port) as served:
                with Feeding(served, rng, number) as feeding:
                    served.await_(lambda before=before: base_part(out) not in (None, before), 240)
                number = feeding.number
                bases.append(base_part(out))
                kill(served)
        with Served(out, *BUSY, *KEPT, port=port) as served:
            health = served.call("GET", "/health").json
            follower.await_through(health["next_seq"] - 1, 120)
            names = [one["subscription_id"] for one in served.call("GET", "/v1/subscriptions").json["subscriptions"]]
            standing = set()
            for name in names:
                found = served.call("GET", f"/v1/subscriptions/{name}/results").json
                assert "gap" not in found
                standing |= {(name, row["seq"]) for row in found["results"] if row["rank"] is not None}
                assert all(row["message_id"] for row in found["results"]), found
            assert standing == {one for one in standing_of(follower.book) if one[0] in names}
            old, since = [], "begin"
            while not old or old[-1]["progress"]["through"] < health["next_seq"] - 1:
                old += served.call("GET", f"/v1/updates?poll=1&limit=100000&since={since}").lines
                since = old[-1]["progress"]["id"]
                assert sum("gap" in one for one in old) <= 1, old[:5]
            gaps = [one["gap"] for one in old if "gap" in one]
            assert [one["reason"] for one in gaps] == ["not_kept"], gaps
            first = position(gaps[0]["before"])
            again = [one["id"] for one in old if "change" in one]
            assert again == [name for name, _ in follower.book if position(name) >= first] and again
            stream = served.call("GET", "/v1/stream").json
            assert 0 < stream["first_kept_seq"] <= stream["next_seq"] - 100
            served.end()
    ids = [position(name) for name, _ in follower.book]
    assert ids == sorted(set(ids)), "out of order, or again"
    assert not follower.gaps and len(set(bases)) == 2
    assert (out / LOG).with_name(BASE).exists()
    report = json.loads((out / "run.json").read_text())
    assert digest_of(follower.book) == report["digest"]
    assert len(follower.book) >= 300
    verdict = verify_run(out)
    assert verdict.exact, verdict.render()
    assert verdict.since > 0 and base_part(out) is not None
