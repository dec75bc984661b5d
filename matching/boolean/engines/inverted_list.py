"""Baseline: for each term, the list of the subscriptions whose rarest keyword it is.

A message walks the lists of its terms, tests each subscription's box and then its other keywords. Nothing about space
prunes, so frequent terms are walked in full: what the grid of `matching.boolean.engines.cell_term` is there to avoid.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from matching.boolean.engine import BooleanEngine, Messages
from matching.model import Int32, Int64
from matching.space import Space
from matching.storage.region_subscriptions import all_terms_in, region_meets
from matching.storage.slots import SlotMap, as_input, find_slot, grown_length, resized

_DEAD_SHARE = 0.25


class Lists(NamedTuple):
    """Kernel view of the lists; t terms, p places, n slots.

    lookup : int32[2**b], term : int64[t]   open addressing from term to list (`matching.storage.slots`)
    start, length, room : int32[t]         slots of list i: pool[start[i] : start[i] + length[i]]
    pool : int32[p]
    place : int32[n]                       where in the pool a slot stands, so that removal needs no search
    used : int64[2]                        end of the used part of the pool, abandoned places in it
    """

    lookup: Int32
    term: Int64
    start: Int32
    length: Int32
    room: Int32
    pool: Int32
    place: Int32
    used: Int64


class InvertedList(BooleanEngine):
    """Posting list of the rarest keyword, then box and keywords of every posting."""

    name = "inverted_list"

    def __init__(self, space: Space):
        super().__init__(space)
        self._terms = SlotMap()
        nothing = np.zeros(0, np.int32)
        self._start, self._length, self._room, self._pool, self._place = (nothing,) * 5
        self._used = np.zeros(2, np.int64)

    def _view(self) -> Lists:
        columns = (self._start, self._length, self._room, self._pool, self._place)
        return Lists(self._terms.index, self._terms.number, *columns, self._used)

    def _index(self, slots: Int32) -> None:
        columns = self.subscriptions.columns
        slots = slots[columns.start[slots] >= 0]
        first = columns.terms[columns.start[slots]]
        first = np.where(first < 0, ~first, first).astype(np.int64)
        order = np.argsort(first, kind="stable")
        slots, first = slots[order], first[order]
        fresh = np.unique(first)
        self._terms.insert(fresh[self._terms.find(fresh) < 0])
        if self._terms.capacity > self._start.shape[0]:
            self._start, self._length, self._room = (
                resized(column, self._terms.capacity) for column in (self._start, self._length, self._room)
            )
        if columns.start.shape[0] > self._place.shape[0]:
            self._place = resized(self._place, columns.start.shape[0], -1)
        done = 0
        while True:
            done, needed = _append(as_input(slots, np.int32), as_input(first, np.int64), done, self._view())
            if done == slots.shape[0]:
                return
            self._repack(needed)

    def _withdraw(self, slots: Int32) -> None:
        _remove_entries(slots, self.subscriptions.columns, self._view())

    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        return _match(messages, first_row, self._view(), self.subscriptions.columns, slots, rows)

    def _repack(self, needed: int) -> None:
        """Move the lists together, or only grow the pool if too few places are abandoned to pay for it."""
        used, dead = (int(value) for value in self._used)
        if dead > _DEAD_SHARE * used:
            order = np.argsort(self._start[: self._terms.high_water], kind="stable").astype(np.int32)
            _compact(order, self._view())
            used = int(self._used[0])
        if used + needed > self._pool.shape[0]:
            self._pool = resized(self._pool, grown_length(self._pool.shape[0], used + needed))

    def _index_arrays(self) -> dict[str, np.ndarray]:
        terms, slots = self._terms.high_water, self.subscriptions.slots.high_water
        columns = {"start": self._start[:terms], "length": self._length[:terms], "room": self._room[:terms]}
        columns |= {"pool": self._pool[: self._used[0]], "place": self._place[:slots], "used": self._used}
        return columns | {f"terms_{name}": value for name, value in self._terms.arrays().items()}

    def _index_bytes(self) -> int:
        columns = (self._start, self._length, self._room, self._pool, self._place)
        return self._terms.allocated_bytes() + sum(column.nbytes for column in columns)


@njit(cache=True, nogil=True)
def _append(slots, first, done, lists):
    """Append slots (sorted by first keyword) from `done` on; returns (done, places needed) when the pool is full."""
    n = slots.shape[0]
    while done < n:
        # All slots of a term at once: its list moves once for them at most.
        until = done
        while until < n and first[until] == first[done]:
            until += 1
        which = find_slot(lists.lookup, lists.term, first[done])
        have, more = lists.length[which], until - done
        if have + more > lists.room[which]:
            # A quarter more than now, so that a list of n moves O(log n) times.
            room = have + more + (have >> 2)
            end = lists.used[0]
            if end + room > lists.pool.shape[0]:
                # Nothing of this term has been written: the caller makes room and comes back with it.
                return done, room
            start = lists.start[which]
            for i in range(have):
                slot = lists.pool[start + i]
                lists.pool[end + i] = slot
                # Removal finds a slot by its place, so each move has to tell it.
                lists.place[slot] = end + i
            # Where it stood is lost until the pool is compacted.
            lists.used[1] += lists.room[which]
            lists.used[0] = end + room
            lists.start[which] = end
            lists.room[which] = room
        tail = lists.start[which] + have
        for i in range(more):
            lists.pool[tail + i] = slots[done + i]
            lists.place[slots[done + i]] = tail + i
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
        last = lists.pool[lists.start[which] + lists.length[which]]
        lists.pool[lists.place[slot]] = last
        lists.place[last] = lists.place[slot]
        # Last of all: the slot may itself be the last of its list.
        lists.place[slot] = -1


@njit(cache=True, nogil=True)
def _compact(order, lists):
    """Move the lists in `order` (ascending by start) to the front of the pool, keeping the room each has."""
    end = 0
    for which in order:
        start = lists.start[which]
        # Lists only move to the front, so nothing is overwritten before it has been read.
        for i in range(lists.length[which]):
            slot = lists.pool[start + i]
            lists.pool[end + i] = slot
            lists.place[slot] = end + i
        lists.start[which] = end
        end += lists.room[which]
    lists.used[0] = end
    lists.used[1] = 0


@njit(cache=True, nogil=True)
def _match(messages, first_row, lists, columns, out_slot, out_row):
    """Walk the lists of each message's terms; see `BooleanEngine._scan` for what is returned."""
    found, scanned = 0, 0
    for row in range(first_row, messages.west.shape[0]):
        west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        first, last = messages.term_offsets[row], messages.term_offsets[row + 1]
        before, scanned_before = found, scanned
        # A slot stands in one list and a term comes once, so no pair is told twice. NaN needs no case of its own: the
        # test of the region is false for it.
        for j in range(first, last):
            which = find_slot(lists.lookup, lists.term, np.int64(messages.terms[j]))
            if which < 0:
                continue
            scanned += lists.length[which]
            for place in range(lists.start[which], lists.start[which] + lists.length[which]):
                slot = lists.pool[place]
                if not region_meets(columns.region, slot, west, south, east, north):
                    continue
                # A list's own term is in the message; the first keyword is asked again all the same, which is cheap.
                if all_terms_in(columns.terms, columns.start[slot], messages.terms, first, last):
                    if found == out_slot.shape[0]:
                        # Hits of a row stay together: this one starts over when there is room.
                        return before, row, scanned_before, scanned_before
                    out_slot[found] = slot
                    out_row[found] = row
                    found += 1
    return found, messages.west.shape[0], scanned, scanned
