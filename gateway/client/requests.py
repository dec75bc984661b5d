"""Requests of the client's calls, and the decoders of their answers.

The paths are those of docs/start.md.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from gateway.client.answers import Answer, Request
from gateway.client.errors import NotFound
from gateway.client.rows import ActiveSubscription, MessageOutcome, Results, SubscriptionOutcome, ToldPage
from gateway.plain_values import plain_value
from matching.errors import InputError

T = TypeVar("T")
#: Columns of a row: a mapping, or a line of JSON.
Row = Mapping[str, Any] | str | bytes
#: One name, or several.
Names = str | Iterable[str] | None
#: West, south, east, north in degrees.
Box = tuple[float, float, float, float] | list[float] | None
Wait = Literal["delivered"] | None
#: Parameters of a query.
Params = tuple[tuple[str, str], ...]

_JSON = {"Content-Type": "application/json"}
_GEOJSON = "application/geo+json"
SUBSCRIPTIONS, MESSAGES = "/v1/subscriptions", "/v1/messages"


class Call(NamedTuple, Generic[T]):
    """A request, and the function `read` that decodes its answer.

    `repeated`, if given, makes the value from an error 404 of a repeated request, whose first answer was lost.
    """

    request: Request
    read: Callable[[Answer], T]
    repeated: Callable[[NotFound], T] | None = None


class Page(msgspec.Struct):
    """A page of subscriptions."""

    subscriptions: list[dict[str, Any]]
    after: int | None = None


def subscribe(row: Mapping[str, Any] | None, more: Mapping[str, Any], replace: bool) -> Call[SubscriptionOutcome]:
    """POST of one subscription; it gets an id if it has none, so that a repetition does not create another one."""
    columns = with_id({**(row or {}), **more}, "subscription_id")
    request = Request("POST", SUBSCRIPTIONS, _replacing(replace), _JSON, encode(columns))
    return Call(request, _decoder(SubscriptionOutcome))


def replace(
    subscription_id: str, row: Mapping[str, Any] | None, more: Mapping[str, Any], etag: str | None, new: bool
) -> Call[SubscriptionOutcome]:
    """PUT of a subscription; not repeated with a condition, since the lost first request may have fulfilled it."""
    conditions = ({} if etag is None else {"If-Match": etag}) | ({"If-None-Match": "*"} if new else {})
    body = encode({**(row or {}), **more})
    request = Request("PUT", subscription_path(subscription_id), (), {**_JSON, **conditions}, body, not conditions)
    return Call(request, _decoder(SubscriptionOutcome))


def subscription(subscription_id: str) -> Call[ActiveSubscription]:
    decoded = _decoder(dict[str, Any])
    request = Request("GET", subscription_path(subscription_id))
    return Call(request, lambda answer: ActiveSubscription(decoded(answer), answer.headers.get("etag", "")))


def unsubscribe(subscription_id: str, etag: str | None) -> Call[SubscriptionOutcome]:
    """DELETE of a subscription; a 404 after a repetition means that the first request has ended it."""
    headers = {} if etag is None else {"If-Match": etag}
    request = Request("DELETE", subscription_path(subscription_id), (), headers, None, etag is None)
    return Call(request, _decoder(SubscriptionOutcome), lambda _: SubscriptionOutcome("deleted", subscription_id))


def subscribe_features(collection: Mapping[str, Any] | str | bytes, replace: bool) -> Call[list[SubscriptionOutcome]]:
    """POST of a FeatureCollection; features without an id get one."""
    found = msgspec.json.decode(collection) if isinstance(collection, str | bytes) else dict(collection)
    if isinstance(found, dict) and isinstance(features := found.get("features"), list):
        found["features"] = [_identified(one) for one in features]
    headers = {"Content-Type": _GEOJSON}
    request = Request("POST", SUBSCRIPTIONS, _replacing(replace), headers, encode(found))
    return Call(request, _decoder(list[SubscriptionOutcome]))


def page(filters: Mapping[str, Any], after: int | None) -> Call[Page]:
    params = (*params_of(**filters, after=after), ("limit", "1000"))
    return Call(Request("GET", SUBSCRIPTIONS, params), _decoder(Page))


def features(filters: Mapping[str, Any], after: int | None) -> Call[dict[str, Any]]:
    params = (*params_of(**filters, after=after), ("limit", "1000"))
    return Call(Request("GET", SUBSCRIPTIONS, params, {"Accept": _GEOJSON}), _decoder(dict[str, Any]))


def publish(row: Mapping[str, Any], wait: Wait) -> Call[MessageOutcome]:
    """POST of one message; it gets an id if it has none, so that the server accepts a repetition once."""
    request = Request("POST", MESSAGES, params_of(wait=wait), _JSON, encode(with_id(row, "id")))
    return Call(request, _decoder(MessageOutcome))


def results(subscription_id: str) -> Call[Results]:
    return Call(Request("GET", subscription_path(subscription_id, "/results")), _decoder(Results))


def tell(subscription_id: str, tell: Mapping[str, Any] | None, more: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """PUT of when a subscription is told; DELETE for None and no more."""
    path = subscription_path(subscription_id, "/tell")
    if tell is None and not more:
        return Call(Request("DELETE", path), _decoder(dict[str, Any]))
    return Call(Request("PUT", path, (), _JSON, encode({**(tell or {}), **more})), _decoder(dict[str, Any]))


def told(subscription: Names, since: int | None, wait_s: float) -> Call[ToldPage]:
    """Some of what was told behind a number, or comes within some seconds."""
    params = params_of(subscription=subscription, since=since, poll="true", wait_s=str(wait_s))
    return Call(Request("GET", "/v1/told", params), _decoder(ToldPage))


def explain(subscription_id: str, message: str) -> Call[dict[str, Any]]:
    params = (("subscription", subscription_id), ("message", message))
    return Call(Request("GET", "/v1/explain", params), _decoder(dict[str, Any]))


def asking(path: str, row: Mapping[str, Any], limit: int) -> Call[dict[str, Any]]:
    """`/v1/match` and `/v1/preview`, which store nothing."""
    return Call(Request("POST", path, (("limit", str(limit)),), _JSON, encode(row)), _decoder(dict[str, Any]))


def facts(path: str) -> Call[dict[str, Any]]:
    """`/health`, `/ready`, `/v1/stream` and `/v1/topology`."""
    return Call(Request("GET", path), _decoder(dict[str, Any]))


def updates(filters: Params, snapshot: bool, since: str | None) -> Request:
    """Request for the stream of updates after a position."""
    more: Params = (("snapshot", "1"),) if snapshot and since is None else ()
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    if since is not None:
        headers["Last-Event-ID"] = since
    return Request("GET", "/v1/updates", (*filters, *more), headers)


def subscription_path(subscription_id: str, rest: str = "") -> str:
    """The path of a subscription, whatever characters its id has."""
    segment = quote(subscription_id, safe="")
    if segment in (".", ".."):
        segment = segment.replace(".", "%2E")  # else they name a folder
    return f"{SUBSCRIPTIONS}/{segment}{rest}"


def encode(value: Any) -> bytes:
    """Encode as JSON, values of NumPy and pandas like Python's. Raises InputError."""
    try:
        if isinstance(value, Mapping) and any(isinstance(part, bytes) for part in value.values()):
            raise TypeError("bytes have no form in JSON")  # the encoder would write them as base64
        return msgspec.json.encode(value, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("not_json", f"a row cannot be JSON: {error}; give it text, numbers, lists and dicts") from None


def with_id(row: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    """The row; with a new unique id if it has none."""
    return row if row.get(column) is not None else {**row, column: uuid.uuid4().hex}


def _identified(feature: Any) -> Any:
    named = not isinstance(feature, dict) or feature.get("id") is not None
    if named or (feature.get("properties") or {}).get("subscription_id") is not None:
        return feature
    return {**feature, "id": uuid.uuid4().hex}


def _replacing(replace: bool) -> Params:
    return (("replace", "true"),) if replace else ()


def params_of(**given: Any) -> Params:
    """Parameters that are given; several values are several parameters, and a region one."""
    found: list[tuple[str, str]] = []
    for name, value in given.items():
        if name == "region" and value is not None:
            found.append((name, ",".join(map(repr, map(float, value)))))
        elif isinstance(value, str | int):
            found.append((name, str(value)))
        elif value is not None:
            found += [(name, str(one)) for one in value]
    return tuple(found)


def _plain(value: Any) -> Any:
    found = plain_value(value)
    if found is value:
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    return found


def _decoder(of: type[T]) -> Callable[[Answer], T]:
    decode = msgspec.json.Decoder(of).decode
    return lambda answer: decode(answer.body)
