"""What a client of a stream has booked, beside what the folder has and what the oracle wants."""

from collections import Counter

import pyarrow.parquet as pq

from gateway.runs.verify import verify_run
from tests.support.serving import FIELDS, position, written


def standing_of(book):
    """What is in the results of a client that applies updates in the order in which they come."""
    standing = set()
    for name, row in book:
        place = row["subscription_id"], row["seq"]
        if row["change"] == "enter":
            assert place not in standing, name
            standing.add(place)
        elif row["change"] == "leave":
            standing.remove(place)
    return standing


def assert_booked(out, follower):
    """A client's book has what the folder has, once, in order; and the folder has what the oracle wants."""
    ids = [position(name) for name, _ in follower.book]
    assert ids == sorted(set(ids)), "out of order, or again"
    assert Counter(tuple(row[name] for name in FIELDS) for _, row in follower.book) == written(out)
    assert all(name == row["id"] for name, row in follower.book) and not follower.gaps
    assert standing_of(follower.book) == {
        (row["subscription_id"], row["seq"]) for row in pq.read_table(out / "results.parquet").to_pylist()
    }
    verdict = verify_run(out, sample=None)
    assert verdict.exact, verdict
    return sum(verdict.delivered_updates.values())
