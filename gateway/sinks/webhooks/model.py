"""A webhook and a delivery, as the store keeps them and the API shows them; a batch, and what became of an attempt.

A batch is kept until an attempt has delivered it, and is sent again with the same id after any other outcome.
"""

import json
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from gateway.serve.included import Include
from gateway.serve.update_parts import Position
from matching.telling import AT_ONCE, TellingRule, telling_of

State = Literal["active", "paused", "disabled"]
STATES: tuple[State, ...] = ("active", "paused", "disabled")
Status = Literal["waiting", "delivered", "dead"]
#: Updates and bytes of a batch unless the webhook says otherwise, and at most.
BATCH_UPDATES, BATCH_BYTES = 100, 256 * 1024
MOST_BATCH_UPDATES, MOST_BATCH_BYTES = 10_000, 2**20
#: Seconds that a rotated secret still signs.
OLD_SECRET_S = 24 * 3600


@dataclass
class Tally:
    """Deliveries, or updates; accepted = delivered + waiting + dead."""

    accepted: int = 0
    delivered: int = 0
    dead: int = 0

    @property
    def waiting(self) -> int:
        return self.accepted - self.delivered - self.dead

    def shown(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("accepted", "delivered", "waiting", "dead")}


@dataclass
class Webhook:
    """A webhook.

    webhook_id, url : str
    subscription_id, owner : str or None    whose updates it gets: one of them is given
    made_by : str or None                   owner of the key that made it, who alone sees it; None: all
    batch_updates, batch_bytes : int
    every_s : int                           0: as they come, else a digest at a time
    tell : str                              JSON of `at`, `zone`, `quiet`: digests at set times, none in some hours
    include : str                           JSON of what its updates carry; "": what their subscriptions say
    secret, old_secret : str                the old one signs until `old_until_s`
    position : Position                     updates up to here are accepted
    due_s : float                           of a digest, when the next one is cut
    told : int                              tellings up to this number are accepted
    failures : int                          attempts that failed since the last one that did not
    """

    webhook_id: str
    url: str
    subscription_id: str | None
    owner: str | None
    made_by: str | None
    created_s: int
    secret: str
    position: Position
    batch_updates: int = BATCH_UPDATES
    batch_bytes: int = BATCH_BYTES
    every_s: int = 0
    tell: str = ""
    include: str = ""
    due_s: float = 0.0
    state: State = "active"
    why: str = ""
    old_secret: str = ""
    old_until_s: float = 0.0
    failures: int = 0
    told: int = 0
    deliveries: Tally = field(default_factory=Tally)
    updates: Tally = field(default_factory=Tally)

    @property
    def telling(self) -> TellingRule:
        """When it is told, besides what its subscriptions say."""
        return _telling(self.tell)

    @property
    def included(self) -> Include | None:
        """What its updates carry; None: what their subscriptions say."""
        return json.loads(self.include) if self.include else None

    def secrets(self, now_s: float) -> list[str]:
        """Those that sign now."""
        return [self.secret, *([self.old_secret] if self.old_secret and now_s < self.old_until_s else [])]


class WebhookDelivery(NamedTuple):
    """A batch of one webhook, and the outcome of its attempts; the rows are in the store.

    number : int       in the order in which batches were accepted, of all webhooks
    due_s : float      of the next attempt, in seconds since 1970
    began_s : float    when it was accepted, or was to be delivered again: its age counts from here
    """

    number: int
    webhook_id: str
    batch_id: str
    first: str
    last: str
    updates: int
    created_s: int
    status: Status = "waiting"
    attempts: int = 0
    due_s: float = 0.0
    ended_s: float | None = None
    reason: str = ""
    detail: str = ""
    began_s: float = 0.0

    def shown(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "id": self.batch_id,
            "number": self.number,
            "status": self.status,
            "attempts": self.attempts,
            "updates": self.updates,
            "first": self.first,
            "last": self.last,
            "created_s": self.created_s,
            "next_attempt_s": self.due_s if self.status == "waiting" else None,
            "ended_s": self.ended_s,
            "last_error": {"reason": self.reason, "detail": self.detail} if self.reason else None,
        }


class Batch(NamedTuple):
    """Updates that are delivered together; the same at every attempt.

    batch_id : str     never changes, and no other batch has it
    created_s : int    when it was cut, in seconds since 1970
    first, last : str  ids (`boundary-index`) of its first and last update
    rows : bytes       the updates in the order of the stream, each a line of JSON; of a telling first a line that says
                       what it is (`{"told": ...}`)
    """

    batch_id: str
    created_s: int
    first: str
    last: str
    rows: bytes


class AttemptVerdict(Enum):
    """What became of an attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"  #: to be tried again
    GONE = "gone"  #: the receiver wants nothing any more


class Outcome(NamedTuple):
    """What became of an attempt.

    verdict : AttemptVerdict
    reason : str           a code; empty where it was delivered
    detail : str
    wait_s : float or None    before the next attempt, as the receiver wants it
    """

    verdict: AttemptVerdict
    reason: str = ""
    detail: str = ""
    wait_s: float | None = None


DELIVERED = Outcome(AttemptVerdict.DELIVERED)


@lru_cache(maxsize=1024)
def _telling(text: str) -> TellingRule:
    found = telling_of(json.loads(text)) if text else AT_ONCE
    return AT_ONCE if isinstance(found, str) else found  # its zone is not known on this machine any more
