"""The API of a run that is replayed: the paths of a live server that read, each as of a message (`as_of`)."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response

from gateway.client.rows import Results
from gateway.serve.bodies import encoded
from gateway.serve.event_forms import EVENTS, LINES
from gateway.serve.kind_names import KindNames, refuse_unknown_kinds
from gateway.serve.models import Explanation, Health, Subscription, SubscriptionsPage
from gateway.serve.paths import Id
from gateway.serve.problems import LATER, ApiError
from gateway.serve.questions import Questions
from gateway.serve.replay import Replay, Wanted
from gateway.serve.subscription_routes import MOST_LISTED
from gateway.serve.update_parts import BEGINNING
from gateway.serve.update_routes import HEADERS, position_of

_T = TypeVar("_T")
AsOf = Annotated[int | None, Query(description="seq of a message, the last one by default", ge=-1, le=2**53)]


def routes(replay: Replay) -> APIRouter:
    router = APIRouter(tags=["replay"], responses=LATER)
    release = version("skyray")
    questions = Questions(at_once=1)  # `Replay` is for one thread at a time

    async def answer(question: Callable[..., _T], *arguments: Any) -> _T:
        return await questions.answer("", question.__name__, lambda share: question(*arguments))

    def seq_of(as_of: int | None) -> int:
        return replay.last if as_of is None else min(as_of, replay.last)

    @router.get("/health", summary="Counts of the run", response_model=Health)
    async def health() -> Response:
        return encoded({"status": "ok", "release": release, **replay.figures()})

    @router.get("/v1/stream", summary="What the stream is, and how far the run goes")
    async def stream() -> Response:
        """As of a live server, and `run`: folder, state, last message, boundaries, updates."""
        return encoded(replay.facts())

    @router.get("/v1/updates", summary="Read updates", response_class=Response)
    async def updates(
        request: Request,
        since: Annotated[
            str | None, Query(description="the id of an update, a message number, or `begin`, as without it")
        ] = None,
        through: AsOf = None,
        subscription: Annotated[list[str] | None, Query(description="only of these subscriptions")] = None,
        kind: KindNames = None,
        newest: Annotated[bool, Query(description="the last of them, in place of the first")] = False,
        limit: Annotated[int, Query(description="updates at most", ge=1, le=100_000)] = 1_000,
        poll: Annotated[bool, Query(description="as of a live server; an answer always ends")] = True,
    ) -> Response:
        """Updates after a place and as of messages up to `through`, each with the id that a live server gives it.

        The last line, or event, is `progress`: the id to read on from.
        """
        refuse_unknown_kinds(kind)
        form = EVENTS if "text/event-stream" in request.headers.get("accept", "") else LINES
        after = position_of(since, "query since") or BEGINNING
        wanted = Wanted(after, seq_of(through), subscription, kind)
        found, behind, complete = await answer(replay.updates, wanted, limit, newest)
        data = form.updates(found).data + form.named("progress", {"through": complete}, behind.text)
        return Response(data, headers=HEADERS, media_type=form.media_type)

    @router.get("/v1/messages", summary="Read messages")
    async def messages(
        after: Annotated[int, Query(description="seq of a message", ge=-1, le=2**53)] = -1,
        through: AsOf = None,
        limit: Annotated[int, Query(description="of the last ones, at most", ge=1, le=10_000)] = 300,
    ) -> Response:
        """Messages behind one and up to another."""
        return encoded({"messages": await answer(replay.messages, after, seq_of(through), limit)})

    @router.get("/v1/subscriptions", summary="List subscriptions", response_model=SubscriptionsPage)
    async def subscriptions(
        as_of: AsOf = None,
        after: Annotated[int, Query(description="cursor: `after` of the page before", ge=-1)] = -1,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
        kind: KindNames = None,
        prefix: Annotated[str, Query(description="only ids that begin so", max_length=512)] = "",
        names: Annotated[list[str] | None, Query(alias="id", max_length=MOST_LISTED, description="only these")] = None,
    ) -> Response:
        """Subscriptions that are active as of a message, in the order of registration."""
        refuse_unknown_kinds(kind)
        found, cursor = await answer(replay.subscriptions, seq_of(as_of), after, limit, kind, prefix, names)
        return encoded({"subscriptions": found, "after": cursor})

    @router.get("/v1/subscriptions/{subscription_id}", summary="Read a subscription", response_model=Subscription)
    async def subscription(subscription_id: Id, as_of: AsOf = None) -> Response:
        return encoded(await answer(replay.subscription, subscription_id, seq_of(as_of)))

    @router.get("/v1/subscriptions/{subscription_id}/results", summary="Read a result", response_model=Results)
    async def results(subscription_id: Id, as_of: AsOf = None) -> Response:
        """What is in the result as of a message; of a kind without results the last matches."""
        return encoded(await answer(replay.results, subscription_id, seq_of(as_of)))

    @router.get("/v1/explain", summary="Why a message is in a result, or not", response_model=Explanation)
    async def explain(
        subscription: Annotated[str, Query(description="its subscription_id", max_length=512)],
        message: Annotated[str, Query(description="its id, or seq:N", max_length=512)],
        as_of: AsOf = None,
    ) -> Response:
        """The rule, bound or condition that decided, as of a message."""
        return encoded(await answer(replay.explain, subscription, message, seq_of(as_of)))

    @router.api_route("/v1/{path:path}", methods=["POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
    async def read_only(path: str) -> Response:
        detail = f"/v1/{path}: this server replays a run that is over, and takes nothing"
        do = "start a stream with `skyray serve --out FOLDER`"
        raise ApiError(405, "read_only", detail, do=do, headers={"Allow": "GET, HEAD"})

    return router
