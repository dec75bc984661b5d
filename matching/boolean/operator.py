"""The operator of `boolean`: subscriptions change inside a batch, exact at every seq.

An engine matches a batch against one set of subscriptions: those before the batch and those added in it. The operator
then drops hits of a subscription at seqs before its addition or from its removal on. The task that finds a match emits
it at once; there are no homes and no window queries.

In a stream of objects a result is the set of living objects that match. No result is stored: a message comes with the
version that it replaces, both are matched, and their difference is the update. A subscription with conditions on the
version before has no result: it gets a `match` where the message satisfies them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from compiling.njit import njit
from matching.boolean.engine import BooleanEngine
from matching.errors import EngineError
from matching.influence import KeyRows, enter_row, find_row
from matching.model import (
    CHANGE,
    ENTER,
    LEAVE,
    MATCH,
    Float64,
    Int32,
    Int64,
    MessageBatch,
    SubscriptionTable,
    UpdateBatch,
    take_rows,
    widened,
)
from matching.operator import (
    Bools,
    Matched,
    OperatorContext,
    OperatorInput,
    OperatorOutput,
    OperatorSnapshot,
    Regional,
    Work,
)
from matching.space import Space
from matching.storage.slots import SlotMap, as_input, find_slot
from matching.storage.squares import home_of_key
from matching.storage.state import State
from matching.version_conditions import happened
from matching.window import Boundary

_NEVER_ENDS = 2**62


class _Found(NamedTuple):
    """Matches of messages.

    slot, number, row : int32[m], int64[m], int32[m]    subscription, and row of the message
    mine : bool[m]    whether this task reports the pair; None: all of them
    work : Work
    """

    slot: Int32
    number: Int64
    row: Int32
    mine: Bools | None
    work: Work

    def reported(self, among: Bools | None = None) -> tuple[Int64, Int32]:
        """Number and row of the pairs that this task reports, perhaps only `among` some (bool[m])."""
        kept = among if self.mine is None else self.mine if among is None else self.mine & among
        return (self.number, self.row) if kept is None else (self.number[kept], self.row[kept])


class BooleanOperator(Regional):
    """The boolean subscriptions of one query task over the stream; see `matching.operator.KindOperator`.

    Parameters
    ----------
    engine : callable    makes a `BooleanEngine`
    context : OperatorContext
    """

    serves_objects = True

    def __init__(self, engine: Callable[[Space], BooleanEngine], context: OperatorContext):
        self.engine = engine(context.space)
        self._objects = context.objects
        self._closed = -1
        self._matched_seq = np.zeros(0, np.int64)  # of each match of the last batch, ascending
        self._missed_seq = np.zeros(0, np.int64)  # likewise, of withheld messages

    def __len__(self) -> int:
        return len(self.engine)

    @property
    def watermark(self) -> int:
        return self._closed

    @property
    def met(self) -> Int64:
        seq = self._matched_seq
        return seq if seq.shape[0] < 2 else np.concatenate([seq[:-1][seq[1:] != seq[:-1]], seq[-1:]])

    @property
    def missed(self) -> Int64:
        return self._missed_seq

    def contains(self, numbers: Int64) -> Bools:
        return self.engine.contains(numbers)

    def match(self, batch_input: OperatorInput) -> Matched:
        """Match a batch with the changes that take effect inside it: one `match` for each pair, by ascending seq.

        In a stream of objects: what each subscription asks for, by ascending `as_of`, which is the seq of the row that
        causes it.

        Raises
        ------
        EngineError
            If the batch is not the next one, if an added number is in the engine already, if a number is removed twice,
            or if a message lies outside the boundary. The operator is unchanged then.
        """
        boundary, messages, added = batch_input.boundary, batch_input.messages, batch_input.added
        if boundary.number != self._closed + 1:
            raise EngineError(f"boolean: batch {boundary.number} cannot follow batch {self._closed}")
        if len(messages) and not boundary.first_seq <= messages.seq[0] <= messages.seq[-1] <= boundary.last_seq:
            raise EngineError(
                f"batch {boundary.number}: messages {messages.seq[0]}..{messages.seq[-1]} do not lie inside "
                f"{boundary.first_seq}..{boundary.last_seq}; send each message with the boundary of its batch"
            )
        gone, gone_at = batch_input.removed.number, batch_input.removed.at
        if gone.shape[0]:
            here = self.engine.contains(gone) | np.isin(gone, added.number)
            gone, gone_at = gone[here], gone_at[here]
        # most small batches have no changes, and a NumPy call on empty arrays still costs a microsecond
        changed = self._check(added, gone) if len(added) or gone.shape[0] else None
        self._closed = boundary.number
        since = until = gone_at
        if changed is not None:
            self.engine.insert(added)
            since = np.full(len(changed), -_NEVER_ENDS, np.int64)
            until = np.full(len(changed), _NEVER_ENDS, np.int64)
            since[changed.find(added.number)] = added.at
            until[changed.find(gone)] = gone_at

        def found(some: MessageBatch, at: Int64) -> _Found:
            """The matches of messages, each taken for one at seq `at` (int64[n])."""
            hits = self.engine.match(some)
            slot, number, row, mine = hits.slot, self.engine.numbers(hits.slot), hits.row, None
            if batch_input.owned is not None and number.shape[0]:
                mine = batch_input.owned(self.engine.subscriptions.columns.region[slot], some, row)
            if changed is not None:
                kept = _alive(changed, since, until, number, at[row])
                if not kept.all():
                    slot, number, row = slot[kept], number[kept], row[kept]
                    mine = None if mine is None else mine[kept]
            return _Found(slot, number, row, mine, Work(hits.scanned, hits.verified))

        if self._objects:
            updates, work = self._differences(messages, batch_input.ended, found)
            self._missed_seq = updates.seq[:0]
        else:
            matched, withheld = found(messages, messages.seq), batch_input.withheld
            (number, row), work = matched.reported(), matched.work
            seq, count = messages.seq[row], number.shape[0]
            updates = UpdateBatch(seq, number, seq, np.full(count, MATCH, np.int8), np.full(count, np.nan))
            self._missed_seq = seq[:0]
            if len(withheld):
                self._missed_seq = withheld.seq[found(withheld, withheld.seq).reported()[1]]
        if gone.shape[0]:
            self.engine.remove(self.engine.find(gone))
        self._matched_seq = updates.as_of
        return Matched(OperatorOutput(updates, work=work._replace(matched=len(updates))))

    def close(self, mine: OperatorOutput, found: list[Any]) -> OperatorOutput:
        return mine

    def pass_over(self, boundary: Boundary) -> None:
        self._closed = boundary.number
        self._matched_seq = self._matched_seq[:0]

    def claims(self, numbers: Int64) -> tuple[Float64, Int32]:
        slots = self.engine.find(numbers)
        slots = slots[slots >= 0]
        terms = self.engine.rarest(slots)
        return self.engine.subscriptions.columns.region[slots[terms >= 0]], terms[terms >= 0]

    def arrays(self) -> dict[str, np.ndarray]:
        return self.engine.arrays()

    def snapshot(self, stored: int | None = None) -> OperatorSnapshot:
        version, engine = self.engine.changes, self.engine
        if version != stored:
            engine = engine.snapshot()
        return OperatorSnapshot(version, lambda: State.of(engine.table()), lambda: State({}, {}, {}))

    def restore(self, boundary: Boundary, state: State, home: Int64, assigned: Bools) -> None:
        self.engine.insert(state.take(np.flatnonzero(assigned)).table)
        self._closed = boundary.number

    def _differences(
        self, messages: MessageBatch, ended: MessageBatch, found: Callable[[MessageBatch, Int64], _Found]
    ) -> tuple[UpdateBatch, Work]:
        """The updates of pairs of versions, by ascending seq of the row that causes them. O(hits log hits)."""
        new = found(messages, messages.seq)
        # the row that replaces each ended version; a version ends once
        replaces = np.flatnonzero(messages.previous_seq >= 0)
        replaces = replaces[np.argsort(messages.previous_seq[replaces])]
        if not np.array_equal(messages.previous_seq[replaces], ended.seq):
            raise EngineError(
                f"boolean: {len(ended)} versions end, and {replaces.shape[0]} rows replace one; send both"
            )
        old = found(ended, messages.seq[replaces])
        # a pair of subscription and row as one number
        width = max(len(messages), 1)
        now, before = new.number * width + new.row, old.number * width + replaces[old.row]
        stays, goes = _met(now, before)
        change = np.where(stays, CHANGE, ENTER).astype(np.int8)
        asked, old_asked = (self.engine.filters.asked(each.slot) for each in (new, old))
        if old_asked is not None:
            goes &= old_asked >> LEAVE & 1 == 1
        if asked is None:
            wanted = ~stays
        else:
            compares = np.flatnonzero(asked >> MATCH & 1)
            change[compares] = MATCH
            wanted = asked >> change & 1 == 1
            wanted[compares] = self._happened(new.slot[compares], new.row[compares], messages, ended)
        number, row = new.reported(wanted)
        left, ends = old.reported(goes)
        of_new = change[wanted if new.mine is None else new.mine & wanted]
        cause = np.concatenate([replaces[ends], row])
        updates = UpdateBatch(
            messages.seq[cause],
            np.concatenate([left, number]),
            np.concatenate([ended.seq[ends], messages.seq[row]]),
            np.concatenate([np.full(left.shape[0], LEAVE, np.int8), of_new]),
            np.full(cause.shape[0], np.nan),
        )
        return take_rows(updates, np.argsort(cause, kind="stable")), new.work.plus(old.work)

    def _happened(self, slots: Int32, row: Int32, messages: MessageBatch, ended: MessageBatch) -> Bools:
        """bool[n]: which messages satisfy the conditions of slots on the version that they replace."""
        found = np.zeros(slots.shape[0], np.bool_)
        replaces = np.flatnonzero(messages.previous_seq[row] >= 0)
        if replaces.shape[0]:
            # versions from before an attribute was declared have no column of it
            width = max(messages.keys.shape[1], ended.keys.shape[1])
            before, now = (widened(each.keys, len(each), width) for each in (ended, messages))
            at = np.searchsorted(ended.seq, messages.previous_seq[row[replaces]])
            found[replaces] = happened(self.engine.filters.view, slots[replaces], before[at], now[row[replaces]])
        return found

    def _check(self, added: SubscriptionTable, gone: Int64) -> SlotMap:
        """Map of the numbers that are added or removed, each once. Raises EngineError before any change."""
        changed = SlotMap()
        if len(added):
            here = self.engine.contains(added.number)
            if np.any(here):
                raise EngineError(
                    f"subscription {added.number[here][0]} cannot be added: it is here; numbers are never used twice"
                )
            changed.insert(added.number)
        if gone.shape[0]:
            if np.unique(gone).shape[0] < gone.shape[0]:
                raise EngineError("subscription is removed twice in one batch; remove each one once")
            changed.insert(gone[changed.find(gone) < 0])
        return changed


def _met(now: Int64, before: Int64) -> tuple[Bools, Bools]:
    """Which numbers of `now` are in `before` (bool[n]), and which of `before` are not in `now`; each is there once.

    O(n): sorting them, as `np.isin` does, took a quarter of a batch.
    """
    stays, goes, table = np.zeros(now.shape[0], np.bool_), np.ones(before.shape[0], np.bool_), KeyRows(1)
    table.reserve(before.shape[0])
    _meet(table.rows, table.entered, now, before, stays, goes)
    return stays, goes


@njit(cache=True, nogil=True)
def _meet(rows, entered, now, before, stays, goes):
    """Write what `_met` returns."""
    for i in range(before.shape[0]):
        rows[enter_row(rows, entered, before[i]), 1] = i
    for i in range(now.shape[0]):
        at = find_row(rows, now[i], home_of_key(now[i], rows.shape[0]))
        if at >= 0:
            stays[i] = True
            goes[rows[at, 1]] = False


def _alive(changed: SlotMap, since: Int64, until: Int64, number: Int64, seq: Int64) -> Bools:
    """bool[n]: the hits whose subscription is registered at the hit's seq; `since`, `until` by `changed`."""
    # A map of a few hundred numbers stays in the L1 cache: about a nanosecond a hit.
    keep = np.empty(number.shape[0], np.bool_)
    _mark_alive(changed.index, changed.number, since, until, as_input(number, np.int64), as_input(seq, np.int64), keep)
    return keep


@njit(cache=True, nogil=True)
def _mark_alive(index, column, since, until, number, seq, keep):
    """Set keep[i] (bool[m]) to whether the subscription of hit i is registered at seq[i]."""
    for i in range(number.shape[0]):
        slot = find_slot(index, column, number[i])
        # Unchanged subscriptions are not in the map. One added at a seq matches that message, one removed does not.
        keep[i] = slot < 0 or since[slot] <= seq[i] < until[slot]
