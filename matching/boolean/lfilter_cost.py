"""What LFilter expects its ways to cost, in nanoseconds: formulas of the paper, constants measured.

The paper's estimates (CIKM 2015, equations 1 to 6) count steps of binary search and assume that terms are independent
and equally frequent. Neither holds for words, so where the tree can be asked it is: the first level of the trie is
probed before anything is decided, and what lies below each node that was hit is known. `benchmarks.lfilter` times
each way on its own and fits the constants; they are those of a 2020s server core, and only their ratios matter.
"""

import numpy as np
from numba import njit

from matching.boolean.lfilter_parts import longer, log2_of
from matching.boolean.mbr_trie import END_CHILD, FIRST_CHILD, HIGH, LOW, OWN, probe_cost
from matching.boolean.mbr_trie_build import BLOCK
from matching.boolean.pt_quadtree import ENTRIES_BELOW, LIST_END, LIST_START, LISTS_BELOW

TRIE, QUADTREE = 1, 2
DIRECT, PRUNE = 1, 2

#: One node of the trie visited, one box of its list, one child found at the next level with all that follows.
NODE_NS, BOX_NS, LATER_NS = 30.0, 1.0, 60.0
#: One cell of the quadtree visited, one entry of a list looked at, one step of a search in a list.
CELL_NS, ENTRY_NS, LIST_STEP_NS = 30.0, 1.5, 4.0
#: Share of a pruned list that is left below a node that was hit.
LEFT_SHARE = 0.02
#: Cells a side of the message at the level where lists are estimated.
_FINE = 4


@njit(cache=True, nogil=True)
def trie_cost(trie, hits, many, terms):
    """Expected cost of walking the trie from the nodes hit at its first level."""
    cost = 0.0
    for i in range(many):
        node, first = hits[i] >> 32, hits[i] & 0xFFFFFFFF
        own = trie.head[node, OWN] - trie.head[node, LOW]
        children, left = trie.head[node, END_CHILD] - trie.head[node, FIRST_CHILD], terms - first
        cost += NODE_NS + BOX_NS * (own if own < BLOCK else own / BLOCK + 2 * BLOCK)
        if children == 0:
            cost += BOX_NS * (trie.head[node, HIGH] - trie.head[node, OWN])
        elif left > 0:
            probing, _ = probe_cost(children, left)
            cost += probing + LATER_NS * min(children, left)
    return cost


@njit(cache=True, nogil=True)
def prune_cost(entries, children, terms):
    """Expected cost of pruning a list by so many children and terms: each is sought in the list."""
    return min(children, terms) * 2 * log2_of(entries) * LIST_STEP_NS + entries * LEFT_SHARE * ENTRY_NS


@njit(cache=True, nogil=True)
def pays_to_prune(entries, children, terms):
    """Whether a list is pruned rather than looked through."""
    return prune_cost(entries, children, terms) < entries * ENTRY_NS


@njit(cache=True, nogil=True)
def verify_cost(tree, lists, listed, many):
    """Expected cost of verifying known lists, each the cheaper way."""
    cost = 0.0
    for i in range(listed):
        entries = tree.branch[lists[i], LIST_END] - tree.branch[lists[i], LIST_START]
        cost += min(entries * ENTRY_NS, prune_cost(entries, many, many))
    return cost


@njit(cache=True, nogil=True)
def quadtree_cost(lists, entries, many):
    """Expected cost of finding and verifying so many lists with so many entries together."""
    if lists <= 0.0:
        return CELL_NS
    each = np.int64(entries / lists) + 1
    return lists * (CELL_NS + min(each * ENTRY_NS, prune_cost(each, many, many)))


@njit(cache=True, nogil=True)
def lists_within(tree, left, bottom, right, top, stack):
    """Expected lists and entries that a rectangle touches, text aside; returns (lists, entries, stack).

    As in the paper: of a cell that is partly covered, the share that is covered; cells are not opened beyond the
    level at which the rectangle is a few cells wide.
    """
    lists, entries, depth = 0.0, 0.0, 1
    left, right, bottom, top = min(left, right), max(left, right), min(bottom, top), max(bottom, top)
    widest = max(right - left, top - bottom) + 1
    finest = 15 - log2_of(widest) + 1  # cells of this level are no larger than the rectangle
    finest = min(finest + 2, 14)
    stack[0] = 0
    while depth > 0:
        depth -= 1
        node = stack[depth]
        cell = tree.cell[node]
        level, line, column = cell >> 28, cell >> 14 & 0x3FFF, cell & 0x3FFF
        side = 1 << (15 - level)
        wide = min(right, (column + 1) * side - 1) - max(left, column * side) + 1
        high = min(top, (line + 1) * side - 1) - max(bottom, line * side) + 1
        if wide <= 0 or high <= 0:
            continue
        share = wide * high / (side * side)
        if level >= finest or share == 1.0:
            lists += tree.branch[node, LISTS_BELOW] * share
            entries += tree.branch[node, ENTRIES_BELOW] * share
            continue
        own = tree.branch[node, LIST_END] - tree.branch[node, LIST_START]
        lists += own > 0
        entries += own
        stack = longer(stack, depth + 4)
        for quarter in range(4):
            if tree.branch[node, quarter] >= 0:
                stack[depth] = tree.branch[node, quarter]
                depth += 1
    return lists, entries, stack
