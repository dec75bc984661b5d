"""Updates to a stream of NATS JetStream.

Each update is one message, with the attributes of a CloudEvent as headers. The sink's position is the message id of the
last message of the stream. The sink publishes many messages before the first acknowledgement, and makes each of them
conditional on its predecessor (optimistic concurrency): the first expects the last sequence of the stream
(`Nats-Expected-Last-Sequence`), each further one the message id of the previous one (`Nats-Expected-Last-Msg-Id`). So
the server refuses every message behind one that it has refused, and every message that it has already: the stream has
no gap, no repeat and no other order after a crash, also if several processes publish. Sequences alone are not enough:
after another program has written n messages, the server would accept message n of a run without those before it.
"""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api

from gateway.brokers.nats_client import NatsClient
from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_parts import Position
from gateway.sinks.cloudevents import attributes_of
from gateway.sinks.stream import SinkAway, UpdateChunk
from matching.errors import ConfigError, EngineError

#: Most messages, and most bytes of their data, that are published and not acknowledged yet.
WINDOW, WINDOW_BYTES = 1_000, 8 * 2**20
#: Timeouts in seconds: of one acknowledgement, of a whole chunk.
_ANSWER_S, _CHUNK_S = 10.0, 60.0
#: Headers of one update are assumed to have fewer bytes; `_size` counts them only for an update this near the maximum.
_HEADERS_BYTES = 32_768
#: Most characters of a token of a subject; characters of a longer one that remain before the digest.
_TOKEN, _LEFT = 255, 190
_ID, _LAST_ID = api.Header.MSG_ID.value, api.Header.EXPECTED_LAST_MSG_ID.value
_LAST_SEQUENCE = api.Header.EXPECTED_LAST_SEQUENCE.value
_OURS = re.compile(r"(.+)/([0-9]+-[0-9]+)")
#: Characters of a CloudEvent's value that need no percent-encoding: printable ASCII without space, `"` and `%`.
_PLAIN = re.compile(r"[!#$&-~]*")
_SAFE = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")
#: Error codes of JetStream: the message is too large; its headers are.
_TOO_LARGE, _HEADERS_TOO_LARGE = 10054, 10097
#: Error codes of JetStream: the last message id or the last sequence is not the expected one.
_OTHER_LAST = frozenset({10070, 10071})
#: Error codes of JetStream: the server or the account has no space left, or the stream has reached a limit.
_NO_ROOM = frozenset({10002, 10023, 10028, 10047, 10077})

_Result = TypeVar("_Result")


class NatsSink:
    """The sink; see `gateway.sinks.stream.StreamSink` for its methods.

    Parameters
    ----------
    servers : sequence of str
        URLs, with user and password if the server wants them.
    stream : str
        Name of the JetStream stream; no other program may write to it.
    subject : str
        The sink publishes an update under `SUBJECT.<token of the subscription id>`, see `token_of`.

    Notes
    -----
    The stream has each update once. The sink is not `exactly_once` in the sense of the contract: readers see a boundary
    in part while it is written, and if all messages are removed from the stream, the position in the folder decides.
    An earlier process may still publish after `open`, but only the updates that come next; the server then refuses our
    next chunk, and the pump opens the sink again.
    """

    extra = "nats"
    exactly_once = False

    def __init__(self, servers: Sequence[str], stream: str, subject: str):
        self.name = f"nats/{stream}"
        self._servers = list(servers)
        self._stream = stream
        self._subject = subject
        self._connection: NatsClient | None = None
        self._identity = ""
        self._sequence = 0  # last sequence of the stream
        self._replicated = False
        self._at: Position | None = None  # of the last update in the stream
        self._run: _Run | None = None
        self._runs = 0
        self._refused = ""
        self._opening: asyncio.Task[Any] | None = None  # until the stream is open

    def open(self, stream: str) -> Position | None:
        self.close()
        self._connection = NatsClient(self.name, self._servers)
        return self._call(self._connect(stream))

    def deliver(self, chunk: UpdateChunk) -> Position:
        updates = self._lacking(chunk.updates)
        if updates:
            self._call(self._publish_all(updates))
        return chunk.behind

    def check(self) -> None:
        """See `StreamSink`; the client itself pings the server."""
        if not self._client.is_connected:
            raise SinkAway(f"{self.name}: the connection is lost")

    def close(self) -> None:
        connection, self._connection, self._run = self._connection, None, None
        if connection is not None:
            connection.close()

    async def _connect(self, identity: str) -> Position | None:
        self._refused, self._identity, self._opening = "", identity, asyncio.current_task()
        client = self._client
        await self._opened.connect(error_cb=self._note_error, closed_cb=self._wake)
        info = await self._look()
        self._check(info.config)
        self._replicated = (info.config.num_replicas or 1) > 1
        last = await self._last(info.state.last_seq)
        self._sequence = max(info.state.last_seq, last.seq or 0) if last else info.state.last_seq
        self._at = self._position(last) if last else None
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._take)
        self._opening = None
        return self._at

    async def _look(self) -> api.StreamInfo:
        try:
            return await self._context.stream_info(self._stream)
        except nats.js.errors.NotFoundError as error:
            raise ConfigError(
                f"{self.name}: the server has no stream {self._stream!r}; create it, for the subject {self._takes!r}"
            ) from error
        except nats.js.errors.ServiceUnavailableError as error:
            raise SinkAway(f"{self.name}: JetStream does not answer; the server may be without it (-js)") from error

    def _check(self, config: api.StreamConfig) -> None:
        retention = api.RetentionPolicy(config.retention or "limits")
        subjects = config.subjects or []
        why = ""
        if config.mirror is not None:
            why = "is a mirror, to which nobody can write; name the stream that it mirrors"
        elif not any(_covers(one, f"{self._subject}.~") for one in subjects):
            why = f"takes {', '.join(subjects) or 'no subject'}; give it the subject {self._takes!r}"
        elif config.sealed:
            why = "is sealed, so nothing can be written to it; name another"
        elif config.no_ack:
            why = "acknowledges nothing (no_ack), so nobody knows what it has; create it without that"
        elif config.persist_mode == api.PersistMode.ASYNC:
            why = "acknowledges before it has written (persist_mode async); create it without that"
        elif retention is not api.RetentionPolicy.LIMITS:
            why = (
                f"has the retention {retention.value}, by which the server removes what was taken, so that it could "
                "not say how far it has come; take one with the retention limits, and source it into this one"
            )
        if why:
            raise ConfigError(f"{self.name}: {why}")

    async def _last(self, sequence: int) -> api.RawStreamMsg | None:
        """The message with this sequence; if it was deleted, the last one under our subject; None without either."""
        if not sequence:
            return None
        with contextlib.suppress(nats.js.errors.NotFoundError):
            return await self._context.get_msg(self._stream, sequence)
        with contextlib.suppress(nats.js.errors.NotFoundError):
            return await self._context.get_last_msg(self._stream, f"{self._subject}.>")
        return None

    def _position(self, last: api.RawStreamMsg) -> Position:
        """Position of the update in a message. Raises ConfigError for a message of another program or stream."""
        found = _OURS.fullmatch((last.headers or {}).get(_ID, ""))
        if found is None:
            raise ConfigError(
                f"{self.name}: message {last.seq:,} is none of Skyray's ({last.subject}); give Skyray a stream of its "
                "own, to which no other program writes"
            )
        if unquote(found[1]) != self._identity:
            raise ConfigError(
                f"{self.name}: has the updates of another stream of Skyray's, {found[1]}; this one is "
                f"{self._identity}. Name another stream of JetStream, or the folder whose updates these are"
            )
        return Position.of(found[2])

    def _lacking(self, updates: list[ReleasedUpdate]) -> list[ReleasedUpdate]:
        """The updates that the stream does not have yet: a chunk may begin before the stream's position."""
        if self._at is None:
            return updates
        first = 0
        while first < len(updates) and Position.of(updates[first].position) <= self._at:
            first += 1
        return updates[first:] if first else updates

    async def _publish_all(self, updates: list[ReleasedUpdate]) -> None:
        try:
            async with asyncio.timeout(_CHUNK_S):
                while updates:
                    self._runs += 1
                    run = self._run = _Run(updates, self._runs)
                    await self._publish(run)
                    self._sequence += run.stored
                    if run.taken:
                        self._at = Position.of(updates[run.taken - 1].position)
                    if run.refusal is not None and not run.is_after_repeats:
                        raise self._meaning(run.refusal, updates[run.taken])
                    updates = updates[run.taken :]
        finally:
            self._run = None

    async def _publish(self, run: "_Run") -> None:
        """Publish updates until the server refuses one, and wait for the acknowledgements of all published."""
        client = self._client
        inbox, largest = f"{self._inbox}.{run.number}-", client.max_payload - _HEADERS_BYTES
        before = ""
        for number, update in enumerate(run.updates):
            headers = self._headers(update)
            if before:
                headers[_LAST_ID] = before
            # a leader compares the expected sequence before it replicates a message, the expected id only afterwards
            if not before or self._replicated:
                headers[_LAST_SEQUENCE] = str(self._sequence + number)
            before = headers[_ID]
            if len(update.data) > largest and _size(update, headers) > client.max_payload:
                run.refuse(_Refusal(_TOO_LARGE, f"its max_payload is {client.max_payload:,} bytes"), number)
                break
            subject = f"{self._subject}.{token_of(update.subscription_id)}"
            await client.publish(subject, update.data, f"{inbox}{number}", headers)
            run.sent += 1
            run.open_bytes += len(update.data)
            while run.is_full and run.refusal is None:
                await self._progress(run)
            if run.refusal is not None:
                break
        while run.answered < run.sent:
            await self._progress(run)

    def _headers(self, update: ReleasedUpdate) -> dict[str, str]:
        attributes = attributes_of(update, self._identity)
        found = {f"ce-{name}": _encoded(value) for name, value in attributes.items()}
        found[_ID] = _encoded(f"{self._identity}/{update.position}")
        return found

    async def _progress(self, run: "_Run") -> None:
        """Wait for an acknowledgement. Raises SinkAway if the connection is lost or none comes in `_ANSWER_S`."""
        connection = self._connection  # `close` sets it to None, from another thread
        if connection is None or connection.client.is_closed or self._refused:
            raise SinkAway(f"{self.name}: the connection is lost")
        run.changed.clear()
        try:
            await asyncio.wait_for(run.changed.wait(), _ANSWER_S)
        except TimeoutError as error:
            raise SinkAway(f"{self.name}: no acknowledgement came within {_ANSWER_S:g} s") from error

    async def _take(self, message: Msg) -> None:
        """Take one acknowledgement or refusal; callback of the inbox subscription."""
        run = self._run
        number, _, place = message.subject[len(self._inbox) + 1 :].partition("-")
        if run is None or number != str(run.number):
            return
        if message.headers and message.headers.get(api.Header.STATUS.value) == "503":
            run.take(int(place), _Answer(error=_Refusal(503, "no stream takes the subject")))
            return
        with contextlib.suppress(msgspec.MsgspecError):  # other subscribers of the subject may reply anything
            answer = _ANSWERS.decode(message.data)
            if answer.error is not None or answer.stream == self._stream:
                run.take(int(place), answer)

    def _meaning(self, refusal: "_Refusal", update: ReleasedUpdate) -> EngineError:
        """The error for a refused update: SinkAway if a later attempt may succeed."""
        what = f"{self.name}: refuses update {update.position} of {update.subscription_id!r}"
        said = f"the server says {refusal.description!r}"
        if refusal.err_code == _TOO_LARGE:
            return EngineError(
                f"{what} with {len(update.data):,} bytes, which is too large: {said}. Raise max_msg_size of the "
                "stream, or max_payload of the server, and start again"
            )
        if refusal.err_code == _HEADERS_TOO_LARGE:
            return EngineError(f"{what}, whose headers are too large: {said}")
        if refusal.err_code in _OTHER_LAST:
            return SinkAway(f"{self.name}: something else has written to it behind {self._sequence:,}: {said}")
        if refusal.err_code in _NO_ROOM:
            return SinkAway(f"{what}: {said}. Raise the limits of the stream or remove messages; nothing is lost")
        return SinkAway(f"{what}: {said}")

    @property
    def _opened(self) -> NatsClient:
        assert self._connection is not None, "open() comes first"
        return self._connection

    @property
    def _client(self) -> Client:
        return self._opened.client

    @property
    def _context(self) -> Any:
        return self._client.jetstream(timeout=_ANSWER_S)

    @property
    def _takes(self) -> str:
        """The subject that the stream must take."""
        return f"{self._subject}.*"

    async def _note_error(self, error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            self._refused = str(error)
            if self._opening is not None:
                self._opening.cancel()  # what it asked for is not answered
        await self._wake()

    async def _wake(self) -> None:
        if self._run is not None:
            self._run.changed.set()

    def _call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        future = self._opened.begin(coroutine)
        try:
            return future.result(2 * _CHUNK_S)
        except (OSError, TimeoutError, CancelledError, nats.errors.Error, SinkAway) as error:
            if self._refused:
                raise ConfigError(f"{self.name}: the server does not permit it: {self._refused}") from error
            if isinstance(error, SinkAway):
                raise
            raise SinkAway(f"{self.name}: the server cannot be reached ({error or type(error).__name__})") from error


class _Refusal(msgspec.Struct):
    """The error object of JetStream's reply to a publish."""

    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    """JetStream's reply to a publish: an acknowledgement, or an error."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Refusal | None = None


_ANSWERS = msgspec.json.Decoder(_Answer)


class _Run:
    """A pipelined run of updates: published in order without waiting for single acknowledgements.

    Only the event loop's thread uses it.

    Attributes
    ----------
    sent, answered : int
        Updates published; replies received.
    taken : int
        Updates that the server has acknowledged, from the first on without a gap.
    stored : int
        Acknowledged updates that the server has added to the stream; it dropped the others as duplicates.
    open_bytes : int
        Bytes of data that are sent and not acknowledged.
    refusal : _Refusal or None
        Refusal of update number `taken`.
    changed : asyncio.Event
        Set by each reply.
    """

    def __init__(self, updates: list[ReleasedUpdate], number: int):
        self.updates = updates
        self.number = number
        self.sent = self.answered = self.taken = self.stored = self.open_bytes = 0
        self.refusal: _Refusal | None = None
        self.changed = asyncio.Event()
        self._answers: list[_Answer | None] = [None] * len(updates)

    @property
    def is_after_repeats(self) -> bool:
        """Whether duplicates caused the refusal: the server dropped them, so its last message is another one."""
        return self.refusal is not None and self.refusal.err_code in _OTHER_LAST and self.stored < self.taken

    @property
    def is_full(self) -> bool:
        return self.sent - self.taken >= WINDOW or self.open_bytes >= WINDOW_BYTES

    def take(self, place: int, answer: _Answer) -> None:
        if self._answers[place] is not None:
            return
        self._answers[place] = answer
        self.answered += 1
        while self.refusal is None and self.taken < len(self._answers):
            first = self._answers[self.taken]
            if first is None:
                break
            if first.error is not None:
                self.refusal = first.error
                break
            self.open_bytes -= len(self.updates[self.taken].data)
            self.stored += not first.duplicate
            self.taken += 1
        self.changed.set()

    def refuse(self, refusal: _Refusal, place: int) -> None:
        """Record a refusal of our own for an update that was not published."""
        self.sent += 1
        self.take(place, _Answer(error=refusal))


@lru_cache(65_536)
def token_of(subscription_id: str) -> str:
    """A subscription id as one token of a NATS subject.

    UTF-8, with percent-encoding of all but letters, digits, `_` and `-`. Of a token longer than 255 characters only the
    start remains, followed by `~` and a digest of the id; the message itself has the whole id.
    """
    token = quote(subscription_id, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(token) <= _TOKEN:
        return token
    return f"{token[:_LEFT]}~{hashlib.sha256(subscription_id.encode()).hexdigest()[:32]}"


def _encoded(value: str) -> str:
    """A CloudEvents attribute as the value of a NATS header."""
    return value if _PLAIN.fullmatch(value) else quote(value, safe=_SAFE)


def _size(update: ReleasedUpdate, headers: Mapping[str, str]) -> int:
    """Bytes of a message as the server counts them against `max_payload`."""
    lines = sum(len(name) + len(value) + 4 for name, value in headers.items())
    return len(update.data) + lines + len("NATS/1.0\r\n\r\n")


def _covers(taken: str, subject: str) -> bool:
    """Whether the subject filter `taken`, which may have wildcards, matches `subject`, which has none."""
    wanted = subject.split(".")
    for place, token in enumerate(taken.split(".")):
        if token == ">":
            return place < len(wanted)
        if place >= len(wanted) or token not in ("*", wanted[place]):
            return False
    return len(taken.split(".")) == len(wanted)
