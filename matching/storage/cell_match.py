"""Kernels by which the cell-term index matches a message: in phases, each of which prefetches the next one's memory.

A message reads some seventy pieces of blocks, far apart in memory, with a cache miss each if read one by one. So each
phase only computes where the next has to look, and prefetches those places (`matching.storage.prefetch`):

1. `look_up`: the block of each of the message's terms that the cell map lets through (`matching.storage.cell_map`);
2. `find_cuts`: in each block, the buckets of the cells that the message covers, one a level in use;
3. `find_runs`: the postings of those buckets;
4. `walk`: one subtraction a posting (`matching.storage.cells`) leaves the candidates;
   in an index with marks `sift` leaves fewer, by one bit operation a candidate (`matching.storage.marks`);
5. `verify`: second keyword, degrees where lattice coordinates are equal, then the keywords beyond the second.

`match` runs them message by message.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int64
from matching.storage.cell_blocks import BUCKETS, CUTS, LEVELS, MORE, NO_SECOND, SORTED, START, TAIL, slot_of
from matching.storage.cell_map import cells_of, select_terms
from matching.storage.cells import (
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
from matching.storage.prefetch import prefetch
from matching.storage.region_subscriptions import box_meets, term_in
from matching.storage.slots import find_slot, longer

#: Level of a run whose postings count at any level: a whole block.
_ANY_LEVEL = FINEST + 1
_NO_CUT = -1
#: Places (a power of two) of the table by which `verify` looks up the terms of a message.
TABLE = 1024
NO_TERM = np.int32(-1)
#: Columns of the counts of a sieve, how many, and their names.
MET_BOX, PASSED_MARK, HAD_KEYWORDS, STAGES = range(4)
STAGE_NAMES = ("met_box", "passed_mark", "had_keywords")


class Sieve(NamedTuple):
    """Kernel view of the marks by which candidates fall (`matching.storage.marks`), if there are any.

    marks : uint64[p]           of the postings, by place
    of_messages : uint64[rows]
    stages : int64[STAGES]      pairs that have survived each stage of all matches so far; added to
    """

    marks: np.ndarray
    of_messages: np.ndarray
    stages: Int64


@njit_inner
def on_lattice(messages, row, world_west, world_south, steps_per_degree):
    """(usable, left, bottom, right, top) of a message; one with a NaN is not usable: it meets nothing."""
    west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
    # Equal to itself is everything but NaN, which `lattice` would take for 0.
    usable = west == west and south == south and east == east and north == north
    left, right = lattice(west, world_west, steps_per_degree), lattice(east, world_west, steps_per_degree)
    bottom, top = lattice(south, world_south, steps_per_degree), lattice(north, world_south, steps_per_degree)
    return usable, left, bottom, right, top


@njit(cache=True, nogil=True)
def look_up(blocks, terms, which):
    """Put the blocks of the first terms in which (int64[terms]) into their place; returns how many have one."""
    count = 0
    for i in range(terms):
        block = find_slot(blocks.lookup, blocks.term, which[i])
        if block >= 0:
            prefetch(blocks.head, block * 8)  # places count flat: a block has a row of 8
            which[count] = block
            count += 1
    return count


@njit_inner
def runs_of(left, bottom, right, top, blocks, which, count):
    """How many runs `find_cuts` may write. A block adds more than one a level only for a message of several cells."""
    if left == right and bottom == top:
        # A bucket for each of the 15 levels, and the tail.
        return count * (FINEST + 2)
    total = 0
    for i in range(count):
        levels = blocks.head[which[i], LEVELS]
        cells = 2  # its tail, and the whole block
        for level in range(FINEST + 1):
            if levels >> level & 1:
                a, b, c, d = cell_range(left, bottom, right, top, level)
                cells += (b - a + 1) * (d - c + 1)
        # With more cells than buckets `find_cuts` takes the whole block, which is one run.
        total += min(cells, blocks.head[which[i], BUCKETS] + 2)
    return total


@njit_inner
def find_cuts(left, bottom, right, top, blocks, which, count, run_first, run_last, run_level, run_cut):
    """Write the runs of a message; returns how many.

    A run is a piece of a block. Tails and whole blocks are written as first and last place; of the pieces behind a
    bucket only run_cut (position in `cuts`) and the block's start, as first place, are known here.
    """
    runs = 0
    one_cell = left == right and bottom == top
    for i in range(count):
        head = blocks.head[which[i]]
        start, buckets = np.int64(head[START]), head[BUCKETS]
        if head[TAIL] > 0:
            run_first[runs] = start + head[SORTED]
            run_last[runs] = start + head[SORTED] + head[TAIL]
            # Words of a tail have no level bits, which reads as level 0.
            run_level[runs] = 0
            run_cut[runs] = _NO_CUT
            prefetch(blocks.box, run_first[runs])
            runs += 1
        if buckets == 0:
            continue
        levels, level = head[LEVELS], 0
        # Points above all: one bucket a level in use, and no loop over cells.
        if one_cell:
            while levels != 0:
                if levels & 1:
                    shift = 15 - level
                    cut = head[CUTS] + bucket_of(level, left >> shift, bottom >> shift, buckets)
                    run_first[runs] = start
                    run_level[runs] = level
                    run_cut[runs] = cut
                    # The cuts are read by `find_runs`, when all of them are on their way.
                    prefetch(blocks.cuts, cut)
                    runs += 1
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
            run_first[runs] = start
            run_last[runs] = start + head[SORTED]
            run_level[runs] = _ANY_LEVEL
            run_cut[runs] = _NO_CUT
            prefetch(blocks.box, start)
            runs += 1
            continue
        for level in range(FINEST + 1):
            if levels >> level & 1:
                a, b, c, d = cell_range(left, bottom, right, top, level)
                # Two of these cells may share a bucket, which is then walked twice: `verify` reports each pair once.
                for cell_row in range(c, d + 1):
                    for cell_column in range(a, b + 1):
                        cut = head[CUTS] + bucket_of(level, cell_column, cell_row, buckets)
                        run_first[runs] = start
                        run_level[runs] = level
                        run_cut[runs] = cut
                        prefetch(blocks.cuts, cut)
                        runs += 1
    return runs


@njit_inner
def find_runs(blocks, count, run_first, run_last, run_level, run_cut):
    """Turn cuts into places and leave empty runs out; returns (runs left, postings in them)."""
    runs, length = 0, 0
    for i in range(count):
        first, last, cut = run_first[i], run_last[i], run_cut[i]
        if cut != _NO_CUT:
            last = first + blocks.cuts[cut + 1]
            first += blocks.cuts[cut]
            # A bucket has two or so: the cache line of its first word is mostly all of it.
            prefetch(blocks.box, first)
        # In place: what is kept never overtakes what is read. Empty runs are overwritten, without a branch to be
        # guessed wrong.
        run_first[runs] = first
        run_last[runs] = last
        run_level[runs] = run_level[i]
        length += last - first
        runs += last > first
    return runs, length


@njit_inner
def sift(sieve, row, count, candidates):
    """Keep the candidates, places, whose mark shares no bit with that of the message; returns how many."""
    # Prefetched in a loop of its own, so that the misses overlap.
    for i in range(count):
        prefetch(sieve.marks, candidates[i])
    mark, kept = sieve.of_messages[row], 0
    for i in range(count):
        place = candidates[i]
        candidates[kept] = place
        kept += (sieve.marks[place] & mark) == 0
    sieve.stages[MET_BOX] += count
    sieve.stages[PASSED_MARK] += kept
    return kept


@njit(cache=True, nogil=True)
def walk(left, bottom, right, top, row, blocks, sieve, runs, run_first, run_last, run_level, candidates):
    """Write the places whose words the message reaches into candidates (int64[postings]); returns how many.

    Written as 2 * place, plus one where a lattice coordinate is equal, so that the degrees have to be compared.
    """
    reach = message_word(left, bottom, right, top)
    count = 0
    for run in range(runs):
        if run_level[run] == _ANY_LEVEL:
            for place in range(run_first[run], run_last[run]):
                word = blocks.box[place]
                # Written before it is decided, so that there is no branch to be guessed wrong.
                candidates[count] = place
                # A dead word is the rim in each lane, and a message all over the world reaches that.
                count += word != DEAD and ((reach - (word & LANES)) & GUARDS) == GUARDS
            continue
        bits = level_bits(run_level[run])
        for place in range(run_first[run], run_last[run]):
            # Another level leaves guard bits in `word`, and those fail the test whatever the lanes say.
            word = blocks.box[place] ^ bits
            candidates[count] = place
            count += ((reach - (word & LANES)) & ~word & GUARDS) == GUARDS
    if sieve.marks.shape[0] > 0:
        count = sift(sieve, row, count, candidates)
    # One less in each lane tests for strictly inside; failing that, a side is equal. A loop of its own, so that all
    # links are prefetched before `verify` reads the first.
    beyond = reach - ONE_IN_EACH_LANE
    for i in range(count):
        place = candidates[i]
        prefetch(blocks.link, place)
        candidates[i] = 2 * place + (((beyond - (blocks.box[place] & LANES)) & GUARDS) != GUARDS)
    return count


@njit_inner_no_refcount
def has_term(table, messages, row, term):
    """Whether the message whose terms stand in the table has a term."""
    there = table[term & (TABLE - 1)]
    if there == term:
        return True
    # Of two terms in one place of the table, one has to be searched for.
    return there != NO_TERM and term_in(
        messages.terms, messages.term_offsets[row], messages.term_offsets[row + 1], term
    )


@njit_no_refcount
def verify(messages, row, blocks, columns, count, candidates, table, seen, out_slot, found):
    """Append the slots that match to out_slot, which must fit all, from `found` on; returns where they end.

    table : int32[TABLE]   all -1, and left so
    seen : uint8[slots]    zeroed, and left zeroed; only needed for a range message
    """
    if count == 0:
        return found
    west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
    # A point lies in one cell a level and in one box of a region, so it meets a subscription in one posting.
    one_hit = west == east and south == north
    for j in range(messages.term_offsets[row], messages.term_offsets[row + 1]):
        table[messages.terms[j] & (TABLE - 1)] = messages.terms[j]
    kept = 0
    for i in range(count):
        link = blocks.link[candidates[i] >> 1]
        second = link & 0x7FFFFFFF
        # The only ones whose row of degrees is read: a cache miss each, spared to all that the lattice decides.
        if candidates[i] & 1 and not box_meets(columns.region, slot_of(link), link < 0, west, south, east, north):
            continue
        # Overwrites its place: from here on only the link is read.
        candidates[kept] = link
        if link & MORE:
            prefetch(columns.start, slot_of(link))
        kept += second == NO_SECOND or has_term(table, messages, row, second)
    for i in range(kept):
        # Reads what the loop above has prefetched, and prefetches for the next.
        if candidates[i] & MORE:
            prefetch(columns.terms, columns.start[slot_of(candidates[i])] + 2)
    before = found
    for i in range(kept):
        link = candidates[i]
        slot = slot_of(link)
        matches = True
        if link & MORE:
            # The first keyword is that of the block, the second has been tested.
            position = columns.start[slot] + 2
            while True:
                term = columns.terms[position]
                if not has_term(table, messages, row, ~term if term < 0 else term):
                    matches = False
                    break
                if term < 0:
                    break
                position += 1
        if not one_hit and matches:
            # A range message meets a subscription in several cells, and perhaps in both its boxes.
            matches = seen[slot] == 0
            seen[slot] = 1
        out_slot[found] = slot
        found += matches
    if not one_hit:
        for i in range(before, found):
            # Only what was set: the column is as long as there are slots.
            seen[out_slot[i]] = 0
    for j in range(messages.term_offsets[row], messages.term_offsets[row + 1]):
        # Term by term: a message has far fewer than the table has places.
        table[messages.terms[j] & (TABLE - 1)] = NO_TERM
    return found


@njit(cache=True, nogil=True)
def match(
    messages, first_row, blocks, cell_map, sieve, columns, world_west, world_south, steps_per_degree, seen, out_slot,
    out_row,
):  # fmt: skip
    """Match rows from `first_row` on; see `CellTermIndex.scan` for what is returned, `verify` for `seen`."""
    found, scanned, verified = 0, 0, 0
    # Scratch of a whole batch, as long as its largest message needs.
    which = np.empty(64, np.int64)
    run_first, run_last = np.empty(512, np.int64), np.empty(512, np.int64)
    run_level, run_cut = np.empty(512, np.int64), np.empty(512, np.int64)
    candidates = np.empty(4096, np.int64)
    table = np.full(TABLE, NO_TERM, np.int32)
    for row in range(first_row, messages.west.shape[0]):
        usable, left, bottom, right, top = on_lattice(messages, row, world_west, world_south, steps_per_degree)
        if not usable:
            continue
        which = longer(which, messages.term_offsets[row + 1] - messages.term_offsets[row])
        terms = select_terms(messages, row, cell_map, cells_of(left, bottom, right, top), which)
        if terms == 0:
            continue
        terms = look_up(blocks, terms, which)
        # Computed beforehand, so that no phase checks its capacity.
        most = runs_of(left, bottom, right, top, blocks, which, terms)
        run_first, run_last = longer(run_first, most), longer(run_last, most)
        run_level, run_cut = longer(run_level, most), longer(run_cut, most)
        runs = find_cuts(left, bottom, right, top, blocks, which, terms, run_first, run_last, run_level, run_cut)
        runs, length = find_runs(blocks, runs, run_first, run_last, run_level, run_cut)
        candidates = longer(candidates, length + 1)
        count = walk(left, bottom, right, top, row, blocks, sieve, runs, run_first, run_last, run_level, candidates)
        # One more than can match: `verify` writes before it knows.
        if found + count >= out_slot.shape[0]:
            return found, row, scanned + length, verified
        before = found
        found = verify(messages, row, blocks, columns, count, candidates, table, seen, out_slot, found)
        for i in range(before, found):
            out_row[i] = row
        scanned += length
        verified += count
        if sieve is not None:
            sieve.stages[HAD_KEYWORDS] += found - before
    return found, messages.west.shape[0], scanned, verified
