"""Updates of keyword cells: additions and removals of messages; cells that move, become dense, and are merged.

See `baselines.skyline.keyword_pages` for the data. Each kernel checks the capacity for a posting before it starts with
it, and returns to Python, which calls `larger`, if there is none.
"""

import numpy as np

from baselines.skyline.cells import DEEPEST, column_in, line_in, tuple_of
from baselines.skyline.keyword_pages import (
    COUNT,
    HOME,
    LISTS,
    NEXT,
    NOTHING,
    PAGE,
    READS,
    USED,
    WRITES,
    eighth_of,
    forget_places,
    free_cell,
    free_node,
    may_change,
    new_cell,
    new_node,
    node_of,
    note_place,
    page_with_capacity,
    put,
    quadrant_of,
    set_used,
    take,
)
from baselines.skyline.keyword_table import enter_keyword, find_keyword, forget_keyword
from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount

#: Tuples of a cell that has others move out of its way.
_LARGE = PAGE // 4
#: Room that a page must have beyond what it gets, so that a cell that has moved can grow there. Not tuned.
_TO_GROW = 16


@njit(cache=True, nogil=True)
def insert(pages, work, log, slots, progress):
    """Insert the postings that `progress` (message, term) has not seen yet; returns whether all of them are in now."""
    moved = np.empty(PAGE + 1, np.int64)
    while progress[0] < slots.shape[0]:
        slot = slots[progress[0]]
        word = tuple_of(log, slot)
        while progress[1] < log.term_count[slot]:
            if not may_change(pages):
                return False
            term = log.terms[log.term_start[slot] + progress[1]]
            entry = find_keyword(pages.table, term)
            work[READS] += 1
            if entry < 0:
                enter_keyword(pages.table, term, _new_home(pages, work, word))
            else:
                _insert_into(pages, work, entry, word, moved)
            progress[1] += 1
        progress[0] += 1
        progress[1] = 0
    return True


@njit_inner_no_refcount
def _new_home(pages, work, word):
    """A cell for one tuple."""
    page = page_with_capacity(pages, _TO_GROW)
    cell = new_cell(pages, page, 1, NOTHING)
    used = pages.page[page, USED]
    pages.word[page, used], pages.source[page, used] = word, cell
    set_used(pages, page, used + 1)
    work[LISTS] += 1
    return cell


@njit_inner_no_refcount
def _refer(pages, entry, node, quadrant, reference):
    """Have what a keyword, or a quadrant of a node, refers to be this."""
    if node < 0:
        pages.table.value[entry] = reference
    else:
        pages.child[node, quadrant] = reference


@njit_inner_no_refcount
def _insert_into(pages, work, entry, word, moved):
    """Add a tuple to the cells of a keyword; moved : int64[PAGE + 1], scratch."""
    reference, level, node, quadrant = pages.table.value[entry], 0, np.int64(NOTHING), np.int64(0)
    while True:
        if reference < NOTHING:
            node, quadrant = node_of(reference), quadrant_of(word, level)
            pages.below[node] += 1
            reference, level = np.int64(pages.child[node, quadrant]), level + 1
            work[READS] += 1
            work[WRITES] += 1
        elif reference >= 0 and pages.cell[reference, COUNT] == PAGE and level < DEEPEST:
            reference = node_of(_split(pages, work, reference, level))
            _refer(pages, entry, node, quadrant, reference)
        else:
            break
    if reference < 0:
        pages.child[node, quadrant] = _new_home(pages, work, word)
    elif pages.cell[reference, COUNT] == PAGE:
        # it cannot be split, since messages may stand at one point: another cell, in front of it
        cell = _new_home(pages, work, word)
        pages.cell[cell, NEXT] = reference
        _refer(pages, entry, node, quadrant, cell)
    else:
        _add(pages, work, reference, word, moved)
    if node >= 0:
        note_place(pages, node, quadrant, level, word)
        work[LISTS] += 1


@njit_no_refcount
def _add(pages, work, cell, word, moved):
    """Add a tuple to a cell that has less than a page of them."""
    work[LISTS] += 1
    if pages.page[pages.cell[cell, HOME], USED] == PAGE:
        _move(pages, _in_the_way(pages, cell), moved)
        work[WRITES] += 2
    page = pages.cell[cell, HOME]
    used = pages.page[page, USED]
    pages.word[page, used], pages.source[page, used] = word, cell
    set_used(pages, page, used + 1)
    pages.cell[cell, COUNT] += 1


@njit_inner
def _in_the_way(pages, cell):
    """Which cell of its full page has to move so that this one can grow: itself, or the first other if it is large.

    Were it always itself, large cells would need pages that are nearly empty, and leave such pages behind.
    """
    page, at = pages.cell[cell, HOME], 0
    if pages.cell[cell, COUNT] > _LARGE:
        while pages.source[page, at] == cell:
            at += 1
        return np.int64(pages.source[page, at])
    return np.int64(cell)


@njit_no_refcount
def _move(pages, cell, moved):
    """Move a cell to a page with spare capacity: a cell that moved soon moves again."""
    count = take(pages, cell, moved)
    page = page_with_capacity(pages, min(PAGE, count + _TO_GROW + count // 4))
    put(pages, page, cell, moved[:count])
    pages.cell[cell, HOME] = page


@njit_no_refcount
def _split(pages, work, cell, level):
    """A summary node for a cell of a level that fills its page: at first four cells in the same page."""
    page = pages.cell[cell, HOME]
    node = new_node(pages, PAGE)
    pages.cell[cell, COUNT] = 0
    first = True
    for i in range(PAGE):
        word = pages.word[page, i]
        quadrant = quadrant_of(word, level)
        if pages.child[node, quadrant] < 0:
            # the first of them goes by the number there was
            pages.child[node, quadrant] = cell if first else new_cell(pages, page, 0, NOTHING)
            first = False
            work[LISTS] += 1
        pages.source[page, i] = pages.child[node, quadrant]
        pages.cell[pages.child[node, quadrant], COUNT] += 1
        note_place(pages, node, quadrant, level + 1, word)
    work[WRITES] += 1
    return node


@njit(cache=True, nogil=True)
def delete(pages, work, log, slots, progress):
    """Take out the postings that `progress` (message, term, how many were missing) has not seen yet; whether all are.

    Those missing were not where they should be; the caller gives up the whole window.
    """
    moved = np.empty(PAGE + 1, np.int64)
    while progress[0] < slots.shape[0]:
        word = tuple_of(log, slots[progress[0]])
        while progress[1] < log.term_count[slots[progress[0]]]:
            # cells that become one need a page before they are gone from theirs
            if not may_change(pages):
                return False
            entry = find_keyword(pages.table, log.terms[log.term_start[slots[progress[0]]] + progress[1]])
            work[READS] += 1
            progress[2] += 1 if entry < 0 else _delete_from(pages, work, entry, word, moved)
            progress[1] += 1
        progress[0] += 1
        progress[1] = 0
    return True


@njit_inner
def _delete_from(pages, work, entry, word, moved):
    """Take a tuple out of the cells of a keyword; returns 1 if it is not there, else 0."""
    reference, level, node, quadrant = pages.table.value[entry], 0, np.int64(NOTHING), np.int64(0)
    while reference < NOTHING:
        below = node_of(reference)
        work[READS] += 1
        # half, so that a cell at the limit is not split and merged alternately
        if pages.below[below] - 1 <= PAGE // 2:
            taken = _gather(pages, work, below, moved)
            reference = _one_cell(pages, moved[:taken])
            work[LISTS] += 1
            _refer(pages, entry, node, quadrant, reference)
            if node >= 0:
                # that of a dense quadrant is not kept up
                forget_places(pages, node, quadrant)
                for each in moved[:taken]:
                    note_place(pages, node, quadrant, level, each)
            break
        node, quadrant = below, quadrant_of(word, level)
        pages.below[node] -= 1
        reference, level = np.int64(pages.child[node, quadrant]), level + 1
        work[WRITES] += 1
    before, cell = np.int64(NOTHING), reference
    work[LISTS] += 1
    while cell >= 0:
        if _remove(pages, cell, word):
            break
        before, cell = cell, np.int64(pages.cell[cell, NEXT])
    if cell < 0:
        return 1
    following = np.int64(pages.cell[cell, NEXT])
    if pages.cell[cell, COUNT] == 0:
        free_cell(pages, cell)
        if before >= 0:
            pages.cell[before, NEXT] = following
        elif node < 0:
            forget_keyword(pages.table, entry)
        else:
            pages.child[node, quadrant] = following
            if following < 0:
                forget_places(pages, node, quadrant)
    elif node >= 0 and before < 0 and following < 0:
        _forget_place(pages, cell, node, quadrant, level, word)
    work[LISTS] += 1 if node >= 0 else 0
    return 0


@njit_no_refcount
def _remove(pages, cell, word):
    """Take a tuple out of a cell; returns whether it was there."""
    page = pages.cell[cell, HOME]
    last = pages.page[page, USED] - 1
    for i in range(last + 1):
        # the word first, which is that of one message; a page may have it by another of its keywords, too
        if pages.word[page, i] == word and pages.source[page, i] == cell:
            pages.word[page, i], pages.source[page, i] = pages.word[page, last], pages.source[page, last]
            set_used(pages, page, last)
            pages.cell[cell, COUNT] -= 1
            return True
    return False


@njit_inner
def _forget_place(pages, cell, node, quadrant, level, word):
    """Take a tuple that is gone out of the signature of its cell, unless another stands where it stood."""
    page = pages.cell[cell, HOME]
    line, column = eighth_of(line_in(word), level), eighth_of(column_in(word), level)
    for i in range(pages.page[page, USED]):
        if pages.source[page, i] == cell:
            other = pages.word[page, i]
            if eighth_of(line_in(other), level) == line and eighth_of(column_in(other), level) == column:
                return
    pages.signature[node, quadrant, line] &= np.uint8(255 - (1 << column))


@njit(cache=True, nogil=True)
def _gather(pages, work, node, out):
    """Take all tuples below a summary node, and the node, into out; returns how many."""
    stack = np.empty(4 * DEEPEST + 4, np.int64)
    stack[0], height, taken = node_of(node), 1, 0
    while height:
        height -= 1
        reference = stack[height]
        if reference < NOTHING:
            for quadrant in range(4):
                stack[height] = pages.child[node_of(reference), quadrant]
                height += 1
            free_node(pages, node_of(reference))
            work[LISTS] += 1
        while reference >= 0:
            following = np.int64(pages.cell[reference, NEXT])
            taken += take(pages, reference, out[taken:])
            free_cell(pages, reference)
            work[LISTS] += 1
            reference = following
    return taken


@njit_inner_no_refcount
def _one_cell(pages, words):
    """A cell with these tuples, in a page with spare capacity."""
    page = page_with_capacity(pages, words.shape[0] + words.shape[0] // 4)
    cell = new_cell(pages, page, words.shape[0], NOTHING)
    put(pages, page, cell, words)
    return cell
