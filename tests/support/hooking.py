"""Webhooks over a stream whose boundaries the test releases: the real history, store, dispatcher and client."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.live.update_listener import MessageText
from gateway.live.write_ahead_log import LoggedValues
from gateway.serve.included import IncludedValues
from gateway.serve.registry import Registry
from gateway.serve.released import RANKS
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import Parts
from gateway.sinks.webhooks.guard import resolve
from gateway.sinks.webhooks.model import Webhook
from gateway.sinks.webhooks.service import WebhookService, new_webhook_id
from gateway.sinks.webhooks.settings import WebhookSettings
from gateway.sinks.webhooks.signing import new_secret
from matching.attributes import AttributeSchema
from tests.support.releasing import RawUpdate, released_of

LOOPBACK = WebhookSettings(webhook_allow_host=["127.0.0.1"], webhook_retry_s=0.01)


class Stream:
    """A log of updates; a boundary has one message, whose number is its attribute, and an update for each name."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.seq = -1
        self.hooks: WebhookService | None = None
        number = AttributeSchema.parse(["number:number"])
        included = IncludedValues({}, lambda _: False, _values, lambda: number, [])
        self.history = UpdateLog(Parts(folder / "updates", [], _texts, included))

    def release(self, *names: str) -> None:
        self.seq += 1
        released = released_of(self.seq, (RawUpdate(name, RANKS["match"], self.seq, self.seq, None) for name in names))
        self.history.append([released], self.seq)
        if self.hooks is not None:
            self.hooks.wake()

    @contextmanager
    def webhooks(
        self, settings: WebhookSettings = LOOPBACK, resolver: Any = resolve, wall: Callable[[], float] = time.time
    ) -> Iterator[WebhookService]:
        with WebhookService(self.folder, self.history, Registry(), settings, resolver, wall=wall) as hooks:
            self.hooks = hooks
            try:
                yield hooks
            finally:
                self.hooks = None

    def hook(self, url: str, name: str, **more: Any) -> Webhook:
        given = {"owner": None, "made_by": None, "created_s": 0, "secret": new_secret(), **more}
        return Webhook(new_webhook_id(), url, name, position=self.history.head, **given)


def _texts(seqs: Sequence[int]) -> dict[int, MessageText]:
    return {seq: MessageText(f"m{seq}", f"ramen {seq}\n", 0.0, 0.0) for seq in seqs}


def _values(seqs: Iterable[int]) -> dict[int, LoggedValues]:
    return {seq: LoggedValues((float(seq),), -1) for seq in seqs}


def asked(hooks: WebhookService, make: Callable[[], Any]) -> Any:
    """What a coroutine of the webhooks' loop answers."""
    return asyncio.run(hooks.ask(make))


def await_that(condition: Callable[[], Any], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)
