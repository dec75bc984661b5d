"""From the released updates to a sink of all updates: a thread for each, at the pace of its receiver.

Nothing waits for it: updates that a receiver has not taken stay in memory and in the parts of the stream's folder, as
far as these go back. A receiver that is away is tried again, with pauses that double. One that refuses stops its own
sink and nothing else.
"""

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import BEGINNING, START, Place, Position, TakenUpdates
from gateway.shell.terminal import whole_file
from gateway.sinks.stream import SinkAway, StreamSink, UpdateChunk
from matching.errors import ConfigError, DeliveryError, EngineError, InputError
from topology.core.executors.logs import driver_log

#: Name of the file of positions in the folder.
FILE = "sinks.json"
_FORMAT = 1
#: Updates of a chunk at most.
MOST = 5_000
#: Bounds in seconds of the backoff before a reconnect, which doubles each time and has a jitter of 0.5 to 1.
LEAST_PAUSE_S, MOST_PAUSE_S = 0.1, 10.0
#: Seconds: longest wait between two reads of the supply; least time between two chunks once all updates are read; time
#: between two chunks without updates, which only advance the position.
_LOOK_S, _LINGER_S, _PASSED_S = 0.5, 0.02, 0.5
#: Seconds between two checks of a receiver for which there are no updates.
CHECK_S = 5.0
#: Seconds between two writes of positions.
_SAVE_S = 1.0


class DurablePlace(NamedTuple):
    """Up to where a receiver has stored a stream durably, and the number of updates before it that were lost."""

    place: Place
    lost: int


class _Row(msgspec.Struct):
    boundary: int
    index: int
    updates: int
    lost: int


class _File(msgspec.Struct):
    format: int
    stream: str
    sinks: dict[str, _Row]


class Positions:
    """The file with the position of each sink; for any thread.

    A receiver that keeps its position itself (`exactly_once`) decides; then this is only for the counts.

    Parameters
    ----------
    stream : str
        Identity of the stream; positions of another are forgotten.

    Raises
    ------
    InputError
        If the file is not of this format.
    """

    def __init__(self, folder: Path, stream: str):
        self._path = folder / FILE
        self._lock = threading.Lock()
        self._file = _File(_FORMAT, stream, {})
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            raise InputError(
                "bad_sinks", f"{self._path}: cannot be read ({error}); restore it, or remove it"
            ) from error
        if found.format != _FORMAT:
            raise InputError("bad_sinks", f"{self._path}: has the format {found.format}, and {_FORMAT} is read")
        if found.stream == stream:
            self._file = found

    def of(self, name: str) -> DurablePlace:
        """How far a sink was; the beginning for a new one."""
        with self._lock:
            row = self._file.sinks.get(name)
        if row is None:
            return DurablePlace(START, 0)
        return DurablePlace(Place(Position(row.boundary, row.index), row.updates), row.lost)

    def save(self, name: str, reached: DurablePlace) -> None:
        """Write how far a sink is. One file, written whole. Raises DeliveryError."""
        (position, updates), lost = reached
        with self._lock:
            self._file.sinks[name] = _Row(*position, updates, lost)
            with whole_file(self._path) as file:
                file.write(msgspec.json.format(msgspec.json.encode(self._file)))
                file.flush()
                os.fsync(file.fileno())


class Pump:
    """The thread of one sink.

    Parameters
    ----------
    stream : str
        Identity of the stream.
    logged : callable
        Seq of the next message of the stream: no receiver can have more.

    Attributes
    ----------
    state : str
        `connecting`, `delivering`, `away` (tried again and again), `stopped` (refused) or `ended`.
    error : str
        Why it is away or stopped; "" otherwise.
    reconnects : int
        Times that the receiver was away.
    failure : BaseException or None
        Why the first attempt was refused: the command ends by it. What fails later stops the sink alone.
    """

    def __init__(
        self,
        sink: StreamSink,
        stream: str,
        supply: UpdateLog,
        positions: Positions,
        logged: Callable[[], int],
    ):
        self.state, self.error = "connecting", ""
        self.reconnects = 0
        self.failure: BaseException | None = None
        self._sink = sink
        self._stream = stream
        self._supply = supply
        self._positions = positions
        self._logged = logged
        self._reached = self._saved = positions.of(sink.name)
        self._saved_s = self._delivered_s = self._heard_s = 0.0
        self._wanted = self._reached.place.position
        self._at: Place | None = None  # behind what was given to the sink
        self._lost = self._reached.lost  # of what was read so far
        self._given: deque[DurablePlace] = deque()  # ends of chunks that are not durable
        self._pause_s = LEAST_PAUSE_S
        self._was_open = False
        self._came = threading.Event()
        self._finishing = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sink {sink.name}", daemon=True)

    @property
    def name(self) -> str:
        return self._sink.name

    @property
    def position(self) -> Position:
        """Up to where the receiver has the updates durably."""
        return self._reached.place.position

    @property
    def ended(self) -> bool:
        """Whether the thread delivers no more."""
        return self.state in ("ended", "stopped")

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """There may be updates; for any thread."""
        self._came.set()

    def finish(self) -> None:
        """Deliver all updates that were released, then end."""
        self._finishing.set()
        self._came.set()

    def join(self, seconds: float) -> None:
        """Wait for the end, so long at most."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def close(self, seconds: float = 5.0) -> None:
        """Deliver no more, and wait until the sink is closed, so long at most."""
        self._closing.set()
        self._came.set()
        self.join(seconds)

    def figures(self) -> dict[str, Any]:
        """For people and metrics, from any thread; `released` is delivered, waiting and lost together."""
        (position, updates), lost = self._reached
        waiting = max(0, self._supply.end().updates - updates)
        return {
            "name": self.name,
            "state": self.state,
            "error": self.error or None,
            "exactly_once": self._sink.exactly_once,
            "position": position.text if position.boundary >= 0 else None,
            "released": updates + waiting,
            "delivered": updates - lost,
            "waiting": waiting,
            "lost": lost,
            "reconnects": self.reconnects,
        }

    def _run(self) -> None:
        self._live()
        if self.state != "stopped":
            self.state = "ended"

    def _live(self) -> None:
        while not self._closing.is_set():
            try:
                self._open()
                while not self._closing.is_set():
                    if not self._advance():
                        return
            except SinkAway as error:
                self._be_away(error)
            except Exception as error:  # a file that cannot be read, or a defect, stops no stream either
                is_ours = isinstance(error, EngineError)
                self.error = str(error) if is_ours else repr(error)
                if is_ours and not self._was_open and not self.reconnects:
                    self.failure = error  # what was typed is wrong: the command ends
                else:
                    do = "the others go on, and a restart tries it again"
                    driver_log().error("sink_stopped", sink=self.name, why=self.error, do=do)
                self.state = "stopped"
                return
            finally:
                self._sink.close()
                self._save(0.0)

    def _be_away(self, error: SinkAway) -> None:
        if self.state != "away":
            driver_log().warning(
                "sink_away", sink=self.name, why=str(error), do="tried again and again, its updates wait"
            )
        self.state, self.error = "away", str(error)
        self.reconnects += 1
        self._closing.wait(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)

    def _open(self) -> None:
        position = self._sink.open(self._stream)
        if position is None:  # a receiver that keeps its position, and has none, has nothing
            self._reached = DurablePlace(START, 0) if self._sink.exactly_once else self._reached
            position = self._reached.place.position
        if position.boundary >= self._logged():
            raise ConfigError(
                f"{self.name}: has updates up to message {position.boundary:,}, and the folder's log ends before it: "
                "the folder is an older copy; restore the newer one, or name another place"
            )
        self._given.clear()
        self._at = None
        self._wanted = position
        self._heard_s = time.monotonic()

    def _advance(self) -> bool:
        """Deliver the next updates, or wait a little; False at the end."""
        if self._at is None and not self._find():
            return True
        assert self._at is not None
        self._came.clear()
        taken = self._supply.take(self._at, MOST)
        if taken is None:
            if not self._given and time.monotonic() >= self._heard_s + CHECK_S:
                self._sink.check()
                self._heard_s = time.monotonic()
            self._note_open()
            if self._finishing.is_set() and not self._given:
                return False
            self._save(_SAVE_S)
            self._came.wait(_LOOK_S)
            self._closing.wait(0.0 if self._finishing.is_set() else _LINGER_S)
            return True
        if self._is_early(taken):
            self._note_open()
            self._closing.wait(_LINGER_S)
            return True
        self._note_lost(taken)
        for chunk, end in chunks_of(taken, MOST):
            self._deliver(chunk, DurablePlace(end, self._lost))
        self._note_open()
        self._save(_SAVE_S)
        return True

    def _find(self) -> bool:
        """Find the place of the position, which may be ahead of the updates that are matched again after a crash."""
        if self._wanted == BEGINNING:
            place = START
        else:
            place = self._supply.place(self._wanted, self._reached.place)
        if place is None:
            self._came.wait(_LOOK_S / 10)
            self._came.clear()
            if self._finishing.is_set():
                raise DeliveryError(f"{self.name}: has more than the stream; it is another one's")
            return False
        self._at, self._lost = place, self._reached.lost
        self._reached = DurablePlace(place, self._lost)
        return True

    def _note_open(self) -> None:
        if self.state == "away":
            driver_log().info("sink_back", sink=self.name)
        self.state, self.error, self._was_open = "delivering", "", True

    def _is_early(self, taken: TakenUpdates) -> bool:
        """Whether only boundaries without updates have passed since a delivery a moment ago."""
        assert self._at is not None
        nothing = not taken.updates and taken.behind.updates == self._at.updates
        return nothing and not self._finishing.is_set() and time.monotonic() < self._delivered_s + _PASSED_S

    def _note_lost(self, taken: TakenUpdates) -> None:
        assert self._at is not None
        lost = taken.behind.updates - self._at.updates - len(taken.updates)
        if lost > 0:
            self._lost += lost
            driver_log().error(
                "sink_lost_updates",
                sink=self.name,
                count=lost,
                after=self._at.position.text,
                why="files of the folder's updates/ are gone; what follows is delivered, and results there are wrong "
                "where these would have changed them",
            )

    def _deliver(self, chunk: UpdateChunk, end: DurablePlace) -> None:
        if self._closing.is_set():
            return
        durable = self._sink.deliver(chunk)
        self._delivered_s = self._heard_s = time.monotonic()
        self._at = end.place
        self._given.append(end)
        while self._given and self._given[0].place.position <= durable:
            self._reached = self._given.popleft()
            self._pause_s = LEAST_PAUSE_S

    def _save(self, every_s: float) -> None:
        """Write the position, unless it was written just now; after a crash updates behind it are sent again."""
        if self._reached == self._saved or time.monotonic() < self._saved_s + every_s:
            return
        self._saved_s = time.monotonic()
        try:
            self._positions.save(self.name, self._reached)
            self._saved = self._reached
        except DeliveryError as error:
            driver_log().warning("sink_position_not_written", sampled=self.name, sink=self.name, why=str(error))


def chunks_of(taken: TakenUpdates, most: int) -> Iterator[tuple[UpdateChunk, Place]]:
    """Cut what was read into chunks of at most `most` updates, each with the place behind it."""
    updates = taken.updates
    skipped = taken.behind.updates - len(updates)
    for first in range(0, len(updates), most):
        some = updates[first : first + most]
        if first + most >= len(updates):
            break
        behind = Position.of(some[-1].position)
        ends = _boundary(updates[first + most]) != behind.boundary
        yield UpdateChunk(some, behind, ends, behind.boundary), Place(behind, skipped + first + most)
    else:
        some = []
    behind = taken.behind.position
    yield UpdateChunk(some, behind, taken.ends_boundary, behind.boundary), taken.behind


def _boundary(update: ReleasedUpdate) -> int:
    return Position.of(update.position).boundary
