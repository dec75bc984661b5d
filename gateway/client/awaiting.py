"""`skyray.AsyncClient`: the client that is awaited, and the one source of both.

Each method is a request of `gateway.client.requests`, carried out as `gateway.client.flows` says.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

import httpx2

from gateway.client import flows, requests
from gateway.client.flows import Followed, FollowedStream, Following, Patience, SentRows, Source
from gateway.client.requests import Box, Call, Names, Wait
from gateway.client.rows import (
    ActiveSubscription,
    Event,
    MessageOutcome,
    Missed,
    Results,
    SubscriptionOutcome,
    Telling,
    Update,
)
from gateway.client.transport import Library, Link, library_options

T = TypeVar("T")
E = TypeVar("E", bound=Event)


class AsyncUpdates(FollowedStream, Generic[E]):
    """A stream of updates: an asynchronous iterator that connects again by itself; `async with` closes it."""

    def __init__(self, link: Link, state: Followed, following: Following):
        super().__init__(state)
        self._link = link
        self._following = following
        self._items: AsyncGenerator[E] = flows.follow(link, state, following)

    def __aiter__(self) -> "AsyncUpdates[E]":
        return self

    async def __anext__(self) -> E:
        return await anext(self._items)

    async def __aenter__(self) -> "AsyncUpdates[E]":
        await flows.start(self._link, self._state, self._following)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; nothing more is handed on."""
        await self._items.aclose()
        await self._link.close()


class AsyncClient:
    """As `Client`, with methods to be awaited; rows may come from an asynchronous iterator.

    `subscriptions`, `subscribe_stream`, `publish_stream`, `updates` and `events` are read by `async for`.
    """

    #: Library of HTTP; a blocking one makes coroutines that never wait for a loop.
    _library_type: type[Library] = httpx2.AsyncClient

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        key: str | None = None,
        patience_s: float = 30.0,
        timeout_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ):
        self.url = url
        self._timeout_s = timeout_s
        self._patience = Patience(patience_s)
        self._library = self._library_type(**library_options(url, key, timeout_s, headers or {}))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._link().close_all()

    def _link(self) -> Link:
        return Link(self._library, self._timeout_s)

    async def _call(self, call: Call[T]) -> T:
        return await flows.answered(self._link(), call, self._patience)

    # ---------------------------------------------------------------------------------------------- subscriptions

    async def subscribe(
        self, columns: Mapping[str, Any] | None = None, /, *, replace: bool = False, **more: Any
    ) -> SubscriptionOutcome:
        """Create a subscription, of a mapping, of keywords, or both.

        One that is there with the same columns is `unchanged`, with others refused (`subscription_exists`), or with
        `replace` replaced. Without a `subscription_id` the client makes one.
        """
        return await self._call(requests.subscribe(columns, more, replace))

    async def replace(
        self,
        subscription_id: str,
        columns: Mapping[str, Any] | None = None,
        /,
        *,
        etag: str | None = None,
        new: bool = False,
        **more: Any,
    ) -> SubscriptionOutcome:
        """Create or replace the subscription of this id.

        With `etag` only that version is replaced, else it is `Refused` (`precondition_failed`); with `new` none
        (`subscription_exists`).
        """
        return await self._call(requests.replace(subscription_id, columns, more, etag, new))

    async def subscription(self, subscription_id: str) -> ActiveSubscription:
        """The columns of an active subscription, and its etag."""
        return await self._call(requests.subscription(subscription_id))

    async def unsubscribe(self, subscription_id: str, *, etag: str | None = None) -> SubscriptionOutcome:
        """End a subscription; with `etag` only that version."""
        return await self._call(requests.unsubscribe(subscription_id, etag))

    def subscriptions(
        self, *, kind: Names = None, prefix: str | None = None, owner: str | None = None, region: Box = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Columns of the active subscriptions in the order of registration, read page by page."""
        filters = {"kind": kind, "prefix": prefix, "owner": owner, "region": region}
        return flows.pages(self._link(), filters, self._patience)

    def subscribe_stream(
        self, rows: Source, *, replace: bool = False, group: int = flows.GROUP_ROWS
    ) -> AsyncIterator[SubscriptionOutcome]:
        """Create many subscriptions, with an outcome each, in order; the rows may be an open file of NDJSON.

        `{"unsubscribe": ID}` ends one. `group` rows are sent at a time. Nothing is sent before outcomes are read.
        """
        return flows.in_groups(self._link(), rows, SentRows.of_subscriptions(replace), self._patience, group)

    async def subscribe_many(
        self, rows: Source, *, replace: bool = False, group: int = flows.GROUP_ROWS
    ) -> list[SubscriptionOutcome]:
        """As `subscribe_stream`, all at once."""
        return [one async for one in self.subscribe_stream(rows, replace=replace, group=group)]

    async def subscribe_features(
        self, collection: Mapping[str, Any] | str | bytes, *, replace: bool = False
    ) -> list[SubscriptionOutcome]:
        """Create a subscription of each feature of a FeatureCollection, which may be JSON."""
        return await self._call(requests.subscribe_features(collection, replace))

    async def features(
        self, *, kind: Names = None, prefix: str | None = None, owner: str | None = None, region: Box = None
    ) -> dict[str, Any]:
        """The active subscriptions as a FeatureCollection, which `subscribe_features` takes."""
        filters = {"kind": kind, "prefix": prefix, "owner": owner, "region": region}
        return await flows.all_features(self._link(), filters, self._patience)

    # --------------------------------------------------------------------------------------------------- messages

    async def publish(self, message: Mapping[str, Any], *, wait: Wait = None) -> MessageOutcome:
        """Publish a message; with `wait="delivered"` until its updates are out. A bad one is `Refused`.

        What is `accepted` is on disk. Without an `id` the client makes one, so that it is taken once.
        """
        return await self._call(requests.publish(message, wait))

    def publish_stream(
        self, messages: Source, *, wait: Wait = None, group: int = flows.GROUP_ROWS
    ) -> AsyncIterator[MessageOutcome]:
        """Publish many messages, with an outcome each, in order; they may be an open file of NDJSON.

        `group` of them are taken and sent at a time, and none before those are answered; where the server takes no more
        (429), it waits. Bad ones have a reason. Nothing is sent before outcomes are read.
        """
        return flows.in_groups(self._link(), messages, SentRows.of_messages(wait), self._patience, group)

    async def publish_many(
        self, messages: Source, *, wait: Wait = None, group: int = flows.GROUP_ROWS
    ) -> list[MessageOutcome]:
        """As `publish_stream`, all at once."""
        return [one async for one in self.publish_stream(messages, wait=wait, group=group)]

    # ---------------------------------------------------------------------------------------------------- updates

    def updates(
        self,
        *,
        subscription: Names = None,
        kind: Names = None,
        owner: str | None = None,
        region: Box = None,
        since: str | None = None,
        on_gap: Callable[[Missed], None] | None = None,
        silence_s: float = flows.SILENCE_S,
        patience_s: float = float("inf"),
    ) -> AsyncUpdates[Update]:
        """Updates as they come, each once and in order, however often the connection or the server fails.

        Parameters
        ----------
        subscription, kind : str or several, optional
        owner : str, optional
        region : west, south, east, north, optional
            Of the messages, in degrees.
        since : str, optional
            A `position` of before, or "begin"; without it from now on: from the first update that is taken, or from
            `with`.
        on_gap : callable, optional
            Gets what is lost, and updates go on behind it; without it `Gap` is raised.
        silence_s : float
            Seconds without a byte after which it connects again.
        patience_s : float
            Seconds of waiting in all between two events, before it raises; before the first event that of the client.
        """
        filters = {"subscription": subscription, "kind": kind, "owner": owner, "region": region}
        following = flows.following_of(filters, self._patience, on_gap, silence_s, patience_s)
        return AsyncUpdates(self._link(), Followed(since), following)

    def events(
        self,
        *,
        subscription: Names = None,
        kind: Names = None,
        owner: str | None = None,
        region: Box = None,
        since: str | None = None,
        snapshot: bool = False,
        on_gap: Callable[[Missed], None] | None = None,
        silence_s: float = flows.SILENCE_S,
        patience_s: float = float("inf"),
    ) -> AsyncUpdates[Event]:
        """As `updates`, with `Progress`, `Missed`, and with `snapshot` first a `Snapshot` of each followed result."""
        filters = {"subscription": subscription, "kind": kind, "owner": owner, "region": region}
        following = flows.following_of(filters, self._patience, on_gap, silence_s, patience_s, snapshot, True)
        return AsyncUpdates(self._link(), Followed(since), following)

    async def tell(self, subscription_id: str, tell: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
        """Set when a subscription is told (`at`, `zone`, `quiet`, `most_an_hour`, `similar`, `paused`).

        By its column again without any. Matching goes on. Returns `tell`, how many updates are `held`, and `due_s`.
        """
        return await self._call(requests.tell(subscription_id, tell, more))

    def told(self, *, subscription: Names = None, since: int | None = None) -> AsyncIterator[Telling]:
        """What subscriptions with `tell` are told, each telling once, in order: those that come, for ever.

        Parameters
        ----------
        subscription : str or iterable of str
            Only of these.
        since : int, optional
            `number` of the last telling that is known; from now without it.

        Raises
        ------
        Gap
            If tellings behind `since` are not kept any more; `Missed.before` is the first that is.
        """
        return flows.tellings(self._link(), subscription, since, self._patience)

    # -------------------------------------------------------------------------------------------------- questions

    async def results(self, subscription_id: str) -> Results:
        """What is in a result now, best first; of `boolean` the last 100 matches, the newest first."""
        return await self._call(requests.results(subscription_id))

    async def explain(self, subscription_id: str, message: str) -> dict[str, Any]:
        """Why a message (its id, or `seq:N`) is in a result, or not: `held`, `reason`, `why` and so on."""
        return await self._call(requests.explain(subscription_id, message))

    async def match(self, message: Mapping[str, Any], *, limit: int = 100) -> dict[str, Any]:
        """Which subscriptions a message would reach; nothing is stored."""
        return await self._call(requests.asking("/v1/match", message, limit))

    async def preview(
        self, columns: Mapping[str, Any] | None = None, /, *, limit: int = 3, **more: Any
    ) -> dict[str, Any]:
        """What a subscription would have matched among the latest messages; nothing is stored."""
        return await self._call(requests.asking("/v1/preview", {**(columns or {}), **more}, limit))

    async def health(self) -> dict[str, Any]:
        """Counts of the stream."""
        return await self._call(requests.facts("/health"))

    async def ready(self) -> dict[str, Any]:
        """As `health`, once messages are matched: waits for it, as long as the patience is."""
        return await self._call(requests.facts("/ready"))

    async def stream(self) -> dict[str, Any]:
        """What the stream is: attributes, kinds, world, window, and how far it has come."""
        return await self._call(requests.facts("/v1/stream"))

    async def topology(self) -> dict[str, Any]:
        """What each component does now."""
        return await self._call(requests.facts("/v1/topology"))
