"""Node data of the memo-and-filter R-tree: filters of keywords, and the lookup tables of leaves.

Leaves have marks in our form and filters in the paper's, whose filters all have buckets of four places.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int8, Int32, Int64
from papers.skyline import filters as filters_module
from papers.skyline import memo as memo_module
from papers.skyline.filters import FOUR, FULLEST, SIX, KeywordFilters
from papers.skyline.memo import Memo
from papers.skyline.messages import object_of
from papers.skyline.rtree import FANOUT, LISTS, STACK, WRITES, RTree

#: Least ratio of capacity to places taken when a filter is built, and how often it may be doubled then.
_SPARE, _DOUBLINGS = 1.25, 3
NO_FILTER = -1
#: Bits of both words of a mark that stand for terms; terms of a message for which scratch is preallocated.
_TERM_BITS, _MORE_BITS, USUAL_TERMS = 55, 63, 64


class Nodes(NamedTuple):
    """Columns of the nodes besides those of the R-tree.

    stack : int8[n, FANOUT + 1]   leaves: at the newest version of an object how many versions of it are here, else 0
    mark : int64[n, 2, FANOUT + 1]
                                  leaves: of each entry, see `mark_of`; int64[n, 0, FANOUT + 1] in the paper's form
    start : int64[n]              first bucket of the filter
    bits : int8[n]                the filter has 2**bits buckets; -1 without one
    places : int32[n]             places taken in the filter
    built : int32[n]              places taken when it was built
    below : int32[n]              entries below
    stale : int32[n]              inner nodes: entries below that were removed since the filter was built
    state : int64[2]              entries in the tree, cursor of the cleaner
    """

    stack: Int8
    mark: Int64
    start: Int64
    bits: Int8
    places: Int32
    built: Int32
    below: Int32
    stale: Int32
    state: Int64


class Mf(NamedTuple):
    """Everything kernels work on."""

    tree: RTree
    nodes: Nodes
    filters: KeywordFilters
    memo: Memo


# ------------------------------------------------------------------------------------------------------ keywords


@njit(cache=True, nogil=True)
def mark_of(log, slot):
    """A message's mark, two words: bits of its terms, and above them a tag of its object; more bits of its terms."""
    # In place of the cuckoo filter that the paper's leaves have: a query reads the marks of a leaf in one run, where a
    # filter takes two reads far apart for each keyword, and reference counts besides, so that cleaning can take
    # keywords out.
    one = two = np.int64(0)
    for p in range(log.term_start[slot], log.term_start[slot] + log.term_count[slot]):
        bits, more = bits_of(filters_module.hash_term(log.terms[p]))
        one |= bits
        two |= more
    # 55 bits and a tag of 8: the sign stays clear, so that shifting down leaves the tag alone
    return one | (_tag_of(object_of(log, slot)) << _TERM_BITS), two


@njit(cache=True, nogil=True)
def bits_of(hashed):
    """Bits of a hashed term in a mark: two in each of its words, or one if they coincide. In the mark of a text of ten
    terms, less than 1 % of other terms have all their bits set."""
    rest = hashed * 0x2545F491
    few, many = np.int64(_TERM_BITS), np.int64(_MORE_BITS)
    # eleven bits scaled to the number of places, without a division; the product stays within 63 bits
    bits = np.int64(1) << ((((hashed >> 10) & 0x7FF) * few) >> 11)
    bits |= np.int64(1) << ((((rest >> 20) & 0x7FF) * few) >> 11)
    more = np.int64(1) << ((((rest >> 31) & 0x7FF) * many) >> 11)
    more |= np.int64(1) << ((((rest >> 42) & 0x7FF) * many) >> 11)
    return bits, more


@njit(cache=True, nogil=True)
def _tag_of(number):
    # 31 bits times 32: nothing reaches the sign
    return (((number ^ (number >> 20)) & 0x7FFFFFFF) * 0x9E3779B1 >> 20) & 0xFF


@njit_inner
def hash_terms(log, slot, out):
    """Hashes of a message's terms, into out if it is long enough; returns them (int64[terms])."""
    count = log.term_count[slot]
    hashed = out[:count] if count <= out.shape[0] else np.empty(count, np.int64)
    for i in range(count):
        hashed[i] = filters_module.hash_term(log.terms[log.term_start[slot] + i])
    return hashed


@njit(cache=True, nogil=True)
def has_marks(mf):
    """Whether leaves have marks (our form), not filters (the paper's)."""
    return mf.nodes.mark.shape[1] > 0


@njit_no_refcount
def has_filter(mf, node):
    return mf.tree.level[node] > 0 or not has_marks(mf)


@njit_no_refcount
def may_contain(mf, node, hashed):
    """Whether a node's filter may contain a hashed term."""
    words, start, bits = mf.filters.words, mf.nodes.start[node], mf.nodes.bits[node]
    if has_marks(mf):
        return filters_module.contains(words, start, bits, hashed)
    return filters_module.may_contain(words, start, bits, hashed, FOUR)


@njit_inner_no_refcount
def add_keywords(mf, node, hashed):
    """Add hashed terms to a node's filter: 0 if nothing changed, 1 if something did, -1 if it is full."""
    nodes = mf.nodes
    if not has_filter(mf, node):
        return 1
    start, bits = nodes.start[node], nodes.bits[node]
    # no filter yet: the caller builds it from the entries below
    if bits < 0:
        return -1
    leaf = mf.tree.level[node] == 0
    most = FULLEST * (SIX if has_marks(mf) else FOUR)[0] * (1 << bits)
    # a leaf counts references: it changes even if no term takes a new place
    changed = 1 if leaf else 0
    for each in hashed:
        # counted even if present: both buckets had to be read
        mf.tree.meta[LISTS] += 1
        # nearly always true: in inner nodes the same terms come again and again
        if not leaf and may_contain(mf, node, each):
            continue
        if has_marks(mf):
            answer = filters_module.add(mf.filters.words, start, bits, each, SIX)
        else:
            answer = filters_module.add(mf.filters.words, start, bits, each, FOUR)
        if answer < 0:
            return -1
        if answer == 1:
            nodes.places[node] += 1
            changed = 1
            # this term is in, but so full a filter takes long to add another
            if nodes.places[node] > most:
                return -1
    return changed


@njit_inner
def drop_filter(mf, node):
    if mf.nodes.bits[node] >= 0:
        filters_module.free_block(mf.filters, mf.nodes.start[node], mf.nodes.bits[node])
        mf.nodes.bits[node] = NO_FILTER


@njit_inner
def build_filter(mf, log, node, places):
    """Build the filter of a node from all entries below it, with capacity for at least `places`.

    Returns whether it was built; also counts the entries below.
    """
    nodes, tree = mf.nodes, mf.tree
    if not has_filter(mf, node):
        # entries are counted all the same, so that callers treat leaves like other nodes
        nodes.below[node], nodes.stale[node] = tree.count[node], 0
        return True
    per_bucket = (SIX if has_marks(mf) else FOUR)[0]
    bits = 0
    while FULLEST * per_bucket * (1 << bits) < _SPARE * places:
        bits += 1
    most = bits + _DOUBLINGS
    stack, hashed = np.empty(STACK, np.int32), np.empty(USUAL_TERMS * FANOUT, np.int64)
    while bits <= most:
        # also the filter of the round before, which became too full
        drop_filter(mf, node)
        start = filters_module.allocate_block(mf.filters, bits)
        # callers have reserved words for every doubling (`needed_words`)
        if start < 0:
            return False
        nodes.start[node], nodes.bits[node] = start, bits
        nodes.places[node] = nodes.below[node] = nodes.stale[node] = 0
        stack[0], height, full = node, 1, False
        while height and not full:
            height -= 1
            at = stack[height]
            if tree.level[at] > 0:
                for i in range(tree.count[at]):
                    stack[height] = tree.child[at, i]
                    height += 1
                continue
            # Obsolete entries count too: cleaning deletes their terms from a leaf's filter, so they must be in it. The
            # texts of a leaf are read first, in a loop of their own, so that cache misses overlap.
            nodes.below[node] += tree.count[at]
            count = 0
            for i in range(tree.count[at]):
                slot = tree.child[at, i]
                for p in range(log.term_start[slot], log.term_start[slot] + log.term_count[slot]):
                    hashed[count] = filters_module.hash_term(log.terms[p])
                    count += 1
                    if count == hashed.shape[0]:
                        full = full or add_keywords(mf, node, hashed) < 0
                        count = 0
            full = full or add_keywords(mf, node, hashed[:count]) < 0
        if not full:
            nodes.built[node] = nodes.places[node]
            tree.meta[WRITES] += 1
            return True
        bits += 1
    return False


@njit_inner
def is_outdated(mf, node):
    """Whether an inner filter may have enough outdated terms to be worth a rebuild.

    Places of keywords decide, not only messages removed: high in the tree the same words recur.
    """
    nodes = mf.nodes
    if mf.tree.level[node] == 0 or nodes.places[node] * 2 < nodes.built[node] * 3:
        return False
    # a rebuilt filter would be as full if its keywords are still in use
    return nodes.stale[node] * 2 > nodes.below[node] + FANOUT


@njit_no_refcount
def places_of(mf, log, node):
    """Places that a filter of the entries below takes; an upper bound for a leaf without one."""
    if has_filter(mf, node):
        return np.int64(mf.nodes.places[node])
    places = np.int64(0)
    for i in range(mf.tree.count[node]):
        places += log.term_count[mf.tree.child[node, i]]
    return places


@njit_inner_no_refcount
def needed_words(mf, log, leaf, terms):
    """Upper bound of the words that an insertion into a leaf takes."""
    words, node = np.int64(terms), np.int64(leaf)
    if mf.tree.parent[leaf] < 0:
        words += places_of(mf, log, leaf)
    while node >= 0:
        words += np.int64(1) << max(0, mf.nodes.bits[node])
        node = np.int64(mf.tree.parent[node])
    return 64 + words * (8 << _DOUBLINGS)


# -------------------------------------------------------------------------------------------------- lookup tables


@njit_inner_no_refcount
def is_obsolete(mf, log, slot):
    """Whether the memo says that an entry is obsolete."""
    return memo_module.is_superseded(mf.memo, object_of(log, slot), log.seq[slot])


@njit(cache=True, nogil=True)
def _look_up(mf, log, leaf, number):
    """Position of the newest version of an object in a leaf, or the end if there is none."""
    tag, count = _tag_of(number), mf.tree.count[leaf]
    mark = mf.nodes.mark[leaf]
    for i in range(count):
        # the tag first: an entry's object is a read far away
        if has_marks(mf) and mark[0, i] >> _TERM_BITS != tag:
            continue
        if object_of(log, mf.tree.child[leaf, i]) == number:
            return i
    return count


@njit_no_refcount
def push(mf, log, leaf, slot):
    """Put a message on top of the versions of its object."""
    tree, stack, mark = mf.tree, mf.nodes.stack[leaf], mf.nodes.mark[leaf]
    child, count = tree.child[leaf], tree.count[leaf]
    at = _look_up(mf, log, leaf, object_of(log, slot))
    # seqs ascend, so the newcomer is the newest of its object, and goes before the others
    for i in range(count, at, -1):
        child[i], stack[i] = child[i - 1], stack[i - 1]
    for word in range(mark.shape[0]):
        for i in range(count, at, -1):
            mark[word, i] = mark[word, i - 1]
    child[at], stack[at] = slot, 1
    if has_marks(mf):
        mark[0, at], mark[1, at] = mark_of(log, slot)
    tree.count[leaf] = count + 1
    if at < count:
        stack[at] = stack[at + 1] + 1
        stack[at + 1] = 0


@njit_inner
def arrange(mf, log, leaf):
    """Sort the entries of a leaf into a lookup table, and recompute its stacks and marks."""
    stack, mark, entries = mf.nodes.stack[leaf], mf.nodes.mark[leaf], mf.tree.child[leaf]
    count = mf.tree.count[leaf]
    numbers, seqs = np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(count):
        slot, at = entries[i], i
        number, seq = object_of(log, slot), log.seq[slot]
        # by object, and of one object the newest first, as `push` keeps them
        while at > 0 and (numbers[at - 1] > number or (numbers[at - 1] == number and seqs[at - 1] < seq)):
            numbers[at], seqs[at], entries[at] = numbers[at - 1], seqs[at - 1], entries[at - 1]
            at -= 1
        numbers[at], seqs[at], entries[at] = number, seq, slot
    top = 0
    for i in range(count):
        if i == 0 or numbers[i] != numbers[i - 1]:
            top = i
        stack[i] = 0
        stack[top] += 1
        if has_marks(mf):
            mark[0, i], mark[1, i] = mark_of(log, entries[i])
