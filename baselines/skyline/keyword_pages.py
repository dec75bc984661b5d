"""Keyword cells in pages of a data file, and summary nodes in a head file: what window index `i3` keeps.

A keyword cell is a cell of a quadtree as far as one keyword goes. While its messages fit into one page, they all stand
in one, possibly with other keyword cells: so each tuple has the number of its cell. In a full page there is no free
place for a cell that grows, and it moves to another. A cell that has outgrown a page is dense: it is split into four,
and a summary node takes its place. A table leads from each keyword to its cell or its summary node.

A summary node has for each of its four quadrants where it is, and for those that are not dense a signature. Both of the
paper's summaries are for queries of another kind: the ids of messages, superimposed, say whether messages with several
keywords can be there, and the largest weight of the keyword bounds their score. Here a query wants all messages with
any of its keywords, whatever their score, and neither could rule out a page. So the places of messages in the quadrant
are superimposed, as bits of eight lines and eight columns: a page is read only if the rectangle meets one of them.
"""

from typing import Any, NamedTuple

import numpy as np

from baselines.skyline.cells import DEEPEST, column_in, line_in
from baselines.skyline.keyword_table import KeywordEntries, has_capacity, new_table, with_capacity
from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int32, Int64, UInt8
from matching.storage.slots import grown

#: Tuples of a page, and so of a keyword cell that is not dense.
PAGE = 128
#: What a keyword or a quadrant without messages refers to; a cell is its number, a summary node -2 less its number.
NOTHING = -1
_SUMMARY = -2
#: Columns of a cell, and of a page, whose neighbours are among pages with about as much free space.
HOME, COUNT, NEXT = range(3)
USED, _BEFORE, _AFTER = range(3)
#: Positions in `meta`; then the first page of each class of free space.
CELLS, FREE_CELL, NODES, FREE_NODE, PAGES, _FREE_SPACE = range(6)
#: Pages are classed by free places, in eights.
_STEP = 8
_SIZES = PAGE // _STEP + 1
#: Pages of the same class that are tried.
_TRIES = 4
#: What one posting may need: a summary node at every level, and cells and pages for what moves.
_MOST_NODES, _MOST_CELLS, _MOST_PAGES = DEEPEST + 1, 8, 4
READS, WRITES, LISTS = range(3)


class Pages(NamedTuple):
    """table : KeywordEntries       what a keyword refers to
    cell : int32[c, 3]         page, tuples, next; cells are chained when no more of them can be split, and when free
    child : int32[n, 4]        what the quadrants of a summary node refer to; of a free one: the next free one
    below : int32[n]           tuples below a summary node
    signature : uint8[n, 4, 8]    of each quadrant lines of columns in which messages stand
    page : int32[p, 3]         tuples, and pages before and after it with about as much free space
    word : int64[p, PAGE]      see `baselines.skyline.cells.tuple_of`
    source : int32[p, PAGE]    cell of each tuple
    meta : int64[5 + 17]       cells ever used, first free cell, the same of summary nodes, pages, and the first page by
                               its free places
    """

    table: KeywordEntries
    cell: Int32
    child: Int32
    below: Int32
    signature: UInt8
    page: Int32
    word: Int64
    source: Int32
    meta: Int64


def new_pages() -> Pages:
    """No keywords."""
    meta = np.full(_FREE_SPACE + _SIZES, NOTHING, np.int64)
    meta[[CELLS, NODES, PAGES]] = 0
    return Pages(
        new_table(), np.zeros((_MOST_CELLS, 3), np.int32), np.zeros((_MOST_NODES, 4), np.int32),
        np.zeros(_MOST_NODES, np.int32), np.zeros((_MOST_NODES, 4, 8), np.uint8), np.zeros((_MOST_PAGES, 3), np.int32),
        np.zeros((_MOST_PAGES, PAGE), np.int64), np.zeros((_MOST_PAGES, PAGE), np.int32), meta,
    )  # fmt: skip


def larger(pages: Pages) -> Pages:
    """Pages with capacity for another posting, and half as many again where there was none. O(all), amortised O(1)."""
    columns: dict[str, Any] = pages._asdict() | {"table": with_capacity(pages.table)}
    for names, used, most in (
        (("cell",), CELLS, _MOST_CELLS),
        (("child", "below", "signature"), NODES, _MOST_NODES),
        (("page", "word", "source"), PAGES, _MOST_PAGES),
    ):
        needed = int(pages.meta[used]) + most
        columns |= {name: grown(columns[name], needed) for name in names}
    return Pages(**columns)


def used_bytes(pages: Pages) -> int:
    """Memory of the table, and of cells, summary nodes and pages as far as they have been used."""
    cells, nodes, high = (int(pages.meta[at]) for at in (CELLS, NODES, PAGES))
    columns = [pages.table.term, pages.table.value, pages.cell[:cells]]
    columns += [column[:nodes] for column in (pages.child, pages.below, pages.signature)]
    return sum(column.nbytes for column in (*columns, pages.page[:high], pages.word[:high], pages.source[:high]))


@njit_inner_no_refcount
def may_change(pages):
    """Whether any posting can be added or removed without growing; checked first, since changes are not undone."""
    return (
        has_capacity(pages.table)
        and pages.meta[CELLS] + _MOST_CELLS <= pages.cell.shape[0]
        and pages.meta[NODES] + _MOST_NODES <= pages.child.shape[0]
        and pages.meta[PAGES] + _MOST_PAGES <= pages.page.shape[0]
    )


@njit(cache=True, nogil=True)
def node_of(reference):
    """Number of the summary node that something refers to, and back again; negative if it does not refer to one."""
    return _SUMMARY - reference


# ------------------------------------------------------------------------------------------------- cells and nodes


@njit_inner_no_refcount
def new_cell(pages, page, count, following):
    """Number of a cell in a page."""
    cell = pages.meta[FREE_CELL]
    if cell >= 0:
        pages.meta[FREE_CELL] = pages.cell[cell, NEXT]
    else:
        cell = pages.meta[CELLS]
        pages.meta[CELLS] += 1
    pages.cell[cell, HOME], pages.cell[cell, COUNT], pages.cell[cell, NEXT] = page, count, following
    return cell


@njit_inner
def free_cell(pages, cell):
    """Give the number of a cell away, which has no tuples any more."""
    pages.cell[cell, NEXT] = pages.meta[FREE_CELL]
    pages.cell[cell, COUNT] = 0
    pages.meta[FREE_CELL] = cell


@njit_inner_no_refcount
def new_node(pages, below):
    """Number of a summary node without quadrants."""
    node = pages.meta[FREE_NODE]
    if node >= 0:
        pages.meta[FREE_NODE] = pages.child[node, 0]
    else:
        node = pages.meta[NODES]
        pages.meta[NODES] += 1
    for quadrant in range(4):
        pages.child[node, quadrant] = NOTHING
        forget_places(pages, node, quadrant)
    pages.below[node] = below
    return node


@njit_inner
def free_node(pages, node):
    """Give the number of a summary node away."""
    pages.child[node, 0], pages.below[node] = pages.meta[FREE_NODE], 0
    pages.meta[FREE_NODE] = node


@njit(cache=True, nogil=True)
def quadrant_of(word, level):
    """Which quadrant of its cell at a level a tuple lies in."""
    down = DEEPEST - 1 - level
    return (((line_in(word) >> down) & 1) << 1) | ((column_in(word) >> down) & 1)


@njit(cache=True, nogil=True)
def eighth_of(place, level):
    """Which eighth of its cell at a level a column or line lies in; of a cell less than eight wide, some of them."""
    width = DEEPEST - level
    return ((place & ((1 << width) - 1)) << 3) >> width


@njit(cache=True, nogil=True)
def note_place(pages, node, quadrant, level, word):
    """Have a quadrant's signature know where a tuple stands; `level` is that of the quadrant."""
    line, column = eighth_of(line_in(word), level), eighth_of(column_in(word), level)
    pages.signature[node, quadrant, line] |= np.uint8(1 << column)


@njit(cache=True, nogil=True)
def forget_places(pages, node, quadrant):
    """Clear the signature of a quadrant."""
    for line in range(8):
        pages.signature[node, quadrant, line] = 0


@njit_inner
def may_meet(pages, node, quadrant, level, column, line, rectangle):
    """Whether any message of a quadrant may stand in a rectangle that meets it.

    column, line : int    the first of the quadrant's deepest cells
    """
    end = (1 << (DEEPEST - level)) - 1
    west = eighth_of(max(rectangle[0] - column, 0), level)
    east = eighth_of(min(rectangle[2] - column, end), level)
    south = eighth_of(max(rectangle[1] - line, 0), level)
    north = eighth_of(min(rectangle[3] - line, end), level)
    columns, met = (2 << east) - (1 << west), 0
    for each in range(south, north + 1):
        met |= pages.signature[node, quadrant, each] & columns
    return met != 0


# ----------------------------------------------------------------------------------------------------------- pages


@njit(cache=True, nogil=True)
def _size_of(free):
    """Class of a page by its free places; -1 if it is full."""
    return free // _STEP if free else -1


@njit_no_refcount
def _unlink(pages, page):
    before, after = pages.page[page, _BEFORE], pages.page[page, _AFTER]
    if before >= 0:
        pages.page[before, _AFTER] = after
    else:
        pages.meta[_FREE_SPACE + _size_of(PAGE - pages.page[page, USED])] = after
    if after >= 0:
        pages.page[after, _BEFORE] = before


@njit(cache=True, nogil=True)
def _link(pages, page):
    first = _FREE_SPACE + _size_of(PAGE - pages.page[page, USED])
    after = pages.meta[first]
    pages.page[page, _BEFORE], pages.page[page, _AFTER] = NOTHING, after
    if after >= 0:
        pages.page[after, _BEFORE] = page
    pages.meta[first] = page


@njit_inner_no_refcount
def set_used(pages, page, used):
    """Set the number of tuples of a page, and its class."""
    before, after = _size_of(PAGE - pages.page[page, USED]), _size_of(PAGE - used)
    if before != after and before >= 0:
        _unlink(pages, page)
    pages.page[page, USED] = used
    if before != after and after >= 0:
        _link(pages, page)


@njit_inner
def page_with_capacity(pages, wanted):
    """A page with at least `wanted` free places, one of the fullest such pages, so that pages are well filled."""
    # pages of its own class may fit, those of higher classes do
    for size in range(_size_of(wanted), _SIZES):
        page, tried = pages.meta[_FREE_SPACE + size], 0
        while page >= 0 and tried < _TRIES:
            if PAGE - pages.page[page, USED] >= wanted:
                return page
            page, tried = np.int64(pages.page[page, _AFTER]), tried + 1
    page = pages.meta[PAGES]
    pages.meta[PAGES] += 1
    pages.page[page, USED] = 0
    _link(pages, page)
    return page


@njit_no_refcount
def put(pages, page, cell, words):
    """Write tuples of a cell into a page with enough free places."""
    used = pages.page[page, USED]
    for i in range(words.shape[0]):
        pages.word[page, used + i], pages.source[page, used + i] = words[i], cell
    set_used(pages, page, used + words.shape[0])


@njit_no_refcount
def take(pages, cell, out):
    """Take all tuples of a cell out of its page, into out; returns how many."""
    page, taken, kept = pages.cell[cell, HOME], 0, 0
    for i in range(pages.page[page, USED]):
        if pages.source[page, i] == cell:
            out[taken] = pages.word[page, i]
            taken += 1
        else:
            pages.word[page, kept], pages.source[page, kept] = pages.word[page, i], pages.source[page, i]
            kept += 1
    set_used(pages, page, kept)
    return taken
