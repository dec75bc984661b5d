"""A process that follows a server's updates during a load test, and notes when each came.

It reads by `gateway.client`, which connects again by itself; what the server says it did not send (`gap`) is noted.
"""

import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from gateway.client.errors import ClientError
from gateway.client.rows import Missed, Progress, Update
from gateway.load.posting import ServerAddress, processor_s
from gateway.load.served import ServedWorkload
from matching.model import CHANGES, Float64, Int8, Int64

#: Seconds without the server before the follower gives up.
_PATIENCE_S = 30.0


class Received(NamedTuple):
    """Updates of the run as they came, one a row.

    at_s : float64[n]        when it was read, monotonic
    subscription : int64[n]  number of the subscription
    message : int64[n]       number of the message; -1 for the first one, with all words
    seq, as_of : int64[n]    as the server says
    boundary : int64[n]      last message of its boundary
    change : int8[n]         place in `matching.model.CHANGES`
    score : float64[n]       NaN for none
    """

    at_s: Float64
    subscription: Int64
    message: Int64
    seq: Int64
    as_of: Int64
    boundary: Int64
    change: Int8
    score: Float64


def latencies(
    received: Received, number: Int64, seq: Int64, first: int, begin_s: float, rate: float
) -> tuple[Float64, Float64]:
    """Of each update that these messages caused, when its cause was due, and the seconds from then until it was read.

    The cause is the message for a match, and the last message of its boundary for a change of a result; due times are
    seconds after the first message, which was due at `begin_s` (monotonic).
    """
    order = np.argsort(seq)
    if not order.shape[0]:
        return np.zeros(0), np.zeros(0)
    cause = np.where(received.change == 0, received.seq, received.as_of)
    at = np.searchsorted(seq[order], cause, "right") - 1
    ours = at >= 0
    due_s = (number[order][at[ours]] - first) / rate
    return due_s, received.at_s[ours] - (begin_s + due_s)


class FollowerAnswer(NamedTuple):
    """Answer of a follower: updates of the run since the last answer; number of other updates; gaps; its error, empty
    if it did not fail; seq up to which all updates were read; share of a processor.

    Row by row, ascending, `through_of` and `through_s` say up to which message all updates were read when (int64[m],
    float64[m], monotonic).
    """

    received: Received
    foreign: int
    gaps: list[str]
    failure: str
    through: int
    processor_share: float
    through_of: Int64
    through_s: Float64


def follow(pipe: Connection, server: ServerAddress, load: ServedWorkload, since: str) -> None:
    """Follow the updates after a position; the process ends when it reads None from the pipe.

    On `(through, until_s)` from the pipe it sends a `FollowerAnswer`: once it has read all updates as of messages up to
    `through`, or at the time `until_s` (monotonic).
    """
    from gateway.client.blocking import Client  # an optional extra

    book = _Book(pipe, load)
    try:
        with Client(server.url, key=server.key, patience_s=_PATIENCE_S) as client:
            events = client.events(since=since, on_gap=book.miss, patience_s=_PATIENCE_S)
            pipe.send("ready")
            for event in events:
                book.take(event)
                if book.over:
                    return
    except ClientError as error:
        book.fail(str(error))


class _Book:
    def __init__(self, pipe: Connection, load: ServedWorkload):
        self._pipe = pipe
        self._subscription, self._message = f"{load.run}-s", f"{load.run}-"
        self._change = {name: code for code, name in enumerate(CHANGES)}
        self._wanted: tuple[int, float] | None = None
        self._through = -1
        self.over = False
        self._clear()

    def _clear(self) -> None:
        self._rows: list[tuple[float, int, int, int, int, int, int, float]] = []
        self._foreign, self._gaps = 0, []
        self._progress: list[tuple[int, float]] = []
        self._begun_s, self._spent_s = time.monotonic(), processor_s()

    def take(self, event: object) -> None:
        now_s = time.monotonic()
        if isinstance(event, Update):
            if not event.subscription_id.startswith(self._subscription):
                self._foreign += 1
                return
            number = event.message_id.removeprefix(self._message)
            self._rows.append((
                now_s, int(event.subscription_id[len(self._subscription) :]), int(number) if number.isdigit() else -1,
                event.seq, event.as_of, int(event.id.partition("-")[0]), self._change[event.change],
                np.nan if event.score is None else event.score,
            ))  # fmt: skip
        elif isinstance(event, Progress):
            if event.through > self._through:
                self._through = event.through
                self._progress.append((event.through, now_s))
            self._answer(now_s, "")

    def miss(self, missed: Missed) -> None:
        self._gaps.append(f"{missed.reason}: {missed.detail}")

    def _answer(self, now_s: float, failure: str) -> None:
        if self._wanted is None and self._pipe.poll():
            self._wanted = self._pipe.recv()
            self.over = self._wanted is None
        if self._wanted is None:
            return
        through, until_s = self._wanted
        if self._through >= through or now_s >= until_s or failure:
            self._wanted = None
            self._pipe.send(self._followed(failure))
            self._clear()

    def _followed(self, failure: str) -> FollowerAnswer:
        at_s, *whole, change, score = list(zip(*self._rows, strict=True)) or [()] * len(Received._fields)
        subscription, message, seq, as_of, boundary = (np.array(each, np.int64) for each in whole)
        received = Received(
            np.array(at_s, np.float64), subscription, message, seq, as_of, boundary, np.array(change, np.int8),
            np.array(score, np.float64),
        )  # fmt: skip
        share = (processor_s() - self._spent_s) / max(time.monotonic() - self._begun_s, 1e-9)
        through_of, through_s = list(zip(*self._progress, strict=True)) or [()] * 2
        return FollowerAnswer(
            received, self._foreign, self._gaps, failure, self._through, share, np.array(through_of, np.int64),
            np.array(through_s, np.float64),
        )  # fmt: skip

    def fail(self, why: str) -> None:
        """Answer the next question with the failure."""
        if self._wanted is None:
            self._wanted = self._pipe.recv()
        if self._wanted is not None:
            self._answer(float("inf"), why)
