"""Fair sharing between callers: `Room` bounds what each may have waiting, `FairQueue` gives each its turn.

A caller is a key, or an address where the server needs no key.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from operator import add, neg
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Room:
    """Bounded amounts, such as rows and bytes, that callers have waiting.

    A caller may have at most as much as is then left: one alone half of the room, and beside any number of greedy
    callers a newcomer with little still finds some.

    Parameters
    ----------
    *most : int
        Of all callers together, of each amount.

    Attributes
    ----------
    used : tuple of int
    """

    def __init__(self, *most: int):
        self.used = self._nothing = (0,) * len(most)
        self._most = most
        self._of: dict[str, tuple[int, ...]] = {}

    def has(self, caller: str, *amounts: int) -> bool:
        """Whether a caller may have so much more."""
        mine = self._of.get(caller, self._nothing)
        for most, used, own, more in zip(self._most, self.used, mine, amounts, strict=True):
            if own + more > most - used - more:
                return False
        return True

    def take(self, caller: str, *amounts: int) -> None:
        mine = tuple(map(add, self._of.pop(caller, self._nothing), amounts))
        self.used = tuple(map(add, self.used, amounts))
        if mine != self._nothing:
            self._of[caller] = mine

    def give_back(self, caller: str, *amounts: int) -> None:
        self.take(caller, *map(neg, amounts))


class Share:
    """What one request of a caller has taken of a room."""

    def __init__(self, room: Room, caller: str):
        self._room = room
        self._caller = caller
        self._amount = 0

    def take(self, amount: int) -> bool:
        """Take so much more; False if there is no room."""
        if not self._room.has(self._caller, amount):
            return False
        self._room.take(self._caller, amount)
        self._amount += amount
        return True

    def give_back(self, amount: int | None = None) -> None:
        """Give back so much, by default all."""
        amount = self._amount if amount is None else amount
        self._room.give_back(self._caller, amount)
        self._amount -= amount


class FairQueue(Generic[_T]):
    """Items by name: names take turns, and the items of one name keep their order. O(1) each."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[_T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._items)

    def __iter__(self) -> Iterator[_T]:
        return (item for items in self._items.values() for item in items)

    def put(self, name: str, item: _T, first: bool = False) -> None:
        """Append an item to those of its name, or with `first` put it before them."""
        items = self._items.setdefault(name, deque())
        (items.appendleft if first else items.append)(item)

    def take(self) -> _T:
        """The next item of the name whose turn it is; the name's next turn comes after those of all others."""
        name, items = self._items.popitem(last=False)
        item = items.popleft()
        if items:
            self._items[name] = items
        return item
