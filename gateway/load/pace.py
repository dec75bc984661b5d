"""The schedule of a load test, and which of its messages are checked. Used by `gateway.load.loadtest`."""

from typing import NamedTuple

#: Least messages, and least batches, that are checked.
_MESSAGES, _BATCHES = 4_000, 4


class Pace(NamedTuple):
    """When messages are published.

    rate : float           messages a second
    limit : int            messages in all
    batch : int            most messages of a batch
    linger_s : float       a batch closes after so many seconds; None: when it is full
    warming : int          messages, the first, that do not count
    timeline_s : float     latencies are also recorded for each interval of so many seconds; None: for none
    changes_per_s : float  subscriptions that are added a second, and as many others removed
    checked : int          messages after the warm-up that are checked at least, if any are
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
        """The messages that are checked."""
        return range(self.warming, self.warming + max(_MESSAGES, _BATCHES * self.batch, self.checked))
