"""Routes of the web page: `/`, `/topology`, and the static files of the folder `gateway/serve/page`.

Used by `gateway.serve.app`. The page's scripts call the public API and no other route; read on in `page/app.js`.
"""

from importlib.resources import files

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

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
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # browsers revalidate by ETag
}
_PAGES = {"/": "index.html", "/topology": "topology.html"}


class _Files(StaticFiles):
    """Static files, each answered with `HEADERS`."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update(HEADERS)
        return answer


def install(app: FastAPI) -> None:
    """Add the page's routes to an app, and leave them out of its OpenAPI description."""
    folder = _Files(directory=str(files("gateway.serve").joinpath("page")))

    def add(path: str, name: str) -> None:
        async def page(request: Request) -> Response:
            return await folder.get_response(name, request.scope)

        app.add_route(path, page, methods=["GET"], include_in_schema=False)

    for path, name in _PAGES.items():
        add(path, name)
    app.mount("/page", folder)
