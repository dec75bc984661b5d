"""Peer: DuckDB, in this process and in memory, on one thread.

Batches of messages come as Arrow tables and are joined by vectors: the (message, term) pairs with the subscriptions of
that rarest keyword, then the box, then the other keywords. Nothing about space prunes; DuckDB's own R-tree cannot be
joined by. The larger the batch, the better it does.
"""

import numpy as np
import pyarrow as pa

from benchmarks.peers.base import Peer, Rows, have_all_terms
from matching.model import Int64, MessageBatch, SubscriptionTable
from matching.space import Space


class DuckDB(Peer):
    """Hash join over the rarest keyword."""

    name = "duckdb"
    install = "pip install 'skyray[bench]'"
    packages = ("duckdb",)
    at_once = 2_000

    def __init__(self, space: Space):
        super().__init__(space)
        import duckdb

        self._version = f"DuckDB {duckdb.__version__}"
        self._sql = duckdb.connect(config={"threads": 1})
        self._sql.execute(
            "CREATE TABLE subscriptions (number BIGINT, rarest INTEGER, west DOUBLE, south DOUBLE, east DOUBLE, "
            "north DOUBLE, rest INTEGER[])"
        )

    def version(self) -> str:
        """Of the library."""
        return self._version

    def _change(self, statement: str, name: str, rows: pa.Table) -> None:
        """Run a statement over the table and these rows, on a cursor of its own: a result in use blocks all others."""
        with self._sql.cursor() as cursor:
            cursor.register(name, rows)
            cursor.execute(statement).fetchall()

    def _take_in(self, table: SubscriptionTable) -> None:
        """From Arrow, in the order of the rarest keyword."""
        rows = Rows.of(table)
        columns = {name: column for name, column in rows._asdict().items() if not name.startswith("rest")}
        rest = pa.ListArray.from_arrays(rows.rest_offsets.astype(np.int32), rows.rest)
        self._change(
            "INSERT INTO subscriptions SELECT number, rarest, west, south, east, north, rest FROM arriving",
            "arriving",
            pa.table({**columns, "rest": rest}),
        )

    def _forget(self, numbers: Int64) -> None:
        """DELETE by a join."""
        self._change(
            "DELETE FROM subscriptions WHERE number IN (SELECT number FROM leaving)",
            "leaving",
            pa.table({"number": numbers}),
        )

    def _find(self, batch: MessageBatch) -> tuple[np.ndarray, np.ndarray]:
        """Join; the other keywords are tested on what comes back, which is twice as fast as list functions."""
        row = np.repeat(np.arange(len(batch)), np.diff(batch.term_offsets))
        boxes = {name: getattr(batch, name)[row] for name in ("west", "south", "east", "north")}
        with self._sql.cursor() as cursor:
            cursor.register("messages", pa.table({"row": row, "term": batch.terms, **boxes}))
            hits = cursor.sql(
                "SELECT m.row, s.number, s.rest FROM messages m JOIN subscriptions s ON s.rarest = m.term "
                "WHERE s.west <= m.east AND s.east >= m.west AND s.south <= m.north AND s.north >= m.south"
            ).to_arrow_table()
        if not len(hits):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        rest, found = hits["rest"].combine_chunks(), hits["row"].to_numpy()
        offsets, terms = rest.offsets.to_numpy().astype(np.int64), rest.values.to_numpy()
        good = have_all_terms(batch, found, offsets, terms, np.arange(len(hits)))
        return found[good], hits["number"].to_numpy()[good]

    def size_bytes(self) -> int:
        """What DuckDB says it holds in memory."""
        with self._sql.cursor() as cursor:
            ((held,),) = cursor.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
        return int(held)

    def close(self) -> None:
        """Give the memory back."""
        self._sql.close()
