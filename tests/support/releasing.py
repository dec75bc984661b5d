"""Boundaries as a server releases them, frames and parts of updates, from rows of Python."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bolts.publishing import PublishedUpdates
from bolts.sinks import UPDATE_SCHEMA
from gateway.serve.released import PIECE_BYTES, LookUp, Released, ReleasedUpdate, UpdateColumns, UpdateRows, in_order
from matching.model import CHANGES, Names
from matching.part_names import PartName

#: as_of, subscription id, seq, change, score.
Row = tuple[int, str, int, str, float | None]


class RawUpdate(NamedTuple):
    """An update as delivery has it; `rank` as of `gateway.serve.releasing.RANKS`."""

    subscription_id: str
    rank: int
    seq: int
    as_of: int
    score: float | None


def updates_of(
    released: Released, rows: np.ndarray | None, look_up: LookUp, most_bytes: int | None = PIECE_BYTES
) -> list[ReleasedUpdate]:
    """Rows as sinks get them; parameters as of `UpdateRows`."""
    return UpdateRows(released, rows, look_up, most_bytes).updates()


def released_of(boundary: int, updates: Iterable[RawUpdate]) -> Released:
    """A boundary."""
    rows = list(updates)
    names, *numbers, score = zip(*rows, strict=True) if rows else [()] * len(RawUpdate._fields)
    order, seq, as_of = (
        np.array(column, kind) for column, kind in zip(numbers, (np.int8, np.int64, np.int64), strict=True)
    )
    who, scores = np.arange(len(rows), dtype=np.int32), np.array([np.nan if one is None else one for one in score])
    boundaries = np.full(len(rows), boundary)
    return in_order([UpdateColumns(pa.array(names, pa.string()), who, order, seq, as_of, scores, boundaries)])


def release(boundary: int, updates: Iterable[RawUpdate], look_up: LookUp) -> list[ReleasedUpdate]:
    """The updates of a boundary as clients get them."""
    return updates_of(released_of(boundary, updates), None, look_up, None)


def update_of(subscription_id: str, update_id: str, data: bytes) -> ReleasedUpdate:
    """An update with any JSON."""
    return ReleasedUpdate(update_id, "match", subscription_id, "m", 0, 0, None, "", 0.0, 0.0, data)


def write_part(folder: Path, number: int, rows: Sequence[Row], tasks: int = 1) -> None:
    """Write the parts of a number; of several tasks some rows are in each."""
    folder.mkdir(exist_ok=True)
    columns = [(as_of, name, f"m{seq}", seq, change, score) for as_of, name, seq, change, score in rows]
    table = pa.table(dict(zip(UPDATE_SCHEMA.names, zip(*columns, strict=True), strict=True)), UPDATE_SCHEMA)
    owners = [sum(row[1].encode()) % tasks for row in rows]
    for task in range(tasks):
        own = table.filter(pa.array([owner == task for owner in owners], pa.bool_()))
        pq.write_table(own, folder / PartName(number, task, tasks).text)


def published(rows: Sequence[Row], incarnation: int, through: int, since: int = -1) -> PublishedUpdates:
    """A frame of a delivery task."""
    names = sorted({row[1] for row in rows})
    as_of, who, seq, change, score = (np.array(column) for column in zip(*rows, strict=True)) if rows else [[]] * 5
    return PublishedUpdates(
        incarnation,
        through,
        np.array(as_of, np.int64),
        np.array(seq, np.int64),
        np.array([CHANGES.index(each) for each in change], np.int8),
        np.array([np.nan if each is None else each for each in score], np.float64),
        np.array([names.index(each) for each in who], np.int32),
        Names.of(names),
        since,
    )
