"""Batches that the log hands over: the same rows as from the log itself, and the log where none is there."""

import itertools
import shutil
import threading
import time
from collections import Counter

import numpy as np
import pytest

from gateway.serve.writer import PublishedRow, Subscribe, Unsubscribe
from matching.window import Window
from spouts.handover import ByOffset, close_handover, handover_of
from spouts.live import LoggedMessages, LoggedSubscriptions, LogSource
from spouts.logged_words import LoggedWords
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream
from tests.support.message_files import RecordingContext
from tests.support.writing import WriterStream, await_
from tests.unit.spouts.test_changes_ahead import Emitted
from topology.core.api.component import Tick

DEADLINE_S = 20.0
NEW = "new words: Größe 東京 #tag https://a.b &amp; \U0001f525"
ROWS = [
    {"text": "w1 w2 w1", "lon": 1.5, "lat": 2, "id": "a", "time": 100},
    {"text": NEW, "lon": -3, "lat": 4, "id": "b", "time": 160},
    {"text": "w3", "west": 1, "south": 1, "east": 2, "north": 3, "id": "range", "time": 170},
    {"id": "gone", "object_id": "a", "op": "delete", "lon": 0, "lat": 0, "time": 180},
    {"text": "w1 later", "lon": 0, "lat": 0, "id": "ahead", "time": 10**9 * 4},
    {"text": "no term of a vocabulary, w1", "lon": 0, "lat": 0, "time": 190, "object_id": "a"},
    {"text": "1,2 ok?", "lon": 0, "lat": 0, "id": "x", "time": 200},
]
SUBSCRIBE = {"subscribe": {"subscription_id": "s", "kind": "boolean", "keywords": "fresh", "region": [-9, -9, 9, 9]}}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("handover") / "words", random_rows(200))


@pytest.fixture(params=[1, 2, 7, 1_000])
def stream(request, words, tmp_path):
    """A stream with a log of batches of this size, changes between them and a mark of the clock."""
    stream = Stream(words, tmp_path / "out", window="time:100", most_terms=1_000, max_ahead=1e6)
    for number, row in enumerate(itertools.islice(itertools.cycle(ROWS), 40)):
        stream.take(row | {"id": f"{row.get('id', 'none')}{number}"})
        if number % request.param == request.param - 1:
            stream.pipe.close_batch()
        if number == 20:
            stream.pipe.close_batch()
            stream.journal.mark(260_000_000, 0.0)
            stream.take(SUBSCRIBE)
            stream.pipe.close_batch()
    stream.pipe.close_batch()
    yield stream
    stream.journal.close()


def source_of(stream, log, words):
    return LogSource(str(log), LoggedWords(log, words, 1_000), Window("time", 100), stream.gate.space)


def read_all(source):
    places, rows = [], []
    while (found := source.read()) is not None:
        places.append(source.last)
        rows.append(found)
    return places, rows


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name, column, like in zip(one.messages._fields, one.messages, other.messages, strict=True):
            assert column.dtype == like.dtype and np.array_equal(column, like), name
        assert one.names.strings() == other.names.strings()
        assert one.objects.names == other.objects.names
        assert np.array_equal(one.objects.deleted, other.objects.deleted)
        for name in ("event_time_us", "ahead", "outside"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_rows_that_are_handed_over_are_those_of_the_log(stream, words, tmp_path):
    copy = shutil.copy(stream.journal.log, tmp_path / "copy")
    handed, logged = source_of(stream, stream.journal.log, words), source_of(stream, copy, words)
    places, rows = read_all(handed)
    assert handover_of(stream.journal.log).batches.taken == len(rows) - 1, "all but the mark of the clock"
    assert handover_of(copy) is None
    expected_places, expected = read_all(logged)
    assert places == expected_places and handed.place == logged.place
    assert handed.unknown_words == logged.unknown_words
    assert_same(rows, expected)
    assert sum(len(one.messages) for one in rows) == 41 and any(one.ahead is not None for one in rows)


def test_rows_of_an_earlier_place_are_read_again_from_the_log(stream, words):
    source = source_of(stream, stream.journal.log, words)
    places, rows = read_all(source)
    for back in (0, len(rows) // 2, len(rows) - 1):
        source.go_to(places[back])
        assert_same(read_all(source)[1], rows[back:])
    taken = handover_of(stream.journal.log).batches.taken
    assert taken == len(rows) - 1, "each batch was there once"


def test_batches_beyond_the_bound_are_dropped_and_read_from_the_log(stream, words):
    waiting = handover_of(stream.journal.log).batches
    waiting.most_bytes = waiting.size_bytes // 2
    stream.take(ROWS[0] | {"id": "last"})
    stream.pipe.close_batch()
    assert waiting.size_bytes <= waiting.most_bytes
    source = source_of(stream, stream.journal.log, words)
    rows = read_all(source)[1]
    assert sum(len(one.messages) for one in rows) == 42 and waiting.taken < len(rows) - 1 and waiting.size_bytes == 0


def test_spout_that_waits_is_woken_by_what_is_logged_in_its_process(stream, words):
    spout = LoggedMessages(str(stream.journal.log), str(words), 1_000, Window("time", 100), stream.gate.space)
    spout.poll_s, context = 60.0, RecordingContext(tasks=1)
    spout.open(context)
    logged, number = stream.journal.next_seq, 0
    while spout.cutter.next_seq < logged:
        spout.next_batch(number, None)
        number += 1

    def log() -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not context.waits and time.monotonic() < deadline_s:
            time.sleep(0.001)
        stream.journal.mark(300_000_000, 0.0)  # no batch is handed over with it

    context.waits.clear()
    handover_of(stream.journal.log).came.wait(0.0)  # what was read without a wait has set it
    logging = threading.Thread(target=log)
    logging.start()
    tick = spout.next_batch(number, None)
    logging.join()
    assert tick is not None and (tick.first_seq, tick.last_seq) == (logged, logged)
    assert context.waits == [60.0], "it looked once, and was woken"


def test_log_that_is_closed_hands_nothing_over(stream, words):
    close_handover(stream.journal.log)
    assert handover_of(stream.journal.log) is None
    assert sum(len(one.messages) for one in read_all(source_of(stream, stream.journal.log, words))[1]) == 41


def plain(number, *words):
    place = {"kind": "knn", "lon": number % 170, "lat": 1, "k": 2}
    return {"subscription_id": f"s{number}", "keywords": list(words), **place}


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_subscriptions_that_are_handed_over_become_those_of_the_log(size, tmp_path):
    """By requests of so many; new words among them, the same id again, refused rows, and ends."""
    rows = [Subscribe(plain(number, "w1", f"w{number % 5}")) for number in range(40)]
    rows += [Subscribe(plain(number, "w1", f"new{number % 3}")) for number in range(40, 60)]
    rows += [Subscribe(plain(number, "w2"), replace=True) for number in range(0, 40, 3)]
    rows += [Subscribe(plain(5, "w1", "w0")), Subscribe(plain(61) | {"k": 0}), Unsubscribe("s7"), Unsubscribe("s900")]
    rows += [Subscribe(plain(7, "w3")), Unsubscribe("s7"), Subscribe(plain(7, "w4") | {"not_keywords": "new1"})]
    with WriterStream(tmp_path / "out", settings={"executor": "local"}) as stream:
        stream.writer.begin()
        found = []
        for first in range(0, len(rows), size):
            found.append(stream.submit(*rows[first : first + size]))
        await_(lambda: sum(map(len, found)) == len(rows))
        logged = stream.submit(PublishedRow(b'{"id":"m","text":"w1","lon":1,"lat":1}'))
        await_(lambda: logged)
        outcomes = [one for each in found for one in each]
        counts = Counter((one["status"], one.get("reason")) for one in outcomes)
        assert counts == {
            ("created", None): 62, ("replaced", None): 14, ("unchanged", None): 1, ("deleted", None): 2,
            ("refused", "bad_k"): 1, ("refused", "unknown_subscription"): 1,
        }, counts  # fmt: skip
        waiting = handover_of(stream.wal.log).records
        copy = shutil.copy(stream.wal.log, tmp_path / "copy")
        lists = []
        for log in (copy, stream.wal.log):
            start = tmp_path / "out" / "journal" / "start"
            spout = LoggedSubscriptions(log, start, stream.config.most_terms, stream.admission.space)
            context = Emitted()
            spout.open(context)
            spout.next_batch(0, Tick(0, 0, 0))
            lists.append(context.last)
            spout.close()
        records = len(list(stream.records()))
        assert waiting.taken == records > 0 and waiting.size_bytes == 0
    for one, other in zip(*(each.added for each in lists), strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    assert lists[0].names.strings() == lists[1].names.strings() and len(lists[0].added) == 60
    assert all(map(np.array_equal, lists[0].removed, lists[1].removed))
    assert np.array_equal(lists[0].follows, lists[1].follows)


def test_changes_beyond_the_bound_are_dropped_the_oldest_first():
    waiting = ByOffset(4 * 10)
    for offset in range(0, 100, 10):
        waiting.put(offset, f"block {offset}", 10)
    assert waiting.size_bytes == 40
    assert [waiting.take(offset) for offset in range(0, 100, 10)] == [None] * 6 + [
        f"block {n}" for n in (60, 70, 80, 90)
    ]
    assert (waiting.taken, waiting.size_bytes) == (4, 0) and waiting.take(90) is None


def test_changes_of_records_that_were_passed_over_are_dropped():
    waiting = ByOffset(1_000)
    for offset in (0, 10, 20):
        waiting.put(offset, offset, 10)
    assert waiting.take(15) is None and waiting.size_bytes == 10 and waiting.take(20) == 20


def test_texts_that_are_looked_up_together_are_those_of_the_messages(stream):
    marks = set(stream.journal.marks)
    seqs = [seq for seq in range(stream.journal.next_seq) if seq not in marks]
    for some in (seqs, seqs[::-3], [seqs[-1], seqs[0], seqs[-1]], []):
        found = stream.journal.look_up(some)
        assert set(found) == set(some)
        for seq, text in found.items():
            one = stream.journal.message(seq)
            assert text == (one.message_id, one.text, one.lon, one.lat, "", "")
