"""Cost model of engine `lfilter`: expected nanoseconds of each access path, by the paper's formulas.

`papers.lfilter.lfilter` chooses for each message between its two indexes, trie first or quadtree first, and for each
list between pruning and a scan, by these costs. The paper's estimates (CIKM 2015, equations 1 to 6) count steps of
binary search and assume that terms are independent and equally frequent. Words are neither, so the model reads the
index instead: the engine probes the first level of the trie before the choice, and the trie has the numbers of children
and postings below each node that the message hits.

The constants are fitted to times of the kernels with each path forced, over groups of 25 messages of similar work:
points and rectangles of 20 to 1,000 words, 200,000 and 1,000,000 subscriptions. In nine groups of ten the predicted
ratio of trie to quadtree is 0.71 to 1.24 times the measured ratio, which spans a factor of 100. Only ratios matter.
After a change of a kernel, `skyray bench boolean --figure choice` shows whether the constants still choose well.
"""

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from papers.lfilter.lfilter_parts import log2_of
from papers.lfilter.mbr_trie import END_CHILD, FIRST_CHILD, LOW, OWN
from papers.lfilter.mbr_trie_build import BLOCK
from papers.lfilter.pt_quadtree import ENTRIES_BELOW, LIST_END, LIST_START, LISTS_BELOW

#: Values of the choice between the indexes, and of that between a scan and pruning.
TRIE, QUADTREE = 1, 2
DIRECT, PRUNE = 1, 2

#: Trie, nanoseconds of: the lookup of a term at the first level; a node that is hit there; a block of the node's list,
#: cheap since blocks are read in order; a child that may be hit below the node, with its whole subtree.
TERM_NS, NODE_NS, BLOCK_NS, CHILD_NS = 5.0, 30.0, 4.0, 12.5
#: Quadtree, nanoseconds of: a list with its cell; an entry that is tested; the same for each term of the message, since
#: a longer text lets more entries pass.
LIST_NS, ENTRY_NS, ENTRY_AND_TERM_NS = 130.0, 3.8, 0.013
#: Pruning, nanoseconds of: a step of the binary search for a node's ranks in a list; an entry of the list, most of
#: which are skipped.
LIST_STEP_NS, PRUNED_ENTRY_NS = 5.6, 0.5
#: Of a longer message the engine probes a sample of at least this many terms to estimate the cost of the trie.
SAMPLE = 16
#: The engine walks the trie without an estimate of the quadtree if the trie costs less than this multiple of typical
#: lists: for points, and for rectangles, which touch more lists and whose estimate takes as long as many walks do; and
#: always if the trie costs less than `ESTIMATE_ABOVE_NS`.
ESTIMATE_ABOVE, ESTIMATE_ABOVE_WIDE, ESTIMATE_ABOVE_NS = 0.3, 2.0, 2_000.0


@njit_inner
def root_cost(terms):
    """Expected nanoseconds of probing the first level of the trie with `terms` terms."""
    return TERM_NS * terms


@njit_inner_no_refcount
def trie_cost(trie, hits, many, terms):
    """Expected nanoseconds of a walk of the trie from the `many` nodes hit at its first level. O(many).

    hits : int64[]    node << 32 | index of its term among the message's terms
    terms : int       terms of the message
    """
    cost = 0.0
    for i in range(many):
        node, first = hits[i] >> 32, hits[i] & 0xFFFFFFFF
        own = trie.head[node, OWN] - trie.head[node, LOW]
        children = trie.head[node, END_CHILD] - trie.head[node, FIRST_CHILD]
        # A term leads to one child at most, so at most as many children are hit as terms follow. CHILD_NS includes the
        # levels below a child.
        cost += NODE_NS + BLOCK_NS * (own / BLOCK) + CHILD_NS * min(children, terms - first)
    return cost


@njit_inner
def direct_cost(lists, entries, terms):
    """Expected nanoseconds of a scan of `lists` lists that have `entries` entries in all."""
    return lists * LIST_NS + entries * (ENTRY_NS + ENTRY_AND_TERM_NS * terms)


@njit_inner
def prune_cost(entries, nodes):
    """Expected nanoseconds of pruning a list by `nodes` nodes of the trie, each found in it by binary search."""
    return nodes * log2_of(entries) * LIST_STEP_NS + entries * PRUNED_ENTRY_NS


@njit(cache=True, nogil=True)
def pays_to_prune(entries, nodes, terms):
    """Whether pruning a list is expected to be faster than a scan."""
    return prune_cost(entries, nodes) < direct_cost(0.0, entries, terms)


@njit_inner
def pruned_cost(lists, entries, nodes, terms):
    """Expected nanoseconds of `lists` lists, each pruned or scanned, whichever is cheaper."""
    if lists <= 0.0:
        return 0.0
    # Only the sum of the lengths is known, so every list counts with the average.
    each = entries / lists
    return lists * (LIST_NS + min(prune_cost(np.int64(each), nodes), direct_cost(0.0, each, terms)))


@njit_inner_no_refcount
def entries_of(tree, lists, listed):
    """Number of entries of the first `listed` lists of `lists` (int64[]) together. O(listed)."""
    entries = np.int64(0)
    for i in range(listed):
        entries += tree.branch[lists[i], LIST_END] - tree.branch[lists[i], LIST_START]
    return entries


@njit_inner_no_refcount
def lists_within(tree, left, bottom, right, top, stack):
    """Expected number of lists, and of entries in them, that a rectangle touches, regardless of text.

    left, bottom, right, top : int    of the rectangle, in units of the finest cells
    stack : int64[]                   scratch

    As in the paper, a partly covered cell counts with its covered share. The walk stops at the level at which the
    rectangle is a few cells wide.
    """
    lists, entries, depth = 0.0, 0.0, 1
    # Swapped sides are put in order, as in `find_lists`.
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
        # Scale the sums over all cells below by area: a deeper walk would cost more than a better estimate gains.
        if level >= finest or fraction == 1.0:
            lists += tree.branch[node, LISTS_BELOW] * fraction
            entries += tree.branch[node, ENTRIES_BELOW] * fraction
            continue
        # A scan reads the cell's own list whole, also if the rectangle covers little of the cell.
        own = tree.branch[node, LIST_END] - tree.branch[node, LIST_START]
        lists += own > 0
        entries += own
        for quarter in range(4):
            if tree.branch[node, quarter] >= 0:
                stack[depth] = tree.branch[node, quarter]
                depth += 1
    return lists, entries
