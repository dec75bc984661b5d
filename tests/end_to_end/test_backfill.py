"""Backfills over HTTP: a new subscription gets matches of earlier messages, once, through kills and resumes."""

from collections import Counter

import numpy as np

from gateway.runs.verify import verify_run
from tests.support.serving import Served

WORDS = ["tea", "cake", "rum", "fish"]
DAY_S, BEGAN_S = 86_400, 1_577_836_800
OPTIONS = ("--world", "-20,-10,20,10", "--window", "count:40", "--attribute", "price:number")
OFTEN = ("--set", "recovery.checkpoint_every=0.3", "--set", "stream.batch_rows=50")


def message(rng, place):
    """A message an hour; the words of the last ones are new."""
    words = rng.choice([*WORDS, *(["late"] if place > 1_800 else [])], int(rng.integers(1, 3))).tolist()
    row = {"id": f"m{place}", "text": " ".join(words), "time": BEGAN_S + place * 3_600}
    return row | {"lon": float(rng.integers(-20, 21)), "lat": 1.0, "price": int(rng.integers(0, 100))}


def has(row, word, most=100):
    return word in row["text"].split() and row["price"] <= most


def test_backfill_comes_once_before_the_live_matches_and_as_the_oracle_says_through_kills(tmp_path):
    """More messages come than the names in memory go back; a third of the subscriptions replace another one."""
    rng, out = np.random.default_rng(3), tmp_path / "out"
    messages = [message(rng, place) for place in range(2_400)]
    row = {"kind": "boolean", "region": [-20, -10, 20, 10]}
    asked: dict = {}

    def publish(served, first, last):
        for begin in range(first, last, 100):
            found = served.call("POST", "/v1/messages?wait=delivered", messages[begin : min(last, begin + 100)])
            assert found.json["delivered"], found.body

    def subscribe(served, name, columns, wanted):
        """`wanted` are the seqs of the backfill."""
        found = served.call("PUT", f"/v1/subscriptions/{name}", {**row, **columns}).json
        assert found["status"] in ("created", "replaced"), found
        assert found["backfill"] == {
            "start": found["backfill"]["start"],
            "updates": len(wanted),
            "truncated": False,
        }
        asked[name, found["from_seq"]] = wanted

    with Served(out, *OPTIONS, *OFTEN) as served:
        publish(served, 0, 1_700)
        earlier = [seq for seq in range(1_700) if has(messages[seq], "tea")]
        subscribe(served, "all", {"keywords": "tea", "backfill": True}, earlier)
        subscribe(served, "last", {"keywords": "tea", "backfill": 500}, [seq for seq in earlier if seq >= 1_200])
        week = [seq for seq in earlier if seq > 1_699 - 7 * 24]
        subscribe(served, "week", {"keywords": "tea", "backfill": "7d"}, week)
        publish(served, 1_700, 1_900)
        served.process.kill()
    with Served(out, *OPTIONS, *OFTEN) as served:
        cheap = [seq for seq in range(1_900) if has(messages[seq], "cake", 20)]
        columns = {"keywords": "cake", "where": {"price": {"lte": 20}}, "backfill": True}
        subscribe(served, "all", columns, cheap)
        subscribe(served, "none", {"keywords": "late", "not_keywords": WORDS, "backfill": 5}, [])
        refused = served.call("POST", "/v1/subscriptions", {**row, "keywords": "tea", "backfill": "soon"})
        assert (refused.json["reason"], refused.json["column"]) == ("bad_backfill", "backfill"), refused.body
        publish(served, 1_900, 2_000)
        served.process.kill()
    with Served(out, *OPTIONS, *OFTEN, "--query-bolts", 2, "--set", "topology.delivery_bolts=2") as served:
        publish(served, 2_000, 2_400)
        updates = served.call("GET", "/v1/updates?since=begin&poll=1&limit=100000").lines
        results = served.call("GET", "/v1/subscriptions/all/results").json["results"]
        served.end()
    updates = [one for one in updates if "change" in one]
    marked = [one for one in updates if one.get("backfill")]
    assert all(("backfill" in one) == (one["as_of"] > one["seq"]) for one in updates)
    found: dict = {}
    for one in marked:
        found.setdefault((one["subscription_id"], one["as_of"]), []).append(one["seq"])
        assert one["message_id"] == f"m{one['seq']}" and one["text"] == messages[one["seq"]]["text"]
    assert found == {key: seqs for key, seqs in asked.items() if seqs} and len(found) == 4
    for name, at in found:
        own = [one for one in updates if one["subscription_id"] == name and one["as_of"] >= at]
        own = own[: 1 + max(place for place, one in enumerate(own) if one.get("backfill") and one["as_of"] == at)]
        assert all(one.get("backfill") and one["as_of"] == at for one in own), "before the first live one"
    assert max(Counter((one["subscription_id"], one["as_of"], one["seq"]) for one in updates).values()) == 1
    live = [seq for seq in range(1_900, 2_400) if has(messages[seq], "cake", 20)]
    assert [one["seq"] for one in results] == [*reversed(live), *reversed(cheap)][:100]
    verdict = verify_run(out)
    assert verdict.exact and verdict.oracle_updates["boolean"] > len(marked) > 500, verdict
