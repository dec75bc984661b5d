"""Baselines: R-trees over the regions, with the keywords below each node.

`rt_tree` has the rarest keyword of each subscription (the R^t-tree of the literature), `ir_tree` all of them: an
inverted file in each node, as in the IR-tree of Cong et al. (PVLDB 2009), which is for queries by any word.
`baselines.boolean.rtpp_tree` has two.

Source: the token-carrying R-tree of Li et al., "Location-aware publish/subscribe" (KDD 2013); the MBRTrie and
PT-Quadtree paper compares with both, with the former in a further form (R^t++) whose choice of several tokens a
subscription it does not describe. A subscription stands in one leaf; a node lists the keywords below it, each with the
children that lead to them, and a message goes down into children that have one of its terms and whose box it meets.
What it meets in a leaf is tested pair by pair. Upper nodes know nearly every keyword, so they prune by place only,
which `matching.boolean.engines.cell_term` avoids by looking up the keyword first.

Several tokens a subscription were tried: one a level (the rarest in the leaves and commoner ones above, the other way
round, or alternating), which took 1.3 to 2.5 times as long as the rarest only, and two at once, both required, in some
levels or all, 1.2 to 2.2 times (a trial: 200,000 subscriptions, points of 10 and of 300 words). A node has many
subscriptions, and mostly another one has the second token: hardly a node less is entered, and each costs more. The
second rarest from the third level up gains nothing, since nodes up there have nearly all.

Changes: a stack of packed trees (sort-tile-recursive), each at least twice as large as the next. Added subscriptions
are packed with the trees on top that are not larger; removed ones are deleted in their leaves, and a tree that is half
deleted is repacked with all above it.
"""

from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount, njit_no_refcount
from matching.boolean.engine import BooleanEngine
from matching.model import Int32, Int64
from matching.space import Space
from matching.storage.prefetch import prefetch
from matching.storage.region_messages import Messages
from matching.storage.region_subscriptions import all_terms_in, region_meets
from matching.storage.slots import as_input, grown, longer

#: Children of a node, and entries of a leaf: one bit each of a mask.
FANOUT = 32
_NOBODY = -1
#: Columns of `Forest.tree`.
ENTRY, ENTRIES, NODE, LIVE = range(4)
#: More levels than 2**31 entries need.
_MOST_LEVELS = 8


class Forest(NamedTuple):
    """Kernel view of the stack; t trees, e entries, n nodes, k keywords of nodes.

    tree : int64[t, 4]      a row a tree, the largest first: first ENTRY, ENTRIES, first NODE, LIVE entries
    entry : int32[e]        slot, -1 for one that was struck out; 32 in a row are a leaf
    box : float64[n, 4]     what surrounds the regions below a node; leaves first, then level by level, the root last
    span : int32[n, 2]      the keywords of a node: first, and behind the last
    keyword : int32[k]      ascending within a node
    mask : uint32[k]        bit i: child (or entry) i has the keyword below it
    """

    tree: Int64
    entry: Int32
    box: np.ndarray
    span: Int32
    keyword: Int32
    mask: np.ndarray


class RtTree(BooleanEngine):
    """Boolean subscriptions in R-trees with keywords in the nodes; see the module."""

    name = "rt_tree"
    #: Whether nodes know all keywords of a subscription, or the rarest.
    every_keyword = False

    def __init__(self, space: Space):
        super().__init__(space)
        self._tree = np.zeros((0, 4), np.int64)
        self._used = np.zeros(3, np.int64)  # entries, nodes, keywords of nodes
        self._pools = {
            "entry": np.zeros(0, np.int32),
            "box": np.zeros((0, 4), np.float64),
            "span": np.zeros((0, 2), np.int32),
            "keyword": np.zeros(0, np.int32),
            "mask": np.zeros(0, np.uint32),
        }
        self._place = np.zeros(0, np.int32)  # entry of each slot

    def _post(self, slots: Int32) -> None:
        """Amortised O(log(n)**2) a subscription."""
        self._place = grown(self._place, self.subscriptions.slots.capacity, _NOBODY)
        slots = slots[self.subscriptions.columns.start[slots] >= 0]
        kept, count = self._tree.shape[0], slots.shape[0]
        while kept > 0 and self._tree[kept - 1, LIVE] < 2 * count:
            kept -= 1
            count += int(self._tree[kept, LIVE])
        self._pack(kept, slots)

    def _unpost(self, slots: Int32) -> None:
        """Amortised O(log(n)**2) a subscription."""
        slots = slots[self.subscriptions.columns.start[slots] >= 0]
        places = self._place[slots]
        self._pools["entry"][places] = _NOBODY
        self._place[slots] = _NOBODY
        which = np.searchsorted(self._tree[:, ENTRY], places, side="right") - 1
        self._tree[:, LIVE] -= np.bincount(which, minlength=self._tree.shape[0])
        thin = np.flatnonzero(2 * self._tree[:, LIVE] < self._tree[:, ENTRIES])
        if thin.shape[0]:
            self._pack(int(thin[0]), slots[:0])

    def _pack(self, kept: int, slots: Int32) -> None:
        """Replace the trees behind the first `kept` by one tree of their live entries and of these slots."""
        if kept < self._tree.shape[0]:
            first = int(self._tree[kept, ENTRY])
            old = self._pools["entry"][first : self._used[0]]
            slots = np.concatenate([old[old >= 0], slots])
            node = int(self._tree[kept, NODE])
            self._used[:] = first, node, self._pools["span"][node, 0]
            self._tree = self._tree[:kept].copy()
        if slots.shape[0] == 0:
            return
        slots, levels, spans, keywords, masks = packed(
            as_input(slots, np.int32), self.subscriptions.columns, self.every_keyword
        )
        entry, node, keyword = self._used.tolist()
        self._place[slots] = np.arange(entry, entry + slots.shape[0])
        self._put("entry", entry, slots)
        self._put("box", node, levels)
        self._put("span", node, spans + keyword)
        self._put("keyword", keyword, keywords)
        self._put("mask", keyword, masks)
        self._used += slots.shape[0], levels.shape[0], keywords.shape[0]
        tree = np.array([[entry, slots.shape[0], node, slots.shape[0]]], np.int64)
        self._tree = np.concatenate([self._tree, tree])

    def _put(self, name: str, start: int, rows: np.ndarray) -> None:
        end = start + rows.shape[0]
        pool = self._pools[name] = grown(self._pools[name], end)
        pool[start:end] = rows

    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        return _match(messages, first_row, Forest(self._tree, **self._pools), self.subscriptions.columns, slots, rows)

    def _index_arrays(self) -> dict[str, np.ndarray]:
        entries, nodes, keywords = self._used.tolist()
        ends = {"entry": entries, "box": nodes, "span": nodes, "keyword": keywords, "mask": keywords}
        pools = {name: pool[: ends[name]] for name, pool in self._pools.items()}
        return pools | {
            "tree": self._tree,
            "used": self._used,
            "place": self._place[: self.subscriptions.slots.high_water],
        }

    def _index_bytes(self) -> int:
        return self._tree.nbytes + self._place.nbytes + sum(pool.nbytes for pool in self._pools.values())


class InvertedRTree(RtTree):
    """Boolean subscriptions in R-trees with an inverted file in each node; see the module."""

    name = "ir_tree"
    every_keyword = True


@njit(cache=True, nogil=True)
def _pairs(terms, start, slots, every, second):
    """Entries and keywords by which nodes know them: int64[m] each; `second`: the second rarest, if there are two.

    The last keyword of a subscription is stored as its complement.
    """
    count = 0
    for slot in slots:
        place = start[slot]
        count += 1
        while every and terms[place] >= 0:
            place += 1
            count += 1
    entry, keyword = np.empty(count, np.int64), np.empty(count, np.int64)
    at = 0
    for i in range(slots.shape[0]):
        place = start[slots[i]]
        place += second and terms[place] >= 0
        while True:
            term = terms[place]
            entry[at], keyword[at] = i, ~term if term < 0 else term
            at += 1
            place += 1
            if term < 0 or not every:
                break
    return entry, keyword


def packed(slots: Int32, columns, every_keyword: bool = False, second: bool = False, ordered: bool = False):
    """Slots in the order of the leaves, and the boxes, spans, keywords and masks of the nodes. O(n log n).

    The rarest keyword of each, or every one or the second one; `ordered` slots have that order.
    """
    region = columns.region[slots]
    crosses = region[:, 0] > region[:, 2]
    # One entry for both boxes of a region across the antimeridian: rare, and the test of the pair is exact.
    region[crosses, 0], region[crosses, 2] = -180.0, 180.0
    leaves = -(-slots.shape[0] // FANOUT)
    slice_size = FANOUT * int(np.ceil(np.sqrt(leaves)))
    by_lon = np.argsort(region[:, 0] + region[:, 2], kind="stable")
    slice_of = np.empty(slots.shape[0], np.int64)
    slice_of[by_lon] = np.arange(slots.shape[0]) // slice_size
    order = np.arange(slots.shape[0]) if ordered else np.lexsort((region[:, 1] + region[:, 3], slice_of))
    slots, box = slots[order], region[order]
    below, keyword = _pairs(columns.terms, columns.start, slots, every_keyword, second)
    boxes, spans, keywords, masks = [], [], [], []
    offset = 0
    while True:
        parent = below // FANOUT
        key, first = parent << 32 | keyword, np.uint32(1)
        order = np.argsort(key, kind="stable")
        key = key[order]
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        masks.append(np.bitwise_or.reduceat(first << (below[order] % FANOUT).astype(np.uint32), starts))
        below, keyword = key[starts] >> 32, key[starts] & 0x7FFFFFFF
        nodes = -(-box.shape[0] // FANOUT)
        ends = np.searchsorted(below, np.arange(nodes + 1))
        spans.append(offset + np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int32))
        offset += keyword.shape[0]
        keywords.append(keyword.astype(np.int32))
        firsts = np.arange(0, box.shape[0], FANOUT)
        box = np.concatenate(
            [np.minimum.reduceat(box[:, :2], firsts, axis=0), np.maximum.reduceat(box[:, 2:], firsts, axis=0)], axis=1
        )
        boxes.append(box)
        if nodes == 1:
            break
    return slots, *(np.concatenate(parts) for parts in (boxes, spans, keywords, masks))


@njit(cache=True, nogil=True)
def _children(forest, node, terms, alive, first, last):
    """Mask of the children under which one of the terms at alive[first:last] stands; those found are written behind.

    Returns (mask, end of those found).
    """
    mask, end = np.uint32(0), last
    low, behind = forest.span[node, 0], forest.span[node, 1]
    for j in range(first, last):
        # A match has all keywords, hence one of those in the nodes. Both ascend, so the search continues from
        # where the last one ended.
        high = behind
        while low < high:
            middle = (low + high) >> 1
            if forest.keyword[middle] < terms[alive[j]]:
                low = middle + 1
            else:
                high = middle
        if low < behind and forest.keyword[low] == terms[alive[j]]:
            mask |= forest.mask[low]
            alive[end] = alive[j]
            end += 1
    return mask, end


@njit_no_refcount
def _meets(box, node, west, south, east, north):
    # Closed, like the regions themselves; false for a message with NaN.
    return box[node, 0] <= east and west <= box[node, 2] and box[node, 1] <= north and south <= box[node, 3]


@njit_inner_no_refcount
def _verify(messages, row, columns, slots, count, out_slot, found):
    """Append those of the slots that match to out_slot from `found` on, as capacity allows; returns their end."""
    west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
    first, last = messages.term_offsets[row], messages.term_offsets[row + 1]
    for i in range(count):
        prefetch(columns.region, np.int64(slots[i]) * 4)
        prefetch(columns.start, slots[i])
    kept = 0
    for i in range(count):
        slot = slots[i]
        if region_meets(columns.region, slot, west, south, east, north):
            prefetch(columns.terms, columns.start[slot])
            slots[kept] = slot
            kept += 1
    for i in range(kept):
        out_slot[found] = slots[i]
        found += all_terms_in(columns.terms, columns.start[slots[i]], messages.terms, first, last)
    return found


@njit_inner_no_refcount
def levels_of(first_node, entries, level_start):
    """Where the nodes of each level of a tree begin, leaves first, into `level_start`; returns (levels, end of nodes).

    How many nodes each level has follows from the entries; the root is last.
    """
    levels, nodes, end = 0, (entries + FANOUT - 1) // FANOUT, first_node
    while True:
        level_start[levels] = end
        end += nodes
        levels += 1
        if nodes == 1:
            return levels, end
        nodes = (nodes + FANOUT - 1) // FANOUT


@njit(cache=True, nogil=True)
def _match(messages, first_row, forest, columns, out_slot, out_row):
    """Go down every tree with each message; see `BooleanEngine._scan` for what is returned.

    Scanned are children and entries that have a term of the message, verified the entries among them. Nodes and entries
    are prefetched when they are pushed or collected and read later; a child is searched for no term that its parent
    lacks.
    """
    found, scanned, verified = 0, 0, 0
    pending = np.empty((256, 5), np.int64)  # node, level, index in its level, terms in `alive`: first, behind the last
    alive, slots = np.empty(256, np.int32), np.empty(1024, np.int32)
    level_start = np.empty(_MOST_LEVELS + 1, np.int64)
    for row in range(first_row, messages.west.shape[0]):
        west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        terms = messages.terms[messages.term_offsets[row] : messages.term_offsets[row + 1]]
        before, scanned_before, verified_before = found, scanned, verified
        # A path has at most all terms at each level.
        alive = longer(alive, terms.shape[0] * (_MOST_LEVELS + 2))
        for j in range(terms.shape[0]):
            alive[j] = j
        count = 0
        for tree in range(forest.tree.shape[0]):
            first_entry, entries = forest.tree[tree, ENTRY], forest.tree[tree, ENTRIES]
            levels, end = levels_of(forest.tree[tree, NODE], entries, level_start)
            pending[0, 0], pending[0, 1], pending[0, 2], pending[0, 3], pending[0, 4] = (
                end - 1, levels - 1, 0, 0, terms.shape[0]
            )  # fmt: skip
            waiting = 1
            while waiting > 0:
                waiting -= 1
                node, level, index = pending[waiting, 0], pending[waiting, 1], pending[waiting, 2]
                if not _meets(forest.box, node, west, south, east, north):
                    continue
                # What lies behind its parent's terms is of nodes that are done with.
                behind = pending[waiting, 4]
                mask, last = _children(forest, node, terms, alive, pending[waiting, 3], behind)
                # Capacity for all its children; masks have no bits beyond the last one, so no other bound is needed.
                pending = longer(pending, waiting + FANOUT)
                slots = longer(slots, count + FANOUT)
                for bit in range(FANOUT):
                    if not mask >> np.uint32(bit) & np.uint32(1):
                        continue
                    scanned += 1
                    child = index * FANOUT + bit
                    if level > 0:
                        below = level_start[level - 1] + child
                        prefetch(forest.box, below * 4)
                        prefetch(forest.span, below * 2)
                        pending[waiting, 0], pending[waiting, 1], pending[waiting, 2] = below, level - 1, child
                        pending[waiting, 3], pending[waiting, 4] = behind, last
                        waiting += 1
                        continue
                    # Boxes of leaves cover many: region and keywords of single subscriptions are tested later.
                    slot = forest.entry[first_entry + child]
                    # Struck out: boxes and masks above still count it, which only costs a look.
                    if slot != _NOBODY:
                        slots[count] = slot
                        count += 1
        verified += count
        # One more than can match: `_verify` writes before it knows.
        if found + count >= out_slot.shape[0]:
            # Hits of a row stay together: this one is repeated when there is capacity.
            return before, row, scanned_before, verified_before
        found = _verify(messages, row, columns, slots, count, out_slot, found)
        for i in range(before, found):
            out_row[i] = row
    return found, messages.west.shape[0], scanned, verified
