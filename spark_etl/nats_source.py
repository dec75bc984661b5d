"""A stream of NATS JetStream as a streaming source of Spark.

    spark.dataSource.register(NatsDataSource)
    spark.readStream.format("nats").option("servers", "nats://127.0.0.1:4222").option("stream", "POSTS").load()

The position is the sequence in the stream, and is in Spark's checkpoint; the broker remembers nothing, and no consumer
has to be made there.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from matching.errors import ConfigError, DeliveryError
from matching.extras import require

SCHEMA = "value binary, subject string, sequence long, timestamp timestamp"
_ARROW = pa.schema(
    [
        ("value", pa.binary()),
        ("subject", pa.string()),
        ("sequence", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
#: Messages of one fetch; timeout of an answer in seconds; seconds between two attempts to reach the broker.
_FETCH, _ANSWER_S, _AGAIN_S = 1_000, 5.0, 0.5
#: Most messages of a batch, and seconds that the broker may be away, where the options do not say.
_ROWS, _PATIENCE_S = 100_000, 60.0

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class _Stream:
    """The stream and consumer that the options name."""

    servers: tuple[str, ...]
    stream: str
    rows: int
    patience_s: float
    fail_on_loss: bool

    @staticmethod
    def of(options: MutableMapping[str, str]) -> "_Stream":
        for name, example in (("servers", "nats://127.0.0.1:4222"), ("stream", "POSTS")):
            if not options.get(name):
                raise ConfigError(f"nats: needs the option {name}, such as {name}={example}")
        loss = options.get("fail_on_data_loss", "true").lower()
        if loss not in ("true", "false"):
            raise ConfigError(f"nats: option fail_on_data_loss {loss!r}: choose true or false")
        try:
            rows, patience_s = int(options.get("rows", _ROWS)), float(options.get("patience_s", _PATIENCE_S))
        except ValueError as error:
            raise ConfigError(f"nats: options rows and patience_s must be numbers ({error})") from None
        if rows < 1 or not 0 <= patience_s <= 86_400:
            raise ConfigError("nats: rows must be at least 1, patience_s from 0 to 86400")
        servers = tuple(one.strip() for one in options["servers"].split(","))
        return _Stream(servers, options["stream"], rows, patience_s, loss == "true")

    async def connect(self) -> Any:
        import nats

        return await nats.connect(
            list(self.servers), allow_reconnect=False, connect_timeout=3, name="skyray-feed", error_cb=_ignore
        )

    def patiently(self, what: Callable[[], _Result]) -> _Result:
        """Do it, again and again while the broker is away."""
        import nats.errors
        import nats.js.errors

        until_s = time.monotonic() + self.patience_s
        while True:
            try:
                return what()
            except nats.js.errors.NotFoundError as error:
                raise ConfigError(
                    f"nats/{self.stream}: the broker has no such stream; make it, or name another"
                ) from error
            except (OSError, TimeoutError, nats.errors.Error) as error:
                if time.monotonic() >= until_s:
                    raise DeliveryError(
                        f"nats/{self.stream}: the broker cannot be reached ({error or type(error).__name__})"
                    ) from error
            time.sleep(_AGAIN_S)


class NatsDataSource(DataSource):
    """The data source.

    Options are `servers` (URLs, separated by commas), `stream`, `rows` (most of a batch, 100,000), `patience_s` (how
    long the broker may be away, 60) and `fail_on_data_loss` (true: stop if the broker has removed messages that were
    not read).
    """

    @classmethod
    def name(cls) -> str:
        return "nats"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        require("nats", "the source nats")
        return NatsStreamReader(_Stream.of(self.options))


@dataclass
class _Span(InputPartition):
    """Messages `after` < sequence <= `through`."""

    after: int
    through: int


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. An offset is `sequence`, of the last message read, and `created`, when the stream was made."""

    def __init__(self, stream: _Stream):
        self._stream = stream
        self._target: int | None = None  # with availableNow

    def initialOffset(self) -> dict:
        return {"sequence": 0, "created": self._state()[1]}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._stream.rows)

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        first, created, last = self._state()
        self._check(start, created, last)
        last = last if self._target is None else min(last, self._target)
        if not isinstance(limit, ReadAllAvailable):
            # sequences that the broker has no more are no rows
            last = min(last, max(start["sequence"], first - 1) + self._stream.rows)
        return {"sequence": max(last, start["sequence"]), "created": created}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._state()[2]

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:
        # one, so that the order of the stream stays
        return [_Span(start["sequence"], end["sequence"])] if end["sequence"] > start["sequence"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Span), "made by `partitions`"
        return iter(self._stream.patiently(lambda: asyncio.run(self._read(partition.after, partition.through))))

    def _state(self) -> tuple[int, str, int]:
        """First sequence, time of creation, last sequence."""

        async def look(context: Any) -> tuple[int, str, int]:
            info = await context.stream_info(self._stream.stream)
            return info.state.first_seq, str(info.created), info.state.last_seq

        return self._stream.patiently(lambda: asyncio.run(self._with_context(look)))

    def _check(self, start: dict, created: str, last: int) -> None:
        name = f"nats/{self._stream.stream}"
        if start["created"] != created:
            raise ConfigError(
                f"{name}: was created anew at {created}; the checkpoint has read the one of {start['created']} up to "
                f"message {start['sequence']:,}. Name another sink, or bring the earlier stream back"
            )
        if last < start["sequence"]:
            raise ConfigError(
                f"{name}: ends with message {last:,}, and message {start['sequence']:,} was read: the broker has lost "
                "messages. Name another sink, or bring the earlier stream back"
            )

    async def _with_context(self, what: Callable[[Any], Awaitable[_Result]]) -> _Result:
        client = await self._stream.connect()
        try:
            return await what(client.jetstream(timeout=_ANSWER_S))
        finally:
            await client.close()

    async def _read(self, after: int, through: int) -> list[pa.RecordBatch]:
        return await self._with_context(lambda context: self._fetch_all(context, after, through))

    async def _fetch_all(self, context: Any, after: int, through: int) -> list[pa.RecordBatch]:
        """The messages of a span; all of them are in memory, `rows` at most."""
        from nats.js import api

        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=api.AckPolicy.NONE,
            inactive_threshold=60.0,
        )
        consumer = await context.add_consumer(self._stream.stream, config)
        subscription = await context.pull_subscribe_bind(consumer.name, self._stream.stream)
        found: list[pa.RecordBatch] = []
        reached, left = after, int(consumer.num_pending or 0)
        while reached < through and left:
            messages = await subscription.fetch(min(_FETCH, left), timeout=_ANSWER_S)
            rows = []
            for message in messages:
                at = message.metadata
                reached, left = at.sequence.stream, int(at.num_pending or 0)
                if reached <= through:
                    rows.append((message.data, message.subject, reached, at.timestamp))
            if rows:
                columns = zip(zip(*rows, strict=True), _ARROW, strict=True)
                arrays = [pa.array(column, kind.type) for column, kind in columns]
                found.append(pa.RecordBatch.from_arrays(arrays, schema=_ARROW))
        await context.delete_consumer(self._stream.stream, consumer.name)
        await self._check_loss(context, after)
        return found

    async def _check_loss(self, context: Any, after: int) -> None:
        """Refuse a span whose beginning the broker has removed; that of a stream's very beginning is not one."""
        first = (await context.stream_info(self._stream.stream)).state.first_seq
        if after and first > after + 1 and self._stream.fail_on_loss:
            raise ConfigError(
                f"nats/{self._stream.stream}: the broker has removed messages {after + 1:,} to {first - 1:,} before "
                "they were read; give it room, and go on without them by the option fail_on_data_loss=false"
            )


async def _ignore(error: Exception) -> None:
    """The client's own errors: each call says what it met."""
