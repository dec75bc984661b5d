"""Blocks of postings: for each term, the subscriptions whose rarest keyword it is, cut up by cell.

A block lies contiguous in two pools, `box` (words of `matching.storage.cells`) and `link` (slot, second keyword). Its
first part is sorted into buckets by hashed (level, cell): a subscription has one posting in each bucket that one of its
at most four cells falls into. After it comes a short tail of one posting a subscription, in no order, which every
message with the term walks; when the tail gets long the block is sorted again. Small blocks are nothing but a tail.

That makes every change local to the blocks of its terms: no tombstone outlives its block's next sorting, and no change
ever rebuilds the whole. Sorting by level and cell needs only the words, so a block contains all it is made of.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner
from matching.model import UNKNOWN_TERM, Int32, Int64
from matching.storage.cell_map import enter_posting
from matching.storage.cells import (
    DEAD,
    FINEST,
    LANES,
    box_of,
    buckets_covered,
    fitting_level,
    lattice,
    level_bits,
    level_of,
    subscription_word,
)
from matching.storage.slots import find_slot

#: Columns of `Blocks.head`.
START, SORTED, TAIL, CAPACITY, CUTS, BUCKETS, LEVELS, GONE = range(8)
#: Up to here a block is only a tail: walking costs less than looking up a bucket for each level.
SMALL = 32
#: Sorted postings a bucket, about: buckets cost half a byte each per posting, long ones cost looks.
_PER_BUCKET = 2

#: Postings of a cell that a message reads on average, about, above which cells are made finer: with one cell a
#: subscription on average, a city of subscriptions that crowd there is one cell. A quarter of it has 6 % fewer postings
#: read and 6 % larger subscriptions, of a million searches in districts.
_CROWDED = 512

#: Low 31 bits of a link without a second keyword; bit 31: there is a third; bits 32..62 slot; sign: second box.
NO_SECOND = UNKNOWN_TERM
MORE = 1 << 31


class Blocks(NamedTuple):
    """Kernel view; t terms, p places, c cuts.

    lookup : int32[2**b], term : int64[t]   open addressing from term to block (`matching.storage.slots`)
    head : int32[t, 8]    a row a block: START place, SORTED and TAIL postings, CAPACITY, CUTS position, BUCKETS (0:
                          only a tail), LEVELS in use (bit mask), GONE among the sorted
    finest : int8[t]      finest level of a block when it was last sorted
    box : uint64[p], link : int64[p]
    cuts : int32[c]       bucket i of a block is sorted part [cuts[CUTS + i], cuts[CUTS + i + 1])
    used : int64[4]       end of the used places, abandoned places; the same of cuts

    Marks of the postings (`matching.storage.marks`) are an array beside it, `marks` uint64[p], or uint64[0] in an index
    without: each array of a view costs every kernel that takes it two locked instructions.
    """

    lookup: Int32
    term: Int64
    head: Int32
    finest: np.ndarray
    box: np.ndarray
    link: Int64
    cuts: Int32
    used: Int64


@njit(cache=True, nogil=True)
def slot_of(link):
    """The slot in a link."""
    return (link >> 32) & 0x7FFFFFFF  # the mask drops the sign, which stands for the second box


@njit_inner
def tail_allowed(size):
    """Longest tail after `size` sorted postings: to walk it and to sort it both cost about sqrt(size).

    Blocks twice as long made additions 1.5 times as fast, and messages read 40 % more postings under steady change.
    """
    return max(8, int(np.sqrt(size)))


@njit(cache=True, nogil=True)
def describe(slots, columns, west, south, steps_per_degree, out_term, out_box, out_link):
    """Write one posting a box (two for a region across the antimeridian); returns how many, at most 2 a slot.

    Subscriptions that can never match get none.
    """
    count = 0
    for slot in slots:
        position = columns.start[slot]
        if position < 0:
            continue
        # Keywords ascend by id and ids by frequency in the stream: the first is the rarest.
        term = columns.terms[position]
        low = np.int64(NO_SECOND)
        if term < 0:
            term = ~term
        else:
            second = np.int64(columns.terms[position + 1])
            # A keyword stored as its complement is the last: then the posting has all keywords.
            low = ~second if second < 0 else second | MORE
        region = columns.region[slot]
        crosses = region[0] > region[2]
        bottom, top = lattice(region[1], south, steps_per_degree), lattice(region[3], south, steps_per_degree)
        for part in range(2 if crosses else 1):
            # Across the antimeridian two boxes that end there, each with a level of its own: no point lies in both.
            from_lon = -180.0 if part == 1 else region[0]
            to_lon = 180.0 if crosses and part == 0 else region[2]
            left, right = lattice(from_lon, west, steps_per_degree), lattice(to_lon, west, steps_per_degree)
            out_term[count] = term
            out_box[count] = subscription_word(left, bottom, right, top)
            out_link[count] = (
                (np.int64(slot) << 32 | low) if part == 0 else (np.int64(slot) << 32 | low | np.int64(-(2**63)))
            )
            count += 1
    return count


@njit(cache=True, nogil=True)
def append(order, term, box, link, mark, done, blocks, marks):
    """Add postings in `order` (sorted by term) from `done` on; `mark` is uint64[0] in an index without marks.

    Returns (done, places needed, cuts needed); done falls short when a pool is full. Amortised O(sqrt(block)) each.
    """
    n = order.shape[0]
    while done < n:
        # All postings of a term at once: a block is sorted once for them, not once for each.
        until = done
        while until < n and term[order[until]] == term[order[done]]:
            until += 1
        which = find_slot(blocks.lookup, blocks.term, np.int64(term[order[done]]))
        head = blocks.head[which]
        more = until - done
        tail = head[TAIL] + more
        longest = SMALL if head[BUCKETS] == 0 else tail_allowed(head[SORTED])
        if tail > longest or head[SORTED] + tail > head[CAPACITY]:
            places, cuts = _sort(which, blocks, marks, order, done, until, box, link, mark)
            if places + cuts > 0:
                # Nothing of this term has been written: the caller grows the pool and repeats the term.
                return done, places, cuts
        else:
            end = head[START] + head[SORTED] + head[TAIL]
            for i in range(more):
                blocks.box[end + i] = box[order[done + i]]
                blocks.link[end + i] = link[order[done + i]]
                if mark.shape[0] > 0:
                    marks[end + i] = mark[order[done + i]]
            head[TAIL] = tail
        done = until
    return done, 0, 0


@njit_inner
def sort_block(which, blocks, marks):
    """Sort a block again without its gone postings; nothing happens if that exceeds the pool."""
    none, no_words = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    places, cuts = _sort(which, blocks, marks, none, 0, 0, no_words, none, no_words)
    return places + cuts == 0


@njit(cache=True, nogil=True)
def _collect(head, blocks, marks, box, link, mark):
    """Copy each living posting of a block once, without level; returns how many."""
    count = 0
    covered = np.empty(4, np.int64)
    start, cuts = head[START], head[CUTS]
    for bucket in range(head[BUCKETS]):
        for place in range(start + blocks.cuts[cuts + bucket], start + blocks.cuts[cuts + bucket + 1]):
            word = blocks.box[place]
            # The one sweep that dead postings get: nothing else ever clears them away.
            if word == DEAD:
                continue
            left, bottom, right, top = box_of(word)
            # A posting stands in every bucket it covers: the copy in the first one is taken, the others left.
            buckets_covered(left, bottom, right, top, level_of(word), head[BUCKETS], covered)
            if covered[0] == bucket:
                # Without level: it may be another one when the block has another size.
                box[count] = word & LANES
                link[count] = blocks.link[place]
                if mark.shape[0] > 0:
                    mark[count] = marks[place]
                count += 1
    # None here is dead: removal fills the hole in a tail with the last of it.
    for place in range(start + head[SORTED], start + head[SORTED] + head[TAIL]):
        box[count] = blocks.box[place]
        link[count] = blocks.link[place]
        if mark.shape[0] > 0:
            mark[count] = marks[place]
        count += 1
    return count


@njit_inner
def _finest_of(box, size):
    """The finest level of a block: one cell a subscription on average, and finer until no cell is crowded. O(size)."""
    # Finer than one cell a subscription, most cells are empty and every message looks in vain: one level more made
    # messages read 6 % more postings, and subscriptions are 3 % larger for their copies.
    finest = 0
    while finest < FINEST and 4**finest < size:
        finest += 1
    # Messages come where subscriptions are, so two subscriptions drawn at random share a cell as a message and one do.
    drawn = int(np.sqrt(size))
    x, y = np.empty(drawn, np.int64), np.empty(drawn, np.int64)
    for i in range(drawn):
        left, bottom, right, top = box_of(box[i * 0x9E3779B1 % size])
        x[i], y[i] = (left + right) >> 1, (bottom + top) >> 1
    while finest < FINEST:
        shift, shared = 15 - finest, 0
        for i in range(drawn):
            for j in range(i):
                shared += (x[i] >> shift == x[j] >> shift) & (y[i] >> shift == y[j] >> shift)
        if 2 * shared * size <= _CROWDED * drawn * (drawn - 1):
            break
        finest += 1
    return finest


@njit_inner
def _sort(which, blocks, marks, order, first, last, new_box, new_link, new_mark):
    """Lay a block out anew with postings order[first:last] added.

    Returns (0, 0), or the places and cuts that the pools must still have free; nothing is changed then.
    """
    head = blocks.head[which]
    most = head[SORTED] + head[TAIL] + last - first
    box, link = np.empty(most, np.uint64), np.empty(most, np.int64)
    marked = marks.shape[0] > 0 or new_mark.shape[0] > 0
    mark = np.empty(most if marked else 0, np.uint64)
    size = _collect(head, blocks, marks, box, link, mark)
    for i in range(first, last):
        box[size] = new_box[order[i]]
        link[size] = new_link[order[i]]
        if mark.shape[0] > 0:
            mark[size] = new_mark[order[i]]
        size += 1

    buckets, finest, total = 0, 0, 0
    covered = np.empty(4, np.int64)
    cuts = np.zeros(0, np.int64)
    if size > SMALL:
        buckets = 1
        while buckets * _PER_BUCKET < size:
            buckets *= 2
        finest = _finest_of(box, size)
        cuts = np.zeros(buckets + 1, np.int64)
        for i in range(size):
            left, bottom, right, top = box_of(box[i])
            level = fitting_level(left, bottom, right, top, finest)
            box[i] |= level_bits(level)
            for j in range(buckets_covered(left, bottom, right, top, level, buckets, covered)):
                # One further on, so that the running sum leaves the beginning of each bucket.
                cuts[covered[j] + 1] += 1
        for bucket in range(buckets):
            cuts[bucket + 1] += cuts[bucket]
        total = cuts[buckets]

    # The tail until the next sorting is reserved from the start; small ones grow by a quarter.
    capacity = total + tail_allowed(total) if buckets > 0 else size + (size >> 2)
    # It stays where it is if it fits: what stood there has been copied out by `_collect`.
    moves = capacity > head[CAPACITY]
    recuts = buckets > head[BUCKETS]
    if (moves and blocks.used[0] + capacity > blocks.box.shape[0]) or (
        recuts and blocks.used[2] + buckets + 1 > blocks.cuts.shape[0]
    ):
        # Checked before the first write, and for both pools, so that one packing serves.
        return capacity, buckets + 1
    if moves:
        blocks.used[1] += head[CAPACITY]
        head[START] = blocks.used[0]
        head[CAPACITY] = capacity
        blocks.used[0] += capacity
    if recuts:
        # Cuts of a block that shrank to a tail were counted as abandoned when it did.
        blocks.used[3] += head[BUCKETS] + 1 if head[BUCKETS] > 0 else 0
        head[CUTS] = blocks.used[2]
        blocks.used[2] += buckets + 1
    elif buckets < head[BUCKETS]:
        blocks.used[3] += head[BUCKETS] - buckets if buckets > 0 else head[BUCKETS] + 1

    head[SORTED], head[TAIL], head[BUCKETS], head[LEVELS], head[GONE] = total, 0, buckets, 0, 0
    blocks.finest[which] = finest
    start = head[START]
    if buckets == 0:
        for i in range(size):
            blocks.box[start + i] = box[i]
            blocks.link[start + i] = link[i]
            if mark.shape[0] > 0:
                marks[start + i] = mark[i]
        # No level bits either: words of a tail are walked as of level 0.
        head[TAIL] = size
        return 0, 0
    for bucket in range(buckets + 1):
        blocks.cuts[head[CUTS] + bucket] = cuts[bucket]
    for i in range(size):
        left, bottom, right, top = box_of(box[i])
        level = level_of(box[i])
        # Messages look into the levels in use only, a bucket for each.
        head[LEVELS] |= 1 << level
        for j in range(buckets_covered(left, bottom, right, top, level, buckets, covered)):
            # The cuts themselves have been stored: this copy says where the next of each bucket goes.
            place = start + cuts[covered[j]]
            cuts[covered[j]] += 1
            blocks.box[place] = box[i]
            blocks.link[place] = link[i]
            if mark.shape[0] > 0:
                marks[place] = mark[i]
    return 0, 0


@njit(cache=True, nogil=True)
def remove_entry(term, box, link, blocks, marks):
    """Remove postings as `describe` gives them; returns (done, unsorted).

    done falls short at a posting that is not where it must be: the state is damaged. `unsorted` counts blocks that
    need sorting that exceeds the pool.
    """
    unsorted = 0
    covered = np.empty(4, np.int64)
    for i in range(term.shape[0]):
        which = find_slot(blocks.lookup, blocks.term, np.int64(term[i]))
        if which < 0:
            return i, unsorted
        head = blocks.head[which]
        start, taken = head[START], 0
        if head[BUCKETS] > 0:
            left, bottom, right, top = box_of(box[i])
            # At the level it was sorted at; by the size of today it might be another.
            level = fitting_level(left, bottom, right, top, int(blocks.finest[which]))
            for j in range(buckets_covered(left, bottom, right, top, level, head[BUCKETS], covered)):
                cut = head[CUTS] + covered[j]
                for place in range(start + blocks.cuts[cut], start + blocks.cuts[cut + 1]):
                    # Slots are used again, so a dead posting here may have the very same link.
                    if blocks.link[place] == link[i] and blocks.box[place] != DEAD:
                        blocks.box[place] = DEAD
                        taken += 1
        # Postings are in the sorted part or in the tail, never in both.
        if taken > 0:
            head[GONE] += taken
            # Only at a quarter: sorting at every removal would cost more than walking past the dead.
            if head[GONE] * 4 > head[SORTED] and not sort_block(which, blocks, marks):
                unsorted += 1
            continue
        tail = start + head[SORTED]
        for place in range(tail, tail + head[TAIL]):
            if blocks.link[place] == link[i]:
                # A tail has no order to keep.
                last = tail + head[TAIL] - 1
                blocks.box[place] = blocks.box[last]
                blocks.link[place] = blocks.link[last]
                if marks.shape[0] > 0:
                    marks[place] = marks[last]
                head[TAIL] -= 1
                taken = 1
                break
        if taken == 0:
            return i, unsorted
    return term.shape[0], unsorted


@njit(cache=True, nogil=True)
def repack(blocks, marks, cell_map, box, link, mark, cuts):
    """Move every block, in the order of the terms' arrival, into new pools; its capacity shrinks to what is in use and
    the tail allowed after it. All living postings are entered into the cell map, which comes empty."""
    end, end_cuts = 0, 0
    for which in range(blocks.head.shape[0]):
        head = blocks.head[which]
        start, filled = head[START], head[SORTED] + head[TAIL]
        capacity = filled + (filled >> 2)
        if head[BUCKETS] > 0:
            capacity = max(filled, head[SORTED] + tail_allowed(head[SORTED]))
            for i in range(head[BUCKETS] + 1):
                # They count from the start of the block, so they do not change when it moves.
                cuts[end_cuts + i] = blocks.cuts[head[CUTS] + i]
            head[CUTS] = end_cuts
            end_cuts += head[BUCKETS] + 1
        # Never more capacity than before: the pools have the size of those in use.
        capacity = min(capacity, head[CAPACITY])
        for i in range(filled):
            box[end + i] = blocks.box[start + i]
            link[end + i] = blocks.link[start + i]
            if box[end + i] != DEAD:
                enter_posting(cell_map, blocks.term[which], box[end + i])
            if mark.shape[0] > 0:
                mark[end + i] = marks[start + i]
        head[START] = end
        head[CAPACITY] = capacity
        end += capacity
    blocks.used[0], blocks.used[1], blocks.used[2], blocks.used[3] = end, 0, end_cuts, 0
