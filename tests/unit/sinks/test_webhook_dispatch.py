"""Deliveries over a stream whose boundaries the test releases: bad endpoints, restarts, rooms."""

import sqlite3
import time
from contextlib import ExitStack

import pytest

from gateway.sinks.webhooks.dispatch import IN_FLIGHT, WINDOW
from gateway.sinks.webhooks.settings import WebhookSettings
from gateway.sinks.webhooks.store import FILE, Store
from matching.errors import InputError
from tests.support.endpoints import Endpoint, answer, answers, drips, floods, hangs
from tests.support.hooking import Stream, asked, await_that

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def stream(tmp_path):
    one = Stream(tmp_path)
    yield one
    one.close()


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
            await_that(lambda: [len(line.queue) for line in lines] == [WINDOW, WINDOW, WINDOW, 0])
            figures = hooks.dispatcher.figures
            assert figures.deliveries.waiting == 3 * WINDOW and figures.deliveries.delivered == 50


def test_endpoint_that_comes_back_gets_all_that_waited_for_room(stream):
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
        assert figures.dropped.accepted == 4
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
