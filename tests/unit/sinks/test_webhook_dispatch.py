"""Deliveries over a stream whose boundaries the test releases: bad endpoints, restarts, rooms."""

import asyncio
import sqlite3
import time
from collections import Counter
from contextlib import ExitStack, suppress

import pytest

from gateway.sinks.webhooks import dispatch, store
from gateway.sinks.webhooks.dispatch import IN_FLIGHT, WINDOW, Dispatcher
from gateway.sinks.webhooks.model import Batch
from gateway.sinks.webhooks.service import first_due_s
from gateway.sinks.webhooks.settings import WebhookSettings
from gateway.sinks.webhooks.store import FILE, Store
from matching.errors import DeliveryError, InputError
from tests.support.endpoints import Endpoint, answer, answers, drips, floods, hangs
from tests.support.hooking import Stream, asked, await_that


@pytest.fixture
def stream(tmp_path):
    return Stream(tmp_path)


def updates_of(endpoint):
    return [row["id"] for one in endpoint.book for row in one.updates]


def test_bad_endpoints_delay_no_other(stream):
    settings = WebhookSettings(webhook_allow_host=["127.0.0.1"], webhook_timeout_s=30)
    with ExitStack() as stack:
        ways = (None, hangs, drips, answers(500))
        good, hanging, slow, failing = (stack.enter_context(Endpoint(way)) for way in ways)
        with stream.webhooks(settings) as hooks:
            for endpoint in (hanging, slow, failing, good):
                asked(hooks, lambda endpoint=endpoint: hooks.create(stream.hook(endpoint.url, "s", batch_updates=1)))
            for place in range(50):
                stream.release("s")
                good.await_(lambda book, place=place: len(book) == place + 1, 10)
            assert sorted(updates_of(good)) == sorted(f"{place}-0" for place in range(50))
            assert 1 <= hanging.connections <= IN_FLIGHT and 1 <= slow.connections <= IN_FLIGHT
            lines = list(hooks.dispatcher.lines.values())
            await_that(
                lambda: [len(line.queue) for line in lines] == [WINDOW // 2] * 3 + [0]
            )  # from half on none are taken
            figures = hooks.dispatcher.figures
            assert figures.deliveries.waiting == 3 * (WINDOW // 2) and figures.deliveries.delivered == 50


@pytest.mark.parametrize("in_memory", [True, False])
def test_endpoint_that_comes_back_gets_all_that_waited_for_room(stream, monkeypatch, in_memory):
    if not in_memory:
        monkeypatch.setattr(dispatch, "KEPT_AHEAD_BYTES", 0)
        monkeypatch.setattr(dispatch, "KEPT_ROWS_BYTES", 100)
    with Endpoint(answers(503)) as endpoint, stream.webhooks() as hooks:
        hook = stream.hook(endpoint.url, "s", batch_updates=1)
        asked(hooks, lambda: hooks.create(hook))
        for _ in range(5 * WINDOW):
            stream.release("s", "t")
        endpoint.await_(lambda book: len(book) >= 3)
        assert hook.deliveries.accepted <= WINDOW
        endpoint.behaviour = answers(200)
        await_that(lambda: hook.updates.delivered == 5 * WINDOW)
        assert set(updates_of(endpoint)) == {f"{place}-0" for place in range(5 * WINDOW)}
        await_that(lambda: hook.failures == 0)
        assert hooks.dispatcher._ahead_bytes == hooks.dispatcher._rows_bytes == 0


def test_updates_that_webhooks_have_no_room_for_have_a_bound_in_bytes_and_all_arrive(stream, monkeypatch):
    """Of many webhooks at one place, which are accepted in turns."""
    monkeypatch.setattr(dispatch, "KEPT_AHEAD_BYTES", 2_000)
    monkeypatch.setattr(dispatch, "ACCEPTED_BYTES", 1)
    monkeypatch.setattr(dispatch, "READS", 1)
    with Endpoint(answers(503)) as endpoint, stream.webhooks() as hooks:
        dispatcher, most, usual = hooks.dispatcher, [0], Dispatcher._keep_ahead

        def keep_ahead(self, line, left):
            usual(self, line, left)
            most[0] = max(most[0], self._ahead_bytes)

        monkeypatch.setattr(Dispatcher, "_keep_ahead", keep_ahead)
        mine = [stream.hook(endpoint.url, "s", batch_updates=1) for _ in range(4)]
        for hook in mine:
            asked(hooks, lambda hook=hook: hooks.create(hook))
        for _ in range(3 * WINDOW):
            stream.release("s")
        endpoint.await_(lambda book: len(book) >= 4)
        endpoint.behaviour = answers(200)
        await_that(lambda: [hook.updates.delivered for hook in mine] == [3 * WINDOW] * 4)
        assert most[0] <= 2_000 and dispatcher._ahead_bytes == 0


def test_webhooks_at_one_place_carry_what_each_includes(stream):
    with Endpoint() as plain, Endpoint() as full, stream.webhooks() as hooks:
        for endpoint, include in ((plain, ""), (full, "true")):
            hook = stream.hook(endpoint.url, "s", include=include)
            asked(hooks, lambda hook=hook: hooks.create(hook))
        stream.release("s", "t")
        for endpoint, values in ((plain, None), (full, {"number": 0.0})):
            (came,) = endpoint.await_(lambda book: len(book) == 1)
            assert [(row["id"], row.get("attributes")) for row in came.updates] == [("0-0", values)]


def test_answer_without_an_end_is_not_read_on(stream):
    with Endpoint(floods) as endpoint, stream.webhooks() as hooks:
        hook = stream.hook(endpoint.url, "s")
        asked(hooks, lambda: hooks.create(hook))
        stream.release("s")
        await_that(lambda: hook.deliveries.delivered == 1)


def test_drip_ends_at_the_timeout(stream):
    settings = WebhookSettings(webhook_allow_host=["127.0.0.1"], webhook_timeout_s=0.2, webhook_attempts=1)
    with Endpoint(drips) as endpoint, stream.webhooks(settings) as hooks:
        hook = stream.hook(endpoint.url, "s")
        asked(hooks, lambda: hooks.create(hook))
        stream.release("s")
        await_that(lambda: hook.deliveries.dead == 1)
        (one,) = asked(hooks, lambda: hooks.deliveries(hook.webhook_id, None, "dead", None, 10))
        assert one.reason == "timeout"


def test_retry_after_holds_the_whole_webhook(stream):
    async def busy(headers, body, writer):
        return answer(429, "Retry-After: 3600")

    with Endpoint(busy) as endpoint, stream.webhooks() as hooks:
        hook = stream.hook(endpoint.url, "s", batch_updates=1)
        asked(hooks, lambda: hooks.create(hook))
        stream.release("s")
        await_that(lambda: hook.failures == 1)
        for _ in range(5):
            stream.release("s")
        await_that(lambda: hook.deliveries.accepted == 6)
        (line,) = hooks.dispatcher.lines.values()
        assert len(endpoint.book) == 1 and line.hold_s > time.time() + 3000


def test_restart_repeats_by_the_same_id_and_loses_nothing(stream):
    with Endpoint(answers(500)) as endpoint:
        with stream.webhooks() as hooks:
            hook = stream.hook(endpoint.url, "s", batch_updates=2)
            digest = stream.hook(endpoint.url, "s", every_s=1, due_s=time.time() + 1)
            for one in (hook, digest):
                asked(hooks, lambda one=one: hooks.create(one))
            for _ in range(10):
                stream.release("s", "s")
            endpoint.await_(lambda book: len(book) >= 2)
        stream.release("s")
        endpoint.behaviour = answers(200)
        with stream.webhooks() as hooks:
            found = {line.hook.webhook_id: line.hook for line in hooks.dispatcher.lines.values()}
            await_that(lambda: [one.updates.delivered for one in found.values()] == [21, 21])
            assert all(one.deliveries.waiting == one.deliveries.dead == 0 for one in found.values())
    for name in (hook.webhook_id, digest.webhook_id):
        mine = [one for one in endpoint.book if one.id.startswith(name)]
        content = {one.id: one.body for one in mine}
        assert all(content[one.id] == one.body for one in mine)
        rows = [row["id"] for body in {one.id: one for one in mine}.values() for row in body.updates]
        assert len(rows) == len(set(rows)) == 21


def test_deleted_webhook_leaves_counts_that_add_up(stream):
    with Endpoint(answers(500)) as endpoint, stream.webhooks() as hooks:
        hook = stream.hook(endpoint.url, "s", batch_updates=1)
        asked(hooks, lambda: hooks.create(hook))
        for _ in range(4):
            stream.release("s")
        await_that(lambda: hook.deliveries.accepted == 4)
        asked(hooks, lambda: hooks.delete(hook.webhook_id, None))
        figures = hooks.dispatcher.figures
        assert figures.deliveries.shown() == {"accepted": 0, "delivered": 0, "waiting": 0, "dead": 0}
        assert figures.dropped == 4
        assert asked(hooks, lambda: hooks._store.read(lambda file: file.execute("SELECT count(*) FROM deliveries")))


def test_file_of_another_format_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(InputError, match="format 99"):
        Store(tmp_path / FILE)


def test_store_is_durable_at_every_commit(tmp_path):
    store = Store(tmp_path / FILE)
    try:
        found = store._thread.submit(
            lambda: [
                store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
            ]
        )
        assert found.result() == ["wal", 2]
    finally:
        store.close()


def writes_fail(hooks, fail):
    """Let SQLite refuse every write from now on, or none."""
    asked(hooks, lambda: hooks._store.read(lambda file: file.execute(f"PRAGMA query_only = {int(fail)}")))


def test_secret_that_cannot_be_written_is_not_the_new_one(stream):
    with Endpoint(answers(200)) as endpoint, stream.webhooks() as hooks:
        hook = stream.hook(endpoint.url, "s")
        asked(hooks, lambda: hooks.create(hook))
        before = hook.secret
        writes_fail(hooks, True)
        for change in (
            lambda: hooks.rotate(hook.webhook_id, None),
            lambda: hooks.update(hook.webhook_id, None, {"batch_updates": 7, "every_s": 60}),
        ):
            with pytest.raises(DeliveryError, match="cannot be written"):
                asked(hooks, change)
        assert (hook.secret, hook.old_secret, hook.batch_updates, hook.every_s) == (before, "", 100, 0)
        writes_fail(hooks, False)
        rotated = asked(hooks, lambda: hooks.rotate(hook.webhook_id, None))
        assert rotated.secret == hook.secret != before and hook.old_secret == before
    with stream.webhooks() as hooks:
        (line,) = hooks.dispatcher.lines.values()
        assert (line.hook.secret, line.hook.old_secret) == (rotated.secret, before)


def test_secrets_rotated_at_once_are_one_after_the_other(stream):
    with Endpoint(answers(200)) as endpoint, stream.webhooks() as hooks:
        hook = stream.hook(endpoint.url, "s")
        asked(hooks, lambda: hooks.create(hook))

        async def at_once():
            change = hooks.update(hook.webhook_id, None, {"batch_updates": 7})
            return await asyncio.gather(*(hooks.rotate(hook.webhook_id, None) for _ in range(2)), change)

        first, second, _ = asked(hooks, at_once)
        assert hook.secret == second.secret != first.secret and hook.old_secret == first.secret
    with stream.webhooks() as hooks:
        (line,) = hooks.dispatcher.lines.values()
        found = line.hook
        assert (found.secret, found.old_secret, found.batch_updates) == (second.secret, first.secret, 7)


def test_batch_that_was_delivered_is_not_sent_again_while_the_disk_is_full(stream, monkeypatch):
    monkeypatch.setattr(dispatch, "_AGAIN_S", 0.01)
    monkeypatch.setattr(dispatch, "_MOST_AGAIN_S", 0.08)
    came, may = asyncio.Event(), False

    async def late(headers, body, writer):
        came.set()
        while not may:
            await asyncio.sleep(0.005)
        return answer(200)

    with Endpoint(late) as endpoint, stream.webhooks() as hooks:
        hook = stream.hook(endpoint.url, "s")
        asked(hooks, lambda: hooks.create(hook))
        stream.release("s")
        await_that(came.is_set)
        writes_fail(hooks, True)
        may = True
        (line,) = hooks.dispatcher.lines.values()
        await_that(lambda: line.again_s == 0.08)
        assert list(line.unwritten) and hook.deliveries.delivered == 0
        writes_fail(hooks, False)
        await_that(lambda: hook.deliveries.delivered == 1)
        assert len(endpoint.book) == 1 and not line.unwritten
        assert hooks.dispatcher.figures.attempts == {"delivered": 1}


def test_pauses_of_a_file_that_cannot_be_read_double_up_to_a_longest(stream, monkeypatch):
    monkeypatch.setattr(dispatch, "_AGAIN_S", 0.01)
    monkeypatch.setattr(dispatch, "_MOST_AGAIN_S", 0.04)
    monkeypatch.setattr(dispatch, "KEPT_ROWS_BYTES", 0)  # all are read
    seen = []
    with Endpoint(answers(200)) as endpoint, stream.webhooks() as hooks:
        read, hook = hooks._store.read, stream.hook(endpoint.url, "s")

        async def refused(change):
            (line,) = hooks.dispatcher.lines.values()
            seen.append(line.again_s)
            raise DeliveryError("cannot be read")

        asked(hooks, lambda: hooks.create(hook))
        hooks._store.read = refused
        stream.release("s")
        await_that(lambda: len(seen) >= 5)
        hooks._store.read = read
        await_that(lambda: hook.deliveries.delivered == 1)
    assert seen[:5] == [0.01, 0.02, 0.04, 0.04, 0.04]


def test_dead_deliveries_have_a_limit_of_number_and_of_bytes(stream, monkeypatch):
    monkeypatch.setattr(store, "KEPT_DEAD", 5)
    monkeypatch.setattr(store, "KEPT_DEAD_BYTES", 100)
    settings = WebhookSettings(webhook_allow_host=["127.0.0.1"], webhook_attempts=1)
    with Endpoint(answers(500)) as endpoint, stream.webhooks(settings) as hooks:
        hook = stream.hook(endpoint.url, "s", state="paused")
        asked(hooks, lambda: hooks.create(hook))
        line = hooks.dispatcher.lines[hook.webhook_id]

        def dead(size_bytes):
            """A delivery of this many bytes that dies; what is dead then, the newest first."""
            batch = Batch(f"{hook.webhook_id}_{hook.deliveries.accepted}", 0, "0-0", "0-0", b"x" * size_bytes)
            accepted = store.accept(hook.webhook_id, hook.position, 0.0, 0, [(batch, 1)])

            async def die():
                (number,) = await hooks._store.change(accepted)
                hook.deliveries.accepted += 1
                delivery = dispatch.WebhookDelivery(number, hook.webhook_id, batch.batch_id, "0-0", "0-0", 1, 0)
                ended = delivery._replace(status="dead", ended_s=1.0, attempts=1)
                await hooks.dispatcher._end(
                    line, ended, dispatch.Outcome(dispatch.AttemptVerdict.FAILED, "status", "500")
                )
                return [one.number for one in await hooks.deliveries(hook.webhook_id, None, "dead", None, 100)]

            return asked(hooks, die)

        assert [dead(30) for _ in range(4)] == [[1], [2, 1], [3, 2, 1], [4, 3, 2]]
        assert dead(1_000) == [5]  # the newest is kept whatever it has
        assert [len(dead(1)) for _ in range(7)] == [1, 2, 3, 4, 5, 5, 5]
        assert hook.deliveries.dead == 12 and hooks.dispatcher.figures.forgotten == 7
        assert asked(hooks, lambda: hooks._store.read(store.rows_of(12))) == b"x"


def test_clock_that_is_set_forward_and_back_moves_neither_digests_nor_retries(stream, monkeypatch):
    real, ahead_s = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s[0])
    with Endpoint(answers(500)) as endpoint, stream.webhooks() as hooks:
        digest = stream.hook(endpoint.url, "s", every_s=3600, due_s=real() + 1)
        retried = stream.hook(endpoint.url, "t")
        for one in (digest, retried):
            asked(hooks, lambda one=one: hooks.create(one))
        ahead_s[0] = 20 * 3600.0
        stream.release("t")
        lines = hooks.dispatcher.lines
        await_that(lambda: retried.failures >= 1)
        await_that(lambda: digest.due_s > real() + 60)  # the first one was cut: it is 3,600 s to the next
        ahead_s[0] = 0.0
        assert digest.due_s <= real() + 3601
        (delivery,) = lines[retried.webhook_id].queue.values()
        assert delivery.due_s < real() + 60
        assert delivery.began_s <= real() + 1
        stream.release("s")


@pytest.mark.parametrize("ahead_s", [20 * 3600.0, 0.0])
def test_times_of_a_file_that_was_written_while_the_clock_was_ahead_are_capped(stream, ahead_s):
    with Endpoint(answers(500)) as endpoint:
        hook = stream.hook(endpoint.url, "s", every_s=60, due_s=time.time() + 60)
        with stream.webhooks() as hooks:
            asked(hooks, lambda: hooks.create(hook))
        with sqlite3.connect(stream.folder / FILE) as connection:
            connection.execute("UPDATE webhooks SET due_s = due_s + ?", (ahead_s,))
            connection.execute(
                "INSERT INTO deliveries (webhook_id, batch_id, first, last, updates, created_s, rows, status, attempts,"
                " due_s, reason, detail, began_s) VALUES (?, 'b', '1-0', '1-0', 1, 0, x'', 'waiting', 1, ?, '', '', ?)",
                (hook.webhook_id, time.time() + 60 + ahead_s, time.time() + ahead_s),
            )
        with stream.webhooks() as hooks:
            (line,) = hooks.dispatcher.lines.values()
            assert line.hook.due_s <= time.time() + 60
            (delivery,) = line.queue.values()
            assert delivery.due_s <= time.time() + 4 * 3600 and delivery.began_s <= time.time()


def test_file_with_damaged_pages_is_refused_by_name(stream):
    with Endpoint(answers(200)) as endpoint, stream.webhooks() as hooks:
        for _ in range(60):
            asked(hooks, lambda: hooks.create(stream.hook(endpoint.url, "s")))
    path = stream.folder / FILE
    data = path.read_bytes()
    for begin in range(4096, len(data), 4096):
        path.write_bytes(data[:begin] + bytes(4096) + data[begin + 4096 :])
        with suppress(DeliveryError):
            store = Store(path)
            with suppress(DeliveryError):
                store.load()
            store.close()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(DeliveryError, match="restore the file"):
        Store(path)


def test_webhook_with_set_times_or_quiet_hours_is_told_then_and_once(stream):
    """By the wall clock of a zone, over restarts; a webhook beside it says when all had their turn."""
    eight, now = 1_795_852_800.0, [0.0]  # 08:00 in UTC, 09:00 in Berlin

    with Endpoint() as endpoint:
        made = []

        def at(seconds, updates, *wanted):
            """Releases updates at a time of a new process, and waits until so many have been delivered to each; what is
            told too early is too much at the next time."""
            now[0] = eight + seconds
            with stream.webhooks(wall=lambda: now[0]) as hooks:
                if not made:
                    tells = "", '{"at": ["09:00"], "zone": "Europe/Berlin"}', '{"quiet": ["07:30", "08:30"]}'
                    for tell in tells:
                        due_s = first_due_s(tell, now[0]) if tell else 0.0
                        made.append(stream.hook(endpoint.url, "s", tell=tell, due_s=due_s))
                        asked(hooks, lambda: hooks.create(made[-1]))
                for _ in range(updates):
                    stream.release("s")
                lines = [hooks.dispatcher.lines[one.webhook_id] for one in made]
                await_that(lambda: tuple(line.hook.updates.delivered for line in lines) == wanted)

        at(-3600, 2, 2, 0, 2)
        at(-600, 1, 3, 0, 2)
        at(1, 0, 3, 3, 2)
        at(-60, 1, 4, 3, 2)  # a clock that was set back gives no second digest
        at(1900, 1, 5, 3, 5)
        at(86_399, 1, 6, 3, 5)
        at(86_401, 0, 6, 6, 5)
        at(2 * 86_399 + 1900, 0, 6, 6, 6)
    ids = [row["id"] for one in endpoint.book for row in one.updates]
    assert set(Counter(ids).values()) == {3}
