"""Schemas of the API's bodies, for its description (OpenAPI), beside the rows of `gateway.client.rows`.

Rows of requests are checked by `matching.validate`, not by these.
"""

from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from gateway.client.rows import (
    ROW_SCHEMA,
    SCORE,
    ApiRow,
    MessageOutcome,
    Missed,
    ResultRow,
    Results,
    SubscriptionOutcome,
    Telling,
    ToldPage,
    ToldWhat,
    Update,
)

#: Rows of answers, by name in the description.
ROWS: tuple[type[ApiRow], ...] = (
    MessageOutcome,
    SubscriptionOutcome,
    Update,
    ResultRow,
    Missed,
    Results,
    ToldWhat,
    Telling,
    ToldPage,
)


def row_schemas() -> dict[str, Any]:
    """The schemas of `ROWS` as components of a description, by name."""
    _, schemas = msgspec.json.schema_components(ROWS, ref_template="#/components/schemas/{name}")
    for row in ROWS:
        if row.EXAMPLES:
            schemas[row.__name__]["examples"] = row.EXAMPLES
    return schemas


def refer_to_rows(part: Any) -> Any:
    """A part of a description with references to the schemas of rows."""
    if isinstance(part, dict):
        if ROW_SCHEMA in part:
            return {"$ref": f"#/components/schemas/{part[ROW_SCHEMA]}"}
        return {name: refer_to_rows(each) for name, each in part.items()}
    return [refer_to_rows(each) for each in part] if isinstance(part, list) else part


class Message(BaseModel):
    """A message, in one of the forms of docs/formats.md: other names of these columns are found too."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"examples": [{"id": "m1", "text": "Ramen, open late", "lon": 139.69, "lat": 35.68}]},
    )
    text: str | None = Field(default=None, description="a message with op delete has none")
    lon: float = Field(ge=-180, le=180, description="degrees")
    lat: float = Field(ge=-90, le=90, description="degrees")
    id: str | int | None = Field(
        default=None, description="given by the producer: a message that is sent again with it is taken once"
    )
    time: str | float | None = Field(default=None, description="ISO 8601, or seconds since 1970")
    object_id: str | int | None = Field(default=None, description="what the message is a version of")
    op: Literal["publish", "delete", 0, 1] | None = None
    # any field of its own in a stream of messages
    lang: Any = Field(default=None, description="the language of its words, such as german")
    ttl_s: Any = Field(default=None, description="of an object: seconds until this version ends it, a number")
    expires_at: Any = Field(default=None, description="of an object: when this version ends it, as `time`")


class ObjectVersion(BaseModel):
    """The living version of an object."""

    object_id: str
    message_id: str
    seq: int
    text: str
    lon: float
    lat: float
    time: str | None
    attributes: dict[str, Any] = Field(description="declared ones; null where it has none")


class ObjectsPage(BaseModel):
    """Living objects in the order of their versions."""

    objects: list[ObjectVersion]
    after: int | None = Field(description="cursor of the next page; null at the end")


class MessagesAnswer(BaseModel):
    """What became of the messages of an array."""

    accepted: int
    duplicates: int
    refused: int
    outcomes: list[MessageOutcome]
    delivered: bool | None = None


class Tell(BaseModel):
    """When the owner of a subscription is told of its updates, by webhooks and `/v1/told`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"at": ["08:00"], "zone": "Europe/Berlin"}, {"most_an_hour": 5}]},
    )
    at: str | list[str] | None = Field(default=None, description="set times of the day, each with a digest: 08:00")
    zone: str | None = Field(default=None, description="whose wall clock counts, such as Europe/Berlin; UTC without")
    quiet: list[str] | None = Field(default=None, description="from when to when nothing is told: 22:00, 07:00")
    most_an_hour: int | None = Field(default=None, description="updates told one by one; the rest is a digest")
    similar: float | None = Field(
        default=None, description="Jaccard similarity to one of the last 100 from which a message is not told"
    )
    paused: bool | None = None


class Subscription(BaseModel):
    """A subscription; its columns are those of docs/formats.md, and free ones."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {"subscription_id": "s1", "kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36]},
                {"subscription_id": "s2", "kind": "knn", "keywords": "ramen", "lon": 139.7, "lat": 35.7, "k": 3},
            ]
        },
    )
    subscription_id: str | int | None = Field(default=None, description="without one the server makes one")
    kind: str = Field(description="boolean, topk, decay, knn or skyline")
    keywords: str | list[str] | None = Field(default=None, description="none: every message that the rest allows")
    lon: float | None = None
    lat: float | None = None
    region: list[float] | None = Field(default=None, description="west, south, east, north in degrees")
    circle: dict[str, float] | None = Field(default=None, description="lon, lat, radius_m")
    polygon: dict[str, Any] | None = Field(default=None, description="GeoJSON geometry")
    radius_m: float | None = None
    match: str | int | None = Field(default=None, description="all, any, or how many keywords")
    not_keywords: str | list[str] | None = None
    lang: str | None = Field(default=None, description="the language of its words, such as german")
    where: dict[str, Any] | None = None
    on: list[str] | None = Field(default=None, description="of objects: which of enter, leave, change are wanted")
    query: str | dict[str, Any] | None = Field(
        default=None, description="words, OR, brackets and -, or an object of all, any, none and where"
    )
    everything: bool | None = Field(default=None, description="true for one that requires nothing")
    tell: Tell | None = None
    include: bool | list[str] | None = Field(
        default=None, description="attributes that its updates carry; true: all that are declared"
    )
    backfill: bool | int | str | None = Field(
        default=None, description="earlier messages for a boolean: true, a number of messages, or a time such as 7d"
    )
    k: int | None = None
    alpha: float | None = None
    expires_at: str | float | None = Field(default=None, description="when it ends by itself")
    ttl_s: float | None = Field(default=None, description="seconds until it ends, in place of expires_at")


SUBSCRIPTION_TELL: dict[str, Any] = Tell.model_json_schema()


class SubscriptionsPage(BaseModel):
    """Active subscriptions in the order of registration."""

    subscriptions: list[dict[str, Any]]
    after: int | None = Field(description="cursor of the next page; null at the end")


class Explanation(BaseModel):
    """Why a message is in a result, or is not."""

    model_config = ConfigDict(extra="allow")
    in_result: bool
    reason: str
    why: str
    as_of: int
    words: list[str]
    missing: list[str]
    score: float | None = Field(description=SCORE)
    rank: int | None
    threshold: float | None = Field(description="score of the k-th message, in the same unit")
    distance_km: float | None
    rivals: list[dict[str, Any]] = Field(description="the first messages that rank before it")
    updates: list[dict[str, Any]]


class Reached(BaseModel):
    """A subscription that a message would reach."""

    subscription_id: str
    kind: str
    words: list[str]
    score: float | None = Field(description=SCORE)


class NearMiss(BaseModel):
    """A subscription whose query a message fails."""

    subscription_id: str
    kind: str
    reason: str
    clause: str = Field(description="the parts of the query that failed, and where the words of a phrase stand")


class Match(BaseModel):
    """Which subscriptions a message would reach."""

    words: list[str]
    subscriptions: int
    candidates: int = Field(description="subscriptions with a word of the message, or without any")
    reached: list[Reached]
    reached_in_all: int
    missed: list[NearMiss] = Field(description="the first subscriptions whose query failed")
    not_reached: dict[str, int] = Field(description="counts by reason")
    complete: bool = Field(description="whether all candidates were judged")


class Preview(BaseModel):
    """What a subscription would have matched among all logged messages."""

    model_config = ConfigDict(extra="allow")
    read: int = Field(description="messages that were tested")
    candidates: int
    messages: int
    day: int | None
    week: int | None
    per_day: float | None
    newest: list[dict[str, Any]]
    conditions: list[dict[str, Any]]


class Attribute(BaseModel):
    """An attribute of messages, which `where` of a subscription can name."""

    name: str
    type: Literal["number", "category", "time", "categories", "text"]
    misfits: int | None = Field(default=None, description="values that do not fit it; None of a replay")


class UndeclaredField(BaseModel):
    """A field of recent messages that no attribute is declared for."""

    name: str
    type: Literal["number", "category", "time", "categories"] = Field(description="of nearly all its values")
    share: float = Field(description="of recent messages")
    samples: list[str] | None = Field(default=None, description="values, to a key with the scope admin")


class AttributeOutcome(BaseModel):
    """What became of the declaration of an attribute."""

    status: Literal["created", "unchanged"]
    name: str
    type: Literal["number", "category", "time", "categories", "text"]
    from_seq: int | None = Field(default=None, description="the first message that may have a value of it")


class FolderDisk(BaseModel):
    """How much of its disk the stream's folder takes, measured once a minute at most."""

    size_bytes: dict[str, int] = Field(description="of log, updates, index and checkpoints")
    free_bytes: int
    grows_bytes_per_s: float | None = Field(description="of the last day; null in the first minute")
    full_at: str | None = Field(description="when the disk is full at this pace; null if not within ten years")


class LivingFacts(BaseModel):
    """The objects of a stream of objects that live; with `most_bytes` no new one is taken."""

    living: int
    size_bytes: int = Field(description="of their ids and versions in memory, about")
    most_bytes: int


class Stream(BaseModel):
    """What a client needs to know of the stream."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"attributes": [{"name": "price", "type": "number"}], "kinds": ["boolean", "topk"],
                 "distance": "sphere", "projection": "plate-carree", "world": [-180, -90, 180, 90],
                 "window": "count:100000", "stem": "", "fold_accents": False, "next_seq": 18, "complete_through": 17}
            ]
        }
    )  # fmt: skip
    attributes: list[Attribute]
    fields: list[UndeclaredField] = Field(default=[], description="of recent messages; none of a replay")
    kinds: list[str]
    distance: Literal["sphere", "plane"]
    projection: str
    world: list[float] = Field(description="west, south, east, north in degrees")
    window: str
    stem: str = Field(description="language in which words are stemmed; empty for none")
    fold_accents: bool = Field(description="whether cafe is café")
    next_seq: int
    first_kept_seq: int = Field(default=0, description="earlier messages are gone, but for those that results have")
    complete_through: int = Field(description="all updates as of messages up to this one are out; -1 for none")
    objects: LivingFacts | None = Field(default=None, description="of a stream of objects")
    disk: FolderDisk | None = Field(
        default=None, description="only to a key with the scope admin, where there are keys"
    )


class Source(BaseModel):
    """A broker that is read, and how far."""

    name: str
    state: Literal["connecting", "reading", "away", "ended"] = Field(description="away: tried again and again")
    error: str | None = Field(description="why it is away")
    lag: int | None = Field(description="messages of the broker that are not read yet")
    records: int = Field(description="messages that were read since the start")
    reconnects: int
    removed: int = Field(description="messages that the broker removed before they were read")
    durable: dict[str, int] = Field(description="by partition: the last message that is in the log, or was refused")


class Sink(BaseModel):
    """A receiver of all updates; `released` = `delivered` + `waiting` + `lost`, since the sink began."""

    name: str
    state: Literal["connecting", "delivering", "away", "stopped", "ended"] = Field(
        description="away: tried again and again; stopped: it has refused, until a restart"
    )
    error: str | None = Field(description="why it is away, or has stopped")
    exactly_once: bool
    position: str | None = Field(description="id of the last update, or place, up to which it has all durably")
    released: int
    delivered: int
    waiting: int
    lost: int = Field(description="updates whose files were gone before they were delivered")
    reconnects: int


class Webhooks(BaseModel):
    """All webhooks together; `accepted` = `delivered` + `waiting` + `dead` + `dropped`, of their batches."""

    active: int
    paused: int
    disabled: int
    accepted: int
    delivered: int
    waiting: int = Field(description="batches that wait for an attempt")
    dead: int = Field(description="batches without attempts left")
    dropped: int = Field(description="batches whose webhooks were deleted")
    lag: int = Field(description="released messages that the slowest active webhook has not looked at")


class Topology(BaseModel):
    """What each component does now."""

    ready: bool
    preparing: list[str] = Field(description="kinds whose kernels are compiled now")
    behind: int = Field(description="logged messages whose updates are not out")
    latency_p50_s: float | None
    latency_p99_s: float | None
    topology: dict[str, Any] | None
    source: Source | None = None
    sinks: list[Sink] = []
    webhooks: Webhooks | None = None


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    reason: str
    where: str | None = None
    column: str | None = None
    value: Any = None
    do: str


class Health(BaseModel):
    """What the process does, and figures of the stream: none before its log is read."""

    status: Literal["starting", "ok"]
    doing: str | None = Field(default=None, description="what is done until messages are matched; null once they are")
    done: float | None = Field(default=None, description="how much of that is done, 0 to 1, where that is known")
    release: str
    preparing: list[str] = Field(default=[], description="kinds whose kernels are compiled now")
    messages: int | None = None
    next_seq: int | None = None
    complete_through: int | None = None
    subscriptions: int | None = None
    broad: int | None = Field(default=None, description="of these, how many require nothing; None of a replay")
    refused: int | None = None
    duplicates: int | None = None
    clients: int | None = None
    waiting: int | None = None
    source: Source | None = None
    sinks: list[Sink] = []
