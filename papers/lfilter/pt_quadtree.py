"""PT-Quadtree: a quadtree whose cells know a few pivotal tokens, one of which any matching message must carry.

After Yu, Li and Feng, CIKM 2015, section 4. The pivotal tokens of a list hit every subscription in it; those of a cell
are the union of what lies below. Tokens that all children share form the cover set of the cell and are tested there
alone: a message with one of them skips all text tests below. Any other message must have one of the non-cover set, or
the cell and all below it are skipped. The lists that remain are verified entry by entry: box within the cell, two
keywords in a table of bits, then all keywords and degrees of the few.

Which cells a box lies in, and so which lists there are, says `papers.lfilter.pt_quadtree_build`.
`papers.lfilter.lfilter` filters by this tree and verifies by the trie where that is less work. Named in
`matching.kinds`; a part of `papers.lfilter.lfilter`.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount
from matching.model import Int32
from matching.space import Space
from matching.storage.region_messages import Messages
from matching.storage.slots import as_input
from papers.lfilter.lfilter_parts import (
    ONLY_HERE,
    TEST_TEXT,
    Arrays,
    PartBoxes,
    PartedEngine,
    boxes_view,
    clear_terms,
    first_not_below,
    is_marked,
    is_set,
    log2_of,
    mark_terms,
    reach_of,
    scratch_for,
    verify,
)
from papers.lfilter.pt_quadtree_build import LEAF_CAPACITY, box_within, build_quadtree

#: Columns of `Quadtree.branch` behind the four children.
LIST_START, LIST_END, LISTS_BELOW, ENTRIES_BELOW = range(4, 8)
#: Columns of `Quadtree.pivots`.
COVER, NON_COVER, END = range(3)
#: Guard bits over the four lanes of `box_within`.
NARROW_GUARDS = 0x8080_8080


class Quadtree(NamedTuple):
    """Cells in preorder; q cells, e entries.

    branch : int32[q, 8]     children in Morton order, -1 for an empty one; own list [LIST_START, LIST_END); lists and
                             entries of the cell and all below it, for estimates
    cell : int64[q]          level << 28 | row << 14 | column
    pivot : int32[p]         pivotal tokens
    pivots : int32[q, 3]     cover set [COVER, NON_COVER), non-cover set [NON_COVER, END), both ascending; END is -1 for
                             a cell with so many that every message may enter
    pivot_text : uint64[q]   signature of both sets
    entry : int32[e]         ranks, ascending within a list
    entry_box : uint32[e]    the box of that rank as seen from the cell (`pt_quadtree_build.box_within`)
    entry_text : uint32[e]   the lower half of its `PartBoxes.text`: two keywords, beside those of its neighbours
    typical : float64[1]     entries that a point among the subscriptions has in its lists, on average
    """

    branch: np.ndarray
    cell: np.ndarray
    pivot: np.ndarray
    pivots: np.ndarray
    pivot_text: np.ndarray
    entry: np.ndarray
    entry_box: np.ndarray
    entry_text: np.ndarray
    typical: np.ndarray


class PtQuadtree(PartedEngine):
    """Boolean subscriptions in a quadtree with pivotal tokens; see the module.

    Parameters
    ----------
    space : Space
    leaf_capacity : int    entries that a cell need not divide (tau_num of the paper)
    """

    name = "pt_quadtree"

    def __init__(self, space: Space, leaf_capacity: int = LEAF_CAPACITY):
        super().__init__(space)
        self.leaf_capacity = leaf_capacity

    def _build(self, slots: Int32) -> Arrays:
        slot, word, text, _ = self._boxes_of(slots)
        tree = build_quadtree(slot, word, text, self.subscriptions.columns, self.leaf_capacity)
        return {"slot": slot, "word": word, "text": text} | tree

    def _view(self, arrays: Arrays) -> tuple[PartBoxes, Quadtree]:
        return boxes_view(arrays), quadtree_view(arrays)

    def _match_part(
        self, messages: Messages, first_row: int, last_row: int, view: tuple, slots: Int32, rows: Int32
    ) -> tuple[int, int, int, int]:
        boxes, tree = view
        return _match(messages, first_row, last_row, boxes, tree, self.subscriptions.columns, *self.frame, slots, rows)


def quadtree_view(arrays: Arrays) -> Quadtree:
    """The quadtree of a part as kernels take it."""
    dtypes = (np.int32, np.int64, np.int32, np.int32, np.uint64, np.int32, np.uint32, np.uint32, np.float64)
    columns = zip(Quadtree._fields, dtypes, strict=True)
    return Quadtree(*(as_input(arrays[name], dtype) for name, dtype in columns))


@njit_inner_no_refcount
def shares_a_term(tokens, low, high, terms, marks):
    """Whether tokens[low:high] and a message's terms, both ascending, share one: the side that is cheaper probes."""
    last = terms.shape[0]
    if low == high or last == 0:
        return False
    # A look at the marks for each token, or a search among the tokens for each term: the less work.
    if high - low <= last * log2_of(high - low):
        for i in range(low, high):
            if is_marked(marks, tokens[i]):
                # The mark may be that of another term.
                place = first_not_below(terms, 0, last, tokens[i])
                if place < last and terms[place] == tokens[i]:
                    return True
        return False
    for j in range(last):
        # Both ascend: each search starts where the last one ended.
        low = first_not_below(tokens, low, high, terms[j])
        if low == high:
            return False
        if tokens[low] == terms[j]:
            return True
    return False


@njit_inner_no_refcount
def find_lists(tree, left, bottom, right, top, terms, signature, marks, stack, lists):
    """Cells that a message may match in, with a list; returns (how many, cells visited)."""
    count, visited, depth = 0, 0, 1
    # A rectangle that is inside out meets what covers the span between its sides.
    left, right, bottom, top = min(left, right), max(left, right), min(bottom, top), max(bottom, top)
    stack[0] = 0  # cell << 32 | 1 if text need not be tested
    while depth > 0:
        depth -= 1
        node, free = stack[depth] >> 32, stack[depth] & 1
        visited += 1
        if not free:
            # Cheap first: one word for both sets. No bit in common, no token in common.
            if not tree.pivot_text[node] & signature:
                continue
            cover, other, end = tree.pivots[node, COVER], tree.pivots[node, NON_COVER], tree.pivots[node, END]
            if shares_a_term(tree.pivot, cover, other, terms, marks):
                # All children have that token: no text tests below, which passes more candidates and loses none.
                free = 1
            # -1: too many to test, so every message enters. Else neither set is hit, and nothing below can match.
            elif end >= 0 and not shares_a_term(tree.pivot, other, end, terms, marks):
                continue
        if tree.branch[node, LIST_END] > tree.branch[node, LIST_START]:
            lists[count] = node
            count += 1
        cell = tree.cell[node]
        level = (cell >> 28) + 1
        column, line = (cell & 0x3FFF) << 1, (cell >> 14 & 0x3FFF) << 1
        shift = 15 - level
        for quarter in range(4):
            child = tree.branch[node, quarter]
            x, y = column + (quarter & 1), line + (quarter >> 1)
            # Closed on the lattice, where rounding may let one cell too many in and none too few.
            if child >= 0 and left >> shift <= x <= right >> shift and bottom >> shift <= y <= top >> shift:
                stack[depth] = np.int64(child) << 32 | free
                depth += 1
    return count, visited


@njit(cache=True, nogil=True)
def reach_within(cell, left, bottom, right, top):
    """What the boxes of a cell's list are compared with, for a message's rectangle on the lattice."""
    # Opposite sides, as in `cells.message_word`: they meet if each lane is at least that of the box.
    return box_within(cell, right, top, left, bottom) | NARROW_GUARDS


@njit(cache=True, nogil=True)
def meets_within(reach, box):
    """`lfilter_parts.meets` for boxes as seen from a cell."""
    return ((reach - np.int64(box)) & NARROW_GUARDS) == NARROW_GUARDS


@njit_inner_no_refcount
def sift(tree, low, high, reach, marks, cell, candidates, cells, count):
    """Append the entries [low, high) that may match; the arrays have capacity for all. Returns the new count.

    reach : int64    from `reach_within`, for the cell of the list
    cell : int64     written as the cell of the candidates
    """
    for i in range(low, high):
        # Written before it is decided, so that there is no branch; the arrays fit all of the list.
        candidates[count] = np.int64(tree.entry[i]) | TEST_TEXT
        cells[count] = cell
        text = np.int64(tree.entry_text[i])
        passes = meets_within(reach, tree.entry_box[i]) and is_set(marks, text & 0xFFFF) and is_set(marks, text >> 16)
        count += np.int64(passes)  # a bit of the marks is unsigned, and with the compiler off the sum would be a float
    return count


@njit(cache=True, nogil=True)
def _match(
    messages, first_row, last_row, boxes, tree, columns, world_west, world_south, steps_per_degree, out_slot, out_row
):
    """Match the rows of a batch in one part; see `BooleanEngine._scan` for what is returned."""
    scratch = scratch_for(messages, first_row, last_row, tree.entry.shape[0], tree.cell.shape[0])
    return _match_rows(
        messages, first_row, last_row, boxes, tree, columns, world_west, world_south, steps_per_degree, scratch,
        out_slot, out_row,
    )  # fmt: skip


@njit_inner_no_refcount
def _match_rows(
    messages, first_row, last_row, boxes, tree, columns, world_west, world_south, steps_per_degree, scratch, out_slot,
    out_row,
):  # fmt: skip
    """`_match` with its scratch."""
    found, scanned, verified = 0, 0, 0
    marks, lists, candidates, places = scratch.marks, scratch.lists, scratch.candidates, scratch.places
    for row in range(first_row, last_row):
        west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        if west != west or south != south or east != east or north != north:
            continue  # a NaN meets no box, but would round to a lattice coordinate that does
        left, bottom, right, top, reach = reach_of(
            west, south, east, north, world_west, world_south, steps_per_degree
        )  # fmt: skip
        is_point = west == east and south == north
        first, last = messages.term_offsets[row], messages.term_offsets[row + 1]
        signature = mark_terms(marks, messages.terms, first, last)
        terms = messages.terms[first:last]
        many, visited = find_lists(tree, left, bottom, right, top, terms, signature, marks, scratch.cells, lists)
        scanned += visited
        count = 0
        for i in range(many):
            low, high = tree.branch[lists[i], LIST_START], tree.branch[lists[i], LIST_END]
            # The cells that a box is listed in do not overlap, so a point meets it in one list.
            cell = ONLY_HERE if is_point else tree.cell[lists[i]]
            # Lists have their boxes as seen from their own cell.
            narrow = reach_within(tree.cell[lists[i]], left, bottom, right, top)
            count = sift(tree, low, high, narrow, marks, cell, candidates, places, count)
            scanned += high - low
        # There must be capacity for all candidates as hits: those of a row are not split. A return drops the marks.
        if found + count > out_slot.shape[0]:
            return found, row, scanned, verified
        found = verify(
            messages, row, reach, left, bottom, boxes, columns, marks, candidates, places, count, out_slot, out_row,
            found,
        )  # fmt: skip
        clear_terms(marks, messages.terms, first, last)
        verified += count
    return found, last_row, scanned, verified
