"""Baseline: an open-addressing table over (rarest keyword, level, cell), with a chain of subscriptions behind each key.

The plainest form of `matching.boolean.engines.cell_term`. A subscription is at the level where its boxes cover at most
two cells a side; a message looks up its cell for each of its terms and each level in use. Every key and every link of a
chain is a cache miss, which the default engine avoids.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_no_refcount
from matching.boolean.engine import BooleanEngine
from matching.model import Int32, Int64
from matching.space import Space
from matching.storage.cells import FINEST, cell_range, fitting_level, lattice
from matching.storage.region_messages import Messages
from matching.storage.region_subscriptions import all_terms_in, region_meets
from matching.storage.slots import SlotMap, as_input, find_slot, grown

_LATTICE_STEPS = 2.0**15
#: Two boxes of at most two by two cells: what a region across the antimeridian covers at most.
_MOST_CELLS = 8
_END = -1


class HashChains(NamedTuple):
    """Kernel view of the table; t keys, p nodes, n slots.

    lookup : int32[2**b], key : int64[t]   open addressing from key to chain (`matching.storage.slots`)
    head : int32[t]       first node of the chain, -1 for an empty one
    slot : int32[p]       the node's subscription
    next : int32[p]       next node of the chain; of a free node the next free one; -1 ends both
    back : int32[p]       previous node of the chain, ~chain for its first
    sibling : int32[p]    next node of the same subscription, -1 after the last
    first : int32[n]      a slot's first node, -1 if it has none
    used : int64[2]       nodes ever used; first free one, -1 if none
    at_level : int64[15]  keys by level
    """

    lookup: Int32
    key: Int64
    head: Int32
    slot: Int32
    next: Int32
    back: Int32
    sibling: Int32
    first: Int32
    used: Int64
    at_level: Int64


class HashedCells(BooleanEngine):
    """Boolean subscriptions by (rarest keyword, level, cell) in one hash table; see the module."""

    name = "hashed_cells"

    def __init__(self, space: Space):
        super().__init__(space)
        self._steps_per_degree = _LATTICE_STEPS / max(space.east - space.west, space.north - space.south)
        self._keys = SlotMap()
        nothing = np.zeros(0, np.int32)
        self._head, self._first = nothing, nothing
        self._nodes = dict.fromkeys(("slot", "next", "back", "sibling"), nothing)
        self._used = np.array([0, _END], np.int64)
        self._at_level = np.zeros(FINEST + 1, np.int64)
        self._seen = np.zeros(0, np.uint8)

    @property
    def _frame(self) -> tuple[float, float, float]:
        return self.space.west, self.space.south, self._steps_per_degree

    def _view(self) -> HashChains:
        keys = (self._keys.index, self._keys.number, self._head)
        return HashChains(*keys, **self._nodes, first=self._first, used=self._used, at_level=self._at_level)

    def _post(self, slots: Int32) -> None:
        slots = as_input(slots, np.int32)
        row, key = _keys_of(slots, self.subscriptions.columns, *self._frame)
        fresh = np.unique(key)
        fresh = fresh[self._keys.find(fresh) < 0]
        self._keys.insert(fresh)
        self._at_level += _count_by_level(fresh)
        self._head = grown(self._head, self._keys.capacity, _END)
        self._first = grown(self._first, self.subscriptions.slots.capacity, _END)
        needed = int(self._used[0]) + key.shape[0]
        self._nodes = {name: grown(column, needed) for name, column in self._nodes.items()}
        _link(slots[row], key, self._view())

    def _unpost(self, slots: Int32) -> None:
        emptied = _unlink(as_input(slots, np.int32), self._view())
        self._keys.remove(emptied)
        self._at_level -= _count_by_level(emptied)

    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        if self._seen.shape[0] < self.subscriptions.slots.capacity:
            self._seen = np.zeros(self.subscriptions.slots.capacity, np.uint8)
        return _match(
            messages, first_row, self._view(), self.subscriptions.columns, *self._frame, self._seen, slots, rows
        )

    def _index_arrays(self) -> dict[str, np.ndarray]:
        nodes = {name: column[: self._used[0]] for name, column in self._nodes.items()}
        columns = {
            "head": self._head[: self._keys.high_water],
            "first": self._first[: self.subscriptions.slots.high_water],
        }
        columns |= {"used": self._used, "at_level": self._at_level}
        return nodes | columns | {f"keys_{name}": value for name, value in self._keys.arrays().items()}

    def _index_bytes(self) -> int:
        columns = (*self._nodes.values(), self._head, self._first, self._seen)
        return self._keys.allocated_bytes() + sum(column.nbytes for column in columns)


def _count_by_level(keys: Int64) -> Int64:
    return np.bincount(keys >> 28 & 15, minlength=FINEST + 1)


@njit(cache=True, nogil=True)
def _key(term, level, column, row):
    """31 bits of term, 4 of level, 14 each of row and column: keys are equal only if all four are."""
    return np.int64(term) << 32 | np.int64(level) << 28 | np.int64(row) << 14 | np.int64(column)


@njit(cache=True, nogil=True)
def _keys_of(slots, columns, world_west, world_south, steps_per_degree):
    """Rows of `slots` and the keys each stands under, every key once a slot."""
    row_of = np.empty(_MOST_CELLS * slots.shape[0], np.int32)
    key_of = np.empty(_MOST_CELLS * slots.shape[0], np.int64)
    boxes = np.empty((2, 4), np.int64)
    count = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        if columns.start[slot] < 0:
            continue  # it can never match
        # Keywords ascend by id and ids by frequency: the first is the rarest.
        term = columns.terms[columns.start[slot]]
        term = ~term if term < 0 else term
        west, south, east, north = columns.region[slot]
        parts = 2 if west > east else 1
        level = FINEST
        for part_ in range(parts):
            from_lon = -180.0 if part_ == 1 else west
            to_lon = 180.0 if parts == 2 and part_ == 0 else east
            boxes[part_, 0] = lattice(from_lon, world_west, steps_per_degree)
            boxes[part_, 1] = lattice(south, world_south, steps_per_degree)
            boxes[part_, 2] = lattice(to_lon, world_west, steps_per_degree)
            boxes[part_, 3] = lattice(north, world_south, steps_per_degree)
            # One level for both boxes: then a point lies in one cell of the subscription at most.
            level = fitting_level(boxes[part_, 0], boxes[part_, 1], boxes[part_, 2], boxes[part_, 3], level)
        # Only now is the level known that fits both boxes.
        own = count
        for part_ in range(parts):
            left, right, bottom, top = cell_range(
                boxes[part_, 0], boxes[part_, 1], boxes[part_, 2], boxes[part_, 3], level
            )
            for row in range(bottom, top + 1):
                for column in range(left, right + 1):
                    key = _key(term, level, column, row)
                    # The two boxes may share a cell where cells are large, and a slot stands in a chain once.
                    known = False
                    for j in range(own, count):
                        known = known or key_of[j] == key
                    if not known:
                        row_of[count] = i
                        key_of[count] = key
                        count += 1
    return row_of[:count], key_of[:count]


@njit_no_refcount
def _link(slot_of, key_of, chains):
    """Put a node for each (slot, key) at the front of its chain; capacity suffices."""
    for i in range(slot_of.shape[0]):
        # Free nodes first, so that the pool stays as long as the most that ever lived at once.
        node = chains.used[1]
        if node >= 0:
            chains.used[1] = chains.next[node]
        else:
            node = chains.used[0]
            chains.used[0] += 1
        slot = slot_of[i]
        chain = find_slot(chains.lookup, chains.key, key_of[i])
        following = chains.head[chain]
        chains.slot[node] = slot
        chains.next[node] = following
        # The first entry of a chain has the row of its key, so that a removal need not search the key.
        chains.back[node] = ~chain
        if following >= 0:
            chains.back[following] = node
        chains.head[chain] = node
        chains.sibling[node] = chains.first[slot]
        chains.first[slot] = node


@njit(cache=True, nogil=True)
def _unlink(slots, chains):
    """Take out the nodes of these slots and free them; returns the keys whose chains are empty now."""
    emptied = np.empty(_MOST_CELLS * slots.shape[0], np.int64)
    count = 0
    for slot in slots:
        node = chains.first[slot]
        while node >= 0:
            before, after = chains.back[node], chains.next[node]
            if after >= 0:
                chains.back[after] = before
            if before >= 0:
                chains.next[before] = after
            else:
                chains.head[~before] = after
                if after < 0:
                    # The key goes too: messages should find no empty chains.
                    emptied[count] = chains.key[~before]
                    count += 1
            following = chains.sibling[node]
            # From here on `next` chains free nodes; the way on is `sibling`.
            chains.next[node] = chains.used[1]
            chains.used[1] = node
            node = following
        chains.first[slot] = _END
    return emptied[:count]


@njit_no_refcount
def _match(messages, first_row, chains, columns, world_west, world_south, steps_per_degree, seen, out_slot, out_row):
    """Match rows from `first_row` on; see `BooleanEngine._scan` for what is returned.

    seen : uint8[slots]    zeroed, and left zeroed: a range message meets a subscription in several cells
    """
    found, scanned = 0, 0
    keys = chains.at_level.sum()
    for row in range(first_row, messages.west.shape[0]):
        west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        if west != west or south != south or east != east or north != north:
            continue  # a NaN meets no box, but would round to a lattice coordinate that does
        left, right = lattice(west, world_west, steps_per_degree), lattice(east, world_west, steps_per_degree)
        bottom, top = lattice(south, world_south, steps_per_degree), lattice(north, world_south, steps_per_degree)
        first, last = messages.term_offsets[row], messages.term_offsets[row + 1]
        cells = 0
        for level in range(FINEST + 1):
            if chains.at_level[level] > 0:
                a, b, c, d = cell_range(left, bottom, right, top, level)
                cells += (b - a + 1) * (d - c + 1)
        before, looked = found, scanned
        # More cells than keys: every chain is less work.
        whole = cells * (last - first) > max(keys, 64)
        fits = True
        if whole:
            for chain in range(chains.head.shape[0]):
                fits, found, scanned = _walk(
                    chain, chains, columns, messages, row, first, last, seen, out_slot, out_row, found, scanned
                )
                if not fits:
                    break
        else:
            for j in range(first, last):
                for level in range(FINEST + 1):
                    if chains.at_level[level] == 0:
                        continue
                    a, b, c, d = cell_range(left, bottom, right, top, level)
                    for cell_row in range(c, d + 1):
                        for cell_column in range(a, b + 1):
                            key = _key(messages.terms[j], level, cell_column, cell_row)
                            chain = find_slot(chains.lookup, chains.key, key)
                            # Four loops cannot be left at once: once capacity is exhausted, skip the rest.
                            if chain < 0 or not fits:
                                continue
                            fits, found, scanned = _walk(
                                chain, chains, columns, messages, row, first, last, seen, out_slot, out_row, found,
                                scanned,
                            )  # fmt: skip
        # Also when capacity is exhausted: the row is repeated and must find all subscriptions unseen.
        for i in range(before, found):
            seen[out_slot[i]] = 0
        if not fits:
            return before, row, looked, looked
    return found, messages.west.shape[0], scanned, scanned


@njit_no_refcount
def _walk(chain, chains, columns, messages, row, first, last, seen, out_slot, out_row, found, scanned):
    """Test every subscription of a chain; the first value is False if a hit exhausted the capacity."""
    node = chains.head[chain]
    while node >= 0:
        slot = chains.slot[node]
        node = chains.next[node]
        scanned += 1
        # Cheapest first: a flag, then a row of degrees, then keywords, each of which has to be sought.
        if seen[slot]:
            continue
        region_hit = region_meets(
            columns.region, slot, messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        )
        if not region_hit or not all_terms_in(columns.terms, columns.start[slot], messages.terms, first, last):
            continue
        if found == out_slot.shape[0]:
            return False, found, scanned
        seen[slot] = 1
        out_slot[found] = slot
        out_row[found] = row
        found += 1
    return True, found, scanned
