"""Changes that wait for their batch are read before it comes, and become what they would have become with it."""

import json

import numpy as np
import pytest

from gateway.live.vocabulary_files import empty_start
from matching.errors import CheckpointError
from matching.space import EARTH, Space
from spouts import live
from spouts.live import LoggedSubscriptions
from spouts.log import Admitted, read_records
from tests.support.logged import log_bytes, record_of
from tests.support.snapshots import saved_by
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


def waiting(spout):
    """How many changes were read ahead."""
    return sum(len(one.block.names) - one.taken for one in spout._waiting)


def test_waiting_subscriptions_of_known_words_are_read_before_their_batch(log, spout_of, monkeypatch):
    begun = spout_of()
    emitted(begun, 0)
    saved = saved_by(begun)
    lines = [subscribe(number, WORDS[number % 3], "ramen") for number in range(20_000)]
    append(log, changes_of(lines[:12_000]), changes_of([*lines[12_000:], unsubscribe(7), subscribe(8, "beer")]))
    spout = spout_of(saved)
    spout.next_batch(1, Tick(1, 1, 0))  # the first one, without messages: a server is ready behind it
    assert waiting(spout) == 20_002
    append(log, batch_of(1))
    plain = spout_of(saved)
    assert not plain._waiting
    wanted = emitted(plain, 1)
    monkeypatch.setattr(spout, "_checked", None)
    assert emitted(spout, 1) == wanted and len(wanted[1]) == 19_999
    assert not spout._waiting
    states = zip(saved_by(spout).values(), saved_by(plain).values(), strict=True)
    assert all(np.array_equal(one, another) for one, another in states)


def test_changes_that_come_later_are_read_with_empty_batches_some_at_a_time(log, spout_of, monkeypatch):
    monkeypatch.setattr(live, "_AHEAD", 3)
    spout = spout_of()
    emitted(spout, 0)
    spout.next_batch(1, Tick(1, 1, 0))
    for first in range(0, 8, 2):
        append(log, changes_of([subscribe(first, "ramen"), subscribe(first + 1, "beer")]))
    found = []
    for number in range(2, 5):
        spout.next_batch(number, Tick(number, 1, 0))
        found.append(waiting(spout))
    assert found == [4, 8, 8]
    append(log, batch_of(1))
    assert emitted(spout, 1)[1] == [f"s{number}" for number in range(8)] and not spout._waiting


def test_subscription_with_a_new_word_waits_for_the_batch_that_admits_it(log, spout_of):
    spout = spout_of()
    emitted(spout, 0)
    filtered = json.loads(subscribe(2, "beer"))
    filtered["subscribe"]["not_keywords"] = ["soba"]
    lines = [subscribe(0, "ramen", "udon"), subscribe(1, "ramen"), unsubscribe(1), json.dumps(filtered).encode()]
    append(log, changes_of(lines))
    spout.next_batch(1, Tick(1, 1, 0))
    (one,) = spout._waiting
    assert one.block.words == ["ramen", "udon", "ramen", "beer"] and list(one.block.refiltered) == [2]
    saved = saved_by(spout)
    append(log, batch_of(1, "soba", "udon"))
    table, names = emitted(spout, 1)
    assert names == ["s0", "s2"] and len(json.loads(table)[0][0]) == 2
    added = spout._context.last.added
    assert spout._words.vocabulary.id_of("udon") in added.terms and added.filter_words.shape[0]
    plain = spout_of(saved)
    assert emitted(plain, 1) == (table, names), "read with its batch"


def test_word_that_no_batch_admits_is_an_error(log, spout_of):
    spout = spout_of()
    emitted(spout, 0)
    append(log, changes_of([subscribe(0, "ramen"), subscribe(1, "ramen", "udon")]))
    spout.next_batch(1, Tick(1, 1, 0))
    append(log, batch_of(1))
    with pytest.raises(CheckpointError, match="'s1' are not admitted"):
        emitted(spout, 1)


def test_spout_that_goes_back_reads_again_what_waits(log, spout_of):
    spout = spout_of()
    emitted(spout, 0)
    saved = saved_by(spout)
    append(log, changes_of([subscribe(0, "ramen")]))
    spout.next_batch(1, Tick(1, 1, 0))
    later = saved_by(spout)
    assert waiting(spout) == 1 and later["place"].tolist() == saved["place"].tolist()
    assert spout.rewind(Saved(0, {"subscriptions": [saved]})) and not spout._waiting
    spout.next_batch(1, Tick(1, 1, 0))
    assert waiting(spout) == 1
    append(log, batch_of(1))
    wanted = emitted(spout, 1)
    assert spout.rewind(Saved(0, {"subscriptions": [later]}))
    assert emitted(spout, 1) == wanted
