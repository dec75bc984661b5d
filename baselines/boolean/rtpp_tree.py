"""Engine `rtpp_tree`: the R^t++-tree: nodes know two tokens of each subscription, both of them required.

After Li, Wang, Wang and Feng, "Location-aware publish/subscribe" (KDD 2013), the opponent of Yu, Li and Feng (CIKM
2015). Neither says how several tokens are chosen; here they are the two rarest, one of which is what
`baselines.boolean.rt_tree` has. A node has two lists of tokens with the children that lead to them: a message goes down
into children that are under one of its terms in both. Of a subscription with one keyword that keyword is in both lists.

Most nodes have many subscriptions, and some other one of them has the second token, so that few nodes less are entered:
what it saves is entries of leaves.
"""

import numpy as np

from baselines.boolean.rt_tree import (
    ENTRIES,
    ENTRY,
    FANOUT,
    NODE,
    Forest,
    RtTree,
    _children,
    _meets,
    _verify,
    levels_of,
    packed,
)
from compiling.njit import njit
from matching.model import Int32
from matching.space import Space
from matching.storage.prefetch import prefetch
from matching.storage.region_messages import Messages
from matching.storage.slots import as_input, grown, longer

_NOBODY, _MOST_LEVELS = -1, 8


class RtppTree(RtTree):
    """Boolean subscriptions in R-trees with the two rarest keywords in the nodes; see the module."""

    name = "rtpp_tree"

    def __init__(self, space: Space):
        super().__init__(space)
        self._second = {name: self._pools[name].copy() for name in ("span", "keyword", "mask")}
        self._used_second = 0

    def _pack(self, kept: int, slots: Int32) -> None:
        if kept < self._tree.shape[0]:
            self._used_second = int(self._second["span"][self._tree[kept, NODE], 0])
        super()._pack(kept, slots)
        if self._tree.shape[0] == kept:  # nothing is left of them
            return
        first, count, node, _ = self._tree[-1].tolist()
        placed = as_input(self._pools["entry"][first : first + count], np.int32)
        _, _, spans, keywords, masks = packed(placed, self.subscriptions.columns, second=True, ordered=True)
        for name, start, rows in (
            ("span", node, spans + self._used_second),
            ("keyword", self._used_second, keywords),
            ("mask", self._used_second, masks),
        ):
            pool = self._second[name] = grown(self._second[name], start + rows.shape[0])
            pool[start : start + rows.shape[0]] = rows
        self._used_second += keywords.shape[0]

    def _scan(self, messages: Messages, first_row: int, slots: Int32, rows: Int32) -> tuple[int, int, int, int]:
        forest = Forest(self._tree, **self._pools)
        return _match(
            messages, first_row, forest, forest._replace(**self._second), self.subscriptions.columns, slots, rows
        )

    def _index_arrays(self) -> dict[str, np.ndarray]:
        ends = {"span": int(self._used[1]), "keyword": self._used_second, "mask": self._used_second}
        return super()._index_arrays() | {f"second_{name}": self._second[name][:end] for name, end in ends.items()}

    def _index_bytes(self) -> int:
        return super()._index_bytes() + sum(pool.nbytes for pool in self._second.values())


@njit(cache=True, nogil=True)
def _match(messages, first_row, forest, second, columns, out_slot, out_row):
    """As `rt_tree._match`, with both lists of each node."""
    found, scanned, verified = 0, 0, 0
    pending = np.empty((256, 7), np.int64)  # node, level, index in its level, terms in `alive` and `others`: two each
    alive, others, slots = np.empty(256, np.int32), np.empty(256, np.int32), np.empty(1024, np.int32)
    level_start = np.empty(_MOST_LEVELS + 1, np.int64)
    for row in range(first_row, messages.west.shape[0]):
        west, south, east, north = messages.west[row], messages.south[row], messages.east[row], messages.north[row]
        terms = messages.terms[messages.term_offsets[row] : messages.term_offsets[row + 1]]
        before, scanned_before, verified_before = found, scanned, verified
        alive = longer(alive, terms.shape[0] * (_MOST_LEVELS + 2))
        others = longer(others, terms.shape[0] * (_MOST_LEVELS + 2))
        for j in range(terms.shape[0]):
            alive[j] = others[j] = j
        count = 0
        for tree in range(forest.tree.shape[0]):
            first_entry, entries = forest.tree[tree, ENTRY], forest.tree[tree, ENTRIES]
            levels, end = levels_of(forest.tree[tree, NODE], entries, level_start)
            pending[0, 0], pending[0, 1], pending[0, 2] = end - 1, levels - 1, 0
            pending[0, 3], pending[0, 4], pending[0, 5], pending[0, 6] = 0, terms.shape[0], 0, terms.shape[0]
            waiting = 1
            while waiting > 0:
                waiting -= 1
                node, level, index = pending[waiting, 0], pending[waiting, 1], pending[waiting, 2]
                if not _meets(forest.box, node, west, south, east, north):
                    continue
                behind, beyond = pending[waiting, 4], pending[waiting, 6]
                mask, last = _children(forest, node, terms, alive, pending[waiting, 3], behind)
                also, latest = _children(second, node, terms, others, pending[waiting, 5], beyond)
                pending, slots = longer(pending, waiting + FANOUT), longer(slots, count + FANOUT)
                for bit in range(FANOUT):
                    if not mask >> np.uint32(bit) & np.uint32(1):
                        continue
                    scanned += 1
                    if not also >> np.uint32(bit) & np.uint32(1):
                        continue
                    child = index * FANOUT + bit
                    if level > 0:
                        below = level_start[level - 1] + child
                        prefetch(forest.box, below * 4)
                        prefetch(forest.span, below * 2)
                        prefetch(second.span, below * 2)
                        pending[waiting, 0], pending[waiting, 1], pending[waiting, 2] = below, level - 1, child
                        pending[waiting, 3], pending[waiting, 4] = behind, last
                        pending[waiting, 5], pending[waiting, 6] = beyond, latest
                        waiting += 1
                        continue
                    slot = forest.entry[first_entry + child]
                    if slot != _NOBODY:
                        slots[count] = slot
                        count += 1
        verified += count
        if found + count >= out_slot.shape[0]:
            return before, row, scanned_before, verified_before
        found = _verify(messages, row, columns, slots, count, out_slot, found)
        for i in range(before, found):
            out_row[i] = row
    return found, messages.west.shape[0], scanned, verified
