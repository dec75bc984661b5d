"""What the sink of NATS promises (`gateway.sinks.stream`), held against a real server."""

import asyncio
import contextlib
import json
import re
from urllib.parse import unquote

import pytest
from nats.aio.client import Client
from nats.js.api import RetentionPolicy, StreamConfig, StreamSource

from gateway.serve.update_parts import Position
from gateway.sinks.nats import WINDOW, NatsSink, token_of
from gateway.sinks.stream import SinkAway, UpdateChunk
from matching.errors import ConfigError, EngineError
from tests.support.brokers import NatsBroker
from tests.support.nats_sinking import (
    IDENTITY,
    NAME,
    SUBJECT,
    Had,
    chunk_of,
    chunks_of,
    create,
    last_sequence,
    message,
    sink_of,
    updates_of,
)
from tests.support.releasing import update_of
from tests.support.serving import free_port

UPDATES = updates_of(3_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with NatsBroker(tmp_path_factory.mktemp("broker")) as one:
        yield one


@pytest.fixture
def broker(server):
    """A server without streams."""
    yield server
    if server.process is None:
        server.start()
    for stream in server.call(lambda context: context.streams_info()):
        server.delete(stream.config.name)


@pytest.fixture
def opened():
    """Opens sinks, and closes them at the end."""
    sinks = []

    def opened(sink, stream=IDENTITY):
        sinks.append(sink)
        return sink.open(stream)

    yield opened
    for sink in sinks:
        sink.close()


def position(update):
    return Position.of(update.position)


def change(broker, **options):
    """Change the configuration of the stream."""
    config = StreamConfig(NAME, **{"subjects": [f"{SUBJECT}.*"], **options})
    broker.call(lambda context: context.update_stream(config))


def large(position, size):
    row = b'{"change":"match","text":"%s"}'
    return update_of("s1", position, row % (b"x" * (size + 2 - len(row))))


def test_sink_publishes_each_update_once_in_order(broker, opened):
    create(broker)
    sink = sink_of(broker)
    assert (sink.name, opened(sink)) == (f"nats/{NAME}", None)
    for chunk in chunks_of(UPDATES):
        assert sink.deliver(chunk) == chunk.behind
    had = Had.by(broker)
    assert had.data == [one.data for one in UPDATES]
    assert had.ids == [f"{IDENTITY}/{one.position}" for one in UPDATES]
    assert [one.subject for one in had] == [f"{SUBJECT}.{token_of(one.subscription_id)}" for one in UPDATES]


def test_message_is_a_cloudevent_whose_values_are_percent_encoded(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink)
    sink.deliver(chunk_of(UPDATES))
    for sequence in (1, next(n for n, one in enumerate(UPDATES, 1) if one.subscription_id == "東京 ramen")):
        update, headers = UPDATES[sequence - 1], message(broker, sequence).headers or {}
        assert headers["ce-specversion"] == "1.0"
        assert headers["ce-id"] == headers["Nats-Msg-Id"] == f"{IDENTITY}/{update.position}"
        assert {"ce-source", "ce-type", "ce-datacontenttype"} <= set(headers)
        assert unquote(headers["ce-subject"]) == update.subscription_id == json.loads(update.data)["subscription_id"]
        assert all(re.fullmatch(r"[!-~]+", value) and '"' not in value for value in headers.values())


def test_sink_opened_again_begins_behind_the_last_message(broker, opened):
    create(broker, duplicate_window=0.1)
    first = sink_of(broker)
    opened(first)
    first.deliver(chunk_of(UPDATES[:1_200]))
    broker.kill()  # it knows no id when it is back
    broker.start()
    assert opened(first) == position(UPDATES[1_199])  # without a close, as after a broken connection
    first.close()
    first.close()
    second = sink_of(broker)
    assert opened(second) == position(UPDATES[1_199])
    second.deliver(chunk_of(UPDATES[1_000:2_000]))  # as from a position that lags
    second.deliver(chunk_of(UPDATES[:2_000]))
    assert Had.by(broker).data == [one.data for one in UPDATES[:2_000]]


@pytest.mark.parametrize("ahead", [1, 100, 600])
def test_two_sinks_at_the_same_time_neither_repeat_nor_skip(broker, opened, ahead):
    create(broker)
    earlier, later = sink_of(broker), sink_of(broker)
    opened(earlier)
    earlier.deliver(chunk_of(UPDATES[:100]))
    opened(later)
    later.deliver(chunk_of(UPDATES[100 : 100 + ahead]))
    with pytest.raises(SinkAway, match="something else has written"):
        earlier.deliver(chunk_of(UPDATES[100:600]))
    came = last_sequence(broker)  # what the earlier one sent is taken where it follows what is there
    assert Had.by(broker).data == [one.data for one in UPDATES[:came]]
    assert opened(earlier) == position(UPDATES[came - 1])
    earlier.deliver(chunk_of(UPDATES[100:900]))
    assert Had.by(broker).data == [one.data for one in UPDATES[:900]]


def test_messages_of_others_let_none_of_ours_in_where_it_does_not_belong(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink)
    for _ in range(20):  # the sequences that our later messages would have
        broker.call(lambda context: context.publish(f"{SUBJECT}.s1", b"{}"))
    with pytest.raises(SinkAway, match="something else has written"):
        sink.deliver(chunk_of(UPDATES[:500]))
    assert Had.by(broker).data == [b"{}"] * 20


@pytest.mark.parametrize("limited", ["stream", "server"])
def test_update_that_is_too_large_stops_what_follows_it(broker, opened, limited):
    create(broker, max_msg_size=10_000 if limited == "stream" else -1)
    sink = sink_of(broker)
    opened(sink)
    size = 20_000 if limited == "stream" else 2**20 - 100  # without the headers the server would take it
    boundary = position(UPDATES[99]).boundary
    chunk = [
        *UPDATES[:100],
        large(f"{boundary}-9000", size),
        *(large(f"{boundary}-{n}", 90) for n in range(9_001, 9_100)),
    ]
    with pytest.raises(EngineError, match=rf"update {boundary}-9000 of 's1' with {size:,} bytes.*Raise") as caught:
        sink.deliver(chunk_of(chunk))
    assert not isinstance(caught.value, SinkAway)
    assert opened(sink) == position(UPDATES[99])
    assert Had.by(broker).data == [one.data for one in UPDATES[:100]]


@pytest.mark.parametrize("limit", [{"max_msgs": 150}, {"max_bytes": 100_000}])
def test_full_stream_takes_the_rest_once_it_has_room(broker, opened, limit):
    create(broker, discard="new", **limit)
    sink = sink_of(broker)
    opened(sink)
    with pytest.raises(SinkAway, match="maximum .* exceeded.*Raise the limits"):
        sink.deliver(chunk_of(UPDATES[:2_000]))
    came = last_sequence(broker)
    assert 0 < came < 2_000
    assert opened(sink) == position(UPDATES[came - 1])
    change(broker, discard="new")
    sink.deliver(chunk_of(UPDATES[came:2_000]))
    assert Had.by(broker).data == [one.data for one in UPDATES[:2_000]]


def test_stream_that_keeps_few_messages_has_the_position(broker, opened):
    create(broker, max_msgs=5)
    sink = sink_of(broker)
    opened(sink)
    sink.deliver(chunk_of(UPDATES[:1_500]))
    assert opened(sink) == position(UPDATES[1_499])
    sink.deliver(chunk_of(UPDATES[1_500:1_503]))
    assert Had.by(broker).data == [one.data for one in UPDATES[1_498:1_503]]


def test_removed_messages_come_again_with_the_same_ids_or_not_at_all(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink)
    sink.deliver(chunk_of(UPDATES[:1_500]))
    broker.call(lambda context: context.purge_stream(NAME))
    assert opened(sink) is None  # the stream does not know
    for first, behind in ((1_000, 1_300), (1_300, 1_700)):  # the server knows the ids of the first 500
        sink.deliver(chunk_of(UPDATES[first:behind]))
    assert Had.by(broker).data == [one.data for one in UPDATES[1_500:1_700]]
    assert opened(sink) == position(UPDATES[1_699])
    change(broker, duplicate_window=0.1)
    broker.call(lambda context: context.purge_stream(NAME))
    opened(sink)
    broker.kill()  # it reads the ids that are left
    broker.start()
    assert opened(sink) is None
    sink.deliver(chunk_of(UPDATES[1_600:1_700]))
    assert Had.by(broker).ids == [f"{IDENTITY}/{one.position}" for one in UPDATES[1_600:1_700]]


def test_repeats_that_the_server_drops_are_no_predecessors(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink)
    sink.deliver(chunk_of(UPDATES[:500]))
    other = broker.call(lambda context: context.publish(f"{SUBJECT}.s1", b"{}"))
    broker.call(lambda context: context.purge_stream(NAME))
    assert opened(sink) is None and other.seq == 501
    sink.deliver(chunk_of(UPDATES[400:1_700]))  # behind 100 that the server drops, the last id is another one
    assert Had.by(broker).data == [one.data for one in UPDATES[500:1_700]]
    assert message(broker, 502).data == UPDATES[500].data


def test_last_message_that_was_deleted_does_not_hide_the_one_before(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink)
    sink.deliver(chunk_of(UPDATES[:10]))
    broker.call(lambda context: context.delete_msg(NAME, 10))
    assert opened(sink) == position(UPDATES[8])
    sink.deliver(chunk_of(UPDATES[9:20]))
    assert Had.by(broker).data == [one.data for one in [*UPDATES[:9], *UPDATES[10:20]]]


def test_stream_that_begins_with_a_later_sequence_is_written_to(broker, opened):
    create(broker, first_seq=500)
    sink = sink_of(broker)
    assert opened(sink) is None
    sink.deliver(chunk_of(UPDATES[:10]))
    assert opened(sink) == position(UPDATES[9])


def test_stream_in_memory_is_gone_with_its_server(broker, opened):
    create(broker, storage="memory")
    sink = sink_of(broker)
    assert opened(sink) is None
    sink.deliver(chunk_of(UPDATES[:10]))
    broker.kill()
    broker.start()
    with pytest.raises(ConfigError, match="create it"):
        opened(sink)


def test_stream_with_updates_of_another_stream_is_refused(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink, "other")
    sink.deliver(chunk_of(UPDATES[:1]))
    with pytest.raises(ConfigError, match=rf"another stream of Skyray's, other; this one is {IDENTITY}.*Name another"):
        opened(sink)


@pytest.mark.parametrize("headers", [{}, {"Nats-Msg-Id": "order 7"}])
def test_stream_to_which_another_program_writes_is_refused(broker, opened, headers):
    create(broker)
    sink = sink_of(broker)
    opened(sink)
    sink.deliver(chunk_of(UPDATES[:5]))
    broker.call(lambda context: context.publish(f"{SUBJECT}.s1", b"{}", headers=headers))
    with pytest.raises(SinkAway, match="something else has written"):
        sink.deliver(chunk_of(UPDATES[5:9]))
    with pytest.raises(ConfigError, match="message 6 is none of Skyray's.*a stream of its own"):
        opened(sink)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (None, "create it, for the subject 'skyray.updates.*'"),
        ({"subjects": ["skyray.posts.>", "skyray.updates", "skyray.updates.a.b"]}, "give it the subject"),
        ({"subjects": None, "mirror": StreamSource("POSTS")}, "is a mirror"),
        ({"no_ack": True}, "no_ack"),
        ({"retention": RetentionPolicy.WORK_QUEUE}, "retention workqueue.*source it"),
        ({"persist_mode": "async"}, "persist_mode async"),
    ],
)
def test_stream_that_cannot_say_what_it_has_is_refused(broker, opened, options, why):
    broker.create()
    if options is not None:
        create(broker, **options)
    with pytest.raises(ConfigError, match=why):
        opened(sink_of(broker))


def test_sealed_stream_is_refused(broker, opened):
    create(broker)
    change(broker, sealed=True)
    with pytest.raises(ConfigError, match="sealed"):
        opened(sink_of(broker))


@pytest.mark.parametrize("subjects", [["skyray.>"], ["other", "skyray.*.*"]])
def test_stream_with_a_wider_subject_is_taken(broker, opened, subjects):
    create(broker, subjects=subjects)
    sink = sink_of(broker)
    opened(sink)
    sink.deliver(chunk_of(UPDATES[:10]))
    assert last_sequence(broker) == 10


def test_stream_with_another_retention_can_source_it(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink)
    work = StreamConfig("WORK", sources=[StreamSource(NAME)], retention=RetentionPolicy.WORK_QUEUE)
    broker.call(lambda context: context.add_stream(work))
    sink.deliver(chunk_of(UPDATES))

    async def take(context):
        found = []
        consumer = await context.pull_subscribe("", "worker", stream="WORK")
        while len(found) < len(UPDATES):
            for one in await consumer.fetch(500, 20):
                found.append(one.data)
                await one.ack()
        return found

    assert broker.call(take) == [one.data for one in UPDATES]


def test_server_that_is_not_there_is_away(opened):
    sink = NatsSink([f"nats://127.0.0.1:{free_port()}"], NAME, SUBJECT)
    with pytest.raises(SinkAway, match="cannot be reached"):
        opened(sink)


def test_server_without_jetstream_is_away(tmp_path, opened):
    config = tmp_path / "server.conf"
    config.write_text("accounts: {PLAIN: {users: [{user: u, password: p}]}, JS: {jetstream: on, users: [{user: j}]}}")
    broker = NatsBroker(tmp_path / "broker", "-c", str(config))
    broker.login = "j:@"
    with broker, pytest.raises(SinkAway, match="JetStream does not answer"):
        opened(NatsSink([f"nats://u:p@127.0.0.1:{broker.port}"], NAME, SUBJECT))


def test_server_that_is_killed_is_away_and_then_has_what_it_acknowledged(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink)
    sink.deliver(chunk_of(UPDATES[:500]))
    broker.kill()
    with pytest.raises(SinkAway):
        sink.deliver(chunk_of(UPDATES[500:600]))
    with pytest.raises(SinkAway, match="cannot be reached"):
        opened(sink)
    broker.start()
    assert opened(sink) == position(UPDATES[499])
    sink.deliver(chunk_of(UPDATES[500:600]))
    assert Had.by(broker).data == [one.data for one in UPDATES[:600]]


def test_stream_that_is_deleted_below_us_is_noticed(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink)
    sink.deliver(chunk_of(UPDATES[:10]))
    broker.delete(NAME)
    with pytest.raises(SinkAway, match="no stream takes the subject"):
        sink.deliver(chunk_of(UPDATES[10:20]))
    with pytest.raises(ConfigError, match="create it"):
        opened(sink)
    create(broker)
    assert opened(sink) is None


def test_answers_of_others_are_no_acknowledgements(broker, opened, monkeypatch):
    create(broker)
    sink = sink_of(broker)
    opened(sink)

    async def deliver(client, updates):
        for answer in (b"thanks", b'{"stream": "OTHER", "seq": 1}', b"[]"):

            async def say(one, answer=answer):
                await client.publish(one.reply, answer)

            await client.subscribe(f"{SUBJECT}.*", cb=say)
        await client.flush()
        await asyncio.to_thread(sink.deliver, chunk_of(updates))

    broker.call(lambda context: deliver(context._nc, UPDATES[:1_500]))
    assert Had.by(broker).data == [one.data for one in UPDATES[:1_500]]
    broker.delete(NAME)
    monkeypatch.setattr("gateway.sinks.nats._ANSWER_S", 0.5)
    with pytest.raises(SinkAway, match="no acknowledgement"):
        broker.call(lambda context: deliver(context._nc, UPDATES[1_500:1_510]))


def test_no_more_than_the_window_is_under_way(broker, opened, monkeypatch):
    create(broker)
    sink = sink_of(broker)
    under_way, full = [], asyncio.Event()
    monkeypatch.setattr("gateway.sinks.nats.WINDOW", 100)
    monkeypatch.setattr("gateway.sinks.nats.WINDOW_BYTES", 30_000)
    publish, take, progress = Client.publish, sink._take, sink._progress

    async def taken(message):
        await full.wait()  # a server that is slow at first
        await take(message)

    async def waiting(run):
        full.set()
        await progress(run)

    monkeypatch.setattr(sink, "_take", taken)
    monkeypatch.setattr(sink, "_progress", waiting)
    opened(sink)

    async def watched(self, *given):
        await publish(self, *given)
        run = sink._run
        if run is not None:
            under_way.append((run.sent + 1 - run.taken, run.open_bytes + len(given[1])))

    monkeypatch.setattr(Client, "publish", watched)
    sink.deliver(chunk_of(UPDATES))
    largest = max(len(one.data) for one in UPDATES)
    assert 30 < max(count for count, _ in under_way) <= 100
    assert 15_000 < max(size for _, size in under_way) <= 30_000 + largest
    assert len(UPDATES) > 2 * WINDOW  # and with the window of production, in the tests above


def test_user_without_rights_is_refused(tmp_path, opened, monkeypatch):
    config = tmp_path / "server.conf"
    config.write_text(
        """authorization: {users: [
            {user: root, password: secret},
            {user: reader, password: secret, permissions: {publish: "$JS.API.>"}},
            {user: nobody, password: secret, permissions: {publish: "other"}}]}"""
    )
    with contextlib.ExitStack() as stack:
        broker = NatsBroker(tmp_path / "broker", "-c", str(config))
        broker.login = "root:secret@"
        stack.enter_context(broker)
        create(broker)
        for login, at in (("reader:secret@", "deliver"), ("nobody:secret@", "open"), ("root:wrong@", "connect")):
            sink = NatsSink([f"nats://{login}127.0.0.1:{broker.port}"], NAME, SUBJECT)
            if at == "deliver":
                opened(sink)
                with pytest.raises(ConfigError, match="does not permit"):
                    sink.deliver(chunk_of(UPDATES[:10]))
            else:
                monkeypatch.setattr("gateway.sinks.nats._ANSWER_S", 1_000.0)  # nobody waits for it
                with pytest.raises(ConfigError, match="does not permit" if at == "open" else "refuses the connection"):
                    opened(sink)


def test_chunk_without_updates_is_delivered_without_the_server(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink)
    broker.kill()
    chunk = UpdateChunk([], Position(7, 0), True, 7)
    assert sink.deliver(chunk) == Position(7, 0)


def test_token_of_a_subscription_id_is_one_token_and_its_own():
    ids = [
        "s1",
        "a.b",
        "a b",
        "a*",
        ">",
        "a%2Eb",
        "東京",
        "~",
        "%7E",
        "x\ty",
        "x" * 255,
        "x" * 256,
        "x" * 257,
        "é" * 512,
    ]
    tokens = [token_of(one) for one in ids]
    assert len(set(tokens)) == len(ids)
    assert all(re.fullmatch(r"[A-Za-z0-9_%~-]{1,255}", one) for one in tokens)
    assert [unquote(one) for one in tokens[:11]] == ids[:11]
    assert tokens[1] == "a%2Eb"


def test_stream_whose_identity_is_no_plain_text_is_known_again(broker, opened):
    create(broker)
    sink = sink_of(broker)
    opened(sink, "läuft/hier 7")
    sink.deliver(chunk_of(UPDATES[:3]))
    assert opened(sink, "läuft/hier 7") == position(UPDATES[2])
    with pytest.raises(ConfigError, match="another stream of Skyray's"):
        opened(sink, "läuft/hier")
