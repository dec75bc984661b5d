"""Baseline: for each term, the list of the subscriptions whose rarest keyword it is.

A message reads the lists of its terms. There is no spatial pruning, so long lists are read in full, which the grid of
`matching.boolean.engines.cell_term` avoids. Otherwise it is a strong baseline: a posting has the box in one word, as
there, tested many at a time without branches, and slot and second keyword, which are read only where the message meets
the box; reads are prefetched. A region across the antimeridian has one posting around both its boxes and is compared in
degrees.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.boolean.engine import BooleanEngine
from matching.model import Int32, Int64
from matching.space import Space
from matching.storage.cell_blocks import MORE, NO_SECOND, describe, slot_of
from matching.storage.cell_match import NO_TERM, TABLE, has_term, on_lattice
from matching.storage.cells import GUARDS, LANES, LATTICE_STEPS, ONE_IN_EACH_LANE, message_word
from matching.storage.prefetch import prefetch
from matching.storage.region_messages import Messages
from matching.storage.region_subscriptions import region_meets
from matching.storage.slots import SlotMap, as_input, find_slot, grown, longer

_DEAD_FRACTION = 0.25
#: Postings whose tests lie in the nearest cache.
_BLOCK = 1024
#: Lanes of a box that all longitudes lie in.
_NO_LONGITUDES = np.uint64(0xFFFF_FFFF_0000_0000)


class SlotLists(NamedTuple):
    """Kernel view of the lists; t terms, p places, n slots.

    lookup : int32[2**b], term : int64[t]   open addressing from term to list (`matching.storage.slots`)
    start, length, capacity : int32[t]         postings of list i: [start[i] : start[i] + length[i]] of the pools
    box : uint64[p], link : int64[p]       as in `matching.storage.cell_blocks.Blocks`, the level always 0; the
                                           sign of a link: two boxes
    place : int32[n]                       where in the pools a slot stands, so that removal needs no search
    used : int64[2]                        end of the used part of the pools, abandoned places in them
    """

    lookup: Int32
    term: Int64
    start: Int32
    length: Int32
    capacity: Int32
    box: np.ndarray
    link: Int64
    place: Int32
    used: Int64


class InvertedList(BooleanEngine):
    """Posting list of the rarest keyword, then box and keywords of every posting."""

    name = "inverted_list"

    def __init__(self, space: Space):
        super().__init__(space)
        self._frame = space.west, space.south, LATTICE_STEPS / max(space.east - space.west, space.north - space.south)
        self._terms = SlotMap()
        nothing = np.zeros(0, np.int32)
        self._start, self._length, self._capacity, self._place = (nothing,) * 4
        self._box, self._link = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._used = np.zeros(2, np.int64)

    def _view(self) -> SlotLists:
        columns = (self._start, self._length, self._capacity, self._box, self._link, self._place)
        return SlotLists(self._terms.index, self._terms.number, *columns, self._used)

    def _post(self, slots: Int32) -> None:
        capacity = 2 * slots.shape[0]
        first, box, link = np.empty(capacity, np.int32), np.empty(capacity, np.uint64), np.empty(capacity, np.int64)
        count = describe(as_input(slots, np.int32), self.subscriptions.columns, *self._frame, first, box, link)
        count = _one_each(count, first, box, link)
        order = np.argsort(first[:count], kind="stable")
        first, box, link = first[order].astype(np.int64), box[order], link[order]
        fresh = np.unique(first)
        self._terms.insert(fresh[self._terms.find(fresh) < 0])
        self._start, self._length, self._capacity = (
            grown(column, self._terms.capacity) for column in (self._start, self._length, self._capacity)
        )
        self._place = grown(self._place, self.subscriptions.slots.capacity, -1)
        done = 0
        while True:
            done, needed = _append(first, box, link, done, self._view())
            if done == first.shape[0]:
                return
            self._repack(needed)

    def _unpost(self, slots: Int32) -> None:
        _remove_entries(slots, self.subscriptions.columns, self._view())

    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        return _match(messages, first_row, self._view(), self.subscriptions.columns, *self._frame, slots, rows)

    def _repack(self, needed: int) -> None:
        """Move the lists together, or only grow the pools if too few places are abandoned to pay for it."""
        used, dead = (int(value) for value in self._used)
        if dead > _DEAD_FRACTION * used:
            order = np.argsort(self._start[: self._terms.high_water], kind="stable").astype(np.int32)
            _compact(order, self._view())
            used = int(self._used[0])
        self._box, self._link = grown(self._box, used + needed), grown(self._link, used + needed)

    def _index_arrays(self) -> dict[str, np.ndarray]:
        terms, slots, used = self._terms.high_water, self.subscriptions.slots.high_water, int(self._used[0])
        columns = {"start": self._start[:terms], "length": self._length[:terms], "capacity": self._capacity[:terms]}
        columns |= {"box": self._box[:used], "link": self._link[:used], "place": self._place[:slots]}
        return columns | {"used": self._used} | {f"terms_{name}": value for name, value in self._terms.arrays().items()}

    def _index_bytes(self) -> int:
        columns = (self._start, self._length, self._capacity, self._box, self._link, self._place)
        return self._terms.allocated_bytes() + sum(column.nbytes for column in columns)


@njit(cache=True, nogil=True)
def _one_each(count, first, box, link):
    """Merge the two adjacent postings of each region that has two boxes; returns the number of postings left."""
    kept = 0
    for i in range(count):
        if link[i] < 0:
            # a lane of 0 is the western rim, and as far from the eastern one
            box[kept - 1] &= _NO_LONGITUDES
            link[kept - 1] = link[i]
            continue
        first[kept], box[kept], link[kept] = first[i], box[i], link[i]
        kept += 1
    return kept


@njit(cache=True, nogil=True)
def _put(lists, place, box, link):
    """Write a posting, and its place for removals."""
    lists.box[place], lists.link[place] = box, link
    lists.place[slot_of(link)] = place


@njit(cache=True, nogil=True)
def _append(first, box, link, done, lists):
    """Append postings (sorted by first keyword) from `done` on; returns (done, places needed) when pools are full."""
    n = first.shape[0]
    while done < n:
        # All postings of a term at once: its list moves once for them at most.
        until = done
        while until < n and first[until] == first[done]:
            until += 1
        which = find_slot(lists.lookup, lists.term, first[done])
        have, more = lists.length[which], until - done
        if have + more > lists.capacity[which]:
            # A quarter more than now, so that a list of n moves O(log n) times.
            capacity = have + more + (have >> 2)
            end = lists.used[0]
            if end + capacity > lists.box.shape[0]:
                # Nothing of this term has been written: the caller grows the pool and repeats it.
                return done, capacity
            start = lists.start[which]
            for i in range(have):
                _put(lists, end + i, lists.box[start + i], lists.link[start + i])
            # Where it stood is lost until the pool is compacted.
            lists.used[1] += lists.capacity[which]
            lists.used[0] = end + capacity
            lists.start[which] = end
            lists.capacity[which] = capacity
        tail = lists.start[which] + have
        for i in range(more):
            _put(lists, tail + i, box[done + i], link[done + i])
        lists.length[which] = have + more
        done = until
    return done, 0


@njit(cache=True, nogil=True)
def _remove_entries(slots, columns, lists):
    """Fill each slot's place with the last of its list."""
    for slot in slots:
        if columns.start[slot] < 0:
            continue
        term = columns.terms[columns.start[slot]]
        which = find_slot(lists.lookup, lists.term, np.int64(~term if term < 0 else term))
        lists.length[which] -= 1
        last = lists.start[which] + lists.length[which]
        _put(lists, lists.place[slot], lists.box[last], lists.link[last])
        # Last of all: the slot may itself be the last of its list.
        lists.place[slot] = -1


@njit(cache=True, nogil=True)
def _compact(order, lists):
    """Move the lists in `order` (ascending by start) to the front of the pool, keeping their capacities."""
    end = 0
    for which in order:
        start = lists.start[which]
        # Lists only move to the front, so nothing is overwritten before it has been read.
        for i in range(lists.length[which]):
            _put(lists, end + i, lists.box[start + i], lists.link[start + i])
        lists.start[which] = end
        end += lists.capacity[which]
    lists.used[0] = end
    lists.used[1] = 0


@njit_inner
def _test_block(box, reach, passed):
    """Set passed[p] to 1 where the message's word reaches box p; the loop vectorises."""
    for p in range(box.shape[0]):
        passed[p] = ((reach - (box[p] & LANES)) & GUARDS) == GUARDS


@njit_inner_no_refcount
def _walk(lists, start, length, reach, passed, candidates):
    """Write the places of a list that the message reaches into candidates (int64[length]); returns how many."""
    words = passed.view(np.uint64)
    count = 0
    for block in range(start, start + length, _BLOCK):
        size = min(_BLOCK, start + length - block)
        # zero the last word beyond the block, so that words can be tested whole
        words[(size - 1) >> 3] = 0
        _test_block(lists.box[block : block + size], reach, passed)
        for word in range((size + 7) >> 3):
            # eight at once, as most do not pass
            if words[word] == 0:
                continue
            for p in range(word << 3, min(size, (word + 1) << 3)):
                if passed[p] != 0:
                    prefetch(lists.link, block + p)
                    candidates[count] = block + p
                    count += 1
    return count


@njit_inner_no_refcount
def _verify(messages, row, lists, columns, count, candidates, beyond, table, out_slot, found):
    """Append the slots that match to out_slot from `found` on; returns where they end. Capacity suffices."""
    west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
    kept = 0
    for i in range(count):
        link, box = lists.link[candidates[i]], lists.box[candidates[i]]
        second = link & 0x7FFFFFFF
        if second != NO_SECOND and not has_term(table, messages, row, second):
            continue
        # Degrees are compared only if a side is equal on the lattice, or there are two boxes.
        unsure = link < 0 or ((beyond - (box & LANES)) & GUARDS) != GUARDS
        if unsure:
            prefetch(columns.region, np.int64(slot_of(link)) * 4)
        if link & MORE:
            prefetch(columns.start, slot_of(link))
        # Overwrites the position: from here on only the link is needed, with its sign for unsure boxes.
        candidates[kept] = link | np.int64(-(2**63)) if unsure else link
        kept += 1
    for i in range(kept):
        if candidates[i] & MORE:
            prefetch(columns.terms, columns.start[slot_of(candidates[i])] + 2)
    for i in range(kept):
        link = candidates[i]
        slot = slot_of(link)
        matches = link >= 0 or region_meets(columns.region, slot, west, south, east, north)
        if matches and link & MORE:
            # The first keyword is that of the list, the second has been tested.
            position = columns.start[slot] + 2
            while matches:
                term = columns.terms[position]
                matches = has_term(table, messages, row, ~term if term < 0 else term)
                position += 1
                if term < 0:
                    break
        out_slot[found] = slot
        found += matches
    return found


@njit(cache=True, nogil=True)
def _match(messages, first_row, lists, columns, world_west, world_south, steps_per_degree, out_slot, out_row):
    """Walk the lists of each message's terms; see `BooleanEngine._scan` for what is returned."""
    found, scanned, verified = 0, 0, 0
    passed = np.zeros(_BLOCK, np.uint8)
    found_lists, candidates = np.empty(64, np.int64), np.empty(4096, np.int64)
    table = np.full(TABLE, NO_TERM, np.int32)
    for row in range(first_row, messages.west.shape[0]):
        usable, left, bottom, right, top = on_lattice(messages, row, world_west, world_south, steps_per_degree)
        if not usable:
            continue
        first, last = messages.term_offsets[row], messages.term_offsets[row + 1]
        before, scanned_before, verified_before = found, scanned, verified
        reach = message_word(left, bottom, right, top)
        for j in range(first, last):
            table[messages.terms[j] & (TABLE - 1)] = messages.terms[j]
        # A slot is in one list and a term occurs once, so no pair is reported twice.
        fits, count = True, 0
        found_lists = longer(found_lists, last - first)
        for j in range(first, last):
            which = find_slot(lists.lookup, lists.term, np.int64(messages.terms[j]))
            if which >= 0:
                prefetch(lists.start, which)
                prefetch(lists.length, which)
                found_lists[count] = which
                count += 1
        for which in found_lists[:count]:
            length = np.int64(lists.length[which])
            scanned += int(length)
            candidates = longer(candidates, length)
            count = _walk(lists, np.int64(lists.start[which]), length, reach, passed, candidates)
            verified += count
            # One more than can match: `_verify` writes before it knows.
            fits = found + count < out_slot.shape[0]
            if not fits:
                break
            found = _verify(
                messages, row, lists, columns, count, candidates, reach - ONE_IN_EACH_LANE, table, out_slot, found
            )
        for j in range(first, last):
            table[messages.terms[j] & (TABLE - 1)] = NO_TERM
        if not fits:
            # Hits of a row stay together: this one is repeated when there is capacity.
            return before, row, scanned_before, verified_before
        for i in range(before, found):
            out_row[i] = row
    return found, messages.west.shape[0], scanned, verified
