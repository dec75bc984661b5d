"""A Kafka broker with transactions, in threads of the test's process, for what the mock of the client lacks.

The mock accepts transactions and does not carry them out: a reader of committed records gets uncommitted ones and those
that were dropped, an older producer of a transactional id is not fenced, and offsets in a transaction are forgotten.
This broker speaks the same protocol to the same client, in the least versions that have transactions, and does what the
protocol demands of a broker:

- InitProducerId of a transactional id ends its open transaction with abort markers, and raises the epoch; requests of
  an older epoch get INVALID_PRODUCER_EPOCH.
- EndTxn writes markers; a reader of committed records gets records up to the first open transaction of the partition,
  and the list of those that were dropped.
- A producer's batches are taken in the order of their sequence numbers, a repeated one once.

It has one node and keeps its logs in memory, so that it shows neither replication nor what a disk does; `kill` closes
its port and connections, and keeps the logs. It has no time limit of transactions, groups, compaction, TLS or SASL.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, VERSIONS = 0, 1, 2, 3, 10, 18
CREATE_TOPICS, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TRANSACTION = 19, 22, 24, 26
#: The highest version of each request.
_HIGHEST = {
    PRODUCE: 7,
    FETCH: 4,
    LIST_OFFSETS: 2,
    METADATA: 4,
    FIND_COORDINATOR: 1,
    VERSIONS: 0,
    CREATE_TOPICS: 4,
    INIT_PRODUCER_ID: 1,
    ADD_PARTITIONS: 0,
    END_TRANSACTION: 1,
}
UNKNOWN_TOPIC, TOO_LARGE, OUT_OF_ORDER, OLD_EPOCH, NO_TRANSACTION, NO_PRODUCER = 3, 10, 45, 47, 48, 49
_UNSUPPORTED, _EXISTS = 35, 36
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


class Batch(NamedTuple):
    """A record batch as it is in the log; `data` is the protocol's."""

    first: int
    count: int
    producer: int
    epoch: int
    data: bytes


class Partition:
    """The log of a partition.

    Attributes
    ----------
    batches : list of Batch
    end : int                                          offset behind the last record
    open : dict of int to int                          producer -> first offset of its open transaction
    dropped : list of tuple of (int, int, int)         producer, first offset, offset of the abort marker
    sequences : dict of (int, int) to (int, int, int)  producer and epoch -> last sequence, count and offset
    """

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.end = 0
        self.open: dict[int, int] = {}
        self.dropped: list[tuple[int, int, int]] = []
        self.sequences: dict[tuple[int, int], tuple[int, int, int]] = {}

    @property
    def stable(self) -> int:
        """Offset of the first record of an open transaction, or the end."""
        return min(self.open.values(), default=self.end)

    def append(self, producer: int, epoch: int, count: int, data: bytes) -> int:
        first = self.end
        whole = struct.pack(">q", first) + data[8:]
        self.batches.append(Batch(first, count, producer, epoch, whole))
        self.end += count
        return first

    def end_transaction(self, producer: int, epoch: int, commits: bool) -> None:
        """Write a marker, if the transaction has records here."""
        first = self.open.pop(producer, None)
        if first is None:
            return
        record = bytes([0, 0, 0, 8, 0, 0, 0, int(commits), 12, *[0] * 6, 0])
        record = bytes([2 * len(record)]) + record
        head = struct.pack(
            ">qiibIhiqqqhii", 0, 49 + len(record), 0, 2, 0, _TRANSACTIONAL | _CONTROL, 0, 0, 0, producer, epoch, -1, 1
        )
        marker = self.append(producer, epoch, 1, head + record)
        if not commits:
            self.dropped.append((producer, first, marker))


class Transactions:
    """What the coordinator has of a transactional id: its producer, epoch, and the partitions of its transaction."""

    def __init__(self, producer: int):
        self.producer = producer
        self.epoch = -1
        self.partitions: set[tuple[str, int]] = set()


class TransactionalBroker:
    """Listens while the block lasts.

    Attributes
    ----------
    address : str
    logs : dict of str to list of Partition
    largest_bytes : int     batches beyond it are refused
    group_error : int       answers those who look for the coordinator of a group
    requests : list of int  kinds of the requests that came
    """

    def __init__(self) -> None:
        self.logs: dict[str, list[Partition]] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.largest_bytes = 1_000_000
        self.group_error = 0
        self.requests: list[int] = []
        self._ids: dict[str, Transactions] = {}
        self._producers = 0
        self._changed = threading.Condition()
        self._errors: dict[int, list[int]] = {}
        self._after: dict[int, tuple[Callable[[], None], int]] = {}
        self._port = 0
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def create(self, topic: str, partitions: int) -> None:
        self.logs[topic] = [Partition() for _ in range(partitions)]

    def fail(self, kind: int, *errors: int) -> None:
        """Answer the next requests of a kind with these errors, and do nothing else."""
        with self._changed:
            self._errors.setdefault(kind, []).extend(errors)

    def once_after(self, kind: int, call: Callable[[], None], others: int = 0) -> None:
        """Call this once after a request of a kind was carried out, instead of an answer; the connection is closed.

        `others` of the kind are answered before it.
        """
        with self._changed:
            self._after[kind] = call, others

    def expire(self) -> None:
        """End all open transactions, as a broker does when their time is over."""
        with self._changed:
            for one in self._ids.values():
                one.epoch += 1
                self._end(one, commits=False)
            self._changed.notify_all()

    def kill(self) -> None:
        """Close the port and all connections; the logs stay."""
        with self._changed:
            listener, self._listener = self._listener, None
            connections = list(self._connections)
            self._changed.notify_all()
        for one in (listener, *connections):
            if one is not None:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def start(self) -> None:
        """Listen, at the same port as before."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen()
        self._port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._changed:
                if self._listener is not listener:
                    connection.close()
                    return
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = connection.makefile("rb")
            while head := stream.read(4):
                answer = self._answer(Reader(stream.read(struct.unpack(">i", head)[0])))
                if answer is None:
                    break
                connection.sendall(struct.pack(">i", len(answer)) + answer)
        with self._changed:
            self._connections.discard(connection)

    def _answer(self, asked: "Reader") -> bytes | None:
        """The answer to a request; None to close the connection."""
        kind, version, number = asked.take("hhi")
        asked.text()  # the client's id
        handle = {
            PRODUCE: self._produce,
            FETCH: self._fetch,
            LIST_OFFSETS: self._list_offsets,
            METADATA: self._metadata,
            FIND_COORDINATOR: self._find_coordinator,
            VERSIONS: self._versions,
            CREATE_TOPICS: self._create_topics,
            INIT_PRODUCER_ID: self._init_producer_id,
            ADD_PARTITIONS: self._add_partitions,
            END_TRANSACTION: self._end_transaction,
        }[kind]
        with self._changed:
            self.requests.append(kind)
            error = 0
            if self._errors.get(kind):
                error = self._errors[kind].pop(0)
            if kind == VERSIONS:
                error = _UNSUPPORTED if version > 0 else 0
            answer = Writer().put("i", number)
            handle(asked, answer, error)
            self._changed.notify_all()
            after, others = self._after.pop(kind, (None, 0))
            if after is not None and others:
                self._after[kind], after = (after, others - 1), None
        if after is not None:
            after()
            return None
        return bytes(answer.data)

    def _versions(self, asked: "Reader", answer: "Writer", error: int) -> None:
        answer.put("h", error).array(_HIGHEST.items(), lambda one: answer.put("hhh", one[0], 0, one[1]))

    def _metadata(self, asked: "Reader", answer: "Writer", error: int) -> None:
        names = asked.array(asked.text)
        answer.put("i", 0).array([None], lambda _: answer.put("i", 1).text("127.0.0.1").put("i", self._port).text(None))
        answer.text("cluster").put("i", 1)

        def topic(name: str) -> None:
            log = self.logs.get(name)
            answer.put("h", error or (0 if log is not None else UNKNOWN_TOPIC)).text(name).put("b", 0)
            answer.array(range(len(log or ())), partition)

        def partition(number: int) -> None:
            answer.put("hii", 0, number, 1).put("ii", 1, 1).put("ii", 1, 1)

        answer.array(list(self.logs) if names is None else names, topic)

    def _find_coordinator(self, asked: "Reader", answer: "Writer", error: int) -> None:
        _, (of_transactions,) = asked.text(), asked.take("b")
        error = error or (0 if of_transactions else self.group_error)
        answer.put("ih", 0, error).text(None).put("i", 1).text("127.0.0.1").put("i", self._port)

    def _create_topics(self, asked: "Reader", answer: "Writer", error: int) -> None:
        def topic() -> tuple[str, int, dict[str, str]]:
            name, (partitions, _) = asked.text(), asked.take("ih")
            asked.array(lambda: (asked.take("i"), asked.array(lambda: asked.take("i"))))
            configs = asked.array(lambda: (asked.text(), asked.text()))
            return name or "", partitions, {str(key): str(value) for key, value in configs or ()}

        def made(one: tuple[str, int, dict[str, str]]) -> None:
            name, partitions, configs = one
            found = error or (_EXISTS if name in self.logs else 0)
            if not found:
                self.create(name, partitions)
                self.configs[name] = configs
            answer.text(name).put("h", found).text(None)

        answer.put("i", 0).array(asked.array(topic) or (), made)

    def _init_producer_id(self, asked: "Reader", answer: "Writer", error: int) -> None:
        name, _ = asked.text(), asked.take("i")
        if error:
            answer.put("ihqh", 0, error, -1, -1)
            return
        if name not in self._ids:
            self._producers += 1
            self._ids[name or ""] = Transactions(self._producers)
        one = self._ids[name or ""]
        one.epoch += 1
        self._end(one, commits=False)
        answer.put("ihqh", 0, 0, one.producer, one.epoch)

    def _add_partitions(self, asked: "Reader", answer: "Writer", error: int) -> None:
        one, wrong = self._transactions(asked)
        error = error or wrong

        def topic() -> tuple[str, list[int]]:
            return asked.text() or "", [number for (number,) in asked.array(lambda: asked.take("i")) or ()]

        def added(named: tuple[str, list[int]]) -> None:
            name, numbers = named
            if not error and one is not None:
                one.partitions |= {(name, number) for number in numbers}
            answer.text(name).array(numbers, lambda number: answer.put("ih", number, error))

        answer.put("i", 0).array(asked.array(topic) or (), added)

    def _end_transaction(self, asked: "Reader", answer: "Writer", error: int) -> None:
        one, wrong = self._transactions(asked)
        error = error or wrong
        if not error and one is not None:
            self._end(one, commits=bool(asked.take("b")[0]))
        answer.put("ih", 0, error)

    def _transactions(self, asked: "Reader") -> tuple[Transactions | None, int]:
        """The transactional id of a request, and the error of its producer and epoch."""
        name, (producer, epoch) = asked.text(), asked.take("qh")
        one = self._ids.get(name or "")
        if one is None or one.producer != producer:
            return None, NO_PRODUCER
        return one, OLD_EPOCH if epoch != one.epoch else 0

    def _end(self, one: Transactions, commits: bool) -> None:
        for name, number in sorted(one.partitions):
            self.logs[name][number].end_transaction(one.producer, one.epoch, commits)
        one.partitions.clear()

    def _produce(self, asked: "Reader", answer: "Writer", error: int) -> None:
        name, _ = asked.text(), asked.take("hi")
        one = self._ids.get(name or "")

        def topic() -> tuple[str, list[tuple[int, bytes]]]:
            return asked.text() or "", asked.array(lambda: (asked.take("i")[0], asked.data())) or []

        def taken(named: tuple[str, list[tuple[int, bytes]]]) -> None:
            topic_name, parts = named
            answer.text(topic_name).array(parts, lambda part: part_taken(topic_name, *part))

        def part_taken(topic_name: str, number: int, data: bytes) -> None:
            found, offset = (error, -1) if error else self._append(one, topic_name, number, data)
            answer.put("ihqqq", number, found, offset, -1, 0)

        answer.array(asked.array(topic) or (), taken).put("i", 0)

    def _append(self, one: Transactions | None, topic: str, number: int, data: bytes) -> tuple[int, int]:
        """Error and first offset of a batch."""
        if topic not in self.logs or number >= len(self.logs[topic]):
            return UNKNOWN_TOPIC, -1
        if len(data) > self.largest_bytes:
            return TOO_LARGE, -1
        part = self.logs[topic][number]
        (attributes,) = struct.unpack_from(">h", data, 21)
        producer, epoch, sequence, count = struct.unpack_from(">qhii", data, 43)
        if attributes & _TRANSACTIONAL:
            if one is None or one.producer != producer:
                return NO_PRODUCER, -1
            if one.epoch != epoch:
                return OLD_EPOCH, -1
            if (topic, number) not in one.partitions:
                return NO_TRANSACTION, -1
        if producer >= 0:
            last, before, offset = part.sequences.get((producer, epoch), (0, 0, -1))
            if before and sequence == last and count == before:
                return 0, offset  # the answer was lost
            if sequence != last + before:
                return OUT_OF_ORDER, -1
            part.sequences[producer, epoch] = sequence, count, part.end
        if attributes & _TRANSACTIONAL:
            part.open.setdefault(producer, part.end)
        return 0, part.append(producer, epoch, count, data)

    def _list_offsets(self, asked: "Reader", answer: "Writer", error: int) -> None:
        _, committed = asked.take("ib")

        def topic() -> tuple[str, list[tuple[int, int]]]:
            return asked.text() or "", asked.array(lambda: asked.take("iq")) or []

        def listed(named: tuple[str, list[Any]]) -> None:
            name, parts = named

            def one(part: tuple[int, int]) -> None:
                number, at = part
                log = self.logs[name][number]
                offset = 0 if at == -2 else log.stable if committed else log.end
                answer.put("ihqq", number, error, -1, offset)

            answer.text(name).array(parts, one)

        answer.put("i", 0).array(asked.array(topic) or (), listed)

    def _fetch(self, asked: "Reader", answer: "Writer", error: int) -> None:
        _, wait_ms, _, _, committed = asked.take("iiiib")

        def topic() -> tuple[str, list[Any]]:
            return asked.text() or "", asked.array(lambda: asked.take("iqi")) or []

        topics = asked.array(topic) or []
        until_s = time.monotonic() + wait_ms / 1_000

        def has_more() -> bool:
            return self._listener is None or any(
                offset < (self.logs[name][number].stable if committed else self.logs[name][number].end)
                for name, parts in topics
                for number, offset, _ in parts
                if name in self.logs
            )

        while not has_more() and (left_s := until_s - time.monotonic()) > 0:
            self._changed.wait(left_s)

        def fetched(named: tuple[str, list[Any]]) -> None:
            name, parts = named
            answer.text(name).array(parts, lambda part: one(name, *part))

        def one(name: str, number: int, offset: int, most: int) -> None:
            log = self.logs[name][number]
            until = log.stable if committed else log.end
            data = b"".join(_up_to(most, (batch for batch in _from(log.batches, offset) if batch.first < until)))
            dropped = [(who, first) for who, first, marker in log.dropped if marker >= offset] if committed else []
            answer.put("ihqq", number, error, log.end, log.stable)
            answer.array(sorted(dropped, key=lambda one: one[1]), lambda one: answer.put("qq", *one))
            answer.put("i", len(data)).data.extend(data)

        answer.put("i", 0).array(topics, fetched)


def _from(batches: Sequence[Batch], offset: int) -> Iterator[Batch]:
    """The batches with an offset and later ones."""
    low, high = 0, len(batches)
    while low < high:
        middle = (low + high) // 2
        if batches[middle].first + batches[middle].count <= offset:
            low = middle + 1
        else:
            high = middle
    return (batches[place] for place in range(low, len(batches)))


def _up_to(most: int, batches: Iterable[Batch]) -> Iterator[bytes]:
    """The first batch, and those behind it until there are so many bytes."""
    size = 0
    for batch in batches:
        if size and size + len(batch.data) > most:
            return
        size += len(batch.data)
        yield batch.data


class Reader:
    """Reads the fields of a request."""

    def __init__(self, data: bytes):
        self._data = data
        self._at = 0

    def take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return found

    def text(self) -> str | None:
        (size,) = self.take("h")
        return None if size < 0 else self._bytes(size).decode()

    def data(self) -> bytes:
        return self._bytes(max(0, self.take("i")[0]))

    def array(self, one: Callable[[], Any]) -> list[Any] | None:
        (count,) = self.take("i")
        return None if count < 0 else [one() for _ in range(count)]

    def _bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]


class Writer:
    """Writes the fields of an answer."""

    def __init__(self) -> None:
        self.data = bytearray()

    def put(self, form: str, *values: int) -> "Writer":
        self.data += struct.pack(f">{form}", *values)
        return self

    def text(self, text: str | None) -> "Writer":
        if text is None:
            return self.put("h", -1)
        self.put("h", len(text.encode())).data.extend(text.encode())
        return self

    def array(self, items: Iterable[Any], one: Callable[[Any], Any]) -> "Writer":
        items = list(items)
        self.put("i", len(items))
        for item in items:
            one(item)
        return self
