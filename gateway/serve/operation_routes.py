"""`/health`, `/ready`, `/metrics`, `/v1/stream`, `/v1/topology` and `/v1/tickets`."""

import re
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.metrics import CONTENT_TYPE, exposition
from gateway.serve.access import TICKET_S, caller_of
from gateway.serve.bodies import encoded
from gateway.serve.door import RETRY_S, Door
from gateway.serve.models import Health, Stream, Ticket, Topology
from gateway.serve.problems import ApiError
from matching.attributes import TYPES
from matching.kind_table import Kinds
from matching.space import Space
from matching.text import Vocabulary


def routes(door: Door) -> APIRouter:
    router = APIRouter(tags=["operations"])
    release = version("skyray")

    def counts() -> dict[str, Any]:
        """What everybody may see, without a key."""
        figures, ends = door.figures(), _ends(door, not door.access.needs_key)
        return {"status": "ok", "release": release, **figures, **ends}

    @router.get("/health", summary="Whether the process lives", response_model=Health)
    async def health() -> Response:
        """Counts of the stream; 200 as long as the process answers. No names of brokers once there are keys."""
        return encoded(counts())

    @router.get("/ready", summary="Whether messages are matched now", response_model=Health)
    async def ready() -> Response:
        """503 while kernels are loaded and the log is matched again, and while the server ends."""
        door.refuse_if_closing()
        if not door.ready:
            retry = {"Retry-After": str(RETRY_S)}
            raise ApiError(503, "starting", "the topology starts", do="wait; what is sent now is logged", headers=retry)
        return encoded(counts())

    @router.get(
        "/metrics",
        summary="Figures for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Counters and gauges in Prometheus' text format."""
        return Response(exposition(door), media_type=CONTENT_TYPE)

    @router.get("/v1/stream", summary="What the stream is, and how far it has come", response_model=Stream)
    async def stream() -> Response:
        """What a client needs to know to subscribe and to publish: attributes, kinds, world, window."""
        admission = door.admission
        facts = stream_facts(admission.vocabulary, admission.space, admission.kinds)
        through = {"next_seq": door.wal.next_seq, "complete_through": door.hub.log.head.boundary}
        return encoded({**facts, "window": door.wal.settings["window"], **through})

    @router.get("/v1/topology", summary="The components and what they do now", response_model=Topology)
    async def topology(request: Request) -> Response:
        """Of each component its tasks, payloads received and emitted, queue, and share of time spent working.

        `source` and `sinks` say how far what is read and what takes updates is, `webhooks` what all of them have; where
        they are, and their errors, only to a key with the scope admin.
        `preparing` are the kinds whose kernels are compiled now: their first subscriptions are answered after it.
        """
        snapshot = door.snapshot
        return encoded(
            {
                "ready": door.ready,
                "preparing": door.writer.preparing,
                "behind": door.behind(),
                "latency_p50_s": door.latency.quantile(0.5),
                "latency_p99_s": door.latency.quantile(0.99),
                "topology": None if snapshot is None else snapshot.as_dict(),
                **_ends(door, caller_of(request).may("admin")),
                "webhooks": door.webhooks(),
            }
        )

    @router.post("/v1/tickets", summary="Get a ticket for a stream", response_model=Ticket)
    async def ticket(request: Request) -> Response:
        """A ticket opens one stream of `/v1/updates` in the place of a key, where headers cannot be sent."""
        return encoded({"ticket": door.access.ticket(caller_of(request)), "expires_in_s": TICKET_S})

    return router


def _ends(door: Door, whole: bool) -> dict[str, Any]:
    """Figures of the source and the sinks; if not `whole`, without the hosts that their names and errors tell."""
    source, sinks = None if door.feed is None else door.feed.figures(), door.sinks()
    if not whole:
        for one in (*sinks, *([] if source is None else [source])):
            one |= {"name": re.split("[:/]", one["name"])[0], "error": None}
    return {"source": source, "sinks": sinks}


def stream_facts(vocabulary: Vocabulary, space: Space, kinds: Kinds) -> dict[str, Any]:
    """What does not change while a stream runs, but for its window."""
    return {
        "attributes": [{"name": one.name, "type": TYPES[one.type]} for one in vocabulary.attributes.attributes],
        "kinds": kinds.names,
        "distance": space.distance,
        "projection": space.projection,
        "world": [space.west, space.south, space.east, space.north],
        "stem": vocabulary.stem_language,
    }
