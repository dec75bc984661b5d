"""Positions a second against fences, circles and octagons, over objects that move: the engine beside Tile38.

    python -m benchmarks.fences [--fences N] [--objects N] [--turns N] [--tracks FILE] > benchmarks/results/fences.json

Objects begin at places of messages (`benchmarks.workload`), around which fences as large as a district lie, and go
straight on, or as real ones did: the wheel of the Python package `traffic` has flights (`traffic/data/samples/
collections/switzerland.json.gz`), of which each object flies a piece, moved to its beginning. An object has a word and
a speed; a quarter of the fences asks for one word in twenty, another quarter for a quarter of all speeds.

In a turn each object reports a position; the engine and Tile38 take the turns one after the other. The engine is
`boolean` in a stream of objects, alone. Tile38 has a channel for each fence and one client that reads all of them,
commands are pipelined and made before, nothing is durable, and Go has one processor. The events of some fences are
compared with a plain test of each fence with each position; those of the others with each other.
"""

import gzip
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import psutil
import shapely

from benchmarks import command
from benchmarks.command import Tell, verdict
from benchmarks.driving import NO_SUBSCRIPTIONS, Batch, Step, take
from benchmarks.runtimes import TILE38_INSTALL, tile38_server
from benchmarks.stopwatch import in_turns, medians
from benchmarks.workload import REGIONS, draw_places
from gateway.subscriptions.filters import octagon, radius_within
from matching.conditions import WITHIN
from matching.errors import EngineError
from matching.filter_programs import Instruction, joined_programs, program_of
from matching.filters import circle_instruction, polygon_instruction
from matching.geo.polygons import Rings
from matching.geo.sphere import EARTH_RADIUS_M, ball_box
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import LEAVE, Float64, Int64, MessageBatch, SubscriptionTable
from matching.window import NO_FLOOR, Boundary, Window
from spouts.versions import LivingObjects, Objects
from tests.support.boolean_tables import RESERVED, SPACE, batch, table
from tests.support.serving import free_port

#: Positions a batch, and commands that are sent before answers are read.
_BATCH = 1_000
#: Fences that are tested plainly.
_SAMPLE = 5_000
#: Degrees that an object moves in a turn, at most.
_STEP_DEG = 0.02
#: Milliseconds between two positions of a real track, on average at most.
_LONGEST_STEP_MS = 20_000
#: Places are within these degrees, so that no fence has a pole or the antimeridian.
_EDGE = np.array([[178.0], [75.0]])
#: Tile38's earth has another radius: metres are given so that circles are the same.
_THEIR_RADIUS_M = 6_371_000.0
_START_S, _ANSWER_S = 30.0, 120.0
#: The object whose events tell that all before them have come, and where it goes: out of its fence and in.
_LAST, _APART = b"last", ((-82.0, 0.0), (-80.0, 0.0))
_EVENT = re.compile(rb'"detect":"(enter|exit)","hook":"(\d+)".*?"id":"(\d+)"')
#: What a fence asks of an object beside its place.
_NOTHING, _WORD, _SPEED = range(3)
#: Words that objects have, one each, the speeds that they have, and how many of these a fence takes.
_WORDS, _SPEEDS, _SPREAD = 20, 100, 25
#: Fences that subscribe with one batch.
_ADDED = 50_000


class World(NamedTuple):
    """Fences and positions.

    region : float64[fences, 4]          west, south, east, north: the octagon touches it, the circle is as high
    circle : bool[fences]                whether it is a circle; the others are octagons
    asks : int64[fences]                 `_NOTHING` of half of them, else `_WORD` or `_SPEED`
    value : int64[fences]                the word, or the least speed that it takes
    places : float64[2, turns, objects]  longitudes and latitudes
    traits : int64[2, objects]           word and speed
    """

    region: Float64
    circle: np.ndarray
    asks: Int64
    value: Int64
    places: Float64
    traits: Int64

    @classmethod
    def draw(cls, fences: int, objects: int, turns: int, seed: int, tracks: str | None = None) -> Self:
        """Draw fences and objects, which go straight on, or along pieces of the `tracks` in a file."""
        rng = np.random.default_rng([seed, 13])
        places = draw_places(rng, 2 * (fences + objects) + 100, "clustered")
        places = places[:, (np.abs(places) < _EDGE).all(axis=0)]
        middles, begin = places[:, :fences], places[:, fences : fences + objects]
        half = 180.0 * 10.0 ** rng.uniform(*REGIONS["district"][0], fences)
        moved = rng.uniform(-_STEP_DEG, _STEP_DEG, (2, 1, objects)) * np.arange(turns)[:, None]
        region = np.concatenate([middles - half, middles + half]).T
        circle, asks = rng.random(fences) < 0.5, rng.choice(3, fences, p=(0.5, 0.25, 0.25))
        value = rng.integers(0, np.where(asks == _WORD, _WORDS, _SPEEDS - _SPREAD + 1))
        traits = rng.integers(0, ((_WORDS,), (_SPEEDS,)), (2, objects))
        if tracks is not None:
            moved = _pieces(tracks, turns, objects, rng)
        return cls(region, circle, asks, value, begin[:, None] + moved, traits)

    @property
    def objects(self) -> int:
        """How many there are."""
        return self.places.shape[2]

    def subscriptions(self, first: int, end: int) -> SubscriptionTable:
        """Some fences as boolean subscriptions."""
        boxes, programs = self.region[first:end].copy(), []
        for row, region in enumerate(boxes.tolist()):
            fence = first + row
            value, instructions = int(self.value[fence]), []
            if self.asks[fence] == _SPEED:
                instructions.append(Instruction(WITHIN, 0, (value, value + _SPREAD - 1)))
            if self.circle[fence]:
                circle = *_middle(region), radius_within(region)
                boxes[row] = ball_box(*circle)
                instructions.append(circle_instruction(*circle))
            else:
                lons, lats = np.array(octagon(region)).T.copy()
                instructions.append(polygon_instruction(Rings(np.array([0, len(lons)]), lons, lats)))
            programs.append(program_of(instructions))
        offsets, words = joined_programs(programs)
        terms = np.where(self.asks == _WORD, self.value, RESERVED)[first:end, None].tolist()
        rows = table([*zip(map(tuple, boxes.tolist()), terms, strict=True)], first)
        return rows.having(filter_offsets=offsets, filter_words=words)

    def messages(self) -> MessageBatch:
        """Positions as versions of objects, turn by turn."""
        places = self.places.reshape(2, -1).T.tolist()
        words, speeds = np.tile(self.traits, len(places) // self.objects)
        rows = batch([((lon, lat), (word, RESERVED)) for (lon, lat), word in zip(places, words.tolist(), strict=True)])
        return rows.having(previous_seq=np.maximum(rows.seq - self.objects, -1), keys=speeds[:, None])

    def event(self, seq: Int64, fence: Any, leaves: Any) -> Int64:
        """Events as numbers, which ascend with the seq of the position: int64[n] from columns of as many rows."""
        return (seq * len(self.region) + fence) * 2 + leaves

    def fences_of(self, events: Int64) -> Int64:
        """The fence of each event."""
        return events // 2 % len(self.region)

    def expected(self, fences: Int64) -> Int64:
        """The events of some fences, by a plain test of each with each position as far north, with room to spare."""
        places = self.places.reshape(2, -1)
        northward = np.argsort(places[1])
        norths, events = places[1][northward], [np.zeros(0, np.int64)]
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
            word, speed = self.traits[:, rows % self.objects]
            if self.asks[fence] == _WORD:
                found &= word == self.value[fence]
            elif self.asks[fence] == _SPEED:
                found &= (speed >= self.value[fence]) & (speed < self.value[fence] + _SPREAD)
            inside = np.sort(rows[found])
            entered = inside[~np.isin(inside - self.objects, inside)]
            left = inside[~np.isin(inside + self.objects, inside)] + self.objects
            left = left[left < places.shape[1]]
            events += [self.event(entered, fence, False), self.event(left, fence, True)]
        return np.concatenate(events)


def _pieces(file: str, turns: int, objects: int, rng: np.random.Generator) -> Float64:
    """Where pieces of tracks lead from where they begin, float64[2, turns, objects] in degrees.

    `file` is a gzipped list of rows with `icao24`, `timestamp` (ms), `longitude` and `latitude`.
    """
    with gzip.open(file) as stream:
        rows = sorted((row["icao24"], row["timestamp"], row["longitude"], row["latitude"]) for row in json.load(stream))
    craft, time_ms, *places = (np.array(column) for column in zip(*rows, strict=True))
    last = np.arange(turns - 1, craft.shape[0])
    first = last - (turns - 1)
    whole = (craft[first] == craft[last]) & (time_ms[last] - time_ms[first] <= _LONGEST_STEP_MS * turns)
    begin = rng.choice(first[whole], objects)
    along = np.stack(places)[:, begin + np.arange(turns)[:, None]]
    return along - along[:, :1]


class Ours:
    """The engine of `boolean`, in a stream of objects."""

    def __init__(self, world: World):
        self._world, self._messages = world, world.messages()
        self._engine = LocalEngine([KINDS.named("boolean")], SPACE, Window("count", 1), objects=True)
        self._batches, self._told, self.build_s = 0, [np.zeros(0, np.int64)], 0.0
        fences = len(world.region)
        for first in range(0, fences, _ADDED):
            added = world.subscriptions(first, min(first + _ADDED, fences))
            self.build_s += self._take(0, 0, added).seconds
        self.bytes_per_subscription = sum(each.nbytes for each in self._engine.operator.arrays().values()) / fences

    @property
    def told(self) -> Int64:
        """All events so far, in the order in which they came."""
        return np.concatenate(self._told)

    def turn(self, number: int) -> dict[str, float]:
        """Take the positions of a turn."""
        objects = self._world.objects
        first, taken = number * objects, 0.0
        for at in range(first, first + objects, _BATCH):
            step = self._take(at, min(at + _BATCH, first + objects))
            updates = step.output.updates
            self._told.append(self._world.event(updates.as_of, updates.number, updates.change == LEAVE))
            taken += step.seconds
        return {"messages_per_s": objects / taken}

    def _take(self, first: int, end: int, added: SubscriptionTable = NO_SUBSCRIPTIONS) -> Step:
        rows = np.arange(first, end)
        ended = self._messages.take(rows[rows >= self._world.objects] - self._world.objects)
        boundary = Boundary(self._batches, first, end - 1, NO_FLOOR)
        self._batches += 1
        return take(self._engine, Batch(boundary, self._messages.take(rows), added, ended=ended))

    def close(self) -> None:
        """Nothing is open."""


class Tile38:
    """A server of its own, with a channel for each fence."""

    def __init__(self, world: World):
        self._world, self._sets = world, 0
        self._told = [np.zeros(0, np.int64)]
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

    @property
    def told(self) -> Int64:
        """All events so far, in the order in which they came."""
        return np.concatenate(self._told)

    def turn(self, number: int) -> dict[str, float]:
        """Send the positions of a turn, and wait for its last event."""
        rows = zip(self._world.places[:, number].T.tolist(), self._world.traits.T.tolist(), strict=True)
        sets = [
            _resp("SET", "fleet", one, "FIELD", "word", word, "FIELD", "speed", speed, "POINT", lat, lon)
            for one, ((lon, lat), (word, speed)) in enumerate(rows)
        ]
        sets.append(_resp("SET", "fleet", _LAST, "POINT", *_APART[self._sets % 2]))
        self._sets += 1
        begun = time.perf_counter()
        self._send(sets)
        if not self._ends.acquire(timeout=_ANSWER_S):
            raise EngineError(f"Tile38 sent no last event of turn {number} within {_ANSWER_S:.0f} s")
        taken = time.perf_counter() - begun
        heard, self._heard[:] = bytes(self._heard), b""
        found = [(int(one), int(fence), detect == b"exit") for detect, fence, one in _EVENT.findall(heard)]
        one, fence, leaves = np.array(found, np.int64).reshape(-1, 3).T
        self._told.append(self._world.event(number * self._world.objects + one, fence, leaves))
        return {"messages_per_s": self._world.objects / taken}

    def close(self) -> None:
        """End the server."""
        self._server.kill()
        self._server.wait()
        self._folder.cleanup()

    def _fence(self, row: int) -> bytes:
        region, value = self._world.region[row].tolist(), int(self._world.value[row])
        where = ((), ("WHERE", "word", value, value), ("WHERE", "speed", value, value + _SPREAD - 1))
        fence = (*_FENCE[:2], *where[self._world.asks[row]], *_FENCE[2:])
        if self._world.circle[row]:
            lon, lat = _middle(region)
            radius_m = radius_within(region) * _THEIR_RADIUS_M / EARTH_RADIUS_M
            return _resp("SETCHAN", row, *fence, "CIRCLE", lat, lon, radius_m)
        corners = ",".join(f"[{lon!r},{lat!r}]" for lon, lat in octagon(region))
        return _resp("SETCHAN", row, *fence, "OBJECT", f'{{"type":"Polygon","coordinates":[[{corners}]]}}')

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
    tracks: Annotated[str | None, "a file of real ones; by default objects go straight on"] = None,
    *,
    tell: Tell,
) -> dict[str, Any]:
    """Positions a second of each way, and the events that each missed or made up."""
    world = World.draw(fences, objects, turns + 1, seed, tracks)
    ways: dict[str, type[Ours | Tile38]] = {"boolean": Ours}
    report: dict[str, Any] = {
        "fences": fences,
        "objects": objects,
        "turns": turns,
        "seed": seed,
        "tracks": tracks is not None,
    }
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
    wanted, is_some = world.expected(some), np.isin(np.arange(fences), some)
    ours, results = built["boolean"].told, []
    for name, one in built.items():
        told = one.told
        of_some = told[is_some[world.fences_of(told)]]
        missing, extra = _less(wanted, of_some), _less(of_some, wanted)
        figures = {"engine": name, **medians(rows[name][1:]), "rounds": rows[name][1:], "build_s": one.build_s}
        figures |= {"bytes_per_subscription": one.bytes_per_subscription, "events": told.shape[0]}
        figures |= {"missing": _by_change(missing), "extra": _by_change(extra)}
        if name != "boolean":
            figures |= {"other_than_ours": _less(told, ours).shape[0], "not_of_ours": _by_change(_less(ours, told))}
        of_position = told // (2 * fences)
        figures["in_order"] = bool(np.all(of_position[1:] >= of_position[:-1]))
        same = figures["in_order"] and not missing.shape[0] and not extra.shape[0]
        results.append(figures | verdict(same, wanted.shape[0], np.unique(world.fences_of(wanted)).shape[0]))
    living, names = LivingObjects(), [*map(str, range(objects))]
    living.feed(world.messages().take(np.arange(objects)), Objects(names, np.zeros(objects, np.bool_)))
    return report | {"bytes_per_object": living.size_bytes / objects, "exact": results[0]["exact"], "results": results}


def _less(one: Int64, other: Int64) -> Int64:
    """The events of one, of which each of the other takes one away."""
    events, counts = np.unique(one, return_counts=True)
    others, other_counts = np.unique(other, return_counts=True)
    at = np.minimum(np.searchsorted(others, events), max(0, others.shape[0] - 1))
    if others.shape[0]:
        counts = np.maximum(counts - np.where(others[at] == events, other_counts[at], 0), 0)
    return np.repeat(events, counts)


def _by_change(events: Int64) -> dict[str, int]:
    """How many enter and leave."""
    leaves = int(np.count_nonzero(events % 2))
    return {"enter": events.shape[0] - leaves, "leave": leaves}


if __name__ == "__main__":
    sys.exit(command.main(measure))
