"""Engine `lfilter_paper`: LFilter as its paper prints it, beside `lfilter`, which chooses by measured costs.

After Yu, Li and Feng, CIKM 2015:

- the trie has a leaf for each set of tokens, with its rectangle and the list of its subscriptions, and no buckets; each
  of its nodes is probed the cheaper way by |T| log |n| against |n| log |T|;
- the quadtree has lists in its leaves alone, a copy of a subscription in each that it overlaps; a cell is divided until
  it has no more than tau_num subscriptions or its area is tau_area. Each cell has its cover and its non-cover set, with
  all pivotal tokens that there are. A list has subscriptions and nothing beside them, so each is verified;
- the filter is chosen by equations 1 and 3, the verification by equations 5 and 6, where each step costs 1.

Both steps of the choice are taken for each message anew. The paper names no tau; those here are the best of a few that
were tried. An inner cell counts as many children as have subscriptions, not four. Lists are pruned one by one, not all
at once, which costs and finds the same. Rectangles of nodes are on the lattice of `lfilter_parts`, in 8 bytes. Named in
`matching.kinds`; with `by` it is one of its parts, MBRTrie or PT-Quadtree.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount, njit_no_refcount
from matching.model import Float64, Int32
from matching.space import Space
from matching.storage.cells import box_of
from matching.storage.region_messages import Messages
from matching.storage.slots import as_input, put
from papers.lfilter.lfilter_cost import lists_within
from papers.lfilter.lfilter_parts import (
    ONLY_HERE,
    TEST_TEXT,
    Arrays,
    PartBoxes,
    PartedEngine,
    clear_terms,
    first_not_below,
    mark_terms,
    meets,
    reach_of,
    scratch_for,
    verify,
)
from papers.lfilter.mbr_trie import (
    END_CHILD,
    FIRST_CHILD,
    HIGH,
    LOW,
    OWN,
    PROBE_TOKEN_SET,
    PROBE_TRIE,
    Trie,
    probe,
    trie_view,
)
from papers.lfilter.mbr_trie_build import build_trie
from papers.lfilter.pt_quadtree import LIST_END, LIST_START, Quadtree, find_lists, quadtree_view
from papers.lfilter.pt_quadtree_build import choose_pivots

#: tau_num and, as a level of the quadtree, tau_area.
TAU_NUM, FINEST_LEVEL = 64, 7
#: What filters: whichever costs less, or MBRTrie or PT-Quadtree alone, and then nothing else is built.
WAYS = ("cost", "trie", "quadtree")
_COST, _TRIE, _QUADTREE = range(3)
#: Of either when it is not built, and what only ours have.
_NONE: Arrays = {name: np.zeros(0, np.int64) for name in (*Trie._fields, *Quadtree._fields, "text")}
_NONE |= {
    "head": np.zeros((0, 5), np.int32),
    "branch": np.zeros((0, 8), np.int32),
    "pivots": np.zeros((0, 3), np.int32),
}
#: Indexes in `Facts.of`: distinct tokens, tokens of a subscription, levels of the quadtree, pivotal tokens of a cell.
_TOKENS, _KEYWORDS, _HEIGHT, _PIVOTS = range(4)
#: Token of a leaf of the trie.
_LEAF = -1


class Facts(NamedTuple):
    """Input of the equations.

    of : float64[4]          see `_TOKENS` and the names after it
    level : float64[h + 2]   nodes of each level of the trie, then two zeros
    """

    of: Float64
    level: Float64


class LFilterPaper(PartedEngine):
    """Trie, quadtree and choice of the paper; see the module.

    Parameters
    ----------
    space : Space
    by : str              one of `WAYS`
    tau_num : int         subscriptions of a cell that is not divided
    finest_level : int    level whose cells are of tau_area: 4**level of them are the world
    """

    name = "lfilter_paper"

    def __init__(self, space: Space, by: str = "cost", tau_num: int = TAU_NUM, finest_level: int = FINEST_LEVEL):
        super().__init__(space)
        self.by, self.tau_num, self.finest_level = WAYS.index(by), tau_num, finest_level
        #: Since the engine was made: messages by trie, by quadtree; lists looked through, lists pruned.
        self.choices = np.zeros(4, np.int64)

    def _build(self, slots: Int32) -> Arrays:
        columns, made = self.subscriptions.columns, {}
        boxes = self._boxes_of(slots)
        slot, word = boxes[:2]
        if self.by != _QUADTREE:
            made = build_trie(slots, columns, boxes, 0, leaves=True)
            slot, word = made["slot"], made["word"]
            made = {name: made[name] for name in ("token", "head", "box")} | {
                "listed": np.arange(len(slot), dtype=np.int32)
            }
        if self.by != _TRIE:
            word = as_input(word, np.uint64)
            branch, cell, entry = _divide_leaves(word, self.tau_num, self.finest_level)
            # a list has no more tokens than there are
            pivot, pivots, _ = choose_pivots(branch, entry, as_input(slot, np.int32), columns, len(slot))
            made |= {"branch": branch, "cell": cell, "entry": entry, "pivot": pivot, "pivots": pivots}
        return made | {"slot": slot, "word": word}

    def _view(self, arrays: Arrays) -> tuple[PartBoxes, Trie, Int32, Quadtree, Facts]:
        # a bit for every term: no cell is turned away by its signature
        pivot_text = np.full(len(arrays.get("cell", ())), -1).astype(np.uint64)
        arrays = {**_NONE, "listed": _NONE["entry"], **arrays, "pivot_text": pivot_text}
        trie, tree, levels, low, high = (
            trie_view(arrays),
            quadtree_view(arrays),
            [],
            0,
            int(arrays["head"].shape[0] > 0),
        )
        while low < high:
            levels.append(high - low)
            low, high = int(trie.head[low, FIRST_CHILD]), int(trie.head[high - 1, END_CHILD])
        tokens = np.unique(trie.token[trie.token >= 0]).shape[0]
        pivots = tree.pivots[:, 2] - tree.pivots[:, 0]
        height, average = 1 + int((tree.cell >> 28).max(initial=0)), float(pivots.sum() / max(1, pivots.shape[0]))
        facts = Facts(
            np.array([tokens, _keywords_of(trie.head), height, max(1.0, average)], np.float64),
            np.array([*levels, 0, 0], np.float64),
        )
        boxes = (
            as_input(arrays["slot"], np.int32),
            as_input(arrays["word"], np.uint64),
            as_input(arrays["text"], np.uint64),
        )
        return PartBoxes(*boxes), trie, as_input(arrays["listed"], np.int32), tree, facts

    def _match_part(
        self, messages: Messages, first_row: int, last_row: int, view: tuple, slots: Int32, rows: Int32
    ) -> tuple[int, int, int, int]:
        where = messages, first_row, last_row, *view, self.subscriptions.columns
        return _match(*where, *self.frame, self.by, self.choices, slots, rows)


def _keywords_of(head: Int32) -> float:
    """Keywords of a box, on average: how far below the root the parents of leaves are."""
    depth = np.zeros(head.shape[0], np.int64)
    for node in np.flatnonzero(head[:, FIRST_CHILD] < head[:, END_CHILD]):
        depth[head[node, FIRST_CHILD] : head[node, END_CHILD]] = depth[node] + 1
    own = head[:, OWN] - head[:, LOW]
    return float(((depth - 1) * own).sum() / max(1, own.sum()))


@njit(cache=True, nogil=True)
def _divide_leaves(word, tau_num, finest_level):
    """Cells in preorder and lists of the leaves, as `pt_quadtree_build._divide` has them; O(entries * levels)."""
    head, cell = np.empty((64, 8), np.int32), np.empty(64, np.int64)
    entry = np.empty(max(16, word.shape[0]), np.int32)
    # ranks of the cells that wait, the last one on top; frames: first of them, level, row, column, place in the parent
    waiting = np.arange(word.shape[0]).astype(np.int32)
    stack = np.empty((4 * 16 + 4, 5), np.int64)
    stack[0] = (0, 0, 0, 0, -1)
    depth, nodes, used, end = 1, 0, 0, word.shape[0]
    while depth > 0:
        depth -= 1
        first, level, row, column, above = stack[depth]
        node = nodes
        nodes += 1
        if nodes > head.shape[0]:
            head, cell = _twice(head), _twice(cell)
        head[node, :4] = -1
        cell[node] = level << 28 | row << 14 | column
        head[node, 4] = head[node, 5] = used
        if above >= 0:
            head[above >> 2, above & 3] = node
        if end - first <= tau_num or level == finest_level:
            while used + end - first > entry.shape[0]:
                entry = _twice(entry)
            put(entry, used, waiting[first:end])
            used += end - first
            head[node, 5] = used
            end = first
            continue
        mine = waiting[first:end].copy()
        end = first
        shift = 15 - (level + 1)
        for quarter in range(3, -1, -1):
            x, y = 2 * column + (quarter & 1), 2 * row + (quarter >> 1)
            begin = end
            while end + mine.shape[0] > waiting.shape[0]:
                waiting = _twice(waiting)
            for rank in mine:
                west, south, east, north = box_of(word[rank])
                waiting[end] = rank
                end += (west >> shift <= x) & (x <= east >> shift) & (south >> shift <= y) & (y <= north >> shift)
            if begin < end:
                stack[depth] = (begin, level + 1, y, x, 4 * node + quarter)
                depth += 1
    for node in range(nodes - 1, -1, -1):
        lists, entries = np.int64(head[node, 5] > head[node, 4]), np.int64(head[node, 5] - head[node, 4])
        for quarter in range(4):
            if head[node, quarter] >= 0:
                lists += head[head[node, quarter], 6]
                entries += head[head[node, quarter], 7]
        head[node, 6], head[node, 7] = lists, min(entries, 2**31 - 1)
    return head[:nodes].copy(), cell[:nodes].copy(), entry[:used].copy()


@njit(cache=True, nogil=True)
def _twice(array):
    """A copy with twice as many rows."""
    return np.concatenate((array, array))


@njit_no_refcount
def _log(count):
    return np.log2(max(2.0, count))


@njit_no_refcount
def _find(facts, first_level, terms):
    """Steps to find the nodes of a message from a level of the trie on (equation 1; C_F, for two levels)."""
    steps, chance, below = 0.0, 1.0, facts.level[first_level - 1]
    for level in range(first_level, facts.level.shape[0] - 1):
        nodes = facts.level[level]
        if nodes == 0.0:
            break
        steps += min(_log(terms) * nodes, terms * _log(nodes / max(1.0, below)) * below) * chance
        chance *= min(1.0, terms / facts.of[_TOKENS])
        below = nodes
    return steps


@njit_inner_no_refcount
def _prunes(facts, level, entries, terms):
    """Whether a list is pruned by the nodes below a level rather than verified directly (equations 5 and 6)."""
    here = facts.level[level + 1] if level + 1 < facts.level.shape[0] else 0.0
    below = facts.level[level + 2] if level + 2 < facts.level.shape[0] else 0.0
    chance = min(1.0, terms / facts.of[_TOKENS])
    by_nodes = (here + below * chance) * _log(terms)
    by_terms = (_log(here) + _log(below) * chance) * terms
    pruned = min(by_nodes, by_terms) + _log(entries) + entries
    return pruned <= entries * facts.of[_KEYWORDS] * _log(terms)


@njit_inner_no_refcount
def _way(trie, node, terms):
    """The cheaper way to find the children of a node that match: `PROBE_TRIE` if |T| log |n| < |n| log |T|."""
    children = trie.head[node, END_CHILD] - trie.head[node, FIRST_CHILD]
    return PROBE_TRIE if terms * _log(children) < children * _log(terms) else PROBE_TOKEN_SET


@njit_inner_no_refcount
def _leaf_of(trie, node):
    """The leaf among the children of a node, which comes first; -1 if no subscription ends there."""
    child = trie.head[node, FIRST_CHILD]
    return child if child < trie.head[node, END_CHILD] and trie.token[child] == _LEAF else -1


@njit_inner_no_refcount
def _walk(trie, listed, terms, reach, marks, stack, candidates):
    """Visit the trie from its root; returns (candidates, entries of lists and children read)."""
    scanned, last, count, depth = 0, terms.shape[0], 0, 1
    stack[0] = 0
    while depth > 0:
        depth -= 1
        node, first = stack[depth] >> 32, stack[depth] & 0xFFFFFFFF
        leaf = _leaf_of(trie, node)
        if leaf >= 0 and meets(reach, trie.box[leaf]):
            for i in range(trie.head[leaf, LOW], trie.head[leaf, OWN]):
                candidates[count] = listed[i]
                count += 1
            scanned += trie.head[leaf, OWN] - trie.head[leaf, LOW]
        depth, looked = probe(
            trie, node, terms, first, last, reach, marks, _way(trie, node, last - first), stack, depth
        )
        scanned += looked
    return count, scanned


@njit_inner_no_refcount
def _take_all(tree, low, high, cell, test, candidates, cells, count):
    """Append the entries [low, high) of a list; `test` is `TEST_TEXT` or 0. Returns the new count."""
    for i in range(low, high):
        candidates[count] = tree.entry[i] | test
        cells[count] = cell
        count += 1
    return count


@njit_inner_no_refcount
def _prune(trie, tree, facts, low, high, cell, terms, reach, marks, stack, nodes, candidates, cells, count):
    """Candidates among the entries [low, high) of one list, by the trie from its root or directly, node by node."""
    last, scanned, depth = terms.shape[0], 0, 1
    # three words a frame: node and place of the next term, its level, and its piece of the list
    stack[0], stack[1], stack[2] = 0, 0, low << 32 | high
    while depth > 0:
        depth -= 1
        node, first = stack[3 * depth] >> 32, stack[3 * depth] & 0xFFFFFFFF
        level = stack[3 * depth + 1]
        begin, end = stack[3 * depth + 2] >> 32, stack[3 * depth + 2] & 0xFFFFFFFF
        scanned += end - begin
        leaf = _leaf_of(trie, node)
        if leaf >= 0:
            own = first_not_below(tree.entry, begin, end, trie.head[leaf, HIGH])
            if meets(reach, trie.box[leaf]):
                count = _take_all(tree, begin, own, cell, np.int64(0), candidates, cells, count)
            begin = own
        if begin == end or first == last:
            continue
        if not _prunes(facts, level, end - begin, last - first):
            count = _take_all(tree, begin, end, cell, np.int64(TEST_TEXT), candidates, cells, count)
            continue
        found, looked = probe(trie, node, terms, first, last, reach, marks, _way(trie, node, last - first), nodes, 0)
        scanned += looked
        for i in range(found):
            child, after = nodes[i] >> 32, nodes[i] & 0xFFFFFFFF
            begin = first_not_below(tree.entry, begin, end, trie.head[child, LOW])
            until = first_not_below(tree.entry, begin, end, trie.head[child, HIGH])
            if begin < until:
                stack[3 * depth], stack[3 * depth + 1] = child << 32 | after, level + 1
                stack[3 * depth + 2] = begin << 32 | until
                depth += 1
            begin = until
    return count, scanned


@njit(cache=True, nogil=True)
def _match(
    messages, first_row, last_row, boxes, trie, listed, tree, facts, columns, world_west, world_south,
    steps_per_degree, by, choices, out_slot, out_row,
):  # fmt: skip
    """Match the rows of a batch in one part; see `BooleanEngine._scan` for what is returned."""
    most = max(boxes.slot.shape[0], tree.entry.shape[0])
    scratch = scratch_for(messages, first_row, last_row, most, tree.cell.shape[0])
    pieces = np.empty(3 * (scratch.nodes.shape[0] + 1), np.int64)
    hits = np.empty(scratch.nodes.shape[0] + 1, np.int64)
    return _match_rows(
        messages, first_row, last_row, boxes, trie, listed, tree, facts, columns, world_west, world_south,
        steps_per_degree, by, choices, scratch, pieces, hits, out_slot, out_row,
    )  # fmt: skip


@njit_inner_no_refcount
def _match_rows(
    messages, first_row, last_row, boxes, trie, listed, tree, facts, columns, world_west, world_south,
    steps_per_degree, by, choices, scratch, pieces, hits, out_slot, out_row,
):  # fmt: skip
    """`_match` with its scratch."""
    found, scanned, verified = 0, 0, 0
    marks, candidates, places, lists = scratch.marks, scratch.candidates, scratch.places, scratch.lists
    for row in range(first_row, last_row):
        west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        if west != west or south != south or east != east or north != north:
            continue
        left, bottom, right, top, reach = reach_of(
            west, south, east, north, world_west, world_south, steps_per_degree
        )  # fmt: skip
        first, last = messages.term_offsets[row], messages.term_offsets[row + 1]
        terms = messages.terms[first:last]
        size, is_point = terms.shape[0], west == east and south == north
        by_trie = by == _TRIE
        if by == _COST:
            cells = 1.0
            if not is_point:
                cells, _ = lists_within(tree, left, bottom, right, top, scratch.cells)
            tokens = facts.of[_PIVOTS]
            by_quadtree = facts.of[_HEIGHT] * cells * min(_log(size) * tokens, _log(tokens) * size)
            by_trie = by_quadtree > _find(facts, 1, size)
        signature = mark_terms(marks, messages.terms, first, last)
        count = 0
        if by_trie:
            choices[0] += 1
            count, more = _walk(trie, listed, terms, reach, marks, hits, candidates)
            scanned += more
        else:
            choices[1] += 1
            many, visited = find_lists(
                tree, left, bottom, right, top, terms, signature, marks, scratch.cells, lists
            )  # fmt: skip
            scanned += visited
            for i in range(many):
                low, high = np.int64(tree.branch[lists[i], LIST_START]), np.int64(tree.branch[lists[i], LIST_END])
                cell = ONLY_HERE if is_point else tree.cell[lists[i]]
                if by == _COST and _prunes(facts, 0, high - low, size):
                    choices[3] += 1
                    count, more = _prune(
                        trie, tree, facts, low, high, cell, terms, reach, marks, pieces, scratch.nodes, candidates,
                        places, count,
                    )  # fmt: skip
                    scanned += more
                else:
                    choices[2] += 1
                    count = _take_all(tree, low, high, cell, np.int64(TEST_TEXT), candidates, places, count)
                    scanned += high - low
        if found + count > out_slot.shape[0]:
            return found, row, scanned, verified
        found = verify(
            messages, row, reach, left, bottom, boxes, columns, marks, candidates,
            scratch.nowhere if by_trie else places, count, out_slot, out_row, found,
        )  # fmt: skip
        clear_terms(marks, messages.terms, first, last)
        verified += count
    return found, last_row, scanned, verified
