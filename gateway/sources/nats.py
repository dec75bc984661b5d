"""A stream of NATS JetStream.

The offset of a message is its sequence in the stream, its token the time at which the stream was created. A consumer is
made anew at each opening, to begin behind the position; a named one shows at the broker how far the log has come. The
consumer numbers what it delivers, so that a delivery that is lost on the way is noticed, and read again.
The client has an event loop, which runs in a thread here. `fetch` of the library makes a task for each message: that is
half of the time that one takes.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import nats
import nats.errors
import nats.js.errors
from nats.js import api

from gateway.brokers.nats_client import NatsClient
from gateway.sources.source import Delivered, Position, SourceAway
from matching.errors import ConfigError

#: A stream is one partition.
_PARTITION = "0"
#: Metadata by which a consumer is known for one of ours.
_OURS = {"made_by": "skyray"}
#: Seconds: timeout of one answer; between two checks of an idle stream; life of an unused consumer without a name.
_ANSWER_S, _LOOK_S, _UNUSED_S = 5.0, 1.0, 60.0
#: Seconds that the answer to a request may take; one that comes later is read with the next.
_REPLY_S = 0.2
#: Statuses of an answer: no messages, and none within the time.
_NOTHING = (api.StatusCode.NO_MESSAGES, api.StatusCode.REQUEST_TIMEOUT)
#: Tokens of the subject to which a delivery is acknowledged; longer ones have a domain and an account in front.
_SHORT = 9

_Result = TypeVar("_Result")


class NatsSource:
    """See `gateway.sources.source.BrokerSource`.

    Parameters
    ----------
    servers : sequence of str
        URLs, with user and password if need be.
    consumer : str
        Name of a durable consumer, which no other client may use; "" for one that the broker forgets.
    """

    extra = "nats"

    def __init__(self, servers: Sequence[str], stream: str, consumer: str = ""):
        self.name = f"nats/{stream}"
        self._servers = list(servers)
        self._stream = stream
        self._durable = consumer
        self._connection: NatsClient | None = None
        self._consumer = ""  # its name
        self._came: list[Any] = []  # and not read yet
        self._most = 0  # messages that the request under way is for
        self._answered = asyncio.Event()
        self._status: Any = None  # the last answer without a message: why no more come
        self._next: Any = None  # the fetch under way
        self._created = ""
        self._delivered = 0
        self._lag: int | None = None
        self._looked_s = 0.0
        self._ends: deque[tuple[int, str]] = deque()  # of what was read and is not acknowledged: sequence and subject

    def open(self, after: Position) -> int:
        self.close()
        self._connection = NatsClient(self.name, self._servers)
        return self._call(self._connect(after))

    def read(self, most: int, timeout_s: float) -> list[Delivered]:
        connection = self._opened
        under_way, self._next = self._next, None
        if under_way is None:
            under_way = connection.begin(self._fetch(most, timeout_s))
        messages = self._result(under_way)
        if messages:  # the next ones come while these are processed
            self._next = connection.begin(self._fetch(most, timeout_s))
        return self._taken(messages)

    def acknowledge(self, position: Position) -> None:
        offset = position[_PARTITION][0] if _PARTITION in position else 0
        subject = ""
        while self._ends and self._ends[0][0] <= offset:
            subject = self._ends.popleft()[1]
        if subject and self._durable and self._connection is not None:
            self._call(self._connection.client.publish(subject, b"+ACK"))

    def lag(self) -> int | None:
        return self._lag

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._next is not None:
            self._next.cancel()
        self._next = None
        self._ends.clear()
        connection.close()

    async def _connect(self, after: Position) -> int:
        connection = self._opened
        await connection.connect(error_cb=_ignore)  # what was delivered on it is numbered
        self._context = connection.client.jetstream(timeout=_ANSWER_S)
        info = await self._look()
        self._created, self._looked_s = str(info.created), time.monotonic()
        retention = api.RetentionPolicy(info.config.retention or "limits")
        if retention is not api.RetentionPolicy.LIMITS:
            raise ConfigError(
                f"{self.name}: has the retention {retention.value}, by which the broker removes what was taken, so "
                "that it could not be read again; read a stream with the retention limits, such as a mirror"
            )
        begin = self._check(info, after)
        if self._durable:
            await self._remove_earlier()
        config = api.ConsumerConfig(
            durable_name=self._durable or None,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=begin,
            ack_policy=api.AckPolicy.ALL if self._durable else api.AckPolicy.NONE,
            ack_wait=86_400.0 if self._durable else None,
            max_ack_pending=-1 if self._durable else None,
            inactive_threshold=None if self._durable else _UNUSED_S,
            metadata=_OURS,
        )
        made = await self._context.add_consumer(self._stream, config)
        self._delivered, self._lag = 0, made.num_pending
        self._consumer, self._inbox = made.name, connection.client.new_inbox()
        self._came, self._answered = [], asyncio.Event()
        # no bound: no more come than were asked for
        await connection.client.subscribe(self._inbox, cb=self._take, pending_bytes_limit=0, pending_msgs_limit=0)
        return max(0, info.state.first_seq - begin) if after else 0

    async def _look(self) -> api.StreamInfo:
        try:
            return await self._context.stream_info(self._stream)
        except nats.js.errors.NotFoundError as error:
            raise ConfigError(
                f"{self.name}: the broker has no stream {self._stream!r}; create it, or name another"
            ) from error

    def _check(self, info: api.StreamInfo, after: Position) -> int:
        """The sequence at which to begin. Raises ConfigError if the stream is not the one of the position."""
        if _PARTITION not in after:
            return 1
        offset, created = after[_PARTITION]
        if created != self._created:
            raise ConfigError(
                f"{self.name}: was created anew at {self._created}; this folder has read the one of {created} up to "
                f"message {offset:,}. {_ANOTHER}"
            )
        if info.state.last_seq < offset:
            raise ConfigError(
                f"{self.name}: ends with message {info.state.last_seq:,}, and this folder has read message {offset:,}: "
                f"the broker has lost messages, or was brought back from a copy. {_ANOTHER}"
            )
        return offset + 1

    async def _remove_earlier(self) -> None:
        try:
            earlier = await self._context.consumer_info(self._stream, self._durable)
        except nats.js.errors.NotFoundError:
            return
        if (earlier.config.metadata or {}).get("made_by") != _OURS["made_by"]:
            raise ConfigError(
                f"{self.name}: has a consumer {self._durable!r} that Skyray has not made; name another one by consumer="
            )
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await self._context.delete_consumer(self._stream, self._durable)

    async def _fetch(self, most: int, timeout_s: float) -> list[Any]:
        connection = self._opened  # `close` takes it away
        found: list[Any] = []
        try:
            found = await self._ask(connection, most) or await self._ask(connection, 1, timeout_s)
        except nats.errors.Error:
            if connection is self._connection:
                raise
        if connection is not self._connection:
            return []  # the source is being closed: no caller uses the result
        if not found and not connection.client.is_connected:
            raise SourceAway(f"{self.name}: the connection is lost")
        if not found and time.monotonic() - self._looked_s >= _LOOK_S:
            await self._look_again()
        return found

    async def _ask(self, connection: NatsClient, most: int, wait_s: float = 0.0) -> list[Any]:
        """The messages that are there, at most so many, or the first ones that come within some seconds, if any."""
        asked: dict[str, Any] = {"batch": most}
        asked |= {"expires": round(wait_s * 1e9)} if wait_s else {"no_wait": True}
        self._answered.clear()
        self._most, self._status = most, None
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        await connection.client.publish(subject, msgspec.json.encode(asked), reply=self._inbox)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._answered.wait(), wait_s + _REPLY_S)
        found, self._came = self._came[:most], self._came[most:]
        if not found and self._status is not None and self._status.header[api.Header.STATUS] not in _NOTHING:
            nats.js.errors.APIError.from_msg(self._status)
        return found

    async def _take(self, message: Any) -> None:
        """Take an answer: a message, or the status behind the last one."""
        if message.reply:
            self._came.append(message)
        else:
            self._status = message
        if not message.reply or len(self._came) >= self._most:
            self._answered.set()

    async def _look_again(self) -> None:
        """Whether stream and consumer are still there; a deleted consumer looks like an idle stream."""
        self._looked_s = time.monotonic()
        info = await self._look()
        if str(info.created) != self._created:
            raise SourceAway(f"{self.name}: was created anew")  # opening it again says what that means
        try:
            consumer = await self._context.consumer_info(self._stream, self._consumer)
        except nats.js.errors.NotFoundError as error:
            raise SourceAway(f"{self.name}: the consumer was deleted") from error
        self._lag = consumer.num_pending

    def _taken(self, messages: list[Any]) -> list[Delivered]:
        found, number, created = [], self._delivered, self._created
        for message in messages:
            tokens = message.reply.split(".")
            shift = 0 if len(tokens) == _SHORT else 2
            number += 1
            if int(tokens[6 + shift]) != number:
                raise SourceAway(f"{self.name}: delivery {number:,} was lost on the way")
            found.append(Delivered(_PARTITION, int(tokens[5 + shift]), created, message.data))
        if messages:
            self._delivered, self._lag = number, int(tokens[8 + shift])
            self._ends.append((found[-1].offset, messages[-1].reply))
        return found

    @property
    def _opened(self) -> NatsClient:
        assert self._connection is not None, "open() comes first"
        return self._connection

    def _call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return self._result(self._opened.begin(coroutine))

    def _result(self, future: Any) -> Any:
        try:
            return future.result(60.0)
        except (OSError, TimeoutError, nats.errors.Error) as error:
            raise SourceAway(f"{self.name}: the broker cannot be reached ({error or type(error).__name__})") from error


_ANOTHER = "Name another folder with --out to begin with its first message, or bring the earlier stream back"


async def _ignore(error: Exception) -> None:
    """The client's own errors: each call says what it met."""
