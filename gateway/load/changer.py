"""A process that subscribes and unsubscribes at a set rate while a load test publishes to a server.

Change n ends subscription n, the one that has stood longest, and adds a copy of it under the next free number: as many
stand at any time as at the start, and by the same recipe. Both go in one request (`gateway.load.posting`); the server
answers each with the seq of the first message for which it counts.
"""

import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec
import numpy as np

from gateway.client.rows import SubscriptionOutcome
from gateway.load.posting import Ahead, Part, Posted, Server, post
from gateway.load.served import ServedWorkload, copies, subscription_rows
from matching.model import Float64, Int64

#: Changes whose lines are made at a time.
_PIECE = 500
#: In place of a seq: the server has refused a change, or has not answered.
REFUSED, UNANSWERED = -2, -1


class Changed(NamedTuple):
    """Outcomes of changes `first` to `first + n`; column 0 is the subscription that a change ends, 1 the one it adds.

    from_seq : int64[n, 2]       the first message for which it counts; REFUSED, UNANSWERED
    answered_s : float64[n, 2]   when the answer was read (monotonic); NaN for none
    refused : dict               counts by reason
    posted : Posted              how the request went
    """

    first: int
    from_seq: Int64
    answered_s: Float64
    refused: dict[str, int]
    posted: Posted


def change(pipe: Connection, server: Server, load: ServedWorkload) -> None:
    """Send the changes of each `Part` that comes through the pipe, and answer with `Changed`; None ends it."""
    lines_of = _Lines(load)
    while (part := pipe.recv()) is not None:
        lines = Ahead(lines_of.pieces(part))
        pipe.send("ready")
        part = part._replace(begin_s=pipe.recv())
        outcomes = _Outcomes(len(part.numbers))
        posted = post(server, "/v1/subscriptions", lines, part, outcomes.take)
        pipe.send(Changed(part.first, outcomes.from_seq, outcomes.answered_s, outcomes.refused, posted))


class _Lines:
    """Makes the lines of changes: of each, two rows."""

    def __init__(self, load: ServedWorkload):
        self._load = load
        made = load.subscribers()
        self._table = made.make()
        self._filters = made.filters_of(self._table) if load.filters else None

    def pieces(self, part: Part) -> Iterator[list[bytes]]:
        """The lines of a part, some at a time."""
        for first in range(part.first, part.end, _PIECE):
            yield self._piece(np.arange(first, min(first + _PIECE, part.end)))

    def _piece(self, numbers: Int64) -> list[bytes]:
        table, filters = copies(self._table, numbers), self._filters
        if filters is not None:
            filters = type(filters)(*(column[numbers % len(self._table)] for column in filters))
        rows = subscription_rows(self._load, table, filters)
        encode, name = msgspec.json.encode, self._load.subscription_id
        return [
            encode({"unsubscribe": name(number)}) + b"\n" + encode(row) + b"\n"
            for number, row in zip(numbers.tolist(), rows, strict=True)
        ]


class _Outcomes:
    """Outcomes of changes as they come, the rows of `Changed`."""

    def __init__(self, count: int):
        self._decoder = msgspec.json.Decoder(SubscriptionOutcome)
        self._next = 0
        self.from_seq = np.full((count, 2), UNANSWERED, np.int64)
        self.answered_s = np.full((count, 2), np.nan)
        self.refused = Counter[str]()

    def take(self, line: bytes) -> None:
        outcome = self._decoder.decode(line)
        at, self._next = divmod(self._next, 2), self._next + 1
        self.answered_s[at] = time.monotonic()
        if outcome.status == ("deleted", "created")[at[1]] and outcome.from_seq is not None:
            self.from_seq[at] = outcome.from_seq
        else:
            self.from_seq[at] = REFUSED
            self.refused[outcome.reason or outcome.status] += 1
