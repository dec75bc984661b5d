"""Processor time that `skyray serve` takes for a message that comes alone, by thread, and how soon it is out.

A producer sends a message over a connection that stays open, waits for its acknowledgement and for its update on a
stream of events, and sends the next: so every message is a batch of its own. The load `boolean` has one subscription,
`each_kind` one of every kind. Two of three messages match; the events are held against that. Processor time is that of
the server's threads, as Linux counts it, which get their names from the way in which this module starts the server.
"""

import json
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from benchmarks import command
from benchmarks.stopwatch import in_turns, medians
from matching.errors import TopologyError
from tests.support.processes import Command
from tests.support.serving import call

#: Seconds that the server may take to start, and an answer or an event to come.
_START_S, _ANSWER_S = 180.0, 20.0
_AT = {"lon": 139.7, "lat": 35.7}
_WORDS = {"keywords": "ramen", **_AT}
#: A subscription of each kind, by the loads that have it.
_BOOLEAN = {"subscription_id": "boolean", "kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36]}
_OTHERS = [
    {"subscription_id": "topk", "kind": "topk", "k": 5, "alpha": 0.5, **_WORDS},
    {"subscription_id": "decay", "kind": "decay", "k": 5, "alpha": 0.5, **_WORDS},
    {"subscription_id": "knn", "kind": "knn", "k": 5, **_WORDS},
    {"subscription_id": "skyline", "kind": "skyline", "keywords": "ramen", "region": [139, 35, 140, 36]},
]
LOADS = {"boolean": [_BOOLEAN], "each_kind": [_BOOLEAN, *_OTHERS]}
#: `skyray` whose threads the system knows by name, and which ends with this process; 1 is PR_SET_PDEATHSIG, 15
#: PR_SET_NAME.
_NAMED = """
import ctypes, signal, sys, threading
library = ctypes.CDLL(None)
library.prctl(1, signal.SIGKILL, 0, 0, 0)
from gateway.entry import main
run = threading.Thread.run
def named(thread):
    library.prctl(15, thread.name.encode()[:15], 0, 0, 0)
    run(thread)
threading.Thread.run = named
sys.argv[0] = "skyray"
sys.exit(main())
"""


def bench(
    messages: Annotated[int, "of each turn"] = 1_000,
    warm_up: Annotated[int, "messages before them"] = 300,
    idle_s: Annotated[float, "seconds without a message, of each turn"] = 1.0,
    rounds: Annotated[int, "turns of each"] = 3,
    loads: Annotated[tuple[str, ...], "in turns"] = tuple(LOADS),
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Microseconds of processor time a request, by thread, and milliseconds until it is out: medians of turns."""

    def one(load: str, turn: int) -> dict[str, Any]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skyray-small-")))
            row = _turn(stack.enter_context(_Server(folder, LOADS[load])), warm_up, messages, idle_s)
        tell(f"turn {turn + 1} of {rounds}: {load}: {row}")
        return row

    every = in_turns(loads, rounds, one)
    figures = {load: medians([row["figures"] for row in turns]) for load, turns in every.items()}
    rows = [row for turns in every.values() for row in turns]
    compared = sum(row["compared"] for row in rows)
    exact = compared > 0 and all(row["missing"] == row["extra"] == 0 for row in rows)
    workload = {"messages": messages, "warm_up": warm_up, "idle_s": idle_s, "rounds": rounds}
    return {"workload": workload, "measured": figures, "turns": every, "exact": exact, "compared": compared}


class _Server(Command):
    """`skyray serve` with these subscriptions while the block lasts."""

    def __init__(self, folder: Path, subscriptions: list[dict[str, Any]]):
        super().__init__(["serve", "--out", folder / "serve", "--port", 0], script=_NAMED)
        self.await_(lambda: "event=ready" in self.read()[1], _START_S)
        self.port = int(re.findall(r"http://127\.0\.0\.1:(\d+)", self.read()[1])[0])
        for row in subscriptions:  # the first of a kind waits for its kernels
            answer = call(self.port, "POST", "/v1/subscriptions", row, _START_S)
            if answer.status != 201:
                raise TopologyError(f"subscription refused: {answer.body!r}")

    def spent_us(self) -> Counter[str]:
        """Microseconds of processor time so far, by the names of threads; `main` has the topology."""
        spent: Counter[str] = Counter()
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                name, taken = (task / "comm").read_text().strip(), (task / "schedstat").read_text()
            except OSError:  # it has ended
                continue
            name = "main" if task.name == str(self.process.pid) else re.sub(r"[-_\d]+$", "", name)
            spent[name] += int(taken.split()[0]) // 1_000
        return spent


class _Connection:
    """A producer and a client that follows everything, over sockets that stay open."""

    def __init__(self, port: int):
        self._producer, self._client = (socket.create_connection(("127.0.0.1", port), _ANSWER_S) for _ in range(2))
        self._producer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client.sendall(b"GET /v1/updates HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        self._events = b""
        self._read_until(lambda: b"event: progress" in self._events)  # it takes part

    def publish(self, row: dict[str, Any]) -> int:
        """Send one message; returns its seq. Raises TopologyError if it is not taken."""
        body = json.dumps(row).encode()
        head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._producer.sendall(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        answer = b""
        while not answer.endswith(b"}"):
            answer += self._producer.recv(2**16)
        if b'"accepted"' not in answer:
            raise TopologyError(f"the message {row} was not taken: {answer!r}")
        return int(re.findall(rb'"seq":(\d+)', answer)[0])

    def await_update(self, seq: int) -> bytes:
        """The events up to one of this message."""
        self._read_until(lambda: b"\n\n" in self._events.partition(b'"seq":%d,' % seq)[2])
        events, self._events = self._events, b""
        return events

    def _read_until(self, found: Callable[[], bool]) -> None:
        while not found():
            data = self._client.recv(2**16)
            if not data:
                raise TopologyError("the server has closed the stream of events")
            self._events += data

    def close(self) -> None:
        self._producer.close()
        self._client.close()


def _turn(server: _Server, warm_up: int, messages: int, idle_s: float) -> dict[str, Any]:
    """Publish one after the other, then nothing for a while, and hold the events against what they should be."""
    took_s: dict[str, list[float]] = {"acknowledged": [], "delivered": []}
    wanted, found = Counter[bytes](), Counter[bytes]()
    before, begun_s = server.spent_us(), 0.0
    with closing(_Connection(server.port)) as connection:
        for number in range(warm_up + messages):
            if number == warm_up:
                before, begun_s = server.spent_us(), time.monotonic()
                took_s = {name: [] for name in took_s}
            matches = number % 3 != 2
            row = {"id": f"m{number}", "text": f"{'ramen' if matches else 'soba'} w{number % 50}", **_AT}
            sent_s = time.perf_counter()
            seq = connection.publish(row)
            took_s["acknowledged"].append(time.perf_counter() - sent_s)
            if matches:
                events = connection.await_update(seq)
                took_s["delivered"].append(time.perf_counter() - sent_s)
                wanted[b"m%d" % number] += 1
                found.update(re.findall(rb'"change":"match","subscription_id":"boolean","message_id":"(m\d+)"', events))
        spent, request_s = server.spent_us() - before, (time.monotonic() - begun_s) / messages
        before = server.spent_us()
        time.sleep(idle_s)
        idle = server.spent_us() - before
    figures = {f"{name}_us": us / messages for name, us in sorted(spent.items())}
    figures |= {"all_us": spent.total() / messages, "idle_cores": idle.total() / 1e6 / idle_s}
    figures["request_ms"] = 1e3 * request_s
    for name, seconds in took_s.items():
        ordered = sorted(seconds)
        figures |= {f"{name}_p50_ms": 1e3 * median(ordered), f"{name}_p99_ms": 1e3 * ordered[99 * len(ordered) // 100]}
    missing, extra = (wanted - found).total(), (found - wanted).total()
    return {"figures": figures, "compared": wanted.total(), "missing": missing, "extra": extra}


if __name__ == "__main__":
    sys.exit(command.main(bench))
