"""A linear quadtree with a signature for each keyword: the data of window index `il_quadtree`.

A linear quadtree (Gargantini 1982) has no inner nodes and no pointers: it is the list of its black leaves, the cells
with messages, in the order of their Morton codes. White leaves, the empty cells, are the gaps between. A leaf has at
most `CAPACITY` messages, unless it is of the deepest level; a leaf that overflows is split into the quadrants that have
messages. The leaves of a cell are merged once they fit into half the capacity.

All arrays are blocks of one pool of int64, called words here. A leaf is a block with one word for each message
(`baselines.skyline.cells`). The *order* of a quadtree is a block with a key (Morton code and level) for each leaf,
ascending, for bisection, followed by a word for each leaf (number of messages, start of its block).

The signature of a keyword has a bit for every cell of level `SIGNED`, in the order of the Morton codes: whether the
keyword has a message in that cell. Larger cells are runs of bits. The signature is exact: the removal of the last
message of a cell clears the bit. A keyword whose messages fit into one leaf has neither order nor signature, since the
leaf is read as quickly. A keyword with a single message has no block: its word is in the table of keywords.
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
    KeywordEntries,
    has_capacity,
    new_table,
    with_capacity,
)
from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int64, UInt8
from matching.storage.slots import resized

#: Most messages of a leaf above the deepest level.
CAPACITY = 16
#: Level of the cells that a signature has bits for.
SIGNED = 4
#: Bits to shift the code of a deepest cell right by, for the code of its cell of level `SIGNED`.
SIGNED_SHIFT = 2 * (DEEPEST - SIGNED)
_SIGNATURE_BYTES = 4**SIGNED // 8
_CODE_BITS = 2 * DEEPEST
#: In the order, key of a leaf: code << 4 | level; word of a leaf: number of messages << 40 | start of its block.
_LEVEL_BITS, _START_BITS = 4, 40
_LEVELS, _STARTS = (1 << _LEVEL_BITS) - 1, (1 << _START_BITS) - 1
#: Flag of a value in the table of keywords: the keyword has one leaf, start << `_COUNT_BITS` | number of messages.
_LEAF, _COUNT_BITS = 1 << 62, 8
_NONE = -1
#: Columns of `LinearQuadtrees.tree`.
START, LEAVES, CLASS = range(3)
#: Indexes in `LinearQuadtrees.meta`; from `_FREE` on the first free block of each size.
POOL_END, LONGEST, HIGH, FREE_TREE, _FREE = range(5)
#: Number of block sizes: 2**0 to 2**39 words.
_CLASSES = 40
#: Indexes in `IlQuadtree.operations`, which counts the work of additions and removals.
READS, WRITES, LISTS = range(3)


class LinearQuadtrees(NamedTuple):
    """The quadtrees and signatures of all keywords; a *row* is the number of a quadtree, below t.

    table : KeywordEntries    value of a keyword: the word of its only message; or `_LEAF` | start | count of its only
                            leaf; or -1 - row of its quadtree
    tree : int64[t, 3]      start of its order in `pool`; number of its leaves; log2 of the leaves that the order has
                            capacity for. `START` of a free row: the next free row
    signature : uint8[t, 4**SIGNED / 8]
    pool : int64[p]         blocks of 2**size words; the first word of a free block: start of the next free one of its
                            size
    meta : int64[4 + 40]    end of the used pool, words of the longest block ever, rows ever used, first free row, first
                            free block by size; -1 for none
    """

    table: KeywordEntries
    tree: Int64
    signature: UInt8
    pool: Int64
    meta: Int64


def new_quadtrees() -> LinearQuadtrees:
    """Empty arrays, without a keyword."""
    meta = np.full(_FREE + _CLASSES, _NONE, np.int64)
    meta[POOL_END], meta[LONGEST], meta[HIGH] = 0, 0, 0
    tree, signature = np.zeros((16, 3), np.int64), np.zeros((16, _SIGNATURE_BYTES), np.uint8)
    return LinearQuadtrees(new_table(), tree, signature, np.zeros(64, np.int64), meta)


def grown(trees: LinearQuadtrees) -> LinearQuadtrees:
    """The same quadtrees with capacity for one more posting; grows by half. O(size of the arrays), amortised O(1)."""
    trees = trees._replace(table=with_capacity(trees.table))
    wanted = int(trees.meta[POOL_END]) + int(_words(trees))
    if wanted > trees.pool.shape[0]:
        trees = trees._replace(pool=resized(trees.pool, wanted + wanted // 2))
    rows = trees.tree.shape[0]
    if trees.meta[HIGH] == rows:
        rows = rows * 3 // 2
        trees = trees._replace(tree=resized(trees.tree, rows), signature=resized(trees.signature, rows))
    return trees


def used_bytes(trees: LinearQuadtrees) -> int:
    """Bytes of memory of the table, and of the used parts of the other arrays."""
    high = int(trees.meta[HIGH])
    table = trees.table.term.nbytes + trees.table.value.nbytes
    return table + trees.tree[:high].nbytes + trees.signature[:high].nbytes + 8 * int(trees.meta[POOL_END])


# ------------------------------------------------------------------------------------------------------------- blocks


@njit(cache=True, nogil=True)
def _words(trees):
    """Words of the pool that one addition may take: four leaves of a split, and a block twice the longest one."""
    return 2 * trees.meta[LONGEST] + 8 * CAPACITY


@njit_inner
def may_change(trees):
    """Whether one addition or removal fits without `grown`. Kernels check this first, since they cannot roll back."""
    if not has_capacity(trees.table) or trees.meta[HIGH] == trees.tree.shape[0]:
        return False
    return trees.meta[POOL_END] + _words(trees) <= trees.pool.shape[0]


@njit_inner
def class_of(length):
    """log2 of the smallest block of at least `length` words."""
    size = 0
    while (1 << size) < length:
        size += 1
    return size


@njit_inner
def allocate(trees, size):
    """Start of a free block of 2**size words; the caller has checked `may_change`. O(1)."""
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
    """Add a block of 2**size words to the free list of its size; overwrites its first word. O(1)."""
    trees.pool[start] = trees.meta[_FREE + size]
    trees.meta[_FREE + size] = start


@njit_inner
def appended(trees, start, count, word):
    """Add a word to a block of `count` words, and move it if it was full; returns the block's start. Amortised O(1)."""
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
    """Remove word `at` from a block of `count` > 1 words, and move it if a smaller one suffices; returns its start."""
    # the last word fills the gap: words of a leaf have no order, since queries sort their candidates
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
    """Index of the word with this slot in a block of `count` words; -1 if there is none. O(count)."""
    for i in range(count):
        if slot_in(trees.pool[start + i]) == slot:
            return i
    return _NONE


# ---------------------------------------------------------------------------------------------------- words and order


@njit(cache=True, nogil=True)
def is_leaf(value):
    """Whether a value >= 0 of the table is that of an only leaf; else it is the word of an only message."""
    return value >= _LEAF


@njit(cache=True, nogil=True)
def leaf_start(value):
    """Start in the pool of a keyword's only leaf, from its value in the table."""
    return (value & (_LEAF - 1)) >> _COUNT_BITS


@njit(cache=True, nogil=True)
def leaf_count(value):
    """Number of messages of a keyword's only leaf, from its value in the table."""
    return value & ((1 << _COUNT_BITS) - 1)


@njit_inner
def leaf_value(start, count):
    """Value in the table of a keyword with an only leaf."""
    return _LEAF | (start << _COUNT_BITS) | count


@njit(cache=True, nogil=True)
def code_at(trees, row, i):
    """Morton code of the first deepest cell in leaf i of the quadtree in this row."""
    return trees.pool[trees.tree[row, START] + i] >> _LEVEL_BITS


@njit(cache=True, nogil=True)
def level_at(trees, row, i):
    """Level of leaf i; the root has level 0."""
    return trees.pool[trees.tree[row, START] + i] & _LEVELS


@njit_inner
def _block_at(trees, row, i):
    """Index in the pool of the word of leaf i."""
    return trees.tree[row, START] + (1 << trees.tree[row, CLASS]) + i


@njit(cache=True, nogil=True)
def start_at(trees, row, i):
    """Start in the pool of the block of leaf i."""
    return trees.pool[_block_at(trees, row, i)] & _STARTS


@njit(cache=True, nogil=True)
def count_at(trees, row, i):
    """Number of messages of leaf i."""
    return trees.pool[_block_at(trees, row, i)] >> _START_BITS


@njit_inner
def set_block(trees, row, i, start, count):
    """Set start and number of messages of leaf i."""
    trees.pool[_block_at(trees, row, i)] = (np.int64(count) << _START_BITS) | start


@njit_inner
def leaves_through(trees, row, code, low):
    """Number of leaves that start at `code` or before; the caller knows that the first `low` do. O(log leaves)."""
    keys, high = trees.tree[row, START], trees.tree[row, LEAVES]
    while low < high:
        middle = (low + high) >> 1
        if trees.pool[keys + middle] >> _LEVEL_BITS <= code:
            low = middle + 1
        else:
            high = middle
    return low


@njit_inner
def _resize(trees, row, size):
    """Move the order of a quadtree into a block for 2**size leaves."""
    old, its_class, leaves = trees.tree[row, START], trees.tree[row, CLASS], trees.tree[row, LEAVES]
    start = allocate(trees, size + 1)
    for i in range(leaves):
        trees.pool[start + i] = trees.pool[old + i]
        trees.pool[start + (1 << size) + i] = trees.pool[old + (1 << its_class) + i]
    release(trees, old, its_class + 1)
    trees.tree[row, START], trees.tree[row, CLASS] = start, size


@njit_inner
def open_leaf(trees, row, at, key, start, count):
    """Insert a leaf into the order at index `at`. O(leaves) moves within a few cache lines."""
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


@njit_inner
def close_leaves(trees, row, first, end):
    """Remove the leaves first..end-1 from the order; the caller has released or reused their blocks. O(leaves)."""
    keys, blocks, leaves = trees.tree[row, START], _block_at(trees, row, 0), trees.tree[row, LEAVES]
    for i in range(end, leaves):
        trees.pool[keys + i - (end - first)] = trees.pool[keys + i]
        trees.pool[blocks + i - (end - first)] = trees.pool[blocks + i]
    leaves -= end - first
    trees.tree[row, LEAVES] = leaves
    size = trees.tree[row, CLASS]
    # shrink at a quarter, not at a half, so that alternating additions and removals do not move the order each time
    if size > 1 and leaves <= (1 << size) >> 2:
        _resize(trees, row, size - 1)


@njit(cache=True, nogil=True)
def key_of(code, level):
    """Key of a leaf in the order."""
    return (code << _LEVEL_BITS) | level


@njit_inner
def levels_in_common(one, other):
    """Level of the smallest cell that contains both deepest cells, by their codes. O(levels)."""
    level, differing = DEEPEST, one ^ other
    while differing:
        differing >>= 2
        level -= 1
    return level


@njit_inner
def first_code(code, level):
    """Code of the first deepest cell in the cell of this level that contains `code`."""
    below = 2 * (DEEPEST - level)
    return code >> below << below


@njit(cache=True, nogil=True)
def box_of(code, level):
    """First column, first line and width of a cell, in cells of level `DEEPEST`."""
    return column_by(code), line_by(code), 1 << (DEEPEST - level)


# --------------------------------------------------------------------------------------------------------- signatures


@njit(cache=True, nogil=True)
def is_signed(trees, row, cell):
    """1 if the keyword has a message in this cell of level `SIGNED`, else 0; by its signature."""
    return (trees.signature[row, cell >> 3] >> (cell & 7)) & 1


@njit(cache=True, nogil=True)
def sign(trees, row, cell):
    """Set the bit of a cell."""
    trees.signature[row, cell >> 3] |= np.uint8(1 << (cell & 7))


@njit(cache=True, nogil=True)
def clear(trees, row, cell):
    """Clear the bit of a cell."""
    trees.signature[row, cell >> 3] &= np.uint8(255 - (1 << (cell & 7)))


@njit_inner_no_refcount
def has_message(trees, row, cell):
    """Whether any leaf of a quadtree has a message in a cell of level `SIGNED`; without its signature."""
    first = cell << SIGNED_SHIFT
    i = leaves_through(trees, row, first, 0) - 1
    if i >= 0 and level_at(trees, row, i) < SIGNED:
        # a leaf larger than the cell may contain it: read the leaf's messages
        start = start_at(trees, row, i)
        for at in range(start, start + count_at(trees, row, i)):
            if code_in(trees.pool[at]) >> SIGNED_SHIFT == cell:
                return True
    # a leaf with the first code of the cell, and no larger, is part of the cell; else the next leaf decides
    elif i >= 0 and code_at(trees, row, i) == first:
        return True
    return i + 1 < trees.tree[row, LEAVES] and code_at(trees, row, i + 1) >> SIGNED_SHIFT == cell
