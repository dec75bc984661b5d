"""Routes of `/v1/webhooks`: create, list, read, change and delete; their deliveries, dead letters and secrets.

`gateway.commands.serve` adds them to the app. Docstrings of models and routes here are texts of the OpenAPI
description.
"""

import json
import re
import time
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.serve.access import Caller, caller_of
from gateway.serve.bodies import encoded, media_type, read_body
from gateway.serve.door import Door
from gateway.serve.problems import ApiError
from gateway.serve.subscription_routes import known
from gateway.serve.update_parts import BEGINNING, END, Foreign, Position
from gateway.serve.update_routes import position_of
from gateway.sinks.webhooks.model import (
    BATCH_BYTES,
    BATCH_UPDATES,
    MOST_BATCH_BYTES,
    MOST_BATCH_UPDATES,
    Webhook,
)
from gateway.sinks.webhooks.service import WebhookService, first_due_s, new_webhook_id
from gateway.sinks.webhooks.signing import new_secret
from matching.filter_fields import include_refused
from matching.telling import telling_of
from matching.window import UNITS_S

_EVERY = re.compile(r"(\d{1,6})([smhd])")
_MOST_EVERY_S = 7 * 86_400
_SHOWN = {
    "id": "wh_5f0c2b9d01e7a384",
    "url": "https://example.com/hook",
    "subscription_id": "s1",
    "owner": None,
    "state": "active",
    "batch_updates": 100,
    "batch_bytes": 262_144,
    "every": None,
    "tell": None,
    "include": None,
    "position": "17-0",
    "created_s": 1_790_000_000,
    "failures": 0,
    "why": None,
    "deliveries": {"accepted": 3, "delivered": 2, "waiting": 1, "dead": 0},
    "updates": {"accepted": 120, "delivered": 110, "waiting": 10, "dead": 0},
}
_MADE = {**_SHOWN, "secret": "whsec_..."}
_DELIVERY = {
    "id": "wh_5f0c2b9d01e7a384_17-0",
    "number": 12,
    "status": "dead",
    "attempts": 10,
    "updates": 1,
    "first": "17-0",
    "last": "17-0",
    "created_s": 1_790_000_000,
    "next_attempt_s": None,
    "ended_s": 1_790_040_000.5,
    "last_error": {"reason": "status", "detail": "it answered with 500"},
}


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NewWebhook(_Given):
    """A webhook to make: for a subscription, or for all subscriptions of an owner."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"url": "https://example.com/hook", "subscription_id": "s1"},
                {"url": "https://example.com/hook", "owner": "shop", "every": "10m"},
            ]
        }
    )
    url: str
    subscription_id: str | None = Field(default=None, min_length=1, max_length=512)
    owner: str | None = Field(default=None, description="by default the key's owner", min_length=1, max_length=200)
    since: str | None = Field(default=None, description="behind which update it begins, or `begin`; now without")
    batch_updates: int = Field(default=BATCH_UPDATES, ge=1, le=MOST_BATCH_UPDATES)
    batch_bytes: int = Field(default=BATCH_BYTES, ge=1, le=MOST_BATCH_BYTES, description="of the updates of a batch")
    every: str | None = Field(
        default=None, description="a digest at a time, such as 30s, 10m, 1h; without, as they come"
    )
    tell: dict[str, Any] | None = Field(
        default=None, description="`at` and `zone`: digests at set times; `quiet`: hours in which nothing is taken"
    )
    include: bool | list[str] | None = Field(
        default=None, description="attributes that updates carry, true for all; without, as their subscriptions say"
    )


class Changes(_Given):
    """What changes of a webhook; the rest stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"state": "paused"}, {"every": "1h"}]})
    url: str | None = None
    state: Literal["active", "paused"] | None = None
    batch_updates: int | None = Field(default=None, ge=1, le=MOST_BATCH_UPDATES)
    batch_bytes: int | None = Field(default=None, ge=1, le=MOST_BATCH_BYTES)
    every: str | None = Field(default=None, description="null: as they come")
    tell: dict[str, Any] | None = Field(default=None, description="null: at any time")
    include: bool | list[str] | None = Field(default=None, description="null: as the subscriptions say")


class Numbers(_Given):
    """Which dead deliveries to deliver again; all without `numbers`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"numbers": [12]}]})
    numbers: list[int] | None = Field(default=None, max_length=1_000)


class WebhookShown(BaseModel):
    """A webhook, with its counts: accepted = delivered + waiting + dead."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SHOWN]})
    id: str
    url: str
    subscription_id: str | None
    owner: str | None
    state: Literal["active", "paused", "disabled"]
    batch_updates: int
    batch_bytes: int
    every: str | None
    tell: dict[str, Any] | None
    include: bool | list[str] | None
    position: str = Field(description="updates up to here are accepted")
    created_s: int
    failures: int = Field(description="attempts that failed since the last one that did not")
    why: str | None = Field(description="it is disabled, or updates were lost")
    deliveries: dict[str, int]
    updates: dict[str, int]


class WebhookMade(WebhookShown):
    """A webhook with its secret, which is shown now and never again."""

    model_config = ConfigDict(json_schema_extra={"examples": [_MADE]})
    secret: str


class WebhookList(BaseModel):
    """The webhooks that the caller sees."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"webhooks": [_SHOWN]}]})
    webhooks: list[WebhookShown]


class DeliveryShown(BaseModel):
    """A delivery; its `id` is the header `webhook-id`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_DELIVERY]})
    id: str
    number: int
    status: Literal["waiting", "delivered", "dead"]
    attempts: int
    updates: int
    first: str
    last: str
    created_s: int
    next_attempt_s: float | None
    ended_s: float | None
    last_error: dict[str, str] | None


class DeliveryList(BaseModel):
    """Deliveries, the newest first."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"deliveries": [_DELIVERY], "before": None}]})
    deliveries: list[DeliveryShown]
    before: int | None = Field(description="cursor of the next page; null at the end")


class Redelivered(BaseModel):
    """How many deliveries wait again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"redelivered": 1}]})
    redelivered: int


Model = TypeVar("Model", bound=BaseModel)
Id = Annotated[str, Path(description="its id", max_length=100)]


def _body(model: type[BaseModel], required: bool = True) -> dict[str, Any]:
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": model.model_json_schema()}}}
    }


def routes(door: Door, hooks: WebhookService) -> APIRouter:
    router = APIRouter(tags=["webhooks"])

    @router.post(
        "/v1/webhooks",
        summary="Create a webhook",
        status_code=201,
        response_model=WebhookMade,
        openapi_extra=_body(NewWebhook),
    )
    async def create(request: Request) -> Response:
        """Deliver the updates of a subscription, or of an owner's subscriptions, to a URL.

        The answer has the secret that signs them; it is not shown again.
        """
        door.refuse_if_closing()
        given = await _read(request, NewWebhook)
        hook = _made(door, given, caller_of(request), hooks.dispatcher.now_s())
        await hooks.ask(lambda: hooks.create(hook))
        answer = _shown(hook) | {"secret": hook.secret}
        return encoded(answer, 201, {"Location": f"/v1/webhooks/{hook.webhook_id}"})

    @router.get("/v1/webhooks", summary="List webhooks", response_model=WebhookList)
    async def list_all(request: Request) -> Response:
        """Webhooks in the order in which they were made; with the key of an owner those of that owner."""
        owner = caller_of(request).owner

        async def find() -> list[dict[str, Any]]:
            found = [line.hook for line in hooks.dispatcher.lines.values()]
            return [_shown(hook) for hook in found if owner in (None, hook.made_by)]

        return encoded({"webhooks": await hooks.ask(find)})

    @router.get("/v1/webhooks/{webhook_id}", summary="Read a webhook", response_model=WebhookShown)
    async def read(request: Request, webhook_id: Id) -> Response:
        """A webhook with its counts."""
        owner = caller_of(request).owner

        async def find() -> dict[str, Any]:
            return _shown(hooks.line(webhook_id, owner).hook)

        return encoded(await hooks.ask(find))

    @router.patch(
        "/v1/webhooks/{webhook_id}",
        summary="Change a webhook",
        response_model=WebhookShown,
        openapi_extra=_body(Changes),
    )
    async def change(request: Request, webhook_id: Id) -> Response:
        """Change some of its columns. `"state": "active"` resumes one that is paused or disabled: nothing is lost."""
        door.refuse_if_closing()
        owner, given = caller_of(request).owner, await _read(request, Changes)
        changes = given.model_dump(exclude_unset=True)
        if "every" in changes:
            changes["every_s"] = _every_s(changes.pop("every"))
        if "tell" in changes:
            changes["tell"] = _tell(changes["tell"])
        if "include" in changes:
            changes["include"] = _include(door, changes["include"])
        if any(value is None for value in changes.values()):
            detail = "null is for `every`, `tell` and `include` alone"
            raise ApiError(422, "bad_webhook", detail, "body", "leave the others out")
        return encoded(_shown(await hooks.ask(lambda: hooks.update(webhook_id, owner, changes))))

    @router.delete("/v1/webhooks/{webhook_id}", summary="Delete a webhook", status_code=204)
    async def delete(request: Request, webhook_id: Id) -> Response:
        """End a webhook; what waits is dropped."""
        owner = caller_of(request).owner
        await hooks.ask(lambda: hooks.delete(webhook_id, owner))
        return Response(status_code=204)

    @router.get("/v1/webhooks/{webhook_id}/deliveries", summary="List deliveries", response_model=DeliveryList)
    async def deliveries(
        request: Request,
        webhook_id: Id,
        status: Annotated[Literal["waiting", "delivered", "dead"] | None, Query(description="only these")] = None,
        before: Annotated[int | None, Query(description="cursor: `before` of the page before", ge=0, lt=2**63)] = None,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    ) -> Response:
        """Those that wait, dead ones, and the last delivered ones, with their attempts and last errors."""
        owner = caller_of(request).owner
        found = await hooks.ask(lambda: hooks.deliveries(webhook_id, owner, status, before, limit + 1))
        cursor = found[limit - 1].number if len(found) > limit else None
        return encoded({"deliveries": [one.shown() for one in found[:limit]], "before": cursor})

    @router.post(
        "/v1/webhooks/{webhook_id}/redeliver",
        summary="Deliver dead letters again",
        response_model=Redelivered,
        openapi_extra=_body(Numbers, required=False),
    )
    async def redeliver(request: Request, webhook_id: Id) -> Response:
        """Dead deliveries wait again, with their ids and a new count of attempts."""
        door.refuse_if_closing()
        owner = caller_of(request).owner
        empty = request.headers.get("content-length", "0") == "0" and "content-type" not in request.headers
        given = Numbers() if empty else await _read(request, Numbers)
        count = await hooks.ask(lambda: hooks.redeliver(webhook_id, owner, given.numbers))
        return encoded({"redelivered": count})

    @router.post("/v1/webhooks/{webhook_id}/rotate", summary="Get a new secret", response_model=WebhookMade)
    async def rotate(request: Request, webhook_id: Id) -> Response:
        """A new secret signs from now on; for a day the old one signs, too."""
        door.refuse_if_closing()
        owner = caller_of(request).owner
        hook = await hooks.ask(lambda: hooks.rotate(webhook_id, owner))
        return encoded(_shown(hook) | {"secret": hook.secret})

    return router


async def _read(request: Request, model: type[Model]) -> Model:
    """A body of one object. Raises ApiError."""
    media_type(request)
    try:
        found = msgspec.json.decode(await read_body(request))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(400, "not_json", f"the body is no JSON ({error})"[:200], "body") from error
    try:
        return model.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = " ".join(["body", *map(str, first["loc"])])
        raise ApiError(422, "bad_webhook", first["msg"], where[:200], "see /openapi.json") from error


def _made(door: Door, given: NewWebhook, caller: Caller, now_s: float) -> Webhook:
    """A new webhook from the body of a request, by the dispatcher's clock. Raises ApiError."""
    if given.subscription_id is not None and given.owner is not None:
        raise ApiError(422, "bad_webhook", "it is for a subscription or for an owner", "body", "leave one out")
    owner = given.owner
    if given.subscription_id is not None:
        known(door, given.subscription_id, caller)
    else:
        owner = owner or caller.owner
        if owner is None:
            raise ApiError(422, "bad_webhook", "neither subscription_id nor owner is given", "body", "give one of them")
        if not caller.sees(owner):
            raise ApiError(403, "missing_scope", f"this key is of the owner {caller.owner!r} alone", "body owner")
    head = door.hub.log.head
    position = position_of(given.since, "body since", door.wal.tag_of) or head
    if isinstance(position, Foreign):
        raise ApiError(422, "bad_position", "it is of another stream", "body since", "leave it out, or begin")
    if position > head and position != Position(head.boundary, END):
        raise ApiError(422, "bad_position", "the stream has not come so far", "body since", "leave it out, or begin")
    every_s, tell = _every_s(given.every), _tell(given.tell)
    if every_s and tell:
        raise ApiError(422, "bad_webhook", "it has every and tell", "body", "leave one out")
    return Webhook(
        webhook_id=new_webhook_id(),
        url=given.url,
        subscription_id=given.subscription_id,
        owner=owner,
        made_by=caller.owner,
        created_s=int(time.time()),
        secret=new_secret(),
        position=max(position, BEGINNING),
        batch_updates=given.batch_updates,
        batch_bytes=given.batch_bytes,
        every_s=every_s,
        tell=tell,
        include=_include(door, given.include),
        due_s=first_due_s(tell, time.time()) if tell else now_s + every_s,
    )


def _every_s(text: str | None) -> int:
    """Seconds of `10m`; 0 for None. Raises ApiError."""
    if text is None:
        return 0
    match = _EVERY.fullmatch(text)
    seconds = int(match[1]) * UNITS_S[match[2]] if match else 0
    if not 1 <= seconds <= _MOST_EVERY_S:
        raise ApiError(422, "bad_webhook", f"{text[:60]!r} is no time from 1s to 7d", "body every", "such as 10m")
    return seconds


def _tell(given: dict[str, Any] | None) -> str:
    """`tell` as it is stored; "" for None. Raises ApiError."""
    if not given:
        return ""
    found = telling_of(given)
    if not isinstance(found, str) and not given.keys() <= {"at", "zone", "quiet"}:
        found = "tell of a webhook has at, zone and quiet; the others are for subscriptions"
    if isinstance(found, str):
        raise ApiError(422, "bad_webhook", found, "body tell", 'such as {"at": ["08:00"], "zone": "Europe/Berlin"}')
    return json.dumps(given)


def _include(door: Door, given: bool | list[str] | None) -> str:
    """`include` as it is stored; "" for None. Raises ApiError."""
    if refused := include_refused(given, door.admission.vocabulary):
        raise ApiError(422, refused.reason, refused.detail, "body include", "name attributes that are declared")
    return "" if given is None else json.dumps(given)


def _shown(hook: Webhook) -> dict[str, Any]:
    """A webhook as JSON of an answer, without its secret."""
    return {
        "id": hook.webhook_id,
        "url": hook.url,
        "subscription_id": hook.subscription_id,
        "owner": hook.owner,
        "state": hook.state,
        "batch_updates": hook.batch_updates,
        "batch_bytes": hook.batch_bytes,
        "every": f"{hook.every_s}s" if hook.every_s else None,
        "tell": json.loads(hook.tell) if hook.tell else None,
        "include": hook.included,
        "position": hook.position.text if hook.position.index < END else str(hook.position.boundary),
        "created_s": hook.created_s,
        "failures": hook.failures,
        "why": hook.why or None,
        "deliveries": hook.deliveries.shown(),
        "updates": hook.updates.shown(),
    }
