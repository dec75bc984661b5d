"""The cell-term index: which regions with keywords a message meets, by postings at (level, cell, rarest keyword).

A message looks, for each of its terms, into one bucket for each level in use, and walks the postings there with one
subtraction each (`matching.storage.cells`). A posting carries the subscription's box on a lattice and its
second keyword, so a subscription is touched only where lattice coordinates are equal or where it has a third keyword.
Where subscriptions have conditions on attributes, a posting carries a mark of the values that they allow
(`matching.storage.cell_marks`), and a value may take the place of the rarest keyword (`matching.storage.cell_keys`).
Hash collisions, marks and rounding cost work and never decide: a posting counts only in the block of its own key and at
its own level, and what the lattice leaves open is compared in degrees.

The plain form of the idea (an open-addressing table over the three-part key, a chain of slots behind each) pays a cache
miss for each key and each candidate; this one keeps a bucket's postings side by side. Read on in
`matching.storage.cell_match`, how a message is matched; `matching.storage.cell_blocks` says how postings change.

The default engine of `boolean` (`matching.boolean.engines.cell_term`) is this index over its subscriptions, and a
`skyline` finds candidates by one over its keywords (`matching.skyline.subscriptions`).
"""

import numpy as np

from matching.attributes import MAX_ATTRIBUTES
from matching.errors import EngineError
from matching.filters import FilterStore
from matching.model import NO_WORDS, Int32, Int64
from matching.space import Space
from matching.storage.cell_blocks import NO_MARKS, Blocks, Postings, append, describe, remove_entry, repack, slot_of
from matching.storage.cell_keys import BY_KEYWORD, MOST_VALUES, NOT_POSTED, KeyCounts, choose_keys, under_values
from matching.storage.cell_marks import NO_LANES, choose_lanes, write_marks
from matching.storage.cell_match import match
from matching.storage.cells import LATTICE_STEPS
from matching.storage.region_messages import Messages
from matching.storage.region_subscriptions import RegionSubscriptions
from matching.storage.slots import SlotMap, as_input, grown

#: Pools are packed anew when this fraction of them is abandoned.
_MOST_ABANDONED = 0.25


class CellTermIndex:
    """An index over rows of regions and keywords; see the module.

    Parameters
    ----------
    space : Space                 world box; decides how the world is cut up, never what matches
    rows : RegionSubscriptions    regions and keywords by slot; owned by the caller
    owner : str                   what errors call it
    filters : FilterStore, optional
        Of the rows; their conditions make postings drop messages early, and their equalities may be keys. The caller
        tests them on what is found all the same.
    """

    def __init__(self, space: Space, rows: RegionSubscriptions, owner: str, filters: FilterStore | None = None):
        self.space, self.subscriptions, self._owner = space, rows, owner
        self._filters = filters or FilterStore()
        self._steps_per_degree = LATTICE_STEPS / max(space.east - space.west, space.north - space.south)
        self._terms = SlotMap()
        self._head = np.zeros((0, 8), np.int32)
        self._finest = np.zeros(0, np.int8)
        self._box = np.zeros(0, np.uint64)
        self._link = np.zeros(0, np.int64)
        self._mark = NO_MARKS
        self._cuts = np.zeros(0, np.int32)
        self._used = np.zeros(4, np.int64)
        self._seen = np.zeros(0, np.uint8)
        self._lanes = NO_LANES
        self._filtered = self._filtered_of_lanes = (
            0  # rows with filters that have come so far, and until lanes were chosen
        )
        self._counts: KeyCounts | None = None
        self._ordinal = np.zeros(0, np.uint8)  # of each slot, as `matching.storage.cell_keys` has it
        self._key_attributes = NO_WORDS

    def _blocks(self) -> Blocks:
        pools = (self._box, self._link, self._mark, self._cuts, self._used)
        return Blocks(self._terms.index, self._terms.number, self._head, self._finest, *pools)

    def _describe(self, slots: Int32) -> Postings:
        """Postings of these slots, each under its keyword or its values; without marks."""
        most = 2 * slots.shape[0]
        term, box, link = np.empty(most, np.int32), np.empty(most, np.uint64), np.empty(most, np.int64)
        frame = (self.space.west, self.space.south, self._steps_per_degree)
        count = describe(as_input(slots, np.int32), self.subscriptions.columns, *frame, term, box, link)
        term, box, link = term[:count], box[:count], link[:count]
        if not self._key_attributes.shape[0]:
            return Postings(term.astype(np.int64), box, link, NO_MARKS)
        most = MOST_VALUES * count
        new = Postings(np.empty(most, np.int64), np.empty(most, np.uint64), np.empty(most, np.int64), NO_MARKS)
        count = under_values(self._filters.view, self._ordinal, term, box, link, new.term, new.box, new.link)
        return Postings(new.term[:count], new.box[:count], new.link[:count], NO_MARKS)

    def insert(self, slots: Int32) -> None:
        """Enter rows that have just been written. Amortised O(n + terms + words of programs)."""
        if self._filters.view.start.shape[0]:
            self._choose(slots)
        self._post(slots)

    def _post(self, slots: Int32) -> None:
        """Add the postings of slots."""
        new = self._describe(slots)
        if self._lanes.attribute.shape[0]:
            new = new._replace(mark=self._marks_of(new.link))
        order = np.argsort(new.term, kind="stable")
        in_order = new.term[order]
        fresh = in_order[np.flatnonzero(np.diff(in_order, prepend=-1))]
        self._terms.insert(fresh[self._terms.find(fresh) < 0])
        self._head = grown(self._head, self._terms.capacity)
        self._finest = grown(self._finest, self._terms.capacity)
        done = 0
        while True:
            done, places, cuts = append(order, new, done, self._blocks())
            if done == order.shape[0]:
                break
            # What is left needs about this much: packing once is cheaper than packing for each term.
            self._repack(max(places, order.shape[0] - done), cuts)
        self._tidy()

    def _marks_of(self, link: Int64) -> Int32:
        """Marks of postings. O(words of their programs)."""
        mark = np.empty(link.shape[0], np.int32)
        write_marks(self._lanes, self._filters.view, link, mark)
        return mark

    def _choose(self, slots: Int32) -> None:
        """Choose what new slots are posted under; and lanes anew, when the rows with filters have doubled."""
        self._ordinal = grown(self._ordinal, self.subscriptions.slots.capacity)
        self._ordinal[slots], programs, equalities = self._keys_of(slots)
        if equalities and self._counts is None:
            self._counts = KeyCounts()
        self._filtered += programs
        if self._filtered >= 2 * self._filtered_of_lanes:
            self._lanes, self._filtered_of_lanes = choose_lanes(self._filters.view), self._filtered
            self._mark = self._marks_of(self._link) if self._lanes.attribute.shape[0] else NO_MARKS

    def _keys_of(self, slots: Int32) -> tuple[np.ndarray, int, int]:
        """What to post slots under, as `choose_keys` says; and how many have a filter, how many an equality."""
        number, count = (NO_WORDS, NO_WORDS) if self._counts is None else (self._counts.number, self._counts.count)
        ordinal, is_key = np.zeros(slots.shape[0], np.uint8), np.zeros(MAX_ATTRIBUTES, np.bool_)
        is_key[self._key_attributes] = True
        columns = self.subscriptions.columns
        found = choose_keys(self._filters.view, columns, as_input(slots, np.int32), number, count, ordinal, is_key)
        self._key_attributes = np.flatnonzero(is_key)
        return ordinal, *found

    def _count(self, messages: Messages) -> None:
        """Count messages while that is needed, and post rows under values that are rarer than their keywords."""
        if self._counts is None or self._counts.complete:
            return
        self._counts.add(messages)
        if not self._counts.complete:
            return
        slots = np.flatnonzero(self._filters.view.start >= 0).astype(np.int32)
        slots = slots[self._ordinal[slots] == BY_KEYWORD]
        ordinal, _, _ = self._keys_of(slots)
        moved = ordinal != BY_KEYWORD
        self._unpost(slots[moved])
        self._ordinal[slots[moved]] = ordinal[moved]
        self._post(slots[moved])
        self._repack(0, 0)

    def withdraw(self, slots: Int32) -> None:
        """Remove rows that are about to be freed. Amortised O(n).

        Raises
        ------
        EngineError
            If a row is missing, which is damage.
        """
        self._unpost(slots)
        self._ordinal[slots[slots < self._ordinal.shape[0]]] = NOT_POSTED

    def _unpost(self, slots: Int32) -> None:
        """Remove the postings of slots. Raises as `withdraw`."""
        gone = self._describe(slots)
        done, unsorted = remove_entry(gone, self._blocks())
        if done < gone.term.shape[0]:
            number = self.subscriptions.slots.number[slot_of(gone.link[done])]
            raise EngineError(
                f"{self._owner}: subscription {number} is not in the block of term {gone.term[done]}; the state is "
                "damaged, restore the last checkpoint"
            )
        if unsorted:
            self._repack(0, 0)
        self._tidy()

    def _tidy(self) -> None:
        used, abandoned, used_cuts, abandoned_cuts = self._used.tolist()
        if abandoned > _MOST_ABANDONED * used or abandoned_cuts > _MOST_ABANDONED * used_cuts:
            self._repack(0, 0)

    def _repack(self, places: int, cuts: int) -> None:
        """Move every block into new pools with this much free, and an eighth for growth."""
        used, abandoned, used_cuts, abandoned_cuts = self._used.tolist()
        wanted = used - abandoned + places
        wanted_cuts = used_cuts - abandoned_cuts + cuts
        wanted, wanted_cuts = wanted + wanted // 8, wanted_cuts + wanted_cuts // 8
        if wanted > 2**31 - 1:
            raise EngineError(f"{self._owner}: {wanted} postings do not fit one index; use more query bolts")
        mark = np.zeros(wanted if self._lanes.attribute.shape[0] else 0, np.int32)
        pools = np.zeros(wanted, np.uint64), np.zeros(wanted, np.int64), mark, np.zeros(wanted_cuts, np.int32)
        repack(self._blocks(), *pools)
        self._box, self._link, self._mark, self._cuts = pools

    def scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        """Match rows from `first_row` on; the `scan` of `matching.index.HitBuffer.fill`."""
        if first_row == 0:
            self._count(messages)
        if (self._key_attributes.shape[0] > 1 or not messages.are_points) and self._seen.shape[
            0
        ] < self.subscriptions.slots.capacity:
            self._seen = np.zeros(self.subscriptions.slots.capacity, np.uint8)
        columns = self.subscriptions.columns
        frame = (self.space.west, self.space.south, self._steps_per_degree)
        conditions = self._lanes, self._key_attributes
        return match(messages, first_row, self._blocks(), columns, *conditions, *frame, self._seen, slots, rows)

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory but the rows. Views, no copies."""
        terms = self._terms.high_water
        columns = {"head": self._head[:terms], "finest": self._finest[:terms], "used": self._used}
        columns |= {name: pool[: self._used[0]] for name, pool in (("box", self._box), ("link", self._link))}
        if self._ordinal.shape[0]:
            columns |= {"ordinal": self._ordinal[: self.subscriptions.slots.high_water]}
            columns |= {"mark": self._mark[: self._used[0]], "first_key": self._lanes.first_key}
        if self._counts is not None:
            columns |= {"counted": self._counts.number, "count": self._counts.count}
        columns |= {"cuts": self._cuts[: self._used[2]]}
        return columns | {f"terms_{name}": value for name, value in self._terms.arrays().items()}

    def allocated_bytes(self) -> int:
        """Memory, capacity for growth included."""
        columns = (self._head, self._finest, self._box, self._link, self._mark, self._cuts, self._seen, self._ordinal)
        return self._terms.allocated_bytes() + sum(column.nbytes for column in columns)
