"""`/health` and `/ready`.

Used by `gateway.serve.app`.
"""

from importlib.metadata import version

from fastapi import APIRouter, Response

from gateway.serve.bodies import encoded
from gateway.serve.door import RETRY_S, Door
from gateway.serve.models import Health
from gateway.serve.problems import Problem


def routes(door: Door) -> APIRouter:
    router = APIRouter(tags=["operations"])
    release = version("skyray")

    @router.get("/health", summary="Whether the process lives", response_model=Health)
    async def health() -> Response:
        """Counts of the stream; 200 as long as the process answers."""
        return encoded({"status": "ok", "release": release, **door.figures()})

    @router.get("/ready", summary="Whether messages are matched now", response_model=Health)
    async def ready() -> Response:
        """503 while kernels are loaded and the log is matched again, and while the server ends."""
        door.refuse_if_closing()
        if not door.ready:
            retry = {"Retry-After": str(RETRY_S)}
            raise Problem(503, "starting", "the topology starts", do="wait; what is sent now is logged", headers=retry)
        return encoded({"status": "ok", "release": release, **door.figures()})

    return router
