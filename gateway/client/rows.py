"""Rows that the API answers with: outcomes, subscriptions, results, and the events of a stream of updates.

The client decodes these types, and the server describes them (OpenAPI, `gateway.serve.models`). Columns that a later
server adds are ignored.
"""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

#: The meaning of a score, by kind.
SCORE = (
    "knn: the distance, metres on the earth (with --distance plane a part of the world's side); topk: 0 to 1; decay: a "
    "logarithm that grows with the time of the message, so that only which is larger counts; skyline: 0 to 1, how near "
    "to the middle of the region; null for a match of boolean"
)
#: Key of the JSON schema of a row, which stands for its name, where pydantic puts it into another one.
ROW_SCHEMA = "x-row"


class ApiRow(msgspec.Struct, frozen=True):
    """A row of an answer, which models of pydantic may have as a field: they refer to its schema by name."""

    EXAMPLES: ClassVar[list[dict[str, Any]]] = []

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return {"type": "any"}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        return {ROW_SCHEMA: cls.__name__}


class Warned(ApiRow, frozen=True):
    """A value that a message was taken without, since it does not fit its attribute."""

    column: str
    value: Annotated[Any, Meta(description="what the row has there, as text where it may be long")]
    why: str


class MessageOutcome(ApiRow, frozen=True):
    """What became of a message."""

    EXAMPLES: ClassVar[list[dict[str, Any]]] = [{"status": "accepted", "id": "m1", "seq": 17}]

    status: Literal["accepted", "duplicate", "refused"]
    id: str | None = None
    seq: Annotated[int | None, Meta(description="its number in the stream")] = None
    line: Annotated[int | None, Meta(description="of the request, from 1, where it has several rows")] = None
    reason: str | None = None
    detail: str | None = None
    column: Annotated[str | None, Meta(description="of a refusal: whose value is at fault; null: the whole row")] = None
    value: Annotated[Any, Meta(description="what the row has there, as text where it may be long")] = None
    warnings: Annotated[list[Warned] | None, Meta(description="values that the message was taken without")] = None
    delivered: Annotated[bool | None, Meta(description="with wait=delivered: whether its updates are out")] = None


class Backfilled(ApiRow, frozen=True):
    """What the backfill of a subscription finds."""

    start: Annotated[int, Meta(description="the number of its first message")]
    updates: int
    truncated: Annotated[bool, Meta(description="whether there are more, older ones, which are left out")]


class SubscriptionOutcome(ApiRow, frozen=True):
    """What became of a subscription."""

    EXAMPLES: ClassVar[list[dict[str, Any]]] = [
        {"status": "created", "subscription_id": "s1", "etag": '"5f0c2b"', "from_seq": 18}
    ]

    status: Literal["created", "replaced", "unchanged", "deleted", "refused"]
    subscription_id: str | None = None
    etag: str | None = None
    from_seq: Annotated[int | None, Meta(description="the first message for which the change counts")] = None
    matches_per_day: Annotated[
        float | None, Meta(description="expected, by all logged messages; of one alone in a request")
    ] = None
    backfill: Annotated[Backfilled | None, Meta(description="what its backfill finds; as matches_per_day")] = None
    read_as: Annotated[str | None, Meta(description="its query as it was understood")] = None
    line: int | None = None
    reason: str | None = None
    detail: str | None = None
    column: str | None = None
    value: Any = None


class ActiveSubscription(NamedTuple):
    """The columns of an active subscription, and its version."""

    columns: dict[str, Any]
    etag: str


class ResultRow(ApiRow, frozen=True):
    """A message in a result."""

    message_id: str
    seq: int
    text: str
    lon: float
    lat: float
    rank: Annotated[int | None, Meta(description="from 1; null for a match")] = None
    score: Annotated[float | None, Meta(description=SCORE)] = None
    words: Annotated[list[str], Meta(description="the keywords that it has")] = []
    distance_km: Annotated[float | None, Meta(description="null where the subscription has a region")] = None
    object_id: Annotated[
        str | None, Meta(description="in a stream of objects, the object that the message is a version of")
    ] = None


class Missed(ApiRow, frozen=True):
    """Updates that were not sent, why, and what to do; `before` is the first position that is there."""

    reason: str
    detail: str = ""
    do: str = ""
    after: str | None = None
    before: str | None = None

    @property
    def resume(self) -> str | None:
        """The position from which the stream is whole, for `since=`; None: from now."""
        return None if self.before is None else str(int(self.before.partition("-")[0]) - 1)


class Results(ApiRow, frozen=True):
    """The result of a subscription as of message `as_of`, best first; with a `gap` rows may be missing."""

    subscription_id: str
    kind: str
    as_of: Annotated[int, Meta(description="all messages up to this one are accounted for")]
    results: list[ResultRow]
    gap: Annotated[
        Missed | None,
        Meta(
            description="there if files of updates are lost: rows of messages from `after` to `before` may be missing"
        ),
    ] = None


class Update(ApiRow, frozen=True):
    """One `match`, `enter`, `leave` or `change`; `id` is its place in the stream, for `since=`."""

    EXAMPLES: ClassVar[list[dict[str, Any]]] = [
        {
            "id": "17-0", "change": "enter", "subscription_id": "s2", "message_id": "m1", "seq": 17, "as_of": 17,
            "score": 0.01, "text": "Ramen, open late", "lon": 139.69, "lat": 35.68,
        }
    ]  # fmt: skip

    id: str
    change: Literal["match", "enter", "leave", "change"]
    subscription_id: str
    message_id: str
    seq: int
    as_of: int
    score: Annotated[float | None, Meta(description=SCORE)]
    text: str
    lon: float
    lat: float
    object_id: Annotated[
        str | None, Meta(description="in a stream of objects, the object that the message is a version of")
    ] = None
    backfill: Annotated[bool, Meta(description="a match of a message that came before the subscription")] = False
    attributes: Annotated[dict[str, Any], Meta(description="of the message, for a subscription with `include`")] = {}
    previous: Annotated[
        dict[str, Any], Meta(description="of the version before, those of `attributes` that were different")
    ] = {}


class ToldWhat(ApiRow, frozen=True):
    """What a telling is: updates as they came, or the digest of a `window`; `id` is the same whenever it is sent."""

    id: str
    subscription_id: str
    window: Annotated[str | None, Meta(description="when it became due, by the wall clock of its zone")] = None
    count: Annotated[int, Meta(description="updates that are told")] = 0
    left_out: Annotated[int, Meta(description="of these, the first ones, which are too many; /v1/updates has them")] = 0
    similar: Annotated[int, Meta(description="updates that are not told, being like others")] = 0
    lost: bool = False


class Telling(ApiRow, frozen=True):
    """What a subscription with `tell` was told; `number` is its place, for `since=`."""

    number: int
    told_s: Annotated[float, Meta(description="seconds since 1970")]
    told: ToldWhat
    updates: list[Update]


class ToldPage(ApiRow, frozen=True):
    """Some tellings in order; go on from `through`. With a `gap` older ones are not kept any more."""

    told: list[Telling]
    through: int
    gap: Missed | None = None


class Snapshot(Results, frozen=True):
    """The result of a followed subscription at the start of a stream; replaces an earlier one."""


class Progress(ApiRow, frozen=True):
    """All updates as of messages up to `through` have been handed on."""

    through: int


Event = Update | Snapshot | Progress | Missed
