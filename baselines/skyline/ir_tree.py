"""The IR-tree: an R-tree whose every node has an inverted file, kept up to date at once; for comparison.

A leaf has the list of its messages for each of their terms; an inner node has, for each term below it, in how many
messages it occurs (the pseudo-document of the node, as far as a query by any keyword needs it). An arrival therefore
touches every one of its terms at every level, and so does an end, which has to find the leaf first.

After Cong, Jensen and Wu, "Efficient retrieval of the top-k most relevant spatial web objects"; used over a window by
Deng et al. (see `papers.skyline.mf_rtree`).
"""

import numpy as np

from baselines.skyline import lists as lists_module
from baselines.skyline.cells import write_picked
from baselines.skyline.lists import key_of, pick_from
from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.errors import EngineError
from matching.space import Space
from matching.storage.prefetch import prefetch
from matching.storage.slots import resized
from papers.skyline import rtree as rtree_module
from papers.skyline.rtree import (
    FANOUT,
    HIGHEST,
    LISTS,
    MEMO,
    READS,
    ROOT,
    STACK,
    WRITES,
    choose_leaf,
    fit_upwards,
    meets,
    new_root,
    nodes_left,
    put,
    remove_empty,
    shorten,
    split,
    widen_box,
)
from papers.skyline.tree import TreeWindow, tables_of

#: Leaves whose lists a query reads together, so that they come from memory meanwhile.
_TOGETHER = 16
#: Positions in `progress` of an insertion.
_DONE, _KEYS, _WORDS = range(3)


class IrTree(TreeWindow):
    """R-tree with inverted files.

    Notes
    -----
    An arrival or an end costs O(height * terms) lists, and a search for its leaf; a query the nodes whose box meets its
    rectangle and below which one of its keywords occurs.
    """

    name = "ir_tree"

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        self.tree = rtree_module.new_rtree()
        self.lists = lists_module.new_lists()
        self.distinct = np.zeros(self.tree.count.shape[0], np.int32)  # terms of an inner node's pseudo-document

    def _insert(self, slots):
        log, progress = self.log.view, np.zeros(3, np.int64)
        while not _insert(self.tree, self.lists, self.distinct, log, slots, progress):
            if nodes_left(self.tree) <= HIGHEST:
                self.tree = rtree_module.grown(self.tree)
                self.distinct = resized(self.distinct, self.tree.count.shape[0])
            self.lists = lists_module.grown(self.lists, int(progress[_KEYS]), int(progress[_WORDS]))

    def _end(self, slots):
        missing = _delete(self.tree, self.lists, self.distinct, self.log.view, slots)
        if missing:
            raise EngineError(f"ir_tree: {missing} messages that ended are not where they should be; start anew")
        self.log.remove(slots)

    def _search(self, as_of, region, offsets, terms, first, ends, found):
        log = self.log.view
        return _search(self.tree, self.lists, log, as_of, region, offsets, terms, first, ends, found, self._visits)

    def _update_work(self) -> tuple[int, int, int, int]:
        meta = self.tree.meta
        return int(meta[READS]), int(meta[WRITES]), int(meta[LISTS]), int(meta[MEMO])

    def _index_bytes(self) -> int:
        nodes = rtree_module.used_bytes(self.tree) + 4 * int(self.tree.meta[rtree_module.HIGH])
        return nodes + lists_module.used_bytes(self.lists)

    def _state(self) -> dict[str, dict[str, np.ndarray]]:
        return tables_of(tree=self.tree, lists=self.lists) | {"nodes": {"distinct": self.distinct}}


@njit_no_refcount
def _count_terms(tree, lists, distinct, log, node, slot, amount):
    """Add a message to the pseudo-document of an inner node, or take it out (amount 1 or -1)."""
    for p in range(log.term_start[slot], log.term_start[slot] + log.term_count[slot]):
        count = lists_module.add_to_count(lists, key_of(log.terms[p], node), amount)
        if count == 0:
            distinct[node] -= 1
        # 1 on the way down is no new term
        elif count == 1 and amount > 0:
            distinct[node] += 1
        tree.meta[LISTS] += 1


@njit_inner
def _list_terms(tree, lists, log, leaf, slot, adding):
    """Put a message on the lists of a leaf, or take it off."""
    for p in range(log.term_start[slot], log.term_start[slot] + log.term_count[slot]):
        key = key_of(log.terms[p], leaf)
        if adding:
            lists_module.append(lists, key, slot)
        else:
            lists_module.remove_entry(lists, key, slot)
        tree.meta[LISTS] += 1


@njit_inner
def _all_below(tree, node, stack, out):
    """Slots of all messages below a node, into out; returns how many."""
    stack[0], height, count = node, 1, 0
    while height:
        height -= 1
        at = stack[height]
        for i in range(tree.count[at]):
            if tree.level[at] > 0:
                stack[height] = tree.child[at, i]
                height += 1
            else:
                out[count] = tree.child[at, i]
                count += 1
    return count


@njit_no_refcount
def _needed(tree, distinct, log, leaf, slot, progress):
    """Keys and words that an insertion into a leaf takes at most, into `progress`."""
    terms = log.term_count[slot]
    keys, words, node = terms * (HIGHEST + 1), terms * 2 * FANOUT, np.int64(leaf)
    # from the leaf up, the nodes that are full are those that will be split
    while node >= 0 and tree.count[node] == FANOUT:
        if tree.level[node] == 0:
            for i in range(FANOUT):
                keys += log.term_count[tree.child[node, i]]
            # a leaf that is split: the lists of the new one come on top of those of the old one
            words += 4 * keys
        else:
            keys += distinct[node]
        node = np.int64(tree.parent[node])
    if node < 0:  # a new root has all terms
        root = tree.meta[ROOT]
        # a root that is a leaf: the terms of its messages have been reckoned
        keys += distinct[root] if tree.level[root] > 0 else keys
    progress[_KEYS], progress[_WORDS] = keys, words


@njit(cache=True, nogil=True)
def _insert(tree, lists, distinct, log, slots, progress):
    """Insert the messages that `progress` has not seen yet; returns whether all of them are in now.

    If capacity is exhausted, `progress` has the keys and words that the lists need.
    """
    everything, stack = np.empty(0, np.int32), np.empty(STACK, np.int32)
    while progress[_DONE] < slots.shape[0]:
        slot = slots[progress[_DONE]]
        lon, lat = log.lon[slot], log.lat[slot]
        # every level may be split, and a root added: checked first, since a split cannot be undone half way
        if nodes_left(tree) <= HIGHEST:
            progress[_KEYS] = progress[_WORDS] = 0
            return False
        leaf = choose_leaf(tree, lon, lat)
        _needed(tree, distinct, log, leaf, slot, progress)
        if not lists_module.has_capacity(lists, progress[_KEYS], progress[_WORDS]):
            return False
        put(tree, leaf, tree.count[leaf], slot)
        # an empty root has the box of what was once in it, or of nothing: widening would keep that
        if tree.count[leaf] == 1:
            fit_upwards(tree, log, leaf)
        _list_terms(tree, lists, log, leaf, slot, True)
        tree.meta[WRITES] += 1
        node = np.int64(leaf)
        while node >= 0:
            if widen_box(tree, node, lon, lat):
                tree.meta[WRITES] += 1
            # counts above change at every level: the price of pseudo-documents that are never out of date
            if node != leaf:
                _count_terms(tree, lists, distinct, log, node, slot, 1)
            node = np.int64(tree.parent[node])
        node = np.int64(leaf)
        while tree.count[node] > FANOUT:
            # as long as the window, so only made where something is split
            if everything.shape[0] == 0:
                everything = np.empty(log.seq.shape[0], np.int32)
            if tree.meta[ROOT] == node:
                root = new_root(tree)
                # the new root is above all, and has no counts yet
                for i in range(_all_below(tree, node, stack, everything)):
                    _count_terms(tree, lists, distinct, log, root, everything[i], 1)
            other = split(tree, log, node)
            # what is moved changes sides; above nothing changes, since the same messages are below
            for i in range(_all_below(tree, other, stack, everything)):
                moved = everything[i]
                if tree.level[node] == 0:
                    _list_terms(tree, lists, log, node, moved, False)
                    _list_terms(tree, lists, log, other, moved, True)
                else:
                    _count_terms(tree, lists, distinct, log, node, moved, -1)
                    _count_terms(tree, lists, distinct, log, other, moved, 1)
            node = np.int64(tree.parent[node])
        progress[_DONE] += 1
    return True


@njit_inner_no_refcount
def _find_leaf(tree, log, slot, stack):
    """(leaf, position) of a message: every node whose box has its point may be on the way. (-1, -1) if nowhere."""
    lon, lat = log.lon[slot], log.lat[slot]
    stack[0], height = tree.meta[ROOT], 1
    while height:
        height -= 1
        node = stack[height]
        tree.meta[READS] += 1
        for i in range(tree.count[node]):
            child = tree.child[node, i]
            if tree.level[node] == 0:
                if child == slot:
                    return np.int64(node), i
                continue
            box = tree.box[child]
            # boxes are closed and overlap: the first one that has the point need not have the message
            if box[0] <= lon <= box[2] and box[1] <= lat <= box[3]:
                stack[height] = child
                height += 1
    return np.int64(-1), -1


@njit(cache=True, nogil=True)
def _delete(tree, lists, distinct, log, slots):
    """Take messages out; returns how many could not be found."""
    stack, gone = np.empty(STACK, np.int32), np.empty(HIGHEST, np.int64)
    missing = 0
    for slot in slots:
        leaf, at = _find_leaf(tree, log, slot, stack)
        if leaf < 0:
            missing += 1
            continue
        tree.count[leaf] -= 1
        tree.child[leaf, at] = tree.child[leaf, tree.count[leaf]]
        tree.meta[WRITES] += 1
        _list_terms(tree, lists, log, leaf, slot, False)
        node = np.int64(tree.parent[leaf])
        while node >= 0:
            _count_terms(tree, lists, distinct, log, node, slot, -1)
            node = np.int64(tree.parent[node])
        # what is taken out has no lists and counts left: the last message below took them along
        _, stays = remove_empty(tree, leaf, gone)
        # the root, and nothing is left: a leaf again
        if tree.count[stays] == 0:
            tree.level[stays] = 0
            continue
        fit_upwards(tree, log, stays)
        shortened = shorten(tree, gone)
        if shortened:
            below = np.empty(log.seq.shape[0], np.int32)
            # roots taken out still have their counts, which the next node of that number would inherit
            for i in range(_all_below(tree, tree.meta[ROOT], stack, below)):
                for k in range(shortened):
                    _count_terms(tree, lists, distinct, log, gone[k], below[i], -1)
    return missing


@njit(cache=True, nogil=True)
def _search(tree, lists, log, as_of, region, offsets, terms, first, ends, found, visits):
    """Answer queries from `first` on; see `papers.skyline.tree.TreeWindow`."""
    stack, leaves = np.empty(STACK, np.int32), np.empty(_TOGETHER + FANOUT, np.int32)
    seen, slots = np.zeros(log.seq.shape[0], np.int16), np.empty(log.seq.shape[0] + 1, np.int32)
    for query in range(first, region.shape[0]):
        box, keywords = region[query], terms[offsets[query] : offsets[query + 1]]
        entries = np.empty((_TOGETHER + FANOUT) * keywords.shape[0] + 1, np.int64)
        picked, many = 0, 0
        stack[0], height = tree.meta[ROOT], 1
        while height:
            height -= 1
            node = stack[height]
            if tree.level[node] == 0:  # a root
                leaves[0], many = node, 1
                break
            visits[0] += 1
            for i in range(tree.count[node]):
                prefetch(tree.box, np.int64(tree.child[node, i]) * 4)
            if tree.level[node] == 1:
                for i in range(tree.count[node]):
                    # written in any case, and overwritten unless it counts: no branch
                    leaves[many] = tree.child[node, i]
                    many += meets(tree.box[tree.child[node, i]], box)
            else:
                for i in range(tree.count[node]):
                    if meets(tree.box[tree.child[node, i]], box):
                        for k in range(keywords.shape[0]):
                            lists_module.ask_for(lists, key_of(keywords[k], tree.child[node, i]))
                for i in range(tree.count[node]):
                    child = tree.child[node, i]
                    if not meets(tree.box[child], box):
                        continue
                    for k in range(keywords.shape[0]):
                        visits[0] += 1
                        if lists_module.find(lists, key_of(keywords[k], child)) >= 0:
                            stack[height] = child
                            height += 1
                            break
            if many >= _TOGETHER:
                picked = pick_from(lists, leaves[:many], keywords, entries, seen, slots, picked, visits)
                many = 0
        picked = pick_from(lists, leaves[:many], keywords, entries, seen, slots, picked, visits)
        row = write_picked(log, as_of, box, keywords.shape[0], slots[:picked], seen, found, ends[query])
        ends[query + 1] = row
        if row > found.seq.shape[0]:
            return query
    return region.shape[0]
