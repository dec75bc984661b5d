"""Router `influence`: subscriptions by place, and messages only where a result may change; nothing is broadcast.

Parts of the world and their balancing by measured work are those of `distribution.location`, and so is all that
concerns regions and scores. Subscriptions of kinds that are `ranged` stand under keys of (cell, term) while a message
there may still enter their result (`matching.influence`). Query tasks report the keys that come and go, and a message
goes to the tasks that have the key of one of its terms in its cell.

Exact, since influence only shrinks: what a query task has reported late sends too much. A new subscription counts under
its terms everywhere, from the change list that brings it until its task's report covers that list. A task has all parts
up to batch b when it reports about b, so every batch that is routed after a report comes after b. Read on in
`matching.influence`.
"""

from collections import deque
from typing import Any

import numpy as np

from distribution.location import LocationRouter, LocationTable
from distribution.location import warmup as warm_up_location
from distribution.masks import Masks
from distribution.parts import cell_of
from matching.influence import NO_INFLUENCE, InfluenceKeys, InfluencePatch, Radii
from matching.kinds import KINDS
from matching.model import Int32, Int64, MessageBatch, Removals, SubscriptionTable, take_rows
from matching.operator import NO_THRESHOLDS, Thresholds
from matching.space import EARTH, Space
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.squares import key_of
from matching.warmup import subscriptions


class InfluenceRouter(LocationRouter):
    """Parts of the world by load, messages by influence; parameters as of `LocationRouter`."""

    name = "influence"
    uses_influence = True

    def table(self) -> "InfluenceTable":
        return InfluenceTable(self)


class InfluenceTable(LocationTable):
    """The keys of the query tasks by kind, beside the bounds of kinds that are not `ranged`."""

    def __init__(self, router: InfluenceRouter):
        super().__init__(router)
        self._boards = {int(kind): InfluenceBoard(router) for kind in np.flatnonzero(router.traits.ranged)}
        self._lists = -1
        self._keys_received = 0

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

    def _mark(self, messages: MessageBatch, cells: Int64, wanted: np.ndarray) -> None:
        super()._mark(messages, cells, wanted)
        for board in self._boards.values():
            board.mark(messages, wanted)


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

    def mark(self, messages: MessageBatch, wanted: np.ndarray) -> None:
        """Set wanted[task, row] for messages in whose cell the task has a key of one of their terms."""
        self._masks.mark(messages, wanted)

    def _task_of(self, table: SubscriptionTable) -> Int64:
        return self._router.owner[cell_of(table.x, table.y)]


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
    held, keys = PointSubscriptions(space.max_distance), InfluenceKeys(space)
    slots = held.insert(rows)
    keys.follow(held, slots)
    held.columns.threshold[slots] = -1e-3
    keys.follow(held, slots)
    keys.withdraw(held, slots)
    keys.patch()


def _changed(table: SubscriptionTable, **columns: np.ndarray) -> SubscriptionTable:
    return SubscriptionTable(**(table._asdict() | columns))
