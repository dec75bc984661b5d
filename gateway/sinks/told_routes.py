"""Routes of what is told: `/v1/told`, the tellings in order, and `/v1/subscriptions/ID/tell`, when a subscription is.

Docstrings of routes are texts of the OpenAPI description.
"""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response

from gateway.serve.access import Caller, caller_of
from gateway.serve.bodies import NDJSON, encoded, media_type, read_body
from gateway.serve.door import Door
from gateway.serve.event_forms import EVENTS, LINES, Form
from gateway.serve.hub import HEARTBEAT_S
from gateway.serve.models import SUBSCRIPTION_TELL
from gateway.serve.paths import Id
from gateway.serve.problems import LATER, ApiError, refusal
from gateway.serve.subscription_routes import known
from gateway.serve.update_routes import HEADERS, StreamedEvents
from gateway.serve.writer import refused
from gateway.sinks.telling import Told
from gateway.sinks.webhooks.service import WebhookService
from matching.fields import Fault
from matching.kinds import KINDS
from matching.reasons import explain
from matching.telling import telling_of

#: Tellings that are read at a time.
_MOST = 200
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": SUBSCRIPTION_TELL}}}
}


def routes(door: Door, hooks: WebhookService) -> APIRouter:
    router = APIRouter(tags=["told"])

    @router.get(
        "/v1/told",
        summary="Follow what is told",
        response_class=Response,
        responses={
            200: {
                "description": "Events: `told`, `progress` and `gap`; of a poll one object",
                "content": {
                    "text/event-stream": {"schema": {"type": "string"}},
                    NDJSON: {"schema": {"type": "string"}},
                    "application/json": {"schema": {"$ref": "#/components/schemas/ToldPage"}},
                },
            },
            **LATER,
        },
    )
    async def follow(
        request: Request,
        since: Annotated[int | None, Query(description="the id of the last event; from now without", ge=0)] = None,
        subscription: Annotated[list[str] | None, Query(description="only of these subscriptions")] = None,
        poll: Annotated[bool, Query(description="answer once there are some, as one object, and end")] = False,
        wait_s: Annotated[float, Query(description="of a poll without any", ge=0, le=60)] = 10.0,
        last_event_id: Annotated[int | None, Header(description="as `since`, and goes before it", ge=0)] = None,
    ) -> Response:
        """What subscriptions with `tell` are told, in the order in which it was decided: updates and digests.

        SSE with `Accept: text/event-stream`, else lines of JSON. An event has a number for its id; a client that
        connects again with the last one gets every later telling once. A `gap` says that older ones are not kept.
        """
        door.refuse_if_closing()
        caller = caller_of(request)
        form = EVENTS if "text/event-stream" in request.headers.get("accept", "") else LINES
        wanted = None if subscription is None else frozenset(subscription)
        after = since if last_event_id is None else last_event_id
        if poll:
            with door.access.stream(caller):
                page = await page_of(after, wanted, caller, wait_s)
            door.access.refuse_if_ended(caller)
            return encoded(page, headers=HEADERS)
        return StreamedEvents(events(form, after, wanted, caller), form, door.access, caller, None)

    async def page_of(
        after: int | None, wanted: frozenset[str] | None, caller: Caller, wait_s: float
    ) -> dict[str, Any]:
        number = hooks.dispatcher.told if after is None else after
        if hooks.dispatcher.told <= number:
            await hooks.ask(lambda: hooks.told_since(number, wait_s))
        first, found = await hooks.ask(lambda: hooks.told(number, _MOST))
        told = [as_event(at, one) for at, one in found if is_wanted(one, wanted, caller)]
        through = found[-1][0] if found else max(number, first - 1)
        return {"told": told, "through": through, "gap": lost(number, first) if number + 1 < first else None}

    async def events(
        form: Form, after: int | None, wanted: frozenset[str] | None, caller: Caller
    ) -> AsyncIterator[bytes]:
        is_valid = door.access.validity(caller)
        yield form.hint()
        number = hooks.dispatcher.told if after is None else after
        while is_valid() and not door.closing:
            first, found = await hooks.ask(lambda number=number: hooks.told(number, _MOST))
            if number + 1 < first:
                yield form.named("gap", lost(number, first), None)
                number = first - 1
                continue
            for number, one in found:
                if is_wanted(one, wanted, caller):
                    yield form.named("told", as_event(number, one), str(number))
            if not found:
                yield form.named("progress", {"through": number}, str(number))
                await hooks.ask(lambda number=number: hooks.told_since(number, HEARTBEAT_S))
        yield form.hint()

    @router.get("/v1/subscriptions/{subscription_id}/tell", summary="When a subscription is told")
    async def read(request: Request, subscription_id: Id) -> dict[str, Any]:
        """How it is told now (`tell`; null: as its updates come), how many updates are held, and when they are due."""
        number = known(door, subscription_id, caller_of(request)).number

        async def find() -> dict[str, Any]:
            teller = hooks.dispatcher.teller
            standing, tell = teller.standings.get(subscription_id), teller.tell_of(subscription_id, number)
            held, due_s = (0, None) if standing is None else (standing.held, standing.due_s)
            return {"subscription_id": subscription_id, "tell": tell, "held": held, "due_s": due_s}

        return await hooks.ask(find)

    @router.put(
        "/v1/subscriptions/{subscription_id}/tell", summary="Change when a subscription is told", openapi_extra=_BODY
    )
    async def put(request: Request, subscription_id: Id) -> dict[str, Any]:
        """Set its `tell` in place of the column, until the subscription is replaced. Matching goes on unchanged."""
        door.refuse_if_closing()
        number = known(door, subscription_id, caller_of(request)).number
        media_type(request)
        try:
            tell = msgspec.json.decode(await read_body(request))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ApiError(400, "not_json", f"the body is no JSON ({error})"[:200], "body") from error
        if isinstance(why := telling_of(tell), str):
            raise refusal(refused("bad_tell", explain("bad_tell", KINDS, why), Fault("tell", tell)))
        await hooks.ask(lambda: hooks.tell(subscription_id, number, tell))
        return await read(request, subscription_id)

    @router.delete("/v1/subscriptions/{subscription_id}/tell", summary="Tell a subscription by its column again")
    async def delete(request: Request, subscription_id: Id) -> dict[str, Any]:
        """Forget what was set here."""
        door.refuse_if_closing()
        number = known(door, subscription_id, caller_of(request)).number
        await hooks.ask(lambda: hooks.tell(subscription_id, number, None))
        return await read(request, subscription_id)

    return router


def is_wanted(told: Told, wanted: frozenset[str] | None, caller: Caller) -> bool:
    """Whether a caller sees a telling, and follows its subscription."""
    return caller.sees(told.owner) and (wanted is None or told.subscription_id in wanted)


def lost(number: int, first: int) -> dict[str, Any]:
    """A gap: tellings behind a number are not kept; the first that is."""
    do = "read /v1/updates of that time, which has every update"
    return {"reason": "lost", "after": str(number), "before": str(first), "detail": "older ones are not kept", "do": do}


def as_event(number: int, told: Told) -> dict[str, Any]:
    """A telling as JSON of an event."""
    updates = msgspec.Raw(b"[" + told.rows.rstrip(b"\n").replace(b"\n", b",") + b"]")
    return {"number": number, "told_s": told.told_s, "told": msgspec.Raw(told.head), "updates": updates}
