"""Return values of the client: outcomes, subscriptions, results, and the events of a stream of updates.

Decoded from JSON by `gateway.client.requests` and `gateway.client.flows`; the server describes the same in
`gateway.serve.models`. Columns that a later server adds are ignored.
"""

from typing import Any, Literal, NamedTuple

import msgspec


class MessageOutcome(msgspec.Struct, frozen=True):
    """What became of a message; `line` counts from 1 where there were several."""

    status: Literal["accepted", "duplicate", "refused"]
    id: str | None = None
    seq: int | None = None
    line: int | None = None
    reason: str | None = None
    detail: str | None = None
    column: str | None = None
    value: Any = None
    delivered: bool | None = None


class SubscriptionOutcome(msgspec.Struct, frozen=True):
    """What became of a subscription; `from_seq` is the first message for which it counts."""

    status: Literal["created", "replaced", "unchanged", "deleted", "refused"]
    subscription_id: str | None = None
    etag: str | None = None
    from_seq: int | None = None
    line: int | None = None
    reason: str | None = None
    detail: str | None = None
    column: str | None = None
    value: Any = None


class Subscription(NamedTuple):
    """The columns of an active subscription, and its version."""

    columns: dict[str, Any]
    etag: str


class ResultRow(msgspec.Struct, frozen=True):
    """A message in a result; `rank` counts from 1 and is None for a match."""

    message_id: str
    seq: int
    text: str
    lon: float
    lat: float
    rank: int | None = None
    score: float | None = None
    words: list[str] = []
    distance_km: float | None = None


class Missed(msgspec.Struct, frozen=True):
    """Updates that were not sent, why, and what to do; `before` is the first position that is there."""

    reason: str
    detail: str = ""
    do: str = ""
    after: str | None = None
    before: str | None = None

    @property
    def resume(self) -> str | None:
        """The position from which the stream is whole, for `since=`; None: from now."""
        return None if self.before is None else str(int(self.before.rpartition("-")[0]) - 1)


class Results(msgspec.Struct, frozen=True):
    """The result of a subscription as of message `as_of`, best first; with a `gap` rows may be missing."""

    subscription_id: str
    kind: str
    as_of: int
    results: list[ResultRow]
    gap: Missed | None = None


class Update(msgspec.Struct, frozen=True):
    """One `match`, `enter` or `leave`; `id` is its place in the stream, for `since=`."""

    id: str
    change: Literal["match", "enter", "leave"]
    subscription_id: str
    message_id: str
    seq: int
    as_of: int
    score: float | None
    text: str
    lon: float
    lat: float


class Snapshot(Results, frozen=True):
    """The result of a followed subscription at the start of a stream; replaces an earlier one."""


class Progress(msgspec.Struct, frozen=True):
    """All updates as of messages up to `through` have been handed on."""

    through: int


Event = Update | Snapshot | Progress | Missed
