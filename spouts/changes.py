"""The changes of subscription files in order, and what of them a checkpoint saves: those that are still to come.

A resumed run takes the changes to come from its checkpoint and does not read a million subscriptions again, of which
the query tasks have all that came.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bolts.payloads import unchanged
from matching.kind_table import Kinds
from matching.model import ChangeList, Int64, Names, Removals, SubscriptionTable
from matching.validate import ParsedSubscription

#: End of a subscription that never ends.
NEVER = 2**62
#: Names of arrays of a state: columns of subscriptions and of ends to come, and all else.
_ADDED, _REMOVED = "added:", "removed:"


class Counted(NamedTuple):
    """Figures of all rows of some files.

    counts : dict
        `accepted` rows (subscriptions), `unsubscribed`, `replaced` (of which `replaced_at_once` never took effect),
        `rejected`, `unknown_keywords`, `stopped_keywords`, `cannot_match` (one keyword is unknown and all are needed).
    rejected_by_reason : dict of str to int
    first_rejected : list of dict
        The first refused rows: `file`, `line`, `subscription_id`, `reason`, and `what` is wrong.
    by_kind : dict of str to int
        Subscriptions that take effect.
    """

    counts: dict[str, int]
    rejected_by_reason: dict[str, int]
    first_rejected: list[dict[str, Any]]
    by_kind: dict[str, int]


class SubscriptionChanges:
    """All changes of some files, numbered and in order, and the position up to which they were emitted.

    Parameters
    ----------
    table, names, end, follows, counted
        As the attributes.
    first : (int, int)
        Subscriptions and ends before those of `table` and `removed`: they were emitted before the run was resumed.

    Attributes
    ----------
    table : SubscriptionTable
        Every subscription that ever takes effect, in the order of `at` and then of the input; `number` counts up
        from 0.
    names : Names
        Their external ids; several numbers may have the same one, if one replaced the other.
    end : int64[n]
        The seq before which each ends; `NEVER` where none is known. Not known of a resumed run: empty.
    follows : int64[n]
        The number that had the same external id before, ended or replaced; -1 where none had.
    removed : Removals
        The same ends, in order of `at`.
    counted : Counted
    backfill : dict of int to ParsedSubscription
        Those that ask for a backfill, by number; of a run they get none.
    """

    def __init__(
        self,
        table: SubscriptionTable,
        names: Names,
        end: Int64,
        follows: Int64,
        removed: Removals,
        counted: Counted,
        kinds: Kinds,
        first: tuple[int, int] = (0, 0),
    ):
        self.kinds = kinds
        self.table = table
        self.names = names
        self.end = end
        self.follows = follows
        self.removed = removed
        self.counted = counted
        self.backfill: dict[int, ParsedSubscription] = {}
        self._first_added, self._first_removed = self._added_sent, self._removed_sent = first

    @classmethod
    def of(
        cls,
        table: SubscriptionTable,
        names: Names,
        end: Int64,
        follows: Int64,
        counts: dict[str, int],
        rejected_by_reason: dict[str, int],
        first_rejected: list[dict[str, Any]],
        kinds: Kinds,
    ) -> "SubscriptionChanges":
        """All of them, of which none was emitted. Parameters as attributes, the figures as of `Counted`."""
        ends = np.flatnonzero(end < NEVER)
        ends = ends[np.argsort(end[ends], kind="stable")]
        of_each = np.bincount(table.kind, minlength=len(kinds)).tolist()
        by_kind = dict(zip(kinds.names, of_each, strict=True))
        counted = Counted(counts, rejected_by_reason, first_rejected, by_kind)
        removed = Removals(table.number[ends], table.kind[ends], end[ends])
        return cls(table, names, end, follows, removed, counted, kinds)

    def __len__(self) -> int:
        return self._first_added + len(self.table)

    @property
    def counts(self) -> dict[str, int]:
        """See `Counted`."""
        return self.counted.counts

    @property
    def rejected_by_reason(self) -> dict[str, int]:
        """See `Counted`."""
        return self.counted.rejected_by_reason

    @property
    def first_rejected(self) -> list[dict[str, Any]]:
        """See `Counted`."""
        return self.counted.first_rejected

    @property
    def sizes(self) -> tuple[int, int]:
        """How many subscriptions and ends there are."""
        return len(self), self._first_removed + self.removed.number.shape[0]

    @property
    def first(self) -> tuple[int, int]:
        """How many of them, from the first on, this does not have, since they were emitted before."""
        return self._first_added, self._first_removed

    @property
    def emitted(self) -> tuple[int, int]:
        """Number of subscriptions and of ends emitted so far."""
        return self._added_sent, self._removed_sent

    def changes_through(self, last_seq: int, batch: int = 0) -> ChangeList:
        """Take the changes up to `last_seq` that were not emitted yet, as the change list of batch `batch`.

        O(changes). A subscription that begins and ends within them is in both lists.
        """
        added = _next_rows(self.table.at, self._added_sent - self._first_added, last_seq)
        removed = _next_rows(self.removed.at, self._removed_sent - self._first_removed, last_seq)
        if added.start == added.stop and removed.start == removed.stop:
            return unchanged(batch)
        self._added_sent, self._removed_sent = self._first_added + added.stop, self._first_removed + removed.stop
        return ChangeList(
            batch,
            self.table if added == slice(0, len(self.table)) else self.table.take(np.arange(added.start, added.stop)),
            self.names.cut(added.start, added.stop),
            _cut(self.removed, removed),
            self.follows[added],
        )

    def resume_after(self, added: int, removed: int) -> None:
        """Set the numbers of changes that were emitted before; at least those of `first`."""
        self._added_sent, self._removed_sent = added, removed

    def report(self) -> dict[str, Any]:
        """All counts, JSON-ready."""
        added, removed = self.sizes
        return {
            **self.counts,
            "rejected_by_reason": self.rejected_by_reason,
            "first_rejected": self.first_rejected,
            "by_kind": self.counted.by_kind,
            "not_reached": {"added": added - self._added_sent, "removed": removed - self._removed_sent},
        }

    def behind(self, added: int, removed: int) -> "SubscriptionChanges":
        """The changes after the first `added` additions and `removed` removals. O(rows that remain); O(1) if all do."""
        if (added, removed) == self.first:
            return self
        rows = slice(added - self._first_added, len(self.table))
        table = self.table.take(np.arange(rows.start, rows.stop))
        ends = _cut(self.removed, slice(removed - self._first_removed, None))
        names = self.names.cut(rows.start, rows.stop)
        return SubscriptionChanges(
            table, names, self.end[:0], self.follows[rows], ends, self.counted, self.kinds, (added, removed)
        )

    def to_arrays(self, **facts: Any) -> dict[str, np.ndarray]:
        """As named arrays, with JSON values beside the figures."""
        about = {"first": self.first, "counted": self.counted._asdict(), **facts}
        columns = {
            **self.table._asdict(), "follows": self.follows, "name_offsets": self.names.offsets,
            "name_data": self.names.data,
        }  # fmt: skip
        arrays = {f"{_ADDED}{name}": values for name, values in columns.items()}
        arrays |= {f"{_REMOVED}{name}": values for name, values in self.removed._asdict().items()}
        return arrays | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], kinds: Kinds) -> "SubscriptionChanges":
        """What `to_arrays` gave, emitted up to its first; nothing is copied."""
        added, removed = (_part(arrays, prefix) for prefix in (_ADDED, _REMOVED))
        names, follows = Names(added.pop("name_offsets"), added.pop("name_data")), added.pop("follows")
        about = facts_of(arrays)
        first: Any = tuple(about["first"])
        nothing = np.zeros(0, np.int64)
        counted = Counted(**about["counted"])
        return cls(SubscriptionTable(**added), names, nothing, follows, Removals(**removed), counted, kinds, first)


def facts_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The JSON values that `SubscriptionChanges.to_arrays` was given, among others; empty where it was not called."""
    return json.loads(arrays["about"].tobytes()) if "about" in arrays else {}


def _cut(removed: Removals, rows: slice) -> Removals:
    return Removals(removed.number[rows], removed.kind[rows], removed.at[rows])


def _part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def _next_rows(at: Int64 | Sequence[int], first: int, last_seq: int) -> slice:
    """Rows from `first` on that take effect up to a seq; `at` is ascending."""
    return slice(first, max(first, int(np.searchsorted(at, last_seq, "right"))))
