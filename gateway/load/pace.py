"""The schedule of a load test, and which of its messages the check covers."""

from typing import NamedTuple

#: The check covers at least this number of messages, and of whole batches.
_MESSAGES, _BATCHES = 4_000, 4


class Pace(NamedTuple):
    """When messages are published.

    rate : float           messages a second
    limit : int            messages in all
    batch : int            messages of a batch at most
    linger_s : float       seconds after which a batch closes even if it is not full; None: a batch closes when full
    warming : int          length of the warm-up: the first messages, which latencies and the check leave out
    timeline_s : float     length in seconds of the intervals whose latencies are also reported one by one; None: none
    changes_per_s : float  subscriptions added a second; the load removes as many others
    checked : int          lower bound of the number of messages that the check covers; raises `_MESSAGES`, never lowers
    """

    rate: float
    limit: int
    batch: int
    linger_s: float | None = None
    warming: int = 0
    timeline_s: float | None = None
    changes_per_s: float = 0.0
    checked: int = 0

    def watched(self) -> range:
        """Seqs of the messages whose updates the check compares with the oracle: the first after the warm-up."""
        return range(self.warming, self.warming + max(_MESSAGES, _BATCHES * self.batch, self.checked))
