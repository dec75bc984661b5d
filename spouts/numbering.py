"""Numbers of the subscriptions of a live stream, and which of them an id has.

Numbers count up in the order in which subscriptions take effect. One that ends at the seq where it begins gets none,
and no bolt hears of it.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from matching.model import Int64, Names, Removals
from matching.words.cutting import TokenTable
from topology.core.api.component import Fragment

#: In place of a number: `_NONE`, the id never had one; `_FIRST` - i, that of the i-th subscription that begins in this
#: batch, which is numbered at its end.
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
    Memory grows with the number of distinct ids: some 80 bytes each. About 1 us a change.
    """

    def __init__(self) -> None:
        self.next = 0
        self.counts = dict.fromkeys(("accepted", "unsubscribed", "replaced", "rejected"), 0)
        self._ids = TokenTable.empty()  # that of row r has number r + 1
        self._number, self._kind, self._ended = array("q"), array("b"), array("b")

    def change(self, names: Sequence[str], kinds: Sequence[int], ats: Sequence[int]) -> Numbered:
        """Apply the changes of a batch, in order.

        Parameters
        ----------
        kinds : sequence of int    code of the kind; -1: the subscription ends
        ats : sequence of int      the seq before which each takes effect, ascending
        """
        # columns rather than an object for each: of a million changes Python's collector would take 40 % of the time
        begun: dict[int, int] = {}  # place of the last subscription that begins, by the row of the id
        rows: list[int] = []  # of all that begin: the row of the id, the seq, and what the id had before
        begins_at: list[int] = []
        before: list[int] = []
        kind_before: list[int] = []
        ends: tuple[list[int], list[int], list[int]] = [], [], []  # number, kind and seq of those that end
        never: list[int] = []
        number_of, kind_of, ended = self._number, self._kind, self._ended
        unsubscribed = replaced = 0

        def end(row: int, at: int) -> None:
            place = begun.get(row)
            if place is not None and begins_at[place] == at:
                never.append(place)
                del begun[row]
                number_of[row], kind_of[row] = before[place], kind_before[place]
            else:
                for column, value in zip(ends, (number_of[row], kind_of[row], at), strict=True):
                    column.append(value)
            ended[row] = True

        self._ids, ids = self._ids.entered(names)
        for row, kind, at in zip((ids - 1).tolist(), kinds, ats, strict=True):
            if kind < 0:
                end(row, at)
                unsubscribed += 1
                continue
            if row == len(number_of):  # the id is new
                number_of.append(_NONE)
                kind_of.append(kind)
                ended.append(True)
            elif not ended[row]:
                end(row, at)
                replaced += 1
            place = begun[row] = len(rows)
            rows.append(row)
            begins_at.append(at)
            before.append(number_of[row])
            kind_before.append(kind_of[row])
            number_of[row], kind_of[row], ended[row] = _FIRST - place, kind, False
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
        number, kind, at = (np.array(column, np.int64) for column in ends)
        gone = Removals(_of(made, number), kind.astype(np.int8), at)
        return Numbered(made, _of(made, np.array(before, np.int64)), gone)

    def by_kind(self, kinds: int) -> list[int]:
        """How many ids had a subscription of each kind last."""
        had = np.array(self._number, np.int64) != _NONE
        return np.bincount(np.array(self._kind, np.int64)[had], minlength=kinds).tolist()

    def fragment(self, stored: int | None) -> Fragment:
        """What a checkpoint saves of the ids, a fragment that changes with each change; `stored` as of `snapshot`."""
        version = sum(self.counts.values())
        if version == stored:
            return Fragment(dict, version)
        # later ids are put behind these
        names = self._ids.starts[1 : len(self._number) + 2], self._ids.data[: self._ids.size_bytes]
        number, kind, ended = (np.array(column) for column in (self._number, self._kind, self._ended))

        def arrays() -> dict[str, np.ndarray]:
            columns = dict(zip(("names_offsets", "names_data"), names, strict=True))
            return columns | {"number": number, "kind": kind, "ended": ended.astype(np.bool_)}

        return Fragment(arrays, version)

    def restore(self, state: Mapping[str, np.ndarray], following: int, counts: Iterable[int]) -> None:
        """Load what a checkpoint saved, the number of the next subscription, and the values of `counts`."""
        names = Names(state["names_offsets"], state["names_data"])
        self._ids, _ = TokenTable.empty().entered(names.strings())
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
