"""The papers' textual signature: one-permutation min-wise hashing of the keywords in each node of the quadtree.

A row has a bin for each equal part of the permutation; the bin has the least place of a keyword in that part. Rows are
merged by the minimum of each bin (formula 13 of the skyline paper), deepest nodes first and of these the parents with
the fewest keywords, until there are no more than `most`, which bounds the signature's size. Keywords added later in a
node below a merged one join its row.

It has three readings (spec 4.7). `minwise` loses nothing: a keyword is certainly absent if its node has no row, or its
bin is empty or has only larger places, and otherwise passes. `approximate` passes a message if in a node its
resemblance, estimated over the bins that are not empty in both, is above 1 / sqrt(bins): messages that share few words
with a full node are lost. `printed` estimates over all bins, as the paper prints it, and loses messages of no more than
sqrt(bins) keywords; it is for measurements only.
"""

import math

import numpy as np
from numpy.typing import NDArray

from compiling.njit import njit, njit_inner
from distribution.signatures.cuckoo import hash_of, hashes
from matching.model import Int64
from matching.storage.slots import as_input

#: Bins of a row, as in the paper.
BINS = 2500
#: Rows of all query tasks together, as in the paper.
MOST_IN_ALL = 512
#: Readings, by their number in `MinwiseFilter.state`; only the first loses nothing.
READINGS = ("minwise", "approximate", "printed")
#: Bits of a term, below its node.
TERM_BITS = 31
_TERM_MASK = (1 << TERM_BITS) - 1
_PERMUTATION = 0x2545F491
_EMPTY = np.int32(2**31 - 1)
_NO_ROW = -1
#: Numbers before the rows of nodes in `state`.
_HEAD = 3


def nodes_down_to(levels: int) -> int:
    """Nodes of a quadtree with `levels` levels below its root."""
    return (4 ** (levels + 1) - 1) // 3


class MinwiseFilter:
    """Min-wise signatures of the keywords in each node; the methods of the other filters.

    Deleted keywords stay, which passes more messages, until the filter is rebuilt.

    Parameters
    ----------
    levels : int       of the quadtree below its root
    bins : int         of a row
    most : int         rows; at least one
    reading : str      one of `READINGS`
    """

    def __init__(self, levels: int, bins: int = BINS, most: int = MOST_IN_ALL, reading: str = READINGS[0]):
        self.least = np.full((0, bins), _EMPTY, np.int32)
        self.state = np.full(_HEAD + nodes_down_to(levels), _NO_ROW, np.int64)
        self.state[:_HEAD] = 0, READINGS.index(reading), most

    def __len__(self) -> int:
        """Pairs inserted and not deleted."""
        return int(self.state[0])

    @property
    def rows(self) -> int:
        """Signatures there are, at most `most`."""
        return self.least.shape[0]

    def insert(self, items: Int64) -> int:
        """Insert distinct pairs; returns their number. O(n), and O(rows * bins) where rows have to be merged."""
        nodes, places = _places(items)
        self._give_rows(np.unique(nodes))
        _insert(self.least, self.row_of[nodes], places)
        while self.rows > self.state[2]:
            self._merge()
        self.state[0] += items.shape[0]
        return items.shape[0]

    def delete(self, items: Int64) -> None:
        """Reduce the count; bins are unchanged."""
        self.state[0] -= items.shape[0]

    def contains(self, items: Int64) -> NDArray[np.bool_]:
        """bool[n]: false where the keyword is certainly not in the node. Never false for a member. O(n)."""
        nodes, places = _places(items)
        found = np.empty(items.shape[0], np.bool_)
        _maybe_there(self.least, self.row_of[nodes], places, found)
        return found

    def any_of(self, offsets: Int64, items: Int64) -> NDArray[np.bool_]:
        """bool[rows]: whether a message's pairs (as of `message_pairs`) resemble some node, which loses some. O(n)."""
        passed = np.empty(offsets.shape[0] - 1, np.bool_)
        occupied = np.count_nonzero(self.least != _EMPTY, axis=1)
        threshold = 1.0 / math.sqrt(self.least.shape[1])
        nodes, places = _places(items)
        unbiased = self.state[1] == READINGS.index("approximate")
        offsets, rows = as_input(offsets, np.int64), self.row_of[nodes]
        _resembles(self.least, occupied, offsets, rows, places, bool(unbiased), threshold, passed)
        return passed

    @property
    def loses(self) -> bool:
        """Whether it is read by `any_of`, which loses some, instead of `contains`."""
        return bool(self.state[1])

    def arrays(self) -> dict[str, np.ndarray]:
        """`words` int32[rows, bins], `state` int64[3 + nodes] (views)."""
        return {"words": self.least, "state": self.state}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "MinwiseFilter":
        """Continue from `arrays`; they are copied."""
        made = cls(0, 1)
        made.least, made.state = arrays["words"].copy(), arrays["state"].copy()
        return made

    @property
    def nbytes(self) -> int:
        """Memory of the rows and of the numbers beside them."""
        return self.least.nbytes + self.state.nbytes

    @property
    def row_of(self) -> Int64:
        """The row of each node; -1: no keywords there nor in a row above; -2 - r: no keywords, new ones join row r."""
        return self.state[_HEAD:]

    def _give_rows(self, nodes: Int64) -> None:
        """Give each of these nodes a row, its own or one it joins."""
        row_of = self.row_of
        joining = nodes[row_of[nodes] < _NO_ROW]
        row_of[joining] = -2 - row_of[joining]
        new = nodes[row_of[nodes] == _NO_ROW]
        if new.size:
            row_of[new] = self.rows + np.arange(new.size)
            self.least = np.concatenate([self.least, np.full((new.size, self.least.shape[1]), _EMPTY, np.int32)])

    def _merge(self) -> None:
        """Merge rows of the deepest level into those of their parents, as many as are too many and fewest keywords
        first; all of the level, if that is not enough. The same on every copy."""
        row_of = self.row_of
        any_row = np.where(row_of < _NO_ROW, -2 - row_of, row_of)
        inside = np.flatnonzero(any_row >= 0)
        # the owner of a row is the highest of its nodes, which has the least number
        owner = np.full(self.rows, row_of.size)
        np.minimum.at(owner, any_row[inside], inside)
        level = int(_level_of(owner.max()))
        deepest = np.flatnonzero(owner >= nodes_down_to(level - 1))
        parent, group = np.unique(_parent_of(owner[deepest]), return_inverse=True)
        keywords = np.count_nonzero(self.least != _EMPTY, axis=1)
        weight = np.bincount(group, keywords[deepest], minlength=parent.size)
        above = np.flatnonzero(np.isin(parent, owner))
        own = np.argsort(owner)[np.searchsorted(np.sort(owner), parent[above])]
        weight[above] += keywords[own]
        gain = np.bincount(group, minlength=parent.size) - 1
        gain[above] += 1
        order = np.lexsort((parent, weight, gain == 0))
        wanted = self.rows - int(self.state[2])
        chosen = np.sort(order[: np.searchsorted(np.cumsum(gain[order]), wanted) + 1])
        goes = np.isin(group, chosen)
        owner[deepest[goes]] = parent[group[goes]]
        kept, new_row = np.unique(owner, return_inverse=True)
        merged = np.full((kept.size, self.least.shape[1]), _EMPTY, np.int32)
        for row, into in enumerate(new_row.tolist()):
            np.minimum(merged[into], self.least[row], out=merged[into])
        self.least = merged
        row_of[inside] = np.where(row_of[inside] < 0, -2 - new_row[any_row[inside]], new_row[any_row[inside]])
        # keywords added later to a merged node, or below it, join its row
        empty = np.flatnonzero((row_of == _NO_ROW) & (np.arange(row_of.size) >= nodes_down_to(level - 2)))
        up = empty.copy()
        while (deep := up >= nodes_down_to(level - 1)).any():
            up[deep] = _parent_of(up[deep])
        under = np.isin(up, parent[chosen])
        row_of[empty[under]] = -2 - np.searchsorted(kept, up[under])


def _level_of(node):
    """The level of the highest-numbered node of an array, or of one."""
    level = 0
    while nodes_down_to(level) <= node:
        level += 1
    return level


def _parent_of(nodes: Int64) -> Int64:
    """The nodes above these, none of which is the root."""
    starts = np.array([0, *(nodes_down_to(level) for level in range(16))])
    level = np.searchsorted(starts, nodes, side="right") - 1
    within = nodes - starts[level]
    x, y = within & ((1 << level) - 1), within >> level
    return starts[level - 1] + ((y >> 1) << (level - 1)) + (x >> 1)


def _places(pairs: Int64) -> tuple[Int64, Int64]:
    """Node of each pair, and the place of its keyword in the permutation; the last place stands for an empty bin."""
    places = np.minimum(hashes(pairs & _TERM_MASK, _PERMUTATION), int(_EMPTY) - 1)
    return as_input(pairs >> TERM_BITS, np.int64), as_input(places, np.int64)


@njit_inner
def _bin_of(place, bins):
    # Bins are runs of the permutation: equal parts of 31 bits.
    return (place * bins) >> TERM_BITS


@njit(cache=True, nogil=True)
def _insert(least, rows, places):
    for i in range(rows.shape[0]):
        bin_ = _bin_of(places[i], least.shape[1])
        # An empty bin has the largest value, never 0, or it would win every minimum (spec 4.7).
        if places[i] < least[rows[i], bin_]:
            least[rows[i], bin_] = places[i]


@njit(cache=True, nogil=True)
def _maybe_there(least, rows, places, out):
    for i in range(rows.shape[0]):
        out[i] = False
        if rows[i] >= 0:
            lowest = least[rows[i], _bin_of(places[i], least.shape[1])]
            # An inserted keyword left its own value or a smaller one in its bin (spec 4.7, L2).
            out[i] = lowest != _EMPTY and lowest <= places[i]


@njit_inner
def may_be_in_row(least, row, term):
    """Whether a keyword may be in a row (-1 or less: in none), for kernels; as `MinwiseFilter.contains`."""
    if row < 0:
        return False
    place = min(hash_of(term, _PERMUTATION), np.int64(_EMPTY) - 1)
    lowest = least[row, _bin_of(place, least.shape[1])]
    return lowest != _EMPTY and lowest <= place


@njit(cache=True, nogil=True)
def _resembles(least, occupied, offsets, rows, places, unbiased, threshold, out):
    """out[m]: whether in some row the message's keywords and the row's seem to have more in common than `threshold`."""
    bins = least.shape[1]
    mine = np.full(bins, _EMPTY, np.int32)
    for m in range(out.shape[0]):
        out[m] = False
        first, last = offsets[m], offsets[m + 1]
        while first < last:
            row, end = rows[first], first
            while end < last and rows[end] == row:
                bin_ = _bin_of(places[end], bins)
                mine[bin_] = min(mine[bin_], places[end])
                end += 1
            # Bins empty in both are no match: counted as one, they would let everything through (spec 4.7).
            equal, only_mine = 0, 0
            for at in range(first, end):
                bin_ = _bin_of(places[at], bins)
                if mine[bin_] != _EMPTY:  # two keywords may share a bin: compare it once
                    if row >= 0:
                        equal += mine[bin_] == least[row, bin_]
                        only_mine += least[row, bin_] == _EMPTY
                    mine[bin_] = _EMPTY
            # Rule (12) as printed divides by all bins; the estimator wants those that are not empty in both.
            compared = occupied[row] + only_mine if unbiased and row >= 0 else bins
            # Rule (14): as printed it needs more than sqrt(bins) equal ones, and a message fills a few (spec 4.7).
            out[m] = out[m] or equal > threshold * compared
            first = end
