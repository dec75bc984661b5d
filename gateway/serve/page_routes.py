"""Routes of the web page: `/`, `/topology`, the static files of the folder `gateway/serve/page`, and its map's tiles.

The page's scripts call the public API and no other route.
"""

from importlib.resources import files

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gateway.serve.tiles import Tiles

#: Content-Security-Policy: the page loads scripts and styles from this server only, and none inline, so that the text
#: of a message can never run as code.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data: blob:",  # the map's style has its icons inline
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # browsers revalidate by ETag
}
_PAGES = {"/": "index.html", "/topology": "topology.html"}


def headers_of(tiles: Tiles | None) -> dict[str, str]:
    """Headers of each answer; with tiles the page may load from their host, and names its own, as some ask for it."""
    if tiles is None:
        return _HEADERS
    policy = f"{POLICY}; connect-src 'self' {tiles.origin}"
    return _HEADERS | {"Content-Security-Policy": policy, "Referrer-Policy": "strict-origin"}


class _Files(StaticFiles):
    """Static files, each answered with the same headers."""

    def __init__(self, directory: str, headers: dict[str, str]):
        super().__init__(directory=directory)
        self._headers = headers

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update(self._headers)
        return answer


def install(app: FastAPI, tiles: Tiles | None = None) -> None:
    """Add the page's routes to an app, and leave them out of its OpenAPI description."""
    headers = headers_of(tiles)
    folder = _Files(str(files("gateway.serve").joinpath("page")), headers)

    def add(path: str, name: str) -> None:
        async def page(request: Request) -> Response:
            return await folder.get_response(name, request.scope)

        app.add_route(path, page, methods=["GET"], include_in_schema=False)

    for path, name in _PAGES.items():
        add(path, name)

    async def map_facts(request: Request) -> Response:
        return JSONResponse({"tiles": None if tiles is None else tiles.as_dict()}, headers=headers)

    app.add_route("/page/map.json", map_facts, methods=["GET"], include_in_schema=False)
    app.mount("/page", folder)
