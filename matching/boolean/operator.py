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
    join_messages,
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

    slot, row : int32[m], int32[m]    subscription, and row of the message, ascending
    mine : bool[m]    whether this task reports the pair; None: all of them
    work : Work
    """

    slot: Int32
    row: Int32
    mine: Bools | None
    work: Work

    def reported(self, among: Bools | None = None) -> tuple[Int32, Int32]:
        """Slot and row of the pairs that this task reports, perhaps only `among` some (bool[m])."""
        kept = among if self.mine is None else self.mine if among is None else self.mine & among
        return (self.slot, self.row) if kept is None else (self.slot[kept], self.row[kept])

    def of(self, row: Int64, among: Bools) -> "_Found":
        """Those of some rows (bool[n]), which get other numbers (int64[n])."""
        kept = among[self.row]
        mine = None if self.mine is None else self.mine[kept]
        return _Found(self.slot[kept], row[self.row[kept]].astype(np.int32), mine, self.work)

    def first(self, rows: int) -> Int64:
        """int64[rows + 1]: where the matches of each of so many rows begin."""
        return np.searchsorted(self.row, np.arange(rows + 1, dtype=np.int32))


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
            slot, row, mine = hits.slot, hits.row, None
            if batch_input.owned is not None and slot.shape[0]:
                mine = batch_input.owned(self.engine.subscriptions.columns.region[slot], some, row)
            if changed is not None:
                kept = _alive(changed, since, until, self.engine.numbers(slot), at[row])
                if not kept.all():
                    slot, row, mine = slot[kept], row[kept], None if mine is None else mine[kept]
            return _Found(slot, row, mine, Work(hits.scanned, hits.verified))

        if self._objects:
            updates, work = self._differences(messages, batch_input.ended, found)
            self._missed_seq = updates.seq[:0]
        else:
            matched, withheld = found(messages, messages.seq), batch_input.withheld
            (slot, row), work = matched.reported(), matched.work
            seq, number, count = messages.seq[row], self.engine.numbers(slot), slot.shape[0]
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
        # the row that replaces each ended version; a version ends once
        replaces = np.flatnonzero(messages.previous_seq >= 0)
        replaces = replaces[np.argsort(messages.previous_seq[replaces])]
        if not np.array_equal(messages.previous_seq[replaces], ended.seq):
            raise EngineError(
                f"boolean: {len(ended)} versions end, and {replaces.shape[0]} rows replace one; send both"
            )
        # each version right behind the row that replaces it: most of what the two meet is read once from memory
        row = np.concatenate([np.arange(len(messages)), replaces])
        order = np.argsort(row, kind="stable")
        row, is_old = row[order], order >= len(messages)
        both = found(join_messages([messages, ended]).take(order), messages.seq[row])
        new, old = both.of(row, ~is_old), both.of(row, is_old)
        stays, goes = _met(new, old, len(messages))
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
        came, row = new.reported(wanted)
        left, ends = old.reported(goes)
        of_new = change[wanted if new.mine is None else new.mine & wanted]
        cause = np.concatenate([ends, row])
        updates = UpdateBatch(
            messages.seq[cause],
            self.engine.numbers(np.concatenate([left, came])),
            np.concatenate([messages.previous_seq[ends], messages.seq[row]]),
            np.concatenate([np.full(left.shape[0], LEAVE, np.int8), of_new]),
            np.full(cause.shape[0], np.nan),
        )
        return take_rows(updates, np.argsort(cause, kind="stable")), both.work

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


def _met(new: _Found, old: _Found, rows: int) -> tuple[Bools, Bools]:
    """Compare the matches of each of so many rows with the matches of the version that the row replaces.

    A row and the version that it replaces have the same row number.

    Returns
    -------
    bool[n], bool[m]
        Which matches of `new` are in `old`, and which of `old` are not in `new`.

    Notes
    -----
    O(n + m). A table for each row, which stays in the L1 cache: one of all pairs of a batch missed it at each.
    """
    stays, goes = np.zeros(new.slot.shape[0], np.bool_), np.ones(old.slot.shape[0], np.bool_)
    if stays.shape[0] and goes.shape[0]:
        first, old_first = new.first(rows), old.first(rows)
        table = np.zeros((1 << (2 * int(np.diff(old_first).max())).bit_length(), 2), np.int32)
        _meet(as_input(new.slot, np.int32), first, as_input(old.slot, np.int32), old_first, table, stays, goes)
    return stays, goes


@njit(cache=True, nogil=True)
def _meet(slot, first, old_slot, old_first, table, stays, goes):
    """Write what `_met` returns; `table` (int32[power of two, 2]) has rows, from 1, and an old match of each."""
    last = table.shape[0] - 1
    for row in range(first.shape[0] - 1):
        if first[row] == first[row + 1]:
            continue
        for old in range(old_first[row], old_first[row + 1]):
            place = home_of_key(np.int64(old_slot[old]), table.shape[0])
            while table[place, 0] == row + 1:
                place = (place + 1) & last
            table[place, 0], table[place, 1] = row + 1, old
        for new in range(first[row], first[row + 1]):
            place = home_of_key(np.int64(slot[new]), table.shape[0])
            while table[place, 0] == row + 1:
                old = table[place, 1]
                if old_slot[old] == slot[new]:
                    stays[new] = True
                    goes[old] = False
                    break
                place = (place + 1) & last


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
