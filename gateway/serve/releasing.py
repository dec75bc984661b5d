"""The topology's updates as boundaries, each released once it is complete.

Updates of a boundary come in any order, some late, and again after a failure. A boundary is released once the watermark
(`through`) of all delivery tasks has reached it: its updates are sorted by subscription id, then leaves, matches,
enters, then seq. So the place of an update in its boundary, which is its id, depends on neither incarnations, executor
nor numbers of tasks. Of one id that order is the order of succession too: what leaves was in the result at the boundary
before, and what enters is of the subscription that is active at the end. The other end of the socket is
`bolts.publishing`; read on in `gateway.serve.hub`. Used by `gateway.serve.hub`, `gateway.serve.history` and
`gateway.commands.serve`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bolts.publishing import PublishedUpdates
from gateway.live.in_flight import InFlight
from gateway.live.update_listener import Listener, MessageText
from matching.model import CHANGES

#: Place of each change among those of a subscription id at a boundary.
RANKS = {"leave": 0, "match": 1, "enter": 2}

LookUp = Callable[[Sequence[int]], Mapping[int, MessageText]]


class RawUpdate(NamedTuple):
    """An update as delivery has it; the fields in the order in which updates of a boundary are sorted."""

    subscription_id: str
    rank: int
    seq: int
    as_of: int
    score: float | None


class Update(NamedTuple):
    """An update as clients get it: `data` is its JSON, with its id; the place of its message, in degrees."""

    subscription_id: str
    position: str
    data: bytes
    lon: float
    lat: float


class Released(NamedTuple):
    """A complete boundary: its last seq, and its updates."""

    boundary: int
    updates: tuple[Update, ...]


class Releaser(Listener):
    """Collects published updates, and releases boundaries in order; parameters as of `Listener`.

    Parameters
    ----------
    look_up : callable
    in_flight : InFlight
    ends : sequence of int
        The last seq of each boundary; grows.
    durable : callable
        As `Listener` takes it; boundaries behind it are held.
    deliver : callable
        Takes released boundaries with updates, and the seq up to which all boundaries are released; called by the
        thread that reads the socket.

    Attributes
    ----------
    released : int
        The seq up to which all boundaries are released. What an incarnation publishes again up to here is dropped.
    """

    def __init__(
        self,
        look_up: LookUp,
        in_flight: InFlight,
        ends: Sequence[int],
        durable: Callable[[], int],
        deliver: Callable[[list[Released], int], None],
    ):
        super().__init__(lambda data: None, look_up, in_flight, durable)
        self.released = -1
        self._ends = ends
        self._deliver = deliver
        self._pending: dict[int, list[RawUpdate]] = {}

    def resume(self, through: int) -> None:
        """See `Listener`; the updates up to there are released."""
        super().resume(through)
        self.released = through

    def take(self, published: PublishedUpdates) -> None:
        """Take the updates of a frame, unless it is of an older incarnation, and release what is complete."""
        with self._changed:
            before = self._incarnation
            if not self._await_turn(published, -1):
                return
            if self._incarnation > before:  # what is behind its checkpoint is published again, and nothing else
                self._pending = {at: updates for at, updates in self._pending.items() if at <= published.since}
            self._advance(published)
            if self.failure is None:
                try:
                    self._collect(published)
                    self._release()
                except BaseException as error:
                    self.failure = error  # the driver raises it
            self._note(published)

    def settle(self) -> None:
        """Release what is complete and has become durable; for any thread."""
        with self._changed:
            if self.failure is None:
                self._release()

    def _collect(self, published: PublishedUpdates) -> None:
        rows = np.flatnonzero(published.as_of > self.released)
        if not rows.shape[0]:
            return
        names = published.names.strings()
        fields = (published.who, published.change, published.seq, published.as_of, published.score)
        for who, change, seq, as_of, score in zip(*(column[rows].tolist() for column in fields), strict=True):
            raw = RawUpdate(names[who], RANKS[CHANGES[change]], seq, as_of, None if score != score else score)
            self._pending.setdefault(boundary_of(self._ends, as_of), []).append(raw)

    def _release(self) -> None:
        through = min(self._through, self._durable())
        if through <= self.released:
            return
        complete = sorted(boundary for boundary in self._pending if boundary <= through)
        found = [release(boundary, self._pending.pop(boundary), self._look_up) for boundary in complete]
        self.updates += sum(len(one.updates) for one in found)
        self.released = through
        self._deliver(found, through)


def boundary_of(ends: Sequence[int], as_of: int) -> int:
    """The last seq of the boundary that a seq belongs to."""
    return ends[bisect_left(ends, as_of)]


def release(boundary: int, updates: Iterable[RawUpdate], look_up: LookUp) -> Released:
    """The updates of a boundary, sorted and encoded."""
    # of one subscription, change and message there is one update, so that neither as_of nor score decides
    ordered = sorted(updates, key=lambda one: one[:3])
    places = ((boundary, place, one) for place, one in enumerate(ordered))
    return Released(boundary, tuple(encoded(places, look_up)))


def encoded(updates: Iterable[tuple[int, int, RawUpdate]], look_up: LookUp) -> list[Update]:
    """Updates as clients get them, each with its boundary and its place there."""
    updates = list(updates)
    messages = look_up(sorted({one.seq for _, _, one in updates}))
    return [_encoded(f"{boundary}-{place}", one, messages[one.seq]) for boundary, place, one in updates]


_NAMES = {rank: name for name, rank in RANKS.items()}


def _encoded(position: str, one: RawUpdate, message: MessageText) -> Update:
    row: dict[str, Any] = {
        "id": position,
        "change": _NAMES[one.rank],
        "subscription_id": one.subscription_id,
        "message_id": message.message_id,
        "seq": one.seq,
        "as_of": one.as_of,
        "score": one.score,
        "text": message.text,
        "lon": message.lon,
        "lat": message.lat,
    }
    return Update(one.subscription_id, position, msgspec.json.encode(row), message.lon, message.lat)
