"""From an engine to updates: boolean subscriptions that come and go inside a batch, exact at every seq.

An engine matches a batch against one set of subscriptions. Whoever is added inside the batch must not see the messages
before, whoever is removed must not see those after. So everybody who lives at any seq of the batch takes part, and the
hits of the few that changed are filtered by seq. `bolts.query` drives this class; the engine behind it comes from
`matching.registry`.
"""

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from matching.boolean.engine import BooleanEngine, MatchSet
from matching.errors import EngineError
from matching.model import BOOLEAN, MATCH, Float64, Int32, Int64, MessageBatch, Removals, SubscriptionTable, UpdateBatch
from matching.slots import SlotMap, as_input, find_slot
from matching.window import Boundary

_NEVER_ENDS = 2**62


class BooleanStream:
    """The boolean subscriptions of one query task over the stream.

    Parameters
    ----------
    engine : BooleanEngine    taken over: change it through this class only

    Attributes
    ----------
    scanned, verified, matched : int    work done so far, as in `MatchSet`; not part of the state
    """

    def __init__(self, engine: BooleanEngine):
        self.engine = engine
        self.scanned = self.verified = self.matched = 0

    def __len__(self) -> int:
        return len(self.engine)

    def process(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        added: SubscriptionTable,
        removed: Removals,
        owned: Callable[[Float64, MessageBatch, Int32], NDArray[np.bool_]] | None = None,
    ) -> UpdateBatch:
        """Match one batch with the changes that take effect inside it.

        Parameters
        ----------
        boundary : Boundary             span of the batch; messages lie inside it
        messages : MessageBatch         ascending seq, gaps allowed
        added : SubscriptionTable       sees messages with seq >= `at`; rows of other kinds are passed over
        removed : Removals              sees messages with seq < `at`; may name one added in this batch
        owned : callable, optional      which pairs are told here, where several tasks may find the same one: given
                                        the region of each pair (float64[m, 4]), the messages and each pair's row;
                                        not asked for batches of points

        Returns
        -------
        UpdateBatch    one `match` a pair, ascending seq

        Raises
        ------
        EngineError
            If a number is added that is here or removed that is not, or a message lies outside the boundary; nothing
            is changed then.
        """
        if len(messages) and not boundary.first_seq <= messages.seq[0] <= messages.seq[-1] <= boundary.last_seq:
            raise EngineError(
                f"batch {boundary.number}: messages {messages.seq[0]}..{messages.seq[-1]} do not lie inside "
                f"{boundary.first_seq}..{boundary.last_seq}; send each message with the boundary of its batch"
            )
        if np.any(added.kind != BOOLEAN):
            added = added.of_kind(BOOLEAN)
        of_kind = removed.kind == BOOLEAN
        gone, gone_at = removed.number[of_kind], removed.at[of_kind]
        changed = self._check(added, gone)
        self.engine.insert(added)
        hits = self.engine.match(messages)
        number, seq = hits.number, messages.seq[hits.row]
        if owned is not None and number.shape[0]:
            rows = self.engine.rows
            mine = owned(rows.columns.region[rows.slots.find(number)], messages, hits.row)
            number, seq = number[mine], seq[mine]
        if len(changed):
            since = np.full(len(changed), -_NEVER_ENDS, np.int64)
            until = np.full(len(changed), _NEVER_ENDS, np.int64)
            since[changed.find(added.number)] = added.at
            until[changed.find(gone)] = gone_at
            number, seq = _alive(changed, since, until, number, seq)
        self.engine.remove(gone)
        self._count(hits, number.shape[0])
        count = number.shape[0]
        return UpdateBatch(seq, number, seq, np.full(count, MATCH, np.int8), np.full(count, np.nan))

    def snapshot(self) -> dict[str, np.ndarray]:
        """State as named arrays (views: save or copy them before the next batch)."""
        return self.engine.arrays()

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over what `snapshot` of a stream with the same kind of engine and space returned."""
        self.engine = type(self.engine).from_arrays(self.engine.space, arrays)

    def _check(self, added: SubscriptionTable, gone: Int64) -> SlotMap:
        """The numbers that change, each once; raises before anything is touched."""
        changed = SlotMap()
        if len(added):
            here = self.engine.holds(added.number)
            if np.any(here):
                raise EngineError(
                    f"subscription {added.number[here][0]} cannot be added: it is here; numbers are never used twice"
                )
            changed.insert(added.number)
        if gone.shape[0]:
            new = changed.find(gone) >= 0
            lost = gone[~new & ~self.engine.holds(gone)]
            if lost.shape[0] or np.unique(gone).shape[0] < gone.shape[0]:
                which = (
                    f"{lost[0]} cannot be removed: it is not here" if lost.shape[0] else "is removed twice in one batch"
                )
                raise EngineError(f"subscription {which}; remove each one once, after it was added")
            changed.insert(gone[~new])
        return changed

    def _count(self, hits: MatchSet, matched: int) -> None:
        self.scanned += hits.scanned
        self.verified += hits.verified
        self.matched += matched


def _alive(changed: SlotMap, since: Int64, until: Int64, number: Int64, seq: Int64) -> tuple[Int64, Int64]:
    """The hits whose subscription lives at their seq."""
    # A map of a few hundred numbers stays in the first cache, so this costs each hit about a nanosecond.
    keep = np.empty(number.shape[0], np.bool_)
    if _mark_alive(
        changed.index, changed.number, since, until, as_input(number, np.int64), as_input(seq, np.int64), keep
    ):
        return number, seq
    return number[keep], seq[keep]


@njit(cache=True, nogil=True)
def _mark_alive(index, column, since, until, number, seq, keep):
    """keep[i]: whether the subscription of hit i lives at its seq; returns whether all do."""
    all_alive = True
    for i in range(number.shape[0]):
        slot = find_slot(index, column, number[i])
        keep[i] = slot < 0 or since[slot] <= seq[i] < until[slot]
        all_alive = all_alive and keep[i]
    return all_alive
