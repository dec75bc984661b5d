"""`skyray.Client`: the client that waits.

It carries out the coroutines of `AsyncClient` over a library that blocks: they never wait for an event loop, and so
need none. Types and docstrings are those of its methods.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import httpx2

from gateway.client.awaiting import AsyncClient, AsyncUpdates
from gateway.client.flows import FollowedStream
from gateway.client.rows import Event
from matching.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=Event)


def _now(coroutine: Any) -> Any:
    """The value of a coroutine, whose link blocks. Raises ConfigError if it waits for something else."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise ConfigError("rows come from an asynchronous iterator that waits: give them to skyray.AsyncClient")


def _items(coming: AsyncIterator[T]) -> Generator[T]:
    """The items of an asynchronous generator, which is closed with this one."""
    try:
        while True:
            yield _now(coming.__anext__())
    except StopAsyncIteration:
        return
    finally:
        _now(coming.aclose())  # type: ignore[attr-defined]


class Updates(FollowedStream, Generic[E]):
    """A stream of updates: an iterator that connects again by itself; `with` closes it."""

    def __init__(self, inner: AsyncUpdates[E]):
        super().__init__(inner._state)
        self._inner = inner
        self._taken = _items(inner._items)

    def __iter__(self) -> "Updates[E]":
        return self

    def __next__(self) -> E:
        return next(self._taken)

    def __enter__(self) -> "Updates[E]":
        _now(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; nothing more is handed on."""
        self._taken.close()
        _now(self._inner.close())


class _Blocking(AsyncClient):
    _library_type = httpx2.Client


def _waits(
    call: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    """The method that waits for this one."""

    @wraps(call)
    def method(self: "Client", /, *args: P.args, **named: P.kwargs) -> T:
        return _now(call(self._source, *args, **named))

    return method


def _iterates(
    call: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
) -> Callable[Concatenate["Client", P], Iterator[T]]:
    """The method that iterates over the items of this one."""

    @wraps(call)
    def method(self: "Client", /, *args: P.args, **named: P.kwargs) -> Iterator[T]:
        return _items(call(self._source, *args, **named))

    return method


def _follows(
    call: Callable[Concatenate[AsyncClient, P], AsyncUpdates[E]],
) -> Callable[Concatenate["Client", P], Updates[E]]:
    """The method that follows the stream of this one."""

    @wraps(call)
    def method(self: "Client", /, *args: P.args, **named: P.kwargs) -> Updates[E]:
        return Updates(call(self._source, *args, **named))

    return method


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
        self._source = _Blocking(url, key=key, patience_s=patience_s, timeout_s=timeout_s, headers=headers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    close = _waits(AsyncClient.close)
    subscribe = _waits(AsyncClient.subscribe)
    replace = _waits(AsyncClient.replace)
    subscription = _waits(AsyncClient.subscription)
    unsubscribe = _waits(AsyncClient.unsubscribe)
    subscriptions = _iterates(AsyncClient.subscriptions)
    subscribe_stream = _iterates(AsyncClient.subscribe_stream)
    subscribe_many = _waits(AsyncClient.subscribe_many)
    subscribe_features = _waits(AsyncClient.subscribe_features)
    features = _waits(AsyncClient.features)
    publish = _waits(AsyncClient.publish)
    publish_stream = _iterates(AsyncClient.publish_stream)
    publish_many = _waits(AsyncClient.publish_many)
    updates = _follows(AsyncClient.updates)
    events = _follows(AsyncClient.events)
    tell = _waits(AsyncClient.tell)
    told = _iterates(AsyncClient.told)
    results = _waits(AsyncClient.results)
    explain = _waits(AsyncClient.explain)
    match = _waits(AsyncClient.match)
    preview = _waits(AsyncClient.preview)
    health = _waits(AsyncClient.health)
    ready = _waits(AsyncClient.ready)
    stream = _waits(AsyncClient.stream)
    topology = _waits(AsyncClient.topology)
