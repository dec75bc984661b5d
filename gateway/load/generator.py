"""A process that publishes its part of a load test to a server, message by message as they fall due.

Generator g of N has every N-th message. They go as one POST of lines of JSON; the server's answers are read by a
thread, so that a message never waits for the answer to another. What is late is measured here: how far the message that
was handed over last and the latest one were behind, and how much of that time the server did not take what was sent.
Used by `gateway.load.remote`; next `gateway.load.follower`.
"""

import http.client
import math
import queue
import resource
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np

from gateway.client.rows import MessageOutcome
from gateway.load.served import ServedWorkload, message_lines
from matching.model import Int64

#: Seconds between two looks at what is due, and that a request may take to be answered to its end.
_TICK_S, _ANSWER_S = 0.001, 60.0
#: Messages that are sent in one piece at most, and pieces that are made ahead.
_MOST_AT_ONCE, _AHEAD = 1_000, 3
#: A process with more than this share of a processor is short of it.
SHORT_OF_PROCESSOR = 0.9


class Server(NamedTuple):
    """Where a server is, and the API key, if it wants one."""

    url: str
    key: str | None

    def connect(self, timeout_s: float = _ANSWER_S) -> http.client.HTTPConnection:
        """A connection to it, not opened yet."""
        parts = urlsplit(self.url)
        made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return made(parts.hostname or "", parts.port, timeout=timeout_s)

    def path(self, path: str) -> str:
        return urlsplit(self.url).path.rstrip("/") + path


class Part(NamedTuple):
    """What a generator publishes: of messages `first` to `end` every `step`-th from the `offset`-th on, at `rate` for
    all generators together; message `first` is due at `begin_s` (monotonic)."""

    first: int
    end: int
    offset: int
    step: int
    rate: float
    begin_s: float


class Published(NamedTuple):
    """What came of it: `number` and `seq` of accepted messages, int64[n]; counts of other statuses by reason; seconds
    behind the schedule at the end and at most, and blocked by the server; share of a processor; when it ended."""

    number: Int64
    seq: Int64
    refused: dict[str, int]
    behind_at_end_s: float
    furthest_behind_s: float
    blocked_s: float
    processor_share: float
    ended_s: float
    failure: str


def generate(pipe: Connection, server: Server, load: ServedWorkload) -> None:
    """Publish each `Part` that comes through the pipe, and answer with `Published`; None ends it."""
    while (part := pipe.recv()) is not None:
        lines = _Lines(load, part)
        pipe.send("ready")
        begin_s = pipe.recv()
        pipe.send(_publish(server, lines, part._replace(begin_s=begin_s)))


class _Lines:
    """Lines of a part, made ahead by a thread: the first piece before anything is due."""

    def __init__(self, load: ServedWorkload, part: Part):
        self._load, self._part = load, part
        self._pieces: queue.Queue[list[bytes]] = queue.Queue(_AHEAD)
        self._over = False
        self._first: list[bytes] | None = None
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._thread.start()
        self._first = self._pieces.get()

    def __iter__(self) -> Iterator[bytes]:
        lines, self._first = self._first, None
        while lines:
            yield from lines
            lines = self._pieces.get()

    def close(self) -> None:
        """Let the thread end."""
        self._over = True
        while self._thread.is_alive():
            try:
                self._pieces.get(timeout=0.05)
            except queue.Empty:
                continue

    def _make(self) -> None:
        part = self._part
        for messages, numbers in self._load.pieces(part.first):
            start = int(messages.seq[0])
            if start >= part.end or self._over:
                break
            mine = np.arange(part.first + part.offset, part.end, part.step)
            rows = mine[(mine >= start) & (mine < start + len(messages))] - start
            if rows.shape[0]:
                self._pieces.put(message_lines(self._load, messages, numbers, rows.tolist()))
        self._pieces.put([])


def _publish(server: Server, lines: _Lines, part: Part) -> Published:
    connection = server.connect()
    spent_s, failure, begun_s = processor_s(), "", part.begin_s
    sending = _Sending(part)
    answers = _Answers(connection)
    try:
        connection.putrequest("POST", server.path("/v1/messages"))
        connection.putheader("Content-Type", "application/x-ndjson")
        connection.putheader("Transfer-Encoding", "chunked")
        if server.key is not None:
            connection.putheader("Authorization", f"Bearer {server.key}")
        connection.endheaders()
        answers.start()
        sending.run(connection, iter(lines))
        connection.send(b"0\r\n\r\n")
    except OSError as error:
        failure = f"the connection broke: {error}"
    ended_s = time.monotonic()
    share = (processor_s() - spent_s) / max(ended_s - begun_s, 1e-9)
    answers.join()
    lines.close()
    connection.close()
    numbers = np.arange(part.first + part.offset, part.end, part.step)
    got = np.array(answers.seqs, np.int64)
    taken = got >= 0
    return Published(
        numbers[: got.shape[0]][taken],
        got[taken],
        answers.refused,
        sending.behind_s,
        sending.furthest_s,
        sending.blocked_s,
        share,
        ended_s,
        failure or answers.failure,
    )


class _Sending:
    """Hands messages over as they fall due.

    Attributes
    ----------
    behind_s, furthest_s : float    how late the message handed over last was, and the latest one
    blocked_s : float               seconds that the server did not take what was sent
    """

    def __init__(self, part: Part):
        self._part = part
        self.behind_s = self.furthest_s = self.blocked_s = 0.0

    def run(self, connection: http.client.HTTPConnection, lines: Iterator[bytes]) -> None:
        part = self._part
        count = len(range(part.first + part.offset, part.end, part.step))
        each_s = part.step / part.rate
        first_s = part.begin_s + part.offset / part.rate
        sent = 0
        while sent < count:
            now_s = time.monotonic()
            due = min(count, math.floor((now_s - first_s) / each_s) + 1) if now_s >= first_s else 0
            if due <= sent:
                time.sleep(max(_TICK_S, first_s + sent * each_s - now_s))
                continue
            some = min(due - sent, _MOST_AT_ONCE)
            data = b"".join([next(lines) for _ in range(some)])
            handing_s = time.monotonic()
            connection.send(b"%x\r\n%s\r\n" % (len(data), data))
            handed_s = time.monotonic()
            self.blocked_s += handed_s - handing_s
            self.behind_s = handed_s - (first_s + sent * each_s)
            self.furthest_s = max(self.furthest_s, self.behind_s)
            sent += some


class _Answers(threading.Thread):
    """Reads the outcomes of a request while it is sent.

    Attributes
    ----------
    seqs : list of int       by line; -1 for a message that was not accepted
    refused : dict           counts by reason
    failure : str            empty if all is well
    """

    def __init__(self, connection: http.client.HTTPConnection):
        super().__init__(daemon=True)
        self._connection = connection
        self.seqs: list[int] = []
        self.refused: dict[str, int] = {}
        self.failure = ""

    def run(self) -> None:
        try:
            response = self._connection.getresponse()
            if response.status != 200:
                self.failure = f"status {response.status}: {response.read(500).decode(errors='replace')}"
                return
            decoder = msgspec.json.Decoder(MessageOutcome)
            while line := response.readline():
                outcome = decoder.decode(line)
                accepted = outcome.status == "accepted" and outcome.seq is not None
                self.seqs.append(outcome.seq if accepted and outcome.seq is not None else -1)
                if not accepted:
                    reason = outcome.reason or outcome.status
                    self.refused[reason] = self.refused.get(reason, 0) + 1
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            self.failure = f"the answers broke off: {type(error).__name__}: {error}"


def processor_s() -> float:
    """Seconds of processor time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
