"""A process that publishes its part of a load test to a server, message by message as they fall due.

Generator g of N has every N-th message; `gateway.load.posting` sends them.
"""

from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec
import numpy as np

from gateway.client.rows import MessageOutcome
from gateway.load.posting import Ahead, Part, Posted, Server, post
from gateway.load.served import ServedWorkload, message_lines
from matching.model import Int64

#: A process with more than this share of a processor is short of it.
SHORT_OF_PROCESSOR = 0.9


class Published(NamedTuple):
    """Result of a part: `number` and `seq` of accepted messages (int64[n] each); refused ones by reason; figures of the
    request."""

    number: Int64
    seq: Int64
    refused: dict[str, int]
    posted: Posted


def generate(pipe: Connection, server: Server, load: ServedWorkload) -> None:
    """Publish each `Part` that comes through the pipe, and answer with `Published`; None ends it."""
    while (part := pipe.recv()) is not None:
        lines = Ahead(_pieces(load, part))
        pipe.send("ready")
        part = part._replace(begin_s=pipe.recv())
        outcomes = _Outcomes()
        posted = post(server, "/v1/messages", lines, part, outcomes.take)
        got = np.array(outcomes.seqs, np.int64)
        numbers = np.array(part.numbers, np.int64)[: got.shape[0]]
        pipe.send(Published(numbers[got >= 0], got[got >= 0], outcomes.refused, posted))


def _pieces(load: ServedWorkload, part: Part) -> Iterator[list[bytes]]:
    """The lines of a part, some at a time."""
    mine = np.array(part.numbers, np.int64)
    for messages, numbers in load.pieces(part.first):
        start = int(messages.seq[0])
        if start >= part.end:
            return
        rows = mine[(mine >= start) & (mine < start + len(messages))] - start
        if rows.shape[0]:
            yield message_lines(load, messages, numbers, rows.tolist())


class _Outcomes:
    """Outcomes of messages as they come: seq by line, -1 for one that was not accepted; others counted by reason."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(MessageOutcome)
        self.seqs: list[int] = []
        self.refused = Counter[str]()

    def take(self, line: bytes) -> None:
        outcome = self._decoder.decode(line)
        accepted = outcome.status == "accepted" and outcome.seq is not None
        self.seqs.append(outcome.seq if accepted and outcome.seq is not None else -1)
        if not accepted:
            self.refused[outcome.reason or outcome.status] += 1
