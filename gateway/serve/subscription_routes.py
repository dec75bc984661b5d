"""`/v1/subscriptions`: create, read, replace, delete, list, and many at once by lines."""

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response

from gateway.client.rows import SubscriptionOutcome
from gateway.live.admission import whole_row
from gateway.serve.access import Caller, caller_of
from gateway.serve.asking import Asking
from gateway.serve.bodies import (
    NDJSON,
    LineOutcomes,
    array_of,
    encoded,
    encoded_outcomes,
    log_rows,
    media_type,
    read_body,
    rows_of,
)
from gateway.serve.door import Door
from gateway.serve.etags import IfTagged
from gateway.serve.geojson import GEOJSON, collection_of, columns_of, features_of
from gateway.serve.keys import MOST_OWNER
from gateway.serve.kind_names import KindNames, refuse_unknown_kinds
from gateway.serve.models import Subscription, SubscriptionsPage
from gateway.serve.paths import Id
from gateway.serve.problems import LATER, TOO_LARGE, ApiError, refusal
from gateway.serve.regions import box_of, meet
from gateway.serve.registry import EXPIRES, Registered, expiry_us
from gateway.serve.writer import Outcome, Row, Subscribe, Unsubscribe, precondition, refused
from matching.errors import InputError
from matching.fields import Fault, identifier
from matching.kinds import KINDS
from matching.reasons import explain
from matching.validate import decode_object

#: Subscriptions of a page at most.
MOST_LISTED = 1_000
#: Column of a request in place of `expires_at`: seconds.
_TTL = "ttl_s"
_MOST_TTL_S = 10 * 365 * 86_400.0

_SUBSCRIPTION = {"$ref": "#/components/schemas/Subscription"}
_LINES = {
    "schema": {"description": "a Subscription a line, or the end of one"},
    "example": '{"subscription_id": "s1", "kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36]}\n'
    '{"unsubscribe": "s0"}\n',
}
_FEATURES = {
    "type": "FeatureCollection",
    "features": [
        {
            "type": "Feature",
            "id": "s1",
            "geometry": {"type": "Point", "coordinates": [139.7, 35.7]},
            "properties": {"kind": "knn", "keywords": "ramen", "k": 3},
        }
    ],
}
#: A body with one subscription.
SUBSCRIPTION_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": _SUBSCRIPTION}}}
}
_ANY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"anyOf": [_SUBSCRIPTION, array_of(_SUBSCRIPTION)]}},
            NDJSON: _LINES,
            GEOJSON: {"schema": {"type": "object"}, "example": _FEATURES},
        },
    }
}


def routes(door: Door, asking: Asking) -> APIRouter:
    router = APIRouter(tags=["subscriptions"])

    async def answer(outcome: Outcome, caller: Caller) -> Response:
        """The answer for one subscription, with what it would have matched, if there is room for the question."""
        one = door.registry.get(outcome.get("subscription_id") or "")
        if outcome["status"] in ("created", "replaced") and one is not None:
            with suppress(ApiError, InputError):
                outcome |= await door.questions.answer(caller.name, "expected", asking.expected, one)
        return _answer(outcome)

    @router.post(
        "/v1/subscriptions",
        summary="Create subscriptions",
        status_code=201,
        response_model=SubscriptionOutcome | list[SubscriptionOutcome],
        responses={
            200: {
                "model": SubscriptionOutcome | list[SubscriptionOutcome],
                "description": "Lines or an array, or it exists already",
                "content": {NDJSON: {"schema": {"type": "string"}}},
            },
            **TOO_LARGE,
            **LATER,
        },
        openapi_extra=_ANY,
    )
    async def create(
        request: Request,
        replace: Annotated[bool, Query(description="replace those of the same id, in place of refusing")] = False,
    ) -> Response:
        """Create a subscription, an array of them, or lines (with an outcome a line; `{"unsubscribe": "ID"}` ends one).

        A FeatureCollection of GeoJSON has an outcome a feature; its geometries are shapes, its properties columns.
        What is answered is on disk, and counts before the next message. A subscription that is sent again is answered
        `unchanged`.
        """

        def row_of(data: bytes) -> Row | Outcome:
            return _row_of(data, replace, caller)

        def row_of_feature(data: bytes) -> Row | Outcome:
            columns, outcome = columns_of(data)
            return outcome or _subscribe_of(columns, replace, caller)

        caller, media = caller_of(request), media_type(request, GEOJSON)
        if media == NDJSON:
            return LineOutcomes(door, caller, row_of)
        body = await read_body(request)
        if media == GEOJSON:
            rows = await features_of(body)
            outcomes = await log_rows(door, caller, rows, row_of_feature)
        else:
            rows = await rows_of(body)
            outcomes = await log_rows(door, caller, [body] if rows is None else rows, row_of)
        if rows is None:
            return await answer(outcomes[0], caller)
        return await encoded_outcomes(outcomes)

    @router.get(
        "/v1/subscriptions",
        summary="List active subscriptions",
        response_model=SubscriptionsPage,
        responses={200: {"content": {GEOJSON: {"schema": {"type": "object"}}}}, **LATER},
    )
    async def list_active(
        request: Request,
        after: Annotated[int, Query(description="cursor: `after` of the page before", ge=-1)] = -1,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
        kind: KindNames = None,
        prefix: Annotated[str, Query(description="only ids that begin so", max_length=512)] = "",
        names: Annotated[list[str] | None, Query(alias="id", max_length=MOST_LISTED, description="only these")] = None,
        owner: Annotated[str | None, Query(description="only those of this owner", max_length=MOST_OWNER)] = None,
        region: Annotated[
            str | None, Query(description="only shapes whose box meets west,south,east,north in degrees")
        ] = None,
        form: Annotated[
            Literal["json", "geojson"] | None, Query(alias="format", description="as the header Accept, before it")
        ] = None,
    ) -> Response:
        """Active subscriptions in the order of registration; with the key of an owner those of that owner.

        With `Accept: application/geo+json` a FeatureCollection that can be posted again.
        """
        refuse_unknown_kinds(kind)
        caller, box = caller_of(request), None if region is None else box_of(region)

        def is_wanted(one: Registered) -> bool:
            wanted = one.number > after and (not kind or one.kind in kind) and one.subscription_id.startswith(prefix)
            wanted = wanted and caller.sees(one.owner) and owner in (None, one.owner)
            return wanted and (box is None or meet(one.box, box))

        def first_wanted(share: Callable[[], None]) -> list[Registered]:
            found: list[Registered] = []
            for one in door.registry.listed(names):
                share()
                if is_wanted(one):
                    found.append(one)
                    if len(found) > limit:
                        break
            return found

        found = await door.questions.answer(caller.name, "list", first_wanted)
        page = found[:limit]
        cursor = page[-1].number if len(found) > limit else None
        if form == "geojson" or (form is None and GEOJSON in request.headers.get("accept", "")):
            return encoded(collection_of([one.columns for one in page], cursor), media=GEOJSON)
        return encoded({"subscriptions": [one.columns for one in page], "after": cursor})

    @router.get(
        "/v1/subscriptions/{subscription_id}",
        summary="Read a subscription",
        response_model=Subscription,
        responses={304: {"description": "It has an entity tag of If-None-Match"}},
    )
    async def read(request: Request, subscription_id: Id, conditions: IfTagged) -> Response:
        """The columns of an active subscription; the ETag is in the headers."""
        one = known(door, subscription_id, caller_of(request))
        if unmet := precondition(subscription_id, one.etag, conditions):
            if conditions._replace(none_match=None).hold(one.etag):
                return Response(status_code=304, headers={"ETag": one.etag})
            raise refusal(unmet)
        return encoded(one.columns, headers={"ETag": one.etag})

    @router.put(
        "/v1/subscriptions/{subscription_id}",
        summary="Create or replace a subscription",
        response_model=SubscriptionOutcome,
        responses={201: {"model": SubscriptionOutcome, "description": "Created"}, **TOO_LARGE, **LATER},
        openapi_extra=SUBSCRIPTION_BODY,
    )
    async def put(
        request: Request,
        subscription_id: Id,
        conditions: IfTagged,
    ) -> Response:
        """Create a subscription, or replace the active one of this id."""
        media_type(request)
        body, caller = await read_body(request), caller_of(request)
        row = _row_of(body, True, caller, subscription_id)
        if isinstance(row, Subscribe):
            row = row._replace(conditions=conditions)
        return await answer(row if isinstance(row, dict) else (await door.submit([row], len(body), caller))[0], caller)

    @router.delete(
        "/v1/subscriptions/{subscription_id}",
        summary="End a subscription",
        response_model=SubscriptionOutcome,
        responses=LATER,
    )
    async def delete(request: Request, subscription_id: Id, conditions: IfTagged) -> Response:
        """End a subscription before the next message."""
        caller = caller_of(request)
        row = Unsubscribe(subscription_id, conditions, caller.owner)
        return _answer((await door.submit([row], len(subscription_id), caller))[0], "path")

    return router


def known(door: Door, subscription_id: str, caller: Caller) -> Registered:
    """An active subscription that the caller may see. Raises ApiError."""
    one = door.registry.get(subscription_id)
    if one is None or not caller.sees(one.owner):
        raise not_active(subscription_id)
    return one


def not_active(subscription_id: str) -> ApiError:
    what = f"subscription {subscription_id!r}: is not active"
    return refusal(refused("unknown_subscription", what, Fault("subscription_id", subscription_id)), "path")


def _row_of(data: bytes, replace: bool, caller: Caller, subscription_id: str | None = None) -> Row | Outcome:
    """A row as the writer takes it, or its refusal; with an id of its path it must have no other."""
    found = decode_object(data)
    if isinstance(found, str):
        return refused(found, explain(found, KINDS), whole_row(data))
    if "unsubscribe" in found and subscription_id is None:
        name = identifier(found["unsubscribe"])
        if len(found) > 1 or not name:
            what = "a row with unsubscribe has an id there, and no other column"
            return refused("bad_id", what, Fault("unsubscribe", found["unsubscribe"]))
        return Unsubscribe(name, owner=caller.owner)
    if subscription_id is not None:
        name = identifier(found.get("subscription_id"))
        if name not in ("", subscription_id):
            what = f"subscription_id is {name!r}, and {subscription_id!r} in the path"
            return refused("bad_id", what, Fault("subscription_id", found["subscription_id"]))
        found["subscription_id"] = subscription_id
    return _subscribe_of(found, replace, caller)


def _subscribe_of(columns: dict[str, Any], replace: bool, caller: Caller) -> Row | Outcome:
    """A subscription as the writer takes it, with an id if it has none."""
    made = columns.get("subscription_id") is None
    if made:
        columns["subscription_id"] = uuid.uuid4().hex
    return _with_expiry(columns) or Subscribe(columns, replace, owner=caller.owner, made=made)


def _with_expiry(columns: dict[str, Any]) -> Outcome | None:
    """Write `ttl_s` as `expires_at`; returns a refusal if neither can be read."""
    seconds = columns.pop(_TTL, None)
    if seconds is None and columns.get(EXPIRES) is None:
        return None
    now_us = round(time.time() * 1e6)
    if seconds is not None:
        whole = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= _MOST_TTL_S
        if not whole or columns.get(EXPIRES) is not None:
            what = f"{_TTL} must be a number of seconds above 0, without {EXPIRES}"
            return refused("bad_time", what, Fault(_TTL, seconds))
        columns[EXPIRES] = datetime.fromtimestamp(now_us / 1e6 + seconds, UTC).isoformat()
    else:
        expires_us = expiry_us(columns[EXPIRES])
        if expires_us is None or expires_us <= now_us:
            what = f"{EXPIRES} must be a time in the future, such as 2030-01-01T00:00:00Z"
            return refused("bad_time", what, Fault(EXPIRES, columns[EXPIRES]))
    return None


def _answer(outcome: Outcome, where: str = "body") -> Response:
    """The answer for one subscription. Raises ApiError for a refusal; `where` is what names the subscription."""
    if outcome["status"] == "refused":
        raise refusal(outcome, "header If-Match" if outcome["reason"] == "precondition_failed" else where)
    headers = {"ETag": outcome["etag"]} if "etag" in outcome else {}
    if outcome["status"] == "created":
        headers["Location"] = f"/v1/subscriptions/{quote(outcome['subscription_id'], safe='')}"
    return encoded(outcome, 201 if outcome["status"] == "created" else 200, headers)
