"""The thread in which webhooks are delivered, and the operations that routes run in it.

Its event loop is its own, so that neither the server nor the topology waits for a file or an endpoint. Made by
`gateway.commands.serve`.
"""

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gateway.serve.problems import ApiError
from gateway.serve.registry import Registry
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import BEGINNING, END
from gateway.sinks.telling import Teller, Told
from gateway.sinks.told_store import first_told, store_tell, told_after, told_before
from gateway.sinks.webhooks.dispatch import ActiveWebhook, Dispatcher
from gateway.sinks.webhooks.guard import Forbidden, Guard, Resolver, resolve
from gateway.sinks.webhooks.model import OLD_SECRET_S, Webhook, WebhookDelivery
from gateway.sinks.webhooks.sending import WebhookClient
from gateway.sinks.webhooks.settings import WebhookSettings
from gateway.sinks.webhooks.signing import new_secret
from gateway.sinks.webhooks.store import FILE, Store, change_webhook, delete_webhook, listed, revive, save_webhook
from matching.telling import next_time, telling_of
from matching.text import terms_of

Result = TypeVar("Result")
#: Seconds that attempts under way get when the server ends.
PATIENCE_S = 2.0
#: Seconds between two looks whether the teller has come as far as a new webhook begins.
_AGAIN_S = 0.02


class WebhookService:
    """The webhooks of a stream, delivered while the block lasts.

    Parameters
    ----------
    folder : Path
        Of the stream.
    source : UpdateLog
    registry : Registry
    settings : WebhookSettings
    resolver : callable
        As `Guard` takes it.
    logged_before : int
        Seq of the last message that was logged before this process.
    wall : callable
        Seconds since 1970, by which is told.

    Attributes
    ----------
    failure : BaseException or None
        What ended the delivery of webhooks before its time.

    Raises
    ------
    InputError, DeliveryError
        If the store cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        source: UpdateLog,
        registry: Registry,
        settings: WebhookSettings,
        resolver: Resolver = resolve,
        logged_before: int = -1,
        wall: Callable[[], float] = time.time,
    ):
        self.source = source
        self.settings = settings
        self.registry = registry
        self._logged_before, self._wall = logged_before, wall
        self.failure: BaseException | None = None
        self._guard = Guard(settings, resolver)
        self._store = Store(folder / FILE)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dispatcher: Dispatcher | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)

    def __enter__(self) -> "WebhookService":
        self._thread.start()
        self._begun.wait()
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(PATIENCE_S + 10)
        self._store.close()

    @property
    def dispatcher(self) -> Dispatcher:
        assert self._dispatcher is not None, "the block has begun"
        return self._dispatcher

    def lag(self) -> int:
        """Number of released messages behind the position of the slowest active webhook, digests included."""
        head = self.source.head.boundary
        hooks = [line.hook for line in list(self.dispatcher.lines.values())]
        return max((head - hook.position.boundary for hook in hooks if hook.state == "active"), default=0)

    def reached(self) -> int:
        """The boundary that all webhooks have reached, digests included; above all others without any."""
        positions = [line.hook.position for line in list(self.dispatcher.lines.values())]
        if positions and not self.dispatcher.teller.idle:
            positions += self.dispatcher.teller.needs
        return min((position.boundary for position in positions), default=END)

    def wake(self) -> None:
        """Updates were released; for any thread. Without webhooks nobody waits for them."""
        if self._loop is None or self._loop.is_closed():
            return
        if self.dispatcher.lines or not self.dispatcher.teller.idle:
            self._loop.call_soon_threadsafe(self.dispatcher.wake)

    async def ask(self, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run a coroutine in the webhooks' event loop, from another loop; returns its result."""
        assert self._loop is not None, "the block has begun"
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self._loop))

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # the command ends the server with it
            self.failure = error
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._told: asyncio.Future[None] = self._loop.create_future()
        client = WebhookClient(self._guard, self.settings.webhook_timeout_s)
        hooks, waiting, saved = self._store.load()
        reached = max((hook.position for hook in hooks), default=BEGINNING)
        telling = saved.position, reached, saved.clock_s, saved.standings, saved.overrides
        teller = Teller(self.source, self.registry, terms_of, self._logged_before, *telling, self._wall)
        self._dispatcher = Dispatcher(
            self._store, self.source, self.registry.last, client, self.settings, teller, saved.last
        )
        self._dispatcher.on_told = self._note_told
        self._dispatcher.load(hooks, waiting)
        self._begun.set()
        running, stopped = asyncio.create_task(self._dispatcher.run()), asyncio.create_task(self._stopped.wait())
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        await self._dispatcher.close(PATIENCE_S)
        await running
        await client.close()

    # ------------------------------------------------------------------------ what routes ask, in the webhooks' loop

    def line(self, webhook_id: str, owner: str | None) -> ActiveWebhook:
        """A webhook that a caller of this owner sees. Raises ApiError."""
        line = self.dispatcher.lines.get(webhook_id)
        if line is None or owner not in (None, line.hook.made_by):
            detail = f"webhook {webhook_id[:200]!r}: is not there"
            raise ApiError(404, "unknown_webhook", detail, "path", "check the id; GET /v1/webhooks lists them")
        return line

    async def check(self, url: str) -> None:
        """Raises ApiError if a URL may not be called."""
        try:
            await self._guard.check(url)
        except Forbidden as error:
            do = "give an https URL of the public network, or start the server with --set webhooks.allow_host=HOST"
            raise ApiError(422, error.reason, error.detail, "body url", do) from error

    async def create(self, hook: Webhook) -> Webhook:
        """Add a webhook. Raises ApiError."""
        await self.check(hook.url)
        most = self.settings.most_webhooks
        mine = sum(line.hook.made_by == hook.made_by for line in self.dispatcher.lines.values())
        if most and mine >= most:
            raise ApiError(403, "too_many_webhooks", f"{most:,} webhooks are there, and no more may be", do="end some")
        teller = self.dispatcher.teller
        while not teller.idle and teller.position < min(hook.position, self.source.head):
            self.dispatcher.wake()
            await asyncio.sleep(_AGAIN_S)
        hook.told = await self._store.read(told_before(hook.position))
        await self._store.change(save_webhook(hook))
        self.dispatcher.add(ActiveWebhook(hook))
        return hook

    async def update(self, webhook_id: str, owner: str | None, changes: Mapping[str, Any]) -> Webhook:
        """Change some columns of a webhook. Raises ApiError."""
        line = self.line(webhook_id, owner)
        if "url" in changes:
            await self.check(changes["url"])
            line = self.line(webhook_id, owner)  # it may have been deleted meanwhile
        again, changes = changes.get("state") == "active" or "url" in changes, dict(changes)
        if "every_s" in changes:
            changes["due_s"] = self.dispatcher.now_s() + changes["every_s"]
        if changes.get("tell"):
            changes["due_s"] = first_due_s(changes["tell"], self._wall())
        if again:
            changes["why"] = ""
        async with line.changing:
            await self._write(line.hook, changes)
        if {"every_s", "tell"} & changes.keys():
            line.until = None
        if again:
            line.hook.failures, line.hold_s = 0, 0.0
        self.dispatcher.pump(line)
        self.dispatcher.wake()
        return line.hook

    async def _write(self, hook: Webhook, changes: Mapping[str, Any]) -> None:
        """Change columns of a webhook: on disk first, so that a failure leaves it as it was."""
        if changes:
            await self._store.change(change_webhook(hook.webhook_id, changes))
        for name, value in changes.items():
            setattr(hook, name, value)

    async def rotate(self, webhook_id: str, owner: str | None) -> Webhook:
        """Give a webhook a new secret; the old one signs, too, for a day. Raises ApiError."""
        line = self.line(webhook_id, owner)
        async with line.changing:
            old = {"old_secret": line.hook.secret, "old_until_s": time.time() + OLD_SECRET_S}
            await self._write(line.hook, {"secret": new_secret(), **old})
            return replace(line.hook)  # with this secret, whatever comes next

    async def delete(self, webhook_id: str, owner: str | None) -> None:
        """Remove a webhook with its deliveries. Raises ApiError."""
        self.line(webhook_id, owner)
        self.dispatcher.remove(webhook_id)
        await self._store.change(delete_webhook(webhook_id))

    async def deliveries(
        self, webhook_id: str, owner: str | None, status: str | None, before: int | None, most: int
    ) -> list[WebhookDelivery]:
        """Deliveries of a webhook, the newest first. Raises ApiError."""
        self.line(webhook_id, owner)
        return await self._store.read(listed(webhook_id, status, before, most))

    async def redeliver(self, webhook_id: str, owner: str | None, numbers: list[int] | None) -> int:
        """Make dead deliveries wait again, these or all; returns how many. Raises ApiError."""
        line = self.line(webhook_id, owner)
        revived = await self._store.change(revive(webhook_id, numbers, self.dispatcher.now_s()))
        if not line.closed:
            self.dispatcher.revived(line, revived)
        return len(revived)

    # ------------------------------------------------------------------------------------------------ what is told

    async def tell(self, name: str, number: int, tell: Any) -> None:
        """Have the subscription of a number told in this way from now on, or by its column (None)."""
        await self._store.change(store_tell(name, number, tell))
        self.dispatcher.teller.change(name, number, tell)
        self.dispatcher.wake()

    async def told(self, number: int, most: int) -> tuple[int, list[tuple[int, Told]]]:
        """Number of the oldest telling that is kept, and the tellings behind a number, with theirs."""
        return await self._store.read(lambda connection: (first_told(connection), told_after(number, most)(connection)))

    async def told_since(self, number: int, seconds: float) -> None:
        """Wait until there is a telling behind a number, so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.dispatcher.told <= number:
                    await asyncio.shield(self._told)

    def _note_told(self) -> None:
        told, self._told = self._told, asyncio.get_running_loop().create_future()
        told.set_result(None)


def first_due_s(tell: str, wall_s: float) -> float:
    """When the first digest of a webhook is due that has set times; its `tell` as stored."""
    telling = telling_of(json.loads(tell))
    return wall_s if isinstance(telling, str) or not telling.at else next_time(telling.at, telling.zone, wall_s)


def new_webhook_id() -> str:
    """An id that no other webhook has or had."""
    return f"wh_{secrets.token_hex(8)}"
