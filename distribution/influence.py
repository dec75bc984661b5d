"""Router `influence`: subscriptions by place, and messages only where a result may change; nothing is broadcast.

All that concerns regions and scores is as in `distribution.location`. Subscriptions of kinds that are `ranged` are
assigned by parts of the world that are cut finer (`distribution.runs`), balanced by measured work likewise. They stand
under keys of (cell, term) while a message there may still enter their result (`matching.influence`). Query tasks report
the keys that come and go, and a message goes to the tasks that have the key of one of its terms in its cell.

Exact, since influence only shrinks: what a query task has reported late sends too much. A new subscription counts under
its terms everywhere, from the change list that brings it until its task's report covers that list. A task has all parts
up to batch b when it reports about b, so every batch that is routed after a report comes after b. Made by
`distribution.routers`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distribution.location import MOST_SEEN, LocationRouter, LocationTable
from distribution.location import warmup as warm_up_location
from distribution.masks import Masks
from distribution.parts import Loads
from distribution.runs import Runs
from matching.influence import NO_INFLUENCE, InfluenceKeys, InfluencePatch, Radii
from matching.kinds import KINDS
from matching.model import Float64, Int32, Int64, MessageBatch, Removals, SubscriptionTable, take_rows
from matching.operator import NO_THRESHOLDS, Thresholds
from matching.sample_rows import subscriptions
from matching.space import EARTH, Space
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.squares import key_of

#: Prefix of its keys in a snapshot.
_PREFIX = "influence:"
#: The router counts every eighth message of a batch by run: a large enough sample, for a tenth less time of routing.
_COUNTED = 8


class InfluenceRouter(LocationRouter):
    """Parts of the world by load, messages by influence; parameters as of `LocationRouter`."""

    name = "influence"
    uses_influence = True

    def _cut(self, load_x: Float64, load_y: Float64) -> None:
        super()._cut(load_x, load_y)
        self.runs = Runs.of(self.tasks, load_x, load_y)

    def restored(self, states: Sequence[Mapping[str, np.ndarray]], work: Sequence[int] = ()) -> "InfluenceRouter":
        other: Any = copy(super().restored(states, work))
        mine = [each for each in states if _PREFIX + "seen" in each]
        if mine:
            start, *loads = (np.array(mine[0][_PREFIX + name]) for name in ("start", *Loads._fields))
            other.runs = Runs(self.tasks, start, Loads(*loads))
            if len(work) == self.tasks:
                other.runs = other.runs.reweighed(np.sum([each[_PREFIX + "seen"] for each in mine], axis=0), work)
        return other

    def assigned_to(self, table: SubscriptionTable, task: int) -> NDArray[np.bool_]:
        ranged = self.traits.ranged[table.kind]
        if ranged.all():
            return self.runs.owner_of(table.x, table.y) == task
        assigned = super().assigned_to(table, task)
        assigned[ranged] = self.runs.owner_of(table.x[ranged], table.y[ranged]) == task
        return assigned

    def table(self) -> "InfluenceTable":
        return InfluenceTable(self)


class InfluenceTable(LocationTable):
    """The keys of the query tasks by kind, beside the bounds of kinds that are not `ranged`."""

    def __init__(self, router: InfluenceRouter):
        super().__init__(router)
        self._boards = {int(kind): InfluenceBoard(router) for kind in np.flatnonzero(router.traits.ranged)}
        self._lists = -1
        self._keys_received = 0
        self._runs_seen = np.zeros(router.runs.start.shape[0], np.int64)

    def state(self) -> dict[str, np.ndarray]:
        runs = self.router.runs
        columns = runs.loads._asdict() | {"start": runs.start, "seen": self._runs_seen.copy()}
        return super().state() | {_PREFIX + name: column for name, column in columns.items()}

    def restore(self, number: int, table: SubscriptionTable, raised: Thresholds, radii: Radii = NO_INFLUENCE) -> None:
        known = np.isin(table.number, radii.number)
        self._lists = number - 1
        super().restore(number, table.take(np.flatnonzero(~known)), raised)
        self._lists = number
        mine = table.take(np.flatnonzero(known))
        order = np.argsort(radii.number)
        radius = radii.radius[order][np.searchsorted(radii.number[order], mine.number)]
        for kind, board in self._boards.items():
            rows = np.flatnonzero(mine.kind == kind)
            board.enter(mine.take(rows), radius[rows])

    def change(self, added: SubscriptionTable, removed: Removals) -> None:
        self._lists += 1
        for kind, board in self._boards.items():
            board.add(self._lists, added.take(np.flatnonzero(added.kind == kind)))
        ranged = self.router.traits.ranged
        others = np.flatnonzero(~ranged[removed.kind])
        removed = take_rows(removed, others)
        super().change(added.take(np.flatnonzero(~ranged[added.kind])), removed)

    def apply_influence(self, kind: int, task: int, through: int, patch: InfluencePatch) -> None:
        self._keys_received += patch.size
        self._boards[kind].apply(task, through, patch)

    def describe(self) -> dict[str, Any]:
        keys = {"received": self._keys_received, "bytes": sum(board.nbytes for board in self._boards.values())}
        return super().describe() | {"influence_keys": keys}

    def _mark(self, messages: MessageBatch, cells: Int64, bits: Int64) -> None:
        super()._mark(messages, cells, bits)
        runs, (x, y) = self.router.runs, (messages.x[::_COUNTED], messages.y[::_COUNTED])
        self._runs_seen += np.bincount(runs.run_of(x, y), minlength=runs.start.shape[0])
        if self._runs_seen.sum() > MOST_SEEN:
            self._runs_seen //= 2
        for board in self._boards.values():
            board.mark(messages, bits)


class InfluenceBoard:
    """The keys of all query tasks for one kind, and new subscriptions by term."""

    def __init__(self, router: InfluenceRouter):
        self._router = router
        self._masks = Masks(router.space, router.tasks)
        self._recent: list[deque[tuple[int, Int32]]] = [deque() for _ in range(router.tasks)]
        self._through = np.full(router.tasks, -1, np.int64)

    @property
    def nbytes(self) -> int:
        """Memory of the keys."""
        return self._masks.nbytes

    def enter(self, table: SubscriptionTable, radius: np.ndarray) -> None:
        """Enter the keys that query tasks have after a restore. O(n)."""
        self._masks.enter(table, radius, self._task_of(table))

    def add(self, number: int, table: SubscriptionTable) -> None:
        """Add the new subscriptions of a change list."""
        if not len(table):
            return
        self._masks.ensure_terms(table.terms)
        task = np.repeat(self._task_of(table), np.diff(table.term_offsets))
        terms = table.terms[table.term_offsets[0] : table.term_offsets[-1]]
        present = np.bincount(task, minlength=self._router.tasks) > 0
        # a task may have reported about this list before it came here
        for each in np.flatnonzero(present & (self._through < number)).tolist():
            own = np.unique(terms[task == each])
            self._recent[each].append((number, own))
            self._masks.set_new(each, own)

    def apply(self, task: int, through: int, patch: InfluencePatch) -> None:
        """Apply a query task's report about everything up to a change list."""
        self._masks.set(task, patch.came)
        self._masks.clear(task, patch.gone)
        self._through[task] = through
        recent, covered = self._recent[task], []
        while recent and recent[0][0] <= through:
            covered.append(recent.popleft()[1])
        if covered:
            self._masks.clear_new(task, np.concatenate(covered))
            for _, terms in recent:
                self._masks.set_new(task, terms)

    def mark(self, messages: MessageBatch, bits: Int64) -> None:
        """Set the bits of tasks for messages in whose cell they have a key of one of their terms."""
        self._masks.mark(messages, bits)

    def _task_of(self, table: SubscriptionTable) -> Int64:
        return self._router.runs.owner_of(table.x, table.y)


def warmup() -> None:
    """Compile, or load from the cache, the kernels of this module, of `distribution.location` and of the keys."""
    warm_up_location()
    none, one = np.zeros(0, np.int64), np.ones(1, np.int64)
    point, vector = np.full(1, 0.5), np.array([[1.0, 0.0, 0.0]])
    seq, words, weights = np.zeros(1, np.int64), np.ones(1, np.int32), np.ones(1, np.float32)
    message = MessageBatch(seq, point, point, point, point, point, point, seq, np.array([0, 1]), words, weights)
    for kind in (kind for kind in KINDS if kind.ranged):
        added = subscriptions(kind, np.arange(10), 0)
        for distance in ("plane", "sphere"):
            space = Space(*EARTH, distance=distance)
            rows = _changed(added, vector=np.repeat(vector, 10, axis=0)) if space.on_sphere else added
            table = InfluenceRouter(2, space, point, point).table()
            table.restore(0, rows, NO_THRESHOLDS, Radii(rows.number, np.full(10, 1e-3)))
            table.change(_changed(rows, number=10 + rows.number), Removals(none, none.astype(np.int8), none))
            table.apply_influence(kind.code, 0, 1, InfluencePatch(key_of(1, 0, 1) * one, none))
            table.route(message)
            _count_keys(rows, space)


def _count_keys(rows: SubscriptionTable, space: Space) -> None:
    """What a query task does with keys."""
    table, keys = PointSubscriptions(space.max_distance), InfluenceKeys(space)
    slots = table.insert(rows)
    keys.follow(table, slots)
    table.columns.threshold[slots] = -1e-3
    keys.follow(table, slots)
    keys.withdraw(table, slots)
    keys.patch()


def _changed(table: SubscriptionTable, **columns: np.ndarray) -> SubscriptionTable:
    return SubscriptionTable(**(table._asdict() | columns))
