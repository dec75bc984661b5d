"""`/health`, `/ready`, `/metrics`, `/v1/stream` and `/v1/topology`."""

import asyncio
import re
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from gateway.metrics import CONTENT_TYPE, exposition
from gateway.serve.access import caller_of
from gateway.serve.bodies import encoded, media_type, read_body
from gateway.serve.door import Door
from gateway.serve.models import AttributeOutcome, Health, Stream, Topology
from gateway.serve.problems import LATER, TOO_LARGE, ApiError, refusal
from gateway.serve.writer import Declare
from matching.attributes import TYPES, DeclaredAttribute
from matching.decoding import decode_object
from matching.errors import ConfigError
from matching.kind_table import Kinds
from matching.space import Space
from matching.vocabulary import Vocabulary

_ATTRIBUTE_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["type"],
                    "properties": {
                        "type": {"enum": list(TYPES)},
                        "path": {"type": "string", "description": "where a message has the value; by default the name"},
                    },
                }
            }
        },
    }
}


def routes(door: Door) -> APIRouter:
    router = APIRouter(tags=["operations"])
    release = version("skyray")

    def counts() -> dict[str, Any]:
        """What everybody may see, without a key."""
        figures, ends = door.figures(), _ends(door, not door.access.needs_key)
        state = {**door.starting.figures(), "release": release, "preparing": door.writer.preparing}
        return {**state, **figures, **ends}

    @router.get("/health", summary="Whether the process lives", response_model=Health)
    async def health() -> Response:
        """Counts of the stream; 200 as long as the process answers. No names of brokers once there are keys.

        Before the log is read there are no counts, but `doing` and `done` alone.
        """
        return encoded(counts())

    @router.get("/ready", summary="Whether messages are matched now", response_model=Health)
    async def ready() -> Response:
        """503 while kernels are loaded and the log is matched again, and while the server ends."""
        door.refuse_if_closing()
        if not door.ready:
            raise door.starting.refusal("wait; what is sent now is logged")
        return encoded(counts())

    @router.get(
        "/metrics",
        summary="Figures for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Counters and gauges in Prometheus' text format."""
        await asyncio.to_thread(door.disk.figures)
        return Response(exposition(door), media_type=CONTENT_TYPE)

    @router.get("/v1/stream", summary="What the stream is, and how far it has come", response_model=Stream)
    async def stream(request: Request) -> Response:
        """What a client needs to know to subscribe and to publish: attributes, kinds, world, window.

        `fields` are those of recent messages that no attribute is declared for, the most frequent first: a condition of
        a subscription that names one declares it. Samples of their values, and `disk`, only to a key with the scope
        admin.
        """
        admission = door.admission
        facts = stream_facts(admission.vocabulary, admission.space, admission.kinds)
        misfits, schema = dict(admission.misfits), admission.vocabulary.attributes
        for row, one in zip(facts["attributes"], schema.attributes, strict=False):
            row["misfits"] = misfits.get(one.path, 0)
        may_admin = caller_of(request).may("admin")
        facts["fields"] = admission.recent.report(schema, may_admin)
        wal = door.wal
        through = {"next_seq": wal.next_seq, "first_kept_seq": wal.first_seq}
        through["complete_through"] = door.hub.log.head.boundary
        disk = (await asyncio.to_thread(door.disk.figures)).as_json() if may_admin else None
        living = door.wal.living
        if living is not None:
            sizes = {"size_bytes": living.size_bytes, "most_bytes": living.most_bytes}
            facts["objects"] = {"living": len(living), **sizes}
        return encoded({**facts, "window": door.wal.settings["window"], **through, "disk": disk})

    @router.put(
        "/v1/stream/attributes/{name}",
        summary="Declare an attribute",
        response_model=AttributeOutcome,
        responses={201: {"model": AttributeOutcome, "description": "Declared"}, **TOO_LARGE, **LATER},
        openapi_extra=_ATTRIBUTE_BODY,
    )
    async def declare(
        request: Request, name: Annotated[str, Path(description="as `where` names it", max_length=64)]
    ) -> Response:
        """Declare an attribute of messages, for the messages from now on; earlier ones have no value of it.

        Its type cannot change. Needs the scope admin.
        """
        media_type(request)
        body = await read_body(request)
        found = decode_object(body)
        if isinstance(found, str) or not isinstance(found.get("type"), str) or found.keys() - {"type", "path"}:
            what = 'the body is {"type": "number"}, or category or time, and may have the path of the value'
            raise ApiError(422, "bad_attribute", what, "body")
        try:
            path = found.get("path", name)
            row = Declare(DeclaredAttribute.parse(f"{name}={path}:{found['type']}"))
        except ConfigError as error:
            raise ApiError(422, "bad_attribute", str(error), "path") from None
        outcome = (await door.submit([row], len(body), caller_of(request)))[0]
        if outcome["status"] == "refused":
            raise refusal(outcome, "path")
        return encoded(outcome, 201 if outcome["status"] == "created" else 200)

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
        "fold_accents": vocabulary.folds_accents,
    }
