"""What holds bytes of others has a bound in bytes: each is filled here beyond it (table: `docs/operate.md`)."""

import asyncio
import json
from types import MappingProxyType

import msgspec
import numpy as np
import pytest

from gateway.client import flows
from gateway.client.answers import Answer
from gateway.client.errors import Failed
from gateway.live import batching, recent_blocks
from gateway.live import pipe as pipes
from gateway.live.in_flight import InFlight
from gateway.live.open_batch import InputLine
from gateway.live.update_listener import MessageText
from gateway.serve import hub as hubs
from gateway.serve import recent_ids, released, update_parts
from gateway.serve import update_log as update_logs
from gateway.serve import writer as writers
from gateway.serve.event_forms import LINES
from gateway.serve.hub import Hub, Interest
from gateway.serve.recent_ids import RecentIds
from gateway.serve.released import RANKS, LineWriter
from gateway.serve.releasing import Releaser
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import BEGINNING, END, Parts, Position
from gateway.serve.writer import PublishedRow, Subscribe
from gateway.sources import feed as feeds
from gateway.sources.feed import Feed
from gateway.sources.source import Delivered
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream
from tests.support.releasing import RawUpdate, published, released_of, updates_of, write_part
from tests.support.writing import WriterStream

LONG = 10_000


class Log:
    """Texts of a log, and how many bytes of them were looked up."""

    def __init__(self):
        self.bytes = 0

    def look_up(self, seqs):
        self.bytes += len(seqs) * LONG
        return {seq: MessageText(f"m{seq}", "x" * LONG, 1.0, 2.0) for seq in seqs}


def boundary(last_seq, updates, messages=1):
    """A boundary whose updates are of so many messages."""
    rows = (
        RawUpdate(f"s{n // messages:06}", RANKS["match"], last_seq - n % messages, last_seq, None)
        for n in range(updates)
    )
    return released_of(last_seq, rows)


def test_updates_in_memory_have_no_text_and_few_bytes_each():
    some = boundary(99, 20_000, messages=100)
    assert some.size_bytes < 20_000 * 80
    assert all(len(one.data) > LONG for one in updates_of(some, np.arange(100), Log().look_up))


@pytest.mark.parametrize("messages", [1, 600])
def test_piece_of_updates_ends_by_its_bytes(messages):
    log, some, found, at = Log(), boundary(599, 20_000, messages), [], 0
    while at < 20_000:
        piece = updates_of(some, np.arange(at, 20_000), log.look_up, 2**20)
        assert 0 < sum(len(one.data) for one in piece) < 2**20 + 2 * LONG
        found += piece
        at += len(piece)
        if len(found) > 3_000:
            break
    assert [one.position for one in found] == [f"599-{place}" for place in range(len(found))]
    assert log.bytes < 2 * sum(len(one.data) for one in found)


def test_history_that_is_full_lets_no_more_batches_in_until_the_parts_have_them(monkeypatch, tmp_path):
    monkeypatch.setattr(update_logs, "MOST_IN_MEMORY_BYTES", 500_000)
    history, in_flight = UpdateLog(Parts(tmp_path, [], Log().look_up), most_bytes=100_000), InFlight(2)
    in_flight.has_room = lambda: history.has_room
    last = 0
    while in_flight.await_capacity(0.0):
        history.append([boundary(last, 1_000)], last)
        last += 1
    assert history.size_bytes < 600_000 and history.full and last > 5
    history.trim(-1)
    assert not in_flight.await_capacity(0.0), "what no part has stays"
    history.trim(last)
    assert in_flight.await_capacity(0.0) and history.size_bytes <= 100_000


def test_history_that_is_full_is_trimmed_although_nothing_more_is_released(monkeypatch):
    """No batch is taken then: only a checkpoint makes room."""
    named = [-1]

    class Growing:
        ends = ()
        look_up, included = Log().look_up, None

        def last_boundary(self):
            return named[0]

    async def story():
        monkeypatch.setattr(hubs, "_TRIM_S", 0.01)
        hub = Hub(UpdateLog(Growing(), most_bytes=1_000), None, lambda: 0)
        hub.start(asyncio.get_running_loop())
        hub.deliver([boundary(last, 100) for last in range(10)], 9)
        await asyncio.sleep(0.05)
        assert hub.log.full
        named[0] = 9
        async with asyncio.timeout(20):
            while hub.log.full:
                await asyncio.sleep(0.005)

    asyncio.run(story())


def test_parts_that_stay_decoded_have_a_bound(monkeypatch, tmp_path):
    monkeypatch.setattr(update_parts, "DECODED_BYTES", 200_000)
    ends, folder = list(range(100)), tmp_path / "updates"
    for number in range(10):
        rows = [(number, f"s{n}", number, "match", None) for n in range(1_000)]
        write_part(folder, number, rows)
    parts, at, found = Parts(folder, ends, Log().look_up), BEGINNING, 0
    while at < Position(9, END):
        some, at = parts.read_after(at, 9, ["s7"])
        found += len(some)
        sizes = [one.size_bytes for one in parts._decoded.values()]
        assert sum(sizes) <= 200_000 or len(sizes) == 1
    assert found == 10


def test_texts_in_memory_have_a_bound_and_the_others_are_in_the_log(monkeypatch, tmp_path):
    monkeypatch.setattr(recent_blocks, "RECENT_BYTES", 50 * LONG)
    stream = Stream(write_etl(tmp_path / "words", random_rows(20)), tmp_path / "out")
    for number in range(200):
        stream.take({"id": f"m{number}", "text": f"{number} " + "x" * LONG, "lon": 1, "lat": 1})
        if number % 20 == 19:
            stream.pipe.close_batch()
    kept = [seq for seq in range(200) if stream.journal.has_texts([seq])]
    assert kept == list(range(160, 200)), "whole batches of 20"
    assert stream.journal._recent._bytes <= 50 * LONG
    texts = stream.journal.look_up(range(200))
    assert [texts[seq].text.split()[0] for seq in range(200)] == [str(seq) for seq in range(200)]
    stream.journal.close()


def test_lines_that_are_read_ahead_have_a_bound(monkeypatch):
    monkeypatch.setattr(pipes, "READ_AHEAD_BYTES", 10 * LONG)
    lines = pipes._Lines(pipes.READ_AHEAD)
    count = 0
    while not lines.full():
        lines.put(InputLine(count, b"x" * LONG, 0.0))
        count += 1
    assert count == 10
    with pytest.raises(pipes.queue.Full):
        lines.put(None, timeout=0.0)
    assert [lines.get().number for _ in range(count)] == list(range(count)) and lines.empty()
    lines.put(None)
    assert lines.get() is None and lines.empty()


def test_batch_is_full_by_its_bytes(monkeypatch, tmp_path):
    monkeypatch.setattr(batching, "BATCH_BYTES", 10 * LONG)
    with WriterStream(tmp_path / "out") as stream:
        rows = [{"id": f"m{number}", "text": "x" * LONG, "lon": 1, "lat": 1} for number in range(35)]
        found = stream.submit(*(PublishedRow(json.dumps(row).encode()) for row in rows))
        stream.writer.begin()
        stream.end()
        assert [one["status"] for one in found] == ["accepted"] * 35
        assert [record.messages for record in stream.records()] == [10, 10, 10, 5]


def test_requests_that_wait_for_kernels_have_a_bound(monkeypatch, tmp_path):
    monkeypatch.setattr(writers, "MOST_WAITING_BYTES", 10 * LONG)

    class Never:
        preparing = ()

        def is_ready(self, kind):
            return False

    with WriterStream(tmp_path / "out", preparing=Never()) as stream:
        row, found = Subscribe({"subscription_id": "s", "kind": "knn"}), []
        taken = [stream.writer.submit([row], LONG, found.append) for _ in range(12)]
        assert taken == [True] * 5 + [False] * 7, "one caller has half of the room"
        assert stream.writer._parked_room.used == (5, 5 * LONG)


def test_ids_that_are_remembered_have_a_bound(monkeypatch):
    monkeypatch.setattr(recent_ids, "REMEMBERED_BYTES", 100_000)
    ids = RecentIds(10_000)
    for seq in range(2_000):
        ids.put(f"{seq:0500}", seq)
        assert len(ids._newer) + len(ids._older) <= 2 * 100_000 / 500
        assert ids.get(f"{seq:0500}") == seq and ids.get(f"{max(0, seq - 100):0500}") is not None


def test_answer_to_a_poll_ends_by_its_bytes(monkeypatch):
    monkeypatch.setattr(hubs, "POLL_BYTES", 20 * LONG)

    class OfLog:
        ends = range(100)
        look_up, included = Log().look_up, None

        def last_boundary(self):
            return -1

    async def story():
        hub = Hub(UpdateLog(OfLog()), None, lambda: 0)
        hub.start(asyncio.get_running_loop())
        hub.deliver([boundary(9, 200)], 9)
        await asyncio.sleep(0)
        found, at = [], BEGINNING
        while at < hub.log.head:
            data = await hub.poll(LINES, Interest(), at, 0.0, 100_000)
            assert len(data) < 20 * LONG + hubs.READ_BYTES + 12 * LONG
            *lines, progress = map(msgspec.json.decode, data.splitlines())
            found += [one["id"] for one in lines]
            at = Position.of(progress["progress"]["id"])
        assert found == [f"9-{place}" for place in range(200)]

    asyncio.run(story())


def test_updates_of_live_are_written_in_pieces(monkeypatch):
    monkeypatch.setattr(released, "WRITTEN_BYTES", 20 * LONG)
    written, log = [], Log()
    lines = LineWriter(written.append, log.look_up)
    releaser = Releaser(InFlight(2), [9], lambda: 99, lines.deliver)
    releaser.take(published([(9, f"s{n:04}", 9, "match", None) for n in range(1_000)], 0, 9))
    assert releaser.failure is None and max(map(len, written)) < 20 * LONG + 12 * (LONG + 500)
    rows = [json.loads(line)["subscription_id"] for data in written for line in data.splitlines()]
    assert len(written) > 5 and rows == [f"s{n:04}" for n in range(1_000)]


def test_updates_of_batches_in_flight_that_are_many_let_no_more_batches_in(monkeypatch):
    """Until they are released: a boundary is not complete, or not on disk."""
    durable, delivered = [9], []
    in_flight = InFlight(100)
    releaser = Releaser(in_flight, range(9, 1_000, 10), lambda: durable[0], lambda found, _: delivered.extend(found))
    in_flight.has_room = lambda: releaser.pending_bytes < 200_000
    last = 9
    while in_flight.await_capacity(0.0):
        rows = [(last, f"s{n:03}", last, "match", None) for n in range(1_000)]
        releaser.take(published(rows, 0, last))
        last += 10
    assert 40 < last < 100 and len(delivered) == 1 and releaser.pending_bytes < 300_000
    durable[0] = 999
    releaser.settle()
    assert in_flight.await_capacity(0.0) and releaser.pending_bytes == 0 and releaser.updates == (last - 9) * 100


def test_messages_of_a_broker_are_read_by_their_bytes(monkeypatch):
    monkeypatch.setattr(feeds, "READ_BYTES", 20 * LONG)
    asked, sizes = [], iter([10] * 12 + [LONG] * 12 + [10] * 12)

    class Endless:
        name = "kafka/posts"

        def read(self, most, timeout_s):
            asked.append(most)
            first, size = sum(asked[:-1]), next(sizes)
            return [Delivered("0", first + n, "", b"x" * size) for n in range(most)]

        def acknowledge(self, position):
            pass

    class NoLog:
        positions, line = MappingProxyType({}), 0

    taken = []
    feed = Feed(Endless(), NoLog(), lambda lines: taken.extend(lines) or True)
    for _ in range(36):
        feed._advance()
    assert asked[0] == feeds.FIRST_READ and max(asked) == feeds.MOST_READ
    assert asked[13:24] == [20] * 11, "long ones"
    assert asked[-1] == feeds.MOST_READ and [one.origin.offset for one in taken] == list(range(sum(asked)))


class _EndlessEvent:
    """A link to a server whose first event does not end."""

    read_times = 0

    async def open(self, request, silence_s):
        return Answer(200, {}, b"")

    async def read(self):
        self.read_times += 1
        return b"data: " if self.read_times == 1 else b"x" * LONG

    async def close(self):
        pass


def test_event_without_an_end_is_not_read_on_by_the_client(monkeypatch):
    monkeypatch.setattr(flows, "MOST_EVENT_BYTES", 5 * LONG)
    following = flows.following_of({}, flows.Patience(), None, 1.0, 1.0, snapshot=True)
    link = _EndlessEvent()
    with pytest.raises(Failed, match="event_too_long"):
        asyncio.run(anext(flows.follow(link, flows.Followed(None), following)))
    assert 5 < link.read_times <= 7
