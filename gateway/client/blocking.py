"""`skyray.Client`: the client that waits.

Each method is a request of `gateway.client.requests`, carried out as `gateway.client.flows` says.
`gateway.client.awaiting` has the same methods, to be awaited. Public as `skyray.Client`.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
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


class _Runner:
    """Carries out the commands of one flow."""

    def __init__(self, library: httpx2.Client, timeout_s: float, rows: Iterable[Row] = ()):
        self._library = library
        self._timeout_s = timeout_s
        self._rows = iter(rows)
        self._response: httpx2.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def run(self, flow: Flow[T]) -> T:
        """Carry out a flow that hands nothing on; its value."""
        outcome: Any = None
        try:
            while True:
                outcome = self.do(flow.send(outcome))
        except StopIteration as end:
            return end.value

    def items(self, flow: Flow[None]) -> Generator[Any]:
        """What a flow hands on."""
        outcome: Any = None
        try:
            while True:
                command = flow.send(outcome)
                if isinstance(command, Item):
                    outcome = None
                    yield command.value
                else:
                    outcome = self.do(command)
        except StopIteration:
            return
        finally:
            flow.close()
            self.close()

    def do(self, command: Command) -> Any:
        match command:
            case Send():
                return self._send(command)
            case Read():
                return self._read()
            case Open():
                return self._open(command)
            case Take(most):
                return list(islice(self._rows, most))
            case Sleep(seconds):
                return time.sleep(seconds)
        raise TypeError(command)

    def _send(self, command: Send) -> Answer | Failure:
        try:
            response = self._library.send(self._library.build_request(**arguments_of(command.request)))
            return answer_of(response, response.content)
        except FAILURES as error:
            return failure_of(self._library, error)

    def _open(self, command: Open) -> Answer | Failure:
        self.close()
        timeout = silent_after(command.silence_s, self._timeout_s)
        try:
            request = self._library.build_request(**arguments_of(command.request), timeout=timeout)
            self._response = response = self._library.send(request, stream=True)
            if response.status_code == 200:
                self._chunks = response.iter_bytes()
                return answer_of(response, b"")
            found = answer_of(response, response.read())
            self.close()
            return found
        except FAILURES as error:
            self.close()
            return failure_of(self._library, error)

    def _read(self) -> bytes | Failure | None:
        try:
            chunk = next(self._chunks, None)
        except FAILURES as error:
            self.close()
            return failure_of(self._library, error)
        if chunk is None:
            self.close()
        return chunk

    def close(self) -> None:
        """Close the stream, if one is open."""
        response, self._response = self._response, None
        if response is not None:
            response.close()


class Updates(FollowedStream, Generic[E]):
    """A stream of updates: an iterator that connects again by itself; `with` closes it.

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
        self._items: Generator[E] = runner.items(flows.follow(state, following))

    def __iter__(self) -> "Updates[E]":
        return self

    def __next__(self) -> E:
        return next(self._items)

    def __enter__(self) -> "Updates[E]":
        self._runner.run(flows.start(self._state, self._following))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; nothing more is handed on."""
        self._items.close()
        self._runner.close()


class Client:
    """A client of a server.

    Parameters
    ----------
    url : str
    key : str, optional
        Of `skyray keys create`.
    patience_s : float
        Seconds that a call waits in all, where the server is away or refuses for a time (429, 503), before it raises.
    timeout_s : float
        Seconds without a byte after which a request counts as lost.
    headers : mapping, optional
        Sent with every request.

    Raises
    ------
    ClientError
        Of every call: `NotFound`, `Refused`, `Denied`, `Throttled`, `Failed` or `Unreachable`.

    Notes
    -----
    May be shared by threads. Requests whose answer was lost are sent again where that is safe: messages and
    subscriptions have an id, which the client makes where there is none.
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
        self._library = httpx2.Client(**library_options(Options(url, key, timeout_s, headers or {})))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._library.close()

    def _runner(self, rows: Iterable[Row] = ()) -> _Runner:
        return _Runner(self._library, self._timeout_s, rows)

    def _call(self, call: Call[T]) -> T:
        return self._runner().run(flows.answered(call, self._patience))

    # ---------------------------------------------------------------------------------------------- subscriptions

    def subscribe(
        self, columns: Mapping[str, Any] | None = None, /, *, replace: bool = False, **more: Any
    ) -> SubscriptionOutcome:
        """Create a subscription, of a mapping, of keywords, or both.

        One that is there with the same columns is `unchanged`, with others refused (`subscription_exists`), or with
        `replace` replaced. Without a `subscription_id` the client makes one.
        """
        return self._call(requests.subscribe(columns, more, replace))

    def replace(
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
        return self._call(requests.replace(subscription_id, columns, more, etag, new))

    def subscription(self, subscription_id: str) -> Subscription:
        """The columns of an active subscription, and its etag."""
        return self._call(requests.subscription(subscription_id))

    def unsubscribe(self, subscription_id: str, *, etag: str | None = None) -> SubscriptionOutcome:
        """End a subscription; with `etag` only that version."""
        return self._call(requests.unsubscribe(subscription_id, etag))

    def subscriptions(
        self, *, kind: Names = None, prefix: str | None = None, owner: str | None = None, region: Box = None
    ) -> Iterator[dict[str, Any]]:
        """Columns of the active subscriptions in the order of registration, read page by page."""
        filters = {"kind": kind, "prefix": prefix, "owner": owner, "region": region}
        return self._runner().items(flows.pages(filters, self._patience))

    def subscribe_stream(
        self, rows: Iterable[Row], *, replace: bool = False, group: int = flows.GROUP_ROWS
    ) -> Iterator[SubscriptionOutcome]:
        """Create many subscriptions, with an outcome each, in order; the rows may be an open file of NDJSON.

        `{"unsubscribe": ID}` ends one. `group` rows are sent at a time. Nothing is sent before outcomes are read.
        """
        flow = flows.in_groups(Rows.of_subscriptions(replace), self._patience, group)
        return self._runner(rows).items(flow)

    def subscribe_many(
        self, rows: Iterable[Row], *, replace: bool = False, group: int = flows.GROUP_ROWS
    ) -> list[SubscriptionOutcome]:
        """As `subscribe_stream`, all at once."""
        return list(self.subscribe_stream(rows, replace=replace, group=group))

    def subscribe_features(
        self, collection: Mapping[str, Any] | str | bytes, *, replace: bool = False
    ) -> list[SubscriptionOutcome]:
        """Create a subscription of each feature of a FeatureCollection, which may be JSON."""
        return self._call(requests.subscribe_features(collection, replace))

    def features(
        self, *, kind: Names = None, prefix: str | None = None, owner: str | None = None, region: Box = None
    ) -> dict[str, Any]:
        """The active subscriptions as a FeatureCollection, which `subscribe_features` takes."""
        filters = {"kind": kind, "prefix": prefix, "owner": owner, "region": region}
        return self._runner().run(flows.all_features(filters, self._patience))

    # --------------------------------------------------------------------------------------------------- messages

    def publish(self, message: Mapping[str, Any], *, wait: Wait = None) -> MessageOutcome:
        """Publish a message; with `wait="delivered"` until its updates are out. A bad one is `Refused`.

        What is `accepted` is on disk. Without an `id` the client makes one, so that it is taken once.
        """
        return self._call(requests.publish(message, wait))

    def publish_stream(
        self, messages: Iterable[Row], *, wait: Wait = None, group: int = flows.GROUP_ROWS
    ) -> Iterator[MessageOutcome]:
        """Publish many messages, with an outcome each, in order; they may be an open file of NDJSON.

        `group` of them are taken and sent at a time, and none before those are answered; where the server takes no more
        (429), it waits. Bad ones have a reason. Nothing is sent before outcomes are read.
        """
        return self._runner(messages).items(flows.in_groups(Rows.of_messages(wait), self._patience, group))

    def publish_many(
        self, messages: Iterable[Row], *, wait: Wait = None, group: int = flows.GROUP_ROWS
    ) -> list[MessageOutcome]:
        """As `publish_stream`, all at once."""
        return list(self.publish_stream(messages, wait=wait, group=group))

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
    ) -> Updates[Update]:
        """Updates as they come, each once and in order, however often the connection or the server fails.

        Parameters
        ----------
        subscription, kind : str or several, optional
        owner : str, optional
        region : west, south, east, north, optional
            Of the messages, in degrees.
        since : str, optional
            A `position` of before, or "begin"; without it from now on, that is from the first `next`, or from `with`.
        on_gap : callable, optional
            Gets what is lost, and updates go on behind it; without it `Gap` is raised.
        silence_s : float
            Seconds without a byte after which it connects again.
        patience_s : float
            Seconds of waiting in all between two events, before it raises; before the first event that of the client.
        """
        filters = {"subscription": subscription, "kind": kind, "owner": owner, "region": region}
        following = flows.following_of(filters, self._patience, on_gap, silence_s, patience_s)
        return Updates(self._runner(), Followed(since), following)

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
    ) -> Updates[Event]:
        """As `updates`, with `Progress`, `Missed`, and with `snapshot` first a `Snapshot` of each followed result."""
        filters = {"subscription": subscription, "kind": kind, "owner": owner, "region": region}
        following = flows.following_of(filters, self._patience, on_gap, silence_s, patience_s, snapshot, True)
        return Updates(self._runner(), Followed(since), following)

    # -------------------------------------------------------------------------------------------------- questions

    def results(self, subscription_id: str) -> Results:
        """What is in a result now, best first; of `boolean` the last 100 matches, the newest first."""
        return self._call(requests.results(subscription_id))

    def map(
        self,
        *subscription_ids: str,
        kind: Names = None,
        prefix: str | None = None,
        owner: str | None = None,
        region: Box = None,
        most: int = mapped.MOST,
        most_results: int = mapped.MOST_RESULTS,
    ) -> "lonboard.Map":
        """A map of these subscriptions, or of those that pass the filters, and of their results, for a notebook.

        Parameters
        ----------
        *subscription_ids : str
        kind, prefix, owner, region
            As of `subscriptions`, where no id is given.
        most : int
            Subscriptions, and messages, that are drawn; a warning says what is left out.
        most_results : int
            Subscriptions of which the result is drawn: each is a request.

        Returns
        -------
        lonboard.Map
            Layers of shapes, of places and of messages, coloured by kind; none that has no rows.

        Raises
        ------
        ConfigError
            For ids and filters, or where lonboard is not installed.
        """
        from gateway import notebook

        filters = {"kind": kind, "prefix": prefix, "owner": owner, "region": region}
        notebook.check(most, most_results, subscription_ids, filters)
        flow = mapped.mapped(subscription_ids, filters, most, most_results, self._patience)
        return notebook.Drawing(*self._runner().run(flow)).map()

    def explain(self, subscription_id: str, message: str) -> dict[str, Any]:
        """Why a message (its id, or `seq:N`) is in a result, or not: `held`, `reason`, `why` and so on."""
        return self._call(requests.explain(subscription_id, message))

    def match(self, message: Mapping[str, Any], *, limit: int = 100) -> dict[str, Any]:
        """Which subscriptions a message would reach; nothing is stored."""
        return self._call(requests.asking("/v1/match", message, limit))

    def preview(self, columns: Mapping[str, Any] | None = None, /, *, limit: int = 3, **more: Any) -> dict[str, Any]:
        """What a subscription would have matched among the latest messages; nothing is stored."""
        return self._call(requests.asking("/v1/preview", {**(columns or {}), **more}, limit))

    def health(self) -> dict[str, Any]:
        """Counts of the stream."""
        return self._call(requests.facts("/health"))

    def ready(self) -> dict[str, Any]:
        """As `health`, once messages are matched: waits for it, as long as the patience is."""
        return self._call(requests.facts("/ready"))

    def stream(self) -> dict[str, Any]:
        """What the stream is: attributes, kinds, world, window, and how far it has come."""
        return self._call(requests.facts("/v1/stream"))

    def topology(self) -> dict[str, Any]:
        """What each component does now."""
        return self._call(requests.facts("/v1/topology"))
