"""The inverted KD-tree: a KD-tree whose leaves have inverted files, and nothing about texts above; for comparison.

A leaf that grows beyond its capacity is cut in two at the median of its wider side; one that becomes empty gives its
place to its neighbour. A query visits every leaf that its rectangle meets, whatever its keywords.

The static form is used for spatial-keyword skylines by Shi, Wu and Mamoulis; over a window by Deng et al. (see
`papers.skyline.mf_rtree`).
"""

from typing import NamedTuple

import numpy as np

from baselines.skyline import lists as lists_module
from baselines.skyline.cells import write_picked
from baselines.skyline.lists import LONGEST, key_of, pick_from, slot_at
from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.errors import EngineError
from matching.model import UNKNOWN_TERM, Float64, Int8, Int32, Int64
from matching.space import Space
from matching.storage.slots import resized
from matching.storage.sorting import ascending
from papers.skyline.tree import TreeWindow, tables_of

#: Messages of a leaf at most, unless all of them stand at one point: as many as an R-tree's leaf has.
CAPACITY = 40
#: Leaves whose lists a query reads together, so that they come from memory meanwhile.
_TOGETHER = 16
#: Stands for "all messages of the leaf"; no message has this term.
_ALL = UNKNOWN_TERM
_NONE, _UNUSED, _LEAF, _BY_LON, _BY_LAT = -1, -1, 2, 0, 1
_ROOT, _FREE, _HIGH, _USED, _READS, _WRITES, _LISTS = range(7)
#: Positions in `progress` of an insertion.
_DONE, _KEYS, _WORDS = range(3)


class KdTree(NamedTuple):
    """axis : int8[n]        what is compared: 0 longitude, 1 latitude, 2 nothing (a leaf), -1 not in use
    cut : float64[n]      smaller coordinates go left, others right
    left, right : int32[n]
    parent : int32[n]     -1 for the root; the next free node for one that is not in use
    count : int32[n]      messages of a leaf
    meta : int64[7]       root, first free node, nodes ever used, nodes in use, then update operations: nodes read,
                          nodes written, lists
    """

    axis: Int8
    cut: Float64
    left: Int32
    right: Int32
    parent: Int32
    count: Int32
    meta: Int64


class InvertedKd(TreeWindow):
    """KD-tree with inverted files in the leaves.

    Notes
    -----
    An arrival or an end costs a way down and one list for each of its terms, amortised over cuts; a query the leaves
    that its rectangle meets.
    """

    name = "inverted_kd"

    def __init__(self, space: Space, kept_boundaries: int = 0):
        super().__init__(space, kept_boundaries)
        nodes = 16
        left, right, parent = (np.full(nodes, _NONE, np.int32) for _ in range(3))
        axis, count = np.full(nodes, _UNUSED, np.int8), np.zeros(nodes, np.int32)
        self.tree = KdTree(axis, np.zeros(nodes), left, right, parent, count, np.zeros(7, np.int64))
        self.tree.axis[0] = _LEAF
        self.tree.meta[_FREE] = _NONE
        self.tree.meta[_HIGH] = self.tree.meta[_USED] = 1
        self.lists = lists_module.new_lists()

    def _insert(self, slots):
        log, progress = self.log.view, np.zeros(3, np.int64)
        while not _insert(self.tree, self.lists, log, slots, progress):
            tree = self.tree
            length = tree.count.shape[0] * 3 // 2 + 2
            columns = {name: resized(column, length) for name, column in tree._asdict().items() if name != "meta"}
            columns["axis"][tree.axis.shape[0] :] = _UNUSED
            self.tree = tree._replace(**columns)
            self.lists = lists_module.grown(self.lists, int(progress[_KEYS]), int(progress[_WORDS]))

    def _end(self, slots):
        missing = _delete(self.tree, self.lists, self.log.view, slots)
        if missing:
            raise EngineError(f"inverted_kd: {missing} messages that ended are not where they should be; start anew")
        self.log.remove(slots)

    def _search(self, as_of, region, offsets, terms, first, ends, found):
        log = self.log.view
        return _search(self.tree, self.lists, log, as_of, region, offsets, terms, first, ends, found, self._visits)

    def _update_work(self) -> tuple[int, int, int, int]:
        meta = self.tree.meta
        return int(meta[_READS]), int(meta[_WRITES]), int(meta[_LISTS]), 0

    def _index_bytes(self) -> int:
        high = int(self.tree.meta[_HIGH])
        return sum(column[:high].nbytes for column in self.tree[:-1]) + lists_module.used_bytes(self.lists)

    def _state(self) -> dict[str, dict[str, np.ndarray]]:
        return tables_of(tree=self.tree, lists=self.lists)


@njit_inner
def _leaf_of(tree, lon, lat):
    """The leaf of a point."""
    node = np.int64(tree.meta[_ROOT])
    tree.meta[_READS] += 1
    while tree.axis[node] != _LEAF:
        at = lon if tree.axis[node] == _BY_LON else lat
        # a coordinate on the cut goes right, always: so an end finds the leaf that the arrival found
        node = np.int64(tree.left[node] if at < tree.cut[node] else tree.right[node])
        tree.meta[_READS] += 1
    return node


@njit_inner_no_refcount
def _new_leaf(tree, parent):
    node = tree.meta[_FREE]
    if node >= 0:
        tree.meta[_FREE] = tree.parent[node]
    else:
        node = tree.meta[_HIGH]
        tree.meta[_HIGH] += 1
    tree.meta[_USED] += 1
    tree.axis[node], tree.count[node], tree.parent[node] = _LEAF, 0, parent
    return node


@njit_inner
def _free_node(tree, node):
    tree.axis[node], tree.parent[node] = _UNUSED, tree.meta[_FREE]
    tree.meta[_FREE] = node
    tree.meta[_USED] -= 1


@njit_inner
def _list_terms(tree, lists, log, leaf, slot, adding):
    """Put a message on the lists of a leaf, or take it off; returns whether it was there."""
    first, count = log.term_start[slot], log.term_count[slot]
    there = True
    for p in range(first - 1, first + count):
        # one list more than terms, of all messages of the leaf: a cut has to know them
        key = key_of(_ALL if p < first else log.terms[p], leaf)
        if adding:
            lists_module.append(lists, key, slot)
        elif lists_module.remove_entry(lists, key, slot) < 0:
            there = False
    tree.meta[_LISTS] += count
    tree.meta[_WRITES] += 1
    return there


@njit_inner
def _cut_leaf(tree, lists, log, leaf):
    """Cut a leaf in two if not all its messages stand at one point."""
    count = tree.count[leaf]
    entry = lists_module.find(lists, key_of(_ALL, leaf))
    slots = np.empty(count, np.int32)
    for i in range(count):
        slots[i] = slot_at(lists, entry, i)
    lon, lat = log.lon[slots], log.lat[slots]
    axis = _BY_LON if lon.max() - lon.min() >= lat.max() - lat.min() else _BY_LAT
    at = lon if axis == _BY_LON else lat
    ordered = at[ascending(at)]
    cut = ordered[count // 2]
    if cut == ordered[0]:  # nothing would go left: the next larger one
        larger = np.searchsorted(ordered, cut, side="right")
        # the wider side is a point: all are at the same place
        if larger == count:
            return
        cut = ordered[larger]
    left, right = _new_leaf(tree, leaf), _new_leaf(tree, leaf)
    for i in range(count):
        side = left if at[i] < cut else right
        _list_terms(tree, lists, log, leaf, slots[i], False)
        _list_terms(tree, lists, log, side, slots[i], True)
        tree.count[side] += 1
    tree.axis[leaf], tree.cut[leaf], tree.left[leaf], tree.right[leaf] = axis, cut, left, right
    tree.count[leaf] = 0


@njit(cache=True, nogil=True)
def _insert(tree, lists, log, slots, progress):
    """Insert the messages that `progress` has not seen yet; returns whether all of them are in now.

    If capacity is exhausted, `progress` has the keys and words that the lists need.
    """
    while progress[_DONE] < slots.shape[0]:
        slot = slots[progress[_DONE]]
        leaf = _leaf_of(tree, log.lon[slot], log.lat[slot])
        # Leaves that cannot be cut are tried again only now and then.
        cuts = tree.count[leaf] >= CAPACITY and tree.count[leaf] % CAPACITY == 0
        # Upper bound, checked before anything is changed, so that this message can be repeated.
        keys = log.term_count[slot] + 1
        words = 2 * keys + 2 * lists.meta[LONGEST] + 2 * tree.count[leaf] * keys
        if cuts:
            entry = lists_module.find(lists, key_of(_ALL, leaf))
            for i in range(lists.length[entry]):
                # their lists are made in the new leaves while the old ones are still there
                keys += log.term_count[slot_at(lists, entry, i)] + 2
            words += 4 * keys
        progress[_KEYS], progress[_WORDS] = keys, words
        # a cut makes two leaves
        if tree.count.shape[0] - tree.meta[_USED] < 2 or not lists_module.has_capacity(lists, keys, words):
            return False
        _list_terms(tree, lists, log, leaf, slot, True)
        tree.count[leaf] += 1
        if cuts:
            _cut_leaf(tree, lists, log, leaf)
        progress[_DONE] += 1
    return True


@njit(cache=True, nogil=True)
def _delete(tree, lists, log, slots):
    """Take messages out; returns how many were not where they should be."""
    missing = 0
    for slot in slots:
        leaf = _leaf_of(tree, log.lon[slot], log.lat[slot])
        if not _list_terms(tree, lists, log, leaf, slot, False):
            missing += 1
        tree.count[leaf] -= 1
        parent = np.int64(tree.parent[leaf])
        # a root may be empty: the tree is never without a leaf
        if tree.count[leaf] or parent < 0:
            continue
        # The neighbour takes the place of the parent.
        beside = np.int64(tree.right[parent] if tree.left[parent] == leaf else tree.left[parent])
        above = np.int64(tree.parent[parent])
        tree.parent[beside] = above
        if above < 0:
            tree.meta[_ROOT] = beside
        elif tree.left[above] == parent:
            tree.left[above] = beside
        else:
            tree.right[above] = beside
        _free_node(tree, leaf)
        _free_node(tree, parent)
        tree.meta[_WRITES] += 2
    return missing


@njit(cache=True, nogil=True)
def _search(tree, lists, log, as_of, region, offsets, terms, first, ends, found, visits):
    """Answer queries from `first` on; see `papers.skyline.tree.TreeWindow`."""
    # the tree is not balanced: it may be as high as it has nodes
    stack, leaves = np.empty(tree.meta[_USED] + 1, np.int32), np.empty(_TOGETHER, np.int32)
    seen, slots = np.zeros(log.seq.shape[0], np.int16), np.empty(log.seq.shape[0] + 1, np.int32)
    for query in range(first, region.shape[0]):
        box, keywords = region[query], terms[offsets[query] : offsets[query + 1]]
        entries = np.empty(_TOGETHER * keywords.shape[0] + 1, np.int64)
        picked, many = 0, 0
        stack[0], height = tree.meta[_ROOT], 1
        while height:
            height -= 1
            node = stack[height]
            if tree.axis[node] == _LEAF:
                leaves[many] = node
                many += 1
                if many == _TOGETHER:
                    picked = pick_from(lists, leaves, keywords, entries, seen, slots, picked, visits)
                    many = 0
                continue
            visits[0] += 1
            low, high = (box[0], box[2]) if tree.axis[node] == _BY_LON else (box[1], box[3])
            # closed: what stands on the cut is on the right
            if high >= tree.cut[node]:
                stack[height] = tree.right[node]
                height += 1
            if low < tree.cut[node]:
                stack[height] = tree.left[node]
                height += 1
        picked = pick_from(lists, leaves[:many], keywords, entries, seen, slots, picked, visits)
        row = write_picked(log, as_of, box, keywords.shape[0], slots[:picked], seen, found, ends[query])
        ends[query + 1] = row
        if row > found.seq.shape[0]:
            return query
    return region.shape[0]
