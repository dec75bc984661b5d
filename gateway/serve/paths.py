"""Ids in paths: one segment each, whatever characters they have.

A server decodes a path before a route sees it, so that the `%2F` of an id would divide it. Below
`/v1/subscriptions/` routes therefore match the path as it was sent, and `Id` decodes the segment.
"""

from typing import Annotated
from urllib.parse import unquote

from fastapi import Path
from pydantic import BeforeValidator
from starlette.types import ASGIApp, Receive, Scope, Send

BELOW = "/v1/subscriptions/"


def _decoded(segment: object) -> object:
    return unquote(segment) if isinstance(segment, str) else segment


#: A subscription id in a path; the values of queries are decoded already.
Id = Annotated[str, BeforeValidator(_decoded), Path(description="its subscription_id", max_length=512)]


class RawSegments:
    """ASGI middleware: routes below `BELOW` get the path as it was sent, all others the decoded path."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            segments = (scope.get("raw_path") or b"").decode("latin-1").split("/", 3)
            if "/".join(map(unquote, segments[:3])) + "/" == BELOW and len(segments) == 4:
                scope = {**scope, "path": BELOW + segments[3]}
        await self._app(scope, receive, send)
