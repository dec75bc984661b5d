"""What a peer offers: what somebody would take instead of an engine, behind an engine's own interface.

A peer is given its best shape: bulk load in a good order, indexes that know place and word together where that can be
said, whole batches of messages in one call, no durability, one core like an engine. It must answer exactly; the harness
holds it against the oracle before it times it. One file a peer beside this one; `benchmarks.peers` lists them.
"""

import importlib.util
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from matching.boolean.engine import MatchSet
from matching.errors import ConfigError
from matching.model import Float64, Int32, Int64, MessageBatch, SubscriptionTable
from matching.space import Space
from matching.storage.slots import SlotMap


class Absence(NamedTuple):
    """A peer that cannot run here: why, and the line that changes it."""

    name: str
    reason: str
    install: str


class Rows(NamedTuple):
    """Subscriptions as a database wants them, one a row.

    number : int64[n]
    rarest : int32[n]                          the smallest term id, which is the rarest keyword
    west, south, east, north : float64[n]      closed, west <= east
    rest_offsets : int64[n+1], rest : int32[nnz]   the other keywords
    """

    number: Int64
    rarest: Int32
    west: Float64
    south: Float64
    east: Float64
    north: Float64
    rest_offsets: Int64
    rest: Int32

    @classmethod
    def of(cls, table: SubscriptionTable) -> "Rows":
        """Cut a table up, ordered by rarest keyword and then place, so that what is read together lies together.

        Raises
        ------
        ConfigError
            If a region crosses the antimeridian: no benchmark has such regions, so no peer was taught them.
        """
        west, south, east, north = np.ascontiguousarray(table.region.T)
        if np.any(west > east):
            raise ConfigError("a region crosses the antimeridian; peers take only regions with west <= east")
        rarest = table.terms[table.term_offsets[:-1]]
        order = np.lexsort((south, west, rarest))
        ordered = table.take(order)
        starts = ordered.term_offsets[:-1]
        others = np.ones(ordered.terms.shape[0], bool)
        others[starts] = False
        rest_offsets = ordered.term_offsets - np.arange(len(ordered) + 1)
        boxes = (west[order], south[order], east[order], north[order])
        return cls(ordered.number, rarest[order], *boxes, rest_offsets, ordered.terms[others])

    def rest_of(self) -> list[list[int]]:
        """The other keywords of each row."""
        cuts, rest = self.rest_offsets.tolist(), self.rest.tolist()
        return [rest[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]


class Peer(ABC):
    """An opponent holding subscriptions, for a room in place of an engine.

    `insert`, `remove`, `match` and `holds` are those of a `BooleanEngine`; a peer writes `_take_in`, `_forget` and
    `_find`, which are not called for nothing: a room has something to add or to remove in few batches.
    """

    name: ClassVar[str]
    #: Of the subscriptions it holds.
    kind: ClassVar[str] = "boolean"
    #: The line that installs what it needs.
    install: ClassVar[str]
    #: Importable packages it needs.
    packages: ClassVar[tuple[str, ...]] = ()
    #: So many messages are asked for in one call, where more would fill the memory with pairs.
    at_once: ClassVar[int] = 1 << 30

    def __init__(self, space: Space):
        self._here = SlotMap()

    @classmethod
    def absence(cls) -> Absence | None:
        """Why the peer cannot run here, or None."""
        for package in cls.packages:
            if importlib.util.find_spec(package) is None:
                return Absence(cls.name, f"Python package {package} is not installed", cls.install)
        return None

    @abstractmethod
    def version(self) -> str:
        """What was measured, as it calls itself."""

    def __len__(self) -> int:
        return len(self._here)

    def holds(self, numbers: Int64) -> NDArray[np.bool_]:
        """bool[n]: which of these subscriptions are here. O(n)."""
        return self._here.find(numbers) >= 0

    def insert(self, table: SubscriptionTable) -> None:
        """Take in subscriptions with new numbers."""
        if len(table):
            self._take_in(table)
            self._here.insert(table.number)

    def remove(self, numbers: Int64) -> None:
        """Forget subscriptions that are here."""
        if numbers.shape[0]:
            self._forget(numbers)
            self._here.remove(numbers)

    def match(self, batch: MessageBatch) -> MatchSet:
        """Every matching pair of a batch, in ascending row; `scanned` and `verified` are not known and 0."""
        found_row, found_number = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for start in range(0, len(batch), self.at_once):
            end = min(start + self.at_once, len(batch))
            row, number = self._find(batch if end - start == len(batch) else batch.take(np.arange(start, end)))
            found_row.append(row + start)
            found_number.append(number)
        row, number = np.concatenate(found_row), np.concatenate(found_number)
        order = np.argsort(row, kind="stable")
        return MatchSet(number[order].astype(np.int64), row[order].astype(np.int32), 0, 0, int(row.shape[0]))

    @abstractmethod
    def _take_in(self, table: SubscriptionTable) -> None: ...

    @abstractmethod
    def _forget(self, numbers: Int64) -> None: ...

    @abstractmethod
    def _find(self, batch: MessageBatch) -> tuple[np.ndarray, np.ndarray]:
        """Row and number of every matching pair, in any order."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Table and indexes together."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held outside this process's memory; may be called twice."""


def have_all_terms(batch: MessageBatch, row: np.ndarray, rest_offsets: Int64, rest: Int32, slot: np.ndarray):
    """bool[m]: whether message `row[i]` carries every keyword of `slot[i]`. O(keywords * log postings), vectorised."""
    width = int(batch.terms.max(initial=0)) + 2
    message = np.repeat(np.arange(len(batch)), np.diff(batch.term_offsets))
    carried = message * width + batch.terms  # ascending, since terms ascend within a message
    good = np.ones(row.shape[0], bool)
    lengths = rest_offsets[slot + 1] - rest_offsets[slot]
    for nth in range(int(lengths.max(initial=0))):
        some = np.flatnonzero(good & (lengths > nth))
        wanted = rest[rest_offsets[slot[some]] + nth].astype(np.int64)
        key = row[some] * width + np.minimum(wanted, width - 1)
        at = np.searchsorted(carried, key)
        good[some] = (at < carried.shape[0]) & (carried[np.minimum(at, carried.shape[0] - 1)] == key)
    return good
