"""Reads the folder of a run in any state: updates, results, subscriptions and messages.

A running run has published some parts of `updates/`, which are whole and final; a finished or interrupted one has
`results.parquet` as well. Files are read in pieces, so that memory does not grow with them. Read on in
`gateway.runs.showing`, which joins updates and results with messages, and in `gateway.runs.message_rows`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.json as pj
import pyarrow.parquet as pq

from bolts.sinks import RESULT_SCHEMA, UPDATE_SCHEMA
from gateway.runs.distance import distance_km
from gateway.runs.facts import read_facts
from gateway.runs.message_rows import MessageRows, Row, broken_file
from matching.errors import InputError
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import CHANGES, ENTER, MATCH
from matching.text import Vocabulary
from matching.validate import SUBSCRIPTION_COLUMNS, ParsedSubscription, subscription_row
from spouts.lines import read_rows
from spouts.subscriptions import load_vocabulary
from topology.folder import RUNNING, RunFolder

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

COUNT_SCHEMA = pa.schema([("subscription_id", pa.string()), ("change", pa.string()), ("count", pa.int64())])
#: Updates that are read at a time.
PIECE = 65_536


class Subscriber(NamedTuple):
    """A subscription as its owner wrote it.

    words : tuple of str       the terms of its keywords
    lon, lat : float or None   degrees, of kinds with a point
    region : list or None      west, south, east, north in degrees, of kinds with a region
    k, alpha                   None where the kind has none
    at : int                   the seq before which it takes effect
    more : dict                its free columns: name, note, ...
    """

    subscription_id: str
    kind: str
    words: tuple[str, ...]
    lon: float | None
    lat: float | None
    region: list[float] | None
    k: int | None
    alpha: float | None
    at: int
    more: dict[str, Any]

    def kilometres(self, lon: float, lat: float) -> float | None:
        """From its point to a place, in degrees; None where it has a region."""
        return None if self.lon is None or self.lat is None else distance_km(self.lon, self.lat, lon, lat)


class RunReader:
    """Reads a run folder.

    Parameters
    ----------
    folder : Path
    kinds : Kinds
        The kinds of the run.

    Attributes
    ----------
    state : str
        `running`, `finished`, `interrupted` or `failed`, or that its process died; as of the last look.

    Raises
    ------
    InputError
        If the folder is no run's, or `run.json` lacks a field.
    """

    def __init__(self, folder: Path, kinds: Kinds = KINDS):
        self.folder = folder
        self.kinds = kinds
        facts, self.facts = read_facts(folder)
        self.state = RunFolder(folder).state()
        self.etl = facts.etl
        self.files = [Path(path) for path in facts.subscriptions]
        self.space = facts.space()
        self.fading = facts.fading
        self._message_rows = MessageRows(self.etl)

    @property
    def unit_degrees(self) -> float:
        """Degrees of longitude that the run takes for a distance of 1."""
        return 1.0 / float(self.space.project(np.float64(self.space.west + 1.0), np.float64(self.space.south))[0])  # type: ignore[arg-type]

    def is_running(self) -> bool:
        """Whether a process writes to the folder now; updates `state`."""
        self.state = RunFolder(self.folder).state()
        return self.state == RUNNING

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the messages."""
        return load_vocabulary(self.etl)

    def parts(self) -> list[Path]:
        """The published files of updates, in order."""
        directory = self.folder / "updates"
        if not directory.is_dir():
            return []
        return sorted(path for path in directory.iterdir() if not path.name.startswith("."))

    def updates(self, ids: Collection[str] | None = None, parts: Sequence[Path] | None = None) -> pa.Table:
        """Updates in the order of the files, of these subscriptions or of all. O(updates)."""
        return pa.concat_tables([UPDATE_SCHEMA.empty_table(), *self.pieces(ids, parts)])

    def pieces(self, ids: Collection[str] | None = None, parts: Sequence[Path] | None = None) -> Iterator[pa.Table]:
        """The same, `PIECE` rows of a file at a time; pieces without such updates are left out."""
        wanted = None if ids is None else pa.array(list(ids), pa.string())
        for path in self.parts() if parts is None else parts:
            for piece in read_pieces(path):
                if wanted is not None:
                    piece = piece.filter(pc.is_in(piece["subscription_id"], wanted))
                if len(piece):
                    yield piece

    def counts(self) -> pa.Table:
        """Number of updates of each subscription: `subscription_id`, `change`, `count`, by id. O(updates)."""
        counts = COUNT_SCHEMA.empty_table()
        for piece in self.pieces():
            ones = piece.select(["subscription_id", "change"]).append_column("count", pa.repeat(1, len(piece)))
            both = pa.concat_tables([counts, ones])
            summed = both.group_by(["subscription_id", "change"]).aggregate([("count", "sum")])
            counts = summed.rename_columns({"count_sum": "count"}).select(COUNT_SCHEMA.names)
        return counts.sort_by("subscription_id")

    def holding(self, counts: pa.Table) -> list[str]:
        """Sorted ids of subscriptions with results; `counts` of all updates. O(updates)."""
        holding = set(counts.filter(pc.equal(counts["change"], CHANGES[MATCH]))["subscription_id"].to_pylist())
        for piece in self._standing():
            holding.update(pc.unique(piece["subscription_id"]).to_pylist())
        return sorted(holding)

    def results(self, ids: Collection[str] | None = None) -> pa.Table:
        """Results: of kinds with standing results the messages that entered and have not left, best first; of the
        others all matches, in order. O(updates).

        Returns
        -------
        pa.Table
            Of `RESULT_SCHEMA`; `rank` is null where the run has not ended and for matches.
        """
        matched = (piece.filter(pc.equal(piece["change"], CHANGES[MATCH])) for piece in self.pieces(ids))
        return pa.concat_tables([RESULT_SCHEMA.empty_table(), *self._standing(ids), *map(_as_results, matched)])

    def _standing(self, ids: Collection[str] | None = None) -> Iterator[pa.Table]:
        """Standing results, in pieces."""
        path = self.folder / "results.parquet"
        if not path.exists():
            yield _as_results(_standing_of(self.pieces(ids)))
            return
        for piece in read_pieces(path, RESULT_SCHEMA, ["score", "text_score"]):
            yield piece if ids is None else piece.filter(pc.is_in(piece["subscription_id"], pa.array(list(ids))))

    def subscribers(self, ids: Collection[str]) -> tuple[dict[str, list[Subscriber]], dict[str, str]]:
        """Subscriptions by id, several where one replaced another, and reasons of refused ones.

        O(rows of the files), 2 us a row of another id.
        """
        found: dict[str, list[Subscriber]] = {}
        refused: dict[str, str] = {}
        wanted = set(ids)
        for path in self.files:
            for _, row in read_rows(path):
                name = str(row.get("subscription_id")) if isinstance(row, dict) else None
                if name not in wanted or not isinstance(row, dict):
                    continue
                parsed = subscription_row(row, self.vocabulary, self.space, self.kinds)
                if isinstance(parsed, str):
                    refused[name] = parsed
                else:
                    found.setdefault(name, []).append(subscriber(row, parsed, self.kinds))
        for each in found.values():
            each.sort(key=lambda one: one.at)
        return found, refused

    def free_columns(self, ids: Collection[str] | None = None) -> list[str]:
        """Free columns in the rows of these subscriptions, or of all. O(rows of the files)."""
        found: dict[str, None] = {}
        for path in self.files:
            for _, row in read_rows(path):
                name = row.get("subscription_id") if isinstance(row, dict) else None
                if name is not None and isinstance(row, dict) and (ids is None or str(name) in ids):
                    found |= {column: None for column, value in row.items() if value is not None}
        return [column for column in found if column not in SUBSCRIPTION_COLUMNS]

    def messages(self, seqs: Iterable[int]) -> dict[int, Row]:
        """These messages, by seq. Reads the row groups in which any of them lies, unless they are cached."""
        return self._message_rows.read(seqs)


def subscriber(row: dict[str, Any], parsed: ParsedSubscription, kinds: Kinds) -> Subscriber:
    """A `Subscriber` of a row of a file and its parsed form."""
    kind = kinds[parsed.kind]
    point = kind.place == "point"
    return Subscriber(
        parsed.subscription_id,
        kind.name,
        parsed.words,
        float(row["lon"]) if point else None,
        float(row["lat"]) if point else None,
        None if point else list(parsed.region),
        parsed.k if "k" in kind.fields else None,
        parsed.alpha if "alpha" in kind.fields else None,
        parsed.at,
        {name: value for name, value in row.items() if name not in SUBSCRIPTION_COLUMNS and value is not None},
    )


def _as_results(updates: pa.Table) -> pa.Table:
    """Updates as rows of results without rank."""
    nothing = {"rank": pa.int32(), "text_score": pa.float64()}
    columns = [
        pa.nulls(len(updates), nothing[name]) if name in nothing else updates[name] for name in RESULT_SCHEMA.names
    ]
    return pa.Table.from_arrays(columns, schema=RESULT_SCHEMA)


def _standing_of(pieces: Iterable[pa.Table]) -> pa.Table:
    """The updates that entered and have not left since, in their order.

    O(updates log); memory for the standing results only.
    """
    standing = UPDATE_SCHEMA.empty_table()
    for piece in pieces:
        updates = pa.concat_tables([standing, piece.filter(pc.not_equal(piece["change"], CHANGES[MATCH]))])
        id_row = pc.dictionary_encode(updates["subscription_id"]).combine_chunks().indices.to_numpy()
        seq = updates["seq"].to_numpy()
        enters = pc.equal(updates["change"], CHANGES[ENTER]).to_numpy()
        order = np.lexsort((seq, id_row))  # stable: of one message the last update comes last
        last = np.ones(order.size, np.bool_)
        last[:-1] = (id_row[order][1:] != id_row[order][:-1]) | (seq[order][1:] != seq[order][:-1])
        standing = updates.take(pa.array(np.sort(order[last & enters[order]])))
    return standing


# ----------------------------------------------------------------------------------------------- files of a run


def read_part(path: Path) -> pa.Table:
    """A file of updates. Raises InputError if it is not what a run writes."""
    if path.suffix != ".jsonl":
        return _whole(path, read_table(path, UPDATE_SCHEMA.names), ["score"])
    if not path.stat().st_size:
        return UPDATE_SCHEMA.empty_table()
    try:
        options = pj.ParseOptions(explicit_schema=UPDATE_SCHEMA, unexpected_field_behavior="error")
        table = pj.read_json(path, parse_options=options)
    except (OSError, pa.ArrowException) as error:
        raise broken_file(path, error) from error
    return _whole(path, table, ["score"])


def read_pieces(
    path: Path, schema: pa.Schema = UPDATE_SCHEMA, nullable: Sequence[str] = ("score",)
) -> Iterator[pa.Table]:
    """A file of updates, or of results, `PIECE` rows at a time. Raises InputError, after what could be read."""
    if path.suffix == ".jsonl" and not path.stat().st_size:
        return
    try:
        with _batches(path, schema) as batches:
            for batch in batches:
                piece = pa.Table.from_batches([batch])
                piece.validate(full=True)  # else text that is not UTF-8 raises later
                yield _whole(path, piece.cast(schema), nullable)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise broken_file(path, error) from error


@contextmanager
def _batches(path: Path, schema: pa.Schema) -> Iterator[Iterable[pa.RecordBatch]]:
    if path.suffix == ".jsonl":
        options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
        with pj.open_json(path, parse_options=options) as reader:
            yield reader
    else:
        with pq.ParquetFile(path) as file:
            yield file.iter_batches(PIECE, columns=schema.names, use_threads=False)


def read_updates(folder: Path) -> Iterator[pa.Table]:
    """The delivered updates, file by file. Raises InputError if there is no folder of them."""
    directory = folder / "updates"
    if not directory.is_dir():
        raise InputError("missing_file", f"{directory}: is not there; run with a sink that keeps updates")
    for path in sorted(path for path in directory.iterdir() if not path.name.startswith(".")):
        yield read_part(path)


def read_results(folder: Path) -> pa.Table:
    """`results.parquet`. Raises InputError if it is not what a run writes."""
    path = folder / "results.parquet"
    return _whole(path, read_table(path, RESULT_SCHEMA.names), ["score", "text_score"])


def read_table(path: Path, columns: list[str]) -> pa.Table:
    """Columns of a Parquet file. Raises InputError if it cannot be read or lacks one."""
    try:
        table = pq.read_table(path, columns=columns)
        table.validate(full=True)  # or text that is not UTF-8 raises where it is looked at
        return table
    except (OSError, KeyError, pa.ArrowException) as error:
        raise broken_file(path, error) from error


def _whole(path: Path, table: pa.Table, nullable: Collection[str]) -> pa.Table:
    """The table, if nothing is null that must not be."""
    for name in table.column_names:
        if name not in nullable and table[name].null_count:
            raise broken_file(path, ValueError(f"column {name!r} has {table[name].null_count:,} nulls"))
    return table
