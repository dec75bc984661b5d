"""What a router decides: which query tasks hold a subscription, and which are sent a message.

A router is a small frozen thing that every distribution and query task has a copy of, so that all agree without asking.
Of a kind it knows traits alone: whether it has a region, say. What depends on the subscriptions is kept apart, in the
`RoutingTable` of each distribution task. Routers may send too much, never too little; where a pair could meet at
several query tasks, `rows_for` and `owned_pairs` say which of them answers for it. Where a place depends on who is
there already, all are told of it instead (`holds`, `holds_again`). Read on in `distribution.hashing`,
`distribution.location` and `distribution.placed`.
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
from matching.kind_table import Traits
from matching.kinds import KINDS
from matching.model import ChangeList, Float64, Int32, Int64, MessageBatch, Removals, SubscriptionTable
from matching.operator import Thresholds

#: What routing tables save of their figures has this name.
_COUNTED = "signatures"


class RoutingTable:
    """What one distribution task knows of the subscriptions; this plainest one knows nothing and sends to all.

    Attributes
    ----------
    sends_all : bool
        Whether every message goes to every query task, so that one payload serves all.
    needs_ended : bool
        Whether there has ever been a subscription of a kind that hears of ended messages: until then nobody needs to.
    """

    sends_all = True
    needs_ended = False

    #: The signatures of the query tasks, where the router has any.
    _board: SignatureBoard | None = None

    def __init__(self, router: "Router"):
        self.router: Any = router

    def restore(self, number: int, table: SubscriptionTable, raised: Thresholds) -> None:
        """Go on behind batch `number` with these subscriptions, of which some have thresholds; before any change."""
        if self._board is not None:
            self._board.lists = number
        nobody = np.zeros(0, np.int64)
        self.change(table, Removals(nobody, nobody.astype(np.int8), nobody))
        self.raise_thresholds(*raised)

    def change(self, added: SubscriptionTable, removed: Removals) -> None:
        """Take the changes of a batch, before the batch is routed."""
        self.needs_ended |= bool(np.any(self.router.traits.needs_ended[added.kind]))

    def relax(self, number: Int64, version: Int64) -> None:
        """Treat these subscriptions as having no threshold, at once."""

    def raise_thresholds(self, number: Int64, version: Int64, threshold: Float64) -> None:
        """Learn higher thresholds; those of an older version than the known one are ignored."""

    def registrations(self, number: Int64, version: Int64) -> tuple[Int64, Int64, SubscriptionTable]:
        """What replicas must be told of relaxed subscriptions; only where the router `replicates`."""
        raise NotImplementedError

    def state(self) -> dict[str, np.ndarray]:
        """What `Router.restored` goes by, under names that no other router uses; the rest is made of subscriptions."""
        return {}

    def counts(self) -> dict[str, np.ndarray]:
        """Figures of what is done, to be saved."""
        return {} if self._board is None else {_COUNTED: self._board.counts()}

    def count_from(self, told: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Count on from what all distribution tasks have saved."""
        saved = [each[_COUNTED] for each in told if _COUNTED in each]
        if self._board is not None and saved:
            self._board.count_from(np.sum(saved, axis=0))

    def apply(self, patch: SignaturePatch) -> None:
        """Take in what a query task tells of its subscriptions; only where the router has `signatures`."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Figures of its own, JSON-ready, for the report of a run."""
        return {}

    def route(self, messages: MessageBatch) -> list[Int64]:
        """Rows to send to each query task, ascending. Only where not `sends_all`."""
        raise NotImplementedError

    @property
    def loses(self) -> bool:
        """Whether `route` keeps messages back that somebody waits for, as some signatures do."""
        return self._board is not None and self._board.loses

    def withheld(self, messages: MessageBatch, sent: list[Int64]) -> list[Int64]:
        """Of each query task the rows that it is not sent and may miss, to be counted; only where `loses`."""
        assert self._board is not None, "only where signatures lose messages"
        return self._board.withheld(messages, sent)

    def route_ended(self, ended: MessageBatch) -> list[Int64]:
        """Rows of ended messages to send to each query task, for the kinds that hear of ends; as `route`."""
        raise NotImplementedError


class Router(ABC):
    """Places subscriptions and messages on `tasks` query tasks.

    Parameters
    ----------
    tasks : int
    traits : Traits    of the kinds there are; nothing else is known of them
    """

    #: As written after `--router`.
    name: str
    #: Whether thresholds matter to routing: then a refill must relax the routing tables first.
    uses_thresholds = False
    #: Whether kinds that can be matched by replicas are: at the tasks of their keywords, apart from their home.
    replicates = False
    #: Whether a subscription may be held by several tasks, or by another than its home.
    shares = False
    #: Whether it can deal loads out anew by what was measured of them (`restored`).
    rebalances = False
    #: What signatures of query tasks consist of; None if they send none.
    signatures: SignatureSpec | None = None

    def __init__(self, tasks: int, traits: Traits = KINDS.traits):
        self.tasks = tasks
        self.traits = traits

    def restored(self, told: Sequence[Mapping[str, np.ndarray]], work: Sequence[int] = ()) -> "Router":
        """The router to go on with: all tasks make the same one of what was saved.

        Parameters
        ----------
        told : sequence of mappings
            What each distribution task has saved, its routing table's `state` among it.
        work : sequence of int
            What each query task has worked of late, in any unit, where loads are to be dealt out anew.
        """
        return self

    @abstractmethod
    def held_by(self, table: SubscriptionTable, task: int) -> NDArray[np.bool_]:
        """bool[n]: which subscriptions query task `task` holds. O(n)."""

    def holds(self, changes: ChangeList, task: int) -> NDArray[np.bool_]:
        """bool[n]: which of the subscriptions that a change list adds query task `task` holds. O(n)."""
        return self.held_by(changes.added, task)

    def holds_again(self, table: SubscriptionTable, task: int, told: Mapping[str, np.ndarray]) -> NDArray[np.bool_]:
        """bool[n]: which of all subscriptions there are `task` holds where a run goes on.

        `told` is what the subscription spout has saved.
        """
        return self.held_by(table, task)

    def rows_for(self, kind: int, messages: MessageBatch, task: int) -> Int64 | None:
        """Messages sent to `task` that it must match against its subscriptions of a kind; None for all of them.

        The same rows of the same message whenever it comes, so that its end is matched where it was.
        """
        if not self.traits.region[kind]:
            return None
        return (self.box_rows if self.traits.box[kind] else self.centre_rows)(messages, task)

    def box_rows(self, messages: MessageBatch, task: int) -> Int64 | None:
        """`rows_for` kinds that a message meets with its own rectangle: several tasks may have the same one."""
        return None

    def centre_rows(self, messages: MessageBatch, task: int) -> Int64 | None:
        """`rows_for` kinds that a message meets with its centre: each is matched by one task, and nobody else."""
        return None

    def shares_pairs(self, messages: MessageBatch) -> bool:
        """Whether several tasks may find the same pair, by the rectangles of messages: then ask `owned_pairs`."""
        return False

    def owned_pairs(self, region: Float64, messages: MessageBatch, row: Int32, task: int) -> NDArray[np.bool_]:
        """bool[m]: which of the pairs found by rectangles `task` answers for.

        `region` (float64[m, 4]) belongs to the subscription of each pair, `row` (int32[m]) is its message.
        """
        return np.ones(row.shape[0], np.bool_)

    def homes_of(self, table: SubscriptionTable) -> tuple[Int64, NDArray[np.bool_]]:
        """Task that keeps the result of each subscription (int64[n]), and its holders (bool[n, tasks]).

        The home is one of the holders, by hash. O(n * tasks).
        """
        held = np.stack([self.held_by(table, task) for task in range(self.tasks)], axis=1)
        chosen = spread(table.number, held.sum(axis=1)) + 1
        return np.argmax(np.cumsum(held, axis=1) == chosen[:, None], axis=1), held

    def domain_of(self, task: int) -> Domain:
        """bool[d, d]: the cells of the unit square (row by row from the south) whose messages `task` may be sent."""
        return whole_domain()

    @abstractmethod
    def table(self) -> RoutingTable:
        """A new routing table for a distribution task."""

    def describe(self) -> dict[str, Any]:
        """What it does, JSON-ready, for the report of a run."""
        return {"router": self.name, "query_tasks": self.tasks}


def board_of(router: Router) -> SignatureBoard | None:
    """A new board for the signatures of a router's query tasks, if they send any."""
    if router.signatures is None:
        return None
    return SignatureBoard(router.signatures, [router.domain_of(task) for task in range(router.tasks)])


def spread(number: Int64, tasks: int | Int64) -> Int64:
    """Task of each number, by a multiplicative hash that is the same everywhere. O(n)."""
    mixed = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.asarray(tasks, np.uint64)).astype(np.int64)


def check_tasks(tasks: int) -> None:
    """Refuse a number of query tasks no router can serve."""
    if tasks < 1:
        raise ConfigError(f"a router needs at least one query bolt, not {tasks}")
