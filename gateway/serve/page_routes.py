"""The web page: `/`, `/topology`, and the files of `page/`, which are served as they are.

Used by `gateway.serve.app`. The page uses the API of the other routes and nothing else; read on in `page/app.js`.
"""

from importlib.resources import files

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

#: Scripts, styles and requests are of this server alone, and none is inline: a message's text is never code.
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
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a browser asks whether it has the newest, by ETag
}
_PAGES = {"/": "index.html", "/topology": "topology.html"}


class _Files(StaticFiles):
    """Files, with the headers of the page."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update(HEADERS)
        return answer


def install(app: FastAPI) -> None:
    """Add the page to an app; its paths are no part of the API's description."""
    folder = _Files(directory=str(files("gateway.serve").joinpath("page")))

    def add(path: str, name: str) -> None:
        async def page(request: Request) -> Response:
            return await folder.get_response(name, request.scope)

        app.add_route(path, page, methods=["GET"], include_in_schema=False)

    for path, name in _PAGES.items():
        add(path, name)
    app.mount("/page", folder)
