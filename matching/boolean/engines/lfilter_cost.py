"""What LFilter expects its ways to cost, in nanoseconds: formulas of the paper, constants measured.

The paper's estimates (CIKM 2015, equations 1 to 6) count steps of binary search and assume that terms are independent
and equally frequent. Neither is true of words, so the index is read where it can be: the first level of the trie is
probed before anything is decided, and what lies below each node that was hit is known. The constants were fitted to
times of the kernels: each way forced, over groups of 25 messages of like work, points and rectangles of 20 to 1,000
words, 200,000 and 1,000,000 subscriptions. Of trie to quadtree the ratio that is expected here is then 0.71 to 1.24
times what it is in nine groups of ten, over a hundredfold range. Only the ratios matter; `skyray bench boolean --figure
choice` shows whether they still lead to the right choices.
"""

import numpy as np

from matching.boolean.engines.lfilter_parts import log2_of
from matching.boolean.engines.mbr_trie import END_CHILD, FIRST_CHILD, LOW, OWN
from matching.boolean.engines.mbr_trie_build import BLOCK
from matching.boolean.engines.pt_quadtree import ENTRIES_BELOW, LIST_END, LIST_START, LISTS_BELOW
from matching.njit import njit, njit_no_refcount

TRIE, QUADTREE = 1, 2
DIRECT, PRUNE = 1, 2

#: The trie: a term sought at its first level, a node hit there, a block of its list, and each child that may be found
#: below one, with all that follows. Blocks are read one after the other, so that many cost little each.
TERM_NS, NODE_NS, BLOCK_NS, CHILD_NS = 5.0, 30.0, 4.0, 12.5
#: The quadtree: a list with the cell it belongs to; an entry looked at, and how much more for each term of the message,
#: since a longer text lets more entries through.
LIST_NS, ENTRY_NS, ENTRY_AND_TERM_NS = 130.0, 3.8, 0.013
#: Pruning: a step of the search for a node's ranks in a list, and an entry of the list, most of which are never seen.
LIST_STEP_NS, PRUNED_ENTRY_NS = 5.6, 0.5
#: Terms of a long message by which its cost at the trie is judged.
SAMPLE = 16
#: A walk of the trie that costs less than this multiple of typical lists is taken at once: for points, and for
#: rectangles, which have more lists, and whose estimate takes as long as many a walk. A walk that costs less than
#: `LOOKED_FROM_NS` is taken at once whatever lists cost.
WORTH_A_LOOK, WIDE_WORTH_A_LOOK, LOOKED_FROM_NS = 0.3, 2.0, 2_000.0


@njit(cache=True, nogil=True)
def root_cost(terms):
    """Expected cost of probing the first level of the trie by `terms` terms."""
    return TERM_NS * terms


@njit_no_refcount
def trie_cost(trie, hits, many, terms):
    """Expected cost of walking the trie from the nodes hit at its first level."""
    cost = 0.0
    for i in range(many):
        node, first = hits[i] >> 32, hits[i] & 0xFFFFFFFF
        own = trie.head[node, OWN] - trie.head[node, LOW]
        children = trie.head[node, END_CHILD] - trie.head[node, FIRST_CHILD]
        # A term leads to one child at most, so there are no more than terms left. Below them nothing is counted: the
        # constant of a child has in it what follows.
        cost += NODE_NS + BLOCK_NS * (own / BLOCK) + CHILD_NS * min(children, terms - first)
    return cost


@njit(cache=True, nogil=True)
def direct_cost(lists, entries, terms):
    """Expected cost of scanning lists with this many entries in all."""
    return lists * LIST_NS + entries * (ENTRY_NS + ENTRY_AND_TERM_NS * terms)


@njit(cache=True, nogil=True)
def prune_cost(entries, nodes):
    """Expected cost of pruning a list by nodes of the trie: each is searched in the list."""
    return nodes * log2_of(entries) * LIST_STEP_NS + entries * PRUNED_ENTRY_NS


@njit(cache=True, nogil=True)
def pays_to_prune(entries, nodes, terms):
    """Whether a list is pruned rather than looked through."""
    return prune_cost(entries, nodes) < direct_cost(0.0, entries, terms)


@njit(cache=True, nogil=True)
def pruned_cost(lists, entries, nodes, terms):
    """Expected cost of verifying lists of average length, each the cheaper way."""
    if lists <= 0.0:
        return 0.0
    # Only sums of the lists are known here, so all count as of average length.
    each = entries / lists
    return lists * (LIST_NS + min(prune_cost(np.int64(each), nodes), direct_cost(0.0, each, terms)))


@njit_no_refcount
def entries_of(tree, lists, listed):
    """Entries of known lists together."""
    entries = np.int64(0)
    for i in range(listed):
        entries += tree.branch[lists[i], LIST_END] - tree.branch[lists[i], LIST_START]
    return entries


@njit_no_refcount
def lists_within(tree, left, bottom, right, top, stack):
    """Expected lists and entries that a rectangle touches, text aside; returns (lists, entries).

    As in the paper: of a cell that is partly covered, the share that is covered; cells are not opened beyond the
    level at which the rectangle is a few cells wide.
    """
    lists, entries, depth = 0.0, 0.0, 1
    # As `find_lists` takes a rectangle that is inside out.
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
        fraction = wide * high / (side * side)
        # Sums of the cells below are scaled by area: descending further would cost more than it gains.
        if level >= finest or fraction == 1.0:
            lists += tree.branch[node, LISTS_BELOW] * fraction
            entries += tree.branch[node, ENTRIES_BELOW] * fraction
            continue
        # Its own list is looked through whole, however little of the cell is covered.
        own = tree.branch[node, LIST_END] - tree.branch[node, LIST_START]
        lists += own > 0
        entries += own
        for quarter in range(4):
            if tree.branch[node, quarter] >= 0:
                stack[depth] = tree.branch[node, quarter]
                depth += 1
    return lists, entries
