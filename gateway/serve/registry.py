"""The active subscriptions with their columns, as the API lists them, and when they expire.

`Registry` is the stream's admission (`gateway.live.admission`): it sees every change that is accepted, also those of
the log when the stream is resumed. Used by `gateway.serve.writer`, which alone changes it, and by the routes, which
read it from another thread.
"""

import heapq
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import xxhash

from gateway.live.admission import Admission
from matching.fields import event_time_us
from matching.validate import ParsedSubscription

#: The free columns of a subscription that say until when it is active, and whose it is.
EXPIRES, OWNER = "expires_at", "owner"


class Registered(NamedTuple):
    """An active subscription.

    number : int            in the order of registration, from 0
    subscription_id : str
    kind : str
    columns : dict          as they were given
    words : tuple of str    the terms of its keywords
    at : int                the seq before which it takes effect
    etag : str
    expires_us : int or None    microseconds since 1970
    owner : str             "" for none
    box : tuple of float    around its shape: west, south, east, north in degrees; east may be above 180
    """

    number: int
    subscription_id: str
    kind: str
    columns: dict[str, Any]
    words: tuple[str, ...]
    at: int
    etag: str
    expires_us: int | None
    owner: str
    box: tuple[float, float, float, float]


class Registry(Admission):
    """An admission that keeps what it admits.

    Attributes
    ----------
    active : dict of str to Registered
    last_kind : dict of str to str
        Kind of every subscription id that there ever was: the last one.
    owners : dict of str to str
        Owner of each subscription id that ever had one: an id keeps its owner, since its updates remain.
    owned : Counter
        How many active subscriptions an owner has.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.active: dict[str, Registered] = {}
        self.last_kind: dict[str, str] = {}
        self.owners: dict[str, str] = {}
        self.owned = Counter[str]()
        self._number = 0
        self._by_word: dict[str, set[str]] = {}
        self._expiries: list[tuple[int, int, str]] = []  # heap of (time, number, id)

    def subscribe(self, row: Mapping[str, Any]) -> ParsedSubscription:
        """See `Admission.subscribe`."""
        parsed = super().subscribe(row)
        name, kind = parsed.subscription_id, self.kinds[parsed.kind].name
        expires_us = expiry_us(row.get(EXPIRES))
        self._drop(name)  # the new one goes last
        etag, words = etag_of(row), tuple(map(sys.intern, parsed.words))
        owner = owner_of(row) or self.owners.get(name, "")
        lon_lat = (float(row["lon"]), float(row["lat"])) if self.kinds[parsed.kind].place == "point" else None
        box = parsed.region if lon_lat is None else (*lon_lat, *lon_lat)
        self.active[name] = Registered(
            self._number, name, kind, dict(row), words, self.next_seq, etag, expires_us, owner, box
        )
        if owner:
            self.owners[name] = sys.intern(owner)
            self.owned[owner] += 1
        for word in words:
            self._by_word.setdefault(word, set()).add(name)
        self.last_kind[name] = kind
        if expires_us is not None:
            heapq.heappush(self._expiries, (expires_us, self._number, name))
        self._number += 1
        return parsed

    def unsubscribe(self, subscription_id: Any) -> str:
        """See `Admission.unsubscribe`."""
        name = super().unsubscribe(subscription_id)
        self._drop(name)
        return name

    def with_words(self, words: Iterable[str]) -> list[Registered]:
        """Active subscriptions that have one of these terms among their keywords, in the order of registration."""
        names: set[str] = set()
        for word in words:
            names.update(list(self._by_word.get(word, ())))
        found = (self.active.get(name) for name in names)
        return sorted((one for one in found if one is not None), key=lambda one: one.number)

    def listed(self, names: Iterable[str] | None = None) -> list[Registered]:
        """Active subscriptions in the order of registration: those of these ids, by default all."""
        if names is None:
            return list(self.active.values())
        found = (self.active.get(name) for name in set(names))
        return sorted((one for one in found if one is not None), key=lambda one: one.number)

    def expired(self, now_us: int) -> list[str]:
        """Ids of active subscriptions whose time is over; each is returned once."""
        found = []
        while self._expiries and self._expiries[0][0] <= now_us:
            _, number, name = heapq.heappop(self._expiries)
            one = self.active.get(name)
            if one is not None and one.number == number:
                found.append(name)
        return found

    def _drop(self, name: str) -> None:
        """Take an active subscription, if there is one, out of all lists."""
        one = self.active.pop(name, None)
        if one is None:
            return
        for word in one.words:
            names = self._by_word[word]
            names.discard(name)
            if not names:
                del self._by_word[word]
        if one.owner:
            self.owned[one.owner] -= 1


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
    return f'"{xxhash.xxh3_64_hexdigest(json.dumps(columns, sort_keys=True).encode())}"'
