"""Results of a subscription, why a message is in them or not, whom a message would reach, what would match."""

from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gateway.client.rows import Results
from gateway.live.admission import whole_row
from gateway.runs.explaining import version_words
from gateway.runs.message_rows import message_row
from gateway.serve.access import caller_of
from gateway.serve.asking import Asking
from gateway.serve.bodies import encoded, media_type, one_line, read_body
from gateway.serve.door import Door
from gateway.serve.message_routes import MESSAGE
from gateway.serve.models import Explanation, Match, Preview
from gateway.serve.paths import Id
from gateway.serve.problems import LATER, TOO_LARGE, ApiError, refusal
from gateway.serve.released import tagged
from gateway.serve.standing import results_at
from gateway.serve.subscription_routes import SUBSCRIPTION_BODY, known, not_active
from gateway.serve.writer import refused
from matching.kinds import KINDS
from matching.reasons import explain as meaning_of
from matching.validate import DELETE, decode_object


def routes(door: Door, asking: Asking) -> APIRouter:
    router = APIRouter(tags=["questions"], responses=LATER)
    questions = door.questions

    @router.get(
        "/v1/subscriptions/{subscription_id}/results",
        summary="Read the result of a subscription",
        response_model=Results,
    )
    async def results(request: Request, subscription_id: Id) -> Response:
        """What is in the result now, best first; of a kind without results its last matches, newest first.

        As of the message `as_of`. Each row has `rank`, `message_id`, `seq`, `score`, `text`, `lon`, `lat`, `words`
        found, and `distance_km` (null where the subscription has a region).
        """
        caller = caller_of(request)
        known(door, subscription_id, caller)
        with closing(questions.open(caller.name, "results")) as turn:
            names, head = [subscription_id], door.hub.log.head
            async for one in results_at(door.hub, door.registry, asking, names, head, turn, door.versions):
                return encoded(one)
        raise not_active(subscription_id)  # it has ended meanwhile

    @router.get("/v1/explain", summary="Why a message is in a result, or not", response_model=Explanation)
    async def explain(
        request: Request,
        subscription: Annotated[str, Query(description="its subscription_id", max_length=512)],
        message: Annotated[str, Query(description="its id, or seq:N", max_length=512)],
    ) -> Response:
        """The rule, bound or condition that decided: `in_result`, `reason` (a code), `why` in words, `score`, `rivals`.

        As of the message `as_of`. `updates` are those of this message for this subscription.
        """
        caller = caller_of(request)
        one, seq = known(door, subscription, caller), _seq_of(door, message)
        with closing(questions.open(caller.name, "explain")) as turn:
            async with turn:
                found = await turn.run(asking.explain, one, seq, door.hub.log.head.boundary, door.versions)
                updates = await turn.run(_updates_of, door, subscription, seq)
                if door.wal.living is not None:
                    found["versions"] = await turn.run(_versions_of, door, seq, updates)
                    found["why"] = "; ".join([found["why"], *found["versions"]])
        shown = ("id", "change", "as_of", "score")
        return encoded(found | {"updates": [{name: row[name] for name in shown} for row in updates]})

    @router.post(
        "/v1/match",
        summary="Which subscriptions a message would reach",
        response_model=Match,
        responses=TOO_LARGE,
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": MESSAGE}}}},
    )
    async def match(request: Request, limit: Annotated[int, Query(ge=1, le=1_000)] = 100) -> Response:
        """Match a message with all active subscriptions, and store nothing.

        A kind that keeps the best messages would have it unless better ones are there.
        """
        media_type(request)
        caller, body = caller_of(request), one_line(await read_body(request))
        return encoded(await questions.answer(caller.name, "match", asking.match, body, limit, caller.owner))

    @router.post(
        "/v1/preview",
        summary="What a subscription would have matched",
        response_model=Preview,
        responses=TOO_LARGE,
        openapi_extra=SUBSCRIPTION_BODY,
    )
    async def preview(
        request: Request, limit: Annotated[int, Query(description="messages listed", ge=0, le=100)] = 3
    ) -> Response:
        """Test a subscription with all logged messages, condition by condition, and store nothing."""
        media_type(request)
        columns = decode_object(body := await read_body(request))
        if isinstance(columns, str):
            raise refusal(refused(columns, meaning_of(columns, KINDS), whole_row(body)))
        return encoded(await questions.answer(caller_of(request).name, "preview", asking.preview, columns, limit))

    return router


def _updates_of(door: Door, subscription_id: str, seq: int, share: Callable[[], None]) -> list[dict[str, Any]]:
    """The updates of a subscription id that are of one message, in order."""
    found: list[dict[str, Any]] = []
    log, tag_of = door.hub.log, door.wal.tag_of
    for released, rows in log.newest_first(log.head, seq, [subscription_id], lambda *_: None):
        share()
        rows = rows[released.seq[rows] == seq]
        ids = zip(released.boundary[rows].tolist(), released.place[rows].tolist(), strict=True)
        facts = released.facts(rows)
        found[:0] = [
            {"id": tagged(f"{boundary}-{place}", tag_of(boundary)), **row}
            for (boundary, place), row in zip(ids, facts, strict=True)
        ]
    return found


def _versions_of(door: Door, seq: int, updates: list[dict[str, Any]], share: Callable[[], None]) -> list[str]:
    """The updates of a version of an object in words (`version_words`)."""
    wal, schema, own, found = door.wal, door.admission.vocabulary.attributes, door.wal.message(seq), list[str]()
    for update in updates:
        share()
        before, now = wal.values([seq])[seq].previous, own
        if update["change"] == "leave":
            before = seq
            if update["as_of"] not in wal.marks and (cause := wal.message(update["as_of"])).object_id == own.object_id:
                now = cause  # else it left for another message's sake
        rows = [message_row(one, (), schema) for one in (now, *([wal.message(before)] if before >= 0 else []))]
        found.append(version_words(update["change"], rows[0], rows[1] if before >= 0 else None, now.op == DELETE))
    return found


def _seq_of(door: Door, message: str) -> int:
    """The seq of a message by its id, or by `seq:N`. Raises ApiError."""
    seq = door.writer.seq_of(message)
    number = message.removeprefix("seq:")
    if seq is None and message.startswith("seq:") and number.isdecimal() and len(number) < 19:
        seq = int(number)
    wal = door.wal
    if seq is not None and seq < wal.first_seq and not wal.message(seq).message_id:
        detail = f"message {message!r}: is no longer kept; of those before {wal.first_seq:,} results have some"
        raise ApiError(404, "unknown_message", detail, "query message", f"ask for one from seq:{wal.first_seq} on")
    if seq is None or seq >= door.wal.next_seq or seq in door.wal.marks:
        raise ApiError(
            404,
            "unknown_message",
            f"message {message!r}: has no id that a producer gave to one of the last 1,000,000 messages",
            "query message",
            f"check the id; seq:N names a message by its number, below {door.wal.next_seq:,}",
        )
    return seq
