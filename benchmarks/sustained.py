"""A steady stream through `skyray serve` beside many saved searches, with kills: rate, cost, and a client's book.

    python -m benchmarks.sustained MESSAGES [--searches 1000000] [--rate 40000] [--seconds 300] [--kills 2]

MESSAGES are lines of JSON with `text`, `lon` and `lat`, plain or gzip; they are sent again and again, each time with a
new id. A search has two words of one message and a square around the place of another, so large that a message has
`--matches` updates in the mean. One producer sends lines in one request, at a rate or, with 0, as fast as they are
taken; one client follows everything. The server is killed `--kills` times, evenly over the time, and started again;
the producer goes on behind the last outcome that it has, the client behind the last event. The client's book is held
against a plain test of words and squares that knows no engine: missing, extra and repeated updates.

`--door pipe` writes the same lines to the standard input of `skyray live`, whose standard output has the updates, and
says what is durable; `--door nats` publishes them to a stream of NATS, from which `skyray serve` reads, and asks the
server how far it is. Neither is killed.
"""

import http.client
import os
import re
import select
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
import numpy as np
import psutil

from benchmarks import command
from benchmarks.way_in import lines_of
from gateway.brokers.nats_client import NatsClient
from matching.errors import ConfigError
from matching.text import tokenise
from tests.support.brokers import STREAM, NatsBroker
from tests.support.processes import Command
from tests.support.serving import NDJSON, Served, call, free_port, kill
from tests.support.serving import lines_of as rows_of

#: Subscriptions of a request, and messages of a chunk.
_AT_ONCE, _GROUP = 20_000, 1_000
#: Seconds without a further event after which the client has everything, and within which it must.
_QUIET_S, _DRAIN_S = 3.0, 300.0
#: Seconds after which a producer that waits for outcomes looks whether the server is still there.
_LOOK_S = 0.5
#: Seconds between two questions how far a server has read a broker.
_ASK_S = 0.05
#: Seconds from the start to the first message of a rate.
_BEGIN_S = 0.3
#: Commonest words, which no search has.
_COMMON = 100
#: A message of its own that no search has.
_FIRST = {"id": "first", "text": "first", "lon": 0, "lat": 0}
_EVENT = re.compile(rb'"subscription_id":"s(\d+)",(?:"as_of":\d+,)?"message_id":"m(\d+)"')
_DURABLE = re.compile(rb'\{"durable": \{"line": (\d+)\}\}\n')


class Homes(NamedTuple):
    """Messages that are sent in turn: what follows the id in a line, their `words`, and `place`, float64[n, 2]."""

    tails: list[bytes]
    words: list[list[str]]
    place: np.ndarray

    def lines(self, first: int, end: int) -> bytes:
        """The messages of these numbers."""
        turn = len(self.tails)
        return b"".join([b'{"id":"m%d"%b' % (number, self.tails[number % turn]) for number in range(first, end)])


class Searches(NamedTuple):
    """`words`: two of each, the rarer one first; `place` (float64[n, 2]); `reach`: half a side in degrees."""

    words: list[tuple[str, str]]
    place: np.ndarray
    reach: float

    def row(self, number: int) -> dict[str, Any]:
        """A subscription."""
        lon, lat = self.place[number].tolist()
        west, east = max(-180.0, lon - self.reach), min(180.0, lon + self.reach)
        region = [west, max(-90.0, lat - self.reach), east, min(90.0, lat + self.reach)]
        return {
            "subscription_id": f"s{number}", "kind": "boolean", "keywords": list(self.words[number]), "region": region
        }  # fmt: skip


def homes_of(lines: Sequence[bytes]) -> Homes:
    """The lines that have all three columns and a word; one that follows a `#` is there without it, too."""
    tails, words, places = [], [], []
    for row in map(msgspec.json.decode, lines):
        row.pop("id", None)
        text = row.get("text") or ""
        found = sorted({*tokenise(text), *tokenise(text.replace("#", " "))})
        if found and isinstance(row.get("lon"), float) and isinstance(row.get("lat"), float):
            tails.append(b"," + msgspec.json.encode(row)[1:] + b"\n")
            words.append(found)
            places.append((row["lon"], row["lat"]))
    return Homes(tails, words, np.array(places, np.float64))


def searches_of(homes: Homes, count: int, matches: float, seed: int) -> tuple[Searches, list[np.ndarray]]:
    """Searches, and those that each message reaches, by a test of words and squares."""
    random = np.random.default_rng([seed, count])
    often: dict[str, int] = {}
    for words in homes.words:
        for word in words:
            often[word] = often.get(word, 0) + 1
    common = set(sorted(often, key=lambda word: -often[word])[:_COMMON])
    able = [words for words in ([w for w in words if w not in common] for words in homes.words) if len(words) > 1]
    drawn, at = random.integers(0, len(able), count), random.random((count, 2))
    pairs = []
    for number, (one, other) in zip(drawn.tolist(), at.tolist(), strict=True):
        words = able[number]
        first = int(one * len(words))
        second = (first + 1 + int(other * (len(words) - 1))) % len(words)
        pairs.append(tuple(sorted((words[first], words[second]), key=lambda word: (often[word], word))))
    place = homes.place[random.integers(0, len(homes.tails), count)]
    reached = _with_both_words(homes, pairs)
    far = [np.abs(place[found] - homes.place[number]).max(1) for number, found in enumerate(reached)]
    every = np.sort(np.concatenate(far))
    reach = float(every[min(len(every), round(matches * len(homes.tails))) - 1]) + 1e-9
    searches = Searches(pairs, place, reach)
    inside = []
    for number, found in enumerate(reached):
        (lon, lat), box = homes.place[number].tolist(), place[found]
        # the very numbers of `row`
        fits = (lon >= np.maximum(-180.0, box[:, 0] - reach)) & (lon <= np.minimum(180.0, box[:, 0] + reach))
        fits &= (lat >= np.maximum(-90.0, box[:, 1] - reach)) & (lat <= np.minimum(90.0, box[:, 1] + reach))
        inside.append(found[fits])
    return searches, inside


def _with_both_words(homes: Homes, pairs: Sequence[tuple[str, ...]]) -> list[np.ndarray]:
    """Numbers of the searches whose words a message has, by message."""
    numbers: dict[str, int] = {}
    coded = np.array([[numbers.setdefault(word, len(numbers)) for word in pair] for pair in pairs], np.int64)
    order = np.argsort(coded[:, 0], kind="stable")
    ends = np.searchsorted(coded[order, 0], np.arange(len(numbers) + 1))
    had = np.zeros(len(numbers), bool)
    found = []
    for words in homes.words:
        own = [numbers[word] for word in words if word in numbers]
        had[own] = True
        rows = [order[ends[word] : ends[word + 1]] for word in own if ends[word] < ends[word + 1]]
        some = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        found.append(np.sort(some[had[coded[some, 1]]]))
        had[own] = False
    return found


class Book(NamedTuple):
    """What a client has read: `search`, `message` and when (monotonic seconds), a row an event, and its own cost."""

    search: np.ndarray
    message: np.ndarray
    at_s: np.ndarray
    gaps: int
    processor_s: float


def follow(pipe: Connection, port: int) -> None:
    """Follow everything until told to end, then send the book; connects again behind the last event."""
    state: dict[str, Any] = {"last": "", "gaps": 0, "heard_s": time.monotonic()}
    parts: list[tuple[float, np.ndarray]] = []
    over = threading.Event()
    threading.Thread(target=_read_on, args=(port, state, parts, over), daemon=True).start()
    pipe.send("ready")
    begun_s = time.process_time()
    while pipe.recv() != "end":
        pipe.send((sum(len(part) for _, part in list(parts)), time.monotonic() - state["heard_s"]))
    over.set()
    pipe.send(_book_of(parts, state["gaps"], time.process_time() - begun_s))


def _book_of(parts: list[tuple[float, np.ndarray]], gaps: int, processor_s: float) -> Book:
    rows = np.concatenate([part for _, part in parts]) if parts else np.zeros((0, 2), np.int64)
    at_s = np.repeat([at for at, _ in parts], [len(part) for _, part in parts])
    return Book(rows[:, 0], rows[:, 1], at_s, gaps, processor_s)


def _read_on(port: int, state: dict[str, Any], parts: list[Any], over: threading.Event) -> None:
    while not over.is_set():
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": state["last"]} if state["last"] else {})}
            connection.request("GET", "/v1/updates?since=begin", headers=headers)
            answer = connection.getresponse()
            tail = b""
            while answer.status == 200 and not over.is_set() and (data := answer.read1(2**18)):
                whole, end, tail = (tail + data).rpartition(b"\n\n")
                if not end:
                    continue
                now_s, found = time.monotonic(), _events_in(whole)
                state["gaps"] += whole.count(b"event: gap")
                head = whole.rfind(b"id: ")
                if head >= 0:
                    state["last"] = whole[head + 4 : whole.find(b"\n", head)].decode()
                if len(found):
                    parts.append((now_s, found))
                    state["heard_s"] = now_s
        over.wait(0.1)


def _events_in(data: bytes) -> np.ndarray:
    """Numbers of search and message of the updates in some lines, int64[n, 2]."""
    return np.array(_EVENT.findall(data), dtype="S20").astype(np.int64).reshape(-1, 2)


class Lines(Protocol):
    """Messages by number, as lines of JSON."""

    def lines(self, first: int, end: int) -> bytes: ...


class Wire(Protocol):
    """One request, pipe or connection by which messages are sent.

    Of its errors OSError and those of `http.client` say that the server is gone.
    """

    def send(self, data: bytes) -> None: ...

    def end(self) -> None:
        """Nothing more is sent."""
        ...

    def outcomes(self) -> Iterator[tuple[int, int]]:
        """How many more messages have an outcome, and how many of these were refused; ends behind the last one."""
        ...


class Posted:
    """The lines of one request."""

    def __init__(self, port: int):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._connection.putrequest("POST", "/v1/messages")
        for name, value in (*NDJSON.items(), ("Transfer-Encoding", "chunked")):
            self._connection.putheader(name.replace("_", "-"), value)
        self._connection.endheaders()

    def send(self, data: bytes) -> None:
        self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self._connection.send(b"0\r\n\r\n")

    def outcomes(self) -> Iterator[tuple[int, int]]:
        answer, tail = self._connection.getresponse(), b""
        while data := answer.read1(2**18):
            whole, end, tail = (tail + data).rpartition(b"\n")
            yield whole.count(b"\n") + bool(end), whole.count(b'"status":"refused"')


class Piped:
    """`skyray live` with pipes, whose first lines are no messages of the producer; its updates go into `parts`."""

    def __init__(self, process: Popen[bytes], first_lines: bytes):
        assert process.stdin is not None and process.stdout is not None, "they are pipes"
        self.parts: list[tuple[float, np.ndarray]] = []
        self._into, self._out, self._tail = process.stdin, process.stdout, b""
        self._line, self._sent, self._over = 0, first_lines.count(b"\n"), False
        self._into.write(first_lines)
        self._into.flush()
        while self._line < self._sent:
            self._read()

    def send(self, data: bytes) -> None:
        self._sent += data.count(b"\n")
        self._into.write(data)
        self._into.flush()

    def end(self) -> None:
        self._over = True

    def outcomes(self) -> Iterator[tuple[int, int]]:
        while not self._over or self._line < self._sent:
            before = self._line
            if select.select([self._out], [], [], _LOOK_S)[0]:
                self._read()
            yield self._line - before, 0

    def close(self) -> None:
        """End the input, and read all updates that are left."""
        self._into.close()
        while self._read():
            pass

    def _read(self) -> bool:
        """Read what is there; False at the end."""
        data = os.read(self._out.fileno(), 2**20)
        whole, end, self._tail = (self._tail + data).rpartition(b"\n")
        self.parts.append((time.monotonic(), _events_in(whole)))
        durable = _DURABLE.findall(whole + end)
        self._line = int(durable[-1]) if durable else self._line
        return bool(data)


class Published:
    """A stream of NATS that a server reads."""

    def __init__(self, broker: NatsBroker, port: int):
        self._port, self._sent, self._over = port, 0, threading.Event()
        self._connection = NatsClient("benchmark", [broker.url])
        self._connection.begin(self._connection.connect()).result()

    def send(self, data: bytes) -> None:
        self._connection.begin(self._publish(data.splitlines())).result()

    async def _publish(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            await self._connection.client.publish("posts", line)
        await self._connection.client.flush()
        self._sent += len(lines)

    def end(self) -> None:
        self._over.set()

    def outcomes(self) -> Iterator[tuple[int, int]]:
        taken = 0
        while not self._over.is_set() or taken < self._sent:
            time.sleep(_ASK_S)
            found = call(self._port, "GET", "/health").json["source"]["durable"].get("0", 0)
            more, taken = found - taken, found
            yield more, 0
        self._connection.close()


class Producer:
    """Sends messages to a server that may be killed, and notes when each group was sent and acknowledged.

    Parameters
    ----------
    messages : Lines
    wire : callable     makes the connection to the server at a port
    ahead : int     groups that are sent before their outcomes come; 0: as many as the sockets keep
    group : int     messages that are due at one time, and sent together

    Attributes
    ----------
    acknowledged : int     outcomes so far, in the order of the messages
    due_s : list of float
        When each group was due first, or sent at no rate.
    sent_s : list of float
        When it was sent first.
    late_s : list of float
        From when a group was due, or sent at no rate, to its last outcome; those around a kill are left out.
    """

    def __init__(self, messages: Lines, ahead: int = 0, group: int = _GROUP, wire: Callable[[int], Wire] = Posted):
        self._ahead, self._group, self.wire = ahead or 2**62, group, wire
        self._came = threading.Condition()
        self.acknowledged = 0
        self.refused = 0
        self.due_s: list[float] = []
        self.sent_s: list[float] = []
        self.late_s: list[float] = []
        self._messages = messages

    def run(self, port: int, rate: float, stop_s: float) -> None:
        """Send until a time (monotonic), and take all outcomes; or until the server is gone."""
        first = self.acknowledged
        wire = self.wire(port)
        due: list[float] = []
        reading = threading.Thread(target=self._outcomes, args=(wire, first, due), daemon=True)
        reading.start()
        with suppress(OSError):
            for begin in self._turns(first, rate, stop_s, due):
                data = self._messages.lines(begin, begin + self._group)
                self._await_outcomes(begin, reading)
                if not rate:
                    due[-1] = time.monotonic()
                if begin // self._group >= len(self.sent_s):
                    self.due_s.append(due[-1])
                    self.sent_s.append(time.monotonic())
                wire.send(data)
            wire.end()
        reading.join()

    def _await_outcomes(self, begin: int, reading: threading.Thread) -> None:
        """Wait while too many groups before this one have no outcomes."""
        with self._came:
            while begin - self.acknowledged >= self._ahead * self._group and reading.is_alive():
                self._came.wait(_LOOK_S)

    def _turns(self, first: int, rate: float, stop_s: float, due: list[float]) -> Iterator[int]:
        begun_s = time.monotonic() + _BEGIN_S
        while True:
            now_s = time.monotonic()
            due_s = begun_s + len(due) * self._group / rate if rate else now_s
            if max(due_s, now_s) >= stop_s:
                return
            time.sleep(max(0.0, due_s - now_s))
            due.append(due_s)
            yield first
            first += self._group

    def _outcomes(self, wire: Wire, first: int, due: list[float]) -> None:
        with suppress(OSError, http.client.HTTPException):
            for outcomes, refused in wire.outcomes():
                self.refused += refused
                before, self.acknowledged = self.acknowledged, self.acknowledged + outcomes
                now_s = time.monotonic()
                groups = range((before - first) // self._group, (self.acknowledged - first) // self._group)
                self.late_s += [now_s - due[group] for group in groups]
                with self._came:
                    self._came.notify()


def bench(
    messages: Annotated[Path, "lines of JSON with a text and a place"],
    searches: Annotated[int, "in all"] = 1_000_000,
    matches: Annotated[float, "updates of a message in the mean"] = 0.5,
    rate: Annotated[float, "messages a second; 0: as fast as they are taken"] = 40_000.0,
    seconds: Annotated[float, "of sending"] = 300.0,
    kills: Annotated[int, "of the server, evenly over them; by HTTP alone"] = 2,
    ahead: Annotated[int, "groups sent before their outcomes come; 0: as the sockets keep, some 30,000 lines"] = 0,
    limit: Annotated[int, "different messages at most"] = 40_000,
    options: Annotated[str, "further options of the server, separated by blanks"] = "",
    door: Annotated[str, "http, pipe or nats"] = "http",
    seed: Annotated[int, "of the searches"] = 0,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Messages a second that were acknowledged, what each cost the server, how late outcomes were, and the book."""
    if door not in ("http", "pipe", "nats"):
        raise ConfigError(f"--door {door}: must be http, pipe or nats")
    if kills and door != "http":
        raise ConfigError(f"--kills {kills}: only a server that takes lines by HTTP is killed here; give --kills 0")
    homes = homes_of(lines_of(messages, limit))
    made, inside = searches_of(homes, searches, matches, seed)
    tell(f"{len(homes.tails):,} messages, {searches:,} searches {2 * made.reach:.3f} degrees wide")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skyray-sustained-")))
        words, wire = [scratch / "out", *options.split()], Posted
        if door == "nats":
            broker = stack.enter_context(NatsBroker(scratch / "broker"))
            broker.create()
            words, wire = [*words, "--from", f"{broker.url}/{STREAM}"], partial(Published, broker)
        producer = Producer(homes, ahead, wire=wire)
        rows = [made.row(number) for number in range(searches)]
        given = _Given(words, producer, rows, rate, seconds, tell)
        turn = _by_pipe(given) if door == "pipe" else _by_server(given, kills)
    workload = {"searches": searches, "matches": matches, "rate": rate, "seconds": seconds, "kills": kills}
    workload |= {"seed": seed, "ahead": ahead, "bytes_a_line": sum(map(len, homes.tails)) / len(homes.tails)}
    workload |= {"door": door} if door != "http" else {}
    judged = _judged(producer, turn.book, inside)
    late = np.percentile(1e3 * np.array(producer.late_s), [50, 99]).tolist() if producer.late_s else [0.0, 0.0]
    return {
        "workload": workload,
        "acknowledged": producer.acknowledged,
        "messages_s": producer.acknowledged / turn.run_s,
        "server_us_a_message": 1e6 * turn.spent_s / producer.acknowledged,
        "client_us_an_update": 1e6 * turn.book.processor_s / max(1, len(turn.book.search)),
        "acknowledged_p50_ms": late[0],
        "acknowledged_p99_ms": late[1],
        "subscribed_s": turn.subscribed_s,
        "ready_again_s": turn.restarts_s,
        "refused": producer.refused,
        **judged,
    }


class _Given(NamedTuple):
    """Options of the server, what sends, subscriptions, messages a second, and seconds of sending."""

    words: Sequence[Any]
    producer: Producer
    rows: list[Any]
    rate: float
    seconds: float
    tell: command.Tell


class _Turn(NamedTuple):
    """Seconds of sending, of the server's processor meanwhile, of subscribing, and of each restart; and the book."""

    run_s: float
    spent_s: float
    subscribed_s: float
    restarts_s: list[float]
    book: Book


def _by_server(given: _Given, kills: int) -> _Turn:
    """Send to `skyray serve`, which one client follows."""
    words, producer, rows, rate, seconds, tell = given
    port, restarts, context = free_port(), [], get_context("spawn")
    pipe, other = context.Pipe()
    with Served(*words, port=port) as served:
        began_s = time.monotonic()
        for first in range(0, len(rows), _AT_ONCE):
            served.call("POST", "/v1/subscriptions", rows_of(rows[first : first + _AT_ONCE]), **NDJSON)
        subscribed_s = time.monotonic() - began_s
        served.call("POST", "/v1/messages?wait=delivered", _FIRST)
        tell(f"subscribed in {subscribed_s:.1f} s")
        client = context.Process(target=follow, args=(other, port), daemon=True)
        client.start()
        pipe.recv()
        run_s, spent_s = send_part(served, producer, port, rate, seconds / (kills + 1), kills > 0)
        if not kills:
            await_quiet(pipe)
    for number in range(kills):
        began_s = time.monotonic()
        with Served(*words, port=port) as served:
            restarts.append(time.monotonic() - began_s)
            tell(f"killed with {producer.acknowledged:,} acknowledged, ready again in {restarts[-1]:.1f} s")
            last = number + 1 == kills
            took_s, more_s = send_part(served, producer, port, rate, seconds / (kills + 1), not last)
            run_s, spent_s = run_s + took_s, spent_s + more_s
            if last:
                await_quiet(pipe)
                served.end(120)
    pipe.send("end")
    book = pipe.recv()
    client.join(10)
    client.kill()
    return _Turn(run_s, spent_s, subscribed_s, restarts, book)


def _by_pipe(given: _Given) -> _Turn:
    """Send to `skyray live`, whose output is read by a thread of this process."""
    words, producer, rows, rate, seconds, tell = given
    with Command(["live", "--query-bolts", 1, "--out", *words], source=PIPE, out=PIPE) as live:
        began_s = time.monotonic()
        wire = Piped(live.process, rows_of([*({"subscribe": row} for row in rows), _FIRST]))
        subscribed_s = time.monotonic() - began_s
        tell(f"subscribed in {subscribed_s:.1f} s")
        producer.wire = lambda port: wire
        run_s, spent_s = send_part(live, producer, 0, rate, seconds, False)
        wire.close()
        live.finish(120)
    return _Turn(run_s, spent_s, subscribed_s, [], _book_of(wire.parts, 0, 0.0))


def send_part(
    served: Command, producer: Producer, port: int, rate: float, seconds: float, killed: bool
) -> tuple[float, float]:
    """Send for some seconds, and kill the server at their end, or take all outcomes; seconds, also of its processor."""
    process = psutil.Process(served.process.pid)
    before, began_s = sum(process.cpu_times()[:2]), time.monotonic()
    spent = [before]

    def end() -> None:
        spent[0] = sum(process.cpu_times()[:2])
        kill(served)

    timer = threading.Timer(seconds, end)
    if killed:
        timer.start()
    producer.run(port, rate, began_s + seconds + (60.0 if killed else 0.0))
    run_s = min(seconds, time.monotonic() - began_s) if killed else time.monotonic() - began_s
    if killed:
        timer.join()
    return run_s, (spent[0] if killed else sum(process.cpu_times()[:2])) - before


def await_quiet(pipe: Connection) -> None:
    deadline_s = time.monotonic() + _DRAIN_S
    while time.monotonic() < deadline_s:
        pipe.send("state")
        _, quiet_s = pipe.recv()
        if quiet_s > _QUIET_S:
            return
        time.sleep(0.2)


def _judged(producer: Producer, book: Book, inside: Sequence[np.ndarray]) -> dict[str, Any]:
    """The book against the searches that each acknowledged message reaches; another may have updates (`unsure`)."""
    turn, last = len(inside), producer.acknowledged
    width = np.int64(2**32)
    counts = np.array([len(found) for found in inside])
    message = np.repeat(np.arange(turn), counts)
    own = np.concatenate(inside) if turn else np.zeros(0, np.int64)
    whole = [own * width + message + turn * start for start in range(-(-last // turn))]
    wanted = np.concatenate(whole) if whole else np.zeros(0, np.int64)
    wanted = np.sort(wanted[wanted % width < last])
    pairs, times = np.unique(book.search * width + book.message, return_counts=True)
    unsure = pairs % width >= last
    true = np.isin((pairs // width) * width + (pairs % width) % turn, np.sort(own * width + message))
    missing = len(wanted) - int(np.isin(wanted, pairs).sum())
    extra, repeated = int((~true).sum()), int((times - 1).sum())
    fine = missing == extra == repeated == book.gaps == producer.refused == 0
    seen = {"missing": missing, "extra": extra, "repeated": repeated, "gaps": book.gaps, "unsure": int(unsure.sum())}
    sent_s = np.array(producer.sent_s)
    known = book.message // _GROUP < len(sent_s)
    late_s = book.at_s[known] - sent_s[book.message[known] // _GROUP]
    if len(late_s):
        seen |= {"told_p50_ms": 1e3 * float(np.median(late_s)), "told_p99_ms": 1e3 * float(np.percentile(late_s, 99))}
    return {**seen, **command.verdict(fine, len(wanted), len(set(own.tolist())))}


if __name__ == "__main__":
    sys.exit(command.main(bench))
