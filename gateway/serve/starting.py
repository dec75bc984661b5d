"""What a server answers while it starts: `/health` and a page say what it does and how far it is.

The socket is open from the first second. Until the app of the stream is there, every other request is answered 503 with
`Retry-After`; then the app takes all, and `/health` goes on to say what is left to do until `/ready`.
"""

from html import escape
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.serve.problems import ApiError, answer
from topology.core.executors.logs import driver_log

#: Seconds after which one who is refused, and the page, come again.
RETRY_S = 1
_PAGES = ("/", "/topology")
_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{again}">'
    '<meta name="color-scheme" content="light dark"><title>Skyray starts</title></head>'
    "<body><h1>Skyray starts</h1><p>{doing}</p></body></html>"
)
_HEADERS = {"Content-Security-Policy": "default-src 'none'", "Cache-Control": "no-store"}


class Starting:
    """ASGI app of a server from its first second, and what it does until it is ready; for any thread.

    Parameters
    ----------
    doing : str, optional
        What is done from the first request on; without it the server is ready.

    Attributes
    ----------
    app : ASGI application or None
        Takes every request, once it is there.
    """

    def __init__(self, doing: str | None = None) -> None:
        self.app: ASGIApp | None = None
        self._now: tuple[str | None, float | None] = doing, None

    def step(self, doing: str | None) -> None:
        """Say, and log, what is done from now on; None: nothing any more, the server is ready."""
        self._now = doing, None
        if doing is not None:
            driver_log().info("starts", doing=doing)

    def reached(self, share: float) -> None:
        """Say how much of the step is done, 0 to 1; without it nobody knows."""
        self._now = self._now[0], share

    def figures(self) -> dict[str, Any]:
        """`status`, `doing` and `done` as `gateway.serve.models.Health` has them."""
        doing, done = self._now
        return {
            "status": "ok" if doing is None else "starting",
            "doing": doing,
            "done": None if done is None else round(min(1.0, max(0.0, done)), 3),
        }

    def refusal(self, do: str) -> ApiError:
        """503, with what is done now."""
        headers = {"Retry-After": str(RETRY_S)}
        return ApiError(503, "starting", f"the server starts: {self._sentence()}", do=do, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope["method"], scope["path"])(scope, receive, send)

    def _answer(self, method: str, path: str) -> Response:
        reads = method in ("GET", "HEAD")
        if reads and path == "/health":
            data = msgspec.json.encode(self.figures() | {"release": version("skyray")})
            return Response(data, media_type="application/json")
        if reads and path in _PAGES:
            page = _PAGE.format(again=RETRY_S, doing=escape(self._sentence()))
            return Response(page, 503, {**_HEADERS, "Retry-After": str(RETRY_S)}, "text/html")
        return answer(self.refusal("nothing is taken yet: send it again after 1 s"))

    def _sentence(self) -> str:
        """What is done now, for people."""
        _, doing, done = self.figures().values()
        return (doing or "ready") + ("" if done is None else f", {100 * done:.0f} %")
