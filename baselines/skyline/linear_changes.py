"""Changes of linear quadtrees: additions and removals of messages, splits and merges of leaves, bits of signatures.

See `baselines.skyline.linear_quadtrees` for the data. Each kernel checks the capacity for a posting before it changes
anything for it; without capacity it returns to Python, which calls `grown` and then the kernel again.
"""

import numpy as np

from baselines.skyline.cells import DEEPEST, code_in, code_of, column_in, line_in, slot_in, tuple_of
from baselines.skyline.keyword_table import enter_keyword, find_keyword, forget_keyword
from baselines.skyline.linear_quadtrees import (
    CAPACITY,
    CLASS,
    FREE_TREE,
    HIGH,
    LEAVES,
    LISTS,
    READS,
    SIGNED,
    SIGNED_SHIFT,
    START,
    WRITES,
    allocate,
    appended,
    class_of,
    clear,
    close_leaves,
    code_at,
    count_at,
    first_code,
    has_message,
    is_leaf,
    key_of,
    leaf_count,
    leaf_start,
    leaf_value,
    leaves_through,
    level_at,
    levels_in_common,
    may_change,
    open_leaf,
    place_of,
    release,
    set_block,
    shortened,
    sign,
    start_at,
)
from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.storage.slots import put


@njit(cache=True, nogil=True)
def insert(trees, work, log, slots, progress):
    """Insert the postings from `progress` (message, term) on; returns whether all are inserted."""
    while progress[0] < slots.shape[0]:
        slot = slots[progress[0]]
        word = tuple_of(log, slot)
        while progress[1] < log.term_count[slot]:
            if not may_change(trees):
                return False
            term = log.terms[log.term_start[slot] + progress[1]]
            entry = find_keyword(trees.table, term)
            work[READS] += 1
            work[LISTS] += 1
            if entry < 0:
                enter_keyword(trees.table, term, word)
            elif trees.table.value[entry] < 0:
                _insert_into(trees, work, -1 - trees.table.value[entry], word)
            else:
                trees.table.value[entry] = _with_one_more(trees, work, trees.table.value[entry], word)
            progress[1] += 1
        progress[0] += 1
        progress[1] = 0
    return True


@njit_inner
def _with_one_more(trees, work, value, word):
    """Add a message to a keyword of at most one leaf; returns the keyword's new value in the table."""
    if not is_leaf(value):
        start = allocate(trees, 1)
        trees.pool[start], trees.pool[start + 1] = value, word
        return leaf_value(start, 2)
    start, count = leaf_start(value), leaf_count(value)
    if count < CAPACITY:
        return leaf_value(appended(trees, start, count, word), count + 1)
    row = trees.meta[FREE_TREE]
    if row >= 0:
        trees.meta[FREE_TREE] = trees.tree[row, START]
    else:
        row = trees.meta[HIGH]
        trees.meta[HIGH] += 1
    trees.tree[row, LEAVES], trees.tree[row, CLASS] = 0, 1
    trees.tree[row, START] = allocate(trees, 2)
    trees.signature[row] = 0
    for i in range(count):
        sign(trees, row, code_in(trees.pool[start + i]) >> SIGNED_SHIFT)
    sign(trees, row, code_in(word) >> SIGNED_SHIFT)
    # the new signature got a bit for each message
    work[LISTS] += count + 1
    open_leaf(trees, row, 0, key_of(0, 0), start, count)
    _split(trees, work, row, 0, word)
    return -1 - row


@njit_inner
def _insert_into(trees, work, row, word):
    """Add a message to a quadtree."""
    code = code_in(word)
    sign(trees, row, code >> SIGNED_SHIFT)
    work[READS] += 1
    work[LISTS] += 1
    i = leaves_through(trees, row, code, 0) - 1
    if i >= 0 and first_code(code, level_at(trees, row, i)) == code_at(trees, row, i):
        start, count = start_at(trees, row, i), count_at(trees, row, i)
        # a leaf of the deepest level is not split: all its messages may be at one point
        if count < CAPACITY or level_at(trees, row, i) == DEEPEST:
            set_block(trees, row, i, appended(trees, start, count, word), count + 1)
        else:
            _split(trees, work, row, i, word)
        return
    # the point lies in a white leaf: the new leaf is the largest cell around it that has no black leaf
    level = 0
    if i >= 0:
        level = levels_in_common(code, code_at(trees, row, i)) + 1
    if i + 1 < trees.tree[row, LEAVES]:
        level = max(level, levels_in_common(code, code_at(trees, row, i + 1)) + 1)
    start = allocate(trees, 0)
    trees.pool[start] = word
    work[WRITES] += 1
    open_leaf(trees, row, i + 1, key_of(first_code(code, level), level), start, 1)


@njit(cache=True, nogil=True)
def _split(trees, work, row, i, word):
    """Split a full leaf and a new message at the first level at which they differ; empty quadrants stay white."""
    start, count = start_at(trees, row, i), count_at(trees, row, i)
    words = np.empty(CAPACITY + 1, np.int64)
    # copied first: the block is released before others are allocated
    put(words, 0, trees.pool[start : start + count])
    words[count] = word
    release(trees, start, class_of(count))
    close_leaves(trees, row, i, i + 1)
    columns, lines = column_in(word), line_in(word)
    differing = np.int64(0)
    for each in words[:count]:
        differing |= (column_in(each) ^ columns) | (line_in(each) ^ lines)
    level = DEEPEST
    while differing:
        differing >>= 1
        level -= 1
    # all messages lie in one cell of the deepest level
    if level == DEEPEST:
        start = allocate(trees, class_of(count + 1))
        put(trees.pool, start, words[: count + 1])
        work[WRITES] += 1
        open_leaf(trees, row, i, key_of(code_in(word), DEEPEST), start, count + 1)
        return
    cell, down = first_code(code_in(word), level), DEEPEST - level - 1
    part = np.empty(CAPACITY + 1, np.int64)
    for quadrant in range(4):
        length = 0
        for each in words[: count + 1]:
            if code_of((column_in(each) >> down) & 1, (line_in(each) >> down) & 1) == quadrant:
                part[length] = each
                length += 1
        if length:
            start = allocate(trees, class_of(length))
            put(trees.pool, start, part[:length])
            open_leaf(trees, row, i, key_of(cell | (quadrant << (2 * down)), level + 1), start, length)
            work[WRITES] += 1
            i += 1


@njit_no_refcount
def delete(trees, work, log, slots, progress):
    """Remove the postings from `progress` (message, term, number missing) on; returns whether all are removed.

    A posting is missing if it is not where it should be; the caller raises for the whole window then.
    """
    while progress[0] < slots.shape[0]:
        slot = slots[progress[0]]
        code = code_in(tuple_of(log, slot))
        while progress[1] < log.term_count[slot]:
            # also for removals: a leaf that shrinks gets a smaller block before it releases the larger
            if not may_change(trees):
                return False
            entry = find_keyword(trees.table, log.terms[log.term_start[slot] + progress[1]])
            work[READS] += 1
            work[LISTS] += 1
            if entry < 0:
                progress[2] += 1
            elif trees.table.value[entry] < 0:
                progress[2] += _delete_from(trees, work, entry, slot, code)
            else:
                progress[2] += _delete_few(trees, entry, slot)
            progress[1] += 1
        progress[0] += 1
        progress[1] = 0
    return True


@njit_inner_no_refcount
def _delete_few(trees, entry, slot):
    """Take a message from a keyword of one leaf; returns 1 if it is not there, else 0."""
    value = trees.table.value[entry]
    if not is_leaf(value):
        if slot_in(value) != slot:
            return 1
        forget_keyword(trees.table, entry)
        return 0
    start, count = leaf_start(value), leaf_count(value)
    at = place_of(trees, start, count, slot)
    if at < 0:
        return 1
    start = shortened(trees, start, count, at)
    if count == 2:
        trees.table.value[entry] = trees.pool[start]
        release(trees, start, 0)
    else:
        trees.table.value[entry] = leaf_value(start, count - 1)
    return 0


@njit_inner_no_refcount
def _delete_from(trees, work, entry, slot, code):
    """Take a message from a quadtree; returns 1 if it is not there, else 0."""
    row = -1 - trees.table.value[entry]
    i = leaves_through(trees, row, code, 0) - 1
    work[READS] += 1
    work[LISTS] += 1
    if i < 0:
        return 1
    start, count, level = start_at(trees, row, i), count_at(trees, row, i), level_at(trees, row, i)
    at = place_of(trees, start, count, slot)
    if at < 0:
        return 1
    if count == 1:
        release(trees, start, 0)
        close_leaves(trees, row, i, i + 1)
        work[WRITES] += 1
    else:
        set_block(trees, row, i, shortened(trees, start, count, at), count - 1)
    # a leaf that is no larger than the signed cell and not empty keeps the bit; else the cell's other leaves decide
    if (count == 1 or level < SIGNED) and not has_message(trees, row, code >> SIGNED_SHIFT):
        clear(trees, row, code >> SIGNED_SHIFT)
    if count - 1 <= CAPACITY // 2:
        _merge(trees, work, entry, row, i, i + (count > 1), count - 1, first_code(code, level), level)
    return 0


@njit_no_refcount
def _merge(trees, work, entry, row, first, end, total, code, level):
    """Merge all leaves of the largest cell around leaves [first, end) that has at most half a leaf of messages.

    Half, so that a leaf at the limit is not split and merged in turn.
    """
    leaves = trees.tree[row, LEAVES]
    begun, a, b, sum_ = level, first, end, total
    while level > 0:
        lowest = first_code(code, level - 1)
        highest = lowest + (np.int64(1) << (2 * (DEEPEST - level + 1)))
        while a > 0 and sum_ <= CAPACITY // 2 and code_at(trees, row, a - 1) >= lowest:
            a -= 1
            sum_ += count_at(trees, row, a)
            work[READS] += 1
        while b < leaves and sum_ <= CAPACITY // 2 and code_at(trees, row, b) < highest:
            sum_ += count_at(trees, row, b)
            b += 1
            work[READS] += 1
        if sum_ > CAPACITY // 2:
            break
        level, code, first, end, total = level - 1, lowest, a, b, sum_
    if level == begun:
        return
    start = allocate(trees, class_of(total))
    filled = start
    for i in range(first, end):
        old, count = start_at(trees, row, i), count_at(trees, row, i)
        for at in range(old, old + count):
            trees.pool[filled] = trees.pool[at]
            filled += 1
        release(trees, old, class_of(count))
    work[LISTS] += end - first
    work[WRITES] += 1
    # one leaf for the whole world: the keyword becomes one of one leaf, without a quadtree
    if level == 0:
        release(trees, trees.tree[row, START], trees.tree[row, CLASS] + 1)
        trees.tree[row, START], trees.meta[FREE_TREE] = trees.meta[FREE_TREE], row
        trees.table.value[entry] = leaf_value(start, total)
        return
    close_leaves(trees, row, first, end)
    open_leaf(trees, row, first, key_of(code, level), start, total)
