"""Contract of webhook sinks: one call, with a batch of updates in and an outcome out.

The caller keeps a batch until the outcome is `DELIVERED`, and gives it again with the same id after any other; so a
sink needs no state.
"""

from enum import Enum
from typing import NamedTuple, Protocol


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


class BatchReceiver(Protocol):
    """Delivers batches to one receiver."""

    async def deliver(self, batch: Batch) -> Outcome:
        """Try once, within a bounded time; never raises for what the receiver does."""
        ...
