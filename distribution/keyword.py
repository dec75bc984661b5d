"""Routers `keyword` and `prefix`: every term has a query task, by hash, and messages go to the tasks of their terms.

A subscription of a kind with replicas has a replica at the task of each of its terms (`keyword`), or of each term of
its prefix: a message without any of these cannot reach its threshold (`prefix`). Its home, by hash of its number, keeps
the result. The router sends a message to the tasks of those of its terms under which a subscription is registered. Only
the replica at the task of a pair's first common term indexes that pair (`matching.topk.replicas`), so it is found once
(DSkype's third and fourth scheme; spec 3.1, 3.3 and 3.4). A subscription that requires all its keywords is assigned to
the task of the rarest, which every match contains; it has no replicas and is called *placed* here, the others *scored*.

Prefixes grow when thresholds fall. So a refill relaxes first: the distribution tasks register all terms, and send the
rows to the tasks of all terms ahead of their next batch. Made by `distribution.routers`.
"""

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit, njit_no_refcount
from distribution import splitting
from distribution.router import Router, RoutingTable, check_tasks, spread
from matching.errors import ConfigError, EngineError
from matching.kind_table import Traits
from matching.kinds import KINDS
from matching.model import (
    ANY_KEYWORD,
    KEYWORDS_BY_KIND,
    Float64,
    Int32,
    Int64,
    MessageBatch,
    Removals,
    SubscriptionTable,
    empty,
)
from matching.storage.point_subscriptions import PointSubscriptions
from matching.storage.prefixes import prefix_lengths, task_of_term
from matching.storage.slots import SlotMap, resized


class KeywordRouter(Router):
    """Subscriptions at the tasks of their terms, or of their prefix terms."""

    name = "keyword"
    uses_thresholds = True
    replicates = True
    exchanges_hits = True
    prefix_only = False

    def __init__(self, tasks: int, traits: Traits = KINDS.traits):
        check_tasks(tasks)
        super().__init__(tasks, traits)

    def assigned_to(self, table: SubscriptionTable, task: int) -> NDArray[np.bool_]:
        """bool[n]: rows that require all keywords by the task of the rarest, rows with replicas by those of all terms.

        Raises
        ------
        ConfigError
            For a subscription of any other kind.
        EngineError
            For a subscription that matches by any keyword without replicas: several tasks would report its matches.
        """
        traits = self.traits
        strict = traits.all_keywords[table.kind]
        if np.any(~strict & ~traits.replicated[table.kind]):
            which = table.number[~strict & ~traits.replicated[table.kind]][0]
            raise ConfigError(
                f"router {self.name}: subscription {which} is of a kind that cannot be placed by its keywords; "
                "use --router hashing or location"
            )
        loose = strict & (table.match == ANY_KEYWORD)
        if np.any(loose):
            raise EngineError(
                f"router {self.name}: subscription {table.number[loose][0]} matches by any of its keywords, and this "
                "router places it by one; use --router hashing or location"
            )
        mine = task_of_term(table.terms, self.tasks) == task
        offsets = table.term_offsets
        firsts = np.append(mine, False)[offsets[:-1]]
        anywhere = np.add.reduceat(np.append(mine, False), offsets[:-1]) > 0 if len(table) else firsts
        some = np.diff(offsets) > 0
        # a subscription without terms matches nothing; task 0 gets it
        return np.where(some, np.where(strict, firsts, anywhere), task == 0)

    def homes_of(self, table: SubscriptionTable) -> tuple[Int64, NDArray[np.bool_]]:
        """Home by hash of the number (int64[n]), which need not have a replica; and tasks with replicas."""
        return spread(table.number, self.tasks), super().homes_of(table)[1]

    def table(self) -> RoutingTable:
        return KeywordTable(self)


class PrefixRouter(KeywordRouter):
    """Replicas only at the tasks of the terms that a message needs to reach the threshold."""

    name = "prefix"
    prefix_only = True


class KeywordTable(RoutingTable):
    """Number of subscriptions registered under each term, and what is needed to unregister them.

    `_length` (int32[slots]): registered terms of each scored subscription, a prefix of its terms; `_registered`
    (int32[terms]); `_task` (int64[terms]): the query task of each term; `_placed_term` (int32[slots of `_placed`]).
    """

    sends_all = False

    def __init__(self, router: KeywordRouter):
        super().__init__(router)
        self.subscriptions = PointSubscriptions()
        self._length = np.zeros(0, np.int32)
        self._version = np.zeros(0, np.int64)
        self._registered = np.zeros(0, np.int32)
        self._task = np.zeros(0, np.int64)
        self._placed = SlotMap()
        self._placed_term = np.zeros(0, np.int32)
        self._placed_gone = np.zeros(0, np.int64)

    def change(self, added: SubscriptionTable, removed: Removals) -> None:
        self._forget_placed()
        super().change(added, removed)
        strict = self.router.traits.all_keywords
        scored, placed = (added.take(np.flatnonzero(strict[added.kind] == which)) for which in (False, True))
        self._ensure_terms(int(np.max(added.terms, initial=-1)) + 1)
        if len(scored):
            slots = self.subscriptions.insert(scored)
            if self._length.shape[0] < self.subscriptions.capacity:
                self._length = resized(self._length, self.subscriptions.capacity)
                self._version = resized(self._version, self.subscriptions.capacity)
            self._length[slots], self._version[slots] = 0, 0
            self._register(slots, self.subscriptions.columns.term_count[slots])
        if len(placed):
            slots = self._placed.insert(placed.number)
            if self._placed_term.shape[0] < self._placed.capacity:
                self._placed_term = resized(self._placed_term, self._placed.capacity)
            some = np.diff(placed.term_offsets) > 0
            first = np.append(placed.terms, np.int32(-1))[placed.term_offsets[:-1]]
            self._placed_term[slots] = np.where(some, first, -1)
            self._count_placed(slots, 1)
        gone = removed.number[~strict[removed.kind]]
        if gone.size:
            slots = self.subscriptions.find(gone)
            self._register(slots, np.zeros(slots.size, np.int32))
            self.subscriptions.remove(slots)
        # placed subscriptions match until the seq of their removal: messages of this batch must still reach their task
        self._placed_gone = removed.number[strict[removed.kind]]

    def relax(self, number: Int64, version: Int64) -> None:
        slots = self.subscriptions.find(number)
        known = slots >= 0  # the other subscriptions were removed meanwhile
        slots, version = slots[known], version[known]
        self.subscriptions.columns.threshold[slots] = -np.inf
        self._version[slots] = version
        self._register(slots, self.subscriptions.columns.term_count[slots])

    def raise_thresholds(self, number: Int64, version: Int64, threshold: Float64) -> None:
        if not self.router.prefix_only:
            return
        slots = self.subscriptions.find(number)
        valid = slots >= 0
        valid[valid] = version[valid] >= self._version[slots[valid]]
        slots = slots[valid]
        self.subscriptions.columns.threshold[slots] = threshold[valid]
        self._register(slots, np.minimum(self._length[slots], prefix_lengths(self.subscriptions.columns, slots)))

    def registrations(self, number: Int64, version: Int64) -> tuple[Int64, Int64, SubscriptionTable]:
        """Number and version of the subscriptions that still exist; their rows, too, if replicas may lack some."""
        slots = self.subscriptions.find(number)
        known = slots >= 0
        rows = self.subscriptions.rows(slots[known]) if self.router.prefix_only else empty(SubscriptionTable)
        return number[known], version[known], rows

    def route(self, messages: MessageBatch) -> list[Int64]:
        wanted = np.zeros((self.router.tasks, len(messages)), np.bool_)
        _mark_wanted(messages.term_offsets, messages.terms, self._registered, self._task, wanted)
        return [np.flatnonzero(row) for row in wanted]

    def _ensure_terms(self, needed: int) -> None:
        have = self._registered.shape[0]
        if have < needed:
            self._registered = resized(self._registered, max(needed, have + have // 4))
            self._task = task_of_term(np.arange(self._registered.shape[0], dtype=np.int32), self.router.tasks)

    def _register(self, slots: Int32, length: Int32) -> None:
        """Register slots under their first `length` (int32[n]) terms."""
        _register(self.subscriptions.columns, slots, self._length, length, self._registered)

    def _forget_placed(self) -> None:
        """Unregister subscriptions placed by one keyword that were removed in the previous batch."""
        if self._placed_gone.size:
            self._count_placed(self._placed.find(self._placed_gone), -1)
            self._placed.remove(self._placed_gone)

    def _count_placed(self, slots: Int32, step: int) -> None:
        terms = self._placed_term[slots]
        np.add.at(self._registered, terms[terms >= 0], step)


def warmup() -> None:
    """Compile, or load from the cache, the kernels of this module and of `matching.storage.prefixes`."""
    splitting.warmup()
    one, number = np.ones(1, np.int32), np.zeros(1, np.int64)
    half, offsets = np.full(1, 0.5), np.array([0, 1])
    kind, match = np.full(1, np.argmax(KINDS.traits.replicated), np.int8), np.full(1, KEYWORDS_BY_KIND, np.int8)
    weight, no_removals = np.ones(1, np.float32), Removals(number[:0], kind[:0], number[:0])
    point = SubscriptionTable(
        number, kind, number, half, half, np.full((1, 4), np.nan), match, one, half, offsets, one, weight
    )  # fmt: skip
    table = PrefixRouter(1).table()
    table.change(point, no_removals)
    table.raise_thresholds(number, number, half)
    table.relax(number, number)
    table.route(MessageBatch(number, half, half, half, half, half, half, number, offsets, one, weight))


@njit_no_refcount
def _register(c, slots, now, then, registered):
    """Change the number of registered terms of each slot from now[slot] to then[i], and the counts by term."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        # A prefix grew or shrank: one of the two loops is empty.
        start = c.term_start[slot]
        for at in range(start + now[slot], start + then[i]):
            registered[c.terms[at]] += 1
        for at in range(start + then[i], start + now[slot]):
            registered[c.terms[at]] -= 1
        now[slot] = then[i]


@njit(cache=True, nogil=True)
def _mark_wanted(term_offsets, terms, registered, task, wanted):
    """Set wanted[task, row] for every task with a subscription registered under a term of the message."""
    for row in range(wanted.shape[1]):
        for at in range(term_offsets[row], term_offsets[row + 1]):
            # A term sends the message to its task only while a subscription is registered under it (spec 3.3); a term
            # outside the table has no subscription.
            term = terms[at]
            if term < registered.shape[0] and registered[term] > 0:
                wanted[task[term], row] = True
