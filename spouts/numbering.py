"""Numbers of the subscriptions of a live stream, and which of them an id has.

Numbers count up in the order in which subscriptions take effect. One that ends at the seq where it begins gets none,
and no bolt hears of it.
"""

from array import array
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bolts.names import IdColumn
from matching.model import Int64, Names, Removals
from topology.core.api.component import Piece

#: What stands for the number of an id that has had none, and of the first subscription that begins in a batch.
_NONE, _FIRST = -1, -2


class Numbered(NamedTuple):
    """The changes of a batch.

    number : int64[n]    of the subscriptions that begin; -1 of one that ends where it begins
    follows : int64[n]   the number that had the id before; -1 if none had
    removed : Removals   those that end
    """

    number: Int64
    follows: Int64
    removed: Removals


class _Begun(NamedTuple):
    """A subscription that begins in this batch: its place among them, its seq, and what its id had before."""

    place: int
    at: int
    number: int
    kind: int


class Numbering:
    """The last subscription of each id that there was, in columns.

    Attributes
    ----------
    next : int
        Number of the next subscription.
    counts : dict
        Changes: `accepted`, `unsubscribed`, `replaced`; `rejected` is 0, since all were admitted.

    Notes
    -----
    Memory grows with the number of distinct ids: some 130 bytes each. About 1 us a change.
    """

    def __init__(self) -> None:
        self.next = 0
        self.counts = dict.fromkeys(("accepted", "unsubscribed", "replaced", "rejected"), 0)
        self._rows: dict[str, int] = {}  # of each id
        self._names = IdColumn("subscription")
        self._number, self._kind, self._ended = array("q"), array("b"), array("b")

    def change(self, changes: Iterable[tuple[str, int, int]]) -> Numbered:
        """Apply the changes of a batch: id, code of the kind (-1: the subscription ends), and seq of each, in order."""
        begun: dict[int, _Begun] = {}  # by the row of the id
        removed: list[tuple[int, int, int]] = []
        rows: list[int] = []  # of all that begin
        before: list[int] = []
        never: list[int] = []
        new_names: list[str] = []
        known, number_of, kind_of, ended = self._rows, self._number, self._kind, self._ended
        unsubscribed = replaced = 0

        def end(row: int, at: int) -> None:
            one = begun.get(row)
            if one is not None and one.at == at:
                never.append(one.place)
                del begun[row]
                number_of[row], kind_of[row] = one.number, one.kind
            else:
                removed.append((number_of[row], kind_of[row], at))
            ended[row] = True

        for name, kind, at in changes:
            if kind < 0:
                end(known[name], at)
                unsubscribed += 1
                continue
            row = known.get(name)
            if row is None:
                row = known[name] = len(number_of)
                new_names.append(name)
                number_of.append(_NONE)
                kind_of.append(kind)
                ended.append(True)
            elif not ended[row]:
                end(row, at)
                replaced += 1
            place, number = len(rows), number_of[row]
            begun[row] = _Begun(place, at, number, kind_of[row])
            rows.append(row)
            before.append(number)
            number_of[row], kind_of[row], ended[row] = _FIRST - place, kind, False
        if new_names:
            self._names.append(Names.of(new_names))
        self.counts["accepted"] += len(rows)
        self.counts["unsubscribed"] += unsubscribed
        self.counts["replaced"] += replaced
        lives = np.ones(len(rows), np.bool_)
        lives[never] = False
        made = np.where(lives, self.next - 1 + np.cumsum(lives), _NONE)
        self.next += int(lives.sum())
        numbers = made.tolist()
        for row in rows:
            if (number := number_of[row]) <= _FIRST:
                number_of[row] = numbers[_FIRST - number]
        columns = np.array(removed, np.int64).reshape(-1, 3)
        gone = Removals(_of(made, columns[:, 0]), columns[:, 1].astype(np.int8), columns[:, 2].copy())
        return Numbered(made, _of(made, np.array(before, np.int64)), gone)

    def by_kind(self, kinds: int) -> list[int]:
        """How many ids had a subscription of each kind last."""
        had = np.array(self._number, np.int64) != _NONE
        return np.bincount(np.array(self._kind, np.int64)[had], minlength=kinds).tolist()

    def piece(self, stored: int | None) -> Piece:
        """What a checkpoint saves of the ids, a piece that changes with each change; `stored` as of `snapshot`."""
        version = sum(self.counts.values())
        if version == stored:
            return Piece(dict, version)
        names = self._names.snapshot()
        number, kind, ended = (np.array(column) for column in (self._number, self._kind, self._ended))

        def arrays() -> dict[str, np.ndarray]:
            state = names.state(0, np.zeros(0, np.int64))
            columns = {"names_offsets": state["offsets"], "names_data": state["data"]}
            return columns | {"number": number, "kind": kind, "ended": ended.astype(np.bool_)}

        return Piece(arrays, version)

    def restore(self, state: Mapping[str, np.ndarray], following: int, counts: Iterable[int]) -> None:
        """Load what a checkpoint saved, the number of the next subscription, and the values of `counts`."""
        names = Names(state["names_offsets"], state["names_data"])
        self._names = IdColumn("subscription")
        self._names.append(names)
        self._rows = dict(zip(names.strings(), range(len(state["number"])), strict=True))
        columns: list[tuple[str, Any]] = [("q", np.int64), ("b", np.int8), ("b", np.int8)]
        self._number, self._kind, self._ended = (
            array(code, state[name].astype(dtype).tobytes())
            for name, (code, dtype) in zip(("number", "kind", "ended"), columns, strict=True)
        )
        self.next, self.counts = following, dict(zip(self.counts, counts, strict=True))


def _of(made: Int64, numbers: Int64) -> Int64:
    """Numbers, those that stand for the places of this batch replaced by what these got."""
    found, fresh = numbers.copy(), numbers <= _FIRST
    found[fresh] = made[_FIRST - numbers[fresh]]
    return found
