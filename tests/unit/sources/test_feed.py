"""A source read into the log: once each, through the gate of requests and of lines, with brokers that come and go."""

import json
import threading
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from gateway.live.open_batch import InputLine
from gateway.live.status import read_status
from gateway.serve.sourced_rows import MOST_OPEN, into_writer
from gateway.sources.feed import MOST_READ, Feed, into_pipe
from matching.errors import ConfigError
from spouts.log import read_records
from tests.support.brokers import STREAM, KafkaBroker, NatsBroker, Publisher
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream
from tests.support.log_events import log_events
from tests.support.logged import log_bytes, messages_in, record_of
from tests.support.writing import WriterStream, await_

ROWS = [json.dumps({"id": f"m{n}", "text": f"ramen {n}", "lon": 139.7, "lat": 35.7}).encode() for n in range(3_000)]
PRETTY = b'{\r\n "id": "pretty",\n "text": "udon",\n "lon": 1,\n "lat": 2\n}\n'
BAD = [b"not json", b'{"text": "far", "lon": 999, "lat": 0}', b"", b'{"unsubscribe": "s1"}', b'{"text": "a", "lon": 1}']


#: Without ids, by which the writer would know a message again that is read twice.
NAMELESS = [json.dumps({"text": f"ramen {n}", "lon": 139.7, "lat": 35.7}).encode() for n in range(12_000)]


@pytest.fixture
def nats_broker(tmp_path):
    with NatsBroker(tmp_path / "broker") as broker:
        broker.create()
        yield broker


class Fed(NamedTuple):
    stream: WriterStream
    feed: Feed
    said: list[Any]


@contextmanager
def fed(out, source, **options):
    """A life of a folder whose writer gets what the source has."""
    with WriterStream(out, **options) as stream:
        feed = Feed(source, stream.wal, into_writer(stream.writer))
        with log_events() as said:
            stream.writer.begin()
            feed.begin()
            try:
                yield Fed(stream, feed, said)
            finally:
                feed.close(20)
                assert feed.ended
                if feed.failure is not None:
                    raise feed.failure


def line_of(message):
    """The line that a message came in; an id that was made of its content was not in it."""
    named = {} if len(message.message_id) == 32 else {"id": message.message_id}
    return json.dumps({**named, "text": message.text, "lon": message.lon, "lat": message.lat}).encode()


def logged(stream):
    return list(map(line_of, messages_in(stream.records())))


def read_through(stream, feed, offset):
    await_(lambda: feed.figures()["durable"].get("0", 0) >= offset)


@pytest.mark.parametrize("name", ["nats", "kafka"])
def test_bad_messages_beside_good_are_counted_and_nothing_good_is_lost(name, tmp_path):
    rows = [row for pair in zip(ROWS, BAD * 20, strict=False) for row in pair] + [ROWS[0], PRETTY]
    with NatsBroker(tmp_path / "broker") if name == "nats" else KafkaBroker() as broker:
        broker.create()
        broker.publish(rows)
        with fed(tmp_path / "out", broker.source("skyray")) as (stream, feed, said):
            await_(lambda: sum(feed.figures()["durable"].values()) >= len(rows) - (4 if name == "kafka" else 0))
            good = [json.loads(line)["id"] for line in logged(stream)]
            assert sorted(good) == sorted(["pretty", *(f"m{n}" for n in range(100))])
            assert stream.writer.duplicates == 1
            refused = {"not_json": 40, "coordinate_out_of_range": 20, "not_a_message": 20, "missing_coordinate": 20}
            assert stream.writer.refused.total() == sum(refused.values()) == 100, stream.writer.refused
            refused = [one for one in said if one["event"] == "source_row_refused"]
            assert len(refused) == sum(stream.writer.refused.values()) and all(one["sampled"] for one in refused)
            assert any(one["reason"] == "not_json" and one["source"].startswith(f"{name}/") for one in refused)
            assert feed.figures()["records"] == len(rows)


def test_restart_reads_behind_the_log_even_if_all_that_follows_was_refused(tmp_path, nats_broker):
    nats_broker.publish([*NAMELESS[:10], b"bad", b"bad"])
    with fed(tmp_path / "out", nats_broker.source()) as (stream, feed, _):
        read_through(stream, feed, 12)
    nats_broker.publish(NAMELESS[10:20])
    with fed(tmp_path / "out", nats_broker.source()) as (stream, feed, _):
        assert stream.wal.positions["nats/POSTS"]["0"][0] == 12
        read_through(stream, feed, 22)
        assert logged(stream) == NAMELESS[:20]
        assert feed.records == 10


def test_broker_killed_again_and_again_gives_each_message_once(tmp_path, nats_broker):
    with fed(tmp_path / "out", nats_broker.source("skyray"), batch=100) as (stream, feed, _):

        def durable():
            return feed.figures()["durable"].get("0", 0)

        with Publisher(nats_broker, NAMELESS[:3_000], lambda: durable() + 700):
            for kill in range(1, 4):
                await_(lambda kill=kill: durable() >= 700 * kill)
                nats_broker.kill()
                await_(lambda: feed.state == "away")
                assert "nats/POSTS" in feed.error
                nats_broker.start()
                await_(lambda: feed.state == "reading")
            read_through(stream, feed, 3_000)
        assert logged(stream) == NAMELESS[:3_000]
        assert feed.reconnects >= 3 and feed.records == 3_000
        await_(lambda: nats_broker.acknowledged("skyray") == 3_000)


def test_reconnect_does_not_read_again_what_is_handed_over_and_not_logged_yet(tmp_path, nats_broker):
    nats_broker.publish(NAMELESS[:300])
    taken = []

    def hand_over(lines):
        taken.extend(line.data for line in lines)
        return True

    with WriterStream(tmp_path / "out") as stream:
        feed = Feed(nats_broker.source(), stream.wal, hand_over)
        feed.begin()
        await_(lambda: len(taken) == 300)
        nats_broker.kill()
        await_(lambda: feed.state == "away")
        nats_broker.start()
        nats_broker.publish(NAMELESS[300:400])
        await_(lambda: len(taken) >= 400)
        feed.close(20)
        assert stream.wal.positions == {} and feed.failure is None
        assert taken == NAMELESS[:400]


def test_full_topology_stops_the_reading(tmp_path, nats_broker):
    rows = NAMELESS
    nats_broker.publish(rows)
    with fed(tmp_path / "out", nats_broker.source(), most=1, batch=500) as (stream, feed, _):
        # one in flight, which may have ended before it was full, and one that waits
        await_(lambda: stream.wal.next_seq and stream.writer.batching.open)
        before = -1
        while feed.records != before:
            before = feed.records
            threading.Event().wait(0.5)
        assert feed.records <= MOST_OPEN * MOST_READ + 500 < len(rows)
        stop = threading.Event()

        def drain():
            while not stop.is_set():
                stream.in_flight.advance(stream.wal.next_seq - 1)
                stop.wait(0.005)

        threading.Thread(target=drain, daemon=True).start()
        read_through(stream, feed, len(rows))
        stop.set()
        assert logged(stream) == rows


def test_stream_made_anew_ends_the_feed_with_what_to_do(tmp_path, nats_broker):
    nats_broker.publish(ROWS[:10])
    with fed(tmp_path / "out", nats_broker.source()) as (stream, feed, _):
        read_through(stream, feed, 10)
        nats_broker.recreate()
        nats_broker.publish(ROWS[:20])
        await_(lambda: feed.failure is not None)
        assert isinstance(feed.failure, ConfigError) and "created anew" in str(feed.failure)
        feed.failure = None
        assert logged(stream) == ROWS[:10]
    with pytest.raises(ConfigError, match="--out"), fed(tmp_path / "out", nats_broker.source()) as (_, again, _):
        await_(lambda: again.ended)


def test_lines_of_skyray_live_come_from_a_source(tmp_path, nats_broker):
    nats_broker.publish([*ROWS[:50], b"bad", *ROWS[50:60], b"bad"])
    etl = write_etl(tmp_path / "etl", random_rows(5))
    for life in range(2):
        stream, ended = Stream(etl, tmp_path / "live", world="-180,-90,180,90"), threading.Event()
        (tmp_path / "live" / "run.json").write_text(json.dumps({"live": stream.journal.settings, "state": "running"}))
        feed = Feed(nats_broker.source(), stream.journal, into_pipe(stream.pipe, ended.is_set))
        stream.pipe.start(None, ended.is_set, stream.journal.line)
        feed.begin()
        if life:
            nats_broker.publish(ROWS[60:100])
        await_(lambda feed=feed, life=life: feed.figures()["durable"].get("0", 0) >= (102 if life else 62))
        ended.set()
        feed.close(20)
        await_(lambda stream=stream: stream.pipe.ended)
        assert stream.pipe.failure is None
        places = [(row["source"], row["offset"]) for row in stream.refused]
        assert places == ([] if life else [(f"nats/{STREAM}", 51), (f"nats/{STREAM}", 62)])
        assert (
            list(map(line_of, messages_in(record for record, _, _ in read_records(stream.journal.log))))
            == ROWS[: 100 if life else 60]
        )
        assert read_status(tmp_path / "live")["source"] == {f"nats/{STREAM}": {"0": 102 if life else 62}}
        stream.journal.close()


def test_positions_of_a_torn_record_do_not_count(tmp_path):
    first, second = ({"nats/A": {"0": (offset, "t")}} for offset in (1, 2))
    row = {"text": "a", "lon": 1, "lat": 1}
    data = log_bytes(record_of(0, 1, [row], positions=first), record_of(1, 2, [row], positions=second))
    path = tmp_path / "log"
    path.write_bytes(data[:-1])
    assert [record.positions for record, _, _ in read_records(path)] == [first]
    path.write_bytes(data.replace(b'"0":[2', b'"0":[3'))
    assert [record.positions for record, _, _ in read_records(path)] == [first]


def test_line_without_a_source_has_no_position(tmp_path):
    assert InputLine(1, b"", 0.0).origin is None
    assert b"positions" not in log_bytes(record_of(0, 1, [{"text": "a", "lon": 1, "lat": 1}]))
