"""The client's book of `benchmarks.sustained`: what each message reaches, and what a wrong book is found to be."""

import json

import numpy as np

from benchmarks.sustained import Book, Producer, _events_in, _judged, homes_of, searches_of
from gateway.live.update_listener import MessageText
from gateway.serve.event_forms import EVENTS
from gateway.serve.released import RANKS, UpdateRows
from tests.support.releasing import RawUpdate, released_of

PLACES = np.random.default_rng(5)


def made():
    words = [f"word{number}" for number in range(150)]
    lines = [
        json.dumps(
            {
                "id": "x",
                "text": " ".join(PLACES.choice(words, 12)),
                "lon": float(PLACES.uniform(-180, 180)),
                "lat": float(PLACES.uniform(-90, 90)),
            }
        ).encode()
        for _ in range(60)
    ]
    homes = homes_of([*lines, b'{"text": "no place"}'])
    return homes, *searches_of(homes, 400, 2.0, 1)


def test_searches_reach_the_messages_that_have_both_words_inside_their_square():
    homes, searches, inside = made()
    rows = [searches.row(number) for number in range(400)]
    found = []
    for words, (lon, lat) in zip(homes.words, homes.place.tolist(), strict=True):
        reached = []
        for number, row in enumerate(rows):
            west, south, east, north = row["region"]
            if set(row["keywords"]) <= set(words) and west <= lon <= east and south <= lat <= north:
                reached.append(number)
        found.append(reached)
    assert [each.tolist() for each in inside] == found
    assert sum(map(len, found)) >= 100
    assert homes_of([b'{"text": "#ramen", "lon": 1.0, "lat": 2.0}']).words == [["#ramen", "ramen"]]


def test_updates_are_read_from_events_and_from_the_lines_of_a_pipe():
    released = released_of(9, [RawUpdate(f"s{number}", RANKS["match"], number, 9, None) for number in (3, 4)])
    found = UpdateRows(
        released, None, lambda seqs: {seq: MessageText(f"m{seq}", '"message_id":"m1"', 1.0, 2.0) for seq in seqs}
    )
    for data in (EVENTS.updates(found).data, found.lines()):
        assert _events_in(data).tolist() == [[3, 3], [4, 4]]


def test_a_book_with_a_lost_a_repeated_and_a_foreign_update_is_told_apart():
    homes, _, inside = made()
    producer = Producer(homes)
    producer.acknowledged = 2 * len(inside) + 7
    turn = len(inside)
    rows = [(search, message) for message in range(producer.acknowledged) for search in inside[message % turn].tolist()]

    def book(pairs):
        search, message = np.array(pairs, np.int64).T
        return Book(search, message, np.zeros(len(pairs)), 0, 0.0)

    whole = _judged(producer, book(rows), inside)
    assert (whole["missing"], whole["extra"], whole["repeated"]) == (0, 0, 0)
    astray = next(search for search in range(400) if search not in inside[rows[5][1] % turn])
    wrong = _judged(producer, book([*rows[1:], rows[3], (astray, rows[5][1])]), inside)
    assert (wrong["missing"], wrong["extra"], wrong["repeated"]) == (1, 1, 1)
    assert not wrong["exact"]
    later = next(at for at in range(producer.acknowledged, 10**6) if len(inside[at % turn]))
    more = _judged(producer, book([*rows, (int(inside[later % turn][0]), later)]), inside)
    assert (more["unsure"], more["extra"]) == (1, 0)
