"""Shares of delivery tasks: which task owns a subscription, and how saved states of several tasks are joined.

A task owns the subscriptions whose id hashes to it, so that all subscriptions of one id, which replace each other, have
the same owner. Query tasks send updates and results to owners (`Owners`), a delivery task keeps the names of what it
owns (`OwnNames`) and writes parts of its own (`matching.part_names`). A checkpoint of several tasks is joined to what
one task would have saved (`joined`). Each of the new tasks takes its share of that, whatever their number.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bolts.names import IdColumn, UInt64, grown, hash_names
from bolts.state_parts import named, part_of
from matching.errors import CheckpointError, TopologyError
from matching.model import Int64, Names

State = Mapping[str, np.ndarray]

_NO_NUMBERS = np.zeros(0, np.int64)


def owner_of(hashes: UInt64, tasks: int) -> Int64:
    """The delivery task, 0 to `tasks - 1`, that owns subscriptions whose ids have these hashes (`hash_names`)."""
    return (hashes % np.uint64(tasks)).astype(np.int64)


class PublishedParts:
    """Updates in published parts, which a run does not write again after it went back to an earlier checkpoint.

    Parameters
    ----------
    rows : int64[n, 3]
        A task, the number of tasks then, and the `as_of` up to which the task has published the updates of the
        subscriptions that it owned.
    """

    def __init__(self, rows: Int64 | None = None):
        furthest: dict[tuple[int, int], int] = {}
        for task, tasks, through in [] if rows is None else rows.tolist():
            furthest[task, tasks] = max(through, furthest.get((task, tasks), -1))
        self._furthest = {at: through for at, through in furthest.items() if through >= 0}

    def __bool__(self) -> bool:
        return bool(self._furthest)

    @property
    def rows(self) -> Int64:
        rows = [(*at, through) for at, through in sorted(self._furthest.items())]
        return np.array(rows, np.int64).reshape(-1, 3)

    @property
    def through(self) -> int:
        """The `as_of` up to which a single task has published, -1 if it has not."""
        return self._furthest.get((0, 1), -1)

    def has(self, as_of: Int64, hashes: UInt64) -> NDArray[np.bool_]:
        """bool[n]: which updates are published; `hashes` are those of their subscription ids."""
        found = np.zeros(as_of.shape[0], np.bool_)
        for (task, tasks), through in self._furthest.items():
            found |= (as_of <= through) & (owner_of(hashes, tasks) == task)
        return found


class Owners:
    """The owner of each subscription that a query task has.

    Parameters
    ----------
    tasks : int
        Number of delivery tasks; one owns all.

    Notes
    -----
    2 bytes for each subscription of the run.
    """

    def __init__(self, tasks: int):
        self.tasks = tasks
        self._owner = np.zeros(0, np.int16)

    def note(self, numbers: Int64, names: Names) -> None:
        """Take new subscriptions with their names. O(bytes of the names)."""
        if self.tasks == 1 or not numbers.shape[0]:
            return
        wanted = int(numbers.max()) + 1
        if wanted > self._owner.shape[0]:
            larger = np.full(max(wanted, 2 * self._owner.shape[0]), -1, np.int16)
            larger[: self._owner.shape[0]] = self._owner
            self._owner = larger
        self._owner[numbers] = owner_of(hash_names(names), self.tasks)

    def split(self, table: Any) -> list[Any]:
        """Rows of updates or results by owner. O(n log n).

        Raises
        ------
        TopologyError
            For a subscription that was not noted.
        """
        if self.tasks == 1:
            return [table]
        number = table.number
        if not number.shape[0]:
            return [table] * self.tasks
        owner = self._owner[number] if number.max() < self._owner.shape[0] else np.full(1, -1, np.int16)
        if owner.min() < 0:
            raise TopologyError("an update of a subscription that this query task was never sent")
        rows = np.argsort(owner, kind="stable")
        cuts = np.searchsorted(owner[rows], np.arange(self.tasks + 1))
        # by identity: `as_of` and `seq` of matches are one column, which stays one and is packed once
        ordered = {id(column): column[rows] for column in table if column is not None}
        parts = []
        for first, last in pairwise(cuts.tolist()):
            own = {key: column[first:last] for key, column in ordered.items()}
            parts.append(type(table)(*(None if column is None else own[id(column)] for column in table)))
        return parts

    def restore(self, saved: State) -> None:
        """Take the subscriptions of a checkpoint; `saved` is a state from `joined`. O(bytes of the names)."""
        if self.tasks > 1:
            hashes = _hashes_of(part_of(saved, "subscriptions"))
            self._owner = owner_of(hashes, self.tasks).astype(np.int16)


class OwnNames:
    """Names of the subscriptions that one of several delivery tasks owns; like `bolts.names.IdColumn` otherwise.

    Notes
    -----
    O(1) a look-up; 4 bytes for each subscription of the run beside what `IdColumn` takes for those that are owned.
    """

    def __init__(self, task: int, tasks: int, keep_names: bool = True):
        self._task, self._tasks = task, tasks
        self._column = IdColumn("subscription", keep_names)
        self._row_of = np.zeros(1024, np.int32)  # by number, `end` of them: the row in the column, -1 where not owned
        self.end = 0  # number of the next name, of whatever task

    def append(self, names: Names) -> None:
        """Add those of the next names that this task owns. O(bytes of all)."""
        count = len(names.offsets) - 1
        if not count:
            return
        hashes = hash_names(names)
        own = owner_of(hashes, self._tasks) == self._task
        self._number(own)
        rows = np.flatnonzero(own)
        self._column.append(names.take(rows), hashes[rows])

    def has(self, numbers: Int64) -> NDArray[np.bool_]:
        """bool[n]: which subscriptions this task owns."""
        known = (numbers >= 0) & (numbers < self.end)
        return known & (self._row_of[np.where(known, numbers, 0)] >= 0)

    def hashes(self, numbers: Int64) -> UInt64:
        return self._column.hashes(self._rows(numbers))

    def encode(self, numbers: Int64) -> pa.DictionaryArray:
        return self._column.encode(self._rows(numbers))

    def names(self, numbers: Int64) -> pa.Array:
        return self._column.names(self._rows(numbers))

    def packed(self, numbers: Int64) -> Names:
        return self._column.packed(self._rows(numbers))

    def snapshot(self) -> "OwnNames":
        """See `bolts.names.IdColumn.snapshot`."""
        own = copy(self)
        own._column = self._column.snapshot()
        return own

    def state(self, first: int, needed: Int64) -> dict[str, np.ndarray]:
        return self._column.state(first, needed) | {"numbers": np.flatnonzero(self._row_of[: self.end] >= 0)}

    def restore(self, state: State) -> None:
        """Take this task's share of a state from `joined`."""
        hashes = _hashes_of(state)
        own_rows = owner_of(hashes, self._tasks) == self._task
        self._column.end = self.end = 0
        self._number(own_rows)
        rows = np.flatnonzero(own_rows)
        count = np.array(rows.shape[0], np.int64)
        own = {"first": np.array(0, np.int64), "end": count, "kept": _NO_NUMBERS}
        if "data" in state:
            names = Names(state["offsets"], state["data"]).take(rows)
            own |= {"offsets": names.offsets, "data": names.data}
        else:
            own["hashes"] = hashes[rows]
        self._column.restore(own)

    @property
    def nbytes(self) -> int:
        return self._column.nbytes + self._row_of.nbytes

    def _number(self, own: NDArray[np.bool_]) -> None:
        """Give the next numbers rows, where they are owned; call before the names are added."""
        first, self.end = self.end, self.end + own.shape[0]
        self._row_of = grown(self._row_of, first, self.end)
        self._row_of[first : self.end] = np.where(own, self._column.end + np.cumsum(own) - 1, -1)

    def _rows(self, numbers: Int64) -> Int64:
        """Rows of numbers; ascending if these are."""
        if not numbers.shape[0]:
            return numbers
        known = numbers.min() >= 0 and numbers.max() < self.end
        rows = self._row_of[numbers].astype(np.int64) if known else np.full(1, -1)
        if rows.min() < 0:
            raise TopologyError(
                f"delivery:{self._task}: subscription {int(numbers[~self.has(numbers)][0])} is named, which another "
                "task owns, or which was never sent"
            )
        return rows


#: Names of subscriptions: of all, or of those that one of several delivery tasks owns.
Ids = IdColumn | OwnNames


def joined(states: Sequence[State]) -> State:
    """Join the saved states of several delivery tasks into that of a single task; a single state is returned as it is.

    Raises
    ------
    CheckpointError
        If the states do not belong together.
    """
    if len(states) == 1:
        return states[0]
    first = states[0]
    if any(not np.array_equal(state["boundary"], first["boundary"]) for state in states):
        raise CheckpointError("delivery: its tasks were saved at several boundaries; use an older checkpoint")
    totals = {name: [state[name] for state in states] for name in ("digest", "updates", "held_back")}
    whole = {name: np.asarray(np.sum(values, 0, values[0].dtype)) for name, values in totals.items()}
    whole["boundary"] = first["boundary"]
    parts = {
        "subscriptions": _joined_subscriptions([part_of(state, "subscriptions") for state in states]),
        "messages": joined_messages([part_of(state, "messages") for state in states]),
        "retained": _joined_retained([part_of(state, "retained") for state in states]),
        "living": part_of(first, "living"),  # the first task alone saves it
        "sink": _joined_sinks([part_of(state, "sink") for state in states]),
    }
    return whole | {path: values for name, part in parts.items() for path, values in named(name, part).items()}


def _joined_subscriptions(states: Sequence[State]) -> dict[str, np.ndarray]:
    numbers = np.concatenate([state["numbers"] for state in states])
    order = np.argsort(numbers)
    if not np.array_equal(numbers[order], np.arange(numbers.shape[0])):
        raise CheckpointError("delivery: its tasks have saved some subscriptions twice or not at all; use an older one")
    end = {"first": np.array(0, np.int64), "end": np.array(numbers.shape[0], np.int64), "kept": _NO_NUMBERS}
    if "data" not in states[0]:
        return end | {"hashes": np.concatenate([state["hashes"] for state in states])[order]}
    return end | Names.join([Names(state["offsets"], state["data"]) for state in states]).take(order)._asdict()


def joined_messages(states: Sequence[State]) -> dict[str, np.ndarray]:
    """The names from `first` on of the first state, and those before it that any state has kept.

    Of the first task: the window's; the others have earlier messages that their results or living objects name.
    """
    first = int(states[0]["first"])
    kept = np.concatenate([state["kept"] for state in states])
    before, rows = np.unique(kept, return_index=True)
    rows = rows[before < first]
    counts = [state["kept"].shape[0] for state in states]
    whole = {name: states[0][name] for name in ("first", "end")} | {"kept": kept[rows]}
    if "data" not in states[0]:
        saved = np.concatenate([state["hashes"][:count] for state, count in zip(states, counts, strict=True)])
        return whole | {"hashes": np.concatenate([saved[rows], states[0]["hashes"][counts[0] :]])}
    every = [Names(state["offsets"], state["data"]) for state in states]
    heads = Names.join(
        [Names(names.offsets[: count + 1], names.data) for names, count in zip(every, counts, strict=True)]
    )
    if not np.array_equal(rows, np.arange(kept.shape[0])):  # of living objects there are many, in order
        heads = heads.take(rows)
    return whole | Names.join([heads, Names(every[0].offsets[counts[0] :], every[0].data)])._asdict()


def _joined_retained(states: Sequence[State]) -> dict[str, np.ndarray]:
    names = ("subscriptions", "number", "seq", "balance")
    columns = {name: np.concatenate([state[name] for state in states]) for name in names}
    return columns | {"expiries": states[0]["expiries"]}


def _joined_sinks(states: Sequence[State]) -> dict[str, np.ndarray]:
    if not states[0]:
        return {}
    published = PublishedParts(np.concatenate([published_in(state).rows for state in states]))
    whole = {"part": np.max([state["part"] for state in states], 0), **state_of_published(published)}
    for name in ("as_of", "seq", "change", "score"):
        whole[name] = np.concatenate([state[name] for state in states])
    for name in ("subscription_id", "message_id"):
        names = Names.join([Names(state[f"{name}_offsets"], state[f"{name}_data"]) for state in states])
        whole |= {f"{name}_offsets": names.offsets, f"{name}_data": names.data}
    return whole


def published_in(state: State) -> PublishedParts:
    """The published parts that a sink's state names, those after an earlier checkpoint."""
    single = np.array([[0, 1, int(state["named_through"])]], np.int64)
    return PublishedParts(np.concatenate([single, state["named_of_tasks"]]) if "named_of_tasks" in state else single)


def state_of_published(published: PublishedParts) -> dict[str, np.ndarray]:
    """Arrays of a sink's state; inverse of `published_in`."""
    rows = published.rows
    several = rows[rows[:, 1] > 1]
    state = {"named_through": np.array(published.through, np.int64)}
    return state | ({"named_of_tasks": several} if several.shape[0] else {})


def _hashes_of(state: State) -> UInt64:
    return hash_names(Names(state["offsets"], state["data"])) if "data" in state else state["hashes"]
