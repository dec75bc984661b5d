"""State of an operator: columns of subscriptions, with lists of different length, that can be cut and joined.

`rows` has a column of n entries a name; `lists` has groups of columns that share their cuts (`offsets` int64[n + 1]);
`whole` does not belong to single subscriptions. A row is the whole state of its subscription, so the state of four
tasks can be restored on three: join, then take. `topology.core.frames` writes the named arrays.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from matching.errors import EngineError
from matching.model import Int64, SubscriptionTable, take_ragged

_SEPARATOR = "/"
#: Columns of a `SubscriptionTable` that only some tables have, NaN where others are joined with them.
_OPTIONAL = ("vector", "radius_m")
#: Columns of a `SubscriptionTable` that are lists.
_WORDS = ("terms", "weights")


class RaggedColumns(NamedTuple):
    """Columns of one ragged group: row i owns entries offsets[i] : offsets[i + 1] of each."""

    offsets: Int64
    columns: dict[str, np.ndarray]


class State(NamedTuple):
    """See the module. All rows are subscriptions; `rows` has at least `number`."""

    rows: dict[str, np.ndarray]
    lists: dict[str, RaggedColumns]
    whole: dict[str, np.ndarray]

    @classmethod
    def of(cls, table: SubscriptionTable) -> "State":
        """The rows of a table, to which an operator adds its columns."""
        columns = table._asdict()
        words = {name: columns.pop(name) for name in _WORDS}
        offsets, filters = columns.pop("filter_offsets"), columns.pop("filter_words")
        for name in _OPTIONAL:
            if not columns[name].shape[0]:
                del columns[name]
        lists = {"words": RaggedColumns(columns.pop("term_offsets"), words)}
        if not offsets.shape[0]:  # states of several tasks are joined: all have the group
            offsets = np.zeros(len(table) + 1, np.int64)
        lists["filters"] = RaggedColumns(offsets, {"words": filters})
        return cls(columns, lists, {})

    @property
    def table(self) -> SubscriptionTable:
        """The subscriptions."""
        words, filters = self.lists["words"], self.lists.get("filters")
        columns = {name: self.rows[name] for name in SubscriptionTable._fields if name in self.rows}
        if filters is not None and filters.offsets[-1]:
            columns |= {"filter_offsets": filters.offsets, "filter_words": filters.columns["words"]}
        return SubscriptionTable(**columns, term_offsets=words.offsets, **words.columns)

    def beside(self, other: "State") -> "State":
        """The columns of both, of the same subscriptions in the same order."""
        return State(self.rows | other.rows, self.lists | other.lists, self.whole | other.whole)

    def take(self, rows: np.ndarray) -> "State":
        """Some of the subscriptions (indices, not a mask). O(rows and their entries)."""
        lists = {}
        for name, group in self.lists.items():
            offsets, picked = take_ragged(group.offsets, rows)
            lists[name] = RaggedColumns(offsets, {column: values[picked] for column, values in group.columns.items()})
        return State({name: values[rows] for name, values in self.rows.items()}, lists, self.whole)

    def arrays(self) -> dict[str, np.ndarray]:
        """As named arrays."""
        named = {f"rows{_SEPARATOR}{name}": values for name, values in self.rows.items()}
        for group, (offsets, columns) in self.lists.items():
            named[f"offsets{_SEPARATOR}{group}"] = offsets
            named |= {f"lists{_SEPARATOR}{group}{_SEPARATOR}{name}": values for name, values in columns.items()}
        return named | {f"whole{_SEPARATOR}{name}": values for name, values in self.whole.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "State":
        """What `arrays` gave; nothing is copied."""
        state = cls({}, {}, {})
        for path, values in arrays.items():
            where, *names = path.split(_SEPARATOR)
            if where == "offsets":
                state.lists[names[0]] = RaggedColumns(values, {})
        for path, values in arrays.items():
            where, *names = path.split(_SEPARATOR)
            if where == "rows":
                state.rows[names[0]] = values
            elif where == "lists":
                state.lists[names[0]].columns[names[1]] = values
            elif where == "whole":
                state.whole[names[0]] = values
            elif where != "offsets":
                raise EngineError(f"a state has no part {path!r}: it was not written by an operator")
        return state


def join_states(states: Sequence[State]) -> State:
    """All rows of states of one kind, in ascending number; of `whole` the first one's. O(total log rows); one in order
    is returned itself.

    Raises
    ------
    EngineError
        If a subscription is there twice: one task only must snapshot it.
    """
    first = states[0]
    number = first.rows["number"]
    if len(states) == 1 and np.all(number[1:] > number[:-1]):
        return first
    names = dict.fromkeys(name for state in states for name in state.rows)
    rows = {name: _join_rows([(state.rows.get(name), len(state.rows["number"])) for state in states]) for name in names}
    lists = {}
    for group, (_, columns) in first.lists.items():
        lengths = np.concatenate([np.diff(state.lists[group].offsets) for state in states])
        offsets = np.zeros(lengths.shape[0] + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        parts = [state.lists[group].columns for state in states]
        lists[group] = RaggedColumns(
            offsets, {name: np.concatenate([part[name] for part in parts]) for name in columns}
        )
    order = np.argsort(rows["number"], kind="stable")
    number = rows["number"][order]
    if np.any(number[1:] == number[:-1]):
        raise EngineError(f"subscription {number[1:][number[1:] == number[:-1]][0]} is in several snapshots")
    return State(rows, lists, first.whole).take(order)


def _join_rows(parts: Sequence[tuple[np.ndarray | None, int]]) -> np.ndarray:
    """A column of several states, NaN for the rows of those that lack it."""
    there = next(column for column, _ in parts if column is not None)
    return np.concatenate(
        [np.full((rows, *there.shape[1:]), np.nan) if column is None else column for column, rows in parts]
    )
