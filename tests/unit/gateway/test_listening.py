"""What a topology tells at once arrives whole and in order, and what it repeats is not written again."""

import socket
import threading
import time

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolts import publishing
from bolts.names import IdColumn
from bolts.publishing import PublishedUpdates, UpdatePublisher, decode, encode
from gateway.live import update_listener
from gateway.live.in_flight import InFlight
from gateway.live.update_listener import MessageText
from gateway.serve.released import LineWriter
from gateway.serve.releasing import Releaser
from matching.errors import DeliveryError
from matching.model import CHANGES, MATCH, Names, UpdateBatch

ENTER = CHANGES.index("enter")


def updates(*rows):
    """Rows of as_of, number, seq, change, score."""
    as_of, number, seq, change, score = zip(*rows, strict=True)
    whole = [np.array(column, np.int64) for column in (as_of, number, seq)]
    return UpdateBatch(whole[0], whole[1], whole[2], np.array(change, np.int8), np.array(score, np.float64))


def ids(*names):
    column = IdColumn("subscription")
    column.append(Names.of(names))
    return column


def said(seqs):
    return {seq: MessageText(f"m{seq}", "é", 1.0, 2.0) for seq in seqs}


class Heard(Releaser):
    def __init__(self, in_process=False, threaded=False):
        self.written, self.durable = [], 999
        deliver = LineWriter(self.written.append, said).deliver
        super().__init__(InFlight(3), range(1_000), lambda: self.durable, deliver, in_process, threaded)

    def await_through(self, through):
        deadline = time.monotonic() + 300
        while self.in_flight.through < through:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def rows(self):
        return [row for data in self.written for row in map(msgspec.json.decode, data.splitlines())]


@pytest.mark.parametrize("way", [(False, False), (True, False), (True, True)], ids=["socket", "direct", "thread"])
def test_listener_writes_what_is_told_with_text_and_place(way):
    with Heard(*way) as heard:
        publisher = UpdatePublisher(heard.address, 0)
        publisher.add(updates((3, 1, 2, ENTER, 0.5), (3, 0, 3, MATCH, np.nan)))
        publisher.add(updates((3, 1, 3, ENTER, 0.25)))
        publisher.publish(3, ids("a", "ü"))
        heard.await_through(3)
        publisher.close()
    of_it = {"text": "é", "lon": 1.0, "lat": 2.0}
    assert heard.rows() == [
        {"change": "match", "subscription_id": "a", "as_of": 3, "message_id": "m3", "seq": 3, "score": None, **of_it},
        {"change": "enter", "subscription_id": "ü", "as_of": 3, "message_id": "m2", "seq": 2, "score": 0.5, **of_it},
        {"change": "enter", "subscription_id": "ü", "as_of": 3, "message_id": "m3", "seq": 3, "score": 0.25, **of_it},
    ]
    keys = ["change", "subscription_id", "as_of", "message_id", "seq", "text", "lon", "lat", "score"]
    assert all(list(row) == keys for row in heard.rows())
    assert heard.updates == 3 and heard.reached(0) == 3 and heard.reached(1) == -2


def test_updates_of_this_process_are_handed_over_as_they_are(monkeypatch):
    """No frame is made, and nothing listens; the address of a block that has ended takes nothing."""
    monkeypatch.setattr(publishing, "encode", None)
    with Heard(in_process=True) as heard:
        publisher = UpdatePublisher(heard.address, 0)
        publisher.add(updates((3, 0, 3, MATCH, np.nan)))
        publisher.publish(3, ids("a"))
        assert [row["seq"] for row in heard.rows()] == [3], "the publisher returns once it is taken"
        with socket.socket(socket.AF_UNIX) as stranger, pytest.raises(OSError):
            stranger.connect(heard.address)
        publisher.close()
    with pytest.raises(DeliveryError, match="no listener takes updates"):
        UpdatePublisher(heard.address, 1)


def test_topology_goes_on_while_a_thread_writes_until_too_many_bytes_wait(monkeypatch):
    monkeypatch.setattr(update_listener, "MOST_WAITING_BYTES", 10_000)
    go, sent = threading.Event(), []
    with Heard(in_process=True, threaded=True) as heard:
        written = heard.written

        def deliver(released: object, through: int) -> None:
            go.wait(20)
            written.append(through)

        heard._deliver = deliver
        publisher = UpdatePublisher(heard.address, 0)

        def publish():
            for last in range(100):
                publisher.add(updates(*((last, 0, last, MATCH, np.nan) for _ in range(10))))
                publisher.publish(last, ids("a"))
                sent.append(last)

        publishing = threading.Thread(target=publish)
        publishing.start()
        deadline = time.monotonic() + 300
        while len(sent) < 20 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert 20 <= len(sent) < 60 and not written and heard._inlet._size_bytes < 10_000 + 500
        go.set()
        publishing.join(20)
        heard.await_through(99)
        assert sent == list(range(100)) == written and heard._inlet._size_bytes <= 500
        publisher.close()


def test_listener_writes_nothing_of_an_older_incarnation_nor_what_was_told_to_its_end():
    with Heard() as heard:
        first, second = (UpdatePublisher(heard.address, incarnation) for incarnation in (4, 5))
        for publisher, last in ((first, 7), (second, 9)):
            publisher.add(updates(*((seq, 0, seq, MATCH, np.nan) for seq in range(5, last + 1))))
            publisher.publish(last, ids("a"))
            heard.await_through(last)
        first.add(updates((8, 0, 8, MATCH, np.nan)))
        first.publish(12, ids("a"))
        second.publish(10, ids("a"))
        heard.await_through(10)
        first.close()
        second.close()
    assert [row["seq"] for row in heard.rows()] == [5, 6, 7, 8, 9]
    assert heard.in_flight.through == heard.reached(5) == 10


def test_listener_writes_what_a_checkpoint_covers_though_it_is_read_after_the_next_incarnation():
    with Heard() as heard:
        first, second = (UpdatePublisher(heard.address, incarnation) for incarnation in (4, 5))
        second.since = 7  # of the checkpoint, which was made when the first had sent that much
        for publisher, seqs, last in ((second, (8, 9), 9), (first, (5, 6, 7, 8), 7)):
            publisher.add(updates(*((seq, 0, seq, MATCH, np.nan) for seq in seqs)))
            publisher.publish(last, ids("a"))
        heard.await_through(9)
        first.close()
        second.close()
    assert [row["seq"] for row in heard.rows()] == [5, 6, 7, 8, 9]


def test_listener_writes_once_messages_are_on_disk():
    with Heard() as heard:
        heard.durable = 3
        publisher = UpdatePublisher(heard.address, 0)
        for last in (3, 4):
            publisher.add(updates((last, 0, last, MATCH, np.nan)))
            publisher.publish(last, ids("a"))
        heard.await_through(4)
        heard.settle()
        assert [row["seq"] for row in heard.rows()] == [3] and heard.reached(0) == 3
        heard.durable = 4
        heard.settle()
        publisher.close()
    assert [row["seq"] for row in heard.rows()] == [3, 4]


def test_listener_that_cannot_write_keeps_why_and_listens_on():
    def refuse(data):
        raise BrokenPipeError

    with Releaser(InFlight(1), range(1_000), lambda: 999, LineWriter(refuse, said).deliver) as listener:
        publisher = UpdatePublisher(listener.address, 0)
        for last in range(300):
            publisher.add(updates(*((last, 0, last, MATCH, np.nan) for _ in range(100))))
            publisher.publish(last, ids("a"))
        deadline = time.monotonic() + 300
        while listener.in_flight.through < 299 and time.monotonic() < deadline:
            time.sleep(0.005)
        publisher.close()
    assert isinstance(listener.failure, BrokenPipeError) and listener.in_flight.through == 299
    assert listener.updates == 0 and listener.reached(0) == -1


def test_listener_lets_go_of_who_sends_what_is_no_frame():
    with Heard() as heard, socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(heard.address)
        stranger.sendall(b"x" * 32)
        stranger.settimeout(20)
        assert stranger.recv(1) == b""
        publisher = UpdatePublisher(heard.address, 0)
        publisher.publish(1, ids("a"))
        heard.await_through(1)
        publisher.close()


def test_publisher_without_a_listener_says_so(tmp_path):
    with pytest.raises(DeliveryError, match="no listener takes updates"):
        UpdatePublisher(str(tmp_path / "nobody"), 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-2, 2**60), st.floats(width=64)), max_size=20))
@settings(max_examples=30, deadline=None)
def test_told_frame_gives_back_what_was_told(rows):
    who, seq, score = ([row[place] for row in rows] for place in range(3))
    seqs = np.array(seq, np.int64)
    change, score, who = np.zeros(len(rows), np.int8), np.array(score, np.float64), np.array(who, np.int32)
    told = PublishedUpdates(7, 5, seqs, seqs, change, score, who, Names.of(["a", "", "ü"]))
    again = decode(encode(told))
    assert (again.incarnation, again.through, again.names.strings()) == (7, 5, ["a", "", "ü"])
    for name in ("as_of", "seq", "change", "score", "who"):
        assert getattr(again, name).tobytes() == getattr(told, name).tobytes()
