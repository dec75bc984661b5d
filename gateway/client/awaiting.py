"""`skyray.AsyncClient`: the client that is awaited.

Its methods are those of `gateway.client.blocking`, which says what they do; requests and flows are the same. Public as
`skyray.AsyncClient`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import httpx2

from gateway.client import flows, mapped, requests
from gateway.client.commands import Answer, Command, Failure, Flow, Item, Open, Read, Send, Sleep, Take
from gateway.client.flows import Followed, FollowedStream, Following, Patience, Rows
from gateway.client.requests import Box, Call, Names, Row, Wait
from gateway.client.rows import Event, MessageOutcome, Missed, Results, Subscription, SubscriptionOutcome, Update
from gateway.client.transport import (
    FAILURES,
    Options,
    answer_of,
    arguments_of,
    failure_of,
    library_options,
    silent_after,
)

if TYPE_CHECKING:
    import lonboard

T = TypeVar("T")
E = TypeVar("E", bound=Event)
Source = Iterable[Row] | AsyncIterable[Row]


class _Runner:
    """Carries out the commands of one flow."""

    def __init__(self, library: httpx2.AsyncClient, timeout_s: float, rows: Source = ()):
        self._library = library
        self._timeout_s = timeout_s
        self._rows = aiter(rows if isinstance(rows, AsyncIterable) else _each(rows))
        self._response: httpx2.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def run(self, flow: Flow[T]) -> T:
        """Carry out a flow that hands nothing on; its value."""
        outcome: Any = None
        while True:
            try:
                command = flow.send(outcome)
            except StopIteration as end:
                return end.value
            outcome = await self.do(command)

    async def items(self, flow: Flow[None]) -> AsyncGenerator[Any]:
        """What a flow hands on."""
        outcome: Any = None
        try:
            while True:
                try:
                    command = flow.send(outcome)
                except StopIteration:
                    return
                if isinstance(command, Item):
                    outcome = None
                    yield command.value
                else:
                    outcome = await self.do(command)
        finally:
            flow.close()
            await self.close()

    async def do(self, command: Command) -> Any:
        match command:
            case Send():
                return await self._send(command)
            case Read():
                return await self._read()
            case Open():
                return await self._open(command)
            case Take(most):
                return await self._take(most)
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
        raise TypeError(command)

    async def _send(self, command: Send) -> Answer | Failure:
        try:
            response = await self._library.send(self._library.build_request(**arguments_of(command.request)))
            return answer_of(response, response.content)
        except FAILURES as error:
            return failure_of(self._library, error)

    async def _take(self, most: int) -> list[Row]:
        taken: list[Row] = []
        async for row in self._rows:
            taken.append(row)
            if len(taken) == most:
                break
        return taken

    async def _open(self, command: Open) -> Answer | Failure:
        await self.close()
        timeout = silent_after(command.silence_s, self._timeout_s)
        try:
            request = self._library.build_request(**arguments_of(command.request), timeout=timeout)
            self._response = response = await self._library.send(request, stream=True)
            if response.status_code == 200:
                self._chunks = response.aiter_bytes()
                return answer_of(response, b"")
            found = answer_of(response, await response.aread())
            await self.close()
            return found
        except FAILURES as error:
            await self.close()
            return failure_of(self._library, error)

    async def _read(self) -> bytes | Failure | None:
        if self._chunks is None:
            return None
        try:
            chunk = await anext(self._chunks, None)
        except FAILURES as error:
            await self.close()
            return failure_of(self._library, error)
        if chunk is None:
            await self.close()
        return chunk

    async def close(self) -> None:
        """Close the stream, if one is open."""
        response, self._response, self._chunks = self._response, None, None
        if response is not None:
            await response.aclose()


async def _each(rows: Iterable[Row]) -> AsyncIterator[Row]:
    for row in rows:
        yield row


class AsyncUpdates(FollowedStream, Generic[E]):
    """As `Updates`, by `async for`; `async with` closes it.

    Parameters
    ----------
    runner : _Runner
    state : Followed
    following : Following
    """

    def __init__(self, runner: _Runner, state: Followed, following: Following):
        super().__init__(state)
        self._runner = runner
        self._following = following
        self._items: AsyncGenerator[E] = runner.items(flows.follow(state, following))

    def __aiter__(self) -> "AsyncUpdates[E]":
        return self

    async def __anext__(self) -> E:
        return await anext(self._items)

    async def __aenter__(self) -> "AsyncUpdates[E]":
        await self._runner.run(flows.start(self._state, self._following))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; nothing more is handed on."""
        await self._items.aclose()
        await self._runner.close()


class AsyncClient:
    """As `Client`, with methods to be awaited; rows may come from an asynchronous iterator.

    `subscriptions`, `subscribe_stream`, `publish_stream`, `updates` and `events` are read by `async for`.
    """

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
        self._library = httpx2.AsyncClient(**library_options(Options(url, key, timeout_s, headers or {})))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._library.aclose()

    def _runner(self, rows: Source = ()) -> _Runner:
        return _Runner(self._library, self._timeout_s, rows)

    async def _call(self, call: Call[T]) -> T:
        return await self._runner().run(flows.answered(call, self._patience))

    # ---------------------------------------------------------------------------------------------- subscriptions

    async def subscribe(
        self, columns: Mapping[str, Any] | None = None, /, *, replace: bool = False, **more: Any
    ) -> SubscriptionOutcome:
        """As `Client.subscribe`."""
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
        """As `Client.replace`."""
        return await self._call(requests.replace(subscription_id, columns, more, etag, new))

    async def subscription(self, subscription_id: str) -> Subscription:
        """As `Client.subscription`."""
        return await self._call(requests.subscription(subscription_id))

    async def unsubscribe(self, subscription_id: str, *, etag: str | None = None) -> SubscriptionOutcome:
        """As `Client.unsubscribe`."""
        return await self._call(requests.unsubscribe(subscription_id, etag))

    def subscriptions(
        self, *, kind: Names = None, prefix: str | None = None, owner: str | None = None, region: Box = None
    ) -> AsyncIterator[dict[str, Any]]:
        """As `Client.subscriptions`."""
        filters = {"kind": kind, "prefix": prefix, "owner": owner, "region": region}
        return self._runner().items(flows.pages(filters, self._patience))

    def subscribe_stream(
        self, rows: Source, *, replace: bool = False, group: int = flows.GROUP_ROWS
    ) -> AsyncIterator[SubscriptionOutcome]:
        """As `Client.subscribe_stream`."""
        flow = flows.in_groups(Rows.of_subscriptions(replace), self._patience, group)
        return self._runner(rows).items(flow)

    async def subscribe_many(
        self, rows: Source, *, replace: bool = False, group: int = flows.GROUP_ROWS
    ) -> list[SubscriptionOutcome]:
        """As `Client.subscribe_many`."""
        return [one async for one in self.subscribe_stream(rows, replace=replace, group=group)]

    async def subscribe_features(
        self, collection: Mapping[str, Any] | str | bytes, *, replace: bool = False
    ) -> list[SubscriptionOutcome]:
        """As `Client.subscribe_features`."""
        return await self._call(requests.subscribe_features(collection, replace))

    async def features(
        self, *, kind: Names = None, prefix: str | None = None, owner: str | None = None, region: Box = None
    ) -> dict[str, Any]:
        """As `Client.features`."""
        filters = {"kind": kind, "prefix": prefix, "owner": owner, "region": region}
        return await self._runner().run(flows.all_features(filters, self._patience))

    # --------------------------------------------------------------------------------------------------- messages

    async def publish(self, message: Mapping[str, Any], *, wait: Wait = None) -> MessageOutcome:
        """As `Client.publish`."""
        return await self._call(requests.publish(message, wait))

    def publish_stream(
        self, messages: Source, *, wait: Wait = None, group: int = flows.GROUP_ROWS
    ) -> AsyncIterator[MessageOutcome]:
        """As `Client.publish_stream`."""
        return self._runner(messages).items(flows.in_groups(Rows.of_messages(wait), self._patience, group))

    async def publish_many(
        self, messages: Source, *, wait: Wait = None, group: int = flows.GROUP_ROWS
    ) -> list[MessageOutcome]:
        """As `Client.publish_many`."""
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
        """As `Client.updates`."""
        filters = {"subscription": subscription, "kind": kind, "owner": owner, "region": region}
        following = flows.following_of(filters, self._patience, on_gap, silence_s, patience_s)
        return AsyncUpdates(self._runner(), Followed(since), following)

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
        """As `Client.events`."""
        filters = {"subscription": subscription, "kind": kind, "owner": owner, "region": region}
        following = flows.following_of(filters, self._patience, on_gap, silence_s, patience_s, snapshot, True)
        return AsyncUpdates(self._runner(), Followed(since), following)

    # -------------------------------------------------------------------------------------------------- questions

    async def results(self, subscription_id: str) -> Results:
        """As `Client.results`."""
        return await self._call(requests.results(subscription_id))

    async def map(
        self,
        *subscription_ids: str,
        kind: Names = None,
        prefix: str | None = None,
        owner: str | None = None,
        region: Box = None,
        most: int = mapped.MOST,
        most_results: int = mapped.MOST_RESULTS,
    ) -> "lonboard.Map":
        """As `Client.map`."""
        from gateway import notebook

        filters = {"kind": kind, "prefix": prefix, "owner": owner, "region": region}
        notebook.check(most, most_results, subscription_ids, filters)
        flow = mapped.mapped(subscription_ids, filters, most, most_results, self._patience)
        return notebook.Drawing(*(await self._runner().run(flow))).map()

    async def explain(self, subscription_id: str, message: str) -> dict[str, Any]:
        """As `Client.explain`."""
        return await self._call(requests.explain(subscription_id, message))

    async def match(self, message: Mapping[str, Any], *, limit: int = 100) -> dict[str, Any]:
        """As `Client.match`."""
        return await self._call(requests.asking("/v1/match", message, limit))

    async def preview(
        self, columns: Mapping[str, Any] | None = None, /, *, limit: int = 3, **more: Any
    ) -> dict[str, Any]:
        """As `Client.preview`."""
        return await self._call(requests.asking("/v1/preview", {**(columns or {}), **more}, limit))

    async def health(self) -> dict[str, Any]:
        """As `Client.health`."""
        return await self._call(requests.facts("/health"))

    async def ready(self) -> dict[str, Any]:
        """As `Client.ready`."""
        return await self._call(requests.facts("/ready"))

    async def stream(self) -> dict[str, Any]:
        """As `Client.stream`."""
        return await self._call(requests.facts("/v1/stream"))

    async def topology(self) -> dict[str, Any]:
        """As `Client.topology`."""
        return await self._call(requests.facts("/v1/topology"))
