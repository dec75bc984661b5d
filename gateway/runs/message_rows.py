"""Messages of a folder by seq, with a cache of groups of rows (`spouts.message_files`).

A long list of results or updates reads the same groups again and again: the last ones are cached.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from matching.attributes import ATTRIBUTE, KEPT, AttributeSchema
from matching.errors import InputError
from matching.model import Int32
from matching.pieces import with_named
from matching.validate import ParsedMessage
from spouts.columns import AHEAD, first_line
from spouts.message_files import list_message_files, opened

_COLUMNS = ("message_id", "object_id", "lon", "lat", "event_time", "text", "terms", "word_order", AHEAD)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Bytes of groups that are kept: some 800,000 messages as short as tweets.
KEPT_BYTES = 128 * 2**20


class Row(NamedTuple):
    """A message as the ETL wrote it; degrees, `event_time` a datetime or None.

    `terms` by id, also those of words that hashtags name. `ahead`: a live stream has set it aside, as it was dated too
    far ahead. `attributes` has those with a value, by name; times in microseconds since 1970.
    """

    message_id: str
    lon: float
    lat: float
    event_time: Any
    text: str
    terms: frozenset[int]
    ahead: bool = False
    attributes: Mapping[str, Any] = {}
    object_id: str = ""


class _Group(NamedTuple):
    """A group of rows of a file: the number of its first message, and of how many."""

    path: Path
    number: int
    first: int
    rows: int


class MessageRows:
    """The messages of an ETL folder, or of the folder of a live stream.

    Parameters
    ----------
    kept_bytes : int
        Groups are kept up to this size, and one in any case.
    """

    def __init__(self, etl: Path, kept_bytes: int = KEPT_BYTES):
        self._etl = etl
        self._kept_bytes = kept_bytes
        self._groups: list[_Group] = []
        self._kept: OrderedDict[_Group, pa.Table] = OrderedDict()

    def read(self, seqs: Iterable[int]) -> dict[int, Row]:
        """Messages by seq; those that the folder does not have are left out.

        Raises
        ------
        InputError
            If a file cannot be read.
        """
        wanted = np.unique(np.fromiter(seqs, np.int64))
        if not self._groups or (wanted.size and wanted[-1] >= self._groups[-1].first + self._groups[-1].rows):
            self._groups = _list_groups(self._etl)  # a running ETL may have written new ones
        found: dict[int, Row] = {}
        for group in self._groups:
            here = wanted[(wanted >= group.first) & (wanted < group.first + group.rows)]
            if here.size:
                rows = self._rows(group).take(pa.array(here - group.first)).to_pylist()
                found.update(zip(here.tolist(), map(_row, rows), strict=True))
        return found

    def _rows(self, group: _Group) -> pa.Table:
        table = self._kept.get(group)
        if table is None:
            table = _read_group(group)
            self._kept[group] = table
            while len(self._kept) > 1 and sum(each.nbytes for each in self._kept.values()) > self._kept_bytes:
                self._kept.popitem(last=False)
        self._kept.move_to_end(group)
        return table


def broken_file(path: Path, error: Exception) -> InputError:
    """The error for a file that cannot be read."""
    return InputError("broken_file", f"{path}: cannot be read ({first_line(error)}); run again")


def _list_groups(etl: Path) -> list[_Group]:
    groups: list[_Group] = []
    first = 0
    for path in list_message_files(etl):
        with opened(path) as file:
            for number, rows in enumerate(file.sizes):
                groups.append(_Group(path, number, first, rows))
                first += rows
    return groups


def _read_group(group: _Group) -> pa.Table:
    with opened(group.path) as file:
        names = file.schema.names
        return file.read(
            group.number, [name for name in names if name in _COLUMNS or name.startswith((ATTRIBUTE, KEPT))]
        )


def _row(row: dict[str, Any]) -> Row:
    terms = frozenset(row["terms"] or ()) | _terms_of(row.get("word_order") or ())
    place = row["message_id"], row["lon"], row["lat"]
    attributes = {
        name.partition("_")[2]: value
        for name, value in row.items()
        if name.startswith((ATTRIBUTE, KEPT)) and value is not None
    }
    object_id = row.get("object_id") or row["message_id"]
    return Row(*place, row.get("event_time"), row.get("text") or "", terms, bool(row.get(AHEAD)), attributes, object_id)


def _terms_of(order: Sequence[int] | Int32) -> frozenset[int]:
    """The terms of words in order of appearance, also of those that hashtags name."""
    ids = with_named(np.asarray(order, np.int32))
    return frozenset(ids[ids >= 0].tolist())


def message_row(parsed: ParsedMessage, order: Sequence[int] | Int32, schema: AttributeSchema) -> Row:
    """A message with these words in order of appearance; it has no value of attributes that were declared after it."""
    time_us = parsed.event_time_us
    moment = None if time_us is None else _EPOCH + timedelta(microseconds=time_us)
    named = zip(schema.attributes, parsed.attributes, strict=False)
    attributes = {one.name: value for one, value in named if value is not None}
    place = parsed.message_id, parsed.lon, parsed.lat
    return Row(*place, moment, parsed.text, _terms_of(order), parsed.ahead, attributes, parsed.object_id)
