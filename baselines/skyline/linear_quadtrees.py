"""A linear quadtree with a signature for each keyword: the data of window index `il_quadtree`.

A linear quadtree has no inner nodes and no pointers: it is its black leaves, the cells with messages, in the order of
their Morton codes. White leaves, the empty ones, are the gaps between. A leaf has at most `CAPACITY` messages, unless
it is of the deepest level; one that overflows is split into the quadrants that its messages lie in. The leaves of a
cell are merged once they fit into half the capacity. Each leaf is a block of one pool. So is the order of a quadtree:
a key (code and level) for each leaf, ascending, so that a leaf is found by bisection; then where the leaves lie.

The signature has a bit for every cell of level `SIGNED`, in the order of their codes: whether the keyword has a message
there. Bits of larger cells are runs of these. It is exact: the bit is cleared with the last message of a cell. A
keyword whose messages fit into one leaf has that leaf and no signature, which would take as long to read. A keyword
with a single message has one word in the table.

Read on in `baselines.skyline.linear_changes`, which adds and removes messages.
"""

from typing import NamedTuple

import numpy as np

from baselines.skyline.cells import (
    DEEPEST,
    code_in,
    column_by,
    line_by,
    slot_in,
)
from baselines.skyline.keyword_table import (
    KeywordTable,
    has_capacity,
    new_table,
    with_capacity,
)
from matching.model import Int64, UInt8
from matching.njit import njit, njit_no_refcount
from matching.storage.slots import resized

#: Messages of a leaf.
CAPACITY = 16
#: Level of the cells that a signature has bits for.
SIGNED = 4
#: By how many bits the code of a deepest cell is longer than that of its cell in a signature.
SIGNED_SHIFT = 2 * (DEEPEST - SIGNED)
_SIGNATURE_BYTES = 4**SIGNED // 8
_CODE_BITS = 2 * DEEPEST
#: A key of the order: code << 4 | level. The word of a leaf: number of its messages << 40 | start of its block.
_LEVEL_BITS, _START_BITS = 4, 40
_LEVELS, _STARTS = (1 << _LEVEL_BITS) - 1, (1 << _START_BITS) - 1
#: Bit of a value in the table of keywords: the keyword has one leaf, with its start and its count in the bits below.
_LEAF, _COUNT_BITS = 1 << 62, 8
_NONE = -1
#: Columns of `Quadtrees.tree`.
START, LEAVES, CLASS = range(3)
#: Positions in `meta`; then the first free block of each size.
POOL_END, LONGEST, HIGH, FREE_TREE, _FREE = range(5)
_CLASSES = 40
#: Positions in `IlQuadtree.operations`, the work of arrivals and ends.
READS, WRITES, LISTS = range(3)


class Quadtrees(NamedTuple):
    """table : KeywordTable    a word for the only message; `_LEAF`, start and count; or -1 - number of a quadtree
    tree : int64[t, 3]      where its order starts in `pool`, how many leaves it has, log2 of its capacity:
                            keys of the leaves, then words of the leaves. `START` of a free row: the next free row
    signature : uint8[t, 4**SIGNED / 8]
    pool : int64[p]         blocks of a power of two words; a free one starts with the start of the next free one
    meta : int64[4 + 40]    end of the used pool, words of the longest block ever, quadtrees ever used, first free
                            quadtree, first free block by size
    """

    table: KeywordTable
    tree: Int64
    signature: UInt8
    pool: Int64
    meta: Int64


def new_quadtrees() -> Quadtrees:
    """No keywords."""
    meta = np.full(_FREE + _CLASSES, _NONE, np.int64)
    meta[POOL_END], meta[LONGEST], meta[HIGH] = 0, 0, 0
    tree, signature = np.zeros((16, 3), np.int64), np.zeros((16, _SIGNATURE_BYTES), np.uint8)
    return Quadtrees(new_table(), tree, signature, np.zeros(64, np.int64), meta)


def grown(trees: Quadtrees) -> Quadtrees:
    """Quadtrees with capacity for another posting; what has to grow grows by half. O(all), amortised O(1)."""
    trees = trees._replace(table=with_capacity(trees.table))
    wanted = int(trees.meta[POOL_END]) + int(_words(trees))
    if wanted > trees.pool.shape[0]:
        trees = trees._replace(pool=resized(trees.pool, wanted + wanted // 2))
    rows = trees.tree.shape[0]
    if trees.meta[HIGH] == rows:
        rows = rows * 3 // 2
        trees = trees._replace(tree=resized(trees.tree, rows), signature=resized(trees.signature, rows))
    return trees


def used_bytes(trees: Quadtrees) -> int:
    """Memory of the table, and of quadtrees, signatures and the pool as far as they have been used."""
    high = int(trees.meta[HIGH])
    table = trees.table.term.nbytes + trees.table.value.nbytes
    return table + trees.tree[:high].nbytes + trees.signature[:high].nbytes + 8 * int(trees.meta[POOL_END])


# ------------------------------------------------------------------------------------------------------------- blocks


@njit(cache=True, nogil=True)
def _words(trees):
    """Words that one posting may need: four leaves after a split, and a block twice as long as the longest one."""
    return 2 * trees.meta[LONGEST] + 8 * CAPACITY


@njit(cache=True, nogil=True)
def may_change(trees):
    """Whether any one posting can be added or removed without `grown`; checked before, since nothing is undone."""
    if not has_capacity(trees.table) or trees.meta[HIGH] == trees.tree.shape[0]:
        return False
    return trees.meta[POOL_END] + _words(trees) <= trees.pool.shape[0]


@njit(cache=True, nogil=True)
def class_of(length):
    """Exponent of the smallest block of at least so many words."""
    size = 0
    while (1 << size) < length:
        size += 1
    return size


@njit(cache=True, nogil=True)
def allocate(trees, size):
    start = trees.meta[_FREE + size]
    if start >= 0:
        trees.meta[_FREE + size] = trees.pool[start]
    else:
        start = trees.meta[POOL_END]
        trees.meta[POOL_END] += 1 << size
        trees.meta[LONGEST] = max(trees.meta[LONGEST], 1 << size)
    return start


@njit(cache=True, nogil=True)
def release(trees, start, size):
    trees.pool[start] = trees.meta[_FREE + size]
    trees.meta[_FREE + size] = start


@njit(cache=True, nogil=True)
def appended(trees, start, count, word):
    """Add a word to a block of `count` words; returns the start of the smallest block that they fit."""
    size = class_of(count)
    if count == 1 << size:
        larger = allocate(trees, size + 1)
        for i in range(count):
            trees.pool[larger + i] = trees.pool[start + i]
        # after the copy: its first word becomes a link of the free list
        release(trees, start, size)
        start = larger
    trees.pool[start + count] = word
    return start


@njit_no_refcount
def shortened(trees, start, count, at):
    """Remove the word at place `at` from a block of `count` > 1 words; returns the start of the block they fit now."""
    # the last word takes the place: words of a leaf have no order, since candidates are sorted at the end
    trees.pool[start + at] = trees.pool[start + count - 1]
    size = class_of(count)
    if count - 1 <= (1 << size) >> 1:
        smaller = allocate(trees, size - 1)
        for i in range(count - 1):
            trees.pool[smaller + i] = trees.pool[start + i]
        release(trees, start, size)
        start = smaller
    return start


@njit(cache=True, nogil=True)
def place_of(trees, start, count, slot):
    """Place of the word in a block that has the slot; -1 if none has."""
    for i in range(count):
        if slot_in(trees.pool[start + i]) == slot:
            return i
    return _NONE


# ---------------------------------------------------------------------------------------------------- words and order


@njit(cache=True, nogil=True)
def is_leaf(value):
    """Whether a keyword's value, not negative, stands for its only leaf; else it stands for its only message."""
    return value >= _LEAF


@njit(cache=True, nogil=True)
def leaf_start(value):
    """Where in the pool the only leaf of a keyword starts."""
    return (value & (_LEAF - 1)) >> _COUNT_BITS


@njit(cache=True, nogil=True)
def leaf_count(value):
    """Messages of the only leaf of a keyword."""
    return value & ((1 << _COUNT_BITS) - 1)


@njit(cache=True, nogil=True)
def leaf_value(start, count):
    return _LEAF | (start << _COUNT_BITS) | count


@njit(cache=True, nogil=True)
def code_at(trees, row, i):
    """Code of the first deepest cell in the i-th leaf of a quadtree."""
    return trees.pool[trees.tree[row, START] + i] >> _LEVEL_BITS


@njit(cache=True, nogil=True)
def level_at(trees, row, i):
    """Level of the i-th leaf."""
    return trees.pool[trees.tree[row, START] + i] & _LEVELS


@njit(cache=True, nogil=True)
def _block_at(trees, row, i):
    """Place in the pool of the word of the i-th leaf."""
    return trees.tree[row, START] + (1 << trees.tree[row, CLASS]) + i


@njit(cache=True, nogil=True)
def start_at(trees, row, i):
    """Where in the pool the i-th leaf starts."""
    return trees.pool[_block_at(trees, row, i)] & _STARTS


@njit(cache=True, nogil=True)
def count_at(trees, row, i):
    """Messages of the i-th leaf."""
    return trees.pool[_block_at(trees, row, i)] >> _START_BITS


@njit(cache=True, nogil=True)
def set_block(trees, row, i, start, count):
    trees.pool[_block_at(trees, row, i)] = (np.int64(count) << _START_BITS) | start


@njit(cache=True, nogil=True)
def leaves_through(trees, row, code, low):
    """How many leaves start at a code or before it; the caller knows that the first `low` do. O(log leaves)."""
    keys, high = trees.tree[row, START], trees.tree[row, LEAVES]
    while low < high:
        middle = (low + high) >> 1
        if trees.pool[keys + middle] >> _LEVEL_BITS <= code:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _resize(trees, row, size):
    """Move the order of a quadtree into a block for 2**size leaves."""
    old, its_class, leaves = trees.tree[row, START], trees.tree[row, CLASS], trees.tree[row, LEAVES]
    start = allocate(trees, size + 1)
    for i in range(leaves):
        trees.pool[start + i] = trees.pool[old + i]
        trees.pool[start + (1 << size) + i] = trees.pool[old + (1 << its_class) + i]
    release(trees, old, its_class + 1)
    trees.tree[row, START], trees.tree[row, CLASS] = start, size


@njit(cache=True, nogil=True)
def open_leaf(trees, row, at, key, start, count):
    """Put a leaf into the order at place `at`. O(leaves): those behind it move up, a few cache lines."""
    leaves, size = trees.tree[row, LEAVES], trees.tree[row, CLASS]
    if leaves == 1 << size:
        _resize(trees, row, size + 1)
        size += 1
    keys = trees.tree[row, START]
    blocks = keys + (1 << size)
    for i in range(leaves, at, -1):
        trees.pool[keys + i] = trees.pool[keys + i - 1]
        trees.pool[blocks + i] = trees.pool[blocks + i - 1]
    trees.pool[keys + at] = key
    trees.tree[row, LEAVES] = leaves + 1
    set_block(trees, row, at, start, count)


@njit(cache=True, nogil=True)
def close_leaves(trees, row, first, end):
    """Remove leaves from the order; their messages are not read."""
    keys, blocks, leaves = trees.tree[row, START], _block_at(trees, row, 0), trees.tree[row, LEAVES]
    for i in range(end, leaves):
        trees.pool[keys + i - (end - first)] = trees.pool[keys + i]
        trees.pool[blocks + i - (end - first)] = trees.pool[blocks + i]
    leaves -= end - first
    trees.tree[row, LEAVES] = leaves
    size = trees.tree[row, CLASS]
    # only at a quarter, so that one leaf more or less does not move the quadtree each time
    if size > 1 and leaves <= (1 << size) >> 2:
        _resize(trees, row, size - 1)


@njit(cache=True, nogil=True)
def key_of(code, level):
    return (code << _LEVEL_BITS) | level


@njit(cache=True, nogil=True)
def levels_in_common(one, other):
    """Level of the smallest cell that has both codes."""
    level, differing = DEEPEST, one ^ other
    while differing:
        differing >>= 2
        level -= 1
    return level


@njit(cache=True, nogil=True)
def first_code(code, level):
    """First code of the cell of this level that `code` lies in."""
    below = 2 * (DEEPEST - level)
    return code >> below << below


@njit(cache=True, nogil=True)
def box_of(code, level):
    """First column, first line and width of a cell; the unit is a cell of level `DEEPEST`."""
    return column_by(code), line_by(code), 1 << (DEEPEST - level)


# --------------------------------------------------------------------------------------------------------- signatures


@njit(cache=True, nogil=True)
def is_signed(trees, row, cell):
    """Whether a keyword has a message in this cell of level `SIGNED`."""
    return (trees.signature[row, cell >> 3] >> (cell & 7)) & 1


@njit(cache=True, nogil=True)
def sign(trees, row, cell):
    trees.signature[row, cell >> 3] |= np.uint8(1 << (cell & 7))


@njit(cache=True, nogil=True)
def clear(trees, row, cell):
    trees.signature[row, cell >> 3] &= np.uint8(255 - (1 << (cell & 7)))


@njit_no_refcount
def has_message(trees, row, cell):
    """Whether any leaf of a quadtree has a message in a cell of level `SIGNED`."""
    first = cell << SIGNED_SHIFT
    i = leaves_through(trees, row, first, 0) - 1
    if i >= 0 and level_at(trees, row, i) < SIGNED:
        # a leaf larger than the cell may contain the cell: its messages decide
        start = start_at(trees, row, i)
        for at in range(start, start + count_at(trees, row, i)):
            if code_in(trees.pool[at]) >> SIGNED_SHIFT == cell:
                return True
    # a leaf that starts with the cell and is no larger lies in it; the cell's other leaves start later: see below
    elif i >= 0 and code_at(trees, row, i) == first:
        return True
    return i + 1 < trees.tree[row, LEAVES] and code_at(trees, row, i + 1) >> SIGNED_SHIFT == cell
