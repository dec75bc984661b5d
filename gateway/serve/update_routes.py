"""`GET /v1/updates`: updates as they come, as Server-Sent Events or lines of JSON, and by long poll."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.serve.access import Access, Caller, caller_of
from gateway.serve.asking import Asking
from gateway.serve.bodies import NDJSON
from gateway.serve.door import Door
from gateway.serve.event_forms import EVENTS, LINES, Form
from gateway.serve.hub import Interest, Snapshot
from gateway.serve.keys import MOST_OWNER
from gateway.serve.kind_names import KindNames, refuse_unknown_kinds
from gateway.serve.problems import LATER, ApiError, refusal
from gateway.serve.questions import Turn
from gateway.serve.regions import box_of
from gateway.serve.server import WRITE
from gateway.serve.standing import results_at
from gateway.serve.update_parts import BEGINNING, END, Foreign, Position
from gateway.serve.writer import refused
from matching.fields import Fault

_POSITION = re.compile(r"(-1|\d{1,18})(?:-(\d{1,19})(?:-([0-9a-f]{8}))?)?")
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def routes(door: Door, asking: Asking) -> APIRouter:
    router = APIRouter(tags=["updates"])

    def snapshot_of(interest: Interest, turn: Turn) -> Snapshot:
        """What is in the results of followed subscriptions, those with messages of the region."""

        async def snapshot(until: Position) -> AsyncIterator[dict[str, Any]]:
            names = door.hub.names_of(interest)
            with closing(turn):
                async for one in results_at(door.hub, door.registry, asking, names, until, turn, door.versions):
                    rows = [row for row in one["results"] if interest.has_place(row["lon"], row["lat"])]
                    yield one | {"results": rows}

        return snapshot

    @router.get(
        "/v1/updates",
        summary="Follow updates",
        response_class=Response,
        responses={
            200: {
                "description": "Events: updates, `snapshot`, `progress` and `gap`",
                "content": {
                    "text/event-stream": {
                        "schema": {"type": "string"},
                        "example": 'id: 17-0\ndata: {"id": "17-0", "change": "match", ...}\n\n'
                        'id: 17-1\nevent: progress\ndata: {"through": 17}\n\n',
                    },
                    NDJSON: {"schema": {"type": "string"}},
                },
            },
            **LATER,
        },
    )
    async def follow(
        request: Request,
        since: Annotated[
            str | None,
            Query(description="the id of the last event that was read, a message number, or `begin`; from now without"),
        ] = None,
        subscription: Annotated[
            list[str] | None, Query(description="only of these subscriptions, active or ended")
        ] = None,
        kind: KindNames = None,
        owner: Annotated[
            str | None, Query(description="only of this owner's subscriptions", max_length=MOST_OWNER)
        ] = None,
        region: Annotated[
            str | None, Query(description="only of messages within west,south,east,north in degrees")
        ] = None,
        snapshot: Annotated[
            bool, Query(description="first what the results have now, unless the client has a last id")
        ] = False,
        poll: Annotated[bool, Query(description="answer once there are updates, and end")] = False,
        limit: Annotated[int, Query(description="of a poll, about", ge=1, le=100_000)] = 1_000,
        wait_s: Annotated[float, Query(description="of a poll without updates", ge=0, le=60)] = 10.0,
        last_event_id: Annotated[str | None, Header(description="as `since`, and goes before it")] = None,
    ) -> Response:
        """Updates of all subscriptions, or of some: SSE with `Accept: text/event-stream`, else lines of JSON.

        Each event has the id of its place in the stream, which never changes, and is of no other stream; a client that
        connects again with its last id gets every later update once. With `snapshot` a `snapshot` event comes first for
        each subscription, as /v1/subscriptions/ID/results answers, as of the `progress` behind them. A `progress` event
        says up to which message all updates were sent. A `gap` event says what was not sent, and what to do.
        """
        door.refuse_if_closing()
        refuse_unknown_kinds(kind)
        caller = caller_of(request)
        if owner is not None and not caller.sees(owner):
            raise ApiError(403, "missing_scope", f"this key is of the owner {caller.owner!r} alone", "query owner")
        for name in subscription or ():
            last = door.registry.last.get(name)
            if last is None or not caller.sees(last.owner):
                what = f"subscription {name!r}: there never was one of this id"
                raise refusal(refused("unknown_subscription", what, Fault("subscription", name)), "query subscription")
        interest = Interest(
            None if subscription is None else frozenset(subscription),
            None if kind is None else frozenset(kind),
            caller.owner if owner is None else owner,
            None if region is None else box_of(region),
        )
        tag_of = door.wal.tag_of
        after = position_of(last_event_id, "header Last-Event-ID", tag_of) or position_of(since, "query since", tag_of)
        events = "text/event-stream" in request.headers.get("accept", "")
        form = EVENTS if events else LINES
        has_snapshot, reading = snapshot and after is None, door.questions.turn(caller.name, "updates")
        if poll and has_snapshot:
            raise ApiError(
                422, "bad_parameter", "a poll has no snapshot", "query snapshot", "leave poll out, or read the results"
            )
        if poll:
            start = door.hub.log.head if after is None else after
            with door.access.stream(caller):
                data = await door.hub.poll(form, interest, start, wait_s, limit, reading)
            door.access.refuse_if_ended(caller)
            return Response(data, headers=HEADERS, media_type=form.media_type)
        turn = door.questions.open(caller.name, "snapshot") if has_snapshot else None
        first = None if turn is None else snapshot_of(interest, turn)
        write = request.scope.get("extensions", {}).get(WRITE, lambda data: False)
        events_of = door.hub.follow(form, interest, after, door.access.validity(caller), first, reading, write)
        return StreamedEvents(events_of, form, door.access, caller, turn)

    return router


class StreamedEvents(StreamingResponse):
    """A stream that counts as open until its client has gone, even before the first event."""

    def __init__(
        self, content: AsyncIterator[bytes], form: Form, access: Access, caller: Caller, snapshot: Turn | None
    ):
        super().__init__(content, headers=HEADERS, media_type=form.media_type)
        self._access = access
        self._caller = caller
        self._snapshot = snapshot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._access.stream(self._caller):
                await super().__call__(scope, receive, send)
        finally:
            if self._snapshot is not None:
                self._snapshot.close()


def position_of(text: str | None, where: str, tag_of: Callable[[int], str] | None = None) -> Position | None:
    """The position that a client names; `Foreign` if it has the tag of another log. Raises ApiError."""
    if text is None or not text.strip():
        return None
    if text.strip() == "begin":
        return BEGINNING
    match = _POSITION.fullmatch(text.strip())
    if match is None:
        raise ApiError(
            422, "bad_position", f"{text[:60]!r} is no id of an event", where, "send the id of an event, or begin"
        )
    boundary, index = int(match[1]), END if match[2] is None else int(match[2])
    if match[3] and tag_of is not None and tag_of(boundary) != match[3]:
        return Foreign(boundary, index)
    return Position(boundary, index)
