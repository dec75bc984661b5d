"""The active subscriptions with their columns, as the API lists them, and when they expire.

`gateway.live.admission` tells a `Registry` of every change that is accepted, also of those of the log when the stream
is resumed. Changed by the thread of `gateway.serve.writer`; the routes read it from another one.
"""

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import xxhash

from matching.fields import event_time_us, point_of
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.validate import ParsedSubscription

#: The free columns of a subscription that say until when it is active, and whose it is.
EXPIRES, OWNER = "expires_at", "owner"
_SORTED = json.JSONEncoder(sort_keys=True)


class Registered(NamedTuple):
    """An active subscription.

    number : int            in the order of registration, from 0
    subscription_id : str
    kind : str
    row : bytes             its columns as they were given, as JSON
    words : tuple of str    the terms of its keywords
    at : int                the seq before which it takes effect
    expires_us : int or None    microseconds since 1970
    owner : str             "" for none
    box : tuple of float    around its shape: west, south, east, north in degrees; east may be above 180
    """

    number: int
    subscription_id: str
    kind: str
    row: bytes
    words: tuple[str, ...]
    at: int
    expires_us: int | None
    owner: str
    box: tuple[float, float, float, float]

    @property
    def columns(self) -> dict[str, Any]:
        """As they were given; decoded each time."""
        return msgspec.json.decode(self.row)

    @property
    def etag(self) -> str:
        """Of its columns (`etag_of`)."""
        return etag_of(self.columns)


class Ended(NamedTuple):
    """What stays of a subscription that has ended."""

    kind: str
    owner: str


class Registry:
    """Keeps what is admitted, and of each id that there ever was its last subscription.

    Parameters
    ----------
    kinds : Kinds

    Attributes
    ----------
    last : dict of str to Registered or Ended
        By id, in the order in which these came first.
    owned : Counter
        How many active subscriptions an owner has.
    """

    def __init__(self, kinds: Kinds = KINDS) -> None:
        self.last: dict[str, Registered | Ended] = {}
        self.owned = Counter[str]()
        self._kinds = kinds
        self._next = 0
        self._active: dict[int, Registered] = {}  # by ascending number
        self._by_word: dict[str, set[int]] = {}
        self._wordless: set[int] = set()
        self._broad: set[int] = set()
        self._expiries: list[tuple[int, int]] = []  # heap of (time, number)

    def put(self, parsed: ParsedSubscription, row: Mapping[str, Any], at: int) -> int | None:
        """See `gateway.live.admission.Active`: the new one goes last, and the id keeps its owner."""
        name, kind, number = parsed.subscription_id, self._kinds[parsed.kind], self._next
        before, owner, expires_us, box = self._without(name), owner_of(row) or self.owner_of(name), None, parsed.region
        if kind.place == "point":
            box = (*point_of(row), *point_of(row))
        if row.get(EXPIRES) is not None and (expires_us := expiry_us(row[EXPIRES])) is not None:
            heapq.heappush(self._expiries, (expires_us, number))
        data = msgspec.json.encode(row)
        one = Registered(number, name, kind.name, data, parsed.words, at, expires_us, owner, box)
        self.last[name] = self._active[number] = one
        if owner:
            self.owned[owner] += 1
        for word in parsed.words:
            self._by_word.setdefault(word, set()).add(number)
        if not parsed.words:
            self._wordless.add(number)
        if parsed.broad:
            self._broad.add(number)
        self._next += 1
        return before

    def kinds(self) -> set[str]:
        """The kinds that ids had last."""
        return {one.kind for one in self.last.values()}

    def end(self, name: str) -> int | None:
        """See `gateway.live.admission.Active`."""
        one = self._without(name)
        if one is not None:
            self.last[name] = Ended(self._kinds[one].name, self.owner_of(name))
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

    def with_words(self, words: Iterable[str]) -> list[Registered]:
        """Active subscriptions that have one of these terms among their keywords, or no keywords, in the order of
        registration."""
        numbers = set(self._wordless)
        for word in words:
            numbers.update(list(self._by_word.get(word, ())))
        found = map(self._active.get, sorted(numbers))
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

    def _without(self, name: str) -> int | None:
        """Take an active subscription, if there is one, out of all lists but `last`; returns its kind."""
        one = self.get(name)
        if one is None:
            return None
        del self._active[one.number]
        self._wordless.discard(one.number)
        self._broad.discard(one.number)
        for word in one.words:
            numbers = self._by_word[word]
            numbers.discard(one.number)
            if not numbers:
                del self._by_word[word]
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
    return f'"{xxhash.xxh3_64_hexdigest(_SORTED.encode(columns).encode())}"'
