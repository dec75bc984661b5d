"""MBRTrie: a trie over ascending keywords whose nodes know the rectangle around all that lies below them.

After Yu, Li and Feng, "A Cost-based Method for Location-Aware Publish/Subscribe Services", CIKM 2015, section 3. Term
ids ascend with frequency, so the first level has the rarest keywords and the widest fan-out, as in their experiments. A
message visits the nodes whose path it carries and whose rectangle it meets. At each node the next ones are found by
probing the children with its terms (ProbeTrie), its terms with the children (ProbeTokenSet), or whichever is cheaper.

Two things differ from the paper, both for speed. Where `BUCKET` boxes or fewer remain below a node the trie stops, and
they are tested one by one: most paths of a large trie end in a single subscription, and a node each would cost more
than the test it saves. And the list of a node lies in Morton order with a rectangle around each `BLOCK` boxes, since a
frequent keyword alone has a long list all over the world. `bucket=0` switches the buckets off.

`papers.lfilter.mbr_trie_build` builds a trie for each part of the engine (`lfilter_parts`: one of several indexes that
are built at once); the kernels here match messages by it, for `papers.lfilter.lfilter` too.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int32
from matching.space import Space
from matching.storage.region_messages import Messages
from matching.storage.slots import as_input
from papers.lfilter.lfilter_parts import (
    TEST_TEXT,
    Arrays,
    PartBoxes,
    PartedEngine,
    boxes_view,
    clear_terms,
    first_not_below,
    is_marked,
    log2_of,
    mark_terms,
    may_carry,
    meets,
    reach_of,
    scratch_for,
    verify,
)
from papers.lfilter.mbr_trie_build import BLOCK, build_trie

#: How children are found: the cheaper way; each child sought among the message's terms; each term among the children.
CHEAPEST, PROBE_TOKEN_SET, PROBE_TRIE = range(3)
STRATEGIES = ("cheapest", "probe_token_set", "probe_trie")
#: Boxes below which a node is not divided further.
BUCKET = 8
#: No limit to the nodes of the first level that a message may reach.
ANY_HITS = 2**62
#: Nanoseconds of one step of a binary search among the children, and of looking at one child.
CHILD_STEP_NS, CHILD_NS = 3.0, 1.5
#: Columns of `Trie.head`.
FIRST_CHILD, END_CHILD, LOW, OWN, HIGH = range(5)


class Trie(NamedTuple):
    """Nodes in breadth-first order: children lie side by side, ascending by token. A rank is a row of `PartBoxes`.

    token : int32[t]     keyword of the node; -1 for the root, node 0
    box : uint64[t]      lattice word of the rectangle around all boxes below
    head : int32[t, 5]   children [FIRST_CHILD, END_CHILD); ranks below [LOW, HIGH), of which [LOW, OWN) have no
                         keyword beyond this node's; where a node has no children, [OWN, HIGH) is a bucket
    block : uint64[b]    rectangle around BLOCK ranks each
    shift : int64[1], directory : int32[d + 1]
                         children of the root with token >> shift = i are [directory[i], directory[i + 1])
    """

    token: np.ndarray
    box: np.ndarray
    head: np.ndarray
    block: np.ndarray
    shift: np.ndarray
    directory: np.ndarray


class MbrTrie(PartedEngine):
    """Boolean subscriptions in a token trie with rectangles; see the module.

    Parameters
    ----------
    space : Space
    strategy : str    one of `STRATEGIES`
    bucket : int      a node with no more boxes than this below it is not divided; 0: all are, as in the paper
    """

    name = "mbr_trie"

    def __init__(self, space: Space, strategy: str = "cheapest", bucket: int = BUCKET):
        super().__init__(space)
        self.strategy = STRATEGIES.index(strategy)
        self.bucket = bucket

    def _build(self, slots: Int32) -> Arrays:
        return build_trie(slots, self.subscriptions.columns, self._boxes_of(slots), self.bucket)

    def _view(self, arrays: Arrays) -> tuple[PartBoxes, Trie]:
        return boxes_view(arrays), trie_view(arrays)

    def _match_part(
        self, messages: Messages, first_row: int, last_row: int, view: tuple, slots: Int32, rows: Int32
    ) -> tuple[int, int, int, int]:
        boxes, trie = view
        where = messages, first_row, last_row, boxes, trie, self.subscriptions.columns
        return match_part(*where, *self.frame, self.strategy, slots, rows)


def trie_view(arrays: Arrays) -> Trie:
    """The trie of a part as kernels take it."""
    token, head = as_input(arrays["token"], np.int32), as_input(arrays["head"], np.int32)
    boxes = as_input(arrays["box"], np.uint64), head, as_input(arrays["block"], np.uint64)
    return Trie(token, *boxes, as_input(arrays["shift"], np.int64), as_input(arrays["directory"], np.int32))


@njit(cache=True, nogil=True)
def probe_cost(children, terms):
    """Nanoseconds of the cheaper probing, and whether that is ProbeTrie: each term sought among the children.

    The paper compares |T| log |n| with |n| log |T|, of |T| terms and |n| children. Here most children that are not
    among the terms fail one look-up in the table of marks, and only the others are searched: |n| without log |T|.
    """
    by_terms = terms * log2_of(children) * CHILD_STEP_NS
    by_children = children * CHILD_NS
    return min(by_terms, by_children), by_terms < by_children


@njit_no_refcount
def probe(trie, node, terms, first, last, reach, marks, strategy, stack, depth):
    """Push the children of a node whose token is a term and whose box meets: child << 32 | place of its term + 1.

    terms[first:last] are the message's terms above that of the node. Returns (depth, children looked at). Children are
    pushed in ascending order, and each has a term of its own, so the stack suffices (`lfilter_parts.Scratch`).
    """
    child, end = int(trie.head[node, FIRST_CHILD]), int(trie.head[node, END_CHILD])
    if child == end or first == last:
        return depth, 0
    by_terms = strategy == PROBE_TRIE
    if strategy == CHEAPEST:
        _, by_terms = probe_cost(end - child, last - first)
    looked = 0
    if by_terms:
        for j in range(first, last):
            term = terms[j]
            # ProbeTrie. Terms and tokens both ascend: each search begins behind the one before.
            child = first_not_below(trie.token, child, end, term)
            if child == end:
                break
            looked += 1
            if trie.token[child] == term:
                if meets(reach, trie.box[child]):
                    stack[depth] = child << 32 | (j + 1)
                    depth += 1
                child += 1
    else:
        looked = end - child
        while child < end and first < last:
            token = trie.token[child]
            # ProbeTokenSet. The bit of the mark first, then the rectangle, and only then the search.
            if is_marked(marks, token) and meets(reach, trie.box[child]):
                # Children and terms both ascend: what lies before the last place found is of no use again.
                first = first_not_below(terms, first, last, token)
                if first < last and terms[first] == token:
                    stack[depth] = child << 32 | (first + 1)
                    depth += 1
            child += 1
    return depth, looked


@njit_inner_no_refcount
def probe_root(trie, terms, step, reach, marks, strategy, stack):
    """`probe` for the root and every `step`-th term of a message; by the directory unless a strategy is forced."""
    last = terms.shape[0]
    if strategy != CHEAPEST:
        # A forced strategy is there to be compared: without the directory, and with every term.
        return probe(trie, 0, terms, 0, last, reach, marks, strategy, stack, 0)
    shift, depth = trie.shift[0], 0
    for j in range(0, last, step):
        term = np.int64(terms[j])
        entry = term >> shift
        # The term is above the highest token of the first level; terms ascend, so all that follow are too.
        if entry + 1 >= trie.directory.shape[0]:
            break
        end = trie.directory[entry + 1]
        child = first_not_below(trie.token, trie.directory[entry], end, term)
        if child < end and trie.token[child] == term and meets(reach, trie.box[child]):
            stack[depth] = np.int64(child) << 32 | (j + 1)
            depth += 1
    return depth, (last + step - 1) // step


@njit_no_refcount
def walk(trie, boxes, terms, reach, marks, strategy, stack, depth, candidates, count):
    """Visit what is on the stack and all below it; returns (candidates, ranks and children looked at)."""
    scanned, last = 0, terms.shape[0]
    while depth > 0:
        depth -= 1
        node, first = stack[depth] >> 32, stack[depth] & 0xFFFFFFFF
        # The message has all terms of the path, so of subscriptions that end at the node only boxes are tested.
        low, own, high = trie.head[node, LOW], trie.head[node, OWN], trie.head[node, HIGH]
        is_bucket = trie.head[node, FIRST_CHILD] == trie.head[node, END_CHILD]
        # The list: short ones box by box, long ones block by block.
        rank = low
        while rank < own:
            # Blocks are counted over all ranks, not from the start of this list. Its first and last block may have
            # ranks of other lists too: their rectangles are then wider than this list needs, never narrower.
            until = min(own, (rank // BLOCK + 1) * BLOCK)
            if own - low >= BLOCK:
                scanned += 1
                if not meets(reach, trie.block[rank // BLOCK]):
                    rank = until
                    continue
            scanned += until - rank
            while rank < until:
                candidates[count] = rank
                count += meets(reach, boxes.word[rank])
                rank += 1
        if is_bucket:
            scanned += high - own
            # Subscriptions of a bucket have keywords beyond the path: a message without more terms matches none.
            if first < last:
                for rank in range(own, high):
                    candidates[count] = rank | TEST_TEXT
                    count += meets(reach, boxes.word[rank]) and may_carry(marks, boxes.text[rank])
        else:
            depth, looked = probe(trie, node, terms, first, last, reach, marks, strategy, stack, depth)
            scanned += looked
    return count, scanned


@njit(cache=True, nogil=True)
def match_part(
    messages, first_row, last_row, boxes, trie, columns, world_west, world_south, steps_per_degree, strategy, out_slot,
    out_row,
):  # fmt: skip
    """Match the rows of a batch in one part; see `BooleanEngine._scan` for what is returned."""
    scratch = scratch_for(messages, first_row, last_row, boxes.slot.shape[0], 0)
    return match_by_trie(
        messages, first_row, last_row, boxes, trie, columns, world_west, world_south, steps_per_degree, strategy,
        ANY_HITS, scratch, out_slot, out_row,
    )  # fmt: skip


@njit_inner_no_refcount
def match_by_trie(
    messages, first_row, last_row, boxes, trie, columns, world_west, world_south, steps_per_degree, strategy,
    most_hits, scratch, out_slot, out_row,
):  # fmt: skip
    """Match the rows of a batch by the trie of one part; see `BooleanEngine._scan` for what is returned.

    It also ends before a row that reaches more than `most_hits` nodes of the first level.
    """
    found, scanned, verified = 0, 0, 0
    marks, candidates = scratch.marks, scratch.candidates
    for row in range(first_row, last_row):
        west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        if west != west or south != south or east != east or north != north:
            continue  # a NaN meets no box, but would round to a lattice coordinate that does
        left, bottom, _, _, reach = reach_of(
            west, south, east, north, world_west, world_south, steps_per_degree
        )  # fmt: skip
        first, last = messages.term_offsets[row], messages.term_offsets[row + 1]
        # Places of terms are counted from the message's first, so that they fit into the 32 bits beside a node.
        terms = messages.terms[first:last]
        mark_terms(marks, messages.terms, first, last)
        depth, looked = probe_root(trie, terms, 1, reach, marks, strategy, scratch.hits)
        # No hit of this row has been written.
        if depth > most_hits:
            clear_terms(marks, messages.terms, first, last)
            return found, row, scanned, verified
        count, more = walk(trie, boxes, terms, reach, marks, strategy, scratch.hits, depth, candidates, 0)
        # There must be capacity for all candidates as hits: those of a row are not split over two calls.
        if found + count > out_slot.shape[0]:
            clear_terms(marks, messages.terms, first, last)
            return found, row, scanned, verified
        found = verify(
            messages, row, reach, left, bottom, boxes, columns, marks, candidates, scratch.nowhere, count, out_slot,
            out_row, found,
        )  # fmt: skip
        clear_terms(marks, messages.terms, first, last)
        scanned += looked + more
        verified += count
    return found, last_row, scanned, verified
