"""The cell-term index: postings by (level, cell, rarest keyword), our own engine and the default for `boolean`.

A message looks, for each of its terms, into one bucket for each level in use, and walks the postings there with one
subtraction each (`matching.boolean.cells`). A posting carries the subscription's box on a lattice and its second
keyword, so a subscription is touched only where lattice coordinates are equal or where it has a third keyword. Hash
collisions and rounding cost work and never decide: a posting counts only in the block of its own term and at its own
level, and what the lattice leaves open is compared in degrees.

The plain form of the idea (an open-addressing table over the three-part key, a chain of slots behind each) pays a cache
miss for each key and each candidate; this one keeps a bucket's postings side by side. `matching.boolean.blocks` says
how they change; `matching.naive` what must come out.
"""

import numpy as np
from numba import njit

from matching.boolean.blocks import (
    BUCKETS,
    CUTS,
    LEVELS,
    MORE,
    NO_SECOND,
    SORTED,
    START,
    TAIL,
    Blocks,
    append,
    describe,
    repack,
    slot_of,
    take_out,
)
from matching.boolean.cells import (
    DEAD,
    FINEST,
    GUARDS,
    LANES,
    ONE_IN_EACH_LANE,
    bucket_of,
    cell_range,
    lattice,
    level_bits,
    message_word,
)
from matching.boolean.engine import BooleanEngine, Messages
from matching.boolean.rows import all_terms_in, box_meets, term_in
from matching.errors import EngineError
from matching.model import Int32
from matching.slots import SlotMap, as_input, find_slot, part, resized
from matching.space import Space

#: Pools are packed anew when this share of them is abandoned.
_ABANDONED_SHARE = 0.25
_LATTICE_STEPS = 2.0**15


class CellTerm(BooleanEngine):
    """Boolean subscriptions by (level, cell, rarest keyword); see the module."""

    name = "cell_term"

    def __init__(self, space: Space):
        super().__init__(space)
        self._steps_per_degree = _LATTICE_STEPS / max(space.east - space.west, space.north - space.south)
        self._terms = SlotMap()
        self._head = np.zeros((0, 8), np.int32)
        self._finest = np.zeros(0, np.int8)
        self._box = np.zeros(0, np.uint64)
        self._link = np.zeros(0, np.int64)
        self._cuts = np.zeros(0, np.int32)
        self._used = np.zeros(4, np.int64)
        self._seen = np.zeros(0, np.uint8)

    def _blocks(self) -> Blocks:
        pools = (self._box, self._link, self._cuts, self._used)
        return Blocks(self._terms.index, self._terms.number, self._head, self._finest, *pools)

    def _describe(self, slots: Int32):
        """Postings of these slots: term int32[m], box uint64[m], link int64[m]."""
        room = 2 * slots.shape[0]
        term, box, link = np.empty(room, np.int32), np.empty(room, np.uint64), np.empty(room, np.int64)
        frame = (self.space.west, self.space.south, self._steps_per_degree)
        count = describe(as_input(slots, np.int32), self.rows.columns, *frame, term, box, link)
        return term[:count], box[:count], link[:count]

    def _index(self, slots: Int32) -> None:
        term, box, link = self._describe(slots)
        order = np.argsort(term, kind="stable")
        in_order = term[order]
        fresh = in_order[np.flatnonzero(np.diff(in_order, prepend=-1))].astype(np.int64)
        self._terms.insert(fresh[self._terms.find(fresh) < 0])
        if self._terms.capacity > self._head.shape[0]:
            self._head = resized(self._head, self._terms.capacity)
            self._finest = resized(self._finest, self._terms.capacity)
        done = 0
        while True:
            done, places, cuts = append(order, term, box, link, done, self._blocks())
            if done == term.shape[0]:
                break
            # What is still to come will want about this much: packing once is cheaper than packing at each step.
            self._repack(max(places, term.shape[0] - done), cuts)
        self._tidy()

    def _withdraw(self, slots: Int32) -> None:
        term, box, link = self._describe(slots)
        done, unsorted = take_out(term, box, link, self._blocks())
        if done < term.shape[0]:
            number = self.rows.slots.number[slot_of(link[done])]
            raise EngineError(
                f"engine {self.name}: subscription {number} is not in the block of term {term[done]}; the state is "
                "damaged, restore the last checkpoint"
            )
        if unsorted:
            self._repack(0, 0)
        self._tidy()

    def _tidy(self) -> None:
        used, abandoned, used_cuts, abandoned_cuts = self._used.tolist()
        if abandoned > _ABANDONED_SHARE * used or abandoned_cuts > _ABANDONED_SHARE * used_cuts:
            self._repack(0, 0)

    def _repack(self, places: int, cuts: int) -> None:
        """Give every block a place in new pools with so much free, and an eighth for growth."""
        used, abandoned, used_cuts, abandoned_cuts = self._used.tolist()
        wanted = used - abandoned + places
        wanted_cuts = used_cuts - abandoned_cuts + cuts
        wanted, wanted_cuts = wanted + wanted // 8, wanted_cuts + wanted_cuts // 8
        if wanted > 2**31 - 1:
            raise EngineError(f"engine {self.name}: {wanted} postings do not fit one engine; use more query bolts")
        pools = np.zeros(wanted, np.uint64), np.zeros(wanted, np.int64), np.zeros(wanted_cuts, np.int32)
        repack(self._blocks(), *pools)
        self._box, self._link, self._cuts = pools

    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        if not messages.are_points and self._seen.shape[0] < self.rows.slots.capacity:
            self._seen = np.zeros(self.rows.slots.capacity, np.uint8)
        columns = self.rows.columns
        frame = (self.space.west, self.space.south, self._steps_per_degree)
        return _match(messages, first_row, self._blocks(), columns, *frame, self._seen, slots, rows)

    def _index_arrays(self) -> dict[str, np.ndarray]:
        terms = self._terms.high_water
        columns = {"head": self._head[:terms], "finest": self._finest[:terms], "used": self._used}
        columns |= {"box": self._box[: self._used[0]], "link": self._link[: self._used[0]]}
        columns |= {"cuts": self._cuts[: self._used[2]]}
        return columns | {f"terms_{name}": value for name, value in self._terms.arrays().items()}

    def _restore_index(self, arrays: dict[str, np.ndarray]) -> None:
        self._terms = SlotMap.from_arrays(part(arrays, "terms_"))
        self._head, self._finest, self._used = (arrays[name].copy() for name in ("head", "finest", "used"))
        self._box, self._link, self._cuts = (arrays[name].copy() for name in ("box", "link", "cuts"))

    def _index_bytes(self) -> int:
        columns = (self._head, self._finest, self._box, self._link, self._cuts, self._seen)
        return self._terms.allocated_bytes() + sum(column.nbytes for column in columns)


@njit(cache=True, nogil=True)
def _longer(array, needed):
    """The array itself, or a longer copy."""
    if needed <= array.shape[0]:
        return array
    copy = np.empty(2 * needed, array.dtype)
    copy[: array.shape[0]] = array
    return copy


@njit(cache=True, nogil=True)
def _match(messages, first_row, blocks, columns, world_west, world_south, steps_per_degree, seen, out_slot, out_row):
    """Match rows from `first_row` on; see `BooleanEngine._scan` for what is returned.

    seen : uint8[slots]    zeroed, and left zeroed; only needed if the batch has range messages
    """
    found, scanned, verified = 0, 0, 0
    # A run is a piece of a block to walk: places, and the level bits its postings must have.
    run_first, run_last = np.empty(512, np.int64), np.empty(512, np.int64)
    run_level = np.empty(512, np.uint64)
    candidates = np.empty(4096, np.int64)
    bits_of_level = np.empty(FINEST + 1, np.uint64)
    for level in range(FINEST + 1):
        bits_of_level[level] = level_bits(level)
    one = np.uint64(1)

    for row in range(first_row, messages.west.shape[0]):
        west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        if west != west or south != south or east != east or north != north:
            continue  # a NaN meets no box, but would round to a lattice coordinate that does
        is_point = west == east and south == north
        left, right = lattice(west, world_west, steps_per_degree), lattice(east, world_west, steps_per_degree)
        bottom, top = lattice(south, world_south, steps_per_degree), lattice(north, world_south, steps_per_degree)
        reach = message_word(left, bottom, right, top)
        first, last = messages.term_offsets[row], messages.term_offsets[row + 1]

        # First find all runs, then walk them: look-ups that do not wait for one another overlap their cache misses.
        runs, length, terms_seen, count = 0, 0, np.uint64(0), 0
        for j in range(first, last):
            term = messages.terms[j]
            terms_seen |= one << np.uint64(term & 63)
            which = find_slot(blocks.lookup, blocks.term, np.int64(term))
            if which < 0:
                continue
            head = blocks.head[which]
            start, buckets = head[START], head[BUCKETS]
            run_first, run_last = _longer(run_first, runs + 17), _longer(run_last, runs + 17)
            run_level = _longer(run_level, runs + 17)
            if head[TAIL] > 0:
                run_first[runs] = start + head[SORTED]
                run_last[runs] = start + head[SORTED] + head[TAIL]
                run_level[runs] = 0
                length += head[TAIL]
                runs += 1
            if buckets == 0:
                continue
            levels = head[LEVELS]
            if is_point:
                level = 0
                while levels != 0:
                    if levels & 1:
                        shift = 15 - level
                        cut = head[CUTS] + bucket_of(level, left >> shift, bottom >> shift, buckets)
                        run_first[runs] = start + blocks.cuts[cut]
                        run_last[runs] = start + blocks.cuts[cut + 1]
                        run_level[runs] = bits_of_level[level]
                        size = run_last[runs] - run_first[runs]
                        length += size
                        runs += size > 0
                    levels >>= 1
                    level += 1
                continue
            cells = 0
            for level in range(FINEST + 1):
                if levels >> level & 1:
                    a, b, c, d = cell_range(left, bottom, right, top, level)
                    cells += (b - a + 1) * (d - c + 1)
            if cells > buckets:
                # More cells than buckets: the whole block is less work, and there the levels do not matter.
                candidates = _longer(candidates, count + head[SORTED])
                for place in range(start, start + head[SORTED]):
                    word = blocks.box[place]
                    if word != DEAD and ((reach - (word & LANES)) & GUARDS) == GUARDS:
                        candidates[count] = place
                        count += 1
                scanned += head[SORTED]
                continue
            run_first, run_last = _longer(run_first, runs + cells), _longer(run_last, runs + cells)
            run_level = _longer(run_level, runs + cells)
            for level in range(FINEST + 1):
                if levels >> level & 1:
                    a, b, c, d = cell_range(left, bottom, right, top, level)
                    for cell_row in range(c, d + 1):
                        for cell_column in range(a, b + 1):
                            cut = head[CUTS] + bucket_of(level, cell_column, cell_row, buckets)
                            run_first[runs] = start + blocks.cuts[cut]
                            run_last[runs] = start + blocks.cuts[cut + 1]
                            run_level[runs] = bits_of_level[level]
                            length += run_last[runs] - run_first[runs]
                            runs += 1

        candidates = _longer(candidates, count + length)
        for run in range(runs):
            bits = run_level[run]
            for place in range(run_first[run], run_last[run]):
                word = blocks.box[place] ^ bits
                candidates[count] = place
                # Another level leaves guard bits in `word`, and those fail the test whatever the lanes say.
                count += ((reach - (word & LANES)) & ~word & GUARDS) == GUARDS
        scanned += length

        before = found
        if before + count > out_slot.shape[0]:
            return before, row, scanned, verified
        beyond = reach - ONE_IN_EACH_LANE
        for i in range(count):
            place = candidates[i]
            link = blocks.link[place]
            second = link & 0x7FFFFFFF
            if second != NO_SECOND:
                if not terms_seen >> np.uint64(second & 63) & one:
                    continue
                if not term_in(messages.terms, first, last, second):
                    continue
            slot = slot_of(link)
            # Strictly inside on the lattice is inside; equal coordinates are compared in degrees.
            if ((beyond - (blocks.box[place] & LANES)) & GUARDS) != GUARDS and not box_meets(
                columns.region, slot, link < 0, west, south, east, north
            ):
                continue
            if link & MORE and not all_terms_in(columns.terms, columns.start[slot] + 2, messages.terms, first, last):
                continue
            if not is_point:
                # A range message meets a subscription in several cells, and perhaps in both its boxes.
                if seen[slot]:
                    continue
                seen[slot] = 1
            out_slot[found] = slot
            out_row[found] = row
            found += 1
        verified += count
        if not is_point:
            for i in range(before, found):
                seen[out_slot[i]] = 0
    return found, messages.west.shape[0], scanned, verified
