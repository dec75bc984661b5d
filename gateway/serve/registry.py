"""The active subscriptions with their columns, as the API lists them, and when they expire.

`gateway.live.admission` tells a `Registry` of every change that is accepted, also of those of the log when the stream
is resumed. Changed by the thread of `gateway.serve.writer`; the routes read it from another one.
"""

import heapq
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

import msgspec
import xxhash

from gateway.live.logged_changes import Accepted
from gateway.serve.included import Include
from matching.fields import event_time_us
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.validate import decode_object
from spouts.changes import NEVER

#: The free columns of a subscription that say until when it is active, and whose it is.
EXPIRES, OWNER = "expires_at", "owner"
_SIDES = Struct("4d")
_SORTED = msgspec.json.Encoder(order="sorted")


class Registered(msgspec.Struct, frozen=True, gc=False):
    """An active subscription.

    number : int            in the order of registration, from 0
    subscription_id : str
    kind : str
    line : bytes            as the log has it: `{"subscribe": columns}`
    at : int                the seq before which it takes effect
    expires_us : int or None    microseconds since 1970
    owner : str             "" for none
    sides : bytes           of the box around its shape (`box`), packed: a tuple of floats takes 150 bytes more
    earlier_at : int        `at` of the subscription that it replaced; its own if the id was not there before
    """

    number: int
    subscription_id: str
    kind: str
    line: bytes
    at: int
    expires_us: int | None
    owner: str
    sides: bytes
    earlier_at: int = 0

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Around its shape: west, south, east, north in degrees; east may be above 180."""
        return _SIDES.unpack(self.sides)

    @property
    def columns(self) -> dict[str, Any]:
        """As they were given; decoded each time."""
        found = decode_object(self.line)
        assert isinstance(found, dict), "it was accepted"
        return found["subscribe"]

    @property
    def etag(self) -> str:
        """Of its columns (`etag_of`)."""
        return etag_of(self.columns)


class Ended(NamedTuple):
    """What stays of a subscription that has ended: `at` and `end` are the seqs before which it began and ended."""

    kind: str
    owner: str
    at: int = 0
    end: int = NEVER


class Registry:
    """Keeps what is admitted, and of each id that there ever was its last subscription.

    Attributes
    ----------
    last : dict of str to Registered or Ended
        By id, in the order in which these came first.
    owned : Counter
        How many active subscriptions an owner has.
    next_number : int
        Of the subscription that comes next.
    tells : dict of str to Any
        Column `tell` of the active subscriptions that have one, by id.
    tells_changed : deque of str
        Ids whose place in `tells` has changed; taken by whoever tells.
    includes : dict of str to Include
        What updates of subscriptions with `include` carry, by id; of those that have ended too, whose updates remain.
    """

    def __init__(self, kinds: Kinds = KINDS) -> None:
        self.last: dict[str, Registered | Ended] = {}
        self.owned = Counter[str]()
        self._kinds = kinds
        self._names = {kind.code: kind.name for kind in kinds}
        self.next_number = 0
        self.tells: dict[str, Any] = {}
        self.tells_changed: deque[str] = deque()
        self.includes: dict[str, Include] = {}
        self._active: dict[int, Registered] = {}  # by ascending number
        self._broad: set[int] = set()  # numbers
        self._expiries: list[tuple[int, int]] = []  # heap of (time, number)

    def put(self, ones: Sequence[Accepted], ats: Sequence[int]) -> list[int]:
        """See `gateway.live.logged_changes.Active`: the new ones go last, and an id keeps its owner. 1 us each."""
        last, active, names, replaced = self.last, self._active, self._names, []
        for number, (one, at) in enumerate(zip(ones, ats, strict=True), self.next_number):
            name, kind, line, box, given, expires_at, broad, tell, include = one
            # many have one owner
            owner, expires_us, earlier_at = sys.intern(given) if isinstance(given, str) else "", None, at
            if (before := last.get(name)) is not None:
                owner, earlier_at = owner or before.owner, before.at
                if (gone := self._without(before)) is not None:
                    replaced.append(gone)
                self.includes.pop(name, None)
            if owner:
                self.owned[owner] += 1
            if expires_at is not None and (expires_us := expiry_us(expires_at)) is not None:
                heapq.heappush(self._expiries, (expires_us, number))
            if broad:
                self._broad.add(number)
            if tell is not None:
                self.tells[name] = tell
                self.tells_changed.append(name)
            if include is True or isinstance(include, list):
                self.includes[name] = include
            # msgspec leaves some 70 bytes of room behind a line that it made
            line, sides = memoryview(line).tobytes(), _SIDES.pack(*box)
            made = Registered(number, name, names[kind], line, at, expires_us, owner, sides, earlier_at)
            last[name] = active[number] = made
        self.next_number += len(ones)
        return replaced

    def kinds(self) -> set[str]:
        """The kinds that ids had last."""
        return {one.kind for one in self.last.values()}

    def end(self, name: str, at: int) -> int | None:
        """See `gateway.live.logged_changes.Active`."""
        last = self.last.get(name)
        one = self._without(last)
        if one is not None and last is not None:
            self.last[name] = Ended(self._kinds[one].name, last.owner, last.at, at)
        return one

    def get(self, name: str) -> Registered | None:
        """The active subscription of an id."""
        one = self.last.get(name)
        return one if isinstance(one, Registered) else None

    def __contains__(self, name: object) -> bool:
        """Whether a subscription of this id is active."""
        return isinstance(self.last.get(name), Registered)  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[str]:
        """Ids of active subscriptions, in the order of registration."""
        return (one.subscription_id for one in list(self._active.values()))

    def __len__(self) -> int:
        """How many are active."""
        return len(self._active)

    @property
    def broad(self) -> int:
        """How many active subscriptions require nothing."""
        return len(self._broad)

    def owner_of(self, name: str) -> str:
        """Owner of an id, "" if it never had one: an id keeps its owner, since its updates remain."""
        last = self.last.get(name)
        return "" if last is None else last.owner

    def kind_of(self, name: str) -> str | None:
        """Kind of the last subscription of an id; None if there never was one."""
        last = self.last.get(name)
        return None if last is None else last.kind

    def is_standing(self, name: str) -> bool:
        """Whether the last subscription of an id is of a kind that keeps a result."""
        kind = self.kind_of(name)
        return kind is not None and self._kinds.named(kind).standing

    def numbered(self, numbers: Iterable[int]) -> list[Registered]:
        """The active ones of these numbers, in their order."""
        found = map(self._active.get, numbers)
        return [one for one in found if one is not None]

    def listed(self, names: Iterable[str] | None = None) -> list[Registered]:
        """Active subscriptions in the order of registration: those of these ids, by default all."""
        if names is None:
            return list(self._active.values())
        found = map(self.get, set(names))
        return sorted((one for one in found if one is not None), key=lambda one: one.number)

    def expired(self, now_us: int) -> list[str]:
        """Ids of active subscriptions whose time is over; each is returned once."""
        found = []
        while self._expiries and self._expiries[0][0] <= now_us:
            one = self._active.get(heapq.heappop(self._expiries)[1])
            if one is not None:
                found.append(one.subscription_id)
        return found

    def _without(self, one: Registered | Ended | None) -> int | None:
        """Take an active subscription out of all lists but `last`; returns its kind, None if it is not active."""
        if not isinstance(one, Registered):
            return None
        del self._active[one.number]
        self._broad.discard(one.number)
        if self.tells.pop(one.subscription_id, None) is not None:
            self.tells_changed.append(one.subscription_id)
        if one.owner:
            self.owned[one.owner] -= 1
        return self._kinds.named(one.kind).code


def expiry_us(value: Any) -> int | None:
    """The time of `expires_at`; None if there is none, or it cannot be read: a file may have any free column."""
    try:
        return event_time_us(value)
    except ValueError:
        return None


def owner_of(columns: Mapping[str, Any]) -> str:
    """The owner that columns name; "" for none."""
    owner = columns.get(OWNER)
    return owner if isinstance(owner, str) else ""


def etag_of(columns: Mapping[str, Any]) -> str:
    """An entity tag of a subscription's columns."""
    return f'"{xxhash.xxh3_64_hexdigest(_SORTED.encode(columns))}"'
