"""What stands by updates: those that entered and have not left; and the file of it, a base (`matching.part_names`)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from bolts.sinks import UPDATE_SCHEMA, reading_part
from matching.model import CHANGE, CHANGES, ENTER, LEAVE

pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see


def standing_of(pieces: Iterable[pa.Table], schema: pa.Schema = UPDATE_SCHEMA) -> pa.Table:
    """The updates that entered and have not left since, in their order.

    Parameters
    ----------
    pieces : iterable of pa.Table
        Updates in the order of the files.
    schema : pa.Schema
        Of the pieces. With `object_id` results are of objects: the last version that entered or changed stands.

    Notes
    -----
    O(updates log); memory for the standing results only.
    """
    standing, of_objects = schema.empty_table(), "object_id" in schema.names
    wanted = pa.array([CHANGES[ENTER], CHANGES[LEAVE], *([CHANGES[CHANGE]] if of_objects else [])])
    for piece in pieces:
        updates = pa.concat_tables([standing, piece.filter(pc.is_in(piece["change"], wanted))])
        id_row, what = _codes(updates["subscription_id"]), updates["seq"].to_numpy()
        if of_objects:
            what = _codes(updates["object_id"])
        stays = pc.not_equal(updates["change"], CHANGES[LEAVE]).to_numpy()
        order = np.lexsort((what, id_row))  # stable: of one message the last update comes last
        last = np.ones(order.size, np.bool_)
        last[:-1] = (id_row[order][1:] != id_row[order][:-1]) | (what[order][1:] != what[order][:-1])
        standing = updates.take(pa.array(np.sort(order[last & stays[order]])))
    return standing


def base_of(standing: pa.Table, boundary: int, updates: int) -> pa.Table:
    """What stands at a boundary as a base has it, which stands for so many updates."""
    return standing.replace_schema_metadata({"boundary": str(boundary), "updates": str(updates)})


def base_facts(path: Path) -> tuple[int, int]:
    """The boundary of a base, and how many updates it stands for. Raises CheckpointError."""
    with reading_part(path):
        found = pq.read_schema(path).metadata
        return int(found[b"boundary"]), int(found[b"updates"])


def _codes(names: pa.ChunkedArray) -> np.ndarray:
    return pc.dictionary_encode(names).combine_chunks().indices.to_numpy()
