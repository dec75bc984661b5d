"""Positions a second against fences, circles and octagons, over objects that move: the engine beside Tile38.

    python -m benchmarks.fences [--fences N] [--objects N] [--turns N] > benchmarks/results/fences.json

Objects begin at places of messages (`benchmarks.workload`), around which fences as large as a district lie, and go
straight on. In a turn each reports a position; the engine and Tile38 take the turns one after the other. The engine is
`boolean` in a stream of objects, alone. Tile38 has a channel for each fence and one client that reads all of them,
commands are pipelined and made before, nothing is durable, and Go has one processor. What both have told of some fences
is held against a plain test of each fence with each position; the events of the others are compared with each other.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import psutil
import shapely

from benchmarks import command
from benchmarks.command import Tell, verdict
from benchmarks.driving import NO_SUBSCRIPTIONS, Batch, take
from benchmarks.runtimes import TILE38_INSTALL, tile38_server
from benchmarks.stopwatch import in_turns, medians
from benchmarks.workload import REGIONS, make_messages
from gateway.subscriptions.filters import octagon, radius_within
from matching.errors import EngineError
from matching.filter_programs import joined_programs, program_of
from matching.filters import circle_instruction, polygon_instruction
from matching.geo.polygons import Rings
from matching.geo.sphere import EARTH_RADIUS_M, ball_box
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import CHANGES, NO_MESSAGES, Float64, Int64, MessageBatch, SubscriptionTable
from matching.window import NO_FLOOR, Boundary, Window
from tests.support.boolean_tables import RESERVED, SPACE, batch, table
from tests.support.serving import free_port

#: Positions a batch, and commands that are sent before answers are read.
_BATCH = 1_000
#: Fences that are tested plainly.
_SAMPLE = 5_000
#: Degrees that an object moves in a turn, at most.
_STEP_DEG = 0.02
#: Places are within these degrees, so that no fence has a pole or the antimeridian.
_EDGE = np.array([[178.0], [75.0]])
#: Tile38's earth has another radius: metres are given so that circles are the same.
_THEIR_RADIUS_M = 6_371_000.0
_START_S, _ANSWER_S = 30.0, 120.0
#: The object whose events tell that all before them have come, and where it goes: out of its fence and in.
_LAST, _APART = b"last", ((-82.0, 0.0), (-80.0, 0.0))
_EVENT = re.compile(rb'"detect":"(enter|exit)","hook":"(\d+)".*?"id":"(\d+)"')
#: Seq of the position, fence, and what has become of it.
Event = tuple[int, int, str]


class World(NamedTuple):
    """Fences and positions.

    region : float64[fences, 4]          west, south, east, north: the octagon touches it, the circle is as high
    circle : bool[fences]                whether it is a circle; the others are octagons
    places : float64[2, turns, objects]  longitudes and latitudes
    """

    region: Float64
    circle: np.ndarray
    places: Float64

    @classmethod
    def draw(cls, fences: int, objects: int, turns: int, seed: int) -> Self:
        """Draw fences and the tracks of objects."""
        rng, drawn = np.random.default_rng([seed, 13]), make_messages(2 * (fences + objects) + 100, seed).batch
        places = np.stack([drawn.west, drawn.south])
        places = places[:, (np.abs(places) < _EDGE).all(axis=0)]
        middles, begin = places[:, :fences], places[:, fences : fences + objects]
        half = 180.0 * 10.0 ** rng.uniform(*REGIONS["district"][0], fences)
        step = rng.uniform(-_STEP_DEG, _STEP_DEG, (2, 1, objects)) * np.arange(turns)[:, None]
        region = np.concatenate([middles - half, middles + half]).T
        return cls(region, rng.random(fences) < 0.5, begin[:, None] + step)

    @property
    def objects(self) -> int:
        """How many there are."""
        return self.places.shape[2]

    def subscriptions(self) -> SubscriptionTable:
        """Fences as boolean subscriptions without words."""
        boxes, programs = self.region.copy(), []
        for row, region in enumerate(self.region.tolist()):
            if self.circle[row]:
                circle = *_middle(region), radius_within(region)
                boxes[row] = ball_box(*circle)
                programs.append(program_of([circle_instruction(*circle)]))
            else:
                lons, lats = np.array(octagon(region)).T.copy()
                programs.append(program_of([polygon_instruction(Rings(np.array([0, len(lons)]), lons, lats))]))
        offsets, words = joined_programs(programs)
        rows = table([(tuple(box), [RESERVED]) for box in boxes.tolist()])
        return rows.having(filter_offsets=offsets, filter_words=words)

    def messages(self) -> MessageBatch:
        """Positions as versions of objects, turn by turn."""
        rows = batch([((lon, lat), [RESERVED]) for lon, lat in self.places.reshape(2, -1).T.tolist()])
        return rows.having(previous_seq=np.maximum(rows.seq - self.objects, -1))

    def expected(self, fences: Int64) -> Counter[Event]:
        """The events of some fences, by a plain test of each with each position as far north, with room to spare."""
        places = self.places.reshape(2, -1)
        northward = np.argsort(places[1])
        norths, events = places[1][northward], list[Event]()
        for fence, region in zip(fences.tolist(), self.region[fences].tolist(), strict=True):
            spare = region[3] - region[1]
            first, last = np.searchsorted(norths, (region[1] - spare, region[3] + spare))
            rows = northward[first:last]
            if self.circle[fence]:
                (lon, lat), (lon_, lat_) = np.radians(places[:, rows]), np.radians(_middle(region))
                squared = np.sin((lat - lat_) / 2) ** 2 + np.cos(lat) * np.cos(lat_) * np.sin((lon - lon_) / 2) ** 2
                found = 2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(squared)) <= radius_within(region)
            else:
                found = shapely.intersects_xy(shapely.Polygon(octagon(region)), *places[:, rows])
            inside = np.zeros(self.places.shape[1:], np.bool_)
            inside.flat[rows[found]] = True
            before = np.concatenate([np.zeros((1, self.objects), np.bool_), inside[:-1]])
            for change, which in (("enter", inside & ~before), ("leave", before & ~inside)):
                events += [(seq, fence, change) for seq in np.flatnonzero(which).tolist()]
        return Counter(events)


class Ours:
    """The engine of `boolean`, in a stream of objects."""

    def __init__(self, world: World):
        self._objects, self._messages = world.objects, world.messages()
        self._engine = LocalEngine([KINDS.named("boolean")], SPACE, Window("count", 1), objects=True)
        self._batches = 0
        self.told: Counter[Event] = Counter()
        fences = world.subscriptions()
        begun = time.perf_counter()
        self._take(0, 0, fences)
        self.build_s = time.perf_counter() - begun
        self.bytes_per_subscription = sum(each.nbytes for each in self._engine.operator.arrays().values()) / len(fences)

    def turn(self, number: int) -> dict[str, float]:
        """Take the positions of a turn."""
        first, taken = number * self._objects, 0.0
        updates = []
        for at in range(first, first + self._objects, _BATCH):
            step, seconds = self._take(at, min(at + _BATCH, first + self._objects))
            updates.append(step.updates)
            taken += seconds
        told = (zip(some.as_of.tolist(), some.number.tolist(), some.change.tolist(), strict=True) for some in updates)
        self.told.update((seq, fence, CHANGES[change]) for some in told for seq, fence, change in some)
        return {"messages_per_s": self._objects / taken}

    def _take(self, first: int, end: int, added: SubscriptionTable = NO_SUBSCRIPTIONS) -> Any:
        rows = np.arange(first, end)
        ended = self._messages.take(rows[rows >= self._objects] - self._objects) if end else NO_MESSAGES
        boundary = Boundary(self._batches, first, end - 1, NO_FLOOR)
        self._batches += 1
        return take(self._engine, Batch(boundary, self._messages.take(rows), added, ended=ended))

    def close(self) -> None:
        """Nothing is open."""


class Tile38:
    """A server of its own, with a channel for each fence."""

    def __init__(self, world: World):
        self._world, self._sets = world, 0
        self.told: Counter[Event] = Counter()
        self._folder, port = tempfile.TemporaryDirectory(), free_port()
        program = tile38_server()
        assert program is not None, TILE38_INSTALL
        words = [program, "-h", "127.0.0.1", "-p", str(port), "-d", self._folder.name, "--appendonly", "no", "-q"]
        self._server = subprocess.Popen(words, env=os.environ | {"GOMAXPROCS": "1"}, stdout=subprocess.DEVNULL)
        self._heard, self._ends = bytearray(), threading.Semaphore(0)
        self._commands = self._connect(port)
        self._listener = self._connect(port)
        self._listener.sendall(_resp("PSUBSCRIBE", "*"))
        threading.Thread(target=self._listen, daemon=True).start()
        fences = [self._fence(row) for row in range(len(world.region))]
        fences.append(_resp("SETCHAN", _LAST, *_FENCE, "CIRCLE", *_APART[0], 1_000.0))
        before, begun = self._memory(), time.perf_counter()
        self._send(fences)
        self.build_s = time.perf_counter() - begun
        self.bytes_per_subscription = (self._memory() - before) / len(fences)

    def turn(self, number: int) -> dict[str, float]:
        """Send the positions of a turn, and wait for its last event."""
        places = self._world.places[:, number].T.tolist()
        sets = [_resp("SET", "fleet", object_, "POINT", lat, lon) for object_, (lon, lat) in enumerate(places)]
        sets.append(_resp("SET", "fleet", _LAST, "POINT", *_APART[self._sets % 2]))
        self._sets += 1
        begun = time.perf_counter()
        self._send(sets)
        if not self._ends.acquire(timeout=_ANSWER_S):
            raise EngineError(f"Tile38 sent no last event of turn {number} within {_ANSWER_S:.0f} s")
        taken = time.perf_counter() - begun
        heard, self._heard[:] = bytes(self._heard), b""
        changes = {b"enter": "enter", b"exit": "leave"}
        self.told.update(
            (number * self._world.objects + int(object_), int(fence), changes[detect])
            for detect, fence, object_ in _EVENT.findall(heard)
        )
        return {"messages_per_s": self._world.objects / taken}

    def close(self) -> None:
        """End the server."""
        self._server.kill()
        self._server.wait()
        self._folder.cleanup()

    def _fence(self, row: int) -> bytes:
        region = self._world.region[row].tolist()
        if self._world.circle[row]:
            lon, lat = _middle(region)
            radius_m = radius_within(region) * _THEIR_RADIUS_M / EARTH_RADIUS_M
            return _resp("SETCHAN", row, *_FENCE, "CIRCLE", lat, lon, radius_m)
        corners = ",".join(f"[{lon!r},{lat!r}]" for lon, lat in octagon(region))
        return _resp("SETCHAN", row, *_FENCE, "OBJECT", f'{{"type":"Polygon","coordinates":[[{corners}]]}}')

    def _connect(self, port: int) -> socket.socket:
        until = time.monotonic() + _START_S
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S)
            except ConnectionRefusedError:
                if self._server.poll() is not None or time.monotonic() > until:
                    raise EngineError("Tile38 did not start; run its command by hand to see why") from None
                time.sleep(0.02)

    def _send(self, commands: list[bytes]) -> None:
        """Send commands, so many at a time; each is answered by a line."""
        for first in range(0, len(commands), _BATCH):
            some = commands[first : first + _BATCH]
            self._commands.sendall(b"".join(some))
            answers = b""
            while answers.count(b"\n") < len(some):
                answers += self._commands.recv(1 << 20)
            if b"-" in answers:
                raise EngineError(f"Tile38 refuses a command: {answers[answers.index(b'-') :][:200]!r}")

    def _listen(self) -> None:
        while some := self._listener.recv(1 << 20):
            begun = max(0, len(self._heard) - len(_ENDS) + 1)
            self._heard += some
            for _ in range(self._heard.count(_ENDS, begun)):
                self._ends.release()

    def _memory(self) -> int:
        return psutil.Process(self._server.pid).memory_info().rss


_FENCE = ("WITHIN", "fleet", "FENCE", "DETECT", "enter,exit")
_ENDS = b'"id":"' + _LAST + b'"'


def _middle(region: list[float]) -> tuple[float, float]:
    """Longitude and latitude of the middle."""
    west, south, east, north = region
    return (west + east) / 2.0, (south + north) / 2.0


def _resp(*words: Any) -> bytes:
    """A command as Redis's protocol has it."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def measure(
    fences: Annotated[int, "half circles, half octagons"] = 100_000,
    objects: Annotated[int, "each reports a position a turn"] = 20_000,
    turns: Annotated[int, "turns of each, behind a first that is not timed"] = 7,
    seed: Annotated[int, "of the draw"] = 0,
    *,
    tell: Tell,
) -> dict[str, Any]:
    """Positions a second of each way, and the events that each missed or made up."""
    world = World.draw(fences, objects, turns + 1, seed)
    ways: dict[str, type[Ours | Tile38]] = {"boolean": Ours}
    report: dict[str, Any] = {"fences": fences, "objects": objects, "turns": turns, "seed": seed}
    if tile38_server() is None:
        report["absent"] = {"tile38": f"tile38-server is not here. Install it: {TILE38_INSTALL}"}
        tell(report["absent"]["tile38"])
    else:
        ways["tile38"] = Tile38
    built: dict[str, Ours | Tile38] = {}
    try:
        for name, way in ways.items():
            tell(f"building {name}")
            built[name] = way(world)
        rows = in_turns(built, turns + 1, lambda name, turn: built[name].turn(turn))
    finally:
        for one in built.values():
            one.close()
    some = np.unique(np.linspace(0, fences - 1, min(fences, _SAMPLE)).astype(np.int64))
    wanted, sampled = world.expected(some), set(some.tolist())
    results = []
    for name, one in built.items():
        told = Counter({event: times for event, times in one.told.items() if event[1] in sampled})
        figures = {"engine": name, **medians(rows[name][1:]), "rounds": rows[name][1:], "build_s": one.build_s}
        figures |= {"bytes_per_subscription": one.bytes_per_subscription, "events": one.told.total()}
        figures |= {"missing": _by_change(wanted - told), "extra": _by_change(told - wanted)}
        figures |= {"other_than_ours": (one.told - built["boolean"].told).total()}
        figures |= {"not_of_ours": _by_change(built["boolean"].told - one.told)}
        results.append(figures | verdict(told == wanted, wanted.total(), len({fence for _, fence, _ in wanted})))
    return report | {"exact": results[0]["exact"], "results": results}


def _by_change(events: Counter[Event]) -> dict[str, int]:
    """How many enter and leave."""
    changes = Counter(change for _, _, change in events.elements())
    return {change: changes[change] for change in ("enter", "leave")}


if __name__ == "__main__":
    sys.exit(command.main(measure))
