"""Assembles the HTTP app: routes, error handlers, and the checks of every request (host, key, scope)."""

from collections.abc import Iterable, MutableMapping, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.serve import asking_routes, message_routes, operation_routes, subscription_routes, update_routes
from gateway.serve.access import AccessGate, header_of
from gateway.serve.asking import Asking
from gateway.serve.door import Door
from gateway.serve.models import Message, Subscription, refer_to_rows, row_schemas
from gateway.serve.models import Problem as ProblemModel
from gateway.serve.page_routes import install as install_page
from gateway.serve.paths import RawSegments
from gateway.serve.problems import CONTENT, ApiError, answer, failed, install
from gateway.serve.tiles import Tiles
from gateway.shell.suggesting import refuse_unknown
from matching.errors import ConfigError

_DESCRIPTION = "Subscribe to a stream of geo-tagged text over the network. Guide: docs/start.md."
_KEYS = "Made by `skyray keys create`; needed as soon as there is one."
_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "An error, with its reason code", "content": CONTENT}
}


def make_app(
    door: Door,
    asking: Asking,
    hosts: frozenset[str],
    origins: Sequence[str] = (),
    more: Sequence[APIRouter] = (),
    tiles: Tiles | None = None,
) -> ASGIApp:
    """The app of a live stream. Messages are published without the layers of the framework.

    Parameters
    ----------
    hosts : frozenset of str
        Host names that requests may name.
    origins : sequence of str
        Origins of other web pages whose scripts may call the API (CORS).
    more : sequence of APIRouter
        Further routes, such as those of webhooks (`gateway.sinks`).
    tiles : Tiles, optional
        Of the page's map.
    """
    alone = (part.routes(door) for part in (message_routes, operation_routes))
    with_answers = (part.routes(door, asking) for part in (subscription_routes, update_routes, asking_routes))
    framework = assembled([*alone, *with_answers, *more], tiles)
    app: ASGIApp = AccessGate(message_routes.Publishing(framework, door), door.access)
    if origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "If-Match", "If-None-Match", "Last-Event-ID"],
            expose_headers=["ETag", "Location", "Retry-After"],
        )
    return ServerErrorMiddleware(Hosts(app, hosts), failed)


def assembled(routers: Iterable[APIRouter], tiles: Tiles | None = None) -> FastAPI:
    """An app of these routes and the web page, without checks of keys and hosts."""
    app = _Api(
        title="Skyray",
        version=version("skyray"),
        description=_DESCRIPTION,
        docs_url=None,  # FastAPI's page of documentation loads scripts from another server
        redoc_url=None,
        responses=_ERRORS,
        dependencies=[Depends(refuse_unknown_parameters)],
    )
    parts = list(routers)
    install(app, [route for router in parts for route in router.routes])
    for router in parts:
        app.include_router(router)
    install_page(app, tiles)
    app.add_middleware(RawSegments)
    app.add_middleware(Heads)
    return app


class _Api(FastAPI):
    """Adds to the OpenAPI description the models of bodies that routes decode and encode without FastAPI."""

    def openapi(self) -> dict[str, Any]:
        made = self.openapi_schema is not None
        description = super().openapi()
        if not made:
            self.openapi_schema = description = refer_to_rows(description)
            parts = description.setdefault("components", {})
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": _KEYS}}
            description["security"] = [{}, {"key": []}]
            schemas = parts.setdefault("schemas", {})
            schemas |= row_schemas()
            for model in (Message, Subscription, ProblemModel):
                schemas.setdefault(model.__name__, model.model_json_schema())
        return description


async def refuse_unknown_parameters(request: Request) -> None:
    """Raises ApiError for a parameter of the query that the route has not: it would be ignored."""
    route = request.scope["route"]
    if not route.include_in_schema:
        return
    try:
        refuse_unknown("the query", request.query_params, [one.alias for one in route.dependant.query_params])
    except ConfigError as error:
        do = "mend its name, or leave it out; see /openapi.json"
        raise ApiError(422, "unknown_parameter", str(error), "query", do) from None


class Heads:
    """ASGI middleware: HEAD is answered as GET, without the body, also where that has no end."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                await send(event)
                await send({"type": "http.response.body", "body": b""})

        await self._app({**scope, "method": "GET"}, receive, send_head)


class Hosts:
    """Refuses requests whose header Host has another name, against DNS rebinding."""

    def __init__(self, app: ASGIApp, names: frozenset[str]):
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = header_of(scope, b"host")
            before, _, port = host.rpartition(":")
            name = before if port.isdecimal() else host
            if name.lower() not in self._names:
                do = f"call it by {' or '.join(sorted(self._names))}"
                problem = ApiError(421, "wrong_host", f"this server is not {host[:200]!r}", "header Host", do)
                await answer(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)
