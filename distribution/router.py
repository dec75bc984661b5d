"""The interface of routers: which query tasks a subscription is assigned to, and which a message is sent to.

A router is small and immutable; every distribution and query task has a copy, so that all agree without communication.
It knows only the traits of kinds, e.g. whether one has a region. State that depends on the subscriptions is in the
`RoutingTable` of each distribution task. Routers may send too much, never too little; where a pair could meet at
several query tasks, `rows_for` and `owned_pairs` pick the one that matches it. Where a placement depends on earlier
ones, change lists carry it (`holds`, `holds_again`). Base of all routers.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distribution.signatures.patches import SignaturePatch
from distribution.signatures.signature import SignatureBoard, SignatureSpec
from distribution.signatures.spatial import Domain, whole_domain
from matching.errors import ConfigError
from matching.influence import NO_INFLUENCE, InfluencePatch, Radii
from matching.kind_table import Traits
from matching.kinds import KINDS
from matching.model import ChangeList, Float64, Int32, Int64, MessageBatch, Removals, SubscriptionTable
from matching.operator import Thresholds

#: Key of a routing table's counts in a snapshot.
_COUNTED = "signatures"


class RoutingTable:
    """State of one distribution task about the subscriptions; this base class has none and sends to all.

    Attributes
    ----------
    sends_all : bool
        Whether every message goes to every query task, so that one payload serves all.
    needs_ended : bool
        Whether there has ever been a subscription of a kind that needs ended messages.
    """

    sends_all = True
    needs_ended = False

    #: The signatures of the query tasks, where the router has any.
    _board: SignatureBoard | None = None

    def __init__(self, router: "Router"):
        self.router: Any = router

    def restore(self, number: int, table: SubscriptionTable, raised: Thresholds, radii: Radii = NO_INFLUENCE) -> None:
        """Resume after batch `number` with these subscriptions, thresholds and radii of influence; before any change.

        `radii` are those of all subscriptions of kinds that are `ranged`.
        """
        if self._board is not None:
            self._board.lists = number
        none = np.zeros(0, np.int64)
        self.change(table, Removals(none, none.astype(np.int8), none))
        self.raise_thresholds(*raised)

    def change(self, added: SubscriptionTable, removed: Removals) -> None:
        """Apply the changes of a batch, before the batch is routed."""
        if len(added):
            self.needs_ended |= bool(np.any(self.router.traits.needs_ended[added.kind]))

    def relax(self, number: Int64, version: Int64) -> None:
        """Treat these subscriptions as having no threshold, at once."""

    def raise_thresholds(self, number: Int64, version: Int64, threshold: Float64) -> None:
        """Raise thresholds; those of an older version than the known one are ignored."""

    def registrations(self, number: Int64, version: Int64) -> tuple[Int64, Int64, SubscriptionTable]:
        """Registrations for the replicas of relaxed subscriptions; only where the router `replicates`."""
        raise NotImplementedError

    def state(self) -> dict[str, np.ndarray]:
        """State that `Router.restored` reads, under keys unique to the router; the rest is rebuilt."""
        return {}

    def counts(self) -> dict[str, np.ndarray]:
        """Counts for the snapshot."""
        return {} if self._board is None else {_COUNTED: self._board.counts()}

    def count_from(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Resume counts from the snapshots of all distribution tasks."""
        saved = [each[_COUNTED] for each in states if _COUNTED in each]
        if self._board is not None and saved:
            self._board.count_from(np.sum(saved, axis=0))

    def apply(self, patch: SignaturePatch) -> None:
        """Apply a query task's signature patch; only where the router has `signatures`."""
        raise NotImplementedError

    def apply_influence(self, kind: int, task: int, through: int, patch: InfluencePatch) -> None:
        """Apply a query task's influence patch of a kind, as of batch `through`; only where `uses_influence`."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Figures for the report of a run, JSON-ready."""
        return {}

    def route(self, messages: MessageBatch) -> list[Int64]:
        """Rows to send to each query task, ascending. Only where not `sends_all`."""
        raise NotImplementedError

    @property
    def loses(self) -> bool:
        """Whether `route` may filter out messages that match, as some signatures do."""
        return self._board is not None and self._board.loses

    def withheld(self, messages: MessageBatch, sent: list[Int64]) -> list[Int64]:
        """Rows that are not sent to each query task and may match there, to be counted; only where `loses`."""
        assert self._board is not None, "only where signatures lose messages"
        return self._board.withheld(messages, sent)

    def route_ended(self, ended: MessageBatch) -> list[Int64]:
        """Rows of ended messages to send to each query task, for the kinds that need them; as `route`."""
        raise NotImplementedError


class Router(ABC):
    """Assigns subscriptions and messages to `tasks` query tasks.

    Parameters
    ----------
    tasks : int
    traits : Traits    of the kinds
    """

    #: As written after `--router`.
    name: str
    #: Whether routing uses thresholds: then a refill must relax the routing tables first.
    uses_thresholds = False
    #: Whether query tasks report where messages may matter to kinds that are `ranged` (`matching.influence`).
    uses_influence = False
    #: Whether kinds with replicas are matched by them, at the tasks of their keywords.
    replicates = False
    #: Whether a subscription may be assigned to other tasks than its home, which then send their hits to it.
    exchanges_hits = False
    #: Whether it can rebalance loads by measured work (`restored`).
    rebalances = False
    #: Specification of the query tasks' signatures; None without any.
    signatures: SignatureSpec | None = None

    def __init__(self, tasks: int, traits: Traits = KINDS.traits):
        self.tasks = tasks
        self.traits = traits

    def restored(self, states: Sequence[Mapping[str, np.ndarray]], work: Sequence[int] = ()) -> "Router":
        """The router after a restore; the same on all tasks.

        Parameters
        ----------
        states : sequence of mappings
            Snapshot of each distribution task, with its routing table's `state`.
        work : sequence of int
            Recent work of each query task, in any unit, to rebalance by; empty to keep the placement.
        """
        return self

    @abstractmethod
    def assigned_to(self, table: SubscriptionTable, task: int) -> NDArray[np.bool_]:
        """bool[n]: which subscriptions are assigned to query task `task`. O(n)."""

    def assigned_in(self, changes: ChangeList, task: int) -> NDArray[np.bool_]:
        """bool[n]: which of the subscriptions that a change list adds are assigned to `task`. O(n)."""
        return self.assigned_to(changes.added, task)

    def assigned_on_resume(
        self, table: SubscriptionTable, task: int, state: Mapping[str, np.ndarray]
    ) -> NDArray[np.bool_]:
        """bool[n]: which of all subscriptions are assigned to `task` after a restore.

        `state` is the snapshot of the subscription spout.
        """
        return self.assigned_to(table, task)

    def exchanges(self, kind: int) -> bool:
        """Whether tasks may find hits of a kind for each other: then each batch of it closes when all have spoken."""
        return self.exchanges_hits and bool(self.traits.standing[kind])

    def rows_for(self, kind: int, messages: MessageBatch, task: int) -> Int64 | None:
        """Messages sent to `task` that it must match against its subscriptions of a kind; None for all of them.

        Depends on the message alone, so that its end goes to the same task.
        """
        if not self.traits.region[kind]:
            return None
        return (self.box_rows if self.traits.box[kind] else self.centre_rows)(messages, task)

    def box_rows(self, messages: MessageBatch, task: int) -> Int64 | None:
        """`rows_for` kinds that a message meets with its own rectangle: several tasks may have the same one."""
        return None

    def centre_rows(self, messages: MessageBatch, task: int) -> Int64 | None:
        """`rows_for` kinds that a message meets with its centre: each message is matched by one task."""
        return None

    def shares_pairs(self, messages: MessageBatch) -> bool:
        """Whether several tasks may find the same pair by its rectangles: then `owned_pairs` selects one."""
        return False

    def owned_pairs(self, region: Float64, messages: MessageBatch, row: Int32, task: int) -> NDArray[np.bool_]:
        """bool[m]: which of the pairs found by rectangles `task` must report.

        `region` (float64[m, 4]) belongs to the subscription of each pair, `row` (int32[m]) is its message.
        """
        return np.ones(row.shape[0], np.bool_)

    def homes_of(self, table: SubscriptionTable) -> tuple[Int64, NDArray[np.bool_]]:
        """Home of each subscription (int64[n]), and the tasks it is assigned to (bool[n, tasks]).

        The home is one of these tasks, by hash. O(n * tasks).
        """
        assigned = np.stack([self.assigned_to(table, task) for task in range(self.tasks)], axis=1)
        chosen = spread(table.number, assigned.sum(axis=1)) + 1
        return np.argmax(np.cumsum(assigned, axis=1) == chosen[:, None], axis=1), assigned

    def domain_of(self, task: int) -> Domain:
        """bool[d, d]: the cells of the unit square (row by row from the south) whose messages `task` may be sent."""
        return whole_domain()

    @abstractmethod
    def table(self) -> RoutingTable:
        """A new routing table for a distribution task."""

    def describe(self) -> dict[str, Any]:
        """Figures for the report of a run, JSON-ready."""
        return {"router": self.name, "query_tasks": self.tasks}


def board_of(router: Router) -> SignatureBoard | None:
    """A new board for the signatures of a router's query tasks; None without signatures."""
    if router.signatures is None:
        return None
    return SignatureBoard(router.signatures, [router.domain_of(task) for task in range(router.tasks)])


def spread(number: Int64, tasks: int | Int64) -> Int64:
    """Task of each number, by a multiplicative hash that is the same on every machine. O(n)."""
    mixed = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.asarray(tasks, np.uint64)).astype(np.int64)


def check_tasks(tasks: int) -> None:
    """Raises ConfigError for less than one query task."""
    if tasks < 1:
        raise ConfigError(f"a router needs at least one query bolt, not {tasks}")
