"""Processes that send their part of a load test to a server, row by row as they fall due.

`publish` sends messages; generator g of N has every N-th. `change` subscribes and unsubscribes: change n ends
subscription n, the one that has stood longest, and adds a copy of it under the next free number, so that as many stand
at any time as at the start, and by the same recipe. `gateway.load.posting` keeps the schedule.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec
import numpy as np

from gateway.client.rows import MessageOutcome, SubscriptionOutcome
from gateway.load.posting import Ahead, Posted, PostingShare, ServerAddress, post
from gateway.load.served import ServedWorkload, copies, message_lines, subscription_rows
from matching.model import Float64, Int64

#: A process with more than this share of a processor is short of it.
SHORT_OF_PROCESSOR = 0.9
#: Changes whose lines are made at a time.
_PIECE = 500
#: In place of a seq: the server has refused a change, or has not answered.
REFUSED, UNANSWERED = -2, -1


class Published(NamedTuple):
    """Result of a part: `number` and `seq` of accepted messages (int64[n] each); refused ones by reason; figures of the
    request."""

    number: Int64
    seq: Int64
    refused: dict[str, int]
    posted: Posted


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


def publish(pipe: Connection, server: ServerAddress, load: ServedWorkload) -> None:
    """Publish each `PostingShare` that comes through the pipe, and answer with `Published`; None ends it."""
    _send(pipe, server, "/v1/messages", lambda part: _message_pieces(load, part), _MessageOutcomes)


def change(pipe: Connection, server: ServerAddress, load: ServedWorkload) -> None:
    """Send the changes of each `PostingShare` that comes through the pipe, and answer with `Changed`; None ends it."""
    _send(pipe, server, "/v1/subscriptions", _ChangeLines(load).pieces, _ChangeOutcomes)


def _send(
    pipe: Connection,
    server: ServerAddress,
    path: str,
    pieces: Callable[[PostingShare], Iterator[list[bytes]]],
    outcomes_of: "type[_MessageOutcomes | _ChangeOutcomes]",
) -> None:
    while (part := pipe.recv()) is not None:
        lines = Ahead(pieces(part))
        pipe.send("ready")
        part = part._replace(begin_s=pipe.recv())
        outcomes = outcomes_of(part)
        pipe.send(outcomes.result(post(server, path, lines, part, outcomes.take)))


def _message_pieces(load: ServedWorkload, part: PostingShare) -> Iterator[list[bytes]]:
    """The lines of a part, some at a time."""
    mine = np.array(part.numbers, np.int64)
    for messages, numbers in load.pieces(part.first):
        start = int(messages.seq[0])
        if start >= part.end:
            return
        rows = mine[(mine >= start) & (mine < start + len(messages))] - start
        if rows.shape[0]:
            yield message_lines(load, messages, numbers, rows.tolist())


class _MessageOutcomes:
    """Outcomes of messages as they come: seq by line, -1 for one that was not accepted; others counted by reason."""

    def __init__(self, part: PostingShare):
        self._part = part
        self._decoder = msgspec.json.Decoder(MessageOutcome)
        self._seqs: list[int] = []
        self._refused = Counter[str]()

    def take(self, line: bytes) -> None:
        outcome = self._decoder.decode(line)
        accepted = outcome.status == "accepted" and outcome.seq is not None
        self._seqs.append(outcome.seq if accepted and outcome.seq is not None else -1)
        if not accepted:
            self._refused[outcome.reason or outcome.status] += 1

    def result(self, posted: Posted) -> Published:
        got = np.array(self._seqs, np.int64)
        numbers = np.array(self._part.numbers, np.int64)[: got.shape[0]]
        return Published(numbers[got >= 0], got[got >= 0], self._refused, posted)


class _ChangeLines:
    """Makes the lines of changes: of each, two rows."""

    def __init__(self, load: ServedWorkload):
        self._load = load
        made = load.subscribers()
        self._table = made.make()
        self._filters = made.filters_of(self._table) if load.filters else None

    def pieces(self, part: PostingShare) -> Iterator[list[bytes]]:
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


class _ChangeOutcomes:
    """Outcomes of changes as they come, the rows of `Changed`."""

    def __init__(self, part: PostingShare):
        self._first, count = part.first, len(part.numbers)
        self._decoder = msgspec.json.Decoder(SubscriptionOutcome)
        self._next = 0
        self._from_seq = np.full((count, 2), UNANSWERED, np.int64)
        self._answered_s = np.full((count, 2), np.nan)
        self._refused = Counter[str]()

    def take(self, line: bytes) -> None:
        outcome = self._decoder.decode(line)
        at, self._next = divmod(self._next, 2), self._next + 1
        self._answered_s[at] = time.monotonic()
        if outcome.status == ("deleted", "created")[at[1]] and outcome.from_seq is not None:
            self._from_seq[at] = outcome.from_seq
        else:
            self._from_seq[at] = REFUSED
            self._refused[outcome.reason or outcome.status] += 1

    def result(self, posted: Posted) -> Changed:
        return Changed(self._first, self._from_seq, self._answered_s, self._refused, posted)
