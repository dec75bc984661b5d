"""Clients of the hub: each gets every update once, in order; a slow one gets a gap, and holds nobody."""

import asyncio
import json
import random
import re
import threading
from collections import deque

import pytest

from gateway.live.update_listener import MessageText
from gateway.serve import hub as hubs
from gateway.serve import standing
from gateway.serve.event_forms import EVENTS, LINES
from gateway.serve.hub import Hub, Interest
from gateway.serve.questions import Questions
from gateway.serve.registry import Ended, Registry
from gateway.serve.released import RANKS, UpdateRows
from gateway.serve.standing import results_at
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import BEGINNING, Position
from gateway.serve.update_routes import position_of
from tests.support.releasing import RawUpdate, released_of
from tests.support.serving import events_of

ALL = Interest()


class NoParts:
    """No files: everything is in memory."""

    ends, included = range(10_000), None

    def look_up(self, seqs):
        return texts(seqs)

    def last_boundary(self):
        return -1

    def count_of(self, boundary):
        return 0


def registry_of(**kinds):
    """Of subscriptions that have ended, by id."""
    registry = Registry()
    registry.last.update({name: Ended(kind, "") for name, kind in kinds.items()})
    return registry


def texts(seqs):
    return {seq: MessageText(f"m{seq}", "é", 1.0, 2.0) for seq in seqs}


def boundary(last_seq, *names):
    return released_of(last_seq, [RawUpdate(name, RANKS["match"], last_seq, last_seq, None) for name in names])


def hub_of(logged=0, registry=None):
    registry = registry_of(a="boolean", b="knn") if registry is None else registry
    hub = Hub(UpdateLog(NoParts()), registry, lambda: logged)
    hub.start(asyncio.get_running_loop())
    return hub


class Client:
    """Reads the events of a stream in a task; what the hub sends past it comes when `has_room`."""

    def __init__(self, hub, interest=ALL, after=None, form=EVENTS, pause_s=lambda: 0, has_room=lambda: False, **more):
        self.text, self.pause_s, self.has_room, self.past = "", pause_s, has_room, []
        self.stream = hub.follow(form, interest, after, write=self.write, **more)
        self.task = asyncio.create_task(self.read())

    async def read(self):
        async for data in self.stream:
            await asyncio.sleep(self.pause_s())
            self.text += data.decode()

    def write(self, data):
        if found := self.has_room():
            self.text += data.decode()
            self.past.append(data)
        return found

    @property
    def events(self):
        return events_of(self.text)

    @property
    def ids(self):
        return re.findall(r'"id":"([^"]+)","change"', self.text)

    async def until(self, what):
        async with asyncio.timeout(20):
            while not what():
                await asyncio.sleep(0.005)


def run(story):
    asyncio.run(story())


def test_hub_clients_get_what_they_follow_and_progress_behind_it():
    async def story():
        hub = hub_of()
        every, only, kind = (
            Client(hub),
            Client(hub, Interest(frozenset("a"))),
            Client(hub, Interest(None, frozenset(["knn"]))),
        )
        await every.until(lambda: hub.clients == 3 and every.events and only.events and kind.events)
        hub.deliver([boundary(0, "a", "b"), boundary(3, "b")], 5)
        await every.until(lambda: len(every.events) == 5 and len(only.events) == 3 and len(kind.events) == 4)
        assert every.ids == ["0-0", "0-1", "3-0"] and only.ids == ["0-0"] and kind.ids == ["0-1", "3-0"]
        assert [one.id for one in every.events if one.event == "progress"] == ["-1-0", "5-0"]
        assert every.events[-1].data == {"through": 5}
        hub.close()
        await asyncio.gather(every.task, only.task, kind.task)
        assert every.text.endswith("retry: 1000\n\n") and hub.clients == 0

    run(story)


def test_results_as_of_a_place_are_the_same_by_groups_of_any_size(monkeypatch):
    """Of subscriptions that have ended, and whose messages have not left yet."""

    registry = registry_of(**{f"s{number}": "knn" for number in range(7)})

    async def story():
        hub = hub_of(registry=registry)
        for last in range(40):
            rows = [RawUpdate(f"s{(last + step) % 6}", RANKS["enter"], last, last, 1.0) for step in range(2)]
            rows += [RawUpdate(f"s{(last - 9) % 6}", RANKS["leave"], last - 9, last, 1.0)] if last >= 9 else []
            hub.deliver([released_of(last, rows)], last)
        await asyncio.sleep(0)
        found = []
        for size in (1, 2, 7):
            monkeypatch.setattr(standing, "GROUP", size)
            rows = results_at(hub, registry, None, hub.names_of(ALL), Position(29, 3), Questions().turn("a", "results"))
            found.append([one async for one in rows])
        assert found[0] == found[1] == found[2] and [one["subscription_id"] for one in found[0]] == [
            f"s{number}" for number in range(6)
        ]
        for number, one in enumerate(found[0]):
            entered = {seq for seq in range(30) if number in (seq % 6, (seq + 1) % 6)}
            left = {seq for seq in range(21) if seq % 6 == number}
            assert {row["seq"] for row in one["results"]} == entered - left and one["as_of"] == 29
        assert hub.sent == 0, "a question sends no updates"

    run(story)


@pytest.mark.parametrize("form", [EVENTS, LINES])
def test_hub_client_that_joins_late_gets_the_same(form):
    async def story():
        hub = hub_of()
        early = Client(hub, after=BEGINNING, form=form)
        for last in range(0, 50, 5):
            hub.deliver([boundary(last, "a", "b")], last)
        await asyncio.sleep(0)
        late = Client(hub, after=BEGINNING, form=form)
        await early.until(lambda: early.text.count("45-1") and late.text.count("45-1"))
        hub.deliver([boundary(60, "a")], 60)
        await early.until(lambda: '"60-0"' in early.text and '"60-0"' in late.text)
        ids = [re.findall(r'"id":"([^"]+)","change"', one.text) for one in (early, late)]
        assert ids[0] == ids[1] and len(ids[0]) == 21
        hub.close()
        await asyncio.gather(early.task, late.task)

    run(story)


def test_hub_client_whose_last_id_is_ahead_after_a_restart_gets_only_what_follows():
    """The log has messages up to 20; the topology publishes their updates again."""

    async def story():
        hub = hub_of(logged=21)
        client = Client(hub, after=Position(10, 0))
        await client.until(lambda: hub.clients == 1 and bool(client.events))
        assert client.events[0].id is None, "its last id must not go back"
        for last in (5, 10, 20):
            hub.deliver([boundary(last, "a", "b")], last)
        await client.until(lambda: "20-1" in client.ids)
        assert client.ids == ["10-1", "20-0", "20-1"]
        hub.close()
        await client.task

    run(story)


def test_hub_client_that_is_slow_gets_a_gap_and_reads_the_rest_when_it_comes_again(monkeypatch):
    async def story():
        monkeypatch.setattr(hubs, "QUEUE_BYTES", 2_000)
        monkeypatch.setattr(hubs, "SLOW_S", 0.05)
        hub = hub_of()
        slow, quick = hub.follow(EVENTS, ALL, None), Client(hub)
        text = (await anext(slow) + await anext(slow)).decode()
        await quick.until(lambda: len(quick.events) == 1)
        for last in range(100):
            hub.deliver([boundary(last, "a")], last)
            await quick.until(lambda last=last: f"{last}-0" in quick.ids)
        text += (await anext(slow)).decode()
        gap = events_of(text)[-1]
        assert gap.event == "gap" and gap.id is None and gap.data["reason"] == "slow" and "last id" in gap.data["do"]
        with pytest.raises(StopAsyncIteration):
            await anext(slow)
        assert len(quick.ids) == 100 and hub.gaps == 1 and hub.clients == 1
        last = next(one.id for one in reversed(events_of(text)) if one.id)
        again = Client(hub, after=Position(*map(int, last.rsplit("-", 1))))
        await again.until(lambda: "99-0" in again.ids)
        assert again.ids == [f"{last}-0" for last in range(100)]
        hub.close()
        await asyncio.gather(quick.task, again.task)

    run(story)


def test_hub_client_for_whom_nothing_waits_is_not_slow_however_late_it_reads(monkeypatch):
    async def story():
        monkeypatch.setattr(hubs, "SLOW_S", 0.01)
        hub = hub_of()
        client = hub.follow(EVENTS, ALL, None)
        text = (await anext(client) + await anext(client)).decode()
        for last in range(3):
            hub.deliver([boundary(last, "a")], last)
            await asyncio.sleep(0.02)
            text += (await anext(client)).decode()
        assert [one.id for one in events_of(text) if one.event == "message"] == ["0-0", "1-0", "2-0"]
        assert hub.gaps == 0
        hub.close()
        assert [data async for data in client]

    run(story)


@pytest.mark.parametrize("has_texts", [True, False])
def test_hub_clients_get_every_update_once_however_large_a_burst_is(monkeypatch, has_texts):
    """Bursts larger than a queue, than all queues, and than a piece; some clients read late, some in the history.

    Texts that are not in memory are looked up outside the event loop.
    """
    looked_up = set()

    class Long(NoParts):
        def look_up(self, seqs):
            looked_up.add(threading.current_thread() is threading.main_thread())
            return {seq: MessageText(f"m{seq}", "x" * 300, 1.0, 2.0) for seq in seqs}

    async def story(seed):
        rng = random.Random(seed)
        monkeypatch.setattr(hubs, "QUEUE_BYTES", rng.choice([600, 5_000, 2**18]))
        monkeypatch.setattr(hubs, "QUEUES_BYTES", rng.choice([3_000, 2**26]))
        monkeypatch.setattr(hubs, "READ_BYTES", rng.choice([1, 2_000, 2**18]))
        monkeypatch.setattr(hubs, "SENT_BYTES", rng.choice([100, 2**16]))
        hub = Hub(UpdateLog(Long()), registry_of(a="boolean", b="knn"), lambda: 0, has_texts=lambda seqs: has_texts)
        hub.start(asyncio.get_running_loop())
        interests = [ALL, Interest(frozenset("a")), Interest(frozenset("bc")), Interest(None, frozenset(["knn"]))]
        clients = [
            Client(hub, interest, after=BEGINNING, pause_s=lambda: rng.choice([0, 0, 0.003]))
            for interest in interests * 3
        ]
        wanted, last = [], 0
        for _ in range(12):
            some = []
            for _ in range(rng.randrange(1, 4)):
                last += rng.randrange(1, 5)
                names = rng.sample("abcdefgh", rng.randrange(1, 9))
                wanted += [(f"{last}-{place}", name) for place, name in enumerate(sorted(names))]
                some.append(boundary(last, *names))
            hub.deliver(some, last)
            assert hub.queued_bytes <= hubs.QUEUES_BYTES
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice([0, 0.002]))
        for client, interest in zip(clients, interests * 3, strict=True):
            names = interest.subscriptions or ("b" if interest.kinds else "abcdefgh")
            mine = [one for one, name in wanted if name in names]
            await client.until(lambda client=client, mine=mine: len(client.ids) >= len(mine))
            assert client.ids == mine
        hub.close()
        await asyncio.gather(*(one.task for one in clients))
        assert all(one.ids == sorted(set(one.ids), key=one.ids.index) for one in clients)
        assert hub.gaps == 0 and hub.queued_bytes == 0

    for seed in range(4):
        asyncio.run(story(seed))
    assert has_texts or looked_up == {False}


def test_hub_encodes_an_update_once_for_all_clients(monkeypatch):
    async def story():
        hub, encoded = hub_of(), deque()
        whole = UpdateRows._joined
        monkeypatch.setattr(
            UpdateRows, "_joined", lambda rows, *frame: encoded.append(len(rows)) or whole(rows, *frame)
        )
        clients = [Client(hub) for _ in range(20)]
        await clients[0].until(lambda: all(one.events for one in clients))
        hub.deliver([boundary(0, "a", "b")], 0)
        await clients[0].until(lambda: all(len(one.ids) == 2 for one in clients))
        assert list(encoded) == [2] and hub.sent == 40
        hub.close()
        await asyncio.gather(*(one.task for one in clients))

    run(story)


def test_hub_sends_past_the_task_of_a_client_that_waits_each_update_once(monkeypatch):
    """Whether there is room, whether the client has fallen behind, and until its key ends."""

    async def story():
        drawn, valid = random.Random(3), [True]
        monkeypatch.setattr(hubs, "QUEUE_BYTES", 2_000)  # of ten updates
        hub = hub_of()
        some = Client(hub, has_room=lambda: drawn.random() < 0.5)
        ends, never = Client(hub, has_room=lambda: True, is_valid=lambda: valid[0]), Client(hub)
        clients = [some, ends, never]
        await never.until(lambda: all(one.events for one in clients))
        for last in range(150):
            hub.deliver([boundary(last, *"abcdefgh"[: drawn.randrange(8)])], last)
            if drawn.random() < 0.8:  # else some wait together, and may be too many
                await asyncio.sleep(0.004 * max(0.0, drawn.random() - 0.5))
        await never.until(lambda: all(one.text.endswith('{"through":149}\n\n') for one in clients))
        valid[0] = False
        hub.deliver([boundary(200, "a")], 200)
        await never.until(lambda: all('"id":"200-0"' in one.text for one in (some, never)))
        await ends.task
        assert len(never.ids) == len(set(never.ids)) > 400
        assert some.ids == never.ids and ends.ids == never.ids[:-1]
        assert 20 < len(some.past) < len(ends.past) < 200 and not never.past
        assert hub.sent == len(some.ids) + len(ends.ids) + len(never.ids) and hub.queued_bytes == 0
        hub.close()
        await asyncio.gather(some.task, never.task)

    run(story)


def test_hub_clients_that_wait_have_no_task_of_the_hub_and_leave_no_timer(monkeypatch):
    async def story():
        hub = hub_of()
        clients = [Client(hub, Interest(frozenset([name]))) for name in "ab"]
        await clients[0].until(lambda: all(one.events for one in clients))
        queues = list(hub._queues)
        await clients[0].until(lambda: all(queue._waiter is not None for queue in queues))
        assert len(asyncio.all_tasks()) == len(clients) + 1
        clients[0].task.cancel()
        await asyncio.gather(clients[0].task, return_exceptions=True)
        await clients[0].stream.aclose()
        assert hub.clients == 1 and sum(queue._timer is None for queue in queues) == 1
        hub.close()
        await clients[1].task
        assert hub.clients == 0 and all(queue._timer is None for queue in queues)

    run(story)


def test_hub_heartbeat_counts_from_the_last_event(monkeypatch):
    """The timer of an earlier wait ends no later one."""

    async def story():
        now = [0.0]
        queue = hubs._Queue(EVENTS, ALL, lambda: True, lambda data: True)
        monkeypatch.setattr(queue._loop, "time", lambda: now[0])
        queue._timer = asyncio.get_running_loop().call_later(1000, int)
        waits = [(0, 5, 4, False), (2, 7, 5, False), (3, 9, 8, False), (3, 8, 8, True)]
        for number, (begun, until, looked, is_over) in enumerate(waits):
            now[0] = begun
            waiting = asyncio.ensure_future(queue.wait(5.0))
            await asyncio.sleep(0)
            assert queue.waits
            queue.postpone(until)
            now[0] = looked
            queue._look()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert waiting.done() == is_over, number
            assert (queue._timer is None) == is_over, "one that waits on is looked at again"
            queue.wake()
            await waiting
            queue.take()
        queue.close()

    run(story)


def test_hub_quiet_client_gets_heartbeats(monkeypatch):
    async def story():
        monkeypatch.setattr(hubs, "HEARTBEAT_S", 0.01)
        hub = hub_of()
        client = Client(hub, Interest(frozenset(["none"])))
        hub.deliver([boundary(7, "a")], 8)
        await client.until(lambda: len(client.events) > 3)
        assert client.ids == [] and client.events[-1] == ("8-0", "progress", {"through": 8})
        hub.close()
        await client.task

    run(story)
    assert hubs.HEARTBEAT_S <= 10


def test_hub_that_closes_sends_what_was_released_before():
    async def story():
        hub = hub_of()
        clients = [Client(hub), Client(hub, Interest(frozenset(["none"])))]
        await clients[0].until(lambda: all(one.events for one in clients))
        hub.deliver([boundary(0, "a")], 0)
        asyncio.get_running_loop().call_soon_threadsafe(hub.close)  # before the clients get their turn
        await asyncio.gather(*(one.task for one in clients))
        assert clients[0].ids == ["0-0"]
        assert [one.events[-1][1:] for one in clients] == [("progress", {"through": 0})] * 2
        assert all(one.text.endswith("retry: 1000\n\n") for one in clients)

    run(story)


def test_hub_poll_that_is_cut_off_says_up_to_where_it_is_whole():
    async def story():
        hub = hub_of()
        for last in (4, 9):
            hub.deliver([boundary(last, *(f"s{number:04}" for number in range(4_000)))], last)
        await asyncio.sleep(0.01)
        found, position = [], BEGINNING
        while position < hub.log.head:
            lines = (await hub.poll(LINES, ALL, position, 0.0, 10)).splitlines()
            assert 10 < len(lines) < 5_000, "it is cut off by its bytes"
            found += [json.loads(line)["id"] for line in lines[:-1]]
            progress = json.loads(lines[-1])["progress"]
            position = Position(*map(int, progress["id"].rsplit("-", 1)))
            assert progress["through"] <= position.boundary
        assert len(found) == len(set(found)) == 8_000 and progress["through"] == 9

    run(story)


def test_id_of_another_log_is_told_and_those_of_this_one_go_on():
    """An older copy of a folder gives seqs out again: a client that has read further is told, whatever comes."""
    history = UpdateLog(NoParts())
    history.append([boundary(last_seq, "a", "b") for last_seq in range(9, 1_000, 10)], 999)

    def poll(form, tag_of, since):
        async def answer():
            hub = Hub(history, None, lambda: 1_000, tag_of)
            return await hub.poll(form, ALL, position_of(since, "since", tag_of), 0.0, 10**6)

        return asyncio.run(answer()).decode()

    def of_first(boundary):
        return f"{boundary:08x}"

    def of_second(boundary):  # the logs are alike up to message 499
        return of_first(boundary if boundary <= 499 else boundary + 1)

    first = [json.loads(line) for line in poll(LINES, of_first, "begin").splitlines()]
    updates, progress = first[:-1], first[-1]["progress"]
    assert len(updates) == 200 and progress["id"].endswith(f"-{999:08x}")
    assert all(one["id"].endswith(of_first(int(one["id"].split("-")[0]))) for one in updates)
    events = events_of(poll(EVENTS, of_first, "begin"))
    assert [event.id for event in events] == [*(one["id"] for one in updates), progress["id"]]
    assert [event.data for event in events[:-1]] == updates
    for place, one in enumerate(updates[::10]):
        later = [json.loads(line) for line in poll(LINES, of_second, one["id"]).splitlines()]
        if int(one["id"].split("-")[0]) <= 499:
            assert [row["message_id"] for row in later[:-1]] == [row["message_id"] for row in updates[10 * place + 1 :]]
        else:
            assert [row["gap"]["reason"] for row in later if "gap" in row] == ["unknown_position"]
            assert len(later) == 2
    plain = one["id"].rpartition("-")[0]  # of an earlier release
    assert "gap" not in poll(LINES, of_second, plain)
