"""What updates carry for an `include`: values of attributes, and earlier ones of what has changed."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from gateway.live.write_ahead_log import LoggedValues
from matching.attributes import TIME, AttributeSchema, DeclaredAttribute

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ENCODER = msgspec.json.Encoder()


#: An `include`: names of attributes, True for all that are declared, False for none.
Include = bool | Sequence[str]


class IncludedValues:
    """Makes the JSON of what updates carry besides; for any thread.

    Parameters
    ----------
    wanted : mapping of str to Include    by id of the subscription; True, or names
    standing : callable                   whether the kind of a subscription keeps a result, whose updates are of
                                          boundaries
    values : callable                     seqs -> `LoggedValues` by seq
    schema : callable                     the attributes that are declared now
    ends : sequence of int                the last seq of each boundary; grows
    """

    def __init__(
        self,
        wanted: Mapping[str, Include],
        standing: Callable[[str], bool],
        values: Callable[[Iterable[int]], Mapping[int, LoggedValues]],
        schema: Callable[[], AttributeSchema],
        ends: Sequence[int],
    ):
        self._wanted = wanted
        self._standing = standing
        self._values = values
        self._schema = schema
        self._ends = ends

    def of(
        self, released: Any, rows: np.ndarray, leave: int, include: Include | None = None
    ) -> tuple[list[bytes], np.ndarray] | None:
        """What is behind the other columns of updates: distinct pieces of JSON, and which each row has; None: nothing.

        Parameters
        ----------
        released : Released
        rows : int64[n]
        leave : int         rank of `leave`, whose version was replaced and replaces none here
        include : Include, optional
            In place of what the subscriptions want.
        """
        known = dict[int, LoggedValues]()
        pieces: dict[bytes, int] = {b"": 0}
        found = np.zeros(rows.shape[0], np.int64)
        for row, one, seq, before in self._pairs(released, rows, leave, known, include):
            piece = self._piece(one, known[seq], self._known(known, before) if before >= 0 else None)
            found[row] = pieces.setdefault(piece, len(pieces))
        return (list(pieces), found) if len(pieces) > 1 else None

    def before(self, released: Any, rows: np.ndarray, leave: int) -> list[int]:
        """Seqs of the earlier versions that `of` looks up; those of the updates themselves are read here."""
        return [before for *_, before in self._pairs(released, rows, leave, {}) if before >= 0]

    def _pairs(
        self,
        released: Any,
        rows: np.ndarray,
        leave: int,
        known: dict[int, LoggedValues],
        include: Include | None = None,
    ) -> Iterator[tuple[int, Include, int, int]]:
        """Of updates that carry more: the place in `rows`, what is wanted, the message, and the version before it."""
        if include is False or (include is None and not self._wanted):
            return
        used, who = np.unique(released.who[rows], return_inverse=True)
        names = released.names.take(pa.array(used)).to_pylist()
        wanted = [self._wanted.get(name) if include is None else include for name in names]
        mine = np.flatnonzero(np.array([one is not None for one in wanted], np.bool_)[who])
        if not mine.shape[0]:
            return
        some = rows[mine]
        columns = zip(
            mine.tolist(), who[mine].tolist(), released.seq[some].tolist(), released.boundary[some].tolist(),
            (released.order[some] == leave).tolist(), strict=True,
        )  # fmt: skip
        known.update(self._values(np.unique(released.seq[some]).tolist()))
        standing = [one is not None and self._standing(name) for one, name in zip(wanted, names, strict=True)]
        for row, name, seq, boundary, leaves in columns:
            one = wanted[name]
            assert one is not None, "it is among those that want some"
            yield row, one, seq, -1 if leaves else self._before(known, seq, boundary if standing[name] else None)

    def _before(self, known: dict[int, LoggedValues], seq: int, boundary: int | None) -> int:
        """The version that an object had before, -1 for none: before its version `seq`, or before a whole boundary."""
        before = self._known(known, seq).previous
        if boundary is None:
            return before
        place = bisect_left(self._ends, boundary)
        first = self._ends[place - 1] + 1 if place else 0
        if seq < first:
            return -1
        while before >= first:
            before = self._known(known, before).previous
        return before

    def _known(self, known: dict[int, LoggedValues], seq: int) -> LoggedValues:
        if seq not in known:
            known.update(self._values([seq]))
        return known[seq]

    def _piece(self, one: Include, now: LoggedValues, before: LoggedValues | None) -> bytes:
        schema = self._schema()
        attributes = [each for each in schema.attributes if isinstance(one, bool) or each.name in one]
        values = {each.name: value_of(each, now.attributes, schema) for each in attributes}
        piece = b',"attributes":' + _ENCODER.encode(values)
        if before is not None:
            earlier = {each.name: value_of(each, before.attributes, schema) for each in attributes}
            changed = {name: value for name, value in earlier.items() if value != values[name]}
            piece += b',"previous":' + _ENCODER.encode(changed) if changed else b""
        return piece


def value_of(attribute: DeclaredAttribute, values: Sequence[Any], schema: AttributeSchema) -> Any:
    """A value of a message as JSON has it; `values` are those of its attributes. None if it has none."""
    number = schema.number_of(attribute.name)
    assert number is not None, "it is of this schema"
    value = values[number] if number < len(values) else None
    return (
        (_EPOCH + timedelta(microseconds=value)).isoformat() if attribute.type == TIME and value is not None else value
    )
