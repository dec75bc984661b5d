"""`POST /v1/messages`: one message, an array, or lines; `/v1/objects` in a stream of objects."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.client.rows import MessageOutcome
from gateway.live.living_versions import LivingVersions
from gateway.serve.access import caller_of
from gateway.serve.bodies import (
    NDJSON,
    LineOutcomes,
    array_of,
    encoded,
    encoded_outcomes,
    log_rows,
    media_type,
    one_line,
    read_body,
    rows_of,
)
from gateway.serve.door import Door
from gateway.serve.included import value_of
from gateway.serve.models import MessagesAnswer, ObjectsPage, ObjectVersion
from gateway.serve.problems import CONTENT, LATER, TOO_LARGE, ApiError, answer, problem_of, refusal
from gateway.serve.writer import PublishedRow
from matching.errors import EngineError

PATH = "/v1/messages"
#: Objects are ended below it.
OBJECTS = "/v1/objects/"
#: Objects of a page at most.
MOST_OBJECTS = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Schema of a message.
MESSAGE = {"$ref": "#/components/schemas/Message"}
_LINES = {
    "schema": {"description": "a Message a line"},
    "example": '{"id": "m1", "text": "ramen", "lon": 139.69, "lat": 35.68}\n',
}
#: The body, which the route reads itself.
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"anyOf": [MESSAGE, array_of(MESSAGE)]}},
            NDJSON: _LINES,
        },
    }
}


def routes(door: Door) -> APIRouter:
    router = APIRouter(tags=["messages"])

    @router.post(
        PATH,
        summary="Publish messages",
        response_model=MessageOutcome | MessagesAnswer,
        responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}}, **TOO_LARGE, **LATER},
        openapi_extra=BODY,
    )
    async def publish(
        request: Request,
        wait: Annotated[
            Literal["delivered"] | None, Query(description="answer once the updates of the messages are out")
        ] = None,
    ) -> Response:
        """Publish one message, an array of them, or lines (`application/x-ndjson`, with an outcome a line).

        What is answered with 200 is on disk. Bad rows of several get their reason code; the others are taken. A message
        with an `id` that was sent before is answered as before, and taken once.
        """
        return await log_messages(door, request, wait is not None)

    @router.delete(
        OBJECTS + "{object_id}",
        summary="End an object",
        response_model=MessageOutcome,
        responses={409: {"description": "The stream is one of messages", "content": CONTENT}, **LATER},
    )
    async def end_object(request: Request, object_id: str) -> Response:
        """End an object of a stream of objects, as a message with `deleted` does. Answered with 200, it is on disk."""
        _living(door)
        caller = caller_of(request)
        door.access.count_messages(caller, 1)
        row = msgspec.json.encode({"object_id": object_id, "deleted": True})
        (outcome,) = await log_rows(door, caller, [row], PublishedRow)
        if outcome["status"] == "refused":
            raise refusal(outcome)
        return encoded(outcome)

    @router.get(
        OBJECTS + "{object_id}",
        summary="Read an object",
        response_model=ObjectVersion,
        responses={404: {"description": "No such object lives", "content": CONTENT}, **LATER},
    )
    async def read_object(object_id: str) -> Response:
        """The living version of an object of a stream of objects."""
        seq = _living(door).get(object_id)
        if seq is None:
            what = f"object {object_id!r}: has no living version"
            raise ApiError(404, "unknown_object", what, "path", "check the id; it may have ended")
        return encoded((await _versions(door, [(object_id, seq)]))[0])

    @router.get(OBJECTS.rstrip("/"), summary="List the living objects", response_model=ObjectsPage, responses=LATER)
    async def list_objects(
        after: Annotated[int, Query(description="behind the version with this seq", ge=-1)] = -1,
        limit: Annotated[int, Query(ge=1, le=MOST_OBJECTS)] = 100,
        names: Annotated[list[str] | None, Query(alias="id", max_length=MOST_OBJECTS, description="only these")] = None,
    ) -> Response:
        """Living objects of a stream of objects, in the order of their versions."""
        found = _living(door).listed(after, limit, names)
        page = await _versions(door, found)
        return encoded({"objects": page, "after": found[-1][1] if len(found) == limit else None})

    return router


def _living(door: Door) -> LivingVersions:
    """The table of living objects. Raises ApiError in a stream of messages."""
    if door.wal.living is None:
        what = "this stream is one of messages, which nothing ends"
        raise ApiError(409, "no_objects", what, "path", "begin a folder with --objects")
    return door.wal.living


async def _versions(door: Door, named: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Versions of objects, as `ObjectVersion`, once all are on disk; the log is read in another thread."""
    while named and door.wal.durable_through < max(seq for _, seq in named):
        await asyncio.sleep(0.001)
    schema = door.admission.vocabulary.attributes

    def read() -> list[dict[str, Any]]:
        found = []
        for name, seq in named:
            one = door.wal.message(seq)
            moment = None if one.event_time_us is None else _EPOCH + timedelta(microseconds=one.event_time_us)
            found.append(
                {
                    "object_id": name,
                    "message_id": one.message_id,
                    "seq": seq,
                    "text": one.text,
                    "lon": one.lon,
                    "lat": one.lat,
                    "time": moment and moment.isoformat(),
                    "attributes": {each.name: value_of(each, one.attributes, schema) for each in schema.attributes},
                }  # fmt: skip
            )
        return found

    return await asyncio.to_thread(read)


async def log_messages(door: Door, request: Request, delivered: bool) -> Response:
    """Log the messages of a request, and answer it; `delivered`: once their updates are out. Raises ApiError."""
    caller = caller_of(request)
    if media_type(request) == NDJSON:
        return LineOutcomes(door, caller, PublishedRow, delivered, paced=True)
    body = await read_body(request)
    rows = await rows_of(body)
    door.access.count_messages(caller, 1 if rows is None else len(rows))
    outcomes = await log_rows(door, caller, [one_line(body)] if rows is None else rows, PublishedRow)
    if rows is None and outcomes[0]["status"] == "refused":
        raise refusal(outcomes[0])
    more: dict[str, Any] = {"delivered": await door.delivered(outcomes)} if delivered else {}
    if rows is None:
        return encoded(outcomes[0] | more)
    return await encoded_outcomes(outcomes, _counts(outcomes) | more)


class Publishing:
    """ASGI middleware before the framework, whose layers take a message as long as the rest: publishes without them.

    A request with any other query goes through the framework, which refuses what it does not know.
    """

    def __init__(self, app: ASGIApp, door: Door):
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope["query_string"] if scope["type"] == "http" else None
        if query not in (b"", b"wait=delivered") or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            response = await log_messages(self._door, Request(scope, receive), bool(query))
        except ApiError as problem:
            response = answer(problem)
        except EngineError as error:
            response = answer(problem_of(error))
        await response(scope, receive, send)


def _counts(outcomes: list[dict[str, Any]]) -> dict[str, int]:
    statuses = [one["status"] for one in outcomes]
    named = {"accepted": "accepted", "duplicates": "duplicate", "refused": "refused"}
    return {name: statuses.count(status) for name, status in named.items()}
