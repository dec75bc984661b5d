"""Changes that wait for their batch are parsed before it comes, and become what they would have become with it."""

import json

import numpy as np
import pytest

from gateway.live.vocabulary_files import empty_start
from matching.space import EARTH, Space
from spouts import live
from spouts.live import LoggedSubscriptions
from spouts.log import Admitted, read_records
from tests.support.logged import log_bytes, record_of
from topology.core.api.component import Saved, Tick

WORDS = ("beer", "ramen", "sushi")
SPACE = Space(*EARTH)


class Emitted:
    """A context that keeps what was emitted last."""

    component = "subscriptions"

    def emit(self, stream, payload, **_):
        self.last = payload

    def count(self, name, amount=1):
        pass


def subscribe(number, *words):
    place = {"kind": "topk", "k": 3, "alpha": 0.5, "lon": number % 170, "lat": number % 80}
    return json.dumps({"subscribe": {"subscription_id": f"s{number}", "keywords": list(words), **place}}).encode()


def unsubscribe(number):
    return json.dumps({"unsubscribe": f"s{number}"}).encode()


def changes_of(lines, line=0):
    return record_of(-1, line, (), [(0, each) for each in lines])


def batch_of(seq, *words):
    return record_of(seq, seq, [{"text": "ramen", "lon": 1, "lat": 1}], admitted=Admitted(words, seq))


@pytest.fixture
def log(tmp_path):
    """A log of one message, which admits the words, and a spout of it."""
    path = tmp_path / "log"
    path.write_bytes(log_bytes(batch_of(0, *WORDS)))
    return path


@pytest.fixture
def spout_of(log, tmp_path):
    spouts = []
    start = empty_start(tmp_path / "start", (), "")

    def make(saved=None):
        spout = LoggedSubscriptions(log, start, 1_000, SPACE)
        spout.open(Emitted())
        spouts.append(spout)
        if saved is not None:
            spout.restore(Saved(0, {"subscriptions": [saved]}))
        return spout

    yield make
    for spout in spouts:
        spout.close()


def append(log, *records):
    *_, (last, _, _) = read_records(log)
    with open(log, "ab") as file:
        file.write(log_bytes(*records, before=last.checksum))


def emitted(spout, seq):
    """The change list of the batch of this message, as lists."""
    spout.next_batch(seq, Tick(seq, seq, seq))
    found = spout._context.last
    names = found.names.strings()
    return json.dumps([[column.tolist() for column in table] for table in (found.added, found.removed)]), names


def test_waiting_subscriptions_of_known_words_are_parsed_before_their_batch(log, spout_of, monkeypatch):
    begun = spout_of()
    emitted(begun, 0)
    saved = begun.state()
    lines = [subscribe(number, WORDS[number % 3], "ramen") for number in range(20_000)]
    append(log, changes_of(lines[:12_000]), changes_of([*lines[12_000:], unsubscribe(7), subscribe(8, "beer")]))
    spout = spout_of(saved)
    spout.next_batch(1, Tick(1, 1, 0))  # the first one, without messages: a server is ready behind it
    assert len(spout.ahead) == 20_001
    append(log, batch_of(1))
    plain = spout_of(saved)
    assert not plain.ahead  # the changes are due with a message that is there
    wanted = emitted(plain, 1)
    monkeypatch.setattr(spout, "_rows", None)
    assert emitted(spout, 1) == wanted and len(wanted[1]) == 19_999
    assert not spout.ahead
    states = zip(spout.state().values(), plain.state().values(), strict=True)
    assert all(np.array_equal(one, another) for one, another in states)


def test_changes_that_come_later_are_parsed_with_empty_batches_some_at_a_time(log, spout_of, monkeypatch):
    monkeypatch.setattr(live, "_AHEAD", 3)
    spout = spout_of()
    emitted(spout, 0)
    spout.next_batch(1, Tick(1, 1, 0))
    for first in range(0, 8, 2):
        append(log, changes_of([subscribe(first, "ramen"), subscribe(first + 1, "beer")]))
    found = []
    for number in range(2, 5):
        spout.next_batch(number, Tick(number, 1, 0))
        found.append(len(spout.ahead))
    assert found == [4, 8, 8]
    append(log, batch_of(1))
    assert emitted(spout, 1)[1] == [f"s{number}" for number in range(8)] and not spout.ahead


def test_subscription_with_a_new_word_waits_for_the_batch_that_admits_it(log, spout_of):
    spout = spout_of()
    emitted(spout, 0)
    append(log, changes_of([subscribe(0, "ramen", "udon"), subscribe(1, "ramen"), unsubscribe(1)]))
    spout.next_batch(1, Tick(1, 1, 0))
    assert [one.unknown for one in spout.ahead.values()] == [1, 0]
    append(log, batch_of(1, "udon"))
    table, names = emitted(spout, 1)
    assert names == ["s0"] and len(json.loads(table)[0][0]) == 1
    assert spout._words.vocabulary.id_of("udon") in spout._context.last.added.terms


def test_spout_that_goes_back_parses_again_what_waits(log, spout_of):
    spout = spout_of()
    emitted(spout, 0)
    saved = spout.state()
    append(log, changes_of([subscribe(0, "ramen")]))
    spout.next_batch(1, Tick(1, 1, 0))
    before = dict(spout.ahead)
    assert spout.rewind(Saved(0, {"subscriptions": [saved]})) and not spout.ahead
    spout.next_batch(1, Tick(1, 1, 0))
    assert spout.ahead == before and len(before) == 1
    append(log, batch_of(1))
    wanted = emitted(spout, 1)
    assert spout.rewind(Saved(0, {"subscriptions": [saved]}))
    assert emitted(spout, 1) == wanted
