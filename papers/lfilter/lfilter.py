"""LFilter: an MBRTrie and a PT-Quadtree over the same ranks, and for each message the cheaper way through them.

After Yu, Li and Feng, CIKM 2015, section 5. Two decisions are made from estimates in nanoseconds
(`papers.lfilter.lfilter_cost`), in each part of the index by itself:

- Filter: the trie alone finds and verifies, or the quadtree finds the lists that may have a match.
- Verification, for each such list: every entry is tested, or the list is pruned by the trie.

Weighing costs as much as some messages do, so a part has habits (`Habit`); and one with few of the subscriptions has no
quadtree, which would be built often and save little.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount, njit_no_refcount
from matching.model import Int32
from matching.space import Space
from matching.storage.region_messages import Messages
from papers.lfilter.lfilter_cost import (
    CHILD_NS,
    DIRECT,
    ESTIMATE_ABOVE,
    ESTIMATE_ABOVE_NS,
    ESTIMATE_ABOVE_WIDE,
    PRUNE,
    QUADTREE,
    SAMPLE,
    TRIE,
    direct_cost,
    entries_of,
    lists_within,
    pays_to_prune,
    pruned_cost,
    root_cost,
    trie_cost,
)
from papers.lfilter.lfilter_parts import (
    ONLY_HERE,
    Arrays,
    PartBoxes,
    PartedEngine,
    boxes_view,
    clear_terms,
    first_not_below,
    log2_of,
    mark_terms,
    reach_of,
    scratch_for,
    verify,
)
from papers.lfilter.mbr_trie import (
    BUCKET,
    CHEAPEST,
    END_CHILD,
    FIRST_CHILD,
    HIGH,
    LOW,
    OWN,
    Trie,
    match_by_trie,
    match_part,
    probe,
    probe_root,
    trie_view,
    walk,
)
from papers.lfilter.mbr_trie_build import build_trie
from papers.lfilter.pt_quadtree import (
    LIST_END,
    LIST_START,
    Quadtree,
    find_lists,
    meets_within,
    quadtree_view,
    reach_within,
    sift,
)
from papers.lfilter.pt_quadtree_build import LEAF_CAPACITY, build_quadtree

#: Filter and verification by name; the position is the code, `cheapest` decides by cost.
FILTERS = ("cheapest", "trie", "quadtree")
VERIFICATIONS = ("cheapest", "direct", "prune")
#: A part has a quadtree if it has at least this share of the engine's subscriptions.
_QUADTREE_FRACTION = 1 / 16
#: Equal choices in a row that make a habit; then costs are estimated for one message in `_ONE_IN` only.
_SURE, _ONE_IN = 32, 4096
#: Runs of at least this many messages whose habit is the trie are matched by it in one call.
_RUN = 16
#: How much dearer than typical lists the lists of a message, or its walk of the trie, may look before costs are
#: estimated in spite of a habit.
_LONG_LISTS, _LONG_WALK = 4.0, 1.0
#: Columns of `Habit.leaning`: lengths of messages, by their binary logarithm.
_LENGTHS = 16


class Habit(NamedTuple):
    """The last choices of a part of the index; never in a snapshot, since they change no answer.

    After `_SURE` equal choices for messages of a shape and length, costs are estimated for one message in `_ONE_IN`,
    and for those whose cost looks far from usual.

    leaning : int16[2, 16]   by shape (point, rectangle) and length: how many messages in a row took the trie, or, as a
                             negative number, the quadtree looked through
    since : int64[1]         messages since costs were last estimated in spite of a habit
    """

    leaning: np.ndarray
    since: np.ndarray


class LFilter(PartedEngine):
    """Boolean subscriptions in trie and quadtree, the cheaper one chosen for each message; see the module.

    Parameters
    ----------
    space : Space
    filter_by : str      one of `FILTERS`; other than `cheapest` for tests and benchmarks
    verify_by : str      one of `VERIFICATIONS`, for the lists of the quadtree
    bucket, leaf_capacity    as in `MbrTrie` and `PtQuadtree`
    """

    name = "lfilter"

    def __init__(
        self,
        space: Space,
        filter_by: str = "cheapest",
        verify_by: str = "cheapest",
        bucket: int = BUCKET,
        leaf_capacity: int = LEAF_CAPACITY,
    ):
        super().__init__(space)
        self.filter_by, self.verify_by = FILTERS.index(filter_by), VERIFICATIONS.index(verify_by)
        self.bucket, self.leaf_capacity = bucket, leaf_capacity
        #: Since the engine was made: messages by trie, by quadtree; lists looked through, lists pruned. For each part
        #: that has a quadtree.
        self.choices = np.zeros(4, np.int64)

    def _build(self, slots: Int32) -> Arrays:
        trie = build_trie(slots, self.subscriptions.columns, self._boxes_of(slots), self.bucket)
        if slots.shape[0] < _QUADTREE_FRACTION * len(self.subscriptions):
            return trie
        boxes = trie["slot"], trie["word"], trie["text"]
        return trie | build_quadtree(*boxes, self.subscriptions.columns, self.leaf_capacity)

    def _view(self, arrays: Arrays) -> tuple[PartBoxes, Trie] | tuple[PartBoxes, Trie, Quadtree, Habit]:
        boxes, trie = boxes_view(arrays), trie_view(arrays)
        if "branch" not in arrays:
            return boxes, trie
        return boxes, trie, quadtree_view(arrays), Habit(np.zeros((2, _LENGTHS), np.int16), np.zeros(1, np.int64))

    def _match_part(
        self, messages: Messages, first_row: int, last_row: int, view: tuple, slots: Int32, rows: Int32
    ) -> tuple[int, int, int, int]:
        if len(view) == 2:
            boxes, trie = view
            where = messages, first_row, last_row, boxes, trie, self.subscriptions.columns
            return match_part(*where, *self.frame, CHEAPEST, slots, rows)
        how = self.filter_by, self.verify_by, self.choices
        boxes, trie, tree, habit = view
        where = messages, first_row, last_row, boxes, trie, tree, habit, self.subscriptions.columns
        return _match(*where, *self.frame, *how, slots, rows)


@njit_no_refcount
def _below(trie, tree, stack, node, first, low, high, depth):
    """Push the part of a list that lies below a node of the trie, if any; returns (depth, where it ends)."""
    # Lists ascend by rank, and ranks below a node are one range: two binary searches find the piece in that range.
    begin = first_not_below(tree.entry, low, high, trie.head[node, LOW])
    end = first_not_below(tree.entry, begin, high, trie.head[node, HIGH])
    if begin < end:
        # Two words on the stack for a node: node and place of the next term; start and end of the piece.
        stack[2 * depth] = node << 32 | first
        stack[2 * depth + 1] = begin << 32 | end
        depth += 1
    return depth, end


@njit_inner_no_refcount
def _prune(
    trie, tree, low, high, cell, hits, many, terms, reach, narrow, marks, verify_by, stack, nodes, candidates, cells,
    count,
):  # fmt: skip
    """Candidates among the entries [low, high) of one list, by the trie.

    hits : int64[many]     nodes of the first level on the message's path, as `probe` pushes them, ascending
    reach, narrow          the message for words of the trie, and for boxes of this list (`reach_within`)
    stack, nodes           `Scratch.pieces` and `Scratch.nodes`

    Returns (count, entries and children looked at).
    """
    last = terms.shape[0]
    scanned, depth, begin = 0, 0, low
    # The first level has been probed once for all lists of the message; what is below is probed for this one.
    for i in range(many):
        # Children of a node ascend by token and by rank alike: each piece begins behind the one before.
        depth, begin = _below(trie, tree, stack, hits[i] >> 32, hits[i] & 0xFFFFFFFF, begin, high, depth)
        if begin == high:
            break
    while depth > 0:
        depth -= 1
        node, first = stack[2 * depth] >> 32, stack[2 * depth] & 0xFFFFFFFF
        begin, end = stack[2 * depth + 1] >> 32, stack[2 * depth + 1] & 0xFFFFFFFF
        scanned += end - begin
        own = trie.head[node, OWN]
        # The message has all terms of the path, so of subscriptions that end at the node only boxes are tested.
        while begin < end and tree.entry[begin] < own:
            candidates[count] = tree.entry[begin]
            cells[count] = cell
            count += meets_within(narrow, tree.entry_box[begin])
            begin += 1
        # The rest of the piece has keywords beyond the path: a message without more terms matches none.
        if begin == end or first == last:
            continue
        children = trie.head[node, END_CHILD] - trie.head[node, FIRST_CHILD]
        # Chosen anew at every node: the piece is shorter there, and fewer terms are left.
        if children == 0 or not (
            verify_by == PRUNE
            or (verify_by != DIRECT and pays_to_prune(end - begin, min(children, last - first), last))
        ):
            count = sift(tree, begin, end, narrow, marks, cell, candidates, cells, count)
            continue
        # Into `nodes`, not onto the stack: a child is pushed by `_below`, and only if it has a piece of the list.
        found, looked = probe(trie, node, terms, first, last, reach, marks, CHEAPEST, nodes, 0)
        scanned += looked
        for i in range(found):
            child, after = nodes[i] >> 32, nodes[i] & 0xFFFFFFFF
            depth, begin = _below(trie, tree, stack, child, after, begin, end, depth)
            if begin == end:
                break
    return count, scanned


@njit_no_refcount
def _note(habit, shape, length, by_quadtree):
    """Record a choice: it continues the run of equal choices, or starts another."""
    # One choice the other way ends a habit; from there it has to be earned again.
    lean = np.int64(habit.leaning[shape, length])
    if by_quadtree:
        habit.leaning[shape, length] = max(lean - 1, -_SURE) if lean < 0 else -1
    else:
        habit.leaning[shape, length] = min(lean + 1, _SURE) if lean > 0 else 1


@njit_no_refcount
def _kind_of(messages, row):
    """Shape (0 for a point) and length of a message, as in `Habit`."""
    is_point = messages.west[row] == messages.east[row] and messages.south[row] == messages.north[row]
    size = messages.term_offsets[row + 1] - messages.term_offsets[row]
    return 0 if is_point else 1, min(log2_of(size), _LENGTHS - 1)


@njit_inner_no_refcount
def _sure_until(messages, row, last_row, habit):
    """End of the messages from `row` on that take the trie by habit, without an estimate of costs."""
    # At the latest the next message in `_ONE_IN`, which is estimated in spite of its habit.
    last_row = min(last_row, row + _ONE_IN - habit.since[0])
    while row < last_row:
        shape, length = _kind_of(messages, row)
        # A habit of the quadtree is `-_SURE`.
        if habit.leaning[shape, length] != _SURE:
            break
        row += 1
    return row


@njit(cache=True, nogil=True)
def _match(
    messages, first_row, last_row, boxes, trie, tree, habit, columns, world_west, world_south, steps_per_degree,
    filter_by, verify_by, choices, out_slot, out_row,
):  # fmt: skip
    """Match the rows of a batch in one part; see `BooleanEngine._scan` for what is returned."""
    # Each box is listed in one cell at least, so there are no fewer entries than ranks.
    scratch = scratch_for(messages, first_row, last_row, tree.entry.shape[0], tree.cell.shape[0])
    return _match_rows(
        messages, first_row, last_row, boxes, trie, tree, habit, columns, world_west, world_south, steps_per_degree,
        filter_by, verify_by, choices, scratch, out_slot, out_row,
    )  # fmt: skip


@njit_inner_no_refcount
def _match_rows(
    messages, first_row, last_row, boxes, trie, tree, habit, columns, world_west, world_south, steps_per_degree,
    filter_by, verify_by, choices, scratch, out_slot, out_row,
):  # fmt: skip
    """`_match` with its scratch."""
    found, scanned, verified = 0, 0, 0
    marks, hits, lists = scratch.marks, scratch.hits, scratch.lists
    candidates, places = scratch.candidates, scratch.places
    # more nodes of the first level than this cost more than typical lists
    most_hits = np.int64(direct_cost(0.0, tree.typical[0], 0) / (2.0 * CHILD_NS))
    next_row = first_row
    look_from = first_row if filter_by == CHEAPEST and verify_by == CHEAPEST else last_row  # for the next run
    while next_row < last_row:
        row = next_row
        if row >= look_from:
            look_from = _sure_until(messages, row, last_row, habit)
            if look_from - row >= _RUN:
                more, next_row, looked, checked = match_by_trie(
                    messages, row, look_from, boxes, trie, columns, world_west, world_south, steps_per_degree, CHEAPEST,
                    most_hits, scratch, out_slot[found:], out_row[found:],
                )  # fmt: skip
                choices[0] += next_row - row
                habit.since[0] += next_row - row
                found, scanned, verified = found + more, scanned + looked, verified + checked
                if next_row == look_from:
                    continue
                row = look_from = next_row  # output full, or more hits than usual: matched singly
            # The run is too short: its rows are matched one by one, and the next run is sought behind it.
            look_from = max(look_from, row + 1)
        next_row = row + 1
        west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        if west != west or south != south or east != east or north != north:
            continue  # a NaN meets no box, but would round to a lattice coordinate that does
        left, bottom, right, top, reach = reach_of(
            west, south, east, north, world_west, world_south, steps_per_degree
        )  # fmt: skip
        first, last = messages.term_offsets[row], messages.term_offsets[row + 1]
        terms = messages.terms[first:last]
        signature = mark_terms(marks, messages.terms, first, last)
        size = terms.shape[0]
        shape, length = _kind_of(messages, row)
        is_point = shape == 0
        lean = np.int64(habit.leaning[shape, length])
        habit.since[0] += 1
        if filter_by != CHEAPEST or verify_by != CHEAPEST:
            # Forced ways are taken at every message, whatever was chosen before.
            lean = 0
        elif habit.since[0] > _ONE_IN:
            lean, habit.since[0] = 0, 0
        many, listed, is_listed, by_quadtree, needs_hits = 0, 0, False, filter_by == QUADTREE, verify_by != DIRECT
        # By habit the quadtree: its lists are found first, and the trie is probed only if they are far too long.
        if lean == -_SURE:
            listed, visited = find_lists(tree, left, bottom, right, top, terms, signature, marks, scratch.cells, lists)
            scanned, is_listed = scanned + visited, True
            by_quadtree = entries_of(tree, lists, listed) < _LONG_LISTS * tree.typical[0]
            needs_hits = not by_quadtree
        if not by_quadtree or needs_hits:
            # The first level of the trie is probed by some of the terms, or by all if they are few.
            step = max(1, size // SAMPLE) if filter_by != TRIE and lean != _SURE else 1
            many, looked = probe_root(trie, terms, step, reach, marks, CHEAPEST, hits)
            scanned += looked
            if step == 1 and many == 0:  # no subscription here begins with a term of the message
                clear_terms(marks, messages.terms, first, last)
                continue
            # A sample is for the estimate alone: to walk the trie all terms have to be probed after it.
            again = root_cost(size) if step > 1 else 0.0
            if filter_by == CHEAPEST:
                # The paper chooses the filter first and its verification after, and each step costs 1. Here the filter
                # with the cheaper verification is chosen, which is most of the work; lists are not estimated where the
                # trie is cheap.
                by_trie = again + step * trie_cost(trie, hits, many, size)
                # Far cheaper than typical lists: the cost of this message's lists is not estimated.
                usual = ESTIMATE_ABOVE if is_point else ESTIMATE_ABOVE_WIDE
                worth = max(usual, _LONG_WALK) if lean == _SURE else usual
                if by_trie > max(worth * direct_cost(0.0, tree.typical[0], size), ESTIMATE_ABOVE_NS):
                    # A point has a few lists on one path: they are found now, and scanned if the quadtree is chosen. A
                    # rectangle may have many, so their number is estimated by area.
                    if is_point and not is_listed:
                        listed, visited = find_lists(
                            tree, left, bottom, right, top, terms, signature, marks, scratch.cells, lists
                        )
                        scanned, is_listed = scanned + visited, True
                    if is_listed:
                        lists_ahead, entries_ahead = np.float64(listed), np.float64(entries_of(tree, lists, listed))
                    else:
                        lists_ahead, entries_ahead = lists_within(tree, left, bottom, right, top, scratch.cells)
                    direct = direct_cost(lists_ahead, entries_ahead, size)
                    pruned = again + pruned_cost(lists_ahead, entries_ahead, many * step, size)
                    by_quadtree = min(direct, pruned) < by_trie
                    needs_hits = pruned < direct
                if verify_by == CHEAPEST:
                    # Pruned lists need trie and quadtree. A habit is for one of the two, so this ends any habit.
                    if by_quadtree and needs_hits:
                        habit.leaning[shape, length] = 0
                    else:
                        _note(habit, shape, length, by_quadtree)
            if step > 1:
                # Nodes found by a sample of the terms would lose matches: all terms are probed, or none.
                many = 0
                if needs_hits or not by_quadtree:
                    many, looked = probe_root(trie, terms, 1, reach, marks, CHEAPEST, hits)
                    scanned += looked

        count = 0
        if not by_quadtree:
            choices[0] += 1
            count, more = walk(trie, boxes, terms, reach, marks, CHEAPEST, hits, many, candidates, 0)
            scanned += more
        else:
            choices[1] += 1
            if not is_listed:
                listed, visited = find_lists(
                    tree, left, bottom, right, top, terms, signature, marks, scratch.cells, lists
                )
                scanned += visited
            for i in range(listed):
                low, high = int(tree.branch[lists[i], LIST_START]), int(tree.branch[lists[i], LIST_END])
                cell = ONLY_HERE if is_point else tree.cell[lists[i]]
                # Boxes of a list are as seen from its own cell.
                narrow = reach_within(tree.cell[lists[i]], left, bottom, right, top)
                if many > 0 and (verify_by == PRUNE or (verify_by != DIRECT and pays_to_prune(high - low, many, size))):
                    choices[3] += 1
                    count, more = _prune(
                        trie, tree, low, high, cell, hits, many, terms, reach, narrow, marks, verify_by, scratch.pieces,
                        scratch.nodes, candidates, places, count,
                    )  # fmt: skip
                    scanned += more
                else:
                    choices[2] += 1
                    count = sift(tree, low, high, narrow, marks, cell, candidates, places, count)
                    scanned += high - low
        # There must be capacity for all candidates as hits: those of a row are not split. A return drops the marks.
        if found + count > out_slot.shape[0]:
            return found, row, scanned, verified
        # The trie has each rank once: candidates of a walk need no cell to be told apart.
        found = verify(
            messages, row, reach, left, bottom, boxes, columns, marks, candidates,
            places if by_quadtree else scratch.nowhere, count, out_slot, out_row, found,
        )  # fmt: skip
        clear_terms(marks, messages.terms, first, last)
        verified += count
    return found, last_row, scanned, verified
