"""What a run has told so far, whatever state it is in: updates, results, subscriptions and messages, read back.

A run that goes on has named some parts of `updates/`, which are whole and stay; one that has ended by itself or by
Ctrl-C has `results.parquet` as well. Read on in `gateway.showing`, which joins what is read here for people.
"""

import fcntl
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.json as pj
import pyarrow.parquet as pq

from bolts.sinks import RESULT_SCHEMA, UPDATE_SCHEMA
from gateway.facts import read_facts
from matching.errors import InputError
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import CHANGES, ENTER, MATCH, Int64
from matching.text import Vocabulary
from matching.validate import SUBSCRIPTION_COLUMNS, ParsedSubscription, subscription_row
from spouts.lines import read_rows
from spouts.parquet import list_message_files
from spouts.subscriptions import load_vocabulary
from topology.folder import RUNNING, RunFolder

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

_MESSAGE_COLUMNS = ("message_id", "lon", "lat", "event_time", "text", "terms")


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


class Row(NamedTuple):
    """A message as the ETL wrote it; degrees, `terms` by id, `event_time` a datetime or None."""

    message_id: str
    lon: float
    lat: float
    event_time: Any
    text: str
    terms: frozenset[int]


class Reading:
    """A run folder, read.

    Parameters
    ----------
    folder : Path
    kinds : Kinds
        Those that the run knew.

    Raises
    ------
    InputError
        If the folder is no run's, or `run.json` does not say what a run says of itself.
    """

    def __init__(self, folder: Path, kinds: Kinds = KINDS):
        self.folder = folder
        self.kinds = kinds
        facts, self.facts = read_facts(folder)
        self.etl = facts.etl
        self.files = [Path(path) for path in facts.subscriptions]
        self.space = facts.space()

    @property
    def state(self) -> str:
        """`running`, `finished`, `interrupted` or `failed`, as it was when this was opened."""
        return str(self.facts.get("state"))

    def goes_on(self) -> bool:
        """Whether somebody writes to the folder now; it is looked at anew."""
        self.facts = RunFolder(self.folder).report()
        return self.state == RUNNING and _is_held(self.folder / ".lock")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """That of the messages."""
        return load_vocabulary(self.etl)

    def parts(self) -> list[Path]:
        """The files of updates that have names, in order."""
        directory = self.folder / "updates"
        if not directory.is_dir():
            return []
        return sorted(path for path in directory.iterdir() if not path.name.startswith("."))

    def updates(self, ids: Collection[str] | None = None, parts: Sequence[Path] | None = None) -> pa.Table:
        """Updates in the order of the files, of these subscriptions or of all. O(updates)."""
        tables = [UPDATE_SCHEMA.empty_table()]
        for path in self.parts() if parts is None else parts:
            table = read_part(path)
            tables.append(
                table if ids is None else table.filter(pc.is_in(table["subscription_id"], pa.array(list(ids))))
            )
        return pa.concat_tables([table.cast(UPDATE_SCHEMA) for table in tables])

    def counts(self, updates: pa.Table) -> dict[str, dict[str, int]]:
        """Of each subscription that has been told anything, how often of what. O(updates)."""
        grouped = updates.group_by(["subscription_id", "change"]).aggregate([("seq", "count")])
        found: dict[str, dict[str, int]] = {}
        for row in grouped.to_pylist():
            found.setdefault(row["subscription_id"], {})[row["change"]] = row["seq_count"]
        return dict(sorted(found.items()))

    def results(self, updates: pa.Table, ids: Collection[str] | None = None) -> pa.Table:
        """What subscriptions hold: of those with standing results the messages that entered and stayed, best first;
        of the others all that matched, as they came. O(updates).

        Returns
        -------
        pa.Table
            Of `RESULT_SCHEMA`; `rank` is null where the run has not ended and for matches.
        """
        matched = _as_results(updates.filter(pc.equal(updates["change"], CHANGES[MATCH])))
        path = self.folder / "results.parquet"
        if path.exists():
            standing = read_results(self.folder)
            standing = standing if ids is None else _of(standing, ids)
        else:
            standing = _as_results(updates.take(pa.array(_still_held(updates))))
        return pa.concat_tables([standing.cast(RESULT_SCHEMA), matched])

    def subscribers(self, ids: Collection[str]) -> tuple[dict[str, list[Subscriber]], dict[str, str]]:
        """The subscriptions of these ids, several where one replaced another, and why others were refused.

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

    def messages(self, seqs: Iterable[int]) -> dict[int, Row]:
        """These messages, by seq. Reads the row groups in which any of them lies."""
        return read_message_rows(self.etl, seqs)


def subscriber(row: dict[str, Any], parsed: ParsedSubscription, kinds: Kinds) -> Subscriber:
    """A row of a file with what was made of it."""
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


def read_message_rows(etl: Path, seqs: Iterable[int]) -> dict[int, Row]:
    """Messages of an ETL folder by seq; those it does not have are left out.

    Raises
    ------
    InputError
        If a file cannot be read.
    """
    wanted = np.unique(np.array([*seqs, 0], np.int64))
    found: dict[int, Row] = {}
    first = 0
    for path in list_message_files(etl):
        try:
            with pq.ParquetFile(path) as file:
                present = set(file.schema_arrow.names)
                for group in range(file.metadata.num_row_groups):
                    rows = file.metadata.row_group(group).num_rows
                    here = wanted[(wanted >= first) & (wanted < first + rows)]
                    if here.size:
                        names = [name for name in _MESSAGE_COLUMNS if name in present]
                        table = file.read_row_group(group, names).take(pa.array(here - first))
                        table.validate(full=True)
                        for seq, row in zip(here.tolist(), table.to_pylist(), strict=True):
                            found[seq] = _message_row(row)
                    first += rows
        except (OSError, pa.ArrowException) as error:
            raise broken_file(path, error) from error
    return found


def _of(table: pa.Table, ids: Collection[str]) -> pa.Table:
    """The rows of these subscriptions."""
    return table.filter(pc.is_in(table["subscription_id"], pa.array(list(ids), pa.string())))


def _message_row(row: dict[str, Any]) -> Row:
    terms = frozenset(row["terms"] or ())
    return Row(row["message_id"], row["lon"], row["lat"], row.get("event_time"), row.get("text") or "", terms)


def _is_held(lock: Path) -> bool:
    """Whether a process holds the lock of a run folder."""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _as_results(updates: pa.Table) -> pa.Table:
    """Updates as rows of results without rank."""
    nothing = {"rank": pa.int32(), "text_score": pa.float64()}
    columns = [
        pa.nulls(len(updates), nothing[name]) if name in nothing else updates[name] for name in RESULT_SCHEMA.names
    ]
    return pa.Table.from_arrays(columns, schema=RESULT_SCHEMA)


def _still_held(updates: pa.Table) -> Int64:
    """Rows of `updates` that entered and have not left since, in their order. O(n log n)."""
    standing = np.flatnonzero(pc.not_equal(updates["change"], CHANGES[MATCH]).to_numpy())
    codes = pc.dictionary_encode(updates["subscription_id"]).combine_chunks()
    who = codes.indices.to_numpy()[standing]
    seq = updates["seq"].to_numpy()[standing]
    enters = pc.equal(updates["change"], CHANGES[ENTER]).to_numpy()[standing]
    order = np.lexsort((seq, who))  # stable: of one message the last update comes last
    last = np.ones(order.size, np.bool_)
    last[:-1] = (who[order][1:] != who[order][:-1]) | (seq[order][1:] != seq[order][:-1])
    return np.sort(standing[order[last & enters[order]]])


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


def broken_file(path: Path, error: Exception) -> InputError:
    """The error for a file that cannot be read."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError("broken_file", f"{path}: cannot be read ({reason}); run again")


def _whole(path: Path, table: pa.Table, nullable: list[str]) -> pa.Table:
    """The table, if nothing is null that must not be."""
    for name in table.column_names:
        if name not in nullable and table[name].null_count:
            raise broken_file(path, ValueError(f"column {name!r} has {table[name].null_count:,} nulls"))
    return table
