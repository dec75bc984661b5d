"""Routers `kop`, `sop`, `dkm-sks`, `ps2stream`: subscriptions by what they are expected to cost, messages to all.

Each subscription has one task, where every pair meets exactly once, so these are exact for every kind; costs only shape
the loads (spec 5). Replication ratio 1, communication cost the number of query tasks, as with `hashing`.

A placement depends on earlier ones, so it cannot be computed from a table: the subscription spout decides once, by its
`Placer`, and `ChangeList.owner` carries the decision (`spouts.placing`). A restore reads it from the spout's snapshot.
If that was for another number of query tasks or another router, every task redistributes the subscriptions itself, by
cost, each to the least loaded: sums of costs are exact, so all tasks agree on any machine, which comparing places would
not guarantee. The algorithms are in `distribution.placement`.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from distribution.placement.assign import dealt_out
from distribution.placement.costs import PlacementCosts, SampleCosts
from distribution.placement.demand import Demand, demand_of
from distribution.placement.dkm_sks import DkmSks
from distribution.placement.evening import evened
from distribution.placement.kop import KeywordOriented
from distribution.placement.placement import Ledger, Placed, Placement
from distribution.placement.ps2stream import Ps2Stream
from distribution.placement.sop import SpaceOriented
from distribution.router import Router, RoutingTable, check_tasks
from matching.errors import CheckpointError, EngineError
from matching.kind_table import Traits
from matching.kinds import KINDS
from matching.model import ChangeList, Int64, MessageBatch, Names, Removals, SubscriptionTable, concatenate
from matching.sample_rows import subscriptions
from matching.space import EARTH, Space

#: Prefix of placement keys in the spout's snapshot.
_PREFIX = "placement:"
_BOOK = "book:"


class PlacedRouter(Router):
    """Each subscription at one task, by one of the algorithms; messages to all.

    Parameters
    ----------
    tasks : int
    space : Space
    costs : PlacementCosts    message statistics
    """

    algorithm: ClassVar[type[Placement]]
    rebalances = True
    #: Measured work of the query tasks, from `restored`.
    work: Sequence[int] = ()

    def __init__(self, tasks: int, space: Space, costs: PlacementCosts, traits: Traits = KINDS.traits):
        check_tasks(tasks)
        super().__init__(tasks, traits)
        self.space = space
        self.costs = costs

    def restored(self, states: Sequence[Mapping[str, np.ndarray]], work: Sequence[int] = ()) -> "PlacedRouter":
        other = copy(self)
        other.work = tuple(work)
        return other

    def placer(self) -> "Placer":
        """A new placer without subscriptions."""
        return Placer(self)

    def assigned_to(self, table: SubscriptionTable, task: int) -> NDArray[np.bool_]:
        """bool[n]: rows that `task` would get if the table had all subscriptions, placed together."""
        placer = self.placer()
        placer.place_all(table)
        return placer.ledger.owners(table.number) == task

    def assigned_in(self, changes: ChangeList, task: int) -> NDArray[np.bool_]:
        """bool[n]: added rows whose owner is `task`.

        Raises
        ------
        EngineError
            If the change list has no owners.
        """
        if changes.owner is None or changes.owner.shape != changes.added.number.shape:
            raise EngineError(
                f"router {self.name}: change list {changes.batch} has no owners for its subscriptions; wrap the spout "
                "of the changes in spouts.placing.PlacingSpout, as topology.wiring.wire does"
            )
        return changes.owner == task

    def assigned_on_resume(
        self, table: SubscriptionTable, task: int, state: Mapping[str, np.ndarray]
    ) -> NDArray[np.bool_]:
        placer = self.placer()
        placer.restore(state, table)
        return placer.ledger.owners(table.number) == task

    def table(self) -> RoutingTable:
        return RoutingTable(self)

    def describe(self) -> dict[str, Any]:
        return super().describe() | self.costs.describe()


class KopRouter(PlacedRouter):
    """Router `kop`: by keywords, weighed by the shares of messages that have them."""

    name = "kop"
    algorithm = KeywordOriented


class SopRouter(PlacedRouter):
    """Router `sop`: by place, in subsets of subscriptions."""

    name = "sop"
    algorithm = SpaceOriented


class DkmSksRouter(PlacedRouter):
    """Router `dkm-sks`: by place and keywords; spreads subscriptions that lie together."""

    name = "dkm-sks"
    algorithm = DkmSks


class Ps2StreamRouter(PlacedRouter):
    """Router `ps2stream`: by pieces of the world, each cut by place or by text."""

    name = "ps2stream"
    algorithm = Ps2Stream


class Placer:
    """Assigns subscriptions to tasks and records the assignment.

    Attributes
    ----------
    placement : Placement
    ledger : Ledger
    """

    def __init__(self, router: PlacedRouter):
        self.router = router
        self.placement = router.algorithm(router.costs, router.tasks)
        self.ledger = Ledger(router.tasks)

    def place_all(self, table: SubscriptionTable) -> Int64:
        """Place subscriptions together, replacing all earlier ones; the task of each (int64[n])."""
        self.placement = self.router.algorithm(self.router.costs, self.router.tasks)
        self.ledger = Ledger(self.router.tasks)
        return self._add(table, self.placement.together(self.demand(table)))

    def follow(self, changes: ChangeList) -> ChangeList:
        """The next change list, with the owner of each subscription that it adds.

        Those added before the first message are placed together, all others one by one. Removals free their load before
        the additions of the same change list.
        """
        added, gone = changes.added, changes.removed.number
        here = self.ledger.contains(gone)
        self.ledger.remove(gone[here])
        # change lists go by `at`, so those of the beginning come first
        first = int(np.searchsorted(added.at, 0, "right")) if not len(self.ledger) else 0
        parts = [np.zeros(0, np.int64)]
        if first:
            parts.append(self.place_all(added.take(np.arange(first))))
        if first < len(added):
            later = added.take(np.arange(first, len(added)))
            parts.append(self._add(later, self.placement.later(self.demand(later), self.ledger.load)))
        self.ledger.remove(gone[~here])
        return changes._replace(owner=np.concatenate(parts))

    def arrays(self) -> dict[str, np.ndarray]:
        """State for the snapshot: router, number of tasks, ledger, and the state of the placement."""
        named = self.ledger.arrays() | {
            "router": np.frombuffer(self.router.name.encode(), np.uint8),
            "tasks": np.array(self.router.tasks),
        }
        named |= {_BOOK + name: column for name, column in self.placement.arrays().items()}
        return {_PREFIX + name: column for name, column in named.items()}

    def restore(self, state: Mapping[str, np.ndarray], table: SubscriptionTable) -> None:
        """Resume from a snapshot; redistribute the subscriptions of another router or number of tasks.

        Costs are those of the snapshot, or by keywords only if it has none of this router.

        Parameters
        ----------
        state : mapping              with the keys of `arrays`, maybe among others
        table : SubscriptionTable    all subscriptions

        Raises
        ------
        CheckpointError
            If the snapshot has other subscriptions.
        """
        saved = {name.removeprefix(_PREFIX): column for name, column in state.items() if name.startswith(_PREFIX)}
        router = self.router
        table = table.take(np.argsort(table.number))
        known = bool(saved) and bytes(saved["router"]).decode() == router.name
        if known and not np.array_equal(saved["number"], table.number):
            raise CheckpointError(
                f"router {router.name}: places were saved of {saved['number'].shape[0]:,} subscriptions, which are not "
                f"the {len(table):,} that query tasks have saved; use an older checkpoint"
            )
        if known:
            self.placement.recall({name.removeprefix(_BOOK): saved[name] for name in saved if name.startswith(_BOOK)})
            cost = saved["cost"]
        else:
            demand = demand_of(table, router.traits, router.space, router.costs, balls=False)
            cost = KeywordOriented(router.costs, router.tasks).price(demand)
        if known and int(saved["tasks"]) == router.tasks:
            owner = saved["owner"].astype(np.int64)
            if len(router.work) == router.tasks:
                owner, cost = evened(Placed(owner, cost), table.number, router.work, router.costs)
        else:
            owner = dealt_out(cost, router.tasks)
            self.placement.deal_anew()
        self.ledger = Ledger(router.tasks)
        self.ledger.add(table.number, Placed(owner, cost))

    def describe(self) -> dict[str, Any]:
        """Figures for the report of a run, JSON-ready."""
        return {
            **self.router.describe(),
            **self.placement.describe(),
            "placed": len(self.ledger),
            "load_of_each_query_task": self.ledger.load.tolist(),
        }

    def demand(self, table: SubscriptionTable) -> Demand:
        router = self.router
        return demand_of(table, router.traits, router.space, router.costs, self.placement.by_place)

    def _add(self, table: SubscriptionTable, placed: Placed) -> Int64:
        self.ledger.add(table.number, placed)
        return placed.owner


def warmup() -> None:
    """Compile, or load from the cache, the kernels of `distribution.placement`."""
    space, place, seq = Space(*EARTH), np.linspace(0.2, 0.4, 4), np.arange(4)
    flat = np.tile(np.arange(2, dtype=np.int32), 4)
    sample = MessageBatch(
        seq, place, place, place, place, place, place, seq, np.arange(5) * 2, flat, flat.astype(np.float32)
    )
    none = np.zeros(0, np.int64)
    for router in (KopRouter, SopRouter, DkmSksRouter, Ps2StreamRouter):
        placer = router(2, space, SampleCosts(space, sample)).placer()
        for batch, at in enumerate((0, 1)):
            each = [subscriptions(kind, 10 * kind.code + 100 * at + np.arange(10), at) for kind in KINDS]
            removed = Removals(none, none.astype(np.int8), none)
            placer.follow(ChangeList(batch, concatenate(each), Names.of([]), removed))
