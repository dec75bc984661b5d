"""The workload of `benchmarks.portal`, and what wrong books of its clients are found to be."""

import json

import numpy as np

from benchmarks.portal import Kill, _books, _latency
from benchmarks.push_load import Received
from benchmarks.sustained import Producer
from benchmarks.workloads.portal import (
    ATTRIBUTES,
    BLOCK,
    EDITED_BLOCKS,
    EDITS,
    ENDED,
    ENDED_BLOCKS,
    MIX,
    Searches,
    listings_of,
)
from gateway.engine import Engine


def made():
    random = np.random.default_rng(3)
    words = [f"word{number}" for number in range(300)]
    places = random.uniform([-9, 40], [9, 50], (200, 2)).tolist()
    rows = [{"text": " ".join(random.choice(words, 9)), "lon": lon, "lat": lat} for lon, lat in places]
    listings = listings_of([json.dumps(row).encode() for row in [*rows, {"text": "no place"}]], 1)
    return listings, Searches(listings, 3_000, 2.0, 1)


def test_messages_edit_and_end_listings_that_are_there():
    listings, _ = made()
    begin = BLOCK * ENDED_BLOCKS
    rows = [json.loads(line) for line in listings.lines(0, begin + BLOCK).splitlines()]
    assert [row["id"] for row in rows] == [f"m{number}" for number in range(len(rows))]
    latest: dict[str, dict] = {}
    for number, row in enumerate(rows):
        place = number % BLOCK
        if row.get("deleted"):
            assert number == begin and row["object_id"] == f"o{ENDED}" and row["object_id"] in latest
        elif place in EDITS and number >= BLOCK * EDITED_BLOCKS:
            before = latest[row["object_id"]]
            assert row["price"] < before["price"] and row["text"] == before["text"]
        else:
            assert row["object_id"] == f"o{number}"
        latest[row["object_id"]] = row


def test_searches_of_all_kinds_are_taken_and_those_without_words_have_about_the_matches_that_were_asked_for():
    listings, searches = made()
    assert set(searches.kinds) == set(MIX) and sum(searches.kinds.values()) == len(searches) == 3_000
    rows = [searches.row(number) for number in range(len(searches))]
    assert rows == [Searches(listings, 3_000, 2.0, 1).row(number) for number in range(len(searches))]
    wordless = [row for row in rows if "where" in row]
    everything, engine = (Engine(attributes=ATTRIBUTES, objects=True, world="earth") for _ in range(2))
    for row in rows:
        everything.subscribe(row)
    for row in wordless:
        engine.subscribe(row)
    found = len(engine.publish(map(json.loads, listings.lines(0, 200).splitlines())))
    assert 0.3 < found / 200 / 2.0 < 3.0


def test_a_lost_a_repeated_and_a_foreign_update_are_told_apart():
    expected = np.array([(search, message, 10 + message) for search in range(10) for message in range(5)], np.int64)

    def received(rows, client=None):
        rows = np.array(rows, np.int64)
        own = rows[:, 0] // 5 if client is None else client
        return Received(np.zeros(len(rows)), own, rows[:, 0], rows[:, 1], rows[:, 2])

    zero = {"missing": 0, "extra": 0, "repeated": 0}
    early = (3, 99, 9)  # of before the books begin
    assert _books(expected, received([*expected, early]), 5, 10) == zero
    assert _books(expected, received(expected[1:]), 5, 10) == zero | {"missing": 1}
    assert _books(expected, received([*expected, expected[7]]), 5, 10) == zero | {"repeated": 1}
    assert _books(expected, received([*expected, (3, 77, 12)]), 5, 10) == zero | {"extra": 1}
    other = np.array(expected[:, 0] // 5)
    other[4] = 1
    assert _books(expected, received(expected, other), 5, 10) == zero | {"extra": 1}


def test_latency_leaves_out_what_was_late_around_a_kill():
    listings, _ = made()
    producer = Producer(listings, group=100)
    producer.due_s = [float(number) for number in range(10)]
    as_of = np.arange(0, 1_000, 100) + 7  # one of each group; message 0 has seq 7
    late_s = np.array([0.1, 0.1, 0.1, 0.1, 5.0, 4.0, 3.0, 0.1, 0.1, 0.1])
    numbers = np.zeros(10, np.int64)
    got = Received(np.arange(10.0) + late_s, numbers, numbers, numbers, as_of)
    found = _latency(producer, got, 7, 0, [Kill(4.5, 6.5)])
    assert found["stall_s"] == [7.1 - 4.5] and found["catch_up_s"] == [9.0 - 4.5]
    assert found["around_kills"] == 5 and abs(found["p99_ms"] - 100) < 1e-6
