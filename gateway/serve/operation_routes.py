"""`/health`, `/ready`, `/metrics` and `/v1/topology`.

Used by `gateway.serve.app`.
"""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response

from gateway.serve.bodies import encoded
from gateway.serve.door import RETRY_S, Door
from gateway.serve.metrics import CONTENT_TYPE, exposition
from gateway.serve.models import Health, Topology
from gateway.serve.problems import Problem
from matching.attributes import TYPES
from matching.kinds import KINDS
from matching.space import Space
from matching.text import Vocabulary


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

    @router.get(
        "/metrics",
        summary="Figures for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Counters and gauges in Prometheus' text format."""
        return Response(exposition(door), media_type=CONTENT_TYPE)

    @router.get("/v1/topology", summary="The components and what they do now", response_model=Topology)
    async def topology() -> Response:
        """Of each component its tasks, payloads received and emitted, queue, and share of time spent working."""
        snapshot = door.snapshot
        return encoded(
            {
                "ready": door.ready,
                "behind": door.behind(),
                "latency_p50_s": door.latency.quantile(0.5),
                "latency_p99_s": door.latency.quantile(0.99),
                "topology": None if snapshot is None else snapshot.as_dict(),
            }
        )

    @router.get("/v1/stream", summary="What the stream is")
    async def stream() -> Response:
        """`attributes` of messages with their types, `kinds` of subscriptions, and how distances are measured."""
        return encoded(stream_facts(door.registry.vocabulary, door.registry.space))

    return router


def stream_facts(vocabulary: Vocabulary, space: Space) -> dict[str, Any]:
    """What clients need to know of a stream."""
    attributes = [{"name": one.name, "type": TYPES[one.type]} for one in vocabulary.attributes.attributes]
    return {"attributes": attributes, "kinds": list(KINDS.names), "distance": space.distance}
