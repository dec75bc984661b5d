"""Peer: SQLite, in memory, by the standard library's module.

`sqlite` keeps the table itself as a B-tree over (rarest keyword, number): a message reads the runs of its terms and
tests their boxes. `sqlite_rtree` puts box and rarest keyword into a three-dimensional R*-tree, so that place and word
prune together; its coordinates are float32, rounded outwards, so the exact ones are compared beside them. The other
keywords are tested here, against the set of the message's terms, which is cheaper than any join SQLite could make.
"""

import sqlite3
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.peers.base import Peer, Rows
from matching.model import Int64, MessageBatch, SubscriptionTable
from matching.space import Space


class SQLite(Peer):
    """B-tree over (rarest keyword, number)."""

    name = "sqlite"
    install = "install a Python that was built with SQLite"
    packages = ("sqlite3",)
    _tables = (
        "CREATE TABLE subscriptions (rarest INT, number INT, west REAL, south REAL, east REAL, north REAL, rest BLOB, "
        "PRIMARY KEY (rarest, number)) WITHOUT ROWID",
        "CREATE TABLE terms (number INTEGER PRIMARY KEY, rarest INT)",
    )

    def __init__(self, space: Space):
        super().__init__(space)
        self._sql = sqlite3.connect(":memory:", isolation_level=None)
        self._sql.execute("PRAGMA page_size = 8192")
        for statement in self._tables:
            self._sql.execute(statement)

    def version(self) -> str:
        """Of the library."""
        return f"SQLite {sqlite3.sqlite_version}"

    def _take_in(self, table: SubscriptionTable) -> None:
        """INSERT in the order of the tree."""
        rows = Rows.of(table)
        rest = (np.array(keywords, np.int32).tobytes() for keywords in rows.rest_of())
        self._sql.execute("BEGIN")
        self._insert([column.tolist() for column in rows[:6]], rest)
        self._sql.execute("COMMIT")

    def _insert(self, columns: list[list[Any]], rest: Iterator[bytes]) -> None:
        number, rarest, *boxes = columns
        self._sql.executemany("INSERT INTO terms VALUES (?, ?)", sorted(zip(number, rarest, strict=True)))
        rows = zip(rarest, number, *boxes, rest, strict=True)
        self._sql.executemany("INSERT INTO subscriptions VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def _forget(self, numbers: Int64) -> None:
        """DELETE by key."""
        gone = [(number,) for number in numbers.tolist()]
        self._sql.execute("BEGIN")
        self._delete(gone)
        self._sql.execute("COMMIT")

    def _delete(self, gone: list[tuple[int]]) -> None:
        self._sql.executemany(
            "DELETE FROM subscriptions WHERE number = ?1 AND rarest = (SELECT rarest FROM terms WHERE number = ?1)",
            gone,
        )
        self._sql.executemany("DELETE FROM terms WHERE number = ?", gone)

    def _find(self, batch: MessageBatch) -> tuple[np.ndarray, np.ndarray]:
        """One statement a message; the statement of each number of terms is compiled once and kept by the module."""
        cuts, terms = batch.term_offsets.tolist(), batch.terms.tolist()
        boxes = zip(*(column.tolist() for column in (batch.west, batch.south, batch.east, batch.north)), strict=True)
        found_row, found_number = [], []
        for row, (west, south, east, north) in enumerate(boxes):
            mine = terms[cuts[row] : cuts[row + 1]]
            carries = set(mine).issuperset
            for number, rest in self._candidates(mine, west, south, east, north):
                if carries(memoryview(rest).cast("i")):
                    found_row.append(row)
                    found_number.append(number)
        return np.array(found_row, np.int64), np.array(found_number, np.int64)

    def _candidates(self, terms: list[int], west: float, south: float, east: float, north: float) -> Any:
        """Number and other keywords of every subscription whose rarest keyword and box fit."""
        wanted = iter(terms)
        while some := list(islice(wanted, 500)):  # SQLite takes so many parameters in any build
            yield from self._sql.execute(
                f"SELECT number, rest FROM subscriptions WHERE rarest IN ({','.join('?' * len(some))}) "
                "AND west <= ? AND east >= ? AND south <= ? AND north >= ?",
                (*some, east, west, north, south),
            )

    def size_bytes(self) -> int:
        """Pages of the database."""
        (pages,), (size,) = (self._sql.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
        return pages * size

    def close(self) -> None:
        """Give the memory back."""
        self._sql.close()


class SQLiteRTree(SQLite):
    """R*-tree over box and rarest keyword."""

    name = "sqlite_rtree"
    _tables = (
        "CREATE VIRTUAL TABLE subscriptions USING rtree(number, min_lon, max_lon, min_lat, max_lat, min_term, "
        "max_term, +rarest INT, +west REAL, +south REAL, +east REAL, +north REAL, +rest BLOB)",
    )

    def _insert(self, columns: list[list[Any]], rest: Iterator[bytes]) -> None:
        number, rarest, west, south, east, north = columns
        rows = zip(
            number, west, east, south, north, rarest, rarest, rarest, west, south, east, north, rest, strict=True
        )
        self._sql.executemany(f"INSERT INTO subscriptions VALUES ({', '.join('?' * 13)})", rows)

    def _delete(self, gone: list[tuple[int]]) -> None:
        self._sql.executemany("DELETE FROM subscriptions WHERE number = ?", gone)

    def _candidates(self, terms: list[int], west: float, south: float, east: float, north: float) -> Any:
        for term in terms:
            yield from self._sql.execute(
                "SELECT number, rest FROM subscriptions WHERE min_term <= ?1 AND max_term >= ?1 AND min_lon <= ?4 "
                "AND max_lon >= ?2 AND min_lat <= ?5 AND max_lat >= ?3 AND rarest = ?1 "
                "AND west <= ?4 AND east >= ?2 AND south <= ?5 AND north >= ?3",
                (term, west, south, east, north),
            )
